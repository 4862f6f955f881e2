/* Mean accuracy over many shots: the two-way error against sums worked out by hand, its coverage where runs and queries are
 * drawn, and which numbers of shots are in the range.
 * SPDX-License-Identifier: MIT */
#include "eval/kind_icl.c" /* what is private there */

#include "base/random.h"

#include "tests/rigs/suite.h"
#include <math.h>

static void near(double got, double want, double within)
{
    if (!(fabs(got - want) <= within)) fail_msg("got %.17g, want %.17g", got, want);
}

/* Rows (0.2, 0.6, 0.7) and (0.4, 0.6, 1.1): mean 0.6, means of runs 0.5 and 0.7, of queries 0.3, 0.6, 0.9. Squares: runs
 * 3 * 2 * 0.01 = 0.06, queries 2 * 2 * 0.09 = 0.36, all 0.16 + 0.01 + 0.04 + 0.25 = 0.46, so 0.04 are left. */
TEST(test_by_hand)
{
    const double x[] = {0.2, 0.6, 0.7, 0.4, 0.6, 1.1};
    const double r = 0.06, q = 0.36 / 2, e = 0.04 / 2, sum = r + q - e;
    const double df = sum * sum / (r * r / 1 + q * q / 2 + e * e / 2);
    const dq_icl_plateau o = plateau_of(x, 2, 3, 0, 1);
    near(o.mean.value, 0.6, 1e-15);
    near(o.mean.std_err, sqrt(sum / 6), 1e-15);
    assert_int_equal(o.mean.clusters, (int64_t)df + 1);
    near(o.interval.high - 0.6, dq_interval_t(0, 1, (int64_t)df + 1).high * o.mean.std_err, 1e-12);
    near(0.6 - o.interval.low, o.interval.high - 0.6, 1e-12);
}

/* Runs that do not differ more than chance leave the error of queries, and the other way round. */
TEST(test_one_factor)
{
    const double x[] = {0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 1, 0}; /* 3 runs of 4 queries */
    const double q[] = {1.0 / 3, 2.0 / 3, 2.0 / 3, 1.0 / 3};
    dq_icl_plateau o = plateau_of(x, 3, 4, 0, 1);
    near(o.mean.value, 0.5, 1e-15);
    near(o.mean.std_err, dq_mean_of(q, 4).std_err, 1e-15);
    assert_int_equal(o.mean.clusters, 4);
    o = plateau_of(x, 1, 12, 0, 1); /* one run of 12 queries */
    near(o.mean.std_err, dq_mean_of(x, 12).std_err, 1e-15);
    assert_int_equal(o.mean.clusters, 12);
    double turned[12];
    for (int i = 0; i < 12; i++) turned[i] = x[i % 3 * 4 + i / 3];
    near(plateau_of(turned, 4, 3, 0, 1).mean.std_err, dq_mean_of(q, 4).std_err, 1e-15);
}

TEST(test_nothing_varies)
{
    const double x[] = {1, 1, 1, 1, 1, 1};
    dq_icl_plateau o = plateau_of(x, 2, 3, 0, 1);
    const dq_interval still = dq_interval_still(1, 3, 0, 1);
    assert_true(o.mean.value == 1 && o.mean.std_err == 0);
    assert_true(o.interval.low == still.low && o.interval.high == 1);
    o = plateau_of(x, 6, 1, 0, 1);
    assert_true(o.mean.value == 1 && isnan(o.mean.std_err) && isnan(o.interval.low));
}

static double uniform(dq_random *r)
{
    return (double)dq_random_below(r, 1u << 30) / (1u << 30) - 0.5;
}

/* Runs and queries add what they draw to the chance of being right: with ten runs of 40 queries the interval misses
 * in about 5 % of draws. One by queries alone misses in more. */
TEST(test_coverage)
{
    enum { DRAWS = 3000, RUNS = 10, QUERIES = 40 };
    dq_random r = {.state = 5};
    int missed = 0, alone = 0;
    for (int d = 0; d < DRAWS; d++) {
        double x[RUNS * QUERIES], query[QUERIES], by_query[QUERIES] = {0};
        for (int q = 0; q < QUERIES; q++) query[q] = 0.6 * uniform(&r);
        for (int k = 0; k < RUNS; k++) {
            const double run = 0.3 * uniform(&r);
            for (int q = 0; q < QUERIES; q++) {
                x[k * QUERIES + q] = uniform(&r) + 0.5 < 0.5 + run + query[q];
                by_query[q] += x[k * QUERIES + q] / RUNS;
            }
        }
        const dq_icl_plateau o = plateau_of(x, RUNS, QUERIES, 0, 1);
        const dq_interval i = dq_mean_interval(dq_mean_of(by_query, QUERIES));
        missed += o.interval.low > 0.5 || o.interval.high < 0.5;
        alone += i.low > 0.5 || i.high < 0.5;
    }
    if (missed < DRAWS * 3 / 100 || missed > DRAWS * 7 / 100 || alone < DRAWS * 9 / 100)
        fail_msg("%d of %d intervals miss, %d by queries alone", missed, DRAWS, alone);
}

/* Shots that every shown row of the task has, from half of the largest on, or from a number that is given. */
TEST(test_range)
{
    static const dq_icl_task task = {.name = "t"};
    dq_icl_layout plan[] = {{.shots = {1, 10, 25, 50, 100, 200}, .n_shots = 6},
                            {.shots = {1, 10, 25, 50, 100}, .n_shots = 5}};
    dq_icl_settings s = {.task = &task};
    dq_eval_source source = {.kind = &dq_eval_icl_kind, .settings = &s};
    dq_eval_ids ids[] = {{.own = &plan[0]}, {.own = &plan[1], .model = 1}};
    dq_eval_row row[] = {{.ids = 0, .shown = true}, {.ids = 1, .shown = true}};
    const dq_eval e = {.source = &source, .ids = ids, .row = row, .n_rows = 2};
    dq_icl_range o = dq_icl_range_of(&e, 0, 0);
    assert_true(o.from == 50 && o.n == 2 && o.shots[0] == 50 && o.shots[1] == 100);
    o = dq_icl_range_of(&e, 1, 25);
    assert_true(o.from == 25 && o.n == 3 && o.shots[0] == 25 && o.shots[2] == 100);
    assert_int_equal(dq_icl_range_of(&e, 0, 150).n, 0);
    row[1].shown = false;
    o = dq_icl_range_of(&e, 0, 0);
    assert_true(o.from == 100 && o.n == 2 && o.shots[1] == 200);
}
