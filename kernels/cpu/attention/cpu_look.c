/* Where the maps of an output head go, on their way from softmax to subtraction. Each row is
 * walked once, in lanes that are added in a fixed order.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/attention/cpu_attention.h"

#include <math.h>

enum { LANES = 8 };

typedef struct walked {
    double square[2], mass[3], common, cancelled; /* mass: of A1, A2, |D| */
} walked;

static double lanes_sum(const double *lane)
{
    double sum = 0;
    for (int k = 0; k < LANES; k++) sum += lane[k];
    return sum;
}

/* One map: |D| is A1. */
static walked walk_one(const float *p, int64_t n, float a)
{
    double square[LANES] = {0}, mass[LANES] = {0};
    for (int64_t i = 0; i < n; i += LANES) {
        const int end = n - i < LANES ? (int)(n - i) : LANES;
        for (int k = 0; k < end; k++) {
            const float x = p[i + k] * a;
            square[k] += (double)(x * x);
            mass[k] += (double)x;
        }
    }
    walked w = {.square = {lanes_sum(square)}, .mass = {lanes_sum(mass)}};
    w.mass[2] = w.mass[0];
    return w;
}

/* lambda: what A2 is multiplied with. */
static walked walk_both(const float *p1, const float *p2, int64_t n, float a, float b, float lambda)
{
    double sum[7][LANES] = {{0}};
    for (int64_t i = 0; i < n; i += LANES) {
        const int end = n - i < LANES ? (int)(n - i) : LANES;
        for (int k = 0; k < end; k++) {
            const float x = p1[i + k] * a, y = p2[i + k] * b, z = y * lambda;
            sum[0][k] += (double)(x * x);
            sum[1][k] += (double)(y * y);
            sum[2][k] += (double)x;
            sum[3][k] += (double)y;
            sum[4][k] += (double)fabsf(x - z);
            sum[5][k] += (double)(x < y ? x : y);
            sum[6][k] += (double)(x < z ? x : z);
        }
    }
    return (walked){.square = {lanes_sum(sum[0]), lanes_sum(sum[1])},
                    .mass = {lanes_sum(sum[2]), lanes_sum(sum[3]), lanes_sum(sum[4])},
                    .common = lanes_sum(sum[5]),
                    .cancelled = lambda > 0 ? lanes_sum(sum[6]) : 0};
}

typedef struct row {
    const float *p1, *p2; /* p2 NULL: one map */
    float a, b, lambda;
} row;

static walked walk(const row *r, int64_t first, int64_t end)
{
    return r->p2 ? walk_both(r->p1 + first, r->p2 + first, end - first, r->a, r->b, r->lambda)
                 : walk_one(r->p1 + first, end - first, r->a);
}

static void add_masses(dq_head_profile *to, dq_head_sum first, const walked *w)
{
    for (int k = 0; k < 3; k++) to->sum[(int)first + k] += w->mass[k];
}

void dq_cpu_look(const dq_cpu_column_job *j, dq_head_profile *to)
{
    for (int64_t r = 0; r < j->rows.n; r++) {
        if (j->visible[r] > 0) {
            const int64_t hidden = j->hidden[r], n = j->visible[r] - hidden,
                          at = r * j->ld + hidden;
            const int32_t start = dq_kv_pos(j->list, hidden);
            const int32_t copy = j->args->look->copy[j->rows.first + r] - start;
            const bool both = j->p[1] != NULL;
            const row x = {.p1 = j->p[0] + at,
                           .p2 = both ? j->p[1] + at : NULL,
                           .a = (float)(1.0 / j->sum[0][r]),
                           .b = both ? (float)(1.0 / j->sum[1][r]) : 0.0f,
                           .lambda =
                               both ? dq_cpu_lambda(j->args, j->rows.first + r, j->out) : 0.0f};
            const int64_t local = n > DQ_LOCAL_KEYS ? n - DQ_LOCAL_KEYS : 0;
            const walked far = walk(&x, 0, local), near = walk(&x, local, n),
                         first = walk(&x, 0, start == 0);
            to->sum[DQ_HEAD_SUPPORT_1] += 1 / (far.square[0] + near.square[0]);
            if (both) to->sum[DQ_HEAD_SUPPORT_2] += 1 / (far.square[1] + near.square[1]);
            add_masses(to, DQ_HEAD_FIRST_1, &first);
            add_masses(to, DQ_HEAD_LOCAL_1, &near);
            to->sum[DQ_HEAD_COMMON] += far.common + near.common;
            to->sum[DQ_HEAD_CANCELLED] += far.cancelled + near.cancelled;
            to->rows++;
            if (copy < 0 || copy >= n) continue;
            const walked copied = walk(&x, copy, copy + 1);
            add_masses(to, DQ_HEAD_COPY_1, &copied);
            to->copies++;
        }
    }
}
