/* vectors: words for vectors of AVX2 or AVX-512, by a file's flags; lanes have 32 bits.
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

/* Lanes from n on are 0, and their memory is not touched. */
#if defined(__AVX512F__)
INLINE __mmask16 lanes(int64_t n)
{
    return (__mmask16)(n >= LANES ? 0xffffu : (1u << n) - 1u);
}

INLINE vecf load_some(const float *p, int64_t n)
{
    return _mm512_maskz_loadu_ps(lanes(n), p);
}

INLINE void store_some(float *p, vecf x, int64_t n)
{
    _mm512_mask_storeu_ps(p, lanes(n), x);
}

INLINE vech load_some_halves(const uint8_t *p, int64_t n)
{
    return _mm256_maskz_loadu_epi16(lanes(n), p);
}

INLINE __m128i load_some_bytes(const uint8_t *p, int64_t n)
{
    return _mm_maskz_loadu_epi8(lanes(n), p);
}

INLINE vecf some_of(vecf x, int64_t n)
{
    return _mm512_maskz_mov_ps(lanes(n), x);
}
#else
INLINE veci lanes(int64_t n)
{
    static const int32_t first[2 * LANES] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return load_bits((const void *)(first + LANES - n));
}

INLINE vecf load_some(const float *p, int64_t n)
{
    return n >= LANES ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, lanes(n));
}

INLINE void store_some(float *p, vecf x, int64_t n)
{
    if (n >= LANES)
        _mm256_storeu_ps(p, x);
    else
        _mm256_maskstore_ps(p, lanes(n), x);
}

INLINE __m128i load_some_bytes(const uint8_t *p, int64_t n)
{
    uint8_t some[16] = {0};
    memcpy(some, p, (size_t)n);
    return _mm_loadu_si128((const void *)some);
}

INLINE vech load_some_halves(const uint8_t *p, int64_t n)
{
    return load_some_bytes(p, 2 * n);
}

INLINE vecf some_of(vecf x, int64_t n)
{
    return n >= LANES ? x : (vecf)((veci)x & lanes(n));
}
#endif

/* Values that the low bits of words name. */
INLINE vecf look_up(vecf table, veci at)
{
#if LANES == 16
    return _mm512_permutexvar_ps(at, table);
#else
    return _mm256_permutevar8x32_ps(table, at);
#endif
}

/* Two bytes for each lane, which `at` picks from the 16. */
INLINE vech shuffled_bytes(__m128i bytes, vech at)
{
#if LANES == 16
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), at);
#else
    return _mm_shuffle_epi8(bytes, at);
#endif
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

/* Lanes folded in halves: lane i with lane i + 8, then + 4, + 2, + 1. */
#define FOLD(ADD, x)                                                                               \
    const __m128 four = _mm_##ADD##_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));    \
    const __m128 two = _mm_##ADD##_ps(four, _mm_movehl_ps(four, four));                            \
    return _mm_cvtss_f32(_mm_##ADD##_ss(two, _mm_shuffle_ps(two, two, 1)))

/* The sum of 16 lanes in vectors of 8 or 16. */
enum { PARTS = 16 / LANES };
INLINE float fold16(const vecf part[PARTS])
{
#if LANES == 16
    const __m256 x = _mm256_add_ps(_mm512_castps512_ps256(*part), _mm512_extractf32x8_ps(*part, 1));
#else
    const __m256 x = _mm256_add_ps(part[0], part[1]);
#endif
    FOLD(add, x);
}

/* The largest lane; none is NaN. */
INLINE float top_of(vecf v)
{
#if LANES == 16
    const __m256 x = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
#else
    const __m256 x = v;
#endif
    FOLD(max, x);
}

INLINE vecf floats_fma(vecf a, vecf b, vecf c)
{
    return VECTOR(fmadd_ps)(a, b, c);
}

#endif
