/* The skeleton: groups, attributes and datasets of the final size, without contents. The same
 * functions make it and its list of objects. It depends on the plan alone, so the same plan gives
 * the same bytes; payloads are then written in place at the offsets that
 * dq_container_skeleton_locate finds, in any order. Hashes of all payloads, in order of paths,
 * make the content's hash.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "checkpoint/inside.h"

#include <string.h>

#define DQ_H5_VERSION "1.0"

static const dq_dataset_row *dataset_of(const dq_slot *s)
{
    return &s->weight.format->dataset[s->dataset];
}

static const char *encoding_name(const dq_slot *s)
{
    switch (s->encoding) {
    case DQ_ENC_DATASET: return dataset_of(s)->encoding;
    case DQ_ENC_TEXT: return "text";
    case DQ_ENC_BYTES: return "bytes";
    case DQ_ENC_TABLE: return "table";
    default: return dq_format_dense.name;
    }
}

/* Writes into a file or, with a list, only into that. Attributes follow their object. */
typedef struct target {
    dq_h5 *h;
    hid_t file;
    dq_object_list *list; /* NULL: into the file */
} target;

enum { LISTED = 0 }; /* in the place of an identifier */

static bool put_attr(dq_h5 *h, hid_t at, const char *name, hid_t type, hid_t space, const void *v)
{
    hid_t a = type < 0 || space < 0
                  ? H5I_INVALID_HID
                  : dq_h5_keep(h, H5Acreate2(at, name, type, space, H5P_DEFAULT, H5P_DEFAULT));
    return a >= 0 && H5Awrite(a, type, v) >= 0;
}

static bool put_text(target *t, hid_t at, const char *name, const char *text)
{
    if (t->list) {
        dq_object_list_texts(t->list, name, &text, 0);
        return true;
    }
    int mark = t->h->n;
    hid_t type = dq_h5_keep(t->h, dq_h5_text_type(strlen(text)));
    bool good = put_attr(t->h, at, name, type, dq_h5_keep(t->h, H5Screate(H5S_SCALAR)),
                         *text ? text : "\0"); /* an empty text is one padding byte */
    return dq_h5_drop(t->h, mark) && good;
}

static bool put_numbers(dq_h5 *h, hid_t at, const char *name, hid_t type, int n, const void *v)
{
    int mark = h->n;
    hsize_t dim = (hsize_t)n;
    hid_t space = dq_h5_keep(h, n == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &dim, NULL));
    bool good = put_attr(h, at, name, type, space, v);
    return dq_h5_drop(h, mark) && good;
}

/* n 0: a scalar. */
static bool put_ints(target *t, hid_t at, const char *name, const int64_t *v, int n)
{
    if (!t->list) return put_numbers(t->h, at, name, H5T_STD_I64LE, n, v);
    dq_object_list_ints(t->list, name, v, n);
    return true;
}

static bool put_int(target *t, hid_t at, const char *name, int64_t v)
{
    return put_ints(t, at, name, &v, 0);
}

static bool put_real(target *t, hid_t at, const char *name, double v)
{
    if (!t->list) return put_numbers(t->h, at, name, H5T_IEEE_F64LE, 0, &v);
    dq_object_list_real(t->list, name, v);
    return true;
}

/* Axis names follow HDF5's dimension scales, so that h5py shows them. */
static bool put_labels(target *t, hid_t at, const char *first, const char *second)
{
    static const char name[] = "DIMENSION_LABELS";
    const char *v[2] = {first, second};
    hsize_t dim = 2;
    if (t->list) {
        dq_object_list_texts(t->list, name, v, 2);
        return true;
    }
    int mark = t->h->n;
    hid_t type = dq_h5_keep(t->h, H5Tcopy(H5T_C_S1));
    bool good =
        type >= 0 && H5Tset_size(type, H5T_VARIABLE) >= 0 &&
        put_attr(t->h, at, name, type, dq_h5_keep(t->h, H5Screate_simple(1, &dim, NULL)), v);
    return dq_h5_drop(t->h, mark) && good;
}

/* No time stamp, and links keep their order; stays open in t->h. */
static hid_t make_group(target *t, const char *path)
{
    if (t->list) {
        dq_object_list_add(t->list, path, "group");
        return LISTED;
    }
    hid_t p = dq_h5_keep(t->h, H5Pcreate(H5P_GROUP_CREATE));
    /* all attributes stay in the object's header: a heap of their own would take four pages */
    if (p < 0 || H5Pset_obj_track_times(p, false) < 0 || H5Pset_attr_phase_change(p, 64, 32) < 0 ||
        H5Pset_link_creation_order(p, H5P_CRT_ORDER_TRACKED) < 0)
        return H5I_INVALID_HID;
    return dq_h5_keep(t->h, H5Gcreate2(t->file, path, H5P_DEFAULT, p, H5P_DEFAULT));
}

static hid_t make_dataset(dq_h5 *h, hid_t at, const char *name, hid_t type, hid_t space)
{
    hid_t p = dq_h5_keep(h, H5Pcreate(H5P_DATASET_CREATE));
    if (p < 0 || type < 0 || space < 0 || H5Pset_obj_track_times(p, false) < 0 ||
        H5Pset_layout(p, H5D_CONTIGUOUS) < 0 || H5Pset_alloc_time(p, H5D_ALLOC_TIME_EARLY) < 0 ||
        H5Pset_fill_time(p, H5D_FILL_TIME_NEVER) < 0)
        return H5I_INVALID_HID;
    return dq_h5_keep(h, H5Dcreate2(at, name, type, space, H5P_DEFAULT, p, H5P_DEFAULT));
}

static size_t table_columns(dq_h5_column col[DQ_SOURCE_COLUMNS], const dq_slot *s)
{
    const size_t fixed = dq_h5_source_columns(col, 0);
    return dq_h5_source_columns(col, (size_t)s->shape[1] - fixed);
}

static hid_t slot_type(dq_h5 *h, const dq_slot *s)
{
    dq_h5_column col[DQ_SOURCE_COLUMNS];
    switch (s->encoding) {
    case DQ_ENC_TEXT: return dq_h5_keep(h, dq_h5_text_type((size_t)s->bytes));
    case DQ_ENC_TABLE:
        table_columns(col, s);
        return dq_h5_table_type(h, col, DQ_SOURCE_COLUMNS, (size_t)s->shape[1]);
    default: return dq_h5_keep(h, dq_h5_type(s->dtype));
    }
}

static hid_t slot_space(dq_h5 *h, const dq_slot *s)
{
    hsize_t dim[DQ_MAX_DIMS];
    int n = s->encoding == DQ_ENC_TABLE ? 1 : s->n_dims;
    for (int i = 0; i < n; i++) dim[i] = (hsize_t)s->shape[i];
    return dq_h5_keep(h, n == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(n, dim, NULL));
}

static const char *slot_kind(dq_object_list *l, const dq_slot *s)
{
    dq_h5_column col[DQ_SOURCE_COLUMNS];
    char type[16];
    switch (s->encoding) {
    case DQ_ENC_TEXT: return "text";
    case DQ_ENC_TABLE:
        table_columns(col, s);
        return dq_object_list_table(l, s->shape[0], col, DQ_SOURCE_COLUMNS);
    default:
        return dq_object_list_kind(l, dq_object_list_dtype(type, s->dtype), s->n_dims, s->shape);
    }
}

static hid_t make_slot(target *t, const dq_slot *s)
{
    if (!t->list)
        return make_dataset(t->h, t->file, s->path, slot_type(t->h, s), slot_space(t->h, s));
    dq_object_list_add(t->list, s->path, slot_kind(t->list, s));
    return LISTED;
}

static const char *long_name(dq_dtype dtype)
{
    switch (dtype) {
    case DQ_F32: return "float32";
    case DQ_F16: return "float16";
    case DQ_BF16: return "bfloat16";
    case DQ_F64: return "float64";
    default: return dq_dtypes[dtype].name;
    }
}

static bool put_own_attrs(target *t, hid_t group, const dq_weight *w)
{
    bool good = put_int(t, group, "bits", w->bits);
    for (const dq_weight_attribute *a = w->format->attribute; good && a->name; a++)
        good = put_int(t, group, a->name, a->value(w->bits));
    return good;
}

static bool put_group_attrs(target *t, hid_t group, const dq_slot *s)
{
    const dq_weight *w = &s->weight;
    int64_t shape[2] = {w->rows, w->cols};
    return put_text(t, group, "encoding-type", w->format->name) &&
           put_text(t, group, "encoding-version", "1.0") && put_own_attrs(t, group, w) &&
           put_ints(t, group, "shape", shape, 2) &&
           put_int(t, group, "group_size", w->group_size) && put_int(t, group, "axis", 1) &&
           put_text(t, group, "scale_mode", dq_quant_modes[s->mode].name) &&
           put_int(t, group, "row_align", 4) &&
           put_text(t, group, "source_dtype", long_name(s->source_dtype));
}

/* The datasets of a tensor are adjacent in path order: the first creates the group. */
static bool put_slot(target *t, const dq_slot *s)
{
    int mark = t->h->n;
    bool good = true;
    if (s->encoding == DQ_ENC_DATASET && s->dataset == 0) {
        char name[1024];
        size_t n = strlen(s->path) - strlen(dataset_of(s)->name) - 1;
        if (n >= sizeof name) return false;
        memcpy(name, s->path, n);
        name[n] = 0;
        hid_t group = make_group(t, name);
        good = group >= 0 && put_group_attrs(t, group, s);
    }
    hid_t d = good ? make_slot(t, s) : H5I_INVALID_HID;
    good = d >= 0;
    if (good && s->encoding == DQ_ENC_DATASET) good = put_labels(t, d, "out", dataset_of(s)->label);
    if (good && s->encoding == DQ_ENC_DENSE)
        good = put_text(t, d, "encoding-type", encoding_name(s)) &&
               put_text(t, d, "encoding-version", "1.0");
    return dq_h5_drop(t->h, mark) && good;
}

/* Older attributes are always written, later ones only where they mean something. */
static bool put_kv(target *t, hid_t kv, const dq_kv_config *c)
{
    bool good = true;
    for (int i = 0; good && i < DQ_KV_FIELDS; i++) {
        const dq_kv_field *f = &dq_kv_fields[i];
        const dq_kv_value v = dq_kv_field_get(f, c);
        if (!dq_kv_field_stored(f, c)) continue;
        switch (dq_kv_field_form(f)) {
        case DQ_KV_AS_INTEGER: good = put_int(t, kv, f->name, v.integer); break;
        case DQ_KV_AS_REAL: good = put_real(t, kv, f->name, v.real); break;
        case DQ_KV_AS_TEXT: good = put_text(t, kv, f->name, v.text ? v.text : "none"); break;
        }
    }
    return good;
}

static bool put_root(target *t, const dq_container_skeleton *s)
{
    if (t->list) dq_object_list_add(t->list, "/", "group");
    return put_text(t, t->file, "encoding-type", DQ_H5_FORMAT) &&
           put_text(t, t->file, "encoding-version", DQ_H5_VERSION) &&
           put_text(t, t->file, "dq_version", s->dq_version) &&
           put_text(t, t->file, "architecture", s->architecture) &&
           put_int(t, t->file, "params", s->params) &&
           put_int(t, t->file, "bytes_total", s->weight_bytes) &&
           put_real(t, t->file, "bits_per_weight", s->bits_per_weight);
}

static bool put_settings(target *t, const dq_container_skeleton *s)
{
    hid_t attention = make_group(t, "/attention");
    bool good =
        attention >= 0 && put_int(t, attention, "logit_bits", s->logit.bits) &&
        put_text(t, attention, "logit_granularity", dq_granularity_name[s->logit.granularity]);
    hid_t kv = good ? make_group(t, "/kv_cache") : H5I_INVALID_HID;
    good = kv >= 0 && put_kv(t, kv, &s->kv);
    hid_t from = good ? make_group(t, "/provenance") : H5I_INVALID_HID;
    return from >= 0 && put_text(t, from, "source", s->source) &&
           put_text(t, from, "source_fingerprint", s->fingerprint) &&
           put_text(t, from, "dq_version", s->dq_version) &&
           (!*s->arithmetic || put_text(t, from, "arithmetic", s->arithmetic)) &&
           (!s->source_types || put_text(t, from, "source_types", s->source_types));
}

static size_t path_width(const dq_container_skeleton *s)
{
    size_t len = 1;
    for (int64_t i = 0; i < s->n_slots; i++) {
        size_t n = strlen(s->slot[i].path);
        if (n > len) len = n;
    }
    return len;
}

static bool put_tables(target *t, const dq_container_skeleton *s)
{
    dq_h5_column col[DQ_INDEX_COLUMNS];
    hsize_t rows = (hsize_t)s->n_slots;
    size_t width = dq_h5_index_columns(col, path_width(s));
    if (t->list) {
        dq_object_list *l = t->list;
        dq_object_list_add(l, "/index", dq_object_list_table(l, s->n_slots, col, DQ_INDEX_COLUMNS));
        dq_object_list_add(l, "/index_sha256", "text");
        dq_object_list_add(l, "/content_sha256", "text");
        return true;
    }
    hid_t text = dq_h5_keep(t->h, dq_h5_text_type(DQ_H5_SHA));
    hid_t scalar = dq_h5_keep(t->h, H5Screate(H5S_SCALAR));
    hid_t type = dq_h5_table_type(t->h, col, DQ_INDEX_COLUMNS, width);
    hid_t space = dq_h5_keep(t->h, H5Screate_simple(1, &rows, NULL));
    return make_dataset(t->h, t->file, "index", type, space) >= 0 &&
           make_dataset(t->h, t->file, "index_sha256", text, scalar) >= 0 &&
           make_dataset(t->h, t->file, "content_sha256", text, scalar) >= 0;
}

static bool put_all(target *t, const dq_container_skeleton *s)
{
    int mark = t->h->n;
    bool good = put_root(t, s) && make_group(t, "/config") >= 0 && make_group(t, "/tensors") >= 0 &&
                make_group(t, "/tokenizer") >= 0 && put_settings(t, s);
    good = dq_h5_drop(t->h, mark) && good;
    for (int64_t i = 0; good && i < s->n_slots; i++) good = put_slot(t, &s->slot[i]);
    return good && put_tables(t, s);
}

dq_status dq_container_objects(const char **text, size_t *len, const dq_container_skeleton *s,
                               dq_arena *a, dq_err *err)
{
    dq_h5 none = {.n = 0};
    dq_object_list list = {.arena = a, .err = err};
    target t = {&none, LISTED, &list};
    if (!put_all(&t, s) && err->code == DQ_OK)
        return dq_fail(err, DQ_DAMAGED, "the name of a tensor is too long for a container");
    return dq_object_list_end(&list, text, len);
}

dq_status dq_container_skeleton_create(const dq_container_skeleton *s, const char *path,
                                       dq_err *err)
{
    dq_h5 h;
    dq_h5_begin(&h);
    hid_t access = dq_h5_access(&h, true);
    hid_t create = dq_h5_keep(&h, H5Pcreate(H5P_FILE_CREATE));
    hid_t file = H5I_INVALID_HID;
    bool good;

    if (access >= 0 && create >= 0 && H5Pset_obj_track_times(create, false) >= 0 &&
        H5Pset_attr_phase_change(create, 64, 32) >= 0)
        file = dq_h5_keep(&h, H5Fcreate(path, H5F_ACC_TRUNC, create, access));
    if (file < 0) {
        dq_h5_drop(&h, 0);
        return dq_fail(err, DQ_FILE, "%s: cannot create", path);
    }
    target t = {&h, file, NULL};
    good = put_all(&t, s);
    good = dq_h5_drop(&h, 0) && good;
    if (!good)
        return dq_fail(err, DQ_FILE,
                       "%s: cannot write (is the disk full, or a limit on file sizes in the way?)",
                       path);
    return DQ_OK;
}

static int64_t offset_of(dq_h5 *h, hid_t file, const char *path, int64_t bytes)
{
    int mark = h->n;
    hid_t d = dq_h5_keep(h, H5Dopen2(file, path, H5P_DEFAULT));
    haddr_t at = d < 0 ? HADDR_UNDEF : H5Dget_offset(d);
    bool good = at != HADDR_UNDEF && H5Dget_storage_size(d) == (hsize_t)bytes;
    dq_h5_drop(h, mark);
    return good ? (int64_t)at : -1;
}

dq_status dq_container_skeleton_locate(dq_container_skeleton *s, const char *path, dq_err *err)
{
    dq_h5 h;
    hsize_t size = 0;
    dq_h5_begin(&h);
    hid_t file;
    bool good = dq_h5_open(&file, &h, path, err) == DQ_OK && H5Fget_filesize(file, &size) >= 0;

    for (int64_t i = 0; good && i < s->n_slots; i++) {
        s->slot[i].offset = offset_of(&h, file, s->slot[i].path, s->slot[i].bytes);
        good = s->slot[i].offset >= 0;
    }
    if (good) {
        s->index_bytes = dq_container_index_bytes(s);
        s->file_bytes = (int64_t)size;
        s->index_at = offset_of(&h, file, "index", s->index_bytes);
        s->content_at = offset_of(&h, file, "content_sha256", DQ_H5_SHA);
        s->index_sha_at = offset_of(&h, file, "index_sha256", DQ_H5_SHA);
        good = s->index_at >= 0 && s->content_at >= 0 && s->index_sha_at >= 0;
    }
    dq_h5_drop(&h, 0);
    if (good || err->code == DQ_FILE) return err->code;
    *err = (dq_err){0};
    return dq_fail_with(err, DQ_DAMAGED, (dq_remedy){.code = DQ_REMEDY_START_OVER},
                        "%s: not the skeleton of this container.", path);
}

int64_t dq_container_index_bytes(const dq_container_skeleton *s)
{
    dq_h5_column col[DQ_INDEX_COLUMNS];
    return s->n_slots * (int64_t)dq_h5_index_columns(col, path_width(s));
}

/* A text as long as its column has no final NUL. */
static void put_field(uint8_t *row, const dq_h5_column *col, const void *v)
{
    size_t n = col->bytes;
    if (col->kind == 's') {
        size_t len = strlen(v);
        memset(row + col->at, 0, n);
        if (len < n) n = len;
    }
    memcpy(row + col->at, v, n);
}

dq_status dq_container_index_encode(uint8_t *out, const dq_container_skeleton *s, dq_err *err)
{
    dq_h5_column col[DQ_INDEX_COLUMNS];
    size_t width = dq_h5_index_columns(col, path_width(s));
    for (int64_t i = 0; i < s->n_slots; i++) {
        const dq_slot *t = &s->slot[i];
        uint8_t *row = out + (size_t)i * width;
        int32_t bits = t->bits;
        if (strlen(t->sha256) != DQ_H5_SHA)
            return dq_fail(err, DQ_BUG, "%s has no hash yet", t->path);
        if (strlen(encoding_name(t)) > col[DQ_COL_ENCODING].bytes)
            return dq_fail(err, DQ_BUG, "%s: the name of its encoding is too long", t->path);
        put_field(row, &col[DQ_COL_PATH], t->path);
        put_field(row, &col[DQ_COL_ENCODING], encoding_name(t));
        put_field(row, &col[DQ_COL_BITS], &bits);
        put_field(row, &col[DQ_COL_GROUP], &t->group_size);
        put_field(row, &col[DQ_COL_ROWS], &t->rows);
        put_field(row, &col[DQ_COL_COLS], &t->cols);
        put_field(row, &col[DQ_COL_BYTES], &t->bytes);
        put_field(row, &col[DQ_COL_BPW], &t->bits_per_weight);
        put_field(row, &col[DQ_COL_SQNR], &t->sqnr_db);
        put_field(row, &col[DQ_COL_SHA], t->sha256);
    }
    return DQ_OK;
}

dq_status dq_container_content_sha256(char hex[65], const dq_container_skeleton *s, dq_err *err)
{
    dq_sha256 h;
    DQ_TRY(dq_sha256_begin(&h, err));
    for (int64_t i = 0; i < s->n_slots; i++) {
        dq_sha256_add(&h, s->slot[i].path, strlen(s->slot[i].path));
        dq_sha256_add(&h, " ", 1);
        dq_sha256_add(&h, s->slot[i].sha256, DQ_H5_SHA);
        dq_sha256_add(&h, "\n", 1);
    }
    return dq_sha256_end(&h, hex, err);
}

size_t dq_container_source_table(uint8_t *out, int n, const char *const *name, const int64_t *size,
                                 const char (*sha)[65])
{
    dq_h5_column col[DQ_SOURCE_COLUMNS];
    size_t len = 1;
    for (int i = 0; i < n; i++) {
        if (strlen(name[i]) > len) len = strlen(name[i]);
    }
    size_t width = dq_h5_source_columns(col, len);
    for (int i = 0; out && i < n; i++) {
        uint8_t *row = out + (size_t)i * width;
        put_field(row, &col[DQ_COL_NAME], name[i]);
        put_field(row, &col[DQ_COL_SIZE], &size[i]);
        put_field(row, &col[DQ_COL_FILE_SHA], sha[i]);
    }
    return width;
}
