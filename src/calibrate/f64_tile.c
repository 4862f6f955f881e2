/* f64_tile: see f64_tile.h. The sums of a block stay in registers over all of k; products and sums are rounded apart (no fused
 * multiply-add), so that every level gives the same bits.
 * SPDX-License-Identifier: MIT */
#include "calibrate/f64_tile.h"

#include "base/os.h"

#include <stdatomic.h>
#include <string.h>

/* LANES of the 64 columns at once, 4 x 2 of them as sums, each a variable: gcc -O2 would keep an array in memory. */
#define ROW(name, LANES, i)                                                                        \
    name##_lanes *const to##i = (name##_lanes *)(void *)(c + i * 64);                              \
    name##_lanes left##i = to##i[0], right##i = to##i[1];
#define STEP(i)                                                                                    \
    left##i += a[i] * row[0];                                                                      \
    right##i += a[i] * row[1];
#define STORE(i)                                                                                   \
    to##i[0] = left##i;                                                                            \
    to##i[1] = right##i;
#define VERSION(name, LANES, attribute)                                                            \
    typedef double name##_lanes __attribute__((vector_size(8 * LANES), may_alias));                \
    attribute static void block_##name(double *c, const double *a, int64_t lda, const double *b,   \
                                       int64_t k)                                                  \
    {                                                                                              \
        ROW(name, LANES, 0)                                                                        \
        ROW(name, LANES, 1)                                                                        \
        ROW(name, LANES, 2)                                                                        \
        ROW(name, LANES, 3)                                                                        \
        for (int64_t p = 0; p < k; p++, a += lda, b += 64) {                                       \
            const name##_lanes *row = (const name##_lanes *)(const void *)b;                       \
            STEP(0)                                                                                \
            STEP(1)                                                                                \
            STEP(2)                                                                                \
            STEP(3)                                                                                \
        }                                                                                          \
        STORE(0)                                                                                   \
        STORE(1)                                                                                   \
        STORE(2)                                                                                   \
        STORE(3)                                                                                   \
    }                                                                                              \
    attribute static void add_##name(double *c, const double *a, int64_t lda, const double *b,     \
                                     int64_t m, int64_t k)                                         \
    {                                                                                              \
        for (int64_t p = 0; p < k; p += DEPTH) {                                                   \
            const int64_t depth = k - p < DEPTH ? k - p : DEPTH;                                   \
            for (int j = 0; j < 64; j += 2 * LANES) {                                              \
                for (int64_t i = 0; i < m; i += 4)                                                 \
                    block_##name(c + i * 64 + j, a + p * lda + i, lda, b + p * 64 + j, depth);     \
            }                                                                                      \
        }                                                                                          \
    }

enum { DEPTH = 256 }; /* rows of a and b that stay in the second-level cache */
#define NOTHING
VERSION(plain, 2, NOTHING)
#if defined(__x86_64__)
VERSION(avx2, 4, __attribute__((target("avx2"))))
VERSION(avx512, 8, __attribute__((target("avx512f,prefer-vector-width=512"))))
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
