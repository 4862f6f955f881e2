/* coded: see coded.h. Parts lie one after the other in one block, and are found in it as they would be in a file.
 * SPDX-License-Identifier: MIT */
#include "tensor/coded.h"

/* Parts begin at multiples of 64 bytes. */
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
    for (int i = 0; i < w->format->n_parts; i++) {
        const dq_part p = dq_weight_part(w, i);
        bytes += padded(dq_weight_part_bytes(&p));
    }
    out->bytes = dq_block_new(bytes, 1, err);
    if (!out->bytes) return err->code;
    for (int i = 0; i < w->format->n_parts; i++) {
        const dq_part p = dq_weight_part(w, i);
        const dq_tensor found = {.dtype = p.dtype,
                                 .n_dims = 2,
                                 .shape = {p.shape[0], p.shape[1]},
                                 .data = dq_coded_part(out, i)};
        w->format->part[i].take(w, &found);
        const void *whole = w->format->part[i].fixed ? w->format->part[i].fixed(spec) : NULL;
        if (whole) memcpy(dq_coded_part(out, i), whole, dq_weight_part_bytes(&p));
    }
    return DQ_OK;
}

uint8_t *dq_coded_part(dq_coded *c, int part)
{
    size_t at = 0;
    for (int i = 0; i < part; i++) {
        const dq_part p = dq_weight_part(&c->weight, i);
        at += padded(dq_weight_part_bytes(&p));
    }
    return c->bytes + at;
}

void dq_coded_free(dq_coded *c)
{
    dq_block_free(c->bytes);
    *c = (dq_coded){.bytes = NULL};
}

/* Row r of the codes as row `to` of every part; where one row serves the whole matrix, only with row 0. */
static void pack_row(dq_coded *out, uint8_t *const base[DQ_MAX_PARTS], const dq_codes *c, int64_t r,
                     int64_t to)
{
    const dq_weight_format *f = out->weight.format;
    uint8_t *part[DQ_MAX_PARTS] = {NULL};
    for (int i = 0; i < f->n_parts; i++) {
        const dq_part p = dq_weight_part(&out->weight, i);
        part[i] = base[i] + (size_t)to * (dq_weight_part_bytes(&p) / (size_t)p.rows);
        if (f->part[i].is_codes && !f->pack_strip)
            dq_quant_pack_row(part[i], c->code + r * c->shape.cols, c->shape.cols, c->spec.bits);
    }
    for (int64_t g = 0; r < c->shape.grid_rows && g < c->shape.groups; g++)
        f->put(part, g, c->grid[r * c->shape.groups + g], &c->spec);
}

/* Strips of codes as those from row `first` on. */
static void pack_strips(dq_coded *out, uint8_t *base, const dq_codes *c, int64_t first)
{
    const int64_t n = dq_codes_rows(c->shape.rows, &c->spec), cols = c->shape.cols;
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < n; at += DQ_STRIP_ROWS) {
        const int64_t rows = n - at < DQ_STRIP_ROWS ? n - at : DQ_STRIP_ROWS;
        out->weight.format->pack_strip(base + (first + at) * cols * c->spec.bits / 8,
                                       c->code + at * cols, rows, cols, c->spec.bits);
    }
}

void dq_coded_put(dq_coded *out, const dq_codes *c, int64_t first)
{
    uint8_t *base[DQ_MAX_PARTS];
    for (int i = 0; i < out->weight.format->n_parts; i++) base[i] = dq_coded_part(out, i);
    for (int i = 0; out->weight.format->pack_strip && i < out->weight.format->n_parts; i++) {
        if (out->weight.format->part[i].is_codes) pack_strips(out, base[i], c, first);
    }
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < c->shape.rows; r++) pack_row(out, base, c, r, first + r);
}

dq_status dq_coded_pack(dq_coded *out, const dq_codes *c, dq_err *err)
{
    DQ_TRY(dq_coded_new(out, c->shape.rows, c->shape.cols, &c->spec, err));
    dq_coded_put(out, c, 0);
    return DQ_OK;
}
