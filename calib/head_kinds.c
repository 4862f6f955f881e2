/* head_kinds: see head_kinds.h. Sums are compared, not means: both are over the same rows, but for those that have nothing to
 * copy.
 * SPDX-License-Identifier: MIT */
#include "calib/head_kinds.h"

static const double copies_from = 0.1, half = 0.5;

const char *const dq_head_kind_name[DQ_HEAD_KINDS] = {"retrieval", "sink", "local", "mixed"};

dq_head_kind dq_head_kind_of(const dq_head_measure *m, const dq_head_profile *p)
{
    if (m->rows == 0 || m->variation <= 0) return DQ_HEAD_MIXED;
    const double mean = m->variation / (double)m->rows;
    if (p->copies > 0 && p->sum[DQ_HEAD_COPY_D] >= copies_from * mean * (double)p->copies)
        return DQ_HEAD_RETRIEVAL;
    if (p->sum[DQ_HEAD_FIRST_D] >= half * m->variation) return DQ_HEAD_SINK;
    if (p->sum[DQ_HEAD_LOCAL_D] >= half * m->variation) return DQ_HEAD_LOCAL;
    return DQ_HEAD_MIXED;
}
