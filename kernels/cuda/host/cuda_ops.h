/* cuda_ops: the operations of the CUDA backend, for its table; backend.h says what they do.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CUDA_OPS_H
#define DQ_CUDA_OPS_H

#include "kernels/cuda/host/cuda.h"

/* cuda_rows.c */
void dq_cuda_embed(dq_backend *b, dq_mat dst, const dq_weight *table, const int32_t *ids);
void dq_cuda_first_bad_row(dq_backend *b, int64_t *row, dq_mat x);
void dq_cuda_rms_norm(dq_backend *b, dq_mat dst, dq_mat src, const float *gain, float eps);
void dq_cuda_rope_table(dq_backend *b, dq_mat table, const int32_t *pos, const dq_rope *rope);
void dq_cuda_rope(dq_backend *b, dq_mat x, dq_mat table, dq_rope_order order);
void dq_cuda_ffn_act(dq_backend *b, dq_mat gate, dq_mat up, dq_act act, const float *param);
void dq_cuda_sigmoid(dq_backend *b, dq_mat x);
void dq_cuda_hadamard(dq_backend *b, dq_mat x, int dim);
void dq_cuda_add(dq_backend *b, dq_mat dst, dq_mat src);
void dq_cuda_gather(dq_backend *b, dq_mat dst, dq_mat src, const int64_t *index);

/* cuda_linear.c */
void dq_cuda_matmul(dq_backend *b, dq_mat dst, dq_mat src, const dq_weight *w, const float *bias,
                    dq_num num);
const char *dq_cuda_matmul_kernel(const dq_backend *b, const dq_weight *w, dq_num num);

/* cuda_logprob.c */
void dq_cuda_logprob(dq_backend *b, double *logp, int32_t *top1, dq_mat hidden,
                     const dq_weight *head, const int32_t *target, dq_num num);
void dq_cuda_kld(dq_backend *b, double *kld, dq_mat ref, const dq_weight *ref_head, dq_num ref_num,
                 dq_mat hidden, const dq_weight *head, dq_num num);

#endif
