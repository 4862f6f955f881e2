/* plan_gates: see plan_gates.h. Normal equations are summed list by list, each row of the matrix by one thread in the order of
 * tokens. Features are centred before the ridge, so that the constant is not drawn to zero. The runs are plan_gates_run.c's.
 * SPDX-License-Identifier: MIT */
#include "plan/cache/plan_gates.h"

#include "calibrate/cholesky.h"

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
