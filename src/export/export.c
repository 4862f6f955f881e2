/* export: see export.h; the list of files, and writing them. Weights go through blocks of a few megabytes, whatever the
 * size of the container.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/os.h"
#include "checkpoint/safetensors_write.h"
#include "export/export_gguf.h"

#include <string.h>

const char *const dq_export_form_name[DQ_EXPORT_FORMS] = {
    [DQ_EXPORT_COMPRESSED_TENSORS] = "compressed-tensors",
    [DQ_EXPORT_SAFETENSORS] = "safetensors",
    [DQ_EXPORT_GGUF] = "gguf",
};
static const char settings_name[] = "dq_settings.json"; /* a folder that has it is an export */
static const char index_name[] = "model.safetensors.index.json";
static const char companions[] = "/tokenizer/";

/* ---- Names ---- */

static bool ends(const char *name, const char *with)
{
    const size_t n = strlen(name), k = strlen(with);
    return n >= k && strcmp(name + n - k, with) == 0;
}

/* Names that files have which go with the weights, byte for byte. */
static bool of_tokenizer(const char *name)
{
    static const char *const first[] = {"tokenizer",        "chat_template", "special_tokens_map",
                                        "added_tokens",     "vocab",         "merges",
                                        "generation_config"};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
        if (strncmp(name, first[i], strlen(first[i])) == 0) return !strchr(name, '/');
    }
    return false;
}

/* Names that an export of any model may have. */
static bool of_export(const char *name)
{
    return strcmp(name, "config.json") == 0 || strcmp(name, settings_name) == 0 ||
           strcmp(name, index_name) == 0 || of_tokenizer(name) ||
           (strncmp(name, "model", 5) == 0 && ends(name, ".safetensors"));
}

/* ---- Files ---- */

static bool is_gguf(const dq_export *x)
{
    return x->set.form == DQ_EXPORT_GGUF;
}

static void add_text(dq_export *x, const char *name, const char *text, size_t len)
{
    const int i = x->info.n_files++;
    x->file[i] = (dq_export_file){.name = name, .bytes = (int64_t)len};
    x->content[i] = (dq_export_content){.text = text, .len = len};
}

static dq_status add_texts(dq_export *x, dq_err *err)
{
    dq_container *c = x->model->container;
    const char *text;
    size_t len;
    DQ_TRY(dq_export_config_json(&text, &len, x, err));
    add_text(x, "config.json", text, len);
    DQ_TRY(dq_export_config_settings(&text, &len, x, err));
    add_text(x, settings_name, text, len);
    for (int64_t i = 0; i < dq_container_n_payloads(c); i++) {
        const char *path = dq_container_payload(c, i)->path, *name = path + sizeof companions - 1;
        if (strncmp(path, companions, sizeof companions - 1) != 0) continue;
        if (!of_tokenizer(name))
            return dq_fail(err, DQ_DAMAGED, "%s: %s: is not the name of a tokenizer's file",
                           x->model->path, path);
        DQ_TRY(dq_container_file(c, name, &text, &len, err)); /* compared with its hash */
        add_text(x, name, text, len);
    }
    if (x->n_shards == 1) return DQ_OK;
    DQ_TRY(dq_export_config_index(&text, &len, x, err));
    add_text(x, index_name, text, len);
    return DQ_OK;
}

/* Its tensors are the slots from `first` on. */
static dq_status add_shard(dq_export *x, int shard, int64_t *first, dq_err *err)
{
    dq_strbuf head = {0};
    int64_t end = *first, bytes = 0;
    while (end < x->n_slots && x->slot[end].shard == shard) end++;
    const int64_t n = end - *first;
    const dq_tensor **list = dq_alloc(x->arena, (size_t)n, sizeof *list, err);
    if (!list) return err->code;
    for (int64_t i = 0; i < n; i++) {
        list[i] = &x->slot[*first + i].tensor;
        bytes += (int64_t)dq_tensor_bytes(list[i]);
    }
    const char *name = dq_export_plan_shard_name(x, shard, err), *text = NULL;
    if (dq_safetensors_write_head(&head, list, n, err) == DQ_OK)
        text = dq_text(x->arena, head.s, head.n, err);
    dq_block_free(head.s);
    if (!name || !text) return err->code;
    const int i = x->info.n_files;
    add_text(x, name, text, head.n);
    x->file[i].bytes += bytes;
    x->content[i].first = *first;
    x->content[i].end = end;
    *first = end;
    return DQ_OK;
}

/* One file with all slots. */
static dq_status add_gguf(dq_export *x, dq_err *err)
{
    const char *head;
    size_t len;
    DQ_TRY(dq_export_gguf_head(&head, &len, x, err));
    add_text(x, "model.gguf", head, len);
    x->content[0].end = x->n_slots;
    for (int64_t i = 0; i < x->n_slots; i++)
        x->file[0].bytes += (int64_t)dq_gguf_write_stride(dq_tensor_bytes(&x->slot[i].tensor));
    return DQ_OK;
}

static dq_status plan_files(dq_export *x, dq_err *err)
{
    enum { TEXTS = 3 };
    const size_t n = (size_t)(dq_container_n_payloads(x->model->container) + x->n_shards + TEXTS);
    int64_t first = 0;
    x->file = dq_alloc(x->arena, n, sizeof *x->file, err);
    x->content = dq_alloc(x->arena, n, sizeof *x->content, err);
    if (!x->file || !x->content) return err->code;
    if (is_gguf(x)) {
        DQ_TRY(add_gguf(x, err));
    } else {
        DQ_TRY(add_texts(x, err));
        for (int i = 0; i < x->n_shards; i++) DQ_TRY(add_shard(x, i, &first, err));
    }
    for (int i = 0; i < x->info.n_files; i++) x->info.bytes += x->file[i].bytes;
    return DQ_OK;
}

/* ---- Open and close ---- */

dq_status dq_export_open(dq_export **out, const dq_model *m, const dq_export_settings *s,
                         dq_err *err)
{
    dq_arena *arena = dq_arena_new();
    dq_export *x = arena ? dq_alloc(arena, 1, sizeof *x, err) : NULL;
    *out = NULL;
    if (!x) {
        dq_arena_free(arena);
        return dq_fail(err, DQ_RESOURCE, "out of memory");
    }
    x->arena = arena;
    x->model = m;
    x->set = *s;
    x->folder.fd = -1;
    x->out.fd = -1;
    x->info.has_logit = m->logit.bits != dq_logit_plain.bits;
    x->info.has_kv = !dq_kv_config_same(&m->kv, &dq_kv_config_plain);
    if (dq_export_plan_tensors(x, err) != DQ_OK || plan_files(x, err) != DQ_OK) {
        dq_export_close(x);
        return err->code;
    }
    *out = x;
    return DQ_OK;
}

void dq_export_close(dq_export *x)
{
    if (!x) return;
    dq_folder_drop(&x->folder);
    dq_file_out_drop(&x->out);
    dq_arena_free(x->arena);
}

const dq_export_info *dq_export_result(const dq_export *x)
{
    return &x->info;
}

const dq_export_row *dq_export_row_at(const dq_export *x, int64_t i)
{
    return &x->row[x->order[i]];
}

const dq_export_scheme *dq_export_scheme_at(const dq_export *x, int i)
{
    return &x->scheme[i];
}

const dq_export_file *dq_export_file_at(const dq_export *x, int i)
{
    return &x->file[i];
}

/* ---- Output ---- */

static dq_status check_space(const dq_export *x, const char *path, dq_err *err)
{
    const int64_t left = dq_file_disk_free(path);
    if (left < 0 || left >= x->info.bytes) return DQ_OK;
    return dq_fail(err, DQ_FILE,
                   "%s: not enough space (expected %lld bytes, the disk has %lld free).", path,
                   (long long)x->info.bytes, (long long)left);
}

dq_status dq_export_check(dq_export *x, const char *path, bool force, dq_err *err)
{
    const char *slash = strrchr(path, '/');
    if (is_gguf(x)) {
        DQ_TRY(dq_file_out_name(&x->out, path, force, x->arena, err));
        x->file[0].name = dq_textf(x->arena, err, "%s", slash ? slash + 1 : path);
        return x->file[0].name ? check_space(x, path, err) : err->code;
    }
    DQ_TRY(dq_folder_name(&x->folder, path, x->arena, err));
    DQ_TRY(dq_folder_check(&x->folder, settings_name, of_export, force, err));
    return check_space(x, x->folder.path, err);
}

/* A file on its way. */
typedef struct work {
    dq_export *x;
    const dq_export_progress *progress;
    dq_sha256 hash;
    const char *what;
    double done;
    uint8_t *out;
    float *values;
} work;

/* Bytes of a block; a row that has more is a block of its own. */
enum { BLOCK_BYTES = 4 << 20 };

static dq_status put(work *w, const void *p, size_t bytes, dq_err *err)
{
    dq_sha256_add(&w->hash, p, bytes);
    DQ_TRY(is_gguf(w->x) ? dq_file_out_put(&w->x->out, p, bytes, err)
                         : dq_folder_file_put(&w->x->folder, p, bytes, err));
    w->done += (double)bytes;
    if (w->progress)
        w->progress->step(w->progress->arg, w->done, (double)w->x->info.bytes, w->what);
    return dq_os_check_stop(err);
}

static dq_status put_copy(work *w, const dq_tensor *t, dq_err *err)
{
    const size_t bytes = dq_tensor_bytes(t);
    for (size_t at = 0; at < bytes;) {
        const size_t n = bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES;
        DQ_TRY(put(w, (const uint8_t *)t->data + at, n, err));
        at += n;
        dq_os_map_release(t->data, at);
    }
    return DQ_OK;
}

/* What rows of a weight's own datasets were read for is not needed again. */
static void release(const dq_weight *w)
{
    for (int i = 0; i < dq_weight_format_of(w)->n_parts; i++) {
        const dq_part p = dq_weight_part(w, i);
        dq_os_map_release(p.data, dq_weight_part_bytes(&p));
    }
}

static dq_status put_rows(work *w, const dq_export_slot *s, dq_err *err)
{
    const dq_weight *weight = &w->x->weight[s->row];
    const int64_t rows = s->tensor.n_dims > 0 ? s->tensor.shape[0] : 1;
    const size_t bytes = dq_tensor_bytes(&s->tensor) / (size_t)rows;
    const size_t per_row = (size_t)weight->cols * sizeof *w->values;
    const size_t larger = bytes > per_row ? bytes : per_row;
    int64_t step = larger < BLOCK_BYTES ? BLOCK_BYTES / (int64_t)larger : 1;
    if (step > rows) step = rows;
    w->out = dq_block_new((size_t)step, bytes, err);
    w->values = dq_block_new((size_t)step, per_row, err);
    for (int64_t r = 0; r < rows && err->code == DQ_OK; r += step) {
        const int64_t n = rows - r < step ? rows - r : step;
        if (dq_export_tensor_rows(w->out, w->values, w->x, s, r, n, err) == DQ_OK)
            put(w, w->out, (size_t)n * bytes, err);
        release(weight);
    }
    dq_block_free(w->values);
    dq_block_free(w->out);
    return err->code;
}

static dq_status put_slot(work *w, const dq_export_slot *s, dq_err *err)
{
    static const uint8_t zeros[DQ_GGUF_ALIGNMENT];
    const size_t bytes = dq_tensor_bytes(&s->tensor);
    w->what = s->tensor.name;
    DQ_TRY(s->kind == DQ_EXPORT_OWN    ? put(w, s->tensor.data, bytes, err)
           : s->kind == DQ_EXPORT_COPY ? put_copy(w, &s->tensor, err)
                                       : put_rows(w, s, err));
    return is_gguf(w->x) ? put(w, zeros, dq_gguf_write_stride(bytes) - bytes, err) : DQ_OK;
}

static dq_status put_content(work *w, int i, dq_err *err)
{
    const dq_export_content *c = &w->x->content[i];
    w->what = w->x->file[i].name;
    DQ_TRY(dq_sha256_begin(&w->hash, err));
    DQ_TRY(put(w, c->text, c->len, err));
    for (int64_t k = c->first; k < c->end; k++) DQ_TRY(put_slot(w, &w->x->slot[k], err));
    return dq_sha256_end(&w->hash, w->x->file[i].sha256, err);
}

static dq_status put_file(work *w, int i, dq_err *err)
{
    dq_export *x = w->x;
    DQ_TRY(dq_folder_file_begin(&x->folder, x->file[i].name, err));
    DQ_TRY(put_content(w, i, err));
    return dq_folder_file_end(&x->folder, err);
}

static dq_status put_all(work *w, dq_err *err)
{
    dq_export *x = w->x;
    if (is_gguf(x)) {
        DQ_TRY(dq_file_out_begin(&x->out, err));
        return put_content(w, 0, err);
    }
    DQ_TRY(dq_folder_begin(&x->folder, err));
    for (int i = 0; i < x->info.n_files; i++) DQ_TRY(put_file(w, i, err));
    return DQ_OK;
}

dq_status dq_export_write(dq_export *x, const dq_export_progress *p, dq_err *err)
{
    work w = {.x = x, .progress = p};
    DQ_TRY(dq_model_check_weights(x->model, err));
    put_all(&w, err);
    dq_sha256_drop(&w.hash);
    return err->code == DQ_OK ? dq_os_maps_check(err) : err->code;
}

dq_status dq_export_commit(dq_export *x, dq_err *err)
{
    DQ_TRY(dq_os_check_stop(err));
    if (is_gguf(x)) return dq_file_out_commit(&x->out, err);
    return dq_folder_commit(&x->folder, err);
}
