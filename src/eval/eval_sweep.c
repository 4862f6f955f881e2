/* eval_sweep: see eval_sweep.h. What is told is a share of the time, by what rows of the table have taken so far (base/work.h). Within a
 * step it goes by the rows that passes have computed, of those that its sequences feed; where contexts are shared, or read
 * again, there are fewer or more, and the rest counts at the step's end.
 * SPDX-License-Identifier: MIT */
#include "eval/eval_sweep.h"

#include "base/os.h"
#include "base/ranks.h"

#include <stdio.h>

enum { STEP_ROWS = 512 }; /* of a step at least: products over fewer rows cost more each */

/* ---- How far ---- */

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

static void report(dq_eval_sweep *s)
{
    const dq_eval *e = s->e;
    char note[200], cache[64] = "";
    const double taken = dq_pace_taken(&s->pace), all = taken + dq_pace_left(&s->pace);
    if (!e->progress) return;
    cache_note(cache, sizeof cache, &s->row->kv);
    snprintf(note, sizeof note, "%s, %s, %d bits%s", e->model[s->row->model].m->name,
             dq_eval_source_of(e, s->row)->name, s->row->logit.bits, cache);
    e->progress(e->progress_arg, all > 0 ? taken / all : 1, note);
}

static int kind_of(const dq_eval *e, const dq_eval_row *row)
{
    return (int)(row - e->row) % DQ_PACE_KINDS;
}

/* Seconds that are expected of a row of a pass, before any was timed. */
static double rate_of(const dq_eval *e, const dq_eval_row *row)
{
    const dq_eval_model *m = &e->model[row->model];
    const double parameter = 2e-11;
    return m->seconds > 0 ? m->seconds : parameter * (double)m->m->n_params;
}

void dq_eval_sweep_told(dq_eval_sweep *s, const dq_eval_row *row, int64_t begin, int64_t end)
{
    dq_pace_step(&s->pace, kind_of(s->e, row),
                 rate_of(s->e, row) * dq_eval_sweep_feeds(s->e, row, begin, end), dq_os_seconds());
}

/* Rows of the step at hand are computed. */
static void advance(dq_eval_sweep *s, double rows, double now)
{
    const double left = s->feeds - s->fed, n = rows < left ? rows : left;
    s->fed += n;
    dq_pace_step(&s->pace, kind_of(s->e, s->row), n * s->rate, now);
}

/* dq_pass_listener. Passes of small models end faster than anybody looks. */
static void tell(void *arg, double rows)
{
    enum { PER_SECOND = 10 };
    dq_eval_sweep *s = arg;
    const double now = dq_os_seconds();
    advance(s, rows, now);
    dq_ranks_poll();
    if (now - s->told < 1.0 / PER_SECOND) return;
    s->told = now;
    report(s);
}

void dq_eval_sweep_begin(dq_eval_sweep *s, dq_eval *e)
{
    *s = (dq_eval_sweep){.e = e, .model = -1};
    dq_pace_begin(&s->pace, dq_os_seconds());
    for (int i = 0; i < e->n_rows; i++) {
        const dq_eval_row *row = &e->row[i];
        const double rate = rate_of(e, row) * e->share;
        if (row->same != i) continue;
        const int64_t n = dq_eval_units(e, row);
        for (int64_t at = 0, end; at < n; at = end) {
            end = dq_eval_alike(row, at, n);
            if (row->finished[at]) continue;
            dq_pace_expect(&s->pace, kind_of(e, row), rate * dq_eval_sweep_feeds(e, row, at, end));
        }
    }
}

/* ---- Runners ---- */

dq_pass dq_eval_sweep_pass(dq_eval_sweep *s, const dq_eval_row *row)
{
    return (dq_pass){.logit = row->logit, .math = row->math, .listener = {tell, s}};
}

dq_status dq_eval_sweep_runner(dq_runner **r, const dq_eval_sweep *s, const dq_eval_row *row,
                               dq_err *err)
{
    const dq_eval_model *m = &s->e->model[row->model];
    *r = s->runner;
    if (dq_kv_spec_is_plain(&row->kv) && row->kv.num == dq_kv_plain.num) return DQ_OK;
    return dq_runner_new(r, m->m, dq_runner_backend(s->runner), &row->kv, err);
}

void dq_eval_sweep_runner_end(dq_runner *r, const dq_eval_sweep *s)
{
    if (r != s->runner) dq_runner_free(r);
}

/* Nothing is held. */
static void let_go(dq_eval_sweep *s)
{
    if (s->model < 0) return;
    const dq_eval_model *m = &s->e->model[s->model];
    if (!m->runner) {
        dq_runner_free(s->runner);
        dq_model_release(m->m);
    }
    s->runner = NULL;
    s->model = -1;
}

dq_status dq_eval_sweep_hold(dq_eval_sweep *s, int model, dq_err *err)
{
    const dq_eval_model *m = &s->e->model[model];
    if (s->model == model) return DQ_OK;
    let_go(s);
    s->runner = m->runner;
    if (!m->runner) DQ_TRY(dq_runner_new(&s->runner, m->m, s->e->backend, &dq_kv_plain, err));
    s->model = model;
    if (s->e->begins) s->e->begins(s->e->progress_arg, model);
    return DQ_OK;
}

void dq_eval_sweep_end(dq_eval_sweep *s)
{
    let_go(s);
}

/* ---- Steps ---- */

double dq_eval_sweep_feeds(const dq_eval *e, const dq_eval_row *row, int64_t begin, int64_t end)
{
    const dq_eval_ids *ids = &e->ids[row->ids];
    const dq_requests *q = &ids->req;
    double n = 0;
    if (dq_eval_source_of(e, row)->kind->windows) {
        for (int64_t i = begin; i < end; i++) n += (double)ids->win.win[i].n;
        return n;
    }
    for (int64_t k = q->at[begin]; k < q->at[end]; k++) n += (double)dq_score_fed(&q->req[k]);
    return n;
}

int64_t dq_eval_sweep_rows(const dq_eval_row *row, int64_t max)
{
    const int64_t rows = row->step_rows ? row->step_rows : STEP_ROWS;
    return rows < max ? rows : max;
}

/* A step of so many rows has taken so long: how many the next one may have. */
static void set_pace(dq_eval_row *row, double rows, double seconds)
{
    const double most = row->step_rows ? (double)row->step_rows : STEP_ROWS;
    double next = most;
    if (seconds < 0.5 && 2 * rows >= most) next = 2 * (rows > most ? rows : most);
    if (seconds > 1) next = rows * 0.5 / seconds;
    row->step_rows = next > STEP_ROWS ? (int64_t)next : STEP_ROWS;
}

void dq_eval_sweep_step(dq_eval_sweep *s, dq_eval_row *row, int64_t begin, int64_t end, bool again)
{
    s->row = row;
    s->fed = 0;
    s->feeds = dq_eval_sweep_feeds(s->e, row, begin, end);
    s->rate = again ? 0 : rate_of(s->e, row);
    s->begun = dq_os_seconds();
    report(s);
}

void dq_eval_sweep_step_end(dq_eval_sweep *s)
{
    const double now = dq_os_seconds(), seconds = now - s->begun;
    advance(s, s->feeds, now);
    report(s);
    set_pace(s->row, s->feeds, seconds);
}
