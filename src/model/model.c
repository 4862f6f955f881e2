/* model: opens a checkpoint folder or a container and keeps it open. See model.h; the model itself
 * is put together in model_build.c.
 * SPDX-License-Identifier: MIT */
#include "model/model.h"

#include "base/file.h"
#include "base/os.h"
#include "base/sha256.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/container.h"
#include "checkpoint/container_write.h"
#include "model/model_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What dq_model_open gives: the public part comes first, so one pointer leads to both. */
typedef struct opened {
    dq_model model;
    dq_arena *arena; /* owns this struct too */
    dq_checkpoint *checkpoint;
    dq_prequant *prequant; /* NULL: the checkpoint is not quantized */
    dq_container *container;
} opened;

/* ---- Checkpoints ---- */

static void add_number(dq_sha256 *h, uint64_t x)
{
    dq_sha256_add(h, &x, sizeof x);
}

/* One weight file: the length and bytes of its name, its size, its whole header, and
 * the first and the last 64 KiB of its data. */
static void add_file(dq_sha256 *h, const dq_checkpoint *c, int i)
{
    enum { EDGE = 64 * 1024 };
    size_t bytes;
    const uint8_t *data;
    const char *name = dq_checkpoint_file(c, i, &bytes, &data);
    size_t start = dq_checkpoint_header_bytes(c, i), rest = bytes - start;
    size_t edge = rest < EDGE ? rest : EDGE;
    add_number(h, strlen(name));
    dq_sha256_add(h, name, strlen(name));
    add_number(h, bytes);
    dq_sha256_add(h, data, start + edge);
    dq_sha256_add(h, data + bytes - edge, edge);
}

/* SHA-256 over the length and bytes of config.json, every weight file in name order (add_file),
 * and the middle 256 bytes of every tensor in name order. Numbers are 64-bit little-endian. Any
 * change of a name, shape or offset shows, and so does training, of single tensors too; reading all
 * weights would take minutes for a large model. Damage need not show: that is for `dq verify`. */
static dq_status fingerprint(char hex[65], const dq_checkpoint *c, dq_err *err)
{
    enum { SAMPLE = 256, OFTEN = 16 };
    dq_sha256 h;
    size_t len;
    const char *config = dq_checkpoint_config_text(c, &len);
    DQ_TRY(dq_sha256_begin(&h, err));
    add_number(&h, len);
    dq_sha256_add(&h, config, len);
    for (int i = 0; i < dq_checkpoint_n_files(c); i++) add_file(&h, c, i);
    for (int64_t i = 0; i < dq_checkpoint_count(c); i++) {
        const dq_tensor *t = dq_checkpoint_at(c, i);
        size_t n = dq_checkpoint_stored_bytes(c, i), part = n < SAMPLE ? n : SAMPLE;
        const uint8_t *data = t->data;
        dq_sha256_add(&h, data + (n - part) / 2, part);
        if (i % OFTEN == 0) dq_checkpoint_release(c);
    }
    dq_checkpoint_release(c);
    return dq_sha256_end(&h, hex, err);
}

static dq_status describe_prequant(opened *o, dq_err *err)
{
    dq_model *m = &o->model;
    const dq_prequant_info *info = dq_prequant_header(o->prequant);
    m->prequant = info;
    if (m->weight_bits != 16) m->scale_mode = info->method;
    for (int i = 0; i < info->n_warnings; i++)
        DQ_TRY(dq_model_config_warn(m, o->arena, info->warnings[i], err));
    return DQ_OK;
}

static dq_status build_from_checkpoint(opened *o, dq_pairing pairing, dq_err *err)
{
    const json_t *config = dq_checkpoint_config(o->checkpoint);
    const dq_architecture
        *arch; /* before the weights: another copy of one that is not run would not help */
    if (dq_architecture_find(&arch, config, err) != DQ_OK) return dq_in(err, "config.json: ");
    DQ_TRY(dq_prequant_open(&o->prequant, o->checkpoint, err));
    dq_source source =
        o->prequant ? dq_prequant_source(o->prequant) : dq_checkpoint_source(o->checkpoint);
    DQ_TRY(dq_model_build(&o->model, config, &source, pairing, o->arena, err));
    return o->prequant ? describe_prequant(o, err) : DQ_OK;
}

static dq_status open_checkpoint(opened *o, const char *path, dq_pairing pairing, dq_err *err)
{
    DQ_TRY(dq_checkpoint_open(&o->checkpoint, path, err));
    if (build_from_checkpoint(o, pairing, err) != DQ_OK) return dq_in(err, "%s: ", path);
    return fingerprint(o->model.fingerprint, o->checkpoint, err);
}

/* ---- Gates ---- */

dq_status dq_model_new_gates(dq_kv_gates **out, const dq_model *m, dq_arena *a, dq_err *err)
{
    int *heads = dq_alloc(a, (size_t)m->map.n_groups, sizeof *heads, err);
    if (!heads) return err->code;
    for (int i = 0; i < m->map.n_kv; i++) heads[m->map.group[i]]++;
    return dq_kv_gates_new(out, m->n_layers, m->map.n_groups, m->map.head_dim, heads, a, err);
}

static dq_status take_gates(dq_model *m, const char *text, size_t len, const char *where,
                            dq_arena *a, dq_err *err)
{
    dq_kv_gates *gates, *own;
    DQ_TRY(dq_model_new_gates(&own, m, a, err));
    DQ_TRY(dq_kv_gates_parse(&gates, text, len, where, a, err));
    if (dq_kv_gates_fit(gates, own, err) != DQ_OK) return dq_in(err, "%s: ", where);
    if (*gates->model && strcmp(gates->model, m->fingerprint) != 0)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: gates of another model (its fingerprint is %.12s..., that of %s "
                       "%.12s...). Fit gates to this one, or take \"model_fingerprint\" out of the "
                       "file to use them all the same.",
                       where, gates->model, m->name, m->fingerprint);
    m->gates = gates;
    return DQ_OK;
}

dq_status dq_model_take_gates(dq_model *m, const char *path, dq_err *err)
{
    opened *o = (opened *)m;
    char *text;
    size_t len;
    DQ_TRY(dq_file_read_text(&text, &len, path, DQ_MAX_DOCUMENT, o->arena, err));
    return take_gates(m, text, len, path, o->arena, err);
}

/* ---- Containers and other files ---- */

/* Of a container: damaged or another model's are the same to who opens it. */
static dq_status take_stored_gates(opened *o, dq_err *err)
{
    size_t len;
    const char *text = dq_container_gates(o->container, &len);
    if (text && take_gates(&o->model, text, len, DQ_PATH_GATES, o->arena, err) == DQ_MISMATCH)
        err->code = DQ_DAMAGED;
    return err->code;
}

/* Widths by layer and heads are of one model: no option mends a file that has another's, as none stands for the stored ones
 * before the file is open. Other head orders than the architecture's may not part the maps that the widths tell apart. */
static dq_status check_stored_lists(const dq_model *m, dq_err *err)
{
    dq_kv_spec spec;
    dq_err why = {0};
    if ((!m->kv.widths[0] && !m->kv.evict.heads[0]) ||
        dq_model_kv_spec(&spec, &m->kv, m, DQ_NUM_F32, &why) == DQ_OK)
        return DQ_OK;
    if (m->map.pairing != m->architecture->pairing)
        return dq_fail(err, DQ_MISMATCH,
                       "the settings of /kv_cache do not go with the head order %s: %s",
                       dq_head_order_pairing_name(m->map.pairing), why.text);
    return dq_fail(
        err, DQ_DAMAGED,
        "the settings of /kv_cache are not of this model: %s. The container is damaged, or "
        "written wrongly; quantize the model again.",
        why.text);
}

static dq_status build_from_container(opened *o, dq_pairing pairing, dq_err *err)
{
    size_t len;
    json_t *config = NULL;
    const dq_container_info *info = dq_container_header(o->container);
    const char *text = dq_container_config(o->container, &len);
    dq_source source = dq_container_source(o->container);
    dq_model *m = &o->model;
    DQ_TRY(dq_json_parse_config(&config, text, len, "config.json", err));
    if (json_is_object(config))
        dq_model_build(m, config, &source, pairing, o->arena, err);
    else
        dq_fail(err, DQ_DAMAGED, "config.json: not a JSON object");
    json_decref(config);
    if (err->code != DQ_OK) return err->code;
    m->is_container = true;
    m->container = o->container;
    m->is_rounded = info->is_rounded;
    m->weight_group = info->weight_group;
    m->scale_mode = info->scale_mode;
    m->logit = info->logit;
    m->kv = info->kv;
    memcpy(m->fingerprint, info->fingerprint, sizeof m->fingerprint);
    DQ_TRY(take_stored_gates(o, err));
    return check_stored_lists(m, err);
}

static dq_status open_container(opened *o, const char *path, dq_pairing pairing, dq_err *err)
{
    DQ_TRY(dq_container_open(&o->container, path, err));
    DQ_TRY(dq_container_check_header(o->container, err));
    if (build_from_container(o, pairing, err) != DQ_OK) return dq_in(err, "%s: ", path);
    return DQ_OK;
}

dq_status dq_model_check_weights(const dq_model *m, dq_err *err)
{
    const opened *o = (const opened *)m;
    if (o->container) return dq_container_check_weights(o->container, err);
    if (o->prequant && dq_prequant_load(o->prequant, err) != DQ_OK)
        return dq_in(err, "%s: ", m->path);
    if (o->checkpoint && dq_checkpoint_load(o->checkpoint, err) != DQ_OK)
        return dq_in(err, "%s: ", m->path);
    return DQ_OK;
}

void dq_model_release(const dq_model *m)
{
    const opened *o = (const opened *)m;
    if (o->container) dq_container_release(o->container);
    if (o->checkpoint) dq_checkpoint_release(o->checkpoint);
}

static bool ends_in(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* A regular file: a container, or something that can be named. */
static dq_status open_file(opened *o, const char *path, dq_pairing pairing, dq_err *err)
{
    static const char packed[] = "a packed file is not read. Unpack it and name what was in it.";
    static const char old[] =
        "a file of llama.cpp from before GGUF is not read. Convert the model again.";
    static const char pickle[] =
        "a PyTorch file is not read. Use a folder with config.json and safetensors.";
    static const struct {
        size_t at, len;
        const char *magic, *what;
    } known[] = {
        {0, 4, "PK\3\4",
         "a packed file, as of PyTorch, is not read. Use a folder with config.json and "
         "safetensors."},
        {0, 2, "\x80\2", pickle},
        {0, 2, "\x80\4", pickle},
        {0, 2, "\x1f\x8b", packed},
        {0, 3, "BZh", packed},
        {0, 6,
         "\xfd"
         "7zXZ",
         packed},
        {0, 4, "\x28\xb5\x2f\xfd", packed},
        {0, 6, "7z\xbc\xaf\x27\x1c", packed},
        {257, 5, "ustar", packed},
        {0, 4, "lmgg", old},
        {0, 4, "fmgg", old},
        {0, 4, "tjgg", old},
        {0, 9, "<!DOCTYPE", "a page of the web, not the file. Fetch the file itself."},
        {0, 9, "<!doctype", "a page of the web, not the file. Fetch the file itself."},
    };
    static const uint8_t hdf5[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    uint8_t head[264] = {0};
    uint64_t first;
    dq_os_map map;
    DQ_TRY(dq_os_map_open(&map, path, err));
    const size_t bytes = map.bytes;
    if (bytes) memcpy(head, map.data, bytes < sizeof head ? bytes : sizeof head);
    memcpy(&first, head, sizeof first);
    dq_os_map_close(&map);
    if (memcmp(head, hdf5, sizeof hdf5) == 0 || ends_in(path, ".h5"))
        return open_container(o, path, pairing, err);
    if (dq_checkpoint_is_gguf(path)) return open_checkpoint(o, path, pairing, err);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (memcmp(head + known[i].at, known[i].magic, known[i].len) == 0)
            return dq_fail(err, DQ_MISMATCH, "%s: %s", path, known[i].what);
    }
    const bool is_safetensors = head[sizeof first] == '{' && first < bytes;
    if (is_safetensors || ends_in(path, ".safetensors") || ends_in(path, ".json"))
        return dq_fail(err, DQ_MISMATCH,
                       "%s: one file is no model. Name the folder that holds config.json and the "
                       "weights.",
                       path);
    if (ends_in(path, ".onnx"))
        return dq_fail(err, DQ_MISMATCH,
                       "%s: a model in ONNX is not read. Use the checkpoint that it was made of.",
                       path);
    return dq_fail(
        err, DQ_DAMAGED,
        "%s: neither a folder with config.json, nor a GGUF file, nor a dq container (.h5)", path);
}

/* ---- Open and close ---- */

static dq_status name_model(opened *o, const char *path, dq_err *err)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    if (begin == end) begin = 0; /* "/" */
    o->model.path = dq_text(o->arena, path, strlen(path), err);
    o->model.name = dq_text(o->arena, path + begin, end - begin, err);
    return err->code;
}

/* Whether it ends as a file that this program reads or writes. */
static bool file_name(const char *path)
{
    static const char *const ends[] = {".h5", ".partial", ".json", ".safetensors", ".gguf"};
    const size_t n = strlen(path);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t k = strlen(ends[i]);
        if (n > k && strcmp(path + n - k, ends[i]) == 0) return true;
    }
    return false;
}

/* "kajuma/DiffLlama-1B": the form of a name on the Hugging Face hub. */
static bool hub_name(const char *path)
{
    static const char of_names[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    size_t owner = strspn(path, of_names), name = 0;
    if (owner == 0 || path[0] == '.' || path[owner] != '/') return false;
    name = strspn(path + owner + 1, of_names);
    return name > 0 && path[owner + 1] != '.' && path[owner + 1 + name] == 0 && !file_name(path);
}

/* Whether a word is likely one more value of an option than a model: "8", "8:4", "per-row". */
static bool value_of_list(const char *word)
{
    for (int i = 0; i < DQ_GRANULARITIES; i++) {
        if (strcmp(word, dq_granularity_name[i]) == 0) return true;
    }
    for (int i = 0; i < DQ_NUMS; i++) {
        if (strcmp(word, dq_num_name[i]) == 0) return true;
    }
    return word[0] && word[strspn(word, "0123456789.,:")] == 0;
}

static dq_status refuse_missing(const char *path, dq_err *err)
{
    if (!*path) return dq_fail(err, DQ_FILE, "the path of a model is empty");
    if (value_of_list(path))
        return dq_fail_with(err, DQ_FILE, (dq_remedy){.code = DQ_REMEDY_VALUE_OF_LIST},
                            "%s: no such file or folder", path);
    if (hub_name(path))
        return dq_fail_with(err, DQ_FILE, (dq_remedy){.code = DQ_REMEDY_DOWNLOAD, .word = path},
                            "%s: no such file or folder", path);
    return dq_fail(err, DQ_FILE, "%s: no such file or folder", path);
}

dq_status dq_model_open(dq_model **out, const char *path, dq_err *err)
{
    return dq_model_open_as(out, path, DQ_PAIR_COUNT, err);
}

dq_status dq_model_open_as(dq_model **out, const char *path, dq_pairing pairing, dq_err *err)
{
    dq_arena *arena = dq_arena_new();
    opened *o = arena ? dq_alloc(arena, 1, sizeof *o, err) : NULL;
    *out = NULL;
    if (!o) {
        dq_arena_free(arena);
        return dq_fail(err, DQ_RESOURCE, "out of memory");
    }
    o->arena = arena;
    if (name_model(o, path, err) == DQ_OK) {
        if (!dq_file_exists(path))
            refuse_missing(path, err);
        else if (dq_file_is_dir(path))
            open_checkpoint(o, path, pairing, err);
        else
            open_file(o, path, pairing, err);
    }
    if (err->code != DQ_OK) {
        dq_model_close(&o->model);
        return err->code;
    }
    *out = &o->model;
    return DQ_OK;
}

void dq_model_close(dq_model *m)
{
    opened *o = (opened *)m;
    if (!o) return;
    dq_prequant_close(o->prequant);
    dq_checkpoint_close(o->checkpoint);
    dq_container_close(o->container);
    dq_arena_free(o->arena);
}

const dq_checkpoint *dq_model_checkpoint(const dq_model *m)
{
    return ((const opened *)m)->checkpoint;
}

dq_status dq_model_file(const dq_model *m, const char *name, const char **text, size_t *len,
                        dq_err *err)
{
    const opened *o = (const opened *)m;
    *text = NULL;
    *len = 0;
    if (o->container) return dq_container_file(o->container, name, text, len, err);
    if (strcmp(name, "config.json") == 0) {
        *text = dq_checkpoint_config_text(o->checkpoint, len);
        return DQ_OK;
    }
    if (dq_checkpoint_about(o->checkpoint)) {
        dq_checkpoint_tokenizer_text(o->checkpoint, name, text, len, err);
        return err->code == DQ_OK ? DQ_OK : dq_in(err, "%s: ", m->path);
    }
    char *path = dq_textf(o->arena, err, "%s/%s", m->path, name), *data = NULL;
    if (!path) return err->code;
    if (!dq_file_exists(path)) return DQ_OK;
    const size_t max = strcmp(name, "tokenizer.json") == 0 ? DQ_MAX_TOKENIZER : DQ_MAX_CONFIG;
    DQ_TRY(dq_file_read_small(&data, len, path, max, o->arena, err));
    *text = data;
    return DQ_OK;
}

/* Widths of keys by map, where they have no map of their own. */
static dq_status check_maps(const dq_kv_spec *s, const dq_head_order *map, dq_err *err)
{
    const dq_remedy one = {.code = DQ_REMEDY_KV_MAPS};
    dq_kv_widths w;
    if (!s->widths[0]) return DQ_OK;
    DQ_TRY(dq_kv_widths_parse(&w, s->widths, err));
    if (!dq_kv_widths_by_map(&w)) return DQ_OK;
    if (map->n_maps == 1)
        return dq_fail_with(err, DQ_MISMATCH, one,
                            "the widths of keys are for two maps, and the model has one");
    for (int i = 0; i < map->n_kv; i++) {
        if (dq_head_order_key_map(map, i) < 0)
            return dq_fail_with(err, DQ_MISMATCH, one,
                                "the widths of keys differ by map, and both maps of the model "
                                "read the same keys");
    }
    return DQ_OK;
}

/* A policy that goes by the second map alone would keep the first tokens of a model that has none. */
static dq_status check_policy(const dq_kv_spec *s, const dq_model *m, dq_err *err)
{
    const dq_kv_policy *p = s->evict.policy;
    const dq_head_order *map = &m->map;
    if (p && p->needs & DQ_NEEDS_GATES && !m->gates)
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_KV_GATES},
                            "the policy \"%s\" needs gates, and the model has none", p->name);
    if (!p || p->needs != DQ_NEEDS_MASS2 || map->n_maps > 1) return DQ_OK;
    return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_KV_ONE_MAP},
                        "the policy \"%s\" goes by the second map, and the model has one", p->name);
}

dq_kv_dense dq_model_kv_dense(const dq_model *m, dq_kv_dense dense)
{
    if (dense != DQ_KV_DENSE_AUTO) return dense;
    return m->is_bf16 ? DQ_KV_BF16 : DQ_KV_F16;
}

dq_status dq_model_kv_spec(dq_kv_spec *out, const dq_kv_config *c, const dq_model *m, dq_num num,
                           dq_err *err)
{
    DQ_TRY(dq_kv_config_spec(out, c, num, m->map.head_dim, m->n_layers, m->map.n_maps, err));
    out->dense = dq_model_kv_dense(m, c->dense);
    out->evict.budget = dq_kv_budget_for(out->evict.budget, out->evict.policy, m->map.n_maps);
    DQ_TRY(check_maps(out, &m->map, err));
    DQ_TRY(check_policy(out, m, err));
    if (!out->evict.heads[0]) return DQ_OK;
    dq_kv_heads heads;
    DQ_TRY(dq_kv_heads_parse(&heads, out->evict.heads, err));
    return dq_kv_heads_fit(&heads, m->n_layers, m->map.n_groups, err);
}

/* Row `row` of sizes for c. True: it can be had, and c is that. Else *least is the fewest bytes of such a cache, if that is fewer. */
static bool try_size(dq_kv_config *c, dq_kv_sized *out, const dq_kv_size_row *row,
                     const dq_model *m, int64_t *least, dq_err *err)
{
    const dq_kv_size *want = &out->of;
    const dq_kv_shape shape = {m->n_layers, m->map.n_groups, m->map.n_kv, m->map.head_dim};
    const double whole = (double)dq_kv_size_whole(&shape, want->context);
    dq_kv_config x = *c;
    int64_t kept = want->context, bytes;
    x.k_bits = x.v_bits = row->bits;
    memset(x.widths, 0, sizeof x.widths);
    if (row->recent >= 0 && !want->recent) x.recent = row->recent;
    x.evict.tokens = 0;
    for (int cut = 0; cut < 2; cut++) {
        dq_kv_spec spec;
        x.evict.keep = cut ? 0.5 : 1; /* which may change the codes */
        if (dq_model_kv_spec(&spec, &x, m, DQ_NUM_F32, err) != DQ_OK) return false;
        if (spec.evict.budget == DQ_KV_BUDGET_HEADS) {
            dq_fail(err, DQ_USAGE, "how many bytes a budget by heads takes is not foretold.");
            return false;
        }
        if (cut) kept = dq_kv_size_tokens(&spec, &shape, want->context, want->size * whole, &bytes);
        if (kept) bytes = dq_kv_size_bytes(&spec, &shape, want->context, kept);
        if (bytes < *least) *least = bytes;
        out->share = (double)bytes / whole;
        if (kept && out->share <= want->size) {
            out->row =
                (dq_kv_size_row){want->size, row->bits, x.recent != c->recent ? x.recent : -1};
            out->keep = x.evict.keep = dq_kv_size_share(kept, want->context);
            *c = x;
            return true;
        }
    }
    return false;
}

dq_status dq_model_kv_size(dq_kv_config *c, dq_kv_sized *out, const dq_kv_size *size,
                           const dq_model *m, dq_err *err)
{
    const dq_kv_shape shape = {m->n_layers, m->map.n_groups, m->map.n_kv, m->map.head_dim};
    const int64_t whole = dq_kv_size_whole(&shape, size->context);
    int64_t least = INT64_MAX;
    *out = (dq_kv_sized){.of = *size};
    for (int i = dq_kv_size_first(size->size); i < DQ_KV_SIZE_ROWS; i++) {
        if (try_size(c, out, &dq_kv_size_rows[i], m, &least, err)) return DQ_OK;
        DQ_TRY(err->code);
    }
    if (least >= whole)
        return dq_fail(err, DQ_USAGE,
                       "with these settings nothing holds %lld tokens of this model in fewer bytes "
                       "than 16 bits do. Name a longer context.",
                       (long long)size->context);
    return dq_fail(err, DQ_USAGE,
                   "a cache of %lld tokens of this model takes %.4f of the bytes of 16 bits at "
                   "least. Give that or more.",
                   (long long)size->context, ceil(1e4 * (double)least / (double)whole) / 1e4);
}
