/* attend_int8: the kernels over int8 operands: attention, and scores for what looks at them.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/attend_int8.cuh"

/* ---- attention */

template <class SHAPE> struct int8_products : int8_scores<SHAPE> {
    dq_registers<float, SHAPE::DV / 2> o;
    dq_registers<uint32_t, KEYS / 4> p;
};

/* What is there besides a team's products. */
struct int8_team {
    const dq_attend_call *a;
    unsigned char *smem;
    int8_rows *rows;
    team_view view; /* of values */
};

/* S to P. Whether outputs of earlier keys are to be multiplied with alpha. */
template <bool CODED, bool ROUND, class SHAPE>
DQ_DEVICE bool weigh(int8_products<SHAPE> &x, attend_stats &stats, const int8_team *t, dq_step step,
                     ring_use use)
{
    take_scores<CODED, false>(x, t->smem, t->a, use);
    return softmax<ROUND, 32, false, CODED>(x.s, stats, t->rows, step, 0, t->a->scale);
}

template <bool CODED, bool ROUND, class SHAPE>
DQ_DEVICE void begin(int8_products<SHAPE> &x, attend_stats &stats, const int8_team *t, dq_step step,
                     ring_use use)
{
    start_scores<CODED>(x, t->smem, t->a, use);
    DQ_WGMMA_WAIT(0, int8_first_wait);
    weigh<CODED, ROUND>(x, stats, t, step, use);
    pack<32>(x.p, x.s);
}

/* A step after others; use: its use of the rings. */
template <bool CODED, bool ROUND, class SHAPE>
DQ_DEVICE void go_on(int8_products<SHAPE> &x, attend_stats &stats, const int8_team *t, dq_step step,
                     ring_use last, ring_use use)
{
    start_scores<CODED>(x, t->smem, t->a, use);
    start_values(x.o, x.p, t->view, value_ring<SHAPE>(t->smem), last);
    DQ_WGMMA_WAIT(1, int8_scores_wait);
    const bool moved = weigh<CODED, ROUND>(x, stats, t, step, use);
    DQ_WGMMA_WAIT(0, int8_values_wait);
    release_values<SHAPE>(t->view, last.stage);
    dq_hold(x.o);
    if (moved) rescale<SHAPE::DV / 2>(x.o, stats);
    pack<32>(x.p, x.s);
}

DQ_DEVICE attend_job open_item(dq_attend_item *item, const dq_attend_call *a, int index)
{
    *item = a->item[index / a->u.max_out];
    return job_of(a, item, index % a->u.max_out, unit_of(a));
}

/* All steps of one item, from a use on in the rings. */
template <class SHAPE, bool ROUND>
DQ_DEVICE ring_use multiply(int8_products<SHAPE> &x, attend_stats &stats, unsigned char *smem,
                            const dq_attend_call *a, int index, ring_use use)
{
    dq_attend_item item;
    const attend_job j = open_item(&item, a, index);
    const int8_team t = {a, smem, team_rows<SHAPE>(smem), view_of<SHAPE>(smem, a)};
    note_run(t.rows, &a->u, j.w, false, 0);
    if (ROUND) note_grids(t.rows, a, &j, map_of(a));
    round_queries(x, smem, a, &j, map_of(a));
    stats = no_stats();
    DQ_UNROLL
    for (int k = 0; k < SHAPE::DV / 2; k++) x.o[k] = 0;
    const dq_int8_run codes = dq_int8_run_of(&item, 0);
    bool begun = codes.first < codes.end;
    if (begun) begin<true, ROUND>(x, stats, &t, dq_step{2 * codes.first}, use);
    for (int page = codes.first + 1; page < codes.end; page++) {
        const ring_use last = use;
        use = use_after<SHAPE>(use);
        go_on<true, ROUND>(x, stats, &t, dq_step{2 * page}, last, use);
    }
    DQ_LOOP
    for (int k = 1; k < DQ_INT8_RUNS; k++) {
        const dq_int8_run run = dq_int8_run_of(a->item + index / a->u.max_out, k);
        int page = run.first;
        if (page >= run.end) continue;
        note_run(t.rows, &a->u, open_item(&item, a, index).w, false, k);
        if (!begun && page < run.end) {
            begin<false, ROUND>(x, stats, &t, dq_step{2 * page++ + 1}, use);
            begun = true;
        }
        for (; page < run.end; page++) {
            const ring_use last = use;
            use = use_after<SHAPE>(use);
            go_on<false, ROUND>(x, stats, &t, dq_step{2 * page + 1}, last, use);
        }
    }
    start_values(x.o, x.p, t.view, value_ring<SHAPE>(smem), use);
    DQ_WGMMA_WAIT(0, int8_last_wait);
    release_values<SHAPE>(t.view, use.stage);
    dq_hold(x.o);
    return use_after<SHAPE>(use);
}

template <class SHAPE, bool ROUND>
DQ_KERNEL_BLOCKS(THREADS, 1)
attend_int8(DQ_PARAMETER dq_attend_call a)
{
    DQ_SHARED_DYNAMIC(smem);
    if (dq_thread() == 0) {
        open_ring<SHAPE>(key_ring<SHAPE>(smem), INT8_READERS);
        open_ring<SHAPE>(value_ring<SHAPE>(smem), 1);
        dq_fence_mbarrier_init();
    }
    DQ_CLUSTER_SYNC(int8_start);
    ring_use use = {0, 0};
    if (dq_warp() >= PRODUCER) {
        dq_setmaxnreg_dec<PRODUCER_REGISTERS>();
        for (int i = -1; dq_warp() == PRODUCER && (i = next_item<SHAPE>(i, &a)) >= 0;)
            use = produce<SHAPE, false>(smem, &a, i, use);
        for (int i = -1; dq_warp() == PRODUCER + 1 && (i = next_item<SHAPE>(i, &a)) >= 0;)
            use = produce<SHAPE, true>(smem, &a, i, use);
    } else {
        dq_setmaxnreg_inc<TEAM_REGISTERS>();
        for (int i = -1; (i = next_item<SHAPE>(i, &a)) >= 0;) {
            int8_products<SHAPE> x;
            attend_stats stats;
            use = multiply<SHAPE, ROUND>(x, stats, smem, &a, i, use);
            end_item<SHAPE::DV / 2>(x.o, stats, &a, i, unit_of(&a), map_of(&a),
                                    (float *)(smem + space<SHAPE>::BOX));
        }
    }
    DQ_WARP_SYNC(int8_together);
    DQ_CLUSTER_SYNC(int8_end);
}

/* ---- scores */

enum int8_look { ROW_MAXIMA, MAXIMA, STRIPS };

/* S of the lane's two rows: strips, or the largest |S|, where NaN wins. */
template <int8_look LOOK, class S>
DQ_DEVICE void look_at(S &s, float max[2], const dq_attend_call *a, const attend_job *j, int map,
                       const int8_rows *rows, dq_step step)
{
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        const key_window w = window_of(rows, step, i);
        if (!has_row(j->w, i)) continue;
        float *const strip = strip_of(&a->u, j->w, map ? j->slot[1] : j->slot[0], row_of(i)) +
                             dq_page_of(step) * KEYS;
        DQ_UNROLL
        for (int k = 2 * i; k < KEYS / 2; k += k % 2 ? 3 : 1) {
            if (!is_in(w, key_of(k))) continue;
            if (LOOK == STRIPS)
                strip[key_of(k)] = dq_mul_rn(s[k], a->u.scale);
            else
                max[i] = dq_max_nan(max[i], dq_abs(s[k]));
        }
    }
}

template <bool CODED, int8_look LOOK, class SHAPE>
DQ_DEVICE ring_use look_at_run(int8_scores<SHAPE> &x, float max[2], const int8_team *t,
                               const attend_job *j, const dq_attend_item *item, int k, ring_use use)
{
    const dq_int8_run run = dq_int8_run_of(item, k);
    note_run(t->rows, &t->a->u, j->w, LOOK == STRIPS, k);
    for (int page = run.first; page < run.end; page++, use = use_after<SHAPE>(use)) {
        start_scores<CODED>(x, t->smem, t->a, use);
        DQ_WGMMA_WAIT(0, int8_look_wait);
        take_scores<CODED, true>(x, t->smem, t->a, use);
        look_at<LOOK>(x.s, max, t->a, j, map_of(t->a), t->rows, dq_step{2 * page + !CODED});
    }
    return use;
}

/* Whether no output head before `index` has the job's query head in this map. */
DQ_DEVICE bool is_first(const dq_attend_call *a, const attend_job *j, int index, int map)
{
    if (!j->w) return false;
    const dq_o_head *const o = a->u.o_head + a->u.o_first[j->w->group];
    for (int i = 0; i < index % a->u.max_out; i++)
        if ((map ? o[i].q[1] : o[i].q[0]) == (map ? j->slot[1] : j->slot[0])) return false;
    return true;
}

template <class SHAPE, int8_look LOOK>
DQ_DEVICE ring_use look_at_item(unsigned char *smem, const dq_attend_call *a, uint32_t *all,
                                int index, ring_use use)
{
    dq_attend_item item;
    attend_job j = open_item(&item, a, index);
    int8_scores<SHAPE> x;
    float max[2] = {0, 0};
    if (!is_first(a, &j, index, map_of(a))) j.w = NULL; /* another has its rows */
    const int8_team t = {a, smem, team_rows<SHAPE>(smem), view_of<SHAPE>(smem, a)};
    round_queries(x, smem, a, &j, map_of(a));
    use = look_at_run<true, LOOK>(x, max, &t, &j, &item, 0, use);
    DQ_LOOP
    for (int k = 1; k < DQ_INT8_RUNS; k++)
        use = look_at_run<false, LOOK>(x, max, &t, &j, &item, k, use);
    if (LOOK != STRIPS) raise_maxima<LOOK == ROW_MAXIMA>(all, max, a, &j, map_of(a));
    return use;
}

template <class SHAPE, int8_look LOOK>
DQ_KERNEL_BLOCKS(LOOK_THREADS, 1)
look_int8(DQ_PARAMETER dq_attend_call a, uint32_t *DQ_RESTRICT max)
{
    DQ_SHARED_DYNAMIC(smem);
    if (dq_thread() == 0) {
        open_ring<SHAPE>(key_ring<SHAPE>(smem), INT8_READERS);
        dq_fence_mbarrier_init();
    }
    DQ_CLUSTER_SYNC(int8_look_start);
    ring_use use = {0, 0};
    for (int i = -1; (i = next_item<SHAPE>(i, &a)) >= 0;)
        use = dq_warp() == PRODUCER ? produce<SHAPE, false>(smem, &a, i, use)
                                    : look_at_item<SHAPE, LOOK>(smem, &a, max, i, use);
    DQ_WARP_SYNC(int8_look_together);
    DQ_CLUSTER_SYNC(int8_look_end);
}

/* ---- launchers */

template <int KD, int DV> static cudaError_t launch_attend(const dq_attend_call &a, cudaStream_t s)
{
    typedef int8_shape<KD, DV> shape;
    if (a.logits.round == DQ_ROUND_NOT)
        LAUNCH_RINGS(shape, (attend_int8<shape, false>), THREADS, 1, s, a);
    LAUNCH_RINGS(shape, (attend_int8<shape, true>), THREADS, 1, s, a);
}

cudaError_t dq_attend_int8(dq_attend_call a, cudaStream_t s)
{
    const bool two = a.u.n_slabs == 2;
    if (a.o.key_channels == 64)
        return two ? launch_attend<64, 128>(a, s) : launch_attend<64, 64>(a, s);
    return two ? launch_attend<128, 256>(a, s) : launch_attend<128, 128>(a, s);
}

template <int8_look LOOK>
static cudaError_t launch_look(const dq_attend_call &a, uint32_t *max, cudaStream_t s)
{
    typedef int8_shape<64, 0> small;
    typedef int8_shape<128, 0> large;
    if (a.o.key_channels == 64)
        LAUNCH_RINGS(small, (look_int8<small, LOOK>), LOOK_THREADS, 1, s, a, max);
    LAUNCH_RINGS(large, (look_int8<large, LOOK>), LOOK_THREADS, 1, s, a, max);
}

cudaError_t dq_absmax_int8(dq_attend_call a, uint32_t *max, bool by_row, cudaStream_t s)
{
    return by_row ? launch_look<ROW_MAXIMA>(a, max, s) : launch_look<MAXIMA>(a, max, s);
}

cudaError_t dq_scores_int8(dq_attend_call a, cudaStream_t s)
{
    return launch_look<STRIPS>(a, NULL, s);
}
