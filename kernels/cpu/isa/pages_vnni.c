/* pages_vnni: products of 8-bit integers with KV pages with AVX-512 VNNI, with flags of its own.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/isa/kv_lines.h"
#include "kernels/cpu/simd.h"

#if defined(__x86_64__)

#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

/* A plane's bytes repeat with growing shifts; the mask removes what came from a neighbour. */
INLINE __m512i plane64(const uint8_t *plane, int width, int n, int chunk)
{
    const int bytes = n * width / 8;
    const uint8_t *at = plane + chunk * 64 % bytes;
    long long factor[8];
    __m512i x;
    for (int i = 0; i < 8; i++) factor[i] = (chunk * 64 + i * 8) / bytes * width;
    switch (bytes < 64 ? bytes : 64) {
    case 64: x = _mm512_loadu_si512(at); break;
    case 32: x = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)at)); break;
    case 16: x = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)at)); break;
    default: x = _mm512_broadcastq_epi64(_mm_loadl_epi64((const void *)at)); break;
    }
    if (width == 8) return x;
    x = _mm512_srlv_epi64(x, _mm512_set_epi64(factor[7], factor[6], factor[5], factor[4], factor[3],
                                              factor[2], factor[1], factor[0]));
    return _mm512_and_si512(x, _mm512_set1_epi8((char)((1 << width) - 1)));
}

INLINE __m512i codes64(const uint8_t *line, int bits, int64_t n, int64_t chunk)
{
    const int low = kv_low(bits), high = bits - low;
    __m512i x = plane64(line, low, (int)n, (int)chunk);
    if (high == 0) return x;
    /* up to four places left inside every byte */
    const __m512i y = plane64(line + n * low / 8, high ? high : 1, (int)n, (int)chunk);
    return _mm512_or_si512(x, _mm512_sll_epi16(y, _mm_cvtsi32_si128(low)));
}

/* The same where the line may be missing (NULL: zeros) or be the last columns of an odd width. */
INLINE __m512i any_codes64(const uint8_t *line, int bits, int64_t n, int64_t chunk)
{
    uint8_t u[2 * DQ_KV_LINE] = {0};
    if (!line) return _mm512_setzero_si512();
    if (n == 64 || n == 128) return codes64(line, bits, n, chunk);
    kv_unsigned(u, line, bits, n);
    return _mm512_loadu_si512(u + chunk * 64);
}

/* Column 16i + 4j + k of a part is word k of lane i in vector j: what unpacking gives. */
INLINE void quads_of(__m512i u[4], __m512i a, __m512i b, __m512i c, __m512i d)
{
    const __m512i ab0 = _mm512_unpacklo_epi8(a, b), ab1 = _mm512_unpackhi_epi8(a, b);
    const __m512i cd0 = _mm512_unpacklo_epi8(c, d), cd1 = _mm512_unpackhi_epi8(c, d);
    u[0] = _mm512_unpacklo_epi16(ab0, cd0);
    u[1] = _mm512_unpackhi_epi16(ab0, cd0);
    u[2] = _mm512_unpacklo_epi16(ab1, cd1);
    u[3] = _mm512_unpackhi_epi16(ab1, cd1);
}

INLINE void pages_quads(uint8_t *block, const uint8_t *const line[4], int bits, int64_t n,
                        int64_t chunk)
{
    __m512i u[4];
    quads_of(u, any_codes64(line[0], bits, n, chunk), any_codes64(line[1], bits, n, chunk),
             any_codes64(line[2], bits, n, chunk), any_codes64(line[3], bits, n, chunk));
    for (int j = 0; j < 4; j++) _mm512_store_si512(block + 64 * j, u[j]);
}

/* In place, as with the intrinsic the compiler copies every sum there and back, and spills some. */
static inline __m512i add_dots(__m512i z, __m512i u, __m512i x)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(z) : "v"(u), "v"(x));
    return z;
}

static inline __m512i four_of(const int8_t *a)
{
    int32_t four;
    memcpy(&four, a, sizeof four);
    return _mm512_set1_epi32(four);
}

/* The same four codes for every column, or for each half or lane their own. */
INLINE __m512i spread(const int8_t *const a[4], int64_t at, int parts)
{
    __m512i x = four_of(a[0] + at);
    if (parts == 2) x = _mm512_mask_mov_epi32(x, 0xff00, four_of(a[2] + at));
    if (parts == 4) {
        x = _mm512_mask_mov_epi32(x, 0x00f0, four_of(a[1] + at));
        x = _mm512_mask_mov_epi32(x, 0x0f00, four_of(a[2] + at));
        x = _mm512_mask_mov_epi32(x, 0xf000, four_of(a[3] + at));
    }
    return x;
}

/* Lanes of four vectors, transposed: to and from the order of quads_of. */
INLINE void turn_lanes(__m512 out[4], const __m512 z[4])
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

/* Sums of one row into the columns' own order. */
static inline void put_sums(int32_t *sum, const __m512i z[4])
{
    __m512 turned[4];
    const __m512 x[4] = {(__m512)z[0], (__m512)z[1], (__m512)z[2], (__m512)z[3]};
    turn_lanes(turned, x);
    for (int j = 0; j < 4; j++) _mm512_storeu_si512(sum + 16 * j, (__m512i)turned[j]);
}

/* Rows from i on, with codes of their own for each part of a block's columns. */
typedef struct block_rows {
    const int8_t *a[4];
} block_rows;

INLINE block_rows rows_from(const int8_t *const a[4], int64_t at)
{
    return (block_rows){{a[0] + at, a[1] + at, a[2] + at, a[3] + at}};
}

/* The statement with PARTS of a row, 1, 2 or 4, as a constant. */
#define WITH_PARTS(a, ...)                                                                         \
    switch ((a)[0] != (a)[1] || (a)[2] != (a)[3] ? 4 : (a)[0] != (a)[2] ? 2 : 1) {                 \
        CASE_OF(PARTS, 4, __VA_ARGS__)                                                             \
        CASE_OF(PARTS, 2, __VA_ARGS__)                                                             \
    default: CASE_OF(PARTS, 1, __VA_ARGS__)                                                        \
    }

INLINE void page_rows(int32_t *sum, const int8_t *const a[4], int64_t lda, const uint8_t *block,
                      int m, int64_t k, int parts)
{
    __m512i z[4][4];
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < 4; j++) z[i][j] = _mm512_setzero_si512();
    }
    for (int64_t kk = 0; kk < k; kk += 4, block += 256) {
        __m512i u[4];
        for (int j = 0; j < 4; j++) u[j] = _mm512_load_si512(block + 64 * j);
        for (int i = 0; i < m; i++) {
            const __m512i x = spread(a, i * lda + kk, parts);
            for (int j = 0; j < 4; j++) z[i][j] = add_dots(z[i][j], u[j], x);
        }
    }
    for (int i = 0; i < m; i++) put_sums(sum + 64 * i, z[i]);
}

INLINE void all_rows(int32_t *sum, const int8_t *const a[4], int64_t lda, const uint8_t *block,
                     int64_t m, int64_t k, int parts)
{
    for (int64_t i = 0, n; i < m; i += n) {
        const block_rows at = rows_from(a, i * lda);
        int32_t *to = sum + 64 * i;
        n = m - i >= 4 ? 4 : m - i >= 2 ? 2 : 1;
        if (n == 4)
            page_rows(to, at.a, lda, block, 4, k, parts);
        else if (n == 2)
            page_rows(to, at.a, lda, block, 2, k, parts);
        else
            page_rows(to, at.a, lda, block, 1, k, parts);
    }
}

static void pages_dots(int32_t *sum, const int8_t *const a[4], int64_t lda, const uint8_t *block,
                       int64_t m,
                       int64_t k){WITH_PARTS(a, all_rows(sum, a, lda, block, m, k, PARTS))}

/* Few rows do not pay for a block; more than four have registers for half of the columns. */
INLINE void line_rows(int32_t *sum, const int8_t *const a[4], int64_t lda, const pages_lines *l,
                      int bits, int n, int chunk, int m, int parts)
{
    const int v = m > 4 ? 2 : 4, passes = 4 / v * (n / 64);
    const uint8_t *next = l->next ? l->next : l->codes;
    for (int h = 0; h < 4; h += v) {
        const int64_t first = 64 * (h / v + chunk * (4 / v));
        __m512i z[16], u[4];
#pragma GCC unroll 16
        for (int i = 0; i < m * v; i++) z[i] = _mm512_setzero_si512();
        for (int64_t kk = 0; kk < l->n; kk += 4) {
            const uint8_t *at = l->codes + kk * l->stride;
            for (int64_t i = first; i < 4 * l->stride; i += 64 * passes)
                DQ_KV_FETCH(next + kk * l->stride + i);
            quads_of(u, codes64(at, bits, n, chunk), codes64(at + l->stride, bits, n, chunk),
                     codes64(at + 2 * l->stride, bits, n, chunk),
                     codes64(at + 3 * l->stride, bits, n, chunk));
#pragma GCC unroll 8
            for (int i = 0; i < m; i++) {
                const __m512i x = spread(a, i * lda + kk, parts);
#pragma GCC unroll 4
                for (int j = 0; j < v; j++) z[i * v + j] = add_dots(z[i * v + j], u[h + j], x);
            }
        }
#pragma GCC unroll 16
        for (int i = 0; i < m * v; i++)
            _mm512_storeu_si512(sum + 64 * (i / v) + 16 * (h + i % v), z[i]);
    }
    for (int i = 0; i < m; i++) {
        __m512i z[4];
        for (int j = 0; j < 4; j++) z[j] = _mm512_loadu_si512(sum + 64 * i + 16 * j);
        put_sums(sum + 64 * i, z);
    }
}

INLINE void lines_rows(int32_t *sum, const int8_t *const a[4], int64_t lda, const pages_lines *l,
                       int bits, int n, int chunk, int64_t m, int parts)
{
    for (int64_t i = 0, each; i < m; i += each) {
        const block_rows at = rows_from(a, i * lda);
        int32_t *to = sum + 64 * i;
        each = m - i >= 8 ? 8 : m - i >= 4 ? 4 : m - i >= 2 ? 2 : 1;
        if (each == 8)
            line_rows(to, at.a, lda, l, bits, n, chunk, 8, parts);
        else if (each == 4)
            line_rows(to, at.a, lda, l, bits, n, chunk, 4, parts);
        else if (each == 2)
            line_rows(to, at.a, lda, l, bits, n, chunk, 2, parts);
        else
            line_rows(to, at.a, lda, l, bits, n, chunk, 1, parts);
    }
}

INLINE void lines_bits(int32_t *sum, const int8_t *const a[4], int64_t lda, const pages_lines *l,
                       int bits, int64_t m)
{
    if (l->cols == 64)
        WITH_PARTS(a, lines_rows(sum, a, lda, l, bits, 64, 0, m, PARTS))
    else if (l->chunk == 0)
        WITH_PARTS(a, lines_rows(sum, a, lda, l, bits, 128, 0, m, PARTS))
    else
        WITH_PARTS(a, lines_rows(sum, a, lda, l, bits, 128, 1, m, PARTS))
}

/* Common widths in whole quads; others take a block, as do many rows whose columns differ. */
static bool pages_line_dots(int32_t *sum, const int8_t *const a[4], int64_t lda,
                            const pages_lines *l, int64_t m)
{
    const bool parts = a[0] != a[1] || a[0] != a[2] || a[0] != a[3];
    if ((l->cols != 64 && l->cols != 128) || l->n % 4 || (parts && m >= 8)) return false;
    if (l->bits != 8 && l->bits != 4) return false;
    if (l->bits == 8)
        lines_bits(sum, a, lda, l, 8, m);
    else
        lines_bits(sum, a, lda, l, 4, m);
    return true;
}

static inline float pages_times(float *e, const float *d, const float *factor)
{
    const __m512i no_sign = _mm512_set1_epi32(0x7fffffff);
    __m512i max = _mm512_setzero_si512();
    for (int t = 0; t < 64; t += 16) {
        const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(d + t), _mm512_loadu_ps(factor + t));
        _mm512_storeu_ps(e + t, x);
        max = _mm512_max_epi32(max, _mm512_and_si512(_mm512_castps_si512(x), no_sign));
    }
    const int32_t peak = _mm512_reduce_max_epi32(max);
    float f;
    memcpy(&f, &peak, sizeof f);
    return f;
}

static inline int32_t pages_split(int8_t *high, const float *e, float r)
{
    __m512i sum = _mm512_setzero_si512();
    for (int t = 0; t < 64; t += 16) {
        const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(e + t), _mm512_set1_ps(r));
        const __m512i c = _mm512_cvtps_epi32(x);
        const __m512i h = _mm512_srai_epi32(_mm512_add_epi32(c, _mm512_set1_epi32(128)), 8);
        _mm_storeu_si128((void *)(high + t), _mm512_cvtepi32_epi8(h));
        _mm_storeu_si128((void *)(high + 64 + t), _mm512_cvtepi32_epi8(c));
        sum = _mm512_add_epi32(sum, c);
    }
    return _mm512_reduce_add_epi32(sum);
}

/* ---- few rows */

/* Products of few rows with a page of 8 or 4 bits. Four lines become words of four codes while
 * still packed; masks alone split halves of bytes, and sums that a mask left 16 times too large are
 * shifted at the end. Sums have the order of unpacking, which scales enter once. */

/* The statement with BITS, 8 or 4, and ROWS as constants. */
#define WITH_FEW(bits, rows, ...)                                                                  \
    switch (bits) {                                                                                \
        CASE_OF(BITS, 8, WITH_ROWS(rows, __VA_ARGS__))                                             \
    default: CASE_OF(BITS, 4, WITH_ROWS(rows, __VA_ARGS__))                                        \
    }

/* 32-byte lines as two vectors: bytes 0-3, 16-19, 4-7, 20-23 of each line, and those 8 after. */
INLINE __m512i quads32(const uint8_t *line, int64_t stride, int half)
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
INLINE void to_quads(__m512 w[2], __m512 a, __m512 b)
{
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    w[0] = _mm512_permutex2var_ps(a, first, b);
    w[1] = _mm512_permutex2var_ps(a, _mm512_add_epi32(first, _mm512_set1_epi32(8)), b);
}

INLINE void from_quads(__m512 a[2], __m512 w0, __m512 w1)
{
    a[0] = _mm512_shuffle_f32x4(w0, w1, 0x88);
    a[1] = _mm512_shuffle_f32x4(w0, w1, 0xdd);
}

/* Codes of four channels of 64 slots; of 4 bits u[2] and u[3] are 16 times the high code + low. */
INLINE void key_quads(__m512i u[4], const uint8_t *at, int bits)
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
INLINE void key_run(__m512i z[16], const int8_t *code, int64_t ld, const int32_t *sum,
                    int64_t n_sums, const uint8_t *at, const uint8_t *next, int bits, int64_t n,
                    int m)
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
INLINE void key_order(__m512 to[4], const __m512 from[4], int bits, bool back)
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

INLINE void few_keys(float *s, int64_t lds, const dq_simd_int8_rows *q, const dq_simd_int8_page *p,
                     int bits, int m)
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

/* Whole pages whose runs are whole quads; false: not these. */
static bool pages_few_keys(float *s, int64_t lds, const dq_simd_int8_rows *q, int64_t m,
                           const dq_simd_int8_page *p)
{
    if (!p->codes || m > DQ_PAGES_FEW || p->first > 0 || p->end < SLOTS) return false;
    if (p->group % 4 || p->dim % 4) return false;
    if (p->bits != 8 && p->bits != 4) return false;
    WITH_FEW(p->bits, m, few_keys(s, lds, q, p, BITS, ROWS))
    return true;
}

/* ---- values */

/* Lane i < n: what all lanes of v[i] come to; n is 4 or 16. */
INLINE __m512i lanes_of(__m512i *v, int n, bool sums)
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

/* D of up to 16 rows and runs in 16 bits (pages_round), high bytes of 64 slots, then low ones; word
 * 4 i + k of either has slots 16 k + 4 i .. + 3. */
typedef struct few_rounded {
    int8_t *code; /* [n * m][128]: of run g and row r the one of number g * m + r */
    float *scale;
    int32_t *sum;
} few_rounded;

/* e = d factor times `by`; what all lanes come to together is the sum of codes. */
INLINE __m512i round_one(int8_t *code, const float *d, const __m512 factor[4], float by)
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

/* Scales from the largest |e|, of which `keep` counts, and factors by which codes reach `max`. */
INLINE void round_scales(float by[16], float *scale, __m512 peak, __mmask16 keep, int max)
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
INLINE void round_runs(const few_rounded *w, const float *d, int64_t ldd, const float *factor,
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

/* 64 slots times two vectors of columns: the low and high 4-bit codes of 16 bytes, or halves of 32
 * bytes of 8; z[4 * row + 2 * vector]: sums of high bytes, then of low ones. */
INLINE void value_tile(__m512i z[16], const int8_t *const code[2], const uint8_t *at,
                       int64_t stride, const uint8_t *next, int half, int bits, bool same, int m)
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

/* Sums of codes less 2^(bits-1) of 2 m vectors of two runs; of run r and row i the one numbered r *
 * m + i. */
INLINE void value_part(__m512i sum[8], const few_rounded *w, const int64_t run[2],
                       const uint8_t *at, int64_t stride, const uint8_t *next, int half, int bits,
                       bool same, int m)
{
    const int8_t *const code[2] = {w->code + run[0] * m * 128, w->code + run[1] * m * 128};
    __m512i z[16];
#pragma GCC unroll 8
    for (int i = 0; i < 2 * m; i++) {
        const int32_t of = w->sum[run[i % 2] * m + i / 2];
        z[2 * i] = _mm512_setzero_si512();
        z[2 * i + 1] = _mm512_set1_epi32(-of * (1 << (bits == 4 && i % 2 ? 7 : bits - 1)));
    }
    value_tile(z, code, at, stride, next, half, bits, same, m);
#pragma GCC unroll 8
    for (int i = 0; i < 2 * m; i++) {
        sum[i] = _mm512_add_epi32(_mm512_slli_epi32(z[2 * i], 8), z[2 * i + 1]);
        if (bits == 4 && i % 2) sum[i] = _mm512_srai_epi32(sum[i], 4);
    }
}

/* The same as numbers that are to be added to y. */
INLINE void scaled_part(__m512 out[8], const few_rounded *w, const int64_t run[2],
                        const uint8_t *at, int64_t stride, const uint8_t *next, int half, int bits,
                        int m)
{
    __m512i sum[8];
    value_part(sum, w, run, at, stride, next, half, bits, false, m);
#pragma GCC unroll 8
    for (int i = 0; i < 2 * m; i++)
        out[i] = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[i]),
                               _mm512_set1_ps(w->scale[run[i % 2] * m + i / 2]));
}

/* y[32] += what stands in the order of quads32. */
INLINE void add_quads(float *y, __m512 w0, __m512 w1)
{
    __m512 a[2];
    from_quads(a, w0, w1);
    _mm512_storeu_ps(y, _mm512_add_ps(_mm512_loadu_ps(y), a[0]));
    _mm512_storeu_ps(y + 16, _mm512_add_ps(_mm512_loadu_ps(y + 16), a[1]));
}

/* 32 bytes of every line from column c on; 4 bits also have the columns `apart` after. */
INLINE void value_piece(float *y, int64_t ldy, const few_rounded *w, const int64_t run[2],
                        const uint8_t *at, int64_t stride, const uint8_t *next, int64_t apart,
                        int bits, int m)
{
    __m512 part[2][8];
    scaled_part(part[0], w, run, at, stride, next, 0, bits, m);
    if (bits == 8) {
        for (int i = 0; i < m; i++) add_quads(y + i * ldy, part[0][2 * i], part[0][2 * i + 1]);
        return;
    }
    scaled_part(part[1], w, run, at, stride, next + 1024, 1, bits, m);
    for (int i = 0; i < 2 * m; i++)
        add_quads(y + i / 2 * ldy + i % 2 * apart, part[0][i], part[1][i]);
}

INLINE void few_values(float *y, int64_t ldy, const float *d, int64_t ldd,
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

/* Whole pages whose runs are whole quads32; one or two rows of 8 bits gain too little. */
static bool pages_few_values(float *y, int64_t ldy, const float *d, int64_t ldd, int64_t m,
                             const dq_simd_int8_page *p, void *work)
{
    if (!p->codes || m > DQ_PAGES_FEW || p->first > 0 || p->end < SLOTS) return false;
    if (p->dim % 64 || (p->n > 1 && p->group % 32) || (p->bits == 8 && m < 3)) return false;
    if (m > dq_simd_int8_value_rows(p->n)) return false; /* of which there is work */
    if (p->bits != 8 && p->bits != 4) return false;
    WITH_FEW(p->bits, m, few_values(y, ldy, d, ldd, p, work, BITS, ROWS))
    return true;
}

/* ---- few rows, sets */

/* The same where a page's slots are one set of per-channel codes (others: pages.h). A step and
 * middle belong to all slots, so keys take one sum over all channels and D is rounded once for all
 * columns; peaks, sums and dots of all rows are reduced in the lanes of one vector. */

enum { SET_DOTS = 8 }; /* that dots_of adds up at a time */

/* out[i]: lanes of v[i], lane k with lane k + 8, then + 4, + 2, + 1. */
INLINE void dots_of(float out[SET_DOTS], const __m512 v[SET_DOTS])
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
INLINE void set_scales(few_set *w, __m512i peak[4], int max, int m)
{
    for (int i = m; i < 4; i++) peak[i] = _mm512_setzero_si512();
    round_scales(w->by, w->scale, _mm512_castsi512_ps(lanes_of(peak, 4, false)),
                 (__mmask16)((1u << m) - 1), max);
}

INLINE void set_code_sums(few_set *w, __m512i sum[4], int m)
{
    for (int i = m; i < 4; i++) sum[i] = _mm512_setzero_si512();
    _mm512_mask_storeu_epi32(w->sum, 0xf, lanes_of(sum, 4, true));
}

/* ---- keys */

/* 64 channels times steps and `by`, as codes; the words returned sum to theirs and `sum`'s. */
INLINE __m512i query_codes(int8_t *code, __m512i sum, const float *q, const float *step, float by)
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
INLINE void few_queries(few_set *w, const float *q, int64_t ldq, const float *step,
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

INLINE void few_set_keys(float *s, int64_t lds, const float *q, int64_t ldq,
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
    WITH_FEW(p->bits, m, few_set_keys(s, lds, q, ldq, p, work, BITS, ROWS))
    return true;
}

/* ---- values */

/* D of up to 4 rows in 16 bits, as round_one leaves it; sums of D, then of D times dither. */
INLINE void few_weights(few_set *w, const float *d, int64_t ldd, const float *dither, int m)
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

/* Keeps the compiler from holding in registers what waits there. */
static inline void in_memory(const __m512i *p)
{
    __asm__("" : : "r"(p) : "memory");
}

/* y[16] += (sum scale - less) step + middle base */
INLINE void add_set(float *y, __m512i sum, const few_set *w, int r, __m512 step, __m512 middle)
{
    const __m512 x =
        _mm512_sub_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(w->scale[r])),
                      _mm512_set1_ps(w->dot[4 + r]));
    const __m512 more =
        _mm512_add_ps(_mm512_mul_ps(x, step), _mm512_mul_ps(middle, _mm512_set1_ps(w->dot[r])));
    _mm512_storeu_ps(y, _mm512_add_ps(_mm512_loadu_ps(y), more));
}

/* y[32] of m rows from sums in the order of quads32, vectors of a row `apart`. */
INLINE void add_set_rows(float *y, int64_t ldy, const __m512i *first, const __m512i *second,
                         int apart, const few_set *w, const float *step, const float *middle, int m)
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

INLINE void few_set_values(float *y, int64_t ldy, const float *d, int64_t ldd,
                           const dq_simd_set_page *p, void *work, int bits, int m)
{
    few_set w;
    const int64_t stride = p->dim * bits / 8, run[2] = {0, 0};
    const uint8_t *next = p->next ? p->next : p->codes;
    const float *step = p->sets, *middle = p->sets + p->cols;
    w.code = work;
    few_weights(&w, d, ldd, p->dither, m);
    const few_rounded rows = {w.code, w.scale, w.sum};
    for (int64_t c = 0; c < p->dim; c += DQ_KV_LINE) {
        const int64_t bytes = pages_min(p->dim - c, DQ_KV_LINE) * bits / 8;
        for (int64_t b = 0; b < bytes; b += 32, next += 2048) {
            const uint8_t *at = p->codes + c * bits / 8 + b;
            const int64_t x = c + b, far = x + bytes;
            __m512i part[2][8];
            value_part(part[0], &rows, run, at, stride, next, 0, bits, true, m);
            if (bits == 8) {
                add_set_rows(y + x, ldy, part[0], part[0] + 1, 2, &w, step + x, middle + x, m);
                continue;
            }
            in_memory(part[0]); /* the second part takes all registers */
            value_part(part[1], &rows, run, at, stride, next + 1024, 1, bits, true, m);
            add_set_rows(y + x, ldy, part[0], part[1], 2, &w, step + x, middle + x, m);
            add_set_rows(y + far, ldy, part[0] + 1, part[1] + 1, 2, &w, step + far, middle + far,
                         m);
        }
    }
}

/* false: not this page. */
static bool sets_few_values(float *y, int64_t ldy, const float *d, int64_t ldd, int64_t m,
                            const dq_simd_set_page *p, void *work)
{
    if (!sets_few(p, m)) return false;
    WITH_FEW(p->bits, m, few_set_values(y, ldy, d, ldd, p, work, BITS, ROWS))
    return true;
}

/* ---- table */

#define PAGES_WHOLE
#include "kernels/cpu/isa/pages.h"

const dq_simd_pages dq_simd_pages_vnni = DQ_PAGES_TABLE;

#endif
