/* simd_blocked_vnni: products with blocked weights with AVX-512 VNNI. Compiled with flags of its own.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/simd.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#define VEC   static inline __attribute__((always_inline))
#define LANES 16
typedef __m512i veci;
typedef __m512 vecf;

VEC veci load_words(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

VEC void store_words(int32_t *p, veci x)
{
    _mm512_storeu_si512(p, x);
}

VEC veci load_bytes(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
}

VEC veci all_words(int32_t x)
{
    return _mm512_set1_epi32(x);
}

VEC veci all_fours(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}

VEC veci words_right(veci x, int n)
{
    return _mm512_srli_epi32(x, (unsigned)n);
}

VEC veci words_left(veci x, int n)
{
    return _mm512_slli_epi32(x, (unsigned)n);
}

VEC veci words_plus(veci a, veci b)
{
    return _mm512_add_epi32(a, b);
}

VEC veci words_less(veci a, veci b)
{
    return _mm512_sub_epi32(a, b);
}

VEC veci words_times(veci a, veci b)
{
    return _mm512_mullo_epi32(a, b);
}

/* The low n bits of every byte of a, the others of b. */
VEC veci low_bits_or(int n, veci a, veci b)
{
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8((char)((1 << n) - 1)), a, b, 0xca);
}

VEC vecf load_floats(const float *p)
{
    return _mm512_loadu_ps(p);
}

VEC vecf load_halves(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}

VEC void store_floats(float *p, vecf x)
{
    _mm512_storeu_ps(p, x);
}

VEC vecf all_floats(float x)
{
    return _mm512_set1_ps(x);
}

VEC vecf floats_of(veci x)
{
    return _mm512_cvtepi32_ps(x);
}

VEC vecf floats_plus(vecf a, vecf b)
{
    return _mm512_add_ps(a, b);
}

VEC vecf floats_times(vecf a, vecf b)
{
    return _mm512_mul_ps(a, b);
}

VEC vecf floats_fma(vecf a, vecf b, vecf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* Codes of 8 bits are loaded once: compilers load them again for every row, and one load a cycle is all there is. */
VEC veci int8_codes(veci x, int bits)
{
    if (bits < 8) return _mm512_and_si512(x, _mm512_set1_epi8((char)((1 << bits) - 1)));
    __asm__("" : "+v"(x));
    return x;
}

enum { INT8_WORDS = 0 };

/* x: activations i of four columns each. */
VEC veci add_dots(veci sum, veci u, const int8_t *x, int64_t i, int bits)
{
    (void)bits;
    return _mm512_dpbusd_epi32(sum, u, all_fours(x + 4 * i));
}

/* two vectors each: sums of eight rows stay in registers, sums and totals of five */
enum { INT8_ONE = 5 };

#include "kernels/cpu/level/simd_blocked_digits.h"

#define ROWS_INT8(M)                                                                               \
    static void int8_rows_##M(float *y, int64_t ldy, const dq_simd_blocked_weight *w,              \
                              dq_simd_blocks b, const dq_simd_blocked_rows *a)                     \
    {                                                                                              \
        BLOCKED_BY_WIDTH(INT8_CALL_##M)                                                            \
    }
#define INT8_CALL_1(bits) blocked_int8(y, ldy, w, b, a, 1, 2, bits)
#define INT8_CALL_2(bits) blocked_int8(y, ldy, w, b, a, 2, 2, bits)
#define INT8_CALL_3(bits) blocked_int8(y, ldy, w, b, a, 3, 2, bits)
#define INT8_CALL_4(bits) blocked_int8(y, ldy, w, b, a, 4, 2, bits)
#define INT8_CALL_5(bits) blocked_int8(y, ldy, w, b, a, 5, 2, bits)
#define INT8_CALL_6(bits) blocked_int8(y, ldy, w, b, a, 6, 2, bits)
#define INT8_CALL_7(bits) blocked_int8(y, ldy, w, b, a, 7, 2, bits)
#define INT8_CALL_8(bits) blocked_int8(y, ldy, w, b, a, 8, 2, bits)
ROWS_INT8(1)
ROWS_INT8(2)
ROWS_INT8(3)
ROWS_INT8(4)
ROWS_INT8(5)
ROWS_INT8(6)
ROWS_INT8(7)
ROWS_INT8(8)

static void int8(float *y, int64_t ldy, const dq_simd_blocked_weight *w, dq_simd_blocks b,
                 const dq_simd_blocked_rows *a, int m)
{
    switch (m) {
    case 1: int8_rows_1(y, ldy, w, b, a); break;
    case 2: int8_rows_2(y, ldy, w, b, a); break;
    case 3: int8_rows_3(y, ldy, w, b, a); break;
    case 4: int8_rows_4(y, ldy, w, b, a); break;
    case 5: int8_rows_5(y, ldy, w, b, a); break;
    case 6: int8_rows_6(y, ldy, w, b, a); break;
    case 7: int8_rows_7(y, ldy, w, b, a); break;
    default: int8_rows_8(y, ldy, w, b, a); break;
    }
}

#define ROWS_F32(M)                                                                                \
    static void f32_rows_##M(float *y, int64_t ldy, const dq_simd_blocked_weight *w,               \
                             dq_simd_blocks b, const dq_simd_blocked_digits *a)                    \
    {                                                                                              \
        BLOCKED_BY_WIDTH(F32_CALL_##M)                                                             \
    }
#define F32_CALL_1(bits) blocked_f32(y, ldy, w, b, a, 1, 2, bits)
#define F32_CALL_2(bits) blocked_f32(y, ldy, w, b, a, 2, 2, bits)
#define F32_CALL_3(bits) blocked_f32(y, ldy, w, b, a, 3, 2, bits)
ROWS_F32(1)
ROWS_F32(2)
ROWS_F32(3)

static void f32(float *y, int64_t ldy, const dq_simd_blocked_weight *w, dq_simd_blocks b,
                const dq_simd_blocked_digits *a, int m)
{
    switch (m) {
    case 1: f32_rows_1(y, ldy, w, b, a); break;
    case 2: f32_rows_2(y, ldy, w, b, a); break;
    default: f32_rows_3(y, ldy, w, b, a); break;
    }
}

const dq_simd_blocked dq_simd_blocked_vnni = {.int8_rows = 8,
                                              .int8_one = INT8_ONE,
                                              .int8_words = INT8_WORDS,
                                              .f32_rows = 3,
                                              .int8 = int8,
                                              .f32 = f32,
                                              .digits = digits};

#endif
