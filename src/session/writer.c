/* writer: a pass over the prompt, then one of one row for each new id but the last; the sink of each pass picks the next id.
 * SPDX-License-Identifier: MIT */
#include "session/writer.h"

#include "base/os.h"

void dq_writer_text_free(dq_writer_text *t)
{
    dq_block_free(t->ids);
    dq_block_free(t->logp);
    *t = (dq_writer_text){0};
}

/* The id that comes next. */
typedef struct next {
    const dq_writer *w;
    int32_t id;
    double logp;
} next;

static dq_status pick(void *arg, const float *logits, int64_t first, int64_t n, dq_err *err)
{
    next *x = arg;
    (void)first;
    (void)n;
    (void)err;
    x->id = dq_sampler_pick(x->w->sampler, logits, &x->logp);
    return DQ_OK;
}

static dq_status keep(dq_writer_text *t, const next *x, dq_err *err)
{
    const size_t want = (size_t)t->n + 1;
    int32_t *ids = dq_grow(NULL, t->ids, want, &t->cap, sizeof *ids, err);
    if (!ids) return err->code;
    t->ids = ids;
    double *logp = dq_grow(NULL, t->logp, want, &t->cap_logp, sizeof *logp, err);
    if (!logp) return err->code;
    t->logp = logp;
    t->ids[t->n] = x->id;
    t->logp[t->n++] = x->logp;
    return DQ_OK;
}

/* Whether the text ends before this id. */
static bool ends_before(const dq_writer *w, const next *x, dq_writer_text *t)
{
    if (!dq_stop_ids_has(w->stops, x->id)) return false;
    t->end = DQ_TEXT_END_STOP_ID;
    return true;
}

/* Takes an id and says it. */
static dq_status take(const dq_writer *w, const next *x, dq_text_stream *stream, dq_writer_text *t,
                      dq_err *err)
{
    const dq_model *m = dq_runner_model(dq_session_runner(w->session));
    const char *piece = "";
    size_t len = 0;
    DQ_TRY(keep(t, x, err));
    if (w->tok) DQ_TRY(dq_text_stream_add(stream, x->id, &piece, &len, err));
    if (w->listener && w->listener(w->arg, x->id, x->logp, piece, len))
        t->end = DQ_TEXT_END_REQUESTED;
    else if (t->n >= w->max_new)
        t->end = DQ_TEXT_END_MAX_NEW;
    else if (m->max_positions > 0 && dq_session_length(w->session) >= m->max_positions)
        t->end = DQ_TEXT_END_POSITIONS;
    return DQ_OK;
}

static dq_status write_all(const dq_writer *w, next *x, dq_text_stream *stream, dq_writer_text *t,
                           dq_err *err)
{
    while (!ends_before(w, x, t)) {
        DQ_TRY(take(w, x, stream, t, err));
        if (t->end != DQ_TEXT_END_NONE) return DQ_OK;
        DQ_TRY(dq_session_continue(w->session, &x->id, 1, 1, pick, x, err));
    }
    return DQ_OK;
}

dq_status dq_writer_run(const dq_writer *w, const int32_t *ids, int64_t n, dq_writer_text *out,
                        dq_err *err)
{
    next x = {.w = w};
    dq_text_stream stream;
    const char *rest;
    size_t len;
    const double begin = dq_os_seconds();
    dq_writer_text_free(out);
    dq_text_stream_begin(&stream, w->tok, 0);
    if (n < 1) return dq_fail(err, DQ_MISMATCH, "a text without tokens, so nothing can follow it");
    if (dq_session_read(w->session, ids, n, 1, pick, &x, err) == DQ_OK) {
        const double read = dq_os_seconds();
        out->read_seconds = read - begin;
        if (w->max_new > 0)
            write_all(w, &x, &stream, out, err);
        else
            out->end = DQ_TEXT_END_MAX_NEW;
        out->write_seconds = dq_os_seconds() - read;
    }
    if (dq_text_stream_end(&stream, &rest, &len, err) == DQ_OK && len && w->listener)
        w->listener(w->arg, -1, 0, rest, len);
    dq_text_stream_free(&stream);
    return err->code;
}
