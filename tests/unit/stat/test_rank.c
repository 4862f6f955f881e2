/* Rank correlation against scipy.stats.spearmanr, and its interval.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "stat/stat.h"

#include <math.h>

TEST(ties_share_their_rank)
{
    const double x[] = {1, 2, 2, 4, 5, 7, 7, 7, 10, 3.5}, y[] = {2, 1, 3, 3, 8, 6, 9, 9, 4, 2.5};
    dq_err err = {0};
    dq_interval i;
    double r;
    assert_int_equal(dq_rank_spearman(&r, &i, x, y, 10, &err), DQ_OK);
    assert_true(fabs(r - 0.789507738610049) < 1e-14); /* scipy 1.17 */
    assert_true(fabs(i.low - 0.21814291712448577) < 1e-12);
    assert_true(fabs(i.high - 0.9577969704577575) < 1e-12);
}

TEST(only_order_counts)
{
    const double x[] = {3, 1, 4, 1.5, 9}, up[] = {-1, -9, 0, -8, 1e300}, down[] = {7, 9, 6, 8, 5};
    dq_err err = {0};
    dq_interval i;
    double r;
    assert_int_equal(dq_rank_spearman(&r, &i, x, up, 5, &err), DQ_OK);
    assert_true(r >= 1 && r <= 1);
    assert_true(isnan(i.low)); /* nothing says how far from 1 it may be */
    assert_int_equal(dq_rank_spearman(&r, NULL, x, down, 5, &err), DQ_OK);
    assert_true(r >= -1 && r <= -1);
}

TEST(without_order_there_is_none)
{
    const double x[] = {1, 2, 3}, same[] = {4, 4, 4};
    dq_err err = {0};
    dq_interval i;
    double r;
    assert_int_equal(dq_rank_spearman(&r, &i, x, same, 3, &err), DQ_OK);
    assert_true(isnan(r) && isnan(i.low));
    double many[14], flat[14];
    for (int k = 0; k < 14; k++) {
        many[k] = k;
        flat[k] = 0.1;
    }
    assert_int_equal(dq_rank_spearman(&r, &i, many, flat, 14, &err), DQ_OK);
    assert_true(isnan(r));
    assert_int_equal(dq_rank_spearman(&r, &i, x, x, 1, &err), DQ_OK);
    assert_true(isnan(r));
}
