/* score_windows: dq_score_windows of score.h. With a plain cache all windows run in one pass. With a compressed one
 * they run side by side: their contexts in a pass of their own, which is then compressed, and the ids after them
 * in pieces of kv->evict.every with an eviction after each. The final states of every piece are put where
 * one pass would have put them, and the output head is read once at the end.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "eval/pass_plan.h"

#include <string.h>

/* A group of windows on its way. */
typedef struct group {
    dq_scorer *s;
    dq_arena *a;
    const dq_window *w; /* [n] */
    int64_t n, rows;    /* ids of all windows */
    int64_t scored;
    int32_t *seq; /* [n_seq] open */
    int64_t n_seq;
    dq_mat state;
    dq_scores out;
} group;

static dq_status open_sequences(group *g, dq_err *err)
{
    g->seq = dq_alloc(g->a, (size_t)g->n, sizeof *g->seq, err);
    while (g->seq && g->n_seq < g->n) {
        const int32_t seq = dq_score_open(g->s, -1, err);
        if (seq < 0) break;
        g->seq[g->n_seq++] = seq;
    }
    return err->code;
}

/* ---- In one pass ---- */

static dq_status score_whole(group *g, dq_err *err)
{
    dq_pass_plan p;
    DQ_TRY(dq_pass_plan_begin(&p, g->s, g->a, g->n, g->rows, g->scored, err));
    DQ_TRY(open_sequences(g, err));
    for (int64_t i = 0; i < g->n; i++) {
        const dq_window *w = &g->w[i];
        const int64_t base = p.n_rows;
        dq_pass_plan_sequence(&p, g->seq[i]);
        dq_pass_plan_rows(&p, w->ids, w->n, 0);
        for (int64_t t = w->first; t + 1 < w->n + w->past; t++)
            dq_pass_plan_ask(&p, base + t, w->ids[t + 1], 0);
    }
    g->s->work.cached.missed += g->n;
    return dq_pass_plan_answer(&p, g->state, g->out, err);
}

/* ---- In pieces, all windows of one shape ---- */

/* A plan of ids from .. to - 1 of every window. */
static dq_status plan_columns(const group *g, dq_pass_plan *p, int64_t from, int64_t to,
                              dq_err *err)
{
    DQ_TRY(dq_pass_plan_begin(p, g->s, g->a, g->n, g->n * (to - from), 0, err));
    for (int64_t i = 0; i < g->n; i++) {
        dq_pass_plan_sequence(p, g->seq[i]);
        dq_pass_plan_rows(p, g->w[i].ids + from, to - from, from);
    }
    return DQ_OK;
}

/* Rows from .. to - 1 of a window that predict something. */
static int64_t scored_of(const dq_window *w, int64_t from, int64_t to)
{
    return to < w->n ? to - from : to - from - 1 + w->past;
}

/* What they read, in every window. */
static dq_status count_columns(const group *g, int64_t from, int64_t to, dq_err *err)
{
    const int64_t n = scored_of(g->w, from, to);
    int32_t *pos = dq_alloc(g->a, (size_t)(to - from), sizeof *pos, err);
    if (!pos) return err->code;
    for (int64_t i = 0; i < n; i++) pos[i] = (int32_t)(from + i);
    for (int64_t i = 0; i < g->n; i++)
        DQ_TRY(dq_kv_cached_reads(&g->s->work.cached, g->s->r, g->seq[i], pos, n, err));
    return DQ_OK;
}

/* Their final states. */
static dq_status gather_columns(const group *g, dq_mat hidden, int64_t from, int64_t to,
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

static dq_status run_pieces(const group *g, dq_err *err)
{
    const int64_t piece = dq_score_piece(g->s), n = g->w->n;
    for (int64_t from = g->w->first; from < n; from += piece) {
        const int64_t to = n - from > piece ? from + piece : n;
        dq_pass_plan p;
        dq_mat hidden;
        DQ_TRY(plan_columns(g, &p, from, to, err));
        DQ_TRY(dq_pass_plan_run(&p, &hidden, err));
        DQ_TRY(gather_columns(g, hidden, from, to, err));
        DQ_TRY(count_columns(g, from, to, err));
        /* not part of what a context took */
        if (to < n) DQ_TRY(dq_pass_plan_compress(&p, NULL, err));
    }
    return DQ_OK;
}

/* The most likely ids and the targets' log-probabilities of all states at once: with many small pieces
 * the output head would be read for each of them. */
static dq_status answer(const group *g, dq_err *err)
{
    dq_scorer *s = g->s;
    dq_backend *b = dq_runner_backend(s->r);
    const double start = dq_os_seconds();
    const int64_t scored = dq_window_scored(g->w);
    int32_t *target = dq_alloc(g->a, (size_t)(g->n * scored), sizeof *target, err);
    if (!target) return err->code;
    for (int64_t i = 0; i < g->n; i++)
        memcpy(target + i * scored, g->w[i].ids + g->w[i].first + 1,
               (size_t)scored * sizeof *target);
    b->ops->logprob(b, g->out.logp, g->out.top1, g->state, &dq_runner_model(s->r)->head, target,
                    s->pass.math.linear);
    DQ_TRY(dq_backend_sync(b, err));
    s->work.seconds += dq_os_seconds() - start;
    return DQ_OK;
}

static dq_status score_pieces(group *g, dq_err *err)
{
    dq_scorer *s = g->s;
    dq_pass_plan p;
    dq_kv_bytes floor;
    dq_mat hidden;
    DQ_TRY(dq_kv_cached_floor(&floor, s->r, g->n, err));
    DQ_TRY(open_sequences(g, err));
    if (g->w->first > 0) {
        DQ_TRY(plan_columns(g, &p, 0, g->w->first, err));
        DQ_TRY(dq_pass_plan_run(&p, &hidden, err));
        DQ_TRY(dq_pass_plan_compress(&p, &floor, err));
    } else {
        s->work.cached.missed += g->n;
    }
    DQ_TRY(run_pieces(g, err));
    return answer(g, err);
}

dq_status dq_score_windows(dq_scorer *s, const dq_windows *w, int64_t begin, int64_t end,
                           dq_mat state, dq_scores out, dq_err *err)
{
    const bool plain = dq_kv_spec_is_plain(s->kv);
    group g = {.s = s, .w = &w->win[begin], .n = end - begin, .state = state, .out = out};
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
    dq_score_close(s, g.seq, g.n_seq);
    dq_arena_free(g.a);
    return err->code;
}
