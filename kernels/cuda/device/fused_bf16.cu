/* fused_bf16: attention in one kernel, in bf16. A block has 64 rows of queries, 16 a warp, and all its warps share the page that
 * is in shared memory as bf16. The first pass finds maxima and sums, the second makes the scores again, and D from
 * registers is the left operand of the product with V. Texts of masks are quoted by tests/simt/defects.tsv.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/fused_bf16.cuh"
#include "kernels/cuda/device/fused_launch.h"

/* ------------------------------------------------------------------------------------- products */

/* S of one map and 32 tokens. */
DQ_DEVICE void half_scores(float s[4][4], const uint8_t *mem, const bf16_space *at,
                           const dq_attention_units *u, const fused_job *j, int m, int half)
{
    int dim = u->form[0].dim, lane = (int)dq_lane(), matrix = lane / 8, i = lane % 8;
    const uint8_t *q =
        mem + at->q + (m * (dim / 8) * TILE + WARP_ROWS * (int)dq_warp() + matrix % 2 * 8 + i) * 16;
    const uint8_t *k =
        mem + at->page +
        (j->which[m] * (dim / 8) * DQ_PAGE_SLOTS + 32 * half + matrix / 2 * 8 + i) * 16;
    DQ_UNROLL
    for (int n = 0; n < 16; n++) s[n / 4][n % 4] = 0;
    for (int c = 0; c < dim / 8; c += 2) {
        uint32_t a[4], b[4];
        dq_ldmatrix_x4(a, q + (c + matrix / 2) * TILE * 16);
        DQ_UNROLL
        for (int n = 0; n < 4; n += 2) {
            dq_ldmatrix_x4(b, k + ((c + matrix % 2) * DQ_PAGE_SLOTS + 8 * n) * 16);
            dq_mma_bf16(s[n], a, b);
            dq_mma_bf16(s[n + 1], a, b + 2);
        }
    }
    DQ_UNROLL
    for (int n = 0; n < 16; n++) s[n / 4][n % 4] = dq_mul_rn(s[n / 4][n % 4], u->scale);
}

/* o += D V of one way of reading the page. */
template <int NT>
DQ_DEVICE void multiply_page(float o[NT][4], const float d[8][4], const uint8_t *page,
                             const lane_page *at, int n_slabs, int dim)
{
    uint32_t a[4][4];
    int lane = (int)dq_lane();
    DQ_UNROLL
    for (int i = 0; i < 16; i++) {
        int row = i % 2, tile = i / 4 * 2 + i / 2 % 2;
        uint32_t w = dq_f32x2_bf16(d[tile][2 * row], d[tile][2 * row + 1]);
        a[i / 4][i % 4] = at->seen[row] > 0 ? w : 0;
    }
    page += (lane / 8 * dim + lane % 8) * 16;
    DQ_UNROLL
    for (int n = 0; n < NT; n++) {
        if (8 * n >= n_slabs * dim) break;
        const uint8_t *at_slab = page + 8 * n * 16 + (8 * n >= dim ? 7 * dim * 16 : 0);
        DQ_UNROLL
        for (int k = 0; k < 4; k += 2) {
            uint32_t b[4];
            dq_ldmatrix_x4(b, at_slab + 2 * k * dim * 16);
            dq_mma_bf16(o[n], a[k], b);
            dq_mma_bf16(o[n], a[k + 1], b + 2);
        }
    }
}

/* -------------------------------------------------------------------------------------- passes */

/* Over all pages: the largest |S| of every row (MOST), or maxima and sums. */
template <bool MAX>
DQ_DEVICE void first_pass(uint8_t *mem, const bf16_space *at, const dq_attention_units *u,
                          const fused_job *j, const lane_rows *l, const dq_fused_logits *round)
{
    const float low = MAX ? 0.0f : -INFINITY;
    row_stats *stats = (row_stats *)(mem + at->rows);
    float *shares = (float *)(mem + at->shares);
    for (int m = 0; m < j->n_maps; m++) put_share(lane_share(shares, m), low, low, 0.0f, 0.0f);
    for (int page = 0; page < j->n_pages; page++) {
        int ways = ways_of(j, 0, page);
        for (int way = 0; way < ways; way++) {
            DQ_SYNC(bf16_first_read); /* all have read the keys before */
            put_keys(mem + at->page, u, j, page, way_end(j, 0, page, ways, way));
            DQ_SYNC(bf16_first_keys); /* keys are there */
            if (page * DQ_PAGE_SLOTS >= l->max) continue;
            lane_page rows = way_of_lane(j, l, 0, page, ways, way);
            for (int k = 0; k < 2 * j->n_maps; k++) {
                float s[4][4];
                half_scores(s, mem, at, u, j, k / 2, k % 2);
                if (MAX) {
                    raise_max<true>(lane_share(shares, k / 2), s, &rows, k % 2);
                } else {
                    round_scores(s, l, stats->max[k / 2], round);
                    add_exps<true>(lane_share(shares, k / 2), s, &rows, k % 2);
                }
            }
        }
    }
    for (int m = 0; m < j->n_maps; m++) join_shares<MAX>(stats, lane_share(shares, m), u, j, l, m);
    DQ_SYNC(bf16_first_done); /* all have read the last page, and rows are known */
}

/* d += P1 - lambda P2, of one map exp(S - max), of rows that see the page so. */
DQ_DEVICE void page_difference(float d[8][4], const uint8_t *mem, const bf16_space *at,
                               const dq_attention_units *u, const fused_job *j, const lane_rows *l,
                               const lane_page *rows, const dq_fused_logits *round)
{
    const row_stats *stats = (const row_stats *)(mem + at->rows);
    DQ_UNROLL
    for (int half = 0; half < 2; half++) {
        for (int m = 0; m < j->n_maps; m++) {
            float s[4][4];
            half_scores(s, mem, at, u, j, m, half);
            round_scores(s, l, stats->max[m], round);
            add_map<true>(d + 4 * half, s, stats, j, l, rows, m, half);
        }
    }
}

template <int NT>
DQ_DEVICE void second_pass(float o[NT][4], uint8_t *mem, const bf16_space *at,
                           const dq_attention_units *u, const fused_job *j, const lane_rows *l,
                           const dq_fused_logits *round)
{
    for (int page = 0; page < j->n_pages; page++) {
        bool some = page * DQ_PAGE_SLOTS < l->max;
        float d[8][4] = {};
        int ways = ways_of(j, 0, page);
        for (int way = 0; way < ways; way++) {
            DQ_SYNC(bf16_second_read); /* all have read what stood there */
            put_keys(mem + at->page, u, j, page, way_end(j, 0, page, ways, way));
            DQ_SYNC(bf16_second_keys); /* keys are there */
            lane_page rows = way_of_lane(j, l, 0, page, ways, way);
            if (some) page_difference(d, mem, at, u, j, l, &rows, round);
        }
        ways = ways_of(j, 1, page);
        for (int way = 0; way < ways; way++) {
            DQ_SYNC(bf16_keys_read); /* all have read keys, or values of the other way */
            put_values(mem + at->page, u, j, page, way_end(j, 1, page, ways, way));
            DQ_SYNC(bf16_values_there); /* values are there */
            lane_page rows = way_of_lane(j, l, 1, page, ways, way);
            if (some) multiply_page<NT>(o, d, mem + at->page, &rows, j->n_slabs, u->form[1].dim);
        }
    }
}

template <int NT>
DQ_KERNEL_BLOCKS(THREADS, 2)
attend_bf16(dq_attention_units u, dq_attention_finish f, dq_fused_logits round, bf16_space at)
{
    DQ_SHARED_DYNAMIC(mem);
    DQ_SHARED(fused_job, job, [1]);
    if (!open_output(job, &u)) return;
    row_stats *stats = (row_stats *)(mem + at.rows);
    if (round.round == DQ_ROUND_GIVEN) given_max(stats, &u, job, &round);
    put_queries(mem + at.q, &u, job);
    lane_rows l = rows_of_lane(&u, job->w, false);
    if (round.round == DQ_ROUND_ROW) first_pass<true>(mem, &at, &u, job, &l, &round);
    first_pass<false>(mem, &at, &u, job, &l, &round);
    float o[NT][4] = {};
    second_pass<NT>(o, mem, &at, &u, job, &l, &round);
    float factor[2] = {1.0f, 1.0f};
    DQ_UNROLL
    for (int i = 0; i < 2; i++)
        if (job->n_maps == 1) factor[i] = stats->factor[0][l.row[i]];
    finish_rows<NT>(o, factor, job, &l, &f, (float *)(mem + at.shares), u.form[1].dim);
}

DQ_KERNEL_BLOCKS(THREADS, 4) scores_bf16(dq_attention_units u, bf16_space at)
{
    DQ_SHARED_DYNAMIC(mem);
    DQ_SHARED(fused_job, job, [1]);
    if (!open_query(job, &u)) return;
    put_queries(mem + at.q, &u, job);
    lane_rows l = rows_of_lane(&u, job->w, true);
    for (int page = 0; page < job->n_pages; page++) {
        int ways = ways_of(job, 0, page);
        for (int way = 0; way < ways; way++) {
            DQ_SYNC(bf16_scores_read); /* all have read the keys before */
            put_keys(mem + at.page, &u, job, page, way_end(job, 0, page, ways, way));
            DQ_SYNC(bf16_scores_keys); /* keys are there */
            if (page * DQ_PAGE_SLOTS >= l.max) continue;
            lane_page rows = way_of_lane(job, &l, 0, page, ways, way);
            for (int half = 0; half < 2; half++) {
                float s[4][4];
                half_scores(s, mem, &at, &u, job, 0, half);
                put_strip<true>(s, &u, job, &l, &rows, page, half);
            }
        }
    }
}

DQ_KERNEL_BLOCKS(THREADS, 4)
absmax_bf16(dq_attention_units u, uint32_t *DQ_RESTRICT max, bf16_space at)
{
    DQ_SHARED_DYNAMIC(mem);
    DQ_SHARED(fused_job, job, [1]);
    if (!open_query(job, &u)) return;
    put_queries(mem + at.q, &u, job);
    lane_rows l = rows_of_lane(&u, job->w, false);
    dq_fused_logits none = {};
    first_pass<true>(mem, &at, &u, job, &l, &none);
    raise_absmax(max, (const row_stats *)(mem + at.rows), &u, job);
}

/* ----------------------------------------------------------------------------------- launchers */

static bf16_space space_of(const dq_attention_units *u, int maps, int slabs)
{
    const int32_t head = TILE * u->form[0].dim * 2, heads = maps > slabs ? maps : slabs;
    bf16_space s = {};
    s.page = maps * head;
    s.rows = s.page + heads * head;
    s.shares = s.rows + (int32_t)sizeof(row_stats);
    s.total = s.shares + 2 * 4 * THREADS * 4;
    return s;
}

cudaError_t dq_fused_attend_bf16(dq_attention_units u, dq_attention_finish f, dq_fused_logits l,
                                 cudaStream_t s)
{
    const bf16_space at = space_of(&u, u.n_maps, u.n_slabs);
    const int tiles = u.n_slabs * u.form[1].dim / 8;
    const int blocks = u.n * u.max_out;
    if (tiles <= 8) DQ_FUSED_LAUNCH(attend_bf16<8>, blocks, THREADS, at.total, s, u, f, l, at);
    if (tiles <= 16) DQ_FUSED_LAUNCH(attend_bf16<16>, blocks, THREADS, at.total, s, u, f, l, at);
    DQ_FUSED_LAUNCH(attend_bf16<32>, blocks, THREADS, at.total, s, u, f, l, at);
}

cudaError_t dq_fused_scores_bf16(dq_attention_units u, uint32_t *max, cudaStream_t s)
{
    const bf16_space at = space_of(&u, 1, 0);
    const int blocks = u.n * u.max_q;
    if (max) DQ_FUSED_LAUNCH(absmax_bf16, blocks, THREADS, at.total, s, u, max, at);
    DQ_FUSED_LAUNCH(scores_bf16, blocks, THREADS, at.total, s, u, at);
}
