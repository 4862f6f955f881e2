/* cross: C = mean of a x^T over rows of two activations, f32 products over blocks of rows added up in f64, as hessian.h has
 * them of one.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CROSS_H
#define DQ_CROSS_H

#include "engine/backend.h"

typedef struct dq_cross {
    int64_t m, n, ld; /* ld: a multiple of 8 */
    int64_t rows;     /* added so far */
    double *c;        /* [m, ld], 64-byte aligned: sums, and means after dq_cross_mean */
    float *left;      /* [m, DQ_HESSIAN_ROWS] a block of a, transposed */
    float *right;     /* [n, DQ_HESSIAN_ROWS] a block of x */
    float *product;   /* [tile, n] */
} dq_cross;

/* For at most max_m x max_n. DQ_RESOURCE. */
dq_status dq_cross_new(dq_cross **out, int64_t max_m, int64_t max_n, dq_err *err);
void dq_cross_free(dq_cross *x); /* NULL allowed */
int64_t dq_cross_bytes(int64_t max_m, int64_t max_n);
/* Empty, for m <= max_m and n <= max_n. */
void dq_cross_begin(dq_cross *x, int64_t m, int64_t n);
/* Adds the rows of a[rows, m] and x[rows, n], host memory, with the products of a backend that computes in host memory. */
void dq_cross_add(dq_cross *c, dq_backend *b, dq_mat a, dq_mat x);
/* Sums become means. DQ_DAMAGED, naming `what`, where one is not finite. */
dq_status dq_cross_mean(dq_cross *x, const char *what, dq_err *err);
/* x += part, sums of as many values over other rows. */
void dq_cross_take_in(dq_cross *x, const dq_cross *part);

#endif
