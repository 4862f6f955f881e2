/* loops_avx2: the table for AVX2, FMA and F16C.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/isa/kv_lines.h"

#if defined(__x86_64__)

#include "kernels/cpu/isa/vectors.h"

/* y[j] = column j of 8 rows of 8 words, `stride` bytes apart. */
INLINE void columns(__m256 y[8], const void *src, int64_t stride)
{
    const uint8_t *in = src;
    __m256 r[8], t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        r[i] = _mm256_loadu_ps((const float *)(const void *)(in + i * stride));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) { /* r[4i + c]: column c of each lane, rows 4i..4i+3 */
        r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        y[c] = _mm256_permute2f128_ps(r[c], r[4 + c], 0x20);
        y[4 + c] = _mm256_permute2f128_ps(r[c], r[4 + c], 0x31);
    }
}

#define MAX_ROWS     4
#define STRIPS       2
#define TILE_VECTORS 2
#define columns_far  columns
#include "kernels/cpu/isa/loops.h"

INLINE __m256 exp_lanes(__m256 x)
{
    const __m256 low = _mm256_set1_ps(EXP_LOW), high = _mm256_set1_ps(EXP_HIGH);
    const __m256 in = _mm256_max_ps(_mm256_min_ps(x, high), low);
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(in, _mm256_set1_ps(EXP_LOG2E)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 y = exp_rest(in, n);
    const __m256i k = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(k, 1);
    const __m256i rest = _mm256_sub_epi32(k, half), bias = _mm256_set1_epi32(127);
    const __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    const __m256i b = _mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23);
    y = _mm256_mul_ps(_mm256_mul_ps(y, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b));
    y = _mm256_andnot_ps(_mm256_cmp_ps(x, low, _CMP_LT_OQ), y);
    y = _mm256_blendv_ps(y, _mm256_set1_ps(INFINITY), _mm256_cmp_ps(x, high, _CMP_GT_OQ));
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

INLINE vecf exp_low(vecf x)
{
    return exp_lanes(x);
}

INLINE int is_above(vecf x)
{
    (void)x;
    return 0;
}

const dq_simd dq_simd_avx2 = DQ_LOOPS_TABLE("AVX2", NULL);

#endif
