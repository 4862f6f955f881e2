/* quantize_tensor_scan: dq_quantize_tensor_scan, the pass before anything is written. Blocks are scanned as their bits lie
 * where that tells enough, and what they tell is merged in block order. A searched scale of the whole tensor takes two
 * more sweeps.
 * SPDX-License-Identifier: MIT */
#include "quantize/quantize_tensor.h"

#include "base/os.h"
#include "quantize/quantize_tiles.h"
#include "quantize/quantize_values.h"
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

static int64_t first_not_finite(const dq_quantize_tensor *q, const float *w, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(dq_quantize_values_stored(q, w[i]))) return i;
    }
    return -1;
}

/* The largest magnitude of n values where they lie; not finite when one of them is not. Only for the
 * types that hold weights. */
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

/* Group by group, on the bits as they lie; false when a value is not finite. */
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
                dq_weight_range_ends(&range, dq_quantize_values_floats(p->w, at, type, n), n);
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
    const uint8_t *src = dq_weight_is_coded(&q->w) ? NULL : dq_quantize_values_row(q, begin);
    bool finite;
    p->bad = -1;
    p->range = (dq_weight_range){0};
    p->wide = false;
    p->least = INFINITY;
    if (!src || type == DQ_F64) { /* what counts is the value as a float */
        dq_quantize_values_rows(q, p->w, begin, end - begin);
        type = DQ_F32;
        src = (const uint8_t *)p->w;
    }
    if (q->format && !q->one_scale)
        finite = scan_groups(q, p, src, type, end - begin);
    else
        finite = isfinite(dq_quantize_values_stored(q, top_of(src, type, n)));
    if (finite && !q->one_scale) return;
    const float *w = dq_quantize_values_floats(p->w, src, type, n);
    if (!finite) {
        p->bad = first_not_finite(q, w, n);
        return;
    }
    p->range.peak = dq_quant_peak(w, n);
    dq_weight_range_ends(&p->range, w, n);
}

/* Of value `at` after the start of a row. */
static dq_status refuse_value(const dq_quantize_tensor *q, int64_t row, int64_t at, dq_err *err)
{
    const long long r = (long long)(row + at / q->cols), c = (long long)(at % q->cols);
    float few[8]; /* from a multiple of 8 on */
    dq_weight_format_of(&q->w)->dequantize(few, &q->w, r, c / 8 * 8, c % 8 + 1);
    const float x = few[c % 8];
    if (!isfinite(x))
        return dq_fail(err, DQ_DAMAGED,
                       "tensor \"%s\": the value at row %lld, column %lld is not finite",
                       q->t->name, r, c);
    const char *other = q->dense_dtype == DQ_F16 ? "bf16" : "keep";
    return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_DENSE_TYPE, .word = other},
                        "tensor \"%s\": the value at row %lld, column %lld, %g, is infinite as %s",
                        q->t->name, r, c, (double)x, dq_dtypes[q->dense_dtype].name);
}

/* What the factors of columns are found from. */
static void add_squares(const dq_quantize_tensor *q, dq_quantize_piece *p, int64_t begin,
                        int64_t end)
{
    memset(p->squares, 0, (size_t)q->cols * sizeof *p->squares);
    dq_codes_column_sums(p->squares, dq_quantize_values_rows(q, p->w, begin, end - begin),
                         end - begin, q->cols);
}

/* What all blocks tell. */
typedef struct scan {
    dq_weight_range range;
    bool wide;
    float least;     /* as in a piece */
    double *squares; /* [cols] of columns, where codes are found in strips; NULL: elsewhere */
} scan;

static dq_status scan_tile(dq_quantize_tiles *g, dq_quantize_tensor *q, int64_t begin, scan *all,
                           dq_err *err)
{
    int64_t end, rows = dq_quantize_tiles_range(q, &end, begin, g->tile_rows);
    int n = (int)((rows + g->block_rows - 1) / g->block_rows);
#pragma omp taskloop grainsize(1) if (n > 1) shared(g, q, all)
    for (int i = 0; i < n; i++) {
        int64_t b = begin + i * g->block_rows, e;
        dq_quantize_tiles_range(q, &e, b, g->block_rows);
        scan_block(q, &g->piece[i], b, e);
        if (all->squares) add_squares(q, &g->piece[i], b, e);
    }
    for (int i = 0; i < n; i++) {
        const dq_quantize_piece *p = &g->piece[i];
        if (p->bad >= 0) return refuse_value(q, begin + i * g->block_rows, p->bad, err);
        if (fabsf(p->range.peak) > fabsf(all->range.peak)) all->range.peak = p->range.peak;
        all->range.low = fminf(all->range.low, p->range.low);
        all->range.high = fmaxf(all->range.high, p->range.high);
        all->wide = all->wide || p->wide;
        all->least = fminf(all->least, p->least);
        for (int64_t k = 0; all->squares && k < q->cols; k++) all->squares[k] += p->squares[k];
    }
    return DQ_OK;
}

/* One sweep of a search over the whole tensor: sums[k], k < n, over all values. */
static dq_status search_sweep(dq_quantize_tiles *g, const dq_quantize_tensor *q,
                              const dq_quant_search *s, bool rank, double *sums, int n_sums,
                              dq_err *err)
{
    for (int64_t begin = 0, end; begin < q->rows; begin = end) {
        int64_t rows = dq_quantize_tiles_range(q, &end, begin, g->tile_rows);
        int n = (int)((rows + g->block_rows - 1) / g->block_rows);
        DQ_TRY(dq_os_check_stop(err));
#pragma omp taskloop grainsize(1) if (n > 1) shared(g, q, s)
        for (int i = 0; i < n; i++) {
            int64_t b = begin + i * g->block_rows, e;
            dq_quantize_piece *p = &g->piece[i];
            const int64_t n_rows = dq_quantize_tiles_range(q, &e, b, g->block_rows),
                          values = n_rows * q->cols;
            const float *w = dq_quantize_values_rows(q, p->w, b, n_rows);
            memset(p->sums, 0, sizeof p->sums);
            if (rank)
                dq_quant_search_rank(s, p->sums, w, values);
            else
                dq_quant_search_measure(s, p->sums, w, values);
        }
        for (int i = 0; i < n; i++) {
            for (int k = 0; k < n_sums; k++) sums[k] += g->piece[i].sums[k];
        }
        dq_quantize_values_release_rows(q, begin, end, NULL);
    }
    return DQ_OK;
}

static dq_status search_tensor(dq_quantize_tiles *g, dq_quantize_tensor *q, float peak, dq_err *err)
{
    dq_quant_search s;
    double rank[DQ_N_CANDIDATES] = {0}, error[DQ_N_FINALISTS] = {0};
    dq_quant_search_begin(&s, peak, q->spec.bits, q->spec.scale_dtype);
    DQ_TRY(search_sweep(g, q, &s, true, rank, DQ_N_CANDIDATES, err));
    dq_quant_search_narrow(&s, rank);
    DQ_TRY(search_sweep(g, q, &s, false, error, s.n_finalists, err));
    q->grid.scale = dq_quant_search_end(&s, error);
    return DQ_OK;
}

/* Factors of columns; a group that they make smaller may be too small for F16. */
static void find_factors(dq_quantize_tensor *q, scan *all, dq_err *err)
{
    float most = 1;
    if (dq_codes_columns(q->column, all->squares, q->cols, err) != DQ_OK) return;
    for (int64_t k = 0; k < q->cols; k++) most = fmaxf(most, dq_weight_factor(q->column[k]));
    const dq_weight_range least = {.peak = all->least / most};
    if (isfinite(all->least) && !q->format->fits_f16(&least, &q->spec)) all->wide = true;
}

dq_status dq_quantize_tensor_scan(dq_quantize_tensor *q, dq_quantize_tensor_buffers *buffers,
                                  const dq_quantize_tick *tick, dq_err *err)
{
    dq_quantize_tiles g;
    scan all = {.least = INFINITY};
    dq_quantize_tiles_begin(&g, q, false, buffers, err);
    if (err->code == DQ_OK && dq_quantize_tiles_in_strips(q))
        all.squares = dq_block_new((size_t)q->cols, sizeof *all.squares, err);
    for (int64_t begin = 0, end; err->code == DQ_OK && begin < q->rows; begin = end) {
        dq_quantize_tiles_range(q, &end, begin, g.tile_rows);
        if (dq_os_check_stop(err) == DQ_OK) scan_tile(&g, q, begin, &all, err);
        dq_quantize_values_release_rows(q, begin, end, tick);
    }
    if (err->code == DQ_OK && all.squares) find_factors(q, &all, err);
    dq_block_free(all.squares);
    const bool one = q->format && q->one_scale;
    if (one) all.wide = !q->format->fits_f16(&all.range, &q->spec);
    if (all.wide) q->spec.scale_dtype = DQ_F32;
    if (err->code != DQ_OK || !one) return err->code;
    if (q->spec.mode == DQ_SEARCH && all.range.peak != 0)
        return search_tensor(&g, q, all.range.peak, err);
    q->grid = q->format->grid(&all.range, &q->spec);
    return DQ_OK;
}
