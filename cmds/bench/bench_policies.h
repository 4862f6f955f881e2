/* bench_policies: what it takes to choose the tokens of a context that a policy keeps, beside reading the context.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_BENCH_POLICIES_H
#define DQ_BENCH_POLICIES_H

#include "cmds/cli/logger.h"
#include "engine/runner.h"

enum { DQ_BENCH_POLICIES_MAX = 32 };
typedef struct dq_bench_policies_options {
    const dq_kv_policy *policy[DQ_BENCH_POLICIES_MAX]; /* [n_policies] */
    int n_policies;
    const int *length; /* [n_lengths] ids of a context */
    int n_lengths;
    int64_t runs; /* timed, after one that warms up */
    const char *math_word;
    dq_math math;
    const dq_kv_spec *kv; /* nothing is forgotten */
    bool json;
} dq_bench_policies_options;

/* Policies of a list of names; `all` is every one that is no baseline. */
dq_status dq_bench_policies_read(dq_bench_policies_options *o, const char *names, dq_err *err);

/* Every policy reads the context and forgets all but a quarter, in turns with a prefill that forgets nothing. Prints a
 * table or a document. */
dq_status dq_bench_policies(dq_logger *logger, dq_runner *r, const dq_bench_policies_options *o,
                            dq_err *err);

#endif
