/* face_text_table: the tables of running text, for its face; see eval_face.h.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_FACE_TEXT_TABLE_H
#define DQ_FACE_TEXT_TABLE_H

#include "cmds/cli/table.h"
#include "cmds/eval/eval_face.h"

void cmd_eval_text_cells(dq_table *t, const dq_eval_numbers *x);
/* Perplexity per word, positions, slices. */
dq_status cmd_eval_text_tables(const cmd_eval_view *v, dq_err *err);
dq_status cmd_eval_text_csv_titles(const char **titles, int *n, const cmd_eval_view *v,
                                   dq_err *err);
dq_status cmd_eval_text_csv_cells(dq_table *t, const cmd_eval_view *v, int row,
                                  const dq_eval_numbers *x, dq_err *err);

#endif
