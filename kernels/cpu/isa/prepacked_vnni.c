/* prepacked_vnni: products with prepacked weights with AVX-512 VNNI. Compiled with flags of its own.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/simd.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#define LANES 16
typedef __m512i veci;
typedef __m512 vecf;

INLINE veci load_words(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

INLINE void store_words(int32_t *p, veci x)
{
    _mm512_storeu_si512(p, x);
}

INLINE veci load_bytes(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
}

INLINE veci all_words(int32_t x)
{
    return _mm512_set1_epi32(x);
}

INLINE veci all_fours(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}

INLINE veci words_right(veci x, int n)
{
    return _mm512_srli_epi32(x, (unsigned)n);
}

INLINE veci words_left(veci x, int n)
{
    return _mm512_slli_epi32(x, (unsigned)n);
}

INLINE veci words_plus(veci a, veci b)
{
    return _mm512_add_epi32(a, b);
}

INLINE veci words_less(veci a, veci b)
{
    return _mm512_sub_epi32(a, b);
}

INLINE veci words_times(veci a, veci b)
{
    return _mm512_mullo_epi32(a, b);
}

/* The low n bits of every byte of a, the others of b. */
INLINE veci low_bits_or(int n, veci a, veci b)
{
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8((char)((1 << n) - 1)), a, b, 0xca);
}

INLINE vecf load_floats(const float *p)
{
    return _mm512_loadu_ps(p);
}

INLINE vecf load_halves(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}

INLINE void store_floats(float *p, vecf x)
{
    _mm512_storeu_ps(p, x);
}

INLINE vecf all_floats(float x)
{
    return _mm512_set1_ps(x);
}

INLINE vecf floats_of(veci x)
{
    return _mm512_cvtepi32_ps(x);
}

INLINE vecf floats_plus(vecf a, vecf b)
{
    return _mm512_add_ps(a, b);
}

INLINE vecf floats_times(vecf a, vecf b)
{
    return _mm512_mul_ps(a, b);
}

INLINE vecf floats_fma(vecf a, vecf b, vecf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* Codes of 8 bits are loaded once: compilers load them again for every row, and one load a cycle is all there is. */
INLINE veci int8_codes(veci x, int bits)
{
    if (bits < 8) return _mm512_and_si512(x, _mm512_set1_epi8((char)((1 << bits) - 1)));
    __asm__("" : "+v"(x));
    return x;
}

enum { INT8_WORDS = 0 };

/* x: activations i of four columns each. */
INLINE veci add_dots(veci sum, veci u, const int8_t *x, int64_t i, int bits)
{
    (void)bits;
    return _mm512_dpbusd_epi32(sum, u, all_fours(x + 4 * i));
}

/* two vectors each: sums of eight rows stay in registers, sums and totals of five */
enum { INT8_ONE = 5 };
#define int8_vectors(m, bits) 2

#include "kernels/cpu/isa/prepacked.h"

PREPACKED_WIDTHS(INT8_FUNCTION, 1)
PREPACKED_WIDTHS(INT8_FUNCTION, 2)
PREPACKED_WIDTHS(INT8_FUNCTION, 3)
PREPACKED_WIDTHS(INT8_FUNCTION, 4)
PREPACKED_WIDTHS(INT8_FUNCTION, 5)
PREPACKED_WIDTHS(INT8_FUNCTION, 6)
PREPACKED_WIDTHS(INT8_FUNCTION, 7)
PREPACKED_WIDTHS(INT8_FUNCTION, 8)
static void (*const int8_of[8][WIDTHS])(INT8_ARGS) = {
    {PREPACKED_WIDTHS(INT8_NAME, 1)}, {PREPACKED_WIDTHS(INT8_NAME, 2)},
    {PREPACKED_WIDTHS(INT8_NAME, 3)}, {PREPACKED_WIDTHS(INT8_NAME, 4)},
    {PREPACKED_WIDTHS(INT8_NAME, 5)}, {PREPACKED_WIDTHS(INT8_NAME, 6)},
    {PREPACKED_WIDTHS(INT8_NAME, 7)}, {PREPACKED_WIDTHS(INT8_NAME, 8)},
};

static void int8(float *y, int64_t ldy, const dq_simd_prepacked_weight *w, dq_simd_blocks b,
                 const dq_simd_prepacked_rows *a, int m)
{
    int8_of[m - 1][w->bits - LEAST_WIDTH](y, ldy, w, b, a);
}

PREPACKED_WIDTHS(F32_FUNCTION, 1)
PREPACKED_WIDTHS(F32_FUNCTION, 2)
PREPACKED_WIDTHS(F32_FUNCTION, 3)
static void (*const f32_of[3][WIDTHS])(F32_ARGS) = {
    {PREPACKED_WIDTHS(F32_NAME, 1)},
    {PREPACKED_WIDTHS(F32_NAME, 2)},
    {PREPACKED_WIDTHS(F32_NAME, 3)},
};

static void f32(float *y, int64_t ldy, const dq_simd_prepacked_weight *w, dq_simd_blocks b,
                const dq_simd_split_rows *a, int m)
{
    f32_of[m - 1][w->bits - LEAST_WIDTH](y, ldy, w, b, a);
}

const dq_simd_prepacked dq_simd_prepacked_vnni = {.int8_rows = 8,
                                                  .int8_one = INT8_ONE,
                                                  .int8_words = INT8_WORDS,
                                                  .f32_rows = 3,
                                                  .int8 = int8,
                                                  .f32 = f32,
                                                  .split = split};

#endif
