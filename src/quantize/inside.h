/* What the files of src/quantize share.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_QUANTIZE_INSIDE_H
#define DQ_QUANTIZE_INSIDE_H

#include "quantize/quantize.h"

#include <stdatomic.h>

/* A checkpoint becomes a container: layout, scan (finds values that are not finite, decides the
 * type of scales, hashes the source), then write, which a later process may finish. */

enum { DQ_QUANTIZE_METHODS = 2 };
extern const char *const dq_quantize_methods[DQ_QUANTIZE_METHODS]; /* that a container may have */

dq_weight dq_quantize_tensor_weight(const dq_quantize_tensor *q);
/* The error of w, which has the tensor's shape, against the source; bits do not depend on threads.
 * DQ_RESOURCE. */
dq_status dq_quantize_tensor_error(dq_quant_error *e, const dq_quantize_tensor *q,
                                   const dq_weight *w, dq_err *err);

/* Nominal rates on one thread. */
extern const dq_quantize_rates dq_quantize_rates_usual;

/* Sizes depend on the type of scales: called before and after the scan. */
dq_status dq_quantize_layout_slots(dq_quantizer *q, dq_err *err);

#endif
