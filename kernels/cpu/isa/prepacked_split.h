/* prepacked_split: f32 products with prepacked weights (simd.h), by integer sums of activations as split integers, three parts of
 * eight bits each; written once for all instruction sets. Parts are rows of
 * prepacked_loops.h, which needs what that says.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PREPACKED_SPLIT_H
#define DQ_PREPACKED_SPLIT_H

#include "kernels/cpu/isa/prepacked_loops.h"

#include <math.h>

/* -------------------------------------------------------------------------------------- activations */

/* 2^e for -149 <= e <= 127. */
static float power_of_two(int e)
{
    const uint32_t bits = e < -126 ? 1u << (e + 149) : (uint32_t)(e + 127) << 23;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The exponent of the unit in which max > 0 takes at most 8355711 units = 127 * (65536 + 256 + 1), more than half of
 * them where f32 has numbers that small. */
static int split_exponent(float max)
{
    const double more = (double)max * (1 + 1.0 / 128);
    uint64_t bits;
    memcpy(&bits, &more, sizeof bits);
    const int e = (int)(bits >> 52) - 1022; /* more < 2^e */
    return e - 23 < -149 ? -149 : e - 23;
}

/* Nearest integer, ties to even, for |x| < 2^23: half of it is rounded first, what is left is at most 1. */
PREPACKED_INLINE int32_t nearest(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23 */
    const float half = x * 0.5f + magic - magic, rest = x - (half + half);
    return (int32_t)(half + half) + (int32_t)(rest + magic - magic);
}

/* What units leave of activations, exact. Products with powers of two are exact, too; one alone would not be a number where
 * x is small. */
static void split_rest(float *rest, const float *x, int64_t n, float a, float b, float unit)
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

/* Vectors of what parts are made of: the compiler's own, as a vector's lanes are all that there is. */
typedef float split_floats __attribute__((vector_size(4 * LANES)));
typedef int32_t split_words __attribute__((vector_size(4 * LANES)));
typedef int8_t split_bytes __attribute__((vector_size(LANES)));

typedef struct split_sums {
    split_words part[3], below, n_below, left;
} split_sums;

/* Parts of LANES columns, to[3][ld]; x is taken a * b times. */
PREPACKED_INLINE void split_columns(split_sums *sum, int8_t *to, int64_t ld, const float *x,
                                    float a, float b, int32_t small)
{
    const float magic = 12582912.0f; /* as in nearest() */
    split_floats units;
    memcpy(&units, x, sizeof units);
    units = units * a * b;
    const split_floats half = units * 0.5f + magic - magic, coarse = half + half;
    const split_floats rest = units - coarse, fine = rest + magic - magic;
    const split_words all =
        __builtin_convertvector(coarse, split_words) + __builtin_convertvector(fine, split_words);
    const split_words sign = all >> 31, mag = (all ^ sign) - sign, is_below = mag <= small;
    const split_words d2 = ((all + 128) & 255) - 128, two = (all - d2) >> 8;
    const split_words d1 = ((two + 128) & 255) - 128, d0 = (two - d1) >> 8;
    const split_words part[3] = {d0, d1, d2};
#pragma GCC unroll 3
    for (int d = 0; d < 3; d++) {
        const split_bytes bytes = __builtin_convertvector(part[d], split_bytes);
        memcpy(to + d * ld, &bytes, sizeof bytes);
        sum->part[d] += part[d];
    }
    sum->below += mag & is_below;
    sum->n_below -= is_below;
    sum->left |= rest != fine;
}

PREPACKED_INLINE int32_t sum_of(const split_words *x)
{
    int32_t sum = 0;
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) sum += (*x)[i];
    return sum;
}

static bool split(int8_t *line, int64_t ld, float *unit, int32_t sum[3], float *rest,
                  const float *x, int64_t n, float max)
{
    if (!(max > 0) || !isfinite(max)) {
        for (int d = 0; d < 3; d++) memset(line + d * ld, 0, (size_t)n);
        if (rest) memset(rest, 0, (size_t)n * sizeof *rest);
        sum[0] = sum[1] = sum[2] = 0;
        *unit = max == 0 ? 0.0f : NAN; /* shows in every result of the row */
        return false;
    }
    const int e = split_exponent(max), first = e < -100 ? 100 : -e;
    const float a = power_of_two(first), b = power_of_two(-e - first);
    const int32_t small = nearest(max * a * b) / 8;
    const int64_t whole = n / LANES * LANES;
    split_sums s = {0};
    for (int64_t i = 0; i < whole; i += LANES) split_columns(&s, line + i, ld, x + i, a, b, small);
    if (whole < n) {
        float some[LANES] = {0};
        int8_t bytes[3 * LANES];
        memcpy(some, x + whole, (size_t)(n - whole) * sizeof *x);
        split_columns(&s, bytes, LANES, some, a, b, small);
        for (int d = 0; d < 3; d++)
            memcpy(line + d * ld + whole, bytes + d * LANES, (size_t)(n - whole));
    }
#pragma GCC unroll 3
    for (int d = 0; d < 3; d++) sum[d] = sum_of(&s.part[d]);
    *unit = power_of_two(e);
    if (rest) split_rest(rest, x, n, a, b, *unit);
    const int64_t filled = whole < n ? whole + LANES - n : 0; /* columns of zeros, all small */
    return is_uneven(sum_of(&s.below), sum_of(&s.n_below) - (int32_t)filled, n, sum_of(&s.left));
}

/* ----------------------------------------------------------------------------------------- products */

/* What the sums of a piece start from: -zero * (sum of parts), whole in `start` where groups share a zero point. */
PREPACKED_INLINE void prepacked_split_start(veci sum[3 * DQ_PREPACKED_F32_MAX][4],
                                            const dq_simd_prepacked_weight *w, const uint8_t *at,
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
        const veci zero = load_bytes(prepacked_zeros(at, w, group) + row + j * LANES);
#pragma GCC unroll 9
        for (int i = 0; i < 3 * m; i++) sum[i][j] = words_times(zero, sum[i][j]);
    }
}

/* Adds a piece's sums to the totals. The first product is exact, and the last one where it is no denormal. */
PREPACKED_INLINE void prepacked_split_fold(vecf total[DQ_PREPACKED_F32_MAX][4],
                                           veci sum[3 * DQ_PREPACKED_F32_MAX][4],
                                           const vecf scale[4], const float *unit, const int m,
                                           const int nv)
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

PREPACKED_INLINE bool are_zero(const float *unit, const int m)
{
    bool zero = true;
    for (int i = 0; i < m; i++) zero &= unit[i] == 0;
    return zero;
}

/* A piece: `left` chunks of its group are left, n of them are its own; parts and what belongs to them. */
typedef struct prepacked_piece {
    int64_t group, left, n;
    int64_t at;    /* bytes from the block to these chunks */
    int64_t ahead; /* bytes from these to what is asked for; 0: nothing is */
    const int8_t *code;
    const float *unit;
    const int32_t *start;
} prepacked_piece;

/* Adds a piece of rows `row` .. of a block, nv vectors of them, to the totals. */
PREPACKED_INLINE void prepacked_f32_piece(vecf total[DQ_PREPACKED_F32_MAX][4],
                                          const dq_simd_prepacked_weight *w, const uint8_t *at,
                                          int64_t row, const prepacked_piece *t, const int m,
                                          const int nv, const int bits)
{
    const uint8_t *p = at + t->at, *scales = p + t->left * bits * LINE;
    const int8_t *code = t->code;
    veci sum[3 * DQ_PREPACKED_F32_MAX][4];
    vecf scale[4];
    prepacked_split_start(sum, w, at, t->group, row, t->start, m, nv);
    for (int64_t c = 0; c < t->n; c++, p += bits * LINE, code += int8_bytes(bits) * 3 * m) {
        if (row == 0 && t->ahead) prepacked_ask(p + t->ahead, bits * LINE);
        prepacked_dots(sum, p + 4 * row, code, 3 * m, 3 * m, nv, bits);
    }
    if (row == 0 && t->ahead && p == scales) prepacked_ask_scales(p + t->ahead, w);
#pragma GCC unroll 4
    for (int j = 0; j < nv; j++) scale[j] = prepacked_scale(w, scales, row + j * LANES);
    prepacked_split_fold(total, sum, scale, t->unit, m, nv);
}

/* After a piece; `chunks` are left of the block. False after the last one. */
PREPACKED_INLINE bool prepacked_next_piece(prepacked_piece *t, const dq_simd_prepacked_weight *w,
                                           int64_t *chunks, const int m, const int bits)
{
    *chunks -= t->n;
    t->left -= t->n;
    t->at += t->n * bits * LINE;
    t->code += t->n * int8_bytes(bits) * 3 * m;
    t->unit += m;
    t->start += 3 * m;
    if (*chunks == 0) return false;
    if (t->left == 0) {
        t->group++;
        t->at += w->scales + prepacked_skip(w, t->group);
        t->left = *chunks < w->group ? *chunks : w->group;
    }
    t->n = t->left < DQ_PREPACKED_PIECE ? t->left : DQ_PREPACKED_PIECE;
    return true;
}

PREPACKED_INLINE prepacked_piece prepacked_first_piece(const dq_simd_prepacked_weight *w,
                                                       const dq_simd_split_rows *a, int64_t ahead)
{
    const int64_t n = w->group < DQ_PREPACKED_PIECE ? w->group : DQ_PREPACKED_PIECE;
    return (prepacked_piece){.left = w->group,
                             .n = n,
                             .at = prepacked_skip(w, 0),
                             .ahead = ahead,
                             .code = a->code,
                             .unit = a->unit,
                             .start = a->start};
}

/* Rows `row` .. of a block, nv vectors of them: totals stay in registers. */
PREPACKED_INLINE void prepacked_f32_one(float *y, int64_t ldy, const dq_simd_prepacked_weight *w,
                                        const uint8_t *at, int64_t row, const dq_simd_split_rows *a,
                                        const int m, const int nv, const int bits)
{
    prepacked_piece t = prepacked_first_piece(w, a, 4096);
    int64_t chunks = w->chunks;
    vecf total[DQ_PREPACKED_F32_MAX][4];
#pragma GCC unroll 4
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) total[i][j] = all_floats(0.0f);
    do {
        if (!are_zero(t.unit, m)) /* adds nothing */
            prepacked_f32_piece(total, w, at, row, &t, m, nv, bits);
    } while (prepacked_next_piece(&t, w, &chunks, m, bits));
    prepacked_put(y + row, ldy, total, m, nv);
}

/* Blocks side by side, a piece of each in turn (see prepacked_int8_wide). */
PREPACKED_INLINE void prepacked_f32_wide(float *y, int64_t ldy, const dq_simd_prepacked_weight *w,
                                         const dq_simd_blocks b, const dq_simd_split_rows *a,
                                         const int m, const int nv, const int bits)
{
    prepacked_piece t = prepacked_first_piece(w, a, 0);
    int64_t chunks = w->chunks;
    /* With vectors of 512 bits a processor that is not asked fetches no less wide codes, and codes with zero points, and has
     * less to do; of narrow ones it reads little between products, and with 256 bits it always fetches less (measured:
     * dq bench --generate --math f32). */
    const int64_t piece = t.n * bits * LINE;
    if (LANES == 16)
        t.ahead = bits <= 4 && !w->own_zeros ? piece + 4096 : 0;
    else
        t.ahead = piece > 2048 ? piece + 1024 : 3072;
    for (int i = 0; i < m; i++) memset(y + i * ldy, 0, (size_t)b.n * DQ_PREPACKED_ROWS * sizeof *y);
    do {
        if (are_zero(t.unit, m)) continue;
        for (int k = 0; k < b.n; k++)
            for (int row = 0; row < DQ_PREPACKED_ROWS; row += nv * LANES) {
                vecf total[DQ_PREPACKED_F32_MAX][4];
                float *to = y + k * DQ_PREPACKED_ROWS + row;
                prepacked_total(total, to, ldy, m, nv);
                prepacked_f32_piece(total, w, b.at + k * b.apart, row, &t, m, nv, bits);
                prepacked_put(to, ldy, total, m, nv);
            }
    } while (prepacked_next_piece(&t, w, &chunks, m, bits));
}

/* Only one row waits for memory. */
PREPACKED_INLINE void prepacked_f32(float *y, int64_t ldy, const dq_simd_prepacked_weight *w,
                                    const dq_simd_blocks b, const dq_simd_split_rows *a,
                                    const int m, const int nv, const int bits)
{
    if (m == 1 && b.n > 1) {
        prepacked_f32_wide(y, ldy, w, b, a, m, nv, bits);
        return;
    }
    for (int k = 0; k < b.n; k++)
        for (int row = 0; row < DQ_PREPACKED_ROWS; row += nv * LANES)
            prepacked_f32_one(y + k * DQ_PREPACKED_ROWS, ldy, w, b.at + k * b.apart, row, a, m, nv,
                              bits);
}

#define F32_ARGS                                                                                   \
    float *y, int64_t ldy, const dq_simd_prepacked_weight *w, dq_simd_blocks b,                    \
        const dq_simd_split_rows *a
#define F32_FUNCTION(M, BITS)                                                                      \
    static void f32_##M##_##BITS(F32_ARGS)                                                         \
    {                                                                                              \
        prepacked_f32(y, ldy, w, b, a, M, int8_vectors(3 * M, BITS), BITS);                        \
    }
#define F32_NAME(M, BITS) f32_##M##_##BITS,

#endif
