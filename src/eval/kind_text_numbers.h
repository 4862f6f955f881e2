/* kind_text_numbers: from log-probabilities of running text to its metrics. Standard errors treat each document
 * as one cluster where there are two or more, else each window; see dq_mean_clustered.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KIND_TEXT_NUMBERS_H
#define DQ_KIND_TEXT_NUMBERS_H

#include "eval/eval.h"
#include "eval/kind_text_fit.h"

/* Fills what rows of texts have in dq_eval_numbers. */
dq_status dq_text_numbers_of(const dq_eval *e, const dq_eval_row *row, dq_eval_numbers *o,
                             dq_err *err);

/* KLD of `after` less that of `before`. */
dq_status dq_text_numbers_worse(dq_interval_loss *out, const dq_eval *e, const dq_eval_row *before,
                                const dq_eval_row *after, dq_err *err);

/* Scored tokens whose reference gives its most likely id a probability from `from` to below `to` (the last
 * bin: to 1). */
typedef struct dq_confidence {
    double from, to;
    int64_t n;
    dq_mean kld, same; /* NaN where n is 0 */
} dq_confidence;

/* Mean NLL of tokens 1 .. at after the beginning of each document, and the same less that of the
 * reference; standard errors over documents. */
typedef struct dq_position {
    int64_t at;
    dq_mean cumulative, difference;
} dq_position;

/* NLL of the tokens from .. to - 1 after the beginning of each document. */
typedef struct dq_position_bin {
    int64_t from, to, n;
    dq_mean nll, difference;
} dq_position_bin;

typedef struct dq_slice {
    int64_t n;
    dq_mean nll, delta; /* delta: less that of the reference */
} dq_slice;

enum { DQ_CONFIDENCES = 5, DQ_POSITIONS_MAX = 64 };

typedef struct dq_text_details {
    dq_confidence confidence[DQ_CONFIDENCES];
    int n_at, n_bins; /* 0: windows are not those of DQ_WINDOW_POSITIONS */
    dq_position at[DQ_POSITIONS_MAX];
    dq_position_bin bin[DQ_POSITIONS_MAX];
    /* Of the cumulative mean over documents, at fit_points positions from at[0].at to the last one. */
    dq_text_fit fit;
    int fit_points;
    bool sliced;
    dq_slice hit, others;
    double share_hit;
} dq_text_details;

/* DQ_BUG when the slices do not add up to the whole. */
dq_status dq_text_numbers_details(const dq_eval *e, int row, dq_text_details *out, dq_err *err);

/* The positions that are reported for windows of t scored tokens: powers of two from 1024 on (from 16 on
 * below 4096 tokens), and t. Returns their number. */
int dq_text_numbers_positions(int64_t at[DQ_POSITIONS_MAX], int64_t t);

#endif
