/* random_mt: the Mersenne Twister as CPython's random module seeds and reads it, so that draws of
 * programs in Python can be repeated.
 * Source: Matsumoto and Nishimura, ACM TOMACS 8 (1998), with the seeding by an array of their 2002
 * revision; CPython Lib/random.py Random.sample and _randbelow, Modules/_randommodule.c (behaviour).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_RANDOM_MT_H
#define DQ_RANDOM_MT_H

#include "base/base.h"

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
