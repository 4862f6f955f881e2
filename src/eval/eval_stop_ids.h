/* eval_stop_ids: what ends a text that a model goes on with.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_STOP_IDS_H
#define DQ_EVAL_STOP_IDS_H

#include "eval/eval.h"

/* Ids that end a continuation of a row of `model`: eos_token_id of config.json and, in a folder, of
 * generation_config.json; eos_token of tokenizer_config.json; its own and those of the model it is
 * compared with, so that paired rows end alike. The list is in the arena. */
dq_status dq_eval_stop_ids(const dq_eval *e, int model, const int32_t **ids, int64_t *n,
                           dq_arena *a, dq_err *err);

#endif
