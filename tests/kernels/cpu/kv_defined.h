/* kv_defined: products with codes of the KV cache in integers, by the definitions in docs/math/numbers.md and in plain loops.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_DEFINED_H
#define DQ_KV_DEFINED_H

#include "kernels/cpu/kv/cpu_kv.h"
#include "tests/rigs/kv_stage.h"

/* Sum of a b in 16 lanes, value i in lane i mod 16. */
static float lanes(const float *a, const float *b, int64_t n)
{
    float lane[16] = {0};
    for (int64_t i = 0; i < n; i++) lane[i % 16] += a[i] * b[i];
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    }
    return lane[0];
}

/* q . k of one token with per-channel codes, whose steps and lows are number[2 * dim], by the definition. */
static float set_score_of(const float *q, const int8_t *code, const float *number, int64_t dim,
                          int bits)
{
    float middle[128] = {0}, max = 0;
    int64_t sum = 0;
    for (int64_t c = 0; c < dim; c++) {
        middle[c] = number[dim + c] + (float)(1 << (bits - 1)) * number[c];
        max = fmaxf(max, fabsf(q[c] * number[c]));
    }
    for (int64_t c = 0; c < dim && max >= 0x1p-100f; c++)
        sum += (int64_t)rintf(q[c] * number[c] * (127.0f / max)) * code[c];
    const float base = lanes(q, middle, dim);
    return max >= 0x1p-100f ? (float)sum * (max / 127.0f) + base : base;
}

/* q . k of one coded token, by the definition. */
static float score_of(const stage *s, const dq_kv_list *list, int64_t token, int key,
                      const float *q)
{
    int8_t code[256];
    float scale[256], total = 0;
    const int64_t d = s->map.head_dim, group = s->kv->form[DQ_K].group;
    const int bits =
        dq_kv_bits_of(s->kv, list->page[token / DQ_PAGE_TOKENS], DQ_K, s->kv->slot[key]);
    dq_cpu_kv_token_codes(s->kv, list, token, key, DQ_K, code, scale);
    if (s->kv->form[DQ_K].set_scales) return set_score_of(q, code, scale, d, bits);
    for (int64_t g = 0; g * group < d; g++) {
        float max = 0;
        int64_t sum = 0;
        const int64_t end = (g + 1) * group < d ? (g + 1) * group : d;
        for (int64_t c = g * group; c < end; c++) max = fmaxf(max, fabsf(q[c]));
        const float by = max / 127.0f;
        for (int64_t c = g * group; c < end && by > 0; c++)
            sum += (int64_t)rintf(q[c] / by) * code[c];
        const float x = (float)sum * (by * scale[g]);
        total = g == 0 ? x : total + x;
    }
    return total;
}

/* What one set adds, slots first .. end-1 of a page, by the definition. */
static void add_set(const stage *s, const dq_kv_list *list, int64_t page, int head, const float *d,
                    int64_t first, int64_t end, float *y)
{
    static int8_t code[DQ_PAGE_TOKENS][256];
    static const float half[] = {0, 1, 2, 4, 8, 16, 32, 64, 128};
    const int64_t dim = s->map.head_dim;
    float number[256], own[DQ_PAGE_TOKENS] = {0}, one[DQ_PAGE_TOKENS], dither[DQ_PAGE_TOKENS];
    float max = 0;
    for (int64_t t = 0; t < DQ_PAGE_TOKENS; t++) {
        const int64_t i = page * DQ_PAGE_TOKENS + t;
        one[t] = 1;
        dither[t] = 0;
        if (t < first || t >= end) continue;
        dq_cpu_kv_token_codes(s->kv, list, i, head, DQ_V, code[t], number);
        if (dq_kv_dithers(&s->spec)) dither[t] = dq_kv_dither(dq_kv_pos(list, i));
        own[t] = d[t];
        max = fmaxf(max, fabsf(d[t]));
    }
    const bool some = max >= 0x1p-100f;
    const float less = lanes(own, dither, DQ_PAGE_TOKENS), base = lanes(own, one, DQ_PAGE_TOKENS);
    for (int64_t c = 0; c < dim; c++) {
        int64_t sum = 0;
        const float middle = number[dim + c] + half[s->spec.v_bits] * number[c];
        for (int64_t t = first; t < end && some; t++)
            sum += (int64_t)rintf(own[t] * (32512.0f / max)) * code[t][c];
        const float x = (float)sum * (some ? max / 32512.0f : 0.0f) - less;
        y[c] += x * number[c] + middle * base;
    }
}

/* What slots first .. end-1 of a page add to y[head_dim], by the definition. */
static void values_of(const stage *s, const dq_kv_list *list, int64_t page, int head,
                      const float *d, int64_t first, int64_t end, float *y)
{
    static int8_t code[DQ_PAGE_TOKENS][256];
    static float scale[DQ_PAGE_TOKENS][256];
    const int64_t dim = s->map.head_dim, group = s->kv->form[DQ_V].group;
    const bool sets = s->kv->form[DQ_V].set_scales != 0;
    for (int64_t t = first, set; sets && t < end; t = set) {
        set = dq_kv_set_end(list->page[page], t, end);
        add_set(s, list, page, head, d, t, set, y);
    }
    if (sets) return;
    for (int64_t t = first; t < end; t++)
        dq_cpu_kv_token_codes(s->kv, list, page * DQ_PAGE_TOKENS + t, head, DQ_V, code[t],
                              scale[t]);
    for (int64_t c = 0; c < dim; c++) {
        float max = 0;
        int64_t sum = 0;
        for (int64_t t = first; t < end; t++) max = fmaxf(max, fabsf(d[t] * scale[t][c / group]));
        if (max < 0x1p-100f) continue;
        for (int64_t t = first; t < end; t++)
            sum += (int64_t)rintf(d[t] * scale[t][c / group] * (32512.0f / max)) * code[t][c];
        y[c] += (float)sum * (max / 32512.0f);
    }
    const int bits = dq_kv_bits_of(s->kv, list->page[page], DQ_V, s->kv->slot[head]);
    const int64_t runs = dq_kv_runs(&s->kv->form[DQ_V]);
    for (int64_t g = 0; s->kv->form[DQ_V].has_lows && g < runs; g++) {
        float middle[DQ_PAGE_TOKENS] = {0};
        for (int64_t t = first; t < end; t++)
            middle[t] = (float)(1 << (bits - 1)) * scale[t][g] + scale[t][runs + g];
        const float more = lanes(d + first, middle + first, end - first);
        for (int64_t c = g * group; c < dim && c < (g + 1) * group; c++) y[c] += more;
    }
}

#endif
