/* absmax_hopper: the largest |S| by wgmma, of compute capability 9.0. As attend_hopper.cuh, with one
 * producer and without values; two blocks share a multiprocessor, so that products of one team go
 * on while others look at theirs. tests/simt/defects.tsv quotes this text.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/attend_hopper.cuh"

/* Of a block, and blocks of a multiprocessor: registers are enough without being handed over. */
enum { MAXIMA_THREADS = 2 * TEAM + DQ_WARP, EACH = 2 };

/* Largest |S| of the lane's two rows, before the scale; NaN wins. */
template <class SHAPE>
DQ_DEVICE ring_use look_at_scores(float max[2], scored<SHAPE> &x, unsigned char *smem,
                                  const dq_attend_call *a, const dq_attend_item *item, ring_use use)
{
    const attend_rows *const rows = team_rows<SHAPE>(smem);
    const full_pages full = rows->full[dq_warp() % 4];
    dq_step step = dq_first_step(item);
    for (; dq_step_is_there(item, step);
         step = dq_next_step(item, step), use = use_after<SHAPE>(use)) {
        start_scores(x, smem, a, use);
        DQ_WGMMA_WAIT(0, absmax_scores_wait);
        release<SHAPE>(&key_ring<SHAPE>(smem)->empty[use.stage]);
        dq_hold(x.s);
        if (!is_full(&full, step)) {
            DQ_UNROLL
            for (int i = 0; i < 2; i++) {
                int lo, hi;
                window_of(&lo, &hi, rows, step, i);
                DQ_UNROLL
                for (int k = 2 * i; k < KEYS / 2; k += k % 2 ? 3 : 1)
                    if (key_of(k) < lo || key_of(k) >= hi) x.s[k] = 0;
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
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        const bool there = has_row(j.w, i);
        const float scaled = dq_abs(dq_mul_rn(max[i], a->u.scale));
        uint32_t most = there ? dq_f32_bits(scaled) : 0;
        for (unsigned o = BY_ROW ? 2 : 16; o; o /= 2) {
            const uint32_t other = dq_shfl_xor(most, o);
            most = other > most ? other : most;
        }
        if (!most || dq_lane() % (BY_ROW ? 4 : DQ_WARP)) continue;
        const int64_t group = BY_ROW ? j.w->row + row_of(i) : j.w->seq;
        dq_atomic_max(all + group * a->u.n_q + query_of(&j, map_of(a)), most);
    }
    return use;
}

template <class SHAPE, bool BY_ROW>
DQ_KERNEL_BLOCKS(MAXIMA_THREADS, EACH)
absmax_hopper(DQ_PARAMETER dq_attend_call a, uint32_t *DQ_RESTRICT max)
{
    DQ_SHARED_DYNAMIC(smem);
    if (dq_thread() == 0) {
        open_ring(key_ring<SHAPE>(smem));
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
    const int smem = space<shape>::TOTAL;
    unsigned blocks;
    cudaError_t e = count_blocks<shape>(&blocks, a, EACH);
    if (e == cudaSuccess) e = DQ_ALLOW_SMEM((absmax_hopper<shape, BY_ROW>), smem);
    if (e != cudaSuccess) return e;
    DQ_LAUNCH_CLUSTER((absmax_hopper<shape, BY_ROW>), shape::CLUSTER, dim3(blocks), MAXIMA_THREADS,
                      (unsigned)smem, s, a, max);
    return cudaGetLastError();
}

cudaError_t dq_absmax_hopper(dq_attend_call a, uint32_t *max, bool by_row, cudaStream_t s)
{
    if (a.o.key_channels == 64)
        return by_row ? launch<64, true>(a, max, s) : launch<64, false>(a, max, s);
    return by_row ? launch<128, true>(a, max, s) : launch<128, false>(a, max, s);
}
