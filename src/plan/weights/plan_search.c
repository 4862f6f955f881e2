/* plan_search: see plan_search.h. `low` is the dearest point that misses, `high` the cheapest that keeps the budget.
 * SPDX-License-Identifier: MIT */
#include "plan/weights/plan_search.h"

static int64_t clamp(int64_t k, int64_t low, int64_t high)
{
    return k <= low ? low + 1 : k >= high ? high - 1 : k;
}

static int64_t middle_of(const dq_plan_curve *c, int64_t low, int64_t high)
{
    const double from = c->cost[low < 0 ? 0 : low], to = c->cost[high < c->n ? high : c->n - 1];
    return dq_plan_alloc_by_cost(c, (from + to) / 2);
}

/* While all points that were measured keep the budget: at least 1 % of the cost below them, so that one that misses is known soon.
 * The middle of what is left would be far away. */
static int64_t below(const dq_plan_curve *c, int64_t high, int64_t next)
{
    const int64_t k = dq_plan_alloc_by_cost(c, 0.99 * c->cost[high]);
    return next < k ? next : k;
}

static bool is_close(const dq_plan_curve *c, int64_t low, int64_t high)
{
    if (high - low <= 1) return true;
    return low >= 0 && high < c->n && c->cost[high] - c->cost[low] <= 0.002 * c->cost[high];
}

dq_status dq_plan_search_run(int64_t *point, const dq_plan_search *s, dq_err *err)
{
    const dq_plan_curve *c = s->curve;
    int64_t low = -1, high = c->n, next = dq_plan_alloc_by_loss(c, s->budget);
    for (int i = 0; i < s->max && !is_close(c, low, high); i++) {
        double upper;
        if (i == s->max - 1 && high == c->n) next = c->n - 1;
        const int64_t k = clamp(next, low, high);
        DQ_TRY(s->measure(s->arg, k, &upper, err));
        if (upper <= s->budget)
            high = k;
        else
            low = k;
        const double factor = c->loss[k] > 0 ? upper / c->loss[k] : 0;
        next = factor > 0 ? dq_plan_alloc_by_loss(c, s->budget / factor) : middle_of(c, low, high);
        if (low < 0)
            next = below(c, high, next);
        else if (i % 3 == 2)
            next = middle_of(c, low, high);
    }
    *point = high < c->n ? high : -1;
    return DQ_OK;
}

int64_t dq_plan_search_next(const dq_plan_curve *c, int64_t point)
{
    if (point + 1 >= c->n) return -1;
    const int64_t k = dq_plan_alloc_by_loss(c, 0.9 * c->loss[point]);
    return k < c->n ? (k > point ? k : point + 1) : c->n - 1;
}
