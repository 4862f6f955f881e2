/* score: turns items and windows into passes of a runner and collects log-likelihoods. Many sequences
 * share a pass; how they are grouped never changes a bit of a result.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SCORE_H
#define DQ_SCORE_H

#include "engine/evict.h"
#include "tasks/windows.h"

/* How the tokens of a sequence are remembered. */
typedef struct dq_kv_setting {
    dq_kv_spec spec;
    dq_evict_spec evict;
} dq_kv_setting;
extern const dq_kv_setting dq_kv_setting_plain; /* 16:16, nothing rotated or evicted */
bool dq_kv_setting_same(const dq_kv_setting *a, const dq_kv_setting *b);
/* Nothing is coded, rotated or evicted: sequences run in one pass. */
bool dq_kv_setting_is_plain(const dq_kv_setting *s);

/* What contexts took in the cache, right after they were compressed and before they were copied, summed
 * over them. The table of sequences is left out, so that sums do not depend on how sequences were
 * grouped. */
typedef struct dq_kv_held {
    int64_t contexts;   /* measured */
    int64_t missed;     /* sequences that ran with no boundary behind a context */
    int64_t tokens;     /* of the contexts, evicted ones included */
    int64_t tokens_cut; /* of the contexts of which something was evicted */
    int64_t slots;      /* tokens x layers x groups: what a whole cache holds */
    int64_t baseline;   /* bytes of all of them at 2 bytes per element */
    int64_t dense16;    /* bytes at 2 per element of what coded tokens keep at 16 bits */
    dq_kv_bytes bytes;  /* its token counts are slots too */
    int64_t reads,
        reads_coded; /* scored ids x keys that their rows read, in every layer and group; those
                                   of them that were codes. Of caches with codes only */
    int64_t evicted, raised; /* contexts whose budget was applied; was raised */
    double gap_min;          /* with `evicted`; see dq_policy_gap */
} dq_kv_held;
void dq_kv_held_add(dq_kv_held *into, const dq_kv_held *from);
/* Bytes of a cache with no sequence in it that has had n at a time. */
dq_status dq_kv_held_floor(dq_kv_bytes *floor, dq_runner *r, int64_t n, dq_err *err);
/* Adds the n sequences, which are all there are; prefix[i]: tokens that sequence i has had. */
void dq_kv_held_measure(dq_kv_held *held, dq_runner *r, const dq_kv_spec *spec,
                        const dq_kv_bytes *floor, const int32_t *seq, const int32_t *prefix,
                        int64_t n);
/* Adds what the rows at n positions of a sequence read; positions may stand there several times. Behind the
 * pass that had these rows, before anything is forgotten. */
dq_status dq_kv_held_reads(dq_kv_held *held, dq_runner *r, int32_t seq, const int32_t *pos,
                           int64_t n, dq_err *err);
void dq_kv_held_report(dq_kv_held *held, const dq_evict_report *report, int64_t n);

/* What scoring cost. */
typedef struct dq_work {
    int64_t tokens;   /* ids that the sequences have, each counted for itself */
    int64_t computed; /* rows that passes computed: fewer where a context is shared */
    double seconds;
    dq_kv_held held;
} dq_work;
void dq_work_add(dq_work *into, const dq_work *from);

/* The trunk of the items at hand, computed once and kept from group to group. {0} with seq -1 is one that
 * holds nothing. */
typedef struct dq_stem {
    int32_t seq;           /* -1: none */
    const dq_trunk *trunk; /* that seq holds */
    dq_evictor *evictor;   /* NULL: nothing is evicted */
} dq_stem;
extern const dq_stem dq_stem_none;
/* Frees the sequence; the runner must be there still. */
void dq_stem_end(dq_stem *stem, dq_runner *r);

/* Rows of one pass: enough to keep matrix products busy, little enough for any memory. */
enum { DQ_SCORE_ROWS = 4096 };

/* Items whose choices share their context, and whose trunk is computed once. */
bool dq_score_shares(const dq_pass *pass, const dq_kv_setting *kv);
/* max_rows of dq_score_group on this runner: DQ_SCORE_ROWS or what memory holds; more where contexts are shared,
 * because fewer rows than counted are computed then. */
int64_t dq_score_rows(const dq_runner *r, bool shared);
/* One past the last item of a group that starts at `begin`: as many as fit into max_rows rows, at least
 * one, all with one trunk. */
int64_t dq_score_group(const dq_requests *q, int64_t begin, int64_t max_rows, bool shared);

/* logp[v], top1[v]: ln of the probability of scored id v behind the ids before it, and the most likely id
 * there; for the requests of items begin .. end - 1 (one group), indexed by dq_request.value. Where the
 * logit rounding looks at one row only, choices of an item share its context and items their trunk. */
dq_status dq_score_items(dq_runner *r, const dq_pass *pass, const dq_requests *q, int64_t begin,
                         int64_t end, dq_stem *stem, double *logp, int32_t *top1, dq_work *work,
                         dq_err *err);

/* The same with a compressed cache, on a runner that was made for kv->spec: contexts first, and choices
 * of an item share theirs at every grain; then eviction; then the rest of each choice behind a copy, in
 * pieces of kv->evict.every tokens with an eviction behind each. Where there is a trunk, it is the context
 * that is compressed, once, and contexts go behind a copy of it. */
dq_status dq_score_items_kv(dq_runner *r, const dq_pass *pass, const dq_kv_setting *kv,
                            const dq_requests *q, int64_t begin, int64_t end, dq_stem *stem,
                            double *logp, int32_t *top1, dq_work *work, dq_err *err);

/* Windows begin .. end - 1, each a sequence of its own. The outputs have a value per scored id, from that
 * of window `begin` on: logp of the target and the most likely id; `state` (backend memory, given by the
 * caller) keeps the final states that predicted them. */
dq_status dq_score_windows(dq_runner *r, const dq_pass *pass, const dq_windows *w, int64_t begin,
                           int64_t end, dq_mat state, double *logp, int32_t *top1, dq_work *work,
                           dq_err *err);
/* The same with a compressed cache: the first `first` ids of each window are its context. All these windows
 * have the same n and first. */
dq_status dq_score_windows_kv(dq_runner *r, const dq_pass *pass, const dq_kv_setting *kv,
                              const dq_windows *w, int64_t begin, int64_t end, dq_mat state,
                              double *logp, int32_t *top1, dq_work *work, dq_err *err);

/* Whether what the model answers are numbers: DQ_DAMAGED for one of n log-probabilities that is not finite. */
dq_status dq_logp_check(const dq_model *m, const double *logp, int64_t n, dq_err *err);

#endif
