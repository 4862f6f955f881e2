/* calib_pass: a text's sequences through the steps of a layer, some whole sequences at a time. Chunks depend on the text alone,
 * so that neither threads nor memory change a byte of what comes of them.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CALIB_PASS_H
#define DQ_CALIB_PASS_H

#include "calibrate/calib_text.h"
#include "engine/runner.h"

/* Whole sequences that a pass takes at once: as many as have no more rows than this, at least one. */
enum { DQ_CALIB_PASS_ROWS = 2048 };
typedef struct dq_calib_chunk {
    dq_batch batch;
    int64_t first;                /* row among those of this rank */
    int64_t first_row, first_seq; /* in the text */
} dq_calib_chunk;

typedef struct dq_calib_pass {
    dq_backend *b; /* one that computes in host memory */
    dq_arena *arena;
    dq_calib_chunk *chunk; /* [n_chunks] of this rank; `first` counts its own rows */
    int64_t n_chunks, n_rounds, n_rows;
    int64_t n_all, max_rows; /* chunks of all ranks; rows of the largest of them */
    int64_t *row; /* [n_all + 1] of the text: the first of each chunk of all ranks, and their end */
    dq_mat x, h, q, k, v, y, angles, lambda; /* of max_rows rows, as dq_layer_steps has them */
    dq_mat up;                               /* of at most DQ_FFN_ROWS rows */
    dq_mat gate; /* likewise; of max_rows where several ranks add up whole chunks */
} dq_calib_pass;

/* Chunks are dealt out to ranks in turn: a round is one of each, and in the last one some may have none. */
static inline const dq_calib_chunk *dq_calib_pass_chunk(const dq_calib_pass *p, int64_t round)
{
    return round < p->n_chunks ? &p->chunk[round] : NULL;
}

/* Rows of all chunks of a round, in units of those of this rank's own. */
double dq_calib_pass_at_once(const dq_calib_pass *p, int64_t round);
/* By all ranks, after a call that fails for all or none, as dq_ranks_spread: x[n_ids] of the text, of `bytes` each, of which
 * every rank has the rows of its own chunks. */
void dq_calib_pass_join(const dq_calib_pass *p, void *x, size_t bytes);

/* For models of the shape of m. The text and b must outlive it. DQ_RESOURCE. */
dq_status dq_calib_pass_new(dq_calib_pass *p, const dq_model *m, dq_backend *b,
                            const dq_calib_text *text, dq_err *err);
void dq_calib_pass_end(dq_calib_pass *p); /* {0} allowed */
/* Rows of the longest chunk, and bytes: buffers, the cache of one layer, and what lies between buffers and a scratch file. */
int64_t dq_calib_pass_rows(const dq_calib_text *text);
int64_t dq_calib_pass_bytes(const dq_model *m, int64_t rows);

/* Inputs of o; and of the product that has most. */
int64_t dq_calib_pass_y(const dq_model *m);
int64_t dq_calib_pass_widest(const dq_model *m);

/* The first rows of a buffer. */
static inline dq_mat dq_calib_pass_first(dq_mat m, int64_t rows)
{
    m.rows = rows;
    return m;
}
/* The steps of a layer of m, or of a copy with other weights, on a chunk; the cache is the caller's. */
dq_layer_steps dq_calib_pass_steps(const dq_calib_pass *p, const dq_model *m, const dq_layer *layer,
                                   const dq_calib_chunk *k);
/* kv of the steps, with new sequences of the chunk and the angles of its positions; ended by kv_free. DQ_RESOURCE. */
dq_status dq_calib_pass_cache(const dq_calib_pass *p, dq_layer_steps *s, dq_err *err);

#endif
