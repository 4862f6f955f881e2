/* interval: 95 % confidence intervals, and what they say about a loss that must not exceed a margin.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_INTERVAL_H
#define DQ_INTERVAL_H

#include "base/base.h"

/* Of 95 %, both sides; NaN twice where there is none. */
typedef struct dq_interval {
    double low, high;
} dq_interval;
extern const dq_interval dq_interval_none;

#define DQ_Z95 1.959963984540054 /* 97.5 % of the normal distribution lie below it */

/* Student's t with df >= 1: 97.5 % lie below dq_interval_t95, and dq_interval_t_tails(t) lie beyond -|t| and |t|. */
double dq_interval_t95(int64_t df);
double dq_interval_t_tails(double t, int64_t df);
/* The t with dq_interval_t_tails(t) = share, for a share of 1e-9 or more. */
double dq_interval_t_beyond(double share, int64_t df);

/* Mean +- t95 standard errors over `clusters` independent pieces; none below two of them. */
dq_interval dq_interval_t(double mean, double std_err, int64_t clusters);
/* The same of which a share lies outside instead of 5 %. */
dq_interval dq_interval_t_outside(double mean, double std_err, int64_t clusters, double share);
/* The same for a mean of skewed values, where the end by t on the side of the long tail lies too near: that end by Hall's
 * transformation (Journal of the Royal Statistical Society B 54, 1992) with the quantile of t, the other one by t. skew: of
 * the values about their mean, sum of cubes / n over the 3/2 power of sum of squares / n. */
dq_interval dq_interval_t_skewed(double mean, double std_err, int64_t clusters, double skew,
                                 double share);
/* A share, k of n: Wilson's score interval, which has a width for 0 and n of n as well. */
dq_interval dq_interval_share(int64_t k, int64_t n);
/* (up - down) / n of n pairs of which `up` went up and `down` went down: Tango's score interval (Statistics in
 * Medicine 17, 1998). Without any pair that moved it is +- z^2 / (n + z^2). */
dq_interval dq_interval_paired(int64_t up, int64_t down, int64_t n);
/* A mean of values in low .. high that are all the same over `clusters` pieces, so that nothing is known of their
 * spread: as far to both sides as the intervals above are where nothing moved. */
dq_interval dq_interval_still(double mean, int64_t clusters, double low, double high);

/* A loss against a margin: the whole interval is within it, or exceeds it, or neither. */
typedef enum dq_interval_decision { DQ_INCONCLUSIVE, DQ_WITHIN, DQ_EXCEEDS } dq_interval_decision;
extern const char *const
    dq_interval_decision_name[]; /* "inconclusive", "within the margin", "exceeds the margin" */
dq_interval_decision dq_interval_decide(dq_interval loss, double margin);
/* What was lost, and what its interval is made of. */
typedef struct dq_interval_loss {
    double value, std_err;
    dq_interval interval;
    int64_t clusters; /* independent pieces: items, documents, windows ... */
    /* Items that moved, of an interval by dq_interval_paired; -1: it is a mean's. */
    int64_t gained, lost;
} dq_interval_loss;
/* How many more pieces would decide, roughly: the fewest with which the interval of the same loss, counts or spread
 * scaled, would lie on one side of the margin. At least 1; 0: 10^12 would not, or there is no interval. */
int64_t dq_interval_missing(const dq_interval_loss *l, double margin);

#endif
