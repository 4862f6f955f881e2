/* weight: a matrix that knows its own storage, dense or packed.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_WEIGHT_H
#define DQ_WEIGHT_H

#include "tensor/tensor.h"

struct dq_weight_format;

/* y = W x with W[rows, cols]. Memory belongs to the model's source (checkpoint or container), both
 * of which are mapped; a backend may keep a copy of its own (dq_ops.weight_acquire).
 *
 * What the bytes mean is the format's business: weight_format.h. Dense: data holds rows * cols values
 * of `dtype` (F32, F16 or BF16), perhaps unaligned. Coded (bits 2..8): data holds, but for trellis codes (format_trellis.c), rows of
 * dq_quant_row_bytes(cols, bits) bytes, unsigned codes u, least significant bit first, and groups of columns
 * have a scale of type scale_dtype (F16 or F32), shape [scale_rows, groups]; scale_rows is `rows`, or 1
 * when the whole tensor has one scale. */
typedef struct dq_weight {
    const char *name;
    int64_t rows, cols;                    /* rows 0: absent */
    const struct dq_weight_format *format; /* NULL: dense */
    int bits;                              /* of a code; dense: 16 */
    dq_dtype dtype;                        /* of dense values */
    const void *data;
    int64_t group_size; /* coded: columns per scale, 1..cols */
    int64_t scale_rows; /* coded: rows or 1 */
    dq_dtype scale_dtype;
    const void *scale;
    const void *zero;     /* zero points of groups; NULL: 2^(bits-1) */
    const int8_t *level;  /* [256] trellis: of windows */
    const int8_t *column; /* [cols] trellis: factors of columns (dq_weight_factor) */
    const int32_t *index; /* [cols] the group of each column; NULL: column / group_size */
} dq_weight;

/* A dense one of f32 values[rows, cols]. */
static inline dq_weight dq_weight_of_f32(const char *name, int64_t rows, int64_t cols,
                                         const float *values)
{
    return (dq_weight){
        .name = name, .rows = rows, .cols = cols, .bits = 16, .dtype = DQ_F32, .data = values};
}

#endif
