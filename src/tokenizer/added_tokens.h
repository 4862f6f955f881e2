/* added_tokens: tokens that are found in the text itself, before any merging.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ADDED_TOKENS_H
#define DQ_ADDED_TOKENS_H

#include "base/base.h"

typedef struct dq_added_token {
    const char *text; /* as written in the file */
    size_t len;
    const char *form; /* what is searched: text, normalized when the token says so */
    size_t form_len;
    int32_t id;
    bool special, lstrip, rstrip, single_word, normalized;
    bool is_named_only; /* no file has it with an id */
    bool told_special;  /* its form is the text of a special token: decoding leaves it out */
} dq_added_token;

/* Whether a model of so many rows has none for it, as the files only name it. */
static inline bool dq_added_token_is_beyond(const dq_added_token *t, int64_t rows)
{
    return t->is_named_only && t->id >= rows;
}

/* The tokens that are searched at one stage, sorted by form. */
typedef struct dq_added_tokens {
    const dq_added_token **token; /* [n] */
    size_t n;
    size_t begin[257]; /* tokens whose form begins with byte b: begin[b] .. begin[b + 1] */
} dq_added_tokens;

/* Those of token[n] with that value of `normalized`; the set points at them. Two equal forms are
 * DQ_DAMAGED, as in the reference. */
dq_status dq_added_tokens_new(dq_added_tokens *set, const dq_added_token *token, size_t n,
                              bool normalized, dq_arena *a, dq_err *err);

typedef struct dq_added_tokens_visit {
    dq_status (*gap)(void *arg, const char *text, size_t len, dq_err *err); /* len > 0 */
    dq_status (*token)(void *arg, const dq_added_token *token, dq_err *err);
    void *arg;
} dq_added_tokens_visit;

/* Tells text and tokens of well-formed text[len] in order: leftmost match first, longest there, with
 * the flags applied. Source of the order: tokenizers tokenizer/added_vocabulary.rs find_matches. */
dq_status dq_added_tokens_walk(const dq_added_tokens *set, const char *text, size_t len,
                               const dq_added_tokens_visit *visit, dq_err *err);

#endif
