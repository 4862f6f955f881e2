/* reduce: sums over a block, always added in the same order.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_REDUCE_CUH
#define DQ_REDUCE_CUH

#include "kernels/cuda/device/ptx.cuh"

/* Sums of v[N] over the block's THREADS threads, in all of them. The first thing after a barrier if it is
 * called twice. */
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
