/* eval_tasks: what --task, --data, --fewshot-data and --text name, before any file is read.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_TASKS_H
#define DQ_EVAL_TASKS_H

#include "cmds/eval/eval_options.h"

/* Fills o->source and o->examples. DQ_USAGE: names, files or options that do not go together. */
dq_status cmd_eval_choose(cmd_eval_options *o, dq_arena *a, dq_err *err);
/* For kinds: one more source of the run. DQ_USAGE: there are too many `what`, "tasks". */
dq_status cmd_eval_add_source(cmd_eval_options *o, const dq_eval_source *source, const char *what,
                              dq_err *err);
/* The path of a task in a list like that of --data: the one given as NAME=FILE, else the next one given without a
 * name, of which earlier tasks have taken *used. NULL: none. */
const char *cmd_eval_path_for(const dq_list *given, const char *task, int *used);
/* DQ_USAGE: NAME=FILE with one name twice. */
dq_status cmd_eval_check_twice(const dq_list *given, const char *option, dq_err *err);
/* All that the run reads, once it is chosen. */
dq_status cmd_eval_inputs_list(cmd_eval_inputs *in, const cmd_eval_options *o, const dq_args *args,
                               dq_arena *a, dq_err *err);

#endif
