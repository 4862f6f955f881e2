/* cpu_dense: copies of weights in large pages, as values, for products with few rows. Such a product is a read of its weight;
 * where a mapped file lies in pages of 4 KiB, neither translation nor the fetching ahead of the processor goes beyond one,
 * and what lies in blocks of ggml would be dequantized anew each time. Private to kernels/cpu.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CPU_DENSE_H
#define DQ_CPU_DENSE_H

#include "kernels/cpu/cpu.h"

/* Whether it is for weights like w: dense ones, and those in blocks of ggml. */
bool dq_cpu_dense_takes(const dq_weight *w);
/* As dq_ops says, of such a weight. */
bool dq_cpu_dense_acquire(dq_backend *b, const dq_weight *w);
void dq_cpu_dense_release(dq_backend *b, const dq_weight *w);
void dq_cpu_dense_end(dq_backend *b); /* frees all */

/* What a product reads in place of w: a dense weight of the same values, or w. After 16 products with few rows the weights
 * that are acquired are copied, dense ones if they lie in mapped files, where they take at most three quarters of the memory
 * that is left; what was read is given back to the file. Outside parallel regions. */
dq_weight dq_cpu_dense_weight(dq_backend *b, const dq_weight *w, bool few_rows);

#endif
