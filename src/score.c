/* score: see score.h.
 * SPDX-License-Identifier: MIT */
#include "score.h"

#include "os.h"

#include <string.h>

void dq_work_add(dq_work *into, const dq_work *from)
{
    into->tokens += from->tokens;
    into->computed += from->computed;
    into->seconds += from->seconds;
}

/* The last id is not fed: its successor is not asked for. */
static int64_t fed(const dq_request *r)
{
    return r->n_ctx + r->n_cont - 1;
}

static int64_t item_rows(const dq_requests *q, int64_t item)
{
    int64_t n = 0;
    for (int64_t k = q->at[item]; k < q->at[item + 1]; k++) n += fed(&q->req[k]);
    return n;
}

int64_t dq_score_group(const dq_requests *q, int64_t begin, int64_t max_rows)
{
    int64_t end = begin + 1, rows = item_rows(q, begin);
    for (; end < q->n_items; end++) {
        rows += item_rows(q, end);
        if (rows > max_rows) break;
    }
    return end;
}

/* A pass in the making: its batch, and the rows whose successor is asked for. */
typedef struct plan {
    dq_runner *r;
    dq_arena *a;
    int64_t *cu;
    int32_t *seq, *ids, *pos;
    int n_seq;
    int64_t n_rows;
    int64_t *row;     /* [n_asked] */
    int32_t *target;  /* [n_asked] */
    int64_t *request; /* [n_asked] */
    int64_t n_asked;
} plan;

static dq_status plan_begin(plan *p, dq_runner *r, dq_arena *a, int64_t seqs, int64_t rows,
                            int64_t asked, dq_err *err)
{
    *p = (plan){.r = r, .a = a};
    p->cu = dq_alloc(a, (size_t)seqs + 1, sizeof *p->cu, err);
    p->seq = dq_alloc(a, (size_t)seqs, sizeof *p->seq, err);
    p->ids = dq_alloc(a, (size_t)rows, sizeof *p->ids, err);
    p->pos = dq_alloc(a, (size_t)rows, sizeof *p->pos, err);
    p->row = dq_alloc(a, (size_t)asked, sizeof *p->row, err);
    p->target = dq_alloc(a, (size_t)asked, sizeof *p->target, err);
    p->request = dq_alloc(a, (size_t)asked, sizeof *p->request, err);
    return err->code;
}

/* Opens an empty sequence, or a copy of `parent` if that is not negative. */
static dq_status plan_sequence(plan *p, int32_t parent, dq_err *err)
{
    dq_backend *b = dq_runner_backend(p->r);
    dq_kv *kv = dq_runner_kv(p->r);
    int32_t s = parent < 0 ? b->ops->kv_seq_new(b, kv) : b->ops->kv_fork(b, kv, parent);
    if (s < 0) {
        dq_backend_sync(b, err);
        return dq_fail(err, DQ_RESOURCE, "out of memory for the KV cache");
    }
    p->seq[p->n_seq++] = s;
    p->cu[p->n_seq] = p->n_rows;
    return DQ_OK;
}

/* n rows to the sequence opened last. */
static void plan_rows(plan *p, const int32_t *ids, int64_t n, int64_t pos)
{
    memcpy(p->ids + p->n_rows, ids, (size_t)n * sizeof *ids);
    for (int64_t i = 0; i < n; i++) p->pos[p->n_rows + i] = (int32_t)(pos + i);
    p->n_rows += n;
    p->cu[p->n_seq] = p->n_rows;
}

static void plan_ask(plan *p, int64_t row, int32_t target, int64_t request)
{
    p->row[p->n_asked] = row;
    p->target[p->n_asked] = target;
    p->request[p->n_asked++] = request;
}

static void plan_end(plan *p)
{
    dq_backend *b = dq_runner_backend(p->r);
    for (int i = 0; i < p->n_seq; i++) b->ops->kv_seq_free(b, dq_runner_kv(p->r), p->seq[i]);
    p->n_seq = 0;
}

/* Runs the pass; the asked rows' final states go to `state`, their answers to logp and top1. */
static dq_status plan_run(plan *p, const dq_pass *pass, dq_mat state, double *logp, int32_t *top1,
                          dq_work *work, dq_err *err)
{
    dq_backend *b = dq_runner_backend(p->r);
    dq_batch batch = {.n_seq = p->n_seq,
                      .n_rows = p->n_rows,
                      .cu_rows = p->cu,
                      .seq = p->seq,
                      .ids = p->ids,
                      .pos = p->pos};
    dq_mat hidden;
    double start = dq_seconds();
    DQ_TRY(dq_check_stop(err));
    DQ_TRY(dq_runner_pass(p->r, &batch, pass, &hidden, err));
    b->ops->gather(b, state, hidden, p->row);
    b->ops->logprob(b, logp, top1, state, &dq_runner_model(p->r)->head, p->target,
                    pass->math.linear);
    DQ_TRY(dq_backend_sync(b, err));
    work->computed += p->n_rows;
    work->seconds += dq_seconds() - start;
    return DQ_OK;
}

static dq_mat state_new(dq_runner *r, int64_t rows, dq_err *err)
{
    dq_backend *b = dq_runner_backend(r);
    dq_mat m = {.rows = rows, .cols = dq_runner_model(r)->dim};
    m.p = b->ops->alloc(b, (size_t)(m.rows * m.cols) * sizeof *m.p);
    if (!m.p) {
        dq_backend_sync(b, err);
        dq_fail(err, DQ_RESOURCE, "out of memory for %lld final states", (long long)rows);
    }
    return m;
}

/* Runs a pass over items and adds what it answers to ll and greedy, in the order of asking: the sum
 * of a continuation has one order however the rows were spread over passes. */
static dq_status run_items(plan *p, const dq_pass *pass, double *ll, bool *greedy, dq_work *work,
                           dq_err *err)
{
    if (p->n_asked == 0) return DQ_OK;
    double *logp = dq_alloc(p->a, (size_t)p->n_asked, sizeof *logp, err);
    int32_t *top1 = dq_alloc(p->a, (size_t)p->n_asked, sizeof *top1, err);
    dq_mat state = {0};
    if (err->code == DQ_OK) state = state_new(p->r, p->n_asked, err);
    if (err->code == DQ_OK && plan_run(p, pass, state, logp, top1, work, err) == DQ_OK) {
        for (int64_t i = 0; i < p->n_asked; i++) {
            ll[p->request[i]] += logp[i];
            greedy[p->request[i]] = greedy[p->request[i]] && top1[i] == p->target[i];
        }
    }
    dq_backend *b = dq_runner_backend(p->r);
    b->ops->free(b, state.p);
    return err->code;
}

/* Truncation may have cut choices of different lengths differently. */
static bool same_context(const dq_requests *q, int64_t item)
{
    const dq_request *a = &q->req[q->at[item]];
    for (int64_t k = q->at[item] + 1; k < q->at[item + 1]; k++) {
        const dq_request *b = &q->req[k];
        if (a->n_ctx != b->n_ctx || memcmp(a->ids, b->ids, (size_t)a->n_ctx * sizeof *a->ids) != 0)
            return false;
    }
    return true;
}

static dq_status add_whole(plan *p, const dq_requests *q, int64_t k, dq_err *err)
{
    const dq_request *r = &q->req[k];
    DQ_TRY(plan_sequence(p, -1, err));
    int64_t first = p->n_rows;
    plan_rows(p, r->ids, fed(r), 0);
    for (int64_t i = 0; i < r->n_cont; i++)
        plan_ask(p, first + r->n_ctx - 1 + i, r->ids[r->n_ctx + i], k);
    return DQ_OK;
}

/* The context once; its last row answers for the first id of every choice. */
static dq_status add_context(plan *p, const dq_requests *q, int64_t item, int32_t *seq, dq_err *err)
{
    const dq_request *r = &q->req[q->at[item]];
    DQ_TRY(plan_sequence(p, -1, err));
    *seq = p->seq[p->n_seq - 1];
    plan_rows(p, r->ids, r->n_ctx, 0);
    for (int64_t k = q->at[item]; k < q->at[item + 1]; k++)
        plan_ask(p, p->n_rows - 1, q->req[k].ids[r->n_ctx], k);
    return DQ_OK;
}

/* The rest of a choice behind a copy of its context. */
static dq_status add_rest(plan *p, const dq_requests *q, int64_t k, int32_t context, dq_err *err)
{
    const dq_request *r = &q->req[k];
    if (r->n_cont == 1) return DQ_OK;
    DQ_TRY(plan_sequence(p, context, err));
    int64_t first = p->n_rows;
    plan_rows(p, r->ids + r->n_ctx, r->n_cont - 1, r->n_ctx);
    for (int64_t i = 0; i + 1 < r->n_cont; i++) plan_ask(p, first + i, r->ids[r->n_ctx + 1 + i], k);
    return DQ_OK;
}

typedef struct group {
    const dq_requests *q;
    int64_t begin, end; /* items */
    int64_t n_req, n_rows, n_cont;
    int32_t *context; /* [end - begin] sequence of a shared context, -1: none */
} group;

static dq_status plan_first(plan *p, const group *g, bool share, dq_err *err)
{
    for (int64_t i = g->begin; i < g->end; i++) {
        const dq_requests *q = g->q;
        int32_t *context = &g->context[i - g->begin];
        *context = -1;
        if (share && same_context(q, i)) {
            DQ_TRY(add_context(p, q, i, context, err));
            continue;
        }
        for (int64_t k = q->at[i]; k < q->at[i + 1]; k++) DQ_TRY(add_whole(p, q, k, err));
    }
    return DQ_OK;
}

static dq_status plan_second(plan *p, const group *g, dq_err *err)
{
    for (int64_t i = g->begin; i < g->end; i++) {
        int32_t context = g->context[i - g->begin];
        for (int64_t k = g->q->at[i]; context >= 0 && k < g->q->at[i + 1]; k++)
            DQ_TRY(add_rest(p, g->q, k, context, err));
    }
    return DQ_OK;
}

static dq_status score_group(dq_runner *r, const dq_pass *pass, const group *g, dq_arena *a,
                             double *ll, bool *greedy, dq_work *work, dq_err *err)
{
    plan first, second;
    bool share = pass->logit.bits == 16 || pass->logit.grain == DQ_GRAIN_ROW;
    DQ_TRY(plan_begin(&first, r, a, g->n_req, g->n_rows, g->n_cont, err));
    DQ_TRY(plan_begin(&second, r, a, g->n_req, g->n_rows, g->n_cont, err));
    if (plan_first(&first, g, share, err) == DQ_OK &&
        run_items(&first, pass, ll, greedy, work, err) == DQ_OK && share &&
        plan_second(&second, g, err) == DQ_OK)
        run_items(&second, pass, ll, greedy, work, err);
    plan_end(&second);
    plan_end(&first);
    return err->code;
}

dq_status dq_score_items(dq_runner *r, const dq_pass *pass, const dq_requests *q, int64_t begin,
                         int64_t end, double *ll, bool *greedy, dq_work *work, dq_err *err)
{
    group g = {.q = q, .begin = begin, .end = end};
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    for (int64_t k = q->at[begin]; k < q->at[end]; k++) {
        ll[k] = 0;
        greedy[k] = true;
        g.n_req++;
        g.n_rows += fed(&q->req[k]);
        g.n_cont += q->req[k].n_cont;
    }
    work->tokens += g.n_rows;
    g.context = dq_alloc(a, (size_t)(end - begin), sizeof *g.context, err);
    if (g.context) score_group(r, pass, &g, a, ll, greedy, work, err);
    dq_arena_free(a);
    return err->code;
}

static dq_status plan_windows(plan *p, const dq_windows *w, int64_t begin, int64_t end, dq_err *err)
{
    for (int64_t i = begin; i < end; i++) {
        const int32_t *ids = w->ids + i * w->n_ctx;
        DQ_TRY(plan_sequence(p, -1, err));
        int64_t base = p->n_rows;
        plan_rows(p, ids, w->n_ctx, 0);
        for (int64_t t = w->first; t + 1 < w->n_ctx; t++) plan_ask(p, base + t, ids[t + 1], i);
    }
    return DQ_OK;
}

dq_status dq_score_windows(dq_runner *r, const dq_pass *pass, const dq_windows *w, int64_t begin,
                           int64_t end, dq_mat state, double *logp, int32_t *top1, dq_work *work,
                           dq_err *err)
{
    plan p;
    int64_t n = end - begin;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (plan_begin(&p, r, a, n, n * w->n_ctx, n * w->n_scored, err) == DQ_OK) {
        if (plan_windows(&p, w, begin, end, err) == DQ_OK)
            plan_run(&p, pass, state, logp, top1, work, err);
        work->tokens += n * w->n_ctx;
        plan_end(&p);
    }
    dq_arena_free(a);
    return err->code;
}
