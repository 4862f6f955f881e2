/* charsmap: see charsmap.h. A double array (darts-clone) over the bytes of the input, and after it the
 * replacements as strings that end in NUL. Offsets come from a file, so each step checks that it stays inside; the
 * shortest match counts, as in the reference.
 * SPDX-License-Identifier: MIT */
#include "tokenizer/charsmap.h"

#include "base/text.h"

#include <string.h>

static dq_status damaged(dq_err *err, const char *why)
{
    return dq_fail(err, DQ_DAMAGED, "normalizer Precompiled: \"precompiled_charsmap\" %s", why);
}

static uint32_t little_endian(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

dq_status dq_charsmap_load(dq_charsmap *map, const char *base64, size_t len, dq_arena *a,
                           dq_err *err)
{
    size_t n;
    int64_t bad;
    *map = (dq_charsmap){0};
    if (len == 0) return DQ_OK;
    uint8_t *bytes = dq_alloc(a, len / 4 + 1, 3, err);
    if (!bytes) return err->code;
    if (!dq_base64_get(bytes, &n, base64, len)) return damaged(err, "is not base64");
    if (n < 4) return damaged(err, "is too short");
    size_t trie = little_endian(bytes);
    if (trie % 4 || trie > n - 4) return damaged(err, "has a trie of a wrong length");
    uint32_t *unit = dq_alloc(a, trie / 4, sizeof *unit, err);
    if (!unit) return err->code;
    for (size_t i = 0; i < trie / 4; i++) unit[i] = little_endian(bytes + 4 + 4 * i);
    map->text = (const char *)bytes + 4 + trie;
    map->text_len = n - 4 - trie;
    if (dq_utf8_check(map->text, map->text_len, &bad)) return damaged(err, "is not UTF-8");
    map->unit = unit;
    map->n_units = trie / 4;
    return DQ_OK;
}

/* Fields of a unit of the double array (darts-clone): label, offset to the children, and whether the
 * first child is a value. */
static uint32_t label_of(uint32_t unit)
{
    return unit & (UINT32_C(1) << 31 | 0xFF);
}

static uint32_t offset_of(uint32_t unit)
{
    return unit >> 10 << ((unit >> 9 & 1) * 8);
}

static bool has_value(uint32_t unit)
{
    return unit >> 8 & 1;
}

/* The replacement at offset `at`; a file may point anywhere, so inside a character too. */
static const char *text_at(const dq_charsmap *map, size_t at, size_t *len)
{
    if (at > map->text_len) return NULL;
    if (at < map->text_len && !dq_utf8_begins(map->text[at])) return NULL;
    const char *end = memchr(map->text + at, 0, map->text_len - at);
    *len = end ? (size_t)(end - map->text) - at : map->text_len - at;
    return map->text + at;
}

const char *dq_charsmap_find(const dq_charsmap *map, const char *part, size_t len, size_t *out_len)
{
    if (map->n_units == 0) return NULL;
    size_t at = offset_of(map->unit[0]);
    for (size_t i = 0; i < len && part[i]; i++) {
        at ^= (uint8_t)part[i];
        if (at >= map->n_units) return NULL;
        uint32_t unit = map->unit[at];
        if (label_of(unit) != (uint8_t)part[i]) return NULL;
        at ^= offset_of(unit);
        if (!has_value(unit)) continue;
        if (at >= map->n_units) return NULL;
        return text_at(map, map->unit[at] & INT32_MAX, out_len);
    }
    return NULL;
}
