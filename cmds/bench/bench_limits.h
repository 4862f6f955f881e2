/* bench_limits: what the machine can do at most, for benchmarks to compare with: operations of one instruction on
 * registers, and a plain read of memory. Both are timed between the runs that they are compared with.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_BENCH_LIMITS_H
#define DQ_BENCH_LIMITS_H

#include "engine/backend.h"

/* Operations per second of the instruction that products in `num` are made of, on all threads, for some 20 ms; its name
 * (static). NaN and NULL where the device does not know. */
double dq_bench_limits_ops(dq_backend *b, dq_num num, const char **instruction);

/* A block that nothing else reads. */
typedef struct dq_bench_block {
    dq_backend *b;
    void *p;      /* NULL: the device has no plain read, or no memory for it */
    size_t bytes; /* that were wanted; 0: no plain read */
} dq_bench_block;
/* As large as `weights` bytes, but at least four times the last-level cache and 128 MiB; all in all at most 1 GiB. Call it
 * when b has no error. */
void dq_bench_block_new(dq_bench_block *block, dq_backend *b, double weights);
void dq_bench_block_free(dq_bench_block *block); /* {0} is allowed */
/* Bytes per second of reading it once on all threads; NaN without one. Leaves nothing else in the caches. */
double dq_bench_block_read(const dq_bench_block *block);

#endif
