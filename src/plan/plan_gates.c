/* Normal equations are summed list by list, each row of the matrix by one thread in the order of
 * tokens. Features are centred before the ridge, so that the constant is not drawn to zero.
 * SPDX-License-Identifier: MIT */
#include "calibrate/calibrate.h"
#include "engine/runner.h"
#include "kv/kv.h"
#include "plan/inside.h"
#include "work/ranks.h"

#include <math.h>
#include <string.h>

void dq_plan_gates_add(dq_plan_gates_sums *s, const double *f, const double *y, int64_t rows)
{
    const int64_t n = s->n;
#pragma omp parallel for schedule(dynamic, 8)
    for (int64_t i = 0; i < n; i++) {
        double *to = s->squares + i * n;
        for (int64_t t = 0; t < rows; t++) {
            const double *row = f + t * n, x = row[i];
            for (int64_t k = 0; k <= i; k++) to[k] += x * row[k];
            s->by[i] += x * y[t];
        }
    }
}

/* a[m][ld]: covariances times tokens, with the ridge; b[m]: those with the target; m excludes the
 * constant. A constant feature gets weight 0. */
static void centre(double *a, double *b, const dq_plan_gates_sums *s, int64_t ld)
{
    const double ridge = 1e-3, still = 1e-12;
    const int64_t n = s->n, m = n - 1;
    const double *sum = s->squares + m * n, tokens = sum[m];
    for (int64_t i = 0; i < m; i++) {
        for (int64_t k = 0; k <= i; k++)
            a[i * ld + k] = s->squares[i * n + k] - sum[i] * sum[k] / tokens;
        b[i] = s->by[i] - sum[i] * s->by[m] / tokens;
    }
    for (int64_t i = 0; i < m; i++) {
        double *own = a + i * ld + i;
        const bool varies = *own > still * s->squares[i * n + i];
        *own *= 1 + ridge;
        if (varies || isnan(*own)) continue;
        for (int64_t k = 0; k < m; k++) a[i > k ? i * ld + k : k * ld + i] = k == i;
        b[i] = 0;
    }
}

dq_status dq_plan_gates_solve(double *weight, const dq_plan_gates_sums *s, dq_err *err)
{
    const int64_t m = s->n - 1, ld = dq_cholesky_stride(m);
    const double *sum = s->squares + m * s->n, tokens = sum[m];
    int64_t bad = -1;
    if (!(tokens > 0)) return dq_fail(err, DQ_DAMAGED, "no tokens to fit gates to");
    double *a = dq_block_new((size_t)(m * ld), sizeof *a, err);
    if (!a) return err->code;
    centre(a, weight, s, ld);
    if (dq_cholesky(&bad, a, m, ld, err) == DQ_OK && bad < 0) {
        /* x = (L L')^-1 x */
        for (int64_t i = 0; i < m; i++) {
            for (int64_t k = 0; k < i; k++) weight[i] -= a[i * ld + k] * weight[k];
            weight[i] /= a[i * ld + i];
        }
        for (int64_t i = m - 1; i >= 0; i--) {
            weight[i] /= a[i * ld + i];
            for (int64_t k = 0; k < i; k++) weight[k] -= a[i * ld + k] * weight[i];
        }
    }
    dq_block_free(a);
    DQ_TRY(err->code);
    weight[m] = s->by[m] / tokens;
    for (int64_t i = 0; i < m; i++) weight[m] -= weight[i] * sum[i] / tokens;
    if (bad < 0 && isfinite(weight[m])) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "keys and values are not finite, or too large to fit gates to");
}

static dq_status open_all(dq_plan_gates *p, dq_err *err)
{
    const dq_model *m = p->set.model;
    dq_arena *a = p->arena;
    p->n_lists = dq_model_full_layers(m) * m->map.n_groups;
    const dq_ops *ops = p->set.backend->ops;
    if (!ops->has_peaks || !ops->kv_rows)
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_CPU},
                            "gates are not fitted on the %s backend", ops->name);
    if (p->n_lists == 0)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: all layers have windows, so that no policy acts on its cache", m->path);
    dq_plan_gates_settings *s = &p->set;
    const int positions = s->model->max_positions;
    if (s->ctx == 0) {
        s->ctx = DQ_PLAN_GATES_CTX;
        if (positions > 0 && positions / 2 < s->ctx) s->ctx = positions / 2;
    }
    if (positions > 0 && s->ctx > positions)
        return dq_fail_with(err, DQ_MISMATCH,
                            (dq_remedy){.code = DQ_REMEDY_CTX, .number = {positions}},
                            "%s: has %d positions, windows of %lld tokens are more", s->model->path,
                            positions, (long long)s->ctx);
    const dq_window_spec spec = {.scheme = DQ_WINDOW_BLOCK,
                                 .n_ctx = s->ctx,
                                 .limit = s->windows,
                                 .bos = DQ_BOS_AUTO,
                                 .vocab = s->model->vocab};
    dq_windows_make(&p->win, s->tok, s->docs, &spec, p->arena, err);
    if (err->code == DQ_MISMATCH && p->win.doc && p->win.n == 0) *err = (dq_err){0};
    if (err->code != DQ_OK) return dq_in(err, "%s: ", s->text);
    p->fitted = p->win.n - p->win.n / DQ_PLAN_GATES_UNFITTED;
    if (p->win.n < DQ_PLAN_GATES_LEAST)
        return dq_fail_with(
            err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_SMALLER_CTX},
            "%s: too little text: %lld windows of %lld tokens (expected at least %d, "
            "of which the last quarter is not fitted). Give more text",
            s->text, (long long)p->win.n, (long long)s->ctx, DQ_PLAN_GATES_LEAST);
    DQ_TRY(dq_model_new_gates(&p->gates, m, a, err));
    p->sums = dq_alloc(a, (size_t)p->n_lists, sizeof *p->sums, err);
    p->list = dq_alloc(a, (size_t)p->n_lists, sizeof *p->list, err);
    for (int i = 0, k = 0; err->code == DQ_OK && i < p->n_lists; k++) {
        if (!m->layer[k / m->map.n_groups].attn.window) p->list[i++] = k;
    }
    for (int i = 0; err->code == DQ_OK && i < p->n_lists; i++) {
        const int64_t *at = p->gates->at + p->list[i];
        const size_t n = (size_t)(at[1] - at[0]);
        p->sums[i] = (dq_plan_gates_sums){.n = (int64_t)n,
                                          .squares = dq_alloc(a, n * n, sizeof(double), err),
                                          .by = dq_alloc(a, n, sizeof(double), err)};
    }
    return err->code;
}

dq_status dq_plan_gates_open(dq_plan_gates **out, const dq_plan_gates_settings *s, dq_err *err)
{
    dq_arena *a;
    dq_plan_gates *p = *out = dq_arena_object(&a, sizeof *p, err);
    if (!p) return err->code;
    p->arena = a;
    p->set = *s;
    if (open_all(p, err) == DQ_OK) return DQ_OK;
    dq_plan_gates_close(p);
    *out = NULL;
    return err->code;
}

void dq_plan_gates_close(dq_plan_gates *p)
{
    if (p) dq_arena_free(p->arena);
}

/* A window is one rank's piece of work, which sends for each list the measured and the predicted
 * peaks. Rank 0 adds them up in the order of windows, so that the sums are those of one process. */

/* Tokens first .. first + n - 1 of a window in list p->list[list]. Data follow: peak[n]; then, of
 * a fitted window, keys and values as floats, row[n][cols]; of another, predictions
 * foretold[n]. */
typedef struct letter {
    int64_t window, list, first, n;
} letter;

/* A letter that came before its turn, with its data. */
typedef struct early {
    struct early *next;
    const letter *l; /* a block */
} early;

/* All lists of a window that is not fitted. */
typedef struct unseen {
    double *is, *said; /* [lists][n] a block of both */
    int lists;         /* that are there */
} unseen;

/* Sums over the tokens of all lists; per window, the share of kvzip's quarter that is kept. */
typedef struct verdict {
    double n, sum, squares, errors;
    double *kept; /* [windows] */
    int64_t windows;
} verdict;

typedef struct run {
    dq_plan_gates *p;
    dq_runner *r;
    int64_t begin;   /* the window that piece 0 is */
    int64_t *next;   /* [n_lists] the window that is added next */
    early *early;    /* any order */
    double *feature; /* of one list, [ctx][features] */
    unseen *unseen;  /* [windows] */
    verdict v;
} run;

static int cols_of(const dq_kv_gates *g, int list)
{
    return 2 * g->heads[list % g->n_groups] * g->head_dim;
}

static const double *peak_of(const letter *l)
{
    return (const double *)(l + 1);
}

static size_t bytes_of(const run *x, const letter *l)
{
    const size_t n = (size_t)l->n;
    const size_t more = l->window < x->p->fitted
                            ? (size_t)cols_of(x->p->gates, (int)l->list) * sizeof(float)
                            : sizeof(double);
    return sizeof *l + n * (sizeof(double) + more);
}

static void add_letter(run *x, const letter *l)
{
    const dq_kv_gates *g = x->p->gates;
    const int list = (int)l->list, heads = g->heads[list % g->n_groups], cols = cols_of(g, list);
    const double *peak = peak_of(l);
    const float *row = (const float *)(peak + l->n);
    dq_plan_gates_sums *sums = &x->p->sums[list];
    for (int64_t t = 0; t < l->n; t++)
        dq_kv_gates_describe(x->feature + t * sums->n, row + t * cols, heads, g->head_dim,
                             (int32_t)(l->first + t));
    dq_plan_gates_add(sums, x->feature, peak, l->n);
    x->next[list]++;
}

static void free_early(early **at)
{
    early *e = *at;
    *at = e->next;
    dq_block_free((letter *)(uintptr_t)e->l);
    dq_block_free(e);
}

/* NULL: the list's next letter is not there yet. */
static early **next_early(run *x, int64_t list)
{
    for (early **at = &x->early; *at; at = &(*at)->next) {
        if ((*at)->l->list == list && (*at)->l->window == x->next[list]) return at;
    }
    return NULL;
}

/* The threshold of the largest quarter of x[n]. */
static double quarter_of(const double *x, int64_t n, double *scratch)
{
    memcpy(scratch, x, (size_t)n * sizeof *x);
    dq_stat_sort(scratch, n);
    return scratch[n - (n + 3) / 4];
}

static dq_status take(void *arg, const char *text, size_t len, dq_err *err)
{
    run *x = arg;
    const letter *l = (const letter *)(const void *)text;
    if (len < sizeof *l || bytes_of(x, l) != len)
        return dq_fail(err, DQ_BUG, "a letter of %zu bytes", len);
    if (l->window >= x->p->fitted) {
        /* All windows have as many tokens. */
        const int lists = x->p->n_lists;
        const size_t n = (size_t)l->n, all = n * (size_t)lists;
        unseen *u = &x->unseen[l->window];
        if (!u->is) u->is = dq_block_new(2 * all, sizeof *u->is, err);
        if (!u->is) return err->code;
        u->said = u->is + all;
        memcpy(u->is + (size_t)l->list * n, peak_of(l), n * sizeof *u->is);
        memcpy(u->said + (size_t)l->list * n, peak_of(l) + n, n * sizeof *u->said);
        u->lists++;
        for (int64_t i; (i = x->p->fitted + x->v.windows) < x->p->win.n;) {
            u = &x->unseen[i];
            if (u->lists < lists) return DQ_OK;
            verdict *v = &x->v;
            const int64_t values = (int64_t)all;
            double *scratch = dq_block_new((size_t)values, sizeof *scratch, err);
            int64_t both = 0, wanted = 0;
            if (!scratch) return err->code;
            for (int64_t k = 0; k < values; k++) {
                v->n++;
                v->sum += u->is[k];
                v->squares += u->is[k] * u->is[k];
                v->errors += (u->is[k] - u->said[k]) * (u->is[k] - u->said[k]);
            }
            const double least = quarter_of(u->is, values, scratch),
                         least_said = quarter_of(u->said, values, scratch);
            for (int64_t k = 0; k < values; k++) {
                wanted += u->is[k] >= least;
                both += u->is[k] >= least && u->said[k] >= least_said;
            }
            v->kept[v->windows++] = (double)both / (double)wanted;
            dq_block_free(scratch);
            dq_block_free(u->is);
            u->is = NULL;
        }
        return DQ_OK;
    }
    if (l->window != x->next[l->list]) {
        const size_t bytes = bytes_of(x, l);
        early *e = dq_block_new(1, sizeof *e, err);
        letter *copy = e ? dq_block_raw(1, bytes, err) : NULL;
        if (!copy) {
            dq_block_free(e);
            return err->code;
        }
        memcpy(copy, l, bytes);
        *e = (early){x->early, copy};
        x->early = e;
        return DQ_OK;
    }
    add_letter(x, l);
    for (early **at; (at = next_early(x, l->list)); free_early(at)) add_letter(x, (*at)->l);
    return DQ_OK;
}

/* Per-token arrays hold all lists, each with all tokens of the window. */
typedef struct reading {
    run *x;
    int32_t seq;
    int64_t number, n;
    const dq_window *win;
    int64_t *at; /* [all lists + 1] those of layers with windows are empty */
    int32_t *pos;
    double *peak, *foretold; /* foretold: of one list */
    float *row;
    int64_t first; /* tokens before it are left out */
} reading;

static void listen(void *arg, double rows)
{
    (void)arg;
    (void)rows;
    dq_ranks_poll();
}

/* Runs the window, then again after itself: peak[] becomes ln(peak + floor). */
static dq_status run_passes(reading *w, dq_err *err)
{
    const int64_t cu[2] = {0, w->n};
    const dq_batch batch = {.n_seq = 1,
                            .n_rows = w->n,
                            .cu_rows = cu,
                            .seq = &w->seq,
                            .ids = w->win->ids,
                            .pos = w->pos};
    const dq_pass pass = {.logit = dq_logit_plain, .listener = {listen, w}};
    const dq_second_pass again = {.r = w->x->r,
                                  .pass = pass,
                                  .seq = w->seq,
                                  .ids = w->win->ids,
                                  .n = w->n,
                                  .sink = dq_kv_plain.sink,
                                  .at = w->at,
                                  .pos = w->pos};
    dq_mat hidden;
    DQ_TRY(dq_runner_pass(w->x->r, &batch, &pass, &hidden, err));
    DQ_TRY(dq_second_pass_peaks(w->peak, &again, err));
    for (int64_t i = 0; i < w->n * w->x->p->n_lists; i++)
        w->peak[i] = log(w->peak[i] + DQ_KV_GATES_FLOOR);
    return DQ_OK;
}

static dq_status say(void *to, reading *w, const letter *l, dq_err *err)
{
    const dq_kv_gates *g = w->x->p->gates;
    const int list = (int)l->list;
    const size_t n = (size_t)l->n;
    if (l->window < w->x->p->fitted) {
        const int64_t cols = cols_of(g, list);
        memcpy(to, w->row + l->first * cols, n * (size_t)cols * sizeof *w->row);
        return DQ_OK;
    }
    DQ_TRY(dq_kv_gates_score(w->foretold, g, w->x->p->list[list], w->row, w->pos, w->n, err));
    memcpy(to, w->foretold + l->first, n * sizeof *w->foretold);
    return DQ_OK;
}

static dq_status tell_all(reading *w, dq_err *err)
{
    for (int i = 0; i < w->x->p->n_lists; i++) {
        const dq_plan_gates *p = w->x->p;
        dq_backend *b = p->set.backend;
        const int groups = p->gates->n_groups, layer = p->list[i] / groups;
        b->ops->kv_rows(b, dq_runner_kv(w->x->r), w->seq, layer, i % groups, (int32_t)(w->n - 1),
                        p->set.model->layer[layer].rope, w->row);
        DQ_TRY(dq_backend_sync(b, err));
        const letter l = {w->number, i, w->first, w->n - w->first};
        const size_t bytes = bytes_of(w->x, &l), peaks = (size_t)l.n * sizeof *w->peak;
        char *text = dq_block_raw(1, bytes, err);
        if (!text) return err->code;
        memcpy(text, &l, sizeof l);
        memcpy(text + sizeof l, w->peak + w->at[p->list[i]] + l.first, peaks);
        if (say(text + sizeof l + peaks, w, &l, err) == DQ_OK)
            dq_ranks_number() > 0 ? dq_ranks_tell(text, bytes, err) : take(w->x, text, bytes, err);
        dq_block_free(text);
        if (err->code != DQ_OK) return err->code;
        dq_ranks_poll();
    }
    return DQ_OK;
}

static dq_status run_window(reading *w, dq_arena *a, dq_err *err)
{
    dq_backend *b = w->x->p->set.backend;
    dq_kv *kv = dq_runner_kv(w->x->r);
    const dq_plan_gates *p = w->x->p;
    const size_t lists = (size_t)p->n_lists, n = (size_t)w->n;
    const int all = p->set.model->n_layers * p->gates->n_groups;
    int cols = 0;
    for (int i = 0; i < p->gates->n_groups; i++) {
        const int c = cols_of(p->gates, i);
        cols = c > cols ? c : cols;
    }
    w->at = dq_alloc(a, (size_t)all + 1, sizeof *w->at, err);
    w->pos = dq_alloc(a, lists * n, sizeof *w->pos, err);
    w->peak = dq_alloc(a, lists * n, sizeof *w->peak, err);
    w->foretold = dq_alloc(a, n, sizeof *w->foretold, err);
    w->row = dq_alloc(a, n * (size_t)cols, sizeof *w->row, err);
    for (int i = 0; err->code == DQ_OK && i < all; i++)
        w->at[i + 1] =
            w->at[i] + (p->set.model->layer[i / p->gates->n_groups].attn.window ? 0 : w->n);
    for (size_t i = 0; err->code == DQ_OK && i < lists * n; i++) w->pos[i] = (int32_t)(i % n);
    if (err->code != DQ_OK) return err->code;
    w->seq = b->ops->kv_seq_new(b, kv);
    if (w->seq < 0) {
        dq_backend_sync(b, err);
        return dq_fail(err, DQ_RESOURCE, "out of memory for the KV cache");
    }
    if (run_passes(w, err) == DQ_OK) tell_all(w, err);
    b->ops->kv_seq_free(b, kv, w->seq);
    return err->code;
}

static dq_status run_piece(void *arg, int64_t i, dq_err *err)
{
    run *x = arg;
    const dq_plan_gates_settings *s = &x->p->set;
    const int64_t number = x->begin + i;
    const dq_window *win = &x->p->win.win[number];
    const int64_t first = win->n > dq_kv_plain.sink ? dq_kv_plain.sink : 0;
    reading w = {.x = x, .number = number, .n = win->n, .win = win, .first = first};
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (s->step)
        s->step(s->arg, (double)number, (double)x->p->win.n,
                number < x->p->fitted ? "fit" : "unseen");
    run_window(&w, a, err);
    dq_arena_free(a);
    return err->code;
}

static dq_status run_part(run *x, int64_t begin, int64_t end, dq_err *err)
{
    const dq_ranks_work work = {.n = end - begin, .run = run_piece, .take = take, .arg = x};
    x->begin = begin;
    return dq_ranks_run(&work, err);
}

static dq_status solve_all(dq_plan_gates *p, dq_err *err)
{
    double *weight = p->gates->weight;
    const int64_t *at = p->gates->at;
    const int all = p->gates->n_layers * p->gates->n_groups;
    for (int i = 0; dq_ranks_number() == 0 && err->code == DQ_OK && i < p->n_lists; i++)
        dq_plan_gates_solve(weight + at[p->list[i]], &p->sums[i], err);
    return dq_ranks_share(weight, (size_t)at[all] * sizeof *weight, err);
}

static dq_status begin(run *x, dq_err *err)
{
    dq_plan_gates *p = x->p;
    const size_t lists = (size_t)p->n_lists, windows = (size_t)p->win.n;
    int64_t features = 0;
    for (int i = 0; i < p->n_lists; i++) {
        if (p->sums[i].n > features) features = p->sums[i].n;
    }
    x->next = dq_alloc(p->arena, lists, sizeof *x->next, err);
    x->feature = dq_alloc(p->arena, (size_t)(p->win.longest * features), sizeof *x->feature, err);
    x->unseen = dq_alloc(p->arena, windows, sizeof *x->unseen, err);
    x->v.kept = dq_alloc(p->arena, windows, sizeof *x->v.kept, err);
    DQ_TRY(err->code);
    return dq_runner_new(&x->r, p->set.model, p->set.backend, &dq_kv_plain, err);
}

static void end(run *x)
{
    while (x->early) free_early(&x->early);
    for (int64_t i = 0; x->unseen && i < x->p->win.n; i++) dq_block_free(x->unseen[i].is);
    dq_runner_free(x->r);
}

dq_status dq_plan_gates_run(dq_plan_gates *p, dq_err *err)
{
    run x = {.p = p};
    const verdict *v = &x.v;
    if (begin(&x, err) == DQ_OK && run_part(&x, 0, p->fitted, err) == DQ_OK &&
        solve_all(p, err) == DQ_OK && run_part(&x, p->fitted, p->win.n, err) == DQ_OK &&
        dq_ranks_number() == 0) {
        p->kept = dq_mean_of(v->kept, v->windows);
        p->explained = 1 - v->errors / (v->squares - v->sum * v->sum / v->n);
    }
    end(&x);
    return err->code;
}
