/* pages_sets: attention on per-channel codes in integers, see simd.h: what a channel's step and low mean leaves the loop over tokens.
 * Part of pages_loops.h, whose functions it uses.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PAGES_SETS_H
#define DQ_PAGES_SETS_H

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

#endif
