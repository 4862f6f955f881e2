/* Answers in generated text: what Python's re finds with gsm8k's patterns, and the verdicts on it.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "tasks/answers.c" /* what is private there */

#include <stdio.h>
#include <string.h>

/* Text; strict and last match; both cleaned. NULL: none. */
static const struct {
    const char *text, *strict, *strict_clean, *last, *last_clean;
} found[] = {
    {"So 3 + 4 = 7.\n#### 7", "7", "7", "7", "7"},
    {"#### 1,234", "1,234", "1234", "1,234", "1234"},
    {"#### -12.5", "-12.5", "-12.5", "-12.5", "-12.5"},
    {"#### $5 #### 6", "6", "6", "6", "6"},
    {"#### x", NULL, NULL, NULL, NULL},
    {"####7", NULL, NULL, "7", "7"},
    {"#### 7\n#### 8", "7", "7", "8", "8"},
    {"#### 5.", "5.", "5", "5.", "5"},
    {"#### ,", ",", "", NULL, NULL},
    {"##### 9", "9", "9", "9", "9"},
    {"#### -", NULL, NULL, NULL, NULL},
    {"#### --4", NULL, NULL, "-4", "-4"},
    {"", NULL, NULL, NULL, NULL},
    {"no digits", NULL, NULL, NULL, NULL},
    {"5", NULL, NULL, "5", "5"},
    {"it costs $12.", NULL, NULL, "$12.", "12"},
    {"$ 5", NULL, NULL, "5", "5"},
    {"a - b", NULL, NULL, NULL, NULL},
    {"3-4", NULL, NULL, "-4", "-4"},
    {"10--20", NULL, NULL, "-20", "-20"},
    {"1.", NULL, NULL, "1.", "1"},
    {"...", NULL, NULL, "...", ".."},
    {"12, 13.", NULL, NULL, "13.", "13"},
    {"$1,000.00 in all.", NULL, NULL, "$1,000.00", "1000.00"},
    {"x=5,y", NULL, NULL, "5,", "5"},
    {"-$30", NULL, NULL, "-$30", "-30"},
    {"9 . 9", NULL, NULL, "9", "9"},
    {"2e5", NULL, NULL, "5", "5"},
    {"#### 18.00", "18.00", "18.00", "18.00", "18.00"},
    {"50% of 10 is 5 dollars", NULL, NULL, "5", "5"},
    {"#### 3 4", "3", "3", "4", "4"},
    {"-.5", NULL, NULL, "-.5", "-.5"},
    {"$", NULL, NULL, NULL, NULL},
    {"$$", NULL, NULL, "$$", ""},
    {"- 8", NULL, NULL, "8", "8"},
    {"#### 1/2", "1", "1", "2", "2"},
    {"\xd9\xa3", NULL, NULL, NULL, NULL}, /* an Arabic digit */
    {"\xe2\x88\x92"
     "7",
     NULL, NULL, "7", "7"}, /* a minus sign that is none of ASCII's */
};

static void expect_span(dq_span got, const char *want, const char *want_clean, dq_arena *a)
{
    dq_err err = {0};
    if (!want) {
        assert_null(got.s);
        return;
    }
    assert_int_equal(got.len, strlen(want));
    assert_memory_equal(got.s, want, got.len);
    assert_string_equal(clean(got, a, &err), want_clean);
}

TEST(test_found)
{
    dq_arena *a = given_arena();
    for (size_t i = 0; i < sizeof found / sizeof found[0]; i++) {
        const size_t n = strlen(found[i].text);
        expect_span(strict_of(found[i].text, n), found[i].strict, found[i].strict_clean, a);
        expect_span(last_number(found[i].text, n), found[i].last, found[i].last_clean, a);
    }
    /* Only len bytes are read. */
    expect_span(last_number("12345", 3), "123", "123", a);
    expect_span(strict_of("#### 12345", 6), "1", "1", a);
    assert_null(strict_of("#### 1", 5).s);
}

static const char *const cleaned[][2] = {
    {"a\n#### 18", "18"},
    {"#### 1,000", "1000"},
    {"x #### 2 y #### 3.", "3"},
    {"18", "18"},
    {"576.0", "576.0"},
    {"18.", "18"},
    {"a.\n", "a\n"},
    {"$1,2.", "12"},
    {"#### 18.\n", "18\n"},
    {"...", ".."},
    {"a\n.b", "a\n.b"},
    {"#### ", ""},
    {"3.\n\n", "3.\n\n"},
    {"######## 5", "5"},
    {"####, 5", "5"},
    {"", ""},
    {".", ""},
    {"\n", "\n"},
};

TEST(test_cleaned)
{
    dq_arena *a = given_arena();
    dq_err err = {0};
    for (size_t i = 0; i < sizeof cleaned / sizeof cleaned[0]; i++) {
        const dq_span s = {cleaned[i][0], strlen(cleaned[i][0])};
        assert_string_equal(clean(s, a, &err), cleaned[i][1]);
    }
}

/* Records; the gold answer, or NULL and part of the message. */
static const char *const golds[][3] = {
    {"{\"question\":\"q\",\"answer\":\"It is 9 + 9 = 18.\\n#### 18\"}", "18", ""},
    {"{\"answer\":\"#### 1,080\"}", "1080", ""},
    {"{\"answer\":\"#### 5.0\"}", "5.0", ""}, /* as lm-eval has it */
    {"{\"answer\":\"576.0\"}", "576", ""},
    {"{\"answer\":\"1,576.50\"}", "1576.5", ""},
    {"{\"answer\":\"-3.0\"}", "-3", ""},
    {"{\"answer\":\"0.0\"}", "0", ""},
    {"{\"answer\":\"100\"}", "100", ""},
    {"{\"answer\":\"half. no 1.0\"}", "half. no 1.0", ""},
    {"{\"Answer\":145.0}", "145", ""},
    {"{\"Answer\":0.1}", "0.1", ""},
    {"{\"Answer\":-12}", "-12", ""},
    {"{\"Answer\":\"7\",\"answer\":8}", "8", ""},
    {"{\"question\":\"q\"}", NULL, "expected an \"answer\" (or \"Answer\")"},
    {"{\"answer\":true}", NULL, "text or a number"},
    {"{\"answer\":\"\"}", NULL, "is empty"},
    {"{\"answer\":\"a #### \"}", NULL, "is empty"},
};

TEST(test_gold)
{
    dq_arena *a = given_arena();
    for (size_t i = 0; i < sizeof golds / sizeof golds[0]; i++) {
        dq_err err = {0};
        json_t *record = given_document(golds[i][0]);
        const char *gold = NULL;
        const json_t *value = json_object_get(record, "answer");
        dq_answer_gold(&gold, value ? value : json_object_get(record, "Answer"), a, &err);
        json_decref(record);
        assert_int_equal(err.code, golds[i][1] ? DQ_OK : DQ_DAMAGED);
        if (golds[i][1])
            assert_string_equal(gold, golds[i][1]);
        else
            assert_non_null(strstr(err.text, golds[i][2]));
    }
}

static const struct {
    const char *text, *gold;
    bool strict, flexible, value;
} judged[] = {
    {"2 + 2 = 4\n#### 4", "4", true, true, true},
    {"2 + 2 = 4. The answer is 4.", "4", false, true, true},
    {"#### 4\nor was it 5?", "4", true, false, false},
    {"#### $1,080.", "1080", false, true, true},
    {"#### 1,080.", "1080", true, true, true},
    {"it makes $18.00", "18", false, false, true},
    {"#### 18.00", "18", false, false, true},
    {"#### 18", "18.0", false, false, true},
    {"#### 018", "18", false, false, true},
    {"#### -4", "4", false, false, false},
    {"#### 41", "4", false, false, false},
    {"none", "4", false, false, false},
    {"", "4", false, false, false},
    {"[invalid]", "[invalid]", false, false, false},
};

TEST(test_judge)
{
    for (size_t i = 0; i < sizeof judged / sizeof judged[0]; i++) {
        dq_err err = {0};
        dq_answer_verdict v;
        assert_int_equal(
            judge_gsm8k(&v, judged[i].text, strlen(judged[i].text), judged[i].gold, &err), DQ_OK);
        assert_int_equal(v.strict, judged[i].strict);
        assert_int_equal(v.flexible, judged[i].flexible);
        dq_arena *a = given_arena();
        const dq_span last = last_number(judged[i].text, strlen(judged[i].text));
        const bool value = last.s && equal_values(clean(last, a, &err), judged[i].gold);
        assert_int_equal(value, judged[i].value);
    }
    for (int at = 1; at <= 3; at++) { /* out of memory is no verdict */
        dq_err err = {0};
        dq_answer_verdict v;
        dq_alloc_fail_at(at);
        const dq_status status = judge_gsm8k(&v, "#### 4", 6, "4", &err);
        dq_alloc_fail_at(0);
        assert_true(status == DQ_OK || status == DQ_RESOURCE);
        assert_int_equal(v.strict && v.flexible, status == DQ_OK);
        if (at == 1) assert_int_equal(status, DQ_RESOURCE);
    }
}

TEST(test_same_value)
{
    static const struct {
        const char *a, *b;
        bool same;
    } row[] = {
        {"18", "18.0", true}, {"18.50", "18.5", true}, {"007", "7", true},   {"-0", "0", true},
        {".5", "0.5", true},  {"5.", "5", true},       {"0.0", "-.0", true}, {"-5", "5", false},
        {"10", "1", false},   {"1.05", "1.5", false},  {"", "", false},      {".", "0", false},
        {"-", "0", false},    {"1.2.3", "1.2", false}, {"1e1", "10", false}, {"--1", "1", false},
        {"100", "1", false},  {"0.10", "0.01", false}, {"$5", "5", false},   {"5 ", "5", false},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        assert_int_equal(equal_values(row[i].a, row[i].b), row[i].same);
        assert_int_equal(equal_values(row[i].b, row[i].a), row[i].same);
    }
}

TEST(test_end)
{
    static const struct {
        const char *text;
        size_t end;
    } row[] = {
        {"42", 2},       {"42\n\nQuestion: what", 4}, {"42</s>Question:", 2}, {"Question:", 0},
        {"Question", 8}, {"4<|im_end|></s>", 1},      {"question:</s", 12},   {"", 0},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        assert_int_equal(
            dq_answer_end(row[i].text, strlen(row[i].text), dq_answer_stop, dq_answer_n_stops),
            row[i].end);
    assert_int_equal(dq_answer_end("Question:", 9, NULL, 0), 9);
}
