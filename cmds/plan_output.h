/* plan_output: what dq plan writes and prints: the recipe, the document, the tables and the sentences after them.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_OUTPUT_H
#define DQ_PLAN_OUTPUT_H

#include "cmds/cli/logger.h"
#include "plan/plan.h"

/* The file of a part of the text. */
const char *dq_plan_output_file(const dq_plan *p, int text);
/* Before a run: parts of the text, tensors and sizes; with arithmetic, scratch and memory. */
void dq_plan_output_inputs(const dq_plan *p);
dq_status dq_plan_output_work(const dq_plan *p, dq_err *err);
/* After it: tables and verdict. */
dq_status dq_plan_output_print(const dq_plan *p, dq_err *err);
/* What a recipe tells of the plan: dq_plan_settings.told. budget: a const char **, as it was given. */
json_t *dq_plan_output_told(void *budget, const dq_plan *p);
/* The recipe file, to p->set.out; the document dq-plan/1 on stdout. budget: as it was given. */
dq_status dq_plan_output_recipe(const dq_plan *p, const char *budget, dq_err *err);
dq_status dq_plan_output_json(const dq_plan *p, const char *budget, const dq_logger *logger,
                              dq_err *err);
/* DQ_GATE for a budget that was missed, with a sentence. */
dq_status dq_plan_output_verdict(const dq_plan *p, const char *budget, dq_err *err);

#endif
