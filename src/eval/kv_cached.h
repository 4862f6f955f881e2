/* kv_cached: what contexts take in a cache, and what scored rows read of it.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_CACHED_H
#define DQ_KV_CACHED_H

#include "engine/runner.h"

/* What contexts took in the cache, right after they were compressed and before they were copied, summed
 * over them. The table of sequences is left out, so that sums do not depend on how sequences were
 * grouped. */
typedef struct dq_kv_cached {
    int64_t contexts;   /* measured */
    int64_t missed;     /* sequences that ran with no boundary after a context */
    int64_t tokens;     /* of the contexts, evicted ones included */
    int64_t tokens_cut; /* of the contexts of which something was evicted */
    int64_t slots;      /* tokens x layers x groups: what a whole cache holds */
    int64_t baseline;   /* bytes of all of them at 2 bytes per element */
    int64_t dense16;    /* bytes at 2 per element of what coded tokens keep at 16 bits */
    dq_kv_bytes bytes;  /* its token counts are slots too */
    /* Of caches with codes only: scored tokens x keys that their rows read, in every layer and group; those of
     * them that were codes. */
    int64_t reads, reads_coded;
    int64_t evicted, raised; /* contexts whose budget was applied; was raised */
    int64_t beyond; /* contexts whose second pass stood after the positions that the model has */
    int64_t flat;   /* see dq_evict_report */
    double gap_min; /* with `evicted`; see dq_kv_policy_gap */
} dq_kv_cached;
void dq_kv_cached_add(dq_kv_cached *into, const dq_kv_cached *from);
/* Bytes of a cache with no sequence in it that has had n at a time. */
dq_status dq_kv_cached_floor(dq_kv_bytes *floor, dq_runner *r, int64_t n, dq_err *err);
/* Adds the n sequences, which are all there are; prefix[i]: tokens that sequence i has had. */
void dq_kv_cached_measure(dq_kv_cached *cached, dq_runner *r, const dq_kv_spec *spec,
                          const dq_kv_bytes *floor, const int32_t *seq, const int32_t *prefix,
                          int64_t n);
/* Adds what the rows at n positions of a sequence read; positions may stand there several times. After the
 * pass that had these rows, before anything is evicted. */
dq_status dq_kv_cached_reads(dq_kv_cached *cached, dq_runner *r, int32_t seq, const int32_t *pos,
                             int64_t n, dq_err *err);
void dq_kv_cached_report(dq_kv_cached *cached, const dq_evict_report *report, int64_t n);

#endif
