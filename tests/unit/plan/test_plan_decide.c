/* test_plan_decide: the order of looks at the unseen text and their confidence, when a budget is met, how often what misses is
 * accepted, and when a uniform width is taken.
 * SPDX-License-Identifier: MIT */
#include "base/random.h"
#include "plan/plan_weights.h"

#include "tests/rigs/suite.h"
#include <math.h>

enum { POINTS = 40 };

/* Point k costs 10 + k and is predicted to lose 0.97^k. */
static const dq_plan_curve *curve(void)
{
    static double cost[POINTS], loss[POINTS];
    static dq_plan_curve c = {.n = POINTS, .cost = cost, .loss = loss};
    for (int k = 0; k < POINTS; k++) {
        cost[k] = 10 + k;
        loss[k] = pow(0.97, k);
    }
    return &c;
}

static dq_plan_decider decider(int64_t point, bool uniform)
{
    return (dq_plan_decider){
        .curve = curve(), .max = 8, .limit = 1, .point = point, .uniform = uniform};
}

static const dq_mean misses = {2, 0.1, 20}, keeps = {0.5, 0.01, 20};

TEST(confidence)
{
    assert_true(dq_plan_decide_outside(1) == 0.05 && dq_plan_decide_outside(2) == 0.025 &&
                dq_plan_decide_outside(4) == 0.00625);
    double above = 0, differences = 0;
    for (int j = 1; j <= DQ_PLAN_LAST_LOOK; j++) {
        above += dq_plan_decide_outside(j) / 2;
        differences += 2 * dq_plan_decide_outside_of(j, 2);
        assert_true(dq_plan_decide_outside(j) / 2 >
                    1e-9); /* the quantiles of dq_interval_t_skewed */
    }
    assert_true(above > 0.0499 && above < 0.05);
    assert_true(differences > 0.0499 && differences < 0.05);
}

/* A mean between what the first look and the second leave outside is accepted by the first alone. */
TEST(looks_are_widened)
{
    const dq_mean m = {1 - 2.2 * 0.1, 0.1, 20}; /* t of 19: 2.093 at 5 %, 2.433 at 2.5 % */
    for (int number = 1; number <= 3; number++) {
        dq_plan_decider l = decider(3, false);
        assert_int_equal(dq_plan_decide_turn(&l), DQ_PLAN_TURN_POINT);
        const dq_interval i = dq_plan_decide_look(&l, (dq_plan_mean){m, 0}, number);
        assert_true(l.met == (number == 1));
        assert_true(i.high > i.low && (i.high <= 1) == l.met);
    }
    dq_plan_decider l = decider(3, false); /* and by the skewness of what it is over */
    dq_plan_decide_turn(&l);
    dq_plan_decide_look(&l, (dq_plan_mean){m, 2}, 1);
    assert_false(l.met);
    dq_plan_decide_look(&l, (dq_plan_mean){{0.1, (double)NAN, 1}, 0}, 1); /* no interval, no yes */
    assert_false(l.met);
}

/* Point by point further up, each predicted to lose a tenth less, the last look at the dearest. */
TEST(steps_back)
{
    dq_plan_decider l = decider(3, false);
    int64_t last = -1;
    int n = 0;
    while (dq_plan_decide_turn(&l) == DQ_PLAN_TURN_POINT) {
        assert_true(l.point > last);
        if (n == 0) assert_int_equal(l.point, 3);
        if (n > 0 && n < 7)
            assert_true(l.curve->loss[l.point] <= 0.9 * l.curve->loss[last] &&
                        l.curve->loss[l.point - 1] > 0.9 * l.curve->loss[last]);
        last = l.point;
        dq_plan_decide_look(&l, (dq_plan_mean){misses, 0}, ++n);
    }
    assert_int_equal(n, 8);
    assert_int_equal(last, POINTS - 1);
    assert_false(l.met);
}

TEST(ends)
{
    dq_plan_decider l = decider(3, false); /* where the budget is met */
    dq_plan_decide_turn(&l);
    dq_plan_decide_look(&l, (dq_plan_mean){misses, 0}, 1);
    assert_int_equal(dq_plan_decide_turn(&l), DQ_PLAN_TURN_POINT);
    dq_plan_decide_look(&l, (dq_plan_mean){keeps, 0}, 2);
    assert_int_equal(dq_plan_decide_turn(&l), DQ_PLAN_TURN_END);
    assert_true(l.met && l.point > 3);
    l = decider(
        -1, false); /* after the dearest, which is all that is left where the search kept nothing */
    assert_int_equal(dq_plan_decide_turn(&l), DQ_PLAN_TURN_POINT);
    assert_int_equal(l.point, POINTS - 1);
    dq_plan_decide_look(&l, (dq_plan_mean){misses, 0}, 1);
    assert_int_equal(dq_plan_decide_turn(&l), DQ_PLAN_TURN_END);
    assert_false(l.met);
}

/* A uniform width goes first; where it misses, the point that the search found is next, even if both are the same model's. */
TEST(uniform_first)
{
    dq_plan_decider l = decider(5, true);
    assert_int_equal(dq_plan_decide_turn(&l), DQ_PLAN_TURN_UNIFORM);
    dq_plan_decide_look(&l, (dq_plan_mean){misses, 0}, 1);
    assert_int_equal(dq_plan_decide_turn(&l), DQ_PLAN_TURN_POINT);
    assert_int_equal(l.point, 5);
    dq_plan_decide_look(&l, (dq_plan_mean){misses, 0}, 2);
    assert_int_equal(dq_plan_decide_turn(&l), DQ_PLAN_TURN_POINT);
    assert_true(l.point > 5);
    l = decider(POINTS - 1, true);
    dq_plan_decide_turn(&l);
    dq_plan_decide_look(&l, (dq_plan_mean){misses, 0}, 1);
    assert_int_equal(dq_plan_decide_turn(&l), DQ_PLAN_TURN_POINT);
    assert_int_equal(l.point, POINTS - 1);
    dq_plan_decide_look(&l, (dq_plan_mean){misses, 0}, 2);
    assert_int_equal(dq_plan_decide_turn(&l), DQ_PLAN_TURN_END);
}

static double normal(dq_random *r)
{
    const double u = ((double)(dq_random_next(r) >> 11) + 0.5) / 9007199254740992.0;
    const double v = (double)(dq_random_next(r) >> 11) / 9007199254740992.0;
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* Every model misses by nothing at all, which is the hardest to tell: of normal clusters that of at most 5 % of plans is
 * accepted at any of eight looks. Without widening it would be about three times as many. */
TEST(accepts_what_misses)
{
    enum { PLANS = 3000, CLUSTERS = 25 };
    int accepted = 0;
    for (int k = 0; k < PLANS; k++) {
        dq_random r = dq_random_of(11, (uint64_t)k);
        dq_plan_decider l = decider(3, false);
        for (int n = 1; dq_plan_decide_turn(&l) != DQ_PLAN_TURN_END; n++) {
            double x[CLUSTERS];
            for (int i = 0; i < CLUSTERS; i++) x[i] = 1 + 0.3 * normal(&r);
            dq_plan_decide_look(&l, (dq_plan_mean){dq_mean_of(x, CLUSTERS), 0}, n);
        }
        accepted += l.met;
    }
    if (accepted > 0.06 * PLANS || accepted < 0.035 * PLANS)
        fail_msg("%d of %d accepted", accepted, PLANS);
}

/* 1, 1 and 4 over one id each, and a unit without ids; what is scored of a sequence. */
TEST(skewness)
{
    const double alike[] = {2, 4}, sums[] = {1, 0, 1, 4};
    const int64_t two[] = {1, 2}, ids[] = {1, 0, 1, 1};
    dq_plan_mean m;
    dq_err err = {0};
    assert_int_equal(dq_plan_mean_of(&m, sums, ids, 4, &err), DQ_OK);
    assert_true(m.of.value == 2 && fabs(m.skew - sqrt(0.5)) < 1e-15);
    assert_int_equal(dq_plan_mean_of(&m, alike, two, 2, &err), DQ_OK);
    assert_true(m.of.value == 2 && m.skew == 0);
    assert_int_equal(dq_plan_reference_first(1), 1);
    assert_int_equal(dq_plan_reference_first(2), 1);
    assert_int_equal(dq_plan_reference_first(3), 2);
    assert_int_equal(dq_plan_reference_first(192), 97);
}

/* What DQ_PLAN_FEW_CLUSTERS says: shares of upper ends below the truth, of lognormal clusters. */
TEST(few_clusters)
{
    enum { SAMPLES = 20000 };
    static const struct {
        int n;
        double low, high;
    } want[] = {{5, 0.050, 0.060}, {10, 0.044, 0.054}, {DQ_PLAN_FEW_CLUSTERS, 0.037, 0.046}};
    const double sigma = 0.5, truth = exp(sigma * sigma / 2);
    for (size_t w = 0; w < sizeof want / sizeof *want; w++) {
        int below = 0;
        for (int k = 0; k < SAMPLES; k++) {
            dq_random r = dq_random_of(8, (uint64_t)(k * 64 + want[w].n));
            double x[DQ_PLAN_FEW_CLUSTERS];
            int64_t ids[DQ_PLAN_FEW_CLUSTERS];
            for (int i = 0; i < want[w].n; i++) {
                x[i] = exp(sigma * normal(&r));
                ids[i] = 1;
            }
            dq_plan_mean m;
            dq_err err = {0};
            assert_int_equal(dq_plan_mean_of(&m, x, ids, want[w].n, &err), DQ_OK);
            below += dq_plan_interval_kld(m, 0.05).high < truth;
        }
        if (below < want[w].low * SAMPLES || below > want[w].high * SAMPLES)
            fail_msg("%d of %d samples of %d", below, SAMPLES, want[w].n);
    }
}

/* A KLD is not below 0, whatever an interval of few documents says; a difference may be. */
TEST(not_below_zero)
{
    const dq_plan_mean m = {{0.007, 0.004, 5}, 0}, far = {keeps, 0};
    assert_true(dq_plan_interval(m, 0.05).low < 0);
    assert_true(dq_plan_interval_kld(m, 0.05).low == 0);
    assert_true(dq_plan_interval_kld(m, 0.05).high == dq_plan_interval(m, 0.05).high);
    assert_true(dq_plan_interval_kld(far, 0.05).low > 0.4);
}

TEST(uniform_for_size)
{
    assert_true(dq_plan_decide_uniform((dq_plan_offer){-9, 0.2}, (dq_plan_offer){0, 0.1}));
    assert_false(dq_plan_decide_uniform((dq_plan_offer){0, 0.1}, (dq_plan_offer){-9, 0.1}));
    assert_false(dq_plan_decide_uniform((dq_plan_offer){0, 0.1}, (dq_plan_offer){-9, 0.2}));
    assert_false(dq_plan_decide_uniform((dq_plan_offer){-9, 0.2}, (dq_plan_offer){1, 0.1}));
    assert_true(dq_plan_decide_uniform((dq_plan_offer){1, 0.1}, (dq_plan_offer){-9, 0.2}));
    assert_false(dq_plan_decide_uniform((dq_plan_offer){1, 0.1}, (dq_plan_offer){1, 0.01}));
}
