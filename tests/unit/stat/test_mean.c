/* Means, paired comparisons and percentiles against numbers worked out by hand or with NumPy.
 * SPDX-License-Identifier: MIT */
#include "base/random.h"
#include "stat/mean.c" /* what is private there */

#include "tests/rigs/suite.h"
#include <math.h>

static void near(double got, double want, double rel)
{
    if (!(fabs(got - want) <= rel * fabs(want) + 1e-300))
        fail_msg("got %.17g, want %.17g", got, want);
}

TEST(test_means)
{
    const double x[] = {1, 2, 4, 9};
    dq_mean m = dq_mean_of(x, 4);
    near(m.value, 4, 1e-15);
    near(m.std_err, sqrt((9 + 4 + 0 + 25) / 3.0 / 4.0), 1e-15);
    m = dq_mean_of(x, 1);
    near(m.value, 1, 0);
    assert_true(isnan(m.std_err));
    assert_true(isnan(dq_mean_of(x, 0).value));
}

/* 0.634 of 10042 items: 0.004807. */
TEST(test_share)
{
    const double x[] = {1, 0, 0, 1, 1};
    dq_mean m = dq_mean_share(6367, 10042), direct = dq_mean_of(x, 5);
    near(m.std_err, 0.004807, 1e-4);
    m = dq_mean_share(3, 5);
    near(m.value, direct.value, 1e-15);
    near(m.std_err, direct.std_err, 1e-15);
    assert_true(isnan(dq_mean_share(1, 1).std_err));
}

/* Clusters of equal values carry one value's worth of information each; sizes that differ count. */
TEST(test_clusters)
{
    const double x[] = {1, 1, 1, 2, 2, 2, 6, 6, 6}, means[] = {1, 2, 6}, y[] = {1, 3, 2, 6, 6, 6};
    const int32_t three[] = {0, 0, 0, 4, 4, 4, 5, 5, 5}, one[9] = {0}, sizes[] = {0, 0, 1, 2, 2, 2};
    dq_mean c = dq_mean_clustered(x, three, 9), m = dq_mean_of(means, 3);
    near(c.value, m.value, 1e-15);
    near(c.std_err, m.std_err, 1e-15);
    assert_int_equal(c.clusters, 3);
    c = dq_mean_clustered(x, one, 9); /* nothing shows how far clusters lie apart */
    assert_true(isnan(c.std_err) && c.clusters == 1);
    near(c.value, 3, 1e-15);
    c = dq_mean_clustered(y, sizes, 6); /* mean 4; totals less 4 n_c: -4, -2, 6 */
    near(c.value, 4, 1e-15);
    near(c.std_err, sqrt(3.0 / 2 * (16 + 4 + 36) / 36), 1e-15);
    assert_true(isnan(dq_mean_clustered(x, one, 0).value));
    assert_true(isnan(dq_mean_clustered(x, one, 1).std_err));
}

TEST(test_mcnemar)
{
    near(mcnemar(0, 0), 1, 0);
    near(mcnemar(3, 3), 1, 0);
    near(mcnemar(0, 1), 1, 1e-12); /* 2 * 1/2 */
    near(mcnemar(0, 5), 2.0 / 32, 1e-12);
    near(mcnemar(1, 4), 2 * 6.0 / 32, 1e-12);
    near(mcnemar(4, 1), 2 * 6.0 / 32, 1e-12);
    near(mcnemar(40, 10), 2.386e-5, 1e-3);
    assert_true(mcnemar(100000, 90000) < 1e-100);
}

TEST(test_flips)
{
    double before[500], after[500];
    for (int i = 0; i < 500; i++) before[i] = after[i] = i % 2 == 0;
    for (int i = 0; i < 80; i += 2) after[i] = 0;    /* 40 become wrong */
    for (int i = 101; i < 121; i += 2) after[i] = 1; /* 10 become right */
    dq_stat_flips f = dq_stat_flips_of(before, after, NULL, 500);
    assert_int_equal(f.n01, 40);
    assert_int_equal(f.n10, 10);
    near(f.delta, -0.06, 1e-15);
    near(f.std_err, 0.0139, 2e-3);
    near(f.p, 2.386e-5, 1e-3);
    near(f.interval.low, -0.089406, 2e-5);
    near(f.interval.high, -0.033718, 2e-5);
    assert_true(f.clusters == 500 && !f.clustered);
    f = dq_stat_flips_of(before, before, NULL,
                         500); /* no flip: bounds, not a difference known to be 0 */
    assert_true(f.delta == 0 && f.std_err == 0 && f.p == 1);
    near(f.interval.high, DQ_Z95 * DQ_Z95 / (500 + DQ_Z95 * DQ_Z95), 1e-9);
    near(f.interval.low, -f.interval.high, 1e-9);
    assert_true(isnan(dq_stat_flips_of(before, after, NULL, 0).interval.low));
}

/* Scores between 0 and 1: falls and rises count, and delta is what the means differ by. */
TEST(test_fractions)
{
    const double before[] = {1, .5, .25, 0, .75, 1}, after[] = {.75, .5, 0, 0, .5, .5};
    dq_interval interval;
    const dq_stat_flips f = dq_stat_flips_of(before, after, NULL, 6);
    assert_true(f.n01 == 4 && f.n10 == 0 && f.clusters == 6);
    near(f.delta, -1.25 / 6, 1e-15);
    near(f.std_err, sqrt((.40625 + 0.03125 - 1.25 * 1.25 / 6) / 5 / 6), 1e-12);
    near(f.interval.low, f.delta - t95(5) * f.std_err, 1e-12);
    near(f.p, 2.0 / 16, 1e-12);
    const dq_mean m = dq_mean_of_scores(before, NULL, 6, &interval);
    near(m.value, 3.5 / 6, 1e-15);
    near(interval.high, m.value + t95(5) * m.std_err, 1e-12);
}

/* 4 queries in 3 runs: what runs share is not counted three times. */
TEST(test_clustered_flips)
{
    const double before[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0},
                 after[] = {0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0};
    const double mean[] = {-1, 0, 0, 0}, means[] = {1, 1, 1, 0};
    const int32_t cluster[] = {0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3};
    dq_interval interval;
    dq_stat_flips f = dq_stat_flips_of(before, after, cluster, 12);
    dq_mean want = dq_mean_of(mean, 4), m;
    assert_true(f.n01 == 3 && f.n10 == 0 && f.clusters == 4 && f.clustered);
    near(f.delta, -.25, 1e-15);
    near(f.std_err, want.std_err, 1e-15);
    near(f.p, t_tails(1, 3), 1e-12); /* McNemar: 0.25, as if there were 12 items */
    near(f.interval.low, -.25 - t95(3) * want.std_err, 1e-12);
    f = dq_stat_flips_of(before, before, cluster, 12);
    near(f.interval.high, DQ_Z95 * DQ_Z95 / (4 + DQ_Z95 * DQ_Z95), 1e-9);
    assert_true(f.p == 1);
    f = dq_stat_flips_of(before, after, cluster, 3); /* one cluster */
    assert_true(isnan(f.interval.low) && isnan(f.std_err) && f.clusters == 1);
    m = dq_mean_of_scores(before, cluster, 12, &interval);
    want = dq_mean_of(means, 4);
    near(m.value, .75, 1e-15);
    near(m.std_err, want.std_err, 1e-15);
    assert_int_equal(m.clusters, 4);
    m = dq_mean_of_scores(before, cluster, 9, &interval); /* all right: a lower bound */
    near(interval.low, 1 - DQ_Z95 * DQ_Z95 / (3 + DQ_Z95 * DQ_Z95), 1e-12);
    assert_true(m.value == 1 && interval.high == 1);
}

/* A question that stands five times, and five that stand once, are six pieces: the ratio estimate. */
TEST(test_clusters_of_any_size)
{
    const double score[] = {1, 1, 1, 1, 1, 0, 1, 0, 0, 1}, total[] = {5, 0, 1, 0, 0, 1},
                 size[] = {5, 1, 1, 1, 1, 1};
    const int32_t cluster[] = {0, 0, 0, 0, 0, 1, 2, 3, 4, 5};
    double squares = 0;
    dq_interval interval;
    for (int c = 0; c < 6; c++) squares += (total[c] - .7 * size[c]) * (total[c] - .7 * size[c]);
    const dq_mean m = dq_mean_of_scores(score, cluster, 10, &interval);
    near(m.value, .7, 1e-15);
    near(m.std_err, sqrt(6.0 / 5 * squares) / 10, 1e-12);
    assert_int_equal(m.clusters, 6);
    near(interval.high, .7 + t95(5) * m.std_err, 1e-12);
}

/* The table of Student's t, and mpmath's incomplete beta function. */
TEST(test_t)
{
    static const struct {
        int64_t df;
        double t;
    } want[] = {{1, 12.706204736174705},  {2, 4.302652729749464},    {3, 3.182446305283710},
                {4, 2.776445105197794},   {9, 2.262157162798206},    {29, 2.045229642132704},
                {30, 2.042272456301238},  {100, 1.983971518523552},  {101, 1.983731002955606},
                {250, 1.969498393421185}, {1000, 1.962339080826408}, {10041, 1.960200271000866}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        near(t95(want[i].df), want[i].t, 1e-8);
        near(t_beyond(0.05, want[i].df), want[i].t, 1e-7);
    }
    assert_true(fabs(t_tails(t_beyond(1e-6, 9), 9) - 1e-6) < 1e-12);
    near(t_tails(2, 5), 0.10193947883, 1e-10);
    near(t_tails(-0.5, 1), 0.704832764699, 1e-10);
    near(t_tails(3.3, 40), 0.00203881222245, 1e-10);
    near(t_tails(1, 1000001), 0.317310749833, 1e-8);
    assert_true(t_tails(0, 7) == 1 && t_tails(1e9, 7) >= 0);
    assert_true(isnan(dq_interval_t(1, 0.5, 1).low));
    near(dq_interval_t(1, 0.5, 4).high, 1 + 0.5 * 3.182446305283710, 1e-12);
}

/* Tango's interval against a search for the constrained maximum of the likelihood; Wilson's by hand. */
TEST(test_score_intervals)
{
    static const struct {
        int64_t up, down, n;
        double low, high;
    } want[] = {{1, 0, 300, -0.009352, 0.018637},
                {40, 10, 500, 0.033718, 0.089406},
                {150, 86, 1600, 0.021362, 0.058998},
                {3, 5, 40, -0.204460, 0.101208},
                {9, 1, 10, 0.191700, 0.964248}};
    const double zz = DQ_Z95 * DQ_Z95;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const dq_interval x = paired_interval(want[i].up, want[i].down, want[i].n);
        const dq_interval y = paired_interval(want[i].down, want[i].up, want[i].n);
        assert_true(fabs(x.low - want[i].low) < 2e-6 && fabs(x.high - want[i].high) < 2e-6);
        assert_true(fabs(y.low + want[i].high) < 2e-6 && fabs(y.high + want[i].low) < 2e-6);
    }
    dq_interval x = paired_interval(20, 0, 20);
    near(x.low, (20 - zz) / (20 + zz), 1e-9);
    near(x.high, 1, 1e-12);
    x = share_interval(0, 10);
    assert_true(x.low == 0);
    near(x.high, zz / (10 + zz), 1e-12);
    x = share_interval(6, 10);
    near(x.low, 0.31267, 1e-4);
    near(x.high, 0.83182, 1e-4);
    assert_true(isnan(share_interval(0, 0).low) && isnan(paired_interval(0, 0, 0).low));
}

/* How many more pieces would decide a mean of so many, or counts of items. */
static int64_t missing(double loss, double std_err, int64_t n, int64_t gained, int64_t lost,
                       double margin)
{
    dq_interval_loss l = {loss, std_err, dq_interval_t(loss, std_err, n), n, gained, lost};
    if (lost >= 0) l.interval = paired_interval(lost, gained, n);
    return dq_interval_missing(&l, margin);
}

/* As many times the items as are said to decide do, and a tenth less does not. */
static void counts_decide(int64_t gained, int64_t lost, int64_t n)
{
    const double d = (double)(lost - gained) / (double)n;
    if (dq_interval_decide(paired_interval(lost, gained, n), 0.013) != DQ_INCONCLUSIVE) return;
    const int64_t more = missing(d, 0, n, gained, lost, 0.013), times = (n + more) / n + 1;
    assert_true(more >= 1);
    assert_int_not_equal(
        dq_interval_decide(paired_interval(times * lost, times * gained, times * n), 0.013),
        DQ_INCONCLUSIVE);
    const int64_t fewer = (n + more) * 9 / 10 / n;
    if (fewer < 1) return;
    assert_int_equal(
        dq_interval_decide(paired_interval(fewer * lost, fewer * gained, fewer * n), 0.013),
        DQ_INCONCLUSIVE);
}

TEST(test_margin)
{
    assert_int_equal(dq_interval_decide((dq_interval){-0.02, 0.01}, 0.01), DQ_WITHIN);
    assert_int_equal(dq_interval_decide((dq_interval){-0.02, 0.0101}, 0.01), DQ_INCONCLUSIVE);
    assert_int_equal(dq_interval_decide((dq_interval){0.01, 0.03}, 0.01), DQ_INCONCLUSIVE);
    assert_int_equal(dq_interval_decide((dq_interval){0.0101, 0.03}, 0.01), DQ_EXCEEDS);
    assert_int_equal(dq_interval_decide(dq_interval_none, 0.01), DQ_INCONCLUSIVE);
    /* half as wide: four times as many, less what the smaller quantile of t saves */
    assert_int_equal(missing(0, 0.01, 100, -1, -1, 0.01), 287);
    assert_int_equal(missing(3.2, 1.3287, 4, -1, -1, 0.01), 2);
    assert_int_equal(missing(0.02, 0.004, 3, -1, -1, 0.01), 2);
    assert_int_equal(missing(0.01, 0.01, 100, -1, -1, 0.01), 0); /* on the margin: never */
    assert_int_equal(missing(0, 0, 60, -1, -1, 0.01), 381 - 60);
    assert_int_equal(missing(0, 0, 60, 0, 0, 0.01), 381 - 60);
    assert_int_equal(dq_interval_decide(paired_interval(0, 0, 381), 0.01), DQ_WITHIN);
    assert_int_equal(dq_interval_decide(paired_interval(0, 0, 380), 0.01), DQ_INCONCLUSIVE);
    assert_int_equal(missing(0, 0, 60, -1, -1, 1e-300), 0);
    const dq_interval_loss alone = {
        .clusters = 1, .interval = dq_interval_none, .gained = -1, .lost = -1};
    assert_int_equal(dq_interval_missing(&alone, 0.01), 0);
    for (int64_t lost = 0; lost < 9; lost++)
        for (int64_t gained = 0; gained < 9; gained++) counts_decide(gained, lost, 100);
}

static double normal(dq_random *r)
{
    const double u = ((double)(dq_random_next(r) >> 11) + 0.5) / 9007199254740992.0;
    const double v = (double)(dq_random_next(r) >> 11) / 9007199254740992.0;
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* Shares of draws of n lognormal values whose upper end by t, and by t_skewed, is below their mean. */
static void count_misses(double miss[2], double sigma, int n, double share)
{
    enum { DRAWS = 8000 };
    dq_random r = dq_random_of(7, (uint64_t)n);
    double x[60];
    miss[0] = miss[1] = 0;
    for (int k = 0; k < DRAWS; k++) {
        double two = 0, three = 0;
        for (int i = 0; i < n; i++) x[i] = exp(sigma * normal(&r) - sigma * sigma / 2); /* mean 1 */
        const dq_mean m = dq_mean_of(x, n);
        for (int i = 0; i < n; i++) {
            two += pow(x[i] - m.value, 2) / n;
            three += pow(x[i] - m.value, 3) / n;
        }
        const double skew = three / pow(two, 1.5);
        miss[0] += t_outside(m.value, m.std_err, n, share).high < 1;
        miss[1] += dq_interval_t_skewed(m.value, m.std_err, n, skew, share).high < 1;
    }
    for (int i = 0; i < 2; i++) miss[i] /= DRAWS;
}

/* Upper ends of skewed means. The ends by t are missed about twice as often at least; what is left of it is stated. */
TEST(test_skewed)
{
    static const struct {
        double sigma;
        int n;
        double most; /* of 0.025 nominally */
    } want[] = {{0.5, 10, 0.06}, {0.5, 16, 0.05}, {0.5, 30, 0.042}, {0.5, 60, 0.038},
                {1, 10, 0.095},  {1, 16, 0.085},  {1, 30, 0.066},   {1, 60, 0.055}};
    double miss[2];
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        count_misses(miss, want[i].sigma, want[i].n, 0.05);
        if (!(miss[1] <= want[i].most && miss[0] >= 1.3 * miss[1]))
            fail_msg("sigma %g, n %d: missed %.4f by t, %.4f", want[i].sigma, want[i].n, miss[0],
                     miss[1]);
    }
    const dq_interval t = t_outside(2, 0.1, 9, 0.05);
    assert_true(dq_interval_t_skewed(2, 0.1, 9, 0, 0.05).high == t.high);
    assert_true(dq_interval_t_skewed(2, 0.1, 9, -1, 0.05).high == t.high);
    assert_true(dq_interval_t_skewed(2, 0.1, 9, 1, 0.05).low == t.low);
    near(dq_interval_t_skewed(-2, 0.1, 9, -1, 0.05).low,
         -dq_interval_t_skewed(2, 0.1, 9, 1, 0.05).high, 1e-15);
    /* worked out with NumPy */
    near(dq_interval_t_skewed(2, 0.1, 9, 1, 0.05).high, 2.36266863606537, 1e-7);
    near(dq_interval_t_skewed(2, 0.1, 9, 1e-5, 0.05).high, t.high, 1e-5);
    assert_true(isnan(dq_interval_t_skewed(2, 0.1, 1, 1, 0.05).high));
    assert_true(isnan(dq_interval_t_skewed(2, (double)NAN, 9, 1, 0.05).high));
}

TEST(test_percentiles)
{
    double x[] = {5, 1, 4, 2, 3};
    dq_stat_sort(x, 5);
    near(dq_stat_percentile(x, 5, 0.5), 3, 0);
    near(dq_stat_percentile(x, 5, 0.9), 4.6, 1e-15);
    near(dq_stat_percentile(x, 5, 0), 1, 0);
    near(dq_stat_percentile(x, 5, 1), 5, 0);
    near(dq_stat_percentile(x, 1, 0.99), 1, 0);
    assert_true(isnan(dq_stat_percentile(x, 0, 0.5)));
}
