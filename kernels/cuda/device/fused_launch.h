/* fused_launch: the launchers of one arithmetic each.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_FUSED_LAUNCH_H
#define DQ_FUSED_LAUNCH_H

#include "kernels/cuda/device/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* most NULL: strips. */
cudaError_t dq_fused_scores_int8(dq_attention_units u, uint32_t *max, cudaStream_t s);
cudaError_t dq_fused_scores_bf16(dq_attention_units u, uint32_t *max, cudaStream_t s);
cudaError_t dq_fused_attend_int8(dq_attention_units u, dq_attention_finish f, dq_fused_logits l,
                                 cudaStream_t s);
cudaError_t dq_fused_attend_bf16(dq_attention_units u, dq_attention_finish f, dq_fused_logits l,
                                 cudaStream_t s);

#ifdef __cplusplus
}

#include "kernels/cuda/device/ptx.cuh"

/* Returns the result of launching a kernel of blocks of `threads` for `blocks` pairs of units and heads,
 * after permission for its shared memory. A macro, so that a failed launch is reported by the kernel's name. */
#define DQ_FUSED_LAUNCH(kernel, blocks, threads, smem, s, ...)                                     \
    do {                                                                                           \
        if ((blocks) == 0) return cudaSuccess;                                                     \
        const cudaError_t allowed = DQ_ALLOW_SMEM(kernel, smem);                                   \
        if (allowed != cudaSuccess) return allowed;                                                \
        DQ_LAUNCH(kernel, dim3((unsigned)(blocks)), threads, (unsigned)(smem), s, __VA_ARGS__);    \
        return cudaGetLastError();                                                                 \
    } while (0)
#endif

#endif
