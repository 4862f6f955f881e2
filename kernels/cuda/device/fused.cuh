/* fused: what the fused kernels share. A block is four warps; a warp owns 16 rows of the unit. Of a
 * product a lane holds rows lane / 4 and lane / 4 + 8, so that rows never leave their four lanes.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_FUSED_CUH
#define DQ_FUSED_CUH

#include "kernels/cuda/device/page.cuh"

#include <math.h>

enum { WARPS = 4, THREADS = WARPS * DQ_WARP, WARP_ROWS = 16 };

#define LOG2E 1.44269504f

/* A loop that must stay one: registers are scarce. */
#ifdef __CUDACC__
#define ROLLED _Pragma("unroll 1")
#else
#define ROLLED
#endif

struct alignas(8) pair {
    float x, y;
};

/* What a block computes, in shared memory. */
struct fused_job {
    const dq_attention_unit *w;
    const dq_page *pages;
    int32_t n_pages, n_maps, n_slabs, n_keys;
    int32_t out;      /* output head, of the model and */
    int32_t query[2]; /* query heads of the model, */
    int32_t strip[2]; /* the same among the group's */
    int32_t key[2];   /* different slots of keys, n_keys of them, */
    int32_t which[2]; /* and which of them a map reads */
    int32_t value[2]; /* slots of values */
};

DQ_DEVICE void open_maps(fused_job *j, const dq_attention_units *u, const dq_attention_unit *w)
{
    j->w = w;
    j->pages = u->pages + w->page;
    j->n_pages = (w->keys + DQ_PAGE_SLOTS - 1) / DQ_PAGE_SLOTS;
    for (int m = 0; m < j->n_maps; m++) {
        const dq_q_head h = u->q_head[u->q_first[w->group] + j->strip[m]];
        j->query[m] = h.head;
        j->which[m] = m && h.key != j->key[0];
        j->key[j->which[m]] = h.key;
    }
    j->n_keys = j->n_maps == 2 ? 1 + j->which[1] : 1;
}

/* Grid: output heads of a group within units, the last unit first. False: nothing to do. For all
 * threads; a barrier. */
DQ_DEVICE bool open_output(fused_job *j, const dq_attention_units *u)
{
    int n = u->max_out, i = (int)dq_block_x() % n;
    const dq_attention_unit *w = u->unit + (u->n - 1 - (int)dq_block_x() / n);
    if (i >= heads_of(u->o_first, w->group)) return false;
    if (dq_thread() == 0) {
        const dq_o_head o = u->o_head[u->o_first[w->group] + i];
        j->out = o.out;
        j->n_maps = u->n_maps;
        j->n_slabs = u->n_slabs;
        for (int m = 0; m < 2; m++) {
            j->strip[m] = o.q[m];
            j->value[m] = o.v[m];
        }
        open_maps(j, u, w);
    }
    DQ_SYNC(output_job); /* the job is there */
    return true;
}

/* Grid: query heads of a group within units. As open_output. */
DQ_DEVICE bool open_query(fused_job *j, const dq_attention_units *u)
{
    int n = u->max_q, i = (int)dq_block_x() % n;
    const dq_attention_unit *w = u->unit + (u->n - 1 - (int)dq_block_x() / n);
    if (i >= heads_of(u->q_first, w->group)) return false;
    if (dq_thread() == 0) {
        j->n_maps = 1;
        j->n_slabs = 0;
        j->strip[0] = i;
        open_maps(j, u, w);
    }
    DQ_SYNC(query_job); /* the job is there */
    return true;
}

DQ_DEVICE const float *query_of(const dq_attention_units *u, const fused_job *j, int m, int r)
{
    return u->q + ((int64_t)(j->w->row + r) * u->n_q + j->query[m]) * u->form[0].dim;
}

/* The two rows of a lane. */
struct lane_rows {
    int row[2], seen[2]; /* seen: keys, 0 after the unit's rows */
    int max;             /* the warp's largest seen */
};

/* Within a warp. all: rows see what the last one does. */
DQ_DEVICE lane_rows rows_of_lane(const dq_attention_units *u, const dq_attention_unit *w, bool all)
{
    lane_rows l;
    l.max = 0;
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        int r = WARP_ROWS * (int)dq_warp() + (int)dq_lane() / 4 + 8 * i;
        l.row[i] = r;
        l.seen[i] = r >= w->n ? 0 : all ? w->keys : visible_of(u, w, r);
        l.max = l.seen[i] > l.max ? l.seen[i] : l.max;
    }
    for (unsigned o = 16; o; o >>= 1) {
        int other = dq_shfl_xor(l.max, o);
        l.max = other > l.max ? other : l.max;
    }
    return l;
}

/* Whether some row of the unit reads codes of a page. */
DQ_DEVICE bool is_coded(const fused_job *j, const dq_page *p, int side, int page)
{
    int a = slots_of(j->w->coded[0], page), b = slots_of(j->w->coded[1], page);
    if (j->w->split >= j->w->n) b = a;
    return dq_page_is_coded(p, side, a > b ? a : b);
}

/* Slots first .. end[i]-1 of a page are codes to the lane's row i; it sees `seen` slots. */
struct lane_page {
    int first, end[2], seen[2];
    int least_end; /* of any row of the unit */
    bool coded;    /* to some row of it */
};

DQ_DEVICE lane_page page_of_lane(const fused_job *j, const lane_rows *l, int side, int page)
{
    const dq_page *p = j->pages + page;
    const dq_page_side *s = &p->side[side];
    lane_page at;
    int slots[2] = {slots_of(j->w->coded[0], page), slots_of(j->w->coded[1], page)};
    if (!s->plain) slots[0] = slots[1] = DQ_PAGE_SLOTS;
    if (!s->codes) slots[0] = slots[1] = 0;
    at.first = s->codes ? p->n_sinks : 0;
    at.coded = is_coded(j, p, side, page);
    bool both = j->w->split < j->w->n, none = j->w->split == 0;
    at.least_end = !both ? slots[0] : none || slots[1] < slots[0] ? slots[1] : slots[0];
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        int seen = l->seen[i] - page * DQ_PAGE_SLOTS;
        at.seen[i] = seen > DQ_PAGE_SLOTS ? DQ_PAGE_SLOTS : seen;
        at.end[i] = l->row[i] >= j->w->split ? slots[1] : slots[0];
    }
    return at;
}

/* Whether row i of the lane reads slot t, and as what. */
DQ_DEVICE bool sees(const lane_page *p, int i, int t)
{
    return t < p->seen[i];
}
DQ_DEVICE bool is_code(const lane_page *p, int i, int t)
{
    return t >= p->first && t < p->end[i];
}
DQ_DEVICE bool is_plain(const lane_page *p, int i, int t)
{
    return sees(p, i, t) && !is_code(p, i, t);
}

/* Where the unquantized token t of a head begins, in elements; sinks of a page may lie apart. */
struct plain_place {
    const void *from;
    int64_t at;
};
DQ_DEVICE plain_place place_of_plain(const dq_page_form *f, const dq_page *p, int side, int head,
                                     int t)
{
    const dq_page_side *s = &p->side[side];
    if (s->plain) return plain_place{s->plain, (int64_t)(head * DQ_PAGE_SLOTS + t) * f->stride};
    t = t < p->n_sinks ? t : p->n_sinks - 1; /* a neighbour, which nobody uses */
    return plain_place{s->sinks, (int64_t)(head * p->n_sinks + t) * f->dim};
}

/* The token itself, of pages in f32. */
DQ_DEVICE const float *plain_token(const dq_page_form *f, const dq_page *p, int side, int head,
                                   int t)
{
    const dq_page_side *s = &p->side[side];
    if (s->plain)
        return (const float *)s->plain + (size_t)(head * DQ_PAGE_SLOTS + t) * (size_t)f->stride;
    t = t < p->n_sinks ? t : p->n_sinks - 1;
    return (const float *)s->sinks + (size_t)(head * p->n_sinks + t) * (size_t)f->dim;
}

/* ---- unpacking */

/* The high bits of 16 channels of a token, two bytes of a plane of one bit, into bit `at` of x. */
DQ_DEVICE dq_u4 with_bits(dq_u4 x, const uint8_t *plane, int at)
{
    const uint32_t h = *(const uint16_t *)plane, one = 0x0101u;
    const uint32_t word[4] = {
        (h & one) | (h >> 1 & one) << 16, (h >> 2 & one) | (h >> 3 & one) << 16,
        (h >> 4 & one) | (h >> 5 & one) << 16, (h >> 6 & one) | (h >> 7 & one) << 16};
    return dq_u4{x.x | word[0] << at, x.y | word[1] << at, x.z | word[2] << at,
                 x.w | word[3] << at};
}

/* key_cell of codes of 3 and 2 bits. */
DQ_DEVICE dq_u4 narrow_key_cell(const uint8_t *codes, int bits, int cols, int block, int t)
{
    const uint32_t h = *(const uint32_t *)(codes + (block * DQ_PAGE_SLOTS + t) * 4),
                   two = 0x03030303u;
    const dq_u4 x = dq_u4{h & two, h >> 2 & two, h >> 4 & two, h >> 6 & two};
    if (bits == 2) return x;
    return with_bits(x, codes + DQ_PAGE_SLOTS * cols / 4 + (block * DQ_PAGE_SLOTS + t) * 2, 2);
}

/* Codes of key channels 16 block .. +15 of token t, offset binary, a byte each; of one head. */
DQ_DEVICE dq_u4 key_cell(const uint8_t *codes, int bits, int cols, int block, int t)
{
    if (bits == 8) return dq_load16(codes + (block * DQ_PAGE_SLOTS + t) * 16);
    if (bits < 4) return narrow_key_cell(codes, bits, cols, block, t);
    const uint32_t low = 0x0f0f0f0fu, two = 0x03030303u;
    dq_u4 x;
    if (block == cols / 16 - 1 && cols % 32) { /* half a cell */
        const uint32_t *w = (const uint32_t *)(codes + block / 2 * DQ_PAGE_SLOTS * 16 + t * 8);
        x = dq_u4{w[0] & low, w[1] & low, w[0] >> 4 & low, w[1] >> 4 & low};
    } else {
        x = dq_load16(codes + (block / 2 * DQ_PAGE_SLOTS + t) * 16);
        int shift = block % 2 * 4;
        x = dq_u4{x.x >> shift & low, x.y >> shift & low, x.z >> shift & low, x.w >> shift & low};
    }
    if (bits == 4) return x;
    if (bits == 5)
        return with_bits(x, codes + DQ_PAGE_SLOTS * cols / 2 + (block * DQ_PAGE_SLOTS + t) * 2, 4);
    uint32_t h =
        *(const uint32_t *)(codes + DQ_PAGE_SLOTS * cols / 2 + (block * DQ_PAGE_SLOTS + t) * 4);
    return dq_u4{x.x | (h & two) << 4, x.y | (h >> 2 & two) << 4, x.z | (h >> 4 & two) << 4,
                 x.w | (h >> 6 & two) << 4};
}

/* Bytes below 128, less `half` each: two's complement. */
DQ_DEVICE uint32_t less(uint32_t x, uint32_t half)
{
    return ((x | 0x80808080u) - half * 0x01010101u) ^ 0x80808080u;
}

/* Codes of value channel c of tokens 16 block .. +15, two's complement. */
DQ_DEVICE dq_u4 value_cell(const uint8_t *codes, int bits, int cols, int block, int c)
{
    if (bits == 8) return dq_load16(codes + (block * cols + c) * 16);
    const uint32_t two = 0x03030303u, one = 0x01010101u, half = 1u << (bits - 1);
    bool wide = bits >= 4; /* its first plane has 4 bits */
    int at = wide ? block / 2 * cols + c : c, shift = wide ? block % 2 * 4 : block * 2;
    uint32_t mask = wide ? 0x0f0f0f0fu : two;
    dq_u4 x = dq_load16(codes + at * 16);
    x = dq_u4{x.x >> shift & mask, x.y >> shift & mask, x.z >> shift & mask, x.w >> shift & mask};
    if (bits == 6) {
        dq_u4 h = dq_load16(codes + DQ_PAGE_SLOTS * cols / 2 + c * 16);
        shift = block * 2;
        x = dq_u4{x.x | (h.x >> shift & two) << 4, x.y | (h.y >> shift & two) << 4,
                  x.z | (h.z >> shift & two) << 4, x.w | (h.w >> shift & two) << 4};
    } else if (bits == 3 || bits == 5) {
        int up = bits - 1;
        const uint32_t *h = (const uint32_t *)(codes + DQ_PAGE_SLOTS * cols * up / 8 + c * 8);
        shift = block * 2;
        x = dq_u4{x.x | (h[0] >> shift & one) << up, x.y | (h[1] >> shift & one) << up,
                  x.z | (h[0] >> (shift + 1) & one) << up, x.w | (h[1] >> (shift + 1) & one) << up};
    }
    return dq_u4{less(x.x, half), less(x.y, half), less(x.z, half), less(x.w, half)};
}

/* ---- finish */

/* o[n][2 i + e]: channel 8 n + 2 (lane % 4) + e of row i, slabs one after the other. By way of
 * shared memory: as shuffles this spilled registers. */
template <int NT> DQ_DEVICE void unrotate_lanes(float o[NT][4], float *shares, int dim)
{
    unsigned u = dq_lane() % 4;
    float *mine = shares + dq_thread(), *quad = mine - u;
    DQ_UNROLL
    for (int n = 0; n < NT; n += 2) {
        DQ_WARP_SYNC(tiles_read); /* the tiles before have been read */
        DQ_UNROLL
        for (int i = 0; i < 8; i += 2) {
            float lo = o[n + i / 4][i % 4], hi = o[n + i / 4][i % 4 + 1];
            mine[i * THREADS] = dq_add_rn(lo, hi);
            mine[(i + 1) * THREADS] = dq_sub_rn(lo, hi);
        }
        DQ_WARP_SYNC(tiles_there); /* both tiles are there */
        DQ_UNROLL
        for (int i = 0; i < 8; i++) {
            float x[4];
            DQ_UNROLL
            for (int k = 0; k < 4; k++) x[k] = quad[i * THREADS + k];
            float lo = u & 1 ? dq_sub_rn(x[0], x[1]) : dq_add_rn(x[0], x[1]);
            float hi = u & 1 ? dq_sub_rn(x[2], x[3]) : dq_add_rn(x[2], x[3]);
            o[n + i / 4][i % 4] = u & 2 ? dq_sub_rn(lo, hi) : dq_add_rn(lo, hi);
        }
    }
    DQ_UNROLL
    for (int tiles = 1; tiles < NT; tiles *= 2) {
        if (8 * tiles >= dim) break;
        DQ_UNROLL
        for (int n = 0; n < NT; n++) {
            if (n & tiles) continue;
            DQ_UNROLL
            for (int i = 0; i < 4; i++) {
                float lo = o[n][i], hi = o[n | tiles][i];
                o[n][i] = dq_add_rn(lo, hi);
                o[n | tiles][i] = dq_sub_rn(lo, hi);
            }
        }
    }
    float norm = dq_div_rn(1.0f, dq_sqrt_rn((float)dim));
    DQ_UNROLL
    for (int n = 0; n < NT; n++) {
        DQ_UNROLL
        for (int i = 0; i < 4; i++) o[n][i] = dq_mul_rn(o[n][i], norm);
    }
}

/* 1 / root mean square of the first n_tiles * 8 channels of row i. */
template <int NT> DQ_DEVICE float inverse_norm(const float o[NT][4], int i, int n_tiles, float eps)
{
    float s = 0;
    DQ_UNROLL
    for (int n = 0; n < NT; n++) {
        if (n >= n_tiles) break;
        s = dq_fma_rn(o[n][2 * i], o[n][2 * i], s);
        s = dq_fma_rn(o[n][2 * i + 1], o[n][2 * i + 1], s);
    }
    s = dq_add_rn(s, dq_shfl_xor(s, 1u));
    s = dq_add_rn(s, dq_shfl_xor(s, 2u));
    float mean = dq_div_rn(s, (float)(8 * n_tiles));
    return dq_div_rn(1.0f, dq_sqrt_rn(dq_add_rn(mean, eps)));
}

/* Multiplies row i by factor[i] first; `shares` holds 8 floats per thread that only it uses. */
template <int NT>
DQ_DEVICE void finish_rows(float o[NT][4], const float factor[2], const fused_job *j,
                           const lane_rows *l, const dq_attention_finish *f, float *shares, int dim)
{
    int n_tiles = j->n_slabs * dim / 8, u = 2 * ((int)dq_lane() % 4);
    DQ_UNROLL
    for (int n = 0; n < NT; n++) {
        DQ_UNROLL
        for (int i = 0; i < 4; i++) o[n][i] = dq_mul_rn(o[n][i], factor[i / 2]);
    }
    if (f->rotated) unrotate_lanes<NT>(o, shares, dim);
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        float a = f->norm ? inverse_norm<NT>(o, i, n_tiles, f->norm_eps) : 1.0f;
        if (l->row[i] >= j->w->n) continue;
        float *to =
            f->out + (j->w->row + l->row[i]) * f->out_cols + (int64_t)j->out * 8 * n_tiles + u;
        DQ_UNROLL
        for (int n = 0; n < NT; n++) {
            if (n >= n_tiles) break;
            float y[2] = {o[n][2 * i], o[n][2 * i + 1]};
            DQ_UNROLL
            for (int e = 0; e < 2; e++) {
                if (f->norm) y[e] = dq_mul_rn(y[e], a);
                if (f->norm && f->gain) y[e] = dq_mul_rn(y[e], f->gain[8 * n + u + e]);
                if (f->out_scale != 1.0f) y[e] = dq_mul_rn(y[e], f->out_scale);
                if (l->seen[i] == 0) y[e] = 0.0f;
            }
            *(pair *)(to + 8 * n) = pair{y[0], y[1]};
        }
    }
}

/* ---- softmax */
/* Over scores as lanes hold them: of 32 tokens (half a page) a lane has s[j][2 i + e], row i, token
 * token_of(j, lane % 4) + e. */

/* Token of column pair 2u, 2u + 1 of tile j; not NATURAL: in the order of fused_int8.cuh. */
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

/* The state of rows in shared memory; all lanes of a quad may read it after a warp barrier. */
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

/* ---- launches */
/* Of int8, after those of launch.h. max NULL: strips. */

cudaError_t dq_fused_scores_int8(dq_attention_units u, uint32_t *max, cudaStream_t s);
cudaError_t dq_fused_attend_int8(dq_attention_units u, dq_attention_finish f, dq_fused_logits l,
                                 cudaStream_t s);

/* Launches `blocks` blocks, a unit and head each; a macro, so that errors name the kernel. */
#define DQ_FUSED_LAUNCH(kernel, blocks, threads, smem, s, ...)                                     \
    do {                                                                                           \
        if ((blocks) == 0) return cudaSuccess;                                                     \
        const cudaError_t allowed = DQ_ALLOW_SMEM(kernel, smem);                                   \
        if (allowed != cudaSuccess) return allowed;                                                \
        DQ_LAUNCH(kernel, dim3((unsigned)(blocks)), threads, (unsigned)(smem), s, __VA_ARGS__);    \
        return cudaGetLastError();                                                                 \
    } while (0)

#endif
