/* fused_decode: what the kernels of int8 attention of few rows share: what a block has to do, tokens that are read unquantized,
 * and D of a page. See fused_decode.cu.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_FUSED_DECODE_CUH
#define DQ_FUSED_DECODE_CUH

#include "kernels/cuda/device/fused_int8.cuh"

enum {
    MAX_DECODE_ROWS = DQ_FUSED_DECODE_ROWS,
    SPLIT = 8, /* pages of a block */
    AHEAD = 32 /* parts that are on their way together, or half as many and what runs add in them */
};

/* What a row adds of a page: parts from `first` on, and whether it reads tokens of it unquantized. */
struct page_parts {
    int32_t first, n;
    bool plain;
};

/* The i-th output head of the unit's group, by one thread. */
DQ_DEVICE void open_values(fused_job *j, const dq_attention_units *u, const dq_attention_unit *w,
                           int i)
{
    const dq_o_head o = u->o_head[u->o_first[w->group] + i];
    j->out = o.out;
    j->n_maps = 0;
    j->n_slabs = u->n_slabs;
    for (int m = 0; m < 2; m++) {
        j->strip[m] = o.q[m];
        j->value[m] = o.v[m];
    }
    open_maps(j, u, w);
}

/* Grid: splits, heads (of queries, or output) of a group, units. */
DQ_DEVICE bool open_split(fused_job *j, const dq_attention_units *u, const int32_t *heads)
{
    const dq_attention_unit *w = u->unit + dq_block_z();
    int i = (int)dq_block_y();
    if ((int)dq_block_x() * SPLIT * DQ_PAGE_SLOTS >= w->keys || i >= heads_of(heads, w->group))
        return false;
    if (dq_thread() == 0) {
        if (heads == u->o_first) {
            open_values(j, u, w, i);
        } else {
            j->n_maps = 1;
            j->n_slabs = 0;
            j->strip[0] = i;
            open_maps(j, u, w);
        }
    }
    DQ_SYNC(decode_job); /* the job is there */
    return true;
}

DQ_DEVICE bool next_page(const fused_job *j, int *page)
{
    *page += *page < 0 ? (int)dq_block_x() * SPLIT + (int)dq_warp() + 1 : WARPS;
    return *page < j->n_pages && *page < ((int)dq_block_x() + 1) * SPLIT;
}

/* Row r reads slots n_sinks .. end-1 as codes. */
DQ_DEVICE int code_end(const fused_job *j, int side, int page, int r)
{
    const dq_page_side *s = &j->pages[page].side[side];
    if (!s->codes) return 0;
    return s->plain ? slots_of(j->w->coded[r >= j->w->split], page) : DQ_PAGE_SLOTS;
}

/* acc + the codes of 16 channels of a row times those of a token. */
DQ_DEVICE int32_t multiply_cell(int32_t acc, dq_u4 x, dq_u4 k)
{
    acc = dq_dp4a_s8u8(acc, x.x, k.x);
    acc = dq_dp4a_s8u8(acc, x.y, k.y);
    acc = dq_dp4a_s8u8(acc, x.z, k.z);
    return dq_dp4a_s8u8(acc, x.w, k.w);
}

/* S of token t and row r in f32, unscaled. */
DQ_DEVICE float token_plain(const dq_attention_units *u, const fused_job *j, int page, int t, int r)
{
    const float *q = query_of(u, j, 0, r);
    const float *k = plain_token(&u->form[0], j->pages + page, 0, j->key[0], t);
    float s = 0;
    for (int c = 0; c < u->form[0].dim; c += 4) {
        dq_u4 x = dq_load16_const(q + c), y = dq_load16_const(k + c);
        s = dq_fma_rn(dq_bits_f32(x.x), dq_bits_f32(y.x), s);
        s = dq_fma_rn(dq_bits_f32(x.y), dq_bits_f32(y.y), s);
        s = dq_fma_rn(dq_bits_f32(x.z), dq_bits_f32(y.z), s);
        s = dq_fma_rn(dq_bits_f32(x.w), dq_bits_f32(y.w), s);
    }
    return s;
}

/* A row's maximum and sum of exps, where softmax of attention.cu has its sum. */
DQ_DEVICE pair *sums_of(const dq_attention_units *u, const dq_attention_unit *w, int i, int r)
{
    return (pair *)(u->sum + w->record + (int64_t)i * w->n + r);
}

/* A warp's page: D, and D times scales of a run in bytes. */
struct decode_page {
    float d[MAX_DECODE_ROWS][DQ_PAGE_SLOTS];
    int8_t high[MAX_DECODE_ROWS][DQ_PAGE_SLOTS], low[MAX_DECODE_ROWS][DQ_PAGE_SLOTS];
    float scale[MAX_DECODE_ROWS];
};

/* A row's maxima, and what its exps are multiplied with; in shared memory. */
struct row_known {
    float top[2], factor[2];
};

/* Of row r, by one thread: quotients in the loops over pages cost registers. */
DQ_DEVICE void know_row(row_known *to, const dq_attention_units *u, const fused_job *j, int r)
{
    for (int m = 0; m < u->n_maps; m++) {
        pair known = *sums_of(u, j->w, j->strip[m], r);
        float over = m ? -lambda_at(u, j->w, r, j->out) : 1.0f;
        to->top[m] = known.x;
        to->factor[m] = dq_div_rn(over, known.y);
    }
}

/* P1 - lambda P2, of one map exp(S - max), at the list's token `at`; zero where row r does not see it. */
DQ_DEVICE float difference_at(const dq_attention_units *u, const fused_job *j,
                              const row_known *known, int r, int at)
{
    float d = 0;
    if (at >= visible_of(u, j->w, r)) return d;
    for (int m = 0; m < u->n_maps; m++) {
        float x = exp_less(strip_of(u, j->w, j->strip[m], r)[at], known->top[m]);
        d = dq_add_rn(d, dq_mul_rn(x, u->n_maps == 2 ? known->factor[m] : 1.0f));
    }
    return d;
}

DQ_DEVICE void page_difference(decode_page *to, const dq_attention_units *u, const fused_job *j,
                               const row_known *known, int page)
{
    for (int i = (int)dq_lane(); i < j->w->n * DQ_PAGE_SLOTS; i += DQ_WARP)
        to->d[i / DQ_PAGE_SLOTS][i % DQ_PAGE_SLOTS] =
            difference_at(u, j, known + i / DQ_PAGE_SLOTS, i / DQ_PAGE_SLOTS,
                          page * DQ_PAGE_SLOTS + i % DQ_PAGE_SLOTS);
}

/* e[i] of token lane + 32 i and row r, in bytes. By a warp. */
DQ_DEVICE void row_bytes(decode_page *to, const float e[2], int r)
{
    uint32_t a = dq_f32_bits(e[0]) & 0x7fffffffu, b = dq_f32_bits(e[1]) & 0x7fffffffu,
             max = a > b ? a : b;
    for (unsigned o = 16; o; o >>= 1) {
        uint32_t other = dq_shfl_xor(max, o);
        max = other > max ? other : max;
    }
    float peak = dq_bits_f32(max);
    bool real = max < 0x7f800000u, some = real && peak >= 0x1p-100f;
    float factor = some ? dq_div_rn(32512.0f, peak) : 0.0f; /* 127 * 256: both bytes are signed */
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        int t = (int)dq_lane() + DQ_WARP * i, c = some ? dq_f32_s32(dq_mul_rn(e[i], factor)) : 0;
        to->low[r][t] = (int8_t)(((c + 128) & 255) - 128);
        to->high[r][t] = (int8_t)((c + 128) >> 8);
    }
    if (dq_lane() == 0)
        to->scale[r] = some ? dq_div_rn(peak, 32512.0f) : real ? 0.0f : dq_bits_f32(0x7fc00000u);
}

/* sum[r] = the sum of codes of D V in one channel. sixteens: D of tokens elsewhere is zero. */
DQ_DEVICE void channel_sums(int32_t sum[MAX_DECODE_ROWS], const decode_page *d,
                            const dq_page_form *f, int bits, const uint8_t *codes, int c, int n,
                            uint32_t sixteens)
{
    int32_t high[MAX_DECODE_ROWS] = {}, low[MAX_DECODE_ROWS] = {};
    DQ_UNROLL
    for (int b = 0; b < 4; b++) {
        if (!(sixteens >> b & 1)) continue;
        dq_u4 v = value_cell(codes, bits, f->cols, b, c);
        DQ_UNROLL
        for (int r = 0; r < MAX_DECODE_ROWS; r++) {
            if (r >= n) break;
            dq_u4 h = dq_load16(&d->high[r][16 * b]), l = dq_load16(&d->low[r][16 * b]);
            high[r] = dq_dp4a_s8s8(dq_dp4a_s8s8(high[r], h.x, v.x), h.y, v.y);
            high[r] = dq_dp4a_s8s8(dq_dp4a_s8s8(high[r], h.z, v.z), h.w, v.w);
            low[r] = dq_dp4a_s8s8(dq_dp4a_s8s8(low[r], l.x, v.x), l.y, v.y);
            low[r] = dq_dp4a_s8s8(dq_dp4a_s8s8(low[r], l.z, v.z), l.w, v.w);
        }
    }
    DQ_UNROLL
    for (int r = 0; r < MAX_DECODE_ROWS; r++) sum[r] = high[r] * 256 + low[r];
}

/* Floats of a row in a part: its channels, then, of values with lows, what a run adds to each of its own. */
DQ_BOTH int part_width(const dq_attention_units *u)
{
    const dq_page_form *f = &u->form[1];
    return u->n_slabs * (f->has_lows ? f->dim + dq_page_runs(f) : f->dim);
}

/* A part, [rows][part_width], after the unit's strips: [output head][page, or set of per-channel codes]. */
DQ_DEVICE float *part_of(const dq_attention_units *u, const dq_attention_unit *w, int out, int part)
{
    int64_t strips = (int64_t)heads_of(u->q_first, w->group) * w->n * w->ld;
    int64_t at = (int64_t)out * w->n_parts + part;
    return u->strip + w->strip + strips + at * w->n * part_width(u);
}

#endif
