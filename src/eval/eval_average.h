/* eval_average: the mean of a number over tasks, each counting as much as the others however many items it has: the
 * last column of tables of benchmarks.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_AVERAGE_H
#define DQ_EVAL_AVERAGE_H

#include "eval/eval.h"

/* The shown rows with the model and settings of `row`, one for each source of its kind, in the order of the sources.
 * Returns their number: at least 2, or 0 where the kind has no mean over tasks, where the run has one task of it, or
 * where `row` is not the first of them. rows: [e->n_sources]. */
int dq_eval_average_rows(int *rows, const dq_eval *e, int row);

typedef struct dq_eval_average {
    dq_mean mean; /* its clusters are those of all tasks */
    dq_interval interval;
} dq_eval_average;
/* Of n tasks with items of their own: the standard error is sqrt(sum of squares) / n. Each end of the interval lies as
 * far from the mean as the root of the summed squares of the tasks' own distances says, over n: intervals without
 * an error, of tasks where all items are right, keep their width, and equal errors give z of them.
 * Source: Zou and Donner, Statistics in Medicine 27 (2008), of sums. */
dq_eval_average dq_eval_average_of(const dq_mean *task, const dq_interval *interval, int n);

#endif
