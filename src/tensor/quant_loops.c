/* quant_loops: see quant_loops.h. Each loop is written once, as an inline function, and a macro makes a plain and an
 * AVX2 function of it; the table for this machine is chosen at the first call.
 * SPDX-License-Identifier: MIT */
#include "tensor/quant_loops.h"

#include "base/os.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* The one text of each loop, expanded into a plain and a wide function below. */
#define INLINE static inline __attribute__((always_inline))

/* Adding and subtracting 1.5 * 2^23 rounds to an integer, ties to even, for |x| < 2^22: what rintf
 * does, but in a form that becomes vector code on every machine. */
static const float round_magic = 12582912.0f;

INLINE uint32_t top32(const void *src, int64_t n)
{
    const uint8_t *p = src;
    int32_t top = 0; /* signed: that is what older vector units compare */
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < n; i++) {
        int32_t u;
        memcpy(&u, p + 4 * i, sizeof u);
        u &= 0x7fffffff;
        top = u > top ? u : top;
    }
    return (uint32_t)top;
}

INLINE uint32_t top16(const void *src, int64_t n)
{
    const uint8_t *p = src;
    int16_t top = 0;
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < n; i++) {
        int16_t u;
        memcpy(&u, p + 2 * i, sizeof u);
        u = (int16_t)(u & 0x7fff);
        top = u > top ? u : top;
    }
    return (uint32_t)top;
}

INLINE void widen_bf16(float *dst, const void *src, int64_t n)
{
    const uint8_t *p = src;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, sizeof h);
        uint32_t u = (uint32_t)h << 16;
        memcpy(&dst[i], &u, sizeof u);
    }
}

INLINE void widen_f16(float *dst, const void *src, int64_t n)
{
    const uint8_t *p = src;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, sizeof h);
        /* moved to the float's exponent field the value is 2^112 times too small; scaling is exact,
         * and turns subnormal halves into normal floats */
        uint32_t u = (uint32_t)(h & 0x7fffu) << 13, scaled;
        float x;
        memcpy(&x, &u, sizeof x);
        x *= 0x1p112f;
        memcpy(&scaled, &x, sizeof scaled);
        scaled = (h & 0x7fffu) >= 0x7c00u ? u | 0x7f800000u : scaled;
        scaled |= (uint32_t)(h & 0x8000u) << 16;
        memcpy(&dst[i], &scaled, sizeof scaled);
    }
}

INLINE void encode(int8_t *q, float *got, const float *w, int64_t n, float scale, float low,
                   float high)
{
    /* clamping first gives the same codes, the limits being integers, and keeps the sum exact */
    if (!got) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float x = w[i] / scale;
            x = x < low ? low : x;
            x = x > high ? high : x;
            q[i] = (int8_t)(int)((x + round_magic) - round_magic);
        }
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float x = w[i] / scale;
        x = x < low ? low : x;
        x = x > high ? high : x;
        x = (x + round_magic) - round_magic;
        q[i] = (int8_t)(int)x;
        got[i] = x * scale;
    }
}

INLINE void error(double sums[24], const float *want, const float *got, int64_t n)
{
    double signal[8], noise[8], top[8];
    memcpy(signal, sums, sizeof signal);
    memcpy(noise, sums + 8, sizeof noise);
    memcpy(top, sums + 16, sizeof top);
    for (int64_t i = 0; i < n; i += 8) {
        if (n - i >= 8) {
#pragma omp simd
            for (int j = 0; j < 8; j++) {
                double w = (double)want[i + j], d = w - (double)got[i + j], a = fabs(d);
                signal[j] += w * w;
                noise[j] += d * d;
                top[j] = a > top[j] ? a : top[j];
            }
        } else {
            for (int j = 0; j < (int)(n - i); j++) {
                double w = (double)want[i + j], d = w - (double)got[i + j], a = fabs(d);
                signal[j] += w * w;
                noise[j] += d * d;
                top[j] = a > top[j] ? a : top[j];
            }
        }
    }
    memcpy(sums, signal, sizeof signal);
    memcpy(sums + 8, noise, sizeof noise);
    memcpy(sums + 16, top, sizeof top);
}

INLINE float miss(float x, float low, float high)
{
    float code = x < low ? low : x;
    code = code > high ? high : code;
    x -= (code + round_magic) - round_magic;
    return x * x;
}

/* One lane per scale: groups of any length fill the lanes, and no sum crosses them. Four values at once,
 * so that few additions wait for each other. */
INLINE void misses(float sums[DQ_QUANT_LOOP_SCALES], const float inverse[DQ_QUANT_LOOP_SCALES],
                   const float *w, int64_t n, float low, float high)
{
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        float a = w[i], b = w[i + 1], c = w[i + 2], d = w[i + 3];
#pragma omp simd
        for (int k = 0; k < DQ_QUANT_LOOP_SCALES; k++) {
            float s = inverse[k];
            sums[k] += (miss(a * s, low, high) + miss(b * s, low, high)) +
                       (miss(c * s, low, high) + miss(d * s, low, high));
        }
    }
    for (; i < n; i++) {
        float a = w[i];
#pragma omp simd
        for (int k = 0; k < DQ_QUANT_LOOP_SCALES; k++) sums[k] += miss(a * inverse[k], low, high);
    }
}

INLINE void pack8(uint8_t *packed, const int8_t *q, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) packed[i] = (uint8_t)(q[i] + 128);
}

INLINE void pack4(uint8_t *packed, const int8_t *q, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n / 2; i++)
        packed[i] = (uint8_t)((q[2 * i] + 8) | (q[2 * i + 1] + 8) << 4);
}

#define VERSION(name, attribute)                                                                   \
    attribute static uint32_t top32_##name(const void *src, int64_t n)                             \
    {                                                                                              \
        return top32(src, n);                                                                      \
    }                                                                                              \
    attribute static uint32_t top16_##name(const void *src, int64_t n)                             \
    {                                                                                              \
        return top16(src, n);                                                                      \
    }                                                                                              \
    attribute static void widen_bf16_##name(float *dst, const void *src, int64_t n)                \
    {                                                                                              \
        widen_bf16(dst, src, n);                                                                   \
    }                                                                                              \
    attribute static void widen_f16_##name(float *dst, const void *src, int64_t n)                 \
    {                                                                                              \
        widen_f16(dst, src, n);                                                                    \
    }                                                                                              \
    attribute static void encode_##name(int8_t *q, float *got, const float *w, int64_t n,          \
                                        float scale, float low, float high)                        \
    {                                                                                              \
        encode(q, got, w, n, scale, low, high);                                                    \
    }                                                                                              \
    attribute static void error_##name(double sums[24], const float *want, const float *got,       \
                                       int64_t n)                                                  \
    {                                                                                              \
        error(sums, want, got, n);                                                                 \
    }                                                                                              \
    attribute static void misses_##name(float sums[DQ_QUANT_LOOP_SCALES],                          \
                                        const float inverse[DQ_QUANT_LOOP_SCALES], const float *w, \
                                        int64_t n, float low, float high)                          \
    {                                                                                              \
        misses(sums, inverse, w, n, low, high);                                                    \
    }                                                                                              \
    attribute static void pack8_##name(uint8_t *packed, const int8_t *q, int64_t n)                \
    {                                                                                              \
        pack8(packed, q, n);                                                                       \
    }                                                                                              \
    attribute static void pack4_##name(uint8_t *packed, const int8_t *q, int64_t n)                \
    {                                                                                              \
        pack4(packed, q, n);                                                                       \
    }                                                                                              \
    static const dq_quant_loop_table name##_loops = {                                              \
        top32_##name, top16_##name,  widen_bf16_##name, widen_f16_##name, encode_##name,           \
        error_##name, misses_##name, pack8_##name,      pack4_##name};

#define NOTHING
VERSION(plain, NOTHING)
#if defined(__x86_64__)
VERSION(wide, __attribute__((target("avx2"))))
#endif

const dq_quant_loop_table *dq_quant_loops_plain(void)
{
    return &plain_loops;
}

const dq_quant_loop_table *dq_quant_loops(void)
{
    /* asking the processor takes longer than a short loop; threads that ask at once agree */
    static _Atomic(const dq_quant_loop_table *) chosen;
    const dq_quant_loop_table *t = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (t) return t;
    t = &plain_loops;
#if defined(__x86_64__)
    if (dq_os_cpu_features(NULL) & DQ_CPU_AVX2) t = &wide_loops;
#endif
    atomic_store_explicit(&chosen, t, memory_order_relaxed);
    return t;
}
