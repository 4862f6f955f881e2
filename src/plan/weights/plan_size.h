/* plan_size: widths for a number of bits per weight, by role, without measuring the model: by what each role's codes cost on a
 * model on which it was measured (results/real, roles.csv). A plan (plan_weights.h) measures the model itself.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_SIZE_H
#define DQ_PLAN_SIZE_H

#include "plan/plan_alloc.h"
#include "quantize/quantize.h"

typedef struct dq_plan_size {
    const char *name; /* "balanced" */
    double bits;      /* per weight, at most, over all parameters */
} dq_plan_size;
enum { DQ_PLAN_SIZES = 3, DQ_PLAN_SIZE_USUAL = 1 };
extern const dq_plan_size dq_plan_sizes[DQ_PLAN_SIZES];

/* The widths of all tensors go into s, whose mode is that of projections: bits, embed_bits, head_bits and, for roles of other
 * widths, s->rules = *rules, which the caller ends with json_decref. DQ_USAGE where the narrowest codes have more bits. */
dq_status dq_plan_size_choose(dq_quantize_settings *s, json_t **rules, const char *model,
                              double bits, dq_err *err);

#endif
