/* score, kv: scoring behind compressed contexts.
 * SPDX-License-Identifier: MIT */
#include "eval/pass_plan.h"

#include "base/os.h"

#include <string.h>

/* Everything that one group of items or windows needs on its way. */
typedef struct kv_run {
    dq_runner *r;
    const dq_pass *pass;
    const dq_kv_setting *kv;
    dq_evictor *evictor; /* NULL: nothing is evicted; the stem's where there is one */
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
    return err->code;
}

static dq_status evictor_begin(kv_run *x, dq_err *err)
{
    if (!x->kv->evict.policy) return DQ_OK;
    return dq_evictor_new(&x->evictor, x->r, &x->kv->spec, &x->kv->evict, err);
}

static void run_end(kv_run *x)
{
    dq_score_close(x->r, x->evictor, x->seq, x->n_seq);
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

/* The pass of the contexts has run: evicts, and measures what is left. */
static dq_status compress(kv_run *x, const dq_score_plan *p, const dq_kv_bytes *floor, dq_err *err)
{
    dq_evict_report report = dq_evict_report_none;
    if (x->evictor) DQ_TRY(dq_score_plan_evict(p, &report, x->work, err));
    int32_t *prefix = dq_score_plan_next(p, err);
    if (!prefix) return err->code;
    if (x->evictor) dq_kv_held_report(&x->work->held, &report, p->n_seq);
    dq_kv_held_measure(&x->work->held, x->r, &x->kv->spec, floor, p->seq, prefix, p->n_seq);
    dq_block_free(prefix);
    return DQ_OK;
}

/* Tokens between two evictions of a continuation; sums with it never overflow. */
static int64_t piece_of(const kv_run *x)
{
    const int64_t every = x->evictor ? x->kv->evict.every : 0;
    return every > 0 && every < INT32_MAX ? every : INT32_MAX;
}

/* ---- Items ---- */

/* What is fed to one sequence: a context, or the rest of a choice. */
typedef struct tail {
    int32_t seq;
    const int32_t *ids; /* [n] from position pos on */
    int64_t n, pos;
    const dq_request *rest; /* whose ids these are; NULL: a context */
    int64_t from, to;       /* a context's requests: their first ids are asked of its last row */
} tail;

typedef struct group {
    const dq_requests *q;
    int64_t begin, end; /* items */
    int64_t n_req, n_rows;
    const dq_trunk *trunk;
    int32_t stem;     /* sequence that holds the trunk; -1: there is none */
    int32_t *context; /* [n_req] sequence of each request's context */
    tail *tail;       /* [n_req] */
} group;

/* Up to `n` ids of a tail, from its id `from` on. */
static void plan_tail(dq_score_plan *p, const group *g, const tail *t, int64_t from, int64_t n)
{
    int64_t left = t->n - from, row = p->n_rows;
    int64_t take = left < n ? left : n;
    if (left <= 0) return;
    dq_score_plan_sequence(p, t->seq);
    dq_score_plan_rows(p, t->ids + from, take, t->pos + from);
    for (int64_t i = from; t->rest && i < from + take; i++)
        dq_score_plan_ask(p, row + i - from, t->rest->cont[i + 1], t->rest->value + i + 1);
    for (int64_t k = t->from; take == left && k < t->to; k++)
        dq_score_plan_ask(p, p->n_rows - 1, g->q->req[k].cont[0], g->q->req[k].value);
}

/* A plan of ids `from` .. `from` + n - 1 of all tails. */
static dq_status plan_tails(kv_run *x, const group *g, int64_t n_tails, dq_score_plan *p,
                            int64_t from, int64_t n, dq_err *err)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < n_tails; i++) {
        int64_t left = g->tail[i].n - from;
        if (left > 0) rows += left < n ? left : n;
    }
    DQ_TRY(plan_begin(x, p, n_tails, rows, rows + g->n_req, err));
    for (int64_t i = 0; i < n_tails; i++) plan_tail(p, g, &g->tail[i], from, n);
    return DQ_OK;
}

/* Evicts in the sequences that have had `fed` ids of their tails and go on: whether one does depends on
 * nothing but itself. Later evictions are not part of what a context took. */
static dq_status evict_tails(kv_run *x, const group *g, int64_t n_tails, int64_t fed, dq_err *err)
{
    dq_evict_report report = dq_evict_report_none;
    double start = dq_seconds();
    int32_t *seq = dq_alloc(x->a, (size_t)n_tails, sizeof *seq, err);
    int32_t *prefix = dq_alloc(x->a, (size_t)n_tails, sizeof *prefix, err);
    dq_batch batch = {.seq = seq};
    if (!seq || !prefix) return err->code;
    for (int64_t i = 0; x->evictor && i < n_tails; i++) {
        const tail *t = &g->tail[i];
        if (t->n < fed || (t->rest && t->n == fed)) continue; /* a context is followed by rests */
        seq[batch.n_seq] = t->seq;
        prefix[batch.n_seq++] = (int32_t)(t->pos + fed);
    }
    if (batch.n_seq) DQ_TRY(dq_evictor_run(x->evictor, &batch, prefix, &report, err));
    x->work->seconds += dq_seconds() - start;
    return DQ_OK;
}

/* Feeds the tails, evicting in between. */
static dq_status run_tails(kv_run *x, const group *g, int64_t n_tails, double *logp, int32_t *top1,
                           dq_err *err)
{
    int64_t piece = piece_of(x), longest = 0;
    for (int64_t i = 0; i < n_tails; i++) {
        if (g->tail[i].n > longest) longest = g->tail[i].n;
    }
    for (int64_t from = 0; from < longest; from += piece) {
        dq_score_plan p;
        DQ_TRY(plan_tails(x, g, n_tails, &p, from, piece, err));
        DQ_TRY(dq_score_plan_items(&p, x->pass, logp, top1, x->work, err));
        DQ_TRY(evict_tails(x, g, n_tails, from + piece, err));
    }
    return DQ_OK;
}

/* Opens the contexts, one per item where its choices agree. Returns how many in *n. */
static dq_status open_contexts(kv_run *x, const group *g, int64_t *n, dq_err *err)
{
    const dq_requests *q = g->q;
    *n = 0;
    for (int64_t i = g->begin; i < g->end; i++) {
        bool shared = dq_score_same_context(q, i);
        for (int64_t k = q->at[i]; k < q->at[i + 1]; k++) {
            const dq_request *r = &q->req[k];
            int64_t at = k - q->at[g->begin];
            if (shared && k > q->at[i]) {
                g->context[at] = g->context[at - 1];
                continue;
            }
            g->context[at] = open_one(x, g->stem, err);
            if (g->context[at] < 0) return err->code;
            g->tail[(*n)++] = (tail){.seq = g->context[at],
                                     .ids = r->ctx,
                                     .n = r->n_ctx,
                                     .pos = g->trunk->n,
                                     .from = k,
                                     .to = shared ? q->at[i + 1] : k + 1};
        }
    }
    return DQ_OK;
}

/* A copy of its context for each rest. */
static dq_status open_rests(kv_run *x, const group *g, int64_t *n, dq_err *err)
{
    *n = 0;
    for (int64_t at = 0; at < g->n_req; at++) {
        const dq_request *r = &g->q->req[g->q->at[g->begin] + at];
        if (r->n_cont == 1) continue;
        int32_t copy = open_one(x, g->context[at], err);
        if (copy < 0) return err->code;
        g->tail[(*n)++] = (tail){.seq = copy,
                                 .ids = r->cont,
                                 .n = r->n_cont - 1,
                                 .pos = g->trunk->n + r->n_ctx,
                                 .rest = r};
    }
    return DQ_OK;
}

/* Contexts that start from nothing are what is compressed, in one pass. */
static dq_status run_contexts(kv_run *x, const group *g, double *logp, int32_t *top1, dq_err *err)
{
    dq_score_plan p;
    dq_kv_bytes floor;
    int64_t n = 0;
    if (g->stem < 0) DQ_TRY(dq_kv_held_floor(&floor, x->r, g->n_req, err));
    DQ_TRY(open_contexts(x, g, &n, err));
    if (g->stem >= 0) return run_tails(x, g, n, logp, top1, err);
    DQ_TRY(plan_tails(x, g, n, &p, 0, INT32_MAX, err));
    DQ_TRY(dq_score_plan_items(&p, x->pass, logp, top1, x->work, err));
    return compress(x, &p, &floor, err);
}

static dq_status score_group(kv_run *x, group *g, double *logp, int32_t *top1, dq_err *err)
{
    int64_t n;
    g->context = dq_alloc(x->a, (size_t)g->n_req, sizeof *g->context, err);
    g->tail = dq_alloc(x->a, (size_t)g->n_req, sizeof *g->tail, err);
    if (!g->context || !g->tail) return err->code;
    DQ_TRY(run_contexts(x, g, logp, top1, err));
    DQ_TRY(open_rests(x, g, &n, err));
    return run_tails(x, g, n, logp, top1, err);
}

/* Computes the trunk and compresses it, if the stem does not hold it yet. */
static dq_status grow(kv_run *x, dq_stem *stem, const dq_trunk *trunk, dq_err *err)
{
    dq_score_plan p;
    dq_kv_bytes floor;
    dq_mat hidden;
    if (stem->seq >= 0 && stem->trunk == trunk) {
        x->evictor = stem->evictor;
        return DQ_OK;
    }
    dq_stem_end(stem, x->r);
    DQ_TRY(evictor_begin(x, err));
    if (trunk->n == 0) return DQ_OK;
    stem->evictor = x->evictor; /* lives as long as the stem */
    DQ_TRY(dq_kv_held_floor(&floor, x->r, 1, err));
    stem->seq = dq_score_open(x->r, x->evictor, -1, err);
    if (stem->seq < 0) return err->code;
    DQ_TRY(plan_begin(x, &p, 1, trunk->n, 0, err));
    dq_score_plan_sequence(&p, stem->seq);
    dq_score_plan_rows(&p, trunk->ids, trunk->n, 0);
    DQ_TRY(dq_score_plan_pass(&p, x->pass, &hidden, x->work, err));
    DQ_TRY(compress(x, &p, &floor, err));
    stem->trunk = trunk;
    return DQ_OK;
}

dq_status dq_score_items_kv(dq_runner *r, const dq_pass *pass, const dq_kv_setting *kv,
                            const dq_requests *q, int64_t begin, int64_t end, dq_stem *stem,
                            double *logp, int32_t *top1, dq_work *work, dq_err *err)
{
    group g = {.q = q, .begin = begin, .end = end, .trunk = dq_requests_trunk(q, begin)};
    kv_run x;
    for (int64_t k = q->at[begin]; k < q->at[end]; k++) {
        g.n_req++;
        g.n_rows += g.trunk->n + dq_score_fed(&q->req[k]);
    }
    work->tokens += g.n_rows;
    if (run_begin(&x, r, pass, kv, 2 * g.n_req, work, err) == DQ_OK &&
        grow(&x, stem, g.trunk, err) == DQ_OK) {
        g.stem = stem->seq;
        score_group(&x, &g, logp, top1, err);
    }
    run_end(&x);
    if (x.evictor != stem->evictor) dq_evictor_free(x.evictor);
    if (err->code != DQ_OK) dq_stem_end(stem, r);
    return err->code;
}

/* ---- Windows ---- */

/* Ids from .. to - 1 of every window. */
static void plan_columns(const kv_run *x, dq_score_plan *p, const dq_window *w, int64_t from,
                         int64_t to)
{
    for (int64_t i = 0; i < x->n_seq; i++) {
        dq_score_plan_sequence(p, x->seq[i]);
        dq_score_plan_rows(p, w[i].ids + from, to - from, from);
    }
}

/* Rows from .. to - 1 of a window that predict something. */
static int64_t scored_of(const dq_window *w, int64_t from, int64_t to)
{
    return to < w->n ? to - from : to - from - 1 + w->past;
}

/* What they read, in every window. */
static dq_status count_columns(const kv_run *x, const dq_window *w, int64_t from, int64_t to,
                               dq_err *err)
{
    const int64_t n = scored_of(w, from, to);
    int32_t *pos = dq_alloc(x->a, (size_t)(to - from), sizeof *pos, err);
    if (!pos) return err->code;
    for (int64_t i = 0; i < n; i++) pos[i] = (int32_t)(from + i);
    for (int64_t i = 0; i < x->n_seq; i++)
        DQ_TRY(dq_kv_held_reads(&x->work->held, x->r, x->seq[i], pos, n, err));
    return DQ_OK;
}

/* Their final states. */
static dq_status gather_columns(const kv_run *x, dq_mat state, dq_mat hidden, const dq_window *w,
                                int64_t from, int64_t to, dq_err *err)
{
    dq_backend *b = dq_runner_backend(x->r);
    int64_t width = to - from, scored = dq_window_scored(w), n = scored_of(w, from, to);
    int64_t *index = dq_alloc(x->a, (size_t)width, sizeof *index, err);
    if (!index) return err->code;
    for (int64_t i = 0; i < x->n_seq && n > 0; i++) {
        dq_mat into = {.rows = n, .cols = state.cols};
        into.p = state.p + (i * scored + from - w->first) * state.cols;
        for (int64_t t = 0; t < n; t++) index[t] = i * width + t;
        b->ops->gather(b, into, hidden, index);
    }
    return dq_backend_sync(b, err);
}

static dq_status run_second(kv_run *x, const dq_window *w, dq_mat state, dq_err *err)
{
    int64_t piece = piece_of(x);
    for (int64_t from = w->first; from < w->n; from += piece) {
        int64_t to = w->n - from > piece ? from + piece : w->n;
        dq_score_plan p;
        dq_evict_report report = dq_evict_report_none; /* not part of what a context took */
        dq_mat hidden;
        DQ_TRY(plan_begin(x, &p, x->n_seq, x->n_seq * (to - from), 0, err));
        plan_columns(x, &p, w, from, to);
        DQ_TRY(dq_score_plan_pass(&p, x->pass, &hidden, x->work, err));
        DQ_TRY(gather_columns(x, state, hidden, w, from, to, err));
        DQ_TRY(count_columns(x, w, from, to, err));
        if (x->evictor && to < w->n) DQ_TRY(dq_score_plan_evict(&p, &report, x->work, err));
    }
    return DQ_OK;
}

/* The most likely ids and the targets' log-probabilities of all states at once: with many small pieces
 * the output head would be read for each of them. */
static dq_status answer(kv_run *x, const dq_window *w, dq_mat state, double *logp, int32_t *top1,
                        dq_err *err)
{
    dq_backend *b = dq_runner_backend(x->r);
    double start = dq_seconds();
    int64_t scored = dq_window_scored(w);
    int32_t *target = dq_alloc(x->a, (size_t)(x->n_seq * scored), sizeof *target, err);
    if (!target) return err->code;
    for (int64_t i = 0; i < x->n_seq; i++)
        memcpy(target + i * scored, w[i].ids + w[i].first + 1, (size_t)scored * sizeof *target);
    b->ops->logprob(b, logp, top1, state, &dq_runner_model(x->r)->head, target,
                    x->pass->math.linear);
    DQ_TRY(dq_backend_sync(b, err));
    x->work->seconds += dq_seconds() - start;
    return DQ_OK;
}

/* n windows w[], all of one shape. */
static dq_status score_windows(kv_run *x, const dq_window *w, int64_t n, dq_mat state, double *logp,
                               int32_t *top1, dq_err *err)
{
    dq_score_plan p;
    dq_kv_bytes floor;
    dq_mat hidden;
    DQ_TRY(evictor_begin(x, err));
    DQ_TRY(dq_kv_held_floor(&floor, x->r, n, err));
    while (x->n_seq < n) {
        if (open_one(x, -1, err) < 0) return err->code;
    }
    if (w->first > 0) {
        DQ_TRY(plan_begin(x, &p, n, n * w->first, 0, err));
        plan_columns(x, &p, w, 0, w->first);
        DQ_TRY(dq_score_plan_pass(&p, x->pass, &hidden, x->work, err));
        DQ_TRY(compress(x, &p, &floor, err));
    } else {
        x->work->held.missed += n;
    }
    DQ_TRY(run_second(x, w, state, err));
    return answer(x, w, state, logp, top1, err);
}

dq_status dq_score_windows_kv(dq_runner *r, const dq_pass *pass, const dq_kv_setting *kv,
                              const dq_windows *w, int64_t begin, int64_t end, dq_mat state,
                              double *logp, int32_t *top1, dq_work *work, dq_err *err)
{
    kv_run x;
    if (!dq_windows_alike(w, begin, end))
        return dq_fail(err, DQ_BUG, "windows of several shapes in one group");
    work->tokens += (end - begin) * w->win[begin].n;
    if (run_begin(&x, r, pass, kv, end - begin, work, err) == DQ_OK)
        score_windows(&x, &w->win[begin], end - begin, state, logp, top1, err);
    run_end(&x);
    dq_evictor_free(x.evictor);
    return err->code;
}
