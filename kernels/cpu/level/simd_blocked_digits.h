/* simd_blocked_digits: f32 products with blocked weights (simd.h), by integer sums of activations in three digits of
 * eight bits; written once for all levels. Uses what simd_blocked.h has; a level with SUMS_OF_16_BITS has included that and
 * defined blocked_digit_dots before.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SIMD_BLOCKED_DIGITS_H
#define DQ_SIMD_BLOCKED_DIGITS_H

#include "kernels/cpu/level/simd_blocked.h"

#include <math.h>

/* -------------------------------------------------------------------------------------- activations */

/* 2^e for -149 <= e <= 127. */
static float power_of_two(int e)
{
    return (float)ldexp(1.0, e);
}

/* The exponent of the unit in which max > 0 takes at most 8355711 units = 127 * (65536 + 256 + 1), more than half of
 * them where f32 has numbers that small. */
static int digit_exponent(float max)
{
    int e;
    (void)frexp((double)max * (1 + 1.0 / 128), &e); /* max < 2^e / (1 + 1/128) */
    return e - 23 < -149 ? -149 : e - 23;
}

/* Nearest integer, ties to even, for |x| < 2^23: half of it is rounded first, what is left is at most 1. */
BLOCKED_INLINE int32_t nearest(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23 */
    const float half = x * 0.5f + magic - magic, rest = x - (half + half);
    return (int32_t)(half + half) + (int32_t)(rest + magic - magic);
}

/* What units leave of activations, exact. Products with powers of two are exact, too; one alone would not be a number where
 * x is small. */
static void digit_rest(float *rest, const float *x, int64_t n, float a, float b, float unit)
{
    for (int64_t i = 0; i < n; i++) rest[i] = x[i] - (float)nearest(x[i] * a * b) * unit;
}

/* Whether half of a piece or more is too small for its unit: `small` numbers of units are at most an eighth of the
 * largest, and `below` is their sum. */
static bool is_uneven(int32_t below, int32_t small, int64_t n, int32_t left)
{
    enum { ENOUGH = 1 << 16 };
    return left && 2 * small >= n && below < small * ENOUGH;
}

static bool digits(int8_t *line, int64_t ld, float *unit, int32_t sum[3], float *rest,
                   const float *x, int64_t n, float max)
{
    int32_t high = 0, middle = 0, low = 0, below = 0, n_below = 0, left = 0;
    if (!(max > 0) || !isfinite(max)) {
        for (int d = 0; d < 3; d++) memset(line + d * ld, 0, (size_t)n);
        if (rest) memset(rest, 0, (size_t)n * sizeof *rest);
        sum[0] = sum[1] = sum[2] = 0;
        *unit = max == 0 ? 0.0f : NAN; /* shows in every result of the row */
        return false;
    }
    const int e = digit_exponent(max), first = e < -100 ? 100 : -e;
    const float a = power_of_two(first), b = power_of_two(-e - first);
    const int32_t small = nearest(max * a * b) / 8;
    int8_t *line1 = line + ld, *line2 = line1 + ld;
#pragma omp simd reduction(+ : high, middle, low, below, n_below) reduction(| : left)
    for (int64_t i = 0; i < n; i++) {
        const float units = x[i] * a * b;
        const int32_t all = nearest(units), mag = all < 0 ? -all : all, is_below = mag <= small;
        const int32_t d2 = ((all + 128) & 255) - 128;
        const int32_t two = (all - d2) >> 8;
        const int32_t d1 = ((two + 128) & 255) - 128;
        const int32_t d0 = (two - d1) >> 8;
        line[i] = (int8_t)d0, line1[i] = (int8_t)d1, line2[i] = (int8_t)d2;
        high += d0, middle += d1, low += d2;
        below += is_below * mag, n_below += is_below, left |= units != (float)all;
    }
    *unit = power_of_two(e);
    sum[0] = high, sum[1] = middle, sum[2] = low;
    if (rest) digit_rest(rest, x, n, a, b, *unit);
    return is_uneven(below, n_below, n, left);
}

/* ----------------------------------------------------------------------------------------- products */

/* What the sums of a piece start from: -zero * (sum of digits), whole in `start` where groups share a zero point. */
BLOCKED_INLINE void blocked_digit_start(veci sum[3 * DQ_BLOCKED_F32_MAX][4],
                                        const dq_simd_blocked_weight *w, const uint8_t *at,
                                        int64_t group, int64_t row, const int32_t *start,
                                        const int m, const int nv)
{
#pragma GCC unroll 9
    for (int i = 0; i < 3 * m; i++) {
        const veci of = all_words(start[i]);
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) sum[i][j] = of;
    }
    if (!w->own_zeros) return;
#pragma GCC unroll 4
    for (int j = 0; j < nv; j++) {
        const veci zero = load_bytes(at + w->zero_at + group * DQ_BLOCKED_ROWS + row + j * LANES);
#pragma GCC unroll 9
        for (int i = 0; i < 3 * m; i++) sum[i][j] = words_times(zero, sum[i][j]);
    }
}

#ifndef SUMS_OF_16_BITS
BLOCKED_INLINE void blocked_digit_dots(veci sum[3 * DQ_BLOCKED_F32_MAX][4], const uint8_t *chunk,
                                       const int8_t *code, const int m, const int nv,
                                       const int bits)
{
#pragma GCC unroll 8
    for (int s = 0; s < STEPS; s++) {
        veci u[4];
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++)
            u[j] = int8_codes(blocked_codes(chunk + j * 4 * LANES, bits, s), bits);
#pragma GCC unroll 9
        for (int i = 0; i < 3 * m; i++) {
            const veci x = all_fours(code + 4 * (3 * s * m + i));
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) sum[i][j] = add_dots(sum[i][j], u[j], x, bits);
        }
    }
}
#endif

/* Adds a piece's sums to the totals. The first product is exact, and the last one where it is no denormal. */
BLOCKED_INLINE void blocked_digit_fold(vecf total[DQ_BLOCKED_F32_MAX][4],
                                       veci sum[3 * DQ_BLOCKED_F32_MAX][4], const vecf scale[4],
                                       const float *unit, const int m, const int nv)
{
    const vecf high = all_floats(65536.0f);
#pragma GCC unroll 4
    for (int i = 0; i < m; i++) {
        const vecf own = all_floats(unit[i]);
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) {
            const veci low = words_plus(words_left(sum[3 * i + 1][j], 8), sum[3 * i + 2][j]);
            const vecf all = floats_fma(floats_of(sum[3 * i][j]), high, floats_of(low));
            const vecf part = floats_times(floats_times(all, scale[j]), own);
            total[i][j] = floats_plus(total[i][j], part);
        }
    }
}

/* Asks for a chunk 4 KiB or more behind chunk c of the block at `at`. Behind the last one come those of the next block. */
BLOCKED_INLINE void blocked_expect_chunk(const dq_simd_blocked_weight *w, const uint8_t *at,
                                         int64_t c, const int bits)
{
    c += (4096 + bits * LINE - 1) / (bits * LINE);
    blocked_ask(at + c * bits * LINE + (c < w->chunks ? 0 : w->bytes - w->scale_at), bits);
}

/* Likewise for the scales and zero points of a group. */
BLOCKED_INLINE void blocked_expect_scales(const dq_simd_blocked_weight *w, const uint8_t *at,
                                          int64_t g)
{
    enum { AHEAD = 16 };
    const int64_t each = DQ_BLOCKED_ROWS * (w->scale_f16 ? 2 : 4);
    const uint8_t *p = at + w->scale_at + (g + AHEAD) * each;
    if (g + AHEAD >= w->groups) p += w->bytes - w->groups * each;
    __builtin_prefetch(p, 0, 3);
    if (!w->scale_f16) __builtin_prefetch(p + 64, 0, 3);
    if (w->own_zeros) __builtin_prefetch(at + w->zero_at + (g + AHEAD) * DQ_BLOCKED_ROWS, 0, 3);
}

BLOCKED_INLINE bool are_zero(const float *unit, const int m)
{
    bool zero = true;
    for (int i = 0; i < m; i++) zero &= unit[i] == 0;
    return zero;
}

/* y[i * 32 + row ..] for m rows of activations and nv vectors of a block's rows. */
BLOCKED_INLINE void blocked_f32(float *y, const dq_simd_blocked_weight *w, const uint8_t *at,
                                int64_t row, const dq_simd_blocked_digits *a, const int m,
                                const int nv, const int bits)
{
    const uint8_t *chunk = at + 4 * row;
    const int8_t *code = a->code;
    const float *unit = a->unit;
    const int32_t *start = a->start;
    int64_t left = w->chunks, c = 0;
    vecf total[DQ_BLOCKED_F32_MAX][4];
#pragma GCC unroll 4
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) total[i][j] = all_floats(0.0f);
    for (int64_t g = 0; g < w->groups; g++) {
        int64_t of_group = left < w->group ? left : w->group;
        left -= of_group;
        for (; of_group > 0; of_group -= DQ_BLOCKED_PIECE, unit += m, start += 3 * m) {
            veci sum[3 * DQ_BLOCKED_F32_MAX][4];
            vecf scale[4];
            int64_t n = of_group < DQ_BLOCKED_PIECE ? of_group : DQ_BLOCKED_PIECE;
            if (are_zero(unit, m)) { /* adds nothing */
                c += n, chunk += n * blocked_chunk_bytes(bits), code += n * 12 * STEPS * m;
                continue;
            }
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) scale[j] = blocked_scale(w, at, g, row + j * LANES);
            blocked_expect_scales(w, at, g);
            blocked_digit_start(sum, w, at, g, row, start, m, nv);
            for (; n > 0; n--, c++, chunk += blocked_chunk_bytes(bits), code += 12 * STEPS * m) {
                blocked_expect_chunk(w, at, c, bits);
                blocked_digit_dots(sum, chunk, code, m, nv, bits);
            }
            blocked_digit_fold(total, sum, scale, unit, m, nv);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++)
            store_floats(y + i * DQ_BLOCKED_ROWS + row + j * LANES, total[i][j]);
}

#endif
