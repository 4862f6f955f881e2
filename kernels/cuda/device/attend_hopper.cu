/* attend_hopper: the kernels of attend_hopper.cuh that dq runs.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/attend_hopper.cuh"

template <int KD, int DV, bool ROUND>
static cudaError_t launch(const dq_attend_call &a, cudaStream_t s)
{
    const bool alone = a.together <= (a.u.n_maps == 1 ? 2 : 1); /* an item is one block's work */
    return alone ? launch_hopper<hopper_shape<KD, DV, 1, 3>, ROUND>(a, s)
                 : launch_hopper<hopper_shape<KD, DV, 2, 3>, ROUND>(a, s);
}

template <bool ROUND> static cudaError_t launch_any(const dq_attend_call &a, cudaStream_t s)
{
    const bool two = a.u.n_slabs == 2;
    if (a.o.key_channels == 64)
        return two ? launch<64, 128, ROUND>(a, s) : launch<64, 64, ROUND>(a, s);
    return two ? launch<128, 256, ROUND>(a, s) : launch<128, 128, ROUND>(a, s);
}

cudaError_t dq_attend_hopper(dq_attend_call a, cudaStream_t s)
{
    return a.logits.round == DQ_ROUND_NOT ? launch_any<false>(a, s) : launch_any<true>(a, s);
}
