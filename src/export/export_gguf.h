/* export_gguf: the form of one GGUF file of a Llama. Private to export.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EXPORT_GGUF_H
#define DQ_EXPORT_GGUF_H

#include "checkpoint/gguf_write.h"
#include "export/export_plan.h"

/* Compares the container with its hashes: types of tensors follow from scales. DQ_MISMATCH by name: a model that is no plain
 * Llama. */
dq_status dq_export_gguf_check(dq_export *x, dq_err *err);
/* Plans a tensor as plan_tensor of export_plan.c does; nothing for a head that is the embedding and stored besides. DQ_MISMATCH
 * names a tensor whose codes no type holds, unless values are asked for. */
dq_status dq_export_gguf_tensor(dq_export *x, int64_t row, dq_err *err);
/* What stands besides the container's tensors. */
dq_status dq_export_gguf_more(dq_export *x, dq_err *err);
/* The text before the data, in the arena. */
dq_status dq_export_gguf_head(const char **out, size_t *len, dq_export *x, dq_err *err);

/* Metadata of model and tokenizer; *divisors gets those of rotary frequencies, [head_dim / 2] in the arena, or NULL. Defined in
 * export_gguf_keys.c. */
dq_status dq_export_gguf_keys(dq_gguf_fields *f, dq_export *x, uint32_t file_type, dq_err *err);
dq_status dq_export_gguf_divisors(const float **divisors, dq_export *x, dq_err *err);

#endif
