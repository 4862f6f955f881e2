/* kind_icl_plateau: accuracy where more demonstrations no longer change much: the mean over a range of shots that is chosen
 * before anything is scored, with an error for other demonstrations and other queries.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KIND_ICL_PLATEAU_H
#define DQ_KIND_ICL_PLATEAU_H

#include "eval/kind_icl.h"

/* Numbers of shots, rising. */
typedef struct dq_icl_range {
    int from; /* what was asked for, or half of the largest */
    int shots[DQ_ICL_SHOTS], n;
} dq_icl_range;
/* Of the shots that all shown rows with the row's task have, those from `from` on; 0: from half of the largest on. None: n
 * is 0. */
dq_icl_range dq_icl_range_of(const dq_eval *e, int row, int from);

typedef struct dq_icl_plateau {
    dq_mean mean; /* clusters: one more than the degrees of freedom of the interval */
    dq_interval interval;
} dq_icl_plateau;
/* The mean of x[runs * queries], whose rows are runs and whose columns are queries. Both are draws, and their effects add:
 * with mean squares R of runs, Q of queries and E of what is left, the error squared is
 * max(R + Q - E, R, Q) / (runs * queries). The interval is by Student's t with Satterthwaite's degrees of freedom. One
 * run: queries alone count, and nothing is known of other demonstrations. Where all rows and columns have one mean, the
 * interval is dq_interval_still's, of values in low .. high.
 * Source: the analysis of variance of two crossed random factors with one value a cell; Satterthwaite, Biometrics
 * Bulletin 2 (1946). */
dq_icl_plateau dq_icl_plateau_of(const double *x, int64_t runs, int64_t queries, double low,
                                 double high);
/* Accuracy of row `after` over a range, of the quoted metric, less that of `before` (-1: nothing). Both have one plan. */
dq_status dq_icl_plateau_find(dq_icl_plateau *out, const dq_eval *e, int before, int after,
                              const dq_icl_range *range, dq_err *err);

#endif
