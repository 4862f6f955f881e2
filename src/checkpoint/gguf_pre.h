/* gguf_pre: pre-tokenizers of byte-level BPE by their names in GGUF files (tokenizer.ggml.pre).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_GGUF_PRE_H
#define DQ_GGUF_PRE_H

#include "checkpoint/gguf.h"

typedef struct dq_gguf_pre {
    const char *name;    /* tokenizer.ggml.pre */
    bool digits;         /* each digit on its own, then GPT-2's pattern */
    const char *pattern; /* NULL: GPT-2's */
    bool nfc;            /* text is brought to that form first */
    bool ignore_merges;  /* a word that is a token is one */
    bool add_bos;        /* where the file does not say */
} dq_gguf_pre;

/* The one that the metadata of a file name; DQ_MISMATCH by name: none, or one that is not known. */
dq_status dq_gguf_pre_find(const dq_gguf_pre **out, const json_t *fields, dq_err *err);
/* As tokenizer.json has it; the caller ends it with json_decref. */
json_t *dq_gguf_pre_json(const dq_gguf_pre *p);
/* ByteLevel; with a pattern of its own it splits nothing itself. */
json_t *dq_gguf_pre_byte_level(bool use_regex);
/* The first that splits as a pre-tokenizer of tokenizer.json does (merges are another matter); NULL: none that is known. */
const dq_gguf_pre *dq_gguf_pre_of(json_t *pre_tokenizer);

#endif
