/* simd_blocked: products with blocked weights (simd.h), written once for all levels. The file that includes this
 * has defined LANES, INT8_ONE, the types veci of LANES words and vecf of LANES floats, and the functions on
 * them that are used here; `bits`, `m` and numbers of vectors are constants wherever speed counts. A level whose sums of
 * products pass through 16 bits has defined SUMS_OF_16_BITS, and what stands below where it is missing.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SIMD_BLOCKED_H
#define DQ_SIMD_BLOCKED_H

#include "kernels/cpu/simd.h"

#include <string.h>

#define BLOCKED_INLINE static inline __attribute__((always_inline))

/* A line: one word of each of a block's rows. */
enum { LINE = 4 * DQ_BLOCKED_ROWS, STEPS = DQ_BLOCKED_COLS / 4 };

BLOCKED_INLINE int64_t blocked_chunk_bytes(int bits)
{
    return (int64_t)bits * LINE;
}

/* Asks for a chunk that is read later, as far as the second-level cache: the loads of products alone do not keep enough
 * lines under way, and asking the first level for them costs more than it brings. */
BLOCKED_INLINE void blocked_ask(const uint8_t *chunk, const int bits)
{
    enum { CACHE_LINE = 64 };
#pragma GCC unroll 16
    for (int i = 0; i < bits * LINE; i += CACHE_LINE) __builtin_prefetch(chunk + i, 0, 2);
}

/* The bits that a plane has for step s, at bit `to` of every byte; other bits are anything. */
BLOCKED_INLINE veci blocked_field(const uint8_t *plane, const int width, const int s, const int to)
{
    const int each = 8 / width, shift = width * (s % each) - to;
    const veci x = load_words(plane + s / each * LINE);
    return shift > 0 ? words_right(x, shift) : shift < 0 ? words_left(x, -shift) : x;
}

/* Codes of columns 4 s .. 4 s + 3, each in the low bits of its byte; the bits above are anything. */
BLOCKED_INLINE veci blocked_codes(const uint8_t *chunk, const int bits, const int s)
{
    const int low = bits == 8 ? 8 : bits >= 4 ? 4 : 2;
    veci x = blocked_field(chunk, low, s, 0);
    if (bits - low >= 2) x = low_bits_or(low, x, blocked_field(chunk + low * LINE, 2, s, low));
    if ((bits - low) % 2)
        x = low_bits_or(bits - 1, x, blocked_field(chunk + (bits - 1) * LINE, 1, s, bits - 1));
    return x;
}

BLOCKED_INLINE vecf blocked_scale(const dq_simd_blocked_weight *w, const uint8_t *at, int64_t group,
                                  int64_t row)
{
    const int64_t i = group * DQ_BLOCKED_ROWS + row;
    return w->scale_f16 ? load_halves(at + w->scale_at + 2 * i)
                        : load_floats((const float *)(const void *)(at + w->scale_at) + i);
}

/* ------------------------------------------------------------------------------------------- int8 */

#ifndef SUMS_OF_16_BITS
/* Codes are as they are stored, and add_dots is whole: int8_run says that nothing below it is used. */
BLOCKED_INLINE int32_t int8_base(int bits)
{
    (void)bits;
    return 0;
}

BLOCKED_INLINE int int8_run(int bits)
{
    (void)bits;
    return 1;
}

BLOCKED_INLINE veci pairs(veci u, veci x)
{
    (void)x;
    return u;
}

BLOCKED_INLINE veci add_pairs(veci a, veci u, veci x)
{
    (void)u;
    (void)x;
    return a;
}

BLOCKED_INLINE veci add_both(veci sum, veci a)
{
    (void)a;
    return sum;
}
#endif

/* What the sums of a group start from: int8_codes gives codes less int8_base. */
BLOCKED_INLINE void blocked_start(veci sum[DQ_BLOCKED_INT8_MAX][4], const dq_simd_blocked_weight *w,
                                  const uint8_t *at, int64_t group, int64_t row, const int32_t *of,
                                  const int m, const int nv, const int bits)
{
    const int32_t base = int8_base(bits);
    if (!w->own_zeros) { /* a base is the common zero point */
#pragma GCC unroll 8
        for (int i = 0; i < m; i++) {
            const veci start = all_words(base ? 0 : of[i]);
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) sum[i][j] = start;
        }
        return;
    }
#pragma GCC unroll 4
    for (int j = 0; j < nv; j++) {
        const veci zero = load_bytes(at + w->zero_at + group * DQ_BLOCKED_ROWS + row + j * LANES);
        const veci by = words_less(all_words(base), zero);
#pragma GCC unroll 8
        for (int i = 0; i < m; i++) sum[i][j] = words_times(by, all_words(of[i]));
    }
}

/* Products of int8_run(bits) steps go to 16 bits, where a level has such sums. */
BLOCKED_INLINE void blocked_dots(veci sum[DQ_BLOCKED_INT8_MAX][4], const uint8_t *chunk,
                                 const int8_t *code, const int m, const int nv, const int bits)
{
    const int run = int8_run(bits);
    veci part[DQ_BLOCKED_INT8_MAX][4];
#pragma GCC unroll 8
    for (int s = 0; s < STEPS; s++) {
        veci u[4];
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++)
            u[j] = int8_codes(blocked_codes(chunk + j * 4 * LANES, bits, s), bits);
#pragma GCC unroll 8
        for (int i = 0; i < m; i++) {
            const veci x = all_fours(code + 4 * (s * m + i));
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) {
                if (run == 1) {
                    sum[i][j] = add_dots(sum[i][j], u[j], x, bits);
                    continue;
                }
                part[i][j] = s % run ? add_pairs(part[i][j], u[j], x) : pairs(u[j], x);
                if ((s + 1) % run == 0) sum[i][j] = add_both(sum[i][j], part[i][j]);
            }
        }
    }
}

/* Adds a group's sums to the totals. */
BLOCKED_INLINE void blocked_fold(vecf total[DQ_BLOCKED_INT8_MAX][4],
                                 veci sum[DQ_BLOCKED_INT8_MAX][4], const dq_simd_blocked_weight *w,
                                 const uint8_t *at, int64_t group, int64_t row, const float *of,
                                 const int m, const int nv)
{
    vecf scale[4];
#pragma GCC unroll 4
    for (int j = 0; j < nv; j++) scale[j] = blocked_scale(w, at, group, row + j * LANES);
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

/* y[m][ldy] */
BLOCKED_INLINE void blocked_put(float *y, int64_t ldy, vecf total[DQ_BLOCKED_INT8_MAX][4],
                                const int m, const int nv)
{
#pragma GCC unroll 8
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) store_floats(y + i * ldy + j * LANES, total[i][j]);
}

/* Rows `row` .. of a block, nv vectors of them: totals stay in registers. */
BLOCKED_INLINE void blocked_int8_one(float *y, int64_t ldy, const dq_simd_blocked_weight *w,
                                     const uint8_t *at, int64_t row, const dq_simd_blocked_rows *a,
                                     const int m, const int nv, const int bits)
{
    enum { AHEAD = 4096 };
    const uint8_t *chunk = at + 4 * row;
    const int8_t *code = a->code;
    int64_t left = w->chunks;
    vecf total[DQ_BLOCKED_INT8_MAX][4];
#pragma GCC unroll 8
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) total[i][j] = all_floats(0.0f);
    for (int64_t g = 0; g < w->groups; g++) {
        veci sum[DQ_BLOCKED_INT8_MAX][4];
        int64_t n = left < w->group ? left : w->group;
        left -= n;
        blocked_start(sum, w, at, g, row, a->sum + g * m, m, nv, bits);
        for (; n > 0; n--, chunk += blocked_chunk_bytes(bits), code += 4 * STEPS * m) {
            blocked_ask(chunk + AHEAD, bits);
            blocked_dots(sum, chunk, code, m, nv, bits);
        }
        blocked_fold(total, sum, w, at, g, row, a->scale + g * m, m, nv);
    }
    blocked_put(y + row, ldy, total, m, nv);
}

/* kept[m][32] */
BLOCKED_INLINE void blocked_keep(int32_t *kept, veci sum[DQ_BLOCKED_INT8_MAX][4], const int m,
                                 const int nv)
{
#pragma GCC unroll 8
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) store_words(kept + i * DQ_BLOCKED_ROWS + j * LANES, sum[i][j]);
}

BLOCKED_INLINE void blocked_get(veci sum[DQ_BLOCKED_INT8_MAX][4], const int32_t *kept, const int m,
                                const int nv)
{
#pragma GCC unroll 8
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++)
            sum[i][j] = load_words((const uint8_t *)(kept + i * DQ_BLOCKED_ROWS + j * LANES));
}

/* Chunks of one group: `done` of them have been summed, `left` have not, and n of these are now. */
typedef struct blocked_turn {
    int64_t group, done, left, n, ahead; /* ahead: bytes */
    const int8_t *code;
    const int32_t *sum;
    const float *scale;
} blocked_turn;

/* One turn of rows `row` .. of a block, nv vectors of them; kept[m][32]: sums between turns. y has the totals. */
BLOCKED_INLINE void blocked_int8_turn(float *y, int64_t ldy, int32_t *kept,
                                      const dq_simd_blocked_weight *w, const uint8_t *at,
                                      int64_t chunk, int64_t row, const blocked_turn *t,
                                      const int m, const int nv, const int bits)
{
    const uint8_t *words = at + chunk * blocked_chunk_bytes(bits) + 4 * row;
    const int8_t *code = t->code;
    veci sum[DQ_BLOCKED_INT8_MAX][4];
    vecf total[DQ_BLOCKED_INT8_MAX][4];
    if (t->done == 0)
        blocked_start(sum, w, at, t->group, row, t->sum, m, nv, bits);
    else
        blocked_get(sum, kept + row, m, nv);
    for (int64_t c = 0; c < t->n; c++, words += blocked_chunk_bytes(bits), code += 4 * STEPS * m) {
        if (row == 0) blocked_ask(words + t->ahead, bits);
        blocked_dots(sum, words, code, m, nv, bits);
    }
    if (t->left > t->n) {
        blocked_keep(kept + row, sum, m, nv);
        return;
    }
#pragma GCC unroll 8
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) total[i][j] = load_floats(y + i * ldy + row + j * LANES);
    blocked_fold(total, sum, w, at, t->group, row, t->scale, m, nv);
    blocked_put(y + row, ldy, total, m, nv);
}

/* n blocks from `at` on, side by side, a few chunks of each in turn: that keeps more lines under way than one stream
 * does. What is asked for is read in the next turn at the soonest; many rows take their time. */
BLOCKED_INLINE void blocked_int8_wide(float *y, int64_t ldy, const dq_simd_blocked_weight *w,
                                      const uint8_t *at, const int n, const dq_simd_blocked_rows *a,
                                      const int m, const int nv, const int bits)
{
    const int64_t bytes = blocked_chunk_bytes(bits), turn = w->group < 2 ? w->group : 2;
    const int64_t least = m > 2 ? 4096 : bits & (bits - 1) ? 1536 : 1024; /* measured */
    int32_t kept[DQ_BLOCKED_INT8_WIDE][DQ_BLOCKED_INT8_MAX * DQ_BLOCKED_ROWS];
    blocked_turn t = {.code = a->code, .sum = a->sum, .scale = a->scale};
    int64_t chunk = 0;
    t.ahead = turn * bytes > least ? turn * bytes : least;
    for (int i = 0; i < m; i++) memset(y + i * ldy, 0, (size_t)n * DQ_BLOCKED_ROWS * sizeof *y);
    for (; t.group < w->groups; t.group++, t.sum += m, t.scale += m) {
        t.done = 0;
        t.left = w->chunks - chunk < w->group ? w->chunks - chunk : w->group;
        for (; t.left > 0; t.left -= t.n, t.done += t.n, chunk += t.n) {
            t.n = t.left < turn ? t.left : turn;
            for (int k = 0; k < n; k++)
                for (int row = 0; row < DQ_BLOCKED_ROWS; row += nv * LANES)
                    blocked_int8_turn(y + k * DQ_BLOCKED_ROWS, ldy, kept[k], w, at + k * w->bytes,
                                      chunk, row, &t, m, nv, bits);
            t.code += t.n * 4 * STEPS * m;
        }
    }
}

BLOCKED_INLINE void blocked_int8(float *y, int64_t ldy, const dq_simd_blocked_weight *w,
                                 const uint8_t *at, const int n, const dq_simd_blocked_rows *a,
                                 const int m, const int nv, const int bits)
{
    if (n > 1 || m > INT8_ONE) {
        blocked_int8_wide(y, ldy, w, at, n, a, m, nv, bits);
        return;
    }
    for (int row = 0; row < DQ_BLOCKED_ROWS; row += nv * LANES)
        blocked_int8_one(y, ldy, w, at, row, a, m, nv, bits);
}

/* CALL(bits) for the width of w, as a constant. */
#define BLOCKED_BY_WIDTH(CALL)                                                                     \
    switch (w->bits) {                                                                             \
    case 2: CALL(2); break;                                                                        \
    case 3: CALL(3); break;                                                                        \
    case 4: CALL(4); break;                                                                        \
    case 5: CALL(5); break;                                                                        \
    case 6: CALL(6); break;                                                                        \
    case 7: CALL(7); break;                                                                        \
    default: CALL(8); break;                                                                       \
    }

#endif
