/* test_pace: what is announced of runs whose kinds of work take other times than were expected.
 * SPDX-License-Identifier: MIT */
#include "work/work.h"

#include "tests/rigs/suite.h"

#include <math.h>

/* A run that begins with kind 0 and then takes kinds 1 and 2 in turn, as layers do. */
typedef struct run {
    double expected[3], factor[3]; /* seconds of a step; what it really takes of that */
    int first, layers;
} run;

/* The worst error of what has passed and is left, as a share of the whole, from `from` of it on. */
static double worst_of(const run *r, double from)
{
    double truth = r->first * r->expected[0] * r->factor[0], worst = 0, now = 100;
    for (int k = 1; k < 3; k++) truth += r->layers * r->expected[k] * r->factor[k];
    dq_pace p;
    dq_pace_begin(&p, now);
    dq_pace_expect(&p, 0, r->first * r->expected[0]);
    for (int k = 1; k < 3; k++) dq_pace_expect(&p, k, r->layers * r->expected[k]);
    for (int i = 0; i < r->first + 2 * r->layers; i++) {
        const int k = i < r->first ? 0 : 1 + (i - r->first) % 2;
        now += r->expected[k] * r->factor[k];
        dq_pace_step(&p, k, r->expected[k], now);
        const double passed = now - 100, error = fabs(passed + dq_pace_left(&p) - truth) / truth;
        assert_true(fabs(dq_pace_taken(&p) - passed) < 1e-9 * truth);
        if (passed >= from * truth && error > worst) worst = error;
    }
    assert_true(dq_pace_left(&p) < 1e-9 * truth);
    return worst;
}

TEST(what_was_expected_rightly_is_announced_rightly)
{
    const run r = {{1, 2, 3}, {1, 1, 1}, 20, 30};
    assert_true(worst_of(&r, 0) < 1e-9);
}

/* A machine that is slower or faster than was expected is known at once. */
TEST(a_factor_of_all_kinds)
{
    const run slow = {{1, 2, 3}, {7, 7, 7}, 20, 30}, fast = {{1, 2, 3}, {0.2, 0.2, 0.2}, 20, 30};
    assert_true(worst_of(&slow, 0.1) < 0.1);
    assert_true(worst_of(&fast, 0.1) < 0.1);
}

/* Layers say what layers take, however wrong it was thought. */
TEST(a_factor_of_each_kind)
{
    const run r = {{1, 2, 3}, {1, 0.3, 5}, 5, 100};
    assert_true(worst_of(&r, 0.1) < 0.1);
}

/* What an earlier run has done is taken back; a kind of which nothing is left is not missed. */
TEST(less_is_expected)
{
    dq_pace p;
    dq_pace_begin(&p, 0);
    dq_pace_expect(&p, 3, 10);
    dq_pace_expect(&p, 3, -4);
    assert_true(fabs(dq_pace_left(&p) - 6) < 1e-12);
    dq_pace_expect(&p, 3, -40);
    assert_true(dq_pace_left(&p) == 0);
    dq_pace_step(&p, 3, 1, 5);
    assert_true(dq_pace_left(&p) == 0 && dq_pace_taken(&p) == 5);
}
