/* quantize_tiles: see quantize_tiles.h. Blocks and tiles depend on the shape alone, so that results do not depend on the
 * number of threads.
 * SPDX-License-Identifier: MIT */
#include "quantize/quantize_tiles.h"

#include <string.h>

enum {
    TILE_BLOCKS = 32, /* pieces between two looks at the stop flag */
    STRIPS = 8        /* of a tile, at least */
};

void *dq_quantize_tiles_buffer(dq_quantize_tensor_buffers *r, int i, size_t n, size_t size,
                               dq_err *err)
{
    size_t bytes;
    if (!dq_mul_ok(&bytes, n, size)) bytes = SIZE_MAX;
    if (r->part[i] && r->bytes[i] >= bytes) return r->part[i];
    dq_block_free(r->part[i]);
    r->bytes[i] = bytes;
    r->part[i] = dq_block_new(bytes, 1, err);
    return r->part[i];
}

int64_t dq_quantize_tiles_range(const dq_quantize_tensor *q, int64_t *end, int64_t begin,
                                int64_t rows)
{
    *end = q->rows - begin < rows ? q->rows : begin + rows;
    return *end - begin;
}

/* Bytes of a piece: its rows as floats, and where codes are made (`both`) a row as it is read back and codes of a row, or those
 * and grids of a strip. */
typedef struct piece_bytes {
    size_t squares, w, got, codes, grid;
} piece_bytes;

static size_t whole_lines(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static piece_bytes bytes_of(const dq_quantize_tiles *g, bool both)
{
    const dq_quantize_tensor *q = g->q;
    const size_t cols = (size_t)q->cols, rows = (size_t)g->block_rows;
    piece_bytes b = {.w = whole_lines(rows * cols * sizeof(float))};
    if (!both && dq_quantize_tiles_in_strips(q)) b.squares = whole_lines(cols * sizeof(double));
    if (!both) return b;
    b.got = whole_lines(cols * sizeof(float));
    b.codes = whole_lines(cols);
    if (!dq_quantize_tiles_in_strips(q)) return b;
    b.codes = whole_lines((size_t)dq_weight_strip_padded(g->block_rows) * cols);
    b.grid = whole_lines(rows * (size_t)dq_quant_groups(q->cols, q->group_size) * sizeof(dq_grid));
    return b;
}

dq_status dq_quantize_tiles_begin(dq_quantize_tiles *g, const dq_quantize_tensor *q, bool both,
                                  dq_quantize_tensor_buffers *buffers, dq_err *err)
{
    memset(g, 0, sizeof *g);
    g->q = q;
    g->block_rows = DQ_QUANTIZE_BLOCK_VALUES / q->cols;
    if (g->block_rows < 1) g->block_rows = 1;
    if (dq_quantize_tiles_in_strips(q)) g->block_rows = DQ_STRIP_ROWS;
    if (g->block_rows > q->rows) g->block_rows = q->rows;
    int64_t blocks = (q->rows + g->block_rows - 1) / g->block_rows;
    /* wide rows: fewer blocks, so that a tile stays within its 8 MiB of floats */
    int64_t max = (int64_t)TILE_BLOCKS * DQ_QUANTIZE_BLOCK_VALUES / (g->block_rows * q->cols);
    if (max > TILE_BLOCKS) max = TILE_BLOCKS;
    if (max < 1) max = 1;
    if (dq_quantize_tiles_in_strips(q) && max < STRIPS)
        max = STRIPS; /* to code one takes far longer than to read it */
    g->n_pieces = (int)(blocks < max ? blocks : max);
    g->tile_rows = g->block_rows * g->n_pieces;
    const piece_bytes b = bytes_of(g, both);
    const size_t bytes = b.squares + b.w + b.got + b.codes + b.grid;
    g->piece = dq_quantize_tiles_buffer(buffers, 0, (size_t)g->n_pieces, sizeof *g->piece, err);
    if (g->piece) g->space = dq_quantize_tiles_buffer(buffers, 1, (size_t)g->n_pieces, bytes, err);
    if (!g->space) return err->code;
    for (int i = 0; i < g->n_pieces; i++) {
        uint8_t *at = g->space + (size_t)i * bytes;
        g->piece[i].squares = (double *)(void *)at;
        g->piece[i].w = (float *)(void *)(at += b.squares);
        g->piece[i].got = (float *)(void *)(at += b.w);
        g->piece[i].codes = (int8_t *)(at += b.got);
        g->piece[i].grid = (dq_grid *)(void *)(at + b.codes);
    }
    return DQ_OK;
}
