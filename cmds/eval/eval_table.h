/* eval_table: a finished sweep as a table.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_TABLE_H
#define DQ_EVAL_TABLE_H

#include "cmds/cli/table.h"
#include "cmds/eval/eval_view.h"

/* One line for each model, before the table: "model.h5: 4.48 bpw, 92.30 MiB", and an empty line. */
void cmd_eval_table_sizes(const cmd_eval_view *v);
/* For people: values with their standard errors. For programs (CSV): one column per number. */
dq_status cmd_eval_table(dq_table **out, const cmd_eval_view *v, dq_err *err);
dq_status cmd_eval_columns(dq_table **out, const cmd_eval_view *v, dq_err *err);

#endif
