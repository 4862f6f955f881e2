/* Multiple choice.
 * SPDX-License-Identifier: MIT */
#include "eval/inside.h"
#include "tasks/documents.h"

static dq_status encode_items(dq_eval *e, dq_eval_ids *ids, dq_err *err)
{
    const dq_eval_model *m = &e->model[ids->model];
    const dq_items *items = &e->source[ids->source].items;
    uint64_t *key = dq_alloc(e->a, (size_t)items->n, sizeof *key, err);
    if (!key) return err->code;
    for (int64_t i = 0; i < items->n; i++) key[i] = items->item[i].cluster;
    DQ_TRY(dq_repeats_keys(&ids->cluster, key, items->n, e->a, err));
    return dq_items_encode(&ids->req, items, m->tok, e->bos, m->m->max_positions, m->m->vocab, e->a,
                           err);
}

static void judge_choices(const dq_eval *e, const dq_eval_row *row, int metric, double *score)
{
    const dq_requests *q = &e->ids[row->ids].req;
    const dq_items *items = &dq_eval_source_of(e, row)->items;
    for (int64_t i = 0; i < q->n_items; i++)
        score[i] = dq_eval_pick(&items->item[i], row, &q->req[q->at[i]], metric == 1) ==
                   items->item[i].gold;
}

static dq_status words(const dq_eval *e, const dq_eval_ids *ids, const dq_request *r,
                       dq_eval_words *out, dq_err *err)
{
    const dq_item *item = &e->source[ids->source].items.item[r->item];
    const dq_choice *c = &item->choice[r->choice];
    size_t n;
    const char *ctx = dq_item_context(item, r->choice, &n);
    out->n_cont = r->n_cont;
    DQ_TRY(dq_strbuf_add(&out->ctx, ctx, n, err));
    return dq_strbuf_add(&out->cont, c->text, c->len, err);
}

static int64_t line(const dq_eval_source *s, int64_t unit)
{
    return s->items.item[unit].line;
}

static int64_t *need_positions(int64_t *n, const dq_eval *e, const dq_eval_source *s,
                               const dq_eval_model *m, dq_arena *a, dq_err *err)
{
    int64_t *need = dq_alloc(a, (size_t)s->items.n, sizeof *need, err);
    dq_requests q;
    *n = s->items.n;
    if (!need ||
        dq_items_encode(&q, &s->items, m->tok, e->bos, INT64_MAX / 2, m->m->vocab, a, err) != DQ_OK)
        return NULL;
    for (int64_t k = 0; k < q.n; k++) {
        const dq_request *r = &q.req[k];
        const int64_t fed = r->n_ctx + r->n_cont - 1;
        if (fed > need[r->item]) need[r->item] = fed;
    }
    return need;
}

static dq_status keep(dq_eval_source *s, const int64_t *number, int64_t n, dq_arena *a, dq_err *err)
{
    dq_item *item = dq_alloc(a, (size_t)n, sizeof *item, err);
    if (!item) return err->code;
    for (int64_t i = 0; i < n; i++) item[i] = s->items.item[number[i]];
    s->items.item = item;
    s->items.n = n;
    return DQ_OK;
}

const dq_eval_kind dq_eval_choices = {
    .metric = {"acc", "acc_norm"},
    .encode = encode_items,
    .judge = judge_choices,
    .answered = true,
    .usual_long = DQ_LONG_CUT,
    .line = line,
    .need = need_positions,
    .keep = keep,
    .words = words,
};
