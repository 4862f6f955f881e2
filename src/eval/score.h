/* Scoring: what contexts take, how items become passes, log-likelihoods.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SCORE_H
#define DQ_SCORE_H

#include "engine/runner.h"
#include "tasks/documents.h"

/* ---- KV cached ----
 * What contexts take in a cache, and what scored rows read of it. */

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

/* ---- Score ----
 * Turns items and windows into passes of a runner and collects log-likelihoods. Many sequences
 * share a pass; how they are grouped never changes a bit of a result. */

/* What scoring cost. */
typedef struct dq_score_work {
    int64_t tokens;   /* ids that the sequences have, each counted for itself */
    int64_t computed; /* rows that passes computed: fewer where a context is shared */
    double seconds;
    dq_kv_cached cached;
} dq_score_work;
void dq_score_work_add(dq_score_work *into, const dq_score_work *from);

/* A runner with all that scoring on it needs, for as many groups of items or windows as share these settings.
 * `cached` and `prefix` belong to score.c. */
typedef struct dq_scorer {
    dq_runner *r;                   /* made for kv; outlives the scorer */
    dq_pass pass;                   /* that every pass is made from */
    const dq_kv_spec *kv;           /* the caller's */
    dq_evictor *evictor;            /* NULL: nothing is evicted */
    int32_t cached;                 /* sequence that holds the shared prefix; -1: none does */
    const dq_shared_prefix *prefix; /* the shared prefix that it holds */
    dq_score_work work;             /* is added to; the caller takes and clears it */
} dq_scorer;
dq_status dq_score_begin(dq_scorer *s, dq_runner *r, const dq_pass *pass, const dq_kv_spec *kv,
                         dq_err *err);
/* Frees the cached prefix; the runner must be there still. {0} is allowed. */
void dq_score_end(dq_scorer *s);

/* Where answers go: ln of the probability of each scored id after the ids before it, and the most likely id
 * there. */
typedef struct dq_scores {
    double *logp;
    int32_t *top1;
} dq_scores;

/* Rows of one pass: enough to keep matrix products busy, little enough for any memory. */
enum { DQ_SCORE_ROWS = 4096 };

/* Whether choices of an item share its context and items their prefix: where the logit rounding looks at one row
 * only, and with a compressed cache at every granularity. */
bool dq_score_shares(const dq_pass *pass, const dq_kv_spec *kv);
/* max_rows of dq_score_group on this runner: DQ_SCORE_ROWS or what memory holds; more where contexts are shared,
 * because fewer rows than counted are computed then. */
int64_t dq_score_rows(const dq_runner *r, bool shared);
/* One past the last item of a group that starts at `begin`: as many as fit into max_rows rows, at least
 * one, all with one shared prefix, and all with one context for all choices or none: what contexts take is measured
 * by group. */
int64_t dq_score_group(const dq_requests *q, int64_t begin, int64_t max_rows, bool shared);

/* Ids of a request that are fed after the shared prefix: the last one's successor is not asked for. */
int64_t dq_score_fed(const dq_request *r);

/* Items begin .. end - 1 (one group); `out` is indexed by dq_request.value. With a compressed cache contexts
 * come first, then eviction, then the rest of each choice after a copy, in pieces of kv->evict.every
 * tokens with an eviction after each; where there is a shared prefix, that is what is compressed, once, and contexts go
 * after a copy of it. After a failure the scorer may go on with other items. */
dq_status dq_score_items(dq_scorer *s, const dq_requests *q, int64_t begin, int64_t end,
                         dq_scores out, dq_err *err);

/* Windows begin .. end - 1, each a sequence of its own. `out` has a value per scored id, from that
 * of window `begin` on; `state` (backend memory, given by the caller) keeps the final states that predicted
 * them. With a compressed cache the first `first` ids of each window are its context, and all these windows have
 * the same n and first (dq_windows_alike). */
dq_status dq_score_windows(dq_scorer *s, const dq_windows *w, int64_t begin, int64_t end,
                           dq_mat state, dq_scores out, dq_err *err);

/* Whether what the model answers are numbers: DQ_DAMAGED for one of n log-probabilities that is not finite. */
dq_status dq_score_check_logp(const dq_model *m, const double *logp, int64_t n, dq_err *err);

#endif
