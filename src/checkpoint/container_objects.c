/* An object's attributes are gathered and sorted when the next one begins, lines when all are
 * there, so that whoever makes them need not know the order.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/inside.h"

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

static const char *plain_text(const char *text, dq_arena *a, dq_err *err)
{
    return escaped(text, "", a, err);
}

static const char *plain(dq_object_list *l, const char *text)
{
    return plain_text(text, l->arena, l->err);
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

/* n values as "TYPE:[VALUE,VALUE]"; n 0: "TYPE:VALUE". */
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

/* Escapes a text that looks like an array, and commas in an array: "\[a", "[a\,b,c]". */
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

static void other(dq_object_list *l, const char *name)
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
    qsort(l->line, l->n_lines, sizeof *l->line, dq_name_compare);
    const char *all = join(l, l->line[0], "\n", l->line + 1, l->n_lines - 1);
    *text = all ? dq_textf(l->arena, l->err, "%s\n", all) : NULL;
    if (*text) *len = strlen(*text);
    return l->err->code;
}

static int field_length(const char *s)
{
    return (int)strcspn(s, "\t");
}

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

static const char *value_of(const char *attribute)
{
    const char *end = attribute + name_length(attribute);
    return *end == '=' ? end + 1 : end;
}

/* found NULL: the attribute is missing. */
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

/* Every listed object is described again and compared as a line; then every link of every listed
 * group must be listed. Nothing else is walked, so circular links end. */

enum { MAX_ATTRIBUTE = 1 << 16, MAX_ATTRIBUTES = 4096 };

static const char *type_name(char buf[16], hid_t type)
{
    for (int i = 0; i < DQ_DTYPE_COUNT; i++) {
        hid_t want = dq_h5_type((dq_dtype)i);
        const bool same = want >= 0 && H5Tequal(want, type) > 0;
        if (want >= 0) H5Tclose(want);
        if (same) return dq_object_list_dtype(buf, (dq_dtype)i);
    }
    return NULL;
}

static bool is_text(hid_t type)
{
    if (H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) != 0) return false;
    hid_t want = dq_h5_text_type(H5Tget_size(type));
    const bool same = want >= 0 && H5Tequal(want, type) > 0;
    if (want >= 0) H5Tclose(want);
    return same;
}

static bool table_column(dq_h5_column *col, hid_t table, unsigned i, dq_object_list *l)
{
    char *name = H5Tget_member_name(table, i), buf[16];
    hid_t type = H5Tget_member_type(table, i);
    const char *element = type < 0 ? NULL : type_name(buf, type);
    *col = (dq_h5_column){.at = H5Tget_member_offset(table, i),
                          .bytes = type < 0 ? 0 : H5Tget_size(type)};
    if (name) col->name = dq_text(l->arena, name, strlen(name), l->err);
    if (element) col->kind = element[0] == 'f' ? 'd' : strcmp(element, "i32") == 0 ? 'i' : 'l';
    if (type >= 0 && is_text(type)) col->kind = 's';
    const bool good = col->name && col->kind &&
                      (!element || strcmp(element, "i32") == 0 || strcmp(element, "i64") == 0 ||
                       strcmp(element, "f64") == 0);
    if (type >= 0) H5Tclose(type);
    H5free_memory(name);
    return good;
}

static const char *table_kind(hid_t type, int64_t rows, dq_object_list *l)
{
    enum { MAX_COLUMNS = 64 };
    dq_h5_column col[MAX_COLUMNS];
    const int n = H5Tget_nmembers(type);
    if (n < 0 || n > MAX_COLUMNS) return "table";
    for (int i = 0; i < n; i++) {
        if (!table_column(&col[i], type, (unsigned)i, l)) return "table";
    }
    return dq_object_list_table(l, rows, col, n);
}

static const char *dataset_kind(dq_container_h5 *r, hid_t dataset, dq_object_list *l)
{
    hsize_t dim[H5S_MAX_RANK];
    int64_t shape[DQ_MAX_DIMS];
    char buf[16];
    hid_t type = dq_h5_keep(&r->h, H5Dget_type(dataset));
    hid_t space = dq_h5_keep(&r->h, H5Dget_space(dataset));
    const int n = space < 0 ? -1 : H5Sget_simple_extent_dims(space, dim, NULL);
    if (type < 0 || n < 0 || n > DQ_MAX_DIMS || H5Sget_simple_extent_type(space) == H5S_NULL)
        return "dataset of another type";
    for (int i = 0; i < n; i++) shape[i] = (int64_t)dim[i];
    if (H5Tget_class(type) == H5T_COMPOUND && n == 1) return table_kind(type, shape[0], l);
    const char *element = type_name(buf, type);
    if (is_text(type)) element = "text";
    return element ? dq_object_list_kind(l, element, n, shape) : "dataset of another type";
}

/* Texts of variable length, as h5py reads them. */
static void add_labels(dq_object_list *l, const char *name, hid_t a, hid_t type, hid_t space, int n)
{
    char **v = dq_alloc(l->arena, (size_t)n, sizeof *v, l->err);
    const char **text = dq_alloc(l->arena, (size_t)n, sizeof *text, l->err);
    if (!v || !text) return;
    if (H5Aread(a, type, v) < 0) {
        other(l, name);
        return;
    }
    for (int i = 0; i < n; i++) {
        const char *s = v[i] ? v[i] : "";
        text[i] = dq_text(l->arena, s, strlen(s), l->err);
    }
    H5Dvlen_reclaim(type, space, H5P_DEFAULT, v);
    if (l->err->code == DQ_OK) dq_object_list_texts(l, name, text, n);
}

/* A NUL does not end the text, so that nothing hides after it. */
static void add_text(dq_object_list *l, const char *name, hid_t a, hid_t type)
{
    const size_t bytes = H5Tget_size(type);
    char *buf = dq_alloc(l->arena, bytes + 1, 1, l->err);
    const char *text = buf;
    if (!text) return;
    const bool read = H5Aread(a, type, buf) >= 0;
    const size_t len = strlen(text); /* an empty text is one padding byte */
    if (!read || (len ? len : 1) != bytes)
        other(l, name);
    else
        dq_object_list_texts(l, name, &text, 0);
}

static void add_numbers(dq_object_list *l, const char *name, hid_t a, hid_t type, int dims, int n)
{
    const bool whole = H5Tequal(type, H5T_STD_I64LE) > 0;
    void *v = dq_alloc(l->arena, (size_t)n, 8, l->err);
    if (!v) return;
    if ((!whole && (H5Tequal(type, H5T_IEEE_F64LE) <= 0 || dims != 0)) ||
        H5Aread(a, whole ? H5T_NATIVE_INT64 : H5T_NATIVE_DOUBLE, v) < 0)
        other(l, name);
    else if (whole)
        dq_object_list_ints(l, name, v, dims ? n : 0);
    else
        dq_object_list_real(l, name, *(const double *)v);
}

static void add_attribute(dq_container_h5 *r, hid_t object, const char *name, dq_object_list *l)
{
    const int mark = r->h.n;
    hid_t a = dq_h5_keep(&r->h, H5Aopen(object, name, H5P_DEFAULT));
    hid_t type = a < 0 ? a : dq_h5_keep(&r->h, H5Aget_type(a));
    hid_t space = a < 0 ? a : dq_h5_keep(&r->h, H5Aget_space(a));
    const int dims = space < 0 ? -1 : H5Sget_simple_extent_ndims(space);
    const hssize_t n = space < 0 ? 0 : H5Sget_simple_extent_npoints(space);
    const size_t bytes = type < 0 ? 0 : H5Tget_size(type);
    const bool read = bytes > 0 && dims >= 0 && dims <= 1 && n > 0 && n <= MAX_ATTRIBUTE &&
                      bytes <= MAX_ATTRIBUTE && (size_t)n * bytes <= MAX_ATTRIBUTE;
    const H5T_class_t class = read ? H5Tget_class(type) : H5T_NO_CLASS;
    if (read && dims == 1 && H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) > 0 &&
        H5Tget_cset(type) == H5T_CSET_ASCII && H5Tget_strpad(type) == H5T_STR_NULLTERM)
        add_labels(l, name, a, type, space, (int)n);
    else if (read && dims == 0 && is_text(type))
        add_text(l, name, a, type);
    else if (class == H5T_INTEGER || class == H5T_FLOAT)
        add_numbers(l, name, a, type, dims, (int)n);
    else
        other(l, name);
    dq_h5_drop(&r->h, mark);
}

typedef struct name_list {
    dq_arena *arena;
    dq_err *err;
    const char **name;
    size_t n, capacity;
} name_list;

static herr_t note(name_list *to, const char *name)
{
    const char **grown =
        dq_grow(to->arena, to->name, to->n + 1, &to->capacity, sizeof *grown, to->err);
    if (!grown) return -1;
    to->name = grown;
    to->name[to->n] = dq_text(to->arena, name, strlen(name), to->err);
    return to->name[to->n++] ? 0 : -1;
}

static herr_t note_attribute(hid_t at, const char *name, const H5A_info_t *info, void *arg)
{
    (void)at;
    (void)info;
    name_list *to = arg;
    return to->n < MAX_ATTRIBUTES ? note(to, name) : -1;
}

static herr_t note_link(hid_t at, const char *name, const H5L_info_t *info, void *arg)
{
    (void)at;
    (void)info;
    return note(arg, name);
}

typedef struct lines {
    const char **line;
    size_t n;
    dq_arena *arena;
} lines;

static size_t count_lines(const char *text, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) n += text[i] == '\n';
    return n;
}

static dq_status split(lines *l, const char *of, const char *text, size_t len, dq_err *err)
{
    const char *end = text + len;
    l->n = count_lines(text, len);
    l->line = dq_alloc(l->arena, l->n + 1, sizeof *l->line, err);
    if (!l->line) return err->code;
    for (size_t i = 0; i < l->n; i++) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        l->line[i] = dq_text(l->arena, text, (size_t)(stop - text), err);
        if (!l->line[i]) return err->code;
        if (i > 0 && strcmp(l->line[i - 1], l->line[i]) >= 0)
            return dq_fail(err, DQ_DAMAGED, "%s: %s: lines are not in order", of, DQ_PATH_OBJECTS);
        text = stop + 1;
    }
    return DQ_OK;
}

static const char *path_of(const char *line, dq_arena *a, dq_err *err)
{
    const size_t n = strcspn(line, "\t");
    char *out = dq_alloc(a, n + 1, 1, err), *to = out;
    for (size_t i = 0; out && i < n; i++) {
        char c = line[i];
        if (c == '\\' && i + 1 < n) {
            c = line[++i];
            c = c == 't' ? '\t' : c == 'n' ? '\n' : c;
        }
        *to++ = c;
    }
    if (out) *to = 0;
    return out;
}

static dq_status check_line(const dq_container *c, dq_container_h5 *r, const char *line,
                            dq_arena *a, dq_err *err)
{
    dq_object_list list = {.arena = a, .err = err};
    const char *path = path_of(line, a, err), *found;
    size_t len;
    if (!path) return err->code;
    const int mark = r->h.n;
    name_list attributes = {.arena = a, .err = err};
    H5L_info_t link = {.type = H5L_TYPE_HARD};
    const bool there =
        strcmp(path, "/") == 0 || H5Lget_info(r->file, path, &link, H5P_DEFAULT) >= 0;
    hid_t o = !there || link.type != H5L_TYPE_HARD
                  ? H5I_INVALID_HID
                  : dq_h5_keep(&r->h, H5Oopen(r->file, path, H5P_DEFAULT));
    const H5I_type_t type = o < 0 ? H5I_BADID : H5Iget_type(o);
    dq_object_list_add(&list, path,
                       !there                                       ? "missing"
                       : (o >= 0 && H5Oget_comment(o, NULL, 0) > 0) ? "an object with a comment"
                       : type == H5I_GROUP                          ? "group"
                       : type == H5I_DATASET                        ? dataset_kind(r, o, &list)
                                                                    : "no group or dataset");
    if (type == H5I_GROUP || type == H5I_DATASET) {
        if (H5Aiterate2(o, H5_INDEX_NAME, H5_ITER_NATIVE, NULL, note_attribute, &attributes) < 0)
            other(&list, "(attributes that cannot be listed)");
        for (size_t i = 0; i < attributes.n && err->code == DQ_OK; i++)
            add_attribute(r, o, attributes.name[i], &list);
    }
    dq_h5_drop(&r->h, mark);
    DQ_TRY(dq_object_list_end(&list, &found, &len));
    found = dq_text(a, found, len - 1, err); /* without the newline */
    const char *wrong = found ? dq_object_list_differs(line, found, a, err) : NULL;
    if (err->code == DQ_OK && wrong) dq_fail(err, DQ_DAMAGED, "%s: %s: %s", c->path, path, wrong);
    return err->code;
}

static int by_path(const void *key, const void *item)
{
    const char *path = key, *line = *(const char *const *)item;
    const size_t n = strlen(path);
    const int order = strncmp(path, line, n);
    return order ? order : line[n] == '\t' ? 0 : '\t' - (unsigned char)line[n];
}

static dq_status check_links(const dq_container *c, dq_container_h5 *r, const lines *l,
                             const char *line, dq_arena *a, dq_err *err)
{
    const char **name, *group = path_of(line, a, err);
    const size_t n_path = strcspn(line, "\t");
    size_t n;
    if (!group || strncmp(line + n_path, "\tgroup", 6) != 0) return err->code;
    const int mark = r->h.n;
    name_list links = {.arena = a, .err = r->err};
    hid_t g = dq_h5_keep(&r->h, H5Gopen2(r->file, group, H5P_DEFAULT));
    if (g >= 0 && H5Literate(g, H5_INDEX_NAME, H5_ITER_NATIVE, NULL, note_link, &links) < 0 &&
        r->err->code == DQ_OK)
        dq_fail(r->err, DQ_DAMAGED, "%s: %s: its links cannot be listed", r->path, group);
    dq_h5_drop(&r->h, mark);
    name = links.name;
    n = links.n;
    DQ_TRY(r->err->code);
    for (size_t i = 0; i < n; i++) {
        const char *path = dq_textf(a, err, "%s/%s", n_path == 1 ? "" : group, name[i]);
        const char *listed = path ? plain_text(path, a, err) : NULL;
        if (!listed) return err->code;
        if (!bsearch(listed, l->line, l->n, sizeof *l->line, by_path))
            return dq_fail(err, DQ_DAMAGED, "%s: %s: was not written with the file", c->path, path);
    }
    return DQ_OK;
}

static dq_status check_all(const dq_container *c, dq_container_h5 *r, lines *l, dq_err *err)
{
    /* HDF5's signature: /objects lists everything, from the first byte of the file to the last. */
    static const uint8_t signature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    haddr_t end = 0;
    if (c->map.bytes < sizeof signature || memcmp(c->map.data, signature, sizeof signature) != 0)
        return dq_fail(err, DQ_DAMAGED,
                       "%s: HDF5 does not begin with the file: a block was put before it", c->path);
    if (H5Fget_eoa(r->file, &end) < 0 || end != c->map.bytes)
        return dq_fail(err, DQ_DAMAGED, "%s: has %lld bytes (expected %lld, where HDF5 ends)",
                       c->path, (long long)c->map.bytes, (long long)end);
    DQ_TRY(split(l, c->path, c->objects, c->objects_len, err));
    for (size_t i = 0; i < l->n && err->code == DQ_OK; i++) {
        dq_arena *a = dq_arena_new(); /* of one object: there may be many */
        if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
        if (check_line(c, r, l->line[i], a, err) == DQ_OK) check_links(c, r, l, l->line[i], a, err);
        dq_arena_free(a);
    }
    return err->code;
}

int64_t dq_container_n_objects(const dq_container *c)
{
    return (int64_t)count_lines(c->objects, c->objects_len);
}

static dq_status compare_lines(const lines *want, const lines *found, dq_arena *a, dq_err *err)
{
    for (size_t i = 0; i < want->n || i < found->n; i++) {
        const char *w = i < want->n ? want->line[i] : NULL;
        const char *f = i < found->n ? found->line[i] : NULL;
        if (w && f && strcmp(w, f) == 0) continue;
        const char *path = path_of(w ? w : f, a, err);
        const bool same = path && w && f && by_path(plain_text(path, a, err), &f) == 0;
        const char *wrong = same ? dq_object_list_differs(w, f, a, err) : NULL;
        if (err->code != DQ_OK) return err->code;
        if (same)
            return dq_fail(err, DQ_DAMAGED, "%s: not as the source gives it: %s", path, wrong);
        return dq_fail(err, DQ_DAMAGED, "%s: the source gives other objects here", path);
    }
    return DQ_OK;
}

dq_status dq_container_compare_objects(const dq_container *c, const char *want, size_t len,
                                       dq_err *err)
{
    dq_arena *a = dq_arena_new();
    lines expected = {.arena = a}, found = {.arena = a};
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (split(&expected, "the source", want, len, err) == DQ_OK &&
        split(&found, c->path, c->objects, c->objects_len, err) == DQ_OK)
        compare_lines(&expected, &found, a, err);
    dq_arena_free(a);
    return err->code;
}

dq_status dq_container_check_objects(const dq_container *c, dq_err *err)
{
    dq_container_h5 r;
    lines l = {.arena = dq_arena_new()};
    if (!l.arena) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (dq_container_h5_open(&r, &c->map, c->path, err) == DQ_OK) {
        check_all(c, &r, &l, err);
        dq_container_h5_close(&r);
    }
    dq_arena_free(l.arena);
    return err->code;
}
