/* cpu_measure: what the maps of an output head look like, on their way from softmax to subtraction.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/attention/cpu_attention.h"

#include <assert.h>
#include <math.h>

enum { RUN_PAGES = 64, RUN_KEYS = RUN_PAGES * DQ_PAGE_TOKENS };
static_assert((int)DQ_N_THRESHOLDS == (int)DQ_SIMD_LIMITS, "loops compare with each threshold");
static_assert((int)DQ_PAGE_TOKENS == (int)DQ_TILE_N, "loops add up pages");

static double mass_of(const float *p, int64_t n, float a)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)(p[i] * a);
    return sum;
}

/* A limit that sizes in float are below where they are below the threshold: the least float that is not. */
static float limit_of(double threshold)
{
    const float near = (float)threshold;
    return (double)near < threshold ? nextafterf(near, INFINITY) : near;
}

/* Keys of whole pages, but for the row's last: what is near zero, and which pages are. */
static void measure_run(const dq_simd *simd, dq_head_measure *m, const float *p1, const float *p2,
                        int64_t n, float a, float b)
{
    double page[RUN_PAGES];
    float limit[DQ_N_THRESHOLDS];
    for (int k = 0; k < DQ_N_THRESHOLDS; k++) limit[k] = limit_of(dq_head_measure_thresholds[k]);
    m->negative += simd->map_sizes(page, m->near_zero, p1, p2, n, a, b, limit);
    for (int64_t i = 0; i * DQ_PAGE_TOKENS < n; i++) {
        for (int k = 0; k < DQ_N_THRESHOLDS; k++)
            m->skippable[k] += page[i] < dq_head_measure_thresholds[k];
        m->variation += page[i];
        m->pages++;
    }
}

static void measure_row(const dq_simd *simd, const dq_cpu_column_job *j, dq_head_measure *m,
                        int64_t r)
{
    const float *p[2] = {j->p[0] + r * j->ld, j->p[1] ? j->p[1] + r * j->ld : NULL};
    const int64_t n = j->visible[r];
    int64_t sinks = dq_kv_visible(j->list, DQ_SINKS - 1);
    float b = 0.0f;
    if (sinks > n) sinks = n;
    for (int k = 0; k < 2 && p[k]; k++) {
        const float a = (float)(1.0 / j->sum[k][r]);
        m->entropy[k] += simd->entropy(p[k], n, a);
        m->sink_mass[k] += mass_of(p[k], sinks, a);
    }
    if (p[1]) b = (float)((double)dq_cpu_lambda(j->args, j->rows.first + r, j->out) / j->sum[1][r]);
    for (int64_t i = 0; i < n; i += RUN_KEYS)
        measure_run(simd, m, p[0] + i, p[1] ? p[1] + i : NULL, n - i < RUN_KEYS ? n - i : RUN_KEYS,
                    (float)(1.0 / j->sum[0][r]), b);
    m->rows++;
    m->keys += n;
}

void dq_cpu_measure(const dq_simd *simd, const dq_cpu_column_job *j, dq_head_measure *m)
{
    for (int64_t r = 0; r < j->rows.n; r++) {
        if (j->visible[r] > 0) measure_row(simd, j, m, r);
    }
}
