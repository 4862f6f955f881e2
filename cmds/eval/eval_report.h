/* eval_report: the forms in which dq eval gives a finished sweep.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_REPORT_H
#define DQ_EVAL_REPORT_H

#include "cmds/cli/table.h"
#include "eval/eval.h"

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
/* "1 query", "250 queries" */
const char *cmd_eval_clusters_text(char *buf, size_t cap, int64_t n, const char *cluster);
/* Cells of a table for people: "0.6340 ± 0.0048"; sign: "+" or "". */
void cmd_eval_mean_cell(dq_table *t, dq_mean m, const char *sign);
/* Of scores: where they are all the same, the ends of the interval instead of an error of 0. */
void cmd_eval_score_cell(dq_table *t, dq_mean m, dq_interval x, const char *sign);
/* Bits of the weights: "16", "4/32", "mixed". */
void cmd_eval_weights_cell(dq_table *t, const dq_model *m);
/* "is the reference", or that nothing but the row itself is there to compare it with. NULL: it is compared. */
const char *cmd_eval_no_difference(const dq_eval *e, int row);

/* Index of a row among the results, which are the shown ones. */
int cmd_eval_result_of(const dq_eval *e, int row);
/* Index of the first result with the row's numbers, which were computed once; null if that is the row itself. */
json_t *cmd_eval_same_as_json(const dq_eval *e, int row);
/* {"value", "stderr", "n_clusters"}. */
json_t *cmd_eval_mean_json(dq_mean m);
/* [low, high]; null where there is none. */
json_t *cmd_eval_interval_json(dq_interval x);
/* What `paired` says about one metric. */
json_t *cmd_eval_flips_json(const dq_stat_flips *f);
/* One object per shown row, appended to `results`. */
dq_status cmd_eval_json(json_t *results, const cmd_eval_view *v, dq_err *err);
/* For people: values with their standard errors. For programs (CSV): one column per number. */
dq_status cmd_eval_table(dq_table **out, const cmd_eval_view *v, dq_err *err);
dq_status cmd_eval_columns(dq_table **out, const cmd_eval_view *v, dq_err *err);
void cmd_eval_mean_columns(dq_table *t, dq_mean m); /* value and standard error */
/* The same task and setting in the first model of the run, unless both have one reference: then `paired` says it. -1:
 * none. */
int cmd_eval_cross_row(const dq_eval *e, int row);
/* What tells rows apart, as keys of a JSON line about one of their items. */
void cmd_eval_row_keys(json_t *o, const cmd_eval_view *v, const dq_eval_row *r);
/* JSON lines of --dump-items, of every shown row. */
dq_status cmd_eval_dump(const cmd_eval_view *v, const char *path, dq_err *err);

#endif
