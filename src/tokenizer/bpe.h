/* bpe: byte-pair merging of words, which begin as bytes (byte-level) or as characters.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_BPE_H
#define DQ_BPE_H

#include "base/base.h"
#include "tokenizer/id_list.h"

/* Symbols that one byte or character of a word begins as. */
typedef struct dq_bpe_start {
    int32_t id[4];
    uint8_t n; /* 0: dropped */
    enum { DQ_START_TOKEN, DQ_START_BYTES, DQ_START_UNKNOWN } kind;
} dq_bpe_start;

/* Read-only while words are encoded: any number of runs may share it. */
typedef struct dq_bpe {
    bool byte_level;         /* words begin as bytes, else as characters */
    dq_bpe_start start[256]; /* by byte; words of characters: ASCII only */
    dq_strmap chars;         /* words of characters: the tokens of one other character */
    int32_t byte_id[256];    /* of <0xHH>, -1: none; all -1 without byte fallback */
    int32_t unknown;         /* -1: none */
    bool fuse_unknown;
    bool cuts;        /* no merge reaches over the start of a run of U+2581 */
    bool whole_words; /* ignore_merges: a word that is a token stays one */
    dq_strmap words;  /* word -> id, filled when whole_words */
    dq_strmap known;  /* short words that merging makes one token of -> id */
    dq_map64 merges;  /* left id << 32 | right id -> (rank + 1) << 32 | id of the merged symbol */
} dq_bpe;

/* The symbols of the character c[len], from id (its token, or -1), byte_id and unknown. */
dq_bpe_start dq_bpe_start_of(const dq_bpe *bpe, int32_t id, const char *c, size_t len);
/* A later merge of the same pair replaces the earlier one, its rank too, as in the reference. */
dq_status dq_bpe_merge_put(dq_bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t id,
                           dq_err *err);

/* One encoding in progress; belongs to one thread. */
typedef struct dq_bpe_run {
    const dq_bpe *bpe;
    struct dq_bpe_cached *cache; /* recent short words and their ids */
    size_t cache_size, cache_used;
    void *scratch; /* for long words */
    size_t scratch_symbols;
} dq_bpe_run;

/* Whether merging alone makes of a short word the token `id`, so that it belongs into bpe->known. ids is scratch. */
dq_status dq_bpe_makes(bool *yes, dq_bpe_run *run, dq_id_list *ids, const char *word, size_t len,
                       int32_t id, dq_err *err);
/* Ends what dq_bpe_word has made, after a failure too. *run is {.bpe} before the first word. */
void dq_bpe_run_end(dq_bpe_run *run);
/* Appends the ids of one word of well-formed UTF-8: merges of lowest rank first, leftmost first among
 * equals, O(n log n). Source of the order: Sennrich et al. 2016, tokenizers models/bpe/word.rs. */
dq_status dq_bpe_word(dq_bpe_run *run, dq_id_list *ids, const char *word, size_t len, dq_err *err);

#endif
