/* suite: cases are sorted by their lines as they come, since linkers promise no order of constructors. A program with a
 * main of its own leaves this file in its archive.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include <stdlib.h>

enum { MOST = 64 };
static struct CMUnitTest cases[MOST];
static int lines[MOST];
static size_t n_cases;
static CMFixtureFunction suite_begin, suite_end, case_begin, case_end;
static const char *once(int run)
{
    return run == 0 ? "tests" : NULL;
}

static const char *(*suite_run)(int) = once;
static bool (*suite_can_run)(void);
static void (*after_case)(void);

void suite_add(const char *name, CMUnitTestFunction run, int line)
{
    size_t i = n_cases++;
    if (n_cases > MOST) abort();
    for (; i > 0 && lines[i - 1] > line; i--) {
        cases[i] = cases[i - 1];
        lines[i] = lines[i - 1];
    }
    cases[i] = (struct CMUnitTest){.name = name, .test_func = run};
    lines[i] = line;
}

void suite_fixtures(CMFixtureFunction begin, CMFixtureFunction end)
{
    suite_begin = begin;
    suite_end = end;
}

void suite_case_fixtures(CMFixtureFunction begin, CMFixtureFunction end)
{
    case_begin = begin;
    case_end = end;
}

void suite_runs(const char *(*run)(int))
{
    suite_run = run;
}

void suite_needs(bool (*can_run)(void))
{
    suite_can_run = can_run;
}

void suite_after_case(void (*end)(void))
{
    after_case = end;
}

static int end_case(void **state)
{
    const int status = case_end ? case_end(state) : 0;
    if (after_case) after_case();
    return status;
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (suite_can_run && !suite_can_run()) return 77;
    for (size_t i = 0; i < n_cases; i++) {
        cases[i].setup_func = case_begin;
        cases[i].teardown_func = end_case;
    }
    int failed = 0;
    const char *name;
    for (int run = 0; (name = suite_run(run)) != NULL; run++)
        failed += _cmocka_run_group_tests(name, cases, n_cases, suite_begin, suite_end);
    return failed;
}
