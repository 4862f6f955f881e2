/* A walk over the data by model; with --shard one over some blocks, whose state a file keeps.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/os.h"
#include "base/text.h"
#include "calib/outliers.h"
#include "checkpoint/container.h"
#include "checkpoint/h5_result.h"
#include "cmds/cli/cli.h"
#include "cmds/command.h"
#include "cmds/stats/inside.h"
#include "model/model.h"
#include "record/record.h"
#include "record/version.h"
#include "settings/inputs.h"
#include "settings/options.h"
#include "tasks/items.h"
#include "work/ranks.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CMD_STATS_MODELS = 64 };

/* What the numbers' bits depend on, shared by all shards of a run. */
typedef struct cmd_stats_key {
    char program[DQ_IDENTITY], text[65];
} cmd_stats_key;
#define CMD_STATS_SENSITIVITY_OPTIONS(x)                                                           \
    dq_opt_heading("rounding:"),                                                                   \
        dq_opt_flag("forecast", &(x).forecast,                                                     \
                    "what rounding attention logits to 8, 6, 4 and 3 bits does to them and to "    \
                    "the maps of every head, at every granularity"),                               \
        dq_opt_words("sensitivity", "KINDS", &(x).kinds, cmd_stats_sensitivity_kinds,              \
                     CMD_STATS_SENSITIVITY_KINDS,                                                  \
                     "{words}: round the attention logits of one layer, head or map alone, the "   \
                     "keys or values of one layer, one matrix of weights, and measure the KL "     \
                     "divergence; takes minutes to hours, and includes --forecast"),               \
        dq_opt_int("sensitivity-bits", "B", &(x).bits, 2, 8,                                       \
                   "bits that they are rounded to (default 4)"),                                   \
        dq_opt_int("sensitivity-windows", "N", &(x).windows, 2, 4096,                              \
                   "windows that both read, at even intervals in the text (default 8)"),           \
        dq_opt_int("sensitivity-tokens", "N", &(x).tokens, 3, 32768,                               \
                   "tokens of each of them, from its beginning (default 512)"),                    \
        dq_opt_word("logit-granularity", "WHICH", &(x).granularity, dq_granularity_name,           \
                    DQ_GRANULARITIES, "logits with one scale: {words} (default per-tensor)")

/* A quantity is an array over layers, channels one over layers, classes of tokens and channels. */

static dq_status put(dq_h5_result *h, const char *group, const char *name, dq_h5_result_type type,
                     int n_dims, const int64_t *shape, const void *data, dq_err *err)
{
    char path[192];
    snprintf(path, sizeof path, "%s/%s", group, name);
    return dq_h5_result_array(h, path, type, n_dims, shape, data, err);
}

/* What of a tally a file has, but for its histogram. */
typedef struct tally_record {
    int64_t n, n_bad;
    float top[DQ_TOP];
    int32_t place[DQ_TOP][5];
    dq_median median;
    double quantile[CMD_STATS_QUANTILES], sum, rms, kurtosis0;
} tally_record;

#define OF_TALLY(name, type, member, ...)                                                          \
    {                                                                                              \
        name, type, offsetof(tally_record, member),                                                \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
static const cmd_stats_field of_tally[] = {
    OF_TALLY("n", DQ_OUT_I64, n, 0),
    OF_TALLY("n_not_finite", DQ_OUT_I64, n_bad, 0),
    OF_TALLY("top", DQ_OUT_F32, top, DQ_TOP),
    OF_TALLY("place", DQ_OUT_I32, place, DQ_TOP, 5),
    OF_TALLY("median", DQ_OUT_F64, median.value, 0),
    OF_TALLY("median_bound", DQ_OUT_F64, median.bound, 0),
    OF_TALLY("quantiles", DQ_OUT_F64, quantile, CMD_STATS_QUANTILES),
    OF_TALLY("sum", DQ_OUT_F64, sum, 0),
    OF_TALLY("rms", DQ_OUT_F64, rms, 0),
    OF_TALLY("kurtosis0", DQ_OUT_F64, kurtosis0, 0),
    {0}};

static tally_record record_of(const dq_tally *t, dq_median m)
{
    tally_record r = {.n = t->n,
                      .n_bad = t->n_bad,
                      .median = m,
                      .sum = dq_fixed_value(&t->sum),
                      .rms = dq_outlier_rms(t),
                      .kurtosis0 = dq_outlier_kurtosis0(t)};
    for (int k = 0; k < CMD_STATS_QUANTILES; k++)
        r.quantile[k] = dq_tally_quantile(t, cmd_stats_quantile[k].p, NULL);
    for (int k = 0; k < DQ_TOP; k++) {
        const dq_place none = {-1, -1, -1, -1, -1}, *at = k < t->n_top ? &t->place[k] : &none;
        const int32_t place[5] = {at->seq, at->layer, at->head, at->row, at->col};
        r.top[k] = k < t->n_top ? t->top[k] : (float)NAN;
        memcpy(r.place[k], place, sizeof place);
    }
    return r;
}

/* median NULL: ordinary tokens, which are not refined. */
static dq_status tallies_h5(dq_h5_result *h, const char *group, const dq_tally *layer,
                            const dq_median *median, int n, bool hist, dq_arena *a, dq_err *err)
{
    const int64_t shape[2] = {n, DQ_HIST_BINS};
    char name[128], p[16 * CMD_STATS_QUANTILES] = "";
    tally_record *all = dq_alloc(a, (size_t)n, sizeof *all, err);
    int64_t *bins = hist ? dq_alloc(a, (size_t)n * DQ_HIST_BINS, sizeof *bins, err) : NULL;
    DQ_TRY(err->code);
    for (int i = 0; i < n; i++) {
        all[i] = record_of(&layer[i], median ? median[i] : dq_outlier_median(&layer[i]));
        if (bins)
            memcpy(bins + (int64_t)i * DQ_HIST_BINS, layer[i].hist, DQ_HIST_BINS * sizeof *bins);
    }
    DQ_TRY(dq_h5_result_group(h, group, err));
    DQ_TRY(cmd_stats_fields_h5(h, group, of_tally, all, sizeof *all, shape, 1, a, err));
    if (bins) DQ_TRY(put(h, group, "histogram", DQ_OUT_I64, 2, shape, bins, err));
    snprintf(name, sizeof name, "%s/place", group);
    DQ_TRY(dq_h5_result_text(h, name, "columns", "sequence layer head row column", err));
    snprintf(name, sizeof name, "%s/quantiles", group);
    for (int i = 0; i < CMD_STATS_QUANTILES; i++)
        snprintf(p + strlen(p), sizeof p - strlen(p), "%s%g", i ? " " : "",
                 cmd_stats_quantile[i].p);
    DQ_TRY(dq_h5_result_text(h, name, "p", p, err));
    if (!bins) return DQ_OK;
    snprintf(name, sizeof name, "%s/histogram", group);
    return dq_h5_result_text(h, name, "bins", "upper 16 bits of |x| as f32", err);
}

/* Of a channel, or a query head. */
typedef struct moments_record {
    float max;
    int64_t n;
    double rms, kurtosis0;
    int32_t place[3];
} moments_record;

static dq_status kind_h5(dq_h5_result *h, const char *group, const dq_outliers *o, int kind,
                         dq_arena *a, dq_err *err)
{
    static const cmd_stats_field of_channel[] = {
        {"max", DQ_OUT_F32, offsetof(moments_record, max), {0}},
        {"rms", DQ_OUT_F64, offsetof(moments_record, rms), {0}},
        {"place", DQ_OUT_I32, offsetof(moments_record, place), {2}},
        {0}};
    const dq_outlier_kind *k = &o->kind[kind];
    const int n = o->n_layers;
    const bool hist = kind < DQ_N_TABLE5;
    char name[128];
    DQ_TRY(dq_h5_result_group(h, group, err));
    snprintf(name, sizeof name, "%s/layers", group);
    DQ_TRY(tallies_h5(h, name, k->layer, k->layer_median, n, hist, a, err));
    snprintf(name, sizeof name, "%s/pooled", group);
    DQ_TRY(tallies_h5(h, name, &k->pooled, &k->pooled_median, 1, hist, a, err));
    if (!k->ordinary) return DQ_OK;
    snprintf(name, sizeof name, "%s/layers_ordinary", group);
    DQ_TRY(tallies_h5(h, name, k->ordinary, NULL, n, false, a, err));
    snprintf(name, sizeof name, "%s/pooled_ordinary", group);
    DQ_TRY(tallies_h5(h, name, &k->pooled_ordinary, NULL, 1, false, a, err));
    if (!k->channels) return DQ_OK;
    snprintf(name, sizeof name, "%s/channels", group);
    const dq_channels *layer = k->channels;
    const int64_t cols = layer->cols, shape[3] = {n, DQ_TOKEN_CLASSES, cols};
    moments_record *x = dq_alloc(a, (size_t)(n * DQ_TOKEN_CLASSES * cols), sizeof *x, err);
    int64_t *rows = dq_alloc(a, (size_t)(n * DQ_TOKEN_CLASSES), sizeof *rows, err);
    DQ_TRY(err->code);
    for (int64_t i = 0; i < n * DQ_TOKEN_CLASSES * cols; i++) {
        const int64_t at = i / cols, l = at / DQ_TOKEN_CLASSES, c = at % DQ_TOKEN_CLASSES;
        const dq_channel *y = &layer[l].of[c * cols + i % cols];
        rows[at] = layer[l].rows[c];
        x[i] = (moments_record){.max = y->max,
                                .rms = dq_channels_rms(&layer[l], (int)c, i % cols),
                                .place = {y->max > 0 ? y->seq : -1, y->max > 0 ? y->row : -1}};
    }
    DQ_TRY(dq_h5_result_group(h, name, err));
    DQ_TRY(put(h, name, "n", DQ_OUT_I64, 2, shape, rows, err));
    DQ_TRY(cmd_stats_fields_h5(h, name, of_channel, x, sizeof *x, shape, 3, a, err));
    return dq_h5_result_text(h, name, "axes",
                             "layer; ordinary sink first; channel; sequence position", err);
}

static dq_status profile_h5(dq_h5_result *h, const char *group, const cmd_stats_entry *e,
                            dq_arena *a, dq_err *err)
{
    static const cmd_stats_field of_head[] = {
        {"n", DQ_OUT_I64, offsetof(moments_record, n), {0}},
        {"max", DQ_OUT_F32, offsetof(moments_record, max), {0}},
        {"rms", DQ_OUT_F64, offsetof(moments_record, rms), {0}},
        {"kurtosis0", DQ_OUT_F64, offsetof(moments_record, kurtosis0), {0}},
        {"place", DQ_OUT_I32, offsetof(moments_record, place), {3}},
        {0}};
    const dq_outliers *o = &e->out;
    const int64_t shape[2] = {o->n_layers, DQ_TOKEN_CLASSES},
                  heads[3] = {o->n_layers, o->n_q, DQ_TOKEN_CLASSES};
    char name[128];
    DQ_TRY(put(h, group, "tokens", DQ_OUT_I64, 2, shape, o->tokens, err));
    snprintf(name, sizeof name, "%s/attention_logits/heads", group);
    const int64_t n = heads[0] * heads[1] * heads[2];
    moments_record *x = dq_alloc(a, (size_t)n, sizeof *x, err);
    for (int64_t i = 0; x && i < n; i++) {
        const dq_moments *m = &o->head[i];
        const bool any = m->max > 0;
        x[i] = (moments_record){
            .n = m->n,
            .max = m->n ? m->max : (float)NAN,
            .rms = dq_moments_rms(m),
            .kurtosis0 = dq_moments_kurtosis0(m),
            .place = {any ? m->at.seq : -1, any ? m->at.row : -1, any ? m->at.col : -1}};
    }
    DQ_TRY(err->code);
    DQ_TRY(dq_h5_result_group(h, name, err));
    DQ_TRY(cmd_stats_fields_h5(h, name, of_head, x, sizeof *x, heads, 3, a, err));
    return dq_h5_result_text(h, name, "axes",
                             "layer; query head; key ordinary sink first; sequence query key", err);
}

/* Arrays of model i under /models/i. */
static dq_status cmd_stats_h5(dq_h5_result *h, const cmd_stats_entry *e, int i, dq_err *err)
{
    char group[32], name[64];
    const int64_t cu[1] = {e->in.n_seq + 1}, ids[1] = {e->in.cu[e->in.n_seq]};
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    snprintf(group, sizeof group, "/models/%d", i);
    if (dq_h5_result_group(h, group, err) == DQ_OK &&
        dq_h5_result_text(h, group, "name", e->model->name, err) == DQ_OK &&
        dq_h5_result_text(h, group, "architecture", e->model->architecture->name, err) == DQ_OK)
        dq_h5_result_text(h, group, "fingerprint", e->model->fingerprint, err);
    for (int k = 0; k < e->out.n_kinds && err->code == DQ_OK; k++) {
        snprintf(name, sizeof name, "%s/%s", group, dq_outlier_name[k]);
        kind_h5(h, name, &e->out, k, a, err);
    }
    if (err->code == DQ_OK && e->out.measure) cmd_stats_attention_h5(h, group, e, a, err);
    if (err->code == DQ_OK && e->out.head) profile_h5(h, group, e, a, err);
    if (err->code == DQ_OK) cmd_stats_forecast_h5(h, group, e, a, err);
    if (err->code == DQ_OK) cmd_stats_units_h5(h, group, e, a, err);
    if (err->code == DQ_OK) put(h, group, "ids", DQ_OUT_I32, 1, ids, e->in.ids, err);
    if (err->code == DQ_OK) put(h, group, "cu_ids", DQ_OUT_I64, 1, cu, e->in.cu, err);
    dq_arena_free(a);
    return err->code;
}

enum { PASS_ROWS = 4096, DEFAULT_CTX = 2048, PLACES = 5 };

typedef struct stats {
    const char *text_path, *out_path, *csv_path, *device;
    dq_word bos;    /* a dq_bos */
    dq_word detail; /* a dq_outlier_detail */
    dq_list ids;
    int64_t ctx, limit, threads, places;
    bool json, force, one_pass, layers, resume;
    dq_shard shard;
    cmd_stats_sensitivity sensitivity;
    cmd_stats_sensitivity_run rounding;
    const dq_shard_merge *merge; /* the shards that numbers come from; NULL: they are computed */
    cmd_stats_key key;
    dq_input_head_order head_order;
    dq_logger logger;
    dq_arena *arena;
    dq_backend *backend;
    dq_input_text text; /* text.text NULL: ids were given */
    cmd_stats_entry entry[CMD_STATS_MODELS];
    int n;
    dq_progress progress;
    double walk_rows; /* tokens of one walk of the model being run */
} stats;

static const dq_usage usage = {
    .name = "stats",
    .synopsis = "MODEL... [--text FILE | --ids \"1 2 3\" ...] [-o OUT.h5] [options]",
    .about = "Runs every model over the same text and reports the largest magnitudes and the "
             "median of its attention logits (scaled, before the softmax, causally visible "
             "entries, all heads and both maps) and of its hidden states (output of every layer). "
             "A profile names each outlier once: a channel with the layers where it stands, or a "
             "head. It covers queries, keys, values and the inputs of projections too, and gives "
             "every number without first tokens and attention sinks as well. A MODEL is a folder "
             "or a container. Only --forecast and --sensitivity round attention logits.\n"
             "The text is encoded as a whole, with what the tokenizer puts around a text, and then "
             "cut into windows of --ctx tokens; the last window may be shorter. Each --ids is one "
             "sequence, taken as it is. Without either, a built-in sample is used. Largest values, "
             "counts and medians are exact. Exact medians take up to three walks over the data: "
             "for the counts, for the pooled medians, for the medians of layers. --one-pass "
             "reports the middle of a histogram bin and how far off it can be, 0.4 % at most; "
             "--shard can then compute a shard in a process of its own.\n",
    .examples = "  dq stats llama/ diffllama/ --text book.txt\n"
                "  dq stats diffllama/ --ids \"0 17 44 8\" --json\n"
                "  dq stats llama/ --text book.txt --one-pass -o outliers.h5\n"
                "  dq stats llama/ diffllama/ --text book.txt --detail table5\n"
                "  dq stats llama/ --text book.txt --one-pass --shard 1/4 -o run1.shard\n",
    .min_args = 1,
    .max_args = CMD_STATS_MODELS,
    .args = "one or more MODELs",
};

static void tick(void *arg, int walk, int64_t rows)
{
    stats *x = arg;
    dq_progress_set(&x->progress, walk * x->walk_rows + (double)rows, NULL);
}

/* Opens the model's runner and a progress over so many rows of a walk. */
static dq_status begin_model(stats *x, int model, int64_t rows, dq_runner **r, dq_err *err)
{
    cmd_stats_entry *e = &x->entry[model];
    const dq_math f32 = {DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32};
    DQ_TRY(dq_backend_can(x->backend, e->model, f32, &dq_kv_plain, err));
    DQ_TRY(dq_runner_new(r, e->model, x->backend, &dq_kv_plain, err));
    x->walk_rows = (double)rows;
    dq_logger_note(&x->logger, "%s: %lld tokens in %lld sequences on %s", e->model->path,
                   (long long)e->in.cu[e->in.n_seq], (long long)e->in.n_seq, x->backend->device);
    dq_progress_begin(&x->progress, &x->logger, e->label, (x->one_pass ? 1 : 3) * x->walk_rows);
    dq_progress_set(&x->progress, 0, NULL);
    return DQ_OK;
}

static void end_model(stats *x, dq_runner *r)
{
    dq_progress_end(&x->progress);
    dq_runner_free(r);
}

/* What a model's sequences are, and where its findings go. */
static dq_status begin_entry(const stats *x, cmd_stats_entry *e, dq_err *err)
{
    e->fed = (dq_sequences){.n = e->in.n_seq, .cu = e->in.cu, .ids = e->in.ids};
    return dq_outliers_init(&e->out, e->model, (dq_outlier_detail)x->detail.at, err);
}

static dq_outlier_walk_how walk_how(stats *x)
{
    return (dq_outlier_walk_how){
        .max_rows = PASS_ROWS, .walks = x->one_pass ? 1 : 3, .tick = tick, .arg = x};
}

/* The blocks of all models are numbered through, and shard I of N computes those whose number is I
 * - 1 modulo N: they take about as long. What blocks find adds up, so a file (work/work.h) has the
 * state after some of them: a line for each layer of each model, and one for the blocks,
 *
 *   {"model": M, "layer": L, "found": BASE64}      bytes of dq_outliers_put
 *   {"blocks": [[B, ..], ..]}                      of each model
 *   {"model": M, ..}                               of each unit of --sensitivity, and the forecast
 *
 * A later state replaces the file. One is written after a block, if writing takes little time
 * beside what was computed since. */

static const char schema[] = "dq-stats-part/2";
enum { SHARE = 20, LEAST_SECONDS = 5 }; /* between states: times the writing, and at least */

/* A model's blocks, and its state in a file. */
typedef struct blocks {
    dq_outlier_walk *walk;
    int first; /* its number among those of all models */
    bool done[DQ_OUTLIER_BLOCKS];
    dq_strbuf *found; /* [n_layers] */
} blocks;

typedef struct work {
    stats *x;
    dq_outlier_walk_how how;
    json_t *about;
    blocks model[CMD_STATS_MODELS];
    dq_work ledger;
    char key[65];
    double wrote_at, writing; /* seconds: when the last state was written, and how long that took */
} work;

typedef dq_status found_unit(void *arg, const dq_sensitivity *s, int64_t unit, dq_err *err);
/* found: hears of what a shard computes, instead of a journal. */
static dq_status begin_rounding(stats *x, found_unit *found, void *arg, dq_err *err)
{
    if (!cmd_stats_sensitivity_wanted(&x->sensitivity)) return DQ_OK;
    x->rounding = (cmd_stats_sensitivity_run){.set = &x->sensitivity,
                                              .entry = x->entry,
                                              .n = x->n,
                                              .out = x->merge ? NULL : x->out_path,
                                              .key = x->key.text,
                                              .shard = x->shard.index,
                                              .n_shards = x->shard.n,
                                              .found = found,
                                              .arg = arg,
                                              .resume = x->resume,
                                              .force = x->force,
                                              .backend = x->backend,
                                              .logger = &x->logger,
                                              .arena = x->arena};
    return cmd_stats_sensitivity_begin(&x->rounding, err);
}

/* The key of a shard: that of the run, and what is rounded. */
static dq_status name_shard(work *w, dq_err *err)
{
    json_t *of = json_object();
    dq_row_writer rows = dq_row_json(of);
    DQ_PUT(&rows, "run", w->x->key.text, NULL);
    cmd_stats_sensitivity_settings(&w->x->sensitivity, &rows);
    dq_work_key(w->key, of, err);
    json_decref(of);
    return err->code;
}

static dq_status begin(work *w, found_unit *found, dq_err *err)
{
    int number = 0;
    w->how = walk_how(w->x);
    DQ_TRY(name_shard(w, err));
    DQ_TRY(begin_rounding(w->x, found, w, err));
    for (int i = 0; i < w->x->n; i++) {
        cmd_stats_entry *e = &w->x->entry[i];
        const dq_model *m = e->model;
        w->model[i].found =
            dq_alloc(w->x->arena, (size_t)m->n_layers, sizeof *w->model[i].found, err);
        if (!w->model[i].found) return err->code;
        DQ_TRY(begin_entry(w->x, e, err));
        DQ_TRY(dq_outlier_walk_new(&w->model[i].walk, &e->out, m, &e->fed, &w->how, err));
        w->model[i].first = number;
        number += dq_outlier_walk_blocks(w->model[i].walk);
    }
    return DQ_OK;
}

static void end(work *w)
{
    for (int i = 0; i < w->x->n; i++) {
        blocks *of = &w->model[i];
        for (int l = 0; of->found && l < w->x->entry[i].model->n_layers; l++)
            dq_block_free(of->found[l].s);
        dq_outlier_walk_free(of->walk);
    }
}

static bool is_mine(const work *w, int model, int block)
{
    return (w->model[model].first + block) % w->x->shard.n == w->x->shard.index - 1;
}

/* The last complete state in the lines. */
static dq_status merge_found(work *w, int model, dq_err *err)
{
    blocks *of = &w->model[model];
    dq_outliers *o = &w->x->entry[model].out;
    for (int l = 0; l < o->n_layers; l++) {
        const char *at = of->found[l].s, *end = at + of->found[l].n;
        DQ_TRY(dq_outliers_merge(o, l, &at, end, err));
        if (at != end) return dq_fail(err, DQ_DAMAGED, "\"found\" is too long");
        of->found[l].n = 0;
    }
    if (dq_outlier_walk_check(of->walk)) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "a place outside the sequences");
}

static dq_status take_line(void *arg, const json_t *step, bool told, dq_err *err)
{
    work *w = arg;
    const json_t *all = json_object_get(step, "blocks");
    if (!all) {
        const char *text;
        int64_t model, layer;
        size_t n;
        DQ_TRY(dq_json_int(&model, step, "model", 0, w->x->n - 1, NULL, err));
        dq_sensitivity *s = w->x->entry[model].sensitivity;
        if (s && !json_object_get(step, "layer")) return dq_sensitivity_take(s, step, told, err);
        DQ_TRY(dq_json_int(&layer, step, "layer", 0, w->x->entry[model].model->n_layers - 1, NULL,
                           err));
        DQ_TRY(dq_json_text(&text, step, "found", NULL, err));
        const size_t len = strlen(text);
        dq_strbuf *to = &w->model[model].found[layer];
        if (to->n) return dq_fail(err, DQ_DAMAGED, "a layer is there twice");
        DQ_TRY(dq_strbuf_reserve(to, len / 4 * 3 + 1, err));
        if (!dq_base64_get(to->s, &n, text, len)) return dq_fail(err, DQ_DAMAGED, "\"found\"");
        to->n = n;
        return DQ_OK;
    }
    if ((int)json_array_size(all) != w->x->n) return dq_fail(err, DQ_DAMAGED, "\"blocks\"");
    for (int i = 0; i < w->x->n; i++) {
        const json_t *list = json_array_get(all, (size_t)i);
        if (json_array_size(list) == 0) continue;
        blocks *of = &w->model[i];
        size_t k;
        json_t *x;
        json_array_foreach(list, k, x)
        {
            const int64_t block = json_is_integer(x) ? json_integer_value(x) : -1;
            if (block < 0 || block >= dq_outlier_walk_blocks(of->walk))
                return dq_fail(err, DQ_DAMAGED, "\"blocks\"");
            if (of->done[block] || (!w->x->merge && !is_mine(w, i, (int)block)))
                return dq_fail(err, DQ_DAMAGED, "block %lld of model %d is %s", (long long)block, i,
                               of->done[block] ? "there twice" : "not of this shard");
            of->done[block] = true;
        }
        DQ_TRY(merge_found(w, i, err));
    }
    return DQ_OK;
}

static dq_work_how how_of(work *w)
{
    const stats *x = w->x;
    return (dq_work_how){.path = x->out_path,
                         .schema = schema,
                         .key = w->key,
                         .about = w->about,
                         .shard = x->shard.index,
                         .n_shards = x->shard.n,
                         .resume = x->resume,
                         .force = true,
                         .rewrites = true,
                         .take = take_line,
                         .arg = w};
}

static dq_status read_shard(work *w, const char *path, dq_err *err)
{
    const dq_work_how how = how_of(w);
    DQ_TRY(dq_work_merge(&how, path, err));
    for (int i = 0; i < w->x->n; i++) {
        const blocks *of = &w->model[i];
        for (int l = 0; l < w->x->entry[i].model->n_layers; l++) {
            if (of->found[l].n) return dq_fail(err, DQ_DAMAGED, "%s: it says no blocks", path);
        }
    }
    return DQ_OK;
}

static dq_status put_layer(work *w, int model, int layer, dq_err *err)
{
    dq_strbuf bytes = {0}, text = {0};
    if (dq_outliers_put(&w->x->entry[model].out, layer, &bytes, err) == DQ_OK &&
        dq_base64_put(&text, bytes.s, bytes.n, err) == DQ_OK)
        dq_work_put(
            &w->ledger,
            json_pack("{s:i, s:i, s:s%}", "model", model, "layer", layer, "found", text.s, text.n),
            err);
    dq_block_free(bytes.s);
    dq_block_free(text.s);
    return err->code;
}

static dq_status put_state(void *arg, dq_err *err)
{
    work *w = arg;
    json_t *all = json_array();
    for (int i = 0; i < w->x->n; i++) {
        const blocks *of = &w->model[i];
        json_t *list = json_array();
        for (int b = 0; b < dq_outlier_walk_blocks(of->walk); b++) {
            if (of->done[b] && is_mine(w, i, b)) json_array_append_new(list, json_integer(b));
        }
        const int n_layers = json_array_size(list) ? w->x->entry[i].out.n_layers : 0;
        for (int l = 0; l < n_layers && err->code == DQ_OK; l++) put_layer(w, i, l, err);
        json_array_append_new(all, list);
        const dq_sensitivity *s = w->x->entry[i].sensitivity;
        for (int64_t k = 0; s && k <= s->n && err->code == DQ_OK; k++) {
            json_t *line = dq_sensitivity_is_mine(s, k) ? dq_sensitivity_line(s, k, err) : NULL;
            if (line) dq_work_put(&w->ledger, line, err);
        }
    }
    return dq_work_put(&w->ledger, json_pack("{s:o}", "blocks", all), err);
}

static dq_status write_state(work *w, bool ends, dq_err *err)
{
    const double began = dq_os_seconds();
    dq_work_rewrite(&w->ledger, put_state, ends, err);
    w->wrote_at = dq_os_seconds();
    w->writing = w->wrote_at - began;
    return err->code;
}

static dq_status keep(work *w, dq_err *err)
{
    if (dq_os_seconds() - w->wrote_at < fmax(SHARE * w->writing, LEAST_SECONDS)) return DQ_OK;
    return write_state(w, false, err);
}

static dq_status keep_unit(void *arg, const dq_sensitivity *s, int64_t unit, dq_err *err)
{
    (void)s, (void)unit;
    return keep(arg, err);
}

static dq_status run_model(work *w, int model, dq_err *err)
{
    blocks *of = &w->model[model];
    const int n = dq_outlier_walk_blocks(of->walk);
    int64_t rows = 0;
    dq_runner *r = NULL;
    for (int i = 0; i < n; i++) {
        if (!of->done[i] && is_mine(w, model, i)) rows += dq_outlier_walk_rows(of->walk, i);
    }
    if (rows == 0) return DQ_OK;
    DQ_TRY(begin_model(w->x, model, rows, &r, err));
    for (int i = 0; i < n && err->code == DQ_OK; i++) {
        if (of->done[i] || !is_mine(w, model, i)) continue;
        if (dq_outlier_walk_run(of->walk, r, i, err) != DQ_OK) break;
        of->done[i] = true;
        keep(w, err);
    }
    end_model(w->x, r);
    return err->code;
}

/* Computes the blocks that the shard's file lacks, so that it has all. */
static dq_status run_blocks(work *w, dq_err *err)
{
    double mine = 0, all = 0;
    w->wrote_at = dq_os_seconds();
    DQ_TRY(begin(w, keep_unit, err));
    const dq_work_how how = how_of(w);
    DQ_TRY(dq_work_open(&w->ledger, &how, err));
    const bool ended = w->ledger.ended;
    for (int m = 0; m < w->x->n; m++) {
        const dq_outlier_walk *walk = w->model[m].walk;
        for (int i = 0; i < dq_outlier_walk_blocks(walk); i++) {
            const double rows = (double)dq_outlier_walk_rows(walk, i),
                         one = rows * (double)w->x->entry[m].model->n_params;
            mine += is_mine(w, m, i) ? one : 0;
            all += one;
        }
        const dq_sensitivity *s = w->x->entry[m].sensitivity;
        for (int64_t i = 0; s && i <= s->n; i++) {
            const double one = (double)s->text->n_ids * (double)s->m->n_params;
            mine += dq_sensitivity_is_mine(s, i) ? one : 0;
            all += one;
        }
    }
    for (int i = 0; i < w->x->n; i++) DQ_TRY(run_model(w, i, err));
    DQ_TRY(cmd_stats_sensitivity_compute(&w->x->rounding, err));
    if (!ended) DQ_TRY(write_state(w, true, err));
    dq_shard_say(&w->x->shard, w->x->out_path, all > 0 ? mine / all : 0, "OUT.h5", &w->x->logger);
    return DQ_OK;
}

static dq_status run_shard(stats *x, int argc, char **argv, dq_err *err)
{
    const dq_shard_about about = {"stats", &x->shard, x->key.program, x->backend,
                                  json_integer(x->places)};
    work *w = dq_alloc(x->arena, 1, sizeof *w, err);
    if (!w) return err->code;
    w->x = x;
    if (dq_shard_head(&w->about, &about, argc, argv, err) == DQ_OK) run_blocks(w, err);
    json_decref(w->about);
    if (err->code != DQ_OK) dq_work_failed(&w->ledger, err);
    dq_work_close(&w->ledger, false);
    end(w);
    return err->code;
}

/* Fills entry[].out from the files of all shards. DQ_MISMATCH: of another run, or incomplete. */
static dq_status read_shards(stats *x, dq_err *err)
{
    work *w = dq_alloc(x->arena, 1, sizeof *w, err);
    if (!w) return err->code;
    w->x = x;
    begin(w, NULL, err);
    for (int i = 0; err->code == DQ_OK && i < x->merge->n; i++)
        read_shard(w, x->merge->path[i], err);
    for (int i = 0; err->code == DQ_OK && i < x->n; i++) {
        const blocks *of = &w->model[i];
        const dq_sensitivity *s = x->entry[i].sensitivity;
        bool lacks = s && !s->foretold;
        for (int64_t k = 0; s && k < s->n; k++) lacks = lacks || !s->unit[k].known;
        for (int b = 0; b < dq_outlier_walk_blocks(of->walk); b++) lacks = lacks || !of->done[b];
        if (lacks) dq_fail(err, DQ_MISMATCH, "a part of the work lacks");
        dq_outlier_walk_end(of->walk);
    }
    end(w);
    return err->code == DQ_OK ? cmd_stats_sensitivity_compute(&x->rounding, err) : err->code;
}

static dq_status open_models(stats *x, const dq_args *args, dq_err *err)
{
    for (int i = 0; i < args->n; i++) {
        cmd_stats_entry *e = &x->entry[x->n++];
        DQ_TRY(dq_input_model(&e->model, args->item[i], &x->head_order, &x->logger, err));
        const dq_model *m = e->model;
        if (x->ids.n) {
            DQ_TRY(dq_input_parse_ids(&e->in, x->ids.item, x->ids.n, x->arena, err));
            /* the tokenizer only shows tokens, so an unreadable one is no obstacle */
            dq_err ignored = {0};
            if (dq_input_tokenizer(&e->tokenizer, m, false, &ignored) != DQ_OK) {
                dq_advice_apply(&ignored);
                dq_logger_warn(&x->logger, "tokens are shown as numbers: %s", ignored.text);
            }
        } else {
            e->ctx = x->ctx                           ? x->ctx
                     : m->max_positions < DEFAULT_CTX ? m->max_positions
                                                      : DEFAULT_CTX;
            if (e->ctx > m->max_positions)
                return dq_fail(err, DQ_MISMATCH, "%s: --ctx %lld, but the model has %d positions",
                               m->path, (long long)e->ctx, m->max_positions);
            DQ_TRY(dq_input_tokenizer(&e->tokenizer, e->model, true, err));
            if (dq_items_bos_check(e->tokenizer, (dq_bos)x->bos.at, err) != DQ_OK)
                return dq_in(err, "%s: ", e->model->path);
            DQ_TRY(dq_input_encode(
                &e->in, e->tokenizer, &x->text,
                dq_items_bos_flags(e->tokenizer, (dq_bos)x->bos.at, x->text.text, x->text.bytes),
                &x->logger, x->arena, err));
            /* Cuts the only sequence into windows of e->ctx ids. */
            int64_t n = (e->in.n + e->ctx - 1) / e->ctx;
            int64_t *cu = dq_alloc(x->arena, (size_t)n + 1, sizeof *cu, err);
            if (!cu) return err->code;
            for (int64_t k = 0; k <= n; k++) cu[k] = k * e->ctx < e->in.n ? k * e->ctx : e->in.n;
            e->in.cu = cu;
            e->in.n_seq = n;
        }
        if (x->limit && e->in.n_seq > x->limit) e->in.n_seq = x->limit;
    }
    DQ_TRY(dq_input_head_order_check(&x->head_order, err));
    for (int i = 0; i < x->n; i++) {
        x->entry[i].label = x->entry[i].model->name;
        for (int j = 0; j < x->n; j++) {
            if (j != i && strcmp(x->entry[j].model->name, x->entry[i].model->name) == 0)
                x->entry[i].label = x->entry[i].model->path;
        }
    }
    return DQ_OK;
}

static void settings_rows(dq_row_writer *w, const stats *x)
{
    const bool all = w->live && x->detail.at == DQ_DETAIL_ALL;
    DQ_PUT(w, "ctx", x->ctx, "Tokens of a window, or auto.", .mixed = "auto");
    DQ_PUT(w, "bos", x->ids.n ? "off" : x->bos.text,
           "When the begin-of-text token stands before the text.", DQ_WORDS(dq_bos_name));
    DQ_PUT(w, "limit", x->limit, "Sequences at most; null: all.", .when = DQ_NULL | DQ_AT_0,
           .min = 1);
    DQ_PUT(w, "medians", x->one_pass ? "bounded" : "exact", "How medians were found.",
           DQ_WORD("exact", "bounded"));
    DQ_PUT(w, "places", x->places, "Outliers of each kind and class that are named.");
    DQ_PUT(w, "detail", dq_outlier_detail_name[x->detail.at], "How much was looked at.",
           DQ_WORDS(dq_outlier_detail_name));
    DQ_PUT(w, "sink_share", all ? DQ_OUTLIER_SINK_SHARE : DQ_NO_REAL,
           "Share of their attention that queries give to a token which is a sink, on average; "
           "null: without --detail all.",
           .when = DQ_NULL);
    DQ_PUT(w, "sink_queries", all ? DQ_OUTLIER_SINK_QUERIES : -1,
           "Queries that have to see it; null: without --detail all.",
           .when = DQ_NULL | DQ_BELOW_0);
    cmd_stats_sensitivity_settings(DQ_LIVE(w, &x->sensitivity), w);
    DQ_PUT(w, "head_order", x->head_order.word.text, "--head-order; null: the model's.",
           .when = DQ_NULL);
    DQ_PUT(w, "logit_bits", 16, "Bits of attention logits.", .min = 16, .max = 16);
    DQ_PUT(w, "kv_bits", "32:32", "Widths of the cache.", DQ_WORD("32:32"));
    DQ_PUT(w, "math", dq_num_name[DQ_NUM_F32], "The arithmetic.", .words = dq_num_name,
           .n_words = 1);
}

static dq_status document_rows(dq_row_writer *w, const stats *x, dq_err *err)
{
    const int n = w->live ? x->n : 1;
    DQ_LIST(w, "inputs", "The models, and the text or the ids.");
    for (int i = 0; i < n; i++) dq_input_put_model(w, DQ_LIVE(w, x->entry[i].model));
    if (DQ_WHEN(w, x->text.text)) dq_input_put_text(w, DQ_LIVE(w, &x->text));
    if (DQ_WHEN(w, !x->text.text) &&
        DQ_OBJECT(w, NULL, "Token ids of the command line.", .def = "input_ids")) {
        DQ_PUT(w, "kind", "ids", "That it is token ids.", DQ_WORD("ids"));
        DQ_LIST(w, "sequences", "A text of decimal ids for each sequence.");
        for (int i = 0; DQ_MORE(w, i, x->ids.n); i++) DQ_PUT(w, NULL, x->ids.item[i], NULL);
        dq_row_end(w);
        dq_row_end(w);
    }
    dq_row_end(w);
    DQ_OBJECT(w, "settings", "As they took effect.");
    settings_rows(w, x);
    const json_t *merged = w->live && x->merge ? x->merge->device : NULL;
    DQ_PUT(w, "device", merged ? json_string_value(merged) : x->backend->device,
           "The device and its arithmetic units, in words.");
    DQ_PUT(w, "threads", merged ? json_integer_value(x->merge->threads) : x->backend->threads,
           "Threads of the CPU.", .min = 1);
    dq_row_end(w);
    DQ_LIST(w, "results", "A model each.");
    for (int i = 0; i < n && err->code == DQ_OK; i++) {
        const cmd_stats_entry *e = DQ_LIVE(w, &x->entry[i]);
        DQ_ITEM(w);
        cmd_stats_rows(w, e, w->live ? (int)x->places : 0);
        if (cmd_stats_forecast_rows(w, e, DQ_LIVE(w, x->entry), err) == DQ_OK)
            cmd_stats_units_rows(w, e, err);
        dq_row_end(w);
    }
    dq_row_end(w);
    return err->code;
}

static void describe(dq_row_writer *w)
{
    dq_err none = {0};
    document_rows(w, NULL, &none);
}

const dq_document dq_stats_document = {"dq-stats/1", "What dq stats --json prints.", "stats",
                                       describe};

static dq_status print_json(const stats *x, dq_err *err)
{
    json_t *doc = dq_document_new(&x->logger, dq_stats_document.name);
    dq_row_writer w = dq_row_json(doc);
    if (document_rows(&w, x, err) == DQ_OK) return dq_stdout_print(doc, err);
    json_decref(doc);
    return err->code;
}

static dq_status print_text(const stats *x, dq_err *err)
{
    char size[DQ_SIZE_REPORT_TEXT];
    for (int i = 0; i < x->n; i++) {
        const cmd_stats_entry *e = &x->entry[i];
        printf("%s: %s; %lld tokens in %lld sequence%s%s%s", e->model->path,
               dq_size_report_text(size, e->model), (long long)e->out.n_rows,
               (long long)e->in.n_seq, e->in.n_seq == 1 ? "" : "s", x->text.text ? " of " : "",
               x->text.text ? x->text.path : "");
        if (e->ctx) printf(", windows of %lld tokens", (long long)e->ctx);
        printf("\n");
    }
    printf("\n");
    DQ_TRY(cmd_stats_print(x->entry, x->n, (int)x->places, x->layers, err));
    const int units = x->places ? (int)x->places : PLACES; /* 0 is about outliers */
    DQ_TRY(cmd_stats_forecast_print(x->entry, x->n, (int)x->places, x->layers, err));
    for (int i = 0; i < x->n; i++) DQ_TRY(cmd_stats_units_print(&x->entry[i], units, err));
    return DQ_OK;
}

/* Writes everything but the final name, so that later steps cannot fail for want of space. */
static dq_status write_h5(const stats *x, dq_h5_result **h, dq_err *err)
{
    json_t *settings = json_object();
    dq_row_writer w = dq_row_json(settings);
    settings_rows(&w, x);
    char *text;
    dq_json_dump(&text, settings, JSON_COMPACT | JSON_SORT_KEYS, err);
    json_decref(settings);
    if (!text) return err->code;
    DQ_TRY(dq_h5_result_new(h, x->out_path, x->force, err));
    if (dq_h5_result_text(*h, "/", "format", "dq-stats", err) == DQ_OK &&
        dq_h5_result_text(*h, "/", "format_version", "1.0", err) == DQ_OK &&
        dq_h5_result_text(*h, "/", "dq_version", DQ_VERSION, err) == DQ_OK &&
        dq_h5_result_text(*h, "/", "settings", text, err) == DQ_OK &&
        (!x->text.text || dq_h5_result_text(*h, "/", "text_sha256", x->text.sha256, err) == DQ_OK))
        dq_h5_result_group(*h, "/models", err);
    free(text);
    for (int i = 0; i < x->n && err->code == DQ_OK; i++) cmd_stats_h5(*h, &x->entry[i], i, err);
    return err->code == DQ_OK ? dq_h5_result_close(*h, err) : err->code;
}

static dq_status hand_over(stats *x, dq_err *err)
{
    dq_h5_result *h = NULL;
    bool csv = false;
    DQ_TRY(dq_os_maps_check(err));
    if (x->out_path) write_h5(x, &h, err);
    if (err->code == DQ_OK && x->csv_path)
        csv = cmd_stats_csv(x->entry, x->n, x->csv_path, err) == DQ_OK;
    if (err->code == DQ_OK) {
        if (x->json)
            print_json(x, err);
        else if (print_text(x, err) == DQ_OK)
            dq_stdout_flush(err);
    }
    if (err->code == DQ_OK && h) dq_h5_result_commit(&h, err);
    if (err->code != DQ_OK && csv) remove(x->csv_path);
    dq_h5_result_drop(h);
    return err->code;
}

/* By all ranks, which have equal models and ids and compute the same bits. */
static dq_status compute(stats *x, dq_err *err)
{
    DQ_TRY(dq_ranks_agree("set of inputs, program or processor", x->key.text, err));
    DQ_TRY(begin_rounding(x, NULL, NULL, err));
    for (int i = 0; i < x->n; i++) {
        cmd_stats_entry *e = &x->entry[i];
        const dq_outlier_walk_how how = walk_how(x);
        dq_runner *r = NULL;
        DQ_TRY(begin_entry(x, e, err));
        DQ_TRY(begin_model(x, i, e->in.cu[e->in.n_seq], &r, err));
        dq_outlier_walk_collect(&e->out, r, &e->fed, &how, err);
        end_model(x, r);
        if (err->code != DQ_OK) return err->code;
    }
    return cmd_stats_sensitivity_compute(&x->rounding, err);
}

static dq_status name_key(stats *x, dq_err *err)
{
    dq_identity_text(x->key.program, x->backend);
    if (x->merge) snprintf(x->key.program, sizeof x->key.program, "%s", x->merge->program);
    cmd_stats_key *key = &x->key;
    const cmd_stats_entry *e = x->entry;
    const char *head_order = x->head_order.word.text;
    const dq_outlier_detail detail = (dq_outlier_detail)x->detail.at;
    dq_sha256 h;
    DQ_TRY(dq_sha256_begin(&h, err));
    dq_sha256_add(&h, key->program, strlen(key->program) + 1);
    dq_sha256_add(&h, dq_outlier_detail_name[detail], strlen(dq_outlier_detail_name[detail]) + 1);
    if (head_order) dq_sha256_add(&h, head_order, strlen(head_order));
    for (int i = 0; i < x->n; i++, e++) {
        const int64_t ids = e->in.cu[e->in.n_seq];
        const dq_model *m = e->model;
        dq_sha256_add(&h, m->fingerprint, 64);
        if (m->is_container) dq_sha256_add(&h, m->container->info.content_sha256, 64);
        dq_sha256_add(&h, &e->in.n_seq, sizeof e->in.n_seq);
        dq_sha256_add(&h, e->in.cu, ((size_t)e->in.n_seq + 1) * sizeof *e->in.cu);
        dq_sha256_add(&h, e->in.ids, (size_t)ids * sizeof *e->in.ids);
    }
    return dq_sha256_end(&h, key->text, err);
}

static dq_status run(stats *x, const dq_args *args, int argc, char **argv, dq_err *err)
{
    if (x->text_path && x->ids.n)
        return dq_fail(err, DQ_USAGE, "--text and --ids exclude each other. Give one of them.");
    if (x->ids.n && (x->ctx || x->bos.at != DQ_BOS_AUTO))
        dq_logger_warn(&x->logger, "--ids are taken as they are; --ctx and --bos have no effect");
    DQ_TRY(dq_shard_read(&x->shard, x->out_path, args->also, err));
    if (x->resume && !x->shard.n && !(x->sensitivity.kinds.n && x->out_path))
        return dq_fail(err, DQ_USAGE,
                       "--resume goes on with a shard, or with --sensitivity and -o. Add %s.",
                       x->sensitivity.kinds.n ? "-o" : "--shard I/N");
    if (x->shard.n) {
        if (!x->one_pass)
            return dq_fail(
                err, DQ_USAGE,
                "--shard: exact medians take walks that depend on the counts of all shards. "
                "Add --one-pass, whose medians carry a bound, or share exact ones with "
                "mpirun.");
        if (x->text_path && strcmp(x->text_path, "-") == 0)
            return dq_fail(
                err, DQ_USAGE,
                "--shard: dq merge reads the text again, and so do the other shards. Give "
                "--text a file.");
    }
    const char *label = x->shard.n ? "-o with --shard" : "-o";
    const dq_output_form form = !x->shard.n ? DQ_OUTPUT_HDF5
                                : x->resume ? DQ_OUTPUT_JOURNAL
                                            : DQ_OUTPUT_LINES;
    const dq_output out[] = {{label, x->out_path, form, NULL},
                             {"--csv", x->csv_path, DQ_OUTPUT_CSV, NULL}};
    const int n_shards = x->merge ? x->merge->n : 0;
    int n = args->n_inputs;
    const char **input = dq_alloc(x->arena, (size_t)(n + n_shards), sizeof *input, err);
    if (!input) return err->code;
    memcpy(input, args->input, (size_t)n * sizeof *input);
    for (int i = 0; i < n_shards; i++) input[n++] = x->merge->path[i];
    DQ_TRY(dq_output_guard_check(out, 2, input, n, x->force, err));
    DQ_TRY(dq_backend_open(&x->backend, x->device, (int)x->threads, err));
    if (x->detail.at == DQ_DETAIL_ALL && !x->backend->ops->profile_rows)
        return dq_fail(err, DQ_MISMATCH,
                       "on %s there is no profile by classes of tokens, heads and channels. Add "
                       "--detail maps, or leave out --device.",
                       x->backend->device);
    DQ_TRY(cmd_stats_sensitivity_check(&x->sensitivity, x->backend, err));
    if (!x->ids.n) DQ_TRY(dq_input_read(&x->text, x->text_path, x->arena, err));
    DQ_TRY(open_models(x, args, err)); /* all inputs are looked at before anything runs */
    DQ_TRY(name_key(x, err));
    if (x->shard.n) return run_shard(x, argc, argv, err);
    DQ_TRY(x->merge ? read_shards(x, err) : compute(x, err));
    if (dq_ranks_number() > 0) return DQ_OK;
    for (int i = 0; i < x->n; i++) {
        cmd_stats_entry *e = &x->entry[i];
        for (int k = 0; k < e->out.n_kinds; k++) {
            const int64_t bad = e->out.kind[k].pooled.n_bad;
            if (bad)
                dq_logger_warn(&x->logger,
                               "%s: %lld %s are NaN or infinite; they are counted in no number",
                               e->model->path, (long long)bad, dq_outlier_name[k]);
        }
        if (x->detail.at == DQ_DETAIL_ALL)
            DQ_TRY(dq_weight_outliers_collect(&e->weights, e->model, err));
    }
    return hand_over(x, err);
}

dq_status dq_cmd_stats(int argc, char **argv, dq_err *err)
{
    return cmd_stats_merged(NULL, argc, argv, err);
}

dq_status cmd_stats_merged(const dq_shard_merge *merge, int argc, char **argv, dq_err *err)
{
    dq_arena *a;
    stats *x = dq_arena_object(&a, sizeof *x, err); /* too large for a stack */
    if (!x) return err->code;
    x->arena = a;
    x->bos.text = dq_bos_name[DQ_BOS_AUTO];
    x->device = "auto";
    x->detail = (dq_word){dq_outlier_detail_name[DQ_DETAIL_ALL], DQ_DETAIL_ALL};
    x->places = PLACES;
    const dq_opt opts[] = {
        dq_opt_heading("input:"),
        dq_opt_text("text", "FILE", &x->text_path,
                    "text to run over, - for standard input (default: the built-in sample)"),
        dq_opt_list("ids", "\"1 2 3\"", &x->ids,
                    "one sequence of ids, taken as it is; may be repeated"),
        dq_opt_int("ctx", "N", &x->ctx, 1, INT32_MAX,
                   "tokens per window of text (default min(2048, the model's positions))"),
        dq_opt_int("limit", "N", &x->limit, 1, INT32_MAX,
                   "only the first N sequences (default all)"),
        dq_opt_word("bos", "WHEN", &x->bos, dq_bos_name, DQ_BOS_WHENS,
                    "begin-of-text token before the text: auto (as the tokenizer does), on or off "
                    "(default auto)"),
        DQ_INPUT_HEAD_ORDER_OPTION(x->head_order),
        dq_opt_heading("output:"),
        dq_opt_letter('o', dq_opt_output(dq_opt_text("output", "OUT.h5", &x->out_path,
                                                     "all numbers and histograms as HDF5"))),
        dq_opt_output(
            dq_opt_text("csv", "FILE", &x->csv_path, "the pooled and the layers' numbers as CSV")),
        dq_opt_output(
            dq_opt_flag("json", &x->json, "one JSON document (dq-stats/1) instead of tables")),
        dq_opt_int("places", "N", &x->places, 0, DQ_TOP,
                   "how many outliers of each kind of token to name (default 5); as many units of "
                   "--sensitivity, but where N is 0"),
        dq_opt_flag("layers", &x->layers, "tables by layer too"),
        dq_opt_manner(dq_opt_flag("force", &x->force, "replace existing output files")),
        CMD_STATS_SENSITIVITY_OPTIONS(x->sensitivity),
        dq_opt_heading("running:"),
        dq_opt_flag("one-pass", &x->one_pass, "walk over the data once; medians carry a bound"),
        dq_opt_word("detail", "LEVEL", &x->detail, dq_outlier_detail_name, DQ_DETAILS,
                    "{words} (default all): only the numbers of Table 5, which takes least time; "
                    "attention maps too; classes of tokens, heads and channels too"),
        DQ_SHARD_OPTION(x->shard),
        dq_opt_manner(dq_opt_flag("resume", &x->resume,
                                  "go on with the shard of --shard, or with --sensitivity -o")),
        DQ_OPT_RUN(&x->device, &x->threads),
        DQ_LOGGER_OPTIONS(x->logger),
        {0},
    };
    dq_args args;
    x->merge = merge;
    if (dq_help_parse_shard(&args, argc, argv, opts, merge ? merge->own : NULL, &usage, err) ==
            DQ_OK &&
        !args.help && dq_progress_listen(&x->logger, "stats", err) == DQ_OK)
        run(x, &args, argc, argv, err);
    cmd_stats_sensitivity_end(&x->rounding, err);
    for (int i = 0; i < x->n; i++) {
        dq_outliers_free(&x->entry[i].out);
        dq_weight_outliers_free(&x->entry[i].weights);
        dq_tokenizer_free(x->entry[i].tokenizer);
        dq_model_close(x->entry[i].model);
    }
    dq_backend_close(x->backend);
    dq_logger_end(&x->logger);
    dq_arena_free(a);
    return err->code;
}
