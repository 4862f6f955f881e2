/* kind_icl_plateau: see kind_icl_plateau.h. Scores of a run and query are averaged over the shots first, as these share
 * both; what is left is a table of runs by queries.
 * SPDX-License-Identifier: MIT */
#include "eval/kind_icl_plateau.h"

#include <math.h>
#include <string.h>

static bool has_shots(const dq_icl_plan *p, int shots)
{
    for (int i = 0; i < p->n_shots; i++) {
        if (p->shots[i] == shots) return true;
    }
    return false;
}

/* Whether a row is shown and of the same task, in any order of its demonstrations. */
static bool is_beside(const dq_eval *e, int row, int other)
{
    const dq_eval_source *s = dq_eval_source_of(e, &e->row[row]);
    const dq_eval_source *o = dq_eval_source_of(e, &e->row[other]);
    const dq_icl_settings *a = s->settings, *b = o->settings;
    return e->row[other].shown && s->kind == o->kind && a->task == b->task;
}

dq_icl_range dq_icl_range_of(const dq_eval *e, int row, int from)
{
    const dq_icl_plan *p = e->ids[e->row[row].ids].own;
    dq_icl_range all = {.n = 0}, range = {.from = from};
    for (int i = 0; i < p->n_shots; i++) {
        bool common = true;
        for (int k = 0; k < e->n_rows; k++)
            common = common &&
                     (!is_beside(e, row, k) || has_shots(e->ids[e->row[k].ids].own, p->shots[i]));
        if (common) all.shots[all.n++] = p->shots[i];
    }
    if (all.n && !from) range.from = (all.shots[all.n - 1] + 1) / 2;
    for (int i = 0; i < all.n; i++) {
        if (all.shots[i] >= range.from) range.shots[range.n++] = all.shots[i];
    }
    return range;
}

/* Sum of squares of n means, `step` numbers apart, of `width` numbers `stride` apart, about the mean. */
static double squares(const double *x, int64_t n, int64_t step, int64_t width, int64_t stride,
                      double mean)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double total = 0;
        for (int64_t k = 0; k < width; k++) total += x[i * step + k * stride] - mean;
        sum += total / (double)width * (total / (double)width);
    }
    return sum;
}

static double squared(double x)
{
    return x * x;
}

/* The error squared times runs * queries, and its degrees of freedom. */
static double combined(double r, double q, double e, int64_t runs, int64_t queries, double *df)
{
    const double of_r = (double)(runs - 1), of_q = (double)(queries - 1);
    const double sum = r + q - e;
    if (sum >= r && sum >= q) {
        *df = squared(sum) / (squared(r) / of_r + squared(q) / of_q + squared(e) / (of_r * of_q));
        return sum;
    }
    *df = r > q ? of_r : of_q;
    return r > q ? r : q;
}

dq_icl_plateau dq_icl_plateau_of(const double *x, int64_t runs, int64_t queries, double low,
                                 double high)
{
    const double n = (double)(runs * queries), of_r = (double)(runs - 1),
                 of_q = (double)(queries - 1);
    dq_icl_plateau o = {.mean = {0, (double)NAN, queries}, .interval = dq_interval_none};
    double all = 0, df = of_q;
    for (int64_t i = 0; i < runs * queries; i++) o.mean.value += x[i];
    o.mean.value /= n;
    if (queries < 2) return o;
    for (int64_t i = 0; i < runs * queries; i++) all += squared(x[i] - o.mean.value);
    const double by_run = (double)queries * squares(x, runs, queries, queries, 1, o.mean.value);
    const double by_query = (double)runs * squares(x, queries, 1, runs, queries, o.mean.value);
    const double left = fmax(0, all - by_run - by_query);
    double error = by_query / of_q;
    if (runs > 1)
        error = combined(by_run / of_r, by_query / of_q, left / (of_r * of_q), runs, queries, &df);
    if (error <= 1e-24) { /* rounding of sums is no spread */
        o.mean.std_err = 0;
        o.interval = dq_interval_still(o.mean.value, queries, low, high);
        return o;
    }
    o.mean.std_err = sqrt(error / n);
    o.mean.clusters = (int64_t)fmax(1, df) + 1;
    o.interval = dq_interval_t(o.mean.value, o.mean.std_err, o.mean.clusters);
    return o;
}

/* Adds sign times the scores of a row, summed over the range, to x, run by run. */
static dq_status add_scores(double *x, const dq_eval *e, const dq_eval_row *row,
                            const dq_icl_range *range, double sign, dq_err *err)
{
    const dq_icl_plan *p = e->ids[row->ids].own;
    const int64_t n = p->n_queries;
    double *score = dq_block_new((size_t)(p->n_blocks * n), sizeof *score, err);
    if (!score) return err->code;
    dq_eval_icl_kind.judge(e, row, dq_eval_quoted(dq_eval_source_of(e, row)), score);
    for (int64_t b = 0; b < p->n_blocks; b++) {
        const dq_icl_block *of = &p->block[b];
        bool in = false;
        for (int i = 0; i < range->n; i++) in = in || (!of->order && of->shots == range->shots[i]);
        for (int64_t q = 0; in && q < n; q++) x[of->run * n + q] += sign * score[b * n + q];
    }
    dq_block_free(score);
    return DQ_OK;
}

dq_status dq_icl_plateau_find(dq_icl_plateau *out, const dq_eval *e, int before, int after,
                              const dq_icl_range *range, dq_err *err)
{
    const dq_eval_row *row = &e->row[after];
    const dq_icl_plan *p = e->ids[row->ids].own;
    const dq_icl_settings *s = dq_eval_source_of(e, row)->settings;
    const int64_t n = s->runs * p->n_queries;
    double *x = dq_block_new((size_t)n, sizeof *x, err);
    if (!x) return err->code;
    add_scores(x, e, row, range, 1, err);
    if (err->code == DQ_OK && before >= 0) add_scores(x, e, &e->row[before], range, -1, err);
    for (int64_t i = 0; i < n; i++) x[i] /= range->n;
    if (err->code == DQ_OK)
        *out = dq_icl_plateau_of(x, s->runs, p->n_queries, before < 0 ? 0 : -1, 1);
    dq_block_free(x);
    return err->code;
}
