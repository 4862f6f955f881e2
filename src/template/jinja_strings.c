/* jinja_strings: see jinja_strings.h. Parts of a string point into it; what is put together is captured as output is.
 * SPDX-License-Identifier: MIT */
#include "template/jinja_strings.h"

#include "base/utf8.h"
#include "template/jinja_lex.h"
#include "template/jinja_print.h"

#include <string.h>
#include <utf8proc.h>

dq_jinja_text dq_jinja_strings_text(dq_jinja_run *r, const dq_jinja_value *v)
{
    if (v->is_safe)
        dq_jinja_fail(r, DQ_MISMATCH, "working on what safe gives is not supported");
    else if (v->kind == DQ_JINJA_UNDEFINED)
        dq_jinja_fail_undefined(r, v);
    else if (v->kind != DQ_JINJA_STRING)
        dq_jinja_fail(r, DQ_DAMAGED, "expected a string, found '%s'", dq_jinja_type(v));
    return dq_jinja_ok(r) ? v->text : (dq_jinja_text){"", 0};
}

int64_t dq_jinja_strings_int(dq_jinja_run *r, const dq_jinja_value *v, int64_t fallback)
{
    if (v->kind == DQ_JINJA_ABSENT || v->kind == DQ_JINJA_NONE) return fallback;
    if (dq_jinja_is_integer(v)) return dq_jinja_integer(v);
    dq_jinja_fail(r, DQ_DAMAGED, "expected an integer, found '%s'", dq_jinja_type(v));
    return fallback;
}

static void put_text(dq_jinja_run *r, dq_jinja_text t)
{
    dq_jinja_put(r, t.s, t.n);
}

/* ---- Case ---- */

/* Characters that do not become one other: those with several in upper case, I with a dot, and sigma, whose lower case
 * depends on its place. */
static bool is_irregular(uint32_t c, bool upper)
{
    static const dq_utf8_range ranges[] = {{0xDF, 0xDF},     {0x149, 0x149},   {0x1F0, 0x1F0},
                                           {0x390, 0x390},   {0x3B0, 0x3B0},   {0x587, 0x587},
                                           {0x1E96, 0x1E9A}, {0x1F50, 0x1FFC}, {0xFB00, 0xFB17}};
    if (!upper) return c == 0x130 || c == 0x3A3;
    return dq_utf8_in_ranges(ranges, sizeof ranges / sizeof *ranges, c);
}

static bool is_letter(uint32_t c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Whether the character after `before` (0: none) is in upper case. */
static bool begins(uint32_t before, dq_jinja_case form)
{
    if (form == DQ_JINJA_UPPER || (before == 0 && form != DQ_JINJA_LOWER)) return true;
    if (form == DQ_JINJA_TITLE) return !is_letter(before);
    return form == DQ_JINJA_WORDS &&
           (dq_jinja_lex_is_space(before) || (before < 0x80 && strchr("-({[<", (int)before)));
}

dq_jinja_value dq_jinja_strings_case(dq_jinja_run *r, dq_jinja_text t, dq_jinja_case form)
{
    dq_strbuf mine, *out = dq_jinja_capture(r, &mine);
    uint32_t before = 0;
    for (size_t at = 0, bytes; at < t.n && dq_jinja_ok(r); at += bytes) {
        const uint32_t c = dq_utf8_first(t.s + at, &bytes);
        const bool upper = begins(before, form);
        char text[4];
        utf8proc_int32_t to =
            upper ? utf8proc_toupper((utf8proc_int32_t)c) : utf8proc_tolower((utf8proc_int32_t)c);
        if (form == DQ_JINJA_CAPITALIZE && upper) to = utf8proc_totitle((utf8proc_int32_t)c);
        if (is_irregular(c, upper) || (form == DQ_JINJA_TITLE && c >= 0x80))
            dq_jinja_fail(r, DQ_MISMATCH, "upper or lower case of U+%04X is not supported here", c);
        dq_jinja_put(r, text, dq_utf8_put(text, (uint32_t)to));
        before = c;
    }
    return dq_jinja_captured(r, &mine, out);
}

/* ---- Parts ---- */

/* Whether strip takes the character s[bytes] away. */
static bool is_stripped(const char *s, size_t bytes, const dq_jinja_text *chars)
{
    size_t unused;
    if (!chars) return dq_jinja_lex_is_space(dq_utf8_first(s, &unused));
    for (size_t i = 0; i + bytes <= chars->n; i++) {
        if (memcmp(chars->s + i, s, bytes) == 0) return true;
    }
    return false;
}

dq_jinja_value dq_jinja_strings_strip(dq_jinja_run *r, dq_jinja_text t, const dq_jinja_value *chars,
                                      bool left, bool right)
{
    const bool given = chars->kind != DQ_JINJA_ABSENT && chars->kind != DQ_JINJA_NONE;
    const dq_jinja_text set = given ? dq_jinja_strings_text(r, chars) : (dq_jinja_text){"", 0};
    const dq_jinja_text *only = given ? &set : NULL;
    size_t bytes;
    while (left && t.n && dq_jinja_spend(r, set.n)) {
        dq_utf8_first(t.s, &bytes);
        if (!is_stripped(t.s, bytes, only)) break;
        t = (dq_jinja_text){t.s + bytes, t.n - bytes};
    }
    while (right && t.n && dq_jinja_spend(r, set.n)) {
        dq_utf8_last(t.s, t.n, &bytes);
        if (!is_stripped(t.s + t.n - bytes, bytes, only)) break;
        t.n -= bytes;
    }
    return dq_jinja_string(t.s, t.n);
}

size_t dq_jinja_strings_find(dq_jinja_run *r, dq_jinja_text t, dq_jinja_text part, size_t at)
{
    for (; part.n <= t.n && at <= t.n - part.n; at++) {
        if (part.n && t.s[at] != part.s[0]) continue;
        if (!dq_jinja_spend(r, part.n + 1)) break;
        if (part.n == 0 || memcmp(t.s + at, part.s, part.n) == 0) return at;
    }
    dq_jinja_spend(r, t.n);
    return SIZE_MAX;
}

dq_jinja_value dq_jinja_strings_replace(dq_jinja_run *r, dq_jinja_text t, dq_jinja_text old,
                                        dq_jinja_text with, int64_t count)
{
    dq_strbuf mine, *before = dq_jinja_capture(r, &mine);
    size_t at = 0, next;
    while (count != 0 && dq_jinja_ok(r) && (next = dq_jinja_strings_find(r, t, old, at)) <= t.n) {
        size_t bytes = old.n;
        dq_jinja_put(r, t.s + at, next - at);
        put_text(r, with);
        at = next;
        count--;
        if (old.n == 0) { /* before each character, and at the end */
            if (at == t.n) break;
            dq_utf8_first(t.s + at, &bytes);
            dq_jinja_put(r, t.s + at, bytes);
        }
        at += bytes;
    }
    dq_jinja_put(r, t.s + at, t.n - at);
    return dq_jinja_captured(r, &mine, before);
}

static void add_part(dq_jinja_run *r, dq_jinja_value *list, dq_jinja_text t, size_t from, size_t to)
{
    dq_jinja_list_add(r, list->list, dq_jinja_string(t.s + from, to - from));
}

/* The next character from `at` on that is whitespace or, !space, is not; t.n: none. */
static size_t next_space(dq_jinja_text t, size_t at, bool space)
{
    for (size_t bytes; at < t.n; at += bytes) {
        if (dq_jinja_lex_is_space(dq_utf8_first(t.s + at, &bytes)) == space) break;
    }
    return at;
}

static dq_jinja_value split_spaces(dq_jinja_run *r, dq_jinja_text t, int64_t count)
{
    dq_jinja_value out = dq_jinja_list_new(r, DQ_JINJA_LIST, 0);
    size_t at = next_space(t, 0, false), end;
    for (; at < t.n && count != 0 && dq_jinja_ok(r); count--) {
        end = next_space(t, at, true);
        add_part(r, &out, t, at, end);
        at = next_space(t, end, false);
    }
    for (end = t.n; at < end && dq_jinja_ok(r);) { /* the rest */
        size_t bytes;
        if (!dq_jinja_lex_is_space(dq_utf8_last(t.s, end, &bytes))) break;
        end -= bytes;
    }
    if (at < end) add_part(r, &out, t, at, end);
    return out;
}

dq_jinja_value dq_jinja_strings_split(dq_jinja_run *r, dq_jinja_text t, const dq_jinja_value *by,
                                      int64_t count)
{
    if (by->kind == DQ_JINJA_ABSENT || by->kind == DQ_JINJA_NONE) return split_spaces(r, t, count);
    const dq_jinja_text part = dq_jinja_strings_text(r, by);
    dq_jinja_value out = dq_jinja_list_new(r, DQ_JINJA_LIST, 0);
    size_t at = 0, next;
    if (part.n == 0) return dq_jinja_fail(r, DQ_DAMAGED, "empty separator");
    while (count-- != 0 && (next = dq_jinja_strings_find(r, t, part, at)) <= t.n) {
        add_part(r, &out, t, at, next);
        at = next + part.n;
    }
    add_part(r, &out, t, at, t.n);
    return out;
}

dq_jinja_value dq_jinja_strings_lines(dq_jinja_run *r, dq_jinja_text t)
{
    static const dq_utf8_range ends[] = {
        {0x0A, 0x0D}, {0x1C, 0x1E}, {0x85, 0x85}, {0x2028, 0x2029}};
    dq_jinja_value out = dq_jinja_list_new(r, DQ_JINJA_LIST, 0);
    size_t from = 0;
    for (size_t at = 0, bytes; at < t.n && dq_jinja_ok(r);) {
        const uint32_t c = dq_utf8_first(t.s + at, &bytes);
        const bool is_end = dq_utf8_in_ranges(ends, sizeof ends / sizeof *ends, c);
        if (is_end) add_part(r, &out, t, from, at);
        at += bytes;
        if (c == '\r' && at < t.n && t.s[at] == '\n') at++;
        if (is_end) from = at;
    }
    if (from < t.n) add_part(r, &out, t, from, t.n);
    return out;
}

dq_jinja_value dq_jinja_strings_join(dq_jinja_run *r, dq_jinja_text between,
                                     const dq_jinja_list *items)
{
    dq_strbuf mine, *before = dq_jinja_capture(r, &mine);
    for (size_t i = 0; i < items->n && dq_jinja_ok(r); i++) {
        if (i > 0) put_text(r, between);
        dq_jinja_print(r, &items->item[i]);
    }
    return dq_jinja_captured(r, &mine, before);
}
