/* session: one sequence of a model that grows piece by piece and answers with logits.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SESSION_H
#define DQ_SESSION_H

#include "engine/evict.h"

typedef struct dq_session dq_session;

/* Takes logits[n][vocab] (host, valid during the call) of the tokens at positions first .. first + n - 1. */
typedef dq_status dq_session_sink(void *arg, const float *logits, int64_t first, int64_t n,
                                  dq_err *err);

/* An empty sequence on a runner, which must outlive it, as must what pass.listener points to. pass: logit, math and listener of
 * every pass. evicts: what the runner's spec evicts is evicted; else nothing is. Fails as dq_evictor_new does. */
dq_status dq_session_new(dq_session **out, dq_runner *r, const dq_pass *pass, bool evicts,
                         dq_err *err);
void dq_session_free(dq_session *s); /* NULL allowed */

/* Appends ids[n] in one pass and gives sink (NULL where rows is 0) the logits after the last `rows` of them, in order and in
 * blocks. DQ_MISMATCH: ids outside the vocabulary, or more positions than the model has. DQ_DAMAGED: logits that are no
 * numbers. After a failure the sequence is in no known state: dq_session_clear begins anew. */
dq_status dq_session_feed(dq_session *s, const int32_t *ids, int64_t n, int64_t rows,
                          dq_session_sink *sink, void *arg, dq_err *err);
/* Cuts the cache to what the spec keeps of all tokens so far; nothing where nothing is evicted. */
dq_status dq_session_evict(dq_session *s, dq_err *err);
/* Feeds a context: one pass, after which the cache is cut. */
dq_status dq_session_read(dq_session *s, const int32_t *ids, int64_t n, int64_t rows,
                          dq_session_sink *sink, void *arg, dq_err *err);
/* Feeds a continuation: one pass, or where the spec evicts again after `every` tokens one for each so many. */
dq_status dq_session_continue(dq_session *s, const int32_t *ids, int64_t n, int64_t rows,
                              dq_session_sink *sink, void *arg, dq_err *err);
/* An empty sequence again. */
dq_status dq_session_clear(dq_session *s, dq_err *err);

int64_t dq_session_length(const dq_session *s); /* tokens that it was given */
int32_t dq_session_seq(const dq_session *s);    /* its handle in the runner's cache */
dq_runner *dq_session_runner(const dq_session *s);
/* What was evicted since it was empty. */
const dq_evict_report *dq_session_evicted(const dq_session *s);

#endif
