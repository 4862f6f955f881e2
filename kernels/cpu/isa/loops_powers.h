/* loops_powers: sums of powers of magnitudes, for the files of the instruction sets, in the vectors of loops_divergence.h: every product
 * and sum is rounded alone, and 8 lanes are summed whatever a vector holds.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_LOOPS_POWERS_H
#define DQ_LOOPS_POWERS_H

#include "kernels/cpu/isa/loops_divergence.h"

enum { POWERS_VECTORS = DIVERGENCE_LANES / DIVERGENCE_STEP };

static void power_sums(double sum[3], const float *x, int n)
{
    wide_doubles s[3][POWERS_VECTORS] = {{{0}}};
    double lane[3][DIVERGENCE_LANES];
    int i = 0;
    for (; i + DIVERGENCE_LANES <= n; i += DIVERGENCE_LANES) {
        for (int j = 0; j < POWERS_VECTORS; j++) {
            wide_floats a;
            memcpy(&a, x + i + j * DIVERGENCE_STEP, sizeof a);
            const wide_doubles v = __builtin_convertvector(a, wide_doubles), w = v * v;
            s[0][j] += (wide_doubles)((wide_words)v & INT64_MAX);
            s[1][j] += w;
            s[2][j] += w * w;
        }
    }
    memcpy(lane, s, sizeof lane);
    for (int k = 0; i < n; i++, k++) {
        const double v = (double)x[i], w = v * v;
        lane[0][k] += fabs(v);
        lane[1][k] += w;
        lane[2][k] += w * w;
    }
    for (int k = 0; k < 3; k++) sum[k] += fold_lanes(lane[k]);
}

#endif
