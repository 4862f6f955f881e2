/* task_forms: one line of each multiple-choice task's file as an item: context, choices, answer. The
 * prompts are those of lm-evaluation-harness (lm_eval/tasks, behaviour); every reader takes the form
 * of the original release and the flat one of later copies.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TASK_FORMS_H
#define DQ_TASK_FORMS_H

#include "tasks/task_file.h"

dq_task_file_object dq_read_mc;  /* {"ctx", "choices": [...], "gold", "delimiter"?, "cluster"?} */
dq_task_file_object dq_read_arc; /* question with labelled choices, answerKey */
dq_task_file_object dq_read_openbookqa; /* the same; the context is the question alone */
dq_task_file_object
    dq_read_boolq; /* passage, question, label; or title, passage, question, answer */
dq_task_file_object dq_read_piqa; /* goal, sol1, sol2; gold -1 without a label */
/* sentence with a blank, option1, option2: each choice is a context of its own, with the option in
 * the blank, before one and the same continuation. gold -1 without an answer. */
dq_task_file_object dq_read_winogrande;

#endif
