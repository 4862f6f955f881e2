/* simd_vnni: products of 8-bit integers with AVX-512 VNNI. Compiled with flags of its own.
 * SPDX-License-Identifier: MIT */
#include "simd.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

/* Up to 6 rows by 32 columns: 12 sums in registers. */
static inline void few_rows(int32_t *dots, const int8_t *a, int64_t lda, const uint8_t *w,
                            const int m, int64_t k)
{
    __m512i sum[6][2];
    for (int i = 0; i < m; i++) sum[i][0] = sum[i][1] = _mm512_setzero_si512();
    for (int64_t kk = 0; kk < k; kk += 4) {
        const __m512i w0 = _mm512_load_si512(w + kk * DQ_INT8_COLS);
        const __m512i w1 = _mm512_load_si512(w + kk * DQ_INT8_COLS + 64);
        for (int i = 0; i < m; i++) {
            int32_t four;
            memcpy(&four, a + i * lda + kk, sizeof four);
            const __m512i x = _mm512_set1_epi32(four);
            sum[i][0] = _mm512_dpbusd_epi32(sum[i][0], w0, x);
            sum[i][1] = _mm512_dpbusd_epi32(sum[i][1], w1, x);
        }
    }
    for (int i = 0; i < m; i++) {
        _mm512_storeu_si512(dots + i * DQ_INT8_COLS, sum[i][0]);
        _mm512_storeu_si512(dots + i * DQ_INT8_COLS + 16, sum[i][1]);
    }
}

void dq_int8_dots_vnni(int32_t *dots, const int8_t *a, int64_t lda, const uint8_t *w, int64_t m,
                       int64_t k)
{
    int64_t i = 0;
    for (; i + 6 <= m; i += 6) few_rows(dots + i * DQ_INT8_COLS, a + i * lda, lda, w, 6, k);
    for (; i < m; i++) few_rows(dots + i * DQ_INT8_COLS, a + i * lda, lda, w, 1, k);
}

#endif
