/* Functions that a template finds without being given them, a row of `functions` each.
 * SPDX-License-Identifier: MIT */
#include "template/inside.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>

typedef dq_jinja_run run;
typedef dq_jinja_call call;
typedef dq_jinja_value value;

/* What methods and filters of strings share. */

typedef enum dq_jinja_case {
    DQ_JINJA_LOWER,
    DQ_JINJA_UPPER,
    DQ_JINJA_CAPITALIZE, /* the first character in upper case, others in lower */
    DQ_JINJA_TITLE,      /* str.title(): the first letter after another character; ASCII only */
    DQ_JINJA_WORDS /* the filter title: the first character, and those after blanks and - ( { [ < */
} dq_jinja_case;

static uint32_t last_character(dq_jinja_run *r, dq_jinja_text t, size_t *end)
{
    size_t bytes = *end;
    const bool ok = dq_jinja_spend(r, DQ_JINJA_CHARACTER);
    const uint32_t c = ok ? dq_utf8_last(t.s, *end, &bytes) : 0;
    *end -= bytes;
    return c;
}

/* DQ_DAMAGED: not a string; DQ_MISMATCH: a result of safe. */
static dq_jinja_text string_of(dq_jinja_run *r, const dq_jinja_value *v)
{
    if (v->is_safe)
        dq_jinja_fail(r, DQ_MISMATCH, "working on what safe gives is not supported");
    else if (v->kind == DQ_JINJA_UNDEFINED)
        dq_jinja_fail_undefined(r, v);
    else if (v->kind != DQ_JINJA_STRING)
        dq_jinja_fail(r, DQ_DAMAGED, "expected a string, found '%s'", dq_jinja_type(v));
    return dq_jinja_ok(r) ? v->text : (dq_jinja_text){"", 0};
}

/* Characters with several upper-case ones, I with a dot, and sigma, whose form depends on its
 * place. */
static bool is_irregular(uint32_t c, bool upper)
{
    static const dq_utf8_range ranges[] = {{0xDF, 0xDF},     {0x149, 0x149},   {0x1F0, 0x1F0},
                                           {0x390, 0x390},   {0x3B0, 0x3B0},   {0x587, 0x587},
                                           {0x1E96, 0x1E9A}, {0x1F50, 0x1FFC}, {0xFB00, 0xFB17}};
    if (!upper) return c == 0x130 || c == 0x3A3;
    return dq_utf8_in_ranges(ranges, sizeof ranges / sizeof *ranges, c);
}

/* Whether the character after `before` (0: none) becomes upper case. */
static bool begins(uint32_t before, dq_jinja_case form)
{
    if (form == DQ_JINJA_UPPER || (before == 0 && form != DQ_JINJA_LOWER)) return true;
    if (form == DQ_JINJA_TITLE)
        return !((before >= 'a' && before <= 'z') || (before >= 'A' && before <= 'Z'));
    return form == DQ_JINJA_WORDS &&
           (dq_utf8_is_strip(before) || (before < 0x80 && strchr("-({[<", (int)before)));
}

/* DQ_MISMATCH: characters that become several, or depend on their neighbours. */
static dq_jinja_value change_case(dq_jinja_run *r, dq_jinja_text t, dq_jinja_case form)
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

static bool is_stripped(dq_jinja_run *r, uint32_t c, dq_jinja_text t, size_t from, size_t to,
                        const dq_jinja_text *chars)
{
    const dq_jinja_text one = {t.s + from, to - from};
    return chars ? dq_jinja_strings_find(r, *chars, one, 0) < chars->n : dq_utf8_is_strip(c);
}

/* chars absent or None: strips whitespace. */
static dq_jinja_value strip(dq_jinja_run *r, dq_jinja_text t, const dq_jinja_value *chars,
                            bool left, bool right)
{
    const bool given = chars->kind != DQ_JINJA_ABSENT && chars->kind != DQ_JINJA_NONE;
    const dq_jinja_text set = given ? string_of(r, chars) : (dq_jinja_text){"", 0};
    const dq_jinja_text *only = given ? &set : NULL;
    size_t from = 0, to = t.n;
    for (size_t next = from; left && from < to && dq_jinja_ok(r); from = next) {
        const uint32_t c = dq_jinja_text_next(r, t, &next);
        if (!is_stripped(r, c, t, from, next, only)) break;
    }
    for (size_t next = to; right && from < to && dq_jinja_ok(r); to = next) {
        const uint32_t c = last_character(r, t, &next);
        if (!is_stripped(r, c, t, next, to, only)) break;
    }
    return dq_jinja_ok(r) ? dq_jinja_string(t.s + from, to - from) : (dq_jinja_value){0};
}

/* Replaces the first `count` places; negative: all. */
static dq_jinja_value replace(dq_jinja_run *r, dq_jinja_text t, dq_jinja_text old,
                              dq_jinja_text with, int64_t count)
{
    dq_strbuf mine, *before = dq_jinja_capture(r, &mine);
    size_t at = 0, next;
    while (count != 0 && dq_jinja_ok(r) && (next = dq_jinja_strings_find(r, t, old, at)) <= t.n) {
        dq_jinja_put(r, t.s + at, next - at);
        dq_jinja_put(r, with.s, with.n);
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

/* The next whitespace (or, !space, other) character from `at` on; t.n: none. */
static size_t next_space(dq_jinja_run *r, dq_jinja_text t, size_t at, bool space)
{
    for (size_t next = at; at < t.n; at = next) {
        if (dq_utf8_is_strip(dq_jinja_text_next(r, t, &next)) == space) break;
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
        if (!dq_utf8_is_strip(last_character(r, t, &next))) break;
    }
    if (at < end) add_part(r, &out, t, at, end);
    return out;
}

static dq_jinja_value split(dq_jinja_run *r, dq_jinja_text t, const dq_jinja_value *by,
                            int64_t count)
{
    if (by->kind == DQ_JINJA_ABSENT || by->kind == DQ_JINJA_NONE) return split_spaces(r, t, count);
    const dq_jinja_text part = string_of(r, by);
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

/* str.splitlines() */
static dq_jinja_value split_lines(dq_jinja_run *r, dq_jinja_text t)
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

static value run_range(run *r, call *c)
{
    enum { MAX_RANGE = 100000 }; /* of Jinja2's sandbox */
    int64_t part[3] = {0, 0, 1}, i;
    if (c->arg.n < 1 || c->arg.n > 3 || c->named.n)
        return dq_jinja_fail(r, DQ_DAMAGED, "range takes one to three arguments");
    for (size_t k = 0; k < c->arg.n; k++) {
        if (!dq_jinja_is_integer(&c->arg.item[k]))
            return dq_jinja_fail(r, DQ_DAMAGED, "range of '%s'", dq_jinja_type(&c->arg.item[k]));
        part[c->arg.n == 1 ? 1 : k] = dq_jinja_integer(&c->arg.item[k]);
    }
    if (part[2] == 0) return dq_jinja_fail(r, DQ_DAMAGED, "range with a step of 0");
    value out = dq_jinja_list_new(r, DQ_JINJA_RANGE, 0);
    for (i = part[0]; (part[2] > 0 ? i < part[1] : i > part[1]) && dq_jinja_ok(r);) {
        dq_jinja_list_add(r, out.list, dq_jinja_int(i));
        if (dq_jinja_ok(r) && out.list->n > MAX_RANGE)
            dq_jinja_fail(r, DQ_DAMAGED, "a range of more than %d integers", MAX_RANGE);
        if (__builtin_add_overflow(i, part[2], &i)) break;
    }
    return out;
}

/* dict(...) and namespace(...) copy another dict and add names. */
static value make_dict(run *r, call *c)
{
    value out = dq_jinja_dict_new(r, (dq_jinja_kind)c->which);
    if (c->arg.n > 1 || (c->arg.n && c->arg.item[0].kind != DQ_JINJA_DICT))
        return dq_jinja_fail(r, DQ_MISMATCH, "a dict of other things than a dict is not supported");
    for (size_t k = 0; k < 2 && dq_jinja_ok(r); k++) {
        const dq_jinja_dict *from = k ? &c->named : c->arg.n ? c->arg.item[0].dict : NULL;
        for (size_t i = 0; from && i < from->n; i++)
            dq_jinja_dict_put(r, out.dict, from->entry[i].key, from->entry[i].value);
    }
    return out;
}

static value run_raise_exception(run *r, call *c)
{
    const dq_jinja_text t = dq_jinja_print_text(r, &c->p[0]);
    if (r->member) dq_fail(r->err, DQ_DAMAGED, "%.*s", (int)t.n, t.n ? t.s : "");
    return dq_jinja_fail(r, DQ_MISMATCH, "%.*s", (int)t.n, t.n ? t.s : "");
}

/* Local time by C's strftime, as in Python. */
static value run_strftime_now(run *r, call *c)
{
    const dq_jinja_text t = string_of(r, &c->p[0]);
    const time_t now = time(NULL);
    char format[200], text[4096]; /* room for a format of %c alone */
    struct tm local;
    dq_jinja_spend(r, (t.n + 1) * DQ_JINJA_NUMBER);
    if (t.n + 1 >= sizeof format || !localtime_r(&now, &local))
        return dq_jinja_fail(r, DQ_MISMATCH, "strftime_now: the format is too long");
    memcpy(format, t.s, t.n);
    format[t.n] = 0;
    for (const char *s = format; (s = strchr(s, '%')); s += 2) {
        if (!s[1] || !strchr("aAbBdHIjmMpSUwWxXyYc%", s[1]))
            return dq_jinja_fail(r, DQ_MISMATCH, "strftime_now: %%%c is not supported",
                                 s[1] ? s[1] : ' ');
    }
    dq_strbuf mine, *before = dq_jinja_capture(r, &mine);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    dq_jinja_put(r, text, strftime(text, sizeof text, format, &local));
#pragma GCC diagnostic pop
    return dq_jinja_captured(r, &mine, before);
}

static const dq_jinja_function functions[] = {
    {"cycler", NULL, 0, NULL, 0},
    {"dict", NULL, 0, make_dict, DQ_JINJA_DICT},
    {"joiner", NULL, 0, NULL, 0},
    {"lipsum", NULL, 0, NULL, 0},
    {"namespace", NULL, 0, make_dict, DQ_JINJA_NAMESPACE},
    {"raise_exception", "message", 1, run_raise_exception, 0},
    {"range", NULL, 0, run_range, 0},
    {"strftime_now", "format", 1, run_strftime_now, 0},
};

enum {
    UNDEFINED = 1 << DQ_JINJA_UNDEFINED,
    NONE = 1 << DQ_JINJA_NONE,
    BOOL = 1 << DQ_JINJA_BOOL,
    INT = 1 << DQ_JINJA_INT,
    FLOAT = 1 << DQ_JINJA_FLOAT,
    STRING = 1 << DQ_JINJA_STRING,
    DICT = 1 << DQ_JINJA_DICT,
    LISTS = 1 << DQ_JINJA_LIST | 1 << DQ_JINJA_TUPLE | 1 << DQ_JINJA_RANGE,
    READ = 1 << DQ_JINJA_VIEW | 1 << DQ_JINJA_ITERATOR | 1 << DQ_JINJA_LOOP,
    CALLED =
        1 << DQ_JINJA_LOOP | 1 << DQ_JINJA_MACRO | 1 << DQ_JINJA_FUNCTION | 1 << DQ_JINJA_METHOD
};
/* Kinds with a length and items by number or key; and all iterable ones. */
enum { SEQUENCES = UNDEFINED | STRING | LISTS | DICT, ITERABLES = SEQUENCES | READ };

static value is_of(run *r, call *c)
{
    (void)r;
    return dq_jinja_bool(c->which >> c->self.kind & 1U);
}

static value is_truth(run *r, call *c)
{
    (void)r;
    return dq_jinja_bool(c->self.kind == DQ_JINJA_BOOL && c->self.truth == c->which);
}

static value compares(run *r, call *c)
{
    return dq_jinja_bool(
        dq_jinja_operators_compare(r, (dq_jinja_operation)c->which, &c->self, &c->p[0]));
}

/* The remainder of division by the argument, or by 2. */
static value has_rest(run *r, call *c)
{
    const value n = c->p[0].kind == DQ_JINJA_ABSENT ? dq_jinja_int(2) : c->p[0];
    const value found = dq_jinja_operators_arithmetic(r, DQ_JINJA_MODULO, &c->self, &n);
    const value wanted = dq_jinja_int(c->which);
    return dq_jinja_bool(dq_jinja_equal(r, &found, &wanted));
}

/* Identity; Python leaves it open for numbers, strings and tuples. */
static value is_sameas(run *r, call *c)
{
    const dq_jinja_kind kind = c->self.kind;
    if (kind != c->p[0].kind) return dq_jinja_bool(false);
    if (kind == DQ_JINJA_NONE || kind == DQ_JINJA_BOOL)
        return dq_jinja_bool(dq_jinja_equal(r, &c->self, &c->p[0]));
    if (kind == DQ_JINJA_LIST || kind == DQ_JINJA_DICT || kind == DQ_JINJA_NAMESPACE)
        return dq_jinja_bool((const void *)c->self.list == (const void *)c->p[0].list);
    return dq_jinja_fail(r, DQ_MISMATCH, "sameas of '%s' is not supported",
                         dq_jinja_type(&c->self));
}

static const dq_jinja_function tests[] = {
    {"!=", "other", 1, compares, DQ_JINJA_NOT_EQUAL},
    {"<", "other", 1, compares, DQ_JINJA_LESS},
    {"<=", "other", 1, compares, DQ_JINJA_NOT_GREATER},
    {"==", "other", 1, compares, DQ_JINJA_EQUAL},
    {">", "other", 1, compares, DQ_JINJA_GREATER},
    {">=", "other", 1, compares, DQ_JINJA_NOT_LESS},
    {"boolean", "", 0, is_of, BOOL},
    {"callable", "", 0, is_of, UNDEFINED | CALLED},
    {"defined", "", 0, is_of, ~(unsigned)UNDEFINED},
    {"divisibleby", "num", 1, has_rest, 0},
    {"eq", "other", 1, compares, DQ_JINJA_EQUAL},
    {"equalto", "other", 1, compares, DQ_JINJA_EQUAL},
    {"escaped", NULL, 0, NULL, 0},
    {"even", "", 0, has_rest, 0},
    {"false", "", 0, is_truth, false},
    {"filter", NULL, 0, NULL, 0},
    {"float", "", 0, is_of, FLOAT},
    {"ge", "other", 1, compares, DQ_JINJA_NOT_LESS},
    {"greaterthan", "other", 1, compares, DQ_JINJA_GREATER},
    {"gt", "other", 1, compares, DQ_JINJA_GREATER},
    {"in", "seq", 1, compares, DQ_JINJA_IN},
    {"integer", "", 0, is_of, INT},
    {"iterable", "", 0, is_of, ITERABLES},
    {"le", "other", 1, compares, DQ_JINJA_NOT_GREATER},
    {"lessthan", "other", 1, compares, DQ_JINJA_LESS},
    {"lower", NULL, 0, NULL, 0},
    {"lt", "other", 1, compares, DQ_JINJA_LESS},
    {"mapping", "", 0, is_of, DICT},
    {"ne", "other", 1, compares, DQ_JINJA_NOT_EQUAL},
    {"none", "", 0, is_of, NONE},
    {"number", "", 0, is_of, BOOL | INT | FLOAT},
    {"odd", "", 0, has_rest, 1},
    {"sameas", "other", 1, is_sameas, 0},
    {"sequence", "", 0, is_of, SEQUENCES},
    {"string", "", 0, is_of, STRING},
    {"test", NULL, 0, NULL, 0},
    {"true", "", 0, is_truth, true},
    {"undefined", "", 0, is_of, UNDEFINED},
    {"upper", NULL, 0, NULL, 0},
};

/* Names that Python has beyond the tables are listed, so that a template which uses one is refused
 * instead of finding it undefined. */

enum { LEFT = 1, RIGHT = 2 };

static dq_jinja_value run_strip(dq_jinja_run *r, dq_jinja_call *c)
{
    return strip(r, c->self.text, &c->p[0], c->which & LEFT, c->which & RIGHT);
}

static dq_jinja_value run_split(dq_jinja_run *r, dq_jinja_call *c)
{
    return split(r, c->self.text, &c->p[0], dq_jinja_strings_int(r, &c->p[1], -1));
}

/* DQ_MISMATCH: an argument of Python's method that is not implemented. */
static void check_absent(dq_jinja_run *r, const dq_jinja_value *v)
{
    if (v->kind != DQ_JINJA_ABSENT)
        dq_jinja_fail(r, DQ_MISMATCH, "so many arguments of a method are not supported");
}

static dq_jinja_value run_splitlines(dq_jinja_run *r, dq_jinja_call *c)
{
    check_absent(r, &c->p[0]);
    return split_lines(r, c->self.text);
}

/* The argument may be a tuple of texts. */
static dq_jinja_value has_end(dq_jinja_run *r, dq_jinja_call *c)
{
    const dq_jinja_text t = c->self.text;
    const dq_jinja_list one = {.item = &c->p[0], .n = 1};
    const dq_jinja_list *all = c->p[0].kind == DQ_JINJA_TUPLE ? c->p[0].list : &one;
    bool found = false;
    check_absent(r, &c->p[1]);
    for (size_t i = 0; i < all->n && !found && dq_jinja_ok(r); i++) {
        const dq_jinja_text part = string_of(r, &all->item[i]);
        if (part.n <= t.n)
            found = dq_jinja_text_same(
                r, part, (dq_jinja_text){c->which == RIGHT ? t.s + t.n - part.n : t.s, part.n});
    }
    return dq_jinja_bool(found);
}

static dq_jinja_value run_case(dq_jinja_run *r, dq_jinja_call *c)
{
    return change_case(r, c->self.text, (dq_jinja_case)c->which);
}

static dq_jinja_value run_replace(dq_jinja_run *r, dq_jinja_call *c)
{
    const dq_jinja_text old = string_of(r, &c->p[0]);
    return replace(r, c->self.text, old, string_of(r, &c->p[1]),
                   dq_jinja_strings_int(r, &c->p[2], -1));
}

/* Index of the character at a byte; SIZE_MAX: -1. */
static dq_jinja_value character_at(dq_jinja_run *r, dq_jinja_text t, size_t at)
{
    const dq_jinja_value before = dq_jinja_string(t.s, at);
    return dq_jinja_int(at == SIZE_MAX ? -1 : (int64_t)dq_jinja_length(r, &before));
}

static dq_jinja_value run_find(dq_jinja_run *r, dq_jinja_call *c)
{
    const dq_jinja_text part = string_of(r, &c->p[0]);
    check_absent(r, &c->p[1]);
    return character_at(r, c->self.text, dq_jinja_strings_find(r, c->self.text, part, 0));
}

static dq_jinja_value run_rfind(dq_jinja_run *r, dq_jinja_call *c)
{
    const dq_jinja_text t = c->self.text, part = string_of(r, &c->p[0]);
    size_t last = SIZE_MAX;
    check_absent(r, &c->p[1]);
    for (size_t at = 0; (at = dq_jinja_strings_find(r, t, part, at)) <= t.n; at++) last = at;
    return character_at(r, t, last);
}

static dq_jinja_value run_join(dq_jinja_run *r, dq_jinja_call *c)
{
    const dq_jinja_list items = dq_jinja_items(r, &c->p[0]);
    for (size_t i = 0; i < items.n; i++) string_of(r, &items.item[i]);
    return dq_jinja_strings_join(r, c->self.text, &items);
}

/* Keys (0), values (1) or pairs (2). */
static dq_jinja_value list_of_dict(dq_jinja_run *r, const dq_jinja_dict *d, int part,
                                   dq_jinja_kind kind)
{
    dq_jinja_value out = dq_jinja_list_new(r, kind, d->n);
    for (size_t i = 0; i < d->n && dq_jinja_ok(r); i++) {
        const dq_jinja_text key = d->entry[i].key;
        dq_jinja_value pair = dq_jinja_string(key.s, key.n);
        if (part == 2) {
            pair = dq_jinja_list_new(r, DQ_JINJA_TUPLE, 2);
            dq_jinja_list_add(r, pair.list, dq_jinja_string(key.s, key.n));
            dq_jinja_list_add(r, pair.list, d->entry[i].value);
        }
        dq_jinja_list_add(r, out.list, part == 1 ? d->entry[i].value : pair);
    }
    return out;
}

static dq_jinja_value run_view(dq_jinja_run *r, dq_jinja_call *c)
{
    return list_of_dict(r, c->self.dict, (int)c->which, DQ_JINJA_VIEW);
}

static dq_jinja_value run_get(dq_jinja_run *r, dq_jinja_call *c)
{
    const dq_jinja_value none = {.kind = DQ_JINJA_NONE};
    const dq_jinja_value *found = NULL;
    if (c->p[0].kind == DQ_JINJA_STRING) found = dq_jinja_dict_get(r, c->self.dict, c->p[0].text);
    return found ? *found : c->p[1].kind == DQ_JINJA_ABSENT ? none : c->p[1];
}

static const dq_jinja_function of_str[] = {
    {"strip", "_chars", 0, run_strip, LEFT | RIGHT},
    {"lstrip", "_chars", 0, run_strip, LEFT},
    {"rstrip", "_chars", 0, run_strip, RIGHT},
    {"split", "sep maxsplit", 0, run_split, 0},
    {"splitlines", "keepends", 0, run_splitlines, 0},
    {"startswith", "_prefix _start _end", 1, has_end, LEFT},
    {"endswith", "_suffix _start _end", 1, has_end, RIGHT},
    {"upper", "", 0, run_case, DQ_JINJA_UPPER},
    {"lower", "", 0, run_case, DQ_JINJA_LOWER},
    {"title", "", 0, run_case, DQ_JINJA_TITLE},
    {"capitalize", "", 0, run_case, DQ_JINJA_CAPITALIZE},
    {"replace", "_old _new _count", 2, run_replace, 0},
    {"find", "_part _start _end", 1, run_find, 0},
    {"rfind", "_part _start _end", 1, run_rfind, 0},
    {"join", "_items", 1, run_join, 0},
    {0},
};
static dq_jinja_value run_index(dq_jinja_run *r, dq_jinja_call *c)
{
    check_absent(r, &c->p[1]);
    for (size_t i = 0; i < c->self.list->n && dq_jinja_ok(r); i++) {
        if (dq_jinja_equal(r, &c->self.list->item[i], &c->p[0])) return dq_jinja_int((int64_t)i);
    }
    return dq_jinja_fail(r, DQ_DAMAGED, "index: the value is not in the list");
}

static const dq_jinja_function of_list[] = {{"index", "_value _start _stop", 1, run_index, 0}, {0}};
static const dq_jinja_function of_dict[] = {
    {"keys", "", 0, run_view, 0},
    {"values", "", 0, run_view, 1},
    {"items", "", 0, run_view, 2},
    {"get", "_key _default", 1, run_get, 0},
    {0},
};
/* Names between blanks, by type: those Python has beyond these, and those that Jinja2's sandbox
 * forbids. */
static const struct {
    const dq_jinja_function *method;
    const char *others, *forbidden;
} types[DQ_JINJA_KINDS] = {
    [DQ_JINJA_INT] = {NULL,
                      "as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag "
                      "numerator real to_bytes",
                      NULL},
    [DQ_JINJA_FLOAT] = {NULL, "as_integer_ratio conjugate fromhex hex imag is_integer real", NULL},
    [DQ_JINJA_STRING] = {of_str,
                         "casefold center count encode expandtabs format format_map index isalnum "
                         "isalpha isascii isdecimal isdigit isidentifier islower isnumeric "
                         "isprintable isspace istitle isupper ljust maketrans partition "
                         "removeprefix removesuffix rindex rjust rpartition rsplit swapcase "
                         "translate zfill",
                         NULL},
    [DQ_JINJA_LIST] = {of_list, "copy count", "append clear extend insert pop remove reverse sort"},
    [DQ_JINJA_TUPLE] = {NULL, "count index", NULL},
    [DQ_JINJA_RANGE] = {NULL, "count index start step stop", NULL},
    [DQ_JINJA_VIEW] = {NULL, "isdisjoint mapping", NULL},
    [DQ_JINJA_ITERATOR] = {NULL, "close send throw", NULL},
    [DQ_JINJA_DICT] = {of_dict, "copy fromkeys", "clear pop popitem setdefault update"},
    [DQ_JINJA_LOOP] = {NULL, "changed cycle depth depth0", NULL},
    [DQ_JINJA_MACRO] = {NULL, "arguments caller catch_kwargs catch_varargs explicit_caller name",
                        NULL},
};

static bool is_listed(const char *names, dq_jinja_text name)
{
    for (const char *s = names; s && *s;) {
        const size_t n = strcspn(s, " ");
        if (n == name.n && memcmp(s, name.s, n) == 0) return true;
        s += n + (s[n] == ' ');
    }
    return false;
}

/* Python's attribute of this name; absent: none. */
static dq_jinja_value find_attribute(dq_jinja_run *r, const dq_jinja_value *of, dq_jinja_text name)
{
    const dq_jinja_kind kind = of->kind == DQ_JINJA_BOOL ? DQ_JINJA_INT : of->kind;
    const dq_jinja_function *f = types[kind].method;
    if (!dq_jinja_spend(r, DQ_JINJA_SEARCH)) return (dq_jinja_value){0};
    while (f && f->name && !dq_jinja_text_is(name, f->name)) f++;
    if (f && f->name) {
        dq_jinja_method *m = dq_jinja_alloc(r, 1, sizeof *m);
        if (!m) return (dq_jinja_value){0};
        *m = (dq_jinja_method){*of, f};
        return (dq_jinja_value){.kind = DQ_JINJA_METHOD, .method = m};
    }
    if (of->kind == DQ_JINJA_LOOP) {
        const dq_jinja_value v = dq_jinja_loop_attribute(r, of->loop, name);
        if (v.kind != DQ_JINJA_ABSENT) return v;
    }
    if (is_listed(types[kind].forbidden, name))
        return dq_jinja_undefined(r, "access to attribute '%.*s' of '%s' object is unsafe.",
                                  (int)name.n, name.s, dq_jinja_type(of));
    if (is_listed(types[kind].others, name) || (name.n > 2 && memcmp(name.s, "__", 2) == 0))
        return dq_jinja_fail(r, DQ_MISMATCH, "the attribute \"%.*s\" of '%s' is not supported",
                             (int)name.n, name.s, dq_jinja_type(of));
    return (dq_jinja_value){0};
}

static dq_jinja_value find_key(dq_jinja_run *r, const dq_jinja_value *of, dq_jinja_text name)
{
    if (of->kind != DQ_JINJA_DICT && of->kind != DQ_JINJA_NAMESPACE) return (dq_jinja_value){0};
    const dq_jinja_value *found = dq_jinja_dict_get(r, of->dict, name);
    return found ? *found : (dq_jinja_value){0};
}

/* How messages about undefined values name a value. */
static const char *object_name(const dq_jinja_value *v, char out[64])
{
    if (v->kind == DQ_JINJA_NONE) return "None";
    snprintf(out, 64, "%s object", dq_jinja_type(v));
    return out;
}

static dq_jinja_value find_named(dq_jinja_run *r, const dq_jinja_value *of, dq_jinja_text name,
                                 bool key_first)
{
    char object[64];
    if (of->kind == DQ_JINJA_UNDEFINED) return dq_jinja_fail_undefined(r, of);
    dq_jinja_value v = key_first ? find_key(r, of, name) : find_attribute(r, of, name);
    if (v.kind == DQ_JINJA_ABSENT)
        v = key_first ? find_attribute(r, of, name) : find_key(r, of, name);
    if (v.kind != DQ_JINJA_ABSENT || !dq_jinja_ok(r)) return v;
    if (r->member && of->kind == DQ_JINJA_DICT) return dq_jinja_no_key(name);
    return dq_jinja_undefined(r, "'%s' has no attribute '%.*s'", object_name(of, object),
                              (int)name.n, name.s);
}

dq_jinja_value dq_jinja_methods_attribute(dq_jinja_run *r, const dq_jinja_value *of,
                                          dq_jinja_text name)
{
    return find_named(r, of, name, false);
}

dq_jinja_value dq_jinja_methods_subscript(dq_jinja_run *r, const dq_jinja_value *of,
                                          const dq_jinja_value *key)
{
    const bool has_items = of->kind >= DQ_JINJA_STRING && of->kind <= DQ_JINJA_RANGE;
    char object[64];
    if (key->kind == DQ_JINJA_STRING) return find_named(r, of, key->text, true);
    if (of->kind == DQ_JINJA_UNDEFINED) return dq_jinja_fail_undefined(r, of);
    dq_jinja_value v = {0};
    if (has_items && dq_jinja_is_integer(key))
        v = dq_jinja_operators_item(r, of, dq_jinja_integer(key));
    if (v.kind != DQ_JINJA_ABSENT || !dq_jinja_ok(r)) return v;
    const dq_jinja_text text = dq_jinja_print_text(r, key);
    return dq_jinja_undefined(r, "%s has no element %.*s", object_name(of, object), (int)text.n,
                              text.s);
}

/* Filters on many items (map, select, sort) give all at once, which a template cannot tell from
 * Jinja2's laziness. */

static dq_jinja_text text_of(run *r, const call *c)
{
    if (c->self.is_safe)
        dq_jinja_fail(r, DQ_MISMATCH, "a filter of what safe gives is not supported");
    const dq_jinja_text t = dq_jinja_print_text(r, &c->self);
    return dq_jinja_ok(r) ? t : (dq_jinja_text){"", 0};
}

static value run_string(run *r, call *c)
{
    if (c->self.kind == DQ_JINJA_STRING) return c->self;
    const dq_jinja_text t = text_of(r, c);
    return dq_jinja_string(t.s, t.n);
}

static value run_safe(run *r, call *c)
{
    value v = run_string(r, c);
    v.is_safe = true;
    return v;
}

static value run_trim(run *r, call *c)
{
    return strip(r, text_of(r, c), &c->p[0], true, true);
}

static value filter_case(run *r, call *c)
{
    return change_case(r, text_of(r, c), (dq_jinja_case)c->which);
}

static value replace_text(run *r, call *c)
{
    const dq_jinja_text t = dq_jinja_print_text(r, &c->self);
    const dq_jinja_text old = dq_jinja_print_text(r, &c->p[0]);
    const dq_jinja_text with = dq_jinja_print_text(r, &c->p[1]);
    const int64_t count = dq_jinja_strings_int(r, &c->p[2], -1);
    return dq_jinja_ok(r) ? replace(r, t, old, with, count) : (value){0};
}

/* A number becomes so many blanks. */
static dq_jinja_text blanks(run *r, const value *v, int64_t fallback)
{
    if (v->kind == DQ_JINJA_STRING) return v->text;
    const value n = dq_jinja_int(dq_jinja_strings_int(r, v, fallback)),
                one = dq_jinja_string(" ", 1);
    return dq_jinja_operators_arithmetic(r, DQ_JINJA_MULTIPLY, &one, &n).text;
}

static value run_indent(run *r, call *c)
{
    const value end = dq_jinja_string("\n", 1);
    const dq_jinja_text width = blanks(r, &c->p[0], 4);
    const value t = dq_jinja_operators_arithmetic(r, DQ_JINJA_ADD, &c->self, &end);
    if (!dq_jinja_ok(r)) return t;
    const value lines = split_lines(r, t.text);
    dq_strbuf mine, *before = dq_jinja_capture(r, &mine);
    for (size_t i = 0; dq_jinja_ok(r) && i < lines.list->n; i++) {
        const dq_jinja_text line = lines.list->item[i].text;
        const bool indents = i == 0 ? dq_jinja_truth(&c->p[1]) : line.n || dq_jinja_truth(&c->p[2]);
        if (i > 0) dq_jinja_put(r, "\n", 1);
        if (indents) dq_jinja_put(r, width.s, width.n);
        dq_jinja_put(r, line.s, line.n);
    }
    return dq_jinja_captured(r, &mine, before);
}

static value run_tojson(run *r, call *c)
{
    const value *indent = &c->p[1], *separators = &c->p[2];
    const bool lines = indent->kind != DQ_JINJA_ABSENT && indent->kind != DQ_JINJA_NONE;
    dq_jinja_json form = {.between = dq_jinja_text_of(lines ? "," : ", "),
                          .colon = dq_jinja_text_of(": "),
                          .ascii = dq_jinja_truth(&c->p[0]),
                          .sorted = dq_jinja_truth(&c->p[3])};
    if (lines) form.indent = blanks(r, indent, 0);
    if (separators->kind != DQ_JINJA_ABSENT && separators->kind != DQ_JINJA_NONE) {
        const dq_jinja_list pair = dq_jinja_items(r, separators);
        if (pair.n != 2) return dq_jinja_fail(r, DQ_DAMAGED, "tojson: separators are not two");
        form.between = string_of(r, &pair.item[0]);
        form.colon = string_of(r, &pair.item[1]);
    }
    return dq_jinja_ok(r) ? dq_jinja_print_json(r, &c->self, &form) : (value){0};
}

/* int() or float() of a text without blanks around; absent: neither. */
static value parse_int(run *r, dq_jinja_text t)
{
    char text[64], *end;
    bool digits = t.n > 0;
    size_t n = 0;
    if (!dq_jinja_spend(r, DQ_JINJA_NUMBER)) return (value){0};
    for (size_t i = 0; i < t.n && n + 1 < sizeof text; i++) {
        const bool joins = t.s[i] == '_' && i > 0 && i + 1 < t.n &&
                           isdigit((unsigned char)t.s[i - 1]) && isdigit((unsigned char)t.s[i + 1]);
        const bool sign = i == 0 && t.n > 1 && (t.s[i] == '-' || t.s[i] == '+');
        digits = digits && (joins || sign || isdigit((unsigned char)t.s[i]));
        if (!joins) text[n++] = t.s[i];
        if (t.s[i] & 0x80)
            return dq_jinja_fail(r, DQ_MISMATCH, "int: digits beyond ASCII are not supported");
    }
    text[n] = 0;
    errno = 0;
    if (digits) {
        const int64_t i = strtoll(text, NULL, 10);
        if (errno == 0 && n + 1 < sizeof text) return dq_jinja_int(i);
        return dq_jinja_fail(r, DQ_MISMATCH, "int: an integer beyond 64 bits is not supported");
    }
    const double f = dq_real_parse(text, &end);
    return end > text && *end == 0 && strlen(text) == n ? dq_jinja_float(f) : (value){0};
}

static value run_int(run *r, call *c)
{
    const value none = {0}, fallback = c->p[0].kind == DQ_JINJA_ABSENT ? dq_jinja_int(0) : c->p[0];
    value v = c->self;
    if (c->p[1].kind != DQ_JINJA_ABSENT)
        return dq_jinja_fail(r, DQ_MISMATCH, "int: a base is not supported");
    if (v.kind == DQ_JINJA_UNDEFINED) return dq_jinja_fail_undefined(r, &v);
    if (dq_jinja_is_integer(&v)) return dq_jinja_int(dq_jinja_integer(&v));
    if (v.kind == DQ_JINJA_STRING)
        v = parse_int(r, strip(r, text_of(r, c), &none, true, true).text);
    if (v.kind != DQ_JINJA_FLOAT) return v.kind == DQ_JINJA_INT ? v : fallback;
    if (v.f != v.f) return fallback;
    if (fabs(v.f) < 9.2e18) return dq_jinja_int((int64_t)v.f);
    return dq_jinja_fail(r, DQ_MISMATCH, "int: an integer beyond 64 bits is not supported");
}

static value run_default(run *r, call *c)
{
    (void)r;
    if (c->self.kind != DQ_JINJA_UNDEFINED &&
        !(dq_jinja_truth(&c->p[1]) && !dq_jinja_truth(&c->self)))
        return c->self;
    return c->p[0].kind == DQ_JINJA_ABSENT ? dq_jinja_string("", 0) : c->p[0];
}

static value run_length(run *r, call *c)
{
    return dq_jinja_int((int64_t)dq_jinja_length(r, &c->self));
}

static value run_list(run *r, call *c)
{
    value v = dq_jinja_list_new(r, DQ_JINJA_LIST, 0);
    if (dq_jinja_ok(r)) *v.list = dq_jinja_items(r, &c->self);
    return v;
}

static value run_first(run *r, call *c)
{
    const dq_jinja_list items = dq_jinja_items(r, &c->self);
    if (!items.n) return dq_jinja_undefined(r, "No first item, sequence was empty.");
    if (c->self.kind == DQ_JINJA_ITERATOR) { /* the others are still to be read */
        c->self.list->item++;
        c->self.list->n = items.n - 1;
        c->self.list->capacity = 0;
    }
    return items.item[0];
}

static value run_last(run *r, call *c)
{
    if (c->self.kind == DQ_JINJA_ITERATOR)
        return dq_jinja_fail(r, DQ_DAMAGED, "last: 'generator' object is not reversible");
    const dq_jinja_list items = dq_jinja_items(r, &c->self);
    return items.n ? items.item[items.n - 1]
                   : dq_jinja_undefined(r, "No last item, sequence was empty.");
}

static value run_reverse(run *r, call *c)
{
    const dq_jinja_list items = dq_jinja_items(r, &c->self);
    value out = dq_jinja_list_new(r, DQ_JINJA_ITERATOR, items.n);
    for (size_t i = items.n; i > 0 && dq_jinja_ok(r); i--)
        dq_jinja_list_add(r, out.list, items.item[i - 1]);
    if (c->self.kind == DQ_JINJA_STRING && dq_jinja_ok(r))
        return dq_jinja_strings_join(r, (dq_jinja_text){0}, out.list);
    return out;
}

/* item.part.part by `attribute`, a number or dotted text; the fallback, if any, replaces
 * undefined. */
static value get_path(run *r, value item, const value *attribute, const value *fallback)
{
    const bool falls =
        fallback && fallback->kind != DQ_JINJA_ABSENT && fallback->kind != DQ_JINJA_NONE;
    dq_jinja_text t = {"", 0};
    if (attribute->kind == DQ_JINJA_NONE || attribute->kind == DQ_JINJA_ABSENT) return item;
    if (attribute->kind == DQ_JINJA_STRING) t = attribute->text;
    for (size_t at = 0; at <= t.n && dq_jinja_ok(r);) {
        const size_t end = dq_jinja_strings_find(r, t, dq_jinja_text_of("."), at);
        const size_t n = (end < t.n ? end : t.n) - at;
        size_t digits = 0;
        while (digits < n && isdigit((unsigned char)t.s[at + digits])) digits++;
        value key = dq_jinja_string(t.s + at, n);
        if (n && digits == n) key = parse_int(r, key.text);
        if (attribute->kind != DQ_JINJA_STRING) key = *attribute;
        item = dq_jinja_methods_subscript(r, &item, &key);
        if (falls && item.kind == DQ_JINJA_UNDEFINED) item = *fallback;
        at += n + 1;
    }
    return item;
}

static value join_items(run *r, call *c)
{
    const dq_jinja_text between =
        c->p[0].kind == DQ_JINJA_ABSENT ? (dq_jinja_text){"", 0} : dq_jinja_print_text(r, &c->p[0]);
    const dq_jinja_list items = dq_jinja_items(r, &c->self);
    value all = dq_jinja_list_new(r, DQ_JINJA_LIST, items.n);
    for (size_t i = 0; i < items.n && dq_jinja_ok(r); i++)
        dq_jinja_list_add(r, all.list, get_path(r, items.item[i], &c->p[1], NULL));
    return dq_jinja_ok(r) ? dq_jinja_strings_join(r, between, all.list) : all;
}

static const dq_jinja_function *named_function(run *r, const value *name, dq_jinja_table table)
{
    const dq_jinja_text t = string_of(r, name);
    const dq_jinja_function *f = dq_jinja_ok(r) ? dq_jinja_find(table, t) : NULL;
    if (f && f->code) return f;
    dq_jinja_fail(r, f ? DQ_MISMATCH : DQ_DAMAGED, "the filter or test \"%.*s\" %s", (int)t.n, t.s,
                  f ? "is not supported" : "does not exist");
    return NULL;
}

/* Passes the arguments of c from `from` on. */
static value call_for(run *r, const dq_jinja_function *f, value item, const call *c, size_t from)
{
    call one = {.self = item, .named = c->named};
    one.arg = (dq_jinja_list){.item = c->arg.item + from, .n = c->arg.n - from};
    return dq_jinja_eval_apply(r, f, &one);
}

static value run_map(run *r, call *c)
{
    const value *attribute = dq_jinja_dict_get(r, &c->named, dq_jinja_text_of("attribute"));
    const value *fallback = dq_jinja_dict_get(r, &c->named, dq_jinja_text_of("default"));
    const bool by_path = c->arg.n == 0 && attribute;
    value out = dq_jinja_list_new(r, DQ_JINJA_ITERATOR, 0);
    if (!dq_jinja_truth(&c->self)) return out;
    if (by_path ? c->named.n > (fallback ? 2 : 1) : c->arg.n == 0)
        return dq_jinja_fail(r, DQ_DAMAGED, "map needs a filter, or attribute and default alone");
    const dq_jinja_function *f =
        by_path ? NULL : named_function(r, &c->arg.item[0], DQ_JINJA_FILTERS);
    const dq_jinja_list items = dq_jinja_items(r, &c->self);
    for (size_t i = 0; i < items.n && dq_jinja_ok(r); i++)
        dq_jinja_list_add(r, out.list,
                          by_path ? get_path(r, items.item[i], attribute, fallback)
                                  : call_for(r, f, items.item[i], c, 1));
    return out;
}

enum { WANTED = 1, BY_PATH = 2 };

/* Keeps items by a test on them or their attribute; without a test, by truth. */
static value run_choice(run *r, call *c)
{
    const bool by_path = c->which & BY_PATH, wanted = c->which & WANTED;
    const size_t at = by_path ? 1 : 0;
    const dq_jinja_function *f = NULL;
    value out = dq_jinja_list_new(r, DQ_JINJA_ITERATOR, 0);
    if (!dq_jinja_truth(&c->self)) return out;
    if (c->arg.n < at) return dq_jinja_fail(r, DQ_DAMAGED, "the name of an attribute is missing");
    if (c->arg.n > at) f = named_function(r, &c->arg.item[at], DQ_JINJA_TESTS);
    const dq_jinja_list items = dq_jinja_items(r, &c->self);
    for (size_t i = 0; i < items.n && dq_jinja_ok(r); i++) {
        value v = items.item[i];
        if (by_path) v = get_path(r, v, &c->arg.item[0], NULL);
        if (f) v = call_for(r, f, v, c, at + 1);
        if (dq_jinja_truth(&v) == wanted) dq_jinja_list_add(r, out.list, items.item[i]);
    }
    return out;
}

/* Strings sort in lower case where case does not count. */
static value sort_key(run *r, value v, bool case_counts)
{
    return v.kind == DQ_JINJA_STRING && !case_counts ? change_case(r, v.text, DQ_JINJA_LOWER) : v;
}

/* Stable. */
static value sorted(run *r, const dq_jinja_list *items, value *key, bool descending)
{
    value out = dq_jinja_list_new(r, DQ_JINJA_LIST, items->n);
    for (size_t i = 0; i < items->n && dq_jinja_ok(r); i++) {
        const value k = key[i];
        size_t at = i;
        dq_jinja_list_add(r, out.list, items->item[i]);
        for (; at > 0 && dq_jinja_order(r, &k, &key[at - 1]) == (descending ? 1 : -1); at--) {
            key[at] = key[at - 1];
            out.list->item[at] = out.list->item[at - 1];
        }
        key[at] = k;
        if (dq_jinja_ok(r)) out.list->item[at] = items->item[i];
    }
    return out;
}

static value run_dictsort(run *r, call *c)
{
    const value *by = &c->p[1];
    const bool by_value = by->kind == DQ_JINJA_STRING && dq_jinja_text_is(by->text, "value");
    if (c->self.kind == DQ_JINJA_UNDEFINED) return dq_jinja_fail_undefined(r, &c->self);
    if (c->self.kind != DQ_JINJA_DICT)
        return dq_jinja_fail(r, DQ_DAMAGED, "dictsort of '%s'", dq_jinja_type(&c->self));
    if (!by_value && by->kind != DQ_JINJA_ABSENT &&
        (by->kind != DQ_JINJA_STRING || !dq_jinja_text_is(by->text, "key")))
        return dq_jinja_fail(r, DQ_DAMAGED, "dictsort goes by \"key\" or \"value\"");
    const value pairs = list_of_dict(r, c->self.dict, 2, DQ_JINJA_LIST);
    const value keys = list_of_dict(r, c->self.dict, by_value ? 1 : 0, DQ_JINJA_LIST);
    for (size_t i = 0; dq_jinja_ok(r) && i < keys.list->n; i++)
        keys.list->item[i] = sort_key(r, keys.list->item[i], dq_jinja_truth(&c->p[0]));
    return dq_jinja_ok(r) ? sorted(r, pairs.list, keys.list->item, dq_jinja_truth(&c->p[2]))
                          : pairs;
}

static value run_sort(run *r, call *c)
{
    const value *attribute = &c->p[2];
    const dq_jinja_list items = dq_jinja_items(r, &c->self);
    value keys = dq_jinja_list_new(r, DQ_JINJA_LIST, items.n);
    if (attribute->kind == DQ_JINJA_STRING &&
        dq_jinja_strings_find(r, attribute->text, dq_jinja_text_of(","), 0) != SIZE_MAX)
        return dq_jinja_fail(r, DQ_MISMATCH, "sort: several attributes are not supported");
    for (size_t i = 0; i < items.n && dq_jinja_ok(r); i++) {
        const value v = get_path(r, items.item[i], attribute, NULL);
        dq_jinja_list_add(r, keys.list, sort_key(r, v, dq_jinja_truth(&c->p[1])));
    }
    return dq_jinja_ok(r) ? sorted(r, &items, keys.list->item, dq_jinja_truth(&c->p[0])) : keys;
}

static value list_items(run *r, call *c)
{
    if (c->self.kind == DQ_JINJA_UNDEFINED) return dq_jinja_list_new(r, DQ_JINJA_ITERATOR, 0);
    if (c->self.kind == DQ_JINJA_DICT) return list_of_dict(r, c->self.dict, 2, DQ_JINJA_ITERATOR);
    return dq_jinja_fail(r, DQ_DAMAGED, "Can only get item pairs from a mapping.");
}

/* Filters of Jinja2 that are not implemented. */
static const char unwritten[] =
    "abs attr batch center e escape filesizeformat float forceescape format groupby max "
    "min pprint random round slice striptags sum truncate unique urlencode urlize "
    "wordcount wordwrap xmlattr";

static const dq_jinja_function filters[] = {
    {"capitalize", "", 0, filter_case, DQ_JINJA_CAPITALIZE},
    {"count", "", 0, run_length, 0},
    {"d", "default_value boolean", 0, run_default, 0},
    {"default", "default_value boolean", 0, run_default, 0},
    {"dictsort", "case_sensitive by reverse", 0, run_dictsort, 0},
    {"first", "", 0, run_first, 0},
    {"indent", "width first blank", 0, run_indent, 0},
    {"int", "default base", 0, run_int, 0},
    {"items", "", 0, list_items, 0},
    {"join", "d attribute", 0, join_items, 0},
    {"last", "", 0, run_last, 0},
    {"length", "", 0, run_length, 0},
    {"list", "", 0, run_list, 0},
    {"lower", "", 0, filter_case, DQ_JINJA_LOWER},
    {"map", NULL, 0, run_map, 0},
    {"reject", NULL, 0, run_choice, 0},
    {"rejectattr", NULL, 0, run_choice, BY_PATH},
    {"replace", "old new count", 2, replace_text, 0},
    {"reverse", "", 0, run_reverse, 0},
    {"safe", "", 0, run_safe, 0},
    {"select", NULL, 0, run_choice, WANTED},
    {"selectattr", NULL, 0, run_choice, WANTED | BY_PATH},
    {"sort", "reverse case_sensitive attribute", 0, run_sort, 0},
    {"string", "", 0, run_string, 0},
    {"title", "", 0, filter_case, DQ_JINJA_WORDS},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, run_tojson, 0},
    {"trim", "chars", 0, run_trim, 0},
    {"upper", "", 0, filter_case, DQ_JINJA_UPPER},
};

const dq_jinja_function *dq_jinja_find(dq_jinja_table table, dq_jinja_text name)
{
    static const dq_jinja_function none = {0};
    static const struct {
        const dq_jinja_function *row;
        size_t n;
    } tables[] = {[DQ_JINJA_FILTERS] = {filters, sizeof filters / sizeof *filters},
                  [DQ_JINJA_TESTS] = {tests, sizeof tests / sizeof *tests},
                  [DQ_JINJA_FUNCTIONS] = {functions, sizeof functions / sizeof *functions}};
    for (size_t i = 0; i < tables[table].n; i++) {
        if (dq_jinja_text_is(name, tables[table].row[i].name)) return &tables[table].row[i];
    }
    return table == DQ_JINJA_FILTERS && is_listed(unwritten, name) ? &none : NULL;
}
