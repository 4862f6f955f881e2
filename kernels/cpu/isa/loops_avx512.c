/* loops_avx512: the table for AVX-512 F, BW, DQ and VL.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/isa/kv_lines.h"

#if defined(__x86_64__)

#include "kernels/cpu/isa/vectors.h"

static __mmask16 lanes(int64_t n)
{
    return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1u);
}

/* y[j] = column j of 16 rows of 16 words, `stride` bytes apart: pairs of rows inside 128-bit lanes, then lanes. */
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

/* The same columns of rows that come from memory: loads put words into their 128-bit lanes, and of 64 bits a shuffle mixes
 * what two blends take apart. From the caches it is slower, but waiting rows hold up fewer instructions. */
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

#define MAX_ROWS 8
#define STRIPS   1

INLINE void put_sums(float *c, __m512 s, int64_t n, bool add)
{
    const __mmask16 keep = lanes(n);
    _mm512_mask_storeu_ps(c, keep, add ? _mm512_add_ps(_mm512_maskz_loadu_ps(keep, c), s) : s);
}

#include "kernels/cpu/isa/loops.h"

/* One tile of mr x 16 nv elements; mr, nv and the type of B are constants at every call, so that the sums stay in
 * registers. `last` selects the columns of the last vector. */
INLINE void tile(const dq_dtype type, const int mr, const int nv, float *c, int64_t ldc,
                 const float *a, int64_t lda, const void *from, int64_t ldb, int64_t k, bool add,
                 __mmask16 last)
{
    const int bytes = type == DQ_F32 ? 4 : 2;
    const uint8_t *b = from;
    __m512 s[6][4];
#pragma GCC unroll 6
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) s[i][j] = _mm512_setzero_ps();
    for (int64_t kk = 0; kk < k; kk++) {
        __m512 w[4];
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) w[j] = load_as(b + 16 * bytes * j, type);
        b += ldb * bytes;
#pragma GCC unroll 6
        for (int i = 0; i < mr; i++) {
            const __m512 x = _mm512_set1_ps(a[i * lda + kk]);
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) s[i][j] = _mm512_fmadd_ps(x, w[j], s[i][j]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) {
            float *to = c + i * ldc + 16 * j;
            const __mmask16 keep = j + 1 < nv ? (__mmask16)0xffff : last;
            if (add) s[i][j] = _mm512_add_ps(_mm512_maskz_loadu_ps(keep, to), s[i][j]);
            _mm512_mask_storeu_ps(to, keep, s[i][j]);
        }
}

INLINE void rows_of_tiles(const dq_dtype type, const int nv, float *c, int64_t ldc, const float *a,
                          int64_t lda, const void *b, int64_t ldb, int64_t m, int64_t k, bool add,
                          __mmask16 last)
{
    for (; m >= 6; m -= 6, a += 6 * lda, c += 6 * ldc)
        tile(type, 6, nv, c, ldc, a, lda, b, ldb, k, add, last);
    switch (m) {
    case 5: tile(type, 5, nv, c, ldc, a, lda, b, ldb, k, add, last); break;
    case 4: tile(type, 4, nv, c, ldc, a, lda, b, ldb, k, add, last); break;
    case 3: tile(type, 3, nv, c, ldc, a, lda, b, ldb, k, add, last); break;
    case 2: tile(type, 2, nv, c, ldc, a, lda, b, ldb, k, add, last); break;
    case 1: tile(type, 1, nv, c, ldc, a, lda, b, ldb, k, add, last); break;
    default: break;
    }
}

INLINE void tiles(const dq_dtype type, float *c, int64_t ldc, const float *a, int64_t lda,
                  const void *b, int64_t ldb, int64_t m, int64_t n, int64_t k, bool add)
{
    const int64_t nv = (n + 15) / 16;
    const __mmask16 last = lanes(n - 16 * (nv - 1));
    switch (nv) {
    case 4: rows_of_tiles(type, 4, c, ldc, a, lda, b, ldb, m, k, add, last); break;
    case 3: rows_of_tiles(type, 3, c, ldc, a, lda, b, ldb, m, k, add, last); break;
    case 2: rows_of_tiles(type, 2, c, ldc, a, lda, b, ldb, m, k, add, last); break;
    default: rows_of_tiles(type, 1, c, ldc, a, lda, b, ldb, m, k, add, last); break;
    }
}

/* Where x <= EXP_HIGH; a NaN stays the NaN it is. */
INLINE __m512 exp16_low(__m512 x)
{
    const __m512 low = _mm512_set1_ps(EXP_LOW);
    const __m512 in = _mm512_max_ps(low, x); /* x, where that is a NaN */
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(in, _mm512_set1_ps(EXP_LOG2E)),
                                          _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 y = exp_rest(in, n);
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, low, _CMP_NLT_UQ), y, n);
}

INLINE __m512 exp16(__m512 x)
{
    const __m512 high = _mm512_set1_ps(EXP_HIGH);
    __m512 y = exp16_low(_mm512_min_ps(x, high));
    y = _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, high, _CMP_GT_OQ), _mm512_set1_ps(INFINITY));
    return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}

/* Lane i with lane i + 8, then + 4, + 2, + 1. */
INLINE float fold(__m512 s)
{
    return fold8(_mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1)));
}

INLINE double sum_of_exp(float *p, const float *s, int64_t n, float m)
{
    const __m512 shift = _mm512_set1_ps(m);
    double sum = 0;
    int64_t first = 0;
    for (; first + 64 <= n; first += 64) {
        __m512 part = _mm512_setzero_ps(), x[4];
        __mmask16 other = 0; /* hardly ever: less than all that is subtracted is never above 0 */
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            x[i] = _mm512_sub_ps(_mm512_loadu_ps(s + first + 16 * i), shift);
            other |= _mm512_cmp_ps_mask(x[i], _mm512_set1_ps(EXP_HIGH), _CMP_NLE_UQ);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const __m512 y = other ? exp16(x[i]) : exp16_low(x[i]);
            if (p) _mm512_storeu_ps(p + first + 16 * i, y);
            part = _mm512_add_ps(part, y);
        }
        sum += (double)fold(part);
    }
    __m512 part = _mm512_setzero_ps();
    for (int64_t i = first; i < n; i += 16) {
        const __mmask16 keep = lanes(n - i);
        const __m512 x = _mm512_sub_ps(_mm512_maskz_loadu_ps(keep, s + i), shift);
        const __m512 y = _mm512_maskz_mov_ps(keep, exp16(x));
        if (p) _mm512_mask_storeu_ps(p + i, keep, y);
        part = _mm512_add_ps(part, y);
    }
    return first < n ? sum + (double)fold(part) : sum;
}

static void silu_mul(float *g, const float *u, int64_t n)
{
    const __m512 one = _mm512_set1_ps(1.0f), sign = _mm512_set1_ps(-0.0f);
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 keep = lanes(n - i);
        const __m512 x = _mm512_maskz_loadu_ps(keep, g + i);
        const __m512 y = _mm512_div_ps(x, _mm512_add_ps(one, exp16(_mm512_xor_ps(x, sign))));
        _mm512_mask_storeu_ps(g + i, keep, _mm512_mul_ps(y, _mm512_maskz_loadu_ps(keep, u + i)));
    }
}

/* Up to 4 bits the value is looked up: the selector reads the low 4 bits of an index, and what they
 * hold above the code does not matter when the table repeats. */
static void codes(float *dst, const uint8_t *row, int64_t row_bytes, int bits, int64_t first,
                  int64_t n, int zero, float scale)
{
    const __m256i pairs = _mm256_loadu_si256((const __m256i *)(const void *)code_bytes[bits - 2]);
    const __m512i shifts = _mm512_loadu_si512(code_shift[bits - 2]);
    const __m512i mask = _mm512_set1_epi32((1 << bits) - 1);
    const __m512i none = _mm512_set1_epi32(zero);
    const __m512 factor = _mm512_set1_ps(scale);
    const __m512i counts = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i small = _mm512_sub_epi32(_mm512_and_si512(counts, mask), none);
    const __m512 table = _mm512_mul_ps(_mm512_cvtepi32_ps(small), factor);
    for (int64_t i = 0; i < n; i += 16) {
        const int64_t at = (first + i) * bits / 8, left = row_bytes - at;
        const __m128i in = left >= 16 ? _mm_loadu_si128((const __m128i *)(const void *)(row + at))
                                      : _mm_maskz_loadu_epi8(lanes(left), row + at);
        const __m256i bytes = _mm256_broadcastsi128_si256(in);
        const __m512i u = _mm512_cvtepu16_epi32(_mm256_shuffle_epi8(bytes, pairs));
        const __m512i q = _mm512_srlv_epi32(u, shifts);
        __m512 x;
        if (bits <= 4) {
            x = _mm512_permutexvar_ps(q, table);
        } else {
            const __m512i code = _mm512_sub_epi32(_mm512_and_si512(q, mask), none);
            x = _mm512_mul_ps(_mm512_cvtepi32_ps(code), factor);
        }
        if (n - i >= 16)
            _mm512_storeu_ps(dst + i, x);
        else
            _mm512_mask_storeu_ps(dst + i, lanes(n - i), x);
    }
}

static void widen(float *dst, const void *src, dq_dtype type, int64_t n)
{
    const uint8_t *in = src;
    int64_t i = 0;
    if (type == DQ_F32) {
        memcpy(dst, src, (size_t)n * sizeof *dst);
        return;
    }
    for (; type == DQ_BF16 && i + 16 <= n; i += 16)
        _mm512_storeu_ps(dst + i, load_as(in + 2 * i, DQ_BF16));
    for (; type == DQ_F16 && i + 16 <= n; i += 16)
        _mm512_storeu_ps(dst + i, load_as(in + 2 * i, DQ_F16));
    if (i < n) {
        const __mmask16 keep = lanes(n - i);
        _mm512_mask_storeu_ps(dst + i, keep,
                              as_floats(_mm256_maskz_loadu_epi16(keep, in + 2 * i), type));
    }
}

/* Four pieces of 16 slots of one scale come of 64 elements: of n = 4 a piece each, of 2 two, of 1 all of them. */
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

const dq_simd dq_simd_avx512 = {
    .name = "AVX-512",
    .gemm = gemm,
    .gemm_half = gemm_half,
    .skinny = skinny,
    .skinny_bf16 = skinny_bf16,
    .transpose = transpose,
    .scale_max = dq_simd_avx2_scale_max,
    .max = dq_simd_avx2_max,
    .absmax = dq_simd_avx2_absmax,
    .round_to_grid = dq_simd_avx2_round_to_grid,
    .exp_sum = exp_sum,
    .sum_exp = sum_exp,
    .divergence = divergence,
    .entropy = entropy,
    .map_sizes = map_sizes,
    .power_sums = power_sums,
    .diff = dq_simd_avx2_diff,
    .scale = dq_simd_avx2_scale,
    .scale_gain = dq_simd_avx2_scale_gain,
    .sum_squares = dq_simd_avx2_sum_squares,
    .add = dq_simd_avx2_add,
    .silu_mul = silu_mul,
    .rotate = dq_simd_avx2_rotate,
    .widen = widen,
    .turn_scales = turn_scales,
    .codes = codes,
    .lines = lines,
    .read_keys = read_keys,
    .read_values = read_values,
    .read_page_keys = read_page_keys,
    .read_page_values = read_page_values,
};

#endif
