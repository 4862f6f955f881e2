/* rank: see rank.h. Indices are sorted by value, and runs of equal values share the mean of their places.
 * SPDX-License-Identifier: MIT */
#include "stat/rank.h"

#include <math.h>
#include <stdlib.h>

typedef struct entry {
    double value;
    int64_t at;
} entry;

static int by_value(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->value < y->value) return -1;
    if (x->value > y->value) return 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* rank[n] of x[n], from 0. */
static void find_ranks(double *rank, entry *e, const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) e[i] = (entry){x[i], i};
    qsort(e, (size_t)n, sizeof *e, by_value);
    for (int64_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && !(e[end].value > e[i].value);) end++;
        for (int64_t k = i; k < end; k++) rank[e[k].at] = (double)(i + end - 1) / 2;
    }
}

/* Of ranks, whose mean is the middle whatever the ties: all sums are exact, so that no order at all gives 0. */
static double correlation(const double *x, const double *y, int64_t n)
{
    const double mean = (double)(n - 1) / 2;
    double xx = 0, yy = 0, xy = 0;
    for (int64_t i = 0; i < n; i++) {
        xx += (x[i] - mean) * (x[i] - mean);
        yy += (y[i] - mean) * (y[i] - mean);
        xy += (x[i] - mean) * (y[i] - mean);
    }
    return xx > 0 && yy > 0 ? fmax(-1, fmin(1, xy / sqrt(xx * yy))) : (double)NAN;
}

static dq_interval interval_of(double r, int64_t n)
{
    if (!(fabs(r) < 1) || n < 4) return dq_interval_none;
    const double z = atanh(r), half = DQ_Z95 * sqrt((1 + r * r / 2) / (double)(n - 3));
    return (dq_interval){tanh(z - half), tanh(z + half)};
}

dq_status dq_rank_spearman(double *r, dq_interval *interval, const double *x, const double *y,
                           int64_t n, dq_err *err)
{
    *r = (double)NAN;
    if (interval) *interval = dq_interval_none;
    if (n < 2) return DQ_OK;
    double *rank = dq_block_new((size_t)n, 2 * sizeof *rank, err);
    entry *e = dq_block_new((size_t)n, sizeof *e, err);
    if (err->code == DQ_OK) {
        find_ranks(rank, e, x, n);
        find_ranks(rank + n, e, y, n);
        *r = correlation(rank, rank + n, n);
        if (interval) *interval = interval_of(*r, n);
    }
    dq_block_free(rank);
    dq_block_free(e);
    return err->code;
}
