/* pages_portable: what pages_loops.h needs of an instruction set that leaves it to the compiler.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PAGES_PORTABLE_H
#define DQ_PAGES_PORTABLE_H

#include "kernels/cpu/isa/kv_lines.h"
#include "kernels/cpu/simd.h"

#include <stdbool.h>

/* A block is as good. */
static inline bool pages_line_dots(int32_t *sum, const int8_t *const a[4], int64_t lda,
                                   const pages_lines *l, int64_t m)
{
    (void)sum, (void)a, (void)lda, (void)l, (void)m;
    return false;
}

static inline bool pages_few_keys(float *s, int64_t lds, const dq_simd_int8_rows *q, int64_t m,
                                  const dq_simd_int8_page *p)
{
    (void)s, (void)lds, (void)q, (void)m, (void)p;
    return false;
}

static inline bool pages_few_values(float *y, int64_t ldy, const float *d, int64_t ldd, int64_t m,
                                    const dq_simd_int8_page *p, void *work)
{
    (void)y, (void)ldy, (void)d, (void)ldd, (void)m, (void)p, (void)work;
    return false;
}

static inline bool sets_few(const dq_simd_set_page *p, int64_t m)
{
    (void)p, (void)m;
    return false;
}

static inline bool sets_few_keys(float *s, int64_t lds, const float *q, int64_t ldq, int64_t m,
                                 const dq_simd_set_page *p, void *work)
{
    (void)s, (void)lds, (void)q, (void)ldq, (void)m, (void)p, (void)work;
    return false;
}

static inline bool sets_few_values(float *y, int64_t ldy, const float *d, int64_t ldd, int64_t m,
                                   const dq_simd_set_page *p, void *work)
{
    (void)y, (void)ldy, (void)d, (void)ldd, (void)m, (void)p, (void)work;
    return false;
}

static inline float pages_times(float *restrict e, const float *restrict d,
                                const float *restrict factor)
{
    int32_t bits[64], max = 0;
    float peak;
#pragma omp simd
    for (int t = 0; t < 64; t++) e[t] = d[t] * factor[t];
    memcpy(bits, e, sizeof bits);
#pragma omp simd reduction(max : max)
    for (int t = 0; t < 64; t++) {
        const int32_t x = bits[t] & 0x7fffffff;
        max = x > max ? x : max;
    }
    memcpy(&peak, &max, sizeof peak);
    return peak;
}

static inline int32_t pages_split(int8_t *restrict high, const float *restrict e, float r)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to integers */
    int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int t = 0; t < 64; t++) {
        const int32_t c = (int32_t)(e[t] * r + magic - magic);
        const int32_t low = ((c + 128) & 255) - 128;
        high[t] = (int8_t)((c - low) / 256);
        high[64 + t] = (int8_t)low;
        sum += c;
    }
    return sum;
}

#endif
