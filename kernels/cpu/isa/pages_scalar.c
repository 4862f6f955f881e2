/* pages_scalar: attention on packed KV pages in plain C. See simd.h.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/isa/kv_lines.h"
#include "kernels/cpu/isa/pages_portable.h"
#include "kernels/cpu/simd.h"

/* Columns in their own order. */
static void pages_quads(uint8_t *block, const uint8_t *const line[4], int bits, int64_t n,
                        int64_t chunk)
{
    const int64_t left = n - chunk * 64, cols = left < 64 ? left : 64;
    memset(block, 0, 256);
    for (int i = 0; i < 4; i++) {
        uint8_t u[DQ_KV_LINE];
        if (!line[i]) continue;
        kv_unsigned(u, line[i], bits, n);
        for (int64_t c = 0; c < cols; c++) block[4 * c + i] = u[chunk * 64 + c];
    }
}

static void pages_dots(int32_t *sum, const int8_t *const a[4], int64_t lda, const uint8_t *block,
                       int64_t m, int64_t k)
{
    memset(sum, 0, (size_t)m * 64 * sizeof *sum);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t kk = 0; kk < k; kk += 4) {
            const uint8_t *part = block + kk * 64;
            for (int64_t c = 0; c < 64; c++) {
                const int8_t *x = a[c / 16] + i * lda + kk;
                sum[i * 64 + c] += x[0] * part[4 * c] + x[1] * part[4 * c + 1] +
                                   x[2] * part[4 * c + 2] + x[3] * part[4 * c + 3];
            }
        }
    }
}

#include "kernels/cpu/isa/pages_loops.h"

const dq_simd_pages dq_simd_pages_scalar = DQ_PAGES_TABLE;
