/* quant_loops: the loops over plain values in which quantizing a checkpoint spends its time. Each exists in plain C and in
 * a wider form of the same C for AVX2, chosen once by dq_os_cpu_features; both give the same bits, since
 * every element has its own result and sums keep their lanes.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_QUANT_LOOPS_H
#define DQ_QUANT_LOOPS_H

#include "tensor/tensor.h"

enum { DQ_QUANT_LOOP_SCALES = 64 }; /* tried at once */

typedef struct dq_quant_loop_table {
    /* The largest magnitude of n values as a bit pattern (sign removed) of their type: patterns order
     * like the magnitudes, and what is not finite comes out at or above infinity's. Unaligned
     * sources allowed. top16 serves F16 and BF16. */
    uint32_t (*top32)(const void *src, int64_t n);
    uint32_t (*top16)(const void *src, int64_t n);
    void (*widen_bf16)(float *dst, const void *src, int64_t n);
    void (*widen_f16)(float *dst, const void *src, int64_t n);
    /* q[n] = clamp(rint(w / scale), low, high), limits being integers; got[n] (NULL: not wanted) =
     * q * scale. The scale is not 0. */
    void (*encode)(int8_t *q, float *got, const float *w, int64_t n, float scale, float low,
                   float high);
    /* sums[j], sums[8 + j] and sums[16 + j] get w^2, d^2 and the largest |d|, d = want - got, of the
     * values i with i % 8 == j, added in ascending i. */
    void (*error)(double sums[24], const float *want, const float *got, int64_t n);
    /* misses[k] += the sum of (x - rint(clamp(x, low, high)))^2, x = w * inverse[k], in f32: how far n values
     * lie from the codes of scale 1 / inverse[k], in units of it. */
    void (*misses)(float misses[DQ_QUANT_LOOP_SCALES], const float inverse[DQ_QUANT_LOOP_SCALES],
                   const float *w, int64_t n, float low, float high);
    void (*pack8)(uint8_t *packed, const int8_t *q, int64_t n); /* q + 128 */
    /* Two codes per byte, n / 2 bytes, the even column in the low half. */
    void (*pack4)(uint8_t *packed, const int8_t *q, int64_t n);
} dq_quant_loop_table;

const dq_quant_loop_table *dq_quant_loops(void); /* for this machine */
const dq_quant_loop_table *dq_quant_loops_plain(void);

#endif
