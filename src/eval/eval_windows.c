/* eval_windows: dq_eval_sweep_windows of eval_sweep.h. All rows with one reference take turns: the reference's final states
 * are kept for the windows of a turn, and each row runs over these, some windows at a time, each time written down by
 * itself. Of the reference, a resumed run computes the states of what is
 * finished already once more where another row lacks them.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "eval/eval_sweep.h"

#include <math.h>

enum { FLOOR_STATES = 8 }; /* of a window, for its noise floor */

typedef struct cluster {
    dq_eval_sweep *s;
    dq_eval *e;
    dq_backend *b;
    const dq_windows *w;
    int *rows; /* [n_rows] that have this reference, which comes first */
    int n_rows;
    int dim;               /* of the widest model */
    bool several;          /* models */
    const dq_weight *kept; /* see keep_head; NULL: nothing */
    int64_t limit;         /* of the windows that are asked for */
    int64_t max_rows;      /* of a turn, and of the states below */
    int64_t begin, end;    /* the turn */
    dq_mat ref_state;      /* of its scored tokens */
    dq_mat state;          /* of the windows at hand */
} cluster;

/* Windows begin .. end - 1 of one row. */
typedef struct step {
    int64_t begin, end;
    int64_t at, n; /* its scored tokens: the first, and how many */
    dq_mat state;
} step;

static dq_status score(const cluster *c, dq_eval_row *row, const step *x, dq_err *err)
{
    const dq_pass pass = dq_eval_sweep_pass(c->s, row);
    const dq_scores out = {row->logp + x->at, row->top1 + x->at};
    dq_scorer s;
    dq_runner *r;
    DQ_TRY(dq_eval_sweep_runner(&r, c->s, row, err));
    if (dq_score_begin(&s, r, &pass, &row->run, err) == DQ_OK)
        dq_score_windows(&s, c->w, x->begin, x->end, x->state, out, err);
    row->pending = s.work;
    dq_score_end(&s);
    dq_eval_sweep_runner_end(r, c->s);
    return err->code;
}

/* The mean KLD of a window's first states with the same states moved by one unit in the last place each, up and down in
 * turn. */
static dq_status noise_floor(const cluster *c, const dq_eval_row *row, dq_mat state, double *floor,
                             dq_err *err)
{
    const dq_ops *ops = c->b->ops;
    const dq_weight *head = &c->e->model[row->model].m->head;
    const int64_t n = state.rows * state.cols;
    dq_mat moved = {.p = c->state.p, .rows = state.rows, .cols = state.cols};
    double kld[FLOOR_STATES];
    float *x = dq_block_new((size_t)n, sizeof *x, err);
    if (!x) return err->code;
    ops->get(c->b, x, state.p, (size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = nextafterf(x[i], i % 2 ? INFINITY : -INFINITY);
    ops->put(c->b, moved.p, x, (size_t)n * sizeof *x);
    ops->kld(c->b, kld, state, head, row->math.linear, moved, head, row->math.linear);
    dq_backend_sync(c->b, err);
    dq_block_free(x);
    *floor = 0;
    for (int64_t i = 0; i < state.rows; i++) *floor += kld[i] / (double)state.rows;
    return err->code;
}

/* What only a reference row has: how sure it is of its most likely ids, and the noise floors. */
static dq_status observe_reference(const cluster *c, dq_eval_row *row, const step *x, dq_err *err)
{
    c->b->ops->logprob(c->b, row->top_logp + x->at, NULL, x->state,
                       &c->e->model[row->model].m->head, row->top1 + x->at, row->math.linear);
    DQ_TRY(dq_backend_sync(c->b, err));
    for (int64_t i = x->begin; row->extra && i < x->end; i++) {
        dq_mat few = x->state;
        few.p += (c->w->win[i].value - x->at) * few.cols;
        few.rows = dq_window_scored(&c->w->win[i]);
        if (few.rows > FLOOR_STATES) few.rows = FLOOR_STATES;
        DQ_TRY(noise_floor(c, row, few, &row->extra[i], err));
    }
    return DQ_OK;
}

/* The reference's final states of the turn, from scored id `at` on. */
static dq_mat ref_states(const cluster *c, int64_t at, int64_t n)
{
    const dq_eval_row *ref = &c->e->row[c->rows[0]];
    dq_mat m = c->ref_state;
    m.rows = n;
    m.cols = c->e->model[ref->model].m->dim; /* a reference may be of another size */
    m.p += (at - dq_windows_values(c->w, c->begin)) * m.cols;
    return m;
}

static dq_status compare(const cluster *c, dq_eval_row *row, const step *x, dq_err *err)
{
    const dq_eval_row *ref = &c->e->row[c->rows[0]];
    c->b->ops->kld(c->b, row->kld + x->at, ref_states(c, x->at, x->n),
                   &c->e->model[ref->model].m->head, ref->math.linear, x->state,
                   &c->e->model[row->model].m->head, row->math.linear);
    return dq_backend_sync(c->b, err);
}

static dq_status run_step(const cluster *c, dq_eval_row *row, step *x, bool again, dq_err *err)
{
    const bool is_ref = row == &c->e->row[c->rows[0]];
    const dq_model *m = c->e->model[row->model].m;
    x->at = dq_windows_values(c->w, x->begin);
    x->n = dq_windows_values(c->w, x->end) - x->at;
    x->state = is_ref ? ref_states(c, x->at, x->n)
                      : (dq_mat){.p = c->state.p, .rows = x->n, .cols = m->dim};
    if (score(c, row, x, err) == DQ_OK) dq_score_check_logp(m, row->logp + x->at, x->n, err);
    if (err->code == DQ_DAMAGED)
        dq_in(err, "%s: windows %lld to %lld: ", dq_eval_source_of(c->e, row)->path,
              (long long)x->begin, (long long)x->end - 1);
    if (err->code != DQ_OK || again) return err->code;
    for (int64_t i = 0; i < x->n; i++) row->kld[x->at + i] = 0;
    return is_ref ? observe_reference(c, row, x, err) : compare(c, row, x, err);
}

/* The end of a group of windows before `limit`: as many as have max_rows rows, or one. */
static int64_t group_end(const dq_windows *w, int64_t begin, int64_t limit, int64_t max_rows,
                         bool alike)
{
    int64_t end = begin, rows = 0;
    while (end < limit && (end == begin || rows + w->win[end].n <= max_rows) &&
           (!alike || dq_windows_alike(w, begin, end + 1)))
        rows += w->win[end++].n;
    return end;
}

/* Of a step of the row, whose model is held: where it is not the reference's, its own passes may be what memory holds fewer of. */
static int64_t max_rows_of(const cluster *c, const dq_eval_row *row)
{
    if (row->model == c->e->row[c->rows[0]].model) return c->max_rows;
    return dq_runner_rows(c->s->runner, c->max_rows);
}

/* What a row lacks of the turn; the reference's states of all of it. */
static dq_status run_row(const cluster *c, int index, dq_err *err)
{
    dq_eval_row *row = &c->e->row[index];
    const bool alike = !dq_kv_spec_is_plain(&row->kv); /* its cache takes windows of one shape */
    const int64_t max = max_rows_of(c, row);
    step x = {.begin = c->begin};
    for (; x.begin < c->end; x.begin = x.end) {
        const bool again = row->finished[x.begin];
        const int64_t limit = dq_eval_alike(row, x.begin, c->end);
        x.end = limit;
        if (again && index != c->rows[0]) continue;
        x.end = group_end(c->w, x.begin, limit, dq_eval_sweep_rows(row, max), alike);
        dq_eval_sweep_step(c->s, row, x.begin, x.end, again);
        DQ_TRY(run_step(c, row, &x, again, err));
        DQ_TRY(dq_os_maps_check(err));
        dq_eval_sweep_step_end(c->s);
        if (again) continue;
        dq_eval_finish(c->e, index, x.begin, x.end);
    }
    return DQ_OK;
}

/* ---- Clusters ---- */

static void add_rows(cluster *c, int model)
{
    const dq_eval *e = c->e;
    const int ref = c->rows[0];
    const int before = c->n_rows;
    for (int i = 0; i < e->n_rows; i++) {
        const dq_eval_row *row = &e->row[i];
        if (i != ref && row->ref == ref && row->same == i && row->model == model)
            c->rows[c->n_rows++] = i;
    }
    if (c->n_rows > before && e->model[model].m->dim > c->dim) c->dim = e->model[model].m->dim;
}

/* The rows, model by model, the reference and others of its model first. */
static dq_status find_rows(cluster *c, int ref, dq_err *err)
{
    const dq_eval *e = c->e;
    const int model = e->row[ref].model;
    c->rows = dq_block_new((size_t)e->n_rows, sizeof *c->rows, err);
    if (!c->rows) return err->code;
    c->rows[c->n_rows++] = ref;
    c->dim = e->model[model].m->dim;
    add_rows(c, model);
    for (int m = 0; m < e->n_models; m++) {
        if (m != model) add_rows(c, m);
    }
    c->several = e->row[c->rows[c->n_rows - 1]].model != model;
    return DQ_OK;
}

static dq_status make_states(cluster *c, dq_err *err)
{
    const dq_windows *w = c->w;
    int64_t n = c->max_rows > w->longest ? c->max_rows : w->longest;
    size_t bytes;
    if (n > w->n_values) n = w->n_values;
    if (!dq_mul_ok(&bytes, (size_t)n, (size_t)c->dim * sizeof(float)))
        return dq_fail(err, DQ_RESOURCE, "windows of %lld tokens do not fit in memory",
                       (long long)w->longest);
    c->state.p = c->b->ops->alloc(c->b, bytes);
    c->ref_state.p = c->b->ops->alloc(c->b, bytes);
    if (c->state.p && c->ref_state.p) return DQ_OK;
    dq_backend_sync(c->b, err);
    dq_fail(err, DQ_RESOURCE, "out of memory for the final states of %lld tokens", (long long)n);
    return dq_runner_advise(c->s->runner, c->max_rows, err);
}

/* The first window from `at` on that some row lacks. */
static int64_t first_lacking(const cluster *c, int64_t at)
{
    int64_t first = c->limit;
    for (int i = 0; i < c->n_rows; i++) first = dq_eval_lacking(&c->e->row[c->rows[i]], at, first);
    return first;
}

/* With several models a turn is as long as it can be, as each of them packs its weights anew; with one it is a step, after
 * which nothing of the reference is computed again. */
static dq_status run_turns(cluster *c, bool once, dq_err *err)
{
    while ((c->begin = first_lacking(c, c->begin)) < c->limit) {
        const dq_eval_row *ref = &c->e->row[c->rows[0]];
        const int64_t rows =
            c->several && !once ? c->max_rows : dq_eval_sweep_rows(ref, c->max_rows);
        c->end = group_end(c->w, c->begin, c->limit, rows, false);
        for (int i = 0; i < c->n_rows; i++) {
            const dq_eval_row *row = &c->e->row[c->rows[i]];
            if (i > 0 && dq_eval_lacking(row, c->begin, c->end) == c->end) continue;
            DQ_TRY(dq_eval_sweep_hold(c->s, row->model, err));
            DQ_TRY(run_row(c, c->rows[i], err));
        }
        if (once) break;
    }
    return DQ_OK;
}

/* The reference's head, which all differences need, while its model is not held. */
static dq_status keep_head(cluster *c, dq_err *err)
{
    const dq_weight *head = &c->e->model[c->e->row[c->rows[0]].model].m->head;
    if (!c->several || !c->b->ops->weight_acquire) return DQ_OK;
    c->kept = c->b->ops->weight_acquire(c->b, head) ? head : NULL;
    return dq_backend_sync(c->b, err);
}

dq_status dq_eval_sweep_windows(dq_eval_sweep *s, int ref, int64_t begin, int64_t end, bool once,
                                dq_err *err)
{
    const dq_eval_row *row = &s->e->row[ref];
    cluster c = {.s = s, .e = s->e, .w = &s->e->ids[row->ids].win, .begin = begin, .limit = end};
    if (find_rows(&c, ref, err) == DQ_OK && first_lacking(&c, begin) < end &&
        dq_eval_sweep_hold(s, row->model, err) == DQ_OK) {
        c.b = dq_runner_backend(s->runner);
        c.max_rows = dq_runner_rows(s->runner, DQ_SCORE_ROWS);
        if (make_states(&c, err) == DQ_OK && keep_head(&c, err) == DQ_OK) run_turns(&c, once, err);
        if (c.kept) c.b->ops->weight_release(c.b, c.kept);
        c.b->ops->free(c.b, c.state.p);
        c.b->ops->free(c.b, c.ref_state.p);
    }
    dq_block_free(c.rows);
    return err->code;
}
