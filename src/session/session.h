/* One sequence that grows: ids, text, and where it ends.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SESSION_H
#define DQ_SESSION_H

#include "base/random.h"
#include "base/text.h"
#include "engine/runner.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

enum { DQ_STOP_IDS = 64 };
typedef struct dq_stop_ids {
    int32_t id[DQ_STOP_IDS]; /* [n], each once, of one vocabulary */
    int64_t n;
    char unknown[160]; /* the first that a file names and the vocabulary lacks; empty: none */
} dq_stop_ids;

/* Adds what the files of a model name, those that a GGUF file makes and a container keeps alike:
 * eos_token_id of config.json and of generation_config.json, eos_token of tokenizer_config.json and
 * of special_tokens_map.json as tokens of t (NULL: these are left out). Starts from {0}.
 * DQ_DAMAGED: a file is not JSON. */
dq_status dq_stop_ids_add(dq_stop_ids *s, const dq_model *m, const dq_tokenizer *t, int vocab,
                          dq_err *err);

/* Logits are divided by the temperature; then of all ids the top_k largest stay, of these the
 * fewest that have top_p of the probability together, and of these the ones that have min_p of the
 * largest probability. Drawn is by what is left, as TemperatureLogitsWarper, TopKLogitsWarper,
 * TopPLogitsWarper and MinPLogitsWarper of transformers leave it (generation/logits_process.py). */
typedef struct dq_sampling {
    double temperature; /* 0: the most likely id, the lowest among equals; nothing below counts */
    int64_t top_k;      /* 0: all */
    double top_p;       /* 1: all */
    double min_p;       /* 0: all */
    uint64_t seed;
} dq_sampling;
extern const dq_sampling dq_sampler_greedy;

typedef struct dq_sampler {
    dq_sampling how;
    dq_random random;
    struct dq_sampler_choice *choice; /* [vocab] scratch */
    int64_t vocab;
} dq_sampler;

dq_status dq_sampler_begin(dq_sampler *s, const dq_sampling *how, int64_t vocab, dq_err *err);
void dq_sampler_end(dq_sampler *s); /* {0} is allowed */
/* ln probability of id among all ids of logits[vocab] at temperature 1. */
double dq_sampler_logp(const float *logits, int64_t vocab, int32_t id);

typedef enum dq_text_end {
    DQ_TEXT_END_NONE,      /* it has not */
    DQ_TEXT_END_STOP_ID,   /* EOS or its like came */
    DQ_TEXT_END_REQUESTED, /* whoever is told each id said so */
    DQ_TEXT_END_MAX_NEW,
    DQ_TEXT_END_POSITIONS /* the last id would be fed at a position that the model does not have */
} dq_text_end;
/* "none", "stop_id", "asked", "max_new", "positions" */
extern const char *const dq_text_end_name[];

/* A sequence that grows piece by piece and answers with logits. */

typedef struct dq_session dq_session;

/* logits[n][vocab] (host, valid during the call) at positions first .. first + n - 1. */
typedef dq_status dq_session_sink(void *arg, const float *logits, int64_t first, int64_t n,
                                  dq_err *err);

/* The runner and pass.listener's target must outlive it. pass: logit, math and listener of every
 * pass. evicts: by the runner's spec; else nothing is evicted. Fails as dq_evictor_new does. */
dq_status dq_session_new(dq_session **out, dq_runner *r, const dq_pass *pass, bool evicts,
                         dq_err *err);
void dq_session_free(dq_session *s); /* NULL allowed */

/* Appends ids[n] in one pass and gives sink (NULL where rows is 0) the logits after the last `rows`
 * of them, in order and in blocks. DQ_MISMATCH: ids outside the vocabulary, or more positions than
 * the model has. DQ_DAMAGED: logits that are no numbers. After a failure the sequence is in no
 * known state: dq_session_clear begins anew. */
dq_status dq_session_feed(dq_session *s, const int32_t *ids, int64_t n, int64_t rows,
                          dq_session_sink *sink, void *arg, dq_err *err);
/* Evicts by the spec, given all tokens so far; does nothing without eviction. */
dq_status dq_session_evict(dq_session *s, dq_err *err);
/* Feeds a context in one pass, after which the cache is cut. */
dq_status dq_session_read(dq_session *s, const int32_t *ids, int64_t n, int64_t rows,
                          dq_session_sink *sink, void *arg, dq_err *err);
/* Feeds a continuation in one pass, or one per `every` tokens where the spec evicts again. */
dq_status dq_session_continue(dq_session *s, const int32_t *ids, int64_t n, int64_t rows,
                              dq_session_sink *sink, void *arg, dq_err *err);
/* Empties the sequence. */
dq_status dq_session_clear(dq_session *s, dq_err *err);

int64_t dq_session_length(const dq_session *s); /* tokens that it was given */
int32_t dq_session_seq(const dq_session *s);    /* its handle in the runner's cache */
/* Evictions since it was empty. */
const dq_evict_report *dq_session_evicted(const dq_session *s);

/* Continues a text token by token. */

/* Hears each new id, its ln probability in nats, and the text that became certain (piece[len],
 * maybe nothing); the rest comes with id -1 at the end. True ends the text after the id. */
typedef bool dq_writer_listener(void *arg, int32_t id, double logp, const char *piece, size_t len);

/* Everything belongs to the caller and must outlive the call. */
typedef struct dq_writer {
    dq_session *session;     /* with what was read and written before */
    dq_sampler *sampler;     /* of the model's vocabulary */
    const dq_tokenizer *tok; /* NULL: no text, pieces are empty */
    const dq_stop_ids *stops;
    int64_t max_new;
    dq_writer_listener *listener; /* NULL: nobody is told */
    void *arg;
} dq_writer;

typedef struct dq_writer_text {
    int32_t *ids; /* [n] new ids, a block, without the one that ended the text */
    double *logp; /* [n], a block */
    int64_t n;
    size_t cap, cap_logp;
    dq_text_end end;
    double read_seconds, write_seconds; /* of the prompt and the first id; of the ids after it */
} dq_writer_text;
void dq_writer_text_free(dq_writer_text *t); /* {0} is allowed */

/* Reads ids[n], n > 0, as a context, after which the cache is cut, and goes on. The session has
 * been fed all new ids but the last. *out is {0} or what dq_writer_text_free takes; after a
 * failure, DQ_STOPPED among them, it holds what was written, and the session must be cleared. */
dq_status dq_writer_run(const dq_writer *w, const int32_t *ids, int64_t n, dq_writer_text *out,
                        dq_err *err);

#endif
