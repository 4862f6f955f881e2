/* weights_output: what dq plan weights writes and prints: the recipe, the document, the tables and the sentences after them.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_WEIGHTS_OUTPUT_H
#define DQ_WEIGHTS_OUTPUT_H

#include "plan/plan_weights.h"
#include "record/record.h"

/* The file of a part of the text. */
const char *dq_weights_output_file(const dq_plan_weights *p, int text);
/* Before a run: parts of the text, tensors and sizes; with arithmetic, scratch and memory. */
void dq_weights_output_inputs(const dq_plan_weights *p);
/* By all ranks (base/ranks.h), of which 0 prints what counts. */
dq_status dq_weights_output_work(const dq_plan_weights *p, dq_err *err);
/* After it: tables and verdict. */
dq_status dq_weights_output_print(const dq_plan_weights *p, dq_err *err);
/* What a recipe tells of the plan: dq_plan_weights_settings.told. budget: a const char **, as it was given. */
json_t *dq_weights_output_told(void *budget, const dq_plan_weights *p);
/* The recipe file, to p->set.out; the document dq-plan/1 on stdout. budget: as it was given. */
dq_status dq_weights_output_recipe(const dq_plan_weights *p, const char *budget, dq_err *err);
dq_status dq_weights_output_json(const dq_plan_weights *p, const char *budget,
                                 const dq_logger *logger, dq_err *err);
/* DQ_GATE for a budget that was missed, with a sentence. */
dq_status dq_weights_output_verdict(const dq_plan_weights *p, const char *budget, dq_err *err);

#endif
