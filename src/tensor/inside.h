/* What the files of src/tensor share.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TENSOR_INSIDE_H
#define DQ_TENSOR_INSIDE_H

#include "tensor/tensor.h"

/* The candidate, or scale of absmax and sign, with the least error weighted by weight[n]. */
float dq_quant_search_weighted(const float *w, const double *weight, int64_t n, int bits,
                               dq_dtype dtype);

/* Two scales, before they are stored, for a group whose value of largest magnitude (the first of
 * equals) is `peak`: |peak| / Qmax, and the one by which the peak becomes the code -2^(b-1), whose
 * sign is that of -peak. */
float dq_quant_absmax_scale(float peak, int bits);

dq_part dq_weight_part_of_codes(const dq_weight *w);
const char *dq_weight_part_take_codes(dq_weight *w, const dq_tensor *found);
dq_part dq_weight_part_of_scales(const dq_weight *w);
const char *dq_weight_part_take_scales(dq_weight *w, const dq_tensor *found);

/* Nonzero padding bits; scales that are not finite, or negative where they may not be. */
const char *dq_weight_part_wrong_codes(const dq_part *p, dq_scale_mode mode);
bool dq_weight_part_is(const dq_part *want, const dq_tensor *found);
bool dq_weight_part_holds_scale(float scale, dq_dtype type);
void dq_weight_part_put_scale(uint8_t *row, int64_t group, float scale, dq_dtype dtype);
/* out[n] = (u - zero) * scale, for dequantize of dq_weight_format. */
void dq_weight_part_dequantize_affine(float *out, const dq_weight *w, int64_t row, int64_t first,
                                      int64_t n);

#endif
