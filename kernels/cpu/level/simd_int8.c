/* simd_int8: products of 8-bit integers in plain C. See simd.h.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/simd.h"

#include <string.h>

void dq_simd_int8_dots(int32_t *dots, const int8_t *a, int64_t lda, const uint8_t *w, int64_t m,
                       int64_t k)
{
    for (int64_t i = 0; i < m; i++) {
        int32_t *d = dots + i * DQ_INT8_COLS;
        memset(d, 0, DQ_INT8_COLS * sizeof *d);
        for (int64_t kk = 0; kk < k; kk += 4) {
            const int8_t *x = a + i * lda + kk;
            const uint8_t *word = w + kk * DQ_INT8_COLS;
            for (int j = 0; j < DQ_INT8_COLS; j++)
                d[j] += x[0] * word[4 * j] + x[1] * word[4 * j + 1] + x[2] * word[4 * j + 2] +
                        x[3] * word[4 * j + 3];
        }
    }
}
