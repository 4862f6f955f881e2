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

#define MAX_ROWS    4
#define STRIPS      2
#define columns_far columns

INLINE void put_sums(float *c, __m256 s, int64_t n, bool add)
{
    float part[8];
    _mm256_storeu_ps(part, s);
    for (int64_t j = 0; j < 8 && j < n; j++) c[j] = add ? c[j] + part[j] : part[j];
}

#include "kernels/cpu/isa/loops.h"

/* One tile of mr x 8 nv elements, constants at every call as the type of B is. Columns beyond n are computed and not
 * stored. */
INLINE void tile(const dq_dtype type, const int mr, const int nv, float *c, int64_t ldc,
                 const float *a, int64_t lda, const void *from, int64_t ldb, int64_t n, int64_t k,
                 bool add)
{
    const int bytes = type == DQ_F32 ? 4 : 2;
    const uint8_t *b = from;
    __m256 s[6][2];
#pragma GCC unroll 6
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 2
        for (int j = 0; j < nv; j++) s[i][j] = _mm256_setzero_ps();
    for (int64_t kk = 0; kk < k; kk++, b += ldb * bytes) {
        __m256 w[2];
#pragma GCC unroll 2
        for (int j = 0; j < nv; j++) w[j] = load_as(b + 8 * bytes * j, type);
#pragma GCC unroll 6
        for (int i = 0; i < mr; i++) {
            const __m256 x = _mm256_broadcast_ss(a + i * lda + kk);
#pragma GCC unroll 2
            for (int j = 0; j < nv; j++) s[i][j] = _mm256_fmadd_ps(x, w[j], s[i][j]);
        }
    }
    if (n < 8 * nv) {
        float part[6][16];
#pragma GCC unroll 6
        for (int i = 0; i < mr; i++)
#pragma GCC unroll 2
            for (int j = 0; j < nv; j++) _mm256_storeu_ps(&part[i][8 * j], s[i][j]);
        for (int i = 0; i < mr; i++)
            for (int64_t j = 0; j < n; j++)
                c[i * ldc + j] = add ? c[i * ldc + j] + part[i][j] : part[i][j];
        return;
    }
#pragma GCC unroll 6
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 2
        for (int j = 0; j < nv; j++) {
            float *to = c + i * ldc + 8 * j;
            if (add) s[i][j] = _mm256_add_ps(_mm256_loadu_ps(to), s[i][j]);
            _mm256_storeu_ps(to, s[i][j]);
        }
}

INLINE void tiles(const dq_dtype type, float *c, int64_t ldc, const float *a, int64_t lda,
                  const void *from, int64_t ldb, int64_t m, int64_t n, int64_t k, bool add)
{
    const uint8_t *b = from;
    for (; m > 0; m -= 6, a += 6 * lda, c += 6 * ldc)
        for (int64_t j = 0; j < n; j += 16) {
            const int64_t w = n - j;
            const void *at = b + j * (type == DQ_F32 ? 4 : 2);
            switch (m) {
            case 5: tile(type, 5, 2, c + j, ldc, a, lda, at, ldb, w, k, add); break;
            case 4: tile(type, 4, 2, c + j, ldc, a, lda, at, ldb, w, k, add); break;
            case 3: tile(type, 3, 2, c + j, ldc, a, lda, at, ldb, w, k, add); break;
            case 2: tile(type, 2, 2, c + j, ldc, a, lda, at, ldb, w, k, add); break;
            case 1: tile(type, 1, 2, c + j, ldc, a, lda, at, ldb, w, k, add); break;
            default: tile(type, 6, 2, c + j, ldc, a, lda, at, ldb, w, k, add); break;
            }
        }
}

/* Largest of 8 lanes; none is NaN. */
INLINE float top_of(__m256 v)
{
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps(a, a, 1)));
}

float dq_simd_avx2_scale_max(float *x, int64_t n, float scale)
{
    const __m256 factor = _mm256_set1_ps(scale);
    __m256 best = _mm256_set1_ps(-INFINITY);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), factor);
        _mm256_storeu_ps(x + i, v);
        best = _mm256_max_ps(v, best); /* NaN in v gives best */
    }
    float top = top_of(best);
    for (; i < n; i++) {
        x[i] *= scale;
        top = x[i] > top ? x[i] : top;
    }
    return top;
}

float dq_simd_avx2_max(const float *x, int64_t n)
{
    __m256 best = _mm256_set1_ps(-INFINITY);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) best = _mm256_max_ps(_mm256_loadu_ps(x + i), best);
    float top = top_of(best);
    for (; i < n; i++) top = x[i] > top ? x[i] : top;
    return top;
}

float dq_simd_avx2_absmax(const float *x, int64_t n)
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i best = _mm256_setzero_si256();
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(x + i));
        best = _mm256_max_epu32(best, _mm256_and_si256(bits, mask));
    }
    uint32_t lane[8], top = 0;
    float f;
    _mm256_storeu_si256((__m256i *)(void *)lane, best);
    for (int j = 0; j < 8; j++) top = lane[j] > top ? lane[j] : top;
    for (; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    memcpy(&f, &top, sizeof f);
    return f;
}

void dq_simd_avx2_round_to_grid(float *x, int64_t n, float r, float qmax, float delta)
{
    const __m256 factor = _mm256_set1_ps(r), high = _mm256_set1_ps(qmax),
                 low = _mm256_set1_ps(-qmax);
    const __m256 step = _mm256_set1_ps(delta);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 q = _mm256_round_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), factor),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        q = _mm256_max_ps(_mm256_min_ps(q, high), low);
        _mm256_storeu_ps(x + i, _mm256_mul_ps(q, step));
    }
    for (; i < n; i++) {
        float q = rintf(x[i] * r);
        q = q < qmax ? q : qmax;
        q = q > -qmax ? q : -qmax;
        x[i] = q * delta;
    }
}

INLINE __m256 exp8(__m256 x)
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

INLINE double sum_of_exp(float *p, const float *s, int64_t n, float m)
{
    const __m256 shift = _mm256_set1_ps(m);
    double sum = 0;
    for (int64_t first = 0; first < n; first += 64) {
        const int64_t end = n - first < 64 ? n : first + 64;
        __m256 part[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        int64_t i = first;
        for (; i + 16 <= end; i += 16) {
            for (int j = 0; j < 2; j++) {
                const __m256 x = _mm256_loadu_ps(s + i + 8 * j);
                const __m256 y = exp8(_mm256_sub_ps(x, shift));
                if (p) _mm256_storeu_ps(p + i + 8 * j, y);
                part[j] = _mm256_add_ps(part[j], y);
            }
        }
        if (i < end) {
            float rest[16] = {0};
            for (int64_t j = i; j < end; j++) {
                rest[j - i] = exp_scalar(s[j] - m);
                if (p) p[j] = rest[j - i];
            }
            for (int j = 0; j < 2; j++)
                part[j] = _mm256_add_ps(part[j], _mm256_loadu_ps(rest + 8 * j));
        }
        sum += (double)fold8(_mm256_add_ps(part[0], part[1]));
    }
    return sum;
}

void dq_simd_avx2_diff(float *d, const float *p1, const float *p2, int64_t n, float a, float b)
{
    const __m256 factor = _mm256_set1_ps(a), less = _mm256_set1_ps(b);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(d + i, _mm256_sub_ps(_mm256_mul_ps(factor, _mm256_loadu_ps(p1 + i)),
                                              _mm256_mul_ps(less, _mm256_loadu_ps(p2 + i))));
    for (; i < n; i++) d[i] = a * p1[i] - b * p2[i];
}

void dq_simd_avx2_scale(float *x, int64_t n, float a)
{
    const __m256 factor = _mm256_set1_ps(a);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), factor));
    for (; i < n; i++) x[i] *= a;
}

void dq_simd_avx2_scale_gain(float *y, const float *x, int64_t n, float a, const float *w)
{
    const __m256 factor = _mm256_set1_ps(a);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), factor);
        if (w) v = _mm256_mul_ps(v, _mm256_loadu_ps(w + i));
        _mm256_storeu_ps(y + i, v);
    }
    for (; i < n; i++) {
        float v = x[i] * a;
        y[i] = w ? v * w[i] : v;
    }
}

double dq_simd_avx2_sum_squares(const float *x, int64_t n)
{
    __m256d lo = _mm256_setzero_pd(), hi = _mm256_setzero_pd();
    double lane[8];
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) { /* squares are exact in double: fusing changes nothing */
        const __m256d a = _mm256_cvtps_pd(_mm_loadu_ps(x + i));
        const __m256d b = _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4));
        lo = _mm256_fmadd_pd(a, a, lo);
        hi = _mm256_fmadd_pd(b, b, hi);
    }
    _mm256_storeu_pd(lane, lo);
    _mm256_storeu_pd(lane + 4, hi);
    for (; i < n; i++) lane[i % 8] += (double)x[i] * (double)x[i];
    for (int step = 4; step > 0; step /= 2)
        for (int j = 0; j < step; j++) lane[j] += lane[j + step];
    return lane[0];
}

void dq_simd_avx2_add(float *x, const float *y, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(x + i, _mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
    for (; i < n; i++) x[i] += y[i];
}

static void silu_mul(float *g, const float *u, int64_t n)
{
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 x = _mm256_loadu_ps(g + i);
        const __m256 y = _mm256_div_ps(x, _mm256_add_ps(one, exp8(_mm256_xor_ps(x, sign))));
        _mm256_storeu_ps(g + i, _mm256_mul_ps(y, _mm256_loadu_ps(u + i)));
    }
    for (; i < n; i++) g[i] = g[i] / (1.0f + exp_scalar(-g[i])) * u[i];
}

void dq_simd_avx2_rotate(float *lo, float *hi, const float *cos, const float *sin, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 x = _mm256_loadu_ps(lo + i), y = _mm256_loadu_ps(hi + i);
        const __m256 c = _mm256_loadu_ps(cos + i), s = _mm256_loadu_ps(sin + i);
        _mm256_storeu_ps(lo + i, _mm256_sub_ps(_mm256_mul_ps(x, c), _mm256_mul_ps(y, s)));
        _mm256_storeu_ps(hi + i, _mm256_add_ps(_mm256_mul_ps(y, c), _mm256_mul_ps(x, s)));
    }
    for (; i < n; i++) {
        const float x = lo[i], y = hi[i];
        lo[i] = x * cos[i] - y * sin[i];
        hi[i] = y * cos[i] + x * sin[i];
    }
}

static void widen(float *dst, const void *src, dq_dtype type, int64_t n)
{
    const uint8_t *in = src;
    if (type == DQ_F32) {
        memcpy(dst, src, (size_t)n * sizeof *dst);
        return;
    }
    for (int64_t i = 0; i < n; i += 8) {
        uint16_t rest[8] = {0};
        float out[8];
        const bool whole = i + 8 <= n;
        if (!whole) memcpy(rest, in + 2 * i, (size_t)(n - i) * 2);
        const void *from = whole ? (const void *)(in + 2 * i) : rest;
        const __m256 x = load_as(from, type);
        if (whole) {
            _mm256_storeu_ps(dst + i, x);
        } else {
            _mm256_storeu_ps(out, x);
            memcpy(dst + i, out, (size_t)(n - i) * sizeof *dst);
        }
    }
}

static void codes(float *dst, const uint8_t *row, int64_t row_bytes, int bits, int64_t first,
                  int64_t n, int zero, float scale)
{
    const void *bytes_of = code_bytes[bits - 2], *shift_of = code_shift[bits - 2];
    const __m128i pairs = _mm_loadu_si128((const __m128i *)bytes_of);
    const __m256i shifts = _mm256_loadu_si256((const __m256i *)shift_of);
    const __m256i mask = _mm256_set1_epi32((1 << bits) - 1);
    const __m256i none = _mm256_set1_epi32(zero);
    const __m256 factor = _mm256_set1_ps(scale);
    float out[8];
    for (int64_t i = 0; i < n; i += 8) {
        const int64_t at = (first + i) * bits / 8, left = row_bytes - at;
        uint8_t rest[16] = {0};
        if (left < 16) memcpy(rest, row + at, (size_t)left);
        const void *from = left < 16 ? (const void *)rest : row + at;
        const __m128i bytes = _mm_loadu_si128((const __m128i *)from);
        const __m256i u = _mm256_cvtepu16_epi32(_mm_shuffle_epi8(bytes, pairs));
        const __m256i q = _mm256_and_si256(_mm256_srlv_epi32(u, shifts), mask);
        const __m256 x = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(q, none)), factor);
        if (i + 8 <= n) {
            _mm256_storeu_ps(dst + i, x);
        } else {
            _mm256_storeu_ps(out, x);
            memcpy(dst + i, out, (size_t)(n - i) * sizeof *dst);
        }
    }
}

const dq_simd dq_simd_avx2 = {
    .name = "AVX2",
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
    .codes = codes,
    .lines = lines,
    .read_keys = read_keys,
    .read_values = read_values,
    .read_page_keys = read_page_keys,
    .read_page_values = read_page_values,
};

#endif
