/* random: SplitMix64, for draws of dq's own (random_mt.h repeats those of Python). The same seed gives the same
 * draws on every machine and in every version: results are named by their seeds.
 * Source: Steele, Lea and Flood, OOPSLA 2014; the constants are those of Vigna's splitmix64.c.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_RANDOM_H
#define DQ_RANDOM_H

#include "base/base.h"

typedef struct dq_random {
    uint64_t state; /* any value is a seed */
} dq_random;

/* The generator's last step: a bijection whose output bits all depend on all input bits, so also a hash. */
uint64_t dq_random_mix(uint64_t x);
/* A generator for each pair of a seed and a stream. */
dq_random dq_random_of(uint64_t seed, uint64_t stream);
uint64_t dq_random_next(dq_random *r);
/* Uniform in 0 .. n - 1, n > 0: values that some remainders have too many of are drawn again. */
uint64_t dq_random_below(dq_random *r, uint64_t n);
/* A permutation of 0 .. n - 1: Fisher-Yates from the top. */
void dq_random_permute(dq_random *r, int32_t *out, int64_t n);

#endif
