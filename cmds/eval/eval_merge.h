/* eval_merge: the parts of an evaluation that dq eval --shard wrote, as one.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_MERGE_H
#define DQ_EVAL_MERGE_H

#include "cmds/eval/eval_options.h"

/* Parts that belong together, as dq merge has found them. */
typedef struct cmd_eval_merge {
    const char *const *path; /* [n] */
    int n;
    const char *program; /* what computed them */
} cmd_eval_merge;

/* dq eval with the parts in place of computing. merge NULL: dq eval. */
dq_status cmd_eval_merged(const cmd_eval_merge *merge, int argc, char **argv, dq_err *err);
/* What the first line of a part says besides its key: command, shard, program and arguments, without those that are the part's
 * own. The caller's. */
json_t *cmd_eval_shard_about(const cmd_eval_options *o, const char *program, int argc, char **argv);

#endif
