/* gguf_model: tensors of all parts get the names of transformers (gguf_names.h); one that has none is refused. What is laid
 * out anew gets addresses when the file is opened and is filled by all threads, a
 * tensor at a time, when the model is to be run.
 *
 * Source: llama.cpp convert_hf_to_gguf.py, LlamaModel.permute (order of rows).
 * SPDX-License-Identifier: MIT */
#include "checkpoint/gguf_model.h"

#include "base/file.h"
#include "base/os.h"
#include "checkpoint/gguf_config.h"
#include "checkpoint/gguf_names.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARTS = 1000, LINE = 64 };

typedef struct entry {
    const char *name; /* as transformers has it */
    const dq_gguf_tensor *t;
    int64_t heads; /* rows are in the order of rotary pairs of so many heads; 0: as they are */
    dq_weight w;
    uint8_t *own; /* where it is laid out anew; NULL: it stays */
    dq_err err;
} entry;

typedef struct part {
    const char *name;
    dq_os_map map;
    dq_gguf g;
} part;

enum { CONFIG, TOKENIZER, TOKENIZER_CONFIG, GENERATION, N_TEXTS };
static const char *const text_names[N_TEXTS] = {"config.json", "tokenizer.json",
                                                "tokenizer_config.json", "generation_config.json"};

struct dq_gguf_model {
    dq_arena *arena; /* owns this struct too */
    part *part;      /* [n_parts] */
    int n_parts;     /* open, of n_files */
    int64_t n_files;
    dq_gguf all; /* the first part's keys, which are the model's, and the tensors of every part */
    json_t *config;
    /* config.json, and those of the tokenizer, which are made when one is asked for */
    dq_strbuf text[N_TEXTS];
    bool tokenizer_made;
    entry *entry; /* [n_entries], by name */
    int64_t n_entries;
    const char *about;
    dq_os_block own;
    size_t own_bytes;
    bool loaded;
};

/* ---- Weights ---- */

static bool becomes_codes(const dq_gguf_tensor *t)
{
    return t->type == DQ_GGML_Q8_0 || t->type == DQ_GGML_Q4_0 || t->type == DQ_GGML_Q5_0;
}

static size_t whole_lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

/* Bytes of codes of one that becomes codes. */
static size_t code_bytes(const dq_weight *w)
{
    return whole_lines((size_t)w->rows * dq_quant_row_bytes(w->cols, w->bits));
}

static size_t own_bytes(const entry *e)
{
    if (becomes_codes(e->t))
        return code_bytes(&e->w) + whole_lines((size_t)(e->w.rows * e->w.cols / 32) * 2);
    return e->heads && e->t->n_dims > 1 ? whole_lines(e->t->bytes) : 0;
}

static dq_weight weight_of(const dq_gguf_tensor *t, const char *name)
{
    const dq_weight_format *f = dq_format_ggml(t->type);
    const int64_t rows = t->shape[0], cols = t->n_dims > 1 ? t->shape[1] : 1;
    dq_weight w = {.name = name, .rows = rows, .cols = cols, .bits = 16, .data = t->data};
    if (f && t->n_dims == 2) {
        w = dq_format_ggml_weight(f, name, rows, cols, t->data);
        if (becomes_codes(t)) w.format = &dq_format_int;
        return w;
    }
    w.dtype = t->type == DQ_GGML_F16 ? DQ_F16 : t->type == DQ_GGML_BF16 ? DQ_BF16 : DQ_F32;
    if (t->n_dims > 2 || f) w.cols = -t->n_dims; /* no architecture has such a tensor */
    return w;
}

static void take_place(entry *e, uint8_t *p)
{
    e->own = p;
    e->w.data = p;
    if (becomes_codes(e->t)) e->w.scale = p ? p + code_bytes(&e->w) : NULL;
}

/* The row of the file that is row r of transformers. */
static int64_t stored_row(const entry *e, int64_t r)
{
    return e->heads ? dq_gguf_name_stored_row(r, e->w.rows / e->heads) : r;
}

/* Codes u - 2^(bits-1) of a block, and its scale. */
static void split_block(int8_t q[32], uint16_t *scale, const uint8_t *b, uint32_t type)
{
    memcpy(scale, b, sizeof *scale);
    if (type == DQ_GGML_Q8_0) {
        memcpy(q, b + 2, 32);
        return;
    }
    const uint8_t *bits = b + 2, *low = type == DQ_GGML_Q5_0 ? b + 6 : b + 2;
    for (int i = 0; i < 32; i++) {
        const int u = low[i % 16] >> i / 16 * 4 & 15;
        q[i] = (int8_t)(type == DQ_GGML_Q5_0 ? (u | (bits[i / 8] >> i % 8 & 1) << 4) - 16 : u - 8);
    }
}

static void fill_codes(entry *e)
{
    const dq_weight *w = &e->w;
    const dq_block *k = dq_format_ggml(e->t->type)->block;
    const int64_t groups = w->cols / 32;
    const size_t row_bytes = dq_quant_row_bytes(w->cols, w->bits);
    uint8_t *scales = e->own + code_bytes(w);
    for (int64_t r = 0; r < w->rows; r++) {
        const uint8_t *from = e->t->data + stored_row(e, r) * groups * k->bytes;
        for (int64_t g = 0; g < groups; g++) {
            int8_t q[32];
            uint16_t scale;
            split_block(q, &scale, from + g * k->bytes, e->t->type);
            if ((scale & 0x7c00u) == 0x7c00u) {
                dq_fail(&e->err, DQ_DAMAGED,
                        "tensor \"%s\": the scale of row %lld, block %lld is not finite",
                        e->t->name, (long long)r, (long long)g);
                return;
            }
            memcpy(scales + (r * groups + g) * 2, &scale, sizeof scale);
            /* 32 columns take a whole number of 4 bytes at every width */
            dq_quant_pack_row(e->own + (size_t)r * row_bytes + (size_t)(g * 4 * w->bits), q, 32,
                              w->bits);
        }
    }
}

static void fill_rows(entry *e)
{
    const size_t row = e->t->bytes / (size_t)e->w.rows;
    for (int64_t r = 0; r < e->w.rows; r++)
        memcpy(e->own + (size_t)r * row, e->t->data + (size_t)stored_row(e, r) * row, row);
}

/* Vectors are read when a model is built. */
static dq_status fill_vector(entry *e, dq_arena *a, dq_err *err)
{
    uint8_t *own = dq_alloc(a, e->t->bytes, 1, err);
    if (!own) return err->code;
    e->own = own;
    e->w.data = own;
    fill_rows(e);
    e->own = NULL;
    return DQ_OK;
}

dq_status dq_gguf_model_load(dq_gguf_model *m, dq_err *err)
{
    if (m->loaded) return DQ_OK;
    if (m->own_bytes && !dq_os_block_take(&m->own))
        return dq_fail(err, DQ_RESOURCE,
                       "not enough memory for %.1f MiB of weights that are laid out anew",
                       (double)m->own_bytes / 1048576.0);
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t i = 0; i < m->n_entries; i++) {
        entry *e = &m->entry[i];
        if (!e->own || dq_os_check_stop(&e->err) != DQ_OK) continue;
        if (becomes_codes(e->t))
            fill_codes(e);
        else
            fill_rows(e);
        dq_os_map_release(e->t->data, e->t->bytes);
    }
    for (int64_t i = 0; i < m->n_entries; i++) DQ_TRY(dq_fail_as(err, &m->entry[i].err));
    m->loaded = true;
    return DQ_OK;
}

/* ---- Tensors of all parts ---- */

static int by_name(const void *x, const void *y)
{
    return strcmp(((const entry *)x)->name, ((const entry *)y)->name);
}

static dq_status add_entry(dq_gguf_model *m, const dq_gguf_tensor *t, int64_t heads,
                           int64_t kv_heads, dq_err *err)
{
    entry *e = &m->entry[m->n_entries];
    bool pairs;
    if (strcmp(t->name, "rope_freqs.weight") == 0) return DQ_OK; /* is in the configuration */
    *e = (entry){.name = dq_gguf_name_hf(&pairs, t->name, m->arena, err), .t = t};
    DQ_TRY(err->code);
    if (!e->name)
        return dq_fail(err, DQ_MISMATCH, "tensor \"%s\" does not belong to a Llama that dq runs",
                       t->name);
    if (pairs) e->heads = strstr(t->name, "attn_q") ? heads : kv_heads;
    if (e->heads && (t->shape[0] % e->heads || t->shape[0] / e->heads % 2))
        return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": %lld rows are no pairs of %lld heads",
                       t->name, (long long)t->shape[0], (long long)e->heads);
    e->w = weight_of(t, e->name);
    m->own_bytes += own_bytes(e);
    m->n_entries++;
    return e->heads && t->n_dims == 1 ? fill_vector(e, m->arena, err) : DQ_OK;
}

/* The bias of a matrix that has none where others of its kind have: zero. */
static dq_status add_zero_bias(dq_gguf_model *m, const dq_gguf_tensor *t, dq_err *err)
{
    static const char suffix[] = ".weight";
    const size_t n = strlen(t->name), k = sizeof suffix - 1;
    bool pairs;
    if (t->n_dims != 2 || n < k || strcmp(t->name + n - k, suffix) != 0) return DQ_OK;
    const char *key = strstr(t->name, ".attn_")  ? "attention_bias"
                      : strstr(t->name, ".ffn_") ? "mlp_bias"
                                                 : NULL;
    if (!key || !json_is_true(json_object_get(m->config, key))) return DQ_OK;
    char *name = dq_textf(m->arena, err, "%.*s.bias", (int)(n - k), t->name);
    dq_gguf_tensor *zero = name ? dq_alloc(m->arena, 1, sizeof *zero, err) : NULL;
    uint8_t *values = zero ? dq_alloc(m->arena, (size_t)t->shape[0], 4, err) : NULL;
    if (!values) return err->code;
    if (dq_gguf_find(&m->all, name)) return DQ_OK;
    *zero = (dq_gguf_tensor){.name = name,
                             .type = DQ_GGML_F32,
                             .n_dims = 1,
                             .shape = {t->shape[0]},
                             .data = values,
                             .bytes = (size_t)t->shape[0] * 4};
    entry *e = &m->entry[m->n_entries++];
    *e = (entry){.name = dq_gguf_name_hf(&pairs, name, m->arena, err), .t = zero};
    e->w = weight_of(zero, e->name);
    return err->code;
}

/* "GGUF, 210 Q4_1, 61 F32": types by number. */
static dq_status describe(dq_gguf_model *m, dq_err *err)
{
    enum { TYPES = 64 };
    int64_t count[TYPES] = {0};
    m->about = "GGUF";
    for (int64_t i = 0; i < m->n_entries; i++) count[m->entry[i].t->type % TYPES]++;
    for (int64_t most = 1; most;) {
        uint32_t type = 0;
        most = 0;
        for (uint32_t k = 0; k < TYPES; k++) {
            if (count[k] > most) most = count[type = k];
        }
        if (!most) break;
        count[type] = 0;
        m->about = dq_textf(m->arena, err, "%s, %lld %s", m->about, (long long)most,
                            dq_gguf_type_name(type));
        if (!m->about) return err->code;
    }
    return DQ_OK;
}

static dq_status list_entries(dq_gguf_model *m, int64_t heads, int64_t kv_heads, dq_err *err)
{
    size_t at = 0;
    /* each may bring a bias */
    m->entry = dq_alloc(m->arena, 2 * (size_t)m->all.n_tensors, sizeof *m->entry, err);
    if (!m->entry) return err->code;
    for (int64_t i = 0; i < m->all.n_tensors; i++)
        DQ_TRY(add_entry(m, &m->all.tensor[i], heads, kv_heads, err));
    DQ_TRY(describe(m, err));
    for (int64_t i = 0; i < m->all.n_tensors; i++) DQ_TRY(add_zero_bias(m, &m->all.tensor[i], err));
    qsort(m->entry, (size_t)m->n_entries, sizeof *m->entry, by_name);
    if (m->own_bytes) dq_os_block_reserve(&m->own, m->own_bytes);
    for (int64_t i = 0; i < m->n_entries; i++) {
        const size_t bytes = own_bytes(&m->entry[i]);
        if (bytes) take_place(&m->entry[i], m->own.data ? m->own.data + at : NULL);
        at += bytes;
    }
    return DQ_OK;
}

/* ---- Files ---- */

/* Of a file with a type of tensors that is not read: whether it would be refused whatever the type. */
static dq_status refuse_kind(const part *p, dq_arena *a, dq_err *err)
{
    dq_gguf g;
    dq_err other = {0};
    if (dq_gguf_parse_fields(&g, p->map.data, p->map.bytes, a, &other) != DQ_OK) return err->code;
    if (dq_gguf_config_kind(g.fields, &other) == DQ_MISMATCH) *err = other;
    json_decref(g.fields);
    return err->code;
}

static dq_status open_part(dq_gguf_model *m, int i, const char *path, bool tensors, dq_err *err)
{
    part *p = &m->part[i];
    const char *slash = strrchr(path, '/');
    p->name = dq_text(m->arena, slash ? slash + 1 : path, strlen(slash ? slash + 1 : path), err);
    if (!p->name) return err->code;
    DQ_TRY(dq_os_map_open(&p->map, path, err));
    const dq_status status =
        tensors ? dq_gguf_parse(&p->g, p->map.data, p->map.bytes, m->arena, err)
                : dq_gguf_parse_fields(&p->g, p->map.data, p->map.bytes, m->arena, err);
    if (tensors && i == 0 && status == DQ_MISMATCH) refuse_kind(p, m->arena, err);
    return status == DQ_OK ? DQ_OK : dq_in(err, "%s: ", path);
}

/* The path of part i of n, from that of the first. */
static char *part_path(const char *path, int64_t i, int64_t n, dq_arena *a, dq_err *err)
{
    char first[48];
    snprintf(first, sizeof first, "-00001-of-%05lld.gguf", (long long)n);
    const size_t len = strlen(path), end = strlen(first);
    if (len <= end || strcmp(path + len - end, first) != 0) {
        dq_fail(
            err, DQ_MISMATCH,
            "%s: is a part of a model in %lld files. Name the first, with its old name, NAME%s.",
            path, (long long)n, first);
        return NULL;
    }
    return dq_textf(a, err, "%.*s-%05lld-of-%05lld.gguf", (int)(len - end), path, (long long)i + 1,
                    (long long)n);
}

static dq_status split_number(int64_t *out, const part *p, const char *key, dq_err *err)
{
    return dq_json_int(out, p->g.fields, key, 0, MAX_PARTS, NULL, err);
}

/* Whether a later part says where it belongs, and of the model nothing but what the first says: keys are the first's. */
static dq_status check_part(const dq_gguf_model *m, int64_t i, dq_err *err)
{
    const part *p = &m->part[i];
    int64_t count, number;
    const char *key;
    json_t *value;
    DQ_TRY(split_number(&count, p, "split.count", err));
    DQ_TRY(split_number(&number, p, "split.no", err));
    if (count != m->n_files || number != i)
        return dq_fail(err, DQ_DAMAGED,
                       "says that it is part %lld of %lld (expected %lld of %lld, from 0 on)",
                       (long long)number, (long long)count, (long long)i, (long long)m->n_files);
    json_object_foreach(p->g.fields, key, value)
    {
        const json_t *first = json_object_get(m->part[0].g.fields, key);
        if (strncmp(key, "split.", 6) == 0 ||
            (strncmp(key, "general.", 8) == 0 && strcmp(key, "general.architecture") != 0))
            continue;
        if (!first || !json_equal(first, value))
            return dq_fail(err, DQ_MISMATCH,
                           "key \"%s\" is not what the first part says, which has the keys of a "
                           "model",
                           key);
    }
    return DQ_OK;
}

/* The tensors of all parts, as many as the first says where it does. */
static dq_status join_parts(dq_gguf_model *m, dq_err *err)
{
    int64_t stated;
    const dq_gguf **g = dq_alloc(m->arena, (size_t)m->n_parts, sizeof *g, err);
    if (!g) return err->code;
    for (int i = 0; i < m->n_parts; i++) g[i] = &m->part[i].g;
    m->all = *g[0];
    DQ_TRY(dq_gguf_join(&m->all.tensor, &m->all.n_tensors, g, m->n_parts, m->arena, err));
    DQ_TRY(dq_json_int(&stated, m->all.fields, "split.tensors.count", 0, INT32_MAX,
                       &m->all.n_tensors, err));
    if (stated == m->all.n_tensors) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED,
                   "key \"split.tensors.count\": the parts have %lld tensors (expected %lld)",
                   (long long)m->all.n_tensors, (long long)stated);
}

static dq_status open_parts(dq_gguf_model *m, const char *path, dq_err *err)
{
    static const int64_t one = 1, zero = 0;
    int64_t number;
    DQ_TRY(open_part(m, 0, path, true, err));
    const json_t *f = m->part[0].g.fields;
    if (dq_json_int(&m->n_files, f, "split.count", 0, MAX_PARTS, &one, err) != DQ_OK ||
        dq_json_int(&number, f, "split.no", 0, MAX_PARTS, &zero, err) != DQ_OK)
        return dq_in(err, "%s: ", path);
    for (int64_t i = 1; i < m->n_files; i++) {
        const char *other = part_path(path, i, m->n_files, m->arena, err);
        if (!other) return err->code;
        m->n_parts++;
        DQ_TRY(open_part(m, (int)i, other, true, err));
        if (check_part(m, i, err) != DQ_OK) return dq_in(err, "%s: ", other);
    }
    if (number != 0)
        return dq_fail(err, DQ_DAMAGED,
                       "%s: says that it is part %lld (expected 0, from 0 on, which has the keys "
                       "of a model)",
                       path, (long long)number);
    return DQ_OK;
}

static dq_status read_head(dq_gguf_model *m, dq_err *err)
{
    int64_t heads, kv_heads;
    char *text;
    DQ_TRY(dq_gguf_config_kind(m->part[0].g.fields, err));
    DQ_TRY(join_parts(m, err));
    DQ_TRY(dq_gguf_config(&m->config, &heads, &kv_heads, &m->all, err));
    DQ_TRY(dq_json_dump(&text, m->config, JSON_INDENT(2), err));
    dq_strbuf_add(&m->text[CONFIG], text, strlen(text), err);
    free(text);
    DQ_TRY(err->code);
    return list_entries(m, heads, kv_heads, err);
}

/* The texts of the tokenizer, once. */
static dq_status make_tokenizer(dq_gguf_model *m, dq_err *err)
{
    if (m->tokenizer_made) return DQ_OK;
    DQ_TRY(dq_gguf_config_tokenizer(&m->text[TOKENIZER], &m->text[TOKENIZER_CONFIG],
                                    &m->text[GENERATION], &m->part[0].g, err));
    m->tokenizer_made = true;
    return DQ_OK;
}

/* With one part, which is not open yet; NULL: see err. */
static dq_gguf_model *new_model(dq_err *err)
{
    dq_arena *arena = dq_arena_new();
    dq_gguf_model *m = arena ? dq_alloc(arena, 1, sizeof *m, err) : NULL;
    part *parts = m ? dq_alloc(arena, MAX_PARTS, sizeof *parts, err) : NULL;
    if (!parts) {
        dq_arena_free(arena);
        dq_fail(err, DQ_RESOURCE, "out of memory");
        return NULL;
    }
    m->arena = arena;
    m->part = parts;
    m->n_parts = 1;
    return m;
}

static dq_status opened(dq_gguf_model **out, dq_gguf_model *m, const dq_err *err)
{
    *out = err->code == DQ_OK ? m : NULL;
    if (!*out) dq_gguf_model_close(m);
    return err->code;
}

dq_status dq_gguf_model_open(dq_gguf_model **out, const char *path, dq_err *err)
{
    dq_gguf_model *m = new_model(err);
    if (m && open_parts(m, path, err) == DQ_OK && read_head(m, err) != DQ_OK)
        dq_in(err, "%s: ", path);
    return opened(out, m, err);
}

dq_status dq_gguf_model_open_tokenizer(dq_gguf_model **out, const char *path, dq_err *err)
{
    dq_gguf_model *m = new_model(err);
    if (m && open_part(m, 0, path, false, err) == DQ_OK && make_tokenizer(m, err) != DQ_OK)
        dq_in(err, "%s: ", path);
    return opened(out, m, err);
}

void dq_gguf_model_close(dq_gguf_model *m)
{
    if (!m) return;
    for (int i = 0; i < m->n_parts; i++) {
        json_decref(m->part[i].g.fields);
        dq_os_map_close(&m->part[i].map);
    }
    for (int i = 0; i < N_TEXTS; i++) dq_block_free(m->text[i].s);
    json_decref(m->config);
    dq_os_block_free(&m->own);
    dq_arena_free(m->arena); /* m itself lives there */
}

const json_t *dq_gguf_model_config(const dq_gguf_model *m)
{
    return m->config;
}

dq_status dq_gguf_model_text(dq_gguf_model *m, const char *name, const char **out, size_t *len,
                             dq_err *err)
{
    *out = NULL;
    *len = 0;
    for (int i = 0; i < N_TEXTS; i++) {
        if (strcmp(text_names[i], name) != 0) continue;
        if (i != CONFIG) DQ_TRY(make_tokenizer(m, err));
        *out = m->text[i].s;
        *len = m->text[i].n;
    }
    return DQ_OK;
}

const char *dq_gguf_model_about(const dq_gguf_model *m)
{
    return m->about;
}

int dq_gguf_model_n_files(const dq_gguf_model *m)
{
    return m->n_parts;
}

const char *dq_gguf_model_file(const dq_gguf_model *m, int i, size_t *bytes, const uint8_t **data,
                               size_t *header)
{
    *bytes = m->part[i].map.bytes;
    *data = m->part[i].map.data;
    *header = m->part[i].g.header_bytes;
    return m->part[i].name;
}

int64_t dq_gguf_model_count(const dq_gguf_model *m)
{
    return m->n_entries;
}

const dq_gguf_tensor *dq_gguf_model_at(const dq_gguf_model *m, int64_t i, dq_weight *w)
{
    *w = m->entry[i].w;
    return m->entry[i].t;
}
