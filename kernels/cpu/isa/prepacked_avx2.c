/* prepacked_avx2: products with prepacked weights with AVX2, FMA and F16C. Compiled with flags of its own.
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

/* Sums of two products of unsigned and signed bytes stay below 2^15 for codes of at most 7 bits. Bytes of 8 bits are
 * multiplied as words of 16, even and odd columns apart, and so are their activations packed, but where codes are unpacked. */
enum { INT8_WORDS = 8 };

VEC veci int8_codes(veci x, int bits)
{
    return bits == 8 ? x : _mm256_and_si256(x, _mm256_set1_epi8((char)((1 << bits) - 1)));
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

VEC veci add_words(veci sum, veci u, veci even, veci odd)
{
    const veci low = _mm256_and_si256(u, _mm256_set1_epi16(255)), high = _mm256_srli_epi16(u, 8);
    sum = in_order(_mm256_add_epi32(sum, _mm256_madd_epi16(low, even)));
    return in_order(_mm256_add_epi32(sum, _mm256_madd_epi16(high, odd)));
}

/* x: activations i of four columns each. */
VEC veci add_dots(veci sum, veci u, const int8_t *x, int64_t i, int bits)
{
    if (bits == INT8_WORDS)
        return add_words(sum, u, all_fours(x + 8 * i), all_fours(x + 8 * i + 4));
    return add_both(sum, _mm256_maddubs_epi16(u, all_fours(x + 4 * i)));
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

/* Vectors of weights that are multiplied by m rows at a time: codes of a run and sums shall stay in 16 registers. */
VEC int int8_vectors(int m, int bits)
{
    const int run = int8_run(bits);
    return m > 4 ? 1 : run == 4 ? (m <= 2 ? 2 : 1) : m <= (run == 8 ? 2 : 1) ? 4 : 2;
}

/* Of bytes less 128: their magnitudes, 128 at most, and -1 where they are negative, else 0. */
VEC veci byte_sizes(veci u)
{
    return _mm256_abs_epi8(_mm256_xor_si256(u, _mm256_set1_epi8(-128)));
}

VEC veci byte_signs(veci u)
{
    return _mm256_cmpgt_epi8(_mm256_setzero_si256(), _mm256_xor_si256(u, _mm256_set1_epi8(-128)));
}

/* sum + (x ^ sign) * size: no pair leaves 16 bits, as 2 * 128 * -128 does not. */
VEC veci add_signed(veci sum, veci size, veci sign, veci x)
{
    return add_both(sum, _mm256_maddubs_epi16(size, _mm256_xor_si256(x, sign)));
}

/* sum + the sizes that have a sign. */
VEC veci add_negative(veci sum, veci size, veci sign)
{
    return words_less(sum,
                      _mm256_madd_epi16(_mm256_maddubs_epi16(size, sign), _mm256_set1_epi16(1)));
}

#include "kernels/cpu/isa/prepacked_split.h"
#include "kernels/cpu/isa/prepacked_unpacked.h"

PREPACKED_WIDTHS(UNPACK_FUNCTION, 1)
static void unpack(uint8_t *to, const dq_simd_prepacked_weight *w, const uint8_t *block,
                   int64_t group, int64_t chunks)
{
    static void (*const of[WIDTHS])(uint8_t *, const dq_simd_prepacked_weight *, const uint8_t *,
                                    int64_t, int64_t) = {PREPACKED_WIDTHS(UNPACK_NAME, 1)};
    of[w->bits - LEAST_WIDTH](to, w, block, group, chunks);
}

PREPACKED_WIDTHS(UNPACKED_FUNCTION, 2)
PREPACKED_WIDTHS(UNPACKED_FUNCTION, 3)
PREPACKED_WIDTHS(UNPACKED_FUNCTION, 4)
static void (*const unpacked_of[3][WIDTHS])(UNPACKED_ARGS) = {
    {PREPACKED_WIDTHS(UNPACKED_NAME, 2)},
    {PREPACKED_WIDTHS(UNPACKED_NAME, 3)},
    {PREPACKED_WIDTHS(UNPACKED_NAME, 4)},
};

static void int8_unpacked(float *y, int64_t ldy, const dq_simd_prepacked_weight *w,
                          const uint8_t *unpacked, int64_t chunks, const dq_simd_prepacked_rows *a,
                          int m, bool add)
{
    unpacked_of[m - 2][w->bits - LEAST_WIDTH](y, ldy, w, unpacked, chunks, a, add);
}

PREPACKED_WIDTHS(INT8_FUNCTION, 1)
PREPACKED_WIDTHS(INT8_FUNCTION, 2)
PREPACKED_WIDTHS(INT8_FUNCTION, 3)
PREPACKED_WIDTHS(INT8_FUNCTION, 4)
static void (*const int8_of[4][WIDTHS])(INT8_ARGS) = {
    {PREPACKED_WIDTHS(INT8_NAME, 1)},
    {PREPACKED_WIDTHS(INT8_NAME, 2)},
    {PREPACKED_WIDTHS(INT8_NAME, 3)},
    {PREPACKED_WIDTHS(INT8_NAME, 4)},
};

static void int8(float *y, int64_t ldy, const dq_simd_prepacked_weight *w, dq_simd_blocks b,
                 const dq_simd_prepacked_rows *a, int m)
{
    int8_of[m - 1][w->bits - LEAST_WIDTH](y, ldy, w, b, a);
}

PREPACKED_WIDTHS(F32_FUNCTION, 1)
PREPACKED_WIDTHS(F32_FUNCTION, 2)
static void (*const f32_of[2][WIDTHS])(F32_ARGS) = {
    {PREPACKED_WIDTHS(F32_NAME, 1)},
    {PREPACKED_WIDTHS(F32_NAME, 2)},
};

static void f32(float *y, int64_t ldy, const dq_simd_prepacked_weight *w, dq_simd_blocks b,
                const dq_simd_split_rows *a, int m)
{
    f32_of[m - 1][w->bits - LEAST_WIDTH](y, ldy, w, b, a);
}

const dq_simd_prepacked dq_simd_prepacked_avx2 = {.int8_rows = 4,
                                                  .int8_one = INT8_ONE,
                                                  .int8_words = INT8_WORDS,
                                                  .f32_rows = 2,
                                                  .int8 = int8,
                                                  .f32 = f32,
                                                  .unpack = unpack,
                                                  .int8_unpacked = int8_unpacked,
                                                  .split = split};

#endif
