/* pages_few: products of few rows with a page of 8 or 4 bits, with AVX-512 VNNI. Part of pages_vnni.c.
 *
 * Four lines become words of four codes each while codes are still packed; low and high halves of bytes are then parted by
 * masks alone, and what a mask leaves 16 times too large is shifted back when the sums are ready. Sums stand in the order
 * that unpacking gives. Scales are brought into it once for all rows, and results leave it once.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PAGES_FEW_H
#define DQ_PAGES_FEW_H

/* Lines of 32 bytes as two vectors of words: bytes 0-3, 16-19, 4-7, 20-23 of each line, and those 8 after. */
DQ_KV_INLINE __m512i quads32(const uint8_t *line, int64_t stride, int half)
{
    const __m256i a = _mm256_loadu_si256((const void *)line);
    const __m256i b = _mm256_loadu_si256((const void *)(line + stride));
    const __m256i c = _mm256_loadu_si256((const void *)(line + 2 * stride));
    const __m256i d = _mm256_loadu_si256((const void *)(line + 3 * stride));
    const __m256i ab = half ? _mm256_unpackhi_epi8(a, b) : _mm256_unpacklo_epi8(a, b);
    const __m256i cd = half ? _mm256_unpackhi_epi8(c, d) : _mm256_unpacklo_epi8(c, d);
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_unpacklo_epi16(ab, cd)),
                              _mm256_unpackhi_epi16(ab, cd), 1);
}

/* 32 values in the order of quads32, and back. */
DQ_KV_INLINE void to_quads(__m512 w[2], __m512 a, __m512 b)
{
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    w[0] = _mm512_permutex2var_ps(a, first, b);
    w[1] = _mm512_permutex2var_ps(a, _mm512_add_epi32(first, _mm512_set1_epi32(8)), b);
}

DQ_KV_INLINE void from_quads(__m512 a[2], __m512 w0, __m512 w1)
{
    a[0] = _mm512_shuffle_f32x4(w0, w1, 0x88);
    a[1] = _mm512_shuffle_f32x4(w0, w1, 0xdd);
}

/* Lanes of four vectors, transposed: to and from the order of quads_of. */
DQ_KV_INLINE void turn_lanes(__m512 out[4], const __m512 z[4])
{
    const __m512 a = _mm512_shuffle_f32x4(z[0], z[1], 0x44);
    const __m512 b = _mm512_shuffle_f32x4(z[2], z[3], 0x44);
    const __m512 c = _mm512_shuffle_f32x4(z[0], z[1], 0xee);
    const __m512 d = _mm512_shuffle_f32x4(z[2], z[3], 0xee);
    out[0] = _mm512_shuffle_f32x4(a, b, 0x88);
    out[1] = _mm512_shuffle_f32x4(a, b, 0xdd);
    out[2] = _mm512_shuffle_f32x4(c, d, 0x88);
    out[3] = _mm512_shuffle_f32x4(c, d, 0xdd);
}

/* Codes of four channels of 64 slots; of 4 bits the last two hold 16 times the high code, and the low one. */
DQ_KV_INLINE void key_quads(__m512i u[4], const uint8_t *at, int bits)
{
    if (bits == 8) {
        quads_of(u, _mm512_loadu_si512(at), _mm512_loadu_si512(at + 64),
                 _mm512_loadu_si512(at + 128), _mm512_loadu_si512(at + 192));
        return;
    }
    for (int j = 0; j < 2; j++) {
        u[2 + j] = quads32(at, 32, j);
        u[j] = _mm512_and_si512(u[2 + j], _mm512_set1_epi8(15));
    }
}

/* One run of n channels: sums of codes less 2^(bits-1). */
DQ_KV_INLINE void key_run(__m512i z[16], const int8_t *code, int64_t ld, const int32_t *sum,
                          int64_t n_sums, const uint8_t *at, const uint8_t *next, int bits,
                          int64_t n, int m)
{
    const int64_t quad = 32 * bits;
#pragma GCC unroll 4
    for (int i = 0; i < m; i++) {
        const int32_t start = -sum[i * n_sums] * (1 << (bits - 1));
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            z[4 * i + j] = _mm512_set1_epi32(bits == 4 && j >= 2 ? 17 * start : start);
    }
    for (int64_t c = 0; c < n; c += 4, at += quad, next += quad) {
        __m512i u[4];
        for (int64_t i = 0; i < quad; i += 64) DQ_KV_FETCH(next + i);
        key_quads(u, at, bits);
#pragma GCC unroll 4
        for (int i = 0; i < m; i++) {
            const __m512i x = four_of(code + i * ld + c);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) z[4 * i + j] = add_dots(z[4 * i + j], u[j], x);
        }
    }
    if (bits == 8) return;
#pragma GCC unroll 16
    for (int i = 0; i < 4 * m; i++)
        if (i % 4 >= 2) z[i] = _mm512_srai_epi32(_mm512_sub_epi32(z[i], z[i - 2]), 4);
}

/* Scales of 64 slots in the order of sums; scores out of it. */
DQ_KV_INLINE void key_order(__m512 to[4], const __m512 from[4], int bits, bool back)
{
    if (bits == 8) {
        turn_lanes(to, from);
    } else if (back) { /* low halves of bytes are slots 0 .. 31 */
        from_quads(to, from[0], from[1]);
        from_quads(to + 2, from[2], from[3]);
    } else {
        to_quads(to, from[0], from[1]);
        to_quads(to + 2, from[2], from[3]);
    }
}

DQ_KV_INLINE void few_keys(float *s, int64_t lds, const dq_simd_int8_rows *q,
                           const dq_simd_int8_page *p, int bits, int m)
{
    const int64_t stride = SLOTS / 8 * bits;
    const int8_t *code = q->code;
    __m512 total[16];
    for (int i = 0; i < 4 * m; i++)
        total[i] = _mm512_set1_ps(-0.0f); /* what adding does not show */
    for (int64_t g = 0; g < p->n; g++) {
        const int64_t first = g * p->group, n = pages_min(p->group, p->dim - first);
        const uint8_t *next = p->next ? p->next : p->codes;
        __m512 scale[4], key[4];
        __m512i z[16];
        key_run(z, code, q->ld, q->sum + g, p->n, p->codes + first * stride, next + first * stride,
                bits, n, m);
        for (int j = 0; j < 4; j++) scale[j] = _mm512_loadu_ps(p->scale + g * SLOTS + 16 * j);
        key_order(key, scale, bits, false);
#pragma GCC unroll 4
        for (int i = 0; i < m; i++) {
            const __m512 by = _mm512_set1_ps(q->scale[i * p->n + g]);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                const __m512 x =
                    _mm512_mul_ps(_mm512_cvtepi32_ps(z[4 * i + j]), _mm512_mul_ps(by, key[j]));
                total[4 * i + j] = _mm512_add_ps(total[4 * i + j], x);
            }
        }
        code += n;
    }
    for (int i = 0; i < m; i++) {
        __m512 out[4];
        key_order(out, total + 4 * i, bits, true);
        for (int j = 0; j < 4; j++) _mm512_storeu_ps(s + i * lds + 16 * j, out[j]);
    }
}

DQ_KV_INLINE void few_keys_rows(float *s, int64_t lds, const dq_simd_int8_rows *q, int64_t m,
                                const dq_simd_int8_page *p, int bits)
{
    switch (m) {
    case 1: few_keys(s, lds, q, p, bits, 1); break;
    case 2: few_keys(s, lds, q, p, bits, 2); break;
    case 3: few_keys(s, lds, q, p, bits, 3); break;
    default: few_keys(s, lds, q, p, bits, 4); break;
    }
}

/* Whole pages whose runs are whole quads; false: not these. */
static bool pages_few_keys(float *s, int64_t lds, const dq_simd_int8_rows *q, int64_t m,
                           const dq_simd_int8_page *p)
{
    if (!p->codes || m > DQ_PAGES_FEW || p->first > 0 || p->end < SLOTS) return false;
    if (p->group % 4 || p->dim % 4) return false;
    if (p->bits == 8)
        few_keys_rows(s, lds, q, m, p, 8);
    else if (p->bits == 4)
        few_keys_rows(s, lds, q, m, p, 4);
    return p->bits == 8 || p->bits == 4;
}

/* ---------------------------------------------------------------------------------------- values */

/* Lane i < n: what all lanes of v[i] come to; n is 4 or 16. */
DQ_KV_INLINE __m512i lanes_of(__m512i *v, int n, bool sums)
{
#define JOIN(a, b) (sums ? _mm512_add_epi32(a, b) : _mm512_max_epu32(a, b))
    for (int i = 0; i < n / 2; i++)
        v[i] = JOIN(_mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]),
                    _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < n / 4; i++)
        v[i] = JOIN(_mm512_unpacklo_epi64(v[2 * i], v[2 * i + 1]),
                    _mm512_unpackhi_epi64(v[2 * i], v[2 * i + 1]));
    if (n == 4) {
        v[0] = JOIN(v[0], _mm512_shuffle_i32x4(v[0], v[0], 0x4e));
        return JOIN(v[0], _mm512_shuffle_i32x4(v[0], v[0], 0xb1));
    }
    for (int k = 2; k > 0; k--) {
        for (int i = 0; i < k; i++)
            v[i] = JOIN(_mm512_shuffle_i32x4(v[2 * i], v[2 * i + 1], 0x88),
                        _mm512_shuffle_i32x4(v[2 * i], v[2 * i + 1], 0xdd));
    }
#undef JOIN
    return v[0];
}

/* D of up to 16 rows and runs in 16 bits, as pages_round defines it: of each the high bytes of 64 slots and the low ones.
 * Word 4 i + k of either has slots 16 k + 4 i .. 16 k + 4 i + 3. */
typedef struct few_rounded {
    int8_t *code; /* [n * m][128]: of run g and row r the one of number g * m + r */
    float *scale;
    int32_t *sum;
} few_rounded;

/* e = d factor times `by`; what all lanes come to together is the sum of codes. */
DQ_KV_INLINE __m512i round_one(int8_t *code, const float *d, const __m512 factor[4], float by)
{
    const __m512i half = _mm512_set1_epi16(128), one = _mm512_set1_epi16(1);
    const __m512i parted = _mm512_set4_epi32(0x0f0d0b09, 0x07050301, 0x0e0c0a08, 0x06040200);
    const __m512 r = _mm512_set1_ps(by);
    __m512i c[4];
#pragma GCC unroll 4
    for (int t = 0; t < 4; t++)
        c[t] = _mm512_cvtps_epi32(
            _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(d + 16 * t), factor[t]), r));
    const __m512i a = _mm512_packs_epi32(c[0], c[1]), b = _mm512_packs_epi32(c[2], c[3]);
    /* 128 more: the high bytes are then right, and the low ones have another sign */
    const __m512i x = _mm512_shuffle_epi8(_mm512_add_epi16(a, half), parted);
    const __m512i y = _mm512_shuffle_epi8(_mm512_add_epi16(b, half), parted);
    _mm512_store_si512(code, _mm512_unpackhi_epi64(x, y));
    _mm512_store_si512(code + 64,
                       _mm512_xor_si512(_mm512_unpacklo_epi64(x, y), _mm512_set1_epi8(-128)));
    return _mm512_dpwssd_epi32(_mm512_madd_epi16(a, one), b, one);
}

enum { Q_MAX = 127, D_MAX = 32512 }; /* codes of D are 127 * 256 at most: both bytes are signed */

/* From the largest |e| of up to 16 rows and runs, of which `keep` counts: scales, and what e is multiplied with so that codes
 * reach `max`. */
DQ_KV_INLINE void round_scales(float by[16], float *scale, __m512 peak, __mmask16 keep, int max)
{
    const __mmask16 finite = _mm512_cmp_ps_mask(peak, _mm512_set1_ps(FLT_MAX), _CMP_LE_OQ);
    const __mmask16 good =
        _mm512_mask_cmp_ps_mask(finite, peak, _mm512_set1_ps(0x1p-100f), _CMP_GE_OQ);
    const __m512 top = _mm512_set1_ps((float)max);
    const __m512 s = _mm512_maskz_div_ps(good, peak, top);
    _mm512_mask_storeu_ps(scale, keep, _mm512_mask_mov_ps(_mm512_set1_ps(NAN), finite, s));
    _mm512_storeu_ps(by, _mm512_maskz_div_ps(good, top, peak));
}

/* n runs from `first` on, up to `capacity` numbers, 4 or 16. */
DQ_KV_INLINE void round_runs(const few_rounded *w, const float *d, int64_t ldd, const float *factor,
                             int64_t first, int64_t n, int m, int capacity)
{
    const __m512i no_sign = _mm512_set1_epi32(0x7fffffff);
    const __mmask16 keep = (__mmask16)((1u << n * m) - 1);
    __m512 s[4], size[16];
    __m512i v[16];
    float by[16];
    for (int i = 0; i < capacity; i++) v[i] = _mm512_setzero_si512();
#pragma GCC unroll 16
    for (int i = 0; i < 4 * m; i++)
        size[i] = _mm512_abs_ps(_mm512_loadu_ps(d + i / 4 * ldd + i % 4 * 16));
    for (int64_t g = 0; g < n; g++) {
        for (int t = 0; t < 4; t++) s[t] = _mm512_loadu_ps(factor + (first + g) * SLOTS + 16 * t);
#pragma GCC unroll 4
        for (int r = 0; r < m; r++) {
            __m512i max = _mm512_castps_si512(_mm512_mul_ps(size[4 * r], s[0]));
#pragma GCC unroll 3
            for (int t = 1; t < 4; t++) /* a NaN, with a sign or not, is more than everything */
                max = _mm512_max_epu32(max,
                                       _mm512_castps_si512(_mm512_mul_ps(size[4 * r + t], s[t])));
            v[g * m + r] = max;
        }
    }
    round_scales(by, w->scale + first * m,
                 _mm512_castsi512_ps(_mm512_and_si512(lanes_of(v, capacity, false), no_sign)), keep,
                 D_MAX);
    for (int64_t g = 0; g < n; g++) {
        for (int t = 0; t < 4; t++) s[t] = _mm512_loadu_ps(factor + (first + g) * SLOTS + 16 * t);
#pragma GCC unroll 4
        for (int r = 0; r < m; r++)
            v[g * m + r] =
                round_one(w->code + ((first + g) * m + r) * 128, d + r * ldd, s, by[g * m + r]);
    }
    for (int64_t i = n * m; i < capacity; i++) v[i] = _mm512_setzero_si512();
    _mm512_mask_storeu_epi32(w->sum + first * m, keep, lanes_of(v, capacity, true));
}

static inline __m512i add_spread(__m512i z, __m512i u, const int8_t *x)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0"
            : "+v"(z)
            : "v"(u), "m"(*(const int32_t *)(const void *)x));
    return z;
}

/* 64 slots times two vectors of columns: 4 bits the low and the high codes of 16 bytes, which are of two runs or (`same`) of one;
 * 8 bits both halves of 32 bytes. z[4 * row + 2 * vector]: sums of high bytes, of low bytes after them. */
DQ_KV_INLINE void value_tile(__m512i z[16], const int8_t *const code[2], const uint8_t *at,
                             int64_t stride, const uint8_t *next, int half, int bits, bool same,
                             int m)
{
    for (int t = 0; t < SLOTS; t += 4, at += 4 * stride, next += 16 * bits) {
        const int x = t % 16 * 4 + t / 16 * 4;
        __m512i u[2];
        for (int i = 0; i < 16 * bits; i += 64) DQ_KV_FETCH(next + i);
        u[1] = quads32(at, stride, bits == 8 ? 1 : half);
        if (bits == 8) {
            u[0] = quads32(at, stride, 0);
        } else {
            u[0] = _mm512_and_si512(u[1], _mm512_set1_epi8(15));
            u[1] = _mm512_xor_si512(u[1], u[0]);
        }
        if (bits == 8 || same) {
#pragma GCC unroll 8
            for (int i = 0; i < 2 * m; i++) {
                const __m512i s = four_of(code[0] + i * 64 + x);
                z[i / 2 * 4 + i % 2] = add_dots(z[i / 2 * 4 + i % 2], u[0], s);
                z[i / 2 * 4 + i % 2 + 2] = add_dots(z[i / 2 * 4 + i % 2 + 2], u[1], s);
            }
            continue;
        }
#pragma GCC unroll 16
        for (int i = 0; i < 4 * m; i++)
            z[i] = add_spread(z[i], u[i / 2 % 2], code[i / 2 % 2] + i / 4 * 128 + i % 2 * 64 + x);
    }
}

/* The same as numbers that are to be added to y. */
DQ_KV_INLINE void value_part(__m512 out[8], const few_rounded *w, const int64_t run[2],
                             const uint8_t *at, int64_t stride, const uint8_t *next, int half,
                             int bits, int m)
{
    const int8_t *const code[2] = {w->code + run[0] * m * 128, w->code + run[1] * m * 128};
    __m512i z[16];
#pragma GCC unroll 8
    for (int i = 0; i < 2 * m; i++) {
        const int32_t sum = w->sum[run[i % 2] * m + i / 2];
        z[2 * i] = _mm512_setzero_si512();
        z[2 * i + 1] = _mm512_set1_epi32(-sum * (1 << (bits == 4 && i % 2 ? 7 : bits - 1)));
    }
    value_tile(z, code, at, stride, next, half, bits, false, m);
#pragma GCC unroll 8
    for (int i = 0; i < 2 * m; i++) {
        __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(z[2 * i], 8), z[2 * i + 1]);
        if (bits == 4 && i % 2) sum = _mm512_srai_epi32(sum, 4);
        out[i] = _mm512_mul_ps(_mm512_cvtepi32_ps(sum),
                               _mm512_set1_ps(w->scale[run[i % 2] * m + i / 2]));
    }
}

/* y[32] += what stands in the order of quads32. */
DQ_KV_INLINE void add_quads(float *y, __m512 w0, __m512 w1)
{
    __m512 a[2];
    from_quads(a, w0, w1);
    _mm512_storeu_ps(y, _mm512_add_ps(_mm512_loadu_ps(y), a[0]));
    _mm512_storeu_ps(y + 16, _mm512_add_ps(_mm512_loadu_ps(y + 16), a[1]));
}

/* 32 bytes of every line, which begins with column c: 32 columns, or of 4 bits as many `apart` columns after, too. */
DQ_KV_INLINE void value_piece(float *y, int64_t ldy, const few_rounded *w, const int64_t run[2],
                              const uint8_t *at, int64_t stride, const uint8_t *next, int64_t apart,
                              int bits, int m)
{
    __m512 part[2][8];
    value_part(part[0], w, run, at, stride, next, 0, bits, m);
    if (bits == 8) {
        for (int i = 0; i < m; i++) add_quads(y + i * ldy, part[0][2 * i], part[0][2 * i + 1]);
        return;
    }
    value_part(part[1], w, run, at, stride, next + 1024, 1, bits, m);
    for (int i = 0; i < 2 * m; i++)
        add_quads(y + i / 2 * ldy + i % 2 * apart, part[0][i], part[1][i]);
}

DQ_KV_INLINE void few_values(float *y, int64_t ldy, const float *d, int64_t ldd,
                             const dq_simd_int8_page *p, void *work, int bits, int m)
{
    few_rounded w = {.code = work};
    const int64_t n = m * p->n, stride = p->dim * bits / 8;
    const uint8_t *next = p->next ? p->next : p->codes;
    w.scale = (float *)(void *)(w.code + n * 128);
    w.sum = (int32_t *)(void *)(w.scale + n);
    if (n <= 4) round_runs(&w, d, ldd, p->scale, 0, p->n, m, 4);
    for (int64_t g = 0; n > 4 && g < p->n; g += 16 / m)
        round_runs(&w, d, ldd, p->scale, g, pages_min(p->n - g, 16 / m), m, 16);
    for (int64_t c = 0; c < p->dim; c += DQ_KV_LINE) {
        const int64_t bytes = pages_min(p->dim - c, DQ_KV_LINE) * bits / 8;
        const int64_t apart = bits == 4 ? bytes : 0;
        for (int64_t b = 0; b < bytes; b += 32, next += 2048) {
            const int64_t run[2] = {pages_min((c + b) / p->group, p->n - 1),
                                    pages_min((c + b + apart) / p->group, p->n - 1)};
            value_piece(y + c + b, ldy, &w, run, p->codes + c * bits / 8 + b, stride, next, apart,
                        bits, m);
        }
    }
}

DQ_KV_INLINE void few_values_rows(float *y, int64_t ldy, const float *d, int64_t ldd, int64_t m,
                                  const dq_simd_int8_page *p, void *work, int bits)
{
    switch (m) {
    case 1: few_values(y, ldy, d, ldd, p, work, bits, 1); break;
    case 2: few_values(y, ldy, d, ldd, p, work, bits, 2); break;
    case 3: few_values(y, ldy, d, ldd, p, work, bits, 3); break;
    default: few_values(y, ldy, d, ldd, p, work, bits, 4); break;
    }
}

/* Whole pages of whole chunks, whose runs are whole quads32; false: not these. One or two rows of 8 bits have little to part
 * and to round. */
static bool pages_few_values(float *y, int64_t ldy, const float *d, int64_t ldd, int64_t m,
                             const dq_simd_int8_page *p, void *work)
{
    if (!p->codes || m > DQ_PAGES_FEW || p->first > 0 || p->end < SLOTS) return false;
    if (p->dim % 64 || (p->n > 1 && p->group % 32) || (p->bits == 8 && m < 3)) return false;
    if (m > dq_simd_int8_value_rows(p->n)) return false; /* of which there is work */
    if (p->bits == 8)
        few_values_rows(y, ldy, d, ldd, m, p, work, 8);
    else if (p->bits == 4)
        few_values_rows(y, ldy, d, ldd, m, p, work, 4);
    return p->bits == 8 || p->bits == 4;
}

#endif
