/* prepacked: products with prepacked weights (simd.h) for all instruction sets. The including file
 * has the words of vectors.h, or its own, load_bytes, low_bits_or, int8_codes, add_dots, INT8_ONE
 * and INT8_WORDS; with INT8_ROWS and F32_ROWS, the maximum rows of a call, and int8_vectors it gets
 * int8 and f32. Where sums of products pass through 16 bits, it has defined SUMS_OF_16_BITS and
 * what stands below where that is missing. `bits`, `m` and numbers of vectors are constants where
 * speed counts.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PREPACKED_H
#define DQ_PREPACKED_H

#include "kernels/cpu/simd.h"

#include <math.h>
#include <string.h>

/* A line: one word of each of a block's rows. */
enum { LINE = 4 * DQ_PREPACKED_ROWS, STEPS = DQ_PREPACKED_COLS / 4 };

/* Into the second-level cache: loads alone keep too few lines under way, the first costs more. */
INLINE void prepacked_ask(const uint8_t *p, const int bytes)
{
    enum { CACHE_LINE = 64 };
#pragma GCC unroll 16
    for (int i = 0; i < bytes; i += CACHE_LINE) __builtin_prefetch(p + i, 0, 2);
}

INLINE void prepacked_ask_scales(const uint8_t *p, const dq_simd_prepacked_weight *w)
{
    prepacked_ask(p, 2 * DQ_PREPACKED_ROWS);
    if (!w->scale_f16) prepacked_ask(p + 2 * DQ_PREPACKED_ROWS, 2 * DQ_PREPACKED_ROWS);
}

/* Zero points of a group. */
INLINE const uint8_t *prepacked_zeros(const uint8_t *at, const dq_simd_prepacked_weight *w,
                                      int64_t group)
{
    const int64_t own = group % 2 * DQ_PREPACKED_ROWS;
    return at + dq_simd_prepacked_group(w, group - group % 2) - DQ_PREPACKED_ZEROS + own;
}

/* Zero points stand before every two groups: bytes of them before this one. */
INLINE int64_t prepacked_skip(const dq_simd_prepacked_weight *w, int64_t group)
{
    return w->own_zeros && group % 2 == 0 ? DQ_PREPACKED_ZEROS : 0;
}

/* Codes of step s, each in the low bits of its byte; the bits above are anything. */
INLINE veci prepacked_codes(const uint8_t *chunk, const int bits, const int s)
{
    const int each = 8 / bits, whole = each * bits, spare = 8 - whole, at = (s - whole) * bits;
    if (s < whole) {
        const veci line = load_words(chunk + s / each * LINE);
        return s % each ? words_right(line, s % each * bits) : line;
    }
    veci x = all_words(0);
#pragma GCC unroll 7
    for (int l = 0; l < bits; l++) {
        const int have = l * spare - at; /* of the step's bits, below those of this line */
        if (have <= -spare || have >= bits) continue;
        const veci part = words_right(load_words(chunk + l * LINE), whole - have);
        x = have > 0 ? low_bits_or(have, x, part) : part;
    }
    return x;
}

/* Scales of rows `row` .. of a group. */
INLINE vecf prepacked_scale(const dq_simd_prepacked_weight *w, const uint8_t *scales, int64_t row)
{
    return w->scale_f16 ? load_halves(scales + 2 * row)
                        : load_floats((const float *)(const void *)scales + row);
}

/* total[m], of nv vectors each, from y[m][ldy]; prepacked_put: back to it. */
INLINE void prepacked_total(vecf (*total)[4], const float *y, int64_t ldy, const int m,
                            const int nv)
{
#pragma GCC unroll 8
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) total[i][j] = load_floats(y + i * ldy + j * LANES);
}

INLINE void prepacked_put(float *y, int64_t ldy, vecf (*total)[4], const int m, const int nv)
{
#pragma GCC unroll 8
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) store_floats(y + i * ldy + j * LANES, total[i][j]);
}

/* ---- int8 */

#ifndef SUMS_OF_16_BITS /* add_dots is whole: int8_run says that nothing below it is used */
#define int8_run(bits)     1
#define pairs(u, x)        (u)
#define add_pairs(a, u, x) (a)
#define add_both(sum, a)   (sum)
#endif

/* What the sums of a group start from. */
INLINE void prepacked_start(veci sum[DQ_PREPACKED_INT8_MAX][4], const dq_simd_prepacked_weight *w,
                            const uint8_t *at, int64_t group, int64_t row, const int32_t *of,
                            const int m, const int nv)
{
    if (!w->own_zeros) {
#pragma GCC unroll 8
        for (int i = 0; i < m; i++) {
            const veci start = all_words(of[i]);
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) sum[i][j] = start;
        }
        return;
    }
#pragma GCC unroll 4
    for (int j = 0; j < nv; j++) {
        const veci zero = load_bytes(prepacked_zeros(at, w, group) + row + j * LANES);
        const veci by = words_less(all_words(0), zero);
#pragma GCC unroll 8
        for (int i = 0; i < m; i++) sum[i][j] = words_times(by, all_words(of[i]));
    }
}

/* Bytes of a row's activations of a chunk. */
INLINE int64_t int8_bytes(const int bits)
{
    return DQ_PREPACKED_COLS * (bits == INT8_WORDS ? 2 : 1);
}

/* int8_run(bits) steps are summed in 16 bits where there are such sums: over a whole chunk, whose
 * sums stay in registers, or over fewer steps, whose codes do. */
INLINE void prepacked_dots(veci (*sum)[4], const uint8_t *chunk, const int8_t *code, const int ld,
                           const int m, const int nv, const int bits)
{
    const int run = int8_run(bits), each = run < STEPS ? run : 1;
    veci part[DQ_PREPACKED_DOTS_MAX][4];
#pragma GCC unroll 8
    for (int s = 0; s < STEPS; s += each) {
        veci u[STEPS][4];
#pragma GCC unroll 8
        for (int k = 0; k < each; k++)
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++)
                u[k][j] = int8_codes(prepacked_codes(chunk + j * 4 * LANES, bits, s + k), bits);
#pragma GCC unroll 9
        for (int i = 0; i < m; i++) {
#pragma GCC unroll 8
            for (int k = 0; k < each; k++)
#pragma GCC unroll 4
                for (int j = 0; j < nv; j++) {
                    const int64_t four = (s + k) * ld + i;
                    if (run == 1)
                        sum[i][j] = add_dots(sum[i][j], u[k][j], code, four, bits);
                    else if ((s + k) % run == 0)
                        part[i][j] = pairs(u[k][j], all_fours(code + 4 * four));
                    else
                        part[i][j] = add_pairs(part[i][j], u[k][j], all_fours(code + 4 * four));
                }
#pragma GCC unroll 4
            for (int j = 0; run > 1 && j < nv; j++)
                if ((s + each) % run == 0) sum[i][j] = add_both(sum[i][j], part[i][j]);
        }
    }
}

/* Adds a group's sums to the totals. */
INLINE void prepacked_fold(vecf total[DQ_PREPACKED_INT8_MAX][4], veci sum[DQ_PREPACKED_INT8_MAX][4],
                           const dq_simd_prepacked_weight *w, const uint8_t *scales, int64_t row,
                           const float *of, const int m, const int nv)
{
    vecf scale[4];
#pragma GCC unroll 4
    for (int j = 0; j < nv; j++) scale[j] = prepacked_scale(w, scales, row + j * LANES);
#pragma GCC unroll 8
    for (int i = 0; i < m; i++) {
        const vecf own = all_floats(of[i]);
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) {
            const vecf part = floats_times(floats_of(sum[i][j]), floats_times(own, scale[j]));
            total[i][j] = floats_plus(total[i][j], part);
        }
    }
}

/* Rows `row` .. of a block, nv vectors of them: totals stay in registers. */
INLINE void prepacked_int8_one(float *y, int64_t ldy, const dq_simd_prepacked_weight *w,
                               const uint8_t *at, int64_t row, const dq_simd_prepacked_rows *a,
                               const int m, const int nv, const int bits)
{
    enum { AHEAD = 4096 };
    const uint8_t *p = at;
    const int8_t *code = a->code;
    int64_t left = w->chunks;
    vecf total[DQ_PREPACKED_INT8_MAX][4];
#pragma GCC unroll 8
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) total[i][j] = all_floats(0.0f);
    for (int64_t g = 0; g < w->groups; g++, p += w->scales) {
        veci sum[DQ_PREPACKED_INT8_MAX][4];
        int64_t n = left < w->group ? left : w->group;
        left -= n;
        p += prepacked_skip(w, g);
        prepacked_start(sum, w, at, g, row, a->sum + g * m, m, nv);
        for (; n > 0; n--, p += bits * LINE, code += int8_bytes(bits) * m) {
            prepacked_ask(p + AHEAD, bits * LINE);
            prepacked_dots(sum, p + 4 * row, code, m, m, nv, bits);
        }
        prepacked_ask_scales(p + AHEAD, w);
        prepacked_fold(total, sum, w, p, row, a->scale + g * m, m, nv);
    }
    prepacked_put(y + row, ldy, total, m, nv);
}

/* kept[m][32] */
INLINE void prepacked_keep(int32_t *kept, veci sum[DQ_PREPACKED_INT8_MAX][4], const int m,
                           const int nv)
{
#pragma GCC unroll 8
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++)
            store_words(kept + i * DQ_PREPACKED_ROWS + j * LANES, sum[i][j]);
}

INLINE void prepacked_get(veci sum[DQ_PREPACKED_INT8_MAX][4], const int32_t *kept, const int m,
                          const int nv)
{
#pragma GCC unroll 8
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++)
            sum[i][j] = load_words((const uint8_t *)(kept + i * DQ_PREPACKED_ROWS + j * LANES));
}

/* Chunks of one group: `done` of them have been summed, `left` have not, and n of these are now. */
typedef struct prepacked_turn {
    int64_t group, done, left, n;
    int64_t at, ahead; /* bytes: from the block to these chunks, from these to what is asked for */
    const int8_t *code;
    const int32_t *sum;
    const float *scale;
} prepacked_turn;

/* A turn of a block's rows from `row` on, nv vectors; kept[m][32]: sums between turns. */
INLINE void prepacked_int8_turn(float *y, int64_t ldy, int32_t *kept,
                                const dq_simd_prepacked_weight *w, const uint8_t *at, int64_t row,
                                const prepacked_turn *t, const int m, const int nv, const int bits)
{
    const uint8_t *p = at + t->at;
    const int8_t *code = t->code;
    veci sum[DQ_PREPACKED_INT8_MAX][4];
    vecf total[DQ_PREPACKED_INT8_MAX][4];
    if (t->done == 0)
        prepacked_start(sum, w, at, t->group, row, t->sum, m, nv);
    else
        prepacked_get(sum, kept + row, m, nv);
    for (int64_t c = 0; c < t->n; c++, p += bits * LINE, code += int8_bytes(bits) * m) {
        if (row == 0) prepacked_ask(p + t->ahead, bits * LINE);
        prepacked_dots(sum, p + 4 * row, code, m, m, nv, bits);
    }
    if (t->left > t->n) {
        prepacked_keep(kept + row, sum, m, nv);
        return;
    }
    if (row == 0) prepacked_ask_scales(p + t->ahead, w);
    prepacked_total(total, y + row, ldy, m, nv);
    prepacked_fold(total, sum, w, p, row, t->scale, m, nv);
    prepacked_put(y + row, ldy, total, m, nv);
}

/* Groups t->group .. end - 1 of a block's rows from `row` on with m rows of activations from
 * `first` on; totals stay in registers. */
INLINE void prepacked_int8_groups(float *y, int64_t ldy, const dq_simd_prepacked_weight *w,
                                  const uint8_t *at, int64_t row, const prepacked_turn *t,
                                  int64_t end, const int first, const int ld, const int m,
                                  const int nv, const int bits)
{
    const bool asks = row == 0 && first == 0;
    const uint8_t *p = at + t->at;
    const int8_t *code = t->code + 4 * first;
    const float *scale = t->scale + first;
    const int32_t *of = t->sum + first;
    int64_t left = t->left;
    vecf total[DQ_PREPACKED_INT8_MAX][4];
    prepacked_total(total, y + first * ldy + row, ldy, m, nv);
    for (int64_t g = t->group; g < end; g++, p += w->scales, scale += ld, of += ld) {
        veci sum[DQ_PREPACKED_INT8_MAX][4];
        const int64_t n = left < w->group ? left : w->group;
        left -= n;
        p += prepacked_skip(w, g);
        prepacked_start(sum, w, at, g, row, of, m, nv);
        for (int64_t c = 0; c < n; c++, p += bits * LINE, code += int8_bytes(bits) * ld) {
            if (asks) prepacked_ask(p + t->ahead, bits * LINE);
            prepacked_dots(sum, p + 4 * row, code, ld, m, nv, bits);
        }
        if (asks) prepacked_ask_scales(p + t->ahead, w);
        prepacked_fold(total, sum, w, p, row, scale, m, nv);
    }
    prepacked_put(y + first * ldy + row, ldy, total, m, nv);
}

/* Where sums and totals of all rows do not fit the registers: a turn of chunks with one half of the
 * rows, then, from the first-level cache, with the other. */
enum { HALVES_TURN = 8 }; /* measured */

/* Both halves unpack codes, and larger groups load totals less often: then only cheap codes win. */
INLINE bool prepacked_is_halved(const dq_simd_prepacked_weight *w, const int m, const int bits)
{
    if (m <= INT8_ONE + 1 || w->group > HALVES_TURN) return false;
    return w->group == 1 || 8 % bits == 0;
}

INLINE void prepacked_int8_halves(float *y, int64_t ldy, const dq_simd_prepacked_weight *w,
                                  const dq_simd_blocks b, const dq_simd_prepacked_rows *a,
                                  const int m, const int nv, const int bits)
{
    const int half = (m + 1) / 2;
    const int64_t each = HALVES_TURN / w->group;
    const int64_t bytes = each * (w->group * bits * LINE + w->scales);
    prepacked_turn t = {.code = a->code, .sum = a->sum, .scale = a->scale, .left = w->chunks};
    t.ahead = bytes > 4096 ? bytes : 4096;
    for (int i = 0; i < m; i++) memset(y + i * ldy, 0, (size_t)b.n * DQ_PREPACKED_ROWS * sizeof *y);
    for (int64_t end; t.group < w->groups; t.group = end) {
        end = t.group + each < w->groups ? t.group + each : w->groups;
        for (int k = 0; k < b.n; k++)
            for (int row = 0; row < DQ_PREPACKED_ROWS; row += nv * LANES) {
                const uint8_t *at = b.at + k * b.apart;
                float *to = y + k * DQ_PREPACKED_ROWS;
                prepacked_int8_groups(to, ldy, w, at, row, &t, end, 0, m, half, nv, bits);
                prepacked_int8_groups(to, ldy, w, at, row, &t, end, half, m, m - half, nv, bits);
            }
        const int64_t n = t.left < each * w->group ? t.left : each * w->group;
        t.left -= n;
        t.at += n * bits * LINE + (end - t.group) * w->scales;
        for (int64_t g = t.group; g < end; g++) t.at += prepacked_skip(w, g);
        t.code += n * int8_bytes(bits) * m;
        t.sum += (end - t.group) * m;
        t.scale += (end - t.group) * m;
    }
}

/* A few chunks of each block in turn keep more lines under way than one stream does. */
INLINE void prepacked_int8_wide(float *y, int64_t ldy, const dq_simd_prepacked_weight *w,
                                const dq_simd_blocks b, const dq_simd_prepacked_rows *a,
                                const int m, const int nv, const int bits)
{
    const int64_t turn = w->group < 2 ? w->group : 2, bytes = turn * bits * LINE + w->scales;
    const int64_t least = m > 2 ? 4096 : 1024; /* measured */
    int32_t kept[DQ_PREPACKED_WIDE][DQ_PREPACKED_INT8_MAX * DQ_PREPACKED_ROWS];
    prepacked_turn t = {.code = a->code, .sum = a->sum, .scale = a->scale};
    int64_t chunks = w->chunks;
    t.ahead = bytes > least ? bytes : least;
    for (int i = 0; i < m; i++) memset(y + i * ldy, 0, (size_t)b.n * DQ_PREPACKED_ROWS * sizeof *y);
    for (; t.group < w->groups; t.group++, t.sum += m, t.scale += m, t.at += w->scales) {
        t.done = 0;
        t.at += prepacked_skip(w, t.group);
        t.left = chunks < w->group ? chunks : w->group;
        chunks -= t.left;
        for (; t.left > 0; t.left -= t.n, t.done += t.n) {
            t.n = t.left < turn ? t.left : turn;
            for (int k = 0; k < b.n; k++)
                for (int row = 0; row < DQ_PREPACKED_ROWS; row += nv * LANES)
                    prepacked_int8_turn(y + k * DQ_PREPACKED_ROWS, ldy, kept[k], w,
                                        b.at + k * b.apart, row, &t, m, nv, bits);
            t.code += t.n * int8_bytes(bits) * m;
            t.at += t.n * bits * LINE;
        }
    }
}

INLINE void prepacked_int8(float *y, int64_t ldy, const dq_simd_prepacked_weight *w,
                           const dq_simd_blocks b, const dq_simd_prepacked_rows *a, const int m,
                           const int nv, const int bits)
{
    if (prepacked_is_halved(w, m, bits)) {
        prepacked_int8_halves(y, ldy, w, b, a, m, nv, bits);
        return;
    }
    if (b.n > 1 || m > INT8_ONE) {
        prepacked_int8_wide(y, ldy, w, b, a, m, nv, bits);
        return;
    }
    for (int row = 0; row < DQ_PREPACKED_ROWS; row += nv * LANES)
        prepacked_int8_one(y, ldy, w, b.at, row, a, m, nv, bits);
}

/* Each width has a function of its own: together they take several times as long to compile. */
#define PREPACKED_WIDTHS(F, M) F(M, 2) F(M, 3) F(M, 4) F(M, 5) F(M, 6) F(M, 7) F(M, 8)
enum { WIDTHS = 7, LEAST_WIDTH = 2 };

/* int8 of M rows and nv vectors of a block, f32 the same. */
#define INT8_ARGS                                                                                  \
    float *y, int64_t ldy, const dq_simd_prepacked_weight *w, dq_simd_blocks b,                    \
        const dq_simd_prepacked_rows *a
#define INT8_FUNCTION(M, BITS)                                                                     \
    static void int8_##M##_##BITS(INT8_ARGS)                                                       \
    {                                                                                              \
        prepacked_int8(y, ldy, w, b, a, M, int8_vectors(M, BITS), BITS);                           \
    }
#define INT8_NAME(M, BITS) int8_##M##_##BITS,

/* ---- f32 */

/* f32 products by integer sums: activations are split into three integers of 8 bits. */

/* ---- activations */

/* 2^e for -149 <= e <= 127. */
static float power_of_two(int e)
{
    const uint32_t bits = e < -126 ? 1u << (e + 149) : (uint32_t)(e + 127) << 23;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Exponent of the unit of which max > 0 takes at most 8355711 = 127 * (65536 + 256 + 1), and more
 * than half of that where f32 has numbers so small. */
static int split_exponent(float max)
{
    const double more = (double)max * (1 + 1.0 / 128);
    uint64_t bits;
    memcpy(&bits, &more, sizeof bits);
    const int e = (int)(bits >> 52) - 1022; /* more < 2^e */
    return e - 23 < -149 ? -149 : e - 23;
}

/* Ties to even, for |x| < 2^23: half of it is rounded first, what is left is at most 1. */
INLINE int32_t nearest(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23 */
    const float half = x * 0.5f + magic - magic, rest = x - (half + half);
    return (int32_t)(half + half) + (int32_t)(rest + magic - magic);
}

/* Exact: both products are with powers of two, of which one alone would overflow for small x. */
static void split_rest(float *rest, const float *x, int64_t n, float a, float b, float unit)
{
    for (int64_t i = 0; i < n; i++) rest[i] = x[i] - (float)nearest(x[i] * a * b) * unit;
}

/* `small` activations have at most an eighth of the most units, and `below` is their sum. */
static bool is_uneven(int32_t below, int32_t small, int64_t n, int32_t left)
{
    enum { ENOUGH = 1 << 16 };
    return left && 2 * small >= n && below < small * ENOUGH;
}

/* The compiler's own vectors, as lanes are all that is needed. */
typedef float split_floats __attribute__((vector_size(4 * LANES)));
typedef int32_t split_words __attribute__((vector_size(4 * LANES)));
typedef int8_t split_bytes __attribute__((vector_size(LANES)));

typedef struct split_sums {
    split_words part[3], below, n_below, left;
} split_sums;

/* Parts of LANES columns, to[3][ld]; x is taken a * b times. */
INLINE void split_columns(split_sums *sum, int8_t *to, int64_t ld, const float *x, float a, float b,
                          int32_t small)
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

INLINE int32_t sum_of(const split_words *x)
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

/* ---- products */

/* Sums start at -zero * (sum of split integers), in `start` where groups share a zero point. */
INLINE void prepacked_split_start(veci sum[3 * DQ_PREPACKED_F32_MAX][4],
                                  const dq_simd_prepacked_weight *w, const uint8_t *at,
                                  int64_t group, int64_t row, const int32_t *start, const int m,
                                  const int nv)
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

/* The first product is exact, and so is the last one unless it is a denormal. */
INLINE void prepacked_split_fold(vecf total[DQ_PREPACKED_F32_MAX][4],
                                 veci sum[3 * DQ_PREPACKED_F32_MAX][4], const vecf scale[4],
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

INLINE bool are_zero(const float *unit, const int m)
{
    bool zero = true;
    for (int i = 0; i < m; i++) zero &= unit[i] == 0;
    return zero;
}

/* A piece: n chunks of the `left` chunks that its group still has, and their activations. */
typedef struct prepacked_piece {
    int64_t group, left, n;
    int64_t at;    /* bytes from the block to these chunks */
    int64_t ahead; /* bytes from these to what is asked for; 0: nothing is */
    const int8_t *code;
    const float *unit;
    const int32_t *start;
} prepacked_piece;

/* Adds a piece of rows `row` .. of a block, nv vectors of them, to the totals. */
INLINE void prepacked_f32_piece(vecf total[DQ_PREPACKED_F32_MAX][4],
                                const dq_simd_prepacked_weight *w, const uint8_t *at, int64_t row,
                                const prepacked_piece *t, const int m, const int nv, const int bits)
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
INLINE bool prepacked_next_piece(prepacked_piece *t, const dq_simd_prepacked_weight *w,
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

INLINE prepacked_piece prepacked_first_piece(const dq_simd_prepacked_weight *w,
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
INLINE void prepacked_f32_one(float *y, int64_t ldy, const dq_simd_prepacked_weight *w,
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
INLINE void prepacked_f32_wide(float *y, int64_t ldy, const dq_simd_prepacked_weight *w,
                               const dq_simd_blocks b, const dq_simd_split_rows *a, const int m,
                               const int nv, const int bits)
{
    prepacked_piece t = prepacked_first_piece(w, a, 0);
    int64_t chunks = w->chunks;
    /* Prefetching wide codes and zero points pays with 512 bits; narrow codes are read slowly
     * enough, and with 256 bits it never paid (dq bench --generate --math f32). */
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
INLINE void prepacked_f32(float *y, int64_t ldy, const dq_simd_prepacked_weight *w,
                          const dq_simd_blocks b, const dq_simd_split_rows *a, const int m,
                          const int nv, const int bits)
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

#ifdef INT8_ROWS
/* ---- tables */

#define FOUR_ROWS(F)                                                                               \
    PREPACKED_WIDTHS(F, 1) PREPACKED_WIDTHS(F, 2) PREPACKED_WIDTHS(F, 3) PREPACKED_WIDTHS(F, 4)
#if INT8_ROWS == 8
#define INT8_EACH(F)                                                                               \
    FOUR_ROWS(F)                                                                                   \
    PREPACKED_WIDTHS(F, 5) PREPACKED_WIDTHS(F, 6) PREPACKED_WIDTHS(F, 7) PREPACKED_WIDTHS(F, 8)
#else
#define INT8_EACH(F) FOUR_ROWS(F)
#endif
#if F32_ROWS == 3
#define F32_EACH(F) PREPACKED_WIDTHS(F, 1) PREPACKED_WIDTHS(F, 2) PREPACKED_WIDTHS(F, 3)
#else
#define F32_EACH(F) PREPACKED_WIDTHS(F, 1) PREPACKED_WIDTHS(F, 2)
#endif

INT8_EACH(INT8_FUNCTION)
static void (*const int8_of[INT8_ROWS * WIDTHS])(INT8_ARGS) = {INT8_EACH(INT8_NAME)};

static void int8(float *y, int64_t ldy, const dq_simd_prepacked_weight *w, dq_simd_blocks b,
                 const dq_simd_prepacked_rows *a, int m)
{
    int8_of[(m - 1) * WIDTHS + w->bits - LEAST_WIDTH](y, ldy, w, b, a);
}

F32_EACH(F32_FUNCTION)
static void (*const f32_of[F32_ROWS * WIDTHS])(F32_ARGS) = {F32_EACH(F32_NAME)};

static void f32(float *y, int64_t ldy, const dq_simd_prepacked_weight *w, dq_simd_blocks b,
                const dq_simd_split_rows *a, int m)
{
    f32_of[(m - 1) * WIDTHS + w->bits - LEAST_WIDTH](y, ldy, w, b, a);
}
#endif

#endif
