/* gguf_write: the head of a GGUF file: metadata and the list of tensors. Version 3, little-endian, alignment 32.
 * Source: ggml-org/ggml docs/gguf.md.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_GGUF_WRITE_H
#define DQ_GGUF_WRITE_H

#include "base/text.h"
#include "checkpoint/gguf.h"

enum { DQ_GGUF_ALIGNMENT = 32 };

/* Metadata on their way: {0} is empty; `bytes.s` is a block, ended by dq_block_free. The first failure is kept and comes with
 * dq_gguf_write_head; what comes after it is left out. */
typedef struct dq_gguf_fields {
    dq_strbuf bytes;
    uint64_t n;
    dq_err err;
} dq_gguf_fields;

void dq_gguf_write_u32(dq_gguf_fields *f, const char *key, uint32_t x);
void dq_gguf_write_f32(dq_gguf_fields *f, const char *key, float x);
void dq_gguf_write_bool(dq_gguf_fields *f, const char *key, bool x);
void dq_gguf_write_text(dq_gguf_fields *f, const char *key, const char *s, size_t len);
/* A list of n items, each of which one call follows for: texts, i32 or f32. */
typedef enum dq_gguf_item { DQ_GGUF_TEXTS, DQ_GGUF_I32S, DQ_GGUF_F32S } dq_gguf_item;
void dq_gguf_write_list(dq_gguf_fields *f, const char *key, dq_gguf_item type, size_t n);
void dq_gguf_write_item_text(dq_gguf_fields *f, const char *s, size_t len);
void dq_gguf_write_item_i32(dq_gguf_fields *f, int32_t x);
void dq_gguf_write_item_f32(dq_gguf_fields *f, float x);

/* Bytes from one tensor's first to the next one's. */
static inline size_t dq_gguf_write_stride(size_t bytes)
{
    return (bytes + DQ_GGUF_ALIGNMENT - 1) / DQ_GGUF_ALIGNMENT * DQ_GGUF_ALIGNMENT;
}

/* Appends everything before the data of tensors, which stand after it in this order, each padded to dq_gguf_write_stride. Of a
 * tensor name, type, shape and bytes count. */
dq_status dq_gguf_write_head(dq_strbuf *out, const dq_gguf_fields *f, const dq_gguf_tensor *tensor,
                             int64_t n, dq_err *err);

#endif
