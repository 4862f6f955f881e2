/* loops_lines: the codes of a packed weight as lines (dq_simd_prepacked_weight), for the files of the instruction sets. A vector holds
 * the same word of LINES_BYTES / 4 rows: what is done to it is done to all of them, and no byte changes its row.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_LOOPS_LINES_H
#define DQ_LOOPS_LINES_H

#include "kernels/cpu/simd.h"

typedef uint32_t lines_rows __attribute__((vector_size(LINES_BYTES), may_alias,
                                           aligned(4))); /* what wrote it wrote floats */
enum { LINES_STEPS = DQ_PREPACKED_COLS / 4, LINES_VECTORS = 4 * DQ_PREPACKED_ROWS / LINES_BYTES };

#define LINES_INLINE static inline __attribute__((always_inline))

/* Ones in the low n bits of every `step` bits. */
LINES_INLINE uint32_t lines_mask(const int n, const int step)
{
    uint32_t x = 0;
    for (int at = 0; at < 32; at += step) x |= ((1u << n) - 1) << at;
    return x;
}

/* Columns 4 s .. 4 s + 3 of a chunk, each into a byte of its own: halves move apart, then quarters. */
LINES_INLINE lines_rows lines_step(const lines_rows *in, const int s, const int bits)
{
    const int at = 4 * bits * s, word = at / 32, shift = at % 32;
    const uint32_t one = lines_mask(bits, 16);
    lines_rows x = in[word * LINES_VECTORS] >> shift;
    if (shift + 4 * bits > 32) x |= in[(word + 1) * LINES_VECTORS] << (32 - shift);
    x = (x & ((1u << 2 * bits) - 1)) | (x >> 2 * bits & ((1u << 2 * bits) - 1)) << 16;
    return (x & one) | (x >> bits & one) << 8;
}

/* A chunk of as many rows as a vector has lanes. */
LINES_INLINE void lines_chunk(lines_rows *to, const lines_rows *in, const int bits)
{
    const int each = 8 / bits, whole = each * bits, spare = 8 - whole;
    lines_rows step[LINES_STEPS];
#pragma GCC unroll 8
    for (int s = 0; s < LINES_STEPS; s++) step[s] = lines_step(in, s, bits);
#pragma GCC unroll 7
    for (int l = 0; l < bits; l++) {
        lines_rows x = step[l * each];
#pragma GCC unroll 4
        for (int i = 1; i < each; i++) x |= step[l * each + i] << bits * i;
#pragma GCC unroll 3
        for (int s = whole; s < LINES_STEPS; s++) {
            const int at =
                (s - whole) * bits - l * spare; /* of the step's codes in the spare bits */
            const int from = at > 0 ? at : 0, end = at + bits < spare ? at + bits : spare;
            if (from < end)
                x |= (step[s] >> (from - at) & lines_mask(end - from, 8)) << (whole + from);
        }
        to[l * LINES_VECTORS] = x;
    }
}

LINES_INLINE void lines_chunks(void *to, const void *words, const int bits, int64_t chunks)
{
    lines_rows *out = to;
    const lines_rows *in = words;
    for (int64_t i = 0; i < chunks; i++, out += bits * LINES_VECTORS, in += bits * LINES_VECTORS)
        for (int j = 0; j < LINES_VECTORS; j++) lines_chunk(out + j, in + j, bits);
}

static void lines(void *to, const void *words, int bits, int64_t chunks)
{
    switch (bits) { /* a constant, for speed */
    case 2: lines_chunks(to, words, 2, chunks); break;
    case 3: lines_chunks(to, words, 3, chunks); break;
    case 4: lines_chunks(to, words, 4, chunks); break;
    case 5: lines_chunks(to, words, 5, chunks); break;
    case 6: lines_chunks(to, words, 6, chunks); break;
    default: lines_chunks(to, words, 7, chunks); break;
    }
}

#endif
