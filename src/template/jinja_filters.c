/* jinja_filters: filters, a row of `filters` each. What works on many items (map, select, sort) gives all of them at once,
 * which a template cannot tell from Jinja2's one by one.
 * SPDX-License-Identifier: MIT */
#include "template/jinja_filters.h"

#include "base/text.h"
#include "template/jinja_eval.h"
#include "template/jinja_methods.h"
#include "template/jinja_operators.h"
#include "template/jinja_print.h"
#include "template/jinja_strings.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef dq_jinja_run run;
typedef dq_jinja_call call;
typedef dq_jinja_value value;

/* ---- Texts ---- */

/* str(self), which is to be worked on. */
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
    return dq_jinja_strings_strip(r, text_of(r, c), &c->p[0], true, true);
}

static value run_upper(run *r, call *c)
{
    return dq_jinja_strings_case(r, text_of(r, c), DQ_JINJA_UPPER);
}

static value run_lower(run *r, call *c)
{
    return dq_jinja_strings_case(r, text_of(r, c), DQ_JINJA_LOWER);
}

static value run_capitalize(run *r, call *c)
{
    return dq_jinja_strings_case(r, text_of(r, c), DQ_JINJA_CAPITALIZE);
}

static value run_title(run *r, call *c)
{
    return dq_jinja_strings_case(r, text_of(r, c), DQ_JINJA_WORDS);
}

static value run_replace(run *r, call *c)
{
    const dq_jinja_text t = dq_jinja_print_text(r, &c->self);
    const dq_jinja_text old = dq_jinja_print_text(r, &c->p[0]);
    const dq_jinja_text with = dq_jinja_print_text(r, &c->p[1]);
    const int64_t count = dq_jinja_strings_int(r, &c->p[2], -1);
    return dq_jinja_ok(r) ? dq_jinja_strings_replace(r, t, old, with, count) : (value){0};
}

/* The argument as so many blanks, or as it is. */
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
    const value lines = dq_jinja_strings_lines(r, t.text);
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
        form.between = dq_jinja_strings_text(r, &pair.item[0]);
        form.colon = dq_jinja_strings_text(r, &pair.item[1]);
    }
    return dq_jinja_ok(r) ? dq_jinja_print_json(r, &c->self, &form) : (value){0};
}

/* ---- Numbers ---- */

/* The digits of int() or float() in a text without blanks at its ends; absent: it is neither. */
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
        v = parse_int(r, dq_jinja_strings_strip(r, text_of(r, c), &none, true, true).text);
    if (v.kind != DQ_JINJA_FLOAT) return v.kind == DQ_JINJA_INT ? v : fallback;
    if (v.f != v.f) return fallback;
    if (fabs(v.f) < 9.2e18) return dq_jinja_int((int64_t)v.f);
    return dq_jinja_fail(r, DQ_MISMATCH, "int: an integer beyond 64 bits is not supported");
}

/* ---- Any values ---- */

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

/* ---- Lists ---- */

/* A list of the kind with these items. */
static value list_of(run *r, dq_jinja_kind kind, dq_jinja_list items)
{
    value v = dq_jinja_list_new(r, kind, 0);
    if (dq_jinja_ok(r)) *v.list = items;
    return v;
}

static value run_list(run *r, call *c)
{
    return list_of(r, DQ_JINJA_LIST, dq_jinja_items(r, &c->self));
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

/* item.part.part as `attribute` says it, a number or a text with dots; where one is undefined, the fallback, if there is. */
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

static value run_join(run *r, call *c)
{
    const dq_jinja_text between =
        c->p[0].kind == DQ_JINJA_ABSENT ? (dq_jinja_text){"", 0} : dq_jinja_print_text(r, &c->p[0]);
    const dq_jinja_list items = dq_jinja_items(r, &c->self);
    value all = dq_jinja_list_new(r, DQ_JINJA_LIST, items.n);
    for (size_t i = 0; i < items.n && dq_jinja_ok(r); i++)
        dq_jinja_list_add(r, all.list, get_path(r, items.item[i], &c->p[1], NULL));
    return dq_jinja_ok(r) ? dq_jinja_strings_join(r, between, all.list) : all;
}

/* The function that an argument names. */
static const dq_jinja_function *named_function(run *r, const value *name,
                                               const dq_jinja_function *find(dq_jinja_text))
{
    const dq_jinja_text t = dq_jinja_strings_text(r, name);
    const dq_jinja_function *f = dq_jinja_ok(r) ? find(t) : NULL;
    if (f && f->code) return f;
    dq_jinja_fail(r, f ? DQ_MISMATCH : DQ_DAMAGED, "the filter or test \"%.*s\" %s", (int)t.n, t.s,
                  f ? "is not supported" : "does not exist");
    return NULL;
}

/* Calls it for an item with the arguments of c from `from` on. */
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
        by_path ? NULL : named_function(r, &c->arg.item[0], dq_jinja_filters_find);
    const dq_jinja_list items = dq_jinja_items(r, &c->self);
    for (size_t i = 0; i < items.n && dq_jinja_ok(r); i++)
        dq_jinja_list_add(r, out.list,
                          by_path ? get_path(r, items.item[i], attribute, fallback)
                                  : call_for(r, f, items.item[i], c, 1));
    return out;
}

/* Items, or items whose attribute is, as a test says or, without one, as they are true. */
static value run_choice(run *r, call *c, bool by_path, bool wanted)
{
    const size_t at = by_path ? 1 : 0;
    const dq_jinja_function *f = NULL;
    value out = dq_jinja_list_new(r, DQ_JINJA_ITERATOR, 0);
    if (!dq_jinja_truth(&c->self)) return out;
    if (c->arg.n < at) return dq_jinja_fail(r, DQ_DAMAGED, "the name of an attribute is missing");
    if (c->arg.n > at) f = named_function(r, &c->arg.item[at], dq_jinja_tests_find);
    const dq_jinja_list items = dq_jinja_items(r, &c->self);
    for (size_t i = 0; i < items.n && dq_jinja_ok(r); i++) {
        value v = items.item[i];
        if (by_path) v = get_path(r, v, &c->arg.item[0], NULL);
        if (f) v = call_for(r, f, v, c, at + 1);
        if (dq_jinja_truth(&v) == wanted) dq_jinja_list_add(r, out.list, items.item[i]);
    }
    return out;
}

static value run_select(run *r, call *c)
{
    return run_choice(r, c, false, true);
}

static value run_reject(run *r, call *c)
{
    return run_choice(r, c, false, false);
}

static value run_selectattr(run *r, call *c)
{
    return run_choice(r, c, true, true);
}

static value run_rejectattr(run *r, call *c)
{
    return run_choice(r, c, true, false);
}

/* ---- Order ---- */

/* What an item is sorted by: strings in lower case where case does not count. */
static value sort_key(run *r, value v, bool case_counts)
{
    return v.kind == DQ_JINJA_STRING && !case_counts
               ? dq_jinja_strings_case(r, v.text, DQ_JINJA_LOWER)
               : v;
}

/* Items in the order of their keys, equal ones as they came. */
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
    const value pairs = dq_jinja_methods_of_dict(r, c->self.dict, 2, DQ_JINJA_LIST);
    const value keys = dq_jinja_methods_of_dict(r, c->self.dict, by_value ? 1 : 0, DQ_JINJA_LIST);
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

static value run_items(run *r, call *c)
{
    if (c->self.kind == DQ_JINJA_UNDEFINED) return dq_jinja_list_new(r, DQ_JINJA_ITERATOR, 0);
    if (c->self.kind == DQ_JINJA_DICT)
        return dq_jinja_methods_of_dict(r, c->self.dict, 2, DQ_JINJA_ITERATOR);
    return dq_jinja_fail(r, DQ_DAMAGED, "Can only get item pairs from a mapping.");
}

/* Rows without a function: Jinja2 has such a filter. */
static const dq_jinja_function filters[] = {
    {"abs", NULL, 0, NULL},
    {"attr", NULL, 0, NULL},
    {"batch", NULL, 0, NULL},
    {"capitalize", "", 0, run_capitalize},
    {"center", NULL, 0, NULL},
    {"count", "", 0, run_length},
    {"d", "default_value boolean", 0, run_default},
    {"default", "default_value boolean", 0, run_default},
    {"dictsort", "case_sensitive by reverse", 0, run_dictsort},
    {"e", NULL, 0, NULL},
    {"escape", NULL, 0, NULL},
    {"filesizeformat", NULL, 0, NULL},
    {"first", "", 0, run_first},
    {"float", NULL, 0, NULL},
    {"forceescape", NULL, 0, NULL},
    {"format", NULL, 0, NULL},
    {"groupby", NULL, 0, NULL},
    {"indent", "width first blank", 0, run_indent},
    {"int", "default base", 0, run_int},
    {"items", "", 0, run_items},
    {"join", "d attribute", 0, run_join},
    {"last", "", 0, run_last},
    {"length", "", 0, run_length},
    {"list", "", 0, run_list},
    {"lower", "", 0, run_lower},
    {"map", NULL, 0, run_map},
    {"max", NULL, 0, NULL},
    {"min", NULL, 0, NULL},
    {"pprint", NULL, 0, NULL},
    {"random", NULL, 0, NULL},
    {"reject", NULL, 0, run_reject},
    {"rejectattr", NULL, 0, run_rejectattr},
    {"replace", "old new count", 2, run_replace},
    {"reverse", "", 0, run_reverse},
    {"round", NULL, 0, NULL},
    {"safe", "", 0, run_safe},
    {"select", NULL, 0, run_select},
    {"selectattr", NULL, 0, run_selectattr},
    {"slice", NULL, 0, NULL},
    {"sort", "reverse case_sensitive attribute", 0, run_sort},
    {"string", "", 0, run_string},
    {"striptags", NULL, 0, NULL},
    {"sum", NULL, 0, NULL},
    {"title", "", 0, run_title},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, run_tojson},
    {"trim", "chars", 0, run_trim},
    {"truncate", NULL, 0, NULL},
    {"unique", NULL, 0, NULL},
    {"upper", "", 0, run_upper},
    {"urlencode", NULL, 0, NULL},
    {"urlize", NULL, 0, NULL},
    {"wordcount", NULL, 0, NULL},
    {"wordwrap", NULL, 0, NULL},
    {"xmlattr", NULL, 0, NULL},
};

const dq_jinja_function *dq_jinja_filters_find(dq_jinja_text name)
{
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++) {
        if (dq_jinja_text_is(name, filters[i].name)) return &filters[i];
    }
    return NULL;
}
