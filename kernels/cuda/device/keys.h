/* keys: kernels that read and measure the keys of a list for policies, and read its values, in the order of the CPU's sums (cpu_keys.c). Structs are passed by value, their pointers and all others are device memory.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KEYS_H
#define DQ_KEYS_H

#include "kernels/cuda/device/page.h"
#include "kernels/cuda/host/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The keys of one list, as a query reads them that takes the first `coded` as codes. */
typedef struct dq_keys {
    const dq_page *pages;
    int64_t count, coded;
    dq_page_form form;
    int32_t heads; /* of the list's group */
    int32_t side;  /* 1: these are the list's values instead */
} dq_keys;

/* cosine[count] as kv_key_cosines of backend.h. Scratch: norm[heads][count], sum[heads][dim]. */
cudaError_t dq_keys_cosines(double *cosine, dq_keys k, double *norm, double *sum, cudaStream_t s);

/* x[count][heads * dim] */
cudaError_t dq_keys_read(float *x, dq_keys k, cudaStream_t s);
/* x[n][cols] = (x - its mean over n) * unit. Scratch: mean[cols]. */
cudaError_t dq_keys_centre(float *x, double *mean, double unit, int64_t n, int64_t cols,
                           cudaStream_t s);
/* Upper triangle of gram[cols][cols] = x'x: f32 sums of 64 rows each, added in f64. */
cudaError_t dq_keys_gram(double *gram, const float *x, int64_t n, int64_t cols, cudaStream_t s);
/* leverage[n] = |x right|^2 of each row; right[cols][cols] is an upper triangle with zeros below. */
cudaError_t dq_keys_leverages(double *leverage, const float *x, const float *right, int64_t n,
                              int64_t cols, cudaStream_t s);

#ifdef __cplusplus
}
#endif

#endif
