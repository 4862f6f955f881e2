/* codes: codes and grids of a matrix as a rounding gives them, one entry per value and per group; coded.h packs them.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CODES_H
#define DQ_CODES_H

#include "tensor/weight_format.h"

/* How groups lie in a matrix of a shape. */
typedef struct dq_code_shape {
    int64_t rows, cols;
    int64_t group_size; /* 1..cols; the last group of a row may be short */
    int64_t groups;     /* of a row */
    int64_t grid_rows;  /* rows, or 1: one grid for the whole matrix */
} dq_code_shape;
dq_code_shape dq_code_shape_of(int64_t rows, int64_t cols, const dq_quant_spec *spec);

/* Owned by whoever made it. */
typedef struct dq_codes {
    dq_code_shape shape;
    dq_quant_spec spec;
    /* [rows, cols], u - 2^(bits-1), as encode of dq_weight_format gives them; of formats with strips as encode_strip does, and
     * rows that fill the last block follow */
    int8_t *code;
    dq_grid *grid; /* [grid_rows, groups] */
} dq_codes;

/* Rows of codes that a matrix has: those of its last block may be more than its own. */
int64_t dq_codes_rows(int64_t rows, const dq_quant_spec *spec);
/* What the spec's factors are to be, [cols]: such that columns of a matrix divided by them are at most 1.5 times as large as their
 * median, in the root of the mean of squares; others have 1. sums[cols] are those of strips of DQ_STRIP_ROWS rows, each 0 at
 * first, added in order. DQ_RESOURCE. */
void dq_codes_column_sums(double *sums, const float *strip, int64_t rows, int64_t cols);
dq_status dq_codes_columns(int8_t *column, const double *sums, int64_t cols, dq_err *err);
/* The same of a whole matrix. DQ_RESOURCE. */
dq_status dq_codes_columns_of(int8_t *column, const float *w, int64_t rows, int64_t cols,
                              dq_err *err);
/* Zeroed; spec.bits is 2..8. DQ_RESOURCE. */
dq_status dq_codes_new(dq_codes **out, int64_t rows, int64_t cols, const dq_quant_spec *spec,
                       dq_err *err);
void dq_codes_free(dq_codes *c); /* NULL allowed */
/* The grids that the spec's mode gives w[rows, cols], all finite, each found from its group alone. The type of scales is
 * taken as it is: whether F16 holds them is the caller's business (fits_f16 of dq_weight_format). */
void dq_codes_fit(dq_codes *c, const float *w);
/* Of formats with strips: grids and codes of one strip w[rows, cols] that come near it, scales being found anew from the codes
 * twice. On the thread that calls it. */
void dq_codes_round_strip(dq_codes *c, const float *w);
/* Whether the spec's type holds the scale of every group of a row of that shape. */
bool dq_codes_row_fits(const float *row, const dq_code_shape *s, const dq_quant_spec *spec);
/* That of the spec. */
static inline float dq_codes_factor(const dq_codes *c, int64_t col)
{
    return c->spec.column ? dq_weight_factor(c->spec.column[col]) : 1.0f;
}
static inline dq_grid dq_codes_grid(const dq_codes *c, int64_t row, int64_t col)
{
    const dq_code_shape *s = &c->shape;
    return c->grid[(s->grid_rows == 1 ? 0 : row) * s->groups + col / s->group_size];
}

/* The value that a code stands for. */
static inline float dq_codes_value(const dq_codes *c, int64_t row, int64_t col)
{
    const dq_grid g = dq_codes_grid(c, row, col);
    const dq_weight_format *f = dq_weight_format_of_mode(c->spec.mode);
    const float x = (float)f->level(c->code[row * c->shape.cols + col], g, &c->spec) * g.scale;
    return c->spec.column ? x * dq_codes_factor(c, col) : x;
}

#endif
