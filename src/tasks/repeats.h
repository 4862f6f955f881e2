/* repeats: what a text says twice. Runs of tokens that are copies of an earlier one are no pieces of their own for an error, and
 * a text that goes on repeating itself teaches and tests little.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_REPEATS_H
#define DQ_REPEATS_H

#include "base/base.h"

typedef struct dq_repeats_run {
    const int32_t *ids; /* [n] */
    int64_t n;
    int32_t
        unit; /* runs of one unit stand side by side and are compared together: a document in several sequences */
} dq_repeats_run;

/* cluster[i] of run i: its unit's number from 0, in the order in which they come; units with the same runs, by a hash of
 * 64 bits, have the same number. *n_clusters: how many there are; *n_copies (may be NULL): units that are copies. DQ_RESOURCE. */
dq_status dq_repeats_clusters(int32_t *cluster, int64_t *n_clusters, int64_t *n_copies,
                              const dq_repeats_run *run, int64_t n, dq_err *err);

/* The same of units that are known by a key each. *cluster is in the arena; NULL: no two keys are equal. DQ_RESOURCE. */
dq_status dq_repeats_keys(const int32_t **cluster, const uint64_t *key, int64_t n, dq_arena *a,
                          dq_err *err);

/* Places of runs at which DQ_REPEATS_IDS ids begin, and how many of them begin ids that stand nowhere before. DQ_RESOURCE. */
enum { DQ_REPEATS_IDS = 16 };
dq_status dq_repeats_count(int64_t *n_places, int64_t *n_new, const dq_repeats_run *run, int64_t n,
                           dq_err *err);

#endif
