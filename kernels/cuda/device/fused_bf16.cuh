/* fused_bf16: pages in products of bf16. Keys and values of a page are read back to bf16 in shared memory,
 * one after the other in the same place, once for each of the ways in which rows of the unit read them.
 * A cell holds eight channels of a query or key, or eight tokens of a channel of values.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_FUSED_BF16_CUH
#define DQ_FUSED_BF16_CUH

#include "kernels/cuda/device/fused_rows.cuh"

/* Where things lie in a block's shared memory, in bytes. */
struct bf16_space {
    int32_t q, page, rows, shares, total;
};

/* Eight values as a cell. */
DQ_DEVICE void put_cell(uint8_t *to, const float x[8])
{
    dq_store16(to, dq_u4{dq_f32x2_bf16(x[0], x[1]), dq_f32x2_bf16(x[2], x[3]),
                         dq_f32x2_bf16(x[4], x[5]), dq_f32x2_bf16(x[6], x[7])});
}

DQ_DEVICE void load_eight(float x[8], const float *global)
{
    DQ_UNROLL
    for (int i = 0; i < 8; i += 4) {
        dq_u4 v = dq_load16_const(global + i);
        x[i] = dq_bits_f32(v.x);
        x[i + 1] = dq_bits_f32(v.y);
        x[i + 2] = dq_bits_f32(v.z);
        x[i + 3] = dq_bits_f32(v.w);
    }
}

/* The same of what is not coded. */
DQ_DEVICE void load_eight_plain(float x[8], const dq_page_form *f, plain_place p)
{
    if (f->dense == DQ_PAGE_F32) {
        load_eight(x, (const float *)p.from + p.at);
        return;
    }
    dq_u4 v = dq_load16_const((const uint16_t *)p.from + p.at);
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
    DQ_UNROLL
    for (int i = 0; i < 8; i++) {
        uint16_t half = (uint16_t)(word[i / 2] >> 16 * (i % 2));
        x[i] = f->dense == DQ_PAGE_F16 ? dq_f16_f32(half) : dq_bf16_f32(half);
    }
}

/* Rows of all maps, zero after the unit's. By all threads, before a barrier. */
DQ_DEVICE void put_queries(uint8_t *to, const dq_attention_units *u, const fused_job *j)
{
    int dim = u->form[0].dim, per = dim / 8 * TILE;
    for (int i = (int)dq_thread(); i < j->n_maps * per; i += THREADS) {
        int m = i / per, c = i % (dim / 8), r = i % per / (dim / 8);
        float x[8] = {};
        if (r < j->w->n)
            load_eight(x, u->q + ((int64_t)(j->w->row + r) * u->n_q + j->query[m]) * dim + 8 * c);
        put_cell(to + ((m * (dim / 8) + c) * TILE + r) * 16, x);
    }
}

/* ----------------------------------------------------------------------------------------- ways */

/* How many ways the unit's rows read a side of a page, 1 or 2. */
DQ_DEVICE int ways_of(const fused_job *j, int side, int page)
{
    const dq_page_side *s = &j->pages[page].side[side];
    bool both = j->w->split > 0 && j->w->split < j->w->n && s->codes && s->plain;
    return both && slots_of(j->w->coded[0], page) != slots_of(j->w->coded[1], page) ? 2 : 1;
}

/* Slots before *end, but for the sinks, are codes in a way. */
DQ_DEVICE int way_end(const fused_job *j, int side, int page, int ways, int way)
{
    const dq_page_side *s = &j->pages[page].side[side];
    if (!s->codes) return 0;
    if (!s->plain) return DQ_PAGE_SLOTS;
    return slots_of(j->w->coded[ways == 2 ? way : j->w->split == 0], page);
}

/* The lane's rows, of which those that read the page in another way see nothing. */
DQ_DEVICE lane_page way_of_lane(const fused_job *j, const lane_rows *l, int side, int page,
                                int ways, int way)
{
    lane_page at = page_of_lane(j, l, side, page);
    DQ_UNROLL
    for (int i = 0; i < 2; i++)
        if (ways == 2 && (l->row[i] >= j->w->split) != (way == 1)) at.seen[i] = 0;
    return at;
}

/* The bytes of a word, signed or not, times x. */
DQ_DEVICE void read_bytes(float to[4], uint32_t w, int half)
{
    DQ_UNROLL
    for (int i = 0; i < 4; i++)
        to[i] = (float)(half ? (int32_t)(w >> 8 * i & 255) - half
                             : (int32_t)(int8_t)(w >> 8 * i & 255));
}

/* Keys of the page as a way has them; tokens after the unit's keys are zero. */
DQ_DEVICE void put_keys(uint8_t *to, const dq_attention_units *u, const fused_job *j, int page,
                        int end)
{
    const dq_page_form *f = &u->form[0];
    const dq_page *p = j->pages + page;
    int per = f->dim / 16 * DQ_PAGE_SLOTS, n = slots_of(j->w->keys, page);
    for (int i = (int)dq_thread(); i < j->n_keys * per; i += THREADS) {
        int k = i / per, block = i % per / DQ_PAGE_SLOTS, t = i % DQ_PAGE_SLOTS, head = j->key[k];
        float x[16] = {};
        if (t >= n) {
        } else if (t < end && t >= p->n_sinks) {
            int bits = dq_page_bits(f, p, 0, head);
            dq_u4 w = key_cell(dq_page_codes(f, p, 0, head), bits, f->cols, block, t);
            const uint32_t word[4] = {w.x, w.y, w.z, w.w};
            DQ_UNROLL
            for (int b = 0; b < 4; b++) read_bytes(x + 4 * b, word[b], 1 << (bits - 1));
            DQ_UNROLL
            for (int b = 0; b < 16; b++)
                x[b] = dq_page_decoded(f, p, 0, head, t, 16 * block + b, x[b]);
        } else {
            plain_place from = place_of_plain(f, p, 0, head, t);
            from.at += 16 * block;
            load_eight_plain(x, f, from);
            from.at += 8;
            load_eight_plain(x + 8, f, from);
        }
        uint8_t *cell = to + ((k * (f->dim / 8) + 2 * block) * DQ_PAGE_SLOTS + t) * 16;
        put_cell(cell, x);
        put_cell(cell + DQ_PAGE_SLOTS * 16, x + 8);
    }
}

/* 16 tokens from 16 block on of one channel. */
DQ_DEVICE void read_channel(float x[16], const dq_page_form *f, const dq_page *p, int head,
                            int block, int c, int end, int n)
{
    int t0 = 16 * block;
    if (t0 < end && t0 + 16 > p->n_sinks) {
        dq_u4 w = value_cell(dq_page_codes(f, p, 1, head), dq_page_bits(f, p, 1, head), f->cols,
                             block, c);
        const uint32_t word[4] = {w.x, w.y, w.z, w.w};
        DQ_UNROLL
        for (int b = 0; b < 4; b++) read_bytes(x + 4 * b, word[b], 0);
    }
    DQ_UNROLL
    for (int i = 0; i < 16; i++) {
        int t = t0 + i;
        if (t >= n) {
            x[i] = 0;
        } else if (t < end && t >= p->n_sinks) {
            x[i] = dq_page_decoded(f, p, 1, head, t, c, x[i]);
        } else {
            plain_place from = place_of_plain(f, p, 1, head, t);
            x[i] = dq_page_plain(f, from.from, from.at + c);
        }
    }
}

/* Values likewise. */
DQ_DEVICE void put_values(uint8_t *to, const dq_attention_units *u, const fused_job *j, int page,
                          int end)
{
    const dq_page_form *f = &u->form[1];
    const dq_page *p = j->pages + page;
    int per = f->dim * DQ_PAGE_SLOTS / 16, n = slots_of(j->w->keys, page);
    for (int i = (int)dq_thread(); i < j->n_slabs * per; i += THREADS) {
        int slab = i / per, block = i % per / f->dim, c = i % f->dim;
        float x[16] = {};
        read_channel(x, f, p, j->value[slab], block, c, end, n);
        uint8_t *cell = to + ((slab * 8 + 2 * block) * f->dim + c) * 16;
        put_cell(cell, x);
        put_cell(cell + f->dim * 16, x + 8);
    }
}

#endif
