/* gptq: rounding a matrix so that the errors of columns that are rounded already are made up for by those that are not.
 *
 * With the columns in the order in which they are rounded and H + damping I = (U + I) D (U + I)^T, U strictly upper
 * triangular, column k becomes Q(w_k + sum over j < k of (w_j - w'_j) U_jk), Q being the rounding to the nearest code of the
 * group's grid. Grids are found from the original weights.
 * Source: GPTQ, arXiv 2210.17323, in the form of LDLQ, arXiv 2307.13304 (theorem 6: both are the same), which needs no
 * inverse; order by descending diagonal of H: --act-order of the GPTQ code.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_GPTQ_H
#define DQ_GPTQ_H

#include "calibrate/hessian.h"
#include "tensor/tensor.h"

typedef struct dq_gptq_loss {
    double error, signal; /* tr((W - W')H(W - W')^T) and tr(W H W^T) of the undamped H */
} dq_gptq_loss;

/* Codes of w[rows, cols], all finite, for the factored Hessian of its inputs. `spec` is taken as it is: width 2..8, group,
 * mode, type of scales (which must hold them). Grids are those of the mode. For modes with tries each row is rounded DQ_GPTQ_TRIES
 * times and keeps what loses least: with the scales of least squared error, these times the mode's tries, and with those of
 * least squared error weighted by D, what a column's own rounding costs. Then scales are found anew from the codes
 * (scale_refit.h) and rows rounded by them, `refits` times; again a row keeps what loses less. Where codes are found together, it is
 * strips of rows that keep it. loss[rows], of each row, may be NULL.
 * The result depends neither on the number of threads, nor on how rows are divided: between strips, if codes are found together.
 * An input that is always 0 (h->dead) sets no scale: its weights are limited to the range of the others. Columns zero[cols]
 * (NULL: none) make up for no error, so that a pruned channel stays pruned.
 * DQ_RESOURCE; DQ_STOPPED between strips of rows. */
enum { DQ_GPTQ_TRIES = 5 };
dq_status dq_gptq(dq_codes **out, const float *w, int64_t rows, int64_t cols, const dq_hessian *h,
                  const bool *zero, const dq_quant_spec *spec, int refits, dq_gptq_loss *loss,
                  dq_err *err);
/* *zero, a block: which columns of a matrix are 0 in all rows; NULL: none is. DQ_RESOURCE. */
dq_status dq_gptq_zero_columns(bool **zero, const dq_weight *w, dq_err *err);
/* loss[rows] of codes against weights that need not be those that were rounded. DQ_RESOURCE; DQ_STOPPED. */
dq_status dq_gptq_measure(dq_gptq_loss *loss, const dq_codes *c, const float *w,
                          const dq_hessian *h, dq_err *err);
/* *sum += that of all rows, from the first to the last. */
void dq_gptq_loss_add(dq_gptq_loss *sum, const dq_gptq_loss *loss, int64_t rows);
/* One rounding with grids that are there: c->grid is read, c->code and loss[rows].error are filled. */
dq_status dq_gptq_round(dq_codes *c, const float *w, const dq_hessian *h, const bool *zero,
                        dq_gptq_loss *loss, dq_err *err);

#endif
