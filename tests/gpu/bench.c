/* bench: differential attention and packed products of a backend, as shares of what the same device reaches in
 * the same run. gpu_bench [--device NAME] [--small] [--only products[:MATH]|prefill[:TOKENS[:MATH]]|decode...]; one
 * JSON document on stdout. Exits with the status of what the device refused, if anything, which stands in the
 * document too.
 *
 * One layer of 12 output heads (2 with --small) with two maps of head_dim 128 and values of 256, as the peers have it. Times
 * are of the whole operation as dq runs it (queries rounded, lambda, norm), as the host waits for it; beside them,
 * from a run of its own, the time of each kernel between two events (runtime.h): where the device waits for the host,
 * that includes the launch. Multiply-adds count as two; of causal products the visible half counts.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "kernels/cuda/host/runtime.h"
#include "tensor/tensor.h"
#include "tests/gpu/peaks.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRS = 12, SMALL_PAIRS = 2, DIM = 128, CHUNK = 2048, MAX_RUNS = 30 };

typedef struct setting {
    const char *math;
    dq_num num;
    int k_bits, v_bits;
} setting;
static const setting settings[] = {{"f32", DQ_NUM_F32, 16, 16},
                                   {"bf16", DQ_NUM_BF16, 16, 16},
                                   {"int8", DQ_NUM_INT8, 8, 8},
                                   {"int8", DQ_NUM_INT8, 4, 4}};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

typedef struct bench {
    dq_backend *b;
    dq_arena *arena;
    dq_head_order map;
    dq_attn attn;
    float gain[2 * DIM];
    json_t *results;
    dq_peaks top;
    dq_status refusal;  /* the last one; every setting is meant to run on a GPU */
    bool small, traces; /* traces: the backend's kernels can be timed */
    const char *only;   /* NULL: everything */
} bench;

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median seconds of f(arg), repeated for about a second; in small, of one run that warms nothing up. */
static double median(bench *x, void (*f)(void *arg), void *arg, int *runs, dq_err *err)
{
    double s[MAX_RUNS], spent = 0;
    int n = 0;
    if (!x->small) f(arg);
    dq_backend_sync(x->b, err);
    while (err->code == DQ_OK && n < (x->small ? 1 : MAX_RUNS) && (n < 3 || spent < 1)) {
        const double start = dq_os_seconds();
        f(arg);
        dq_backend_sync(x->b, err);
        s[n] = dq_os_seconds() - start;
        spent += s[n++];
    }
    qsort(s, (size_t)n, sizeof *s, by_value);
    *runs = n;
    return n ? s[n / 2] : (double)NAN;
}

/* Nearly normal, as what projections make; from PERIOD, a prime, on the same again, so that no two rows are alike. */
static float *floats(bench *x, int64_t n, dq_err *err)
{
    enum { PERIOD = 1000003 };
    float *host = dq_block_new(PERIOD, sizeof *host, err);
    float *p = host ? x->b->ops->alloc(x->b, (size_t)n * sizeof *p) : NULL;
    uint32_t state = (uint32_t)n;
    for (int64_t i = 0; host && i < PERIOD && i < n; i++) {
        float sum = 0;
        for (int k = 0; k < 4; k++) {
            state = state * 1664525u + 1013904223u;
            sum += (float)(state >> 8) / 8388608.0f - 1.0f;
        }
        host[i] = sum * 0.866f;
    }
    for (int64_t at = 0; p && at < n; at += PERIOD) {
        const int64_t left = n - at < PERIOD ? n - at : PERIOD;
        x->b->ops->put(x->b, p + at, host, (size_t)left * sizeof *p);
    }
    dq_backend_sync(x->b, err);
    dq_block_free(host);
    return p;
}

static void take_kernel(void *arg, const char *kernel, int launches, double seconds)
{
    json_array_append_new(arg, json_pack("{s:s, s:i, s:f}", "kernel", kernel, "launches", launches,
                                         "seconds", seconds));
}

/* One more run of f: seconds of the device, kernel by kernel. The rest of an operation's time, at least, is the
 * host's. */
static void trace(bench *x, json_t *result, void (*f)(void *arg), void *arg, dq_err *err)
{
    json_t *kernels = json_array(), *k;
    double seconds = 0;
    size_t i;
    if (!x->traces || err->code != DQ_OK) {
        json_decref(kernels);
        return;
    }
    dq_trace_start();
    f(arg);
    dq_backend_sync(x->b, err);
    if (dq_trace_stop(take_kernel, kernels) != cudaSuccess)
        dq_fail(err, DQ_BUG, "the events of a trace cannot be read");
    json_array_foreach(kernels, i, k) seconds += json_real_value(json_object_get(k, "seconds"));
    json_object_set_new(result, "kernel_seconds", json_real(seconds));
    json_object_set_new(result, "kernels", kernels);
}

/* ------------------------------------------------------------------------------------- attention */

typedef struct layer {
    bench *x;
    dq_kv *kv;
    int32_t seq;
    float *q, *k, *v, *y; /* CHUNK rows */
    dq_math math;
    int64_t first, rows; /* of the next attention */
    int32_t *pos, *ids;
} layer;

/* rows first..first+n-1 of the sequence, in one pass of chunks: appended, and attended where y is wanted. */
static void pass(layer *l, int64_t first, int64_t n, bool append, bool attend)
{
    const dq_ops *op = l->x->b->ops;
    const dq_head_order *map = &l->x->map;
    const int64_t kv_cols = (int64_t)map->n_kv * DIM, q_cols = (int64_t)map->n_q * DIM;
    const int64_t cu[2] = {0, n};
    for (int64_t i = 0; i < n; i++) l->pos[i] = (int32_t)(first + i);
    const dq_batch batch = {
        .n_seq = 1, .n_rows = n, .cu_rows = cu, .seq = &l->seq, .ids = l->ids, .pos = l->pos};
    const dq_attend_args args = {.attn = &l->x->attn,
                                 .batch = &batch,
                                 .kv = l->kv,
                                 .q = {l->q, n, q_cols},
                                 .logit = {.bits = 16},
                                 .math = l->math};
    if (append)
        op->kv_append(l->x->b, l->kv, 0, &batch, (dq_mat){l->k, n, kv_cols},
                      (dq_mat){l->v, n, kv_cols}, l->math.qk);
    if (attend) op->attend(l->x->b, (dq_mat){l->y, n, (int64_t)l->x->map.n_out * 2 * DIM}, &args);
    if (append) op->kv_compact(l->x->b, l->kv, 0, &batch, 0);
}

/* A whole prompt in one call, cache included. */
static void prefill(void *arg)
{
    layer *l = arg;
    const dq_ops *op = l->x->b->ops;
    op->kv_seq_free(l->x->b, l->kv, l->seq);
    l->seq = op->kv_seq_new(l->x->b, l->kv);
    pass(l, 0, l->rows, true, true);
}

/* One row after the context; nothing is appended, so that it can be repeated. */
static void decode(void *arg)
{
    layer *l = arg;
    pass(l, l->first, 1, false, true);
}

static dq_status open_layer(layer *l, bench *x, const setting *s, int64_t rows, dq_err *err)
{
    dq_kv_spec spec = dq_kv_plain;
    spec.num = s->num;
    spec.k_bits = s->k_bits;
    spec.v_bits = s->v_bits;
    memset(l, 0, sizeof *l);
    l->x = x;
    l->rows = rows;
    l->math = (dq_math){DQ_NUM_F32, s->num, s->num, s->num};
    DQ_TRY(dq_backend_can(x->b, NULL, l->math, &spec, err));
    l->kv = x->b->ops->kv_new(x->b, &x->map, 1, &spec);
    l->pos = dq_block_new((size_t)rows, sizeof *l->pos, err);
    l->ids = dq_block_new((size_t)rows, sizeof *l->ids, err);
    if (err->code == DQ_OK) l->q = floats(x, rows * x->map.n_q * DIM, err);
    if (err->code == DQ_OK) l->k = floats(x, rows * x->map.n_kv * DIM, err);
    if (err->code == DQ_OK) l->v = floats(x, rows * x->map.n_kv * DIM, err);
    if (err->code == DQ_OK) l->y = floats(x, rows * x->map.n_out * 2 * DIM, err);
    l->seq = err->code == DQ_OK ? x->b->ops->kv_seq_new(x->b, l->kv) : -1;
    return dq_backend_sync(x->b, err);
}

static void close_layer(layer *l)
{
    const dq_ops *op = l->x->b->ops;
    float *all[] = {l->q, l->k, l->v, l->y};
    for (int i = 0; i < 4; i++) op->free(l->x->b, all[i]);
    op->kv_free(l->x->b, l->kv);
    dq_block_free(l->pos);
    dq_block_free(l->ids);
}

static json_t *result(bench *x, const char *what, const setting *s, double seconds, int runs)
{
    json_t *r = json_object();
    char bits[16];
    snprintf(bits, sizeof bits, "%d:%d", s->k_bits, s->v_bits);
    json_object_set_new(r, "what", json_string(what));
    json_object_set_new(r, "math", json_string(s->math));
    json_object_set_new(r, "kv_bits", json_string(bits));
    json_object_set_new(r, "seconds_median", json_real(seconds));
    json_object_set_new(r, "runs", json_integer(runs));
    json_array_append_new(x->results, r);
    return r;
}

/* What is not offered is in the document by its reason. */
static void refused(bench *x, const char *what, const setting *s, int64_t n, dq_err *err)
{
    json_t *r = result(x, what, s, 0, 0);
    json_object_set_new(r, "seconds_median", json_null());
    json_object_set_new(r, "tokens", json_integer((json_int_t)n));
    json_object_set_new(r, "refused", json_string(err->text));
    x->refusal = err->code;
    memset(err, 0, sizeof *err);
}

static void bench_prefill(bench *x, const setting *s, int64_t n, dq_err *err)
{
    layer l;
    int runs = 0;
    const double seconds =
        open_layer(&l, x, s, n, err) == DQ_OK ? median(x, prefill, &l, &runs, err) : (double)NAN;
    if (err->code == DQ_OK) {
        /* scores of two maps, one product of the subtracted maps with values of 2 DIM */
        const double pairs = (double)n * ((double)n + 1) / 2;
        const double flops = x->map.n_out * 2.0 * (2 * DIM + 2 * DIM) * pairs;
        /* as the one-pass count of the field, two products with values */
        const double usual = x->map.n_out * 2.0 * (2 * DIM + 4 * DIM) * pairs;
        json_t *r = result(x, "prefill", s, seconds, runs);
        json_object_set_new(r, "tokens", json_integer((json_int_t)n));
        json_object_set_new(r, "flops_per_second", json_real(flops / seconds));
        json_object_set_new(r, "flops_per_second_two_values", json_real(usual / seconds));
        if (x->top.bf16 > 0)
            json_object_set_new(r, "share_of_bf16_matmul",
                                json_real(usual / seconds / x->top.bf16));
        trace(x, r, prefill, &l, err);
    }
    if (err->code != DQ_OK) refused(x, "prefill", s, n, err);
    close_layer(&l);
}

static void bench_decode(bench *x, const setting *s, int64_t context, dq_err *err)
{
    layer l;
    int runs = 0;
    double seconds = (double)NAN;
    if (open_layer(&l, x, s, CHUNK, err) == DQ_OK) {
        for (int64_t at = 0; at < context; at += CHUNK) pass(&l, at, CHUNK, true, false);
        l.first = context;
        seconds = median(x, decode, &l, &runs, err);
    }
    if (err->code == DQ_OK) {
        const dq_kv_bytes held = x->b->ops->kv_bytes(x->b, l.kv);
        /* a cache of 16 bits counts as one, however wide it is held: more bytes are no merit */
        const double elements = (double)context * 2 * x->map.n_kv * DIM;
        const double bytes =
            s->k_bits == 16 ? 2 * elements : (double)(held.codes + held.scales + held.unquantized);
        json_t *r = result(x, "decode", s, seconds, runs);
        json_object_set_new(r, "tokens", json_integer((json_int_t)context));
        json_object_set_new(r, "kv_bytes", json_real(bytes));
        json_object_set_new(r, "bytes_per_second", json_real(bytes / seconds));
        if (x->top.copy > 0)
            json_object_set_new(r, "share_of_copy", json_real(bytes / seconds / x->top.copy));
        trace(x, r, decode, &l, err);
    }
    if (err->code != DQ_OK) refused(x, "decode", s, context, err);
    close_layer(&l);
}

/* -------------------------------------------------------------------------------------- products */

typedef struct product {
    bench *x;
    dq_mat src, dst;
    dq_weight w;
    dq_num num;
} product;

static void multiply(void *arg)
{
    product *p = arg;
    p->x->b->ops->matmul(p->x->b, p->dst, p->src, &p->w, NULL, p->num);
}

static void bench_product(bench *x, int64_t n, int bits, dq_num num, dq_err *err)
{
    const int64_t row = bits == 16 ? 2 * n : (n * bits / 8 + 3) / 4 * 4, groups = n / 128;
    const setting s = {dq_num_name[num], num, bits, bits};
    product p = {.x = x, .num = num};
    uint8_t *codes = dq_block_new((size_t)(n * row), 1, err);
    uint16_t *scale = dq_block_new((size_t)(n * groups), sizeof *scale, err);
    uint32_t state = 5;
    int runs = 0;
    for (int64_t i = 0; err->code == DQ_OK && i < n * row; i++) {
        state = state * 1664525u + 1013904223u;
        codes[i] = (uint8_t)(state >> 24);
        if (bits == 16 && i % 2 == 1)
            codes[i] = (uint8_t)(0x3c | (codes[i] & 0x80)); /* around 0.01 */
    }
    for (int64_t i = 0; err->code == DQ_OK && i < n * groups; i++) scale[i] = 0x2000;
    p.w = (dq_weight){.name = "bench",
                      .rows = n,
                      .cols = n,
                      .format = bits == 16 ? NULL : &dq_format_int,
                      .bits = bits,
                      .dtype = DQ_BF16,
                      .data = codes,
                      .group_size = 128,
                      .scale_rows = n,
                      .scale_dtype = DQ_F16,
                      .scale = scale};
    p.src = (dq_mat){err->code == DQ_OK ? floats(x, n * n, err) : NULL, n, n};
    p.dst = (dq_mat){err->code == DQ_OK ? floats(x, n * n, err) : NULL, n, n};
    if (err->code == DQ_OK && x->b->ops->weight_acquire) x->b->ops->weight_acquire(x->b, &p.w);
    const double seconds = err->code == DQ_OK ? median(x, multiply, &p, &runs, err) : (double)NAN;
    if (err->code == DQ_OK) {
        json_t *r = result(x, "matmul", &s, seconds, runs);
        json_object_set_new(r, "kv_bits", json_null());
        json_object_set_new(r, "weight_bits", json_integer(bits));
        json_object_set_new(r, "n", json_integer((json_int_t)n));
        const double flops = 2.0 * (double)n * (double)n * (double)n / seconds;
        json_object_set_new(r, "flops_per_second", json_real(flops));
        if (x->top.bf16 > 0)
            json_object_set_new(r, "share_of_bf16_matmul", json_real(flops / x->top.bf16));
        if (x->top.int8 > 0)
            json_object_set_new(r, "share_of_int8_matmul", json_real(flops / x->top.int8));
        trace(x, r, multiply, &p, err);
    }
    if (x->b->ops->weight_release && p.src.p) x->b->ops->weight_release(x->b, &p.w);
    x->b->ops->free(x->b, p.src.p);
    x->b->ops->free(x->b, p.dst.p);
    dq_block_free(codes);
    dq_block_free(scale);
    if (err->code != DQ_OK) refused(x, "matmul", &s, n, err);
}

/* ------------------------------------------------------------------------------------------ main */

/* Whether `what` of n tokens (0: none) in `num` is asked for, and there: bf16 is no arithmetic of the CPU. */
static bool wanted(const bench *x, const char *what, int64_t n, dq_num num)
{
    char name[64], full[80];
    if (num == DQ_NUM_BF16 && strcmp(x->b->ops->name, "cpu") == 0) return false;
    if (!x->only || strcmp(x->only, what) == 0) return true;
    if (n)
        snprintf(name, sizeof name, "%s:%lld", what, (long long)n);
    else
        snprintf(name, sizeof name, "%s", what);
    snprintf(full, sizeof full, "%s:%s", name, dq_num_name[num]);
    return strcmp(x->only, name) == 0 || strcmp(x->only, full) == 0;
}

static void run(bench *x, dq_err *err)
{
    static const int64_t prompts[] = {2048, 8192, 65536}, contexts[] = {2048, 65536};
    static const int64_t small_prompts[] = {64, 192, 256}, small_contexts[] = {128, 192};
    for (int i = 0; i < 3; i++) {
        const int64_t n = x->small ? small_prompts[i] : prompts[i];
        for (int k = 0; k < N_SETTINGS; k++) {
            if (settings[k].num == DQ_NUM_F32 && n > 8192) continue; /* minutes */
            if (wanted(x, "prefill", prompts[i], settings[k].num))
                bench_prefill(x, &settings[k], n, err);
        }
    }
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < N_SETTINGS; k++)
            if (wanted(x, "decode", contexts[i], settings[k].num))
                bench_decode(x, &settings[k], x->small ? small_contexts[i] : contexts[i], err);
    }
    const int64_t n = x->small ? 128 : 4096;
    const bool int8 = wanted(x, "products", 0, DQ_NUM_INT8),
               bf16 = wanted(x, "products", 0, DQ_NUM_BF16);
    if (bf16) bench_product(x, n, 16, DQ_NUM_BF16, err);
    for (int bits = 8; bits >= 4; bits -= 2) {
        if (int8) bench_product(x, n, bits, DQ_NUM_INT8, err);
        if (bf16) bench_product(x, n, bits, DQ_NUM_BF16, err);
    }
}

static dq_status open_bench(bench *x, const char *device, dq_err *err)
{
    DQ_TRY(dq_backend_open(&x->b, device, 0, err));
    x->arena = dq_arena_new();
    if (!x->arena) return dq_fail(err, DQ_RESOURCE, "out of memory");
    const int n = 2 * (x->small ? SMALL_PAIRS : PAIRS);
    DQ_TRY(dq_head_order_build(&x->map, DQ_PAIR_ADJACENT, n, n, DIM, 0, x->arena, err));
    for (int i = 0; i < 2 * DIM; i++) x->gain[i] = 1.0f + (float)i / 1024;
    x->attn = (dq_attn){.map = &x->map,
                        .lambda_kind = DQ_LAMBDA_LAYER,
                        .lambda = 0.6f,
                        .out_scale = 0.4f,
                        .head_norm = true,
                        .norm_eps = 1e-5f,
                        .gain = x->gain};
    return DQ_OK;
}

int main(int argc, char **argv)
{
    const char *device = getenv("DQ_TEST_DEVICE");
    bench x = {.results = json_array()};
    dq_err err = {0}, no_peaks = {0}; /* int8 attention needs no cuBLAS; then there are no shares */
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0) {
            x.small = true;
        } else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc) {
            device = argv[++i];
        } else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
            x.only = argv[++i];
        } else {
            fprintf(stderr,
                    "usage: gpu_bench [--device NAME] [--small] [--only PART[:TOKENS][:MATH]]\n");
            return 2;
        }
    }
    if (open_bench(&x, device ? device : "cuda", &err) == DQ_OK &&
        strcmp(x.b->ops->name, "cuda") == 0) {
        x.traces = true;
        dq_peaks_measure(&x.top, x.b, x.small ? 256 : 8192, &no_peaks);
    }
    if (err.code == DQ_OK) run(&x, &err);
    if (err.code == DQ_OK && json_array_size(x.results) == 0)
        dq_fail(&err, DQ_USAGE, "--only %s names nothing", x.only);
    if (err.code == DQ_OK) {
        const char *lack = no_peaks.code == DQ_OK ? NULL : no_peaks.text;
        json_t *doc =
            json_pack("{s:s, s:s, s:f, s:f, s:f, s:s?, s:O}", "schema", "dq-gpu-bench/1", "device",
                      x.b->device, "copy_bytes_per_second", x.top.copy,
                      "bf16_matmul_flops_per_second", x.top.bf16, "int8_matmul_flops_per_second",
                      x.top.int8, "no_peaks", lack, "results", x.results);
        json_dumpf(doc, stdout, JSON_INDENT(1));
        printf("\n");
        json_decref(doc);
    } else {
        fprintf(stderr, "gpu_bench: %s\n", err.text);
    }
    dq_backend_close(x.b);
    dq_arena_free(x.arena);
    json_decref(x.results);
    return (int)(err.code != DQ_OK ? err.code : x.refusal);
}
