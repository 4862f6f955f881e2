/* heads_plan: dq plan MODEL --heads KEEP: which groups of KV heads share what a cache keeps. Its options are cache_plan.h's.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HEADS_PLAN_H
#define DQ_HEADS_PLAN_H

#include "cmds/cache_plan.h"

/* All of a plan of heads, with results on stdout. The logger is open. */
dq_status dq_heads_plan_run(const dq_cache_plan *c, const char *model, dq_err *err);

#endif
