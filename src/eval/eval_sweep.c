/* A piece has about as many rows of passes as products need to be fast; where models take turns
 * over a text, as many as a turn has, since each turn packs their weights anew.
 * SPDX-License-Identifier: MIT */
#include "base/json.h"
#include "base/os.h"
#include "eval/inside.h"
#include "tasks/documents.h"
#include "work/ranks.h"
#include "work/work.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dq_eval_sweep {
    dq_eval *e;
    dq_pace pace; /* a row a kind; rows share kinds where there are many */
    /* the current step: units of a row that are finished together */
    dq_eval_row *row;
    double fed, feeds;  /* rows that passes have computed, and will */
    double rate;        /* seconds that are expected of each; 0: it is done again */
    double begun, told; /* seconds */
    int model;          /* whose rows are at work; -1: none */
    dq_runner *runner;  /* its plain one: the caller's, or the sweep's own */
} sweep;

/* Pieces of a sweep that several processes or runs can share; they follow from models, items and
 * settings alone. */

/* Units begin .. end - 1 of a row of items; for texts, of all rows with reference row `row`. */
typedef struct piece {
    int64_t number;
    int row;
    int turn; /* pieces of a turn are consecutive, so that models change rarely */
    int64_t begin, end;
    double work; /* ids that are fed times parameters */
} piece;

typedef struct pieces {
    piece *piece; /* [n], of e->a, by turn, row and unit */
    int64_t n;
} pieces;

enum { PIECE_ROWS = 1024 };

/* The end of a run from `at` on of units that are all finished or all not. */
static int64_t alike_end(const dq_eval_row *row, int64_t at, int64_t end)
{
    int64_t i = at;
    while (i < end && row->finished[i] == row->finished[at]) i++;
    return i;
}

int64_t dq_eval_lacking(const dq_eval_row *row, int64_t at, int64_t end)
{
    return at < end && row->finished[at] ? alike_end(row, at, end) : at;
}

/* Tokens fed for the units, without sharing. */
static double sweep_feeds(const dq_eval *e, const dq_eval_row *row, int64_t begin, int64_t end)
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

/* Units that must stay together from `at` on, as they finish together or share a prefix, which is
 * fed once: their end, and the tokens fed. */
static int64_t together(const dq_eval *e, const dq_eval_row *row, int64_t at, double *fed)
{
    const dq_eval_kind *kind = dq_eval_source_of(e, row)->kind;
    const int64_t n = dq_eval_units(e, row);
    int64_t end = at + (kind->group ? kind->group : 1);
    *fed = 0;
    if (!kind->windows) {
        const dq_shared_prefix *p = dq_items_shared_prefix(&e->ids[row->ids].req, at);
        if (p->n && p->end > end) end = p->end;
        *fed = (double)p->n;
    }
    if (end > n) end = n;
    *fed += sweep_feeds(e, row, at, end);
    return end;
}

/* The pieces of row `first`, or of all rows that have it as reference. */
static dq_status add_row(pieces *out, size_t *cap, const dq_eval *e, int first, int turn, bool cut,
                         dq_err *err)
{
    const dq_eval_row *row = &e->row[first];
    const bool windows = dq_eval_source_of(e, row)->kind->windows;
    const int64_t n = dq_eval_units(e, row);
    bool several = false;
    double parameters = 0;
    for (int i = 0; i < e->n_rows; i++) {
        const dq_eval_row *r = &e->row[i];
        if (i != first && !(windows && r->same == i && r->ref == first)) continue;
        parameters += (double)e->model[r->model].m->n_params;
        several = several || r->model != row->model;
    }
    const double rows = !cut ? INFINITY : several ? DQ_SCORE_ROWS : PIECE_ROWS;
    for (int64_t begin = 0, end; begin < n; begin = end) {
        double fed = 0, more;
        for (end = begin; end < n; fed += more) {
            const int64_t next = together(e, row, end, &more);
            if (end > begin && fed + more > rows) break;
            end = next;
        }
        piece *list = dq_grow(e->a, out->piece, (size_t)out->n + 1, cap, sizeof *list, err);
        if (!list) return err->code;
        list[out->n] = (piece){out->n, first, turn, begin, end, fed * parameters};
        out->piece = list;
        out->n++;
    }
    return DQ_OK;
}

static int by_work(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    if (x->work != y->work) return x->work < y->work ? 1 : -1;
    return x->number < y->number ? -1 : x->number > y->number;
}

static int by_turn(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    return x->turn != y->turn ? (x->turn < y->turn ? -1 : 1) : by_work(a, b);
}

/* cut: into pieces worth sharing; else one piece per row, which is faster to find. Items that share
 * a prefix stay together, so numbers and counts do not change. */
static dq_status make_pieces(pieces *out, const dq_eval *e, bool cut, dq_err *err)
{
    size_t cap = 0;
    *out = (pieces){0};
    for (int turn = 0; turn < 2 * e->n_models; turn++) { /* a model's items, then its texts */
        for (int i = 0; i < e->n_rows; i++) {
            const dq_eval_row *row = &e->row[i];
            const bool windows = dq_eval_source_of(e, row)->kind->windows;
            if (row->same != i || row->model != turn / 2 || windows != (turn % 2 == 1)) continue;
            if (!windows || row->ref == i) DQ_TRY(add_row(out, &cap, e, i, turn, cut, err));
        }
    }
    return DQ_OK;
}

/* shard[i] of piece i, 0 .. n_shards - 1: largest first, each to the shard with least work. */
static dq_status share_pieces(int *shard, const pieces *p, int n_shards, dq_err *err)
{
    double *work = dq_block_new((size_t)n_shards, sizeof *work, err);
    piece *order = work ? dq_block_new((size_t)p->n + 1, sizeof *order, err) : NULL;
    if (order && p->n) memcpy(order, p->piece, (size_t)p->n * sizeof *order);
    if (order) qsort(order, (size_t)p->n, sizeof *order, by_work);
    for (int64_t i = 0; order && i < p->n; i++) {
        int to = 0;
        for (int k = 1; k < n_shards; k++) {
            if (work[k] < work[to]) to = k;
        }
        shard[order[i].number] = to;
        work[to] += order[i].work;
    }
    dq_block_free(order);
    dq_block_free(work);
    return err->code;
}

/* Progress is a share of time, by what rows of the table have taken so far (work/work.h). Within a
 * step it counts computed rows of those that sequences feed; sharing or second passes make these
 * differ, which evens out at the step's end. */

enum { STEP_ROWS = 512 }; /* of a step at least: products over fewer rows cost more each */

static void report(sweep *s)
{
    const dq_eval *e = s->e;
    char note[200], cache[64] = "";
    const double taken = dq_pace_taken(&s->pace), all = taken + dq_pace_left(&s->pace);
    if (!e->progress) return;
    /* ", KV 4:4 h2o 0.25"; "" for a plain cache. */
    const size_t cap = sizeof cache;
    char widths[DQ_KV_TEXT];
    const dq_evict_spec *x = &s->row->kv.evict;
    if (!dq_kv_spec_is_plain(&s->row->kv)) {
        const size_t n =
            (size_t)snprintf(cache, cap, ", KV %s", dq_kv_codes_text(widths, &s->row->kv));
        if (x->policy && n < cap)
            snprintf(cache + n, cap - n, " %s %g", x->policy->name,
                     x->tokens ? (double)x->tokens : x->keep);
    }
    snprintf(note, sizeof note, "%s, %s, %d bits%s", e->model[s->row->model].m->name,
             dq_eval_source_of(e, s->row)->name, s->row->logit.bits, cache);
    e->progress(e->progress_arg, all > 0 ? taken / all : 1, note);
}

static int kind_of(const dq_eval *e, const dq_eval_row *row)
{
    return (int)(row - e->row) % DQ_PACE_KINDS;
}

/* Seconds per row of a pass, before any was timed. */
static double rate_of(const dq_eval *e, const dq_eval_row *row)
{
    const dq_eval_model *m = &e->model[row->model];
    const double parameter = 2e-11;
    return m->seconds > 0 ? m->seconds : parameter * (double)m->m->n_params;
}

static void advance(sweep *s, double rows, double now)
{
    const double left = s->feeds - s->fed, n = rows < left ? rows : left;
    s->fed += n;
    dq_pace_step(&s->pace, kind_of(s->e, s->row), n * s->rate, now);
}

/* Passes of small models end faster than anybody looks. */
static void tell(void *arg, double rows)
{
    enum { PER_SECOND = 10 };
    sweep *s = arg;
    const double now = dq_os_seconds();
    advance(s, rows, now);
    dq_ranks_poll();
    if (now - s->told < 1.0 / PER_SECOND) return;
    s->told = now;
    report(s);
}

static void sweep_begin(sweep *s, dq_eval *e)
{
    *s = (sweep){.e = e, .model = -1};
    dq_pace_begin(&s->pace, dq_os_seconds());
    for (int i = 0; i < e->n_rows; i++) {
        const dq_eval_row *row = &e->row[i];
        const double rate = rate_of(e, row) * e->share;
        if (row->same != i) continue;
        const int64_t n = dq_eval_units(e, row);
        for (int64_t at = 0, end; at < n; at = end) {
            end = alike_end(row, at, n);
            if (row->finished[at]) continue;
            dq_pace_expect(&s->pace, kind_of(e, row), rate * sweep_feeds(e, row, at, end));
        }
    }
}

/* Rows of the row's next step, at most `max`: 512 at first, then up to half a second of work at its
 * pace. A step has at least one unit, so a stop loses one unit, or about a second or 512 rows of
 * work. Grouping changes no result. */
static int64_t step_rows(const dq_eval_row *row, int64_t max)
{
    const int64_t rows = row->step_rows ? row->step_rows : STEP_ROWS;
    return rows < max ? rows : max;
}

/* A step of units begin .. end - 1. again: they are finished, and only what is not kept of them is
 * recomputed. */
static void step_begin(sweep *s, dq_eval_row *row, int64_t begin, int64_t end, bool again)
{
    s->row = row;
    s->fed = 0;
    s->feeds = sweep_feeds(s->e, row, begin, end);
    s->rate = again ? 0 : rate_of(s->e, row);
    s->begun = dq_os_seconds();
    report(s);
}

static void step_end(sweep *s)
{
    const double now = dq_os_seconds(), seconds = now - s->begun;
    advance(s, s->feeds, now);
    report(s);
    /* Chooses the size of the next step by the time of this one. */
    dq_eval_row *row = s->row;
    const double rows = s->feeds;
    const double most = row->step_rows ? (double)row->step_rows : STEP_ROWS;
    double next = most;
    if (seconds < 0.5 && 2 * rows >= most) next = 2 * (rows > most ? rows : most);
    if (seconds > 1) next = rows * 0.5 / seconds;
    row->step_rows = next > STEP_ROWS ? (int64_t)next : STEP_ROWS;
}

/* Finished work as lines of a ledger (work/work.h), one a step, which are units of a row that were
 * finished together. Reals keep their bits, so a resumed run gives the same ones as one that was
 * never stopped:
 *
 *   {"row": I, "from": UNIT, "to": UNIT, "tokens": .., "computed": .., "seconds": X, "held": [..],
 *    "gap_min": X, "logp": "X ..", "top1": [ID, ..], "kld": "X ..", "top_logp": "X ..",
 *    "extra": "X .."} */

/* Numbers of a row's units from .. to - 1 by their names; at NULL: it has none. */
enum { N_REALS = 4 };
typedef struct reals {
    const char *name;
    double *at; /* [n] */
    int64_t n;
} reals;
static void reals_of(reals out[N_REALS], const dq_eval *e, const dq_eval_row *r, int64_t from,
                     int64_t to)
{
    const int64_t at = dq_eval_values(e, r, from), n = dq_eval_values(e, r, to) - at;
    const int64_t extra = e->ids[r->ids].n_extra;
    out[0] = (reals){"logp", r->logp + at, n};
    out[1] = (reals){"kld", r->kld ? r->kld + at : NULL, n};
    out[2] = (reals){"top_logp", r->top_logp ? r->top_logp + at : NULL, n};
    out[3] = (reals){"extra", r->extra ? r->extra + from * extra : NULL, (to - from) * extra};
}

static dq_status put(dq_eval *e, int row, int64_t from, int64_t to, dq_err *err)
{
    dq_eval_row *r = &e->row[row];
    dq_score_work *w = &r->pending;
    const int64_t at = dq_eval_values(e, r, from);
    reals x[N_REALS];
    reals_of(x, e, r, from, to);
    json_t *held = json_array(), *top1 = json_array();
    for (int i = 0; i < DQ_KV_COUNTS; i++)
        json_array_append_new(held, json_integer(*dq_kv_cached_count(&w->cached, i)));
    for (int64_t i = at; i < at + x->n; i++) json_array_append_new(top1, json_integer(r->top1[i]));
    json_t *o =
        json_pack("{s:i, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o}", "row", row, "from",
                  (json_int_t)from, "to", (json_int_t)to, "tokens", (json_int_t)w->tokens,
                  "computed", (json_int_t)w->computed, "seconds", dq_work_reals(&w->seconds, 1),
                  "held", held, "gap_min", dq_work_reals(&w->cached.gap_min, 1), "top1", top1);
    for (int i = 0; i < N_REALS; i++) {
        if (x[i].at) json_object_set_new(o, x[i].name, dq_work_reals(x[i].at, x[i].n));
    }
    return dq_work_put(&e->work, o, err);
}

/* Units from .. to - 1 have their numbers and costs (`pending`) in place; marks them finished and
 * writes them down. */
static dq_status finish(dq_eval *e, int row, int64_t from, int64_t to, dq_err *err)
{
    dq_eval_row *r = &e->row[row];
    dq_score_work_add(&r->work, &r->pending);
    for (int64_t i = from; i < to; i++) r->finished[i] = true;
    return !e->alone && dq_work_records(&e->work) ? put(e, row, from, to, err) : DQ_OK;
}

/* A list of n whole numbers. */
static dq_status take_list(const json_t **list, const json_t *o, const char *key, int64_t n,
                           dq_err *err)
{
    size_t i;
    json_t *v;
    *list = json_object_get(o, key);
    if ((int64_t)json_array_size(*list) != n)
        return dq_fail(err, DQ_DAMAGED, "\"%s\": not %lld numbers", key, (long long)n);
    json_array_foreach(*list, i, v)
    {
        if (!json_is_integer(v)) return dq_fail(err, DQ_DAMAGED, "\"%s\": not a number", key);
    }
    return DQ_OK;
}

static dq_status get_row(dq_eval *e, const json_t *o, dq_err *err)
{
    int64_t index, from, to;
    dq_score_work w = {0};
    DQ_TRY(dq_json_int(&index, o, "row", 0, e->n_rows - 1, NULL, err));
    dq_eval_row *r = &e->row[index];
    if (r->same != index)
        return dq_fail(err, DQ_DAMAGED, "row %lld is not computed for itself", (long long)index);
    DQ_TRY(dq_json_int(&from, o, "from", 0, dq_eval_units(e, r) - 1, NULL, err));
    DQ_TRY(dq_json_int(&to, o, "to", from + 1, dq_eval_units(e, r), NULL, err));
    if (r->finished[from] || alike_end(r, from, to) < to)
        return dq_fail(err, DQ_DAMAGED, "row %lld has units of %lld to %lld twice",
                       (long long)index, (long long)from, (long long)to - 1);
    DQ_TRY(dq_json_int(&w.tokens, o, "tokens", 0, INT64_MAX, NULL, err));
    DQ_TRY(dq_json_int(&w.computed, o, "computed", 0, INT64_MAX, NULL, err));
    const int64_t at = dq_eval_values(e, r, from);
    const json_t *held, *top1;
    reals x[N_REALS];
    reals_of(x, e, r, from, to);
    DQ_TRY(dq_work_take_reals(&w.seconds, 1, o, "seconds", err));
    DQ_TRY(dq_work_take_reals(&w.cached.gap_min, 1, o, "gap_min", err));
    DQ_TRY(take_list(&held, o, "held", DQ_KV_COUNTS, err));
    for (int i = 0; i < DQ_KV_COUNTS; i++)
        *dq_kv_cached_count(&w.cached, i) = json_integer_value(json_array_get(held, (size_t)i));
    DQ_TRY(take_list(&top1, o, "top1", x->n, err));
    for (int64_t i = 0; i < x->n; i++)
        r->top1[at + i] = (int32_t)json_integer_value(json_array_get(top1, (size_t)i));
    for (int i = 0; i < N_REALS; i++) {
        if (x[i].at) DQ_TRY(dq_work_take_reals(x[i].at, x[i].n, o, x[i].name, err));
    }
    for (int64_t i = 0; i < x->n; i++) {
        if (!isfinite(x->at[i]))
            return dq_fail(err, DQ_DAMAGED, "\"logp\" of row %lld is not finite", (long long)index);
    }
    dq_score_work_add(&r->work, &w);
    for (int64_t i = from; i < to; i++) r->finished[i] = true;
    return DQ_OK;
}

static dq_status take_line(void *arg, const json_t *line, bool told, dq_err *err)
{
    dq_eval *e = arg;
    DQ_TRY(get_row(e, line, err));
    if (told) {
        const dq_eval_row *row = &e->row[json_integer_value(json_object_get(line, "row"))];
        dq_pace_step(&e->sweep->pace, kind_of(e, row),
                     rate_of(e, row) *
                         sweep_feeds(e, row, json_integer_value(json_object_get(line, "from")),
                                     json_integer_value(json_object_get(line, "to"))),
                     dq_os_seconds());
    }
    return DQ_OK;
}

dq_work_how dq_eval_work(dq_eval *e, const char *key, const char *path)
{
    return (dq_work_how){.path = path,
                         .schema = "dq-eval-resume/10",
                         .key = key,
                         .shard = e->n_shards ? e->shard + 1 : 0,
                         .n_shards = e->n_shards,
                         .force = true,
                         .goes_on = !e->n_shards,
                         .take = take_line,
                         .arg = e};
}

/* Rows with one reference take turns: the reference's final states of some windows are kept while
 * each row runs over them in steps. A resumed run recomputes those states where another row still
 * needs them. */

enum { FLOOR_STATES = 8 }; /* of a window, for its noise floor */

typedef struct cluster {
    sweep *s;
    dq_eval *e;
    dq_backend *b;
    const dq_windows *w;
    int *rows; /* [n_rows] that have this reference, which comes first */
    int n_rows;
    int dim;            /* of the widest model */
    bool several;       /* models */
    int64_t limit;      /* of the windows that are asked for */
    int64_t max_rows;   /* of a turn, and of the states below */
    int64_t begin, end; /* the turn */
    dq_mat ref_state;   /* of its scored tokens */
    dq_mat state;       /* of the windows at hand */
} cluster;

typedef struct step {
    int64_t begin, end;
    int64_t at, n; /* its scored tokens: the first, and how many */
    dq_mat state;
} step;

/* A cache has one form for its life, so other caches get a runner of their own. To be ended, after
 * a failure too. */
static dq_status scorer_begin(dq_scorer *scorer, sweep *s, const dq_eval_row *row, dq_err *err)
{
    const dq_pass pass = {.logit = row->logit, .math = row->math, .listener = {tell, s}};
    dq_runner *r = s->runner;
    *scorer = (dq_scorer){0};
    if (!dq_kv_spec_is_plain(&row->kv) || row->kv.num != dq_kv_plain.num)
        DQ_TRY(dq_runner_new(&r, s->e->model[row->model].m, dq_runner_backend(s->runner), &row->kv,
                             err));
    return dq_score_begin(scorer, r, &pass, &row->run, err);
}

static void scorer_end(dq_scorer *scorer, const sweep *s)
{
    dq_runner *r = scorer->r;
    dq_score_end(scorer);
    if (r && r != s->runner) dq_runner_free(r);
}

/* Mean KLD of a window's first states against themselves moved by one unit in the last place,
 * alternately up and down. */
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

/* The reference's final states of this turn from scored token `at` on. */
static dq_mat ref_states(const cluster *c, int64_t at, int64_t n)
{
    const dq_eval_row *ref = &c->e->row[c->rows[0]];
    dq_mat m = c->ref_state;
    m.rows = n;
    m.cols = c->e->model[ref->model].m->dim; /* a reference may be of another size */
    m.p += (at - dq_windows_values(c->w, c->begin)) * m.cols;
    return m;
}

static dq_status run_step(const cluster *c, dq_eval_row *row, step *x, bool again, dq_err *err)
{
    const bool is_ref = row == &c->e->row[c->rows[0]];
    const dq_model *m = c->e->model[row->model].m;
    x->at = dq_windows_values(c->w, x->begin);
    x->n = dq_windows_values(c->w, x->end) - x->at;
    x->state = is_ref ? ref_states(c, x->at, x->n)
                      : (dq_mat){.p = c->state.p, .rows = x->n, .cols = m->dim};
    dq_scorer scorer;
    if (scorer_begin(&scorer, c->s, row, err) == DQ_OK &&
        dq_score_windows(&scorer, c->w, x->begin, x->end, x->state,
                         (dq_scores){row->logp + x->at, row->top1 + x->at}, err) == DQ_OK)
        dq_score_check_logp(m, row->logp + x->at, x->n, err);
    row->pending = scorer.work;
    scorer_end(&scorer, c->s);
    if (err->code == DQ_DAMAGED)
        dq_in(err, "%s: windows %lld to %lld: ", dq_eval_source_of(c->e, row)->path,
              (long long)x->begin, (long long)x->end - 1);
    if (err->code != DQ_OK || again) return err->code;
    for (int64_t i = 0; i < x->n; i++) row->kld[x->at + i] = 0;
    if (!is_ref) {
        const dq_eval_row *ref = &c->e->row[c->rows[0]];
        c->b->ops->kld(c->b, row->kld + x->at, ref_states(c, x->at, x->n),
                       &c->e->model[ref->model].m->head, ref->math.linear, x->state,
                       &c->e->model[row->model].m->head, row->math.linear);
        return dq_backend_sync(c->b, err);
    }
    /* Only reference rows have the confidence of their most likely ids, and noise floors. */
    c->b->ops->logprob(c->b, row->top_logp + x->at, NULL, x->state,
                       &c->e->model[row->model].m->head, row->top1 + x->at, row->math.linear);
    DQ_TRY(dq_backend_sync(c->b, err));
    for (int64_t k = x->begin; row->extra && k < x->end; k++) {
        dq_mat few = x->state;
        few.p += (c->w->win[k].value - x->at) * few.cols;
        few.rows = dq_window_scored(&c->w->win[k]);
        if (few.rows > FLOOR_STATES) few.rows = FLOOR_STATES;
        DQ_TRY(noise_floor(c, row, few, &row->extra[k], err));
    }
    return DQ_OK;
}

/* The end of windows that fit max_rows rows, at least one, before `limit`. */
static int64_t group_end(const dq_windows *w, int64_t begin, int64_t limit, int64_t max_rows,
                         bool alike)
{
    int64_t end = begin, rows = 0;
    while (end < limit && (end == begin || rows + w->win[end].n <= max_rows) &&
           (!alike || dq_windows_alike(w, begin, end + 1)))
        rows += w->win[end++].n;
    return end;
}

/* Runs what the row lacks of this turn; for the reference, all of its states. */
static dq_status run_row(const cluster *c, int index, dq_err *err)
{
    dq_eval_row *row = &c->e->row[index];
    const bool alike = !dq_kv_spec_is_plain(&row->kv); /* its cache takes windows of one shape */
    /* a row of another model than the reference may fit fewer rows into memory */
    const int64_t max = row->model == c->e->row[c->rows[0]].model
                            ? c->max_rows
                            : dq_runner_rows(c->s->runner, c->max_rows);
    step x = {.begin = c->begin};
    for (; x.begin < c->end; x.begin = x.end) {
        const bool again = row->finished[x.begin];
        const int64_t limit = alike_end(row, x.begin, c->end);
        x.end = limit;
        if (again && index != c->rows[0]) continue;
        x.end = group_end(c->w, x.begin, limit, step_rows(row, max), alike);
        step_begin(c->s, row, x.begin, x.end, again);
        DQ_TRY(run_step(c, row, &x, again, err));
        DQ_TRY(dq_os_maps_check(err));
        step_end(c->s);
        if (again) continue;
        DQ_TRY(finish(c->e, index, x.begin, x.end, err));
    }
    return DQ_OK;
}

/* Rows by model, the reference and others of its model first. */
static dq_status find_rows(cluster *c, int ref, dq_err *err)
{
    const dq_eval *e = c->e;
    const int first = e->row[ref].model;
    c->rows = dq_block_new((size_t)e->n_rows, sizeof *c->rows, err);
    if (!c->rows) return err->code;
    c->rows[c->n_rows++] = ref;
    c->dim = e->model[first].m->dim;
    for (int k = -1; k < e->n_models; k++) {
        const int model = k < 0 ? first : k;
        for (int i = 0; k != first && i < e->n_rows; i++) {
            const dq_eval_row *row = &e->row[i];
            if (i == ref || row->ref != ref || row->same != i || row->model != model) continue;
            c->rows[c->n_rows++] = i;
            c->several = model != first;
            if (e->model[model].m->dim > c->dim) c->dim = e->model[model].m->dim;
        }
    }
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

static int64_t first_lacking(const cluster *c, int64_t at)
{
    int64_t first = c->limit;
    for (int i = 0; i < c->n_rows; i++) first = dq_eval_lacking(&c->e->row[c->rows[i]], at, first);
    return first;
}

static void let_go(sweep *s)
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

/* Switches models: frees packed weights, activations, cached tokens and file pages of the last one
 * and makes this one's runner. */
static dq_status hold(sweep *s, int model, dq_err *err)
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

/* With several models a turn is as long as possible, since each switch packs weights anew; with one
 * it is a step, so that no reference state is computed twice. */
static dq_status run_turns(cluster *c, bool once, dq_err *err)
{
    while ((c->begin = first_lacking(c, c->begin)) < c->limit) {
        const dq_eval_row *ref = &c->e->row[c->rows[0]];
        const int64_t rows = c->several && !once ? c->max_rows : step_rows(ref, c->max_rows);
        c->end = group_end(c->w, c->begin, c->limit, rows, false);
        for (int i = 0; i < c->n_rows; i++) {
            const dq_eval_row *row = &c->e->row[c->rows[i]];
            if (i > 0 && dq_eval_lacking(row, c->begin, c->end) == c->end) continue;
            DQ_TRY(hold(c->s, row->model, err));
            DQ_TRY(run_row(c, c->rows[i], err));
        }
        if (once) break;
    }
    return DQ_OK;
}

/* Windows begin .. end - 1 of all rows with the reference row `ref`, and of that row; once: only
 * their first step. */
static dq_status sweep_windows(sweep *s, int ref, int64_t begin, int64_t end, bool once,
                               dq_err *err)
{
    const dq_eval_row *row = &s->e->row[ref];
    cluster c = {.s = s, .e = s->e, .w = &s->e->ids[row->ids].win, .begin = begin, .limit = end};
    if (find_rows(&c, ref, err) == DQ_OK && first_lacking(&c, begin) < end &&
        hold(s, row->model, err) == DQ_OK) {
        c.b = dq_runner_backend(s->runner);
        c.max_rows = dq_runner_rows(s->runner, DQ_SCORE_ROWS);
        make_states(&c, err);
        /* All differences need the reference's head, also while its model is not loaded. */
        const dq_weight *head = &s->e->model[row->model].m->head;
        const bool keeps = err->code == DQ_OK && c.several && c.b->ops->weight_acquire;
        const bool kept = keeps && c.b->ops->weight_acquire(c.b, head);
        if (keeps) dq_backend_sync(c.b, err);
        if (err->code == DQ_OK) run_turns(&c, once, err);
        if (kept) c.b->ops->weight_release(c.b, head);
        c.b->ops->free(c.b, c.state.p);
        c.b->ops->free(c.b, c.ref_state.p);
    }
    dq_block_free(c.rows);
    return err->code;
}

/* Expected time: the tokens of each row at the speed of a short pass of its model; caches and long
 * contexts show only in the sweep itself. */

enum { LEAST = 8, MOST = 128 };  /* rows of the pass */
static const double much = 2e10; /* parameters times rows */

/* Of two passes the first one packs weights. */
dq_status dq_eval_token_seconds(double *seconds, dq_runner *r, const dq_pass *pass, dq_err *err)
{
    dq_backend *b = dq_runner_backend(r);
    const double fit = much / (double)dq_runner_model(r)->n_params;
    const int64_t n = fit < LEAST ? LEAST : fit < MOST ? (int64_t)fit : MOST;
    const int64_t cu[2] = {0, n};
    int32_t ids[MOST] = {0}, pos[MOST], seq;
    dq_mat hidden;
    for (int i = 0; i < MOST; i++) pos[i] = i;
    for (int i = 0; err->code == DQ_OK && i < 2; i++) {
        seq = b->ops->kv_seq_new(b, dq_runner_kv(r));
        const dq_batch batch = {
            .n_seq = 1, .n_rows = n, .cu_rows = cu, .seq = &seq, .ids = ids, .pos = pos};
        const double begin = dq_os_seconds();
        if (seq < 0) return dq_backend_sync(b, err);
        if (dq_runner_pass(r, &batch, pass, &hidden, err) == DQ_OK) dq_backend_sync(b, err);
        *seconds = (dq_os_seconds() - begin) / (double)n;
        b->ops->kv_seq_free(b, dq_runner_kv(r), seq);
    }
    return err->code;
}

dq_status dq_eval_expected(double *seconds, dq_eval *e, bool passes, dq_err *err)
{
    sweep s = {.e = e, .model = -1};
    for (int i = 0; passes && err->code == DQ_OK && i < e->n_rows; i++) {
        const dq_eval_row *row = &e->row[i];
        dq_eval_model *m = &e->model[row->model];
        const dq_pass pass = {.logit =
                                  dq_logit_plain, /* the plain cache goes with any arithmetic */
                              .math = {row->math.linear, DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32}};
        if (m->seconds <= 0 && hold(&s, row->model, err) == DQ_OK)
            dq_eval_token_seconds(&m->seconds, s.runner, &pass, err);
    }
    let_go(&s);
    e->share = 1;
    sweep_begin(&s, e);
    *seconds = dq_pace_left(&s.pace);
    return err->code;
}

static dq_status score_items(dq_eval *e, dq_eval_row *row, dq_scorer *s, int64_t begin, int64_t end,
                             dq_err *err)
{
    const dq_eval_kind *kind = dq_eval_source_of(e, row)->kind;
    const dq_requests *q = &e->ids[row->ids].req;
    const int64_t from = dq_items_values(q, begin), to = dq_items_values(q, end);
    if (kind->score) {
        dq_arena *a = dq_arena_new();
        if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
        kind->score(e, row, s, begin, end, a, err);
        dq_arena_free(a);
        DQ_TRY(err->code);
    } else {
        DQ_TRY(dq_score_items(s, q, begin, end, (dq_scores){row->logp, row->top1}, err));
    }
    return dq_score_check_logp(e->model[row->model].m, row->logp + from, to - from, err);
}

/* Finds the item that made a group fail, by running its items one by one. */
static void name_item(dq_eval *e, dq_eval_row *row, dq_scorer *s, int64_t begin, int64_t end,
                      dq_err *err)
{
    const dq_eval_source *from = dq_eval_source_of(e, row);
    if (err->code != DQ_DAMAGED) return;
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
}

/* Runs what the row lacks of items begin .. limit - 1; once: only their first step. */
static dq_status run_items(sweep *s, int index, int64_t begin, int64_t limit, bool once,
                           dq_err *err)
{
    dq_eval *e = s->e;
    dq_eval_row *row = &e->row[index];
    const int64_t group = dq_eval_source_of(e, row)->kind->group;
    dq_scorer scorer;
    if (dq_eval_lacking(row, begin, limit) == limit) return DQ_OK;
    DQ_TRY(hold(s, row->model, err));
    scorer_begin(&scorer, s, row, err);
    for (int64_t from = begin, end; err->code == DQ_OK; from = end) {
        from = dq_eval_lacking(row, from, limit);
        if (from == limit) break;
        const bool shared = dq_score_shares(&scorer.pass, scorer.kv);
        const int64_t rows = step_rows(row, dq_score_rows(scorer.r, shared));
        const int64_t most = alike_end(row, from, limit);
        end = group ? from + group : dq_score_group(&e->ids[row->ids].req, from, rows, shared);
        if (end > most) end = most;
        scorer.work = (dq_score_work){0};
        step_begin(s, row, from, end, false);
        if (score_items(e, row, &scorer, from, end, err) != DQ_OK) {
            name_item(e, row, &scorer, from, end, err);
        } else if (dq_os_maps_check(err) == DQ_OK) {
            step_end(s);
            row->pending = scorer.work;
            finish(e, index, from, end, err);
        }
        if (once) break;
    }
    scorer_end(&scorer, s);
    return err->code;
}

/* The pieces of this process, or of one of several shards. */
typedef struct run {
    sweep s;
    pieces pieces;
} run;

static dq_status run_piece(void *arg, int64_t i, dq_err *err)
{
    run *x = arg;
    const piece *p = &x->pieces.piece[i];
    dq_eval *e = x->s.e;
    if (dq_eval_source_of(e, &e->row[p->row])->kind->windows)
        return sweep_windows(&x->s, p->row, p->begin, p->end, false, err);
    return run_items(&x->s, p->row, p->begin, p->end, false, err);
}

/* One step of each row first, to learn what the others will take. */
static dq_status run_first(run *x, dq_err *err)
{
    dq_eval *e = x->s.e;
    for (int64_t i = 0; err->code == DQ_OK && i < x->pieces.n; i++) {
        const piece *p = &x->pieces.piece[i];
        if (dq_eval_source_of(e, &e->row[p->row])->kind->windows)
            sweep_windows(&x->s, p->row, p->begin, p->end, true, err);
        else if (!(dq_items_shared_prefix(&e->ids[(&e->row[p->row])->ids].req, 0)->n > 0))
            run_items(&x->s, p->row, p->begin, p->end, true, err);
    }
    e->is_paced = true;
    return err->code;
}

static bool is_shared(const dq_eval *e)
{
    return dq_ranks_count() > 1 && !e->alone;
}

/* Alone, rows are computed in order; ranks begin with the longest, so that they end together. */
static dq_status choose(run *x, dq_err *err)
{
    dq_eval *e = x->s.e;
    pieces *p = &x->pieces;
    double work = 0, all = 0;
    DQ_TRY(make_pieces(p, e, e->n_shards > 0 || is_shared(e), err));
    int *shard = dq_alloc(e->a, (size_t)p->n, sizeof *shard, err);
    if (!shard) return err->code;
    if (e->n_shards > 1) DQ_TRY(share_pieces(shard, p, e->n_shards, err));
    int64_t n = 0;
    for (int64_t i = 0; i < p->n; i++) {
        all += p->piece[i].work;
        if (shard[i] != e->shard) continue;
        work += p->piece[i].work;
        p->piece[n++] = p->piece[i];
    }
    p->n = n;
    e->share = all > 0 ? work / all : 1;
    /* Within each turn the largest come first. */
    if (is_shared(e) && p->n) qsort(p->piece, (size_t)p->n, sizeof *p->piece, by_turn);
    return DQ_OK;
}

dq_status dq_eval_run(dq_eval *e, dq_err *err)
{
    run x = {.s = {.e = e}};
    choose(&x, err);
    /* Units that rank 0 has found in a journal are finished on all ranks. */
    for (int i = 0; err->code == DQ_OK && is_shared(e) && i < e->n_rows; i++) {
        const dq_eval_row *row = &e->row[i];
        const size_t units = (size_t)dq_eval_units(e, row);
        if (row->same == i) dq_ranks_share(row->finished, units * sizeof(bool), err);
    }
    sweep_begin(&x.s, e);
    e->sweep = &x.s;
    if (err->code == DQ_OK && !is_shared(e) && e->n_shards == 0) run_first(&x, err);
    if (e->alone) {
        for (int64_t i = 0; err->code == DQ_OK && i < x.pieces.n; i++) run_piece(&x, i, err);
    } else {
        dq_work_run(&e->work, x.pieces.n, run_piece, &x, err);
    }
    let_go(&x.s);
    e->sweep = NULL;
    for (int i = 0; i < e->n_rows; i++) e->row[i].work = e->row[e->row[i].same].work;
    return err->code;
}
