/* attention_spans: see attention_spans.h. One row of one output head at a time: the mass of each class divided by
 * that of all. Rows whose whole is too small to divide by are counted apart, and the mean leaves them out.
 * SPDX-License-Identifier: MIT */
#include "engine/attention_spans.h"

#include <math.h>

static double part_of(const dq_span_mass *m, dq_span_norm norm)
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
        for (int c = 0; c < n_classes; c++) whole += part_of(&mass[c], (dq_span_norm)k);
        into->small += k == DQ_SPAN_SUM && fabs(whole) < DQ_SPAN_SMALL;
        if (is_skipped(whole, (dq_span_norm)k)) {
            into->skipped[k]++;
            continue;
        }
        for (int c = 0; c < n_classes; c++)
            into->share[k][c] += part_of(&mass[c], (dq_span_norm)k) / whole;
    }
}

double dq_attention_spans_mean(const dq_span_share *s, dq_span_norm norm, int class_)
{
    const int64_t n = s->rows - s->skipped[norm];
    return n > 0 ? s->share[norm][class_] / (double)n : (double)NAN;
}
