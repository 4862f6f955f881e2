/* quantize_tensor: see quantize_tensor.h. Blocks of a tile are encoded at the same time, and their errors
 * merged in block order: results do not depend on the number of threads. Scans are quantize_tensor_scan.c's.
 * SPDX-License-Identifier: MIT */
#include "quantize/quantize_tensor.h"

#include "base/os.h"
#include "quantize/quantize_tiles.h"
#include "quantize/quantize_values.h"
#include "tensor/tensor.h"

#include <string.h>

enum { COPY_BYTES = 4 << 20 };

void dq_quantize_tensor_buffers_free(dq_quantize_tensor_buffers *r)
{
    for (int i = 0; i < 3; i++) dq_block_free(r->part[i]);
    memset(r, 0, sizeof *r);
}

/* ---- Codes ---- */

/* Of one tile, by part. */
typedef struct output {
    uint8_t *part[DQ_MAX_PARTS];
    size_t bytes[DQ_MAX_PARTS]; /* filled */
} output;

dq_weight dq_quantize_tensor_weight(const dq_quantize_tensor *q)
{
    return (dq_weight){.rows = q->rows,
                       .cols = q->cols,
                       .format = q->format,
                       .bits = q->spec.bits,
                       .group_size = q->group_size,
                       .scale_rows = q->scale_rows,
                       .scale_dtype = q->spec.scale_dtype};
}

/* Bytes of each part that so many rows have to themselves: 0 where one row serves the whole tensor. */
static void row_bytes(size_t bytes[DQ_MAX_PARTS], const dq_quantize_tensor *q, int64_t rows)
{
    const dq_weight w = dq_quantize_tensor_weight(q);
    for (int i = 0; i < q->format->n_parts; i++) {
        const dq_weight_part_row *row = &q->format->part[i];
        const dq_part p = dq_weight_part(&w, i);
        if (row->fixed || (q->one_scale && !row->is_codes))
            bytes[i] = 0;
        else if (row->is_codes && dq_quantize_tiles_in_strips(q))
            bytes[i] =
                (size_t)dq_weight_strip_padded(rows) / 8 * (size_t)q->cols * (size_t)q->spec.bits;
        else
            bytes[i] = dq_weight_part_bytes(&p) / (size_t)p.rows * (size_t)rows;
    }
}

/* The grid of a group of n values from w on. */
static dq_grid grid_of(const dq_quantize_tensor *q, const float *w, int64_t n)
{
    return q->one_scale ? q->grid : q->format->fit(w, n, &q->spec);
}

void dq_quantize_tensor_read_back(const dq_quantize_tensor *q, const float *w, float *got,
                                  int8_t *codes)
{
    for (int64_t i = 0; !q->format && i < q->cols; i++) got[i] = dq_quantize_values_stored(q, w[i]);
    for (int64_t c = 0; q->format && c < q->cols; c += q->group_size) {
        const int64_t n = q->cols - c < q->group_size ? q->cols - c : q->group_size;
        q->format->encode(codes + c, got + c, w + c, n, grid_of(q, w + c, n), &q->spec);
    }
}

static void encode_row(const dq_quantize_tensor *q, const float *w, float *got, int8_t *codes,
                       uint8_t *const part[DQ_MAX_PARTS])
{
    const dq_weight_format *f = q->format;
    for (int64_t c = 0, i = 0; c < q->cols; c += q->group_size, i++) {
        const int64_t n = q->cols - c < q->group_size ? q->cols - c : q->group_size;
        const dq_grid g = grid_of(q, w + c, n);
        if (!q->one_scale) f->put(part, i, g, &q->spec);
        f->encode(codes + c, got + c, w + c, n, g, &q->spec);
    }
    for (int i = 0; i < f->n_parts; i++) {
        if (f->part[i].is_codes) dq_quant_pack_row(part[i], codes, q->cols, q->spec.bits);
    }
}

/* Codes of one strip w[rows, cols], in the piece's memory. */
static dq_codes strip_of(const dq_quantize_tensor *q, dq_quantize_piece *p, int64_t rows)
{
    return (dq_codes){.shape = dq_code_shape_of(rows, q->cols, &q->spec),
                      .spec = q->spec,
                      .code = p->codes,
                      .grid = p->grid};
}

static void encode_strip(const dq_quantize_tensor *q, dq_quantize_piece *p, int64_t begin,
                         int64_t end, uint8_t *part[DQ_MAX_PARTS])
{
    const dq_weight_format *f = q->format;
    const int64_t rows = end - begin;
    const float *w = dq_quantize_values_rows(q, p->w, begin, rows);
    dq_codes c = strip_of(q, p, rows);
    size_t step[DQ_MAX_PARTS];
    memset(&p->error, 0, sizeof p->error);
    dq_codes_round_strip(&c, w);
    row_bytes(step, q, 1);
    for (int i = 0; i < f->n_parts; i++) {
        if (f->part[i].is_codes)
            f->pack_strip(part[i], c.code, dq_weight_strip_padded(rows), q->cols, q->spec.bits);
    }
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t g = 0; g < c.shape.groups; g++)
            f->put(part, g, c.grid[r * c.shape.groups + g], &q->spec);
        for (int64_t k = 0; k < q->cols; k++) p->got[k] = dq_codes_value(&c, r, k);
        dq_quant_error_add(&p->error, w + r * q->cols, p->got, q->cols);
        for (int i = 0; i < f->n_parts; i++) part[i] += f->part[i].is_codes ? 0 : step[i];
    }
}

static void encode_block(const dq_quantize_tensor *q, dq_quantize_piece *p, int64_t begin,
                         int64_t end, uint8_t *part[DQ_MAX_PARTS])
{
    size_t step[DQ_MAX_PARTS];
    if (dq_quantize_tiles_in_strips(q)) {
        encode_strip(q, p, begin, end, part);
        return;
    }
    const float *values = dq_quantize_values_rows(q, p->w, begin, end - begin);
    memset(&p->error, 0, sizeof p->error);
    row_bytes(step, q, 1);
    for (int64_t r = 0; r < end - begin; r++) {
        const float *w = values + (size_t)r * (size_t)q->cols;
        for (int i = 0; i < q->format->n_parts; i++) memset(part[i], 0, step[i]);
        encode_row(q, w, p->got, p->codes, part);
        dq_quant_error_add(&p->error, w, p->got, q->cols);
        for (int i = 0; i < q->format->n_parts; i++) part[i] += step[i];
    }
}

static void encode_tile(dq_quantize_tiles *g, output *o, int64_t begin, dq_quant_error *e)
{
    const dq_quantize_tensor *q = g->q;
    int64_t end, rows = dq_quantize_tiles_range(q, &end, begin, g->tile_rows);
    int n = (int)((rows + g->block_rows - 1) / g->block_rows);
#pragma omp taskloop grainsize(1) if (n > 1) shared(g, o, q)
    for (int i = 0; i < n; i++) {
        int64_t b = begin + i * g->block_rows, t;
        uint8_t *part[DQ_MAX_PARTS];
        size_t before[DQ_MAX_PARTS];
        dq_quantize_tiles_range(q, &t, b, g->block_rows);
        row_bytes(before, q, b - begin);
        for (int k = 0; k < q->format->n_parts; k++) part[k] = o->part[k] + before[k];
        encode_block(q, &g->piece[i], b, t, part);
    }
    for (int i = 0; i < n; i++) dq_quant_error_merge(e, &g->piece[i].error);
    row_bytes(o->bytes, q, rows);
}

static void hand_out(const output *o, const dq_quantize_sink *sink, dq_err *err)
{
    for (int i = 0; i < DQ_MAX_PARTS && err->code == DQ_OK; i++) {
        if (o->bytes[i]) sink->put(sink->arg, i, o->part[i], o->bytes[i], err);
    }
}

/* The parts of which the whole tensor has one row, and those that its width says. */
static void put_shared(const dq_quantize_tensor *q, const dq_quantize_sink *sink, dq_err *err)
{
    uint8_t space[DQ_MAX_PARTS][sizeof(float)] = {{0}}, *part[DQ_MAX_PARTS];
    const dq_weight w = dq_quantize_tensor_weight(q);
    for (int i = 0; i < DQ_MAX_PARTS; i++) part[i] = space[i];
    if (q->one_scale) q->format->put(part, 0, q->grid, &q->spec);
    for (int i = 0; i < q->format->n_parts && err->code == DQ_OK; i++) {
        const dq_weight_part_row *row = &q->format->part[i];
        const dq_part p = dq_weight_part(&w, i);
        if (row->fixed)
            sink->put(sink->arg, i, row->fixed(&q->spec), dq_weight_part_bytes(&p), err);
        else if (q->one_scale && !row->is_codes)
            sink->put(sink->arg, i, part[i], dq_weight_part_bytes(&p), err);
    }
}

/* Two outputs take turns: one is hashed and written while the next is computed. Only the task touches
 * err while it runs. Groups, not taskwait: other tasks of the caller are none of our business. */
static void all_tiles(dq_quantize_tiles *g, output out[2], const dq_quantize_sink *sink,
                      dq_quant_error *e, const dq_quantize_tick *tick, dq_err *err)
{
    const dq_quantize_tensor *q = g->q;
    const output *last = NULL;
    int turn = 0;
    for (int64_t begin = 0, end; begin < q->rows; begin = end) {
        output *o = &out[turn];
        turn = 1 - turn;
        dq_quantize_tiles_range(q, &end, begin, g->tile_rows);
#pragma omp taskgroup
        {
            if (last) {
#pragma omp task firstprivate(last) shared(sink, err)
                hand_out(last, sink, err);
            }
            encode_tile(g, o, begin, e);
        }
        if (err->code != DQ_OK || dq_os_check_stop(err) != DQ_OK) return;
        dq_quantize_values_release_rows(q, begin, end, tick);
        last = o;
    }
    if (err->code == DQ_OK && last) hand_out(last, sink, err);
    if (err->code == DQ_OK) put_shared(q, sink, err);
}

/* n values, rounded. */
static void round_values(const dq_quantize_tensor *q, uint16_t *to, const float *x, int64_t n)
{
    const int blocks = (int)((n + DQ_QUANTIZE_BLOCK_VALUES - 1) / DQ_QUANTIZE_BLOCK_VALUES);
#pragma omp taskloop grainsize(1) if (blocks > 1) shared(q, to, x)
    for (int b = 0; b < blocks; b++) {
        const int64_t begin = (int64_t)b * DQ_QUANTIZE_BLOCK_VALUES,
                      end = n - begin < DQ_QUANTIZE_BLOCK_VALUES ? n
                                                                 : begin + DQ_QUANTIZE_BLOCK_VALUES;
        for (int64_t i = begin; i < end; i++)
            to[i] = q->dense_dtype == DQ_F16 ? dq_f16_from_f32(x[i]) : dq_bf16_from_f32(x[i]);
    }
}

/* Rows that pass as floats: rounded, or out of codes. */
static dq_status write_rows(const dq_quantize_tensor *q, dq_quantize_tensor_buffers *buffers,
                            const dq_quantize_sink *sink, const dq_quantize_tick *tick, dq_err *err)
{
    enum { VALUES = COPY_BYTES / sizeof(float) };
    const int64_t each = VALUES / q->cols > 0 ? VALUES / q->cols : 1;
    const size_t values = (size_t)each * (size_t)q->cols;
    float *space = dq_quantize_tiles_buffer(buffers, 1, values, sizeof *space, err);
    uint16_t *half = dq_quantize_tiles_buffer(buffers, 2, values, sizeof *half, err);
    for (int64_t begin = 0, end; begin < q->rows && err->code == DQ_OK; begin = end) {
        const int64_t n = dq_quantize_tiles_range(q, &end, begin, each);
        const float *x = dq_quantize_values_rows(q, space, begin, n);
        DQ_TRY(dq_os_check_stop(err));
        if (dq_quantize_values_are_rounded(q)) round_values(q, half, x, n * q->cols);
        if (dq_quantize_values_are_rounded(q))
            DQ_TRY(sink->put(sink->arg, 0, half, (size_t)(n * q->cols) * sizeof *half, err));
        else
            DQ_TRY(sink->put(sink->arg, 0, x, (size_t)(n * q->cols) * sizeof *x, err));
        dq_quantize_values_release_rows(q, begin, end, tick);
    }
    return err->code;
}

static dq_status write_dense(const dq_quantize_tensor *q, dq_quantize_tensor_buffers *buffers,
                             const dq_quantize_sink *sink, const dq_quantize_tick *tick,
                             dq_err *err)
{
    const size_t total = dq_tensor_bytes(q->t);
    if (dq_quantize_values_are_rounded(q) || dq_weight_is_coded(&q->w))
        return write_rows(q, buffers, sink, tick, err);
    for (size_t at = 0; at < total && err->code == DQ_OK;) {
        const size_t n = total - at < COPY_BYTES ? total - at : COPY_BYTES;
        const uint8_t *p = (const uint8_t *)q->w.data + at;
        DQ_TRY(dq_os_check_stop(err));
        DQ_TRY(sink->put(sink->arg, 0, p, n, err));
        dq_quantize_values_release(q, p, n);
        if (tick && tick->step) tick->step(tick->arg, (int64_t)n);
        at += n;
    }
    return err->code;
}

dq_status dq_quantize_tensor_write(const dq_quantize_tensor *q, dq_quantize_tensor_buffers *buffers,
                                   const dq_quantize_sink *sink, dq_quant_error *e,
                                   const dq_quantize_tick *tick, dq_err *err)
{
    dq_quantize_tiles g;
    output out[2] = {{{0}, {0}}};
    uint8_t *space = NULL;
    if (!q->format) return write_dense(q, buffers, sink, tick, err);
    memset(e, 0, sizeof *e);
    if (dq_quantize_tiles_begin(&g, q, true, buffers, err) == DQ_OK) {
        size_t tile[DQ_MAX_PARTS], each = 0;
        row_bytes(tile, q, g.tile_rows);
        for (int k = 0; k < q->format->n_parts; k++) each += tile[k];
        uint8_t *at = space = dq_quantize_tiles_buffer(buffers, 2, 2, each, err);
        for (int i = 0; space && i < 2; i++) {
            for (int k = 0; k < q->format->n_parts; at += tile[k++]) out[i].part[k] = at;
        }
    }
    if (space) all_tiles(&g, out, sink, e, tick, err);
    return err->code;
}

/* ---- Error ---- */

enum { ERROR_ROWS = 64 };

static void error_of_rows(dq_quant_error *e, const dq_quantize_tensor *q, const dq_weight *w,
                          int64_t begin, float *want, float *got)
{
    int64_t end;
    dq_quantize_tiles_range(q, &end, begin, ERROR_ROWS);
    for (int64_t r = begin; r < end; r++) {
        dq_weight_dequantize_rows(want, &q->w, r, r + 1);
        dq_weight_dequantize_rows(got, w, r, r + 1);
        dq_quant_error_add(e, want, got, q->cols);
    }
}

dq_status dq_quantize_tensor_error(dq_quant_error *e, const dq_quantize_tensor *q,
                                   const dq_weight *w, dq_err *err)
{
    const int64_t n = (q->rows + ERROR_ROWS - 1) / ERROR_ROWS;
    dq_quant_error *each = dq_block_new((size_t)n, sizeof *each, err);
    float *rows = dq_block_new((size_t)n, 2 * (size_t)q->cols * sizeof *rows, err);
    memset(e, 0, sizeof *e);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < (each && rows ? n : 0); i++) {
        float *want = rows + i * 2 * q->cols;
        error_of_rows(&each[i], q, w, i * ERROR_ROWS, want, want + q->cols);
    }
    for (int64_t i = 0; each && rows && i < n; i++) dq_quant_error_merge(e, &each[i]);
    dq_block_free(each);
    dq_block_free(rows);
    return err->code;
}
