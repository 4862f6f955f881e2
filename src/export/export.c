/* The texts of the folder. The source's config.json keeps every byte but those of the members that
 * are set.
 * SPDX-License-Identifier: MIT */
#include "export/export.h"

#include "tokenizer/tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char lm_head[] = "lm_head.weight";

/* As text in the arena, with a newline where `line` is set; takes the value. */
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

/* "model.layers.0.mlp.up_proj" from its weight's name; NULL: not a module's weight. */
static json_t *module_json(const char *name)
{
    const char *suffix = strrchr(name, '.');
    if (!suffix || strcmp(suffix, ".weight") != 0) return NULL;
    return json_stringn(name, (size_t)(suffix - name));
}

/* A single scheme is for all linear modules but the ignored ones; several list their modules. */
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

static const dq_export_row *head_row(const dq_export *x)
{
    for (int64_t i = 0; i < x->info.n_rows; i++) {
        if (strcmp(x->row[i].name, lm_head) == 0) return &x->row[i];
    }
    return NULL;
}

static json_t *quantization_json(const dq_export *x)
{
    json_t *groups = json_object(), *ignore = json_array();
    for (int i = 0; i < x->info.n_schemes; i++) {
        const dq_export_scheme *s = &x->scheme[i];
        char name[32];
        snprintf(name, sizeof name, "group_%d", i);
        /* Only keys that every version of compressed-tensors and vLLM knows. */
        json_t *weights = json_pack(
            "{s:i, s:s, s:b, s:s, s:o, s:b, s:n}", "num_bits", s->bits, "type", "int", "symmetric",
            s->symmetric, "strategy", s->group ? "group" : "channel", "group_size",
            s->group ? json_integer(s->group) : json_null(), "dynamic", 0, "actorder");
        json_object_set_new(groups, name,
                            json_pack("{s:o, s:o, s:n, s:n}", "targets", targets_json(x, i),
                                      "weights", weights, "input_activations",
                                      "output_activations"));
    }
    /* Every matrix without codes; a tied head is a module without a tensor. */
    for (int64_t i = 0; i < x->info.n_rows; i++) {
        const dq_export_row *r = &x->row[i];
        json_t *module = r->scheme < 0 && r->cols > 1 ? module_json(r->name) : NULL;
        if (module) json_array_append_new(ignore, module);
    }
    if (!head_row(x)) json_array_append_new(ignore, module_json(lm_head));
    return json_pack("{s:s, s:s, s:s, s:n, s:o, s:o}", "quant_method", "compressed-tensors",
                     "format", "pack-quantized", "quantization_status", "compressed",
                     "kv_cache_scheme", "config_groups", groups, "ignore", ignore);
}

/* Sets a member of *text, which moves to the arena. */
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

static void settings_rows(dq_row_writer *w, const dq_export *x, json_t *recipe)
{
    const dq_model *m = DQ_LIVE(w, x->model);
    const dq_container_info *i = DQ_LIVE(w, &m->container->info);
    DQ_PUT(w, "schema", dq_settings_document.name, "Name and version of this document.",
           .words = &dq_settings_document.name, .n_words = 1);
    DQ_PUT(w, "dq_version", x->set.dq_version, "The version of dq that wrote it.");
    DQ_PUT(w, "format", dq_export_form_name[x->set.form], "The form of the folder.",
           DQ_WORDS(dq_export_form_name));
    DQ_PUT(w, "architecture", i->architecture, "Row of MODEL.md.");
    DQ_PUT(w, "content_sha256", i->content_sha256, "Of the container's payloads.",
           .pattern = DQ_SHA256);
    DQ_PUT(w, "source_fingerprint", i->fingerprint,
           "Of the checkpoint that the container was made from.", .pattern = DQ_SHA256);
    DQ_OBJECT(w, "logit", "Attention logits.");
    DQ_PUT(w, "bits", m->logit.bits, "Bits, 16: not rounded.", .min = 2, .max = 16);
    DQ_PUT(w, "granularity", dq_granularity_name[m->logit.granularity], "What shares a scale.",
           DQ_WORDS(dq_granularity_name));
    dq_row_end(w);
    DQ_PUT(w, "kv", dq_kv_config_json(&m->kv), "The KV cache that the container asks for.",
           DQ_KV_CONFIG);
    DQ_PUT(w, "recipe", recipe, "How the container was quantized.", .when = DQ_OUT,
           .ref = "dq-info-1.json#/$defs/recipe");
}

static void describe_settings(dq_row_writer *w)
{
    settings_rows(w, NULL, NULL);
}

const dq_document dq_settings_document = {
    "dq-settings/1", "dq_settings.json of an exported folder: what no such folder has a place for.",
    "", describe_settings};

static dq_status config_settings(const char **out, size_t *len, dq_export *x, dq_err *err)
{
    json_t *o = json_object(), *recipe = NULL;
    dq_row_writer w = dq_row_json(o);
    size_t n;
    const char *text = dq_container_recipe(x->model->container, &n);
    dq_json_parse(&recipe, text, n, "/config/recipe_json", err);
    settings_rows(&w, x, recipe);
    if (err->code == DQ_OK) return dump(out, len, x, o, true, err);
    json_decref(o);
    return err->code;
}

static int by_name(const void *a, const void *b)
{
    const dq_export_slot *const *x = a, *const *y = b;
    return strcmp((*x)->tensor.name, (*y)->tensor.name);
}

static const char *shard_name(dq_export *x, int shard, dq_err *err)
{
    if (x->n_shards == 1) return "model.safetensors";
    return dq_textf(x->arena, err, "model-%05d-of-%05d.safetensors", shard + 1, x->n_shards);
}

static dq_status config_index(const char **out, size_t *len, dq_export *x, dq_err *err)
{
    int64_t total = 0;
    const dq_export_slot **list = dq_alloc(x->arena, (size_t)x->n_slots, sizeof *list, err);
    if (!list) return err->code;
    for (int64_t i = 0; i < x->n_slots; i++) {
        list[i] = &x->slot[i];
        total += (int64_t)dq_tensor_bytes(&x->slot[i].tensor);
    }
    qsort(list, (size_t)x->n_slots, sizeof *list, by_name);
    json_t *map = json_object();
    for (int64_t i = 0; i < x->n_slots; i++) {
        const char *file = shard_name(x, list[i]->shard, err);
        if (file) json_object_set_new(map, list[i]->tensor.name, json_string(file));
    }
    json_t *o =
        json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    if (err->code == DQ_OK) return dump(out, len, x, o, true, err);
    json_decref(o);
    return err->code;
}

/* A tensor becomes one slot, or the three or four of a compressed-tensors module, which stay in one
 * shard, sorted as in safetensors files. */

static const char weight_suffix[] = ".weight";

/* Length of the module's name in a weight's name; 0: not a module's weight. */
static size_t module_of(const char *name)
{
    const size_t n = strlen(name), k = sizeof weight_suffix - 1;
    return n > k && strcmp(name + n - k, weight_suffix) == 0 ? n - k : 0;
}

static bool is_named(const dq_weight *w, const char *name)
{
    return w->name && strcmp(w->name, name) == 0;
}

/* Why the form cannot hold a weight's codes; NULL: it can. */
static const char *reason(dq_export *x, const dq_weight *w, dq_err *err)
{
    const dq_model *m = x->model;
    if (x->set.form == DQ_EXPORT_SAFETENSORS) return "the form holds values only";
    if (module_of(w->name) == 0) return "it is not the weight of a module";
    if (is_named(&m->embed, w->name)) return "embeddings are read as values";
    if (is_named(&m->head, w->name)) return "output heads are read as values";
    if (!dq_weight_is_affine(w)) return "its codes do not stand for steps of one size";
    if (w->cols % w->group_size == 0) return NULL;
    return dq_textf(x->arena, err, "%lld columns in groups of %lld leave a short group",
                    (long long)w->cols, (long long)w->group_size);
}

/* Index of the scheme that holds these codes. Codes of more bits than the tensor's hold u - zero as
 * well, which is between -(2^b - 1) and 2^b - 1, and need no zero points. */
static int scheme_of(dq_export *x, const dq_weight *w, dq_err *err)
{
    const int bits = w->bits <= 4 ? 4 : 8;
    const dq_export_scheme want = {.bits = bits,
                                   .symmetric = !w->zero || w->bits < bits,
                                   .group = w->group_size < w->cols ? w->group_size : 0};
    for (int i = 0; i < x->info.n_schemes; i++) {
        const dq_export_scheme *s = &x->scheme[i];
        if (s->bits == want.bits && s->symmetric == want.symmetric && s->group == want.group)
            return i;
    }
    dq_export_scheme *list = dq_grow(x->arena, x->scheme, (size_t)x->info.n_schemes + 1,
                                     &x->max_schemes, sizeof *list, err);
    if (!list) return -1;
    x->scheme = list;
    list[x->info.n_schemes] = want;
    return x->info.n_schemes++;
}

static void add_slot(dq_export *x, int64_t row, dq_export_kind kind, dq_tensor t)
{
    x->row[row].bytes += (int64_t)dq_tensor_bytes(&t);
    x->slot[x->n_slots++] = (dq_export_slot){.tensor = t, .kind = kind, .row = row};
}

static dq_tensor matrix(const char *name, dq_dtype type, int64_t rows, int64_t cols,
                        const void *data)
{
    return (dq_tensor){
        .name = name, .dtype = type, .n_dims = 2, .shape = {rows, cols}, .data = data};
}

static dq_status layout_codes(dq_export *x, int64_t row, dq_err *err)
{
    const dq_weight *w = &x->weight[row];
    dq_export_row *r = &x->row[row];
    r->scheme = scheme_of(x, w, err);
    if (r->scheme < 0) return err->code;
    const dq_export_scheme *s = &x->scheme[r->scheme];
    const int64_t groups = dq_quant_groups(w->cols, w->group_size), per_word = 32 / s->bits;
    const int64_t words = (int64_t)dq_quant_row_bytes(w->cols, s->bits) / 4;
    const int n = (int)module_of(w->name);
    const char *packed = dq_textf(x->arena, err, "%.*s.weight_packed", n, w->name);
    const char *scale = dq_textf(x->arena, err, "%.*s.weight_scale", n, w->name);
    const char *shape = dq_textf(x->arena, err, "%.*s.weight_shape", n, w->name);
    const char *zero = dq_textf(x->arena, err, "%.*s.weight_zero_point", n, w->name);
    if (err->code != DQ_OK) return err->code;
    add_slot(x, row, w->bits == s->bits ? DQ_EXPORT_COPY : DQ_EXPORT_CODES,
             matrix(packed, DQ_I32, w->rows, words, w->data));
    add_slot(x, row, w->scale_rows == w->rows ? DQ_EXPORT_COPY : DQ_EXPORT_SCALES,
             matrix(scale, w->scale_dtype, w->rows, groups, w->scale));
    add_slot(x, row, DQ_EXPORT_SHAPE,
             (dq_tensor){.name = shape, .dtype = DQ_I64, .n_dims = 1, .shape = {2}});
    if (!s->symmetric)
        add_slot(x, row, DQ_EXPORT_ZEROS,
                 matrix(zero, DQ_I32, (w->rows + per_word - 1) / per_word, groups, NULL));
    r->dtype = w->scale_dtype;
    x->info.n_packed++;
    x->info.n_widened += w->bits != s->bits;
    return DQ_OK;
}

/* ---- GGUF ----
 * Sizes from the model, rotary scaling and texts from what the container keeps of its source.
 * Divisors of Llama 3 are computed in f64 from the parameters, as converters do.
 *
 * Source: ggml-org/ggml docs/gguf.md (keys); transformers modeling_rope_utils.py (llama3);
 * llama.cpp src/llama-context.cpp (what it makes of yarn). */

/* Absent rotary parameters are read from `config`. */
static dq_status parameters(const json_t **rotary, const char **type, const json_t *config,
                            dq_err *err)
{
    static const char *const none = "default";
    const char *where;
    *type = none;
    DQ_TRY(dq_model_config_rope(rotary, &where, config, err));
    if (!*rotary) return DQ_OK;
    DQ_TRY(dq_json_text(type, *rotary, "type", &none, err));
    const char *const older = *type;
    return dq_json_text(type, *rotary, "rope_type", &older, err);
}

/* From the rotary object, or the top level, which wins with `top`. */
static dq_status number(double *out, const json_t *rotary, const json_t *config, const char *key,
                        bool top, double usual, dq_err *err)
{
    *out = usual;
    DQ_TRY(dq_json_float(out, rotary, key, out, err));
    return top ? dq_json_float(out, config, key, out, err) : DQ_OK;
}

static dq_status base(double *theta, const json_t *rotary, const json_t *config, dq_err *err)
{
    static const double usual = 10000;
    DQ_TRY(dq_json_float(theta, config, "rope_theta", &usual, err));
    const double outer = *theta;
    return rotary ? dq_json_float(theta, rotary, "rope_theta", &outer, err) : DQ_OK;
}

/* llama3's frequencies are theta^(-2i/d) over these. */
static dq_status llama3(float *divisor, int n, const dq_model *m, const json_t *r,
                        const json_t *config, dq_err *err)
{
    static const double two_pi = 6.283185307179586476925;
    static const char original_key[] = "original_max_position_embeddings";
    double theta, factor, low, high, original;
    DQ_TRY(base(&theta, r, config, err));
    DQ_TRY(number(&factor, r, config, "factor", false, 1, err));
    DQ_TRY(number(&low, r, config, "low_freq_factor", false, 1, err));
    DQ_TRY(number(&high, r, config, "high_freq_factor", false, 1, err));
    DQ_TRY(number(&original, r, config, original_key, true, m->max_positions, err));
    for (int i = 0; i < n; i++) {
        const double length = two_pi * pow(theta, (double)i / n);
        const double keep = (original / length - low) / (high - low);
        divisor[i] = 1;
        if (length > original / low)
            divisor[i] = (float)factor;
        else if (length >= original / high)
            divisor[i] = (float)(1 / ((1 - keep) / factor + keep));
    }
    return DQ_OK;
}

static dq_status parse_config(json_t **config, const dq_export *x, dq_err *err)
{
    size_t len;
    const char *text = dq_container_config(x->model->container, &len);
    return dq_json_parse_config(config, text, len, "config.json", err);
}

/* GGUF readers disagree about a gain of cosine and sine. */
static dq_status check_gain(const dq_model *m, const char *type, double usual, dq_err *err)
{
    const double gain = (double)m->rope.amplitude;
    if (fabs(gain - usual) <= 1e-6 * usual) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH,
                   "key \"attention_factor\" of %s: %g cannot be said in GGUF so that its readers "
                   "agree (expected %g)",
                   type, gain, usual);
}

/* "llama.block_count". */
static const char *key_of(char key[64], const dq_export *x, const char *name)
{
    snprintf(key, 64, "%s.%s", dq_gguf_architecture_name(x->gguf), name);
    return key;
}

static void write_u32(dq_gguf_fields *f, const dq_export *x, const char *name, int64_t value)
{
    char key[64];
    dq_gguf_write_u32(f, key_of(key, x, name), (uint32_t)value);
}

static void write_f32(dq_gguf_fields *f, const dq_export *x, const char *name, double value)
{
    char key[64];
    dq_gguf_write_f32(f, key_of(key, x, name), (float)value);
}

static dq_status write_rope(dq_gguf_fields *f, const dq_export *x, const json_t *config,
                            dq_err *err)
{
    const dq_model *m = x->model;
    const json_t *r;
    const char *type;
    double theta, factor, original;
    DQ_TRY(parameters(&r, &type, config, err));
    DQ_TRY(base(&theta, r, config, err));
    write_f32(f, x, "rope.freq_base", theta);
    if (strcmp(type, "default") == 0) return DQ_OK;
    if (!dq_gguf_architecture_divides(x->gguf) &&
        (strcmp(type, "llama3") == 0 || strcmp(type, "longrope") == 0))
        return dq_fail(err, DQ_MISMATCH,
                       "rope type \"%s\" has no form in GGUF for %s (expected "
                       "default, linear or yarn)",
                       type, dq_gguf_architecture_name(x->gguf));
    if (strcmp(type, "llama3") == 0) return DQ_OK;
    if (strcmp(type, "longrope") == 0) return check_gain(m, type, 1, err);
    if (strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0)
        return dq_fail(err, DQ_MISMATCH,
                       "rope type \"%s\" has no form in GGUF (expected default, linear, llama3, "
                       "longrope or yarn)",
                       type);
    DQ_TRY(number(&original, r, config, "original_max_position_embeddings", true, m->max_positions,
                  err));
    if (!(original >= 1 && original <= UINT32_MAX) || fmod(original, 1) > 0)
        return dq_fail(err, DQ_MISMATCH,
                       "key \"original_max_position_embeddings\": %.9g cannot be said in GGUF "
                       "(expected a whole number below 2^32)",
                       original);
    DQ_TRY(number(&factor, r, config, "factor", false, m->max_positions / original, err));
    char key[64];
    dq_gguf_write_text(f, key_of(key, x, "rope.scaling.type"), type, strlen(type));
    write_f32(f, x, "rope.scaling.factor", factor);
    if (strcmp(type, "linear") == 0) return DQ_OK;
    write_u32(f, x, "rope.scaling.original_context_length", (int64_t)original);
    DQ_TRY(check_gain(m, type, factor > 1 ? 0.1 * log(factor) + 1 : 1, err));
    /* GGUF readers assume these parameters of yarn. */
    static const double usual[] = {32, 1};
    static const char *const keys[] = {"beta_fast", "beta_slow"};
    const json_t *whole = json_object_get(r, "truncate");
    for (int i = 0; i < 2; i++) {
        double beta;
        DQ_TRY(dq_json_float(&beta, r, keys[i], &usual[i], err));
        if (fabs(beta - usual[i]) > 1e-6 * usual[i])
            return dq_fail(
                err, DQ_MISMATCH,
                "key \"%s\" of yarn: %g cannot be said in GGUF so that its readers agree "
                "(expected %g)",
                keys[i], beta, usual[i]);
    }
    if (!whole || json_is_true(whole)) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH, "key \"truncate\" of yarn: false cannot be said in GGUF");
}

/* GGUF readers change tokens by such words in a model's name. */
static bool acts_on(const char *name)
{
    static const char *const words[] = {"phi-3", "phi3", "modern-bert"};
    for (; *name; name++) {
        for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
            if (strncasecmp(name, words[i], strlen(words[i])) == 0) return true;
        }
    }
    return false;
}

static dq_status parse_text(json_t **out, const dq_tokenizer_text *t, const char *name, dq_err *err)
{
    *out = NULL;
    return t->s ? dq_json_parse_config(out, t->s, t->len, name, err) : DQ_OK;
}

/* Added tokens are written as dq reads them; what it ignores is left out. */
static dq_status take_added(dq_gguf_tokenizer_files *files, const dq_tokenizer_text *text,
                            int64_t rows, dq_err *err)
{
    dq_tokenizer *t;
    json_t *added;
    DQ_TRY(dq_tokenizer_load_files(&t, text, err));
    dq_tokenizer_added(&added, t, rows, err);
    dq_tokenizer_free(t);
    json_object_set_new(files->tokenizer, "added_tokens", added);
    json_object_del(files->tokenizer_config, "added_tokens_decoder");
    return err->code;
}

static dq_status write_tokenizer(dq_gguf_fields *f, const dq_export *x, json_t *config, dq_err *err)
{
    dq_gguf_tokenizer_files files = {.config = config};
    dq_container *c = x->model->container;
    dq_tokenizer_text t[DQ_TOKENIZER_FILES] = {{NULL, 0}};
    for (int i = 0; i < DQ_TOKENIZER_FILES; i++)
        DQ_TRY(dq_container_file(c, dq_tokenizer_file[i], &t[i].s, &t[i].len, err));
    dq_tokenizer_text generation = {NULL, 0};
    DQ_TRY(dq_container_file(c, "generation_config.json", &generation.s, &generation.len, err));
    DQ_TRY(dq_container_file(c, "chat_template.jinja", &files.chat, &files.chat_len, err));
    if (!t[0].s)
        return dq_fail(err, DQ_MISMATCH,
                       "has no tokenizer.json, and llama.cpp loads no model without its tokens. "
                       "Quantize from a folder that has one.");
    if (parse_text(&files.tokenizer, &t[0], dq_tokenizer_file[0], err) == DQ_OK &&
        parse_text(&files.tokenizer_config, &t[1], dq_tokenizer_file[1], err) == DQ_OK &&
        parse_text(&files.special_tokens_map, &t[2], dq_tokenizer_file[2], err) == DQ_OK &&
        parse_text(&files.generation_config, &generation, "generation_config.json", err) == DQ_OK &&
        take_added(&files, t, x->model->vocab, err) == DQ_OK)
        dq_gguf_tokenizer_write(f, &files, x->model->vocab, err);
    json_decref(files.tokenizer);
    json_decref(files.tokenizer_config);
    json_decref(files.special_tokens_map);
    json_decref(files.generation_config);
    return err->code;
}

/* *divisors: of rotary frequencies, [head_dim / 2] in the arena, or NULL. */
static dq_status gguf_keys(dq_gguf_fields *f, dq_export *x, uint32_t file_type, dq_err *err)
{
    json_t *config = NULL;
    DQ_TRY(parse_config(&config, x, err));
    const dq_model *m = x->model;
    const char *name = m->container->info.source;
    const char *architecture = dq_gguf_architecture_name(x->gguf);
    dq_gguf_write_text(f, "general.architecture", architecture, strlen(architecture));
    dq_gguf_write_text(f, "general.type", "model", 5);
    if (!acts_on(name)) dq_gguf_write_text(f, "general.name", name, strlen(name));
    dq_gguf_write_u32(f, "general.alignment", DQ_GGUF_ALIGNMENT);
    dq_gguf_write_u32(f, "general.quantization_version", 2);
    dq_gguf_write_u32(f, "general.file_type", file_type);
    write_u32(f, x, "vocab_size", m->vocab);
    write_u32(f, x, "context_length", m->max_positions);
    write_u32(f, x, "embedding_length", m->dim);
    write_u32(f, x, "block_count", m->n_layers);
    write_u32(f, x, "feed_forward_length", m->ffn);
    write_u32(f, x, "attention.head_count", m->map.n_q);
    write_u32(f, x, "attention.head_count_kv", m->map.n_kv);
    write_u32(f, x, "attention.key_length", m->map.head_dim);
    write_u32(f, x, "attention.value_length", m->map.head_dim);
    write_f32(f, x, "attention.layer_norm_rms_epsilon", (double)m->norm_eps);
    write_u32(f, x, "rope.dimension_count", m->map.head_dim);
    if (write_rope(f, x, config, err) == DQ_OK) write_tokenizer(f, x, config, err);
    json_decref(config);
    return err->code == DQ_OK ? DQ_OK : dq_in(err, "%s: ", x->model->path);
}

/* Each tensor gets the smallest type of ggml that holds its codes; a dq scale stands in every block
 * of 32 columns that it is for. A type holds whole numbers between two ends times an f16 scale, or,
 * Q4_1 and Q5_1, codes times an f16 scale plus an f16 lowest value, to which -zero * scale is
 * rounded: by at most 1/64 of a step. u - zero is a whole number too, of one bit more than u, so
 * that 2 and 3 bits have signed types. */

enum { BLOCK = 32 };

static bool is_f16(float x)
{
    const float back = dq_f32_from_f16(dq_f16_from_f32(x));
    return !(back < x || back > x); /* finite x */
}

static bool scales_in_f16(const dq_weight *w)
{
    const int64_t groups = dq_quant_groups(w->cols, w->group_size);
    if (w->scale_dtype == DQ_F16) return true;
    for (int64_t r = 0; r < w->scale_rows; r++) {
        for (int64_t g = 0; g < groups; g++) {
            if (!is_f16(dq_weight_scale(w, r, g))) return false;
        }
    }
    return true;
}

/* The largest distance of a lowest value -zero * scale to its f16, in steps; INFINITY: beyond
 * f16. */
static float lowest_error(const dq_weight *w)
{
    const int64_t groups = dq_quant_groups(w->cols, w->group_size);
    float most = 0;
    for (int64_t r = 0; r < w->scale_rows; r++) {
        for (int64_t g = 0; g < groups; g++) {
            const float scale = dq_weight_scale(w, r, g);
            const float low = scale * (float)dq_weight_zero(w, r, g);
            const float off = fabsf(dq_f32_from_f16(dq_f16_from_f32(low)) - low);
            if (off > 0) most = fmaxf(most, off / fabsf(scale));
        }
    }
    return most;
}

static uint32_t signed_type(int bits)
{
    return bits <= 4 ? DQ_GGML_Q4_0 : bits == 5 ? DQ_GGML_Q5_0 : DQ_GGML_Q8_0;
}

/* The smallest type that holds the codes; NULL: none, see r->why and *remedy. */
static const dq_weight_format *type_of(dq_export_row *r, dq_remedy *remedy, dq_export *x,
                                       const dq_weight *w, dq_err *err)
{
    enum { STEPS = 64 }; /* a part of a step; f16 has 11 bits, a lowest value 31 steps at most */
    const char **why = &r->why;
    *why = NULL;
    if (!dq_weight_is_affine(w)) {
        *why = "its codes do not stand for steps of one size";
        *remedy =
            (dq_remedy){.code = DQ_REMEDY_EXPORT_TYPE, .word = x->model->container->info.source};
    } else if (w->cols % BLOCK) {
        *why = dq_textf(x->arena, err, "rows of %lld codes are no whole number of blocks of %d",
                        (long long)w->cols, BLOCK);
        *remedy = (dq_remedy){.code = DQ_REMEDY_EXPORT_COLUMNS};
    } else if (w->group_size % BLOCK && w->group_size < w->cols) {
        *why = dq_textf(x->arena, err, "groups of %lld codes are no whole number of blocks of %d",
                        (long long)w->group_size, BLOCK);
        *remedy = (dq_remedy){.code = DQ_REMEDY_EXPORT_GROUP, .number = {BLOCK}};
    } else if (w->zero && w->bits == 8) {
        *why = "codes of 8 bits less their zero points need 9";
        *remedy = (dq_remedy){.code = DQ_REMEDY_EXPORT_ZERO};
    } else if (!scales_in_f16(w)) {
        *why = "codes have scales that f16 does not hold";
        *remedy = (dq_remedy){.code = DQ_REMEDY_EXPORT_SCALE};
    }
    if (*why || err->code != DQ_OK) return NULL;
    if (!w->zero) return dq_format_ggml(signed_type(w->bits));
    const float error = w->bits == 4 || w->bits == 5 ? lowest_error(w) : 1;
    if (!(error * STEPS <= 1)) return dq_format_ggml(signed_type(w->bits + 1));
    r->lowest_error = error;
    return dq_format_ggml(w->bits == 4 ? DQ_GGML_Q4_1 : DQ_GGML_Q5_1);
}

/* What llama.cpp would not do of a model of an architecture that it has; NULL: nothing. */
static const char *unsaid(const dq_model *m)
{
    enum { STILL = 4 };
    for (int l = 0; l < m->n_layers; l++) {
        const bool still = m->layer[l].rope == &m->no_rope;
        if (m->layer[l].attn.window > 0) return "windows of attention";
        if (still != (m->architecture->skips_rope && (l + 1) % STILL == 0))
            return "layers without positions other than each fourth";
    }
    return NULL;
}

/* Checks the container's hashes, as types depend on scales. DQ_MISMATCH by name: another
 * architecture, or what GGUF has no key for. */
static dq_status gguf_check(dq_export *x, dq_err *err)
{
    const dq_model *m = x->model;
    x->gguf = dq_gguf_architecture_writes(m->architecture->model_type);
    if (!x->gguf)
        return dq_fail_with(
            err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_EXPORT_VALUES},
            "%s: architecture %s (%s): dq writes GGUF of llama, mistral, qwen2, qwen3 and smollm3 "
            "only.",
            m->path, m->architecture->name, m->architecture->about);
    const char *what = unsaid(m);
    if (what)
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_EXPORT_VALUES},
                            "%s: architecture %s: llama.cpp has no %s in it.", m->path,
                            m->architecture->name, what);
    return dq_model_check_weights(m, err);
}

/* A row's values become codes in blocks, or a plain type. */
static dq_status layout_values(dq_export_slot *s, dq_export *x, int64_t row, dq_err *err)
{
    const dq_weight *w = &x->weight[row];
    dq_export_row *r = &x->row[row];
    dq_remedy remedy = dq_remedy_none;
    s->kind = DQ_EXPORT_VALUES;
    r->dtype = w->dtype;
    s->tensor = matrix(NULL, w->dtype, w->rows, w->cols, NULL);
    if (w->cols == 1) s->tensor = (dq_tensor){.dtype = DQ_F32, .n_dims = 1, .shape = {w->rows}};
    if (!dq_weight_is_coded(w)) {
        r->dtype = s->tensor.dtype;
        return DQ_OK;
    }
    r->blocks = type_of(r, &remedy, x, w, err);
    if (err->code != DQ_OK) return err->code;
    r->dtype = r->blocks ? w->scale_dtype : x->set.dtype;
    if (r->blocks) {
        const dq_block *b = r->blocks->block;
        s->kind = DQ_EXPORT_BLOCKS;
        s->tensor = matrix(NULL, DQ_U8, w->rows, w->cols / b->values * b->bytes, NULL);
        x->info.n_packed++;
        x->info.n_widened += b->bits != w->bits;
        return DQ_OK;
    }
    if (!x->set.values)
        return dq_fail_with(err, DQ_MISMATCH, remedy, "%s: %s: %s, and no type of ggml holds them",
                            x->model->path, w->name, r->why);
    s->tensor = matrix(NULL, x->set.dtype, w->rows, w->cols, NULL);
    x->info.n_decoded++;
    return DQ_OK;
}

/* Plans a tensor; a stored copy of a tied head is skipped. DQ_MISMATCH by name: no type holds the
 * codes, unless values are asked for. */
static dq_status gguf_tensor(dq_export *x, int64_t row, dq_err *err)
{
    static const char embed[] = "model.embed_tokens.weight";
    const dq_model *m = x->model;
    const dq_weight *w = &x->weight[row];
    const char *hf = w->name;
    dq_gguf_rows rows;
    dq_export_slot *s = &x->slot[x->n_slots];
    *s = (dq_export_slot){.row = row};
    if (m->tied && strcmp(hf, lm_head) == 0) {
        if (!is_named(&m->embed, lm_head)) return DQ_OK;
        hf = embed; /* only the head is stored */
    }
    const char *name = dq_gguf_name_of(&rows, x->gguf, hf, x->arena, err);
    if (err->code != DQ_OK) return err->code;
    if (!name)
        return dq_fail(err, DQ_MISMATCH, "%s: %s: no %s of GGUF has such a tensor", m->path,
                       w->name, dq_gguf_architecture_name(x->gguf));
    DQ_TRY(layout_values(s, x, row, err));
    s->tensor.name = name;
    s->pair_rows = rows != DQ_GGUF_ROWS_PLAIN ? m->map.head_dim : 0;
    x->row[row].bytes = (int64_t)dq_tensor_bytes(&s->tensor);
    x->n_slots++;
    return DQ_OK;
}

static int by_gguf_name(const void *a, const void *b)
{
    const dq_export_slot *x = a, *y = b;
    return dq_name_order_compare(x->tensor.name, y->tensor.name);
}

/* Adds what is not among the container's tensors. */
static dq_status gguf_more(dq_export *x, dq_err *err)
{
    const float *divisors;
    const int n = x->model->map.head_dim / 2;
    const json_t *rotary;
    const char *type;
    json_t *config = NULL;
    divisors = NULL;
    DQ_TRY(parse_config(&config, x, err));
    if (parameters(&rotary, &type, config, err) == DQ_OK &&
        (strcmp(type, "llama3") == 0 || strcmp(type, "longrope") == 0)) {
        const json_t *list = json_object_get(rotary, "short_factor"); /* both are the same */
        float *d = dq_alloc(x->arena, (size_t)n, sizeof *d, err);
        for (int i = 0; d && i < n; i++)
            d[i] = (float)json_number_value(json_array_get(list, (size_t)i));
        if (d && strcmp(type, "llama3") == 0) llama3(d, n, x->model, rotary, config, err);
        if (err->code == DQ_OK) divisors = d;
    }
    json_decref(config);
    if (err->code != DQ_OK) return err->code;
    if (divisors)
        x->slot[x->n_slots++] = (dq_export_slot){.tensor = {.name = "rope_freqs.weight",
                                                            .dtype = DQ_F32,
                                                            .n_dims = 1,
                                                            .shape = {x->model->map.head_dim / 2},
                                                            .data = divisors},
                                                 .kind = DQ_EXPORT_OWN};
    qsort(x->slot, (size_t)x->n_slots, sizeof *x->slot, by_gguf_name);
    x->n_shards = 1;
    return DQ_OK;
}

static uint32_t type_number(const dq_export *x, const dq_export_slot *s)
{
    if (s->kind == DQ_EXPORT_BLOCKS) return x->row[s->row].blocks->block->number;
    return s->tensor.dtype == DQ_F32   ? DQ_GGML_F32
           : s->tensor.dtype == DQ_F16 ? DQ_GGML_F16
                                       : DQ_GGML_BF16;
}

/* general.file_type is the type of most values in the layers' matrices. */
static uint32_t file_type(const dq_export *x)
{
    static const struct {
        uint32_t type, file;
    } known[] = {{DQ_GGML_F32, 0},  {DQ_GGML_F16, 1},  {DQ_GGML_Q4_0, 2}, {DQ_GGML_Q4_1, 3},
                 {DQ_GGML_Q8_0, 7}, {DQ_GGML_Q5_0, 8}, {DQ_GGML_Q5_1, 9}, {DQ_GGML_BF16, 32}};
    int64_t most = -1;
    uint32_t file = 0;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        int64_t n = 0;
        for (int64_t i = 0; i < x->n_slots; i++) {
            const dq_export_slot *s = &x->slot[i];
            if (strncmp(s->tensor.name, "blk.", 4) == 0 && s->tensor.n_dims == 2 &&
                type_number(x, s) == known[k].type)
                n += x->row[s->row].rows * x->row[s->row].cols;
        }
        if (n <= most) continue;
        most = n;
        file = known[k].file;
    }
    return file;
}

/* The text before the data, in the arena. */
static dq_status gguf_head(const char **out, size_t *len, dq_export *x, dq_err *err)
{
    dq_gguf_fields f = {0};
    dq_strbuf head = {0};
    dq_gguf_tensor *t = dq_alloc(x->arena, (size_t)x->n_slots, sizeof *t, err);
    if (!t) return err->code;
    for (int64_t i = 0; i < x->n_slots; i++) {
        const dq_export_slot *s = &x->slot[i];
        t[i] = (dq_gguf_tensor){.name = s->tensor.name,
                                .type = type_number(x, s),
                                .n_dims = s->tensor.n_dims,
                                .shape = {s->tensor.shape[0], s->tensor.shape[1]},
                                .bytes = dq_tensor_bytes(&s->tensor)};
        if (s->kind == DQ_EXPORT_BLOCKS) t[i].shape[1] = x->row[s->row].cols;
    }
    *out = NULL;
    if (gguf_keys(&f, x, file_type(x), err) == DQ_OK &&
        dq_gguf_write_head(&head, &f, t, x->n_slots, err) == DQ_OK)
        *out = dq_text(x->arena, head.s, head.n, err);
    *len = head.n;
    dq_block_free(head.s);
    dq_block_free(f.bytes.s);
    return err->code;
}

/* ---- Plan ---- */

static dq_status layout_tensor(dq_export *x, int64_t row, const dq_payload *p, dq_err *err)
{
    const dq_weight *w = &x->weight[row];
    dq_export_row *r = &x->row[row];
    const bool coded = dq_weight_is_coded(w), all = x->set.form == DQ_EXPORT_SAFETENSORS;
    *r = (dq_export_row){.name = w->name,
                         .rows = w->rows,
                         .cols = w->cols,
                         .bits = w->bits,
                         .group_size = coded ? w->group_size : 0,
                         .scheme = -1};
    if (x->set.form == DQ_EXPORT_GGUF) return gguf_tensor(x, row, err);
    if (coded) {
        r->why = reason(x, w, err);
        if (err->code != DQ_OK) return err->code;
        if (!r->why) return layout_codes(x, row, err);
        if (!all && !x->set.values && !dq_weight_is_affine(w))
            return dq_fail_with(err, DQ_MISMATCH,
                                (dq_remedy){.code = DQ_REMEDY_EXPORT_TYPE,
                                            .word = x->model->container->info.source},
                                "%s: %s: %s, and compressed-tensors has no place for them",
                                x->model->path, w->name, r->why);
        x->info.n_decoded++;
    }
    dq_tensor t = matrix(w->name, x->set.dtype, w->rows, w->cols, w->data);
    if (!coded) {
        t.n_dims = p->n_dims;
        memcpy(t.shape, p->shape, sizeof t.shape);
        if (!all) t.dtype = w->dtype;
    }
    r->dtype = t.dtype;
    add_slot(x, row, !coded && t.dtype == w->dtype ? DQ_EXPORT_COPY : DQ_EXPORT_VALUES, t);
    return DQ_OK;
}

/* NULL: p is not a tensor's first dataset. */
static const char *tensor_name(dq_export *x, const dq_payload *p, dq_err *err)
{
    static const char folder[] = "/tensors/";
    const size_t k = sizeof folder - 1;
    if (strncmp(p->path, folder, k) != 0) return NULL;
    if (!p->row) return p->path + k;
    const size_t n = strlen(p->path) - k, part = strlen(p->row->name) + 1;
    const char *name = dq_text(x->arena, p->path + k, n - part, err);
    dq_weight w;
    dq_source source = dq_container_source(x->model->container);
    if (!name || !source.find(source.arg, name, &w)) return NULL;
    return p->row == w.format->dataset ? name : NULL;
}

static int by_place(const void *a, const void *b)
{
    const dq_export_slot *x = a, *y = b;
    if (x->shard != y->shard) return x->shard - y->shard;
    return dq_safetensors_write_order(&x->tensor, &y->tensor);
}

static void fill_shards(dq_export *x)
{
    int64_t bytes = 0, last = -1;
    for (int64_t i = 0; i < x->n_slots; i++) {
        dq_export_slot *s = &x->slot[i];
        if (s->row != last) {
            const int64_t more = x->row[s->row].bytes;
            if (bytes > 0 && bytes + more > x->set.shard_bytes) {
                x->n_shards++;
                bytes = 0;
            }
            bytes += more;
            last = s->row;
        }
        s->shard = x->n_shards;
    }
    x->n_shards++;
    qsort(x->slot, (size_t)x->n_slots, sizeof *x->slot, by_place);
}

static int scheme_named(const dq_export *x, const char *name)
{
    for (int64_t i = 0; name && i < x->info.n_rows; i++) {
        if (strcmp(x->row[i].name, name) == 0) return x->row[i].scheme;
    }
    return -1;
}

/* vLLM joins q, k and v into one product, gate and up into another. */
static void find_split(dq_export *x)
{
    const dq_model *m = x->model;
    x->info.split_layer = -1;
    if (x->set.form != DQ_EXPORT_COMPRESSED_TENSORS) return;
    for (int i = 0; i < m->n_layers && x->info.split_layer < 0; i++) {
        const dq_layer *l = &m->layer[i];
        const int q = scheme_named(x, l->q.name), gate = scheme_named(x, l->gate.name);
        if (scheme_named(x, l->k.name) != q || scheme_named(x, l->v.name) != q ||
            (l->gate.name && scheme_named(x, l->up.name) != gate))
            x->info.split_layer = i;
    }
}

static const char *row_name(const void *x, int64_t i)
{
    return ((const dq_export *)x)->row[i].name;
}

/* Rows and slots in the order of the files. */
static dq_status layout_tensors(dq_export *x, dq_err *err)
{
    enum { SLOTS = 4 }; /* of a tensor */
    const size_t n = (size_t)dq_container_source(x->model->container).count;
    const bool gguf = x->set.form == DQ_EXPORT_GGUF;
    if (gguf) DQ_TRY(gguf_check(x, err));
    x->row = dq_alloc(x->arena, n, sizeof *x->row, err);
    x->weight = dq_alloc(x->arena, n, sizeof *x->weight, err);
    x->slot = dq_alloc(x->arena, SLOTS * n + 1, sizeof *x->slot, err);
    if (!x->row || !x->weight || !x->slot) return err->code;
    dq_container *c = x->model->container;
    dq_source source = dq_container_source(c);
    for (int64_t i = 0; i < c->n_payloads; i++) {
        const dq_payload *p = &c->payload[i];
        const char *name = tensor_name(x, p, err);
        if (err->code != DQ_OK) return err->code;
        const int64_t row = x->info.n_rows;
        if (!name || row == source.count || !source.find(source.arg, name, &x->weight[row]))
            continue;
        const int64_t slots = x->n_slots;
        DQ_TRY(layout_tensor(x, row, p, err));
        x->info.n_rows += x->n_slots > slots;
    }
    if (x->set.form == DQ_EXPORT_COMPRESSED_TENSORS && x->info.n_packed == 0)
        return dq_fail_with(
            err, DQ_MISMATCH,
            (dq_remedy){.code = DQ_REMEDY_EXPORT_CODES, .word = x->model->container->info.source},
            "%s: %s", x->model->path,
            x->info.n_decoded ? "compressed-tensors has no place for any of its codes"
                              : "no tensor has codes, which compressed-tensors is for");
    if (gguf)
        DQ_TRY(gguf_more(x, err));
    else
        fill_shards(x);
    find_split(x);
    return dq_name_order_make(&x->order, x->info.n_rows, row_name, x, x->arena, err);
}

/* Rows of a tensor are independent and use all threads. */

/* out[n] of 16 bits, or f32; returns the first value that becomes infinite, or n. */
static int64_t convert(uint8_t *out, const float *values, int64_t n, dq_dtype type)
{
    if (type == DQ_F32) {
        memcpy(out, values, (size_t)n * sizeof *values);
        return n;
    }
    const uint16_t infinite = type == DQ_F16 ? 0x7c00 : 0x7f80;
    for (int64_t i = 0; i < n; i++) {
        const uint16_t h =
            type == DQ_F16 ? dq_f16_from_f32(values[i]) : dq_bf16_from_f32(values[i]);
        if ((h & 0x7fff) == infinite && isfinite(values[i])) return i;
        memcpy(out + 2 * i, &h, sizeof h);
    }
    return n;
}

/* The weight's row behind row r of the slot. */
static int64_t row_of(const dq_export_slot *s, int64_t r)
{
    return s->pair_rows ? dq_gguf_name_hf_row(r, s->pair_rows) : r;
}

static dq_status write_values(uint8_t *out, float *values, const dq_weight *w,
                              const dq_export_slot *s, int64_t first, int64_t n, dq_err *err)
{
    const int64_t cols = w->cols;
    const dq_dtype type = s->tensor.dtype;
    const size_t bytes = (size_t)cols * dq_dtypes[type].bytes;
    int64_t bad = n * cols;
#pragma omp parallel for schedule(static) reduction(min : bad)
    for (int64_t r = 0; r < n; r++) {
        float *row = values + r * cols;
        const int64_t from = row_of(s, first + r);
        dq_weight_dequantize_rows(row, w, from, from + 1);
        const int64_t at = convert(out + (size_t)r * bytes, row, cols, type);
        if (at < cols && r * cols + at < bad) bad = r * cols + at;
    }
    if (bad == n * cols) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH,
                   "%s: the value %g in row %lld, column %lld is beyond %s. Use a wider type.",
                   w->name, (double)values[bad], (long long)row_of(s, first + bad / cols),
                   (long long)(bad % cols), dq_dtypes[type].name);
}

/* Signed codes u - zero of a row, which need no zero point. */
static void signed_codes(int8_t *q, const dq_weight *w, int64_t row)
{
    const size_t bytes = dq_quant_row_bytes(w->cols, w->bits);
    const int middle = 1 << (w->bits - 1);
    dq_quant_unpack_row(q, (const uint8_t *)w->data + (size_t)row * bytes, w->cols, w->bits);
    if (!w->zero) return;
    for (int64_t c = 0, g = 0; c < w->cols; g++) {
        const int shift = middle - dq_weight_zero(w, row, g);
        const int64_t end = c + w->group_size < w->cols ? c + w->group_size : w->cols;
        for (; c < end; c++) q[c] = (int8_t)(q[c] + shift);
    }
}

static void write_codes(uint8_t *out, const dq_weight *w, int bits, int64_t first, int64_t n,
                        int8_t *codes)
{
    const size_t bytes = dq_quant_row_bytes(w->cols, bits);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < n; r++) {
        int8_t *row = codes + r * w->cols;
        signed_codes(row, w, first + r);
        dq_quant_pack_row(out + (size_t)r * bytes, row, w->cols, bits);
    }
}

/* A word has the zero points of 8 or 4 rows of the weight, the first in its lowest bits. */
static void write_zeros(uint8_t *out, const dq_weight *w, int64_t first, int64_t n)
{
    const int64_t groups = dq_quant_groups(w->cols, w->group_size), per_word = 32 / w->bits;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) {
        for (int64_t g = 0; g < groups; g++) {
            uint32_t word = 0;
            for (int64_t k = 0, r = (first + i) * per_word; k < per_word && r < w->rows; k++, r++)
                word |= (uint32_t)dq_weight_zero(w, r, g) << k * w->bits;
            memcpy(out + 4 * (i * groups + g), &word, sizeof word);
        }
    }
}

/* u - zero or, beside a lowest value, u, in blocks of a type that holds them. */
static void write_block_row(uint8_t *out, int8_t *q, const dq_weight *w, const dq_block *b,
                            int64_t row)
{
    const bool low = b->number == DQ_GGML_Q4_1 || b->number == DQ_GGML_Q5_1;
    signed_codes(q, w, row);
    for (int64_t c = 0; c < w->cols; c += b->values, out += b->bytes, q += b->values) {
        const int64_t g = c / w->group_size;
        const float scale = dq_weight_scale(w, row, g);
        const int zero = low ? dq_weight_zero(w, row, g) : 0;
        for (int i = 0; low && i < b->values; i++) q[i] = (int8_t)(q[i] + zero);
        b->write(out, q, dq_f16_from_f32(scale), dq_f16_from_f32(0 - scale * (float)zero));
    }
}

static void write_blocks(uint8_t *out, const dq_weight *w, const dq_block *b,
                         const dq_export_slot *s, int64_t first, int64_t n, int8_t *codes)
{
    const size_t bytes = (size_t)(w->cols / b->values) * (size_t)b->bytes;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < n; r++)
        write_block_row(out + (size_t)r * bytes, codes + r * w->cols, w, b, row_of(s, first + r));
}

/* Rows first .. first + n - 1 (leading dimension; a scalar has one) of a slot that is no copy;
 * `values` has space for n rows of the weight. DQ_MISMATCH: the type cannot hold a value. */
static dq_status tensor_rows(uint8_t *out, float *values, const dq_export *x,
                             const dq_export_slot *s, int64_t first, int64_t n, dq_err *err)
{
    const dq_weight *w = &x->weight[s->row];
    const int scheme = x->row[s->row].scheme, bits = scheme < 0 ? 0 : x->scheme[scheme].bits;
    const int64_t shape[2] = {w->rows, w->cols};
    const size_t item = dq_dtypes[s->tensor.dtype].bytes;
    switch (s->kind) {
    case DQ_EXPORT_VALUES: return write_values(out, values, w, s, first, n, err);
    case DQ_EXPORT_CODES: write_codes(out, w, bits, first, n, (int8_t *)values); return DQ_OK;
    case DQ_EXPORT_BLOCKS:
        write_blocks(out, w, x->row[s->row].blocks->block, s, first, n, (int8_t *)values);
        return DQ_OK;
    case DQ_EXPORT_ZEROS: write_zeros(out, w, first, n); return DQ_OK;
    case DQ_EXPORT_SHAPE: memcpy(out, shape + first, (size_t)n * sizeof *shape); return DQ_OK;
    case DQ_EXPORT_SCALES:
        for (int64_t i = 0; i < n; i++) memcpy(out + (size_t)i * item, w->scale, item);
        return DQ_OK;
    default: return dq_fail(err, DQ_BUG, "%s: a copy has no rows to make", s->tensor.name);
    }
}

/* Weights pass in blocks of a few megabytes, whatever the container's size. */

const char *const dq_export_form_name[DQ_EXPORT_FORMS] = {
    [DQ_EXPORT_COMPRESSED_TENSORS] = "compressed-tensors",
    [DQ_EXPORT_SAFETENSORS] = "safetensors",
    [DQ_EXPORT_GGUF] = "gguf",
};
static const char settings_name[] = "dq_settings.json"; /* a folder that has it is an export */
static const char index_name[] = "model.safetensors.index.json";
static const char companions[] = "/tokenizer/";

static bool ends(const char *name, const char *with)
{
    const size_t n = strlen(name), k = strlen(with);
    return n >= k && strcmp(name + n - k, with) == 0;
}

/* Files that accompany weights byte for byte. */
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

static bool of_export(const char *name)
{
    return strcmp(name, "config.json") == 0 || strcmp(name, settings_name) == 0 ||
           strcmp(name, index_name) == 0 || of_tokenizer(name) ||
           (strncmp(name, "model", 5) == 0 && ends(name, ".safetensors"));
}

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
    const dq_export_row *own = head_row(x); /* whose codes are tied to nothing */
    const char *value = NULL;
    size_t n;
    text = dq_container_config(x->model->container, &len);
    DQ_TRY(set(&text, &len, x, "transformers_weights", NULL, err)); /* of the source */
    if (!x->model->tied || (own && own->scheme >= 0))
        DQ_TRY(set(&text, &len, x, "tie_word_embeddings", "false", err));
    if (x->set.form == DQ_EXPORT_SAFETENSORS) {
        /* The type of the weights, under the source's names for it. */
        static const char *const keys[] = {"dtype", "torch_dtype"};
        const char *type = x->set.dtype == DQ_F32   ? "\"float32\""
                           : x->set.dtype == DQ_F16 ? "\"float16\""
                                                    : "\"bfloat16\"";
        json_t *config = NULL;
        DQ_TRY(dq_json_parse_config(&config, text, len, "config.json", err));
        for (size_t i = 0; i < sizeof keys / sizeof *keys && err->code == DQ_OK; i++) {
            if (json_object_get(config, keys[i])) set(&text, &len, x, keys[i], type, err);
        }
        json_decref(config);
        if (err->code != DQ_OK) return err->code;
    } else {
        DQ_TRY(dump(&value, &n, x, quantization_json(x), false, err));
    }
    DQ_TRY(set(&text, &len, x, "quantization_config", value, err));
    add_text(x, "config.json", text, len);
    DQ_TRY(config_settings(&text, &len, x, err));
    add_text(x, settings_name, text, len);
    for (int64_t i = 0; i < c->n_payloads; i++) {
        const char *path = c->payload[i].path, *name = path + sizeof companions - 1;
        if (strncmp(path, companions, sizeof companions - 1) != 0) continue;
        if (!of_tokenizer(name))
            return dq_fail(err, DQ_DAMAGED, "%s: %s: is not the name of a tokenizer's file",
                           x->model->path, path);
        DQ_TRY(dq_container_file(c, name, &text, &len, err)); /* compared with its hash */
        add_text(x, name, text, len);
    }
    if (x->n_shards == 1) return DQ_OK;
    DQ_TRY(config_index(&text, &len, x, err));
    add_text(x, index_name, text, len);
    return DQ_OK;
}

/* The shard has the slots from `first` on. */
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
    const char *name = shard_name(x, shard, err), *text = NULL;
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

static dq_status layout_files(dq_export *x, dq_err *err)
{
    enum { TEXTS = 3 };
    const size_t n = (size_t)(x->model->container->n_payloads + x->n_shards + TEXTS);
    int64_t first = 0;
    x->file = dq_alloc(x->arena, n, sizeof *x->file, err);
    x->content = dq_alloc(x->arena, n, sizeof *x->content, err);
    if (!x->file || !x->content) return err->code;
    if (is_gguf(x)) {
        const char *head;
        size_t len;
        DQ_TRY(gguf_head(&head, &len, x, err));
        add_text(x, "model.gguf", head, len);
        x->content[0].end = x->n_slots;
        for (int64_t i = 0; i < x->n_slots; i++)
            x->file[0].bytes += (int64_t)dq_gguf_write_stride(dq_tensor_bytes(&x->slot[i].tensor));
    } else {
        DQ_TRY(add_texts(x, err));
        for (int i = 0; i < x->n_shards; i++) DQ_TRY(add_shard(x, i, &first, err));
    }
    for (int i = 0; i < x->info.n_files; i++) x->info.bytes += x->file[i].bytes;
    return DQ_OK;
}

dq_status dq_export_open(dq_export **out, const dq_model *m, const dq_export_settings *s,
                         dq_err *err)
{
    dq_arena *arena;
    dq_export *x = dq_arena_object(&arena, sizeof *x, err);
    *out = NULL;
    if (!x) return err->code;
    x->arena = arena;
    x->model = m;
    x->set = *s;
    x->out.file.fd = -1;
    x->info.has_logit = m->logit.bits != dq_logit_plain.bits;
    x->info.has_kv = !dq_kv_config_same(&m->kv, &dq_kv_config_plain);
    if (layout_tensors(x, err) != DQ_OK || layout_files(x, err) != DQ_OK) {
        dq_export_close(x);
        return err->code;
    }
    *out = x;
    return DQ_OK;
}

void dq_export_close(dq_export *x)
{
    if (!x) return;
    dq_out_drop(&x->out);
    dq_arena_free(x->arena);
}

const dq_export_row *dq_export_row_at(const dq_export *x, int64_t i)
{
    return &x->row[x->order[i]];
}

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
    DQ_TRY(dq_out_check(&x->out, path, settings_name, is_gguf(x) ? NULL : of_export, force,
                        x->arena, err));
    if (!is_gguf(x)) return check_space(x, x->out.path, err);
    x->file[0].name = dq_textf(x->arena, err, "%s", slash ? slash + 1 : path);
    return x->file[0].name ? check_space(x, path, err) : err->code;
}

typedef struct work {
    dq_export *x;
    const dq_export_progress *progress;
    dq_sha256 hash;
    const char *what;
    double done;
    uint8_t *out;
    float *values;
} work;

/* A longer row is a block of its own. */
enum { BLOCK_BYTES = 4 << 20 };

static dq_status put(work *w, const void *p, size_t bytes, dq_err *err)
{
    dq_sha256_add(&w->hash, p, bytes);
    DQ_TRY(dq_out_put(&w->x->out, p, bytes, err));
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
        if (tensor_rows(w->out, w->values, w->x, s, r, n, err) == DQ_OK)
            put(w, w->out, (size_t)n * bytes, err);
        /* The pages of the weight's datasets are not needed again. */
        for (int i = 0; i < dq_weight_format_of(weight)->n_datasets; i++) {
            const dq_dataset p = dq_weight_dataset(weight, i);
            dq_os_map_release(p.data, dq_dataset_bytes(&p));
        }
    }
    dq_block_free(w->values);
    dq_block_free(w->out);
    return err->code;
}

static dq_status put_content(work *w, int i, dq_err *err)
{
    const dq_export_content *c = &w->x->content[i];
    w->what = w->x->file[i].name;
    DQ_TRY(dq_sha256_begin(&w->hash, err));
    DQ_TRY(put(w, c->text, c->len, err));
    for (int64_t k = c->first; k < c->end; k++) {
        const dq_export_slot *s = &w->x->slot[k];
        static const uint8_t zeros[DQ_GGUF_ALIGNMENT];
        const size_t bytes = dq_tensor_bytes(&s->tensor);
        w->what = s->tensor.name;
        DQ_TRY(s->kind == DQ_EXPORT_OWN    ? put(w, s->tensor.data, bytes, err)
               : s->kind == DQ_EXPORT_COPY ? put_copy(w, &s->tensor, err)
                                           : put_rows(w, s, err));
        if (is_gguf(w->x)) DQ_TRY(put(w, zeros, dq_gguf_write_stride(bytes) - bytes, err));
    }
    return dq_sha256_end(&w->hash, w->x->file[i].sha256, err);
}

dq_status dq_export_write(dq_export *x, const dq_export_progress *p, dq_err *err)
{
    work w = {.x = x, .progress = p};
    DQ_TRY(dq_model_check_weights(x->model, err));
    for (int i = 0; i < x->info.n_files && err->code == DQ_OK; i++) {
        if (dq_out_begin(&x->out, x->file[i].name, err) == DQ_OK &&
            put_content(&w, i, err) == DQ_OK)
            dq_out_end(&x->out, err);
        dq_sha256_drop(&w.hash);
    }
    return err->code == DQ_OK ? dq_os_maps_check(err) : err->code;
}

dq_status dq_export_commit(dq_export *x, dq_err *err)
{
    DQ_TRY(dq_os_check_stop(err));
    return dq_out_commit(&x->out, err);
}
