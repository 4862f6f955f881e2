/* interval: see interval.h. Student's t by its finite series, its quantile by bisection or for many degrees of
 * freedom by an expansion. Tango's interval has no closed form: both ends are found by bisection of the score
 * statistic, which falls with the difference.
 * SPDX-License-Identifier: MIT */
#include "stat/interval.h"

#include <math.h>

const dq_interval dq_interval_none = {(double)NAN, (double)NAN};
const char *const dq_interval_decision_name[] = {"inconclusive", "within the margin",
                                                 "exceeds the margin"};

/* The finite series of Abramowitz and Stegun, 26.7.3 and 26.7.4. */
double dq_interval_t_tails(double t, int64_t df)
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

/* Large df: the expansion of Cornish and Fisher in 1/df; the others by bisection. */
double dq_interval_t95(int64_t df)
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
        if (dq_interval_t_tails(middle, df) > 0.05)
            low = middle;
        else
            high = middle;
    }
    return high;
}

dq_interval dq_interval_t(double mean, double std_err, int64_t clusters)
{
    if (clusters < 2 || isnan(std_err)) return dq_interval_none;
    const double half = dq_interval_t95(clusters - 1) * std_err;
    return (dq_interval){mean - half, mean + half};
}

double dq_interval_t_beyond(double share, int64_t df)
{
    double low = 0, high = 1;
    while (dq_interval_t_tails(high, df) > share && high < 1e12) high *= 2;
    for (int i = 0; i < 80; i++) {
        const double middle = (low + high) / 2;
        if (dq_interval_t_tails(middle, df) > share)
            low = middle;
        else
            high = middle;
    }
    return high;
}

dq_interval dq_interval_t_outside(double mean, double std_err, int64_t clusters, double share)
{
    if (clusters < 2 || isnan(std_err)) return dq_interval_none;
    const double half = dq_interval_t_beyond(share, clusters - 1) * std_err;
    return (dq_interval){mean - half, mean + half};
}

/* g(x) = x + skew/3 x^2 + skew^2/27 x^3 + skew/6n is close to normal where x, the error over the standard deviation, is
 * not; the end is where g gives the quantile over sqrt(n). */
dq_interval dq_interval_t_skewed(double mean, double std_err, int64_t clusters, double skew,
                                 double share)
{
    dq_interval i = dq_interval_t_outside(mean, std_err, clusters, share);
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

dq_interval dq_interval_share(int64_t k, int64_t n)
{
    if (n < 1) return dq_interval_none;
    const double zz = DQ_Z95 * DQ_Z95, all = (double)n, p = (double)k / all;
    const double half = DQ_Z95 * sqrt(p * (1 - p) / all + zz / (4 * all * all));
    const double low = (p + zz / (2 * all) - half) / (1 + zz / all);
    const double high = (p + zz / (2 * all) + half) / (1 + zz / all);
    return (dq_interval){k == 0 ? 0 : low, k == n ? 1 : high};
}

/* The score statistic of `up` - `down` if their true difference were d; it falls with d. */
static double paired_score(double up, double down, double n, double d)
{
    const double a = 2 * n, b = -up - down + (2 * n - up + down) * d, c = -down * d * (1 - d);
    const double root = b * b - 4 * a * c, q = (sqrt(root > 0 ? root : 0) - b) / (2 * a);
    const double variance = n * (2 * q + d * (1 - d)), off = up - down - n * d;
    if (variance > 0) return off / sqrt(variance);
    return off == 0 ? 0 : off > 0 ? (double)INFINITY : (double)-INFINITY;
}

/* Where the statistic is `want`, between an end where it is more and one where it is less. */
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

dq_interval dq_interval_paired(int64_t up, int64_t down, int64_t n)
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

dq_interval_decision dq_interval_decide(dq_interval loss, double margin)
{
    if (loss.high <= margin) return DQ_WITHIN;
    return loss.low > margin ? DQ_EXCEEDS : DQ_INCONCLUSIVE;
}

/* The interval of a loss like this one over n pieces in place of l->clusters. */
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
        half = dq_interval_t95((int64_t)n - 1) * l->std_err / sqrt(times);
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
