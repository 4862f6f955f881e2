/* tile_sums: C = sum of a x^T over rows of two activations, or the lower triangle of sum of x x^T: f32 products over blocks of
 * rows, added up in f64, in the order of the rows. Several ranks add at the same time, each rows of its own: those of a
 * call come in the order of ranks, so that chunks that are dealt out one by one are added up as one process does it.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TILE_SUMS_H
#define DQ_TILE_SUMS_H

#include "engine/backend.h"

enum {
    DQ_TILE_SUMS_ROWS = 1024, /* of one product, at most */
    DQ_TILE_SUMS_TILE = 256   /* rows of C that a product gives, and that a rank has */
};

/* Which rows of activations a call adds: of each `piece` in succession all, or the first or second half. */
typedef enum dq_tile_sums_part { DQ_ROWS_ALL, DQ_ROWS_FIRST, DQ_ROWS_SECOND } dq_tile_sums_part;
typedef struct dq_tile_sums_rows {
    dq_tile_sums_part part;
    int64_t piece; /* DQ_TILE_SUMS_ROWS, or DQ_TILE_SUMS_NO_PIECES: the whole call is one */
} dq_tile_sums_rows;
#define DQ_TILE_SUMS_NO_PIECES INT64_MAX

/* Where sums lie. */
typedef struct dq_tile_sums {
    double *c; /* [m, ld] */
    int64_t m, n, ld;
    bool lower;           /* a is x, m = n, and what is above the diagonal is left alone */
    float *left, *right;  /* [m, rows], [n, rows] transposed blocks; lower: left is right */
    float *product[2];    /* of a tile, block after block */
    size_t product_bytes; /* of one of them */
    float *got;           /* likewise, of another rank */
    int64_t *rows_of;     /* [ranks] */
    int64_t max_rows;     /* of a call */
} dq_tile_sums;

/* Buffers for calls of at most max_rows rows; one process alone takes them in blocks. DQ_RESOURCE. */
dq_status dq_tile_sums_new(dq_tile_sums *s, int64_t max_m, int64_t max_n, bool lower,
                           int64_t max_rows, dq_err *err);
void dq_tile_sums_free(dq_tile_sums *s); /* {0} allowed; not c */
int64_t dq_tile_sums_bytes(int64_t max_m, int64_t max_n, bool lower, int64_t max_rows);
/* By all ranks: adds to c those rows of a[rows, m] and x[rows, n], host memory, with the products of a backend that computes in host
 * memory. A rank may have none, but `which` is the same for all. *rows: that were added. Until dq_tile_sums_share a rank has every count-th tile alone. Fails
 * where a rank has failed before. */
dq_status dq_tile_sums_add(const dq_tile_sums *s, dq_backend *b, dq_mat a, dq_mat x,
                           dq_tile_sums_rows which, int64_t *rows, dq_err *err);
/* By all ranks, after the last call: all have all of c. */
dq_status dq_tile_sums_share(const dq_tile_sums *s, dq_err *err);

/* dst[cols, rows] = x^T, on all threads. */
void dq_tile_sums_transpose(float *dst, dq_mat x);

#endif
