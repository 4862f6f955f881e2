/* score: see score.h.
 * SPDX-License-Identifier: MIT */
#include "score_plan.h"

void dq_work_add(dq_work *into, const dq_work *from)
{
    into->tokens += from->tokens;
    into->computed += from->computed;
    into->seconds += from->seconds;
    dq_kv_held_add(&into->held, &from->held);
}

static int64_t item_rows(const dq_requests *q, int64_t item)
{
    int64_t n = 0;
    for (int64_t k = q->at[item]; k < q->at[item + 1]; k++) n += dq_score_fed(&q->req[k]);
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

static dq_status open_sequence(dq_score_plan *p, int32_t parent, dq_err *err)
{
    int32_t seq = dq_score_open(p->r, NULL, parent, err);
    if (seq >= 0) dq_score_plan_sequence(p, seq);
    return err->code;
}

static void plan_end(dq_score_plan *p)
{
    dq_score_close(p->r, NULL, p->seq, p->n_seq);
    p->n_seq = 0;
}

static dq_status add_whole(dq_score_plan *p, const dq_requests *q, int64_t k, dq_err *err)
{
    const dq_request *r = &q->req[k];
    DQ_TRY(open_sequence(p, -1, err));
    int64_t first = p->n_rows;
    dq_score_plan_rows(p, r->ids, dq_score_fed(r), 0);
    for (int64_t i = 0; i < r->n_cont; i++)
        dq_score_plan_ask(p, first + r->n_ctx - 1 + i, r->ids[r->n_ctx + i], k);
    return DQ_OK;
}

/* The context once; its last row answers for the first id of every choice. */
static dq_status add_context(dq_score_plan *p, const dq_requests *q, int64_t item, int32_t *seq,
                             dq_err *err)
{
    const dq_request *r = &q->req[q->at[item]];
    DQ_TRY(open_sequence(p, -1, err));
    *seq = p->seq[p->n_seq - 1];
    dq_score_plan_rows(p, r->ids, r->n_ctx, 0);
    for (int64_t k = q->at[item]; k < q->at[item + 1]; k++)
        dq_score_plan_ask(p, p->n_rows - 1, q->req[k].ids[r->n_ctx], k);
    return DQ_OK;
}

/* The rest of a choice behind a copy of its context. */
static dq_status add_rest(dq_score_plan *p, const dq_requests *q, int64_t k, int32_t context,
                          dq_err *err)
{
    const dq_request *r = &q->req[k];
    if (r->n_cont == 1) return DQ_OK;
    DQ_TRY(open_sequence(p, context, err));
    int64_t first = p->n_rows;
    dq_score_plan_rows(p, r->ids + r->n_ctx, r->n_cont - 1, r->n_ctx);
    for (int64_t i = 0; i + 1 < r->n_cont; i++)
        dq_score_plan_ask(p, first + i, r->ids[r->n_ctx + 1 + i], k);
    return DQ_OK;
}

typedef struct group {
    const dq_requests *q;
    int64_t begin, end; /* items */
    int64_t n_req, n_rows, n_cont;
    int32_t *context; /* [end - begin] sequence of a shared context, -1: none */
    bool all_shared;  /* none is -1 */
} group;

static dq_status plan_first(dq_score_plan *p, group *g, bool share, dq_err *err)
{
    for (int64_t i = g->begin; i < g->end; i++) {
        const dq_requests *q = g->q;
        int32_t *context = &g->context[i - g->begin];
        *context = -1;
        if (share && dq_score_same_context(q, i)) {
            DQ_TRY(add_context(p, q, i, context, err));
            continue;
        }
        g->all_shared = false;
        for (int64_t k = q->at[i]; k < q->at[i + 1]; k++) DQ_TRY(add_whole(p, q, k, err));
    }
    return DQ_OK;
}

static dq_status plan_second(dq_score_plan *p, const group *g, dq_err *err)
{
    for (int64_t i = g->begin; i < g->end; i++) {
        int32_t context = g->context[i - g->begin];
        for (int64_t k = g->q->at[i]; context >= 0 && k < g->q->at[i + 1]; k++)
            DQ_TRY(add_rest(p, g->q, k, context, err));
    }
    return DQ_OK;
}

/* What the contexts take, if every sequence of the first pass is one. */
static dq_status measure(dq_score_plan *p, const group *g, const dq_kv_bytes *floor, dq_work *work,
                         dq_err *err)
{
    if (!g->all_shared) {
        work->held.missed += p->n_seq;
        return DQ_OK;
    }
    int32_t *prefix = dq_alloc(p->a, (size_t)p->n_seq, sizeof *prefix, err);
    if (!prefix) return err->code;
    for (int i = 0; i < p->n_seq; i++) prefix[i] = p->pos[p->cu[i + 1] - 1] + 1;
    dq_kv_held_measure(&work->held, p->r, &dq_kv_plain, floor, p->seq, prefix, p->n_seq);
    return DQ_OK;
}

static dq_status score_group(dq_runner *r, const dq_pass *pass, group *g, dq_arena *a, double *ll,
                             bool *greedy, dq_work *work, dq_err *err)
{
    dq_score_plan first, second;
    dq_kv_bytes floor;
    bool share = pass->logit.bits == 16 || pass->logit.grain == DQ_GRAIN_ROW;
    g->all_shared = share;
    DQ_TRY(dq_score_plan_begin(&first, r, a, g->n_req, g->n_rows, g->n_cont, err));
    DQ_TRY(dq_score_plan_begin(&second, r, a, g->n_req, g->n_rows, g->n_cont, err));
    DQ_TRY(dq_kv_held_floor(&floor, r, g->n_req, err));
    if (plan_first(&first, g, share, err) == DQ_OK &&
        dq_score_plan_items(&first, pass, ll, greedy, work, err) == DQ_OK &&
        measure(&first, g, &floor, work, err) == DQ_OK && share &&
        plan_second(&second, g, err) == DQ_OK)
        dq_score_plan_items(&second, pass, ll, greedy, work, err);
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
        g.n_rows += dq_score_fed(&q->req[k]);
        g.n_cont += q->req[k].n_cont;
    }
    work->tokens += g.n_rows;
    g.context = dq_alloc(a, (size_t)(end - begin), sizeof *g.context, err);
    if (g.context) score_group(r, pass, &g, a, ll, greedy, work, err);
    dq_arena_free(a);
    return err->code;
}

static dq_status plan_windows(dq_score_plan *p, const dq_windows *w, int64_t begin, int64_t end,
                              dq_err *err)
{
    for (int64_t i = begin; i < end; i++) {
        const int32_t *ids = w->ids + i * w->n_ctx;
        DQ_TRY(open_sequence(p, -1, err));
        int64_t base = p->n_rows;
        dq_score_plan_rows(p, ids, w->n_ctx, 0);
        for (int64_t t = w->first; t + 1 < w->n_ctx; t++)
            dq_score_plan_ask(p, base + t, ids[t + 1], i);
    }
    return DQ_OK;
}

dq_status dq_score_windows(dq_runner *r, const dq_pass *pass, const dq_windows *w, int64_t begin,
                           int64_t end, dq_mat state, double *logp, int32_t *top1, dq_work *work,
                           dq_err *err)
{
    dq_score_plan p;
    int64_t n = end - begin;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (dq_score_plan_begin(&p, r, a, n, n * w->n_ctx, n * w->n_scored, err) == DQ_OK) {
        if (plan_windows(&p, w, begin, end, err) == DQ_OK)
            dq_score_plan_run(&p, pass, state, logp, top1, work, err);
        work->tokens += n * w->n_ctx;
        work->held.missed += n;
        plan_end(&p);
    }
    dq_arena_free(a);
    return err->code;
}
