/* loops_avx512: the table for AVX-512 F, BW, DQ and VL.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/isa/kv_lines.h"

#if defined(__x86_64__)

#include "kernels/cpu/isa/vectors.h"

/* y[j] = column j of 16 rows of 16 words: pairs of rows inside 128-bit lanes, then lanes. */
INLINE void columns(__m512 y[16], const void *src, int64_t stride)
{
    const uint8_t *in = src;
    __m512 r[16], t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++, in += stride) {
        r[i] = _mm512_loadu_ps(in);
        __asm__("" : "+r"(in)); /* one address, not 16 on the stack */
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) { /* r[4i + c]: column c of each lane, rows 4i..4i+3 */
        const __m512d a = _mm512_castps_pd(t[4 * i]), b = _mm512_castps_pd(t[4 * i + 2]);
        const __m512d c = _mm512_castps_pd(t[4 * i + 1]), d = _mm512_castps_pd(t[4 * i + 3]);
        r[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
        r[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        r[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(c, d));
        r[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(c, d));
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        const __m512 lo02 = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88);
        const __m512 lo13 = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xdd);
        const __m512 hi02 = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88);
        const __m512 hi13 = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xdd);
        y[c] = _mm512_shuffle_f32x4(lo02, hi02, 0x88);
        y[4 + c] = _mm512_shuffle_f32x4(lo13, hi13, 0x88);
        y[8 + c] = _mm512_shuffle_f32x4(lo02, hi02, 0xdd);
        y[12 + c] = _mm512_shuffle_f32x4(lo13, hi13, 0xdd);
    }
}

INLINE __m128 load4(const uint8_t *from)
{
    return _mm_loadu_ps((const float *)(const void *)from);
}

/* Rows i, i + 4, i + 8 and i + 12, 4 words of each. */
INLINE __m512 lanes_of(const uint8_t *row, int64_t stride)
{
    __m512 x = _mm512_castps128_ps512(load4(row));
    x = _mm512_mask_broadcast_f32x4(x, 0x00f0, load4(row + 4 * stride));
    x = _mm512_mask_broadcast_f32x4(x, 0x0f00, load4(row + 8 * stride));
    return _mm512_mask_broadcast_f32x4(x, 0xf000, load4(row + 12 * stride));
}

/* For rows from memory: slower from the caches, but a waiting row holds up fewer instructions. */
INLINE void columns_far(__m512 y[16], const void *src, int64_t stride)
{
    const uint8_t *in = src;
    __m512 r[4][4]; /* row, lane of its line */
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++, in += stride) {
        __asm__("" : "+r"(in)); /* one address, not 16 on the stack */
#pragma GCC unroll 4
        for (int q = 0; q < 4; q++) r[i][q] = lanes_of(in + 16 * q, stride);
    }
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) {
        const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(r[0][q], r[1][q]));
        const __m512d b = _mm512_castps_pd(_mm512_unpacklo_ps(r[2][q], r[3][q]));
        const __m512d c = _mm512_castps_pd(_mm512_unpackhi_ps(r[0][q], r[1][q]));
        const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(r[2][q], r[3][q]));
        const __m512d ab = _mm512_shuffle_pd(a, b, 0x55), cd = _mm512_shuffle_pd(c, d, 0x55);
        y[4 * q] = _mm512_castpd_ps(_mm512_mask_blend_pd(0xaa, a, ab));
        y[4 * q + 1] = _mm512_castpd_ps(_mm512_mask_blend_pd(0xaa, ab, b));
        y[4 * q + 2] = _mm512_castpd_ps(_mm512_mask_blend_pd(0xaa, c, cd));
        y[4 * q + 3] = _mm512_castpd_ps(_mm512_mask_blend_pd(0xaa, cd, d));
    }
}

#define MAX_ROWS     8
#define STRIPS       1
#define TILE_VECTORS 4
#include "kernels/cpu/isa/loops.h"

/* Where x <= EXP_HIGH; a NaN stays the NaN it is. */
INLINE __m512 exp_low(__m512 x)
{
    const __m512 low = _mm512_set1_ps(EXP_LOW);
    const __m512 in = _mm512_max_ps(low, x); /* x, where that is a NaN */
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(in, _mm512_set1_ps(EXP_LOG2E)),
                                          _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 y = exp_rest(in, n);
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, low, _CMP_NLT_UQ), y, n);
}

INLINE __m512 exp_lanes(__m512 x)
{
    const __m512 high = _mm512_set1_ps(EXP_HIGH);
    __m512 y = exp_low(_mm512_min_ps(x, high));
    y = _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, high, _CMP_GT_OQ), _mm512_set1_ps(INFINITY));
    return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}

INLINE int is_above(vecf x)
{
    return _mm512_cmp_ps_mask(x, _mm512_set1_ps(EXP_HIGH), _CMP_NLE_UQ);
}

/* Four pieces of 16 slots of one scale come from 64 elements, of n = 1, 2 or 4 scales a slot. */
INLINE void turn_pieces(float *out, const uint16_t *in, const int n)
{
    const __m512i slot = _mm512_set_epi16(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 15,
                                          14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i element = _mm512_mullo_epi16(slot, _mm512_set1_epi16((short)n));
    const int pieces = 4 / n;
    for (int k = 0; k < n; k++, in += 64) {
        const __m512i a = _mm512_loadu_si512(in), b = _mm512_loadu_si512(in + 32);
#pragma GCC unroll 2
        for (int q = 0; q < 4; q += 2) { /* piece q and the one after it */
            const int first = q / pieces + q % pieces * 16 * n;
            const int second = (q + 1) / pieces + (q + 1) % pieces * 16 * n;
            const __m512i at =
                _mm512_add_epi16(element, _mm512_inserti64x4(_mm512_set1_epi16((short)first),
                                                             _mm256_set1_epi16((short)second), 1));
            const __m512i two = _mm512_permutex2var_epi16(a, at, b);
            float *to = out + k * 16 * pieces;
            _mm512_storeu_ps(to + q / pieces * 64 + q % pieces * 16,
                             _mm512_cvtph_ps(_mm512_castsi512_si256(two)));
            _mm512_storeu_ps(to + (q + 1) / pieces * 64 + (q + 1) % pieces * 16,
                             _mm512_cvtph_ps(_mm512_extracti64x4_epi64(two, 1)));
        }
    }
}

static bool turn_scales(float *out, const uint16_t *in, int64_t n)
{
    switch (n) {
    case 1: turn_pieces(out, in, 1); return true;
    case 2: turn_pieces(out, in, 2); return true;
    case 4: turn_pieces(out, in, 4); return true;
    default: return false;
    }
}

const dq_simd dq_simd_avx512 = DQ_LOOPS_TABLE("AVX-512", turn_scales);

#endif
