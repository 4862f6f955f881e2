/* pages_avx2: attention on packed KV pages with AVX2. See simd.h.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/isa/kv_lines.h"
#include "kernels/cpu/simd.h"

#if defined(__x86_64__)

#include <immintrin.h>

/* Columns in their own order. */
INLINE void pages_quads(uint8_t *block, const uint8_t *const line[4], int bits, int64_t n,
                        int64_t chunk)
{
    uint8_t u[4][2 * DQ_KV_LINE] = {{0}};
    for (int i = 0; i < 4; i++) {
        if (line[i]) kv_unsigned(u[i], line[i], bits, n);
    }
    for (int64_t c = 0; c < 64; c += 16) {
        const int64_t at = chunk * 64 + c;
        const __m128i x = _mm_loadu_si128((const void *)(u[0] + at));
        const __m128i y = _mm_loadu_si128((const void *)(u[1] + at));
        const __m128i z = _mm_loadu_si128((const void *)(u[2] + at));
        const __m128i w = _mm_loadu_si128((const void *)(u[3] + at));
        const __m128i xy0 = _mm_unpacklo_epi8(x, y), xy1 = _mm_unpackhi_epi8(x, y);
        const __m128i zw0 = _mm_unpacklo_epi8(z, w), zw1 = _mm_unpackhi_epi8(z, w);
        _mm_store_si128((void *)(block + 4 * c), _mm_unpacklo_epi16(xy0, zw0));
        _mm_store_si128((void *)(block + 4 * c + 16), _mm_unpackhi_epi16(xy0, zw0));
        _mm_store_si128((void *)(block + 4 * c + 32), _mm_unpacklo_epi16(xy1, zw1));
        _mm_store_si128((void *)(block + 4 * c + 48), _mm_unpackhi_epi16(xy1, zw1));
    }
}

/* One row, 16 columns of a code; in words of 16 bits, as sums of pairs of byte products need 17. */
static inline void dots16(int32_t *sum, const int8_t *a, const uint8_t *block, int64_t k)
{
    __m256i z[4];
    for (int j = 0; j < 4; j++) z[j] = _mm256_setzero_si256();
    for (int64_t kk = 0; kk < k; kk += 4, block += 256) {
        int32_t four;
        memcpy(&four, a + kk, sizeof four);
        const __m256i x = _mm256_cvtepi8_epi16(_mm_set1_epi32(four));
        for (int j = 0; j < 4; j++) {
            const __m128i u = _mm_load_si128((const void *)(block + 16 * j));
            z[j] = _mm256_add_epi32(z[j], _mm256_madd_epi16(_mm256_cvtepu8_epi16(u), x));
        }
    }
    for (int j = 0; j < 4; j += 2) { /* pairs add up to columns 0 1 4 5 | 2 3 6 7 */
        const __m256i s = _mm256_hadd_epi32(z[j], z[j + 1]);
        _mm256_storeu_si256((void *)(sum + 4 * j), _mm256_permute4x64_epi64(s, 0xd8));
    }
}

static void pages_dots(int32_t *sum, const int8_t *const a[4], int64_t lda, const uint8_t *block,
                       int64_t m, int64_t k)
{
    for (int64_t i = 0; i < m; i++) {
        for (int c = 0; c < 4; c++)
            dots16(sum + i * 64 + c * 16, a[c] + i * lda, block + c * 64, k);
    }
}

#include "kernels/cpu/isa/pages.h"

const dq_simd_pages dq_simd_pages_avx2 = DQ_PAGES_TABLE;

#endif
