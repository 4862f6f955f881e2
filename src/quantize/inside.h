/* What the files of src/quantize share.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_QUANTIZE_INSIDE_H
#define DQ_QUANTIZE_INSIDE_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/container.h"
#include "model/model.h"
#include "quantize/quantize.h"
#include "tensor/tensor.h"
#include "work/work.h"

#include <stdatomic.h>

/* A checkpoint becomes a container: plan, scan (finds values that are not finite, decides the type
 * of scales, hashes the source), then write, which a later process may finish. */

extern const char
    *const dq_quantize_methods[]; /* names that a container may have, NULL after the last */

dq_weight dq_quantize_tensor_weight(const dq_quantize_tensor *q);
/* The error of w, which has the tensor's shape, against the source; bits do not depend on threads.
 * DQ_RESOURCE. */
dq_status dq_quantize_tensor_error(dq_quant_error *e, const dq_quantize_tensor *q,
                                   const dq_weight *w, dq_err *err);

/* Nominal rates on one thread. */
extern const dq_quantize_rates dq_quantize_rates_usual;

/* Sizes depend on the type of scales: called before and after the scan. */
dq_status dq_quantize_plan_slots(dq_quantizer *q, dq_err *err);
/* By all ranks, inside a job: scans tensors and hashes weight files, each rank some of them, and
 * shares what is found. DQ_STOPPED only before anything is written. */
dq_status dq_quantize_plan_scan(dq_quantizer *q, dq_err *err);
dq_status dq_quantize_plan_hashes(dq_quantizer *q, dq_err *err);
void dq_quantize_plan_progress(dq_quantizer *q, const dq_quantize_progress *p); /* from zero */
/* Sets the current work, for ticks: its kind, or writing a tensor. */
void dq_quantize_plan_begin(dq_quantizer *q, dq_quantize_kind kind, double rate);
void dq_quantize_plan_begin_tensor(dq_quantizer *q, int64_t tensor);
void dq_quantize_plan_advance(void *quantizer, int64_t bytes); /* a dq_quantize_tick */

#endif
