/* strmap: see strmap.h. Open addressing with linear steps; the table's size is a power of two and at most half of
 * it is used, so a search ends at a free slot. Keys are compared by length and bytes and stay where the caller has
 * them; nothing is ever removed.
 * SPDX-License-Identifier: MIT */
#include "base/strmap.h"

#include <string.h>

static uint64_t mix(uint64_t h)
{
    h ^= h >> 32;
    h *= UINT64_C(0x9E3779B97F4A7C15);
    return h ^ h >> 29;
}

uint64_t dq_strmap_hash(const void *p, size_t len)
{
    const char *s = p;
    uint64_t h = UINT64_C(0xA0761D6478BD642F) ^ len, word;
    for (; len >= sizeof word; s += sizeof word, len -= sizeof word) {
        memcpy(&word, s, sizeof word);
        h = mix(h ^ word) * UINT64_C(0xD6E8FEB86659FD93);
    }
    word = 0;
    if (len) memcpy(&word, s, len);
    return mix(mix(h ^ word));
}

dq_status dq_strmap_new(dq_strmap *m, size_t count, dq_arena *a, dq_err *err)
{
    size_t size = 16;
    while (size / 2 < count) {
        if (size > SIZE_MAX / 4)
            return dq_fail(err, DQ_RESOURCE, "out of memory (%zu keys)", count);
        size *= 2;
    }
    m->n = 0;
    m->mask = size - 1;
    m->slot = dq_alloc(a, size, sizeof *m->slot, err);
    return m->slot ? DQ_OK : err->code;
}

static dq_strmap_slot *find(const dq_strmap *m, const char *key, size_t len)
{
    size_t i = (size_t)dq_strmap_hash(key, len) & m->mask;
    for (; m->slot[i].key; i = (i + 1) & m->mask) {
        if (m->slot[i].len == len && memcmp(m->slot[i].key, key, len) == 0) break;
    }
    return &m->slot[i];
}

void dq_strmap_put(dq_strmap *m, const char *key, size_t len, int32_t value)
{
    dq_strmap_slot *s = find(m, key, len);
    if (!s->key) {
        *s = (dq_strmap_slot){key, (uint32_t)len, 0};
        m->n++;
    }
    s->value = value;
}

dq_status dq_strmap_add(dq_strmap *m, const char *key, size_t len, int32_t value, dq_arena *a,
                        dq_err *err)
{
    if (!m->slot || m->n >= m->mask / 2) {
        dq_strmap more;
        DQ_TRY(dq_strmap_new(&more, 2 * m->n + 1, a, err));
        for (size_t i = 0; m->slot && i <= m->mask; i++) {
            const dq_strmap_slot *s = &m->slot[i];
            if (s->key) dq_strmap_put(&more, s->key, s->len, s->value);
        }
        *m = more;
    }
    dq_strmap_put(m, key, len, value);
    return DQ_OK;
}

int32_t dq_strmap_get(const dq_strmap *m, const char *key, size_t len)
{
    if (!m->slot) return -1;
    const dq_strmap_slot *s = find(m, key, len);
    return s->key ? s->value : -1;
}
