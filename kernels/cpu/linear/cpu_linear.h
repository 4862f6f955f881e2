/* Weights of products as the CPU keeps them: dense copies, and packed codes.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CPU_LINEAR_H
#define DQ_CPU_LINEAR_H

#include "kernels/cpu/cpu.h"

/* ---- CPU dense ----
 * Copies of weights in large pages, as values, for products with few rows. Such a product is a
 * read of its weight; where a mapped file lies in pages of 4 KiB, neither translation nor the
 * fetching ahead of the processor goes beyond one, and what lies in blocks of ggml would be
 * dequantized anew each time. Private to kernels/cpu. */

/* Whether it is for weights like w: dense ones, and those in blocks of ggml. */
bool dq_cpu_dense_takes(const dq_weight *w);
/* As dq_ops says, of such a weight. */
bool dq_cpu_dense_acquire(dq_backend *b, const dq_weight *w);
void dq_cpu_dense_release(dq_backend *b, const dq_weight *w);
void dq_cpu_dense_end(dq_backend *b); /* frees all */

/* A dense weight of the same values, or w. After 16 products with few rows acquired weights are
 * copied, dense ones from mapped files within three quarters of the memory left, and what was read
 * is given back to the file. Outside parallel regions. */
dq_weight dq_cpu_dense_weight(dq_backend *b, const dq_weight *w, bool few_rows);

/* ---- CPU prepacked ----
 * Weights prepacked for products (dq_simd_prepacked_weight), kept while they are acquired. Private
 * to kernels/cpu. */

/* As dq_ops says. A weight is prepacked at its first product when its groups are whole chunks (or
 * rows), its codes lie in a file's mapping, so that what is read can be given back, and all
 * packings take at most three quarters of the memory left at the first acquisition. */
bool dq_cpu_prepacked_acquire(dq_backend *b, const dq_weight *w);
void dq_cpu_prepacked_release(dq_backend *b, const dq_weight *w);
void dq_cpu_prepacked_end(dq_backend *b); /* frees all */

/* What products with w use. UNDECIDED: memory decides when w is acquired. */
typedef enum dq_cpu_packing { DQ_CPU_ROWS, DQ_CPU_BLOCKS, DQ_CPU_UNDECIDED } dq_cpu_packing;
dq_cpu_packing dq_cpu_prepacked_state(const dq_backend *b, const dq_weight *w);
/* It, made if need be; NULL: none, w is used where it lies. Outside parallel regions. */
const dq_simd_prepacked_weight *dq_cpu_prepacked_of(dq_backend *b, const dq_weight *w);

/* Whether a packing could serve f32 products with w, wherever its codes lie: affine codes or levels
 * in groups of whole chunks or rows. In int8 every such weight has one. */
bool dq_cpu_prepacked_fits(const dq_weight *w);
/* What a packing of w is; data is NULL. */
dq_simd_prepacked_weight dq_cpu_prepacked_shape(const dq_weight *w);
void dq_cpu_prepacked_block(const dq_simd *simd, dq_levels_chunks *levels, uint8_t *to,
                            const dq_weight *w, const dq_simd_prepacked_weight *d, int64_t i);

/* cpu_prepacked.c. dst = src W^T + bias; w is packed block by block where it is not kept prepacked.
 *
 * int8: a row of activations is rounded by the weight's column groups, scale absmax/127, code
 * rint(x/scale). Codes are summed exactly in 32 bits; groups are added in order in f32, each as
 * (float)sum * (activation scale * weight scale); a zero point z subtracts z times the sum of
 * activations' codes.
 * f32: rows are cut into pieces of columns, and values into split integers of three digits of 8
 * bits (simd.h). Sums of codes are exact, so results depend on no instruction set or thread. */
void dq_cpu_prepacked_int8(dq_backend *b, dq_mat dst, dq_mat src, const dq_weight *w,
                           const float *bias);
void dq_cpu_prepacked_f32(dq_backend *b, dq_mat dst, dq_mat src, const dq_weight *w,
                          const float *bias);

#endif
