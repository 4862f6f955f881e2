/* session: see session.h. An eviction that is due after some continuation comes before the next token, so that none is made for
 * nobody. Logits leave in blocks: those of a long context would not fit into memory.
 * SPDX-License-Identifier: MIT */
#include "session/session.h"

#include "base/os.h"

#include <math.h>

/* Of logits on their way to the caller at a time. */
enum { BLOCK_BYTES = 32 << 20, BLOCK_ROWS = 256 };

struct dq_session {
    dq_runner *r;
    const dq_model *m;
    dq_backend *b;
    dq_pass pass;
    dq_evictor *evictor; /* NULL: nothing is evicted */
    dq_evict_report evicted;
    int32_t seq;    /* -1: none is open */
    int64_t length; /* tokens that it was given */
    int64_t since;  /* of them, those after the last eviction */
    bool cut;       /* a context was evicted from */
    int32_t *pos;   /* [cap] of the pass at hand */
    size_t cap;
    float *rows, *logits; /* backend memory: [block][dim], [block][vocab]; NULL: not needed yet */
    float *host;          /* [block][vocab] */
};

/* Where logits go. */
typedef struct target {
    int64_t first; /* position from which on they are wanted */
    dq_session_sink *sink;
    void *arg;
} target;

dq_status dq_session_new(dq_session **out, dq_runner *r, const dq_pass *pass, bool evicts,
                         dq_err *err)
{
    const dq_kv_spec *kv = dq_runner_kv_spec(r);
    *out = NULL;
    dq_session *s = dq_block_new(1, sizeof *s, err);
    if (!s) return err->code;
    s->r = r;
    s->m = dq_runner_model(r);
    s->b = dq_runner_backend(r);
    s->pass = (dq_pass){.logit = pass->logit, .math = pass->math, .listener = pass->listener};
    s->seq = -1;
    if (evicts && kv->evict.policy) dq_evictor_new(&s->evictor, r, kv, &s->pass, err);
    if (err->code == DQ_OK) dq_session_clear(s, err);
    if (err->code == DQ_OK)
        *out = s;
    else
        dq_session_free(s);
    return err->code;
}

static void close_sequence(dq_session *s)
{
    if (s->seq < 0) return;
    if (s->evictor) dq_evictor_forget(s->evictor, s->seq);
    s->b->ops->kv_seq_free(s->b, dq_runner_kv(s->r), s->seq);
    s->seq = -1;
}

void dq_session_free(dq_session *s)
{
    if (!s) return;
    close_sequence(s);
    dq_evictor_free(s->evictor);
    s->b->ops->free(s->b, s->rows);
    s->b->ops->free(s->b, s->logits);
    dq_block_free(s->host);
    dq_block_free(s->pos);
    dq_block_free(s);
}

dq_status dq_session_clear(dq_session *s, dq_err *err)
{
    close_sequence(s);
    s->length = s->since = 0;
    s->cut = false;
    s->evicted = dq_evict_report_none;
    s->seq = s->b->ops->kv_seq_new(s->b, dq_runner_kv(s->r));
    if (s->seq >= 0) return DQ_OK;
    DQ_TRY(dq_backend_sync(s->b, err));
    return dq_fail(err, DQ_RESOURCE, "out of memory for the KV cache");
}

int64_t dq_session_length(const dq_session *s)
{
    return s->length;
}

int32_t dq_session_seq(const dq_session *s)
{
    return s->seq;
}

dq_runner *dq_session_runner(const dq_session *s)
{
    return s->r;
}

const dq_evict_report *dq_session_evicted(const dq_session *s)
{
    return &s->evicted;
}

/* ---- Logits ---- */

static int64_t block_rows(const dq_model *m)
{
    const int64_t n = BLOCK_BYTES / (4 * (int64_t)m->vocab);
    return n < 1 ? 1 : n > BLOCK_ROWS ? BLOCK_ROWS : n;
}

static dq_status make_blocks(dq_session *s, dq_err *err)
{
    const size_t n = (size_t)block_rows(s->m);
    if (s->host) return DQ_OK;
    if (!s->rows) s->rows = s->b->ops->alloc(s->b, n * (size_t)s->m->dim * sizeof *s->rows);
    if (!s->logits) s->logits = s->b->ops->alloc(s->b, n * (size_t)s->m->vocab * sizeof *s->logits);
    if (!s->rows || !s->logits) {
        dq_backend_sync(s->b, err);
        return dq_fail(err, DQ_RESOURCE, "out of memory for a block of logits");
    }
    s->host = dq_block_new(n * (size_t)s->m->vocab, sizeof *s->host, err);
    return err->code;
}

static dq_status check_numbers(const dq_session *s, int64_t first, int64_t n, dq_err *err)
{
    const int64_t vocab = s->m->vocab;
    for (int64_t i = 0; i < n * vocab; i++) {
        if (!isfinite(s->host[i]))
            return dq_fail(err, DQ_DAMAGED,
                           "%s: the logit of id %lld at position %lld is %g, which a damaged "
                           "output head or final norm does",
                           s->m->path, (long long)(i % vocab), (long long)(first + i / vocab),
                           (double)s->host[i]);
    }
    return DQ_OK;
}

/* Of rows at .. at + n - 1 of hidden, whose row 0 stands at position `base`. */
static dq_status give_block(dq_session *s, dq_mat hidden, int64_t at, int64_t n, int64_t base,
                            const target *to, dq_err *err)
{
    const dq_mat rows = {s->rows, n, s->m->dim}, logits = {s->logits, n, s->m->vocab};
    const dq_num num = s->pass.math.linear == DQ_NUM_INT8 ? DQ_NUM_F32 /* as logprob has it */
                                                          : s->pass.math.linear;
    int64_t index[BLOCK_ROWS];
    for (int64_t i = 0; i < n; i++) index[i] = at + i;
    s->b->ops->gather(s->b, rows, hidden, index);
    s->b->ops->matmul(s->b, logits, rows, &s->m->head, NULL, num);
    s->b->ops->get(s->b, s->host, s->logits, (size_t)n * (size_t)s->m->vocab * sizeof *s->host);
    DQ_TRY(dq_backend_sync(s->b, err));
    DQ_TRY(check_numbers(s, base + at, n, err));
    return to->sink(to->arg, s->host, base + at, n, err);
}

static dq_status give(dq_session *s, dq_mat hidden, int64_t base, const target *to, dq_err *err)
{
    const int64_t step = block_rows(s->m), n = hidden.rows;
    int64_t at = to->first > base ? to->first - base : 0;
    if (at < n) DQ_TRY(make_blocks(s, err));
    for (; at < n; at += step) {
        DQ_TRY(dq_os_check_stop(err));
        DQ_TRY(give_block(s, hidden, at, n - at < step ? n - at : step, base, to, err));
    }
    return DQ_OK;
}

/* ---- Passes ---- */

static dq_status run_pass(dq_session *s, const int32_t *ids, int64_t n, const target *to,
                          dq_err *err)
{
    const int64_t cu[2] = {0, n};
    dq_mat hidden;
    dq_pass pass = s->pass;
    int32_t *pos = dq_grow(NULL, s->pos, (size_t)n, &s->cap, sizeof *pos, err);
    if (!pos) return err->code;
    s->pos = pos;
    for (int64_t i = 0; i < n; i++) pos[i] = (int32_t)(s->length + i);
    const dq_batch batch = {
        .n_seq = 1, .n_rows = n, .cu_rows = cu, .seq = &s->seq, .ids = ids, .pos = pos};
    if (s->evictor) DQ_TRY(dq_evictor_watch(s->evictor, &batch, &pass.columns, err));
    DQ_TRY(dq_runner_pass(s->r, &batch, &pass, &hidden, err));
    const int64_t base = s->length;
    s->length += n;
    s->since += n;
    return give(s, hidden, base, to, err);
}

static dq_status check(const dq_session *s, const int32_t *ids, int64_t n, dq_err *err)
{
    if (s->m->max_positions > 0 && s->length + n > s->m->max_positions)
        return dq_fail(err, DQ_MISMATCH, "%s: %lld tokens, but the model has %d positions",
                       s->m->path, (long long)(s->length + n), s->m->max_positions);
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= s->m->vocab)
            return dq_fail(err, DQ_MISMATCH, "%s: id %d is outside the vocabulary of %d tokens",
                           s->m->path, (int)ids[i], s->m->vocab);
    }
    return DQ_OK;
}

dq_status dq_session_feed(dq_session *s, const int32_t *ids, int64_t n, int64_t rows,
                          dq_session_sink *sink, void *arg, dq_err *err)
{
    const target to = {s->length + n - rows, sink, arg};
    DQ_TRY(check(s, ids, n, err));
    return n > 0 ? run_pass(s, ids, n, &to, err) : DQ_OK;
}

dq_status dq_session_evict(dq_session *s, dq_err *err)
{
    const int32_t length = (int32_t)s->length;
    const dq_batch batch = {.n_seq = 1, .seq = &s->seq};
    if (!s->evictor) return DQ_OK;
    s->since = 0;
    s->cut = true;
    return dq_evictor_run(s->evictor, &batch, &length, &s->evicted, err);
}

dq_status dq_session_read(dq_session *s, const int32_t *ids, int64_t n, int64_t rows,
                          dq_session_sink *sink, void *arg, dq_err *err)
{
    DQ_TRY(dq_session_feed(s, ids, n, rows, sink, arg, err));
    return n > 0 ? dq_session_evict(s, err) : DQ_OK;
}

dq_status dq_session_continue(dq_session *s, const int32_t *ids, int64_t n, int64_t rows,
                              dq_session_sink *sink, void *arg, dq_err *err)
{
    const target to = {s->length + n - rows, sink, arg};
    const int64_t every = s->cut ? dq_runner_kv_spec(s->r)->evict.every : 0;
    DQ_TRY(check(s, ids, n, err));
    while (n > 0) {
        if (every > 0 && s->since >= every) DQ_TRY(dq_session_evict(s, err));
        const int64_t now = every > 0 && every - s->since < n ? every - s->since : n;
        DQ_TRY(run_pass(s, ids, now, &to, err));
        ids += now;
        n -= now;
    }
    return DQ_OK;
}
