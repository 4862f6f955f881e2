/* cmd_bench: prefill speed of a model on this machine, with the rate of its matrix product beside it, or
 * decoding speed (bench_decode.h).
 * SPDX-License-Identifier: MIT */
#include "bench_decode.h"
#include "cmds.h"
#include "forward.h"
#include "options.h"
#include "os.h"
#include "output.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LENGTHS = 16, PRODUCT_ROWS = 1024 };

typedef struct bench {
    const char *lengths_text, *contexts_text, *device;
    int64_t threads, runs, decode;
    bool json;
    int length[MAX_LENGTHS], n_lengths, context[MAX_LENGTHS], n_contexts;
    dq_talk talk;
    dq_model *model;
    dq_backend *backend;
    dq_runner *runner;
    double product_flops; /* multiply-adds count as two, per second */
} bench;

typedef struct timing {
    double median_s, min_s, max_s;
} timing;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static timing summarise(double *s, int n)
{
    qsort(s, (size_t)n, sizeof *s, by_value);
    return (timing){.median_s = n % 2 ? s[n / 2] : (s[n / 2 - 1] + s[n / 2]) / 2,
                    .min_s = s[0],
                    .max_s = s[n - 1]};
}

/* Multiply-adds (as two) of one prefill of n tokens: projections, visible query-key pairs of every
 * map and value products of every output head, one row of logits. */
static double prefill_flops(const dq_model *m, double n)
{
    const dq_headmap *a = &m->map;
    const dq_layer *l = &m->layer[0];
    const dq_weight *w[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
    double per_token = 0, pairs = n * (n + 1) / 2;
    for (size_t i = 0; i < sizeof w / sizeof w[0]; i++)
        per_token += 2 * (double)w[i]->rows * (double)w[i]->cols;
    double attention = 2.0 * a->head_dim * (a->n_q + (double)a->n_out * a->n_slabs);
    return m->n_layers * (per_token * n + attention * pairs) +
           2 * (double)m->vocab * (double)m->dim;
}

/* One prefill of n ids, timed from the first operation to the last row's log-probability. */
static dq_status prefill(bench *x, int n, const int32_t *ids, const int32_t *pos, double *seconds,
                         dq_err *err)
{
    const dq_ops *op = x->backend->ops;
    dq_kv *kv = dq_runner_kv(x->runner);
    int32_t seq = op->kv_seq_new(x->backend, kv);
    int64_t cu[2] = {0, n};
    dq_batch batch = {.n_seq = 1, .n_rows = n, .cu_rows = cu, .seq = &seq, .ids = ids, .pos = pos};
    dq_pass pass = {.logit = {.bits = 16}};
    dq_mat hidden;
    int32_t top1;
    double start = dq_seconds();
    dq_status s = dq_runner_pass(x->runner, &batch, &pass, &hidden, err);
    if (s == DQ_OK) {
        dq_mat last = {
            .p = hidden.p + (hidden.rows - 1) * hidden.cols, .rows = 1, .cols = hidden.cols};
        op->logprob(x->backend, NULL, &top1, last, &x->model->head, ids, DQ_NUM_F32);
        s = dq_backend_sync(x->backend, err);
    }
    *seconds = dq_seconds() - start;
    op->kv_seq_free(x->backend, kv, seq);
    return s;
}

/* Rate of the backend's own dense product at the feed-forward shape: what prefill cannot exceed. */
static dq_status measure_product(bench *x, dq_err *err)
{
    const dq_ops *op = x->backend->ops;
    const dq_weight *w = &x->model->layer[0].gate;
    dq_mat in = {.rows = PRODUCT_ROWS, .cols = w->cols},
           out = {.rows = PRODUCT_ROWS, .cols = w->rows};
    size_t in_bytes = (size_t)(in.rows * in.cols) * sizeof(float);
    in.p = op->alloc(x->backend, in_bytes);
    out.p = op->alloc(x->backend, (size_t)(out.rows * out.cols) * sizeof(float));
    double best = INFINITY;
    if (!in.p || !out.p) dq_fail(err, DQ_RESOURCE, "out of memory");
    for (int i = 0; err->code == DQ_OK && i < 4; i++) {
        double start = dq_seconds();
        op->matmul(x->backend, out, in, w, NULL, DQ_NUM_F32);
        dq_backend_sync(x->backend, err);
        double s = dq_seconds() - start;
        if (i > 0 && s < best) best = s;
    }
    op->free(x->backend, in.p);
    op->free(x->backend, out.p);
    x->product_flops = 2.0 * PRODUCT_ROWS * (double)w->rows * (double)w->cols / best;
    return err->code;
}

static dq_status measure(bench *x, int n, timing *t, dq_err *err)
{
    int32_t *ids = dq_block_new((size_t)n, sizeof *ids, err);
    int32_t *pos = dq_block_new((size_t)n, sizeof *pos, err);
    double *s = dq_block_new((size_t)x->runs, sizeof *s, err);
    uint32_t state = 1;
    for (int i = 0; err->code == DQ_OK && i < n; i++) {
        state = state * 1664525u + 1013904223u; /* any ids do: speed does not depend on them */
        ids[i] = (int32_t)((state >> 8) % (uint32_t)x->model->vocab);
        pos[i] = i;
    }
    for (int64_t i = -1; err->code == DQ_OK && i < x->runs; i++) {
        double seconds;
        prefill(x, n, ids, pos, &seconds, err);
        if (i >= 0) s[i] = seconds; /* the first run warms up */
    }
    if (err->code == DQ_OK) *t = summarise(s, (int)x->runs);
    dq_block_free(ids);
    dq_block_free(pos);
    dq_block_free(s);
    return err->code;
}

static json_t *result_json(const bench *x, int n, const timing *t)
{
    double flops = prefill_flops(x->model, n) / t->median_s;
    json_t *r = json_object();
    json_object_set_new(r, "model", json_string(x->model->name));
    json_object_set_new(r, "what", json_string("prefill"));
    json_object_set_new(r, "tokens", json_integer(n));
    json_object_set_new(r, "seconds_median", dq_real(t->median_s));
    json_object_set_new(r, "seconds_min", dq_real(t->min_s));
    json_object_set_new(r, "seconds_max", dq_real(t->max_s));
    json_object_set_new(r, "tokens_per_second", dq_real(n / t->median_s));
    json_object_set_new(r, "flops_per_second", dq_real(flops));
    json_object_set_new(r, "matmul_flops_per_second", dq_real(x->product_flops));
    json_object_set_new(r, "share_of_matmul", dq_real(flops / x->product_flops));
    json_object_set_new(r, "peak_bytes", json_integer((json_int_t)dq_peak_bytes()));
    return r;
}

static dq_status run_lengths(bench *x, dq_err *err)
{
    static const char *const titles[] = {"tokens",  "median s",        "min s",   "tokens/s",
                                         "GFLOP/s", "share of matmul", "peak MiB"};
    dq_table *table = NULL;
    json_t *doc = dq_document(&x->talk, "dq-bench/1");
    DQ_TRY(dq_table_new(&table, titles, 7, err));
    json_array_append_new(json_object_get(doc, "inputs"), json_string(x->model->path));
    json_object_set_new(json_object_get(doc, "settings"), "device",
                        json_string(x->backend->device));
    json_object_set_new(json_object_get(doc, "settings"), "threads",
                        json_integer(x->backend->threads));
    json_object_set_new(json_object_get(doc, "settings"), "runs", json_integer(x->runs));
    for (int i = 0; i < x->n_lengths && err->code == DQ_OK; i++) {
        timing t = {0};
        double n = x->length[i];
        if (measure(x, x->length[i], &t, err) != DQ_OK) break;
        double flops = prefill_flops(x->model, n) / t.median_s;
        dq_table_cell(table, "%d", x->length[i]);
        dq_table_cell(table, "%.3f", t.median_s);
        dq_table_cell(table, "%.3f", t.min_s);
        dq_table_cell(table, "%.0f", n / t.median_s);
        dq_table_cell(table, "%.1f", flops * 1e-9);
        dq_table_cell(table, "%.2f", flops / x->product_flops);
        dq_table_cell(table, "%.0f", (double)dq_peak_bytes() / 1048576);
        json_array_append_new(json_object_get(doc, "results"), result_json(x, x->length[i], &t));
    }
    if (err->code == DQ_OK && x->json) {
        dq_document_print(json_incref(doc), err);
    } else if (err->code == DQ_OK) {
        printf("%s: prefill in f32 on %s; one dense product %dx%lldx%lld reaches %.1f GFLOP/s\n\n",
               x->model->name, x->backend->device, PRODUCT_ROWS,
               (long long)x->model->layer[0].gate.rows, (long long)x->model->layer[0].gate.cols,
               x->product_flops * 1e-9);
        dq_table_print(table, err);
    }
    json_decref(doc);
    dq_table_free(table);
    return err->code;
}

dq_status dq_cmd_bench(int argc, char **argv, dq_err *err)
{
    bench x = {.lengths_text = "128,512", .device = "auto", .runs = 5};
    const dq_opt opts[] = {
        {.name = "tokens",
         .kind = DQ_OPT_TEXT,
         .to = &x.lengths_text,
         .value = "N[,N...]",
         .help = "prompt lengths (default 128,512)"},
        {.name = "runs",
         .kind = DQ_OPT_INT,
         .to = &x.runs,
         .min = 1,
         .max = 1000,
         .value = "N",
         .help = "timed runs per length after one that warms up (default 5)"},
        {.name = "decode",
         .kind = DQ_OPT_INT,
         .to = &x.decode,
         .min = 1,
         .max = 100000,
         .value = "N",
         .help = "instead: times N tokens one by one, for several widths of the KV cache in turn"},
        {.name = "context",
         .kind = DQ_OPT_TEXT,
         .to = &x.contexts_text,
         .value = "T[,T...]",
         .help = "tokens in front of those of --decode, invented (default 1024)"},
        {.name = "device",
         .kind = DQ_OPT_TEXT,
         .to = &x.device,
         .value = "NAME",
         .help = "cpu, cuda[:N] or auto, which is cpu (default auto)"},
        {.name = "threads",
         .kind = DQ_OPT_INT,
         .to = &x.threads,
         .min = 0,
         .max = 1024,
         .value = "N",
         .help = "CPU threads (default 0: all processors)"},
        {.name = "json", .kind = DQ_OPT_FLAG, .to = &x.json, .help = "one JSON document"},
        DQ_TALK_OPTIONS(x.talk),
        {0}};
    const dq_usage usage = {
        .name = "bench",
        .synopsis = "MODEL [options]",
        .about =
            "Times prefill in f32: one prompt of each length through the whole model, up to the "
            "next token's log-probabilities. The share compares its rate with that of one dense "
            "matrix product of the same model on the same machine, measured in the same run. "
            "With --decode: attention of single tokens behind a context, with nothing in the "
            "processor's caches; shares are of what a plain read of memory reaches in between. One "
            "thread is "
            "timed by processor time, which other work on the machine disturbs less.",
        .examples = "  dq bench calib/pair/diffllama --tokens 128,512\n"
                    "  dq bench model --decode 20 --context 2048,16384\n",
        .min_args = 1,
        .max_args = 1,
        .args = "one MODEL"};
    dq_args args;

    DQ_TRY(dq_parse(&args, argc, argv, opts, &usage, err));
    if (args.help) return DQ_OK;
    DQ_TRY(dq_parse_ints(x.length, &x.n_lengths, MAX_LENGTHS, x.lengths_text, "tokens", 1, 1 << 20,
                         err));
    if (x.contexts_text && !x.decode)
        return dq_fail(err, DQ_USAGE, "--context has nothing to act on. Add --decode N.");
    DQ_TRY(dq_parse_ints(x.context, &x.n_contexts, MAX_LENGTHS,
                         x.contexts_text ? x.contexts_text : "1024", "context", 1, 1 << 24, err));
    DQ_TRY(dq_talk_begin(&x.talk, "bench", err));
    const bool open = dq_model_open(&x.model, args.item[0], err) == DQ_OK &&
                      dq_backend_open(&x.backend, x.device, (int)x.threads, err) == DQ_OK;
    if (open && x.decode)
        dq_bench_decode(&x.talk, x.model, x.backend, x.decode, x.context, x.n_contexts, x.json,
                        err);
    else if (open && dq_runner_new(&x.runner, x.model, x.backend, &dq_kv_plain, err) == DQ_OK &&
             measure_product(&x, err) == DQ_OK)
        run_lengths(&x, err);
    dq_runner_free(x.runner);
    dq_backend_close(x.backend);
    dq_model_close(x.model);
    dq_talk_end(&x.talk);
    return err->code;
}
