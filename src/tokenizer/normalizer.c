/* A double array (darts-clone) over the bytes of the input, and after it the replacements as
 * strings that end in NUL. Offsets come from a file, so each step checks that it stays inside; the
 * shortest match counts, as in the reference.
 * SPDX-License-Identifier: MIT */
#include "base/text.h"
#include "tokenizer/inside.h"

#include <string.h>
#include <utf8proc.h>

static dq_status damaged(dq_err *err, const char *why)
{
    return dq_fail(err, DQ_DAMAGED, "normalizer Precompiled: \"precompiled_charsmap\" %s", why);
}

static uint32_t little_endian(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* From base64; *map points into the arena. DQ_DAMAGED: invalid. */
static dq_status charsmap_load(dq_charsmap *map, const char *base64, size_t len, dq_arena *a,
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

/* Fields of a unit of the double array (darts-clone): label, offset, first child is a value. */
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

/* A file may point anywhere, so inside a character too. */
static const char *text_at(const dq_charsmap *map, size_t at, size_t *len)
{
    if (at > map->text_len) return NULL;
    if (at < map->text_len && !dq_utf8_begins(map->text[at])) return NULL;
    const char *end = memchr(map->text + at, 0, map->text_len - at);
    *len = end ? (size_t)(end - map->text) - at : map->text_len - at;
    return map->text + at;
}

/* The replacement of the shortest matching entry of part[len]; NULL: none. */
static const char *charsmap_find(const dq_charsmap *map, const char *part, size_t len,
                                 size_t *out_len)
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

/* Steps run from buffer to buffer; a quick check skips those that change nothing. The fate of the
 * first character is tracked, since a template may treat a text's beginning specially. */

enum { MAX_DEPTH = 8 };

static const bool no = false;

/* The length may be 0 and count NULs. */
static dq_status load_text(const char **text, size_t *len, const json_t *v, const char *type,
                           const char *key, dq_arena *a, dq_err *err)
{
    const json_t *s = json_object_get(v, key);
    if (!json_is_string(s))
        return dq_fail(err, DQ_DAMAGED, "normalizer %s: \"%s\" is not a string", type, key);
    *len = json_string_length(s);
    *text = dq_text(a, json_string_value(s), *len, err);
    return *text ? DQ_OK : err->code;
}

static dq_status load(dq_normalizer *n, const json_t *v, int depth, dq_arena *a, dq_err *err)
{
    const char *type;
    if (!json_is_object(v)) return dq_fail(err, DQ_DAMAGED, "a normalizer is not an object");
    DQ_TRY(dq_json_text(&type, v, "type", NULL, err));
    if (strcmp(type, "Sequence") != 0) {
        if (n->n_steps == DQ_NORMALIZER_MAX_STEPS)
            return dq_fail(err, DQ_MISMATCH, "more than %d normalizers are not supported",
                           DQ_NORMALIZER_MAX_STEPS);
        dq_normalizer_step *s = &n->step[n->n_steps++];
        static const char *const forms[] = {"NFD", "NFC", "NFKD", "NFKC"};
        for (int i = 0; i < 4; i++) {
            if (strcmp(type, forms[i]) != 0) continue;
            s->kind = DQ_NORMALIZER_FORM;
            s->composed = i % 2;
            s->compatible = i >= 2;
            return DQ_OK;
        }
        if (strcmp(type, "Lowercase") == 0) {
            s->kind = DQ_NORMALIZER_LOWER;
            return DQ_OK;
        }
        if (strcmp(type, "Strip") == 0) {
            s->kind = DQ_NORMALIZER_STRIP;
            DQ_TRY(dq_json_bool(&s->left, v, "strip_left", &no, err));
            return dq_json_bool(&s->right, v, "strip_right", &no, err);
        }
        if (strcmp(type, "Prepend") == 0) {
            s->kind = DQ_NORMALIZER_PREPEND;
            return load_text(&s->text, &s->text_len, v, type, "prepend", a, err);
        }
        if (strcmp(type, "Replace") == 0) {
            const json_t *pattern = json_object_get(v, "pattern");
            const json_t *regex = json_object_get(pattern, "Regex");
            const json_t *text = json_object_get(pattern, "String");
            s->kind = DQ_NORMALIZER_REPLACE;
            DQ_TRY(load_text(&s->text, &s->text_len, v, "Replace", "content", a, err));
            if (json_is_string(regex) && !text)
                return dq_regex_syntax_compile(&s->regex.code, &s->regex.jit,
                                               json_string_value(regex), json_string_length(regex),
                                               false, a, err);
            if (!json_is_string(text) || regex)
                return dq_fail(
                    err, DQ_DAMAGED,
                    "normalizer Replace: \"pattern\" is not {\"Regex\": ...} or {\"String\": ...}");
            DQ_TRY(load_text(&s->part, &s->part_len, pattern, "Replace", "String", a, err));
            if (s->part_len) return DQ_OK;
            return dq_fail(err, DQ_MISMATCH,
                           "normalizer Replace with an empty pattern is not supported");
        }
        if (strcmp(type, "Precompiled") == 0) {
            const json_t *map = json_object_get(v, "precompiled_charsmap");
            s->kind = DQ_NORMALIZER_CHARSMAP;
            if (!map || json_is_null(map)) return DQ_OK;
            if (!json_is_string(map))
                return dq_fail(err, DQ_DAMAGED,
                               "normalizer Precompiled: \"precompiled_charsmap\" is not a string");
            return charsmap_load(&s->map, json_string_value(map), json_string_length(map), a, err);
        }
        return dq_fail(err, DQ_MISMATCH, "normalizer type \"%s\" is not supported", type);
    }
    const json_t *list = json_object_get(v, "normalizers");
    if (!json_is_array(list))
        return dq_fail(err, DQ_DAMAGED, "normalizer Sequence has no list \"normalizers\"");
    if (depth == MAX_DEPTH)
        return dq_fail(err, DQ_MISMATCH, "a normalizer Sequence more than %d deep is not supported",
                       MAX_DEPTH);
    for (size_t i = 0; i < json_array_size(list); i++)
        DQ_TRY(load(n, json_array_get(list, i), depth + 1, a, err));
    return DQ_OK;
}

dq_status dq_normalizer_load(dq_normalizer *n, const json_t *value, dq_arena *a, dq_err *err)
{
    return value && !json_is_null(value) ? load(n, value, 0, a, err) : DQ_OK;
}

void dq_normalizer_free(dq_normalizer *n)
{
    for (int i = 0; i < n->n_steps; i++) pcre2_code_free(n->step[i].regex.code);
    *n = (dq_normalizer){0};
}

/* Code points of a stretch, then its UTF-8 in the same place. */
typedef struct points {
    utf8proc_int32_t *p;
    size_t capacity;
} points;

/* Appends the form of s[len]. */
static dq_status one_form(dq_strbuf *out, points *work, const char *s, size_t len, unsigned options,
                          dq_err *err)
{
    utf8proc_ssize_t n;
    for (;;) {
        n = utf8proc_decompose((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)len, work->p,
                               (utf8proc_ssize_t)work->capacity, (utf8proc_option_t)options);
        if (n < 0 || (size_t)n <= work->capacity) break;
        dq_block_free(work->p);
        work->capacity = 0;
        size_t capacity = (size_t)n + (size_t)n / 4 + 64;
        work->p = dq_block_new(capacity + 1, sizeof *work->p, err); /* + 1: a NUL is put after */
        if (!work->p) return err->code;
        work->capacity = capacity;
    }
    if (n >= 0) n = utf8proc_reencode(work->p, n, (utf8proc_option_t)options);
    if (n < 0)
        return dq_fail(err, n == UTF8PROC_ERROR_NOMEM ? DQ_RESOURCE : DQ_BUG,
                       "Unicode normalization failed: %s", utf8proc_errmsg(n));
    return dq_strbuf_add(out, (const char *)work->p, (size_t)n, err);
}

/* Characters newer than Unicode 9, and U+11A7, which the reference leaves alone. */
static const dq_utf8_range untold[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x11A7, 0x11A7},
    {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},
    {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x10785},
    {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC},
    {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070},
    {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930},
    {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943},
    {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99},
    {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42},
    {0x16FF0, 0x16FF1}, {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1F16C, 0x1F16C},
    {0x1FBF0, 0x1FBF9},
};

/* Characters with a first byte below `limit` are their own form: only stretches of others are
 * converted. */
static dq_status form(dq_strbuf *out, const dq_normalizer_step *s, const char *text, size_t len,
                      dq_err *err)
{
    const uint8_t *p = (const uint8_t *)text;
    const unsigned limit = s->compatible ? 0x80 : s->composed ? 0xCC : 0xC3;
    const unsigned options = UTF8PROC_STABLE |
                             (s->composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                             (s->compatible ? UTF8PROC_COMPAT : 0);
    points work = {NULL, 0};
    dq_status status = DQ_OK;
    for (size_t i = 0; status == DQ_OK && i < len;) {
        size_t begin = i, end, used;
        bool opaque =
            false; /* the character at `end` stands as it is, like all between two of them */
        while (begin < len && p[begin] < limit) begin++;
        for (end = begin; end < len && p[end] >= limit; end += used) {
            uint32_t c = dq_utf8_first(text + end, &used);
            opaque = dq_utf8_in_ranges(untold, sizeof untold / sizeof *untold, c);
            if (opaque) break;
        }
        if (begin > i && end > begin) {
            size_t before;
            dq_utf8_last(text, begin, &before);
            begin -= before;
        }
        status = dq_strbuf_add(out, text + i, begin - i, err);
        if (status == DQ_OK && end > begin)
            status = one_form(out, &work, text + begin, end - begin, options, err);
        if (status == DQ_OK && opaque) {
            status = dq_strbuf_add(out, text + end, used, err);
            end += used;
        }
        i = end;
    }
    dq_block_free(work.p);
    return status;
}

/* Full mapping per character; only U+0130 becomes two. */
static dq_status lower(dq_strbuf *out, const char *text, size_t len, dq_err *err)
{
    DQ_TRY(dq_strbuf_reserve(out, len + 4, err));
    for (size_t i = 0, used; i < len; i += used) {
        uint32_t c = dq_utf8_first(text + i, &used);
        DQ_TRY(dq_strbuf_reserve(out, 4, err));
        if (c < 0x80) {
            out->s[out->n++] = (char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
        } else if (c == 0x130) {
            DQ_TRY(dq_strbuf_add(out, "i\xCC\x87", 3, err));
        } else {
            out->n += dq_utf8_put(out->s + out->n, (uint32_t)utf8proc_tolower((int32_t)c));
        }
    }
    return DQ_OK;
}

static dq_status strip(dq_strbuf *out, const dq_normalizer_step *s, const char *text, size_t len,
                       dq_err *err)
{
    size_t begin = 0, used;
    while (s->left && begin < len && dq_utf8_is_space(dq_utf8_first(text + begin, &used)))
        begin += used;
    while (s->right && len > begin && dq_utf8_is_space(dq_utf8_last(text, len, &used))) len -= used;
    return dq_strbuf_add(out, text + begin, len - begin, err);
}

static dq_status replace(dq_strbuf *out, const dq_normalizer_step *s, const char *text, size_t len,
                         size_t original, dq_err *err)
{
    dq_regex_matcher m = {0};
    size_t done = 0, begin = 0, end;
    dq_status status = s->regex.code && len ? dq_regex_begin(&m, len, err) : DQ_OK;
    while (status == DQ_OK && len) {
        bool found;
        if (s->regex.code) {
            status = dq_regex_next(&m, &s->regex, text, len, &begin, &end, &found, err);
        } else {
            begin = dq_regex_find_text(text, len, done, s->part, s->part_len);
            end = begin + s->part_len;
            found = begin != SIZE_MAX;
        }
        if (status != DQ_OK || !found) break;
        status = dq_strbuf_add(out, text + done, begin - done, err);
        if (status == DQ_OK) status = dq_strbuf_add(out, s->text, s->text_len, err);
        if (status == DQ_OK)
            status = dq_strbuf_check_growth(out->n, original, "normalizer Replace", err);
        done = end;
    }
    dq_regex_end(&m);
    return status == DQ_OK ? dq_strbuf_add(out, text + done, len - done, err) : status;
}

/* Grapheme clusters below six bytes map as a whole, others by character
 * (normalizers/precompiled.rs). */
static dq_status by_map(dq_strbuf *out, const dq_charsmap *map, const char *text, size_t len,
                        size_t original, dq_err *err)
{
    for (size_t i = 0, end; i < len; i = end) {
        size_t used, n;
        utf8proc_int32_t state = 0;
        DQ_TRY(dq_strbuf_check_growth(out->n, original, "normalizer Precompiled", err));
        uint32_t c = dq_utf8_first(text + i, &used), next;
        for (end = i + used; end < len; end += used, c = next) {
            next = dq_utf8_first(text + end, &used);
            if (utf8proc_grapheme_break_stateful((int32_t)c, (int32_t)next, &state)) break;
        }
        const char *to = end - i < 6 ? charsmap_find(map, text + i, end - i, &n) : NULL;
        if (to) {
            DQ_TRY(dq_strbuf_add(out, to, n, err));
            continue;
        }
        for (size_t k = i; k < end; k += used) {
            dq_utf8_first(text + k, &used);
            to = charsmap_find(map, text + k, used, &n);
            DQ_TRY(dq_strbuf_add(out, to ? to : text + k, to ? n : used, err));
        }
    }
    return DQ_OK;
}

static bool untouched(const dq_normalizer_step *s, const char *text, size_t len)
{
    size_t used;
    switch (s->kind) {
    case DQ_NORMALIZER_STRIP:
        return !(s->left && dq_utf8_is_space(dq_utf8_first(text, &used))) &&
               !(s->right && dq_utf8_is_space(dq_utf8_last(text, len, &used)));
    case DQ_NORMALIZER_REPLACE:
        return s->part && dq_regex_find_text(text, len, 0, s->part, s->part_len) == SIZE_MAX;
    case DQ_NORMALIZER_CHARSMAP: return s->map.n_units == 0;
    case DQ_NORMALIZER_FORM: {
        const unsigned limit = s->compatible ? 0x80 : s->composed ? 0xCC : 0xC3;
        for (size_t i = 0; i < len; i++) {
            if ((uint8_t)text[i] >= limit) return false;
        }
        return true;
    }
    default: return false;
    }
}

static dq_status apply(dq_strbuf *out, const dq_normalizer_step *s, const char *text, size_t len,
                       size_t original, dq_err *err)
{
    switch (s->kind) {
    case DQ_NORMALIZER_FORM: return form(out, s, text, len, err);
    case DQ_NORMALIZER_LOWER: return lower(out, text, len, err);
    case DQ_NORMALIZER_STRIP: return strip(out, s, text, len, err);
    case DQ_NORMALIZER_PREPEND:
        DQ_TRY(dq_strbuf_check_growth(s->text_len + len, original, "normalizer Prepend", err));
        DQ_TRY(dq_strbuf_add(out, s->text, s->text_len, err));
        return dq_strbuf_add(out, text, len, err);
    case DQ_NORMALIZER_REPLACE: return replace(out, s, text, len, original, err);
    case DQ_NORMALIZER_CHARSMAP: return by_map(out, &s->map, text, len, original, err);
    }
    return dq_fail(err, DQ_BUG, "a normalizer of kind %d", (int)s->kind);
}

/* *head: bytes from the original's first character. A match's replacement counts as its last
 * character's; a charsmap that drops the first makes the next one first, as in the reference. */
static dq_status move_head(size_t *head, const dq_normalizer_step *s, const char *text, size_t len,
                           dq_err *err)
{
    size_t begin = 0, end = 0, used;
    bool found = false;
    if (*head && s->kind == DQ_NORMALIZER_PREPEND) *head += s->text_len;
    if (s->kind == DQ_NORMALIZER_STRIP && s->left) {
        while (end < *head && dq_utf8_is_space(dq_utf8_first(text + end, &used))) end += used;
        *head -= end;
    }
    if (s->kind != DQ_NORMALIZER_REPLACE || *head == 0) return DQ_OK;
    if (s->regex.code) {
        dq_regex_matcher m = {0};
        dq_status status = dq_regex_begin(&m, len, err);
        if (status == DQ_OK)
            status = dq_regex_next(&m, &s->regex, text, len, &begin, &end, &found, err);
        dq_regex_end(&m);
        DQ_TRY(status);
    } else {
        found = len >= s->part_len && memcmp(text, s->part, s->part_len) == 0;
        end = s->part_len;
    }
    if (found && begin == 0) *head = end <= *head ? *head - end + s->text_len : 0;
    return DQ_OK;
}

static dq_status advance(dq_strbuf *now, size_t *head, const dq_normalizer_step *s,
                         const char *text, size_t len, size_t original, dq_err *err)
{
    const dq_normalizer_kind k = s->kind;
    dq_strbuf next = {0};
    dq_status status = dq_strbuf_reserve(&next, len, err);
    if (status == DQ_OK) status = move_head(head, s, text, len, err);
    if (status == DQ_OK) status = apply(&next, s, text, len, original, err);
    if (status == DQ_OK) status = dq_strbuf_check_growth(next.n, original, "the normalizer", err);
    if (status == DQ_OK && *head && next.n &&
        (k == DQ_NORMALIZER_FORM || k == DQ_NORMALIZER_LOWER || k == DQ_NORMALIZER_CHARSMAP))
        dq_utf8_first(next.s, head);
    dq_block_free(now->s);
    *now = next;
    return status;
}

dq_status dq_normalizer_run(const dq_normalizer *n, char **out, size_t *out_len, bool *moved,
                            const char *text, size_t len, dq_err *err)
{
    dq_strbuf now = {0}; /* the text as it is now, unless it is still the caller's */
    size_t head = 0;
    *out = NULL;
    *out_len = len;
    if (moved) *moved = false;
    if (len == 0) return DQ_OK;
    dq_utf8_first(text, &head);
    for (int i = 0; i < n->n_steps; i++) {
        const char *in = now.s ? now.s : text;
        size_t in_len = now.s ? now.n : len;
        if (in_len == 0) break; /* no step makes something of nothing */
        if (untouched(&n->step[i], in, in_len)) continue;
        if (advance(&now, &head, &n->step[i], in, in_len, len, err) == DQ_OK) continue;
        dq_block_free(now.s);
        return err->code;
    }
    if (moved) *moved = head == 0;
    *out = now.s;
    if (now.s) *out_len = now.n;
    return DQ_OK;
}
