/* conversation: a model of dq generate with what was said to it and what it wrote.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CONVERSATION_H
#define DQ_CONVERSATION_H

#include "lib/lm.h"

typedef struct dq_conversation {
    dq_lm lm;
    bool raw; /* texts are continued as they stand */
    dq_sampler sampler;
    dq_chat_message *said; /* [n_said], owned texts */
    int n_said;
    size_t cap_said;
    int32_t *ids;            /* [n_ids]: the last turn's prompt and what was written after it */
    int64_t n_ids, n_cached; /* of them, those in the cache */
    size_t cap_ids;
    int64_t n_prompt;    /* tokens before what the last turn wrote */
    int64_t n_read;      /* of them, those that it had to read; the others were in the cache */
    dq_writer_text text; /* of the last turn */
} dq_conversation;

/* Opens a model; t->lm.logger is set by the caller, and *t is otherwise {0}. raw: without its chat template. End with
 * dq_conversation_end, after a failure too. */
dq_status dq_conversation_begin(dq_conversation *t, const char *path, dq_lm_options *o,
                                const dq_sampling *how, bool raw, dq_err *err);
void dq_conversation_end(dq_conversation *t);
/* Sets what the model is told before all else, once, before the first turn. DQ_MISMATCH without a chat template. */
dq_status dq_conversation_system(dq_conversation *t, const char *text, dq_err *err);
/* A turn: the model answers `text`, or goes on with it where there is no chat template. After a failure the next turn begins
 * with an empty cache, and this one has not been. */
dq_status dq_conversation_turn(dq_conversation *t, const char *text, int64_t max_new,
                               dq_writer_listener *listener, void *arg, dq_err *err);
/* Forgets what was said, but for what dq_conversation_system set. */
void dq_conversation_restart(dq_conversation *t);

/* ln of the probabilities of two ids as they would have come after the first n ids of the last turn's text. The session is
 * used up: nothing but dq_conversation_end may follow. */
dq_status dq_conversation_probe(double logp[2], dq_conversation *t, int64_t n, const int32_t id[2],
                                dq_err *err);
/* Text of ids in a block, with a NUL after its *len bytes, of which others may be NUL; flags: of dq_tokenizer_decode. */
dq_status dq_conversation_text(char **text, size_t *len, const dq_conversation *t,
                               const int32_t *ids, int64_t n, unsigned flags, dq_err *err);

#endif
