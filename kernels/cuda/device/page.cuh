/* page: where a token's channels lie in a page.
 *
 *   plain  [64][stride], one token after the other; keys have stride dim, values cols.
 *   scale  [n_scales][64].
 *   codes  planes of w bits: 8, 4 and 2 bits are one plane; 6 bits the 4 low bits, then the 2 high ones;
 *          3 bits the 2 low ones, then the high one. A plane is made of cells. A cell of keys belongs to
 *          one token and holds 16 channels (32 in planes of 4 bits, but for the last 16 of an odd
 *          number of sixteens); the cells of a run of channels stand one after the other, token by
 *          token. A cell of values belongs to one channel and holds 16 tokens (8 bits), 32 (4 bits) or
 *          64; the cells of a run of tokens stand channel by channel. In a cell of B bytes, byte i holds
 *          elements i, i + B, i + 2B ... from its lowest bits up. So
 *              keys, 8 bits    byte (c/16 * 64 + t) * 16 + c%16
 *              keys, 4 bits    byte (c/32 * 64 + t) * 16 + c%16, the high half where c%32 >= 16
 *              values, 8 bits  byte (t/16 * cols + c) * 16 + t%16
 *              values, 4 bits  byte (t/32 * cols + c) * 16 + t%16, the high half where t%32 >= 16
 *          16-byte cells unpack into two cells of bytes, as products of bytes want them.
 *          Codes are offset binary, but values of 8 bits two's complement.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PAGE_CUH
#define DQ_PAGE_CUH

#include "kernels/cuda/device/page.h"
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

DQ_BOTH int dq_page_low_bits(int bits)
{
    return bits == 6 ? 4 : bits == 3 ? 2 : bits;
}

/* Code of channel c of token t of one head. */
DQ_BOTH int dq_page_code(const dq_page_form *f, int side, const uint8_t *codes, int t, int c)
{
    int shift, low = dq_page_low_bits(f->bits), high = f->bits - low;
    int at = dq_page_plane_place(&shift, side, low, f->cols, t, c);
    int u = codes[at] >> shift & ((1 << low) - 1);
    if (side == 1 && low == 8) return (int8_t)u;
    if (high) {
        at = dq_page_plane_place(&shift, side, high, f->cols, t, c);
        u |= (codes[DQ_PAGE_SLOTS * f->cols * low / 8 + at] >> shift & ((1 << high) - 1)) << low;
    }
    return u - (1 << (f->bits - 1));
}

/* By all threads of a block, behind a barrier: codes q[64][cols] (shared memory) of tokens first..end-1
 * into a page that keeps its others. Bytes are shared by codes, so they are written part by part. */
DQ_DEVICE void dq_page_store(const dq_page_form *f, int side, uint8_t *codes, const int8_t *q,
                             int first, int end)
{
    int low = dq_page_low_bits(f->bits);
    for (int done = 0; done < f->bits; done += low, low = f->bits - low) {
        uint8_t *plane = codes + DQ_PAGE_SLOTS * f->cols * done / 8;
        int mask = (1 << low) - 1, offset = side == 1 && low == 8 ? 0 : 1 << (f->bits - 1);
        for (int part = 0; part < 8; part += low) {
            for (int i = first * f->cols + (int)dq_thread(); i < end * f->cols;
                 i += (int)dq_threads()) {
                int shift,
                    at = dq_page_plane_place(&shift, side, low, f->cols, i / f->cols, i % f->cols);
                if (shift != part) continue;
                int u = (q[i] + offset) >> done & mask;
                plane[at] = (uint8_t)((plane[at] & ~(mask << shift)) | u << shift);
            }
            DQ_SYNC(page_part); /* the next part changes the same bytes */
        }
    }
}

DQ_BOTH int dq_page_scale_place(const dq_page_form *f, int head, int t, int g)
{
    return (head * f->n_scales + g) * DQ_PAGE_SLOTS + t;
}

DQ_DEVICE float dq_page_scale(const dq_page_form *f, const dq_page *p, int side, int head, int t,
                              int g)
{
    int at = dq_page_scale_place(f, head, t, g);
    return p->wide[side] ? ((const float *)p->side[side].scale)[at]
                         : dq_f16_f32(((const uint16_t *)p->side[side].scale)[at]);
}

/* Whether a query that reads the first `slots` slots of a page as codes (sinks aside) finds them. */
DQ_DEVICE bool dq_page_is_coded(const dq_page *p, int side, int slots)
{
    const dq_page_side *s = &p->side[side];
    return s->codes && (!s->plain || slots > p->n_sinks);
}

/* Channel c < dim of token t as such a query reads it. */
DQ_DEVICE float dq_html_page_value(const dq_page_form *f, const dq_page *p, int side, int head,
                                   int slots, int t, int c)
{
    const dq_page_side *s = &p->side[side];
    if (!s->codes || (s->plain && t >= slots))
        return s->plain[(size_t)(head * DQ_PAGE_SLOTS + t) * (size_t)f->stride + (size_t)c];
    if (t < p->n_sinks) return s->sinks[(head * p->n_sinks + t) * f->dim + c];
    int q = dq_page_code(f, side, s->codes + (size_t)head * (size_t)f->code_bytes, t, c);
    return dq_mul_rn((float)q, dq_page_scale(f, p, side, head, t, c / f->group));
}

#endif
