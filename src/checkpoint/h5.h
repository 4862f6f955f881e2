/* h5: what reading and writing containers share of HDF5: identifiers that close together, element
 * types, the layout of the tables. Private to checkpoint (tests/layers.sh).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_H5_H
#define DQ_H5_H

#include "checkpoint/container.h"

#include <hdf5.h>
#include <string.h>

hid_t dq_h5_text_type(size_t len); /* fixed length, UTF-8, NUL-padded */

typedef struct dq_h5_column {
    const char *name;
    char kind; /* 's' text, 'i' int32, 'l' int64, 'd' float64 */
    size_t at, bytes;
} dq_h5_column;
enum {
    DQ_COL_PATH,
    DQ_COL_ENCODING,
    DQ_COL_BITS,
    DQ_COL_GROUP,
    DQ_COL_ROWS,
    DQ_COL_COLS,
    DQ_COL_BYTES,
    DQ_COL_BPW,
    DQ_COL_SQNR,
    DQ_COL_SHA,
    DQ_INDEX_COLUMNS
};
/* Lays out the columns without gaps, texts of `len` bytes in the first; returns the row's bytes. */
size_t dq_h5_index_columns(dq_h5_column col[DQ_INDEX_COLUMNS], size_t len);

/* ---- Object list ----
 * The objects of a container as lines of text, which stands in /objects and is hashed with all
 * other payloads:
 *
 *   PATH \t KIND \t NAME=VALUE \t NAME=VALUE ...
 *
 * one line a group or dataset, in path order, attributes in the order of their names. KIND:
 * "group"; a type with the dataset's dimensions, "f16[64,2]", "text";
 * "table[3]{path:text40@0,...}". VALUE: "i64:4", "i64:[64,128]", "f64:4.125" (%.17g),
 * "text:absmax", "text:[out,in]"; a backslash, a tab and a newline of a text are \\, \t and \n. A
 * comma in an array of texts is \, and the bracket that a text begins with which is no array is
 * \[. What writes a container and what reads it make lines by the same functions. */

/* Texts live in the arena. The first failure stays in *err and makes later calls do nothing. */
typedef struct dq_object_list {
    dq_arena *arena;
    dq_err *err;
    const char *object; /* "PATH\tKIND" of the object at hand; NULL: none */
    const char **attribute, **line;
    size_t n_attributes, attribute_capacity, n_lines, line_capacity;
} dq_object_list;

/* Begins an object; the attributes that follow belong to it. */
void dq_object_list_add(dq_object_list *l, const char *path, const char *kind);
/* n integers; 0: a scalar. */
void dq_object_list_ints(dq_object_list *l, const char *name, const int64_t *v, int n);
void dq_object_list_real(dq_object_list *l, const char *name, double v);
/* n texts; 0: a scalar. */
void dq_object_list_texts(dq_object_list *l, const char *name, const char *const *v, int n);
/* "f16[64,2]", in the arena; NULL after a failure. dtype: lower-case name of the element. */
const char *dq_object_list_kind(dq_object_list *l, const char *type, int n_dims,
                                const int64_t *shape);
dq_status dq_object_list_end(dq_object_list *l, const char **text, size_t *len);

/* "attribute bits is i64:9 (expected i64:8)" for two lines without newline; NULL: equal, or
 * *err. */
const char *dq_object_list_differs(const char *written, const char *found, dq_arena *a,
                                   dq_err *err);

#endif
