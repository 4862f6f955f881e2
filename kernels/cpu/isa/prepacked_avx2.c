/* prepacked_avx2: products with prepacked weights with AVX2, FMA and F16C, with flags of its own.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/simd.h"

#if defined(__x86_64__)

#include "kernels/cpu/isa/vectors.h"

INLINE veci load_bytes(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p));
}

/* The low n bits of every byte of a, the others of b. */
INLINE veci low_bits_or(int n, veci a, veci b)
{
    const veci mask = _mm256_set1_epi8((char)((1 << n) - 1));
    return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
}

#define SUMS_OF_16_BITS

/* Sums of two products stay below 2^15 for codes of at most 7 bits; codes of 8 bits are words of
 * 16, even and odd columns apart, as their activations are, unless codes are unpacked. */
enum { INT8_WORDS = 8 };

INLINE veci int8_codes(veci x, int bits)
{
    return bits == 8 ? x : _mm256_and_si256(x, _mm256_set1_epi8((char)((1 << bits) - 1)));
}

/* Keeps the written order of sums: for compilers' trees there are too few registers. */
INLINE veci in_order(veci x)
{
    __asm__("" : "+x"(x));
    return x;
}

INLINE veci add_both(veci sum, veci a)
{
    return in_order(_mm256_add_epi32(sum, _mm256_madd_epi16(a, _mm256_set1_epi16(1))));
}

INLINE veci add_words(veci sum, veci u, veci even, veci odd)
{
    const veci low = _mm256_and_si256(u, _mm256_set1_epi16(255)), high = _mm256_srli_epi16(u, 8);
    sum = in_order(_mm256_add_epi32(sum, _mm256_madd_epi16(low, even)));
    return in_order(_mm256_add_epi32(sum, _mm256_madd_epi16(high, odd)));
}

/* x: activations i of four columns each. */
INLINE veci add_dots(veci sum, veci u, const int8_t *x, int64_t i, int bits)
{
    if (bits == INT8_WORDS)
        return add_words(sum, u, all_fours(x + 8 * i), all_fours(x + 8 * i + 4));
    return add_both(sum, _mm256_maddubs_epi16(u, all_fours(x + 4 * i)));
}

/* So many sums of two products stay below 2^15 together. */
INLINE int int8_run(int bits)
{
    return bits <= 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1;
}

INLINE veci pairs(veci u, veci x)
{
    return _mm256_maddubs_epi16(u, x);
}

INLINE veci add_pairs(veci a, veci u, veci x)
{
    return in_order(_mm256_add_epi16(a, _mm256_maddubs_epi16(u, x)));
}

enum { INT8_ONE = 4 };

/* Codes of a run and sums of m rows shall stay in 16 registers. */
INLINE int int8_vectors(int m, int bits)
{
    const int run = int8_run(bits);
    return m > 4 ? 1 : run == 4 ? (m <= 2 ? 2 : 1) : m <= (run == 8 ? 2 : 1) ? 4 : 2;
}

/* Of bytes less 128: their magnitudes, 128 at most, and -1 where they are negative, else 0. */
INLINE veci byte_sizes(veci u)
{
    return _mm256_abs_epi8(_mm256_xor_si256(u, _mm256_set1_epi8(-128)));
}

INLINE veci byte_signs(veci u)
{
    return _mm256_cmpgt_epi8(_mm256_setzero_si256(), _mm256_xor_si256(u, _mm256_set1_epi8(-128)));
}

/* sum + (x ^ sign) * size: no pair leaves 16 bits, as 2 * 128 * -128 does not. */
INLINE veci add_signed(veci sum, veci size, veci sign, veci x)
{
    return add_both(sum, _mm256_maddubs_epi16(size, _mm256_xor_si256(x, sign)));
}

/* sum + the sizes that have a sign. */
INLINE veci add_negative(veci sum, veci size, veci sign)
{
    return words_less(sum,
                      _mm256_madd_epi16(_mm256_maddubs_epi16(size, sign), _mm256_set1_epi16(1)));
}

#define INT8_ROWS 4
#define F32_ROWS  2
#include "kernels/cpu/isa/prepacked.h"

/* ---- many rows */

/* int8 products of many rows unpack codes once. Codes of 8 bits are taken less 128: with the sign s
 * of such a code c, 0 or -1, x c = |c| (x ^ s) - |c| s; two products |c| (x ^ s) fit 16 bits, and
 * |c| s depends on weights alone. */

/* Bytes of a step, and of a chunk. */
INLINE int64_t unpacked_step(const int bits)
{
    return bits == 8 ? 2 * LINE : LINE;
}

INLINE int64_t unpacked_chunk(const int bits)
{
    return STEPS * unpacked_step(bits);
}

/* sum[m], of step s of a chunk of codes of 8 bits. */
INLINE void unpacked_signed(veci (*sum)[4], const uint8_t *chunk, const int8_t *code, const int s,
                            const int m, const int nv)
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

/* sum[m], of a chunk; sums of two steps in 16 bits are used at once, others stay in registers. */
INLINE void unpacked_dots(veci (*sum)[4], const uint8_t *chunk, const int8_t *code, const int m,
                          const int nv, const int bits)
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
INLINE void unpacked_start(veci sum[DQ_PREPACKED_INT8_MAX][4], const dq_simd_prepacked_weight *w,
                           const uint8_t *tail, int64_t row, const int32_t *of, const int m,
                           const int nv, const int bits)
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
INLINE void unpacked_fold(vecf total[DQ_PREPACKED_INT8_MAX][4], veci sum[DQ_PREPACKED_INT8_MAX][4],
                          const uint8_t *tail, int64_t row, const float *of, const int m,
                          const int nv)
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
INLINE void unpacked_group(vecf total[DQ_PREPACKED_INT8_MAX][4], const dq_simd_prepacked_weight *w,
                           const uint8_t *p, int64_t row, const dq_simd_prepacked_rows *a,
                           const int64_t n, const int m, const int nv, const int bits)
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
INLINE void unpacked_groups(float *y, int64_t ldy, const dq_simd_prepacked_weight *w,
                            const uint8_t *from, int64_t chunks, const dq_simd_prepacked_rows *a,
                            bool add, const int64_t group, const int m, const int nv,
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

INLINE void unpacked_int8(float *y, int64_t ldy, const dq_simd_prepacked_weight *w,
                          const uint8_t *from, int64_t chunks, const dq_simd_prepacked_rows *a,
                          bool add, const int m, const int nv, const int bits)
{
    if (w->group == 1)
        unpacked_groups(y, ldy, w, from, chunks, a, add, 1, m, nv, bits);
    else
        unpacked_groups(y, ldy, w, from, chunks, a, add, w->group, m, nv, bits);
}

/* Returns the sum of |c| of negative codes c, of 8 bits and less 128; else 0. */
INLINE veci unpack_chunk(uint8_t *to, const uint8_t *chunk, int row, const int bits)
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
INLINE void unpack_block(uint8_t *to, const dq_simd_prepacked_weight *w, const uint8_t *block,
                         int64_t group, int64_t chunks, const int bits)
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

PREPACKED_WIDTHS(UNPACK_FUNCTION, 1)
static void unpack(uint8_t *to, const dq_simd_prepacked_weight *w, const uint8_t *block,
                   int64_t group, int64_t chunks)
{
    static void (*const of[WIDTHS])(uint8_t *, const dq_simd_prepacked_weight *, const uint8_t *,
                                    int64_t, int64_t) = {PREPACKED_WIDTHS(UNPACK_NAME, 1)};
    of[w->bits - LEAST_WIDTH](to, w, block, group, chunks);
}

PREPACKED_WIDTHS(UNPACKED_FUNCTION, 2)
PREPACKED_WIDTHS(UNPACKED_FUNCTION, 3)
PREPACKED_WIDTHS(UNPACKED_FUNCTION, 4)
static void (*const unpacked_of[3][WIDTHS])(UNPACKED_ARGS) = {
    {PREPACKED_WIDTHS(UNPACKED_NAME, 2)},
    {PREPACKED_WIDTHS(UNPACKED_NAME, 3)},
    {PREPACKED_WIDTHS(UNPACKED_NAME, 4)},
};

static void int8_unpacked(float *y, int64_t ldy, const dq_simd_prepacked_weight *w,
                          const uint8_t *unpacked, int64_t chunks, const dq_simd_prepacked_rows *a,
                          int m, bool add)
{
    unpacked_of[m - 2][w->bits - LEAST_WIDTH](y, ldy, w, unpacked, chunks, a, add);
}

const dq_simd_prepacked dq_simd_prepacked_avx2 = {.int8_rows = INT8_ROWS,
                                                  .int8_one = INT8_ONE,
                                                  .int8_words = INT8_WORDS,
                                                  .f32_rows = F32_ROWS,
                                                  .int8 = int8,
                                                  .f32 = f32,
                                                  .unpack = unpack,
                                                  .int8_unpacked = int8_unpacked,
                                                  .split = split};

#endif
