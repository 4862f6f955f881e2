/* tokenizer_impl: what loading fills and encoding reads; for tokenizer*.c only.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TOKENIZER_IMPL_H
#define DQ_TOKENIZER_IMPL_H

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_lists.h"
#include "tokenizer/unigram.h"

typedef struct dq_tokenizer_entry {
    const char *text; /* bytes as they stand in text */
    size_t len;
    int32_t id;
} dq_tokenizer_entry;

/* Read-only once loaded. */
struct dq_tokenizer {
    dq_arena *arena;           /* owns everything but the compiled patterns */
    dq_tokenizer_entry *piece; /* [n_pieces] by rising id, ids differ */
    size_t n_pieces;
    /* [n_written] by rising id: tokens that the file writes otherwise than text has them
     * (byte-level, U+2581 for a space, <0xHH>), as it writes them */
    dq_tokenizer_entry *written;
    size_t n_written;
    dq_added_token *added; /* [n_added] */
    size_t n_added;
    dq_added_tokens in_raw, in_normalized; /* searched before and after the normalizer */
    dq_normalizer normalizer;
    dq_pretokenizer pre;
    dq_decoder decoder;
    bool is_unigram; /* which of the two models it is */
    dq_bpe bpe;
    dq_unigram unigram;
    const char *steps;       /* of normalizer, pre-tokenizer and decoder, canonical, to compare */
    int32_t *before, *after; /* the template's tokens */
    int n_before, n_after;
    int32_t bos, prefix; /* bos_token, and that or eos_token; -1 */
};

/* Of two entries, for qsort and bsearch. */
int dq_tokenizer_by_id(const void *x, const void *y);
/* By rising id; those of most files are. */
void dq_tokenizer_sort(dq_tokenizer_entry *entry, size_t n);
/* NULL: no such id. */
const dq_tokenizer_entry *dq_tokenizer_find(const dq_tokenizer *t, int32_t id);

/* Fills t->steps; takes idle members out of the document. */
dq_status dq_tokenizer_keep_steps(dq_tokenizer *t, json_t *root, dq_err *err);

/* Loading, in this order (tokenizer_vocab.c): dq_tokenizer_load_model in any order with the normalizer, the
 * pre-tokenizer and the decoder; then the added tokens; then dq_tokenizer_load_pieces, which reads
 * t->pre.byte_level. `scratch` dies after loading. */
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
/* Appends the model's tokens to t->piece (unsorted); room for `extra` more is left. `vocab` is the
 * list of a Unigram model. */
dq_status dq_tokenizer_load_pieces(dq_tokenizer_loader *l, const json_t *vocab, size_t extra,
                                   dq_err *err);

#endif
