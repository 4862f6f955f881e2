/* attend_hopper: attention over operands by wgmma, of compute capability 9.0. A block has two
 * producers, warps that copy keys and values into rings of stages, and two teams of a warpgroup:
 * the maps of one unit, or two units of one map. The blocks of a cluster take neighbouring units
 * and share what is copied: each copies one half for both. Scores of a step are made while the
 * products of the step before go on. tests/simt/defects.tsv quotes this text.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/attend.cuh"
#include "kernels/cuda/device/hopper.cuh"

enum { STAGES = 3, THREADS = 3 * TEAM, CLUSTER = 2 };
/* Of a thread, before and after the block shares its 64K out. */
enum { PRODUCER_REGISTERS = 24, TEAM_REGISTERS = 240 };

/* One ring of stages: the producer waits until a stage is empty, teams until it is full. */
struct ring {
    dq_mbarrier full[STAGES], empty[STAGES];
};

/* A use of the rings: the stage, and the parity of its phase. */
struct ring_use {
    int stage;
    unsigned parity;
};
DQ_DEVICE ring_use use_after(ring_use u)
{
    return u.stage == STAGES - 1 ? ring_use{0, u.parity ^ 1u} : ring_use{u.stage + 1, u.parity};
}

DQ_DEVICE void open_ring(ring *r)
{
    for (int s = 0; s < STAGES; s++) {
        DQ_MBARRIER_INIT(&r->full[s], 1);
        DQ_MBARRIER_INIT(&r->empty[s], 2 * CLUSTER); /* teams of all blocks */
    }
}

/* Bytes of a stage of keys, where there are two heads of them, and of values. */
template <int KD, int DV> struct space {
    enum {
        KEY_BYTES = KEYS * KD * 2,
        VALUE_BYTES = KEYS * DV * 2,
        VALUES = STAGES * 2 * KEY_BYTES,
        BOX = VALUES + STAGES * VALUE_BYTES, /* half the channels of a team */
        RINGS = BOX + DV / 4 * TEAM * 4,
        ROWS_OF = RINGS + 2 * (int)sizeof(ring),
        TOTAL = ROWS_OF + 2 * (int)sizeof(attend_rows)
    };
};
template <int KD, int DV> DQ_DEVICE ring *key_ring(unsigned char *smem)
{
    return (ring *)(smem + space<KD, DV>::RINGS);
}
template <int KD, int DV> DQ_DEVICE ring *value_ring(unsigned char *smem)
{
    return key_ring<KD, DV>(smem) + 1;
}

/* The next item and head of a cluster after that one (-1: the first), longer ones first and each
 * round the other way about, in which the group has the head; less than 0: none. */
DQ_DEVICE int next_item(int last, const dq_attend_call *a)
{
    const unsigned clusters = dq_grid_x() / CLUSTER, cluster = dq_block_x() / CLUSTER;
    const unsigned outs = (unsigned)a->u.max_out, items = (unsigned)a->n_items * outs;
    for (unsigned n = last < 0 ? 0 : (unsigned)last / clusters + 1;; n++) {
        const unsigned i = n * clusters + (n % 2 ? clusters - 1 - cluster : cluster);
        if (i >= items) return -1;
        const int group = a->u.unit[a->item[i / outs].unit].group;
        if ((int)(i % outs) < heads_of(a->u.o_first, group)) return (int)i;
    }
}

/* ---- producer */

/* A warp for the keys of one item's steps, or the values, from a use on in their ring: a lane for
 * each head copies its half to both blocks. */
template <int KD, int DV, bool OF_VALUES>
DQ_DEVICE ring_use produce(unsigned char *smem, const dq_attend_call *a, int index, ring_use use)
{
    typedef space<KD, DV> sizes;
    const int bytes = OF_VALUES ? sizes::VALUE_BYTES : sizes::KEY_BYTES;
    const dq_attend_item item = a->item[index / a->u.max_out];
    const attend_job j = job_of(a, &item, index % a->u.max_out, 0);
    const int lane = (int)dq_lane(), half = (int)dq_cluster_rank() * (bytes / CLUSTER);
    const int n = OF_VALUES ? 1 : a->o.head_keys;
    const int key = lane == 1 ? j.key[1] : j.key[0];
    const int from = half + (int)(OF_VALUES ? dq_operand_values_at(&a->o, 0, j.pair)
                                            : dq_operand_keys_at(&a->o, 0, key));
    dq_in_order(); /* what follows is loaded then: a producer has few registers */
    const int to = half + (OF_VALUES ? (int)sizes::VALUES : lane * bytes);
    ring *const r = OF_VALUES ? value_ring<KD, DV>(smem) : key_ring<KD, DV>(smem);
    dq_step step = dq_first_step(&item);
    for (; dq_step_is_there(&item, step); step = dq_next_step(&item, step), use = use_after(use)) {
        const uint8_t *page = a->o.page + dq_operand_page(&item, step) * a->o.page_bytes;
        if (OF_VALUES)
            DQ_MBARRIER_WAIT(&r->empty[use.stage], use.parity ^ 1u, hopper_values_empty);
        else
            DQ_MBARRIER_WAIT(&r->empty[use.stage], use.parity ^ 1u, hopper_keys_empty);
        if (lane == 0) dq_mbarrier_arrive_expect(&r->full[use.stage], (unsigned)(n * bytes));
        DQ_WARP_SYNC(hopper_expected);
        if (lane < n)
            dq_bulk_copy_multicast(smem + to + use.stage * (OF_VALUES ? bytes : 2 * bytes),
                                   page + from, (unsigned)bytes / CLUSTER, &r->full[use.stage], 3);
    }
    return use;
}

/* ---- teams */

DQ_DEVICE int team_of(void)
{
    return (int)(dq_thread() / TEAM) - 1;
}
DQ_DEVICE int map_of(const dq_attend_call *a)
{
    return a->u.n_maps == 2 ? team_of() : 0;
}
/* Of an item. */
DQ_DEVICE int unit_of(const dq_attend_call *a)
{
    const int rank = (int)dq_cluster_rank();
    return a->u.n_maps == 2 ? rank : 2 * rank + team_of();
}
template <int KD, int DV> struct products {
    dq_registers<float, KEYS / 2> s;
    dq_registers<float, DV / 2> o;
    dq_registers<uint32_t, KEYS / 4> p;
    dq_registers<uint32_t, KD / 4> q;
};

/* The stage is free for both blocks, which copy for each other. One thread speaks for a team. */
DQ_DEVICE void release(dq_mbarrier *empty)
{
    if (dq_thread() % TEAM) return;
    for (unsigned rank = 0; rank < CLUSTER; rank++) dq_mbarrier_arrive_remote(empty, rank);
}

/* Rows of queries as the left operand. */
template <int KD, int DV>
DQ_DEVICE void load_queries(products<KD, DV> &x, const dq_attend_call *a, const attend_job *j,
                            int map)
{
    const int dim = a->u.form[0].dim;
    bool far = false;
    DQ_UNROLL
    for (int k = 0; k < KD / 4; k++) {
        const int i = k % 2, c = k / 4 * 16 + k / 2 % 2 * 8 + 2 * ((int)dq_lane() % 4);
        attend_two y = {0, 0};
        if (has_row(j->w, i) && c < dim)
            y = *(const attend_two *)(query_row(&a->u, j, map, row_of(i)) + c);
        x.q[k] = dq_f32x2_f16(y.x, y.y);
        far |= is_beyond(dq_max(dq_abs(y.x), dq_abs(y.y)));
    }
    if (far) dq_raise(a->beyond);
}

template <int KD, int DV>
DQ_DEVICE void start_scores(products<KD, DV> &x, unsigned char *smem, const dq_attend_call *a,
                            ring_use use)
{
    const int head = a->o.head_keys == 2 ? team_of() : 0; /* of the stage's keys */
    const uint32_t keys = dq_smem_address(smem + (2 * use.stage + head) * space<KD, DV>::KEY_BYTES);
    ring *const r = key_ring<KD, DV>(smem);
    DQ_MBARRIER_WAIT(&r->full[use.stage], use.parity, hopper_keys_full);
    DQ_WGMMA_FENCE(hopper_scores_fence);
    const uint64_t first = dq_make_descriptor(keys, KEYS * 16, 128, DQ_SWIZZLE_NONE);
    DQ_UNROLL
    for (int c = 0; c < KD; c += 16)
        dq_wgmma_f16(x.s, x.q, c / 4, dq_descriptor_after(first, (unsigned)dq_operand_key(0, c)),
                     c > 0);
    dq_wgmma_commit(); /* scores and values are groups of their own, waited for one by one */
}

template <int KD, int DV>
DQ_DEVICE void start_values(products<KD, DV> &x, unsigned char *smem, ring_use use)
{
    typedef space<KD, DV> sizes;
    const uint32_t values = dq_smem_address(smem + sizes::VALUES + use.stage * sizes::VALUE_BYTES);
    ring *const r = value_ring<KD, DV>(smem);
    DQ_MBARRIER_WAIT(&r->full[use.stage], use.parity, hopper_values_full);
    DQ_WGMMA_FENCE(hopper_values_fence);
    const uint64_t first = dq_make_descriptor(values, DV * 16, 128, DQ_SWIZZLE_NONE);
    DQ_UNROLL
    for (int t = 0; t < KEYS; t += 16)
        dq_wgmma_f16(x.o, x.p, t / 4,
                     dq_descriptor_after(first, (unsigned)dq_operand_value(DV, t, 0)), true);
    dq_wgmma_commit();
}

template <int KD, int DV> DQ_DEVICE attend_rows *team_rows(unsigned char *smem)
{
    return (attend_rows *)(smem + space<KD, DV>::ROWS_OF) + team_of();
}

/* All steps of one item, from a use on in the rings. */
template <int KD, int DV, bool ROUND>
DQ_DEVICE ring_use multiply(products<KD, DV> &x, attend_stats &stats, unsigned char *smem,
                            const dq_attend_call *a, int index, ring_use use)
{
    const dq_attend_item item = a->item[index / a->u.max_out];
    const attend_job j = job_of(a, &item, index % a->u.max_out, unit_of(a));
    attend_rows *const rows = team_rows<KD, DV>(smem);
    note_rows(rows, &a->u, j.w, false);
    if (ROUND) note_grids(rows, a, &j, map_of(a));
    load_queries(x, a, &j, map_of(a));
    stats = no_stats();
    DQ_UNROLL
    for (int k = 0; k < DV / 2; k++) x.o[k] = 0;
    dq_step step = dq_first_step(&item);
    start_scores(x, smem, a, use);
    DQ_WGMMA_WAIT(0, hopper_first_wait);
    release(&key_ring<KD, DV>(smem)->empty[use.stage]);
    dq_hold(x.s);
    softmax<ROUND, 32>(x.s, stats, rows, step, 0, a->scale);
    pack<32>(x.p, x.s);
    step = dq_next_step(&item, step);
    for (; dq_step_is_there(&item, step); step = dq_next_step(&item, step)) {
        const ring_use last = use;
        use = use_after(use);
        start_scores(x, smem, a, use);
        start_values(x, smem, last);
        DQ_WGMMA_WAIT(1, hopper_scores_wait);
        release(&key_ring<KD, DV>(smem)->empty[use.stage]);
        dq_hold(x.s);
        const bool moved = softmax<ROUND, 32>(x.s, stats, rows, step, 0, a->scale);
        DQ_WGMMA_WAIT(0, hopper_values_wait);
        release(&value_ring<KD, DV>(smem)->empty[last.stage]);
        dq_hold(x.o);
        if (moved) rescale<DV / 2>(x.o, stats);
        pack<32>(x.p, x.s);
    }
    start_values(x, smem, use);
    DQ_WGMMA_WAIT(0, hopper_last_wait);
    release(&value_ring<KD, DV>(smem)->empty[use.stage]);
    dq_hold(x.o);
    return use_after(use);
}

template <int KD, int DV, bool ROUND>
DQ_KERNEL_BLOCKS(THREADS, 1)
attend_hopper(DQ_PARAMETER dq_attend_call a)
{
    DQ_SHARED_DYNAMIC(smem);
    if (dq_thread() == 0) {
        open_ring(key_ring<KD, DV>(smem));
        open_ring(value_ring<KD, DV>(smem));
        dq_fence_mbarrier_init();
    }
    DQ_CLUSTER_SYNC(hopper_start);
    ring_use use = {0, 0};
    if (dq_warp() < 4) {
        dq_setmaxnreg_dec<PRODUCER_REGISTERS>();
        for (int i = -1; dq_warp() == 0 && (i = next_item(i, &a)) >= 0;)
            use = produce<KD, DV, false>(smem, &a, i, use);
        for (int i = -1; dq_warp() == 1 && (i = next_item(i, &a)) >= 0;)
            use = produce<KD, DV, true>(smem, &a, i, use);
    } else {
        dq_setmaxnreg_inc<TEAM_REGISTERS>();
        for (int i = -1; (i = next_item(i, &a)) >= 0;) {
            products<KD, DV> x;
            attend_stats stats;
            use = multiply<KD, DV, ROUND>(x, stats, smem, &a, i, use);
            end_item<DV / 2>(x.o, stats, &a, i, unit_of(&a), map_of(&a),
                             (float *)(smem + space<KD, DV>::BOX));
        }
    }
    DQ_WARP_SYNC(hopper_together);
    DQ_CLUSTER_SYNC(hopper_end);
}

/* ---- launcher */

template <int KD, int DV, bool ROUND>
static cudaError_t launch(const dq_attend_call &a, cudaStream_t s)
{
    const int smem = space<KD, DV>::TOTAL;
    int device, n_sm;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess) e = cudaDeviceGetAttribute(&n_sm, cudaDevAttrMultiProcessorCount, device);
    if (e == cudaSuccess) e = DQ_ALLOW_SMEM((attend_hopper<KD, DV, ROUND>), smem);
    if (e != cudaSuccess) return e;
    const int64_t items = (int64_t)a.n_items * a.u.max_out, most = n_sm / CLUSTER;
    const unsigned blocks = (unsigned)(CLUSTER * (items < most ? items : most));
    DQ_LAUNCH_CLUSTER((attend_hopper<KD, DV, ROUND>), CLUSTER, dim3(blocks), THREADS,
                      (unsigned)smem, s, a);
    return cudaGetLastError();
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
