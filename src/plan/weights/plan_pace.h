/* plan_pace: how long a plan takes on this machine, by a piece of it that is run.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_PACE_H
#define DQ_PLAN_PACE_H

#include "plan/weights/plan_weights.h"

/* By all ranks (base/ranks.h). Seconds that a multiplication or addition (plan_work.h) takes: of the last layer's tensors, measured at one width on the first
 * sequence of the calibration text, of several ranks on as many as give each a chunk of it. beside: where the scratch file is. */
dq_status dq_plan_pace(double *seconds, const dq_plan_weights *p, const char *beside, dq_err *err);

#endif
