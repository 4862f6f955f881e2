/* fused_rows: softmax over scores as lanes hold them: of 32 tokens (half a page) a lane has s[j][2 i + e],
 * row i, token token_of(j, lane % 4) + e.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_FUSED_ROWS_CUH
#define DQ_FUSED_ROWS_CUH

#include "kernels/cuda/device/fused.cuh"

/* Token of column pair 2u, 2u + 1 of tile j; the second one follows it. In their natural order, or as
 * products of bytes want them, see fused_int8.cuh. */
template <bool NATURAL> DQ_DEVICE int token_of(int j, int u)
{
    return NATURAL ? 8 * j + 2 * u : j / 2 * 16 + 4 * u + 2 * ((j & 1) ^ (u >> 1));
}

/* S on the grid of a group whose largest |S| is absmax. */
DQ_DEVICE float on_grid(float s, float absmax, float r, float step, float qmax)
{
    if (absmax == 0.0f) return 0.0f;
    float q = dq_rint(dq_mul_rn(s, r));
    q = q < qmax ? q : qmax; /* NaN becomes a number; absmax, and so the product, is NaN then */
    q = q > -qmax ? q : -qmax;
    return dq_mul_rn(q, step);
}

DQ_DEVICE float exp_less(float s, float top)
{
    return dq_exp2_fast(dq_mul_rn(dq_sub_rn(s, top), LOG2E));
}

/* What is known of rows, in shared memory; each of a quad's lanes has read access after a warp barrier. */
struct row_stats {
    float top[2][TILE]; /* of S, after rounding */
    /* what exps are multiplied with; lambda and its sign are in the second's */
    float factor[2][TILE];
    float max[2][TILE]; /* the largest |S|, before rounding */
};

/* A lane's share of one map of its rows. */
struct lane_sums {
    float top[2], sum[2];
};

/* The whole rows' to all four lanes of a quad. */
DQ_DEVICE void join_sums(lane_sums *a)
{
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        DQ_UNROLL
        for (unsigned o = 1; o <= 2; o *= 2) {
            float top = dq_shfl_xor(a->top[i], o), sum = dq_shfl_xor(a->sum[i], o);
            float max = dq_max(a->top[i], top);
            /* a lane that saw nothing holds 0; one that saw only NaN holds that */
            float mine =
                a->top[i] == max ? a->sum[i] : dq_mul_rn(a->sum[i], exp_less(a->top[i], max));
            float its = top == max ? sum : dq_mul_rn(sum, exp_less(top, max));
            a->sum[i] = dq_add_rn(mine, its);
            a->top[i] = max;
        }
    }
}

DQ_DEVICE uint32_t quad_max(uint32_t max)
{
    uint32_t other = dq_shfl_xor(max, 1u);
    max = other > max ? other : max;
    other = dq_shfl_xor(max, 2u);
    return other > max ? other : max;
}

DQ_DEVICE float lambda_at(const dq_attention_units *u, const dq_attention_unit *w, int row, int out)
{
    return u->lambda ? u->lambda[(int64_t)(w->row + row) * u->n_out + out] : u->lambda_layer;
}

/* Lanes keep their share of a pass in shared memory, where what belongs to a map is an index. */
DQ_DEVICE float *lane_share(float *shares, int m)
{
    return shares + m * 4 * THREADS + dq_thread();
}

DQ_DEVICE void put_share(float *to, float a, float b, float c, float d)
{
    to[0] = a;
    to[THREADS] = b;
    to[2 * THREADS] = c;
    to[3 * THREADS] = d;
}

template <bool NATURAL>
DQ_DEVICE void raise_max(float *share, const float s[4][4], const lane_page *at, int half)
{
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        uint32_t max = dq_f32_bits(share[i * THREADS]);
        DQ_UNROLL
        for (int k = 0; k < 8; k++) {
            uint32_t bits = dq_f32_bits(s[k / 2][2 * i + k % 2]) & 0x7fffffffu;
            bool counts =
                sees(at, i, 32 * half + token_of<NATURAL>(k / 2, (int)dq_lane() % 4) + k % 2);
            if (counts && bits > max) max = bits;
        }
        share[i * THREADS] = dq_bits_f32(max);
    }
}

/* A half page's exps. */
template <bool NATURAL>
DQ_DEVICE void add_exps(float *share, const float s[4][4], const lane_page *at, int half)
{
    int u = (int)dq_lane() % 4;
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        float old = share[i * THREADS], top = old, sum = 0;
        DQ_UNROLL
        for (int k = 0; k < 8; k++) {
            if (sees(at, i, 32 * half + token_of<NATURAL>(k / 2, u) + k % 2))
                top = dq_max(top, s[k / 2][2 * i + k % 2]);
        }
        DQ_UNROLL
        for (int k = 0; k < 8; k++) {
            float x = exp_less(s[k / 2][2 * i + k % 2], top);
            if (sees(at, i, 32 * half + token_of<NATURAL>(k / 2, u) + k % 2))
                sum = dq_add_rn(sum, x);
        }
        float before = share[(2 + i) * THREADS];
        if (old != top) before = dq_mul_rn(before, exp_less(old, top));
        share[(2 + i) * THREADS] = dq_add_rn(before, sum);
        share[i * THREADS] = top;
    }
}

DQ_DEVICE void round_scores(float s[4][4], const lane_rows *l, const float *max,
                            const dq_fused_logits *round)
{
    if (round->round == DQ_ROUND_NOT) return;
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        float absmax = max[l->row[i]];
        float r = dq_div_rn(round->qmax, absmax), step = dq_div_rn(absmax, round->qmax);
        DQ_UNROLL
        for (int k = 0; k < 8; k++) {
            float *x = &s[k / 2][2 * i + k % 2];
            *x = on_grid(*x, absmax, r, step, round->qmax);
        }
    }
}

/* What the lanes found, to rows. */
template <bool MAX>
DQ_DEVICE void join_shares(row_stats *to, const float *share, const dq_attention_units *u,
                           const fused_job *j, const lane_rows *l, int m)
{
    lane_sums a = {{share[0], share[THREADS]}, {share[2 * THREADS], share[3 * THREADS]}};
    if (!MAX) join_sums(&a);
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        int r = l->row[i];
        uint32_t max = MAX ? quad_max(dq_f32_bits(a.top[i])) : 0;
        if (dq_lane() % 4) continue;
        if (MAX) {
            to->max[m][r] = dq_bits_f32(max);
        } else {
            float x = m == 0 ? 1.0f : r < j->w->n ? -lambda_at(u, j->w, r, j->out) : 0.0f;
            to->top[m][r] = a.top[i];
            to->factor[m][r] = dq_div_rn(x, a.sum[i]);
        }
    }
}

/* By all threads, before a barrier. */
DQ_DEVICE void given_max(row_stats *to, const dq_attention_units *u, const fused_job *j,
                         const dq_fused_logits *round)
{
    for (int i = (int)dq_thread(); i < 2 * TILE; i += THREADS) {
        int m = i / TILE < j->n_maps ? i / TILE : 0;
        to->max[i / TILE][i % TILE] = round->absmax[j->w->seq * u->n_q + j->query[m]];
    }
}

/* d += P1 or - lambda P2; of one map exp(S - max). Nothing where a row sees nothing. */
template <bool NATURAL>
DQ_DEVICE void add_map(float d[4][4], const float s[4][4], const row_stats *stats,
                       const fused_job *j, const lane_rows *l, const lane_page *at, int m, int half)
{
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        float top = stats->top[m][l->row[i]];
        float factor = j->n_maps == 2 ? stats->factor[m][l->row[i]] : 1.0f;
        DQ_UNROLL
        for (int k = 0; k < 8; k++) {
            float *to = &d[k / 2][2 * i + k % 2];
            float x = dq_mul_rn(exp_less(s[k / 2][2 * i + k % 2], top), factor);
            if (sees(at, i, 32 * half + token_of<NATURAL>(k / 2, (int)dq_lane() % 4) + k % 2))
                *to = dq_add_rn(*to, x);
        }
    }
}

template <bool NATURAL>
DQ_DEVICE void put_strip(const float s[4][4], const dq_attention_units *u, const fused_job *j,
                         const lane_rows *l, const lane_page *at, int page, int half)
{
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        if (l->row[i] >= j->w->n) continue;
        float *to = strip_of(u, j->w, j->strip[0], l->row[i]) + page * DQ_PAGE_SLOTS;
        DQ_UNROLL
        for (int k = 0; k < 8; k++) {
            int t = 32 * half + token_of<NATURAL>(k / 2, (int)dq_lane() % 4) + k % 2;
            if (sees(at, i, t)) to[t] = s[k / 2][2 * i + k % 2];
        }
    }
}

/* The largest |S| of the block's rows. */
DQ_DEVICE void raise_absmax(uint32_t *max, const row_stats *stats, const dq_attention_units *u,
                            const fused_job *j)
{
    if (dq_warp() != 0) return;
    uint32_t a = dq_f32_bits(stats->max[0][dq_lane()]);
    uint32_t b = dq_f32_bits(stats->max[0][dq_lane() + DQ_WARP]), top = a > b ? a : b;
    for (unsigned o = 16; o; o >>= 1) {
        uint32_t other = dq_shfl_xor(top, o);
        top = other > top ? other : top;
    }
    if (dq_lane() == 0 && top) dq_atomic_max(max + j->w->seq * u->n_q + j->query[0], top);
}

#endif
