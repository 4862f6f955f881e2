/* cross: see cross.h. Rows of C lie whole numbers of 8 values apart.
 * SPDX-License-Identifier: MIT */
#include "calibrate/cross.h"

#include <math.h>
#include <string.h>

static int64_t stride(int64_t n)
{
    return (n + 7) / 8 * 8;
}

int64_t dq_cross_bytes(int64_t m, int64_t n, int64_t max_rows)
{
    return m * stride(n) * (int64_t)sizeof(double) + dq_tile_sums_bytes(m, n, false, max_rows);
}

dq_status dq_cross_new(dq_cross **out, int64_t max_m, int64_t max_n, int64_t max_rows, dq_err *err)
{
    dq_cross *x = *out = dq_block_new(1, sizeof *x, err);
    if (!x) return err->code;
    x->c = dq_block_new((size_t)max_m, (size_t)stride(max_n) * sizeof *x->c, err);
    if (dq_tile_sums_new(&x->sums, max_m, max_n, false, max_rows, err) == DQ_OK) return DQ_OK;
    dq_cross_free(x);
    *out = NULL;
    return err->code;
}

void dq_cross_free(dq_cross *x)
{
    if (!x) return;
    dq_block_free(x->c);
    dq_tile_sums_free(&x->sums);
    dq_block_free(x);
}

void dq_cross_begin(dq_cross *x, int64_t m, int64_t n)
{
    x->m = m;
    x->n = n;
    x->ld = stride(n);
    x->rows = 0;
    x->sums.c = x->c;
    x->sums.m = m;
    x->sums.n = n;
    x->sums.ld = x->ld;
    memset(x->c, 0, (size_t)(m * x->ld) * sizeof *x->c);
}

dq_status dq_cross_add(dq_cross *c, dq_backend *b, dq_mat a, dq_mat x, dq_tile_sums_rows which,
                       dq_err *err)
{
    int64_t rows;
    DQ_TRY(dq_tile_sums_add(&c->sums, b, a, x, which, &rows, err));
    c->rows += rows;
    return DQ_OK;
}

dq_status dq_cross_share(dq_cross *c, dq_err *err)
{
    return dq_tile_sums_share(&c->sums, err);
}

dq_status dq_cross_mean(dq_cross *x, const char *what, dq_err *err)
{
    const double share = x->rows > 0 ? 1 / (double)x->rows : 0;
    bool finite = true;
#pragma omp parallel for schedule(static) reduction(&& : finite)
    for (int64_t r = 0; r < x->m; r++) {
        for (int64_t c = 0; c < x->n; c++) {
            x->c[r * x->ld + c] *= share;
            finite = finite && isfinite(x->c[r * x->ld + c]);
        }
    }
    if (finite) return DQ_OK;
    return dq_fail_with(
        err, DQ_DAMAGED, (dq_remedy){.code = DQ_REMEDY_SUMS},
        "%s: sums of what the rounded model lacks on the calibration text are not finite", what);
}

void dq_cross_take_in(dq_cross *x, const dq_cross *part)
{
    for (int64_t i = 0; i < x->m * x->ld; i++) x->c[i] += part->c[i];
    x->rows += part->rows;
}
