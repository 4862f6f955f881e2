/* fused_sets: per-channel codes in products of bytes. A set of tokens has a step and a middle (what the code 0 stands for) for each
 * channel. A query row times a set's steps is rounded to 8 bits, and the row times the middles is added to all products with
 * its tokens; D of a set is rounded once for all channels, and its sum brings the middles. A set is multiplied with those
 * sixteens of a page's tokens that hold some of it. Sums in f32 are those of the CPU: 16 of every sixteenth number each, folded
 * in halves. A quad of lanes has a row, a lane four of its 16 sums.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_FUSED_SETS_CUH
#define DQ_FUSED_SETS_CUH

#include "kernels/cuda/device/fused_bytes.cuh"

/* Folds a quad's 16 sums, of which a lane has 4 (lane % 4) .. +3. For all its lanes. */
DQ_DEVICE float fold_sums(const float sum[4])
{
    float x[4];
    DQ_UNROLL
    for (int i = 0; i < 4; i++) {
        x[i] = dq_add_rn(sum[i], dq_shfl_xor(sum[i], 2u));
        x[i] = dq_add_rn(x[i], dq_shfl_xor(x[i], 1u));
    }
    return dq_add_rn(dq_add_rn(x[0], x[2]), dq_add_rn(x[1], x[3]));
}

/* Step and middle of channel c < dim of a set, whose numbers begin at `at`. */
DQ_DEVICE pair set_number(const dq_page_form *f, const void *from, bool wide, int64_t at, int bits,
                          int c)
{
    float step = dq_page_number_of(from, wide, at + c);
    float low = dq_page_number_of(from, wide, at + f->dim + c);
    return pair{step, middle_of(step, low, bits)};
}

/* By all threads: those of n heads to [n][2][dim]: from what fetch_page brought after their codes, or (raw NULL) of any set. */
DQ_DEVICE void unpack_set(float *to, const uint8_t *raw, const fused_job *j, const dq_page_form *f,
                          int side, int page, int set, const int32_t *head, int n)
{
    const dq_page *p = j->pages + page;
    if (!is_coded(j, p, side, page)) return;
    for (int i = (int)dq_thread(); i < n * f->dim; i += (int)dq_threads()) {
        int k = i / f->dim, c = i % f->dim;
        int64_t at = (raw ? k : set * p->heads + head[k]) * f->set_numbers;
        pair x = set_number(f, raw ? raw + n * f->code_bytes : p->side[side].scale, p->wide[side],
                            at, dq_page_bits(f, p, side, head[k]), c);
        to[2 * k * f->dim + c] = x.x;
        to[(2 * k + 1) * f->dim + c] = x.y;
    }
}

/* Numbers at .. at+3 of a set, at a multiple of four, by one access. */
DQ_DEVICE void load_four(float x[4], const void *from, bool wide, int64_t at)
{
    if (wide) {
        dq_u4 a = dq_load16((const float *)from + at);
        const uint32_t bits[4] = {a.x, a.y, a.z, a.w};
        DQ_UNROLL
        for (int i = 0; i < 4; i++) x[i] = dq_bits_f32(bits[i]);
        return;
    }
    uint64_t a = dq_load8((const uint16_t *)from + at);
    DQ_UNROLL
    for (int i = 0; i < 4; i++) x[i] = dq_f16_f32((uint16_t)(a >> 16 * i));
}

/* The numbers that rows of queries are rounded with: `first` are those of the first set of the page, [2][dim]; NULL: the page
 * alone has them. */
struct key_numbers {
    const dq_page_form *form;
    const dq_page *page;
    const float *first;
    int head, bits;
};

/* Of channels c .. c+3. */
DQ_DEVICE void load_numbers(float step[4], float middle[4], const key_numbers *k, int set, int c)
{
    if (set == 0 && k->first) {
        load_four(step, k->first, true, c);
        load_four(middle, k->first, true, k->form->dim + c);
        return;
    }
    int64_t at = (int64_t)(set * k->page->heads + k->head) * k->form->set_numbers + c;
    load_four(step, k->page->side[0].scale, k->page->wide[0], at);
    load_four(middle, k->page->side[0].scale, k->page->wide[0], at + k->form->dim);
    DQ_UNROLL
    for (int i = 0; i < 4; i++) middle[i] = middle_of(step[i], middle[i], k->bits);
}

DQ_DEVICE void load_query(float x[4], const float *q)
{
    dq_u4 a = dq_load16_const(q);
    x[0] = dq_bits_f32(a.x);
    x[1] = dq_bits_f32(a.y);
    x[2] = dq_bits_f32(a.z);
    x[3] = dq_bits_f32(a.w);
}

/* The largest |q step| of a quad's row, and q times the middles. */
DQ_DEVICE void weigh_row(uint32_t *max, float *base, const key_numbers *k, int set, const float *q)
{
    float sum[4] = {};
    *max = 0;
    ROLLED
    for (int c = 4 * ((int)dq_lane() % 4); c < k->form->dim; c += 16) {
        float step[4], middle[4], x[4];
        load_numbers(step, middle, k, set, c);
        load_query(x, q + c);
        DQ_UNROLL
        for (int i = 0; i < 4; i++) {
            uint32_t bits = dq_f32_bits(dq_mul_rn(x[i], step[i])) & 0x7fffffffu;
            *max = bits > *max ? bits : *max;
            sum[i] = dq_add_rn(sum[i], dq_mul_rn(x[i], middle[i]));
        }
    }
    *max = quad_max(*max);
    *base = fold_sums(sum);
}

/* A quad's row by a set's steps: codes, scale, sum of codes, and base, to row r of `to`. */
DQ_DEVICE void round_row_by_set(const rounded_queries *to, float *to_base, const key_numbers *k,
                                int set, const float *q, int r)
{
    int u = (int)dq_lane() % 4, sum = 0;
    uint32_t max;
    float base;
    weigh_row(&max, &base, k, set, q);
    float peak = dq_bits_f32(max);
    bool real = max < 0x7f800000u, some = real && peak >= 0x1p-100f;
    float by = some ? dq_div_rn(127.0f, peak) : 0.0f;
    ROLLED
    for (int c = 4 * u; c < k->form->dim; c += 16) {
        float step[4], middle[4], x[4];
        uint32_t word = 0;
        load_numbers(step, middle, k, set, c);
        load_query(x, q + c);
        DQ_UNROLL
        for (int i = 0; i < 4; i++) {
            int code = dq_f32_s8(dq_mul_rn(dq_mul_rn(x[i], step[i]), by));
            sum += code;
            word |= (uint32_t)(code & 255) << 8 * i;
        }
        *(uint32_t *)(to->code + (c / 16 * to->rows + r) * 16 + c % 16) = word;
    }
    sum += dq_shfl_xor(sum, 1u);
    sum += dq_shfl_xor(sum, 2u);
    if (u != 0) return;
    to->scale[r] = some ? dq_div_rn(peak, 127.0f) : real ? 0.0f : dq_bits_f32(0x7fc00000u);
    to->sum[r] = sum;
    to_base[r] = base;
}

/* -------------------------------------------------------------------------------------- scores */

/* S of 32 tokens of per-channel codes, unscaled. A set that begins in the first half of a page is rounded for both halves there. */
DQ_DEVICE void set_scores(float s[4][4], uint8_t *mem, const fused_space *at,
                          const dq_attention_units *u, const fused_job *j, const lane_rows *l,
                          int page, int m, int half)
{
    const dq_page_form *f = &u->form[0];
    const dq_page *p = j->pages + page;
    int padded = (f->dim + 31) / 32 * 32, which = j->which[m], head = j->key[which];
    const uint8_t *cells = mem + at->keys + which * DQ_PAGE_SLOTS * f->cols;
    const rounded_queries to = {(int8_t *)mem + at->q + m * padded * TILE,
                                (float *)(mem + at->q_scale) + m * TILE,
                                (int32_t *)(mem + at->q_sum) + m * TILE, TILE};
    float *base = (float *)(mem + at->q_base) + m * TILE;
    const key_numbers k = {f, p, (const float *)(mem + at->key_scale) + 2 * which * f->dim, head,
                           dq_page_bits(f, p, 0, head)};
    ROLLED
    for (dq_page_set set = dq_page_sets(p); dq_page_next_set(p, &set);) {
        if (set.end <= 32 * half || set.first >= 32 * half + 32) continue;
        if (half == 0 || set.first >= 32) {
            DQ_WARP_SYNC(set_rows_read); /* rows of the set before have been read */
            ROLLED
            for (int r = l->row[0]; r <= l->row[1]; r += 8)
                round_row_by_set(&to, base, &k, set.index, query_of(u, j, m, r < j->w->n ? r : 0),
                                 r);
            DQ_WARP_SYNC(set_rows_rounded); /* rows are rounded */
        }
        int32_t acc[4][4] = {};
        ROLLED
        for (int c = 0; c < f->dim; c += 32)
            multiply_keys(acc, mem + at->q + m * padded * TILE, cells, f->cols / 16, half, c, 0,
                          f->dim, sixteens_of(set.first, set.end) >> 2 * half);
        DQ_UNROLL
        for (int i = 0; i < 16; i++) {
            int r = l->row[i / 2 % 2], t = 32 * half + token_of<false>(i / 4, (int)dq_lane() % 4);
            float x = dq_s32_f32(acc[i / 4][i % 4] - to.sum[r] * (1 << (k.bits - 1)));
            if (t + i % 2 >= set.first && t + i % 2 < set.end)
                s[i / 4][i % 4] = dq_add_rn(dq_mul_rn(x, to.scale[r]), base[r]);
        }
    }
}

/* -------------------------------------------------------------------------------------- values */

/* D of the lane's row i over tokens that it reads as codes: its sum, and that of D times weight[64] (NULL: zero). parked: the
 * lane's D of the page, [32][DQ_WARP]. sixteens: tokens elsewhere are no codes. */
DQ_DEVICE void sum_codes(float *base, float *weighted, const float *parked, const float *weight,
                         const lane_page *at, uint32_t sixteens, int i)
{
    int u = (int)dq_lane() % 4, end = i ? at->end[1] : at->end[0];
    int seen = i ? at->seen[1] : at->seen[0];
    float sum[4] = {}, by_weight[4] = {};
    ROLLED
    for (int b = 0; b < 4; b++) {
        if (!(sixteens >> b & 1)) continue; /* zeros change no sum */
        DQ_UNROLL
        for (int k = 0; k < 4; k++) { /* in the order of tokens */
            int j = 2 * b + ((k / 2) ^ (u >> 1)), t = 16 * b + 4 * u + k;
            if (t < at->first || t >= end || t >= seen) continue;
            float x = parked[(4 * j + 2 * i + k % 2) * DQ_WARP];
            sum[k] = dq_add_rn(sum[k], x);
            if (weight) by_weight[k] = dq_add_rn(by_weight[k], dq_mul_rn(x, weight[t]));
        }
    }
    *base = fold_sums(sum);
    *weighted = weight ? fold_sums(by_weight) : 0.0f;
}

/* What a set's sum of D codes means in one channel. */
DQ_DEVICE float set_part(int32_t sum, float scale, float less, float base, float step, float middle)
{
    float x = dq_sub_rn(dq_mul_rn(dq_s32_f32(sum), scale), less);
    return dq_add_rn(dq_mul_rn(x, step), dq_mul_rn(middle, base));
}

/* o += D V of a set. at: the page, whose slots outside of the set, and of its sixteens, are no codes; numbers [slab][2][dim].
 * parked: as sum_codes. */
template <int NT>
DQ_DEVICE void set_values(float o[NT][4], const float *parked, const uint8_t *cells,
                          const float *numbers, const dq_page_form *f, const dq_page *p,
                          const lane_page *at, uint32_t sixteens, int n_slabs)
{
    rounded_rows rounded;
    const float *dither = p->dither >= 0 ? f->dither + p->dither * DQ_PAGE_SLOTS : NULL;
    float base[2], less[2];
    DQ_UNROLL
    for (int i = 0; i < 2; i++) sum_codes(&base[i], &less[i], parked, dither, at, sixteens, i);
    const lane_difference d = {NULL, parked, NULL};
    round_difference<true, false>(&rounded, &d, at, sixteens);
    DQ_UNROLL
    for (int n = 0; n < NT; n++) {
        if (8 * n >= n_slabs * f->dim) break;
        int slab = 8 * n >= f->dim, c = 8 * n - slab * f->dim;
        const float *at_slab = numbers + 2 * slab * f->dim + c + 2 * ((int)dq_lane() % 4);
        pair step = *(const pair *)at_slab, middle = *(const pair *)(at_slab + f->dim);
        int32_t acc[4];
        multiply_values(acc, &rounded, cells + (slab * DQ_PAGE_SLOTS * f->cols + c * 16), f->cols,
                        sixteens);
        DQ_UNROLL
        for (int i = 0; i < 4; i++) {
            float x = set_part(acc[i], rounded.scale[i / 2], less[i / 2], base[i / 2],
                               i % 2 ? step.y : step.x, i % 2 ? middle.y : middle.x);
            if (at->first < at->end[i / 2]) o[n][i] = dq_add_rn(o[n][i], x);
        }
    }
}

#endif
