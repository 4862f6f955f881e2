/* moments: see moments.h. A place is looked for only where a row has a value as large as the largest so far: that is rare.
 * SPDX-License-Identifier: MIT */
#include "stat/moments.h"

#include <math.h>

/* Takes a magnitude if it is larger, or as large and stands before. */
static void raise_to(dq_moments *m, float size, const dq_place *at)
{
    if (m->max > size || size <= 0) return;
    if (m->max >= size && dq_place_order(&m->at, at) <= 0) return;
    m->max = size;
    m->at = *at;
}

void dq_moments_raise(dq_moments *m, float size, const float *x, int64_t n, dq_place at)
{
    if (size < m->max || size <= 0) return;
    for (int64_t i = 0; i < n; i++) {
        if (fabsf(x[i]) < size || fabsf(x[i]) > size) continue;
        at.col += (int32_t)i;
        raise_to(m, size, &at);
        return;
    }
}

void dq_moments_merge(dq_moments *into, const dq_moments *from)
{
    if (from->n == 0) return;
    raise_to(into, from->max, &from->at);
    into->n += from->n;
    dq_fixed_merge(&into->sum2, &from->sum2);
    dq_fixed_merge(&into->sum4, &from->sum4);
}

double dq_moments_rms(const dq_moments *m)
{
    return m->n ? sqrt(dq_fixed_value(&m->sum2) / (double)m->n) : (double)NAN;
}

double dq_moments_kurtosis0(const dq_moments *m)
{
    const double sum2 = dq_fixed_value(&m->sum2);
    return sum2 > 0 ? (double)m->n * dq_fixed_value(&m->sum4) / (sum2 * sum2) : (double)NAN;
}
