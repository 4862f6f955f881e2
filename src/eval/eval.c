/* Rows go together that differ in their source alone. Squares are summed for the error and for
 * each end of the interval apart.
 * SPDX-License-Identifier: MIT */
#include "eval/eval.h"

#include "eval/inside.h"
#include "kv/kv.h"
#include "tasks/documents.h"
#include "tasks/questions.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Of one model, in one setting. */
static bool same_setting(const dq_eval_row *a, const dq_eval_row *b)
{
    return a->model == b->model && dq_logit_same(a->logit, b->logit) &&
           dq_math_same(a->math, b->math) && dq_kv_spec_same(&a->kv, &b->kv);
}

int dq_eval_average_rows(int *rows, const dq_eval *e, int row)
{
    const dq_eval_row *first = &e->row[row];
    const dq_eval_kind *kind = dq_eval_source_of(e, first)->kind;
    const dq_items *items = &dq_eval_source_of(e, first)->items;
    int n = 0;
    if (!first->shown || !items->n) return 0;
    if (items->item->question && !items->item->question->gold) return 0; /* nothing is judged */
    for (int s = 0; s < e->n_sources; s++) {
        int found = -1;
        if (e->source[s].kind != kind) continue;
        for (int i = 0; i < e->n_rows && found < 0; i++) {
            const dq_eval_row *r = &e->row[i];
            if (r->shown && dq_eval_source_of(e, r) == &e->source[s] && same_setting(first, r))
                found = i;
        }
        if (found < 0 || (n == 0 && found != row)) return 0;
        rows[n++] = found;
    }
    return n > 1 ? n : 0;
}

dq_eval_average dq_eval_average_of(const dq_mean *task, const dq_interval *interval, int n)
{
    dq_eval_average o = {.interval = dq_interval_none};
    double errors = 0, below = 0, above = 0;
    for (int i = 0; i < n; i++) {
        const double down = task[i].value - interval[i].low, up = interval[i].high - task[i].value;
        o.mean.value += task[i].value / n;
        o.mean.clusters += task[i].clusters;
        errors += task[i].std_err * task[i].std_err;
        below += down * down;
        above += up * up;
    }
    o.mean.std_err = sqrt(errors) / n;
    if (isnan(below) || isnan(above)) return o;
    o.interval.low = o.mean.value - sqrt(below) / n;
    o.interval.high = o.mean.value + sqrt(above) / n;
    return o;
}

const char *dq_eval_cluster(const dq_eval *e, const dq_eval_row *row)
{
    const dq_eval_kind *kind = dq_eval_source_of(e, row)->kind;
    if (kind->windows) return e->ids[row->ids].win.n_docs < 2 ? "window" : "document";
    if (kind->cluster) return kind->cluster;
    return e->ids[row->ids].cluster ? "cluster" : "item";
}

int dq_eval_quoted(const dq_eval_source *source)
{
    return source->task && source->task->by_norm;
}

static dq_interval_loss loss_of(const dq_stat_flips *f)
{
    /* 0 - x: a loss of -0 would be printed with its sign */
    return (dq_interval_loss){0 - f->delta,
                              f->std_err,
                              {0 - f->interval.high, 0 - f->interval.low},
                              f->clusters,
                              f->counted ? f->n10 : -1,
                              f->counted ? f->n01 : -1};
}

bool dq_eval_loss_of(dq_interval_loss *out, const dq_eval *e, int row, const dq_eval_numbers *x)
{
    if (x->is_ref || (x->is_task && !x->n_metrics)) return false;
    if (x->is_task)
        *out = loss_of(&x->flips[dq_eval_quoted(dq_eval_source_of(e, &e->row[row]))]);
    else
        *out = (dq_interval_loss){x->ln_ratio.value,
                                  x->ln_ratio.std_err,
                                  dq_mean_interval(x->ln_ratio),
                                  x->ln_ratio.clusters,
                                  -1,
                                  -1};
    return true;
}

/* Scores of one cluster stand side by side; mean, interval NULL: not wanted. */
static dq_status compare(const dq_eval *e, const dq_eval_row *before, const dq_eval_row *after,
                         int metric, dq_mean *mean, dq_interval *interval, dq_stat_flips *flips,
                         dq_err *err)
{
    const int64_t n = dq_eval_units(e, after);
    const int32_t *cluster = e->ids[after->ids].cluster;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    double *score = dq_alloc(a, (size_t)n, sizeof *score, err);
    double *both[2] = {dq_alloc(a, (size_t)n, sizeof **both, err),
                       dq_alloc(a, (size_t)n, sizeof **both, err)};
    int64_t *at = dq_alloc(a, (size_t)n, sizeof *at, err);
    int32_t *of = cluster ? dq_alloc(a, (size_t)n, sizeof *of, err) : NULL;
    if (err->code == DQ_OK) dq_repeats_order(at, of, cluster, n, err);
    for (int k = 0; err->code == DQ_OK && k < 2; k++) {
        dq_eval_source_of(e, after)->kind->judge(e, k ? after : before, metric, score);
        for (int64_t i = 0; i < n; i++) both[k][at[i]] = score[i];
    }
    if (err->code == DQ_OK) {
        if (mean) *mean = dq_mean_of_scores(both[1], of, n, interval);
        *flips = dq_stat_flips_of(both[0], both[1], of, n);
    }
    dq_arena_free(a);
    return err->code;
}

dq_status dq_eval_compare(const dq_eval *e, int before, int after, int metric, dq_stat_flips *out,
                          dq_err *err)
{
    return compare(e, &e->row[before], &e->row[after], metric, NULL, NULL, out, err);
}

dq_status dq_eval_worse(dq_interval_loss *out, const dq_eval *e, int before, int after, dq_err *err)
{
    const dq_eval_source *s = dq_eval_source_of(e, &e->row[after]);
    dq_stat_flips f;
    if (s->kind->windows) return dq_text_worse(out, e, &e->row[before], &e->row[after], err);
    DQ_TRY(dq_eval_compare(e, before, after, dq_eval_quoted(s), &f, err));
    *out = loss_of(&f);
    return DQ_OK;
}

dq_status dq_eval_numbers_of(const dq_eval *e, int row, dq_eval_numbers *out, dq_err *err)
{
    const dq_eval_row *r = &e->row[row];
    const dq_eval_kind *kind = dq_eval_source_of(e, r)->kind;
    memset(out, 0, sizeof *out);
    out->is_task = !kind->windows;
    out->is_ref = r->ref == row;
    if (kind->windows) return dq_text_numbers(out, e, r, err);
    out->n = out->n_clusters = dq_eval_units(e, r);
    for (; out->n_metrics < 2 && kind->metric[out->n_metrics]; out->n_metrics++) {
        int m = out->n_metrics;
        DQ_TRY(compare(e, &e->row[r->ref], r, m, &out->score[m], &out->score_interval[m],
                       &out->flips[m], err));
        out->n_clusters = out->score[m].clusters;
    }
    return DQ_OK;
}

/* The longest evicted prefix decides: a share of a shorter one is no more tokens, and a budget that
 * holds a prefix holds every shorter one. */

static int64_t longest(const dq_eval *e, const dq_eval_row *row)
{
    const dq_eval_ids *ids = &e->ids[row->ids];
    const dq_eval_kind *kind = dq_eval_source_of(e, row)->kind;
    const bool again = row->kv.evict.every > 0;
    if (!kind->windows) {
        /* A shared prefix is what is cut, where there is one. */
        int64_t most = 0;
        for (int64_t k = 0; k < ids->req.n; k++) {
            const dq_request *r = &ids->req.req[k];
            const int64_t prefix = dq_items_shared_prefix(&ids->req, r->item)->n;
            int64_t own = prefix ? prefix : r->n_ctx;
            if (again || kind->score) own = prefix + r->n_ctx + r->n_cont;
            if (own > most) most = own;
        }
        return most;
    }
    /* Tokens of the longest window, or of the longest context after which a cache is cut. */
    int64_t n = 0;
    for (int64_t i = 0; i < ids->win.n; i++) {
        const int64_t here = again ? ids->win.win[i].n : ids->win.win[i].first;
        if (here > n) n = here;
    }
    return n;
}

/* Measurements of contexts do not cover later evictions. */
dq_eval_kept dq_eval_kept_of(const dq_eval *e, const dq_eval_row *row)
{
    const dq_kv_cached *had = &row->work.cached;
    const int64_t n = row->kv.evict.policy ? longest(e, row) : 0;
    const int64_t budget = n ? dq_evict_budget(&row->kv, n, NULL) : 0;
    const bool measured = had->evicted > 0 && !row->kv.evict.every;
    if (budget >= n) return DQ_EVAL_KEPT_ALL;
    if (budget <= (int64_t)row->kv.sink + row->kv.recent) return DQ_EVAL_KEPT_LEAST;
    return measured && had->raised == had->evicted ? DQ_EVAL_KEPT_LEAST : DQ_EVAL_KEPT_CHOSEN;
}

/* Whether as many budgets are raised. A share of at most a half is below its context from two
 * tokens on; if the longest context is not raised and keeps all, none is. */
static bool same_raised(const dq_eval *e, const dq_eval_row *a, const dq_eval_row *b)
{
    const dq_evict_spec *x = &a->kv.evict, *y = &b->kv.evict;
    const int64_t n = longest(e, a);
    bool raised = false, other = false;
    if (!x->policy || (x->keep == y->keep && x->tokens == y->tokens)) return true;
    const int64_t budget = dq_evict_budget(&a->kv, n, &raised);
    dq_evict_budget(&b->kv, n, &other);
    if (raised != other) return false;
    return raised ? x->keep <= 0.5 && y->keep <= 0.5 : budget >= n;
}

bool dq_eval_same_cache(const dq_eval *e, const dq_eval_row *a, const dq_eval_row *b)
{
    dq_kv_spec other = b->kv;
    if (dq_kv_spec_same(&a->kv, &b->kv)) return true;
    if (!a->kv.evict.policy != !b->kv.evict.policy || a->kv.evict.every != b->kv.evict.every)
        return false; /* fed in other passes, or not measured */
    other.evict = a->kv.evict;
    if (!dq_kv_spec_same(&a->kv, &other)) return false;
    const dq_eval_kept kept = dq_eval_kept_of(e, a);
    return kept != DQ_EVAL_KEPT_CHOSEN && kept == dq_eval_kept_of(e, b);
}

/* Positions that items need are found first for all models: an item that does not fit one of them
 * is left out for all, or the run is refused, since scores are compared item by item. */

const char *const dq_eval_long_name[1 + DQ_EVAL_LONGS] = {"", "error", "skip", "cut"};

int64_t dq_eval_number(const dq_eval_source *s, int64_t unit)
{
    return s->number ? s->number[unit] : unit;
}

int64_t dq_eval_line(const dq_eval_source *s, int64_t unit)
{
    return unit < s->items.n ? s->items.item[unit].line : 0;
}

typedef struct misfit {
    bool *is; /* [items] of the source */
    int64_t n, first, need;
    const dq_model *of; /* of the first */
} misfit;

/* Encodes the items as for a model without an end, which knows all tokens: what is left out is not
 * looked at closer. */
static dq_status find_misfits(misfit *f, const dq_eval *e, int source, const dq_eval_model *m,
                              dq_arena *a, dq_err *err)
{
    const dq_eval_source *s = &e->source[source];
    dq_model endless = *m->m;
    dq_eval_model one = *m;
    dq_eval alone = *e;
    dq_eval_ids ids = {.source = source};
    endless.max_positions = INT_MAX - 1;
    endless.vocab = INT_MAX;
    one.m = &endless;
    alone.model = &one;
    alone.a = a;
    alone.too_long = DQ_LONG_ERROR;
    DQ_TRY(s->kind->encode(&alone, &ids, err));
    int64_t *need = dq_alloc(a, (size_t)s->items.n, sizeof *need, err);
    if (!need) return err->code;
    for (int64_t k = 0; k < ids.req.n; k++) {
        const dq_request *r = &ids.req.req[k];
        const int64_t n = r->n_ctx + (r->cont ? r->n_cont - 1 : 0);
        if (n > need[r->item]) need[r->item] = n;
    }
    for (int64_t i = 0; i < s->items.n; i++) {
        if (need[i] <= m->m->max_positions || f->is[i]) continue;
        f->is[i] = true;
        if (f->n++ > 0 && i > f->first) continue;
        f->first = i;
        f->need = need[i];
        f->of = m->m;
    }
    return DQ_OK;
}

static dq_status judge_misfits(dq_eval *e, dq_eval_source *s, const misfit *f, dq_long way,
                               dq_err *err)
{
    char line[48] = "";
    const int64_t n = s->items.n;
    const int64_t at = dq_eval_line(s, f->first);
    if (f->n == 0) return DQ_OK;
    if (way == DQ_LONG_SKIP && f->n < n) {
        /* Keeps the others, with their numbers. */
        dq_item *item = dq_alloc(e->a, (size_t)(n - f->n), sizeof *item, err);
        int64_t *number = dq_alloc(e->a, (size_t)(n - f->n), sizeof *number, err), kept = 0;
        if (!item || !number) return err->code;
        for (int64_t i = 0; i < n; i++) {
            if (f->is[i]) continue;
            item[kept] = s->items.item[i];
            number[kept++] = i;
        }
        s->items.item = item;
        s->items.n = kept;
        s->number = number;
        s->n_skipped = f->n;
        return DQ_OK;
    }
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
    misfit f = {0};
    if (s->items.n == 0) return DQ_OK;
    const dq_long usual = s->items.item->question ? DQ_LONG_ERROR : DQ_LONG_CUT;
    const dq_long way = e->too_long ? e->too_long : usual;
    if (way == DQ_LONG_CUT) return DQ_OK;
    f.is = dq_block_new((size_t)s->items.n, sizeof *f.is, err);
    for (int i = 0; err->code == DQ_OK && i < e->n_models; i++) {
        dq_arena *a = dq_arena_new();
        if (!a)
            dq_fail(err, DQ_RESOURCE, "out of memory");
        else if (e->model[i].tok && e->model[i].m->max_positions > 0 &&
                 find_misfits(&f, e, source, &e->model[i], a, err) != DQ_OK)
            dq_in(err, "%s: ", s->path);
        dq_arena_free(a);
    }
    if (err->code == DQ_OK) judge_misfits(e, s, &f, way, err);
    dq_block_free(f.is);
    return err->code;
}

/* Rows are a model, a source and settings; ids are shared by models that read the same ones. A row
 * exists once however often it is asked for; so does the 16-bit row that it is compared with, which
 * is shown only if asked for. */

/* Whether ids made for one model serve the other. */
static bool same_ids(const dq_eval_ids *ids, const dq_eval_model *a, const dq_eval_model *b)
{
    return a->tok && b->tok && a->m->vocab == b->m->vocab &&
           dq_tokenizer_same(a->tok, b->tok, a->m->vocab) &&
           a->m->max_positions == b->m->max_positions &&
           (!(ids->win.prefixed || ids->req.prefixed) ||
            dq_tokenizer_prefix(a->tok) == dq_tokenizer_prefix(b->tok));
}

/* Finds or makes the ids of `source` for `model`; models with one tokenizer share them. -1: see
 * err. */
static int ids_for(dq_eval *e, int source, int model, dq_err *err)
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
    const dq_eval_source *s = &e->source[source];
    const dq_eval_model *m = &e->model[model];
    dq_eval_ids *ids = &list[e->n_ids];
    *ids = (dq_eval_ids){.source = source, .model = model};
    if (!m->tok)
        dq_fail(err, DQ_MISMATCH, "%s: has no tokenizer.json, so text cannot be scored with it",
                m->m->path);
    else if (s->kind->encode(e, ids, err) != DQ_OK)
        dq_in(err, "%s: ", s->path);
    uint64_t *key = dq_alloc(e->a, (size_t)s->items.n, sizeof *key, err);
    for (int64_t i = 0; key && i < s->items.n; i++) key[i] = s->items.item[i].cluster;
    if (err->code == DQ_OK && s->items.n)
        dq_repeats_keys(&ids->cluster, key, s->items.n, e->a, err);
    return err->code == DQ_OK ? e->n_ids++ : -1;
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

dq_status dq_eval_lengths(int *length, int *n, const int *given, int n_given, const dq_eval *e,
                          dq_err *err)
{
    const dq_model *least = e->model[0].m;
    for (int i = 1; i < e->n_models; i++) {
        if (e->model[i].m->max_positions < least->max_positions) least = e->model[i].m;
    }
    *n = n_given ? n_given : 1;
    length[0] = least->max_positions < DQ_DEFAULT_LENGTH ? least->max_positions : DQ_DEFAULT_LENGTH;
    if (n_given) memcpy(length, given, (size_t)n_given * sizeof *length);
    for (int l = 0; l < *n; l++) {
        if (length[l] > least->max_positions)
            return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_OPTION},
                                "lengths %d: %s has %d positions. Use lengths up to %d", length[l],
                                least->path, least->max_positions, least->max_positions);
    }
    return DQ_OK;
}

dq_request *dq_eval_requests(dq_requests *out, int64_t n, dq_arena *a, dq_err *err)
{
    dq_request *r = dq_alloc(a, (size_t)n, sizeof *r, err);
    int64_t *at = dq_alloc(a, (size_t)n + 1, sizeof *at, err);
    if (!r || !at) return NULL;
    for (int64_t i = 0; i < n; i++) {
        r[i].item = i;
        at[i + 1] = i + 1;
    }
    *out = (dq_requests){.req = r, .at = at, .n = n, .n_items = n};
    return r;
}

dq_status dq_eval_stop_ids(dq_stop_ids *out, const dq_eval *e, int model, dq_err *err)
{
    const dq_eval_model *own = &e->model[model], *ref = &e->model[own->ref];
    *out = (dq_stop_ids){0};
    DQ_TRY(dq_stop_ids_add(out, own->m, own->tok, own->m->vocab, err));
    return ref == own ? DQ_OK : dq_stop_ids_add(out, ref->m, ref->tok, own->m->vocab, err);
}

/* Adds a missing row; returns its index. It is computed as an earlier one with an equal cache, or
 * for itself; where nothing is left to choose, with a policy that needs no statistics. */
static int put_row(dq_eval *e, dq_eval_row want, dq_err *err)
{
    for (int i = 0; i < e->n_rows; i++) {
        if (e->row[i].ids != want.ids || !same_setting(&e->row[i], &want)) continue;
        e->row[i].shown = e->row[i].shown || want.shown;
        return i;
    }
    dq_eval_row *list =
        dq_grow(e->a, e->row, (size_t)e->n_rows + 1, &e->cap_rows, sizeof *list, err);
    if (!list) return -1;
    e->row = list;
    want.run = want.kv;
    if (want.kv.evict.policy && dq_eval_kept_of(e, &want) != DQ_EVAL_KEPT_CHOSEN) {
        dq_err unknown = {0};
        want.run.evict.policy = dq_kv_policy_find("streaming", &unknown);
        want.run.evict.budget = DQ_KV_BUDGET_UNIFORM;
        want.run.evict.window = -1;
    }
    for (want.same = 0; want.same < e->n_rows; want.same++) {
        const dq_eval_row *r = &list[want.same];
        if (r->same != want.same || r->model != want.model || r->ids != want.ids ||
            !dq_logit_same(r->logit, want.logit) || !dq_math_same(r->math, want.math) ||
            !dq_eval_same_cache(e, r, &want) || !same_raised(e, r, &want))
            continue;
        want.finished = r->finished;
        want.logp = r->logp;
        want.top1 = r->top1;
        want.kld = r->kld;
        want.extra = r->extra;
        break;
    }
    if (want.same == e->n_rows) {
        const int64_t units = dq_eval_units(e, &want), extra = units * e->ids[want.ids].n_extra;
        const size_t n = (size_t)dq_eval_values(e, &want, units);
        want.finished = dq_alloc(e->a, (size_t)units, sizeof *want.finished, err);
        want.logp = dq_alloc(e->a, n, sizeof *want.logp, err);
        want.top1 = dq_alloc(e->a, n, sizeof *want.top1, err);
        if (dq_eval_source_of(e, &want)->kind->windows)
            want.kld = dq_alloc(e->a, n, sizeof *want.kld, err);
        if (extra > 0) want.extra = dq_alloc(e->a, (size_t)extra, sizeof *want.extra, err);
        if (err->code != DQ_OK) return -1;
    }
    list[e->n_rows] = want;
    return e->n_rows++;
}

dq_status dq_eval_add(dq_eval *e, int model, int source, dq_logit_spec logit, dq_math math,
                      const dq_kv_spec *kv, dq_err *err)
{
    const dq_eval_model *m = &e->model[model], *r = &e->model[m->ref];
    const dq_eval_kind *kind = e->source[source].kind;
    if (kind->takes) DQ_TRY(kind->takes(e, &e->source[source], kv, err));
    int ids = ids_for(e, source, model, err);
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
    if (r->m->max_positions > 0 &&
        (m->m->max_positions == 0 || r->m->max_positions < m->m->max_positions)) /* 0: unlimited */
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
