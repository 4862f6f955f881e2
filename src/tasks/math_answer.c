/* math_answer: see math_answer.h. An expression is rewritten step by step in the reference's order, each step a walk over a text
 * into a new one; a step that the reference raises an exception in ends the walk, and the texts themselves are
 * compared.
 * SPDX-License-Identifier: MIT */
#include "tasks/math_answer.h"

#include "base/text.h"
#include "tokenizer/regex.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- Where an answer is ---- */

/* Where the last `part` begins; SIZE_MAX: nowhere. */
static size_t last_of(const char *text, size_t len, const char *part)
{
    const size_t n = strlen(part);
    size_t found = SIZE_MAX;
    for (size_t at = 0; (at = dq_regex_find_text(text, len, at, part, n)) != SIZE_MAX; at++)
        found = at;
    return found;
}

dq_span dq_math_answer_boxed(const char *text, size_t len)
{
    static const char boxed[] = "\\boxed", spaced[] = "\\boxed ";
    size_t at = last_of(text, len, spaced), open = 0, begin = 0;
    if (at != SIZE_MAX) {
        at += sizeof spaced - 1;
        const char *end = memchr(text + at, '$', len - at);
        return (dq_span){text + at, end ? (size_t)(end - text) - at : len - at};
    }
    at = last_of(text, len, boxed);
    if (at == SIZE_MAX) at = last_of(text, len, "\\fbox");
    for (; at < len; at++) {
        if (text[at] == '{' && open++ == 0) begin = at + 1;
        if (text[at] == '}' && open > 0 && --open == 0) return (dq_span){text + begin, at - begin};
    }
    return (dq_span){0};
}

static bool trims(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '$' || c == ':';
}

dq_span dq_math_answer_stated(const char *text, size_t len)
{
    static const char words[] = "answer is";
    const size_t n = sizeof words - 1;
    size_t found = SIZE_MAX;
    for (size_t at = 0; at + n <= len; at++) {
        size_t k = 0;
        while (k < n && tolower((unsigned char)text[at + k]) == words[k]) k++;
        if (k == n) found = at + n;
    }
    if (found == SIZE_MAX) return (dq_span){0};
    size_t end = found;
    while (end < len && text[end] != '\n') end++;
    while (found < end && trims(text[found])) found++;
    while (end > found && trims(text[end - 1])) end--;
    if (end > found && text[end - 1] == '.') end--;
    while (end > found && trims(text[end - 1])) end--;
    return (dq_span){text + found, end - found};
}

/* ---- One form of an expression ---- */

/* A text in the making; `odd`: a step did not know what to do. */
typedef struct form {
    dq_strbuf s, next; /* both end in no NUL */
    bool odd;
    dq_err *err;
} form;

static void add(form *f, const char *s, size_t n)
{
    dq_strbuf_add(&f->next, s, n, f->err);
}

static void turn(form *f)
{
    const dq_strbuf old = f->s;
    f->s = f->next;
    f->next = old;
    f->next.n = 0;
}

static void replace(form *f, const char *from, const char *to)
{
    const size_t n = strlen(from);
    size_t at = 0, next;
    while ((next = dq_regex_find_text(f->s.s, f->s.n, at, from, n)) != SIZE_MAX) {
        add(f, f->s.s + at, next - at);
        add(f, to, strlen(to));
        at = next + n;
    }
    add(f, f->s.s + at, f->s.n - at);
    turn(f);
}

static size_t count(const form *f, const char *part)
{
    size_t n = 0;
    for (size_t at = 0;
         (at = dq_regex_find_text(f->s.s, f->s.n, at, part, strlen(part))) != SIZE_MAX;
         at += strlen(part))
        n++;
    return n;
}

/* "\text{ " begins a unit, which ends the expression. */
static void cut_units(form *f)
{
    static const char unit[] = "\\text{ ";
    const size_t n = count(f, unit);
    if (n > 1) f->odd = true;
    if (n == 1) f->s.n = dq_regex_find_text(f->s.s, f->s.n, 0, unit, sizeof unit - 1);
}

/* "k = 5" as "5": what stands before a single '=' and is at most two characters long. */
static void cut_name(form *f)
{
    const char *equals = f->s.n ? memchr(f->s.s, '=', f->s.n) : NULL;
    if (!equals || count(f, "=") != 1) return;
    const size_t before = (size_t)(equals - f->s.s);
    if (dq_utf8_count(f->s.s, before) > 2) return;
    add(f, equals + 1, f->s.n - before - 1);
    turn(f);
}

/* The next code point at s[at]; 0 bytes at the end. */
static size_t point_at(const dq_strbuf *s, size_t at)
{
    size_t bytes = s->n - at;
    if (at >= s->n) return 0;
    dq_utf8_first(s->s + at, &bytes);
    return bytes;
}

static bool begins(const dq_strbuf *s, size_t at, const char *part)
{
    const size_t n = strlen(part);
    return s->n - at >= n && memcmp(s->s + at, part, n) == 0;
}

static void add_braced(form *f, const char *s, size_t n)
{
    add(f, "{", 1);
    add(f, s, n);
    add(f, "}", 1);
}

/* \sqrt3 as \sqrt{3}. */
static void brace_roots(form *f)
{
    static const char root[] = "\\sqrt";
    size_t at = 0, next;
    while ((next = dq_regex_find_text(f->s.s, f->s.n, at, root, sizeof root - 1)) != SIZE_MAX) {
        next += sizeof root - 1;
        add(f, f->s.s + at, next - at);
        at = next;
        const size_t n = point_at(&f->s, at);
        if (n == 0 || begins(&f->s, at, root)) {
            f->odd = true; /* nothing stands below the root */
            break;
        }
        if (f->s.s[at] == '{') continue;
        add_braced(f, f->s.s + at, n);
        at += n;
    }
    add(f, f->s.s + at, f->s.n - at);
    turn(f);
}

/* \frac12 as \frac{1}{2}, \frac1{2} as \frac{1}{2}; as it was where a part has one character. */
static void brace_fractions(form *f)
{
    static const char frac[] = "\\frac";
    const size_t len = sizeof frac - 1;
    size_t at = 0, next;
    while ((next = dq_regex_find_text(f->s.s, f->s.n, at, frac, len)) != SIZE_MAX) {
        next += len;
        add(f, f->s.s + at, next - at);
        at = next;
        size_t end = dq_regex_find_text(f->s.s, f->s.n, at, frac, len);
        if (end == SIZE_MAX) end = f->s.n;
        if (at == end) {
            f->odd = true;
            break;
        }
        if (f->s.s[at] == '{') continue;
        const size_t a = point_at(&f->s, at), b = at + a < end ? point_at(&f->s, at + a) : 0;
        if (b == 0) { /* the whole stays as it was */
            f->next.n = 0;
            return;
        }
        add_braced(f, f->s.s + at, a);
        at += a;
        if (f->s.s[at] == '{') continue;
        add_braced(f, f->s.s + at, b);
        at += b;
    }
    add(f, f->s.s + at, f->s.n - at);
    turn(f);
}

/* Whether s[n] is an integer as Python's int() reads it, and whether it is written as that writes it. */
static bool is_integer(const char *s, size_t n, bool *usual)
{
    size_t at = n > 0 && (s[0] == '-' || s[0] == '+');
    *usual = n == 0 || s[0] != '+';
    if (at == n) return false;
    if (s[at] == '0' && (n > at + 1 || at)) *usual = false; /* 07, -0 */
    for (size_t i = at; i < n; i++) {
        const bool digit = s[i] >= '0' && s[i] <= '9';
        if (s[i] == '_' && i > at && i + 1 < n && s[i - 1] != '_')
            *usual = false;
        else if (!digit)
            return false;
    }
    return true;
}

/* a/b of integers as \frac{a}{b}. */
static void turn_slash(form *f)
{
    const char *slash = f->s.n ? memchr(f->s.s, '/', f->s.n) : NULL;
    bool a_usual, b_usual;
    if (!slash || count(f, "/") != 1) return;
    const size_t a = (size_t)(slash - f->s.s), b = f->s.n - a - 1;
    if (!is_integer(f->s.s, a, &a_usual) || !is_integer(slash + 1, b, &b_usual)) {
        f->odd = true;
        return;
    }
    if (!a_usual || !b_usual) return;
    add(f, "\\frac", 5);
    add_braced(f, f->s.s, a);
    add_braced(f, slash + 1, b);
    turn(f);
}

/* Every step in turn; f->odd: the text has no such form. */
static void rewrite(form *f)
{
    static const char *const gone[][2] = {
        {"\n", ""},     {"\\!", ""},     {"\\\\", "\\"},    {"tfrac", "frac"}, {"dfrac", "frac"},
        {"\\left", ""}, {"\\right", ""}, {"^{\\circ}", ""}, {"^\\circ", ""},   {"\\$", ""},
    };
    for (size_t i = 0; i < sizeof gone / sizeof gone[0]; i++) replace(f, gone[i][0], gone[i][1]);
    cut_units(f);
    replace(f, "\\%", "");
    replace(f, " .", " 0.");
    replace(f, "{.", "{0.");
    if (f->odd || f->s.n == 0) return;
    if (f->s.s[0] == '.') {
        add(f, "0", 1);
        add(f, f->s.s, f->s.n);
        turn(f);
    }
    cut_name(f);
    brace_roots(f);
    if (f->odd) return;
    replace(f, " ", "");
    brace_fractions(f);
    if (f->s.n == 3 && memcmp(f->s.s, "0.5", 3) == 0) {
        add(f, "\\frac{1}{2}", 11);
        turn(f);
    }
    if (!f->odd) turn_slash(f);
}

dq_status dq_math_answer_form(const char **out, dq_span s, dq_arena *a, dq_err *err)
{
    form f = {.err = err};
    *out = NULL;
    if (dq_strbuf_reserve(&f.s, s.len + 1, err) == DQ_OK &&
        dq_strbuf_reserve(&f.next, s.len + 1, err) == DQ_OK &&
        dq_strbuf_add(&f.s, s.s, s.len, err) == DQ_OK)
        rewrite(&f);
    if (err->code == DQ_OK && !f.odd) *out = dq_text(a, f.s.s, f.s.n, err);
    dq_block_free(f.s.s);
    dq_block_free(f.next.s);
    return err->code;
}

dq_status dq_math_answer_same(bool *same, dq_span x, dq_span y, dq_err *err)
{
    const char *a_form, *b_form;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    *same = false;
    if (dq_math_answer_form(&a_form, x, a, err) == DQ_OK &&
        dq_math_answer_form(&b_form, y, a, err) == DQ_OK) {
        if (a_form && b_form)
            *same = strcmp(a_form, b_form) == 0;
        else
            *same = x.len == y.len && memcmp(x.s, y.s, x.len) == 0;
    }
    dq_arena_free(a);
    return err->code;
}
