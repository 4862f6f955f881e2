/* quantize_values: rows of one tensor of the source, as floats and as a dense tensor stores them. Private to quantize.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_QUANTIZE_VALUES_H
#define DQ_QUANTIZE_VALUES_H

#include "quantize/quantize_tensor.h"

/* Where a row of dense values lies. */
const uint8_t *dq_quantize_values_row(const dq_quantize_tensor *q, int64_t row);
/* n values as floats: where they lie when they are that already, else converted into to[n]. */
const float *dq_quantize_values_floats(float *to, const uint8_t *src, dq_dtype type, int64_t n);
/* n rows as floats, likewise, to[n * cols]; codes of another program are read out. */
const float *dq_quantize_values_rows(const dq_quantize_tensor *q, float *to, int64_t row,
                                     int64_t n);

/* Tells the system that rows are not needed again, if they lie in the file as they are. */
void dq_quantize_values_release(const dq_quantize_tensor *q, const uint8_t *p, size_t bytes);
/* The same of rows begin .. end - 1, which are then done: `tick` (NULL allowed) is told their bytes. */
void dq_quantize_values_release_rows(const dq_quantize_tensor *q, int64_t begin, int64_t end,
                                     const dq_quantize_tick *tick);

/* Whether a dense tensor stores other values than the source. */
static inline bool dq_quantize_values_are_rounded(const dq_quantize_tensor *q)
{
    return !q->format && q->dense_dtype != q->t->dtype;
}

/* A value as a dense tensor stores it. */
static inline float dq_quantize_values_stored(const dq_quantize_tensor *q, float x)
{
    if (!dq_quantize_values_are_rounded(q)) return x;
    return q->dense_dtype == DQ_F16 ? dq_f32_from_f16(dq_f16_from_f32(x))
                                    : dq_f32_from_bf16(dq_bf16_from_f32(x));
}

#endif
