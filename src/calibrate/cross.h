/* cross: C = mean of a x^T over rows of two activations, as hessian.h has it of one.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CROSS_H
#define DQ_CROSS_H

#include "calibrate/tile_sums.h"

typedef struct dq_cross {
    int64_t m, n, ld; /* ld: a multiple of 8 */
    int64_t rows;     /* added so far */
    double *c;        /* [m, ld], 64-byte aligned: sums, and means after dq_cross_mean */
    dq_tile_sums sums;
} dq_cross;

/* For at most max_m x max_n, and calls that add at most max_rows rows. DQ_RESOURCE. */
dq_status dq_cross_new(dq_cross **out, int64_t max_m, int64_t max_n, int64_t max_rows, dq_err *err);
void dq_cross_free(dq_cross *x); /* NULL allowed */
int64_t dq_cross_bytes(int64_t max_m, int64_t max_n, int64_t max_rows);
/* Empty, for m <= max_m and n <= max_n. */
void dq_cross_begin(dq_cross *x, int64_t m, int64_t n);
/* By all ranks: adds rows of a[rows, m] and x[rows, n], as dq_tile_sums_add does; and after the last call. */
dq_status dq_cross_add(dq_cross *c, dq_backend *b, dq_mat a, dq_mat x, dq_tile_sums_rows which,
                       dq_err *err);
dq_status dq_cross_share(dq_cross *c, dq_err *err);
/* Sums become means. DQ_DAMAGED, naming `what`, where one is not finite. */
dq_status dq_cross_mean(dq_cross *x, const char *what, dq_err *err);
/* x += part, sums of as many values over other rows. */
void dq_cross_take_in(dq_cross *x, const dq_cross *part);

#endif
