/* bench_clocked: where the time of a pass goes, by the operations of the backend that it calls.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_BENCH_CLOCKED_H
#define DQ_BENCH_CLOCKED_H

#include "engine/backend.h"

/* Seconds by the clock of dq_bench_now. */
typedef struct dq_bench_clocked {
    double attention; /* attend, and the first sweep of attn_absmax */
    double products;  /* matmul and logprob */
} dq_bench_clocked;

/* From now on the operations of b are timed, for one backend at a time. False where they are asynchronous, so that a call
 * says nothing of its operation; nothing is changed then. */
bool dq_bench_clocked_begin(dq_backend *b);
/* What has come together since the last call. */
dq_bench_clocked dq_bench_clocked_take(void);
/* Puts back what _begin changed; nothing where it returned false. */
void dq_bench_clocked_end(dq_backend *b);

#endif
