/* format_int_zero: unsigned integers u of b bits, one scale and one zero point a group (asym). w = (u - zero) *
 * scale, so that a group spends its codes between its smallest and its largest value, and 0 is among what it
 * can say. Zero points are integers of b bits too, packed as codes are.
 *
 * Source: the asymmetric form of AWQ (arXiv 2306.00978) and GPTQ's group quantizer; 0 stays inside the range as
 * in ONNX DynamicQuantizeLinear, for groups that do not contain it.
 * SPDX-License-Identifier: MIT */
#include "tensor/quant_search.h"
#include "tensor/weight_part.h"

#include <math.h>

static dq_part zeros(const dq_weight *w)
{
    const int64_t groups = dq_quant_groups(w->cols, w->group_size);
    return (dq_part){.bits = w->bits,
                     .rows = w->scale_rows,
                     .cols = groups,
                     .dtype = DQ_U8,
                     .shape = {w->scale_rows, (int64_t)dq_weight_zero_bytes(groups, w->bits)},
                     .data = w->zero};
}

static const char *take_zeros(dq_weight *w, const dq_tensor *found)
{
    const dq_part want = zeros(w);
    if (!dq_weight_part_is(&want, found)) return "wrong type or shape";
    w->zero = found->data;
    return NULL;
}

static const dq_weight_part_row parts[] = {
    {"packed", "int-zero", "byte", true, dq_weight_part_of_codes, dq_weight_part_take_codes,
     dq_weight_part_wrong_codes, NULL},
    {"scale", "scale", "group", false, dq_weight_part_of_scales, dq_weight_part_take_scales,
     dq_weight_part_wrong_scales, NULL},
    {"zero", "zero", "byte", false, zeros, take_zeros, dq_weight_part_wrong_codes, NULL},
};

static const dq_weight_attribute attributes[] = {{0}};

static int top_code(const dq_quant_spec *s)
{
    return (1 << s->bits) - 1;
}

/* In f64: the range of two f32 values need not be one. */
static float scale_of(const dq_weight_range *r, const dq_quant_spec *s)
{
    return (float)(((double)r->high - (double)r->low) / top_code(s));
}

static bool fits_f16(const dq_weight_range *r, const dq_quant_spec *s)
{
    return dq_quant_scale_fits_f16(scale_of(r, s));
}

static dq_grid grid(const dq_weight_range *r, const dq_quant_spec *s)
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
    return grid(&r, s);
}

/* Codes whose value would lie beyond f32 are not used. */
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

static void put(uint8_t *const part[DQ_MAX_PARTS], int64_t group, dq_grid g, const dq_quant_spec *s)
{
    const int64_t bit = group * s->bits;
    const unsigned u = (unsigned)g.zero << bit % 8;
    uint8_t *at = part[2] + bit / 8;
    dq_weight_part_put_scale(part[1], group, g.scale, s->scale_dtype);
    at[0] = (uint8_t)(at[0] | u);
    if (u > 255) at[1] = (uint8_t)(at[1] | u >> 8);
}

const dq_weight_format dq_format_int_zero = {
    .name = "int-zero",
    .is_coded = true,
    .is_affine = true,
    .note = "zero points",
    .attribute = attributes,
    .part = parts,
    .n_parts = sizeof parts / sizeof *parts,
    .dequantize = dq_weight_part_dequantize_affine,
    .modes = 1 << DQ_ASYM,
    .ends = true,
    .fits_f16 = fits_f16,
    .grid = grid,
    .fit = fit,
    .holds = dq_weight_part_holds_scale,
    .encode = encode,
    .level = level,
    .put = put,
};
