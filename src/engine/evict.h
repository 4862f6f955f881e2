/* evict: collects what a policy needs while a prefix runs, and then forgets tokens in every layer and
 * KV head group of the sequences.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVICT_H
#define DQ_EVICT_H

#include "engine/runner.h"
#include "kv/kv_policy.h"

typedef struct dq_evict_spec {
    const dq_policy *policy; /* NULL: nothing is evicted */
    double keep;             /* share of the prefix that is kept, 0 < keep <= 1; 0: `tokens` says */
    int64_t tokens;          /* tokens kept; 0: `keep` says */
    int64_t every;           /* evict again after so many continuation tokens; 0: only once */
    int64_t window;          /* rows that count; -1: as the policy says; 0: all */
    dq_kv_budget budget;
    uint64_t seed; /* of the policy "random" */
} dq_evict_spec;

extern const dq_evict_spec dq_evict_none; /* keep 1, no policy */
bool dq_evict_same(const dq_evict_spec *a, const dq_evict_spec *b);
/* DQ_USAGE: neither a share in (0, 1] nor tokens, both, tokens below sink + recent, negative numbers,
 * an eviction without a policy. */
dq_status dq_evict_check(const dq_evict_spec *spec, const dq_kv_spec *kv, dq_err *err);
/* Tokens of a prefix that are kept in each layer and group, before they are redistributed:
 * ceil(keep * prefix) or `tokens`, raised to sink + recent, at most prefix. *raised (may be NULL):
 * whether sink + recent was more than a share asked for. */
int64_t dq_evict_budget(const dq_evict_spec *spec, const dq_kv_spec *kv, int64_t prefix,
                        bool *raised);

/* What eviction did, summed over sequences, layers and groups. Calls add to it. */
typedef struct dq_evict_report {
    int64_t before, kept; /* tokens */
    int64_t raised;       /* evictions of a sequence whose budget was raised to sink + recent */
    double gap_min;       /* see dq_policy_gap */
} dq_evict_report;
extern const dq_evict_report dq_evict_report_none; /* gap_min INFINITY */

typedef struct dq_evictor dq_evictor;

/* The runner must outlive it; kv is the spec of the runner's cache. */
dq_status dq_evictor_new(dq_evictor **out, dq_runner *r, const dq_kv_spec *kv,
                         const dq_evict_spec *spec, dq_err *err);
void dq_evictor_free(dq_evictor *e); /* NULL allowed */

/* Before a pass that appends to sequences: what to put into dq_pass.columns ([n_layers], valid until the
 * next call), NULL when the policy needs no sums. Sums of earlier passes of the same sequences go on
 * (a prefix in chunks, a continuation that is evicted again), as far as the sequence has not been
 * rewound; a sequence is new when it holds nothing.
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
