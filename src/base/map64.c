/* map64: linear probing from a multiplicative hash; the slots double when half of them are taken.
 * SPDX-License-Identifier: MIT */
#include "base/map64.h"

#include <string.h>

enum { LEAST_SLOTS = 16 };

dq_status dq_map64_new(dq_map64 *m, size_t count, dq_arena *a, dq_err *err)
{
    size_t size = LEAST_SLOTS;
    *m = (dq_map64){.a = a};
    while (size / 2 < count) {
        if (size > SIZE_MAX / 4)
            return dq_fail(err, DQ_RESOURCE, "out of memory (%zu keys)", count);
        size *= 2;
    }
    m->mask = size - 1;
    m->slot =
        a ? dq_alloc(a, size, sizeof *m->slot, err) : dq_block_new(size, sizeof *m->slot, err);
    return m->slot ? DQ_OK : err->code;
}

void dq_map64_free(dq_map64 *m)
{
    if (!m->a) dq_block_free(m->slot);
    *m = (dq_map64){0};
}

void dq_map64_clear(dq_map64 *m)
{
    memset(m->slot, 0, (m->mask + 1) * sizeof *m->slot);
    m->n = 0;
}

/* A free slot for the key, in a larger table if need be. */
static dq_map64_slot *take(dq_map64 *m, uint64_t key, dq_err *err)
{
    if (2 * (m->n + 1) > m->mask + 1) {
        dq_map64 more;
        if (dq_map64_new(&more, m->mask + 1, m->a, err) != DQ_OK) return NULL;
        for (size_t i = 0; i <= m->mask; i++) {
            if (m->slot[i].value) *dq_map64_find(&more, m->slot[i].key) = m->slot[i];
        }
        more.n = m->n;
        dq_map64_free(m);
        *m = more;
    }
    m->n++;
    dq_map64_slot *s = dq_map64_find(m, key);
    s->key = key;
    return s;
}

dq_status dq_map64_put(dq_map64 *m, uint64_t key, uint64_t value, dq_err *err)
{
    if (value == 0) return dq_fail(err, DQ_BUG, "a map's value is 0");
    dq_map64_slot *s = dq_map64_find(m, key);
    if (!s->value) s = take(m, key, err);
    if (!s) return err->code;
    s->value = value;
    return DQ_OK;
}

dq_status dq_map64_count(dq_map64 *m, uint64_t key, dq_err *err)
{
    dq_map64_slot *s = dq_map64_find(m, key);
    if (!s->value) s = take(m, key, err);
    if (!s) return err->code;
    s->value++;
    return DQ_OK;
}
