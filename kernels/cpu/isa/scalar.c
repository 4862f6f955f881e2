/* scalar: the tables in plain C, which define the results of the others.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/isa/kv_lines.h"
#include "kernels/cpu/simd.h"
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

/* ---- loops */

#define VECTOR_BYTES 16
INLINE double sum_of_exp(float *p, const float *s, int64_t n, float m);
#include "kernels/cpu/isa/loops.h"

static float scale_max(float *x, int64_t n, float scale)
{
    float top = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        x[i] *= scale;
        top = x[i] > top ? x[i] : top;
    }
    return top;
}

static float row_max(const float *x, int64_t n)
{
    float top = -INFINITY;
    for (int64_t i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
    return top;
}

static float absmax(const float *x, int64_t n)
{
    int32_t top = 0; /* the bits of |x| order as |x| does, with NaN above infinity */
    float f;
    for (int64_t i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= INT32_MAX;
        top = bits > top ? bits : top;
    }
    memcpy(&f, &top, sizeof f);
    return f;
}

static float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h >> 15) << 31, exponent = (h >> 10) & 31u, mantissa = h & 1023u;
    uint32_t bits;
    float f;
    if (exponent == 31) {
        /* a signalling NaN becomes quiet, as the conversion instruction does */
        bits = sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0);
    } else if (exponent == 0) {
        f = (float)mantissa * 0x1p-24f;
        memcpy(&bits, &f, sizeof bits);
        bits |= sign;
    } else {
        bits = sign | (exponent + 112) << 23 | mantissa << 13;
    }
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void widen(float *dst, const void *src, dq_dtype type, int64_t n)
{
    const uint8_t *in = src;
    if (type == DQ_F32) {
        memcpy(dst, src, (size_t)n * sizeof *dst);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, in + 2 * i, sizeof h);
        if (type == DQ_BF16) {
            uint32_t bits = (uint32_t)h << 16;
            memcpy(&dst[i], &bits, sizeof bits);
        } else {
            dst[i] = half_to_float(h);
        }
    }
}

INLINE void gemm_as(const dq_dtype type, float *c, int64_t ldc, const float *a, int64_t lda,
                    const void *b, int64_t ldb, int64_t m, int64_t n, int64_t k, bool add)
{
    for (int64_t i = 0; i < m; i++) {
        float sum[DQ_TILE_N] = {0}, own[DQ_TILE_N];
        for (int64_t kk = 0; kk < k; kk++) {
            const float x = a[i * lda + kk], *row = (const float *)b + kk * ldb;
            if (type != DQ_F32) {
                widen(own, (const uint16_t *)b + kk * ldb, type, n);
                row = own;
            }
            for (int64_t j = 0; j < n; j++) sum[j] += x * row[j];
        }
        for (int64_t j = 0; j < n; j++) c[i * ldc + j] = add ? c[i * ldc + j] + sum[j] : sum[j];
    }
}

static void gemm(float *c, int64_t ldc, const float *a, int64_t lda, const float *b, int64_t ldb,
                 int64_t m, int64_t n, int64_t k, bool add)
{
    gemm_as(DQ_F32, c, ldc, a, lda, b, ldb, m, n, k, add);
}

static void gemm_half(float *c, int64_t ldc, const float *a, int64_t lda, const void *b,
                      dq_dtype type, int64_t ldb, int64_t m, int64_t n, int64_t k, bool add)
{
    gemm_as(type == DQ_F16 ? DQ_F16 : DQ_BF16, c, ldc, a, lda, b, ldb, m, n, k, add);
}

INLINE void skinny_as(const dq_dtype type, float *c, int64_t ldc, const float *a, int64_t lda,
                      const void *w, int64_t ldw, int64_t m, int64_t n, int64_t k, bool add)
{
    for (int64_t e = 0; e < m * n; e++) {
        const int64_t i = e / n, j = e % n;
        const float *x = a + i * lda, *y = (const float *)w + j * ldw;
        const uint16_t *half = (const uint16_t *)w + j * ldw;
        float *to = c + i * ldc + j;
        for (int64_t k0 = 0; k0 < k; k0 += DQ_CHAIN) {
            const int64_t end = k - k0 < DQ_CHAIN ? k : k0 + DQ_CHAIN;
            float sum = 0;
            for (int64_t kk = k0; kk < end; kk++)
                sum += x[kk] * (type == DQ_F32 ? y[kk] : dq_f32_from_bf16(half[kk]));
            *to = add || k0 > 0 ? *to + sum : sum;
        }
    }
}

static void skinny(float *c, int64_t ldc, const float *a, int64_t lda, const float *w, int64_t ldw,
                   int64_t m, int64_t n, int64_t k, bool add)
{
    skinny_as(DQ_F32, c, ldc, a, lda, w, ldw, m, n, k, add);
}

static void skinny_bf16(float *c, int64_t ldc, const float *a, int64_t lda, const uint16_t *w,
                        int64_t ldw, int64_t m, int64_t n, int64_t k, bool add)
{
    skinny_as(DQ_BF16, c, ldc, a, lda, w, ldw, m, n, k, add);
}

static void transpose(float *dst, int64_t ldd, const float *src, int64_t lds, int64_t rows,
                      int64_t cols)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) dst[j * ldd + i] = src[i * lds + j];
}

INLINE double sum_of_exp(float *p, const float *s, int64_t n, float m)
{
    double sum = 0;
    for (int64_t first = 0; first < n; first += 64) {
        float lane[16] = {0};
        int64_t end = n - first < 64 ? n : first + 64;
        for (int64_t i = first; i < end; i++) {
            const float e = exp_scalar(s[i] - m);
            if (p) p[i] = e;
            lane[(i - first) % 16] += e;
        }
        for (int step = 8; step > 0; step /= 2) /* pairwise: how vectors fold in halves */
            for (int i = 0; i < step; i++) lane[i] += lane[i + step];
        sum += (double)lane[0];
    }
    return sum;
}

static void silu_mul(float *g, const float *u, int64_t n)
{
    for (int64_t i = 0; i < n; i++) g[i] = g[i] / (1.0f + exp_scalar(-g[i])) * u[i];
}

static void gelu_mul(float *g, const float *u, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float x = g[i], t = x * (DQ_GELU_A + DQ_GELU_B * (x * x));
        g[i] = x / (1.0f + exp_scalar(-t)) * u[i];
    }
}

static void codes(float *dst, const uint8_t *row, int64_t row_bytes, int bits, int64_t first,
                  int64_t n, int zero, float scale)
{
    const unsigned mask = (1u << bits) - 1;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = (first + i) * bits, byte = at / 8;
        unsigned u = row[byte];
        if (byte + 1 < row_bytes) u |= (unsigned)row[byte + 1] << 8;
        dst[i] = (float)((int)(u >> (at % 8) & mask) - zero) * scale;
    }
}

const dq_simd dq_simd_scalar = DQ_LOOPS_TABLE("scalar", NULL);

/* ---- prepacked weights */

#define LANES 16

typedef struct veci {
    uint32_t x[LANES];
} veci;

typedef struct vecf {
    float x[LANES];
} vecf;

#define EACH(T, NAME, ARGUMENTS, VALUE)                                                            \
    static inline T NAME ARGUMENTS                                                                 \
    {                                                                                              \
        T to;                                                                                      \
        for (int i = 0; i < LANES; i++) to.x[i] = VALUE;                                           \
        return to;                                                                                 \
    }

EACH(veci, load_bytes, (const uint8_t *p), p[i])
EACH(veci, all_words, (int32_t x), (uint32_t)x)
EACH(veci, words_right, (veci a, int n), a.x[i] >> n)
EACH(veci, words_left, (veci a, int n), a.x[i] << n)
EACH(veci, words_plus, (veci a, veci b), a.x[i] + b.x[i])
EACH(veci, words_less, (veci a, veci b), a.x[i] - b.x[i])
EACH(veci, words_times, (veci a, veci b), a.x[i] * b.x[i])
EACH(vecf, load_floats, (const float *p), p[i])
EACH(vecf, load_halves, (const uint8_t *p),
     dq_f32_from_f16((uint16_t)(p[2 * i] | p[2 * i + 1] << 8)))
EACH(vecf, all_floats, (float x), x)
EACH(vecf, floats_of, (veci a), (float)(int32_t)a.x[i])
EACH(vecf, floats_plus, (vecf a, vecf b), a.x[i] + b.x[i])
EACH(vecf, floats_times, (vecf a, vecf b), a.x[i] * b.x[i])
EACH(vecf, floats_fma, (vecf a, vecf b, vecf c), a.x[i] * b.x[i] + c.x[i])

static inline veci load_words(const uint8_t *p)
{
    veci to;
    memcpy(to.x, p, sizeof to.x);
    return to;
}

static inline veci all_fours(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return all_words(four);
}

/* The low n bits of every byte of a, the others of b. */
static inline veci low_bits_or(int n, veci a, veci b)
{
    const uint32_t mask = 0x01010101u * ((1u << n) - 1);
    veci to;
    for (int i = 0; i < LANES; i++) to.x[i] = (a.x[i] & mask) | (b.x[i] & ~mask);
    return to;
}

static inline void store_floats(float *p, vecf a)
{
    memcpy(p, a.x, sizeof a.x);
}

static inline veci int8_codes(veci a, int bits)
{
    for (int i = 0; i < LANES; i++) a.x[i] &= 0x01010101u * ((1u << bits) - 1);
    return a;
}

enum { INT8_WORDS = 0 };

/* at: activations i of four columns each. */
static inline veci add_dots(veci sum, veci u, const int8_t *at, int64_t i4, int bits)
{
    const veci x = all_fours(at + 4 * i4);
    (void)bits;
    for (int i = 0; i < LANES; i++)
        for (int k = 0; k < 32; k += 8) {
            const int32_t part = (int32_t)(u.x[i] >> k & 255) * (int8_t)(uint8_t)(x.x[i] >> k);
            sum.x[i] += (uint32_t)part;
        }
    return sum;
}

static inline void store_words(int32_t *p, veci a)
{
    memcpy(p, a.x, sizeof a.x);
}

enum { INT8_ONE = 8 };

#include "kernels/cpu/isa/prepacked.h"

static void int8(float *y, int64_t ldy, const dq_simd_prepacked_weight *w, dq_simd_blocks b,
                 const dq_simd_prepacked_rows *a, int m)
{
    for (int k = 0; k < b.n; k++, b.at += b.apart, y += DQ_PREPACKED_ROWS)
        prepacked_int8_one(y, ldy, w, b.at, 0, a, m, 2, w->bits);
}

static void f32(float *y, int64_t ldy, const dq_simd_prepacked_weight *w, dq_simd_blocks b,
                const dq_simd_split_rows *a, int m)
{
    for (int k = 0; k < b.n; k++, b.at += b.apart, y += DQ_PREPACKED_ROWS)
        prepacked_f32_one(y, ldy, w, b.at, 0, a, m, 2, w->bits);
}

const dq_simd_prepacked dq_simd_prepacked_scalar = {.int8_rows = 8,
                                                    .int8_one = INT8_ONE,
                                                    .int8_words = INT8_WORDS,
                                                    .f32_rows = 3,
                                                    .int8 = int8,
                                                    .f32 = f32,
                                                    .split = split};

/* ---- pages */

/* Columns in their own order. */
static void pages_quads(uint8_t *block, const uint8_t *const line[4], int bits, int64_t n,
                        int64_t chunk)
{
    const int64_t left = n - chunk * 64, cols = left < 64 ? left : 64;
    memset(block, 0, 256);
    for (int i = 0; i < 4; i++) {
        uint8_t u[DQ_KV_LINE];
        if (!line[i]) continue;
        kv_unsigned(u, line[i], bits, n);
        for (int64_t c = 0; c < cols; c++) block[4 * c + i] = u[chunk * 64 + c];
    }
}

static void pages_dots(int32_t *sum, const int8_t *const a[4], int64_t lda, const uint8_t *block,
                       int64_t m, int64_t k)
{
    memset(sum, 0, (size_t)m * 64 * sizeof *sum);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t kk = 0; kk < k; kk += 4) {
            const uint8_t *part = block + kk * 64;
            for (int64_t c = 0; c < 64; c++) {
                const int8_t *x = a[c / 16] + i * lda + kk;
                sum[i * 64 + c] += x[0] * part[4 * c] + x[1] * part[4 * c + 1] +
                                   x[2] * part[4 * c + 2] + x[3] * part[4 * c + 3];
            }
        }
    }
}

#include "kernels/cpu/isa/pages.h"

const dq_simd_pages dq_simd_pages_scalar = DQ_PAGES_TABLE;
