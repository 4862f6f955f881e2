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
    char unknown[160]; /* the first that a file names and the vocabulary lacks; empty: none */
} dq_stop_ids;

/* Adds what the files of a model name, those that a GGUF file makes and a container keeps alike: eos_token_id of config.json and
 * of generation_config.json, eos_token of tokenizer_config.json and of special_tokens_map.json as tokens of t (NULL: these are
 * left out). Starts from {0}. DQ_DAMAGED: a file is not JSON. */
dq_status dq_stop_ids_add(dq_stop_ids *s, const dq_model *m, const dq_tokenizer *t, int vocab,
                          dq_err *err);
bool dq_stop_ids_has(const dq_stop_ids *s, int32_t id);

#endif
