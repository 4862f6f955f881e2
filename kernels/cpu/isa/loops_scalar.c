/* loops_scalar: the plain C table, which defines the results of the others.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/simd.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/isa/kv_lines.h"
#include "kernels/cpu/isa/loops_exp.h"

#define DIVERGENCE_BYTES 16
#define LINES_BYTES      16
#include "kernels/cpu/isa/loops_divergence.h"
#include "kernels/cpu/isa/loops_lines.h"
#include "kernels/cpu/isa/loops_maps.h"
#include "kernels/cpu/isa/loops_powers.h"

static void gemm(float *c, int64_t ldc, const float *a, int64_t lda, const float *b, int64_t ldb,
                 int64_t m, int64_t n, int64_t k, bool add)
{
    for (int64_t i = 0; i < m; i++) {
        float sum[DQ_TILE_N] = {0};
        for (int64_t kk = 0; kk < k; kk++) {
            const float x = a[i * lda + kk], *row = b + kk * ldb;
            for (int64_t j = 0; j < n; j++) sum[j] += x * row[j];
        }
        for (int64_t j = 0; j < n; j++) c[i * ldc + j] = add ? c[i * ldc + j] + sum[j] : sum[j];
    }
}

static void skinny(float *c, int64_t ldc, const float *a, int64_t lda, const float *w, int64_t ldw,
                   int64_t m, int64_t n, int64_t k, bool add)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            const float *x = a + i * lda, *y = w + j * ldw;
            float *to = c + i * ldc + j;
            for (int64_t k0 = 0; k0 < k; k0 += DQ_CHAIN) {
                const int64_t end = k - k0 < DQ_CHAIN ? k : k0 + DQ_CHAIN;
                float sum = 0;
                for (int64_t kk = k0; kk < end; kk++) sum += x[kk] * y[kk];
                *to = add || k0 > 0 ? *to + sum : sum;
            }
        }
}

static void skinny_bf16(float *c, int64_t ldc, const float *a, int64_t lda, const uint16_t *w,
                        int64_t ldw, int64_t m, int64_t n, int64_t k, bool add)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            const float *x = a + i * lda;
            const uint16_t *y = w + j * ldw;
            float *to = c + i * ldc + j;
            for (int64_t k0 = 0; k0 < k; k0 += DQ_CHAIN) {
                const int64_t end = k - k0 < DQ_CHAIN ? k : k0 + DQ_CHAIN;
                float sum = 0;
                for (int64_t kk = k0; kk < end; kk++) sum += x[kk] * dq_f32_from_bf16(y[kk]);
                *to = add || k0 > 0 ? *to + sum : sum;
            }
        }
}

static void transpose(float *dst, int64_t ldd, const float *src, int64_t lds, int64_t rows,
                      int64_t cols)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) dst[j * ldd + i] = src[i * lds + j];
}

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
    uint32_t top = 0; /* the bits of |x| order as |x| does, with NaN above infinity */
    float f;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    memcpy(&f, &top, sizeof f);
    return f;
}

static void round_to_grid(float *x, int64_t n, float r, float qmax, float delta)
{
    for (int64_t i = 0; i < n; i++) {
        float q = rintf(x[i] * r);
        q = q < qmax ? q : qmax; /* the vector minimum's choice for NaN, too */
        q = q > -qmax ? q : -qmax;
        x[i] = q * delta;
    }
}

/* 16 lanes pairwise: i with i + 8, then + 4, + 2, + 1: how vectors fold in halves. */
static float fold16(float lane[16])
{
    for (int step = 8; step > 0; step /= 2)
        for (int i = 0; i < step; i++) lane[i] += lane[i + step];
    return lane[0];
}

static double exp_sum(float *p, const float *s, int64_t n, float m)
{
    double sum = 0;
    for (int64_t first = 0; first < n; first += 64) {
        float lane[16] = {0};
        int64_t end = n - first < 64 ? n : first + 64;
        for (int64_t i = first; i < end; i++) {
            p[i] = exp_scalar(s[i] - m);
            lane[(i - first) % 16] += p[i];
        }
        sum += (double)fold16(lane);
    }
    return sum;
}

static double sum_exp(const float *s, int64_t n, float m)
{
    double sum = 0;
    for (int64_t first = 0; first < n; first += 64) {
        float lane[16] = {0};
        int64_t end = n - first < 64 ? n : first + 64;
        for (int64_t i = first; i < end; i++) lane[(i - first) % 16] += exp_scalar(s[i] - m);
        sum += (double)fold16(lane);
    }
    return sum;
}

static void diff(float *d, const float *p1, const float *p2, int64_t n, float a, float b)
{
    for (int64_t i = 0; i < n; i++) d[i] = a * p1[i] - b * p2[i];
}

static void scale(float *x, int64_t n, float a)
{
    for (int64_t i = 0; i < n; i++) x[i] *= a;
}

static void scale_gain(float *y, const float *x, int64_t n, float a, const float *w)
{
    for (int64_t i = 0; i < n; i++) {
        float v = x[i] * a;
        y[i] = w ? v * w[i] : v;
    }
}

static double sum_squares(const float *x, int64_t n)
{
    double lane[8] = {0};
    for (int64_t i = 0; i < n; i++) lane[i % 8] += (double)x[i] * (double)x[i];
    for (int step = 4; step > 0; step /= 2)
        for (int i = 0; i < step; i++) lane[i] += lane[i + step];
    return lane[0];
}

static void add_row(float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] += y[i];
}

static void silu_mul(float *g, const float *u, int64_t n)
{
    for (int64_t i = 0; i < n; i++) g[i] = g[i] / (1.0f + exp_scalar(-g[i])) * u[i];
}

static void rotate(float *lo, float *hi, const float *cos, const float *sin, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float x = lo[i], y = hi[i];
        lo[i] = x * cos[i] - y * sin[i];
        hi[i] = y * cos[i] + x * sin[i];
    }
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

static void gemm_half(float *c, int64_t ldc, const float *a, int64_t lda, const void *b,
                      dq_dtype type, int64_t ldb, int64_t m, int64_t n, int64_t k, bool add)
{
    for (int64_t i = 0; i < m; i++) {
        float sum[DQ_TILE_N] = {0}, row[DQ_TILE_N];
        for (int64_t kk = 0; kk < k; kk++) {
            const float x = a[i * lda + kk];
            widen(row, (const uint16_t *)b + kk * ldb, type, n);
            for (int64_t j = 0; j < n; j++) sum[j] += x * row[j];
        }
        for (int64_t j = 0; j < n; j++) c[i * ldc + j] = add ? c[i * ldc + j] + sum[j] : sum[j];
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

const dq_simd dq_simd_scalar = {
    .name = "scalar",
    .gemm = gemm,
    .gemm_half = gemm_half,
    .skinny = skinny,
    .skinny_bf16 = skinny_bf16,
    .transpose = transpose,
    .scale_max = scale_max,
    .max = row_max,
    .absmax = absmax,
    .round_to_grid = round_to_grid,
    .exp_sum = exp_sum,
    .sum_exp = sum_exp,
    .divergence = divergence,
    .entropy = entropy,
    .map_sizes = map_sizes,
    .power_sums = power_sums,
    .diff = diff,
    .scale = scale,
    .scale_gain = scale_gain,
    .sum_squares = sum_squares,
    .add = add_row,
    .silu_mul = silu_mul,
    .rotate = rotate,
    .widen = widen,
    .codes = codes,
    .lines = lines,
    .read_keys = read_keys,
    .read_values = read_values,
    .read_page_keys = read_page_keys,
    .read_page_values = read_page_values,
};
