/* eval_long: items that have more tokens than a model has positions.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_LONG_H
#define DQ_EVAL_LONG_H

#include "eval/eval.h"

enum { DQ_EVAL_LONGS = 3 };
extern const char *const dq_eval_long_name[1 + DQ_EVAL_LONGS]; /* "", "error", "skip", "cut" */

/* After all models are open and before rows are added: counts the items of a source that one of the models
 * cannot hold. error: DQ_MISMATCH with their number and the first of them. skip: they leave the source, for
 * all models, so that every row has the same items; all of them is DQ_MISMATCH. cut: nothing, encoding
 * cuts. */
dq_status dq_eval_long_fit(dq_eval *e, int source, dq_err *err);

#endif
