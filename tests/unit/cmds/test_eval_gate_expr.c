/* Tests of the limits of --fail-if: values worked out by hand, and what does not parse, with its place.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "cmds/eval/cmd_eval.h"
#include "tests/rigs/given.h"

#include <math.h>
#include <string.h>

static double value_of(const char *text, double baseline)
{
    cmd_eval_gate_expr e;
    dq_err err = {0};
    assert_int_equal(cmd_eval_gate_expr_read(&e, text, 0, &err), DQ_OK);
    assert_int_equal(e.baseline, strstr(text, "baseline") != NULL);
    return cmd_eval_gate_expr_value(&e, baseline);
}

TEST(arithmetic_has_its_usual_order)
{
    static const struct {
        const char *text;
        double value; /* baseline 8 */
    } t[] = {{"3", 3},
             {"1.1 * baseline", 1.1 * 8},
             {"baseline - 0.01", 8 - 0.01},
             {"baseline*1.02", 8 * 1.02},
             {" baseline ", 8},
             {"2+3*4", 14},
             {"(2+3)*4", 20},
             {"10-4-3", 3},
             {"16/4/2", 2},
             {"10-(4-3)", 9},
             {"-baseline", -8},
             {"- - 2", 2},
             {"+3", 3},
             {"2*-3", -6},
             {"-2-3", -5},
             {"-(baseline+1)*2", -18},
             {"baseline/2/2-1", 1},
             {"2-3e-1", 1.7},
             {"1e1+1", 11},
             {"((((((((((((((((baseline))))))))))))))))", 8},
             {".5\t*\tbaseline", 4}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        assert_true(value_of(t[i].text, 8) == t[i].value);
}

TEST(what_leaves_the_range_is_not_finite)
{
    assert_true(!isfinite(value_of("baseline / 0", 1)));
    assert_true(!isfinite(value_of("1 / (baseline - baseline)", 3)));
    assert_true(!isfinite(value_of("0 * (1 / baseline)", 0)));
    assert_true(!isfinite(value_of("1e308 * baseline", 100)));
    assert_true(!isfinite(value_of("baseline", (double)NAN)));
}

TEST(what_does_not_parse_is_told_with_its_place)
{
    static const struct {
        const char *text, *message;
    } t[] = {
        {"", "character 1: expected a number, baseline or \"(\", found the end."},
        {"  ", "character 3: expected a number"},
        {"base", "character 1: expected a number, baseline or \"(\", found \"base\"."},
        {"baselines", "character 1: expected a number"},
        {"baseline.x", "character 1: expected a number"},
        {"baseline2", "character 1: expected a number"},
        {"2 baseline", "character 3: expected an operation or the end, found \"baseline\"."},
        {"baseline +", "character 11: expected a number, baseline or \"(\", found the end."},
        {"baseline * / 2", "character 12: expected a number"},
        {"(1 + 2", "character 7: expected an operation or \")\", found the end."},
        {"1 + 2)", "character 6: expected an operation or the end, found \")\"."},
        {"()", "character 2: expected a number"},
        {"(1,2)", "character 3: expected an operation or \")\", found \",2)\"."},
        {"1 ** 2", "character 4: expected a number"},
        {"2^3", "character 2: expected an operation or the end"},
        {"0x10", "character 1: expected a number"},
        {"inf", "character 1: expected a number"},
        {"nan", "character 1: expected a number"},
        {"1 < 2", "character 3: expected an operation or the end"},
        {"\303\251 + 1", "character 1: expected a number"},
        {"1 + \303\251", "character 5: expected a number"},
        {"1 \303\251 2", "character 3: expected an operation"},
        {"(((((((((((((((((1)))))))))))))))))", "character 17: expected at most 16 parentheses"}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        cmd_eval_gate_expr e;
        dq_err err = {0};
        cmd_eval_gate_expr_read(&e, t[i].text, 0, &err);
        check_error(&err, DQ_USAGE, t[i].message);
    }
}

/* Long input ends in an error, not in a step outside of the array. */
TEST(long_expressions_are_refused)
{
    static char text[200001];
    cmd_eval_gate_expr e;
    dq_err err = {0};
    for (int i = 0; i < 32; i++) memcpy(text + 2 * i, "1+", 2);
    text[63] = 0; /* 32 numbers, 31 sums: 63 steps */
    assert_int_equal(cmd_eval_gate_expr_read(&e, text, 0, &err), DQ_OK);
    assert_true(cmd_eval_gate_expr_value(&e, 0) == 32);
    for (int i = 0; i < 100000; i++) memcpy(text + 2 * i, "1+", 2);
    cmd_eval_gate_expr_read(&e, text, 0, &err);
    check_error(&err, DQ_USAGE, "fewer than 64 numbers and operations before this");
    memset(&err, 0, sizeof err);
    memset(text, '(', 200000);
    cmd_eval_gate_expr_read(&e, text, 0, &err);
    check_error(&err, DQ_USAGE, "at most 16 parentheses");
    memset(&err, 0, sizeof err);
    memset(text, '-', 200000);
    cmd_eval_gate_expr_read(&e, text, 0, &err);
    check_error(&err, DQ_USAGE, "character 200001: expected a number");
    memset(&err, 0, sizeof err);
    memcpy(text, "x>", 2);
    memset(text + 2, ' ', 10);
    memcpy(text + 12, "1 ?", 4);
    cmd_eval_gate_expr_read(&e, text, 2, &err);
    check_error(&err, DQ_USAGE, "fail-if \"x>          1 ?\": character 15: expected an operation");
}
