/* test_gguf_tokenizer_write: the tokenizer of a GGUF file, read as tokenizer.json and written again, has the same keys; what
 * llama.cpp would do otherwise is refused by name.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "base/file.h"
#include "checkpoint/gguf.h"

#include <stdlib.h>
#include <string.h>

typedef struct rig {
    dq_arena *arena;
    dq_gguf g;
    dq_gguf_tokenizer_files files;
    int64_t n;
    dq_err err;
} rig;

/* The items of lists, which stay in the file, as values. */
static void fill_lists(dq_gguf *g, dq_arena *a)
{
    dq_err err = {0};
    for (size_t i = 0; i < g->n_lists; i++) {
        const dq_gguf_list *l = &g->list[i];
        dq_gguf_span *text = NULL;
        if (l->texts) assert_int_equal(dq_gguf_list_texts(&text, l, a, &err), DQ_OK);
        json_t *items = json_array();
        for (size_t k = 0; k < l->n; k++)
            json_array_append_new(items, l->texts ? json_stringn(text[k].s, text[k].len)
                                                  : json_real(dq_gguf_list_number(l, k)));
        json_object_set_new(g->fields, l->key, items);
    }
}

static json_t *json_of(dq_strbuf *text)
{
    json_t *out = json_loadb(text->s, text->n, JSON_ALLOW_NUL, NULL);
    assert_non_null(out);
    dq_block_free(text->s);
    return out;
}

static rig open_rig(const char *path)
{
    rig r = {.arena = given_arena()};
    size_t len;
    const char *bytes = given_file(&len, "%s", path);
    assert_int_equal(dq_gguf_parse(&r.g, (const uint8_t *)bytes, len, r.arena, &r.err), DQ_OK);
    dq_strbuf tokenizer, config, generation;
    assert_int_equal(dq_gguf_config_tokenizer(&tokenizer, &config, &generation, &r.g, &r.err),
                     DQ_OK);
    r.files.tokenizer = json_of(&tokenizer);
    r.files.tokenizer_config = json_of(&config);
    if (generation.s) r.files.generation_config = json_of(&generation);
    fill_lists(&r.g, r.arena);
    r.files.config = json_object();
    r.n = (int64_t)json_array_size(json_object_get(r.g.fields, "tokenizer.ggml.tokens"));
    return r;
}

static void close_rig(rig *r)
{
    json_decref(r->files.tokenizer);
    json_decref(r->files.tokenizer_config);
    json_decref(r->files.config);
    json_decref(r->files.generation_config);
    json_decref(r->g.fields);
}

/* The fields of a file without tensors; NULL: refused, r->err says why. */
static json_t *written(rig *r)
{
    dq_gguf_fields f = {0};
    dq_strbuf head = {0};
    dq_gguf back = {0};
    r->err = (dq_err){0};
    if (dq_gguf_tokenizer_write(&f, &r->files, r->n, &r->err) == DQ_OK) {
        assert_int_equal(dq_gguf_write_head(&head, &f, NULL, 0, &r->err), DQ_OK);
        assert_int_equal(dq_gguf_parse(&back, (const uint8_t *)head.s, head.n, r->arena, &r->err),
                         DQ_OK);
        fill_lists(&back, r->arena);
    }
    dq_block_free(head.s);
    dq_block_free(f.bytes.s);
    return back.fields;
}

static void refused_with(rig *r, dq_status status, const char *what)
{
    json_t *fields = written(r);
    if (fields) fail_msg("not refused: %s", what);
    if (!strstr(r->err.text, what)) fail_msg("\"%s\" is not in: %s", what, r->err.text);
    assert_int_equal(r->err.code, status);
}

static void refused(rig *r, const char *what)
{
    refused_with(r, DQ_MISMATCH, what);
}

static json_t *model_of(rig *r)
{
    return json_object_get(r->files.tokenizer, "model");
}

/* ---- The same keys ---- */

static void expect_same(const char *path)
{
    rig r = open_rig(path);
    json_t *fields = written(&r), *want;
    const char *key;
    if (!fields) fail_msg("%s: %s", path, r.err.text);
    json_object_foreach(r.g.fields, key, want)
    {
        if (strncmp(key, "tokenizer.", 10) != 0) continue;
        if (!json_equal(json_object_get(fields, key), want)) fail_msg("%s: key %s", path, key);
    }
    json_decref(fields);
    close_rig(&r);
}

TEST(test_same_keys)
{
    expect_same(DQ_TEST_DIR "/golden/gguf/spm.gguf");
    expect_same(DQ_TEST_DIR "/golden/gguf/model/model.gguf");
}

/* What the files name besides EOS is eot and eom; a fourth has no key. */
TEST(test_ends)
{
    rig r = open_rig(DQ_TEST_DIR "/golden/gguf/model/model.gguf");
    json_decref(r.files.generation_config);
    const json_int_t eos =
        json_integer_value(json_object_get(r.g.fields, "tokenizer.ggml.eos_token_id"));
    r.files.generation_config = json_pack("{s:[I, i]}", "eos_token_id", eos, 66);
    r.files.special_tokens_map = json_pack("{s:{s:s}}", "eos_token", "content", "d");
    json_t *fields = written(&r);
    if (!fields) fail_msg("%s", r.err.text);
    assert_int_equal(json_integer_value(json_object_get(fields, "tokenizer.ggml.eos_token_id")),
                     eos);
    assert_int_equal(json_integer_value(json_object_get(fields, "tokenizer.ggml.eot_token_id")),
                     66);
    assert_int_equal(
        json_integer_value(json_object_get(fields, "tokenizer.ggml.eom_token_id")),
        json_integer_value(json_object_get(json_object_get(model_of(&r), "vocab"), "d")));
    json_decref(fields);
    json_object_set_new(r.files.config, "eos_token_id", json_integer(70));
    refused(&r, "more than three tokens");
    json_decref(r.files.special_tokens_map);
    close_rig(&r);
}

/* A vocabulary smaller than the embedding is filled with tokens that nothing makes. */
TEST(test_padded)
{
    rig r = open_rig(DQ_TEST_DIR "/golden/gguf/model/model.gguf");
    r.n += 2;
    json_t *fields = written(&r);
    assert_non_null(fields);
    const json_t *token = json_object_get(fields, "tokenizer.ggml.tokens");
    const json_t *type = json_object_get(fields, "tokenizer.ggml.token_type");
    assert_int_equal(json_array_size(token), r.n);
    assert_int_equal((int)json_number_value(json_array_get(type, (size_t)r.n - 1)), 5);
    assert_string_equal(json_string_value(json_array_get(token, (size_t)r.n - 1)), "[PAD261]");
    json_decref(fields);
    r.n -= 3;
    refused(&r, "has no row in the embedding");
    close_rig(&r);
}

/* ---- What is refused ---- */

TEST(test_byte_level)
{
    rig r = open_rig(DQ_TEST_DIR "/golden/gguf/model/model.gguf");
    json_t *pre = json_incref(json_object_get(r.files.tokenizer, "pre_tokenizer"));
    json_object_set_new(r.files.tokenizer, "pre_tokenizer",
                        json_pack("{s:s}", "type", "Whitespace"));
    refused(&r, "pre_tokenizer \"Whitespace\" is none of those that have a name");
    json_object_set_new(r.files.tokenizer, "pre_tokenizer", pre);
    json_object_set_new(r.files.tokenizer, "normalizer", json_pack("{s:s}", "type", "NFC"));
    refused(&r, "normalizer \"NFC\"");
    json_object_set_new(r.files.tokenizer, "normalizer", json_null());
    json_object_set_new(model_of(&r), "type", json_string("WordPiece"));
    refused(&r, "model of type \"WordPiece\"");
    json_object_set_new(model_of(&r), "type", json_string("BPE"));
    json_object_set_new(r.files.tokenizer, "post_processor", json_pack("{s:s}", "type", "Bert"));
    refused(&r, "post_processor \"Bert\"");
    json_object_del(r.files.tokenizer, "post_processor");

    /* every token that is no special one is made by merges: the flag makes no difference, until one is not */
    json_object_set_new(model_of(&r), "ignore_merges", json_true());
    json_t *fields = written(&r);
    assert_non_null(fields);
    json_decref(fields);
    json_array_clear(json_object_get(model_of(&r), "merges"));
    refused(&r, "merges do not make token 256");
    json_object_set_new(model_of(&r), "ignore_merges", json_false());
    json_t *byte = json_incref(json_object_get(json_object_get(model_of(&r), "vocab"), "z"));
    json_object_del(json_object_get(model_of(&r), "vocab"), "z");
    refused(&r, "byte 0x7A (\"z\") has no token");
    json_object_set_new(json_object_get(model_of(&r), "vocab"), "z", byte);
    json_t *first = json_array_get(json_object_get(r.files.tokenizer, "added_tokens"), 0);
    json_object_set_new(first, "lstrip", json_true());
    refused(&r, "has \"lstrip\", which GGUF cannot say");
    json_object_set_new(first, "lstrip", json_false());
    json_object_del(r.files.tokenizer_config, "eos_token");
    refused(&r, "says which token ends a text");
    json_object_set_new(r.files.config, "eos_token_id", json_integer(258));
    fields = written(&r);
    assert_int_equal(json_integer_value(json_object_get(fields, "tokenizer.ggml.eos_token_id")),
                     258);
    json_decref(fields);
    close_rig(&r);
}

/* Merges that no scores say: two of different pieces change places, one is missing. */
TEST(test_sentencepiece)
{
    rig r = open_rig(DQ_TEST_DIR "/golden/gguf/spm.gguf");
    json_t *merges = json_object_get(model_of(&r), "merges");
    const size_t n = json_array_size(merges);
    json_t *whole = json_deep_copy(merges), *moved = json_incref(json_array_get(merges, n - 1));
    json_array_remove(merges, n - 1);
    refused(&r, "not those of a SentencePiece vocabulary");
    json_array_insert_new(merges, 0, moved);
    json_t *fields = written(&r); /* one piece before all others: scores by rank */
    if (!fields) fail_msg("%s", r.err.text);
    const json_t *score = json_object_get(fields, "tokenizer.ggml.scores");
    assert_false(json_equal(score, json_object_get(r.g.fields, "tokenizer.ggml.scores")));
    json_decref(fields);
    json_object_set_new(model_of(&r), "merges", whole);
    json_object_set_new(r.files.tokenizer, "pre_tokenizer",
                        json_pack("{s:s}", "type", "Metaspace"));
    refused(&r, "makes more of spaces than U+2581");
    json_object_set_new(r.files.tokenizer, "pre_tokenizer", json_null());
    json_object_set_new(model_of(&r), "ignore_merges", json_true());
    refused(&r, "\"ignore_merges\" is true and merges do not make token");
    json_object_del(model_of(&r), "ignore_merges");
    json_t *vocab = json_object_get(model_of(&r), "vocab");
    json_t *byte = json_incref(json_object_get(vocab, "<0x0A>"));
    json_object_del(vocab, "<0x0A>");
    static const char *const other[] = {"<0x-1>", "<0x+5>", "<0x 5>", "<0x0a>"}; /* no bytes */
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        json_object_set(vocab, other[i], byte);
        refused(&r, "255 of 256 tokens of bytes");
        json_object_del(vocab, other[i]);
    }
    json_decref(byte);
    close_rig(&r);
}

/* ---- Added tokens ---- */

TEST(test_added)
{
    enum { BYTES, SPM };
    static const struct {
        int form;
        const char *a, *b;
        bool normalized[2];
        const char *what; /* NULL: it is written */
    } rows[] = {
        {BYTES, "ab", "bcd", {false, false}, "\"ab\" and \"bcd\" overlap"},
        {BYTES, "abc", "bc", {false, false}, NULL}, /* within: both take the longer one */
        {BYTES, "abc", "cd", {false, false}, NULL}, /* the left one is the longer one */
        {BYTES, "ab", "bc", {false, false}, "overlap"},
        {BYTES, "xx", "xxx", {false, false}, NULL},
        {BYTES, "\u00e9\u00e9", "\u00e9\u00e9\u00e9", {true, true}, NULL},
        {BYTES, "xx", "xxy", {false, false}, "overlap"},
        {BYTES, "b", "abc", {false, true}, "overlap"}, /* what is not normalized comes first */
        {BYTES, "abc", "b", {false, true}, NULL},
        {BYTES, "<x>", "<y>", {false, true}, NULL},
        {SPM, "<x>", "<y>", {false, false}, NULL},
        {SPM, "<x>", "<y>", {false, true}, "added token \"<y>\" has \"normalized\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rig r = open_rig(rows[i].form == SPM ? DQ_TEST_DIR "/golden/gguf/spm.gguf"
                                             : DQ_TEST_DIR "/golden/gguf/model/model.gguf");
        json_t *list = json_object_get(r.files.tokenizer, "added_tokens");
        const char *text[2] = {rows[i].a, rows[i].b};
        for (int k = 0; k < 2; k++)
            json_array_append_new(list, json_pack("{s:I, s:s, s:b, s:b}", "id", (json_int_t)r.n++,
                                                  "content", text[k], "special", 0, "normalized",
                                                  (int)rows[i].normalized[k]));
        if (rows[i].what) {
            refused(&r, rows[i].what);
        } else {
            json_t *fields = written(&r);
            if (!fields) fail_msg("%s, %s: %s", rows[i].a, rows[i].b, r.err.text);
            json_decref(fields);
        }
        close_rig(&r);
    }
}

/* Keys of added_tokens_decoder are ids; where no token begins a text, the one that ends it does. */
TEST(test_config)
{
    rig r = open_rig(DQ_TEST_DIR "/golden/gguf/model/model.gguf");
    json_object_del(r.files.tokenizer, "post_processor");
    json_object_del(r.files.tokenizer_config, "bos_token");
    json_object_del(r.files.tokenizer_config, "unk_token");
    json_object_set_new(model_of(&r), "unk_token", json_string("A"));
    json_t *fields = written(&r), *vocab = json_object_get(model_of(&r), "vocab");
    if (!fields) fail_msg("%s", r.err.text);
    assert_true(json_equal(json_object_get(fields, "tokenizer.ggml.bos_token_id"),
                           json_object_get(fields, "tokenizer.ggml.eos_token_id")));
    assert_true(json_is_false(json_object_get(fields, "tokenizer.ggml.add_bos_token")));
    assert_true(json_equal(json_object_get(fields, "tokenizer.ggml.unknown_token_id"),
                           json_object_get(vocab, "A")));
    json_decref(fields);
    static const char *const keys[] = {"abc", "1a", "", "-1", "+1", " 1"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_object_set_new(r.files.tokenizer_config, "added_tokens_decoder",
                            json_pack("{s:{s:s}}", keys[i], "content", "x"));
        refused_with(&r, DQ_DAMAGED, "is not an id");
    }
    close_rig(&r);
}

/* ---- Merges ---- */

/* The SentencePiece vocabulary of the rig with this one's pieces after it, and these merges alone; pieces of it have none. */
static void set_merges(rig *r, const char *more, const char *merges)
{
    json_t *vocab = json_object(), *old = json_object_get(model_of(r), "vocab"), *id;
    json_t *list = json_loads(more, 0, NULL), *made = json_loads(merges, 0, NULL), *text;
    const char *key;
    size_t i;
    assert_true(list && made);
    json_object_foreach(old, key, id)
    {
        if (json_integer_value(id) < 259) json_object_set(vocab, key, id); /* roles and bytes */
    }
    json_array_foreach(list, i, text)
        json_object_set_new(vocab, json_string_value(text), json_integer((json_int_t)(259 + i)));
    r->n = 259 + (int64_t)json_array_size(list);
    json_decref(list);
    json_object_set_new(model_of(r), "vocab", vocab);
    json_object_set_new(model_of(r), "merges", made);
    json_array_clear(json_object_get(r->files.tokenizer, "added_tokens"));
}

TEST(test_merges)
{
    static const struct {
        const char *tokens, *merges, *what; /* NULL: it is written */
        dq_status status;
    } rows[] = {
        {"[\"a\", \"b\", \"ab\"]", "[[\"a\", \"b\"]]", NULL, DQ_OK},
        {"[\"a\", \"b\", \"ab\"]", "[[\"a\", \"b\"], \"a b\"]",
         "merge 1 (\"a\" and \"b\") is there twice", DQ_MISMATCH},
        {"[\"a\", \"b\", \"ab\", \"\"]", "[[\"\", \"\"], [\"a\", \"b\"]]", "merge 0 is not of two",
         DQ_DAMAGED},
        {"[\"a\", \"b\", \"ab\", \"\"]", "[[\"a\", \"b\"], \"a \"]", "merge 1 is not of two",
         DQ_DAMAGED},
        {"[\"a\", \"b\", \"ab\", \"\"]", "[[\"a\", \"b\"], \" a\"]", "merge 1 is not of two",
         DQ_DAMAGED},
        {"[\"a\", \"b\", \"c\", \"e\", \"bc\", \"ab\", \"abc\", \"bce\"]",
         "[\"b c\", \"a b\", \"ab c\", \"bc e\", \"a bc\"]", "\"abc\" is merged at several ranks",
         DQ_MISMATCH},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rig r = open_rig(DQ_TEST_DIR "/golden/gguf/spm.gguf");
        set_merges(&r, rows[i].tokens, rows[i].merges);
        if (rows[i].what) {
            refused_with(&r, rows[i].status, rows[i].what);
        } else {
            json_t *fields = written(&r);
            if (!fields) fail_msg("%s", r.err.text);
            json_decref(fields);
        }
        close_rig(&r);
    }
}
