/* fused: attention in one kernel: scores, both softmaxes, their difference and the product with the
 * values of a page stay on the multiprocessor. Units, pages and heads are those of attention.h; nothing
 * of the size of a strip is held.
 *
 * Two passes over a row's pages: the first finds maximum and sum of each map, the second makes the
 * scores again, D = P1 - lambda P2, and adds D V page by page in their order. A row's result depends on
 * its own keys only. Arithmetic:
 *   int8  what MODEL.md defines: S is bit for bit that of the CPU, exps and sums are the device's own.
 *         Needs codes of at most 8 bits on both sides; tokens that a row reads unquantized are
 *         multiplied in f32.
 *   bf16  queries, keys, values (of codes: code times scale) and D rounded to bf16, sums in f32. Any
 *         pages.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_FUSED_H
#define DQ_FUSED_H

#include "kernels/cuda/device/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DQ_FUSED_INT8, DQ_FUSED_BF16 };

/* Rounding of logits: round as in attention.h; absmax[seq][n_q] for DQ_ROUND_GIVEN. */
typedef struct dq_fused_logits {
    int32_t round;
    float qmax;
    const float *absmax;
} dq_fused_logits;

/* NULL: the launches below take these arguments. Otherwise what they do not take, in words. Looks at
 * host fields only. */
const char *dq_fused_lacks(const dq_attention_units *u, const dq_attention_finish *f, int math,
                           int round);

/* Strips, as dq_attention_scores. */
cudaError_t dq_fused_scores(dq_attention_units u, int math, cudaStream_t s);
/* As dq_attention_absmax. */
cudaError_t dq_fused_absmax(dq_attention_units u, uint32_t *max, int math, cudaStream_t s);
/* Uses no strip, sum or factor of the units. Later units of a sequence, which see more keys, go first. */
cudaError_t dq_fused_attend(dq_attention_units u, dq_attention_finish f, dq_fused_logits l,
                            int math, cudaStream_t s);

enum { DQ_FUSED_DECODE_ROWS = 8 };
/* Floats that dq_fused_decode wants after the strips of a unit with so many output heads, rows and parts. */
int64_t dq_fused_decode_floats(const dq_attention_units *u, int64_t outs, int64_t rows,
                               int64_t parts);
/* dq_fused_attend in int8, bit for bit, for units of at most DQ_FUSED_DECODE_ROWS rows: blocks share their
 * pages. Uses strips and sums, no factors. */
cudaError_t dq_fused_decode(dq_attention_units u, dq_attention_finish f, dq_fused_logits l,
                            cudaStream_t s);

#ifdef __cplusplus
}
#endif

#endif
