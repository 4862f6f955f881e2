/* weights: packed codes read the plain way, and what sums over weights may be off by. For tests.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_WEIGHTS_H
#define DQ_WEIGHTS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* Plain reading of one code: bit by bit. */
static inline int code_at(const uint8_t *row, int64_t col, int bits, int zero)
{
    int u = 0;
    for (int i = 0; i < bits; i++) {
        const int64_t at = col * bits + i;
        u |= (row[at / 8] >> (at % 8) & 1) << i;
    }
    return u - zero;
}

static inline bool are_near(const double *a, const double *b, int n, double by)
{
    for (int i = 0; i < n; i++)
        if (!(fabs(a[i] - b[i]) <= by)) return false;
    return true;
}

/* What logits of weights value[rows, cols] may be off by: the largest sum of |weights| times 2^-20, for activations of
 * deviation 1. */
static inline double rounding_of(const double *value, int64_t rows, int64_t cols)
{
    double most = 0;
    for (int64_t i = 0; i < rows; i++) {
        double sum = 0;
        for (int64_t k = 0; k < cols; k++) sum += fabs(value[i * cols + k]);
        most = fmax(most, sum);
    }
    return most * 0x1p-20;
}

#endif
