/* plan_heads_order: groups of KV heads in order of need, and how many of them may share what is kept. Numbers and texts alone;
 * plan_heads.h measures.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_HEADS_ORDER_H
#define DQ_PLAN_HEADS_ORDER_H

#include "kv/kv.h"

/* As dq_kv_heads_parse reads it: the first `sharing` of order[n] stand before the /. DQ_MISMATCH for more than a text of heads
 * holds. */
dq_status dq_plan_heads_order_text(char text[DQ_KV_HEADS_TEXT], const dq_kv_heads_group *order,
                                   int n, int sharing, dq_err *err);
/* Tokens a group with which n - 1 groups keep all of a context of so many, and the last one only `safe` of them; where division
 * leaves some, others lack one each. */
int64_t dq_plan_heads_order_whole(int64_t context, int64_t safe, int n);
/* Of n groups that share what is kept of a context, as many as can be whole, at least 1: fewer that share are the same cache, as the
 * rest goes to the others in their order. kept: tokens of each group on average. */
int dq_plan_heads_order_least(int64_t context, int64_t safe, int64_t kept, int n);
/* least to n, or at most `tries` (2 or more) numbers from least to n that grow by a factor, ascending, in out[tries]; how many. */
int dq_plan_heads_order_numbers(int *out, int least, int n, int tries);
/* order[n] = 0 .. n - 1 by what each is missed, most first; equal ones as they were. */
void dq_plan_heads_order_sort(int *order, const double *missed, int n);

#endif
