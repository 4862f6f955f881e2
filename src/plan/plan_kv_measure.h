/* plan_kv_measure: what caches lose on windows of the text. What is measured is written down and not measured again.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_KV_MEASURE_H
#define DQ_PLAN_KV_MEASURE_H

#include "plan/plan_kv.h"

/* Opens the journal, with what an earlier run has measured, and the runner. */
dq_status dq_plan_kv_measure_begin(dq_plan_kv *p, dq_err *err);
/* The mix of a text, made where there is none; -1: see err. */
int dq_plan_kv_measure_mix(dq_plan_kv *p, const char *widths, dq_err *err);
/* Measures mix[n] on the windows of a part, where that is not done yet. What is finished stays after DQ_STOPPED. */
dq_status dq_plan_kv_measure_run(dq_plan_kv *p, const int *mix, int n, dq_plan_kv_part part,
                                 const char *what, dq_err *err);
/* Of a mix on a part, or less what another one has there (less: -1: none). */
dq_status dq_plan_kv_measure_numbers(dq_plan_kv_numbers *out, const dq_plan_kv *p, int mix,
                                     int less, dq_plan_kv_part part, dq_err *err);

#endif
