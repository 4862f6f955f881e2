/* eval_baseline: an older document of dq eval that this run's numbers are compared with: --baseline.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_BASELINE_H
#define DQ_EVAL_BASELINE_H

#include "cmds/eval/eval_view.h"
#include "record/record.h"

struct cmd_eval_options;

typedef struct cmd_eval_baseline {
    const char *path; /* NULL: none */
    const char *name; /* the path as a terminal may show it */
    char sha256[65];
    int64_t bytes;
    json_t *document;
    int *result; /* [e->n_rows]: index of the row's result there; -1: it has none */
} cmd_eval_baseline;

/* Reads the document. DQ_DAMAGED: no JSON, or results without what tells them apart; DQ_MISMATCH: another schema. */
dq_status cmd_eval_baseline_read(cmd_eval_baseline *b, const char *path, dq_arena *a, dq_err *err);
/* Before anything is scored: finds the result of each row, by model, task and settings of the row. inputs and settings are
 * those of this run's document. DQ_MISMATCH, with what differs: other files, other settings of a task that both have,
 * another number of items or tokens, or two results of which either could be meant. */
dq_status cmd_eval_baseline_fit(cmd_eval_baseline *b, const cmd_eval_view *v,
                                const struct cmd_eval_options *o, const json_t *inputs,
                                const json_t *settings, dq_logger *logger, dq_err *err);
/* The result of a row; NULL: there is none. */
const json_t *cmd_eval_baseline_result(const cmd_eval_baseline *b, int row);
/* {"path", "sha256", ...} for the document of this run. */
json_t *cmd_eval_baseline_json(const cmd_eval_baseline *b);
void cmd_eval_baseline_end(cmd_eval_baseline *b);

#endif
