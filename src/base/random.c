/* random: a counter that goes in steps of the golden ratio of 2^64, each hashed.
 * SPDX-License-Identifier: MIT */
#include "base/random.h"

static const uint64_t step = 0x9e3779b97f4a7c15u;

uint64_t dq_random_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

dq_random dq_random_of(uint64_t seed, uint64_t stream)
{
    return (dq_random){dq_random_mix(dq_random_mix(seed + step) ^ stream)};
}

uint64_t dq_random_next(dq_random *r)
{
    r->state += step;
    return dq_random_mix(r->state);
}

uint64_t dq_random_below(dq_random *r, uint64_t n)
{
    const uint64_t uneven = (UINT64_MAX % n + 1) % n; /* 2^64 mod n */
    uint64_t x = dq_random_next(r);
    while (x > UINT64_MAX - uneven) x = dq_random_next(r);
    return x % n;
}

void dq_random_permute(dq_random *r, int32_t *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) out[i] = (int32_t)i;
    for (int64_t i = n - 1; i > 0; i--) {
        const int64_t k = (int64_t)dq_random_below(r, (uint64_t)i + 1);
        const int32_t kept = out[i];
        out[i] = out[k];
        out[k] = kept;
    }
}
