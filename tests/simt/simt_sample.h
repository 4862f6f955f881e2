/* simt_sample: two kernels that use most of what ptx.cuh has, for the tests of the simulation itself. Pointers
 * are device memory; work is in stream s, failures are in cudaGetLastError.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SIMT_SAMPLE_H
#define DQ_SIMT_SAMPLE_H

#include "kernels/cuda/host/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* c[m][n] = a[m][k] b[n][k]^T; k a multiple of 16, rows of a and b 16-byte aligned. */
void dq_sample_product(int32_t *c, const uint8_t *a, const int8_t *b, int m, int n, int k,
                       cudaStream_t s);
/* *total += sum of x[n]; one atomic addition per block. */
void dq_sample_sum(uint32_t *total, const uint32_t *x, int n, cudaStream_t s);
/* As dq_sample_sum, without its barrier. */
void dq_sample_sum_racy(uint32_t *total, const uint32_t *x, int n, cudaStream_t s);

#ifdef __cplusplus
}
#endif

#endif
