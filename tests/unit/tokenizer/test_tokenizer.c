/* Tests of the tokenizer: ids and decoded text against those of the reference library
 * (golden/tokenizer.py), long runs, damaged files, memory failures, threads. See test_tokenizer_files.c, test_regex_syntax.c.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "base/file.h"
#include "base/json.h"
#include "tokenizer/tokenizer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN DQ_TEST_DIR "/golden/tokenizer/"

typedef struct bytes {
    char *s;
    size_t len;
} bytes;

static bytes golden_file(const char *name)
{
    bytes t;
    t.s = given_file(&t.len, GOLDEN "%s.json", name);
    return t;
}

static dq_tokenizer *golden_tokenizer(const char *name)
{
    const bytes json = golden_file(name);
    return given_tokenizer(json.s, json.len, NULL);
}

static bytes from_hex(const char *hex)
{
    size_t n = strlen(hex) / 2;
    bytes t = {malloc(n + 1), n};
    assert_non_null(t.s);
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        t.s[i] = (char)byte;
    }
    return t;
}

/* The first of ids[n], at least as many as asked for: what stands after them changes none. */
static void check_first(const char *where, size_t index, const dq_tokenizer *t, bytes s,
                        unsigned flags, const int32_t *ids, int64_t n)
{
    const int64_t most[] = {1, 2, n / 2, n - 1, n + 1};
    for (size_t k = 0; k < sizeof most / sizeof *most; k++) {
        dq_err err = {0};
        int32_t *first;
        int64_t found;
        if (most[k] < 1) continue;
        if (dq_tokenizer_encode_first(t, s.s, s.len, flags, most[k], &first, &found, NULL, NULL,
                                      &err) != DQ_OK)
            fail_msg("%s text %zu: %s", where, index, err.text);
        if (found > n || (found < n && found < most[k]) ||
            memcmp(first, ids, (size_t)found * sizeof *ids) != 0)
            fail_msg("%s text %zu: the first %lld of %lld tokens", where, index, (long long)most[k],
                     (long long)n);
        dq_block_free(first);
    }
}

static void check_ids(const char *where, size_t index, const dq_tokenizer *t, bytes s,
                      unsigned flags, const json_t *want)
{
    dq_err err = {0};
    int32_t *ids;
    int64_t n;
    if (dq_tokenizer_encode(t, s.s, s.len, flags, &ids, &n, NULL, NULL, &err) != DQ_OK)
        fail_msg("%s text %zu: %s", where, index, err.text);
    for (size_t i = 0; i < (size_t)n && i < json_array_size(want); i++) {
        if (ids[i] != json_integer_value(json_array_get(want, i)))
            fail_msg("%s text %zu: id %zu is %d, expected %lld", where, index, i, (int)ids[i],
                     (long long)json_integer_value(json_array_get(want, i)));
    }
    if ((size_t)n != json_array_size(want))
        fail_msg("%s text %zu: %lld tokens, expected %zu", where, index, (long long)n,
                 json_array_size(want));
    check_first(where, index, t, s, flags, ids, n);
    dq_block_free(ids);
}

TEST(test_ids)
{
    json_t *cases = given_json(GOLDEN "%s.json", "cases"), *file;
    const json_t *hex = json_object_get(cases, "bytes_hex");
    const char *name;
    json_object_foreach(json_object_get(cases, "files"), name, file)
    {
        dq_tokenizer *t = golden_tokenizer(name);
        assert_int_equal(dq_tokenizer_vocab(t), json_integer_value(json_object_get(file, "vocab")));
        for (size_t i = 0; i < json_array_size(hex); i++) {
            bytes s = from_hex(json_string_value(json_array_get(hex, i)));
            check_ids(name, i, t, s, 0, json_array_get(json_object_get(file, "ids"), i));
            free(s.s);
        }
        char tolner[] = "Tolner";
        check_ids(name, 9999, t, (bytes){tolner, 6}, DQ_TOK_SPECIAL,
                  json_object_get(file, "special"));
        dq_tokenizer_free(t);
    }
    json_decref(cases);
}

static uint64_t fnv(uint64_t h, uint64_t item)
{
    return (h ^ item) * UINT64_C(0x100000001B3);
}

#define FNV_START UINT64_C(0xCBF29CE484222325)

/* Text of s's ids against word `index` of the list of short hashes. */
static void check_decoded(const char *where, size_t index, const dq_tokenizer *t, bytes s,
                          unsigned encode_flags, unsigned flags, const json_t *want)
{
    dq_err err = {0};
    int32_t *ids;
    int64_t n;
    char *text, got[17];
    size_t len;
    uint64_t h = FNV_START;
    if (dq_tokenizer_encode(t, s.s, s.len, encode_flags, &ids, &n, NULL, NULL, &err) != DQ_OK ||
        dq_tokenizer_decode(t, ids, n, flags, &text, &len, &err) != DQ_OK)
        fail_msg("%s text %zu: %s", where, index, err.text);
    for (size_t i = 0; i < len; i++) h = fnv(h, (uint8_t)text[i]);
    snprintf(got, sizeof got, "%016llx", (unsigned long long)h);
    const char *hash = json_string_value(want) + 9 * index;
    if (memcmp(got, hash, 8) != 0)
        fail_msg("%s text %zu: decoded to \"%.*s\", hash %.8s instead of %.8s", where, index,
                 (int)len, text, got, hash);
    dq_block_free(text);
    dq_block_free(ids);
}

TEST(test_decoded)
{
    json_t *cases = given_json(GOLDEN "%s.json", "cases"), *file;
    const json_t *hex = json_object_get(cases, "bytes_hex");
    const char *name;
    json_object_foreach(json_object_get(cases, "files"), name, file)
    {
        dq_tokenizer *t = golden_tokenizer(name);
        for (size_t i = 0; i < json_array_size(hex); i++) {
            bytes s = from_hex(json_string_value(json_array_get(hex, i)));
            check_decoded(name, i, t, s, 0, DQ_TOK_SPECIAL, json_object_get(file, "decoded"));
            check_decoded(name, i, t, s, DQ_TOK_SPECIAL, 0, json_object_get(file, "skipped"));
            free(s.s);
        }
        dq_tokenizer_free(t);
    }
    json_decref(cases);
}

/* Number and hash of the tokens of a text too long to list. */
static void check_hash(const char *name, size_t index, const dq_tokenizer *t, bytes s,
                       const json_t *want)
{
    uint64_t h = FNV_START;
    char got[17];
    dq_err err = {0};
    int32_t *ids;
    int64_t n;
    if (dq_tokenizer_encode(t, s.s, s.len, 0, &ids, &n, NULL, NULL, &err) != DQ_OK)
        fail_msg("%s run %zu: %s", name, index, err.text);
    for (int64_t k = 0; k < n; k++) h = fnv(h, (uint64_t)ids[k]);
    snprintf(got, sizeof got, "%016llx", (unsigned long long)h);
    if (n != json_integer_value(json_array_get(want, 0)) ||
        strcmp(got, json_string_value(json_array_get(want, 1))) != 0)
        fail_msg("%s run %zu: %lld tokens with hash %s", name, index, (long long)n, got);
    dq_block_free(ids);
}

/* Runs of up to a million characters: linear or nearly so, and equal; and a text of many words. */
TEST(test_long_runs)
{
    json_t *cases = given_json(GOLDEN "%s.json", "cases"), *file;
    const json_t *runs = json_object_get(cases, "long");
    const char *name;
    json_object_foreach(json_object_get(cases, "files"), name, file)
    {
        dq_tokenizer *t = golden_tokenizer(name);
        for (size_t i = 0; i < json_array_size(runs); i++) {
            const json_t *run = json_array_get(runs, i);
            const char *part = json_string_value(json_array_get(run, 0));
            size_t len = strlen(part);
            size_t times = (size_t)json_integer_value(json_array_get(run, 1));
            bytes s = {malloc(len * times), len * times};
            assert_non_null(s.s);
            for (size_t k = 0; k < times; k++) memcpy(s.s + k * len, part, len);
            check_hash(name, i, t, s, json_array_get(json_object_get(file, "long"), i));
            free(s.s);
        }
        check_hash(name, 999, t, golden_file(name), json_object_get(file, "own_file"));
        dq_tokenizer_free(t);
    }
    json_decref(cases);
}

TEST(test_runaway_pattern)
{
    dq_err err = {0};
    char edited[2048], *s = malloc(5000);
    dq_tokenizer *t = NULL;
    int32_t *ids;
    int64_t n;
    assert_non_null(s);
    snprintf(
        edited, sizeof edited,
        "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
        "\"pattern\":{\"Regex\":\"(?:a*)*(?:a*)*(?:a*)*b\"},\"behavior\":\"Isolated\"},{\"type\":"
        "\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},\"model\":{\"vocab\":"
        "{\"a\":0},\"merges\":[]}}");
    assert_int_equal(dq_tokenizer_load(&t, edited, strlen(edited), NULL, 0, &err), DQ_OK);
    memset(s, 'a', 5000);
    memcpy(s + 4990, "cab", 3);
    dq_status status = dq_tokenizer_encode(t, s, 5000, 0, &ids, &n, NULL, NULL, &err);
    assert_int_equal(status, DQ_RESOURCE);
    assert_non_null(strstr(err.text, "PCRE2 says: "));
    dq_tokenizer_free(t);
    free(s);
}

TEST(test_deep_json)
{
    enum { DEPTH = 100000 };
    dq_err err = {0};
    dq_tokenizer *t;
    char *s = malloc(DEPTH);
    assert_non_null(s);
    memset(s, '[', DEPTH);
    assert_int_equal(dq_tokenizer_load(&t, s, DEPTH, NULL, 0, &err), DQ_DAMAGED);
    free(s);
}

/* Pieces put together are the text again. */
TEST(test_pieces)
{
    static const char text[] = "Tolner <bos> don't\n\n  \xE9\x87\x8F\xF0\x9F\x99\x82 x=1;\t\x01";
    char joined[256];
    size_t used = 0, len;
    dq_err err = {0};
    int32_t *ids;
    int64_t n, first, bad;
    dq_tokenizer *t = golden_tokenizer("gpt2");
    assert_int_equal(dq_tokenizer_encode(t, text, sizeof text - 1, 0, &ids, &n, &first, &bad, &err),
                     DQ_OK);
    assert_int_equal(first, -1);
    assert_int_equal(bad, 0);
    for (int64_t i = 0; i < n; i++) {
        const char *piece = dq_tokenizer_piece(t, ids[i], &len);
        assert_non_null(piece);
        memcpy(joined + used, piece, len);
        used += len;
    }
    assert_int_equal(used, sizeof text - 1);
    assert_memory_equal(joined, text, used);
    assert_null(dq_tokenizer_piece(t, -1, &len));
    assert_null(dq_tokenizer_piece(t, dq_tokenizer_vocab(t), &len));
    dq_block_free(ids);
    dq_tokenizer_free(t);
}

TEST(test_template)
{
    int before, after;
    dq_tokenizer *t = golden_tokenizer("llama3");
    dq_tokenizer_template(t, DQ_TOK_SPECIAL | DQ_TOK_BOS, &before, &after);
    assert_int_equal(before, 1);
    assert_int_equal(after, 1);
    dq_tokenizer_template(t, 0, &before, &after);
    assert_int_equal(before + after, 0);
    assert_int_equal(dq_tokenizer_bos(t, DQ_TOK_SPECIAL), 0);
    assert_int_equal(dq_tokenizer_bos(t, 0), -1);
    assert_int_equal(dq_tokenizer_id(t, "nothing", 7), -1);
    assert_int_equal(dq_tokenizer_prefix(t), -1);
    dq_tokenizer_free(t);
    t = golden_tokenizer("digits");
    assert_int_equal(dq_tokenizer_bos(t, DQ_TOK_SPECIAL | DQ_TOK_BOS), -1);
    dq_tokenizer_free(t);
}

/* A template without BOS: the token that the configuration names stands there where it is asked for. */
TEST(test_named_bos)
{
    static const char config[] = "{\"bos_token\":\"<eos>\"}";
    dq_err err = {0};
    dq_tokenizer *t = NULL;
    int before, after;
    int32_t *ids;
    int64_t n;
    bytes json = golden_file("digits");
    assert_int_equal(dq_tokenizer_load(&t, json.s, json.len, config, sizeof config - 1, &err),
                     DQ_OK);
    assert_int_equal(dq_tokenizer_bos(t, DQ_TOK_SPECIAL), -1);
    assert_int_equal(dq_tokenizer_bos(t, DQ_TOK_SPECIAL | DQ_TOK_BOS), 1);
    assert_int_equal(dq_tokenizer_id(t, "<eos>", 5), 1);
    dq_tokenizer_template(t, DQ_TOK_SPECIAL | DQ_TOK_BOS, &before, &after);
    assert_int_equal(before, 1);
    assert_int_equal(
        dq_tokenizer_encode(t, "", 0, DQ_TOK_SPECIAL | DQ_TOK_BOS, &ids, &n, NULL, NULL, &err),
        DQ_OK);
    assert_int_equal(n, 1 + after);
    assert_int_equal(ids[0], 1);
    dq_block_free(ids);
    dq_tokenizer_free(t);
}

TEST(test_config)
{
    static const struct {
        const char *config;
        dq_status status;
        int32_t prefix; /* or -1 */
        const char *says;
    } rows[] = {
        {"{}", DQ_OK, -1, ""},
        {"{\"bos_token\":\"<bos>\",\"eos_token\":\"<eos>\"}", DQ_OK, 0, ""},
        {"{\"bos_token\":null,\"eos_token\":{\"content\":\"<eos>\"}}", DQ_OK, 1, ""},
        {"{\"bos_token\":\"nothing\"}", DQ_OK, 420, ""}, /* added */
        {"{\"eos_token\":\"<new>\",\"added_tokens_decoder\":{\"420\":{\"content\":\"<new>\","
         "\"special\":true},\"0\":{\"content\":\"<bos>\",\"lstrip\":true}}}",
         DQ_OK, 420, ""},
        {"{\"added_tokens_decoder\":{\"500\":{\"content\":\"<new>\"}}}", DQ_MISMATCH, -1,
         "has id 500"},
        {"{\"added_tokens_decoder\":{\"1\":{\"content\":\"<bos>\"}}}", DQ_MISMATCH, -1, "has id 1"},
        {"{\"added_tokens_decoder\":{\"x\":{\"content\":\"<new>\"}}}", DQ_DAMAGED, -1, "\"x\""},
        {"{\"added_tokens_decoder\":{\"99999999999999999999\":{}}}", DQ_DAMAGED, -1, "not an id"},
        {"{\"added_tokens_decoder\":{\"420\":{}}}", DQ_DAMAGED, -1, "content"},
        {"{\"added_tokens_decoder\":7}", DQ_DAMAGED, -1, "not an object"},
        {"7", DQ_DAMAGED, -1, "not an object"},
        {"{", DQ_DAMAGED, -1, "tokenizer_config.json: not valid JSON"},
    };
    bytes json = golden_file("gpt2");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        dq_err err = {0};
        dq_tokenizer *t = NULL;
        dq_status status =
            dq_tokenizer_load(&t, json.s, json.len, rows[i].config, strlen(rows[i].config), &err);
        if (status != rows[i].status || !strstr(err.text, rows[i].says))
            fail_msg("row %zu: status %d, \"%s\"", i, (int)status, err.text);
        if (status != DQ_OK && strncmp(err.text, "tokenizer_config.json: ", 23) != 0)
            fail_msg("row %zu: which file? \"%s\"", i, err.text);
        if (t) assert_int_equal(dq_tokenizer_prefix(t), rows[i].prefix);
        dq_tokenizer_free(t);
    }
}

/* Each allocation fails once: DQ_RESOURCE, nothing lost (the sanitizer build looks). */
TEST(test_memory)
{
    bytes json = golden_file("added");
    static const char text[] =
        "<|x|> Tolner caf\x65\xCC\x81 \xFF aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    int64_t k, n;
    int32_t *ids;
    dq_tokenizer *t = NULL;
    for (k = 1; !t; k++) {
        dq_err err = {0};
        dq_alloc_fail_at(k);
        dq_status status = dq_tokenizer_load(&t, json.s, json.len, "{}", 2, &err);
        dq_alloc_fail_at(0);
        assert_int_equal(status, t ? DQ_OK : DQ_RESOURCE);
    }
    assert_true(k > 4);
    for (k = 1, ids = NULL; !ids; k++) {
        dq_err err = {0};
        dq_alloc_fail_at(k);
        dq_status status = dq_tokenizer_encode(t, text, sizeof text - 1, DQ_TOK_SPECIAL, &ids, &n,
                                               NULL, NULL, &err);
        dq_alloc_fail_at(0);
        assert_int_equal(status, ids ? DQ_OK : DQ_RESOURCE);
    }
    assert_true(k > 3);
    dq_block_free(ids);
    dq_tokenizer_free(t);
}

typedef struct job {
    const dq_tokenizer *t;
    bytes s;
    uint64_t hash;
    dq_status status;
} job;

static void *encode_job(void *arg)
{
    job *j = arg;
    for (int round = 0; round < 20 && j->status == DQ_OK; round++) {
        dq_err err = {0};
        int32_t *ids;
        int64_t n;
        j->status = dq_tokenizer_encode(j->t, j->s.s, j->s.len, 0, &ids, &n, NULL, NULL, &err);
        for (int64_t i = 0; i < n; i++) j->hash = j->hash * 31 + (uint64_t)ids[i];
        dq_block_free(ids);
    }
    return NULL;
}

TEST(test_threads)
{
    job jobs[3];
    pthread_t thread[3];
    dq_tokenizer *t = golden_tokenizer("llama3");
    for (int i = 0; i < 3; i++) {
        jobs[i] = (job){t, golden_file("cases"), 0, DQ_OK};
        assert_int_equal(pthread_create(&thread[i], NULL, encode_job, &jobs[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(jobs[i].status, DQ_OK);
        assert_true(jobs[i].hash == jobs[0].hash);
    }
    dq_tokenizer_free(t);
}
