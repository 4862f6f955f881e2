/* score: see score.h.
 * SPDX-License-Identifier: MIT */
#include "eval/pass_plan.h"

#include <math.h>

void dq_work_add(dq_work *into, const dq_work *from)
{
    into->tokens += from->tokens;
    into->computed += from->computed;
    into->seconds += from->seconds;
    dq_kv_held_add(&into->held, &from->held);
}

const dq_stem dq_stem_none = {.seq = -1};

void dq_stem_end(dq_stem *stem, dq_runner *r)
{
    if (stem->seq >= 0) dq_score_close(r, stem->evictor, &stem->seq, 1);
    dq_evictor_free(stem->evictor);
    *stem = dq_stem_none;
}

bool dq_score_shares(const dq_pass *pass, const dq_kv_setting *kv)
{
    return !dq_kv_setting_is_plain(kv) || pass->logit.bits == 16 ||
           pass->logit.grain == DQ_GRAIN_ROW;
}

int64_t dq_score_rows(const dq_runner *r, bool shared)
{
    enum { SHARED_FACTOR = 3 };
    return dq_runner_rows(r, DQ_SCORE_ROWS) * (shared ? SHARED_FACTOR : 1);
}

static int64_t item_rows(const dq_requests *q, int64_t item, bool shared)
{
    int64_t n = 0, trunk = shared ? 0 : dq_requests_trunk(q, item)->n;
    for (int64_t k = q->at[item]; k < q->at[item + 1]; k++) n += trunk + dq_score_fed(&q->req[k]);
    return n;
}

int64_t dq_score_group(const dq_requests *q, int64_t begin, int64_t max_rows, bool shared)
{
    const int64_t last = dq_requests_trunk(q, begin)->end;
    int64_t end = begin + 1, rows = item_rows(q, begin, shared);
    for (; end < q->n_items && end < last; end++) {
        rows += item_rows(q, end, shared);
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

/* A group of items on its way. */
typedef struct group {
    const dq_requests *q;
    int64_t begin, end; /* items */
    int64_t n_req, n_rows, n_cont;
    const dq_trunk *trunk;
    int32_t stem;     /* sequence that holds the trunk, -1: none does */
    int32_t *context; /* [end - begin] sequence of a shared context, -1: none */
    bool all_shared;  /* none is -1 */
} group;

/* A choice in one piece, behind a copy of the trunk where a sequence holds it. */
static dq_status add_whole(dq_score_plan *p, const group *g, const dq_request *r, dq_err *err)
{
    const dq_trunk *trunk = g->trunk;
    DQ_TRY(open_sequence(p, g->stem, err));
    if (g->stem < 0) dq_score_plan_rows(p, trunk->ids, trunk->n, 0);
    dq_score_plan_rows(p, r->ctx, r->n_ctx, trunk->n);
    int64_t row = p->n_rows - 1;
    dq_score_plan_rows(p, r->cont, r->n_cont - 1, trunk->n + r->n_ctx);
    for (int64_t i = 0; i < r->n_cont; i++) dq_score_plan_ask(p, row + i, r->cont[i], r->value + i);
    return DQ_OK;
}

/* The context once; its last row answers for the first id of every choice. */
static dq_status add_context(dq_score_plan *p, const group *g, int64_t item, int32_t *seq,
                             dq_err *err)
{
    const dq_requests *q = g->q;
    const dq_request *r = &q->req[q->at[item]];
    DQ_TRY(open_sequence(p, g->stem, err));
    *seq = p->seq[p->n_seq - 1];
    dq_score_plan_rows(p, r->ctx, r->n_ctx, g->trunk->n);
    for (int64_t k = q->at[item]; k < q->at[item + 1]; k++)
        dq_score_plan_ask(p, p->n_rows - 1, q->req[k].cont[0], q->req[k].value);
    return DQ_OK;
}

/* The rest of a choice behind a copy of its context. */
static dq_status add_rest(dq_score_plan *p, const group *g, const dq_request *r, int32_t context,
                          dq_err *err)
{
    if (r->n_cont == 1) return DQ_OK;
    DQ_TRY(open_sequence(p, context, err));
    int64_t first = p->n_rows;
    dq_score_plan_rows(p, r->cont, r->n_cont - 1, g->trunk->n + r->n_ctx);
    for (int64_t i = 0; i + 1 < r->n_cont; i++)
        dq_score_plan_ask(p, first + i, r->cont[i + 1], r->value + 1 + i);
    return DQ_OK;
}

static dq_status plan_first(dq_score_plan *p, group *g, bool share, dq_err *err)
{
    for (int64_t i = g->begin; i < g->end; i++) {
        const dq_requests *q = g->q;
        int32_t *context = &g->context[i - g->begin];
        *context = -1;
        if (share && dq_score_same_context(q, i)) {
            DQ_TRY(add_context(p, g, i, context, err));
            continue;
        }
        g->all_shared = false;
        for (int64_t k = q->at[i]; k < q->at[i + 1]; k++) DQ_TRY(add_whole(p, g, &q->req[k], err));
    }
    return DQ_OK;
}

static dq_status plan_second(dq_score_plan *p, const group *g, dq_err *err)
{
    for (int64_t i = g->begin; i < g->end; i++) {
        int32_t context = g->context[i - g->begin];
        for (int64_t k = g->q->at[i]; context >= 0 && k < g->q->at[i + 1]; k++)
            DQ_TRY(add_rest(p, g, &g->q->req[k], context, err));
    }
    return DQ_OK;
}

/* What the contexts take, if every sequence of the first pass is one and starts with its own. */
static dq_status measure(dq_score_plan *p, const group *g, const dq_kv_bytes *floor, dq_work *work,
                         dq_err *err)
{
    if (!g->all_shared || g->stem >= 0) {
        work->held.missed += p->n_seq;
        return DQ_OK;
    }
    int32_t *prefix = dq_alloc(p->a, (size_t)p->n_seq, sizeof *prefix, err);
    if (!prefix) return err->code;
    for (int i = 0; i < p->n_seq; i++) prefix[i] = p->pos[p->cu[i + 1] - 1] + 1;
    dq_kv_held_measure(&work->held, p->r, &dq_kv_plain, floor, p->seq, prefix, p->n_seq);
    return DQ_OK;
}

static dq_status score_group(dq_runner *r, const dq_pass *pass, group *g, bool share, dq_arena *a,
                             double *logp, int32_t *top1, dq_work *work, dq_err *err)
{
    dq_score_plan first, second;
    dq_kv_bytes floor;
    g->all_shared = share;
    DQ_TRY(dq_score_plan_begin(&first, r, a, g->n_req, g->n_rows, g->n_cont, err));
    DQ_TRY(dq_score_plan_begin(&second, r, a, g->n_req, g->n_rows, g->n_cont, err));
    DQ_TRY(dq_kv_held_floor(&floor, r, g->n_req, err));
    if (plan_first(&first, g, share, err) == DQ_OK &&
        dq_score_plan_items(&first, pass, logp, top1, work, err) == DQ_OK &&
        measure(&first, g, &floor, work, err) == DQ_OK && share &&
        plan_second(&second, g, err) == DQ_OK)
        dq_score_plan_items(&second, pass, logp, top1, work, err);
    plan_end(&second);
    plan_end(&first);
    return err->code;
}

/* Makes the stem hold the trunk, if it does not yet. */
static dq_status grow(dq_stem *stem, dq_runner *r, const dq_pass *pass, const dq_trunk *trunk,
                      dq_arena *a, dq_work *work, dq_err *err)
{
    dq_score_plan p;
    dq_mat hidden;
    if (stem->seq >= 0 && stem->trunk == trunk) return DQ_OK;
    dq_stem_end(stem, r);
    if (trunk->n == 0) return DQ_OK;
    DQ_TRY(dq_score_plan_begin(&p, r, a, 1, trunk->n, 0, err));
    DQ_TRY(open_sequence(&p, -1, err));
    dq_score_plan_rows(&p, trunk->ids, trunk->n, 0);
    if (dq_score_plan_pass(&p, pass, &hidden, work, err) != DQ_OK) {
        plan_end(&p);
        return err->code;
    }
    *stem = (dq_stem){.seq = p.seq[0], .trunk = trunk};
    return DQ_OK;
}

dq_status dq_score_items(dq_runner *r, const dq_pass *pass, const dq_requests *q, int64_t begin,
                         int64_t end, dq_stem *stem, double *logp, int32_t *top1, dq_work *work,
                         dq_err *err)
{
    bool share = dq_score_shares(pass, &dq_kv_setting_plain);
    group g = {.q = q, .begin = begin, .end = end, .trunk = dq_requests_trunk(q, begin)};
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    for (int64_t k = q->at[begin]; k < q->at[end]; k++) {
        g.n_req++;
        g.n_rows += g.trunk->n + dq_score_fed(&q->req[k]);
        g.n_cont += q->req[k].n_cont;
    }
    work->tokens += g.n_rows;
    if (share) {
        g.n_rows -= g.n_req * g.trunk->n;
        grow(stem, r, pass, g.trunk, a, work, err);
    }
    g.stem = share ? stem->seq : -1;
    if (err->code == DQ_OK) g.context = dq_alloc(a, (size_t)(end - begin), sizeof *g.context, err);
    if (g.context) score_group(r, pass, &g, share, a, logp, top1, work, err);
    dq_arena_free(a);
    return err->code;
}

static dq_status plan_windows(dq_score_plan *p, const dq_windows *w, int64_t begin, int64_t end,
                              dq_err *err)
{
    for (int64_t i = begin; i < end; i++) {
        const dq_window *x = &w->win[i];
        DQ_TRY(open_sequence(p, -1, err));
        int64_t base = p->n_rows;
        dq_score_plan_rows(p, x->ids, x->n, 0);
        for (int64_t t = x->first; t + 1 < x->n + x->past; t++)
            dq_score_plan_ask(p, base + t, x->ids[t + 1], i);
    }
    return DQ_OK;
}

dq_status dq_score_windows(dq_runner *r, const dq_pass *pass, const dq_windows *w, int64_t begin,
                           int64_t end, dq_mat state, double *logp, int32_t *top1, dq_work *work,
                           dq_err *err)
{
    dq_score_plan p;
    int64_t n = end - begin, rows = 0;
    int64_t asked = dq_windows_values(w, end) - dq_windows_values(w, begin);
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    for (int64_t i = begin; i < end; i++) rows += w->win[i].n;
    if (dq_score_plan_begin(&p, r, a, n, rows, asked, err) == DQ_OK) {
        if (plan_windows(&p, w, begin, end, err) == DQ_OK)
            dq_score_plan_run(&p, pass, state, logp, top1, work, err);
        work->tokens += rows;
        work->held.missed += n;
        plan_end(&p);
    }
    dq_arena_free(a);
    return err->code;
}

dq_status dq_logp_check(const dq_model *m, const double *logp, int64_t n, dq_err *err)
{
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(logp[i]))
            return dq_fail(err, DQ_DAMAGED,
                           "%s gives a log-probability of %g; its logits are NaN or infinite, "
                           "which a damaged output head or final norm does",
                           m->path, logp[i]);
    }
    return DQ_OK;
}
