/* map64: hash table from 64-bit keys to 64-bit values that are not 0: 0 stands for an absent key, so counts begin
 * by themselves. Open addressing, at most half full; reading is inline, for loops that do little else.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_MAP64_H
#define DQ_MAP64_H

#include "base/base.h"

typedef struct dq_map64_slot {
    uint64_t key, value; /* value 0: free */
} dq_map64_slot;

typedef struct dq_map64 {
    dq_map64_slot *slot; /* [mask + 1] */
    size_t mask, n;
    dq_arena *a; /* holds the slots; NULL: they are a block */
} dq_map64;

/* Capacity for `count` keys before it grows. Blocks end by dq_map64_free. */
dq_status dq_map64_new(dq_map64 *m, size_t count, dq_arena *a, dq_err *err);
void dq_map64_free(dq_map64 *m); /* {0}, too; may be called again */
void dq_map64_clear(dq_map64 *m);

/* The slot of the key, or the free one where it belongs. */
static inline dq_map64_slot *dq_map64_find(const dq_map64 *m, uint64_t key)
{
    const uint64_t h = key * UINT64_C(0x9E3779B97F4A7C15);
    size_t i = (size_t)(h ^ h >> 32) & m->mask;
    while (m->slot[i].value && m->slot[i].key != key) i = (i + 1) & m->mask;
    return &m->slot[i];
}

static inline uint64_t dq_map64_get(const dq_map64 *m, uint64_t key)
{
    return dq_map64_find(m, key)->value;
}

/* A second value for a key replaces the first; value > 0. */
dq_status dq_map64_put(dq_map64 *m, uint64_t key, uint64_t value, dq_err *err);
/* One more of the key. */
dq_status dq_map64_count(dq_map64 *m, uint64_t key, dq_err *err);

#endif
