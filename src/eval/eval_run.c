/* eval_run: the sweep itself. See eval.h.
 * SPDX-License-Identifier: MIT */
#include "eval/eval.h"

#include "base/os.h"

#include <math.h>
#include <stdio.h>

enum { FLOOR_STATES = 8 }; /* of a window, for its noise floor */

/* ", KV 4:4 h2o 0.25"; "" of a plain cache. */
static void cache_note(char *note, size_t cap, const dq_kv_spec *s)
{
    char widths[DQ_KV_TEXT];
    const dq_evict_spec *x = &s->evict;
    if (dq_kv_spec_is_plain(s)) return;
    const size_t n = (size_t)snprintf(note, cap, ", KV %s", dq_kv_codes_text(widths, s));
    if (x->policy && n < cap)
        snprintf(note + n, cap - n, " %s %g", x->policy->name,
                 x->tokens ? (double)x->tokens : x->keep);
}

/* Share of the whole sweep that is finished, by items and windows. */
static void report(const dq_eval *e, const dq_eval_row *row)
{
    double done = 0, all = 0;
    char note[200], cache[64] = "";
    if (!e->progress) return;
    for (int i = 0; i < e->n_rows; i++) {
        double units = (double)dq_eval_units(e, &e->row[i]);
        double weight = (double)dq_eval_values(e, &e->row[i], dq_eval_units(e, &e->row[i])) / units;
        done += weight * (double)e->row[i].done;
        all += weight * units;
    }
    cache_note(cache, sizeof cache, &row->kv);
    snprintf(note, sizeof note, "%s, %s, %d bits%s", e->model[row->model].m->name,
             dq_eval_source_of(e, row)->name, row->logit.bits, cache);
    e->progress(e->progress_arg, done / all, note);
}

static dq_pass pass_of(const dq_eval_row *row)
{
    return (dq_pass){.logit = row->logit, .math = row->math};
}

/* The model's runner, or a new one with the row's cache: a cache has one form for its life. */
static dq_status runner_begin(dq_runner **r, const dq_eval *e, const dq_eval_row *row, dq_err *err)
{
    const dq_eval_model *m = &e->model[row->model];
    *r = m->runner;
    if (dq_kv_spec_is_plain(&row->kv) && row->kv.num == dq_kv_plain.num) return DQ_OK;
    return dq_runner_new(r, m->m, dq_runner_backend(m->runner), &row->kv, err);
}

static void runner_end(dq_runner *r, const dq_eval *e, const dq_eval_row *row)
{
    if (r != e->model[row->model].runner) dq_runner_free(r);
}

static dq_status score_items(dq_eval *e, dq_eval_row *row, dq_scorer *s, int64_t begin, int64_t end,
                             dq_err *err)
{
    const dq_eval_kind *kind = dq_eval_source_of(e, row)->kind;
    const dq_requests *q = &e->ids[row->ids].req;
    const int64_t from = dq_items_values(q, begin), to = dq_items_values(q, end);
    if (kind->score)
        DQ_TRY(kind->score(e, row, s, begin, end, err));
    else
        DQ_TRY(dq_score_items(s, q, begin, end, (dq_scores){row->logp, row->top1}, err));
    return dq_score_check_logp(e->model[row->model].m, row->logp + from, to - from, err);
}

/* A group of items failed on what the model computes: says of which item, by trying one by one. */
static dq_status name_item(dq_eval *e, dq_eval_row *row, dq_scorer *s, int64_t begin, int64_t end,
                           dq_err *err)
{
    const dq_eval_source *from = dq_eval_source_of(e, row);
    if (err->code != DQ_DAMAGED) return err->code;
    for (int64_t i = begin; i < end; i++) {
        dq_err one = {0};
        if (score_items(e, row, s, i, i + 1, &one) == DQ_OK) continue;
        const int64_t line = dq_eval_line(from, i), number = dq_eval_number(from, i);
        if (line)
            dq_in(&one, "%s: item %lld, line %lld: ", from->path, (long long)number,
                  (long long)line);
        else
            dq_in(&one, "%s: item %lld: ", from->path, (long long)i);
        *err = one;
        break;
    }
    return err->code;
}

/* One past the last item that is finished together with the first that is not done. */
static int64_t group_of_items(const dq_eval *e, const dq_eval_row *row, int64_t rows, bool shared)
{
    const dq_requests *q = &e->ids[row->ids].req;
    const int64_t n = dq_eval_source_of(e, row)->kind->group;
    if (n) return row->done + n < q->n_items ? row->done + n : q->n_items;
    return dq_score_group(q, row->done, rows, shared);
}

static dq_status run_groups(dq_eval *e, int index, dq_scorer *s, dq_err *err)
{
    dq_eval_row *row = &e->row[index];
    const dq_requests *q = &e->ids[row->ids].req;
    bool shared = dq_score_shares(&s->pass, s->kv);
    while (row->done < q->n_items) {
        int64_t from = row->done;
        int64_t end = group_of_items(e, row, dq_score_rows(s->r, shared), shared);
        s->work = (dq_score_work){0};
        report(e, row);
        if (score_items(e, row, s, from, end, err) != DQ_OK)
            return name_item(e, row, s, from, end, err);
        DQ_TRY(dq_os_maps_check(err));
        row->pending = s->work;
        dq_score_work_add(&row->work, &row->pending);
        row->done = end;
        dq_eval_log(e, &index, &from, 1);
    }
    report(e, row);
    return DQ_OK;
}

static dq_status run_items(dq_eval *e, int index, dq_err *err)
{
    const dq_eval_row *row = &e->row[index];
    const dq_pass pass = pass_of(row);
    dq_scorer s;
    dq_runner *r;
    DQ_TRY(runner_begin(&r, e, row, err));
    if (dq_score_begin(&s, r, &pass, &row->kv, err) == DQ_OK) run_groups(e, index, &s, err);
    dq_score_end(&s);
    runner_end(r, e, row);
    return err->code;
}

/* What one group of windows needs: final states of the reference and of the row at hand. */
typedef struct text_run {
    dq_backend *b;
    dq_mat state, ref_state;
    int64_t begin, end;
    int *rows;     /* [n_rows] that have this reference, which comes first */
    int64_t *from; /* [n_rows] */
    int n_rows;
    int64_t max_rows; /* of a group */
    bool alike;       /* its windows have one shape */
} text_run;

/* Scores the group with a runner that lives as long: all rows of a cluster take turns, and their
 * activations together may not fit. */
static dq_status score_windows(const dq_eval *e, const text_run *t, dq_eval_row *row, dq_mat state,
                               dq_err *err)
{
    const dq_windows *w = &e->ids[row->ids].win;
    const dq_pass pass = pass_of(row);
    const int64_t at = dq_windows_values(w, t->begin);
    const dq_scores out = {row->logp + at, row->top1 + at};
    dq_scorer s;
    dq_runner *r;
    DQ_TRY(runner_begin(&r, e, row, err));
    if (dq_score_begin(&s, r, &pass, &row->kv, err) == DQ_OK)
        dq_score_windows(&s, w, t->begin, t->end, state, out, err);
    row->pending = s.work;
    dq_score_end(&s);
    runner_end(r, e, row);
    return err->code;
}

/* The mean KLD of a window's first states, from `at` of ref_state on, with the same states moved by one
 * unit in the last place each, up and down in turn. */
static dq_status noise_floor(const text_run *t, const dq_eval_row *row, const dq_weight *head,
                             dq_mat state, double *floor, dq_err *err)
{
    const dq_ops *ops = t->b->ops;
    const int64_t n = state.rows * state.cols;
    dq_mat moved = {.p = t->state.p, .rows = state.rows, .cols = state.cols};
    double kld[FLOOR_STATES];
    float *x = dq_block_new((size_t)n, sizeof *x, err);
    if (!x) return err->code;
    ops->get(t->b, x, state.p, (size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = nextafterf(x[i], i % 2 ? INFINITY : -INFINITY);
    ops->put(t->b, moved.p, x, (size_t)n * sizeof *x);
    ops->kld(t->b, kld, state, head, row->math.linear, moved, head, row->math.linear);
    dq_backend_sync(t->b, err);
    dq_block_free(x);
    *floor = 0;
    for (int64_t i = 0; i < state.rows; i++) *floor += kld[i] / (double)state.rows;
    return err->code;
}

/* What only a reference row has: how sure it is of its most likely ids, and the noise floors. */
static dq_status observe_reference(dq_eval *e, text_run *t, dq_eval_row *row, dq_mat state,
                                   dq_err *err)
{
    const dq_windows *w = &e->ids[row->ids].win;
    const dq_weight *head = &e->model[row->model].m->head;
    const int64_t at = dq_windows_values(w, t->begin);
    t->b->ops->logprob(t->b, row->top_logp + at, NULL, state, head, row->top1 + at,
                       row->math.linear);
    DQ_TRY(dq_backend_sync(t->b, err));
    for (int64_t i = t->begin; row->extra && i < t->end; i++) {
        dq_mat few = state;
        few.p += (w->win[i].value - at) * few.cols;
        few.rows = dq_window_scored(&w->win[i]);
        if (few.rows > FLOOR_STATES) few.rows = FLOOR_STATES;
        DQ_TRY(noise_floor(t, row, head, few, &row->extra[i], err));
    }
    return DQ_OK;
}

/* One row over the group; the reference row comes first. */
static dq_status run_windows(dq_eval *e, text_run *t, int index, dq_err *err)
{
    dq_eval_row *row = &e->row[index];
    const dq_eval_row *ref = &e->row[row->ref];
    const dq_windows *w = &e->ids[row->ids].win;
    bool is_ref = row->ref == index;
    int64_t at = dq_windows_values(w, t->begin), n = dq_windows_values(w, t->end) - at;
    dq_mat state = is_ref ? t->ref_state : t->state;

    state.rows = n;
    state.cols = e->model[row->model].m->dim; /* a reference may be of another size */
    if (score_windows(e, t, row, state, err) == DQ_OK)
        dq_score_check_logp(e->model[row->model].m, row->logp + at, n, err);
    if (err->code == DQ_DAMAGED)
        dq_in(err, "%s: windows %lld to %lld: ", dq_eval_source_of(e, row)->path,
              (long long)t->begin, (long long)t->end - 1);
    DQ_TRY(err->code);
    for (int64_t i = 0; i < n; i++) row->kld[at + i] = 0;
    if (is_ref) {
        DQ_TRY(observe_reference(e, t, row, state, err));
    } else {
        dq_mat want = t->ref_state;
        want.rows = n;
        want.cols = e->model[ref->model].m->dim;
        t->b->ops->kld(t->b, row->kld + at, want, &e->model[ref->model].m->head, ref->math.linear,
                       state, &e->model[row->model].m->head, row->math.linear);
        DQ_TRY(dq_backend_sync(t->b, err));
    }
    return DQ_OK;
}

/* The end of a group of windows: as many as have max_rows rows, or one. */
static int64_t group_end(const dq_windows *w, int64_t begin, int64_t max_rows, bool alike)
{
    int64_t end = begin, rows = 0;
    while (end < w->n && (end == begin || rows + w->win[end].n <= max_rows) &&
           (!alike || dq_windows_alike(w, begin, end + 1)))
        rows += w->win[end++].n;
    return end;
}

/* Whether a row's cache takes windows of one shape only. */
static bool takes_alike(const dq_eval *e, const text_run *t)
{
    for (int i = 0; i < t->n_rows; i++) {
        if (!dq_kv_spec_is_plain(&e->row[t->rows[i]].kv)) return true;
    }
    return false;
}

/* All rows with one reference, one group of windows after the other: the reference's states are kept
 * for one group only. A group counts once all of its rows are finished. */
static dq_status run_cluster(dq_eval *e, text_run *t, dq_err *err)
{
    const dq_eval_row *ref = &e->row[t->rows[0]];
    const dq_windows *w = &e->ids[ref->ids].win;
    for (t->begin = ref->done; t->begin < w->n; t->begin = t->end) {
        t->end = group_end(w, t->begin, t->max_rows, t->alike);
        report(e, ref);
        for (int i = 0; i < t->n_rows; i++) DQ_TRY(run_windows(e, t, t->rows[i], err));
        DQ_TRY(dq_os_maps_check(err));
        for (int i = 0; i < t->n_rows; i++) {
            dq_eval_row *row = &e->row[t->rows[i]];
            t->from[i] = t->begin;
            row->done = t->end;
            dq_score_work_add(&row->work, &row->pending);
        }
        dq_eval_log(e, t->rows, t->from, t->n_rows);
        report(e, ref);
    }
    return DQ_OK;
}

/* The rows of a cluster, the reference first; *dim: of the widest model. */
static dq_status cluster_begin(dq_eval *e, text_run *t, int ref, int *dim, dq_err *err)
{
    t->rows = dq_block_new((size_t)e->n_rows, sizeof *t->rows, err);
    t->from = dq_block_new((size_t)e->n_rows, sizeof *t->from, err);
    if (!t->rows || !t->from) return err->code;
    t->rows[t->n_rows++] = ref;
    *dim = e->model[e->row[ref].model].m->dim;
    for (int i = 0; i < e->n_rows; i++) {
        if (i == ref || e->row[i].ref != ref) continue;
        t->rows[t->n_rows++] = i;
        if (e->model[e->row[i].model].m->dim > *dim) *dim = e->model[e->row[i].model].m->dim;
    }
    return DQ_OK;
}

static dq_status run_text(dq_eval *e, int ref, dq_err *err)
{
    const dq_eval_row *row = &e->row[ref];
    const dq_windows *w = &e->ids[row->ids].win;
    text_run t = {.b = dq_runner_backend(e->model[row->model].runner)};
    int64_t n = 0;
    size_t bytes = 0;
    int dim = 0;
    t.max_rows = dq_runner_rows(e->model[row->model].runner, DQ_SCORE_ROWS);
    cluster_begin(e, &t, ref, &dim, err);
    t.alike = takes_alike(e, &t);
    for (int64_t begin = 0, end; begin < w->n; begin = end) {
        end = group_end(w, begin, t.max_rows, t.alike);
        int64_t k = dq_windows_values(w, end) - dq_windows_values(w, begin);
        if (k > n) n = k;
    }
    if (!dq_mul_ok(&bytes, (size_t)n, (size_t)dim * sizeof(float)))
        dq_fail(err, DQ_RESOURCE, "windows of %lld ids do not fit in memory",
                (long long)w->longest);
    if (err->code == DQ_OK) {
        t.state = (dq_mat){.p = t.b->ops->alloc(t.b, bytes), .cols = dim};
        t.ref_state = (dq_mat){.p = t.b->ops->alloc(t.b, bytes), .cols = dim};
        if (!t.state.p || !t.ref_state.p) {
            dq_backend_sync(t.b, err);
            dq_fail(err, DQ_RESOURCE, "out of memory for the final states of %lld ids",
                    (long long)n);
            dq_runner_advise(e->model[row->model].runner, t.max_rows, err);
        }
    }
    if (err->code == DQ_OK) run_cluster(e, &t, err);
    t.b->ops->free(t.b, t.state.p);
    t.b->ops->free(t.b, t.ref_state.p);
    dq_block_free(t.rows);
    dq_block_free(t.from);
    return err->code;
}

dq_status dq_eval_run(dq_eval *e, dq_err *err)
{
    for (int i = 0; i < e->n_rows; i++) {
        if (!dq_eval_source_of(e, &e->row[i])->kind->windows)
            DQ_TRY(run_items(e, i, err));
        else if (e->row[i].ref == i)
            DQ_TRY(run_text(e, i, err));
    }
    return DQ_OK;
}
