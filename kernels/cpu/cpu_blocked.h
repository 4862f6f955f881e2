/* cpu_blocked: packed weights laid out for products (dq_simd_blocked_weight), kept while they are acquired. Private to
 * kernels/cpu.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CPU_BLOCKED_H
#define DQ_CPU_BLOCKED_H

#include "kernels/cpu/cpu.h"

/* As dq_ops says. A weight gets a layout of its own when its groups are whole chunks (or rows), when its codes lie in the
 * mapping of a file, so that what is read of them can be given back, and while all layouts take no more than three
 * quarters of the memory that was left when the first weight was acquired; it is made at the first product. Others are
 * used where they lie. The last quarter is for what runs: caches, states, scratch; it is not counted. */
bool dq_cpu_blocked_acquire(dq_backend *b, const dq_weight *w);
void dq_cpu_blocked_release(dq_backend *b, const dq_weight *w);
void dq_cpu_blocked_end(dq_backend *b); /* frees all */

/* What products with w use. UNDECIDED: memory decides when w is acquired. */
typedef enum dq_cpu_layout { DQ_CPU_ROWS, DQ_CPU_BLOCKS, DQ_CPU_UNDECIDED } dq_cpu_layout;
dq_cpu_layout dq_cpu_blocked_layout(const dq_backend *b, const dq_weight *w);
/* It, made if need be; NULL: none, w is used where it lies. Outside parallel regions. */
const dq_simd_blocked_weight *dq_cpu_blocked_of(dq_backend *b, const dq_weight *w);

/* Whether a layout could serve products in f32 with w, wherever its codes lie: they are affine, and groups are whole chunks or
 * rows. In int8 every affine weight has one. */
bool dq_cpu_blocked_fits(const dq_weight *w);
/* What a layout of w is; data is NULL. */
dq_simd_blocked_weight dq_cpu_blocked_shape(const dq_weight *w);
/* Block i of it, to[d->bytes] on 64 bytes; after it there is room up to dq_cpu_blocked_scratch bytes. Every level makes the
 * same. */
int64_t dq_cpu_blocked_scratch(const dq_weight *w, const dq_simd_blocked_weight *d);
void dq_cpu_blocked_lay_out(const dq_simd *simd, uint8_t *to, const dq_weight *w,
                            const dq_simd_blocked_weight *d, int64_t i);

/* cpu_blocked_matmul.c. dst = src W^T + bias; a weight that has no layout is laid out block by block while the product runs.
 *
 * In int8 a row of activations is rounded group by group, groups being those of the weight's columns: scale absmax/127, code
 * rint(x/scale). Codes are multiplied and summed exactly in 32 bits; groups are added in order in f32, each as (float)sum *
 * (activation scale * weight scale). A zero point z of a group takes z times the sum of the activations' codes off its sum. In
 * f32 rows of activations are cut into pieces of columns, and each into digits of 8 bits (simd.h). Sums of codes are exact, so a
 * result does not depend on the level, on other rows or on threads. */
void dq_cpu_blocked_int8(dq_backend *b, dq_mat dst, dq_mat src, const dq_weight *w,
                         const float *bias);
void dq_cpu_blocked_f32(dq_backend *b, dq_mat dst, dq_mat src, const dq_weight *w,
                        const float *bias);

#endif
