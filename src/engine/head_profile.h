/* head_profile: where the attention of one output head goes, summed over query rows: how many keys share it, how much is on the
 * first token, on recent tokens, and on what followed the last occurrence of the query's token; and what two maps have in
 * common.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HEAD_PROFILE_H
#define DQ_HEAD_PROFILE_H

#include "stat/fixed.h"

#include <stdbool.h>
#include <stdint.h>

enum { DQ_LOCAL_KEYS = 64 }; /* the query's own token and those right before it */

/* Sums over rows of A1, A2, and of |D|, D = A1 - lambda A2 (one map: A1, and what is of A2 stays 0). */
typedef enum dq_head_sum {
    DQ_HEAD_SUPPORT_1, /* 1 / sum p^2: over as many keys the row would be even */
    DQ_HEAD_SUPPORT_2,
    DQ_HEAD_FIRST_1, /* mass on the first token of the sequence */
    DQ_HEAD_FIRST_2,
    DQ_HEAD_FIRST_D,
    DQ_HEAD_LOCAL_1, /* mass on the last DQ_LOCAL_KEYS tokens */
    DQ_HEAD_LOCAL_2,
    DQ_HEAD_LOCAL_D,
    DQ_HEAD_COPY_1, /* of rows that have one: mass on the key of dq_head_look.copy. arXiv 2209.11895 */
    DQ_HEAD_COPY_2,
    DQ_HEAD_COPY_D,
    DQ_HEAD_COMMON, /* sum min(A1, A2): 1 less it is their total variation distance */
    DQ_HEAD_CANCELLED, /* sum min(A1, lambda A2): what of A1 the subtraction takes away; 0 where lambda < 0 */
    DQ_HEAD_SUMS
} dq_head_sum;

typedef struct dq_head_profile {
    int64_t rows, copies; /* copies: rows that have a key to copy from */
    double sum[DQ_HEAD_SUMS];
} dq_head_profile;

/* What attend fills: sequences hold their batch's rows alone, from position 0. */
typedef struct dq_head_look {
    dq_head_profile *head; /* [n_out] on the host, added to */
    /* [n_rows] position after the last one, before the local keys, that has the token of the row; -1: there is none */
    const int32_t *copy;
} dq_head_look;

void dq_head_profile_merge(dq_head_profile *into, const dq_head_profile *from);

/* The same, added in any order to the same bits. {0} is empty. */
typedef struct dq_head_profile_sum {
    int64_t rows, copies;
    dq_fixed sum[DQ_HEAD_SUMS];
} dq_head_profile_sum;
void dq_head_profile_sum_add(dq_head_profile_sum *s, const dq_head_profile *p);
/* False: counts below 0, or above 2^46. */
bool dq_head_profile_sum_merge(dq_head_profile_sum *into, const dq_head_profile_sum *from);
dq_head_profile dq_head_profile_sum_value(const dq_head_profile_sum *s);

#endif
