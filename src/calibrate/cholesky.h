/* cholesky: the factor of a symmetric positive definite matrix in f64: A = L L^T. The same bits on every machine, for any
 * number of threads.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CHOLESKY_H
#define DQ_CHOLESKY_H

#include "base/base.h"

/* Rows of such a matrix lie this far apart: an odd number of cache lines, so that a column does not fall into one set of
 * the cache. */
static inline int64_t dq_cholesky_stride(int64_t n)
{
    const int64_t lines = (n + 7) / 8;
    return 8 * (lines + (lines % 2 == 0));
}

/* a[n, n], row stride ld, 64-byte aligned, ld a multiple of 8: the lower triangle is read and replaced by L; what is above
 * the diagonal is left alone. *bad_column is -1, or the first column at which the matrix is not positive definite; then
 * the lower triangle holds nothing of use. DQ_RESOURCE. */
dq_status dq_cholesky(int64_t *bad_column, double *a, int64_t n, int64_t ld, dq_err *err);

#endif
