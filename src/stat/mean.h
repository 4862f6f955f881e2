/* mean: means with standard errors, paired comparisons of the same items, percentiles.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_MEAN_H
#define DQ_MEAN_H

#include "stat/interval.h"

/* std_err is NaN where there are too few values for one. */
typedef struct dq_mean {
    double value, std_err;
    int64_t clusters; /* independent pieces that std_err is over: values, or clusters of them */
} dq_mean;
extern const dq_mean dq_mean_none;
/* By Student's t with one degree of freedom less than there are clusters. */
dq_interval dq_mean_interval(dq_mean m);

/* Mean of independent values: sample standard deviation / sqrt(n). */
dq_mean dq_mean_of(const double *x, int64_t n);
/* k of n: sqrt(p (1 - p) / (n - 1)), the same thing for zeros and ones. */
dq_mean dq_mean_share(int64_t k, int64_t n);
/* Mean of n values in clusters of any sizes: values of one cluster stand side by side and have its number.
 * They may depend on each other, so the standard error is that of a ratio of cluster totals T_c and sizes
 * n_c: with m = sum T_c / sum n_c, its square is C / (C - 1) sum (T_c - m n_c)^2 / (sum n_c)^2. Clusters of
 * equal size give the standard error of their means. One cluster alone has none.
 * Source: the ratio estimate of Cochran, Sampling Techniques, chapter 6, of a small sample. */
dq_mean dq_mean_clustered(const double *x, const int32_t *cluster, int64_t n);

/* Scores of n items, each 0 (wrong) to 1, in clusters as dq_mean_clustered has them; cluster NULL: all are independent. Of
 * independent zeros and ones: their share with dq_interval_share; else a mean with an interval by t, or
 * dq_interval_still where all pieces are the same. */
dq_mean dq_mean_of_scores(const double *score, const int32_t *cluster, int64_t n,
                          dq_interval *interval);

/* The same items scored twice. */
typedef struct dq_stat_flips {
    /* Items whose score falls, rises: right becomes wrong, wrong becomes right. */
    int64_t n, n01, n10;
    int64_t clusters;
    double delta;   /* mean of after - before */
    double std_err; /* of delta, by the pairing */
    dq_interval interval;
    /* Two-sided: exact McNemar test (of scores between 0 and 1, sign test), or where items are clustered the t test of
     * delta. */
    double p;
    bool clustered;
    bool counted; /* independent zeros and ones: the interval is dq_interval_paired's */
} dq_stat_flips;
dq_stat_flips dq_stat_flips_of(const double *before, const double *after, const int32_t *cluster,
                               int64_t n);
double dq_stat_mcnemar(int64_t n01, int64_t n10);

/* Value at fraction f of ascending values, linear between neighbours at f * (n - 1); NaN if n = 0. */
double dq_stat_percentile(const double *sorted, int64_t n, double f);
void dq_stat_sort(double *x, int64_t n);

#endif
