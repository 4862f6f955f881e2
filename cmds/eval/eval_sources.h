/* eval_sources: the files that dq eval scores, and what is said about their tasks.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_SOURCES_H
#define DQ_EVAL_SOURCES_H

#include "cmds/cli/progress.h"
#include "cmds/eval/eval_options.h"
#include "cmds/eval/eval_report.h"

/* What has been read so far: a task can have two files and two of labels. */
typedef struct dq_eval_files {
    char sha[4 * DQ_EVAL_SOURCES][65];
    int n;
    json_t *inputs; /* gets an object for each */
    dq_talk *talk;
} dq_eval_files;

/* Reads the files of e->source[i]: text or items, with their few-shot examples. */
dq_status dq_eval_source_read(dq_eval *e, dq_eval_options *o, int i, dq_eval_files *files,
                              dq_err *err);
/* A warning about ill-formed UTF-8, if there was any. */
void dq_eval_warn_bad(dq_talk *t, const char *path, int64_t n_bad, int64_t first);

/* Members of a JSON row: num_fewshot, seed, paper_metric. */
void dq_eval_task_json(json_t *row, const dq_eval_source *s);
/* Prints, below a table, which metric publications quote and what was put in front of the items. */
void dq_eval_tasks_note(const dq_eval *e);
/* JSON lines {task, item, choice, context, continuation} of every choice of every task. */
dq_status dq_eval_dump_requests(const dq_eval *e, const char *path, dq_err *err);

#endif
