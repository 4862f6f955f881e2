/* rows: kernels on rows of activations, f32 in row-major order. Pointers are device memory, work is in
 * stream s. What cpu.c computes; sums are in double and in a fixed order.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ROWS_H
#define DQ_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda/device/cuda_weight.h"
#include "kernels/cuda/host/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* dst[rows][table->cols] = rows ids[rows] of the table. */
cudaError_t dq_rows_embed(float *dst, const dq_cuda_weight *table, const int32_t *ids, int64_t rows,
                          cudaStream_t s);
/* dst[i] = src[index[i]]; index[rows] */
cudaError_t dq_rows_gather(float *dst, const float *src, const int64_t *index, int64_t rows,
                           int64_t cols, cudaStream_t s);
/* dst = src / sqrt(mean of squares + eps) * gain[cols] (NULL: 1); dst may be src. */
cudaError_t dq_rows_rms_norm(float *dst, const float *src, const float *gain, float eps,
                             int64_t rows, int64_t cols, cudaStream_t s);
/* table[rows][2 * half]: cosines, then sines, of the f32 products pos * inv_freq[half]. */
cudaError_t dq_rows_rope_table(float *table, const int32_t *pos, const float *inv_freq,
                               float amplitude, int64_t rows, int64_t half, cudaStream_t s);
/* Turns every run of dim values of x[rows][cols] in place; adjacent: pairs are neighbours, else halves. */
cudaError_t dq_rows_rope(float *x, const float *table, bool adjacent, int64_t rows, int64_t cols,
                         int64_t dim, cudaStream_t s);
/* Every run of dim values, a power of two up to 8192, times the normalized Hadamard matrix. */
cudaError_t dq_rows_hadamard(float *x, int64_t n_runs, int dim, float norm, cudaStream_t s);
/* gate = gate / (1 + exp(-gate)) * up over n values, equal to the CPU's bit for bit. */
cudaError_t dq_rows_silu(float *gate, const float *up, int64_t n, cudaStream_t s);
/* gate = PolyNorm of the row, with w0, w1, w2 and b in param, times up. */
cudaError_t dq_rows_polynorm(float *gate, const float *up, const float param[4], int64_t rows,
                             int64_t cols, cudaStream_t s);
cudaError_t dq_rows_sigmoid(float *x, int64_t n, cudaStream_t s);
cudaError_t dq_rows_add(float *dst, const float *src, int64_t n, cudaStream_t s);
/* *found = the largest UINT32_MAX - row of the rows with a NaN or an infinity; left alone without any. */
cudaError_t dq_rows_first_bad(uint32_t *found, const float *x, int64_t rows, int64_t cols,
                              cudaStream_t s);

#ifdef __cplusplus
}
#endif

#endif
