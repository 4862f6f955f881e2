/* eval_averages: means over the tasks of a run, a line for every model and setting, with what it lost against its reference
 * and against the first model.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_AVERAGES_H
#define DQ_EVAL_AVERAGES_H

#include "cmds/eval/eval_view.h"

/* Prints a table for each kind that has a mean over tasks. */
dq_status cmd_eval_averages(const cmd_eval_view *v, dq_err *err);
/* "averages" of the document. */
dq_status cmd_eval_averages_json(json_t *document, const cmd_eval_view *v, dq_err *err);
/* Differences that both show. */
int cmd_eval_averages_compared(const dq_eval *e);

#endif
