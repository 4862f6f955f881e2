/* peaks: what this device reaches at best, measured in the run whose shares are taken of it.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PEAKS_H
#define DQ_PEAKS_H

#include "engine/backend.h"

typedef struct dq_peaks {
    double copy;       /* bytes read and written per second by a copy inside the device */
    double bf16, int8; /* multiply-adds (as two) per second of cuBLAS; 0: refused */
} dq_peaks;

/* `b` is a CUDA backend; n: rows and columns of the products. */
dq_status dq_peaks_measure(dq_peaks *out, dq_backend *b, int n, dq_err *err);

#endif
