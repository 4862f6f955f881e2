/* The file is made under a partial name and renamed when it is whole. Data sets are contiguous,
 * their space is taken when they are made, and time stamps are off: equal numbers give equal
 * bytes.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "checkpoint/inside.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void h5_setup(void);

enum { PATH_CAP = 4096, MAX_TEXT = 60000 };

struct dq_h5_result {
    hid_t file, matrix;
    int64_t cols;
    char path[PATH_CAP], partial[PATH_CAP + 16];
};

/* HDF5 1.10 crashes when it closes at exit what it failed to close on a full disk. Every file is
 * closed by its owner, so the exit handler is switched off, before the library's first use and
 * hence before main. */
#if defined(__GNUC__)
__attribute__((constructor)) static void no_work_at_exit(void)
{
    H5dont_atexit();
}
#endif

dq_status dq_h5_result_check(const char *path, bool force, dq_err *err)
{
    size_t n = strlen(path);
    dq_os_map map;
    if (n == 0 || strcmp(path, "-") == 0)
        return dq_fail_with(err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_OUTPUT},
                            "an HDF5 file needs a name; it cannot go to a pipe.");
    if (n >= PATH_CAP) return dq_fail(err, DQ_FILE, "%.60s...: path too long", path);
    if (dq_file_is_dir(path))
        return dq_fail(err, DQ_FILE, "%s: is a folder. Name a file in it.", path);
    DQ_TRY(dq_file_check_folder(path, err));
    if (!dq_file_exists(path)) return DQ_OK;
    DQ_TRY(dq_os_map_open(&map, path, err)); /* refuses devices and pipes */
    dq_os_map_close(&map);
    if (!force)
        return dq_fail_with(err, DQ_FILE, (dq_remedy){.code = DQ_REMEDY_FORCE}, "%s: exists.",
                            path);
    return DQ_OK;
}

static dq_status fail_write(const dq_h5_result *h, dq_err *err)
{
    int64_t left = dq_file_disk_free(h->path);
    char space[64] = "";
    if (left >= 0) snprintf(space, sizeof space, " (%lld bytes are free)", (long long)left);
    return dq_fail(
        err, DQ_FILE,
        "%s: cannot write%s. Is the disk full, or a limit on file sizes in the way (ulimit -f)?",
        h->path, space);
}

/* Time stamps off, so that equal numbers give equal files. */
static hid_t plain_list(hid_t class)
{
    hid_t p = H5Pcreate(class);
    if (p >= 0 && H5Pset_obj_track_times(p, 0) < 0) {
        H5Pclose(p);
        p = H5I_INVALID_HID;
    }
    return p;
}

dq_status dq_h5_result_new(dq_h5_result **out, const char *path, bool force, dq_err *err)
{
    *out = NULL;
    DQ_TRY(dq_h5_result_check(path, force, err));
    dq_h5_result *h = dq_block_new(1, sizeof *h, err);
    if (!h) return err->code;
    h5_setup();
    h->matrix = H5I_INVALID_HID;
    snprintf(h->path, sizeof h->path, "%s", path);
    snprintf(h->partial, sizeof h->partial, "%s.partial", path);
    /* HDF5 gives no reason for a failure; the C library does. */
    errno = 0;
    FILE *f = fopen(h->partial, "wb");
    int reason = errno;
    hid_t create = plain_list(H5P_FILE_CREATE), access = H5Pcreate(H5P_FILE_ACCESS);
    h->file = H5I_INVALID_HID;
    if (f) {
        fclose(f);
        if (create >= 0 && access >= 0 && H5Pset_fclose_degree(access, H5F_CLOSE_STRONG) >= 0)
            h->file = H5Fcreate(h->partial, H5F_ACC_TRUNC, create, access);
        reason = errno;
        if (h->file < 0) remove(h->partial);
    }
    if (create >= 0) H5Pclose(create);
    if (access >= 0) H5Pclose(access);
    if (h->file < 0) {
        dq_fail(err, DQ_FILE, "%s: cannot create the file %s.partial beside it%s%s", path, path,
                reason ? ": " : "", reason ? strerror(reason) : "");
        dq_block_free(h);
        return err->code;
    }
    *out = h;
    return DQ_OK;
}

void dq_h5_result_drop(dq_h5_result *h)
{
    if (!h) return;
    if (h->matrix >= 0) H5Dclose(h->matrix);
    if (h->file >= 0) H5Fclose(h->file);
    remove(h->partial);
    dq_block_free(h);
}

dq_status dq_h5_result_close(dq_h5_result *h, dq_err *err)
{
    bool good = h->matrix < 0 || H5Dclose(h->matrix) >= 0;
    h->matrix = H5I_INVALID_HID;
    if (h->file >= 0) {
        good = H5Fflush(h->file, H5F_SCOPE_GLOBAL) >= 0 && good;
        good = H5Fclose(h->file) >= 0 && good;
    }
    h->file = H5I_INVALID_HID;
    return good ? DQ_OK : fail_write(h, err);
}

dq_status dq_h5_result_commit(dq_h5_result **to, dq_err *err)
{
    dq_h5_result *h = *to;
    *to = NULL;
    if (dq_h5_result_close(h, err) == DQ_OK) dq_file_commit(h->partial, h->path, err);
    if (err->code != DQ_OK) remove(h->partial);
    dq_block_free(h);
    return err->code;
}

dq_status dq_h5_result_group(dq_h5_result *h, const char *name, dq_err *err)
{
    hid_t list = plain_list(H5P_GROUP_CREATE);
    hid_t g = list >= 0 ? H5Gcreate2(h->file, name, H5P_DEFAULT, list, H5P_DEFAULT) : list;
    bool good = g >= 0 && H5Gclose(g) >= 0;
    if (list >= 0) H5Pclose(list);
    return good ? DQ_OK : fail_write(h, err);
}

static hid_t type_of(dq_h5_result_type type, bool memory)
{
    switch (type) {
    case DQ_OUT_I32: return memory ? H5T_NATIVE_INT32 : H5T_STD_I32LE;
    case DQ_OUT_I64: return memory ? H5T_NATIVE_INT64 : H5T_STD_I64LE;
    case DQ_OUT_F32: return memory ? H5T_NATIVE_FLOAT : H5T_IEEE_F32LE;
    case DQ_OUT_F64: return memory ? H5T_NATIVE_DOUBLE : H5T_IEEE_F64LE;
    }
    return H5I_INVALID_HID;
}

/* Space is allocated now, and no fill values are written. */
static hid_t new_dataset(dq_h5_result *h, const char *name, dq_h5_result_type type, int n_dims,
                         const int64_t *shape)
{
    hsize_t dims[4];
    hid_t d = H5I_INVALID_HID;
    if (n_dims < 1 || n_dims > 4) return d;
    for (int i = 0; i < n_dims; i++) dims[i] = (hsize_t)shape[i];
    hid_t space = H5Screate_simple(n_dims, dims, NULL), list = plain_list(H5P_DATASET_CREATE);
    if (space >= 0 && list >= 0 && H5Pset_alloc_time(list, H5D_ALLOC_TIME_EARLY) >= 0 &&
        H5Pset_fill_time(list, H5D_FILL_TIME_NEVER) >= 0)
        d = H5Dcreate2(h->file, name, type_of(type, false), space, H5P_DEFAULT, list, H5P_DEFAULT);
    if (space >= 0) H5Sclose(space);
    if (list >= 0) H5Pclose(list);
    return d;
}

dq_status dq_h5_result_array(dq_h5_result *h, const char *name, dq_h5_result_type type, int n_dims,
                             const int64_t *shape, const void *data, dq_err *err)
{
    hid_t d = new_dataset(h, name, type, n_dims, shape);
    if (d < 0) return fail_write(h, err);
    bool good = H5Dwrite(d, type_of(type, true), H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0;
    good = H5Dclose(d) >= 0 && good;
    return good ? DQ_OK : fail_write(h, err);
}

dq_status dq_h5_result_matrix(dq_h5_result *h, const char *name, int64_t rows, int64_t cols,
                              dq_err *err)
{
    const int64_t shape[2] = {rows, cols};
    if (h->matrix >= 0 && H5Dclose(h->matrix) < 0) return fail_write(h, err);
    h->matrix = new_dataset(h, name, DQ_OUT_F32, 2, shape);
    h->cols = cols;
    return h->matrix >= 0 ? DQ_OK : fail_write(h, err);
}

dq_status dq_h5_result_rows(dq_h5_result *h, int64_t first, int64_t n, const float *data,
                            dq_err *err)
{
    const hsize_t start[2] = {(hsize_t)first, 0}, count[2] = {(hsize_t)n, (hsize_t)h->cols};
    hid_t file = H5Dget_space(h->matrix), memory = H5Screate_simple(2, count, NULL);
    bool good = file >= 0 && memory >= 0 &&
                H5Sselect_hyperslab(file, H5S_SELECT_SET, start, NULL, count, NULL) >= 0 &&
                H5Dwrite(h->matrix, H5T_NATIVE_FLOAT, memory, file, H5P_DEFAULT, data) >= 0;
    if (file >= 0) H5Sclose(file);
    if (memory >= 0) H5Sclose(memory);
    return good ? DQ_OK : fail_write(h, err);
}

static dq_status put_attribute(dq_h5_result *h, const char *object, const char *name, hid_t stored,
                               hid_t memory, const void *value, dq_err *err)
{
    hid_t space = H5Screate(H5S_SCALAR), a = H5I_INVALID_HID;
    if (space >= 0 && stored >= 0)
        a = H5Acreate_by_name(h->file, object, name, stored, space, H5P_DEFAULT, H5P_DEFAULT,
                              H5P_DEFAULT);
    bool good = a >= 0 && H5Awrite(a, memory, value) >= 0;
    if (a >= 0) good = H5Aclose(a) >= 0 && good;
    if (space >= 0) H5Sclose(space);
    return good ? DQ_OK : fail_write(h, err);
}

dq_status dq_h5_result_text(dq_h5_result *h, const char *object, const char *name, const char *text,
                            dq_err *err)
{
    size_t n = strlen(text);
    if (n > MAX_TEXT) return dq_fail(err, DQ_BUG, "attribute %s of %zu bytes", name, n);
    hid_t t = H5Tcopy(H5T_C_S1);
    if (t >= 0 && (H5Tset_size(t, n ? n : 1) < 0 || H5Tset_cset(t, H5T_CSET_UTF8) < 0 ||
                   H5Tset_strpad(t, H5T_STR_NULLPAD) < 0)) {
        H5Tclose(t);
        t = H5I_INVALID_HID;
    }
    put_attribute(h, object, name, t, t, text, err);
    if (t >= 0) H5Tclose(t);
    return err->code;
}

dq_status dq_h5_result_int(dq_h5_result *h, const char *object, const char *name, int64_t value,
                           dq_err *err)
{
    return put_attribute(h, object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value, err);
}

const char *dq_h5_result_version(char *buf, size_t cap)
{
    unsigned major = 0, minor = 0, release = 0;
    H5get_libversion(&major, &minor, &release);
    snprintf(buf, cap, "%u.%u.%u", major, minor, release);
    return buf;
}

/* Payloads lie on pages of their own (DQ_H5_ALIGN), so that they can be mapped; links out of the
 * file and plugins are switched off. */

/* Needed before every use: silences messages and forbids plugins and external files. */
static void h5_setup(void)
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    H5PLset_loading_state(0);
    H5Lunregister(H5L_TYPE_EXTERNAL);
}

void dq_h5_begin(dq_h5 *h)
{
    memset(h, 0, sizeof *h);
    h5_setup();
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
