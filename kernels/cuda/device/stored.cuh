/* stored: elements of a weight as it is stored, and sums over a block, always in the same order.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_STORED_CUH
#define DQ_STORED_CUH

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/ptx.cuh"

/* Scale of a row's group of a packed weight. */
DQ_DEVICE float dq_stored_scale(const dq_cuda_weight &w, int64_t row, int64_t group)
{
    const int64_t at = group * w.scale_pitch + row;
    return w.scale_f16 ? dq_f16_f32(((const uint16_t *)w.scale)[at]) : ((const float *)w.scale)[at];
}

/* A code less 2^(bits-1). */
DQ_DEVICE int32_t dq_stored_code(const dq_cuda_weight &w, int64_t row, int64_t group,
                                 int col_in_group)
{
    const int64_t bit = (group * w.group_codes + col_in_group) * w.bits;
    const uint8_t *p = (const uint8_t *)w.data + row * w.pitch + bit / 8;
    const int shift = (int)(bit % 8);
    uint32_t u = (uint32_t)p[0] >> shift;
    if (shift + w.bits > 8) u |= (uint32_t)p[1] << (8 - shift);
    return (int32_t)(u & ((1u << w.bits) - 1)) - (1 << (w.bits - 1));
}

/* What is to be added to such codes of a row's group: 2^(bits-1) less the zero point. */
DQ_DEVICE int32_t dq_stored_shift(const dq_cuda_weight &w, int64_t row, int64_t group)
{
    return w.zero ? (1 << (w.bits - 1)) - (int32_t)w.zero[group * w.zero_pitch + row] : 0;
}

/* As dq_weight defines it: dense exactly, packed code * scale rounded once. */
DQ_DEVICE float dq_stored_value(const dq_cuda_weight &w, int64_t row, int col)
{
    const int64_t at = row * w.cols + col;
    if (w.kind == DQ_STORED_F32) return ((const float *)w.data)[at];
    if (w.kind == DQ_STORED_F16) return dq_f16_f32(((const uint16_t *)w.data)[at]);
    if (w.kind == DQ_STORED_BF16) return dq_bf16_f32(((const uint16_t *)w.data)[at]);
    const int group = col / (int)w.group;
    const int32_t code = dq_stored_code(w, row, group, col - group * (int)w.group);
    return dq_mul_rn(dq_s32_f32(code + dq_stored_shift(w, row, group)),
                     dq_stored_scale(w, row, group));
}

/* All threads get the sums of v[N]; a second call wants a barrier before it. */
template <int N, int THREADS> DQ_DEVICE void dq_reduce_block_sum(double v[N])
{
    DQ_SHARED(double, part, [THREADS / DQ_WARP][N]);
    DQ_UNROLL
    for (int i = 0; i < N; i++) {
        for (unsigned o = DQ_WARP / 2; o; o /= 2) v[i] = dq_add_rn(v[i], dq_shfl_xor(v[i], o));
        if (dq_lane() == 0) part[dq_warp()][i] = v[i];
    }
    DQ_SYNC(block_sum_there);
    DQ_UNROLL
    for (int i = 0; i < N; i++) {
        v[i] = 0;
        for (int w = 0; w < THREADS / DQ_WARP; w++) v[i] = dq_add_rn(v[i], part[w][i]);
    }
}

#endif
