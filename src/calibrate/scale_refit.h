/* scale_refit: the scales that fit codes best. With the integers z of a row's groups given, w' = sum over g of s_g z_g is linear
 * in the scales, and the s that miss least, (w - w')(H + damping I)(w - w')^T, solve a system as large as a row has groups.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SCALE_REFIT_H
#define DQ_SCALE_REFIT_H

#include "calibrate/hessian.h"
#include "tensor/tensor.h"

/* Replaces the scales of c->grid, as stored, where the new one has the sign of the old and is between half and twice it; codes
 * and zero points stay. One scale for the whole matrix stays too. Of more groups than 704 in a row, bands of so many are
 * solved for one after the other. h is factored. The same bits for any number of threads.
 * DQ_RESOURCE; DQ_STOPPED. */
dq_status dq_scale_refit(dq_codes *c, const float *w, const dq_hessian *h, dq_err *err);
/* What it allocates meanwhile. */
int64_t dq_scale_refit_bytes(const dq_code_shape *s);

#endif
