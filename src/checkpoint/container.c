/* The contents of a container against its hashes.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "checkpoint/inside.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DQ_PATH_TENSORS "/tensors/"
#define DQ_PATH_FILES   "/tokenizer/"

static inline bool is_in(const dq_payload *p, const char *folder)
{
    return strncmp(p->path, folder, strlen(folder)) == 0;
}

typedef struct block {
    const uint8_t *data;
    int64_t bytes;
    int n_dims;
    int64_t shape[DQ_MAX_DIMS];
    size_t item; /* bytes per element */
    hid_t type;  /* kept in the reader until the caller drops it */
} block;

static dq_status damaged(const dq_container *c, const char *path, const char *what, dq_err *err)
{
    return dq_fail(err, DQ_DAMAGED, "%s: %s: %s", c->path, path, what);
}

/* The pages of each step are given back, so that hashing a large file does not fill memory. */
static dq_status hash_mapped(char hex[65], const void *p, size_t bytes, dq_err *err)
{
    enum { STEP = 8 << 20 };
    const uint8_t *at = p;
    dq_sha256 h;
    DQ_TRY(dq_sha256_begin(&h, err));
    for (size_t done = 0; done < bytes;) {
        size_t n = bytes - done < STEP ? bytes - done : STEP;
        dq_sha256_add(&h, at + done, n);
        const size_t from = done < DQ_OS_MAP_AROUND ? 0 : done - DQ_OS_MAP_AROUND;
        done += n;
        dq_os_map_release(at + from, done - from);
    }
    return dq_sha256_end(&h, hex, err);
}

dq_status dq_container_payload_check(const dq_container *c, int64_t i, dq_err *err)
{
    const dq_payload *p = &c->payload[i];
    char hex[65];
    DQ_TRY(hash_mapped(hex, p->data, (size_t)p->bytes, err));
    if (strcmp(hex, p->sha256) != 0)
        return dq_fail(err, DQ_DAMAGED,
                       "%s: %s: damaged (expected SHA-256 %.16s..., found %.16s...). Fetch or "
                       "write the file again.",
                       c->path, p->path, p->sha256, hex);
    const char *wrong = p->row ? p->row->wrong(&p->dataset, p->mode) : NULL;
    if (wrong) damaged(c, p->path, wrong, err);
    /* Other threads may be reading neighbouring payloads, so only this one's pages are released. */
    const size_t at = (size_t)(p->data - c->map.data), end = at + (size_t)p->bytes;
    const size_t from = at < DQ_OS_MAP_AROUND ? 0 : at - DQ_OS_MAP_AROUND;
    const size_t to = c->map.bytes - end < DQ_OS_MAP_AROUND ? c->map.bytes : end + DQ_OS_MAP_AROUND;
    dq_os_map_release(c->map.data + from, to - from);
    return err->code;
}

/* Hashes the lines "path sha256\n" of the payloads below a folder; "": all. */
static dq_status hash_rows(char hex[65], const dq_container *c, const char *folder, dq_err *err)
{
    dq_sha256 h;
    DQ_TRY(dq_sha256_begin(&h, err));
    for (int64_t i = 0; i < c->n_payloads; i++) {
        const dq_payload *p = &c->payload[i];
        if (strncmp(p->path, folder, strlen(folder)) != 0) continue;
        dq_sha256_add(&h, p->path, strlen(p->path));
        dq_sha256_add(&h, " ", 1);
        dq_sha256_add(&h, p->sha256, 64);
        dq_sha256_add(&h, "\n", 1);
    }
    return dq_sha256_end(&h, hex, err);
}

dq_status dq_container_weights_sha256(char hex[65], const dq_container *c, dq_err *err)
{
    return hash_rows(hex, c, "/tensors/", err);
}

dq_status dq_container_check_index(const dq_container *c, dq_err *err)
{
    char hex[65];
    DQ_TRY(dq_sha256_of(hex, c->index, (size_t)c->index_bytes, err));
    if (strcmp(hex, c->index_sha256) != 0)
        return damaged(c, "/index", "damaged: its SHA-256 is not that of /index_sha256", err);
    DQ_TRY(hash_rows(hex, c, "", err));
    if (strcmp(hex, c->info.content_sha256) != 0)
        return damaged(c, "/content_sha256", "is not the hash of the rows of /index", err);
    return DQ_OK;
}

static dq_status check_once(dq_container *c, int64_t i, dq_err *err)
{
    dq_err one = {0};
    if (c->payload[i].sound) return DQ_OK;
    c->payload[i].sound = dq_container_payload_check(c, i, &one) == DQ_OK;
    if (one.code == DQ_DAMAGED)
        return dq_fail_with(err, DQ_DAMAGED, (dq_remedy){.code = DQ_REMEDY_VERIFY}, "%s", one.text);
    return one.code == DQ_OK ? DQ_OK : dq_fail_as(err, &one);
}

dq_status dq_container_check_header(dq_container *c, dq_err *err)
{
    DQ_TRY(dq_container_check_index(c, err));
    for (int64_t i = 0; i < c->n_payloads; i++) {
        const dq_payload *p = &c->payload[i];
        if (!is_in(p, DQ_PATH_TENSORS) && !is_in(p, DQ_PATH_FILES)) DQ_TRY(check_once(c, i, err));
    }
    if (c->objects_sound) return DQ_OK;
    dq_err one = {0};
    c->objects_sound = dq_container_check_objects(c, &one) == DQ_OK;
    if (one.code == DQ_DAMAGED)
        return dq_fail_with(err, DQ_DAMAGED, (dq_remedy){.code = DQ_REMEDY_VERIFY}, "%s", one.text);
    return one.code == DQ_OK ? DQ_OK : dq_fail_as(err, &one);
}

typedef struct to_check {
    const dq_payload *payload;
    dq_err err;
} to_check;

static int largest_first(const void *a, const void *b)
{
    int64_t x = ((const to_check *)a)->payload->bytes, y = ((const to_check *)b)->payload->bytes;
    return x < y ? 1 : x > y ? -1 : 0;
}

dq_status dq_container_check_weights(dq_container *c, dq_err *err)
{
    enum { SMALL_BYTES = 4 << 20 }; /* waking threads costs more than this much work */
    int64_t n = 0, bytes = 0;
    if (c->sound) return DQ_OK;
    to_check *list = dq_block_new((size_t)c->n_payloads, sizeof *list, err);
    if (!list) return err->code;
    for (int64_t i = 0; i < c->n_payloads; i++) {
        if (!is_in(&c->payload[i], DQ_PATH_TENSORS)) continue;
        list[n++].payload = &c->payload[i];
        bytes += c->payload[i].bytes;
    }
    qsort(list, (size_t)n, sizeof *list, largest_first);
#pragma omp parallel for schedule(dynamic, 1) if (bytes > SMALL_BYTES)
    for (int64_t k = 0; k < n; k++) {
        if (dq_os_check_stop(&list[k].err) == DQ_OK)
            check_once(c, list[k].payload - c->payload, &list[k].err);
    }
    const to_check *bad = NULL; /* in path order, whichever thread was first */
    for (int64_t k = 0; k < n; k++) {
        if (list[k].err.code != DQ_OK && (!bad || list[k].payload < bad->payload)) bad = &list[k];
    }
    c->sound = !bad;
    if (bad) dq_fail_as(err, &bad->err);
    dq_block_free(list);
    return err->code;
}

/* Handles are kept on a stack in dq_h5 and dropped to a mark, so that no exit leaks one; HDF5's own
 * messages stay silent. */

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

static void reset(dq_container_h5 *r)
{
    dq_h5_drop(&r->h, r->base);
}

void dq_container_h5_close(dq_container_h5 *r)
{
    dq_h5_drop(&r->h, 0);
}

static dq_status read_damaged(dq_container_h5 *r, const char *path, const char *what)
{
    return dq_fail(r->err, DQ_DAMAGED, "%s: %s: %s", r->path, path, what);
}

static bool read_shape(dq_h5 *h, hid_t dataset, block *b)
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

static dq_status find_dataset(dq_container_h5 *r, const char *path, block *b)
{
    H5L_info_t link;
    size_t want, limit = r->map->bytes;
    memset(b, 0, sizeof *b);
    if (H5Lget_info(r->file, path, &link, H5P_DEFAULT) < 0 || link.type != H5L_TYPE_HARD)
        return read_damaged(r, path, "dataset is missing");
    hid_t d = dq_h5_keep(&r->h, H5Dopen2(r->file, path, H5P_DEFAULT));
    if (d < 0) return read_damaged(r, path, "cannot be opened as a dataset");
    b->type = dq_h5_keep(&r->h, H5Dget_type(d));
    b->item = b->type < 0 ? 0 : H5Tget_size(b->type);
    if (b->item == 0 || !read_shape(&r->h, d, b)) return read_damaged(r, path, "bad type or shape");
    if (!is_contiguous(&r->h, d))
        return read_damaged(r, path, "is not stored in one piece (rewritten by another program?)");
    want = b->item;
    for (int i = 0; i < b->n_dims; i++) {
        if (!dq_mul_ok(&want, want, (size_t)b->shape[i]))
            return read_damaged(r, path, "shape too large for any file");
    }
    haddr_t at = H5Dget_offset(d);
    if (at == HADDR_UNDEF || H5Dget_storage_size(d) != want || at > limit || want > limit - at)
        return read_damaged(r, path, "does not lie inside the file");
    b->data = r->map->data + at;
    b->bytes = (int64_t)want;
    return DQ_OK;
}

static bool has_attr(dq_container_h5 *r, const char *path, const char *name)
{
    return H5Aexists_by_name(r->file, path, name, H5P_DEFAULT) > 0;
}

/* n numbers as type `as`, or a text of less than `cap` bytes. */
static dq_status read_attr(dq_container_h5 *r, const char *path, const char *name,
                           H5T_class_t class, hid_t as, int n, void *out, size_t cap)
{
    const int mark = r->h.n;
    hid_t a = H5I_INVALID_HID;
    if (has_attr(r, path, name))
        a = dq_h5_keep(&r->h, H5Aopen_by_name(r->file, path, name, H5P_DEFAULT, H5P_DEFAULT));
    hid_t type = a < 0 ? a : dq_h5_keep(&r->h, H5Aget_type(a));
    hid_t space = a < 0 ? a : dq_h5_keep(&r->h, H5Aget_space(a));
    bool good = type >= 0 && space >= 0 && H5Tget_class(type) == class &&
                H5Sget_simple_extent_npoints(space) == n;
    if (class == H5T_STRING) {
        good = good && H5Tis_variable_str(type) == 0 && H5Tget_size(type) < cap;
        memset(out, 0, cap);
        as = type;
    }
    good = good && H5Aread(a, as, out) >= 0;
    dq_h5_drop(&r->h, mark);
    if (good) return DQ_OK;
    return dq_fail(r->err, DQ_DAMAGED, "%s: %s: attribute %s is missing or malformed", r->path,
                   path, name);
}

static dq_status read_ints(dq_container_h5 *r, const char *path, const char *name, int64_t *v,
                           int n)
{
    return read_attr(r, path, name, H5T_INTEGER, H5T_NATIVE_INT64, n, v, 0);
}

static dq_status read_words(dq_container_h5 *r, const char *path, const char *name, char *buf,
                            size_t cap)
{
    return read_attr(r, path, name, H5T_STRING, H5I_INVALID_HID, 1, buf, cap);
}

static bool is_type(dq_container_h5 *r, const block *b, dq_dtype dtype)
{
    hid_t want = dq_h5_type(dtype);
    (void)r;
    if (want < 0) return false;
    bool same = H5Tequal(want, b->type) > 0;
    H5Tclose(want);
    return same;
}

static bool is_text(const block *b)
{
    return H5Tget_class(b->type) == H5T_STRING && H5Tis_variable_str(b->type) == 0 &&
           b->n_dims == 0;
}

/* Other columns are allowed. */
static dq_status find_columns(dq_container_h5 *r, const char *path, const block *b,
                              dq_h5_column *col, int n)
{
    if (H5Tget_class(b->type) != H5T_COMPOUND || b->n_dims != 1)
        return read_damaged(r, path, "is not a table");
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

static int64_t count_links(dq_container_h5 *r, const char *group)
{
    H5G_info_t info;
    if (H5Gget_info_by_name(r->file, group, &info, H5P_DEFAULT) < 0) return -1;
    return (int64_t)info.nlinks;
}

static const char kv_group[] = "/kv_cache";

typedef struct kv_source {
    dq_container_h5 *r;
    char word[DQ_KV_HEADS_TEXT]; /* the longest text there is */
} kv_source;

static bool has_kv(void *source, const char *name)
{
    return has_attr(((kv_source *)source)->r, kv_group, name);
}

static dq_status read_kv(void *source, const dq_kv_field *f, dq_kv_value *v, dq_err *err)
{
    kv_source *s = source;
    const size_t cap = f->type == DQ_KV_BY_GROUP ? sizeof s->word : DQ_KV_LISTS;
    switch (dq_kv_field_form(f)) {
    case DQ_KV_AS_REAL:
        return read_attr(s->r, kv_group, f->name, H5T_FLOAT, H5T_NATIVE_DOUBLE, 1, &v->real, 0);
    case DQ_KV_AS_TEXT:
        DQ_TRY(read_words(s->r, kv_group, f->name, s->word, cap));
        if (f->type != DQ_KV_POLICY || strcmp(s->word, "none") != 0) v->text = s->word;
        return DQ_OK;
    case DQ_KV_AS_INTEGER: break;
    }
    DQ_TRY(read_ints(s->r, kv_group, f->name, &v->integer, 1));
    const bool narrow = f->type == DQ_KV_INT || f->type == DQ_KV_WIDTH;
    if (!narrow || (v->integer >= 0 && v->integer <= INT_MAX)) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "%s: %s: attribute %s: expected 0 to %d, found %lld",
                   s->r->path, kv_group, f->name, INT_MAX, (long long)v->integer);
}

/* The attributes repeat what the recipe says, and only the recipe's bytes are hashed. */
static dq_status agrees(const dq_container_info *info, const json_t *recipe, dq_arena *a,
                        dq_err *err)
{
    int64_t bits;
    const char *granularity;
    dq_logit_spec logit;
    dq_kv_config kv = dq_kv_config_plain;
    const json_t *stored = json_object_get(recipe, "kv");
    DQ_TRY(dq_json_int(&bits, recipe, "logit_bits", 2, 16, NULL, err));
    DQ_TRY(dq_json_text(&granularity, recipe, "logit_granularity", NULL, err));
    if (stored) DQ_TRY(dq_kv_config_read(&kv, stored, a, err));
    dq_kv_config_renew(&kv);
    const bool good = dq_logit_parse(&logit, bits, granularity);
    if (!good || logit.bits != info->logit.bits || logit.granularity != info->logit.granularity)
        return dq_fail(err, DQ_DAMAGED, "\"%s\" differs from /attention",
                       good && logit.bits == info->logit.bits ? "logit_granularity" : "logit_bits");
    const char *differs = dq_kv_config_differs(&kv, &info->kv);
    if (!differs) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "\"kv\" differs from the attributes of /kv_cache (%s)",
                   differs);
}

static dq_status add_up(dq_container *c, dq_err *err)
{
    dq_container_info *info = &c->info;
    int64_t params = 0, bytes = 0, i;
    int bits = 16;
    const char *mode = "";
    for (i = 0; i < c->n_payloads; i++) {
        const dq_payload *p = &c->payload[i];
        if (is_in(p, DQ_PATH_TENSORS)) bytes += p->bytes;
        if (!p->row) continue;
        const char *own = dq_quant_modes[p->mode].name;
        mode = *mode == 0 || mode == own ? own : "mixed";
    }
    for (i = 0; i < c->n_tensors; i++) {
        const dq_weight *w = &c->tensor[i];
        params += w->rows * (w->cols > 0 ? w->cols : 0);
        if (!dq_weight_is_coded(w)) continue;
        bits = bits == 16 || bits == w->bits ? w->bits : 0;
    }
    if (params != info->params || bytes != info->weight_bytes)
        return dq_fail(err, DQ_DAMAGED,
                       "%s: /: attributes params or bytes_total disagree with /index", c->path);
    info->bits_per_weight = dq_weight_bits_over(bytes, params);
    info->weight_bits = bits;
    info->scale_mode = mode;
    info->file_bytes = (int64_t)c->map.bytes;
    return DQ_OK;
}

/* A group of 128 on 64 columns is stored as 64. */
static bool has_group(const dq_weight *w, const char *group)
{
    const bool one = w->scale_rows == 1 && w->rows > 1;
    const int64_t n = strtoll(group, NULL, 10);
    if (strcmp(group, "tensor") == 0) return w->scale_rows == 1;
    if (strcmp(group, "row") == 0) return !one && w->group_size == w->cols;
    return !one && w->group_size == (n < w->cols ? n : w->cols);
}

static bool all_have_group(const dq_container *c, const char *group)
{
    for (int64_t i = 0; i < c->n_tensors; i++) {
        const dq_weight *w = &c->tensor[i];
        if (dq_weight_is_coded(w) && !has_group(w, group)) return false;
    }
    return true;
}

/* The wanted group where all sizes agree with it, or what the rules gave to all, or "mixed". */
static dq_status name_group(dq_container *c, const char *wanted, dq_err *err)
{
    int64_t widest = 0;
    char number[32];
    for (int64_t i = 0; i < c->n_tensors; i++) {
        const dq_weight *w = &c->tensor[i];
        if (dq_weight_is_coded(w) && w->group_size > widest) widest = w->group_size;
    }
    snprintf(number, sizeof number, "%lld", (long long)widest);
    const char *const names[] = {wanted, "row", "tensor", number};
    const char *group = "mixed";
    for (int i = 3; i >= 0; i--) {
        if (all_have_group(c, names[i])) group = names[i];
    }
    c->info.weight_group = dq_text(c->arena, group, strlen(group), err);
    return err->code;
}

static dq_status sum_up(dq_container *c, dq_err *err)
{
    DQ_TRY(add_up(c, err));
    static const char *const keep = "keep";
    json_t *recipe = NULL;
    const char *group = NULL, *dense;
    c->info.weight_group = "";
    if (dq_json_parse(&recipe, c->recipe, c->recipe_len, "/config/recipe_json", err) != DQ_OK)
        return dq_in(err, "%s: ", c->path);
    if (dq_json_text(&group, recipe, "group", NULL, err) == DQ_OK &&
        dq_json_text(&dense, recipe, "dense_type", &keep, err) == DQ_OK &&
        agrees(&c->info, recipe, c->arena, err) == DQ_OK) {
        c->info.is_rounded = c->info.weight_bits != 16 || strcmp(dense, keep) != 0;
        if (c->info.weight_bits != 16) name_group(c, group, err);
    } else {
        dq_in(err, "%s: /config/recipe_json: ", c->path);
    }
    json_decref(recipe);
    return err->code;
}

/* Everything in the file is a claim until it is checked here: header, index, then each payload's
 * row against the type, shape and place of its dataset in HDF5. Weights are only mapped: their
 * bytes are checked when they are first used. */

static const char tensors[] = DQ_PATH_TENSORS;

static dq_status read_json_text(dq_container *c, dq_container_h5 *r, const char *path,
                                const char **text, size_t *len)
{
    block b;
    DQ_TRY(find_dataset(r, path, &b));
    bool good = is_text(&b);
    reset(r);
    if (!good) return damaged(c, path, "is not a fixed-length text", r->err);
    *len = (size_t)b.bytes;
    *text = dq_text(c->arena, (const char *)b.data, *len, r->err);
    return r->err->code;
}

static dq_status read_hash(dq_container *c, dq_container_h5 *r, const char *path, char hex[65])
{
    const char *text;
    size_t len;
    DQ_TRY(read_json_text(c, r, path, &text, &len));
    size_t zeros = 0; /* what stands there until a run is finished */
    while (zeros < len && text[zeros] == 0) zeros++;
    if (len == 64 && zeros == len)
        return dq_fail_with(r->err, DQ_DAMAGED, (dq_remedy){.code = DQ_REMEDY_UNFINISHED},
                            "%s: unfinished: the run that writes it was interrupted, or goes on.",
                            c->path);
    if (len != 64 || strspn(text, "0123456789abcdef") != 64)
        return damaged(c, path, "is not a SHA-256 in hexadecimal", r->err);
    memcpy(hex, text, 65);
    return DQ_OK;
}

static dq_status read_word(dq_container *c, dq_container_h5 *r, const char *path, const char *name,
                           const char **out)
{
    char buf[512];
    DQ_TRY(read_words(r, path, name, buf, sizeof buf));
    *out = dq_text(c->arena, buf, strlen(buf), r->err);
    return r->err->code;
}

static dq_status read_header(dq_container *c, dq_container_h5 *r)
{
    dq_container_info *i = &c->info;
    const char *print, *granularity;
    int bits;
    char type[64];
    if (read_words(r, "/", "encoding-type", type, sizeof type) != DQ_OK ||
        strcmp(type, DQ_H5_FORMAT) != 0) {
        *r->err = (dq_err){0}; /* replaces the text about an attribute */
        return dq_fail(r->err, DQ_MISMATCH, "%s: an HDF5 file, but not a dq container", c->path);
    }
    DQ_TRY(read_word(c, r, "/", "encoding-version", &c->info.version));
    if (strncmp(c->info.version, "1.", 2) != 0)
        return dq_fail(r->err, DQ_MISMATCH,
                       "%s: container version %s (expected 1.x). Update dq, or quantize again.",
                       c->path, c->info.version);
    if (read_json_text(c, r, DQ_PATH_OBJECTS, &c->objects, &c->objects_len) != DQ_OK)
        return dq_fail_more(r->err, dq_remedy_none,
                            ". An earlier dq wrote containers without it: quantize again");
    DQ_TRY(read_word(c, r, "/", "dq_version", &i->dq_version));
    DQ_TRY(read_word(c, r, "/", "architecture", &i->architecture));
    DQ_TRY(read_ints(r, "/", "params", &i->params, 1));
    DQ_TRY(read_ints(r, "/", "bytes_total", &i->weight_bytes, 1));
    int64_t v;
    DQ_TRY(read_ints(r, "/attention", "logit_bits", &v, 1));
    bits = v < 0 || v > 1 << 20 ? -1 : (int)v;
    DQ_TRY(read_word(c, r, "/attention", "logit_granularity", &granularity));
    kv_source source = {.r = r};
    const char *where = dq_textf(c->arena, r->err, "%s: %s: ", r->path, kv_group);
    if (!where) return r->err->code;
    const dq_kv_reader reader = {&source, has_kv, read_kv, where};
    DQ_TRY(dq_kv_config_take(&i->kv, &reader, c->arena, r->err));
    dq_kv_config_renew(&i->kv);
    DQ_TRY(read_word(c, r, "/provenance", "source", &i->source));
    DQ_TRY(read_word(c, r, "/provenance", "source_fingerprint", &print));
    if (has_attr(r, "/provenance", "source_types"))
        DQ_TRY(read_word(c, r, "/provenance", "source_types", &i->source_types));
    if (has_attr(r, "/provenance", "arithmetic"))
        DQ_TRY(read_word(c, r, "/provenance", "arithmetic", &i->arithmetic));
    if (strlen(print) != 64)
        return damaged(c, "/provenance", "source_fingerprint is malformed", r->err);
    memcpy(i->fingerprint, print, 65);
    if (!dq_logit_parse(&i->logit, bits, granularity))
        return damaged(c, "/attention", "unknown logit_bits or logit_granularity", r->err);
    DQ_TRY(read_json_text(c, r, "/config/model_json", &c->config, &c->config_len));
    DQ_TRY(read_json_text(c, r, "/config/recipe_json", &c->recipe, &c->recipe_len));
    DQ_TRY(read_hash(c, r, "/content_sha256", i->content_sha256));
    return read_hash(c, r, "/index_sha256", c->index_sha256);
}

static char *text_field(dq_container *c, const uint8_t *row, const dq_h5_column *col, dq_err *err)
{
    size_t n = 0;
    while (n < col->bytes && row[col->at + n]) n++;
    return dq_text(c->arena, (const char *)row + col->at, n, err);
}

static int64_t int_field(const uint8_t *row, const dq_h5_column *col)
{
    int64_t v;
    int32_t small;
    if (col->kind == 'l') {
        memcpy(&v, row + col->at, sizeof v);
        return v;
    }
    memcpy(&small, row + col->at, sizeof small);
    return small;
}

static dq_status read_index(dq_container *c, dq_container_h5 *r)
{
    dq_h5_column col[DQ_INDEX_COLUMNS];
    block b;
    DQ_TRY(find_dataset(r, "/index", &b));
    dq_h5_index_columns(col, 1);
    DQ_TRY(find_columns(r, "/index", &b, col, DQ_INDEX_COLUMNS));
    reset(r);
    c->index = b.data;
    c->index_bytes = b.bytes;
    c->n_payloads = b.shape[0];
    c->payload = dq_alloc(c->arena, (size_t)c->n_payloads, sizeof *c->payload, r->err);
    if (!c->payload) return r->err->code;
    for (int64_t i = 0; i < c->n_payloads; i++) {
        dq_payload *p = &c->payload[i];
        const uint8_t *row = b.data + (size_t)i * b.item;
        dq_err *err = r->err;
        char *sha = text_field(c, row, &col[DQ_COL_SHA], err);
        p->path = text_field(c, row, &col[DQ_COL_PATH], err);
        p->encoding = text_field(c, row, &col[DQ_COL_ENCODING], err);
        if (!sha || !p->path || !p->encoding) return err->code;
        p->bits = (int)int_field(row, &col[DQ_COL_BITS]);
        p->group_size = int_field(row, &col[DQ_COL_GROUP]);
        p->rows = int_field(row, &col[DQ_COL_ROWS]);
        p->cols = int_field(row, &col[DQ_COL_COLS]);
        p->bytes = int_field(row, &col[DQ_COL_BYTES]);
        memcpy(&p->bits_per_weight, row + col[DQ_COL_BPW].at, sizeof p->bits_per_weight);
        memcpy(&p->sqnr_db, row + col[DQ_COL_SQNR].at, sizeof p->sqnr_db);
        if (strlen(sha) != 64 || p->path[0] != '/' || p->rows < 1 || p->cols < 1 || p->bytes < 1)
            return damaged(c, "/index", "a row is malformed", err);
        memcpy(p->sha256, sha, 65);
        if (i > 0 && strcmp(c->payload[i - 1].path, c->payload[i].path) >= 0)
            return damaged(c, "/index", "rows are not in path order", r->err);
    }
    return DQ_OK;
}

static dq_status read_sources(dq_container *c, dq_container_h5 *r, const block *b)
{
    static const char path[] = "/provenance/source_files";
    dq_h5_column col[DQ_SOURCE_COLUMNS];
    dq_h5_source_columns(col, 1);
    DQ_TRY(find_columns(r, path, b, col, DQ_SOURCE_COLUMNS));
    if (b->shape[0] > 1 << 20) return damaged(c, path, "too many rows", r->err);
    c->n_sources = (int)b->shape[0];
    c->source = dq_alloc(c->arena, (size_t)c->n_sources, sizeof *c->source, r->err);
    for (int i = 0; c->source && i < c->n_sources; i++) {
        const uint8_t *row = b->data + (size_t)i * b->item;
        dq_source_file *s = &c->source[i];
        char *sha = text_field(c, row, &col[DQ_COL_FILE_SHA], r->err);
        s->name = text_field(c, row, &col[DQ_COL_NAME], r->err);
        s->bytes = int_field(row, &col[DQ_COL_SIZE]);
        if (sha && strlen(sha) != 64) return damaged(c, path, "malformed hash", r->err);
        if (sha) memcpy(s->sha256, sha, 65);
    }
    return r->err->code;
}

/* NAME of "/tensors/NAME" and "/tensors/NAME/PART", and PART or ""; NULL: a path of another
 * form. */
static const char *tensor_name(dq_container *c, const char *path, const char **dataset, dq_err *err)
{
    const char *name = path + sizeof tensors - 1, *slash = strchr(name, '/');
    const size_t n = slash ? (size_t)(slash - name) : strlen(name);
    *dataset = slash ? slash + 1 : "";
    if (n == 0 || (slash && !slash[1]) || strchr(*dataset, '/')) return NULL;
    return dq_text(c->arena, name, n, err);
}

/* DQ_DTYPE_COUNT: an element type that dq does not have. */
static dq_tensor tensor_of(dq_container_h5 *r, const block *b)
{
    dq_tensor t = {.n_dims = b->n_dims, .data = b->data};
    int type = 0;
    while (type < DQ_DTYPE_COUNT && !is_type(r, b, (dq_dtype)type)) type++;
    t.dtype = (dq_dtype)type;
    memcpy(t.shape, b->shape, sizeof t.shape);
    return t;
}

static dq_status read_mode(dq_container *c, dq_container_h5 *r, const char *group, dq_weight *w)
{
    char word[64];
    int mode = 0;
    DQ_TRY(read_words(r, group, "scale_mode", word, sizeof word));
    while (mode < DQ_QUANT_MODES && strcmp(word, dq_quant_modes[mode].name) != 0) mode++;
    if (mode == DQ_QUANT_MODES || !(w->format->modes >> mode & 1))
        return damaged(c, group, "unknown scale_mode", r->err);
    c->mode = (dq_scale_mode)mode;
    return DQ_OK;
}

static dq_status same_as_row(dq_container *c, dq_container_h5 *r, const char *group,
                             const char *name, int64_t found, int64_t row)
{
    if (found == row) return DQ_OK;
    return dq_fail(r->err, DQ_DAMAGED, "%s: %s: attribute %s is %lld (expected %lld, as in /index)",
                   c->path, group, name, (long long)found, (long long)row);
}

/* Codes are the first dataset of a coded tensor; its group's attributes describe the rest. */
static dq_status begin_coded(dq_container *c, dq_container_h5 *r, dq_weight *w, const dq_payload *p)
{
    char group[1024], word[64];
    int64_t shape[2], v[2];
    if (snprintf(group, sizeof group, "%s%s", tensors, w->name) >= (int)sizeof group)
        return damaged(c, w->name, "name too long", r->err);
    DQ_TRY(read_words(r, group, "encoding-type", word, sizeof word));
    w->format = dq_weight_format_named(word);
    if (!dq_weight_is_coded(w) || strcmp(word, p->encoding) != 0)
        return damaged(c, group, "encoding-type is unknown, or another one than in /index", r->err);
    DQ_TRY(read_ints(r, group, "bits", &v[0], 1));
    DQ_TRY(read_ints(r, group, "group_size", &v[1], 1));
    DQ_TRY(read_ints(r, group, "shape", shape, 2));
    DQ_TRY(read_mode(c, r, group, w));
    if (v[0] < 2 || v[0] > 8) return damaged(c, group, "bits outside 2..8", r->err);
    if (shape[0] < 1 || shape[1] < 1) return damaged(c, group, "shape below 1", r->err);
    if (v[1] < 1 || v[1] > shape[1]) return damaged(c, group, "group_size outside 1..cols", r->err);
    DQ_TRY(same_as_row(c, r, group, "bits", v[0], p->bits));
    DQ_TRY(same_as_row(c, r, group, "group_size", v[1], p->group_size));
    DQ_TRY(same_as_row(c, r, group, "shape", shape[0], p->rows));
    DQ_TRY(same_as_row(c, r, group, "shape", shape[1], p->cols));
    w->rows = shape[0];
    w->cols = shape[1];
    w->bits = (int)v[0];
    w->group_size = v[1];
    return DQ_OK;
}

static dq_status check_tensor(dq_container *c, dq_container_h5 *r, dq_payload *p, const block *b)
{
    dq_weight *w = &c->tensor[c->n_tensors];
    const char *dataset, *name = tensor_name(c, p->path, &dataset, r->err);
    if (!name) return damaged(c, p->path, "is not where a tensor belongs", r->err);
    if (w->name && strcmp(name, w->name) != 0)
        return damaged(c, w->name, "a part of it is missing", r->err);
    if (*dataset) {
        w->name = name;
        if (c->n_datasets == 0) DQ_TRY(begin_coded(c, r, w, p));
        const dq_dataset_row *row = &w->format->dataset[c->n_datasets];
        const dq_tensor found = tensor_of(r, b);
        if (strcmp(dataset, row->name) != 0 || strcmp(p->encoding, row->encoding) != 0)
            return dq_fail(r->err, DQ_DAMAGED, "%s: %s: is not what belongs here (%s%s/%s, \"%s\")",
                           c->path, p->path, tensors, w->name, row->name, row->encoding);
        const char *wrong = dq_dataset_take(w, row, &found);
        if (wrong) return damaged(c, p->path, wrong, r->err);
        const dq_dataset is = row->of(w);
        if (p->rows != is.rows || p->cols != is.cols || p->bits != is.bits ||
            p->group_size != w->group_size)
            return damaged(c, p->path, "the tensor and /index disagree", r->err);
        p->dataset = is;
        p->row = row;
        p->mode = c->mode;
        if (++c->n_datasets < w->format->n_datasets) return DQ_OK;
        c->n_datasets = 0;
        c->n_tensors++;
        return DQ_OK;
    }
    if (w->name || strcmp(p->encoding, dq_format_dense.name) != 0)
        return damaged(c, p->path, "unknown encoding", r->err);
    w->name = name;
    const dq_dtype type = tensor_of(r, b).dtype;
    int64_t rows = b->n_dims > 0 ? b->shape[0] : 1, cols = b->bytes / (int64_t)b->item / rows;
    if (type == DQ_DTYPE_COUNT) return damaged(c, p->path, "unknown element type", r->err);
    if (rows != p->rows || cols != p->cols || p->bits != 8 * (int)b->item || p->group_size)
        return damaged(c, p->path, "shape and /index disagree", r->err);
    w->rows = rows;
    /* the checkpoint reader marks tensors of three dimensions and more in the same way */
    w->cols = b->n_dims > 2 ? -b->n_dims : cols;
    w->bits = 16;
    w->dtype = type;
    w->data = b->data;
    c->n_tensors++;
    return DQ_OK;
}

static dq_status check_other(dq_container *c, dq_container_h5 *r, const dq_payload *p,
                             const block *b)
{
    int64_t rows = 1, cols = b->bytes;
    bool fits = false;
    if (strcmp(p->path, "/provenance/source_files") == 0) {
        DQ_TRY(read_sources(c, r, b));
        rows = b->shape[0];
        cols = (int64_t)b->item;
        fits = strcmp(p->encoding, "table") == 0;
    } else if (strcmp(p->encoding, "text") == 0) {
        fits = is_text(b);
    } else if (strcmp(p->encoding, "bytes") == 0) {
        fits = is_type(r, b, DQ_U8) && b->n_dims == 1;
    }
    if (!fits) return damaged(c, p->path, "type and encoding of /index disagree", r->err);
    if (p->rows != rows || p->cols != cols || p->bits != 8 || p->group_size)
        return damaged(c, p->path, "shape and /index disagree", r->err);
    return DQ_OK;
}

static dq_status check_payload(dq_container *c, dq_container_h5 *r, dq_payload *p)
{
    block b;
    DQ_TRY(find_dataset(r, p->path, &b));
    if (b.bytes != p->bytes) return damaged(c, p->path, "size and /index disagree", r->err);
    p->data = b.data;
    p->n_dims = b.n_dims;
    memcpy(p->shape, b.shape, sizeof p->shape);
    if (is_in(p, tensors))
        check_tensor(c, r, p, &b);
    else
        check_other(c, r, p, &b);
    reset(r);
    return r->err->code;
}

static dq_status read_payloads(dq_container *c, dq_container_h5 *r)
{
    c->tensor = dq_alloc(c->arena, (size_t)c->n_payloads + 1, sizeof *c->tensor, r->err);
    if (!c->tensor) return r->err->code;
    for (int64_t i = 0, left = (int64_t)c->map.bytes; i < c->n_payloads; i++) {
        DQ_TRY(check_payload(c, r, &c->payload[i]));
        /* many names of one dataset would take forever to read */
        if (c->payload[i].bytes > left)
            return damaged(c, "/index", "lists more bytes than the file has", r->err);
        left -= c->payload[i].bytes;
    }
    if (c->tensor[c->n_tensors].name)
        return damaged(c, c->tensor[c->n_tensors].name, "a part of it is missing", r->err);
    if (count_links(r, "/tensors") != c->n_tensors)
        return damaged(c, "/tensors", "holds tensors that /index does not list", r->err);
    return DQ_OK;
}

static dq_status read_all(dq_container *c, dq_err *err)
{
    dq_container_h5 r;
    DQ_TRY(dq_container_h5_open(&r, &c->map, c->path, err));
    if (read_header(c, &r) == DQ_OK && read_index(c, &r) == DQ_OK && read_payloads(c, &r) == DQ_OK)
        sum_up(c, err);
    dq_container_h5_close(&r);
    if (err->code == DQ_OK)
        qsort(c->tensor, (size_t)c->n_tensors, sizeof *c->tensor, dq_name_compare);
    return err->code;
}

dq_status dq_container_open(dq_container **out, const char *path, dq_err *err)
{
    dq_arena *arena;
    dq_container *c = *out = dq_arena_object(&arena, sizeof *c, err);
    if (!c) return err->code;
    c->arena = arena;
    c->path = dq_text(arena, path, strlen(path), err);
    if (c->path && dq_os_map_open(&c->map, path, err) == DQ_OK) read_all(c, err);
    if (err->code == DQ_OK) return DQ_OK;
    dq_container_close(c);
    *out = NULL;
    return err->code;
}

void dq_container_close(dq_container *c)
{
    if (!c) return;
    dq_os_map_close(&c->map);
    dq_arena_free(c->arena);
}

const char *dq_container_config(const dq_container *c, size_t *len)
{
    *len = c->config_len;
    return c->config;
}

const char *dq_container_recipe(const dq_container *c, size_t *len)
{
    *len = c->recipe_len;
    return c->recipe;
}

const char *dq_container_gates(const dq_container *c, size_t *len)
{
    for (int64_t i = 0; i < c->n_payloads; i++) {
        const dq_payload *p = &c->payload[i];
        *len = (size_t)p->bytes;
        if (strcmp(p->path, DQ_PATH_GATES) == 0) return (const char *)p->data;
    }
    return NULL;
}

dq_status dq_container_file(dq_container *c, const char *name, const char **text, size_t *len,
                            dq_err *err)
{
    static const char files[] = DQ_PATH_FILES;
    *text = NULL;
    *len = 0;
    if (strcmp(name, "config.json") == 0) {
        *text = dq_container_config(c, len);
        return DQ_OK;
    }
    for (int64_t i = 0; i < c->n_payloads; i++) {
        const dq_payload *p = &c->payload[i];
        if (!is_in(p, files) || strcmp(p->path + sizeof files - 1, name) != 0) continue;
        DQ_TRY(check_once(c, i, err));
        *text = (const char *)p->data;
        *len = (size_t)p->bytes;
    }
    return DQ_OK;
}

static bool find_tensor(void *arg, const char *name, dq_weight *w)
{
    const dq_container *c = arg;
    dq_weight key = {.name = name};
    const dq_weight *found =
        bsearch(&key, c->tensor, (size_t)c->n_tensors, sizeof *c->tensor, dq_name_compare);
    if (!found) return false;
    *w = *found;
    return true;
}

static const char *tensor_at(void *arg, int64_t i)
{
    return ((const dq_container *)arg)->tensor[i].name;
}

dq_source dq_container_source(dq_container *c)
{
    return (dq_source){c, find_tensor, c->n_tensors, tensor_at, NULL, NULL};
}
