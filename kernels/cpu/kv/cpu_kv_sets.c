/* cpu_kv_sets: codes of the KV cache with a low (kv.h): what a set of tokens has for each channel is made, moved and read;
 * runs of channels of one token are made.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/kv/cpu_kv.h"
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

static float get_number(const dq_kv_part *part, int64_t i)
{
    if (part->wide) return ((const float *)part->scale)[i];
    return dq_f32_from_f16(((const uint16_t *)part->scale)[i]);
}

static void put_number(dq_kv_part *part, int64_t i, float x)
{
    if (part->wide)
        ((float *)part->scale)[i] = x;
    else
        ((uint16_t *)part->scale)[i] = dq_f16_from_f32(x);
}

/* How the values of one channel become codes. */
typedef struct channel {
    float step, low;
    bool overflow; /* f16 does not hold both */
} channel;

/* Whether with this low all values from `least` to `largest` are within half a step of what their codes say; without a step:
 * are alike and the low. */
static bool covers(channel c, float low, float least, float largest, int bits, bool dithers)
{
    const float room = dithers ? 0.0f : 0.5f; /* dithering moves half a step either way */
    if (c.step == 0.0f) return low == least;
    return least - low >= -room * c.step &&
           largest - low <= ((float)((1 << bits) - 1) + room) * c.step;
}

/* As stored, rounded to f16 where that does no harm. Values that are not finite, or so far apart, make both NaN, which then
 * reaches everything that reads the set. */
static channel channel_of(const dq_simd *simd, const float *x, int64_t n, int bits, bool dithers)
{
    float least = x[0], largest = x[0];
    const channel bad = {NAN, NAN, false};
    if (!isfinite(simd->absmax(x, n))) return bad;
#pragma omp simd reduction(min : least) reduction(max : largest)
    for (int64_t i = 0; i < n; i++) {
        least = x[i] < least ? x[i] : least;
        largest = x[i] > largest ? x[i] : largest;
    }
    channel c = {.step = (largest - least) / (float)((1 << bits) - (dithers ? 2 : 1))};
    if (!isfinite(c.step)) return bad;
    const float half = dq_quant_stored_scale(c.step, DQ_F16);
    const bool holds = c.step == 0.0f || (half >= 0x1p-14f && half < INFINITY);
    if (holds) c.step = half;
    c.low = dithers ? least - c.step / 2 : least;
    const float low = dq_f32_from_f16(dq_f16_from_f32(c.low));
    const bool low_holds = covers(c, low, least, largest, bits, dithers);
    if (low_holds) c.low = low;
    c.overflow = !holds || !low_holds;
    return c;
}

/* u[n], d: what is added before rounding. */
static void encode_channel(float *u, const float *x, const float *d, int64_t n, int bits, channel c)
{
    const float top = (float)((1 << bits) - 1), magic = 12582912.0f; /* rounds below 2^22 */
    if (!(c.step > 0.0f)) {                                          /* all alike, or NaN */
        memset(u, 0, (size_t)n * sizeof *u);
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float v = (x[i] - c.low) / c.step + d[i];
        v = v > 0.0f ? v : 0.0f;
        v = v < top ? v : top;
        u[i] = v + magic - magic;
    }
}

static const float none[DQ_PAGE_TOKENS] = {0};

const float *dq_cpu_kv_sets_dither(const dq_kv *kv, const dq_kv_page *p, float *own)
{
    if (!dq_kv_dithers(&kv->spec) || dq_kv_bits_of(kv, p, DQ_V, 0) < 4) return none;
    const int64_t last = p->coded > p->due ? p->coded : p->due;
    if (p->pos[p->n_sinks] % DQ_PAGE_TOKENS == p->n_sinks &&
        p->pos[last - 1] - p->pos[p->n_sinks] == last - 1 - p->n_sinks)
        return kv->dither;
    for (int64_t i = 0; i < DQ_PAGE_TOKENS; i++)
        own[i] = i < last ? kv->dither[p->pos[i] % DQ_PAGE_TOKENS] : 0.0f;
    return own;
}

/* One set of one head, slots first .. end-1; rows: their channels, a line of DQ_PAGE_TOKENS each. */
static bool encode_set(const dq_simd *simd, const dq_kv *kv, const dq_kv_job *job, int side, int h,
                       int8_t *q, const float *rows, const float *d, int64_t first, int64_t end)
{
    dq_kv_part *part = &job->page->part[side];
    const int bits = dq_kv_bits_of(kv, job->page, side, h), half = 1 << (bits - 1);
    const int set = dq_kv_sets(job->page, first + 1) - 1;
    const bool dithers = side == DQ_V && dq_kv_dithers(&kv->spec) && bits >= 4;
    const int64_t dim = kv->map->head_dim, at = dq_kv_set_at(kv, job->group, side, set, h);
    for (int64_t c = 0; c < dim; c++) {
        float u[DQ_PAGE_TOKENS];
        const float *x = rows + c * DQ_PAGE_TOKENS + first;
        const channel k = channel_of(simd, x, end - first, bits, dithers);
        if (k.overflow && !part->wide) return false;
        put_number(part, at + c, k.step);
        put_number(part, at + dim + c, k.low);
        encode_channel(u, x, d + first, end - first, bits, k);
        for (int64_t i = first; i < end; i++)
            q[side == DQ_K ? c * DQ_PAGE_TOKENS + i : i * kv->v_cols + c] =
                (int8_t)((int)u[i - first] - half);
    }
    return true;
}

bool dq_cpu_kv_run_encode(const dq_simd *simd, int8_t *q, float *step, float *low, const float *x,
                          int64_t n, int bits)
{
    const channel k = channel_of(simd, x, n, bits, false);
    for (int64_t i = 0; i < n; i += DQ_PAGE_TOKENS) {
        float u[DQ_PAGE_TOKENS];
        const int64_t m = n - i < DQ_PAGE_TOKENS ? n - i : DQ_PAGE_TOKENS;
        encode_channel(u, x + i, none, m, bits, k);
        for (int64_t c = 0; c < m; c++) q[i + c] = (int8_t)((int)u[c] - (1 << (bits - 1)));
    }
    *step = k.step;
    *low = k.low;
    return k.overflow;
}

bool dq_cpu_kv_sets_encode(const dq_simd *simd, const dq_kv *kv, const dq_kv_job *job, int side,
                           int h, int8_t *q, const float *plain, float *rows)
{
    const dq_kv_page *p = job->page;
    float own[DQ_PAGE_TOKENS];
    const float *d = side == DQ_V ? dq_cpu_kv_sets_dither(kv, p, own) : none;
    if (side == DQ_V) {
        simd->transpose(rows, DQ_PAGE_TOKENS, plain, kv->v_cols, p->due, kv->map->head_dim);
        for (int64_t i = p->coded; i < p->due; i++) /* what stands in the padding is no value */
            memset(q + i * kv->v_cols, -(1 << (dq_kv_bits_of(kv, p, side, h) - 1)),
                   (size_t)kv->v_cols);
    }
    for (int64_t i = p->coded, end; i < p->due; i = end) {
        end = dq_kv_set_end(p, i, p->due);
        if (!encode_set(simd, kv, job, side, h, q, side == DQ_V ? rows : plain, d, i, end))
            return false;
    }
    return true;
}

void dq_cpu_kv_sets_read(const dq_simd *simd, const dq_kv *kv, const dq_kv_page *p, int group,
                         int side, int h, int n, float *out)
{
    const dq_kv_part *part = &p->part[side];
    const int64_t dim = kv->map->head_dim;
    for (int i = 0; i < 2 * n; i++, out += kv->v_cols) {
        const int64_t at = dq_kv_set_at(kv, group, side, i / 2, h) + i % 2 * dim;
        if (part->wide)
            memcpy(out, (const float *)part->scale + at, (size_t)dim * sizeof *out);
        else
            simd->widen(out, (const uint16_t *)part->scale + at, DQ_F16, dim);
        memset(out + dim, 0, (size_t)(kv->v_cols - dim) * sizeof *out);
    }
}

void dq_cpu_kv_sets_move(const dq_kv *kv, dq_kv_page *to, int set, const dq_kv_page *from,
                         int from_set, int group, int side, int h)
{
    const int64_t at = dq_kv_set_at(kv, group, side, set, h);
    const int64_t was = dq_kv_set_at(kv, group, side, from_set, h);
    for (int64_t i = 0; i < kv->form[side].set_scales; i++)
        put_number(&to->part[side], at + i, get_number(&from->part[side], was + i));
}
