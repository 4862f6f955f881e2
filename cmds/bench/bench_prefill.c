/* bench_prefill: see bench_prefill.h. Run -1 warms up. The dense product is timed once, before all lengths; the ceiling
 * behind every run, and compared with as the median of these.
 * SPDX-License-Identifier: MIT */
#include "cmds/bench/bench_prefill.h"

#include "base/os.h"
#include "cmds/bench/bench_bytes.h"
#include "cmds/bench/bench_limits.h"
#include "cmds/bench/bench_rates.h"
#include "cmds/cli/document.h"
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
} prefill;

/* One length; flops per second. */
typedef struct outcome {
    int n;
    dq_bench_timing seconds;
    double flops, ceiling; /* NaN: not known */
    int64_t peak_bytes;    /* of the process, up to here */
} outcome;

static dq_status measure(prefill *x, outcome *out, dq_err *err)
{
    const int64_t runs = x->o->runs;
    dq_bench_prompt prompt = {0};
    double *s = dq_block_new((size_t)runs, sizeof *s, err);
    double *ops = s ? dq_block_new((size_t)runs, sizeof *ops, err) : NULL;
    if (ops) dq_bench_prompt_new(&prompt, x->m, out->n, err);
    for (int64_t i = -1; err->code == DQ_OK && i < runs; i++) {
        double seconds;
        dq_bench_prompt_run(&seconds, x->r, &prompt, x->o->math, err);
        const double rate = dq_bench_limits_ops(x->b, x->o->math.linear, &x->instruction);
        if (i < 0) continue; /* the first run warms up */
        s[i] = seconds;
        ops[i] = rate;
    }
    if (err->code == DQ_OK) {
        out->seconds = dq_bench_timing_of(s, runs);
        out->flops = dq_bench_prefill_flops(x->m, out->n) / out->seconds.median;
        out->peak_bytes = dq_os_peak_bytes();
        out->ceiling = x->instruction ? dq_bench_timing_of(ops, runs).median : (double)NAN;
    }
    dq_bench_prompt_free(&prompt);
    dq_block_free(s);
    dq_block_free(ops);
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
    json_object_set_new(r, "seconds_median", dq_document_real(t->seconds.median));
    json_object_set_new(r, "seconds_min", dq_document_real(t->seconds.min));
    json_object_set_new(r, "seconds_max", dq_document_real(t->seconds.max));
    json_object_set_new(r, "tokens_per_second", dq_document_real(t->n / t->seconds.median));
    json_object_set_new(r, "flops_per_second", dq_document_real(t->flops));
    json_object_set_new(r, "matmul_flops_per_second", dq_document_real(x->product_flops));
    json_object_set_new(r, "share_of_matmul", dq_document_real(t->flops / x->product_flops));
    json_object_set_new(r, "ceiling_flops_per_second", dq_document_real(t->ceiling));
    json_object_set_new(r, "share_of_ceiling", dq_document_real(t->flops / t->ceiling));
    json_object_set_new(r, "peak_bytes", json_integer((json_int_t)t->peak_bytes));
    return r;
}

static void put_row(const prefill *x, const outcome *t, dq_table *table)
{
    dq_table_cell(table, "%d", t->n);
    dq_table_cell(table, "%.3f", t->seconds.median);
    dq_table_cell(table, "%.3f", t->seconds.min);
    dq_table_cell(table, "%.0f", t->n / t->seconds.median);
    dq_table_cell(table, "%.1f", t->flops * 1e-9);
    dq_table_cell(table, "%.2f", t->flops / x->product_flops);
    if (x->instruction) dq_table_cell(table, "%.2f", t->flops / t->ceiling);
    dq_table_cell(table, "%.0f", (double)t->peak_bytes / 1048576);
}

static json_t *document_of(const prefill *x)
{
    json_t *doc = dq_document_new(x->logger, "dq-bench/1"), *s = json_object_get(doc, "settings");
    json_array_append_new(json_object_get(doc, "inputs"), dq_document_name(x->m->path));
    json_object_set_new(s, "device", json_string(x->b->device));
    json_object_set_new(s, "threads", json_integer(x->b->threads));
    json_object_set_new(s, "runs", json_integer((json_int_t)x->o->runs));
    json_object_set_new(s, "clock", json_string(dq_bench_clock(x->b)));
    json_object_set_new(s, "math", json_string(x->o->math_word));
    json_object_set_new(s, "ceiling", x->instruction ? json_string(x->instruction) : json_null());
    return doc;
}

static dq_status print_table(const prefill *x, const outcome *all, dq_err *err)
{
    static const char *const titles[] = {"tokens",           "median s", "min s",
                                         "tokens/s",         "GFLOP/s",  "share of matmul",
                                         "share of ceiling", "peak MiB"};
    static const char *const without[] = {"tokens",  "median s",        "min s",   "tokens/s",
                                          "GFLOP/s", "share of matmul", "peak MiB"};
    dq_table *table = NULL;
    DQ_TRY(dq_table_new(&table, x->instruction ? titles : without, x->instruction ? 8 : 7, err));
    for (int i = 0; i < x->o->n_lengths; i++) put_row(x, &all[i], table);
    printf("%s: prefill in %s on %s; one dense product %dx%lldx%lld reaches %.1f GFLOP/s\n",
           x->m->name, x->o->math_word, x->b->device, DQ_BENCH_PRODUCT_ROWS,
           (long long)x->m->layer[0].gate.rows, (long long)x->m->layer[0].gate.cols,
           x->product_flops * 1e-9);
    if (x->instruction)
        printf("ceiling: %s on registers alone, %.1f GFLOP/s\n", x->instruction,
               all[0].ceiling * 1e-9);
    putchar('\n');
    dq_table_print(table, err);
    dq_table_free(table);
    return err->code;
}

static dq_status run_lengths(prefill *x, outcome *all, dq_err *err)
{
    DQ_TRY(dq_bench_product_rate(&x->product_flops, x->b, x->m, x->o->math.linear, err));
    for (int i = 0; i < x->o->n_lengths; i++) {
        all[i].n = x->o->length[i];
        DQ_TRY(measure(x, &all[i], err));
    }
    if (!x->o->json) return print_table(x, all, err);
    json_t *doc = document_of(x);
    for (int i = 0; i < x->o->n_lengths; i++)
        json_array_append_new(json_object_get(doc, "results"), result_json(x, &all[i]));
    return dq_document_print(doc, err);
}

dq_status dq_bench_prefill(dq_logger *logger, dq_runner *r, const dq_bench_prefill_options *o,
                           dq_err *err)
{
    prefill x = {
        .o = o, .logger = logger, .r = r, .m = dq_runner_model(r), .b = dq_runner_backend(r)};
    outcome *all = dq_block_new((size_t)o->n_lengths, sizeof *all, err);
    if (all) run_lengths(&x, all, err);
    dq_block_free(all);
    return err->code;
}
