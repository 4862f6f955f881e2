/* linear: kernels around products with weights, and the product of 8-bit activations with packed ones.
 * Pointers are device memory, work is in stream s, results are in row-major order.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_LINEAR_H
#define DQ_LINEAR_H

#include <stdbool.h>

#include "kernels/cuda/device/cuda_weight.h"
#include "kernels/cuda/host/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* dst[n][cols] = rows n0 .. n0 + n of w, as f32 or (bf16) rounded to bf16. */
cudaError_t dq_linear_widen(void *dst, bool bf16, const dq_cuda_weight *w, int64_t n0, int64_t n,
                            cudaStream_t s);
/* dst[n] = src[n], rounded to bf16. */
cudaError_t dq_linear_bf16(uint16_t *dst, const float *src, int64_t n, cudaStream_t s);
/* x[rows][cols] += bias[cols] */
cudaError_t dq_linear_bias(float *x, const float *bias, int64_t rows, int64_t cols, cudaStream_t s);

/* Bytes per row of the codes that dq_linear_round makes for w; floats per group of its scales. */
int64_t dq_linear_code_pitch(const dq_cuda_weight *w);
int64_t dq_linear_scale_pitch(int64_t rows);
/* Rounds x[rows][w->cols] to 8 bits by row and column group of the packed w, by the rule of cpu_linear.h:
 * code[rows][code_pitch] with groups padded by zeros as those of w are, scale[groups][scale_pitch], and, where w
 * has zero points, the sums of codes, sum[groups][scale_pitch] (else NULL). */
cudaError_t dq_linear_round(int8_t *code, float *scale, int32_t *sum, const float *x, int64_t rows,
                            const dq_cuda_weight *w, cudaStream_t s);
/* dst[rows][w->rows] = x W^T + bias (NULL: none) of what dq_linear_round made, equal to the CPU's result
 * bit for bit. */
cudaError_t dq_linear_packed(float *dst, const int8_t *code, const float *scale, const int32_t *sum,
                             int64_t rows, const dq_cuda_weight *w, const float *bias,
                             cudaStream_t s);

#ifdef __cplusplus
}
#endif

#endif
