/* loops_maps: what a row of attention maps looks like, for the files of the instruction sets, in the vectors of loops_divergence.h: every
 * product and sum is rounded alone, and 8 lanes are summed whatever a vector holds. What does not fill the lanes is filled up with
 * zeros, which add nothing.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_LOOPS_MAPS_H
#define DQ_LOOPS_MAPS_H

#include "kernels/cpu/isa/loops_divergence.h"
#include "kernels/cpu/simd.h"

#include <float.h>

typedef float maps_floats __attribute__((vector_size(DIVERGENCE_BYTES / 2)));
typedef int32_t maps_ints __attribute__((vector_size(DIVERGENCE_BYTES / 2)));
typedef uint32_t maps_words __attribute__((vector_size(DIVERGENCE_BYTES / 2)));
enum { MAPS_VECTORS = DIVERGENCE_LANES / DIVERGENCE_STEP };

/* log(x) of a normal x > 0. x = 2^n m with m from sqrt(1/2) to sqrt(2), r = m - 1 is exact; log(1 + r) = r - r^2 / 2 + r^3 q(r), q of
 * degree 7 with the least relative error of log, 2^-27.3. n times the first part of ln 2, 9 bits, is exact. */
DIVERGENCE_INLINE maps_floats maps_log(maps_floats x)
{
    static const float q[] = {-0x1.38b57fp-4f, 0x1.055b6ap-3f, -0x1.0d8542p-3f, 0x1.22da1cp-3f,
                              -0x1.547244p-3f, 0x1.99a008p-3f, -0x1.000226p-2f, 0x1.555554p-2f};
    const maps_words bits = (maps_words)x, above = bits - 0x3f3504f3u; /* sqrt(1/2) */
    const maps_floats n = __builtin_convertvector((maps_ints)above >> 23, maps_floats);
    const maps_floats r = (maps_floats)(bits - (above & 0xff800000u)) - 1.0f, square = r * r;
    maps_floats y = r * q[0] + q[1];
#pragma GCC unroll 6
    for (int i = 2; i < 8; i++) y = y * r + q[i];
    y = y * r * square - n * 2.12194440e-4f; /* the second part of ln 2 is below 0 */
    return ((y - square * 0.5f) + r) + n * 0.693359375f;
}

DIVERGENCE_INLINE maps_floats maps_load(const float *p)
{
    maps_floats x;
    memcpy(&x, p, sizeof x);
    return x;
}

DIVERGENCE_INLINE maps_floats maps_size(maps_floats x)
{
    return (maps_floats)((maps_ints)x & INT32_MAX);
}

DIVERGENCE_INLINE double maps_fold(const wide_doubles *sum)
{
    double lane[DIVERGENCE_LANES];
    memcpy(lane, sum, sizeof lane);
    return fold_lanes(lane);
}

DIVERGENCE_INLINE void maps_add_entropy(wide_doubles *sum, const float *p, float a)
{
    for (int j = 0; j < MAPS_VECTORS; j++) {
        const maps_floats x = maps_load(p + j * DIVERGENCE_STEP) * a;
        const maps_floats term = (maps_floats)((maps_ints)(x * maps_log(x)) & (x >= FLT_MIN));
        sum[j] -= __builtin_convertvector(term, wide_doubles);
    }
}

static double entropy(const float *p, int64_t n, float a)
{
    wide_doubles sum[MAPS_VECTORS] = {{0}};
    float rest[DIVERGENCE_LANES] = {0};
    int64_t i = 0;
    for (; i + DIVERGENCE_LANES <= n; i += DIVERGENCE_LANES) maps_add_entropy(sum, p + i, a);
    if (i < n) {
        memcpy(rest, p + i, (size_t)(n - i) * sizeof *rest);
        maps_add_entropy(sum, rest, a);
    }
    return maps_fold(sum);
}

/* Lane by lane, of a row and of its page: what is below 0, what there is; how many values lie below each limit. */
typedef struct maps_walk {
    wide_doubles negative[MAPS_VECTORS], page[MAPS_VECTORS];
    maps_ints below[DQ_SIMD_LIMITS];
} maps_walk;

/* `both` is a constant at every call. */
DIVERGENCE_INLINE void maps_add_sizes(maps_walk *w, const float *p1, const float *p2, float a,
                                      float b, const float *limit, const bool both)
{
    for (int j = 0; j < MAPS_VECTORS; j++) {
        maps_floats d = maps_load(p1 + j * DIVERGENCE_STEP) * a;
        if (both) {
            d -= maps_load(p2 + j * DIVERGENCE_STEP) * b;
            const maps_floats low = (maps_floats)((maps_ints)d & (d < 0.0f));
            w->negative[j] -= __builtin_convertvector(low, wide_doubles);
        }
        const maps_floats size = maps_size(d);
        w->page[j] += __builtin_convertvector(size, wide_doubles);
        for (int k = 0; k < DQ_SIMD_LIMITS; k++) w->below[k] -= size < limit[k];
    }
}

DIVERGENCE_INLINE void maps_walk_page(maps_walk *w, const float *p1, const float *p2, int64_t n,
                                      float a, float b, const float *limit, const bool both)
{
    float rest[2][DIVERGENCE_LANES] = {{0}};
    int64_t i = 0;
    for (int j = 0; j < MAPS_VECTORS; j++) w->page[j] = (wide_doubles){0};
    for (; i + DIVERGENCE_LANES <= n; i += DIVERGENCE_LANES)
        maps_add_sizes(w, p1 + i, both ? p2 + i : p1, a, b, limit, both);
    if (i == n) return;
    memcpy(rest[0], p1 + i, (size_t)(n - i) * sizeof **rest);
    if (both) memcpy(rest[1], p2 + i, (size_t)(n - i) * sizeof **rest);
    maps_add_sizes(w, rest[0], rest[1], a, b, limit, both);
}

DIVERGENCE_INLINE double maps_walk_row(double *page, int64_t *below, const float *p1,
                                       const float *p2, int64_t n, float a, float b,
                                       const float *limit, const bool both)
{
    const int64_t spare = (DIVERGENCE_LANES - n % DIVERGENCE_LANES) % DIVERGENCE_LANES;
    const float none = fabsf(0.0f * a - 0.0f * b); /* |d| of what fills up */
    maps_walk w;
    memset(&w, 0, sizeof w);
    for (int64_t i = 0; i < n; i += DQ_TILE_N) {
        const int64_t end = n - i < DQ_TILE_N ? n - i : DQ_TILE_N;
        maps_walk_page(&w, p1 + i, both ? p2 + i : NULL, end, a, b, limit, both);
        page[i / DQ_TILE_N] = maps_fold(w.page);
    }
    for (int k = 0; k < DQ_SIMD_LIMITS; k++) {
        for (int j = 0; j < DIVERGENCE_STEP; j++) below[k] += w.below[k][j];
        if (none < limit[k]) below[k] -= spare;
    }
    return maps_fold(w.negative);
}

static double map_sizes(double *page, int64_t *below, const float *p1, const float *p2, int64_t n,
                        float a, float b, const float *limit)
{
    return p2 ? maps_walk_row(page, below, p1, p2, n, a, b, limit, true)
              : maps_walk_row(page, below, p1, NULL, n, a, 0.0f, limit, false);
}

#endif
