/* eval_same: which caches of a sweep are the same, whatever they are called: a policy matters only where something is left to
 * choose.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_SAME_H
#define DQ_EVAL_SAME_H

#include "eval/eval.h"

/* What of its contexts a row's cache keeps. */
typedef enum dq_eval_kept {
    DQ_EVAL_KEPT_ALL, /* every token: nothing is evicted, or no context is longer than its budget */
    DQ_EVAL_KEPT_LEAST, /* no budget is more than sink + recent, so these tokens and no others */
    DQ_EVAL_KEPT_CHOSEN /* what a policy chooses, in some context at least */
} dq_eval_kept;

/* By the lengths of the row's contexts, of prompts with answers by the most that they can have; of a finished row also by what
 * was measured. */
dq_eval_kept dq_eval_kept_of(const dq_eval *e, const dq_eval_row *row);
/* The row's cache as it runs: where nothing is left to choose, with a policy that needs no numbers. */
dq_kv_spec dq_eval_effective_kv(const dq_eval *e, const dq_eval_row *row);
/* Whether two rows with the same tokens keep the same tokens in the same form. */
bool dq_eval_same_cache(const dq_eval *e, const dq_eval_row *a, const dq_eval_row *b);
/* The same, and all that is counted of the contexts is the same too. */
bool dq_eval_same_numbers(const dq_eval *e, const dq_eval_row *a, const dq_eval_row *b);

#endif
