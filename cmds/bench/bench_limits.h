/* bench_limits: what the machine can do, for benchmarks to compare with: multiply-adds of one instruction on registers, and
 * a plain read of memory. Both are timed between the runs that they are compared with.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_BENCH_LIMITS_H
#define DQ_BENCH_LIMITS_H

#include "engine/backend.h"
#include "model/model.h"

#include <jansson.h>

/* The peak: operations per second of the multiply-adds of which products in `num` with w are made (NULL: those of
 * attention), on all threads, for some 20 ms; their instruction (static). NaN and NULL where the device does not
 * know. */
double dq_bench_limits_ops(dq_backend *b, dq_num num, const dq_weight *w, const char **instruction);
/* The highest of a model's products in `num`, which run different kernels where weights are stored differently. */
double dq_bench_limits_model(dq_backend *b, dq_num num, const dq_model *m,
                             const char **instruction);
/* "f32 multiply-adds (vfmadd, 512 bits)" into name, "not known" of NULL; returns it. */
enum { DQ_BENCH_PEAK = 80 };
const char *dq_bench_peak(char name[DQ_BENCH_PEAK], dq_num num, const char *instruction);
/* The member "peak" of a document's settings, null where it is not known. */
void dq_bench_peak_json(json_t *settings, dq_num num, const char *instruction);

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
/* Bytes per second of reading it on all threads, once and again until `seconds` are over; NaN without one. Leaves nothing
 * else in the caches. */
double dq_bench_block_read(const dq_bench_block *block, double seconds);

#endif
