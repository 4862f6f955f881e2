/* jinja_methods: see jinja_methods.h. Tables say which methods there are; names that Python knows beside them are listed, so
 * that a template which asks for one is refused instead of finding it undefined.
 * SPDX-License-Identifier: MIT */
#include "template/jinja_methods.h"

#include "template/jinja_loop.h"
#include "template/jinja_operators.h"
#include "template/jinja_print.h"
#include "template/jinja_strings.h"

#include <stdio.h>
#include <string.h>

/* ---- Strings ---- */

static dq_jinja_value run_strip(dq_jinja_run *r, dq_jinja_call *c)
{
    return dq_jinja_strings_strip(r, c->self.text, &c->p[0], true, true);
}

static dq_jinja_value run_lstrip(dq_jinja_run *r, dq_jinja_call *c)
{
    return dq_jinja_strings_strip(r, c->self.text, &c->p[0], true, false);
}

static dq_jinja_value run_rstrip(dq_jinja_run *r, dq_jinja_call *c)
{
    return dq_jinja_strings_strip(r, c->self.text, &c->p[0], false, true);
}

static dq_jinja_value run_split(dq_jinja_run *r, dq_jinja_call *c)
{
    return dq_jinja_strings_split(r, c->self.text, &c->p[0], dq_jinja_strings_int(r, &c->p[1], -1));
}

/* An argument that Python's method has and this one does not. */
static void check_absent(dq_jinja_run *r, const dq_jinja_value *v)
{
    if (v->kind != DQ_JINJA_ABSENT)
        dq_jinja_fail(r, DQ_MISMATCH, "so many arguments of a method are not supported");
}

static dq_jinja_value run_splitlines(dq_jinja_run *r, dq_jinja_call *c)
{
    check_absent(r, &c->p[0]);
    return dq_jinja_strings_lines(r, c->self.text);
}

/* Whether t begins or ends with the text, or with one of a tuple of them. */
static dq_jinja_value has_end(dq_jinja_run *r, dq_jinja_call *c, bool at_end)
{
    const dq_jinja_text t = c->self.text;
    const dq_jinja_list one = {.item = &c->p[0], .n = 1};
    const dq_jinja_list *all = c->p[0].kind == DQ_JINJA_TUPLE ? c->p[0].list : &one;
    bool found = false;
    check_absent(r, &c->p[1]);
    for (size_t i = 0; i < all->n && !found && dq_jinja_ok(r); i++) {
        const dq_jinja_text part = dq_jinja_strings_text(r, &all->item[i]);
        if (part.n <= t.n)
            found = dq_jinja_text_same(r, part,
                                       (dq_jinja_text){at_end ? t.s + t.n - part.n : t.s, part.n});
    }
    return dq_jinja_bool(found);
}

static dq_jinja_value run_startswith(dq_jinja_run *r, dq_jinja_call *c)
{
    return has_end(r, c, false);
}

static dq_jinja_value run_endswith(dq_jinja_run *r, dq_jinja_call *c)
{
    return has_end(r, c, true);
}

static dq_jinja_value run_upper(dq_jinja_run *r, dq_jinja_call *c)
{
    return dq_jinja_strings_case(r, c->self.text, DQ_JINJA_UPPER);
}

static dq_jinja_value run_lower(dq_jinja_run *r, dq_jinja_call *c)
{
    return dq_jinja_strings_case(r, c->self.text, DQ_JINJA_LOWER);
}

static dq_jinja_value run_title(dq_jinja_run *r, dq_jinja_call *c)
{
    return dq_jinja_strings_case(r, c->self.text, DQ_JINJA_TITLE);
}

static dq_jinja_value run_capitalize(dq_jinja_run *r, dq_jinja_call *c)
{
    return dq_jinja_strings_case(r, c->self.text, DQ_JINJA_CAPITALIZE);
}

static dq_jinja_value run_replace(dq_jinja_run *r, dq_jinja_call *c)
{
    const dq_jinja_text old = dq_jinja_strings_text(r, &c->p[0]);
    return dq_jinja_strings_replace(r, c->self.text, old, dq_jinja_strings_text(r, &c->p[1]),
                                    dq_jinja_strings_int(r, &c->p[2], -1));
}

/* The number of the character at a byte; SIZE_MAX: -1. */
static dq_jinja_value character_at(dq_jinja_run *r, dq_jinja_text t, size_t at)
{
    const dq_jinja_value before = dq_jinja_string(t.s, at);
    return dq_jinja_int(at == SIZE_MAX ? -1 : (int64_t)dq_jinja_length(r, &before));
}

static dq_jinja_value run_find(dq_jinja_run *r, dq_jinja_call *c)
{
    const dq_jinja_text part = dq_jinja_strings_text(r, &c->p[0]);
    check_absent(r, &c->p[1]);
    return character_at(r, c->self.text, dq_jinja_strings_find(r, c->self.text, part, 0));
}

static dq_jinja_value run_rfind(dq_jinja_run *r, dq_jinja_call *c)
{
    const dq_jinja_text t = c->self.text, part = dq_jinja_strings_text(r, &c->p[0]);
    size_t last = SIZE_MAX;
    check_absent(r, &c->p[1]);
    for (size_t at = 0; (at = dq_jinja_strings_find(r, t, part, at)) <= t.n; at++) last = at;
    return character_at(r, t, last);
}

static dq_jinja_value run_join(dq_jinja_run *r, dq_jinja_call *c)
{
    const dq_jinja_list items = dq_jinja_items(r, &c->p[0]);
    for (size_t i = 0; i < items.n; i++) dq_jinja_strings_text(r, &items.item[i]);
    return dq_jinja_strings_join(r, c->self.text, &items);
}

/* ---- Dicts ---- */

dq_jinja_value dq_jinja_methods_of_dict(dq_jinja_run *r, const dq_jinja_dict *d, int part,
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

static dq_jinja_value run_keys(dq_jinja_run *r, dq_jinja_call *c)
{
    return dq_jinja_methods_of_dict(r, c->self.dict, 0, DQ_JINJA_VIEW);
}

static dq_jinja_value run_values(dq_jinja_run *r, dq_jinja_call *c)
{
    return dq_jinja_methods_of_dict(r, c->self.dict, 1, DQ_JINJA_VIEW);
}

static dq_jinja_value run_items(dq_jinja_run *r, dq_jinja_call *c)
{
    return dq_jinja_methods_of_dict(r, c->self.dict, 2, DQ_JINJA_VIEW);
}

static dq_jinja_value run_get(dq_jinja_run *r, dq_jinja_call *c)
{
    const dq_jinja_value none = {.kind = DQ_JINJA_NONE};
    const dq_jinja_value *found = NULL;
    if (c->p[0].kind == DQ_JINJA_STRING) found = dq_jinja_dict_get(r, c->self.dict, c->p[0].text);
    return found ? *found : c->p[1].kind == DQ_JINJA_ABSENT ? none : c->p[1];
}

/* ---- Tables ---- */

static const dq_jinja_function of_str[] = {
    {"strip", "_chars", 0, run_strip},
    {"lstrip", "_chars", 0, run_lstrip},
    {"rstrip", "_chars", 0, run_rstrip},
    {"split", "sep maxsplit", 0, run_split},
    {"splitlines", "keepends", 0, run_splitlines},
    {"startswith", "_prefix _start _end", 1, run_startswith},
    {"endswith", "_suffix _start _end", 1, run_endswith},
    {"upper", "", 0, run_upper},
    {"lower", "", 0, run_lower},
    {"title", "", 0, run_title},
    {"capitalize", "", 0, run_capitalize},
    {"replace", "_old _new _count", 2, run_replace},
    {"find", "_part _start _end", 1, run_find},
    {"rfind", "_part _start _end", 1, run_rfind},
    {"join", "_items", 1, run_join},
    {0},
};
static const dq_jinja_function of_dict[] = {
    {"keys", "", 0, run_keys},
    {"values", "", 0, run_values},
    {"items", "", 0, run_items},
    {"get", "_key _default", 1, run_get},
    {0},
};
/* What a type has, names between blanks: others that Python has, and those that Jinja2's sandbox forbids. */
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
    [DQ_JINJA_LIST] = {NULL, "copy count index",
                       "append clear extend insert pop remove reverse sort"},
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

/* What Python has of this name; absent: nothing. */
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

/* What stands for a value in the text of an undefined one. */
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
