/* At a given beta alpha and gamma are those of a straight line over t^beta, so the sum of squares
 * is a function of beta alone: a walk over rising steepness finds where it is least, and golden
 * section the rest. t is counted from the first point there, so that powers stay near 1.
 * SPDX-License-Identifier: MIT */
#include "eval/inside.h"
#include "stat/stat.h"
#include "tasks/documents.h"

#include <math.h>
#include <string.h>

#define DQ_TEXT_FIT_STEEPEST -4.0
#define DQ_TEXT_FIT_FLATTEST -0.01

static int fit_points(int64_t at[DQ_TEXT_FIT_POINTS], int64_t from, int64_t to)
{
    int n = 0;
    for (int k = 0; n < DQ_TEXT_FIT_POINTS - 1; k++) {
        const int64_t t = llround((double)from * exp2(k / 8.0));
        if (t >= to) break;
        if (n == 0 || t > at[n - 1]) at[n++] = t;
    }
    at[n++] = to;
    return n;
}

/* A mean curve y over u = t / t of the first point. */
typedef struct curve_of_means {
    double u[DQ_TEXT_FIT_POINTS], y[DQ_TEXT_FIT_POINTS];
    int n;
} curve_of_means;

typedef struct line {
    double slope, offset, squares; /* sum of squared residuals */
} line;

/* A linear regression of y on u^beta. */
static line line_at(const curve_of_means *c, double beta)
{
    double mean_x = 0, mean_y = 0, xx = 0, xy = 0;
    line l = {.squares = 0};
    for (int i = 0; i < c->n; i++) {
        mean_x += pow(c->u[i], beta) / c->n;
        mean_y += c->y[i] / c->n;
    }
    for (int i = 0; i < c->n; i++) {
        const double x = pow(c->u[i], beta) - mean_x;
        xx += x * x;
        xy += x * (c->y[i] - mean_y);
    }
    l.slope = xy / xx;
    l.offset = mean_y - l.slope * mean_x;
    for (int i = 0; i < c->n; i++) {
        const double off = c->y[i] - l.offset - l.slope * pow(c->u[i], beta);
        l.squares += off * off;
    }
    return l;
}

/* Candidates of beta form a geometric series from flattest to steepest. */
enum { STEPS = 120 };
static double step(int k)
{
    return DQ_TEXT_FIT_FLATTEST *
           pow(DQ_TEXT_FIT_STEEPEST / DQ_TEXT_FIT_FLATTEST, (double)k / STEPS);
}

/* False: the best beta is at an end of the range. */
static bool fit_curve(const curve_of_means *c, double first,
                      double parameter[DQ_TEXT_FIT_PARAMETERS], double *residual)
{
    int best = 0;
    double least = INFINITY;
    for (int k = 0; k <= STEPS; k++) {
        const double squares = line_at(c, step(k)).squares;
        if (!(squares < least)) continue;
        least = squares;
        best = k;
    }
    if (best == 0 || best == STEPS) return false;
    /* Golden section between candidates k - 1 and k + 1. */
    const double golden = (sqrt(5) - 1) / 2;
    double low = step(best + 1), high = step(best - 1);
    double a = high - golden * (high - low), b = low + golden * (high - low);
    double at_a = line_at(c, a).squares, at_b = line_at(c, b).squares;
    for (int i = 0; i < 60; i++) {
        if (at_a < at_b) {
            high = b;
            b = a;
            at_b = at_a;
            a = high - golden * (high - low);
            at_a = line_at(c, a).squares;
        } else {
            low = a;
            a = b;
            at_a = at_b;
            b = low + golden * (high - low);
            at_b = line_at(c, b).squares;
        }
    }
    const double beta = (low + high) / 2;
    const line l = line_at(c, beta);
    parameter[0] = l.slope / pow(first, beta);
    parameter[1] = beta;
    parameter[2] = l.offset;
    *residual = sqrt(l.squares / c->n);
    return true;
}

/* The mean over all documents but one (-1: over all). */
static void mean_curve(curve_of_means *c, const double *sum, const double *curves,
                       int64_t documents, int64_t but)
{
    for (int i = 0; i < c->n; i++) {
        if (but < 0)
            c->y[i] = sum[i] / (double)documents;
        else
            c->y[i] = (sum[i] - curves[but * c->n + i]) / (double)(documents - 1);
    }
}

static dq_status find_errors(dq_text_fit *o, curve_of_means *c, double first, const double *sum,
                             const double *curves, int64_t documents, dq_err *err)
{
    double unused,
        *part = dq_block_new((size_t)documents * DQ_TEXT_FIT_PARAMETERS, sizeof *part, err);
    bool all = documents > 1;
    if (!part) return err->code;
    for (int64_t i = 0; all && i < documents; i++) {
        mean_curve(c, sum, curves, documents, i);
        all = fit_curve(c, first, part + i * DQ_TEXT_FIT_PARAMETERS, &unused);
    }
    if (all) {
        /* The jackknife: part[documents * 3] holds the fits without one document each. */
        const double d = (double)documents;
        for (int p = 0; p < DQ_TEXT_FIT_PARAMETERS; p++) {
            double mean = 0, squares = 0;
            for (int64_t i = 0; i < documents; i++)
                mean += part[i * DQ_TEXT_FIT_PARAMETERS + p] / d;
            for (int64_t i = 0; i < documents; i++) {
                const double off = part[i * DQ_TEXT_FIT_PARAMETERS + p] - mean;
                squares += off * off;
            }
            o->parameter[p].std_err = sqrt((d - 1) / d * squares);
            o->interval[p] = dq_mean_interval(o->parameter[p]);
        }
    }
    dq_block_free(part);
    return DQ_OK;
}

/* Least squares with equal weights on the mean of curve[documents * n] at at[n]. Standard errors
 * are by jackknife over documents, as points of a curve depend on each other. */
static dq_status fit_of(dq_text_fit *out, const double *curve_of, int64_t documents,
                        const int64_t *at, int n, dq_err *err)
{
    double parameter[DQ_TEXT_FIT_PARAMETERS], sum[DQ_TEXT_FIT_POINTS] = {0};
    curve_of_means c = {.n = n};
    *out = (dq_text_fit){.there = false};
    if (n <= DQ_TEXT_FIT_PARAMETERS) return DQ_OK;
    for (int i = 0; i < n; i++) {
        c.u[i] = (double)at[i] / (double)at[0];
        for (int64_t d = 0; d < documents; d++) sum[i] += curve_of[d * n + i];
    }
    mean_curve(&c, sum, curve_of, documents, -1);
    out->there = fit_curve(&c, (double)at[0], parameter, &out->residual);
    if (!out->there) return DQ_OK;
    for (int p = 0; p < DQ_TEXT_FIT_PARAMETERS; p++) {
        out->parameter[p] = (dq_mean){parameter[p], (double)NAN, documents};
        out->interval[p] = dq_interval_none;
    }
    return find_errors(out, &c, (double)at[0], sum, curve_of, documents, err);
}

/* Every mean, interval, slice and position is a function of one scored token averaged over the
 * tokens that a predicate takes; windows are the clusters. */

static const double dq_eval_kld_point[DQ_KLD_POINTS] = {0.001, 0.01, 0.05, 0.1,   0.5,
                                                        0.9,   0.95, 0.99, 0.999, 1};
/* `x` has space for one number per scored token. */
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

/* Windows that are copies share a cluster. */
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

/* A reference has no differences. */
static bool differs(const text *t)
{
    return t->row != t->ref;
}

typedef double number_of(const text *t, int64_t i);
typedef bool is_in(const text *t, int64_t i, double a, double b);

/* Mean over the tokens that `in` takes (NULL: all); *n counts them. */
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

/* The same for differences to the reference. */
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

/* Exactly 1 where all agree. */
static dq_mean agreement(text *t, is_in *in, double a, double b)
{
    int64_t n, k = 0;
    dq_mean m = difference_in(t, same_of, in, a, b, &n);
    if (!differs(t)) return m;
    for (int64_t i = 0; i < n; i++) k += t->x[i] == 1;
    if (n) m.value = (double)k / (double)n;
    return m;
}

dq_status dq_text_numbers(dq_eval_numbers *o, const dq_eval *e, const dq_eval_row *row, dq_err *err)
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
    o->noise_floor = t.ref->extra ? 0 : (double)NAN;
    for (int64_t i = 0; t.ref->extra && i < t.w->n; i++) o->noise_floor += t.ref->extra[i];
    o->noise_floor /= (double)t.w->n;
    /* Words and bytes are those of the original text, as in lm-eval. */
    const dq_text_settings *s = dq_eval_source_of(e, row)->settings;
    const bool rolling = s && s->scheme == DQ_WINDOW_ROLLING && !t.w->cut;
    const double nll = rolling ? o->nll.value * (double)o->n : (double)NAN;
    o->word_ppl = exp(nll / (double)t.w->n_words);
    o->byte_ppl = exp(nll / (double)t.w->bytes);
    o->bits_per_byte = nll / ((double)t.w->bytes * log(2.0));
    text_end(&t);
    return DQ_OK;
}

dq_status dq_text_worse(dq_interval_loss *out, const dq_eval *e, const dq_eval_row *before,
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

int dq_text_numbers_positions(int64_t at[DQ_POSITIONS_MAX], int64_t t)
{
    int n = 0;
    for (int64_t p = t < 4096 ? 16 : 1024; p < t; p *= 2) at[n++] = p;
    at[n++] = t;
    return n;
}

/* Mean over documents of each document's mean of f over tokens from .. to - 1, from 1. */
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
    /* The fit goes through the mean NLL of the first tokens of each document. */
    int64_t point[DQ_TEXT_FIT_POINTS];
    const int n = o->fit_points = fit_points(point, o->at[0].at, scored);
    double *curve = dq_block_new((size_t)(t->w->n * n), sizeof *curve, err);
    if (!curve) return err->code;
    for (int64_t d = 0; d < t->w->n; d++) {
        double sum = 0;
        int64_t k = 0;
        for (int i = 0; i < n; i++) {
            for (; k < point[i]; k++) sum += nll_of(t, t->w->win[d].value + k);
            curve[d * n + i] = sum / (double)point[i];
        }
    }
    fit_of(&o->fit, curve, t->w->n, point, n, err);
    dq_block_free(curve);
    return err->code;
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

/* Slices must add up to the whole. */
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
    static const double edge[DQ_CONFIDENCES + 1] = {0, 0.25, 0.5, 0.75, 0.9, 1};
    for (int i = 0; i < DQ_CONFIDENCES; i++) {
        dq_confidence *c = &out->confidence[i];
        c->from = edge[i];
        c->to = edge[i + 1];
        c->kld = difference_in(&t, kld_of, in_confidence, c->from, c->to, &c->n);
        c->same = agreement(&t, in_confidence, c->from, c->to);
    }
    if (s && s->scheme == DQ_WINDOW_POSITIONS) positions(&t, out, err);
    if (err->code == DQ_OK && e->ids[r->ids].slices) slices(&t, out, err);
    text_end(&t);
    return err->code;
}

static dq_status encode_text(dq_eval *e, dq_eval_ids *ids, dq_err *err)
{
    const dq_text_settings *s = e->source[ids->source].settings;
    const dq_eval_model *m = &e->model[ids->model];
    dq_window_spec spec = {.scheme = s->scheme,
                           .n_ctx = e->n_ctx,
                           .stride = s->stride,
                           .limit = e->limit,
                           .whole = s->slices,
                           .bos = e->bos,
                           .vocab = m->m->vocab};
    DQ_TRY(dq_windows_make(&ids->win, m->tok, &s->docs, &spec, e->a, err));
    ids->n_extra = 1;
    if (!s->slices) return DQ_OK;
    /* The corpus that stands for the training text, without template tokens. */
    dq_slices *slices = dq_alloc(e->a, 1, sizeof *slices, err);
    dq_doc_ids *corpus = dq_alloc(e->a, (size_t)s->counts.n, sizeof *corpus, err);
    if (!slices || !corpus) return err->code;
    for (int64_t i = 0; i < s->counts.n; i++)
        DQ_TRY(dq_windows_encode(&corpus[i], m->tok, &s->counts.doc[i], DQ_BOS_OFF, m->m->vocab, 0,
                                 e->a, err));
    ids->slices = slices;
    return dq_slices_make(slices, &ids->win, s->counts.n ? corpus : NULL, s->counts.n, s->threshold,
                          e->a, err);
}

/* Eviction needs windows with a context; without settings windows are chunks. */
static dq_status takes(const dq_eval *e, const dq_eval_source *source, const dq_kv_spec *kv,
                       dq_err *err)
{
    const dq_text_settings *s = source->settings;
    if (s && s->stride && s->stride >= e->n_ctx)
        return dq_fail_with(err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_BLOCK},
                            "stride %lld: expected less than the %lld tokens of a window",
                            (long long)s->stride, (long long)e->n_ctx);
    if (!kv->evict.policy || !s || s->scheme == DQ_WINDOW_CHUNK) return DQ_OK;
    const bool positions = s->scheme == DQ_WINDOW_POSITIONS;
    dq_fail_with(err, DQ_MISMATCH,
                 (dq_remedy){.code = DQ_REMEDY_KV_CHUNKS, .word = kv->evict.policy->name},
                 "policy %s evicts in the middle of each window, which goes with chunks only",
                 kv->evict.policy->name);
    return dq_fail_more(err,
                        (dq_remedy){.code = positions ? DQ_REMEDY_KV_POSITIONS : DQ_REMEDY_NONE},
                        " (found %s)", positions ? "positions" : dq_scheme_name[s->scheme]);
}

const dq_eval_kind dq_eval_text = {.windows = true, .encode = encode_text, .takes = takes};
