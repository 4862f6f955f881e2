/* gguf_config: config.json out of the keys `llama.*`. Rotary scaling of Llama 3 stands in a GGUF file as a tensor of one
 * divisor a frequency; its parameters are found again by computing the divisors from those that published models have.
 *
 * Source: ggml-org/ggml docs/gguf.md (keys); transformers modeling_rope_utils.py (llama3).
 * SPDX-License-Identifier: MIT */
#include "checkpoint/gguf_config.h"

#include <math.h>
#include <string.h>

static const char arch[] = "llama";

/* ---- Rotary parameters ---- */

/* Whether these are the divisors of llama3 with `factor`, 1, 4 and 8192 positions, as f32. */
static bool is_llama3(const float *divisor, int64_t n, double theta, double factor)
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
        if (fabs((double)divisor[i] - want) > 1e-5 * want) return false;
    }
    return true;
}

static dq_status rope_of_divisors(json_t **out, const dq_gguf_tensor *t, double theta, dq_err *err)
{
    float divisor[512], most = 0;
    const int64_t n = t->shape[0];
    if (t->n_dims == 1 && t->type == 0 && n <= 512) {
        memcpy(divisor, t->data, (size_t)n * sizeof *divisor);
        for (int64_t i = 0; i < n; i++) most = divisor[i] > most ? divisor[i] : most;
        if (is_llama3(divisor, n, theta, (double)most)) {
            *out = json_pack("{s:s, s:f, s:f, s:f, s:i}", "rope_type", "llama3", "factor",
                             (double)most, "low_freq_factor", 1.0, "high_freq_factor", 4.0,
                             "original_max_position_embeddings", 8192);
            return DQ_OK;
        }
    }
    return dq_fail(err, DQ_MISMATCH,
                   "tensor \"%s\": divisors of rotary frequencies that are not those of llama3 are "
                   "not supported",
                   t->name);
}

static dq_status rope_of_keys(json_t **out, const json_t *f, int64_t positions, dq_err *err)
{
    static const char *const none = "none";
    const double one = 1;
    const char *type;
    double linear, factor;
    int64_t original;
    DQ_TRY(dq_json_text(&type, f, "llama.rope.scaling.type", &none, err));
    DQ_TRY(dq_json_float(&linear, f, "llama.rope.scale_linear", &one, err));
    DQ_TRY(dq_json_float(&factor, f, "llama.rope.scaling.factor", &linear, err));
    DQ_TRY(dq_json_int(&original, f, "llama.rope.scaling.original_context_length", 1, 1 << 30,
                       &positions, err));
    const bool is_linear =
        strcmp(type, "linear") == 0 || (strcmp(type, "none") == 0 && factor > one);
    if (is_linear)
        *out = json_pack("{s:s, s:f}", "rope_type", "linear", "factor", factor);
    else if (strcmp(type, "yarn") == 0)
        *out = json_pack("{s:s, s:f, s:I}", "rope_type", "yarn", "factor", factor,
                         "original_max_position_embeddings", (json_int_t)original);
    else if (strcmp(type, "none") != 0)
        return dq_fail(err, DQ_MISMATCH,
                       "key \"llama.rope.scaling.type\": \"%s\" is not supported (expected none, "
                       "linear or yarn)",
                       type);
    return DQ_OK;
}

static dq_status set_rope(json_t *config, const dq_gguf *g, int64_t head_dim, int64_t positions,
                          dq_err *err)
{
    const double usual = 10000;
    const dq_gguf_tensor *divisors = dq_gguf_find(g, "rope_freqs.weight");
    json_t *scaling = NULL;
    double theta;
    int64_t turned;
    DQ_TRY(dq_json_float(&theta, g->fields, "llama.rope.freq_base", &usual, err));
    DQ_TRY(
        dq_json_int(&turned, g->fields, "llama.rope.dimension_count", 1, 1 << 16, &head_dim, err));
    if (turned != head_dim)
        return dq_fail(err, DQ_MISMATCH,
                       "key \"llama.rope.dimension_count\": %lld of %lld elements of a head are "
                       "rotated; only all are "
                       "supported",
                       (long long)turned, (long long)head_dim);
    json_object_set_new(config, "rope_theta", json_real(theta));
    if (divisors)
        DQ_TRY(rope_of_divisors(&scaling, divisors, theta, err));
    else
        DQ_TRY(rope_of_keys(&scaling, g->fields, positions, err));
    if (scaling) json_object_set_new(config, "rope_scaling", scaling);
    return DQ_OK;
}

/* ---- The rest ---- */

static dq_status check_arch(const json_t *f, dq_err *err)
{
    static const int64_t none = 0;
    const char *name;
    int64_t experts;
    DQ_TRY(dq_json_text(&name, f, "general.architecture", NULL, err));
    if (strcmp(name, arch) != 0)
        return dq_fail(err, DQ_MISMATCH,
                       "architecture \"%s\" is not read from GGUF files (read is \"%s\"). Use the "
                       "model's folder with "
                       "config.json and safetensors.",
                       name, arch);
    DQ_TRY(dq_json_int(&experts, f, "llama.expert_count", 0, 1 << 20, &none, err));
    if (experts)
        return dq_fail(err, DQ_MISMATCH,
                       "key \"llama.expert_count\": models of %lld experts are not supported",
                       (long long)experts);
    return DQ_OK;
}

/* An integer key of the file under its name in config.json. */
static dq_status copy_int(json_t *config, const char *name, const json_t *f, const char *key,
                          const int64_t *fallback, int64_t *out, dq_err *err)
{
    DQ_TRY(dq_json_int(out, f, key, 1, 1 << 30, fallback, err));
    json_object_set_new(config, name, json_integer(*out));
    return DQ_OK;
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
    const json_t *f = g->fields;
    int64_t dim, ffn, layers, positions, head_dim;
    double eps;
    DQ_TRY(check_arch(f, err));
    json_object_set_new(config, "architectures", json_pack("[s]", "LlamaForCausalLM"));
    json_object_set_new(config, "model_type", json_string(arch));
    json_object_set_new(config, "hidden_act", json_string("silu"));
    DQ_TRY(copy_int(config, "hidden_size", f, "llama.embedding_length", NULL, &dim, err));
    DQ_TRY(copy_int(config, "intermediate_size", f, "llama.feed_forward_length", NULL, &ffn, err));
    DQ_TRY(copy_int(config, "num_hidden_layers", f, "llama.block_count", NULL, &layers, err));
    DQ_TRY(copy_int(config, "max_position_embeddings", f, "llama.context_length", NULL, &positions,
                    err));
    DQ_TRY(
        copy_int(config, "num_attention_heads", f, "llama.attention.head_count", NULL, heads, err));
    DQ_TRY(copy_int(config, "num_key_value_heads", f, "llama.attention.head_count_kv", heads,
                    kv_heads, err));
    const int64_t usual = dim / *heads > 0 ? dim / *heads : 1;
    DQ_TRY(copy_int(config, "head_dim", f, "llama.attention.key_length", &usual, &head_dim, err));
    DQ_TRY(dq_json_float(&eps, f, "llama.attention.layer_norm_rms_epsilon", NULL, err));
    json_object_set_new(config, "rms_norm_eps", json_real(eps));
    set_flag(config, "tie_word_embeddings", !dq_gguf_find(g, "output.weight"));
    set_flag(config, "attention_bias", dq_gguf_find(g, "blk.0.attn_q.bias") != NULL);
    set_flag(config, "mlp_bias", dq_gguf_find(g, "blk.0.ffn_gate.bias") != NULL);
    DQ_TRY(set_vocab(config, g, err));
    DQ_TRY(set_ids(config, f, err));
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
