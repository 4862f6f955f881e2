/* tokenizer_lists: the two long lists of a BPE model in tokenizer.json, read without a tree of JSON values. For
 * tokenizer_load.c and tokenizer_vocab.c.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TOKENIZER_LISTS_H
#define DQ_TOKENIZER_LISTS_H

#include "base/json.h"

enum { DQ_TOKENIZER_MAX_ID = INT32_MAX - 1 };

typedef struct dq_tokenizer_token {
    const char *s; /* [len], as the file writes it, escapes undone */
    size_t len;
    int32_t id;
} dq_tokenizer_token;

typedef struct dq_tokenizer_merge {
    const char *text[2]; /* the halves */
    size_t len[2];
} dq_tokenizer_merge;

typedef struct dq_tokenizer_lists {
    dq_tokenizer_token
        *token; /* [n_tokens] in the file's order; texts differ once they are in a map */
    dq_tokenizer_merge
        *merge; /* [n_merges] in the file's order; lines that begin with #version have none */
    size_t n_tokens, n_merges;
} dq_tokenizer_lists;

/* Finds model.vocab, an object of texts and ids, and model.merges, a list of texts or of pairs, in json[len], which is
 * UTF-8. *rest is the document with null in their places. Anything else than the plainest form (another order of keys is
 * plain) gives false, and the document has to be read as any other. Texts point into json or the arena. */
bool dq_tokenizer_lists_scan(dq_tokenizer_lists *out, char **rest, size_t *rest_len,
                             const char *json, size_t len, dq_arena *a);
/* The same lists out of "model", with all errors by name. */
dq_status dq_tokenizer_lists_of_tokens(dq_tokenizer_lists *out, json_t *vocab, dq_arena *a,
                                       dq_err *err);
dq_status dq_tokenizer_lists_of_merges(dq_tokenizer_lists *out, const json_t *merges, dq_arena *a,
                                       dq_err *err);

#endif
