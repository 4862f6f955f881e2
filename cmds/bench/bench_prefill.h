/* bench_prefill: prefill speed of one prompt of each length, beside one dense product and the ceiling of the processor.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_BENCH_PREFILL_H
#define DQ_BENCH_PREFILL_H

#include "cmds/cli/logger.h"
#include "engine/runner.h"

typedef struct dq_bench_prefill_options {
    const int *length; /* [n_lengths] ids of a prompt */
    int n_lengths;
    /* [n_logits], the first one unrounded: what others are compared with */
    const dq_logit_spec *logit;
    int n_logits;
    int64_t runs; /* timed, after one that warms up */
    const char *math_word;
    dq_math math;
    bool json;
} dq_bench_prefill_options;

/* The roundings of logits take turns. After every run comes the ceiling (bench_limits.h), so that both see the same
 * machine. Prints a table or a document. */
dq_status dq_bench_prefill(dq_logger *logger, dq_runner *r, const dq_bench_prefill_options *o,
                           dq_err *err);

#endif
