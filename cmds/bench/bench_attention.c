/* Dq bench attention: one layer's attention over invented queries, keys and values of each length,
 * from products with keys to the head norm: with every rounding of logits, and, of a model with
 * two maps, each map by itself as a softmax attention over the same keys and values. The peak
 * (inside.h) is timed after every run.
 *
 * A cache of one layer is filled once per length and read by all forms. It is never compacted, so
 * that every row reads what it reads in a pass: which tokens are read as codes goes by positions
 * alone (kv/kv.h), and appending makes the codes of all that the last row reads so. Two softmaxes
 * are two calls with a head order of one map each: the same kernels and pages, and the products
 * with values twice.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/os.h"
#include "cmds/bench/inside.h"
#include "cmds/cli/cli.h"
#include "cmds/cli/kv_report.h"
#include "cmds/command.h"
#include "engine/runner.h"
#include "eval/score.h"
#include "record/record.h"
#include "settings/inputs.h"
#include "tasks/tasks.h"

#include <math.h>
#include <stdio.h>

enum { SECONDS, TIMES, PEAK, ATTENTION_COLUMNS }; /* PEAK: of thing 0 */

/* What is timed: attention with one rounding of logits, or (softmaxes) map by map. */
typedef struct form {
    bool softmaxes;
    dq_logit_spec logit;
} form;

typedef struct attention {
    dq_bench o;
    form form[DQ_BENCH_LOGITS + 1];
    dq_head *head[2]; /* [n_out] of the head orders with one map each */
    dq_head_order map[2];
    dq_kv *kv; /* of the length at hand, as all below */
    int32_t seq;
    int32_t *pos;
    float *q, *y, *lambda, *absmax; /* backend memory */
} attention;

static dq_status attention_open(void *arg, dq_err *err)
{
    attention *x = arg;
    dq_bench *o = &x->o;
    const dq_head_order *map = &o->model->map;
    for (int i = 0; i < o->n_logits; i++) {
        x->form[o->n++] = (form){.logit = o->logit[i]};
        if (i == 0 && map->n_maps == 2)
            x->form[o->n++] = (form){.softmaxes = true, .logit = o->logit[0]};
    }
    for (int k = 0; k < 2 && map->n_maps == 2; k++) {
        x->head[k] = dq_alloc(o->a, (size_t)map->n_out, sizeof *x->head[k], err);
        if (!x->head[k]) return err->code;
        for (int i = 0; i < map->n_out; i++) {
            x->head[k][i] = map->head[i];
            x->head[k][i].q[0] = map->head[i].q[k];
            x->head[k][i].q[1] = -1;
        }
        x->map[k] = *map;
        x->map[k].head = x->head[k];
        x->map[k].n_maps = 1;
    }
    return DQ_OK;
}

static dq_status attention_begin(void *arg, dq_err *err)
{
    attention *x = arg;
    dq_backend *b = x->o.backend;
    const dq_head_order *map = &x->o.model->map;
    const int64_t n = x->o.at, cols = (int64_t)map->n_kv * map->head_dim, cu[2] = {0, n};
    x->pos = dq_block_new((size_t)n, sizeof *x->pos, err);
    for (int64_t i = 0; x->pos && i < n; i++) x->pos[i] = (int32_t)i;
    if (x->pos) x->kv = b->ops->kv_new(b, map, 1, &x->o.kv);
    if (x->pos && !x->kv) {
        dq_backend_sync(b, err);
        return dq_fail(err, DQ_RESOURCE, "out of memory for the KV cache");
    }
    if (x->kv) x->q = dq_bench_floats(b, n * map->n_q * map->head_dim, err);
    if (x->q) x->y = dq_bench_floats(b, n * map->n_out * map->n_slabs * map->head_dim, err);
    if (x->y) x->lambda = dq_bench_floats(b, n * map->n_out, err);
    if (x->lambda) x->absmax = dq_bench_floats(b, map->n_q, err);
    float *kv = x->absmax ? dq_bench_floats(b, n * cols, err) : NULL;
    if (kv) {
        x->seq = b->ops->kv_seq_new(b, x->kv);
        const dq_batch batch = {
            .n_seq = 1, .n_rows = n, .cu_rows = cu, .seq = &x->seq, .pos = x->pos};
        b->ops->kv_append(b, x->kv, 0, &batch, (dq_mat){kv, n, cols}, (dq_mat){kv, n, cols},
                          DQ_NUM_F32);
        dq_backend_sync(b, err);
    }
    b->ops->free(b, kv);
    return err->code;
}

static void attention_end(void *arg)
{
    attention *x = arg;
    dq_backend *b = x->o.backend;
    float **all[] = {&x->q, &x->y, &x->lambda, &x->absmax};
    for (int j = 0; j < 4; j++) {
        b->ops->free(b, *all[j]);
        *all[j] = NULL;
    }
    if (x->kv) b->ops->kv_free(b, x->kv);
    x->kv = NULL;
    dq_block_free(x->pos);
    x->pos = NULL;
}

static void attend(const attention *x, const dq_attn *attn, dq_logit_spec logit)
{
    dq_backend *b = x->o.backend;
    const dq_head_order *map = attn->map;
    const int64_t n = x->o.at, cu[2] = {0, n},
                  width = (int64_t)map->n_out * map->n_slabs * map->head_dim;
    const dq_batch batch = {.n_seq = 1, .n_rows = n, .cu_rows = cu, .seq = &x->seq, .pos = x->pos};
    dq_attend_args args = {.attn = attn,
                           .batch = &batch,
                           .kv = x->kv,
                           .q = {x->q, n, (int64_t)map->n_q * map->head_dim},
                           .lambda = {x->lambda, n, map->n_out},
                           .logit = logit,
                           .math = x->o.math};
    if (dq_logit_needs_absmax(logit)) {
        b->ops->attn_absmax(b, x->absmax, &args);
        if (logit.granularity == DQ_GRANULARITY_TENSOR)
            b->ops->absmax_join(b, x->absmax, 1, map->n_q);
        args.absmax = x->absmax;
    }
    b->ops->attend(b, (dq_mat){x->y, n, width}, &args);
    b->ops->sync(b);
}

static dq_status attention_step(void *arg, int i, dq_err *err)
{
    const attention *x = arg;
    const form *f = &x->form[i];
    double *seconds = dq_bench_sample(&x->o, i, SECONDS);
    const double start = dq_backend_seconds(x->o.backend);
    (void)err;
    if (!f->softmaxes) attend(x, &x->o.model->layer[0].attn, f->logit);
    for (int k = 0; f->softmaxes && k < 2; k++) {
        const dq_attn attn = {.map = &x->map[k], .lambda_kind = DQ_LAMBDA_NONE, .out_scale = 1};
        attend(x, &attn, f->logit);
    }
    *seconds = dq_backend_seconds(x->o.backend) - start;
    *dq_bench_sample(&x->o, i, TIMES) = *seconds / *dq_bench_sample(&x->o, 0, SECONDS);
    return DQ_OK;
}

static dq_status attention_ended(void *arg, dq_err *err)
{
    attention *x = arg;
    *dq_bench_sample(&x->o, 0, PEAK) =
        dq_bench_limits_ops(x->o.backend, x->o.math.qk, NULL, &x->o.instruction);
    return dq_backend_sync(x->o.backend, err);
}

/* Share of a prompt's query-key pairs read as codes; NaN unless in int8. */
static double share_of_codes(const attention *x)
{
    const int window = x->o.model->layer[0].attn.window;
    double all = 0, coded = 0;
    for (int64_t i = 0; i < x->o.at; i++) {
        int64_t reads, codes;
        dq_kv_reads(&x->o.kv, window, x->pos[i], x->pos, x->o.at, &reads, &codes);
        all += (double)reads;
        coded += (double)codes;
    }
    return x->o.math.qk == DQ_NUM_INT8 ? coded / all : (double)NAN;
}

void dq_bench_attention_rows(dq_row_writer *w, const void *attended, int64_t i)
{
    const attention *x = attended;
    const dq_bench *o = x ? &x->o : NULL;
    const form *f = x ? &x->form[i] : NULL;
    const bool codes = x && o->math.qk == DQ_NUM_INT8;
    const dq_head_order *a = x ? &o->model->map : NULL;
    double rate = 0, peak = 0;
    char logits[DQ_BENCH_LOGIT_NAME];
    if (x) {
        /* Multiply-adds count as two; a first sweep for maxima does not count. */
        const double products = (double)a->n_out * a->n_slabs * (f->softmaxes ? 2 : 1),
                     pairs = dq_bench_pairs(o->model->layer[0].attn.window, (double)o->at);
        rate = 2.0 * a->head_dim * (a->n_q + products) * pairs /
               dq_bench_timing_of(o, i, SECONDS).median;
        peak = dq_bench_timing_of(o, 0, PEAK).median;
    }
    dq_bench_rows_begin(w, o, "attention");
    DQ_PUT(w, "tokens", o->at, "Tokens of the prompt.", .title = "tokens");
    DQ_PUT(w, "form",
           f->softmaxes     ? "two softmaxes"
           : a->n_maps == 2 ? "difference"
                            : "softmax",
           "What is computed.", .title = "form");
    DQ_CELL(w, dq_bench_logit_name(logits, f->logit), "logits");
    DQ_BENCH_TIMING(w, o, i, SECONDS, "seconds", "Seconds of one layer, median over runs.",
                    .title = "ms", .min = "least", .digits = 2, .scale = 1e3);
    DQ_PUT(w, "flops_per_second", rate, "Multiply-adds (two each) per second.", .title = "GFLOP/s",
           .scale = 1e-9, .digits = 1, .when = DQ_NULL);
    DQ_PUT(w, "peak_flops_per_second", peak, DQ_BENCH_ABOUT_PEAK, .when = DQ_NULL);
    DQ_PUT(w, "share_of_peak", rate / peak, "Of that reached.", .title = "share of peak",
           .digits = 2, .when = DQ_NULL);
    DQ_BENCH_TIMING(w, o, i, TIMES, "times_first",
                    "Time over that of the first form, median over runs.", .title = "times",
                    .digits = 3);
    DQ_PUT(w, "share_of_codes", share_of_codes(x),
           "Share of query-key pairs that are read as codes; null: no int8.",
           .title = codes ? "as codes" : NULL, .digits = 3, .when = DQ_NULL);
    dq_bench_logit_rows(w, DQ_LIVE(w, &f->logit));
}

static void attention_heading(const void *arg)
{
    const attention *x = arg;
    const dq_bench *o = &x->o;
    char peak[DQ_BENCH_PEAK];
    printf("%s: attention of one layer in %s on %s, medians of %lld run%s\n"
           "times: against the first line of a length, run by run; peak: %s\n%s\n",
           o->model->name, dq_num_name[o->math.qk], o->backend->device, (long long)o->runs,
           o->runs == 1 ? "" : "s", dq_bench_peak(peak, o->math.qk, o->instruction),
           o->math.qk == DQ_NUM_INT8
               ? "as codes: share of the pairs of query and key that are read as codes and "
                 "multiplied in int8, the others in f32\n"
               : "");
}

static const dq_bench_kind attention_kind = {
    .usage = {.name = "bench attention",
              .synopsis = "MODEL [options]",
              .about = "Times one layer's attention of a prompt and, of a model with two maps, "
                       "both maps as softmax attentions of their own over the same keys and "
                       "values. In int8 the share of tokens read as codes is told; on the CPU "
                       "those that a query reads unquantized are multiplied in f32.",
              .examples = "  dq bench attention model --tokens 2048,8192\n"
                          "  dq bench attention model4.h5 --math int8 --logit-bits 8,4\n"},
    .option = "tokens",
    .longest = 1 << 20,
    .columns = ATTENTION_COLUMNS,
    .extra = 1,
    .power = 2,
    .codes = true,
    .peaks = true,
    .open = attention_open,
    .begin = attention_begin,
    .end = attention_end,
    .step = attention_step,
    .ended = attention_ended,
    .rows = dq_bench_attention_rows,
    .heading = attention_heading};

dq_status dq_cmd_bench_attention(int argc, char **argv, dq_err *err)
{
    attention x = {.o = DQ_BENCH(attention_kind, &x)};
    x.o.lengths = "128,512";
    const dq_opt opts[] = {
        dq_opt_text("tokens", "N[,N...]", &x.o.lengths, "prompt lengths (default 128,512)"),
        DQ_BENCH_LOGIT(x.o),
        DQ_BENCH_HOW(x.o),
        {0}};
    return dq_bench_main(&x.o, argc, argv, opts, err);
}

/* ---- Evict ----
 * Dq bench evict: what it takes to choose the tokens of a context that a policy keeps, beside
 * reading the context. A run is one prefill that nobody watches and one for every policy, each
 * followed by its eviction of all but a quarter; what a policy takes is what its turn took longer,
 * over the unwatched prefill of the same run. */

static const double keep = 0.25;
enum { POLICIES = 32 };
enum { OVER, EVICTING, EVICT_COLUMNS }; /* OVER: of the last thing its seconds */

typedef struct policies {
    dq_bench o;
    dq_words names;
    const dq_kv_policy *policy[POLICIES]; /* [n_shown]; the last thing has none */
} policies;

/* The words of --kv-policy: policies, and `all`, which leaves out baselines. */
static const char *const *policy_words(const char *word[POLICIES + 1])
{
    for (int i = 0; i < dq_kv_n_policies; i++) word[i] = dq_kv_policies[i].name;
    word[dq_kv_n_policies] = "all";
    return word;
}

static dq_status evict_open(void *arg, dq_err *err)
{
    policies *x = arg;
    dq_bench *o = &x->o;
    bool needed = false;
    for (int i = 0; i < dq_kv_n_policies; i++) {
        const bool in_all = !dq_kv_policies[i].baseline;
        bool asked = x->names.n == 0 && in_all; /* without a list of names, all */
        for (int k = 0; k < x->names.n; k++)
            asked = asked || x->names.at[k] == i || (x->names.at[k] == dq_kv_n_policies && in_all);
        if (!asked) continue;
        x->policy[o->n_shown++] = &dq_kv_policies[i];
        needed = needed || dq_kv_policies[i].needs & DQ_NEEDS_GATES;
    }
    o->n = o->n_shown + 1;
    /* Protected tokens must not raise the share of any context. */
    const int least = o->kv.sink + o->kv.recent;
    for (int i = 0; i < o->length.n; i++) {
        if (o->length.at[i] * keep < least)
            return dq_fail(err, DQ_USAGE,
                           "--tokens %d: %g of them are fewer than the %d first and last ones that "
                           "always stay. Give %.0f or more",
                           o->length.at[i], keep, least, ceil(least / keep));
    }
    /* Zero gates where a policy needs them and the model has none: their values take no time. */
    if (needed && !o->model->gates) {
        dq_kv_gates *gates;
        DQ_TRY(dq_model_new_gates(&gates, o->model, o->a, err));
        o->model->gates = gates;
    }
    return dq_bench_open_runner(o, err);
}

/* Reads the context, observed and cut by a policy, or by nobody. */
static dq_status evict_step(void *arg, int i, dq_err *err)
{
    policies *x = arg;
    dq_bench *o = &x->o;
    dq_backend *b = o->backend;
    const dq_bench_prompt *p = &o->prompt;
    const bool watched = i < o->n_shown;
    dq_pass pass = {.logit = dq_logit_plain, .math = o->math};
    dq_kv_spec spec = o->kv;
    dq_evict_report report = dq_evict_report_none;
    dq_evictor *e = NULL;
    spec.evict.policy = watched ? x->policy[i] : NULL;
    spec.evict.keep = keep;
    if (watched) DQ_TRY(dq_evictor_new(&e, o->runner, &spec, &pass, err));
    dq_kv *kv = dq_runner_kv(o->runner);
    int32_t seq = b->ops->kv_seq_new(b, kv);
    const int32_t prefix = (int32_t)p->n;
    const int64_t cu[2] = {0, p->n};
    const dq_batch batch = {
        .n_seq = 1, .n_rows = p->n, .cu_rows = cu, .seq = &seq, .ids = p->ids, .pos = p->pos};
    dq_mat hidden;
    const double start = dq_backend_seconds(b);
    if (e) dq_evictor_watch(e, &batch, &pass.columns, err);
    if (err->code == DQ_OK) dq_runner_pass(o->runner, &batch, &pass, &hidden, err);
    const double read = dq_backend_seconds(b);
    if (e && err->code == DQ_OK) dq_evictor_run(e, &batch, &prefix, &report, err);
    const double end = dq_backend_seconds(b);
    *dq_bench_sample(o, i, OVER) = end - start;
    *dq_bench_sample(o, i, EVICTING) = end - read;
    if (e) dq_evictor_forget(e, seq);
    b->ops->kv_seq_free(b, kv, seq);
    dq_evictor_free(e);
    if (watched && err->code == DQ_OK) {
        dq_kv_cached told = {0};
        char what[400];
        dq_kv_cached_report(&told, &report, 1);
        snprintf(what, sizeof what, "%s, %d tokens", o->model->name, o->at);
        dq_kv_report_warn_policy(&o->logger, what, &spec, &told);
    }
    return err->code;
}

static dq_status evict_ended(void *arg, dq_err *err)
{
    const policies *x = arg;
    const dq_bench *o = &x->o;
    const double prefill = *dq_bench_sample(o, o->n_shown, OVER);
    for (int i = 0; i < o->n_shown; i++) {
        *dq_bench_sample(o, i, OVER) = *dq_bench_sample(o, i, OVER) / prefill - 1;
        *dq_bench_sample(o, i, EVICTING) /= prefill;
    }
    return err->code;
}

void dq_bench_evict_rows(dq_row_writer *w, const void *evicted, int64_t i)
{
    const policies *x = evicted;
    const dq_bench *o = x ? &x->o : NULL;
    dq_bench_rows_begin(w, o, "evict");
    DQ_PUT(w, "tokens", o->at, "Tokens of the prompt.", .title = "tokens");
    DQ_PUT(w, "policy", x->policy[i]->name, "What decides which stay.", .title = "policy");
    DQ_PUT(w, "prefill_seconds_median", dq_bench_timing_of(o, o->n_shown, OVER).median,
           "Seconds of a prefill that nobody watches.", .title = "prefill s", .digits = 3,
           .when = DQ_NULL);
    DQ_BENCH_TIMING(w, o, i, OVER, "over_prefill",
                    "What watching and evicting took more, over that, median over runs.",
                    .title = "more", .min = "least", .max = "most", .digits = 3);
    DQ_PUT(w, "evicting_over_prefill_median", dq_bench_timing_of(o, i, EVICTING).median,
           "Of it the eviction.", .title = "evicting", .digits = 3, .when = DQ_NULL);
}

static void evict_heading(const void *arg)
{
    const policies *x = arg;
    printf("%s: evicting all but %g of a context, in %s on %s\n"
           "more: what watching the prefill and evicting after it took, over a prefill that "
           "nobody watches, in turns: median, least, most; evicting: of that, after the "
           "prefill\n\n",
           x->o.model->name, keep, x->o.math_word.text, x->o.backend->device);
}

static const dq_bench_kind evict_kind = {
    .usage = {.name = "bench evict",
              .synopsis = "MODEL [options]",
              .about = "Times the choice of the quarter of a prompt that stays in the cache, by "
                       "each policy, over the prefill. kvzap has gates of zero if the model has "
                       "none: the values of gates do not change the time.",
              .examples = "  dq bench evict model --kv-policy all --tokens 1024,4096\n"},
    .option = "tokens",
    .longest = 1 << 20,
    .columns = EVICT_COLUMNS,
    .extra = 1,
    .power = 1,
    .rotates = true,
    .open = evict_open,
    .prompts = true,
    .step = evict_step,
    .ended = evict_ended,
    .rows = dq_bench_evict_rows,
    .heading = evict_heading};

dq_status dq_cmd_bench_evict(int argc, char **argv, dq_err *err)
{
    policies x = {.o = DQ_BENCH(evict_kind, &x)};
    const char *word[POLICIES + 1];
    x.o.lengths = "512";
    x.o.keep = keep;
    const dq_opt opts[] = {dq_opt_words("kv-policy", "LIST", &x.names, policy_words(word),
                                        dq_kv_n_policies + 1,
                                        "policies, or all, as for dq eval (default all)"),
                           dq_opt_text("tokens", "N[,N...]", &x.o.lengths,
                                       "prompt lengths, 272 or more (default 512)"),
                           DQ_BENCH_HOW(x.o),
                           {0}};
    return dq_bench_main(&x.o, argc, argv, opts, err);
}

/* ---- Items ----
 * Dq bench items: throughput of scoring short items in the groups of dq eval, tokenizing apart.
 * Every group of items is scored and then compared, at once, with two things on the same machine:
 * a prompt of the same kind of work, and the bare products that its floating-point operations
 * would take. A run is all groups; run -1 warms up with the first one alone. */

enum { LONGEST = 4096 };

enum {
    TOKENIZE, /* seconds */
    SCORE,
    FLOOR,         /* products of the computed rows and scored logits, at the rate beside them */
    COMPUTED_RATE, /* per second */
    NAIVE_RATE,
    PREFILL_RATE,
    PRODUCT_RATE, /* of FLOOR, in multiply-adds as two */
    OF_PREFILL,
    OF_FLOOR,
    N_COLUMNS
};

typedef struct items_bench {
    dq_bench o;
    const char *task; /* the form of the file, as dq eval names it */
    dq_tokenizer *tok;
    dq_items items;
    dq_score_work work; /* of a run, as dq eval counts it */
    int64_t scored, n_truncated, n_groups;
} items_bench;

static dq_status items_open(void *arg, dq_err *err)
{
    items_bench *x = arg;
    dq_bench *o = &x->o;
    const dq_model *m = o->model;
    char *text;
    size_t len;
    o->n = 1;
    const dq_task *task = dq_task_find(x->task, o->a, err);
    if (!task) return err->code;
    DQ_TRY(dq_bench_open_runner(o, err));
    DQ_TRY(dq_file_read_text(&text, &len, o->file, 0, o->a, err));
    DQ_TRY(dq_task_load(&x->items, task, o->file, text, len, o->limit, o->a, err));
    DQ_TRY(dq_input_tokenizer(&x->tok, m, true, err));
    return dq_bench_prompt_new(&o->prompt, m,
                               m->max_positions < LONGEST ? m->max_positions : LONGEST, err);
}

static void items_close(void *arg)
{
    items_bench *x = arg;
    dq_tokenizer_free(x->tok);
}

static dq_status run_groups(items_bench *x, dq_scorer *scorer, dq_arena *a, dq_err *err)
{
    dq_bench *o = &x->o;
    const dq_model *m = o->model;
    dq_requests q;
    double prefill = 0, bare = 0, flops = 0, seconds, rate;
    const double start = dq_backend_seconds(o->backend);
    if (dq_items_encode(&q, &x->items, x->tok, DQ_BOS_AUTO, m->max_positions, m->vocab, a, err) !=
        DQ_OK)
        return dq_in(err, "%s: ", o->file);
    const double tokenizing = dq_backend_seconds(o->backend) - start;
    const dq_scores out = {.logp = dq_alloc(a, (size_t)q.n_values, sizeof *out.logp, err),
                           .top1 = dq_alloc(a, (size_t)q.n_values, sizeof *out.top1, err)};
    DQ_TRY(err->code);
    x->n_groups = 0;
    for (int64_t begin = 0, end; begin < q.n_items; begin = end) {
        end = dq_score_group(&q, begin, dq_score_rows(o->runner, true), true);
        const int64_t before = scorer->work.computed;
        DQ_TRY(dq_score_items(scorer, &q, begin, end, out, err));
        /* the first of two finds the caches full of what was scored */
        for (int i = 0; i < 2; i++) DQ_TRY(dq_bench_prompt_run(&seconds, o, dq_logit_plain, err));
        DQ_TRY(dq_bench_product_rate(&rate, o->backend, m, o->math.linear, err));
        const double scored = (double)(dq_items_values(&q, end) - dq_items_values(&q, begin));
        const double of_group = dq_bench_row_flops(m) * (double)(scorer->work.computed - before) +
                                dq_bench_logits_flops(m) * scored;
        prefill += seconds;
        flops += of_group;
        bare += of_group / rate;
        x->n_groups++;
        if (o->run < 0) break;
        dq_progress_set(&o->progress, o->done + (double)end / (double)q.n_items, x->task);
    }
    const dq_score_work *work = &scorer->work;
    const double tokens = (double)o->prompt.n * (double)x->n_groups, computed = dq_score_rate(work);
    const double all[N_COLUMNS] = {[TOKENIZE] = tokenizing,
                                   [SCORE] = work->seconds,
                                   [FLOOR] = bare,
                                   [COMPUTED_RATE] = computed,
                                   [NAIVE_RATE] = (double)work->tokens / work->seconds,
                                   [PREFILL_RATE] = tokens / prefill,
                                   [PRODUCT_RATE] = flops / bare,
                                   [OF_PREFILL] = computed / (tokens / prefill),
                                   [OF_FLOOR] = bare / work->seconds};
    for (int i = 0; i < N_COLUMNS; i++) *dq_bench_sample(o, 0, i) = all[i];
    x->work = *work;
    x->scored = q.n_values;
    x->n_truncated = q.n_truncated;
    return DQ_OK;
}

static dq_status items_step(void *arg, int i, dq_err *err)
{
    items_bench *x = arg;
    const dq_pass pass = {.logit = {.bits = 16}, .math = x->o.math};
    dq_scorer scorer;
    dq_arena *a = dq_arena_new();
    (void)i;
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (dq_score_begin(&scorer, x->o.runner, &pass, &x->o.kv, err) == DQ_OK)
        run_groups(x, &scorer, a, err);
    dq_score_end(&scorer);
    dq_arena_free(a);
    if (err->code == DQ_OK && x->n_truncated)
        dq_logger_warn(&x->o.logger, "%s: %lld of %lld items lost the beginning of their context",
                       x->o.file, (long long)x->n_truncated, (long long)x->items.n);
    return err->code;
}

static const dq_bench_column shown[N_COLUMNS] = {
    {.at = TOKENIZE,
     .prefix = "tokenizing_seconds",
     .about = "Seconds of tokenizing, median over runs.",
     .title = "tokenizing s",
     .digits = 4},
    {.at = SCORE,
     .prefix = "seconds",
     .about = "Seconds of scoring, median over runs.",
     .title = "scoring s",
     .digits = 4},
    {.at = FLOOR,
     .prefix = "floor_seconds",
     .about = "Seconds of the products alone, median over runs.",
     .title = "floor s",
     .digits = 4},
    {.at = COMPUTED_RATE,
     .prefix = "computed_tokens_per_second",
     .about = "Computed tokens per second, median over runs.",
     .title = "computed/s"},
    {.at = NAIVE_RATE,
     .prefix = "naive_tokens_per_second",
     .about = "Tokens per second, prefixes counted for each item, median over runs.",
     .title = "naive/s"},
    {.at = PREFILL_RATE,
     .prefix = "prefill_tokens_per_second",
     .about = "Tokens per second of one prompt, median over runs.",
     .title = "prefill/s"},
    {.at = PRODUCT_RATE,
     .prefix = "matmul_flops_per_second",
     .about = "Multiply-adds of one dense product per second, median over runs."},
    {.at = OF_PREFILL,
     .prefix = "share_of_prefill",
     .about = "Of the prompt's rate reached, median over runs.",
     .title = "of prefill",
     .digits = 2},
    {.at = OF_FLOOR,
     .prefix = "share_of_floor",
     .about = "floor_seconds over seconds, median over runs.",
     .title = "of floor",
     .digits = 2}};

void dq_bench_items_rows(dq_row_writer *w, const void *bench, int64_t i)
{
    const items_bench *x = bench;
    const dq_bench *o = x ? &x->o : NULL;
    dq_bench_rows_begin(w, o, "items");
    DQ_PUT(w, "task", x->task, "The task.");
    DQ_PUT(w, "items", x->items.n, "Items.", .title = "items");
    DQ_PUT(w, "truncated", x->n_truncated, "Of them cut.");
    DQ_PUT(w, "groups", x->n_groups, "Groups that were scored together.");
    DQ_PUT(w, "naive_tokens", x->work.tokens, "Tokens, prefixes counted for each item.",
           .title = "naive tokens");
    DQ_PUT(w, "computed_tokens", x->work.computed, "Tokens that were computed.",
           .title = "computed tokens");
    DQ_PUT(w, "scored_tokens", x->scored, "Tokens that were scored.");
    DQ_PUT(w, "prefill_tokens", o->prompt.n, "Tokens of the prompt beside it.");
    DQ_PUT(w, "peak_bytes", dq_os_peak_bytes(), "Bytes that the process had at most.");
    for (int k = 0; k < N_COLUMNS; k++) dq_bench_timing_rows(w, o, i, &shown[k]);
}

static void items_heading(const void *arg)
{
    const items_bench *x = arg;
    const dq_bench *o = &x->o;
    printf("%s: items of %s in %s on %s, medians of %lld run%s\n"
           "prefill: one prompt of %lld tokens after every group of items; floor: the matrix "
           "products of the computed rows and of %lld rows of logits at %.1f GFLOP/s\n\n",
           o->model->name, x->task, o->math_word.text, o->backend->device, (long long)o->runs,
           o->runs == 1 ? "" : "s", (long long)o->prompt.n, (long long)x->scored,
           dq_bench_timing_of(o, 0, PRODUCT_RATE).median * 1e-9);
}

static const dq_bench_kind items_kind = {
    .usage = {.name = "bench items",
              .synopsis = "MODEL FILE [options]",
              .about = "Times the scoring of the short items of FILE, without tokenizing. After "
                       "every group of items come one long prefill and one dense product, so that "
                       "shares compare times of one machine.",
              .examples =
                  "  dq bench items model hellaswag_val.jsonl --task hellaswag --limit 1000\n",
              .min_args = 2,
              .max_args = 2,
              .args = "MODEL and FILE"},
    .columns = N_COLUMNS,
    .codes = true,
    .open = items_open,
    .close = items_close,
    .step = items_step,
    .rows = dq_bench_items_rows,
    .heading = items_heading};

enum { MAX_TASKS = 32 };
static int task_names(const char *names[MAX_TASKS])
{
    int n = 0;
    for (; dq_task_choices[n] && n < MAX_TASKS; n++) names[n] = dq_task_choices[n];
    return n;
}

dq_status dq_cmd_bench_items(int argc, char **argv, dq_err *err)
{
    items_bench x = {.o = DQ_BENCH(items_kind, &x), .task = "mc"};
    const char *names[MAX_TASKS];
    const dq_opt opts[] = {dq_opt_offer(names, task_names(names),
                                        dq_opt_text("task", "NAME", &x.task,
                                                    "form of FILE, as for dq eval (default mc)")),
                           dq_opt_int("limit", "N", &x.o.limit, 1, 1e9, "the first N items only"),
                           DQ_BENCH_HOW(x.o),
                           {0}};
    return dq_bench_main(&x.o, argc, argv, opts, err);
}
