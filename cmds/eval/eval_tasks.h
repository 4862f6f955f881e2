/* eval_tasks: what --task, --data, --fewshot-data and --text name, before any file is read.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_TASKS_H
#define DQ_EVAL_TASKS_H

#include "cmds/eval/eval_options.h"

/* Fills o->source and o->examples, or o->verdicts. DQ_USAGE: names, files or options that do not go
 * together; no model, which `usage` then explains. */
dq_status dq_eval_choose(dq_eval_options *o, const dq_args *args, const dq_usage *usage,
                         dq_arena *a, dq_err *err);
/* Whether `out` is one of the files that will be read. */
dq_status dq_eval_is_input(bool *is, const dq_eval_options *o, const char *out, dq_arena *a,
                           dq_err *err);

#endif
