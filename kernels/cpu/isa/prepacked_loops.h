/* prepacked_loops: products with prepacked weights (simd.h), written once for all instruction sets. The file that includes this
 * has defined LANES, INT8_ONE, INT8_WORDS, the types veci of LANES words and vecf of LANES floats, and the functions on
 * them that are used here; `bits`, `m` and numbers of vectors are constants wherever speed counts. A instruction set whose sums of
 * products pass through 16 bits has defined SUMS_OF_16_BITS, and what stands below where it is missing.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PREPACKED_LOOPS_H
#define DQ_PREPACKED_LOOPS_H

#include "kernels/cpu/simd.h"

#include <string.h>

#define PREPACKED_INLINE static inline __attribute__((always_inline))

/* A line: one word of each of a block's rows. */
enum { LINE = 4 * DQ_PREPACKED_ROWS, STEPS = DQ_PREPACKED_COLS / 4 };

/* Asks for what is read later, as far as the second-level cache: the loads of products alone do not keep enough lines
 * under way, and asking the first level for them costs more than it brings. */
PREPACKED_INLINE void prepacked_ask(const uint8_t *p, const int bytes)
{
    enum { CACHE_LINE = 64 };
#pragma GCC unroll 16
    for (int i = 0; i < bytes; i += CACHE_LINE) __builtin_prefetch(p + i, 0, 2);
}

PREPACKED_INLINE void prepacked_ask_scales(const uint8_t *p, const dq_simd_prepacked_weight *w)
{
    prepacked_ask(p, 2 * DQ_PREPACKED_ROWS);
    if (!w->scale_f16) prepacked_ask(p + 2 * DQ_PREPACKED_ROWS, 2 * DQ_PREPACKED_ROWS);
}

/* Zero points of a group. */
PREPACKED_INLINE const uint8_t *prepacked_zeros(const uint8_t *at,
                                                const dq_simd_prepacked_weight *w, int64_t group)
{
    const int64_t own = group % 2 * DQ_PREPACKED_ROWS;
    return at + dq_simd_prepacked_group(w, group - group % 2) - DQ_PREPACKED_ZEROS + own;
}

/* Zero points stand before every two groups: bytes of them before this one. */
PREPACKED_INLINE int64_t prepacked_skip(const dq_simd_prepacked_weight *w, int64_t group)
{
    return w->own_zeros && group % 2 == 0 ? DQ_PREPACKED_ZEROS : 0;
}

/* Codes of step s, each in the low bits of its byte; the bits above are anything. */
PREPACKED_INLINE veci prepacked_codes(const uint8_t *chunk, const int bits, const int s)
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
PREPACKED_INLINE vecf prepacked_scale(const dq_simd_prepacked_weight *w, const uint8_t *scales,
                                      int64_t row)
{
    return w->scale_f16 ? load_halves(scales + 2 * row)
                        : load_floats((const float *)(const void *)scales + row);
}

/* total[m], of nv vectors each, from y[m][ldy]; prepacked_put: back to it. */
PREPACKED_INLINE void prepacked_total(vecf (*total)[4], const float *y, int64_t ldy, const int m,
                                      const int nv)
{
#pragma GCC unroll 8
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) total[i][j] = load_floats(y + i * ldy + j * LANES);
}

PREPACKED_INLINE void prepacked_put(float *y, int64_t ldy, vecf (*total)[4], const int m,
                                    const int nv)
{
#pragma GCC unroll 8
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) store_floats(y + i * ldy + j * LANES, total[i][j]);
}

/* ------------------------------------------------------------------------------------------- int8 */

#ifndef SUMS_OF_16_BITS
/* add_dots is whole: int8_run says that nothing below it is used. */
PREPACKED_INLINE int int8_run(int bits)
{
    (void)bits;
    return 1;
}

PREPACKED_INLINE veci pairs(veci u, veci x)
{
    (void)x;
    return u;
}

PREPACKED_INLINE veci add_pairs(veci a, veci u, veci x)
{
    (void)u;
    (void)x;
    return a;
}

PREPACKED_INLINE veci add_both(veci sum, veci a)
{
    (void)a;
    return sum;
}
#endif

/* What the sums of a group start from. */
PREPACKED_INLINE void prepacked_start(veci sum[DQ_PREPACKED_INT8_MAX][4],
                                      const dq_simd_prepacked_weight *w, const uint8_t *at,
                                      int64_t group, int64_t row, const int32_t *of, const int m,
                                      const int nv)
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
PREPACKED_INLINE int64_t int8_bytes(const int bits)
{
    return DQ_PREPACKED_COLS * (bits == INT8_WORDS ? 2 : 1);
}

/* sum[m], of m of the ld rows of `code`. Products of int8_run(bits) steps go to 16 bits, where an instruction set has such sums: of a whole chunk, whose sums
 * stay in registers, or of fewer steps, whose codes do. */
PREPACKED_INLINE void prepacked_dots(veci (*sum)[4], const uint8_t *chunk, const int8_t *code,
                                     const int ld, const int m, const int nv, const int bits)
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
PREPACKED_INLINE void prepacked_fold(vecf total[DQ_PREPACKED_INT8_MAX][4],
                                     veci sum[DQ_PREPACKED_INT8_MAX][4],
                                     const dq_simd_prepacked_weight *w, const uint8_t *scales,
                                     int64_t row, const float *of, const int m, const int nv)
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
PREPACKED_INLINE void prepacked_int8_one(float *y, int64_t ldy, const dq_simd_prepacked_weight *w,
                                         const uint8_t *at, int64_t row,
                                         const dq_simd_prepacked_rows *a, const int m, const int nv,
                                         const int bits)
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
PREPACKED_INLINE void prepacked_keep(int32_t *kept, veci sum[DQ_PREPACKED_INT8_MAX][4], const int m,
                                     const int nv)
{
#pragma GCC unroll 8
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++)
            store_words(kept + i * DQ_PREPACKED_ROWS + j * LANES, sum[i][j]);
}

PREPACKED_INLINE void prepacked_get(veci sum[DQ_PREPACKED_INT8_MAX][4], const int32_t *kept,
                                    const int m, const int nv)
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

/* One turn of rows `row` .. of a block, nv vectors of them; kept[m][32]: sums between turns. y has the totals. */
PREPACKED_INLINE void prepacked_int8_turn(float *y, int64_t ldy, int32_t *kept,
                                          const dq_simd_prepacked_weight *w, const uint8_t *at,
                                          int64_t row, const prepacked_turn *t, const int m,
                                          const int nv, const int bits)
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

/* Groups t->group .. end - 1 of rows `row` .. of a block, nv vectors of them, with m of ld rows of activations from `first`
 * on: totals stay in registers. */
PREPACKED_INLINE void prepacked_int8_groups(float *y, int64_t ldy,
                                            const dq_simd_prepacked_weight *w, const uint8_t *at,
                                            int64_t row, const prepacked_turn *t, int64_t end,
                                            const int first, const int ld, const int m,
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

/* Rows whose sums and totals do not fit the registers, with groups of at most so many chunks: of each block so many chunks in
 * turn with one half of the rows, then, from the first-level cache, with the other. */
enum { HALVES_TURN = 8 }; /* measured */

/* Both halves unpack codes. Groups of more chunks load totals less often: there, only codes that are cheap to unpack win. One
 * row more than INT8_ONE is as fast with its totals in memory. */
PREPACKED_INLINE bool prepacked_is_halved(const dq_simd_prepacked_weight *w, const int m,
                                          const int bits)
{
    if (m <= INT8_ONE + 1 || w->group > HALVES_TURN) return false;
    return w->group == 1 || 8 % bits == 0;
}

PREPACKED_INLINE void prepacked_int8_halves(float *y, int64_t ldy,
                                            const dq_simd_prepacked_weight *w,
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

/* Blocks side by side, a few chunks of each in turn: that keeps more lines under way than one stream
 * does. What is asked for is read in the next turn at the soonest; many rows take their time. */
PREPACKED_INLINE void prepacked_int8_wide(float *y, int64_t ldy, const dq_simd_prepacked_weight *w,
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

PREPACKED_INLINE void prepacked_int8(float *y, int64_t ldy, const dq_simd_prepacked_weight *w,
                                     const dq_simd_blocks b, const dq_simd_prepacked_rows *a,
                                     const int m, const int nv, const int bits)
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

/* F(M, bits) for every width. Each width has a function of its own, by a table: together in one they take several times as long
 * to compile. */
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

#endif
