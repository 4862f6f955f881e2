/* moments: how many values there were, the largest magnitude and where it was seen, sums of x^2 and x^4. Merging pieces in any
 * order gives the same bits as adding the same rows to one.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_MOMENTS_H
#define DQ_MOMENTS_H

#include "base/strbuf.h"
#include "stat/fixed.h"
#include "stat/place.h"

/* {0} is empty. */
typedef struct dq_moments {
    int64_t n;   /* finite values */
    float max;   /* their largest magnitude */
    dq_place at; /* where; of equal ones the first by place. Of no meaning where max is 0 */
    dq_fixed sum2, sum4;
} dq_moments;

/* Looks for the largest of x[n], `size`, where it is larger than m->max, or stands before it: value i stands at `at` with
 * col = at.col + i. Adds nothing to counts and sums. */
void dq_moments_raise(dq_moments *m, float size, const float *x, int64_t n, dq_place at);
void dq_moments_merge(dq_moments *into, const dq_moments *from);
/* NaN without values. n sum x^4 / (sum x^2)^2: the kurtosis of the values taken around zero, 3 for a normal distribution
 * without mean. */
double dq_moments_rms(const dq_moments *m);
double dq_moments_kurtosis0(const dq_moments *m);

#endif
