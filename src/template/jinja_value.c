/* Parts of a string point into it; what is put together is captured as output is.
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

dq_jinja_value dq_jinja_strings_join(dq_jinja_run *r, dq_jinja_text between,
                                     const dq_jinja_list *items)
{
    dq_strbuf mine, *before = dq_jinja_capture(r, &mine);
    for (size_t i = 0; i < items->n && dq_jinja_ok(r); i++) {
        if (i > 0) dq_jinja_put(r, between.s, between.n);
        dq_jinja_print(r, &items->item[i]);
    }
    return dq_jinja_captured(r, &mine, before);
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

bool dq_jinja_enter(dq_jinja_run *r)
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

char *dq_jinja_alloc_text(dq_jinja_run *r, size_t n)
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
    char *s = dq_jinja_alloc_text(r, n);
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
    if (!dq_jinja_spend(r, DQ_JINJA_PIECE) || !dq_jinja_enter(r)) return false;
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
    if (!dq_jinja_spend(r, DQ_JINJA_PIECE) || !dq_jinja_enter(r)) return 0;
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
    if (!dq_jinja_spend(r, DQ_JINJA_STEP) || !dq_jinja_enter(r)) return;
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

void dq_jinja_print(dq_jinja_run *r, const dq_jinja_value *v)
{
    if (v->kind == DQ_JINJA_STRING)
        dq_jinja_put(r, v->text.s, v->text.n);
    else if (v->kind != DQ_JINJA_UNDEFINED)
        put_value(r, v, NULL, 0);
    else
        dq_jinja_put(r, "", 0);
}

dq_jinja_text dq_jinja_print_text(dq_jinja_run *r, const dq_jinja_value *v)
{
    dq_strbuf mine, *before;
    if (v->kind == DQ_JINJA_STRING) return v->text;
    before = dq_jinja_capture(r, &mine);
    dq_jinja_print(r, v);
    return dq_jinja_captured(r, &mine, before).text;
}

dq_jinja_value dq_jinja_print_json(dq_jinja_run *r, const dq_jinja_value *v,
                                   const dq_jinja_json *form)
{
    dq_strbuf mine, *before = dq_jinja_capture(r, &mine);
    put_value(r, v, form, 0);
    return dq_jinja_captured(r, &mine, before);
}
