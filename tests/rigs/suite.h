/* suite: the cases of a test program, which take their places by themselves, and its main. An argument of the program is a
 * pattern of names (`*`): the other cases are left out.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SUITE_H
#define DQ_SUITE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>

void suite_add(const char *name, CMUnitTestFunction run, int line);
void suite_fixtures(CMFixtureFunction begin, CMFixtureFunction end);
void suite_case_fixtures(CMFixtureFunction begin, CMFixtureFunction end);
void suite_runs(const char *(*run)(int));
void suite_needs(bool (*can_run)(void));
/* For rigs: what ends what they gave a case. The last call counts. */
void suite_after_case(void (*end)(void));
#ifdef __cplusplus
}
#endif

/* TEST(name) { ... }: a case, given what its fixture left in *case_state. Cases run in the order of their lines. */
#define TEST(name)                                                                                 \
    static void name(void **);                                                                     \
    __attribute__((constructor)) static void name##_is_a_case(void)                                \
    {                                                                                              \
        suite_add(#name, name, __LINE__);                                                          \
    }                                                                                              \
    static void name(void **case_state __attribute__((unused)))

/* Once in a file: what runs before the first and after the last case; or before and after each of them. A failure has
 * a status other than 0. */
#define FIXTURES(begin, end)                                                                       \
    __attribute__((constructor)) static void suite_has_fixtures(void)                              \
    {                                                                                              \
        suite_fixtures(begin, end);                                                                \
    }
#define CASE_FIXTURES(begin, end)                                                                  \
    __attribute__((constructor)) static void cases_have_fixtures(void)                             \
    {                                                                                              \
        suite_case_fixtures(begin, end);                                                           \
    }

/* The cases run once for each name that run(0), run(1), ... gives until NULL, and before which it sets what differs. */
#define RUNS(run)                                                                                  \
    __attribute__((constructor)) static void suite_has_runs(void)                                  \
    {                                                                                              \
        suite_runs(run);                                                                           \
    }

/* Without it (a device) the program ends with status 77, which CTest knows as skipped; can_run says why. */
#define NEEDS(can_run)                                                                             \
    __attribute__((constructor)) static void suite_has_needs(void)                                 \
    {                                                                                              \
        suite_needs(can_run);                                                                      \
    }

#endif
