/* Units are ranked here alone: the plan's order is that of layers.
 * SPDX-License-Identifier: MIT */
#include "base/text.h"
#include "calib/outliers.h"
#include "cmds/cli/cli.h"
#include "cmds/stats/inside.h"
#include "record/record.h"
#include "settings/inputs.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *of, *by, *title;
} kind_names[DQ_SENSITIVITY_KINDS] = {
    [DQ_SENSITIVITY_LAYERS] = {"logits", "layer", "logits of a layer"},
    [DQ_SENSITIVITY_HEADS] = {"logits", "head", "logits of a head"},
    [DQ_SENSITIVITY_MAPS] = {"logits", "map", "logits of a map"},
    [DQ_SENSITIVITY_KEYS] = {"keys", "layer", "keys of a layer"},
    [DQ_SENSITIVITY_VALUES] = {"values", "layer", "values of a layer"},
    [DQ_SENSITIVITY_WEIGHTS] = {"weights", "tensor", "a matrix of weights"},
};

/* Largest KLD first; stable. */
static int by_kld(const void *a, const void *b)
{
    const dq_sensitivity_unit *const *x = a, *const *y = b;
    if ((*x)->kld.value > (*y)->kld.value) return -1;
    if ((*x)->kld.value < (*y)->kld.value) return 1;
    return *x < *y ? -1 : *x > *y;
}

/* Ranked units of a kind; free the list with dq_block_free. */
static const dq_sensitivity_unit **ranked(int64_t *n, const dq_sensitivity *s, int kind,
                                          dq_err *err)
{
    const dq_sensitivity_unit **u = dq_block_new((size_t)s->n + 1, sizeof *u, err);
    *n = 0;
    for (int64_t i = 0; u && i < s->n; i++) {
        if ((int)s->unit[i].kind == kind) u[(*n)++] = &s->unit[i];
    }
    if (u) qsort(u, (size_t)*n, sizeof *u, by_kld);
    return u;
}

enum { NAME = 200 };

/* "layer 11 head 3", "layer 2 head 0 map 2", "model.embed_tokens.weight". */
static const char *unit_name(char buf[NAME], const dq_sensitivity_unit *u)
{
    if (u->name)
        snprintf(buf, NAME, "%.*s", NAME - 1, u->name);
    else if (u->head < 0)
        snprintf(buf, NAME, "layer %d", u->layer);
    else if (u->map < 0)
        snprintf(buf, NAME, "layer %d head %d", u->layer, u->head);
    else
        snprintf(buf, NAME, "layer %d head %d map %d", u->layer, u->head, u->map + 1);
    return buf;
}

/* What breaks first, if held-out windows confirm it. */
static dq_status print_first(const cmd_stats_entry *e, int kind, dq_err *err)
{
    const dq_sensitivity *s = e->sensitivity;
    char first[NAME], next[NAME];
    dq_sensitivity_first x;
    DQ_TRY(dq_sensitivity_first_of(&x, s, (dq_sensitivity_kind)kind, err));
    if (x.first < 0) {
        printf(
            "\nWhat breaks first is inconclusive: it takes two units, and four windows with scored "
            "tokens.\n");
        return DQ_OK;
    }
    unit_name(first, &s->unit[x.first]);
    unit_name(next, &s->unit[x.next]);
    if (x.interval.low > 0)
        printf(
            "\nBreaks first: %s. On the windows that did not choose it, it loses %.3g nats a token "
            "(%.3g to %.3g) more than any other; next is %s.\n",
            first, x.more.value, x.interval.low, x.interval.high, next);
    else
        printf("\nWhat breaks first is inconclusive: half of the windows say %s. On the others it "
               "loses "
               "%.3g to %.3g nats a token more than any other; of these, %s loses most.\n",
               first, x.interval.low, x.interval.high, next);
    return DQ_OK;
}

/* With three units any order is likely. */
enum { LEAST = 4 };

void cmd_stats_mean_rows(dq_row_writer *w, dq_mean m, dq_interval i)
{
    DQ_PUT(w, "value", m.value, "The number; null: there is none.", .when = DQ_NULL);
    DQ_PUT(w, "stderr", m.std_err, "Its standard error over windows; null: of fewer than two.",
           .when = DQ_NULL);
    DQ_INTERVAL(w, "interval", i, "Of 95 %; null: of fewer than two windows.");
}

static void put_mean(dq_row_writer *w, const char *name, dq_mean m, dq_interval i,
                     const char *about)
{
    if (!DQ_OBJECT(w, name, about, .def = "mean_over_windows")) return;
    cmd_stats_mean_rows(w, m, i);
    dq_row_end(w);
}

static void kind_rows(dq_row_writer *w, int kind)
{
    DQ_PUT(w, "of", kind_names[kind].of, "What is rounded.",
           DQ_WORD("logits", "keys", "values", "weights"));
    DQ_PUT(w, "by", kind_names[kind].by, "Of what.", DQ_WORD("layer", "head", "map", "tensor"));
}

static void unit_rows(dq_row_writer *w, const dq_sensitivity_unit *u)
{
    kind_rows(w, w->live ? (int)u->kind : 0);
    DQ_PUT(w, "layer", u->layer, "Its layer, from 0; null: of none.", .when = DQ_NULL | DQ_BELOW_0);
    DQ_PUT(w, "head", u->head, "Its output head; null: all.", .when = DQ_NULL | DQ_BELOW_0);
    DQ_PUT(w, "map", u->map < 0 ? -1 : u->map + 1, "1 or 2; null: all.",
           .when = DQ_NULL | DQ_BELOW_0, .min = 1, .max = 2);
    DQ_PUT(w, "tensor", u->name, "Name of a matrix; null: it is none.", .when = DQ_NULL);
}

/* One of ranked units. */
static void ranked_rows(dq_row_writer *w, const void *units, int64_t i)
{
    const dq_sensitivity_unit *const *all = units, *u = DQ_LIVE(w, all[i]);
    char name[NAME], interval[48];
    if (w->live)
        snprintf(interval, sizeof interval, "%.3g to %.3g", u->interval.low, u->interval.high);
    DQ_CELL(w, unit_name(name, u), "alone");
    unit_rows(w, u);
    put_mean(w, "kld_nats", w->live ? u->kld : dq_mean_none,
             w->live ? u->interval : dq_interval_none,
             "KL divergence from the model that is not rounded.");
    DQ_CELL(w, u->kld.value, "KLD, nats", .digits = -4);
    DQ_CELL(w, u->kld.std_err, "+-", .digits = -2);
    DQ_CELL(w, isfinite(u->interval.low) ? interval : NULL, "95 %");
    DQ_PUT(w, "local_error", u->local,
           "Local error: |x' - x|^2 / |x|^2 of what its layer gives; null: none.", .when = DQ_NULL,
           .title = "local error", .digits = -3);
    DQ_PUT(w, "logit_error", u->logit_error, "Predicted error of its logits; null: it has none.",
           .when = DQ_NULL, .title = "logit error", .digits = -3);
}

static void print_correlation(const char *forecast, double r, dq_interval i)
{
    if (isfinite(r) && isfinite(i.low))
        printf("  %-12s %.2f (%.2f to %.2f)\n", forecast, r, i.low, i.high);
    else if (isfinite(r))
        printf("  %-12s %.2f (no interval)\n", forecast, r);
}

static dq_status print_kind(const cmd_stats_entry *e, int kind, int most, dq_err *err)
{
    const dq_sensitivity *s = e->sensitivity;
    dq_sensitivity_rank r;
    DQ_TRY(dq_sensitivity_rank_of(&r, s, (dq_sensitivity_kind)kind, err));
    if (r.n == 0) return DQ_OK;
    printf("\n%s: %s at %d bits%s%s, the most sensitive of %lld; %lld tokens scored in %lld "
           "windows\n\n",
           e->label, kind_names[kind].title, s->set.bits, kind <= DQ_SENSITIVITY_MAPS ? " " : "",
           kind <= DQ_SENSITIVITY_MAPS ? dq_granularity_name[s->set.granularity] : "",
           (long long)r.n, (long long)s->scored, (long long)s->text->n_clusters);
    int64_t n;
    const dq_sensitivity_unit **u = ranked(&n, s, kind, err);
    if (u) dq_table_rows(ranked_rows, u, n < most ? n : most, 1, err);
    dq_block_free(u);
    DQ_TRY(err->code);
    DQ_TRY(print_first(e, kind, err));
    if (r.n >= LEAST && (isfinite(r.local) || isfinite(r.logit_error))) {
        printf("Rank correlation with the KLD (Spearman; 95 %% if units were independent)\n");
        print_correlation("local error", r.local, r.local_interval);
        print_correlation("logit error", r.logit_error, r.logit_interval);
        if (isfinite(r.repeat))
            printf("  %-12s %.2f, of one half of the windows with the other\n", "the KLD",
                   r.repeat);
    }
    return DQ_OK;
}

dq_status cmd_stats_units_print(const cmd_stats_entry *e, int n_places, dq_err *err)
{
    for (int k = 0; e->sensitivity && k < DQ_SENSITIVITY_KINDS; k++) {
        if (e->sensitivity->set.kinds >> k & 1) DQ_TRY(print_kind(e, k, n_places, err));
    }
    return err->code;
}

static void put_unit(dq_row_writer *w, const char *name, const dq_sensitivity_unit *u,
                     const char *about)
{
    if (!DQ_OBJECT(w, name, about, .def = "unit")) return;
    unit_rows(w, u);
    dq_row_end(w);
}

static void put_correlation(dq_row_writer *w, int kind, const char *forecast, int64_t n, double r,
                            dq_interval i, double repeat)
{
    if (w->live && (!isfinite(r) || n < LEAST)) return;
    DQ_ITEM(w);
    kind_rows(w, kind);
    DQ_PUT(w, "forecast", forecast, "Which forecast.", DQ_WORD("local_error", "logit_error"));
    DQ_PUT(w, "n", n, "Units.", .min = LEAST);
    DQ_PUT(w, "spearman", r, "Rank correlation with the KLD.");
    DQ_INTERVAL(w, "interval", i, "Of 95 %; null: there is none.");
    DQ_PUT(w, "repeat", repeat,
           "Rank correlation of the KLD on both halves of the windows; null: none.",
           .when = DQ_NULL);
    dq_row_end(w);
}

dq_status cmd_stats_units_rows(dq_row_writer *w, const cmd_stats_entry *e, dq_err *err)
{
    const dq_sensitivity *s = DQ_LIVE(w, e->sensitivity);
    if (!DQ_BEGIN(w, OBJECT, "sensitivity", s && s->set.kinds,
                  "What rounding one thing alone does: --sensitivity.", .when = DQ_OUT))
        return err->code;
    DQ_PUT(w, "bits", s->set.bits, "Bits that it is rounded to.", .min = 2, .max = 8);
    DQ_PUT(w, "granularity", dq_granularity_name[s->set.granularity],
           "Which logits have one scale.", DQ_WORDS(dq_granularity_name));
    DQ_PUT(w, "tokens", s->text->n_ids, "Tokens of the windows.", .min = 1);
    DQ_PUT(w, "scored", s->scored, "Tokens scored: the second half of every window.", .min = 1);
    DQ_PUT(w, "clusters", s->text->n_clusters, "Windows.", .min = 1);
    DQ_PUT(w, "cluster", "window", "What intervals are over.", DQ_WORD("window"));
    DQ_LIST(w, "units", "What was rounded alone, of each kind the largest KLD first.");
    for (int k = 0; DQ_MORE(w, k, DQ_SENSITIVITY_KINDS); k++) {
        int64_t n = 0;
        const dq_sensitivity_unit **u = w->live ? ranked(&n, s, k, err) : NULL;
        for (int64_t i = 0; DQ_MORE(w, i, n); i++) dq_row_item(w, ranked_rows, u, i);
        dq_block_free(u);
    }
    dq_row_end(w);
    DQ_LIST(w, "correlation", "How forecasts rank the units of a kind, of four units and more.");
    for (int k = 0; DQ_MORE(w, k, DQ_SENSITIVITY_KINDS) && err->code == DQ_OK; k++) {
        dq_sensitivity_rank r = {0};
        if (w->live) dq_sensitivity_rank_of(&r, s, (dq_sensitivity_kind)k, err);
        put_correlation(w, k, "local_error", r.n, r.local, r.local_interval, r.repeat);
        if (w->live)
            put_correlation(w, k, "logit_error", r.n, r.logit_error, r.logit_interval, r.repeat);
    }
    dq_row_end(w);
    DQ_LIST(w, "first",
            "Which unit of a kind breaks first; kinds with two units, on four windows "
            "and more.");
    for (int k = 0; DQ_MORE(w, k, DQ_SENSITIVITY_KINDS) && err->code == DQ_OK; k++) {
        dq_sensitivity_first f = {0};
        if (w->live) dq_sensitivity_first_of(&f, s, (dq_sensitivity_kind)k, err);
        if (f.first < 0) continue;
        DQ_ITEM(w);
        put_unit(w, "first", DQ_LIVE(w, &s->unit[f.first]),
                 "The one of most KLD on half of the windows.");
        put_unit(w, "next", DQ_LIVE(w, &s->unit[f.next]), "The second there.");
        put_mean(w, "more_nats", f.more, f.interval,
                 "How much more the first loses on the other half.");
        dq_row_end(w);
    }
    dq_row_end(w);
    dq_row_end(w);
    return err->code;
}

dq_status cmd_stats_fields_h5(dq_h5_result *h, const char *group, const cmd_stats_field *field,
                              const void *records, size_t size, const int64_t *shape, int n_dims,
                              dq_arena *a, dq_err *err)
{
    char name[192];
    int64_t dims[6], n = 1;
    for (int d = 0; d < n_dims; d++) n *= dims[d] = shape[d];
    for (const cmd_stats_field *f = field; f->name; f++) {
        size_t bytes = f->type == DQ_OUT_I32 || f->type == DQ_OUT_F32 ? 4 : 8;
        int all = n_dims;
        for (int w = 0; w < 2 && f->width[w]; w++) {
            dims[all++] = f->width[w];
            bytes *= (size_t)f->width[w];
        }
        char *x = dq_alloc(a, (size_t)n, bytes, err);
        if (!x) return err->code;
        for (size_t i = 0; i < (size_t)n; i++)
            memcpy(x + i * bytes, (const char *)records + i * size + f->at, bytes);
        snprintf(name, sizeof name, "%s/%s", group, f->name);
        DQ_TRY(dq_h5_result_array(h, name, f->type, all, dims, x, err));
    }
    return DQ_OK;
}

dq_status cmd_stats_units_h5(dq_h5_result *h, const char *group, const cmd_stats_entry *e,
                             dq_arena *a, dq_err *err)
{
    static const cmd_stats_field of_unit[] = {
        {"kind", DQ_OUT_I32, offsetof(dq_sensitivity_unit, kind), {0}},
        {"layer", DQ_OUT_I32, offsetof(dq_sensitivity_unit, layer), {0}},
        {"head", DQ_OUT_I32, offsetof(dq_sensitivity_unit, head), {0}},
        {"map", DQ_OUT_I32, offsetof(dq_sensitivity_unit, map), {0}},
        {"kld", DQ_OUT_F64, offsetof(dq_sensitivity_unit, kld.value), {0}},
        {"stderr", DQ_OUT_F64, offsetof(dq_sensitivity_unit, kld.std_err), {0}},
        {"low", DQ_OUT_F64, offsetof(dq_sensitivity_unit, interval.low), {0}},
        {"high", DQ_OUT_F64, offsetof(dq_sensitivity_unit, interval.high), {0}},
        {"local_error", DQ_OUT_F64, offsetof(dq_sensitivity_unit, local), {0}},
        {"logit_error", DQ_OUT_F64, offsetof(dq_sensitivity_unit, logit_error), {0}},
        {0}};
    const dq_sensitivity *s = e->sensitivity;
    char name[160];
    if (!s || s->n == 0) return DQ_OK;
    const int64_t shape[2] = {s->n, s->text->n_clusters};
    double *sums = dq_alloc(a, (size_t)(shape[0] * shape[1]), sizeof *sums, err);
    if (!sums) return err->code;
    for (int64_t i = 0; i < s->n; i++)
        memcpy(sums + i * shape[1], s->unit[i].sums, (size_t)shape[1] * sizeof *sums);
    snprintf(name, sizeof name, "%s/sensitivity", group);
    DQ_TRY(dq_h5_result_group(h, name, err));
    DQ_TRY(dq_h5_result_text(h, name, "kinds", "layers heads maps keys values weights", err));
    DQ_TRY(cmd_stats_fields_h5(h, name, of_unit, s->unit, sizeof *s->unit, shape, 1, a, err));
    snprintf(name, sizeof name, "%s/sensitivity/kld_sums", group);
    return dq_h5_result_array(h, name, DQ_OUT_F64, 2, shape, sums, err);
}

/* A token is escaped byte by byte, so that it is one word on any terminal. */

enum { CELL = 96 };

static const struct {
    int k;
    const char *name, *about;
} tops[] = {{1, "top1", "The largest magnitude; null: there are fewer."},
            {2, "top2", "The second largest magnitude; null: there are fewer."},
            {3, "top3", "The third largest magnitude; null: there are fewer."},
            {10, "top10", "The 10th largest magnitude; null: there are fewer."},
            {100, "top100", "The 100th largest magnitude; null: there are fewer."}};
enum { TOPS = sizeof tops / sizeof *tops };
const struct cmd_stats_quantile cmd_stats_quantile[CMD_STATS_QUANTILES] = {
    {"p90", 0.9,
     "90th percentile of magnitudes, to the middle of a bin of a histogram: 0.4 % off at most."},
    {"p99", 0.99, "99th percentile, in the same way."},
    {"p99_9", 0.999, "99.9th percentile."},
    {"p99_99", 0.9999, "99.99th percentile."}};
static const struct {
    const char *title, *about;
} kinds[DQ_N_KINDS] = {{"attention logits", "Attention logits."},
                       {"hidden states", "Hidden states."},
                       {"queries", "Queries, after RoPE."},
                       {"keys", "Keys, after RoPE."},
                       {"values", "Values."},
                       {"input of q k v", "Input of the projections of q, k and v."},
                       {"input of o", "Input of the projection of o."},
                       {"input of gate up", "Input of the projections of gate and up."},
                       {"input of down", "Input of the projection of down."}};

void cmd_stats_number(dq_table *t, double x, int digits)
{
    dq_table_known(t, isfinite(x), "%.*g", digits, x);
}

/* A median with its bound, if any. */
static const char *median_text(char buf[CELL], dq_median m)
{
    if (!isfinite(m.value)) return NULL;
    snprintf(buf, CELL, m.bound > 0 ? "%.4g +- %.1g" : "%.5g", m.value, m.bound);
    return buf;
}

/* The id at a position of a sequence; or its text in quotes, "#5" without a tokenizer. */
static int32_t id_at(const cmd_stats_entry *e, int32_t seq, int32_t pos)
{
    return e->in.ids[e->in.cu[seq] + pos];
}

/* A token as one printable word: control characters, backslash and stray bytes are escaped; NULL
 * without a tokenizer. */
static const char *word(char buf[CELL], const dq_tokenizer *t, int32_t id)
{
    size_t len = 0, used = 0;
    int64_t first_bad;
    const char *s = t ? dq_tokenizer_piece(t, id, &len) : NULL;
    if (!s) return NULL;
    bool whole = dq_utf8_check(s, len, &first_bad) == 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        bool head = c < 0x80 || c >= 0xc0;
        if (head && used > CELL - 16) { /* cut between characters */
            used += (size_t)snprintf(buf + used, CELL - used, "...");
            break;
        }
        bool control =
            c < 0x20 || c == 0x7f || (c == 0xc2 && whole && (unsigned char)s[i + 1] < 0xa0);
        if (c == '\n')
            used += (size_t)snprintf(buf + used, CELL - used, "\\n");
        else if (c == '\t')
            used += (size_t)snprintf(buf + used, CELL - used, "\\t");
        else if (c == '\\')
            used += (size_t)snprintf(buf + used, CELL - used, "\\\\");
        else if (control && c == 0xc2)
            used += (size_t)snprintf(buf + used, CELL - used, "\\xc2\\x%02x",
                                     (unsigned)(unsigned char)s[++i]);
        else if (control || (c >= 0x80 && !whole))
            used += (size_t)snprintf(buf + used, CELL - used, "\\x%02x", (unsigned)c);
        else
            buf[used++] = (char)c;
    }
    buf[used] = 0;
    return buf;
}

enum { TOKEN = CELL + 3 };
static const char *token_text(char buf[TOKEN], const cmd_stats_entry *e, int32_t seq, int32_t pos)
{
    char text[CELL];
    const int32_t id = id_at(e, seq, pos);
    if (word(text, e->tokenizer, id))
        snprintf(buf, TOKEN, "\"%s\"", text);
    else
        snprintf(buf, TOKEN, "#%d", (int)id);
    return buf;
}

/* Sums over rows are divided only here, so that layers can be added first; table, document and file
 * show the same shares. */

typedef struct shares {
    double entropy[2], sink_mass[2], variation, negative;
    double near_zero[DQ_N_THRESHOLDS], skippable[DQ_N_THRESHOLDS];
} shares;

static double over(double x, int64_t n)
{
    return n > 0 ? x / (double)n : (double)NAN;
}

static shares shares_of(const dq_head_measure *m, int n_maps)
{
    shares s;
    for (int k = 0; k < 2; k++) {
        s.entropy[k] = k < n_maps ? over(m->entropy[k], m->rows) : (double)NAN;
        s.sink_mass[k] = k < n_maps ? over(m->sink_mass[k], m->rows) : (double)NAN;
    }
    s.variation = over(m->variation, m->rows);
    s.negative = over(m->negative, m->rows);
    for (int i = 0; i < DQ_N_THRESHOLDS; i++) {
        s.near_zero[i] = over((double)m->near_zero[i], m->keys);
        s.skippable[i] = over((double)m->skippable[i], m->pages);
    }
    return s;
}

static dq_head_measure layers_of(const dq_outliers *o, int first, int end)
{
    dq_head_measure all = {0};
    for (int i = first * o->n_out; i < end * o->n_out; i++)
        dq_head_measure_merge(&all, &o->measure[i]);
    return all;
}

/* What rows of a table are of; `end` and `x` where these ask for them. */
typedef struct of_entry {
    const cmd_stats_entry *e;
    int k, end;
    const dq_element *x;
} of_entry;

/* Layers first .. end - 1. */
static void map_cells(dq_row_writer *w, const void *arg, int64_t first)
{
    const of_entry *at = arg;
    const cmd_stats_entry *e = at->e;
    const dq_head_measure m = layers_of(&e->out, (int)first, at->end);
    const shares s = shares_of(&m, e->model->map.n_maps);
    const struct {
        const char *title;
        double x;
    } of[] = {{"entropy 1", s.entropy[0]},      {"entropy 2", s.entropy[1]},
              {"sinks 1", s.sink_mass[0]},      {"sinks 2", s.sink_mass[1]},
              {"sum |D|", s.variation},         {"D < 0", s.negative},
              {"|D| < 1e-3", s.near_zero[1]},   {"|D| < 1e-2", s.near_zero[2]},
              {"pages < 1e-3", s.skippable[1]}, {"pages < 1e-2", s.skippable[2]}};
    char layer[16] = "all";
    if (at->end - first == 1) snprintf(layer, sizeof layer, "%d", (int)first);
    DQ_CELL(w, e->label, "model");
    DQ_CELL(w, layer, "layer");
    for (size_t c = 0; c < sizeof of / sizeof *of; c++)
        DQ_CELL(w, of[c].x, of[c].title, .digits = -4);
}

/* {"1e-04": share, ...} */
static void put_thresholds(dq_row_writer *w, const char *name, const double *share,
                           const char *about)
{
    char key[16], below[32];
    DQ_OBJECT(w, name, about);
    for (int i = 0; i < DQ_N_THRESHOLDS; i++) {
        snprintf(key, sizeof key, "%.0e", dq_head_measure_thresholds[i]);
        snprintf(below, sizeof below, "Below %s.", key);
        DQ_PUT(w, key, share[i], below, .when = DQ_NULL);
    }
    dq_row_end(w);
}

static void put_numbers(dq_row_writer *w, const char *name, const double *x, int n, unsigned when,
                        const char *about)
{
    DQ_LIST(w, name, about, .max = n, .when = when);
    for (int k = 0; DQ_MORE(w, k, n); k++) DQ_PUT(w, NULL, x[k], NULL, .when = DQ_NULL);
    dq_row_end(w);
}

/* Means over rows of A1, A2 and |D|; null without a second map. */
static void put_masses(dq_row_writer *w, const char *name, const dq_head_profile *p,
                       dq_head_sum first, bool copies, int n_maps, const char *about)
{
    double x[3] = {0};
    for (int k = 0; w->live && k < 3; k++)
        x[k] = k == 1 && n_maps < 2 ? (double)NAN
                                    : over(p->sum[(int)first + k], copies ? p->copies : p->rows);
    put_numbers(w, name, x, 3, DQ_SOMETIMES, about);
}

static void profile_rows(dq_row_writer *w, const dq_head_profile *p, int n_maps)
{
    double support[2] = {0}, distance = 0, cancelled = 0;
    if (w->live) {
        support[0] = over(p->sum[DQ_HEAD_SUPPORT_1], p->rows);
        support[1] = n_maps > 1 ? over(p->sum[DQ_HEAD_SUPPORT_2], p->rows) : (double)NAN;
        distance = n_maps > 1 ? 1 - over(p->sum[DQ_HEAD_COMMON], p->rows) : (double)NAN;
        cancelled = n_maps > 1 ? over(p->sum[DQ_HEAD_CANCELLED], p->rows) : (double)NAN;
    }
    put_numbers(w, "effective_support", support, 2, DQ_SOMETIMES,
                "Keys that a row of each map would be even over: mean of 1 / sum p^2.");
    put_masses(w, "first_mass", p, DQ_HEAD_FIRST_1, false, n_maps,
               "Mass on the first token: of each map, and of |D|.");
    put_masses(w, "local_mass", p, DQ_HEAD_LOCAL_1, false, n_maps,
               "Mass on the last 64 tokens: of each map, and of |D|.");
    put_masses(w, "copy_mass", p, DQ_HEAD_COPY_1, true, n_maps,
               "Mass on what followed the last occurrence of the query's token, before these: of "
               "each map, and of |D|.");
    DQ_PUT(w, "n_copy_rows", p->copies, "Rows that have such an occurrence.", .when = DQ_SOMETIMES);
    DQ_PUT(w, "maps_distance", distance,
           "Total variation distance of both maps, from 0 to 1; null: there is one.",
           .when = DQ_NULL | DQ_SOMETIMES);
    DQ_PUT(w, "cancelled_mass", cancelled,
           "Mass of the first map that the subtraction takes away; null: there is one map.",
           .when = DQ_NULL | DQ_SOMETIMES);
}

static void measure_rows(dq_row_writer *w, const dq_head_measure *m, int n_maps)
{
    const shares s = w->live ? shares_of(m, n_maps) : (shares){.variation = 0};
    DQ_PUT(w, "n_rows", m->rows, "Rows of attention.");
    put_numbers(w, "entropy_nats", s.entropy, 2, 0, "Mean entropy of a row in nats, of each map.");
    put_numbers(w, "sink_mass", s.sink_mass, 2, 0, "Mass on the first 4 positions, of each map.");
    DQ_PUT(w, "total_variation", s.variation, "Sum of |D| over a row; 1 for one map.",
           .when = DQ_NULL);
    DQ_PUT(w, "negative_mass", s.negative, "The part of it where D is negative.", .when = DQ_NULL);
    DQ_PUT(w, "positive_mass", s.variation - s.negative, "The part of it where D is positive.",
           .when = DQ_NULL);
    put_thresholds(w, "near_zero_keys", s.near_zero,
                   "Share of keys whose weight is below a share of the row's largest.");
    put_thresholds(w, "skippable_pages", s.skippable,
                   "Share of pages of 64 keys of which all are.");
}

dq_status cmd_stats_attention_h5(dq_h5_result *h, const char *group, const cmd_stats_entry *e,
                                 dq_arena *a, dq_err *err)
{
    static const cmd_stats_field of_measure[] = {
        {"entropy_nats", DQ_OUT_F64, offsetof(shares, entropy), {2}},
        {"sink_mass", DQ_OUT_F64, offsetof(shares, sink_mass), {2}},
        {"total_variation", DQ_OUT_F64, offsetof(shares, variation), {0}},
        {"negative_mass", DQ_OUT_F64, offsetof(shares, negative), {0}},
        {"near_zero_keys", DQ_OUT_F64, offsetof(shares, near_zero), {DQ_N_THRESHOLDS}},
        {"skippable_pages", DQ_OUT_F64, offsetof(shares, skippable), {DQ_N_THRESHOLDS}},
        {0}};
    static const cmd_stats_field of_profile[] = {
        {"effective_support", DQ_OUT_F64, DQ_HEAD_SUPPORT_1 * sizeof(double), {2}},
        {"first_mass", DQ_OUT_F64, DQ_HEAD_FIRST_1 * sizeof(double), {3}},
        {"local_mass", DQ_OUT_F64, DQ_HEAD_LOCAL_1 * sizeof(double), {3}},
        {"copy_mass", DQ_OUT_F64, DQ_HEAD_COPY_1 * sizeof(double), {3}},
        {"common_mass", DQ_OUT_F64, DQ_HEAD_COMMON * sizeof(double), {0}},
        {"cancelled_mass", DQ_OUT_F64, DQ_HEAD_CANCELLED * sizeof(double), {0}},
        {0}};
    const dq_outliers *o = &e->out;
    const int64_t n = (int64_t)o->n_layers * o->n_out, shape[2] = {o->n_layers, o->n_out};
    char name[160];
    shares *all = dq_alloc(a, (size_t)n, sizeof *all, err);
    if (!all) return err->code;
    for (int64_t i = 0; i < n; i++) all[i] = shares_of(&o->measure[i], e->model->map.n_maps);
    snprintf(name, sizeof name, "%s/attention", group);
    DQ_TRY(dq_h5_result_group(h, name, err));
    DQ_TRY(cmd_stats_fields_h5(h, name, of_measure, all, sizeof *all, shape, 2, a, err));
    if (!o->look) return DQ_OK;
    double *sum = dq_alloc(a, (size_t)n, DQ_HEAD_SUMS * sizeof *sum, err);
    if (!sum) return err->code;
    for (int64_t i = 0; i < n * DQ_HEAD_SUMS; i++) {
        const dq_head_profile *p = &o->look[i / DQ_HEAD_SUMS];
        const int k = (int)(i % DQ_HEAD_SUMS);
        const bool copies = k >= DQ_HEAD_COPY_1 && k <= DQ_HEAD_COPY_D;
        sum[i] = over(p->sum[k], copies ? p->copies : p->rows);
    }
    return cmd_stats_fields_h5(h, name, of_profile, sum, DQ_HEAD_SUMS * sizeof *sum, shape, 2, a,
                               err);
}

/* Roles in the order of the model; a role's line is about one matrix. */

static double crest(const dq_weight_outlier *w)
{
    return w->rms > 0 ? (double)w->max / w->rms : 0;
}

/* For the first matrix of a role, the one with the largest crest factor; else NULL. */
static const dq_weight_outlier *worst(const dq_weight_outliers *o, int x)
{
    const dq_weight_outlier *found = &o->of[x];
    for (int i = 0; i < o->n; i++) {
        if (strcmp(o->of[i].role, o->of[x].role) != 0) continue;
        if (i < x) return NULL;
        if (crest(&o->of[i]) > crest(found)) found = &o->of[i];
    }
    return found;
}

static double ratio(double x, double y)
{
    return y > 0 ? x / y : (double)NAN;
}

static void tally_rows(dq_row_writer *w, const dq_tally *t, dq_median m)
{
    DQ_PUT(w, "n", t->n, "Numbers.");
    for (int c = 0; c < TOPS; c++)
        DQ_PUT(w, tops[c].name, dq_outlier_top(t, tops[c].k), tops[c].about, .when = DQ_NULL);
    DQ_PUT(w, "median", m.value, "Median magnitude.", .when = DQ_NULL);
    DQ_PUT(w, "median_bound", m.bound, "How far off it may be; 0: exact.", .when = DQ_NULL);
    for (const struct cmd_stats_quantile *q = cmd_stats_quantile;
         q < cmd_stats_quantile + CMD_STATS_QUANTILES; q++)
        DQ_PUT(w, q->name, dq_tally_quantile(t, q->p, NULL), q->about, .when = DQ_NULL);
    DQ_PUT(w, "mean_magnitude", t->n ? dq_fixed_value(&t->sum) / (double)t->n : (double)NAN,
           "Mean magnitude.", .when = DQ_NULL);
    DQ_PUT(w, "rms", dq_outlier_rms(t), "Root of the mean square.", .when = DQ_NULL);
    DQ_PUT(w, "crest", ratio(dq_outlier_top(t, 1), dq_outlier_rms(t)), "top1 / rms.",
           .when = DQ_NULL);
    DQ_PUT(w, "kurtosis0", dq_outlier_kurtosis0(t), "Kurtosis around 0.", .when = DQ_NULL);
    DQ_PUT(w, "n_not_finite", t->n_bad, "NaN and infinities, which are in no number.");
}

/* Of all layers (layer -1) or one; "ordinary" is there with a profile. */
static void put_kind(dq_row_writer *w, const cmd_stats_entry *e, int k, int layer)
{
    const dq_outlier_kind *x = DQ_LIVE(w, &e->out.kind[k]);
    const dq_tally *all = NULL, *ordinary = NULL;
    dq_median median = {0}, of_ordinary = {0};
    if (w->live) {
        all = layer < 0 ? &x->pooled : &x->layer[layer];
        median = layer < 0 ? x->pooled_median : x->layer_median[layer];
        if (x->ordinary) ordinary = layer < 0 ? &x->pooled_ordinary : &x->ordinary[layer];
        if (ordinary) of_ordinary = dq_outlier_median(ordinary);
    }
    if (!DQ_OBJECT(w, dq_outlier_name[k], kinds[k].about, .def = "kind",
                   .when = k < DQ_N_TABLE5 ? 0 : DQ_SOMETIMES))
        return;
    tally_rows(w, all, median);
    if (DQ_BEGIN(w, OBJECT, "ordinary", ordinary,
                 "The same without first tokens and attention sinks; of logits: without these as "
                 "keys. Only with --detail all.",
                 .when = DQ_OUT)) {
        tally_rows(w, ordinary, of_ordinary);
        dq_row_end(w);
    }
    dq_row_end(w);
}

static void put_token(dq_row_writer *w, const char *id_key, const char *text_key,
                      const cmd_stats_entry *e, int32_t seq, int32_t pos, const char *about_id,
                      const char *about_text)
{
    char buf[CELL];
    DQ_PUT(w, id_key, id_at(e, seq, pos), about_id);
    DQ_PUT(w, text_key, word(buf, e->tokenizer, id_at(e, seq, pos)), about_text, .when = DQ_NULL);
}

static void put_map(dq_row_writer *w, const cmd_stats_entry *e, int head)
{
    DQ_PUT(w, "map", dq_outlier_map(&e->model->map, head), "Its map; null: there is one.",
           .when = DQ_NULL | DQ_AT_0, .min = 1, .title = "map");
}

/* Of logits, or of another kind of values. */
static void place_rows(dq_row_writer *w, const cmd_stats_entry *e, bool logits, const dq_place *p)
{
    const dq_place none = {0}, *at = p ? p : &none;
    char token[TOKEN];
    DQ_PUT(w, "sequence", at->seq, "Sequence, from 0.", .title = "seq");
    DQ_PUT(w, "layer", at->layer, "Its layer, from 0.", .title = "layer");
    if (logits) {
        DQ_PUT(w, "head", at->head, "Query head, from 0.", .title = "head");
        put_map(w, e, at->head);
        DQ_PUT(w, "query", at->row, "Position of the query.", .title = "query");
        DQ_CELL(w, token_text(token, e, at->seq, at->row), "query token");
        put_token(w, "query_id", "query_token", e, at->seq, at->row, "Id of the query's token.",
                  "The query's token as text; null: no tokenizer.");
        DQ_PUT(w, "key", at->col, "Position of the key.", .title = "key");
        DQ_CELL(w, token_text(token, e, at->seq, at->col), "key token");
        put_token(w, "key_id", "key_token", e, at->seq, at->col, "Id of the key's token.",
                  "The key's token as text; null: no tokenizer.");
    } else {
        DQ_PUT(w, "position", at->row, "Position of the token.", .title = "pos");
        put_token(w, "id", "token", e, at->seq, at->row, "Id of the token.",
                  "The token as text; null: no tokenizer.");
        DQ_PUT(w, "channel", at->col, "Channel, from 0.", .title = "channel");
        DQ_CELL(w, token_text(token, e, at->seq, at->row), "token");
    }
}

static void put_values(dq_row_writer *w, int k)
{
    if (k == DQ_KIND_LOGITS)
        DQ_PUT(w, "values", dq_outlier_name[k], "Of what.", .words = dq_outlier_name, .n_words = 1);
    else
        DQ_PUT(w, "values", dq_outlier_name[k], "Of what.", .words = dq_outlier_name + 1,
               .n_words = DQ_N_KINDS - 1);
}

static void put_element(dq_row_writer *w, const cmd_stats_entry *e, int k, const dq_element *y)
{
    DQ_ITEM(w);
    put_values(w, k);
    DQ_PUT(w, "tokens", dq_token_class_name[y->class], "Class of the token; of logits, of the key.",
           DQ_WORDS(dq_token_class_name));
    DQ_PUT(w, "magnitude", (double)y->max, "Its largest magnitude over layers.");
    place_rows(w, e, k == DQ_KIND_LOGITS, DQ_LIVE(w, &y->at));
    DQ_PUT(w, "rms", y->rms,
           "Root of the mean square of it in that layer, over tokens of the class.",
           .when = DQ_NULL);
    DQ_PUT(w, "over_median", y->ratio, "magnitude / the median of that layer's ordinary tokens.",
           .when = DQ_NULL);
    DQ_PUT(w, "first_layer", y->first,
           "First layer where it comes to a tenth of the magnitude; but for the residual stream "
           "the one layer.");
    DQ_PUT(w, "last_layer", y->last, "Last layer of these.");
    DQ_PUT(w, "layers_between_without", y->n_gaps, "Layers between them where it does not.");
    DQ_PUT(w, "magnitude_before", y->before,
           "Its magnitude in the layer before the first of these; null: there is none.",
           .when = DQ_NULL);
    dq_row_end(w);
}

static void moments_rows(dq_row_writer *w, const dq_moments *m)
{
    DQ_PUT(w, "n", m->n, "Numbers.");
    DQ_PUT(w, "max", m->n ? (double)m->max : (double)NAN,
           "The largest magnitude; null: there is none.", .when = DQ_NULL);
    DQ_PUT(w, "rms", dq_moments_rms(m), "Root of the mean square.", .when = DQ_NULL);
    DQ_PUT(w, "crest", m->n ? ratio((double)m->max, dq_moments_rms(m)) : (double)NAN, "max / rms.",
           .when = DQ_NULL);
    DQ_PUT(w, "kurtosis0", dq_moments_kurtosis0(m), "Kurtosis around 0.", .when = DQ_NULL);
}

static void put_ordinary_moments(dq_row_writer *w, const dq_moments *m)
{
    DQ_OBJECT(w, "ordinary", "Without first tokens and attention sinks as keys.");
    moments_rows(w, m);
    dq_row_end(w);
}

/* {"lambda", "mean": {...}, "heads": [{...}]} */
static void put_attention(dq_row_writer *w, const cmd_stats_entry *e, int layer)
{
    const dq_outliers *o = DQ_LIVE(w, &e->out);
    const dq_attn *attn = DQ_LIVE(w, &e->model->layer[layer].attn);
    const bool looked = !w->live || (o->measure && o->look);
    const int n_maps = w->live ? e->model->map.n_maps : 1;
    dq_head_profile seen = {0};
    dq_head_measure all = {0};
    if (!DQ_BEGIN(w, OBJECT, "attention", o->measure, "What its attention maps do.",
                  .when = DQ_OUT))
        return;
    if (w->live) all = layers_of(o, layer, layer + 1);
    for (int h = 0; w->live && o->look && h < o->n_out; h++)
        dq_head_profile_merge(&seen, &o->look[layer * o->n_out + h]);
    DQ_PUT(w, "lambda", attn->lambda_kind == DQ_LAMBDA_LAYER ? (double)attn->lambda : (double)NAN,
           "Lambda; null: one map, or one for each token.", .when = DQ_NULL);
    DQ_OBJECT(w, "mean", "Over output heads.");
    measure_rows(w, &all, n_maps);
    if (looked) profile_rows(w, &seen, n_maps);
    dq_row_end(w);
    DQ_LIST(w, "heads", "Each output head.");
    for (int h = 0; DQ_MORE(w, h, o->n_out); h++) {
        const int64_t at = w->live ? (int64_t)layer * o->n_out + h : 0;
        const dq_head_profile *look = w->live && looked ? &o->look[at] : NULL;
        DQ_ITEM(w);
        measure_rows(w, DQ_LIVE(w, &o->measure[at]), n_maps);
        DQ_PUT(w, "head", h, "Output head, from 0.");
        if (looked) profile_rows(w, look, n_maps);
        if (looked)
            DQ_PUT(w, "kind", dq_head_kind_name[dq_head_kind_of(&o->measure[at], look)],
                   "What it does, by where its attention goes; only with --detail all.",
                   DQ_WORDS(dq_head_kind_name), .when = DQ_SOMETIMES);
        dq_row_end(w);
    }
    dq_row_end(w);
    dq_row_end(w);
}

static void layer_rows(dq_row_writer *w, const void *entry, int64_t at)
{
    const cmd_stats_entry *e = entry;
    const int layer = (int)at, n_kinds = w->live ? e->out.n_kinds : DQ_N_KINDS,
              n_maps = w->live ? e->model->map.n_maps : 1;
    static const char *const class_about[DQ_TOKEN_CLASSES] = {
        "Others.", "Attention sinks that are not at the first position.",
        "At the first position of a sequence."};
    DQ_PUT(w, "layer", layer, "From 0.");
    for (int k = 0; k < n_kinds; k++) put_kind(w, e, k, layer);
    put_attention(w, e, layer);
    if (!DQ_WHEN(w, e->out.head)) return;
    DQ_OBJECT(w, "tokens",
              "How many tokens of each class there were in this layer. A sink is one in all later "
              "layers too.",
              .when = DQ_SOMETIMES);
    for (int c = 0; c < DQ_TOKEN_CLASSES; c++)
        DQ_PUT(w, dq_token_class_name[c], e->out.tokens[layer * DQ_TOKEN_CLASSES + c],
               class_about[c]);
    dq_row_end(w);
    DQ_LIST(w, "heads", "Attention logits of each query head.", .when = DQ_SOMETIMES);
    for (int q = 0; DQ_MORE(w, q, e->out.n_q); q++) {
        dq_moments all = {0}, ordinary = {0};
        if (w->live) all = dq_outlier_head(&e->out, layer, q, ~0u);
        if (w->live) ordinary = dq_outlier_head(&e->out, layer, q, 1u << DQ_TOKEN_ORDINARY);
        DQ_ITEM(w);
        moments_rows(w, &all);
        DQ_PUT(w, "head", q, "Query head, from 0.");
        put_map(w, e, q);
        put_ordinary_moments(w, &ordinary);
        dq_row_end(w);
    }
    dq_row_end(w);
    /* Each map's heads together; with one map, all heads. */
    DQ_LIST(w, "maps", "Attention logits of all heads of each map.", .when = DQ_SOMETIMES);
    for (int map = 0; map < n_maps; map++) {
        dq_moments both[2] = {{0}};
        for (int q = 0; w->live && q < e->out.n_q; q++) {
            const int of = dq_outlier_map(&e->model->map, q);
            if (of && of != map + 1) continue;
            const dq_moments all = dq_outlier_head(&e->out, layer, q, ~0u);
            const dq_moments some = dq_outlier_head(&e->out, layer, q, 1u << DQ_TOKEN_ORDINARY);
            dq_moments_merge(&both[0], &all);
            dq_moments_merge(&both[1], &some);
        }
        DQ_ITEM(w);
        moments_rows(w, &both[0]);
        put_ordinary_moments(w, &both[1]);
        dq_row_end(w);
    }
    dq_row_end(w);
}

static void weight_rows(dq_row_writer *w, const void *entry, int64_t i)
{
    static const char *const roles[] = {"embed", "q",  "k",    "v",      "o",
                                        "gate",  "up", "down", "lambda", "head"};
    const dq_weight_outlier *x = DQ_LIVE(w, &((const cmd_stats_entry *)entry)->weights.of[i]);
    DQ_PUT(w, "tensor", x->name, "Its name in the model.");
    DQ_PUT(w, "role", x->role, "What it is.", DQ_WORDS(roles), .title = "weights");
    DQ_PUT(w, "layer", x->layer, "Layer, from 0; null: of none.", .when = DQ_NULL | DQ_BELOW_0,
           .title = "layer");
    DQ_PUT(w, "rows", x->rows, "Outputs.");
    DQ_PUT(w, "cols", x->cols, "Inputs.");
    DQ_PUT(w, "max", (double)x->max, "The largest magnitude.", .title = "max", .digits = -5);
    DQ_PUT(w, "row", x->row, "Its row; -1: no value is finite.", .when = DQ_SIGNED);
    DQ_PUT(w, "column", x->col, "Its column; -1: no value is finite.", .when = DQ_SIGNED);
    DQ_PUT(w, "median", x->median, "Median magnitude, to the middle of a bin: 0.4 % off at most.",
           .when = DQ_NULL, .title = "median", .digits = -4);
    DQ_PUT(w, "p99_9", x->p99_9, "99.9th percentile, in the same way.", .when = DQ_NULL,
           .title = "p99.9", .digits = -4);
    DQ_PUT(w, "rms", x->rms, "Root of the mean square.", .when = DQ_NULL, .title = "rms",
           .digits = -4);
    DQ_PUT(w, "crest", crest(x), "max / rms.", .when = DQ_NULL, .title = "max/rms", .digits = -4);
    DQ_PUT(w, "kurtosis0", x->kurtosis0, "Kurtosis around 0.", .when = DQ_NULL,
           .title = "kurtosis0", .digits = -4);
    DQ_CELL(w, x->row, "row");
    DQ_CELL(w, x->col, "column");
    DQ_PUT(w, "largest_column", x->largest_col,
           "The input channel with the largest root of the mean square.",
           .title = "largest column");
    DQ_PUT(w, "column_over_median", x->col_ratio, "That over the median over columns.",
           .when = DQ_NULL, .title = "/median", .digits = -4);
    DQ_PUT(w, "n_not_finite", x->n_bad, "NaN and infinities, which are in no number.");
}

/* The largest values of a kind. */
static void top_rows(dq_row_writer *w, const void *arg, int64_t i)
{
    const of_entry *at = arg;
    const int k = at->k;
    const dq_tally *t = DQ_LIVE(w, &at->e->out.kind[k].pooled);
    DQ_PUT(w, "values", dq_outlier_name[k], "Of what.", .words = &dq_outlier_name[k], .n_words = 1);
    DQ_PUT(w, "rank", i + 1, "From 1, the largest.", .min = 1, .title = "rank");
    DQ_PUT(w, "magnitude", (double)t->top[i], "Its magnitude.",
           .title = k == DQ_KIND_LOGITS ? "|logit|" : "|x|", .digits = -5);
    place_rows(w, at->e, k == DQ_KIND_LOGITS, DQ_LIVE(w, &t->place[i]));
}

void cmd_stats_rows(dq_row_writer *w, const cmd_stats_entry *e, int n_places)
{
    static dq_element found[DQ_TOP];
    const dq_outliers *o = DQ_LIVE(w, &e->out);
    const int n_kinds = w->live ? o->n_kinds : DQ_N_KINDS;
    DQ_PUT(w, "model", e->model->path, "Its path.");
    dq_size_rows(w, DQ_LIVE(w, e->model));
    DQ_PUT(w, "architecture", e->model->architecture->name, "Its row of docs/math/model.md.");
    DQ_PUT(w, "n_sequences", e->in.n_seq, "Sequences.");
    DQ_PUT(w, "n_tokens", o->n_rows, "Tokens.");
    DQ_PUT(w, "ctx", e->ctx, "Tokens of a window; null: ids were given.",
           .when = DQ_NULL | DQ_AT_0);
    DQ_OBJECT(w, "table5", "All layers together, as Table 5 of arXiv 2410.05258.");
    for (int k = 0; k < n_kinds && k < DQ_N_TABLE5; k++) put_kind(w, e, k, -1);
    dq_row_end(w);
    DQ_OBJECT(w, "values",
              "All layers together, other kinds of values; empty without --detail all.");
    for (int k = DQ_N_TABLE5; k < n_kinds; k++) put_kind(w, e, k, -1);
    dq_row_end(w);
    DQ_ITEMS(w, "layers", layer_rows, e, o->n_layers, "Each layer.");
    DQ_LIST(w, "top", "Where the largest values are.");
    for (int k = 0; k < DQ_N_TABLE5; k++) {
        const of_entry at = {.e = e, .k = k};
        const int n = w->live ? o->kind[k].pooled.n_top : 1;
        for (int i = 0; i < n && (!w->live || i < n_places); i++) dq_row_item(w, top_rows, &at, i);
    }
    dq_row_end(w);
    DQ_ITEMS(w, "weights", weight_rows, e, e->weights.n,
             "Matrices of the model; empty without --detail all.");
    DQ_LIST(w, "outliers",
            "The largest outliers of each kind of values and class of tokens, each named once; "
            "empty without --detail all.");
    for (int k = 0; w->live ? o->head && k < n_kinds : k <= DQ_N_TABLE5 - 1; k++) {
        for (int c = DQ_TOKEN_CLASSES - 1; w->live && c >= 0; c--) {
            const int n = dq_elements_find(found, n_places, o, k, c);
            for (int i = 0; i < n; i++) put_element(w, e, k, &found[i]);
        }
        if (!w->live) put_element(w, NULL, k, NULL);
    }
    dq_row_end(w);
}

/* ---- Tables ----
 * Table 5, outliers named once each, kinds of values, attention maps; by layer on request, as a
 * model has dozens. */

static void top_cells(dq_row_writer *w, const dq_tally *t, int digits)
{
    for (int c = 0; c < TOPS; c++)
        DQ_CELL(w, dq_outlier_top(t, tops[c].k), tops[c].name, .digits = -digits);
}

/* Of all tokens, or of the ordinary ones. */
static void table5_cells(dq_row_writer *w, const void *arg, int64_t ordinary)
{
    const of_entry *at = arg;
    const dq_outlier_kind *x = &at->e->out.kind[at->k];
    const dq_tally *y = ordinary ? &x->pooled_ordinary : &x->pooled;
    char median[CELL];
    DQ_CELL(w, at->e->label, "model");
    DQ_CELL(w, kinds[at->k].title, "values");
    DQ_CELL(w, ordinary ? "ordinary" : "all", "tokens");
    top_cells(w, y, 5);
    DQ_CELL(w, median_text(median, ordinary ? dq_outlier_median(y) : x->pooled_median), "median");
    DQ_CELL(w, y->n, "n");
}

static void layer_cells(dq_row_writer *w, const void *arg, int64_t layer)
{
    const of_entry *at = arg;
    const dq_outlier_kind *x = &at->e->out.kind[at->k];
    const dq_tally none = {0},
                   *of[2] = {&x->layer[layer], x->ordinary ? &x->ordinary[layer] : &none};
    DQ_CELL(w, at->e->label, "model");
    DQ_CELL(w, kinds[at->k].title, "values");
    DQ_CELL(w, layer, "layer");
    for (int i = 0; i < 2; i++) {
        const double rms = dq_outlier_rms(of[i]), top = dq_outlier_top(of[i], 1);
        const dq_median m = i == 0 ? x->layer_median[layer] : dq_outlier_median(of[i]);
        char median[CELL];
        DQ_CELL(w, top, i == 0 ? "top1" : "ord. top1", .digits = -5);
        DQ_CELL(w, of[i]->n ? median_text(median, m) : NULL, "median");
        DQ_CELL(w, rms, "rms", .digits = -5);
        DQ_CELL(w, ratio(top, rms), "top1/rms", .digits = -5);
        DQ_CELL(w, dq_outlier_kurtosis0(of[i]), "kurtosis0", .digits = -5);
    }
}

static void kind_cells(dq_row_writer *w, const void *entry, int64_t k)
{
    const dq_outlier_kind *x = &((const cmd_stats_entry *)entry)->out.kind[k];
    const dq_tally *const of[2] = {&x->pooled, &x->pooled_ordinary};
    DQ_CELL(w, kinds[k].title, "values");
    for (int i = 0; i < 2; i++) {
        const double rms = dq_outlier_rms(of[i]), top = dq_outlier_top(of[i], 1);
        DQ_CELL(w, top, i == 0 ? "max" : "ord. max", .digits = -5);
        DQ_CELL(w, dq_tally_quantile(of[i], 0.999, NULL), "p99.9", .digits = -4);
        DQ_CELL(w, rms, "rms", .digits = -4);
        DQ_CELL(w, top / rms, "max/rms", .digits = -4);
        DQ_CELL(w, dq_outlier_kurtosis0(of[i]), "kurtosis0", .digits = -4);
    }
    DQ_CELL(w, x->pooled_ordinary.n_top ? x->pooled_ordinary.place[0].layer : -1, "layer");
}

/* A channel of hidden states, or (logits) a query head. */
static void element_cells(dq_row_writer *w, const void *arg, int64_t i)
{
    const of_entry *at = arg;
    const dq_element *x = &at->x[i];
    const bool logits = at->k == DQ_KIND_LOGITS;
    char layers[48], token[TOKEN];
    snprintf(layers, sizeof layers,
             x->first == x->last ? "%d"
             : x->n_gaps == 0    ? "%d-%d"
                                 : "%d-%d less %d",
             x->first, x->last, x->n_gaps);
    DQ_CELL(w, dq_token_class_name[x->class], logits ? "keys" : "tokens");
    if (logits) DQ_CELL(w, x->first, "layer");
    DQ_CELL(w, x->col, logits ? "head" : "channel");
    if (logits) {
        DQ_CELL(w, dq_outlier_map(&at->e->model->map, (int)x->col), "map", .when = DQ_AT_0);
    } else {
        DQ_CELL(w, layers, "layers");
        DQ_CELL(w, x->before, "before", .digits = -5);
    }
    DQ_CELL(w, (double)x->max, "max", .digits = -5);
    if (!logits) DQ_CELL(w, x->at.layer, "in layer");
    DQ_CELL(w, x->rms, "its rms", .digits = -4);
    DQ_CELL(w, logits ? (double)x->max / x->rms : x->ratio, logits ? "max/rms" : "/median",
            .digits = -4);
    DQ_CELL(w, x->at.seq, "seq");
    DQ_CELL(w, x->at.row, logits ? "query" : "pos");
    DQ_CELL(w, token_text(token, at->e, x->at.seq, x->at.row), logits ? "query token" : "token");
    if (!logits) return;
    DQ_CELL(w, x->at.col, "key");
    DQ_CELL(w, token_text(token, at->e, x->at.seq, x->at.col), "key token");
}

static dq_status print_elements(const cmd_stats_entry *e, int kind, int most, dq_err *err)
{
    static dq_element found[DQ_TOP];
    const of_entry at = {.e = e, .k = kind, .x = found};
    dq_table *t = NULL;
    for (int c = DQ_TOKEN_CLASSES - 1; c >= 0; c--) {
        const int n = dq_elements_find(found, most, &e->out, kind, c);
        if (t && n) dq_table_rule(t);
        for (int i = 0; i < n; i++) dq_table_add_rows(&t, element_cells, &at, i, err);
    }
    if (t) dq_table_keys(t, kind == DQ_KIND_LOGITS ? 3 : 2);
    return dq_table_finish(t, err);
}

/* What a profile's heads do, by kind: layers and heads "3.1 11.0", as many as fit. */
static void head_kind_cells(dq_row_writer *w, const void *entry, int64_t kind)
{
    const dq_outliers *o = &((const cmd_stats_entry *)entry)->out;
    enum { WIDE = 78 };
    char text[WIDE + 24] = "";
    size_t n = 0;
    int count = 0;
    for (int i = 0; i < o->n_layers * o->n_out; i++) {
        if (dq_head_kind_of(&o->measure[i], &o->look[i]) != (dq_head_kind)kind) continue;
        if (n <= WIDE)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%d.%d", n ? " " : "", i / o->n_out,
                                  i % o->n_out);
        else
            snprintf(text + n, sizeof text - n, " ...");
        count++;
    }
    DQ_CELL(w, dq_head_kind_name[kind], "kind");
    DQ_CELL(w, count, "heads");
    DQ_CELL(w, *text ? text : NULL, "layer.head");
}

static dq_status print_profile(const cmd_stats_entry *e, int most, dq_err *err)
{
    dq_table *t = NULL;
    printf("\n%s: all kinds of values, and of ordinary tokens (ord.) alone; layer: of the ordinary "
           "maximum\n\n",
           e->label);
    DQ_TRY(dq_table_rows(kind_cells, e, e->out.n_kinds, 1, err));
    printf(
        "\n%s: weights, of each role the matrix with the largest crest factor; largest column: by "
        "rms, over the median of columns\n\n",
        e->label);
    for (int i = 0; i < e->weights.n; i++) {
        const dq_weight_outlier *x = worst(&e->weights, i);
        if (x) dq_table_add_rows(&t, weight_rows, e, x - e->weights.of, err);
    }
    DQ_TRY(dq_table_finish(t, err));
    printf("\n%s: what heads do, by where their attention goes\n\n", e->label);
    DQ_TRY(dq_table_rows(head_kind_cells, e, DQ_HEAD_KINDS, 1, err));
    if (most == 0) return DQ_OK;
    printf("\n%s: channels of the hidden states, each once, with the layers where they come to a "
           "tenth "
           "of their maximum\n\n",
           e->label);
    DQ_TRY(print_elements(e, DQ_KIND_HIDDEN, most, err));
    printf("\n%s: heads with the largest attention logits, by what the key is\n\n", e->label);
    return print_elements(e, DQ_KIND_LOGITS, most, err);
}

dq_status cmd_stats_print(const cmd_stats_entry *e, int n, int n_places, bool layers, dq_err *err)
{
    dq_table *t = NULL;
    printf("Largest magnitudes, all layers, heads and maps together\n\n");
    for (int k = 0; k < DQ_N_TABLE5; k++) {
        if (t && k) dq_table_rule(t);
        for (int i = 0; i < n; i++) {
            const of_entry at = {.e = &e[i], .k = k};
            dq_table_add_rows(&t, table5_cells, &at, false, err);
            if (e[i].out.n_kinds > DQ_N_TABLE5) dq_table_add_rows(&t, table5_cells, &at, true, err);
        }
    }
    if (t) dq_table_keys(t, 3);
    DQ_TRY(dq_table_finish(t, err));
    if (layers) {
        printf("\nLayers (kurtosis0 is taken around zero; ord.: ordinary tokens alone)\n\n");
        t = NULL;
        for (int i = 0; i < n * DQ_N_TABLE5; i++) {
            const of_entry at = {.e = &e[i / DQ_N_TABLE5], .k = i % DQ_N_TABLE5};
            if (t) dq_table_rule(t);
            for (int l = 0; l < at.e->out.n_layers; l++)
                dq_table_add_rows(&t, layer_cells, &at, l, err);
        }
        if (t) dq_table_keys(t, 3);
        DQ_TRY(dq_table_finish(t, err));
    }
    if (e->out.measure) {
        printf(
            "\nAttention maps, means over rows and heads (D = A1 - lambda A2; sinks: mass on the "
            "first 4 positions; shares of keys and of 64-key pages)\n\n");
        /* One line per model, or per model and layer: means over heads. */
        t = NULL;
        for (int i = 0; i < n; i++) {
            const int n_layers = e[i].out.n_layers;
            if (t && layers) dq_table_rule(t);
            for (int l = 0; l < (layers ? n_layers : 1); l++) {
                const of_entry at = {.e = &e[i], .end = layers ? l + 1 : n_layers};
                dq_table_add_rows(&t, map_cells, &at, l, err);
            }
        }
        if (t) dq_table_keys(t, 2);
        DQ_TRY(dq_table_finish(t, err));
    }
    for (int i = 0; i < n; i++) {
        if (e[i].out.n_kinds > DQ_N_TABLE5) {
            DQ_TRY(print_profile(&e[i], n_places, err));
            continue;
        }
        for (int k = 0; k < DQ_N_TABLE5 && n_places > 0; k++) {
            const of_entry at = {.e = &e[i], .k = k};
            const int n_top = e[i].out.kind[k].pooled.n_top;
            printf("\n%s: where the largest %s are\n\n", e[i].label, kinds[k].title);
            DQ_TRY(dq_table_rows(top_rows, &at, n_places < n_top ? n_places : n_top, 1, err));
        }
    }
    return err->code;
}

/* A line of CSV, of layer `end` (-1: all) and all tokens, or the ordinary ones. */
static void csv_cells(dq_row_writer *w, const void *arg, int64_t ordinary)
{
    const of_entry *at = arg;
    const dq_outlier_kind *x = &at->e->out.kind[at->k];
    const dq_tally *all = at->end < 0 ? &x->pooled : &x->layer[at->end], *y = all;
    if (ordinary) y = at->end < 0 ? &x->pooled_ordinary : &x->ordinary[at->end];
    const dq_median m = ordinary      ? dq_outlier_median(y)
                        : at->end < 0 ? x->pooled_median
                                      : x->layer_median[at->end];
    char text[16] = "all";
    if (at->end >= 0) snprintf(text, sizeof text, "%d", at->end);
    DQ_CELL(w, at->e->model->path, "model");
    DQ_CELL(w, dq_outlier_name[at->k], "values");
    DQ_CELL(w, text, "layer");
    DQ_CELL(w, y->n, "n");
    top_cells(w, y, 9);
    DQ_CELL(w, m.value, "median", .digits = -9);
    DQ_CELL(w, m.bound, "median_bound", .digits = -9);
    DQ_CELL(w, dq_outlier_rms(y), "rms", .digits = -9);
    DQ_CELL(w, dq_outlier_kurtosis0(y), "kurtosis0", .digits = -9);
    DQ_CELL(w, dq_tally_quantile(y, 0.999, NULL), "p99_9", .digits = -9);
    DQ_CELL(w, ordinary ? "ordinary" : "all", "tokens");
}

dq_status cmd_stats_csv(const cmd_stats_entry *e, int n, const char *path, dq_err *err)
{
    dq_table *t = NULL;
    for (int i = 0; i < n; i++) {
        const int n_kinds = e[i].out.n_kinds;
        for (int k = 0; k < n_kinds; k++) {
            for (int some = 0; some < (n_kinds > DQ_N_TABLE5 ? 2 : 1); some++) {
                for (int l = -1; l < e[i].out.n_layers; l++) {
                    const of_entry at = {.e = &e[i], .k = k, .end = l};
                    dq_table_add_rows(&t, csv_cells, &at, some, err);
                }
            }
        }
    }
    if (err->code == DQ_OK) dq_table_csv(t, path, err);
    dq_table_free(t);
    return err->code;
}
