/* format_int: signed integers q of b bits around zero, stored as u = q + 2^(b-1), times one scale a group
 * (absmax, search).
 * SPDX-License-Identifier: MIT */
#include "tensor/quant_search.h"
#include "tensor/weight_part.h"

static const dq_weight_part_row parts[] = {
    {"packed", "int-packed", "byte", true, dq_weight_part_of_codes, dq_weight_part_take_codes,
     dq_weight_part_wrong_codes, NULL},
    {"scale", "scale", "group", false, dq_weight_part_of_scales, dq_weight_part_take_scales,
     dq_weight_part_wrong_scales, NULL},
};

static int offset(int bits)
{
    return 1 << (bits - 1);
}

static const dq_weight_attribute attributes[] = {{"offset", offset}, {0}};

/* A search needs F32 where one of the modes that it must not lose to does; of its own candidates it takes
 * those that fit. */
static bool fits_f16(const dq_weight_range *r, const dq_quant_spec *s)
{
    return dq_quant_scale_fits_f16(dq_quant_absmax_scale(r->peak, s->bits)) &&
           (s->mode == DQ_ABSMAX ||
            dq_quant_scale_fits_f16(dq_quant_signed_scale(r->peak, s->bits)));
}

static dq_grid grid(const dq_weight_range *r, const dq_quant_spec *s)
{
    return (dq_grid){
        .scale = dq_quant_stored_scale(dq_quant_absmax_scale(r->peak, s->bits), s->scale_dtype)};
}

static dq_grid fit(const float *w, int64_t n, const dq_quant_spec *s)
{
    return (dq_grid){.scale = dq_quant_group_scale(w, n, s->bits, s->mode, s->scale_dtype)};
}

static dq_grid fit_weighted(const float *w, const double *weight, int64_t n, const dq_quant_spec *s)
{
    return (dq_grid){.scale = dq_quant_search_weighted(w, weight, n, s->bits, s->scale_dtype)};
}

static void encode(int8_t *q, float *got, const float *w, int64_t n, dq_grid g,
                   const dq_quant_spec *s)
{
    dq_quant_encode_back(q, got, w, n, s->bits, g.scale, s->mode);
}

static int level(int8_t q, dq_grid g, const dq_quant_spec *s)
{
    (void)g, (void)s;
    return q;
}

static void put(uint8_t *const part[DQ_MAX_PARTS], int64_t group, dq_grid g, const dq_quant_spec *s)
{
    dq_weight_part_put_scale(part[1], group, g.scale, s->scale_dtype);
}

const dq_weight_format dq_format_int = {
    .name = "int-packed",
    .is_coded = true,
    .is_affine = true,
    .attribute = attributes,
    .part = parts,
    .n_parts = sizeof parts / sizeof *parts,
    .dequantize = dq_weight_part_dequantize_affine,
    .modes = 1 << DQ_ABSMAX | 1 << DQ_SEARCH,
    .fits_f16 = fits_f16,
    .grid = grid,
    .fit = fit,
    .fit_weighted = fit_weighted,
    .holds = dq_weight_part_holds_scale,
    .encode = encode,
    .level = level,
    .put = put,
};
