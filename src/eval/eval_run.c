/* eval_run: the sweep itself, row by row, and rows of items. See eval.h; eval_windows.c has the texts.
 * SPDX-License-Identifier: MIT */
#include "eval/eval_sweep.h"

#include "base/os.h"

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

/* What the row lacks of its items begin .. limit - 1. */
static dq_status run_groups(dq_eval_sweep *s, int index, dq_scorer *scorer, int64_t begin,
                            int64_t limit, dq_err *err)
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
    }
    return DQ_OK;
}

static dq_status run_items(dq_eval_sweep *s, int index, int64_t begin, int64_t end, dq_err *err)
{
    const dq_eval_row *row = &s->e->row[index];
    const dq_pass pass = dq_eval_sweep_pass(s, row);
    dq_scorer scorer;
    dq_runner *r;
    if (dq_eval_lacking(row, begin, end) == end) return DQ_OK;
    DQ_TRY(dq_eval_sweep_hold(s, row->model, err));
    DQ_TRY(dq_eval_sweep_runner(&r, s, row, err));
    if (dq_score_begin(&scorer, r, &pass, &row->run, err) == DQ_OK)
        run_groups(s, index, &scorer, begin, end, err);
    dq_score_end(&scorer);
    dq_eval_sweep_runner_end(r, s);
    return err->code;
}

/* Rows of items of one model, then the texts that it is the reference of: models change as rarely as they can. */
static dq_status run_model(dq_eval_sweep *s, int model, bool windows, dq_err *err)
{
    const dq_eval *e = s->e;
    for (int i = 0; i < e->n_rows; i++) {
        const dq_eval_row *row = &e->row[i];
        if (row->same != i || row->model != model) continue;
        if (dq_eval_source_of(e, row)->kind->windows != windows) continue;
        if (!windows)
            DQ_TRY(run_items(s, i, 0, dq_eval_units(e, row), err));
        else if (row->ref == i)
            DQ_TRY(dq_eval_sweep_windows(s, i, 0, dq_eval_units(e, row), err));
    }
    return DQ_OK;
}

dq_status dq_eval_run(dq_eval *e, dq_err *err)
{
    dq_eval_sweep s;
    dq_eval_sweep_begin(&s, e);
    for (int i = 0; err->code == DQ_OK && i < e->n_models; i++) {
        if (run_model(&s, i, false, err) == DQ_OK) run_model(&s, i, true, err);
    }
    dq_eval_sweep_end(&s);
    for (int i = 0; i < e->n_rows; i++) e->row[i].work = e->row[e->row[i].same].work;
    return err->code;
}
