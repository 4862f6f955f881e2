/* eval_field: numbers of a result by name, once for the JSON, the table, the CSV and --fail-if.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_FIELD_H
#define DQ_EVAL_FIELD_H

#include "cmds/cli/table.h"
#include "eval/eval.h"

typedef enum cmd_eval_field_type { DQ_FIELD_MEAN, DQ_FIELD_REAL } cmd_eval_field_type;

/* A number of dq_eval_numbers. Under `metrics` of the JSON a mean is {"value", "stderr", "n_clusters"}, a real
 * {"value", "stderr": null}, left out where it is NaN. */
typedef struct cmd_eval_field {
    const char *name; /* of the member; columns of the CSV are `csv` and, of a mean, csv_stderr */
    const char
        *of; /* the metric whose member it is: a mean is NAME and NAME_stderr there, a real NAME */
    const char *csv;
    size_t at; /* of the dq_mean or double */
    cmd_eval_field_type type;
    bool every_csv;    /* its columns stand in the CSV of every run */
    const char *title; /* of the table's column; NULL: none */
    void (*cell)(dq_table *t, dq_mean m);
    bool (*there)(const dq_eval_source *source); /* NULL: all sources of the kind have it */
} cmd_eval_field;

/* A real is a mean without an error. */
dq_mean cmd_eval_field_value(const cmd_eval_field *f, const dq_eval_numbers *x);
/* Lists end with a row without a name; NULL: empty. */
void cmd_eval_field_json(json_t *metrics, const cmd_eval_field *list, const dq_eval_numbers *x);
/* Whether a result of the source has such a metric, or (member not NULL) such a member of it. */
bool cmd_eval_field_known(const cmd_eval_field *list, const dq_eval_source *source,
                          const char *metric, const char *member);
/* Columns of the CSV: those of every run, or the others, of the source. Titles live in the arena. */
dq_status cmd_eval_field_csv_titles(const char **titles, int *n, const cmd_eval_field *list,
                                    const dq_eval_source *source, dq_arena *a, dq_err *err);
void cmd_eval_field_csv_cells(dq_table *t, const cmd_eval_field *list, const dq_eval_source *source,
                              const dq_eval_numbers *x);

#endif
