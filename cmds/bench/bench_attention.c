/* bench_attention: dq bench attention: one layer's attention over invented queries, keys and values of each length, from
 * products with keys to the head norm: with every rounding of logits, and, of a model with two maps, each map by itself as a
 * softmax attention over the same keys and values. These take turns, and so does the peak (bench_limits.h).
 *
 * A cache of one layer is filled once per length and read by all forms. It is never compacted, so that every row reads what it
 * reads in a pass: which tokens are read as codes goes by positions alone (kv/kv.h), and appending makes the codes of all
 * that the last row reads so. Two softmaxes are two calls with a head order of one map each: the same kernels and pages, and
 * the products with values twice. Run -1 warms up.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "cmds/bench/bench_limits.h"
#include "cmds/bench/bench_rates.h"
#include "cmds/bench/bench_report.h"
#include "cmds/bench/bench_run.h"
#include "cmds/cli/help.h"
#include "cmds/cli/progress.h"
#include "cmds/command.h"

#include <math.h>
#include <stdio.h>

enum { MAX_FORMS = DQ_BENCH_LOGITS + 1 };

/* What is timed: attention of the model with one rounding of logits, or (softmaxes) map by map. */
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
    dq_progress progress; /* in pairs of rows; told between runs */
    dq_kv *kv;
    int32_t seq;
    int64_t n;
    int32_t *pos;
    float *q, *y, *lambda, *absmax; /* backend memory */
} attention;

/* ---- One call ---- */

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

/* ---- One length ---- */

static dq_status fill(attention *x, dq_err *err)
{
    const dq_head_order *map = &x->m->map;
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
    return x->absmax ? fill(x, err) : err->code;
}

static void end_length(attention *x)
{
    float **all[] = {&x->q, &x->y, &x->lambda, &x->absmax};
    for (int i = 0; i < 4; i++) {
        x->b->ops->free(x->b, *all[i]);
        *all[i] = NULL;
    }
    if (x->kv) x->b->ops->kv_free(x->b, x->kv);
    x->kv = NULL;
    dq_block_free(x->pos);
    x->pos = NULL;
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

/* ---- What is printed ---- */

/* Multiply-adds of the products that the form needs count as two each; a first sweep for maxima is not counted. */
static double flops_of(const attention *x, const form *f)
{
    const dq_head_order *a = &x->m->map;
    const double products = (double)a->n_out * a->n_slabs * (f->softmaxes ? 2 : 1);
    return 2.0 * a->head_dim * (a->n_q + products) * ((double)x->n * (double)(x->n + 1) / 2);
}

/* Of the query-key pairs of a prompt the share that is multiplied as codes; NaN in other arithmetic than int8. */
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

static void add_result(attention *x, const form *f, double peak, dq_bench_report *r, dq_err *err)
{
    const dq_bench_timing s = dq_bench_timing_of(f->seconds, x->o->runs);
    const dq_bench_timing times = dq_bench_timing_of(f->times, x->o->runs);
    const double rate = flops_of(x, f) / s.median;
    const bool codes = x->o->math.qk == DQ_NUM_INT8;
    char logits[DQ_BENCH_LOGIT_NAME];
    const dq_bench_figure all[] = {
        dq_bench_count("tokens", "tokens", x->n),
        dq_bench_text("form", "form", name_of(x, f)),
        dq_bench_text(NULL, "logits", dq_bench_logit_name(logits, f->logit)),
        dq_bench_real("seconds_median", "ms", s.median, 1e3, 2),
        dq_bench_real("seconds_min", "least", s.min, 1e3, 2),
        dq_bench_real("seconds_max", NULL, s.max, 1e3, 2),
        dq_bench_real("flops_per_second", "GFLOP/s", rate, 1e-9, 1),
        dq_bench_real("peak_flops_per_second", NULL, peak, 1, 0),
        dq_bench_real("share_of_peak", "share of peak", rate / peak, 1, 2),
        dq_bench_real("times_first_median", "times", times.median, 1, 3),
        dq_bench_real("times_first_min", NULL, times.min, 1, 3),
        dq_bench_real("times_first_max", NULL, times.max, 1, 3),
        dq_bench_real("share_of_codes", codes ? "as codes" : NULL, share_of_codes(x), 1, 3)};
    dq_bench_report_logit(
        dq_bench_report_add(r, "attention", all, (int)(sizeof all / sizeof *all), err), f->logit);
}

static dq_status run_lengths(attention *x, dq_bench_report *r, dq_err *err)
{
    double pairs = 0;
    for (int i = 0; i < x->length.n; i++) pairs += (double)x->length.at[i] * x->length.at[i];
    dq_progress_begin(&x->progress, &x->o->logger, "timed", pairs * (double)(x->o->runs + 1));
    dq_progress_set(&x->progress, 0, NULL);
    for (int i = 0; i < x->length.n && err->code == DQ_OK; i++) {
        x->n = x->length.at[i];
        if (begin_length(x, err) == DQ_OK && run_length(x, err) == DQ_OK) {
            const double peak =
                x->instruction ? dq_bench_timing_of(x->ops, x->o->runs).median : (double)NAN;
            for (int k = 0; k < x->n_forms; k++) add_result(x, &x->form[k], peak, r, err);
        }
        end_length(x);
    }
    dq_progress_end(&x->progress);
    return err->code;
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
    if (run_lengths(x, &r, err) == DQ_OK) {
        dq_bench_report_runs(&r);
        json_object_set_new(r.settings, "kv_bits", json_integer(x->o->kv.k_bits));
        dq_bench_peak_json(r.settings, x->o->math.qk, x->instruction);
        if (!x->o->json) print_heading(x);
        dq_bench_report_print(&r, err);
    }
    dq_bench_report_end(&r);
    return err->code;
}

/* Every output head with one of its maps. */
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
