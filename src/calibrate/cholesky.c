/* The sums of a block stay in registers over all of k; products and sums are rounded apart (no
 * fused multiply-add), so that every level gives the same bits.
 * SPDX-License-Identifier: MIT */
#include "calibrate/inside.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* LANES of the 64 columns, 4 x 2 of them as separate sums: gcc -O2 would keep an array in
 * memory. */
#define ROW(name, LANES, i)                                                                        \
    name##_lanes *const to##i = (name##_lanes *)(void *)(c + i * 64);                              \
    name##_lanes left##i = to##i[0], right##i = to##i[1];
#define STEP(i)                                                                                    \
    left##i += a[i] * row[0];                                                                      \
    right##i += a[i] * row[1];
#define STORE(i)                                                                                   \
    to##i[0] = left##i;                                                                            \
    to##i[1] = right##i;
#define VERSION(name, LANES, attribute)                                                            \
    typedef double name##_lanes __attribute__((vector_size(8 * LANES), may_alias));                \
    attribute static void block_##name(double *c, const double *a, int64_t lda, const double *b,   \
                                       int64_t k)                                                  \
    {                                                                                              \
        ROW(name, LANES, 0)                                                                        \
        ROW(name, LANES, 1)                                                                        \
        ROW(name, LANES, 2)                                                                        \
        ROW(name, LANES, 3)                                                                        \
        for (int64_t p = 0; p < k; p++, a += lda, b += 64) {                                       \
            const name##_lanes *row = (const name##_lanes *)(const void *)b;                       \
            STEP(0)                                                                                \
            STEP(1)                                                                                \
            STEP(2)                                                                                \
            STEP(3)                                                                                \
        }                                                                                          \
        STORE(0)                                                                                   \
        STORE(1)                                                                                   \
        STORE(2)                                                                                   \
        STORE(3)                                                                                   \
    }                                                                                              \
    attribute static void add_##name(double *c, const double *a, int64_t lda, const double *b,     \
                                     int64_t m, int64_t k)                                         \
    {                                                                                              \
        for (int64_t p = 0; p < k; p += DEPTH) {                                                   \
            const int64_t depth = k - p < DEPTH ? k - p : DEPTH;                                   \
            for (int j = 0; j < 64; j += 2 * LANES) {                                              \
                for (int64_t i = 0; i < m; i += 4)                                                 \
                    block_##name(c + i * 64 + j, a + p * lda + i, lda, b + p * 64 + j, depth);     \
            }                                                                                      \
        }                                                                                          \
    }

enum { DEPTH = 256 }; /* rows of a and b that stay in the second-level cache */
#define NOTHING
VERSION(plain, 2, NOTHING)
#if defined(__x86_64__)
VERSION(avx2, 4, __attribute__((target("avx2"))))
VERSION(avx512, 8, __attribute__((target("avx512f,prefer-vector-width=512"))))
#endif

typedef void add_loop(double *c, const double *a, int64_t lda, const double *b, int64_t m,
                      int64_t k);

static add_loop *choose(void)
{
#if defined(__x86_64__)
    const unsigned has = dq_os_cpu_features(NULL);
    if (has & DQ_CPU_AVX512) return add_avx512;
    if (has & DQ_CPU_AVX2) return add_avx2;
#endif
    return add_plain;
}

void dq_f64_tile_add(double *c, const double *a, int64_t lda, const double *b, int64_t m, int64_t k)
{
    static _Atomic(add_loop *) chosen;
    add_loop *now = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (!now) {
        now = choose();
        atomic_store_explicit(&chosen, now, memory_order_relaxed);
    }
    now(c, a, lda, b, m, k);
}

void dq_f64_tile_transpose(double *dst, const double *src, int64_t ld, int64_t rows, int64_t cols)
{
    if (rows < DQ_F64_TILE) memset(dst, 0, (size_t)cols * DQ_F64_TILE * sizeof *dst);
    for (int64_t c0 = 0; c0 < cols; c0 += 8) {
        const int64_t end = c0 + 8 < cols ? c0 + 8 : cols;
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t c = c0; c < end; c++) dst[c * DQ_F64_TILE + r] = src[r * ld + c];
        }
    }
}

/* Panels of 64 columns from the left: a panel takes the products of all columns before it, row tile
 * by row tile; its tile on the diagonal is factored row by row; the rows below are solved against
 * it. Tiles are fixed by n alone, and products and sums are rounded apart, so that no library,
 * machine or number of threads changes a bit.
 * Source: left-looking blocked Cholesky, Golub and Van Loan, Matrix Computations, 4.2. */

enum { TILE = DQ_F64_TILE, PANEL_DEPTH = 256 };

typedef struct panel {
    double *a;
    int64_t n, ld, first, cols; /* columns first .. first + cols */
    double *before;             /* [first, 64]: its rows of L, transposed, with the other sign */
} panel;

static void load(double *tile, const panel *p, int64_t row, int64_t rows)
{
    memset(tile, 0, sizeof(double) * TILE * TILE);
    dq_f64_tile_transpose(tile, p->a + row * p->ld + p->first, p->ld, rows, p->cols);
}

static void store(const double *tile, const panel *p, int64_t row, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++) {
        double *to = p->a + (row + r) * p->ld + p->first;
        const int64_t end = dq_least(p->cols, row + r - p->first + 1);
        for (int64_t c = 0; c < end; c++) to[c] = tile[c * TILE + r];
    }
}

static void take_products(const panel *p, int64_t row)
{
    _Alignas(64) double tile[TILE * TILE], rows_of[PANEL_DEPTH * TILE];
    const int64_t rows = dq_least(TILE, p->n - row);
    load(tile, p, row, rows);
    for (int64_t k = 0; k < p->first; k += PANEL_DEPTH) {
        const int64_t depth = dq_least(PANEL_DEPTH, p->first - k);
        dq_f64_tile_transpose(rows_of, p->a + row * p->ld + k, p->ld, rows, depth);
        dq_f64_tile_add(tile, p->before + k * TILE, TILE, rows_of, TILE, depth);
    }
    store(tile, p, row, rows);
}

/* -1: all columns are positive definite. */
static int64_t factor_diagonal(const panel *p)
{
    double *tile = p->a + p->first * p->ld + p->first;
    for (int64_t r = 0; r < p->cols; r++) {
        double *row = tile + r * p->ld;
        for (int64_t c = 0; c <= r; c++) {
            const double *before = tile + c * p->ld;
            double left = row[c];
            for (int64_t k = 0; k < c; k++) left -= row[k] * before[k];
            if (c == r && !(left > 0)) return p->first + r;
            row[c] = c == r ? sqrt(left) : left / before[c];
        }
    }
    return -1;
}

/* X L^T = tile for 64 rows at once, column by column. */
static void solve(const panel *p, int64_t row)
{
    _Alignas(64) double tile[TILE * TILE];
    const int64_t rows = dq_least(TILE, p->n - row);
    load(tile, p, row, rows);
    for (int64_t c = 0; c < p->cols; c++) {
        const double *l = p->a + (p->first + c) * p->ld + p->first;
        double *x = tile + c * TILE;
        for (int64_t k = 0; k < c; k++) {
            for (int64_t r = 0; r < TILE; r++) x[r] -= tile[k * TILE + r] * l[k];
        }
        for (int64_t r = 0; r < TILE; r++) x[r] /= l[c];
    }
    store(tile, p, row, rows);
}

dq_status dq_cholesky(int64_t *bad_column, double *a, int64_t n, int64_t ld, dq_err *err)
{
    panel p = {.a = a, .n = n, .ld = ld};
    int64_t bad = -1;
    p.before = dq_block_new((size_t)n, sizeof(double) * TILE, err);
    if (!p.before) return err->code;
    for (; bad < 0 && p.first < n; p.first += TILE) {
        p.cols = dq_least(TILE, n - p.first);
#pragma omp parallel for schedule(static) if (p.first > 4 * PANEL_DEPTH)
        for (int64_t k = 0; k < p.first; k += PANEL_DEPTH) {
            const int64_t depth = dq_least(PANEL_DEPTH, p.first - k);
            double *to = p.before + k * TILE;
            dq_f64_tile_transpose(to, p.a + p.first * p.ld + k, p.ld, p.cols, depth);
            for (int64_t i = 0; i < depth * TILE; i++) to[i] = -to[i];
        }
#pragma omp parallel for schedule(dynamic) if (p.first > TILE)
        for (int64_t row = p.first; row < n; row += TILE) take_products(&p, row);
        bad = factor_diagonal(&p);
#pragma omp parallel for schedule(dynamic) if (bad < 0 && n - p.first > 8 * TILE)
        for (int64_t row = p.first + TILE; row < n; row += TILE) {
            if (bad < 0) solve(&p, row);
        }
    }
    dq_block_free(p.before);
    *bad_column = bad;
    return DQ_OK;
}
