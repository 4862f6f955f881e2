/* gguf_config: config.json out of the keys `llama.*`. Rotary scaling of Llama 3 stands in a GGUF file as a tensor of one
 * divisor a frequency; its parameters are found again by computing the divisors from those that published models have.
 *
 * Source: ggml-org/ggml docs/gguf.md (keys); llama.cpp src/llama-arch.cpp (all keys), src/llama-model.cpp and
 * src/llama-context.cpp (defaults, scaling); transformers modeling_rope_utils.py (llama3).
 * SPDX-License-Identifier: MIT */
#include "checkpoint/gguf_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char arch[] = "llama";
enum { MOST_HEAD_DIM = 1 << 16 };

/* ---- Rotary parameters ---- */

static float divisor_at(const dq_gguf_tensor *t, int64_t i)
{
    float x;
    memcpy(&x, t->data + (size_t)i * sizeof x, sizeof x);
    return x;
}

/* Whether these are the divisors of llama3 with `factor`, 1, 4 and 8192 positions, as f32. */
static bool is_llama3(const dq_gguf_tensor *t, int64_t n, double theta, double factor)
{
    static const double two_pi = 6.283185307179586476925, low = 1, high = 4, original = 8192;
    for (int64_t i = 0; i < n; i++) {
        const double length = two_pi * pow(theta, (double)i / (double)n);
        const double keep = (original / length - low) / (high - low);
        double want = 1;
        if (length > original / low)
            want = factor;
        else if (length > original / high)
            want = 1 / ((1 - keep) / factor + keep);
        if (fabs((double)divisor_at(t, i) - want) > 1e-5 * want) return false;
    }
    return true;
}

static dq_status check_divisors(const dq_gguf_tensor *t, int64_t n, dq_err *err)
{
    if (t->n_dims != 1 || t->type != DQ_GGML_F32 || t->shape[0] != n)
        return dq_fail(err, DQ_DAMAGED,
                       "tensor \"%s\": expected %lld divisors in F32, found %lld in %s", t->name,
                       (long long)n, (long long)t->shape[0], dq_gguf_type_name(t->type));
    for (int64_t i = 0; i < n; i++) {
        const float x = divisor_at(t, i);
        if (!isfinite(x) || !(x > 0))
            return dq_fail(err, DQ_DAMAGED,
                           "tensor \"%s\": divisor %lld is not a finite number above 0", t->name,
                           (long long)i);
    }
    return DQ_OK;
}

/* What the keys say of scaling. */
typedef struct scaling {
    bool yarn;
    double factor,
        gain; /* frequencies are divided by the first, cosine and sine multiplied by the second; 1: not */
    int64_t original; /* positions */
} scaling;

static bool is_one(double x)
{
    return !(x < 1 || x > 1);
}

/* A number above 0; `usual` where the file does not say. */
static dq_status positive(double *out, const json_t *f, const char *key, double usual, dq_err *err)
{
    DQ_TRY(dq_json_float(out, f, key, &usual, err));
    if (*out > 0) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected more than 0, found %g", key, *out);
}

/* A type that is missing is linear, a factor of 0 is none, and without scaling there is no factor. */
static dq_status read_scaling(scaling *s, const json_t *f, int64_t positions, dq_err *err)
{
    static const char *const usual = "linear";
    static const double none = 0;
    const char *type;
    DQ_TRY(dq_gguf_text(&type, f, "llama.rope.scaling.type", &usual, err));
    s->yarn = strcmp(type, "yarn") == 0;
    if (!s->yarn && strcmp(type, "linear") != 0 && strcmp(type, "none") != 0)
        return dq_fail(err, DQ_MISMATCH,
                       "key \"llama.rope.scaling.type\": \"%s\" is not supported (expected none, "
                       "linear or yarn)",
                       type);
    DQ_TRY(dq_json_float(&s->factor, f, "llama.rope.scale_linear", &none, err));
    DQ_TRY(dq_json_float(&s->factor, f, "llama.rope.scaling.factor", &s->factor, err));
    if (s->factor < 0)
        return dq_fail(err, DQ_DAMAGED,
                       "key \"llama.rope.scaling.factor\": expected at least 0, found %g",
                       s->factor);
    if (!(s->factor > 0) || strcmp(type, "none") == 0) s->factor = 1;
    DQ_TRY(positive(&s->gain, f, "llama.rope.scaling.attn_factor", 1, err));
    DQ_TRY(dq_json_int(&s->original, f, "llama.rope.scaling.original_context_length", 0, 1 << 30,
                       &positions, err));
    if (s->original == 0) s->original = positions;
    return DQ_OK;
}

/* The gain of yarn is its own, by its factor, times the file's; alone it stands as a yarn of factor 1. */
static json_t *yarn_json(const scaling *s)
{
    const double own = s->factor > 1 ? 1 + 0.1 * log(s->factor) : 1;
    json_t *rope = json_pack("{s:s, s:f, s:I}", "rope_type", "yarn", "factor", s->factor,
                             "original_max_position_embeddings", (json_int_t)s->original);
    if (!is_one(s->gain)) json_object_set_new(rope, "attention_factor", json_real(own * s->gain));
    return rope;
}

/* A divisor for each frequency, which holds for texts of any length: the file's, if there are any, times the factor. */
static json_t *divisors_json(const scaling *s, const dq_gguf_tensor *t, int64_t n)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++)
        json_array_append_new(list, json_real(s->factor * (t ? (double)divisor_at(t, i) : 1)));
    return json_pack("{s:s, s:O, s:o, s:f, s:f, s:I}", "rope_type", "longrope", "short_factor",
                     list, "long_factor", list, "factor", 1.0, "attention_factor", s->gain,
                     "original_max_position_embeddings", (json_int_t)s->original);
}

/* NULL: frequencies as they are. Each form is the narrowest that transformers has for it. */
static dq_status rope_json(json_t **out, const scaling *s, const dq_gguf_tensor *t, int64_t n,
                           double theta, dq_err *err)
{
    const bool yarn = s->yarn && !is_one(s->factor), plain = is_one(s->factor) && is_one(s->gain);
    float most = 0;
    if (t) DQ_TRY(check_divisors(t, n, err));
    for (int64_t i = 0; t && i < n; i++) most = fmaxf(most, divisor_at(t, i));
    if (t && yarn)
        return dq_fail(
            err, DQ_MISMATCH,
            "key \"llama.rope.scaling.factor\": %g of yarn beside the divisors of tensor "
            "\"%s\" is not supported (expected 1)",
            s->factor, t->name);
    if (t && plain && is_llama3(t, n, theta, (double)most))
        *out = json_pack("{s:s, s:f, s:f, s:f, s:i}", "rope_type", "llama3", "factor", (double)most,
                         "low_freq_factor", 1.0, "high_freq_factor", 4.0,
                         "original_max_position_embeddings", 8192);
    else if (t || (!yarn && !is_one(s->factor) && !is_one(s->gain)))
        *out = divisors_json(s, t, n);
    else if (yarn || !is_one(s->gain))
        *out = yarn_json(s);
    else if (!plain)
        *out = json_pack("{s:s, s:f}", "rope_type", "linear", "factor", s->factor);
    return DQ_OK;
}

static dq_status set_rope(json_t *config, const dq_gguf *g, int64_t head_dim, int64_t positions,
                          dq_err *err)
{
    const dq_gguf_tensor *divisors = dq_gguf_find(g, "rope_freqs.weight");
    json_t *rope = NULL;
    scaling s;
    double theta;
    int64_t turned;
    DQ_TRY(positive(&theta, g->fields, "llama.rope.freq_base", 10000, err));
    DQ_TRY(dq_json_int(&turned, g->fields, "llama.rope.dimension_count", 1, MOST_HEAD_DIM,
                       &head_dim, err));
    if (turned != head_dim)
        return dq_fail(err, DQ_MISMATCH,
                       "key \"llama.rope.dimension_count\": %lld of %lld elements of a head are "
                       "rotated; only all are "
                       "supported",
                       (long long)turned, (long long)head_dim);
    json_object_set_new(config, "rope_theta", json_real(theta));
    DQ_TRY(read_scaling(&s, g->fields, positions, err));
    DQ_TRY(rope_json(&rope, &s, divisors, head_dim / 2, theta, err));
    if (rope) json_object_set_new(config, "rope_scaling", rope);
    return DQ_OK;
}

/* ---- The rest ---- */

/* Files of GGUF form that are no language model, by a text of one of their keys. */
static const struct {
    const char *key, *text, *what; /* text NULL: whatever the key says */
} others[] = {
    {"general.type", "adapter", "an adapter (LoRA)"},
    {"adapter.type", NULL, "an adapter (LoRA)"},
    {"general.type", "imatrix", "an importance matrix (imatrix)"},
    {"general.type", "mmproj", "a projector of pictures or sound (mmproj)"},
    {"general.architecture", "clip", "a projector of pictures or sound (mmproj)"},
    {"general.architecture", "controlvector", "a control vector"},
    {"general.architecture", "llama-embed", "an encoder of texts"},
    {"general.architecture", "gemma-embedding", "an encoder of texts"},
    {"general.architecture", "t5encoder", "an encoder of texts"},
    {"general.architecture", "bert", "an encoder of texts"},
    {"general.architecture", "modern-bert", "an encoder of texts"},
    {"general.architecture", "nomic-bert", "an encoder of texts"},
    {"general.architecture", "nomic-bert-moe", "an encoder of texts"},
    {"general.architecture", "neo-bert", "an encoder of texts"},
    {"general.architecture", "jina-bert-v2", "an encoder of texts"},
    {"general.architecture", "jina-bert-v3", "an encoder of texts"},
    {"general.architecture", "eurobert", "an encoder of texts"},
};

dq_status dq_gguf_config_kind(const json_t *f, dq_err *err)
{
    static const char *const usual = "model";
    const char *name;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const char *text = json_string_value(json_object_get(f, others[i].key));
        if (text && (!others[i].text || strcmp(text, others[i].text) == 0))
            return dq_fail(err, DQ_MISMATCH,
                           "is no language model: it holds %s. Name the file of a model.",
                           others[i].what);
    }
    DQ_TRY(dq_gguf_text(&name, f, "general.type", &usual, err));
    if (strcmp(name, usual) != 0)
        return dq_fail(err, DQ_MISMATCH,
                       "key \"general.type\": \"%s\" is not read (expected \"model\")", name);
    DQ_TRY(dq_gguf_text(&name, f, "general.architecture", NULL, err));
    if (strcmp(name, arch) == 0) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH,
                   "architecture \"%s\" is not read from GGUF files (read is \"%s\", and no "
                   "folder of such a model would be either)",
                   name, arch);
}

/* Keys of llama.cpp that are not read, as they change nothing with the values that stand here; with others they change the
 * model in a way dq does not run. */
static const struct {
    const char *key;
    double fine[2];
} only[] = {
    {"expert_count", {0}},
    {"expert_used_count", {0}},
    {"expert_shared_count", {0}},
    {"expert_feed_forward_length", {0}},
    {"expert_shared_feed_forward_length", {0}},
    {"leading_dense_block_count", {0}},
    {"moe_every_n_layers", {0}},
    {"interleave_moe_layer_step", {0}},
    {"nextn_predict_layers", {0}},
    {"n_deepstack_layers", {0}},
    {"embedding_length_per_layer_input", {0}},
    {"decoder_block_count", {0}},
    {"full_attention_interval", {0}},
    {"hyper_connection.count", {0}},
    {"ssm.state_size", {0}},
    {"use_parallel_residual", {0}},
    {"swin_norm", {0}},
    {"rescale_every_n_layers", {0}},
    {"pooling_type", {0, -1}},
    {"logit_scale", {0, 1}},
    {"residual_scale", {0, 1}},
    {"embedding_scale", {0, 1}},
    {"attn_logit_softcapping", {0}},
    {"final_logit_softcapping", {0}},
    {"attention.causal", {1, 1}},
    {"attention.max_alibi_bias", {0}},
    {"attention.clamp_kqv", {0}},
    {"attention.output_scale", {0, 1}},
    {"attention.value_scale", {0, 1}},
    {"attention.temperature_length", {0}},
    {"attention.temperature_scale", {0}},
    {"attention.q_lora_rank", {0}},
    {"attention.kv_lora_rank", {0}},
    {"attention.key_length_mla", {0}},
    {"attention.value_length_mla", {0}},
    {"attention.shared_kv_layers", {0}},
    {"rope.dimension_sections", {0}},
    {"rope.scaling.alpha", {0}},
    {"rope.scaling.yarn_log_multiplier", {0}},
    {"rope.scaling.yarn_ext_factor", {1, -1}},
    {"rope.scaling.yarn_attn_factor", {1, 1}},
    {"rope.scaling.yarn_beta_fast", {32, 32}},
    {"rope.scaling.yarn_beta_slow", {1, 1}},
};

static bool near(double x, double y)
{
    return fabs(x - y) <= 1e-6 * fabs(y);
}

/* Whether a key is absent, or every number of it is a or b. */
static dq_status check_only(const dq_gguf *g, const char *name, double a, double b, dq_err *err)
{
    static const double none = 0;
    char key[64];
    double x = a;
    const dq_gguf_list *list;
    snprintf(key, sizeof key, "%s.%s", arch, name);
    const json_t *v = json_object_get(g->fields, key);
    DQ_TRY(dq_gguf_find_list(&list, g, key, err));
    if (!v || (list && list->texts)) return v ? dq_json_wrong(key, "numbers", v, err) : DQ_OK;
    if (json_is_boolean(v))
        x = json_is_true(v);
    else if (!list)
        DQ_TRY(dq_json_float(&x, g->fields, key, &none, err));
    for (size_t i = 0; list && i < list->n && (near(x, a) || near(x, b)); i++)
        x = dq_gguf_list_number(list, i);
    if (near(x, a) || near(x, b)) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH, "key \"%s\": %g is not supported (expected %g)", key, x, b);
}

static dq_status check_text(const json_t *f, const char *key, const char *a, const char *b,
                            dq_err *err)
{
    const char *text;
    DQ_TRY(dq_gguf_text(&text, f, key, &a, err));
    if (strcmp(text, a) == 0 || strcmp(text, b) == 0) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH, "key \"%s\": \"%s\" is not supported (expected \"%s\")", key,
                   text, a);
}

static dq_status check_keys(const dq_gguf *g, int64_t dim, int64_t head_dim, int64_t positions,
                            dq_err *err)
{
    static const double none = 0;
    double window;
    for (size_t i = 0; i < sizeof only / sizeof *only; i++)
        DQ_TRY(check_only(g, only[i].key, only[i].fine[0], only[i].fine[1], err));
    DQ_TRY(check_only(g, "attention.value_length", (double)head_dim, (double)head_dim, err));
    DQ_TRY(check_only(g, "attention.scale", 0, 1 / sqrt((double)head_dim), err));
    DQ_TRY(check_only(g, "embedding_length_out", 0, (double)dim, err));
    DQ_TRY(dq_json_float(&window, g->fields, "llama.attention.sliding_window", &none, err));
    if (window < (double)positions) DQ_TRY(check_only(g, "attention.sliding_window", 0, 0, err));
    DQ_TRY(check_text(g->fields, "llama.tensor_data_layout", "reference", "Meta AI original pth",
                      err));
    return check_text(g->fields, "llama.hidden_activation", "silu", "swish", err);
}

/* An integer key of the file, or a list that says the same for every layer, under its name in config.json. */
static dq_status copy_int(json_t *config, const char *name, const dq_gguf *g, const char *key,
                          const int64_t *fallback, int64_t *out, dq_err *err)
{
    const dq_gguf_list *list;
    const json_t *one = g->fields;
    json_t *same = NULL;
    DQ_TRY(dq_gguf_find_list(&list, g, key, err));
    if (list && !list->texts && list->n) {
        const double first = dq_gguf_list_number(list, 0);
        for (size_t i = 1; i < list->n; i++) {
            const double x = dq_gguf_list_number(list, i);
            if (x < first || x > first)
                return dq_fail(err, DQ_MISMATCH,
                               "key \"%s\": numbers that differ by layer are not supported", key);
        }
        one = same = json_pack("{s:f}", key, first);
    }
    if (dq_json_int(out, one, key, 1, 1 << 30, fallback, err) == DQ_OK)
        json_object_set_new(config, name, json_integer(*out));
    json_decref(same);
    return err->code;
}

/* Of any layer: each bias is there or not for itself, and what is not there is zero (gguf_model.c). */
static bool has_bias(const dq_gguf *g, const char *part)
{
    for (int64_t i = 0; i < g->n_tensors; i++) {
        const char *name = g->tensor[i].name, *end = strrchr(name, '.');
        if (end && strcmp(end, ".bias") == 0 && strstr(name, part)) return true;
    }
    return false;
}

static void set_flag(json_t *config, const char *name, bool value)
{
    json_object_set_new(config, name, json_boolean(value));
}

/* Rows of the embedding: what the vocabulary has, which may be more than the tokens that are named. */
static dq_status set_vocab(json_t *config, const dq_gguf *g, dq_err *err)
{
    const dq_gguf_tensor *embed = dq_gguf_find(g, "token_embd.weight");
    if (!embed || embed->n_dims != 2)
        return dq_fail(err, DQ_DAMAGED, "tensor \"token_embd.weight\" is missing");
    json_object_set_new(config, "vocab_size", json_integer(embed->shape[0]));
    return DQ_OK;
}

static dq_status set_ids(json_t *config, const json_t *f, dq_err *err)
{
    static const char *const names[][2] = {{"bos_token_id", "tokenizer.ggml.bos_token_id"},
                                           {"eos_token_id", "tokenizer.ggml.eos_token_id"}};
    static const int64_t none = -1;
    for (int i = 0; i < 2; i++) {
        int64_t id;
        DQ_TRY(dq_json_int(&id, f, names[i][1], 0, INT32_MAX, &none, err));
        if (id >= 0) json_object_set_new(config, names[i][0], json_integer(id));
    }
    return DQ_OK;
}

static dq_status fill(json_t *config, int64_t *heads, int64_t *kv_heads, const dq_gguf *g,
                      dq_err *err)
{
    int64_t dim, ffn, layers, positions, head_dim;
    double eps;
    if (g->n_tensors == 0)
        return dq_fail(err, DQ_MISMATCH,
                       "is no language model: it holds a vocabulary and no tensors. Name the file "
                       "of a model.");
    json_object_set_new(config, "architectures", json_pack("[s]", "LlamaForCausalLM"));
    json_object_set_new(config, "model_type", json_string(arch));
    json_object_set_new(config, "hidden_act", json_string("silu"));
    DQ_TRY(copy_int(config, "hidden_size", g, "llama.embedding_length", NULL, &dim, err));
    DQ_TRY(copy_int(config, "intermediate_size", g, "llama.feed_forward_length", NULL, &ffn, err));
    DQ_TRY(copy_int(config, "num_hidden_layers", g, "llama.block_count", NULL, &layers, err));
    DQ_TRY(copy_int(config, "max_position_embeddings", g, "llama.context_length", NULL, &positions,
                    err));
    DQ_TRY(
        copy_int(config, "num_attention_heads", g, "llama.attention.head_count", NULL, heads, err));
    DQ_TRY(copy_int(config, "num_key_value_heads", g, "llama.attention.head_count_kv", heads,
                    kv_heads, err));
    const int64_t usual = dim / *heads > 0 ? dim / *heads : 1;
    DQ_TRY(copy_int(config, "head_dim", g, "llama.attention.key_length", &usual, &head_dim, err));
    if (head_dim > MOST_HEAD_DIM)
        return dq_fail(err, DQ_DAMAGED,
                       "key \"llama.attention.key_length\": expected at most %d, found %lld",
                       MOST_HEAD_DIM, (long long)head_dim);
    DQ_TRY(dq_json_float(&eps, g->fields, "llama.attention.layer_norm_rms_epsilon", NULL, err));
    json_object_set_new(config, "rms_norm_eps", json_real(eps));
    set_flag(config, "tie_word_embeddings", !dq_gguf_find(g, "output.weight"));
    set_flag(config, "attention_bias", has_bias(g, ".attn_"));
    set_flag(config, "mlp_bias", has_bias(g, ".ffn_"));
    DQ_TRY(set_vocab(config, g, err));
    DQ_TRY(set_ids(config, g->fields, err));
    DQ_TRY(check_keys(g, dim, head_dim, positions, err));
    return set_rope(config, g, head_dim, positions, err);
}

dq_status dq_gguf_config(json_t **out, int64_t *heads, int64_t *kv_heads, const dq_gguf *g,
                         dq_err *err)
{
    *out = json_object();
    if (fill(*out, heads, kv_heads, g, err) == DQ_OK) return DQ_OK;
    json_decref(*out);
    *out = NULL;
    return err->code;
}
