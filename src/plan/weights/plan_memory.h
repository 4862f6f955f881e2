/* plan_memory: what a plan takes, before it begins.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_MEMORY_H
#define DQ_PLAN_MEMORY_H

#include "plan/weights/plan_weights.h"

/* Bytes of its largest stage, a trial at the widest width, or the sensitivities, as calibrate_memory.h counts: mapped files are
 * not among them. Reads the text once more. */
dq_status dq_plan_memory(int64_t *out, const dq_plan_weights *p, dq_err *err);
/* DQ_RESOURCE where the machine, or this process, has not so much. */
dq_status dq_plan_memory_check(const dq_plan_weights *p, dq_err *err);

#endif
