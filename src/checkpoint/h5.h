/* h5: what reading and writing containers share of HDF5: identifiers that close together, element
 * types, the layout of the tables. Private to checkpoint (tests/layers.sh).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_H5_H
#define DQ_H5_H

#include "tensor/tensor.h"

#include <hdf5.h>

#define DQ_H5_FORMAT  "dq-model"
#define DQ_H5_VERSION "1.0"

enum {
    DQ_H5_IDS = 64,
    DQ_H5_ALIGN = 4096,
    DQ_H5_ENCODING = 12, /* width of the column `encoding` */
    DQ_H5_SHA = 64
};

/* Identifiers of any kind, closed in reverse order. */
typedef struct dq_h5 {
    hid_t id[DQ_H5_IDS];
    int n;
} dq_h5;

/* Before every use of the library: its own messages are off (dq says in one line what is wrong), it loads
 * no code from a folder of plugins, and no file leads into another one. */
void dq_h5_setup(void);
void dq_h5_begin(dq_h5 *h); /* sets up first */
/* Remembers id and returns it; a negative id is passed through. */
hid_t dq_h5_keep(dq_h5 *h, hid_t id);
/* Closes what was opened after `mark` identifiers. False when a close failed. */
bool dq_h5_drop(dq_h5 *h, int mark);

/* File access as dq uses it: no lock (read-only file systems), strong close. */
hid_t dq_h5_access(dq_h5 *h, bool writing);

/* Opens a file to read it. DQ_FILE where it cannot be opened at all, DQ_DAMAGED where it is none of HDF5. */
dq_status dq_h5_open(hid_t *out, dq_h5 *h, const char *path, dq_err *err);

/* New identifiers, for the caller to keep. Negative when there is no such type. */
hid_t dq_h5_type(dq_dtype dtype);
hid_t dq_h5_text_type(size_t len); /* fixed length, UTF-8, NUL-padded */

/* One column of a table. */
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
enum { DQ_COL_NAME, DQ_COL_SIZE, DQ_COL_FILE_SHA, DQ_SOURCE_COLUMNS };
/* Fills the columns without gaps for texts of `len` bytes in the first; returns the row's bytes. */
size_t dq_h5_index_columns(dq_h5_column col[DQ_INDEX_COLUMNS], size_t len);
size_t dq_h5_source_columns(dq_h5_column col[DQ_SOURCE_COLUMNS], size_t len);
hid_t dq_h5_table_type(dq_h5 *h, const dq_h5_column *col, int n, size_t row_bytes);

#endif
