/* Numbers in answers: found as whole runs of digits, and what became of those that are not.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "tasks/tasks.h"

#include <stdio.h>
#include <string.h>

TEST(test_found)
{
    static const struct {
        const char *text;
        bool found;
    } row[] = {
        {"1234567", true},          {" is 1234567.", true},
        {"x1234567y", true},        {"-1234567", true},
        {"1234567\n1234567", true}, {"91234567", false},
        {"12345678", false},        {"1234567.5", true},
        {"1,234,567", false},       {"123456", false},
        {"1234568", false},         {"12345671234567 1234567", true},
        {"12345671234567", false},  {"", false},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        assert_int_equal(dq_needle_recall_found(row[i].text, strlen(row[i].text), "1234567"),
                         row[i].found);
    assert_false(dq_needle_recall_found("1234567", 6, "1234567")); /* only len bytes are read */
    assert_true(dq_needle_recall_found("12345678", 7, "1234567"));
}

static const char *const hidden[] = {"1234567", "7654321", "5555555", "1234599"};

static const struct {
    const char *text;
    int64_t n_requested;
    dq_needle_recall want;
} judged[] = {
    {"1234567", 1, {.correct = 1}},
    {"1234567 and 7654321", 2, {.correct = 2}},
    {"1234567 and 7654321", 1, {.correct = 1}}, /* more than was asked does no harm */
    {"7654321", 1, {.other = 1}},
    {"1234566 7654321", 1, {.other = 1}},      /* the other number comes first */
    {"7654321", 2, {.correct = 1, .none = 1}}, /* what was asked for is nobody's mistake */
    {"5555555 7654321", 2, {.correct = 1, .other = 1}},
    {"1234566", 1, {.near = 1}},
    {"1230066", 1, {.none = 1}},
    {"1234500", 1, {.near = 1}},
    {"1234599", 1, {.other = 1}}, /* near as it is, it is another's */
    {"1234599", 4, {.correct = 1, .none = 3}},
    {"123456", 1, {.none = 1}},
    {"12345678", 1, {.none = 1}},
    {"2345671", 1, {.none = 1}}, /* in place */
    {"2234561", 1, {.near = 1}},
    {"none", 2, {.none = 2}},
    {"", 1, {.none = 1}},
    {"7654320 1234560", 2, {.near = 2}},
    {"91234567", 1, {.none = 1}},
};

TEST(test_judge)
{
    dq_needle_recall sum = {0}, want = {0};
    for (size_t i = 0; i < sizeof judged / sizeof judged[0]; i++) {
        const dq_needle_recall *w = &judged[i].want;
        dq_needle_recall got = {0};
        dq_needle_recall_judge(&got, judged[i].text, strlen(judged[i].text), hidden,
                               judged[i].n_requested, 4);
        dq_needle_recall_judge(&sum, judged[i].text, strlen(judged[i].text), hidden,
                               judged[i].n_requested, 4);
        assert_memory_equal(&got, w, sizeof got);
        assert_int_equal(got.correct + got.other + got.near + got.none, judged[i].n_requested);
        want = (dq_needle_recall){want.correct + w->correct, want.other + w->other,
                                  want.near + w->near, want.none + w->none};
    }
    assert_memory_equal(&sum, &want, sizeof sum);
}

/* Numbers so short that all their digits would differ are not near. */
TEST(test_short)
{
    static const char *const number[] = {"42", "7"};
    dq_needle_recall got = {0};
    dq_needle_recall_judge(&got, "17 and 42", 9, number, 1, 2);
    dq_needle_recall_judge(&got, "43", 2, number, 1, 2);
    dq_needle_recall_judge(&got, "17", 2, number, 1, 2);
    dq_needle_recall_judge(&got, "7", 1, number, 1, 2);
    const dq_needle_recall want = {.correct = 1, .near = 1, .none = 1, .other = 1};
    assert_memory_equal(&got, &want, sizeof got);
}
