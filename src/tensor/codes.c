/* codes: see codes.h. Groups are independent, so threads share rows without changing a byte.
 * SPDX-License-Identifier: MIT */
#include "tensor/codes.h"

#include "tensor/quant_search.h"

#include <math.h>

dq_code_shape dq_code_shape_of(int64_t rows, int64_t cols, const dq_quant_spec *spec)
{
    const bool whole = spec->group < 0 || spec->group > cols;
    dq_code_shape s = {.rows = rows, .cols = cols, .group_size = whole ? cols : spec->group};
    s.groups = dq_quant_groups(cols, s.group_size);
    s.grid_rows = spec->group == DQ_GROUP_TENSOR ? 1 : rows;
    return s;
}

dq_status dq_codes_new(dq_codes **out, int64_t rows, int64_t cols, const dq_quant_spec *spec,
                       dq_err *err)
{
    dq_codes *c = *out = dq_block_new(1, sizeof *c, err);
    if (!c) return err->code;
    c->spec = *spec;
    c->shape = dq_code_shape_of(rows, cols, spec);
    c->code = dq_block_new((size_t)rows, (size_t)cols, err);
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
            c->grid[r * s.groups + g] = f->fit(w + r * s.cols + at, n, &c->spec);
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
