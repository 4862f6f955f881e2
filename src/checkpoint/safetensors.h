/* safetensors: one weight file in memory.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SAFETENSORS_H
#define DQ_SAFETENSORS_H

#include "tensor/tensor.h"

/* The part that is fuzzed. Checks header length, JSON, known dtype, shape
 * product == byte range, ranges inside the file, no overlap, no hole, no duplicate name. Tensors
 * come in name order; names and table live in the arena, data points into `bytes`.
 * Source: huggingface/safetensors README.md (format). */
dq_status dq_safetensors_parse(dq_tensor **out, int64_t *count, const uint8_t *bytes, size_t len,
                               dq_arena *a, dq_err *err);
/* The order that they come in, for qsort and bsearch. */
int dq_safetensors_by_name(const void *x, const void *y);

#endif
