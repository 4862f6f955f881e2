/* eval_text: what dq eval reports about running text besides the metrics of every row.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_TEXT_H
#define DQ_EVAL_TEXT_H

#include "cmds/cli/table.h"
#include "cmds/eval/eval_report.h"
#include "eval/text_numbers.h"

/* Adds windows, documents, confidence, positions and slices to a row's object. */
dq_status dq_eval_text_details(json_t *o, const dq_eval_view *v, int row, dq_err *err);
/* The metrics that rows of texts have besides those of every text. */
void dq_eval_text_metrics(json_t *metrics, const dq_eval_numbers *x);
/* Small tables behind the large one: perplexity per word, positions, slices. */
dq_status dq_eval_text_tables(const dq_eval_view *v, dq_err *err);
/* Columns of the CSV: adds titles to titles[*n], which live in the arena; the cells of a row. */
dq_status dq_eval_text_titles(const char **titles, int *n, const dq_eval_view *v, dq_err *err);
dq_status dq_eval_text_columns(dq_table *t, const dq_eval_view *v, int row,
                               const dq_eval_numbers *x, dq_err *err);
enum { DQ_TEXT_COLUMNS = 32 + 4 * DQ_POSITIONS_MAX }; /* titles at most */

#endif
