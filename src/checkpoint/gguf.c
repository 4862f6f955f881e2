/* A cursor walks the header once. Metadata become values of jansson, so that typed look-ups of
 * base/json.h name what is wrong; lists are checked and stay where they lie; tensors are sorted by
 * place to see that none overlap, then by name.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/inside.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FIELDS = 1 << 16, MAX_TENSORS = 1 << 20, MAX_NAME = 1 << 16 };

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

/* A copied text without NUL. */
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

/* What is wrong with a value that no reader can use, which a foreign key may hold; NULL:
 * nothing. */
static const char *fault_of(const uint8_t *p, uint64_t n, uint64_t type)
{
    int64_t bad;
    if (type == STRING)
        return dq_utf8_check((const char *)p, (size_t)n, &bad) == 0 ? NULL : "not UTF-8";
    if (type == F32 || type == F64) return isfinite(real_at(p, type)) ? NULL : "not finite";
    return type == BOOL && *p > 1 ? "neither true nor false" : NULL;
}

/* A faulty value becomes one that no look-up of base/json.h accepts. */
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

static const uint8_t *take_bytes(cursor *c, uint64_t type, uint64_t *n)
{
    *n = type < N_VALUES ? value_bytes[type] : 0;
    if (type == STRING && take_number(c, n, 8) != DQ_OK) return NULL;
    return take(c, *n);
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
    uint64_t type, n;
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
        const uint8_t *p = take_bytes(c, type, &n);
        if (!p) return c->err->code;
        v = type == STRING ? json_stringn_nocheck((const char *)p, (size_t)n)
                           : fixed_value(p, type);
    }
    json_object_set_new_nocheck(g->fields, key, v);
    return DQ_OK;
}

/* The offset stays in place of `data` until the start of the data is known. */
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
    dq_err *err = c->err;
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

static int by_place(const void *x, const void *y)
{
    const dq_gguf_tensor *a = x, *b = y;
    return a->data < b->data ? -1 : a->data > b->data;
}

static dq_status sort_by_name(dq_gguf_tensor *t, int64_t n, dq_err *err)
{
    if (n) qsort(t, (size_t)n, sizeof *t, dq_name_compare);
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
                           "%zu of data). The file is incomplete: fetch it again.",
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
    if (tensors) {
        static const int64_t usual = 32;
        int64_t align;
        uint64_t *offset = dq_alloc(c->arena, (size_t)g->n_tensors, sizeof *offset, c->err);
        g->tensor = dq_alloc(c->arena, (size_t)g->n_tensors, sizeof *g->tensor, c->err);
        if (!offset || !g->tensor) return c->err->code;
        for (int64_t i = 0; i < g->n_tensors; i++)
            DQ_TRY(take_tensor(c, &g->tensor[i], &offset[i]));
        DQ_TRY(dq_json_int(&align, g->fields, "general.alignment", 1, 1 << 20, &usual, c->err));
        if (align & (align - 1))
            return dq_fail(c->err, DQ_DAMAGED, "key \"general.alignment\": %lld is no power of two",
                           (long long)align);
        const size_t over = c->at % (size_t)align;
        if (over && g->n_tensors && !take(c, (uint64_t)align - over)) return c->err->code;
        g->header_bytes = c->at;
        return place(c, g, offset, (uint64_t)align);
    }
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

/* Joins the tensors of n files by name, in the arena. DQ_DAMAGED: a duplicate. */
static dq_status join(dq_gguf_tensor **out, int64_t *n_out, const dq_gguf *const *g, int n,
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
    return g->n_tensors
               ? bsearch(&key, g->tensor, (size_t)g->n_tensors, sizeof key, dq_name_compare)
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

/* Permuted and repacked tensors get addresses when the file is opened and are filled in parallel,
 * one tensor per thread, by load.
 * Source: llama.cpp convert_hf_to_gguf.py, LlamaModel.permute (order of rows). */

enum { MAX_FILES = 1000, LINE = 64 };

enum { CONFIG, TOKENIZER, TOKENIZER_CONFIG, GENERATION };
static const char *const text_names[DQ_GGUF_MODEL_TEXTS] = {
    "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"};

static bool becomes_codes(const dq_gguf_tensor *t)
{
    return t->type == DQ_GGML_Q8_0 || t->type == DQ_GGML_Q4_0 || t->type == DQ_GGML_Q5_0;
}

static size_t whole_lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

static size_t code_bytes(const dq_weight *w)
{
    return whole_lines((size_t)w->rows * dq_quant_row_bytes(w->cols, w->bits));
}

static size_t own_bytes(const dq_gguf_entry *e)
{
    if (becomes_codes(e->t))
        return code_bytes(&e->w) + whole_lines((size_t)(e->w.rows * e->w.cols / 32) * 2);
    return e->heads && e->t->n_dims > 1 ? whole_lines(e->t->bytes) : 0;
}

static dq_weight weight_of(const dq_gguf_tensor *t, const char *name)
{
    const dq_weight_format *f = dq_format_ggml(t->type);
    const int64_t rows = t->shape[0], cols = t->n_dims > 1 ? t->shape[1] : 1;
    dq_weight w = {.name = name, .rows = rows, .cols = cols, .bits = 16, .data = t->data};
    if (f && t->n_dims == 2) {
        w = dq_format_ggml_weight(f, name, rows, cols, t->data);
        if (becomes_codes(t)) w.format = &dq_format_int;
        return w;
    }
    w.dtype = t->type == DQ_GGML_F16 ? DQ_F16 : t->type == DQ_GGML_BF16 ? DQ_BF16 : DQ_F32;
    if (t->n_dims > 2 || f) w.cols = -t->n_dims; /* no architecture has such a tensor */
    return w;
}

/* transformers stores the first halves of a head's rotary pairs, then the second; GGUF interleaves
 * them. */
static int64_t stored_row(const dq_gguf_entry *e, int64_t r)
{
    if (!e->heads) return r;
    const int64_t size = e->w.rows / e->heads, half = size / 2, head = r / size, i = r % size;
    return head * size + i % half * 2 + i / half;
}

/* Codes are u - 2^(bits-1). */
static void split_block(int8_t q[32], uint16_t *scale, const uint8_t *b, uint32_t type)
{
    memcpy(scale, b, sizeof *scale);
    if (type == DQ_GGML_Q8_0) {
        memcpy(q, b + 2, 32);
        return;
    }
    const uint8_t *bits = b + 2, *low = type == DQ_GGML_Q5_0 ? b + 6 : b + 2;
    for (int i = 0; i < 32; i++) {
        const int u = low[i % 16] >> i / 16 * 4 & 15;
        q[i] = (int8_t)(type == DQ_GGML_Q5_0 ? (u | (bits[i / 8] >> i % 8 & 1) << 4) - 16 : u - 8);
    }
}

static void fill_codes(dq_gguf_entry *e)
{
    const dq_weight *w = &e->w;
    const dq_block *k = dq_format_ggml(e->t->type)->block;
    const int64_t groups = w->cols / 32;
    const size_t row_bytes = dq_quant_row_bytes(w->cols, w->bits);
    uint8_t *scales = e->own + code_bytes(w);
    for (int64_t r = 0; r < w->rows; r++) {
        const uint8_t *from = e->t->data + stored_row(e, r) * groups * k->bytes;
        for (int64_t g = 0; g < groups; g++) {
            int8_t q[32];
            uint16_t scale;
            split_block(q, &scale, from + g * k->bytes, e->t->type);
            if ((scale & 0x7c00u) == 0x7c00u) {
                dq_fail(&e->err, DQ_DAMAGED,
                        "tensor \"%s\": the scale of row %lld, block %lld is not finite",
                        e->t->name, (long long)r, (long long)g);
                return;
            }
            memcpy(scales + (r * groups + g) * 2, &scale, sizeof scale);
            /* 32 columns take a whole number of 4 bytes at every width */
            dq_quant_pack_row(e->own + (size_t)r * row_bytes + (size_t)(g * 4 * w->bits), q, 32,
                              w->bits);
        }
    }
}

static void fill_rows(dq_gguf_entry *e)
{
    const size_t row = e->t->bytes / (size_t)e->w.rows;
    for (int64_t r = 0; r < e->w.rows; r++)
        memcpy(e->own + (size_t)r * row, e->t->data + (size_t)stored_row(e, r) * row, row);
}

dq_status dq_gguf_model_load(dq_gguf_model *m, dq_err *err)
{
    if (m->loaded) return DQ_OK;
    if (m->own_bytes && !dq_os_block_take(&m->own))
        return dq_fail(err, DQ_RESOURCE,
                       "not enough memory for %.1f MiB of weights that are laid out anew",
                       (double)m->own_bytes / 1048576.0);
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t i = 0; i < m->n_entries; i++) {
        dq_gguf_entry *e = &m->entry[i];
        if (!e->own || dq_os_check_stop(&e->err) != DQ_OK) continue;
        if (becomes_codes(e->t))
            fill_codes(e);
        else
            fill_rows(e);
        dq_os_map_release(e->t->data, e->t->bytes);
    }
    for (int64_t i = 0; i < m->n_entries; i++) DQ_TRY(dq_fail_as(err, &m->entry[i].err));
    m->loaded = true;
    return DQ_OK;
}

/* Norms that are stored with 1 added. */
static dq_status take_one_off(dq_gguf_entry *e, dq_arena *a, dq_err *err)
{
    const dq_gguf_tensor *t = e->t;
    float *own = dq_alloc(a, (size_t)t->shape[0], sizeof *own, err);
    if (!own) return err->code;
    dq_tensor_to_f32(own, t->data, e->w.dtype, t->shape[0]);
    for (int64_t i = 0; i < t->shape[0]; i++) own[i] -= 1;
    e->w.dtype = DQ_F32;
    e->w.data = own;
    return DQ_OK;
}

static dq_status add_entry(dq_gguf_model *m, const dq_gguf_tensor *t, int64_t heads,
                           int64_t kv_heads, dq_err *err)
{
    dq_gguf_entry *e = &m->entry[m->n_entries];
    dq_gguf_rows rows;
    if (dq_gguf_divides(m->arch, t->name)) return DQ_OK; /* is in the configuration */
    *e = (dq_gguf_entry){.name = dq_gguf_name_hf(&rows, m->arch, t->name, m->arena, err), .t = t};
    DQ_TRY(err->code);
    if (!e->name)
        return dq_fail(err, DQ_MISMATCH,
                       "tensor \"%s\" does not belong to a model of this architecture that dq runs",
                       t->name);
    if (rows == DQ_GGUF_ROWS_Q) e->heads = heads;
    if (rows == DQ_GGUF_ROWS_K) e->heads = kv_heads;
    if (e->heads && (t->shape[0] % e->heads || t->shape[0] / e->heads % 2))
        return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": %lld rows are no pairs of %lld heads",
                       t->name, (long long)t->shape[0], (long long)e->heads);
    e->w = weight_of(t, e->name);
    m->own_bytes += own_bytes(e);
    m->n_entries++;
    if (rows == DQ_GGUF_ROWS_NORM && e->w.cols == 1) return take_one_off(e, m->arena, err);
    if (!(e->heads && t->n_dims == 1)) return DQ_OK;
    uint8_t *own = dq_alloc(m->arena, e->t->bytes, 1, err);
    if (!own) return err->code;
    e->own = own;
    e->w.data = own;
    fill_rows(e);
    e->own = NULL;
    return DQ_OK;
}

/* The missing bias of a matrix whose kind has biases elsewhere is zero. */
static dq_status add_zero_bias(dq_gguf_model *m, const dq_gguf_tensor *t, dq_err *err)
{
    static const char suffix[] = ".weight";
    const size_t n = strlen(t->name), k = sizeof suffix - 1;
    dq_gguf_rows rows;
    if (t->n_dims != 2 || n < k || strcmp(t->name + n - k, suffix) != 0) return DQ_OK;
    if (!dq_gguf_has_bias(m->arch, m->config, t->name)) return DQ_OK;
    char *name = dq_textf(m->arena, err, "%.*s.bias", (int)(n - k), t->name);
    dq_gguf_tensor *zero = name ? dq_alloc(m->arena, 1, sizeof *zero, err) : NULL;
    uint8_t *values = zero ? dq_alloc(m->arena, (size_t)t->shape[0], 4, err) : NULL;
    if (!values) return err->code;
    if (dq_gguf_find(&m->all, name)) return DQ_OK;
    *zero = (dq_gguf_tensor){.name = name,
                             .type = DQ_GGML_F32,
                             .n_dims = 1,
                             .shape = {t->shape[0]},
                             .data = values,
                             .bytes = (size_t)t->shape[0] * 4};
    dq_gguf_entry *e = &m->entry[m->n_entries++];
    *e = (dq_gguf_entry){.name = dq_gguf_name_hf(&rows, m->arch, name, m->arena, err), .t = zero};
    DQ_TRY(err->code);
    e->w = weight_of(zero, e->name);
    return err->code;
}

/* For a file with an unsupported tensor type: whether it would be refused for its kind anyway. */
static dq_status refuse_kind(const dq_gguf_file *p, dq_arena *a, dq_err *err)
{
    dq_gguf g;
    dq_err other = {0};
    if (dq_gguf_parse_fields(&g, p->map.data, p->map.bytes, a, &other) != DQ_OK) return err->code;
    if (dq_gguf_config_kind(g.fields, &other) == DQ_MISMATCH) *err = other;
    json_decref(g.fields);
    return err->code;
}

static dq_status open_file(dq_gguf_model *m, int i, const char *path, bool tensors, dq_err *err)
{
    dq_gguf_file *p = &m->file[i];
    const char *slash = strrchr(path, '/');
    p->name = dq_text(m->arena, slash ? slash + 1 : path, strlen(slash ? slash + 1 : path), err);
    if (!p->name) return err->code;
    DQ_TRY(dq_os_map_open(&p->map, path, err));
    const dq_status status =
        tensors ? dq_gguf_parse(&p->g, p->map.data, p->map.bytes, m->arena, err)
                : dq_gguf_parse_fields(&p->g, p->map.data, p->map.bytes, m->arena, err);
    if (tensors && i == 0 && status == DQ_MISMATCH) refuse_kind(p, m->arena, err);
    return status == DQ_OK ? DQ_OK : dq_in(err, "%s: ", path);
}

static char *file_path(const char *path, int64_t i, int64_t n, dq_arena *a, dq_err *err)
{
    char first[48];
    snprintf(first, sizeof first, "-00001-of-%05lld.gguf", (long long)n);
    const size_t len = strlen(path), end = strlen(first);
    if (len <= end || strcmp(path + len - end, first) != 0) {
        dq_fail(
            err, DQ_MISMATCH,
            "%s: is a part of a model in %lld files. Name the first, with its old name, NAME%s.",
            path, (long long)n, first);
        return NULL;
    }
    return dq_textf(a, err, "%.*s-%05lld-of-%05lld.gguf", (int)(len - end), path, (long long)i + 1,
                    (long long)n);
}

static dq_status split_number(int64_t *out, const dq_gguf_file *p, const char *key, dq_err *err)
{
    return dq_json_int(out, p->g.fields, key, 0, MAX_FILES, NULL, err);
}

/* A later file must say its place and must not contradict the keys of the first. */
static dq_status check_file(const dq_gguf_model *m, int64_t i, dq_err *err)
{
    const dq_gguf_file *p = &m->file[i];
    int64_t count, number;
    const char *key;
    json_t *value;
    DQ_TRY(split_number(&count, p, "split.count", err));
    DQ_TRY(split_number(&number, p, "split.no", err));
    if (count != m->n_files || number != i)
        return dq_fail(err, DQ_DAMAGED,
                       "says that it is part %lld of %lld (expected %lld of %lld, from 0 on)",
                       (long long)number, (long long)count, (long long)i, (long long)m->n_files);
    json_object_foreach(p->g.fields, key, value)
    {
        const json_t *first = json_object_get(m->file[0].g.fields, key);
        if (strncmp(key, "split.", 6) == 0 ||
            (strncmp(key, "general.", 8) == 0 && strcmp(key, "general.architecture") != 0))
            continue;
        if (!first || !json_equal(first, value))
            return dq_fail(
                err, DQ_MISMATCH,
                "key \"%s\" is not what the first part says, which has the keys of a model", key);
    }
    return DQ_OK;
}

/* The first file may say how many tensors all have. */
static dq_status join_files(dq_gguf_model *m, dq_err *err)
{
    int64_t stated;
    const dq_gguf **g = dq_alloc(m->arena, (size_t)m->n_open, sizeof *g, err);
    if (!g) return err->code;
    for (int i = 0; i < m->n_open; i++) g[i] = &m->file[i].g;
    m->all = *g[0];
    DQ_TRY(join(&m->all.tensor, &m->all.n_tensors, g, m->n_open, m->arena, err));
    DQ_TRY(dq_json_int(&stated, m->all.fields, "split.tensors.count", 0, INT32_MAX,
                       &m->all.n_tensors, err));
    if (stated == m->all.n_tensors) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED,
                   "key \"split.tensors.count\": the files have %lld tensors (expected %lld)",
                   (long long)m->all.n_tensors, (long long)stated);
}

static dq_status open_files(dq_gguf_model *m, const char *path, dq_err *err)
{
    static const int64_t one = 1, zero = 0;
    int64_t number;
    DQ_TRY(open_file(m, 0, path, true, err));
    const json_t *f = m->file[0].g.fields;
    if (dq_json_int(&m->n_files, f, "split.count", 0, MAX_FILES, &one, err) != DQ_OK ||
        dq_json_int(&number, f, "split.no", 0, MAX_FILES, &zero, err) != DQ_OK)
        return dq_in(err, "%s: ", path);
    for (int64_t i = 1; i < m->n_files; i++) {
        const char *other = file_path(path, i, m->n_files, m->arena, err);
        if (!other) return err->code;
        m->n_open++;
        DQ_TRY(open_file(m, (int)i, other, true, err));
        if (check_file(m, i, err) != DQ_OK) return dq_in(err, "%s: ", other);
    }
    if (number != 0)
        return dq_fail(
            err, DQ_DAMAGED,
            "%s: says that it is part %lld (expected 0, from 0 on, which has the keys of a model)",
            path, (long long)number);
    return DQ_OK;
}

static dq_status read_head(dq_gguf_model *m, dq_err *err)
{
    int64_t heads, kv_heads;
    char *text;
    DQ_TRY(dq_gguf_config_kind(m->file[0].g.fields, err));
    m->arch = dq_gguf_architecture_find(
        json_string_value(json_object_get(m->file[0].g.fields, "general.architecture")));
    DQ_TRY(join_files(m, err));
    DQ_TRY(dq_gguf_config(&m->config, &heads, &kv_heads, &m->all, err));
    DQ_TRY(dq_json_dump(&text, m->config, JSON_INDENT(2), err));
    dq_strbuf_add(&m->text[CONFIG], text, strlen(text), err);
    free(text);
    DQ_TRY(err->code);
    size_t at = 0;
    /* each may need a bias */
    m->entry = dq_alloc(m->arena, 2 * (size_t)m->all.n_tensors, sizeof *m->entry, err);
    if (!m->entry) return err->code;
    for (int64_t i = 0; i < m->all.n_tensors; i++)
        DQ_TRY(add_entry(m, &m->all.tensor[i], heads, kv_heads, err));
    enum { TYPES = 64 };
    int64_t count[TYPES] = {0};
    m->about = "GGUF";
    for (int64_t i = 0; i < m->n_entries; i++) count[m->entry[i].t->type % TYPES]++;
    for (int64_t most = 1; most;) {
        uint32_t type = 0;
        most = 0;
        for (uint32_t k = 0; k < TYPES; k++) {
            if (count[k] > most) most = count[type = k];
        }
        if (!most) break;
        count[type] = 0;
        m->about = dq_textf(m->arena, err, "%s, %lld %s", m->about, (long long)most,
                            dq_gguf_type_name(type));
        if (!m->about) return err->code;
    }
    for (int64_t i = 0; i < m->all.n_tensors; i++) DQ_TRY(add_zero_bias(m, &m->all.tensor[i], err));
    qsort(m->entry, (size_t)m->n_entries, sizeof *m->entry, dq_name_compare);
    if (m->own_bytes) dq_os_block_reserve(&m->own, m->own_bytes);
    for (int64_t i = 0; i < m->n_entries; i++) {
        const size_t bytes = own_bytes(&m->entry[i]);
        if (bytes) {
            dq_gguf_entry *e = &m->entry[i];
            uint8_t *p = m->own.data ? m->own.data + at : NULL;
            e->own = p;
            e->w.data = p;
            if (becomes_codes(e->t)) e->w.scale = p ? p + code_bytes(&e->w) : NULL;
        }
        at += bytes;
    }
    return DQ_OK;
}

static dq_status make_tokenizer(dq_gguf_model *m, dq_err *err)
{
    if (m->tokenizer_made) return DQ_OK;
    DQ_TRY(dq_gguf_config_tokenizer(&m->text[TOKENIZER], &m->text[TOKENIZER_CONFIG],
                                    &m->text[GENERATION], &m->file[0].g, err));
    m->tokenizer_made = true;
    return DQ_OK;
}

/* With the first file not yet open; NULL: see err. */
static dq_gguf_model *new_model(dq_err *err)
{
    dq_arena *arena;
    dq_gguf_model *m = dq_arena_object(&arena, sizeof *m, err);
    dq_gguf_file *files = m ? dq_alloc(arena, MAX_FILES, sizeof *files, err) : NULL;
    if (m && !files) dq_arena_free(arena);
    if (!files) return NULL;
    m->arena = arena;
    m->file = files;
    m->n_open = 1;
    return m;
}

static dq_status opened(dq_gguf_model **out, dq_gguf_model *m, const dq_err *err)
{
    *out = err->code == DQ_OK ? m : NULL;
    if (!*out) dq_gguf_model_close(m);
    return err->code;
}

dq_status dq_gguf_model_open(dq_gguf_model **out, const char *path, dq_err *err)
{
    dq_gguf_model *m = new_model(err);
    if (m && open_files(m, path, err) == DQ_OK && read_head(m, err) != DQ_OK)
        dq_in(err, "%s: ", path);
    return opened(out, m, err);
}

dq_status dq_gguf_model_open_tokenizer(dq_gguf_model **out, const char *path, dq_err *err)
{
    dq_gguf_model *m = new_model(err);
    if (m && open_file(m, 0, path, false, err) == DQ_OK && make_tokenizer(m, err) != DQ_OK)
        dq_in(err, "%s: ", path);
    return opened(out, m, err);
}

void dq_gguf_model_close(dq_gguf_model *m)
{
    if (!m) return;
    for (int i = 0; i < m->n_open; i++) {
        json_decref(m->file[i].g.fields);
        dq_os_map_close(&m->file[i].map);
    }
    for (int i = 0; i < DQ_GGUF_MODEL_TEXTS; i++) dq_block_free(m->text[i].s);
    json_decref(m->config);
    dq_os_block_free(&m->own);
    dq_arena_free(m->arena); /* m itself lives there */
}

dq_status dq_gguf_model_text(dq_gguf_model *m, const char *name, const char **out, size_t *len,
                             dq_err *err)
{
    *out = NULL;
    *len = 0;
    for (int i = 0; i < DQ_GGUF_MODEL_TEXTS; i++) {
        if (strcmp(text_names[i], name) != 0) continue;
        if (i != CONFIG) DQ_TRY(make_tokenizer(m, err));
        *out = m->text[i].s;
        *len = m->text[i].n;
    }
    return DQ_OK;
}
