/* gguf_write: keys are appended as the file has them; a failure stays with them until the head is asked for.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/gguf_write.h"

#include <string.h>

/* Types of values in metadata. */
enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, TEXT = 8, LIST = 9 };

static void add(dq_strbuf *b, const void *p, size_t n, dq_err *err)
{
    if (err->code == DQ_OK) dq_strbuf_add(b, p, n, err);
}

static void add_number(dq_strbuf *b, uint64_t x, size_t bytes, dq_err *err)
{
    uint8_t p[8];
    for (size_t i = 0; i < bytes; i++) p[i] = (uint8_t)(x >> 8 * i);
    add(b, p, bytes, err);
}

static void add_text(dq_strbuf *b, const char *s, size_t len, dq_err *err)
{
    add_number(b, len, 8, err);
    add(b, s, len, err);
}

static void begin(dq_gguf_fields *f, const char *key, uint32_t type)
{
    f->n++;
    add_text(&f->bytes, key, strlen(key), &f->err);
    add_number(&f->bytes, type, 4, &f->err);
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

void dq_gguf_write_u32(dq_gguf_fields *f, const char *key, uint32_t x)
{
    begin(f, key, U32);
    add_number(&f->bytes, x, 4, &f->err);
}

void dq_gguf_write_f32(dq_gguf_fields *f, const char *key, float x)
{
    begin(f, key, F32);
    add_number(&f->bytes, bits_of(x), 4, &f->err);
}

void dq_gguf_write_bool(dq_gguf_fields *f, const char *key, bool x)
{
    begin(f, key, BOOL);
    add_number(&f->bytes, x, 1, &f->err);
}

void dq_gguf_write_text(dq_gguf_fields *f, const char *key, const char *s, size_t len)
{
    begin(f, key, TEXT);
    add_text(&f->bytes, s, len, &f->err);
}

void dq_gguf_write_list(dq_gguf_fields *f, const char *key, dq_gguf_item type, size_t n)
{
    static const uint32_t types[] = {
        [DQ_GGUF_TEXTS] = TEXT, [DQ_GGUF_I32S] = I32, [DQ_GGUF_F32S] = F32};
    begin(f, key, LIST);
    add_number(&f->bytes, types[type], 4, &f->err);
    add_number(&f->bytes, n, 8, &f->err);
}

void dq_gguf_write_item_text(dq_gguf_fields *f, const char *s, size_t len)
{
    add_text(&f->bytes, s, len, &f->err);
}

void dq_gguf_write_item_i32(dq_gguf_fields *f, int32_t x)
{
    add_number(&f->bytes, (uint32_t)x, 4, &f->err);
}

void dq_gguf_write_item_f32(dq_gguf_fields *f, float x)
{
    add_number(&f->bytes, bits_of(x), 4, &f->err);
}

static void add_tensor(dq_strbuf *b, const dq_gguf_tensor *t, uint64_t offset, dq_err *err)
{
    add_text(b, t->name, strlen(t->name), err);
    add_number(b, (uint64_t)t->n_dims, 4, err);
    for (int i = t->n_dims - 1; i >= 0; i--) add_number(b, (uint64_t)t->shape[i], 8, err);
    add_number(b, t->type, 4, err);
    add_number(b, offset, 8, err);
}

dq_status dq_gguf_write_head(dq_strbuf *out, const dq_gguf_fields *f, const dq_gguf_tensor *tensor,
                             int64_t n, dq_err *err)
{
    static const uint8_t zeros[DQ_GGUF_ALIGNMENT];
    uint64_t offset = 0;
    DQ_TRY(dq_fail_as(err, &f->err));
    const size_t from = out->n;
    add(out, "GGUF", 4, err);
    add_number(out, 3, 4, err);
    add_number(out, (uint64_t)n, 8, err);
    add_number(out, f->n, 8, err);
    add(out, f->bytes.s, f->bytes.n, err);
    for (int64_t i = 0; i < n; i++) {
        add_tensor(out, &tensor[i], offset, err);
        offset += dq_gguf_write_stride(tensor[i].bytes);
    }
    const size_t bytes = out->n - from;
    add(out, zeros, dq_gguf_write_stride(bytes) - bytes, err);
    return err->code;
}
