/* Tests of the two tokenizer models against plain transcriptions of their rules, on small random
 * vocabularies full of ties and random texts; pieces and decoding; memory failures.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 60, MAX_TEXT = 200, MAX_TOKEN = 24 };

/* The first few are always tokens; of two and three bytes too. The last one is never one. */
static const char *const letter[] = {"a", "\xE2\x96\x81", "b", "\xC3\xA9", "c", "\xF0\x9F\x99\x82"};
enum { LETTERS = 6 };

typedef struct token {
    char text[MAX_TOKEN];
    size_t len;
    double score;    /* Unigram */
    int left, right; /* BPE: what it is merged from, or -1 */
} token;

typedef struct vocabulary {
    token item[MAX_TOKENS];
    int n;
} vocabulary;

static uint32_t seed;

static int below(int n)
{
    seed = seed * 1664525 + 1013904223;
    return (int)((seed >> 8) % (uint32_t)n);
}

static int find(const vocabulary *v, const char *s, size_t len)
{
    for (int i = 0; i < v->n; i++) {
        if (v->item[i].len == len && memcmp(v->item[i].text, s, len) == 0) return i;
    }
    return -1;
}

static void add(vocabulary *v, const char *left, const char *right, int l, int r)
{
    token t = {.left = l, .right = r, .score = -0.5 * (2 + below(8))};
    int len = snprintf(t.text, sizeof t.text, "%s%s", left, right);
    if (len >= (int)sizeof t.text || v->n == MAX_TOKENS || find(v, t.text, (size_t)len) >= 0)
        return;
    t.len = (size_t)len;
    v->item[v->n++] = t;
}

/* Token 0 is unknown; one more than `known` letters, then joined pairs of tokens. */
static void make_vocabulary(vocabulary *v, int known, int joined)
{
    *v = (vocabulary){0};
    add(v, "<unk>", "", -1, -1);
    for (int i = 0; i <= known; i++) add(v, letter[i], "", -1, -1);
    for (int i = 0; i < joined; i++) {
        int l = 1 + below(v->n - 1), r = 1 + below(v->n - 1);
        add(v, v->item[l].text, v->item[r].text, l, r);
    }
}

static size_t make_text(char *s)
{
    size_t len = 0;
    for (int n = below(40); n > 0; n--) {
        const char *c = letter[below(LETTERS)];
        memcpy(s + len, c, strlen(c));
        len += strlen(c);
    }
    return len;
}

static void check(const dq_tokenizer *t, const char *json, const char *s, size_t len,
                  const int *want, size_t n_want)
{
    dq_err err = {0};
    int32_t *ids;
    int64_t n;
    assert_int_equal(dq_tokenizer_encode(t, s, len, 0, &ids, &n, NULL, NULL, &err), DQ_OK);
    bool same = (size_t)n == n_want;
    for (size_t i = 0; same && i < n_want; i++) same = ids[i] == want[i];
    if (!same) fail_msg("\"%.*s\" with %s", (int)len, s, json);
    dq_block_free(ids);
}

/* ----- BPE ----- */

static void bpe_json(char *out, size_t capacity, const vocabulary *v)
{
    int n =
        snprintf(out, capacity, "{\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"vocab\":{");
    for (int i = 0; i < v->n; i++)
        n += snprintf(out + n, capacity - (size_t)n, "%s\"%s\":%d", i ? "," : "", v->item[i].text,
                      i);
    n += snprintf(out + n, capacity - (size_t)n, "},\"merges\":[");
    for (int i = 0, any = 0; i < v->n; i++) {
        const token *t = &v->item[i];
        if (t->left < 0) continue;
        n += snprintf(out + n, capacity - (size_t)n, "%s[\"%s\",\"%s\"]", any++ ? "," : "",
                      v->item[t->left].text, v->item[t->right].text);
    }
    snprintf(out + n, capacity - (size_t)n, "]}}");
}

/* Merges rank in the order of their tokens. */
static size_t plain_bpe(int *ids, const vocabulary *v, const char *s, size_t len)
{
    size_t n = 0;
    for (size_t i = 0, used; i < len; i += used) {
        for (used = 1; i + used < len && ((uint8_t)s[i + used] & 0xC0) == 0x80; used++) continue;
        int id = find(v, s + i, used);
        ids[n++] = id < 0 ? 0 : id;
    }
    for (int k = 0; k < v->n; k++) {
        bool merged = false;
        for (size_t i = 0; i + 1 < n && !merged; i++) {
            if (v->item[k].left != ids[i] || v->item[k].right != ids[i + 1]) continue;
            ids[i] = k;
            memmove(ids + i + 1, ids + i + 2, (n - i - 2) * sizeof *ids);
            n--;
            merged = true;
        }
        if (merged) k = -1;
    }
    return n;
}

TEST(test_bpe)
{
    static char json[1 << 14];
    char s[MAX_TEXT];
    int want[MAX_TEXT];
    for (seed = 1; seed < 400000000; seed += 1000003) {
        vocabulary v;
        uint32_t begin = seed;
        make_vocabulary(&v, below(LETTERS - 1), below(30));
        bpe_json(json, sizeof json, &v);
        dq_tokenizer *t = given_tokenizer(json, strlen(json), NULL);
        for (int i = 0; i < 20; i++) {
            size_t len = make_text(s);
            check(t, json, s, len, want, plain_bpe(want, &v, s, len));
        }
        dq_tokenizer_free(t);
        seed = begin;
    }
}

/* ----- Unigram ----- */

static void unigram_json(char *out, size_t capacity, const vocabulary *v)
{
    int n = snprintf(out, capacity, "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[");
    for (int i = 0; i < v->n; i++)
        n += snprintf(out + n, capacity - (size_t)n, "%s[\"%s\",%.1f]", i ? "," : "",
                      v->item[i].text, v->item[i].score);
    snprintf(out + n, capacity - (size_t)n, "]}}");
}

typedef struct place {
    double score;
    size_t from;
    int id; /* -1: not reached */
} place;

static void offer(place *p, double score, size_t from, int id)
{
    if (p->id < 0 || score > p->score) *p = (place){score, from, id};
}

static size_t plain_unigram(int *ids, const vocabulary *v, const char *s, size_t len)
{
    place way[MAX_TEXT + 1];
    int back[MAX_TEXT];
    double lowest = 0;
    size_t n = 0, m = 0;
    for (int i = 0; i < v->n; i++) lowest = v->item[i].score < lowest ? v->item[i].score : lowest;
    for (size_t i = 0; i <= len; i++) way[i] = (place){0, 0, -1};
    for (size_t i = 0, used; i < len; i += used) {
        bool single = false;
        for (used = 1; i + used < len && ((uint8_t)s[i + used] & 0xC0) == 0x80; used++) continue;
        for (size_t k = 1; k <= len - i; k++) {
            int id = find(v, s + i, k);
            if (id < 0) continue;
            single |= k == used;
            offer(&way[i + k], way[i].score + v->item[id].score, i, id);
        }
        if (!single) offer(&way[i + used], way[i].score + lowest - 10, i, 0);
    }
    for (size_t i = len; i > 0; i = way[i].from) { /* a run of unknown ones is one */
        if (way[i].id != 0 || m == 0 || back[m - 1] != 0) back[m++] = way[i].id;
    }
    while (m > 0) ids[n++] = back[--m];
    return n;
}

TEST(test_unigram)
{
    static char json[1 << 14];
    char s[MAX_TEXT];
    int want[MAX_TEXT];
    for (seed = 2; seed < 400000000; seed += 1000003) {
        vocabulary v;
        uint32_t begin = seed;
        make_vocabulary(&v, below(LETTERS - 1), below(30));
        unigram_json(json, sizeof json, &v);
        dq_tokenizer *t = given_tokenizer(json, strlen(json), NULL);
        for (int i = 0; i < 20; i++) {
            size_t len = make_text(s);
            check(t, json, s, len, want, plain_unigram(want, &v, s, len));
        }
        dq_tokenizer_free(t);
        seed = begin;
    }
}

/* Some piece spans every place of the text: the window holds all of it. */
TEST(test_wide_window)
{
    enum { N = 3000000 };
    dq_err err = {0};
    int32_t *ids;
    int64_t n;
    char *s = malloc(N);
    const char json[] = "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",0],"
                        "[\"a\",-1],[\"aa\",-1.5],[\"aaa\",-2]]}}";
    dq_tokenizer *t = given_tokenizer(json, sizeof json - 1, NULL);
    assert_non_null(s);
    memset(s, 'a', N);
    assert_int_equal(dq_tokenizer_encode(t, s, N, 0, &ids, &n, NULL, NULL, &err), DQ_OK);
    assert_int_equal(n, N / 3);
    for (int64_t i = 0; i < n; i++) assert_int_equal(ids[i], 3);
    dq_block_free(ids);
    free(s);
    dq_tokenizer_free(t);
}

/* ----- tokens as text ----- */

static const char bytes_json[] =
    "{\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":true}],\"decoder\":null,"
    "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\","
    "\"prepend_scheme\":\"never\",\"split\":false},\"model\":{\"type\":\"Unigram\",\"unk_id\":1,"
    "\"byte_fallback\":true,\"vocab\":[[\"<s>\",0],[\"<unk>\",0],[\"<0xC3>\",0],[\"<0xA9>\",0],"
    "[\"\xE2\x96\x81x\",-1],[\"x\xE2\x96\x81\",-2],[\"x\",-3],[\"<0x41\",-9],[\"\",-9]]}}";

TEST(test_pieces)
{
    static const char *const want[] = {"<s>", "<unk>", "\xC3",  "\xA9", " x",
                                       "x ",  "x",     "<0x41", ""};
    dq_tokenizer *t = given_tokenizer(bytes_json, strlen(bytes_json), NULL);
    size_t len;
    for (int32_t i = 0; i < 9; i++) {
        const char *s = dq_tokenizer_piece(t, i, &len);
        assert_non_null(s);
        assert_int_equal(len, strlen(want[i]));
        assert_memory_equal(s, want[i], len);
    }
    dq_tokenizer_free(t);
}

TEST(test_decode)
{
    static const struct {
        unsigned flags;
        const char *want; /* no decoder: one space between tokens as the file writes them */
    } rows[] = {{0, "x <0xC3> \xE2\x96\x81x"}, {DQ_TOK_SPECIAL, "<s> x <0xC3> \xE2\x96\x81x"}};
    const int32_t ids[] = {0, -1, 6, 9, 2, INT32_MAX, 4};
    dq_err err = {0};
    dq_tokenizer *t = given_tokenizer(bytes_json, strlen(bytes_json), NULL);
    char *text;
    size_t len;
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(dq_tokenizer_decode(t, ids, 7, rows[i].flags, &text, &len, &err), DQ_OK);
        assert_int_equal(len, strlen(rows[i].want));
        assert_memory_equal(text, rows[i].want, len);
        dq_block_free(text);
    }
    assert_int_equal(dq_tokenizer_decode(t, ids, 0, 0, &text, &len, &err), DQ_OK);
    assert_int_equal(len, 0);
    dq_block_free(text);
    dq_tokenizer_free(t);
}

/* Each allocation fails once: DQ_RESOURCE, nothing lost (the sanitizer build looks). */
TEST(test_memory)
{
    dq_tokenizer *t = NULL;
    int32_t *ids = NULL;
    int64_t k, n = 0;
    char *text = NULL, long_text[2000];
    size_t len;
    memset(long_text, 'x', sizeof long_text);
    for (k = 1; !t; k++) {
        dq_err err = {0};
        dq_alloc_fail_at(k);
        dq_status status = dq_tokenizer_load(&t, bytes_json, sizeof bytes_json - 1, NULL, 0, &err);
        dq_alloc_fail_at(0);
        assert_int_equal(status, t ? DQ_OK : DQ_RESOURCE);
    }
    for (k = 1; !ids; k++) {
        dq_err err = {0};
        dq_alloc_fail_at(k);
        dq_status status =
            dq_tokenizer_encode(t, long_text, sizeof long_text, 0, &ids, &n, NULL, NULL, &err);
        dq_alloc_fail_at(0);
        assert_int_equal(status, ids ? DQ_OK : DQ_RESOURCE);
    }
    for (k = 1; !text; k++) {
        dq_err err = {0};
        dq_alloc_fail_at(k);
        dq_status status = dq_tokenizer_decode(t, ids, n, 0, &text, &len, &err);
        dq_alloc_fail_at(0);
        assert_int_equal(status, text ? DQ_OK : DQ_RESOURCE);
    }
    dq_block_free(text);
    dq_block_free(ids);
    dq_tokenizer_free(t);
}
