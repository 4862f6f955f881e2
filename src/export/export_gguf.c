/* Sizes from the model, rotary scaling and texts from what the container keeps of its source.
 * Divisors of Llama 3 are computed in f64 from the parameters, as converters do.
 *
 * Source: ggml-org/ggml docs/gguf.md (keys); transformers modeling_rope_utils.py (llama3);
 * llama.cpp src/llama-context.cpp (what it makes of yarn).
 * SPDX-License-Identifier: MIT */
#include "base/text.h"
#include "checkpoint/gguf.h"
#include "export/export.h"
#include "model/model.h"
#include "tensor/tensor.h"
#include "tokenizer/tokenizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

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
    /* GGUF readers assume these parameters of yarn. */
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
    if (write_rope(f, x->model, config, err) == DQ_OK) write_tokenizer(f, x, config, err);
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

static dq_status no_type(dq_export *x, const dq_weight *w, const char *why, dq_remedy remedy,
                         dq_err *err)
{
    return dq_fail_with(err, DQ_MISMATCH, remedy, "%s: %s: %s, and no type of ggml holds them",
                        x->model->path, w->name, why);
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

dq_status dq_export_gguf_check(dq_export *x, dq_err *err)
{
    const dq_model *m = x->model;
    if (strcmp(m->architecture->name, "llama") != 0)
        return dq_fail_with(
            err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_EXPORT_VALUES},
            "%s: architecture %s (%s): llama.cpp has no such graph, so GGUF is for plain "
            "Llamas only.",
            m->path, m->architecture->name, m->architecture->about);
    return dq_model_check_weights(m, err);
}

static bool is_named(const dq_weight *w, const char *name)
{
    return w->name && strcmp(w->name, name) == 0;
}

static dq_tensor vector(const dq_weight *w)
{
    return (dq_tensor){.dtype = DQ_F32, .n_dims = 1, .shape = {w->rows}};
}

static dq_tensor matrix(const dq_weight *w, dq_dtype type, int64_t cols)
{
    return (dq_tensor){.dtype = type, .n_dims = 2, .shape = {w->rows, cols}};
}

/* A row's values become codes in blocks, or a plain type. */
static dq_status plan_values(dq_export_slot *s, dq_export *x, int64_t row, dq_err *err)
{
    const dq_weight *w = &x->weight[row];
    dq_export_row *r = &x->row[row];
    dq_remedy remedy = dq_remedy_none;
    s->kind = DQ_EXPORT_VALUES;
    r->dtype = w->dtype;
    s->tensor = w->cols == 1 ? vector(w) : matrix(w, w->dtype, w->cols);
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
        s->tensor = matrix(w, DQ_U8, w->cols / b->values * b->bytes);
        x->info.n_packed++;
        x->info.n_widened += b->bits != w->bits;
        return DQ_OK;
    }
    if (!x->set.values) return no_type(x, w, r->why, remedy, err);
    s->tensor = matrix(w, x->set.dtype, w->cols);
    x->info.n_decoded++;
    return DQ_OK;
}

dq_status dq_export_gguf_tensor(dq_export *x, int64_t row, dq_err *err)
{
    static const char head[] = "lm_head.weight", embed[] = "model.embed_tokens.weight";
    const dq_model *m = x->model;
    const dq_weight *w = &x->weight[row];
    const char *hf = w->name;
    bool pairs;
    dq_export_slot *s = &x->slot[x->n_slots];
    *s = (dq_export_slot){.row = row};
    if (m->tied && strcmp(hf, head) == 0) {
        if (!is_named(&m->embed, head)) return DQ_OK;
        hf = embed; /* only the head is stored */
    }
    const char *name = dq_gguf_name_of(&pairs, hf, x->arena, err);
    if (err->code != DQ_OK) return err->code;
    if (!name)
        return dq_fail(err, DQ_MISMATCH, "%s: %s: no Llama of GGUF has such a tensor", m->path,
                       w->name);
    DQ_TRY(plan_values(s, x, row, err));
    s->tensor.name = name;
    s->pair_rows = pairs ? m->map.head_dim : 0;
    x->row[row].bytes = (int64_t)dq_tensor_bytes(&s->tensor);
    x->n_slots++;
    return DQ_OK;
}

static int by_name(const void *a, const void *b)
{
    const dq_export_slot *x = a, *y = b;
    return dq_name_order_compare(x->tensor.name, y->tensor.name);
}

dq_status dq_export_gguf_more(dq_export *x, dq_err *err)
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
    qsort(x->slot, (size_t)x->n_slots, sizeof *x->slot, by_name);
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

dq_status dq_export_gguf_head(const char **out, size_t *len, dq_export *x, dq_err *err)
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
