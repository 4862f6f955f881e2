/* gguf: a cursor walks the header once. Metadata become values of jansson, so that typed look-ups of base/json.h name what
 * is wrong; lists are checked and stay where they lie; tensors are sorted by place to see that none overlap, then by name.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/gguf.h"

#include "base/text.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FIELDS = 1 << 16, MAX_TENSORS = 1 << 20, MAX_NAME = 1 << 16 };

/* Types of values in metadata. */
enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64, N_VALUES };
static const uint8_t value_bytes[N_VALUES] = {
    [U8] = 1,  [I8] = 1,   [U16] = 2, [I16] = 2, [U32] = 4, [I32] = 4,
    [F32] = 4, [BOOL] = 1, [U64] = 8, [I64] = 8, [F64] = 8};

static const char *const type_names[] = {
    [0] = "F32",     [1] = "F16",      [2] = "Q4_0",   [3] = "Q4_1",    [6] = "Q5_0",
    [7] = "Q5_1",    [8] = "Q8_0",     [9] = "Q8_1",   [10] = "Q2_K",   [11] = "Q3_K",
    [12] = "Q4_K",   [13] = "Q5_K",    [14] = "Q6_K",  [15] = "Q8_K",   [16] = "IQ2_XXS",
    [17] = "IQ2_XS", [18] = "IQ3_XXS", [19] = "IQ1_S", [20] = "IQ4_NL", [21] = "IQ3_S",
    [22] = "IQ2_S",  [23] = "IQ4_XS",  [24] = "I8",    [25] = "I16",    [26] = "I32",
    [27] = "I64",    [28] = "F64",     [29] = "IQ1_M", [30] = "BF16",   [34] = "TQ1_0",
    [35] = "TQ2_0",  [39] = "MXFP4"};

const char *dq_gguf_type_name(uint32_t type)
{
    return type < sizeof type_names / sizeof *type_names ? type_names[type] : NULL;
}

typedef struct cursor {
    const uint8_t *bytes;
    size_t at, len;
    dq_arena *arena;
    dq_err *err;
} cursor;

/* ---- Single values ---- */

static dq_status ended(cursor *c)
{
    return dq_fail(
        c->err, DQ_DAMAGED,
        "the file ends inside its header, at byte %zu. It is incomplete: fetch it again.", c->len);
}

/* n bytes, or NULL with DQ_DAMAGED. */
static const uint8_t *take(cursor *c, uint64_t n)
{
    if (n > c->len - c->at) {
        ended(c);
        return NULL;
    }
    const uint8_t *p = c->bytes + c->at;
    c->at += (size_t)n;
    return p;
}

static uint64_t little(const uint8_t *p, int bytes)
{
    uint64_t x = 0;
    for (int i = bytes - 1; i >= 0; i--) x = x << 8 | p[i];
    return x;
}

static dq_status take_number(cursor *c, uint64_t *out, int bytes)
{
    const uint8_t *p = take(c, (uint64_t)bytes);
    *out = p ? little(p, bytes) : 0;
    return c->err->code;
}

/* A name: a text without NUL, copied. */
static dq_status take_name(cursor *c, const char **out, const char *what)
{
    uint64_t n;
    DQ_TRY(take_number(c, &n, 8));
    const uint8_t *p = take(c, n);
    if (!p) return c->err->code;
    if (n == 0 || n > MAX_NAME || memchr(p, 0, (size_t)n))
        return dq_fail(c->err, DQ_DAMAGED,
                       "%s at byte %zu is empty, longer than %d bytes or holds a NUL", what,
                       c->at - (size_t)n, MAX_NAME);
    *out = dq_text(c->arena, (const char *)p, (size_t)n, c->err);
    return c->err->code;
}

/* ---- Metadata ---- */

static double real_at(const uint8_t *p, uint64_t type)
{
    float x;
    double y;
    if (type == F64) {
        memcpy(&y, p, sizeof y);
        return y;
    }
    memcpy(&x, p, sizeof x);
    return (double)x;
}

static int64_t signed_at(const uint8_t *p, uint64_t type)
{
    const int n = value_bytes[type];
    return (int64_t)(little(p, n) << (64 - 8 * n)) >> (64 - 8 * n);
}

/* What a value that no reader can take is not; NULL: it is one. A foreign key may have such a value. */
static const char *fault_of(const uint8_t *p, uint64_t n, uint64_t type)
{
    int64_t bad;
    if (type == STRING)
        return dq_utf8_check((const char *)p, (size_t)n, &bad) == 0 ? NULL : "not UTF-8";
    if (type == F32 || type == F64) return isfinite(real_at(p, type)) ? NULL : "not finite";
    return type == BOOL && *p > 1 ? "neither true nor false" : NULL;
}

/* A value of fixed size. What is none becomes one that no look-up of base/json.h takes for it. */
static json_t *fixed_value(const uint8_t *p, uint64_t type)
{
    const uint64_t x = little(p, value_bytes[type]);
    switch (type) {
    case F32:
    case F64: return json_real(isfinite(real_at(p, type)) ? real_at(p, type) : DBL_MAX);
    case BOOL: return x > 1 ? json_integer((json_int_t)x) : json_boolean(x);
    case I8:
    case I16:
    case I32:
    case I64: return json_integer((json_int_t)signed_at(p, type));
    default: return x > INT64_MAX ? json_real((double)x) : json_integer((json_int_t)x);
    }
}

/* The bytes of a value at the cursor; NULL: see the error. */
static const uint8_t *take_bytes(cursor *c, uint64_t type, uint64_t *n)
{
    *n = type < N_VALUES ? value_bytes[type] : 0;
    if (type == STRING && take_number(c, n, 8) != DQ_OK) return NULL;
    return take(c, *n);
}

static json_t *take_value(cursor *c, uint64_t type)
{
    uint64_t n;
    const uint8_t *p = take_bytes(c, type, &n);
    if (!p) return NULL;
    return type == STRING ? json_stringn_nocheck((const char *)p, (size_t)n) : fixed_value(p, type);
}

static dq_status check_type(cursor *c, const char *key, uint64_t type)
{
    if (type < N_VALUES && type != ARRAY) return DQ_OK;
    return dq_fail(c->err, DQ_DAMAGED,
                   "key \"%s\": type %llu of values is unknown or cannot stand in a list", key,
                   (unsigned long long)type);
}

static dq_status take_list(cursor *c, dq_gguf *g, const char *key)
{
    uint64_t type, n, bytes;
    DQ_TRY(take_number(c, &type, 4));
    DQ_TRY(take_number(c, &n, 8));
    DQ_TRY(check_type(c, key, type));
    if (n > c->len - c->at) return ended(c); /* an item takes a byte at least */
    g->list = dq_grow(c->arena, g->list, g->n_lists + 1, &g->lists_cap, sizeof *g->list, c->err);
    if (!g->list) return c->err->code;
    dq_gguf_list *l = &g->list[g->n_lists++];
    *l = (dq_gguf_list){.key = key,
                        .texts = type == STRING,
                        .type = (uint32_t)type,
                        .n = (size_t)n,
                        .first = c->bytes + c->at};
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t *p = take_bytes(c, type, &bytes);
        if (!p) return c->err->code;
        if (!l->fault) l->fault = fault_of(p, bytes, type);
    }
    return DQ_OK;
}

static dq_status take_field(cursor *c, dq_gguf *g)
{
    const char *key;
    uint64_t type;
    json_t *v = NULL;
    DQ_TRY(take_name(c, &key, "a key"));
    DQ_TRY(take_number(c, &type, 4));
    if (json_object_get(g->fields, key))
        return dq_fail(c->err, DQ_DAMAGED, "key \"%s\" is there twice", key);
    if (type == ARRAY) {
        DQ_TRY(take_list(c, g, key));
        v = json_array();
    } else {
        DQ_TRY(check_type(c, key, type));
        v = take_value(c, type);
        DQ_TRY(c->err->code);
    }
    json_object_set_new_nocheck(g->fields, key, v);
    return DQ_OK;
}

/* ---- Tensors ---- */

/* Bytes of a tensor's values. */
static dq_status size_of(dq_gguf_tensor *t, dq_err *err)
{
    const dq_weight_format *f = dq_format_ggml(t->type);
    const int64_t cols = t->shape[t->n_dims - 1];
    const char *name = dq_gguf_type_name(t->type);
    size_t values = 1, per = f ? (size_t)f->block->values : 1;
    size_t bytes = f ? (size_t)f->block->bytes : t->type == DQ_GGML_F32 ? 4 : 2;
    if (!f && t->type != DQ_GGML_F32 && t->type != DQ_GGML_F16 && t->type != DQ_GGML_BF16)
        return dq_fail(
            err, DQ_MISMATCH,
            "tensor \"%s\": type %s (%u) is not read (read are F32, F16, BF16, Q8_0, Q4_0, Q4_1, "
            "Q5_0, Q5_1, Q2_K to Q6_K, IQ4_NL, IQ4_XS). Use a file of one of these.",
            t->name, name ? name : "unknown", t->type);
    if ((size_t)cols % per)
        return dq_fail(err, DQ_DAMAGED,
                       "tensor \"%s\": rows of %lld values are no whole number of blocks of %zu",
                       t->name, (long long)cols, per);
    for (int i = 0; i < t->n_dims; i++) {
        if (!dq_mul_ok(&values, values, (size_t)t->shape[i]))
            return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": shape too large for any file", t->name);
    }
    if (!dq_mul_ok(&t->bytes, values / per, bytes))
        return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": shape too large for any file", t->name);
    return DQ_OK;
}

/* Its offset is kept in `data`'s place until the data's begin is known. */
static dq_status take_tensor(cursor *c, dq_gguf_tensor *t, uint64_t *offset)
{
    uint64_t n, x;
    DQ_TRY(take_name(c, &t->name, "the name of a tensor"));
    DQ_TRY(take_number(c, &n, 4));
    if (n < 1 || n > DQ_GGUF_DIMS)
        return dq_fail(c->err, DQ_DAMAGED, "tensor \"%s\": %llu dimensions (expected 1 to %d)",
                       t->name, (unsigned long long)n, DQ_GGUF_DIMS);
    t->n_dims = (int)n;
    for (int i = t->n_dims - 1; i >= 0; i--) {
        DQ_TRY(take_number(c, &x, 8));
        if (x < 1 || x > INT64_MAX)
            return dq_fail(c->err, DQ_DAMAGED, "tensor \"%s\": a dimension of %llu values", t->name,
                           (unsigned long long)x);
        t->shape[i] = (int64_t)x;
    }
    DQ_TRY(take_number(c, &x, 4));
    t->type = (uint32_t)x;
    DQ_TRY(take_number(c, offset, 8));
    return size_of(t, c->err);
}

static int by_name(const void *x, const void *y)
{
    return strcmp(((const dq_gguf_tensor *)x)->name, ((const dq_gguf_tensor *)y)->name);
}

static int by_place(const void *x, const void *y)
{
    const dq_gguf_tensor *a = x, *b = y;
    return a->data < b->data ? -1 : a->data > b->data;
}

static dq_status sort_by_name(dq_gguf_tensor *t, int64_t n, dq_err *err)
{
    if (n) qsort(t, (size_t)n, sizeof *t, by_name);
    for (int64_t i = 1; i < n; i++) {
        if (strcmp(t[i].name, t[i - 1].name) == 0)
            return dq_fail(err, DQ_DAMAGED, "tensor \"%s\" is there twice", t[i].name);
    }
    return DQ_OK;
}

static dq_status place(cursor *c, dq_gguf *g, const uint64_t *offset, uint64_t align)
{
    const size_t rest = c->len - g->header_bytes;
    for (int64_t i = 0; i < g->n_tensors; i++) {
        dq_gguf_tensor *t = &g->tensor[i];
        if (offset[i] % align)
            return dq_fail(c->err, DQ_DAMAGED,
                           "tensor \"%s\": its place %llu is no multiple of %llu", t->name,
                           (unsigned long long)offset[i], (unsigned long long)align);
        if (offset[i] > rest || t->bytes > rest - offset[i])
            return dq_fail(c->err, DQ_DAMAGED,
                           "tensor \"%s\": ends beyond the file (%zu bytes from %llu on; there are "
                           "%zu of data). The "
                           "file is incomplete: fetch it again.",
                           t->name, t->bytes, (unsigned long long)offset[i], rest);
        t->data = c->bytes + g->header_bytes + offset[i];
    }
    qsort(g->tensor, (size_t)g->n_tensors, sizeof *g->tensor, by_place);
    for (int64_t i = 1; i < g->n_tensors; i++) {
        if (g->tensor[i].data < g->tensor[i - 1].data + g->tensor[i - 1].bytes)
            return dq_fail(c->err, DQ_DAMAGED, "tensor \"%s\" overlaps tensor \"%s\"",
                           g->tensor[i].name, g->tensor[i - 1].name);
    }
    return sort_by_name(g->tensor, g->n_tensors, c->err);
}

static dq_status take_tensors(cursor *c, dq_gguf *g)
{
    static const int64_t usual = 32;
    int64_t align;
    uint64_t *offset = dq_alloc(c->arena, (size_t)g->n_tensors, sizeof *offset, c->err);
    g->tensor = dq_alloc(c->arena, (size_t)g->n_tensors, sizeof *g->tensor, c->err);
    if (!offset || !g->tensor) return c->err->code;
    for (int64_t i = 0; i < g->n_tensors; i++) DQ_TRY(take_tensor(c, &g->tensor[i], &offset[i]));
    DQ_TRY(dq_json_int(&align, g->fields, "general.alignment", 1, 1 << 20, &usual, c->err));
    if (align & (align - 1))
        return dq_fail(c->err, DQ_DAMAGED, "key \"general.alignment\": %lld is no power of two",
                       (long long)align);
    const size_t over = c->at % (size_t)align;
    if (over && g->n_tensors && !take(c, (uint64_t)align - over)) return c->err->code;
    g->header_bytes = c->at;
    return place(c, g, offset, (uint64_t)align);
}

/* ---- The file ---- */

static dq_status take_head(cursor *c, uint64_t *n_fields, dq_gguf *g)
{
    uint64_t version, n;
    const uint8_t *magic = take(c, 4);
    if (!magic || memcmp(magic, "GGUF", 4) != 0)
        return dq_fail(c->err, DQ_DAMAGED, "does not begin as a GGUF file does");
    DQ_TRY(take_number(c, &version, 4));
    if (version == 0x02000000 || version == 0x03000000)
        return dq_fail(c->err, DQ_MISMATCH,
                       "a big-endian GGUF file is not read. Use a little-endian one.");
    if (version != 2 && version != 3)
        return dq_fail(c->err, DQ_MISMATCH,
                       "GGUF version %llu is not read (read are 2 and 3). Convert the model again.",
                       (unsigned long long)version);
    DQ_TRY(take_number(c, &n, 8));
    DQ_TRY(take_number(c, n_fields, 8));
    if (n > MAX_TENSORS || *n_fields > MAX_FIELDS)
        return dq_fail(
            c->err, DQ_DAMAGED, "%llu tensors and %llu keys (expected at most %d and %d)",
            (unsigned long long)n, (unsigned long long)*n_fields, MAX_TENSORS, MAX_FIELDS);
    g->n_tensors = (int64_t)n;
    return DQ_OK;
}

static dq_status take_all(cursor *c, dq_gguf *g, bool tensors)
{
    uint64_t n = 0;
    DQ_TRY(take_head(c, &n, g));
    for (uint64_t i = 0; i < n; i++) DQ_TRY(take_field(c, g));
    if (tensors) return take_tensors(c, g);
    g->n_tensors = 0;
    return DQ_OK;
}

static dq_status parse(dq_gguf *g, cursor *c, bool tensors)
{
    *g = (dq_gguf){.fields = json_object()};
    if (take_all(c, g, tensors) == DQ_OK) dq_json_complete(c->err);
    if (c->err->code == DQ_OK) return DQ_OK;
    json_decref(g->fields);
    g->fields = NULL;
    return c->err->code;
}

dq_status dq_gguf_parse(dq_gguf *g, const uint8_t *bytes, size_t len, dq_arena *a, dq_err *err)
{
    cursor c = {bytes, 0, len, a, err};
    return parse(g, &c, true);
}

dq_status dq_gguf_parse_fields(dq_gguf *g, const uint8_t *bytes, size_t len, dq_arena *a,
                               dq_err *err)
{
    cursor c = {bytes, 0, len, a, err};
    return parse(g, &c, false);
}

dq_status dq_gguf_join(dq_gguf_tensor **out, int64_t *n_out, const dq_gguf *const *g, int n,
                       dq_arena *a, dq_err *err)
{
    int64_t at = 0;
    *n_out = 0;
    for (int i = 0; i < n; i++) *n_out += g[i]->n_tensors;
    *out = dq_alloc(a, (size_t)*n_out, sizeof **out, err);
    if (!*out) return err->code;
    for (int i = 0; i < n; at += g[i++]->n_tensors) {
        if (g[i]->n_tensors)
            memcpy(*out + at, g[i]->tensor, (size_t)g[i]->n_tensors * sizeof **out);
    }
    return sort_by_name(*out, *n_out, err);
}

const dq_gguf_tensor *dq_gguf_find(const dq_gguf *g, const char *name)
{
    const dq_gguf_tensor key = {.name = name};
    return g->n_tensors ? bsearch(&key, g->tensor, (size_t)g->n_tensors, sizeof key, by_name)
                        : NULL;
}

dq_status dq_gguf_text(const char **out, const json_t *fields, const char *key,
                       const char *const *fallback, dq_err *err)
{
    int64_t bad;
    DQ_TRY(dq_json_text(out, fields, key, fallback, err));
    if (!*out || dq_utf8_check(*out, strlen(*out), &bad) == 0) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "key \"%s\": the text is not UTF-8", key);
}

dq_status dq_gguf_find_list(const dq_gguf_list **out, const dq_gguf *g, const char *key,
                            dq_err *err)
{
    *out = NULL;
    for (size_t i = 0; i < g->n_lists && !*out; i++) {
        if (strcmp(g->list[i].key, key) == 0) *out = &g->list[i];
    }
    if (!*out || !(*out)->fault) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "key \"%s\": a value is %s", key, (*out)->fault);
}

dq_status dq_gguf_list_texts(dq_gguf_span **out, const dq_gguf_list *l, dq_arena *a, dq_err *err)
{
    const uint8_t *p = l->first;
    dq_gguf_span *span = *out = dq_alloc(a, l->n, sizeof *span, err);
    for (size_t i = 0; span && i < l->n; i++) {
        const size_t len = (size_t)little(p, 8);
        span[i] = (dq_gguf_span){(const char *)p + 8, len};
        p += 8 + len;
    }
    return err->code;
}

double dq_gguf_list_number(const dq_gguf_list *l, size_t i)
{
    const uint8_t *p = l->first + i * value_bytes[l->type];
    switch (l->type) {
    case F32:
    case F64: return real_at(p, l->type);
    case I8:
    case I16:
    case I32:
    case I64: return (double)signed_at(p, l->type);
    default: return (double)little(p, value_bytes[l->type]);
    }
}
