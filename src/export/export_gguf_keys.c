/* export_gguf_keys: sizes from the model, rotary scaling and texts from what the container keeps of its source. Divisors of
 * Llama 3 are computed in f64 from the parameters, as converters do.
 *
 * Source: ggml-org/ggml docs/gguf.md (keys); transformers modeling_rope_utils.py (llama3); llama.cpp src/llama-context.cpp
 * (what it makes of yarn).
 * SPDX-License-Identifier: MIT */
#include "export/export_gguf.h"

#include "checkpoint/gguf_tokenizer_write.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

#include <math.h>
#include <string.h>
#include <strings.h>

/* ---- Rotary parameters ---- */

/* Where they stand; what is not there counts as `config`. */
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

/* A parameter: beside the others, or on the top level, which wins where `top` says so. */
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

/* Frequencies of llama3 are theta^(-2i/d) over these. */
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

dq_status dq_export_gguf_divisors(const float **divisors, dq_export *x, dq_err *err)
{
    const int n = x->model->map.head_dim / 2;
    const json_t *rotary;
    const char *type;
    json_t *config = NULL;
    *divisors = NULL;
    DQ_TRY(parse_config(&config, x, err));
    if (parameters(&rotary, &type, config, err) == DQ_OK &&
        (strcmp(type, "llama3") == 0 || strcmp(type, "longrope") == 0)) {
        const json_t *list = json_object_get(rotary, "short_factor"); /* both are the same */
        float *d = dq_alloc(x->arena, (size_t)n, sizeof *d, err);
        for (int i = 0; d && i < n; i++)
            d[i] = (float)json_number_value(json_array_get(list, (size_t)i));
        if (d && strcmp(type, "llama3") == 0) llama3(d, n, x->model, rotary, config, err);
        if (err->code == DQ_OK) *divisors = d;
    }
    json_decref(config);
    return err->code;
}

/* What multiplies cosine and sine is not said in GGUF so that all its readers agree. */
static dq_status check_gain(const dq_model *m, const char *type, double usual, dq_err *err)
{
    const double gain = (double)m->rope.amplitude;
    if (fabs(gain - usual) <= 1e-6 * usual) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH,
                   "key \"attention_factor\" of %s: %g cannot be said in GGUF so that its readers "
                   "agree (expected %g)",
                   type, gain, usual);
}

/* Parameters of yarn that a reader of GGUF files takes as they usually are. */
static dq_status check_yarn(const json_t *r, dq_err *err)
{
    static const double usual[] = {32, 1};
    static const char *const keys[] = {"beta_fast", "beta_slow"};
    const json_t *whole = json_object_get(r, "truncate");
    for (int i = 0; i < 2; i++) {
        double x;
        DQ_TRY(dq_json_float(&x, r, keys[i], &usual[i], err));
        if (fabs(x - usual[i]) > 1e-6 * usual[i])
            return dq_fail(
                err, DQ_MISMATCH,
                "key \"%s\" of yarn: %g cannot be said in GGUF so that its readers agree "
                "(expected %g)",
                keys[i], x, usual[i]);
    }
    if (!whole || json_is_true(whole)) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH, "key \"truncate\" of yarn: false cannot be said in GGUF");
}

static dq_status write_rope(dq_gguf_fields *f, const dq_model *m, const json_t *config, dq_err *err)
{
    const json_t *r;
    const char *type;
    double theta, factor, original;
    DQ_TRY(parameters(&r, &type, config, err));
    DQ_TRY(base(&theta, r, config, err));
    dq_gguf_write_f32(f, "llama.rope.freq_base", (float)theta);
    if (strcmp(type, "default") == 0 || strcmp(type, "llama3") == 0) return DQ_OK;
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
    dq_gguf_write_text(f, "llama.rope.scaling.type", type, strlen(type));
    dq_gguf_write_f32(f, "llama.rope.scaling.factor", (float)factor);
    if (strcmp(type, "linear") == 0) return DQ_OK;
    dq_gguf_write_u32(f, "llama.rope.scaling.original_context_length", (uint32_t)original);
    DQ_TRY(check_gain(m, type, factor > 1 ? 0.1 * log(factor) + 1 : 1, err));
    return check_yarn(r, err);
}

/* ---- The model ---- */

/* Readers of GGUF files change tokens by these words in the name of a model. */
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

static void write_model(dq_gguf_fields *f, const dq_export *x, uint32_t file_type)
{
    const dq_model *m = x->model;
    const char *name = dq_container_header(m->container)->source;
    dq_gguf_write_text(f, "general.architecture", "llama", 5);
    dq_gguf_write_text(f, "general.type", "model", 5);
    if (!acts_on(name)) dq_gguf_write_text(f, "general.name", name, strlen(name));
    dq_gguf_write_u32(f, "general.alignment", DQ_GGUF_ALIGNMENT);
    dq_gguf_write_u32(f, "general.quantization_version", 2);
    dq_gguf_write_u32(f, "general.file_type", file_type);
    dq_gguf_write_u32(f, "llama.vocab_size", (uint32_t)m->vocab);
    dq_gguf_write_u32(f, "llama.context_length", (uint32_t)m->max_positions);
    dq_gguf_write_u32(f, "llama.embedding_length", (uint32_t)m->dim);
    dq_gguf_write_u32(f, "llama.block_count", (uint32_t)m->n_layers);
    dq_gguf_write_u32(f, "llama.feed_forward_length", (uint32_t)m->ffn);
    dq_gguf_write_u32(f, "llama.attention.head_count", (uint32_t)m->map.n_q);
    dq_gguf_write_u32(f, "llama.attention.head_count_kv", (uint32_t)m->map.n_kv);
    dq_gguf_write_u32(f, "llama.attention.key_length", (uint32_t)m->map.head_dim);
    dq_gguf_write_u32(f, "llama.attention.value_length", (uint32_t)m->map.head_dim);
    dq_gguf_write_f32(f, "llama.attention.layer_norm_rms_epsilon", m->norm_eps);
    dq_gguf_write_u32(f, "llama.rope.dimension_count", (uint32_t)m->map.head_dim);
}

/* ---- The tokenizer ---- */

static dq_status parse_text(json_t **out, const dq_tokenizer_text *t, const char *name, dq_err *err)
{
    *out = NULL;
    return t->s ? dq_json_parse_config(out, t->s, t->len, name, err) : DQ_OK;
}

/* What dq itself does not read is not written either; added tokens are written as it has them. */
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

dq_status dq_export_gguf_keys(dq_gguf_fields *f, dq_export *x, uint32_t file_type, dq_err *err)
{
    json_t *config = NULL;
    DQ_TRY(parse_config(&config, x, err));
    write_model(f, x, file_type);
    if (write_rope(f, x->model, config, err) == DQ_OK) write_tokenizer(f, x, config, err);
    json_decref(config);
    return err->code == DQ_OK ? DQ_OK : dq_in(err, "%s: ", x->model->path);
}
