/* plan_search: the cheapest point of a curve that keeps a budget, with few measurements. What a point loses is measured; what
 * the curve predicts for it is off by a factor that changes little from point to point.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_SEARCH_H
#define DQ_PLAN_SEARCH_H

#include "plan/plan_alloc.h"

typedef struct dq_plan_search {
    const dq_plan_curve *curve;
    double budget; /* in the unit of the curve's loss */
    int max;       /* measurements */
    /* Of a point: what is compared with the budget; after that, whatever the caller keeps. */
    dq_status (*measure)(void *arg, int64_t point, double *upper, dq_err *err);
    void *arg;
} dq_plan_search;

/* *point: the cheapest that was found to keep the budget, -1: none was. Measured are the point that the prediction names, then
 * the one that it names times what was measured over what was predicted, between those known to miss and to keep it; every
 * third time the middle of them, in cost, and while none is known to miss one of at least 1 % less cost. It ends where no point lies between, where they cost the same to 2 per mille,
 * or after `max` measurements, the last of which is the dearest point if none has kept the budget by then. */
dq_status dq_plan_search_run(int64_t *point, const dq_plan_search *s, dq_err *err);
/* The next dearer point that is predicted to lose a tenth less; the last one where none is, -1 after that. */
int64_t dq_plan_search_next(const dq_plan_curve *c, int64_t point);

#endif
