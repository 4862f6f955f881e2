/* head_measure_text: what an output head looks like as JSON, from which a process of any machine makes the same bits.
 *
 *   {"rows": N, "counts": "KEYS PAGES NEAR_ZERO x4 SKIPPABLE x4", "sums": "ENTROPY x2 SINK_MASS x2 VARIATION NEGATIVE"}
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HEAD_MEASURE_TEXT_H
#define DQ_HEAD_MEASURE_TEXT_H

#include "base/part.h"
#include "engine/head_measure.h"

void dq_head_measure_text_put(FILE *f, const dq_head_measure *m);
/* DQ_DAMAGED: not of that form, or counts below 0 or above 2^46. */
dq_status dq_head_measure_text_get(dq_head_measure *m, const json_t *o, dq_err *err);

#endif
