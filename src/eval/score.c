/* score: see score.h. How a group of items is fed:
 *
 *   shared prefix | context | continuation          a request; only the continuation is scored
 *
 * The shared prefix is what several items begin with. It is computed once, in a sequence of its own that the
 * scorer keeps from group to group (the cached prefix). A first pass then appends each context to a copy of
 * it, once for all choices of an item; its last row answers for the first id of every choice. A second
 * pass appends the rest of each choice to a copy of its context. Choices that may not share, as the logit rounding
 * looks at the whole pass or truncation cut their contexts differently, are fed in one piece by the first pass.
 *
 * Each of these sequences is a `feed`: positions begin .. end - 1 of one request. What was cached first is what is
 * compressed: the shared prefix, or else the contexts. With kv->evict.every, later feeds run in pieces of
 * so many tokens, all feeds side by side, with an eviction after each piece.
 * SPDX-License-Identifier: MIT */
#include "eval/score.h"

#include "base/os.h"
#include "eval/pass_plan.h"

#include <math.h>
#include <string.h>

void dq_score_work_add(dq_score_work *into, const dq_score_work *from)
{
    into->tokens += from->tokens;
    into->computed += from->computed;
    into->seconds += from->seconds;
    dq_kv_cached_add(&into->cached, &from->cached);
}

/* ---- The scorer ---- */

dq_status dq_score_begin(dq_scorer *s, dq_runner *r, const dq_pass *pass, const dq_kv_spec *kv,
                         dq_err *err)
{
    *s = (dq_scorer){.r = r, .pass = *pass, .kv = kv, .cached = -1};
    if (!kv->evict.policy) return DQ_OK;
    return dq_evictor_new(&s->evictor, r, kv, pass, err);
}

static void drop_prefix(dq_scorer *s)
{
    if (s->cached >= 0) dq_score_close(s, &s->cached, 1);
    s->cached = -1;
    s->prefix = NULL;
}

void dq_score_end(dq_scorer *s)
{
    if (!s->r) return;
    drop_prefix(s);
    dq_evictor_free(s->evictor);
    *s = (dq_scorer){0};
}

int32_t dq_score_open(dq_scorer *s, int32_t parent, dq_err *err)
{
    dq_backend *b = dq_runner_backend(s->r);
    dq_kv *kv = dq_runner_kv(s->r);
    int32_t seq = parent < 0 ? b->ops->kv_seq_new(b, kv) : b->ops->kv_fork(b, kv, parent);
    if (seq < 0) {
        dq_backend_sync(b, err);
        dq_fail(err, DQ_RESOURCE, "out of memory for the KV cache");
        return -1;
    }
    if (parent >= 0 && s->evictor && dq_evictor_fork(s->evictor, parent, seq, err) != DQ_OK) {
        dq_score_close(s, &seq, 1);
        return -1;
    }
    return seq;
}

void dq_score_close(dq_scorer *s, const int32_t *seq, int64_t n)
{
    dq_backend *b = dq_runner_backend(s->r);
    for (int64_t i = 0; i < n; i++) {
        if (s->evictor) dq_evictor_forget(s->evictor, seq[i]);
        b->ops->kv_seq_free(b, dq_runner_kv(s->r), seq[i]);
    }
}

int64_t dq_score_piece(const dq_scorer *s)
{
    const int64_t every = s->evictor ? s->kv->evict.every : 0;
    return every > 0 && every < INT32_MAX ? every : INT32_MAX;
}

/* ---- Groups ---- */

bool dq_score_shares(const dq_pass *pass, const dq_kv_spec *kv)
{
    return !dq_kv_spec_is_plain(kv) || !dq_logit_ties_rows(pass->logit);
}

int64_t dq_score_rows(const dq_runner *r, bool shared)
{
    enum { SHARED_FACTOR = 3 };
    return dq_runner_rows(r, DQ_SCORE_ROWS) * (shared ? SHARED_FACTOR : 1);
}

int64_t dq_score_fed(const dq_request *r)
{
    return r->n_ctx + r->n_cont - 1;
}

static int64_t item_rows(const dq_requests *q, int64_t item, bool shared)
{
    int64_t n = 0, prefix = shared ? 0 : dq_items_shared_prefix(q, item)->n;
    for (int64_t k = q->at[item]; k < q->at[item + 1]; k++) n += prefix + dq_score_fed(&q->req[k]);
    return n;
}

/* Whether all choices of an item have one context; truncation may have cut them differently. */
static bool same_context(const dq_requests *q, int64_t item)
{
    const dq_request *a = &q->req[q->at[item]];
    for (int64_t k = q->at[item] + 1; k < q->at[item + 1]; k++) {
        const dq_request *b = &q->req[k];
        if (a->n_ctx != b->n_ctx ||
            (a->ctx != b->ctx && memcmp(a->ctx, b->ctx, (size_t)a->n_ctx * sizeof *a->ctx) != 0))
            return false;
    }
    return true;
}

int64_t dq_score_group(const dq_requests *q, int64_t begin, int64_t max_rows, bool shared)
{
    const int64_t last = dq_items_shared_prefix(q, begin)->end;
    const bool same = same_context(q, begin);
    int64_t end = begin + 1, rows = item_rows(q, begin, shared);
    for (; end < q->n_items && end < last && same_context(q, end) == same; end++) {
        rows += item_rows(q, end, shared);
        if (rows > max_rows) break;
    }
    return end;
}

/* ---- Feeds ---- */

/* What is fed to one sequence: positions begin .. end - 1 of a request, counted from the shared prefix on. */
typedef struct feed {
    int32_t seq;
    int64_t begin, end;
    int64_t req,
        req_end; /* requests whose first scored id is asked for after their common context */
} feed;

/* A group of items on its way. */
typedef struct group {
    dq_scorer *s;
    const dq_requests *q;
    int64_t begin, end; /* items */
    int64_t first, n;   /* requests */
    const dq_shared_prefix *prefix;
    bool plain, shares; /* the cache; see dq_score_shares */
    bool whole;         /* some choice is fed in one piece */
    dq_arena *a;
    int32_t *seq; /* [n_seq] open: contexts first, then their copies */
    int64_t n_seq;
    /* [n] sequence of each request's context; -1: the request was fed in one piece */
    int32_t *context;
    feed *feed; /* [n_feeds] of the pass at hand */
    int64_t n_feeds;
    dq_scores out;
} group;

/* Position of a request's first scored id. */
static int64_t scored_at(const group *g, const dq_request *r)
{
    return g->prefix->n + r->n_ctx;
}

/* Of ids that stand at positions at .. at + n - 1, those from .. to - 1. */
static void plan_ids(dq_pass_plan *p, const int32_t *ids, int64_t n, int64_t at, int64_t from,
                     int64_t to)
{
    if (from < at) from = at;
    if (to > at + n) to = at + n;
    if (from < to) dq_pass_plan_rows(p, ids + (from - at), to - from, from);
}

/* Up to n tokens of a feed, from its id `skip` on. */
static void plan_feed(dq_pass_plan *p, const group *g, const feed *f, int64_t skip, int64_t n)
{
    const dq_request *r = &g->q->req[f->req];
    const int64_t scored = scored_at(g, r), row = p->n_rows, from = f->begin + skip;
    const int64_t to = f->end - from < n ? f->end : from + n;
    if (from >= to) return;
    dq_pass_plan_sequence(p, f->seq);
    plan_ids(p, g->prefix->ids, g->prefix->n, 0, from, to);
    plan_ids(p, r->ctx, r->n_ctx, g->prefix->n, from, to);
    plan_ids(p, r->cont, r->n_cont - 1, scored, from, to);
    for (int64_t pos = from < scored - 1 ? scored - 1 : from; pos < to; pos++) {
        const int64_t i = pos + 1 - scored; /* of the id that is asked for */
        for (int64_t k = f->req; i == 0 && k < f->req_end; k++)
            dq_pass_plan_ask(p, row + pos - from, g->q->req[k].cont[0], g->q->req[k].value);
        if (i > 0) dq_pass_plan_ask(p, row + pos - from, r->cont[i], r->value + i);
    }
}

/* A pass of up to n tokens of every feed, from its id `skip` on. */
static dq_status run_piece(group *g, dq_pass_plan *p, int64_t skip, int64_t n, dq_err *err)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < g->n_feeds; i++) {
        const int64_t left = g->feed[i].end - g->feed[i].begin - skip;
        if (left > 0) rows += left < n ? left : n;
    }
    DQ_TRY(dq_pass_plan_begin(p, g->s, g->a, g->n_feeds, rows, rows + g->n, err));
    for (int64_t i = 0; i < g->n_feeds; i++) plan_feed(p, g, &g->feed[i], skip, n);
    return dq_pass_plan_score(p, g->out, err);
}

/* Evicts in the sequences that have had `fed` ids of their feeds and go on: whether one does depends on
 * nothing but itself. Later evictions are not part of what a context took. */
static dq_status evict_feeds(const group *g, int64_t fed, dq_err *err)
{
    dq_scorer *s = g->s;
    dq_evict_report report = dq_evict_report_none;
    const double start = dq_os_seconds();
    if (!s->evictor) return DQ_OK;
    int32_t *seq = dq_alloc(g->a, (size_t)g->n_feeds, sizeof *seq, err);
    int32_t *next = dq_alloc(g->a, (size_t)g->n_feeds, sizeof *next, err);
    dq_batch batch = {.seq = seq};
    if (!seq || !next) return err->code;
    for (int64_t i = 0; i < g->n_feeds; i++) {
        const feed *f = &g->feed[i];
        const int64_t left = f->end - f->begin - fed;
        const bool is_context = f->begin < scored_at(g, &g->q->req[f->req]);
        if (left < 0 || (left == 0 && !is_context)) continue; /* a context is followed by rests */
        seq[batch.n_seq] = f->seq;
        next[batch.n_seq++] = (int32_t)(f->begin + fed);
    }
    if (batch.n_seq) DQ_TRY(dq_evictor_run(s->evictor, &batch, next, &report, err));
    s->work.computed += report.second_pass;
    s->work.seconds += dq_os_seconds() - start;
    return DQ_OK;
}

/* Runs all feeds, evicting in between. */
static dq_status run_feeds(group *g, dq_err *err)
{
    const int64_t piece = dq_score_piece(g->s);
    int64_t longest = 0;
    for (int64_t i = 0; i < g->n_feeds; i++) {
        const int64_t n = g->feed[i].end - g->feed[i].begin;
        if (n > longest) longest = n;
    }
    for (int64_t skip = 0; skip < longest; skip += piece) {
        dq_pass_plan p;
        DQ_TRY(run_piece(g, &p, skip, piece, err));
        DQ_TRY(evict_feeds(g, skip + piece, err));
    }
    return DQ_OK;
}

/* ---- Items ---- */

static int32_t open_sequence(group *g, int32_t parent, dq_err *err)
{
    int32_t seq = dq_score_open(g->s, parent, err);
    if (seq >= 0) g->seq[g->n_seq++] = seq;
    return seq;
}

/* An item's contexts: one where its choices agree. A plain cache gains nothing from a context that one choice
 * alone has: such choices are fed in one piece. */
static dq_status open_item(group *g, int64_t item, dq_err *err)
{
    const dq_requests *q = g->q;
    const bool same = same_context(q, item), whole = g->plain && !(g->shares && same);
    g->whole = g->whole || whole;
    for (int64_t k = q->at[item]; k < q->at[item + 1]; k++) {
        const dq_request *r = &q->req[k];
        int32_t *context = &g->context[k - g->first];
        if (same && !whole && k > q->at[item]) {
            *context = context[-1];
            continue;
        }
        const int32_t seq = open_sequence(g, g->s->cached, err);
        if (seq < 0) return err->code;
        *context = whole ? -1 : seq;
        g->feed[g->n_feeds++] = (feed){.seq = seq,
                                       .begin = g->s->cached < 0 ? 0 : g->prefix->n,
                                       .end = scored_at(g, r) + (whole ? r->n_cont - 1 : 0),
                                       .req = k,
                                       .req_end = same && !whole ? q->at[item + 1] : k + 1};
    }
    return DQ_OK;
}

/* The first pass. Contexts that start from nothing are what is compressed and measured. */
static dq_status run_contexts(group *g, dq_err *err)
{
    dq_scorer *s = g->s;
    dq_pass_plan p;
    dq_kv_bytes floor;
    if (s->cached < 0) DQ_TRY(dq_kv_cached_floor(&floor, s->r, g->n, err));
    for (int64_t i = g->begin; i < g->end; i++) DQ_TRY(open_item(g, i, err));
    if (s->cached < 0 && !g->whole) {
        DQ_TRY(run_piece(g, &p, 0, INT32_MAX, err));
        return dq_pass_plan_compress(&p, &floor, err);
    }
    if (g->plain) s->work.cached.missed += g->n_feeds;
    return run_feeds(g, err);
}

/* The second pass: a copy of its context for the rest of each choice. */
static dq_status run_rests(group *g, dq_err *err)
{
    g->n_feeds = 0;
    for (int64_t i = 0; i < g->n; i++) {
        const dq_request *r = &g->q->req[g->first + i];
        if (g->context[i] < 0 || r->n_cont == 1) continue;
        const int32_t copy = open_sequence(g, g->context[i], err);
        if (copy < 0) return err->code;
        g->feed[g->n_feeds++] = (feed){.seq = copy,
                                       .begin = scored_at(g, r),
                                       .end = scored_at(g, r) + r->n_cont - 1,
                                       .req = g->first + i,
                                       .req_end = g->first + i + 1};
    }
    return run_feeds(g, err);
}

/* Makes the scorer hold the group's shared prefix, if it does not yet. */
static dq_status cache_prefix(group *g, dq_err *err)
{
    dq_scorer *s = g->s;
    const dq_shared_prefix *prefix = g->prefix;
    dq_pass_plan p;
    dq_kv_bytes floor;
    dq_mat hidden;
    if (s->cached >= 0 && s->prefix == prefix) return DQ_OK;
    drop_prefix(s);
    if (prefix->n == 0) return DQ_OK;
    if (!g->plain) DQ_TRY(dq_kv_cached_floor(&floor, s->r, 1, err));
    DQ_TRY(dq_pass_plan_begin(&p, s, g->a, 1, prefix->n, 0, err));
    s->cached = dq_score_open(s, -1, err);
    if (s->cached < 0) return err->code;
    s->prefix = prefix;
    dq_pass_plan_sequence(&p, s->cached);
    dq_pass_plan_rows(&p, prefix->ids, prefix->n, 0);
    DQ_TRY(dq_pass_plan_run(&p, &hidden, err));
    return g->plain ? DQ_OK : dq_pass_plan_compress(&p, &floor, err);
}

static dq_status score_group(group *g, dq_err *err)
{
    const size_t n = (size_t)g->n;
    g->seq = dq_alloc(g->a, 2 * n, sizeof *g->seq, err);
    g->context = dq_alloc(g->a, n, sizeof *g->context, err);
    g->feed = dq_alloc(g->a, n, sizeof *g->feed, err);
    if (err->code != DQ_OK) return err->code;
    if (g->shares) DQ_TRY(cache_prefix(g, err));
    DQ_TRY(run_contexts(g, err));
    return run_rests(g, err);
}

dq_status dq_score_items(dq_scorer *s, const dq_requests *q, int64_t begin, int64_t end,
                         dq_scores out, dq_err *err)
{
    group g = {.s = s,
               .q = q,
               .begin = begin,
               .end = end,
               .first = q->at[begin],
               .n = q->at[end] - q->at[begin],
               .prefix = dq_items_shared_prefix(q, begin),
               .plain = dq_kv_spec_is_plain(s->kv),
               .shares = dq_score_shares(&s->pass, s->kv),
               .out = out,
               .a = dq_arena_new()};
    if (!g.a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    for (int64_t k = q->at[begin]; k < q->at[end]; k++)
        s->work.tokens += g.prefix->n + dq_score_fed(&q->req[k]);
    score_group(&g, err);
    dq_score_close(s, g.seq, g.n_seq);
    dq_arena_free(g.a);
    if (err->code != DQ_OK) drop_prefix(s);
    return err->code;
}

dq_status dq_score_check_logp(const dq_model *m, const double *logp, int64_t n, dq_err *err)
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
