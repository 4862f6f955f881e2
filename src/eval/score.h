/* Scoring: what contexts take, how items become passes, log-likelihoods.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SCORE_H
#define DQ_SCORE_H

#include "engine/runner.h"
#include "session/session.h"
#include "tasks/documents.h"

/* Sums over contexts, right after compression and before copies. The table of sequences is left
 * out, so that grouping does not change them. */
typedef struct dq_kv_cached {
    int64_t contexts;   /* measured */
    int64_t missed;     /* sequences that ran with no boundary after a context */
    int64_t tokens;     /* of the contexts, evicted ones included */
    int64_t tokens_cut; /* of the contexts of which something was evicted */
    int64_t slots;      /* tokens x layers x groups: what a whole cache holds */
    int64_t baseline;   /* bytes of all of them at 2 bytes per element */
    int64_t dense16;    /* bytes at 2 per element of what coded tokens keep at 16 bits */
    dq_kv_bytes bytes;  /* its token counts are slots too */
    /* For caches with codes: keys read by scored rows over layers and groups; and those that were
     * codes. */
    int64_t reads, reads_coded;
    int64_t evicted, raised; /* contexts whose budget was applied; was raised */
    int64_t beyond; /* contexts whose second pass stood after the positions that the model has */
    int64_t flat;   /* see dq_evict_report */
    double gap_min; /* with `evicted`; see dq_kv_policy_gap */
} dq_kv_cached;
/* Count i, in the order of the struct, which ends with what is no count. */
enum { DQ_KV_COUNTS = 19 };
int64_t *dq_kv_cached_count(dq_kv_cached *c, int i);
/* Bytes of an empty cache that has held n sequences at a time. */
dq_status dq_kv_cached_floor(dq_kv_bytes *floor, dq_runner *r, int64_t n, dq_err *err);
/* Adds n sequences, the only ones there; prefix[i]: tokens that sequence i was fed. */
void dq_kv_cached_measure(dq_kv_cached *cached, dq_runner *r, const dq_kv_spec *spec,
                          const dq_kv_bytes *floor, const int32_t *seq, const int32_t *prefix,
                          int64_t n);
/* Adds the reads of rows at n positions of a sequence, which may repeat; after their pass and
 * before eviction. */
dq_status dq_kv_cached_reads(dq_kv_cached *cached, dq_runner *r, int32_t seq, const int32_t *pos,
                             int64_t n, dq_err *err);
void dq_kv_cached_report(dq_kv_cached *cached, const dq_evict_report *report, int64_t n);

/* Items and windows become passes of a runner that give log-likelihoods; grouping never changes a
 * bit of a result. */

/* What scoring and generation take; reading, tokenizing, grouping and allocating are in none. */
typedef struct dq_score_work {
    int64_t tokens;   /* ids that the sequences have, each counted for itself */
    int64_t computed; /* rows that passes computed: fewer where a context is shared */
    double seconds;   /* of passes, log-probabilities and evictions, by dq_backend_seconds */
    dq_kv_cached cached;
} dq_score_work;
/* Computed rows per second; NaN without any. */
double dq_score_rate(const dq_score_work *w);
void dq_score_work_add(dq_score_work *into, const dq_score_work *from);

/* What all scoring with these settings needs on a runner; `cached` and `prefix` belong to
 * score.c. */
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
/* Frees the cached prefix while the runner still exists; {0} is allowed. */
void dq_score_end(dq_scorer *s);

/* ln probability of each scored token, and the most likely token there. */
typedef struct dq_scores {
    double *logp;
    int32_t *top1;
} dq_scores;

/* Rows of one pass: enough for fast matrix products, few enough for any memory. */
enum { DQ_SCORE_ROWS = 4096 };

/* Whether choices share contexts and items share prefixes: where logit rounding sees one row at a
 * time, and with a compressed cache always. */
bool dq_score_shares(const dq_pass *pass, const dq_kv_spec *kv);
/* max_rows for dq_score_group: DQ_SCORE_ROWS or what memory holds, and more where sharing computes
 * fewer rows than are counted. */
int64_t dq_score_rows(const dq_runner *r, bool shared);
/* The end of a group from `begin` on: items that fit max_rows rows, at least one, with one shared
 * prefix, and all with or all without a common context of their choices, as contexts are measured
 * by group. */
int64_t dq_score_group(const dq_requests *q, int64_t begin, int64_t max_rows, bool shared);

/* Tokens fed after the shared prefix; the last one's successor is not scored. */
int64_t dq_score_fed(const dq_request *r);

/* Items begin .. end - 1 (one group); `out` is indexed by dq_request.value. With a compressed cache
 * contexts come first, then eviction, then the rest of each choice after a copy, in pieces of
 * kv->evict.every tokens with an eviction after each; where there is a shared prefix, that is what
 * is compressed, once, and contexts go after a copy of it. After a failure the scorer may go on
 * with other items. */
dq_status dq_score_items(dq_scorer *s, const dq_requests *q, int64_t begin, int64_t end,
                         dq_scores out, dq_err *err);

/* Windows begin .. end - 1, each a sequence of its own. `out` has a value per scored id, from that
 * of window `begin` on; `state` (backend memory, given by the caller) keeps the final states that
 * predicted them. With a compressed cache the first `first` ids of each window are its context, and
 * all these windows have the same n and first (dq_windows_alike). */
dq_status dq_score_windows(dq_scorer *s, const dq_windows *w, int64_t begin, int64_t end,
                           dq_mat state, dq_scores out, dq_err *err);

/* One pass over ids[n] in a sequence of its own, which sums up attention in spans[n_layers]; with a
 * compressed cache the first `context` ids have a pass before it. */
dq_status dq_score_attend(dq_scorer *s, const int32_t *ids, int64_t context, int64_t n,
                          const dq_attention_spans *spans, dq_arena *a, dq_err *err);

/* Greedy continuations of many prompts; grouping and sharing never change a bit of a result. */

typedef struct dq_generate_prompt {
    const int32_t *ids; /* [n], BOS and all */
    int64_t n;          /* at least 1, at most the model's positions */
    int64_t max_new;    /* ids to add at most; none below 1 */
    int64_t context;    /* of the n tokens, those that the cache is cut after; 0: all */
} dq_generate_prompt;

/* Called after each new id but a stop id, on the thread of dq_generate; true ends the sequence.
 * ids[n]: all new ids of `prompt`. */
typedef bool dq_generate_stop(void *arg, int64_t prompt, const int32_t *ids, int64_t n);

typedef struct dq_generate_result {
    int32_t *ids; /* [n] new ids, without the stop id */
    double *logp; /* [n] ln of the probability of each, nats; NULL unless asked for */
    int64_t n;
    dq_text_end end;
} dq_generate_result;

/* Everything pointed at belongs to the caller and must outlive the work. */
typedef struct dq_generate_spec {
    const dq_generate_prompt *prompt; /* [n] */
    int64_t n;
    const int32_t *stop_id; /* [n_stop_ids]: EOS and its like */
    int64_t n_stop_ids;
    dq_generate_stop *stop; /* NULL: nobody is asked */
    void *stop_arg;
    bool logp;    /* fill dq_generate_result.logp */
    bool measure; /* the scorer's work.cached counts what prompts take; they then share no prefix */
    int64_t max_rows; /* of prompts in one pass, except that one prompt is always taken; 0: 4096 */
    int64_t max_seqs; /* alive at a time; 0: 64 */
} dq_generate_spec;

/* Continues every prompt, each new id being the most likely one, the lowest among equals. Passes:
 * the prompt (its last row answers for the first new id), then one row for each new id but the
 * last. With an evictor tokens are evicted after the prompt and after every kv->evict.every new ids
 * that were fed; these evictions look at all rows since the one before, whatever the window of last
 * rows. Where prompts have a context, a cache that is not plain takes it in a pass of its own, is
 * measured and evicts after it, and then takes the rest; all prompts of a call have one or none
 * has, and nothing is evicted after new ids (kv->evict.every is 0).
 *
 * A beginning of at least 32 tokens that all prompts of a group have is computed once and forked
 * before anything is evicted, where that keeps the bits: the logit rounding looks at one row only,
 * and the eviction policy sums up no attention (such sums depend on how rows were spread over
 * passes).
 *
 * [spec->n] by prompt, in the arena; NULL: see err. DQ_MISMATCH: a prompt without ids, or beyond
 * the model's positions. DQ_DAMAGED: logits are no numbers. */
dq_generate_result *dq_generate(dq_scorer *s, const dq_generate_spec *spec, dq_arena *a,
                                dq_err *err);

/* DQ_DAMAGED: one of n log-probabilities is not finite. */
dq_status dq_score_check_logp(const dq_model *m, const double *logp, int64_t n, dq_err *err);

#endif
