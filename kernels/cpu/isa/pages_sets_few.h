/* pages_sets_few: products of few rows with a page of 8 or 4 bits whose slots are one set of per-channel codes, with AVX-512 VNNI. Part of
 * pages_vnni.c; pages_sets.h has the same for all other pages.
 *
 * A channel's step and middle belong to all slots, so keys take one sum over all channels, and D is rounded once for all
 * columns: products, quads and rounding are those of pages_few.h with one run. All rows are rounded together, and what they are
 * reduced to (peaks, sums, dots) is reduced in the lanes of one vector.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PAGES_SETS_FEW_H
#define DQ_PAGES_SETS_FEW_H

enum { SET_DOTS = 8 }; /* that dots_of adds up at a time */

/* out[i]: lanes of v[i], lane k with lane k + 8, then + 4, + 2, + 1. */
DQ_KV_INLINE void dots_of(float out[SET_DOTS], const __m512 v[SET_DOTS])
{
    const __m512i from = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 4, 8, 12, 2, 6, 10, 14);
    __m512 w[4], x[2];
    for (int i = 0; i < 4; i++)
        w[i] = _mm512_add_ps(_mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x44),
                             _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xee));
    for (int i = 0; i < 2; i++)
        x[i] = _mm512_add_ps(_mm512_shuffle_f32x4(w[2 * i], w[2 * i + 1], 0x88),
                             _mm512_shuffle_f32x4(w[2 * i], w[2 * i + 1], 0xdd));
    const __m512 y =
        _mm512_add_ps(_mm512_shuffle_ps(x[0], x[1], 0x44), _mm512_shuffle_ps(x[0], x[1], 0xee));
    const __m512 z = _mm512_add_ps(y, _mm512_permute_ps(y, 0xb1));
    _mm256_storeu_ps(out, _mm512_castps512_ps256(_mm512_permutexvar_ps(from, z)));
}

/* What few rows become: codes, and per row a scale, the codes' sum and two dots. */
typedef struct few_set {
    int8_t *code;
    float scale[4], by[16], dot[SET_DOTS];
    int32_t sum[4];
} few_set;

/* Scales from the largest |e| of up to 4 rows, whose lanes hold bits of numbers without a sign. */
DQ_KV_INLINE void set_scales(few_set *w, __m512i peak[4], int max, int m)
{
    for (int i = m; i < 4; i++) peak[i] = _mm512_setzero_si512();
    round_scales(w->by, w->scale, _mm512_castsi512_ps(lanes_of(peak, 4, false)),
                 (__mmask16)((1u << m) - 1), max);
}

DQ_KV_INLINE void set_code_sums(few_set *w, __m512i sum[4], int m)
{
    for (int i = m; i < 4; i++) sum[i] = _mm512_setzero_si512();
    _mm512_mask_storeu_epi32(w->sum, 0xf, lanes_of(sum, 4, true));
}

/* ------------------------------------------------------------------------------------------ keys */

/* 64 channels of one row times steps and `by`: codes, and words that come to their sum with what `sum` holds. */
DQ_KV_INLINE __m512i query_codes(int8_t *code, __m512i sum, const float *q, const float *step,
                                 float by)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512 r = _mm512_set1_ps(by);
    __m512i c[4];
#pragma GCC unroll 4
    for (int t = 0; t < 4; t++)
        c[t] = _mm512_cvtps_epi32(_mm512_mul_ps(
            _mm512_mul_ps(_mm512_loadu_ps(q + 16 * t), _mm512_loadu_ps(step + 16 * t)), r));
    const __m512i x =
        _mm512_packs_epi16(_mm512_packs_epi32(c[0], c[1]), _mm512_packs_epi32(c[2], c[3]));
    _mm512_storeu_si512(code, _mm512_permutexvar_epi32(order, x));
    return _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), x);
}

/* Query rows times the set's steps in 8 bits, and their products with its middles. */
DQ_KV_INLINE void few_queries(few_set *w, const float *q, int64_t ldq, const float *step,
                              const float *middle, int64_t dim, int m)
{
    const __m512i no_sign = _mm512_set1_epi32(0x7fffffff);
    __m512i peak[4], sum[4];
    __m512 base[SET_DOTS];
    for (int i = 0; i < SET_DOTS; i++) base[i] = _mm512_setzero_ps();
    for (int i = 0; i < 4; i++) peak[i] = sum[i] = _mm512_setzero_si512();
    for (int64_t c = 0; c < dim; c += 16) {
        const __m512 s = _mm512_loadu_ps(step + c), l = _mm512_loadu_ps(middle + c);
#pragma GCC unroll 4
        for (int r = 0; r < m; r++) {
            const __m512 x = _mm512_loadu_ps(q + r * ldq + c);
            const __m512i e = _mm512_castps_si512(_mm512_mul_ps(x, s));
            peak[r] = _mm512_max_epu32(peak[r], _mm512_and_si512(e, no_sign));
            base[r] = _mm512_add_ps(base[r], _mm512_mul_ps(x, l));
        }
    }
    set_scales(w, peak, Q_MAX, m);
    dots_of(w->dot, base);
    for (int64_t c = 0; c < dim; c += 64) {
#pragma GCC unroll 4
        for (int r = 0; r < m; r++)
            sum[r] =
                query_codes(w->code + r * dim + c, sum[r], q + r * ldq + c, step + c, w->by[r]);
    }
    set_code_sums(w, sum, m);
}

DQ_KV_INLINE void few_set_keys(float *s, int64_t lds, const float *q, int64_t ldq,
                               const dq_simd_set_page *p, void *work, int bits, int m)
{
    few_set w;
    __m512i z[16];
    w.code = work; /* the rest is written as it becomes known */
    few_queries(&w, q, ldq, p->sets, p->sets + p->cols, p->dim, m);
    key_run(z, w.code, p->dim, w.sum, 1, p->codes, p->next ? p->next : p->codes, bits, p->dim, m);
#pragma GCC unroll 4
    for (int i = 0; i < m; i++) {
        const __m512 scale = _mm512_set1_ps(w.scale[i]), base = _mm512_set1_ps(w.dot[i]);
        __m512 x[4], out[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            x[j] = _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(z[4 * i + j]), scale), base);
        key_order(out, x, bits, true);
        for (int j = 0; j < 4; j++) _mm512_storeu_ps(s + i * lds + 16 * j, out[j]);
    }
}

DQ_KV_INLINE void few_set_keys_rows(float *s, int64_t lds, const float *q, int64_t ldq, int64_t m,
                                    const dq_simd_set_page *p, void *work, int bits)
{
    switch (m) {
    case 1: few_set_keys(s, lds, q, ldq, p, work, bits, 1); break;
    case 2: few_set_keys(s, lds, q, ldq, p, work, bits, 2); break;
    case 3: few_set_keys(s, lds, q, ldq, p, work, bits, 3); break;
    default: few_set_keys(s, lds, q, ldq, p, work, bits, 4); break;
    }
}

/* Pages of 8 or 4 bits whose 64 slots are one set, and whole chunks of columns. */
static bool sets_few(const dq_simd_set_page *p, int64_t m)
{
    return p->codes && m <= DQ_PAGES_FEW && p->first == 0 && p->end == SLOTS &&
           p->begins >> 1 == 0 && p->dim % 64 == 0 && (p->bits == 8 || p->bits == 4);
}

/* false: not this page. */
static bool sets_few_keys(float *s, int64_t lds, const float *q, int64_t ldq, int64_t m,
                          const dq_simd_set_page *p, void *work)
{
    if (!sets_few(p, m)) return false;
    if (p->bits == 8)
        few_set_keys_rows(s, lds, q, ldq, m, p, work, 8);
    else
        few_set_keys_rows(s, lds, q, ldq, m, p, work, 4);
    return true;
}

/* ---------------------------------------------------------------------------------------- values */

/* D of up to 4 rows in 16 bits, as round_one leaves it; sums of D, then of D times dither. */
DQ_KV_INLINE void few_weights(few_set *w, const float *d, int64_t ldd, const float *dither, int m)
{
    const __m512i no_sign = _mm512_set1_epi32(0x7fffffff);
    const __m512 one = _mm512_set1_ps(1.0f), factor[4] = {one, one, one, one};
    __m512i peak[4], sum[4];
    __m512 dot[SET_DOTS];
    for (int i = 0; i < SET_DOTS; i++) dot[i] = _mm512_setzero_ps();
    for (int i = 0; i < 4; i++) peak[i] = sum[i] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int t = 0; t < SLOTS; t += 16) {
        const __m512 by = _mm512_loadu_ps(dither + t);
#pragma GCC unroll 4
        for (int r = 0; r < m; r++) {
            const __m512 x = _mm512_loadu_ps(d + r * ldd + t);
            peak[r] = _mm512_max_epu32(peak[r], _mm512_and_si512(_mm512_castps_si512(x), no_sign));
            dot[r] = _mm512_add_ps(dot[r], x);
            dot[4 + r] = _mm512_add_ps(dot[4 + r], _mm512_mul_ps(x, by));
        }
    }
    set_scales(w, peak, D_MAX, m);
    dots_of(w->dot, dot);
#pragma GCC unroll 4
    for (int r = 0; r < m; r++)
        sum[r] = round_one(w->code + r * 128, d + r * ldd, factor, w->by[r]);
    set_code_sums(w, sum, m);
}

/* Sums of codes less 2^(bits-1) of 2 m vectors, see value_tile. */
DQ_KV_INLINE void set_part(__m512i sum[8], const few_set *w, const uint8_t *at, int64_t stride,
                           const uint8_t *next, int half, int bits, int m)
{
    const int8_t *const code[2] = {w->code, w->code};
    __m512i z[16];
#pragma GCC unroll 8
    for (int i = 0; i < 2 * m; i++) {
        z[2 * i] = _mm512_setzero_si512();
        z[2 * i + 1] =
            _mm512_set1_epi32(-w->sum[i / 2] * (1 << (bits == 4 && i % 2 ? 7 : bits - 1)));
    }
    value_tile(z, code, at, stride, next, half, bits, true, m);
#pragma GCC unroll 8
    for (int i = 0; i < 2 * m; i++) {
        sum[i] = _mm512_add_epi32(_mm512_slli_epi32(z[2 * i], 8), z[2 * i + 1]);
        if (bits == 4 && i % 2) sum[i] = _mm512_srai_epi32(sum[i], 4);
    }
}

/* Keeps the compiler from holding in registers what waits there. */
static inline void in_memory(const __m512i *p)
{
    __asm__("" : : "r"(p) : "memory");
}

/* y[16] += (sum scale - less) step + middle base */
DQ_KV_INLINE void add_set(float *y, __m512i sum, const few_set *w, int r, __m512 step,
                          __m512 middle)
{
    const __m512 x =
        _mm512_sub_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(w->scale[r])),
                      _mm512_set1_ps(w->dot[4 + r]));
    const __m512 more =
        _mm512_add_ps(_mm512_mul_ps(x, step), _mm512_mul_ps(middle, _mm512_set1_ps(w->dot[r])));
    _mm512_storeu_ps(y, _mm512_add_ps(_mm512_loadu_ps(y), more));
}

/* y[32] of m rows from sums in the order of quads32: vectors of a row stand `apart` after each other. */
DQ_KV_INLINE void add_set_rows(float *y, int64_t ldy, const __m512i *first, const __m512i *second,
                               int apart, const few_set *w, const float *step, const float *middle,
                               int m)
{
    const __m512 s0 = _mm512_loadu_ps(step), s1 = _mm512_loadu_ps(step + 16);
    const __m512 l0 = _mm512_loadu_ps(middle), l1 = _mm512_loadu_ps(middle + 16);
#pragma GCC unroll 4
    for (int r = 0; r < m; r++) {
        const __m512i a = first[r * apart], b = second[r * apart];
        add_set(y + r * ldy, _mm512_shuffle_i32x4(a, b, 0x88), w, r, s0, l0);
        add_set(y + r * ldy + 16, _mm512_shuffle_i32x4(a, b, 0xdd), w, r, s1, l1);
    }
}

DQ_KV_INLINE void few_set_values(float *y, int64_t ldy, const float *d, int64_t ldd,
                                 const dq_simd_set_page *p, void *work, int bits, int m)
{
    few_set w;
    const int64_t stride = p->dim * bits / 8;
    const uint8_t *next = p->next ? p->next : p->codes;
    const float *step = p->sets, *middle = p->sets + p->cols;
    w.code = work;
    few_weights(&w, d, ldd, p->dither, m);
    for (int64_t c = 0; c < p->dim; c += DQ_KV_LINE) {
        const int64_t bytes = pages_min(p->dim - c, DQ_KV_LINE) * bits / 8;
        for (int64_t b = 0; b < bytes; b += 32, next += 2048) {
            const uint8_t *at = p->codes + c * bits / 8 + b;
            const int64_t x = c + b, far = x + bytes;
            __m512i part[2][8];
            set_part(part[0], &w, at, stride, next, 0, bits, m);
            if (bits == 8) {
                add_set_rows(y + x, ldy, part[0], part[0] + 1, 2, &w, step + x, middle + x, m);
                continue;
            }
            in_memory(part[0]); /* the second part takes all registers */
            set_part(part[1], &w, at, stride, next + 1024, 1, bits, m);
            add_set_rows(y + x, ldy, part[0], part[1], 2, &w, step + x, middle + x, m);
            add_set_rows(y + far, ldy, part[0] + 1, part[1] + 1, 2, &w, step + far, middle + far,
                         m);
        }
    }
}

DQ_KV_INLINE void few_set_values_rows(float *y, int64_t ldy, const float *d, int64_t ldd, int64_t m,
                                      const dq_simd_set_page *p, void *work, int bits)
{
    switch (m) {
    case 1: few_set_values(y, ldy, d, ldd, p, work, bits, 1); break;
    case 2: few_set_values(y, ldy, d, ldd, p, work, bits, 2); break;
    case 3: few_set_values(y, ldy, d, ldd, p, work, bits, 3); break;
    default: few_set_values(y, ldy, d, ldd, p, work, bits, 4); break;
    }
}

/* false: not this page. */
static bool sets_few_values(float *y, int64_t ldy, const float *d, int64_t ldd, int64_t m,
                            const dq_simd_set_page *p, void *work)
{
    if (!sets_few(p, m)) return false;
    if (p->bits == 8)
        few_set_values_rows(y, ldy, d, ldd, m, p, work, 8);
    else
        few_set_values_rows(y, ldy, d, ldd, m, p, work, 4);
    return true;
}

#endif
