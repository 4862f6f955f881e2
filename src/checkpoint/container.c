/* container: see container.h. Everything in the file is a claim until it is checked here. The order: header,
 * index; then each payload's row against the dataset that it names, whose shape, type and place are looked up in
 * HDF5; then what container_summary.c adds up. Weights are mapped and not read: their bytes are checked by container_check.c
 * when they are first used.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/container_impl.h"
#include "checkpoint/container_read.h"
#include "checkpoint/container_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char tensors[] = DQ_PATH_TENSORS;

static dq_status damaged(const dq_container *c, const char *path, const char *what, dq_err *err)
{
    return dq_fail(err, DQ_DAMAGED, "%s: %s: %s", c->path, path, what);
}

/* ---- Header ---- */

static dq_status read_text(dq_container *c, dq_container_h5 *r, const char *path, const char **text,
                           size_t *len)
{
    dq_container_h5_block b;
    DQ_TRY(dq_container_h5_find(r, path, &b));
    bool good = dq_container_h5_is_text(&b);
    dq_container_h5_reset(r);
    if (!good) return damaged(c, path, "is not a fixed-length text", r->err);
    *len = (size_t)b.bytes;
    *text = dq_text(c->arena, (const char *)b.data, *len, r->err);
    return r->err->code;
}

static dq_status read_hash(dq_container *c, dq_container_h5 *r, const char *path, char hex[65])
{
    const char *text;
    size_t len;
    DQ_TRY(read_text(c, r, path, &text, &len));
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
    DQ_TRY(dq_container_h5_words(r, path, name, buf, sizeof buf));
    *out = dq_text(c->arena, buf, strlen(buf), r->err);
    return r->err->code;
}

static dq_status read_int(dq_container_h5 *r, const char *path, const char *name, int *out)
{
    int64_t v;
    DQ_TRY(dq_container_h5_ints(r, path, name, &v, 1));
    *out = v < 0 || v > 1 << 20 ? -1 : (int)v;
    return DQ_OK;
}

static dq_status read_version(dq_container *c, dq_container_h5 *r)
{
    char type[64];
    if (dq_container_h5_words(r, "/", "encoding-type", type, sizeof type) != DQ_OK ||
        strcmp(type, DQ_H5_FORMAT) != 0) {
        *r->err = (dq_err){0}; /* replaces the text about an attribute */
        return dq_fail(r->err, DQ_MISMATCH, "%s: an HDF5 file, but not a dq container", c->path);
    }
    DQ_TRY(read_word(c, r, "/", "encoding-version", &c->info.version));
    if (strncmp(c->info.version, "1.", 2) != 0)
        return dq_fail(r->err, DQ_MISMATCH,
                       "%s: container version %s (expected 1.x). Update dq, or quantize again.",
                       c->path, c->info.version);
    return DQ_OK;
}

static dq_status read_header(dq_container *c, dq_container_h5 *r)
{
    dq_container_info *i = &c->info;
    const char *print, *granularity;
    int bits;
    DQ_TRY(read_version(c, r));
    if (read_text(c, r, DQ_PATH_OBJECTS, &c->objects, &c->objects_len) != DQ_OK)
        return dq_fail_more(r->err, dq_remedy_none,
                            ". An earlier dq wrote containers without it: quantize again");
    DQ_TRY(read_word(c, r, "/", "dq_version", &i->dq_version));
    DQ_TRY(read_word(c, r, "/", "architecture", &i->architecture));
    DQ_TRY(dq_container_h5_ints(r, "/", "params", &i->params, 1));
    DQ_TRY(dq_container_h5_ints(r, "/", "bytes_total", &i->weight_bytes, 1));
    DQ_TRY(read_int(r, "/attention", "logit_bits", &bits));
    DQ_TRY(read_word(c, r, "/attention", "logit_granularity", &granularity));
    DQ_TRY(dq_container_h5_kv_config(r, &i->kv, c->arena));
    DQ_TRY(read_word(c, r, "/provenance", "source", &i->source));
    DQ_TRY(read_word(c, r, "/provenance", "source_fingerprint", &print));
    if (dq_container_h5_has(r, "/provenance", "source_types"))
        DQ_TRY(read_word(c, r, "/provenance", "source_types", &i->source_types));
    if (dq_container_h5_has(r, "/provenance", "arithmetic"))
        DQ_TRY(read_word(c, r, "/provenance", "arithmetic", &i->arithmetic));
    if (strlen(print) != 64)
        return damaged(c, "/provenance", "source_fingerprint is malformed", r->err);
    memcpy(i->fingerprint, print, 65);
    if (!dq_logit_parse(&i->logit, bits, granularity))
        return damaged(c, "/attention", "unknown logit_bits or logit_granularity", r->err);
    DQ_TRY(read_text(c, r, "/config/model_json", &c->config, &c->config_len));
    DQ_TRY(read_text(c, r, "/config/recipe_json", &c->recipe, &c->recipe_len));
    DQ_TRY(read_hash(c, r, "/content_sha256", i->content_sha256));
    return read_hash(c, r, "/index_sha256", c->index_sha256);
}

/* ---- Tables ---- */

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

static dq_status read_row(dq_container *c, dq_payload *p, const uint8_t *row,
                          const dq_h5_column *col, dq_err *err)
{
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
    return DQ_OK;
}

static dq_status read_index(dq_container *c, dq_container_h5 *r)
{
    dq_h5_column col[DQ_INDEX_COLUMNS];
    dq_container_h5_block b;
    DQ_TRY(dq_container_h5_find(r, "/index", &b));
    dq_h5_index_columns(col, 1);
    DQ_TRY(dq_container_h5_columns(r, "/index", &b, col, DQ_INDEX_COLUMNS));
    dq_container_h5_reset(r);
    c->index = b.data;
    c->index_bytes = b.bytes;
    c->n_payloads = b.shape[0];
    c->payload = dq_alloc(c->arena, (size_t)c->n_payloads, sizeof *c->payload, r->err);
    if (!c->payload) return r->err->code;
    for (int64_t i = 0; i < c->n_payloads; i++) {
        DQ_TRY(read_row(c, &c->payload[i], b.data + (size_t)i * b.item, col, r->err));
        if (i > 0 && strcmp(c->payload[i - 1].path, c->payload[i].path) >= 0)
            return damaged(c, "/index", "rows are not in path order", r->err);
    }
    return DQ_OK;
}

static dq_status read_sources(dq_container *c, dq_container_h5 *r, const dq_container_h5_block *b)
{
    static const char path[] = "/provenance/source_files";
    dq_h5_column col[DQ_SOURCE_COLUMNS];
    dq_h5_source_columns(col, 1);
    DQ_TRY(dq_container_h5_columns(r, path, b, col, DQ_SOURCE_COLUMNS));
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

/* ---- Payloads ---- */

/* "NAME" of "/tensors/NAME" and of "/tensors/NAME/PART", and PART ("" where there is none); NULL when the path
 * has another form. */
static const char *tensor_name(dq_container *c, const char *path, const char **part, dq_err *err)
{
    const char *name = path + sizeof tensors - 1, *slash = strchr(name, '/');
    const size_t n = slash ? (size_t)(slash - name) : strlen(name);
    *part = slash ? slash + 1 : "";
    if (n == 0 || (slash && !slash[1]) || strchr(*part, '/')) return NULL;
    return dq_text(c->arena, name, n, err);
}

/* A dataset as tensor; of DQ_DTYPE_COUNT where its elements have no type of ours. */
static dq_tensor tensor_of(dq_container_h5 *r, const dq_container_h5_block *b)
{
    dq_tensor t = {.n_dims = b->n_dims, .data = b->data};
    int type = 0;
    while (type < DQ_DTYPE_COUNT && !dq_container_h5_is(r, b, (dq_dtype)type)) type++;
    t.dtype = (dq_dtype)type;
    memcpy(t.shape, b->shape, sizeof t.shape);
    return t;
}

static dq_status read_mode(dq_container *c, dq_container_h5 *r, const char *group, dq_weight *w)
{
    char word[64];
    int mode = 0;
    DQ_TRY(dq_container_h5_words(r, group, "scale_mode", word, sizeof word));
    while (mode < DQ_QUANT_MODES && strcmp(word, dq_quant_modes[mode].name) != 0) mode++;
    if (mode == DQ_QUANT_MODES || !(w->format->modes >> mode & 1))
        return damaged(c, group, "unknown scale_mode", r->err);
    c->mode = (dq_scale_mode)mode;
    return DQ_OK;
}

/* An attribute of a coded tensor's group beside its row of /index. */
static dq_status same_as_row(dq_container *c, dq_container_h5 *r, const char *group,
                             const char *name, int64_t found, int64_t row)
{
    if (found == row) return DQ_OK;
    return dq_fail(r->err, DQ_DAMAGED, "%s: %s: attribute %s is %lld (expected %lld, as in /index)",
                   c->path, group, name, (long long)found, (long long)row);
}

/* The first part of a coded tensor, which is its codes: what the attributes of its group say. */
static dq_status begin_coded(dq_container *c, dq_container_h5 *r, dq_weight *w, const dq_payload *p)
{
    char group[1024], word[64];
    int64_t shape[2], v[2];
    if (snprintf(group, sizeof group, "%s%s", tensors, w->name) >= (int)sizeof group)
        return damaged(c, w->name, "name too long", r->err);
    DQ_TRY(dq_container_h5_words(r, group, "encoding-type", word, sizeof word));
    w->format = dq_weight_format_named(word);
    if (!dq_weight_is_coded(w) || strcmp(word, p->encoding) != 0)
        return damaged(c, group, "encoding-type is unknown, or another one than in /index", r->err);
    DQ_TRY(dq_container_h5_ints(r, group, "bits", &v[0], 1));
    DQ_TRY(dq_container_h5_ints(r, group, "group_size", &v[1], 1));
    DQ_TRY(dq_container_h5_ints(r, group, "shape", shape, 2));
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

/* Parts come one after the other, in the order of the format; the last one completes the weight. */
static dq_status check_part(dq_container *c, dq_container_h5 *r, dq_payload *p,
                            const dq_container_h5_block *b, const char *part)
{
    dq_weight *w = &c->tensor[c->n_tensors];
    const dq_weight_part_row *row = &w->format->part[c->n_parts];
    const dq_tensor found = tensor_of(r, b);
    if (strcmp(part, row->name) != 0 || strcmp(p->encoding, row->encoding) != 0)
        return dq_fail(r->err, DQ_DAMAGED, "%s: %s: is not what belongs here (%s%s/%s, \"%s\")",
                       c->path, p->path, tensors, w->name, row->name, row->encoding);
    const char *wrong = row->take(w, &found);
    if (wrong) return damaged(c, p->path, wrong, r->err);
    const dq_part is = row->of(w);
    if (p->rows != is.rows || p->cols != is.cols || p->bits != is.bits ||
        p->group_size != w->group_size)
        return damaged(c, p->path, "the tensor and /index disagree", r->err);
    p->part = is;
    p->row = row;
    p->mode = c->mode;
    if (++c->n_parts < w->format->n_parts) return DQ_OK;
    c->n_parts = 0;
    c->n_tensors++;
    return DQ_OK;
}

static dq_status check_dense(dq_container *c, dq_container_h5 *r, const dq_payload *p,
                             const dq_container_h5_block *b, dq_weight *w)
{
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
    return DQ_OK;
}

static dq_status check_tensor(dq_container *c, dq_container_h5 *r, dq_payload *p,
                              const dq_container_h5_block *b)
{
    dq_weight *w = &c->tensor[c->n_tensors];
    const char *part, *name = tensor_name(c, p->path, &part, r->err);
    if (!name) return damaged(c, p->path, "is not where a tensor belongs", r->err);
    if (w->name && strcmp(name, w->name) != 0)
        return damaged(c, w->name, "a part of it is missing", r->err);
    if (*part) {
        w->name = name;
        if (c->n_parts == 0) DQ_TRY(begin_coded(c, r, w, p));
        return check_part(c, r, p, b, part);
    }
    if (w->name || strcmp(p->encoding, dq_format_dense.name) != 0)
        return damaged(c, p->path, "unknown encoding", r->err);
    w->name = name;
    DQ_TRY(check_dense(c, r, p, b, w));
    c->n_tensors++;
    return DQ_OK;
}

/* What is no tensor: a text, a file or the table of sources. */
static dq_status check_other(dq_container *c, dq_container_h5 *r, const dq_payload *p,
                             const dq_container_h5_block *b)
{
    int64_t rows = 1, cols = b->bytes;
    bool fits = false;
    if (strcmp(p->path, "/provenance/source_files") == 0) {
        DQ_TRY(read_sources(c, r, b));
        rows = b->shape[0];
        cols = (int64_t)b->item;
        fits = strcmp(p->encoding, "table") == 0;
    } else if (strcmp(p->encoding, "text") == 0) {
        fits = dq_container_h5_is_text(b);
    } else if (strcmp(p->encoding, "bytes") == 0) {
        fits = dq_container_h5_is(r, b, DQ_U8) && b->n_dims == 1;
    }
    if (!fits) return damaged(c, p->path, "type and encoding of /index disagree", r->err);
    if (p->rows != rows || p->cols != cols || p->bits != 8 || p->group_size)
        return damaged(c, p->path, "shape and /index disagree", r->err);
    return DQ_OK;
}

static dq_status check_payload(dq_container *c, dq_container_h5 *r, dq_payload *p)
{
    dq_container_h5_block b;
    DQ_TRY(dq_container_h5_find(r, p->path, &b));
    if (b.bytes != p->bytes) return damaged(c, p->path, "size and /index disagree", r->err);
    p->data = b.data;
    p->n_dims = b.n_dims;
    memcpy(p->shape, b.shape, sizeof p->shape);
    if (dq_container_payload_in(p, tensors))
        check_tensor(c, r, p, &b);
    else
        check_other(c, r, p, &b);
    dq_container_h5_reset(r);
    return r->err->code;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const dq_weight *)a)->name, ((const dq_weight *)b)->name);
}

static dq_status read_payloads(dq_container *c, dq_container_h5 *r)
{
    c->tensor = dq_alloc(c->arena, (size_t)c->n_payloads + 1, sizeof *c->tensor, r->err);
    if (!c->tensor) return r->err->code;
    for (int64_t i = 0, left = (int64_t)c->map.bytes; i < c->n_payloads; i++) {
        DQ_TRY(check_payload(c, r, &c->payload[i]));
        /* many names of one dataset would take for ever to read */
        if (c->payload[i].bytes > left)
            return damaged(c, "/index", "lists more bytes than the file has", r->err);
        left -= c->payload[i].bytes;
    }
    if (c->tensor[c->n_tensors].name)
        return damaged(c, c->tensor[c->n_tensors].name, "a part of it is missing", r->err);
    if (dq_container_h5_count_links(r, "/tensors") != c->n_tensors)
        return damaged(c, "/tensors", "holds tensors that /index does not list", r->err);
    return DQ_OK;
}

/* ---- Opening ---- */

static dq_status read_all(dq_container *c, dq_err *err)
{
    dq_container_h5 r;
    DQ_TRY(dq_container_h5_open(&r, &c->map, c->path, err));
    if (read_header(c, &r) == DQ_OK && read_index(c, &r) == DQ_OK && read_payloads(c, &r) == DQ_OK)
        dq_container_sum_up(c, err);
    dq_container_h5_close(&r);
    if (err->code == DQ_OK) qsort(c->tensor, (size_t)c->n_tensors, sizeof *c->tensor, by_name);
    return err->code;
}

dq_status dq_container_open(dq_container **out, const char *path, dq_err *err)
{
    dq_arena *arena = dq_arena_new();
    dq_container *c = arena ? dq_alloc(arena, 1, sizeof *c, err) : NULL;
    *out = NULL;
    if (!c) {
        dq_arena_free(arena);
        return dq_fail(err, DQ_RESOURCE, "out of memory");
    }
    c->arena = arena;
    c->path = dq_text(arena, path, strlen(path), err);
    if (c->path && dq_os_map_open(&c->map, path, err) == DQ_OK) read_all(c, err);
    if (err->code != DQ_OK) {
        dq_container_close(c);
        return err->code;
    }
    *out = c;
    return DQ_OK;
}

void dq_container_close(dq_container *c)
{
    if (!c) return;
    dq_os_map_close(&c->map);
    dq_arena_free(c->arena);
}

void dq_container_release(const dq_container *c)
{
    dq_os_map_release(c->map.data, c->map.bytes);
}

/* ---- Look-ups ---- */

const dq_container_info *dq_container_header(const dq_container *c)
{
    return &c->info;
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
        if (!dq_container_payload_in(p, files) || strcmp(p->path + sizeof files - 1, name) != 0)
            continue;
        DQ_TRY(dq_container_payload_check_once(c, i, err));
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
        bsearch(&key, c->tensor, (size_t)c->n_tensors, sizeof *c->tensor, by_name);
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

int64_t dq_container_n_payloads(const dq_container *c)
{
    return c->n_payloads;
}

const dq_payload *dq_container_payload(const dq_container *c, int64_t i)
{
    return &c->payload[i];
}

int dq_container_n_sources(const dq_container *c)
{
    return c->n_sources;
}

const dq_source_file *dq_container_source_file(const dq_container *c, int i)
{
    return &c->source[i];
}
