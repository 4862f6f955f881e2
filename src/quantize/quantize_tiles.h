/* quantize_tiles: one tensor as tiles of blocks of rows: a block is one piece of work, a tile what stands in memory at a
 * time. Private to quantize.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_QUANTIZE_TILES_H
#define DQ_QUANTIZE_TILES_H

#include "quantize/quantize_tensor.h"
#include "tensor/tensor.h"

enum { DQ_QUANTIZE_BLOCK_VALUES = 1 << 16 }; /* one piece of work */

/* What a block of rows tells. */
typedef struct dq_quantize_piece {
    int64_t bad; /* index of the first value that is not finite, or not as it is stored; -1: none */
    dq_weight_range range;
    bool wide;   /* a scale does not fit F16 */
    float least; /* of a strip: the smallest peak of a group that is not all zeros */
    dq_quant_error error;
    double sums[DQ_N_CANDIDATES];
    double *squares; /* [cols] of a strip, before it is coded */
    float *w;        /* [block_rows * cols] */
    float *got;      /* [cols] dequantized values of one row */
    int8_t *codes;   /* [cols]; of a strip [its padded rows, cols] */
    dq_grid *grid;   /* of a strip: [its rows, groups] */
} dq_quantize_piece;

typedef struct dq_quantize_tiles {
    const dq_quantize_tensor *q;
    int64_t block_rows, tile_rows;
    int n_pieces;             /* per tile */
    dq_quantize_piece *piece; /* [n_pieces] */
    uint8_t *space;
} dq_quantize_tiles;

/* Whether a block is a strip, whose codes depend on one another. */
static inline bool dq_quantize_tiles_in_strips(const dq_quantize_tensor *q)
{
    return q->format && q->format->encode_strip;
}

/* Cuts the tensor. both: codes are made too, else only values read. Tiles and pieces lie in parts 0 and 1 of the buffers
 * until these are used again. DQ_RESOURCE. */
dq_status dq_quantize_tiles_begin(dq_quantize_tiles *g, const dq_quantize_tensor *q, bool both,
                                  dq_quantize_tensor_buffers *buffers, dq_err *err);
/* Part i of the buffers, at least n * size bytes; what stood there is lost where it grows. NULL: DQ_RESOURCE. */
void *dq_quantize_tiles_buffer(dq_quantize_tensor_buffers *r, int i, size_t n, size_t size,
                               dq_err *err);
/* How many rows there are from `begin` on, at most `rows`; *end: after the last of them. */
int64_t dq_quantize_tiles_range(const dq_quantize_tensor *q, int64_t *end, int64_t begin,
                                int64_t rows);

#endif
