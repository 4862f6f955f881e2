/* head_measure_sum: see head_measure_sum.h. Members of a measure are copied to and from two arrays.
 * SPDX-License-Identifier: MIT */
#include "engine/head_measure_sum.h"

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
