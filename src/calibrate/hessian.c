/* hessian: see hessian.h. For the factor the matrix is permuted in place, and its upper triangle keeps
 * it while the lower one is factored, so that there is one matrix of n x n and no more.
 * SPDX-License-Identifier: MIT */
#include "calibrate/hessian.h"

#include "calibrate/cholesky.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int64_t dq_hessian_bytes(int64_t n, int64_t max_rows)
{
    return n * dq_cholesky_stride(n) * (int64_t)sizeof(double) +
           dq_tile_sums_bytes(n, n, true, max_rows);
}

dq_status dq_hessian_new(dq_hessian **out, int64_t max_n, int64_t max_rows, dq_err *err)
{
    dq_hessian *h = *out = dq_block_new(1, sizeof *h, err);
    if (!h) return err->code;
    const size_t n = (size_t)max_n;
    h->a = dq_block_new(n, (size_t)dq_cholesky_stride(max_n) * sizeof *h->a, err);
    h->order = dq_block_new(n, sizeof *h->order, err);
    h->diagonal = dq_block_new(n, sizeof *h->diagonal, err);
    h->dead = dq_block_new(n, sizeof *h->dead, err);
    if (dq_tile_sums_new(&h->sums, max_n, max_n, true, max_rows, err) == DQ_OK) return DQ_OK;
    dq_hessian_free(h);
    *out = NULL;
    return err->code;
}

void dq_hessian_free(dq_hessian *h)
{
    if (!h) return;
    dq_block_free(h->a);
    dq_tile_sums_free(&h->sums);
    dq_block_free(h->order);
    dq_block_free(h->diagonal);
    dq_block_free(h->dead);
    dq_block_free(h);
}

void dq_hessian_begin(dq_hessian *h, int64_t n)
{
    h->n = n;
    h->ld = dq_cholesky_stride(n);
    h->rows = h->n_dead = 0;
    h->sums.c = h->a;
    h->sums.m = h->sums.n = n;
    h->sums.ld = h->ld;
    memset(h->a, 0, (size_t)(n * h->ld) * sizeof *h->a);
}

dq_status dq_hessian_add(dq_hessian *h, dq_backend *b, dq_mat x, dq_tile_sums_rows which,
                         dq_err *err)
{
    int64_t rows;
    DQ_TRY(dq_tile_sums_add(&h->sums, b, x, x, which, &rows, err));
    h->rows += rows;
    return DQ_OK;
}

dq_status dq_hessian_share(dq_hessian *h, dq_err *err)
{
    return dq_tile_sums_share(&h->sums, err);
}

/* ---- Factor ---- */

typedef struct key {
    double value;
    int64_t column;
} key;

/* What is rounded last comes first: small diagonals, and the higher column among equals. */
static int by_value(const void *a, const void *b)
{
    const key *x = a, *y = b;
    if (x->value != y->value) return x->value < y->value ? -1 : 1;
    return x->column < y->column ? 1 : -1;
}

/* Means, the diagonal, and what it says of columns. False when a sum is not finite. */
static bool look(dq_hessian *h)
{
    bool finite = true;
    const double share = h->rows > 0 ? 1 / (double)h->rows : 0;
#pragma omp parallel for schedule(static) reduction(&& : finite)
    for (int64_t r = 0; r < h->n; r++) {
        double *a = h->a + r * h->ld;
        for (int64_t c = 0; c <= r; c++) {
            a[c] *= share;
            finite = finite && isfinite(a[c]);
        }
    }
    for (int64_t i = 0; i < h->n; i++) {
        h->diagonal[i] = h->a[i * h->ld + i];
        h->dead[i] = h->diagonal[i] == 0;
        h->n_dead += h->dead[i];
    }
    return finite;
}

static dq_status find_order(dq_hessian *h, dq_err *err)
{
    key *k = dq_block_new((size_t)h->n, sizeof *k, err);
    if (!k) return err->code;
    for (int64_t i = 0; i < h->n; i++) k[i] = (key){h->diagonal[i], i};
    qsort(k, (size_t)h->n, sizeof *k, by_value);
    for (int64_t i = 0; i < h->n; i++) h->order[i] = k[i].column;
    dq_block_free(k);
    return DQ_OK;
}

static double at(const dq_hessian *h, int64_t i, int64_t j)
{
    return i > j ? h->a[i * h->ld + j] : h->a[j * h->ld + i];
}

/* The matrix in the new order: gathered into the upper triangle, which is free, row by row. */
static void permute(dq_hessian *h)
{
    const int64_t *o = h->order;
#pragma omp parallel for schedule(dynamic, 16)
    for (int64_t i = 0; i < h->n; i++) {
        double *to = h->a + i * h->ld;
        for (int64_t j = i + 1; j < h->n; j++) to[j] = at(h, o[i], o[j]);
    }
}

/* Lower triangle and diagonal from the upper triangle. */
static void restore(dq_hessian *h, double damping)
{
    enum { STEP = 64 };
#pragma omp parallel for schedule(dynamic)
    for (int64_t i0 = 0; i0 < h->n; i0 += STEP) {
        const int64_t end = i0 + STEP < h->n ? i0 + STEP : h->n;
        for (int64_t j = 0; j < end; j++) {
            for (int64_t i = i0 > j ? i0 : j + 1; i < end; i++)
                h->a[i * h->ld + j] = h->a[j * h->ld + i];
        }
        for (int64_t i = i0; i < end; i++) {
            const int64_t c = h->order[i];
            h->a[i * h->ld + i] = h->dead[c] ? 1 : h->diagonal[c] + damping;
        }
    }
}

dq_status dq_hessian_refactor(dq_hessian *h, double share, const char *what, dq_err *err)
{
    double mean = 0;
    for (int64_t i = 0; i < h->n; i++) mean += h->diagonal[i] / (double)h->n;
    for (int i = 0; i < DQ_HESSIAN_TRIES; i++, share *= 10) {
        int64_t bad;
        h->damping_share = share;
        h->damping = share * mean;
        restore(h, h->damping);
        DQ_TRY(dq_cholesky(&bad, h->a, h->n, h->ld, err));
        if (bad < 0) return DQ_OK;
    }
    return dq_fail_with(
        err, DQ_DAMAGED, (dq_remedy){.code = DQ_REMEDY_MORE_TEXT},
        "%s: the mean of squared inputs is not positive definite, with %g of its mean "
        "diagonal added either",
        what, h->damping_share);
}

dq_status dq_hessian_factor(dq_hessian *h, double share, const char *what, dq_err *err)
{
    if (!look(h))
        return dq_fail_with(
            err, DQ_DAMAGED, (dq_remedy){.code = DQ_REMEDY_SUMS},
            "%s: sums of squares of its inputs on the calibration text are not finite", what);
    DQ_TRY(find_order(h, err));
    permute(h);
    return dq_hessian_refactor(h, share, what, err);
}

/* ---- Sums of two parts ---- */

void dq_hessian_set_aside(dq_hessian *h, const dq_hessian *part)
{
#pragma omp parallel for schedule(dynamic, 16)
    for (int64_t r = 0; r < h->n; r++) {
        h->diagonal[r] = part->a[r * part->ld + r];
        for (int64_t c = r + 1; c < h->n; c++) h->a[r * h->ld + c] = part->a[c * part->ld + r];
    }
}

void dq_hessian_take_in(dq_hessian *h, int64_t rows)
{
#pragma omp parallel for schedule(dynamic, 16)
    for (int64_t r = 0; r < h->n; r++) {
        for (int64_t c = 0; c < r; c++) h->a[r * h->ld + c] += h->a[c * h->ld + r];
        h->a[r * h->ld + r] += h->diagonal[r];
    }
    h->rows += rows;
}
