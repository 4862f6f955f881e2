/* eval_view: a finished sweep as the forms of its results see it: what rows are called and what they go with.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_VIEW_H
#define DQ_EVAL_VIEW_H

#include "eval/eval.h"

#include <jansson.h>

/* names[i] stands for model i in every form. */
typedef struct cmd_eval_view {
    const dq_eval *e;
    const char *const *names;
    double margin; /* that a loss is compared with; see eval_verdict.h */
} cmd_eval_view;

/* What rows call their source. */
const char *cmd_eval_title(const dq_eval *e, int row);
const dq_model *cmd_eval_model_of(const dq_eval *e, int row);
/* Computed tokens per second; NaN: nothing was timed. */
double cmd_eval_rate(const dq_score_work *w);
/* Whether shown rows differ in their arithmetic. */
bool cmd_eval_math_swept(const dq_eval *e);
/* "is the reference", or that nothing but the row itself is there to compare it with. NULL: it is compared. */
const char *cmd_eval_no_difference(const dq_eval *e, int row);
/* Whose weights the reference of a row has: its "own", those of its "source", or "other" ones. */
const char *cmd_eval_reference_weights(const dq_eval *e, const dq_eval_row *r);
/* The same task and setting in the first model of the run, unless both have one reference: then `paired` says it. -1:
 * none. */
int cmd_eval_cross_row(const dq_eval *e, int row);
/* Index of a row among the results, which are the shown ones. */
int cmd_eval_result_of(const dq_eval *e, int row);
/* Index of the first result with the row's numbers, which were computed once; null if that is the row itself. */
json_t *cmd_eval_same_as_json(const dq_eval *e, int row);
/* What tells rows apart, as keys of a JSON line about one of their items. */
void cmd_eval_row_keys(json_t *o, const cmd_eval_view *v, const dq_eval_row *r);

#endif
