/* Files of own items and of HellaSwag, its clean-up, the split of context and choice into ids, text
 * windows. The other tasks: test_task_forms.c.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "base/text.h"
#include "tasks/documents.h"
#include "tasks/tasks.c" /* what is private there */

#include <stdio.h>
#include <string.h>

enum { BOS = 256, EOS = 257, SPACE_A = 258, VOCAB = 259 };

/* A byte-level vocabulary without merges, except that " a" is one token. */
static dq_tokenizer *make_tokenizer(bool with_bos, const char *config)
{
    static char json[65536];
    size_t n = (size_t)snprintf(
        json, sizeof json,
        "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":["
        "{\"id\":256,\"content\":\"<bos>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
        "\"normalized\":false,\"special\":true},"
        "{\"id\":257,\"content\":\"<eos>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
        "\"normalized\":false,\"special\":true}],\"normalizer\":null,\"pre_tokenizer\":{\"type\":"
        "\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false},"
        "\"post_processor\":%s,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
        "\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
        "\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
        "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":{",
        with_bos ? "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
                   "\"<bos>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],"
                   "\"pair\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"Sequence\":{\"id\":"
                   "\"B\",\"type_id\":1}}],\"special_tokens\":{\"<bos>\":{\"id\":\"<bos>\","
                   "\"ids\":[256],\"tokens\":[\"<bos>\"]}}}"
                 : "null");
    char space[2];
    int space_len = 0;
    for (int b = 0; b < 256; b++) {
        char c[2];
        int len = (int)dq_utf8_of_byte(c, (uint8_t)b);
        bool escape = c[0] == '"' || c[0] == '\\';
        if (b == ' ') {
            memcpy(space, c, 2);
            space_len = len;
        }
        n += (size_t)snprintf(json + n, sizeof json - n, "\"%s%.*s\":%d,", escape ? "\\" : "", len,
                              c, b);
    }
    n += (size_t)snprintf(json + n, sizeof json - n,
                          "\"<bos>\":256,\"<eos>\":257,\"%.*sa\":258},\"merges\":[[\"%.*s\",\"a\"]]"
                          "}}",
                          space_len, space, space_len, space);
    return given_tokenizer(json, n, config);
}

static const char config[] = "{\"bos_token\": \"<bos>\", \"eos_token\": \"<eos>\"}";

typedef struct rig {
    dq_arena *a;
    dq_items items;
    dq_err err;
} rig;

static dq_status load(rig *x, const char *task, const char *text, int64_t limit)
{
    memset(x, 0, sizeof *x);
    x->a = given_arena();
    return dq_task_load(&x->items, given_task(task), "data", text, strlen(text), limit, x->a,
                        &x->err);
}

static void check_choice(const dq_item *item, int c, const char *want, int64_t points)
{
    assert_string_equal(item->choice[c].text, want);
    assert_int_equal(item->choice[c].len, strlen(want));
    assert_int_equal(item->choice[c].points, points);
}

TEST(test_mc)
{
    rig x;
    const char text[] = "{\"ctx\": \"One\", \"choices\": [\"a\", \"b\\u00e9\"], \"gold\": 1}\n"
                        "\n"
                        "{\"id\": 7, \"gold\": 0, \"ctx\": \"\", \"choices\": [\" x\", \"\"]}";
    assert_int_equal(load(&x, "mc", text, 0), DQ_OK);
    assert_int_equal(x.items.n, 2);
    assert_string_equal(x.items.item[0].ctx, "One");
    assert_int_equal(x.items.item[0].gold, 1);
    assert_int_equal(x.items.item[0].n_choices, 2);
    check_choice(&x.items.item[0], 0, " a", 1);
    check_choice(&x.items.item[0], 1, " b\xc3\xa9", 2);
    check_choice(&x.items.item[1], 0, "  x", 2);
    assert_int_equal(x.items.item[1].line, 3);
    assert_int_equal(load(&x, "mc", text, 1), DQ_OK);
    assert_int_equal(x.items.n, 1);
}

static void refused(const char *task, const char *text, dq_status code, const char *part)
{
    rig x;
    assert_int_equal(load(&x, task, text, 0), code);
    if (!strstr(x.err.text, part)) fail_msg("\"%s\" lacks \"%s\"", x.err.text, part);
    if (strncmp(x.err.text, "data: ", 6) != 0) fail_msg("no path in \"%s\"", x.err.text);
}

TEST(test_bad_files)
{
    const char good[] = "{\"ctx\": \"c\", \"choices\": [\"a\", \"b\"], \"gold\": 0}\n";
    char two[256];
    refused("mc", "", DQ_DAMAGED, "no items");
    refused("mc", "\n\n", DQ_DAMAGED, "no items");
    snprintf(two, sizeof two, "%s%s", good,
             "{\"ctx\": \"c\", \"choices\": [\"a\", \"b\"], \"gold\": 2}\n");
    refused("mc", two, DQ_DAMAGED, "line 2: key \"gold\": expected 0 to 1, found 2");
    snprintf(two, sizeof two, "%s%s", good, "[1]\n");
    refused("mc", two, DQ_DAMAGED, "line 2");
    snprintf(two, sizeof two, "%s%s", good, "{\"ctx\": ");
    refused("mc", two, DQ_DAMAGED, "line 2");
    snprintf(two, sizeof two, "%s%s", good, "{\"ctx\": \"c\", \"choices\": [\"\"], \"gold\": 0}\n");
    refused("mc", two, DQ_DAMAGED,
            "item 1, line 2: key \"choices\": expected at least two choices, found 1");
    refused("mc", "{\"ctx\": \"c\", \"choices\": [], \"gold\": 0}", DQ_DAMAGED, "choices");
    refused("mc", "{\"ctx\": \"c\", \"choices\": \"a\", \"gold\": 0}", DQ_DAMAGED, "choices");
    refused("mc", "{\"ctx\": \"c\", \"choices\": [1, 2], \"gold\": 0}", DQ_DAMAGED, "entry 0");
    refused("mc", "{\"choices\": [\"a\", \"b\"], \"gold\": 0}", DQ_DAMAGED, "\"ctx\" is missing");
    refused("hellaswag", "c\n0\na\nb\nc\n", DQ_DAMAGED, "5 lines");
    refused("hellaswag", "c\n4\na\nb\nc\nd\n", DQ_DAMAGED, "line 2");
    refused("hellaswag", "c\r\n4\r\na\r\nb\r\nc\r\nd\r\n", DQ_DAMAGED, "found \"4\"");
    dq_err err = {0};
    assert_null(dq_task_find("arc", given_arena(), &err));
    assert_int_equal(err.code, DQ_USAGE);
    assert_non_null(strstr(err.text, "mc, hellaswag, arc_easy"));
}

/* Windows puts U+000D before line ends and a byte order mark before files. Neither is text. */
TEST(test_line_ends_and_marks)
{
#define MARK "\xef\xbb\xbf"
#define OFFICIAL                                                                                   \
    "{\"activity_label\": \"L\", \"ctx_a\": \"c\", \"ctx_b\": \"\", \"label\": 1, \"endings\": "   \
    "[\"a\", \"b\"]}"
    static const struct {
        const char *task, *text, *ctx, *last;
        int gold;
        int64_t line;
    } files[] = {
        {"hellaswag", "c\r\n1\r\na\r\nb\r\nd\r\ne\r\n", "c", " e", 1, 1},
        {"hellaswag", MARK "c\n1\na\nb\nd\r\r\ne", "c", " e", 1, 1},
        {"hellaswag", "\n \r\n" OFFICIAL "\r\n", "L: c ", " b", 1, 3},
        {"hellaswag", MARK OFFICIAL, "L: c ", " b", 1, 1},
        {"hellaswag", MARK "\n" OFFICIAL "\n", "L: c ", " b", 1, 2},
        {"mc", MARK "{\"ctx\": \"c\", \"choices\": [\"a\", \"b\"], \"gold\": 1}\r\n", "c", " b", 1,
         1},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        rig x;
        load(&x, files[i].task, files[i].text, 0);
        assert_string_equal(x.err.text, "");
        const dq_item *item = &x.items.item[0];
        assert_int_equal(x.items.n, 1);
        assert_int_equal(strncmp(item->ctx, files[i].ctx, 1), 0);
        assert_string_equal(item->choice[item->n_choices - 1].text, files[i].last);
        assert_int_equal(item->gold, files[i].gold);
        assert_int_equal(item->line, files[i].line);
    }
    rig x;
    load(&x, "hellaswag", "c\n1\na\nb\nd\r\r\ne", 0); /* one U+000D goes */
    check_choice(&x.items.item[0], 2, " d\r", 2);
}

TEST(test_hellaswag_lines)
{
    rig x;
    assert_int_equal(
        load(&x, "hellaswag", "A man. he\n2\none\n two\nx [y]\nfour\nB\n0\n1\n2\n3\n4", 0), DQ_OK);
    assert_int_equal(x.items.n, 2);
    assert_string_equal(x.items.item[0].ctx, "A man. he");
    assert_int_equal(x.items.item[0].gold, 2);
    check_choice(&x.items.item[0], 1, "  two", 4);
    check_choice(&x.items.item[0], 2, " x [y]", 5);
    assert_int_equal(x.items.item[1].line, 7);
    assert_int_equal(load(&x, "hellaswag", "A\xff\n0\n1\n2\n3\n4\n", 0), DQ_OK);
    assert_string_equal(x.items.item[0].ctx, "A\xef\xbf\xbd");
    assert_int_equal(x.items.n_bad, 1);
    assert_int_equal(x.items.first_bad, 1);
}

TEST(test_hellaswag_json)
{
    rig x;
    const char text[] =
        "{\"activity_label\": \"Roof shingle removal\", \"ctx_a\": \"A man is sitting on a roof.\","
        " \"ctx_b\": \"he\", \"ctx\": \"unused\", \"label\": \"3\", \"endings\": [\"is\", "
        "\"[substeps] Add soap.\", \"Leave it [step] overnight.\", \"a\"]}\n"
        "{\"activity_label\": \"Home and Garden\", \"ctx_a\": \"[header] How to clean a pan [title]"
        " Soak it. [step] Fill the pan with water.\", \"ctx_b\": \"\", \"label\": 0, "
        "\"endings\": [\"x\", \"y\", \"z\", \"w\"]}\n";
    load(&x, "hellaswag", text, 0);
    assert_string_equal(x.err.text, "");
    assert_string_equal(x.items.item[0].ctx,
                        "Roof shingle removal: A man is sitting on a roof. He");
    check_choice(&x.items.item[0], 1, "  Add soap.", 10);
    check_choice(&x.items.item[0], 2, " Leave it overnight.", 19);
    assert_int_equal(x.items.item[0].gold, 3);
    assert_string_equal(x.items.item[1].ctx, "Home and Garden: How to clean a pan. Soak it. Fill "
                                             "the pan with water.");
}

TEST(test_cleaning)
{
    dq_err err = {0};
    dq_arena *a = given_arena();
    const char *pairs[][2] = {
        {"\xc2\xa0 a  b\x1f\n", "a b"}, /* white space as Python strips it */
        {"a    b   c", "a  b  c"},      /* one pass over double spaces */
        {"a [x] b [y", "a b [y"},       /* an open bracket stays */
        {"a [x\ny] b", "a [x\ny] b"},   /* brackets do not cross lines */
        {"[a [b] c] d", " c] d"},       /* shortest match */
        {"", ""},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        assert_string_equal(clean_hellaswag(a, pairs[i][0], &err), pairs[i][1]);
}

TEST(test_capitals)
{
    static const char *const pairs[][2] = {{"the iPhone user", "L: c The iphone user"},
                                           {"\xc3\xa9T\xc3\x89", "L: c \xc3\x89t\xc3\xa9"},
                                           {"", "L: c"}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        rig x;
        char text[200];
        snprintf(text, sizeof text,
                 "{\"activity_label\": \"L\", \"ctx_a\": \"c\", \"ctx_b\": \"%s\", "
                 "\"label\": 1, \"endings\": [\"a\", \"b\"]}",
                 pairs[i][0]);
        assert_int_equal(load(&x, "hellaswag", text, 0), DQ_OK);
        assert_string_equal(x.items.item[0].ctx, pairs[i][1]);
    }
}

/* What encoding one item gives, as text: "ids of context | ids of choice". */
static void check_ids(const dq_tokenizer *t, dq_bos bos, int64_t max_len, const char *ctx,
                      const char *choice, const char *want)
{
    dq_err err = {0};
    dq_requests q;
    char got[512] = "";
    dq_choice c = {.text = choice, .len = strlen(choice)};
    dq_item item = {.ctx = ctx, .ctx_len = strlen(ctx), .choice = &c, .n_choices = 1, .line = 1};
    dq_items items = {.item = &item, .n = 1};
    dq_arena *a = given_arena();
    dq_items_encode(&q, &items, t, bos, max_len, VOCAB, a, &err);
    if (err.code != DQ_OK) {
        snprintf(got, sizeof got, "%d", (int)err.code);
    } else {
        const dq_request *r = &q.req[0];
        for (int64_t i = 0; i < r->n_ctx + r->n_cont; i++) {
            size_t n = strlen(got);
            snprintf(got + n, sizeof got - n, "%s%d ", i == r->n_ctx ? "| " : "",
                     (int)(i < r->n_ctx ? r->ctx[i] : r->cont[i - r->n_ctx]));
        }
        if (r->truncated) strcat(got, "cut");
        assert_int_equal(q.n_truncated, r->truncated);
    }
    assert_string_equal(got, want);
}

TEST(test_split)
{
    dq_tokenizer *t = make_tokenizer(true, config), *bare = make_tokenizer(false, NULL);
    check_ids(t, DQ_BOS_AUTO, 99, "x", " ab", "256 120 | 258 98 ");
    check_ids(t, DQ_BOS_OFF, 99, "x", " ab", "120 | 258 98 ");
    check_ids(bare, DQ_BOS_AUTO, 99, "x", " ab", "120 | 258 98 ");
    check_ids(bare, DQ_BOS_ON, 99, "x", " ab", "4");
    /* white space at the end of the context moves: "x" + "  ab" */
    check_ids(t, DQ_BOS_AUTO, 99, "x ", " ab", "256 120 | 32 258 98 ");
    check_ids(t, DQ_BOS_AUTO, 99, "x\n", "b", "256 120 | 10 98 ");
    /* a text that spells BOS gets no second one */
    check_ids(t, DQ_BOS_AUTO, 99, "<bos>x", " b", "256 120 | 32 98 ");
    /* without a context the prefix id stands in; the first id does if it is the prefix */
    check_ids(t, DQ_BOS_AUTO, 99, "", " ab", "256 | 258 98 ");
    check_ids(t, DQ_BOS_AUTO, 99, " ", " ab", "256 | 32 258 98 ");
    check_ids(t, DQ_BOS_AUTO, 99, "", "<bos>b", "256 | 98 ");
    check_ids(bare, DQ_BOS_AUTO, 99, "", " ab", "4");
    /* max_len + 1 tokens stay: the last one is not fed */
    check_ids(t, DQ_BOS_AUTO, 3, "xyz", " ab", "121 122 | 258 98 cut");
    check_ids(t, DQ_BOS_AUTO, 5, "xyz", " ab", "256 120 121 122 | 258 98 ");
    check_ids(t, DQ_BOS_AUTO, 2, "xyz", "bcd", "4");
    check_ids(t, DQ_BOS_AUTO, 99, "x", "", "4");
    dq_tokenizer_free(t);
    dq_tokenizer_free(bare);
}

/* Where a merge crosses the boundary, ids are counted, not matched: C ++ W[|C|:]. */
TEST(test_merge_across)
{
    dq_tokenizer *t = make_tokenizer(false, config);
    dq_err err = {0};
    check_ids(t, DQ_BOS_AUTO, 99, "x y", "a", "120 32 121 | 97 ");
    check_ids(t, DQ_BOS_AUTO, 99, "x", "a", "120 | 97 ");
    dq_requests q;
    dq_choice c = {.text = "ab", .len = 2};
    dq_item item = {.ctx = "x", .ctx_len = 1, .choice = &c, .n_choices = 1, .line = 12};
    dq_items items = {.item = &item, .n = 1};
    dq_arena *a = given_arena();
    assert_int_equal(dq_items_encode(&q, &items, t, DQ_BOS_AUTO, 99, 98, a, &err), DQ_MISMATCH);
    assert_non_null(strstr(err.text, "item 0, line 12: "));
    dq_tokenizer_free(t);
}

/* Choices with contexts of their own, of which one ends in white space. */
TEST(test_own_contexts)
{
    dq_tokenizer *t = make_tokenizer(true, config);
    dq_err err = {0};
    dq_requests q;
    const dq_choice c[3] = {{.text = " ab", .len = 3, .ctx = "x", .ctx_len = 1},
                            {.text = " ab", .len = 3, .ctx = "yz ", .ctx_len = 3},
                            {.text = " ab", .len = 3, .ctx = "", .ctx_len = 0}};
    const dq_item item = {.choice = c, .n_choices = 3, .line = 1};
    const dq_items items = {.item = &item, .n = 1};
    const int64_t want[3][2] = {{2, 2}, {3, 3}, {1, 2}}; /* n_ctx, n_cont */
    dq_arena *a = given_arena();
    assert_int_equal(dq_items_encode(&q, &items, t, DQ_BOS_AUTO, 99, VOCAB, a, &err), DQ_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(q.req[i].n_ctx, want[i][0]);
        assert_int_equal(q.req[i].n_cont, want[i][1]);
    }
    dq_tokenizer_free(t);
}

static dq_status windows(dq_windows *w, dq_scheme scheme, const dq_tokenizer *t, const char *text,
                         dq_bos bos, int64_t ctx, int64_t limit, dq_arena *a, dq_err *err)
{
    const dq_window_spec spec = {
        .scheme = scheme, .n_ctx = ctx, .limit = limit, .bos = bos, .vocab = VOCAB};
    dq_docs docs = {0};
    assert_int_equal(dq_documents_add(&docs, "-", text, strlen(text), a, err), DQ_OK);
    return dq_windows_make(w, t, &docs, &spec, a, err);
}

TEST(test_windows)
{
    dq_tokenizer *t = make_tokenizer(true, config);
    dq_err err = {0};
    dq_arena *a = given_arena();
    dq_windows w;
    const char text[] = "bcdefghijklmnopqrst"; /* 19 tokens and BOS */
    assert_int_equal(windows(&w, DQ_WINDOW_CHUNK, t, text, DQ_BOS_AUTO, 8, 0, a, &err), DQ_OK);
    assert_int_equal(w.n, 2);
    assert_int_equal(w.n_ids, 20);
    assert_int_equal(w.n_values, 6);
    assert_int_equal(w.win[1].first, 4);
    assert_int_equal(w.win[1].value, 3);
    assert_int_equal(dq_window_scored(&w.win[1]), 3);
    assert_int_equal(w.win[0].ids[0], BOS);
    assert_int_equal(w.win[0].ids[1], 'b');
    assert_int_equal(w.win[1].ids[0], BOS); /* overwritten, not inserted */
    assert_int_equal(w.win[1].ids[1], 'j');
    assert_int_equal(windows(&w, DQ_WINDOW_CHUNK, t, text, DQ_BOS_OFF, 8, 1, a, &err), DQ_OK);
    assert_int_equal(w.n, 1);
    assert_int_equal(w.win[0].ids[0], 'b');
    assert_int_equal(windows(&w, DQ_WINDOW_CHUNK, t, text, DQ_BOS_AUTO, 11, 0, a, &err),
                     DQ_MISMATCH);
    assert_int_equal(err.remedy[0].code, DQ_REMEDY_CTX);
    assert_int_equal(err.remedy[0].number[0], 10);
    dq_err none = {0};
    assert_int_equal(windows(&w, DQ_WINDOW_CHUNK, t, "", DQ_BOS_AUTO, 8, 0, a, &none), DQ_DAMAGED);
    dq_err fine = {0}; /* with BOS as context and as target */
    assert_int_equal(windows(&w, DQ_WINDOW_ROLLING, t, "a b c", DQ_BOS_AUTO, 4, 0, a, &fine),
                     DQ_OK);
    assert_int_equal(w.n_values, 6);
    assert_int_equal(w.win[0].ids[0], BOS);
    assert_int_equal(w.win[0].ids[1], BOS);
    assert_int_equal(w.n_words, 3);
    assert_int_equal(w.bytes, 5);
    assert_int_equal(w.doc[0].n_before, 1);
    dq_tokenizer_free(t);
}
