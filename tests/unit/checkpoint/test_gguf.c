/* GGUF files: values of every block type against those of the package gguf, and headers that lie.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "base/file.h"
#include "checkpoint/gguf_config.h"
#include "tokenizer/tokenizer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char types_file[] = DQ_TEST_DIR "/golden/gguf/types.gguf";

typedef struct rig {
    dq_arena *a;
    char *bytes;
    size_t len;
    dq_gguf g;
} rig;

static void open_rig(rig *r)
{
    dq_err err = {0};
    r->a = given_arena();
    r->bytes = given_file(&r->len, "%s", types_file);
    if (dq_gguf_parse(&r->g, (const uint8_t *)r->bytes, r->len, r->a, &err) != DQ_OK)
        fail_msg("%s", err.text);
}

static void close_rig(rig *r)
{
    json_decref(r->g.fields);
}

/* Every value of every type, and rows read in parts that do not begin or end with a block. */
TEST(test_values)
{
    rig r;
    int n = 0;
    open_rig(&r);
    for (int64_t i = 0; i < r.g.n_tensors; i++) {
        const dq_gguf_tensor *t = &r.g.tensor[i], *want;
        const dq_weight_format *f = dq_format_ggml(t->type);
        char name[64];
        float got[512], part[512];
        if (!f) continue;
        n++;
        assert_string_equal(f->name, t->name);
        snprintf(name, sizeof name, "%s.values", t->name);
        want = dq_gguf_find(&r.g, name);
        assert_non_null(want);
        assert_int_equal(t->shape[1], 512);
        const dq_weight w = dq_format_ggml_weight(f, t->name, t->shape[0], t->shape[1], t->data);
        assert_int_equal(dq_weight_bytes(&w), t->bytes);
        for (int64_t row = 0; row < w.rows; row++) {
            dq_weight_dequantize_rows(got, &w, row, row + 1);
            if (memcmp(got, want->data + (size_t)row * sizeof got, sizeof got) != 0)
                fail_msg("%s, row %d", t->name, (int)row);
            for (int64_t first = 0; first < 512; first += 136) {
                const int64_t m = first + 136 < 512 ? 136 : 512 - first;
                f->dequantize(part + first, &w, row, first, m);
            }
            assert_memory_equal(part, got, sizeof got);
        }
    }
    assert_int_equal(n, 12);
    close_rig(&r);
}

/* ---- SentencePiece ---- */

static dq_tokenizer *spm_tokenizer(void)
{
    dq_err err = {0};
    dq_gguf g;
    dq_strbuf text, more;
    size_t len;
    const char *bytes = given_file(&len, DQ_TEST_DIR "/golden/gguf/spm.gguf");
    assert_int_equal(dq_gguf_parse(&g, (const uint8_t *)bytes, len, given_arena(), &err), DQ_OK);
    if (dq_gguf_config_tokenizer(&text, &more, &g, &err) != DQ_OK) fail_msg("%s", err.text);
    dq_tokenizer *t = given_tokenizer(text.s, text.n, more.s);
    json_decref(g.fields);
    dq_block_free(text.s);
    dq_block_free(more.s);
    return t;
}

static void expect_ids(const dq_tokenizer *t, const char *text, size_t len, unsigned flags,
                       const json_t *want, int64_t first)
{
    dq_err err = {0};
    int32_t *ids = NULL;
    int64_t n, bad, first_bad;
    const int64_t n_want = (int64_t)json_array_size(want);
    assert_int_equal(dq_tokenizer_encode(t, text, len, flags, &ids, &n, &first_bad, &bad, &err),
                     DQ_OK);
    if (n != n_want + first) fail_msg("\"%s\": %d tokens, not %d", text, (int)n, (int)n_want);
    for (int64_t i = 0; i < n_want; i++) {
        if (ids[first + i] != json_integer_value(json_array_get(want, (size_t)i)))
            fail_msg("\"%s\": id %d", text, (int)i);
    }
    dq_block_free(ids);
}

/* The ids that sentencepiece itself gives, and BOS in front where special tokens are asked for. */
TEST(test_sentencepiece)
{
    size_t i;
    json_t *row;
    dq_tokenizer *t = spm_tokenizer();
    json_t *golden = given_json(DQ_TEST_DIR "/golden/gguf/spm.json");
    assert_true(json_array_size(json_object_get(golden, "rows")) > 40);
    json_array_foreach(json_object_get(golden, "rows"), i, row)
    {
        const json_t *text = json_object_get(row, "text");
        const json_t *ids = json_object_get(row, "ids");
        expect_ids(t, json_string_value(text), json_string_length(text), 0, ids, 0);
        expect_ids(t, json_string_value(text), json_string_length(text), DQ_TOK_SPECIAL, ids, 1);
    }
    json_decref(golden);
    dq_tokenizer_free(t);
}

/* ---- Files that lie ---- */

typedef struct writer {
    uint8_t bytes[2048];
    size_t n;
} writer;

static void put(writer *w, uint64_t x, int bytes)
{
    for (int i = 0; i < bytes; i++) w->bytes[w->n++] = (uint8_t)(x >> 8 * i);
}

static void put_text(writer *w, const char *s)
{
    put(w, strlen(s), 8);
    memcpy(w->bytes + w->n, s, strlen(s));
    w->n += strlen(s);
}

static void head(writer *w, uint64_t tensors, uint64_t fields)
{
    memcpy(w->bytes, "GGUF", 4);
    w->n = 4;
    put(w, 3, 4);
    put(w, tensors, 8);
    put(w, fields, 8);
}

static void field(writer *w, const char *key, uint64_t type, uint64_t value, int bytes)
{
    put_text(w, key);
    put(w, type, 4);
    put(w, value, bytes);
}

/* [rows, cols] of a type, at an offset. */
static void tensor(writer *w, const char *name, uint64_t rows, uint64_t cols, uint64_t type,
                   uint64_t offset)
{
    put_text(w, name);
    put(w, 2, 4);
    put(w, cols, 8);
    put(w, rows, 8);
    put(w, type, 4);
    put(w, offset, 8);
}

static void data(writer *w, size_t bytes)
{
    w->n = (w->n + 31) / 32 * 32 + bytes;
}

static void version_1(writer *w)
{
    head(w, 0, 0);
    w->bytes[4] = 1;
}
static void big_endian(writer *w)
{
    head(w, 0, 0);
    w->bytes[4] = 0;
    w->bytes[7] = 3;
}
static void many(writer *w)
{
    head(w, UINT64_MAX, 0);
}
static void long_key(writer *w)
{
    head(w, 0, 1);
    put(w, UINT64_MAX, 8);
}
static void empty_key(writer *w)
{
    head(w, 0, 1);
    field(w, "", 4, 0, 4);
}
static void twice(writer *w)
{
    head(w, 0, 2);
    field(w, "a", 4, 0, 4);
    field(w, "a", 4, 0, 4);
}
static void odd_type(writer *w)
{
    head(w, 0, 1);
    field(w, "a", 13, 0, 4);
}
static void odd_bool(writer *w)
{
    head(w, 0, 1);
    field(w, "a", 7, 2, 1);
}
static void not_finite(writer *w)
{
    head(w, 0, 1);
    field(w, "a", 6, 0x7f800000, 4);
}
static void not_utf8(writer *w)
{
    head(w, 0, 1);
    put_text(w, "a");
    put(w, 8, 4);
    put_text(w, "\xff");
}
static void long_list(writer *w)
{
    head(w, 0, 1);
    field(w, "a", 9, 4, 4);
    put(w, UINT64_MAX, 8);
}
static void nested(writer *w)
{
    head(w, 0, 1);
    field(w, "a", 9, 9, 4);
    put(w, 1, 8);
    put(w, 4, 4);
    put(w, 0, 8);
}
static void odd_align(writer *w)
{
    head(w, 1, 1);
    field(w, "general.alignment", 4, 24, 4);
    tensor(w, "x", 1, 8, 0, 0);
    data(w, 32);
}
static void no_align(writer *w)
{
    head(w, 1, 0);
    tensor(w, "x", 1, 8, 0, 8);
    data(w, 64);
}
static void beyond(writer *w)
{
    head(w, 1, 0);
    tensor(w, "x", 1, 8, 0, 0);
    data(w, 31);
}
static void far_beyond(writer *w)
{
    head(w, 1, 0);
    tensor(w, "x", 1, 8, 0, UINT64_MAX - 31);
    data(w, 32);
}
static void huge(writer *w)
{
    head(w, 1, 0);
    tensor(w, "x", 1ull << 40, 1ull << 40, 0, 0);
    data(w, 32);
}
static void nothing(writer *w)
{
    head(w, 1, 0);
    tensor(w, "x", 0, 8, 0, 0);
    data(w, 32);
}
static void odd_row(writer *w)
{
    head(w, 1, 0);
    tensor(w, "x", 2, 16, 2, 0);
    data(w, 32);
}
static void other_type(writer *w)
{
    head(w, 1, 0);
    tensor(w, "x", 1, 256, 16, 0);
    data(w, 256);
}
static void no_type(writer *w)
{
    head(w, 1, 0);
    tensor(w, "x", 1, 256, 99, 0);
    data(w, 256);
}
static void overlap(writer *w)
{
    head(w, 2, 0);
    tensor(w, "x", 1, 16, 0, 0);
    tensor(w, "y", 1, 8, 0, 32);
    data(w, 96);
}
static void same_name(writer *w)
{
    head(w, 2, 0);
    tensor(w, "x", 1, 8, 0, 0);
    tensor(w, "x", 1, 8, 0, 32);
    data(w, 64);
}
static void five(writer *w)
{
    head(w, 1, 0);
    put_text(w, "x");
    put(w, 5, 4);
    data(w, 64);
}

static dq_status parse(dq_err *err, const void *bytes, size_t n)
{
    dq_gguf g;
    uint8_t *copy =
        malloc(n ? n : 1); /* of exactly that size, so that a sanitizer sees any step outside */
    dq_arena *a = given_arena();
    memcpy(copy, bytes, n);
    *err = (dq_err){0};
    if (dq_gguf_parse(&g, copy, n, a, err) == DQ_OK)
        json_decref(g.fields);
    else
        assert_null(g.fields);
    free(copy);
    return err->code;
}

TEST(test_lies)
{
    static const struct {
        void (*make)(writer *w);
        dq_status status;
        const char *says;
    } t[] = {
        {version_1, DQ_MISMATCH, "version 1"},
        {big_endian, DQ_MISMATCH, "big-endian"},
        {many, DQ_DAMAGED, "18446744073709551615 tensors"},
        {long_key, DQ_DAMAGED, "ends inside its header"},
        {empty_key, DQ_DAMAGED, "a key at byte"},
        {twice, DQ_DAMAGED, "key \"a\" is there twice"},
        {odd_type, DQ_DAMAGED, "type 13"},
        {odd_bool, DQ_DAMAGED, "neither true nor false"},
        {not_finite, DQ_DAMAGED, "not finite"},
        {not_utf8, DQ_DAMAGED, "not UTF-8"},
        {long_list, DQ_DAMAGED, "ends inside its header"},
        {nested, DQ_DAMAGED, "type 9"},
        {odd_align, DQ_DAMAGED, "no power of two"},
        {no_align, DQ_DAMAGED, "no multiple of 32"},
        {beyond, DQ_DAMAGED, "ends beyond the file"},
        {far_beyond, DQ_DAMAGED, "ends beyond the file"},
        {huge, DQ_DAMAGED, "too large"},
        {nothing, DQ_DAMAGED, "a dimension of 0"},
        {odd_row, DQ_DAMAGED, "blocks of 32"},
        {other_type, DQ_MISMATCH, "IQ2_XXS (16)"},
        {no_type, DQ_MISMATCH, "unknown (99)"},
        {overlap, DQ_DAMAGED, "\"y\" overlaps tensor \"x\""},
        {same_name, DQ_DAMAGED, "\"x\" is there twice"},
        {five, DQ_DAMAGED, "5 dimensions"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        static writer w;
        dq_err err;
        w = (writer){0};
        t[i].make(&w);
        const dq_status status = parse(&err, w.bytes, w.n);
        if (status != t[i].status || !strstr(err.text, t[i].says))
            fail_msg("case %zu: %d, %s", i, status, err.text);
    }
}

/* ---- Tokenizers of few keys ---- */

static void text_field(writer *w, const char *key, const char *value)
{
    put_text(w, key);
    put(w, 8, 4);
    put_text(w, value);
}

static void list_field(writer *w, const char *key, uint64_t type, uint64_t n)
{
    put_text(w, key);
    put(w, 9, 4);
    put(w, type, 4);
    put(w, n, 8);
}

/* Four tokens of a vocabulary, their types and scores, and what comes first of merges. */
static void four_tokens(writer *w, const char *model, const char *pre, const char *name,
                        const char *merge)
{
    static const char *const token[] = {"<unk>", "<s>", "</s>", "e"};
    static const uint64_t type[] = {2, 3, 3, 1};
    head(w, 0, 7);
    text_field(w, "tokenizer.ggml.model", model);
    text_field(w, "tokenizer.ggml.pre", pre);
    text_field(w, "general.name", name);
    list_field(w, "tokenizer.ggml.tokens", 8, 4);
    for (int i = 0; i < 4; i++) put_text(w, token[i]);
    list_field(w, "tokenizer.ggml.token_type", 5, 4);
    for (int i = 0; i < 4; i++) put(w, type[i], 4);
    list_field(w, "tokenizer.ggml.scores", 6, 4);
    for (int i = 0; i < 4; i++) put(w, 0, 4);
    list_field(w, "tokenizer.ggml.merges", 8, *merge ? 1 : 0);
    if (*merge) put_text(w, merge);
}

/* The texts of the tokenizer that a file's keys make, ended by NUL; both blocks of the caller's. */
static dq_status texts_of(dq_strbuf *text, dq_strbuf *more, const writer *w, dq_err *err)
{
    dq_gguf g;
    dq_arena *a = given_arena();
    assert_int_equal(dq_gguf_parse_fields(&g, w->bytes, w->n, a, err), DQ_OK);
    if (dq_gguf_config_tokenizer(text, more, &g, err) == DQ_OK) {
        assert_int_equal(dq_strbuf_add(text, "", 1, err), DQ_OK);
        assert_int_equal(dq_strbuf_add(more, "", 1, err), DQ_OK);
    }
    json_decref(g.fields);
    return err->code;
}

/* What keys do not say and readers know all the same. */
TEST(test_usual)
{
    static const struct {
        const char *model, *pre, *name, *says, *more;
    } t[] = {
        {"llama", "default", "x", "\"SpecialToken\"", "\"bos_token\": \"<s>\""},
        {"gpt2", "qwen2", "x", "\"type\": \"NFC\"", "{}"},
        {"gpt2", "gpt-2", "x", "\"normalizer\": null", "{}"},
        {"gpt2", "gpt-2", "Phi-3 mini", "\"rstrip\": true", "{}"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        static writer w;
        dq_err err = {0};
        dq_strbuf text, more;
        w = (writer){0};
        four_tokens(&w, t[i].model, t[i].pre, t[i].name, "");
        if (texts_of(&text, &more, &w, &err) != DQ_OK) fail_msg("%s", err.text);
        if (!strstr(text.s, t[i].says) || !strstr(more.s, t[i].more))
            fail_msg("case %zu: %s %s", i, text.s, more.s);
        if (i != 3) assert_null(strstr(text.s, "\"rstrip\": true"));
        dq_block_free(text.s);
        dq_block_free(more.s);
    }
}

/* Two tokens of SentencePiece, the second of so many bytes and with a type of eight bytes. */
static void two_tokens(writer *w, double type, int bytes)
{
    const double number[2][2] = {{1, type}, {0, -1e300}};
    char token[1100];
    head(w, 0, 4);
    text_field(w, "tokenizer.ggml.model", "llama");
    list_field(w, "tokenizer.ggml.tokens", 8, 2);
    put_text(w, "a");
    snprintf(token, sizeof token, "%0*d", bytes, 0);
    put_text(w, token);
    for (int k = 0; k < 2; k++) {
        list_field(w, k ? "tokenizer.ggml.scores" : "tokenizer.ggml.token_type", 12, 2);
        for (int i = 0; i < 2; i++) {
            uint64_t bits;
            memcpy(&bits, &number[k][i], sizeof bits);
            put(w, bits, 8);
        }
    }
}

/* Lists that no vocabulary has. */
TEST(test_odd_vocabularies)
{
    static const struct {
        double type;
        int bytes;
        dq_status status;
        const char *says;
    } t[] = {
        {0, 2, DQ_OK, ""},
        {6, 1024, DQ_OK, ""},
        {1, 1025, DQ_MISMATCH, "token 1 has 1025 bytes (expected at most 1024"},
        {7, 2, DQ_DAMAGED, "token 1 has 7 (expected a whole number from 0 to 6)"},
        {1.5, 2, DQ_DAMAGED, "token 1 has 1.5"},
        {-1, 2, DQ_DAMAGED, "token 1 has -1"},
        {1e300, 2, DQ_DAMAGED, "token 1 has 1e+300"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        static writer w;
        dq_err err = {0};
        dq_strbuf text, more;
        w = (writer){0};
        two_tokens(&w, t[i].type, t[i].bytes);
        const dq_status status = texts_of(&text, &more, &w, &err);
        if (status != t[i].status || !strstr(err.text, t[i].says))
            fail_msg("case %zu: %d, %s", i, status, err.text);
        dq_block_free(text.s);
        dq_block_free(more.s);
    }
}

/* A file that ends anywhere before its last byte. */
TEST(test_cut)
{
    rig r;
    dq_err err;
    open_rig(&r);
    for (size_t n = 0; n < r.len; n += n < r.g.header_bytes + 64 ? 1 : 997) {
        assert_int_equal(parse(&err, r.bytes, n), DQ_DAMAGED);
        assert_true(err.text[0] != 0);
    }
    close_rig(&r);
}
