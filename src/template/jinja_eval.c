/* Values, and what a template does with them. Parts of a string point into it; what is put together
 * is captured as output is.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "template/inside.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Longest text: 4 million tokens, 32 times what a model of 131072 positions reads. */
enum { DQ_JINJA_MAX_TEXT = 16 << 20 };

int64_t dq_jinja_strings_int(dq_jinja_run *r, const dq_jinja_value *v, int64_t fallback)
{
    if (v->kind == DQ_JINJA_ABSENT || v->kind == DQ_JINJA_NONE) return fallback;
    if (dq_jinja_is_integer(v)) return dq_jinja_integer(v);
    dq_jinja_fail(r, DQ_DAMAGED, "expected an integer, found '%s'", dq_jinja_type(v));
    return fallback;
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

/* Every allocation and every loop over bytes or items counts as work, so that one limit bounds time
 * and memory; other limits bound the depth and each text. */

enum { MAX_DEPTH = 1000, ALLOCATION = 64, BETWEEN_LOOKS = 1 << 16 };

dq_jinja_value dq_jinja_fail(dq_jinja_run *r, dq_status code, const char *fmt, ...)
{
    char text[sizeof r->err->text];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    dq_fail(r->err, code, "%s, line %d: %s", r->member ? r->member : "chat template", r->line,
            text);
    return (dq_jinja_value){0};
}

dq_jinja_value dq_jinja_fail_undefined(dq_jinja_run *r, const dq_jinja_value *v)
{
    if (v->of_key)
        dq_fail(r->err, DQ_DAMAGED, "key \"%.*s\" is missing", (int)v->text.n, v->text.s);
    return dq_jinja_fail(r, DQ_DAMAGED, "%.*s", (int)v->text.n, v->text.s);
}

bool dq_jinja_ok(const dq_jinja_run *r)
{
    return r->err->code == DQ_OK;
}

bool dq_jinja_spend(dq_jinja_run *r, size_t work)
{
    const size_t before = r->work;
    if (work < DQ_JINJA_MAX_WORK && before < DQ_JINJA_MAX_WORK - work)
        r->work += work;
    else
        dq_jinja_fail(r, DQ_MISMATCH, "the template takes too much work or memory (limit %d bytes)",
                      DQ_JINJA_MAX_WORK);
    if (before / BETWEEN_LOOKS != r->work / BETWEEN_LOOKS) dq_os_check_stop(r->err);
    return dq_jinja_ok(r);
}

/* Enters a nested node or value and returns dq_jinja_ok; --r->depth leaves it. */
static bool enter(dq_jinja_run *r)
{
    if (r->depth++ >= MAX_DEPTH)
        dq_jinja_fail(r, DQ_MISMATCH, "calls or values nest too deeply (limit %d)", MAX_DEPTH);
    return dq_jinja_ok(r);
}

void *dq_jinja_alloc(dq_jinja_run *r, size_t n, size_t size)
{
    size_t bytes;
    if (!dq_mul_ok(&bytes, n, size) || bytes > DQ_JINJA_MAX_WORK) bytes = DQ_JINJA_MAX_WORK;
    return dq_jinja_spend(r, bytes + ALLOCATION) ? dq_alloc(r->arena, n, size, r->err) : NULL;
}

/* Space for one more; abandoned memory counts as work. */
static void *grow(dq_jinja_run *r, void *list, size_t n, size_t *capacity, size_t size)
{
    if (list && n < *capacity) return list;
    if (!dq_jinja_spend(r, (2 * n + 16) * size)) return NULL;
    return dq_grow(r->arena, list, n + 1, capacity, size, r->err);
}

static bool fits_text(dq_jinja_run *r, size_t have, size_t more)
{
    if (more > DQ_JINJA_MAX_TEXT || have > DQ_JINJA_MAX_TEXT - more)
        dq_jinja_fail(r, DQ_MISMATCH, "the template makes a text of more than %d bytes",
                      DQ_JINJA_MAX_TEXT);
    return dq_jinja_ok(r);
}

/* NULL on failure, DQ_MISMATCH above DQ_JINJA_MAX_TEXT. */
static char *alloc_text(dq_jinja_run *r, size_t n)
{
    return fits_text(r, 0, n) ? dq_jinja_alloc(r, n, 1) : NULL;
}

void dq_jinja_put(dq_jinja_run *r, const char *s, size_t n)
{
    if (dq_jinja_spend(r, n + DQ_JINJA_PIECE) && n && fits_text(r, r->out->n, n))
        dq_strbuf_add(r->out, s, n, r->err);
}

dq_strbuf *dq_jinja_capture(dq_jinja_run *r, dq_strbuf *mine)
{
    dq_strbuf *before = r->out;
    *mine = (dq_strbuf){0};
    r->out = mine;
    return before;
}

dq_jinja_value dq_jinja_captured(dq_jinja_run *r, dq_strbuf *mine, dq_strbuf *before)
{
    const size_t n = mine->n;
    char *s = alloc_text(r, n);
    if (s && n) memcpy(s, mine->s, n);
    dq_block_free(mine->s);
    r->out = before;
    return s ? dq_jinja_string(s, n) : (dq_jinja_value){0};
}

dq_jinja_text dq_jinja_text_of(const char *s)
{
    return (dq_jinja_text){s, strlen(s)};
}

static bool has_bytes(dq_jinja_text a, dq_jinja_text b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.s, b.s, a.n) == 0);
}

bool dq_jinja_text_is(dq_jinja_text t, const char *s)
{
    return has_bytes(t, dq_jinja_text_of(s));
}

bool dq_jinja_text_same(dq_jinja_run *r, dq_jinja_text a, dq_jinja_text b)
{
    return dq_jinja_spend(r, DQ_JINJA_PIECE + (a.n == b.n ? a.n : 0)) && has_bytes(a, b);
}

static int order_texts(dq_jinja_run *r, dq_jinja_text a, dq_jinja_text b)
{
    const size_t n = a.n < b.n ? a.n : b.n;
    if (!dq_jinja_spend(r, DQ_JINJA_PIECE + n)) return 0;
    const int c = n ? memcmp(a.s, b.s, n) : 0; /* bytes of UTF-8 are in the order of characters */
    return c ? (c > 0) - (c < 0) : (a.n > b.n) - (a.n < b.n);
}

uint32_t dq_jinja_text_next(dq_jinja_run *r, dq_jinja_text t, size_t *at)
{
    size_t bytes = t.n - *at;
    const bool ok = dq_jinja_spend(r, DQ_JINJA_CHARACTER);
    const uint32_t c = ok ? dq_utf8_first(t.s + *at, &bytes) : 0;
    *at += bytes;
    return c;
}

dq_jinja_value dq_jinja_bool(bool truth)
{
    return (dq_jinja_value){.kind = DQ_JINJA_BOOL, .truth = truth};
}

dq_jinja_value dq_jinja_int(int64_t i)
{
    return (dq_jinja_value){.kind = DQ_JINJA_INT, .i = i};
}

dq_jinja_value dq_jinja_float(double f)
{
    return (dq_jinja_value){.kind = DQ_JINJA_FLOAT, .f = f};
}

dq_jinja_value dq_jinja_string(const char *s, size_t n)
{
    return (dq_jinja_value){.kind = DQ_JINJA_STRING, .text = {s, n}};
}

dq_jinja_value dq_jinja_undefined(dq_jinja_run *r, const char *fmt, ...)
{
    char text[300];
    va_list args;
    va_start(args, fmt);
    const int whole = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (!dq_jinja_spend(r, DQ_JINJA_SEARCH + (whole > 0 ? (size_t)whole : 0)))
        return (dq_jinja_value){0};
    const size_t n = strlen(text);
    char *s = dq_jinja_alloc(r, n + 1, 1);
    if (!s) return (dq_jinja_value){0};
    memcpy(s, text, n);
    return (dq_jinja_value){.kind = DQ_JINJA_UNDEFINED, .text = {s, n}};
}

dq_jinja_value dq_jinja_no_key(dq_jinja_text key)
{
    return (dq_jinja_value){.kind = DQ_JINJA_UNDEFINED, .of_key = true, .text = key};
}

const char *dq_jinja_type(const dq_jinja_value *v)
{
    static const char *const name[DQ_JINJA_KINDS] = {
        [DQ_JINJA_ABSENT] = "absent",
        [DQ_JINJA_UNDEFINED] = "Undefined",
        [DQ_JINJA_NONE] = "NoneType",
        [DQ_JINJA_BOOL] = "bool",
        [DQ_JINJA_INT] = "int",
        [DQ_JINJA_FLOAT] = "float",
        [DQ_JINJA_STRING] = "str",
        [DQ_JINJA_LIST] = "list",
        [DQ_JINJA_TUPLE] = "tuple",
        [DQ_JINJA_RANGE] = "range",
        [DQ_JINJA_VIEW] = "dict view",
        [DQ_JINJA_ITERATOR] = "generator",
        [DQ_JINJA_DICT] = "dict",
        [DQ_JINJA_NAMESPACE] = "jinja2.utils.Namespace",
        [DQ_JINJA_LOOP] = "jinja2.runtime.LoopContext",
        [DQ_JINJA_MACRO] = "jinja2.runtime.Macro",
        [DQ_JINJA_FUNCTION] = "function",
        [DQ_JINJA_METHOD] = "builtin_function_or_method",
    };
    return v->is_safe ? "markupsafe.Markup" : name[v->kind];
}

static bool is_list(const dq_jinja_value *v)
{
    return v->kind >= DQ_JINJA_LIST && v->kind <= DQ_JINJA_ITERATOR;
}

bool dq_jinja_is_integer(const dq_jinja_value *v)
{
    return v->kind == DQ_JINJA_INT || v->kind == DQ_JINJA_BOOL;
}

int64_t dq_jinja_integer(const dq_jinja_value *v)
{
    return v->kind == DQ_JINJA_BOOL ? v->truth : v->i;
}

dq_jinja_value dq_jinja_list_new(dq_jinja_run *r, dq_jinja_kind kind, size_t n)
{
    dq_jinja_list *l = dq_jinja_alloc(r, 1, sizeof *l);
    dq_jinja_value *item = l ? dq_jinja_alloc(r, n, sizeof *item) : NULL;
    if (!item) return (dq_jinja_value){0};
    *l = (dq_jinja_list){.item = item, .capacity = n};
    return (dq_jinja_value){.kind = kind, .list = l};
}

void dq_jinja_list_add(dq_jinja_run *r, dq_jinja_list *l, dq_jinja_value item)
{
    dq_jinja_value *more =
        dq_jinja_ok(r) ? grow(r, l->item, l->n, &l->capacity, sizeof *more) : NULL;
    if (!more) return;
    l->item = more;
    l->item[l->n++] = item;
}

dq_jinja_value dq_jinja_dict_new(dq_jinja_run *r, dq_jinja_kind kind)
{
    dq_jinja_dict *d = dq_jinja_alloc(r, 1, sizeof *d);
    return d ? (dq_jinja_value){.kind = kind, .dict = d} : (dq_jinja_value){0};
}

dq_jinja_value *dq_jinja_dict_get(dq_jinja_run *r, const dq_jinja_dict *d, dq_jinja_text key)
{
    if (!dq_jinja_spend(r, DQ_JINJA_PIECE)) return NULL;
    for (size_t i = 0; i < d->n; i++) {
        if (dq_jinja_text_same(r, d->entry[i].key, key)) return &d->entry[i].value;
        if (!dq_jinja_ok(r)) break;
    }
    return NULL;
}

void dq_jinja_dict_put(dq_jinja_run *r, dq_jinja_dict *d, dq_jinja_text key, dq_jinja_value value)
{
    dq_jinja_value *old = dq_jinja_dict_get(r, d, key);
    if (old) *old = value;
    if (old || !dq_jinja_ok(r)) return;
    dq_jinja_entry *more = grow(r, d->entry, d->n, &d->capacity, sizeof *more);
    if (!more) return;
    d->entry = more;
    d->entry[d->n++] = (dq_jinja_entry){key, value};
}

dq_jinja_list dq_jinja_items(dq_jinja_run *r, const dq_jinja_value *v)
{
    dq_jinja_list out = {0};
    if (v->kind == DQ_JINJA_STRING) {
        for (size_t at = 0, from = 0; at < v->text.n && dq_jinja_ok(r); from = at) {
            dq_jinja_text_next(r, v->text, &at);
            dq_jinja_list_add(r, &out, dq_jinja_string(v->text.s + from, at - from));
        }
    } else if (v->kind == DQ_JINJA_DICT) {
        for (size_t i = 0; i < v->dict->n; i++) {
            const dq_jinja_text key = v->dict->entry[i].key;
            dq_jinja_list_add(r, &out, dq_jinja_string(key.s, key.n));
        }
    } else if (is_list(v)) {
        out = *v->list;
        if (v->kind == DQ_JINJA_ITERATOR) v->list->n = 0;
    } else if (v->kind != DQ_JINJA_UNDEFINED) {
        dq_jinja_fail(r, DQ_DAMAGED, "'%s' object is not iterable", dq_jinja_type(v));
    }
    dq_jinja_spend(r, DQ_JINJA_PIECE * out.n);
    return out;
}

size_t dq_jinja_length(dq_jinja_run *r, const dq_jinja_value *v)
{
    if (v->kind == DQ_JINJA_UNDEFINED) return 0;
    if (v->kind == DQ_JINJA_DICT) return v->dict->n;
    if (is_list(v) && v->kind != DQ_JINJA_ITERATOR) return v->list->n;
    if (v->kind == DQ_JINJA_STRING)
        return dq_jinja_spend(r, v->text.n) ? (size_t)dq_utf8_count(v->text.s, v->text.n) : 0;
    dq_jinja_fail(r, DQ_DAMAGED, "object of type '%s' has no len()", dq_jinja_type(v));
    return 0;
}

bool dq_jinja_truth(const dq_jinja_value *v)
{
    switch (v->kind) {
    case DQ_JINJA_ABSENT:
    case DQ_JINJA_UNDEFINED:
    case DQ_JINJA_NONE: return false;
    case DQ_JINJA_BOOL:
    case DQ_JINJA_INT: return dq_jinja_integer(v) != 0;
    case DQ_JINJA_FLOAT: return v->f < 0 || v->f > 0 || v->f != v->f;
    case DQ_JINJA_STRING: return v->text.n > 0;
    case DQ_JINJA_DICT: return v->dict->n > 0;
    default: return !is_list(v) || v->kind == DQ_JINJA_ITERATOR || v->list->n > 0;
    }
}

static bool is_number(const dq_jinja_value *v)
{
    return dq_jinja_is_integer(v) || v->kind == DQ_JINJA_FLOAT;
}

/* Compared with a real, an integer beyond 2^53 counts as the nearest double. */
static int order_numbers(const dq_jinja_value *a, const dq_jinja_value *b)
{
    if (dq_jinja_is_integer(a) && dq_jinja_is_integer(b)) {
        const int64_t i = dq_jinja_integer(a), k = dq_jinja_integer(b);
        return (i > k) - (i < k);
    }
    const double x = a->kind == DQ_JINJA_FLOAT ? a->f : (double)dq_jinja_integer(a);
    const double y = b->kind == DQ_JINJA_FLOAT ? b->f : (double)dq_jinja_integer(b);
    return x != x || y != y ? 2 : (x > y) - (x < y);
}

static bool equal_lists(dq_jinja_run *r, const dq_jinja_list *a, const dq_jinja_list *b)
{
    bool same = a->n == b->n;
    for (size_t i = 0; i < a->n && same; i++) same = dq_jinja_equal(r, &a->item[i], &b->item[i]);
    return same;
}

static bool equal_dicts(dq_jinja_run *r, const dq_jinja_dict *a, const dq_jinja_dict *b)
{
    bool same = a->n == b->n;
    for (size_t i = 0; i < a->n && same; i++) {
        const dq_jinja_value *other = dq_jinja_dict_get(r, b, a->entry[i].key);
        same = other && dq_jinja_equal(r, &a->entry[i].value, other);
    }
    return same;
}

bool dq_jinja_equal(dq_jinja_run *r, const dq_jinja_value *a, const dq_jinja_value *b)
{
    bool same = false;
    if (!dq_jinja_spend(r, DQ_JINJA_PIECE) || !enter(r)) return false;
    if (is_number(a) && is_number(b)) {
        same = order_numbers(a, b) == 0;
    } else if (a->kind == b->kind) {
        if (a->kind == DQ_JINJA_STRING)
            same = dq_jinja_text_same(r, a->text, b->text);
        else if (a->kind == DQ_JINJA_DICT)
            same = equal_dicts(r, a->dict, b->dict);
        else if (a->kind >= DQ_JINJA_LIST && a->kind <= DQ_JINJA_RANGE)
            same = equal_lists(r, a->list, b->list);
        else /* undefined and None; others are equal to themselves */
            same = a->kind <= DQ_JINJA_NONE || (const void *)a->list == (const void *)b->list;
    }
    r->depth--;
    return same;
}

static int order_lists(dq_jinja_run *r, const dq_jinja_list *a, const dq_jinja_list *b)
{
    for (size_t i = 0; i < a->n && i < b->n && dq_jinja_ok(r); i++) {
        if (!dq_jinja_equal(r, &a->item[i], &b->item[i]))
            return dq_jinja_order(r, &a->item[i], &b->item[i]);
    }
    return (a->n > b->n) - (a->n < b->n);
}

int dq_jinja_order(dq_jinja_run *r, const dq_jinja_value *a, const dq_jinja_value *b)
{
    int order = 0;
    if (!dq_jinja_spend(r, DQ_JINJA_PIECE) || !enter(r)) return 0;
    if (a->kind == DQ_JINJA_UNDEFINED || b->kind == DQ_JINJA_UNDEFINED)
        dq_jinja_fail_undefined(r, a->kind == DQ_JINJA_UNDEFINED ? a : b);
    else if (is_number(a) && is_number(b))
        order = order_numbers(a, b);
    else if (a->kind == DQ_JINJA_STRING && b->kind == DQ_JINJA_STRING)
        order = order_texts(r, a->text, b->text);
    else if (a->kind == b->kind && (a->kind == DQ_JINJA_LIST || a->kind == DQ_JINJA_TUPLE))
        order = order_lists(r, a->list, b->list);
    else
        dq_jinja_fail(r, DQ_DAMAGED, "'%s' and '%s' have no order", dq_jinja_type(a),
                      dq_jinja_type(b));
    r->depth--;
    return order;
}

/* One walk over a value writes both forms: with a dq_jinja_json it writes JSON, without one what
 * repr() gives. A real has the fewest digits that read back as itself, in Python's places. */

static void put(dq_jinja_run *r, const char *s)
{
    dq_jinja_put(r, s, strlen(s));
}

static void put_real(dq_jinja_run *r, double x, bool json)
{
    enum { DIGITS = 17, FIXED = 16 };
    char text[64], *e;
    int digits = 1, exponent;
    if (x != x) {
        put(r, json ? "NaN" : "nan");
        return;
    }
    if (isinf(x)) {
        if (x < 0) put(r, "-");
        put(r, json ? "Infinity" : "inf");
        return;
    }
    if (!dq_jinja_spend(r, DQ_JINJA_DIVISION)) return;
    do snprintf(text, sizeof text, "%.*e", digits - 1, x);
    while (strtod(text, NULL) != x && digits++ < DIGITS);
    e = strchr(text, 'e');
    exponent = atoi(e + 1);
    if (exponent < -4 || exponent >= FIXED)
        snprintf(e, sizeof text - (size_t)(e - text), "e%+03d", exponent);
    else
        snprintf(text, sizeof text, "%.*f", digits - 1 > exponent ? digits - 1 - exponent : 1, x);
    put(r, text);
}

static bool is_printable(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return c == ' ';
    default: return true;
    }
}

/* \, the letter and so many hexadecimal digits; returns the place after them. */
static char *escape_number(char *out, char letter, uint32_t c, int digits)
{
    *out++ = '\\';
    *out++ = letter;
    while (digits-- > 0) *out++ = "0123456789abcdef"[c >> 4 * digits & 15];
    *out = 0;
    return out;
}

/* \n and its like, \xHH, \uHHHH, \UHHHHHHHH, of JSON pairs of surrogates; no text: the character
 * stands for itself. */
static void escape(char out[16], uint32_t c, char quote, const dq_jinja_json *json)
{
    const char *all = json ? "\nn\rr\tt\bb\ff" : "\nn\rr\tt", *s = all;
    while (*s && (uint32_t)*s != c) s += 2;
    out[0] = 0;
    if (c == '\\' || c == (uint8_t)quote)
        escape_number(out, (char)c, 0, 0);
    else if (*s)
        escape_number(out, s[1], 0, 0);
    else if (json ? c >= 0x20 && (!json->ascii || c < 0x7F) : is_printable(c))
        return;
    else if (json && c > 0xFFFF)
        escape_number(escape_number(out, 'u', 0xD7C0 + (c >> 10), 4), 'u', 0xDC00 + (c & 0x3FF), 4);
    else if (!json && c < 0x100)
        escape_number(out, 'x', c, 2);
    else
        escape_number(out, c > 0xFFFF ? 'U' : 'u', c, c > 0xFFFF ? 8 : 4);
}

static void put_string(dq_jinja_run *r, dq_jinja_text t, const dq_jinja_json *json)
{
    const bool single = t.n && memchr(t.s, '\'', t.n), twice = t.n && memchr(t.s, '"', t.n);
    const char quote = json || (single && !twice) ? '"' : '\'';
    dq_jinja_put(r, &quote, 1);
    for (size_t at = 0, from = 0; at < t.n && dq_jinja_ok(r); from = at) {
        char text[16];
        escape(text, dq_jinja_text_next(r, t, &at), quote, json);
        dq_jinja_put(r, text[0] ? text : t.s + from, text[0] ? strlen(text) : at - from);
    }
    dq_jinja_put(r, &quote, 1);
}

static void put_value(dq_jinja_run *r, const dq_jinja_value *v, const dq_jinja_json *json,
                      int level);

static void put_line(dq_jinja_run *r, const dq_jinja_json *json, int level)
{
    if (!json || !json->indent.s) return;
    put(r, "\n");
    for (int i = 0; i < level; i++) dq_jinja_put(r, json->indent.s, json->indent.n);
}

static void put_before(dq_jinja_run *r, const dq_jinja_json *json, int level, size_t i)
{
    static const dq_jinja_text comma = {", ", 2};
    const dq_jinja_text between = json ? json->between : comma;
    if (i > 0) dq_jinja_put(r, between.s, between.n);
    put_line(r, json, level);
}

static void put_list(dq_jinja_run *r, const dq_jinja_value *v, const dq_jinja_json *json, int level)
{
    const bool tuple = !json && v->kind == DQ_JINJA_TUPLE;
    put(r, tuple ? "(" : "[");
    for (size_t i = 0; i < v->list->n && dq_jinja_ok(r); i++) {
        put_before(r, json, level + 1, i);
        put_value(r, &v->list->item[i], json, level + 1);
    }
    if (v->list->n) put_line(r, json, level);
    if (tuple && v->list->n == 1) put(r, ",");
    put(r, tuple ? ")" : "]");
}

static void put_dict(dq_jinja_run *r, const dq_jinja_dict *d, const dq_jinja_json *json, int level)
{
    dq_jinja_entry *e = dq_jinja_alloc(r, d->n, sizeof *e);
    if (!e) return;
    if (d->n) memcpy(e, d->entry, d->n * sizeof *e);
    if (json && json->sorted) {
        for (size_t i = 1; i < d->n && dq_jinja_ok(r); i++) {
            const dq_jinja_entry one = e[i];
            size_t at = i;
            for (; at > 0 && order_texts(r, one.key, e[at - 1].key) < 0; at--) e[at] = e[at - 1];
            e[at] = one;
        }
    }
    put(r, "{");
    for (size_t i = 0; i < d->n && dq_jinja_ok(r); i++) {
        put_before(r, json, level + 1, i);
        put_string(r, e[i].key, json);
        dq_jinja_put(r, json ? json->colon.s : ": ", json ? json->colon.n : 2);
        put_value(r, &e[i].value, json, level + 1);
    }
    if (d->n) put_line(r, json, level);
    put(r, "}");
}

static void put_other(dq_jinja_run *r, const dq_jinja_value *v, const dq_jinja_json *json)
{
    if (r->member && v->kind == DQ_JINJA_UNDEFINED)
        dq_jinja_fail_undefined(r, v);
    else if (json)
        dq_jinja_fail(r, DQ_DAMAGED, "Object of type %s is not JSON serializable",
                      dq_jinja_type(v));
    else if (v->kind == DQ_JINJA_UNDEFINED)
        put(r, "Undefined");
    else
        dq_jinja_fail(r, DQ_MISMATCH, "printing a value of type '%s' is not supported",
                      dq_jinja_type(v));
}

static void put_value(dq_jinja_run *r, const dq_jinja_value *v, const dq_jinja_json *json,
                      int level)
{
    char text[32];
    if (!dq_jinja_spend(r, DQ_JINJA_STEP) || !enter(r)) return;
    switch (v->kind) {
    case DQ_JINJA_NONE: put(r, json ? "null" : "None"); break;
    case DQ_JINJA_BOOL:
        put(r, v->truth ? (json ? "true" : "True") : (json ? "false" : "False"));
        break;
    case DQ_JINJA_INT:
        snprintf(text, sizeof text, "%lld", (long long)v->i);
        put(r, text);
        break;
    case DQ_JINJA_FLOAT: put_real(r, v->f, json != NULL); break;
    case DQ_JINJA_STRING:
        if (v->is_safe && !json)
            dq_jinja_fail(r, DQ_MISMATCH, "printing what safe gives within a list or dict");
        put_string(r, v->text, json);
        break;
    case DQ_JINJA_LIST:
    case DQ_JINJA_TUPLE: put_list(r, v, json, level); break;
    case DQ_JINJA_DICT: put_dict(r, v->dict, json, level); break;
    default: put_other(r, v, json); break;
    }
    r->depth--;
}

/* Puts str(v); DQ_MISMATCH: Python has no own text for it (a loop, a macro). */
static void print(dq_jinja_run *r, const dq_jinja_value *v)
{
    if (v->kind == DQ_JINJA_STRING)
        dq_jinja_put(r, v->text.s, v->text.n);
    else if (v->kind != DQ_JINJA_UNDEFINED)
        put_value(r, v, NULL, 0);
    else
        dq_jinja_put(r, "", 0);
}

dq_jinja_value dq_jinja_strings_join(dq_jinja_run *r, dq_jinja_text between,
                                     const dq_jinja_list *items)
{
    dq_strbuf mine, *before = dq_jinja_capture(r, &mine);
    for (size_t i = 0; i < items->n && dq_jinja_ok(r); i++) {
        if (i > 0) dq_jinja_put(r, between.s, between.n);
        print(r, &items->item[i]);
    }
    return dq_jinja_captured(r, &mine, before);
}

dq_jinja_text dq_jinja_print_text(dq_jinja_run *r, const dq_jinja_value *v)
{
    dq_strbuf mine, *before;
    if (v->kind == DQ_JINJA_STRING) return v->text;
    before = dq_jinja_capture(r, &mine);
    print(r, v);
    return dq_jinja_captured(r, &mine, before).text;
}

dq_jinja_value dq_jinja_print_json(dq_jinja_run *r, const dq_jinja_value *v,
                                   const dq_jinja_json *form)
{
    dq_strbuf mine, *before = dq_jinja_capture(r, &mine);
    put_value(r, v, form, 0);
    return dq_jinja_captured(r, &mine, before);
}

/* Integers are checked, since Python's have no end; a comparison goes by the order or the equality
 * of values. */

static dq_jinja_value evaluate_node(dq_jinja_run *r, const dq_jinja_node *n);
static dq_jinja_value call_macro(dq_jinja_run *r, const struct dq_jinja_macro *m,
                                 const dq_jinja_call *c);
static void assign(dq_jinja_run *r, const dq_jinja_node *target, dq_jinja_value v);

/* By repeated products; false on overflow. */
static bool power(int64_t a, int64_t b, int64_t *out)
{
    *out = 1;
    if (b > 64) b = a == 0 || a == 1 || a == -1 ? 2 + b % 2 : 64;
    for (; b > 0; b--) {
        if (__builtin_mul_overflow(*out, a, out)) return false;
    }
    return true;
}

static dq_jinja_value integers(dq_jinja_run *r, dq_jinja_operation operation, int64_t a, int64_t b)
{
    int64_t c = 0;
    bool over = false;
    const bool divides = operation == DQ_JINJA_FLOOR_DIVIDE || operation == DQ_JINJA_MODULO;
    if (divides && b == 0) return dq_jinja_fail(r, DQ_DAMAGED, "division by zero");
    switch (operation) {
    case DQ_JINJA_ADD: over = __builtin_add_overflow(a, b, &c); break;
    case DQ_JINJA_SUBTRACT: over = __builtin_sub_overflow(a, b, &c); break;
    case DQ_JINJA_MULTIPLY: over = __builtin_mul_overflow(a, b, &c); break;
    case DQ_JINJA_POWER: over = !power(a, b, &c); break;
    default:
        over = a == INT64_MIN && b == -1;
        if (!over) {
            const int64_t q = a / b;
            c = a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
        }
        if (operation == DQ_JINJA_MODULO) c = over ? 0 : a - b * c;
        break;
    }
    if (over) return dq_jinja_fail(r, DQ_MISMATCH, "an integer beyond 64 bits is not supported");
    return dq_jinja_int(c);
}

/* As in Python, the rest has b's sign. */
static double floor_divide_reals(double a, double b, double *rest)
{
    double q;
    *rest = fmod(a, b);
    q = (a - *rest) / b;
    if (*rest != 0 && (b < 0) != (*rest < 0)) {
        *rest += b;
        q -= 1;
    } else if (*rest == 0) {
        *rest = copysign(0.0, b);
    }
    if (q == 0) return copysign(0.0, a / b);
    return q - floor(q) > 0.5 ? floor(q) + 1 : floor(q);
}

static dq_jinja_value reals(dq_jinja_run *r, dq_jinja_operation operation, double a, double b)
{
    const bool divides = operation >= DQ_JINJA_DIVIDE && operation <= DQ_JINJA_MODULO;
    double rest, c = 0;
    if (divides && !dq_jinja_spend(r, DQ_JINJA_DIVISION)) return (dq_jinja_value){0};
    if ((divides && b == 0) || (operation == DQ_JINJA_POWER && a == 0 && b < 0))
        return dq_jinja_fail(r, DQ_DAMAGED, "division by zero");
    switch (operation) {
    case DQ_JINJA_ADD: c = a + b; break;
    case DQ_JINJA_SUBTRACT: c = a - b; break;
    case DQ_JINJA_MULTIPLY: c = a * b; break;
    case DQ_JINJA_DIVIDE: c = a / b; break;
    case DQ_JINJA_FLOOR_DIVIDE: c = floor_divide_reals(a, b, &rest); break;
    case DQ_JINJA_MODULO: floor_divide_reals(a, b, &c); break;
    default:
        c = pow(a, b);
        if (isfinite(a) && isfinite(b) && isinf(c))
            return dq_jinja_fail(r, DQ_DAMAGED, "a power is too large");
        if (a < 0 && c != c)
            return dq_jinja_fail(r, DQ_MISMATCH, "complex numbers are not supported");
        break;
    }
    return dq_jinja_float(c);
}

static double real(const dq_jinja_value *v)
{
    return v->kind == DQ_JINJA_FLOAT ? v->f : (double)dq_jinja_integer(v);
}

static dq_jinja_value repeat(dq_jinja_run *r, const dq_jinja_value *v, int64_t times)
{
    if (v->kind == DQ_JINJA_STRING) {
        dq_strbuf mine, *before = dq_jinja_capture(r, &mine);
        for (int64_t k = 0; k < times && v->text.n && dq_jinja_ok(r); k++)
            dq_jinja_put(r, v->text.s, v->text.n);
        return dq_jinja_captured(r, &mine, before);
    }
    dq_jinja_value out = dq_jinja_list_new(r, v->kind, 0);
    for (int64_t k = 0; k < times && v->list->n && dq_jinja_ok(r); k++) {
        for (size_t i = 0; i < v->list->n; i++) dq_jinja_list_add(r, out.list, v->list->item[i]);
    }
    return out;
}

static bool is_repeatable(const dq_jinja_value *v)
{
    return v->kind == DQ_JINJA_STRING || v->kind == DQ_JINJA_LIST || v->kind == DQ_JINJA_TUPLE;
}

dq_jinja_value dq_jinja_operators_arithmetic(dq_jinja_run *r, dq_jinja_operation operation,
                                             const dq_jinja_value *a, const dq_jinja_value *b)
{
    const bool whole = dq_jinja_is_integer(a) && dq_jinja_is_integer(b);
    const bool numbers = (dq_jinja_is_integer(a) || a->kind == DQ_JINJA_FLOAT) &&
                         (dq_jinja_is_integer(b) || b->kind == DQ_JINJA_FLOAT);
    const bool multiplies = operation == DQ_JINJA_MULTIPLY;
    if (a->is_safe || b->is_safe)
        return dq_jinja_fail(r, DQ_MISMATCH, "an operator on what safe gives is not supported");
    if (operation == DQ_JINJA_MODULO && a->kind == DQ_JINJA_STRING)
        return dq_jinja_fail(r, DQ_MISMATCH, "%% of a string is not supported");
    if (a->kind == DQ_JINJA_UNDEFINED || b->kind == DQ_JINJA_UNDEFINED)
        return dq_jinja_fail_undefined(r, a->kind == DQ_JINJA_UNDEFINED ? a : b);
    if (whole && operation != DQ_JINJA_DIVIDE &&
        (operation != DQ_JINJA_POWER || dq_jinja_integer(b) >= 0))
        return integers(r, operation, dq_jinja_integer(a), dq_jinja_integer(b));
    if (numbers) return reals(r, operation, real(a), real(b));
    if (operation == DQ_JINJA_ADD && a->kind == b->kind && is_repeatable(a)) {
        if (a->kind == DQ_JINJA_STRING) {
            char *s = alloc_text(r, a->text.n + b->text.n);
            if (!s) return (dq_jinja_value){0};
            if (a->text.n) memcpy(s, a->text.s, a->text.n);
            if (b->text.n) memcpy(s + a->text.n, b->text.s, b->text.n);
            return dq_jinja_string(s, a->text.n + b->text.n);
        }
        dq_jinja_value out = repeat(r, a, 1);
        for (size_t i = 0; i < b->list->n; i++) dq_jinja_list_add(r, out.list, b->list->item[i]);
        return out;
    }
    if (multiplies && is_repeatable(a) && dq_jinja_is_integer(b))
        return repeat(r, a, dq_jinja_integer(b));
    if (multiplies && is_repeatable(b) && dq_jinja_is_integer(a))
        return repeat(r, b, dq_jinja_integer(a));
    return dq_jinja_fail(r, DQ_DAMAGED, "an operator between '%s' and '%s'", dq_jinja_type(a),
                         dq_jinja_type(b));
}

static bool contains(dq_jinja_run *r, const dq_jinja_value *in, const dq_jinja_value *v)
{
    bool found = false;
    if (in->kind == DQ_JINJA_STRING) {
        if (v->kind == DQ_JINJA_STRING)
            return dq_jinja_strings_find(r, in->text, v->text, 0) <= in->text.n;
        dq_jinja_fail(r, DQ_DAMAGED, "'in <string>' requires a string, not %s", dq_jinja_type(v));
    } else if (in->kind == DQ_JINJA_DICT) {
        if (v->kind == DQ_JINJA_LIST || v->kind == DQ_JINJA_DICT)
            dq_jinja_fail(r, DQ_DAMAGED, "unhashable type: '%s'", dq_jinja_type(v));
        found = v->kind == DQ_JINJA_STRING && dq_jinja_dict_get(r, in->dict, v->text);
    } else if (in->kind == DQ_JINJA_ITERATOR) {
        dq_jinja_fail(r, DQ_MISMATCH, "\"in\" of what map, select and others give");
    } else {
        const dq_jinja_list items = dq_jinja_items(r, in);
        for (size_t i = 0; i < items.n && !found; i++) found = dq_jinja_equal(r, &items.item[i], v);
    }
    return found;
}

bool dq_jinja_operators_compare(dq_jinja_run *r, dq_jinja_operation operation,
                                const dq_jinja_value *a, const dq_jinja_value *b)
{
    switch (operation) {
    case DQ_JINJA_EQUAL: return dq_jinja_equal(r, a, b);
    case DQ_JINJA_NOT_EQUAL: return !dq_jinja_equal(r, a, b);
    case DQ_JINJA_IN: return contains(r, b, a);
    case DQ_JINJA_NOT_IN: return !contains(r, b, a);
    default: break;
    }
    const int order = dq_jinja_order(r, a, b);
    switch (operation) {
    case DQ_JINJA_LESS: return order == -1;
    case DQ_JINJA_GREATER: return order == 1;
    case DQ_JINJA_NOT_GREATER: return order == -1 || order == 0;
    default: return order == 1 || order == 0;
    }
}

static size_t bytes_of(dq_jinja_run *r, dq_jinja_text t, int64_t n)
{
    size_t at = 0;
    for (; n > 0 && at < t.n; n--) dq_jinja_text_next(r, t, &at);
    return at;
}

dq_jinja_value dq_jinja_operators_item(dq_jinja_run *r, const dq_jinja_value *v, int64_t i)
{
    const int64_t n = (int64_t)dq_jinja_length(r, v);
    if (i < 0) i += n;
    if (i < 0 || i >= n) return (dq_jinja_value){0};
    if (v->kind != DQ_JINJA_STRING) return v->list->item[i];
    const size_t begin = bytes_of(r, v->text, i);
    size_t end = begin;
    if (dq_jinja_ok(r)) dq_jinja_text_next(r, v->text, &end);
    return dq_jinja_string(v->text.s + begin, end - begin);
}

/* A slice's bound within low .. high; negative: from the end. */
static int64_t bound(dq_jinja_run *r, const dq_jinja_value *v, int64_t n, int64_t fallback,
                     int64_t low, int64_t high)
{
    if (v->kind == DQ_JINJA_ABSENT || v->kind == DQ_JINJA_NONE) return fallback;
    int64_t i = dq_jinja_strings_int(r, v, 0);
    if (i < 0) i = i < -n ? -1 : i + n;
    return i < low ? low : i > high ? high : i;
}

/* Absent parts count as None. */
static dq_jinja_value slice_of(dq_jinja_run *r, const dq_jinja_value *v,
                               const dq_jinja_value part[3])
{
    const int64_t step = dq_jinja_strings_int(r, &part[2], 1);
    if (v->kind == DQ_JINJA_UNDEFINED) return dq_jinja_fail_undefined(r, v);
    if (v->is_safe)
        return dq_jinja_fail(r, DQ_MISMATCH, "a slice of what safe gives is not supported");
    if (!is_repeatable(v) && v->kind != DQ_JINJA_RANGE)
        return dq_jinja_fail(r, DQ_MISMATCH, "a slice of '%s' is not supported", dq_jinja_type(v));
    if (step == 0) return dq_jinja_fail(r, DQ_DAMAGED, "slice step cannot be zero");
    const int64_t n = (int64_t)dq_jinja_length(r, v), low = step < 0 ? -1 : 0, high = n + low;
    const int64_t from = bound(r, &part[0], n, step < 0 ? high : low, low, high);
    const int64_t to = bound(r, &part[1], n, step < 0 ? low : high, low, high);
    if (v->kind == DQ_JINJA_STRING && step == 1) {
        const size_t begin = bytes_of(r, v->text, from);
        const dq_jinja_text rest = {v->text.s + begin, v->text.n - begin};
        return dq_jinja_string(rest.s, to == n ? rest.n : bytes_of(r, rest, to - from));
    }
    const dq_jinja_list items = dq_jinja_items(r, v);
    const bool is_string = v->kind == DQ_JINJA_STRING;
    dq_jinja_value out = dq_jinja_list_new(r, is_string ? DQ_JINJA_LIST : v->kind, 0);
    for (int64_t i = from; (step > 0 ? i < to : i > to) && dq_jinja_ok(r);) {
        dq_jinja_list_add(r, out.list, items.item[i]);
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return is_string && dq_jinja_ok(r) ? dq_jinja_strings_join(r, (dq_jinja_text){0}, out.list)
                                       : out;
}

/* Each kind of node has a row of `evaluate`; operands are evaluated in Python's order. */

typedef dq_jinja_run run;
typedef dq_jinja_node node;
typedef dq_jinja_value value;

static value eval_constant(run *r, const node *n)
{
    (void)r;
    return n->value;
}

static value eval_variable(run *r, const node *n)
{
    const value *found = NULL;
    for (const dq_jinja_scope *s = r->scope; s && !found; s = s->parent)
        found = dq_jinja_dict_get(r, &s->names, n->name);
    if (found) return *found;
    const dq_jinja_function *f = dq_jinja_find(DQ_JINJA_FUNCTIONS, n->name);
    if (f && f->code) return (value){.kind = DQ_JINJA_FUNCTION, .function = f};
    if (f) return dq_jinja_fail(r, DQ_MISMATCH, "the function \"%s\" is not supported", f->name);
    if (r->member) return dq_jinja_no_key(n->name);
    return dq_jinja_undefined(r, "'%.*s' is undefined", (int)n->name.n, n->name.s);
}

static value eval_items(run *r, const node *n)
{
    const dq_jinja_kind kind = n->kind == DQ_JINJA_LIST_OF ? DQ_JINJA_LIST : DQ_JINJA_TUPLE;
    value out = dq_jinja_list_new(r, kind, n->item.n);
    for (size_t i = 0; i < n->item.n && dq_jinja_ok(r); i++)
        dq_jinja_list_add(r, out.list, evaluate_node(r, n->item.at[i]));
    return out;
}

static value eval_dict(run *r, const node *n)
{
    value out = dq_jinja_dict_new(r, DQ_JINJA_DICT);
    for (size_t i = 0; i < n->item.n && dq_jinja_ok(r); i += 2) {
        const value key = evaluate_node(r, n->item.at[i]), v = evaluate_node(r, n->item.at[i + 1]);
        if (key.kind != DQ_JINJA_STRING || key.is_safe)
            return dq_jinja_fail(r, DQ_MISMATCH, "a key of type '%s' is not supported",
                                 dq_jinja_type(&key));
        dq_jinja_dict_put(r, out.dict, key.text, v);
    }
    return out;
}

static value eval_attribute(run *r, const node *n)
{
    const value of = evaluate_node(r, n->a);
    return dq_jinja_ok(r) ? dq_jinja_methods_attribute(r, &of, n->name) : of;
}

static value eval_subscript(run *r, const node *n)
{
    const value of = evaluate_node(r, n->a), key = evaluate_node(r, n->b);
    return dq_jinja_ok(r) ? dq_jinja_methods_subscript(r, &of, &key) : of;
}

static value eval_slice(run *r, const node *n)
{
    const value of = evaluate_node(r, n->a);
    value part[3] = {{0}};
    for (size_t i = 0; i < 3; i++) {
        if (n->item.at[i]) part[i] = evaluate_node(r, n->item.at[i]);
    }
    return dq_jinja_ok(r) ? slice_of(r, &of, part) : of;
}

static void eval_arguments(run *r, const node *n, dq_jinja_call *c)
{
    for (size_t i = 0; i < n->item.n && dq_jinja_ok(r); i++) {
        const node *one = n->item.at[i];
        if (one->kind == DQ_JINJA_KEYWORD)
            dq_jinja_dict_put(r, &c->named, one->name, evaluate_node(r, one->a));
        else
            dq_jinja_list_add(r, &c->arg, evaluate_node(r, one));
    }
    r->line = n->line;
}

value dq_jinja_eval_apply(run *r, const dq_jinja_function *f, dq_jinja_call *c)
{
    size_t i = 0, named = 0;
    for (const char *s = f->parameters; s && *s; i++) {
        const dq_jinja_text name = {s, strcspn(s, " ")};
        const value *v = *s == '_' ? NULL : dq_jinja_dict_get(r, &c->named, name);
        named += v != NULL;
        if (v && i < c->arg.n)
            return dq_jinja_fail(r, DQ_DAMAGED, "%s has two arguments \"%.*s\"", f->name,
                                 (int)name.n, name.s);
        if (!v && i < c->arg.n) v = &c->arg.item[i];
        if (!v && i < f->required)
            return dq_jinja_fail(r, DQ_DAMAGED, "%s lacks the argument \"%.*s\"", f->name,
                                 (int)name.n, name.s);
        if (v) c->p[i] = *v;
        s += name.n + (s[name.n] == ' ');
    }
    if (f->parameters && (c->arg.n > i || c->named.n > named))
        return dq_jinja_fail(r, DQ_DAMAGED, "%s has an argument too many", f->name);
    c->which = f->which;
    return dq_jinja_ok(r) ? f->code(r, c) : (value){0};
}

static value eval_call(run *r, const node *n)
{
    const value f = evaluate_node(r, n->a);
    dq_jinja_call c = {0};
    eval_arguments(r, n, &c);
    if (!dq_jinja_ok(r)) return f;
    switch (f.kind) {
    case DQ_JINJA_FUNCTION: return dq_jinja_eval_apply(r, f.function, &c);
    case DQ_JINJA_MACRO: return call_macro(r, f.macro, &c);
    case DQ_JINJA_METHOD:
        c.self = f.method->self;
        if (c.self.is_safe)
            return dq_jinja_fail(r, DQ_MISMATCH, "a method of what safe gives is not supported");
        return dq_jinja_eval_apply(r, f.method->function, &c);
    case DQ_JINJA_UNDEFINED: return dq_jinja_fail_undefined(r, &f);
    default: return dq_jinja_fail(r, DQ_DAMAGED, "'%s' object is not callable", dq_jinja_type(&f));
    }
}

static value eval_filter(run *r, const node *n)
{
    dq_jinja_call c = {.self = evaluate_node(r, n->a)};
    eval_arguments(r, n, &c);
    if (n->function) return dq_jinja_ok(r) ? dq_jinja_eval_apply(r, n->function, &c) : c.self;
    return dq_jinja_fail(r, DQ_DAMAGED, "there is no filter or test \"%.*s\"", (int)n->name.n,
                         n->name.s);
}

static value eval_not(run *r, const node *n)
{
    const value a = evaluate_node(r, n->a);
    return dq_jinja_bool(!dq_jinja_truth(&a));
}

static value eval_sign(run *r, const node *n)
{
    const value a = evaluate_node(r, n->a), zero = dq_jinja_int(0);
    if (a.kind == DQ_JINJA_FLOAT && n->operation == DQ_JINJA_SUBTRACT) return dq_jinja_float(-a.f);
    if (!dq_jinja_is_integer(&a) && a.kind != DQ_JINJA_FLOAT && a.kind != DQ_JINJA_UNDEFINED)
        return dq_jinja_fail(r, DQ_DAMAGED, "a sign before '%s'", dq_jinja_type(&a));
    return dq_jinja_operators_arithmetic(r, n->operation, &zero, &a);
}

static value eval_arithmetic(run *r, const node *n)
{
    const value a = evaluate_node(r, n->a), b = evaluate_node(r, n->b);
    r->line = n->line;
    return dq_jinja_ok(r) ? dq_jinja_operators_arithmetic(r, n->operation, &a, &b) : a;
}

static value eval_join(run *r, const node *n)
{
    dq_strbuf mine, *before;
    value all = dq_jinja_list_new(r, DQ_JINJA_LIST, n->item.n);
    for (size_t i = 0; i < n->item.n && dq_jinja_ok(r); i++)
        dq_jinja_list_add(r, all.list, evaluate_node(r, n->item.at[i]));
    before = dq_jinja_capture(r, &mine);
    for (size_t i = 0; i < n->item.n && dq_jinja_ok(r); i++) print(r, &all.list->item[i]);
    return dq_jinja_captured(r, &mine, before);
}

static value eval_compare(run *r, const node *n)
{
    value a = evaluate_node(r, n->a);
    bool all = true;
    for (size_t i = 0; i < n->item.n && all && dq_jinja_ok(r); i++) {
        const value b = evaluate_node(r, n->item.at[i]->a);
        r->line = n->line;
        all = dq_jinja_ok(r) && dq_jinja_operators_compare(r, n->item.at[i]->operation, &a, &b);
        a = b;
    }
    return dq_jinja_bool(all);
}

static value eval_and(run *r, const node *n)
{
    const value a = evaluate_node(r, n->a);
    return dq_jinja_truth(&a) == (n->kind == DQ_JINJA_AND) ? evaluate_node(r, n->b) : a;
}

static value eval_if_else(run *r, const node *n)
{
    const value condition = evaluate_node(r, n->b);
    if (dq_jinja_truth(&condition)) return evaluate_node(r, n->a);
    if (n->c) return evaluate_node(r, n->c);
    return dq_jinja_undefined(r,
                              "the inline if-expression on line %d evaluated to false and no else "
                              "section was defined.",
                              n->line);
}

/* The text of a set block, kept under a name that no template can write. */
static value eval_captured(run *r, const node *n)
{
    (void)n;
    const value *v = dq_jinja_dict_get(r, &r->scope->names, dq_jinja_text_of(""));
    return v ? *v : (value){0};
}

static value evaluate_node(run *r, const node *n)
{
    static value (*const evaluate[DQ_JINJA_NODE_KINDS])(run *, const node *) = {
        [DQ_JINJA_CONSTANT] = eval_constant,
        [DQ_JINJA_VARIABLE] = eval_variable,
        [DQ_JINJA_LIST_OF] = eval_items,
        [DQ_JINJA_TUPLE_OF] = eval_items,
        [DQ_JINJA_DICT_OF] = eval_dict,
        [DQ_JINJA_ATTRIBUTE] = eval_attribute,
        [DQ_JINJA_SUBSCRIPT] = eval_subscript,
        [DQ_JINJA_SLICE] = eval_slice,
        [DQ_JINJA_CALL] = eval_call,
        [DQ_JINJA_FILTER] = eval_filter,
        [DQ_JINJA_TEST] = eval_filter,
        [DQ_JINJA_NOT] = eval_not,
        [DQ_JINJA_SIGN] = eval_sign,
        [DQ_JINJA_ARITHMETIC] = eval_arithmetic,
        [DQ_JINJA_JOIN] = eval_join,
        [DQ_JINJA_COMPARE] = eval_compare,
        [DQ_JINJA_AND] = eval_and,
        [DQ_JINJA_OR] = eval_and,
        [DQ_JINJA_IF_ELSE] = eval_if_else,
        [DQ_JINJA_CAPTURED] = eval_captured,
    };
    value v = {0};
    r->line = n->line;
    if (!dq_jinja_spend(r, DQ_JINJA_STEP) || !enter(r)) return v;
    v = evaluate[n->kind](r, n);
    r->depth--;
    return dq_jinja_ok(r) ? v : (value){0};
}

/* Every iteration has its own names; else runs where no iteration completed, as in Jinja2. */

static bool has_item(dq_jinja_run *r, dq_jinja_loop *l, size_t number)
{
    dq_jinja_scope *const before = r->scope;
    const dq_jinja_node *condition = l->node->c;
    while (l->taken.n <= number && l->at < l->source.n && dq_jinja_ok(r)) {
        const dq_jinja_value item = l->source.item[l->at++];
        dq_jinja_value yes = dq_jinja_bool(true);
        if (condition && dq_jinja_eval_scope(r, l->scope)) {
            assign(r, l->node->a, item);
            yes = evaluate_node(r, condition);
        }
        if (dq_jinja_truth(&yes)) dq_jinja_list_add(r, &l->taken, item);
    }
    r->scope = before;
    return number < l->taken.n && dq_jinja_ok(r);
}

dq_jinja_value dq_jinja_loop_attribute(dq_jinja_run *r, dq_jinja_loop *l, dq_jinja_text name)
{
    const int64_t index = (int64_t)l->index;
    if (dq_jinja_text_is(name, "index")) return dq_jinja_int(index + 1);
    if (dq_jinja_text_is(name, "index0")) return dq_jinja_int(index);
    if (dq_jinja_text_is(name, "first")) return dq_jinja_bool(index == 0);
    if (dq_jinja_text_is(name, "last")) return dq_jinja_bool(!has_item(r, l, l->index + 1));
    if (dq_jinja_text_is(name, "previtem"))
        return index ? l->taken.item[index - 1]
                     : dq_jinja_undefined(r, "there is no previous item");
    if (dq_jinja_text_is(name, "nextitem"))
        return has_item(r, l, l->index + 1) ? l->taken.item[index + 1]
                                            : dq_jinja_undefined(r, "there is no next item");
    has_item(r, l, SIZE_MAX);
    const int64_t n = (int64_t)l->taken.n;
    if (dq_jinja_text_is(name, "length")) return dq_jinja_int(n);
    if (dq_jinja_text_is(name, "revindex")) return dq_jinja_int(n - index);
    if (dq_jinja_text_is(name, "revindex0")) return dq_jinja_int(n - index - 1);
    return (dq_jinja_value){0};
}

static void run_for(dq_jinja_run *r, const dq_jinja_node *n)
{
    dq_jinja_scope *const before = r->scope;
    const dq_jinja_value over = evaluate_node(r, n->b);
    dq_jinja_loop *l = dq_jinja_ok(r) ? dq_jinja_alloc(r, 1, sizeof *l) : NULL;
    bool ended = false;
    if (!l) return;
    *l = (dq_jinja_loop){.node = n, .scope = before, .source = dq_jinja_items(r, &over)};
    for (; has_item(r, l, l->index); l->index++) {
        const dq_jinja_value self = {.kind = DQ_JINJA_LOOP, .loop = l};
        if (!dq_jinja_eval_scope(r, before)) break;
        dq_jinja_dict_put(r, &r->scope->names, dq_jinja_text_of("loop"), self);
        assign(r, n->a, l->taken.item[l->index]);
        dq_jinja_eval_body(r, &n->body);
        r->scope = before;
        const dq_jinja_flow flow = r->flow;
        r->flow = DQ_JINJA_ON;
        if (flow == DQ_JINJA_ON) ended = true;
        if (flow == DQ_JINJA_BREAK) break;
    }
    r->scope = before;
    if (ended || !n->item.n || !dq_jinja_ok(r)) return;
    if (dq_jinja_eval_scope(r, before)) dq_jinja_eval_body(r, &n->item);
    r->scope = before;
}

/* Each kind of statement has a row of `execute`; macros see the names around their definition. */

typedef struct dq_jinja_macro {
    const node *node;
    dq_jinja_scope *scope;
} dq_jinja_macro;

bool dq_jinja_eval_scope(run *r, dq_jinja_scope *parent)
{
    dq_jinja_scope *s = dq_jinja_alloc(r, 1, sizeof *s);
    if (!s) return false;
    s->parent = parent;
    r->scope = s;
    return true;
}

static void assign(run *r, const node *target, value v)
{
    if (target->kind == DQ_JINJA_VARIABLE) {
        dq_jinja_dict_put(r, &r->scope->names, target->name, v);
    } else if (target->kind == DQ_JINJA_ATTRIBUTE) {
        const value space = evaluate_node(r, target->a);
        if (space.kind == DQ_JINJA_NAMESPACE)
            dq_jinja_dict_put(r, space.dict, target->name, v);
        else
            dq_jinja_fail(r, DQ_DAMAGED, "cannot assign attribute on non-namespace object");
    } else {
        const dq_jinja_list items = dq_jinja_items(r, &v);
        if (items.n != target->item.n)
            dq_jinja_fail(r, DQ_DAMAGED, "%zu values for %zu names", items.n, target->item.n);
        for (size_t i = 0; i < items.n && dq_jinja_ok(r); i++)
            assign(r, target->item.at[i], items.item[i]);
    }
}

/* The caller has set r->scope to the body's own names. */
static value capture_body(run *r, const dq_jinja_nodes *body)
{
    dq_strbuf mine, *before = dq_jinja_capture(r, &mine);
    dq_jinja_eval_body(r, body);
    return dq_jinja_captured(r, &mine, before);
}

static value call_macro(run *r, const dq_jinja_macro *m, const dq_jinja_call *c)
{
    dq_jinja_scope *const before = r->scope;
    const dq_jinja_nodes *parameters = &m->node->item;
    value out = {0};
    size_t named = 0;
    if (c->arg.n > parameters->n)
        return dq_jinja_fail(r, DQ_DAMAGED, "macro '%.*s' takes not more than %zu argument(s)",
                             (int)m->node->name.n, m->node->name.s, parameters->n);
    if (!enter(r) || !dq_jinja_eval_scope(r, m->scope)) return out;
    for (size_t i = 0; i < parameters->n && dq_jinja_ok(r); i++) {
        const node *parameter = parameters->at[i];
        const dq_jinja_text name = parameter->name;
        const value *by_name = dq_jinja_dict_get(r, &c->named, name);
        value v = {0};
        if (i < c->arg.n) {
            v = c->arg.item[i]; /* an argument of this name as well is one too many */
        } else if (by_name) {
            v = *by_name;
            ++named;
        } else if (parameter->a) {
            v = evaluate_node(r, parameter->a);
        } else {
            v = dq_jinja_undefined(r, "parameter '%.*s' was not provided", (int)name.n, name.s);
        }
        dq_jinja_dict_put(r, &r->scope->names, name, v);
    }
    if (named < c->named.n)
        dq_jinja_fail(r, DQ_DAMAGED, "macro '%.*s' has a keyword argument too many",
                      (int)m->node->name.n, m->node->name.s);
    if (dq_jinja_ok(r)) out = capture_body(r, &m->node->body);
    r->scope = before;
    r->depth--;
    return out;
}

static void run_text(run *r, const node *n)
{
    dq_jinja_put(r, n->name.s, n->name.n);
}

static void run_output(run *r, const node *n)
{
    const value v = evaluate_node(r, n->a);
    r->line = n->line;
    if (r->member && v.kind == DQ_JINJA_UNDEFINED) dq_jinja_fail_undefined(r, &v);
    if (r->member && (n->a->kind == DQ_JINJA_VARIABLE || n->a->kind == DQ_JINJA_ATTRIBUTE))
        dq_jinja_check_key(r, n->a->name, &v);
    if (dq_jinja_ok(r)) print(r, &v);
}

static void run_if(run *r, const node *n)
{
    for (; n && dq_jinja_ok(r); n = n->c) {
        const value condition = evaluate_node(r, n->a);
        const bool yes = dq_jinja_truth(&condition);
        dq_jinja_eval_body(r, yes ? &n->body : &n->item);
        if (yes) break;
    }
}

static void run_set(run *r, const node *n)
{
    const value v = evaluate_node(r, n->b);
    if (dq_jinja_ok(r)) assign(r, n->a, v);
}

static void run_set_text(run *r, const node *n)
{
    dq_jinja_scope *const before = r->scope;
    if (!dq_jinja_eval_scope(r, before)) return;
    const value text = capture_body(r, &n->body);
    dq_jinja_dict_put(r, &r->scope->names, dq_jinja_text_of(""), text);
    const value v = evaluate_node(r, n->b);
    r->scope = before;
    if (dq_jinja_ok(r) && r->flow == DQ_JINJA_ON) assign(r, n->a, v);
}

static void run_macro(run *r, const node *n)
{
    dq_jinja_macro *m = dq_jinja_alloc(r, 1, sizeof *m);
    if (!m) return;
    *m = (dq_jinja_macro){n, r->scope};
    dq_jinja_dict_put(r, &r->scope->names, n->name, (value){.kind = DQ_JINJA_MACRO, .macro = m});
}

static void run_scope(run *r, const node *n)
{
    dq_jinja_scope *const before = r->scope;
    if (dq_jinja_eval_scope(r, before)) dq_jinja_eval_body(r, &n->body);
    r->scope = before;
}

static void run_leave(run *r, const node *n)
{
    r->flow = n->value.truth ? DQ_JINJA_CONTINUE : DQ_JINJA_BREAK;
}

void dq_jinja_eval_body(run *r, const dq_jinja_nodes *body)
{
    static void (*const execute[DQ_JINJA_NODE_KINDS])(run *, const node *) = {
        [DQ_JINJA_TEXT] = run_text,      [DQ_JINJA_OUTPUT] = run_output,
        [DQ_JINJA_FOR] = run_for,        [DQ_JINJA_IF] = run_if,
        [DQ_JINJA_SET] = run_set,        [DQ_JINJA_SET_TEXT] = run_set_text,
        [DQ_JINJA_MACRO_OF] = run_macro, [DQ_JINJA_SCOPE] = run_scope,
        [DQ_JINJA_LEAVE] = run_leave,
    };
    if (!enter(r)) return;
    for (size_t i = 0; i < body->n && r->flow == DQ_JINJA_ON; i++) {
        r->line = body->at[i]->line;
        if (!dq_jinja_spend(r, DQ_JINJA_STEP)) return;
        execute[body->at[i]->kind](r, body->at[i]);
    }
    r->depth--;
}

value dq_jinja_eval_value(run *r, const dq_jinja_nodes *body, bool text)
{
    const bool one = !text && body->n == 1 && body->at[0]->kind == DQ_JINJA_OUTPUT;
    return one ? evaluate_node(r, body->at[0]->a) : capture_body(r, body);
}
