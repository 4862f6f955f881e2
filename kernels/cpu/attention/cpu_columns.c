/* cpu_columns: per-key sums over the rows of an attend call, for eviction policies.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/attention/cpu_attention.h"

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

/* The sum of p in 8 interleaved lanes. */
static double sum_of(const float *p, int64_t n)
{
    double lane[8] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int k = 0; k < 8; k++) lane[k] += (double)p[i + k];
    }
    for (; i < n; i++) lane[i % 8] += (double)p[i];
    for (int k = 0; k < 8; k++) sum += lane[k];
    return sum;
}

/* 1 / sum of p over the tokens that a part's softmax is over; 0 where the row gives them nothing. all: over every token. */
static double part_scale(const float *p, double all, const dq_column_part *t, int64_t n)
{
    const bool whole = t->sinks == t->from && t->to == t->own;
    const double sum = whole ? all
                             : sum_of(p, t->sinks) + sum_of(p + t->from, t->to - t->from) +
                                   sum_of(p + t->own, n - t->own);
    return sum > 0 ? 1.0 / sum : 0.0;
}

/* peak = max(peak, a p). Nothing is NaN here, which fmax would look for. */
static void raise_peaks(double *peak, const float *p, int64_t n, double a)
{
    for (int64_t i = 0; i < n; i++) {
        const double x = (double)p[i] * a;
        peak[i] = peak[i] < x ? x : peak[i];
    }
}

/* Row r's part in the column `peak`. */
static void add_peaks(const dq_cpu_column_job *j, int64_t r, double *peak, const dq_column_part *t)
{
    for (int m = 0; m < 2 && j->p[m]; m++) {
        const float *p = j->p[m] + r * j->ld;
        const double weight =
            m ? fabs((double)dq_cpu_lambda(j->args, j->rows.first + r, j->out)) : 1.0;
        raise_peaks(peak + t->from, p + t->from, t->to - t->from,
                    weight * part_scale(p, j->sum[m][r], t, j->visible[r]));
    }
}

/* Index of the job's sequence and group. */
static int64_t list_of(const dq_cpu_column_job *j)
{
    const dq_head_order *map = j->args->attn->map;
    return (int64_t)j->rows.seq * map->n_groups + map->group[map->head[j->out].v[0]];
}

static void count_row(const dq_cpu_column_job *j, int64_t r, int64_t at)
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
    if (c->peak) add_peaks(j, r, c->peak + at, &c->part[list_of(j)]);
}

void dq_cpu_count_columns(const dq_cpu_column_job *j)
{
    const dq_columns *c = j->args->columns;
    const int64_t end = j->args->batch->cu_rows[j->rows.seq + 1];
    const int64_t at = c->offset[list_of(j)];
    int64_t first = c->last_rows ? end - c->last_rows - j->rows.first : 0; /* that counts */
    if (first < 0) first = 0;
    while (first < j->rows.n && j->visible[first] == 0) first++;
    if (first >= j->rows.n) return;
    for (int64_t r = first; r < j->rows.n; r++) count_row(j, r, at);
}
