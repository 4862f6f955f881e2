/* cuda_blas: dense products by cuBLAS. Private to kernels/cuda.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CUDA_BLAS_H
#define DQ_CUDA_BLAS_H

#include "kernels/cuda/host/cuda.h"

/* Every product has this many rows. cuBLAS picks its kernel, and with it the order of sums, by the shape
 * and the alignment of a product; so a row's result can only be independent of the rows beside it
 * if these never change. */
#ifdef DQ_SIMT
enum { DQ_CUDA_TILE_ROWS = 32 };
#else
enum { DQ_CUDA_TILE_ROWS = 256 };
#endif

/* dst[DQ_CUDA_TILE_ROWS][ldd] = src[DQ_CUDA_TILE_ROWS][k] w[n][k]^T, the first n columns of dst. src and w
 * hold f32, or (bf16) bf16 with sums in f32. dst and src stand on 256 bytes. Opens cuBLAS at the first call:
 * DQ_RESOURCE when it is missing. */
void dq_cuda_gemm(dq_backend *b, bool bf16, float *dst, int64_t ldd, const void *src, const void *w,
                  int64_t n, int64_t k);
/* c[n][n] = x[n][n] y[n][n]^T as fast as cuBLAS can: bf16 with f32 in c, or int8 with int32. What other products
 * are measured against. False where cuBLAS refuses; the sticky error is not touched then. */
bool dq_cuda_gemm_square(dq_backend *b, bool int8, void *c, const void *x, const void *y, int n);
void dq_cuda_blas_free(dq_cuda_blas *k); /* NULL allowed */

#endif
