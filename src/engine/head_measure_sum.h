/* head_measure_sum: measures of an output head, added in any order to the same bits.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HEAD_MEASURE_SUM_H
#define DQ_HEAD_MEASURE_SUM_H

#include "engine/head_measure.h"
#include "stat/fixed.h"

enum { DQ_MEASURE_COUNTS = 3 + 2 * DQ_N_THRESHOLDS, DQ_MEASURE_SUMS = 6 };

/* {0} is empty. */
typedef struct dq_head_measure_sum {
    int64_t count[DQ_MEASURE_COUNTS];
    dq_fixed sum[DQ_MEASURE_SUMS];
} dq_head_measure_sum;

void dq_head_measure_sum_add(dq_head_measure_sum *s, const dq_head_measure *m);
/* False: counts below 0, or above 2^46. */
bool dq_head_measure_sum_merge(dq_head_measure_sum *into, const dq_head_measure_sum *from);
dq_head_measure dq_head_measure_sum_value(const dq_head_measure_sum *s);

#endif
