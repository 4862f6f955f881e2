/* Before jansson reads a text, its numbers are rewritten so that each has a place in int64 or
 * double. The reader's allocations are watched: one that fails leaves it by a jump and becomes
 * DQ_RESOURCE, not a damaged file.
 * SPDX-License-Identifier: MIT */
#include "base/json.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Set by the first failed allocation of jansson, for good; setters report it. */
static atomic_bool memory_failed;
static _Thread_local jmp_buf *way_out; /* of the reader; NULL: not in it */

static void *watched_malloc(size_t bytes)
{
    void *p = malloc(bytes);
    if (p) return p;
    atomic_store(&memory_failed, true);
    if (way_out) longjmp(*way_out, 1);
    return NULL;
}

void dq_json_watch(void)
{
    json_set_alloc_funcs(watched_malloc, free);
}

dq_status dq_json_complete(dq_err *err)
{
    if (!atomic_load(&memory_failed)) return DQ_OK;
    return dq_fail(err, DQ_RESOURCE, "out of memory while a JSON document was built");
}

enum { INT64_DIGITS = 19 }; /* fewer digits always fit */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool of_number(char c)
{
    return is_digit(c) || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

/* Appends a number as jansson can hold it; the parser judges its syntax. */
static dq_status put_number(dq_strbuf *out, const char *s, size_t n, dq_err *err)
{
    const size_t digits = n - (s[0] == '-');
    size_t plain = n - digits;
    char largest[40];
    while (plain < n && is_digit(s[plain])) plain++;
    const bool whole = plain == n;
    DQ_TRY(dq_strbuf_reserve(out, n + sizeof largest, err));
    memcpy(out->s + out->n, s, n);
    out->s[out->n + n] = 0;
    const double x = strtod(out->s + out->n, NULL);
    if (isinf(x)) {
        snprintf(largest, sizeof largest, "%.17g", x < 0 ? -DBL_MAX : DBL_MAX);
        return dq_strbuf_add(out, largest, strlen(largest), err);
    }
    errno = 0;
    if (whole && digits >= INT64_DIGITS) strtoll(out->s + out->n, NULL, 10);
    out->n += n;
    return whole && errno == ERANGE ? dq_strbuf_add(out, "e0", 2, err) : DQ_OK;
}

/* Length of Python's NaN, Infinity or -Infinity; 0: none. */
static size_t word_of_python(const char *s, size_t n)
{
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const size_t k = strlen(words[i]);
        if (n >= k && memcmp(s, words[i], k) == 0) return k;
    }
    return 0;
}

/* Copies the document with every number in the range of int64 or double. */
static dq_status hold_numbers(dq_strbuf *out, const char *text, size_t len, bool python,
                              dq_err *err)
{
    char largest[40];
    bool quoted = false;
    for (size_t i = 0, end; i < len; i = end) {
        const size_t word = python && !quoted ? word_of_python(text + i, len - i) : 0;
        end = i + 1;
        if (word) {
            snprintf(largest, sizeof largest, " %.17g", text[i] == '-' ? -DBL_MAX : DBL_MAX);
            DQ_TRY(dq_strbuf_add(out, largest, strlen(largest), err));
            end = i + word;
            continue;
        }
        if (text[i] == '"') {
            quoted = !quoted;
        } else if (quoted) {
            if (text[i] == '\\' && end < len) end++;
        } else if (text[i] == '-' || is_digit(text[i])) {
            while (end < len && of_number(text[end])) end++;
            DQ_TRY(put_number(out, text + i, end - i, err));
            continue;
        }
        DQ_TRY(dq_strbuf_add(out, text + i, end - i, err));
    }
    return DQ_OK;
}

/* NULL: memory, or *e. jansson's reader asserts when memory is short, so a jump leaves it. */
static json_t *load(const char *text, size_t len, json_error_t *e)
{
    jmp_buf here;
    if (setjmp(here) != 0) {
        way_out = NULL;
        return NULL;
    }
    way_out = &here;
    json_t *v = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, e);
    way_out = NULL;
    return v;
}

typedef enum json_form { DOCUMENT, CONFIG, LINE } json_form;

static dq_status parse(json_t **out, const char *text, size_t len, const char *what, json_form form,
                       dq_err *err)
{
    json_error_t e = {0};
    char at[40] = "";
    *out = load(text, len, &e);
    const enum json_error_code code = json_error_code(&e);
    if (!*out && !atomic_load(&memory_failed) &&
        (code == json_error_numeric_overflow ||
         (form == CONFIG && code == json_error_invalid_syntax))) {
        dq_strbuf held = {0};
        json_error_t again = {0};
        if (hold_numbers(&held, text, len, form == CONFIG, err) == DQ_OK)
            *out = load(held.s, held.n, code == json_error_numeric_overflow ? &e : &again);
        dq_block_free(held.s);
        if (err->code != DQ_OK) return dq_in(err, "%s: ", what);
    }
    if (*out) return DQ_OK;
    if (json_error_code(&e) == json_error_out_of_memory || atomic_load(&memory_failed))
        return dq_fail(err, DQ_RESOURCE, "%s: out of memory while reading JSON", what);
    if (form != LINE) snprintf(at, sizeof at, "line %d, ", e.line);
    return dq_fail(err, DQ_DAMAGED, "%s: not valid JSON at %scolumn %d: %s", what, at, e.column,
                   e.text);
}

dq_status dq_json_parse(json_t **out, const char *text, size_t len, const char *what, dq_err *err)
{
    return parse(out, text, len, what, DOCUMENT, err);
}

dq_status dq_json_parse_config(json_t **out, const char *text, size_t len, const char *what,
                               dq_err *err)
{
    return parse(out, text, len, what, CONFIG, err);
}

dq_status dq_json_parse_line(json_t **out, const char *text, size_t len, const char *what,
                             dq_err *err)
{
    return parse(out, text, len, what, LINE, err);
}

bool dq_json_whole(int64_t *out, const json_t *v)
{
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    const double x = json_real_value(v); /* 0 for what is no real */
    if (!json_is_real(v) || fabs(x) > 9007199254740992.0 || x != floor(x)) return false;
    *out = (int64_t)x;
    return true;
}

/* NULL when absent or null. */
static json_t *member(const json_t *object, const char *key)
{
    json_t *v = json_object_get(object, key);
    return v && !json_is_null(v) ? v : NULL;
}

static const char *type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a real number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    default: return "null";
    }
}

static dq_status absent(const char *key, dq_err *err)
{
    return dq_fail(err, DQ_DAMAGED, "key \"%s\" is missing", key);
}

static dq_status wrong_type(const char *key, const char *want, const json_t *v, dq_err *err)
{
    return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected %s, found %s", key, want, type_name(v));
}

dq_status dq_json_wrong(const char *key, const char *expected, const json_t *found, dq_err *err)
{
    const bool shown = json_is_string(found) || json_is_number(found) || json_is_boolean(found);
    char *text = shown ? json_dumps(found, JSON_ENCODE_ANY | JSON_ENSURE_ASCII) : NULL;
    dq_fail(err, DQ_DAMAGED, "key \"%s\": expected %s, found %.80s", key, expected,
            text    ? text
            : found ? type_name(found)
                    : "nothing");
    free(text);
    return err->code;
}

dq_status dq_json_int(int64_t *out, const json_t *object, const char *key, int64_t min, int64_t max,
                      const int64_t *fallback, dq_err *err)
{
    const json_t *v = member(object, key);
    if (!v && fallback) *out = *fallback;
    if (!v) return fallback ? DQ_OK : absent(key, err);
    int64_t x;
    if (!dq_json_whole(&x, v)) return wrong_type(key, "an integer", v, err);
    if (x < min || x > max)
        return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected %lld to %lld, found %lld", key,
                       (long long)min, (long long)max, (long long)x);
    *out = x;
    return DQ_OK;
}

dq_status dq_json_float(double *out, const json_t *object, const char *key, const double *fallback,
                        dq_err *err)
{
    const json_t *v = member(object, key);
    if (!v && fallback) *out = *fallback;
    if (!v) return fallback ? DQ_OK : absent(key, err);
    if (!json_is_number(v)) return wrong_type(key, "a number", v, err);
    *out = json_number_value(v);
    if (!(fabs(*out) < DBL_MAX))
        return dq_fail(err, DQ_DAMAGED, "key \"%s\": the number is too large, or not finite", key);
    return DQ_OK;
}

dq_status dq_json_bool(bool *out, const json_t *object, const char *key, const bool *fallback,
                       dq_err *err)
{
    const json_t *v = member(object, key);
    if (!v && fallback) *out = *fallback;
    if (!v) return fallback ? DQ_OK : absent(key, err);
    if (!json_is_boolean(v)) return wrong_type(key, "a boolean", v, err);
    *out = json_is_true(v);
    return DQ_OK;
}

dq_status dq_json_text(const char **out, const json_t *object, const char *key,
                       const char *const *fallback, dq_err *err)
{
    const json_t *v = member(object, key);
    if (!v && fallback) *out = *fallback;
    if (!v) return fallback ? DQ_OK : absent(key, err);
    if (!json_is_string(v)) return wrong_type(key, "a string", v, err);
    if (strlen(json_string_value(v)) != json_string_length(v))
        return dq_fail(err, DQ_DAMAGED, "key \"%s\": the string contains a NUL", key);
    *out = json_string_value(v);
    return DQ_OK;
}

dq_status dq_json_dump(char **text, const json_t *v, size_t flags, dq_err *err)
{
    *text = v ? json_dumps(v, flags) : NULL;
    if (!*text) {
        dq_json_complete(err);
        return dq_fail(err, v ? DQ_BUG : DQ_RESOURCE,
                       v ? "JSON cannot be written" : "out of memory");
    }
    if (dq_json_complete(err) == DQ_OK) return DQ_OK;
    free(*text);
    *text = NULL;
    return err->code;
}

/* One walk counts brackets outside strings and notes where members of depth one begin and end; the
 * text is valid JSON. */

/* Offsets into the text; npos: none. */
typedef struct places {
    size_t comma;         /* before the member found, npos: it is the first */
    size_t begin, at;     /* of the member's key, and of its value; npos: there is no such member */
    size_t end;           /* after its value */
    size_t next;          /* the comma after it, npos: it is the last */
    size_t last, closing; /* after the last member (npos: there is none), and the last bracket */
} places;
static const size_t npos = (size_t)-1;

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static size_t skip_blank(const char *s, size_t i, size_t len)
{
    while (i < len && is_blank(s[i])) i++;
    return i;
}

static size_t skip_string(const char *s, size_t i, size_t len)
{
    for (i++; i < len && s[i] != '"'; i++) i += s[i] == '\\';
    return i + 1;
}

static size_t skip_value(const char *s, size_t i, size_t len)
{
    int depth = 0;
    while (i < len) {
        if (s[i] == '"') {
            i = skip_string(s, i, len);
            if (depth == 0) return i;
            continue;
        }
        if (depth == 0 && (s[i] == ',' || s[i] == '}' || s[i] == ']' || is_blank(s[i]))) return i;
        depth += s[i] == '{' || s[i] == '[';
        depth -= s[i] == '}' || s[i] == ']';
        i++;
        if (depth == 0 && (s[i - 1] == '}' || s[i - 1] == ']')) return i;
    }
    return len;
}

static dq_status add(dq_strbuf *out, const char *s, dq_err *err)
{
    return dq_strbuf_add(out, s, strlen(s), err);
}

dq_status dq_json_edit_member(dq_strbuf *out, const char *text, size_t len, const char *key,
                              const char *value, dq_err *err)
{
    places p = {npos, npos, npos, npos, npos, npos, len};
    const size_t n = strlen(key);
    size_t comma = npos, i = 0;
    while (i < len && text[i] != '{') i++;
    for (i = skip_blank(text, i + 1, len); i < len && text[i] == '"';) {
        const size_t begin = i, after = skip_string(text, i, len);
        const bool found = after - begin == n + 2 && memcmp(text + begin + 1, key, n) == 0;
        const size_t colon = skip_blank(text, after, len), at = skip_blank(text, colon + 1, len);
        const size_t end = skip_value(text, at, len), next = skip_blank(text, end, len);
        const bool more = next < len && text[next] == ',';
        if (found) {
            p.comma = comma;
            p.begin = begin;
            p.at = at;
            p.end = end;
            p.next = more ? next : npos;
        }
        p.last = end;
        comma = next;
        i = more ? skip_blank(text, next + 1, len) : next;
    }
    p.closing = i < len ? i : len;
    const bool found = p.begin != npos;
    if (!value && !found) return dq_strbuf_add(out, text, len, err);
    if (!value) {
        size_t from = p.begin, to = p.end;
        if (p.comma != npos)
            from = p.comma;
        else if (p.next != npos)
            to = skip_blank(text, p.next + 1, len);
        DQ_TRY(dq_strbuf_add(out, text, from, err));
        return dq_strbuf_add(out, text + to, len - to, err);
    }
    const size_t from = found ? p.at : p.last != npos ? p.last : p.closing;
    const size_t to = found ? p.end : from;
    DQ_TRY(dq_strbuf_add(out, text, from, err));
    if (!found) {
        DQ_TRY(add(out, p.last != npos ? ",\n  \"" : "\n  \"", err));
        DQ_TRY(add(out, key, err));
        DQ_TRY(add(out, "\": ", err));
    }
    const char *s = value;
    for (const char *end; (end = strchr(s, '\n')); s = end + 1) {
        DQ_TRY(dq_strbuf_add(out, s, (size_t)(end - s) + 1, err));
        DQ_TRY(add(out, "  ", err));
    }
    DQ_TRY(add(out, s, err));
    return dq_strbuf_add(out, text + to, len - to, err);
}
