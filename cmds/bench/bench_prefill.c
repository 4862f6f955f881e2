/* bench_prefill: see bench_prefill.h. Run -1 warms up. The dense product is timed once, before all lengths; the ceiling
 * after every run, and compared with as the median of these.
 * SPDX-License-Identifier: MIT */
#include "cmds/bench/bench_prefill.h"

#include "base/os.h"
#include "cmds/bench/bench_bytes.h"
#include "cmds/bench/bench_clocked.h"
#include "cmds/bench/bench_limits.h"
#include "cmds/bench/bench_rates.h"
#include "cmds/cli/document.h"
#include "cmds/cli/progress.h"
#include "cmds/cli/table.h"

#include <math.h>
#include <stdio.h>

typedef struct prefill {
    const dq_bench_prefill_options *o;
    dq_logger *logger;
    dq_runner *r;
    const dq_model *m;
    dq_backend *b;
    const char *instruction; /* of the ceiling; NULL: not known */
    double product_flops;    /* multiply-adds count as two, per second */
    bool clocked;            /* the parts of a pass are known */
    dq_progress progress;    /* in rows; told between runs */
    double *ops;             /* [runs] */
    struct {
        double *seconds, *times, *attention, *products; /* [runs] */
    } of[DQ_BENCH_LOGITS];
} prefill;

/* One length with one rounding of logits; flops per second. */
typedef struct outcome {
    int n;
    dq_logit_spec logit;
    dq_bench_timing seconds, times; /* times: against the first, unrounded ones, run by run */
    double attention, products;     /* shares of a pass, medians; NaN: not known */
    double flops, ceiling;          /* NaN: not known */
    int64_t peak_bytes;             /* of the process, up to here */
} outcome;

/* One run of all roundings in turns; run -1 warms up. */
static dq_status run_all(prefill *x, const dq_bench_prompt *prompt, int64_t run, dq_err *err)
{
    double first = 0;
    for (int i = 0; i < x->o->n_logits; i++) {
        double s;
        dq_bench_clocked_take();
        DQ_TRY(dq_bench_prompt_run(&s, x->r, prompt, x->o->logit[i], x->o->math, err));
        const dq_bench_clocked parts = dq_bench_clocked_take();
        if (i == 0) first = s;
        if (run < 0) continue;
        x->of[i].seconds[run] = s;
        x->of[i].times[run] = s / first;
        x->of[i].attention[run] = x->clocked ? parts.attention / s : (double)NAN;
        x->of[i].products[run] = x->clocked ? parts.products / s : (double)NAN;
    }
    const double rate = dq_bench_limits_model(x->b, x->o->math.linear, x->m, &x->instruction);
    if (run >= 0) x->ops[run] = rate;
    return err->code;
}

/* Outcomes out[n_logits] of one length. */
static dq_status measure(prefill *x, outcome *out, int length, dq_err *err)
{
    const int64_t runs = x->o->runs;
    dq_bench_prompt prompt = {0};
    dq_bench_prompt_new(&prompt, x->m, length, err);
    for (int64_t i = -1; err->code == DQ_OK && i < runs; i++) {
        run_all(x, &prompt, i, err);
        dq_progress_set(&x->progress, x->progress.done + length, NULL);
    }
    for (int i = 0; err->code == DQ_OK && i < x->o->n_logits; i++) {
        const dq_bench_timing s = dq_bench_timing_of(x->of[i].seconds, runs);
        out[i] = (outcome){.n = length,
                           .logit = x->o->logit[i],
                           .seconds = s,
                           .times = dq_bench_timing_of(x->of[i].times, runs),
                           .attention = dq_bench_timing_of(x->of[i].attention, runs).median,
                           .products = dq_bench_timing_of(x->of[i].products, runs).median,
                           .flops = dq_bench_prefill_flops(x->m, length) / s.median,
                           .peak_bytes = dq_os_peak_bytes(),
                           .ceiling = x->instruction ? dq_bench_timing_of(x->ops, runs).median
                                                     : (double)NAN};
    }
    dq_bench_prompt_free(&prompt);
    return err->code;
}

static json_t *result_json(const prefill *x, const outcome *t)
{
    char weights[DQ_BENCH_WEIGHTS];
    json_t *r = json_object();
    json_object_set_new(r, "model", dq_document_name(x->m->name));
    json_object_set_new(r, "what", json_string("prefill"));
    json_object_set_new(r, "tokens", json_integer(t->n));
    json_object_set_new(r, "weights", json_string(dq_bench_weights(weights, x->m)));
    dq_bench_logit_json(r, t->logit);
    json_object_set_new(r, "seconds_median", dq_document_real(t->seconds.median));
    json_object_set_new(r, "seconds_min", dq_document_real(t->seconds.min));
    json_object_set_new(r, "seconds_max", dq_document_real(t->seconds.max));
    json_object_set_new(r, "tokens_per_second", dq_document_real(t->n / t->seconds.median));
    json_object_set_new(r, "flops_per_second", dq_document_real(t->flops));
    json_object_set_new(r, "matmul_flops_per_second", dq_document_real(x->product_flops));
    json_object_set_new(r, "share_of_matmul", dq_document_real(t->flops / x->product_flops));
    json_object_set_new(r, "ceiling_flops_per_second", dq_document_real(t->ceiling));
    json_object_set_new(r, "share_of_ceiling", dq_document_real(t->flops / t->ceiling));
    json_object_set_new(r, "share_of_attention", dq_document_real(t->attention));
    json_object_set_new(r, "share_of_products", dq_document_real(t->products));
    json_object_set_new(r, "times_first_median", dq_document_real(t->times.median));
    json_object_set_new(r, "times_first_min", dq_document_real(t->times.min));
    json_object_set_new(r, "times_first_max", dq_document_real(t->times.max));
    json_object_set_new(r, "peak_bytes", json_integer((json_int_t)t->peak_bytes));
    return r;
}

static void put_row(const prefill *x, const outcome *t, dq_table *table)
{
    char logits[DQ_BENCH_LOGIT_NAME];
    dq_table_cell(table, "%d", t->n);
    if (x->o->n_logits > 1) {
        dq_table_cell(table, "%s", dq_bench_logit_name(logits, t->logit));
        dq_table_cell(table, "%.3f", t->times.median);
    }
    dq_table_cell(table, "%.3f", t->seconds.median);
    dq_table_cell(table, "%.3f", t->seconds.min);
    dq_table_cell(table, "%.0f", t->n / t->seconds.median);
    dq_table_cell(table, "%.1f", t->flops * 1e-9);
    dq_table_cell(table, "%.2f", t->flops / x->product_flops);
    if (x->instruction) dq_table_cell(table, "%.2f", t->flops / t->ceiling);
    if (x->clocked) {
        dq_table_cell(table, "%.3f", t->products);
        dq_table_cell(table, "%.3f", t->attention);
        dq_table_cell(table, "%.3f", 1 - t->products - t->attention);
    }
    dq_table_cell(table, "%.0f", (double)t->peak_bytes / 1048576);
}

static json_t *document_of(const prefill *x)
{
    json_t *doc = dq_bench_document(x->logger, x->m, x->b), *s = json_object_get(doc, "settings");
    json_object_set_new(s, "runs", json_integer((json_int_t)x->o->runs));
    json_object_set_new(s, "math", json_string(x->o->math_word));
    dq_bench_ceiling_json(s, x->o->math.linear, x->instruction);
    return doc;
}

static dq_status print_table(const prefill *x, const outcome *all, dq_err *err)
{
    const struct {
        const char *title;
        bool shown;
    } all_titles[] = {{"tokens", true},
                      {"logits", x->o->n_logits > 1},
                      {"times", x->o->n_logits > 1},
                      {"median s", true},
                      {"min s", true},
                      {"tokens/s", true},
                      {"GFLOP/s", true},
                      {"share of matmul", true},
                      {"share of ceiling", x->instruction != NULL},
                      {"products", x->clocked},
                      {"attention", x->clocked},
                      {"rest", x->clocked},
                      {"peak MiB", true}};
    enum { TITLES = sizeof all_titles / sizeof *all_titles };
    const char *titles[TITLES];
    char ceiling[DQ_BENCH_CEILING];
    int n = 0;
    dq_table *table = NULL;
    for (int i = 0; i < TITLES; i++) {
        if (all_titles[i].shown) titles[n++] = all_titles[i].title;
    }
    DQ_TRY(dq_table_new(&table, titles, n, err));
    for (int i = 0; i < x->o->n_lengths * x->o->n_logits; i++) put_row(x, &all[i], table);
    printf("%s: prefill in %s on %s; one dense product %dx%lldx%lld reaches %.1f GFLOP/s\n",
           x->m->name, x->o->math_word, x->b->device, DQ_BENCH_PRODUCT_ROWS,
           (long long)x->m->layer[0].gate.rows, (long long)x->m->layer[0].gate.cols,
           x->product_flops * 1e-9);
    if (x->instruction)
        printf("ceiling: %s on registers alone, %.1f GFLOP/s\n",
               dq_bench_ceiling(ceiling, x->o->math.linear, x->instruction), all[0].ceiling * 1e-9);
    if (x->clocked) printf("products, attention, rest: shares of a pass\n");
    if (x->o->n_logits > 1) printf("times: against the pass with unrounded logits, run by run\n");
    putchar('\n');
    dq_table_print(table, err);
    dq_table_free(table);
    return err->code;
}

static dq_status run_lengths(prefill *x, outcome *all, dq_err *err)
{
    DQ_TRY(dq_bench_product_rate(&x->product_flops, x->b, x->m, x->o->math.linear, err));
    x->clocked = dq_bench_clocked_begin(x->b);
    double rows = 0;
    for (int i = 0; i < x->o->n_lengths; i++) rows += x->o->length[i];
    dq_progress_begin(&x->progress, x->logger, "timed", rows * (double)(x->o->runs + 1));
    dq_progress_set(&x->progress, 0, NULL);
    for (int i = 0; i < x->o->n_lengths && err->code == DQ_OK; i++)
        measure(x, all + i * x->o->n_logits, x->o->length[i], err);
    dq_progress_end(&x->progress);
    dq_bench_clocked_end(x->b);
    if (err->code != DQ_OK) return err->code;
    if (!x->o->json) return print_table(x, all, err);
    json_t *doc = document_of(x);
    for (int i = 0; i < x->o->n_lengths * x->o->n_logits; i++)
        json_array_append_new(json_object_get(doc, "results"), result_json(x, &all[i]));
    return dq_document_print(doc, err);
}

dq_status dq_bench_prefill(dq_logger *logger, dq_runner *r, const dq_bench_prefill_options *o,
                           dq_err *err)
{
    prefill x = {
        .o = o, .logger = logger, .r = r, .m = dq_runner_model(r), .b = dq_runner_backend(r)};
    const size_t runs = (size_t)o->runs, n = (size_t)o->n_logits;
    outcome *all = dq_block_new((size_t)o->n_lengths * n, sizeof *all, err);
    double *times = all ? dq_block_new((4 * n + 1) * runs, sizeof *times, err) : NULL;
    if (times) {
        x.ops = times + 4 * n * runs;
        for (size_t i = 0; i < n; i++) {
            double *at = times + 4 * i * runs;
            x.of[i].seconds = at;
            x.of[i].times = at + runs;
            x.of[i].attention = at + 2 * runs;
            x.of[i].products = at + 3 * runs;
        }
        run_lengths(&x, all, err);
    }
    dq_block_free(times);
    dq_block_free(all);
    return err->code;
}
