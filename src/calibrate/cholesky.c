/* cholesky: see cholesky.h. Panels of 64 columns from the left: a panel takes the products of all columns before it, row tile
 * by row tile; its tile on the diagonal goes to LAPACK (dpotrf), which is too small a task for any BLAS to share among
 * threads; the rows below are solved against it. Tiles are fixed by n alone.
 * Source: left-looking blocked Cholesky, Golub and Van Loan, Matrix Computations, 4.2.
 * SPDX-License-Identifier: MIT */
#include "calibrate/cholesky.h"

#include "base/os.h"
#include "base/sha256.h"
#include "calibrate/f64_tile.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { TILE = DQ_F64_TILE, DEPTH = 256 };

/* LAPACK, column-major; the last argument is the length of uplo. */
void dpotrf_(const char *uplo, const int *n, double *a, const int *lda, int *info, size_t length);
void ilaver_(int *major, int *minor, int *patch);

#ifdef DQ_CARRY
/* Reports wrong arguments, which are not given here. LAPACK's own needs the Fortran library, which a program that carries
 * its libraries would have to take along for this alone; LAPACK lets it be replaced. */
void xerbla_(const char *name, const int *info, size_t length);
void xerbla_(const char *name, const int *info, size_t length)
{
    (void)name, (void)info, (void)length;
}
#endif

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
    double tile[TILE * TILE];
    const int n = (int)p->cols;
    int info;
    /* the lower triangle by rows is the upper one by columns */
    for (int64_t r = 0; r < p->cols; r++)
        memcpy(tile + r * p->cols, p->a + (p->first + r) * p->ld + p->first,
               (size_t)(r + 1) * sizeof *tile);
    dpotrf_("U", &n, tile, &n, &info, 1);
    if (info != 0) return p->first + info - 1;
    for (int64_t r = 0; r < p->cols; r++)
        memcpy(p->a + (p->first + r) * p->ld + p->first, tile + r * p->cols,
               (size_t)(r + 1) * sizeof *tile);
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

/* ---- The library ---- */

/* What OpenBLAS says of itself, its kind of processor included; "" where another library is loaded. */
static const char *openblas(void)
{
    typedef char *config(void);
    const char *why;
    void *program = dq_os_library_open(NULL, &why);
    dq_os_function *f = program ? dq_os_library_function(program, "openblas_get_config") : NULL;
    return f ? ((config *)f)() : "";
}

dq_status dq_cholesky_library(char about[DQ_CHOLESKY_LIBRARY], dq_err *err)
{
    double tile[TILE * TILE];
    const int n = TILE;
    int major, minor, patch, info;
    char sha[65];
    for (int r = 0; r < TILE; r++) { /* 1 / (1 + distance): convex, so positive definite */
        for (int c = 0; c < TILE; c++) tile[r * TILE + c] = 1.0 / (1 + (r > c ? r - c : c - r));
    }
    ilaver_(&major, &minor, &patch);
    dpotrf_("U", &n, tile, &n, &info, 1);
    if (info != 0)
        return dq_fail(err, DQ_BUG, "LAPACK %d.%d.%d does not factor a matrix", major, minor,
                       patch);
    DQ_TRY(dq_sha256_of(sha, tile, sizeof tile, err));
    const char *more = openblas();
    snprintf(about, DQ_CHOLESKY_LIBRARY, "LAPACK %d.%d.%d%s%.160s, factor %.16s", major, minor,
             patch, *more ? ", " : "", more, sha);
    dq_one_line(about);
    return DQ_OK;
}
