/* correction: weights that make up for what rounding has done to the model before them.
 *
 * A product's inputs x in the rounded model are not those that it was made for. The weights whose outputs come nearest, in
 * the mean of squares over the calibration text, to what the model computed before rounding are
 *     W* = W + C (H + damping I)^-1,   H = mean of x x^T,   C = mean of (target - W x) x^T,
 * and it is W* that is rounded then. Where only inputs differ, target = W x' with x' the inputs of the model before rounding,
 * and C = W M with M = mean of (x' - x) x^T. Where the output is added to the residual stream, target - W x is all that this
 * stream lacks after the product, so that o and down take back what was lost earlier too.
 * Source: asymmetric calibration, GPTAQ, arXiv 2504.02692, and Qronos, arXiv 2505.11695, whose least squares are solved
 * here at once and before rounding; the residual target is dq's own.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CORRECTION_H
#define DQ_CORRECTION_H

#include "calibrate/cross.h"
#include "calibrate/hessian.h"

enum { DQ_CORRECTION_ROWS = 64 }; /* of C that are solved together */

/* C becomes C (H + damping I)^-1: x->n = h->n columns in the matrix's order; h is factored. Columns without any input become
 * 0. DQ_RESOURCE; DQ_STOPPED. */
dq_status dq_correction_solve(dq_cross *x, const dq_hessian *h, dq_err *err);
/* The same, by all ranks, each of which solves for some rows. */
dq_status dq_correction_solve_in_step(dq_cross *x, const dq_hessian *h, dq_err *err);
/* w[rows, k->n] += w K, for a solved M [n, n]; and, w being rows first .. first + rows - 1 of a matrix, w += these rows of K,
 * for a solved C. In f64, rounded once. The same bits for any number of threads, and whole or band by band. DQ_RESOURCE. */
dq_status dq_correction_of_inputs(float *w, int64_t rows, const dq_cross *k, dq_err *err);
dq_status dq_correction_of_outputs(float *w, int64_t first, int64_t rows, const dq_cross *k,
                                   dq_err *err);
/* out[k->m] = diagonal of K H K^T, H the sums of h, which is not factored: the squares that each output changes by, summed over
 * its inputs. The same bits for any number of threads. DQ_RESOURCE. */
dq_status dq_correction_energy(double *out, const dq_cross *k, const dq_hessian *h, dq_err *err);

#endif
