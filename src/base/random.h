/* random: SplitMix64, for draws of dq's own ("Random mt" repeats those of Python). The same seed
 * gives the same draws on every machine and in every version: results are named by their seeds.
 * Source: Steele, Lea and Flood, OOPSLA 2014; the constants are those of Vigna's splitmix64.c.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_RANDOM_H
#define DQ_RANDOM_H

#include "base/base.h"

typedef struct dq_random {
    uint64_t state; /* any value is a seed */
} dq_random;

/* A bijection in which every output bit depends on every input bit; also a hash. */
uint64_t dq_random_mix(uint64_t x);
/* An independent generator per seed and stream. */
dq_random dq_random_of(uint64_t seed, uint64_t stream);
uint64_t dq_random_next(dq_random *r);
/* Uniform in 0 .. n - 1, n > 0, by rejection. */
uint64_t dq_random_below(dq_random *r, uint64_t n);
/* A permutation of 0 .. n - 1: Fisher-Yates from the top. */
void dq_random_permute(dq_random *r, int32_t *out, int64_t n);

/* ---- Random mt ----
 * The Mersenne Twister as CPython's random module seeds and reads it, so that draws of programs in
 * Python can be repeated. Source: Matsumoto and Nishimura, ACM TOMACS 8 (1998), with the seeding
 * by an array of their 2002 revision; CPython Lib/random.py Random.sample and _randbelow,
 * Modules/_randommodule.c (behaviour). */

typedef struct dq_random_mt {
    uint32_t state[624];
    int at; /* the next word of the state; 624: it is used up */
} dq_random_mt;

/* random.seed(seed). */
void dq_random_mt_seed(dq_random_mt *r, uint64_t seed);
uint32_t dq_random_mt_next(dq_random_mt *r);
/* random.getrandbits(bits), bits 1 to 32. */
uint32_t dq_random_mt_bits(dq_random_mt *r, int bits);
/* Uniform below n, n > 0: random.randrange(n). */
uint32_t dq_random_mt_below(dq_random_mt *r, uint32_t n);
/* random.sample(range(n), k): out[k] without repetition, k <= n < 2^32. DQ_RESOURCE. */
dq_status dq_random_mt_sample(dq_random_mt *r, int64_t *out, int64_t n, int64_t k, dq_err *err);

#endif
