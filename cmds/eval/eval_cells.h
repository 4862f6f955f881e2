/* eval_cells: numbers with their errors as cells of a table and members of JSON.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_CELLS_H
#define DQ_EVAL_CELLS_H

#include "cmds/cli/table.h"
#include "model/model.h"
#include "stat/stat.h"

#include <jansson.h>

/* "1 query", "250 queries" */
const char *cmd_eval_clusters_text(char *buf, size_t cap, int64_t n, const char *cluster);
/* Cells of a table for people: "0.6340 ± 0.0048"; sign: "+" or "". */
void cmd_eval_mean_cell(dq_table *t, dq_mean m, const char *sign);
/* Of scores: where they are all the same, the ends of the interval instead of an error of 0. */
void cmd_eval_score_cell(dq_table *t, dq_mean m, dq_interval x, const char *sign);
/* Bits of the weights: "16", "4/32", "mixed". */
void cmd_eval_weights_cell(dq_table *t, const dq_model *m);
/* For programs: value and standard error. */
void cmd_eval_mean_columns(dq_table *t, dq_mean m);

/* {"value", "stderr", "n_clusters"}. */
json_t *cmd_eval_mean_json(dq_mean m);
/* [low, high]; null where there is none. */
json_t *cmd_eval_interval_json(dq_interval x);
/* What `paired` says about one metric. */
json_t *cmd_eval_flips_json(const dq_stat_flips *f);

#endif
