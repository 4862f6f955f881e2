/* name_order: names in the order that people count in, layers.2 before layers.10.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_NAME_ORDER_H
#define DQ_NAME_ORDER_H

#include "base/base.h"

/* As strcmp, but digits that stand together count as one number; of equal numbers the one with fewer digits comes first. */
int dq_name_order_compare(const char *a, const char *b);

/* *out: indices 0..n-1 of what `name` gives, which the caller holds, in that order; in the arena. DQ_RESOURCE. */
dq_status dq_name_order_make(int64_t **out, int64_t n,
                             const char *(*name)(const void *arg, int64_t i), const void *arg,
                             dq_arena *a, dq_err *err);

#endif
