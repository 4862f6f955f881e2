/* cpu_int8: products of 8-bit activations with packed weights, in integers.
 *
 * A row of activations is rounded group by group, groups being those of the weight's columns: scale
 * absmax/127, code rint(x/scale). Codes are multiplied and summed exactly in 32 bits; groups are added
 * in order in f32, each as (float)sum * (activation scale * weight scale). A zero point z of a group takes
 * z times the sum of the activations' codes off its sum. Every instruction level gives
 * the same bits.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/cpu_blocked.h"
#include "tensor/weight_format.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum { ROWS = 48, COLS = DQ_INT8_COLS };

/* Where the groups of a row lie, padded to multiples of 4 so that four codes make a word. */
typedef struct grouping {
    int64_t cols, size, n, padded; /* padded: codes of a whole row */
} grouping;

static int64_t group_len(const grouping *g, int64_t i)
{
    return i + 1 < g->n ? g->size : g->cols - i * g->size;
}

static int64_t pad4(int64_t n)
{
    return (n + 3) / 4 * 4;
}

static grouping grouping_of(const dq_weight *w)
{
    grouping g = {
        .cols = w->cols, .size = w->group_size, .n = dq_quant_groups(w->cols, w->group_size)};
    g.padded = (g.n - 1) * pad4(g.size) + pad4(group_len(&g, g.n - 1));
    return g;
}

/* All activations of a call: codes [rows][padded], scale and sum of codes [rows][n]. */
typedef struct activations {
    int8_t *code;
    float *scale;
    int32_t *sum;
} activations;

/* Adding 1.5 * 2^23 rounds to the nearest integer, ties to even, without a call. */
static int32_t encode(int8_t *code, const float *x, int64_t n, float scale)
{
    const float magic = 12582912.0f;
    int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        const float q = x[i] / scale + magic - magic;
        const int32_t c = (int32_t)q;
        code[i] = (int8_t)c;
        sum += c;
    }
    return sum;
}

int32_t dq_cpu_round8(const dq_simd *simd, int8_t *code, float *scale, const float *x, int64_t n)
{
    const float max = simd->absmax(x, n);
    *scale = isfinite(max) ? max / 127.0f : NAN; /* shows in every result of the row */
    if (*scale > 0) return encode(code, x, n, *scale);
    memset(code, 0, (size_t)n);
    return 0;
}

static void round_row(const dq_simd *simd, const activations *a, const grouping *g, const float *x,
                      int64_t row)
{
    int8_t *code = a->code + row * g->padded;
    for (int64_t i = 0; i < g->n; i++) {
        const int64_t n = group_len(g, i), at = row * g->n + i;
        memset(code, 0, (size_t)pad4(n));
        a->sum[at] = dq_cpu_round8(simd, code, &a->scale[at], x + i * g->size, n);
        code += pad4(n);
    }
}

/* Unsigned codes u of a whole packed row. */
static void unpack(uint8_t *u, const uint8_t *packed, int64_t cols, int bits)
{
    if (bits == 8) {
        memcpy(u, packed, (size_t)cols);
    } else if (bits == 4) {
        for (int64_t i = 0; i + 1 < cols; i += 2) {
            u[i] = packed[i / 2] & 15;
            u[i + 1] = packed[i / 2] >> 4;
        }
        if (cols % 2) u[cols - 1] = packed[cols / 2] & 15;
    } else {
        dq_quant_unpack_row((int8_t *)u, packed, cols, bits);
        for (int64_t i = 0; i < cols; i++) u[i] = (uint8_t)(u[i] + (1 << (bits - 1)));
    }
}

/* A thread's share: a block of COLS rows of W as [padded/4][COLS][4], and sums. */
typedef struct tile {
    int32_t dots[ROWS * COLS];
    float total[ROWS * COLS];
    float scale[COLS];
    int32_t zero[COLS];
} tile;

/* Rows n0 .. n0 + nb of W into the block; rows that do not exist stay zero. */
static void fetch(uint8_t *block, uint8_t *row, const dq_weight *w, const grouping *g, int64_t n0,
                  int64_t nb)
{
    const int64_t bytes = (int64_t)dq_quant_row_bytes(w->cols, w->bits);
    memset(block, 0, (size_t)(g->padded * COLS));
    for (int64_t j = 0; j < nb; j++) {
        uint8_t *to = block + 4 * j;
        unpack(row, (const uint8_t *)w->data + (n0 + j) * bytes, w->cols, w->bits);
        for (int64_t i = 0; i < g->n; i++) {
            const int64_t n = group_len(g, i);
            const uint8_t *from = row + i * g->size;
            for (int64_t k = 0; k < n; k += 4, to += 4 * COLS)
                memcpy(to, from + k, (size_t)(n - k < 4 ? n - k : 4));
        }
    }
}

typedef struct product {
    const dq_simd *simd;
    dq_simd_int8_dots_fn *dots;
    dq_mat dst;
    const dq_weight *w;
    const float *bias;
    activations a;
    grouping g;
} product;

/* The dots of group i go to the totals: sum (u - zero) x = sum u x - zero sum x. */
static void add_group(const product *p, tile *t, int64_t i, int64_t n0, int64_t nb, int64_t m0,
                      int64_t m)
{
    const int32_t offset = 1 << (p->w->bits - 1);
    for (int64_t j = 0; j < nb; j++) {
        t->scale[j] = dq_weight_scale(p->w, n0 + j, i);
        if (p->w->zero) t->zero[j] = dq_weight_zero(p->w, n0 + j, i);
    }
    for (int64_t r = 0; r < m; r++) {
        const int64_t at = (m0 + r) * p->g.n + i;
        const int32_t sum = p->a.sum[at], shift = offset * sum, *dots = t->dots + r * COLS;
        float *total = t->total + r * COLS;
        for (int64_t j = 0; j < nb && !p->w->zero; j++)
            total[j] += (float)(dots[j] - shift) * (p->a.scale[at] * t->scale[j]);
        for (int64_t j = 0; j < nb && p->w->zero; j++)
            total[j] += (float)(dots[j] - t->zero[j] * sum) * (p->a.scale[at] * t->scale[j]);
    }
}

/* Rows m0 .. m0 + m against the block of columns n0 .. n0 + nb. */
static void run_tile(const product *p, tile *t, const uint8_t *block, int64_t n0, int64_t nb,
                     int64_t m0, int64_t m)
{
    const grouping *g = &p->g;
    const int8_t *code = p->a.code + m0 * g->padded;
    memset(t->total, 0, (size_t)(m * COLS) * sizeof *t->total);
    for (int64_t i = 0; i < g->n; i++) {
        const int64_t n = pad4(group_len(g, i));
        p->dots(t->dots, code, g->padded, block, m, n);
        code += n;
        block += n * COLS;
        add_group(p, t, i, n0, nb, m0, m);
    }
    for (int64_t r = 0; r < m; r++) {
        float *y = p->dst.p + (m0 + r) * p->dst.cols + n0;
        memcpy(y, t->total + r * COLS, (size_t)nb * sizeof *y);
        if (p->bias) p->simd->add(y, p->bias + n0, nb);
    }
}

static void run_product(dq_backend *b, const product *p)
{
    const grouping *g = &p->g;
    const int64_t n_blocks = (p->w->rows + COLS - 1) / COLS;
    /* tile, one unpacked row, one block */
    const size_t bytes = sizeof(tile) + (size_t)pad4(g->cols) + (size_t)(g->padded * COLS) + 192;
    if (!dq_cpu_reserve(b, bytes)) return;
#pragma omp parallel for num_threads(b->threads) schedule(dynamic)
    for (int64_t i = 0; i < n_blocks; i++) {
        tile *t = dq_cpu_of(b)->block[omp_get_thread_num()];
        uint8_t *block = (uint8_t *)t + (sizeof *t + 63) / 64 * 64;
        uint8_t *row = block + g->padded * COLS;
        const int64_t n0 = i * COLS, left = p->w->rows - n0, nb = left < COLS ? left : COLS;
        fetch(block, row, p->w, g, n0, nb);
        for (int64_t m0 = 0; m0 < p->dst.rows; m0 += ROWS)
            run_tile(p, t, block, n0, nb, m0, p->dst.rows - m0 < ROWS ? p->dst.rows - m0 : ROWS);
    }
}

void dq_cpu_matmul_int8(dq_backend *b, dq_mat dst, dq_mat src, const dq_weight *w,
                        const float *bias)
{
    const dq_simd_blocked_weight *blocked = dq_cpu_blocked_of(b, w);
    if (blocked) {
        dq_cpu_blocked_int8(b, dst, src, blocked, w->group_size, bias);
        return;
    }
    product p = {.simd = dq_cpu_of(b)->simd,
                 .dots = dq_cpu_of(b)->int8_dots,
                 .dst = dst,
                 .w = w,
                 .bias = bias};
    p.g = grouping_of(w);
    const size_t codes = (size_t)(src.rows * p.g.padded + 63) / 64 * 64;
    const size_t words = (size_t)(src.rows * p.g.n);
    uint8_t *shared = dq_cpu_shared(b, codes + words * (sizeof(float) + sizeof(int32_t)));
    if (!shared) return;
    p.a.code = (int8_t *)shared;
    p.a.scale = (float *)(void *)(shared + codes);
    p.a.sum = (int32_t *)(void *)(p.a.scale + words);
#pragma omp parallel for num_threads(b->threads) schedule(static) if (src.rows > 8)
    for (int64_t r = 0; r < src.rows; r++) round_row(p.simd, &p.a, &p.g, src.p + r * src.cols, r);
    run_product(b, &p);
}
