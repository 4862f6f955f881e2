/* Tests of the steps around the model: normalizers, pre-tokenizers, decoders, against what the
 * reference makes of the same texts (golden/steps.py).
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "base/file.h"
#include "base/text.h"
#include "tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static json_t *golden;

static const json_t *member(const char *key)
{
    const json_t *v = json_object_get(golden, key);
    if (json_array_size(v) == 0 && json_object_size(v) == 0) fail_msg("steps.json: no %s", key);
    return v;
}

static void check_text(const json_t *row, size_t i, const char *got, size_t len, const json_t *want)
{
    if (len == json_string_length(want) && memcmp(got, json_string_value(want), len) == 0) return;
    char *step = json_dumps(json_object_get(row, "step"), JSON_ENCODE_ANY);
    print_message("%.300s\n", step);
    free(step);
    fail_msg("text %zu: got \"%.*s\", expected \"%s\"", i, (int)len, got, json_string_value(want));
}

TEST(test_normalizers)
{
    const json_t *rows = member("normalizers"), *texts = member("texts");
    for (size_t r = 0; r < json_array_size(rows); r++) {
        const json_t *row = json_array_get(rows, r), *out = json_object_get(row, "out");
        dq_err err = {0};
        dq_normalizer n = {0};
        if (dq_normalizer_load(&n, json_object_get(row, "step"), given_arena(), &err))
            fail_msg("%s", err.text);
        for (size_t i = 0; i < json_array_size(texts); i++) {
            const json_t *text = json_array_get(texts, i), *want = json_array_get(out, i);
            char *got;
            size_t len;
            if (dq_normalizer_run(&n, &got, &len, NULL, json_string_value(text),
                                  json_string_length(text), &err))
                fail_msg("%s", err.text);
            check_text(row, i, got ? got : json_string_value(text), len,
                       json_is_null(want) ? text : want);
            dq_block_free(got);
        }
        dq_normalizer_free(&n);
    }
}

typedef struct words {
    const json_t *row, *want;
    size_t n, text;
    bool byte_level;
} words;

static dq_status on_word(void *arg, const char *word, size_t len, dq_err *err)
{
    (void)err;
    words *w = arg;
    char *mapped = malloc(2 * len + 1);
    size_t n = 0;
    assert_non_null(mapped);
    for (size_t i = 0; i < len && w->byte_level; i++)
        n += dq_utf8_of_byte(mapped + n, (uint8_t)word[i]);
    if (w->n >= json_array_size(w->want)) fail_msg("text %zu: more words than expected", w->text);
    check_text(w->row, w->text, w->byte_level ? mapped : word, w->byte_level ? n : len,
               json_array_get(w->want, w->n++));
    free(mapped);
    return DQ_OK;
}

TEST(test_pre_tokenizers)
{
    const json_t *rows = member("pre_tokenizers"), *texts = member("texts");
    for (size_t r = 0; r < json_array_size(rows); r++) {
        const json_t *row = json_array_get(rows, r), *out = json_object_get(row, "out");
        dq_err err = {0};
        dq_pretokenizer p = {0};
        if (dq_pretokenizer_load(&p, json_object_get(row, "step"), given_arena(), &err))
            fail_msg("%s", err.text);
        words w = {.row = row, .byte_level = p.byte_level};
        dq_pretokenizer_run run = {.p = &p, .word = on_word, .arg = &w, .at_start = true};
        for (size_t i = 0; i < json_array_size(texts); i++) {
            const json_t *text = json_array_get(texts, i);
            w.want = json_array_get(out, i);
            w.text = i;
            w.n = 0;
            if (dq_pretokenizer_cut(&run, json_string_value(text), json_string_length(text), &err))
                fail_msg("%s", err.text);
            assert_int_equal(w.n, json_array_size(w.want));
        }
        dq_pretokenizer_run_end(&run);
        dq_pretokenizer_free(&p);
    }
}

TEST(test_decoders)
{
    const json_t *rows = member("decoders"), *tokens = member("tokens");
    for (size_t r = 0; r < json_array_size(rows); r++) {
        const json_t *row = json_array_get(rows, r), *out = json_object_get(row, "out");
        dq_err err = {0};
        dq_decoder d = {0};
        if (dq_decoder_load(&d, json_object_get(row, "step"), given_arena(), &err))
            fail_msg("%s", err.text);
        for (size_t i = 0; i < json_array_size(tokens); i++) {
            const json_t *list = json_array_get(tokens, i);
            const char *token[16];
            size_t len[16], n = json_array_size(list), got_len;
            char *got;
            assert_true(n <= 16);
            for (size_t k = 0; k < n; k++) {
                token[k] = json_string_value(json_array_get(list, k));
                len[k] = json_string_length(json_array_get(list, k));
            }
            if (dq_decoder_run(&d, token, len, (int64_t)n, &got, &got_len, &err))
                fail_msg("%s", err.text);
            check_text(row, i, got, got_len, json_array_get(out, i));
            dq_block_free(got);
        }
    }
}

static uint32_t crc_table[256];

static uint32_t crc32(uint32_t crc, const char *s, size_t len)
{
    if (!crc_table[1]) {
        for (uint32_t i = 0; i < 256; i++) {
            crc_table[i] = i;
            for (int k = 0; k < 8; k++)
                crc_table[i] = crc_table[i] >> 1 ^ (crc_table[i] & 1 ? 0xEDB88320u : 0);
        }
    }
    crc = ~crc;
    for (size_t i = 0; i < len; i++) crc = crc >> 8 ^ crc_table[(crc ^ (uint8_t)s[i]) & 0xFF];
    return ~crc;
}

/* Every character of Unicode, alone and among marks: nothing may differ. */
TEST(test_forms)
{
    const json_t *rows = member("characters");
    for (size_t r = 0; r < json_array_size(rows); r++) {
        const json_t *row = json_array_get(rows, r);
        const char *before = json_string_value(json_object_get(row, "before"));
        const char *after = json_string_value(json_object_get(row, "after"));
        dq_err err = {0};
        dq_normalizer n = {0};
        uint32_t crc = 0;
        if (dq_normalizer_load(&n, row, given_arena(), &err)) fail_msg("%s", err.text);
        for (uint32_t c = 0; c < 0x110000; c++) {
            char text[32], *got;
            size_t at = strlen(before), len;
            if (c >= 0xD800 && c < 0xE000) continue;
            memcpy(text, before, at);
            at += dq_utf8_put(text + at, c);
            memcpy(text + at, after, strlen(after));
            at += strlen(after);
            if (dq_normalizer_run(&n, &got, &len, NULL, text, at, &err)) fail_msg("%s", err.text);
            crc = crc32(crc, got ? got : text, len);
            dq_block_free(got);
        }
        if (crc != (uint32_t)json_integer_value(json_object_get(row, "crc")))
            fail_msg("%s of \"%s\" + any character + \"%s\" differs from the reference",
                     json_string_value(json_object_get(row, "type")), before, after);
        dq_normalizer_free(&n);
    }
}

/* The range of a rising list that c is in; *at moves on with c. */
static const json_t *range_of(const json_t *list, size_t *at, uint32_t c)
{
    while (*at < json_array_size(list) &&
           (uint32_t)json_integer_value(json_array_get(json_array_get(list, *at), 1)) < c)
        ++*at;
    const json_t *range = json_array_get(list, *at);
    return range && (uint32_t)json_integer_value(json_array_get(range, 0)) <= c ? range : NULL;
}

static bool unassigned(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_CN;
}

static uint32_t lowered(const dq_normalizer *n, uint32_t c)
{
    dq_err err = {0};
    char text[4], *got;
    size_t len, used;
    if (dq_normalizer_run(n, &got, &len, NULL, text, dq_utf8_put(text, c), &err))
        fail_msg("%s", err.text);
    c = dq_utf8_first(got ? got : text, &used);
    dq_block_free(got);
    return c;
}

/* Only characters that utf8proc does not know yet may be in another class or have another lower case
 * than in the reference's newer tables; those of punctuation are older. */
TEST(test_classes)
{
    const json_t *classes = member("classes"), *lower = member("lowered");
    const json_t *punctuation = json_object_get(classes, "punctuation");
    const json_t *number = json_object_get(classes, "number");
    dq_normalizer n = {.n_steps = 1, .step[0].kind = DQ_NORMALIZER_LOWER};
    size_t at[3] = {0}, newer[2] = {0};
    for (uint32_t c = 0; c < 0x110000; c++) {
        if (c >= 0xD800 && c < 0xE000) continue;
        if (dq_utf8_is_punctuation(c) != (range_of(punctuation, &at[0], c) != NULL))
            fail_msg("punctuation: U+%04X differs from the reference", (unsigned)c);
        if (dq_utf8_is_number(c) != (range_of(number, &at[1], c) != NULL)) {
            if (!unassigned(c)) fail_msg("number: U+%04X differs from the reference", (unsigned)c);
            newer[0]++;
        }
        const json_t *range = range_of(lower, &at[2], c);
        json_int_t want = (json_int_t)c + json_integer_value(json_array_get(range, 2));
        if ((json_int_t)lowered(&n, c) != want) {
            if (!unassigned(c)) fail_msg("lower case of U+%04X differs", (unsigned)c);
            newer[1]++;
        }
    }
    print_message("newer than utf8proc's tables: %zu numbers, %zu letters with a lower case\n",
                  newer[0], newer[1]);
}

static void check_refusal(const char *kind, const char *json, dq_status want, const char *says)
{
    dq_err err = {0};
    dq_normalizer n = {0};
    dq_pretokenizer p = {0};
    dq_decoder d = {0};
    json_t *v = given_document(json);
    dq_status status;
    if (*kind == 'n') {
        status = dq_normalizer_load(&n, v, given_arena(), &err);
    } else if (*kind == 'p') {
        status = dq_pretokenizer_load(&p, v, given_arena(), &err);
    } else {
        status = dq_decoder_load(&d, v, given_arena(), &err);
    }
    if (status != want || !strstr(err.text, says))
        fail_msg("%s: status %d, \"%s\"", json, (int)status, err.text);
    dq_normalizer_free(&n);
    dq_pretokenizer_free(&p);
    json_decref(v);
}

TEST(test_refusals)
{
    static const struct {
        const char *kind, *json;
        dq_status status;
        const char *says;
    } rows[] = {
        {"n", "{\"type\":\"Nmt\"}", DQ_MISMATCH, "normalizer type \"Nmt\" is not supported"},
        {"n", "{\"type\":\"StripAccents\"}", DQ_MISMATCH, "\"StripAccents\" is not supported"},
        {"n", "{\"type\":\"BertNormalizer\"}", DQ_MISMATCH, "\"BertNormalizer\""},
        {"n", "{\"type\":\"Sequence\"}", DQ_DAMAGED, "no list"},
        {"n", "{\"type\":\"Sequence\",\"normalizers\":[1]}", DQ_DAMAGED, "not an object"},
        {"n", "{\"type\":\"Prepend\"}", DQ_DAMAGED, "\"prepend\" is not a string"},
        {"n", "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"\"}", DQ_MISMATCH,
         "an empty pattern"},
        {"n", "{\"type\":\"Replace\",\"pattern\":\"a\",\"content\":\"\"}", DQ_DAMAGED,
         "\"pattern\""},
        {"n", "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\h\"},\"content\":\"\"}",
         DQ_MISMATCH, "this escape"},
        {"n", "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAA\"}", DQ_DAMAGED, "base64"},
        {"n", "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AA*=\"}", DQ_DAMAGED, "base64"},
        {"n", "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAA=\"}", DQ_DAMAGED, "short"},
        {"n", "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"BAAAAA==\"}", DQ_DAMAGED,
         "wrong length"},
        {"p", "{\"type\":\"BertPreTokenizer\"}", DQ_MISMATCH,
         "pre_tokenizer type \"BertPreTokenizer\" is not supported"},
        {"p", "{\"type\":\"UnicodeScripts\"}", DQ_MISMATCH, "\"UnicodeScripts\" is not supported"},
        {"p", "{\"type\":\"Metaspace\",\"replacement\":\"ab\"}", DQ_DAMAGED, "not one character"},
        {"p",
         "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"add_prefix_space\":false,"
         "\"prepend_scheme\":\"first\"}",
         DQ_DAMAGED, "contradict"},
        {"p", "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"last\"}",
         DQ_MISMATCH, "prepend_scheme \"last\""},
        {"p", "{\"type\":\"Punctuation\",\"behavior\":\"removed\"}", DQ_MISMATCH, "\"removed\""},
        {"p",
         "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\","
         "\"add_prefix_space\":false},{\"type\":\"Digits\"}]}",
         DQ_MISMATCH, "after ByteLevel"},
        {"d", "{\"type\":\"WordPiece\"}", DQ_MISMATCH,
         "decoder type \"WordPiece\" is not supported"},
        {"d", "{\"type\":\"CTC\"}", DQ_MISMATCH, "decoder type \"CTC\" is not supported"},
        {"d", "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"},\"content\":\"\"}", DQ_MISMATCH,
         "Regex"},
        {"d", "{\"type\":\"Strip\",\"content\":\"ab\",\"start\":0,\"stop\":0}", DQ_DAMAGED,
         "not one character"},
        {"d", "{\"type\":\"Sequence\",\"decoders\":{}}", DQ_DAMAGED, "no list"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_refusal(rows[i].kind, rows[i].json, rows[i].status, rows[i].says);
}

/* What no file should say but the reference of older versions took: an absent map, the old flag of
 * Metaspace, a cut at both ends of a token that is shorter than both. */
TEST(test_beyond_reference)
{
    dq_err err = {0};
    dq_normalizer n = {.n_steps = 1, .step[0].kind = DQ_NORMALIZER_CHARSMAP};
    char *got;
    size_t len;
    assert_int_equal(dq_normalizer_run(&n, &got, &len, NULL, "ab", 2, &err), DQ_OK);
    assert_null(got);
    assert_int_equal(len, 2);
    check_refusal("n", "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"\"}", DQ_OK, "");
    check_refusal("p", "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"add_prefix_space\":false}",
                  DQ_OK, "");
    const dq_decoder d = {
        .n_steps = 1,
        .step[0] = {.kind = DQ_DECODER_STRIP, .part = " ", .part_len = 1, .start = 1, .stop = 2}};
    const char *token[] = {" ", "", "  x   "};
    const size_t lens[] = {1, 0, 6};
    assert_int_equal(dq_decoder_run(&d, token, lens, 3, &got, &len, &err), DQ_OK);
    assert_int_equal(len, 3);
    assert_memory_equal(got, " x ", 3);
    dq_block_free(got);
}

/* Whether the reference takes the result for the beginning of the text, which it shows by what
 * Metaspace with prepend_scheme "first" does to it (tokenizers 0.23.3). */
TEST(test_beginnings)
{
#define REPLACE(pattern, by) "{\"type\":\"Replace\",\"pattern\":" pattern ",\"content\":\"" by "\"}"
#define PAIR(a, b)           "{\"type\":\"Sequence\",\"normalizers\":[" a "," b "]}"
#define PREPEND              "{\"type\":\"Prepend\",\"prepend\":\"_\"}"
#define STRIP(left, right)   "{\"type\":\"Strip\",\"strip_left\":" left ",\"strip_right\":" right "}"
    static const struct {
        const char *json, *text;
        bool moved;
    } rows[] = {
        {"{\"type\":\"NFKC\"}", "\xEF\xAC\x81", false},
        {STRIP("true", "true"), " a", true},
        {STRIP("true", "true"), "a ", false},
        {PAIR(STRIP("false", "true"), PREPEND), " a ", false},
        {PAIR(STRIP("true", "true"), PREPEND), " a", true},
        {PAIR(PREPEND, REPLACE("{\"String\":\"_\"}", "")), "a", false},
        {REPLACE("{\"String\":\"XX\"}", ""), "XXa", true},
        {REPLACE("{\"String\":\"XX\"}", ""), "aXX", false},
        {REPLACE("{\"Regex\":\" {2,}\"}", "_"), "  a", true},
        {REPLACE("{\"Regex\":\" {2,}\"}", "_"), "a  ", false},
        {REPLACE("{\"Regex\":\"a*\"}", "-"), "aab", true},
        {REPLACE("{\"Regex\":\"a*\"}", "-"), "ab", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        dq_err err = {0};
        dq_normalizer n = {0};
        json_t *v = given_document(rows[i].json);
        char *got;
        size_t len;
        bool moved;
        if (dq_normalizer_load(&n, v, given_arena(), &err) ||
            dq_normalizer_run(&n, &got, &len, &moved, rows[i].text, strlen(rows[i].text), &err))
            fail_msg("%s", err.text);
        if (moved != rows[i].moved) fail_msg("%s of \"%s\"", rows[i].json, rows[i].text);
        dq_block_free(got);
        dq_normalizer_free(&n);
        json_decref(v);
    }
}

/* Memory that ends anywhere is an error and no leak. */
TEST(test_short_memory)
{
    const char *text = " E\xCC\x81 two  \xEF\xBC\xA1";
    const json_t *rows = member("normalizers");
    dq_err err = {0};
    dq_normalizer n = {0};
    char *got;
    size_t len;
    if (dq_normalizer_load(&n,
                           json_object_get(json_array_get(rows, json_array_size(rows) - 1), "step"),
                           given_arena(), &err))
        fail_msg("%s", err.text);
    for (int64_t at = 1;; at++) {
        err = (dq_err){0};
        dq_alloc_fail_at(at);
        dq_status status = dq_normalizer_run(&n, &got, &len, NULL, text, strlen(text), &err);
        dq_alloc_fail_at(0);
        if (status == DQ_OK) break;
        assert_int_equal(status, DQ_RESOURCE);
        assert_null(got);
        assert_true(at < 50);
    }
    dq_block_free(got);
    dq_normalizer_free(&n);
    const dq_decoder d = {
        .n_steps = 2,
        .step = {{.kind = DQ_DECODER_BYTE_FALLBACK}, {.kind = DQ_DECODER_BYTE_LEVEL}}};
    const char *token[] = {"<0xFF>", "<0xC3>", "ab"};
    const size_t lens[] = {6, 6, 2};
    for (int64_t at = 1;; at++) {
        err = (dq_err){0};
        dq_alloc_fail_at(at);
        dq_status status = dq_decoder_run(&d, token, lens, 3, &got, &len, &err);
        dq_alloc_fail_at(0);
        if (status == DQ_OK) break;
        assert_int_equal(status, DQ_RESOURCE);
        assert_null(got);
        assert_true(at < 50);
    }
    dq_block_free(got);
}

static int set_up(void **state)
{
    (void)state;
    golden = given_json(DQ_TEST_DIR "/golden/tokenizer/steps.json");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    json_decref(golden);
    return 0;
}

FIXTURES(set_up, tear_down)
