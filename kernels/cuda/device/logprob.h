/* logprob: sums over a vocabulary that comes in pieces, so that no row of all logits is ever made.
 * Pointers are device memory, work is in stream s. Pieces come in ascending order; everything is in
 * double but the logits themselves.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_LOGPROB_H
#define DQ_LOGPROB_H

#include "kernels/cuda/host/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is known of one row after some pieces. */
typedef struct dq_logprob_row {
    double sum;   /* of exp(logit - most) */
    float max;    /* largest logit, NaN skipped */
    float target; /* the target's logit, once seen */
    int32_t top;  /* its index, the lowest among equals; INT32_MAX: none yet */
    int32_t unused;
} dq_logprob_row;

typedef struct dq_logprob_kld_row {
    double sum_p, sum_q, weighted; /* weighted: of exp(p - max_p) (p - q) */
    float max_p, max_q;
} dq_logprob_kld_row;

/* Entries first .. first + n of each row: logits[rows][ld]. first 0 starts the rows. target[rows] or NULL. */
cudaError_t dq_logprob_piece(dq_logprob_row *state, const float *logits, int64_t ld, int64_t first,
                             int64_t n, const int32_t *target, int64_t rows, cudaStream_t s);
/* logp[rows] (without a target: that of top1) and top1[rows]; either may be NULL. */
cudaError_t dq_logprob_end(double *logp, int32_t *top1, const dq_logprob_row *state,
                           const int32_t *target, int64_t rows, cudaStream_t s);

/* The same for KL(softmax(p) || softmax(q)). */
cudaError_t dq_logprob_kld_piece(dq_logprob_kld_row *state, const float *p, const float *q,
                                 int64_t ld, int64_t first, int64_t n, int64_t rows,
                                 cudaStream_t s);
cudaError_t dq_logprob_kld_end(double *kld, const dq_logprob_kld_row *state, int64_t rows,
                               cudaStream_t s);

#ifdef __cplusplus
}
#endif

#endif
