/* plan_caches_run: dq_plan_caches_run of plan_caches.h. A piece is a sweep of dq_eval for some caches and as many windows as a pass
 * holds, so that the unquantized cache runs once for all of them and an end in between costs little; its rows are summed by
 * window and dropped. Where ranks share the pieces, each has fewer windows and about as many caches, so that
 * they end together.
 * SPDX-License-Identifier: MIT */
#include "plan/cache/plan_caches.h"

#include "base/os.h"
#include "base/ranks.h"

#include <string.h>

enum { SHARED_ROWS = 512 }; /* of a cache in a piece: products over fewer cost more each */

/* Some caches on windows begin .. end - 1. */
typedef struct piece {
    int64_t begin, end;
    int cache[DQ_PLAN_CACHES_SWEEP], n;
} piece;

typedef struct pieces {
    dq_plan_caches *c;
    const char *what;
    piece *list; /* [n] a block */
    int64_t n;
    size_t cap;
} pieces;

/* ---- A piece ---- */

/* The part of all windows. */
static dq_status slice(dq_windows *out, const dq_windows *all, const piece *p, dq_arena *a,
                       dq_err *err)
{
    dq_window *win = dq_alloc(a, (size_t)(p->end - p->begin), sizeof *win, err);
    if (!win) return err->code;
    const int64_t first = dq_windows_values(all, p->begin);
    *out = *all;
    out->win = win;
    out->n = p->end - p->begin;
    out->n_values = dq_windows_values(all, p->end) - first;
    for (int64_t i = 0; i < out->n; i++) {
        win[i] = all->win[p->begin + i];
        win[i].value -= first;
    }
    return DQ_OK;
}

/* Means by window of rows, which stand in the order of the caches, their reference among them. */
static void take_rows(dq_plan_caches *c, const dq_eval *e, const piece *p)
{
    const dq_windows *w = &e->ids[0].win;
    for (int i = 0, k = 0; i < e->n_rows; i++) {
        const dq_eval_row *row = &e->row[i], *ref = &e->row[row->ref];
        if (row->ref == i) continue;
        dq_plan_cache *m = &c->list[p->cache[k++]];
        for (int64_t x = 0; x < w->n; x++) {
            const int64_t from = w->win[x].value, to = dq_windows_values(w, x + 1);
            double kld = 0, loss = 0;
            for (int64_t v = from; v < to; v++) {
                kld += row->kld[v];
                loss += ref->logp[v] - row->logp[v];
            }
            m->kld[p->begin + x] = kld / (double)(to - from);
            m->loss[p->begin + x] = loss / (double)(to - from);
            m->known[p->begin + x] = true;
        }
    }
}

static double ids_of(const dq_plan_caches *c, const piece *p)
{
    return (double)(p->n + 1) * (double)(p->end - p->begin) * (double)c->in->ctx;
}

/* Without the journal. */
static dq_status compute(dq_plan_caches *c, const piece *p, const char *what, dq_arena *a,
                         dq_err *err)
{
    const dq_plan_caches_input *in = c->in;
    dq_plan_caches_work work = {c, ids_of(c, p), what};
    dq_eval_model model = {.m = in->model, .tok = in->tok, .runner = c->runner, .shown = true};
    /* its windows are cut already: it has no settings */
    dq_eval_source source = {.name = "text", .path = in->text, .kind = &dq_eval_text};
    dq_eval_ids ids = {.source = 0};
    dq_eval e = {.a = a,
                 .model = &model,
                 .source = &source,
                 .ids = &ids,
                 .n_models = 1,
                 .n_sources = 1,
                 .n_ids = 1,
                 .n_ctx = in->ctx,
                 .alone = true,
                 .progress = dq_plan_caches_progress,
                 .progress_arg = &work};
    DQ_TRY(slice(&ids.win, &c->win, p, a, err));
    for (int i = 0; i < p->n; i++) DQ_TRY(dq_plan_caches_add(&e, c, p->cache[i], err));
    DQ_TRY(dq_eval_run(&e, err));
    take_rows(c, &e, p);
    return DQ_OK;
}

static dq_status tell_cache(dq_plan_caches *c, int cache, const piece *p, dq_err *err)
{
    const dq_plan_cache *m = &c->list[cache];
    const int64_t n = p->end - p->begin;
    json_t *line = json_object();
    json_object_set_new(line, c->kind.key, json_string(m->name));
    json_object_set_new(line, "from", json_integer(p->begin));
    json_object_set_new(line, "kld", dq_plan_journal_reals(m->kld + p->begin, n));
    json_object_set_new(line, "loss", dq_plan_journal_reals(m->loss + p->begin, n));
    return dq_plan_caches_tell(c, line, err);
}

/* dq_ranks_take. */
static dq_status hear(void *arg, const char *text, size_t len, dq_err *err)
{
    return dq_plan_caches_hear(((pieces *)arg)->c, text, len, err);
}

static dq_status run_piece(void *arg, int64_t i, dq_err *err)
{
    pieces *x = arg;
    const piece *p = &x->list[i];
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    compute(x->c, p, x->what, a, err);
    dq_arena_free(a);
    DQ_TRY(err->code);
    x->c->done += ids_of(x->c, p);
    for (int k = 0; k < p->n; k++) DQ_TRY(tell_cache(x->c, p->cache[k], p, err));
    return DQ_OK;
}

dq_status dq_plan_caches_pace(double *seconds, dq_plan_caches *c, int cache, dq_err *err)
{
    const piece p = {.end = 1, .cache = {cache}, .n = 1};
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (dq_runner_new(&c->runner, c->in->model, c->in->backend, &dq_kv_plain, err) == DQ_OK) {
        const double before = dq_os_seconds();
        compute(c, &p, NULL, a, err);
        *seconds = (dq_os_seconds() - before) / ids_of(c, &p) / dq_ranks_count();
    }
    dq_runner_free(c->runner);
    c->runner = NULL;
    dq_arena_free(a);
    return err->code;
}

/* ---- All of them ---- */

static bool is_known(const dq_plan_cache *m, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) {
        if (!m->known[i]) return false;
    }
    return true;
}

static bool is_before(const int *cache, int i)
{
    for (int k = 0; k < i; k++) {
        if (cache[k] == cache[i]) return true;
    }
    return false;
}

static dq_status add_piece(pieces *x, const int *cache, int n, int64_t begin, int64_t end,
                           dq_err *err)
{
    piece *list = dq_grow(NULL, x->list, (size_t)x->n + 1, &x->cap, sizeof *list, err);
    if (!list) return err->code;
    x->list = list;
    piece *p = &list[x->n++];
    *p = (piece){.begin = begin, .end = end, .n = n};
    memcpy(p->cache, cache, (size_t)n * sizeof *cache);
    return DQ_OK;
}

/* The caches that are not known in these windows, some at a time: as many as a sweep may have, or about as many in each piece. */
static dq_status add_pieces(pieces *x, const int *cache, int n, int64_t begin, int64_t end,
                            dq_err *err)
{
    int lacking = 0;
    int *list = dq_block_new((size_t)n, sizeof *list, err);
    for (int i = 0; list && i < n; i++) {
        if (!is_before(cache, i) && !is_known(&x->c->list[cache[i]], begin, end))
            list[lacking++] = cache[i];
    }
    const int most = DQ_PLAN_CACHES_SWEEP, groups = (lacking + most - 1) / most;
    for (int k = 0, from = 0, to; err->code == DQ_OK && k < groups; k++, from = to) {
        to = dq_ranks_count() > 1 ? (k + 1) * lacking / groups : (k + 1) * most;
        if (to > lacking) to = lacking;
        add_piece(x, list + from, to - from, begin, end, err);
    }
    dq_block_free(list);
    return err->code;
}

/* Windows that search lie between others. */
static dq_status add_part(pieces *x, const int *cache, int n, dq_plan_caches_part part, dq_err *err)
{
    const dq_plan_caches *c = x->c;
    const int64_t rows = dq_ranks_count() > 1 ? SHARED_ROWS : DQ_SCORE_ROWS;
    const int64_t fit = rows / c->in->ctx, step = fit > 1 ? fit : 1;
    const int64_t edge[] = {0, c->begin, c->end, c->win.n};
    for (int i = 0; i < 3; i++) {
        if ((i == 1) != (part == DQ_PLAN_CACHES_SEARCH)) continue;
        for (int64_t begin = edge[i]; begin < edge[i + 1]; begin += step) {
            const int64_t end = begin + step < edge[i + 1] ? begin + step : edge[i + 1];
            DQ_TRY(add_pieces(x, cache, n, begin, end, err));
        }
    }
    return DQ_OK;
}

/* What rank 0 has of cache[n], which is all of a part, becomes what all have. */
static dq_status share(dq_plan_caches *c, const int *cache, int n, dq_plan_caches_part part,
                       dq_err *err)
{
    const size_t w = (size_t)c->win.n;
    if (dq_ranks_count() == 1) return err->code;
    double *all = dq_block_new(2 * w * (size_t)n, sizeof *all, err);
    for (int i = 0; all && i < n; i++) {
        const dq_plan_cache *m = &c->list[cache[i]];
        memcpy(all + 2 * w * (size_t)i, m->kld, w * sizeof *all);
        memcpy(all + 2 * w * (size_t)i + w, m->loss, w * sizeof *all);
    }
    dq_ranks_share(all, 2 * w * (size_t)n * sizeof *all, err);
    for (int i = 0; err->code == DQ_OK && i < n; i++) {
        dq_plan_cache *m = &c->list[cache[i]];
        memcpy(m->kld, all + 2 * w * (size_t)i, w * sizeof *all);
        memcpy(m->loss, all + 2 * w * (size_t)i + w, w * sizeof *all);
        for (int64_t x = 0; x < c->win.n; x++) {
            const bool searches = x >= c->begin && x < c->end;
            m->known[x] = m->known[x] || searches == (part == DQ_PLAN_CACHES_SEARCH);
        }
    }
    dq_block_free(all);
    return err->code;
}

dq_status dq_plan_caches_run(dq_plan_caches *c, const int *cache, int n, dq_plan_caches_part part,
                             const char *what, dq_err *err)
{
    pieces x = {.c = c, .what = what};
    add_part(&x, cache, n, part, err);
    const dq_ranks_work work = {.n = x.n, .run = run_piece, .take = hear, .arg = &x};
    dq_ranks_run(&work, err);
    dq_block_free(x.list);
    return err->code == DQ_OK ? share(c, cache, n, part, err) : err->code;
}
