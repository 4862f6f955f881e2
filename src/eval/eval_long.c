/* eval_long: see eval_long.h. Positions that each item needs are found first, for all models that it is scored
 * with; one that does not fit some model is left out for all of them, or the run is refused, since scores are
 * compared item by item.
 * SPDX-License-Identifier: MIT */
#include "eval/eval_long.h"

#include <stdio.h>

const char *const dq_eval_long_name[1 + DQ_EVAL_LONGS] = {"", "error", "skip", "cut"};

int64_t dq_eval_number(const dq_eval_source *s, int64_t unit)
{
    return s->number ? s->number[unit] : unit;
}

int64_t dq_eval_line(const dq_eval_source *s, int64_t unit)
{
    return s->kind->line ? s->kind->line(s, unit) : 0;
}

/* Items that do not fit some model. */
typedef struct misfit {
    bool *is; /* [n] */
    int64_t n, first, need;
    const dq_model *of; /* of the first */
} misfit;

static dq_status find_misfits(misfit *f, const dq_eval *e, const dq_eval_source *s,
                              const dq_eval_model *m, int64_t n, dq_arena *a, dq_err *err)
{
    int64_t *need = dq_alloc(a, (size_t)n, sizeof *need, err);
    if (!need) return err->code;
    DQ_TRY(s->kind->need(need, e, s, m, a, err));
    for (int64_t i = 0; i < n; i++) {
        if (m->m->max_positions < 1 || need[i] <= m->m->max_positions || f->is[i]) continue;
        f->is[i] = true;
        if (f->n++ > 0 && i > f->first) continue;
        f->first = i;
        f->need = need[i];
        f->of = m->m;
    }
    return DQ_OK;
}

/* Keeps the others, with their numbers. */
static dq_status leave_out(dq_eval *e, dq_eval_source *s, const misfit *f, int64_t n, dq_err *err)
{
    int64_t *number = dq_alloc(e->a, (size_t)(n - f->n) + 1, sizeof *number, err), kept = 0;
    if (!number) return err->code;
    for (int64_t i = 0; i < n; i++) {
        if (!f->is[i]) number[kept++] = i;
    }
    DQ_TRY(s->kind->keep(s, number, kept, e->a, err));
    s->number = number;
    s->n_skipped = f->n;
    return DQ_OK;
}

static dq_status judge_misfits(dq_eval *e, dq_eval_source *s, const misfit *f, int64_t n,
                               dq_long way, dq_err *err)
{
    char line[48] = "";
    const int64_t at = dq_eval_line(s, f->first);
    if (f->n == 0) return DQ_OK;
    if (way == DQ_LONG_SKIP && f->n < n) return leave_out(e, s, f, n, err);
    if (at) snprintf(line, sizeof line, ", line %lld", (long long)at);
    const bool none = way == DQ_LONG_SKIP;
    return dq_fail_with(
        err, DQ_MISMATCH, (dq_remedy){.code = none ? DQ_REMEDY_NONE : DQ_REMEDY_SKIP_OR_CUT},
        "%s: %lld of %lld items are too long (expected at most the %d positions of %s; "
        "the first, item %lld%s, has %lld tokens)%s",
        s->path, (long long)f->n, (long long)n, f->of->max_positions, f->of->path,
        (long long)f->first, line, (long long)f->need, none ? ". None is left to score" : "");
}

dq_status dq_eval_long_fit(dq_eval *e, int source, dq_err *err)
{
    dq_eval_source *s = &e->source[source];
    const dq_long usual = s->kind->usual_long, way = e->too_long ? e->too_long : usual;
    misfit f = {0};
    if (usual == DQ_LONG_USUAL || way == DQ_LONG_CUT) return DQ_OK;
    const int64_t n = s->kind->count(s);
    f.is = dq_block_new((size_t)n, sizeof *f.is, err);
    for (int i = 0; f.is && err->code == DQ_OK && i < e->n_models; i++) {
        dq_arena *a = dq_arena_new();
        if (!a)
            dq_fail(err, DQ_RESOURCE, "out of memory");
        else if (e->model[i].tok && find_misfits(&f, e, s, &e->model[i], n, a, err) != DQ_OK)
            dq_in(err, "%s: ", s->path);
        dq_arena_free(a);
    }
    if (err->code == DQ_OK) judge_misfits(e, s, &f, n, way, err);
    dq_block_free(f.is);
    return err->code;
}
