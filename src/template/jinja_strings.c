/* jinja_strings: see jinja_strings.h. Parts of a string point into it; what is put together is captured as output is.
 * SPDX-License-Identifier: MIT */
#include "template/jinja_strings.h"

#include "base/text.h"
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
    for (size_t at = 0; at < t.n && dq_jinja_spend(r, DQ_JINJA_PIECE);) {
        const uint32_t c = dq_jinja_text_next(r, t, &at);
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

/* Whether strip takes the character c, which is t.s[from .. to), away. */
static bool is_stripped(dq_jinja_run *r, uint32_t c, dq_jinja_text t, size_t from, size_t to,
                        const dq_jinja_text *chars)
{
    const dq_jinja_text one = {t.s + from, to - from};
    return chars ? dq_jinja_strings_find(r, *chars, one, 0) < chars->n : dq_jinja_lex_is_space(c);
}

dq_jinja_value dq_jinja_strings_strip(dq_jinja_run *r, dq_jinja_text t, const dq_jinja_value *chars,
                                      bool left, bool right)
{
    const bool given = chars->kind != DQ_JINJA_ABSENT && chars->kind != DQ_JINJA_NONE;
    const dq_jinja_text set = given ? dq_jinja_strings_text(r, chars) : (dq_jinja_text){"", 0};
    const dq_jinja_text *only = given ? &set : NULL;
    size_t from = 0, to = t.n;
    for (size_t next = from; left && from < to && dq_jinja_ok(r); from = next) {
        const uint32_t c = dq_jinja_text_next(r, t, &next);
        if (!is_stripped(r, c, t, from, next, only)) break;
    }
    for (size_t next = to; right && from < to && dq_jinja_ok(r); to = next) {
        const uint32_t c = dq_jinja_text_last(r, t, &next);
        if (!is_stripped(r, c, t, next, to, only)) break;
    }
    return dq_jinja_ok(r) ? dq_jinja_string(t.s + from, to - from) : (dq_jinja_value){0};
}

size_t dq_jinja_strings_find(dq_jinja_run *r, dq_jinja_text t, dq_jinja_text part, size_t at)
{
    for (; part.n <= t.n && at <= t.n - part.n; at++) {
        const size_t places = t.n - part.n - at + 1;
        const char *first = part.n ? memchr(t.s + at, part.s[0], places) : NULL;
        const size_t passed = first ? (size_t)(first - t.s) - at : part.n ? places : 0;
        at += passed;
        if (!dq_jinja_spend(r, passed + part.n + DQ_JINJA_PIECE) || passed == places) break;
        if (part.n == 0 || memcmp(t.s + at, part.s, part.n) == 0) return at;
    }
    return SIZE_MAX;
}

dq_jinja_value dq_jinja_strings_replace(dq_jinja_run *r, dq_jinja_text t, dq_jinja_text old,
                                        dq_jinja_text with, int64_t count)
{
    dq_strbuf mine, *before = dq_jinja_capture(r, &mine);
    size_t at = 0, next;
    while (count != 0 && dq_jinja_ok(r) && (next = dq_jinja_strings_find(r, t, old, at)) <= t.n) {
        dq_jinja_put(r, t.s + at, next - at);
        put_text(r, with);
        at = next + old.n;
        count--;
        if (old.n) continue;
        if (at == t.n) break; /* before each character, and at the end */
        dq_jinja_text_next(r, t, &at);
        dq_jinja_put(r, t.s + next, at - next);
    }
    dq_jinja_put(r, t.s + at, t.n - at);
    return dq_jinja_captured(r, &mine, before);
}

static void add_part(dq_jinja_run *r, dq_jinja_value *list, dq_jinja_text t, size_t from, size_t to)
{
    dq_jinja_list_add(r, list->list, dq_jinja_string(t.s + from, to - from));
}

/* The next character from `at` on that is whitespace or, !space, is not; t.n: none. */
static size_t next_space(dq_jinja_run *r, dq_jinja_text t, size_t at, bool space)
{
    for (size_t next = at; at < t.n; at = next) {
        if (dq_jinja_lex_is_space(dq_jinja_text_next(r, t, &next)) == space) break;
    }
    return at;
}

static dq_jinja_value split_spaces(dq_jinja_run *r, dq_jinja_text t, int64_t count)
{
    dq_jinja_value out = dq_jinja_list_new(r, DQ_JINJA_LIST, 0);
    size_t at = next_space(r, t, 0, false), end;
    for (; at < t.n && count != 0 && dq_jinja_ok(r); count--) {
        end = next_space(r, t, at, true);
        add_part(r, &out, t, at, end);
        at = next_space(r, t, end, false);
    }
    end = t.n;
    for (size_t next = end; at < end && dq_jinja_ok(r); end = next) { /* the rest */
        if (!dq_jinja_lex_is_space(dq_jinja_text_last(r, t, &next))) break;
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
    for (size_t at = 0; at < t.n && dq_jinja_ok(r);) {
        const size_t begin = at;
        const uint32_t c = dq_jinja_text_next(r, t, &at);
        const bool is_end = dq_utf8_in_ranges(ends, sizeof ends / sizeof *ends, c);
        if (is_end) add_part(r, &out, t, from, begin);
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
