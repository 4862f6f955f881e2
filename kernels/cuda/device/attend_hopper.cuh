/* attend_hopper: attention over operands by wgmma, of compute capability 9.0. A block has two
 * producers, warps that copy keys and values into rings of stages, and two teams of a warpgroup:
 * the maps of one unit, or two units of one map. The blocks of a cluster take neighbouring units
 * and share what is copied: each copies one half for both. Scores of a step are made while the
 * products of the step before go on. tests/simt/defects.tsv quotes this text.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ATTEND_HOPPER_CUH
#define DQ_ATTEND_HOPPER_CUH

#include "kernels/cuda/device/attend.cuh"
#include "kernels/cuda/device/hopper.cuh"

enum { THREADS = 3 * TEAM, PRODUCER = 8 /* its first warp, after those of teams */ };
/* Where there are no values: one producer, and registers are enough without being handed over. */
enum { LOOK_THREADS = 2 * TEAM + DQ_WARP };
/* Of a thread, before and after the block shares its 64K out. */
enum { PRODUCER_REGISTERS = 24, TEAM_REGISTERS = 240 };

/* Steps of an item's run, whose pages all rows read whole and in one way, need no masks: they stand
 * between those of the windows' beginnings and of their ends, or follow both. */
enum hopper_order { ASCENDING, RUN_LAST };

/* What a kernel is made for: channels of a head's keys and of a pair's values; blocks of a cluster
 * and stages of a ring; how operands lie, and the order of steps. */
template <int KEY_CHANNELS, int VALUE_CHANNELS, int BLOCKS, int RING> struct hopper_shape {
    enum { KD = KEY_CHANNELS, DV = VALUE_CHANNELS, CLUSTER = BLOCKS, STAGES = RING, INT8 = 0 };
    typedef attend_rows rows;
    static constexpr dq_operand_layout LAYOUT = DQ_CELLS;
    static constexpr hopper_order ORDER = ASCENDING;
};

/* One ring of stages: the producer waits until a stage is empty, teams until it is full. */
template <class SHAPE> struct ring {
    dq_mbarrier full[SHAPE::STAGES], empty[SHAPE::STAGES];
};

/* A use of the rings: the stage, and the parity of its phase. */
struct ring_use {
    int stage;
    unsigned parity;
};
template <class SHAPE> DQ_DEVICE ring_use use_after(ring_use u)
{
    return u.stage == SHAPE::STAGES - 1 ? ring_use{0, u.parity ^ 1u}
                                        : ring_use{u.stage + 1, u.parity};
}

/* readers: those of a team that release a stage. */
template <class SHAPE> DQ_DEVICE void open_ring(ring<SHAPE> *r, int readers)
{
    for (int s = 0; s < SHAPE::STAGES; s++) {
        DQ_MBARRIER_INIT(&r->full[s], 1);
        DQ_MBARRIER_INIT(&r->empty[s], 2 * readers * SHAPE::CLUSTER); /* of all blocks */
    }
}

/* Bytes of a stage of keys, where there are two heads of them, and of values. */
template <class SHAPE> struct space {
    enum {
        KEY_BYTES = KEYS * SHAPE::KD * 2,
        VALUE_BYTES = KEYS * SHAPE::DV * 2,
        VALUES = SHAPE::STAGES * 2 * KEY_BYTES,
        BOX = VALUES + SHAPE::STAGES * VALUE_BYTES, /* half the channels of a team */
        BOX_BYTES = SHAPE::DV / 4 * TEAM * 4,
        QUERY_BYTES = SHAPE::INT8 * 2 * KEY_BYTES, /* of both teams, in f16, there before */
        RINGS = BOX + ((int)BOX_BYTES > (int)QUERY_BYTES ? (int)BOX_BYTES : (int)QUERY_BYTES),
        ROWS_OF = RINGS + 2 * (int)sizeof(ring<SHAPE>),
        TOTAL = ROWS_OF + 2 * (int)sizeof(typename SHAPE::rows)
    };
    static_assert(TOTAL <= 227 * 1024, "shared memory of a block: fewer stages");
};
template <class SHAPE> DQ_DEVICE ring<SHAPE> *key_ring(unsigned char *smem)
{
    return (ring<SHAPE> *)(smem + space<SHAPE>::RINGS);
}
template <class SHAPE> DQ_DEVICE ring<SHAPE> *value_ring(unsigned char *smem)
{
    return key_ring<SHAPE>(smem) + 1;
}

/* The next item and head of a cluster after that one (-1: the first), longer ones first and each
 * round the other way about, in which the group has the head; less than 0: none. */
template <class SHAPE> DQ_DEVICE int next_item(int last, const dq_attend_call *a)
{
    const unsigned clusters = dq_grid_x() / SHAPE::CLUSTER, cluster = dq_block_x() / SHAPE::CLUSTER;
    const unsigned outs = (unsigned)a->u.max_out, items = (unsigned)a->n_items * outs;
    for (unsigned n = last < 0 ? 0 : (unsigned)last / clusters + 1;; n++) {
        const unsigned i = n * clusters + (n % 2 ? clusters - 1 - cluster : cluster);
        if (i >= items) return -1;
        const int group = a->u.unit[a->item[i / outs].unit].group;
        if ((int)(i % outs) < heads_of(a->u.o_first, group)) return (int)i;
    }
}

/* ---- steps */

/* The first step after the run, which has some. */
DQ_DEVICE dq_step step_after_run(const dq_attend_item *item)
{
    const dq_step first = dq_step_of(item, item->front);
    return dq_next_step(item, dq_step{first.n + 2 * (item->run - 1)});
}
/* The first after those of pages before the run's end, but for an item's first. */
DQ_DEVICE dq_step step_behind(const dq_attend_item *item)
{
    const dq_step first = dq_step_of(item, item->front);
    if (item->run) return step_after_run(item);
    return item->front == item->first ? dq_next_step(item, first) : first;
}
DQ_DEVICE bool begins_run(const dq_attend_item *item, dq_step s)
{
    return item->run && dq_page_of(s) == item->front;
}
/* A step of those that need masks: where the run comes last it is passed over. */
template <class SHAPE> DQ_DEVICE dq_step past_run(const dq_attend_item *item, dq_step s)
{
    return SHAPE::ORDER == RUN_LAST && begins_run(item, s) ? step_after_run(item) : s;
}

/* ---- producer */

/* Of one head. */
template <class SHAPE> DQ_DEVICE int key_bytes(bool codes)
{
    return SHAPE::INT8 && codes ? dq_operand_code_bytes(SHAPE::KD) : (int)space<SHAPE>::KEY_BYTES;
}

/* What a warp copies of each page: a lane for each head its block's share, to all blocks. */
template <class SHAPE, bool OF_VALUES> struct producer {
    enum {
        BYTES = OF_VALUES ? (int)space<SHAPE>::VALUE_BYTES : (int)space<SHAPE>::KEY_BYTES,
        STAGE = OF_VALUES ? (int)BYTES : 2 * (int)BYTES
    };
    ring<SHAPE> *r;
    unsigned char *to; /* in stage 0 */
    int from, n;       /* within a page; heads */
};
template <class SHAPE, bool OF_VALUES>
DQ_DEVICE ring_use produce_page(const producer<SHAPE, OF_VALUES> &p, const uint8_t *page,
                                ring_use use, bool codes = false)
{
    typedef producer<SHAPE, OF_VALUES> own;
    const int lane = (int)dq_lane(), copied = OF_VALUES ? (int)own::BYTES : key_bytes<SHAPE>(codes);
    if (OF_VALUES)
        DQ_MBARRIER_WAIT(&p.r->empty[use.stage], use.parity ^ 1u, hopper_values_empty);
    else
        DQ_MBARRIER_WAIT(&p.r->empty[use.stage], use.parity ^ 1u, hopper_keys_empty);
    if (lane == 0) dq_mbarrier_arrive_expect(&p.r->full[use.stage], (unsigned)(p.n * copied));
    DQ_WARP_SYNC(hopper_expected);
    if (lane < p.n)
        dq_bulk_copy_multicast(p.to + use.stage * own::STAGE, page + p.from,
                               (unsigned)copied / SHAPE::CLUSTER, &p.r->full[use.stage],
                               (1u << SHAPE::CLUSTER) - 1);
    return use_after<SHAPE>(use);
}

/* A warp for the keys of one item's steps, or the values, from a use on in their ring. */
template <class SHAPE, bool OF_VALUES>
DQ_DEVICE ring_use produce(unsigned char *smem, const dq_attend_call *a, int index, ring_use use)
{
    typedef producer<SHAPE, OF_VALUES> own;
    const dq_attend_item item = a->item[index / a->u.max_out];
    const attend_job j = job_of(a, &item, index % a->u.max_out, 0);
    const int lane = (int)dq_lane(), share = (int)dq_cluster_rank() * (own::BYTES / SHAPE::CLUSTER);
    const int key = lane == 1 ? j.key[1] : j.key[0];
    const int from = share + (int)(OF_VALUES ? dq_operand_values_at(&a->o, 0, j.pair)
                                             : dq_operand_keys_at(&a->o, 0, key));
    dq_in_order(); /* what follows is loaded then: a producer has few registers */
    const int to = share + (OF_VALUES ? (int)space<SHAPE>::VALUES : lane * own::BYTES);
    ring<SHAPE> *const r = OF_VALUES ? value_ring<SHAPE>(smem) : key_ring<SHAPE>(smem);
    const own p = {r, smem + to, from, OF_VALUES ? 1 : a->o.head_keys};
    if (SHAPE::INT8) {
        for (int k = 0; k < DQ_INT8_RUNS; k++) {
            const dq_int8_run run = dq_int8_run_of(a->item + index / a->u.max_out, k);
            for (int page = run.first; page < run.end; page++)
                use = produce_page(p, a->o.page + (int64_t)(run.at + page) * a->o.page_bytes, use,
                                   k == 0);
        }
        return use;
    }
    dq_step step = past_run<SHAPE>(&item, dq_first_step(&item));
    for (; dq_step_is_there(&item, step); step = past_run<SHAPE>(&item, dq_next_step(&item, step)))
        use = produce_page(p, a->o.page + dq_operand_page(&item, step) * a->o.page_bytes, use);
    if (SHAPE::ORDER != RUN_LAST) return use;
    dq_in_order();
    const dq_attend_item again = a->item[index / a->u.max_out];
    const int64_t first = dq_operand_page(&again, dq_step_of(&again, again.front));
    const uint8_t *page = a->o.page + first * a->o.page_bytes;
    for (int left = again.run; left > 0; left--, page += a->o.page_bytes)
        use = produce_page(p, page, use);
    return use;
}

/* ---- teams */

DQ_DEVICE int team_of(void)
{
    return (int)(dq_thread() / TEAM);
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
/* What scores are made with, and what attention besides. */
template <class SHAPE> struct scored {
    dq_registers<float, KEYS / 2> s;
    dq_registers<uint32_t, SHAPE::KD / 4> q;
};
template <class SHAPE> struct products : scored<SHAPE> {
    dq_registers<float, SHAPE::DV / 2> o;
    dq_registers<uint32_t, KEYS / 4> p;
};

/* Where the team finds stage 0, as descriptors, and whom the thread tells that stages are empty:
 * the first barrier for it of the block whose rank is the thread's number. */
struct team_view {
    uint64_t keys, values;
    dq_remote_mbarrier empty;
};
/* What differs is shuffled: what it was made of would be kept and worked on in each step. */
DQ_DEVICE uint64_t kept(uint64_t descriptor)
{
    return descriptor >> 32 << 32 | dq_shfl((uint32_t)descriptor, dq_lane());
}
template <class SHAPE> DQ_DEVICE team_view view_of(unsigned char *smem, const dq_attend_call *a)
{
    typedef space<SHAPE> sizes;
    const int head = a->o.head_keys == 2 ? team_of() : 0; /* of the stage's keys */
    const uint32_t keys = dq_smem_address(smem + head * sizes::KEY_BYTES);
    const uint32_t values = dq_smem_address(smem + sizes::VALUES);
    const bool swizzled = SHAPE::LAYOUT == DQ_SWIZZLED;
    const dq_swizzle swizzle = swizzled ? DQ_SWIZZLE_128 : DQ_SWIZZLE_NONE;
    const unsigned stride = swizzled ? 1024 : 128;
    team_view v;
    v.keys = kept(dq_make_descriptor(keys, swizzled ? 0 : KEYS * 16, stride, swizzle));
    v.values = dq_make_descriptor(values, swizzled ? 0 : SHAPE::DV * 16, stride, swizzle);
    v.empty = dq_remote_of(key_ring<SHAPE>(smem)->empty, dq_thread() % SHAPE::CLUSTER);
    return v;
}

/* The stage is free for all blocks of the cluster, which copy for each other. A thread speaks for a
 * team to each. */
template <class SHAPE> DQ_DEVICE void release_keys(const team_view &v, int stage)
{
    if (dq_thread() % TEAM < SHAPE::CLUSTER) dq_mbarrier_arrive_remote(v.empty, stage);
}
template <class SHAPE> DQ_DEVICE void release_values(const team_view &v, int stage)
{
    enum { TO_VALUES = sizeof(ring<SHAPE>) / sizeof(dq_mbarrier) };
    if (dq_thread() % TEAM < SHAPE::CLUSTER) dq_mbarrier_arrive_remote(v.empty, stage + TO_VALUES);
}

/* Rows of queries as the left operand. */
template <class SHAPE>
DQ_DEVICE void load_queries(scored<SHAPE> &x, const dq_attend_call *a, const attend_job *j, int map)
{
    const int dim = a->u.form[0].dim;
    bool far = false;
    DQ_UNROLL
    for (int k = 0; k < SHAPE::KD / 4; k++) {
        const int i = k % 2, c = k / 4 * 16 + k / 2 % 2 * 8 + 2 * ((int)dq_lane() % 4);
        attend_two y = {0, 0};
        if (has_row(j->w, i) && c < dim)
            y = *(const attend_two *)(query_row(&a->u, j, map, row_of(i)) + c);
        x.q[k] = dq_f32x2_f16(y.x, y.y);
        far |= is_beyond(dq_max(dq_abs(y.x), dq_abs(y.y)));
    }
    if (far) dq_raise(a->beyond);
}

template <class SHAPE>
DQ_DEVICE void start_scores(scored<SHAPE> &x, const team_view &v, ring<SHAPE> *r, ring_use use)
{
    DQ_MBARRIER_WAIT(&r->full[use.stage], use.parity, hopper_keys_full);
    DQ_WGMMA_FENCE(hopper_scores_fence);
    const uint64_t first = dq_descriptor_after(v.keys, 2 * space<SHAPE>::KEY_BYTES, use.stage);
    DQ_UNROLL
    for (int c = 0; c < SHAPE::KD; c += 16) {
        const int at = dq_operand_key(0, c, SHAPE::LAYOUT);
        dq_wgmma_f16(x.s, x.q, c / 4, dq_descriptor_after(first, (unsigned)at), c > 0);
    }
    dq_wgmma_commit(); /* scores and values are groups of their own, waited for one by one */
}

template <class SHAPE, class O, class P>
DQ_DEVICE void start_values(O &o, P &p, const team_view &v, ring<SHAPE> *r, ring_use use)
{
    DQ_MBARRIER_WAIT(&r->full[use.stage], use.parity, hopper_values_full);
    DQ_WGMMA_FENCE(hopper_values_fence);
    const uint64_t first = dq_descriptor_after(v.values, space<SHAPE>::VALUE_BYTES, use.stage);
    DQ_UNROLL
    for (int t = 0; t < KEYS; t += 16) {
        const int at = dq_operand_value(SHAPE::DV, t, 0, SHAPE::LAYOUT);
        dq_wgmma_f16(o, p, t / 4, dq_descriptor_after(first, (unsigned)at), true);
    }
    dq_wgmma_commit();
}

template <class SHAPE> DQ_DEVICE typename SHAPE::rows *team_rows(unsigned char *smem)
{
    return (typename SHAPE::rows *)(smem + space<SHAPE>::ROWS_OF) + team_of();
}

/* What a team works on: registers, and what it knows of them. */
template <class SHAPE> struct team_work {
    products<SHAPE> x;
    attend_stats stats;
    team_view view;
    ring<SHAPE> *keys, *values;
    attend_rows *rows;
    float scale;
};

/* The scores of a step, by the use of the rings after `use`, and the values of the step before.
 * FULL: no row needs a mask. */
template <class SHAPE, bool ROUND, bool FULL>
DQ_DEVICE ring_use multiply_step(team_work<SHAPE> &w, dq_step step, ring_use last)
{
    const ring_use use = use_after<SHAPE>(last);
    start_scores(w.x, w.view, w.keys, use);
    start_values(w.x.o, w.x.p, w.view, w.values, last);
    DQ_WGMMA_WAIT(1, hopper_scores_wait);
    release_keys<SHAPE>(w.view, use.stage);
    dq_hold(w.x.s);
    const bool moved = softmax<ROUND, 32, FULL>(w.x.s, w.stats, w.rows, step, 0, w.scale);
    DQ_WGMMA_WAIT(0, hopper_values_wait);
    release_values<SHAPE>(w.view, last.stage);
    dq_hold(w.x.o);
    if (moved) rescale<SHAPE::DV / 2>(w.x.o, w.stats);
    pack<32>(w.x.p, w.x.s);
    return use;
}

/* n steps of the run. */
template <class SHAPE, bool ROUND>
DQ_DEVICE ring_use multiply_run(team_work<SHAPE> &w, int n, ring_use use)
{
    for (; n > 0; n--) use = multiply_step<SHAPE, ROUND, true>(w, dq_step{0}, use);
    return use;
}

/* Those from `step` on and on pages before `end`, but for the run. The item is read as they go:
 * registers are scarce. */
template <class SHAPE, bool ROUND>
DQ_DEVICE ring_use multiply_others(team_work<SHAPE> &w, const dq_attend_item *item, dq_step step,
                                   bool front, ring_use use)
{
    dq_in_order();
    for (; dq_page_of(step) < (front ? item->front : item->end);
         step = past_run<SHAPE>(item, dq_next_step(item, step)))
        use = multiply_step<SHAPE, ROUND, false>(w, step, use);
    return use;
}

/* All steps of one item, from a use on in the rings. */
template <class SHAPE, bool ROUND>
DQ_DEVICE ring_use multiply(team_work<SHAPE> &w, unsigned char *smem, const dq_attend_call *a,
                            int index, ring_use use)
{
    const dq_attend_item item = a->item[index / a->u.max_out];
    const attend_job j = job_of(a, &item, index % a->u.max_out, unit_of(a));
    w.keys = key_ring<SHAPE>(smem);
    w.values = value_ring<SHAPE>(smem);
    w.view = view_of<SHAPE>(smem, a);
    w.rows = team_rows<SHAPE>(smem);
    w.scale = a->scale;
    note_rows(w.rows, &a->u, j.w, false);
    if (ROUND) note_grids(w.rows, a, &j, map_of(a));
    load_queries(w.x, a, &j, map_of(a));
    w.stats = no_stats();
    DQ_UNROLL
    for (int k = 0; k < SHAPE::DV / 2; k++) w.x.o[k] = 0;
    dq_step step = past_run<SHAPE>(&item, dq_first_step(&item));
    if (!dq_step_is_there(&item, step)) step = dq_step_of(&item, item.front);
    const bool in_run = begins_run(&item, step);
    start_scores(w.x, w.view, w.keys, use);
    DQ_WGMMA_WAIT(0, hopper_first_wait);
    release_keys<SHAPE>(w.view, use.stage);
    dq_hold(w.x.s);
    softmax<ROUND, 32>(w.x.s, w.stats, w.rows, step, 0, w.scale);
    pack<32>(w.x.p, w.x.s);
    const int left = item.run - in_run;
    step = in_run ? step_after_run(&item) : past_run<SHAPE>(&item, dq_next_step(&item, step));
    const dq_attend_item *const of = a->item + index / a->u.max_out;
    if (SHAPE::ORDER == ASCENDING) {
        use = multiply_others<SHAPE, ROUND>(w, of, step, true, use);
        use = multiply_run<SHAPE, ROUND>(w, of->run - (of->front == of->first), use);
        step = step_behind(of);
    }
    use = multiply_others<SHAPE, ROUND>(w, of, step, false, use);
    if (SHAPE::ORDER == RUN_LAST) use = multiply_run<SHAPE, ROUND>(w, left, use);
    start_values(w.x.o, w.x.p, w.view, w.values, use);
    DQ_WGMMA_WAIT(0, hopper_last_wait);
    release_values<SHAPE>(w.view, use.stage);
    dq_hold(w.x.o);
    return use_after<SHAPE>(use);
}

template <class SHAPE, bool ROUND>
DQ_KERNEL_BLOCKS(THREADS, 1)
attend_hopper(DQ_PARAMETER dq_attend_call a)
{
    DQ_SHARED_DYNAMIC(smem);
    if (dq_thread() == 0) {
        open_ring(key_ring<SHAPE>(smem), 1);
        open_ring(value_ring<SHAPE>(smem), 1);
        dq_fence_mbarrier_init();
    }
    DQ_CLUSTER_SYNC(hopper_start);
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
            team_work<SHAPE> w;
            use = multiply<SHAPE, ROUND>(w, smem, &a, i, use);
            end_item<SHAPE::DV / 2>(w.x.o, w.stats, &a, i, unit_of(&a), map_of(&a),
                                    (float *)(smem + space<SHAPE>::BOX));
        }
    }
    DQ_WARP_SYNC(hopper_together);
    DQ_CLUSTER_SYNC(hopper_end);
}

/* The largest |S| of the lane's rows, before the scale, to all[rows][n_q], or to all[seq][n_q]. By
 * bits, so that NaN wins. */
template <bool BY_ROW>
DQ_DEVICE void raise_maxima(uint32_t *all, const float max[2], const dq_attend_call *a,
                            const attend_job *j, int map)
{
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        const float scaled = dq_abs(dq_mul_rn(max[i], a->u.scale));
        uint32_t bits = has_row(j->w, i) ? dq_f32_bits(scaled) : 0;
        for (unsigned o = BY_ROW ? 2 : 16; o; o /= 2) {
            const uint32_t other = dq_shfl_xor(bits, o);
            bits = other > bits ? other : bits;
        }
        if (!bits || dq_lane() % (BY_ROW ? 4 : DQ_WARP)) continue;
        const int64_t group = BY_ROW ? j->w->row + row_of(i) : j->w->seq;
        dq_atomic_max(all + group * a->u.n_q + query_of(j, map), bits);
    }
}

/* ---- launcher */

/* A cluster for each item and head, but at most `each` blocks for a multiprocessor, and as many as
 * run at once. */
template <class SHAPE, class K>
static cudaError_t count_blocks(unsigned *blocks, const dq_attend_call &a, K *kernel,
                                unsigned threads, int each)
{
    int device, clusters = 0;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&clusters, cudaDevAttrMultiProcessorCount, device);
    clusters = clusters * each / SHAPE::CLUSTER;
    if (e == cudaSuccess && SHAPE::CLUSTER > 2) /* multiprocessors come in pairs */
        e = dq_resident_clusters(&clusters, kernel, SHAPE::CLUSTER, threads, space<SHAPE>::TOTAL);
    const int64_t items = (int64_t)a.n_items * a.u.max_out;
    *blocks = (unsigned)(SHAPE::CLUSTER * (items < clusters ? items : clusters));
    return e;
}

#define LAUNCH_RINGS(SHAPE, kernel, threads, each, s, a, ...)                                      \
    do {                                                                                           \
        unsigned blocks;                                                                           \
        cudaError_t e = DQ_ALLOW_SMEM(kernel, (int)space<SHAPE>::TOTAL);                           \
        if (e == cudaSuccess) e = count_blocks<SHAPE>(&blocks, a, kernel, threads, each);          \
        if (e != cudaSuccess) return e;                                                            \
        DQ_LAUNCH_CLUSTER(kernel, SHAPE::CLUSTER, dim3(blocks), threads, space<SHAPE>::TOTAL, s,   \
                          a, ##__VA_ARGS__);                                                       \
        return cudaGetLastError();                                                                 \
    } while (0)

template <class SHAPE, bool ROUND>
static cudaError_t launch_hopper(const dq_attend_call &a, cudaStream_t s)
{
    LAUNCH_RINGS(SHAPE, (attend_hopper<SHAPE, ROUND>), THREADS, 1, s, a);
}

#endif
