/* operands: rows become pages, and pages operands. A block has one head of a page, its keys or its
 * values, as f32 in shared memory: what is appended or held unquantized, then what codes stand for.
 * From there come codes and both views that products read. tests/simt/defects.tsv quotes masks.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/attend.cuh"

enum { FILL_THREADS = 256, PITCH_OF_BOX = KEYS + 1 };

/* One head of a page; box[dim][65] has channel c of token t at c * 65 + t. */
struct page_head {
    const dq_page_form *f;
    const dq_page *p;
    int side, head;
    float *box;
};

/* Tokens of a page that are appended: slots first .. end-1, from x on. */
struct new_tokens {
    const float *x;
    int64_t cols;
    int first, end;
};

/* ---- the box */

/* As the page will hold it. */
DQ_DEVICE float as_dense(const dq_page_form *f, float x)
{
    const float half = dq_f16_f32(dq_f32_f16(x)), brain = dq_bf16_f32(dq_f32_bf16(x));
    return f->dense == DQ_PAGE_F32 ? x : f->dense == DQ_PAGE_F16 ? half : brain;
}

/* Eight neighbours, of which n are there. whole: they lie as load_plain wants them. */
DQ_DEVICE void load_some(float x[8], const dq_page_form *f, plain_place from, int n, bool whole)
{
    if (whole) {
        load_plain(x, f, from);
        return;
    }
    DQ_UNROLL
    for (int k = 0; k < 8; k++) x[k] = k < n ? dq_page_plain(f, from.from, from.at + k) : 0.0f;
}

/* Channels c .. c+7 of token t that are not codes; zeros where the page has no token. */
DQ_DEVICE void load_channels(float x[8], const page_head *h, const new_tokens *add, int t, int c)
{
    const dq_page_form *f = h->f;
    const int n = f->dim - c;
    if (t >= add->first && t < add->end) {
        dq_page_form rows = {};
        load_some(x, &rows, plain_place{add->x + (t - add->first) * add->cols + c, 0}, n,
                  f->dim % 8 == 0);
        DQ_UNROLL
        for (int k = 0; k < 8; k++) x[k] = as_dense(f, x[k]);
        return;
    }
    plain_place from = place_of_plain(f, h->p, h->side, h->head, t);
    from.at += c;
    load_some(x, f, from, n, f->dim % 8 == 0);
}

/* Tokens 0 .. n-1 as they are but those that codes stand for, coded[0] .. coded[1]-1; zeros after
 * them. A warp takes 8 tokens by 32 channels: no bank has two of its words. */
DQ_DEVICE void fill_box(const page_head *h, const new_tokens *add, int n, const int coded[2])
{
    const int dim = h->f->dim, across = (dim + 31) / 32;
    for (int i = (int)dq_thread(); i < KEYS * 4 * across; i += (int)dq_threads()) {
        const int tile = i / 32, c = tile % across * 32 + i % 4 * 8;
        const int t = tile / across * 8 + i / 4 % 8;
        float x[8] = {};
        if (c >= dim || (t >= coded[0] && t < coded[1])) continue;
        const bool held = h->p->side[h->side].plain || t < h->p->n_sinks;
        if (t < n && (held || (t >= add->first && t < add->end))) load_channels(x, h, add, t, c);
        DQ_UNROLL
        for (int k = 0; k < 8; k++)
            if (c + k < dim) h->box[(c + k) * PITCH_OF_BOX + t] = x[k];
    }
}

/* The bytes of a cell, less `half`, or (0) in two's complement. */
DQ_DEVICE void read_bytes(float to[16], dq_u4 cell, int half)
{
    const uint32_t word[4] = {cell.x, cell.y, cell.z, cell.w};
    DQ_UNROLL
    for (int i = 0; i < 16; i++) {
        const uint32_t byte = word[i / 4] >> 8 * (i % 4) & 255;
        to[i] = (float)(half ? (int32_t)byte - half : (int32_t)(int8_t)byte);
    }
}

/* What codes of tokens coded[0] .. coded[1]-1 stand for, a cell of 16 codes a thread. */
DQ_DEVICE void decode_box(const page_head *h, const int coded[2])
{
    const dq_page_form *f = h->f;
    if (coded[0] >= coded[1]) return;
    const int bits = dq_page_bits(f, h->p, h->side, h->head), half = 1 << (bits - 1);
    const uint8_t *codes = dq_page_codes(f, h->p, h->side, h->head);
    for (int i = (int)dq_thread(); i < f->dim * KEYS / 16; i += (int)dq_threads()) {
        const int n = h->side ? f->dim : KEYS; /* of a run of cells */
        const int t = h->side ? i / n * 16 : i % n, c = h->side ? i % n : i / n * 16;
        float x[16];
        if (t >= coded[1] || t + (h->side ? 16 : 1) <= coded[0]) continue;
        read_bytes(x,
                   h->side ? value_cell(codes, bits, f->cols, t / 16, c)
                           : key_cell(codes, bits, f->cols, c / 16, t),
                   h->side ? 0 : half);
        DQ_UNROLL
        for (int k = 0; k < 16; k++) {
            const int tk = h->side ? t + k : t, ck = h->side ? c : c + k;
            if (tk >= coded[0] && tk < coded[1])
                h->box[ck * PITCH_OF_BOX + tk] =
                    dq_page_decoded(f, h->p, h->side, h->head, tk, ck, x[k]);
        }
    }
}

/* Each token's dim channels, a power of two, times the Hadamard matrix and norm. */
DQ_DEVICE void unrotate(float *box, int dim, float norm)
{
    for (int step = 1; step < dim; step *= 2) {
        DQ_SYNC(unfold_step);
        for (int i = (int)dq_thread(); i < dim / 2 * KEYS; i += (int)dq_threads()) {
            const int k = i / KEYS, c = k / step * 2 * step + k % step;
            float *at = box + c * PITCH_OF_BOX + i % KEYS;
            const float lo = at[0], hi = at[step * PITCH_OF_BOX];
            const float by = 2 * step == dim ? norm : 1.0f;
            at[0] = dq_mul_rn(dq_add_rn(lo, hi), by);
            at[step * PITCH_OF_BOX] = dq_mul_rn(dq_sub_rn(lo, hi), by);
        }
    }
}

/* ---- codes */

/* By a warp: NaN where a channel is not finite; *overflow: f16 cannot hold the scale. */
DQ_DEVICE float scale_of(const float *x, int begin, int end, float qmax, bool *overflow)
{
    uint32_t max = 0;
    for (int c = begin + (int)dq_lane(); c < end; c += DQ_WARP) {
        uint32_t bits = dq_f32_bits(x[c * PITCH_OF_BOX]) & 0x7fffffffu;
        max = bits > max ? bits : max;
    }
    for (unsigned o = 16; o; o >>= 1) {
        uint32_t other = dq_shfl_xor(max, o);
        max = other > max ? other : max;
    }
    if (max >= 0x7f800000u) return dq_bits_f32(0x7fc00000u);
    float scale = dq_div_rn(dq_bits_f32(max), qmax), half = dq_f16_f32(dq_f32_f16(scale));
    if (scale == 0.0f || (half >= 0x1p-14f && half <= 65504.0f)) return half;
    *overflow = true;
    return scale;
}

DQ_DEVICE int code_of(float x, float scale, float qmax)
{
    float q = dq_rint(dq_div_rn(x, scale));
    return (int)dq_f32_s32(q < -qmax ? -qmax : q > qmax ? qmax : q);
}

/* How the values of one channel and set, or of one token and run of channels, become codes. */
typedef struct dq_channel {
    float step, low;
    bool overflow; /* f16 does not hold both */
} dq_channel;

/* Whether all values are within half a step of what their codes say; no step: all equal the low. */
DQ_DEVICE bool covers(dq_channel c, float low, float least, float largest, int bits, bool dithers)
{
    float room = dithers ? 0.0f : 0.5f; /* dithering moves half a step either way */
    if (c.step == 0.0f) return low == least;
    return dq_sub_rn(least, low) >= dq_mul_rn(-room, c.step) &&
           dq_sub_rn(largest, low) <= dq_mul_rn((float)((1 << bits) - 1) + room, c.step);
}

/* Rounded to f16 where that does no harm; NaN where a value or the range is not finite. */
DQ_DEVICE dq_channel channel_between(float least, float largest, bool finite, int bits,
                                     bool dithers)
{
    float nan = dq_bits_f32(0x7fc00000u);
    dq_channel c = {nan, nan, false};
    float step = dq_div_rn(dq_sub_rn(largest, least), (float)((1 << bits) - (dithers ? 2 : 1)));
    if (!finite || dq_f32_bits(step) >= 0x7f800000u) return c;
    float half = dq_f16_f32(dq_f32_f16(step));
    bool holds = step == 0.0f || (half >= 0x1p-14f && half <= 65504.0f);
    c.step = holds ? half : step;
    c.low = dithers ? dq_sub_rn(least, dq_mul_rn(c.step, 0.5f)) : least;
    float low = dq_f16_f32(dq_f32_f16(c.low));
    bool low_holds = covers(c, low, least, largest, bits, dithers);
    if (low_holds) c.low = low;
    c.overflow = !holds || !low_holds;
    return c;
}

/* Of n tokens of one channel. */
DQ_DEVICE dq_channel channel_of(const float *x, int n, int bits, bool dithers)
{
    float least = x[0], largest = x[0];
    bool finite = true;
    for (int i = 0; i < n; i++) {
        finite = finite && (dq_f32_bits(x[i]) & 0x7fffffffu) < 0x7f800000u;
        least = x[i] < least ? x[i] : least;
        largest = x[i] > largest ? x[i] : largest;
    }
    return channel_between(least, largest, finite, bits, dithers);
}

/* Of channels begin .. end-1 of one token, by a warp. */
DQ_DEVICE dq_channel run_of(const float *x, int begin, int end, int bits)
{
    float least = x[begin * PITCH_OF_BOX], largest = least;
    unsigned finite = 1;
    for (int c = begin + (int)dq_lane(); c < end; c += DQ_WARP) {
        float v = x[c * PITCH_OF_BOX];
        finite &= (dq_f32_bits(v) & 0x7fffffffu) < 0x7f800000u;
        least = v < least ? v : least;
        largest = v > largest ? v : largest;
    }
    for (unsigned o = 16; o; o >>= 1) {
        float low = dq_bits_f32(dq_shfl_xor(dq_f32_bits(least), o));
        float high = dq_bits_f32(dq_shfl_xor(dq_f32_bits(largest), o));
        finite &= dq_shfl_xor(finite, o);
        least = low < least ? low : least;
        largest = high > largest ? high : largest;
    }
    return channel_between(least, largest, finite != 0, bits, false);
}

/* Code of v, plus what dither adds. */
DQ_DEVICE int code_between(dq_channel k, float v, float dither, int bits)
{
    float top = (float)((1 << bits) - 1), u = 0;
    if (k.step > 0) /* neither zero nor NaN */
        u = dq_add_rn(dq_div_rn(dq_sub_rn(v, k.low), k.step), dither);
    u = u > 0.0f ? u : 0.0f;
    u = u < top ? u : top;
    return dq_f32_s32(dq_rint(u)) - (1 << (bits - 1));
}

/* Codes and scales of one token, by a warp; true: a scale does not fit. */
DQ_DEVICE bool encode_token(const page_head *h, int t, int8_t *q)
{
    const dq_page_form *f = h->f;
    const dq_page *p = h->p;
    const float *x = h->box + t;
    int bits = dq_page_bits(f, p, h->side, h->head), runs = dq_page_runs(f);
    float qmax = (float)((1 << (bits - 1)) - 1);
    bool overflow = false;
    for (int g = 0; g < runs; g++) {
        int begin = g * f->group, end = begin + f->group < f->dim ? begin + f->group : f->dim;
        if (f->has_lows) {
            dq_channel k = run_of(x, begin, end, bits);
            overflow = overflow || k.overflow;
            for (int c = begin + (int)dq_lane(); c < end; c += DQ_WARP)
                q[t * f->cols + c] = (int8_t)code_between(k, x[c * PITCH_OF_BOX], 0, bits);
            if (dq_lane() == 0) {
                dq_page_put_number(p, h->side, dq_page_scale_place(f, h->head, t, g), k.step);
                dq_page_put_number(p, h->side, dq_page_scale_place(f, h->head, t, runs + g), k.low);
            }
            continue;
        }
        float scale = scale_of(x, begin, end, qmax, &overflow);
        bool real = scale > 0.0f; /* neither zero nor NaN */
        for (int c = begin + (int)dq_lane(); c < end; c += DQ_WARP)
            q[t * f->cols + c] = (int8_t)(real ? code_of(x[c * PITCH_OF_BOX], scale, qmax) : 0);
        if (dq_lane() == 0)
            dq_page_put_number(p, h->side, dq_page_scale_place(f, h->head, t, g), scale);
    }
    for (int c = f->dim + (int)dq_lane(); c < f->cols; c += DQ_WARP) q[t * f->cols + c] = 0;
    return overflow && !p->wide[h->side];
}

/* By all threads, for slots first .. end-1, a set; true: a number of this thread overflows f16. */
DQ_DEVICE bool encode_set(const page_head *h, int first, int end, int8_t *q)
{
    const dq_page_form *f = h->f;
    const dq_page *p = h->p;
    int bits = dq_page_bits(f, p, h->side, h->head);
    int64_t at = dq_page_set_place(f, p, h->head, first);
    bool overflow = false, dithers = h->side == 1 && p->dither >= 0;
    for (int c = (int)dq_thread(); c < f->cols; c += (int)dq_threads()) {
        const float *x = h->box + c * PITCH_OF_BOX;
        dq_channel k = {0, 0, false};
        if (c < f->dim) {
            k = channel_of(x + first, end - first, bits, dithers);
            dq_page_put_number(p, h->side, at + c, k.step);
            dq_page_put_number(p, h->side, at + f->dim + c, k.low);
        }
        overflow = overflow || k.overflow;
        for (int t = first; t < end; t++)
            q[t * f->cols + c] = (int8_t)code_between(k, c < f->dim ? x[t] : 0.0f,
                                                      dq_page_dither(f, p, h->side, t), bits);
    }
    return overflow && !p->wide[h->side];
}

/* The same of all sets of slots first .. end-1. */
DQ_DEVICE bool encode_sets(const page_head *h, int first, int end, int8_t *q)
{
    bool lost = false;
    for (int t = first, next; t < end; t = next) {
        for (next = t + 1; next < end && !(h->p->begins >> next & 1);) next++;
        lost = encode_set(h, t, next, q) || lost;
    }
    return lost;
}

/* Slots from .. to-1, by all threads. A page without codes gets its sinks, and zeros where it has
 * no tokens. True: a number of this thread overflows f16. */
DQ_DEVICE bool encode(const page_head *h, int from, int to, int8_t *q)
{
    const dq_page_form *f = h->f;
    const dq_page *p = h->p;
    const bool fresh = from == p->n_sinks;
    bool lost = f->set_numbers && encode_sets(h, from, to, q);
    for (int t = (int)dq_warp(); !f->set_numbers && t < DQ_PAGE_SLOTS;
         t += (int)dq_threads() / DQ_WARP) {
        if (t >= from && t < to)
            lost = encode_token(h, t, q) || lost;
        else if (fresh)
            dq_page_clear_numbers(f, p, h->side, h->head, t);
    }
    for (int i = (int)dq_thread(); fresh && i < p->n_sinks * f->dim; i += (int)dq_threads())
        dq_page_put_plain(f, p->side[h->side].sinks, (int64_t)h->head * p->n_sinks * f->dim + i,
                          h->box[i % f->dim * PITCH_OF_BOX + i / f->dim]);
    DQ_SYNC(encode_codes); /* all codes are there */
    dq_page_store(f, dq_page_bits(f, p, h->side, h->head), h->side,
                  dq_page_codes(f, p, h->side, h->head), q, from, to, fresh);
    return lost;
}

/* ---- views */

/* The box as cells of keys. */
DQ_DEVICE void put_keys(uint8_t *to, int channels, const page_head *h, bool *beyond)
{
    for (int i = (int)dq_thread(); i < channels / 8 * KEYS; i += (int)dq_threads()) {
        const int c = i / KEYS * 8, t = i % KEYS;
        float x[8] = {};
        DQ_UNROLL
        for (int k = 0; k < 8 && c < h->f->dim; k++) x[k] = h->box[(c + k) * PITCH_OF_BOX + t];
        put_cell(to + dq_operand_key(t, c), x, beyond);
    }
}

/* The box as cells of a slab of values; after the last one comes what pads the pair. */
DQ_DEVICE void put_slab(uint8_t *to, int channels, const page_head *h, int slab, int n_slabs,
                        bool *beyond)
{
    const int dim = h->f->dim, end = slab + 1 == n_slabs ? channels - slab * dim : dim;
    for (int i = (int)dq_thread(); i < end * KEYS / 8; i += (int)dq_threads()) {
        const int t = i / end * 8, c = i % end;
        float x[8] = {};
        DQ_UNROLL
        for (int k = 0; k < 8 && c < dim; k++) x[k] = h->box[c * PITCH_OF_BOX + t + k];
        put_cell(to + dq_operand_value(channels, t, slab * dim + c), x, beyond);
    }
}

/* The box into the operand page `at`: values into each pair that has the head. */
DQ_DEVICE void put_box(const dq_unfold *k, const page_head *h, int group, int64_t at, bool *beyond)
{
    if (!h->side) {
        put_keys(k->o.page + dq_operand_keys_at(&k->o, at, h->head), k->o.key_channels, h, beyond);
        return;
    }
    int pair = 0; /* the next that no output head had */
    for (int i = k->o_first[group]; i < k->o_first[group + 1]; i++) {
        const dq_o_head *o = k->o_head + i;
        if (o->pair != pair) continue;
        for (int slab = 0; slab < k->n_slabs; slab++)
            if (o->v[slab] == h->head)
                put_slab(k->o.page + dq_operand_values_at(&k->o, at, pair), k->o.value_channels, h,
                         slab, k->n_slabs, beyond);
        pair++;
    }
}

/* Codes of tokens coded[0] .. coded[1]-1 as bytes, with their scales; others are zero. */
DQ_DEVICE void put_codes(uint8_t *to, int channels, const page_head *h, const int coded[2])
{
    const dq_page_form *f = h->f;
    const bool some = coded[0] < coded[1];
    const int bits = some ? dq_page_bits(f, h->p, 0, h->head) : 8;
    const uint8_t *codes = some ? dq_page_codes(f, h->p, 0, h->head) : NULL;
    for (int i = (int)dq_thread(); i < channels / 16 * KEYS; i += (int)dq_threads()) {
        const int c = i / KEYS * 16, t = i % KEYS;
        const bool is_there = t >= coded[0] && t < coded[1];
        dq_u4 x = {0, 0, 0, 0};
        if (is_there && c < f->dim) {
            const uint32_t half = 1u << (bits - 1), top = 0x80808080u;
            x = key_cell(codes, bits, f->cols, c / 16, t);
            x = bits == 8
                    ? dq_u4{x.x ^ top, x.y ^ top, x.z ^ top, x.w ^ top}
                    : dq_u4{less(x.x, half), less(x.y, half), less(x.z, half), less(x.w, half)};
        }
        dq_store16(to + dq_operand_code(channels, t, c), x);
        if (c == 0)
            *(float *)(to + dq_operand_scale(channels, t)) =
                is_there ? dq_page_scale(f, h->p, 0, h->head, t, 0) : 0;
    }
}

/* The views of a page, each where `at` has a place for it: tokens 0 .. n-1, of which rows that
 * read codes take those before `coded` so. has_plain: the box holds the page as it is, whole. */
DQ_DEVICE void put_views(const dq_unfold *k, const page_head *h, const new_tokens *add, int group,
                         const int32_t at[3], int n, int coded, bool has_plain, bool *beyond)
{
    const dq_page_side *s = &h->p->side[h->side];
    const bool turns = h->side && k->norm != 0;
    for (int plain = 1; plain >= 0; plain--) {
        const int page = plain ? at[1] : at[0], sinks = plain ? at[2] : -1;
        if (page < 0 && sinks < 0) continue;
        int span[2] = {h->p->n_sinks, s->plain && coded < n ? coded : n};
        if (plain || !s->codes) span[1] = 0;
        DQ_SYNC(unfold_box_read);
        if (!plain && k->o.int8 && !h->side) {
            put_codes(k->o.page + dq_operand_keys_at(&k->o, page, h->head), k->o.key_channels, h,
                      span);
            continue;
        }
        if (!has_plain) fill_box(h, add, n, span);
        decode_box(h, span);
        if (turns) unrotate(h->box, h->f->dim, k->norm);
        DQ_SYNC(unfold_box_there);
        if (page >= 0) put_box(k, h, group, page, beyond);
        if (sinks >= 0) put_box(k, h, group, sinks, beyond);
        has_plain = has_plain && !turns;
    }
}

/* ---- kernels */

DQ_DEVICE new_tokens tokens_of(const dq_kv_fill *k, const dq_kv_fill_job *j, int side, int head)
{
    if (j->first == j->end) return new_tokens{NULL, 0, 0, 0};
    const int channel = k->heads.head[k->heads.first[j->group] + head] * k->u.form[side].dim;
    const float *x = (side ? k->v : k->k) + (int64_t)j->row * k->row_cols + channel;
    return new_tokens{x, k->row_cols, j->first, j->end};
}

/* What is appended, as it stays. A page whose first slot is written has no other tokens: the rest
 * becomes zero. True: the page's type makes a finite number infinite. */
DQ_DEVICE bool put_plain(const page_head *h, const new_tokens *add, uint32_t *beyond)
{
    const dq_page_form *f = h->f;
    const int64_t at = (int64_t)h->head * DQ_PAGE_SLOTS * f->stride;
    const int end = add->first == 0 ? (int)DQ_PAGE_SLOTS : add->end;
    void *plain = h->p->side[h->side].plain;
    for (int i = add->first * f->stride + (int)dq_thread(); plain && i < end * f->stride;
         i += (int)dq_threads()) {
        const int t = i / f->stride, c = i % f->stride;
        const bool there = t < add->end && c < f->dim;
        dq_page_put_plain(f, plain, at + i, there ? h->box[c * PITCH_OF_BOX + t] : 0.0f);
    }
    uint32_t most = 0;
    if (f->dense == DQ_PAGE_F32) return false;
    for (int i = (int)dq_thread(); i < (add->end - add->first) * f->dim; i += (int)dq_threads()) {
        const int t = i / f->dim, c = i % f->dim;
        const uint32_t bits = dq_f32_bits(add->x[t * add->cols + c]) & 0x7fffffffu;
        const uint32_t rounded =
            dq_f32_bits(h->box[c * PITCH_OF_BOX + add->first + t]) & 0x7fffffffu;
        if (bits < 0x7f800000u && rounded >= 0x7f800000u && bits > most) most = bits;
    }
    if (most) dq_atomic_max(beyond, most);
    return most != 0;
}

/* Grid: heads of a group, sides, jobs. Shared memory: the box, then codes [64][cols]. */
DQ_KERNEL_BLOCKS(FILL_THREADS, 2)
fill(DQ_PARAMETER dq_kv_fill k, const dq_kv_fill_job *DQ_RESTRICT jobs)
{
    DQ_SHARED_DYNAMIC(mem);
    const dq_kv_fill_job *j = jobs + dq_block_z();
    const int head = (int)dq_block_x(), side = (int)dq_block_y(), none[2] = {0, 0};
    if (head >= heads_of(k.heads.first, j->group) || (j->side >= 0 && j->side != side)) return;
    const page_head h = {&k.u.form[side], k.pages + j->record, side, head, (float *)mem};
    const new_tokens add = tokens_of(&k, j, side, head);
    const bool codes = h.p->side[side].codes && j->from < j->to, has_rows = add.first < add.end;
    /* what stands after the last token is nobody's */
    fill_box(&h, &add, has_rows ? add.end : (int)DQ_PAGE_SLOTS, none);
    DQ_SYNC(fill_box_there);
    if (has_rows && put_plain(&h, &add, k.beyond)) dq_raise(k.beyond_flag);
    if (codes && encode(&h, j->from, j->to, (int8_t *)(h.box + h.f->dim * PITCH_OF_BOX)))
        dq_raise(k.overflow + 2 * dq_block_z() + side);
    bool far = false;
    if (k.u.o.page) put_views(&k.u, &h, &add, j->group, j->at, add.end, j->coded, true, &far);
    if (far) dq_raise(k.u.beyond);
}

/* Grid: pages from a list's first on, lists, heads of both sides. */
DQ_KERNEL_BLOCKS(FILL_THREADS, 3)
unfold(DQ_PARAMETER dq_unfold k, const dq_page *DQ_RESTRICT pages,
       const dq_unfold_list *DQ_RESTRICT lists)
{
    DQ_SHARED_DYNAMIC(mem);
    const dq_unfold_list l = lists[dq_block_y()];
    const int page = l.first + (int)dq_block_x(), n = slots_of(l.keys, page);
    const int side = (int)dq_block_z() % 2, head = (int)dq_block_z() / 2;
    const dq_page *p = pages + l.page + page;
    if (page >= l.end || n == 0 || head >= p->heads) return;
    const page_head h = {&k.form[side], p, side, head, (float *)mem};
    const new_tokens none = {NULL, 0, 0, 0};
    int32_t at[3] = {l.at[0] + page, l.at[1] + page, l.at[2] + page};
    if (page >= (l.coded_end + KEYS - 1) / KEYS) at[0] = -1;
    if (page < l.plain_from / KEYS) at[1] = -1;
    if (page * KEYS >= l.uncoded) at[2] = -1;
    bool far = false;
    put_views(&k, &h, &none, l.group, at, n, slots_of(l.coded_end, page), false, &far);
    if (far) dq_raise(k.beyond);
}

/* ---- launchers */

static int box_bytes(const dq_page_form *f)
{
    return f->dim * PITCH_OF_BOX * (int)sizeof(float);
}

dq_unfold dq_attend_unfold_of(const dq_attention_units *u, dq_operands o, bool rotated,
                              int32_t *beyond)
{
    dq_unfold k = {};
    k.form[0] = u->form[0];
    k.form[1] = u->form[1];
    k.o = o;
    k.o_head = u->o_head;
    k.o_first = u->o_first;
    k.n_slabs = u->n_slabs;
    k.norm = rotated ? 1.0f / sqrtf((float)u->form[1].dim) : 0;
    k.beyond = beyond;
    return k;
}

cudaError_t dq_attend_unfold(dq_unfold k, const dq_page *pages, const dq_unfold_list *lists, int n,
                             int max_pages, cudaStream_t s)
{
    enum { LISTS = 65535 }; /* of a grid's second axis */
    const int smem = box_bytes(&k.form[0]);
    cudaError_t e = smem > 48 << 10 ? DQ_ALLOW_SMEM(unfold, smem) : cudaSuccess;
    for (int i = 0; i < n && e == cudaSuccess; i += LISTS) {
        const dim3 grid((unsigned)max_pages, (unsigned)(n - i < LISTS ? n - i : LISTS),
                        (unsigned)(2 * k.o.n_keys));
        DQ_LAUNCH(unfold, grid, FILL_THREADS, (unsigned)smem, s, k, pages, lists + i);
        e = cudaGetLastError();
    }
    return e;
}

size_t dq_kv_fill_smem(dq_page_form const form[2])
{
    return (size_t)(box_bytes(&form[0]) + DQ_PAGE_SLOTS * form[0].cols);
}

cudaError_t dq_kv_launch_fill(dq_kv_fill k, const dq_kv_fill_job *jobs, int n, cudaStream_t s)
{
    enum { JOBS = 65535 }; /* of a grid's third axis */
    const size_t smem = dq_kv_fill_smem(k.u.form);
    if (k.u.form[0].dense != DQ_PAGE_F32 && k.k && (!k.beyond || !k.beyond_flag))
        return cudaErrorInvalidValue;
    cudaError_t e = smem > 48 << 10 ? DQ_ALLOW_SMEM(fill, smem) : cudaSuccess;
    for (int i = 0; i < n && e == cudaSuccess; i += JOBS) {
        const dim3 grid((unsigned)k.heads.max, 2, (unsigned)(n - i < JOBS ? n - i : JOBS));
        DQ_LAUNCH(fill, grid, FILL_THREADS, (unsigned)smem, s, k, jobs + i);
        e = cudaGetLastError();
        k.overflow += 2 * JOBS;
    }
    return e;
}
