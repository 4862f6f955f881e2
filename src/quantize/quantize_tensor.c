/* Nothing is copied that is a float already; values in codes are dequantized.
 * SPDX-License-Identifier: MIT */
#include "quantize/inside.h"

#include <math.h>
#include <string.h>

enum { DQ_QUANTIZE_BLOCK_VALUES = 1 << 16 }; /* one piece of work */

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

/* In a strip codes depend on each other. */
static inline bool in_strips(const dq_quantize_tensor *q)
{
    return q->format && q->format->encode_strip;
}

static inline bool are_rounded(const dq_quantize_tensor *q)
{
    return !q->format && q->dense_dtype != q->t->dtype;
}

static inline float quantize_values_stored(const dq_quantize_tensor *q, float x)
{
    if (!are_rounded(q)) return x;
    return q->dense_dtype == DQ_F16 ? dq_f32_from_f16(dq_f16_from_f32(x))
                                    : dq_f32_from_bf16(dq_bf16_from_f32(x));
}

static const uint8_t *values_row(const dq_quantize_tensor *q, int64_t row)
{
    return (const uint8_t *)q->w.data +
           (size_t)row * (size_t)q->cols * dq_dtypes[q->t->dtype].bytes;
}

/* Floats are used in place, others converted into to[n]. */
static const float *values_floats(float *to, const uint8_t *src, dq_dtype type, int64_t n)
{
    if (type == DQ_F32 && (uintptr_t)src % sizeof(float) == 0)
        return (const float *)(const void *)src;
    dq_tensor_to_f32(to, src, type, n);
    return to;
}

/* Rows as floats, likewise; codes of another program are decoded. */
static const float *values_rows(const dq_quantize_tensor *q, float *to, int64_t row, int64_t n)
{
    if (!dq_weight_is_coded(&q->w))
        return values_floats(to, values_row(q, row), q->t->dtype, n * q->cols);
    dq_weight_dequantize_rows(to, &q->w, row, row + n);
    return to;
}

/* Releases rows that lie in the file as they are. */
static void values_release(const dq_quantize_tensor *q, const uint8_t *p, size_t bytes)
{
    if (!dq_weight_is_coded(&q->w) && q->w.data == q->t->data) dq_os_map_release(p, bytes);
}

/* Releases rows begin .. end - 1 and reports their bytes to `tick` (NULL allowed). */
static void values_release_rows(const dq_quantize_tensor *q, int64_t begin, int64_t end,
                                const dq_quantize_tick *tick)
{
    size_t bytes = (size_t)((end - begin) * q->cols) * dq_dtypes[q->t->dtype].bytes;
    values_release(q, values_row(q, begin), bytes);
    if (tick && tick->step) tick->step(tick->arg, (int64_t)bytes);
}

/* Blocks and tiles depend on the shape alone, so that results do not depend on the number of
 * threads. */

enum {
    TILE_BLOCKS = 32, /* pieces between two looks at the stop flag */
    STRIPS = 8        /* of a tile, at least */
};

/* Buffer i, at least n * size bytes; growing loses the content. NULL: DQ_RESOURCE. */
static void *tiles_buffer(dq_quantize_tensor_buffers *r, int i, size_t n, size_t size, dq_err *err)
{
    size_t bytes;
    if (!dq_mul_ok(&bytes, n, size)) bytes = SIZE_MAX;
    if (r->buffer[i] && r->bytes[i] >= bytes) return r->buffer[i];
    dq_block_free(r->buffer[i]);
    r->bytes[i] = bytes;
    r->buffer[i] = dq_block_new(bytes, 1, err);
    return r->buffer[i];
}

/* At most `rows` rows from `begin` on; *end: after the last. */
static int64_t tiles_range(const dq_quantize_tensor *q, int64_t *end, int64_t begin, int64_t rows)
{
    *end = q->rows - begin < rows ? q->rows : begin + rows;
    return *end - begin;
}

/* Bytes of a piece: its rows as floats and, with codes (`both`), a row as read back and codes of a
 * row, or those and grids of a strip. */
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
    if (!both && in_strips(q)) b.squares = whole_lines(cols * sizeof(double));
    if (!both) return b;
    b.got = whole_lines(cols * sizeof(float));
    b.codes = whole_lines(cols);
    if (!in_strips(q)) return b;
    b.codes = whole_lines((size_t)dq_weight_strip_padded(g->block_rows) * cols);
    b.grid = whole_lines(rows * (size_t)dq_quant_groups(q->cols, q->group_size) * sizeof(dq_grid));
    return b;
}

/* Cuts the tensor; both: codes are made too. Tiles and pieces occupy buffers 0 and 1.
 * DQ_RESOURCE. */
static dq_status tiles_begin(dq_quantize_tiles *g, const dq_quantize_tensor *q, bool both,
                             dq_quantize_tensor_buffers *buffers, dq_err *err)
{
    memset(g, 0, sizeof *g);
    g->q = q;
    g->block_rows = DQ_QUANTIZE_BLOCK_VALUES / q->cols;
    if (g->block_rows < 1) g->block_rows = 1;
    if (in_strips(q)) g->block_rows = DQ_STRIP_ROWS;
    if (g->block_rows > q->rows) g->block_rows = q->rows;
    int64_t blocks = (q->rows + g->block_rows - 1) / g->block_rows;
    /* wide rows: fewer blocks, so that a tile stays within 8 MiB of floats */
    int64_t max = (int64_t)TILE_BLOCKS * DQ_QUANTIZE_BLOCK_VALUES / (g->block_rows * q->cols);
    if (max > TILE_BLOCKS) max = TILE_BLOCKS;
    if (max < 1) max = 1;
    if (in_strips(q) && max < STRIPS)
        max = STRIPS; /* to code one takes far longer than to read it */
    g->n_pieces = (int)(blocks < max ? blocks : max);
    g->tile_rows = g->block_rows * g->n_pieces;
    const piece_bytes b = bytes_of(g, both);
    const size_t bytes = b.squares + b.w + b.got + b.codes + b.grid;
    g->piece = tiles_buffer(buffers, 0, (size_t)g->n_pieces, sizeof *g->piece, err);
    if (g->piece) g->space = tiles_buffer(buffers, 1, (size_t)g->n_pieces, bytes, err);
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

/* Blocks are scanned on their raw bits where that suffices, and merged in order. A searched scale
 * of the whole tensor takes two more sweeps. */

static int64_t first_not_finite(const dq_quantize_tensor *q, const float *w, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(quantize_values_stored(q, w[i]))) return i;
    }
    return -1;
}

/* The largest magnitude of n values in place; not finite when one is not. Only for types of
 * weights. */
static float top_of(const uint8_t *src, dq_dtype type, int64_t n)
{
    uint32_t top =
        type == DQ_F32 ? dq_quant_loops()->top32(src, n) : dq_quant_loops()->top16(src, n);
    uint16_t half = (uint16_t)top;
    float x;
    if (type == DQ_F16) return dq_f32_from_f16(half);
    if (type == DQ_BF16) return dq_f32_from_bf16(half);
    memcpy(&x, &top, sizeof x);
    return x;
}

/* Group by group on the raw bits; false: a value is not finite. */
static bool scan_groups(const dq_quantize_tensor *q, dq_quantize_piece *p, const uint8_t *src,
                        dq_dtype type, int64_t rows)
{
    const bool requested = q->spec.scale_dtype == DQ_F16;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < q->cols; c += q->group_size) {
            int64_t n = q->cols - c < q->group_size ? q->cols - c : q->group_size;
            const uint8_t *at = src + (size_t)(r * q->cols + c) * dq_dtypes[type].bytes;
            dq_weight_range range = {.peak = top_of(at, type, n)};
            if (!isfinite(range.peak)) return false;
            if (range.peak > 0 && range.peak < p->least) p->least = range.peak;
            if (requested && q->format->ends)
                dq_weight_range_ends(&range, values_floats(p->w, at, type, n), n);
            p->wide = p->wide || (requested && !q->format->fits_f16(&range, &q->spec));
        }
    }
    return true;
}

static void scan_block(const dq_quantize_tensor *q, dq_quantize_piece *p, int64_t begin,
                       int64_t end)
{
    int64_t n = (end - begin) * q->cols;
    dq_dtype type = q->t->dtype;
    const uint8_t *src = dq_weight_is_coded(&q->w) ? NULL : values_row(q, begin);
    bool finite;
    p->bad = -1;
    p->range = (dq_weight_range){0};
    p->wide = false;
    p->least = INFINITY;
    if (!src || type == DQ_F64) { /* what counts is the value as a float */
        values_rows(q, p->w, begin, end - begin);
        type = DQ_F32;
        src = (const uint8_t *)p->w;
    }
    if (q->format && !q->one_scale)
        finite = scan_groups(q, p, src, type, end - begin);
    else
        finite = isfinite(quantize_values_stored(q, top_of(src, type, n)));
    if (finite && !q->one_scale) return;
    const float *w = values_floats(p->w, src, type, n);
    if (!finite) {
        p->bad = first_not_finite(q, w, n);
        return;
    }
    p->range.peak = dq_quant_peak(w, n);
    dq_weight_range_ends(&p->range, w, n);
}

typedef struct scan {
    dq_weight_range range;
    bool wide;
    float least;     /* as in a piece */
    double *squares; /* [cols] of columns, where codes are found in strips; NULL: elsewhere */
} scan;

static dq_status scan_tile(dq_quantize_tiles *g, dq_quantize_tensor *q, int64_t begin, scan *all,
                           dq_err *err)
{
    int64_t end, rows = tiles_range(q, &end, begin, g->tile_rows);
    int n = (int)((rows + g->block_rows - 1) / g->block_rows);
#pragma omp taskloop grainsize(1) if (n > 1) shared(g, q, all)
    for (int i = 0; i < n; i++) {
        int64_t b = begin + i * g->block_rows, e;
        tiles_range(q, &e, b, g->block_rows);
        scan_block(q, &g->piece[i], b, e);
        if (all->squares) {
            /* Factors of columns come from these sums. */
            memset(g->piece[i].squares, 0, (size_t)q->cols * sizeof *g->piece[i].squares);
            dq_codes_column_sums(g->piece[i].squares, values_rows(q, g->piece[i].w, b, e - b),
                                 e - b, q->cols);
        }
    }
    for (int i = 0; i < n; i++) {
        const dq_quantize_piece *p = &g->piece[i];
        if (p->bad >= 0) {
            const long long r = (long long)((begin + i * g->block_rows) + p->bad / q->cols),
                            c = (long long)(p->bad % q->cols);
            float few[8]; /* from a multiple of 8 on */
            dq_weight_format_of(&q->w)->dequantize(few, &q->w, r, c / 8 * 8, c % 8 + 1);
            const float x = few[c % 8];
            if (!isfinite(x))
                return dq_fail(err, DQ_DAMAGED,
                               "tensor \"%s\": the value at row %lld, column %lld is not finite",
                               q->t->name, r, c);
            const char *other = q->dense_dtype == DQ_F16 ? "bf16" : "keep";
            return dq_fail_with(
                err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_DENSE_TYPE, .word = other},
                "tensor \"%s\": the value at row %lld, column %lld, %g, is infinite as %s",
                q->t->name, r, c, (double)x, dq_dtypes[q->dense_dtype].name);
        }
        if (fabsf(p->range.peak) > fabsf(all->range.peak)) all->range.peak = p->range.peak;
        all->range.low = fminf(all->range.low, p->range.low);
        all->range.high = fmaxf(all->range.high, p->range.high);
        all->wide = all->wide || p->wide;
        all->least = fminf(all->least, p->least);
        for (int64_t k = 0; all->squares && k < q->cols; k++) all->squares[k] += p->squares[k];
    }
    return DQ_OK;
}

/* One sweep over the whole tensor: sums[k], k < n, over all values. */
static dq_status search_sweep(dq_quantize_tiles *g, const dq_quantize_tensor *q,
                              const dq_quant_search *s, bool rank, double *sums, int n_sums,
                              dq_err *err)
{
    for (int64_t begin = 0, end; begin < q->rows; begin = end) {
        int64_t rows = tiles_range(q, &end, begin, g->tile_rows);
        int n = (int)((rows + g->block_rows - 1) / g->block_rows);
        DQ_TRY(dq_os_check_stop(err));
#pragma omp taskloop grainsize(1) if (n > 1) shared(g, q, s)
        for (int i = 0; i < n; i++) {
            int64_t b = begin + i * g->block_rows, e;
            dq_quantize_piece *p = &g->piece[i];
            const int64_t n_rows = tiles_range(q, &e, b, g->block_rows), values = n_rows * q->cols;
            const float *w = values_rows(q, p->w, b, n_rows);
            memset(p->sums, 0, sizeof p->sums);
            if (rank)
                dq_quant_search_rank(s, p->sums, w, values);
            else
                dq_quant_search_measure(s, p->sums, w, values);
        }
        for (int i = 0; i < n; i++) {
            for (int k = 0; k < n_sums; k++) sums[k] += g->piece[i].sums[k];
        }
        values_release_rows(q, begin, end, NULL);
    }
    return DQ_OK;
}

dq_status dq_quantize_tensor_scan(dq_quantize_tensor *q, dq_quantize_tensor_buffers *buffers,
                                  const dq_quantize_tick *tick, dq_err *err)
{
    dq_quantize_tiles g;
    scan all = {.least = INFINITY};
    tiles_begin(&g, q, false, buffers, err);
    if (err->code == DQ_OK && in_strips(q))
        all.squares = dq_block_new((size_t)q->cols, sizeof *all.squares, err);
    for (int64_t begin = 0, end; err->code == DQ_OK && begin < q->rows; begin = end) {
        tiles_range(q, &end, begin, g.tile_rows);
        if (dq_os_check_stop(err) == DQ_OK) scan_tile(&g, q, begin, &all, err);
        values_release_rows(q, begin, end, tick);
    }
    if (err->code == DQ_OK && all.squares) {
        /* Factors of columns may make a group too small for F16. */
        float most = 1;
        if (dq_codes_columns(q->column, all.squares, q->cols, err) == DQ_OK) {
            for (int64_t k = 0; k < q->cols; k++)
                most = fmaxf(most, dq_weight_factor(q->column[k]));
            const dq_weight_range least = {.peak = all.least / most};
            if (isfinite(all.least) && !q->format->fits_f16(&least, &q->spec)) all.wide = true;
        }
    }
    dq_block_free(all.squares);
    const bool one = q->format && q->one_scale;
    if (one) all.wide = !q->format->fits_f16(&all.range, &q->spec);
    if (all.wide) q->spec.scale_dtype = DQ_F32;
    if (err->code != DQ_OK || !one) return err->code;
    if (q->spec.mode == DQ_SEARCH && all.range.peak != 0) {
        dq_quant_search s;
        double rank[DQ_N_CANDIDATES] = {0}, error[DQ_N_FINALISTS] = {0};
        dq_quant_search_begin(&s, all.range.peak, q->spec.bits, q->spec.scale_dtype);
        DQ_TRY(search_sweep(&g, q, &s, true, rank, DQ_N_CANDIDATES, err));
        dq_quant_search_narrow(&s, rank);
        DQ_TRY(search_sweep(&g, q, &s, false, error, s.n_finalists, err));
        q->grid.scale = dq_quant_search_end(&s, error);
        return DQ_OK;
    }
    q->grid = q->format->grid(&all.range, &q->spec);
    return DQ_OK;
}

/* Blocks of a tile are encoded in parallel and errors merged in order, so results do not depend on
 * threads. */

enum { COPY_BYTES = 4 << 20 };

void dq_quantize_tensor_buffers_free(dq_quantize_tensor_buffers *r)
{
    for (int i = 0; i < 3; i++) dq_block_free(r->buffer[i]);
    memset(r, 0, sizeof *r);
}

/* Output of one tile, by dataset. */
typedef struct output {
    uint8_t *dataset[DQ_MAX_DATASETS];
    size_t bytes[DQ_MAX_DATASETS]; /* filled */
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

/* Bytes of each dataset per row; 0: one row serves the whole tensor. */
static void row_bytes(size_t bytes[DQ_MAX_DATASETS], const dq_quantize_tensor *q, int64_t rows)
{
    const dq_weight w = dq_quantize_tensor_weight(q);
    for (int i = 0; i < q->format->n_datasets; i++) {
        const dq_dataset_row *row = &q->format->dataset[i];
        const dq_dataset p = dq_weight_dataset(&w, i);
        if (row->fixed || (q->one_scale && !row->is_codes))
            bytes[i] = 0;
        else if (row->is_codes && in_strips(q))
            bytes[i] =
                (size_t)dq_weight_strip_padded(rows) / 8 * (size_t)q->cols * (size_t)q->spec.bits;
        else
            bytes[i] = dq_dataset_bytes(&p) / (size_t)p.rows * (size_t)rows;
    }
}

static dq_grid grid_of(const dq_quantize_tensor *q, const float *w, int64_t n)
{
    return q->one_scale ? q->grid : q->format->fit(w, n, &q->spec);
}

void dq_quantize_tensor_read_back(const dq_quantize_tensor *q, const float *w, float *got,
                                  int8_t *codes)
{
    for (int64_t i = 0; !q->format && i < q->cols; i++) got[i] = quantize_values_stored(q, w[i]);
    for (int64_t c = 0; q->format && c < q->cols; c += q->group_size) {
        const int64_t n = q->cols - c < q->group_size ? q->cols - c : q->group_size;
        q->format->encode(codes + c, got + c, w + c, n, grid_of(q, w + c, n), &q->spec);
    }
}

/* Codes of a strip w[rows, cols], in the piece's memory. */
static dq_codes strip_of(const dq_quantize_tensor *q, dq_quantize_piece *p, int64_t rows)
{
    return (dq_codes){.shape = dq_code_shape_of(rows, q->cols, &q->spec),
                      .spec = q->spec,
                      .code = p->codes,
                      .grid = p->grid};
}

static void encode_strip(const dq_quantize_tensor *q, dq_quantize_piece *p, int64_t begin,
                         int64_t end, uint8_t *dataset[DQ_MAX_DATASETS])
{
    const dq_weight_format *f = q->format;
    const int64_t rows = end - begin;
    const float *w = values_rows(q, p->w, begin, rows);
    dq_codes c = strip_of(q, p, rows);
    size_t step[DQ_MAX_DATASETS];
    memset(&p->error, 0, sizeof p->error);
    dq_codes_round_strip(&c, w);
    row_bytes(step, q, 1);
    for (int i = 0; i < f->n_datasets; i++) {
        if (f->dataset[i].is_codes)
            f->pack_strip(dataset[i], c.code, dq_weight_strip_padded(rows), q->cols, q->spec.bits);
    }
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t g = 0; g < c.shape.groups; g++)
            f->put(dataset, g, c.grid[r * c.shape.groups + g], &q->spec);
        for (int64_t k = 0; k < q->cols; k++) p->got[k] = dq_codes_value(&c, r, k);
        dq_quant_error_add(&p->error, w + r * q->cols, p->got, q->cols);
        for (int i = 0; i < f->n_datasets; i++) dataset[i] += f->dataset[i].is_codes ? 0 : step[i];
    }
}

static void encode_block(const dq_quantize_tensor *q, dq_quantize_piece *p, int64_t begin,
                         int64_t end, uint8_t *dataset[DQ_MAX_DATASETS])
{
    size_t step[DQ_MAX_DATASETS];
    if (in_strips(q)) {
        encode_strip(q, p, begin, end, dataset);
        return;
    }
    const float *values = values_rows(q, p->w, begin, end - begin);
    memset(&p->error, 0, sizeof p->error);
    row_bytes(step, q, 1);
    for (int64_t r = 0; r < end - begin; r++) {
        const float *w = values + (size_t)r * (size_t)q->cols;
        for (int i = 0; i < q->format->n_datasets; i++) memset(dataset[i], 0, step[i]);
        const dq_weight_format *f = q->format;
        for (int64_t c = 0, k = 0; c < q->cols; c += q->group_size, k++) {
            const int64_t n = q->cols - c < q->group_size ? q->cols - c : q->group_size;
            const dq_grid g = grid_of(q, w + c, n);
            if (!q->one_scale) f->put(dataset, k, g, &q->spec);
            f->encode(p->codes + c, p->got + c, w + c, n, g, &q->spec);
        }
        for (int k = 0; k < f->n_datasets; k++) {
            if (f->dataset[k].is_codes)
                dq_quant_pack_row(dataset[k], p->codes, q->cols, q->spec.bits);
        }
        dq_quant_error_add(&p->error, w, p->got, q->cols);
        for (int i = 0; i < q->format->n_datasets; i++) dataset[i] += step[i];
    }
}

static void encode_tile(dq_quantize_tiles *g, output *o, int64_t begin, dq_quant_error *e)
{
    const dq_quantize_tensor *q = g->q;
    int64_t end, rows = tiles_range(q, &end, begin, g->tile_rows);
    int n = (int)((rows + g->block_rows - 1) / g->block_rows);
#pragma omp taskloop grainsize(1) if (n > 1) shared(g, o, q)
    for (int i = 0; i < n; i++) {
        int64_t b = begin + i * g->block_rows, t;
        uint8_t *dataset[DQ_MAX_DATASETS];
        size_t before[DQ_MAX_DATASETS];
        tiles_range(q, &t, b, g->block_rows);
        row_bytes(before, q, b - begin);
        for (int k = 0; k < q->format->n_datasets; k++) dataset[k] = o->dataset[k] + before[k];
        encode_block(q, &g->piece[i], b, t, dataset);
    }
    for (int i = 0; i < n; i++) dq_quant_error_merge(e, &g->piece[i].error);
    row_bytes(o->bytes, q, rows);
}

static void hand_out(const output *o, const dq_quantize_sink *sink, dq_err *err)
{
    for (int i = 0; i < DQ_MAX_DATASETS && err->code == DQ_OK; i++) {
        if (o->bytes[i]) sink->put(sink->arg, i, o->dataset[i], o->bytes[i], err);
    }
}

/* Two outputs alternate: one is hashed and written while the next is computed. Only the task
 * touches err meanwhile. A group, not taskwait, as the caller has other tasks. */
static void all_tiles(dq_quantize_tiles *g, output out[2], const dq_quantize_sink *sink,
                      dq_quant_error *e, const dq_quantize_tick *tick, dq_err *err)
{
    const dq_quantize_tensor *q = g->q;
    const output *last = NULL;
    int turn = 0;
    for (int64_t begin = 0, end; begin < q->rows; begin = end) {
        output *o = &out[turn];
        turn = 1 - turn;
        tiles_range(q, &end, begin, g->tile_rows);
#pragma omp taskgroup
        {
            if (last) {
#pragma omp task firstprivate(last) shared(sink, err)
                hand_out(last, sink, err);
            }
            encode_tile(g, o, begin, e);
        }
        if (err->code != DQ_OK || dq_os_check_stop(err) != DQ_OK) return;
        values_release_rows(q, begin, end, tick);
        last = o;
    }
    if (err->code == DQ_OK && last) hand_out(last, sink, err);
    if (err->code == DQ_OK) {
        /* Datasets with one row per tensor, and those implied by its width. */
        uint8_t space[DQ_MAX_DATASETS][sizeof(float)] = {{0}}, *dataset[DQ_MAX_DATASETS];
        const dq_weight w = dq_quantize_tensor_weight(q);
        for (int i = 0; i < DQ_MAX_DATASETS; i++) dataset[i] = space[i];
        if (q->one_scale) q->format->put(dataset, 0, q->grid, &q->spec);
        for (int i = 0; i < q->format->n_datasets && err->code == DQ_OK; i++) {
            const dq_dataset_row *row = &q->format->dataset[i];
            const dq_dataset p = dq_weight_dataset(&w, i);
            if (row->fixed)
                sink->put(sink->arg, i, row->fixed(&q->spec), dq_dataset_bytes(&p), err);
            else if (q->one_scale && !row->is_codes)
                sink->put(sink->arg, i, dataset[i], dq_dataset_bytes(&p), err);
        }
    }
}

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

static dq_status write_dense(const dq_quantize_tensor *q, dq_quantize_tensor_buffers *buffers,
                             const dq_quantize_sink *sink, const dq_quantize_tick *tick,
                             dq_err *err)
{
    const size_t total = dq_tensor_bytes(q->t);
    if (are_rounded(q) || dq_weight_is_coded(&q->w)) {
        /* Rows that are rounded, or decoded from codes, pass as floats. */
        enum { VALUES = COPY_BYTES / sizeof(float) };
        const int64_t each = VALUES / q->cols > 0 ? VALUES / q->cols : 1;
        const size_t values = (size_t)each * (size_t)q->cols;
        float *space = tiles_buffer(buffers, 1, values, sizeof *space, err);
        uint16_t *half = tiles_buffer(buffers, 2, values, sizeof *half, err);
        for (int64_t begin = 0, end; begin < q->rows && err->code == DQ_OK; begin = end) {
            const int64_t n = tiles_range(q, &end, begin, each);
            const float *x = values_rows(q, space, begin, n);
            DQ_TRY(dq_os_check_stop(err));
            if (are_rounded(q)) round_values(q, half, x, n * q->cols);
            if (are_rounded(q))
                DQ_TRY(sink->put(sink->arg, 0, half, (size_t)(n * q->cols) * sizeof *half, err));
            else
                DQ_TRY(sink->put(sink->arg, 0, x, (size_t)(n * q->cols) * sizeof *x, err));
            values_release_rows(q, begin, end, tick);
        }
        return err->code;
    }
    for (size_t at = 0; at < total && err->code == DQ_OK;) {
        const size_t n = total - at < COPY_BYTES ? total - at : COPY_BYTES;
        const uint8_t *p = (const uint8_t *)q->w.data + at;
        DQ_TRY(dq_os_check_stop(err));
        DQ_TRY(sink->put(sink->arg, 0, p, n, err));
        values_release(q, p, n);
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
    if (tiles_begin(&g, q, true, buffers, err) == DQ_OK) {
        size_t tile[DQ_MAX_DATASETS], each = 0;
        row_bytes(tile, q, g.tile_rows);
        for (int k = 0; k < q->format->n_datasets; k++) each += tile[k];
        uint8_t *at = space = tiles_buffer(buffers, 2, 2, each, err);
        for (int i = 0; space && i < 2; i++) {
            for (int k = 0; k < q->format->n_datasets; at += tile[k++]) out[i].dataset[k] = at;
        }
    }
    if (space) all_tiles(&g, out, sink, e, tick, err);
    return err->code;
}

enum { ERROR_ROWS = 64 };

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
        const int64_t begin = i * ERROR_ROWS;
        float *got = want + q->cols;
        int64_t end;
        tiles_range(q, &end, begin, ERROR_ROWS);
        for (int64_t r = begin; r < end; r++) {
            dq_weight_dequantize_rows(want, &q->w, r, r + 1);
            dq_weight_dequantize_rows(got, w, r, r + 1);
            dq_quant_error_add(&each[i], want, got, q->cols);
        }
    }
    for (int64_t i = 0; each && rows && i < n; i++) dq_quant_error_merge(e, &each[i]);
    dq_block_free(each);
    dq_block_free(rows);
    return err->code;
}
