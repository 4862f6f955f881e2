/* key_factor: see key_factor.h. Rows of U from the first on, each taken off those below it; its inverse from the last row
 * on.
 * SPDX-License-Identifier: MIT */
#include "kernels/paged/key_factor.h"

#include <math.h>
#include <string.h>

/* What the source adds to the diagonal; ten times as much as long as there is no factor. */
static const double ridge = 1e-2;

/* U of gram + add on the diagonal. */
static bool factor(double *u, const double *gram, double add, int64_t cols, int64_t ld)
{
    memcpy(u, gram, (size_t)(cols * ld) * sizeof *u);
    for (int64_t k = 0; k < cols; k++) u[k * ld + k] += add;
    for (int64_t k = 0; k < cols; k++) {
        double *row = u + k * ld;
        if (!(row[k] > 0 && isfinite(row[k]))) return false;
        const double root = sqrt(row[k]);
        for (int64_t j = k; j < cols; j++) row[j] /= root;
        for (int64_t i = k + 1; i < cols; i++) {
            double *to = u + i * ld;
            const double f = row[i];
            for (int64_t j = i; j < cols; j++) to[j] -= f * row[j];
        }
    }
    return true;
}

/* `inverse` is of zeros. */
static void invert(float *right, double *inverse, const double *u, int64_t cols, int64_t ld)
{
    for (int64_t i = cols - 1; i >= 0; i--) {
        double *row = inverse + i * ld;
        row[i] = 1.0;
        for (int64_t j = i + 1; j < cols; j++) {
            const double f = u[i * ld + j], *from = inverse + j * ld;
            for (int64_t c = j; c < cols; c++) row[c] -= f * from[c];
        }
        for (int64_t c = i; c < cols; c++) {
            row[c] /= u[i * ld + i];
            right[i * ld + c] = (float)row[c];
        }
    }
}

bool dq_key_factor(float *right, double *work, const double *gram, int64_t cols, int64_t ld)
{
    const size_t n = (size_t)(cols * ld);
    double add = ridge, *u = work, *inverse = work + n;
    for (int64_t i = 0; i < cols; i++)
        if (!isfinite(gram[i * ld + i])) return false;
    while (isfinite(add) && !factor(u, gram, add, cols, ld)) add *= 10;
    if (!isfinite(add)) return false;
    memset(inverse, 0, n * sizeof *inverse);
    memset(right, 0, n * sizeof *right);
    invert(right, inverse, u, cols, ld);
    return true;
}
