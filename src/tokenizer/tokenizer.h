/* tokenizer: tokenizer.json with a BPE model (byte-level, or characters with byte fallback) or a
 * Unigram model. Ids and decoded text equal those of the HF tokenizers library; where files beside it name added tokens, those
 * of transformers' PreTrainedTokenizerFast, which gives them to that library.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TOKENIZER_H
#define DQ_TOKENIZER_H

#include "base/json.h"

typedef struct dq_tokenizer dq_tokenizer;

/* The files of a folder, in the order of dq_tokenizer_file: all but the first may be missing (s: NULL). */
enum { DQ_TOKENIZER_FILES = 4 };
extern const char *const dq_tokenizer_file[DQ_TOKENIZER_FILES];
typedef struct dq_tokenizer_text {
    const char *s;
    size_t len;
} dq_tokenizer_text;

/* Any normalizer, pre-tokenizer, model, post-processor or decoder step that is not implemented is
 * DQ_MISMATCH naming the step; nothing is skipped silently. Flags of added tokens are those of added_tokens_decoder
 * in tokenizer_config.json where it is there; else tokens of added_tokens.json are added, and what
 * special_tokens_map.json names stands before what tokenizer_config.json does. Tokens that are named only (eos_token,
 * extra_special_tokens, pad_token of "padding" in tokenizer.json ...) are added too; with split_special_tokens no special
 * one is found in a text. The texts may be freed afterwards; *out is ended by dq_tokenizer_free.
 * DQ_DAMAGED: not JSON, wrong types, ids or merges that contradict each other.
 * Source: transformers tokenization_utils_base.py (from_pretrained), tokenization_utils_tokenizers.py (__init__). */
dq_status dq_tokenizer_load_files(dq_tokenizer **out,
                                  const dq_tokenizer_text text[DQ_TOKENIZER_FILES], dq_err *err);
/* From tokenizer.json and tokenizer_config.json (NULL: none) alone. */
dq_status dq_tokenizer_load(dq_tokenizer **out, const char *json, size_t len, const char *config,
                            size_t config_len, dq_err *err);
void dq_tokenizer_free(dq_tokenizer *t);       /* NULL allowed */
int dq_tokenizer_vocab(const dq_tokenizer *t); /* highest id + 1, added tokens included */

/* SPECIAL, encoding: add the tokens of the template (BOS ...), decoding: keep special tokens. BOS, with it: where the template
 * begins with no token, the bos_token of tokenizer_config.json stands there. */
enum { DQ_TOK_SPECIAL = 1, DQ_TOK_BOS = 2 };
/* Ids of text[len]; *ids is a block that the caller ends with dq_block_free. The text is read with
 * one U+FFFD per maximal ill-formed subpart; *first_bad (may be NULL) is the offset of the first
 * one, -1 when there is none, *n_bad their count. Safe from several threads at once. */
dq_status dq_tokenizer_encode(const dq_tokenizer *t, const char *text, size_t len, unsigned flags,
                              int32_t **ids, int64_t *n, int64_t *first_bad, int64_t *n_bad,
                              dq_err *err);
/* The first of these tokens alone, at least `max` where there are as many; 0: all. What is after them is not encoded. */
dq_status dq_tokenizer_encode_first(const dq_tokenizer *t, const char *text, size_t len,
                                    unsigned flags, int64_t max, int32_t **ids, int64_t *n,
                                    int64_t *first_bad, int64_t *n_bad, dq_err *err);
/* Text of ids[n] as the file's decoder makes it; without a decoder the tokens have one space between
 * them. An id that no token has is passed over, as in the reference. *text is a block that the
 * caller ends with dq_block_free; bytes of tokens that are no UTF-8 come out as U+FFFD. */
dq_status dq_tokenizer_decode(const dq_tokenizer *t, const int32_t *ids, int64_t n, unsigned flags,
                              char **text, size_t *len, dq_err *err);
/* Number of tokens that encoding puts before and after a text. */
void dq_tokenizer_template(const dq_tokenizer *t, unsigned flags, int *n_before, int *n_after);
/* The added tokens in the form of "added_tokens" of tokenizer.json, but for those without a row that no file gives an id; the
 * caller ends it. DQ_RESOURCE. */
dq_status dq_tokenizer_added(json_t **out, const dq_tokenizer *t, int64_t rows, dq_err *err);
/* The id of a token by its text as the file writes it, an added one first; -1: there is none. */
int32_t dq_tokenizer_id(const dq_tokenizer *t, const char *text, size_t len);
/* The first of those before a text, or -1. */
int32_t dq_tokenizer_bos(const dq_tokenizer *t, unsigned flags);
/* What stands before an empty context: bos_token, else eos_token, which the files beside tokenizer.json name; -1. */
int32_t dq_tokenizer_prefix(const dq_tokenizer *t);
/* Bytes of one token as they appear in text (U+2581 of a vocabulary of characters as a space, <0xHH>
 * with byte fallback as that byte), owned by t; NULL for an unknown id. */
const char *dq_tokenizer_piece(const dq_tokenizer *t, int32_t id, size_t *len);
/* Whether both give the same tokens for every text and the same text for ids, by what was loaded, not by how files write it:
 * vocabulary, merges or scores, steps, added tokens and template; tokens that are named only do not count where the models
 * have no such `rows`. Whoever puts dq_tokenizer_prefix before ids compares it too. False is no proof of a difference. */
bool dq_tokenizer_same(const dq_tokenizer *a, const dq_tokenizer *b, int64_t rows);

/* DQ_MISMATCH where a model that knows `vocab` tokens lacks one of ids[n]. */
dq_status dq_tokenizer_check_ids(const int32_t *ids, int64_t n, int64_t vocab, dq_err *err);

#endif
