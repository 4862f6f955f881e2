/* gguf_config: the metadata of a GGUF file as the files of a Hugging Face folder. For gguf_model.c.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_GGUF_CONFIG_H
#define DQ_GGUF_CONFIG_H

#include "base/text.h"
#include "checkpoint/gguf.h"

/* DQ_MISMATCH by name: the keys are not those of a language model, or of another architecture than `llama`. */
dq_status dq_gguf_config_kind(const json_t *fields, dq_err *err);
/* What config.json of a Llama would say; the caller ends it with json_decref. DQ_MISMATCH by name: a key whose value changes the
 * model in a way dq does not run. `heads`, `kv_heads`: for whoever brings rows back into order. */
dq_status dq_gguf_config(json_t **out, int64_t *heads, int64_t *kv_heads, const dq_gguf *g,
                         dq_err *err);
/* What tokenizer.json, tokenizer_config.json and generation_config.json would say, blocks that the caller ends with
 * dq_block_free; all empty: the file has no tokenizer, the last alone: no token ends a text. Those that do are all for which
 * libllama's llama_vocab_is_eog is true. DQ_MISMATCH by name: a model or a pre-tokenizer that is not known. */
dq_status dq_gguf_config_tokenizer(dq_strbuf *tokenizer, dq_strbuf *config, dq_strbuf *generation,
                                   const dq_gguf *g, dq_err *err);

#endif
