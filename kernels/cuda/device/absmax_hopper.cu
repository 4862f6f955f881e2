/* absmax_hopper: the largest |S| by wgmma, of compute capability 9.0. As attend_hopper.cuh, with
 * one producer and without values; two blocks share a multiprocessor, so that products of one team
 * go on while others look at theirs. tests/simt/defects.tsv quotes this text.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/attend_hopper.cuh"

enum { EACH = 2 /* blocks of a multiprocessor */ };

/* Largest |S| of the lane's two rows, before the scale; NaN wins. */
template <class SHAPE>
DQ_DEVICE ring_use look_at_scores(float max[2], scored<SHAPE> &x, unsigned char *smem,
                                  const dq_attend_call *a, const dq_attend_item *item, ring_use use)
{
    const attend_rows *const rows = team_rows<SHAPE>(smem);
    const team_view view = view_of<SHAPE>(smem, a);
    ring<SHAPE> *const keys = key_ring<SHAPE>(smem);
    dq_step step = dq_first_step(item);
    for (; dq_step_is_there(item, step);
         step = dq_next_step(item, step), use = use_after<SHAPE>(use)) {
        start_scores(x, view, keys, use);
        DQ_WGMMA_WAIT(0, absmax_scores_wait);
        release_keys<SHAPE>(view, use.stage);
        dq_hold(x.s);
        if (!is_full(rows, step)) {
            DQ_UNROLL
            for (int i = 0; i < 2; i++) {
                const key_window w = window_of(rows, step, i);
                DQ_UNROLL
                for (int k = 2 * i; k < KEYS / 2; k += k % 2 ? 3 : 1)
                    if (!is_in(w, key_of(k))) x.s[k] = 0;
            }
        }
        DQ_UNROLL
        for (int k = 0; k < KEYS / 2; k++)
            max[k / 2 % 2] = dq_max_nan(max[k / 2 % 2], dq_abs(x.s[k]));
    }
    return use;
}

/* One item and head. BY_ROW: a number for each row, else for each sequence. */
template <class SHAPE, bool BY_ROW>
DQ_DEVICE ring_use find_maxima(unsigned char *smem, const dq_attend_call *a, uint32_t *all,
                               int index, ring_use use)
{
    const dq_attend_item item = a->item[index / a->u.max_out];
    const attend_job j = job_of(a, &item, index % a->u.max_out, unit_of(a));
    scored<SHAPE> x;
    float max[2] = {0, 0};
    note_rows(team_rows<SHAPE>(smem), &a->u, j.w, false);
    load_queries(x, a, &j, map_of(a));
    use = look_at_scores(max, x, smem, a, &item, use);
    raise_maxima<BY_ROW>(all, max, a, &j, map_of(a));
    return use;
}

template <class SHAPE, bool BY_ROW>
DQ_KERNEL_BLOCKS(LOOK_THREADS, EACH)
absmax_hopper(DQ_PARAMETER dq_attend_call a, uint32_t *DQ_RESTRICT max)
{
    DQ_SHARED_DYNAMIC(smem);
    if (dq_thread() == 0) {
        open_ring(key_ring<SHAPE>(smem), 1);
        dq_fence_mbarrier_init();
    }
    DQ_CLUSTER_SYNC(absmax_start);
    ring_use use = {0, 0};
    for (int i = -1; (i = next_item<SHAPE>(i, &a)) >= 0;)
        use = dq_warp() == PRODUCER ? produce<SHAPE, false>(smem, &a, i, use)
                                    : find_maxima<SHAPE, BY_ROW>(smem, &a, max, i, use);
    DQ_WARP_SYNC(absmax_together);
    DQ_CLUSTER_SYNC(absmax_end);
}

template <int KD, bool BY_ROW>
static cudaError_t launch(const dq_attend_call &a, uint32_t *max, cudaStream_t s)
{
    typedef hopper_shape<KD, 0, 2, 3> shape;
    LAUNCH_RINGS(shape, (absmax_hopper<shape, BY_ROW>), LOOK_THREADS, EACH, s, a, max);
}

cudaError_t dq_absmax_hopper(dq_attend_call a, uint32_t *max, bool by_row, cudaStream_t s)
{
    if (a.o.key_channels == 64)
        return by_row ? launch<64, true>(a, max, s) : launch<64, false>(a, max, s);
    return by_row ? launch<128, true>(a, max, s) : launch<128, false>(a, max, s);
}
