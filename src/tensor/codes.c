/* Groups are independent, so threads share rows without changing a byte.
 * SPDX-License-Identifier: MIT */
#include "tensor/inside.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

dq_code_shape dq_code_shape_of(int64_t rows, int64_t cols, const dq_quant_spec *spec)
{
    const bool whole = spec->group < 0 || spec->group > cols;
    dq_code_shape s = {.rows = rows, .cols = cols, .group_size = whole ? cols : spec->group};
    s.groups = dq_quant_groups(cols, s.group_size);
    s.grid_rows = spec->group == DQ_GROUP_TENSOR ? 1 : rows;
    return s;
}

int64_t dq_codes_rows(int64_t rows, const dq_quant_spec *spec)
{
    return dq_weight_format_of_mode(spec->mode)->encode_strip ? dq_weight_strip_padded(rows) : rows;
}

dq_status dq_codes_new(dq_codes **out, int64_t rows, int64_t cols, const dq_quant_spec *spec,
                       dq_err *err)
{
    dq_codes *c = *out = dq_block_new(1, sizeof *c, err);
    if (!c) return err->code;
    c->spec = *spec;
    c->shape = dq_code_shape_of(rows, cols, spec);
    c->code = dq_block_new((size_t)dq_codes_rows(rows, spec), (size_t)cols, err);
    c->grid = dq_block_new((size_t)(c->shape.grid_rows * c->shape.groups), sizeof *c->grid, err);
    if (err->code == DQ_OK) return DQ_OK;
    dq_codes_free(c);
    *out = NULL;
    return err->code;
}

void dq_codes_free(dq_codes *c)
{
    if (!c) return;
    dq_block_free(c->code);
    dq_block_free(c->grid);
    dq_block_free(c);
}

void dq_codes_column_sums(double *sums, const float *strip, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++, strip += cols) {
        for (int64_t k = 0; k < cols; k++) sums[k] += (double)strip[k] * (double)strip[k];
    }
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The nearest factor to x >= 0 by its logarithm, without the C library. */
static int8_t factor_code(double x)
{
    const double half_step = 0x1.0b5586cf9890fp+0; /* 2^(1/16) */
    int code = 0;
    while (code < INT8_MAX && x > (double)dq_weight_factor((int8_t)code) * half_step) code++;
    return (int8_t)code;
}

dq_status dq_codes_columns(int8_t *column, const double *sums, int64_t cols, dq_err *err)
{
    static const double REACH = 1.5;
    double *sorted = dq_block_new((size_t)cols, sizeof *sorted, err);
    if (!sorted) return err->code;
    memcpy(sorted, sums, (size_t)cols * sizeof *sorted);
    qsort(sorted, (size_t)cols, sizeof *sorted, by_size);
    const double median = sorted[cols / 2];
    for (int64_t k = 0; k < cols; k++)
        column[k] = median > 0 ? factor_code(sqrt(sums[k] / median) / REACH) : 0;
    dq_block_free(sorted);
    return DQ_OK;
}

dq_status dq_codes_columns_of(int8_t *column, const float *w, int64_t rows, int64_t cols,
                              dq_err *err)
{
    double *sums = dq_block_new((size_t)cols, sizeof *sums, err);
    double *strip = dq_block_new((size_t)cols, sizeof *strip, err);
    for (int64_t r = 0; err->code == DQ_OK && r < rows; r += DQ_STRIP_ROWS) {
        const int64_t n = rows - r < DQ_STRIP_ROWS ? rows - r : DQ_STRIP_ROWS;
        memset(strip, 0, (size_t)cols * sizeof *strip);
        dq_codes_column_sums(strip, w + r * cols, n, cols);
        for (int64_t k = 0; k < cols; k++) sums[k] += strip[k];
    }
    if (err->code == DQ_OK) dq_codes_columns(column, sums, cols, err);
    dq_block_free(sums);
    dq_block_free(strip);
    return err->code;
}

void dq_codes_fit(dq_codes *c, const float *w)
{
    const dq_weight_format *f = dq_weight_format_of_mode(c->spec.mode);
    const dq_code_shape s = c->shape;
    if (s.grid_rows == 1) {
        c->grid[0] = f->fit(w, s.rows * s.cols, &c->spec);
        return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < s.rows; r++) {
        for (int64_t g = 0, at = 0; g < s.groups; g++, at += s.group_size) {
            const int64_t n = s.cols - at < s.group_size ? s.cols - at : s.group_size;
            const dq_quant_spec spec = dq_quant_spec_at(&c->spec, at);
            c->grid[r * s.groups + g] = f->fit(w + r * s.cols + at, n, &spec);
        }
    }
}

bool dq_codes_row_fits(const float *row, const dq_code_shape *s, const dq_quant_spec *spec)
{
    const dq_weight_format *f = dq_weight_format_of_mode(spec->mode);
    for (int64_t c = 0; c < s->cols; c += s->group_size) {
        const int64_t n = s->cols - c < s->group_size ? s->cols - c : s->group_size;
        dq_weight_range range = {.peak = dq_quant_peak(row + c, n)};
        dq_weight_range_ends(&range, row + c, n);
        if (!isfinite(range.peak) || (spec->scale_dtype == DQ_F16 && !f->fits_f16(&range, spec)))
            return false;
    }
    return true;
}

static void refit_group(dq_codes *c, const float *w, int64_t row, int64_t group)
{
    const dq_code_shape *s = &c->shape;
    const dq_weight_format *f = dq_weight_format_of_mode(c->spec.mode);
    const int64_t begin = group * s->group_size, left = s->cols - begin;
    const int64_t end = begin + (left < s->group_size ? left : s->group_size);
    dq_grid *g = &c->grid[row * s->groups + group];
    double wl = 0, ll = 0;
    for (int64_t k = begin; k < end; k++) {
        const double level =
            f->level(c->code[row * s->cols + k], *g, &c->spec) * (double)dq_codes_factor(c, k);
        wl += (double)w[row * s->cols + k] * level;
        ll += level * level;
    }
    const float got = ll > 0 ? dq_quant_stored_scale((float)(wl / ll), c->spec.scale_dtype) : 0;
    if (got > 0 && f->holds(got, c->spec.scale_dtype)) g->scale = got;
}

void dq_codes_round_strip(dq_codes *c, const float *w)
{
    enum { REFITS = 2 };
    const dq_code_shape s = c->shape;
    dq_codes_fit(c, w);
    for (int i = 0; i <= REFITS; i++) {
        for (int64_t k = 0; k < s.cols; k++) {
            const int64_t rows = s.rows;
            const int64_t n = dq_weight_strip_padded(rows), cols = c->shape.cols;
            float want[DQ_STRIP_ROWS], scale[DQ_STRIP_ROWS], got[DQ_STRIP_ROWS];
            int8_t q[DQ_STRIP_ROWS];
            for (int64_t r = 0; r < rows; r++) {
                want[r] = w[r * cols + k];
                scale[r] = dq_codes_grid(c, r, k).scale * dq_codes_factor(c, k);
            }
            dq_weight_format_of_mode(c->spec.mode)
                ->encode_strip(q, got, want, scale, rows, &c->spec);
            for (int64_t r = 0; r < n; r++) c->code[r * cols + k] = q[r];
        }
        for (int64_t g = 0; i < REFITS && g < s.rows * s.groups; g++)
            refit_group(c, w, g / s.groups, g % s.groups);
    }
}

/* Datasets lie in one block as they would in a file. */

static size_t padded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

dq_status dq_coded_new(dq_coded *out, int64_t rows, int64_t cols, const dq_quant_spec *spec,
                       dq_err *err)
{
    const dq_code_shape s = dq_code_shape_of(rows, cols, spec);
    dq_weight *w = &out->weight;
    size_t bytes = 0;
    *out = (dq_coded){.weight = {.rows = rows,
                                 .cols = cols,
                                 .format = dq_weight_format_of_mode(spec->mode),
                                 .bits = spec->bits,
                                 .group_size = s.group_size,
                                 .scale_rows = s.grid_rows,
                                 .scale_dtype = spec->scale_dtype}};
    for (int i = 0; i < w->format->n_datasets; i++) {
        const dq_dataset p = dq_weight_dataset(w, i);
        bytes += padded(dq_dataset_bytes(&p));
    }
    out->bytes = dq_block_new(bytes, 1, err);
    if (!out->bytes) return err->code;
    for (int i = 0; i < w->format->n_datasets; i++) {
        const dq_dataset p = dq_weight_dataset(w, i);
        const dq_tensor found = {.dtype = p.dtype,
                                 .n_dims = 2,
                                 .shape = {p.shape[0], p.shape[1]},
                                 .data = dq_coded_dataset(out, i)};
        dq_dataset_take(w, &w->format->dataset[i], &found);
        const void *whole = w->format->dataset[i].fixed ? w->format->dataset[i].fixed(spec) : NULL;
        if (whole) memcpy(dq_coded_dataset(out, i), whole, dq_dataset_bytes(&p));
    }
    return DQ_OK;
}

uint8_t *dq_coded_dataset(dq_coded *c, int dataset)
{
    size_t at = 0;
    for (int i = 0; i < dataset; i++) {
        const dq_dataset p = dq_weight_dataset(&c->weight, i);
        at += padded(dq_dataset_bytes(&p));
    }
    return c->bytes + at;
}

void dq_coded_free(dq_coded *c)
{
    dq_block_free(c->bytes);
    *c = (dq_coded){.bytes = NULL};
}

void dq_coded_put(dq_coded *out, const dq_codes *c, int64_t first)
{
    uint8_t *base[DQ_MAX_DATASETS];
    for (int i = 0; i < out->weight.format->n_datasets; i++) base[i] = dq_coded_dataset(out, i);
    for (int i = 0; out->weight.format->pack_strip && i < out->weight.format->n_datasets; i++) {
        if (out->weight.format->dataset[i].is_codes) {
            const int64_t n = dq_codes_rows(c->shape.rows, &c->spec), cols = c->shape.cols;
#pragma omp parallel for schedule(static)
            for (int64_t at = 0; at < n; at += DQ_STRIP_ROWS) {
                const int64_t rows = n - at < DQ_STRIP_ROWS ? n - at : DQ_STRIP_ROWS;
                out->weight.format->pack_strip(base[i] + (first + at) * cols * c->spec.bits / 8,
                                               c->code + at * cols, rows, cols, c->spec.bits);
            }
        }
    }
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < c->shape.rows; r++) {
        /* Packs row r as row `to` of every dataset; one with a row per matrix only with row 0. */
        const dq_weight_format *f = out->weight.format;
        uint8_t *dataset[DQ_MAX_DATASETS] = {NULL};
        for (int i = 0; i < f->n_datasets; i++) {
            const dq_dataset p = dq_weight_dataset(&out->weight, i);
            dataset[i] = base[i] + (size_t)(first + r) * (dq_dataset_bytes(&p) / (size_t)p.rows);
            if (f->dataset[i].is_codes && !f->pack_strip)
                dq_quant_pack_row(dataset[i], c->code + r * c->shape.cols, c->shape.cols,
                                  c->spec.bits);
        }
        for (int64_t g = 0; r < c->shape.grid_rows && g < c->shape.groups; g++)
            f->put(dataset, g, c->grid[r * c->shape.groups + g], &c->spec);
    }
}

dq_status dq_coded_pack(dq_coded *out, const dq_codes *c, dq_err *err)
{
    DQ_TRY(dq_coded_new(out, c->shape.rows, c->shape.cols, &c->spec, err));
    dq_coded_put(out, c, 0);
    return DQ_OK;
}
