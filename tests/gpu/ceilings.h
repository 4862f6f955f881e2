/* ceilings: what this device reaches at best, measured in the run whose shares are taken of it.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CEILINGS_H
#define DQ_CEILINGS_H

#include "engine/backend.h"

typedef struct dq_ceilings {
    double copy;       /* bytes read and written per second by a copy inside the device */
    double bf16, int8; /* multiply-adds (as two) per second of cuBLAS; 0: refused */
} dq_ceilings;

/* `b` is a CUDA backend; n: rows and columns of the products. */
dq_status dq_ceilings_measure(dq_ceilings *out, dq_backend *b, int n, dq_err *err);

#endif
