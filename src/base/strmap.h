/* strmap: hash table from byte strings to small integers.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_STRMAP_H
#define DQ_STRMAP_H

#include "base/base.h"

typedef struct dq_strmap_slot {
    const char *key; /* NULL: free */
    uint32_t len;
    int32_t value;
} dq_strmap_slot;

typedef struct dq_strmap {
    dq_strmap_slot *slot; /* [mask + 1]; NULL: no keys yet */
    size_t mask, n;
} dq_strmap;

uint64_t dq_strmap_hash(const void *p, size_t len);

/* Capacity for `count` keys; the memory belongs to the arena. */
dq_status dq_strmap_new(dq_strmap *m, size_t count, dq_arena *a, dq_err *err);
/* Keys stay where they are: they must live as long as the map. A second value for a key replaces the
 * first. Never more than `count` keys, none longer than UINT32_MAX. */
void dq_strmap_put(dq_strmap *m, const char *key, size_t len, int32_t value);
/* The same into a map that makes itself room in the arena; {0} is an empty one. */
dq_status dq_strmap_add(dq_strmap *m, const char *key, size_t len, int32_t value, dq_arena *a,
                        dq_err *err);
int32_t dq_strmap_get(const dq_strmap *m, const char *key, size_t len); /* -1: absent */

#endif
