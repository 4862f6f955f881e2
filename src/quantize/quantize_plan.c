/* quantize_plan: which tensors are packed and how, and the list of payloads.
 * SPDX-License-Identifier: MIT */
#include "quantize/quantize_plan.h"

#include "base/file.h"
#include "base/inplace_file.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <limits.h>
#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Settings as JSON ---- */

static const char *group_text(char *buf, size_t cap, int64_t group)
{
    if (group == DQ_GROUP_ROW) return "row";
    if (group == DQ_GROUP_TENSOR) return "tensor";
    snprintf(buf, cap, "%lld", (long long)group);
    return buf;
}

static dq_status make_recipe(dq_quantizer *q, dq_err *err)
{
    const dq_quantize_settings *s = &q->set;
    char buf[32];
    json_t *r = json_object();
    json_object_set_new(r, "bits", json_integer(s->bits));
    json_object_set_new(r, "group", json_string(group_text(buf, sizeof buf, s->group)));
    json_object_set_new(r, "scale", json_string(dq_quant_modes[s->mode].name));
    json_object_set_new(r, "scale_dtype", json_string(s->scale_dtype == DQ_F16 ? "f16" : "f32"));
    json_object_set_new(r, "skip", s->skip ? json_string(s->skip) : json_null());
    json_object_set_new(r, "logit_bits", json_integer(s->logit.bits));
    json_object_set_new(r, "logit_grain", json_string(dq_grain_name[s->logit.grain]));
    /* absent where nothing is asked: the recipe of files that are older than the setting */
    if (!dq_kv_config_same(&s->kv, &dq_kv_config_plain))
        json_object_set_new(r, "kv", dq_kv_config_json(&s->kv));
    if (s->method_name) json_object_set_new(r, "method", json_string(s->method_name));
    if (s->calib) json_object_set_new(r, "calib", json_deep_copy(s->calib));
    char *text;
    bool whole = json_object_get(r, "skip") != NULL;
    dq_json_dump(&text, r, JSON_SORT_KEYS | JSON_INDENT(0), err);
    json_decref(r);
    if (!text) return err->code;
    if (!whole) { /* a pattern that is not UTF-8 cannot be stored */
        free(text);
        return dq_fail_with(err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_OPTION},
                            "skip: the pattern is not valid UTF-8.");
    }
    q->recipe = dq_text(q->arena, text, strlen(text), err);
    free(text);
    return err->code;
}

static dq_status bad_recipe(const char *key, dq_err *err)
{
    return dq_fail(err, DQ_DAMAGED, "/config/recipe_json: key \"%s\" has an unknown value", key);
}

const char *const dq_quantize_methods[] = {"gptq", "align", NULL};

/* Absent where values went to their nearest codes. */
static dq_status read_method(dq_quantize_settings *s, const json_t *recipe, dq_err *err)
{
    const char *none = NULL;
    DQ_TRY(dq_json_text(&s->method_name, recipe, "method", &none, err));
    if (!s->method_name) return DQ_OK;
    int i = 0;
    while (dq_quantize_methods[i] && strcmp(dq_quantize_methods[i], s->method_name) != 0) i++;
    s->calib = json_object_get(recipe, "calib");
    if (!dq_quantize_methods[i]) return bad_recipe("method", err);
    return json_is_object(s->calib) ? DQ_OK : bad_recipe("calib", err);
}

dq_status dq_quantize_settings_of(dq_quantize_settings *s, json_t **recipe, const dq_container *c,
                                  dq_err *err)
{
    size_t len;
    int64_t bits;
    const char *group, *scale, *dtype, *none = NULL, *text = dq_container_recipe(c, &len);
    memset(s, 0, sizeof *s);
    DQ_TRY(dq_json_parse(recipe, text, len, "/config/recipe_json", err));
    DQ_TRY(dq_json_int(&bits, *recipe, "bits", 2, 16, NULL, err));
    DQ_TRY(dq_json_text(&group, *recipe, "group", NULL, err));
    DQ_TRY(dq_json_text(&scale, *recipe, "scale", NULL, err));
    DQ_TRY(dq_json_text(&dtype, *recipe, "scale_dtype", NULL, err));
    DQ_TRY(dq_json_text(&s->skip, *recipe, "skip", &none, err));
    if (bits > 8 && bits != 16) return bad_recipe("bits", err);
    s->bits = (int)bits;
    s->group = strcmp(group, "row") == 0      ? DQ_GROUP_ROW
               : strcmp(group, "tensor") == 0 ? DQ_GROUP_TENSOR
                                              : strtoll(group, NULL, 10);
    if (s->group == 0 || s->group < DQ_GROUP_TENSOR) return bad_recipe("group", err);
    int mode = 0;
    while (mode < DQ_QUANT_MODES && strcmp(scale, dq_quant_modes[mode].name) != 0) mode++;
    if (mode == DQ_QUANT_MODES) return bad_recipe("scale", err);
    s->mode = (dq_scale_mode)mode;
    if (strcmp(dtype, "f16") != 0 && strcmp(dtype, "f32") != 0)
        return bad_recipe("scale_dtype", err);
    s->scale_dtype = strcmp(dtype, "f16") == 0 ? DQ_F16 : DQ_F32;
    s->dq_version = dq_container_header(c)->dq_version;
    DQ_TRY(read_method(s, *recipe, err));
    /* opening has compared what the attributes say with the recipe */
    s->logit = dq_container_header(c)->logit;
    s->kv = dq_container_header(c)->kv;
    return DQ_OK;
}

/* ---- Tensors ---- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The names of the projections that are packed, sorted. */
static const char **packed_names(dq_quantizer *q, int *count, dq_err *err)
{
    static const dq_role roles[] = {DQ_ROLE_Q,    DQ_ROLE_K,  DQ_ROLE_V,   DQ_ROLE_O,
                                    DQ_ROLE_GATE, DQ_ROLE_UP, DQ_ROLE_DOWN};
    enum { N = sizeof roles / sizeof roles[0] };
    const char **names = dq_alloc(q->arena, (size_t)q->model->n_layers * N, sizeof *names, err);
    int n = 0;
    for (int layer = 0; names && layer < q->model->n_layers; layer++) {
        for (int r = 0; r < N; r++) {
            /* the layout's name holds one %d, for the layer */
            const char *form = q->model->layout->name[roles[r]];
            const char *hole = form ? strstr(form, "%d") : NULL;
            if (!hole) continue;
            names[n] =
                dq_textf(q->arena, err, "%.*s%d%s", (int)(hole - form), form, layer, hole + 2);
            if (!names[n++]) return NULL;
        }
    }
    if (names) qsort(names, (size_t)n, sizeof *names, by_text);
    *count = n;
    return names;
}

/* Length of the longest piece that both texts share. */
static size_t common(const char *a, const char *b)
{
    size_t best = 0;
    for (const char *p = a; *p; p++) {
        for (const char *r = b; *r; r++) {
            size_t n = 0;
            while (p[n] && p[n] == r[n]) n++;
            if (n > best) best = n;
        }
    }
    return best;
}

static dq_status matches_nothing(const dq_quantizer *q, dq_err *err)
{
    const char *best = "", *second = "";
    size_t top = 0, next = 0;
    for (int64_t i = 0; i < q->info.n_tensors; i++) {
        const char *name = dq_checkpoint_at(q->checkpoint, i)->name;
        size_t n = common(q->set.skip, name);
        if (n > top) {
            second = best;
            next = top;
            best = name;
            top = n;
        } else if (n > next) {
            second = name;
            next = n;
        }
    }
    return dq_fail_with(err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_OPTION},
                        "skip \"%s\" matches no tensor. Closest names: %s%s%s.", q->set.skip, best,
                        *second ? ", " : "", second);
}

static dq_status mark_skipped(dq_quantizer *q, dq_err *err)
{
    int code;
    PCRE2_SIZE at;
    int64_t found = 0;
    if (!q->set.skip) return DQ_OK;
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)q->set.skip, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &at, NULL);
    if (!re) {
        PCRE2_UCHAR text[200] = "";
        pcre2_get_error_message(code, text, sizeof text);
        return dq_fail_with(err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_OPTION},
                            "skip \"%s\": %s at character %zu.", q->set.skip, (const char *)text,
                            (size_t)at + 1);
    }
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(re, NULL);
    for (int64_t i = 0; data && i < q->info.n_tensors; i++) {
        const char *name = dq_checkpoint_at(q->checkpoint, i)->name;
        int got = pcre2_match(re, (PCRE2_SPTR)name, strlen(name), 0, 0, data, NULL);
        q->skipped[i] = got >= 0;
        found += got >= 0;
    }
    if (!data) dq_fail(err, DQ_RESOURCE, "out of memory");
    pcre2_match_data_free(data);
    pcre2_code_free(re);
    if (err->code == DQ_OK && found == 0) return matches_nothing(q, err);
    return err->code;
}

static dq_status plan_tensor(dq_quantizer *q, int64_t i, const dq_tensor *t, bool wanted,
                             bool skipped, dq_err *err)
{
    dq_quantize_tensor *x = &q->tensor[i];
    x->t = t;
    x->rows = t->n_dims > 0 ? t->shape[0] : 1;
    x->cols = dq_tensor_numel(t) / x->rows;
    if (strchr(t->name, '/'))
        return dq_fail(err, DQ_MISMATCH, "tensor \"%s\": names with '/' cannot be stored", t->name);
    if (t->dtype > DQ_F64)
        return dq_fail(err, DQ_MISMATCH, "tensor \"%s\": type %s cannot be quantized or copied",
                       t->name, dq_dtypes[t->dtype].name);
    q->skipped[i] = wanted && skipped;
    if (!wanted || skipped || q->set.bits == 16) return DQ_OK;
    x->format = dq_weight_format_of_mode(q->set.mode);
    x->spec = (dq_quant_spec){q->set.bits, q->set.group, q->set.mode, q->set.scale_dtype};
    x->one_scale = q->set.group == DQ_GROUP_TENSOR;
    x->group_size = q->set.group < 0 || q->set.group > x->cols ? x->cols : q->set.group;
    x->scale_rows = x->one_scale ? 1 : x->rows;
    return DQ_OK;
}

static dq_status plan_tensors(dq_quantizer *q, dq_err *err)
{
    int n_names = 0;
    int64_t n = q->info.n_tensors = dq_checkpoint_count(q->checkpoint), kept = 0;
    const char **names = packed_names(q, &n_names, err);
    q->tensor = dq_alloc(q->arena, (size_t)n, sizeof *q->tensor, err);
    q->skipped = dq_alloc(q->arena, (size_t)n, sizeof *q->skipped, err);
    q->loss = dq_alloc(q->arena, (size_t)n, sizeof *q->loss, err);
    if (err->code != DQ_OK) return err->code;
    for (int64_t i = 0; i < n; i++) q->loss[i] = (double)NAN;
    DQ_TRY(mark_skipped(q, err));
    for (int64_t i = 0; i < n; i++) {
        const dq_tensor *t = dq_checkpoint_at(q->checkpoint, i);
        bool wanted = bsearch(&t->name, names, (size_t)n_names, sizeof *names, by_text) != NULL;
        if (dq_tensor_numel(t) == 0) continue; /* the model was opened: nothing needs it */
        DQ_TRY(plan_tensor(q, kept, t, wanted, q->skipped[i], err));
        q->info.n_packed += q->tensor[kept].format != NULL;
        q->info.n_skipped += q->skipped[kept++];
    }
    q->info.n_tensors = kept;
    return DQ_OK;
}

/* ---- Other payloads ---- */

static void add_blob(dq_quantizer *q, const char *path, const void *data, size_t bytes,
                     dq_encoding encoding)
{
    q->blob[q->n_blobs++] = (dq_blob){path, data, bytes, encoding};
}

static dq_status add_tokenizer(dq_quantizer *q, dq_err *err)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
                                        "special_tokens_map.json"};
    for (int i = 0; i < 3; i++) {
        const char *text;
        size_t len;
        DQ_TRY(dq_model_file(q->model, names[i], &text, &len, err));
        if (!text) continue;
        if (len == 0) return dq_fail(err, DQ_DAMAGED, "%s/%s: the file is empty", q->dir, names[i]);
        const char *path = dq_textf(q->arena, err, "/tokenizer/%s", names[i]);
        if (!path) return err->code;
        add_blob(q, path, text, len, DQ_ENC_BYTES);
    }
    return DQ_OK;
}

static dq_status plan_sources(dq_quantizer *q, dq_err *err)
{
    int n = q->n_files = dq_checkpoint_n_files(q->checkpoint);
    q->file = dq_alloc(q->arena, (size_t)n, sizeof *q->file, err);
    q->file_bytes = dq_alloc(q->arena, (size_t)n, sizeof *q->file_bytes, err);
    q->file_sha = dq_alloc(q->arena, (size_t)n, sizeof *q->file_sha, err);
    if (err->code != DQ_OK) return err->code;
    for (int i = 0; i < n; i++) {
        size_t bytes;
        const uint8_t *data;
        q->file[i] = dq_checkpoint_file(q->checkpoint, i, &bytes, &data);
        q->file_bytes[i] = (int64_t)bytes;
        q->info.source_bytes += (int64_t)bytes;
    }
    q->table = q->n_blobs;
    size_t row =
        dq_container_source_table(NULL, n, q->file, q->file_bytes, (const char(*)[65])q->file_sha);
    void *rows = dq_alloc(q->arena, (size_t)n, row, err);
    add_blob(q, "/provenance/source_files", rows, row * (size_t)n, DQ_ENC_TABLE);
    return err->code;
}

/* ---- Slots ---- */

static void tensor_slot(dq_slot *s, const dq_quantize_tensor *x)
{
    const dq_tensor *t = x->t;
    s->encoding = DQ_ENC_DENSE;
    s->dtype = t->dtype;
    s->n_dims = t->n_dims;
    memcpy(s->shape, t->shape, sizeof s->shape);
    s->bytes = (int64_t)dq_tensor_bytes(t);
    s->bits = (int)dq_dtypes[t->dtype].bytes * 8;
    s->rows = x->rows;
    s->cols = x->cols;
    s->bits_per_weight = s->bits;
    s->sqnr_db = (double)NAN;
}

static void part_slot(dq_slot *s, const dq_quantize_tensor *x, int part)
{
    const dq_weight w = dq_quantize_tensor_weight(x);
    const dq_part p = dq_weight_part(&w, part);
    s->encoding = DQ_ENC_PART;
    s->part = part;
    s->weight = w;
    s->mode = x->spec.mode;
    s->source_dtype = x->t->dtype;
    s->dtype = p.dtype;
    s->n_dims = 2;
    s->shape[0] = p.shape[0];
    s->shape[1] = p.shape[1];
    s->bytes = (int64_t)dq_weight_part_bytes(&p);
    s->bits = p.bits;
    s->group_size = w.group_size;
    s->rows = p.rows;
    s->cols = p.cols;
    const bool codes = w.format->part[part].is_codes;
    s->bits_per_weight = codes ? dq_weight_bits_per_weight(&w) : 0;
    s->sqnr_db = codes ? 0 : (double)NAN; /* known once they are made */
}

static void blob_slot(dq_slot *s, const dq_blob *b, int n_files)
{
    s->path = b->path;
    s->encoding = b->encoding;
    s->dtype = DQ_U8;
    s->bytes = (int64_t)b->bytes;
    s->bits = 8;
    s->rows = 1;
    s->cols = s->bytes;
    s->sqnr_db = (double)NAN;
    if (b->encoding == DQ_ENC_BYTES) {
        s->n_dims = 1;
        s->shape[0] = s->bytes;
    } else if (b->encoding == DQ_ENC_TABLE) {
        s->n_dims = 2;
        s->rows = s->shape[0] = n_files;
        s->cols = s->shape[1] = s->bytes / n_files;
    }
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const dq_slot *)a)->path, ((const dq_slot *)b)->path);
}

static int64_t pages(int64_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

/* Sums of the plan. The size of the file is a close estimate: each object and payload begins a page. */
static void add_up(dq_quantizer *q)
{
    dq_quantize_info *info = &q->info;
    dq_container_skeleton *s = &q->skeleton;
    info->params = info->packed_params = info->packed_bytes = info->weight_bytes = 0;
    info->n_wide = 0;
    info->file_bytes = 24 * 4096 + pages(dq_container_index_bytes(s));
    for (int64_t i = 0; i < info->n_tensors; i++) {
        const dq_quantize_tensor *x = &q->tensor[i];
        info->params += x->rows * x->cols;
        if (x->format) info->packed_params += x->rows * x->cols;
        info->n_wide += x->format && x->spec.scale_dtype != q->set.scale_dtype;
    }
    for (int64_t i = 0; i < s->n_slots; i++) {
        const dq_slot *t = &s->slot[i];
        const bool part = t->encoding == DQ_ENC_PART; /* the first has a group as well */
        info->file_bytes += pages(t->bytes) + (part && t->part == 0 ? 8192 : 4096);
        if (part) info->packed_bytes += t->bytes;
        if (t->origin >= 0) info->weight_bytes += t->bytes;
    }
    info->bits_per_weight = 8.0 * (double)info->weight_bytes / (double)info->params;
    s->params = info->params;
    s->weight_bytes = info->weight_bytes;
    s->bits_per_weight = info->bits_per_weight;
}

static dq_status tensor_slots(dq_quantizer *q, int64_t i, dq_err *err)
{
    const dq_quantize_tensor *x = &q->tensor[i];
    const int n = x->format ? x->format->n_parts : 1;
    for (int k = 0; k < n; k++) {
        dq_slot *s = &q->skeleton.slot[q->skeleton.n_slots++];
        s->origin = i;
        if (x->format) {
            part_slot(s, x, k);
            s->path =
                dq_textf(q->arena, err, "/tensors/%s/%s", x->t->name, x->format->part[k].name);
        } else {
            tensor_slot(s, x);
            s->path = dq_textf(q->arena, err, "/tensors/%s", x->t->name);
        }
    }
    return err->code;
}

dq_status dq_quantize_plan_slots(dq_quantizer *q, dq_err *err)
{
    dq_container_skeleton *s = &q->skeleton;
    int64_t max = DQ_MAX_PARTS * q->info.n_tensors + q->n_blobs;
    s->n_slots = 0;
    s->slot = dq_alloc(q->arena, (size_t)max, sizeof *s->slot, err);
    if (!s->slot) return err->code;
    for (int64_t i = 0; i < q->info.n_tensors; i++) DQ_TRY(tensor_slots(q, i, err));
    for (int i = 0; i < q->n_blobs; i++) {
        dq_slot *b = &s->slot[s->n_slots++];
        blob_slot(b, &q->blob[i], q->n_files);
        b->origin = -1 - i;
    }
    qsort(s->slot, (size_t)s->n_slots, sizeof *s->slot, by_path);
    add_up(q);
    return DQ_OK;
}

static dq_status begin_method(dq_quantizer *q, dq_err *err)
{
    const dq_quantize_method *m = q->set.method;
    if (!m) return DQ_OK;
    DQ_TRY(m->begin(m->arg, q->model, &q->needs, err));
    q->set.method_name = m->name;
    q->set.calib = q->needs.calib;
    q->info.scratch_bytes = q->needs.scratch_bytes;
    return DQ_OK;
}

dq_status dq_quantize_plan_make(dq_quantizer *q, const char *model, dq_err *err)
{
    dq_container_skeleton *s = &q->skeleton;
    dq_kv_spec spec;
    size_t len;
    const char *config;
    q->dir = dq_text(q->arena, model, strlen(model), err);
    if (!q->dir) return err->code;
    if (dq_file_is_regular(model))
        return dq_fail(err, DQ_MISMATCH,
                       "%s: a file; quantizing needs the folder of the original checkpoint.",
                       model);
    DQ_TRY(dq_model_open(&q->model, model, err));
    DQ_TRY(dq_checkpoint_open(&q->checkpoint, model, err));
    if (dq_kv_config_spec(&spec, &q->set.kv, DQ_NUM_F32, q->model->map.head_dim, err) != DQ_OK)
        return dq_in(err, "%s: ", model);
    DQ_TRY(begin_method(q, err));
    DQ_TRY(make_recipe(q, err));
    DQ_TRY(plan_tensors(q, err));
    config = dq_checkpoint_config_text(q->checkpoint, &len);
    add_blob(q, "/config/model_json", config, len, DQ_ENC_TEXT);
    add_blob(q, "/config/recipe_json", q->recipe, strlen(q->recipe), DQ_ENC_TEXT);
    DQ_TRY(add_tokenizer(q, err));
    DQ_TRY(plan_sources(q, err));
    s->dq_version = q->set.dq_version;
    s->family = q->info.family = q->model->layout->family;
    s->source = q->info.source = q->model->name;
    s->fingerprint = q->model->fingerprint;
    s->logit = q->set.logit;
    s->kv = q->set.kv;
    return dq_quantize_plan_slots(q, err);
}
