/* test_plan_alloc: every point of a curve against all choices of small cases, what a budget leaves, and what is not convex.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/random.h"
#include "plan/plan_weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ITEMS = 5 };

static dq_plan_item random_item(dq_random *r)
{
    dq_plan_item t = {.n = 1 + (int)dq_random_below(r, 4)};
    double cost = (double)dq_random_below(r, 20), loss = 100;
    for (int i = 0; i < t.n; i++) {
        t.cost[i] = cost += 1 + (double)dq_random_below(r, 9);
        t.loss[i] = loss = loss * (0.2 + (double)dq_random_below(r, 90) / 100); /* some rise */
    }
    return t;
}

static double least(const dq_plan_item *t, int option)
{
    double x = t->loss[0];
    for (int i = 1; i <= option; i++) x = fmin(x, t->loss[i]);
    return x;
}

/* The least loss of all choices that cost at most `cost`. */
static double best_of(const dq_plan_item *item, int n, double cost)
{
    int choice[ITEMS] = {0};
    double best = (double)INFINITY;
    for (;;) {
        double c = 0, l = 0;
        for (int i = 0; i < n; i++) c += item[i].cost[choice[i]], l += least(&item[i], choice[i]);
        if (c <= cost && l < best) best = l;
        int i = 0;
        while (i < n && ++choice[i] == item[i].n) choice[i++] = 0;
        if (i == n) return best;
    }
}

TEST(points_are_best)
{
    dq_random r = dq_random_of(15, 1);
    for (int round = 0; round < 300; round++) {
        dq_arena *a = dq_arena_new();
        dq_err err = {0};
        dq_plan_item item[ITEMS];
        dq_plan_curve c;
        int choice[ITEMS];
        for (int i = 0; i < ITEMS; i++) item[i] = random_item(&r);
        assert_int_equal(dq_plan_alloc_curve(&c, item, ITEMS, a, &err), DQ_OK);
        for (int64_t k = 0; k < c.n; k++) {
            const double best = best_of(item, ITEMS, c.cost[k]);
            assert_true(fabs(c.loss[k] - best) <= 1e-9 * (1 + best));
            dq_plan_alloc_at(choice, &c, k);
            assert_true(dq_plan_alloc_cost(&c, choice) == c.cost[k]);
            assert_true(dq_plan_alloc_loss(&c, choice) == c.loss[k]);
            if (k > 0) assert_true(c.cost[k] > c.cost[k - 1] && c.loss[k] <= c.loss[k - 1]);
        }
        for (int i = 0; i < ITEMS; i++) assert_int_equal(choice[i], item[i].n - 1);
        /* between two points: never beyond the budget, no worse than the point, and the best has at most what one
         * step saves less */
        for (int64_t k = 0; k + 1 < c.n; k++) {
            const double budget = (c.cost[k] + c.cost[k + 1]) / 2;
            assert_int_equal(dq_plan_alloc_by_cost(&c, budget), k);
            dq_plan_alloc_at(choice, &c, k);
            dq_plan_alloc_fill(choice, &c, k, budget);
            const double loss = dq_plan_alloc_loss(&c, choice);
            assert_true(dq_plan_alloc_cost(&c, choice) <= budget && loss <= c.loss[k]);
            assert_true(loss - best_of(item, ITEMS, budget) <= c.loss[k] - c.loss[k + 1] + 1e-9);
        }
        dq_arena_free(a);
    }
}

TEST(budgets_have_ends)
{
    const dq_plan_item item[2] = {{.n = 3, .cost = {2, 3, 4}, .loss = {8, 4, 2}},
                                  {.n = 1, .cost = {5}, .loss = {1}}};
    dq_arena *a = dq_arena_new();
    dq_err err = {0};
    dq_plan_curve c;
    assert_int_equal(dq_plan_alloc_curve(&c, item, 2, a, &err), DQ_OK);
    assert_int_equal(c.n, 3);
    assert_int_equal(dq_plan_alloc_by_cost(&c, 6.9), -1);
    assert_int_equal(dq_plan_alloc_by_cost(&c, 7), 0);
    assert_int_equal(dq_plan_alloc_by_cost(&c, 1e9), 2);
    assert_int_equal(dq_plan_alloc_by_loss(&c, 9), 0);
    assert_int_equal(dq_plan_alloc_by_loss(&c, 4.9), 2);
    assert_int_equal(dq_plan_alloc_by_loss(&c, 2.9), 3);
    dq_arena_free(a);
}

/* An option above the hull is no point of the curve; a budget that ends before a step goes to later ones. */
TEST(hull_and_fill)
{
    const dq_plan_item item[2] = {{.n = 3, .cost = {2, 3, 4}, .loss = {8, 7, 2}},
                                  {.n = 2, .cost = {1, 2}, .loss = {1, 0.5}}};
    dq_arena *a = dq_arena_new();
    dq_err err = {0};
    dq_plan_curve c;
    int choice[2];
    assert_int_equal(dq_plan_alloc_curve(&c, item, 2, a, &err), DQ_OK);
    assert_int_equal(c.n, 3);
    assert_true(c.step[0].item == 0 && c.step[0].to == 2);
    dq_plan_alloc_at(choice, &c, 0);
    dq_plan_alloc_fill(choice, &c, 0, 4);
    assert_true(choice[0] == 0 &&
                choice[1] == 1); /* the next step is too dear, the one after it is not */
    dq_arena_free(a);
}
