/* Answers in LaTeX: what lm-evaluation-harness finds in solutions and the forms that it gives expressions
 * (tests/golden/math_answers.py), and answers that a text states.
 * SPDX-License-Identifier: MIT */
#include "tasks/answers.c" /* what is private there */

#include "tests/rigs/given.h"

#include "tests/rigs/suite.h"
#include <string.h>

#define GOLDEN DQ_TEST_DIR "/golden/questions/math_answers.json"

static dq_span span_of(const char *s)
{
    return (dq_span){s, strlen(s)};
}

static void expect_span(dq_span got, const char *want, const char *of)
{
    if (!want && !got.s) return;
    if (!want || !got.s || got.len != strlen(want) || memcmp(got.s, want, got.len) != 0)
        fail_msg("%s: got %.*s, want %s", of, (int)got.len, got.s ? got.s : "nothing",
                 want ? want : "nothing");
}

TEST(test_boxed)
{
    json_t *all = given_json(GOLDEN), *one;
    size_t i;
    assert_true(json_array_size(json_object_get(all, "boxed")) > 10);
    json_array_foreach(json_object_get(all, "boxed"), i, one)
    {
        const char *text = json_string_value(json_array_get(one, 0));
        expect_span(dq_math_answer_boxed(text, strlen(text)),
                    json_string_value(json_array_get(one, 1)), text);
    }
    json_decref(all);
}

TEST(test_forms)
{
    json_t *all = given_json(GOLDEN), *one;
    size_t i, odd = 0;
    json_array_foreach(json_object_get(all, "forms"), i, one)
    {
        dq_arena *a = given_arena();
        dq_err err = {0};
        const char *text = json_string_value(json_array_get(one, 0)), *found;
        const char *want = json_string_value(json_array_get(one, 1));
        assert_int_equal(form_of(&found, span_of(text), a, &err), DQ_OK);
        odd += !want;
        if (!want != !found || (want && strcmp(want, found) != 0))
            fail_msg("\"%s\": got \"%s\", want \"%s\"", text, found ? found : "(none)",
                     want ? want : "(none)");
    }
    assert_true(i > 1000 && odd > 100);
    json_decref(all);
}

TEST(test_same)
{
    static const struct {
        const char *a, *b;
        bool same;
    } rows[] = {
        {"\\frac12", "1/2", true},
        {"0.5", "\\tfrac{1}{2}", true},
        {"x = 5", "5", true},
        {"5\\text{ cm}", "5", true},
        {"\\sqrt3", "\\sqrt{3}", true},
        {"3", "3.0", false},
        {"a/b", "a/b", true},
        {"a/b", "a / b", false}, /* no form: the texts count */
        {"(1, 2)", "\\left(1,2\\right)", true},
        {"1", "2", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        dq_err err = {0};
        bool same;
        assert_int_equal(same_forms(&same, span_of(rows[i].a), span_of(rows[i].b), &err), DQ_OK);
        if (same != rows[i].same) fail_msg("\"%s\" and \"%s\"", rows[i].a, rows[i].b);
    }
}

TEST(test_stated)
{
    static const char *const rows[][2] = {
        {"So the answer is 5.", "5"},
        {"The Answer is: $\\frac{1}{2}$.\nmore", "\\frac{1}{2}"},
        {"answer is 1\nno, the answer is  Yes .", "Yes"},
        {"The answer is 3.5", "3.5"},
        {"the answer is", ""},
        {"it is 5", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_span(stated(rows[i][0], strlen(rows[i][0])), rows[i][1], rows[i][0]);
}
