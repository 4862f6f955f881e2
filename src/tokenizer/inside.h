/* What the files of src/tokenizer share.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TOKENIZER_INSIDE_H
#define DQ_TOKENIZER_INSIDE_H

#include "base/base.h"
#include "base/json.h"
#include "tokenizer/regex.h"
#include "tokenizer/tokenizer.h"

#include <pcre2.h>

typedef struct dq_id_list {
    int32_t *id; /* [n], a block; the holder may take it and put NULL here */
    size_t n, capacity;
} dq_id_list;

dq_status dq_id_list_reserve(dq_id_list *ids, size_t more, dq_err *err);
dq_status dq_id_list_push(dq_id_list *ids, int32_t id, dq_err *err);

/* Start symbols of the character c[len], from its token `id` or -1, byte_id and unknown. */
dq_bpe_start dq_bpe_start_of(const dq_bpe *bpe, int32_t id, const char *c, size_t len);
/* A later merge of the same pair replaces the earlier one and its rank, as in the reference. */
dq_status dq_bpe_merge_put(dq_bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t id,
                           dq_err *err);

/* Belongs to one thread. */
typedef struct dq_bpe_run {
    const dq_bpe *bpe;
    struct dq_bpe_cached *cache; /* recent short words and their ids */
    size_t cache_size, cache_used;
    void *scratch; /* for long words */
    size_t scratch_symbols;
} dq_bpe_run;

/* Whether merging alone turns a short word into token `id`, which then belongs into bpe->known; ids
 * is scratch. */
dq_status dq_bpe_makes(bool *yes, dq_bpe_run *run, dq_id_list *ids, const char *word, size_t len,
                       int32_t id, dq_err *err);
/* To be called after failures too. *run is {.bpe} before the first word. */
void dq_bpe_run_end(dq_bpe_run *run);
/* Appends the ids of one word of well-formed UTF-8: lowest rank first, then leftmost, in O(n log
 * n). Source of the order: Sennrich et al. 2016, tokenizers models/bpe/word.rs. */
dq_status dq_bpe_word(dq_bpe_run *run, dq_id_list *ids, const char *word, size_t len, dq_err *err);

/* A pattern that backtracks without end is DQ_RESOURCE after a bounded number of steps, whatever
 * the text; signals are seen on the way. Next match in text[len] as the reference's iterator tells
 * them: an empty match counts too, except right after a match. A text begins with dq_regex_begin;
 * *found is false after the last one. */
dq_status dq_regex_begin(dq_regex_matcher *m, size_t len, dq_err *err);
dq_status dq_regex_next(dq_regex_matcher *m, const dq_regex *r, const char *text, size_t len,
                        size_t *begin, size_t *end, bool *found, dq_err *err);
void dq_regex_end(dq_regex_matcher *m);

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

/* Finds model.vocab, an object of texts and ids, and model.merges, a list of texts or of pairs, in
 * json[len], which is UTF-8. *rest is the document with null in their places. Anything else than
 * the plainest form (another order of keys is plain) gives false, and the document has to be read
 * as any other. Texts point into json or the arena. */
bool dq_tokenizer_lists_scan(dq_tokenizer_lists *out, char **rest, size_t *rest_len,
                             const char *json, size_t len, dq_arena *a);

typedef struct dq_unigram_piece {
    const char *text;
    size_t len;
    int32_t id;
} dq_unigram_piece;

/* Builds the trie of piece[n], which it sorts; texts must differ. Nodes belong to the arena. */
dq_status dq_unigram_trie(dq_unigram *u, dq_unigram_piece *piece, size_t n, dq_arena *a,
                          dq_err *err);

/* Belongs to one thread. */
typedef struct dq_unigram_run {
    const dq_unigram *u;
    struct dq_unigram_best *best; /* [capacity], a block */
    size_t capacity;
} dq_unigram_run;

/* *run is {.u} before the first word; after a failure it can only be ended. */
void dq_unigram_run_end(dq_unigram_run *run);
/* Appends the ids of one word of well-formed UTF-8. Among equal sums the piece that begins first
 * wins, as in the reference. Time is linear in the word; memory grows with the longest stretch that
 * some piece spans at every place, not with the word.
 * Source: Kudo 2018; the order of the sums: tokenizers models/unigram/model.rs. */
dq_status dq_unigram_word(dq_unigram_run *run, dq_id_list *ids, const char *word, size_t len,
                          dq_err *err);

/* Loading, in this order (vocabulary.c): dq_tokenizer_load_model in any order with the normalizer,
 * the pre-tokenizer and the decoder; then the added tokens; then dq_tokenizer_load_pieces, which
 * reads t->pre.byte_level. `scratch` dies after loading. */
typedef struct dq_tokenizer_loader {
    dq_tokenizer *t;
    dq_arena *scratch;
    bool listed;              /* the lists are there; otherwise they are in the document */
    dq_tokenizer_lists lists; /* of a BPE model */
    json_t *root[4];          /* of the files; the last two NULL where they are not read */
    dq_strmap vocab;          /* token of the model, as written -> id */
    dq_strmap by_text;        /* added token -> index in t->added */
    size_t vocab_count;       /* tokens of the model */
    size_t next_joined;       /* token that the next merge may make; index of lists.token */
    json_t *own;              /* tokens under keys of one model */
    const json_t **named;     /* [n_named] tokens that the files beside tokenizer.json name */
    size_t n_named;
    dq_strmap how_named;      /* their texts -> how */
    int64_t next_id;          /* of an added token that the model does not know */
    const char *lost_unknown; /* unk_token that the vocabulary lacks, or NULL */
    const char *file;         /* whose contents are being read, for messages */
} dq_tokenizer_loader;

dq_status dq_tokenizer_load_model(dq_tokenizer_loader *l, json_t *model, dq_err *err);
/* Appends the model's tokens to t->piece and t->written, unsorted, with space for `extra` more.
 * `vocab`: the list of a Unigram model. */
dq_status dq_tokenizer_load_pieces(dq_tokenizer_loader *l, const json_t *vocab, size_t extra,
                                   dq_err *err);

#endif
