/* eval: see eval.h. The plan of the sweep: rows, each a model, a source and settings, and ids, one set for all
 * models that read the same ones. A row is made once, however often it is asked for; what it is compared with is a
 * row too, at 16 bits, which is scored but not shown unless asked for.
 * SPDX-License-Identifier: MIT */
#include "eval/eval.h"

#include "eval/eval_same.h"
#include "kv/kv.h"

#include <string.h>

/* Whether ids that were made for one of the models are those of the other. */
static bool same_ids(const dq_eval_ids *ids, const dq_eval_model *a, const dq_eval_model *b)
{
    return a->tok && b->tok && a->m->vocab == b->m->vocab &&
           dq_tokenizer_same(a->tok, b->tok, a->m->vocab) &&
           a->m->max_positions == b->m->max_positions &&
           (!(ids->win.prefixed || ids->req.prefixed) ||
            dq_tokenizer_prefix(a->tok) == dq_tokenizer_prefix(b->tok));
}

/* Whether ids that fit `b` may run past the positions of `a`; 0 positions: there is no end. */
static bool has_fewer_positions(const dq_model *a, const dq_model *b)
{
    return a->max_positions > 0 && (b->max_positions == 0 || a->max_positions < b->max_positions);
}

static dq_status make_ids(dq_eval *e, dq_eval_ids *ids, dq_err *err)
{
    const dq_eval_source *s = &e->source[ids->source];
    const dq_eval_model *m = &e->model[ids->model];
    if (!m->tok)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: has no tokenizer.json, so text cannot be scored with it", m->m->path);
    return s->kind->encode(e, ids, err) == DQ_OK ? DQ_OK : dq_in(err, "%s: ", s->path);
}

int dq_eval_ids_for(dq_eval *e, int source, int model, dq_err *err)
{
    for (int i = 0; i < e->n_ids; i++) {
        if (e->ids[i].source == source &&
            (e->ids[i].model == model ||
             same_ids(&e->ids[i], &e->model[e->ids[i].model], &e->model[model])))
            return i;
    }
    dq_eval_ids *list = dq_grow(e->a, e->ids, (size_t)e->n_ids + 1, &e->cap_ids, sizeof *list, err);
    if (!list) return -1;
    e->ids = list;
    list[e->n_ids] = (dq_eval_ids){.source = source, .model = model};
    if (make_ids(e, &list[e->n_ids], err) != DQ_OK) return -1;
    return e->n_ids++;
}

static bool same_setting(const dq_eval_row *a, const dq_eval_row *b)
{
    return a->model == b->model && a->ids == b->ids && dq_logit_same(a->logit, b->logit) &&
           dq_math_same(a->math, b->math) && dq_kv_spec_same(&a->kv, &b->kv);
}

const dq_eval_source *dq_eval_source_of(const dq_eval *e, const dq_eval_row *row)
{
    return &e->source[e->ids[row->ids].source];
}

int64_t dq_eval_units(const dq_eval *e, const dq_eval_row *row)
{
    const dq_eval_ids *ids = &e->ids[row->ids];
    return e->source[ids->source].kind->windows ? ids->win.n : ids->req.n_items;
}

int64_t dq_eval_values(const dq_eval *e, const dq_eval_row *row, int64_t n)
{
    const dq_eval_ids *ids = &e->ids[row->ids];
    return e->source[ids->source].kind->windows ? dq_windows_values(&ids->win, n)
                                                : dq_items_values(&ids->req, n);
}

int64_t dq_eval_alike(const dq_eval_row *row, int64_t at, int64_t end)
{
    int64_t i = at;
    while (i < end && row->finished[i] == row->finished[at]) i++;
    return i;
}

int64_t dq_eval_lacking(const dq_eval_row *row, int64_t at, int64_t end)
{
    return at < end && row->finished[at] ? dq_eval_alike(row, at, end) : at;
}

dq_status dq_eval_stop_ids(dq_stop_ids *out, const dq_eval *e, int model, dq_err *err)
{
    const dq_eval_model *own = &e->model[model], *ref = &e->model[own->ref];
    *out = (dq_stop_ids){0};
    DQ_TRY(dq_stop_ids_add(out, own->m, own->tok, own->m->vocab, err));
    return ref == own ? DQ_OK : dq_stop_ids_add(out, ref->m, ref->tok, own->m->vocab, err);
}

/* The row that is computed for a new one: that one itself, which will have the next index, or one whose cache is the same. */
static int computed_for(const dq_eval *e, const dq_eval_row *want)
{
    for (int i = 0; i < e->n_rows; i++) {
        const dq_eval_row *r = &e->row[i];
        if (r->same == i && r->model == want->model && r->ids == want->ids &&
            dq_logit_same(r->logit, want->logit) && dq_math_same(r->math, want->math) &&
            dq_eval_same_numbers(e, r, want))
            return i;
    }
    return e->n_rows;
}

static dq_status make_numbers(dq_eval *e, dq_eval_row *row, dq_err *err)
{
    const int64_t units = dq_eval_units(e, row), extra = units * e->ids[row->ids].n_extra;
    const size_t n = (size_t)dq_eval_values(e, row, units);
    row->finished = dq_alloc(e->a, (size_t)units, sizeof *row->finished, err);
    row->logp = dq_alloc(e->a, n, sizeof *row->logp, err);
    row->top1 = dq_alloc(e->a, n, sizeof *row->top1, err);
    if (dq_eval_source_of(e, row)->kind->windows)
        row->kld = dq_alloc(e->a, n, sizeof *row->kld, err);
    if (extra > 0) row->extra = dq_alloc(e->a, (size_t)extra, sizeof *row->extra, err);
    return err->code;
}

/* The index of the row, which is made if it is not there. */
static int put_row(dq_eval *e, dq_eval_row want, dq_err *err)
{
    for (int i = 0; i < e->n_rows; i++) {
        if (!same_setting(&e->row[i], &want)) continue;
        e->row[i].shown = e->row[i].shown || want.shown;
        return i;
    }
    dq_eval_row *list =
        dq_grow(e->a, e->row, (size_t)e->n_rows + 1, &e->cap_rows, sizeof *list, err);
    if (!list) return -1;
    e->row = list;
    want.run = dq_eval_effective_kv(e, &want);
    want.same = computed_for(e, &want);
    if (want.same < e->n_rows) {
        const dq_eval_row *other = &e->row[want.same];
        want.finished = other->finished;
        want.logp = other->logp;
        want.top1 = other->top1;
        want.kld = other->kld;
        want.extra = other->extra;
    } else if (make_numbers(e, &want, err) != DQ_OK) {
        return -1;
    }
    list[e->n_rows] = want;
    return e->n_rows++;
}

dq_status dq_eval_add(dq_eval *e, int model, int source, dq_logit_spec logit, dq_math math,
                      const dq_kv_spec *kv, dq_err *err)
{
    const dq_eval_model *m = &e->model[model], *r = &e->model[m->ref];
    const dq_eval_kind *kind = e->source[source].kind;
    if (kind->takes) DQ_TRY(kind->takes(&e->source[source], kv, err));
    int ids = dq_eval_ids_for(e, source, model, err);
    if (ids < 0) return err->code;
    if (r->m->vocab != m->m->vocab)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: has %d tokens, its reference %s has %d; they cannot be compared",
                       m->m->path, m->m->vocab, r->m->path, r->m->vocab);
    if (r != m && r->tok && !same_ids(&e->ids[ids], r, m))
        return dq_fail(err, DQ_MISMATCH,
                       "%s: its tokenizer or number of positions differs from that of its "
                       "reference %s; they cannot be compared",
                       m->m->path, r->m->path);
    if (has_fewer_positions(r->m, m->m))
        return dq_fail(
            err, DQ_MISMATCH,
            "%s: its reference %s has fewer positions (%d); the same tokens would run past "
            "them. Use a reference with at least as many",
            m->m->path, r->m->path, r->m->max_positions);
    dq_eval_row row = {.model = model,
                       .ids = ids,
                       .ref = -1,
                       .shown = true,
                       .logit = logit,
                       .math = math,
                       .kv = *kv};
    dq_eval_row ref = {.model = m->ref,
                       .ids = ids,
                       .ref = -1,
                       .logit = {.bits = 16, .granularity = logit.granularity},
                       .kv = dq_kv_plain};
    if (dq_kv_spec_is_plain(kv)) { /* windows and groups of nothing make no row of their own */
        row.kv = dq_kv_plain;
        row.kv.num = kv->num;
    }
    int at = put_row(e, row, err);
    bool compared = (kind->windows || kind->metric[0]) && !m->sourceless;
    int at_ref = at < 0 || !compared ? at : put_row(e, ref, err);
    if (at_ref < 0) return err->code;
    dq_eval_row *r_ref = &e->row[at_ref];
    r_ref->ref = at_ref;
    e->row[at].ref = at_ref;
    if (r_ref->same != at_ref) r_ref->top_logp = e->row[r_ref->same].top_logp;
    if (!r_ref->kld || r_ref->top_logp) return DQ_OK;
    size_t n = (size_t)dq_eval_values(e, r_ref, dq_eval_units(e, r_ref));
    r_ref->top_logp = dq_alloc(e->a, n, sizeof *r_ref->top_logp, err);
    return err->code;
}

const char *dq_eval_passes(const dq_eval_row *row)
{
    if (dq_kv_spec_is_plain(&row->kv)) return "whole";
    return row->kv.evict.policy && row->kv.evict.every == 1 ? "decode" : "context+rest";
}
