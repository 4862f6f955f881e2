/* pages_loops: attention on packed KV pages in integers, see simd.h. Compiled once per instruction set, which first
 * defines
 *   pages_quads: four lines' codes of one chunk of 64 columns (NULL: zeros) as one part of a block,
 *   pages_dots: sum[i * 64 + c] = sum over kk < k of a[c / 16][i * lda + kk] * u(kk, c) from k / 4 parts,
 *   pages_line_dots: the same sums straight from lines; false: that is left to a block,
 *   pages_times: e = d * by, 64 each, and the largest |e|, where a NaN counts as more than everything,
 *   pages_split: c = rint(e * r), ties to even, as 256 * high + low in [-128, 128); the sum of all c,
 *   pages_few_keys, pages_few_values: all of key_scores, or of value_sums, for few rows; false: not of this page,
 *   sets_few_keys, sets_few_values: the same of set_scores and set_sums, where sets_few says so
 * (pages_portable.h has all but the first two for instruction sets that leave them to the compiler) and chooses the order of columns inside a part.
 *
 * A part holds four rows of codes for 64 columns, so that the four bytes of a word belong to one column:
 * what instructions that multiply bytes and add up words want. Keys lie as channels of 64 slots, values
 * as slots of channels; the same functions serve both.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PAGES_LOOPS_H
#define DQ_PAGES_LOOPS_H

#include "kernels/cpu/simd.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { PART = 256, KEY_ROWS = 8 };

/* Pages lie all over memory, and hardware does not fetch ahead from one to the next. */
DQ_KV_INLINE void pages_fetch(const uint8_t *next, int64_t from, int64_t bytes)
{
    for (int64_t i = from; next && i < from + bytes; i += 64) DQ_KV_FETCH(next + i);
}

DQ_KV_INLINE void pages_keys(uint8_t *block, const uint8_t *codes, const uint8_t *next, int bits,
                             int64_t dim, int64_t group)
{
    for (int64_t c = 0; c < dim;) {
        const int64_t end = pages_min(c + group, dim);
        for (; c < end; c += 4, block += PART) {
            const uint8_t *line[4];
            pages_fetch(next, c * 8 * bits, 32 * bits);
            for (int64_t i = 0; i < 4; i++)
                line[i] = c + i < end ? codes + (c + i) * 8 * bits : NULL;
            pages_quads(block, line, bits, SLOTS, 0);
        }
        c = end;
    }
}

static void pages_key_block(uint8_t *block, const uint8_t *codes, const uint8_t *next, int bits,
                            int64_t dim, int64_t group)
{
    switch (bits) { /* a constant each: unpacking then has no branches */
    case 8: pages_keys(block, codes, next, 8, dim, group); break;
    case 6: pages_keys(block, codes, next, 6, dim, group); break;
    case 5: pages_keys(block, codes, next, 5, dim, group); break;
    case 4: pages_keys(block, codes, next, 4, dim, group); break;
    case 3: pages_keys(block, codes, next, 3, dim, group); break;
    default: pages_keys(block, codes, next, 2, dim, group); break;
    }
}

/* Chunks of 64 columns one after the other, 16 parts each. What quads get to know of a line are constants
 * wherever that can be: shifts and masks are then ready. */
DQ_KV_INLINE void pages_values(uint8_t *block, const uint8_t *codes, const uint8_t *next, int bits,
                               int64_t cols)
{
    for (int64_t t = 0; t < SLOTS; t += 4) {
        pages_fetch(next, t * cols * bits / 8, cols * bits / 2);
        for (int64_t c = 0; c < cols; c += DQ_KV_LINE) {
            const int64_t n = pages_min(cols - c, DQ_KV_LINE);
            const uint8_t *line[4];
            uint8_t *to = block + (c / 64 * 16 + t / 4) * PART;
            for (int64_t i = 0; i < 4; i++) line[i] = codes + ((t + i) * cols + c) * bits / 8;
            if (n == 128) {
                pages_quads(to, line, bits, 128, 0);
                pages_quads(to + 16 * PART, line, bits, 128, 1);
            } else if (n == 64) {
                pages_quads(to, line, bits, 64, 0);
            } else {
                pages_quads(to, line, bits, n, 0);
                if (n > 64) pages_quads(to + 16 * PART, line, bits, n, 1);
            }
        }
    }
}

static void pages_value_block(uint8_t *block, const uint8_t *codes, const uint8_t *next, int bits,
                              int64_t cols)
{
    switch (bits) {
    case 8: pages_values(block, codes, next, 8, cols); break;
    case 6: pages_values(block, codes, next, 6, cols); break;
    case 5: pages_values(block, codes, next, 5, cols); break;
    case 4: pages_values(block, codes, next, 4, cols); break;
    case 3: pages_values(block, codes, next, 3, cols); break;
    default: pages_values(block, codes, next, 2, cols); break;
    }
}

/* One run of channels of one row: total (+)= (sum - shift) * (query scale * key scale). */
static inline void pages_add_run(float *restrict total, const int32_t *restrict sum, int32_t shift,
                                 float query, const float *restrict key, bool first)
{
    if (first) {
#pragma omp simd
        for (int t = 0; t < SLOTS; t++) total[t] = (float)(sum[t] - shift) * (query * key[t]);
    } else {
#pragma omp simd
        for (int t = 0; t < SLOTS; t++) total[t] += (float)(sum[t] - shift) * (query * key[t]);
    }
}

/* Channels first .. first+n-1. */
static inline bool pages_key_lines(int32_t *sum, const int8_t *const a[4], int64_t lda,
                                   const uint8_t *codes, const uint8_t *next, int bits,
                                   int64_t first, int64_t n, int64_t m)
{
    const int64_t stride = SLOTS / 8 * bits, at = first * stride;
    const pages_lines l = {.codes = codes + at,
                           .next = next ? next + at : NULL,
                           .bits = bits,
                           .cols = SLOTS,
                           .stride = stride,
                           .n = n};
    return pages_line_dots(sum, a, lda, &l, m);
}

static void pages_key_scores(float *s, int64_t lds, const dq_simd_int8_rows *q, int64_t m,
                             const dq_simd_int8_page *p)
{
    const int32_t half = 1 << (p->bits - 1);
    int32_t sum[KEY_ROWS * SLOTS];
    float total[KEY_ROWS * SLOTS];
    if (pages_few_keys(s, lds, q, m, p)) return;
    const bool whole = p->first == 0 && p->end == SLOTS;
    bool made = !p->codes;
    for (int64_t r0 = 0; r0 < m; r0 += KEY_ROWS) {
        const int64_t rows = pages_min(m - r0, KEY_ROWS);
        const int8_t *code = q->code + r0 * q->ld;
        const uint8_t *block = p->block;
        const int64_t ld = whole ? lds : SLOTS;
        float *to = whole ? s + r0 * lds : total;
        for (int64_t g = 0; g < p->n; g++) {
            const int64_t first = g * p->group, n = pages_min(p->group, p->dim - first);
            const int64_t k = (n + 3) / 4 * 4;
            const int8_t *const a[4] = {code, code, code, code};
            if (made ||
                !pages_key_lines(sum, a, q->ld, p->codes, p->next, p->bits, first, n, rows)) {
                if (!made) pages_key_block(p->block, p->codes, p->next, p->bits, p->dim, p->group);
                made = true;
                pages_dots(sum, a, q->ld, block, rows, k);
            }
            for (int64_t r = 0; r < rows; r++) {
                const int64_t at = (r0 + r) * p->n + g;
                pages_add_run(to + r * ld, sum + r * SLOTS, half * q->sum[at], q->scale[at],
                              p->scale + g * SLOTS, g == 0);
            }
            code += k;
            block += k * 64;
        }
        for (int64_t r = 0; r < rows && !whole; r++)
            memcpy(s + (r0 + r) * lds + p->first, total + r * SLOTS + p->first,
                   (size_t)(p->end - p->first) * sizeof *s);
    }
}

/* D times one run's scales, in 16 bits: high bytes high[64], low bytes after them. */
static inline void pages_round(int8_t *restrict high, float *restrict scale, int32_t *restrict sum,
                               const float *restrict d, const float *restrict factor)
{
    float e[SLOTS];
    const float peak = pages_times(e, d, factor);
    if (!(peak <= FLT_MAX) || peak < 0x1p-100f) {
        *sum = 0;
        *scale = peak <= FLT_MAX ? 0.0f : NAN;
        memset(high, 0, 2 * SLOTS);
        return;
    }
    *scale = peak / 32512.0f; /* 127 * 256: both bytes are signed */
    *sum = pages_split(high, e, 32512.0f / peak);
}

/* y[n] += what one run of channels adds to columns that share a scale. */
static inline void pages_add_values(float *restrict y, const int32_t *restrict high,
                                    const int32_t *restrict low, int64_t n, int32_t shift,
                                    float scale)
{
#pragma omp simd
    for (int64_t c = 0; c < n; c++) y[c] += (float)(high[c] * 256 + low[c] - shift) * scale;
}

/* What value_sums keeps of the rows it works on: codes [n][2 * rows][64]. */
typedef struct pages_rows {
    int8_t *code;
    float *scale; /* [n][rows] */
    int32_t *sum;
    int64_t rows;
} pages_rows;

/* Slots first .. first+n-1 of 64 columns from c on. */
static inline bool pages_value_lines(int32_t *sum, const int8_t *const a[4], const uint8_t *codes,
                                     const uint8_t *next, int bits, int64_t dim, int64_t c,
                                     int64_t first, int64_t n, int64_t m)
{
    const int64_t cols = (dim + 15) / 16 * 16, line = c / DQ_KV_LINE * DQ_KV_LINE;
    const int64_t stride = cols * bits / 8, at = first * stride + line * bits / 8;
    const pages_lines l = {.codes = codes + at,
                           .next = next && line == 0 ? next + first * stride : NULL,
                           .bits = bits,
                           .cols = pages_min(cols - line, DQ_KV_LINE),
                           .chunk = (c - line) / 64,
                           .stride = stride,
                           .n = n};
    return pages_line_dots(sum, a, SLOTS, &l, m);
}

/* 64 columns from c on. Columns of several runs take one product where runs begin at lanes of 16. */
static inline void pages_chunk(float *y, int64_t ldy, const pages_rows *w, int64_t m,
                               const dq_simd_int8_page *p, bool *made, int64_t c)
{
    const int64_t run = 2 * w->rows * SLOTS;
    const bool lanes = p->n == 1 || p->group % 16 == 0;
    const int32_t half = 1 << (p->bits - 1);
    const uint8_t *block = p->block + c * 64;
    const int8_t *a[4];
    int32_t sum[2 * 8 * 64];
    for (int64_t i = 0; i < 4; i++)
        a[i] = w->code + pages_min((c + 16 * i) / p->group, p->n - 1) * run;

    const bool done =
        !*made && lanes &&
        pages_value_lines(sum, a, p->codes, p->next, p->bits, p->dim, c, 0, SLOTS, 2 * m);
    if (!*made && !done) {
        pages_value_block(p->block, p->codes, p->next, p->bits, (p->dim + 15) / 16 * 16);
        *made = true;
    }
    if (lanes && !done) pages_dots(sum, a, SLOTS, block, 2 * m, SLOTS);
    for (int64_t g = c / p->group; g < p->n && g * p->group < c + 64; g++) {
        const int64_t from = g * p->group > c ? g * p->group - c : 0;
        const int64_t end = pages_min(pages_min((g + 1) * p->group, p->dim) - c, 64);
        if (!lanes && !done) {
            for (int i = 0; i < 4; i++) a[i] = w->code + g * run;
            pages_dots(sum, a, SLOTS, block, 2 * m, SLOTS);
        }
        for (int64_t r = 0; r < m; r++) {
            const int32_t *high = sum + 2 * r * 64 + from;
            const int64_t at = g * w->rows + r;
            pages_add_values(y + r * ldy + c + from, high, high + 64, end - from, half * w->sum[at],
                             w->scale[at]);
        }
    }
}

static void pages_code_sums(float *y, int64_t ldy, const float *d, int64_t ldd, int64_t m,
                            const dq_simd_int8_page *p, void *work)
{
    pages_rows w = {.rows = dq_simd_int8_value_rows(p->n)};
    if (pages_few_values(y, ldy, d, ldd, m, p, work)) return;
    w.code = work;
    w.scale = (float *)(void *)(w.code + p->n * w.rows * 2 * SLOTS);
    w.sum = (int32_t *)(void *)(w.scale + p->n * w.rows);
    bool made = !p->codes;
    for (int64_t r0 = 0; r0 < m; r0 += w.rows) {
        const int64_t rows = pages_min(m - r0, w.rows);
        for (int64_t r = 0; r < rows; r++) {
            const float *row = d + (r0 + r) * ldd;
            float own[SLOTS];
            if (p->first > 0 ||
                p->end < SLOTS) { /* what stands elsewhere in the row is not coded */
                memset(own, 0, sizeof own);
                memcpy(own + p->first, row + p->first, (size_t)(p->end - p->first) * sizeof *d);
                row = own;
            }
            for (int64_t g = 0; g < p->n; g++)
                pages_round(w.code + (g * w.rows + r) * 2 * SLOTS, w.scale + g * w.rows + r,
                            w.sum + g * w.rows + r, row, p->scale + g * SLOTS);
        }
        for (int64_t c = 0; c < p->dim; c += 64)
            pages_chunk(y + r0 * ldy, ldy, &w, rows, p, &made, c);
    }
}

#include "kernels/cpu/isa/pages_sets.h"

static void pages_value_sums(float *y, int64_t ldy, const float *d, int64_t ldd, int64_t m,
                             const dq_simd_int8_page *p, void *work)
{
    pages_code_sums(y, ldy, d, ldd, m, p, work);
    for (int64_t i = 0; p->middle && i < m * p->n; i++) {
        const int64_t r = i / p->n, g = i % p->n, n = pages_min(p->dim - g * p->group, p->group);
        const float more =
            set_dot(d + r * ldd + p->first, p->middle + g * SLOTS + p->first, p->end - p->first);
        float *restrict to = y + r * ldy + g * p->group;
#pragma omp simd
        for (int64_t c = 0; c < n; c++) to[c] += more;
    }
}

#define DQ_PAGES_TABLE                                                                             \
    {                                                                                              \
        .key_block = pages_key_block, .value_block = pages_value_block,                            \
        .key_scores = pages_key_scores, .value_sums = pages_value_sums, .set_scores = set_scores,  \
        .few_of_set = sets_few, .set_sums = set_sums                                               \
    }

#endif
