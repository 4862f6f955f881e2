/* score: turns items and windows into passes of a runner and collects log-likelihoods. Many sequences
 * share a pass; how they are grouped never changes a bit of a result.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SCORE_H
#define DQ_SCORE_H

#include "forward.h"
#include "tasks.h"

/* What scoring cost. */
typedef struct dq_work {
    int64_t tokens;   /* ids that the sequences have, each counted for itself */
    int64_t computed; /* rows that passes computed: fewer where a context is shared */
    double seconds;
} dq_work;
void dq_work_add(dq_work *into, const dq_work *from);

/* One past the last item of a group that starts at `begin`: as many as fit into max_rows rows, at
 * least one. */
int64_t dq_score_group(const dq_requests *q, int64_t begin, int64_t max_rows);

/* ll[k]: ln of the probability of the continuation of request k, greedy[k]: every id of it was the
 * most likely one; for the requests of items begin .. end - 1, indexed as in q. Where the logit
 * rounding looks at one row only, choices of an item share its context. */
dq_status dq_score_items(dq_runner *r, const dq_pass *pass, const dq_requests *q, int64_t begin,
                         int64_t end, double *ll, bool *greedy, dq_work *work, dq_err *err);

/* Windows begin .. end - 1, each a sequence of its own. The outputs have n_scored values per window,
 * from the first window on: logp of the target and the most likely id; `state` (backend memory, given
 * by the caller) keeps the final states that predicted them. */
dq_status dq_score_windows(dq_runner *r, const dq_pass *pass, const dq_windows *w, int64_t begin,
                           int64_t end, dq_mat state, double *logp, int32_t *top1, dq_work *work,
                           dq_err *err);

#endif
