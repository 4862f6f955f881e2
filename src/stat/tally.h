/* tally: accumulators of magnitudes. Every accumulator merges, and merging pieces in any order gives
 * the same bits as adding the same rows to one. None keeps the data.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TALLY_H
#define DQ_TALLY_H

#include "stat/moments.h"

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
/* Prepares a second pass that resolves quantile p: later adds count only values of its bin into
 * `fine`; every other field stays. */
dq_status dq_tally_refine(dq_tally *t, double p, dq_err *err);

#endif
