/* weight_outliers: magnitudes of the matrices of a model, as they are multiplied.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_WEIGHT_OUTLIERS_H
#define DQ_WEIGHT_OUTLIERS_H

#include "engine/runner.h"

/* One matrix [rows, cols], y = W x: a column belongs to an input channel, a row to an output. */
typedef struct dq_weight_outlier {
    const char *name; /* the tensor's */
    const char *role; /* "embed", "q" .. "down", "lambda", "head" */
    int layer;        /* -1: of no layer */
    int64_t rows, cols;
    int64_t n_bad; /* values that are not finite, which are in no other number */
    float max;     /* the largest magnitude, and where */
    int64_t row, col;
    double median, p99_9; /* to the middle of a bin: 0.4 % off at most */
    double rms, kurtosis0;
    int64_t
        largest_col; /* the input channel with the largest root of the mean square; of equal ones the first */
    double col_ratio; /* that over the median over columns; 0: that is 0 */
} dq_weight_outlier;

typedef struct dq_weight_outliers {
    dq_weight_outlier *of; /* [n] in the order of the model */
    int n;
} dq_weight_outliers;

/* Of all matrices; a head that is the embedding is none of its own. Ended by dq_weight_outliers_free. DQ_STOPPED after Ctrl-C. */
dq_status dq_weight_outliers_collect(dq_weight_outliers *o, const dq_model *m, dq_err *err);
void dq_weight_outliers_free(dq_weight_outliers *o); /* zeroed or collected */

#endif
