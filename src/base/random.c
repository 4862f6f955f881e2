/* A counter that goes in steps of the golden ratio of 2^64, each hashed.
 * SPDX-License-Identifier: MIT */
#include "base/random.h"

static const uint64_t stride = 0x9e3779b97f4a7c15u;

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
    return (dq_random){dq_random_mix(dq_random_mix(seed + stride) ^ stream)};
}

uint64_t dq_random_next(dq_random *r)
{
    r->state += stride;
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

/* MT19937 seeded as in CPython, by init_by_array over 32-bit words. Sampling follows both ways of
 * random.sample, a shrinking pool or repeated draws, and its switch between them. */

enum { WORDS = 624, MIDDLE = 397 };

/* The key is the seed's 32-bit words, lowest first; 0 has one word. */
void dq_random_mt_seed(dq_random_mt *r, uint64_t seed)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const int n_key = key[1] ? 2 : 1;
    uint32_t *s = r->state;
    r->state[0] = 19650218u;
    for (int i = 1; i < WORDS; i++) {
        uint32_t last = r->state[i - 1];
        r->state[i] = 1812433253u * (last ^ (last >> 30)) + (uint32_t)i;
    }
    r->at = WORDS;
    int i = 1;
    for (int step = 0, k = 0; step < WORDS; step++) {
        s[i] = (s[i] ^ ((s[i - 1] ^ (s[i - 1] >> 30)) * 1664525u)) + key[k] + (uint32_t)k;
        k = k + 1 < n_key ? k + 1 : 0;
        if (++i == WORDS) {
            s[0] = s[WORDS - 1];
            i = 1;
        }
    }
    for (int step = 0; step < WORDS - 1; step++) {
        s[i] = (s[i] ^ ((s[i - 1] ^ (s[i - 1] >> 30)) * 1566083941u)) - (uint32_t)i;
        if (++i == WORDS) {
            s[0] = s[WORDS - 1];
            i = 1;
        }
    }
    s[0] = 0x80000000u;
}

uint32_t dq_random_mt_next(dq_random_mt *r)
{
    if (r->at == WORDS) {
        uint32_t *s = r->state;
        for (int i = 0; i < WORDS; i++) {
            uint32_t y = (s[i] & 0x80000000u) | (s[(i + 1) % WORDS] & 0x7fffffffu);
            s[i] = s[(i + MIDDLE) % WORDS] ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
        }
        r->at = 0;
    }
    uint32_t y = r->state[r->at++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

uint32_t dq_random_mt_bits(dq_random_mt *r, int bits)
{
    return dq_random_mt_next(r) >> (32 - bits);
}

uint32_t dq_random_mt_below(dq_random_mt *r, uint32_t n)
{
    int bits = 0;
    while (bits < 32 && n >> bits) bits++;
    uint32_t x = dq_random_mt_bits(r, bits);
    while (x >= n) x = dq_random_mt_bits(r, bits);
    return x;
}

dq_status dq_random_mt_sample(dq_random_mt *r, int64_t *out, int64_t n, int64_t k, dq_err *err)
{
    int64_t few = 21, power = 1;
    while (k > 5 && power < 3 * k) power *= 4;
    if (k > 5) few += power;
    if (n > few) {
        /* For few of many, draws repeats again. */
        for (int64_t i = 0; i < k; i++) {
            bool taken = true;
            while (taken) {
                out[i] = dq_random_mt_below(r, (uint32_t)n);
                taken = false;
                for (int64_t j = 0; j < i; j++) taken = taken || out[j] == out[i];
            }
        }
        return DQ_OK;
    }
    int64_t *pool = dq_block_new((size_t)n, sizeof *pool, err);
    if (!pool) return err->code;
    for (int64_t i = 0; i < n; i++) pool[i] = i;
    for (int64_t i = 0; i < k; i++) {
        uint32_t j = dq_random_mt_below(r, (uint32_t)(n - i));
        out[i] = pool[j];
        pool[j] = pool[n - i - 1];
    }
    dq_block_free(pool);
    return DQ_OK;
}
