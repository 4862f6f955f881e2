/* bench_decode: speed of decoding one sequence after a long context, for several KV caches.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_BENCH_DECODE_H
#define DQ_BENCH_DECODE_H

#include "cmds/cli/logger.h"
#include "engine/runner.h"

/* Times `tokens` single-token passes after each of n contexts, and attention alone with nothing in the
 * processor's caches. KV caches take turns, token by token, and so does a plain read of memory, so that
 * other work on the machine disturbs all of them alike. Contexts are invented keys and values. What is not coded is held in each of n_types types. */
dq_status dq_bench_decode(dq_logger *logger, const dq_model *m, dq_backend *b, int64_t tokens,
                          const int *context, int n, const dq_kv_dense *types, int n_types,
                          bool json, dq_err *err);

#endif
