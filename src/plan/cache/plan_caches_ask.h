/* plan_caches_ask: what answers to questions of multiple choice lack in the caches of plan_caches.h: contexts are compressed, then
 * choices scored, as dq_eval does it.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_CACHES_ASK_H
#define DQ_PLAN_CACHES_ASK_H

#include "plan/cache/plan_caches.h"

/* Reads in->questions with the model's tokenizer. */
dq_status dq_plan_caches_ask_open(dq_plan_caches *c, dq_err *err);
/* Takes a line of the journal: {KEY: name, "question": the first, "lack": [...]}. */
dq_status dq_plan_caches_ask_take(dq_plan_caches *c, const json_t *line, dq_err *err);
/* Asks cache[n] all questions, where that is not done yet. What is finished stays after DQ_STOPPED. By all ranks. */
dq_status dq_plan_caches_ask_run(dq_plan_caches *c, const int *cache, int n, const char *what,
                                 dq_err *err);
/* So many caches more are expected to be asked. */
void dq_plan_caches_ask_expect(dq_plan_caches *c, int64_t caches);
/* Of a cache that has been asked. */
dq_status dq_plan_caches_ask_mean(dq_mean *out, const dq_plan_caches *c, int cache, dq_err *err);

#endif
