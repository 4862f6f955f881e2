/* page: where a token's channels lie in a page, and what a unit of rows reads of pages and strips.
 *
 *   plain  [64][stride], one token after the other; keys have stride dim, values cols.
 *   scale  [n_scales][64]; of values with lows the steps of all runs, then their lows.
 *          Per-channel codes: [sets][heads][2][dim], steps and lows of channels.
 *   codes  planes of w bits, low bits first: 8, 4, 2 bits are one plane, 6 are 4 + 2, 5 are 4 + 1,
 *          3 are 2 + 1. A plane is made of cells. A cell of keys has 16 channels of one token (32
 *          in planes of 4 bits, but for the last 16 of an odd number of sixteens); cells of a run
 *          of channels follow each other by token. A cell of values has 16 tokens (8 bits), 32 (4
 *          bits) or 64 of one channel; cells of a run of tokens follow by channel. In a cell of B
 *          bytes, byte i holds elements i, i + B, i + 2B ... from its lowest bits up. So
 *              keys, 8 bits    byte (c/16 * 64 + t) * 16 + c%16
 *              keys, 4 bits    byte (c/32 * 64 + t) * 16 + c%16, the high half where c%32 >= 16
 *              values, 8 bits  byte (t/16 * cols + c) * 16 + t%16
 *              values, 4 bits  byte (t/32 * cols + c) * 16 + t%16, the high half where t%32 >= 16
 *          16-byte cells unpack into two cells of bytes, as products of bytes want them.
 *          Codes are offset binary, but values of 8 bits two's complement.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PAGE_CUH
#define DQ_PAGE_CUH

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/ptx.cuh"

/* Byte of one code in a plane; *shift: its lowest bit. */
DQ_BOTH int dq_page_plane_place(int *shift, int side, int width, int cols, int t, int c)
{
    if (side == 1) {
        int bytes = width == 1 ? 8 : 16, tokens = bytes * 8 / width;
        *shift = t % tokens / bytes * width;
        return (t / tokens * cols + c) * bytes + t % bytes;
    }
    int channels = width == 4 ? 32 : 16, even = cols / channels * channels, first = 0;
    if (c >= even) { /* cells of half the size */
        first = even * DQ_PAGE_SLOTS * width / 8;
        c -= even;
        channels = 16;
    }
    int bytes = channels * width / 8;
    *shift = c % channels / bytes * width;
    return first + (c / channels * DQ_PAGE_SLOTS + t) * bytes + c % bytes;
}

/* The inverse: token and channel of the lowest element of byte `at` of a plane, which lies in one
 * cell with the byte after it. Returns how far the byte's next element is from it. */
DQ_BOTH int dq_page_plane_element(int *t, int *c, int side, int width, int cols, int at)
{
    if (side == 1) {
        const int bytes = width == 1 ? 8 : 16, cell = at / bytes;
        *t = cell / cols * (bytes * 8 / width) + at % bytes;
        *c = cell % cols;
        return bytes;
    }
    const int even = width == 4 ? cols / 32 * 32 : cols, whole = even * DQ_PAGE_SLOTS * width / 8;
    const bool is_half = at >= whole; /* a cell of half the size */
    const int bytes = width == 4 && !is_half ? 16 : 2 * width;
    const int cell = (is_half ? at - whole : at) / bytes;
    *t = cell % DQ_PAGE_SLOTS;
    *c = (is_half ? even : 0) + cell / DQ_PAGE_SLOTS * (bytes * 8 / width) + at % bytes;
    return bytes;
}

DQ_BOTH int dq_page_low_bits(int bits)
{
    return bits == 6 || bits == 5 ? 4 : bits == 3 ? 2 : bits;
}

/* Sums without a branch: eight bytes, up to 255; or neighbouring fields of 4 bits, as bytes. */
DQ_BOTH int dq_page_sum_bytes(uint64_t x)
{
    return (int)(x * 0x0101010101010101u >> 56);
}
DQ_BOTH uint64_t dq_page_pairs(uint64_t x)
{
    return (x & 0x0f0f0f0f0f0f0f0fu) + (x >> 4 & 0x0f0f0f0f0f0f0f0fu);
}
/* How many bits are set. */
DQ_BOTH int dq_page_ones(uint64_t x)
{
    x -= x >> 1 & 0x5555555555555555u;
    x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
    return dq_page_sum_bytes(dq_page_pairs(x));
}

/* Bits of a head's codes, and where they begin. */
DQ_BOTH int dq_page_bits(const dq_page_form *f, const dq_page *p, int side, int head)
{
    return p->widths[side] ? (int)(p->widths[side] >> 4 * head & 15) : f->bits;
}
DQ_BOTH uint8_t *dq_page_codes(const dq_page_form *f, const dq_page *p, int side, int head)
{
    if (!p->widths[side]) return p->side[side].codes + (size_t)head * (size_t)f->code_bytes;
    int before =
        dq_page_sum_bytes(dq_page_pairs(p->widths[side] & (((uint64_t)1 << 4 * head) - 1)));
    return p->side[side].codes + (size_t)(before * f->cols) * DQ_PAGE_SLOTS / 8;
}

/* Code of `bits` of channel c of token t of one head. */
DQ_BOTH int dq_page_code(const dq_page_form *f, int bits, int side, const uint8_t *codes, int t,
                         int c)
{
    int shift, low = dq_page_low_bits(bits), high = bits - low;
    int at = dq_page_plane_place(&shift, side, low, f->cols, t, c);
    int u = codes[at] >> shift & ((1 << low) - 1);
    if (side == 1 && low == 8) return (int8_t)u;
    if (high) {
        at = dq_page_plane_place(&shift, side, high, f->cols, t, c);
        u |= (codes[DQ_PAGE_SLOTS * f->cols * low / 8 + at] >> shift & ((1 << high) - 1)) << low;
    }
    return u - (1 << (bits - 1));
}

/* A plane of a head: codes q[64][cols] of tokens first..end-1, their bits from `done` on. Other
 * bits stay, or (fresh) become zero. By all threads, four bytes each. */
template <int WIDTH>
DQ_DEVICE void dq_page_store_plane(uint8_t *plane, int side, int cols, const int8_t *q, int offset,
                                   int done, int first, int end, bool fresh)
{
    for (int at = 4 * (int)dq_thread(); at < DQ_PAGE_SLOTS * cols * WIDTH / 8;
         at += 4 * (int)dq_threads()) {
        const uint32_t mask = (1u << WIDTH) - 1;
        uint32_t word = fresh ? 0 : *(uint32_t *)(plane + at);
        DQ_UNROLL
        for (int i = 0; i < 4; i++) {
            int t, c;
            const int step = dq_page_plane_element(&t, &c, side, WIDTH, cols, at + i / 2 * 2);
            DQ_UNROLL
            for (int k = 0; k < 8 / WIDTH; k++) {
                const int further = i % 2 + k * step, shift = 8 * i + k * WIDTH;
                const int tk = side == 1 ? t + further : t, ck = side == 1 ? c : c + further;
                if (tk < first || tk >= end) continue;
                const uint32_t u = (uint32_t)(q[tk * cols + ck] + offset) >> done & mask;
                word = (word & ~(mask << shift)) | u << shift;
            }
        }
        *(uint32_t *)(plane + at) = word;
    }
}

/* By all threads of a block, after a barrier: codes q[64][cols] (shared memory) of tokens
 * first..end-1 into a page that keeps its others, or (fresh) whose other bytes become zero. */
DQ_DEVICE void dq_page_store(const dq_page_form *f, int bits, int side, uint8_t *codes,
                             const int8_t *q, int first, int end, bool fresh)
{
    const int low = dq_page_low_bits(bits), offset = side == 1 && low == 8 ? 0 : 1 << (bits - 1);
    for (int done = 0, width = low; done < bits; done += width, width = bits - low) {
        uint8_t *plane = codes + DQ_PAGE_SLOTS * f->cols * done / 8;
        if (width == 8)
            dq_page_store_plane<8>(plane, side, f->cols, q, offset, done, first, end, fresh);
        if (width == 4)
            dq_page_store_plane<4>(plane, side, f->cols, q, offset, done, first, end, fresh);
        if (width == 2)
            dq_page_store_plane<2>(plane, side, f->cols, q, offset, done, first, end, fresh);
        if (width == 1)
            dq_page_store_plane<1>(plane, side, f->cols, q, offset, done, first, end, fresh);
    }
}

DQ_BOTH int dq_page_scale_place(const dq_page_form *f, int head, int t, int g)
{
    return (head * f->n_scales + g) * DQ_PAGE_SLOTS + t;
}

/* A scale, step or low by its place. */
DQ_DEVICE float dq_page_number_of(const void *from, bool wide, int64_t at)
{
    return wide ? ((const float *)from)[at] : dq_f16_f32(((const uint16_t *)from)[at]);
}
DQ_DEVICE float dq_page_number(const dq_page *p, int side, int64_t at)
{
    return dq_page_number_of(p->side[side].scale, p->wide[side], at);
}
DQ_DEVICE void dq_page_put_number(const dq_page *p, int side, int64_t at, float x)
{
    if (p->wide[side])
        ((float *)p->side[side].scale)[at] = x;
    else
        ((uint16_t *)p->side[side].scale)[at] = dq_f32_f16(x);
}

/* Numbers of a slot without codes become zero, by a warp. */
DQ_DEVICE void dq_page_clear_numbers(const dq_page_form *f, const dq_page *p, int side, int head,
                                     int t)
{
    for (int g = (int)dq_lane(); !f->set_numbers && g < f->n_scales; g += DQ_WARP)
        dq_page_put_number(p, side, dq_page_scale_place(f, head, t, g), 0.0f);
}

DQ_DEVICE float dq_page_scale(const dq_page_form *f, const dq_page *p, int side, int head, int t,
                              int g)
{
    return dq_page_number(p, side, dq_page_scale_place(f, head, t, g));
}

/* The set of slot t, of per-channel codes; -1: before the first. */
DQ_BOTH int dq_page_set_of(const dq_page *p, int t)
{
    return dq_page_ones(p->begins & (~(uint64_t)0 >> (63 - t))) - 1;
}
/* The numbers of its set and head. */
DQ_BOTH int64_t dq_page_set_place(const dq_page_form *f, const dq_page *p, int head, int t)
{
    return (int64_t)(dq_page_set_of(p, t) * p->heads + head) * f->set_numbers;
}

/* What is added to slot t before its values are rounded. */
DQ_DEVICE float dq_page_dither(const dq_page_form *f, const dq_page *p, int side, int t)
{
    return side == 1 && p->dither >= 0 ? f->dither[p->dither * DQ_PAGE_SLOTS + t] : 0.0f;
}

/* Runs of channels that have a scale, or a step and a low, for each token. */
DQ_BOTH int dq_page_runs(const dq_page_form *f)
{
    return f->has_lows ? f->n_scales / 2 : f->n_scales;
}

/* What code q (less 2^(bits-1)) of channel c < dim of token t stands for. */
DQ_DEVICE float dq_page_decoded(const dq_page_form *f, const dq_page *p, int side, int head, int t,
                                int c, float q)
{
    if (!f->set_numbers) {
        float step = dq_page_scale(f, p, side, head, t, c / f->group), x = dq_mul_rn(q, step);
        if (!f->has_lows) return x;
        float low = dq_page_scale(f, p, side, head, t, dq_page_runs(f) + c / f->group);
        float half = (float)(1 << (dq_page_bits(f, p, side, head) - 1));
        return dq_add_rn(x, dq_add_rn(dq_mul_rn(half, step), low));
    }
    int64_t at = dq_page_set_place(f, p, head, t) + c;
    float u = dq_add_rn(q, (float)(1 << (dq_page_bits(f, p, side, head) - 1))); /* exact */
    u = dq_sub_rn(u, dq_page_dither(f, p, side, t));
    return dq_add_rn(dq_mul_rn(u, dq_page_number(p, side, at)),
                     dq_page_number(p, side, at + f->dim));
}

/* Element `at` of what is not coded. */
DQ_DEVICE float dq_page_plain(const dq_page_form *f, const void *from, int64_t at)
{
    if (f->dense == DQ_PAGE_F32) return ((const float *)from)[at];
    uint16_t x = ((const uint16_t *)from)[at];
    float half = dq_f16_f32(x), brain = dq_bf16_f32(x);
    return f->dense == DQ_PAGE_F16 ? half : brain;
}
DQ_DEVICE void dq_page_copy_plain(const dq_page_form *f, void *to, int64_t to_at, const void *from,
                                  int64_t at)
{
    if (f->dense == DQ_PAGE_F32)
        ((float *)to)[to_at] = ((const float *)from)[at];
    else
        ((uint16_t *)to)[to_at] = ((const uint16_t *)from)[at];
}
DQ_DEVICE void dq_page_put_plain(const dq_page_form *f, void *to, int64_t at, float x)
{
    if (f->dense == DQ_PAGE_F32)
        ((float *)to)[at] = x;
    else
        ((uint16_t *)to)[at] = f->dense == DQ_PAGE_F16 ? dq_f32_f16(x) : dq_f32_bf16(x);
}

/* Whether a query that reads the first `slots` slots as codes (sinks aside) finds them here. */
DQ_DEVICE bool dq_page_is_coded(const dq_page *p, int side, int slots)
{
    const dq_page_side *s = &p->side[side];
    return s->codes && (!s->plain || slots > p->n_sinks);
}

/* Channel c < dim of token t as such a query reads it. */
DQ_DEVICE float dq_page_value(const dq_page_form *f, const dq_page *p, int side, int head,
                              int slots, int t, int c)
{
    const dq_page_side *s = &p->side[side];
    if (!dq_page_is_coded(p, side, slots) || (s->plain && t >= slots))
        return dq_page_plain(f, s->plain, (int64_t)(head * DQ_PAGE_SLOTS + t) * f->stride + c);
    if (t < p->n_sinks) return dq_page_plain(f, s->sinks, (head * p->n_sinks + t) * f->dim + c);
    int q = dq_page_code(f, dq_page_bits(f, p, side, head), side, dq_page_codes(f, p, side, head),
                         t, c);
    return dq_page_decoded(f, p, side, head, t, c, (float)q);
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

/* ---- units */
/* What kernels over pages and strips share. */

enum {
    TILE = 64, /* rows of a unit, keys of a page, columns of a product */
    STEP = 32, /* channels that are staged at once */
    PITCH = STEP + 1,
    WIDE = TILE + 1
};

/* The unit of this block, third axis of the grid. */
DQ_DEVICE const dq_attention_unit *this_unit(const dq_attention_units *u)
{
    return u->unit + dq_block_z();
}

DQ_DEVICE int heads_of(const int32_t *first, int group)
{
    return first[group + 1] - first[group];
}

DQ_DEVICE int slots_of(int64_t index, int page)
{
    int64_t n = index - (int64_t)page * DQ_PAGE_SLOTS;
    return (int)(n < 0 ? 0 : n > DQ_PAGE_SLOTS ? (int64_t)DQ_PAGE_SLOTS : n);
}

DQ_DEVICE int visible_of(const dq_attention_units *u, const dq_attention_unit *w, int r)
{
    return w->visible < 0 ? (int)(r - w->visible - 1) : u->visible[w->visible + r];
}

/* What a row sees of its list: tokens hidden .. seen-1. */
struct dq_window {
    int hidden, seen;
};
DQ_DEVICE dq_window dq_window_of(const dq_attention_units *u, const dq_attention_unit *w, int r)
{
    dq_window x = {0, visible_of(u, w, r)};
    if (u->window && w->visible >= 0) x.hidden = u->hidden[w->visible + r];
    if (u->window && w->visible < 0 && x.seen > u->window) x.hidden = x.seen - u->window;
    return x;
}

/* Whether it sees anything. */
DQ_DEVICE bool dq_sees(const dq_attention_units *u, const dq_attention_unit *w, int r)
{
    const dq_window x = dq_window_of(u, w, r);
    return x.seen > x.hidden;
}

/* The list's first page that a row of the unit sees. */
DQ_BOTH int dq_first_page(const dq_attention_unit *w)
{
    return w->hidden[0] / DQ_PAGE_SLOTS;
}

/* Row r of the strip of the i-th query head of the unit's group. */
DQ_DEVICE float *strip_of(const dq_attention_units *u, const dq_attention_unit *w, int i, int r)
{
    return u->strip + w->strip + ((int64_t)i * w->n + r) * w->ld;
}

/* Of row r of the i-th output head: 1 / sum of both maps, lambda / second sum. */
DQ_DEVICE const float *factors_of(const dq_attention_units *u, const dq_attention_unit *w,
                                  int i_out, int r)
{
    return u->factor + 3 * (int64_t)(w->factor + i_out * w->n + r);
}

/* How many ways rows of the unit read a page, 1 or 2. */
DQ_DEVICE int spans_of(const dq_attention_unit *w, int page)
{
    return w->split < w->n && slots_of(w->coded[0], page) != slots_of(w->coded[1], page) ? 2 : 1;
}

DQ_DEVICE bool in_span(const dq_attention_unit *w, int spans, int span, int r)
{
    return spans == 1 || (r >= w->split) == (span == 1);
}

/* Slots of a page that rows of a span read as codes. */
DQ_DEVICE int span_slots(const dq_attention_unit *w, int span, int page)
{
    return slots_of(w->coded[span], page);
}

/* By all threads: channels c0 .. c0+n_c-1 of 64 tokens of a head to to[64][pitch], zero after the
 * `tokens` first ones and after dim. */
DQ_DEVICE void stage_page(float *to, int pitch, const dq_page_form *f, const dq_page *p, int side,
                          int head, int slots, int tokens, int c0, int n_c)
{
    /* codes of values stand token by token: neighbouring threads take neighbouring bytes */
    bool across = side == 1 && dq_page_is_coded(p, side, slots);
    for (int i = (int)dq_thread(); i < DQ_PAGE_SLOTS * n_c; i += (int)dq_threads()) {
        int t = across ? i / (16 * n_c) * 16 + i % 16 : i / n_c;
        int c = across ? i / 16 % n_c : i % n_c;
        bool there = t < tokens && c0 + c < f->dim;
        to[t * pitch + c] = there ? dq_page_value(f, p, side, head, slots, t, c0 + c) : 0.0f;
    }
}

#endif
