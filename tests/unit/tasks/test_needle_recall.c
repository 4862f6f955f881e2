/* Numbers in answers: found as whole runs of digits, and what became of those that are not.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "eval/kind_needle.c" /* what is private there */

static int judged_as(const char *text, size_t len, const char **number, int n)
{
    dq_needle_answer answer = {.needle = 0};
    return judge_text(&(dq_needle_prompt){.needles = n, .number = number, .answer = &answer}, 0,
                      text, len);
}

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
    const char *number = "1234567";
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        assert_int_equal(judged_as(row[i].text, strlen(row[i].text), &number, 1) ==
                             DQ_NEEDLE_AT_CORRECT,
                         row[i].found);
    assert_int_equal(judged_as("1234567", 6, &number, 1),
                     DQ_NEEDLE_AT_NONE); /* len bytes are read */
    assert_int_equal(judged_as("12345678", 7, &number, 1), DQ_NEEDLE_AT_CORRECT);
}

static const struct {
    const char *text;
    int want;
} judged[] = {
    {"1234567", DQ_NEEDLE_AT_CORRECT},
    {"1234567 and 7654321", DQ_NEEDLE_AT_CORRECT}, /* more than was asked does no harm */
    {"7654321 and 1234567", DQ_NEEDLE_AT_CORRECT},
    {"7654321", DQ_NEEDLE_AT_OTHER},
    {"1234566 7654321", DQ_NEEDLE_AT_OTHER}, /* the other number comes first */
    {"5555555 7654321", DQ_NEEDLE_AT_OTHER},
    {"1234566", DQ_NEEDLE_AT_NEAR},
    {"1230066", DQ_NEEDLE_AT_NONE},
    {"1234500", DQ_NEEDLE_AT_NEAR},
    {"1234599", DQ_NEEDLE_AT_OTHER}, /* near as it is, it is another's */
    {"123456", DQ_NEEDLE_AT_NONE},
    {"12345678", DQ_NEEDLE_AT_NONE},
    {"2345671", DQ_NEEDLE_AT_NONE}, /* in place */
    {"2234561", DQ_NEEDLE_AT_NEAR},
    {"none", DQ_NEEDLE_AT_NONE},
    {"", DQ_NEEDLE_AT_NONE},
    {"7654320 1234560", DQ_NEEDLE_AT_NEAR},
    {"91234567", DQ_NEEDLE_AT_NONE},
};

TEST(test_judge)
{
    const char *hidden[] = {"1234567", "7654321", "5555555", "1234599"};
    for (size_t i = 0; i < sizeof judged / sizeof judged[0]; i++)
        assert_int_equal(judged_as(judged[i].text, strlen(judged[i].text), hidden, 4),
                         judged[i].want);
}

/* Numbers so short that all their digits would differ are not near. */
TEST(test_short)
{
    const char *number[] = {"42", "7"};
    assert_int_equal(judged_as("17 and 42", 9, number, 2), DQ_NEEDLE_AT_CORRECT);
    assert_int_equal(judged_as("43", 2, number, 2), DQ_NEEDLE_AT_NEAR);
    assert_int_equal(judged_as("17", 2, number, 2), DQ_NEEDLE_AT_NONE);
    assert_int_equal(judged_as("7", 1, number, 2), DQ_NEEDLE_AT_OTHER);
}
