/* bench_generate: speed of decoding with the whole model, beside a plain read of memory.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_BENCH_GENERATE_H
#define DQ_BENCH_GENERATE_H

#include "cmds/cli/logger.h"
#include "eval/score.h"

enum { DQ_BENCH_BATCH_MAX = 8 };
typedef struct dq_bench_generate_options {
    int64_t steps, runs; /* timed passes of one row a sequence; runs after one that warms up */
    const int *context, *batch; /* ids of every prompt; sequences decoded together */
    int n_contexts, n_batches;
    const char *math_word;
    dq_math math;
    const dq_kv_spec *kv; /* the runner was made for it */
    bool json;
} dq_bench_generate_options;

/* Continues invented prompts as dq eval does (eval/generate.h), for every context and batch. A run is all of these in
 * turn, a plain read of memory after each; prompts are computed anew in every run and are not timed. Prints a table or a
 * document. */
dq_status dq_bench_generate(dq_logger *logger, dq_runner *r, const dq_bench_generate_options *o,
                            dq_err *err);

#endif
