/* object_list: see object_list.h. An object's attributes are gathered and sorted when the next one begins, lines when all are
 * there, so that whoever makes them need not know the order.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/object_list.h"

#include "base/text.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void push(dq_object_list *l, const char ***list, size_t *n, size_t *capacity,
                 const char *text)
{
    if (!text || l->err->code != DQ_OK) return;
    const char **grown = dq_grow(l->arena, *list, *n + 1, capacity, sizeof *grown, l->err);
    if (!grown) return;
    *list = grown;
    grown[(*n)++] = text;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static size_t name_length(const char *attribute)
{
    return strcspn(attribute, "=\t");
}

/* By name: "bits=..." stands before "bits_more=...", which '=' alone would not give. */
static int by_name(const void *a, const void *b)
{
    const char *x = *(const char *const *)a, *y = *(const char *const *)b;
    const size_t n = name_length(x), m = name_length(y);
    const int order = strncmp(x, y, n < m ? n : m);
    return order ? order : n < m ? -1 : n > m;
}

/* parts[n] with `between` before each of them, after `first`. */
static const char *join(dq_object_list *l, const char *first, const char *between,
                        const char *const *part, size_t n)
{
    size_t bytes = strlen(first) + 1, at = strlen(first);
    for (size_t i = 0; i < n; i++) bytes += strlen(between) + strlen(part[i]);
    char *out = dq_alloc(l->arena, bytes, 1, l->err);
    if (!out) return NULL;
    memcpy(out, first, at);
    for (size_t i = 0; i < n; i++) at += (size_t)sprintf(out + at, "%s%s", between, part[i]);
    return out;
}

static void end_object(dq_object_list *l)
{
    if (!l->object || l->err->code != DQ_OK) return;
    if (l->n_attributes) qsort(l->attribute, l->n_attributes, sizeof *l->attribute, by_name);
    push(l, &l->line, &l->n_lines, &l->line_capacity,
         join(l, l->object, "\t", l->attribute, l->n_attributes));
    l->object = NULL;
    l->n_attributes = 0;
}

/* With a backslash before each character of `marks` too. */
static const char *escaped(const char *text, const char *marks, dq_arena *a, dq_err *err)
{
    char *out = dq_alloc(a, 2 * strlen(text) + 1, 1, err), *to = out;
    for (const char *c = text; out && *c; c++) {
        const char special = *c == '\\' || strchr(marks, *c) ? *c
                             : *c == '\t'                    ? 't'
                             : *c == '\n'                    ? 'n'
                                                             : 0;
        if (special) *to++ = '\\';
        *to++ = special ? special : *c;
    }
    if (out) *to = 0;
    return out;
}

const char *dq_object_list_plain(const char *text, dq_arena *a, dq_err *err)
{
    return escaped(text, "", a, err);
}

static const char *plain(dq_object_list *l, const char *text)
{
    return dq_object_list_plain(text, l->arena, l->err);
}

void dq_object_list_add(dq_object_list *l, const char *path, const char *kind)
{
    end_object(l);
    const char *name = kind ? plain(l, path) : NULL;
    if (name) l->object = dq_textf(l->arena, l->err, "%s\t%s", name, kind);
}

static void attribute(dq_object_list *l, const char *name, const char *value)
{
    const char *plain_name = value ? plain(l, name) : NULL;
    push(l, &l->attribute, &l->n_attributes, &l->attribute_capacity,
         plain_name ? dq_textf(l->arena, l->err, "%s=%s", plain_name, value) : NULL);
}

/* n values, or (0) one, as "TYPE:VALUE" or "TYPE:[VALUE,VALUE]". */
static const char *values(dq_object_list *l, const char *type, const char *const *value, int n)
{
    if (n == 0) return dq_textf(l->arena, l->err, "%s:%s", type, value[0]);
    const char *rest = join(l, value[0], ",", value + 1, (size_t)n - 1);
    return rest ? dq_textf(l->arena, l->err, "%s:[%s]", type, rest) : NULL;
}

void dq_object_list_ints(dq_object_list *l, const char *name, const int64_t *v, int n)
{
    const int count = n ? n : 1;
    const char **text = dq_alloc(l->arena, (size_t)count, sizeof *text, l->err);
    for (int i = 0; text && i < count; i++)
        text[i] = dq_textf(l->arena, l->err, "%lld", (long long)v[i]);
    if (l->err->code == DQ_OK) attribute(l, name, values(l, "i64", text, n));
}

void dq_object_list_real(dq_object_list *l, const char *name, double v)
{
    attribute(l, name, dq_textf(l->arena, l->err, "f64:%.17g", v));
}

/* So that a text that looks like an array is none, and one with a comma is one: "\[a", "[a\,b,c]". */
static const char *plain_item(dq_object_list *l, const char *text, int n)
{
    if (n) return escaped(text, ",", l->arena, l->err);
    const char *out = plain(l, text);
    return out && *out == '[' ? dq_textf(l->arena, l->err, "\\%s", out) : out;
}

void dq_object_list_texts(dq_object_list *l, const char *name, const char *const *v, int n)
{
    const int count = n ? n : 1;
    const char **text = dq_alloc(l->arena, (size_t)count, sizeof *text, l->err);
    for (int i = 0; text && i < count; i++) text[i] = plain_item(l, v[i], n);
    if (l->err->code == DQ_OK) attribute(l, name, values(l, "text", text, n));
}

void dq_object_list_other(dq_object_list *l, const char *name)
{
    attribute(l, name, "of another type");
}

const char *dq_object_list_dtype(char buf[16], dq_dtype dtype)
{
    size_t i = 0;
    for (const char *c = dq_dtypes[dtype].name; *c && i < 15; c++)
        buf[i++] = (char)tolower((unsigned char)*c);
    buf[i] = 0;
    return buf;
}

const char *dq_object_list_kind(dq_object_list *l, const char *type, int n_dims,
                                const int64_t *shape)
{
    char dims[24 * DQ_MAX_DIMS + 3] = "";
    size_t n = 0;
    for (int i = 0; i < n_dims; i++)
        n += (size_t)snprintf(dims + n, sizeof dims - n, "%s%lld", i ? "," : "[",
                              (long long)shape[i]);
    return dq_textf(l->arena, l->err, "%s%s%s", type, dims, n_dims ? "]" : "");
}

const char *dq_object_list_table(dq_object_list *l, int64_t rows, const dq_h5_column *col, int n)
{
    const char *out = dq_textf(l->arena, l->err, "table[%lld]", (long long)rows);
    for (int i = 0; out && i < n; i++) {
        const char *type = col[i].kind == 'i' ? "i32" : col[i].kind == 'l' ? "i64" : "f64";
        if (col[i].kind == 's')
            out = dq_textf(l->arena, l->err, "%s%c%s:text%zu@%zu", out, i ? ',' : '{', col[i].name,
                           col[i].bytes, col[i].at);
        else
            out = dq_textf(l->arena, l->err, "%s%c%s:%s@%zu", out, i ? ',' : '{', col[i].name, type,
                           col[i].at);
    }
    return out ? dq_textf(l->arena, l->err, "%s}", out) : NULL;
}

dq_status dq_object_list_end(dq_object_list *l, const char **text, size_t *len)
{
    static const char nothing[] = "";
    end_object(l);
    *text = nothing;
    *len = 0;
    if (l->err->code != DQ_OK || l->n_lines == 0) return l->err->code;
    qsort(l->line, l->n_lines, sizeof *l->line, by_text);
    const char *all = join(l, l->line[0], "\n", l->line + 1, l->n_lines - 1);
    *text = all ? dq_textf(l->arena, l->err, "%s\n", all) : NULL;
    if (*text) *len = strlen(*text);
    return l->err->code;
}

/* ---- What differs ---- */

/* The field that begins here ends before the next tab. */
static int field_length(const char *s)
{
    return (int)strcspn(s, "\t");
}

/* The next field; NULL: there is none. */
static const char *next_field(const char *s)
{
    s += field_length(s);
    return *s ? s + 1 : NULL;
}

enum { SHOWN = 100 }; /* of a value */

static int shown(int length)
{
    return length < SHOWN ? length : SHOWN;
}

/* What stands after the name. */
static const char *value_of(const char *attribute)
{
    const char *end = attribute + name_length(attribute);
    return *end == '=' ? end + 1 : end;
}

/* Two attributes of one name; found NULL: it is not there. */
static const char *value_differs(const char *w, const char *f, dq_arena *a, dq_err *err)
{
    const char *want = value_of(w), *is = f ? value_of(f) : "missing";
    return dq_textf(a, err, "attribute %.*s is %.*s (expected %.*s)", (int)name_length(w), w,
                    shown(field_length(is)), is, shown(field_length(want)), want);
}

const char *dq_object_list_differs(const char *written, const char *found, dq_arena *a, dq_err *err)
{
    const char *w = next_field(written), *f = next_field(found);
    if (strcmp(written, found) == 0) return NULL;
    if (!w || !f) return dq_textf(a, err, "is no line of objects");
    if (field_length(w) != field_length(f) || memcmp(w, f, (size_t)field_length(w)) != 0)
        return dq_textf(a, err, "is %.*s (expected %.*s)", shown(field_length(f)), f,
                        shown(field_length(w)), w);
    for (w = next_field(w), f = next_field(f); w || f; w = next_field(w), f = next_field(f)) {
        const int order = !w ? 1 : !f ? -1 : by_name(&w, &f);
        if (order < 0) return value_differs(w, NULL, a, err);
        if (order > 0)
            return dq_textf(a, err, "attribute %.*s is one that was not written with it",
                            (int)name_length(f), f);
        if (field_length(w) != field_length(f) || memcmp(w, f, (size_t)field_length(w)) != 0)
            return value_differs(w, f, a, err);
    }
    return NULL;
}
