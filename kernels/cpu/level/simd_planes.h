/* simd_planes: the codes of a packed weight as planes (dq_simd_blocked_weight), for the files of the levels. A vector holds
 * the same word of PLANES_BYTES / 4 rows: what is done to it is done to all of them, and no byte changes its row.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SIMD_PLANES_H
#define DQ_SIMD_PLANES_H

#include "kernels/cpu/simd.h"

typedef uint32_t planes_rows __attribute__((vector_size(PLANES_BYTES), may_alias,
                                            aligned(4))); /* what wrote it wrote floats */
enum { PLANES_STEPS = DQ_BLOCKED_COLS / 4, PLANES_VECTORS = 4 * DQ_BLOCKED_ROWS / PLANES_BYTES };

#define PLANES_INLINE static inline __attribute__((always_inline))

/* Ones in the low n bits of every `step` bits. */
PLANES_INLINE uint32_t planes_mask(const int n, const int step)
{
    uint32_t x = 0;
    for (int at = 0; at < 32; at += step) x |= ((1u << n) - 1) << at;
    return x;
}

/* Columns 4 s .. 4 s + 3 of a chunk, each into a byte of its own: halves move apart, then quarters. */
PLANES_INLINE planes_rows planes_step(const planes_rows *in, const int s, const int bits)
{
    const int at = 4 * bits * s, word = at / 32, shift = at % 32;
    const uint32_t one = planes_mask(bits, 16);
    planes_rows x = in[word * PLANES_VECTORS] >> shift;
    if (shift + 4 * bits > 32) x |= in[(word + 1) * PLANES_VECTORS] << (32 - shift);
    x = (x & ((1u << 2 * bits) - 1)) | (x >> 2 * bits & ((1u << 2 * bits) - 1)) << 16;
    return (x & one) | (x >> bits & one) << 8;
}

/* A chunk of as many rows as a vector has lanes. */
PLANES_INLINE void planes_chunk(planes_rows *to, const planes_rows *in, const int bits)
{
    planes_rows step[PLANES_STEPS];
#pragma GCC unroll 8
    for (int s = 0; s < PLANES_STEPS; s++) step[s] = planes_step(in, s, bits);
#pragma GCC unroll 3
    for (int done = 0; done < bits;) {
        const int left = bits - done, width = left >= 4 ? 4 : left >= 2 ? 2 : 1;
        const int each =
            8 / width; /* a division in a loop's head keeps checked builds from unrolling it */
        const uint32_t mask = planes_mask(width, 8);
#pragma GCC unroll 8
        for (int s = 0; s < PLANES_STEPS; s += each, to += PLANES_VECTORS) {
            planes_rows x = step[s] >> done & mask;
#pragma GCC unroll 8
            for (int i = 1; i < each; i++) x |= (step[s + i] >> done & mask) << width * i;
            *to = x;
        }
        done += width;
    }
}

PLANES_INLINE void planes_chunks(void *to, const void *words, const int bits, int64_t chunks)
{
    planes_rows *out = to;
    const planes_rows *in = words;
    for (int64_t i = 0; i < chunks; i++, out += bits * PLANES_VECTORS, in += bits * PLANES_VECTORS)
        for (int j = 0; j < PLANES_VECTORS; j++) planes_chunk(out + j, in + j, bits);
}

static void planes(void *to, const void *words, int bits, int64_t chunks)
{
    switch (bits) { /* a constant, for speed */
    case 2: planes_chunks(to, words, 2, chunks); break;
    case 3: planes_chunks(to, words, 3, chunks); break;
    case 4: planes_chunks(to, words, 4, chunks); break;
    case 5: planes_chunks(to, words, 5, chunks); break;
    case 6: planes_chunks(to, words, 6, chunks); break;
    default: planes_chunks(to, words, 7, chunks); break;
    }
}

#endif
