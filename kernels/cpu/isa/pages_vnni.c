/* pages_vnni: products of 8-bit integers with KV pages, with AVX-512 VNNI. Compiled with flags of its own.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/isa/kv_lines.h"
#include "kernels/cpu/simd.h"

#if defined(__x86_64__)

#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

/* Codes of `width` bits of one plane: columns chunk * 64 .. + 63 of a line of n, 64 or 128. The plane's
 * bytes repeat with growing shifts; what a shift of words drags in from a neighbour is masked. */
DQ_KV_INLINE __m512i plane64(const uint8_t *plane, int width, int n, int chunk)
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

DQ_KV_INLINE __m512i codes64(const uint8_t *line, int bits, int64_t n, int64_t chunk)
{
    const int low = kv_low(bits), high = bits - low;
    __m512i x = plane64(line, low, (int)n, (int)chunk);
    if (high == 0) return x;
    /* up to four places left inside every byte */
    const __m512i y = plane64(line + n * low / 8, high ? high : 1, (int)n, (int)chunk);
    return _mm512_or_si512(x, _mm512_sll_epi16(y, _mm_cvtsi32_si128(low)));
}

/* The same where the line may be missing (NULL: zeros) or be the last columns of an odd width. */
DQ_KV_INLINE __m512i any_codes64(const uint8_t *line, int bits, int64_t n, int64_t chunk)
{
    uint8_t u[2 * DQ_KV_LINE] = {0};
    if (!line) return _mm512_setzero_si512();
    if (n == 64 || n == 128) return codes64(line, bits, n, chunk);
    kv_unsigned(u, line, bits, n);
    return _mm512_loadu_si512(u + chunk * 64);
}

/* Column 16i + 4j + k of a part is word k of lane i in vector j: what unpacking gives. */
DQ_KV_INLINE void quads_of(__m512i u[4], __m512i a, __m512i b, __m512i c, __m512i d)
{
    const __m512i ab0 = _mm512_unpacklo_epi8(a, b), ab1 = _mm512_unpackhi_epi8(a, b);
    const __m512i cd0 = _mm512_unpacklo_epi8(c, d), cd1 = _mm512_unpackhi_epi8(c, d);
    u[0] = _mm512_unpacklo_epi16(ab0, cd0);
    u[1] = _mm512_unpackhi_epi16(ab0, cd0);
    u[2] = _mm512_unpacklo_epi16(ab1, cd1);
    u[3] = _mm512_unpackhi_epi16(ab1, cd1);
}

DQ_KV_INLINE void pages_quads(uint8_t *block, const uint8_t *const line[4], int bits, int64_t n,
                              int64_t chunk)
{
    __m512i u[4];
    quads_of(u, any_codes64(line[0], bits, n, chunk), any_codes64(line[1], bits, n, chunk),
             any_codes64(line[2], bits, n, chunk), any_codes64(line[3], bits, n, chunk));
    for (int j = 0; j < 4; j++) _mm512_store_si512(block + 64 * j, u[j]);
}

/* z += the four products of each word. In place, which the intrinsic is not: the compiler would copy every sum there and back, and
 * spill some. */
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
DQ_KV_INLINE __m512i spread(const int8_t *const a[4], int64_t at, int parts)
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

/* Sums of one row into the columns' own order: lanes of four vectors, transposed. */
static inline void put_sums(int32_t *sum, const __m512i z[4])
{
    const __m512i a = _mm512_shuffle_i32x4(z[0], z[1], 0x44);
    const __m512i b = _mm512_shuffle_i32x4(z[2], z[3], 0x44);
    const __m512i c = _mm512_shuffle_i32x4(z[0], z[1], 0xee);
    const __m512i d = _mm512_shuffle_i32x4(z[2], z[3], 0xee);
    _mm512_storeu_si512(sum, _mm512_shuffle_i32x4(a, b, 0x88));
    _mm512_storeu_si512(sum + 16, _mm512_shuffle_i32x4(a, b, 0xdd));
    _mm512_storeu_si512(sum + 32, _mm512_shuffle_i32x4(c, d, 0x88));
    _mm512_storeu_si512(sum + 48, _mm512_shuffle_i32x4(c, d, 0xdd));
}

DQ_KV_INLINE void page_rows(int32_t *sum, const int8_t *const a[4], int64_t lda,
                            const uint8_t *block, int m, int64_t k, int parts)
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

DQ_KV_INLINE void all_rows(int32_t *sum, const int8_t *const a[4], int64_t lda,
                           const uint8_t *block, int64_t m, int64_t k, int parts)
{
    for (int64_t i = 0; i < m;) {
        const int8_t *const at[4] = {a[0] + i * lda, a[1] + i * lda, a[2] + i * lda,
                                     a[3] + i * lda};
        int32_t *to = sum + 64 * i;
        const int64_t n = m - i >= 4 ? 4 : m - i >= 2 ? 2 : 1;
        if (n == 4)
            page_rows(to, at, lda, block, 4, k, parts);
        else if (n == 2)
            page_rows(to, at, lda, block, 2, k, parts);
        else
            page_rows(to, at, lda, block, 1, k, parts);
        i += n;
    }
}

static void pages_dots(int32_t *sum, const int8_t *const a[4], int64_t lda, const uint8_t *block,
                       int64_t m, int64_t k)
{
    if (a[0] != a[1] || a[2] != a[3])
        all_rows(sum, a, lda, block, m, k, 4);
    else if (a[0] != a[2])
        all_rows(sum, a, lda, block, m, k, 2);
    else
        all_rows(sum, a, lda, block, m, k, 1);
}

/* Few rows do not pay for a block. More than four have registers for half of the columns at a time; a line of the codes that
 * follow is fetched in one of the passes over these ones. */
DQ_KV_INLINE void line_rows(int32_t *sum, const int8_t *const a[4], int64_t lda,
                            const pages_lines *l, int bits, int n, int chunk, int m, int parts)
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

DQ_KV_INLINE void lines_rows(int32_t *sum, const int8_t *const a[4], int64_t lda,
                             const pages_lines *l, int bits, int n, int chunk, int64_t m, int parts)
{
    for (int64_t i = 0; i < m;) {
        const int64_t left = m - i;
        const int8_t *const at[4] = {a[0] + i * lda, a[1] + i * lda, a[2] + i * lda,
                                     a[3] + i * lda};
        int32_t *to = sum + 64 * i;
        if (left >= 8)
            line_rows(to, at, lda, l, bits, n, chunk, 8, parts);
        else if (left >= 4)
            line_rows(to, at, lda, l, bits, n, chunk, 4, parts);
        else if (left >= 2)
            line_rows(to, at, lda, l, bits, n, chunk, 2, parts);
        else
            line_rows(to, at, lda, l, bits, n, chunk, 1, parts);
        i += left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    }
}

DQ_KV_INLINE void lines_parts(int32_t *sum, const int8_t *const a[4], int64_t lda,
                              const pages_lines *l, int bits, int n, int chunk, int64_t m)
{
    if (a[0] != a[1] || a[2] != a[3])
        lines_rows(sum, a, lda, l, bits, n, chunk, m, 4);
    else if (a[0] != a[2])
        lines_rows(sum, a, lda, l, bits, n, chunk, m, 2);
    else
        lines_rows(sum, a, lda, l, bits, n, chunk, m, 1);
}

DQ_KV_INLINE void lines_bits(int32_t *sum, const int8_t *const a[4], int64_t lda,
                             const pages_lines *l, int bits, int64_t m)
{
    if (l->cols == 64)
        lines_parts(sum, a, lda, l, bits, 64, 0, m);
    else if (l->chunk == 0)
        lines_parts(sum, a, lda, l, bits, 128, 0, m);
    else
        lines_parts(sum, a, lda, l, bits, 128, 1, m);
}

/* The widths that are in use most, in whole quads; others take a block, and so do many rows whose columns differ in codes. */
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

#include "kernels/cpu/isa/pages_few.h"
#include "kernels/cpu/isa/pages_sets_few.h"

#include "kernels/cpu/isa/pages_loops.h"

const dq_simd_pages dq_simd_pages_vnni = DQ_PAGES_TABLE;

#endif
