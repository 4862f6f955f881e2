/* One row of one output head at a time: the mass of each class divided by that of all. Rows whose
 * whole is too small to divide by are counted apart, and the mean leaves them out.
 * SPDX-License-Identifier: MIT */
#include "engine/observe.h"

#include <math.h>

#define DQ_SPAN_LEAST 1e-3

static double mass_of(const dq_span_mass *m, dq_span_norm norm)
{
    if (norm == DQ_SPAN_SUM) return m->positive - m->negative;
    return norm == DQ_SPAN_POSITIVE ? m->positive : m->positive + m->negative;
}

static bool is_skipped(double whole, dq_span_norm norm)
{
    return norm == DQ_SPAN_SUM ? fabs(whole) < DQ_SPAN_LEAST : whole == 0;
}

void dq_attention_spans_add_row(dq_span_share *into, const dq_span_mass *mass, int n_classes)
{
    into->rows++;
    for (int k = 0; k < DQ_N_SPAN_NORMS; k++) {
        double whole = 0;
        for (int c = 0; c < n_classes; c++) whole += mass_of(&mass[c], (dq_span_norm)k);
        into->small += k == DQ_SPAN_SUM && fabs(whole) < DQ_SPAN_SMALL;
        if (is_skipped(whole, (dq_span_norm)k)) {
            into->skipped[k]++;
            continue;
        }
        for (int c = 0; c < n_classes; c++)
            into->share[k][c] += mass_of(&mass[c], (dq_span_norm)k) / whole;
    }
}

double dq_attention_spans_mean(const dq_span_share *s, dq_span_norm norm, int class_)
{
    const int64_t n = s->rows - s->skipped[norm];
    return n > 0 ? s->share[norm][class_] / (double)n : (double)NAN;
}

/* Plain sums merge in any grouping; divisions come at output. */

const double dq_head_measure_thresholds[DQ_N_THRESHOLDS] = {1e-4, 1e-3, 1e-2, 1e-1};

void dq_head_measure_merge(dq_head_measure *into, const dq_head_measure *from)
{
    into->rows += from->rows;
    into->keys += from->keys;
    into->pages += from->pages;
    for (int m = 0; m < 2; m++) {
        into->entropy[m] += from->entropy[m];
        into->sink_mass[m] += from->sink_mass[m];
    }
    into->variation += from->variation;
    into->negative += from->negative;
    for (int i = 0; i < DQ_N_THRESHOLDS; i++) {
        into->near_zero[i] += from->near_zero[i];
        into->skippable[i] += from->skippable[i];
    }
}

/* Where each member of a measure is, counts first. */
typedef struct members {
    int64_t *count[DQ_MEASURE_COUNTS];
    double *sum[DQ_MEASURE_SUMS];
} members;

static members members_of(dq_head_measure *m)
{
    members x = {.count = {&m->rows, &m->keys, &m->pages},
                 .sum = {&m->entropy[0], &m->entropy[1], &m->sink_mass[0], &m->sink_mass[1],
                         &m->variation, &m->negative}};
    for (int i = 0; i < DQ_N_THRESHOLDS; i++) {
        x.count[3 + i] = &m->near_zero[i];
        x.count[3 + DQ_N_THRESHOLDS + i] = &m->skippable[i];
    }
    return x;
}

void dq_head_measure_sum_add(dq_head_measure_sum *s, const dq_head_measure *m)
{
    dq_head_measure copy = *m;
    const members x = members_of(&copy);
    for (int i = 0; i < DQ_MEASURE_COUNTS; i++) s->count[i] += *x.count[i];
    for (int i = 0; i < DQ_MEASURE_SUMS; i++) dq_fixed_add(&s->sum[i], *x.sum[i]);
}

bool dq_head_measure_sum_merge(dq_head_measure_sum *into, const dq_head_measure_sum *from)
{
    for (int i = 0; i < DQ_MEASURE_COUNTS; i++) {
        if (!dq_fixed_is_count(from->count[i])) return false;
        into->count[i] += from->count[i];
    }
    for (int i = 0; i < DQ_MEASURE_SUMS; i++) dq_fixed_merge(&into->sum[i], &from->sum[i]);
    return true;
}

dq_head_measure dq_head_measure_sum_value(const dq_head_measure_sum *s)
{
    dq_head_measure m = {0};
    const members x = members_of(&m);
    for (int i = 0; i < DQ_MEASURE_COUNTS; i++) *x.count[i] = s->count[i];
    for (int i = 0; i < DQ_MEASURE_SUMS; i++) *x.sum[i] = dq_fixed_value(&s->sum[i]);
    return m;
}

void dq_head_profile_merge(dq_head_profile *into, const dq_head_profile *from)
{
    into->rows += from->rows;
    into->copies += from->copies;
    for (int i = 0; i < DQ_HEAD_SUMS; i++) into->sum[i] += from->sum[i];
}

void dq_head_profile_sum_add(dq_head_profile_sum *s, const dq_head_profile *p)
{
    s->rows += p->rows;
    s->copies += p->copies;
    for (int i = 0; i < DQ_HEAD_SUMS; i++) dq_fixed_add(&s->sum[i], p->sum[i]);
}

bool dq_head_profile_sum_merge(dq_head_profile_sum *into, const dq_head_profile_sum *from)
{
    if (!dq_fixed_is_count(from->rows) || !dq_fixed_is_count(from->copies)) return false;
    into->rows += from->rows;
    into->copies += from->copies;
    for (int i = 0; i < DQ_HEAD_SUMS; i++) dq_fixed_merge(&into->sum[i], &from->sum[i]);
    return true;
}

dq_head_profile dq_head_profile_sum_value(const dq_head_profile_sum *s)
{
    dq_head_profile p = {.rows = s->rows, .copies = s->copies};
    for (int i = 0; i < DQ_HEAD_SUMS; i++) p.sum[i] = dq_fixed_value(&s->sum[i]);
    return p;
}
