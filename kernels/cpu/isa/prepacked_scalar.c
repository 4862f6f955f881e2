/* prepacked_scalar: products with prepacked weights in plain C. See simd.h.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/simd.h"
#include "tensor/tensor.h"

#include <string.h>

#define VEC   static inline
#define LANES 16

typedef struct veci {
    uint32_t x[LANES];
} veci;

typedef struct vecf {
    float x[LANES];
} vecf;

#define EACH(T, NAME, ARGUMENTS, VALUE)                                                            \
    VEC T NAME ARGUMENTS                                                                           \
    {                                                                                              \
        T to;                                                                                      \
        for (int i = 0; i < LANES; i++) to.x[i] = VALUE;                                           \
        return to;                                                                                 \
    }

EACH(veci, load_bytes, (const uint8_t *p), p[i])
EACH(veci, all_words, (int32_t x), (uint32_t)x)
EACH(veci, words_right, (veci a, int n), a.x[i] >> n)
EACH(veci, words_left, (veci a, int n), a.x[i] << n)
EACH(veci, words_plus, (veci a, veci b), a.x[i] + b.x[i])
EACH(veci, words_less, (veci a, veci b), a.x[i] - b.x[i])
EACH(veci, words_times, (veci a, veci b), a.x[i] * b.x[i])
EACH(vecf, load_floats, (const float *p), p[i])
EACH(vecf, load_halves, (const uint8_t *p),
     dq_f32_from_f16((uint16_t)(p[2 * i] | p[2 * i + 1] << 8)))
EACH(vecf, all_floats, (float x), x)
EACH(vecf, floats_of, (veci a), (float)(int32_t)a.x[i])
EACH(vecf, floats_plus, (vecf a, vecf b), a.x[i] + b.x[i])
EACH(vecf, floats_times, (vecf a, vecf b), a.x[i] * b.x[i])
EACH(vecf, floats_fma, (vecf a, vecf b, vecf c), a.x[i] * b.x[i] + c.x[i])

VEC veci load_words(const uint8_t *p)
{
    veci to;
    memcpy(to.x, p, sizeof to.x);
    return to;
}

VEC veci all_fours(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return all_words(four);
}

/* The low n bits of every byte of a, the others of b. */
VEC veci low_bits_or(int n, veci a, veci b)
{
    const uint32_t mask = 0x01010101u * ((1u << n) - 1);
    veci to;
    for (int i = 0; i < LANES; i++) to.x[i] = (a.x[i] & mask) | (b.x[i] & ~mask);
    return to;
}

VEC void store_floats(float *p, vecf a)
{
    memcpy(p, a.x, sizeof a.x);
}

VEC veci int8_codes(veci a, int bits)
{
    for (int i = 0; i < LANES; i++) a.x[i] &= 0x01010101u * ((1u << bits) - 1);
    return a;
}

enum { INT8_WORDS = 0 };

/* at: activations i of four columns each. */
VEC veci add_dots(veci sum, veci u, const int8_t *at, int64_t i4, int bits)
{
    const veci x = all_fours(at + 4 * i4);
    (void)bits;
    for (int i = 0; i < LANES; i++)
        for (int k = 0; k < 32; k += 8) {
            const int32_t part = (int32_t)(u.x[i] >> k & 255) * (int8_t)(uint8_t)(x.x[i] >> k);
            sum.x[i] += (uint32_t)part;
        }
    return sum;
}

VEC void store_words(int32_t *p, veci a)
{
    memcpy(p, a.x, sizeof a.x);
}

enum { INT8_ONE = 8 };

#include "kernels/cpu/isa/prepacked_split.h"

static void int8(float *y, int64_t ldy, const dq_simd_prepacked_weight *w, dq_simd_blocks b,
                 const dq_simd_prepacked_rows *a, int m)
{
    for (int k = 0; k < b.n; k++, b.at += b.apart, y += DQ_PREPACKED_ROWS)
        prepacked_int8_one(y, ldy, w, b.at, 0, a, m, 2, w->bits);
}

static void f32(float *y, int64_t ldy, const dq_simd_prepacked_weight *w, dq_simd_blocks b,
                const dq_simd_split_rows *a, int m)
{
    for (int k = 0; k < b.n; k++, b.at += b.apart, y += DQ_PREPACKED_ROWS)
        prepacked_f32_one(y, ldy, w, b.at, 0, a, m, 2, w->bits);
}

const dq_simd_prepacked dq_simd_prepacked_scalar = {.int8_rows = 8,
                                                    .int8_one = INT8_ONE,
                                                    .int8_words = INT8_WORDS,
                                                    .f32_rows = 3,
                                                    .int8 = int8,
                                                    .f32 = f32,
                                                    .split = split};
