/* fused_launch: the launchers of one arithmetic each, behind those of fused.h.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_FUSED_LAUNCH_H
#define DQ_FUSED_LAUNCH_H

#include "fused.h"

#ifdef __cplusplus
extern "C" {
#endif

/* most NULL: strips. */
cudaError_t dq_fused_scores_int8(dq_units u, uint32_t *most, cudaStream_t s);
cudaError_t dq_fused_scores_bf16(dq_units u, uint32_t *most, cudaStream_t s);
cudaError_t dq_fused_attend_int8(dq_units u, dq_finish f, dq_fused_logits l, cudaStream_t s);
cudaError_t dq_fused_attend_bf16(dq_units u, dq_finish f, dq_fused_logits l, cudaStream_t s);

#ifdef __cplusplus
}
#endif

#endif
