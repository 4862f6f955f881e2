/* eval_numbers: from log-likelihoods to the metrics of a row.
 * SPDX-License-Identifier: MIT */
#include "eval/eval.h"

#include "tasks/repeats.h"

#include <math.h>
#include <string.h>

int dq_eval_pick(const dq_item *item, const dq_eval_row *row, const dq_request *first, bool by_norm)
{
    int best = 0;
    double best_value = -INFINITY;
    for (int c = 0; c < item->n_choices; c++) {
        double points = (double)item->choice[c].points;
        double ll = dq_eval_ll(row, &first[c]);
        double v = !by_norm ? ll : points > 0 ? ll / points : (double)-INFINITY;
        if (v > best_value) {
            best = c;
            best_value = v;
        }
    }
    return best;
}

double dq_eval_ll(const dq_eval_row *row, const dq_request *r)
{
    double ll = 0;
    for (int64_t i = 0; i < r->n_cont; i++) ll += row->logp[r->value + i];
    return ll;
}

bool dq_eval_greedy(const dq_eval_row *row, const dq_request *r)
{
    for (int64_t i = 0; i < r->n_cont; i++) {
        if (row->top1[r->value + i] != r->cont[i]) return false;
    }
    return true;
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
    return source->kind->quoted ? source->kind->quoted(source) : 0;
}

/* What was lost by a difference of scores. */
static dq_interval_loss loss_of(const dq_stat_flips *f)
{
    /* 0 - x: a loss of -0 would print as one */
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

static void judge(const dq_eval *e, const dq_eval_row *row, int metric, const int64_t *at,
                  double *scratch, double *score)
{
    const int64_t n = dq_eval_units(e, row);
    dq_eval_source_of(e, row)->kind->judge(e, row, metric, scratch);
    for (int64_t i = 0; i < n; i++) score[at[i]] = scratch[i];
}

static dq_status compare(const dq_eval *e, const dq_eval_row *before, const dq_eval_row *after,
                         int metric, dq_mean *mean, dq_interval *interval, dq_stat_flips *flips,
                         dq_err *err)
{
    const int64_t n = dq_eval_units(e, after);
    const int32_t *cluster = e->ids[after->ids].cluster;
    double *scratch = dq_block_new((size_t)n, sizeof *scratch, err);
    double *was = dq_block_new((size_t)n, sizeof *was, err);
    double *is = dq_block_new((size_t)n, sizeof *is, err);
    int64_t *at = dq_block_new((size_t)n, sizeof *at, err);
    int32_t *of = dq_block_new((size_t)n, sizeof *of, err);
    for (int64_t i = 0; at && i < n; i++) at[i] = i;
    if (err->code == DQ_OK && cluster) dq_repeats_order(at, of, cluster, n, err);
    if (err->code == DQ_OK) {
        judge(e, before, metric, at, scratch, was);
        judge(e, after, metric, at, scratch, is);
        if (mean) *mean = dq_mean_of_scores(is, cluster ? of : NULL, n, interval);
        *flips = dq_stat_flips_of(was, is, cluster ? of : NULL, n);
    }
    dq_block_free(scratch);
    dq_block_free(was);
    dq_block_free(is);
    dq_block_free(at);
    dq_block_free(of);
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
    if (s->kind->worse) return s->kind->worse(out, e, &e->row[before], &e->row[after], err);
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
    if (kind->numbers) return kind->numbers(e, r, out, err);
    out->n = out->n_clusters = dq_eval_units(e, r);
    for (; out->n_metrics < 2 && kind->metric[out->n_metrics]; out->n_metrics++) {
        int m = out->n_metrics;
        DQ_TRY(compare(e, &e->row[r->ref], r, m, &out->score[m], &out->score_interval[m],
                       &out->flips[m], err));
        out->n_clusters = out->score[m].clusters;
    }
    return DQ_OK;
}
