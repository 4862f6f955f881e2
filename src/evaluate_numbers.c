/* evaluate, numbers: from log-likelihoods to the metrics of a row.
 * SPDX-License-Identifier: MIT */
#include "evaluate.h"

#include <math.h>
#include <string.h>

int dq_eval_pick(const dq_item *item, const double *ll, bool by_norm)
{
    int best = 0;
    double best_value = -INFINITY;
    for (int c = 0; c < item->n_choices; c++) {
        double points = (double)item->choice[c].points;
        double v = !by_norm ? ll[c] : points > 0 ? ll[c] / points : (double)-INFINITY;
        if (v > best_value) {
            best = c;
            best_value = v;
        }
    }
    return best;
}

static const dq_eval_source *source_of(const dq_eval *e, const dq_eval_row *row)
{
    return &e->source[e->ids[row->ids].source];
}

/* right[i]: the row picks the gold choice of item i. Returns how many. */
static int64_t judge(const dq_eval *e, const dq_eval_row *row, bool by_norm, bool *right)
{
    const dq_requests *q = &e->ids[row->ids].req;
    const dq_items *items = &source_of(e, row)->items;
    int64_t k = 0;
    for (int64_t i = 0; i < q->n_items; i++) {
        const dq_item *item = &items->item[i];
        right[i] = dq_eval_pick(item, row->value + q->at[i], by_norm) == item->gold;
        k += right[i];
    }
    return k;
}

static dq_status compare(const dq_eval *e, const dq_eval_row *before, const dq_eval_row *after,
                         bool by_norm, dq_mean *share, dq_flips *flips, dq_err *err)
{
    int64_t n = e->ids[after->ids].req.n_items;
    bool *was = dq_block_new((size_t)n, sizeof *was, err);
    bool *is = dq_block_new((size_t)n, sizeof *is, err);
    if (was && is) {
        judge(e, before, by_norm, was);
        int64_t k = judge(e, after, by_norm, is);
        if (share) *share = dq_share(k, n);
        *flips = dq_flips_of(was, is, n);
    }
    dq_block_free(was);
    dq_block_free(is);
    return err->code;
}

dq_status dq_eval_compare(const dq_eval *e, int before, int after, bool by_norm, dq_flips *out,
                          dq_err *err)
{
    return compare(e, &e->row[before], &e->row[after], by_norm, NULL, out, err);
}

static dq_status text_numbers(const dq_eval *e, const dq_eval_row *row, dq_eval_numbers *o,
                              dq_err *err)
{
    const dq_windows *w = &e->ids[row->ids].win;
    const double *ref = e->row[row->ref].value;
    int64_t k = 0, n = w->n * w->n_scored;
    double *x = dq_block_new((size_t)n, sizeof *x, err);
    if (!x) return err->code;
    o->n = n;
    o->nll = dq_mean_clustered(row->value, w->n, w->n_scored);
    o->ppl.value = exp(o->nll.value);
    o->ppl.std_err = o->ppl.value * o->nll.std_err;
    for (int64_t i = 0; i < n; i++) x[i] = row->value[i] - ref[i];
    o->ln_ratio = dq_mean_clustered(x, w->n, w->n_scored);
    for (int64_t i = 0; i < n; i++) {
        x[i] = row->flag[i] ? 1 : 0;
        k += row->flag[i];
    }
    o->same = dq_mean_clustered(x, w->n, w->n_scored);
    o->same.value = (double)k / (double)n; /* exact where all agree */
    o->kld = dq_mean_clustered(row->kld, w->n, w->n_scored);
    memcpy(x, row->kld, (size_t)n * sizeof *x);
    dq_sort(x, n);
    o->kld_p50 = dq_percentile(x, n, 0.5);
    o->kld_p90 = dq_percentile(x, n, 0.9);
    o->kld_p99 = dq_percentile(x, n, 0.99);
    o->kld_p999 = dq_percentile(x, n, 0.999);
    o->kld_max = x[n - 1];
    dq_block_free(x);
    return DQ_OK;
}

dq_status dq_eval_numbers_of(const dq_eval *e, int row, dq_eval_numbers *out, dq_err *err)
{
    const dq_eval_row *r = &e->row[row], *ref = &e->row[r->ref];
    memset(out, 0, sizeof *out);
    out->is_task = source_of(e, r)->task != NULL;
    out->is_ref = r->ref == row;
    if (!out->is_task) return text_numbers(e, r, out, err);
    out->n = e->ids[r->ids].req.n_items;
    DQ_TRY(compare(e, ref, r, false, &out->acc, &out->acc_flips, err));
    return compare(e, ref, r, true, &out->acc_norm, &out->norm_flips, err);
}
