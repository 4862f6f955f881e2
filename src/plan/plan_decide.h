/* plan_decide: which model is looked at next on the unseen text, how sure a look must be, when a budget is met, and when a
 * uniform width is taken. Numbers go in, decisions come out.
 *
 * The search text proposes: the uniform width that keeps the budget there, if one is no dearer than the cheapest point of the
 * curve that does; then that point; then points further up, each of which is predicted to lose a tenth less; the last look is
 * the dearest point. The unseen text only says yes or no. Look j leaves 0.05 / 2^(j - 1) outside of its interval, half of it
 * above, so that the chances to accept a model that misses add up to 5 % over any number of looks.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_DECIDE_H
#define DQ_PLAN_DECIDE_H

#include "plan/plan_alloc.h"
#include "stat/stat.h"

/* For one budget; in all, beyond which no interval is computed. */
enum { DQ_PLAN_MAX_LOOK = 8, DQ_PLAN_LAST_LOOK = 24 };

/* What lies outside of the interval of a look, which are counted from 1; and of each of n differences shown with it, so that
 * those of all looks together hold 5 % as well, wherever the plan stops. */
double dq_plan_decide_outside(int look);
double dq_plan_decide_outside_of(int look, int n);
/* The upper end is at most the limit. Without an interval it is not. */
bool dq_plan_decide_keeps(dq_interval i, double limit);

/* The looks of one budget of quality. */
typedef struct dq_plan_decider {
    const dq_plan_curve *curve;
    int max;       /* looks */
    double limit;  /* of the upper end */
    int64_t point; /* the cheapest that keeps the budget on the search text; -1: none */
    bool uniform;  /* a uniform width goes before it */
    /* private */
    int n;
    bool met, at_uniform;
} dq_plan_decider;

typedef enum dq_plan_turn {
    DQ_PLAN_TURN_UNIFORM, /* look at the uniform width */
    DQ_PLAN_TURN_POINT,   /* look at l->point */
    DQ_PLAN_TURN_END      /* l->met says how it went */
} dq_plan_turn;
/* Moves on, and puts l->point where it is to be looked at. */
dq_plan_turn dq_plan_decide_turn(dq_plan_decider *l);
/* What was found there (its mean, and the skewness of what that is over), at a look of that number. */
dq_interval dq_plan_decide_look(dq_plan_decider *l, dq_mean found, double skew, int look);
/* Of such a mean, nominally: see dq_interval_t_skewed. */
dq_interval dq_plan_decide_interval(dq_mean m, double skew, double outside);

/* The same of what is not below 0, as a KLD. */
dq_interval dq_plan_decide_kld(dq_mean m, double skew, double outside);

/* Mean per token of sums over clusters, with the error between these. ids[n]: tokens of each. DQ_RESOURCE. */
dq_status dq_plan_decide_mean(dq_mean *out, const double *sums, const int64_t *ids, int64_t n,
                              dq_err *err);
/* Skewness of what the error is over: sums less what the mean gives for as many tokens. 0 where all are alike. */
double dq_plan_decide_skew(const double *sums, const int64_t *ids, int64_t n);

/* A model for a budget of size, with its KLD on the search text. */
typedef struct dq_plan_offer {
    double excess; /* bytes beyond the budget; above 0: does not fit */
    double kld;
} dq_plan_offer;
/* Whether the uniform width is taken, of those that fit: where it is closer on the search text. */
bool dq_plan_decide_uniform(dq_plan_offer mix, dq_plan_offer uniform);

#endif
