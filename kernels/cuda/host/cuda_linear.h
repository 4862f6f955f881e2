/* cuda_linear: pieces of products with weights, for matmul and for logits. Private to kernels/cuda.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CUDA_LINEAR_H
#define DQ_CUDA_LINEAR_H

#include "kernels/cuda/host/cuda_blas.h"

/* Rows n0 .. n0 + n of w in the type of a product, where they lie or in scratch A. NULL: sticky error. */
const void *dq_cuda_wide_rows(dq_backend *b, const dq_cuda_weight *w, int64_t n0, int64_t n,
                              bool bf16);
/* Rows m0 .. m0 + DQ_CUDA_TILE_ROWS of src in that type; rows after the last hold anything. Where they lie
 * or in scratch B. NULL: sticky error. */
const void *dq_cuda_tile_rows(dq_backend *b, dq_mat src, int64_t m0, bool bf16);
/* Rows of w that a product widens at a time. */
int64_t dq_cuda_wide_count(const dq_cuda_weight *w);

#endif
