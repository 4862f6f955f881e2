/* eval_plan: what a sweep would compute, for --dry-run.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_PLAN_H
#define DQ_EVAL_PLAN_H

#include "cmds/eval/eval_view.h"
#include "record/record.h"

/* Prints the rows, references that are only computed among them, and their sum. */
dq_status cmd_eval_plan_print(const cmd_eval_view *v, double seconds, dq_err *err);
/* One line on stderr: how many rows there are, and ids. */
void cmd_eval_plan_say(dq_logger *logger, const cmd_eval_view *v);
/* One object per row, in the order of the results; the references that are only computed come last. */
void cmd_eval_plan_json(json_t *results, const cmd_eval_view *v);

#endif
