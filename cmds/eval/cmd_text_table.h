/* cmd_text_table: the tables of running text, for its kind; see eval_kind.h.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CMD_TEXT_TABLE_H
#define DQ_CMD_TEXT_TABLE_H

#include "cmds/cli/table.h"
#include "cmds/eval/eval_kind.h"

/* Perplexity per word, positions, slices. */
dq_status cmd_eval_text_tables(const cmd_eval_view *v, dq_err *err);
dq_status cmd_eval_text_csv_titles(const char **titles, int *n, const cmd_eval_view *v,
                                   dq_err *err);
dq_status cmd_eval_text_csv_cells(dq_table *t, const cmd_eval_view *v, int row, dq_err *err);

#endif
