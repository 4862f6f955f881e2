/* simt_attend: see simt_attend.h. Rows of defects.tsv quote this text.
 * SPDX-License-Identifier: MIT */
#include "tests/simt/simt_attend.h"

#include "kernels/cuda/device/hopper.cuh"

enum {
    ROWS = DQ_ATTEND_ROWS,
    KEYS = DQ_ATTEND_KEYS,
    HEAD = DQ_ATTEND_HEAD,
    VALUE = DQ_ATTEND_VALUE,
    STAGES = 3,
    MAP_BYTES = KEYS * HEAD * 2, /* keys of a map, or queries */
    K_BYTES = 2 * MAP_BYTES,
    V_BYTES = KEYS * VALUE * 2,
    V_AT = STAGES * K_BYTES,
    Q_AT = V_AT + STAGES * V_BYTES, /* queries, then what the maps exchange */
    SHARED = Q_AT + 2 * MAP_BYTES,
    THREADS = 384
};

/* One ring of stages: a producer waits until a stage is empty, consumers until it is full. */
struct ring {
    dq_mbarrier full[STAGES], empty[STAGES];
};

/* Where the i-th use of a ring takes place, and the parity of its phase. */
DQ_DEVICE int stage_of(int i)
{
    return i % STAGES;
}
DQ_DEVICE unsigned parity_of(int i)
{
    return (unsigned)(i / STAGES) & 1u;
}

DQ_DEVICE void open_ring(ring *r)
{
    for (int s = 0; s < STAGES; s++) {
        DQ_MBARRIER_INIT(&r->full[s], 1);
        DQ_MBARRIER_INIT(&r->empty[s], 4); /* two warpgroups of two blocks */
    }
}

/* ---------------------------------------------------------------------------------------- producer */
/* Each block copies one half of what both need. */
DQ_DEVICE void produce(unsigned char *smem, ring *keys, ring *values, const uint16_t *k,
                       const uint16_t *v, int pages, int tiles)
{
    const unsigned rank = dq_cluster_rank();
    for (int i = 0; i < pages * tiles; i++) {
        const int s = stage_of(i), page = i % pages;
        DQ_MBARRIER_WAIT(&keys->empty[s], parity_of(i) ^ 1u, attend_keys_empty);
        dq_mbarrier_arrive_expect(&keys->full[s], K_BYTES);
        const unsigned k_half = rank * MAP_BYTES;
        const unsigned char *from = (const unsigned char *)k + (size_t)page * K_BYTES;
        dq_bulk_copy_multicast(smem + s * K_BYTES + k_half, from + k_half, MAP_BYTES,
                               &keys->full[s], 3);
        DQ_MBARRIER_WAIT(&values->empty[s], parity_of(i) ^ 1u, attend_values_empty);
        dq_mbarrier_arrive_expect(&values->full[s], V_BYTES);
        const unsigned v_half = rank * (V_BYTES / 2);
        from = (const unsigned char *)v + (size_t)page * V_BYTES;
        dq_bulk_copy_multicast(smem + V_AT + s * V_BYTES + v_half, from + v_half, V_BYTES / 2,
                               &values->full[s], 3);
    }
}

/* --------------------------------------------------------------------------------------- consumers */
/* One thread of a warpgroup speaks for it, to both blocks, which copy for each other. */
DQ_DEVICE void release(dq_mbarrier *empty)
{
    if (dq_thread() % 128) return;
    for (unsigned rank = 0; rank < 2; rank++) dq_mbarrier_arrive_remote(empty, rank);
}

/* The warpgroup's queries, in cells as keys have them. */
DQ_DEVICE void stage_queries(unsigned char *at, const uint16_t *q, unsigned map)
{
    for (unsigned i = dq_thread() % 128; i < ROWS * HEAD / 8; i += 128) {
        const unsigned row = i / (HEAD / 8), cell = i % (HEAD / 8);
        dq_store16(at + (cell * ROWS + row) * 16, dq_load16_const(q + row * HEAD + cell * 8));
    }
    DQ_FENCE_ASYNC(attend_queries_fence);
    DQ_BAR_SYNC(2 + map, 128, attend_queries_there);
}

typedef dq_registers<float, KEYS / 2> scores_t;
typedef dq_registers<float, VALUE / 2> output_t;
typedef dq_registers<uint32_t, KEYS / 4> weights_t;

DQ_DEVICE void start_scores(scores_t &s, uint32_t queries, uint32_t keys, dq_mbarrier *full,
                            unsigned parity)
{
    DQ_MBARRIER_WAIT(full, parity, attend_keys_full);
    DQ_WGMMA_FENCE(attend_scores_fence);
    DQ_UNROLL
    for (unsigned c = 0; c < HEAD / 16; c++) {
        const unsigned at = c * 2 * KEYS * 16;
        dq_wgmma_f16(s, dq_make_descriptor(queries + at, ROWS * 16, 128, DQ_SWIZZLE_NONE),
                     dq_make_descriptor(keys + at, KEYS * 16, 128, DQ_SWIZZLE_NONE), c > 0);
    }
    dq_wgmma_commit(); /* Scores and values are groups of their own, waited for one by one. */
}

DQ_DEVICE void start_values(output_t &o, weights_t &p, uint32_t values, dq_mbarrier *full,
                            unsigned parity, bool add)
{
    DQ_MBARRIER_WAIT(full, parity, attend_values_full);
    DQ_WGMMA_FENCE(attend_values_fence);
    DQ_UNROLL
    for (int t = 0; t < KEYS / 16; t++) {
        const uint32_t at = values + (unsigned)t * 2 * VALUE * 16;
        dq_wgmma_f16(o, p, 4 * t, dq_make_descriptor(at, VALUE * 16, 128, DQ_SWIZZLE_NONE),
                     add || t > 0);
    }
    dq_wgmma_commit();
}

/* Of the two rows of a lane. */
struct statistics {
    float max[2], sum[2], alpha[2];
};

/* s becomes exp2(s - max) of each row; alpha is what brings earlier sums to the new maximum. */
DQ_DEVICE void softmax(scores_t &s, statistics &x)
{
    const float scale = 0.08838834765f * 1.44269504f;
    DQ_UNROLL
    for (int h = 0; h < 2; h++) {
        float max = x.max[h], sum = 0;
        DQ_UNROLL
        for (int i = 0; i < KEYS / 2; i += 4)
            max = dq_max(max, dq_max(s[i + 2 * h], s[i + 2 * h + 1]) * scale);
        max = dq_max(max, dq_shfl_xor(max, 1));
        max = dq_max(max, dq_shfl_xor(max, 2));
        DQ_UNROLL
        for (int i = 0; i < KEYS / 2; i += 4)
            for (int e = 0; e < 2; e++) {
                const float p = dq_exp2_fast(dq_fma_rn(s[i + 2 * h + e], scale, -max));
                s[i + 2 * h + e] = p;
                sum += p;
            }
        x.alpha[h] = dq_exp2_fast(x.max[h] - max);
        x.sum[h] = dq_fma_rn(x.sum[h], x.alpha[h], sum);
        x.max[h] = max;
    }
}

/* Accumulators of scores are laid out as A of the next product, but for their width. */
DQ_DEVICE void pack(weights_t &p, scores_t &s)
{
    DQ_UNROLL
    for (int i = 0; i < KEYS / 4; i++)
        p[i] = dq_f32_f16(s[2 * i]) | (uint32_t)dq_f32_f16(s[2 * i + 1]) << 16;
}

DQ_DEVICE void rescale(output_t &o, const statistics &x)
{
    DQ_UNROLL
    for (int i = 0; i < VALUE / 2; i++) o[i] = o[i] * x.alpha[i / 2 % 2];
}

/* out = o1 / l1 - lambda o2 / l2, by way of shared memory, half of the channels at a time. */
DQ_DEVICE void finish(float *out, float *box, output_t &o, const statistics &x, unsigned map,
                      float lambda)
{
    const unsigned lane = dq_lane(), row = dq_warp() % 4 * 16 + lane / 4;
    float inverse[2];
    for (int h = 0; h < 2; h++) {
        float sum = x.sum[h];
        sum += dq_shfl_xor(sum, 1);
        sum += dq_shfl_xor(sum, 2);
        inverse[h] = dq_div_rn(map ? -lambda : 1.0f, sum);
    }
    DQ_UNROLL
    for (int part = 0; part < 2; part++) {
        DQ_BAR_SYNC(1, 256, attend_second_empty);
        DQ_UNROLL
        for (int i = 0; i < VALUE / 4; i++) {
            const unsigned r = row + 8 * (i / 2 % 2);
            const unsigned column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
            const float mine = o[part * (VALUE / 4) + i] * inverse[i / 2 % 2];
            if (map)
                box[r * (VALUE / 2) + column] = mine;
            else
                out[r * VALUE + part * (VALUE / 2) + column] = mine;
        }
        DQ_BAR_SYNC(4, 256, attend_second_full);
        DQ_UNROLL
        for (int i = 0; i < VALUE / 4 && !map; i++) {
            const unsigned r = row + 8 * (i / 2 % 2);
            const unsigned column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
            out[r * VALUE + part * (VALUE / 2) + column] += box[r * (VALUE / 2) + column];
        }
    }
    DQ_BAR_SYNC(5, 256, attend_second_read);
}

/* One tile; the rings have been used `used` times. */
DQ_DEVICE void consume(float *out, unsigned char *smem, ring *keys, ring *values, const uint16_t *q,
                       int pages, int used, unsigned map, float lambda)
{
    const uint32_t base = dq_smem_address(smem), queries = base + Q_AT + map * MAP_BYTES;
    scores_t s;
    output_t o;
    weights_t p;
    statistics x = {{-1e30f, -1e30f}, {0, 0}, {0, 0}};
    stage_queries(smem + Q_AT + map * MAP_BYTES, q + map * ROWS * HEAD, map);
    int i = used;
    start_scores(s, queries, base + stage_of(i) * K_BYTES + map * MAP_BYTES,
                 &keys->full[stage_of(i)], parity_of(i));
    DQ_WGMMA_WAIT(0, attend_first_wait);
    release(&keys->empty[stage_of(i)]);
    dq_hold(s);
    softmax(s, x);
    pack(p, s);
    for (i++; i < used + pages; i++) {
        const int now = stage_of(i), last = stage_of(i - 1);
        start_scores(s, queries, base + now * K_BYTES + map * MAP_BYTES, &keys->full[now],
                     parity_of(i));
        start_values(o, p, base + V_AT + last * V_BYTES, &values->full[last], parity_of(i - 1),
                     i - 1 > used);
        DQ_WGMMA_WAIT(1, attend_scores_wait);
        release(&keys->empty[now]);
        dq_hold(s);
        softmax(s, x);
        DQ_WGMMA_WAIT(0, attend_products_wait);
        release(&values->empty[last]);
        dq_hold(o);
        rescale(o, x);
        pack(p, s);
    }
    const int last = stage_of(i - 1);
    start_values(o, p, base + V_AT + last * V_BYTES, &values->full[last], parity_of(i - 1),
                 pages > 1);
    DQ_WGMMA_WAIT(0, attend_last_wait);
    dq_hold(o);
    release(&values->empty[last]);
    finish(out, (float *)(smem + Q_AT), o, x, map, lambda);
}

DQ_KERNEL_BLOCKS(THREADS, 1)
attend(float *out, const uint16_t *q, const uint16_t *k, const uint16_t *v, int pages, int pairs,
       float lambda)
{
    DQ_SHARED_DYNAMIC(smem);
    DQ_SHARED(ring, rings, [2]);
    const int cluster = (int)dq_block_x() / 2, clusters = (int)dq_grid_x() / 2;
    const int tiles = (pairs - cluster + clusters - 1) / clusters;
    if (dq_thread() == 0) {
        open_ring(&rings[0]);
        open_ring(&rings[1]);
        dq_fence_mbarrier_init();
    }
    DQ_CLUSTER_SYNC(attend_start);
    if (dq_warp() < 4) {
        dq_setmaxnreg_dec<24>();
        if (dq_thread() == 0) produce(smem, &rings[0], &rings[1], k, v, pages, tiles);
    } else {
        dq_setmaxnreg_inc<240>();
        const unsigned map = dq_warp() / 4 - 1;
        for (int i = 0; i < tiles; i++) {
            const size_t tile = 2 * (size_t)(cluster + i * clusters) + dq_cluster_rank();
            consume(out + tile * ROWS * VALUE, smem, &rings[0], &rings[1],
                    q + tile * 2 * ROWS * HEAD, pages, i * pages, map, lambda);
        }
    }
    DQ_WARP_SYNC(attend_together);
    DQ_CLUSTER_SYNC(attend_end);
}

cudaError_t dq_attend_sample(float *out, const uint16_t *q, const uint16_t *k, const uint16_t *v,
                             int pages, int pairs, int clusters, float lambda, cudaStream_t s)
{
    const cudaError_t e = DQ_ALLOW_SMEM(attend, SHARED);
    if (e != cudaSuccess) return e;
    DQ_LAUNCH_CLUSTER(attend, 2, dim3(2 * (unsigned)clusters), THREADS, SHARED, s, out, q, k, v,
                      pages, pairs, lambda);
    return cudaGetLastError();
}
