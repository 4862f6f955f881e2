/* attention: what kernels over strips share.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ATTENTION_CUH
#define DQ_ATTENTION_CUH

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/page.cuh"

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
    return u->visible[(int64_t)(w->row + r) * u->n_groups + w->group];
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
