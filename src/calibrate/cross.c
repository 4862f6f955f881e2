/* cross: see cross.h. Both blocks are transposed once and multiplied by the backend's own product, tile by tile of rows of the
 * result.
 * SPDX-License-Identifier: MIT */
#include "calibrate/cross.h"

#include "calibrate/hessian.h"

#include <math.h>
#include <string.h>

enum { TILE = 256 }; /* rows of the result at a time */

static int64_t stride(int64_t n)
{
    return (n + 7) / 8 * 8;
}

int64_t dq_cross_bytes(int64_t m, int64_t n)
{
    return m * stride(n) * (int64_t)sizeof(double) +
           ((m + n) * DQ_HESSIAN_ROWS + n * TILE) * (int64_t)sizeof(float);
}

dq_status dq_cross_new(dq_cross **out, int64_t max_m, int64_t max_n, dq_err *err)
{
    dq_cross *x = *out = dq_block_new(1, sizeof *x, err);
    if (!x) return err->code;
    const size_t m = (size_t)max_m, n = (size_t)max_n;
    x->c = dq_block_new(m, (size_t)stride(max_n) * sizeof *x->c, err);
    x->left = dq_block_new(m, DQ_HESSIAN_ROWS * sizeof *x->left, err);
    x->right = dq_block_new(n, DQ_HESSIAN_ROWS * sizeof *x->right, err);
    x->product = dq_block_new(n, TILE * sizeof *x->product, err);
    if (err->code == DQ_OK) return DQ_OK;
    dq_cross_free(x);
    *out = NULL;
    return err->code;
}

void dq_cross_free(dq_cross *x)
{
    if (!x) return;
    dq_block_free(x->c);
    dq_block_free(x->left);
    dq_block_free(x->right);
    dq_block_free(x->product);
    dq_block_free(x);
}

void dq_cross_begin(dq_cross *x, int64_t m, int64_t n)
{
    x->m = m;
    x->n = n;
    x->ld = stride(n);
    x->rows = 0;
    memset(x->c, 0, (size_t)(m * x->ld) * sizeof *x->c);
}

static void add_block(dq_cross *x, dq_backend *b, int64_t rows)
{
    const dq_weight right = dq_weight_of_f32("inputs", x->n, rows, x->right);
    for (int64_t i = 0; i < x->m; i += TILE) {
        const int64_t end = i + TILE < x->m ? i + TILE : x->m;
        const dq_mat left = {x->left + i * rows, end - i, rows};
        const dq_mat product = {x->product, end - i, x->n};
        b->ops->matmul(b, product, left, &right, NULL, DQ_NUM_F32);
#pragma omp parallel for schedule(static)
        for (int64_t r = i; r < end; r++) {
            const float *from = x->product + (r - i) * x->n;
            for (int64_t c = 0; c < x->n; c++) x->c[r * x->ld + c] += (double)from[c];
        }
    }
}

void dq_cross_add(dq_cross *c, dq_backend *b, dq_mat a, dq_mat x)
{
    for (int64_t r = 0; r < x.rows; r += DQ_HESSIAN_ROWS) {
        const int64_t n = x.rows - r < DQ_HESSIAN_ROWS ? x.rows - r : DQ_HESSIAN_ROWS;
        dq_hessian_transpose(c->left, (dq_mat){a.p + r * a.cols, n, a.cols});
        dq_hessian_transpose(c->right, (dq_mat){x.p + r * x.cols, n, x.cols});
        add_block(c, b, n);
    }
    c->rows += x.rows;
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
