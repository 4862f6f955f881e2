/* stop_ids: the ids that end what a model writes.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_STOP_IDS_H
#define DQ_STOP_IDS_H

#include "model/model.h"
#include "tokenizer/tokenizer.h"

enum { DQ_STOP_IDS = 64 };
typedef struct dq_stop_ids {
    int32_t id[DQ_STOP_IDS]; /* [n], each once, of one vocabulary */
    int64_t n;
} dq_stop_ids;

/* Adds what a model names: eos_token_id of config.json and, in a folder, of generation_config.json; the EOS of t
 * (dq_tokenizer_eos; NULL: none). Ids from `vocab` on are left out. Starts from {0}. */
dq_status dq_stop_ids_add(dq_stop_ids *s, const dq_model *m, const dq_tokenizer *t, int vocab,
                          dq_err *err);
bool dq_stop_ids_has(const dq_stop_ids *s, int32_t id);

#endif
