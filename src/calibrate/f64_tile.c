/* f64_tile: see f64_tile.h. Registers hold 4 x 16 (AVX-512) or 4 x 8 sums over all of k; products and sums are rounded apart
 * (no fused multiply-add), so that every level gives the same bits.
 * SPDX-License-Identifier: MIT */
#include "calibrate/f64_tile.h"

#include "base/os.h"

#include <stdatomic.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* n of the 64 columns, eight at a time as one vector. */
typedef double eight __attribute__((vector_size(64)));

INLINE void block(double *c, const double *a, int64_t lda, const double *b, int64_t k, int n)
{
    eight sum[4][2];
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < n; j++) sum[i][j] = *(const eight *)(const void *)(c + i * 64 + 8 * j);
    }
    for (int64_t p = 0; p < k; p++) {
        for (int j = 0; j < n; j++) {
            const eight row = *(const eight *)(const void *)(b + p * 64 + 8 * j);
            for (int i = 0; i < 4; i++) sum[i][j] += a[p * lda + i] * row;
        }
    }
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < n; j++) *(eight *)(void *)(c + i * 64 + 8 * j) = sum[i][j];
    }
}

INLINE void add(double *c, const double *a, int64_t lda, const double *b, int64_t m, int64_t k,
                int n)
{
    enum { DEPTH = 256 }; /* rows of a and b that stay in the second-level cache */
    for (int64_t p = 0; p < k; p += DEPTH) {
        const int64_t d = k - p < DEPTH ? k - p : DEPTH;
        for (int j = 0; j < 64; j += 8 * n) {
            for (int64_t i = 0; i < m; i += 4)
                block(c + i * 64 + j, a + p * lda + i, lda, b + p * 64 + j, d, n);
        }
    }
}

static void add_plain(double *c, const double *a, int64_t lda, const double *b, int64_t m,
                      int64_t k)
{
    add(c, a, lda, b, m, k, 1);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void add_avx2(double *c, const double *a, int64_t lda,
                                                     const double *b, int64_t m, int64_t k)
{
    add(c, a, lda, b, m, k, 1);
}

__attribute__((target("avx512f,prefer-vector-width=512"))) static void
add_avx512(double *c, const double *a, int64_t lda, const double *b, int64_t m, int64_t k)
{
    add(c, a, lda, b, m, k, 2);
}
#endif

typedef void add_loop(double *c, const double *a, int64_t lda, const double *b, int64_t m,
                      int64_t k);

static add_loop *choose(void)
{
#if defined(__x86_64__)
    const unsigned has = dq_os_cpu_features(NULL);
    if (has & DQ_CPU_AVX512) return add_avx512;
    if (has & DQ_CPU_AVX2) return add_avx2;
#endif
    return add_plain;
}

void dq_f64_tile_add(double *c, const double *a, int64_t lda, const double *b, int64_t m, int64_t k)
{
    static _Atomic(add_loop *) chosen;
    add_loop *now = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (!now) {
        now = choose();
        atomic_store_explicit(&chosen, now, memory_order_relaxed);
    }
    now(c, a, lda, b, m, k);
}

void dq_f64_tile_transpose(double *dst, const double *src, int64_t ld, int64_t rows, int64_t cols)
{
    if (rows < DQ_F64_TILE) memset(dst, 0, (size_t)cols * DQ_F64_TILE * sizeof *dst);
    for (int64_t c0 = 0; c0 < cols; c0 += 8) {
        const int64_t end = c0 + 8 < cols ? c0 + 8 : cols;
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t c = c0; c < end; c++) dst[c * DQ_F64_TILE + r] = src[r * ld + c];
        }
    }
}
