/* writer: a model that goes on with a text, one token at a time.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_WRITER_H
#define DQ_WRITER_H

#include "session/sampler.h"
#include "session/session.h"
#include "session/stop_ids.h"
#include "session/text_end.h"
#include "session/text_stream.h"

/* Told of each new id: ln of its probability in nats, and the text that has become certain (piece[len], maybe nothing). True
 * ends the text after it. What was waiting when the text has ended comes with the id -1. */
typedef bool dq_writer_listener(void *arg, int32_t id, double logp, const char *piece, size_t len);

/* What writes; everything belongs to the caller and outlives the call. */
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

/* Reads ids[n], n > 0, as a context, after which the cache is cut, and goes on. The session has been fed all new ids but the
 * last. *out is {0} or what dq_writer_text_free takes; after a failure, DQ_STOPPED among them, it holds what was written, and
 * the session must be cleared. */
dq_status dq_writer_run(const dq_writer *w, const int32_t *ids, int64_t n, dq_writer_text *out,
                        dq_err *err);

#endif
