/* Tests of the words for a difference between two caches: by where its interval lies.
 * SPDX-License-Identifier: MIT */
#include "cmds/plan/cmd_plan.h"

#include "tests/rigs/suite.h"
#include <math.h>

static const char *said(double low, double high)
{
    return dq_cache_numbers_verdict((dq_interval){low, high}, "less", "more", "open");
}

TEST(one_side_of_zero_decides)
{
    assert_string_equal(said(-2, -1), "less");
    assert_string_equal(said(1, 2), "more");
    assert_string_equal(said(-INFINITY, -1e-300), "less");
    assert_string_equal(said(1e-300, INFINITY), "more");
}

TEST(zero_within_or_at_an_end_is_open)
{
    assert_string_equal(said(-1, 1), "open");
    assert_string_equal(said(-1, 0), "open");
    assert_string_equal(said(0, 1), "open");
    assert_string_equal(said(0, 0), "open");
    assert_string_equal(said(-INFINITY, INFINITY), "open");
}

/* Of one cluster there is no interval. */
TEST(no_number_is_open)
{
    assert_string_equal(said((double)NAN, (double)NAN), "open");
}
