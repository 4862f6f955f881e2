/* weight_part: the datasets that formats share: packed codes, and scales of groups. Used by format_*.c only.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_WEIGHT_PART_H
#define DQ_WEIGHT_PART_H

#include "tensor/weight_format.h"

dq_part dq_weight_part_of_codes(const dq_weight *w);
const char *dq_weight_part_take_codes(dq_weight *w, const dq_tensor *found);
dq_part dq_weight_part_of_scales(const dq_weight *w);
const char *dq_weight_part_take_scales(dq_weight *w, const dq_tensor *found);

/* Rows of packed entries whose padding bits are not all zero; scales that are not finite, or negative where
 * their mode never makes them so. */
const char *dq_weight_part_wrong_codes(const dq_part *p, dq_scale_mode mode);
const char *dq_weight_part_wrong_scales(const dq_part *p, dq_scale_mode mode);

/* Whether a dataset has the type and shape of a part. */
bool dq_weight_part_is(const dq_part *want, const dq_tensor *found);
/* Whether a type holds a scale as a normal number. */
bool dq_weight_part_holds_scale(float scale, dq_dtype type);
/* Stores the scale of a group in a row of scales. */
void dq_weight_part_put_scale(uint8_t *row, int64_t group, float scale, dq_dtype dtype);
/* out[n] = (u - zero) * scale of an affine weight, as dequantize of dq_weight_format. */
void dq_weight_part_dequantize_affine(float *out, const dq_weight *w, int64_t row, int64_t first,
                                      int64_t n);

#endif
