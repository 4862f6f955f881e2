/* Means over tasks against numbers worked out by hand, and the coverage of their intervals where accuracies are near 1.
 * SPDX-License-Identifier: MIT */
#include "eval/eval.h"

#include "base/random.h"

#include "tests/rigs/suite.h"
#include <math.h>

static void near(double got, double want, double within)
{
    if (!(fabs(got - want) <= within)) fail_msg("got %.17g, want %.17g", got, want);
}

/* Tasks of 2 and 8 items count the same: (0.5 + 0.9) / 2, errors 0.3 and 0.4 give 0.5 / 2. */
TEST(test_by_hand)
{
    const dq_mean task[] = {{0.5, 0.3, 2}, {0.9, 0.4, 8}};
    const dq_interval interval[] = {{0.2, 0.6}, {0.5, 1.3}};
    const dq_eval_average o = dq_eval_average_of(task, interval, 2);
    near(o.mean.value, 0.7, 1e-15);
    near(o.mean.std_err, 0.25, 1e-15);
    assert_int_equal(o.mean.clusters, 10);
    near(o.interval.low, 0.7 - sqrt(0.09 + 0.16) / 2, 1e-15);
    near(o.interval.high, 0.7 + sqrt(0.01 + 0.16) / 2, 1e-15);
}

/* Equal intervals mean +- z error are one of the mean +- z error of it. */
TEST(test_equal_errors)
{
    dq_mean task[7];
    dq_interval interval[7];
    for (int i = 0; i < 7; i++) {
        task[i] = (dq_mean){0.1 * i, 0.02, 100};
        interval[i] = (dq_interval){0.1 * i - DQ_Z95 * 0.02, 0.1 * i + DQ_Z95 * 0.02};
    }
    const dq_eval_average o = dq_eval_average_of(task, interval, 7);
    near(o.mean.std_err, 0.02 / sqrt(7), 1e-15);
    near(o.interval.high - o.mean.value, DQ_Z95 * o.mean.std_err, 1e-15);
    near(o.mean.value - o.interval.low, DQ_Z95 * o.mean.std_err, 1e-15);
}

/* A task without an error has none in the mean; one without an interval leaves none. */
TEST(test_what_lacks)
{
    const dq_mean right[] = {{1, 0, 50}, {1, 0, 50}};
    double ones[50];
    dq_interval share;
    for (int i = 0; i < 50; i++) ones[i] = 1;
    dq_mean_of_scores(ones, NULL, 50, &share);
    const dq_interval both[] = {share, share};
    dq_eval_average o = dq_eval_average_of(right, both, 2);
    near(o.mean.std_err, 0, 0);
    near(o.interval.low, 1 - (1 - share.low) / sqrt(2), 1e-15);
    near(o.interval.high, 1, 0);
    const dq_mean one[] = {{0.5, (double)NAN, 1}, {0.5, 0.1, 25}};
    const dq_interval none[] = {dq_interval_none, {0.3, 0.7}};
    o = dq_eval_average_of(one, none, 2);
    near(o.mean.value, 0.5, 1e-15);
    assert_true(isnan(o.mean.std_err) && isnan(o.interval.low) && isnan(o.interval.high));
}

/* Seven tasks of 60 items with accuracies from 0.3 to 0.97: the interval misses in about 5 % of draws. */
TEST(test_coverage)
{
    const double p[] = {0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.97};
    enum { DRAWS = 4000, ITEMS = 60 };
    dq_random r = {.state = 11};
    double truth = 0;
    int missed = 0;
    for (int k = 0; k < 7; k++) truth += p[k] / 7;
    for (int d = 0; d < DRAWS; d++) {
        dq_mean task[7];
        dq_interval interval[7];
        for (int k = 0; k < 7; k++) {
            double score[ITEMS];
            for (int i = 0; i < ITEMS; i++)
                score[i] = (double)dq_random_below(&r, 1000) < 1000 * p[k] - 0.5;
            task[k] = dq_mean_of_scores(score, NULL, ITEMS, &interval[k]);
        }
        const dq_eval_average o = dq_eval_average_of(task, interval, 7);
        missed += truth < o.interval.low || truth > o.interval.high;
    }
    if (missed < DRAWS * 3 / 100 || missed > DRAWS * 7 / 100)
        fail_msg("%d of %d intervals miss", missed, DRAWS);
}
