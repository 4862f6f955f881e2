/* Means and their errors, intervals, ranks; tallies of magnitudes that merge to the same bits
 * in any order.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_STAT_H
#define DQ_STAT_H

#include "base/base.h"
#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>

/* Sums of doubles independent of order: 256 bits of two's complement, 128 after the point. Terms
 * are rounded towards zero to multiples of 2^-128; their sums are exact. */

/* {0} is 0. A term that is not finite, or beyond 2^127, makes it NaN for good. */
typedef struct dq_fixed {
    uint64_t word[4]; /* the lowest first */
} dq_fixed;

/* Whether a foreign count is valid: 0 to 2^46, of which 131072 add up within 63 bits. */
bool dq_fixed_is_count(int64_t n);

void dq_fixed_add(dq_fixed *f, double x);
void dq_fixed_merge(dq_fixed *into, const dq_fixed *from);
double dq_fixed_value(const dq_fixed *f);

/* Unused fields are -1. */
typedef struct dq_place {
    int32_t seq; /* sequence of the run */
    int32_t layer;
    int32_t head; /* query head (logits) */
    int32_t row;  /* position of the row (query) */
    int32_t col;  /* key position (logits) or channel (hidden states) */
} dq_place;

/* Count, largest magnitude with its place, sums of x^2 and x^4; merging in any order gives the same
 * bits. */

/* {0} is empty. */
typedef struct dq_moments {
    int64_t n;   /* finite values */
    float max;   /* their largest magnitude */
    dq_place at; /* where; of equal ones the first by place. Of no meaning where max is 0 */
    dq_fixed sum2, sum4;
} dq_moments;

void dq_moments_merge(dq_moments *into, const dq_moments *from);
/* NaN without values. Kurtosis is n sum x^4 / (sum x^2)^2: 3 for a centred normal distribution. */
double dq_moments_rms(const dq_moments *m);
double dq_moments_kurtosis0(const dq_moments *m);

/* 95 % confidence intervals, and decisions about a loss against a margin. */

/* Two-sided, 95 %; NaN twice: none. */
typedef struct dq_interval {
    double low, high;
} dq_interval;
extern const dq_interval dq_interval_none;

#define DQ_Z95 1.959963984540054 /* 97.5 % of the normal distribution lie below it */

/* Mean +- standard errors by Student's t over `clusters` independent pieces, at least two. */
dq_interval dq_interval_t(double mean, double std_err, int64_t clusters);
/* With `share` outside instead of 5 %, of a mean of skewed values, where the end by t on the side
 * of the long tail lies too near: that end by Hall's transformation (Journal of the Royal
 * Statistical Society B 54, 1992) with the quantile of t, the other one by t. skew: of the values
 * about their mean, sum of cubes / n over the 3/2 power of sum of squares / n. */
dq_interval dq_interval_t_skewed(double mean, double std_err, int64_t clusters, double skew,
                                 double share);
/* For equal values in low .. high: as wide as the others where nothing moved. */
dq_interval dq_interval_still(double mean, int64_t clusters, double low, double high);

/* Whether the whole interval of a loss is within a margin, exceeds it, or neither. */
typedef enum dq_interval_decision { DQ_INCONCLUSIVE, DQ_WITHIN, DQ_EXCEEDS } dq_interval_decision;
extern const char *const
    dq_interval_decision_name[3]; /* "inconclusive", "within the margin", "exceeds the margin" */
dq_interval_decision dq_interval_decide(dq_interval loss, double margin);
/* A loss and the basis of its interval. */
typedef struct dq_interval_loss {
    double value, std_err;
    dq_interval interval;
    int64_t clusters; /* independent pieces: items, documents, windows ... */
    /* moved items, for an interval of paired counts; -1: a mean's */
    int64_t gained, lost;
} dq_interval_loss;
/* Roughly how many more pieces would decide: the fewest whose scaled interval lies on one side of
 * the margin. At least 1; 0: not even 10^12, or no interval. */
int64_t dq_interval_missing(const dq_interval_loss *l, double margin);

/* Means with standard errors, paired comparisons, percentiles. */

/* std_err is NaN with too few values. */
typedef struct dq_mean {
    double value, std_err;
    int64_t clusters; /* independent pieces that std_err is over: values, or clusters of them */
} dq_mean;
extern const dq_mean dq_mean_none;
/* By Student's t with clusters - 1 degrees of freedom. */
dq_interval dq_mean_interval(dq_mean m);

/* Independent values: sample standard deviation / sqrt(n). */
dq_mean dq_mean_of(const double *x, int64_t n);
/* k of n: sqrt(p (1 - p) / (n - 1)), which is the same for zeros and ones. */
dq_mean dq_mean_share(int64_t k, int64_t n);
/* Mean of n values in clusters of any sizes: values of one cluster stand side by side and have its
 * number. They may depend on each other, so the standard error is that of a ratio of cluster totals
 * T_c and sizes n_c: with m = sum T_c / sum n_c, its square is C / (C - 1) sum (T_c - m n_c)^2 /
 * (sum n_c)^2. Clusters of equal size give the standard error of their means. One cluster alone has
 * none.
 * Source: the ratio estimate of Cochran, Sampling Techniques, chapter 6, of a small sample. */
dq_mean dq_mean_clustered(const double *x, const int32_t *cluster, int64_t n);

/* Scores of n items, each 0 (wrong) to 1, in clusters as dq_mean_clustered has them; cluster NULL:
 * all are independent. Of independent zeros and ones: their share with Wilson's score interval;
 * else a mean with an interval by t, or dq_interval_still where all pieces are the same. */
dq_mean dq_mean_of_scores(const double *score, const int32_t *cluster, int64_t n,
                          dq_interval *interval);

typedef struct dq_stat_flips {
    /* items whose score falls (n01) or rises (n10) */
    int64_t n, n01, n10;
    int64_t clusters;
    double delta;   /* mean of after - before */
    double std_err; /* of delta, by the pairing */
    dq_interval interval;
    /* two-sided: exact McNemar test (for scores between 0 and 1, sign test), or the t test of delta
     * with clusters */
    double p;
    bool clustered;
    bool counted; /* independent zeros and ones: the interval is that of paired counts */
} dq_stat_flips;
dq_stat_flips dq_stat_flips_of(const double *before, const double *after, const int32_t *cluster,
                               int64_t n);

/* At fraction f of ascending values, linear between neighbours at f * (n - 1); NaN if n = 0. */
double dq_stat_percentile(const double *sorted, int64_t n, double f);
void dq_stat_sort(double *x, int64_t n);

/* Spearman's correlation of x[n] and y[n]: that of their ranks, equal values with the mean of
 * theirs. NaN where one of them is the same everywhere, or for n < 2. *interval (NULL: not wanted):
 * of 95 %, by Fisher's z with the variance (1 + r^2 / 2) / (n - 3) (Bonett and Wright,
 * Psychometrika 65, 2000); none for n < 4. DQ_RESOURCE. */
dq_status dq_rank_spearman(double *r, dq_interval *interval, const double *x, const double *y,
                           int64_t n, dq_err *err);

/* Per column and class of token: the largest magnitude with its place, and the sum of squares;
 * merging in any order gives the same bits. */

/* A token's part in attention.
 * Source: arXiv 2309.17453 and 2402.17762: outliers are at the first position and at the few other
 * tokens that collect attention. */
typedef enum dq_token_class {
    DQ_TOKEN_ORDINARY,
    DQ_TOKEN_SINK,  /* not at the first position, but attention is parked there */
    DQ_TOKEN_FIRST, /* of its sequence */
    DQ_TOKEN_CLASSES
} dq_token_class;
extern const char *const dq_token_class_name[DQ_TOKEN_CLASSES]; /* "ordinary", "sink", "first" */

typedef struct dq_channel {
    float max;        /* largest finite magnitude */
    int32_t seq, row; /* where; of equal ones the first. Of no meaning where max is 0 */
    dq_fixed sum2;    /* of x^2 */
} dq_channel;

typedef struct dq_channels {
    int64_t cols, rows[DQ_TOKEN_CLASSES]; /* rows: how many there were */
    dq_channel *of;                       /* [DQ_TOKEN_CLASSES][cols] */
} dq_channels;

dq_status dq_channels_init(dq_channels *c, int64_t cols, dq_err *err);
void dq_channels_free(dq_channels *c); /* zeroed or initialised */
/* Adds columns first .. end - 1 of x[n][cols], consecutive rows of a sequence and class from
 * position `row` on, so that threads can share a table by columns. Skips values that are not
 * finite; does not count rows. */
void dq_channels_add(dq_channels *c, dq_token_class class, const float *x, int64_t n, int64_t first,
                     int64_t end, int32_t seq, int32_t row);
/* As bytes, for the same program; and a merge of them, which advances *at. DQ_DAMAGED: they end
 * before `end`, or have other columns. */
dq_status dq_channels_put(const dq_channels *c, dq_strbuf *to, dq_err *err);
dq_status dq_channels_merge_bytes(dq_channels *into, const char **at, const char *end, dq_err *err);

/* NaN without rows. */
double dq_channels_rms(const dq_channels *c, dq_token_class class, int64_t col);

/* Accumulators of magnitudes that keep no data; merging in any order gives the same bits. */

enum { DQ_TOP = 128, DQ_HIST_BITS = 15, DQ_HIST_BINS = 1 << DQ_HIST_BITS };

/* Adds the sums of |x|, x^2 and x^4 of x[n], finite, to sum[3]: value i in lane i mod 8 of double,
 * lane k and k + 4 are added, then k + 2, k + 1, and each product and sum is rounded. So it may
 * have vectors of any length. */
typedef void dq_tally_powers(double sum[3], const float *x, int n);

/* Magnitudes |x| of a stream of f32 values: exact counts, exact largest values with their places
 * (ties: the smaller place by seq, layer, head, row, col), a histogram over the upper 16 bits of
 * |x| (relative bin width 2^-7) and, on a second pass over the same stream, the exact value of any
 * quantile whose bin was chosen with dq_tally_refine.
 * Source: design of arXiv 2402.17762's magnitudes, made streaming. */
typedef struct dq_tally {
    int64_t n;                /* finite values */
    int64_t n_bad;            /* NaN or infinite values, in no other field */
    dq_fixed sum, sum2, sum4; /* of |x|, x^2, x^4, each row that was added rounded to a double */
    int n_top;
    float top[DQ_TOP]; /* descending */
    dq_place place[DQ_TOP];
    int64_t *hist;           /* [DQ_HIST_BINS] by bits(|x|) >> 16 */
    int refine_bin;          /* second pass: the bin that is split; -1: first pass */
    int64_t *fine;           /* [65536] by the low 16 bits of values in refine_bin; NULL: none */
    float threshold;         /* smallest top value once n_top == DQ_TOP, else 0: a value at or above
                                it may enter */
    dq_tally_powers *powers; /* NULL: plain C's */
} dq_tally;

dq_status dq_tally_init(dq_tally *t, dq_err *err);
void dq_tally_free(dq_tally *t);
/* Back to the state of dq_tally_init. */
void dq_tally_clear(dq_tally *t);
/* Value i of x[n] is at `at` with col = at.col + i. */
void dq_tally_add(dq_tally *t, const float *x, int64_t n, dq_place at);
/* Also adds to *m, except in a second pass. */
void dq_tally_add_with(dq_tally *t, dq_moments *m, const float *x, int64_t n, dq_place at);
void dq_tally_merge(dq_tally *into, const dq_tally *from);
/* As bytes, for the same program; and a merge of them, which advances *at. After dq_tally_refine
 * `fine` alone. DQ_DAMAGED: they end before `end`, or are invalid. */
dq_status dq_tally_put(const dq_tally *t, dq_strbuf *to, dq_err *err);
dq_status dq_tally_merge_bytes(dq_tally *into, const char **at, const char *end, dq_err *err);
/* Smallest value v such that at least ceil(p * n) values are <= v, to the middle of its bin; exact
 * after the second pass over its bin. *exact (may be NULL) says which. NaN when n = 0. */
double dq_tally_quantile(const dq_tally *t, double p, bool *exact);
/* From now on only values in the bin of quantile p count, into `fine`. */
dq_status dq_tally_refine(dq_tally *t, double p, dq_err *err);

#endif
