/* calibrate_pace: how long a calibrated run is expected to take (base/work.h); dq_calibrate_measure times pieces of it.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CALIBRATE_PACE_H
#define DQ_CALIBRATE_PACE_H

#include "calibrate/calibrate_job.h"

/* Of no machine in particular. */
extern const dq_calibrate_rates dq_calibrate_pace_usual;
/* What is left of a job, for dq_quantize_method. */
void dq_calibrate_pace_expect(const dq_calibrate_job *j, dq_pace *p);
/* Seconds to round rows of a tensor. */
double dq_calibrate_pace_rounding(const dq_calibrate *c, double rows, double cols,
                                  const dq_quant_spec *spec);

#endif
