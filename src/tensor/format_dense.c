/* format_dense: values as they were, of type F32, F16 or BF16. Its one dataset is the tensor itself, whose
 * shape is the source's.
 * SPDX-License-Identifier: MIT */
#include "tensor/weight_format.h"

static dq_part values(const dq_weight *w)
{
    return (dq_part){.bits = 8 * (int)dq_dtypes[w->dtype].bytes,
                     .rows = w->rows,
                     .cols = w->cols,
                     .dtype = w->dtype,
                     .shape = {w->rows, w->cols},
                     .data = w->data};
}

static void dequantize(float *out, const dq_weight *w, int64_t row, int64_t first, int64_t n)
{
    const size_t at = (size_t)(row * w->cols + first) * dq_dtypes[w->dtype].bytes;
    dq_tensor_to_f32(out, (const uint8_t *)w->data + at, w->dtype, n);
}

static const dq_weight_part_row part = {.encoding = "dense", .of = values};

const dq_weight_format dq_format_dense = {
    .name = "dense", .part = &part, .n_parts = 1, .dequantize = dequantize};
