/* Means and their errors, intervals, ranks; tallies of magnitudes that merge to the same bits
 * in any order.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_STAT_H
#define DQ_STAT_H

#include "base/base.h"
#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- Fixed ----
 * Sums of doubles that do not depend on the order of their terms: 256 bits of two's complement,
 * 128 of them after the point. A term is rounded towards zero to a multiple of 2^-128; every sum
 * of such terms is exact. */

/* {0} is 0. What is not finite, or does not fit 2^127, makes it NaN for good. */
typedef struct dq_fixed {
    uint64_t word[4]; /* the lowest first */
} dq_fixed;

/* Whether a count from elsewhere is one: of 0 to 2^46, of which 131072 add up within 63 bits. */
bool dq_fixed_is_count(int64_t n);

void dq_fixed_add(dq_fixed *f, double x);
void dq_fixed_merge(dq_fixed *into, const dq_fixed *from);
double dq_fixed_value(const dq_fixed *f);

/* ---- Place ----
 * Where a value was seen. */

/* Unused fields are -1. */
typedef struct dq_place {
    int32_t seq; /* sequence of the run */
    int32_t layer;
    int32_t head; /* query head (logits) */
    int32_t row;  /* position of the row (query) */
    int32_t col;  /* key position (logits) or channel (hidden states) */
} dq_place;

/* Negative: a stands before b, by seq, layer, head, row, col. */
int dq_place_order(const dq_place *a, const dq_place *b);

/* ---- Moments ----
 * How many values there were, the largest magnitude and where it was seen, sums of x^2 and x^4.
 * Merging pieces in any order gives the same bits as adding the same rows to one. */

/* {0} is empty. */
typedef struct dq_moments {
    int64_t n;   /* finite values */
    float max;   /* their largest magnitude */
    dq_place at; /* where; of equal ones the first by place. Of no meaning where max is 0 */
    dq_fixed sum2, sum4;
} dq_moments;

/* Where `size` is larger than m->max, or stands before it; value i has col = at.col + i. */
void dq_moments_raise(dq_moments *m, float size, const float *x, int64_t n, dq_place at);
void dq_moments_merge(dq_moments *into, const dq_moments *from);
/* NaN without values. n sum x^4 / (sum x^2)^2: 3 for a normal distribution without mean. */
double dq_moments_rms(const dq_moments *m);
double dq_moments_kurtosis0(const dq_moments *m);

/* ---- Interval ----
 * 95 % confidence intervals, and what they say about a loss that must not exceed a margin. */

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
/* Of values in low .. high that are all the same: as far as the others are where nothing moved. */
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

/* ---- Mean ----
 * Means with standard errors, paired comparisons of the same items, percentiles. */

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

/* ---- Rank ----
 * Rank correlation. */

/* Spearman's correlation of x[n] and y[n]: that of their ranks, equal values with the mean of theirs. NaN where one of them
 * is the same everywhere, or for n < 2. *interval (NULL: not wanted): of 95 %, by Fisher's z with the variance (1 + r^2 / 2) / (n - 3)
 * (Bonett and Wright, Psychometrika 65, 2000); none for n < 4. DQ_RESOURCE. */
dq_status dq_rank_spearman(double *r, dq_interval *interval, const double *x, const double *y,
                           int64_t n, dq_err *err);

/* ---- Channels ----
 * The magnitudes of each column of matrices whose rows are tokens, by class of token: the largest
 * with its place, and the sum of squares. Merging pieces in any order gives the same bits. */

/* What a token is to attention. Source: arXiv 2309.17453 and 2402.17762: outliers of hidden states stand at the first position
 * and at few other tokens on which attention is parked. */
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
/* Columns first .. end - 1 of x[n][cols], consecutive rows of a class of a sequence from position `row` on, to those
 * columns alone: threads may share a table by columns. Values that are not finite are left out. Rows are not counted. */
void dq_channels_add(dq_channels *c, dq_token_class class, const float *x, int64_t n, int64_t first,
                     int64_t end, int32_t seq, int32_t row);
/* All of it as bytes, for a process of the same program; a merge of them, which moves *at on. DQ_DAMAGED: they end before
 * `end`, or are of a table of other columns. */
dq_status dq_channels_put(const dq_channels *c, dq_strbuf *to, dq_err *err);
dq_status dq_channels_merge_bytes(dq_channels *into, const char **at, const char *end, dq_err *err);

/* NaN without rows. */
double dq_channels_rms(const dq_channels *c, dq_token_class class, int64_t col);

/* ---- Tally ----
 * Accumulators of magnitudes. Every accumulator merges, and merging pieces in any order gives the
 * same bits as adding the same rows to one. None keeps the data. */

enum { DQ_TOP = 128, DQ_HIST_BITS = 15, DQ_HIST_BINS = 1 << DQ_HIST_BITS };

/* Adds the sums of |x|, x^2 and x^4 of x[n], finite, to sum[3]: value i in lane i mod 8 of double, lane k and k + 4 are added, then
 * k + 2, k + 1, and each product and sum is rounded. So it may have vectors of any length. */
typedef void dq_tally_powers(double sum[3], const float *x, int n);

/* Magnitudes |x| of a stream of f32 values: exact counts, exact largest values with their places
 * (ties: the smaller place by seq, layer, head, row, col), a histogram over the upper 16 bits of |x|
 * (relative bin width 2^-7) and, on a second pass over the same stream, the exact value of any
 * quantile whose bin was chosen with dq_tally_refine. Source: design of arXiv 2402.17762's
 * magnitudes, made streaming. */
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
/* As dq_tally_init left it. */
void dq_tally_clear(dq_tally *t);
/* x[n], consecutive columns: value i stands at `at` with col = at.col + i. */
void dq_tally_add(dq_tally *t, const float *x, int64_t n, dq_place at);
/* The same to *m too, but for a second pass. */
void dq_tally_add_with(dq_tally *t, dq_moments *m, const float *x, int64_t n, dq_place at);
void dq_tally_merge(dq_tally *into, const dq_tally *from);
/* All of it as bytes, for a process of the same program; a merge of them, which moves *at on. After dq_tally_refine `fine`
 * alone. DQ_DAMAGED: they end before `end`, or are none. */
dq_status dq_tally_put(const dq_tally *t, dq_strbuf *to, dq_err *err);
dq_status dq_tally_merge_bytes(dq_tally *into, const char **at, const char *end, dq_err *err);
/* Smallest value v such that at least ceil(p * n) values are <= v, to the middle of its bin; exact
 * after the second pass over its bin. *exact (may be NULL) says which. NaN when n = 0. */
double dq_tally_quantile(const dq_tally *t, double p, bool *exact);
/* A second pass: later adds count only values of the bin of quantile p into `fine`. */
dq_status dq_tally_refine(dq_tally *t, double p, dq_err *err);

#endif
