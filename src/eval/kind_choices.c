/* evaluate, kinds: multiple choice. See evaluate.h.
 * SPDX-License-Identifier: MIT */
#include "eval/eval.h"

static dq_status encode_items(dq_eval *e, dq_eval_ids *ids, dq_err *err)
{
    const dq_eval_model *m = &e->model[ids->model];
    return dq_items_encode(&ids->req, &e->source[ids->source].items, m->tok, e->bos,
                           m->m->max_positions, m->m->vocab, e->a, err);
}

/* 1 where the picked choice is the gold one. */
static void judge_choices(const dq_eval *e, const dq_eval_row *row, int metric, double *score)
{
    const dq_requests *q = &e->ids[row->ids].req;
    const dq_items *items = &dq_eval_source_of(e, row)->items;
    for (int64_t i = 0; i < q->n_items; i++)
        score[i] = dq_eval_pick(&items->item[i], row, &q->req[q->at[i]], metric == 1) ==
                   items->item[i].gold;
}

const dq_eval_kind dq_eval_choices = {
    .metric = {"acc", "acc_norm"},
    .encode = encode_items,
    .judge = judge_choices,
};
