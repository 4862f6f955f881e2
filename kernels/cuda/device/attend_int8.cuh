/* attend_int8: attention over int8 operands by wgmma, of compute capability 9.0. As
 * attend_hopper.cuh, but a page that is read as codes has them as bytes, and queries of 8 bits are
 * multiplied with them: S is (float)(exact sum) * (scale of the query * scale of the token), the
 * CPU's bits. Tokens that a row reads unquantized are in f16 as ever. Steps of one kind follow each
 * other: first all pages as codes, then the others. tests/simt/defects.tsv quotes this text.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ATTEND_INT8_CUH
#define DQ_ATTEND_INT8_CUH

#include "kernels/cuda/device/attend_hopper.cuh"

/* What a team knows of its rows in a run of steps, as attend_rows: keys that they read. */
struct int8_rows {
    int lo[ROWS], hi[ROWS];
    float by[ROWS], step[ROWS];
    float q_scale[ROWS]; /* of codes of queries */
    full_pages full[4];
};
DQ_DEVICE bool is_full(const int8_rows *r, dq_step s)
{
    const full_pages f = r->full[row_of(0) / 16];
    return dq_page_of(s) >= f.first && dq_page_of(s) < f.end;
}
DQ_DEVICE key_window window_of(const int8_rows *r, dq_step s, int i)
{
    return {r->lo[row_of(i)] - dq_page_of(s) * KEYS, r->hi[row_of(i)] - dq_page_of(s) * KEYS};
}

/* The warp's rows in the k-th run. */
DQ_DEVICE void note_run(int8_rows *r, const dq_attention_units *u, const dq_attention_unit *w,
                        bool all, int k)
{
    const int warp = (int)dq_warp() % 4, i = 16 * warp + (int)dq_lane() % 16;
    int edge[4];
    find_edges(edge, u, w, i, all);
    const int lo = k == 1 ? edge[0] : k ? edge[2] : edge[1];
    const int hi = k == 1 ? edge[1] : k ? edge[3] : edge[2];
    const full_pages full = pages_between(lo, hi);
    DQ_WARP_SYNC(int8_rows_read); /* those before */
    if (dq_lane() < 16) {
        r->lo[i] = lo;
        r->hi[i] = hi;
    }
    if (dq_lane() == 0) r->full[warp] = full;
    DQ_WARP_SYNC(int8_rows_there);
}

template <int KEY_CHANNELS, int VALUE_CHANNELS>
struct int8_shape : hopper_shape<KEY_CHANNELS, VALUE_CHANNELS, 2, 3> {
    enum { INT8 = 1 };
    typedef int8_rows rows;
};

/* Warps read scales of tokens, each at its time. */
enum { INT8_READERS = TEAM / DQ_WARP };

/* Registers of scores: the queries as bytes; S of codes as sums, then in f32. */
template <class SHAPE> struct int8_scores {
    dq_registers<int32_t, KEYS / 2> sum;
    dq_registers<float, KEYS / 2> s;
    dq_registers<uint32_t, SHAPE::KD / 8> q;
};

struct alignas(16) attend_four {
    float x, y, z, w;
};
struct alignas(8) attend_pair {
    uint32_t x, y;
};

/* Queries of the team in f16. */
template <class SHAPE> DQ_DEVICE unsigned char *team_queries(unsigned char *smem)
{
    return smem + space<SHAPE>::BOX + team_of() * space<SHAPE>::KEY_BYTES;
}

/* Of the lane's rows: channels 16 h + 4 (lane % 4) .. + 3, 2 h + i at [2 h + i] of a product. */
template <class SHAPE>
DQ_DEVICE attend_four query_part(const dq_attend_call *a, const attend_job *j, int map, int k)
{
    const int c = k / 2 * 16 + 4 * ((int)dq_lane() % 4);
    if (!has_row(j->w, k % 2) || c >= a->u.form[0].dim) return attend_four{0, 0, 0, 0};
    return *(const attend_four *)(query_row(&a->u, j, map, row_of(k % 2)) + c);
}

/* Rows of queries in 8 bits as the left operand of codes, and in f16 to shared memory as that of
 * other keys. For both teams. */
template <class SHAPE>
DQ_DEVICE void round_queries(int8_scores<SHAPE> &x, unsigned char *smem, const dq_attend_call *a,
                             const attend_job *j, int map)
{
    unsigned char *const to = team_queries<SHAPE>(smem);
    float max[2] = {0, 0};
    DQ_BAR_SYNC(4, 2 * TEAM, int8_queries_read); /* those before */
    DQ_UNROLL
    for (int k = 0; k < SHAPE::KD / 8; k++) {
        const attend_four y = query_part<SHAPE>(a, j, map, k);
        const int c = k / 2 * 16 + 4 * ((int)dq_lane() % 4);
        float *const row = &max[k % 2];
        *row = dq_max_nan(*row, dq_max_nan(dq_abs(y.x), dq_abs(y.y)));
        *row = dq_max_nan(*row, dq_max_nan(dq_abs(y.z), dq_abs(y.w)));
        *(attend_pair *)(to + dq_operand_key(row_of(k % 2), c / 8 * 8) + c % 8 * 2) =
            attend_pair{dq_f32x2_f16(y.x, y.y), dq_f32x2_f16(y.z, y.w)};
    }
    if (is_beyond(max[0]) || is_beyond(max[1])) dq_raise(a->beyond);
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        max[i] = dq_max_nan(max[i], dq_shfl_xor(max[i], 1u));
        max[i] = dq_max_nan(max[i], dq_shfl_xor(max[i], 2u));
        max[i] = max[i] < INFINITY ? dq_div_rn(max[i], 127.0f) : NAN;
        if (dq_lane() % 4 == 0) team_rows<SHAPE>(smem)->q_scale[row_of(i)] = max[i];
    }
    DQ_UNROLL
    for (int k = 0; k < SHAPE::KD / 8; k++) {
        const attend_four y = query_part<SHAPE>(a, j, map, k);
        const float part[4] = {y.x, y.y, y.z, y.w}, scale = max[k % 2];
        uint32_t word = 0;
        DQ_UNROLL
        for (int i = 0; i < 4 && scale > 0; i++)
            word |= ((uint32_t)dq_f32_s8(dq_div_rn(part[i], scale)) & 255u) << 8 * i;
        x.q[k] = word;
    }
    DQ_FENCE_ASYNC(int8_queries_fence);
    DQ_BAR_SYNC(5, 2 * TEAM, int8_queries_there);
}

/* Of a stage, the keys that the team reads. */
template <class SHAPE>
DQ_DEVICE unsigned char *team_keys(unsigned char *smem, const dq_attend_call *a, ring_use use)
{
    const int head = a->o.head_keys == 2 ? team_of() : 0;
    return smem + (2 * use.stage + head) * space<SHAPE>::KEY_BYTES;
}

/* The stage of keys is free for all blocks of the cluster. A thread speaks for each warp, which is
 * done with the scales at its own time. */
template <class SHAPE> DQ_DEVICE void release_codes(dq_mbarrier *empty)
{
    if (dq_thread() % (TEAM / INT8_READERS)) return;
    for (unsigned rank = 0; rank < SHAPE::CLUSTER; rank++) dq_mbarrier_arrive_remote(empty, rank);
}

/* CODED: of a step that is read as codes. */
template <bool CODED, class SHAPE>
DQ_DEVICE void start_scores(int8_scores<SHAPE> &x, unsigned char *smem, const dq_attend_call *a,
                            ring_use use)
{
    const uint32_t keys = dq_smem_address(team_keys<SHAPE>(smem, a, use));
    ring<SHAPE> *const r = key_ring<SHAPE>(smem);
    DQ_MBARRIER_WAIT(&r->full[use.stage], use.parity, int8_keys_full);
    DQ_WGMMA_FENCE(int8_scores_fence);
    const uint64_t first = dq_make_descriptor(dq_uniform(keys), KEYS * 16, 128, DQ_SWIZZLE_NONE);
    if (CODED) {
        DQ_UNROLL
        for (int c = 0; c < SHAPE::KD; c += 32)
            dq_wgmma_s8(x.sum, x.q, c / 8,
                        dq_descriptor_after(first, (unsigned)dq_operand_code(SHAPE::KD, 0, c)),
                        c > 0);
    } else {
        const uint32_t rows = dq_uniform(dq_smem_address(team_queries<SHAPE>(smem)));
        const uint64_t queries = dq_make_descriptor(rows, KEYS * 16, 128, DQ_SWIZZLE_NONE);
        DQ_UNROLL
        for (int c = 0; c < SHAPE::KD; c += 16)
            dq_wgmma_f16(x.s, dq_descriptor_after(queries, (unsigned)dq_operand_key(0, c)),
                         dq_descriptor_after(first, (unsigned)dq_operand_key(0, c)), c > 0);
    }
    dq_wgmma_commit();
}

/* After the wait for start_scores: S of codes, by the tokens' scales (by the rows' too: EXACT), and
 * the stage is free. */
template <bool CODED, bool EXACT, class SHAPE>
DQ_DEVICE void take_scores(int8_scores<SHAPE> &x, unsigned char *smem, const dq_attend_call *a,
                           ring_use use)
{
    if (CODED) {
        const int8_rows *const rows = team_rows<SHAPE>(smem);
        float by[2] = {1, 1};
        DQ_UNROLL
        for (int i = 0; i < 2 && EXACT; i++) by[i] = rows->q_scale[row_of(i)];
        const unsigned char *keys = team_keys<SHAPE>(smem, a, use) + 8 * (dq_lane() % 4);
        dq_hold(x.sum);
        DQ_UNROLL
        for (int k = 0; k < KEYS / 2; k += 4) {
            const attend_two two = *(const attend_two *)(keys + dq_operand_scale(SHAPE::KD, 2 * k));
            DQ_UNROLL
            for (int e = 0; e < 4; e++) {
                float scale = e % 2 ? two.y : two.x;
                if (EXACT) scale = dq_mul_rn(by[e / 2], scale);
                x.s[k + e] = dq_mul_rn((float)x.sum[k + e], scale);
            }
        }
        DQ_WARP_SYNC(int8_scales_read);
    } else {
        dq_hold(x.s);
    }
    release_codes<SHAPE>(&key_ring<SHAPE>(smem)->empty[use.stage]);
}

#endif
