/* The header's entries sorted by the bytes they claim, which must tile the file.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "checkpoint/inside.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t max_header = 100000000; /* the limit of the reference reader */

/* A tensor's byte range; sorted by range, then by name. */
typedef struct span {
    dq_tensor tensor;
    uint64_t begin, end; /* relative to the end of the header */
} span;

static dq_status read_dtype(dq_dtype *out, const char *name, const json_t *entry, dq_err *err)
{
    /* Valid types that no language model of dq uses. */
    static const char *const other[] = {"F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64",
                                        "F4",      "F6_E2M3",     "F6_E3M2"};
    const char *text;
    if (dq_json_text(&text, entry, "dtype", NULL, err) != DQ_OK)
        return dq_in(err, "tensor \"%s\": ", name);
    for (int i = 0; i < DQ_DTYPE_COUNT; i++) {
        if (strcmp(text, dq_dtypes[i].name) == 0) {
            *out = (dq_dtype)i;
            return DQ_OK;
        }
    }
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        if (strcmp(text, other[i]) == 0)
            return dq_fail(err, DQ_MISMATCH, "tensor \"%s\": dtype %s is not supported", name,
                           text);
    }
    return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": unknown dtype \"%s\"", name, text);
}

static bool count_at(uint64_t *out, const json_t *array, size_t i)
{
    const json_t *v = json_array_get(array, i);
    if (!json_is_integer(v) || json_integer_value(v) < 0) return false;
    *out = (uint64_t)json_integer_value(v);
    return true;
}

static dq_status read_entry(span *s, const char *name, const json_t *entry, uint64_t data_bytes,
                            dq_err *err)
{
    size_t bytes = 0;
    s->tensor.name = name;
    if (!json_is_object(entry))
        return dq_fail(err, DQ_DAMAGED, "header entry \"%s\" is not an object", name);
    DQ_TRY(read_dtype(&s->tensor.dtype, name, entry, err));
    dq_tensor *t = &s->tensor;
    const json_t *shape = json_object_get(entry, "shape");
    size_t n = json_array_size(shape), total = dq_dtypes[t->dtype].bytes;
    if (!json_is_array(shape))
        return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": \"shape\" is not a list", t->name);
    if (n > DQ_MAX_DIMS)
        return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": %zu dimensions (expected at most %d)",
                       t->name, n, DQ_MAX_DIMS);
    for (size_t i = 0; i < n; i++) {
        uint64_t x;
        if (!count_at(&x, shape, i))
            return dq_fail(err, DQ_DAMAGED,
                           "tensor \"%s\": \"shape\" holds something that is not a count", t->name);
        if (!dq_mul_ok(&total, total, x))
            return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": shape too large for any file", t->name);
        t->shape[i] = (int64_t)x;
    }
    t->n_dims = (int)n;
    bytes = total;
    const json_t *range = json_object_get(entry, "data_offsets");
    if (!json_is_array(range) || json_array_size(range) != 2 || !count_at(&s->begin, range, 0) ||
        !count_at(&s->end, range, 1) || s->begin > s->end)
        return dq_fail(err, DQ_DAMAGED, "tensor \"%s\": \"data_offsets\" is not [begin, end]",
                       name);
    if (s->end > data_bytes)
        return dq_fail(err, DQ_DAMAGED,
                       "tensor \"%s\": header says the data end at byte %llu, the file has %llu "
                       "bytes of data. The file is incomplete: fetch it again.",
                       name, (unsigned long long)s->end, (unsigned long long)data_bytes);
    if (s->end - s->begin != bytes)
        return dq_fail(err, DQ_DAMAGED,
                       "tensor \"%s\": shape and dtype need %zu bytes, data_offsets give %llu",
                       name, bytes, (unsigned long long)(s->end - s->begin));
    return DQ_OK;
}

static int by_range(const void *x, const void *y)
{
    const span *a = x, *b = y;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end) return a->end < b->end ? -1 : 1;
    return strcmp(a->tensor.name, b->tensor.name);
}

static dq_status check_metadata(json_t *meta, dq_err *err)
{
    const char *key;
    json_t *value;
    if (!json_is_object(meta))
        return dq_fail(err, DQ_DAMAGED, "header entry \"__metadata__\" is not an object");
    json_object_foreach(meta, key, value)
    {
        if (!json_is_string(value))
            return dq_fail(err, DQ_DAMAGED, "metadata \"%s\" is not a string", key);
    }
    return DQ_OK;
}

static dq_status read_entries(dq_tensor **out, int64_t *count, json_t *header, const uint8_t *data,
                              uint64_t data_bytes, dq_arena *a, dq_err *err)
{
    size_t n = 0, cap = json_object_size(header);
    const char *key;
    json_t *value;
    span *s = dq_alloc(a, cap, sizeof *s, err);
    dq_tensor *t = dq_alloc(a, cap, sizeof *t, err);
    if (!s || !t) return err->code;
    json_object_foreach(header, key, value)
    {
        if (strcmp(key, "__metadata__") == 0) {
            DQ_TRY(check_metadata(value, err));
            continue;
        }
        const char *name = dq_text(a, key, strlen(key), err);
        if (!name) return err->code;
        DQ_TRY(read_entry(&s[n++], name, value, data_bytes, err));
    }
    qsort(s, n, sizeof *s, by_range);
    /* Ranges must tile the data from first to last byte. */
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i].begin < at)
            return dq_fail(err, DQ_DAMAGED, "tensor \"%s\" overlaps tensor \"%s\"",
                           s[i].tensor.name, s[i - 1].tensor.name);
        if (s[i].begin > at)
            return dq_fail(err, DQ_DAMAGED, "%llu bytes before tensor \"%s\" belong to no tensor",
                           (unsigned long long)(s[i].begin - at), s[i].tensor.name);
        at = s[i].end;
    }
    if (at != data_bytes)
        return dq_fail(err, DQ_DAMAGED, "%llu bytes at the end belong to no tensor",
                       (unsigned long long)(data_bytes - at));
    for (size_t i = 0; i < n; i++) {
        t[i] = s[i].tensor;
        t[i].data = data + s[i].begin;
    }
    qsort(t, n, sizeof *t, dq_name_compare);
    *out = t;
    *count = (int64_t)n;
    return DQ_OK;
}

static dq_status header_length(uint64_t *n, const uint8_t *bytes, size_t len, dq_err *err)
{
    if (len < 8)
        return dq_fail(err, DQ_DAMAGED, "%zu bytes are too few for a safetensors file", len);
    memcpy(n, bytes, 8);
    if (*n > max_header)
        return dq_fail(
            err, DQ_DAMAGED,
            "header length %llu is not plausible (expected at most %llu). Not a safetensors file?",
            (unsigned long long)*n, (unsigned long long)max_header);
    if (*n > len - 8)
        return dq_fail(err, DQ_DAMAGED,
                       "header says it has %llu bytes, the file has %zu. The file is incomplete: "
                       "fetch it again.",
                       (unsigned long long)*n, len);
    if (*n == 0 || bytes[8] != '{')
        return dq_fail(err, DQ_DAMAGED,
                       "the header does not begin with '{'. Not a safetensors file?");
    return DQ_OK;
}

dq_status dq_safetensors_parse(dq_tensor **out, int64_t *count, const uint8_t *bytes, size_t len,
                               dq_arena *a, dq_err *err)
{
    uint64_t n = 0;
    json_t *header = NULL;
    *out = NULL;
    *count = 0;
    DQ_TRY(header_length(&n, bytes, len, err));
    DQ_TRY(dq_json_parse(&header, (const char *)bytes + 8, (size_t)n, "header", err));
    if (json_is_object(header))
        read_entries(out, count, header, bytes + 8 + n, len - 8 - n, a, err);
    else
        dq_fail(err, DQ_DAMAGED, "the header is not a JSON object");
    json_decref(header);
    return err->code;
}

/* jansson keeps members in the order of insertion. */

int dq_safetensors_write_order(const dq_tensor *a, const dq_tensor *b)
{
    const size_t x = dq_dtypes[a->dtype].bytes, y = dq_dtypes[b->dtype].bytes;
    return x != y ? (x > y ? -1 : 1) : strcmp(a->name, b->name);
}

static json_t *entry(const dq_tensor *t, int64_t begin)
{
    json_t *o = json_object(), *shape = json_array(), *range = json_array();
    for (int i = 0; i < t->n_dims; i++) json_array_append_new(shape, json_integer(t->shape[i]));
    json_array_append_new(range, json_integer(begin));
    json_array_append_new(range, json_integer(begin + (int64_t)dq_tensor_bytes(t)));
    json_object_set_new(o, "dtype", json_string(dq_dtypes[t->dtype].name));
    json_object_set_new(o, "shape", shape);
    json_object_set_new(o, "data_offsets", range);
    return o;
}

static dq_status add(dq_strbuf *out, const char *json, dq_err *err)
{
    const size_t n = strlen(json);
    const uint64_t padded = (n + 7) / 8 * 8;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(padded >> 8 * i);
    DQ_TRY(dq_strbuf_add(out, (const char *)length, sizeof length, err));
    DQ_TRY(dq_strbuf_add(out, json, n, err));
    return dq_strbuf_add(out, "        ", (size_t)padded - n, err);
}

dq_status dq_safetensors_write_head(dq_strbuf *out, const dq_tensor *const *tensor, int64_t n,
                                    dq_err *err)
{
    json_t *head = json_object(), *meta = json_object();
    int64_t at = 0;
    char *text = NULL;
    json_object_set_new(meta, "format", json_string("pt")); /* without it transformers refuses */
    json_object_set_new(head, "__metadata__", meta);
    for (int64_t i = 0; i < n; i++) {
        json_object_set_new(head, tensor[i]->name, entry(tensor[i], at));
        at += (int64_t)dq_tensor_bytes(tensor[i]);
    }
    dq_json_dump(&text, head, JSON_COMPACT, err);
    json_decref(head);
    if (text) add(out, text, err);
    free(text);
    return err->code;
}

/* All weight files are mapped into one table of tensors in name order; an index decides which
 * count. A GGUF file has the same table. */

enum { MAX_FILES = 10000 };

static char *join_path(dq_arena *a, const char *dir, const char *name, dq_err *err)
{
    size_t n = strlen(dir);
    return dq_textf(a, err, "%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name);
}

static bool ends_in(const char *s, const char *end)
{
    const size_t n = strlen(s), k = strlen(end);
    return n > k && strcmp(s + n - k, end) == 0;
}

/* An adapter is refused whatever else its folder holds, as transformers reads it on top of its
 * model. */
static dq_status refuse_adapter(const char *dir, dq_arena *a, dq_err *err)
{
    char *path = join_path(a, dir, "adapter_config.json", err), *text;
    size_t len;
    json_t *o = NULL;
    if (!path || !dq_file_exists(path)) return err->code;
    DQ_TRY(dq_file_read_small(&text, &len, path, DQ_MAX_CONFIG, a, err));
    DQ_TRY(dq_json_parse_config(&o, text, len, path, err));
    const char *type = json_string_value(json_object_get(o, "peft_type"));
    const char *base = json_string_value(json_object_get(o, "base_model_name_or_path"));
    dq_fail(err, DQ_MISMATCH,
            "%s: a PEFT adapter (%.40s) of %.200s, not a model. Merge it into that model "
            "(merge_and_unload of PEFT, then save_pretrained) and name the merged folder, which "
            "has no adapter_config.json.",
            dir, type ? type : "of no type", base ? base : "another model");
    json_decref(o);
    return err->code;
}

static const char pickle[] =
    "PyTorch pickle files are not read. Convert the weights to safetensors.";

static const struct {
    const char *part, *about;
} others[] = {
    {"model_index.json", "a pipeline of diffusers is no language model."},
    {"diffusion_pytorch_model", "a part of a pipeline of diffusers is no language model."},
    {"adapter_model.", "an adapter is no model. Merge it into the model that it adapts."},
    {"zero_to_fp32.py",
     "weights of DeepSpeed are not read. Run this script with its option safe_serialization."},
    {".distcp",
     "weights of torch.distributed.checkpoint are not read. Save the model in safetensors."},
    {"pytorch_model.bin", pickle},
    {"pytorch_model-0", pickle},
    {"consolidated.",
     "weights under their maker's names are not read. Use those for transformers."},
    {".pth", pickle},
    {"tf_model.h5", "weights of TensorFlow are not read. Convert them to safetensors."},
    {".msgpack", "weights of JAX are not read. Convert them to safetensors."},
    {"onnx", "models in ONNX are not read. Use the checkpoint that they were made of."},
    {".npz", "weights in NumPy's form are not read. Use those for transformers."},
};

/* Guesses what a folder without a needed file was meant for; DQ_OK: nothing to say. */
static dq_status explain(const char *dir, const char *lack, dq_arena *a, dq_err *err)
{
    const char **name, *inner = NULL;
    size_t n, more = 0;
    DQ_TRY(dq_file_dir_names(&name, &n, dir, a, err));
    for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
        for (size_t i = 0; i < n; i++) {
            if (strstr(name[i], others[k].part))
                return dq_fail(err, DQ_MISMATCH, "%s: %s", join_path(a, dir, name[i], err),
                               others[k].about);
        }
    }
    for (size_t i = 0; i < n; i++) {
        char *path = join_path(a, dir, name[i], err);
        char *config = path ? join_path(a, path, "config.json", err) : NULL;
        if (!config) return err->code;
        if (ends_in(name[i], ".gguf"))
            return dq_fail(err, DQ_FILE, "%s: no %s here. Name the file: %s", dir, lack, path);
        if (strcmp(name[i], "snapshots") == 0 && dq_file_is_dir(path)) /* of the hub's cache */
            DQ_TRY(explain(path, lack, a, err));
        if (!dq_file_exists(config)) continue;
        more += inner != NULL;
        if (!inner) inner = path;
    }
    if (!inner) return DQ_OK;
    return dq_fail(err, DQ_FILE, "%s: no %s here. Name the folder of one model: %s%s", dir, lack,
                   inner, more ? " (or another one beside it)" : "");
}

static dq_status read_config(dq_checkpoint *c, const char *dir, dq_err *err)
{
    char *path = join_path(c->arena, dir, "config.json", err), *text;
    if (!path) return err->code;
    if (!dq_file_is_dir(dir) && dq_file_exists(dir))
        return dq_fail(err, DQ_DAMAGED, "%s: not a folder. Name the folder that holds config.json.",
                       dir);
    DQ_TRY(refuse_adapter(dir, c->arena, err));
    if (dq_file_is_dir(dir) && !dq_file_exists(path))
        DQ_TRY(explain(dir, "config.json", c->arena, err));
    DQ_TRY(dq_file_read_small(&text, &c->config_bytes, path, DQ_MAX_CONFIG, c->arena, err));
    c->config_text = text;
    DQ_TRY(dq_json_parse_config(&c->config, text, c->config_bytes, path, err));
    if (!json_is_object(c->config)) return dq_fail(err, DQ_DAMAGED, "%s: not a JSON object", path);
    return DQ_OK;
}

/* Inside the folder: relative, and no component that leads out of it. */
static bool stays_inside(const char *name)
{
    if (*name == 0 || *name == '/') return false;
    for (const char *p = name; p; p = strchr(p, '/')) {
        if (*p == '/') p++;
        if (strncmp(p, "..", 2) == 0 && (p[2] == '/' || p[2] == 0)) return false;
    }
    return true;
}

/* Distinct file names of an index, in name order; texts are the index's. */
static dq_status distinct_names(const char ***out, size_t *n_out, json_t *weights, const char *path,
                                dq_arena *a, dq_err *err)
{
    size_t n = 0, cap = json_object_size(weights);
    const char *tensor, **name = dq_alloc(a, cap, sizeof *name, err);
    json_t *value;
    if (!name) return err->code;
    json_object_foreach(weights, tensor, value)
    {
        const char *s = json_string_value(value);
        if (!s || strlen(s) != json_string_length(value) || !stays_inside(s))
            return dq_fail(err, DQ_DAMAGED,
                           "%s: tensor \"%s\" is not in a file of this folder (found %s%s%s)", path,
                           tensor, s ? "\"" : "", s ? s : "no text", s ? "\"" : "");
        name[n++] = s;
    }
    qsort(name, n, sizeof *name, dq_name_compare);
    size_t distinct = 0;
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || strcmp(name[i], name[i - 1]) != 0) name[distinct++] = name[i];
    }
    *out = name;
    *n_out = distinct;
    return DQ_OK;
}

static dq_status list_shards(dq_checkpoint *c, json_t *weights, const char *path, dq_err *err)
{
    const char **name;
    size_t distinct;
    DQ_TRY(distinct_names(&name, &distinct, weights, path, c->arena, err));
    if (distinct == 0 || distinct > MAX_FILES)
        return dq_fail(err, DQ_DAMAGED, "%s: %zu weight files (expected 1 to %d)", path, distinct,
                       MAX_FILES);
    c->file = dq_alloc(c->arena, distinct, sizeof *c->file, err);
    if (!c->file) return err->code;
    for (size_t i = 0; i < distinct; i++) {
        c->file[i].name = dq_text(c->arena, name[i], strlen(name[i]), err);
        if (!c->file[i].name) return err->code;
    }
    c->n_files = (int)distinct;
    return DQ_OK;
}

static dq_status open_files(dq_checkpoint *c, const char *dir, dq_err *err)
{
    size_t total = 0;
    dq_tensor **part = dq_alloc(c->arena, (size_t)c->n_files, sizeof *part, err);
    int64_t *count = dq_alloc(c->arena, (size_t)c->n_files, sizeof *count, err);
    if (!part || !count) return err->code;
    for (int i = 0; i < c->n_files; i++) {
        dq_weight_file *f = &c->file[i];
        char *path = join_path(c->arena, dir, f->name, err);
        if (!path) return err->code;
        DQ_TRY(dq_os_map_open(&f->map, path, err));
        if (dq_safetensors_parse(&part[i], &count[i], f->map.data, f->map.bytes, c->arena, err) !=
            DQ_OK)
            return dq_in(err, "%s: ", path);
        uint64_t length;
        memcpy(&length, f->map.data, sizeof length);
        f->header_bytes = sizeof length + (size_t)length;
        total += (size_t)count[i];
    }
    if (c->n_files == 1) {
        c->tensor = part[0];
    } else {
        dq_tensor *at = dq_alloc(c->arena, total, sizeof *at, err);
        if (!at) return err->code;
        c->tensor = at;
        for (int i = 0; i < c->n_files; at += count[i++])
            memcpy(at, part[i], (size_t)count[i] * sizeof *at);
        qsort(c->tensor, total, sizeof *c->tensor, dq_name_compare);
    }
    c->count = (int64_t)total;
    return DQ_OK;
}

static bool is_in_file(const dq_checkpoint *c, const dq_tensor *t, const char *name)
{
    dq_weight_file key = {.name = name};
    const dq_weight_file *f =
        bsearch(&key, c->file, (size_t)c->n_files, sizeof key, dq_name_compare);
    uintptr_t p = (uintptr_t)t->data, begin = f ? (uintptr_t)f->map.data : 0;
    return f && p >= begin && p <= begin + f->map.bytes;
}

/* Of copies in several files the one that the index names stays; tensors that it does not name are
 * dropped; a single copy counts in any file. */
static dq_status keep_indexed(dq_checkpoint *c, const json_t *weights, const char *path,
                              dq_err *err)
{
    int64_t kept = 0;
    for (int64_t i = 0, end; i < c->count; i = end) {
        const dq_tensor *t = &c->tensor[i], *named = t;
        const char *want = json_string_value(json_object_get(weights, t->name));
        int64_t n_named = 0;
        for (end = i; end < c->count && strcmp(c->tensor[end].name, t->name) == 0; end++) {
            if (!want || !is_in_file(c, &c->tensor[end], want)) continue;
            named = &c->tensor[end];
            n_named++;
        }
        if (!want) continue;
        if (end - i > 1 && n_named != 1)
            return dq_fail(err, DQ_DAMAGED,
                           "%s: tensor \"%s\" is stored in several weight files, and not in %s",
                           path, t->name, want);
        c->tensor[kept++] = *named;
    }
    c->count = kept;
    return DQ_OK;
}

static dq_status read_index(json_t **index, json_t **weights, const char *path, dq_arena *a,
                            dq_err *err)
{
    char *text;
    size_t len;
    DQ_TRY(dq_file_read_small(&text, &len, path, DQ_MAX_INDEX, a, err));
    DQ_TRY(dq_json_parse(index, text, len, path, err));
    *weights = json_object_get(*index, "weight_map");
    if (!json_is_object(*weights))
        return dq_fail(err, DQ_DAMAGED, "%s: \"weight_map\" is missing or not an object", path);
    return DQ_OK;
}

dq_status dq_checkpoint_index_files(const char ***file, size_t *n, const char *dir, dq_arena *a,
                                    dq_err *err)
{
    json_t *index = NULL, *weights;
    dq_err damaged = {0}; /* which whoever opens the checkpoint will say */
    char *path = join_path(a, dir, "model.safetensors.index.json", err);
    *n = 0;
    if (!path || !dq_file_exists(path)) return err->code;
    if (read_index(&index, &weights, path, a, &damaged) == DQ_OK)
        distinct_names(file, n, weights, path, a, &damaged);
    for (size_t i = 0; i < *n && err->code == DQ_OK; i++)
        (*file)[i] = join_path(a, dir, (*file)[i], err);
    json_decref(index);
    return err->code;
}

static dq_status no_weights(const char *dir, dq_arena *a, dq_err *err)
{
    const char **name;
    size_t n;
    DQ_TRY(explain(dir, "safetensors", a, err));
    DQ_TRY(dq_file_dir_names(&name, &n, dir, a, err));
    for (size_t i = 0; i < n; i++) {
        if (ends_in(name[i], ".safetensors"))
            return dq_fail(err, DQ_MISMATCH,
                           "%s: weights under this name are not looked for (expected "
                           "model.safetensors, or files that model.safetensors.index.json lists). "
                           "Fetch the index, or name the file so.",
                           join_path(a, dir, name[i], err));
    }
    return dq_fail(err, DQ_FILE,
                   "%s: neither model.safetensors nor model.safetensors.index.json is here", dir);
}

static dq_status open_weights(dq_checkpoint *c, const char *dir, dq_err *err)
{
    const char *name;
    /* "transformers_weights" of config.json comes first, then one file, then an index. */
    static const char *const usual[] = {"model.safetensors", "model.safetensors.index.json"};
    static const char key[] = "transformers_weights";
    name = NULL;
    DQ_TRY(dq_json_text(&name, c->config, key, &name, err));
    if (name && !stays_inside(name))
        return dq_fail(err, DQ_DAMAGED, "%s: key \"%s\": \"%s\" is not in this folder", dir, key,
                       name);
    if (name && !ends_in(name, ".safetensors") && !ends_in(name, ".safetensors.index.json"))
        return dq_fail(err, DQ_MISMATCH,
                       "%s: key \"%s\": \"%s\" is not read (expected a file of safetensors, or an "
                       "index of such)",
                       dir, key, name);
    for (size_t i = 0; i < sizeof usual / sizeof *usual && !name; i++) {
        char *path = join_path(c->arena, dir, usual[i], err);
        if (!path) return err->code;
        if (dq_file_exists(path)) name = usual[i];
    }
    DQ_TRY(name ? DQ_OK : no_weights(dir, c->arena, err));
    if (ends_in(name, ".safetensors.index.json")) {
        char *path = join_path(c->arena, dir, name, err);
        if (!path) return err->code;
        json_t *index = NULL, *weights;
        if (read_index(&index, &weights, path, c->arena, err) == DQ_OK &&
            list_shards(c, weights, path, err) == DQ_OK && open_files(c, dir, err) == DQ_OK)
            keep_indexed(c, weights, path, err);
        json_decref(index);
        return err->code;
    }
    c->file = dq_alloc(c->arena, 1, sizeof *c->file, err);
    if (!c->file) return err->code;
    c->file[0].name = name;
    c->n_files = 1;
    return open_files(c, dir, err);
}

bool dq_checkpoint_is_gguf(const char *path)
{
    uint8_t magic[4] = {0};
    dq_os_map map;
    dq_err err = {0};
    if (!dq_file_is_regular(path) || dq_os_map_open(&map, path, &err) != DQ_OK) return false;
    if (map.bytes >= sizeof magic) memcpy(magic, map.data, sizeof magic);
    dq_os_map_close(&map);
    return memcmp(magic, "GGUF", sizeof magic) == 0;
}

static dq_status open_gguf(dq_checkpoint *c, const char *path, dq_err *err)
{
    DQ_TRY(dq_gguf_model_open(&c->gguf, path, err));
    c->count = c->gguf->n_entries;
    c->n_files = c->gguf->n_open;
    c->about = c->gguf->about;
    c->config = json_incref(c->gguf->config);
    DQ_TRY(dq_gguf_model_text(c->gguf, "config.json", &c->config_text, &c->config_bytes, err));
    c->file = dq_alloc(c->arena, (size_t)c->n_files, sizeof *c->file, err);
    c->tensor = dq_alloc(c->arena, (size_t)c->count, sizeof *c->tensor, err);
    if (!c->file || !c->tensor) return err->code;
    for (int i = 0; i < c->n_files; i++) {
        const dq_gguf_file *file = &c->gguf->file[i];
        c->file[i] = (dq_weight_file){file->name, file->map, file->g.header_bytes};
    }
    for (int64_t i = 0; i < c->count; i++) {
        dq_tensor *to = &c->tensor[i];
        const dq_weight *w = &c->gguf->entry[i].w;
        const dq_gguf_tensor *t = c->gguf->entry[i].t;
        *to = (dq_tensor){.name = w->name, .dtype = w->dtype, .n_dims = t->n_dims, .data = t->data};
        for (int k = 0; k < t->n_dims; k++) to->shape[k] = t->shape[k];
    }
    return DQ_OK;
}

dq_status dq_checkpoint_open(dq_checkpoint **out, const char *path, dq_err *err)
{
    dq_arena *arena;
    dq_checkpoint *c = *out = dq_arena_object(&arena, sizeof *c, err);
    if (!c) return err->code;
    c->arena = arena;
    if (dq_checkpoint_is_gguf(path))
        open_gguf(c, path, err);
    else if (read_config(c, path, err) == DQ_OK)
        open_weights(c, path, err);
    if (err->code == DQ_OK) return DQ_OK;
    dq_checkpoint_close(c);
    *out = NULL;
    return err->code;
}

void dq_checkpoint_close(dq_checkpoint *c)
{
    if (!c) return;
    for (int i = 0; c->file && !c->gguf && i < c->n_files; i++) dq_os_map_close(&c->file[i].map);
    dq_gguf_model_close(c->gguf);
    json_decref(c->config);
    dq_arena_free(c->arena); /* c itself lives there */
}

dq_status dq_checkpoint_tokenizer_text(const dq_checkpoint *c, const char *name, const char **text,
                                       size_t *len, dq_err *err)
{
    *text = NULL;
    *len = 0;
    return c->gguf ? dq_gguf_model_text(c->gguf, name, text, len, err) : DQ_OK;
}

const dq_tensor *dq_checkpoint_find(const dq_checkpoint *c, const char *name)
{
    dq_tensor key = {.name = name};
    return c->count ? bsearch(&key, c->tensor, (size_t)c->count, sizeof key, dq_name_compare)
                    : NULL;
}

size_t dq_checkpoint_stored_bytes(const dq_checkpoint *c, int64_t i)
{
    return c->gguf ? c->gguf->entry[i].t->bytes : dq_tensor_bytes(&c->tensor[i]);
}

const char *dq_checkpoint_type(const dq_checkpoint *c, int64_t i)
{
    return c->gguf ? dq_gguf_type_name(c->gguf->entry[i].t->type)
                   : dq_dtypes[c->tensor[i].dtype].name;
}

bool dq_checkpoint_weight(const dq_checkpoint *c, const char *name, dq_weight *w)
{
    const dq_tensor *t = dq_checkpoint_find(c, name);
    if (!t) return false;
    if (c->gguf) {
        *w = c->gguf->entry[t - c->tensor].w;
        return true;
    }
    *w = (dq_weight){.name = t->name, .bits = 16, .dtype = t->dtype, .data = t->data};
    w->rows = t->n_dims > 0 ? t->shape[0] : 1;
    w->cols = t->n_dims > 1 ? t->shape[1] : 1;
    if (t->n_dims > 2) w->cols = -t->n_dims; /* no architecture has such a tensor */
    return true;
}

static bool find(void *arg, const char *name, dq_weight *w)
{
    return dq_checkpoint_weight(arg, name, w);
}

static const char *name_at(void *arg, int64_t i)
{
    return ((const dq_checkpoint *)arg)->tensor[i].name;
}

static int64_t stored_bytes(void *arg, const char *name)
{
    const dq_checkpoint *c = arg;
    const dq_tensor *t = dq_checkpoint_find(c, name);
    return t ? (int64_t)dq_checkpoint_stored_bytes(c, t - c->tensor) : 0;
}

static dq_status load(void *arg, dq_err *err)
{
    const dq_checkpoint *c = arg;
    return c->gguf ? dq_gguf_model_load(c->gguf, err) : DQ_OK;
}

dq_source dq_checkpoint_source(dq_checkpoint *c)
{
    return (dq_source){c, find, c->count, name_at, stored_bytes, load};
}

void dq_checkpoint_release(const dq_checkpoint *c)
{
    for (int i = 0; i < c->n_files; i++)
        dq_os_map_release(c->file[i].map.data, c->file[i].map.bytes);
}
