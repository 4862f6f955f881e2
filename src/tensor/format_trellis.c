/* format_trellis: codes of 2 to 5 bits that are read as windows of 8 bits (trellis.h), a level of 8 bits for each window, one
 * scale a group, and one factor a column, without which columns of large values would want the same few levels row after row, which
 * a ring cannot give. w = level * scale * factor. Rows are dealt to strips of 128; a strip holds a ring of bits for every column, column after
 * column.
 * SPDX-License-Identifier: MIT */
#include "tensor/quant_search.h"
#include "tensor/trellis.h"
#include "tensor/weight_part.h"

#include <math.h>

static dq_part rings(const dq_weight *w)
{
    const int64_t blocks = w->rows / DQ_STRIP_BLOCK + (w->rows % DQ_STRIP_BLOCK != 0);
    return (dq_part){.bits = w->bits,
                     .rows = w->rows,
                     .cols = w->cols,
                     .dtype = DQ_U8,
                     .shape = {blocks, w->cols * (w->bits * DQ_STRIP_BLOCK / 8)},
                     .data = w->data};
}

static const char *take_rings(dq_weight *w, const dq_tensor *found)
{
    if (w->cols > INT64_MAX / DQ_STRIP_ROWS) return "wrong type or shape";
    const dq_part want = rings(w);
    if (w->bits < DQ_TRELLIS_MIN_BITS || w->bits > DQ_TRELLIS_MAX_BITS) return "bits outside 2..5";
    if (!dq_weight_part_is(&want, found)) return "wrong type or shape";
    w->data = found->data;
    return NULL;
}

static const char *wrong_rings(const dq_part *p, dq_scale_mode mode)
{
    (void)p, (void)mode; /* every bit counts */
    return NULL;
}

static dq_part levels(const dq_weight *w)
{
    return (dq_part){.bits = 8,
                     .rows = 1,
                     .cols = DQ_TRELLIS_LEVELS,
                     .dtype = DQ_I8,
                     .shape = {1, DQ_TRELLIS_LEVELS},
                     .data = w->level};
}

static const char *take_levels(dq_weight *w, const dq_tensor *found)
{
    const dq_part want = levels(w);
    if (!dq_weight_part_is(&want, found)) return "wrong type or shape";
    w->level = found->data;
    return NULL;
}

static const char *wrong_levels(const dq_part *p, dq_scale_mode mode)
{
    (void)mode;
    return memchr(p->data, -128, DQ_TRELLIS_LEVELS) ? "holds the level -128." : NULL;
}

static const void *levels_of(const dq_quant_spec *s)
{
    return dq_trellis_table_of(s->bits)->level;
}

static dq_part factors(const dq_weight *w)
{
    return (dq_part){.bits = 8,
                     .rows = 1,
                     .cols = w->cols,
                     .dtype = DQ_I8,
                     .shape = {1, w->cols},
                     .data = w->column};
}

static const char *take_factors(dq_weight *w, const dq_tensor *found)
{
    const dq_part want = factors(w);
    if (!dq_weight_part_is(&want, found)) return "wrong type or shape";
    w->column = found->data;
    return NULL;
}

static const char *wrong_factors(const dq_part *p, dq_scale_mode mode)
{
    (void)p, (void)mode; /* all 256 are factors */
    return NULL;
}

static const void *factors_of(const dq_quant_spec *s)
{
    return s->column;
}

static const dq_weight_part_row parts[] = {
    {.name = "packed",
     .encoding = "trellis",
     .label = "byte",
     .is_codes = true,
     .of = rings,
     .take = take_rings,
     .wrong = wrong_rings},
    {.name = "scale",
     .encoding = "scale",
     .label = "group",
     .of = dq_weight_part_of_scales,
     .take = dq_weight_part_take_scales,
     .wrong = dq_weight_part_wrong_scales},
    {.name = "scale_in",
     .encoding = "scale-in",
     .label = "in",
     .of = factors,
     .take = take_factors,
     .wrong = wrong_factors,
     .fixed = factors_of},
    {.name = "table",
     .encoding = "table",
     .label = "window",
     .of = levels,
     .take = take_levels,
     .fixed = levels_of,
     .wrong = wrong_levels},
};

_Static_assert((int)DQ_STRIP_ROWS <= (int)DQ_TRELLIS_ROWS, "a strip is a ring");

static const dq_weight_attribute attributes[] = {{0}};

static void dequantize(float *out, const dq_weight *w, int64_t row, int64_t first, int64_t n)
{
    const int64_t strip = row / DQ_STRIP_ROWS * DQ_STRIP_ROWS;
    const int64_t left = dq_weight_strip_padded(w->rows) - strip;
    const int64_t rows = left < DQ_STRIP_ROWS ? left : DQ_STRIP_ROWS, ring = rows * w->bits / 8;
    const uint8_t *at = (const uint8_t *)w->data + strip * w->cols * w->bits / 8 + first * ring;
    float scale = 0;
    for (int64_t c = first, group = -1; c < first + n; c++, at += ring) {
        const int64_t g = c / w->group_size;
        if (g != group) scale = dq_weight_scale(w, row, g);
        group = g;
        out[c - first] = (float)w->level[dq_trellis_window(at, row - strip, rows, w->bits)] *
                         scale * dq_weight_factor(w->column[c]);
    }
}

/* A scale is .015 to .02 of the deviation or more, which is hardly less than a tenth of the peak: 2^-20, where steps of F16 are 6 %. */
static bool fits_f16(const dq_weight_range *r, const dq_quant_spec *s)
{
    const float peak = fabsf(r->peak);
    (void)s;
    return peak == 0 || (peak >= 0x1p-10f && peak < 65504);
}

/* A value as the factor of its column leaves it, and what a squared error of that counts. */
static double in_units(const float *w, int64_t i, const dq_quant_spec *s)
{
    return s->column ? (double)w[i] / (double)dq_weight_factor(s->column[i]) : (double)w[i];
}

static double counts(const double *weight, int64_t i, const dq_quant_spec *s)
{
    const double factor = s->column ? (double)dq_weight_factor(s->column[i]) : 1;
    return (weight ? weight[i] : 1) * factor * factor;
}

/* From the unit whose levels reach the group's largest value down to the one of its deviation, in steps of an eighth of an octave,
 * the one of least error: that of levels within their reach, and beyond the last level what is left. weight NULL: 1 each. */
static dq_grid fit_any(const float *w, const double *weight, int64_t n, const dq_quant_spec *s)
{
    const dq_trellis_table *t = dq_trellis_table_of(s->bits);
    double squares = 0, total = 0, peak = 0, least = (double)INFINITY, best = 0;
    for (int64_t i = 0; i < n; i++) {
        const double x = in_units(w, i, s);
        squares += x * x;
        peak = fmax(peak, fabs(x));
        total += counts(weight, i, s);
    }
    const double deviation = sqrt(squares / (double)n), step = 0x1.d5818dcfba487p-1;
    const double top = fmax(deviation, peak / (double)t->reach);
    for (double unit = top; squares > 0 && unit >= deviation; unit *= step) {
        const double end = unit * (double)t->peak;
        double error = total * (double)t->error * unit * unit;
        for (int64_t i = 0; i < n; i++) {
            const double over = fabs(in_units(w, i, s)) - end;
            if (over > 0) error += counts(weight, i, s) * over * over;
        }
        if (error < least) best = end / 127;
        if (error < least) least = error;
    }
    return (dq_grid){.scale = dq_quant_stored_scale((float)best, s->scale_dtype)};
}

static dq_grid fit(const float *w, int64_t n, const dq_quant_spec *s)
{
    return fit_any(w, NULL, n, s);
}

/* Steps of subnormal scales of F16 are 2 % or less from here on. */
static bool holds(float scale, dq_dtype type)
{
    return type != DQ_F16 || (fabsf(scale) >= 0x1p-18f && fabsf(scale) < 65504);
}

static void encode_strip(int8_t *q, float *got, const float *w, const float *scale, int64_t rows,
                         const dq_quant_spec *s)
{
    const int8_t *table = dq_trellis_table_of(s->bits)->level;
    const int64_t n = dq_weight_strip_padded(rows);
    float want[DQ_STRIP_ROWS] = {0}, by[DQ_STRIP_ROWS] = {0};
    memcpy(want, w, (size_t)rows * sizeof *want);
    memcpy(by, scale, (size_t)rows * sizeof *by);
    dq_trellis_encode((uint8_t *)q, want, by, n, s->bits);
    for (int64_t r = 0; r < rows; r++) got[r] = (float)table[(uint8_t)q[r]] * scale[r];
}

static void pack_strip(uint8_t *to, const int8_t *q, int64_t rows, int64_t cols, int bits)
{
    uint8_t u[DQ_STRIP_ROWS];
    for (int64_t k = 0; k < cols; k++, to += rows * bits / 8) {
        for (int64_t r = 0; r < rows; r++) u[r] = (uint8_t)q[r * cols + k];
        dq_trellis_pack(to, u, rows, bits);
    }
}

static int level(int8_t q, dq_grid g, const dq_quant_spec *s)
{
    (void)g;
    return dq_trellis_table_of(s->bits)->level[(uint8_t)q];
}

static void put(uint8_t *const part[DQ_MAX_PARTS], int64_t group, dq_grid g, const dq_quant_spec *s)
{
    dq_weight_part_put_scale(part[1], group, g.scale, s->scale_dtype);
}

const dq_weight_format dq_format_trellis = {
    .name = "trellis",
    .is_coded = true,
    .has_levels = true,
    .note = "trellis codes",
    .attribute = attributes,
    .part = parts,
    .n_parts = sizeof parts / sizeof *parts,
    .dequantize = dequantize,
    .modes = 1 << DQ_TRELLIS,
    .fits_f16 = fits_f16,
    .fit = fit,
    .fit_weighted = fit_any,
    .holds = holds,
    .encode_strip = encode_strip,
    .pack_strip = pack_strip,
    .level = level,
    .put = put,
};
