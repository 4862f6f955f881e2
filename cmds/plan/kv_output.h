/* kv_output: what dq plan kv writes and prints: the recipe, the document, the tables and the sentences after them.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_OUTPUT_H
#define DQ_KV_OUTPUT_H

#include "plan/plan_cache.h"
#include "settings/inputs.h"

/* A plan with what it was made from. */
typedef struct dq_kv_output_view {
    const dq_plan_kv *plan;
    const dq_input_text *text;
    const dq_logger *logger;
    double pace; /* of a dry run: seconds a token takes */
} dq_kv_output_view;

/* Before a run: windows, units and passes. */
dq_status dq_kv_output_work(const dq_kv_output_view *v, dq_err *err);
/* After it: tables and verdicts. */
dq_status dq_kv_output_print(const dq_kv_output_view *v, dq_err *err);
/* The document dq-plan/1 on stdout; of a dry run without results of a search. */
dq_status dq_kv_output_json(const dq_kv_output_view *v, dq_err *err);
/* What the plan was to do, a new reference. */
json_t *dq_kv_output_settings(const dq_plan_kv *p);
/* The recipe, a new reference: beside what one of weights (NULL: none) says, of its cache too (heads, a policy), but for widths
 * and codes. What it lacks where memory ends, dq_json_complete tells. */
json_t *dq_kv_output_recipe_of(const dq_plan_kv_settings *s, const json_t *weights,
                               const char *widths);
/* What scored tokens read as codes of all that they read, where every token is there. */
double dq_kv_output_coded(const dq_plan_kv *p);

#endif
