/* bpe: byte-pair merging of byte-level words.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_BPE_H
#define DQ_BPE_H

#include "strmap.h"

/* Symbols that one byte of a word begins as. */
typedef struct dq_bpe_start {
    int32_t id[2];
    uint8_t n; /* 0: dropped */
    enum { DQ_START_TOKEN, DQ_START_BYTES, DQ_START_UNKNOWN } kind;
} dq_bpe_start;

typedef struct dq_bpe_merge {
    uint64_t pair; /* left id in the upper half; UINT64_MAX: free slot */
    int32_t rank;
    int32_t id; /* of the merged symbol */
} dq_bpe_merge;

/* Read-only while words are encoded: any number of runs may share it. */
typedef struct dq_bpe {
    dq_bpe_start start[256];
    bool fuse_unknown;
    bool whole_words; /* ignore_merges: a word that is a token stays one */
    dq_strmap words;  /* bytes -> id, filled when whole_words */
    dq_bpe_merge *merge;
    size_t merge_mask;
} dq_bpe;

/* Room for `count` merges; the memory belongs to the arena. */
dq_status dq_bpe_merges_new(dq_bpe *bpe, size_t count, dq_arena *a, dq_err *err);
/* A later merge of the same pair replaces the earlier one, its rank too, as in the reference. */
void dq_bpe_merge_put(dq_bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t id);

/* One encoding in progress; belongs to one thread. */
typedef struct dq_bpe_run {
    const dq_bpe *bpe;
    int32_t *ids; /* [n], a block; the caller may take it and put NULL here */
    size_t n, room;
    struct dq_bpe_cached *cache; /* recent short words and their ids */
    size_t cache_size, cache_used;
    void *scratch; /* for long words */
    size_t scratch_symbols;
} dq_bpe_run;

/* `bytes` is the length of the text to come, a hint. dq_bpe_run_end frees everything, after a
 * failure too. */
dq_status dq_bpe_run_begin(dq_bpe_run *run, const dq_bpe *bpe, size_t bytes, dq_err *err);
void dq_bpe_run_end(dq_bpe_run *run);
/* Appends an id as it is. */
dq_status dq_bpe_push(dq_bpe_run *run, int32_t id, dq_err *err);
/* Appends the ids of one word: merges of lowest rank first, leftmost first among equals,
 * O(n log n). Source of the order: Sennrich et al. 2016, tokenizers models/bpe/word.rs. */
dq_status dq_bpe_word(dq_bpe_run *run, const char *word, size_t len, dq_err *err);

#endif
