/* fewshot: solved examples before the contexts of items, drawn and put together as
 * lm-evaluation-harness does it.
 * Source: lm_eval/api/samplers.py ContextSampler, lm_eval/api/task.py fewshot_context (behaviour).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_FEWSHOT_H
#define DQ_FEWSHOT_H

#include "tasks/tasks.h"

enum { DQ_FEWSHOT_SEED = 1234 }; /* the harness's own */

/* Puts n examples of `pool` before every context of `items`: for each item in turn n are drawn (n + 1 where
 * the task draws a spare), all from one stream of `seed`. None of them has the item's own content; *n_own: items that
 * one was taken out for. Each is its context, its answer and two line ends. Texts live in the arena; `pool` may go
 * afterwards. DQ_MISMATCH when the pool is too small; names no file. */
dq_status dq_fewshot(dq_items *items, int64_t *n_own, const dq_items *pool, const dq_task *task,
                     int64_t n, uint64_t seed, dq_arena *a, dq_err *err);

#endif
