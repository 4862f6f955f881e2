/* plan_trial: a whole model with given widths, quantized by the method into a container beside the output, measured on the search
 * text and on the unseen one, and removed.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_TRIAL_H
#define DQ_PLAN_TRIAL_H

#include "plan/weights/plan_weights.h"

/* The parts of the text with the source's answers. */
typedef struct dq_plan_trials {
    dq_plan_part part[DQ_PLAN_TEXTS]; /* search and unseen */
} dq_plan_trials;

/* DQ_USAGE where a file of a trial would replace an input; DQ_FILE where one exists, unless the journal of
 * an earlier run is there too, or force. Before dq_plan_state_begin. */
dq_status dq_plan_trial_guard(const dq_plan_weights *p, dq_err *err);
/* How the models of a plan are calibrated; out: NULL, nothing is run. */
dq_calibrate_settings dq_plan_trial_calibrate(const dq_plan_weights *p, const char *out);
/* Removes what trials of this run, and of those that it resumes, have left. */
void dq_plan_trial_clear(const dq_plan_weights *p);
/* By all ranks (base/ranks.h). Index in p->trial of the trial of a choice, which is copied; made where there is none. point: of the curve, -1: none.
 * Numbers of the unseen text are there and not looked at. */
dq_status dq_plan_trial_of(int64_t *out, dq_plan_weights *p, dq_plan_trials *parts,
                           const int *choice, int64_t point, dq_err *err);
/* Bytes of the file that the recipe gives with this trial chosen, from what the trial's own took and from plans of both: exact
 * for the plan as it stands. */
dq_status dq_plan_trial_bytes(int64_t *out, dq_plan_weights *p, int64_t trial, dq_err *err);

#endif
