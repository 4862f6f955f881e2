/* answers: see answers.h. Runs of digits are found by hand, in the places that the reference's patterns match:
 * after the mark for the strict answer, the last of the text for the other. Values are compared as decimal
 * digits, never as floating-point numbers.
 * SPDX-License-Identifier: MIT */
#include "tasks/answers.h"

#include "tokenizer/regex.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Length of the run of digits, points, commas (and dollars) at s[at]. */
static size_t run_at(const char *s, size_t len, size_t at, bool dollars)
{
    const size_t first = at;
    while (at < len &&
           (is_digit(s[at]) || s[at] == '.' || s[at] == ',' || (dollars && s[at] == '$')))
        at++;
    return at - first;
}

dq_span dq_answer_strict(const char *text, size_t len)
{
    for (size_t at = 0; (at = dq_regex_find_text(text, len, at, mark, MARK)) != SIZE_MAX; at++) {
        const size_t begin = at + MARK, sign = begin < len && text[begin] == '-';
        const size_t n = run_at(text, len, begin + sign, false);
        if (n) return (dq_span){text + begin, sign + n};
    }
    return (dq_span){0};
}

dq_span dq_answer_last(const char *text, size_t len)
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

char *dq_answer_clean(dq_span text, dq_arena *a, dq_err *err)
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

/* A decimal number in its parts; zeros that say nothing are left out. */
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

bool dq_answer_same_value(const char *a, const char *b)
{
    decimal x, y;
    return decimal_of(&x, a) && decimal_of(&y, b) && x.negative == y.negative &&
           same_span(x.whole, y.whole) && same_span(x.fraction, y.fraction);
}

/* 576.0 as 576, in place; what is no number stays. */
static void drop_zeros(char *s)
{
    decimal d;
    char *const point = strchr(s, '.');
    if (!point || point == s || !decimal_of(&d, s)) return;
    if (d.fraction.len)
        point[1 + d.fraction.len] = '\0';
    else
        *point = '\0';
}

/* A number's shortest text that reads as the same number. */
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

dq_status dq_answer_gold(const char **gold, const json_t *record, dq_arena *a, dq_err *err)
{
    const json_t *value = json_object_get(record, "answer");
    if (!value) value = json_object_get(record, "Answer");
    dq_span raw = {json_string_value(value), json_string_length(value)};
    if (json_is_number(value)) {
        raw.s = number_text(value, a, err);
        if (!raw.s) return err->code;
        raw.len = strlen(raw.s);
    }
    if (!raw.s)
        return dq_fail(err, DQ_DAMAGED,
                       "expected an \"answer\" (or \"Answer\") that is a text or a number");
    char *s = dq_answer_clean(raw, a, err);
    if (!s) return err->code;
    if (dq_regex_find_text(raw.s, raw.len, 0, mark, MARK) == SIZE_MAX) drop_zeros(s);
    if (!*s) return dq_fail(err, DQ_DAMAGED, "the \"answer\" is empty");
    *gold = s;
    return DQ_OK;
}

dq_status dq_answer_judge(dq_answer_verdict *out, const char *text, size_t len, const char *gold,
                          dq_err *err)
{
    *out = (dq_answer_verdict){0};
    const dq_span strict = dq_answer_strict(text, len), last = dq_answer_last(text, len);
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    const char *s = strict.s ? dq_answer_clean(strict, a, err) : NULL;
    out->strict = s && strcmp(s, gold) == 0;
    s = last.s ? dq_answer_clean(last, a, err) : NULL;
    out->flexible = s && strcmp(s, gold) == 0;
    out->value = s && dq_answer_same_value(s, gold);
    dq_arena_free(a);
    return err->code;
}
