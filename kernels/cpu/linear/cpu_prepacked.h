/* cpu_prepacked: weights prepacked for products (dq_simd_prepacked_weight), kept while they are acquired. Private to
 * kernels/cpu.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CPU_PREPACKED_H
#define DQ_CPU_PREPACKED_H

#include "kernels/cpu/cpu.h"

/* As dq_ops says. A weight is kept prepacked when its groups are whole chunks (or rows), when its codes lie in the
 * mapping of a file, so that what is read of them can be given back, and while all packings take no more than three
 * quarters of the memory that was left when the first weight was acquired; it is made at the first product. Others are
 * used where they lie. The last quarter is for what runs: caches, states, scratch; it is not counted. */
bool dq_cpu_prepacked_acquire(dq_backend *b, const dq_weight *w);
void dq_cpu_prepacked_release(dq_backend *b, const dq_weight *w);
void dq_cpu_prepacked_end(dq_backend *b); /* frees all */

/* What products with w use. UNDECIDED: memory decides when w is acquired. */
typedef enum dq_cpu_packing { DQ_CPU_ROWS, DQ_CPU_BLOCKS, DQ_CPU_UNDECIDED } dq_cpu_packing;
dq_cpu_packing dq_cpu_prepacked_state(const dq_backend *b, const dq_weight *w);
/* It, made if need be; NULL: none, w is used where it lies. Outside parallel regions. */
const dq_simd_prepacked_weight *dq_cpu_prepacked_of(dq_backend *b, const dq_weight *w);

/* Whether a packing could serve products in f32 with w, wherever its codes lie: they are affine or levels (which become codes of
 * 8 bits, block by block), and groups are whole chunks or
 * rows. In int8 every such weight has one. */
bool dq_cpu_prepacked_fits(const dq_weight *w);
/* What a packing of w is; data is NULL. */
dq_simd_prepacked_weight dq_cpu_prepacked_shape(const dq_weight *w);
/* Block i of it, to[d->bytes] on 64 bytes; after it there is room up to dq_cpu_prepacked_scratch bytes. Every instruction set makes the
 * same. */
int64_t dq_cpu_prepacked_scratch(const dq_weight *w, const dq_simd_prepacked_weight *d);
void dq_cpu_prepacked_block(const dq_simd *simd, dq_levels_chunks *levels, uint8_t *to,
                            const dq_weight *w, const dq_simd_prepacked_weight *d, int64_t i);

/* cpu_prepacked_matmul.c. dst = src W^T + bias; a weight that is not kept prepacked is packed block by block while the product runs.
 *
 * In int8 a row of activations is rounded group by group, groups being those of the weight's columns: scale absmax/127, code
 * rint(x/scale). Codes are multiplied and summed exactly in 32 bits; groups are added in order in f32, each as (float)sum *
 * (activation scale * weight scale). A zero point z of a group takes z times the sum of the activations' codes off its sum. In
 * f32 rows of activations are cut into pieces of columns, and each value into a split integer of three parts of 8 bits (simd.h). Sums of codes are exact, so a
 * result does not depend on the instruction set, on other rows or on threads. */
void dq_cpu_prepacked_int8(dq_backend *b, dq_mat dst, dq_mat src, const dq_weight *w,
                           const float *bias);
void dq_cpu_prepacked_f32(dq_backend *b, dq_mat dst, dq_mat src, const dq_weight *w,
                          const float *bias);

#endif
