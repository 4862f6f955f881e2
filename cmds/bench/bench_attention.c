/* Dq bench attention: one layer's attention over invented queries, keys and values of each length,
 * from products with keys to the head norm: with every rounding of logits, and, of a model with
 * two maps, each map by itself as a softmax attention over the same keys and values. These take
 * turns, and so does the peak (inside.h).
 *
 * A cache of one layer is filled once per length and read by all forms. It is never compacted, so
 * that every row reads what it reads in a pass: which tokens are read as codes goes by positions
 * alone (kv/kv.h), and appending makes the codes of all that the last row reads so. Two softmaxes
 * are two calls with a head order of one map each: the same kernels and pages, and the products
 * with values twice. Run -1 warms up.
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

enum { MAX_FORMS = DQ_BENCH_LOGITS + 1 };

/* What is timed: attention with one rounding of logits, or (softmaxes) map by map. */
typedef struct form {
    bool softmaxes;
    dq_logit_spec logit;
    double *seconds, *times; /* [runs]; times: against the first form in the same run */
} form;

typedef struct attention {
    dq_bench *o;
    const dq_model *m;
    dq_backend *b;
    dq_bench_list length;
    const char *instruction; /* of the peak; NULL: not known */
    form form[MAX_FORMS];
    int n_forms;
    dq_head *head[2]; /* [n_out] of the head orders with one map each */
    dq_head_order map[2];
    double *ops;          /* [runs] */
    double peak;          /* of the last length; NaN: not known */
    dq_progress progress; /* in pairs of rows; told between runs */
    dq_kv *kv;
    int32_t seq;
    int64_t n;
    int32_t *pos;
    float *q, *y, *lambda, *absmax; /* backend memory */
} attention;

static void attend(const attention *x, const dq_attn *attn, dq_logit_spec logit)
{
    const dq_head_order *map = attn->map;
    const int64_t cu[2] = {0, x->n}, width = (int64_t)map->n_out * map->n_slabs * map->head_dim;
    const dq_batch batch = {
        .n_seq = 1, .n_rows = x->n, .cu_rows = cu, .seq = &x->seq, .pos = x->pos};
    dq_attend_args args = {.attn = attn,
                           .batch = &batch,
                           .kv = x->kv,
                           .q = {x->q, x->n, (int64_t)map->n_q * map->head_dim},
                           .lambda = {x->lambda, x->n, map->n_out},
                           .logit = logit,
                           .math = x->o->math};
    if (dq_logit_needs_absmax(logit)) {
        x->b->ops->attn_absmax(x->b, x->absmax, &args);
        if (logit.granularity == DQ_GRANULARITY_TENSOR)
            x->b->ops->absmax_join(x->b, x->absmax, 1, map->n_q);
        args.absmax = x->absmax;
    }
    x->b->ops->attend(x->b, (dq_mat){x->y, x->n, width}, &args);
    x->b->ops->sync(x->b);
}

static double time_form(const attention *x, const form *f)
{
    const dq_attn *of = &x->m->layer[0].attn;
    const double start = dq_bench_now(x->b);
    if (!f->softmaxes) attend(x, of, f->logit);
    for (int k = 0; f->softmaxes && k < 2; k++) {
        const dq_attn attn = {.map = &x->map[k], .lambda_kind = DQ_LAMBDA_NONE, .out_scale = 1};
        attend(x, &attn, f->logit);
    }
    return dq_bench_now(x->b) - start;
}

static dq_status begin_length(attention *x, dq_err *err)
{
    const dq_head_order *map = &x->m->map;
    x->pos = dq_block_new((size_t)x->n, sizeof *x->pos, err);
    for (int64_t i = 0; x->pos && i < x->n; i++) x->pos[i] = (int32_t)i;
    if (x->pos) x->kv = x->b->ops->kv_new(x->b, map, 1, &x->o->kv);
    if (x->pos && !x->kv) {
        dq_backend_sync(x->b, err);
        return dq_fail(err, DQ_RESOURCE, "out of memory for the KV cache");
    }
    if (x->kv) x->q = dq_bench_floats(x->b, x->n * map->n_q * map->head_dim, err);
    if (x->q) x->y = dq_bench_floats(x->b, x->n * map->n_out * map->n_slabs * map->head_dim, err);
    if (x->y) x->lambda = dq_bench_floats(x->b, x->n * map->n_out, err);
    if (x->lambda) x->absmax = dq_bench_floats(x->b, map->n_q, err);
    if (!x->absmax) return err->code;
    const int64_t cols = (int64_t)map->n_kv * map->head_dim, cu[2] = {0, x->n};
    const dq_batch batch = {
        .n_seq = 1, .n_rows = x->n, .cu_rows = cu, .seq = &x->seq, .pos = x->pos};
    float *kv = dq_bench_floats(x->b, x->n * cols, err);
    if (kv) {
        x->seq = x->b->ops->kv_seq_new(x->b, x->kv);
        x->b->ops->kv_append(x->b, x->kv, 0, &batch, (dq_mat){kv, x->n, cols},
                             (dq_mat){kv, x->n, cols});
        dq_backend_sync(x->b, err);
    }
    x->b->ops->free(x->b, kv);
    return err->code;
}

static dq_status run_length(attention *x, dq_err *err)
{
    for (int64_t run = -1; run < x->o->runs; run++) {
        double first = 0;
        for (int i = 0; i < x->n_forms; i++) {
            DQ_TRY(dq_os_check_stop(err));
            const double s = time_form(x, &x->form[i]);
            if (i == 0) first = s;
            if (run < 0) continue;
            x->form[i].seconds[run] = s;
            x->form[i].times[run] = s / first;
        }
        const double ops = dq_bench_limits_ops(x->b, x->o->math.qk, NULL, &x->instruction);
        if (run >= 0) x->ops[run] = ops;
        DQ_TRY(dq_backend_sync(x->b, err));
        dq_progress_set(&x->progress, x->progress.done + (double)x->n * (double)x->n, NULL);
    }
    return err->code;
}

/* Multiply-adds count as two; a first sweep for maxima does not count. */
static double flops_of(const attention *x, const form *f)
{
    const dq_head_order *a = &x->m->map;
    const double products = (double)a->n_out * a->n_slabs * (f->softmaxes ? 2 : 1);
    return 2.0 * a->head_dim * (a->n_q + products) * ((double)x->n * (double)(x->n + 1) / 2);
}

/* Share of a prompt's query-key pairs multiplied as codes; NaN unless in int8. */
static double share_of_codes(const attention *x)
{
    double all = 0, coded = 0;
    for (int64_t i = 0; i < x->n; i++) {
        int64_t reads, codes;
        dq_kv_reads(&x->o->kv, x->pos[i], x->pos, x->n, &reads, &codes);
        all += (double)reads;
        coded += (double)codes;
    }
    return x->o->math.qk == DQ_NUM_INT8 ? coded / all : (double)NAN;
}

static const char *name_of(const attention *x, const form *f)
{
    if (f->softmaxes) return "two softmaxes";
    return x->m->map.n_maps == 2 ? "difference" : "softmax";
}

void dq_bench_attention_rows(dq_row_writer *w, const void *attended, int64_t i)
{
    static const dq_bench_column seconds_of = {.prefix = "seconds",
                                               .about = "Seconds of one layer, median over runs.",
                                               .title = "ms",
                                               .min = "least",
                                               .digits = 2,
                                               .scale = 1e3};
    static const dq_bench_column times_of = {
        .prefix = "times_first",
        .about = "Time over that of the first form, median over runs.",
        .title = "times",
        .digits = 3};
    const attention *x = attended;
    const form *f = x ? &x->form[i] : NULL;
    const bool codes = x && x->o->math.qk == DQ_NUM_INT8;
    dq_bench_timing s = {0}, times = {0};
    double rate = 0;
    char logits[DQ_BENCH_LOGIT_NAME];
    if (x) {
        s = dq_bench_timing_of(f->seconds, x->o->runs);
        times = dq_bench_timing_of(f->times, x->o->runs);
        rate = flops_of(x, f) / s.median;
    }
    dq_bench_rows_begin(w, DQ_LIVE(w, x->o), "attention");
    DQ_PUT(w, "tokens", x->n, "Tokens of the prompt.", .title = "tokens");
    DQ_PUT(w, "form", name_of(x, f), "What is computed.", .title = "form");
    if (w->cell) DQ_PUT(w, NULL, dq_bench_logit_name(logits, f->logit), NULL, .title = "logits");
    dq_bench_timing_rows(w, &seconds_of, &s);
    DQ_PUT(w, "flops_per_second", rate, "Multiply-adds (two each) per second.", .title = "GFLOP/s",
           .scale = 1e-9, .digits = 1, .when = DQ_NULL);
    DQ_PUT(w, "peak_flops_per_second", x->peak, DQ_BENCH_ABOUT_PEAK, .when = DQ_NULL);
    DQ_PUT(w, "share_of_peak", rate / x->peak, "Of that reached.", .title = "share of peak",
           .digits = 2, .when = DQ_NULL);
    dq_bench_timing_rows(w, &times_of, &times);
    DQ_PUT(w, "share_of_codes", share_of_codes(x),
           "Share of query-key pairs that are multiplied as codes; null: no int8.",
           .title = codes ? "as codes" : NULL, .digits = 3, .when = DQ_NULL);
    dq_bench_logit_rows(w, DQ_LIVE(w, &f->logit));
}

static void print_heading(const attention *x)
{
    char peak[DQ_BENCH_PEAK];
    printf("%s: attention of one layer in %s on %s, medians of %lld run%s\n"
           "times: against the first line of a length, run by run; peak: %s\n%s\n",
           x->m->name, x->o->math_word.text, x->b->device, (long long)x->o->runs,
           x->o->runs == 1 ? "" : "s", dq_bench_peak(peak, x->o->math.qk, x->instruction),
           x->o->math.qk == DQ_NUM_INT8
               ? "as codes: share of the pairs of query and key that are multiplied in int8, "
                 "the others in f32\n"
               : "");
}

static dq_status run_all(attention *x, dq_err *err)
{
    dq_bench_report r;
    DQ_TRY(dq_bench_report_begin(&r, x->o, err));
    double pairs = 0;
    for (int i = 0; i < x->length.n; i++) pairs += (double)x->length.at[i] * x->length.at[i];
    dq_progress_begin(&x->progress, &x->o->logger, "timed", pairs * (double)(x->o->runs + 1));
    dq_progress_set(&x->progress, 0, NULL);
    for (int i = 0; i < x->length.n && err->code == DQ_OK; i++) {
        x->n = x->length.at[i];
        if (begin_length(x, err) == DQ_OK && run_length(x, err) == DQ_OK) {
            x->peak = x->instruction ? dq_bench_timing_of(x->ops, x->o->runs).median : (double)NAN;
            for (int k = 0; k < x->n_forms; k++)
                dq_bench_report_add(&r, dq_bench_attention_rows, x, k, err);
        }
        float **all[] = {&x->q, &x->y, &x->lambda, &x->absmax};
        for (int j = 0; j < 4; j++) {
            x->b->ops->free(x->b, *all[j]);
            *all[j] = NULL;
        }
        if (x->kv) x->b->ops->kv_free(x->b, x->kv);
        x->kv = NULL;
        dq_block_free(x->pos);
        x->pos = NULL;
    }
    dq_progress_end(&x->progress);
    if (err->code == DQ_OK) {
        const dq_bench_settings set = {.runs = true,
                                       .kv_bits = x->o->kv.k_bits,
                                       .peaks = true,
                                       .instruction = x->instruction,
                                       .num = x->o->math.qk};
        dq_bench_report_settings(&r, &set);
        if (!x->o->json) print_heading(x);
        dq_bench_report_print(&r, err);
    }
    dq_bench_report_end(&r);
    return err->code;
}

static dq_status one_map(attention *x, int k, dq_err *err)
{
    const dq_head_order *map = &x->m->map;
    x->head[k] = dq_block_new((size_t)map->n_out, sizeof *x->head[k], err);
    if (!x->head[k]) return err->code;
    for (int i = 0; i < map->n_out; i++) {
        x->head[k][i] = map->head[i];
        x->head[k][i].q[0] = map->head[i].q[k];
        x->head[k][i].q[1] = -1;
    }
    x->map[k] = *map;
    x->map[k].head = x->head[k];
    x->map[k].n_maps = 1;
    return DQ_OK;
}

static dq_status begin_forms(attention *x, dq_err *err)
{
    for (int i = 0; i < x->o->n_logits; i++) {
        x->form[x->n_forms++] = (form){.logit = x->o->logit[i]};
        if (i == 0 && x->m->map.n_maps == 2)
            x->form[x->n_forms++] = (form){.softmaxes = true, .logit = x->o->logit[0]};
    }
    for (int k = 0; k < 2 && x->m->map.n_maps == 2; k++) DQ_TRY(one_map(x, k, err));
    x->ops = dq_block_new((size_t)x->o->runs, sizeof *x->ops, err);
    for (int i = 0; i < x->n_forms && err->code == DQ_OK; i++) {
        form *f = &x->form[i];
        f->seconds = dq_block_new((size_t)x->o->runs, sizeof *f->seconds, err);
        if (f->seconds) f->times = dq_block_new((size_t)x->o->runs, sizeof *f->times, err);
    }
    return err->code;
}

static void run(attention *x, dq_err *err)
{
    x->m = x->o->model;
    x->b = x->o->backend;
    if (begin_forms(x, err) == DQ_OK) run_all(x, err);
    for (int i = 0; i < x->n_forms; i++) {
        dq_block_free(x->form[i].seconds);
        dq_block_free(x->form[i].times);
    }
    for (int k = 0; k < 2; k++) dq_block_free(x->head[k]);
    dq_block_free(x->ops);
}

static const dq_usage usage = {
    .name = "bench attention",
    .synopsis = "MODEL [options]",
    .about = "Times one layer's attention of a prompt and, of a model with two maps, both maps as "
             "softmax attentions of their own over the same keys and values. In int8, tokens that "
             "a query reads unquantized are multiplied in f32; the share of those read as codes is "
             "told.",
    .examples = "  dq bench attention model --tokens 2048,8192\n"
                "  dq bench attention model4.h5 --math int8 --logit-bits 8,4\n",
    .min_args = 1,
    .max_args = 1,
    .args = "one MODEL"};

dq_status dq_cmd_bench_attention(int argc, char **argv, dq_err *err)
{
    dq_bench o = dq_bench_defaults;
    attention x = {.o = &o};
    const char *lengths = "128,512";
    const dq_opt opts[] = {
        dq_opt_text("tokens", "N[,N...]", &lengths, "prompt lengths (default 128,512)"),
        DQ_BENCH_LOGIT(o),
        DQ_BENCH_MATH(o),
        DQ_BENCH_RUNS(o),
        DQ_BENCH_RUN(o),
        {0}};
    dq_args args;
    DQ_TRY(dq_help_parse(&args, argc, argv, opts, &usage, err));
    if (args.help) return DQ_OK;
    DQ_TRY(dq_bench_list_read(&x.length, lengths, "tokens", 1 << 20, err));
    if (dq_bench_open(&o, usage.name, args.item[0], err) == DQ_OK) run(&x, err);
    dq_bench_close(&o);
    return err->code;
}

/* ---- Evict ----
 * Dq bench evict: what it takes to choose the tokens of a context that a policy keeps, beside
 * reading the context. A run is one prefill that nobody watches and one for every policy, each
 * followed by its eviction of all but a quarter; what a policy takes is what its turn took longer,
 * over the unwatched prefill of the same run. Run -1 warms up. */

static const double keep = 0.25;
enum { POLICIES = 32 };

typedef struct policies {
    dq_bench *o;
    dq_bench_list length;
    const dq_kv_policy *policy[POLICIES]; /* [n_policies] */
    int n_policies, tokens;               /* tokens: of the length at hand */
    dq_backend *b;
    dq_progress progress;              /* in rows; told between runs */
    double *prefill, *over, *evicting; /* [runs], [n_policies][runs] twice */
} policies;

/* The words of --kv-policy: policies, and `all`, which leaves out baselines. */
static const char *const *policy_words(const char *word[POLICIES + 1])
{
    for (int i = 0; i < dq_kv_n_policies; i++) word[i] = dq_kv_policies[i].name;
    word[dq_kv_n_policies] = "all";
    return word;
}

/* Reads one context, observed and cut by e (NULL: neither). *evicting: the part of *seconds after
 * the pass. */
static dq_status run_one(policies *x, const dq_bench_prompt *p, dq_evictor *e, double *seconds,
                         double *evicting, dq_evict_report *report, dq_err *err)
{
    dq_kv *kv = dq_runner_kv(x->o->runner);
    int32_t seq = x->b->ops->kv_seq_new(x->b, kv);
    const int32_t prefix = (int32_t)p->n;
    const int64_t cu[2] = {0, p->n};
    const dq_batch batch = {
        .n_seq = 1, .n_rows = p->n, .cu_rows = cu, .seq = &seq, .ids = p->ids, .pos = p->pos};
    dq_pass pass = {.logit = dq_logit_plain, .math = x->o->math};
    dq_mat hidden;
    const double start = dq_bench_now(x->b);
    if (e) dq_evictor_watch(e, &batch, &pass.columns, err);
    if (err->code == DQ_OK) dq_runner_pass(x->o->runner, &batch, &pass, &hidden, err);
    const double read = dq_bench_now(x->b);
    if (e && err->code == DQ_OK) dq_evictor_run(e, &batch, &prefix, report, err);
    *seconds = dq_bench_now(x->b) - start;
    *evicting = *seconds - (read - start);
    if (e) dq_evictor_forget(e, seq);
    x->b->ops->kv_seq_free(x->b, kv, seq);
    return err->code;
}

/* One round of all policies and the plain prefill; the order rotates. */
static dq_status evict_run_all(policies *x, const dq_bench_prompt *p, int64_t evict_run,
                               dq_err *err)
{
    const int n = x->n_policies, first = evict_run < 0 ? 0 : (int)(evict_run % (n + 1));
    const int64_t at = evict_run < 0 ? 0 : evict_run, runs = x->o->runs;
    dq_evict_report none = dq_evict_report_none;
    double unused;
    for (int k = 0; k <= n; k++) {
        const int i = (first + k) % (n + 1);
        if (i == n)
            DQ_TRY(run_one(x, p, NULL, &x->prefill[at], &unused, &none, err));
        else {
            double *seconds = &x->over[i * runs + at];
            double *evicting = &x->evicting[i * runs + at];
            const dq_pass pass = {.logit = dq_logit_plain, .math = x->o->math};
            dq_kv_spec spec = x->o->kv;
            dq_evict_report report = dq_evict_report_none;
            dq_kv_cached told = {0};
            dq_evictor *e = NULL;
            char what[400];
            spec.evict.policy = x->policy[i];
            spec.evict.keep = keep;
            if (dq_evictor_new(&e, x->o->runner, &spec, &pass, err) == DQ_OK)
                run_one(x, p, e, seconds, evicting, &report, err);
            dq_evictor_free(e);
            dq_kv_cached_report(&told, &report, 1);
            snprintf(what, sizeof what, "%s, %d tokens", x->o->model->name, (int)p->n);
            if (err->code == DQ_OK) dq_kv_report_warn_policy(&x->o->logger, what, &spec, &told);
            if (err->code != DQ_OK) return err->code;
        }
    }
    for (int i = 0; i < n; i++) {
        x->over[i * runs + at] = x->over[i * runs + at] / x->prefill[at] - 1;
        x->evicting[i * runs + at] /= x->prefill[at];
    }
    return err->code;
}

void dq_bench_evict_rows(dq_row_writer *w, const void *evicted, int64_t j)
{
    static const dq_bench_column over_of = {
        .prefix = "over_prefill",
        .about = "What watching and evicting took more, over that, median over runs.",
        .title = "more",
        .min = "least",
        .max = "most",
        .digits = 3};
    const policies *x = evicted;
    dq_bench_timing prefill = {0}, over = {0}, evicting = {0};
    if (x) {
        prefill = dq_bench_timing_of(x->prefill, x->o->runs);
        over = dq_bench_timing_of(x->over + j * x->o->runs, x->o->runs);
        evicting = dq_bench_timing_of(x->evicting + j * x->o->runs, x->o->runs);
    }
    dq_bench_rows_begin(w, DQ_LIVE(w, x->o), "evict");
    DQ_PUT(w, "tokens", x->tokens, "Tokens of the prompt.", .title = "tokens");
    DQ_PUT(w, "policy", x->policy[j]->name, "What decides which stay.", .title = "policy");
    DQ_PUT(w, "prefill_seconds_median", prefill.median, "Seconds of a prefill that nobody watches.",
           .title = "prefill s", .digits = 3, .when = DQ_NULL);
    dq_bench_timing_rows(w, &over_of, &over);
    DQ_PUT(w, "evicting_over_prefill_median", evicting.median, "Of it the eviction.",
           .title = "evicting", .digits = 3, .when = DQ_NULL);
}

static dq_status evict_run_lengths(policies *x, dq_bench_report *r, dq_err *err)
{
    double rows = 0;
    for (int i = 0; i < x->length.n; i++) rows += x->length.at[i];
    const dq_bench_settings set = {.runs = true, .keep = keep};
    dq_bench_report_settings(r, &set);
    dq_progress_begin(&x->progress, &x->o->logger, "timed", rows * (double)(x->o->runs + 1));
    dq_progress_set(&x->progress, 0, NULL);
    for (int i = 0; i < x->length.n && err->code == DQ_OK; i++) {
        const int length = x->length.at[i];
        dq_bench_prompt prompt = {0};
        dq_bench_prompt_new(&prompt, x->o->model, length, err);
        for (int64_t j = -1; err->code == DQ_OK && j < x->o->runs; j++) {
            evict_run_all(x, &prompt, j, err);
            dq_progress_set(&x->progress, x->progress.done + length, NULL);
        }
        x->tokens = length;
        for (int j = 0; err->code == DQ_OK && j < x->n_policies; j++)
            dq_bench_report_add(r, dq_bench_evict_rows, x, j, err);
        dq_bench_prompt_free(&prompt);
    }
    dq_progress_end(&x->progress);
    if (err->code != DQ_OK) return err->code;
    if (!x->o->json)
        printf("%s: evicting all but %g of a context, in %s on %s\n"
               "more: what watching the prefill and evicting after it took, over a prefill that "
               "nobody watches, in turns: median, least, most; evicting: of that, after the "
               "prefill\n\n",
               x->o->model->name, keep, x->o->math_word.text, x->b->device);
    return dq_bench_report_print(r, err);
}

static dq_status evict_run(policies *x, dq_arena *a, dq_err *err)
{
    const size_t runs = (size_t)x->o->runs, n = (size_t)x->n_policies;
    dq_bench_report r;
    x->b = x->o->backend;
    /* Protected tokens must not raise the share of any context. */
    const int least = x->o->kv.sink + x->o->kv.recent;
    for (int i = 0; i < x->length.n; i++) {
        if (x->length.at[i] * keep < least)
            return dq_fail(err, DQ_USAGE,
                           "--tokens %d: %g of them are fewer than the %d first and last ones that "
                           "always stay. Give %.0f or more",
                           x->length.at[i], keep, least, ceil(least / keep));
    }
    /* Zero gates where a policy needs them and the model has none: their values take no time. */
    dq_kv_gates *gates;
    bool needed = false;
    for (int i = 0; i < x->n_policies; i++) needed = needed || x->policy[i]->needs & DQ_NEEDS_GATES;
    if (needed && !x->o->model->gates) {
        DQ_TRY(dq_model_new_gates(&gates, x->o->model, a, err));
        x->o->model->gates = gates;
    }
    DQ_TRY(dq_bench_open_runner(x->o, err));
    double *times = dq_block_new((2 * n + 1) * runs, sizeof *times, err);
    if (times && dq_bench_report_begin(&r, x->o, err) == DQ_OK) {
        x->prefill = times;
        x->over = times + runs;
        x->evicting = x->over + n * runs;
        evict_run_lengths(x, &r, err);
        dq_bench_report_end(&r);
    }
    dq_block_free(times);
    return err->code;
}

static const dq_usage evict_usage = {
    .name = "bench evict",
    .synopsis = "MODEL [options]",
    .about = "Times the choice of the quarter of a prompt that stays in the cache, by each policy, "
             "over the prefill. kvzap has gates of zero if the model has none: the values of gates "
             "do not change the time.",
    .examples = "  dq bench evict model --kv-policy all --tokens 1024,4096\n",
    .min_args = 1,
    .max_args = 1,
    .args = "one MODEL"};

dq_status dq_cmd_bench_evict(int argc, char **argv, dq_err *err)
{
    dq_bench o = dq_bench_defaults;
    policies x = {.o = &o};
    const char *lengths = "512", *word[POLICIES + 1];
    dq_words names = {.n = 0};
    const dq_opt opts[] = {
        dq_opt_words("kv-policy", "LIST", &names, policy_words(word), dq_kv_n_policies + 1,
                     "policies, or all, as for dq eval (default all)"),
        dq_opt_text("tokens", "N[,N...]", &lengths, "prompt lengths, 272 or more (default 512)"),
        DQ_BENCH_MATH(o),
        DQ_BENCH_RUNS(o),
        DQ_BENCH_RUN(o),
        {0}};
    dq_args args;
    DQ_TRY(dq_help_parse(&args, argc, argv, opts, &evict_usage, err));
    if (args.help) return DQ_OK;
    /* Without a list of names, all. */
    for (int i = 0; i < dq_kv_n_policies; i++) {
        const bool in_all = !dq_kv_policies[i].baseline;
        bool asked = names.n == 0 && in_all;
        for (int k = 0; k < names.n; k++)
            asked = asked || names.at[k] == i || (names.at[k] == dq_kv_n_policies && in_all);
        if (asked) x.policy[x.n_policies++] = &dq_kv_policies[i];
    }
    DQ_TRY(dq_bench_list_read(&x.length, lengths, "tokens", 1 << 20, err));
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (dq_bench_open(&o, evict_usage.name, args.item[0], err) == DQ_OK) evict_run(&x, a, err);
    dq_bench_close(&o);
    dq_arena_free(a);
    return err->code;
}

/* ---- Items ----
 * Dq bench items: throughput of scoring short items in the groups of dq eval, tokenizing apart.
 * Every group of items is scored and then compared, at once, with two things on the same machine:
 * a prompt of the same kind of work, and the bare products that its floating-point operations
 * would take. A run is all groups; run -1 warms up with the first one alone. */

enum { LONGEST = 4096 };

typedef enum column {
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
} column;

typedef struct items_bench {
    dq_bench *o;
    const char *path, *task; /* the file and its form, as dq eval names it */
    int64_t limit;           /* 0: all items */
    dq_tokenizer *tok;
    dq_items items;
    dq_bench_prompt prompt;
    dq_progress progress;
    double *value[N_COLUMNS]; /* [runs] */
    dq_bench_timing timing[N_COLUMNS];
    int64_t naive, computed, scored, n_truncated, n_groups;
} items_bench;

typedef struct encoded {
    dq_arena *a;
    dq_requests q;
    double *logp;
    int32_t *top1;
    double seconds;
} encoded;

static dq_status encode(items_bench *x, encoded *e, dq_err *err)
{
    const dq_model *m = x->o->model;
    const dq_backend *b = x->o->backend;
    *e = (encoded){.a = dq_arena_new()};
    if (!e->a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    const double start = dq_bench_now(b);
    if (dq_items_encode(&e->q, &x->items, x->tok, DQ_BOS_AUTO, m->max_positions, m->vocab, e->a,
                        err) != DQ_OK)
        return dq_in(err, "%s: ", x->path);
    e->seconds = dq_bench_now(b) - start;
    e->logp = dq_alloc(e->a, (size_t)e->q.n_values, sizeof *e->logp, err);
    e->top1 = dq_alloc(e->a, (size_t)e->q.n_values, sizeof *e->top1, err);
    return err->code;
}

typedef struct sums {
    double score, prefill, floor, flops;
    int64_t groups;
} sums;

static dq_status run_group(items_bench *x, encoded *e, dq_scorer *scorer, int64_t begin,
                           int64_t end, sums *s, dq_err *err)
{
    const dq_model *m = x->o->model;
    dq_backend *b = x->o->backend;
    const int64_t before = scorer->work.computed;
    double prefill, rate;
    const double start = dq_bench_now(b);
    DQ_TRY(dq_score_items(scorer, &e->q, begin, end, (dq_scores){e->logp, e->top1}, err));
    s->score += dq_bench_now(b) - start;
    /* the first of two finds the caches full of what was scored */
    for (int i = 0; i < 2; i++)
        DQ_TRY(dq_bench_prompt_run(&prefill, x->o->runner, &x->prompt, dq_logit_plain, x->o->math,
                                   err));
    DQ_TRY(dq_bench_product_rate(&rate, b, m, x->o->math.linear, err));
    const int64_t scored = dq_items_values(&e->q, end) - dq_items_values(&e->q, begin);
    const double flops = dq_bench_row_flops(m) * (double)(scorer->work.computed - before) +
                         dq_bench_logits_flops(m) * (double)scored;
    s->prefill += prefill;
    s->flops += flops;
    s->floor += flops / rate;
    s->groups++;
    return DQ_OK;
}

static dq_status run_once(items_bench *x, int64_t items_run, dq_err *err)
{
    encoded e = {0};
    sums s = {0};
    const dq_pass pass = {.logit = {.bits = 16}, .math = x->o->math};
    dq_scorer scorer;
    if (dq_score_begin(&scorer, x->o->runner, &pass, &x->o->kv, err) == DQ_OK) encode(x, &e, err);
    for (int64_t begin = 0, end; err->code == DQ_OK && begin < e.q.n_items; begin = end) {
        end = dq_score_group(&e.q, begin, dq_score_rows(x->o->runner, true), true);
        if (run_group(x, &e, &scorer, begin, end, &s, err) != DQ_OK || items_run < 0) break;
        dq_progress_set(
            &x->progress,
            ((double)items_run + (double)end / (double)e.q.n_items) / (double)x->o->runs, x->task);
    }
    if (err->code == DQ_OK && items_run >= 0) {
        const double tokens = (double)x->prompt.n * (double)s.groups;
        const double computed = (double)scorer.work.computed / s.score,
                     prefill = tokens / s.prefill;
        const double all[N_COLUMNS] = {[TOKENIZE] = e.seconds,
                                       [SCORE] = s.score,
                                       [FLOOR] = s.floor,
                                       [COMPUTED_RATE] = computed,
                                       [NAIVE_RATE] = (double)scorer.work.tokens / s.score,
                                       [PREFILL_RATE] = prefill,
                                       [PRODUCT_RATE] = s.flops / s.floor,
                                       [OF_PREFILL] = computed / prefill,
                                       [OF_FLOOR] = s.floor / s.score};
        for (int i = 0; i < N_COLUMNS; i++) x->value[i][items_run] = all[i];
        x->naive = scorer.work.tokens;
        x->computed = scorer.work.computed;
        x->scored = e.q.n_values;
        x->n_truncated = e.q.n_truncated;
        x->n_groups = s.groups;
    }
    dq_score_end(&scorer);
    dq_arena_free(e.a);
    return err->code;
}

static const dq_bench_column shown[N_COLUMNS] = {
    [TOKENIZE] = {.prefix = "tokenizing_seconds",
                  .about = "Seconds of tokenizing, median over runs.",
                  .title = "tokenizing s",
                  .digits = 4},
    [SCORE] = {.prefix = "seconds",
               .about = "Seconds of scoring, median over runs.",
               .title = "scoring s",
               .digits = 4},
    [FLOOR] = {.prefix = "floor_seconds",
               .about = "Seconds of the products alone, median over runs.",
               .title = "floor s",
               .digits = 4},
    [COMPUTED_RATE] = {.prefix = "computed_tokens_per_second",
                       .about = "Computed tokens per second, median over runs.",
                       .title = "computed/s"},
    [NAIVE_RATE] = {.prefix = "naive_tokens_per_second",
                    .about = "Tokens per second, prefixes counted for each item, median over runs.",
                    .title = "naive/s"},
    [PREFILL_RATE] = {.prefix = "prefill_tokens_per_second",
                      .about = "Tokens per second of one prompt, median over runs.",
                      .title = "prefill/s"},
    [PRODUCT_RATE] = {.prefix = "matmul_flops_per_second",
                      .about = "Multiply-adds of one dense product per second, median over runs."},
    [OF_PREFILL] = {.prefix = "share_of_prefill",
                    .about = "Of the prompt's rate reached, median over runs.",
                    .title = "of prefill",
                    .digits = 2},
    [OF_FLOOR] = {.prefix = "share_of_floor",
                  .about = "floor_seconds over seconds, median over runs.",
                  .title = "of floor",
                  .digits = 2}};

void dq_bench_items_rows(dq_row_writer *w, const void *bench, int64_t i)
{
    const items_bench *x = bench;
    const dq_bench_timing none = {0};
    (void)i;
    dq_bench_rows_begin(w, DQ_LIVE(w, x->o), "items");
    DQ_PUT(w, "task", x->task, "The task.");
    DQ_PUT(w, "items", x->items.n, "Items.", .title = "items");
    DQ_PUT(w, "truncated", x->n_truncated, "Of them cut.");
    DQ_PUT(w, "groups", x->n_groups, "Groups that were scored together.");
    DQ_PUT(w, "naive_tokens", x->naive, "Tokens, prefixes counted for each item.",
           .title = "naive tokens");
    DQ_PUT(w, "computed_tokens", x->computed, "Tokens that were computed.",
           .title = "computed tokens");
    DQ_PUT(w, "scored_tokens", x->scored, "Tokens that were scored.");
    DQ_PUT(w, "prefill_tokens", x->prompt.n, "Tokens of the prompt beside it.");
    DQ_PUT(w, "peak_bytes", dq_os_peak_bytes(), "Bytes that the process had at most.");
    for (int k = 0; k < N_COLUMNS; k++)
        dq_bench_timing_rows(w, &shown[k], w->live ? &x->timing[k] : &none);
}

static dq_status report(const items_bench *x, dq_err *err)
{
    const dq_bench_timing *t = x->timing;
    dq_bench_report r;
    DQ_TRY(dq_bench_report_begin(&r, x->o, err));
    const dq_bench_settings set = {
        .runs = true, .kv_bits = x->o->kv.k_bits, .file = x->path, .limit = x->limit};
    dq_bench_report_settings(&r, &set);
    dq_bench_report_add(&r, dq_bench_items_rows, x, 0, err);
    if (!x->o->json)
        printf("%s: items of %s in %s on %s, medians of %lld run%s\n"
               "prefill: one prompt of %lld tokens after every group of items; floor: the matrix "
               "products of the computed rows and of %lld rows of logits at %.1f GFLOP/s\n\n",
               x->o->model->name, x->task, x->o->math_word.text, x->o->backend->device,
               (long long)x->o->runs, x->o->runs == 1 ? "" : "s", (long long)x->prompt.n,
               (long long)x->scored, t[PRODUCT_RATE].median * 1e-9);
    dq_bench_report_print(&r, err);
    dq_bench_report_end(&r);
    return err->code;
}

static dq_status items_run_all(items_bench *x, dq_err *err)
{
    for (int i = 0; i < N_COLUMNS; i++) {
        x->value[i] = dq_block_new((size_t)x->o->runs, sizeof *x->value[i], err);
        if (!x->value[i]) return err->code;
    }
    dq_progress_begin(&x->progress, &x->o->logger, "timed", 1);
    for (int64_t items_run = -1; items_run < x->o->runs && err->code == DQ_OK; items_run++)
        run_once(x, items_run, err);
    dq_progress_end(&x->progress);
    if (err->code != DQ_OK) return err->code;
    for (int i = 0; i < N_COLUMNS; i++) x->timing[i] = dq_bench_timing_of(x->value[i], x->o->runs);
    if (x->n_truncated)
        dq_logger_warn(&x->o->logger, "%s: %lld of %lld items lost the beginning of their context",
                       x->path, (long long)x->n_truncated, (long long)x->items.n);
    return report(x, err);
}

static dq_status items_run(items_bench *x, dq_err *err)
{
    const dq_model *m = x->o->model;
    char *text;
    size_t len;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    const dq_task *task = dq_task_find(x->task, a, err);
    if (task && dq_bench_open_runner(x->o, err) == DQ_OK &&
        dq_file_read_text(&text, &len, x->path, 0, a, err) == DQ_OK &&
        dq_task_load(&x->items, task, x->path, text, len, x->limit, a, err) == DQ_OK &&
        dq_input_tokenizer(&x->tok, m, true, err) == DQ_OK &&
        dq_bench_prompt_new(&x->prompt, m, m->max_positions < LONGEST ? m->max_positions : LONGEST,
                            err) == DQ_OK)
        items_run_all(x, err);
    for (int i = 0; i < N_COLUMNS; i++) dq_block_free(x->value[i]);
    dq_bench_prompt_free(&x->prompt);
    dq_tokenizer_free(x->tok);
    dq_arena_free(a);
    return err->code;
}

static const dq_usage items_usage = {
    .name = "bench items",
    .synopsis = "MODEL FILE [options]",
    .about = "Times the scoring of the short items of FILE, without tokenizing. After every group "
             "of items come one long prefill and one dense product, so that shares compare times "
             "of one machine.",
    .examples = "  dq bench items model hellaswag_val.jsonl --task hellaswag --limit 1000\n",
    .min_args = 2,
    .max_args = 2,
    .args = "MODEL and FILE"};

enum { MAX_TASKS = 32 };
static int task_names(const char *names[MAX_TASKS])
{
    int n = 0;
    for (; dq_task_choices[n] && n < MAX_TASKS; n++) names[n] = dq_task_choices[n];
    return n;
}

dq_status dq_cmd_bench_items(int argc, char **argv, dq_err *err)
{
    dq_bench o = dq_bench_defaults;
    items_bench x = {.o = &o, .task = "mc"};
    const char *names[MAX_TASKS];
    const dq_opt opts[] = {dq_opt_offer(names, task_names(names),
                                        dq_opt_text("task", "NAME", &x.task,
                                                    "form of FILE, as for dq eval (default mc)")),
                           dq_opt_int("limit", "N", &x.limit, 1, 1e9, "the first N items only"),
                           DQ_BENCH_MATH(o),
                           DQ_BENCH_RUNS(o),
                           DQ_BENCH_RUN(o),
                           {0}};
    dq_args args;
    DQ_TRY(dq_help_parse(&args, argc, argv, opts, &items_usage, err));
    if (args.help) return DQ_OK;
    x.path = args.item[1];
    if (dq_bench_open(&o, items_usage.name, args.item[0], err) == DQ_OK) items_run(&x, err);
    dq_bench_close(&o);
    return err->code;
}
