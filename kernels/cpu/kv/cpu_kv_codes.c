/* cpu_kv_codes: codes of the KV cache: made, moved, read back. The rule of scales and codes is that
 * of tensor.h; kv.h says which scales stay in f32.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/isa/kv_lines.h"
#include "kernels/cpu/kv/cpu_kv.h"
#include "tensor/tensor.h"

#include <math.h>

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t dq_cpu_kv_scratch_floats(const dq_kv *kv)
{
    /* values or keys as f32; as codes; scales (at most one per channel; of per-channel codes two, and a page of one set); last of
     * all what is held in two bytes */
    const int64_t pages = kv->by_page ? 5 : kv->has_codes ? 3 : 0;
    return (pages + (kv->dense != DQ_F32)) * DQ_PAGE_TOKENS * kv->v_cols;
}

/* Elements first .. of a page's unquantized head as f32. */
static void widen(const dq_simd *simd, const dq_kv *kv, float *out, const void *plain,
                  int64_t first, int64_t n)
{
    simd->widen(out, (const uint8_t *)plain + first * kv->dense_bytes, kv->dense, n);
}

/* The whole head: the page itself, or the end of scratch. */
static const float *plain_page(const dq_simd *simd, const dq_kv *kv, const dq_kv_page *p, int side,
                               int h, float *scratch)
{
    const void *plain = dq_kv_plain_of(kv, p, side, h);
    if (kv->dense == DQ_F32) return plain;
    float *out = scratch + dq_cpu_kv_scratch_floats(kv) - DQ_PAGE_TOKENS * kv->v_cols;
    widen(simd, kv, out, plain, 0, kv->form[side].plain_floats);
    return out;
}

/* ---------------------------------------------------------------------------------------- packing */

static void put_plane(uint8_t *out, const uint8_t *u, int64_t n, int width, int shift)
{
    const int parts = 8 / width;
    const int64_t m = n / parts;
    const unsigned mask = (1u << width) - 1;
    for (int64_t i = 0; i < m; i++) {
        unsigned byte = 0;
        for (int k = 0; k < parts; k++)
            byte |= ((unsigned)u[k * m + i] >> shift & mask) << (k * width);
        out[i] = (uint8_t)byte;
    }
}

/* The inverse of kv_unpack. */
static void pack(uint8_t *line, const int8_t *q, int bits, int64_t n)
{
    uint8_t u[DQ_KV_LINE];
    for (int64_t i = 0; i < n; i++) u[i] = (uint8_t)(q[i] + (1 << (bits - 1)));
    switch (bits) {
    case 8: memcpy(line, u, (size_t)n); break;
    case 6:
        put_plane(line, u, n, 4, 0);
        put_plane(line + n / 2, u, n, 2, 4);
        break;
    case 5:
        put_plane(line, u, n, 4, 0);
        put_plane(line + n / 2, u, n, 1, 4);
        break;
    case 4: put_plane(line, u, n, 4, 0); break;
    case 3:
        put_plane(line, u, n, 2, 0);
        put_plane(line + n / 4, u, n, 1, 2);
        break;
    default: put_plane(line, u, n, 2, 0); break;
    }
}

/* Codes of a whole page of one head: keys [v_cols][DQ_PAGE_TOKENS], values [DQ_PAGE_TOKENS][v_cols]. Only tokens
 * first..end of values are touched; lines of keys hold all tokens. */
static void unpack_head(const dq_kv *kv, int8_t *q, const uint8_t *codes, int bits, int side,
                        int64_t first, int64_t end)
{
    const int64_t begin = side == DQ_K ? 0 : first * kv->v_cols;
    const int64_t stop = (side == DQ_K ? DQ_PAGE_TOKENS : end) * kv->v_cols;
    const int64_t width = side == DQ_K ? DQ_PAGE_TOKENS : kv->v_cols;
    for (int64_t i = begin; i < stop;) {
        const int64_t n = least(width - i % width, DQ_KV_LINE);
        kv_unpack(q + i, codes + i * bits / 8, bits, n);
        i += n;
    }
}

static void pack_head(const dq_kv *kv, uint8_t *codes, const int8_t *q, int bits, int side,
                      int64_t first, int64_t end)
{
    const int64_t begin = side == DQ_K ? 0 : first * kv->v_cols;
    const int64_t stop = (side == DQ_K ? DQ_PAGE_TOKENS : end) * kv->v_cols;
    const int64_t width = side == DQ_K ? DQ_PAGE_TOKENS : kv->v_cols;
    for (int64_t i = begin; i < stop;) {
        const int64_t n = least(width - i % width, DQ_KV_LINE);
        pack(codes + i * bits / 8, q + i, bits, n);
        i += n;
    }
}

/* Index of the scale of a token and run of channels among those of one head. */
static int64_t scale_at(const dq_kv *kv, int side, int64_t token, int64_t g)
{
    return side == DQ_K ? g * DQ_PAGE_TOKENS + token : token * kv->form[side].n_scales + g;
}

static float get_scale(const dq_kv_part *part, int64_t i)
{
    if (part->wide) return ((const float *)part->scale)[i];
    return dq_f32_from_f16(((const uint16_t *)part->scale)[i]);
}

static void put_scale(dq_kv_part *part, int64_t i, float s)
{
    if (part->wide) {
        ((float *)part->scale)[i] = s;
    } else {
        ((uint16_t *)part->scale)[i] = dq_f16_from_f32(s);
    }
}

/* --------------------------------------------------------------------------------------- encoding */

/* The scale of a run of values, as stored. Values that are not finite make it NaN, which then reaches
 * everything that reads the run. *overflow: f16 cannot hold it. */
static float scale_of(const dq_simd *simd, const float *x, int64_t n, int bits, bool *overflow)
{
    const float peak = simd->absmax(x, n);
    if (!isfinite(peak)) return NAN;
    const float scale = peak / (float)dq_quant_max_code(bits);
    const float half = dq_quant_stored_scale(scale, DQ_F16);
    if (scale == 0.0f || (half >= 0x1p-14f && half < INFINITY)) return half;
    *overflow = true;
    return scale;
}

/* Codes and scales of one token. */
static void encode_token(const dq_simd *simd, const dq_kv *kv, const dq_kv_page_form *form,
                         int bits, int8_t *q, float *scale, const float *x, bool *overflow)
{
    const int64_t d = kv->map->head_dim, runs = dq_kv_runs(form);
    for (int64_t g = 0; g < runs; g++) {
        const int64_t begin = g * form->group, n = least(form->group, d - begin);
        if (form->has_lows) {
            *overflow |= dq_cpu_kv_run_encode(simd, q + begin, scale + g, scale + runs + g,
                                              x + begin, n, bits);
            continue;
        }
        scale[g] = scale_of(simd, x + begin, n, bits, overflow);
        if (isnan(scale[g])) {
            memset(q + begin, 0, (size_t)n);
        } else {
            dq_quant_encode(q + begin, x + begin, n, bits, scale[g], DQ_ABSMAX);
        }
    }
    memset(q + d, 0, (size_t)(kv->v_cols - d));
}

/* Codes q[DQ_PAGE_TOKENS][v_cols] and scales [DQ_PAGE_TOKENS][n_scales] of what is due in one head; true when the
 * scales can be stored. */
static bool encode_head(const dq_simd *simd, const dq_kv *kv, const dq_kv_page *p, int side, int h,
                        int8_t *q, float *scale, float *rows)
{
    const dq_kv_page_form *form = &kv->form[side];
    const int64_t d = kv->map->head_dim, n = p->due - p->coded;
    const int bits = dq_kv_bits_of(kv, p, side, h);
    const float *plain = plain_page(simd, kv, p, side, h, rows);
    bool overflow = false;
    if (side == DQ_K) simd->transpose(rows, d, plain + p->coded, DQ_PAGE_TOKENS, d, n);
    for (int64_t i = 0; i < n; i++) {
        const float *x = side == DQ_K ? rows + i * d : plain + (p->coded + i) * kv->v_cols;
        const int64_t slot = p->coded + i;
        encode_token(simd, kv, form, bits, q + slot * kv->v_cols, scale + slot * form->n_scales, x,
                     &overflow);
    }
    return !overflow || p->part[side].wide;
}

static void store_head(const dq_kv *kv, dq_kv_page *p, int side, int h, const int8_t *q,
                       const float *scale, int8_t *lines)
{
    const int64_t n_scales = kv->form[side].n_scales, head = h * n_scales * DQ_PAGE_TOKENS;
    for (int64_t i = p->coded; i < p->due; i++) {
        for (int64_t g = 0; g < n_scales; g++)
            put_scale(&p->part[side], head + scale_at(kv, side, i, g), scale[i * n_scales + g]);
    }
    uint8_t *codes = dq_kv_codes_of(kv, p, side, h);
    const int bits = dq_kv_bits_of(kv, p, side, h);
    if (side == DQ_V) {
        pack_head(kv, codes, q, bits, side, p->coded, p->due);
        return;
    }
    unpack_head(kv, lines, codes, bits, side, 0, DQ_PAGE_TOKENS);
    for (int64_t i = p->coded; i < p->due; i++) {
        for (int64_t c = 0; c < kv->v_cols; c++)
            lines[c * DQ_PAGE_TOKENS + i] = q[i * kv->v_cols + c];
    }
    pack_head(kv, codes, lines, bits, side, 0, DQ_PAGE_TOKENS);
}

/* Per-channel codes of one head; true when their scales can be stored. */
static bool encode_sets(const dq_simd *simd, const dq_kv *kv, const dq_kv_job *job, int side, int h,
                        int8_t *q, float *rows)
{
    const dq_kv_page *p = job->page;
    uint8_t *codes = dq_kv_codes_of(kv, p, side, h);
    const int bits = dq_kv_bits_of(kv, p, side, h);
    const int64_t first = side == DQ_K ? 0 : p->coded, end = side == DQ_K ? DQ_PAGE_TOKENS : p->due;
    if (side == DQ_K) unpack_head(kv, q, codes, bits, side, first, end);
    const float *plain = plain_page(simd, kv, p, side, h, rows);
    if (!dq_cpu_kv_sets_encode(simd, kv, job, side, h, q, plain, rows)) return false;
    pack_head(kv, codes, q, bits, side, first, end);
    return true;
}

void dq_cpu_kv_page_encode(const dq_simd *simd, const dq_kv *kv, const dq_kv_job *job,
                           float *scratch)
{
    dq_kv_page *p = job->page;
    const int64_t page = DQ_PAGE_TOKENS * kv->v_cols;
    int8_t *q = (int8_t *)(scratch + 2 * page), *lines = q + page;
    for (int s = DQ_K; s <= DQ_V; s++) {
        if (job->side >= 0 && job->side != s) continue;
        bool *overflow = &p->part[s].overflow;
        *overflow = false;
        if (!p->part[s].codes) continue;
        const bool sets = kv->form[s].set_scales != 0;
        for (int h = 0; sets && h < kv->heads[job->group] && !*overflow; h++)
            *overflow = !encode_sets(simd, kv, job, s, h, q, scratch);
        for (int h = 0; !sets && h < kv->heads[job->group]; h++) {
            if (!encode_head(simd, kv, p, s, h, q, scratch + page, scratch)) {
                *overflow = true;
                break;
            }
            store_head(kv, p, s, h, q, scratch + page, lines);
        }
    }
}

/* ---------------------------------------------------------------------------------------- reading */

/* Slots first..end of a page, from where they are held unquantized. */
static void read_plain(const dq_simd *simd, const dq_kv *kv, const dq_kv_page *p, int side, int h,
                       int64_t first, int64_t end, float *out)
{
    const int64_t lines = side == DQ_K ? kv->map->head_dim : 1;
    const int64_t one = side == DQ_K ? 1 : kv->v_cols;
    const void *plain = dq_kv_plain_of(kv, p, side, h);
    for (int64_t c = 0; c < lines; c++) {
        const int64_t at = c * DQ_PAGE_TOKENS + first * one;
        widen(simd, kv, out + at, plain, at, (end - first) * one);
    }
}

static void read_sinks(const dq_simd *simd, const dq_kv *kv, const dq_kv_page *p, int side, int h,
                       float *out)
{
    const int64_t d = kv->map->head_dim;
    const void *sinks = dq_kv_sinks_of(kv, p, side, h);
    for (int64_t i = 0; i < p->n_sinks; i++) {
        if (side == DQ_V) widen(simd, kv, out + i * kv->v_cols, sinks, i * d, d);
        for (int64_t c = 0; side == DQ_K && c < d; c += DQ_KV_LINE) {
            float run[DQ_KV_LINE];
            const int64_t n = least(d - c, DQ_KV_LINE);
            widen(simd, kv, run, sinks, i * d + c, n);
            for (int64_t k = 0; k < n; k++) out[(c + k) * DQ_PAGE_TOKENS + i] = run[k];
        }
    }
}

/* The scales of one head as f32, in their own order. */
static const float *read_scales(const dq_simd *simd, const dq_kv *kv, const dq_kv_part *part,
                                int side, int h, float *scratch)
{
    const int64_t n = kv->form[side].n_scales * DQ_PAGE_TOKENS, at = h * n;
    if (part->wide) return (const float *)part->scale + at;
    simd->widen(scratch, (const uint16_t *)part->scale + at, DQ_F16, n);
    return scratch;
}

/* What lows add to n tokens of values, from their own numbers. */
static void add_middles(const dq_kv *kv, float *values, const float *numbers, int bits, int64_t n)
{
    const dq_kv_page_form *form = &kv->form[DQ_V];
    const int64_t runs = dq_kv_runs(form), d = kv->map->head_dim;
    const float half = (float)(1 << (bits - 1));
    for (int64_t t = 0; t < n; t++, numbers += form->n_scales, values += kv->v_cols) {
        for (int64_t g = 0; g < runs; g++) {
            const float middle = half * numbers[g] + numbers[runs + g];
            const int64_t begin = g * form->group, end = least(begin + form->group, d);
#pragma omp simd
            for (int64_t c = begin; c < end; c++) values[c] += middle;
        }
    }
}

static bool reads_plain(const dq_kv_page *p, int side, int64_t slots)
{
    const dq_kv_part *part = &p->part[side];
    return !part->codes || (part->plain && slots <= p->n_sinks);
}

/* Per-channel codes as f32: all that a head's set has, and of others their own slots. */
static void read_sets(const dq_simd *simd, const dq_kv *kv, const dq_kv_page *p, int side, int head,
                      int64_t slots, float *scratch)
{
    const int64_t size = DQ_PAGE_TOKENS * kv->v_cols, d = kv->map->head_dim;
    const int h = kv->slot[head], bits = dq_kv_bits_of(kv, p, side, h);
    const uint8_t *codes = dq_kv_codes_of(kv, p, side, h);
    float own[DQ_PAGE_TOKENS], *step = scratch + size, *other = scratch + 4 * size;
    const float *dither = dq_cpu_kv_sets_dither(kv, p, own);
    dq_cpu_kv_sets_read(simd, kv, p, kv->map->group[head], side, h, dq_kv_sets(p, slots), step);
    for (int64_t i = p->n_sinks, end; i < slots; i = end, step += 2 * kv->v_cols) {
        const float *low = step + kv->v_cols;
        const bool whole = i == p->n_sinks;
        end = dq_kv_set_end(p, i, slots);
        if (side == DQ_V)
            simd->read_page_values(scratch, codes, bits, i, end, kv->v_cols, step, low, dither);
        else
            simd->read_page_keys(whole ? scratch : other, codes, bits, d, step, low);
        for (int64_t c = 0; side == DQ_K && !whole && c < d; c++)
            memcpy(scratch + c * DQ_PAGE_TOKENS + i, other + c * DQ_PAGE_TOKENS + i,
                   (size_t)(end - i) * sizeof *other);
    }
}

static const float *read_page(const dq_simd *simd, const dq_kv *kv, const dq_kv_page *p, int side,
                              int head, int64_t slots, float *scratch)
{
    const dq_kv_page_form *form = &kv->form[side];
    const dq_kv_part *part = &p->part[side];
    const int h = kv->slot[head];
    if (reads_plain(p, side, slots)) return plain_page(simd, kv, p, side, h, scratch);
    const float *scale = NULL;
    if (!form->set_scales)
        scale = read_scales(simd, kv, part, side, h, scratch + DQ_PAGE_TOKENS * kv->v_cols);
    const uint8_t *codes = dq_kv_codes_of(kv, p, side, h);
    const int bits = dq_kv_bits_of(kv, p, side, h);
    if (form->set_scales) {
        read_sets(simd, kv, p, side, head, slots, scratch);
    } else if (side == DQ_K) {
        simd->read_keys(scratch, codes, form->bits, kv->map->head_dim, form->group, scale);
    } else {
        simd->read_values(scratch, codes, bits, slots, kv->v_cols, form->group, scale,
                          form->n_scales);
        if (form->has_lows) add_middles(kv, scratch, scale, bits, slots);
    }
    if (part->sinks) read_sinks(simd, kv, p, side, h, scratch);
    if (part->plain && slots < DQ_PAGE_TOKENS)
        read_plain(simd, kv, p, side, h, slots, DQ_PAGE_TOKENS, scratch);
    return scratch;
}

DQ_KV_INLINE void turn(float *restrict out, const float *restrict scale, int64_t n, int64_t first,
                       int64_t end)
{
    for (int64_t g = 0; g < n; g++) {
#pragma omp simd
        for (int64_t i = first; i < end; i++) out[g * DQ_PAGE_TOKENS + i] = scale[i * n + g];
    }
}

/* Slots outside the view may hold any scale, even NaN: they become zero. The usual numbers are constants, each a shuffle. */
static void turn_scales(float *out, const float *scale, int64_t n_scales, int64_t first,
                        int64_t end)
{
    if (first > 0 || end < DQ_PAGE_TOKENS)
        memset(out, 0, (size_t)(n_scales * DQ_PAGE_TOKENS) * sizeof *out);
    switch (n_scales) {
    case 1: turn(out, scale, 1, first, end); break;
    case 2: turn(out, scale, 2, first, end); break;
    case 4: turn(out, scale, 4, first, end); break;
    default: turn(out, scale, n_scales, first, end); break;
    }
}

/* Of values, [n_scales][DQ_PAGE_TOKENS]; other[n_scales * DQ_PAGE_TOKENS] is for those in their own order. */
static const float *turned_scales(float *out, const dq_simd *simd, const dq_kv *kv,
                                  const dq_kv_part *part, int h, int64_t first, int64_t end,
                                  float *other)
{
    const int64_t n = kv->form[DQ_V].n_scales;
    const uint16_t *half = (const uint16_t *)part->scale + h * n * DQ_PAGE_TOKENS;
    const bool whole = first == 0 && end == DQ_PAGE_TOKENS;
    if (whole && !part->wide && simd->turn_scales && simd->turn_scales(out, half, n)) return out;
    turn_scales(out, read_scales(simd, kv, part, DQ_V, h, other), n, first, end);
    return out;
}

/* Middles of the slots first .. end-1, in the place of lows, which follow the scales of all runs. */
static const float *middles_of(float *scale, int64_t runs, int bits, int64_t first, int64_t end)
{
    const float half = (float)(1 << (bits - 1));
    float *low = scale + runs * DQ_PAGE_TOKENS;
    for (int64_t g = 0; g < runs; g++, scale += DQ_PAGE_TOKENS, low += DQ_PAGE_TOKENS) {
#pragma omp simd
        for (int64_t t = first; t < end; t++) low[t] = half * scale[t] + low[t];
    }
    return scale;
}

/* Codes of one head on page `page`, which is looked at soon; NULL: none. What leads to the page after it
 * and what goes with the codes is fetched ahead. */
static const uint8_t *next_codes(const dq_kv *kv, const dq_kv_list *list, int64_t page, int side,
                                 int h)
{
    if (page >= list->n_pages) return NULL;
    const dq_kv_page *p = list->page[page];
    const dq_kv_page_form *form = &kv->form[side]; /* one of them is none */
    const int64_t n =
        (form->n_scales * DQ_PAGE_TOKENS + form->set_scales) * (p->part[side].wide ? 4 : 2);
    if (page + 1 < list->n_pages) {
        DQ_KV_FETCH(list->page[page + 1]);
        DQ_KV_FETCH(&list->page[page + 1]->part[DQ_V].sinks);
    }
    if (!p->part[side].codes) return NULL;
    for (int64_t i = 0; i < n; i += 64)
        DQ_KV_FETCH((const uint8_t *)p->part[side].scale + h * n + i);
    if (side == DQ_V && dq_kv_dithers(&kv->spec)) { /* what dither is looked up by */
        DQ_KV_FETCH(p->pos);
        DQ_KV_FETCH(p->pos + DQ_PAGE_TOKENS - 1);
    }
    return dq_kv_codes_of(kv, p, side, h);
}

/* Steps and middles of the sets that are read: low - (-half) step is the middle. */
static void view_sets(dq_cpu_kv_view *v, const dq_simd *simd, const dq_kv *kv, const dq_kv_page *p,
                      int side, int head, float *scratch)
{
    const float half = (float)(1 << (v->bits - 1));
    const int n = dq_kv_sets(p, v->end);
    float *out = scratch + DQ_PAGE_TOKENS;
    dq_cpu_kv_sets_read(simd, kv, p, kv->map->group[head], side, kv->slot[head], n, out);
    if (side == DQ_V) v->dither = dq_cpu_kv_sets_dither(kv, p, scratch);
    v->sets = out;
    v->begins = p->begins;
    for (int i = 0; i < n; i++, out += 2 * kv->v_cols)
        simd->diff(out + kv->v_cols, out + kv->v_cols, out, kv->v_cols, 1.0f, -half);
}

dq_cpu_kv_view dq_cpu_kv_view_page(const dq_simd *simd, const dq_kv *kv, const dq_kv_list *list,
                                   int64_t page, int side, int head, int64_t coded_end,
                                   float *scratch)
{
    const dq_kv_page *p = list->page[page];
    const dq_kv_part *part = &p->part[side];
    const int64_t slots = dq_kv_slots(coded_end, page), size = DQ_PAGE_TOKENS * kv->v_cols;
    const int h = kv->slot[head];
    dq_cpu_kv_view v = {0}; /* the one that is returned, so that it is written in its place */
    if (reads_plain(p, side, slots)) {
        v.plain = plain_page(simd, kv, p, side, h, scratch);
        return v;
    }
    v.codes = dq_kv_codes_of(kv, p, side, h);
    v.first = p->n_sinks;
    v.end = slots > p->n_sinks ? slots : p->n_sinks;
    v.bits = dq_kv_bits_of(kv, p, side, h);
    v.form = &kv->form[side];
    if (v.form->set_scales)
        view_sets(&v, simd, kv, p, side, head, scratch + size);
    else if (side == DQ_V)
        v.scale =
            turned_scales(scratch + 2 * size, simd, kv, part, h, v.first, v.end, scratch + size);
    else
        v.scale = read_scales(simd, kv, part, side, h, scratch + size);
    if (v.form->has_lows)
        v.middle = middles_of(scratch + 2 * size, dq_kv_runs(v.form), v.bits, v.first, v.end);
    /* after what is read here: there is room for few misses */
    v.next = next_codes(kv, list, page + 1, side, h);
    const bool tail = part->plain && slots < DQ_PAGE_TOKENS;
    if (!part->sinks && !tail) return v;
    memset(scratch, 0, (size_t)size * sizeof *scratch);
    if (part->sinks) read_sinks(simd, kv, p, side, h, scratch);
    if (tail) read_plain(simd, kv, p, side, h, slots, DQ_PAGE_TOKENS, scratch);
    v.plain = scratch;
    return v;
}

const void *dq_cpu_kv_half_page(const dq_kv *kv, const dq_kv_list *list, int64_t page, int side,
                                int head, int64_t coded_end)
{
    const dq_kv_page *p = list->page[page];
    if (kv->dense == DQ_F32 || !reads_plain(p, side, dq_kv_slots(coded_end, page))) return NULL;
    return dq_kv_plain_of(kv, p, side, kv->slot[head]);
}

const float *dq_cpu_kv_read_keys(const dq_simd *simd, const dq_kv *kv, const dq_kv_list *list,
                                 int64_t page, int head, int64_t coded_end, float *scratch)
{
    return read_page(simd, kv, list->page[page], DQ_K, head, dq_kv_slots(coded_end, page), scratch);
}

const float *dq_cpu_kv_read_values(const dq_simd *simd, const dq_kv *kv, const dq_kv_list *list,
                                   int64_t page, int head, int64_t coded_end, float *scratch)
{
    return read_page(simd, kv, list->page[page], DQ_V, head, dq_kv_slots(coded_end, page), scratch);
}

void dq_cpu_kv_token_codes(const dq_kv *kv, const dq_kv_list *list, int64_t i, int head, int side,
                           int8_t *q, float *scale)
{
    const dq_kv_page *p = list->page[i / DQ_PAGE_TOKENS];
    const int64_t slot = i % DQ_PAGE_TOKENS, n_scales = kv->form[side].n_scales, cols = kv->v_cols;
    const int h = kv->slot[head], bits = dq_kv_bits_of(kv, p, side, h);
    const uint8_t *codes = dq_kv_codes_of(kv, p, side, h);
    for (int64_t c = 0; side == DQ_K && c < cols; c++) {
        int8_t line[DQ_PAGE_TOKENS];
        kv_unpack(line, codes + c * DQ_PAGE_TOKENS * bits / 8, bits, DQ_PAGE_TOKENS);
        q[c] = line[slot];
    }
    for (int64_t c = 0; side == DQ_V && c < cols; c += DQ_KV_LINE) {
        const int64_t n = least(cols - c, DQ_KV_LINE);
        kv_unpack(q + c, codes + (slot * cols + c) * bits / 8, bits, n);
    }
    const int set = dq_kv_sets(p, slot + 1) - 1;
    for (int64_t g = 0; g < kv->form[side].set_scales; g++)
        scale[g] =
            get_scale(&p->part[side], dq_kv_set_at(kv, kv->map->group[head], side, set, h) + g);
    for (int64_t g = 0; g < n_scales; g++) {
        scale[g] =
            get_scale(&p->part[side], h * n_scales * DQ_PAGE_TOKENS + scale_at(kv, side, slot, g));
    }
}

/* ----------------------------------------------------------------------------------------- moving */

static void move_plain(const dq_kv *kv, dq_kv_page *to, int64_t slot, const dq_kv_page *from,
                       int64_t i, int side, int h)
{
    const int64_t d = kv->map->head_dim, sink = d * kv->dense_bytes;
    const int64_t channel = side == DQ_K ? DQ_PAGE_TOKENS : 1,
                  token = (side == DQ_K ? 1 : kv->v_cols) * kv->dense_bytes;
    const uint8_t *x = NULL;
    int64_t step = channel;
    if (from->part[side].plain) {
        x = (const uint8_t *)dq_kv_plain_of(kv, from, side, h) + i * token;
    } else if (i < from->n_sinks) {
        x = (const uint8_t *)dq_kv_sinks_of(kv, from, side, h) + i * sink;
        step = 1;
    }
    if (!x) return; /* held as codes only */
    if (to->part[side].plain)
        dq_cpu_kv_copy(kv, (uint8_t *)dq_kv_plain_of(kv, to, side, h) + slot * token, channel, x,
                       step, d);
    if (slot < to->n_sinks && to->part[side].sinks)
        dq_cpu_kv_copy(kv, (uint8_t *)dq_kv_sinks_of(kv, to, side, h) + slot * sink, 1, x, step, d);
}

/* Codes of slot i of one head, both as they lie unpacked, with their scales. */
static void move_codes(const dq_kv *kv, dq_kv_page *to, int64_t slot, int8_t *y,
                       const dq_kv_page *from, int64_t i, const int8_t *x, int side, int h)
{
    const int64_t channel = side == DQ_K ? DQ_PAGE_TOKENS : 1,
                  token = side == DQ_K ? 1 : kv->v_cols;
    const int64_t head = (int64_t)h * kv->form[side].n_scales * DQ_PAGE_TOKENS;
    for (int64_t c = 0; c < kv->v_cols; c++)
        y[slot * token + c * channel] = x[i * token + c * channel];
    for (int64_t g = 0; g < kv->form[side].n_scales; g++) {
        put_scale(&to->part[side], head + scale_at(kv, side, slot, g),
                  get_scale(&from->part[side], head + scale_at(kv, side, i, g)));
    }
}

static void move_head(const dq_kv *kv, dq_kv_page *to, int group, const dq_kv_list *list,
                      const int32_t *kept, int64_t n, int side, int h, float *scratch)
{
    const int64_t page = DQ_PAGE_TOKENS * kv->v_cols;
    const int bits = dq_kv_bits_of(kv, to, side, h);
    int8_t *x = (int8_t *)scratch, *y = x + page;
    const dq_kv_page *unpacked = NULL;
    if (to->part[side].codes) memset(y, 0, (size_t)page);
    for (int64_t i = 0; i < n; i++) {
        const dq_kv_page *from = list->page[kept[i] / DQ_PAGE_TOKENS];
        const int64_t at = kept[i] % DQ_PAGE_TOKENS;
        move_plain(kv, to, i, from, at, side, h);
        if (!to->part[side].codes || i < to->n_sinks || i >= to->coded) continue;
        if (from != unpacked)
            unpack_head(kv, x, dq_kv_codes_of(kv, from, side, h), bits, side, 0, DQ_PAGE_TOKENS);
        unpacked = from;
        move_codes(kv, to, i, y, from, at, x, side, h);
        if (to->begins >> i & 1)
            dq_cpu_kv_sets_move(kv, to, dq_kv_sets(to, i), from, dq_kv_sets(from, at + 1) - 1,
                                group, side, h);
    }
    if (to->part[side].codes)
        pack_head(kv, dq_kv_codes_of(kv, to, side, h), y, bits, side, 0, DQ_PAGE_TOKENS);
}

void dq_cpu_kv_page_move(const dq_kv *kv, dq_kv_page *to, int group, const dq_kv_list *from,
                         const int32_t *kept, int64_t n, float *scratch)
{
    for (int side = DQ_K; side <= DQ_V; side++) {
        for (int h = 0; h < kv->heads[group]; h++)
            move_head(kv, to, group, from, kept, n, side, h, scratch);
    }
}
