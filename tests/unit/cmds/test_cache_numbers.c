/* Tests of the words for a difference between two caches: by where its interval lies.
 * SPDX-License-Identifier: MIT */
#include "cmds/plan/cache_numbers.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const char *said(double low, double high)
{
    return dq_cache_numbers_verdict((dq_interval){low, high}, "less", "more", "open");
}

static void one_side_of_zero_decides(void **unused)
{
    (void)unused;
    assert_string_equal(said(-2, -1), "less");
    assert_string_equal(said(1, 2), "more");
    assert_string_equal(said(-INFINITY, -1e-300), "less");
    assert_string_equal(said(1e-300, INFINITY), "more");
}

static void zero_within_or_at_an_end_is_open(void **unused)
{
    (void)unused;
    assert_string_equal(said(-1, 1), "open");
    assert_string_equal(said(-1, 0), "open");
    assert_string_equal(said(0, 1), "open");
    assert_string_equal(said(0, 0), "open");
    assert_string_equal(said(-INFINITY, INFINITY), "open");
}

/* Of one cluster there is no interval. */
static void no_number_is_open(void **unused)
{
    (void)unused;
    assert_string_equal(said((double)NAN, (double)NAN), "open");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_side_of_zero_decides),
        cmocka_unit_test(zero_within_or_at_an_end_is_open),
        cmocka_unit_test(no_number_is_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
