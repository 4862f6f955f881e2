/* gguf_vocab: the lists of a tokenizer in a GGUF file, and what tokenizer.json would write for them. For gguf_tokenizer.c.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_GGUF_VOCAB_H
#define DQ_GGUF_VOCAB_H

#include "base/text.h"
#include "checkpoint/gguf.h"

/* Types of tokens. */
enum {
    DQ_GGUF_NORMAL = 1,
    DQ_GGUF_UNKNOWN,
    DQ_GGUF_CONTROL,
    DQ_GGUF_USER_DEFINED,
    DQ_GGUF_UNUSED,
    DQ_GGUF_BYTE
};

typedef struct dq_gguf_vocab {
    dq_gguf_span *token;              /* [n] */
    const dq_gguf_list *type, *score; /* [n]; NULL: not there */
    size_t n;
    /* tokenizer.ggml.merges, [n_merges] of "left right"; NULL: the pairs of SentencePiece */
    dq_gguf_span *merge;
    struct dq_gguf_vocab_pair *pair; /* [n_merges] */
    size_t n_merges;
} dq_gguf_vocab;

/* Tokens and types; with `spm` scores too, and the merges of SentencePiece: all ways in which a token is made of two others,
 * best score first. Otherwise the file's merges. Tables live in the arena, texts in the file. DQ_DAMAGED: a list is missing, of
 * another type or length, or says what none can say;
 * DQ_MISMATCH: a piece of SentencePiece is longer than 1024 bytes, or there are far more merges than published vocabularies
 * have, whose text would have no bound but the square of the file's size. */
dq_status dq_gguf_vocab_read(dq_gguf_vocab *v, const dq_gguf *g, bool spm, dq_arena *a,
                             dq_err *err);
int dq_gguf_vocab_type(const dq_gguf_vocab *v, size_t i);
/* The first token of a type; NULL: none. */
const dq_gguf_span *dq_gguf_vocab_first(const dq_gguf_vocab *v, int type);
/* Whether libllama takes a token of this text for one that ends what is written, whatever its type.
 * Source: llama.cpp src/llama-vocab.cpp (special_eog_ids). */
bool dq_gguf_vocab_ends(const char *text, size_t len);
/* Appends {token: id, ...} and the list of merges, two spaces deeper than `indent`, as json_dumps indents. */
dq_status dq_gguf_vocab_write(dq_strbuf *out, const dq_gguf_vocab *v, int indent, dq_err *err);
dq_status dq_gguf_vocab_write_merges(dq_strbuf *out, const dq_gguf_vocab *v, int indent,
                                     dq_err *err);

#endif
