/* kind_needle: multi-needle retrieval as a kind of source: cells of length x depth x needles, samples of
 * each as units, recall and attention to the answer as numbers.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KIND_NEEDLE_H
#define DQ_KIND_NEEDLE_H

#include "eval/eval.h"
#include "tasks/needles.h"

/* Requests: the context ends where the question begins, so that what a cache evicts or rounds after a
 * context shows in the answer; generated answers continue the whole prompt. Metrics: "acc", the share of
 * numbers found, and "all_correct". */
extern const dq_eval_kind dq_eval_needle;

enum { DQ_NEEDLE_SWEEP = 32, DQ_NEEDLE_DEFAULT_LENGTH = 4096 };

/* dq_eval_source.settings */
typedef struct dq_needle_settings {
    int length[DQ_NEEDLE_SWEEP],
        n_lengths; /* none: DQ_NEEDLE_DEFAULT_LENGTH, or the fewest positions */
    int depth[DQ_NEEDLE_SWEEP], n_depths;
    int needles[DQ_NEEDLE_SWEEP], requested[DQ_NEEDLE_SWEEP], n_pairs;
    int64_t samples; /* per cell */
    uint64_t seed;
    bool generated;   /* else teacher-forced: the most likely id at each id of the numbers */
    bool attention;   /* how much goes to the answer and elsewhere, in a pass of its own */
    bool query_rows;  /* of all rows of the question, not of its last one */
    bool depth_first; /* see dq_needle_maker */
} dq_needle_settings;

/* dq_eval_ids.own */
typedef struct dq_needle_set {
    const dq_needle_settings *settings;
    const dq_needle_cell *cell;     /* [n_cells]: needles, then lengths, then depths */
    const dq_needle_prompt *prompt; /* [n_cells * samples], cell by cell */
    int64_t n_cells, samples;
    int64_t n_heads; /* layers x output heads of the largest model */
} dq_needle_set;
const dq_needle_set *dq_needle_set_of(const dq_eval *e, const dq_eval_row *row);

/* Numbers of a unit in dq_eval_row.extra: counts of a dq_needle_recall, and of the numbers that were asked for the sum
 * of ln of their probabilities (0 where answers are generated); with attention the mean shares by norm and
 * class (NaN: no head had one), rows skipped by norm, all rows and those with a small sum, and the answer's share
 * by DQ_NEEDLE_NORM in every head (NaN: skipped), layer by layer. */
enum {
    DQ_NEEDLE_AT_CORRECT,
    DQ_NEEDLE_AT_OTHER,
    DQ_NEEDLE_AT_NEAR,
    DQ_NEEDLE_AT_NONE,
    DQ_NEEDLE_AT_LL,
    DQ_NEEDLE_AT_SHARE,
    DQ_NEEDLE_AT_SKIPPED = DQ_NEEDLE_AT_SHARE + DQ_N_SPAN_NORMS * DQ_NEEDLE_CLASSES,
    DQ_NEEDLE_AT_ROWS = DQ_NEEDLE_AT_SKIPPED + DQ_N_SPAN_NORMS,
    DQ_NEEDLE_AT_SMALL,
    DQ_NEEDLE_AT_HEADS
};
/* Of what is printed: the one whose shares stay in 0 to 1 and leave out no attention. */
#define DQ_NEEDLE_NORM DQ_SPAN_ABSOLUTE
const double *dq_needle_unit(const dq_eval *e, const dq_eval_row *row, int64_t unit);

/* Index of the first of the tokens that scores of p->answer[k] belong to, in dq_eval_row.logp and top1: the
 * number's, or the first of DQ_NEEDLE_NEW generated ones (those after the end are -1). */
int64_t dq_needle_value(const dq_eval *e, const dq_eval_row *row, int64_t unit, int k);

/* The results of the samples of one cell, or (cell -1) of all. */
typedef struct dq_needle_numbers {
    int64_t n; /* samples */
    dq_mean acc, all_correct;
    dq_mean ll;          /* of a number, nats; NaN where answers are generated */
    double confusion[4]; /* shares: correct, other, near, none */
    double share[DQ_N_SPAN_NORMS][DQ_NEEDLE_CLASSES]; /* means over samples */
    /* Of the answer, and of filler and other needles together, over samples: Table 3 of arXiv 2410.05258. */
    dq_mean answer[DQ_N_SPAN_NORMS], noise[DQ_N_SPAN_NORMS];
    int64_t skipped[DQ_N_SPAN_NORMS];
    int64_t rows, small; /* of output heads; see dq_span_share */
    int best_layer,
        best_head; /* with the answer's largest mean share by DQ_NEEDLE_NORM; -1: none */
    double best;
} dq_needle_numbers;
dq_status dq_needle_numbers_of(dq_needle_numbers *out, const dq_eval *e, const dq_eval_row *row,
                               int64_t cell, dq_err *err);

/* The share of numbers found in every prompt of cells cell .. cell + n_cells - 1: score[n_cells * samples]. */
void dq_needle_scores(double *score, const dq_eval *e, const dq_eval_row *row, int64_t cell,
                      int64_t n_cells);

/* Where the cache of a row is cut: "before the question" or "after the question". */
const char *dq_needle_boundary(const dq_needle_settings *s);

/* The shares of one prompt, from the sums of its pass: sums[n_layers * n_out] by layer. into[]: from
 * DQ_NEEDLE_AT_SHARE on. */
void dq_needle_shares(double *into, const dq_span_share *sums, int n_layers, int n_out);

#endif
