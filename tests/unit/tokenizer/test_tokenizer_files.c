/* Tests of small tokenizer files, each a valid one with something replaced: other spellings of the same, tokenizers that do the
 * same or not, and refusals. See test_tokenizer.c.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char bpe_base[] =
    "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":4,\"content\":\"<b>\",\"special\":true}],"
    "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
    "\"use_regex\":true},\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
    "{\"SpecialToken\":{\"id\":\"<b>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\","
    "\"type_id\":0}}],\"special_tokens\":{\"<b>\":{\"id\":\"<b>\",\"ids\":[4],"
    "\"tokens\":[\"<b>\"]}}},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\","
    "\"dropout\":null,\"unk_token\":null,\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"bb\":3},"
    "\"merges\":[[\"a\",\"b\"],\"b b\"]}}";

static const char unigram_base[] = "{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":"
                                   "\"\xE2\x96\x81\",\"prepend_scheme\":"
                                   "\"never\",\"split\":false},\"model\":{\"type\":\"Unigram\","
                                   "\"unk_id\":0,\"vocab\":[[\"<unk>\",0],"
                                   "[\"a\",-1.5],[\"ab\",-2]],\"byte_fallback\":false}}";

/* Replaces the first `from` in a small valid file by `to` and loads that. */
static dq_status load_edited(const char *base, const char *from, const char *to, dq_err *err)
{
    static char edited[4096];
    dq_tokenizer *t = NULL;
    const char *at = from ? strstr(base, from) : base;
    if (!at) fail_msg("the base file has no %s", from);
    size_t skip = from ? strlen(from) : 0;
    snprintf(edited, sizeof edited, "%.*s%s%s", (int)(at - base), base, to, at + skip);
    dq_status status = dq_tokenizer_load(&t, edited, strlen(edited), NULL, 0, err);
    assert_true((status == DQ_OK) == (t != NULL));
    dq_tokenizer_free(t);
    return status;
}

/* One document in several spellings, which different readers of its lists take: the same tokens. */
TEST(test_spellings)
{
    static const char *const edits[][2] = {
        {"\"a\":0", "\"a\":0"},
        {"\"a\":0", " \"\\u0061\" :\n0"},
        {"\"a\":0", "\"a\":0.0"},
        {"\"bb\":3", "\"bb\":3,\"\\ud83d\\ude00\":5"},
        {"\"bb\":3", "\"bb\":3,\"\\\"\\\\\\/\\n\\u00e9\\u20ac\":5"},
        {"\"b b\"", "\"#version: 0.2\",[\"b\",\"b\"]"},
        {"\"merges\":[[\"a\",\"b\"],\"b b\"]", "\"merges\" : [ \"\\u0061 b\" , [ \"b\",\"b\" ] ]"},
        {"\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"bb\":3},\"merges\":[[\"a\",\"b\"],\"b b\"]",
         "\"merges\":[\"a b\",\"b b\"],\"vocab\":{\"b\":1,\"bb\":3,\"ab\":2,\"a\":0}"},
    };
    static const int32_t want[] = {2, 3, 0, 4, 1};
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char text[4096];
        dq_err err = {0};
        dq_tokenizer *t;
        int32_t *ids;
        int64_t n;
        const char *at = strstr(bpe_base, edits[i][0]);
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - bpe_base), bpe_base, edits[i][1],
                 at + strlen(edits[i][0]));
        /* a token more moves the one that is added */
        char *id = strstr(edits[i][1], ":5") ? strstr(text, "\"id\":4") : NULL;
        if (id) id[5] = '5';
        id = strstr(edits[i][1], ":5") ? strstr(text, "[4]") : NULL;
        if (id) id[1] = '5';
        char *last = strstr(edits[i][1], ":5") ? strstr(text, ":5}") : NULL;
        if (last) last[1] = '4';
        if (dq_tokenizer_load(&t, text, strlen(text), NULL, 0, &err) != DQ_OK)
            fail_msg("%s: %s", edits[i][1], err.text);
        assert_int_equal(dq_tokenizer_encode(t, "abbba<b>b", 9, 0, &ids, &n, NULL, NULL, &err),
                         DQ_OK);
        assert_int_equal(n, 5);
        for (int k = 0; k < 5; k++) assert_int_equal(ids[k], k == 3 && last ? 5 : want[k]);
        dq_block_free(ids);
        dq_tokenizer_free(t);
    }
}

static dq_tokenizer *load_with(const char *base, const char *from, const char *to,
                               const char *config)
{
    char text[4096];
    dq_err err = {0};
    dq_tokenizer *t;
    const char *at = from ? strstr(base, from) : base;
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - base), base, from ? to : "",
             at + (from ? strlen(from) : 0));
    if (dq_tokenizer_load(&t, text, strlen(text), config, config ? strlen(config) : 0, &err) !=
        DQ_OK)
        fail_msg("%s: %s", to, err.text);
    return t;
}

/* Tokenizers are the same by what they do; whatever changes a token or a text makes them differ. */
TEST(test_same)
{
    static const struct {
        const char *base, *from, *to, *config;
        bool same;
    } rows[] = {
        {bpe_base, "\"b b\"", "[ \"b\" , \"b\" ]", NULL, true},
        {bpe_base, "\"a\":0,\"b\":1", "\"b\":1,\"a\":0", NULL, true},
        {bpe_base, "{\"type\":\"ByteLevel\"}", "{\"type\":\"ByteLevel\",\"use_regex\":false}", NULL,
         true},
        {bpe_base, "\"add_prefix_space\":false", "\"trim_offsets\":true,\"add_prefix_space\":false",
         NULL, true},
        {bpe_base, "\"normalizer\":null,", "", NULL, true},
        {bpe_base, NULL, NULL, "{\"bos_token\":\"<b>\"}", true},
        {bpe_base, "[\"a\",\"b\"],\"b b\"", "\"b b\",[\"a\",\"b\"]", NULL, false},
        {bpe_base, ",\"b b\"", "", NULL, false},
        {bpe_base, "\"a\":0,\"b\":1", "\"a\":1,\"b\":0", NULL, false},
        {bpe_base, "\"ab\":2,\"bb\":3", "\"ab\":3,\"bb\":2", NULL, false},
        {bpe_base, "\"normalizer\":null", "\"normalizer\":{\"type\":\"NFC\"}", NULL, false},
        {bpe_base, "\"use_regex\":true", "\"use_regex\":false", NULL, false},
        {bpe_base, "\"add_prefix_space\":false", "\"add_prefix_space\":true", NULL, false},
        {bpe_base, "\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":null", NULL, false},
        {bpe_base, "\"special\":true", "\"special\":false", NULL, false},
        {bpe_base, "\"special\":true", "\"special\":true,\"rstrip\":true", NULL, false},
        {bpe_base, "{\"SpecialToken\":{\"id\":\"<b>\",\"type_id\":0}},", "", NULL, false},
        {bpe_base, "\"dropout\":null", "\"ignore_merges\":true", NULL, false},
        {bpe_base, "\"unk_token\":null", "\"unk_token\":\"a\"", NULL, false},
        {unigram_base, "-1.5", "-1.50", NULL, true},
        {unigram_base, "-1.5", "-1.25", NULL, false},
        {unigram_base, "\"unk_id\":0", "\"unk_id\":1", NULL, false},
        {unigram_base, "never", "always", NULL, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        dq_tokenizer *a = load_with(rows[i].base, NULL, NULL, NULL);
        dq_tokenizer *b = load_with(rows[i].base, rows[i].from, rows[i].to, rows[i].config);
        if (dq_tokenizer_same(a, b, 1 << 20) != rows[i].same ||
            dq_tokenizer_same(b, a, 1 << 20) != rows[i].same)
            fail_msg("row %zu: %s", i, rows[i].to);
        dq_tokenizer_free(a);
        dq_tokenizer_free(b);
    }
    dq_tokenizer *a = load_with(bpe_base, NULL, NULL, NULL);
    dq_tokenizer *b = load_with(bpe_base, NULL, NULL, "{\"pad_token\":\"<n>\"}"); /* is 5 */
    assert_true(dq_tokenizer_same(a, b, 5) && dq_tokenizer_same(b, a, 5));
    assert_false(dq_tokenizer_same(a, b, 6) || dq_tokenizer_same(b, a, 6));
    dq_tokenizer_free(a);
    dq_tokenizer_free(b);
}

typedef struct refusal {
    const char *from, *to;
    dq_status status;
    const char *says;
} refusal;

static void check_refusals(const char *base, const refusal *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        dq_err err = {0};
        dq_status status = load_edited(base, rows[i].from, rows[i].to, &err);
        if (status != rows[i].status || !strstr(err.text, rows[i].says))
            fail_msg("row %zu (%s): status %d, \"%s\"", i, rows[i].to, (int)status, err.text);
        if (status != DQ_OK) assert_non_null(strstr(err.text, "tokenizer.json: "));
    }
}

TEST(test_refusals)
{
    static const refusal rows[] = {
        {NULL, "", DQ_OK, ""},
        {"{\"version\"", "[\"version\"", DQ_DAMAGED, "not valid JSON at line 1"},
        {"\"1.0\"", "\"2.0\"", DQ_MISMATCH, "version \"2.0\""},
        {"\"1.0\"", "1", DQ_DAMAGED, "\"version\": expected a string"},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Nmt\"}", DQ_MISMATCH,
         "normalizer type \"Nmt\" is not supported"},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[]}", DQ_OK,
         ""},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":7}",
         DQ_DAMAGED, "no list"},
        {"\"normalizer\":null", "\"normalizer\":{}", DQ_DAMAGED, "\"type\" is missing"},
        {"\"normalizer\":null", "\"normalizer\":[]", DQ_DAMAGED, "not an object"},
        {"{\"type\":\"ByteLevel\",", "{\"type\":\"UnicodeScripts\",", DQ_MISMATCH,
         "pre_tokenizer type \"UnicodeScripts\" is not supported"},
        {"{\"type\":\"ByteLevel\",", "{\"type\":\"Sequence\",\"pretokenizers\":[],", DQ_OK, ""},
        {"{\"type\":\"ByteLevel\",", "{\"type\":\"Sequence\",", DQ_DAMAGED, "no list"},
        {"\"add_prefix_space\":false", "\"add_prefix_space\":\"no\"", DQ_DAMAGED,
         "expected a boolean"},
        {"\"pre_tokenizer\":{", "\"pre_tokenizer\":null,\"x\":{", DQ_OK, ""},
        {"\"ids\":[4]", "\"ids\":[77]", DQ_DAMAGED, "an id that no token has"},
        {"\"ids\":[4]", "\"ids\":[-1]", DQ_DAMAGED, "an id that no token has"},
        {"\"ids\":[4]", "\"ids\":4", DQ_DAMAGED, "no list of ids"},
        {"\"special_tokens\":{\"<b>\"", "\"special_tokens\":{\"<c>\"", DQ_DAMAGED,
         "no list of ids"},
        {"{\"Sequence\":{\"id\":\"A\"", "{\"Sequence\":{\"id\":\"B\"", DQ_MISMATCH, "another one"},
        {"{\"Sequence\":", "{\"Seq\":", DQ_DAMAGED, "\"id\" is missing"},
        {"TemplateProcessing", "OtherProcessing", DQ_MISMATCH,
         "\"OtherProcessing\" is not supported"},
        {"\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":{\"type\":\"CTC\"}", DQ_MISMATCH,
         "decoder type \"CTC\""},
        {"\"model\":{\"type\":\"BPE\"", "\"model\":{\"type\":\"WordPiece\"", DQ_MISMATCH,
         "model type \"WordPiece\" is not supported"},
        {"\"model\":{\"type\":\"BPE\"", "\"model\":{\"type\":\"Unigram\"", DQ_DAMAGED,
         "vocab is not a list"},
        {"\"model\":{\"type\":\"BPE\",", "\"model\":{", DQ_OK, ""},
        {"\"model\":{", "\"modal\":{", DQ_DAMAGED, "\"model\" is missing"},
        {"\"dropout\":null", "\"dropout\":0.1", DQ_MISMATCH, "dropout 0.1"},
        {"\"dropout\":null", "\"dropout\":0.0", DQ_OK, ""},
        {"\"dropout\":null", "\"end_of_word_suffix\":\"</w>\"", DQ_MISMATCH, "end_of_word_suffix"},
        {"\"dropout\":null", "\"continuing_subword_prefix\":\"##\"", DQ_MISMATCH, "subword_prefix"},
        {"\"dropout\":null", "\"continuing_subword_prefix\":\"\"", DQ_OK, ""},
        {"\"dropout\":null", "\"byte_fallback\":1", DQ_DAMAGED, "expected a boolean"},
        {"\"unk_token\":null", "\"unk_token\":\"zz\"", DQ_DAMAGED, "unk_token \"zz\""},
        {"\"vocab\":{", "\"vocab\":[],\"x\":{", DQ_DAMAGED, "vocab is not an object"},
        {"\"a\":0", "\"a\":-1", DQ_DAMAGED, "token \"a\" is not a whole number"},
        {"\"a\":0", "\"a\":1099511627776", DQ_DAMAGED, "token \"a\" is not a whole number"},
        {"\"a\":0", "\"a\":0.5", DQ_DAMAGED, "token \"a\" is not a whole number"},
        {"\"a\":0", "\"a\":1", DQ_DAMAGED, "have the same id 1"},
        {"\"a\":0", "\"a\":2147483646", DQ_OK, ""},
        {"\"a\":0", "\"a\":0,\"a\":5", DQ_DAMAGED, "token \"a\" is there twice"},
        {"\"a\":0", "\"a\":0.0,\"a\":5", DQ_DAMAGED, "not valid JSON"},
        {"\"bb\":3", "\"bb\":3,", DQ_DAMAGED, "not valid JSON"},
        {"\"bb\":3", "\"bb\":03", DQ_DAMAGED, "not valid JSON"},
        {"\"b b\"", "\"b b\",", DQ_DAMAGED, "not valid JSON"},
        {"\"b b\"", "\"b b\" \"b b\"", DQ_DAMAGED, "not valid JSON"},
        {"\"b b\"", "\"b\nb\"", DQ_DAMAGED, "not valid JSON"},
        {"\"b b\"", "\"b b\\x\"", DQ_DAMAGED, "not valid JSON"},
        {"\"bb\":3", "\"bb\":3,\"\xff\":5", DQ_DAMAGED, "not valid JSON"},
        {"\"vocab\"", "\"merges\":[],\"vocab\"", DQ_DAMAGED, "not valid JSON"},
        {"\"normalizer\":null", "\"normalizer\":{]", DQ_DAMAGED, "not valid JSON"},
        {"[\"a\",\"b\"]", "[\"a\",\"z\"]", DQ_DAMAGED, "merges[0]: token \"z\" is not in"},
        {"[\"a\",\"b\"]", "[\"b\",\"a\"]", DQ_DAMAGED, "merges[0]: token \"ba\" is not in"},
        {"[\"a\",\"b\"]", "[\"a\"]", DQ_DAMAGED, "merges[0] is neither"},
        {"\"b b\"", "\"b b b\"", DQ_DAMAGED, "merges[1] is neither"},
        {"\"b b\"", "7", DQ_DAMAGED, "merges[1] is neither"},
        {"\"merges\":[", "\"merges\":7,\"x\":[", DQ_DAMAGED, "merges is not a list"},
        {"\"id\":4", "\"id\":9", DQ_MISMATCH, "has id 9 where the vocabulary puts it at 4"},
        {"\"id\":4", "\"id\":-4", DQ_DAMAGED, "\"id\""},
        {"\"content\":\"<b>\"", "\"content\":7", DQ_DAMAGED, "no string \"content\""},
        {"\"content\":\"<b>\"", "\"content\":\"ab\"", DQ_MISMATCH, "has id 4"},
        {"[{\"id\":4", "[7,{\"id\":4", DQ_DAMAGED, "added_tokens[0] is not an object"},
        {"\"added_tokens\":[", "\"added_tokens\":{},\"x\":[", DQ_DAMAGED, "not a list"},
    };
    check_refusals(bpe_base, rows, sizeof rows / sizeof *rows);
}

/* Tokens that several files name, with other flags, or without an id: ids and text of transformers. */
TEST(test_files_beside)
{
    dq_err err = {0};
    json_t *all = json_load_file(DQ_TEST_DIR "/golden/added_tokens.json", 0, NULL), *one;
    json_t *base = json_object_get(all, "base");
    size_t n_cases = 0;
    json_array_foreach(json_object_get(all, "cases"), n_cases, one)
    {
        const json_t *files = json_object_get(one, "files"), *ids = json_object_get(one, "ids");
        const char *text = json_string_value(json_object_get(one, "text"));
        dq_tokenizer_text file[DQ_TOKENIZER_FILES] = {{NULL, 0}};
        char *written[DQ_TOKENIZER_FILES] = {NULL}, *plain;
        dq_tokenizer *t = NULL;
        int32_t *got;
        int64_t n;
        size_t len;
        json_object_set(base, "added_tokens", json_array_get(files, 0));
        if (json_array_size(files) == 5) json_object_set(base, "padding", json_array_get(files, 4));
        for (size_t i = 0; i < DQ_TOKENIZER_FILES; i++) {
            const json_t *v = i ? json_array_get(files, i) : base;
            if (!json_is_null(v)) file[i].s = written[i] = json_dumps(v, 0);
            if (written[i]) file[i].len = strlen(written[i]);
        }
        if (dq_tokenizer_load_files(&t, file, &err) != DQ_OK)
            fail_msg("case %zu: %s", n_cases, err.text);
        dq_tokenizer_encode(t, text, strlen(text), 0, &got, &n, NULL, NULL, &err);
        if (n != (int64_t)json_array_size(ids))
            fail_msg("case %zu: %lld ids", n_cases, (long long)n);
        for (size_t i = 0; i < json_array_size(ids); i++) {
            if (got[i] != json_integer_value(json_array_get(ids, i)))
                fail_msg("case %zu: id %zu is %d", n_cases, i, (int)got[i]);
        }
        dq_tokenizer_decode(t, got, n, 0, &plain, &len, &err);
        assert_string_equal(plain, json_string_value(json_object_get(one, "plain")));
        for (size_t i = 0; i < DQ_TOKENIZER_FILES; i++) free(written[i]);
        dq_block_free(got);
        dq_block_free(plain);
        dq_tokenizer_free(t);
    }
    assert_int_equal(n_cases, 90);
    assert_string_equal(err.text, "");
    json_decref(all);
}

TEST(test_damaged_files_beside)
{
    static const struct {
        int file;
        const char *text;
        dq_status status;
        const char *says;
    } t[] = {
        {2, "[]", DQ_DAMAGED, "special_tokens_map.json: the document is not an object"},
        {2, "{", DQ_DAMAGED, "special_tokens_map.json: not valid JSON"},
        {2, "{\"eos_token\": 7, \"extra_special_tokens\": [null, {}], \"x_token\": []}", DQ_OK, ""},
        {1, "{\"fast_tokenizer_files\": [\"tokenizer.json\", \"tokenizer.4.json\"]}", DQ_MISMATCH,
         "\"fast_tokenizer_files\": tokenizer.4.json may count instead of tokenizer.json"},
        {1, "{\"fast_tokenizer_files\": [\"tokenizer.json\"]}", DQ_OK, ""},
        {3, "7", DQ_DAMAGED, "added_tokens.json: the document is not an object"},
        {3, "{\"<n>\": \"5\"}", DQ_DAMAGED, "added_tokens.json: \"<n>\" has no id"},
        {3, "{\"<n>\": -1}", DQ_DAMAGED, "is not an id with an object"},
        {3, "{\"<n>\": 9}", DQ_MISMATCH, "added token \"<n>\" has id 9 where the vocabulary"},
        {3, "{\"<b>\": 4, \"<n>\": 5, \"\": 6}", DQ_OK, ""},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        dq_tokenizer_text file[DQ_TOKENIZER_FILES] = {{bpe_base, sizeof bpe_base - 1}};
        dq_tokenizer *got = NULL;
        dq_err err = {0};
        file[t[i].file] = (dq_tokenizer_text){t[i].text, strlen(t[i].text)};
        if (dq_tokenizer_load_files(&got, file, &err) != t[i].status ||
            !strstr(err.text, t[i].says))
            fail_msg("row %zu: status %d, \"%s\"", i, (int)err.code, err.text);
        dq_tokenizer_free(got);
    }
}

TEST(test_unigram_refusals)
{
    static const refusal rows[] = {
        {NULL, "", DQ_OK, ""},
        {"\"type\":\"Unigram\",", "", DQ_OK, ""},
        {"\"unk_id\":0", "\"unk_id\":2", DQ_OK, ""},
        {"\"unk_id\":0", "\"unk_id\":3", DQ_DAMAGED, "unk_id 3 is not below the 3 pieces"},
        {"\"unk_id\":0", "\"unk_id\":-1", DQ_DAMAGED, "\"unk_id\""},
        {"\"unk_id\":0", "\"unk_id\":null", DQ_MISMATCH, "without unk_id"},
        {"\"unk_id\":0,", "", DQ_MISMATCH, "without unk_id"},
        {"\"vocab\":[", "\"vocab\":[],\"x\":[", DQ_DAMAGED, "not below the 0 pieces"},
        {"\"vocab\":[", "\"vocab\":7,\"x\":[", DQ_DAMAGED, "vocab is not a list"},
        {"\"vocab\":[", "\"vokab\":[", DQ_DAMAGED, "vocab is not a list"},
        {"[\"a\",-1.5]", "[\"a\"]", DQ_DAMAGED, "vocab[1] is not [piece, score]"},
        {"[\"a\",-1.5]", "[\"a\",-1.5,0]", DQ_DAMAGED, "vocab[1] is not [piece, score]"},
        {"[\"a\",-1.5]", "[\"a\",\"-1.5\"]", DQ_DAMAGED, "vocab[1] is not [piece, score]"},
        {"[\"a\",-1.5]", "[1,-1.5]", DQ_DAMAGED, "vocab[1] is not [piece, score]"},
        {"[\"a\",-1.5]", "\"a\"", DQ_DAMAGED, "vocab[1] is not [piece, score]"},
        {"[\"a\",-1.5]", "[\"\",1e300]", DQ_OK, ""},
        {"[\"a\",-1.5]", "[\"a\",1e999]", DQ_DAMAGED, "the score is too large"},
        {"[\"a\",-1.5]", "[\"ab\",-1.5]", DQ_OK, ""},
        {"\"byte_fallback\":false", "\"byte_fallback\":0", DQ_DAMAGED, "expected a boolean"},
        {"Metaspace\"", "ByteLevel\",\"add_prefix_space\":false", DQ_MISMATCH,
         "Unigram model after a ByteLevel"},
    };
    check_refusals(unigram_base, rows, sizeof rows / sizeof *rows);
}
