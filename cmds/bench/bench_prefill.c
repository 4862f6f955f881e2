/* bench_prefill: dq bench prefill: one prompt of each length through the whole model, beside one dense product and the peak of
 * the processor. Run -1 warms up. The roundings of logits take turns. The dense product is timed once, before all lengths;
 * the peak after every run, so that both see the same machine, and compared with as the median of these.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "cmds/bench/bench_bytes.h"
#include "cmds/bench/bench_clocked.h"
#include "cmds/bench/bench_limits.h"
#include "cmds/bench/bench_rates.h"
#include "cmds/bench/bench_report.h"
#include "cmds/bench/bench_run.h"
#include "cmds/cli/progress.h"
#include "cmds/command.h"
#include "cmds/cli/help.h"

#include <math.h>
#include <stdio.h>

typedef struct prefill {
    dq_bench *o;
    dq_bench_list length;
    const char *instruction; /* of the peak; NULL: not known */
    double product_flops;    /* multiply-adds count as two, per second */
    bool clocked;            /* the parts of a pass are known */
    dq_progress progress;    /* in rows; told between runs */
    double peak;             /* flops per second, of the last length; NaN: not known */
    double *ops;             /* [runs] */
    struct {
        double *seconds, *times, *attention, *products; /* [runs] */
    } of[DQ_BENCH_LOGITS];
} prefill;

/* One run of all roundings in turns; run -1 warms up. */
static dq_status run_all(prefill *x, const dq_bench_prompt *prompt, int64_t run, dq_err *err)
{
    double first = 0;
    for (int i = 0; i < x->o->n_logits; i++) {
        double s;
        dq_bench_clocked_take();
        DQ_TRY(dq_bench_prompt_run(&s, x->o->runner, prompt, x->o->logit[i], x->o->math, err));
        const dq_bench_clocked parts = dq_bench_clocked_take();
        if (i == 0) first = s;
        if (run < 0) continue;
        x->of[i].seconds[run] = s;
        x->of[i].times[run] = s / first;
        x->of[i].attention[run] = x->clocked ? parts.attention / s : (double)NAN;
        x->of[i].products[run] = x->clocked ? parts.products / s : (double)NAN;
    }
    const double rate =
        dq_bench_limits_model(x->o->backend, x->o->math.linear, x->o->model, &x->instruction);
    if (run >= 0) x->ops[run] = rate;
    return err->code;
}

static void add_result(prefill *x, dq_bench_report *r, int n, int i, dq_err *err)
{
    const int64_t runs = x->o->runs;
    const dq_logit_spec logit = x->o->logit[i];
    const dq_bench_timing s = dq_bench_timing_of(x->of[i].seconds, runs);
    const dq_bench_timing times = dq_bench_timing_of(x->of[i].times, runs);
    const double attention = dq_bench_timing_of(x->of[i].attention, runs).median;
    const double products = dq_bench_timing_of(x->of[i].products, runs).median;
    const double flops = dq_bench_prefill_flops(x->o->model, n) / s.median;
    const bool several = x->o->n_logits > 1, clocked = x->clocked;
    char weights[DQ_BENCH_WEIGHTS], logits[DQ_BENCH_LOGIT_NAME];
    const dq_bench_figure f[] = {
        dq_bench_count("tokens", "tokens", n),
        dq_bench_text("weights", NULL, dq_bench_weights(weights, x->o->model)),
        dq_bench_text(NULL, several ? "logits" : NULL, dq_bench_logit_name(logits, logit)),
        dq_bench_real("times_first_median", several ? "times" : NULL, times.median, 1, 3),
        dq_bench_real("times_first_min", NULL, times.min, 1, 3),
        dq_bench_real("times_first_max", NULL, times.max, 1, 3),
        dq_bench_real("seconds_median", "median s", s.median, 1, 3),
        dq_bench_real("seconds_min", "min s", s.min, 1, 3),
        dq_bench_real("seconds_max", NULL, s.max, 1, 3),
        dq_bench_real("tokens_per_second", "tokens/s", n / s.median, 1, 0),
        dq_bench_real("flops_per_second", "GFLOP/s", flops, 1e-9, 1),
        dq_bench_real("matmul_flops_per_second", NULL, x->product_flops, 1, 0),
        dq_bench_real("share_of_matmul", "share of matmul", flops / x->product_flops, 1, 2),
        dq_bench_real("peak_flops_per_second", NULL, x->peak, 1, 0),
        dq_bench_real("share_of_peak", x->instruction ? "share of peak" : NULL, flops / x->peak, 1,
                      2),
        dq_bench_real("share_of_products", clocked ? "products" : NULL, products, 1, 3),
        dq_bench_real("share_of_attention", clocked ? "attention" : NULL, attention, 1, 3),
        dq_bench_real(NULL, clocked ? "rest" : NULL, 1 - products - attention, 1, 3),
        dq_bench_real(NULL, "memory, MiB", (double)dq_os_peak_bytes(), 1.0 / 1048576, 0)};
    json_t *result = dq_bench_report_add(r, "prefill", f, (int)(sizeof f / sizeof *f), err);
    dq_bench_report_logit(result, logit);
    json_object_set_new(result, "peak_bytes", json_integer((json_int_t)dq_os_peak_bytes()));
}

static dq_status measure(prefill *x, dq_bench_report *r, int length, dq_err *err)
{
    dq_bench_prompt prompt = {0};
    dq_bench_prompt_new(&prompt, x->o->model, length, err);
    for (int64_t i = -1; err->code == DQ_OK && i < x->o->runs; i++) {
        run_all(x, &prompt, i, err);
        dq_progress_set(&x->progress, x->progress.done + length, NULL);
    }
    if (err->code == DQ_OK)
        x->peak = x->instruction ? dq_bench_timing_of(x->ops, x->o->runs).median : (double)NAN;
    for (int i = 0; err->code == DQ_OK && i < x->o->n_logits; i++) add_result(x, r, length, i, err);
    dq_bench_prompt_free(&prompt);
    return err->code;
}

static void print_heading(const prefill *x)
{
    const dq_weight *gate = &x->o->model->layer[0].gate;
    char peak[DQ_BENCH_PEAK];
    printf("%s: prefill in %s on %s; one dense product %dx%lldx%lld reaches %.1f GFLOP/s\n",
           x->o->model->name, x->o->math_word.text, x->o->backend->device, DQ_BENCH_PRODUCT_ROWS,
           (long long)gate->rows, (long long)gate->cols, x->product_flops * 1e-9);
    if (x->instruction)
        printf("peak: %s on registers alone, %.1f GFLOP/s\n",
               dq_bench_peak(peak, x->o->math.linear, x->instruction), x->peak * 1e-9);
    if (x->clocked) printf("products, attention, rest: shares of a pass\n");
    if (x->o->n_logits > 1) printf("times: against the pass with unrounded logits, run by run\n");
    putchar('\n');
}

static dq_status run_lengths(prefill *x, dq_bench_report *r, dq_err *err)
{
    double rows = 0;
    DQ_TRY(dq_bench_product_rate(&x->product_flops, x->o->backend, x->o->model, x->o->math.linear,
                                 err));
    x->clocked = dq_bench_clocked_begin(x->o->backend);
    for (int i = 0; i < x->length.n; i++) rows += x->length.at[i];
    dq_progress_begin(&x->progress, &x->o->logger, "timed", rows * (double)(x->o->runs + 1));
    dq_progress_set(&x->progress, 0, NULL);
    for (int i = 0; i < x->length.n && err->code == DQ_OK; i++) measure(x, r, x->length.at[i], err);
    dq_progress_end(&x->progress);
    dq_bench_clocked_end(x->o->backend);
    dq_bench_report_runs(r);
    dq_bench_peak_json(r->settings, x->o->math.linear, x->instruction);
    if (err->code == DQ_OK && !x->o->json) print_heading(x);
    return err->code == DQ_OK ? dq_bench_report_print(r, err) : err->code;
}

static void warn_positions(prefill *x)
{
    const int most = x->o->model->max_positions;
    for (int i = 0; i < x->length.n; i++) {
        if (most > 0 && x->length.at[i] > most)
            dq_logger_warn(&x->o->logger,
                           "%s: --tokens %d is more than the %d positions that the model has; the "
                           "time is that of as many rows, but no text of this model is as long",
                           x->o->model->name, x->length.at[i], most);
    }
}

static dq_status run(prefill *x, dq_err *err)
{
    const size_t runs = (size_t)x->o->runs, n = (size_t)x->o->n_logits;
    dq_bench_report r;
    DQ_TRY(dq_bench_open_runner(x->o, err));
    warn_positions(x);
    double *times = dq_block_new((4 * n + 1) * runs, sizeof *times, err);
    if (times && dq_bench_report_begin(&r, x->o, err) == DQ_OK) {
        x->ops = times + 4 * n * runs;
        for (size_t i = 0; i < n; i++) {
            double *at = times + 4 * i * runs;
            x->of[i].seconds = at;
            x->of[i].times = at + runs;
            x->of[i].attention = at + 2 * runs;
            x->of[i].products = at + 3 * runs;
        }
        run_lengths(x, &r, err);
        dq_bench_report_end(&r);
    }
    dq_block_free(times);
    return err->code;
}

static const dq_usage usage = {
    .name = "bench prefill",
    .synopsis = "MODEL [options]",
    .about =
        "Times one prompt of each length through the whole model, up to the next token's "
        "log-probabilities. With --logit-bits, passes that round attention logits take turns with "
        "one that does not. Shares compare the rate with that of one dense matrix product of the "
        "same model, and with the peak: multiply-adds of the widest instruction in the arithmetic "
        "of --math, on registers alone, timed after every run. In f32, products with packed "
        "weights are sums of integers and may exceed the peak. One thread is timed by processor "
        "time, which other work on the machine disturbs less.",
    .examples = "  dq bench prefill calib/pair/diffllama --tokens 128,512\n"
                "  dq bench prefill model --tokens 2048 --logit-bits 8,4 --logit-granularity "
                "per-row,per-tile\n",
    .min_args = 1,
    .max_args = 1,
    .args = "one MODEL"};

dq_status dq_cmd_bench_prefill(int argc, char **argv, dq_err *err)
{
    dq_bench o = dq_bench_defaults;
    prefill x = {.o = &o};
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
