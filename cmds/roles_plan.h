/* roles_plan: dq plan MODEL --roles KEEP: which groups of KV heads share what a cache keeps. Its options are cache_plan.h's.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ROLES_PLAN_H
#define DQ_ROLES_PLAN_H

#include "cmds/cache_plan.h"

/* All of a plan of roles, with results on stdout. The logger is open. */
dq_status dq_roles_plan_run(const dq_cache_plan *c, const char *model, dq_err *err);

#endif
