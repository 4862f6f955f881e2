/* quantize_values: see quantize_values.h. Nothing is copied that is a float already; values in codes are dequantized.
 * SPDX-License-Identifier: MIT */
#include "quantize/quantize_values.h"

#include "base/os.h"

const uint8_t *dq_quantize_values_row(const dq_quantize_tensor *q, int64_t row)
{
    return (const uint8_t *)q->w.data +
           (size_t)row * (size_t)q->cols * dq_dtypes[q->t->dtype].bytes;
}

const float *dq_quantize_values_floats(float *to, const uint8_t *src, dq_dtype type, int64_t n)
{
    if (type == DQ_F32 && (uintptr_t)src % sizeof(float) == 0)
        return (const float *)(const void *)src;
    dq_tensor_to_f32(to, src, type, n);
    return to;
}

const float *dq_quantize_values_rows(const dq_quantize_tensor *q, float *to, int64_t row, int64_t n)
{
    if (!dq_weight_is_coded(&q->w))
        return dq_quantize_values_floats(to, dq_quantize_values_row(q, row), q->t->dtype,
                                         n * q->cols);
    dq_weight_dequantize_rows(to, &q->w, row, row + n);
    return to;
}

void dq_quantize_values_release(const dq_quantize_tensor *q, const uint8_t *p, size_t bytes)
{
    if (!dq_weight_is_coded(&q->w) && q->w.data == q->t->data) dq_os_map_release(p, bytes);
}

void dq_quantize_values_release_rows(const dq_quantize_tensor *q, int64_t begin, int64_t end,
                                     const dq_quantize_tick *tick)
{
    size_t bytes = (size_t)((end - begin) * q->cols) * dq_dtypes[q->t->dtype].bytes;
    dq_quantize_values_release(q, dq_quantize_values_row(q, begin), bytes);
    if (tick && tick->step) tick->step(tick->arg, (int64_t)bytes);
}
