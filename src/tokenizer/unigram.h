/* unigram: the segmentation of a word into pieces with the highest sum of scores.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_UNIGRAM_H
#define DQ_UNIGRAM_H

#include "base/base.h"
#include "tokenizer/id_list.h"

typedef struct dq_unigram_piece {
    const char *text;
    size_t len;
    int32_t id;
} dq_unigram_piece;

/* One node of the byte trie. The children stand next to each other from `first` on: one place for
 * each byte from `low` to `low + span` (DENSE), or `span + 1` nodes in the order of their bytes
 * (LIST). A place without a node is ABSENT. */
typedef struct dq_trie_node {
    uint32_t first;
    int32_t id; /* of the piece that ends here, or -1 */
    uint8_t low, span;
    uint8_t byte; /* that leads here */
    uint8_t kind;
} dq_trie_node;

enum { DQ_TRIE_ABSENT, DQ_TRIE_LEAF, DQ_TRIE_DENSE, DQ_TRIE_LIST };

/* Read-only while words are encoded: any number of runs may share it. */
typedef struct dq_unigram {
    dq_trie_node *node;  /* [0] is the root */
    const double *score; /* [n] by id */
    size_t n;
    double unknown_score;
    int32_t unknown;
    dq_strmap pieces;     /* text -> id */
    int32_t byte_id[256]; /* of <0xHH>, -1: none */
    bool fallback;        /* unknown text becomes its bytes, where all of them exist */
} dq_unigram;

/* Builds the trie of piece[n], which it sorts; no two texts are equal. Node memory belongs to the
 * arena. */
dq_status dq_unigram_trie(dq_unigram *u, dq_unigram_piece *piece, size_t n, dq_arena *a,
                          dq_err *err);

/* One encoding in progress; belongs to one thread. */
typedef struct dq_unigram_run {
    const dq_unigram *u;
    struct dq_unigram_best *best; /* [capacity], a block */
    size_t capacity;
} dq_unigram_run;

/* Ends what dq_unigram_word has made. *run is {.u} before the first word; after a failure it is good
 * for nothing else. */
void dq_unigram_run_end(dq_unigram_run *run);
/* Appends the ids of one word of well-formed UTF-8. Among equal sums the piece that begins first
 * wins, as in the reference. Time is linear in the word; memory grows with the longest stretch that
 * some piece spans at every place, not with the word.
 * Source: Kudo 2018; the order of the sums: tokenizers models/unigram/model.rs. */
dq_status dq_unigram_word(dq_unigram_run *run, dq_id_list *ids, const char *word, size_t len,
                          dq_err *err);

#endif
