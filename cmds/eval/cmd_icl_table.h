/* cmd_icl_table: what is printed of in-context learning after the large table, and its plateau as JSON.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CMD_ICL_TABLE_H
#define DQ_CMD_ICL_TABLE_H

#include "cmds/eval/eval_kind.h"
#include "eval/kinds.h"

/* "16, 32" */
void cmd_eval_icl_shots_text(char *out, size_t cap, const int *shots, int n);
/* Accuracies of the row's blocks; a block of memory. */
dq_icl_score *cmd_eval_icl_scores(const dq_eval *e, const dq_eval_row *r, dq_err *err);
/* "plateau" of a result; null where no number of shots is in its range. */
dq_status cmd_eval_icl_plateau_json(json_t *icl, const cmd_eval_view *v, int row, dq_err *err);
/* Accuracy by the number of demonstrations, and over the plateau. */
dq_status cmd_eval_icl_tables(const cmd_eval_view *v, dq_err *err);

#endif
