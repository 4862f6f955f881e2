/* prepacked_unpacked: int8 products of many rows with prepacked weights (simd.h), whose codes are unpacked once for all of
 * them. For instruction sets with SUMS_OF_16_BITS; needs what prepacked_loops.h does, and for codes of 8 bits byte_sizes, byte_signs,
 * add_negative and add_signed. These are taken less 128: with the sign s of such a code c, 0 or -1, its product with x is
 * |c| (x ^ s) - |c| s. Two products |c| (x ^ s) fit 16 bits, and |c| s depends on weights alone.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PREPACKED_UNPACKED_H
#define DQ_PREPACKED_UNPACKED_H

#include "kernels/cpu/isa/prepacked_loops.h"

/* Bytes of a step, and of a chunk. */
PREPACKED_INLINE int64_t unpacked_step(const int bits)
{
    return bits == 8 ? 2 * LINE : LINE;
}

PREPACKED_INLINE int64_t unpacked_chunk(const int bits)
{
    return STEPS * unpacked_step(bits);
}

/* sum[m], of step s of a chunk of codes of 8 bits. */
PREPACKED_INLINE void unpacked_signed(veci (*sum)[4], const uint8_t *chunk, const int8_t *code,
                                      const int s, const int m, const int nv)
{
    veci size[4], sign[4];
#pragma GCC unroll 4
    for (int j = 0; j < nv; j++) {
        const uint8_t *p = chunk + s * 2 * LINE + j * 4 * LANES;
        size[j] = load_words(p);
        sign[j] = load_words(p + LINE);
    }
#pragma GCC unroll 8
    for (int i = 0; i < m; i++) {
        const veci x = all_fours(code + 4 * (s * m + i));
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) sum[i][j] = add_signed(sum[i][j], size[j], sign[j], x);
    }
}

/* sum[m], of a chunk. Sums of two steps in 16 bits are made and used at once, sums of more stay in registers. */
PREPACKED_INLINE void unpacked_dots(veci (*sum)[4], const uint8_t *chunk, const int8_t *code,
                                    const int m, const int nv, const int bits)
{
    const int run = int8_run(bits), each = run == 2 ? 2 : 1;
    veci part[DQ_PREPACKED_INT8_MAX][4];
#pragma GCC unroll 8
    for (int s = 0; s < STEPS; s += each) {
        veci u[2][4];
        if (bits == 8) {
            unpacked_signed(sum, chunk, code, s, m, nv);
            continue;
        }
#pragma GCC unroll 2
        for (int k = 0; k < each; k++)
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++)
                u[k][j] = load_words(chunk + (s + k) * LINE + j * 4 * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < m; i++) {
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) {
                const int8_t *x = code + (s * m + i) * 4;
                if (run == 1) {
                    sum[i][j] = add_dots(sum[i][j], u[0][j], code, s * m + i, bits);
                } else if (run == 2) {
                    const veci a = pairs(u[0][j], all_fours(x));
                    sum[i][j] = add_both(sum[i][j], add_pairs(a, u[1][j], all_fours(x + 4 * m)));
                } else if (s % run == 0) {
                    part[i][j] = pairs(u[0][j], all_fours(x));
                } else {
                    part[i][j] = add_pairs(part[i][j], u[0][j], all_fours(x));
                    if ((s + 1) % run == 0) sum[i][j] = add_both(sum[i][j], part[i][j]);
                }
            }
        }
    }
}

/* What the sums of a group start from. */
PREPACKED_INLINE void unpacked_start(veci sum[DQ_PREPACKED_INT8_MAX][4],
                                     const dq_simd_prepacked_weight *w, const uint8_t *tail,
                                     int64_t row, const int32_t *of, const int m, const int nv,
                                     const int bits)
{
#pragma GCC unroll 8
    for (int i = 0; i < m; i++) {
        const veci start = all_words(of[i]);
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) {
            const uint8_t *own = tail + LINE + 4 * (row + j * LANES);
            sum[i][j] = w->own_zeros ? words_times(start, load_words(own)) : start;
            if (bits == 8) sum[i][j] = words_plus(sum[i][j], load_words(own + LINE));
        }
    }
}

/* Adds a group's sums to the totals. */
PREPACKED_INLINE void unpacked_fold(vecf total[DQ_PREPACKED_INT8_MAX][4],
                                    veci sum[DQ_PREPACKED_INT8_MAX][4], const uint8_t *tail,
                                    int64_t row, const float *of, const int m, const int nv)
{
    const float *scale = (const float *)(const void *)tail + row;
#pragma GCC unroll 8
    for (int i = 0; i < m; i++) {
        const vecf own = all_floats(of[i]);
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) {
            const vecf by = floats_times(own, load_floats(scale + j * LANES));
            total[i][j] = floats_plus(total[i][j], floats_times(floats_of(sum[i][j]), by));
        }
    }
}

/* A group of n chunks of rows `row` .. of a block, nv vectors of them. */
PREPACKED_INLINE void unpacked_group(vecf total[DQ_PREPACKED_INT8_MAX][4],
                                     const dq_simd_prepacked_weight *w, const uint8_t *p,
                                     int64_t row, const dq_simd_prepacked_rows *a, const int64_t n,
                                     const int m, const int nv, const int bits)
{
    const uint8_t *tail = p + n * unpacked_chunk(bits);
    const int8_t *code = a->code;
    veci sum[DQ_PREPACKED_INT8_MAX][4];
    unpacked_start(sum, w, tail, row, a->sum, m, nv, bits);
    for (int64_t c = 0; c < n; c++, p += unpacked_chunk(bits), code += DQ_PREPACKED_COLS * m)
        unpacked_dots(sum, p + 4 * row, code, m, nv, bits);
    unpacked_fold(total, sum, tail, row, a->scale, m, nv);
}

/* Groups of `group` chunks; a constant lets the sums stay in registers. */
PREPACKED_INLINE void unpacked_groups(float *y, int64_t ldy, const dq_simd_prepacked_weight *w,
                                      const uint8_t *from, int64_t chunks,
                                      const dq_simd_prepacked_rows *a, bool add,
                                      const int64_t group, const int m, const int nv,
                                      const int bits)
{
    for (int64_t row = 0; row < DQ_PREPACKED_ROWS; row += nv * LANES) {
        const uint8_t *p = from;
        dq_simd_prepacked_rows at = *a;
        vecf total[DQ_PREPACKED_INT8_MAX][4];
#pragma GCC unroll 8
        for (int i = 0; i < m; i++)
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++)
                total[i][j] = add ? load_floats(y + i * ldy + row + j * LANES) : all_floats(0.0f);
        for (int64_t left = chunks; left > 0; left -= group, at.scale += m, at.sum += m) {
            const int64_t n = group == 1 || left > group ? group : left;
            unpacked_group(total, w, p, row, &at, n, m, nv, bits);
            p += n * unpacked_chunk(bits) + DQ_UNPACKED_TAIL;
            at.code += n * DQ_PREPACKED_COLS * m;
        }
        prepacked_put(y + row, ldy, total, m, nv);
    }
}

PREPACKED_INLINE void unpacked_int8(float *y, int64_t ldy, const dq_simd_prepacked_weight *w,
                                    const uint8_t *from, int64_t chunks,
                                    const dq_simd_prepacked_rows *a, bool add, const int m,
                                    const int nv, const int bits)
{
    if (w->group == 1)
        unpacked_groups(y, ldy, w, from, chunks, a, add, 1, m, nv, bits);
    else
        unpacked_groups(y, ldy, w, from, chunks, a, add, w->group, m, nv, bits);
}

/* A chunk of rows `row` .. of a block. The sum of |c| of negative codes c, of 8 bits and less 128; else 0. */
PREPACKED_INLINE veci unpack_chunk(uint8_t *to, const uint8_t *chunk, int row, const int bits)
{
    veci sum = all_words(0);
#pragma GCC unroll 8
    for (int s = 0; s < STEPS; s++, to += unpacked_step(bits)) {
        const veci u = int8_codes(prepacked_codes(chunk + 4 * row, bits, s), bits);
        int32_t *at = (int32_t *)(void *)to + row;
        store_words(at, bits == 8 ? byte_sizes(u) : u);
        if (bits != 8) continue;
        store_words(at + DQ_PREPACKED_ROWS, byte_signs(u));
        sum = add_negative(sum, byte_sizes(u), byte_signs(u));
    }
    return sum;
}

/* Chunks of a block from a group on, as dq_simd_prepacked.unpack says. */
PREPACKED_INLINE void unpack_block(uint8_t *to, const dq_simd_prepacked_weight *w,
                                   const uint8_t *block, int64_t group, int64_t chunks,
                                   const int bits)
{
    for (int64_t left = chunks; left > 0; left -= w->group, group++) {
        const uint8_t *p = block + dq_simd_prepacked_group(w, group);
        const int64_t n = left < w->group ? left : w->group;
        uint8_t *tail = to + n * unpacked_chunk(bits);
        for (int row = 0; row < DQ_PREPACKED_ROWS; row += LANES) {
            const veci zero = w->own_zeros ? load_bytes(prepacked_zeros(block, w, group) + row)
                                           : all_words(w->zero);
            veci sum = all_words(0);
            for (int64_t c = 0; c < n; c++)
                sum = words_plus(sum, unpack_chunk(to + c * unpacked_chunk(bits),
                                                   p + c * bits * LINE, row, bits));
            store_floats((float *)(void *)tail + row, prepacked_scale(w, p + n * bits * LINE, row));
            int32_t *own = (int32_t *)(void *)(tail + LINE) + row;
            store_words(own, words_less(all_words(bits == 8 ? 128 : 0), zero));
            if (bits == 8) store_words(own + DQ_PREPACKED_ROWS, sum);
        }
        to = tail + DQ_UNPACKED_TAIL;
    }
}

#define UNPACK_FUNCTION(M, BITS)                                                                   \
    static void unpack_##BITS(uint8_t *to, const dq_simd_prepacked_weight *w,                      \
                              const uint8_t *block, int64_t group, int64_t chunks)                 \
    {                                                                                              \
        unpack_block(to, w, block, group, chunks, BITS);                                           \
    }
#define UNPACK_NAME(M, BITS) unpack_##BITS,
#define UNPACKED_ARGS                                                                              \
    float *y, int64_t ldy, const dq_simd_prepacked_weight *w, const uint8_t *from, int64_t chunks, \
        const dq_simd_prepacked_rows *a, bool add
#define UNPACKED_FUNCTION(M, BITS)                                                                 \
    static void unpacked_##M##_##BITS(UNPACKED_ARGS)                                               \
    {                                                                                              \
        unpacked_int8(y, ldy, w, from, chunks, a, add, M, 2, BITS);                                \
    }
#define UNPACKED_NAME(M, BITS) unpacked_##M##_##BITS,

#endif
