/* kind_icl_score: accuracy per block, over runs and over orders. See kind_icl.h.
 * SPDX-License-Identifier: MIT */
#include "eval/kind_icl.h"

#include <math.h>

static const dq_icl_plan *plan_of(const dq_eval *e, const dq_eval_row *row)
{
    return e->ids[row->ids].own;
}

int dq_icl_pick(const dq_eval *e, const dq_eval_row *row, int metric, int64_t i)
{
    const dq_icl_data *d = dq_eval_source_of(e, row)->own;
    const dq_icl_plan *p = plan_of(e, row);
    const double *logp = row->logp + i * p->n_label_ids;
    if (metric == 0) return dq_icl_walk(p->label, d->n_labels, logp, p->alive);
    return dq_icl_likeliest(p->label, d->n_labels, logp);
}

dq_status dq_icl_scores(const dq_eval *e, const dq_eval_row *row, dq_icl_score *out, dq_err *err)
{
    const dq_icl_plan *p = plan_of(e, row);
    double *score = dq_block_new((size_t)(p->n_blocks * p->n_queries), sizeof *score, err);
    if (!score) return err->code;
    for (int metric = 0; metric < 2; metric++) {
        dq_eval_icl_kind.judge(e, row, metric, score);
        for (int64_t b = 0; b < p->n_blocks; b++) {
            int64_t right = 0;
            for (int64_t q = 0; q < p->n_queries; q++) right += score[b * p->n_queries + q] == 1;
            dq_mean m = dq_mean_share(right, p->n_queries);
            if (metric == 0)
                out[b].acc = m;
            else
                out[b].acc_ll = m;
        }
    }
    dq_block_free(score);
    return DQ_OK;
}

/* Run 0 is the first of both sets of blocks. */
static bool counts(const dq_icl_block *b, int64_t shots, bool by_order)
{
    return b->shots == shots && (by_order ? b->run == 0 : b->order == 0);
}

dq_icl_point dq_icl_point_of(const dq_icl_plan *p, const dq_icl_score *score, int64_t shots,
                             bool by_order)
{
    dq_icl_point x = {.min = INFINITY, .max = -INFINITY};
    double sum = 0, squares = 0;
    for (int64_t b = 0; b < p->n_blocks; b++) {
        double acc = score[b].acc.value;
        if (!counts(&p->block[b], shots, by_order)) continue;
        x.blocks++;
        sum += acc;
        if (acc < x.min) x.min = acc;
        if (acc > x.max) x.max = acc;
    }
    x.mean = x.max > x.min ? sum / (double)x.blocks : x.max; /* equal ones have no deviation */
    for (int64_t b = 0; b < p->n_blocks; b++) {
        double off = score[b].acc.value - x.mean;
        if (counts(&p->block[b], shots, by_order)) squares += off * off;
    }
    x.std = x.blocks > 1 ? sqrt(squares / (double)(x.blocks - 1)) : (double)NAN;
    return x;
}

void dq_icl_cost(const dq_requests *q, int64_t *naive, int64_t *shared)
{
    *naive = *shared = 0;
    for (int64_t t = 0; t < q->n_shared_prefixes; t++) *shared += q->shared_prefix[t].n;
    for (int64_t i = 0; i < q->n_items; i++) {
        const dq_request *r = &q->req[q->at[i]];
        int64_t n = q->at[i + 1] - q->at[i];
        *naive += n * (dq_items_shared_prefix(q, i)->n + r->n_ctx);
        *shared += r->n_ctx;
        for (int64_t k = 0; k < n; k++) {
            *naive += r[k].n_cont - 1;
            *shared += r[k].n_cont - 1;
        }
    }
}
