/* eval_judged: dq eval --task verdicts, the one task that runs no model: a file of verdicts on texts that
 * were generated earlier becomes rows like those of any other task.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_JUDGED_H
#define DQ_EVAL_JUDGED_H

#include "cmds/cli/progress.h"

typedef struct dq_judged_options {
    const char *path;           /* the file of verdicts; NULL: no such run */
    const char *csv, *document; /* outputs; NULL: none */
    bool json;
    dq_talk *talk; /* begun */
} dq_judged_options;

/* Reads, compares, writes and prints. */
dq_status dq_eval_judged(const dq_judged_options *o, dq_err *err);

#endif
