/* pages: attention on packed KV pages in integers (simd.h); each instruction set defines
 *   pages_quads: four lines' codes of one chunk of 64 columns (NULL: zeros) as a quad of a block,
 *   pages_dots: sum[i * 64 + c] = sum over kk < k of a[c / 16][i * lda + kk] * u(kk, c) from quads,
 *   pages_line_dots: the same sums straight from lines; false: that is left to a block,
 *   pages_times: e = d * by, 64 each, and the largest |e|, where a NaN counts as the largest,
 *   pages_split: c = rint(e * r), ties to even, as 256 * high + low in [-128, 128); the sum of c,
 *   pages_few_keys, pages_few_values: key_scores or value_sums of few rows; false: not these,
 *   sets_few_keys, sets_few_values: the same of set_scores and set_sums, where sets_few says so
 * (without PAGES_WHOLE all but the first two are below), and the order of a quad's columns.
 *
 * A quad holds four rows of codes for 64 columns, so that the four bytes of a word belong to one
 * column. Keys lie as channels of 64 slots, values as slots of channels.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PAGES_H
#define DQ_PAGES_H

#include "kernels/cpu/isa/kv_lines.h"
#include "kernels/cpu/simd.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#ifndef PAGES_WHOLE
/* A block is as good. */
static inline bool pages_line_dots(int32_t *sum, const int8_t *const a[4], int64_t lda,
                                   const pages_lines *l, int64_t m)
{
    (void)sum, (void)a, (void)lda, (void)l, (void)m;
    return false;
}

#define pages_few_keys(s, lds, q, m, p)              false
#define pages_few_values(y, ldy, d, ldd, m, p, work) false
#define sets_few_keys(s, lds, q, ldq, m, p, work)    false
#define sets_few_values(y, ldy, d, ldd, m, p, work)  false
static bool sets_few(const dq_simd_set_page *p, int64_t m)
{
    (void)p, (void)m;
    return false;
}

static inline float pages_times(float *restrict e, const float *restrict d,
                                const float *restrict factor)
{
    int32_t bits[64], max = 0;
    float peak;
#pragma omp simd
    for (int t = 0; t < 64; t++) e[t] = d[t] * factor[t];
    memcpy(bits, e, sizeof bits);
#pragma omp simd reduction(max : max)
    for (int t = 0; t < 64; t++) {
        const int32_t x = bits[t] & 0x7fffffff;
        max = x > max ? x : max;
    }
    memcpy(&peak, &max, sizeof peak);
    return peak;
}

static inline int32_t pages_split(int8_t *restrict high, const float *restrict e, float r)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to integers */
    int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int t = 0; t < 64; t++) {
        const int32_t c = (int32_t)(e[t] * r + magic - magic);
        const int32_t low = ((c + 128) & 255) - 128;
        high[t] = (int8_t)((c - low) / 256);
        high[64 + t] = (int8_t)low;
        sum += c;
    }
    return sum;
}
#endif

enum { PART = 256, KEY_ROWS = 8 };

/* Pages lie all over memory, and hardware does not fetch ahead from one to the next. */
INLINE void pages_fetch(const uint8_t *next, int64_t from, int64_t bytes)
{
    for (int64_t i = from; next && i < from + bytes; i += 64) DQ_KV_FETCH(next + i);
}

INLINE void pages_keys(uint8_t *block, const uint8_t *codes, const uint8_t *next, int bits,
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
                            int64_t dim, int64_t group){
    WITH_BITS(bits, pages_keys(block, codes, next, BITS, dim, group)) /* has no branches */
}

/* Chunks of 64 columns follow each other, 16 quads each; shifts and masks are constants. */
INLINE void pages_values(uint8_t *block, const uint8_t *codes, const uint8_t *next, int bits,
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
    WITH_BITS(bits, pages_values(block, codes, next, BITS, cols))
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

/* 64 columns from c on; those of several runs share a product where runs begin at lanes of 16. */
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

/* ---- sets */

/* Per-channel codes: what a channel's step and low mean leaves the loop over tokens. */
enum { SET_ROWS = 8, SET_LANES = 16 };

/* What a set's rows become: codes [SET_ROWS][ld], a scale, their sum, and what is added to all. */
typedef struct set_rows {
    float *scale, *base, *shared; /* keys: base; values: sums of D and of D times dither */
    int32_t *sum;
    float *e; /* one row */
    int8_t *code;
} set_rows;

static inline set_rows set_rows_at(void *work, int64_t dim)
{
    const int64_t cols = (dim + 63) / 64 * 64;
    set_rows w = {.scale = work};
    w.base = w.scale + SET_ROWS;
    w.shared = w.base + SET_ROWS;
    w.sum = (int32_t *)(void *)(w.shared + SET_ROWS);
    w.e = w.shared + 2 * SET_ROWS;
    w.code = (int8_t *)(w.e + cols);
    return w;
}

/* The sum of a b, value i in lane i mod 16. */
static inline float set_dot(const float *restrict a, const float *restrict b, int64_t n)
{
    float lane[SET_LANES] = {0};
    const int64_t whole = n / SET_LANES * SET_LANES;
    for (int64_t c = 0; c < whole; c += SET_LANES) {
#pragma omp simd
        for (int i = 0; i < SET_LANES; i++) lane[i] += a[c + i] * b[c + i];
    }
    for (int64_t c = whole; c < n; c++) lane[c - whole] += a[c] * b[c];
    for (int half = SET_LANES / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    }
    return lane[0];
}

/* e = q step; the largest |e|, where a NaN counts as more than everything. */
static inline float set_times(float *restrict e, const float *restrict q,
                              const float *restrict step, int64_t n)
{
    int32_t max = 0;
    float peak;
#pragma omp simd
    for (int64_t c = 0; c < n; c++) e[c] = q[c] * step[c];
#pragma omp simd reduction(max : max)
    for (int64_t c = 0; c < n; c++) {
        int32_t x;
        memcpy(&x, e + c, sizeof x);
        x &= 0x7fffffff;
        max = x > max ? x : max;
    }
    memcpy(&peak, &max, sizeof peak);
    return peak;
}

/* One query row: its codes and what goes with them. */
static inline void set_query(const set_rows *w, int64_t r, const float *q, const float *step,
                             const float *middle, int64_t dim, int64_t ld)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to integers */
    int8_t *restrict code = w->code + r * ld;
    const float *restrict e = w->e;
    const float peak = set_times(w->e, q, step, dim);
    int32_t sum = 0;
    w->base[r] = set_dot(q, middle, dim);
    w->scale[r] = peak <= FLT_MAX ? 0.0f : NAN;
    w->sum[r] = 0;
    memset(code, 0, (size_t)ld);
    if (!(peak <= FLT_MAX) || peak < 0x1p-100f) return;
    const float by = 127.0f / peak;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < dim; c++) {
        const int32_t x = (int32_t)(e[c] * by + magic - magic);
        code[c] = (int8_t)x;
        sum += x;
    }
    w->scale[r] = peak / 127.0f;
    w->sum[r] = sum;
}

/* Slots of a set. */
static inline int64_t set_end(const dq_simd_set_page *p, int64_t slot)
{
    do slot++;
    while (slot < p->end && !(p->begins >> slot & 1));
    return slot;
}

static void set_scores(float *s, int64_t lds, const float *q, int64_t ldq, int64_t m,
                       const dq_simd_set_page *p, void *work)
{
    const set_rows w = set_rows_at(work, p->dim);
    const int64_t ld = (p->dim + 3) / 4 * 4;
    const int32_t half = 1 << (p->bits - 1);
    int32_t sum[SET_ROWS * SLOTS];
    bool made = !p->codes;
    if (sets_few_keys(s, lds, q, ldq, m, p, work)) return;
    for (int64_t r0 = 0; r0 < m; r0 += SET_ROWS) {
        const int64_t rows = pages_min(m - r0, SET_ROWS);
        const int8_t *const a[4] = {w.code, w.code, w.code, w.code};
        const float *step = p->sets;
        for (int64_t t = p->first; t < p->end; step += 2 * p->cols) {
            const int64_t end = set_end(p, t);
            for (int64_t r = 0; r < rows; r++)
                set_query(&w, r, q + (r0 + r) * ldq, step, step + p->cols, p->dim, ld);
            if (made || !pages_key_lines(sum, a, ld, p->codes, p->next, p->bits, 0, p->dim, rows)) {
                if (!made) pages_key_block(p->block, p->codes, p->next, p->bits, p->dim, p->dim);
                made = true;
                pages_dots(sum, a, ld, p->block, rows, ld);
            }
            for (int64_t r = 0; r < rows; r++) {
                float *restrict to = s + (r0 + r) * lds;
                const int32_t *restrict from = sum + r * SLOTS;
                const int32_t shift = half * w.sum[r];
                const float scale = w.scale[r], base = w.base[r];
#pragma omp simd
                for (int64_t i = t; i < end; i++) to[i] = (float)(from[i] - shift) * scale + base;
            }
            t = end;
        }
    }
}

/* D of one row and set in 16 bits: two rows of codes. */
static inline void set_weights(const set_rows *w, int64_t r, const float *d,
                               const dq_simd_set_page *p, int64_t first, int64_t end)
{
    static const float one[SLOTS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                     1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                     1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                     1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    float own[SLOTS] = {0}; /* what stands elsewhere in the row is not of this set */
    memcpy(own + first, d + first, (size_t)(end - first) * sizeof *d);
    pages_round(w->code + r * 2 * SLOTS, w->scale + r, w->sum + r, own, one);
    w->base[r] = set_dot(own, one, SLOTS);
    w->shared[r] = set_dot(own, p->dither, SLOTS);
}

static inline void set_add(float *restrict y, const int32_t *restrict high,
                           const int32_t *restrict low, const float *restrict step,
                           const float *restrict middle, int64_t n, int32_t shift, float scale,
                           float less, float base)
{
#pragma omp simd
    for (int64_t c = 0; c < n; c++) {
        const float x = (float)(high[c] * 256 + low[c] - shift) * scale - less;
        y[c] += x * step[c] + middle[c] * base;
    }
}

static void set_sums(float *y, int64_t ldy, const float *d, int64_t ldd, int64_t m,
                     const dq_simd_set_page *p, void *work)
{
    const set_rows w = set_rows_at(work, p->dim);
    const int32_t half = 1 << (p->bits - 1);
    int32_t sum[2 * SET_ROWS * SLOTS];
    bool made = !p->codes;
    if (sets_few_values(y, ldy, d, ldd, m, p, work)) return;
    for (int64_t r0 = 0; r0 < m; r0 += SET_ROWS) {
        const int64_t rows = pages_min(m - r0, SET_ROWS);
        const float *step = p->sets;
        for (int64_t t = p->first; t < p->end; step += 2 * p->cols) {
            const int64_t end = set_end(p, t), quad = t / 4 * 4, k = (end - quad + 3) / 4 * 4;
            const int8_t *const at = w.code + quad, *const a[4] = {at, at, at, at};
            for (int64_t r = 0; r < rows; r++) set_weights(&w, r, d + (r0 + r) * ldd, p, t, end);
            for (int64_t c = 0; c < p->dim; c += SLOTS) {
                if (made || !pages_value_lines(sum, a, p->codes, p->next, p->bits, p->dim, c, quad,
                                               k, 2 * rows)) {
                    if (!made) pages_value_block(p->block, p->codes, p->next, p->bits, p->cols);
                    made = true;
                    pages_dots(sum, a, SLOTS, p->block + c * SLOTS + quad * SLOTS, 2 * rows, k);
                }
                for (int64_t r = 0; r < rows; r++)
                    set_add(y + (r0 + r) * ldy + c, sum + 2 * r * SLOTS, sum + (2 * r + 1) * SLOTS,
                            step + c, step + p->cols + c, pages_min(p->dim - c, SLOTS),
                            half * w.sum[r], w.scale[r], w.shared[r], w.base[r]);
            }
            t = end;
        }
    }
}

/* ---- table */

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
