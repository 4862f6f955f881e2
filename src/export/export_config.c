/* export_config: the texts of the folder. The source's config.json keeps every byte but those of the members that are set.
 * SPDX-License-Identifier: MIT */
#include "base/json.h"
#include "export/export_plan.h"

#include <stdlib.h>
#include <string.h>

static const char head[] = "lm_head.weight";

/* A value as text in the arena, ended by a newline where `line` is. Consumes it. */
static dq_status dump(const char **out, size_t *len, dq_export *x, json_t *v, bool line,
                      dq_err *err)
{
    char *text;
    dq_json_dump(&text, v, JSON_INDENT(2) | JSON_REAL_PRECISION(17), err);
    json_decref(v);
    if (!text) return err->code;
    *out = dq_textf(x->arena, err, "%s%s", text, line ? "\n" : "");
    free(text);
    if (*out) *len = strlen(*out);
    return err->code;
}

/* ---- quantization_config ---- */

/* Only keys that every version of compressed-tensors and vLLM knows. */
static json_t *weights_json(const dq_export_scheme *s)
{
    json_t *o = json_object();
    json_object_set_new(o, "num_bits", json_integer(s->bits));
    json_object_set_new(o, "type", json_string("int"));
    json_object_set_new(o, "symmetric", json_boolean(s->symmetric));
    json_object_set_new(o, "strategy", json_string(s->group ? "group" : "channel"));
    json_object_set_new(o, "group_size", s->group ? json_integer(s->group) : json_null());
    json_object_set_new(o, "dynamic", json_false());
    json_object_set_new(o, "actorder", json_null());
    return o;
}

/* "model.layers.0.mlp.up_proj" of its weight's name; NULL: not the weight of a module. */
static json_t *module_json(const char *name)
{
    const char *suffix = strrchr(name, '.');
    if (!suffix || strcmp(suffix, ".weight") != 0) return NULL;
    return json_stringn(name, (size_t)(suffix - name));
}

/* One scheme is that of all linear modules but those to ignore; several name their modules. */
static json_t *targets_json(const dq_export *x, int scheme)
{
    json_t *list = json_array();
    if (x->info.n_schemes == 1) {
        json_array_append_new(list, json_string("Linear"));
        return list;
    }
    for (int64_t i = 0; i < x->info.n_rows; i++) {
        if (x->row[i].scheme == scheme) json_array_append_new(list, module_json(x->row[i].name));
    }
    return list;
}

static json_t *groups_json(const dq_export *x)
{
    json_t *groups = json_object();
    for (int i = 0; i < x->info.n_schemes; i++) {
        json_t *o = json_object();
        char name[32];
        snprintf(name, sizeof name, "group_%d", i);
        json_object_set_new(o, "targets", targets_json(x, i));
        json_object_set_new(o, "weights", weights_json(&x->scheme[i]));
        json_object_set_new(o, "input_activations", json_null());
        json_object_set_new(o, "output_activations", json_null());
        json_object_set_new(groups, name, o);
    }
    return groups;
}

static const dq_export_row *head_row(const dq_export *x)
{
    for (int64_t i = 0; i < x->info.n_rows; i++) {
        if (strcmp(x->row[i].name, head) == 0) return &x->row[i];
    }
    return NULL;
}

/* Every matrix without codes; a tied head is a module without a tensor. */
static json_t *ignore_json(const dq_export *x)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < x->info.n_rows; i++) {
        const dq_export_row *r = &x->row[i];
        json_t *module = r->scheme < 0 && r->cols > 1 ? module_json(r->name) : NULL;
        if (module) json_array_append_new(list, module);
    }
    if (!head_row(x)) json_array_append_new(list, module_json(head));
    return list;
}

static json_t *quantization_json(const dq_export *x)
{
    json_t *o = json_object();
    json_object_set_new(o, "quant_method", json_string("compressed-tensors"));
    json_object_set_new(o, "format", json_string("pack-quantized"));
    json_object_set_new(o, "quantization_status", json_string("compressed"));
    json_object_set_new(o, "kv_cache_scheme", json_null());
    json_object_set_new(o, "config_groups", groups_json(x));
    json_object_set_new(o, "ignore", ignore_json(x));
    return o;
}

/* ---- config.json ---- */

/* Sets a member of *text, which becomes a text of the arena. */
static dq_status set(const char **text, size_t *len, dq_export *x, const char *key,
                     const char *value, dq_err *err)
{
    dq_strbuf b = {0};
    if (dq_json_edit_member(&b, *text, *len, key, value, err) == DQ_OK) {
        *text = dq_text(x->arena, b.s, b.n, err);
        *len = b.n;
    }
    dq_block_free(b.s);
    return err->code;
}

/* The type of the weights, under the name or names that the source has for it. */
static dq_status set_dtype(const char **text, size_t *len, dq_export *x, dq_err *err)
{
    static const char *const keys[] = {"dtype", "torch_dtype"};
    const char *name = x->set.dtype == DQ_F32   ? "\"float32\""
                       : x->set.dtype == DQ_F16 ? "\"float16\""
                                                : "\"bfloat16\"";
    json_t *config = NULL;
    DQ_TRY(dq_json_parse_config(&config, *text, *len, "config.json", err));
    for (size_t i = 0; i < sizeof keys / sizeof *keys && err->code == DQ_OK; i++) {
        if (json_object_get(config, keys[i])) set(text, len, x, keys[i], name, err);
    }
    json_decref(config);
    return err->code;
}

dq_status dq_export_config_json(const char **out, size_t *len, dq_export *x, dq_err *err)
{
    static const char key[] = "quantization_config";
    /* counts whatever the source says, and its codes are tied to nothing */
    const dq_export_row *own = head_row(x);
    const char *value = NULL;
    size_t n;
    *out = dq_container_config(x->model->container, len);
    DQ_TRY(set(out, len, x, "transformers_weights", NULL, err)); /* of the source */
    if (!x->model->tied || (own && own->scheme >= 0))
        DQ_TRY(set(out, len, x, "tie_word_embeddings", "false", err));
    if (x->set.form == DQ_EXPORT_SAFETENSORS)
        DQ_TRY(set_dtype(out, len, x, err));
    else
        DQ_TRY(dump(&value, &n, x, quantization_json(x), false, err));
    return set(out, len, x, key, value, err);
}

/* ---- The other texts ---- */

dq_status dq_export_config_settings(const char **out, size_t *len, dq_export *x, dq_err *err)
{
    const dq_model *m = x->model;
    const dq_container_info *i = dq_container_header(m->container);
    json_t *o = json_object(), *logit = json_object(), *recipe = NULL;
    size_t n;
    const char *text = dq_container_recipe(m->container, &n);
    dq_json_parse(&recipe, text, n, "/config/recipe_json", err);
    json_object_set_new(logit, "bits", json_integer(m->logit.bits));
    json_object_set_new(logit, "granularity",
                        json_string(dq_granularity_name[m->logit.granularity]));
    json_object_set_new(o, "schema", json_string("dq-settings/1"));
    json_object_set_new(o, "dq_version", json_string(x->set.dq_version));
    json_object_set_new(o, "format", json_string(dq_export_form_name[x->set.form]));
    json_object_set_new(o, "architecture", json_string(i->architecture));
    json_object_set_new(o, "content_sha256", json_string(i->content_sha256));
    json_object_set_new(o, "source_fingerprint", json_string(i->fingerprint));
    json_object_set_new(o, "logit", logit);
    json_object_set_new(o, "kv", dq_kv_config_json(&m->kv));
    json_object_set_new(o, "recipe", recipe);
    if (err->code == DQ_OK) return dump(out, len, x, o, true, err);
    json_decref(o);
    return err->code;
}

static int by_name(const void *a, const void *b)
{
    const dq_export_slot *const *x = a, *const *y = b;
    return strcmp((*x)->tensor.name, (*y)->tensor.name);
}

dq_status dq_export_config_index(const char **out, size_t *len, dq_export *x, dq_err *err)
{
    int64_t total = 0;
    const dq_export_slot **list = dq_alloc(x->arena, (size_t)x->n_slots, sizeof *list, err);
    if (!list) return err->code;
    for (int64_t i = 0; i < x->n_slots; i++) {
        list[i] = &x->slot[i];
        total += (int64_t)dq_tensor_bytes(&x->slot[i].tensor);
    }
    qsort(list, (size_t)x->n_slots, sizeof *list, by_name);
    json_t *o = json_object(), *meta = json_object(), *map = json_object();
    json_object_set_new(meta, "total_size", json_integer(total));
    for (int64_t i = 0; i < x->n_slots; i++) {
        const char *file = dq_export_plan_shard_name(x, list[i]->shard, err);
        if (file) json_object_set_new(map, list[i]->tensor.name, json_string(file));
    }
    json_object_set_new(o, "metadata", meta);
    json_object_set_new(o, "weight_map", map);
    if (err->code == DQ_OK) return dump(out, len, x, o, true, err);
    json_decref(o);
    return err->code;
}
