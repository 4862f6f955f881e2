/* layouts: the table of checkpoint families that dq runs, and the list of those it knows but
 * refuses. See layouts.h.
 * SPDX-License-Identifier: MIT */
#include "layouts.h"

#include <string.h>
#include <strings.h>

/* Names that Llama gave to the parts every family here has. */
#define LLAMA_NAMES                                                                                \
    [DQ_ROLE_EMBED] = "model.embed_tokens.weight", [DQ_ROLE_NORM_OUT] = "model.norm.weight",       \
    [DQ_ROLE_HEAD] = "lm_head.weight",                                                             \
    [DQ_ROLE_NORM_ATTN] = "model.layers.%d.input_layernorm.weight",                                \
    [DQ_ROLE_Q] = "model.layers.%d.self_attn.q_proj.weight",                                       \
    [DQ_ROLE_K] = "model.layers.%d.self_attn.k_proj.weight",                                       \
    [DQ_ROLE_V] = "model.layers.%d.self_attn.v_proj.weight",                                       \
    [DQ_ROLE_O] = "model.layers.%d.self_attn.o_proj.weight",                                       \
    [DQ_ROLE_Q_BIAS] = "model.layers.%d.self_attn.q_proj.bias",                                    \
    [DQ_ROLE_K_BIAS] = "model.layers.%d.self_attn.k_proj.bias",                                    \
    [DQ_ROLE_V_BIAS] = "model.layers.%d.self_attn.v_proj.bias",                                    \
    [DQ_ROLE_O_BIAS] = "model.layers.%d.self_attn.o_proj.bias",                                    \
    [DQ_ROLE_NORM_FFN] = "model.layers.%d.post_attention_layernorm.weight",                        \
    [DQ_ROLE_GATE] = "model.layers.%d.mlp.gate_proj.weight",                                       \
    [DQ_ROLE_UP] = "model.layers.%d.mlp.up_proj.weight",                                           \
    [DQ_ROLE_DOWN] = "model.layers.%d.mlp.down_proj.weight"

#define MLP_BIAS_NAMES                                                                             \
    [DQ_ROLE_GATE_BIAS] = "model.layers.%d.mlp.gate_proj.bias",                                    \
    [DQ_ROLE_UP_BIAS] = "model.layers.%d.mlp.up_proj.bias",                                        \
    [DQ_ROLE_DOWN_BIAS] = "model.layers.%d.mlp.down_proj.bias"

#define LAMBDA_NAMES                                                                               \
    [DQ_ROLE_LAMBDA_Q1] = "model.layers.%d.self_attn.lambda_q1",                                   \
    [DQ_ROLE_LAMBDA_K1] = "model.layers.%d.self_attn.lambda_k1",                                   \
    [DQ_ROLE_LAMBDA_Q2] = "model.layers.%d.self_attn.lambda_q2",                                   \
    [DQ_ROLE_LAMBDA_K2] = "model.layers.%d.self_attn.lambda_k2"

/* The first row that matches either the model type or the architecture is taken. */
static const dq_layout layouts[] = {
    {
        .family = "diffllama",
        .architecture = "DiffLlamaForCausalLM",
        .pairing = DQ_PAIR_HALVES,
        .lambda = DQ_LAMBDA_LAYER,
        .depth_shift = 0.0,
        .rope = DQ_ROPE_HALVES,
        .act = DQ_ACT_SILU,
        .head_norm = true,
        .head_eps_key = "rms_norm_eps",
        .mlp_bias = false,
        .default_norm_eps = 1e-5,
        .name = {LLAMA_NAMES, LAMBDA_NAMES},
    },
    {
        .family = "llama",
        .architecture = "LlamaForCausalLM",
        .pairing = DQ_PAIR_NONE,
        .lambda = DQ_LAMBDA_NONE,
        .rope = DQ_ROPE_HALVES,
        .act = DQ_ACT_SILU,
        .mlp_bias = true,
        .default_norm_eps = 1e-6,
        .name = {LLAMA_NAMES, MLP_BIAS_NAMES},
    },
};

/* Families that are recognised so that the refusal can say why. */
static const struct refusal {
    const char *family, *architecture, *reason;
} refusals[] = {
    {"motif", "MotifForCausalLM", "Motif checkpoints are not supported yet"},
    {"diff_transformer", NULL, "the layouts of Microsoft's Diff Transformer are not supported yet"},
    {"diff_llama", NULL,
     "it subtracts logits of neighbouring keys without a causal mask, which is not differential "
     "attention"},
    {"phi4flash", "Phi4FlashForCausalLM", "its Mamba layers are not supported"},
    {"dragon", "DragonForCausalLM", "its Mamba and mixture layers are not supported"},
};

/* Text of a member, NULL when absent or null. */
static dq_status optional_text(const char **out, const json_t *object, const char *key, dq_err *err)
{
    const char *none = NULL;
    return dq_json_text(out, object, key, &none, err);
}

static dq_status read_architecture(const char **out, const json_t *config, dq_err *err)
{
    const json_t *list = json_object_get(config, "architectures");
    *out = NULL;
    if (!list || json_is_null(list) || (json_is_array(list) && json_array_size(list) == 0))
        return DQ_OK;
    *out = json_string_value(json_array_get(list, 0));
    if (!*out) return dq_fail(err, DQ_DAMAGED, "key \"architectures\": expected a list of names");
    return DQ_OK;
}

static bool same_family(const char *model_type, const char *architecture, const char *family,
                        const char *family_architecture)
{
    if (model_type && strcasecmp(model_type, family) == 0) return true;
    return architecture && family_architecture && strcmp(architecture, family_architecture) == 0;
}

/* Weights that another tool has already packed in its own way. */
static dq_status refuse_packed(const json_t *config, dq_err *err)
{
    static const char *const keys[] = {"quantization_config", "quantization"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *v = json_object_get(config, keys[i]);
        if (v && !json_is_null(v))
            return dq_fail(err, DQ_MISMATCH,
                           "key \"%s\": the weights are quantized already by another tool. Use the "
                           "original checkpoint.",
                           keys[i]);
    }
    return DQ_OK;
}

/* Three generations share one architecture name; say which one it is. */
static const char *motif_generation(const json_t *config)
{
    const json_t *noise = json_object_get(config, "num_noise_heads");
    const char *attention = json_string_value(json_object_get(config, "attention_cls"));
    if (json_object_get(config, "kv_lora_rank") || json_object_get(config, "q_lora_rank") ||
        json_is_true(json_object_get(config, "mhc_enabled")) ||
        (attention && strcmp(attention, "gdla") == 0))
        return "Motif-3 (low-rank attention, experts) is not supported";
    if (json_is_integer(noise) && json_integer_value(noise) > 0)
        return "Motif-2 (grouped differential attention) is not supported yet";
    return "Motif checkpoints are not supported yet";
}

/* A known but unsupported family. */
static dq_status refuse_known(const json_t *config, const char *model_type,
                              const char *architecture, dq_err *err)
{
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const struct refusal *r = &refusals[i];
        if (!same_family(model_type, architecture, r->family, r->architecture)) continue;
        return dq_fail(err, DQ_MISMATCH, "model type \"%s\": %s (supported: llama, diffllama)",
                       r->family, i == 0 ? motif_generation(config) : r->reason);
    }
    return DQ_OK;
}

dq_status dq_layout_find(const dq_layout **out, const json_t *config, dq_err *err)
{
    const char *model_type = NULL, *architecture = NULL;
    *out = NULL;
    DQ_TRY(optional_text(&model_type, config, "model_type", err));
    DQ_TRY(read_architecture(&architecture, config, err));
    if (!model_type && !architecture)
        return dq_fail(err, DQ_DAMAGED,
                       "neither \"model_type\" nor \"architectures\" names the "
                       "kind of model");
    DQ_TRY(refuse_known(config, model_type, architecture, err));
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        const dq_layout *l = &layouts[i];
        if (!same_family(model_type, architecture, l->family, l->architecture)) continue;
        *out = l;
        return refuse_packed(config, err);
    }
    return dq_fail(err, DQ_MISMATCH,
                   "model type \"%s\" is not supported (supported: llama, diffllama)",
                   model_type ? model_type : architecture);
}
