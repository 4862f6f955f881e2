/* cpu_measure: what the maps of an output head look like, on their way from softmax to subtraction.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/attention/cpu_attention.h"

#include <math.h>

static double entropy_of(const float *p, int64_t n, float a)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const float x = p[i] * a;
        if (x > 0.0f) sum -= (double)(x * logf(x));
    }
    return sum;
}

static double mass_of(const float *p, int64_t n, float a)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)(p[i] * a);
    return sum;
}

/* d[n] = p1 * a - p2 * b, p2 NULL: p1 * a */
static void subtract(float *d, const float *p1, const float *p2, int64_t n, float a, float b)
{
    if (!p2) {
        for (int64_t i = 0; i < n; i++) d[i] = p1[i] * a;
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++) d[i] = p1[i] * a - p2[i] * b;
}

/* How many of d[n] have a size below the threshold: below the least float that is not. */
static int32_t count_below(const float *d, int64_t n, double threshold)
{
    const float near = (float)threshold;
    const float least = (double)near < threshold ? nextafterf(near, INFINITY) : near;
    int32_t count = 0;
#pragma omp simd reduction(+ : count)
    for (int64_t i = 0; i < n; i++) count += fabsf(d[i]) < least;
    return count;
}

/* n keys, one page: what is near zero, and whether the page is. */
static void measure_page(dq_head_measure *m, const float *p1, const float *p2, int64_t n, float a,
                         float b)
{
    float d[DQ_PAGE_TOKENS];
    double sum = 0, negative = m->negative;
    subtract(d, p1, p2, n, a, b);
    for (int64_t i = 0; i < n; i++) {
        sum += fabs((double)d[i]);
        negative -= d[i] < 0 ? (double)d[i] : 0.0;
    }
    for (int k = 0; k < DQ_N_THRESHOLDS; k++) {
        m->near_zero[k] += count_below(d, n, dq_head_measure_thresholds[k]);
        m->skippable[k] += sum < dq_head_measure_thresholds[k];
    }
    m->negative = negative;
    m->variation += sum;
    m->pages++;
}

static void measure_row(const dq_cpu_column_job *j, dq_head_measure *m, int64_t r)
{
    const float *p[2] = {j->p[0] + r * j->ld, j->p[1] ? j->p[1] + r * j->ld : NULL};
    const int64_t n = j->visible[r];
    int64_t sinks = dq_kv_visible(j->list, DQ_SINKS - 1);
    float b = 0.0f;
    if (sinks > n) sinks = n;
    for (int k = 0; k < 2 && p[k]; k++) {
        const float a = (float)(1.0 / j->sum[k][r]);
        m->entropy[k] += entropy_of(p[k], n, a);
        m->sink_mass[k] += mass_of(p[k], sinks, a);
    }
    if (p[1]) b = (float)((double)dq_cpu_lambda(j->args, j->rows.first + r, j->out) / j->sum[1][r]);
    for (int64_t i = 0; i < n; i += DQ_PAGE_TOKENS)
        measure_page(m, p[0] + i, p[1] ? p[1] + i : NULL,
                     n - i < DQ_PAGE_TOKENS ? n - i : DQ_PAGE_TOKENS, (float)(1.0 / j->sum[0][r]),
                     b);
    m->rows++;
    m->keys += n;
}

void dq_cpu_measure(const dq_cpu_column_job *j, dq_head_measure *m)
{
    for (int64_t r = 0; r < j->rows.n; r++) {
        if (j->visible[r] > 0) measure_row(j, m, r);
    }
}
