/* bench_items: throughput of scoring short items, beside long prefill and the model's matrix products.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_BENCH_ITEMS_H
#define DQ_BENCH_ITEMS_H

#include "cmds/cli/logger.h"
#include "eval/score.h"

typedef struct dq_bench_items_options {
    const char *path, *task; /* the file and its form, as dq eval names it */
    int64_t limit, runs;     /* limit 0: all items */
    const char *math_word;
    dq_math math;
    const dq_kv_spec *kv;
    bool json;
} dq_bench_items_options;

/* Tokenizes and scores the items `runs` times, in the groups of dq eval. After every group comes one prefill of the
 * longest prompt up to 4096 ids and one dense product, so that all three see the same machine. The runner was
 * made for kv. Prints a table or a document. */
dq_status dq_bench_items(dq_logger *logger, dq_runner *r, const dq_bench_items_options *o,
                         dq_err *err);

#endif
