/* tasks: the table of multiple-choice tasks with their file forms. To add a task: a reader in
 * task_forms.c and a row in the table.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TASKS_H
#define DQ_TASKS_H

#include "tasks/items.h"

struct dq_task_items;

typedef struct dq_task {
    const char *name;
    const char *form;   /* file forms, for messages */
    const char *metric; /* the one that publications quote, acc or acc_norm; NULL: there are none */
    bool by_norm;       /* it is acc_norm */
    /* A few-shot draw takes one example more, so that an example that is the item itself can be left
     * out: lm-evaluation-harness does so where it knows of no test split. */
    bool draws_extra;
    int first_label; /* of the file X-labels.lst beside X.jsonl; -1: answers stand with the items */
    dq_status (*load)(struct dq_task_items *l, const char *text, size_t len, int64_t limit,
                      dq_err *err);
} dq_task;

extern const dq_task dq_tasks[];
extern const int dq_tasks_n;
/* The row of that name, or NULL with DQ_USAGE listing them. */
const dq_task *dq_task_find(const char *name, dq_err *err);

/* Reads a data file of the task: at most `limit` items (0: all). text[len], the bytes of `path`, must
 * outlive the items. Answers that are not with the items are read from the file of labels, which
 * `out` then names; DQ_FILE where it is missing, DQ_DAMAGED unless it has one label per item.
 * Messages name file, item and line. */
dq_status dq_task_load(dq_items *out, const dq_task *task, const char *path, const char *text,
                       size_t len, int64_t limit, dq_arena *a, dq_err *err);
/* "X-labels.lst" of "X.jsonl"; of a path that ends otherwise, that after it. */
char *dq_task_labels_path(const char *path, dq_arena *a, dq_err *err);

#endif
