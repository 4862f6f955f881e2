/* lm_run: what runs the model. Requests that share a context become one item with choices, so that they are scored as dq eval
 * scores multiple choice.
 * SPDX-License-Identifier: MIT */
#include "lib/lm.h"

#include <string.h>

static dq_status check_ids(const dq_lm *m, const int32_t *ids, int64_t n, dq_err *err)
{
    const dq_model *model = m->model;
    if (model->max_positions > 0 && n > model->max_positions)
        return dq_fail(err, DQ_MISMATCH, "%s: %lld tokens, but the model has %d positions",
                       model->path, (long long)n, model->max_positions);
    return dq_lm_check_ids(m, ids, n, model->vocab, err);
}

/* ---- Logits ---- */

typedef struct block {
    float *logits;
    int64_t vocab;
} block;

static dq_status copy_block(void *arg, const float *logits, int64_t first, int64_t n, dq_err *err)
{
    const block *b = arg;
    (void)err;
    memcpy(b->logits + first * b->vocab, logits, (size_t)(n * b->vocab) * sizeof *logits);
    return DQ_OK;
}

static dq_status logits_of(dq_lm *m, const int32_t *ids, int64_t n, int64_t context, float *logits,
                           dq_err *err)
{
    block b = {logits, m->model->vocab};
    if (n < 1 || context < 0 || context > n)
        return dq_fail(err, DQ_USAGE, "logits: %lld tokens with a context of %lld", (long long)n,
                       (long long)context);
    DQ_TRY(dq_lm_session(m, context > 0, err));
    if (context > 0)
        DQ_TRY(dq_session_read(m->session, ids, context, context, copy_block, &b, err));
    const int64_t rest = n - context;
    return dq_session_continue(m->session, ids + context, rest, rest, copy_block, &b, err);
}

int dq_lm_logits(dq_lm *m, const int32_t *ids, int64_t n, int64_t context, float *logits)
{
    dq_err err = {0};
    if (dq_lm_enter(m, &err) == DQ_OK) {
        logits_of(m, ids, n, context, logits, &err);
        dq_lm_leave(m);
    }
    return dq_lm_failed(&err);
}

/* ---- Scores ---- */

static bool same_context(const dq_lm_request *a, const dq_lm_request *b)
{
    return a->context == b->context &&
           (a->ids == b->ids || memcmp(a->ids, b->ids, (size_t)a->context * sizeof *a->ids) == 0);
}

static dq_status make_requests(dq_requests *q, const dq_lm *m, const dq_lm_request *r, int64_t n,
                               dq_arena *a, dq_err *err)
{
    dq_request *req = dq_alloc(a, (size_t)n, sizeof *req, err);
    int64_t *at = dq_alloc(a, (size_t)n + 1, sizeof *at, err);
    if (!req || !at) return err->code;
    *q = (dq_requests){.req = req, .at = at, .n = n};
    for (int64_t i = 0; i < n; i++) {
        if (r[i].context < 1 || r[i].n <= r[i].context)
            return dq_fail(
                err, DQ_USAGE,
                "request %lld: %lld tokens with a context of %lld (expected at least one "
                "of context and one to score)",
                (long long)i, (long long)r[i].n, (long long)r[i].context);
        if (check_ids(m, r[i].ids, r[i].n - 1, err) != DQ_OK ||
            check_ids(m, r[i].ids + r[i].n - 1, 1, err) != DQ_OK)
            return dq_in(err, "request %lld: ", (long long)i);
        if (i == 0 || !same_context(&r[i - 1], &r[i])) at[q->n_items++] = i;
        req[i] = (dq_request){.ctx = r[i].ids,
                              .cont = r[i].ids + r[i].context,
                              .n_ctx = r[i].context,
                              .n_cont = r[i].n - r[i].context,
                              .value = q->n_values,
                              .item = q->n_items - 1,
                              .choice = (int)(i - at[q->n_items - 1])};
        q->n_values += req[i].n_cont;
    }
    at[q->n_items] = n;
    return DQ_OK;
}

static dq_status score_all(dq_lm *m, const dq_requests *q, dq_scores out, dq_err *err)
{
    dq_scorer s;
    const bool shared = dq_score_shares(&m->pass, &m->kv);
    const int64_t rows = dq_score_rows(m->runner, shared);
    DQ_TRY(dq_score_begin(&s, m->runner, &m->pass, &m->kv, err));
    for (int64_t begin = 0, end; begin < q->n_items && err->code == DQ_OK; begin = end) {
        end = dq_score_group(q, begin, rows, shared);
        dq_score_items(&s, q, begin, end, out, err);
    }
    dq_score_end(&s);
    return err->code;
}

static dq_status score(dq_lm *m, const dq_lm_request *requests, int64_t n, double *logp,
                       int *greedy, dq_arena *a, dq_err *err)
{
    dq_requests q;
    dq_scores out;
    DQ_TRY(make_requests(&q, m, requests, n, a, err));
    out.logp = dq_alloc(a, (size_t)q.n_values, sizeof *out.logp, err);
    out.top1 = dq_alloc(a, (size_t)q.n_values, sizeof *out.top1, err);
    DQ_TRY(err->code);
    DQ_TRY(score_all(m, &q, out, err));
    for (int64_t i = 0; i < n; i++) {
        const dq_request *r = &q.req[i];
        logp[i] = 0;
        greedy[i] = 1;
        for (int64_t k = 0; k < r->n_cont; k++) {
            logp[i] += out.logp[r->value + k];
            greedy[i] = greedy[i] && out.top1[r->value + k] == r->cont[k];
        }
    }
    return DQ_OK;
}

int dq_lm_score(dq_lm *m, const dq_lm_request *requests, int64_t n, double *logp, int *greedy)
{
    dq_err err = {0};
    if (dq_lm_enter(m, &err) != DQ_OK) return dq_lm_failed(&err);
    dq_arena *a = dq_arena_new();
    dq_session_free(m->session); /* whose cache is memory */
    m->session = NULL;
    if (!a)
        dq_fail(&err, DQ_RESOURCE, "out of memory");
    else
        score(m, requests, n, logp, greedy, a, &err);
    dq_arena_free(a);
    dq_lm_leave(m);
    return dq_lm_failed(&err);
}

/* ---- Texts ---- */

typedef struct told {
    dq_lm_listener *listener;
    void *arg;
} told;

static bool tell(void *arg, int32_t id, double logp, const char *piece, size_t len)
{
    const told *t = arg;
    return t->listener(t->arg, id, logp, piece, len) != 0;
}

static dq_sampling sampling_of(const dq_lm_sampling *s)
{
    return s ? (dq_sampling){.temperature = s->temperature,
                             .top_k = s->top_k,
                             .top_p = s->top_p == 0 ? 1 : s->top_p,
                             .min_p = s->min_p,
                             .seed = s->seed}
             : dq_sampler_greedy;
}

int dq_lm_generate(dq_lm *m, const int32_t *ids, int64_t n, int64_t max_new,
                   const dq_lm_sampling *sampling, dq_lm_listener *listener, void *arg,
                   int32_t *out, int64_t *n_out)
{
    dq_err err = {0};
    dq_sampler sampler = {0};
    dq_writer_text text = {0};
    told to = {listener, arg};
    const dq_sampling how = sampling_of(sampling);
    *n_out = 0;
    if (dq_lm_enter(m, &err) != DQ_OK) return dq_lm_failed(&err);
    if (dq_sampler_begin(&sampler, &how, m->model->vocab, &err) == DQ_OK &&
        dq_lm_session(m, true, &err) == DQ_OK) {
        const dq_writer w = {.session = m->session,
                             .sampler = &sampler,
                             .tok = m->tok,
                             .stops = &m->stops,
                             .max_new = max_new,
                             .listener = listener ? tell : NULL,
                             .arg = &to};
        if (dq_writer_run(&w, ids, n, &text, &err) == DQ_OK) {
            if (text.n) memcpy(out, text.ids, (size_t)text.n * sizeof *out);
            *n_out = text.n;
        }
    }
    dq_writer_text_free(&text);
    dq_sampler_end(&sampler);
    dq_lm_leave(m);
    return dq_lm_failed(&err);
}
