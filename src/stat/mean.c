/* mean: see mean.h. Two walks over the values: the mean, then the squares around it, so that nothing cancels. A
 * cluster counts as one piece. Where all pieces are equal there is no spread to estimate, and the interval is that
 * of counts.
 * SPDX-License-Identifier: MIT */
#include "stat/mean.h"

#include <math.h>
#include <stdlib.h>

static const double none = NAN;
const dq_mean dq_mean_none = {(double)NAN, (double)NAN, 0};

dq_interval dq_mean_interval(dq_mean m)
{
    return dq_interval_t(m.value, m.std_err, m.clusters);
}

dq_mean dq_mean_of(const double *x, int64_t n)
{
    double sum = 0, dev = 0;
    if (n < 1) return dq_mean_none;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    double mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++) dev += (x[i] - mean) * (x[i] - mean);
    return (dq_mean){mean, n < 2 ? none : sqrt(dev / (double)(n - 1) / (double)n), n};
}

dq_mean dq_mean_share(int64_t k, int64_t n)
{
    if (n < 1) return dq_mean_none;
    double p = (double)k / (double)n;
    return (dq_mean){p, n < 2 ? none : sqrt(p * (1 - p) / (double)(n - 1)), n};
}

/* The end of the piece that begins at i: a cluster, or a value where there are none. */
static int64_t piece_end(const int32_t *cluster, int64_t i, int64_t n)
{
    int64_t end = i + 1;
    while (cluster && end < n && cluster[end] == cluster[i]) end++;
    return end;
}

static int64_t count_pieces(const int32_t *cluster, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i = piece_end(cluster, i, n)) count++;
    return count;
}

/* Of x[n], or of after - before, by the ratio estimate over pieces. */
static dq_mean difference_of(const double *before, const double *after, const int32_t *cluster,
                             int64_t n)
{
    const int64_t pieces = count_pieces(cluster, n);
    double sum = 0, squares = 0;
    if (n < 1) return dq_mean_none;
    for (int64_t i = 0; i < n; i++) sum += after[i] - (before ? before[i] : 0);
    const double mean = sum / (double)n;
    for (int64_t i = 0, end; i < n; i = end) {
        double part = 0;
        end = piece_end(cluster, i, n);
        for (int64_t k = i; k < end; k++) part += after[k] - (before ? before[k] : 0);
        const double weight = (double)((end - i) * pieces) / (double)n; /* 1 with equal sizes */
        part = (part / (double)(end - i) - mean) * weight;
        squares += part * part;
    }
    return (dq_mean){
        mean, pieces < 2 ? none : sqrt(squares / (double)(pieces - 1) / (double)pieces), pieces};
}

dq_mean dq_mean_clustered(const double *x, const int32_t *cluster, int64_t n)
{
    return difference_of(NULL, x, cluster, n);
}

double dq_stat_mcnemar(int64_t n01, int64_t n10)
{
    double n = (double)(n01 + n10), sum = 0;
    int64_t low = n01 < n10 ? n01 : n10;
    if (n01 == n10) return 1; /* both tails hold at least half */
    for (int64_t k = 0; k <= low; k++) {
        double x = (double)k;
        sum += exp(lgamma(n + 1) - lgamma(x + 1) - lgamma(n - x + 1) - n * log(2.0));
    }
    return 2 * sum < 1 ? 2 * sum : 1;
}

static bool is_whole(double x)
{
    return x == 0 || x == 1;
}

/* Pieces that are all the same have a spread that is not known, not one of 0. */
static dq_interval interval_of(dq_mean m, double low, double high)
{
    if (m.std_err == 0) return dq_interval_still(m.value, m.clusters, low, high);
    return dq_mean_interval(m);
}

dq_mean dq_mean_of_scores(const double *score, const int32_t *cluster, int64_t n,
                          dq_interval *interval)
{
    int64_t ones = 0;
    bool whole = true;
    for (int64_t i = 0; i < n; i++) {
        ones += score[i] == 1;
        whole = whole && is_whole(score[i]);
    }
    if (whole && !cluster) {
        *interval = dq_interval_share(ones, n);
        return dq_mean_share(ones, n);
    }
    dq_mean m = difference_of(NULL, score, cluster, n);
    if (whole) m.value = dq_mean_share(ones, n).value;
    *interval = interval_of(m, 0, 1);
    return m;
}

/* How many clusters fall and rise, where a t test has no spread to go by. */
static double sign_test(const double *before, const double *after, const int32_t *cluster,
                        int64_t n)
{
    int64_t down = 0, up = 0;
    for (int64_t i = 0, end; i < n; i = end) {
        double part = 0;
        end = piece_end(cluster, i, n);
        for (int64_t k = i; k < end; k++) part += after[k] - before[k];
        down += part < 0;
        up += part > 0;
    }
    return dq_stat_mcnemar(down, up);
}

dq_stat_flips dq_stat_flips_of(const double *before, const double *after, const int32_t *cluster,
                               int64_t n)
{
    dq_stat_flips f = {.n = n, .p = 1, .clustered = cluster != NULL, .interval = dq_interval_none};
    bool whole = true;
    for (int64_t i = 0; i < n; i++) {
        f.n01 += before[i] > after[i];
        f.n10 += before[i] < after[i];
        whole = whole && is_whole(before[i]) && is_whole(after[i]);
    }
    const dq_mean m = difference_of(before, after, cluster, n);
    f.delta = m.value;
    f.std_err = m.std_err;
    f.clusters = m.clusters;
    if (n < 1) return f;
    f.interval = interval_of(m, -1, 1);
    if (f.clustered) {
        f.p = m.std_err > 0 ? dq_interval_t_tails(m.value / m.std_err, m.clusters - 1)
                            : sign_test(before, after, cluster, n);
        return f;
    }
    f.p = dq_stat_mcnemar(f.n01, f.n10);
    if (!whole) return f;
    const double d = (double)(f.n10 - f.n01), all = (double)n;
    f.delta = d / all;
    f.std_err = sqrt((double)(f.n01 + f.n10) - d * d / all) / all;
    f.interval = dq_interval_paired(f.n10, f.n01, n);
    f.counted = true;
    return f;
}

double dq_stat_percentile(const double *sorted, int64_t n, double f)
{
    if (n < 1) return NAN;
    double at = f * (double)(n - 1), low = floor(at);
    int64_t i = (int64_t)low;
    if (i + 1 >= n) return sorted[n - 1];
    return sorted[i] + (at - low) * (sorted[i + 1] - sorted[i]);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void dq_stat_sort(double *x, int64_t n)
{
    qsort(x, (size_t)n, sizeof *x, ascending);
}
