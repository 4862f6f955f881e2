/* kind_text_numbers: see kind_text_numbers.h. A number of a row is a function of one scored id, and every mean, interval,
 * slice and position is that function averaged over the ids that a predicate takes. Windows are the clusters of
 * its interval.
 * SPDX-License-Identifier: MIT */
#include "eval/kind_text_numbers.h"

#include "eval/kind_text.h"

#include <math.h>
#include <string.h>

const double dq_eval_kld_point[DQ_KLD_POINTS] = {0.001, 0.01, 0.05, 0.1,   0.5,
                                                 0.9,   0.95, 0.99, 0.999, 1};
/* A row, its reference, and room for one number per scored id. */
typedef struct text {
    const dq_eval *e;
    const dq_windows *w;
    const dq_eval_row *row, *ref;
    int64_t n;
    double *x;
    int32_t *cluster, *part; /* [n] of all ids; of those in x */
    int64_t *order;          /* [n] ids, a cluster after the other */
} text;

static void text_end(text *t)
{
    dq_block_free(t->x);
    dq_block_free(t->cluster);
    dq_block_free(t->part);
    dq_block_free(t->order);
}

/* Ids of windows that are copies belong to one cluster. */
static dq_status find_clusters(text *t, dq_err *err)
{
    const dq_windows *w = t->w;
    const int32_t *of = w->cluster;
    int64_t at = 0, *begin = dq_block_new((size_t)w->n_clusters, sizeof *begin, err);
    for (int64_t i = 0; begin && i < w->n; i++) begin[of[i]] += dq_window_scored(&w->win[i]);
    for (int64_t c = 0; begin && c < w->n_clusters; c++) {
        const int64_t ids = begin[c];
        begin[c] = at;
        at += ids;
    }
    for (int64_t i = 0; begin && i < w->n; i++) {
        for (int64_t k = w->win[i].value; k < dq_windows_values(w, i + 1); k++) {
            t->cluster[k] = of[i];
            t->order[begin[of[i]]++] = k;
        }
    }
    dq_block_free(begin);
    return err->code;
}

static dq_status text_begin(text *t, const dq_eval *e, const dq_eval_row *row, dq_err *err)
{
    const dq_windows *w = &e->ids[row->ids].win;
    *t = (text){.e = e, .w = w, .row = row, .ref = &e->row[row->ref], .n = w->n_values};
    t->x = dq_block_new((size_t)t->n, sizeof *t->x, err);
    t->cluster = dq_block_new((size_t)t->n, sizeof *t->cluster, err);
    t->part = dq_block_new((size_t)t->n, sizeof *t->part, err);
    t->order = dq_block_new((size_t)t->n, sizeof *t->order, err);
    if (err->code != DQ_OK || find_clusters(t, err) != DQ_OK) text_end(t);
    return err->code;
}

static double nll_of(const text *t, int64_t i)
{
    return -t->row->logp[i];
}

static double ratio_of(const text *t, int64_t i)
{
    return t->ref->logp[i] - t->row->logp[i];
}

static double kld_of(const text *t, int64_t i)
{
    return t->row->kld[i];
}

static double same_of(const text *t, int64_t i)
{
    return t->row->top1[i] == t->ref->top1[i];
}

static double dp_of(const text *t, int64_t i)
{
    return exp(t->row->logp[i]) - exp(t->ref->logp[i]);
}

static double dp_squared(const text *t, int64_t i)
{
    double d = dp_of(t, i);
    return d * d;
}

/* A row that is its own reference differs from nothing. */
static bool differs(const text *t)
{
    return t->row != t->ref;
}

typedef double number_of(const text *t, int64_t i);
typedef bool is_in(const text *t, int64_t i, double a, double b);

/* Mean over the ids that `in` takes (NULL: all); *n counts them. */
static dq_mean mean_in(text *t, number_of *f, is_in *in, double a, double b, int64_t *n)
{
    *n = 0;
    for (int64_t k = 0; k < t->n; k++) {
        const int64_t i = t->order[k];
        if (in && !in(t, i, a, b)) continue;
        t->part[*n] = t->cluster[i];
        t->x[(*n)++] = f(t, i);
    }
    return dq_mean_clustered(t->x, t->part, *n);
}

static dq_mean mean(text *t, number_of *f)
{
    int64_t n;
    return mean_in(t, f, NULL, 0, 0, &n);
}

/* The same for numbers that say how the row differs from its reference. */
static dq_mean difference_in(text *t, number_of *f, is_in *in, double a, double b, int64_t *n)
{
    const dq_mean m = mean_in(t, f, in, a, b, n);
    return differs(t) ? m : dq_mean_none;
}

static dq_mean difference(text *t, number_of *f)
{
    int64_t n;
    return difference_in(t, f, NULL, 0, 0, &n);
}

/* Agreement: exactly 1 where all agree. */
static dq_mean agreement(text *t, is_in *in, double a, double b)
{
    int64_t n, k = 0;
    dq_mean m = difference_in(t, same_of, in, a, b, &n);
    if (!differs(t)) return m;
    for (int64_t i = 0; i < n; i++) k += t->x[i] == 1;
    if (n) m.value = (double)k / (double)n;
    return m;
}

/* By the original text of the documents, which lm-eval counts too. */
static void rolling_numbers(const text *t, dq_eval_numbers *o)
{
    const dq_text_settings *s = dq_eval_source_of(t->e, t->row)->settings;
    double nll = o->nll.value * (double)o->n;
    o->word_ppl = o->byte_ppl = o->bits_per_byte = (double)NAN;
    if (!s || s->scheme != DQ_WINDOW_ROLLING || t->w->cut) return;
    o->word_ppl = exp(nll / (double)t->w->n_words);
    o->byte_ppl = exp(nll / (double)t->w->bytes);
    o->bits_per_byte = nll / ((double)t->w->bytes * log(2.0));
}

static double floor_of(const text *t)
{
    double sum = 0;
    if (!t->ref->extra) return (double)NAN;
    for (int64_t i = 0; i < t->w->n; i++) sum += t->ref->extra[i];
    return sum / (double)t->w->n;
}

dq_status dq_text_numbers_of(const dq_eval *e, const dq_eval_row *row, dq_eval_numbers *o,
                             dq_err *err)
{
    text t;
    DQ_TRY(text_begin(&t, e, row, err));
    o->n = t.n;
    o->nll = mean(&t, nll_of);
    o->ppl.value = exp(o->nll.value);
    o->ppl.std_err = o->ppl.value * o->nll.std_err;
    o->ppl.clusters = o->nll.clusters;
    o->n_clusters = o->nll.clusters;
    o->ln_ratio = difference(&t, ratio_of);
    o->same = agreement(&t, NULL, 0, 0);
    o->dp = difference(&t, dp_of);
    dq_mean square = difference(&t, dp_squared);
    o->dp_rms = (dq_mean){sqrt(square.value), (double)NAN, square.clusters};
    o->dp_rms.std_err = 0.5 * square.std_err / o->dp_rms.value; /* NaN where nothing differs */
    o->kld = difference(&t, kld_of);
    dq_stat_sort(t.x, t.n);
    for (int i = 0; i < DQ_KLD_POINTS; i++)
        o->kld_at[i] =
            differs(&t) ? dq_stat_percentile(t.x, t.n, dq_eval_kld_point[i]) : (double)NAN;
    o->noise_floor = floor_of(&t);
    rolling_numbers(&t, o);
    text_end(&t);
    return DQ_OK;
}

dq_status dq_text_numbers_worse(dq_interval_loss *out, const dq_eval *e, const dq_eval_row *before,
                                const dq_eval_row *after, dq_err *err)
{
    text t;
    DQ_TRY(text_begin(&t, e, after, err));
    for (int64_t k = 0; k < t.n; k++) {
        const int64_t i = t.order[k];
        t.x[k] = after->kld[i] - before->kld[i];
        t.part[k] = t.cluster[i];
    }
    const dq_mean m = dq_mean_clustered(t.x, t.part, t.n);
    *out = (dq_interval_loss){m.value, m.std_err, dq_mean_interval(m), m.clusters, -1, -1};
    text_end(&t);
    return DQ_OK;
}

static bool in_confidence(const text *t, int64_t i, double from, double to)
{
    double p = exp(t->ref->top_logp[i]);
    return p >= from && (p < to || to == 1);
}

static void confidences(text *t, dq_text_details *o)
{
    static const double edge[DQ_CONFIDENCES + 1] = {0, 0.25, 0.5, 0.75, 0.9, 1};
    for (int i = 0; i < DQ_CONFIDENCES; i++) {
        dq_confidence *c = &o->confidence[i];
        c->from = edge[i];
        c->to = edge[i + 1];
        c->kld = difference_in(t, kld_of, in_confidence, c->from, c->to, &c->n);
        c->same = agreement(t, in_confidence, c->from, c->to);
    }
}

int dq_text_numbers_positions(int64_t at[DQ_POSITIONS_MAX], int64_t t)
{
    int n = 0;
    for (int64_t p = t < 4096 ? 16 : 1024; p < t; p *= 2) at[n++] = p;
    at[n++] = t;
    return n;
}

/* Means over documents of each document's mean of f over its ids from .. to - 1, counted from 1. */
static dq_mean over_documents(text *t, number_of *f, int64_t from, int64_t to)
{
    for (int64_t d = 0; d < t->w->n; d++) {
        double sum = 0;
        for (int64_t k = from; k < to; k++) sum += f(t, t->w->win[d].value + k - 1);
        t->x[d] = sum / (double)(to - from);
    }
    return dq_mean_of(t->x, t->w->n);
}

static dq_mean loss_over_documents(text *t, int64_t from, int64_t to)
{
    const dq_mean m = over_documents(t, ratio_of, from, to);
    return differs(t) ? m : dq_mean_none;
}

/* Through the mean NLL of the first tokens of each document. */
static dq_status fit(const text *t, dq_text_details *o, int64_t scored, dq_err *err)
{
    int64_t at[DQ_TEXT_FIT_POINTS];
    const int n = o->fit_points = dq_text_fit_points(at, o->at[0].at, scored);
    double *curve = dq_block_new((size_t)(t->w->n * n), sizeof *curve, err);
    if (!curve) return err->code;
    for (int64_t d = 0; d < t->w->n; d++) {
        double sum = 0;
        int64_t k = 0;
        for (int i = 0; i < n; i++) {
            for (; k < at[i]; k++) sum += nll_of(t, t->w->win[d].value + k);
            curve[d * n + i] = sum / (double)at[i];
        }
    }
    dq_text_fit_of(&o->fit, curve, t->w->n, at, n, err);
    dq_block_free(curve);
    return err->code;
}

static dq_status positions(text *t, dq_text_details *o, dq_err *err)
{
    const int64_t scored = dq_window_scored(&t->w->win[0]);
    int64_t at[DQ_POSITIONS_MAX];
    o->n_at = dq_text_numbers_positions(at, scored);
    for (int i = 0; i < o->n_at; i++)
        o->at[i] = (dq_position){.at = at[i],
                                 .cumulative = over_documents(t, nll_of, 1, at[i] + 1),
                                 .difference = loss_over_documents(t, 1, at[i] + 1)};
    for (int64_t from = 1; from <= scored; from *= 2) {
        int64_t to = 2 * from <= scored + 1 ? 2 * from : scored + 1;
        o->bin[o->n_bins++] = (dq_position_bin){.from = from,
                                                .to = to,
                                                .n = t->w->n * (to - from),
                                                .nll = over_documents(t, nll_of, from, to),
                                                .difference = loss_over_documents(t, from, to)};
    }
    return fit(t, o, scored, err);
}

static bool in_slice(const text *t, int64_t i, double want, double unused)
{
    (void)unused;
    return t->e->ids[t->row->ids].slices->hit[i] == (want == 1);
}

static void slice(text *t, dq_slice *s, bool hit)
{
    s->nll = mean_in(t, nll_of, in_slice, hit, 0, &s->n);
    s->delta = difference_in(t, ratio_of, in_slice, hit, 0, &s->n);
}

/* The whole is the weighted mean of its slices. */
static dq_status slices(text *t, dq_text_details *o, dq_err *err)
{
    slice(t, &o->hit, true);
    slice(t, &o->others, false);
    o->sliced = true;
    o->share_hit = (double)o->hit.n / (double)t->n;
    double whole = mean(t, nll_of).value, sum = 0;
    if (o->hit.n) sum += o->share_hit * o->hit.nll.value;
    if (o->others.n) sum += (double)o->others.n / (double)t->n * o->others.nll.value;
    if (o->hit.n + o->others.n != t->n || !(fabs(sum - whole) <= 1e-12 * fabs(whole)))
        return dq_fail(err, DQ_BUG,
                       "slices of %lld and %lld tokens with NLL %.17g, the whole has %.17g",
                       (long long)o->hit.n, (long long)o->others.n, sum, whole);
    return DQ_OK;
}

dq_status dq_text_numbers_details(const dq_eval *e, int row, dq_text_details *out, dq_err *err)
{
    text t;
    const dq_eval_row *r = &e->row[row];
    const dq_text_settings *s = dq_eval_source_of(e, r)->settings;
    memset(out, 0, sizeof *out);
    DQ_TRY(text_begin(&t, e, r, err));
    confidences(&t, out);
    if (s && s->scheme == DQ_WINDOW_POSITIONS) positions(&t, out, err);
    if (err->code == DQ_OK && e->ids[r->ids].slices) slices(&t, out, err);
    text_end(&t);
    return err->code;
}
