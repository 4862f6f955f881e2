/* Text as ids come: pieces are whole characters and together what the tokenizer decodes, for every golden tokenizer.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/random.h"
#include "base/text.h"
#include "session/session.c" /* what is private there */
#include "tests/rigs/given.h"

#include <stdio.h>
#include <string.h>

static const char *const names[] = {"gpt2",       "llama3",    "sp_bytes",  "sp_first",
                                    "sp_strip",   "sp_always", "sp_legacy", "uni_bytes",
                                    "uni_legacy", "chars",     "anchors",   "added"};
enum { N_NAMES = sizeof names / sizeof *names, IDS = 60, ROUNDS = 40 };

static dq_tokenizer *tokenizer(const char *name)
{
    size_t len;
    const char *json = given_file(&len, DQ_TEST_DIR "/golden/tokenizer/%s.json", name);
    return given_tokenizer(json, len, NULL);
}

/* Appends a piece, which ends at the end of a character. */
static size_t append(char *to, size_t n, const char *piece, size_t len)
{
    memcpy(to + n, piece, len);
    assert_true(len == 0 || (unsigned char)piece[0] < 0x80 || (unsigned char)piece[0] >= 0xC0);
    return n + len;
}

static void check_ids(const char *name, const dq_tokenizer *t, const int32_t *ids, int64_t n)
{
    static char said[1 << 16];
    text_stream s = {.t = t};
    dq_err err = {0};
    const char *piece;
    char *whole;
    size_t at = 0, len, whole_len;
    for (int64_t i = 0; i < n; i++) {
        stream_add(&s, ids[i], &piece, &len, &err);
        assert_string_equal(err.text, "");
        at = append(said, at, piece, len);
    }
    stream_end(&s, &piece, &len, &err);
    at = append(said, at, piece, len);
    dq_tokenizer_decode(t, ids, n, 0, &whole, &whole_len, &err);
    assert_string_equal(err.text, "");
    if (at != whole_len || memcmp(said, whole, at) != 0)
        fail_msg("%s: \"%.*s\" was said, \"%.*s\" is the text", name, (int)at, said, (int)whole_len,
                 whole);
    dq_block_free(whole);
    stream_free(&s);
}

/* Bytes of a fallback that are no characters alter what stands before them: these read texts. */
static void check_texts(const char *name, const dq_tokenizer *t)
{
    static const char *const texts[] = {"a \xF0\x9F\xA6\x94 b\n\n\xE2\x82\xAC 5, \xC3\xA9t\xC3\xA9",
                                        "  two  spaces\n\xF0\x9F\xA6\x94\xF0\x9F\xA6\x94"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        dq_err err = {0};
        int32_t *ids;
        int64_t n;
        dq_tokenizer_encode(t, texts[i], strlen(texts[i]), 0, &ids, &n, NULL, NULL, &err);
        assert_string_equal(err.text, "");
        check_ids(name, t, ids, n);
        dq_block_free(ids);
    }
}

TEST(pieces_are_the_text)
{
    for (int i = 0; i < N_NAMES; i++) {
        dq_tokenizer *t = tokenizer(names[i]);
        const bool has_fallback = names[i][0] == 's' || names[i][0] == 'u';
        check_texts(names[i], t);
        dq_random r = dq_random_of(7, (uint64_t)i);
        for (int k = 0; k < ROUNDS && !has_fallback; k++) {
            int32_t ids[IDS];
            for (int j = 0; j < IDS; j++)
                ids[j] = (int32_t)dq_random_below(&r, (uint64_t)dq_tokenizer_vocab(t));
            check_ids(names[i], t, ids, IDS);
        }
        dq_tokenizer_free(t);
    }
}

/* A character of several ids is said with its last one. */
TEST(waits_for_a_whole_character)
{
    dq_tokenizer *t = tokenizer("gpt2");
    text_stream s = {.t = t};
    dq_err err = {0};
    static const char text[] = "a\xF0\x9F\xA6\x94"; /* a hedgehog, of bytes alone */
    int32_t *ids;
    int64_t n;
    const char *piece;
    size_t len;
    dq_tokenizer_encode(t, text, sizeof text - 1, 0, &ids, &n, NULL, NULL, &err);
    assert_string_equal(err.text, "");
    assert_true(n > 2);
    for (int64_t i = 0; i < n; i++) {
        stream_add(&s, ids[i], &piece, &len, &err);
        assert_int_equal(len, i == 0 ? 1 : i == n - 1 ? 4 : 0);
    }
    stream_free(&s);
    s.t = t; /* half of it, at an end */
    stream_add(&s, ids[1], &piece, &len, &err);
    assert_int_equal(len, 0);
    stream_end(&s, &piece, &len, &err);
    assert_true(len > 0 && len % 3 == 0 && memcmp(piece, "\xEF\xBF\xBD", 3) == 0);
    stream_free(&s);
    dq_block_free(ids);
    dq_tokenizer_free(t);
}
