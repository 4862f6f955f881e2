/* rank: rank correlation.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_RANK_H
#define DQ_RANK_H

#include "stat/interval.h"

/* Spearman's correlation of x[n] and y[n]: that of their ranks, equal values with the mean of theirs. NaN where one of them
 * is the same everywhere, or for n < 2. *interval (NULL: not wanted): of 95 %, by Fisher's z with the variance (1 + r^2 / 2) / (n - 3)
 * (Bonett and Wright, Psychometrika 65, 2000); none for n < 4. DQ_RESOURCE. */
dq_status dq_rank_spearman(double *r, dq_interval *interval, const double *x, const double *y,
                           int64_t n, dq_err *err);

#endif
