/* object_list: the objects of a container as lines of text, which stands in /objects and is hashed with all other payloads:
 *
 *   PATH \t KIND \t NAME=VALUE \t NAME=VALUE ...
 *
 * one line a group or dataset, in path order, attributes in the order of their names. KIND: "group"; a type with the
 * dataset's dimensions, "f16[64,2]", "text"; "table[3]{path:text40@0,...}". VALUE: "i64:4", "i64:[64,128]", "f64:4.125" (%.17g),
 * "text:absmax", "text:[out,in]"; a backslash, a tab and a newline of a text are \\, \t and \n. A comma in an array of texts is
 * \, and the bracket that a text begins with which is no array is \[. What writes a container and what reads it make lines by
 * the same functions.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_OBJECT_LIST_H
#define DQ_OBJECT_LIST_H

#include "checkpoint/h5.h"

/* Lines in the making; texts live in the arena. The first failure stays in *err, and what follows does nothing. */
typedef struct dq_object_list {
    dq_arena *arena;
    dq_err *err;
    const char *object; /* "PATH\tKIND" of the object at hand; NULL: none */
    const char **attribute, **line;
    size_t n_attributes, attribute_capacity, n_lines, line_capacity;
} dq_object_list;

/* One more object, which the attributes that follow belong to. */
void dq_object_list_add(dq_object_list *l, const char *path, const char *kind);
/* n integers; 0: one that is no array. */
void dq_object_list_ints(dq_object_list *l, const char *name, const int64_t *v, int n);
void dq_object_list_real(dq_object_list *l, const char *name, double v);
/* n texts; 0: one that is no array. */
void dq_object_list_texts(dq_object_list *l, const char *name, const char *const *v, int n);
/* A value of a type that dq does not write. */
void dq_object_list_other(dq_object_list *l, const char *name);
/* "f16[64,2]", in the arena; NULL after a failure. dtype: lower-case name of the element. */
const char *dq_object_list_kind(dq_object_list *l, const char *type, int n_dims,
                                const int64_t *shape);
/* Of a table with these rows. */
const char *dq_object_list_table(dq_object_list *l, int64_t rows, const dq_h5_column *col, int n);
/* "f32", in buf. */
const char *dq_object_list_dtype(char buf[16], dq_dtype dtype);
/* A text with its backslashes, tabs and newlines spelled out, in the arena. */
const char *dq_object_list_plain(const char *text, dq_arena *a, dq_err *err);
/* All lines, each with a newline, in order. */
dq_status dq_object_list_end(dq_object_list *l, const char **text, size_t *len);

/* What is wrong with an object, whose line was `written` and is `found` now, both without a newline: "attribute bits is i64:9
 * (expected i64:8)"; in the arena. NULL: nothing, or *err. */
const char *dq_object_list_differs(const char *written, const char *found, dq_arena *a,
                                   dq_err *err);

#endif
