/* gguf_merges: the merges of a BPE tokenizer.json, and what programs make of them that keep less than it says.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_GGUF_MERGES_H
#define DQ_GGUF_MERGES_H

#include "base/json.h"

/* Of a piece of SentencePiece, the most: work on its ways grows with the square. It makes pieces of 16 characters unless it is
 * told otherwise. */
enum { DQ_GGUF_PIECE_BYTES = 1024 };

typedef struct dq_gguf_merge {
    const char *text[2]; /* left, right, not ended by NUL */
    size_t len[2];
    int32_t id[3]; /* left, right, result */
} dq_gguf_merge;

/* Vocabulary and merges, in the arena; texts belong to the JSON. */
typedef struct dq_gguf_merges dq_gguf_merges;

/* `model` is the member of tokenizer.json of that name, with ids below n. DQ_DAMAGED: not a vocabulary with merges of it;
 * DQ_MISMATCH: an id of n or more, or a merge that is there twice. */
dq_status dq_gguf_merges_new(dq_gguf_merges **out, const json_t *model, int64_t n, dq_arena *a,
                             dq_err *err);
int64_t dq_gguf_merges_count(const dq_gguf_merges *m);
const dq_gguf_merge *dq_gguf_merges_at(const dq_gguf_merges *m, int64_t i);

/* The first token with is_piece[id] that merges do not make of its characters; -1: none, so that it makes no difference whether
 * a word that is a token is one without merges. */
int32_t dq_gguf_merges_unmade(const dq_gguf_merges *m, const bool *is_piece, dq_err *err);

/* Scores of pieces, [n] by id, with which SentencePiece's BPE (the best score first, of equals the leftmost) joins what the
 * merges join: those of the file that the merges came from where ids are in its order, else by rank. Needs: merges are all ways
 * in which a piece is made of two others or of characters, those of a piece one after the other (but for runs of one character,
 * which may have one score together); and where two ways of a piece
 * share a part (XY = YZ), the merges never reach X, Y, Z with YZ first. *why names what does not hold; NULL: scores are set.
 * `first` is the id whose score is 0. */
dq_status dq_gguf_merges_scores(float *score, const char **why, const dq_gguf_merges *m,
                                const bool *is_piece, int32_t first, dq_arena *a, dq_err *err);

#endif
