/* What tests see of dq plan.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CMD_PLAN_H
#define DQ_CMD_PLAN_H

#include "base/json.h"
#include "plan/plan_cache.h"

/* Losses of a cache, for the documents and lines of both cache plans. */

/* "less", "more" or "open", by where the interval lies. */
const char *dq_cache_numbers_verdict(dq_interval i, const char *less, const char *more,
                                     const char *open);

#endif
