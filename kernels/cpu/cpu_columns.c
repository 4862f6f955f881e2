/* cpu_columns: per-key sums over the rows of an attend call, for eviction policies.
 * SPDX-License-Identifier: MIT */
#include "cpu_attention.h"

#include <math.h>

static void add_map(double *sums, const float *p, int64_t n, float a)
{
    for (int64_t i = 0; i < n; i++) sums[i] += (double)(p[i] * a);
}

/* |P1 - lambda P2| with the roundings of the subtraction itself. */
static void add_difference(double *sums, const float *p1, const float *p2, int64_t n, float a,
                           float b)
{
    for (int64_t i = 0; i < n; i++) {
        const float x = p1[i] * a, y = p2 ? p2[i] * b : 0.0f;
        sums[i] += (double)fabsf(x - y);
    }
}

static void count_row(const dq_column_job *j, int64_t r, int64_t at)
{
    const dq_columns *c = j->args->columns;
    const float *p1 = j->p[0] + r * j->ld, *p2 = j->p[1] ? j->p[1] + r * j->ld : NULL;
    const int64_t n = j->visible[r];
    const float a = (float)(1.0 / j->sum[0][r]);
    float b = 0.0f, lambda_b = 0.0f;
    if (p2) {
        b = (float)(1.0 / j->sum[1][r]);
        lambda_b =
            (float)((double)dq_cpu_lambda(j->args, j->rows.first + r, j->out) / j->sum[1][r]);
    }
    if (c->mass[0]) add_map(c->mass[0] + at, p1, n, a);
    if (c->mass[1] && p2) add_map(c->mass[1] + at, p2, n, b);
    if (c->lambda_mass && p2) add_map(c->lambda_mass + at, p2, n, lambda_b);
    if (c->diff) add_difference(c->diff + at, p1, p2, n, a, lambda_b);
}

void dq_cpu_count_columns(const dq_column_job *j)
{
    const dq_headmap *map = j->args->attn->map;
    const dq_columns *c = j->args->columns;
    const int64_t end = j->args->batch->cu_rows[j->rows.seq + 1];
    const int64_t at = c->offset[j->rows.seq * map->n_groups + map->group[map->head[j->out].v[0]]];
    for (int64_t r = 0; r < j->rows.n; r++) {
        const bool counts = c->last_rows == 0 || j->rows.first + r >= end - c->last_rows;
        if (counts && j->visible[r] > 0) count_row(j, r, at);
    }
}
