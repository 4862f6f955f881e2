/* h5: see h5.h. Handles go on a stack as they are opened, and are closed down to a mark in reverse order. Payloads
 * lie on pages of their own (DQ_H5_ALIGN), so that they can be mapped; links out of the file and plugins are
 * switched off.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/h5.h"

#include "base/os.h"

#include <stdio.h>
#include <string.h>

void dq_h5_setup(void)
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    H5PLset_loading_state(0);
    H5Lunregister(H5L_TYPE_EXTERNAL);
}

void dq_h5_begin(dq_h5 *h)
{
    memset(h, 0, sizeof *h);
    dq_h5_setup();
}

hid_t dq_h5_keep(dq_h5 *h, hid_t id)
{
    if (id < 0) return id;
    if (h->n == DQ_H5_IDS) { /* never reached: callers drop as they go */
        H5Idec_ref(id);
        return H5I_INVALID_HID;
    }
    h->id[h->n++] = id;
    return id;
}

bool dq_h5_drop(dq_h5 *h, int mark)
{
    bool good = true;
    while (h->n > mark) good = H5Idec_ref(h->id[--h->n]) >= 0 && good;
    return good;
}

hid_t dq_h5_access(dq_h5 *h, bool writing)
{
    hid_t p = dq_h5_keep(h, H5Pcreate(H5P_FILE_ACCESS));
    if (p < 0) return p;
    bool good = H5Pset_libver_bounds(p, H5F_LIBVER_V18, H5F_LIBVER_V110) >= 0 &&
                H5Pset_fclose_degree(p, H5F_CLOSE_STRONG) >= 0;
#if H5_VERSION_GE(1, 10, 7)
    good = H5Pset_file_locking(p, false, true) >= 0 && good;
#endif
    /* every payload on its own page, so that it can be mapped and written in place */
    if (writing)
        good = H5Pset_alignment(p, 1, DQ_H5_ALIGN) >= 0 &&
               H5Pset_small_data_block_size(p, 0) >= 0 && good;
    return good ? p : H5I_INVALID_HID;
}

dq_status dq_h5_open(hid_t *out, dq_h5 *h, const char *path, dq_err *err)
{
    *out = dq_h5_keep(h, H5Fopen(path, H5F_ACC_RDONLY, dq_h5_access(h, false)));
    if (*out >= 0) return DQ_OK;
    FILE *f = fopen(path, "rb"); /* HDF5 does not say which of the two it was */
    if (!f) return dq_os_fail(err, path, "cannot open");
    fclose(f);
    return dq_fail(err, DQ_DAMAGED,
                   "%s: not a whole HDF5 file (truncated, damaged, or another format)", path);
}

/* A 16-bit float: sign in bit 15, then `exp` bits of exponent, then the fraction. */
static hid_t half_type(size_t exp, size_t bias)
{
    hid_t t = H5Tcopy(H5T_IEEE_F32LE);
    size_t fraction = 15 - exp;
    if (t < 0) return t;
    /* each step must leave a valid type: first the fields, then the smaller size */
    if (H5Tset_fields(t, 15, fraction, exp, 0, fraction) >= 0 && H5Tset_precision(t, 16) >= 0 &&
        H5Tset_offset(t, 0) >= 0 && H5Tset_size(t, 2) >= 0 && H5Tset_ebias(t, bias) >= 0)
        return t;
    H5Tclose(t);
    return H5I_INVALID_HID;
}

hid_t dq_h5_type(dq_dtype dtype)
{
    switch (dtype) {
    case DQ_F32: return H5Tcopy(H5T_IEEE_F32LE);
    case DQ_F64: return H5Tcopy(H5T_IEEE_F64LE);
    case DQ_F16: return half_type(5, 15);
    case DQ_BF16: return half_type(8, 127);
    case DQ_I64: return H5Tcopy(H5T_STD_I64LE);
    case DQ_I32: return H5Tcopy(H5T_STD_I32LE);
    case DQ_I16: return H5Tcopy(H5T_STD_I16LE);
    case DQ_I8: return H5Tcopy(H5T_STD_I8LE);
    case DQ_U64: return H5Tcopy(H5T_STD_U64LE);
    case DQ_U32: return H5Tcopy(H5T_STD_U32LE);
    case DQ_U16: return H5Tcopy(H5T_STD_U16LE);
    case DQ_U8: return H5Tcopy(H5T_STD_U8LE);
    default: return H5I_INVALID_HID;
    }
}

hid_t dq_h5_text_type(size_t len)
{
    hid_t t = H5Tcopy(H5T_C_S1);
    if (t < 0) return t;
    if (H5Tset_size(t, len ? len : 1) >= 0 && H5Tset_cset(t, H5T_CSET_UTF8) >= 0 &&
        H5Tset_strpad(t, H5T_STR_NULLPAD) >= 0)
        return t;
    H5Tclose(t);
    return H5I_INVALID_HID;
}

static size_t place(dq_h5_column *col, int n, size_t first, size_t text)
{
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        switch (col[i].kind) {
        case 'i': col[i].bytes = 4; break;
        case 's': col[i].bytes = i == 0 ? first : i == 1 ? text : DQ_H5_SHA; break;
        default: col[i].bytes = 8; break;
        }
        col[i].at = at;
        at += col[i].bytes;
    }
    return at;
}

size_t dq_h5_index_columns(dq_h5_column col[DQ_INDEX_COLUMNS], size_t len)
{
    static const dq_h5_column names[DQ_INDEX_COLUMNS] = {
        [DQ_COL_PATH] = {"path", 's', 0, 0},    [DQ_COL_ENCODING] = {"encoding", 's', 0, 0},
        [DQ_COL_BITS] = {"bits", 'i', 0, 0},    [DQ_COL_GROUP] = {"group_size", 'l', 0, 0},
        [DQ_COL_ROWS] = {"rows", 'l', 0, 0},    [DQ_COL_COLS] = {"cols", 'l', 0, 0},
        [DQ_COL_BYTES] = {"bytes", 'l', 0, 0},  [DQ_COL_BPW] = {"bits_per_weight", 'd', 0, 0},
        [DQ_COL_SQNR] = {"sqnr_db", 'd', 0, 0}, [DQ_COL_SHA] = {"sha256", 's', 0, 0},
    };
    memcpy(col, names, sizeof names);
    return place(col, DQ_INDEX_COLUMNS, len, DQ_H5_ENCODING);
}

size_t dq_h5_source_columns(dq_h5_column col[DQ_SOURCE_COLUMNS], size_t len)
{
    static const dq_h5_column names[DQ_SOURCE_COLUMNS] = {
        [DQ_COL_NAME] = {"name", 's', 0, 0},
        [DQ_COL_SIZE] = {"bytes", 'l', 0, 0},
        [DQ_COL_FILE_SHA] = {"sha256", 's', 0, 0},
    };
    memcpy(col, names, sizeof names);
    return place(col, DQ_SOURCE_COLUMNS, len, DQ_H5_SHA);
}

static hid_t column_type(const dq_h5_column *col)
{
    switch (col->kind) {
    case 's': return dq_h5_text_type(col->bytes);
    case 'i': return H5Tcopy(H5T_STD_I32LE);
    case 'l': return H5Tcopy(H5T_STD_I64LE);
    default: return H5Tcopy(H5T_IEEE_F64LE);
    }
}

hid_t dq_h5_table_type(dq_h5 *h, const dq_h5_column *col, int n, size_t row_bytes)
{
    hid_t t = dq_h5_keep(h, H5Tcreate(H5T_COMPOUND, row_bytes));
    for (int i = 0; t >= 0 && i < n; i++) {
        hid_t m = column_type(&col[i]);
        bool good = m >= 0 && H5Tinsert(t, col[i].name, col[i].at, m) >= 0;
        if (m >= 0) H5Tclose(m);
        if (!good) return H5I_INVALID_HID;
    }
    return t;
}
