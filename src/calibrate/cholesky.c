/* cholesky: see cholesky.h. Panels of 64 columns from the left: a panel takes the products of all columns before it, row tile
 * by row tile; its tile on the diagonal is factored row by row; the rows below are solved against it. Tiles are fixed by n
 * alone, and products and sums are rounded apart, so that no library, machine or number of threads changes a bit.
 * Source: left-looking blocked Cholesky, Golub and Van Loan, Matrix Computations, 4.2.
 * SPDX-License-Identifier: MIT */
#include "calibrate/cholesky.h"

#include "calibrate/f64_tile.h"

#include <math.h>
#include <string.h>

enum { TILE = DQ_F64_TILE, DEPTH = 256 };

typedef struct panel {
    double *a;
    int64_t n, ld, first, cols; /* columns first .. first + cols */
    double *before;             /* [first, 64]: its rows of L, transposed, with the other sign */
} panel;

static int64_t least(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

static void pack_before(const panel *p)
{
#pragma omp parallel for schedule(static) if (p->first > 4 * DEPTH)
    for (int64_t k = 0; k < p->first; k += DEPTH) {
        const int64_t depth = least(DEPTH, p->first - k);
        double *to = p->before + k * TILE;
        dq_f64_tile_transpose(to, p->a + p->first * p->ld + k, p->ld, p->cols, depth);
        for (int64_t i = 0; i < depth * TILE; i++) to[i] = -to[i];
    }
}

/* A tile of the panel, [64 columns, 64 rows], from and to its place in the lower triangle. */
static void load(double *tile, const panel *p, int64_t row, int64_t rows)
{
    memset(tile, 0, sizeof(double) * TILE * TILE);
    dq_f64_tile_transpose(tile, p->a + row * p->ld + p->first, p->ld, rows, p->cols);
}

static void store(const double *tile, const panel *p, int64_t row, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++) {
        double *to = p->a + (row + r) * p->ld + p->first;
        const int64_t end = least(p->cols, row + r - p->first + 1);
        for (int64_t c = 0; c < end; c++) to[c] = tile[c * TILE + r];
    }
}

static void take_products(const panel *p, int64_t row)
{
    _Alignas(64) double tile[TILE * TILE], rows_of[DEPTH * TILE];
    const int64_t rows = least(TILE, p->n - row);
    load(tile, p, row, rows);
    for (int64_t k = 0; k < p->first; k += DEPTH) {
        const int64_t depth = least(DEPTH, p->first - k);
        dq_f64_tile_transpose(rows_of, p->a + row * p->ld + k, p->ld, rows, depth);
        dq_f64_tile_add(tile, p->before + k * TILE, TILE, rows_of, TILE, depth);
    }
    store(tile, p, row, rows);
}

/* The first column that is not positive definite, or -1. */
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
    const int64_t rows = least(TILE, p->n - row);
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
        p.cols = least(TILE, n - p.first);
        pack_before(&p);
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
