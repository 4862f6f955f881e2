/* calibrate_memory: what a calibrated run takes, before it begins.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CALIBRATE_MEMORY_H
#define DQ_CALIBRATE_MEMORY_H

#include "calibrate/calibrate.h"

/* Bytes that a run of c allocates, an eighth more for what is small or rounded up; the mapped files of the source, which
 * the system may drop, are not among them. q was opened with c's method. */
int64_t dq_calibrate_memory(const dq_calibrate *c, const dq_quantizer *q);
/* DQ_RESOURCE where the machine, or this process, has not so much. */
dq_status dq_calibrate_memory_check(const dq_calibrate *c, const dq_quantizer *q, dq_err *err);

#endif
