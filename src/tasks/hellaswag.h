/* hellaswag: the files of HellaSwag: the official JSON lines, whose texts are cleaned, and six lines
 * an item, taken as they are.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HELLASWAG_H
#define DQ_HELLASWAG_H

#include "tasks/task_file.h"

/* Both forms: a file that begins with "{" is the first. At most `limit` items (0: all). */
dq_status dq_hellaswag_load(dq_task_items *l, const char *text, size_t len, int64_t limit,
                            dq_err *err);

/* The clean-up of one field, and Python's str.capitalize with simple case mappings.
 * Source: lm-evaluation-harness lm_eval/tasks/hellaswag/utils.py (behaviour). */
char *dq_hellaswag_clean(dq_arena *a, const char *s, dq_err *err);
char *dq_hellaswag_capitalize(dq_arena *a, const char *s, dq_err *err);

#endif
