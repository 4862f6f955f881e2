/* head_order_trial: does a checkpoint read better with another order of heads? A wrong order loads without a
 * word, because the shapes are the same; its text likelihood is what gives it away.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HEAD_ORDER_TRIAL_H
#define DQ_HEAD_ORDER_TRIAL_H

#include "record/record.h"
#include "settings/inputs.h"

/* Scores the first 512 tokens of a text (NULL: the built-in one) with every head order of the
 * checkpoint's shapes. *out is {"model", "own", "better", "n", "n_clusters", "maps": [{"head_order", "nll_nats",
 * "minus_own", "is"}]}; better is null or the map whose NLL is lower by more than 0.02 nats with all of the
 * paired difference's 95 % interval, blocks of 32 tokens being its clusters; "is" says of every other map "better",
 * "not better" or "inconclusive". Ended by json_decref. */
dq_status dq_head_order_trial_try(json_t **out, const char *model, const char *text_path,
                                  dq_logger *logger, dq_err *err);
/* The same as a table with a sentence below, on stdout. */
dq_status dq_head_order_trial_print(const json_t *tried, dq_err *err);

#endif
