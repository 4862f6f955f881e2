/* prepacked_vnni: products with prepacked weights with AVX-512 VNNI, with flags of its own.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/simd.h"

#if defined(__x86_64__)

#include "kernels/cpu/isa/vectors.h"

INLINE veci load_bytes(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
}

/* The low n bits of every byte of a, the others of b. */
INLINE veci low_bits_or(int n, veci a, veci b)
{
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8((char)((1 << n) - 1)), a, b, 0xca);
}

/* 8-bit codes are loaded once: compilers load them for every row, at one load a cycle. */
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

#define INT8_ROWS 8
#define F32_ROWS  3
#include "kernels/cpu/isa/prepacked.h"

const dq_simd_prepacked dq_simd_prepacked_vnni = {.int8_rows = INT8_ROWS,
                                                  .int8_one = INT8_ONE,
                                                  .int8_words = INT8_WORDS,
                                                  .f32_rows = F32_ROWS,
                                                  .int8 = int8,
                                                  .f32 = f32,
                                                  .split = split};

#endif
