/* plan_gates: see plan_gates.h. Normal equations are summed list by list, each row of the matrix by one thread in the order of
 * tokens. Features are centred before the ridge, so that the constant is not drawn to zero.
 * SPDX-License-Identifier: MIT */
#include "plan/cache/plan_gates.h"

#include "calibrate/cholesky.h"
#include "engine/second_pass.h"
#include "kv/kv_spec.h"

#include <math.h>
#include <string.h>

/* ---- The fit ---- */

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

/* a[m][ld] = covariances times the number of tokens, with the ridge, b[m] those with the target; m features without the constant.
 * What does not vary says nothing: its weight becomes 0. */
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

/* x = (L L')^-1 x */
static void solve_factored(double *x, const double *l, int64_t m, int64_t ld)
{
    for (int64_t i = 0; i < m; i++) {
        for (int64_t k = 0; k < i; k++) x[i] -= l[i * ld + k] * x[k];
        x[i] /= l[i * ld + i];
    }
    for (int64_t i = m - 1; i >= 0; i--) {
        x[i] /= l[i * ld + i];
        for (int64_t k = 0; k < i; k++) x[k] -= l[i * ld + k] * x[i];
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
    if (dq_cholesky(&bad, a, m, ld, err) == DQ_OK && bad < 0) solve_factored(weight, a, m, ld);
    dq_block_free(a);
    DQ_TRY(err->code);
    weight[m] = s->by[m] / tokens;
    for (int64_t i = 0; i < m; i++) weight[m] -= weight[i] * sum[i] / tokens;
    if (bad < 0 && isfinite(weight[m])) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "keys and values are not finite, or too large to fit gates to");
}

/* ---- Opening ---- */

static dq_status cut_text(dq_plan_gates *p, dq_err *err)
{
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
    p->fitted = p->win.n - p->win.n / DQ_PLAN_GATES_PART;
    if (p->win.n >= DQ_PLAN_GATES_LEAST) return DQ_OK;
    return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_SMALLER_CTX},
                        "%s: too little text: %lld windows of %lld tokens (expected at least %d, "
                        "of which the last quarter is not fitted). Give more text",
                        s->text, (long long)p->win.n, (long long)s->ctx, DQ_PLAN_GATES_LEAST);
}

static dq_status open_all(dq_plan_gates *p, dq_err *err)
{
    const dq_model *m = p->set.model;
    dq_arena *a = p->arena;
    p->n_lists = m->n_layers * m->map.n_groups;
    const dq_ops *ops = p->set.backend->ops;
    if (!ops->has_peaks || !ops->kv_rows)
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_CPU},
                            "gates are not fitted on the %s backend", ops->name);
    DQ_TRY(cut_text(p, err));
    DQ_TRY(dq_model_new_gates(&p->gates, m, a, err));
    p->sums = dq_alloc(a, (size_t)p->n_lists, sizeof *p->sums, err);
    for (int i = 0; err->code == DQ_OK && i < p->n_lists; i++) {
        const size_t n = (size_t)(p->gates->at[i + 1] - p->gates->at[i]);
        p->sums[i] = (dq_plan_gates_sums){.n = (int64_t)n,
                                          .squares = dq_alloc(a, n * n, sizeof(double), err),
                                          .by = dq_alloc(a, n, sizeof(double), err)};
    }
    return err->code;
}

dq_status dq_plan_gates_open(dq_plan_gates **out, const dq_plan_gates_settings *s, dq_err *err)
{
    dq_arena *a = dq_arena_new();
    dq_plan_gates *p = *out = a ? dq_alloc(a, 1, sizeof *p, err) : NULL;
    if (!p) {
        dq_arena_free(a);
        return dq_fail(err, DQ_RESOURCE, "out of memory");
    }
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

/* ---- One window ---- */

/* A window on its way. Per-token arrays hold all lists, each with all tokens of the window. */
typedef struct reading {
    dq_plan_gates *p;
    dq_runner *r;
    int32_t seq;
    int64_t n;
    const dq_window *win;
    int64_t *at; /* [n_lists + 1] */
    int32_t *pos;
    double *peak, *foretold;
    double *feature; /* of one list, [n][features] */
    float *row;
    int64_t first; /* tokens before it are left out */
} reading;

static dq_status reserve(reading *w, dq_arena *a, dq_err *err)
{
    const dq_kv_gates *g = w->p->gates;
    const size_t lists = (size_t)w->p->n_lists, n = (size_t)w->n;
    size_t features = 0, cols = 0;
    for (int i = 0; i < g->n_groups; i++) {
        const size_t f = (size_t)(g->at[i + 1] - g->at[i]);
        const size_t c = 2 * (size_t)g->heads[i] * (size_t)g->head_dim;
        features = f > features ? f : features;
        cols = c > cols ? c : cols;
    }
    w->at = dq_alloc(a, lists + 1, sizeof *w->at, err);
    w->pos = dq_alloc(a, lists * n, sizeof *w->pos, err);
    w->peak = dq_alloc(a, lists * n, sizeof *w->peak, err);
    w->foretold = dq_alloc(a, lists * n, sizeof *w->foretold, err);
    w->feature = dq_alloc(a, n * features, sizeof *w->feature, err);
    w->row = dq_alloc(a, n * cols, sizeof *w->row, err);
    for (size_t i = 0; err->code == DQ_OK && i < lists; i++) {
        w->at[i + 1] = w->at[i] + w->n;
        for (size_t t = 0; t < n; t++) w->pos[i * n + t] = (int32_t)t;
    }
    return err->code;
}

/* The window, then again after itself: peak[] becomes ln(peak + floor). */
static dq_status run_passes(reading *w, dq_err *err)
{
    const int64_t cu[2] = {0, w->n};
    const dq_batch batch = {.n_seq = 1,
                            .n_rows = w->n,
                            .cu_rows = cu,
                            .seq = &w->seq,
                            .ids = w->win->ids,
                            .pos = w->pos};
    const dq_pass pass = {.logit = dq_logit_plain};
    const dq_second_pass again = {.r = w->r,
                                  .pass = pass,
                                  .seq = w->seq,
                                  .ids = w->win->ids,
                                  .n = w->n,
                                  .sink = dq_kv_plain.sink,
                                  .at = w->at,
                                  .pos = w->pos};
    dq_mat hidden;
    DQ_TRY(dq_runner_pass(w->r, &batch, &pass, &hidden, err));
    DQ_TRY(dq_second_pass_peaks(w->peak, &again, err));
    for (int64_t i = 0; i < w->at[w->p->n_lists]; i++)
        w->peak[i] = log(w->peak[i] + DQ_KV_GATES_FLOOR);
    return DQ_OK;
}

static dq_status read_rows(reading *w, int list, dq_err *err)
{
    dq_backend *b = w->p->set.backend;
    const int groups = w->p->gates->n_groups;
    b->ops->kv_rows(b, dq_runner_kv(w->r), w->seq, list / groups, list % groups,
                    (int32_t)(w->n - 1), &w->p->set.model->rope, w->row);
    return dq_backend_sync(b, err);
}

static dq_status fit_window(reading *w, dq_err *err)
{
    const dq_kv_gates *g = w->p->gates;
    for (int i = 0; i < w->p->n_lists; i++) {
        const int heads = g->heads[i % g->n_groups];
        const int64_t features = w->p->sums[i].n;
        DQ_TRY(read_rows(w, i, err));
        for (int64_t t = w->first; t < w->n; t++)
            dq_kv_gates_describe(w->feature + t * features, w->row + t * 2 * heads * g->head_dim,
                                 heads, g->head_dim, (int32_t)t);
        dq_plan_gates_add(&w->p->sums[i], w->feature + w->first * features,
                          w->peak + w->at[i] + w->first, w->n - w->first);
    }
    return DQ_OK;
}

static dq_status foretell_window(reading *w, dq_err *err)
{
    for (int i = 0; i < w->p->n_lists; i++) {
        DQ_TRY(read_rows(w, i, err));
        DQ_TRY(
            dq_kv_gates_score(w->foretold + w->at[i], w->p->gates, i, w->row, w->pos, w->n, err));
    }
    return DQ_OK;
}

static dq_status run_window(dq_plan_gates *p, dq_runner *r, int64_t i, dq_arena *a, reading *w,
                            dq_err *err)
{
    dq_backend *b = p->set.backend;
    *w = (reading){.p = p, .r = r, .n = p->win.win[i].n, .win = &p->win.win[i]};
    w->first = w->n > dq_kv_plain.sink ? dq_kv_plain.sink : 0;
    DQ_TRY(reserve(w, a, err));
    w->seq = b->ops->kv_seq_new(b, dq_runner_kv(r));
    if (w->seq < 0) {
        dq_backend_sync(b, err);
        return dq_fail(err, DQ_RESOURCE, "out of memory for the KV cache");
    }
    if (run_passes(w, err) == DQ_OK) i < p->fitted ? fit_window(w, err) : foretell_window(w, err);
    b->ops->kv_seq_free(b, dq_runner_kv(r), w->seq);
    return err->code;
}

/* ---- What was not fitted ---- */

/* Sums over tokens of all lists, and of each window the share of kvzip's quarter. */
typedef struct verdict {
    double n, sum, squares, errors;
    double *kept; /* [windows] */
    int64_t windows;
} verdict;

/* Value of which a quarter of x[n] is at least as large. */
static double quarter_of(const double *x, int64_t n, double *scratch)
{
    memcpy(scratch, x, (size_t)n * sizeof *x);
    dq_stat_sort(scratch, n);
    return scratch[n - (n + 3) / 4];
}

static dq_status judge_window(verdict *v, const reading *w, dq_arena *a, dq_err *err)
{
    const int64_t lists = w->p->n_lists, n = lists * (w->n - w->first);
    double *is = dq_alloc(a, (size_t)n, sizeof *is, err);
    double *said = dq_alloc(a, (size_t)n, sizeof *said, err);
    double *scratch = dq_alloc(a, (size_t)n, sizeof *scratch, err);
    int64_t both = 0, wanted = 0, k = 0;
    DQ_TRY(err->code);
    for (int64_t i = 0; i < lists; i++) {
        for (int64_t t = w->first; t < w->n; t++, k++) {
            is[k] = w->peak[i * w->n + t];
            said[k] = w->foretold[i * w->n + t];
            v->n++;
            v->sum += is[k];
            v->squares += is[k] * is[k];
            v->errors += (is[k] - said[k]) * (is[k] - said[k]);
        }
    }
    const double least = quarter_of(is, n, scratch), least_said = quarter_of(said, n, scratch);
    for (k = 0; k < n; k++) {
        wanted += is[k] >= least;
        both += is[k] >= least && said[k] >= least_said;
    }
    v->kept[v->windows++] = (double)both / (double)wanted;
    return DQ_OK;
}

static dq_status solve_all(dq_plan_gates *p, dq_err *err)
{
    for (int i = 0; i < p->n_lists; i++)
        DQ_TRY(dq_plan_gates_solve(p->gates->weight + p->gates->at[i], &p->sums[i], err));
    return DQ_OK;
}

static dq_status run_all(dq_plan_gates *p, dq_runner *r, dq_err *err)
{
    verdict v = {.kept = dq_alloc(p->arena, (size_t)p->win.n, sizeof *v.kept, err)};
    for (int64_t i = 0; err->code == DQ_OK && i < p->win.n; i++) {
        reading w;
        dq_arena *a = dq_arena_new();
        if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
        if (p->set.step)
            p->set.step(p->set.arg, (double)i, (double)p->win.n, i < p->fitted ? "fit" : "unseen");
        if (i == p->fitted) solve_all(p, err);
        if (err->code == DQ_OK && run_window(p, r, i, a, &w, err) == DQ_OK && i >= p->fitted)
            judge_window(&v, &w, a, err);
        dq_arena_free(a);
    }
    DQ_TRY(err->code);
    p->kept = dq_mean_of(v.kept, v.windows);
    p->explained = 1 - v.errors / (v.squares - v.sum * v.sum / v.n);
    return DQ_OK;
}

dq_status dq_plan_gates_run(dq_plan_gates *p, dq_err *err)
{
    dq_runner *r;
    DQ_TRY(dq_runner_new(&r, p->set.model, p->set.backend, &dq_kv_plain, err));
    run_all(p, r, err);
    dq_runner_free(r);
    return err->code;
}
