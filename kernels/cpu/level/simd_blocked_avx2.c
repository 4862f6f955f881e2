/* simd_blocked_avx2: products with blocked weights with AVX2, FMA and F16C. Compiled with flags of its own.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/simd.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#define VEC   static inline __attribute__((always_inline))
#define LANES 8
typedef __m256i veci;
typedef __m256 vecf;

VEC veci load_words(const uint8_t *p)
{
    return _mm256_loadu_si256((const void *)p);
}

VEC void store_words(int32_t *p, veci x)
{
    _mm256_storeu_si256((void *)p, x);
}

VEC veci load_bytes(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p));
}

VEC veci all_words(int32_t x)
{
    return _mm256_set1_epi32(x);
}

VEC veci all_fours(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}

VEC veci words_right(veci x, int n)
{
    return _mm256_srli_epi32(x, n);
}

VEC veci words_left(veci x, int n)
{
    return _mm256_slli_epi32(x, n);
}

VEC veci words_plus(veci a, veci b)
{
    return _mm256_add_epi32(a, b);
}

VEC veci words_less(veci a, veci b)
{
    return _mm256_sub_epi32(a, b);
}

VEC veci words_times(veci a, veci b)
{
    return _mm256_mullo_epi32(a, b);
}

/* The low n bits of every byte of a, the others of b. */
VEC veci low_bits_or(int n, veci a, veci b)
{
    const veci mask = _mm256_set1_epi8((char)((1 << n) - 1));
    return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
}

VEC vecf load_floats(const float *p)
{
    return _mm256_loadu_ps(p);
}

VEC vecf load_halves(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
}

VEC void store_floats(float *p, vecf x)
{
    _mm256_storeu_ps(p, x);
}

VEC vecf all_floats(float x)
{
    return _mm256_set1_ps(x);
}

VEC vecf floats_of(veci x)
{
    return _mm256_cvtepi32_ps(x);
}

VEC vecf floats_plus(vecf a, vecf b)
{
    return _mm256_add_ps(a, b);
}

VEC vecf floats_times(vecf a, vecf b)
{
    return _mm256_mul_ps(a, b);
}

VEC vecf floats_fma(vecf a, vecf b, vecf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

#define SUMS_OF_16_BITS

/* Sums of two products of unsigned and signed bytes stay below 2^15 for codes of at most 7 bits. Codes of 8 are
 * counted from 128: their sizes are the unsigned bytes, their signs go to the other ones. */
VEC int32_t int8_base(int bits)
{
    return bits == 8 ? 128 : 0;
}

VEC veci int8_codes(veci x, int bits)
{
    if (bits == 8) return _mm256_xor_si256(x, _mm256_set1_epi8((char)0x80));
    return _mm256_and_si256(x, _mm256_set1_epi8((char)((1 << bits) - 1)));
}

/* Sums are made in the order in which they are written: compilers that make trees of them have not the registers. */
VEC veci in_order(veci x)
{
    __asm__("" : "+x"(x));
    return x;
}

VEC veci add_both(veci sum, veci a)
{
    return in_order(_mm256_add_epi32(sum, _mm256_madd_epi16(a, _mm256_set1_epi16(1))));
}

VEC veci add_dots(veci sum, veci u, veci x, int bits)
{
    const veci two = bits == 8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(u), _mm256_sign_epi8(x, u))
                               : _mm256_maddubs_epi16(u, x);
    return add_both(sum, two);
}

/* So many sums of two products stay below 2^15 together. */
VEC int int8_run(int bits)
{
    return bits <= 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1;
}

VEC veci pairs(veci u, veci x)
{
    return _mm256_maddubs_epi16(u, x);
}

VEC veci add_pairs(veci a, veci u, veci x)
{
    return in_order(_mm256_add_epi16(a, _mm256_maddubs_epi16(u, x)));
}

enum { INT8_ONE = 4 };

#include "kernels/cpu/level/simd_blocked.h"

/* Codes of 8 bits and digits leave 16 bits two by two: even and odd bytes are multiplied as words of 16. */
VEC veci add_wide_digits(veci sum, veci u, veci x)
{
    const veci even = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), odd = _mm256_srai_epi16(x, 8);
    const veci low = _mm256_and_si256(u, _mm256_set1_epi16(255)), high = _mm256_srli_epi16(u, 8);
    sum = in_order(_mm256_add_epi32(sum, _mm256_madd_epi16(low, even)));
    return in_order(_mm256_add_epi32(sum, _mm256_madd_epi16(high, odd)));
}

BLOCKED_INLINE void blocked_digit_dots(veci sum[3 * DQ_BLOCKED_F32_MAX][4], const uint8_t *chunk,
                                       const int8_t *code, const int m, const int nv,
                                       const int bits)
{
    const int run = int8_run(bits);
#pragma GCC unroll 8
    for (int s0 = 0; s0 < STEPS; s0 += run) {
        veci part[3 * DQ_BLOCKED_F32_MAX][4];
#pragma GCC unroll 8
        for (int s = s0; s < s0 + run; s++) {
            veci u[4];
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) {
                u[j] = blocked_codes(chunk + j * 4 * LANES, bits, s);
                if (bits < 8) u[j] = int8_codes(u[j], bits);
            }
#pragma GCC unroll 9
            for (int i = 0; i < 3 * m; i++) {
                const veci x = all_fours(code + 4 * (3 * s * m + i));
#pragma GCC unroll 4
                for (int j = 0; j < nv; j++) {
                    if (bits == 8) {
                        sum[i][j] = add_wide_digits(sum[i][j], u[j], x);
                        continue;
                    }
                    const veci two = _mm256_maddubs_epi16(u[j], x);
                    part[i][j] = s == s0 ? two : in_order(_mm256_add_epi16(part[i][j], two));
                }
            }
        }
        if (bits == 8) continue;
#pragma GCC unroll 9
        for (int i = 0; i < 3 * m; i++)
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) sum[i][j] = add_both(sum[i][j], part[i][j]);
    }
}

#include "kernels/cpu/level/simd_blocked_digits.h"

#define ROWS_INT8(M)                                                                               \
    static void int8_rows_##M(float *y, int64_t ldy, const dq_simd_blocked_weight *w,              \
                              const uint8_t *at, int n, const dq_simd_blocked_rows *a)             \
    {                                                                                              \
        BLOCKED_BY_WIDTH(INT8_CALL_##M)                                                            \
    }
#define INT8_CALL_1(bits) blocked_int8(y, ldy, w, at, n, a, 1, 4, bits)
#define INT8_CALL_2(bits) blocked_int8(y, ldy, w, at, n, a, 2, 4, bits)
#define INT8_CALL_3(bits) blocked_int8(y, ldy, w, at, n, a, 3, 2, bits)
#define INT8_CALL_4(bits) blocked_int8(y, ldy, w, at, n, a, 4, 2, bits)
ROWS_INT8(1)
ROWS_INT8(2)
ROWS_INT8(3)
ROWS_INT8(4)

static void int8(float *y, int64_t ldy, const dq_simd_blocked_weight *w, int64_t block, int n,
                 const dq_simd_blocked_rows *a, int m)
{
    const uint8_t *at = w->data + block * w->bytes;
    switch (m) {
    case 1: int8_rows_1(y, ldy, w, at, n, a); break;
    case 2: int8_rows_2(y, ldy, w, at, n, a); break;
    case 3: int8_rows_3(y, ldy, w, at, n, a); break;
    default: int8_rows_4(y, ldy, w, at, n, a); break;
    }
}

#define ROWS_F32(M, NV)                                                                            \
    static void f32_rows_##M(float *y, const dq_simd_blocked_weight *w, const uint8_t *at,         \
                             const dq_simd_blocked_digits *a)                                      \
    {                                                                                              \
        for (int row = 0; row < DQ_BLOCKED_ROWS; row += NV * LANES) BLOCKED_BY_WIDTH(F32_CALL_##M) \
    }
#define F32_CALL_1(bits) blocked_f32(y, w, at, row, a, 1, 2, bits)
#define F32_CALL_2(bits) blocked_f32(y, w, at, row, a, 2, 1, bits)
ROWS_F32(1, 2)
ROWS_F32(2, 1)

static void f32(float *y, const dq_simd_blocked_weight *w, int64_t block,
                const dq_simd_blocked_digits *a, int m)
{
    const uint8_t *at = w->data + block * w->bytes;
    if (m == 1)
        f32_rows_1(y, w, at, a);
    else
        f32_rows_2(y, w, at, a);
}

const dq_simd_blocked dq_simd_blocked_avx2 = {.int8_rows = 4,
                                              .int8_one = INT8_ONE,
                                              .f32_rows = 2,
                                              .int8 = int8,
                                              .f32 = f32,
                                              .digits = digits};

#endif
