/* Values as they were, of type F32, F16 or BF16. Its one dataset is the tensor itself, whose shape
 * is the source's.
 * SPDX-License-Identifier: MIT */
#include "tensor/inside.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

static dq_dataset values(const dq_weight *w)
{
    return (dq_dataset){.bits = 8 * (int)dq_dtypes[w->dtype].bytes,
                        .rows = w->rows,
                        .cols = w->cols,
                        .dtype = w->dtype,
                        .shape = {w->rows, w->cols},
                        .data = w->data};
}

static void dequantize(float *out, const dq_weight *w, int64_t row, int64_t first, int64_t n)
{
    const size_t at = (size_t)(row * w->cols + first) * dq_dtypes[w->dtype].bytes;
    dq_tensor_to_f32(out, (const uint8_t *)w->data + at, w->dtype, n);
}

static const dq_dataset_row values_dataset = {.encoding = "dense", .of = values};

const dq_weight_format dq_format_dense = {
    .name = "dense", .dataset = &values_dataset, .n_datasets = 1, .dequantize = dequantize};

enum { BLOCK = 256 }; /* codes held at once on the stack */

static dq_dataset codes(const dq_weight *w)
{
    return (dq_dataset){.bits = w->bits,
                        .rows = w->rows,
                        .cols = w->cols,
                        .dtype = DQ_U8,
                        .shape = {w->rows, (int64_t)dq_quant_row_bytes(w->cols, w->bits)},
                        .data = w->data};
}

static const char *wrong_codes(const dq_dataset *p, dq_scale_mode mode)
{
    const size_t row = (size_t)p->shape[1], whole = (size_t)p->cols / 8 * (size_t)p->bits,
                 last = (size_t)p->cols % 8 * (size_t)p->bits, used = whole + last / 8;
    const uint8_t *at = p->data;
    (void)mode;
    if (used == row) return NULL;
    for (int64_t r = 0; r < p->rows; r++, at += row) {
        bool zero = at[used] >> last % 8 == 0;
        for (size_t i = used + 1; i < row; i++) zero = zero && at[i] == 0;
        if (!zero) return "holds padding bits that are not zero.";
    }
    return NULL;
}

static dq_dataset scales(const dq_weight *w)
{
    const int64_t groups = dq_quant_groups(w->cols, w->group_size);
    return (dq_dataset){.bits = 8 * (int)dq_dtypes[w->scale_dtype].bytes,
                        .rows = w->scale_rows,
                        .cols = groups,
                        .dtype = w->scale_dtype,
                        .shape = {w->scale_rows, groups},
                        .data = w->scale};
}

static bool fits(const dq_dataset *want, const dq_tensor *found)
{
    return found->dtype == want->dtype && found->n_dims == 2 && found->shape[0] == want->shape[0] &&
           found->shape[1] == want->shape[1];
}

/* Their type, and how many rows have some. */
static const char *look_at_scales(dq_weight *w, const dq_tensor *found)
{
    w->scale_dtype = found->dtype == DQ_F16 ? DQ_F16 : DQ_F32;
    w->scale_rows = found->n_dims == 2 && found->shape[0] == 1 ? 1 : w->rows;
    const dq_dataset want = scales(w);
    const bool one = fits(&want, found) && w->scale_rows == 1;
    return one && w->group_size != w->cols ? "one row of scales for groups" : NULL;
}

/* Properties of n scales, from their bits: several times as fast as by value. */
typedef struct scale_kinds {
    bool endless, negative;
} scale_kinds;

static scale_kinds kinds_of_f16(const uint8_t *at, int64_t n)
{
    unsigned endless = 0, negative = 0;
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, at + i * (int64_t)sizeof h, sizeof h);
        endless |= (h & 0x7c00u) == 0x7c00u;
        negative |= h > 0x8000u;
    }
    return (scale_kinds){endless, negative};
}

static scale_kinds kinds_of_f32(const uint8_t *at, int64_t n)
{
    unsigned endless = 0, negative = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t x;
        memcpy(&x, at + i * (int64_t)sizeof x, sizeof x);
        endless |= (x & 0x7f800000u) == 0x7f800000u;
        negative |= x > 0x80000000u;
    }
    return (scale_kinds){endless, negative};
}

const char *dq_dataset_wrong_scales(const dq_dataset *p, dq_scale_mode mode)
{
    const int64_t n = p->rows * p->cols;
    const scale_kinds k = p->dtype == DQ_F16 ? kinds_of_f16(p->data, n) : kinds_of_f32(p->data, n);
    if (k.endless) return "holds a scale that is not finite.";
    return k.negative ? dq_quant_modes[mode].negative : NULL;
}

#define AT(member) .at = offsetof(dq_weight, member)
#define CODES      AT(data), .of = codes, .wrong = wrong_codes
#define SCALES     AT(scale), .of = scales, .look = look_at_scales, .wrong = dq_dataset_wrong_scales

static bool holds_scale(float scale, dq_dtype type)
{
    return type != DQ_F16 || dq_quant_scale_fits_f16(scale);
}

static void put_scale(uint8_t *row, int64_t group, float scale, dq_dtype dtype)
{
    const uint16_t h = dq_f16_from_f32(scale);
    if (dtype == DQ_F16)
        memcpy(row + group * (int64_t)sizeof h, &h, sizeof h);
    else
        memcpy(row + group * (int64_t)sizeof scale, &scale, sizeof scale);
}

static void dequantize_affine(float *out, const dq_weight *w, int64_t row, int64_t first, int64_t n)
{
    const uint8_t *packed =
        (const uint8_t *)w->data + (size_t)row * dq_quant_row_bytes(w->cols, w->bits);
    int8_t q[BLOCK];
    float scale = 0;
    int64_t group = -1;
    int shift = 0; /* from q = u - 2^(bits-1) to u - zero */
    /* BLOCK columns take a whole number of bytes at every width */
    for (int64_t c = first; c < first + n; c += BLOCK) {
        const int64_t m = first + n - c < BLOCK ? first + n - c : BLOCK;
        dq_quant_unpack_row(q, packed + (size_t)(c / 8) * (size_t)w->bits, m, w->bits);
        for (int64_t i = 0; i < m;) {
            const int64_t g = (c + i) / w->group_size;
            int64_t end = (g + 1) * w->group_size - c;
            if (g != group) {
                scale = dq_weight_scale(w, row, g);
                shift = (1 << (w->bits - 1)) - dq_weight_zero(w, row, g);
            }
            group = g;
            for (end = end < m ? end : m; i < end; i++)
                out[c - first + i] = (float)(q[i] + shift) * scale;
        }
    }
}

/* ---- Integers as indices ----
 * Unsigned integers u of b bits whose columns each name their group, as GPTQ leaves them when it
 * takes columns in the order of their activations: w = (u - zero) * scale of group index[column].
 * Groups are not runs of columns, so that kernels cannot multiply codes group by group: they
 * dequantize.
 *
 * Source: g_idx of AutoGPTQ and GPTQModel, weight_g_idx of compressed-tensors. */

static dq_dataset zeros_of(const dq_weight *w, int64_t groups)
{
    return (dq_dataset){.bits = w->bits,
                        .rows = w->scale_rows,
                        .cols = groups,
                        .dtype = DQ_U8,
                        .shape = {w->scale_rows, (int64_t)dq_weight_zero_bytes(groups, w->bits)},
                        .data = w->zero};
}

static dq_dataset zeros(const dq_weight *w)
{
    return zeros_of(w, w->zero ? dq_quant_groups(w->cols, w->group_size) : 0);
}

static dq_dataset columns(const dq_weight *w)
{
    return (dq_dataset){.bits = 32,
                        .rows = 1,
                        .cols = w->cols,
                        .dtype = DQ_I32,
                        .shape = {1, w->cols},
                        .data = w->index};
}

static const dq_dataset_row datasets[] = {
    {"index", "index", "in", .of = columns},
    {"packed", "int-index", "byte", .is_codes = true, .of = codes},
    {"scale", "scale", "group", .of = scales},
    {"zero", "zero", "byte", .of = zeros},
};

/* A group's factor, and what is subtracted from u first. */
typedef struct grid {
    float scale;
    int zero;
} grid;

static grid grid_of(const dq_weight *w, int64_t row, int64_t group)
{
    return (grid){dq_weight_scale(w, row, group), dq_weight_zero(w, row, group)};
}

static void index_dequantize(float *out, const dq_weight *w, int64_t row, int64_t first, int64_t n)
{
    const uint8_t *packed =
        (const uint8_t *)w->data + (size_t)row * dq_quant_row_bytes(w->cols, w->bits);
    const int64_t groups = dq_quant_groups(w->cols, w->group_size);
    const int middle = 1 << (w->bits - 1);
    const bool few = groups <= BLOCK && groups <= n; /* each is read once, not for every column */
    grid all[BLOCK];
    int8_t q[BLOCK];
    for (int64_t g = 0; few && g < groups; g++) all[g] = grid_of(w, row, g);
    /* BLOCK columns take a whole number of bytes at every width */
    for (int64_t c = first; c < first + n; c += BLOCK) {
        const int64_t m = first + n - c < BLOCK ? first + n - c : BLOCK;
        dq_quant_unpack_row(q, packed + (size_t)(c / 8) * (size_t)w->bits, m, w->bits);
        for (int64_t i = 0; i < m; i++) {
            const int64_t group = w->index[c + i];
            const grid g = few ? all[group] : grid_of(w, row, group);
            out[c - first + i] = (float)(q[i] + middle - g.zero) * g.scale;
        }
    }
}

const dq_weight_format dq_format_int_index = {
    .name = "int-index",
    .is_coded = true,
    .note = "a group for each column",
    .dataset = datasets,
    .n_datasets = sizeof datasets / sizeof *datasets,
    .dequantize = index_dequantize,
};

/* ---- Integers with zero points ----
 * Unsigned integers u of b bits, one scale and one zero point a group (asym). w = (u - zero) *
 * scale, so that a group spends its codes between its smallest and its largest value, and 0 is
 * among what it can say. Zero points are integers of b bits too, packed as codes are.
 *
 * Source: the asymmetric form of AWQ (arXiv 2306.00978) and GPTQ's group quantizer; 0 stays inside
 * the range as in ONNX DynamicQuantizeLinear, for groups that do not contain it. */

static dq_dataset zero_zeros(const dq_weight *w)
{
    return zeros_of(w, dq_quant_groups(w->cols, w->group_size));
}

static const dq_dataset_row zero_datasets[] = {
    {"packed", "int-zero", "byte", .is_codes = true, CODES},
    {"scale", "scale", "group", SCALES},
    {"zero", "zero", "byte", AT(zero), .of = zero_zeros, .wrong = wrong_codes},
};

static const dq_weight_attribute attributes[] = {{0}};

static int top_code(const dq_quant_spec *s)
{
    return (1 << s->bits) - 1;
}

/* In f64, as the range of two f32 values may exceed f32. */
static float scale_of(const dq_weight_range *r, const dq_quant_spec *s)
{
    return (float)(((double)r->high - (double)r->low) / top_code(s));
}

static bool fits_f16(const dq_weight_range *r, const dq_quant_spec *s)
{
    return dq_quant_scale_fits_f16(scale_of(r, s));
}

static dq_grid zero_grid(const dq_weight_range *r, const dq_quant_spec *s)
{
    dq_grid g = {.scale = dq_quant_stored_scale(scale_of(r, s), s->scale_dtype)};
    if (g.scale == 0) return g;
    const float zero = rintf(-r->low / g.scale), top = (float)top_code(s);
    g.zero = (int)(zero < top ? zero : top);
    return g;
}

static dq_grid fit(const float *w, int64_t n, const dq_quant_spec *s)
{
    dq_weight_range r = {0};
    dq_weight_range_ends(&r, w, n);
    return zero_grid(&r, s);
}

/* Codes whose value would exceed f32 are not used. */
static void encode(int8_t *q, float *got, const float *w, int64_t n, dq_grid g,
                   const dq_quant_spec *s)
{
    float low = (float)-g.zero, high = (float)(top_code(s) - g.zero);
    if (g.scale == 0) {
        memset(got, 0, (size_t)n * sizeof *got);
        memset(q, 0, (size_t)n);
    } else {
        while (isinf(low * g.scale)) low += 1;
        while (isinf(high * g.scale)) high -= 1;
        dq_quant_loops()->encode(q, got, w, n, g.scale, low, high);
    }
    const int shift = g.zero - (1 << (s->bits - 1)); /* modulo 256, as the codes are */
    for (int64_t i = 0; i < n; i++) q[i] = (int8_t)(q[i] + shift);
}

static int level(int8_t q, dq_grid g, const dq_quant_spec *s)
{
    return q + (1 << (s->bits - 1)) - g.zero;
}

static void put(uint8_t *const dataset[DQ_MAX_DATASETS], int64_t group, dq_grid g,
                const dq_quant_spec *s)
{
    const int64_t bit = group * s->bits;
    const unsigned u = (unsigned)g.zero << bit % 8;
    uint8_t *at = dataset[2] + bit / 8;
    put_scale(dataset[1], group, g.scale, s->scale_dtype);
    at[0] = (uint8_t)(at[0] | u);
    if (u > 255) at[1] = (uint8_t)(at[1] | u >> 8);
}

const dq_weight_format dq_format_int_zero = {
    .name = "int-zero",
    .is_coded = true,
    .is_affine = true,
    .note = "zero points",
    .attribute = attributes,
    .dataset = zero_datasets,
    .n_datasets = sizeof zero_datasets / sizeof *zero_datasets,
    .dequantize = dequantize_affine,
    .modes = 1 << DQ_ASYM,
    .ends = true,
    .fits_f16 = fits_f16,
    .grid = zero_grid,
    .fit = fit,
    .holds = holds_scale,
    .encode = encode,
    .level = level,
    .put = put,
};

/* Signed integers q of b bits, stored as u = q + 2^(b-1), times one scale per group (absmax,
 * search). */

static const dq_dataset_row int_datasets[] = {
    {"packed", "int-packed", "byte", .is_codes = true, CODES},
    {"scale", "scale", "group", SCALES},
};

static int offset(int bits)
{
    return 1 << (bits - 1);
}

static const dq_weight_attribute int_attributes[] = {{"offset", offset}, {0}};

/* F32 where a candidate that must not be lost needs it; others that do not fit are dropped. */
static bool int_fits_f16(const dq_weight_range *r, const dq_quant_spec *s)
{
    return dq_quant_scale_fits_f16(dq_quant_absmax_scale(r->peak, s->bits)) &&
           (s->mode == DQ_ABSMAX ||
            dq_quant_scale_fits_f16(dq_quant_signed_scale(r->peak, s->bits)));
}

static dq_grid int_grid(const dq_weight_range *r, const dq_quant_spec *s)
{
    return (dq_grid){
        .scale = dq_quant_stored_scale(dq_quant_absmax_scale(r->peak, s->bits), s->scale_dtype)};
}

static dq_grid int_fit(const float *w, int64_t n, const dq_quant_spec *s)
{
    return (dq_grid){.scale = dq_quant_group_scale(w, n, s->bits, s->mode, s->scale_dtype)};
}

static dq_grid fit_weighted(const float *w, const double *weight, int64_t n, const dq_quant_spec *s)
{
    return (dq_grid){.scale = dq_quant_search_weighted(w, weight, n, s->bits, s->scale_dtype)};
}

static void int_encode(int8_t *q, float *got, const float *w, int64_t n, dq_grid g,
                       const dq_quant_spec *s)
{
    dq_quant_encode_back(q, got, w, n, s->bits, g.scale, s->mode);
}

static int int_level(int8_t q, dq_grid g, const dq_quant_spec *s)
{
    (void)g, (void)s;
    return q;
}

static void put_scale_alone(uint8_t *const dataset[DQ_MAX_DATASETS], int64_t group, dq_grid g,
                            const dq_quant_spec *s)
{
    put_scale(dataset[1], group, g.scale, s->scale_dtype);
}

const dq_weight_format dq_format_int = {
    .name = "int-packed",
    .is_coded = true,
    .is_affine = true,
    .attribute = int_attributes,
    .dataset = int_datasets,
    .n_datasets = sizeof int_datasets / sizeof *int_datasets,
    .dequantize = dequantize_affine,
    .modes = 1 << DQ_ABSMAX | 1 << DQ_SEARCH,
    .fits_f16 = int_fits_f16,
    .grid = int_grid,
    .fit = int_fit,
    .fit_weighted = fit_weighted,
    .holds = holds_scale,
    .encode = int_encode,
    .level = int_level,
    .put = put_scale_alone,
};

/* ---- Trellis codes ----
 * Codes of 2 to 5 bits that are read as windows of 8 bits (tensor.h), a level of 8 bits for each
 * window, one scale a group, and one factor a column, without which columns of large values would
 * want the same few levels row after row, which a ring cannot give. w = level * scale * factor.
 * Rows are dealt to strips of 128; a strip holds a ring of bits for every column, column after
 * column. */

static dq_dataset rings(const dq_weight *w)
{
    const int64_t blocks = w->rows / DQ_STRIP_BLOCK + (w->rows % DQ_STRIP_BLOCK != 0);
    return (dq_dataset){.bits = w->bits,
                        .rows = w->rows,
                        .cols = w->cols,
                        .dtype = DQ_U8,
                        .shape = {blocks, w->cols * (w->bits * DQ_STRIP_BLOCK / 8)},
                        .data = w->data};
}

static const char *look_at_rings(dq_weight *w, const dq_tensor *found)
{
    (void)found;
    if (w->cols > INT64_MAX / DQ_STRIP_ROWS) return "wrong type or shape";
    return w->bits < DQ_TRELLIS_MIN_BITS || w->bits > DQ_TRELLIS_MAX_BITS ? "bits outside 2..5"
                                                                          : NULL;
}

static const char *never_wrong(const dq_dataset *p, dq_scale_mode mode)
{
    (void)p, (void)mode; /* every bit counts, and all 256 are factors */
    return NULL;
}

static dq_dataset levels(const dq_weight *w)
{
    return (dq_dataset){.bits = 8,
                        .rows = 1,
                        .cols = DQ_TRELLIS_LEVELS,
                        .dtype = DQ_I8,
                        .shape = {1, DQ_TRELLIS_LEVELS},
                        .data = w->level};
}

static const char *wrong_levels(const dq_dataset *p, dq_scale_mode mode)
{
    (void)mode;
    return memchr(p->data, -128, DQ_TRELLIS_LEVELS) ? "holds the level -128." : NULL;
}

static const void *levels_of(const dq_quant_spec *s)
{
    return dq_trellis_table_of(s->bits)->level;
}

static dq_dataset factors(const dq_weight *w)
{
    return (dq_dataset){.bits = 8,
                        .rows = 1,
                        .cols = w->cols,
                        .dtype = DQ_I8,
                        .shape = {1, w->cols},
                        .data = w->column};
}

static const void *factors_of(const dq_quant_spec *s)
{
    return s->column;
}

static const dq_dataset_row trellis_datasets[] = {
    {"packed", "trellis", "byte", true, AT(data), rings, look_at_rings, never_wrong, NULL},
    {"scale", "scale", "group", SCALES},
    {"scale_in", "scale-in", "in", false, AT(column), factors, NULL, never_wrong, factors_of},
    {"table", "table", "window", false, AT(level), levels, NULL, wrong_levels, levels_of},
};

_Static_assert((int)DQ_STRIP_ROWS <= (int)DQ_TRELLIS_ROWS, "a strip is a ring");

static void trellis_dequantize(float *out, const dq_weight *w, int64_t row, int64_t first,
                               int64_t n)
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

/* A scale is at least .015 of the deviation, which is hardly below a tenth of the peak: 2^-20,
 * where steps of F16 are 6 %. */
static bool trellis_fits_f16(const dq_weight_range *r, const dq_quant_spec *s)
{
    const float peak = fabsf(r->peak);
    (void)s;
    return peak == 0 || (peak >= 0x1p-10f && peak < 65504);
}

/* A value without its column's factor; squared errors are weighted accordingly. */
static double in_units(const float *w, int64_t i, const dq_quant_spec *s)
{
    return s->column ? (double)w[i] / (double)dq_weight_factor(s->column[i]) : (double)w[i];
}

static double counts(const double *weight, int64_t i, const dq_quant_spec *s)
{
    const double factor = s->column ? (double)dq_weight_factor(s->column[i]) : 1;
    return (weight ? weight[i] : 1) * factor * factor;
}

/* Tries units from the one that reaches the group's largest value down to the deviation's, in
 * eighths of an octave, for the least error; beyond the last level the rest counts. weight NULL: 1
 * each. */
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

static dq_grid trellis_fit(const float *w, int64_t n, const dq_quant_spec *s)
{
    return fit_any(w, NULL, n, s);
}

/* From here on steps of subnormal F16 scales are at most 2 %. */
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

static int trellis_level(int8_t q, dq_grid g, const dq_quant_spec *s)
{
    (void)g;
    return dq_trellis_table_of(s->bits)->level[(uint8_t)q];
}

const dq_weight_format dq_format_trellis = {
    .name = "trellis",
    .is_coded = true,
    .has_levels = true,
    .note = "trellis codes",
    .attribute = attributes,
    .dataset = trellis_datasets,
    .n_datasets = sizeof trellis_datasets / sizeof *trellis_datasets,
    .dequantize = trellis_dequantize,
    .modes = 1 << DQ_TRELLIS,
    .fits_f16 = trellis_fits_f16,
    .fit = trellis_fit,
    .fit_weighted = fit_any,
    .holds = holds,
    .encode_strip = encode_strip,
    .pack_strip = pack_strip,
    .level = trellis_level,
    .put = put_scale_alone,
};

static const dq_weight_format *const formats[] = {&dq_format_dense, &dq_format_int,
                                                  &dq_format_int_zero, &dq_format_trellis};
enum { N_FORMATS = sizeof formats / sizeof *formats };

const dq_weight_format *dq_weight_format_named(const char *name)
{
    for (int i = 0; i < N_FORMATS; i++) {
        if (strcmp(formats[i]->name, name) == 0) return formats[i];
    }
    return NULL;
}

const dq_weight_format *dq_weight_format_of_mode(dq_scale_mode mode)
{
    for (int i = 0; i < N_FORMATS; i++) {
        if (formats[i]->modes >> mode & 1) return formats[i];
    }
    return NULL;
}

const char *dq_dataset_take(dq_weight *w, const dq_dataset_row *row, const dq_tensor *found)
{
    const char *wrong = row->look ? row->look(w, found) : NULL;
    if (wrong) return wrong;
    const dq_dataset want = row->of(w);
    if (!fits(&want, found)) return "wrong type or shape";
    memcpy((char *)w + row->at, &found->data, sizeof found->data);
    return NULL;
}

size_t dq_dataset_bytes(const dq_dataset *p)
{
    return (size_t)p->shape[0] * (size_t)p->shape[1] * dq_dtypes[p->dtype].bytes;
}

dq_dataset dq_weight_dataset(const dq_weight *w, int i)
{
    return dq_weight_format_of(w)->dataset[i].of(w);
}

size_t dq_weight_bytes(const dq_weight *w)
{
    size_t bytes = 0;
    for (int i = 0; i < dq_weight_format_of(w)->n_datasets; i++) {
        const dq_dataset p = dq_weight_dataset(w, i);
        bytes += dq_dataset_bytes(&p);
    }
    return bytes;
}

double dq_weight_bits_over(int64_t bytes, int64_t n)
{
    return n > 0 ? 8.0 * (double)bytes / (double)n : 0;
}

double dq_weight_bits_per_weight(const dq_weight *w)
{
    return dq_weight_bits_over((int64_t)dq_weight_bytes(w), w->rows * w->cols);
}

void dq_weight_dequantize_rows(float *out, const dq_weight *w, int64_t begin, int64_t end)
{
    for (int64_t r = begin; r < end; r++)
        dq_weight_format_of(w)->dequantize(out + (r - begin) * w->cols, w, r, 0, w->cols);
}
