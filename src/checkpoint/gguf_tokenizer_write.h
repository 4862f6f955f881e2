/* gguf_tokenizer_write: the tokenizer of a Hugging Face folder as the keys of a GGUF file, with which llama.cpp gives the same ids;
 * the other way of gguf_config.h.
 * Source: llama.cpp convert_hf_to_gguf.py (get_vocab_base, _set_vocab_sentencepiece, SpecialVocab) and src/llama-vocab.cpp
 * (what is made of the keys).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_GGUF_TOKENIZER_WRITE_H
#define DQ_GGUF_TOKENIZER_WRITE_H

#include "checkpoint/gguf_write.h"

/* The texts of a folder; config.json is an object, the other ones but tokenizer.json may be NULL. chat: those of chat_template.jinja,
 * which stands before what tokenizer_config.json has; NULL: there is none. */
typedef struct dq_gguf_tokenizer_files {
    json_t *tokenizer, *tokenizer_config, *config, *generation_config, *special_tokens_map;
    const char *chat;
    size_t chat_len;
} dq_gguf_tokenizer_files;

/* Byte-level BPE with a pre-tokenizer that has a name becomes `gpt2`, BPE with byte fallback `llama`. n_tokens: rows of the
 * embedding, of which those without a token become unused ones. DQ_MISMATCH by name: what llama.cpp would split, normalize or
 * merge otherwise. Files are those of a tokenizer that dq_tokenizer_load reads: what it refuses is not looked for again. */
dq_status dq_gguf_tokenizer_write(dq_gguf_fields *f, const dq_gguf_tokenizer_files *files,
                                  int64_t n_tokens, dq_err *err);

#endif
