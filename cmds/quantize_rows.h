/* quantize_rows: the tensors of dq quantize as tables on stdout.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_QUANTIZE_ROWS_H
#define DQ_QUANTIZE_ROWS_H

#include "quantize/quantize.h"

/* One line a tensor and an empty one. loss: with that of a calibrated method. DQ_RESOURCE. */
dq_status dq_quantize_rows_print(const dq_quantizer *q, bool loss, dq_err *err);
/* One line for tensors whose names differ in their first number only and that are stored alike:
 * "model.layers.0-29.mlp.up_proj.weight". Sizes are of all of them. DQ_RESOURCE. */
dq_status dq_quantize_rows_folded(const dq_quantizer *q, dq_err *err);

#endif
