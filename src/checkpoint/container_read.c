/* container_read: see container_read.h. Look-ups in an open file, every one with its own shape and type to expect.
 * Handles are kept on a stack in dq_h5 and dropped to a mark, so that no way out leaks one; HDF5's own messages
 * stay silent.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/container_read.h"

#include <string.h>

dq_status dq_container_h5_open(dq_container_h5 *r, const dq_os_map *map, const char *path,
                               dq_err *err)
{
    dq_h5_begin(&r->h);
    r->map = map;
    r->path = path;
    r->err = err;
    if (dq_h5_open(&r->file, &r->h, path, err) != DQ_OK) {
        dq_h5_drop(&r->h, 0);
        return err->code;
    }
    r->base = r->h.n;
    return DQ_OK;
}

void dq_container_h5_reset(dq_container_h5 *r)
{
    dq_h5_drop(&r->h, r->base);
}

void dq_container_h5_close(dq_container_h5 *r)
{
    dq_h5_drop(&r->h, 0);
}

static dq_status damaged(dq_container_h5 *r, const char *path, const char *what)
{
    return dq_fail(r->err, DQ_DAMAGED, "%s: %s: %s", r->path, path, what);
}

static bool read_shape(dq_h5 *h, hid_t dataset, dq_container_h5_block *b)
{
    hsize_t dim[H5S_MAX_RANK];
    hid_t space = dq_h5_keep(h, H5Dget_space(dataset));
    if (space < 0 || H5Sget_simple_extent_type(space) == H5S_NULL) return false;
    int n = H5Sget_simple_extent_ndims(space);
    if (n < 0 || n > DQ_MAX_DIMS || H5Sget_simple_extent_dims(space, dim, NULL) != n) return false;
    b->n_dims = n;
    for (int i = 0; i < n; i++) {
        if (dim[i] == 0 || dim[i] > INT64_MAX) return false;
        b->shape[i] = (int64_t)dim[i];
    }
    return true;
}

static bool is_contiguous(dq_h5 *h, hid_t dataset)
{
    hid_t p = dq_h5_keep(h, H5Dget_create_plist(dataset));
    return p >= 0 && H5Pget_layout(p) == H5D_CONTIGUOUS && H5Pget_external_count(p) == 0;
}

dq_status dq_container_h5_find(dq_container_h5 *r, const char *path, dq_container_h5_block *b)
{
    H5L_info_t link;
    size_t want, limit = r->map->bytes;
    memset(b, 0, sizeof *b);
    if (H5Lget_info(r->file, path, &link, H5P_DEFAULT) < 0 || link.type != H5L_TYPE_HARD)
        return damaged(r, path, "dataset is missing");
    hid_t d = dq_h5_keep(&r->h, H5Dopen2(r->file, path, H5P_DEFAULT));
    if (d < 0) return damaged(r, path, "cannot be opened as a dataset");
    b->type = dq_h5_keep(&r->h, H5Dget_type(d));
    b->item = b->type < 0 ? 0 : H5Tget_size(b->type);
    if (b->item == 0 || !read_shape(&r->h, d, b)) return damaged(r, path, "bad type or shape");
    if (!is_contiguous(&r->h, d))
        return damaged(r, path, "is not stored in one piece (rewritten by another program?)");
    want = b->item;
    for (int i = 0; i < b->n_dims; i++) {
        if (!dq_mul_ok(&want, want, (size_t)b->shape[i]))
            return damaged(r, path, "shape too large for any file");
    }
    haddr_t at = H5Dget_offset(d);
    if (at == HADDR_UNDEF || H5Dget_storage_size(d) != want || at > limit || want > limit - at)
        return damaged(r, path, "does not lie inside the file");
    b->data = r->map->data + at;
    b->bytes = (int64_t)want;
    return DQ_OK;
}

static hid_t open_attr(dq_container_h5 *r, const char *path, const char *name)
{
    if (H5Aexists_by_name(r->file, path, name, H5P_DEFAULT) <= 0) return H5I_INVALID_HID;
    return dq_h5_keep(&r->h, H5Aopen_by_name(r->file, path, name, H5P_DEFAULT, H5P_DEFAULT));
}

static dq_status bad_attr(dq_container_h5 *r, const char *path, const char *name, int mark)
{
    dq_h5_drop(&r->h, mark);
    return dq_fail(r->err, DQ_DAMAGED, "%s: %s: attribute %s is missing or malformed", r->path,
                   path, name);
}

dq_status dq_container_h5_ints(dq_container_h5 *r, const char *path, const char *name, int64_t *v,
                               int n)
{
    int mark = r->h.n;
    hid_t a = open_attr(r, path, name);
    if (a < 0) return bad_attr(r, path, name, mark);
    hid_t type = dq_h5_keep(&r->h, H5Aget_type(a));
    hid_t space = dq_h5_keep(&r->h, H5Aget_space(a));
    if (type < 0 || space < 0 || H5Tget_class(type) != H5T_INTEGER ||
        H5Sget_simple_extent_npoints(space) != n || H5Aread(a, H5T_NATIVE_INT64, v) < 0)
        return bad_attr(r, path, name, mark);
    dq_h5_drop(&r->h, mark);
    return DQ_OK;
}

bool dq_container_h5_has(dq_container_h5 *r, const char *path, const char *name)
{
    return H5Aexists_by_name(r->file, path, name, H5P_DEFAULT) > 0;
}

dq_status dq_container_h5_real(dq_container_h5 *r, const char *path, const char *name, double *v)
{
    int mark = r->h.n;
    hid_t a = open_attr(r, path, name);
    if (a < 0) return bad_attr(r, path, name, mark);
    hid_t type = dq_h5_keep(&r->h, H5Aget_type(a));
    hid_t space = dq_h5_keep(&r->h, H5Aget_space(a));
    if (type < 0 || space < 0 || H5Tget_class(type) != H5T_FLOAT ||
        H5Sget_simple_extent_npoints(space) != 1 || H5Aread(a, H5T_NATIVE_DOUBLE, v) < 0)
        return bad_attr(r, path, name, mark);
    dq_h5_drop(&r->h, mark);
    return DQ_OK;
}

dq_status dq_container_h5_words(dq_container_h5 *r, const char *path, const char *name, char *buf,
                                size_t cap)
{
    int mark = r->h.n;
    hid_t a = open_attr(r, path, name);
    if (a < 0) return bad_attr(r, path, name, mark);
    hid_t type = dq_h5_keep(&r->h, H5Aget_type(a));
    hid_t space = dq_h5_keep(&r->h, H5Aget_space(a));
    if (type < 0 || space < 0 || H5Tget_class(type) != H5T_STRING ||
        H5Tis_variable_str(type) != 0 || H5Tget_size(type) >= cap ||
        H5Sget_simple_extent_npoints(space) != 1)
        return bad_attr(r, path, name, mark);
    memset(buf, 0, cap);
    if (H5Aread(a, type, buf) < 0) return bad_attr(r, path, name, mark);
    dq_h5_drop(&r->h, mark);
    return DQ_OK;
}

bool dq_container_h5_is(dq_container_h5 *r, const dq_container_h5_block *b, dq_dtype dtype)
{
    hid_t want = dq_h5_type(dtype);
    (void)r;
    if (want < 0) return false;
    bool same = H5Tequal(want, b->type) > 0;
    H5Tclose(want);
    return same;
}

bool dq_container_h5_is_text(const dq_container_h5_block *b)
{
    return H5Tget_class(b->type) == H5T_STRING && H5Tis_variable_str(b->type) == 0 &&
           b->n_dims == 0;
}

dq_status dq_container_h5_columns(dq_container_h5 *r, const char *path,
                                  const dq_container_h5_block *b, dq_h5_column *col, int n)
{
    if (H5Tget_class(b->type) != H5T_COMPOUND || b->n_dims != 1)
        return damaged(r, path, "is not a table");
    for (int i = 0; i < n; i++) {
        int at = H5Tget_member_index(b->type, col[i].name);
        hid_t m = at < 0 ? H5I_INVALID_HID : H5Tget_member_type(b->type, (unsigned)at);
        bool good = m >= 0;
        if (good) {
            size_t bytes = H5Tget_size(m);
            col[i].at = H5Tget_member_offset(b->type, (unsigned)at);
            good = col[i].at <= b->item && bytes <= b->item - col[i].at;
            if (col[i].kind == 's') {
                good = good && H5Tget_class(m) == H5T_STRING && H5Tis_variable_str(m) == 0;
                col[i].bytes = bytes;
            } else {
                H5T_class_t want = col[i].kind == 'd' ? H5T_FLOAT : H5T_INTEGER;
                good = good && H5Tget_class(m) == want && bytes == col[i].bytes &&
                       H5Tget_order(m) == H5T_ORDER_LE;
            }
            H5Tclose(m);
        }
        if (!good)
            return dq_fail(r->err, DQ_DAMAGED, "%s: %s: column %s is missing or malformed", r->path,
                           path, col[i].name);
    }
    return DQ_OK;
}

int64_t dq_container_h5_count_links(dq_container_h5 *r, const char *group)
{
    H5G_info_t info;
    if (H5Gget_info_by_name(r->file, group, &info, H5P_DEFAULT) < 0) return -1;
    return (int64_t)info.nlinks;
}
