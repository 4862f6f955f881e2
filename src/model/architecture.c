/* architecture: the table of the architectures that dq runs, and the list of those it knows but
 * refuses. See architecture.h.
 * SPDX-License-Identifier: MIT */
#include "model/architecture.h"

#include <string.h>
#include <strings.h>

/* Names that Llama gave to the parts every architecture here has: all, and all but the output
 * projection. */
#define LLAMA_NAMES LLAMA_BASE_NAMES, [DQ_ROLE_O] = "model.layers.%d.self_attn.o_proj.weight"

#define LLAMA_BASE_NAMES                                                                           \
    [DQ_ROLE_EMBED] = "model.embed_tokens.weight", [DQ_ROLE_NORM_OUT] = "model.norm.weight",       \
    [DQ_ROLE_HEAD] = "lm_head.weight",                                                             \
    [DQ_ROLE_NORM_ATTN] = "model.layers.%d.input_layernorm.weight",                                \
    [DQ_ROLE_Q] = "model.layers.%d.self_attn.q_proj.weight",                                       \
    [DQ_ROLE_K] = "model.layers.%d.self_attn.k_proj.weight",                                       \
    [DQ_ROLE_V] = "model.layers.%d.self_attn.v_proj.weight",                                       \
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

#define HEAD_GAIN [DQ_ROLE_HEAD_GAIN] = "model.layers.%d.self_attn.subln.weight"
#define OUT_PROJ  [DQ_ROLE_O] = "model.layers.%d.self_attn.out_proj.weight"

#define ACT_NAMES                                                                                  \
    [DQ_ROLE_ACT_WEIGHT] = "model.layers.%d.mlp.act_fn.weight",                                    \
    [DQ_ROLE_ACT_BIAS] = "model.layers.%d.mlp.act_fn.bias"

static const char *const motif_keys[] = {"rope_theta", "hidden_act", "num_key_value_heads", NULL};
static const char *const motif2_keys[] = {"rope_theta", "hidden_act", "num_key_value_heads",
                                          "head_dim", NULL};
static const dq_only motif_only[] = {
    {"use_bias", 0}, {"qkv_bias", 0}, {"use_sliding_window", 0}, {"k_ratio", 1}, {NULL, 0}};

static const dq_only diff_only[] = {{"attention_bias", 0}, {NULL, 0}};

/* What the rows of Microsoft's modules share. The modules come without a model around them: the
 * names and the configuration of the rest are dq's own convention (MODEL.md). */
#define DIFF_TRANSFORMER                                                                           \
    .model_type = "diff_transformer", .rope = DQ_ROPE_ADJACENT, .act = DQ_ACT_SILU,                \
    .default_head_eps = 1e-5, .default_norm_eps = 1e-5, .only = diff_only

#define MOTIF                                                                                      \
    .model_type = "motif", .class_name = "MotifForCausalLM", .lambda = DQ_LAMBDA_LAYER,            \
    .depth_shift = 1.0, .rope = DQ_ROPE_HALVES, .act = DQ_ACT_POLYNORM, .head_norm = true,         \
    .head_eps_key = "attn_rms_norm_eps", .default_head_eps = 1e-5, .default_norm_eps = 1e-6,       \
    .warn_eps = true, .remote_code = true, .only = motif_only

/* The first row that matches is taken: the variant, if the row has one, and the model type or the
 * architecture. */
static const dq_architecture architectures[] = {
    {
        .name = "diffllama",
        .about = "Diff Transformer in the form of transformers (DiffLlama)",
        .model_type = "diffllama",
        .class_name = "DiffLlamaForCausalLM",
        .pairing = DQ_PAIR_HALVES,
        .lambda = DQ_LAMBDA_LAYER,
        .rope = DQ_ROPE_HALVES,
        .act = DQ_ACT_SILU,
        .head_norm = true,
        .head_eps_key = "rms_norm_eps",
        .default_head_eps = 1e-5,
        .default_norm_eps = 1e-5,
        .tensor = {LLAMA_NAMES, LAMBDA_NAMES},
    },
    {
        .name = "llama",
        .about = "plain transformer (Llama)",
        .model_type = "llama",
        .class_name = "LlamaForCausalLM",
        .pairing = DQ_PAIR_NONE,
        .lambda = DQ_LAMBDA_NONE,
        .rope = DQ_ROPE_HALVES,
        .act = DQ_ACT_SILU,
        .mlp_bias = true,
        .default_norm_eps = 1e-6,
        .tensor = {LLAMA_NAMES, MLP_BIAS_NAMES},
    },
    {
        .name = "motif2",
        .about = "Motif with noise heads shared by groups (grouped differential attention)",
        MOTIF,
        .pairing = DQ_PAIR_GROUPED,
        .required = motif2_keys,
        .tensor = {LLAMA_NAMES, LAMBDA_NAMES, HEAD_GAIN, ACT_NAMES},
    },
    {
        .name = "motif",
        .about = "Motif (Diff Transformer V1 heads, PolyNorm)",
        MOTIF,
        .pairing = DQ_PAIR_ADJACENT,
        .required = motif_keys,
        .tensor = {LLAMA_NAMES, LAMBDA_NAMES, HEAD_GAIN, ACT_NAMES},
    },
    {
        .name = "diff-v1",
        .about = "Diff Transformer V1 (Microsoft, flash modules)",
        DIFF_TRANSFORMER,
        .variant = "v1",
        .pairing = DQ_PAIR_ADJACENT,
        .lambda = DQ_LAMBDA_LAYER,
        .head_norm = true,
        .ablation = true,
        .tensor = {LLAMA_BASE_NAMES, OUT_PROJ, LAMBDA_NAMES, HEAD_GAIN},
    },
    {
        .name = "diff-v1-naive",
        .about = "Diff Transformer V1 (Microsoft, plain module: keys repeated before pairing)",
        DIFF_TRANSFORMER,
        .variant = "v1_naive",
        .pairing = DQ_PAIR_ADJACENT_NAIVE,
        .lambda = DQ_LAMBDA_LAYER,
        .head_norm = true,
        .ablation = true,
        .tensor = {LLAMA_BASE_NAMES, OUT_PROJ, LAMBDA_NAMES, HEAD_GAIN},
    },
    {
        .name = "diff-v2",
        .about = "Diff Transformer V2 (Microsoft, lambda per token)",
        DIFF_TRANSFORMER,
        .variant = "v2",
        .pairing = DQ_PAIR_SHARED_KV,
        .lambda = DQ_LAMBDA_TOKEN,
        .tensor = {LLAMA_NAMES, [DQ_ROLE_LAMBDA_PROJ] =
                                    "model.layers.%d.self_attn.lambda_proj.weight"},
    },
    {
        .name = "diff-plain",
        .about = "plain transformer in the form of Diff Transformer V1, for comparison",
        DIFF_TRANSFORMER,
        .variant = "plain",
        .pairing = DQ_PAIR_NONE,
        .lambda = DQ_LAMBDA_NONE,
        .ablation = true,
        .tensor = {LLAMA_BASE_NAMES, OUT_PROJ, HEAD_GAIN},
    },
};

/* Families that are recognised so that the refusal can say why, and what to do. */
static const struct refusal {
    const char *model_type, *class_name, *reason;
} refusals[] = {
    {"diff_llama", NULL,
     "amazingvince/diff-llama subtracts logits of neighbouring keys without a causal mask: it is "
     "not differential attention and saw the future when trained, so no score of it means "
     "anything"},
    {"phi4flash", "Phi4FlashForCausalLM",
     "its attention is Diff Transformer V1, but its Mamba layers are not supported"},
    {"dragon", "DragonForCausalLM",
     "its Mamba, tensor-product attention and expert layers are not supported"},
    {"diffclip", "DiffCLIP", "DiffCLIP is an encoder of pictures and text, not a language model"},
    {"diff_clip", NULL, "DiffCLIP is an encoder of pictures and text, not a language model"},
};

/* Text of a member, NULL when absent or null. */
static dq_status optional_text(const char **out, const json_t *object, const char *key, dq_err *err)
{
    const char *none = NULL;
    return dq_json_text(out, object, key, &none, err);
}

/* Classes whose names end so are built around other heads than that of a language model. */
static const struct other_class {
    const char *end, *about;
} other_classes[] = {
    {"ForSequenceClassification", "a classifier or reward model"},
    {"ForTokenClassification", "a classifier of tokens"},
    {"ForQuestionAnswering", "a finder of answers in a text"},
    {"ForMultipleChoice", "a chooser of answers"},
    {"ForMaskedLM", "an encoder that fills gaps"},
    {"ForImageClassification", "a classifier of pictures"},
    {"ForConditionalGeneration", "a model of pictures, of sound, or of pairs of texts"},
    {"RewardModel", "a reward model"},
    {"ForRewardModeling", "a reward model"},
    {"Model", "a model without an output head, as encoders and embeddings have it"},
};

static const char *about_class(const char *name)
{
    for (size_t i = 0; name && i < sizeof other_classes / sizeof *other_classes; i++) {
        const char *end = other_classes[i].end;
        const size_t n = strlen(name), k = strlen(end);
        if (n >= k && strcasecmp(name + n - k, end) == 0) return other_classes[i].about;
    }
    return NULL;
}

/* The names of architectures must be one name, however often. */
static dq_status read_architecture(const char **out, const json_t *config, dq_err *err)
{
    const json_t *list = json_object_get(config, "architectures"), *item;
    size_t i;
    *out = NULL;
    if (!list || json_is_null(list)) return DQ_OK;
    if (!json_is_array(list))
        return dq_fail(err, DQ_DAMAGED, "key \"architectures\": expected a list of names");
    json_array_foreach(list, i, item)
    {
        const char *name = json_string_value(item);
        if (!name || strlen(name) != json_string_length(item))
            return dq_fail(err, DQ_DAMAGED, "key \"architectures\": expected a list of names");
        if (*out && strcasecmp(*out, name) != 0)
            return dq_fail(err, DQ_MISMATCH,
                           "architectures \"%s\" and \"%s\" name different architectures", *out,
                           name);
        *out = name;
    }
    return DQ_OK;
}

static bool is_named(const char *model_type, const char *class_name, const char *row_type,
                     const char *row_class)
{
    if (model_type && strcasecmp(model_type, row_type) == 0) return true;
    return class_name && row_class && strcasecmp(class_name, row_class) == 0;
}

/* Weights that MLX has packed in its own way; quantization_config is for whoever reads the weights. */
static dq_status refuse_packed(const json_t *config, dq_err *err)
{
    const json_t *v = json_object_get(config, "quantization");
    if (!v || json_is_null(v)) return DQ_OK;
    return dq_fail(
        err, DQ_MISMATCH,
        "key \"quantization\": the weights are quantized already by another tool. Use the "
        "original checkpoint.");
}

/* Motif's three generations share one architecture name; the third is another kind of model. */
static bool is_motif3(const json_t *config)
{
    const char *attention = json_string_value(json_object_get(config, "attention_cls"));
    return json_object_get(config, "kv_lora_rank") || json_object_get(config, "q_lora_rank") ||
           json_is_true(json_object_get(config, "mhc_enabled")) ||
           (attention && strcmp(attention, "gdla") == 0);
}

/* A known but unsupported architecture. */
static dq_status refuse_known(const json_t *config, const char *model_type, const char *class_name,
                              dq_err *err)
{
    if (is_named(model_type, class_name, "motif", "MotifForCausalLM") && is_motif3(config))
        return dq_fail(err, DQ_MISMATCH,
                       "Motif-3 (low-rank latent attention, experts, sliding windows) is not "
                       "supported; Motif-2.6B and Motif-2-12.7B are");
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const struct refusal *r = &refusals[i];
        if (is_named(model_type, class_name, r->model_type, r->class_name))
            return dq_fail(err, DQ_MISMATCH, "model type \"%s\": %s",
                           model_type ? model_type : class_name, r->reason);
    }
    return DQ_OK;
}

/* Whether the row is meant: the model type decides, and the class where there is none. */
static bool chosen(const dq_architecture *row, const char *model_type, const char *class_name,
                   const char *variant, bool noise_heads)
{
    if (!is_named(model_type, model_type ? NULL : class_name, row->model_type, row->class_name))
        return false;
    if (row->variant) return variant && strcmp(row->variant, variant) == 0;
    return row->pairing != DQ_PAIR_GROUPED || noise_heads;
}

/* A model type of one architecture with the class of another. */
static dq_status check_agreement(const dq_architecture *row, const char *model_type,
                                 const char *class_name, dq_err *err)
{
    bool same = !class_name || !row->class_name || strcasecmp(class_name, row->class_name) == 0;
    for (size_t i = 0; class_name && i < sizeof architectures / sizeof *architectures; i++) {
        const char *other = architectures[i].class_name;
        if (!row->class_name && other && strcasecmp(class_name, other) == 0) same = false;
    }
    if (same) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH,
                   "model_type \"%s\" and architectures \"%s\" name different architectures",
                   model_type, class_name);
}

static dq_status refuse_class(const char *class_name, dq_err *err)
{
    const char *about = about_class(class_name);
    if (!about) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH,
                   "architectures \"%s\" is %s, not a language model that gives the next token. "
                   "Use a checkpoint whose class ends in ForCausalLM.",
                   class_name, about);
}

static dq_status unknown(const char *model_type, const char *variant, const char *class_name,
                         dq_err *err)
{
    if (model_type && strcasecmp(model_type, "diff_transformer") == 0)
        return dq_fail(err, DQ_MISMATCH,
                       "model type \"diff_transformer\" needs the key \"diff_variant\" (expected "
                       "\"v1\", \"v1_naive\", \"v2\" or \"plain\", found %s%s%s)",
                       variant ? "\"" : "", variant ? variant : "none", variant ? "\"" : "");
    return dq_fail(err, DQ_MISMATCH,
                   "model type \"%s\" is not supported (supported: llama, diffllama, motif, "
                   "diff_transformer)",
                   model_type ? model_type : class_name);
}

dq_status dq_architecture_find(const dq_architecture **out, const json_t *config, dq_err *err)
{
    static const int64_t zero = 0;
    const char *model_type = NULL, *class_name = NULL, *variant = NULL;
    int64_t noise = 0;
    *out = NULL;
    DQ_TRY(optional_text(&model_type, config, "model_type", err));
    DQ_TRY(read_architecture(&class_name, config, err));
    DQ_TRY(optional_text(&variant, config, "diff_variant", err));
    if (!model_type && !class_name)
        return dq_fail(err, DQ_DAMAGED,
                       "neither \"model_type\" nor \"architectures\" names the "
                       "kind of model");
    DQ_TRY(refuse_known(config, model_type, class_name, err));
    DQ_TRY(refuse_class(class_name, err));
    DQ_TRY(dq_json_int(&noise, config, "num_noise_heads", 0, INT32_MAX, &zero, err));
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++) {
        const dq_architecture *row = &architectures[i];
        if (!chosen(row, model_type, class_name, variant, noise > 0)) continue;
        *out = row;
        DQ_TRY(check_agreement(row, model_type, class_name, err));
        return refuse_packed(config, err);
    }
    return unknown(model_type, variant, class_name, err);
}
