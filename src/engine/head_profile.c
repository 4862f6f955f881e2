/* head_profile: see head_profile.h. Plain sums; divisions come when the numbers are shown.
 * SPDX-License-Identifier: MIT */
#include "engine/head_profile.h"

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
