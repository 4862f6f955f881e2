/* eval_run: the sweep itself, row by row, and rows of items. See eval.h; eval_windows.c has the texts.
 * SPDX-License-Identifier: MIT */
#include "eval/eval_sweep.h"

#include "base/os.h"
#include "base/ranks.h"
#include "eval/eval_pieces.h"

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

/* One past the last item before `end` that is finished together with item `at`. */
static int64_t group_of_items(const dq_eval *e, const dq_eval_row *row, int64_t at, int64_t end,
                              int64_t rows, bool shared)
{
    const int64_t n = dq_eval_source_of(e, row)->kind->group,
                  group = n ? at + n : dq_score_group(&e->ids[row->ids].req, at, rows, shared);
    return group < end ? group : end;
}

/* What the row lacks of its items begin .. limit - 1; once: the first step of it. */
static dq_status run_groups(dq_eval_sweep *s, int index, dq_scorer *scorer, int64_t begin,
                            int64_t limit, bool once, dq_err *err)
{
    dq_eval *e = s->e;
    dq_eval_row *row = &e->row[index];
    const bool shared = dq_score_shares(&scorer->pass, scorer->kv);
    int64_t from = begin, end;
    for (; (from = dq_eval_lacking(row, from, limit)) < limit; from = end) {
        const int64_t rows = dq_eval_sweep_rows(row, dq_score_rows(scorer->r, shared));
        end = group_of_items(e, row, from, dq_eval_alike(row, from, limit), rows, shared);
        scorer->work = (dq_score_work){0};
        dq_eval_sweep_step(s, row, from, end, false);
        if (score_items(e, row, scorer, from, end, err) != DQ_OK)
            return name_item(e, row, scorer, from, end, err);
        DQ_TRY(dq_os_maps_check(err));
        dq_eval_sweep_step_end(s);
        row->pending = scorer->work;
        dq_eval_finish(e, index, from, end);
        if (once) break;
    }
    return DQ_OK;
}

static dq_status run_items(dq_eval_sweep *s, int index, int64_t begin, int64_t end, bool once,
                           dq_err *err)
{
    const dq_eval_row *row = &s->e->row[index];
    const dq_pass pass = dq_eval_sweep_pass(s, row);
    dq_scorer scorer;
    dq_runner *r;
    if (dq_eval_lacking(row, begin, end) == end) return DQ_OK;
    DQ_TRY(dq_eval_sweep_hold(s, row->model, err));
    DQ_TRY(dq_eval_sweep_runner(&r, s, row, err));
    if (dq_score_begin(&scorer, r, &pass, &row->run, err) == DQ_OK)
        run_groups(s, index, &scorer, begin, end, once, err);
    dq_score_end(&scorer);
    dq_eval_sweep_runner_end(r, s);
    return err->code;
}

/* ---- Pieces ---- */

/* A run: the pieces that are this process's, or one of several shards'. */
typedef struct run {
    dq_eval_sweep s;
    dq_eval_pieces pieces;
} run;

static dq_status run_piece(void *arg, int64_t i, dq_err *err)
{
    run *x = arg;
    const dq_eval_piece *p = &x->pieces.piece[i];
    dq_eval *e = x->s.e;
    const int64_t before = e->journal ? dq_journal_count(e->journal) : 0;
    const double begun = dq_os_seconds();
    if (dq_eval_source_of(e, &e->row[p->row])->kind->windows)
        dq_eval_sweep_windows(&x->s, p->row, p->begin, p->end, false, err);
    else
        run_items(&x->s, p->row, p->begin, p->end, false, err);
    /* what was not told, or is not in the file of a part, is lost */
    if (err->code == DQ_OK && (e->n_shards || dq_ranks_number() > 0)) *err = e->journal_err;
    if (err->code == DQ_OK && e->n_shards && e->journal && dq_journal_count(e->journal) > before)
        dq_eval_journal_piece(e, p->number, p->work, dq_os_seconds() - begun);
    return err->code;
}

/* A shared prefix is fed once for all items after it, so that a step of these is not to be parted from them. */
static bool has_prefix(const dq_eval *e, const dq_eval_row *row)
{
    return dq_items_shared_prefix(&e->ids[row->ids].req, 0)->n > 0;
}

/* A step of each row first, so that what the others will take is known. */
static dq_status run_first(run *x, dq_err *err)
{
    dq_eval *e = x->s.e;
    for (int64_t i = 0; err->code == DQ_OK && i < x->pieces.n; i++) {
        const dq_eval_piece *p = &x->pieces.piece[i];
        if (dq_eval_source_of(e, &e->row[p->row])->kind->windows)
            dq_eval_sweep_windows(&x->s, p->row, p->begin, p->end, true, err);
        else if (!has_prefix(e, &e->row[p->row]))
            run_items(&x->s, p->row, p->begin, p->end, true, err);
    }
    e->is_paced = true;
    return err->code;
}

static dq_status take(void *arg, const char *text, size_t len, dq_err *err)
{
    run *x = arg;
    return dq_eval_sweep_take(&x->s, text, len, err);
}

static bool is_shared(const dq_eval *e)
{
    return dq_ranks_count() > 1 && !e->alone;
}

/* Alone rows are computed in their order; ranks begin with what takes long, so that they end together. */
static dq_status choose(run *x, dq_err *err)
{
    dq_eval *e = x->s.e;
    dq_eval_pieces *p = &x->pieces;
    double work = 0, all = 0;
    DQ_TRY(dq_eval_pieces_of(p, e, e->n_shards > 0 || is_shared(e), err));
    int *shard = dq_alloc(e->a, (size_t)p->n, sizeof *shard, err);
    if (!shard) return err->code;
    if (e->n_shards > 1) DQ_TRY(dq_eval_pieces_share(shard, p, e->n_shards, err));
    int64_t n = 0;
    for (int64_t i = 0; i < p->n; i++) {
        all += p->piece[i].work;
        if (shard[i] != e->shard) continue;
        work += p->piece[i].work;
        p->piece[n++] = p->piece[i];
    }
    p->n = n;
    e->share = all > 0 ? work / all : 1;
    if (is_shared(e)) dq_eval_pieces_sort(p);
    return DQ_OK;
}

/* What rank 0 has found in a journal is finished for all. */
static dq_status share_finished(dq_eval *e, dq_err *err)
{
    for (int i = 0; i < e->n_rows; i++) {
        const dq_eval_row *row = &e->row[i];
        const size_t units = (size_t)dq_eval_units(e, row);
        if (row->same == i) DQ_TRY(dq_ranks_share(row->finished, units * sizeof(bool), err));
    }
    return DQ_OK;
}

dq_status dq_eval_run(dq_eval *e, dq_err *err)
{
    run x = {.s = {.e = e}};
    if (choose(&x, err) == DQ_OK && is_shared(e)) share_finished(e, err);
    dq_eval_sweep_begin(&x.s, e);
    const dq_ranks_work work = {.n = x.pieces.n, .run = run_piece, .take = take, .arg = &x};
    if (err->code == DQ_OK && !is_shared(e) && e->n_shards == 0) run_first(&x, err);
    if (e->alone) {
        for (int64_t i = 0; err->code == DQ_OK && i < work.n; i++) run_piece(&x, i, err);
    } else {
        dq_ranks_run(&work, err);
    }
    dq_eval_sweep_end(&x.s);
    for (int i = 0; i < e->n_rows; i++) e->row[i].work = e->row[e->row[i].same].work;
    return err->code;
}
