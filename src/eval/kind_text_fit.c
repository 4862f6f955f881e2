/* kind_text_fit: see kind_text_fit.h. At a given beta alpha and gamma are those of a straight line over t^beta, so the sum of
 * squares is a function of beta alone: a walk over rising steepness finds where it is least, and golden section the rest. t is
 * counted from the first point there, so that powers stay near 1.
 * SPDX-License-Identifier: MIT */
#include "eval/kind_text_fit.h"

#include <math.h>

int dq_text_fit_points(int64_t at[DQ_TEXT_FIT_POINTS], int64_t from, int64_t to)
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
typedef struct curve {
    double u[DQ_TEXT_FIT_POINTS], y[DQ_TEXT_FIT_POINTS];
    int n;
} curve;

typedef struct line {
    double slope, offset, squares; /* sum of squared residuals */
} line;

/* y over u^beta, a straight line. */
static line line_at(const curve *c, double beta)
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

/* Step k of the walk: from the flattest beta to the steepest, each so many times the one before. */
enum { STEPS = 120 };
static double step(int k)
{
    return DQ_TEXT_FIT_FLATTEST *
           pow(DQ_TEXT_FIT_STEEPEST / DQ_TEXT_FIT_FLATTEST, (double)k / STEPS);
}

/* The least sum of squares between steps k - 1 and k + 1. */
static double refine(const curve *c, int k)
{
    const double golden = (sqrt(5) - 1) / 2;
    double low = step(k + 1), high = step(k - 1);
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
    return (low + high) / 2;
}

/* False: the best beta is the flattest or the steepest one. */
static bool fit_curve(const curve *c, double first, double parameter[DQ_TEXT_FIT_PARAMETERS],
                      double *residual)
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
    const double beta = refine(c, best);
    const line l = line_at(c, beta);
    parameter[0] = l.slope / pow(first, beta);
    parameter[1] = beta;
    parameter[2] = l.offset;
    *residual = sqrt(l.squares / c->n);
    return true;
}

/* The mean over all documents but one (-1: but none) from sums over all. */
static void mean_curve(curve *c, const double *sum, const double *curves, int64_t documents,
                       int64_t but)
{
    for (int i = 0; i < c->n; i++) {
        if (but < 0)
            c->y[i] = sum[i] / (double)documents;
        else
            c->y[i] = (sum[i] - curves[but * c->n + i]) / (double)(documents - 1);
    }
}

/* Errors of the parameters from those of the curves without a document each, part[documents * 3]. */
static void jackknife(dq_text_fit *o, const double *part, int64_t documents)
{
    const double d = (double)documents;
    for (int p = 0; p < DQ_TEXT_FIT_PARAMETERS; p++) {
        double mean = 0, squares = 0;
        for (int64_t i = 0; i < documents; i++) mean += part[i * DQ_TEXT_FIT_PARAMETERS + p] / d;
        for (int64_t i = 0; i < documents; i++) {
            const double off = part[i * DQ_TEXT_FIT_PARAMETERS + p] - mean;
            squares += off * off;
        }
        o->parameter[p].std_err = sqrt((d - 1) / d * squares);
        o->interval[p] = dq_mean_interval(o->parameter[p]);
    }
}

static dq_status find_errors(dq_text_fit *o, curve *c, double first, const double *sum,
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
    if (all) jackknife(o, part, documents);
    dq_block_free(part);
    return DQ_OK;
}

dq_status dq_text_fit_of(dq_text_fit *out, const double *curve_of, int64_t documents,
                         const int64_t *at, int n, dq_err *err)
{
    double parameter[DQ_TEXT_FIT_PARAMETERS], sum[DQ_TEXT_FIT_POINTS] = {0};
    curve c = {.n = n};
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
