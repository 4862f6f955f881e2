/* What policies act on: layers whose queries see all tokens. The lists of a layer with a window
 * are its own business, and count as empty here. Sums live per sequence, aligned with what each
 * layer and group holds; during a pass they are laid out as the backend wants them, one array
 * per column for the whole batch.
 * SPDX-License-Identifier: MIT */
#include "engine/runner.h"

#include <math.h>
#include <string.h>

const dq_evict_report dq_evict_report_none = {.gap_min = (double)INFINITY};

enum { N_COLUMNS = 4 };
static const unsigned column_need[N_COLUMNS] = {DQ_NEEDS_MASS1, DQ_NEEDS_MASS2,
                                                DQ_NEEDS_LAMBDA_MASS, DQ_NEEDS_DIFF};

/* Sums of one sequence: list i = layer * n_groups + group has tokens at[i] .. at[i + 1] - 1 of each
 * needed column, one column after the other. */
typedef struct sums {
    int64_t *at;  /* [n_lists + 1]; NULL: none */
    double *data; /* [needed columns][at[n_lists]] */
} sums;

/* The ids fed to a sequence; id i is at position i. */
typedef struct text {
    int32_t *ids;
    size_t cap;
    int64_t n; /* -1: not all of it was watched */
} text;

struct dq_evictor {
    dq_runner *r;
    dq_backend *b;
    dq_pass pass;
    dq_kv *kv;
    dq_kv_spec spec;
    dq_kv_heads heads; /* of a budget that goes by them */
    int n_layers, n_groups, n_lists;
    int slot[N_COLUMNS]; /* of each column among the needed ones; -1: not needed */
    int n_columns;
    int64_t window;
    sums *seq;  /* [n_seq] by handle */
    text *text; /* [n_seq] */
    int32_t n_seq;
    /* the observed pass */
    int n_watched;
    int32_t *watched; /* [n_watched] handles; -1: evicted */
    int64_t *offset;  /* [n_layers][n_watched][n_groups], and the end */
    double *area;     /* [needed columns][end] */
    dq_columns *columns;
};

dq_status dq_evictor_new(dq_evictor **out, dq_runner *r, const dq_kv_spec *spec,
                         const dq_pass *pass, dq_err *err)
{
    const dq_kv_policy *policy = spec->evict.policy;
    const dq_model *m = dq_runner_model(r);
    *out = NULL;
    DQ_TRY(dq_evict_check(spec, err));
    DQ_TRY(dq_backend_can_evict(dq_runner_backend(r), policy, err));
    if (policy && policy->needs & DQ_NEEDS_GATES && !m->gates)
        return dq_fail(err, DQ_BUG, "the policy %s without gates", policy->name);
    dq_evictor *e = dq_block_new(1, sizeof *e, err);
    if (!e) return err->code;
    e->r = r;
    e->b = dq_runner_backend(r);
    e->pass = (dq_pass){.logit = pass->logit, .math = pass->math, .listener = pass->listener};
    e->kv = dq_runner_kv(r);
    e->spec = *spec;
    e->n_layers = m->n_layers;
    e->n_groups = m->map.n_groups;
    e->n_lists = e->n_layers * e->n_groups;
    for (int c = 0; c < N_COLUMNS; c++) {
        const bool needed = policy && (policy->needs & column_need[c]);
        e->slot[c] = needed ? e->n_columns++ : -1;
    }
    if (e->n_columns) e->window = dq_evict_window(&spec->evict);
    e->columns = dq_block_new((size_t)e->n_layers, sizeof *e->columns, err);
    if (spec->evict.budget == DQ_KV_BUDGET_HEADS &&
        dq_kv_heads_parse(&e->heads, spec->evict.heads, err) == DQ_OK)
        dq_model_heads_fit(m, &e->heads, err);
    if (err->code != DQ_OK)
        dq_evictor_free(e);
    else
        *out = e;
    return err->code;
}

static void sums_drop(sums *s)
{
    dq_block_free(s->at);
    dq_block_free(s->data);
    *s = (sums){0};
}

static void area_drop(dq_evictor *e)
{
    dq_block_free(e->watched);
    dq_block_free(e->offset);
    dq_block_free(e->area);
    e->watched = NULL;
    e->offset = NULL;
    e->area = NULL;
    e->n_watched = 0;
}

void dq_evictor_free(dq_evictor *e)
{
    if (!e) return;
    for (int32_t i = 0; i < e->n_seq; i++) {
        sums_drop(&e->seq[i]);
        dq_block_free(e->text[i].ids);
    }
    area_drop(e);
    dq_block_free(e->seq);
    dq_block_free(e->text);
    dq_block_free(e->columns);
    dq_block_free(e);
}

static dq_status reach(dq_evictor *e, int32_t seq, dq_err *err)
{
    if (seq < 0) return dq_fail(err, DQ_BUG, "no sequence %d to evict from", (int)seq);
    if (seq < e->n_seq) return DQ_OK;
    size_t cap = (size_t)e->n_seq, same = cap;
    text *texts = dq_grow(NULL, e->text, (size_t)seq + 1, &same, sizeof *texts, err);
    if (!texts) return err->code;
    e->text = texts;
    sums *list = dq_grow(NULL, e->seq, (size_t)seq + 1, &cap, sizeof *list, err);
    if (!list) return err->code;
    e->seq = list;
    if (same < cap) cap = same;
    e->n_seq = cap < INT32_MAX ? (int32_t)cap : INT32_MAX;
    return DQ_OK;
}

static bool has_second_pass(const dq_evictor *e)
{
    return e->spec.evict.policy && (e->spec.evict.policy->needs & DQ_NEEDS_PEAK);
}

/* Rows of sequence i of the batch have consecutive positions. */
static dq_status remember(dq_evictor *e, const dq_batch *batch, int i, dq_err *err)
{
    text *t = &e->text[batch->seq[i]];
    const int64_t from = batch->cu_rows[i], n = batch->cu_rows[i + 1] - from;
    if (n == 0) return DQ_OK;
    const int64_t at = batch->pos[from];
    if (at == 0) t->n = 0; /* a new sequence under an old handle */
    if (at > t->n) t->n = -1;
    if (t->n < 0) return DQ_OK;
    int32_t *ids = dq_grow(NULL, t->ids, (size_t)(at + n), &t->cap, sizeof *ids, err);
    if (!ids) return err->code;
    t->ids = ids;
    memcpy(ids + at, batch->ids + from, (size_t)n * sizeof *ids);
    t->n = at + n;
    return DQ_OK;
}

/* Zeroed, for lists of count[n_lists] tokens. */
static dq_status sums_new(const dq_evictor *e, sums *s, const int64_t *count, dq_err *err)
{
    *s = (sums){.at = dq_block_new((size_t)e->n_lists + 1, sizeof *s->at, err)};
    if (!s->at) return err->code;
    for (int i = 0; i < e->n_lists; i++) s->at[i + 1] = s->at[i] + count[i];
    s->data = dq_block_new((size_t)(e->n_columns * s->at[e->n_lists]), sizeof *s->data, err);
    if (!s->data) sums_drop(s);
    return err->code;
}

static double *sums_list(const dq_evictor *e, const sums *s, int slot, int list)
{
    return s->data + slot * s->at[e->n_lists] + s->at[list];
}

static int64_t sums_count(const sums *s, int list)
{
    return s->at[list + 1] - s->at[list];
}

static int64_t area_index(const dq_evictor *e, int watched, int list)
{
    return ((int64_t)(list / e->n_groups) * e->n_watched + watched) * e->n_groups +
           list % e->n_groups;
}

static double *area_list(const dq_evictor *e, int slot, int watched, int list)
{
    const int64_t end = e->offset[(int64_t)e->n_lists * e->n_watched];
    return e->area + slot * end + e->offset[area_index(e, watched, list)];
}

/* Moves a sequence's sums out of the area. */
static dq_status compact_sequence(dq_evictor *e, int watched, int64_t *count, dq_err *err)
{
    sums fresh;
    for (int i = 0; i < e->n_lists; i++) {
        const int64_t k = area_index(e, watched, i);
        count[i] = e->offset[k + 1] - e->offset[k];
    }
    DQ_TRY(sums_new(e, &fresh, count, err));
    for (int c = 0; c < e->n_columns; c++) {
        for (int i = 0; i < e->n_lists; i++) {
            if (count[i]) /* an empty area is no array */
                memcpy(sums_list(e, &fresh, c, i), area_list(e, c, watched, i),
                       (size_t)count[i] * sizeof(double));
        }
    }
    sums_drop(&e->seq[e->watched[watched]]);
    e->seq[e->watched[watched]] = fresh;
    return DQ_OK;
}

static dq_status end_watch(dq_evictor *e, dq_err *err)
{
    if (!e->area) return DQ_OK;
    int64_t *count = dq_block_new((size_t)e->n_lists, sizeof *count, err);
    for (int i = 0; count && i < e->n_watched; i++) {
        if (e->watched[i] >= 0 && compact_sequence(e, i, count, err) != DQ_OK) break;
    }
    dq_block_free(count);
    area_drop(e);
    return err->code;
}

static int64_t rows_of(const dq_batch *batch, int i)
{
    return batch->cu_rows[i + 1] - batch->cu_rows[i];
}

/* What a layer with a window holds is none of a policy's. */
static bool is_whole(const dq_evictor *e, int list)
{
    return dq_runner_model(e->r)->layer[list / e->n_groups].attn.window == 0;
}

static int64_t cached(const dq_evictor *e, int32_t seq, int list)
{
    if (!is_whole(e, list)) return 0;
    return e->b->ops->kv_count(e->b, e->kv, seq, list / e->n_groups, list % e->n_groups, NULL);
}

/* Prepares the area for what lists hold after the pass. */
static dq_status area_new(dq_evictor *e, const dq_batch *batch, dq_err *err)
{
    const int64_t n = (int64_t)e->n_lists * batch->n_seq;
    e->n_watched = batch->n_seq;
    e->watched = dq_block_new((size_t)batch->n_seq, sizeof *e->watched, err);
    e->offset = dq_block_new((size_t)n + 1, sizeof *e->offset, err);
    if (!e->watched || !e->offset) return err->code;
    int64_t end = 0;
    for (int64_t k = 0; k < n; k++) {
        const int i = (int)(k / e->n_groups % batch->n_seq);
        const int layer = (int)(k / e->n_groups / batch->n_seq);
        e->watched[i] = batch->seq[i];
        e->offset[k] = end;
        const int list = layer * e->n_groups + (int)(k % e->n_groups);
        if (is_whole(e, list)) end += cached(e, batch->seq[i], list) + rows_of(batch, i);
    }
    e->offset[n] = end;
    e->area = dq_block_new((size_t)(e->n_columns * end), sizeof *e->area, err);
    return err->code;
}

static double *column(const dq_evictor *e, int c)
{
    const int64_t end = e->offset[(int64_t)e->n_lists * e->n_watched];
    return e->slot[c] < 0 ? NULL : e->area + e->slot[c] * end;
}

dq_status dq_evictor_watch(dq_evictor *e, const dq_batch *batch, const dq_columns **out,
                           dq_err *err)
{
    *out = NULL;
    DQ_TRY(end_watch(e, err));
    for (int i = 0; has_second_pass(e) && i < batch->n_seq; i++) {
        DQ_TRY(reach(e, batch->seq[i], err));
        DQ_TRY(remember(e, batch, i, err));
    }
    if (e->n_columns == 0 || batch->n_seq == 0) return DQ_OK;
    for (int i = 0; i < batch->n_seq; i++) DQ_TRY(reach(e, batch->seq[i], err));
    if (area_new(e, batch, err) != DQ_OK) {
        area_drop(e);
        return err->code;
    }
    for (int i = 0; i < batch->n_seq; i++) {
        const int64_t rows = rows_of(batch, i);
        sums *s = &e->seq[e->watched[i]];
        if (e->window > 0 && rows >= e->window) sums_drop(s);
        for (int list = 0; s->at && list < e->n_lists; list++) {
            const int64_t now = cached(e, e->watched[i], list), had = sums_count(s, list);
            const size_t n = (size_t)(now < had ? now : had); /* less after a rewind */
            for (int c = 0; n && c < e->n_columns; c++)
                memcpy(area_list(e, c, i, list), sums_list(e, s, c, list), n * sizeof(double));
        }
    }
    for (int l = 0; l < e->n_layers; l++) {
        e->columns[l] = (dq_columns){
            .last_rows = e->window,
            .offset = e->offset + (int64_t)l * e->n_watched * e->n_groups,
            .mass = {column(e, 0), column(e, 1)},
            .lambda_mass = column(e, 2),
            .diff = column(e, 3),
        };
    }
    *out = e->columns;
    return DQ_OK;
}

/* Per-token arrays hold all lists, list i from at[i] on. */
typedef struct cut {
    int32_t seq, row; /* keys are read as the query at position `row` does */
    int64_t budget;
    dq_kv_protected safe;
    int64_t *at, *n_kept; /* [n_lists + 1], [n_lists] */
    int32_t *pos, *kept;
    double *score, *key_norm, *key_cosine, *key_leverage, *peak, *gate;
    int64_t *share;       /* [n_lists] */
    dq_pool_group *group; /* [n_lists] */
    sums *sums;           /* NULL: the policy needs none */
} cut;

static dq_status read_keys(const dq_evictor *e, cut *k, dq_err *err)
{
    const unsigned needs = e->spec.evict.policy->needs;
    for (int i = 0; i < e->n_lists; i++) {
        const int layer = i / e->n_groups, group = i % e->n_groups;
        if (!is_whole(e, i)) continue;
        if (needs & DQ_NEEDS_KEY_NORM)
            e->b->ops->kv_key_norms(e->b, e->kv, k->seq, layer, group, k->row,
                                    k->key_norm + k->at[i]);
        if (needs & DQ_NEEDS_KEY_COSINE)
            e->b->ops->kv_key_cosines(e->b, e->kv, k->seq, layer, group, k->row,
                                      k->key_cosine + k->at[i]);
        if (needs & DQ_NEEDS_KEY_LEVERAGE)
            e->b->ops->kv_key_leverages(e->b, e->kv, k->seq, layer, group, k->row,
                                        dq_runner_model(e->r)->layer[layer].rope,
                                        k->key_leverage + k->at[i]);
        if (needs & DQ_NEEDS_GATES) {
            /* Predicts peaks of a list's tokens by the gates. */
            const dq_model *m = dq_runner_model(e->r);
            const int64_t n = k->at[i + 1] - k->at[i];
            const int64_t cols = 2 * dq_head_order_key_channels(&m->map, i % e->n_groups);
            float *row = dq_block_new((size_t)(n * cols), sizeof *row, err);
            if (!row) return err->code;
            e->b->ops->kv_rows(e->b, e->kv, k->seq, i / e->n_groups, i % e->n_groups, k->row,
                               m->layer[i / e->n_groups].rope, row);
            if (dq_backend_sync(e->b, err) == DQ_OK)
                dq_kv_gates_score(k->gate + k->at[i], m->gates, i, row, k->pos + k->at[i], n, err);
            dq_block_free(row);
            if (err->code != DQ_OK) return err->code;
        }
    }
    return dq_backend_sync(e->b, err);
}

/* Fits sums to the present lists; tokens of unobserved passes count as zero. */
static dq_status find_sums(dq_evictor *e, cut *k, dq_err *err)
{
    if (e->n_columns == 0) return DQ_OK;
    sums *s = k->seq < e->n_seq ? &e->seq[k->seq] : NULL, fresh;
    if (!s || !s->at)
        return dq_fail(err, DQ_BUG, "no pass of sequence %d was watched", (int)k->seq);
    k->sums = s;
    if (memcmp(s->at, k->at, ((size_t)e->n_lists + 1) * sizeof *s->at) == 0) return DQ_OK;
    for (int i = 0; i < e->n_lists; i++) k->n_kept[i] = k->at[i + 1] - k->at[i];
    DQ_TRY(sums_new(e, &fresh, k->n_kept, err));
    for (int i = 0; i < e->n_lists; i++) {
        const int64_t had = sums_count(s, i);
        const size_t n = (size_t)(had < k->n_kept[i] ? had : k->n_kept[i]);
        for (int c = 0; n && c < e->n_columns; c++)
            memcpy(sums_list(e, &fresh, c, i), sums_list(e, s, c, i), n * sizeof(double));
    }
    sums_drop(s);
    *s = fresh;
    return DQ_OK;
}

/* As many keys as channels span all directions, each its own. */
static bool is_flat(const dq_evictor *e, const cut *k)
{
    const dq_head_order *map = &dq_runner_model(e->r)->map;
    if (!(e->spec.evict.policy->needs & DQ_NEEDS_KEY_LEVERAGE)) return false;
    for (int i = 0; i < e->n_lists; i++) {
        if (is_whole(e, i) &&
            k->at[i + 1] - k->at[i] <= dq_head_order_key_channels(map, i % e->n_groups))
            return true;
    }
    return false;
}

/* What lists first .. first + n - 1 keep when they share a budget by score. */
static dq_status pool_lists(const dq_evictor *e, cut *k, int first, int n, int floor,
                            dq_evict_report *report, dq_err *err)
{
    const dq_pool pool = {.group = k->group + first,
                          .n_groups = n,
                          .budget = k->budget,
                          .safe = k->safe,
                          .common = e->spec.evict.policy->common,
                          .floor = floor,
                          .page = DQ_PAGE_TOKENS};
    double gap;
    DQ_TRY(dq_kv_budget_of_groups(k->share + first, &gap, &pool, err));
    report->gap_min = fmin(report->gap_min, gap);
    return DQ_OK;
}

/* Scores all lists and divides the budget. */
static dq_status share(const dq_evictor *e, cut *k, dq_evict_report *report, dq_err *err)
{
    const dq_kv_budget kind = e->spec.evict.budget;
    for (int i = 0; i < e->n_lists; i++) {
        const double *sum[N_COLUMNS] = {0};
        for (int c = 0; c < N_COLUMNS; c++) {
            if (e->slot[c] >= 0) sum[c] = sums_list(e, k->sums, e->slot[c], i);
        }
        const dq_token_columns c = {
            .n = k->at[i + 1] - k->at[i],
            .pos = k->pos + k->at[i],
            .mass = {sum[0], sum[1]},
            .lambda_mass = sum[2],
            .diff = sum[3],
            .key_norm = k->key_norm + k->at[i],
            .key_cosine = k->key_cosine + k->at[i],
            .key_leverage = k->key_leverage + k->at[i],
            .peak = k->peak + k->at[i],
            .gate = k->gate + k->at[i],
            .seed = dq_kv_policy_seed(e->spec.evict.seed, i / e->n_groups, i % e->n_groups),
        };
        dq_kv_policy_score(k->score + k->at[i], e->spec.evict.policy, &c, k->safe);
        k->group[i] =
            (dq_pool_group){k->score + k->at[i], k->pos + k->at[i], k->at[i + 1] - k->at[i]};
        k->share[i] = k->budget < k->safe.end ? k->budget : k->safe.end;
    }
    for (int i = 0; kind == DQ_KV_BUDGET_ADAPTIVE && i < e->n_lists; i += e->n_groups)
        DQ_TRY(pool_lists(e, k, i, e->n_groups, DQ_KV_ADAPTIVE_FLOOR, report, err));
    if (kind == DQ_KV_BUDGET_GLOBAL) DQ_TRY(pool_lists(e, k, 0, e->n_lists, 0, report, err));
    const dq_pool all = {
        .group = k->group, .n_groups = e->n_lists, .budget = k->budget, .safe = k->safe};
    if (kind == DQ_KV_BUDGET_HEADS) dq_kv_budget_of_heads(k->share, &all, &e->heads, e->n_groups);
    return DQ_OK;
}

static dq_status evict_tokens(dq_evictor *e, cut *k, dq_arena *a, dq_evict_report *report,
                              dq_err *err)
{
    const size_t lists = (size_t)e->n_lists;
    k->at = dq_alloc(a, lists + 1, sizeof *k->at, err);
    k->n_kept = dq_alloc(a, lists, sizeof *k->n_kept, err);
    k->share = dq_alloc(a, lists, sizeof *k->share, err);
    k->group = dq_alloc(a, lists, sizeof *k->group, err);
    if (err->code != DQ_OK) return err->code;
    for (int i = 0; i < e->n_lists; i++) k->at[i + 1] = k->at[i] + cached(e, k->seq, i);
    const size_t n = (size_t)k->at[e->n_lists];
    k->pos = dq_alloc(a, n, sizeof *k->pos, err);
    k->kept = dq_alloc(a, n, sizeof *k->kept, err);
    k->score = dq_alloc(a, n, sizeof *k->score, err);
    k->key_norm = dq_alloc(a, n, sizeof *k->key_norm, err);
    k->key_cosine = dq_alloc(a, n, sizeof *k->key_cosine, err);
    k->key_leverage = dq_alloc(a, n, sizeof *k->key_leverage, err);
    k->peak = dq_alloc(a, n, sizeof *k->peak, err);
    k->gate = dq_alloc(a, n, sizeof *k->gate, err);
    if (err->code != DQ_OK) return err->code;
    for (int i = 0; i < e->n_lists; i++) {
        if (is_whole(e, i))
            e->b->ops->kv_count(e->b, e->kv, k->seq, i / e->n_groups, i % e->n_groups,
                                k->pos + k->at[i]);
    }
    DQ_TRY(dq_backend_sync(e->b, err));
    DQ_TRY(read_keys(e, k, err));
    DQ_TRY(find_sums(e, k, err));
    if (has_second_pass(e)) {
        const text *t = k->seq < e->n_seq ? &e->text[k->seq] : NULL;
        const int most = dq_runner_model(e->r)->max_positions;
        if (!t || t->n != k->safe.end)
            return dq_fail(err, DQ_BUG, "not all tokens of sequence %d were watched", (int)k->seq);
        const dq_second_pass w = {.r = e->r,
                                  .pass = e->pass,
                                  .seq = k->seq,
                                  .ids = t->ids,
                                  .n = t->n,
                                  .sink = e->spec.sink,
                                  .at = k->at,
                                  .pos = k->pos};
        report->second_pass += dq_second_pass_rows(t->n);
        report->beyond += most > 0 && dq_second_pass_end(t->n) > most;
        DQ_TRY(dq_second_pass_peaks(k->peak, &w, err));
    }
    report->flat += is_flat(e, k);
    DQ_TRY(share(e, k, report, err));
    for (int j = 0; j < e->n_lists; j++) {
        const dq_pool_group *p = &k->group[j];
        int32_t *kept = k->kept + k->at[j];
        DQ_TRY(dq_kv_policy_keep(kept, &k->n_kept[j], p->score, p->pos, p->n, k->share[j], k->safe,
                                 err));
        report->gap_min = fmin(
            report->gap_min, dq_kv_policy_gap(kept, k->n_kept[j], p->score, p->pos, p->n, k->safe));
        report->kept += k->n_kept[j];
    }
    for (int i = 0; i < e->n_lists; i++) {
        if (k->n_kept[i] < k->at[i + 1] - k->at[i])
            e->b->ops->kv_keep(e->b, e->kv, k->seq, i / e->n_groups, i % e->n_groups,
                               k->kept + k->at[i], k->n_kept[i]);
    }
    DQ_TRY(dq_backend_sync(e->b, err));
    if (!k->sums || !e->spec.evict.every || e->window != 0) return DQ_OK;
    /* Only kept tokens keep their sums. */
    sums fresh;
    DQ_TRY(sums_new(e, &fresh, k->n_kept, err));
    for (int c = 0; c < e->n_columns; c++) {
        for (int i = 0; i < e->n_lists; i++) {
            const double *from = sums_list(e, k->sums, c, i);
            double *to = sums_list(e, &fresh, c, i);
            for (int64_t t = 0; t < k->n_kept[i]; t++) to[t] = from[k->kept[k->at[i] + t]];
        }
    }
    sums_drop(k->sums);
    *k->sums = fresh;
    return DQ_OK;
}

static dq_status evict_sequence(dq_evictor *e, int32_t seq, int32_t prefix, dq_evict_report *report,
                                dq_err *err)
{
    bool raised;
    int64_t before = 0;
    cut k = {.seq = seq,
             .row = prefix - 1 + dq_kv_ahead(&e->spec),
             .safe = {e->spec.sink, e->spec.recent, prefix}};
    k.budget = dq_evict_budget(&e->spec, prefix, &raised);
    for (int i = 0; i < e->n_lists; i++) before += cached(e, seq, i);
    report->before += before;
    report->raised += raised;
    if (k.budget >= prefix) {
        report->kept += before;
    } else {
        dq_arena *a = dq_arena_new();
        if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
        evict_tokens(e, &k, a, report, err);
        dq_arena_free(a);
    }
    /* no later eviction needs these sums; what was fed stays for second passes */
    if (seq < e->n_seq && (e->spec.evict.every == 0 || e->window > 0)) sums_drop(&e->seq[seq]);
    return err->code;
}

dq_status dq_evictor_run(dq_evictor *e, const dq_batch *batch, const int32_t *prefix,
                         dq_evict_report *report, dq_err *err)
{
    DQ_TRY(end_watch(e, err));
    for (int i = 0; e->spec.evict.policy && i < batch->n_seq; i++)
        DQ_TRY(evict_sequence(e, batch->seq[i], prefix[i], report, err));
    return err->code;
}

dq_status dq_evictor_fork(dq_evictor *e, int32_t from, int32_t to, dq_err *err)
{
    DQ_TRY(end_watch(e, err));
    DQ_TRY(reach(e, from, err));
    DQ_TRY(reach(e, to, err));
    sums *parent = &e->seq[from], copy;
    sums_drop(&e->seq[to]);
    if (has_second_pass(e)) {
        const text *source = &e->text[from];
        e->text[to].n = source->n;
        if (source->n > 0) {
            int32_t *ids = dq_grow(NULL, e->text[to].ids, (size_t)source->n, &e->text[to].cap,
                                   sizeof *ids, err);
            if (!ids) return err->code;
            e->text[to].ids = ids;
            memcpy(ids, source->ids, (size_t)source->n * sizeof *ids);
        }
    }
    if (!parent->at) return DQ_OK;
    int64_t *count = dq_block_new((size_t)e->n_lists, sizeof *count, err);
    if (!count) return err->code;
    for (int i = 0; i < e->n_lists; i++) count[i] = sums_count(parent, i);
    if (sums_new(e, &copy, count, err) == DQ_OK) {
        memcpy(copy.data, parent->data,
               (size_t)(e->n_columns * parent->at[e->n_lists]) * sizeof *copy.data);
        e->seq[to] = copy;
    }
    dq_block_free(count);
    return err->code;
}

void dq_evictor_forget(dq_evictor *e, int32_t seq)
{
    for (int i = 0; i < e->n_watched; i++) {
        if (e->watched[i] == seq) e->watched[i] = -1;
    }
    if (seq < 0 || seq >= e->n_seq) return;
    sums_drop(&e->seq[seq]);
    dq_block_free(e->text[seq].ids);
    e->text[seq] = (text){0};
}
