/* An error keeps its first message: later failures on the way out change nothing, and callers only
 * put the place in front. An arena is a list of chunks whose first is the open one; a request
 * above a chunk's size gets its own, after it.
 * SPDX-License-Identifier: MIT */
#include "base/base.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "dq reads and writes little-endian files without swapping; big-endian hosts are unsupported"
#endif

void dq_one_line(char *s)
{
    s[dq_utf8_plain(s, s, strlen(s))] = 0;
    for (; *s; s++) {
        if (*s == '\n' || *s == '\t') *s = '?';
    }
}

const dq_remedy dq_remedy_none = {.code = DQ_REMEDY_NONE};

/* Replaces the text from byte `begin` on and keeps its remedy. */
static void say(dq_err *err, size_t begin, dq_remedy remedy, const char *fmt, va_list args)
{
    vsnprintf(err->text + begin, sizeof err->text - begin, fmt, args);
    dq_one_line(err->text + begin);
    if (remedy.code == DQ_REMEDY_NONE || err->n_remedies == DQ_ERR_REMEDIES) return;
    dq_remedy_at *to = &err->remedy[err->n_remedies++];
    *to = (dq_remedy_at){.code = remedy.code,
                         .begin = (uint16_t)begin,
                         .end = (uint16_t)strlen(err->text),
                         .number = {remedy.number[0], remedy.number[1]}};
    snprintf(to->word, sizeof to->word, "%s", remedy.word ? remedy.word : "");
    dq_one_line(to->word);
}

dq_status dq_fail(dq_err *err, dq_status code, const char *fmt, ...)
{
    va_list args;
    if (err->code != DQ_OK) return err->code;
    err->code = code;
    err->n_remedies = 0;
    va_start(args, fmt);
    say(err, 0, dq_remedy_none, fmt, args);
    va_end(args);
    return code;
}

dq_status dq_fail_with(dq_err *err, dq_status code, dq_remedy remedy, const char *fmt, ...)
{
    va_list args;
    if (err->code != DQ_OK) return err->code;
    err->code = code;
    err->n_remedies = 0;
    va_start(args, fmt);
    say(err, 0, remedy, fmt, args);
    va_end(args);
    return code;
}

dq_status dq_fail_more(dq_err *err, dq_remedy remedy, const char *fmt, ...)
{
    va_list args;
    if (err->code == DQ_OK) return DQ_OK;
    va_start(args, fmt);
    say(err, strlen(err->text), remedy, fmt, args);
    va_end(args);
    return err->code;
}

dq_status dq_fail_as(dq_err *err, const dq_err *other)
{
    if (err->code == DQ_OK) *err = *other;
    return err->code;
}

dq_status dq_in(dq_err *err, const char *fmt, ...)
{
    char old[sizeof err->text];
    va_list args;
    memcpy(old, err->text, sizeof old);
    va_start(args, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    size_t used = strlen(err->text);
    snprintf(err->text + used, sizeof err->text - used, "%s", old);
    dq_one_line(err->text);
    for (int i = 0; i < err->n_remedies; i++) {
        err->remedy[i].begin = (uint16_t)(err->remedy[i].begin + used);
        err->remedy[i].end = (uint16_t)(err->remedy[i].end + used);
    }
    return err->code;
}

bool dq_mul_ok(size_t *product, size_t a, size_t b)
{
    if (b != 0 && a > SIZE_MAX / b) return false;
    *product = a * b;
    return true;
}

/* The only global state here: a countdown that only tests set. */
static _Atomic int64_t fail_countdown;

void dq_alloc_fail_at(int64_t n)
{
    fail_countdown = n;
}

/* *bytes is rounded up to what is allocated. */
static void *take(size_t *bytes)
{
    if (fail_countdown > 0 && atomic_fetch_sub(&fail_countdown, 1) == 1) return NULL;
    if (*bytes == 0) *bytes = 64;
    if (*bytes > SIZE_MAX - 63) return NULL;
    *bytes = (*bytes + 63) & ~(size_t)63;
    return aligned_alloc(64, *bytes);
}

static void *take_zeroed(size_t bytes)
{
    void *p = take(&bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

static void *no_memory(size_t n, size_t size, dq_err *err)
{
    dq_fail(err, DQ_RESOURCE, "out of memory (%zu items of %zu bytes)", n, size);
    return NULL;
}

void *dq_block_new(size_t n, size_t size, dq_err *err)
{
    size_t bytes;
    void *p = dq_mul_ok(&bytes, n, size) ? take_zeroed(bytes) : NULL;
    return p ? p : no_memory(n, size, err);
}

void *dq_block_raw(size_t n, size_t size, dq_err *err)
{
    size_t bytes;
    void *p = dq_mul_ok(&bytes, n, size) ? take(&bytes) : NULL;
    return p ? p : no_memory(n, size, err);
}

void dq_block_free(void *p)
{
    free(p);
}

enum { CHUNK = 64 * 1024 };

typedef struct chunk {
    struct chunk *next;
    size_t used, bytes;
    char pad[64 - 3 * sizeof(size_t)];
} chunk;

struct dq_arena {
    chunk *first; /* the one being filled; larger blocks stand after it */
};

dq_arena *dq_arena_new(void)
{
    return take_zeroed(sizeof(dq_arena));
}

void dq_arena_free(dq_arena *a)
{
    if (!a) return;
    for (chunk *c = a->first; c;) {
        chunk *next = c->next;
        free(c);
        c = next;
    }
    free(a);
}

static void *arena_take(dq_arena *a, size_t bytes)
{
    chunk *c = a->first;
    bytes = (bytes + 63) & ~(size_t)63;
    if (bytes == 0) bytes = 64;
    if (c && c->bytes - c->used >= bytes) {
        void *p = (char *)c + c->used;
        c->used += bytes;
        return p;
    }
    size_t total = sizeof(chunk) + (bytes > CHUNK ? bytes : CHUNK);
    c = take_zeroed(total);
    if (!c) return NULL;
    c->bytes = total;
    c->used = sizeof(chunk) + bytes;
    if (a->first && bytes > CHUNK) { /* keep filling the open chunk */
        c->next = a->first->next;
        a->first->next = c;
    } else {
        c->next = a->first;
        a->first = c;
    }
    return (char *)c + sizeof(chunk);
}

void *dq_alloc(dq_arena *a, size_t n, size_t size, dq_err *err)
{
    size_t bytes;
    void *p = NULL;
    if (dq_mul_ok(&bytes, n, size) && bytes < SIZE_MAX / 2) p = arena_take(a, bytes);
    if (!p) dq_fail(err, DQ_RESOURCE, "out of memory (%zu items of %zu bytes)", n, size);
    return p;
}

void *dq_arena_object(dq_arena **a, size_t size, dq_err *err)
{
    *a = dq_arena_new();
    void *p = *a ? dq_alloc(*a, 1, size, err) : NULL;
    if (p) return p;
    dq_arena_free(*a);
    dq_fail(err, DQ_RESOURCE, "out of memory");
    return NULL;
}

char *dq_text(dq_arena *a, const char *s, size_t len, dq_err *err)
{
    char *p = len < SIZE_MAX ? dq_alloc(a, len + 1, 1, err) : NULL;
    if (p && len) memcpy(p, s, len);
    return p;
}

char *dq_textf(dq_arena *a, dq_err *err, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    char *p = len >= 0 ? dq_alloc(a, (size_t)len + 1, 1, err) : NULL;
    if (!p) return NULL;
    va_start(args, fmt);
    vsnprintf(p, (size_t)len + 1, fmt, args);
    va_end(args);
    return p;
}

void *dq_grow(dq_arena *a, void *list, size_t want, size_t *cap, size_t size, dq_err *err)
{
    enum { FIRST = 16 };
    if (list && want <= *cap) return list;
    size_t more = *cap <= SIZE_MAX / 2 ? 2 * *cap : want;
    if (more < want) more = want;
    if (more < FIRST) more = FIRST;
    void *p = a ? dq_alloc(a, more, size, err) : dq_block_new(more, size, err);
    if (!p) return NULL;
    if (list) memcpy(p, list, *cap * size);
    if (!a) dq_block_free(list);
    *cap = more;
    return p;
}

/* Linear probing from a multiplicative hash; the table doubles when half full. */

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

/* Grows the table if need be. */
static dq_map64_slot *map64_take(dq_map64 *m, uint64_t key, dq_err *err)
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
    if (!s->value) s = map64_take(m, key, err);
    if (!s) return err->code;
    s->value = value;
    return DQ_OK;
}

dq_status dq_map64_count(dq_map64 *m, uint64_t key, dq_err *err)
{
    dq_map64_slot *s = dq_map64_find(m, key);
    if (!s->value) s = map64_take(m, key, err);
    if (!s) return err->code;
    s->value++;
    return DQ_OK;
}

/* Linear probing in a table of a power of two, at most half full, so that a search ends at a free
 * slot. Keys are compared by length and bytes and stay with the caller; nothing is ever removed. */

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

/* A sorted array. */

static uint8_t *item_at(const dq_address_list *l, size_t i)
{
    return (uint8_t *)l->item + i * l->size;
}

static uintptr_t address_of(const void *item)
{
    const void *address;
    memcpy(&address, item, sizeof address);
    return (uintptr_t)address;
}

/* Index of the first item whose address is not below this one. */
static size_t place_of(const dq_address_list *l, uintptr_t address)
{
    size_t low = 0, high = l->n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (address_of(item_at(l, middle)) < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void *dq_address_list_find(const dq_address_list *l, const void *address)
{
    const size_t at = place_of(l, (uintptr_t)address);
    return at < l->n && address_of(item_at(l, at)) == (uintptr_t)address ? item_at(l, at) : NULL;
}

bool dq_address_list_reserve(dq_address_list *l, dq_err *err)
{
    void *more = dq_grow(NULL, l->item, l->n + 1, &l->capacity, l->size, err);
    if (more) l->item = more;
    return more != NULL;
}

void dq_address_list_add(dq_address_list *l, const void *item)
{
    const size_t at = place_of(l, address_of(item));
    uint8_t *to = item_at(l, at);
    memmove(to + l->size, to, (l->n - at) * l->size);
    memcpy(to, item, l->size);
    l->n++;
}

void dq_address_list_remove(dq_address_list *l, void *item)
{
    uint8_t *at = item;
    memmove(at, at + l->size, (size_t)(item_at(l, l->n) - at) - l->size);
    l->n--;
}

void dq_address_list_free(dq_address_list *l)
{
    dq_block_free(l->item);
    *l = (dq_address_list){.size = l->size};
}
