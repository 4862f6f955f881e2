/* evict: collects what a policy needs while a prefix runs, and then evicts tokens in every layer and
 * KV head group of the sequences.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVICT_H
#define DQ_EVICT_H

#include "engine/second_pass.h"

/* What eviction did, summed over sequences, layers and groups. Calls add to it. */
typedef struct dq_evict_report {
    int64_t before, kept; /* tokens */
    int64_t raised;       /* evictions of a sequence whose budget was raised to sink + recent */
    double gap_min;       /* see dq_kv_policy_gap */
    int64_t second_pass;  /* rows that second passes computed */
    int64_t
        beyond; /* contexts of which some of these stood after the positions that the model has */
    /* contexts that the policy weighs by directions of keys, of which some group held no more tokens than its keys have
     * channels: all have nearly the same number */
    int64_t flat;
} dq_evict_report;
extern const dq_evict_report dq_evict_report_none; /* gap_min INFINITY */

typedef struct dq_evictor dq_evictor;

/* The runner must outlive it; the storage is that of the runner's cache. pass: logit, math and listener of the passes that read a
 * context again, where the policy wants that. Fails as dq_evict_check and dq_backend_can_evict do. */
dq_status dq_evictor_new(dq_evictor **out, dq_runner *r, const dq_kv_spec *spec,
                         const dq_pass *pass, dq_err *err);
void dq_evictor_free(dq_evictor *e); /* NULL allowed */

/* Before a pass that appends to sequences: what to put into dq_pass.columns ([n_layers], valid until the
 * next call), NULL when the policy needs no sums. Sums of earlier passes of the same sequences go on
 * (a prefix in chunks, a continuation that is evicted again), as far as the sequence has not been
 * rewound; a sequence is new when it holds nothing.
 * Where the policy reads contexts again, the batch's ids are remembered.
 * A window of last rows starts anew with every pass that has as many rows of a sequence and with every
 * eviction: hand the last `window` rows of a prefix to one pass. */
dq_status dq_evictor_watch(dq_evictor *e, const dq_batch *batch, const dq_columns **out,
                           dq_err *err);
/* After the pass: evicts in each of the batch's sequences. `prefix[i]`: tokens that the sequence has had
 * so far, evicted ones included = position of the next row; the budget is for them. What is kept
 * depends on the sequence alone, not on the batch or the number of threads. */
dq_status dq_evictor_run(dq_evictor *e, const dq_batch *batch, const int32_t *prefix,
                         dq_evict_report *report, dq_err *err);
/* A copy of a sequence starts with the sums of its parent. */
dq_status dq_evictor_fork(dq_evictor *e, int32_t from, int32_t to, dq_err *err);
void dq_evictor_forget(dq_evictor *e, int32_t seq); /* before the sequence is freed */

#endif
