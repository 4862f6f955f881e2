/* jinja_value: see jinja_value.h. Every allocation and every loop over bytes or items adds to the work of the rendering,
 * so that one limit bounds its time, memory and output; one depth bounds the stack.
 * SPDX-License-Identifier: MIT */
#include "template/jinja_value.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 1000, ALLOCATION = 64 };

/* ---- Failures and limits ---- */

dq_jinja_value dq_jinja_fail(dq_jinja_run *r, dq_status code, const char *fmt, ...)
{
    char text[sizeof r->err->text];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    dq_fail(r->err, code, "chat template, line %d: %s", r->line, text);
    return (dq_jinja_value){0};
}

dq_jinja_value dq_jinja_fail_undefined(dq_jinja_run *r, const dq_jinja_value *v)
{
    return dq_jinja_fail(r, DQ_DAMAGED, "%.*s", (int)v->text.n, v->text.s);
}

bool dq_jinja_ok(const dq_jinja_run *r)
{
    return r->err->code == DQ_OK;
}

bool dq_jinja_spend(dq_jinja_run *r, size_t work)
{
    if (work < DQ_JINJA_MAX_WORK && r->work < DQ_JINJA_MAX_WORK - work)
        r->work += work;
    else
        dq_jinja_fail(r, DQ_MISMATCH, "the template takes too much work or memory (limit %d bytes)",
                      DQ_JINJA_MAX_WORK);
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

/* Capacity for one more; memory that is left behind counts as work. */
static void *grow(dq_jinja_run *r, void *list, size_t n, size_t *capacity, size_t size)
{
    if (list && n < *capacity) return list;
    if (!dq_jinja_spend(r, (2 * n + 16) * size)) return NULL;
    return dq_grow(r->arena, list, n + 1, capacity, size, r->err);
}

void dq_jinja_put(dq_jinja_run *r, const char *s, size_t n)
{
    if (n && dq_jinja_spend(r, n + 8)) dq_strbuf_add(r->out, s, n, r->err);
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
    char *s = dq_jinja_alloc(r, n, 1);
    if (s && n) memcpy(s, mine->s, n);
    dq_block_free(mine->s);
    r->out = before;
    return s ? dq_jinja_string(s, n) : (dq_jinja_value){0};
}

/* ---- Values ---- */

dq_jinja_text dq_jinja_text_of(const char *s)
{
    return (dq_jinja_text){s, strlen(s)};
}

bool dq_jinja_text_same(dq_jinja_text a, dq_jinja_text b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.s, b.s, a.n) == 0);
}

bool dq_jinja_text_is(dq_jinja_text t, const char *s)
{
    return dq_jinja_text_same(t, dq_jinja_text_of(s));
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
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    const size_t n = strlen(text);
    char *s = dq_jinja_alloc(r, n + 1, 1);
    if (!s) return (dq_jinja_value){0};
    memcpy(s, text, n);
    return (dq_jinja_value){.kind = DQ_JINJA_UNDEFINED, .text = {s, n}};
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

bool dq_jinja_is_list(const dq_jinja_value *v)
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

dq_jinja_value *dq_jinja_dict_get(const dq_jinja_dict *d, dq_jinja_text key)
{
    for (size_t i = 0; i < d->n; i++) {
        if (dq_jinja_text_same(d->entry[i].key, key)) return &d->entry[i].value;
    }
    return NULL;
}

void dq_jinja_dict_put(dq_jinja_run *r, dq_jinja_dict *d, dq_jinja_text key, dq_jinja_value value)
{
    if (!dq_jinja_spend(r, 16 * d->n)) return;
    dq_jinja_value *old = dq_jinja_dict_get(d, key);
    dq_jinja_entry *more = old ? NULL : grow(r, d->entry, d->n, &d->capacity, sizeof *more);
    if (old) *old = value;
    if (!more) return;
    d->entry = more;
    d->entry[d->n++] = (dq_jinja_entry){key, value};
}

/* ---- What Python's own functions say of them ---- */

dq_jinja_list dq_jinja_items(dq_jinja_run *r, const dq_jinja_value *v)
{
    dq_jinja_list out = {0};
    if (v->kind == DQ_JINJA_STRING) {
        for (size_t at = 0, bytes; at < v->text.n && dq_jinja_ok(r); at += bytes) {
            dq_utf8_first(v->text.s + at, &bytes);
            dq_jinja_list_add(r, &out, dq_jinja_string(v->text.s + at, bytes));
        }
    } else if (v->kind == DQ_JINJA_DICT) {
        for (size_t i = 0; i < v->dict->n; i++) {
            const dq_jinja_text key = v->dict->entry[i].key;
            dq_jinja_list_add(r, &out, dq_jinja_string(key.s, key.n));
        }
    } else if (dq_jinja_is_list(v)) {
        out = *v->list;
        if (v->kind == DQ_JINJA_ITERATOR) v->list->n = 0;
    } else if (v->kind != DQ_JINJA_UNDEFINED) {
        dq_jinja_fail(r, DQ_DAMAGED, "'%s' object is not iterable", dq_jinja_type(v));
    }
    dq_jinja_spend(r, out.n);
    return out;
}

size_t dq_jinja_length(dq_jinja_run *r, const dq_jinja_value *v)
{
    if (v->kind == DQ_JINJA_UNDEFINED) return 0;
    if (v->kind == DQ_JINJA_DICT) return v->dict->n;
    if (dq_jinja_is_list(v) && v->kind != DQ_JINJA_ITERATOR) return v->list->n;
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
    default: return !dq_jinja_is_list(v) || v->kind == DQ_JINJA_ITERATOR || v->list->n > 0;
    }
}

static bool is_number(const dq_jinja_value *v)
{
    return dq_jinja_is_integer(v) || v->kind == DQ_JINJA_FLOAT;
}

/* Beside a real, an integer beyond 2^53 counts as the nearest double. */
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
        const dq_jinja_value *other =
            dq_jinja_spend(r, 16 * b->n) ? dq_jinja_dict_get(b, a->entry[i].key) : NULL;
        same = other && dq_jinja_equal(r, &a->entry[i].value, other);
    }
    return same;
}

bool dq_jinja_equal(dq_jinja_run *r, const dq_jinja_value *a, const dq_jinja_value *b)
{
    bool same = false;
    if (!dq_jinja_spend(r, 16) || !dq_jinja_enter(r)) return false;
    if (is_number(a) && is_number(b)) {
        same = order_numbers(a, b) == 0;
    } else if (a->kind == b->kind) {
        if (a->kind == DQ_JINJA_STRING)
            same = dq_jinja_spend(r, a->text.n) && dq_jinja_text_same(a->text, b->text);
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

static int order_texts(dq_jinja_text a, dq_jinja_text b)
{
    const size_t n = a.n < b.n ? a.n : b.n;
    const int c = n ? memcmp(a.s, b.s, n) : 0; /* bytes of UTF-8 are in the order of characters */
    return c ? (c > 0) - (c < 0) : (a.n > b.n) - (a.n < b.n);
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
    if (!dq_jinja_spend(r, 16) || !dq_jinja_enter(r)) return 0;
    if (a->kind == DQ_JINJA_UNDEFINED || b->kind == DQ_JINJA_UNDEFINED)
        dq_jinja_fail_undefined(r, a->kind == DQ_JINJA_UNDEFINED ? a : b);
    else if (is_number(a) && is_number(b))
        order = order_numbers(a, b);
    else if (a->kind == DQ_JINJA_STRING && b->kind == DQ_JINJA_STRING)
        order = dq_jinja_spend(r, a->text.n) ? order_texts(a->text, b->text) : 0;
    else if (a->kind == b->kind && (a->kind == DQ_JINJA_LIST || a->kind == DQ_JINJA_TUPLE))
        order = order_lists(r, a->list, b->list);
    else
        dq_jinja_fail(r, DQ_DAMAGED, "'%s' and '%s' have no order", dq_jinja_type(a),
                      dq_jinja_type(b));
    r->depth--;
    return order;
}
