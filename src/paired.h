/* paired: means with standard errors, paired comparisons of the same items, percentiles.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PAIRED_H
#define DQ_PAIRED_H

#include "base.h"

/* std_err is NaN where there are too few values for one. */
typedef struct dq_mean {
    double value, std_err;
} dq_mean;

/* Mean of independent values: sample standard deviation / sqrt(n). */
dq_mean dq_mean_of(const double *x, int64_t n);
/* k of n: sqrt(p (1 - p) / (n - 1)), the same thing for zeros and ones. */
dq_mean dq_share(int64_t k, int64_t n);
/* Mean of n_clusters consecutive clusters of `size` values each; values of one cluster may depend on
 * each other, so the standard error is that of the clusters' means. One cluster alone: values count
 * as independent. */
dq_mean dq_mean_clustered(const double *x, int64_t n_clusters, int64_t size);

/* The same n items judged twice. */
typedef struct dq_flips {
    int64_t n, n01, n10; /* right becomes wrong, wrong becomes right */
    double delta;        /* (n10 - n01) / n */
    double std_err;      /* of delta, by the pairing */
    double p;            /* exact two-sided McNemar test */
} dq_flips;
dq_flips dq_flips_of(const bool *before, const bool *after, int64_t n);
double dq_mcnemar(int64_t n01, int64_t n10);

/* Value at fraction f of ascending values, linear between neighbours at f * (n - 1); NaN if n = 0. */
double dq_percentile(const double *sorted, int64_t n, double f);
void dq_sort(double *x, int64_t n);

#endif
