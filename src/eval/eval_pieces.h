/* eval_pieces: the work of a sweep as pieces that several processes, or several runs, can share. They follow from models, items
 * and settings alone, not from who computes them or what is finished.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_PIECES_H
#define DQ_EVAL_PIECES_H

#include "eval/eval.h"

/* Units begin .. end - 1 of a row of items; of texts, of all rows with the reference row `row`. */
typedef struct dq_eval_piece {
    int64_t number;
    int row;
    int turn; /* pieces of one turn follow each other, so that models change as rarely as they can */
    int64_t begin, end;
    double work; /* ids that are fed times parameters */
} dq_eval_piece;

typedef struct dq_eval_pieces {
    dq_eval_piece *piece; /* [n], of e->a, by turn, row and unit */
    int64_t n;
} dq_eval_pieces;

/* cut: into pieces that are worth sharing. Else a row is one piece, which takes no more time than it has to. The numbers are the
 * same, and so are the counts of what was computed: items that share a prefix stay together. */
dq_status dq_eval_pieces_of(dq_eval_pieces *out, const dq_eval *e, bool cut, dq_err *err);
/* Within each turn the largest come first. */
void dq_eval_pieces_sort(dq_eval_pieces *p);
/* shard[number] of each piece, 0 .. n_shards - 1: the largest first, each to the shard with least work. */
dq_status dq_eval_pieces_share(int *shard, const dq_eval_pieces *p, int n_shards, dq_err *err);

#endif
