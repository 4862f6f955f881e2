/* eval_merge: the parts of an evaluation that dq eval --shard wrote, as one.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_MERGE_H
#define DQ_EVAL_MERGE_H

#include "cmds/eval/eval_options.h"

/* Parts that belong together, as dq merge has found them, and what it is to write. */
typedef struct cmd_eval_merge {
    const char *const *path; /* [n] */
    int n;
    const char *program;            /* what computed them */
    const json_t *device, *threads; /* of the document's settings */
    const char *document;           /* NULL: none */
    bool json, force, quiet;
} cmd_eval_merge;

/* dq eval with the parts in place of computing. merge NULL: dq eval. */
dq_status cmd_eval_merged(const cmd_eval_merge *merge, int argc, char **argv, dq_err *err);
/* What the first line of a part says besides its key: command, shard, what computes, outputs and arguments. *about is the
 * caller's. DQ_USAGE: an argument is not UTF-8. */
dq_status cmd_eval_shard_about(json_t **about, const cmd_eval_options *o, const char *program,
                               const dq_backend *b, int argc, char **argv, dq_err *err);

#endif
