/* GGUF files: values of every block type against those of the package gguf, and headers that lie.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "base/file.h"
#include "checkpoint/gguf.h"
#include "tokenizer/tokenizer.h"
#include <math.h>
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

static dq_tokenizer *spm_tokenizer(const char *name)
{
    dq_err err = {0};
    dq_gguf g;
    dq_strbuf text, more, ends;
    size_t len;
    const char *bytes = given_file(&len, DQ_TEST_DIR "/golden/gguf/%s.gguf", name);
    assert_int_equal(dq_gguf_parse(&g, (const uint8_t *)bytes, len, given_arena(), &err), DQ_OK);
    if (dq_gguf_config_tokenizer(&text, &more, &ends, &g, &err) != DQ_OK) fail_msg("%s", err.text);
    dq_tokenizer *t = given_tokenizer(text.s, text.n, more.s);
    json_decref(g.fields);
    dq_block_free(text.s);
    dq_block_free(more.s);
    dq_block_free(ends.s);
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

/* The ids that sentencepiece itself gives, of Gemma those of transformers; BOS in front where special tokens are asked for. */
TEST(test_sentencepiece)
{
    static const char *const names[] = {"spm", "gemma"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        size_t i;
        json_t *row;
        dq_tokenizer *t = spm_tokenizer(names[k]);
        json_t *golden = given_json(DQ_TEST_DIR "/golden/gguf/%s.json", names[k]);
        assert_true(json_array_size(json_object_get(golden, "rows")) > 40);
        json_array_foreach(json_object_get(golden, "rows"), i, row)
        {
            const json_t *text = json_object_get(row, "text");
            const json_t *ids = json_object_get(row, "ids");
            const size_t n = json_string_length(text);
            expect_ids(t, json_string_value(text), n, 0, ids, 0);
            expect_ids(t, json_string_value(text), n, DQ_TOK_SPECIAL, ids, 1);
        }
        json_decref(golden);
        dq_tokenizer_free(t);
    }
}

/* ---- Files that lie ---- */

typedef struct writer {
    uint8_t bytes[4096];
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
static void odd_list(writer *w)
{
    head(w, 0, 1);
    field(w, "a", 9, 8, 4);
    put(w, 1, 8);
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
        {odd_bool, DQ_OK, ""}, /* of a key that nothing reads */
        {not_finite, DQ_OK, ""},
        {not_utf8, DQ_OK, ""},
        {odd_list, DQ_OK, ""},
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
    dq_strbuf ends;
    dq_arena *a = given_arena();
    assert_int_equal(dq_gguf_parse_fields(&g, w->bytes, w->n, a, err), DQ_OK);
    if (dq_gguf_config_tokenizer(text, more, &ends, &g, err) == DQ_OK) {
        assert_int_equal(dq_strbuf_add(text, "", 1, err), DQ_OK);
        assert_int_equal(dq_strbuf_add(more, "", 1, err), DQ_OK);
    }
    json_decref(g.fields);
    dq_block_free(ends.s);
    return err->code;
}

/* All for which llama_vocab_is_eog is true: keys, then names, of tokens of any type. */
TEST(test_ends)
{
    static const struct {
        const char *key, *token[4], *ids; /* of the vocabulary; NULL: no such file */
    } t[] = {
        {"tokenizer.ggml.eos_token_id", {"a", "b", "c", "d"}, "[3]"},
        {"tokenizer.ggml.eot_token_id", {"a", "b", "c", "d"}, "[3]"},
        {"tokenizer.ggml.eom_token_id", {"a", "b", "c", "d"}, "[3]"},
        {"tokenizer.ggml.fim_pad_token_id", {"a", "b", "<|fim_pad|>", "d"}, "[3]"},
        {"tokenizer.ggml.bos_token_id", {"a", "b", "<|fim_pad|>", "d"}, "[2]"},
        {"tokenizer.ggml.bos_token_id", {"a", "<REPO>", "<|file_sep|>", "d"}, "[1,2]"},
        {"tokenizer.ggml.bos_token_id", {"a", "b", "c", "d"}, NULL},
        {"tokenizer.ggml.eos_token_id",
         {"<|im_end|>", "<|eot_id|>", "x", "<|endoftext|>"},
         "[3,0,1]"},
        {"tokenizer.ggml.bos_token_id", {"_<EOT>", "<EOT>", "</s>", "<end_of_turn>"}, "[0,1,2,3]"},
        {"tokenizer.ggml.bos_token_id", {"<|eot_id", "|eot_id|>", "<|EOT_ID|>", "x"}, NULL},
        {"tokenizer.ggml.eos_token_id", {"<|call|>", "<|end|>", "<|return|>", "x"}, "[3,0,2]"},
        {"tokenizer.ggml.eos_token_id", {"<|call|>", "<|end|>", "y", "x"}, "[3,0,1]"},
        {"tokenizer.ggml.eos_token_id", {"<|tool_response>", "x", "y", "</s>"}, "[0]"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        static writer w;
        dq_err err = {0};
        dq_gguf g;
        dq_strbuf text, more, ends;
        w = (writer){0};
        head(&w, 0, 5);
        text_field(&w, "tokenizer.ggml.model", "gpt2");
        text_field(&w, "tokenizer.ggml.pre", "gpt-2");
        put_text(&w, t[i].key);
        put(&w, 4, 4);
        put(&w, 3, 4);
        list_field(&w, "tokenizer.ggml.tokens", 8, 4);
        for (int k = 0; k < 4; k++) put_text(&w, t[i].token[k]);
        list_field(&w, "tokenizer.ggml.merges", 8, 0);
        assert_int_equal(dq_gguf_parse_fields(&g, w.bytes, w.n, given_arena(), &err), DQ_OK);
        if (dq_gguf_config_tokenizer(&text, &more, &ends, &g, &err) != DQ_OK)
            fail_msg("case %zu: %s", i, err.text);
        json_t *want = t[i].ids ? json_loads(t[i].ids, 0, NULL) : NULL;
        json_t *got = ends.s ? json_loadb(ends.s, ends.n, 0, NULL) : NULL;
        if (!want != !got || !json_equal(want, json_object_get(got, "eos_token_id")))
            if (want || got) fail_msg("case %zu: %.*s", i, (int)ends.n, ends.s ? ends.s : "");
        json_decref(want);
        json_decref(got);
        json_decref(g.fields);
        dq_block_free(text.s);
        dq_block_free(more.s);
        dq_block_free(ends.s);
    }
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

/* Runs of one character: every cut of every piece is a merge. `longest` of them fit into what a vocabulary may have or not. */
TEST(test_runs)
{
    static const int longest[] = {64, 512};
    for (int k = 0; k < 2; k++) {
        static uint8_t bytes[512 * 512];
        static char run[512];
        const int n = longest[k];
        writer w = {.n = 0};
        dq_err err = {0};
        dq_gguf g;
        dq_strbuf text = {0}, more = {0}, ends = {0};
        head(&w, 0, 3);
        text_field(&w, "tokenizer.ggml.model", "llama");
        list_field(&w, "tokenizer.ggml.scores", 10, (uint64_t)n); /* u64, all 0 */
        size_t at = w.n + (size_t)n * 8;
        memcpy(bytes, w.bytes, w.n);
        w.n = 0;
        list_field(&w, "tokenizer.ggml.tokens", 8, (uint64_t)n);
        memcpy(bytes + at, w.bytes, w.n);
        at += w.n;
        memset(run, 'a', sizeof run);
        for (int i = 1; i <= n; i++) {
            const uint64_t len = (uint64_t)i;
            memcpy(bytes + at, &len, 8);
            memcpy(bytes + at + 8, run, (size_t)i);
            at += 8 + (size_t)i;
        }
        assert_true(at <= sizeof bytes);
        assert_int_equal(dq_gguf_parse_fields(&g, bytes, at, given_arena(), &err), DQ_OK);
        dq_gguf_config_tokenizer(&text, &more, &ends, &g, &err);
        if (k == 0)
            assert_int_equal(err.code, DQ_OK);
        else
            check_error(&err, DQ_MISMATCH, "pieces are made of one another in more than");
        json_decref(g.fields);
        dq_block_free(text.s);
        dq_block_free(more.s);
        dq_block_free(ends.s);
    }
}

/* ---- Keys of a model ---- */

static void number_field(writer *w, const char *key, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    field(w, key, 12, bits, 8);
}

static const char *key_of(char key[64], const char *arch, const char *name)
{
    snprintf(key, 64, "%s.%s", arch, name);
    return key;
}

/* A model of `layers` layers and heads of 64 with one tensor, and what `more` adds as its `n` last keys; with divisors of llama3,
 * or of n of them. */
static void model_of(writer *w, const char *arch, uint64_t layers,
                     void (*more)(writer *w, const void *arg), const void *arg, int n, int divisors)
{
    const struct {
        const char *key;
        uint64_t value;
    } sizes[] = {{"embedding_length", 128},
                 {"block_count", layers},
                 {"feed_forward_length", 96},
                 {"context_length", 512},
                 {"attention.head_count", 2}};
    enum { N = sizeof sizes / sizeof *sizes };
    char key[64];
    *w = (writer){0};
    head(w, divisors ? 2 : 1, (uint64_t)(N + 2 + n));
    text_field(w, "general.architecture", arch);
    number_field(w, key_of(key, arch, "attention.layer_norm_rms_epsilon"), 1e-5);
    for (int i = 0; i < N; i++) field(w, key_of(key, arch, sizes[i].key), 4, sizes[i].value, 4);
    if (more) more(w, arg);
    tensor(w, "token_embd.weight", 1, 128, 0, 0);
    if (divisors) {
        put_text(w, "rope_freqs.weight");
        put(w, 1, 4);
        put(w, (uint64_t)divisors, 8);
        put(w, 0, 4);
        put(w, 512, 8);
    }
    data(w, 512);
    for (int i = 0; i < divisors; i++) {
        const double length = 6.283185307179586 * pow(10000, i / 32.),
                     keep = (8192 / length - 1) / 3;
        const float x = (float)(keep >= 1 ? 1 : keep <= 0 ? 8 : 1 / ((1 - keep) / 8 + keep));
        memcpy(w->bytes + w->n, &x, sizeof x);
        w->n += sizeof x;
    }
}

static void llama(writer *w, void (*more)(writer *w, const void *arg), const void *arg, int n,
                  int divisors)
{
    model_of(w, "llama", 2, more, arg, n, divisors);
}

/* The rotary part of the configuration, ended by free; NULL: there is none, or see err. */
static char *rope_of(const writer *w, json_t **config, dq_err *err)
{
    dq_gguf g;
    int64_t heads, kv_heads;
    char *text = NULL;
    *err = (dq_err){0};
    *config = NULL;
    if (dq_gguf_parse(&g, w->bytes, w->n, given_arena(), err) != DQ_OK) fail_msg("%s", err->text);
    if (dq_gguf_config(config, &heads, &kv_heads, &g, err) == DQ_OK)
        text = json_dumps(json_object_get(*config, "rope_scaling"), JSON_SORT_KEYS);
    json_decref(g.fields);
    return text;
}

typedef struct pair {
    const char *key;
    double x;
} pair;

static void one_pair(writer *w, const void *arg)
{
    const pair *p = arg;
    number_field(w, p->key, p->x);
}

/* Keys of llama.cpp beside those that are read: a value that changes nothing, and one that is refused by name. */
static const struct {
    const char *key;
    double fine, other;
} other_keys[] = {
    {"expert_count", 0, 8},
    {"expert_used_count", 0, 2},
    {"expert_shared_count", 0, 1},
    {"expert_feed_forward_length", 0, 96},
    {"expert_shared_feed_forward_length", 0, 96},
    {"leading_dense_block_count", 0, 1},
    {"moe_every_n_layers", 0, 2},
    {"interleave_moe_layer_step", 0, 1},
    {"nextn_predict_layers", 0, 1},
    {"n_deepstack_layers", 0, 1},
    {"embedding_length_per_layer_input", 0, 8},
    {"embedding_length_out", 128, 64},
    {"decoder_block_count", 0, 2},
    {"full_attention_interval", 0, 4},
    {"hyper_connection.count", 0, 4},
    {"ssm.state_size", 0, 16},
    {"use_parallel_residual", 0, 1},
    {"swin_norm", 0, 1},
    {"rescale_every_n_layers", 0, 6},
    {"pooling_type", 0, 3},
    {"logit_scale", 1, .5},
    {"residual_scale", 0, .22},
    {"embedding_scale", 1, 12},
    {"attn_logit_softcapping", 0, 50},
    {"final_logit_softcapping", 0, 30},
    {"attention.causal", 1, 0},
    {"attention.scale", .125, .1},
    {"attention.max_alibi_bias", 0, 8},
    {"attention.clamp_kqv", 0, 8},
    {"attention.output_scale", 1, 2},
    {"attention.value_scale", 0, 2},
    {"attention.temperature_length", 0, 8192},
    {"attention.temperature_scale", 0, .1},
    {"attention.q_lora_rank", 0, 8},
    {"attention.kv_lora_rank", 0, 8},
    {"attention.key_length_mla", 0, 64},
    {"attention.value_length_mla", 0, 64},
    {"attention.shared_kv_layers", 0, 1},
    {"attention.value_length", 64, 32},
    {"attention.sliding_window", 512, .5},
    {"rope.dimension_count", 64, 32},
    {"rope.dimension_sections", 0, 16},
    {"rope.scaling.alpha", 0, 1000},
    {"rope.scaling.yarn_log_multiplier", 0, .1},
    {"rope.scaling.yarn_ext_factor", 1, 0},
    {"rope.scaling.yarn_attn_factor", 1, 2},
    {"rope.scaling.yarn_beta_fast", 32, 8},
    {"rope.scaling.yarn_beta_slow", 1, 2},
    {"vocab_size", 7, NAN},
    {"attention.layer_norm_epsilon", 1e-5, NAN},
    {"rope.freq_base_swa", 5e5, NAN},
    {"rope.scaling.finetuned", 1, NAN},
};

TEST(test_keys)
{
    for (size_t i = 0; i < sizeof other_keys / sizeof *other_keys; i++) {
        static writer w;
        char key[64];
        pair p = {key, other_keys[i].fine};
        json_t *config;
        dq_err err;
        snprintf(key, sizeof key, "llama.%s", other_keys[i].key);
        llama(&w, one_pair, &p, 1, 0);
        if (rope_of(&w, &config, &err) || err.code != DQ_OK) fail_msg("%s: %s", key, err.text);
        json_decref(config);
        p.x = other_keys[i].other; /* not finite, of a key that nothing reads: nothing */
        llama(&w, one_pair, &p, 1, 0);
        rope_of(&w, &config, &err);
        const dq_status want = isnan(other_keys[i].other)      ? DQ_OK
                               : strstr(key, "sliding_window") ? DQ_DAMAGED
                                                               : DQ_MISMATCH;
        if (err.code != want || (err.code != DQ_OK && !strstr(err.text, key)))
            fail_msg("%s = %g: %d, %s", key, p.x, err.code, err.text);
        json_decref(config);
    }
}

typedef struct scaling {
    const char *type;
    double factor, linear, gain, original; /* 0: the key is not there; of the factor -1 is 0 */
} scaling;

static void scaling_keys(writer *w, const void *arg)
{
    const scaling *s = arg;
    const pair p[] = {{"llama.rope.scaling.factor", s->factor < 0 ? 0 : s->factor},
                      {"llama.rope.scale_linear", s->linear},
                      {"llama.rope.scaling.attn_factor", s->gain},
                      {"llama.rope.scaling.original_context_length", s->original}};
    if (s->type) text_field(w, "llama.rope.scaling.type", s->type);
    for (int i = 0; i < 4; i++) {
        if (p[i].x > 0 || (i == 0 && s->factor < 0)) one_pair(w, &p[i]);
    }
}

static int scaling_count(const scaling *s)
{
    return (s->type != NULL) + (s->factor > 0 || s->factor < 0) + (s->linear > 0) + (s->gain > 0) +
           (s->original > 0);
}

/* Scaling as libllama takes it: linear where no type is said, the old key after the new, none has no factor; a gain multiplies
 * with every type. */
TEST(test_scaling)
{
    static const struct {
        scaling s;
        int divisors;
        const char *says; /* of the rotary part, NULL: none; of the message */
        dq_status status;
    } t[] = {
        {{NULL, 0, 0, 0, 0}, 0, NULL, DQ_OK},
        {{NULL, 4, 0, 0, 0}, 0, "{\"factor\": 4.0, \"rope_type\": \"linear\"}", DQ_OK},
        {{NULL, .5, 0, 0, 0}, 0, "{\"factor\": 0.5, \"rope_type\": \"linear\"}", DQ_OK},
        {{NULL, 0, 2, 0, 0}, 0, "{\"factor\": 2.0, \"rope_type\": \"linear\"}", DQ_OK},
        {{"linear", 4, 2, 0, 0}, 0, "{\"factor\": 4.0, \"rope_type\": \"linear\"}", DQ_OK},
        {{"linear", -1, 2, 0, 0}, 0, NULL, DQ_OK},
        {{"linear", 0, 0, 0, 0}, 0, NULL, DQ_OK},
        {{"none", 4, 2, 0, 0}, 0, NULL, DQ_OK},
        {{"yarn", 0, 0, 0, 128}, 0, NULL, DQ_OK},
        {{"yarn", 4, 0, 0, 128},
         0,
         "{\"factor\": 4.0, \"original_max_position_embeddings\": 128, \"rope_type\": \"yarn\"}",
         DQ_OK},
        {{"yarn", 4, 0, 0, 0},
         0,
         "{\"factor\": 4.0, \"original_max_position_embeddings\": 512, \"rope_type\": \"yarn\"}",
         DQ_OK},
        {{"yarn", 4, 0, 1.5, 0}, 0, "{\"attention_factor\": 1.707944154", DQ_OK},
        {{"none", 4, 0, 1.5, 0}, 0, "{\"attention_factor\": 1.5, \"factor\": 1.0, ", DQ_OK},
        {{NULL, 0, 0, 1, 0}, 0, NULL, DQ_OK},
        {{"linear", 4, 0, 1.5, 0},
         0,
         "{\"attention_factor\": 1.5, \"factor\": 1.0, \"long_factor\": [4.0, 4.0, ",
         DQ_OK},
        {{"longrope", 0, 0, 0, 0}, 0, "\"longrope\" is not supported", DQ_MISMATCH},
        {{NULL, 0, 0, 0, 0}, 32, "{\"factor\": 8.0, \"high_freq_factor\": 4.0, ", DQ_OK},
        {{"none", 4, 0, 0, 0}, 32, "{\"factor\": 8.0, \"high_freq_factor\": 4.0, ", DQ_OK},
        {{NULL, 4, 0, 0, 0},
         32,
         ", 32.0, 32.0], \"original_max_position_embeddings\": 512, \"rope_type\": \"longrope\", "
         "\"short_factor\": [4.0, 4.0, ",
         DQ_OK},
        {{"yarn", 4, 0, 0, 0}, 32, "factor\": 4 of yarn beside the divisors", DQ_MISMATCH},
        {{NULL, 0, 0, 1.5, 0},
         32,
         "{\"attention_factor\": 1.5, \"factor\": 1.0, \"long_factor\": [1.0, ",
         DQ_OK},
        {{NULL, 0, 0, 0, 0}, 31, "expected 32 divisors in F32, found 31", DQ_DAMAGED},
        {{NULL, 0, 0, 0, 0}, 33, "expected 32 divisors in F32, found 33", DQ_DAMAGED},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        static writer w;
        json_t *config;
        dq_err err;
        llama(&w, scaling_keys, &t[i].s, scaling_count(&t[i].s), t[i].divisors);
        char *is = rope_of(&w, &config, &err);
        const char *got = err.code == DQ_OK ? is : err.text;
        if (err.code != t[i].status || !got != !t[i].says || (got && !strstr(got, t[i].says)))
            fail_msg("case %zu: %d, %s", i, err.code, got ? got : "nothing");
        free(is);
        json_decref(config);
    }
}

/* Divisors that are no numbers, and values that are none in keys that are read. */
TEST(test_faults)
{
    static const pair t[] = {
        {"llama.rope.freq_base", NAN},           {"llama.rope.freq_base", 0},
        {"llama.rope.scaling.factor", INFINITY}, {"llama.rope.scaling.factor", -1},
        {"llama.rope.scaling.attn_factor", 0},   {"llama.attention.key_length", 1 << 17},
        {"llama.attention.clamp_kqv", NAN}};
    static const float values[] = {NAN, INFINITY, 0, -1};
    static writer w;
    json_t *config;
    dq_err err;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        llama(&w, one_pair, &t[i], 1, 0);
        rope_of(&w, &config, &err);
        check_error(&err, DQ_DAMAGED, t[i].key);
    }
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        llama(&w, NULL, NULL, 0, 32);
        memcpy(w.bytes + w.n - sizeof *values, &values[i], sizeof *values);
        rope_of(&w, &config, &err);
        check_error(&err, DQ_DAMAGED, "divisor 31 is not a finite number above 0");
    }
}

/* A list of one number for each layer. */
static void per_layer(writer *w, const void *arg)
{
    const int *kv = arg;
    list_field(w, "llama.attention.head_count_kv", 4, 2);
    for (int i = 0; i < 2; i++) put(w, (uint64_t)kv[i], 4);
}

TEST(test_lists_by_layer)
{
    static writer w;
    json_t *config;
    dq_err err;
    llama(&w, per_layer, (const int[]){1, 1}, 1, 0);
    rope_of(&w, &config, &err);
    assert_int_equal(err.code, DQ_OK);
    assert_int_equal(json_integer_value(json_object_get(config, "num_key_value_heads")), 1);
    json_decref(config);
    llama(&w, per_layer, (const int[]){1, 2}, 1, 0);
    rope_of(&w, &config, &err);
    check_error(&err, DQ_MISMATCH, "numbers that differ by layer");
}

/* Keys of an architecture by name: a number, a text, a list of numbers. */
typedef struct own_key {
    const char *key;
    double number;
    const char *text;
    int n, list[8]; /* 0: no list */
} own_key;

typedef struct own_keys {
    const char *arch;
    uint64_t layers;
    own_key key[4];
} own_keys;

static int count_of(const own_keys *k)
{
    int n = 0;
    while (n < 4 && k->key[n].key) n++;
    return n;
}

static void put_own(writer *w, const void *arg)
{
    const own_keys *k = arg;
    char key[64];
    for (int i = 0; i < count_of(k); i++) {
        const own_key *o = &k->key[i];
        key_of(key, k->arch, o->key);
        if (o->text)
            text_field(w, key, o->text);
        else if (!o->n)
            number_field(w, key, o->number);
        else {
            list_field(w, key, 5, (uint64_t)o->n);
            for (int x = 0; x < o->n; x++) put(w, (uint64_t)o->list[x], 4);
        }
    }
}

#define BASE                                                                                       \
    {                                                                                              \
        "rope.freq_base", 1e6, NULL, 0,                                                            \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }

/* What a file says of its architecture, as it stands in the configuration. */
TEST(test_architectures)
{
    static const struct {
        own_keys k;
        const char *member, *says; /* of the configuration */
    } t[] = {
        {{"qwen2", 2, {BASE}}, "model_type", "\"qwen2\""},
        {{"qwen2", 2, {{0}}}, "rope_theta", "10000.0"},
        {{"qwen3", 2, {BASE}}, "architectures", "[\"Qwen3ForCausalLM\"]"},
        {{"qwen3", 2, {{"rope.scaling.factor", 2, NULL, 0, {0}}}},
         "rope_scaling",
         "{\"factor\": 2.0, \"rope_type\": \"linear\"}"},
        {{"smollm3", 5, {BASE}}, "no_rope_layers", "[1, 1, 1, 0, 1]"},
        {{"gemma3", 2, {BASE}}, "layer_types", "[\"full_attention\", \"full_attention\"]"},
        {{"gemma3", 2, {BASE}}, "sliding_window", "null"},
        {{"gemma3", 2, {BASE}}, "hidden_activation", "\"gelu_pytorch_tanh\""},
        {{"gemma3", 2, {BASE}}, "query_pre_attn_scalar", "64"},
        {{"gemma3", 62, {BASE, {"attention.key_length", 32, NULL, 0, {0}}}},
         "query_pre_attn_scalar",
         "64"},
        {{"gemma3", 2, {BASE, {"attention.key_length", 32, NULL, 0, {0}}}},
         "query_pre_attn_scalar",
         "32"},
        {{"gemma3", 7, {BASE, {"attention.sliding_window", 8, NULL, 0, {0}}}},
         "layer_types",
         "[\"sliding_attention\", \"sliding_attention\", \"sliding_attention\", "
         "\"sliding_attention\", \"sliding_attention\", \"full_attention\", "
         "\"sliding_attention\"]"},
        {{"gemma3",
          3,
          {BASE,
           {"attention.sliding_window", 8, NULL, 0, {0}},
           {"attention.sliding_window_pattern", 2, NULL, 0, {0}}}},
         "layer_types",
         "[\"sliding_attention\", \"full_attention\", \"sliding_attention\"]"},
        {{"gemma3",
          3,
          {BASE,
           {"attention.sliding_window", 8, NULL, 0, {0}},
           {"attention.sliding_window_pattern", 0, NULL, 3, {0, 1, 1}}}},
         "layer_types",
         "[\"full_attention\", \"sliding_attention\", \"sliding_attention\"]"},
        /* a window that no text reaches has its own angles all the same */
        {{"gemma3", 2, {BASE, {"attention.sliding_window", 512, NULL, 0, {0}}}},
         "layer_types",
         "[\"sliding_attention\", \"sliding_attention\"]"},
        {{"gemma3", 2, {BASE, {"rope.freq_base_swa", 5e3, NULL, 0, {0}}}},
         "rope_local_base_freq",
         "5000.0"},
        {{"gemma3", 2, {BASE}}, "rope_local_base_freq", "10000.0"},
        {{"llama", 2, {{"attention.sliding_window", 256, NULL, 0, {0}}}},
         "model_type",
         "\"mistral\""},
        {{"llama", 2, {{"attention.sliding_window", 256, NULL, 0, {0}}}}, "sliding_window", "256"},
        {{"llama", 2, {{"attention.sliding_window", 512, NULL, 0, {0}}}},
         "model_type",
         "\"llama\""},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        static writer w;
        json_t *config;
        dq_err err;
        model_of(&w, t[i].k.arch, t[i].k.layers, put_own, &t[i].k, count_of(&t[i].k), 0);
        free(rope_of(&w, &config, &err));
        if (err.code != DQ_OK) fail_msg("case %zu: %s", i, err.text);
        char *is =
            json_dumps(json_object_get(config, t[i].member), JSON_ENCODE_ANY | JSON_SORT_KEYS);
        if (!is || strcmp(is, t[i].says) != 0) fail_msg("case %zu: %s", i, is ? is : "nothing");
        free(is);
        json_decref(config);
    }
}

/* Keys that are missing, of another type, or beyond what a model can have; and what readers of GGUF take otherwise. */
TEST(test_faults_of_architectures)
{
    static const struct {
        own_keys k;
        dq_status status;
        const char *says;
    } t[] = {
        {{"gemma3", 2, {{0}}}, DQ_DAMAGED, "key \"gemma3.rope.freq_base\" is missing"},
        {{"smollm3", 2, {{0}}}, DQ_DAMAGED, "key \"smollm3.rope.freq_base\" is missing"},
        {{"gemma3", 0, {BASE}}, DQ_DAMAGED, "gemma3.block_count"},
        {{"gemma3", 1 << 20, {BASE}}, DQ_DAMAGED, "gemma3.block_count\": expected at most 10000"},
        {{"smollm3", 1 << 29, {BASE}}, DQ_DAMAGED, "smollm3.block_count\": expected at most"},
        {{"qwen3", 2, {{"attention.head_count_kv", 0, NULL, 0, {0}}}},
         DQ_DAMAGED,
         "qwen3.attention.head_count_kv"},
        {{"qwen2", 2, {{"attention.key_length", 0, "wide", 0, {0}}}},
         DQ_DAMAGED,
         "qwen2.attention.key_length"},
        {{"gemma3", 2, {BASE, {"attention.sliding_window", 0, "512", 0, {0}}}},
         DQ_DAMAGED,
         "gemma3.attention.sliding_window"},
        {{"gemma3", 2, {BASE, {"attention.sliding_window", -1, NULL, 0, {0}}}},
         DQ_DAMAGED,
         "gemma3.attention.sliding_window"},
        {{"gemma3", 2, {BASE, {"attention.sliding_window_pattern", 0, NULL, 3, {1, 1, 1}}}},
         DQ_DAMAGED,
         "expected a number for each of 2 layers"},
        {{"gemma3", 2, {BASE, {"rope.freq_base_swa", 0, NULL, 0, {0}}}},
         DQ_DAMAGED,
         "gemma3.rope.freq_base_swa"},
        {{"gemma3", 2, {BASE, {"final_logit_softcapping", 30, NULL, 0, {0}}}},
         DQ_MISMATCH,
         "gemma3.final_logit_softcapping"},
        {{"gemma3", 2, {BASE, {"attention.key_length_swa", 32, NULL, 0, {0}}}},
         DQ_MISMATCH,
         "gemma3.attention.key_length_swa"},
        {{"gemma3", 2, {BASE, {"attention.scale", .1, NULL, 0, {0}}}},
         DQ_MISMATCH,
         "gemma3.attention.scale"},
        {{"gemma3",
          2,
          {BASE,
           {"rope.scaling.type", 0, "yarn", 0, {0}},
           {"rope.scaling.factor", 4, NULL, 0, {0}}}},
         DQ_MISMATCH,
         "is not supported beside windows"},
        {{"gemma3", 2, {BASE, {"rope.scaling.attn_factor", 2, NULL, 0, {0}}}},
         DQ_MISMATCH,
         "is not supported beside windows"},
        {{"qwen2", 2, {{"attention.sliding_window", 256, NULL, 0, {0}}}},
         DQ_MISMATCH,
         "qwen2.attention.sliding_window"},
        {{"qwen3", 2, {{"expert_count", 8, NULL, 0, {0}}}}, DQ_MISMATCH, "qwen3.expert_count"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        static writer w;
        json_t *config;
        dq_err err;
        model_of(&w, t[i].k.arch, t[i].k.layers, put_own, &t[i].k, count_of(&t[i].k), 0);
        free(rope_of(&w, &config, &err));
        if (err.code != t[i].status || !strstr(err.text, t[i].says))
            fail_msg("case %zu: %d, %s", i, err.code, err.text);
        json_decref(config);
    }
}

/* Files of GGUF form that are no language model of ours. */
TEST(test_kinds)
{
    static const struct {
        const char *key, *text, *says;
    } t[] = {
        {"general.type", "adapter", "an adapter (LoRA)"},
        {"adapter.type", "lora", "an adapter (LoRA)"},
        {"general.type", "imatrix", "an importance matrix (imatrix)"},
        {"general.type", "mmproj", "a projector"},
        {"general.architecture", "clip", "a projector"},
        {"general.architecture", "controlvector", "a control vector"},
        {"general.architecture", "bert", "an encoder of texts"},
        {"general.architecture", "nomic-bert", "an encoder of texts"},
        {"general.architecture", "qwen2moe",
         "architecture \"qwen2moe\" is not read from GGUF files (read are llama, qwen2, qwen3, "
         "smollm3, gemma3)"},
        {"general.type", "dataset", "\"dataset\" is not read"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        static writer w;
        dq_gguf g;
        dq_err err = {0};
        w = (writer){0};
        head(&w, 0, 1);
        text_field(&w, t[i].key, t[i].text);
        assert_int_equal(dq_gguf_parse(&g, w.bytes, w.n, given_arena(), &err), DQ_OK);
        dq_gguf_config_kind(g.fields, &err);
        check_error(&err, DQ_MISMATCH, t[i].says);
        json_decref(g.fields);
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
