/* What counts as a right answer, and judges outside.
 * SPDX-License-Identifier: MIT */
#include "base/base.h"
#include "base/file.h"
#include "base/os.h"
#include "base/random.h"
#include "base/text.h"
#include "tasks/documents.h"
#include "tasks/items.h"
#include "tasks/questions.h"
#include "tasks/tasks.h"
#include "tokenizer/regex.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Digit runs are found by hand where the reference's patterns match: after the mark for the strict
 * answer, last in the text for the other. Values are compared as decimal digits, never as
 * floating-point numbers. */

const char *const dq_answer_stop[] = {"Question:", "</s>", "<|im_end|>"};
const int dq_answer_n_stops = sizeof dq_answer_stop / sizeof dq_answer_stop[0];

static const char mark[] = "#### ";
enum { MARK = sizeof mark - 1 };

size_t dq_answer_end(const char *text, size_t len, const char *const *stop, int n)
{
    size_t end = len;
    for (int i = 0; i < n; i++) {
        const size_t at = dq_regex_find_text(text, len, 0, stop[i], strlen(stop[i]));
        if (at < end) end = at;
    }
    return end;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* A run of digits, points, commas (and dollars). */
static size_t run_at(const char *s, size_t len, size_t at, bool dollars)
{
    const size_t first = at;
    while (at < len &&
           (is_digit(s[at]) || s[at] == '.' || s[at] == ',' || (dollars && s[at] == '$')))
        at++;
    return at - first;
}

/* The -?[0-9.,]+ after the first "#### " that one of "-0-9.," follows. */
static dq_span strict_of(const char *text, size_t len)
{
    for (size_t at = 0; (at = dq_regex_find_text(text, len, at, mark, MARK)) != SIZE_MAX; at++) {
        const size_t begin = at + MARK, sign = begin < len && text[begin] == '-';
        const size_t n = run_at(text, len, begin + sign, false);
        if (n) return (dq_span){text + begin, sign + n};
    }
    return (dq_span){0};
}

/* The last match of -?[$0-9.,]{2,}, else of -?[0-9]+, without overlap. */
static dq_span last_number(const char *text, size_t len)
{
    dq_span last = {0};
    for (size_t at = 0; at < len;) {
        const size_t sign = text[at] == '-', begin = at + sign;
        const size_t n = run_at(text, len, begin, true);
        if (n >= 2 || (n == 1 && is_digit(text[begin]))) {
            last = (dq_span){text + at, sign + n};
            at = begin + n;
        } else {
            at++;
        }
    }
    return last;
}

/* Drops ',' and '$', all up to the last "#### ", and a final '.'. In the arena, with a NUL; NULL:
 * see err. */
static char *clean(dq_span text, dq_arena *a, dq_err *err)
{
    char *s = dq_text(a, text.s, text.len, err);
    size_t n = 0;
    if (!s) return NULL;
    for (size_t i = 0; i < text.len; i++) {
        if (s[i] != ',' && s[i] != '$') s[n++] = s[i];
    }
    for (size_t at; (at = dq_regex_find_text(s, n, 0, mark, MARK)) != SIZE_MAX;) {
        n -= at + MARK;
        memmove(s, s + at + MARK, n);
    }
    const size_t newline = n > 0 && s[n - 1] == '\n';
    if (n > newline && s[n - newline - 1] == '.') {
        n--;
        if (newline) s[n - 1] = '\n';
    }
    s[n] = '\0';
    return s;
}

/* A decimal number without insignificant zeros. */
typedef struct decimal {
    bool negative;
    dq_span whole, fraction;
} decimal;

static bool decimal_of(decimal *d, const char *s)
{
    *d = (decimal){.negative = *s == '-'};
    s += d->negative;
    const char *const point = strchr(s, '.');
    const char *end = s + strlen(s);
    size_t digits = 0;
    for (const char *c = s; c < end; c++) {
        if (c != point && !is_digit(*c)) return false;
        digits += c != point;
    }
    while (*s == '0') s++;
    d->whole = (dq_span){s, (size_t)((point ? point : end) - s)};
    if (point) {
        while (end > point + 1 && end[-1] == '0') end--;
        d->fraction = (dq_span){point + 1, (size_t)(end - point - 1)};
    }
    if (d->whole.len + d->fraction.len == 0) d->negative = false;
    return digits > 0;
}

static bool same_span(dq_span a, dq_span b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.s, b.s, a.len) == 0);
}

/* Whether two decimal numbers (-?digits, at most one '.') are equal in value. */
static bool equal_values(const char *a, const char *b)
{
    decimal x, y;
    return decimal_of(&x, a) && decimal_of(&y, b) && x.negative == y.negative &&
           same_span(x.whole, y.whole) && same_span(x.fraction, y.fraction);
}

/* The shortest text that reads as the same number. */
static char *number_text(const json_t *number, dq_arena *a, dq_err *err)
{
    if (json_is_integer(number)) return dq_textf(a, err, "%lld", json_integer_value(number));
    char s[32];
    const double x = json_real_value(number);
    if (fabs(x) >= 0x1p63) { /* its digits may be lost */
        dq_fail(err, DQ_DAMAGED,
                "the \"answer\" is a number of too many digits. Write it as a string.");
        return NULL;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(s, sizeof s, "%.*g", digits, x);
        if (strtod(s, NULL) == x) break;
    }
    return dq_text(a, s, strlen(s), err);
}

dq_status dq_answer_gold(const char **gold, const json_t *value, dq_arena *a, dq_err *err)
{
    dq_span raw = {json_string_value(value), json_string_length(value)};
    if (json_is_number(value)) {
        raw.s = number_text(value, a, err);
        if (!raw.s) return err->code;
        raw.len = strlen(raw.s);
    }
    if (!raw.s)
        return dq_fail(err, DQ_DAMAGED,
                       "expected an \"answer\" (or \"Answer\") that is a text or a number");
    char *s = clean(raw, a, err);
    if (!s) return err->code;
    if (dq_regex_find_text(raw.s, raw.len, 0, mark, MARK) == SIZE_MAX) {
        /* "576.0" becomes "576" in place; no number: unchanged. */
        decimal d;
        char *const point = strchr(s, '.');
        if (point && point != s && decimal_of(&d, s)) {
            if (d.fraction.len)
                point[1 + d.fraction.len] = '\0';
            else
                *point = '\0';
        }
    }
    if (!*s) return dq_fail(err, DQ_DAMAGED, "the \"answer\" is empty");
    *gold = s;
    return DQ_OK;
}

/* gold: from dq_answer_gold. */
static dq_status judge_gsm8k(dq_answer_verdict *out, const char *text, size_t len, const char *gold,
                             dq_err *err)
{
    *out = (dq_answer_verdict){0};
    const dq_span strict = strict_of(text, len), last = last_number(text, len);
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    const char *s = strict.s ? clean(strict, a, err) : NULL;
    out->strict = s && strcmp(s, gold) == 0;
    s = last.s ? clean(last, a, err) : NULL;
    out->flexible = s && strcmp(s, gold) == 0;
    dq_arena_free(a);
    return err->code;
}

/* An expression is rewritten step by step in the reference's order, each step a walk over a text
 * into a new one; a step that the reference raises an exception in ends the walk, and the texts
 * themselves are compared. */

/* SIZE_MAX: nowhere. */
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

/* The line after the last "answer is" (any case), without ':', '$' and spaces around it and a final
 * '.'. s NULL: none. */
static dq_span stated(const char *text, size_t len)
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

/* `odd`: a step cannot rewrite the text. */
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

/* "k = 5" becomes "5": a name of at most two characters before a single '=' goes. */
static void cut_name(form *f)
{
    const char *equals = f->s.n ? memchr(f->s.s, '=', f->s.n) : NULL;
    if (!equals || count(f, "=") != 1) return;
    const size_t before = (size_t)(equals - f->s.s);
    if (dq_utf8_count(f->s.s, before) > 2) return;
    add(f, equals + 1, f->s.n - before - 1);
    turn(f);
}

/* Returns 0 bytes at the end. */
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

/* "\sqrt3" becomes "\sqrt{3}". */
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

/* "\frac12" and "\frac1{2}" become "\frac{1}{2}"; unchanged where a part has one character. */
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

/* As Python's int() reads it; *usual: also as Python writes it. */
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

/* a/b of integers becomes \frac{a}{b}. */
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

/* f->odd: the text has no such form. */
static void rewrite(form *f)
{
    static const char *const gone[][2] = {
        {"\n", ""},     {"\\!", ""},     {"\\\\", "\\"},    {"tfrac", "frac"}, {"dfrac", "frac"},
        {"\\left", ""}, {"\\right", ""}, {"^{\\circ}", ""}, {"^\\circ", ""},   {"\\$", ""},
    };
    for (size_t i = 0; i < sizeof gone / sizeof gone[0]; i++) replace(f, gone[i][0], gone[i][1]);
    /* "\text{ " begins a unit, which ends the expression. */
    static const char unit[] = "\\text{ ";
    const size_t n = count(f, unit);
    if (n > 1) f->odd = true;
    if (n == 1) f->s.n = dq_regex_find_text(f->s.s, f->s.n, 0, unit, sizeof unit - 1);
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

/* The normal form, in the arena with a NUL; *out NULL: the reference raises an exception. */
static dq_status form_of(const char **out, dq_span s, dq_arena *a, dq_err *err)
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

/* Whether both have one normal form: spaces, units, degrees, percent and dollar signs go, fractions
 * and roots get braces; without a form, whether the characters are equal. */
static dq_status same_forms(bool *same, dq_span x, dq_span y, dq_err *err)
{
    const char *a_form, *b_form;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    *same = false;
    if (form_of(&a_form, x, a, err) == DQ_OK && form_of(&b_form, y, a, err) == DQ_OK) {
        if (a_form && b_form)
            *same = strcmp(a_form, b_form) == 0;
        else
            *same = x.len == y.len && memcmp(x.s, y.s, x.len) == 0;
    }
    dq_arena_free(a);
    return err->code;
}

/* Strips spaces and '$'. */
static dq_span bare(dq_span s)
{
    while (s.len && (s.s[0] == ' ' || s.s[0] == '$' || s.s[0] == '\n')) {
        s.s++;
        s.len--;
    }
    while (s.len && (s.s[s.len - 1] == ' ' || s.s[s.len - 1] == '$' || s.s[s.len - 1] == '\n'))
        s.len--;
    return s;
}

/* Drops commas, '$' and '%'. */
static dq_status number_of(const char **out, dq_span s, dq_arena *a, dq_err *err)
{
    char *text = clean(s, a, err);
    size_t n = 0;
    if (!text) return err->code;
    for (const char *c = text; *c; c++) {
        if (*c != '%' && *c != ' ') text[n++] = *c;
    }
    text[n] = 0;
    *out = text;
    return DQ_OK;
}

static dq_status same_value(bool *same, dq_span s, const char *gold, dq_arena *a, dq_err *err)
{
    const char *x, *y;
    DQ_TRY(number_of(&x, s, a, err));
    DQ_TRY(number_of(&y, (dq_span){gold, strlen(gold)}, a, err));
    *same = equal_values(x, y);
    return DQ_OK;
}

dq_answer_rule dq_answer_rules_for(const char *gold)
{
    return equal_values(gold, gold) ? DQ_ANSWER_VALUE : DQ_ANSWER_MATH;
}

static dq_status judge_part(bool *right, dq_answer_rule rule, dq_span part, const char *gold,
                            dq_arena *a, dq_err *err)
{
    const dq_span want = bare((dq_span){gold, strlen(gold)});
    *right = false;
    if (!part.s) return DQ_OK;
    part = bare(part);
    if (rule == DQ_ANSWER_VALUE) {
        const dq_span last = last_number(part.s, part.len);
        return last.s ? same_value(right, last, gold, a, err) : DQ_OK;
    }
    if (rule == DQ_ANSWER_WORDS) {
        *right = part.len == want.len && strncasecmp(part.s, want.s, part.len) == 0;
        return DQ_OK;
    }
    DQ_TRY(same_forms(right, part, want, err));
    return *right ? DQ_OK : same_value(right, part, gold, a, err);
}

dq_status dq_answer_rules_judge(dq_answer_verdict *out, dq_answer_rule rule, const char *text,
                                size_t len, const char *gold, dq_err *err)
{
    if (rule == DQ_ANSWER_GSM8K) return judge_gsm8k(out, text, len, gold, err);
    const dq_span boxed = dq_math_answer_boxed(text, len);
    dq_span part = boxed.s ? boxed : stated(text, len);
    dq_arena *a = dq_arena_new();
    *out = (dq_answer_verdict){0};
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (!part.s) part = rule == DQ_ANSWER_MATH ? last_number(text, len) : (dq_span){text, len};
    if (judge_part(&out->flexible, rule, part, gold, a, err) == DQ_OK)
        judge_part(&out->strict, rule, boxed, gold, a, err);
    dq_arena_free(a);
    return err->code;
}

/* A completion is known by its line number and a hash, which tells replies to other files apart.
 * Replies go into a map by these names, and completions look theirs up. */

enum { ID = 48, HASH = 16 };

static dq_status name_line(char id[ID], int64_t line, const char *s, size_t n, dq_err *err)
{
    char hex[65];
    DQ_TRY(dq_sha256_of(hex, s, n, err));
    snprintf(id, ID, "dq-%lld-%.*s", (long long)line, HASH, hex);
    return DQ_OK;
}

static dq_status add_request(json_t *o, const char *id, const char *judge, dq_judge_take *take,
                             void *arg, dq_arena *a, dq_err *err)
{
    const char *question;
    const char *prompt, *completion, *references = "";
    const bool summary = json_is_null(json_object_get(o, "query"));
    const char *what = summary ? "summary" : "answer";
    DQ_TRY(dq_json_text(&prompt, o, "prompt", NULL, err));
    DQ_TRY(dq_json_text(&completion, o, "completion", NULL, err));
    /* "- one\n- two\n" */
    const json_t *list = json_object_get(o, "reference");
    dq_strbuf all = {0};
    for (size_t i = 0; err->code == DQ_OK && i < json_array_size(list); i++) {
        const json_t *text = json_array_get(list, i);
        if (!json_is_string(text))
            dq_json_wrong("reference", "a list of texts", list, err);
        else if (dq_strbuf_add(&all, "- ", 2, err) == DQ_OK &&
                 dq_strbuf_add(&all, json_string_value(text), json_string_length(text), err) ==
                     DQ_OK)
            dq_strbuf_add(&all, "\n", 1, err);
    }
    if (err->code == DQ_OK) references = dq_text(a, all.s ? all.s : "", all.n, err);
    dq_block_free(all.s);
    if (err->code != DQ_OK) return err->code;
    question = dq_textf(
        a, err,
        "A language model was given this text to go on with:\n\n<text>\n%s\n</text>\n\n"
        "%s%s%sIt wrote this %s:\n\n<%s>\n%s\n</%s>\n\n"
        "Is the %s accurate%s, and free of anything that the text does not support? "
        "Reply with one word, correct or incorrect.",
        prompt, *references ? "These are right:\n\n" : "", references, *references ? "\n" : "",
        what, what, completion, what, what, *references ? " beside those that are right" : "");
    if (err->code != DQ_OK) return err->code;
    json_t *request =
        json_pack("{s:s, s:s, s:s, s:{s:s, s:[{s:s, s:s}], s:i, s:i}}", "custom_id", id, "method",
                  "POST", "url", "/v1/chat/completions", "body", "model", judge, "messages", "role",
                  "user", "content", question, "temperature", 0, "max_tokens", 8);
    if (!request) return dq_fail(err, DQ_RESOURCE, "out of memory");
    take(arg, request, err);
    json_decref(request);
    return err->code;
}

dq_status dq_judge_requests(const char *text, size_t len, const char *judge, dq_judge_take *take,
                            void *arg, dq_err *err)
{
    const char *s;
    size_t at = dq_utf8_mark(text, len), n;
    for (int64_t line = 1; dq_task_file_next_line(text, len, &at, &s, &n); line++) {
        char id[ID];
        json_t *o = NULL;
        if (dq_task_file_is_blank(s, n)) continue;
        dq_arena *a = dq_arena_new();
        if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
        if (dq_json_parse_line(&o, s, n, "completion", err) == DQ_OK &&
            name_line(id, line, s, n, err) == DQ_OK)
            add_request(o, id, judge, take, arg, a, err);
        json_decref(o);
        dq_arena_free(a);
        if (err->code != DQ_OK) return dq_in(err, "line %lld: ", (long long)line);
    }
    return DQ_OK;
}

typedef struct reply {
    const char *verdict; /* JSON text of it; NULL: unclear */
    int64_t line;
    bool taken;
} reply;

typedef struct reader {
    dq_judge_tally *tally;
    dq_strmap index;
    reply *reply;
    int n;
    size_t cap;
    dq_arena *a;
} reader;

/* Returns 0 bytes without a word; *s becomes its end. */
static size_t next_word(const char **word, const char **s)
{
    while (**s && !isalpha((unsigned char)**s)) ++*s;
    *word = *s;
    while (isalpha((unsigned char)**s)) ++*s;
    return (size_t)(*s - *word);
}

static bool is_one_of(const char *word, size_t n, const char *const *list)
{
    while (*list && (strlen(*list) != n || strncasecmp(*list, word, n) != 0)) list++;
    return *list != NULL;
}

/* Whether a verdict ends before the next word: "Correct answer: S" and "correct/incorrect" go
 * on. */
static bool is_apart(const char *s, size_t n)
{
    bool apart = false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '?' || s[i] == ':') return false;
        apart = apart || strchr(".,!;\n)", s[i]) || (s[i] & 0x80) || (s[i] == '-' && i > 0);
    }
    return apart;
}

/* The verdict that a text begins with, after a label or none, as JSON. NULL: none, or it is
 * qualified: the other word occurs, it asks, the sentence goes on other than with a reason, or it
 * names a degree. */
static const char *first_word(const char *text)
{
    static const char *const labels[] = {"final",     "verdict",  "answer",
                                         "judgement", "judgment", NULL};
    static const char *const says[2][2] = {{"correct", NULL}, {"incorrect", NULL}};
    static const char *const reasons[] = {"because", "since", "as", "due", "given", NULL};
    static const char *const degrees[] = {
        "partially", "partly", "partial", "mostly",  "largely",  "mainly",   "somewhat", "nearly",
        "almost",    "half",   "maybe",   "perhaps", "possibly", "probably", "neither",  NULL};
    static const char *const undone[] = {"not", "or", "no", "but", NULL};
    const char *word, *s = text;
    size_t n = next_word(&word, &s);
    while (n && is_one_of(word, n, labels)) n = next_word(&word, &s);
    const bool wrong = n && is_one_of(word, n, says[1]);
    if (!wrong && !(n && is_one_of(word, n, says[0]))) return NULL;
    const char *end = s;
    n = next_word(&word, &s);
    if (n ? is_one_of(word, n, undone) ||
                !(is_apart(end, (size_t)(word - end)) || is_one_of(word, n, reasons))
          : strchr(end, '?') != NULL)
        return NULL;
    for (; n; n = next_word(&word, &s)) {
        if (is_one_of(word, n, says[!wrong]) || is_one_of(word, n, degrees)) return NULL;
    }
    return wrong ? "\"incorrect\"" : "\"correct\"";
}

static dq_status verdict_of(const char **out, const char **said, const json_t *o, dq_arena *a,
                            dq_err *err)
{
    const json_t *given = json_object_get(o, "verdict");
    const json_t *body = json_object_get(json_object_get(o, "response"), "body");
    const json_t *choice = json_array_get(json_object_get(body, "choices"), 0);
    const char *text =
        json_string_value(json_object_get(json_object_get(choice, "message"), "content"));
    char *dumped = NULL;
    *said = text ? text : "";
    *out = first_word(*said);
    if (!given) {
        if (json_object_get(o, "response") || json_object_get(o, "error")) return DQ_OK;
        return dq_fail(err, DQ_DAMAGED, "neither a \"verdict\" nor a \"response\"");
    }
    if (dq_json_dump(&dumped, given, JSON_ENCODE_ANY | JSON_COMPACT, err) == DQ_OK)
        *out = dq_text(a, dumped, strlen(dumped), err);
    free(dumped);
    return err->code;
}

static dq_status read_reply(void *arg, json_t *o, int64_t line, dq_err *err)
{
    reader *r = arg;
    const char *id, *said;
    if (!json_is_object(o)) return dq_fail(err, DQ_DAMAGED, "expected a JSON object");
    DQ_TRY(dq_json_text(
        &id, o, json_object_get(o, "id") && !json_object_get(o, "custom_id") ? "id" : "custom_id",
        NULL, err));
    const int known = dq_strmap_get(&r->index, id, strlen(id));
    if (known >= 0)
        return dq_fail(err, DQ_DAMAGED, "%s has a reply in line %lld already", id,
                       (long long)r->reply[known].line);
    reply *more = dq_grow(r->a, r->reply, (size_t)r->n + 1, &r->cap, sizeof *more, err);
    const char *key = dq_text(r->a, id, strlen(id), err);
    if (!more || !key) return err->code;
    r->reply = more;
    more[r->n] = (reply){.line = line};
    DQ_TRY(verdict_of(&more[r->n].verdict, &said, o, r->a, err));
    DQ_TRY(dq_strmap_add(&r->index, key, strlen(key), r->n, r->a, err));
    r->tally->replies++;
    if (more[r->n++].verdict || r->tally->unclear++ > 0) return DQ_OK;
    r->tally->first_unclear = line;
    snprintf(r->tally->said, sizeof r->tally->said, "%s", said);
    return DQ_OK;
}

dq_status dq_judge_join(dq_strbuf *out, dq_judge_tally *tally, const char *text, size_t len,
                        const char *path, const char *replies, size_t replies_len, dq_arena *a,
                        dq_err *err)
{
    reader r = {.tally = tally, .a = a};
    *tally = (dq_judge_tally){0};
    if (dq_task_file_objects(replies, replies_len, "reply", 0, read_reply, &r, err) != DQ_OK)
        return dq_in(err, "%s: ", path);
    const char *s;
    size_t at = dq_utf8_mark(text, len), n;
    for (int64_t line = 1; dq_task_file_next_line(text, len, &at, &s, &n); line++) {
        char id[ID];
        DQ_TRY(name_line(id, line, s, n, err));
        const int i = dq_task_file_is_blank(s, n) ? -1 : dq_strmap_get(&r.index, id, strlen(id));
        r.tally->completions += !dq_task_file_is_blank(s, n);
        if (i >= 0) r.reply[i].taken = true;
        if (i >= 0 && r.reply[i].verdict) { /* becomes the object's last member */
            const char *const part[] = {", \"verdict\": ", r.reply[i].verdict, "}"};
            while (n && s[n - 1] != '}') n--;
            if (n == 0) return dq_fail(err, DQ_DAMAGED, "expected a JSON object");
            DQ_TRY(dq_strbuf_add(out, s, n - 1, err));
            for (int k = 0; k < 3; k++) DQ_TRY(dq_strbuf_add(out, part[k], strlen(part[k]), err));
        } else {
            r.tally->lacking += !dq_task_file_is_blank(s, n);
        }
        DQ_TRY(dq_strbuf_add(out, "\n", 1, err));
    }
    for (int i = 0; i < r.n; i++) {
        if (!r.reply[i].taken)
            return dq_fail(err, DQ_MISMATCH,
                           "%s: line %lld: a reply to none of these completions. Give the file "
                           "that its requests were made of",
                           path, (long long)r.reply[i].line);
    }
    return DQ_OK;
}

/* Lines are grouped, in any order, by a key of everything that tells rows apart. Groups are sorted
 * by item and compared over the items that both have. */

typedef struct verdict_reader {
    dq_verdicts *out;
    dq_arena *a;
    dq_verdict *verdict; /* [n] */
    int64_t n;
    size_t cap, cap_groups;
    dq_strmap index; /* of each group, by its key */
    dq_strbuf key;
} verdict_reader;

static dq_status read_score(double *score, const json_t *o, dq_err *err)
{
    const json_t *v = json_object_get(o, "verdict");
    const char *word = json_string_value(v);
    *score = json_is_number(v) ? json_number_value(v) : json_is_true(v);
    if (!v || json_is_null(v)) return dq_fail(err, DQ_DAMAGED, "key \"verdict\" is missing");
    if (json_is_boolean(v) || (json_is_number(v) && *score >= 0 && *score <= 1)) return DQ_OK;
    if (word && (strcmp(word, "correct") == 0 || strcmp(word, "incorrect") == 0)) {
        *score = word[0] == 'c';
        return DQ_OK;
    }
    return dq_fail(err, DQ_DAMAGED,
                   "key \"verdict\": expected true, false, \"correct\", \"incorrect\" or a number "
                   "from 0 to 1");
}

static const char f32[] = "f32"; /* the arithmetic of references */

/* By its key, as bytes in r->key: texts with a NUL; 16 bits have no granularity. -1: none, or see
 * err. */
static int find_group(verdict_reader *r, const dq_verdict_group *g, dq_err *err)
{
    const char *granularity = g->bits == 16 ? "" : g->granularity, bits = (char)g->bits;
    const char *const texts[] = {g->model, g->task ? g->task : "", granularity,
                                 g->math ? g->math : f32};
    char *kv = NULL;
    r->key.n = 0;
    if (g->kv) dq_json_dump(&kv, g->kv, JSON_ENCODE_ANY | JSON_SORT_KEYS, err);
    if (err->code == DQ_OK) dq_strbuf_add(&r->key, &bits, 1, err);
    for (int i = 0; err->code == DQ_OK && i < 4; i++)
        dq_strbuf_add(&r->key, texts[i], strlen(texts[i]) + 1, err);
    if (kv && err->code == DQ_OK) dq_strbuf_add(&r->key, kv, strlen(kv), err);
    free(kv);
    return err->code == DQ_OK ? dq_strmap_get(&r->index, r->key.s, r->key.n) : -1;
}

/* Words belong to the line. */
static dq_status read_group(dq_verdict_group *g, const json_t *o, dq_err *err)
{
    static const char *const model = "model", *const granularity = "per-tensor", *const none = "";
    static const int64_t bits = 16;
    int64_t width;
    *g = (dq_verdict_group){.ref = -1, .cross = -1};
    DQ_TRY(dq_json_text(&g->model, o, "model", &model, err));
    DQ_TRY(dq_json_text(&g->granularity, o, "logit_granularity", &granularity, err));
    DQ_TRY(dq_json_text(&g->task, o, "task", &none, err));
    DQ_TRY(dq_json_text(&g->math, o, "math", &none, err));
    DQ_TRY(dq_json_int(&width, o, "logit_bits", 2, 16, &bits, err));
    g->bits = (int)width;
    g->kv = json_object_get(o, "kv");
    if (!g->task[0]) g->task = NULL;
    if (!g->math[0]) g->math = NULL;
    if (json_is_null(g->kv)) g->kv = NULL;
    return DQ_OK;
}

/* Adds a missing group; -1: see err. */
static int group_of(verdict_reader *r, json_t *o, dq_err *err)
{
    dq_verdict_group g;
    dq_verdicts *v = r->out;
    if (read_group(&g, o, err) != DQ_OK) return -1;
    const int known = find_group(r, &g, err);
    if (known >= 0 || err->code != DQ_OK) return known;
    const char *key = dq_text(r->a, r->key.s, r->key.n, err);
    if (!key || dq_strmap_add(&r->index, key, r->key.n, v->n, r->a, err) != DQ_OK) return -1;
    dq_verdict_group *list =
        dq_grow(r->a, v->group, (size_t)v->n + 1, &r->cap_groups, sizeof *list, err);
    if (!list) return -1;
    v->group = list;
    if (json_array_append(v->kept, o) != 0) {
        dq_fail(err, DQ_RESOURCE, "out of memory");
        return -1;
    }
    list[v->n] = g;
    return v->n++;
}

static dq_status read_entry(void *arg, json_t *o, int64_t line, dq_err *err)
{
    verdict_reader *r = arg;
    dq_verdict *list = dq_grow(r->a, r->verdict, (size_t)r->n + 1, &r->cap, sizeof *list, err);
    if (!list) return err->code;
    r->verdict = list;
    dq_verdict *v = &list[r->n];
    v->line = line;
    DQ_TRY(dq_json_int(&v->item, o, "item", 0, INT64_MAX, NULL, err));
    DQ_TRY(read_score(&v->score, o, err));
    const json_t *prompt = json_object_get(o, "prompt");
    v->cluster = dq_random_mix((uint64_t)v->item);
    if (json_is_string(prompt))
        v->cluster = dq_repeats_key(json_string_value(prompt), json_string_length(prompt));
    DQ_TRY(dq_task_file_read_cluster(&v->cluster, o, err));
    v->group = group_of(r, o, err);
    r->n++;
    return err->code;
}

static int by_item(const void *a, const void *b)
{
    const dq_verdict *x = a, *y = b;
    return (x->item > y->item) - (x->item < y->item);
}

/* Group after group. */
static int by_group(const void *a, const void *b)
{
    const dq_verdict *x = a, *y = b;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    return x->item != y->item ? by_item(a, b) : (x->line > y->line) - (x->line < y->line);
}

/* Places of n scores and the cluster of each; *of is NULL where all are independent. */
static dq_status place(int64_t **at, int32_t **of, const uint64_t *cluster, int64_t n, dq_arena *a,
                       dq_err *err)
{
    const int32_t *number;
    DQ_TRY(dq_repeats_keys(&number, cluster, n, a, err));
    *at = dq_alloc(a, (size_t)n, sizeof **at, err);
    *of = number ? dq_alloc(a, (size_t)n, sizeof **of, err) : NULL;
    return err->code == DQ_OK ? dq_repeats_order(*at, *of, number, n, err) : err->code;
}

static dq_status fill(const verdict_reader *r, int index, dq_err *err)
{
    dq_verdict_group *g = &r->out->group[index];
    const int64_t n = g->n;
    const dq_verdict *v = g->verdict;
    double *score = dq_alloc(r->a, (size_t)n, sizeof *score, err);
    uint64_t *cluster = dq_alloc(r->a, (size_t)n, sizeof *cluster, err);
    int64_t *at;
    int32_t *of;
    if (!score || !cluster) return err->code;
    for (int64_t i = 0; i < n; i++) {
        if (i > 0 && v[i].item == v[i - 1].item)
            return dq_fail(err, DQ_DAMAGED,
                           "line %lld: item %lld of this model and setting has a verdict in line "
                           "%lld already",
                           (long long)v[i].line, (long long)v[i].item, (long long)v[i - 1].line);
        cluster[i] = v[i].cluster;
    }
    DQ_TRY(place(&at, &of, cluster, n, r->a, err));
    for (int64_t i = 0; i < n; i++) score[at[i]] = v[i].score;
    g->acc = dq_mean_of_scores(score, of, n, &g->acc_interval);
    return DQ_OK;
}

static dq_status pair(dq_stat_flips *out, const dq_verdict_group *before,
                      const dq_verdict_group *after, dq_arena *a, dq_err *err)
{
    int64_t n = 0;
    double *was = dq_alloc(a, (size_t)after->n, sizeof *was, err);
    double *is = dq_alloc(a, (size_t)after->n, sizeof *is, err);
    const dq_verdict **both = dq_alloc(a, 2 * (size_t)after->n, sizeof *both, err);
    uint64_t *cluster = dq_alloc(a, (size_t)after->n, sizeof *cluster, err);
    int64_t *at;
    int32_t *of;
    if (!was || !is || !both || !cluster) return err->code;
    for (int64_t i = 0; i < after->n; i++) {
        const dq_verdict *b =
            bsearch(&after->verdict[i], before->verdict, (size_t)before->n, sizeof *b, by_item);
        if (!b) continue;
        both[2 * n] = b;
        both[2 * n + 1] = &after->verdict[i];
        cluster[n++] = after->verdict[i].cluster;
    }
    DQ_TRY(place(&at, &of, cluster, n, a, err));
    for (int64_t i = 0; i < n; i++) {
        was[at[i]] = both[2 * i]->score;
        is[at[i]] = both[2 * i + 1]->score;
    }
    *out = dq_stat_flips_of(was, is, of, n);
    return DQ_OK;
}

static dq_status compare(verdict_reader *r, int index, dq_err *err)
{
    dq_verdicts *v = r->out;
    dq_arena *a = r->a;
    dq_verdict_group *g = &v->group[index], ref = *g, cross = *g;
    ref.bits = 16;
    ref.kv = NULL;
    cross.model = v->group[0].model;
    g->ref = find_group(r, &ref, err);
    ref.math = f32;
    const int in_f32 = find_group(r, &ref, err);
    if (in_f32 >= 0) g->ref = in_f32;
    if (strcmp(cross.model, g->model) != 0) g->cross = find_group(r, &cross, err);
    DQ_TRY(err->code);
    DQ_TRY(dq_os_check_stop(err));
    if (g->ref >= 0) DQ_TRY(pair(&g->flips, &v->group[g->ref], g, a, err));
    return g->cross >= 0 ? pair(&g->cross_flips, &v->group[g->cross], g, a, err) : DQ_OK;
}

dq_status dq_verdicts_load(dq_verdicts *out, const char *path, const char *text, size_t len,
                           dq_arena *a, dq_err *err)
{
    verdict_reader r = {.out = out, .a = a};
    *out = (dq_verdicts){.kept = json_array()};
    if (!out->kept) return dq_fail(err, DQ_RESOURCE, "out of memory");
    dq_task_file_objects(text, len, "verdict", 0, read_entry, &r, err);
    if (err->code == DQ_OK && r.n == 0)
        dq_fail(err, DQ_DAMAGED, "holds no verdicts (expected JSON lines {\"item\", \"verdict\"})");
    if (err->code == DQ_OK) qsort(r.verdict, (size_t)r.n, sizeof *r.verdict, by_group);
    for (int64_t i = 0; err->code == DQ_OK && i < r.n; i++) {
        dq_verdict_group *g = &out->group[r.verdict[i].group];
        if (g->n++ == 0) g->verdict = &r.verdict[i];
    }
    for (int i = 0; err->code == DQ_OK && i < out->n; i++) fill(&r, i, err);
    for (int i = 0; err->code == DQ_OK && i < out->n; i++) compare(&r, i, err);
    dq_block_free(r.key.s);
    return err->code == DQ_OK ? DQ_OK : dq_in(err, "%s: ", path);
}

void dq_verdicts_end(dq_verdicts *v)
{
    json_decref(v->kept);
    v->kept = NULL;
}
