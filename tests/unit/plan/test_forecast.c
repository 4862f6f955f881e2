/* Numbers that follow from the sums of a forecast.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "plan/sensitivity.h"

#include <math.h>

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-12 * fabs(want) + 1e-15))
        fail_msg("expected %.17g, found %.17g", want, got);
}

enum { AT_4 = 2, ROW = DQ_GRANULARITY_ROW };

static double cancellation(double first, double second, double both)
{
    dq_forecast_maps x = {.d2 = 1};
    x.first2[AT_4][ROW] = first * first;
    x.second2[AT_4][ROW] = second * second;
    x.both2[AT_4][ROW] = both * both;
    return dq_forecast_cancellation(&x, AT_4, (dq_granularity)ROW);
}

TEST(cancellation_of_maps)
{
    assert_int_equal(dq_forecast_bits[AT_4], 4);
    near(cancellation(0.3, 0.3, 0.6), 1); /* A1' - A1 = -lambda (A2' - A2) */
    near(cancellation(0.3, 0.1, 0.4), 1);
    near(cancellation(0.3, 0.3, 0), 0); /* both maps err alike, and D does not */
    near(cancellation(0.3, 0.3, 0.3 * sqrt(2)), sqrt(0.5));
    near(cancellation(0.3, 0, 0.3), 1); /* one map alone errs */
    assert_true(isnan(cancellation(0, 0, 0)));
}

TEST(error_of_maps)
{
    dq_forecast_maps x = {.d2 = 16}, more = {.d2 = 9};
    x.both2[AT_4][ROW] = 4;
    more.both2[AT_4][ROW] = 2.25;
    near(dq_forecast_map_error(&x, AT_4, (dq_granularity)ROW), 0.5);
    near(dq_forecast_map_error(&x, 0, (dq_granularity)ROW), 0);
    dq_forecast_maps_merge(&x, &more);
    near(x.d2, 25);
    near(dq_forecast_map_error(&x, AT_4, (dq_granularity)ROW), 0.5);
    x.d2 = 0;
    assert_true(isnan(dq_forecast_map_error(&x, AT_4, (dq_granularity)ROW)));
}

TEST(errors_of_logits)
{
    const dq_forecast_logits none = {.n = 0};
    dq_forecast_logits x = {.n = 10, .sum2 = 40};
    const dq_granularity g = DQ_GRANULARITY_HEAD;
    x.absmax2[g] = 10 * 49.0;                            /* A = 7 for all */
    near(dq_forecast_predicted(&x, 4, g), 1 / sqrt(12)); /* a step of 1 */
    near(dq_forecast_predicted(&x, 8, g), 7.0 / 127 / sqrt(12));
    /* steps that are wider than the logits: a logit is off by itself at most */
    near(dq_forecast_predicted(&x, 2, g), 2);
    x.error2[AT_4][g] = 2.5;
    near(dq_forecast_measured(&x, AT_4, g), 0.5);
    assert_true(isnan(dq_forecast_predicted(&none, 4, g)));
    assert_true(isnan(dq_forecast_measured(&none, AT_4, g)));
    /* of two heads, one of them bounded, and one without logits */
    const dq_forecast_logits three[3] = {
        x, {.n = 30, .sum2 = 0.3, .absmax2 = {0, 30 * 49.0, 0, 0}}, none};
    near(dq_forecast_predicted_all(three, 3, 4, g), sqrt((10.0 / 12 + 0.3) / 40));
    assert_true(isnan(dq_forecast_predicted_all(&none, 1, 4, g)));
    dq_forecast_logits_merge(&x, &three[1]);
    assert_int_equal(x.n, 40);
    near(x.sum2, 40.3);
    near(x.absmax2[g], 40 * 49.0);
}

/* ----- bits ----- */

enum { CLUSTERS = 4 };

typedef struct model {
    dq_forecast_logits logits[CLUSTERS];
    dq_forecast_maps maps[CLUSTERS];
    dq_forecast f;
} model;

/* Maxima of clusters as large as these; maps whose error halves with every bit, from these on at 4 bits. */
static void fill(model *m, const double *error, int n)
{
    *m = (model){.f = {.n_clusters = n}};
    m->f.logits_of = m->logits;
    m->f.maps_of = m->maps;
    for (int c = 0; c < n; c++) {
        m->logits[c].n = 5 + c;
        m->logits[c].absmax2[ROW] = (5 + c) * error[c] * error[c];
        m->maps[c].d2 = 3;
        for (int w = 0; w < DQ_FORECAST_WIDTHS; w++)
            m->maps[c].both2[w][ROW] =
                3 * error[c] * error[c] * exp2(2 * (4 - dq_forecast_bits[w]));
    }
}

static dq_forecast_advantage over(const model *a, const model *b, dq_forecast_error of)
{
    dq_forecast_advantage x;
    dq_err err = {0};
    assert_int_equal(dq_forecast_advantage_of(&x, &a->f, &b->f, of, (dq_granularity)ROW, &err),
                     DQ_OK);
    return x;
}

/* Errors twice as large take a bit more, where each bit halves them. */
TEST(bits_of_maps)
{
    const double error[CLUSTERS] = {0.5, 2, 0.125, 1}, doubled[CLUSTERS] = {1, 4, 0.25, 2},
                 less[CLUSTERS] = {0.5 / 4, 2 / sqrt(8), 0.125, 0.5};
    model a, b, c;
    fill(&a, error, CLUSTERS);
    fill(&b, doubled, CLUSTERS);
    fill(&c, less, CLUSTERS);
    dq_forecast_advantage x = over(&a, &b, DQ_FORECAST_OF_MAPS);
    near(x.bits.value, 1);
    near(x.bits.std_err, 0);
    assert_int_equal(x.bits.clusters, CLUSTERS);
    near(x.interval.low, 1);
    near(x.interval.high, 1);
    near(over(&b, &a, DQ_FORECAST_OF_MAPS).bits.value, -1);
    near(over(&a, &a, DQ_FORECAST_OF_MAPS).bits.value, 0);
    /* 2, 1.5, 0 and 1 bits more: what lies between widths is interpolated */
    x = over(&a, &c, DQ_FORECAST_OF_MAPS);
    near(x.bits.value, -1.125);
    near(x.interval.high - x.interval.low, 2 * x.bits.std_err * dq_interval_t(0, 1, CLUSTERS).high);
}

/* Beyond 3 and 8 bits nothing was measured. */
TEST(bits_beyond_the_widths)
{
    const double error[CLUSTERS] = {1, 1, 1, 1}, other[CLUSTERS] = {2, 4, 2, 1.0 / 64};
    model a, b;
    fill(&a, error, CLUSTERS);
    fill(&b, other, CLUSTERS);
    assert_int_equal(over(&a, &b, DQ_FORECAST_OF_MAPS).bits.clusters, 2);
    near(over(&a, &b, DQ_FORECAST_OF_MAPS).bits.value, 1);
}

/* 7 steps of a maximum are 15 of one that is 15 / 7 as large. */
TEST(bits_of_logits)
{
    const double error[CLUSTERS] = {7, 14, 3.5, 1}, more[CLUSTERS] = {15, 30, 7.5, 15.0 / 7};
    model a, b;
    fill(&a, error, CLUSTERS);
    fill(&b, more, CLUSTERS);
    near(over(&b, &a, DQ_FORECAST_OF_LOGITS).bits.value, -1);
    near(over(&b, &a, DQ_FORECAST_OF_LOGITS).bits.std_err, 0);
    near(over(&a, &a, DQ_FORECAST_OF_LOGITS).bits.value, 0);
    near(over(&a, &b, DQ_FORECAST_OF_LOGITS).bits.value, 3 - log2(1 + 7 * 7.0 / 15));
}

TEST(no_advantage)
{
    const double error[CLUSTERS] = {0.5, 2, 0.125, 1};
    model a, b;
    fill(&a, error, 1);
    assert_true(isnan(over(&a, &a, DQ_FORECAST_OF_MAPS).bits.value));
    fill(&a, error, 3);
    fill(&b, error, 4);
    assert_true(isnan(over(&a, &b, DQ_FORECAST_OF_LOGITS).interval.low));
}

/* A window of one token has maps without an error, of which no logarithm says anything. */
TEST(clusters_without_error)
{
    const double error[CLUSTERS] = {0.5, 0, 0.125, 1}, doubled[CLUSTERS] = {1, 0, 0.25, 2};
    model a, b;
    fill(&a, error, CLUSTERS);
    fill(&b, doubled, CLUSTERS);
    near(over(&a, &b, DQ_FORECAST_OF_MAPS).bits.value, 1);
    assert_int_equal(over(&a, &b, DQ_FORECAST_OF_MAPS).bits.clusters, 3);
    fill(&a, error, 2); /* nothing is left of two */
    fill(&b, doubled, 2);
    assert_true(isnan(over(&a, &b, DQ_FORECAST_OF_MAPS).bits.value));
}
