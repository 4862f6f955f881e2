/* simd_blocked: products with blocked weights (simd.h), written once for all levels. The file that includes this
 * has defined LANES, ROW_OF, the types veci of LANES words and vecf of LANES floats, and the functions on them that are
 * used here; `bits`, `m` and numbers of vectors are constants wherever speed counts.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SIMD_BLOCKED_H
#define DQ_SIMD_BLOCKED_H

#include "kernels/cpu/simd.h"

#define BLOCKED_INLINE static inline __attribute__((always_inline))

/* A line: one word of each of a block's rows. */
enum { LINE = 4 * DQ_BLOCKED_ROWS, STEPS = DQ_BLOCKED_COLS / 4 };

BLOCKED_INLINE int64_t blocked_chunk_bytes(int bits)
{
    return (int64_t)bits * LINE;
}

/* Asks for what is read AHEAD bytes later, as far as the second-level cache: the loads of products alone do not
 * keep enough lines under way, and asking the first level for them costs more than it brings. */
BLOCKED_INLINE void blocked_expect(const uint8_t *chunk, const int bits)
{
    enum { AHEAD = 4096, CACHE_LINE = 64 };
#pragma GCC unroll 16
    for (int i = 0; i < bits * LINE; i += CACHE_LINE) __builtin_prefetch(chunk + AHEAD + i, 0, 2);
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

/* What the sums of a group start from: int8_codes gives codes less int8_base. */
BLOCKED_INLINE void blocked_start(veci sum[DQ_BLOCKED_INT8_MAX][4], const dq_simd_blocked_weight *w,
                                  const uint8_t *at, int64_t group, int64_t row, const int32_t *of,
                                  const int m, const int nv, const int bits)
{
    const int32_t base = int8_base(bits);
    if (!w->own_zeros) {
#pragma GCC unroll 8
        for (int i = 0; i < m; i++) {
            const veci start = all_words((base - w->zero) * of[i]);
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

BLOCKED_INLINE void blocked_dots(veci sum[DQ_BLOCKED_INT8_MAX][4], const uint8_t *chunk,
                                 const int8_t *code, const int m, const int nv, const int bits)
{
    blocked_expect(chunk, bits);
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
            for (int j = 0; j < nv; j++) sum[i][j] = add_dots(sum[i][j], u[j], x, bits);
        }
    }
}

/* Adds a group's sums to the totals. */
BLOCKED_INLINE void blocked_fold(vecf total[DQ_BLOCKED_INT8_MAX][4],
                                 veci sum[DQ_BLOCKED_INT8_MAX][4], const vecf scale[4],
                                 const float *of, const int m, const int nv)
{
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

/* Rows `row` .. of a block, nv vectors of them. */
BLOCKED_INLINE void blocked_int8(float *y, const dq_simd_blocked_weight *w, const uint8_t *at,
                                 int64_t row, const dq_simd_blocked_rows *a, const int m,
                                 const int nv, const int bits)
{
    const uint8_t *chunk = at + 4 * row;
    const int8_t *code = a->code;
    const float *of = a->scale;
    const int32_t *codes = a->sum;
    const int64_t groups = w->groups;
    int64_t left = w->chunks;
    vecf total[DQ_BLOCKED_INT8_MAX][4];
#pragma GCC unroll 8
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) total[i][j] = all_floats(0.0f);
    for (int64_t g = 0; g < groups; g++, of += m, codes += m) {
        veci sum[DQ_BLOCKED_INT8_MAX][4];
        vecf scale[4];
        int64_t n = left < w->group ? left : w->group;
        left -= n;
        blocked_start(sum, w, at, g, row, codes, m, nv, bits);
        for (; n > 0; n--, chunk += blocked_chunk_bytes(bits), code += 4 * STEPS * m)
            blocked_dots(sum, chunk, code, m, nv, bits);
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) scale[j] = blocked_scale(w, at, g, row + j * LANES);
        blocked_fold(total, sum, scale, of, m, nv);
    }
#pragma GCC unroll 8
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++)
            store_floats(y + i * DQ_BLOCKED_ROWS + row + j * LANES, total[i][j]);
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
