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

#endif
