/* gptq_stripes: codes of a band of a matrix's rows, of which each rank (base/ranks.h) rounds a stripe: rows, or strips of them,
 * do not see each other.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_GPTQ_STRIPES_H
#define DQ_GPTQ_STRIPES_H

#include "calibrate/gptq.h"
#include "tensor/tensor.h"

typedef struct dq_gptq_stripes {
    const dq_quant_spec *spec;
    int64_t cols;
    /* Rows have one scale: the band is the matrix, and every rank rounds it for itself. */
    bool whole;
    /* Codes of rows first .. first + rows - 1 of the matrix, and loss[rows] of each. */
    dq_status (*round)(void *arg, dq_codes **out, dq_gptq_loss *loss, int64_t first, int64_t rows,
                       dq_err *err);
    void *arg;
} dq_gptq_stripes;

/* By all ranks: rows first .. first + rows - 1 of *out, which has all rows of the matrix, and loss[rows], on all of them the
 * same. Fails where a rank has failed. */
dq_status dq_gptq_stripes_round(const dq_gptq_stripes *s, dq_coded *out, dq_gptq_loss *loss,
                                int64_t first, int64_t rows, dq_err *err);

#endif
