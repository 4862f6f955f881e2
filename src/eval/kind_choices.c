/* Multiple choice.
 * SPDX-License-Identifier: MIT */
#include "eval/inside.h"
#include "tasks/documents.h"

static dq_status encode_items(dq_eval *e, dq_eval_ids *ids, dq_err *err)
{
    const dq_eval_model *m = &e->model[ids->model];
    const dq_items *items = &e->source[ids->source].items;
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

const dq_eval_kind dq_eval_choices = {
    .metric = {"acc", "acc_norm"},
    .encode = encode_items,
    .judge = judge_choices,
    .words = words,
};
