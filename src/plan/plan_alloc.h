/* plan_alloc: which width each tensor gets: the least sum of losses for a sum of costs, where both add up over tensors.
 * Numbers alone, of any unit.
 *
 * Only options on the lower convex hull of a tensor's (cost, loss) can be part of a best choice for some price of cost. The
 * curve begins with the cheapest option of each tensor and goes on by the step that saves most loss for its cost, so that
 * each of its points is the best choice for its cost (Everett 1963, the Lagrangian; for convex hulls the steps are greedy).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_ALLOC_H
#define DQ_PLAN_ALLOC_H

#include "base/base.h"

enum { DQ_PLAN_WIDTHS = 8 };

/* One tensor: n >= 1 options, costs ascending. Losses need not fall: an option that is no better than a cheaper one has the
 * cheaper one's loss, as more bits never hurt and what is measured has errors. */
typedef struct dq_plan_item {
    int n;
    double cost[DQ_PLAN_WIDTHS], loss[DQ_PLAN_WIDTHS];
} dq_plan_item;

typedef struct dq_plan_step {
    int64_t item;
    int to; /* its option from here on */
} dq_plan_step;

/* Points 0 .. n - 1; at point k the first k steps are done. The last one has the largest option of each. */
typedef struct dq_plan_curve {
    const dq_plan_item *item; /* [n_items], the caller's */
    int64_t n_items, n;
    dq_plan_step *step;  /* [n - 1] */
    double *cost, *loss; /* [n] sums */
} dq_plan_curve;

/* Memory in the arena. DQ_RESOURCE. */
dq_status dq_plan_alloc_curve(dq_plan_curve *out, const dq_plan_item *item, int64_t n, dq_arena *a,
                              dq_err *err);
/* choice[n_items]: the options at a point. */
void dq_plan_alloc_at(int *choice, const dq_plan_curve *c, int64_t point);
/* The point of greatest cost that is at most `cost`, -1: none; of least cost whose loss is at most `loss`, n: none. */
int64_t dq_plan_alloc_by_cost(const dq_plan_curve *c, double cost);
int64_t dq_plan_alloc_by_loss(const dq_plan_curve *c, double loss);
/* What a budget leaves behind that point is given to later steps, in their order, as far as it reaches. */
void dq_plan_alloc_fill(int *choice, const dq_plan_curve *c, int64_t point, double cost);
/* Sums of a choice. */
double dq_plan_alloc_cost(const dq_plan_curve *c, const int *choice);
double dq_plan_alloc_loss(const dq_plan_curve *c, const int *choice);

#endif
