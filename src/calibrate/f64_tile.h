/* f64_tile: the product of two tiles in f64, on which the factorization and the rounding stand. Every element is its own
 * chain of products and sums in ascending k, so that the bits are the same on every machine.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_F64_TILE_H
#define DQ_F64_TILE_H

#include <stdint.h>

enum { DQ_F64_TILE = 64 }; /* columns of c, and the step of its rows */

/* c[m, 64] += a^T b for a[k, m] (row stride lda) and b[k, 64] (row stride 64); c has row stride 64. m is a multiple of
 * 4. b and c are 64-byte aligned. */
void dq_f64_tile_add(double *c, const double *a, int64_t lda, const double *b, int64_t m,
                     int64_t k);
/* dst[cols, 64] = src[rows, cols]^T (row stride ld), rows <= 64; columns rows .. 63 of dst become 0. */
void dq_f64_tile_transpose(double *dst, const double *src, int64_t ld, int64_t rows, int64_t cols);

#endif
