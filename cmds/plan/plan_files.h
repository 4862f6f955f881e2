/* plan_files: the files that dq plan writes beside those that it reads, of weights and of a cache.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_FILES_H
#define DQ_PLAN_FILES_H

#include "base/base.h"

typedef struct dq_plan_files {
    const char *out; /* the recipe, beside which OUT.journal lies; NULL: none is written */
    const char *const *inputs; /* [n_inputs] the model and files; NULL: none */
    int n_inputs;
    bool trials; /* containers are tried beside it */
    bool resume, force;
} dq_plan_files;

/* DQ_USAGE where the recipe or what lies beside it would replace an input, whatever `force` says; DQ_FILE for a finished recipe that
 * is to be resumed, for a journal that is no regular file, and as dq_output_guard_check fails. */
dq_status dq_plan_files_check(const dq_plan_files *f, dq_err *err);

#endif
