/* A pass_batch has the arrays of a ragged batch, filled from left to right: cu[i] is the first row
 * of sequence i. Requested rows are gathered out of the pass's final states, so that the output
 * head is read once for all of them and for no other row.
 * SPDX-License-Identifier: MIT */
#include "eval/score.h"

#include "base/os.h"
#include "engine/runner.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

typedef struct pass_batch {
    dq_scorer *s;
    dq_arena *a;
    const dq_attention_spans *spans; /* [n_layers] that the pass sums up; NULL: none */
    int64_t *cu;
    int32_t *seq, *ids, *pos;
    int n_seq;
    int64_t n_rows;
    int64_t *row;    /* [n_requested] */
    int32_t *target; /* [n_requested] */
    int64_t *value;  /* [n_requested] where the answer goes */
    int64_t n_requested;
} pass_batch;

/* Makes an empty batch for so many sequences, rows and requested rows. */
static dq_status batch_begin(pass_batch *p, dq_scorer *s, dq_arena *a, int64_t seqs, int64_t rows,
                             int64_t requested, dq_err *err)
{
    *p = (pass_batch){.s = s, .a = a};
    p->cu = dq_alloc(a, (size_t)seqs + 1, sizeof *p->cu, err);
    p->seq = dq_alloc(a, (size_t)seqs, sizeof *p->seq, err);
    p->ids = dq_alloc(a, (size_t)rows, sizeof *p->ids, err);
    p->pos = dq_alloc(a, (size_t)rows, sizeof *p->pos, err);
    p->row = dq_alloc(a, (size_t)requested, sizeof *p->row, err);
    p->target = dq_alloc(a, (size_t)requested, sizeof *p->target, err);
    p->value = dq_alloc(a, (size_t)requested, sizeof *p->value, err);
    return err->code;
}

static void batch_clear(pass_batch *p)
{
    p->n_seq = 0;
    p->n_rows = p->n_requested = 0;
}

/* Adds a sequence to the pass; batch_rows adds n rows to the last sequence. */
static void batch_sequence(pass_batch *p, int32_t seq)
{
    p->seq[p->n_seq++] = seq;
    p->cu[p->n_seq] = p->n_rows;
}

static void batch_rows(pass_batch *p, const int32_t *ids, int64_t n, int64_t pos)
{
    if (n > 0) memcpy(p->ids + p->n_rows, ids, (size_t)n * sizeof *ids);
    for (int64_t i = 0; i < n; i++) p->pos[p->n_rows + i] = (int32_t)(pos + i);
    p->n_rows += n;
    p->cu[p->n_seq] = p->n_rows;
}

/* Requested rows of a sequence must ascend. */
static void batch_ask(pass_batch *p, int64_t row, int32_t target, int64_t value)
{
    p->row[p->n_requested] = row;
    p->target[p->n_requested] = target;
    p->value[p->n_requested++] = value;
}

static dq_batch batch_of(const pass_batch *p)
{
    return (dq_batch){.n_seq = p->n_seq,
                      .n_rows = p->n_rows,
                      .cu_rows = p->cu,
                      .seq = p->seq,
                      .ids = p->ids,
                      .pos = p->pos};
}

/* Runs the pass, which the scorer's evictor observes. *hidden as in dq_runner_pass. */
static dq_status batch_run(pass_batch *p, dq_mat *hidden, dq_err *err)
{
    dq_scorer *s = p->s;
    dq_batch batch = batch_of(p);
    dq_pass pass = s->pass;
    dq_backend *b = dq_runner_backend(s->r);
    const double start = dq_backend_seconds(b);
    pass.spans = p->spans;
    DQ_TRY(dq_os_check_stop(err));
    if (s->evictor) DQ_TRY(dq_evictor_watch(s->evictor, &batch, &pass.columns, err));
    DQ_TRY(dq_runner_pass(s->r, &batch, &pass, hidden, err));
    s->work.computed += p->n_rows;
    s->work.seconds += dq_backend_seconds(b) - start;
    return DQ_OK;
}

/* Runs the pass; final states of requested rows go to `state`, results to `out` in order. */
static dq_status batch_answer(pass_batch *p, dq_mat state, dq_scores out, dq_err *err)
{
    dq_scorer *s = p->s;
    dq_backend *b = dq_runner_backend(s->r);
    dq_mat hidden;
    DQ_TRY(batch_run(p, &hidden, err));
    /* Keys that the requested rows read. */
    dq_runner *r = p->s->r;
    int32_t *pos;
    if (dq_kv_has_codes(dq_runner_kv_spec(r))) {
        pos = dq_block_new((size_t)p->n_requested, sizeof *pos, err);
        for (int64_t k = 0; pos && k < p->n_requested; k++) pos[k] = p->pos[p->row[k]];
        for (int64_t i = 0, k = 0; pos && err->code == DQ_OK && i < p->n_seq; i++) {
            const int64_t from = k;
            while (k < p->n_requested && p->row[k] < p->cu[i + 1]) k++;
            dq_kv_cached_reads(&p->s->work.cached, r, p->seq[i], pos + from, k - from, err);
        }
        dq_block_free(pos);
        if (err->code != DQ_OK) return err->code;
    }
    const double start = dq_backend_seconds(b);
    b->ops->gather(b, state, hidden, p->row);
    b->ops->logprob(b, out.logp, out.top1, state, &dq_runner_model(s->r)->head, p->target,
                    s->pass.math.linear);
    if (dq_backend_sync(b, err) != DQ_OK) return dq_runner_advise(s->r, p->n_rows, err);
    s->work.seconds += dq_backend_seconds(b) - start;
    return DQ_OK;
}

/* Does nothing without rows; results go to `out` by `value`. */
static dq_status batch_score(pass_batch *p, dq_scores out, dq_err *err)
{
    dq_backend *b = dq_runner_backend(p->s->r);
    dq_mat state = {0};
    if (p->n_rows == 0) return DQ_OK;
    if (p->n_requested == 0) return batch_run(p, &state, err);
    dq_scores requested = {
        .logp = dq_alloc(p->a, (size_t)p->n_requested, sizeof *requested.logp, err),
        .top1 = dq_alloc(p->a, (size_t)p->n_requested, sizeof *requested.top1, err)};
    if (err->code == DQ_OK) {
        const int64_t rows = p->n_requested;
        dq_mat m = {.rows = rows, .cols = dq_runner_model(p->s->r)->dim};
        m.p = b->ops->alloc(b, (size_t)(m.rows * m.cols) * sizeof *m.p);
        if (!m.p) {
            dq_backend_sync(b, err);
            dq_fail(err, DQ_RESOURCE, "out of memory for %lld final states", (long long)rows);
        }
        state = m;
    }
    if (err->code == DQ_OK && batch_answer(p, state, requested, err) == DQ_OK) {
        for (int64_t i = 0; i < p->n_requested; i++) {
            out.logp[p->value[i]] = requested.logp[i];
            out.top1[p->value[i]] = requested.top1[i];
        }
    }
    b->ops->free(b, state.p);
    return err->code;
}

/* After a pass: evicts in its sequences, if there is an evictor, and measures them as contexts
 * alone in the cache. floor: see dq_kv_cached_floor; NULL: no measurement. */
static dq_status batch_compress(const pass_batch *p, const dq_kv_bytes *floor, dq_err *err)
{
    dq_scorer *s = p->s;
    const dq_batch batch = batch_of(p);
    dq_evict_report report = dq_evict_report_none;
    const dq_backend *b = dq_runner_backend(s->r);
    const double start = dq_backend_seconds(b);
    /* [n_seq] position of each sequence's next row, 0 without rows; a block. */
    int32_t *next = dq_block_new((size_t)p->n_seq, sizeof *next, err);
    for (int i = 0; next && i < p->n_seq; i++)
        next[i] = p->cu[i + 1] > p->cu[i] ? p->pos[p->cu[i + 1] - 1] + 1 : 0;
    if (!next) return err->code;
    if (s->evictor) {
        dq_evictor_run(s->evictor, &batch, next, &report, err);
        s->work.computed += report.second_pass;
        s->work.seconds += dq_backend_seconds(b) - start;
    }
    if (floor && err->code == DQ_OK) {
        if (s->evictor) dq_kv_cached_report(&s->work.cached, &report, p->n_seq);
        dq_kv_cached_measure(&s->work.cached, s->r, s->kv, floor, p->seq, next, p->n_seq);
    }
    dq_block_free(next);
    return err->code;
}

/* How a group of items is fed:  shared prefix | context | continuation          a request; only the
 * continuation is scored  The shared prefix is what several items begin with. It is computed once,
 * in a sequence of its own that the scorer keeps from group to group (the cached prefix). A first
 * pass then appends each context to a copy of it, once for all choices of an item; its last row
 * answers for the first id of every choice. A second pass appends the rest of each choice to a copy
 * of its context. Choices that may not share, as the logit rounding looks at the whole pass or
 * truncation cut their contexts differently, are fed in one piece by the first pass.  Each of these
 * sequences is a `feed`: positions begin .. end - 1 of one request. What was cached first is what
 * is compressed: the shared prefix, or else the contexts. With kv->evict.every, later feeds run in
 * pieces of so many tokens, all feeds side by side, with an eviction after each piece. */

static_assert(offsetof(dq_kv_cached, gap_min) == DQ_KV_COUNTS * sizeof(int64_t), "counts alone");

int64_t *dq_kv_cached_count(dq_kv_cached *c, int i)
{
    return (int64_t *)(void *)((char *)c + (size_t)i * sizeof(int64_t));
}

/* Adds sign times the counts. */
static void kv_cached_add(dq_kv_cached *into, dq_kv_cached from, int sign)
{
    if (from.evicted && (!into->evicted || from.gap_min < into->gap_min))
        into->gap_min = from.gap_min;
    for (int i = 0; i < DQ_KV_COUNTS; i++)
        *dq_kv_cached_count(into, i) += sign * *dq_kv_cached_count(&from, i);
}

void dq_score_work_add(dq_score_work *into, const dq_score_work *from)
{
    into->tokens += from->tokens;
    into->computed += from->computed;
    into->seconds += from->seconds;
    kv_cached_add(&into->cached, from->cached, 1);
}

double dq_score_rate(const dq_score_work *w)
{
    return w->seconds > 0 ? (double)w->computed / w->seconds : (double)NAN;
}

dq_status dq_score_begin(dq_scorer *s, dq_runner *r, const dq_pass *pass, const dq_kv_spec *kv,
                         dq_err *err)
{
    *s = (dq_scorer){.r = r, .pass = *pass, .kv = kv, .cached = -1};
    if (!kv->evict.policy) return DQ_OK;
    return dq_evictor_new(&s->evictor, r, kv, pass, err);
}

static void close_seqs(dq_scorer *s, const int32_t *seq, int64_t n)
{
    dq_backend *b = dq_runner_backend(s->r);
    for (int64_t i = 0; i < n; i++) {
        if (s->evictor) dq_evictor_forget(s->evictor, seq[i]);
        b->ops->kv_seq_free(b, dq_runner_kv(s->r), seq[i]);
    }
}

static void drop_prefix(dq_scorer *s)
{
    if (s->cached >= 0) close_seqs(s, &s->cached, 1);
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

/* Opens an empty sequence, or a copy of `parent` unless negative. -1: see err. */
static int32_t open_seq(dq_scorer *s, int32_t parent, dq_err *err)
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
        close_seqs(s, &seq, 1);
        return -1;
    }
    return seq;
}

/* Tokens between two evictions after the context: kv->evict.every, or INT32_MAX without further
 * evictions. */
static int64_t piece_of(const dq_scorer *s)
{
    const int64_t every = s->evictor ? s->kv->evict.every : 0;
    return every > 0 && every < INT32_MAX ? every : INT32_MAX;
}

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

/* Truncation may have cut contexts of choices differently. */
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

/* Positions begin .. end - 1 of a request, from the shared prefix on, for one sequence. */
typedef struct feed {
    int32_t seq;
    int64_t begin, end;
    int64_t req,
        req_end; /* requests whose first scored id is asked for after their common context */
} feed;

typedef struct pass_group {
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
    /* [n] sequence of each request's context; -1: fed in one piece */
    int32_t *context;
    feed *feed; /* [n_feeds] of the pass at hand */
    int64_t n_feeds;
    dq_scores out;
} pass_group;

static int64_t scored_at(const pass_group *g, const dq_request *r)
{
    return g->prefix->n + r->n_ctx;
}

/* Of ids at positions at .. at + n - 1, plans those in from .. to - 1. */
static void batch_ids(pass_batch *p, const int32_t *ids, int64_t n, int64_t at, int64_t from,
                      int64_t to)
{
    if (from < at) from = at;
    if (to > at + n) to = at + n;
    if (from < to) batch_rows(p, ids + (from - at), to - from, from);
}

static void batch_feed(pass_batch *p, const pass_group *g, const feed *f, int64_t skip, int64_t n)
{
    const dq_request *r = &g->q->req[f->req];
    const int64_t scored = scored_at(g, r), row = p->n_rows, from = f->begin + skip;
    const int64_t to = f->end - from < n ? f->end : from + n;
    if (from >= to) return;
    batch_sequence(p, f->seq);
    batch_ids(p, g->prefix->ids, g->prefix->n, 0, from, to);
    batch_ids(p, r->ctx, r->n_ctx, g->prefix->n, from, to);
    batch_ids(p, r->cont, r->n_cont - 1, scored, from, to);
    for (int64_t pos = from < scored - 1 ? scored - 1 : from; pos < to; pos++) {
        const int64_t i = pos + 1 - scored; /* of the id that is asked for */
        for (int64_t k = f->req; i == 0 && k < f->req_end; k++)
            batch_ask(p, row + pos - from, g->q->req[k].cont[0], g->q->req[k].value);
        if (i > 0) batch_ask(p, row + pos - from, r->cont[i], r->value + i);
    }
}

/* One pass with up to n tokens of every feed, from its token `skip` on. */
static dq_status run_piece(pass_group *g, pass_batch *p, int64_t skip, int64_t n, dq_err *err)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < g->n_feeds; i++) {
        const int64_t left = g->feed[i].end - g->feed[i].begin - skip;
        if (left > 0) rows += left < n ? left : n;
    }
    DQ_TRY(batch_begin(p, g->s, g->a, g->n_feeds, rows, rows + g->n, err));
    for (int64_t i = 0; i < g->n_feeds; i++) batch_feed(p, g, &g->feed[i], skip, n);
    return batch_score(p, g->out, err);
}

static dq_status run_feeds(pass_group *g, dq_err *err)
{
    const int64_t piece = piece_of(g->s);
    int64_t longest = 0;
    for (int64_t i = 0; i < g->n_feeds; i++) {
        const int64_t n = g->feed[i].end - g->feed[i].begin;
        if (n > longest) longest = n;
    }
    for (int64_t skip = 0; skip < longest; skip += piece) {
        pass_batch p;
        DQ_TRY(run_piece(g, &p, skip, piece, err));
        /* Evicts in sequences that have had `fed` tokens and go on; each sequence decides by
         * itself. Later evictions do not count as cost of a context. */
        const int64_t fed = skip + piece;
        dq_scorer *s = g->s;
        dq_evict_report report = dq_evict_report_none;
        const dq_backend *b = dq_runner_backend(s->r);
        const double start = dq_backend_seconds(b);
        if (s->evictor) {
            int32_t *seq = dq_alloc(g->a, (size_t)g->n_feeds, sizeof *seq, err);
            int32_t *next = dq_alloc(g->a, (size_t)g->n_feeds, sizeof *next, err);
            dq_batch batch = {.seq = seq};
            if (!seq || !next) return err->code;
            for (int64_t i = 0; i < g->n_feeds; i++) {
                const feed *f = &g->feed[i];
                const int64_t left = f->end - f->begin - fed;
                const bool is_context = f->begin < scored_at(g, &g->q->req[f->req]);
                if (left < 0 || (left == 0 && !is_context))
                    continue; /* a context is followed by rests */
                seq[batch.n_seq] = f->seq;
                next[batch.n_seq++] = (int32_t)(f->begin + fed);
            }
            if (batch.n_seq) DQ_TRY(dq_evictor_run(s->evictor, &batch, next, &report, err));
            s->work.computed += report.second_pass;
            s->work.seconds += dq_backend_seconds(b) - start;
        }
    }
    return DQ_OK;
}

static int32_t open_sequence(pass_group *g, int32_t parent, dq_err *err)
{
    int32_t seq = open_seq(g->s, parent, err);
    if (seq >= 0) g->seq[g->n_seq++] = seq;
    return seq;
}

/* In the first pass contexts that start from nothing are compressed and measured. */
static dq_status run_contexts(pass_group *g, dq_err *err)
{
    dq_scorer *s = g->s;
    pass_batch p;
    dq_kv_bytes floor;
    if (s->cached < 0) DQ_TRY(dq_kv_cached_floor(&floor, s->r, g->n, err));
    for (int64_t i = g->begin; i < g->end; i++) {
        /* Choices that agree share a context. With a plain cache a context of a single choice gains
         * nothing, so that is fed in one piece. */
        const dq_requests *q = g->q;
        const bool same = same_context(q, i), whole = g->plain && !(g->shares && same);
        g->whole = g->whole || whole;
        for (int64_t k = q->at[i]; k < q->at[i + 1]; k++) {
            const dq_request *r = &q->req[k];
            int32_t *context = &g->context[k - g->first];
            if (same && !whole && k > q->at[i]) {
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
                                           .req_end = same && !whole ? q->at[i + 1] : k + 1};
        }
    }
    if (s->cached < 0 && !g->whole) {
        DQ_TRY(run_piece(g, &p, 0, INT32_MAX, err));
        return batch_compress(&p, &floor, err);
    }
    if (g->plain) s->work.cached.missed += g->n_feeds;
    return run_feeds(g, err);
}

static dq_status cache_prefix(pass_group *g, dq_err *err)
{
    dq_scorer *s = g->s;
    const dq_shared_prefix *prefix = g->prefix;
    pass_batch p;
    dq_kv_bytes floor;
    dq_mat hidden;
    if (s->cached >= 0 && s->prefix == prefix) return DQ_OK;
    drop_prefix(s);
    if (prefix->n == 0) return DQ_OK;
    if (!g->plain) DQ_TRY(dq_kv_cached_floor(&floor, s->r, 1, err));
    DQ_TRY(batch_begin(&p, s, g->a, 1, prefix->n, 0, err));
    s->cached = open_seq(s, -1, err);
    if (s->cached < 0) return err->code;
    s->prefix = prefix;
    batch_sequence(&p, s->cached);
    batch_rows(&p, prefix->ids, prefix->n, 0);
    DQ_TRY(batch_run(&p, &hidden, err));
    return g->plain ? DQ_OK : batch_compress(&p, &floor, err);
}

static dq_status score_group(pass_group *g, dq_err *err)
{
    const size_t n = (size_t)g->n;
    g->seq = dq_alloc(g->a, 2 * n, sizeof *g->seq, err);
    g->context = dq_alloc(g->a, n, sizeof *g->context, err);
    g->feed = dq_alloc(g->a, n, sizeof *g->feed, err);
    if (err->code != DQ_OK) return err->code;
    if (g->shares) DQ_TRY(cache_prefix(g, err));
    DQ_TRY(run_contexts(g, err));
    /* In the second pass each choice's rest follows a copy of its context. */
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

dq_status dq_score_items(dq_scorer *s, const dq_requests *q, int64_t begin, int64_t end,
                         dq_scores out, dq_err *err)
{
    pass_group g = {.s = s,
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
    close_seqs(s, g.seq, g.n_seq);
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

/* With a plain cache all windows run in one pass. With a compressed one they run side by side:
 * first their contexts, which are then compressed, then the rest in pieces of kv->evict.every
 * tokens with an eviction after each. Final states are gathered as one pass would give them, and
 * the output head is read once. */

typedef struct window_group {
    dq_scorer *s;
    dq_arena *a;
    const dq_window *w; /* [n] */
    int64_t n, rows;    /* ids of all windows */
    int64_t scored;
    int32_t *seq; /* [n_seq] open */
    int64_t n_seq;
    dq_mat state;
    dq_scores out;
} window_group;

static dq_status open_sequences(window_group *g, dq_err *err)
{
    g->seq = dq_alloc(g->a, (size_t)g->n, sizeof *g->seq, err);
    while (g->seq && g->n_seq < g->n) {
        const int32_t seq = open_seq(g->s, -1, err);
        if (seq < 0) break;
        g->seq[g->n_seq++] = seq;
    }
    return err->code;
}

static dq_status score_whole(window_group *g, dq_err *err)
{
    pass_batch p;
    DQ_TRY(batch_begin(&p, g->s, g->a, g->n, g->rows, g->scored, err));
    DQ_TRY(open_sequences(g, err));
    for (int64_t i = 0; i < g->n; i++) {
        const dq_window *w = &g->w[i];
        const int64_t base = p.n_rows;
        batch_sequence(&p, g->seq[i]);
        batch_rows(&p, w->ids, w->n, 0);
        for (int64_t t = w->first; t + 1 < w->n + w->past; t++)
            batch_ask(&p, base + t, w->ids[t + 1], 0);
    }
    g->s->work.cached.missed += g->n;
    return batch_answer(&p, g->state, g->out, err);
}

static dq_status batch_columns(const window_group *g, pass_batch *p, int64_t from, int64_t to,
                               dq_err *err)
{
    DQ_TRY(batch_begin(p, g->s, g->a, g->n, g->n * (to - from), 0, err));
    for (int64_t i = 0; i < g->n; i++) {
        batch_sequence(p, g->seq[i]);
        batch_rows(p, g->w[i].ids + from, to - from, from);
    }
    return DQ_OK;
}

/* Rows from .. to - 1 of a window that predict something. */
static int64_t scored_of(const dq_window *w, int64_t from, int64_t to)
{
    return to < w->n ? to - from : to - from - 1 + w->past;
}

static dq_status gather_columns(const window_group *g, dq_mat hidden, int64_t from, int64_t to,
                                dq_err *err)
{
    dq_backend *b = dq_runner_backend(g->s->r);
    const int64_t width = to - from, n = scored_of(g->w, from, to);
    const int64_t scored = dq_window_scored(g->w);
    int64_t *index = dq_alloc(g->a, (size_t)width, sizeof *index, err);
    if (!index) return err->code;
    for (int64_t i = 0; i < g->n && n > 0; i++) {
        dq_mat into = {.rows = n, .cols = g->state.cols};
        into.p = g->state.p + (i * scored + from - g->w->first) * g->state.cols;
        for (int64_t t = 0; t < n; t++) index[t] = i * width + t;
        b->ops->gather(b, into, hidden, index);
    }
    return dq_backend_sync(b, err);
}

static dq_status run_pieces(const window_group *g, dq_err *err)
{
    const int64_t piece = piece_of(g->s), n = g->w->n;
    for (int64_t from = g->w->first; from < n; from += piece) {
        const int64_t to = n - from > piece ? from + piece : n;
        pass_batch p;
        dq_mat hidden;
        DQ_TRY(batch_columns(g, &p, from, to, err));
        DQ_TRY(batch_run(&p, &hidden, err));
        DQ_TRY(gather_columns(g, hidden, from, to, err));
        const int64_t scored = scored_of(g->w, from, to);
        int32_t *pos = dq_alloc(g->a, (size_t)(to - from), sizeof *pos, err);
        if (!pos) return err->code;
        for (int64_t i = 0; i < scored; i++) pos[i] = (int32_t)(from + i);
        for (int64_t i = 0; i < g->n; i++)
            DQ_TRY(dq_kv_cached_reads(&g->s->work.cached, g->s->r, g->seq[i], pos, scored, err));
        /* does not count as cost of a context */
        if (to < n) DQ_TRY(batch_compress(&p, NULL, err));
    }
    return DQ_OK;
}

static dq_status score_pieces(window_group *g, dq_err *err)
{
    dq_scorer *s = g->s;
    pass_batch p;
    dq_kv_bytes floor;
    dq_mat hidden;
    DQ_TRY(dq_kv_cached_floor(&floor, s->r, g->n, err));
    DQ_TRY(open_sequences(g, err));
    if (g->w->first > 0) {
        DQ_TRY(batch_columns(g, &p, 0, g->w->first, err));
        DQ_TRY(batch_run(&p, &hidden, err));
        DQ_TRY(batch_compress(&p, &floor, err));
    } else {
        s->work.cached.missed += g->n;
    }
    DQ_TRY(run_pieces(g, err));
    /* All states together, as many small pieces would each read the output head. */
    dq_backend *b = dq_runner_backend(s->r);
    const double start = dq_backend_seconds(b);
    const int64_t scored = dq_window_scored(g->w);
    int32_t *target = dq_alloc(g->a, (size_t)(g->n * scored), sizeof *target, err);
    if (!target) return err->code;
    for (int64_t i = 0; i < g->n; i++)
        memcpy(target + i * scored, g->w[i].ids + g->w[i].first + 1,
               (size_t)scored * sizeof *target);
    b->ops->logprob(b, g->out.logp, g->out.top1, g->state, &dq_runner_model(s->r)->head, target,
                    s->pass.math.linear);
    DQ_TRY(dq_backend_sync(b, err));
    s->work.seconds += dq_backend_seconds(b) - start;
    return DQ_OK;
}

dq_status dq_score_windows(dq_scorer *s, const dq_windows *w, int64_t begin, int64_t end,
                           dq_mat state, dq_scores out, dq_err *err)
{
    const bool plain = dq_kv_spec_is_plain(s->kv);
    window_group g = {.s = s, .w = &w->win[begin], .n = end - begin, .state = state, .out = out};
    if (!plain && !dq_windows_alike(w, begin, end))
        return dq_fail(err, DQ_BUG, "windows of several shapes in one group");
    for (int64_t i = 0; i < g.n; i++) g.rows += g.w[i].n;
    g.scored = dq_windows_values(w, end) - dq_windows_values(w, begin);
    g.a = dq_arena_new();
    if (!g.a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    s->work.tokens += g.rows;
    if (plain)
        score_whole(&g, err);
    else
        score_pieces(&g, err);
    close_seqs(s, g.seq, g.n_seq);
    dq_arena_free(g.a);
    return err->code;
}

/* Contexts take the bytes of the whole cache less those of an empty one (the floor). Reads are
 * counted from the positions that each layer and group keeps, not measured. */

dq_status dq_kv_cached_floor(dq_kv_bytes *floor, dq_runner *r, int64_t n, dq_err *err)
{
    dq_backend *b = dq_runner_backend(r);
    int32_t *seq = dq_block_new((size_t)n, sizeof *seq, err);
    int64_t have = 0;
    if (!seq) return err->code;
    while (have < n && (seq[have] = b->ops->kv_seq_new(b, dq_runner_kv(r))) >= 0) have++;
    for (int64_t i = 0; i < have; i++) b->ops->kv_seq_free(b, dq_runner_kv(r), seq[i]);
    dq_block_free(seq);
    if (have < n) {
        dq_backend_sync(b, err);
        return dq_fail(err, DQ_RESOURCE, "out of memory for the KV cache");
    }
    *floor = b->ops->kv_bytes(b, dq_runner_kv(r));
    return err->code;
}

/* Whether something was evicted in some layer and group. */
static bool was_cut(dq_runner *r, int32_t seq, int32_t prefix)
{
    dq_backend *b = dq_runner_backend(r);
    const dq_model *m = dq_runner_model(r);
    for (int l = 0; l < m->n_layers; l++) {
        for (int g = 0; g < m->map.n_groups && m->layer[l].attn.window == 0; g++) {
            if (b->ops->kv_count(b, dq_runner_kv(r), seq, l, g, NULL) < prefix) return true;
        }
    }
    return false;
}

void dq_kv_cached_measure(dq_kv_cached *cached, dq_runner *r, const dq_kv_spec *spec,
                          const dq_kv_bytes *floor, const int32_t *seq, const int32_t *prefix,
                          int64_t n)
{
    dq_backend *b = dq_runner_backend(r);
    const dq_model *m = dq_runner_model(r);
    const dq_head_order *map = &m->map;
    int64_t held = 0; /* by all layers together, where nothing is evicted */
    dq_kv_cached add = {.contexts = n, .bytes = b->ops->kv_bytes(b, dq_runner_kv(r))};
    kv_cached_add(&add, (dq_kv_cached){.bytes = *floor}, -1);
    for (int64_t i = 0; i < n; i++) {
        add.tokens += prefix[i];
        if (was_cut(r, seq[i], prefix[i])) add.tokens_cut += prefix[i];
        for (int l = 0; l < m->n_layers; l++)
            held += dq_kv_window_cached(m->layer[l].attn.window, prefix[i]);
    }
    const int64_t one = 2 * (int64_t)map->n_kv * map->head_dim; /* K or V of a token in a layer */
    add.slots = held * map->n_groups;
    add.baseline = held * 2 * one;
    if (dq_kv_has_codes(spec))
        add.dense16 = add.bytes.tokens_coded * (one / map->n_groups) *
                      ((spec->k_bits == 16) + (spec->v_bits == 16));
    kv_cached_add(cached, add, 1);
}

dq_status dq_kv_cached_reads(dq_kv_cached *cached, dq_runner *r, int32_t seq, const int32_t *pos,
                             int64_t n, dq_err *err)
{
    const dq_kv_spec *spec = dq_runner_kv_spec(r);
    const dq_model *m = dq_runner_model(r);
    dq_backend *b = dq_runner_backend(r);
    int64_t reads, coded, capacity = 0;
    int32_t *key = NULL;
    if (!dq_kv_has_codes(spec)) return DQ_OK;
    for (int i = 0; i < m->n_layers * m->map.n_groups; i++) {
        const int layer = i / m->map.n_groups, group = i % m->map.n_groups;
        const int window = m->layer[layer].attn.window;
        const int64_t have = b->ops->kv_count(b, dq_runner_kv(r), seq, layer, group, NULL);
        if (have > capacity) {
            dq_block_free(key);
            key = dq_block_new((size_t)(capacity = have), sizeof *key, err);
            if (!key) break;
        }
        b->ops->kv_count(b, dq_runner_kv(r), seq, layer, group, key);
        for (int64_t k = 0; k < n; k++) {
            dq_kv_reads(spec, window, pos[k], key, have, &reads, &coded);
            cached->reads += reads;
            cached->reads_coded += coded;
        }
    }
    dq_block_free(key);
    return err->code;
}

void dq_kv_cached_report(dq_kv_cached *cached, const dq_evict_report *report, int64_t n)
{
    dq_kv_cached add = {.evicted = n,
                        .raised = report->raised,
                        .beyond = report->beyond,
                        .flat = report->flat,
                        .gap_min = report->gap_min};
    kv_cached_add(cached, add, 1);
}

/* Runs rows begin .. end - 1 of ids in one pass. */
static dq_status run_rows(dq_scorer *s, dq_arena *a, int32_t seq, const int32_t *ids, int64_t begin,
                          int64_t end, const dq_attention_spans *spans, dq_err *err)
{
    pass_batch batch;
    dq_mat hidden;
    DQ_TRY(batch_begin(&batch, s, a, 1, end - begin, 0, err));
    batch.spans = spans;
    batch_sequence(&batch, seq);
    batch_rows(&batch, ids + begin, end - begin, begin);
    DQ_TRY(batch_run(&batch, &hidden, err));
    return dq_backend_sync(dq_runner_backend(s->r), err);
}

dq_status dq_score_attend(dq_scorer *s, const int32_t *ids, int64_t context, int64_t n,
                          const dq_attention_spans *spans, dq_arena *a, dq_err *err)
{
    const int64_t from = dq_kv_spec_is_plain(s->kv) ? 0 : context;
    const int32_t seq = open_seq(s, -1, err);
    if (seq < 0) return err->code;
    if (from == 0 || run_rows(s, a, seq, ids, 0, from, NULL, err) == DQ_OK)
        run_rows(s, a, seq, ids, from, n, spans, err);
    close_seqs(s, &seq, 1);
    s->work.tokens += n;
    return err->code;
}

/* Generation. Prompts are taken in order into groups that are alive together. A group runs its
 * shared beginning, then all prompts in one pass, then passes of one row for each sequence that has
 * not ended: all of them have as many new ids, so that evictions every so many tokens fall
 * together. */

enum { MIN_SHARED = 32, MAX_ROWS = 4096, MAX_SEQS = 64 };

/* The last new id is not fed, and thus needs no position. */
static int64_t max_new_of(const dq_generate_prompt *p, const dq_model *m)
{
    int64_t n = p->max_new > 0 ? p->max_new : 0;
    if (m->max_positions > 0 && n > m->max_positions - p->n + 1) n = m->max_positions - p->n + 1;
    return n;
}

static dq_status check_prompts(const dq_generate_spec *spec, const dq_model *m, dq_err *err)
{
    for (int64_t i = 0; i < spec->n; i++) {
        const dq_generate_prompt *p = &spec->prompt[i];
        if (p->n < 1)
            return dq_fail(
                err, DQ_MISMATCH,
                "prompt %lld has no tokens, so nothing can follow them. Put text or a BOS there.",
                (long long)i);
        if (m->max_positions > 0 && p->n > m->max_positions)
            return dq_fail(
                err, DQ_MISMATCH,
                "%s: prompt %lld has too many tokens (expected at most %d, found %lld). Shorten "
                "it.",
                m->path, (long long)i, m->max_positions, (long long)p->n);
        if (p->context < 0 || p->context >= p->n)
            return dq_fail(err, DQ_BUG, "prompt %lld: a context of %lld of its %lld tokens",
                           (long long)i, (long long)p->context, (long long)p->n);
        if (!p->context != !spec->prompt[0].context)
            return dq_fail(err, DQ_BUG, "prompt %lld: some have a context and some have none",
                           (long long)i);
    }
    return DQ_OK;
}

typedef struct group {
    const int64_t *prompt; /* [n] */
    int64_t n;
    int64_t shared; /* ids that all of them begin with and that are computed once; 0: none */
    int64_t rows;   /* of the largest pass before new ids */
} group;

/* At least one row of the prompt, or of its context, must be left. */
static int64_t most_shared(const dq_generate_prompt *p)
{
    return (p->context ? p->context : p->n) - 1;
}

/* Length of the common start of both prompts, at most `most`. */
static int64_t common(const dq_generate_prompt *a, const dq_generate_prompt *b, int64_t max)
{
    int64_t n = 0;
    while (n < max && a->ids[n] == b->ids[n]) n++;
    return n;
}

/* Takes prompts of left[n] in order while their rows fit. */
static group next_group(const dq_scorer *s, const dq_generate_spec *spec, const int64_t *left,
                        int64_t n)
{
    const int64_t max_rows = spec->max_rows > 0 ? spec->max_rows : MAX_ROWS;
    const int64_t max_seqs = spec->max_seqs > 0 ? spec->max_seqs : MAX_SEQS;
    /* Sharing must not change the bits of results. */
    const dq_kv_policy *policy = s->kv->evict.policy;
    const bool share = !spec->measure && !dq_logit_ties_rows(s->pass.logit) &&
                       !(policy && (policy->needs & DQ_NEEDS_ATTENTION));
    const dq_generate_prompt *first = &spec->prompt[left[0]];
    int64_t all = first->n, same = most_shared(first);
    group g = {.prompt = left, .n = 1, .rows = first->n};
    while (g.n < n && g.n < max_seqs) {
        const dq_generate_prompt *p = &spec->prompt[left[g.n]];
        const int64_t most = most_shared(p);
        const int64_t same_now = common(first, p, same < most ? same : most);
        const int64_t shared = share && same_now >= MIN_SHARED ? same_now : 0;
        const int64_t rows = all + p->n - g.n * shared;
        if (rows > max_rows) break;
        same = same_now;
        all += p->n;
        g.shared = shared;
        g.rows = rows;
        g.n++;
    }
    return g;
}

typedef struct run {
    dq_scorer *s;
    const dq_generate_spec *spec;
    dq_generate_result *out; /* [spec->n] */
    const group *g;
    dq_arena *a;
    pass_batch batch;  /* of the pass at hand */
    float *state;      /* [g->n][dim], backend memory */
    int32_t *seq;      /* [g->n]; -1: not open */
    int32_t beginning; /* sequence of the shared ids; -1: not open */
    dq_scores answer;  /* [g->n] by question: the most likely id and its logp */
    dq_kv_bytes floor;
} run;

static void close_one(run *x, int32_t *seq)
{
    if (*seq >= 0) close_seqs(x->s, seq, 1);
    *seq = -1;
}

static dq_status run_begin(run *x, dq_err *err)
{
    dq_runner *r = x->s->r;
    dq_backend *b = dq_runner_backend(r);
    const size_t n = (size_t)x->g->n;
    x->a = dq_arena_new();
    if (!x->a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    x->seq = dq_alloc(x->a, n, sizeof *x->seq, err);
    for (size_t i = 0; x->seq && i < n; i++) x->seq[i] = -1;
    x->answer.top1 = dq_alloc(x->a, n, sizeof *x->answer.top1, err);
    x->answer.logp = dq_alloc(x->a, n, sizeof *x->answer.logp, err);
    DQ_TRY(batch_begin(&x->batch, x->s, x->a, x->g->n, x->g->rows, x->g->n, err));
    if (x->spec->measure) DQ_TRY(dq_kv_cached_floor(&x->floor, r, x->g->n, err));
    x->state = b->ops->alloc(b, n * (size_t)dq_runner_model(r)->dim * sizeof *x->state);
    if (!x->state) {
        dq_backend_sync(b, err);
        dq_fail(err, DQ_RESOURCE, "out of memory for %zu final states", n);
    }
    return err->code;
}

static dq_status ask(run *x, dq_err *err)
{
    const dq_model *m = dq_runner_model(x->s->r);
    const dq_mat state = {.p = x->state, .rows = x->batch.n_requested, .cols = m->dim};
    DQ_TRY(batch_answer(&x->batch, state, x->answer, err));
    return dq_score_check_logp(m, x->answer.logp, x->batch.n_requested, err);
}

static const dq_generate_prompt *prompt_of(const run *x, int64_t i)
{
    return &x->spec->prompt[x->g->prompt[i]];
}

/* Tokens computed before the cache is cut; all, where it is not. */
static int64_t context_of(const run *x, const dq_generate_prompt *p)
{
    return p->context && !dq_kv_spec_is_plain(x->s->kv) ? p->context : p->n;
}

static dq_status run_prompts(run *x, dq_err *err)
{
    const int64_t shared = x->g->shared;
    const bool split = context_of(x, prompt_of(x, 0)) < prompt_of(x, 0)->n;
    dq_mat hidden;
    if (shared) { /* is computed once */
        x->beginning = open_seq(x->s, -1, err);
        if (x->beginning < 0) return err->code;
        batch_sequence(&x->batch, x->beginning);
        batch_rows(&x->batch, prompt_of(x, 0)->ids, shared, 0);
        DQ_TRY(batch_run(&x->batch, &hidden, err));
        batch_clear(&x->batch);
    }
    for (int64_t i = 0; i < x->g->n; i++) {
        const dq_generate_prompt *p = prompt_of(x, i);
        const int64_t end = context_of(x, p);
        x->seq[i] = open_seq(x->s, x->beginning, err);
        if (x->seq[i] < 0) return err->code;
        batch_sequence(&x->batch, x->seq[i]);
        batch_rows(&x->batch, p->ids + shared, end - shared, shared);
        if (!split) batch_ask(&x->batch, x->batch.n_rows - 1, -1, i);
        x->s->work.tokens += p->n;
    }
    close_one(x, &x->beginning);
    DQ_TRY(split ? batch_run(&x->batch, &hidden, err) : ask(x, err));
    DQ_TRY(batch_compress(&x->batch, x->spec->measure ? &x->floor : NULL, err));
    if (!split) return DQ_OK;
    /* The tokens after the contexts. */
    batch_clear(&x->batch);
    for (int64_t i = 0; i < x->g->n; i++) {
        const dq_generate_prompt *p = prompt_of(x, i);
        const int64_t from = context_of(x, p);
        batch_sequence(&x->batch, x->seq[i]);
        batch_rows(&x->batch, p->ids + from, p->n - from, from);
        batch_ask(&x->batch, x->batch.n_rows - 1, -1, i);
    }
    return ask(x, err);
}

/* Feeds the last id of every living sequence; all have equally many new ids. */
static dq_status run_step(run *x, int64_t fed, dq_err *err)
{
    batch_clear(&x->batch);
    for (int64_t i = 0; i < x->g->n; i++) {
        if (x->seq[i] < 0) continue;
        batch_sequence(&x->batch, x->seq[i]);
        batch_rows(&x->batch, &x->out[x->g->prompt[i]].ids[fed - 1], 1,
                   prompt_of(x, i)->n + fed - 1);
        batch_ask(&x->batch, x->batch.n_rows - 1, -1, i);
    }
    x->s->work.tokens += x->batch.n_rows;
    DQ_TRY(ask(x, err));
    if (fed % piece_of(x->s) != 0) return DQ_OK;
    return batch_compress(&x->batch, NULL, err); /* not part of what a prompt took */
}

/* Takes the pass's results and closes ended sequences; returns how many live. */
static int64_t take(run *x)
{
    int64_t alive = 0;
    for (int64_t q = 0; q < x->batch.n_requested; q++) {
        const int64_t i = x->batch.value[q], prompt = x->g->prompt[i];
        const dq_generate_spec *spec = x->spec;
        const dq_generate_prompt *p = &spec->prompt[prompt];
        const int32_t id = x->answer.top1[q];
        dq_generate_result *to = &x->out[prompt];
        for (int64_t k = 0; k < spec->n_stop_ids; k++) {
            if (spec->stop_id[k] == id) to->end = DQ_TEXT_END_STOP_ID;
        }
        if (to->end == DQ_TEXT_END_NONE) {
            if (to->logp) to->logp[to->n] = x->answer.logp[q];
            to->ids[to->n++] = id;
            if (spec->stop && spec->stop(spec->stop_arg, prompt, to->ids, to->n))
                to->end = DQ_TEXT_END_REQUESTED;
            else if (to->n >= p->max_new)
                to->end = DQ_TEXT_END_MAX_NEW;
            else if (to->n >= max_new_of(p, dq_runner_model(x->s->r)))
                to->end = DQ_TEXT_END_POSITIONS;
        }
        if (to->end == DQ_TEXT_END_NONE)
            alive++;
        else
            close_one(x, &x->seq[i]);
    }
    return alive;
}

dq_generate_result *dq_generate(dq_scorer *s, const dq_generate_spec *spec, dq_arena *a,
                                dq_err *err)
{
    const dq_model *m = dq_runner_model(s->r);
    int64_t n = 0, at = 0;
    if (check_prompts(spec, m, err) != DQ_OK) return NULL;
    dq_generate_result *out = dq_alloc(a, (size_t)spec->n, sizeof *out, err);
    int64_t *left = dq_alloc(a, (size_t)spec->n, sizeof *left, err);
    for (int64_t i = 0; err->code == DQ_OK && i < spec->n; i++) {
        const int64_t max_new = max_new_of(&spec->prompt[i], m);
        out[i].ids = dq_alloc(a, (size_t)max_new, sizeof *out[i].ids, err);
        if (spec->logp) out[i].logp = dq_alloc(a, (size_t)max_new, sizeof *out[i].logp, err);
        if (max_new == 0)
            out[i].end = DQ_TEXT_END_MAX_NEW;
        else if (left)
            left[n++] = i;
    }
    while (err->code == DQ_OK && at < n) {
        const group next = next_group(s, spec, left + at, n - at);
        run x = {.s = s, .spec = spec, .out = out, .g = &next, .beginning = -1};
        int64_t alive = 0, fed = 0;
        if (run_begin(&x, err) == DQ_OK && run_prompts(&x, err) == DQ_OK) alive = take(&x);
        while (alive > 0 && run_step(&x, ++fed, err) == DQ_OK) alive = take(&x);
        dq_backend *b = dq_runner_backend(s->r);
        for (int64_t i = 0; x.seq && i < x.g->n; i++) close_one(&x, &x.seq[i]);
        close_one(&x, &x.beginning);
        b->ops->free(b, x.state);
        dq_arena_free(x.a);
        at += next.n;
    }
    return err->code == DQ_OK ? out : NULL;
}
