/* dq.h: libdq, low-bit Differential Transformers from C. Link with `pkg-config --cflags --libs
 * libdq`.
 *
 * Every function that returns a status returns 0, or what `dq` would exit with: 2 a wrong setting
 * or argument, 3 damaged input, 4 inputs that do not fit together or are unsupported, 5 memory or
 * device, 6 files. dq_lm_error then says what is wrong, in the words of the command line: --kv-bits
 * is the setting kv_bits. A model may be used by one thread at a time; models are opened, and files
 * quantized, by one thread at a time of the process. Nothing is printed. The numbers are those of
 * the commands, bit for bit.
 *
 * A forked child may use its parent's models, and open its own. Not (2) one that ran in that
 * moment, and not (4) one on a GPU. The OpenMP threads of a thread that forks end before it does,
 * and come back when they are needed.
 *
 * A setting is an option of the command line without its dashes: "kv_bits=4:4". Lists of settings
 * end with NULL; a list may be NULL itself. Paths and texts are UTF-8.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_H
#define DQ_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct dq_lm dq_lm;

const char *dq_lm_version(void); /* "0.1.0" */
const char *
dq_lm_error(void); /* of the thread's last call that failed; valid until its next call */

/* Opens a folder with config.json, a .gguf file or a container. Settings: those of `dq logits`
 * about rounding of attention logits, arithmetic, KV cache and device (logit_bits,
 * logit_granularity, math, kv_bits, kv_keep, kv_policy, ..., head_order, device, threads); a
 * container's own hold where none is given. */
int dq_lm_open(dq_lm **out, const char *path, const char *const *settings);
void dq_lm_close(dq_lm *m); /* NULL allowed */

int32_t dq_lm_vocab(const dq_lm *m);     /* logits of a position */
int32_t dq_lm_positions(const dq_lm *m); /* tokens that a sequence may have; 0: not limited */
/* A JSON object: architecture, parameters, bits_per_weight, settings, warnings so far. Valid until
 * the next dq_lm_describe of m, or dq_lm_close. */
const char *dq_lm_describe(dq_lm *m);

/* Results of the functions below are freed by dq_lm_free. */
void dq_lm_free(void *p); /* NULL allowed */
/* Token ids of text[len]. special 1: with the tokens around a text (BOS, EOS), unless it spells BOS
 * itself; 2: only with those before it, for a text that continues; 0: neither. */
int dq_lm_encode(dq_lm *m, const char *text, size_t len, int special, int32_t **ids, int64_t *n);
/* Text of ids[n], with a NUL after its *len bytes; special: with special tokens. Status 4: an id
 * outside the vocabulary. */
int dq_lm_decode(dq_lm *m, const int32_t *ids, int64_t n, int special, char **text, size_t *len);
/* What the model's chat template makes of a conversation; answer: with the beginning of an answer.
 * Text as dq_lm_decode gives it. Where the template leaves a message of "system" or "user" out, the
 * warnings of dq_lm_describe say so. Status 4: the model has no template, or its template refuses
 * the messages or makes an empty text. */
typedef struct dq_lm_message {
    const char *role, *content; /* "user", "What is attention?" */
} dq_lm_message;
int dq_lm_chat(dq_lm *m, const dq_lm_message *messages, int n, int answer, char **text,
               size_t *len);
/* Ids that end a text, EOS and its like, in *ids until m is closed; returns their number. */
int64_t dq_lm_stop_ids(const dq_lm *m, const int32_t **ids);
/* The id before an empty context, as in lm-eval: BOS, else EOS; -1: none. */
int32_t dq_lm_prefix_id(const dq_lm *m);

/* logits[n][vocab] after each of ids[n]. context > 0: so many ids are a context, after which the
 * cache is cut; 0: one pass, without eviction. */
int dq_lm_logits(dq_lm *m, const int32_t *ids, int64_t n, int64_t context, float *logits);

/* Scores ids[context .. n - 1] after ids[0 .. context - 1], 0 < context < n. */
typedef struct dq_lm_request {
    const int32_t *ids;
    int64_t n, context;
} dq_lm_request;
/* logp[i]: ln probability of each continuation in nats; greedy[i]: 1 where each of its ids is the
 * most likely. Requests share passes, and consecutive ones with equal contexts compute them
 * once. */
int dq_lm_score(dq_lm *m, const dq_lm_request *requests, int64_t n, double *logp, int *greedy);

/* How the next token is chosen; zeros: the most likely one. */
typedef struct dq_lm_sampling {
    double temperature; /* 0: the most likely one, and nothing below counts */
    int64_t top_k;      /* the most likely so many; 0: all */
    double top_p;       /* the fewest with so much of the probability; 0: all */
    double min_p;       /* those with at least so much of the largest probability; 0: all */
    uint64_t seed;
} dq_lm_sampling;
/* Told of each new id, ln of its probability, and the text that has become certain (piece[len],
 * maybe nothing); id -1: text that was waiting when the last id had come. Other than 0 ends the
 * text. It may encode and decode; what runs the model is refused with 2, and dq_lm_close, after
 * which m is not to be used, takes effect when the text has ended. */
typedef int dq_lm_listener(void *arg, int32_t id, double logp, const char *piece, size_t len);
/* Continues ids[n] with at most max_new tokens in out[max_new]; *n_out: how many, without the one
 * that ended the text. sampling NULL: zeros. listener NULL: none. */
int dq_lm_generate(dq_lm *m, const int32_t *ids, int64_t n, int64_t max_new,
                   const dq_lm_sampling *sampling, dq_lm_listener *listener, void *arg,
                   int32_t *out, int64_t *n_out);

/* Writes a container. Settings: the options of `dq quantize` about weights, calibration, attention
 * and KV cache, and force, resume and threads: {"size=4", "calib=train.jsonl", "force=true", NULL}.
 * Minutes for large models; a signal handler of the program that ends it leaves what "resume=true"
 * goes on with. */
int dq_lm_quantize(const char *model, const char *out, const char *const *settings);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
