/* host: what attention and its cache ask of a device, and what that costs the host: calls and processor time of one
 * layer, with a runtime that does nothing (simt_runtime.h).
 *   simt_host          a table: prefill and one token at 2K, 8K and 64K keys, by arithmetic
 *   simt_host --check  the counts alone; exit 1 where one is above the budget
 *
 * A layer has 12 output heads of two maps, head_dim 128, as gpu_bench has it: append, attend and compact.
 * SPDX-License-Identifier: MIT */
#include "engine/backend.h"
#include "kernels/cuda/host/runtime.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { HEADS = 24, DIM = 128 };

/* What a pass may ask for. Memory comes from the driver in blocks of many pages, after a few small ones. */
enum {
    MIN_LAUNCHES = 2,
    PROMPT_LAUNCHES = 3,
    TOKEN_LAUNCHES = 5,
    MAX_COPIES = 2,
    MAX_WAITS = 1,
    MIN_BLOCKS = 32,
    PAGES_PER_BLOCK = 8
};

typedef struct setting {
    const char *name;
    dq_num num;
    int bits;
} setting;

static const setting settings[] = {
    {"f32 16:16", DQ_NUM_F32, 16},
    {"bf16 16:16", DQ_NUM_BF16, 16},
    {"int8 8:8", DQ_NUM_INT8, 8},
    {"int8 4:4", DQ_NUM_INT8, 4},
};

typedef struct layer {
    dq_backend *b;
    dq_head_order map;
    dq_attn attn;
    float gain[2 * DIM];
    dq_math math;
    dq_kv *kv;
    int32_t seq, *pos, *ids;
    dq_mat q, k, v, y;
} layer;

static double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static dq_mat rows_of(layer *l, int64_t rows, int64_t cols)
{
    return (dq_mat){l->b->ops->alloc(l->b, (size_t)(rows * cols) * sizeof(float)), rows, cols};
}

static dq_status open_layer(layer *l, const setting *s, int64_t rows, dq_arena *arena, dq_err *err)
{
    dq_kv_spec spec = dq_kv_plain;
    spec.num = s->num;
    spec.k_bits = spec.v_bits = s->bits;
    DQ_TRY(dq_backend_open(&l->b, "cuda", 1, err));
    DQ_TRY(dq_head_order_build(&l->map, DQ_PAIR_ADJACENT, HEADS, HEADS, DIM, 0, arena, err));
    for (int i = 0; i < 2 * DIM; i++) l->gain[i] = 1.0f;
    l->attn = (dq_attn){.map = &l->map,
                        .lambda_kind = DQ_LAMBDA_LAYER,
                        .lambda = 0.6f,
                        .out_scale = 0.4f,
                        .head_norm = true,
                        .norm_eps = 1e-5f,
                        .gain = l->gain};
    l->math = (dq_math){DQ_NUM_F32, s->num, s->num, s->num};
    l->kv = l->b->ops->kv_new(l->b, &l->map, 1, &spec);
    l->pos = dq_block_new((size_t)rows, sizeof *l->pos, err);
    l->ids = dq_block_new((size_t)rows, sizeof *l->ids, err);
    l->q = rows_of(l, rows, HEADS * DIM);
    l->k = rows_of(l, rows, HEADS * DIM);
    l->v = rows_of(l, rows, HEADS * DIM);
    l->y = rows_of(l, rows, HEADS * DIM);
    return dq_backend_sync(l->b, err);
}

static void close_layer(layer *l)
{
    if (l->kv) l->b->ops->kv_free(l->b, l->kv);
    dq_block_free(l->pos);
    dq_block_free(l->ids);
    dq_backend_close(l->b); /* with what it gave out */
}

static void pass(layer *l, int64_t first, int64_t n)
{
    const dq_ops *op = l->b->ops;
    const int64_t cu[2] = {0, n};
    for (int64_t i = 0; i < n; i++) l->pos[i] = (int32_t)(first + i);
    const dq_batch batch = {
        .n_seq = 1, .n_rows = n, .cu_rows = cu, .seq = &l->seq, .ids = l->ids, .pos = l->pos};
    const dq_attend_args args = {.attn = &l->attn,
                                 .batch = &batch,
                                 .kv = l->kv,
                                 .q = {l->q.p, n, l->q.cols},
                                 .logit = {.bits = 16},
                                 .math = l->math};
    op->kv_append(l->b, l->kv, 0, &batch, (dq_mat){l->k.p, n, l->k.cols},
                  (dq_mat){l->v.p, n, l->v.cols}, l->math.qk);
    op->attend(l->b, (dq_mat){l->y.p, n, l->y.cols}, &args);
    op->kv_compact(l->b, l->kv, 0, &batch, 0);
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* A prompt of `keys` tokens, or the 64 tokens after them: what the most expensive pass asks for, and processor time of
 * the best prompt or of the mean token. False: above the budget. */
static bool count(layer *l, const setting *s, int64_t keys, bool prompt, bool check)
{
    const int runs = !prompt ? 64 : check ? 1 : 7;
    const char *what = prompt ? "prefill" : "token";
    dq_simt_calls most = {0};
    double best = 1e9, sum = 0;
    for (int i = 0; i < runs; i++) {
        if (prompt) l->b->ops->kv_rewind(l->b, l->kv, l->seq, 0);
        dq_simt_take_calls();
        const double start = processor_seconds();
        pass(l, prompt ? 0 : keys + i, prompt ? keys : 1);
        const double seconds = processor_seconds() - start;
        const dq_simt_calls calls = dq_simt_take_calls();
        best = seconds < best ? seconds : best;
        sum += seconds;
        most = (dq_simt_calls){larger(most.launches, calls.launches),
                               larger(most.copies, calls.copies), larger(most.fills, calls.fills),
                               larger(most.waits, calls.waits), larger(most.blocks, calls.blocks)};
    }
    printf("%s\t%s\t%lld\t%lld\t%lld\t%lld\t%lld\t%lld", what, s->name, (long long)keys,
           (long long)most.fills, (long long)most.launches, (long long)most.copies,
           (long long)most.waits, (long long)most.blocks);
    if (!check) printf("\t%.4f", 1e3 * (prompt ? best : sum / runs));
    printf("\n");
    const int64_t list_pages = prompt ? keys / DQ_PAGE_TOKENS : 1, pages = HEADS / 2 * list_pages;
    const int64_t launches = prompt ? PROMPT_LAUNCHES : TOKEN_LAUNCHES,
                  blocks = MIN_BLOCKS + pages / PAGES_PER_BLOCK;
    /* strips of f32 are cut by memory, one launch after the other */
    if (!check || s->num == DQ_NUM_F32 ||
        (!most.fills && most.launches >= MIN_LAUNCHES && most.launches <= launches &&
         most.copies > 0 && most.copies <= MAX_COPIES && most.waits <= MAX_WAITS &&
         most.blocks <= blocks))
        return true;
    fprintf(stderr,
            "simt_host: %s, %s, %lld keys: expected 0 fills, %d to %lld launches, 1 to %d copies, "
            "at most %d waits and %lld blocks\n",
            what, s->name, (long long)keys, MIN_LAUNCHES, (long long)launches, MAX_COPIES,
            MAX_WAITS, (long long)blocks);
    return false;
}

int main(int argc, char **argv)
{
    static const int64_t keys[] = {2048, 8192, 65536};
    const bool check = argc > 1 && strcmp(argv[1], "--check") == 0;
    bool good = true;
    dq_err err = {0};
    dq_simt_set_memory((size_t)1 << 40);
    dq_simt_set_idle(1);
    printf("what\tmath\tkeys\tfills\tlaunches\tcopies\twaits\tblocks%s\n",
           check ? "" : "\thost_ms");
    for (int i = 0; i < (check ? 2 : 3); i++) {
        for (size_t k = 0; k < sizeof settings / sizeof *settings && err.code == DQ_OK; k++) {
            dq_arena *arena = dq_arena_new();
            layer l = {0};
            if (open_layer(&l, &settings[k], keys[i], arena, &err) == DQ_OK) {
                l.seq = l.b->ops->kv_seq_new(l.b, l.kv);
                pass(&l, 0, 64); /* constants go up */
                good = count(&l, &settings[k], keys[i], true, check) && good;
                good = count(&l, &settings[k], keys[i], false, check) && good;
                dq_backend_sync(l.b, &err);
            }
            close_layer(&l);
            dq_arena_free(arena);
        }
    }
    if (err.code != DQ_OK) fprintf(stderr, "simt_host: %s\n", err.text);
    return err.code != DQ_OK ? (int)err.code : check && !good;
}
