/* bench_generate: dq bench generate: decoding with the whole model, as dq eval does it (eval/kinds.h), beside a plain read of
 * memory. A run is every context with every batch in turn, a plain read after each; prompts are computed anew in every run and
 * are not timed. dq_generate asks after every new token whether a sequence shall end: the clock is read there, after the last
 * sequence's first token, which the prompt's pass gave, and after its last one.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "cmds/bench/bench_bytes.h"
#include "cmds/bench/bench_limits.h"
#include "cmds/bench/bench_rates.h"
#include "cmds/bench/bench_report.h"
#include "cmds/bench/bench_run.h"
#include "cmds/cli/help.h"
#include "cmds/cli/progress.h"
#include "cmds/command.h"
#include "eval/kinds.h"
#include "eval/score.h"

#include <math.h>
#include <stdio.h>

/* A plain read takes a part of the time of the run that it is compared with: one of 30 ms after seconds would say more of what
 * else goes on in the machine. */
enum { READ_PART = 4, BATCH_MAX = 8 };

/* One context and batch. */
typedef struct subject {
    int context, batch;
    double *seconds, *read; /* [runs] of all steps; bytes per second */
    double *peak;           /* [runs] flops per second */
    double *share, *ops;    /* [runs] of the read and of the peak after a run */
    double kv_bytes;        /* held, the mean of the first and the last step */
    dq_bench_bytes weights;
} subject;

typedef struct generate {
    dq_bench *o;
    int64_t steps; /* timed passes of one row a sequence */
    dq_bench_list contexts, batches;
    const dq_model *m;
    dq_backend *b;
    dq_bench_block block;
    const char *instruction; /* of the peak; NULL: not known */
    int64_t peak_bytes;      /* of the process, before the block */
    int32_t *ids;            /* [batch][context], the largest of both */
    subject *at;             /* [n] */
    int n;
    dq_progress progress; /* in runs; told between them */
} generate;

/* What is seen of a run. */
typedef struct watch {
    generate *x;
    int64_t last; /* sequence */
    double begin, end, kv_first, kv_last;
} watch;

static double kv_held(const generate *x)
{
    const dq_kv_bytes held = x->b->ops->kv_bytes(x->b, dq_runner_kv(x->o->runner));
    return (double)(held.codes + held.scales + held.unquantized);
}

/* All sequences are open until the last step has been answered. */
static bool tick(void *arg, int64_t prompt, const int32_t *ids, int64_t n)
{
    watch *w = arg;
    (void)ids;
    if (prompt != w->last) return false;
    if (n == w->x->steps) w->kv_last = kv_held(w->x);
    if (n == w->x->steps + 1) w->end = dq_bench_now(w->x->b);
    if (n > 1) return false;
    w->kv_first = kv_held(w->x);
    w->begin = dq_bench_now(w->x->b);
    return false;
}

static dq_status run_once(generate *x, const subject *s, watch *w, dq_err *err)
{
    dq_generate_prompt prompt[BATCH_MAX];
    const dq_pass pass = {.logit = {.bits = 16}, .math = x->o->math};
    dq_generate_state state;
    dq_scorer scorer = {0};
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    for (int i = 0; i < s->batch; i++) {
        int32_t *ids = x->ids + (int64_t)i * s->context;
        dq_bench_ids(ids, s->context, x->m, (uint32_t)i + 1);
        prompt[i] = (dq_generate_prompt){.ids = ids, .n = s->context, .max_new = x->steps + 1};
    }
    *w = (watch){.x = x, .last = s->batch - 1};
    const dq_generate_spec spec = {.prompt = prompt,
                                   .n = s->batch,
                                   .stop = tick,
                                   .stop_arg = w,
                                   .max_rows = (int64_t)s->batch * s->context,
                                   .max_seqs = s->batch};
    if (dq_score_begin(&scorer, x->o->runner, &pass, &x->o->kv, err) == DQ_OK &&
        dq_generate_new(&state, &spec, x->m, a, err) == DQ_OK)
        dq_generate(&scorer, &spec, &state, err);
    dq_score_end(&scorer);
    dq_arena_free(a);
    return err->code;
}

/* Of multiply-adds with weights in one step. */
static double step_flops(const generate *x, const subject *s)
{
    return s->batch * (dq_bench_row_flops(x->m) + dq_bench_logits_flops(x->m));
}

static void add_shares(const generate *x, subject *s, int64_t run)
{
    const double step = s->seconds[run] / (double)x->steps;
    s->share[run] = (s->weights.total + s->kv_bytes) / step / s->read[run];
    s->ops[run] = step_flops(x, s) / step / s->peak[run];
}

/* Run -1 warms up. */
static dq_status run_all(generate *x, dq_err *err)
{
    for (int64_t run = -1; run < x->o->runs; run++) {
        for (int i = 0; i < x->n; i++) {
            subject *s = &x->at[i];
            watch w;
            DQ_TRY(run_once(x, s, &w, err));
            dq_progress_set(&x->progress, x->progress.done + 1, NULL);
            const double rate = dq_bench_block_read(&x->block, (w.end - w.begin) / READ_PART);
            const double ops =
                dq_bench_limits_model(x->b, x->o->math.linear, x->m, &x->instruction);
            if (run < 0) continue;
            s->seconds[run] = w.end - w.begin;
            s->read[run] = rate;
            s->peak[run] = ops;
            s->kv_bytes = (w.kv_first + w.kv_last) / 2;
            add_shares(x, s, run);
        }
    }
    return err->code;
}

/* ---- What is told ---- */

/* Shares are medians of the runs' own: a machine that slows down slows a run and its limits alike. */
typedef struct figures {
    dq_bench_timing step; /* seconds */
    double bytes, rate, read;
    double peak;       /* flops per second; NaN: not known */
    double share, ops; /* of the read, of the peak; NaN: not known */
} figures;

static figures figures_of(const generate *x, const subject *s)
{
    figures f = {.step = dq_bench_timing_of(s->seconds, x->o->runs),
                 .read = (double)NAN,
                 .peak = (double)NAN,
                 .share = (double)NAN,
                 .ops = (double)NAN};
    const double steps = (double)x->steps;
    f.step = (dq_bench_timing){f.step.median / steps, f.step.min / steps, f.step.max / steps};
    f.bytes = s->weights.total + s->kv_bytes;
    f.rate = f.bytes / f.step.median;
    if (x->instruction) f.peak = dq_bench_timing_of(s->peak, x->o->runs).median;
    if (x->instruction) f.ops = dq_bench_timing_of(s->ops, x->o->runs).median;
    if (!x->block.p) return f;
    f.read = dq_bench_timing_of(s->read, x->o->runs).median;
    f.share = dq_bench_timing_of(s->share, x->o->runs).median;
    return f;
}

/* Of the process, but for the block. */
static int64_t peak_bytes(const generate *x)
{
    const int64_t now = dq_os_peak_bytes() - (int64_t)(x->block.p ? x->block.bytes : 0);
    return now > x->peak_bytes ? now : x->peak_bytes;
}

static void add_result(const generate *x, const subject *s, dq_bench_report *r, dq_err *err)
{
    const figures f = figures_of(x, s);
    const double rate = s->batch / f.step.median;
    char weights[DQ_BENCH_WEIGHTS];
    const dq_bench_figure all[] = {
        dq_bench_count("context", "context", s->context),
        dq_bench_count("batch", "batch", s->batch),
        dq_bench_text("weights", NULL, dq_bench_weights(weights, x->m)),
        dq_bench_real("bits_per_weight", NULL, 8 * s->weights.total / s->weights.weights, 1, 2),
        dq_bench_real("step_seconds_median", "ms/step", f.step.median, 1e3, 3),
        dq_bench_real("step_seconds_min", NULL, f.step.min, 1e3, 3),
        dq_bench_real("step_seconds_max", NULL, f.step.max, 1e3, 3),
        dq_bench_real("tokens_per_second", "tokens/s", rate, 1, 1),
        dq_bench_real("tokens_per_second_min", "least", s->batch / f.step.max, 1, 1),
        dq_bench_real("tokens_per_second_max", "most", s->batch / f.step.min, 1, 1),
        dq_bench_real(NULL, "weights, MiB", s->weights.total, 1.0 / 1048576, 2),
        dq_bench_real("kv_bytes", "KV, MiB", s->kv_bytes, 1.0 / 1048576, 2),
        dq_bench_real("bytes_per_second", "GB/s", f.rate, 1e-9, 1),
        dq_bench_real("read_bytes_per_second", NULL, f.read, 1e-9, 1),
        dq_bench_real("share_of_read", x->block.p ? "share of read" : NULL, f.share, 1, 2),
        dq_bench_real("flops_per_second", NULL, step_flops(x, s) / f.step.median, 1, 0),
        dq_bench_real("peak_flops_per_second", NULL, f.peak, 1, 0),
        dq_bench_real("share_of_peak", x->instruction ? "share of peak" : NULL, f.ops, 1, 2),
        dq_bench_count("peak_bytes", NULL, peak_bytes(x))};
    json_object_set_new(
        dq_bench_report_add(r, "generate", all, (int)(sizeof all / sizeof *all), err),
        "weight_bytes", dq_bench_bytes_json(&s->weights));
}

static void print_heading(const generate *x)
{
    char weights[DQ_BENCH_WEIGHTS], peak[DQ_BENCH_PEAK];
    printf("%s: decoding with %s in %s on %s, %lld tokens a run, medians of %lld run%s\n"
           "GB/s: stored bytes of the weights and KV that a step reads, over its time",
           x->m->name, dq_bench_weights(weights, x->m), x->o->math_word.text, x->b->device,
           (long long)x->steps, (long long)x->o->runs, x->o->runs == 1 ? "" : "s");
    if (x->block.p)
        printf("; a plain read of %zu MiB reaches %.1f", x->block.bytes >> 20,
               figures_of(x, &x->at[0]).read * 1e-9);
    if (x->instruction)
        printf("\nshare of peak: multiply-adds with weights, over %s on registers alone",
               dq_bench_peak(peak, x->o->math.linear, x->instruction));
    printf("\n\n");
}

static dq_status report(const generate *x, dq_err *err)
{
    dq_bench_report r;
    DQ_TRY(dq_bench_report_begin(&r, x->o, err));
    dq_bench_report_runs(&r);
    dq_bench_peak_json(r.settings, x->o->math.linear, x->instruction);
    json_object_set_new(r.settings, "kv_bits", json_integer(x->o->kv.k_bits));
    json_object_set_new(r.settings, "read_bytes",
                        x->block.p ? json_integer((json_int_t)x->block.bytes) : json_null());
    json_object_set_new(r.settings, "generate", json_integer((json_int_t)x->steps));
    for (int i = 0; i < x->n; i++) add_result(x, &x->at[i], &r, err);
    if (!x->o->json) print_heading(x);
    dq_bench_report_print(&r, err);
    dq_bench_report_end(&r);
    return err->code;
}

/* ---- From options to subjects ---- */

static dq_status check_lengths(const generate *x, dq_err *err)
{
    const int most = x->m->max_positions;
    for (int i = 0; i < x->contexts.n; i++) {
        if (most > 0 && x->contexts.at[i] + x->steps > most)
            return dq_fail(err, DQ_MISMATCH,
                           "%s: has %d positions. Lower --context or --new-tokens", x->m->path,
                           most);
    }
    return DQ_OK;
}

static dq_status prepare(generate *x, dq_err *err)
{
    const size_t runs = (size_t)x->o->runs;
    const int n = x->contexts.n * x->batches.n;
    int context = 0, batch = 0;
    double weights = 0;
    x->at = dq_block_new((size_t)n, sizeof *x->at, err);
    for (int i = 0; x->at && i < n; i++) {
        subject *s = &x->at[x->n++];
        s->context = x->contexts.at[i / x->batches.n];
        s->batch = x->batches.at[i % x->batches.n];
        s->weights = dq_bench_bytes_of(x->m, s->batch);
        s->seconds = dq_block_new(runs, sizeof *s->seconds, err);
        s->read = dq_block_new(runs, sizeof *s->read, err);
        s->share = dq_block_new(runs, sizeof *s->share, err);
        s->peak = dq_block_new(runs, sizeof *s->peak, err);
        s->ops = dq_block_new(runs, sizeof *s->ops, err);
        context = s->context > context ? s->context : context;
        batch = s->batch > batch ? s->batch : batch;
        weights = fmax(weights, s->weights.total);
    }
    if (err->code != DQ_OK) return err->code;
    x->ids = dq_block_new((size_t)batch * (size_t)context, sizeof *x->ids, err);
    x->peak_bytes = dq_os_peak_bytes();
    if (!x->ids) return err->code;
    dq_bench_block_new(&x->block, x->b, weights);
    if (x->block.bytes && !x->block.p)
        dq_logger_warn(&x->o->logger,
                       "out of memory (%zu bytes for a plain read): the share of read is missing",
                       x->block.bytes);
    return err->code;
}

static void run(generate *x, dq_err *err)
{
    x->m = x->o->model;
    x->b = x->o->backend;
    if (dq_bench_open_runner(x->o, err) == DQ_OK && check_lengths(x, err) == DQ_OK &&
        prepare(x, err) == DQ_OK) {
        dq_progress_begin(&x->progress, &x->o->logger, "timed",
                          (double)x->n * (double)(x->o->runs + 1));
        dq_progress_set(&x->progress, 0, NULL);
        run_all(x, err);
        dq_progress_end(&x->progress);
    }
    if (err->code == DQ_OK) report(x, err);
    for (int i = 0; i < x->n; i++) {
        double *const all[] = {x->at[i].seconds, x->at[i].read, x->at[i].share, x->at[i].peak,
                               x->at[i].ops};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) dq_block_free(all[k]);
    }
    dq_bench_block_free(&x->block);
    dq_block_free(x->ids);
    dq_block_free(x->at);
}

static const dq_usage usage = {
    .name = "bench generate",
    .synopsis = "MODEL [options]",
    .about =
        "Times the whole model decoding tokens one by one, as dq eval does. Shares compare the "
        "stored bytes of the weights, scales and KV that a step reads, over its time, with a "
        "plain read of memory (a block of 128 MiB to 1 GiB, for a quarter of the time), and "
        "its multiply-adds with the peak, in turns. One thread is timed by processor time, "
        "which other work on the machine disturbs less.",
    .examples = "  dq bench generate model4.h5 --new-tokens 64 --batch 1,4 --math int8\n",
    .min_args = 1,
    .max_args = 1,
    .args = "one MODEL"};

dq_status dq_cmd_bench_generate(int argc, char **argv, dq_err *err)
{
    dq_bench o = dq_bench_defaults;
    generate x = {.o = &o, .steps = 64};
    const char *contexts = "128", *batches = "1";
    const dq_opt opts[] = {
        dq_opt_int("new-tokens", "N", &x.steps, 1, 100000,
                   "tokens that every sequence decodes (default 64)"),
        dq_opt_text("context", "T[,T...]", &contexts, "tokens of the prompts (default 128)"),
        dq_opt_text("batch", "B[,B...]", &batches,
                    "sequences that are decoded together, 1 to 8 (default 1)"),
        DQ_BENCH_MATH(o),
        DQ_BENCH_RUNS(o),
        DQ_BENCH_RUN(o),
        {0}};
    dq_args args;
    DQ_TRY(dq_help_parse(&args, argc, argv, opts, &usage, err));
    if (args.help) return DQ_OK;
    DQ_TRY(dq_bench_list_read(&x.contexts, contexts, "context", 1 << 24, err));
    DQ_TRY(dq_bench_list_read(&x.batches, batches, "batch", BATCH_MAX, err));
    if (dq_bench_open(&o, usage.name, args.item[0], err) == DQ_OK) run(&x, err);
    dq_bench_close(&o);
    return err->code;
}
