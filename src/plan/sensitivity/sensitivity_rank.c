/* sensitivity_rank: dq_sensitivity_rank_of and dq_sensitivity_first_of of sensitivity.h. Clusters are dealt to two halves in turn, so that
 * what one half chooses is judged on the other.
 * SPDX-License-Identifier: MIT */
#include "plan/plan_decide.h"
#include "plan/sensitivity/sensitivity.h"
#include "stat/stat.h"

#include <math.h>

/* KLD per token on every second cluster, from `half` on. */
static double on_half(const dq_sensitivity *s, const dq_sensitivity_unit *u, const int64_t *scored,
                      int half)
{
    double sum = 0;
    int64_t n = 0;
    for (int64_t c = half; c < s->text->n_clusters; c += 2) {
        sum += u->sums[c];
        n += scored[c];
    }
    return n ? sum / (double)n : (double)NAN;
}

/* Columns of the units of a kind. */
typedef struct columns {
    int64_t n;
    double *kld, *local, *logit, *half[2];
} columns;

static dq_status fill(columns *x, const dq_sensitivity *s, dq_sensitivity_kind kind,
                      const int64_t *scored, dq_err *err)
{
    double *all = dq_block_new((size_t)s->n + 1, 5 * sizeof *all, err);
    if (!all) return err->code;
    *x = (columns){.kld = all,
                   .local = all + s->n,
                   .logit = all + 2 * s->n,
                   .half = {all + 3 * s->n, all + 4 * s->n}};
    for (int64_t i = 0; i < s->n; i++) {
        const dq_sensitivity_unit *u = &s->unit[i];
        if (u->kind != kind || !u->known) continue;
        x->kld[x->n] = u->kld.value;
        x->local[x->n] = u->local;
        x->logit[x->n] = u->logit_error;
        for (int h = 0; h < 2; h++) x->half[h][x->n] = on_half(s, u, scored, h);
        x->n++;
    }
    return DQ_OK;
}

/* Of the units that have such a forecast. */
static dq_status correlate(double *r, dq_interval *interval, const double *forecast,
                           const double *kld, int64_t n, dq_err *err)
{
    double *x = dq_block_new((size_t)n + 1, 2 * sizeof *x, err);
    int64_t m = 0;
    for (int64_t i = 0; x && i < n; i++) {
        if (!isfinite(forecast[i])) continue;
        x[m] = forecast[i];
        x[n + m++] = kld[i];
    }
    if (x) dq_rank_spearman(r, interval, x, x + n, m, err);
    dq_block_free(x);
    return err->code;
}

dq_status dq_sensitivity_rank_of(dq_sensitivity_rank *out, const dq_sensitivity *s,
                                 dq_sensitivity_kind kind, dq_err *err)
{
    columns x = {0};
    *out = (dq_sensitivity_rank){.repeat = (double)NAN};
    if (fill(&x, s, kind, s->scored_of, err) != DQ_OK) return err->code;
    out->n = x.n;
    correlate(&out->local, &out->local_interval, x.local, x.kld, x.n, err);
    correlate(&out->logit_error, &out->logit_interval, x.logit, x.kld, x.n, err);
    if (s->text->n_clusters > 1)
        dq_rank_spearman(&out->repeat, NULL, x.half[0], x.half[1], x.n, err);
    dq_block_free(x.kld);
    return err->code;
}

/* The unit of most KLD on a half that is not `but`. */
static int64_t largest(const dq_sensitivity *s, dq_sensitivity_kind kind, int half, int64_t but)
{
    int64_t best = -1;
    double most = 0;
    for (int64_t i = 0; i < s->n; i++) {
        const dq_sensitivity_unit *u = &s->unit[i];
        if (u->kind != kind || !u->known || i == but) continue;
        const double kld = on_half(s, u, s->scored_of, half);
        if (best >= 0 && kld <= most) continue;
        best = i;
        most = kld;
    }
    return best;
}

/* What the first loses more in a cluster than each of the others. */
static double more_in(const dq_sensitivity *s, dq_sensitivity_kind kind, int64_t first, int64_t c)
{
    double least = INFINITY;
    for (int64_t i = 0; i < s->n; i++) {
        const dq_sensitivity_unit *u = &s->unit[i];
        if (u->kind == kind && u->known && i != first)
            least = fmin(least, s->unit[first].sums[c] - u->sums[c]);
    }
    return least;
}

dq_status dq_sensitivity_first_of(dq_sensitivity_first *out, const dq_sensitivity *s,
                                  dq_sensitivity_kind kind, dq_err *err)
{
    const int64_t n = s->text->n_clusters / 2; /* of the half that judges */
    *out = (dq_sensitivity_first){-1, -1, dq_mean_none, dq_interval_none};
    if (s->text->n_clusters < DQ_SENSITIVITY_WINDOWS) return DQ_OK;
    const int64_t first = largest(s, kind, 0, -1);
    out->next = first < 0 ? -1 : largest(s, kind, 1, first);
    if (out->next < 0) return DQ_OK;
    double *more = dq_block_new((size_t)n, sizeof *more, err);
    int64_t *tokens = dq_block_new((size_t)n, sizeof *tokens, err);
    for (int64_t i = 0; err->code == DQ_OK && i < n; i++) {
        more[i] = more_in(s, kind, first, 2 * i + 1);
        tokens[i] = s->scored_of[2 * i + 1];
    }
    if (err->code == DQ_OK && dq_plan_decide_mean(&out->more, more, tokens, n, err) == DQ_OK)
        out->interval =
            dq_plan_decide_interval(out->more, dq_plan_decide_skew(more, tokens, n), 0.05);
    if (isfinite(out->interval.low)) out->first = first;
    dq_block_free(more);
    dq_block_free(tokens);
    return err->code;
}
