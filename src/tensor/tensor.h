/* tensor: element types, views of host memory, exact conversions. Owns nothing.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TENSOR_H
#define DQ_TENSOR_H

#include "base/base.h"

typedef enum dq_dtype {
    DQ_F32,
    DQ_F16,
    DQ_BF16,
    DQ_F64,
    DQ_F8_E4M3,
    DQ_F8_E5M2,
    DQ_I64,
    DQ_I32,
    DQ_I16,
    DQ_I8,
    DQ_U64,
    DQ_U32,
    DQ_U16,
    DQ_U8,
    DQ_BOOL,
    DQ_DTYPE_COUNT
} dq_dtype;

typedef struct dq_dtype_info {
    const char *name; /* safetensors spelling, "BF16" */
    size_t bytes;     /* per element */
} dq_dtype_info;

extern const dq_dtype_info dq_dtypes[DQ_DTYPE_COUNT];

enum { DQ_MAX_DIMS = 8 };

/* Names a block of host memory owned by somebody else. Row-major, last dimension contiguous. The
 * data may be unaligned: read it with memcpy or dq_tensor_to_f32. */
typedef struct dq_tensor {
    const char *name;
    dq_dtype dtype;
    int n_dims; /* 0..DQ_MAX_DIMS; 0 is a scalar */
    int64_t shape[DQ_MAX_DIMS];
    const void *data;
} dq_tensor;

int64_t
dq_tensor_numel(const dq_tensor *t); /* product of shape, 1 for a scalar; shapes are checked */
size_t dq_tensor_bytes(const dq_tensor *t);
/* dst[n] f32 from F32, F16, BF16 (exact) or F64 (rounded to nearest). Unaligned src allowed.
 * False for any other type. */
bool dq_tensor_to_f32(float *dst, const void *src, dq_dtype type, int64_t n);
/* Round to nearest, ties to even; out of range becomes infinity; NaN stays NaN. */
uint16_t dq_f16_from_f32(float x);
float dq_f32_from_f16(uint16_t h);
uint16_t dq_bf16_from_f32(float x);
float dq_f32_from_bf16(uint16_t h);

#endif
