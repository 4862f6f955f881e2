/* kind_needle_run: the passes after dq_eval_needle.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KIND_NEEDLE_RUN_H
#define DQ_KIND_NEEDLE_RUN_H

#include "eval/kind_needle.h"

/* dq_eval_kind.score */
dq_status dq_needle_score(dq_eval *e, dq_eval_row *row, dq_scorer *s, int64_t begin, int64_t end,
                          dq_err *err);

#endif
