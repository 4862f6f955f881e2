/* plan_round: one matrix rounded in memory, to be put in the place of a model's.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_ROUND_H
#define DQ_PLAN_ROUND_H

#include "calibrate/gptq.h"
#include "tensor/tensor.h"

/* The values of w[rows, cols], freed by dq_block_free. DQ_DAMAGED for one that is not finite; DQ_RESOURCE. *out is NULL or to be
 * freed after a failure too. */
dq_status dq_plan_round_values(float **out, const dq_weight *w, dq_err *err);
/* F32 where F16 cannot hold a scale that may come of some group, as a container of it would have. */
dq_dtype dq_plan_round_scale(const float *w, int64_t rows, int64_t cols, const dq_quant_spec *spec);
/* To the nearest codes: every input is taken to be as large as every other. Adds to *loss. DQ_RESOURCE. */
dq_status dq_plan_round_nearest(dq_coded *out, dq_gptq_loss *loss, const float *w, int64_t rows,
                                int64_t cols, const dq_quant_spec *spec, dq_err *err);

#endif
