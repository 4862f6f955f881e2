/* cmd_bench: prefill speed of a model on this machine, with the rate of its matrix product beside it, or
 * decoding speed (bench_decode.h), or that of scoring short items (bench_items.h).
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "cmds/bench/bench_decode.h"
#include "cmds/bench/bench_items.h"
#include "cmds/bench/bench_rates.h"
#include "cmds/cli/document.h"
#include "cmds/cli/kv_options.h"
#include "cmds/cli/kv_report.h"
#include "cmds/cli/logger.h"
#include "cmds/cli/options.h"
#include "cmds/cli/table.h"
#include "cmds/command.h"

#include <stdio.h>

enum { MAX_LENGTHS = 16 };

typedef struct bench {
    const char *lengths_text, *contexts_text, *device, *items, *task, *math_word;
    int64_t threads, runs, decode, limit;
    bool json;
    int length[MAX_LENGTHS], n_lengths, context[MAX_LENGTHS], n_contexts;
    dq_math math;
    dq_kv_spec kv;
    dq_logger logger;
    dq_model *model;
    dq_backend *backend;
    dq_runner *runner;
    double product_flops; /* multiply-adds count as two, per second */
} bench;

static dq_status measure(bench *x, int n, dq_bench_timing *t, dq_err *err)
{
    dq_bench_prompt prompt = {0};
    double *s = dq_block_new((size_t)x->runs, sizeof *s, err);
    if (s) dq_bench_prompt_new(&prompt, x->model, n, err);
    for (int64_t i = -1; err->code == DQ_OK && i < x->runs; i++) {
        double seconds;
        dq_bench_prompt_run(&seconds, x->runner, &prompt, x->math, err);
        if (i >= 0) s[i] = seconds; /* the first run warms up */
    }
    if (err->code == DQ_OK) *t = dq_bench_timing_of(s, x->runs);
    dq_bench_prompt_free(&prompt);
    dq_block_free(s);
    return err->code;
}

static json_t *result_json(const bench *x, int n, const dq_bench_timing *t)
{
    double flops = dq_bench_prefill_flops(x->model, n) / t->median;
    json_t *r = json_object();
    json_object_set_new(r, "model", dq_document_name(x->model->name));
    json_object_set_new(r, "what", json_string("prefill"));
    json_object_set_new(r, "tokens", json_integer(n));
    json_object_set_new(r, "seconds_median", dq_document_real(t->median));
    json_object_set_new(r, "seconds_min", dq_document_real(t->min));
    json_object_set_new(r, "seconds_max", dq_document_real(t->max));
    json_object_set_new(r, "tokens_per_second", dq_document_real(n / t->median));
    json_object_set_new(r, "flops_per_second", dq_document_real(flops));
    json_object_set_new(r, "matmul_flops_per_second", dq_document_real(x->product_flops));
    json_object_set_new(r, "share_of_matmul", dq_document_real(flops / x->product_flops));
    json_object_set_new(r, "peak_bytes", json_integer((json_int_t)dq_os_peak_bytes()));
    return r;
}

static dq_status run_lengths(bench *x, dq_err *err)
{
    static const char *const titles[] = {"tokens",  "median s",        "min s",   "tokens/s",
                                         "GFLOP/s", "share of matmul", "peak MiB"};
    dq_table *table = NULL;
    json_t *doc = dq_document_new(&x->logger, "dq-bench/1");
    DQ_TRY(dq_table_new(&table, titles, 7, err));
    json_array_append_new(json_object_get(doc, "inputs"), dq_document_name(x->model->path));
    json_object_set_new(json_object_get(doc, "settings"), "device",
                        json_string(x->backend->device));
    json_object_set_new(json_object_get(doc, "settings"), "threads",
                        json_integer(x->backend->threads));
    json_object_set_new(json_object_get(doc, "settings"), "runs", json_integer(x->runs));
    json_object_set_new(json_object_get(doc, "settings"), "clock",
                        json_string(dq_bench_clock(x->backend)));
    json_object_set_new(json_object_get(doc, "settings"), "math", json_string(x->math_word));
    for (int i = 0; i < x->n_lengths && err->code == DQ_OK; i++) {
        dq_bench_timing t = {0};
        double n = x->length[i];
        if (measure(x, x->length[i], &t, err) != DQ_OK) break;
        double flops = dq_bench_prefill_flops(x->model, n) / t.median;
        dq_table_cell(table, "%d", x->length[i]);
        dq_table_cell(table, "%.3f", t.median);
        dq_table_cell(table, "%.3f", t.min);
        dq_table_cell(table, "%.0f", n / t.median);
        dq_table_cell(table, "%.1f", flops * 1e-9);
        dq_table_cell(table, "%.2f", flops / x->product_flops);
        dq_table_cell(table, "%.0f", (double)dq_os_peak_bytes() / 1048576);
        json_array_append_new(json_object_get(doc, "results"), result_json(x, x->length[i], &t));
    }
    if (err->code == DQ_OK && x->json) {
        dq_document_print(json_incref(doc), err);
    } else if (err->code == DQ_OK) {
        printf("%s: prefill in %s on %s; one dense product %dx%lldx%lld reaches %.1f GFLOP/s\n\n",
               x->model->name, x->math_word, x->backend->device, DQ_BENCH_PRODUCT_ROWS,
               (long long)x->model->layer[0].gate.rows, (long long)x->model->layer[0].gate.cols,
               x->product_flops * 1e-9);
        dq_table_print(table, err);
    }
    json_decref(doc);
    dq_table_free(table);
    return err->code;
}

/* What of the command line belongs together. */
static dq_status understand(bench *x, dq_err *err)
{
    const bool alone = !x->items && !x->decode;
    if (x->items && x->decode)
        return dq_fail(err, DQ_USAGE, "--items and --decode measure different things. Give one.");
    if (x->contexts_text && !x->decode)
        return dq_fail(err, DQ_USAGE, "--context has nothing to act on. Add --decode N.");
    if ((x->task || x->limit) && !x->items)
        return dq_fail(err, DQ_USAGE, "--%s has nothing to act on. Add --items FILE.",
                       x->task ? "task" : "limit");
    if (x->lengths_text && !alone)
        return dq_fail(err, DQ_USAGE, "--tokens has nothing to act on with --%s. Leave it out.",
                       x->items ? "items" : "decode");
    if (x->math_word && x->decode)
        return dq_fail(err, DQ_USAGE,
                       "--math has nothing to act on with --decode, which takes several in turn. "
                       "Leave it out.");
    if (!x->math_word) x->math_word = "f32";
    DQ_TRY(dq_bench_math(&x->math, x->math_word, err));
    DQ_TRY(dq_options_ints(x->length, &x->n_lengths, MAX_LENGTHS,
                           x->lengths_text ? x->lengths_text : "128,512", "tokens", 1, 1 << 20,
                           err));
    return dq_options_ints(x->context, &x->n_contexts, MAX_LENGTHS,
                           x->contexts_text ? x->contexts_text : "1024", "context", 1, 1 << 24,
                           err);
}

/* A runner whose cache fits the arithmetic: int8 reads keys and values as codes. */
static dq_status open_runner(bench *x, dq_err *err)
{
    dq_kv_config kv = dq_kv_config_plain;
    if (x->math.kv == DQ_NUM_INT8) kv.k_bits = kv.v_bits = 8;
    DQ_TRY(dq_kv_options_spec(&x->kv, &kv, x->model, x->math.kv, err));
    DQ_TRY(dq_backend_can(x->backend, x->model, x->math, &x->kv, err));
    dq_kv_report_note_routes(&x->logger, x->backend, x->model, x->math, &x->kv);
    return dq_runner_new(&x->runner, x->model, x->backend, &x->kv, err);
}

static dq_status measure_all(bench *x, dq_err *err)
{
    if (x->decode)
        return dq_bench_decode(&x->logger, x->model, x->backend, x->decode, x->context,
                               x->n_contexts, x->json, err);
    DQ_TRY(open_runner(x, err));
    if (x->items) {
        const dq_bench_items_options o = {.path = x->items,
                                          .task = x->task ? x->task : "mc",
                                          .limit = x->limit,
                                          .runs = x->runs,
                                          .math_word = x->math_word,
                                          .math = x->math,
                                          .kv = &x->kv,
                                          .json = x->json};
        return dq_bench_items(&x->logger, x->runner, &o, err);
    }
    DQ_TRY(dq_bench_product_rate(&x->product_flops, x->backend, x->model, x->math.linear, err));
    return run_lengths(x, err);
}

dq_status dq_cmd_bench(int argc, char **argv, dq_err *err)
{
    bench x = {.device = "auto", .runs = 5};
    const dq_opt opts[] = {
        dq_opt_text("tokens", "N[,N...]", &x.lengths_text, "prompt lengths (default 128,512)"),
        dq_opt_int("runs", "N", &x.runs, 1, 1000, "timed runs after one that warms up (default 5)"),
        dq_opt_int(
            "decode", "N", &x.decode, 1, 100000,
            "instead: times N tokens one by one, for several widths of the KV cache in turn"),
        dq_opt_text("context", "T[,T...]", &x.contexts_text,
                    "tokens in front of those of --decode, invented (default 1024)"),
        dq_opt_text("items", "FILE", &x.items,
                    "instead: times scoring the short items of FILE in the groups of dq eval"),
        dq_opt_text("task", "NAME", &x.task, "form of --items, as for dq eval (default mc)"),
        dq_opt_int("limit", "N", &x.limit, 1, 1e9, "the first N items of --items only"),
        dq_opt_text("math", "KIND", &x.math_word,
                    "f32, bf16 or int8 (default f32), for prefill and --items; int8 takes packed "
                    "containers and keeps keys and values at 8 bits"),
        DQ_OPT_DEVICE(&x.device),
        dq_opt_int("threads", "N", &x.threads, 0, 1024, "CPU threads (default 0: all processors)"),
        dq_opt_flag("json", &x.json, "one JSON document"),
        DQ_LOGGER_OPTIONS(x.logger),
        {0}};
    const dq_usage usage = {
        .name = "bench",
        .synopsis = "MODEL [options]",
        .about =
            "Times prefill: one prompt of each length through the whole model, up to the "
            "next token's log-probabilities. The share compares its rate with that of one dense "
            "matrix product of the same model on the same machine, measured in the same run. "
            "With --decode: attention of single tokens behind a context, with nothing in the "
            "processor's caches; shares are of what a plain read of memory reaches in between. One "
            "thread is "
            "timed by processor time, which other work on the machine disturbs less. With --items: "
            "scoring, tokenizing apart; after every group of items comes one long prefill and one "
            "dense product, so that the shares compare times of one machine.",
        .examples = "  dq bench calib/pair/diffllama --tokens 128,512\n"
                    "  dq bench model --decode 20 --context 2048,16384\n"
                    "  dq bench model --items hellaswag_val.jsonl --task hellaswag --limit 1000\n",
        .min_args = 1,
        .max_args = 1,
        .args = "one MODEL"};
    dq_args args;

    DQ_TRY(dq_options_parse(&args, argc, argv, opts, &usage, err));
    if (args.help) return DQ_OK;
    DQ_TRY(understand(&x, err));
    DQ_TRY(dq_logger_begin(&x.logger, "bench", err));
    if (dq_model_open(&x.model, args.item[0], err) == DQ_OK &&
        dq_backend_open(&x.backend, x.device, (int)x.threads, err) == DQ_OK)
        measure_all(&x, err);
    dq_runner_free(x.runner);
    dq_backend_close(x.backend);
    dq_model_close(x.model);
    dq_logger_end(&x.logger);
    return err->code;
}
