/* What the files of src/quantize share.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_QUANTIZE_INSIDE_H
#define DQ_QUANTIZE_INSIDE_H

#include "base/work.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/container.h"
#include "model/model.h"
#include "quantize/quantize.h"
#include "tensor/tensor.h"

#include <stdatomic.h>

/* ---- Quantize ----
 * A checkpoint becomes a container. Plan, scan (finds values that are not finite, decides on the
 * type of scales, hashes the source), then write, which a later process may finish. */

extern const char
    *const dq_quantize_methods[]; /* names that a container may have, NULL after the last */

/* What it becomes, without data. */
dq_weight dq_quantize_tensor_weight(const dq_quantize_tensor *q);
/* The error of w, whose shape is that of the tensor, against the source; the same for any number of threads.
 * DQ_RESOURCE. */
dq_status dq_quantize_tensor_error(dq_quant_error *e, const dq_quantize_tensor *q,
                                   const dq_weight *w, dq_err *err);

/* Those of no machine in particular, on one thread. */
extern const dq_quantize_rates dq_quantize_rates_usual;

/* Sizes that depend on the type of scales: once before the scan, once after it. */
dq_status dq_quantize_plan_slots(dq_quantizer *q, dq_err *err);
/* Inside a job. Scans all tensors; DQ_STOPPED only before anything is written. By all ranks, which hash the weight files too:
 * each some of them, and then all know what all have found. */
dq_status dq_quantize_plan_scan(dq_quantizer *q, dq_err *err);
dq_status dq_quantize_plan_hashes(dq_quantizer *q, dq_err *err);
void dq_quantize_plan_progress(dq_quantizer *q, const dq_quantize_progress *p); /* from zero */
/* The work at hand, of which ticks tell: of a kind, or writing a tensor. */
void dq_quantize_plan_begin(dq_quantizer *q, dq_quantize_kind kind, double rate);
void dq_quantize_plan_begin_tensor(dq_quantizer *q, int64_t tensor);
void dq_quantize_plan_advance(void *quantizer, int64_t bytes); /* a dq_quantize_tick */

/* How two lines of a journal differ, for people: settings ("settings {...}") by the first keys that do, others as they
 * stand. In the arena; "" with a failure: see err. */
const char *dq_quantize_recipe_changes(dq_arena *a, const char *found, const char *want,
                                       dq_err *err);

#endif
