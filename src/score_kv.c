/* score, kv: scoring behind compressed contexts.
 * SPDX-License-Identifier: MIT */
#include "score_plan.h"

#include "os.h"

#include <math.h>

/* Everything that one group of items or windows needs on its way. */
typedef struct kv_run {
    dq_runner *r;
    const dq_pass *pass;
    const dq_kv_setting *kv;
    dq_evictor *evictor; /* NULL: nothing is evicted */
    dq_arena *a;
    dq_work *work;
    int32_t *seq; /* [n_seq] open: contexts first, then their copies */
    int64_t n_seq;
} kv_run;

static dq_status run_begin(kv_run *x, dq_runner *r, const dq_pass *pass, const dq_kv_setting *kv,
                           int64_t seqs, dq_work *work, dq_err *err)
{
    *x = (kv_run){.r = r, .pass = pass, .kv = kv, .work = work, .a = dq_arena_new()};
    if (!x->a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    x->seq = dq_alloc(x->a, (size_t)seqs, sizeof *x->seq, err);
    if (err->code == DQ_OK && kv->evict.policy)
        dq_evictor_new(&x->evictor, r, &kv->spec, &kv->evict, err);
    return err->code;
}

static void run_end(kv_run *x)
{
    dq_score_close(x->r, x->evictor, x->seq, x->n_seq);
    dq_evictor_free(x->evictor);
    dq_arena_free(x->a);
}

static int32_t open_one(kv_run *x, int32_t parent, dq_err *err)
{
    int32_t s = dq_score_open(x->r, x->evictor, parent, err);
    if (s >= 0) x->seq[x->n_seq++] = s;
    return s;
}

static dq_status plan_begin(kv_run *x, dq_score_plan *p, int64_t seqs, int64_t rows, int64_t asked,
                            dq_err *err)
{
    DQ_TRY(dq_score_plan_begin(p, x->r, x->a, seqs, rows, asked, err));
    p->evictor = x->evictor;
    return DQ_OK;
}

/* Position of the next row of every sequence of a finished pass. */
static int32_t *prefix_of(kv_run *x, const dq_score_plan *p, dq_err *err)
{
    int32_t *prefix = dq_alloc(x->a, (size_t)p->n_seq, sizeof *prefix, err);
    for (int i = 0; prefix && i < p->n_seq; i++)
        prefix[i] = p->cu[i + 1] > p->cu[i] ? p->pos[p->cu[i + 1] - 1] + 1 : 0;
    return prefix;
}

static dq_status evict(kv_run *x, const dq_score_plan *p, dq_evict_report *report, dq_err *err)
{
    dq_batch batch = dq_score_batch(p);
    double start = dq_seconds();
    *report = (dq_evict_report){.gap_min = (double)INFINITY};
    if (!x->evictor) return DQ_OK;
    int32_t *prefix = prefix_of(x, p, err);
    if (!prefix) return err->code;
    DQ_TRY(dq_evictor_run(x->evictor, &batch, prefix, report, err));
    x->work->seconds += dq_seconds() - start;
    return DQ_OK;
}

/* The pass of the contexts has run: evicts, and measures what is left. */
static dq_status compress(kv_run *x, const dq_score_plan *p, const dq_kv_bytes *floor, dq_err *err)
{
    dq_evict_report report;
    DQ_TRY(evict(x, p, &report, err));
    int32_t *prefix = prefix_of(x, p, err);
    if (!prefix) return err->code;
    if (x->evictor) dq_kv_held_report(&x->work->held, &report, p->n_seq);
    dq_kv_held_measure(&x->work->held, x->r, &x->kv->spec, floor, p->seq, prefix, p->n_seq);
    return DQ_OK;
}

/* Tokens between two evictions of a continuation; sums with it never overflow. */
static int64_t piece_of(const kv_run *x)
{
    const int64_t every = x->evictor ? x->kv->evict.every : 0;
    return every > 0 && every < INT32_MAX ? every : INT32_MAX;
}

/* ---- Items ---- */

typedef struct group {
    const dq_requests *q;
    int64_t begin, end; /* items */
    int64_t n_req, n_rows, n_cont;
    int32_t *context; /* [n_req] sequence of each request's context */
    int32_t *copy;    /* [n_req] its copy that the rest goes to */
} group;

static int64_t rest_of(const dq_request *r)
{
    return r->n_cont - 1;
}

/* The contexts; the last row of each answers for the first id of the choices behind it. */
static dq_status plan_contexts(kv_run *x, const group *g, dq_score_plan *p, dq_err *err)
{
    const dq_requests *q = g->q;
    for (int64_t i = g->begin; i < g->end; i++) {
        bool shared = dq_score_same_context(q, i);
        for (int64_t k = q->at[i]; k < q->at[i + 1]; k++) {
            const dq_request *r = &q->req[k];
            int64_t at = k - q->at[g->begin];
            if (shared && k > q->at[i]) {
                g->context[at] = g->context[at - 1];
            } else {
                int32_t s = open_one(x, -1, err);
                if (s < 0) return err->code;
                g->context[at] = s;
                dq_score_plan_sequence(p, s);
                dq_score_plan_rows(p, r->ids, r->n_ctx, 0);
            }
            dq_score_plan_ask(p, p->n_rows - 1, r->ids[r->n_ctx], k);
        }
    }
    return DQ_OK;
}

static dq_status open_copies(kv_run *x, const group *g, dq_err *err)
{
    for (int64_t at = 0; at < g->n_req; at++) {
        g->copy[at] = -1;
        if (rest_of(&g->q->req[g->q->at[g->begin] + at]) == 0) continue;
        g->copy[at] = open_one(x, g->context[at], err);
        if (g->copy[at] < 0) return err->code;
    }
    return DQ_OK;
}

/* Up to `n` ids of every rest, from its id `from` on. */
static void plan_piece(const group *g, dq_score_plan *p, int64_t from, int64_t n)
{
    for (int64_t at = 0; at < g->n_req; at++) {
        int64_t k = g->q->at[g->begin] + at, left = rest_of(&g->q->req[k]) - from;
        const dq_request *r = &g->q->req[k];
        if (left <= 0) continue;
        int64_t take = left < n ? left : n, begin = r->n_ctx + from, row = p->n_rows;
        dq_score_plan_sequence(p, g->copy[at]);
        dq_score_plan_rows(p, r->ids + begin, take, begin);
        for (int64_t i = 0; i < take; i++) dq_score_plan_ask(p, row + i, r->ids[begin + i + 1], k);
    }
}

static dq_status run_rests(kv_run *x, const group *g, double *ll, bool *greedy, dq_err *err)
{
    int64_t piece = piece_of(x), longest = 0;
    for (int64_t at = 0; at < g->n_req; at++) {
        int64_t n = rest_of(&g->q->req[g->q->at[g->begin] + at]);
        if (n > longest) longest = n;
    }
    for (int64_t from = 0; from < longest; from += piece) {
        dq_score_plan p;
        dq_evict_report report; /* later evictions are not part of what a context took */
        int64_t room = longest < piece ? g->n_cont : g->n_req * piece;
        if (room > g->n_cont) room = g->n_cont;
        DQ_TRY(plan_begin(x, &p, g->n_req, room, room, err));
        plan_piece(g, &p, from, piece);
        DQ_TRY(dq_score_plan_items(&p, x->pass, ll, greedy, x->work, err));
        if (longest - from > piece) DQ_TRY(evict(x, &p, &report, err));
    }
    return DQ_OK;
}

static dq_status score_group(kv_run *x, group *g, double *ll, bool *greedy, dq_err *err)
{
    dq_score_plan p;
    dq_kv_bytes floor;
    g->context = dq_alloc(x->a, (size_t)g->n_req, sizeof *g->context, err);
    g->copy = dq_alloc(x->a, (size_t)g->n_req, sizeof *g->copy, err);
    if (!g->context || !g->copy) return err->code;
    DQ_TRY(plan_begin(x, &p, g->n_req, g->n_rows, g->n_req, err));
    DQ_TRY(dq_kv_held_floor(&floor, x->r, g->n_req, err));
    DQ_TRY(plan_contexts(x, g, &p, err));
    DQ_TRY(dq_score_plan_items(&p, x->pass, ll, greedy, x->work, err));
    DQ_TRY(compress(x, &p, &floor, err));
    DQ_TRY(open_copies(x, g, err));
    return run_rests(x, g, ll, greedy, err);
}

dq_status dq_score_items_kv(dq_runner *r, const dq_pass *pass, const dq_kv_setting *kv,
                            const dq_requests *q, int64_t begin, int64_t end, double *ll,
                            bool *greedy, dq_work *work, dq_err *err)
{
    group g = {.q = q, .begin = begin, .end = end};
    kv_run x;
    for (int64_t k = q->at[begin]; k < q->at[end]; k++) {
        ll[k] = 0;
        greedy[k] = true;
        g.n_req++;
        g.n_rows += dq_score_fed(&q->req[k]);
        g.n_cont += q->req[k].n_cont;
    }
    work->tokens += g.n_rows;
    if (run_begin(&x, r, pass, kv, 2 * g.n_req, work, err) == DQ_OK)
        score_group(&x, &g, ll, greedy, err);
    run_end(&x);
    return err->code;
}

/* ---- Windows ---- */

/* Ids from .. to - 1 of every window. */
static void plan_columns(const kv_run *x, dq_score_plan *p, const dq_windows *w, int64_t begin,
                         int64_t from, int64_t to)
{
    for (int64_t i = 0; i < x->n_seq; i++) {
        dq_score_plan_sequence(p, x->seq[i]);
        dq_score_plan_rows(p, w->ids + (begin + i) * w->n_ctx + from, to - from, from);
    }
}

/* Final states of the rows from .. to - 1 of each window that predict something. */
static dq_status gather_columns(const kv_run *x, dq_mat state, dq_mat hidden, const dq_windows *w,
                                int64_t from, int64_t to, dq_err *err)
{
    dq_backend *b = dq_runner_backend(x->r);
    int64_t width = to - from, n = to < w->n_ctx ? width : width - 1;
    int64_t *index = dq_alloc(x->a, (size_t)width, sizeof *index, err);
    if (!index) return err->code;
    for (int64_t i = 0; i < x->n_seq && n > 0; i++) {
        dq_mat into = {.rows = n, .cols = state.cols};
        into.p = state.p + (i * w->n_scored + from - w->first) * state.cols;
        for (int64_t t = 0; t < n; t++) index[t] = i * width + t;
        b->ops->gather(b, into, hidden, index);
    }
    return dq_backend_sync(b, err);
}

static dq_status run_second(kv_run *x, const dq_windows *w, int64_t begin, dq_mat state,
                            dq_err *err)
{
    int64_t piece = piece_of(x);
    for (int64_t from = w->first; from < w->n_ctx; from += piece) {
        int64_t to = w->n_ctx - from > piece ? from + piece : w->n_ctx;
        dq_score_plan p;
        dq_evict_report report;
        dq_mat hidden;
        DQ_TRY(plan_begin(x, &p, x->n_seq, x->n_seq * (to - from), 0, err));
        plan_columns(x, &p, w, begin, from, to);
        DQ_TRY(dq_score_plan_pass(&p, x->pass, &hidden, x->work, err));
        DQ_TRY(gather_columns(x, state, hidden, w, from, to, err));
        if (to < w->n_ctx) DQ_TRY(evict(x, &p, &report, err));
    }
    return DQ_OK;
}

/* The most likely ids and the targets' log-probabilities of all states at once: with many small pieces
 * the output head would be read for each of them. */
static dq_status answer(kv_run *x, const dq_windows *w, int64_t begin, dq_mat state, double *logp,
                        int32_t *top1, dq_err *err)
{
    dq_backend *b = dq_runner_backend(x->r);
    double start = dq_seconds();
    int32_t *target = dq_alloc(x->a, (size_t)(x->n_seq * w->n_scored), sizeof *target, err);
    if (!target) return err->code;
    for (int64_t i = 0; i < x->n_seq; i++) {
        for (int64_t t = 0; t < w->n_scored; t++)
            target[i * w->n_scored + t] = w->ids[(begin + i) * w->n_ctx + w->first + 1 + t];
    }
    b->ops->logprob(b, logp, top1, state, &dq_runner_model(x->r)->head, target,
                    x->pass->math.linear);
    DQ_TRY(dq_backend_sync(b, err));
    x->work->seconds += dq_seconds() - start;
    return DQ_OK;
}

static dq_status score_windows(kv_run *x, const dq_windows *w, int64_t begin, int64_t end,
                               dq_mat state, double *logp, int32_t *top1, dq_err *err)
{
    dq_score_plan p;
    dq_kv_bytes floor;
    dq_mat hidden;
    DQ_TRY(dq_kv_held_floor(&floor, x->r, end - begin, err));
    for (int64_t i = begin; i < end; i++) {
        if (open_one(x, -1, err) < 0) return err->code;
    }
    DQ_TRY(plan_begin(x, &p, x->n_seq, x->n_seq * w->first, 0, err));
    plan_columns(x, &p, w, begin, 0, w->first);
    DQ_TRY(dq_score_plan_pass(&p, x->pass, &hidden, x->work, err));
    DQ_TRY(compress(x, &p, &floor, err));
    DQ_TRY(run_second(x, w, begin, state, err));
    return answer(x, w, begin, state, logp, top1, err);
}

dq_status dq_score_windows_kv(dq_runner *r, const dq_pass *pass, const dq_kv_setting *kv,
                              const dq_windows *w, int64_t begin, int64_t end, dq_mat state,
                              double *logp, int32_t *top1, dq_work *work, dq_err *err)
{
    kv_run x;
    work->tokens += (end - begin) * w->n_ctx;
    if (run_begin(&x, r, pass, kv, end - begin, work, err) == DQ_OK)
        score_windows(&x, w, begin, end, state, logp, top1, err);
    run_end(&x);
    return err->code;
}
