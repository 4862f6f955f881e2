/* vectors: words for vectors of AVX2 or of AVX-512, by the flags that a file is compiled with. Lanes are f32, or words of
 * 32 bits.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_VECTORS_H
#define DQ_VECTORS_H

#include "kernels/cpu/simd.h"

#include <immintrin.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES      16
#define VECTOR(x)  _mm512_##x
#define load_bits  _mm512_loadu_si512
#define store_bits _mm512_storeu_si512
#define load_half  _mm256_loadu_si256 /* 16 bits a lane */
typedef __m512i veci;
typedef __m512 vecf;
typedef __m256i vech;
#else
#define LANES      8
#define VECTOR(x)  _mm256_##x
#define load_bits  _mm256_loadu_si256
#define store_bits _mm256_storeu_si256
#define load_half  _mm_loadu_si128
typedef __m256i veci;
typedef __m256 vecf;
typedef __m128i vech;
#endif
#define VECTOR_BYTES (4 * LANES)

INLINE veci load_words(const uint8_t *p)
{
    return load_bits((const void *)p);
}

INLINE void store_words(int32_t *p, veci x)
{
    store_bits((void *)p, x);
}

INLINE veci all_words(int32_t x)
{
    return VECTOR(set1_epi32)(x);
}

INLINE veci all_fours(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return all_words(four);
}

INLINE veci words_right(veci x, int n)
{
    return VECTOR(srli_epi32)(x, n);
}

INLINE veci words_left(veci x, int n)
{
    return VECTOR(slli_epi32)(x, n);
}

INLINE veci words_plus(veci a, veci b)
{
    return VECTOR(add_epi32)(a, b);
}

INLINE veci words_less(veci a, veci b)
{
    return VECTOR(sub_epi32)(a, b);
}

INLINE veci words_times(veci a, veci b)
{
    return VECTOR(mullo_epi32)(a, b);
}

INLINE vecf load_floats(const float *p)
{
    return VECTOR(loadu_ps)(p);
}

INLINE vecf load_halves(const uint8_t *p)
{
    return VECTOR(cvtph_ps)(load_half((const void *)p));
}

INLINE void store_floats(float *p, vecf x)
{
    VECTOR(storeu_ps)(p, x);
}

INLINE vecf all_floats(float x)
{
    return VECTOR(set1_ps)(x);
}

INLINE vecf floats_of(veci x)
{
    return VECTOR(cvtepi32_ps)(x);
}

INLINE vecf floats_plus(vecf a, vecf b)
{
    return VECTOR(add_ps)(a, b);
}

INLINE vecf floats_times(vecf a, vecf b)
{
    return VECTOR(mul_ps)(a, b);
}

INLINE vecf floats_fma(vecf a, vecf b, vecf c)
{
    return VECTOR(fmadd_ps)(a, b, c);
}

#endif
