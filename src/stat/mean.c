/* Means, their errors and intervals, and ranks.
 * SPDX-License-Identifier: MIT */
#include "stat/stat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Student's t by its finite series, its quantile by bisection or for many degrees of freedom by an
 * expansion. Tango's interval has no closed form: both ends are found by bisection of the score
 * statistic, which falls with the difference. */

const dq_interval dq_interval_none = {(double)NAN, (double)NAN};
const char *const dq_interval_decision_name[] = {"inconclusive", "within the margin",
                                                 "exceeds the margin"};

/* The share of Student's t beyond -|t| and |t|, for df >= 1: the finite series of Abramowitz and
 * Stegun, 26.7.3 and 26.7.4. */
static double t_tails(double t, int64_t df)
{
    const double pi = 3.14159265358979323846, angle = atan2(fabs(t), sqrt((double)df));
    const double c = cos(angle), s = sin(angle);
    double term = df % 2 ? c : 1, sum = 0;
    for (int64_t k = df % 2 ? 1 : 0; k < df - 1; k += 2) {
        sum += term;
        term *= c * c * (double)(k + 1) / (double)(k + 2);
    }
    const double within = df % 2 ? 2 / pi * (angle + s * sum) : s * sum;
    return within < 1 ? 1 - within : 0;
}

/* Large df: the expansion of Cornish and Fisher in 1/df; others by bisection. */
static double t95(int64_t df)
{
    const double z = DQ_Z95, v = (double)df;
    double low = z, high = 13;
    if (df > 100) {
        const double a = z * (z * z + 1) / 4, b = z * (5 * pow(z, 4) + 16 * z * z + 3) / 96;
        const double c = z * (3 * pow(z, 6) + 19 * pow(z, 4) + 17 * z * z - 15) / 384;
        return z + a / v + b / (v * v) + c / (v * v * v);
    }
    for (int i = 0; i < 60; i++) {
        const double middle = (low + high) / 2;
        if (t_tails(middle, df) > 0.05)
            low = middle;
        else
            high = middle;
    }
    return high;
}

dq_interval dq_interval_t(double mean, double std_err, int64_t clusters)
{
    if (clusters < 2 || isnan(std_err)) return dq_interval_none;
    const double half = t95(clusters - 1) * std_err;
    return (dq_interval){mean - half, mean + half};
}

/* The t with t_tails(t) = share, for share >= 1e-9. */
static double t_beyond(double share, int64_t df)
{
    double low = 0, high = 1;
    while (t_tails(high, df) > share && high < 1e12) high *= 2;
    for (int i = 0; i < 80; i++) {
        const double middle = (low + high) / 2;
        if (t_tails(middle, df) > share)
            low = middle;
        else
            high = middle;
    }
    return high;
}

/* With `share` outside instead of 5 %. */
static dq_interval t_outside(double mean, double std_err, int64_t clusters, double share)
{
    if (clusters < 2 || isnan(std_err)) return dq_interval_none;
    const double half = t_beyond(share, clusters - 1) * std_err;
    return (dq_interval){mean - half, mean + half};
}

/* g(x) = x + skew/3 x^2 + skew^2/27 x^3 + skew/6n is close to normal where x, the error over the
 * standard deviation, is not; the end is where g gives the quantile over sqrt(n). */
dq_interval dq_interval_t_skewed(double mean, double std_err, int64_t clusters, double skew,
                                 double share)
{
    dq_interval i = t_outside(mean, std_err, clusters, share);
    const double a = fabs(skew), n = (double)clusters, root = sqrt(n);
    if (isnan(i.high) || !(a > 0) || !(std_err > 0)) return i;
    const double t = (i.high - mean) / std_err;
    const double x = 3 / a * (1 - cbrt(1 - a * (t / root + a / (6 * n))));
    const double half = fmax(t, x * root) * std_err;
    if (skew > 0)
        i.high = mean + half;
    else
        i.low = mean - half;
    return i;
}

/* k of n: Wilson's score interval, which has a width at 0 and n too. */
static dq_interval share_interval(int64_t k, int64_t n)
{
    if (n < 1) return dq_interval_none;
    const double zz = DQ_Z95 * DQ_Z95, all = (double)n, p = (double)k / all;
    const double half = DQ_Z95 * sqrt(p * (1 - p) / all + zz / (4 * all * all));
    const double low = (p + zz / (2 * all) - half) / (1 + zz / all);
    const double high = (p + zz / (2 * all) + half) / (1 + zz / all);
    return (dq_interval){k == 0 ? 0 : low, k == n ? 1 : high};
}

/* The score statistic of `up` - `down` for a true difference d; it falls with d. */
static double paired_score(double up, double down, double n, double d)
{
    const double a = 2 * n, b = -up - down + (2 * n - up + down) * d, c = -down * d * (1 - d);
    const double root = b * b - 4 * a * c, q = (sqrt(root > 0 ? root : 0) - b) / (2 * a);
    const double variance = n * (2 * q + d * (1 - d)), off = up - down - n * d;
    if (variance > 0) return off / sqrt(variance);
    return off == 0 ? 0 : off > 0 ? (double)INFINITY : (double)-INFINITY;
}

/* Where the statistic is `want`, between an end above and one below. */
static double paired_end(double up, double down, double n, double want, double low, double high)
{
    for (int i = 0; i < 60; i++) {
        const double middle = (low + high) / 2;
        if (paired_score(up, down, n, middle) > want)
            low = middle;
        else
            high = middle;
    }
    return (low + high) / 2;
}

/* (up - down) / n of n pairs, `up` rising and `down` falling: Tango's score interval (Statistics in
 * Medicine 17, 1998); +- z^2 / (n + z^2) where none moved. */
static dq_interval paired_interval(int64_t up, int64_t down, int64_t n)
{
    if (n < 1) return dq_interval_none;
    const double b = (double)up, c = (double)down, all = (double)n, d = (b - c) / all;
    return (dq_interval){paired_end(b, c, all, DQ_Z95, -1, d),
                         paired_end(b, c, all, -DQ_Z95, d, 1)};
}

dq_interval dq_interval_still(double mean, int64_t clusters, double low, double high)
{
    if (clusters < 1) return dq_interval_none;
    const double zz = DQ_Z95 * DQ_Z95, half = zz / ((double)clusters + zz);
    return (dq_interval){fmax(low, mean - half), fmin(high, mean + half)};
}

/* Two walks, the mean and then squares around it, so that nothing cancels. A cluster counts as one
 * piece. Equal pieces have no spread to estimate; their interval is that of counts. */

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

/* The end of the piece at i: a cluster, or a value without clusters. */
static int64_t piece_end(const int32_t *cluster, int64_t i, int64_t n)
{
    int64_t end = i + 1;
    while (cluster && end < n && cluster[end] == cluster[i]) end++;
    return end;
}

/* Of x[n], or of after - before, by the ratio estimate over pieces. */
static dq_mean difference_of(const double *before, const double *after, const int32_t *cluster,
                             int64_t n)
{
    int64_t pieces = 0;
    for (int64_t i = 0; i < n; i = piece_end(cluster, i, n)) pieces++;
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

static double mcnemar(int64_t n01, int64_t n10)
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

/* Equal pieces have an unknown spread, not one of 0. */
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
        *interval = share_interval(ones, n);
        return dq_mean_share(ones, n);
    }
    dq_mean m = difference_of(NULL, score, cluster, n);
    if (whole) m.value = dq_mean_share(ones, n).value;
    *interval = interval_of(m, 0, 1);
    return m;
}

/* Counts falling and rising clusters, where a t test has no spread. */
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
    return mcnemar(down, up);
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
        f.p = m.std_err > 0 ? t_tails(m.value / m.std_err, m.clusters - 1)
                            : sign_test(before, after, cluster, n);
        return f;
    }
    f.p = mcnemar(f.n01, f.n10);
    if (!whole) return f;
    const double d = (double)(f.n10 - f.n01), all = (double)n;
    f.delta = d / all;
    f.std_err = sqrt((double)(f.n01 + f.n10) - d * d / all) / all;
    f.interval = paired_interval(f.n10, f.n01, n);
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

dq_interval_decision dq_interval_decide(dq_interval loss, double margin)
{
    if (loss.high <= margin) return DQ_WITHIN;
    return loss.low > margin ? DQ_EXCEEDS : DQ_INCONCLUSIVE;
}

/* The interval of such a loss over n pieces. */
static dq_interval interval_over(const dq_interval_loss *l, double n)
{
    const double times = n / (double)l->clusters;
    double half;
    if (l->lost >= 0) {
        const double up = (double)l->lost * times, down = (double)l->gained * times,
                     d = (up - down) / n;
        return (dq_interval){paired_end(up, down, n, DQ_Z95, -1, d),
                             paired_end(up, down, n, -DQ_Z95, d, 1)};
    }
    if (l->std_err == 0)
        half = DQ_Z95 * DQ_Z95 / (n + DQ_Z95 * DQ_Z95);
    else
        half = t95((int64_t)n - 1) * l->std_err / sqrt(times);
    return (dq_interval){l->value - half, l->value + half};
}

int64_t dq_interval_missing(const dq_interval_loss *l, double margin)
{
    const double max = 1e12;
    double low = (double)l->clusters, high = low;
    if (l->clusters < 2 || !(l->interval.high >= l->interval.low)) return 0;
    do {
        low = high;
        high *= 2;
        if (high > max) return 0;
    } while (dq_interval_decide(interval_over(l, high), margin) == DQ_INCONCLUSIVE);
    while (high - low > 1) { /* undecided with low, decided with high */
        const double middle = floor((low + high) / 2);
        if (dq_interval_decide(interval_over(l, middle), margin) == DQ_INCONCLUSIVE)
            low = middle;
        else
            high = middle;
    }
    return (int64_t)high - l->clusters;
}

/* Indices are sorted by value; equal values share the mean of their places. */

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

static void find_ranks(double *rank, entry *e, const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) e[i] = (entry){x[i], i};
    qsort(e, (size_t)n, sizeof *e, by_value);
    for (int64_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && !(e[end].value > e[i].value);) end++;
        for (int64_t k = i; k < end; k++) rank[e[k].at] = (double)(i + end - 1) / 2;
    }
}

/* Ranks average to the middle whatever the ties: sums are exact, so that no order gives 0. */
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

static dq_interval rank_interval_of(double r, int64_t n)
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
        if (interval) *interval = rank_interval_of(*r, n);
    }
    dq_block_free(rank);
    dq_block_free(e);
    return err->code;
}
