/* cpu_dense: copies of dense weights in large pages, for products with few rows. Such a product is a read of its weight;
 * where a mapped file lies in pages of 4 KiB, neither translation nor the fetching ahead of the processor goes beyond one.
 * Private to kernels/cpu.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CPU_DENSE_H
#define DQ_CPU_DENSE_H

#include "kernels/cpu/cpu.h"

/* As dq_ops says, of a dense weight. */
bool dq_cpu_dense_acquire(dq_backend *b, const dq_weight *w);
void dq_cpu_dense_release(dq_backend *b, const dq_weight *w);
void dq_cpu_dense_end(dq_backend *b); /* frees all */

/* Where a product reads the values of w. After 16 products with few rows the weights that are acquired are copied, if they
 * lie in mapped files and take at most three quarters of the memory that is left; what was read is given back to the
 * file. Before that, and else, it is w->data. Outside parallel regions. */
const void *dq_cpu_dense_values(dq_backend *b, const dq_weight *w, bool few_rows);

#endif
