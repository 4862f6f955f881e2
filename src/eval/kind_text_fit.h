/* kind_text_fit: how the mean NLL of the first t tokens of a document falls with t, as a power law with an offset.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KIND_TEXT_FIT_H
#define DQ_KIND_TEXT_FIT_H

#include "stat/stat.h"

/* Points an eighth of a doubling apart, from .. to, rising; `to` is the last one. Returns their number. */
enum { DQ_TEXT_FIT_POINTS = 512 };
int dq_text_fit_points(int64_t at[DQ_TEXT_FIT_POINTS], int64_t from, int64_t to);

/* L(t) = alpha t^beta + gamma, the form of Gemini 1.5 (arXiv 2403.05530, section 5.2.1.1). */
enum { DQ_TEXT_FIT_PARAMETERS = 3 }; /* alpha, beta, gamma */
typedef struct dq_text_fit {
    bool
        there; /* else no beta in DQ_TEXT_FIT_STEEPEST .. DQ_TEXT_FIT_FLATTEST is best, or there are too few points */
    dq_mean parameter
        [DQ_TEXT_FIT_PARAMETERS]; /* std_err NaN: one document, or none there without one of them */
    dq_interval interval[DQ_TEXT_FIT_PARAMETERS];
    double residual; /* root mean square over the points, nats */
} dq_text_fit;
#define DQ_TEXT_FIT_STEEPEST -4.0
#define DQ_TEXT_FIT_FLATTEST -0.01

/* By least squares of all points alike, to the mean over documents of curve[documents * n], the curves at at[n]. Standard
 * errors are those of the jackknife over documents: points of one curve are no independent values. */
dq_status dq_text_fit_of(dq_text_fit *out, const double *curve, int64_t documents,
                         const int64_t *at, int n, dq_err *err);

#endif
