/* The file forms of the multiple-choice tasks: what each makes of a record, what it refuses, and the
 * files of labels beside them.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"
#include "tests/rigs/test_folder.h"

#include "tasks/tasks.c" /* what is private there */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct rig {
    dq_arena *a;
    dq_items items;
    dq_err err;
} rig;

static dq_status load_from(rig *x, const char *task, const char *path, const char *text,
                           int64_t limit)
{
    memset(x, 0, sizeof *x);
    x->a = given_arena();
    return dq_task_load(&x->items, given_task(task), path, text, strlen(text), limit, x->a,
                        &x->err);
}

/* "context|choice|choice*|...": the right choice has a star; contexts of choices stand before them. */
static void describe(char *out, size_t cap, const dq_item *item)
{
    size_t n = (size_t)snprintf(out, cap, "%s", item->ctx ? item->ctx : "");
    for (int i = 0; i < item->n_choices; i++) {
        const dq_choice *c = &item->choice[i];
        n += (size_t)snprintf(out + n, cap - n, "|%s%s%s%s", c->ctx ? c->ctx : "",
                              c->ctx ? ">" : "", c->text, item->gold == i ? "*" : "");
    }
}

#define ARC_1 "{\"id\":\"q\",\"question\":{\"stem\":\"Why?\",\"choices\":["
#define ARC_2 "{\"text\":\"sun\",\"label\":\"A\"},{\"text\":\"r\\u00e9d \",\"label\":\"B\"}"

static const struct {
    const char *task, *text, *want;
} good[] = {
    {"arc_easy", ARC_1 ARC_2 "]},\"answerKey\":\"B\"}",
     "Question: Why?\nAnswer:| sun| r\xc3\xa9"
     "d *"},
    {"arc_easy",
     "{\"question\":\"Why?\",\"choices\":{\"text\":[\"a\",\"b\",\"c\",\"d\",\"e\"],"
     "\"label\":[\"1\",\"2\",\"3\",\"4\",\"5\"]},\"answerKey\":\"4\"}",
     "Question: Why?\nAnswer:| a| b| c| d*| e"},
    {"arc_challenge", ARC_1 ARC_2 ",{\"text\":\"c\",\"label\":\"C\"}]},\"answerKey\":\"C\"}",
     "Question: Why?\nAnswer:| sun| r\xc3\xa9"
     "d | c*"},
    {"mc", "{\"ctx\":\"a+\",\"choices\":[\"b\",\"c\"],\"gold\":0,\"delimiter\":\"\"}", "a+|b*|c"},
    {"mc", "{\"ctx\":\"Q\",\"choices\":[\"b\",\"c\"],\"gold\":1,\"delimiter\":\"\\n\"}",
     "Q|\nb|\nc*"},
    {"openbookqa", ARC_1 ARC_2 "]},\"answerKey\":\" A\"}",
     "Why?| sun*| r\xc3\xa9"
     "d "},
    {"openbookqa",
     "{\"question_stem\":\"Fog is \",\"choices\":{\"text\":[\"a\",\"b\"],\"label\":[\"A\",\"B\"]},"
     "\"answerKey\":\"A\"}",
     "Fog is | a*| b"},
    {"boolq", "{\"question\":\"is it\",\"passage\":\"T -- P.\",\"idx\":0,\"label\":true}",
     "T -- P.\nQuestion: is it?\nAnswer:| no| yes*"},
    {"boolq", "{\"question\":\"is it\",\"passage\":\"P\",\"label\":\"false\"}",
     "P\nQuestion: is it?\nAnswer:| no*| yes"},
    {"boolq", "{\"question\":\"is it\",\"passage\":\"P\",\"label\":\"true\"}",
     "P\nQuestion: is it?\nAnswer:| no| yes*"},
    {"boolq", "{\"question\":\"is it\",\"passage\":\"P\",\"label\":1}",
     "P\nQuestion: is it?\nAnswer:| no| yes*"},
    {"boolq", "{\"question\":\"is it\",\"title\":\"T\",\"answer\":false,\"passage\":\"P.\"}",
     "T -- P.\nQuestion: is it?\nAnswer:| no*| yes"},
    {"piqa", "{\"goal\":\"dresser\",\"sol1\":\"one \",\"sol2\":\" two\",\"label\":1}",
     "Question: dresser\nAnswer:| one |  two*"},
    {"winogrande",
     "{\"sentence\":\"A met B so _ \\u00a0 left _. \",\"option1\":\"A\",\"option2\":\"B \","
     "\"answer\":\"2\"}",
     "|A met B so A> left _.|A met B so B > left _.*"},
    {"winogrande", "{\"sentence\":\"_\",\"option1\":\"A\",\"option2\":\"B\",\"answer\":1}",
     "|A> *|B> "},
    {"hellaswag",
     "{\"activity_label\":\"L\",\"ctx_a\":\"A.\",\"ctx_b\":\"\",\"endings\":[\"w\",\"x\",\"y\","
     "\"z\"],"
     "\"label\":\"2\"}",
     "L: A.| w| x| y*| z"},
};

TEST(every_form)
{
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        rig x;
        char got[512];
        load_from(&x, good[i].task, "data", good[i].text, 0);
        if (x.err.code != DQ_OK) fail_msg("%s: %s", good[i].text, x.err.text);
        assert_int_equal(x.items.n, 1);
        assert_null(x.items.labels_path);
        describe(got, sizeof got, &x.items.item[0]);
        assert_string_equal(got, good[i].want);
        for (int c = 0; c < x.items.item[0].n_choices; c++)
            assert_true(x.items.item[0].choice[c].points > 0);
    }
}

#define BOOLQ        "{\"title\":\"T\",\"question\":\"q\",\"passage\":\"P\",\"answer\":"
#define SECOND(text) "{\"goal\":\"g\",\"sol1\":\"a\",\"sol2\":\"b\",\"label\":0}\n\n" text

static const struct {
    const char *task, *text, *part;
} bad[] = {
    {"arc_easy", "", "data: holds no items (expected JSON lines {\"question\""},
    {"arc_easy", "{\"goal\":\"g\",\"sol1\":\"a\",\"sol2\":\"b\"}",
     "data: item 0, line 1: key \"question\" is missing (expected JSON lines"},
    {"piqa", "{\"question\":\"q\"}",
     "item 0, line 1: key \"goal\" is missing (expected JSON lines"},
    {"piqa", "[{\"goal\":\"g\"}]", "item 0, line 1: expected a JSON object (expected JSON lines"},
    {"piqa", "goal,sol1,sol2\n", "item 0, line 1: item: not valid JSON"},
    {"piqa", SECOND("{\"goal\":\"g\",\"sol1\":\"a\"}"), "item 1, line 3: key \"sol2\" is missing"},
    {"piqa", SECOND("{\"goal\":\"g\",\"sol1\":\"a\",\"sol2\":\"b\",\"label\":2}"),
     "item 1, line 3: key \"label\": expected 0 to 1, found 2"},
    {"piqa", SECOND("{\"goal\":\"g\",\"sol1\":\"a\",\"sol2\":\"b\",\"label\":\"x\"}"),
     "item 1, line 3: key \"label\": expected 0 to 1, found \"x\""},
    {"arc_easy", ARC_1 "]},\"answerKey\":\"A\"}",
     "key \"choices\": expected at least two choices, found 0"},
    {"arc_easy", "{\"question\":{\"stem\":\"Why?\"},\"answerKey\":\"A\"}",
     "\"choices\" is missing"},
    {"arc_easy", ARC_1 ARC_2 "]},\"answerKey\":\"C\"}",
     "key \"answerKey\": expected one of the labels A, B, found \"C\""},
    {"arc_easy", ARC_1 ARC_2 "]}}", "key \"answerKey\" is missing"},
    {"arc_easy", ARC_1 "{\"text\":\"sun\"},{\"text\":\"fog\"}]},\"answerKey\":\"A\"}",
     "key \"choices\": entry 0 lacks"},
    {"arc_easy", ARC_1 "{\"text\":\"sun\",\"label\":\"A\"},\"fog\"]},\"answerKey\":\"B\"}",
     "key \"choices\": entry 1 lacks"},
    {"arc_easy", ARC_1 "\"fog\",{\"text\":\"sun\",\"label\":\"A\"}]},\"answerKey\":\"A\"}",
     "key \"choices\": entry 1 is not a string"},
    {"openbookqa",
     "{\"question_stem\":\"F\",\"choices\":{\"text\":[\"a\",\"b\"],\"label\":[\"A\"]},"
     "\"answerKey\":\"A\"}",
     "key \"choices\": entry 1 lacks"},
    {"openbookqa", "{\"question\":\"F\",\"choices\":{}}", "key \"question_stem\" is missing"},
    {"boolq", "{\"question\":\"q\",\"passage\":\"P\"}", "key \"label\" is missing"},
    {"boolq", "{\"question\":\"q\",\"passage\":\"P\",\"answer\":true}", "key \"title\" is missing"},
    {"boolq", "{\"question\":\"q\",\"passage\":\"P\",\"label\":\"maybe\"}",
     "expected true or false, found \"maybe\""},
    {"boolq", "{\"question\":\"q\",\"passage\":\"P\",\"label\":2}",
     "key \"label\": expected 0 to 1, found 2"},
    {"boolq", BOOLQ "2}", "key \"answer\": expected 0 to 1, found 2"},
    {"boolq", BOOLQ "[]}", "key \"answer\": expected a boolean"},
    {"boolq", BOOLQ "\"maybe\"}", "key \"answer\": expected true or false, found \"maybe\""},
    {"boolq", "{\"question\":\"q\",\"label\":true}", "key \"passage\" is missing"},
    {"winogrande",
     "{\"sentence\":\"no blank\",\"option1\":\"A\",\"option2\":\"B\",\"answer\":\"1\"}",
     "key \"sentence\": has no blank"},
    {"winogrande", "{\"sentence\":\"_\",\"option1\":\"A\",\"option2\":\"B\",\"answer\":\"3\"}",
     "key \"answer\": expected 1 to 2, found \"3\""},
    {"winogrande", "{\"sentence\":\"_\",\"option1\":\"A\",\"answer\":\"1\"}",
     "key \"option2\" is missing"},
    {"hellaswag",
     "{\"activity_label\":\"L\",\"ctx_a\":\"A.\",\"ctx_b\":\"\",\"endings\":[],\"label\":0}",
     "key \"endings\": expected at least two choices, found 0"},
    {"hellaswag",
     "{\"activity_label\":\"L\",\"ctx_a\":\"A.\",\"ctx_b\":\"\",\"endings\":[\"a\"],\"label\":"
     "\"0\"}",
     "key \"endings\": expected at least two choices, found 1"},
    {"hellaswag",
     "{\"activity_label\":\"L\",\"ctx_a\":\"A.\",\"ctx_b\":\"\",\"endings\":[\"a\",\"b\"],"
     "\"label\":\"2\"}",
     "key \"label\": expected 0 to 1, found \"2\""},
    {"arc_easy",
     "{\"question\":{\"stem\":\"Q\",\"choices\":[{\"text\":\"a\",\"label\":\"A\"}]},\"answerKey\":"
     "\"A\"}",
     "key \"choices\": expected at least two choices, found 1"},
};

TEST(bad_records)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rig x;
        assert_int_equal(load_from(&x, bad[i].task, "data", bad[i].text, 0), DQ_DAMAGED);
        if (!strstr(x.err.text, bad[i].part))
            fail_msg("\"%s\" lacks \"%s\"", x.err.text, bad[i].part);
        if (strncmp(x.err.text, "data: ", 6) != 0) fail_msg("no path in \"%s\"", x.err.text);
    }
}

#define PIQA "{\"goal\":\"g\",\"sol1\":\"a\",\"sol2\":\"b\"}\n"
#define WINO "{\"sentence\":\"so _ won\",\"option1\":\"A\",\"option2\":\"B\"}\n"
#define WINO_EMPTY                                                                                 \
    "{\"sentence\":\"so _ won\",\"option1\":\"A\",\"option2\":\"B\",\"answer\":\"\"}\n"

static const struct {
    const char *task, *text, *labels; /* NULL: no such file */
    int64_t limit;
    dq_status code;
    const char *want; /* the answers, or a part of the message */
} labelled[] = {
    {"piqa", PIQA PIQA "\n" PIQA, "1\n0\r\n1\n", 0, DQ_OK, "101"},
    {"piqa", PIQA PIQA PIQA, "1\n0\n1", 2, DQ_OK, "10"},
    {"winogrande", WINO WINO_EMPTY, "2\n1\n", 0, DQ_OK, "10"},
    {"winogrande", WINO WINO, NULL, 0, DQ_FILE, "x-labels.lst: is missing; the items of "},
    {"piqa", PIQA, NULL, 0, DQ_FILE, "x-labels.lst: is missing; the items of "},
    {"piqa", PIQA PIQA, "1\n", 0, DQ_DAMAGED,
     "x-labels.lst: line 1: the labels end (expected one for each of 2 items)"},
    {"piqa", PIQA PIQA PIQA, "1\n0\n", 1, DQ_DAMAGED, "x-labels.lst: line 2: the labels end"},
    {"piqa", PIQA PIQA, "1\n0\n\n1\n", 0, DQ_DAMAGED,
     "x-labels.lst: line 4: is after the labels of all 2 items"},
    {"piqa", PIQA PIQA, "1\n2\n", 0, DQ_DAMAGED,
     "x-labels.lst: item 1, line 2: expected a label from 0 to 1, found \"2\""},
    {"piqa", PIQA, "-1\n", 0, DQ_DAMAGED, "expected a label from 0 to 1, found \"-1\""},
    {"winogrande", WINO, "0\n", 0, DQ_DAMAGED, "expected a label from 1 to 2, found \"0\""},
    {"winogrande", WINO, "", 0, DQ_DAMAGED, "line 0: the labels end"},
};

TEST(label_files)
{
    for (size_t i = 0; i < sizeof labelled / sizeof *labelled; i++) {
        rig x;
        char got[8] = "";
        remove(at("x-labels.lst"));
        if (labelled[i].labels)
            put_bytes(at("x-labels.lst"), labelled[i].labels, strlen(labelled[i].labels));
        dq_status s =
            load_from(&x, labelled[i].task, at("x.jsonl"), labelled[i].text, labelled[i].limit);
        if (s != labelled[i].code) fail_msg("%zu: %d %s", i, (int)s, x.err.text);
        for (int64_t k = 0; s == DQ_OK && k < x.items.n; k++)
            got[k] = (char)('0' + x.items.item[k].gold);
        if (s == DQ_OK) {
            assert_string_equal(got, labelled[i].want);
            assert_string_equal(x.items.labels_path, at("x-labels.lst"));
            assert_int_equal(x.items.labels_len, strlen(labelled[i].labels));
        } else if (!strstr(x.err.text, labelled[i].want)) {
            fail_msg("\"%s\" lacks \"%s\"", x.err.text, labelled[i].want);
        }
    }
}

TEST(paths_of_labels)
{
    dq_err err = {0};
    dq_arena *a = given_arena();
    assert_string_equal(dq_task_labels_path("a/valid.jsonl", a, &err), "a/valid-labels.lst");
    assert_string_equal(dq_task_labels_path("valid.json", a, &err), "valid.json-labels.lst");
    assert_string_equal(dq_task_labels_path(".jsonl", a, &err), ".jsonl-labels.lst");
}

FIXTURES(folder_begin, folder_end)

/* What a record names, a passage, or the content of an item: what others of equal content depend on. */
TEST(clusters)
{
    static const char own[] =
        "{\"ctx\":\"a\",\"choices\":[\"b\",\"c\"],\"gold\":0}\n"
        "{\"gold\":1,\"ctx\":\" a\\n\",\"choices\":[\"c \",\"b\"],\"delimiter\":\"\",\"id\":7}\n"
        "{\"ctx\":\"d\",\"choices\":[\"b\",\"c\"],\"gold\":0,\"cluster\":\"x\"}\n"
        "{\"ctx\":\"e\",\"choices\":[\"b\",\"c\"],\"gold\":0,\"cluster\":\"x\"}\n"
        "{\"ctx\":\"f\",\"choices\":[\"b\",\"c\"],\"gold\":0,\"cluster\":3}\n";
    static const char asked[] = "{\"passage\":\"P\",\"question\":\"one\",\"label\":0}\n"
                                "{\"passage\":\" P \",\"question\":\"two\",\"label\":1}\n"
                                "{\"passage\":\"R\",\"question\":\"two\",\"label\":1}\n";
    rig x;
    assert_int_equal(load_from(&x, "mc", "f", own, 0), DQ_OK);
    const dq_item *item = x.items.item;
    assert_true(item[0].cluster == item[1].cluster && item[2].cluster == item[3].cluster);
    assert_true(item[0].cluster != item[2].cluster && item[2].cluster != item[4].cluster);
    assert_true(item[0].content == item[1].content && item[2].content != item[3].content);
    assert_int_equal(load_from(&x, "boolq", "f", asked, 0), DQ_OK);
    item = x.items.item;
    assert_true(item[0].cluster == item[1].cluster && item[1].cluster != item[2].cluster);
    assert_int_equal(
        load_from(&x, "mc", "f",
                  "{\"ctx\":\"a\",\"choices\":[\"b\",\"c\"],\"gold\":0,\"cluster\":[]}", 0),
        DQ_DAMAGED);
}

/* White space on both sides of where a delimiter or a choice begins. */
TEST(two_spaces)
{
    static const struct {
        const char *ctx, *delimiter, *choice;
        bool two;
    } all[] = {{"a", " ", "b", false},  {"a", " ", " b", true}, {"a ", "", "b", false},
               {"a ", "", " b", true},  {"a ", " ", "b", true}, {"a", "", " b", false},
               {"a", "\\n", "b", false}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char line[200];
        rig x;
        snprintf(line, sizeof line,
                 "{\"ctx\":\"%s\",\"choices\":[\"x\",\"%s\"],\"gold\":0,\"delimiter\":\"%s\"}",
                 all[i].ctx, all[i].choice, all[i].delimiter);
        assert_int_equal(load_from(&x, "mc", "f", line, 0), DQ_OK);
        assert_int_equal(dq_item_has_two_spaces(&x.items.item[0]), all[i].two);
    }
}

/* A label is digits: what ends a C string is not white space around it. */
TEST(test_index_of)
{
    static const struct {
        const char *text;
        size_t len;
        int want;
    } labels[] = {{"1", 1, 1},
                  {" 1\r\n", 4, 1},
                  {"\n1", 2, 1},
                  {"1\0", 2, -1},
                  {"\0"
                   "1",
                   2, -1},
                  {"", 0, -1},
                  {"\0", 1, -1},
                  {"4", 1, -1}};
    for (size_t i = 0; i < sizeof labels / sizeof labels[0]; i++)
        assert_int_equal(index_of(labels[i].text, labels[i].len, 0, 4), labels[i].want);
}
