/* generate: greedy continuations of many prompts. How prompts are grouped into passes, and what the
 * sequences of a pass share, never changes a bit of a result.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_GENERATE_H
#define DQ_GENERATE_H

#include "eval/score.h"
#include "session/session.h"

typedef struct dq_generate_prompt {
    const int32_t *ids; /* [n], BOS and all */
    int64_t n;          /* at least 1, at most the model's positions */
    int64_t max_new;    /* ids to add at most; none below 1 */
    int64_t context;    /* of the n tokens, those that the cache is cut after; 0: all */
} dq_generate_prompt;

/* Asked after each new id that is no stop id: true ends the sequence after it. ids[n]: the new ids of
 * `prompt` so far. Called by the thread that called dq_generate. */
typedef bool dq_generate_stop(void *arg, int64_t prompt, const int32_t *ids, int64_t n);

typedef struct dq_generate_result {
    int32_t *ids; /* [n] new ids, without the stop id */
    double *logp; /* [n] ln of the probability of each, nats; NULL unless asked for */
    int64_t n;
    dq_text_end end;
} dq_generate_result;

/* What is wanted. Everything that is pointed at belongs to the caller and outlives the work. */
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

/* Results, finished ones and others. */
typedef struct dq_generate_state {
    dq_generate_result *of; /* [n] by prompt */
    int64_t n;
    int64_t n_done; /* prompts 0 .. n_done - 1 have ended; single ones after them may have, too */
} dq_generate_state;

/* Checks the prompts and makes room in the arena. DQ_MISMATCH: a prompt without ids, or with more than
 * the model has positions. */
dq_status dq_generate_new(dq_generate_state *g, const dq_generate_spec *spec, const dq_model *m,
                          dq_arena *a, dq_err *err);

/* Continues every prompt that has not ended, each new id being the most likely one, the lowest among
 * equals. Passes: the prompt (its last row answers for the first new id), then one row for each new id
 * but the last. With an evictor tokens are evicted after the prompt and after every kv->evict.every
 * new ids that were fed; these evictions look at all rows since the one before, whatever the window of
 * last rows. Where prompts have a context, a cache that is not plain takes it in a pass of its own, is measured and
 * evicts after it, and then takes the rest; all prompts of a call have one or none has, and nothing is evicted
 * after new ids (kv->evict.every is 0).
 *
 * A beginning of at least 32 tokens that all prompts of a group have is computed once and forked before
 * anything is evicted, where that keeps the bits: the logit rounding looks at one row only, and the
 * eviction policy sums up no attention (such sums depend on how rows were spread over passes).
 *
 * DQ_DAMAGED when logits are no numbers. After any failure, DQ_STOPPED among them, results that have ended stay; call again to do the rest. */
dq_status dq_generate(dq_scorer *s, const dq_generate_spec *spec, dq_generate_state *g,
                      dq_err *err);

#endif
