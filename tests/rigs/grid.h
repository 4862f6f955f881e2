/* grid: invented numbers for tests, the same everywhere.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_GRID_H
#define DQ_GRID_H

#include <stdint.h>

static inline uint32_t mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

/* xorshift64 (Marsaglia 2003); *state is not 0. */
static inline uint64_t xorshift(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Multiples of 1/8 in -2..2: products and their sums are exact in f32, so that codes of rounded logits do not
 * hang on the order of a sum. */
static inline float on_grid(uint32_t seed)
{
    return (float)(int)(mix(seed) % 33) / 8.0f - 2.0f;
}

#endif
