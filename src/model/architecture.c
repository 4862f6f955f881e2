/* The table of the architectures that dq runs, and the list of those it knows but refuses.
 * SPDX-License-Identifier: MIT */
#include "model/inside.h"

#include <math.h>
#include <string.h>
#include <strings.h>

/* Llama's names for parts that every architecture here has, all but the output projection. */
#define LLAMA_NAMES LLAMA_BASE_NAMES, O_PROJ, PRE_NORM

#define O_PROJ   [DQ_ROLE_O] = "model.layers.%d.self_attn.o_proj.weight"
#define PRE_NORM [DQ_ROLE_NORM_FFN] = "model.layers.%d.post_attention_layernorm.weight"

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
    [DQ_ROLE_GATE] = "model.layers.%d.mlp.gate_proj.weight",                                       \
    [DQ_ROLE_UP] = "model.layers.%d.mlp.up_proj.weight",                                           \
    [DQ_ROLE_DOWN] = "model.layers.%d.mlp.down_proj.weight"

#define MLP_BIAS_NAMES                                                                             \
    [DQ_ROLE_GATE_BIAS] = "model.layers.%d.mlp.gate_proj.bias",                                    \
    [DQ_ROLE_UP_BIAS] = "model.layers.%d.mlp.up_proj.bias",                                        \
    [DQ_ROLE_DOWN_BIAS] = "model.layers.%d.mlp.down_proj.bias"

#define QK_NORM_NAMES                                                                              \
    [DQ_ROLE_Q_NORM] = "model.layers.%d.self_attn.q_norm.weight",                                  \
    [DQ_ROLE_K_NORM] = "model.layers.%d.self_attn.k_norm.weight"

#define POST_NORM_NAMES                                                                            \
    [DQ_ROLE_NORM_ATTN_OUT] = "model.layers.%d.post_attention_layernorm.weight",                   \
    [DQ_ROLE_NORM_FFN] = "model.layers.%d.pre_feedforward_layernorm.weight",                       \
    [DQ_ROLE_NORM_FFN_OUT] = "model.layers.%d.post_feedforward_layernorm.weight"

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

static const char *const mistral_reads[] = {"sliding_window", "use_sliding_window", NULL};
static const char *const qwen_reads[] = {"sliding_window", "use_sliding_window", "layer_types",
                                         NULL};
static const char *const gemma3_reads[] = {"sliding_window",
                                           "layer_types",
                                           "sliding_window_pattern",
                                           "_sliding_window_pattern",
                                           "rope_local_base_freq",
                                           "query_pre_attn_scalar",
                                           NULL};
static const char *const smollm3_reads[] = {
    "sliding_window", "use_sliding_window",     "layer_types",
    "no_rope_layers", "no_rope_layer_interval", NULL};

static const dq_only diff_only[] = {{"attention_bias", 0}, {NULL, 0}};

/* Microsoft's modules come without a model around them: the rest is dq's convention
 * (docs/math/model.md). */
#define DIFF_TRANSFORMER                                                                           \
    .model_type = "diff_transformer", .rope = DQ_ROPE_ADJACENT, .act = DQ_ACT_SILU,                \
    .default_head_eps = 1e-5, .default_norm_eps = 1e-5, .only = diff_only

#define PLAIN                                                                                      \
    .pairing = DQ_PAIR_NONE, .lambda = DQ_LAMBDA_NONE, .rope = DQ_ROPE_HALVES, .act = DQ_ACT_SILU, \
    .default_norm_eps = 1e-6

#define MOTIF                                                                                      \
    .model_type = "motif", .class_name = "MotifForCausalLM", .lambda = DQ_LAMBDA_LAYER,            \
    .depth_shift = 1.0, .rope = DQ_ROPE_HALVES, .act = DQ_ACT_POLYNORM, .head_norm = true,         \
    .head_eps_key = "attn_rms_norm_eps", .default_head_eps = 1e-5, .default_norm_eps = 1e-6,       \
    .warn_eps = true, .remote_code = true, .only = motif_only

/* The first match counts: the variant, if any, and the model type or architecture. */
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
        PLAIN,
        .mlp_bias = true,
        .tensor = {LLAMA_NAMES, MLP_BIAS_NAMES},
    },
    {
        .name = "qwen2",
        .about = "plain transformer with biases of q, k and v (Qwen2, Qwen2.5)",
        PLAIN,
        .model_type = "qwen2",
        .class_name = "Qwen2ForCausalLM",
        .qkv_bias = true,
        .windows = DQ_WINDOW_LATE,
        .default_window = 4096,
        .reads = qwen_reads,
        .tensor = {LLAMA_NAMES},
    },
    {
        .name = "qwen3",
        .about = "plain transformer with norms of queries and keys (Qwen3)",
        PLAIN,
        .model_type = "qwen3",
        .class_name = "Qwen3ForCausalLM",
        .default_head_dim = 128,
        .windows = DQ_WINDOW_LATE,
        .default_window = 4096,
        .reads = qwen_reads,
        .tensor = {LLAMA_NAMES, QK_NORM_NAMES},
    },
    {
        .name = "mistral",
        .about = "plain transformer (Mistral)",
        PLAIN,
        .model_type = "mistral",
        .class_name = "MistralForCausalLM",
        .windows = DQ_WINDOW_ALL,
        .default_window = 4096,
        .reads = mistral_reads,
        .tensor = {LLAMA_NAMES},
    },
    {
        .name = "smollm3",
        .about = "plain transformer with layers without positions (SmolLM3)",
        PLAIN,
        .model_type = "smollm3",
        .class_name = "SmolLM3ForCausalLM",
        .mlp_bias = true,
        .skips_rope = true,
        .default_tied = true,
        .windows = DQ_WINDOW_STILL,
        .reads = smollm3_reads,
        .tensor = {LLAMA_NAMES, MLP_BIAS_NAMES},
    },
    {
        .name = "gemma3",
        .about = "plain transformer with norms around its parts (Gemma 3, of text)",
        .model_type = "gemma3_text",
        .class_name = "Gemma3ForCausalLM",
        .pairing = DQ_PAIR_NONE,
        .lambda = DQ_LAMBDA_NONE,
        .rope = DQ_ROPE_HALVES,
        .act = DQ_ACT_GELU,
        .default_norm_eps = 1e-6,
        .local_rope = true,
        .gain_from_one = true,
        .scales_embedding = true,
        .default_scalar = 256,
        .default_tied = true,
        .windows = DQ_WINDOW_PATTERN,
        .default_window = 4096,
        .default_head_dim = 256,
        .reads = gemma3_reads,
        .tensor = {LLAMA_BASE_NAMES, O_PROJ, QK_NORM_NAMES, POST_NORM_NAMES},
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
        .tensor = {LLAMA_BASE_NAMES, PRE_NORM, OUT_PROJ, LAMBDA_NAMES, HEAD_GAIN},
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
        .tensor = {LLAMA_BASE_NAMES, PRE_NORM, OUT_PROJ, LAMBDA_NAMES, HEAD_GAIN},
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
        .tensor = {LLAMA_BASE_NAMES, PRE_NORM, OUT_PROJ, HEAD_GAIN},
    },
};

/* Families recognized only to refuse them with a reason and advice. */
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
    {"gemma3", "Gemma3ForConditionalGeneration",
     "its pictures are not supported. Save its language model by itself, as a Gemma3ForCausalLM "
     "(docs/models.md has the lines), and use that folder"},
    {"diffclip", "DiffCLIP", "DiffCLIP is an encoder of pictures and text, not a language model"},
    {"diff_clip", NULL, "DiffCLIP is an encoder of pictures and text, not a language model"},
};

/* NULL when absent or null. */
static dq_status optional_text(const char **out, const json_t *object, const char *key, dq_err *err)
{
    const char *none = NULL;
    return dq_json_text(out, object, key, &none, err);
}

/* Classes with such names have other heads than that of a language model. */
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

/* All names of architectures must be equal. */
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

/* Motif's generations share one architecture name; the third is another kind of model. */
static bool is_motif3(const json_t *config)
{
    const char *attention = json_string_value(json_object_get(config, "attention_cls"));
    return json_object_get(config, "kv_lora_rank") || json_object_get(config, "q_lora_rank") ||
           json_is_true(json_object_get(config, "mhc_enabled")) ||
           (attention && strcmp(attention, "gdla") == 0);
}

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

/* The model type decides, or the class where there is none. */
static bool chosen(const dq_architecture *row, const char *model_type, const char *class_name,
                   const char *variant, bool noise_heads)
{
    if (!is_named(model_type, model_type ? NULL : class_name, row->model_type, row->class_name))
        return false;
    if (row->variant) return variant && strcmp(row->variant, variant) == 0;
    return row->pairing != DQ_PAIR_GROUPED || noise_heads;
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
                       "neither \"model_type\" nor \"architectures\" names the kind of model");
    DQ_TRY(refuse_known(config, model_type, class_name, err));
    const char *about = about_class(class_name);
    if (about)
        return dq_fail(err, DQ_MISMATCH,
                       "architectures \"%s\" is %s, not a language model that gives the next "
                       "token. Use a checkpoint whose class ends in ForCausalLM.",
                       class_name, about);
    DQ_TRY(dq_json_int(&noise, config, "num_noise_heads", 0, INT32_MAX, &zero, err));
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++) {
        const dq_architecture *row = &architectures[i];
        if (!chosen(row, model_type, class_name, variant, noise > 0)) continue;
        *out = row;
        bool same = !class_name || !row->class_name || strcasecmp(class_name, row->class_name) == 0;
        for (size_t k = 0; class_name && k < sizeof architectures / sizeof *architectures; k++) {
            const char *other = architectures[k].class_name;
            if (!row->class_name && other && strcasecmp(class_name, other) == 0) same = false;
        }
        if (!same)
            return dq_fail(
                err, DQ_MISMATCH,
                "model_type \"%s\" and architectures \"%s\" name different architectures",
                model_type, class_name);
        const json_t *v = json_object_get(config, "quantization");
        if (!v || json_is_null(v)) return DQ_OK;
        return dq_fail(err, DQ_MISMATCH,
                       "key \"quantization\": the weights are quantized already by another tool. "
                       "Use the original checkpoint.");
    }
    if (model_type && strcasecmp(model_type, "diff_transformer") == 0)
        return dq_fail(err, DQ_MISMATCH,
                       "model type \"diff_transformer\" needs the key \"diff_variant\" (expected "
                       "\"v1\", \"v1_naive\", \"v2\" or \"plain\", found %s%s%s)",
                       variant ? "\"" : "", variant ? variant : "none", variant ? "\"" : "");
    return dq_fail(err, DQ_MISMATCH,
                   "model type \"%s\" is not supported (supported: llama, qwen2, qwen3, "
                   "mistral, smollm3, gemma3_text, diffllama, motif, diff_transformer)",
                   model_type ? model_type : class_name);
}

/* Searched by architecture and sizes; totals come from the repositories' metadata. */

static const dq_published table[] = {
    {"kajuma/DiffLlama-0.3B-handcut, reyllama/diffllama_300m", "diffllama", 128256, 2048, 16, 32, 8,
     64, 16, 8192, true, 1235818496},
    {"kajuma/DiffLlama-1B", "diffllama", 102400, 2048, 16, 32, 8, 64, 16, 8192, false, 1392580608},
    {"reyllama/DiffLlama-375M", "diffllama", 128256, 1024, 16, 16, 4, 64, 8, 4096, true, 374641664},
    {"Motif-Technologies/Motif-2.6B", "motif", 219520, 2048, 32, 16, 16, 128, 8, 8192, true,
     2597218432},
    {"Motif-Technologies/Motif-2-12.7B", "motif2", 219520, 4096, 40, 40, 16, 128, 32, 16384, false,
     12703860896},
};

const dq_published *dq_published_find(const dq_model *m)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const dq_published *p = &table[i];
        if (strcmp(p->architecture, m->architecture->name) == 0 && p->vocab == m->vocab &&
            p->dim == m->dim && p->n_layers == m->n_layers && p->n_q == m->map.n_q &&
            p->n_kv == m->map.n_kv && p->head_dim == m->map.head_dim && p->n_out == m->map.n_out &&
            p->ffn == m->ffn && p->tied == m->tied)
            return p;
    }
    return NULL;
}

/* The architecture's row reads config.json: required keys, keys with a single supported value,
 * sizes, heads, rotary parameters. Then every role has its shape or is marked absent, and the
 * loader compares tensors with that alone. */

bool dq_model_config_left_over(const char *tensor)
{
    return strstr(tensor, "rotary_emb.inv_freq") != NULL;
}

static dq_status read_int(int *out, const json_t *config, const char *key, int max,
                          const int *fallback, dq_err *err)
{
    int64_t other = fallback ? *fallback : 0, x = 1;
    DQ_TRY(dq_json_int(&x, config, key, 1, max, fallback ? &other : NULL, err));
    *out = (int)x;
    return DQ_OK;
}

/* The architecture's pairing, or the caller's on the same shapes. */
static dq_status choose_pairing(dq_pairing *pairing, const dq_architecture *arch, dq_err *err)
{
    if (*pairing == DQ_PAIR_COUNT || arch->pairing == DQ_PAIR_NONE) *pairing = arch->pairing;
    if (dq_head_order_pairing_same_shape(arch->pairing, *pairing)) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH, "head order \"%s\" does not fit a %s model, which has \"%s\"",
                   dq_head_order_pairing_name(*pairing), arch->name,
                   dq_head_order_pairing_name(arch->pairing));
}

static bool present(const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);
    return v && !json_is_null(v);
}

static dq_status read_eps(float *out, dq_model *m, const json_t *config, const char *key,
                          double fallback, dq_arena *a, dq_err *err)
{
    double eps = fallback;
    DQ_TRY(dq_json_float(&eps, config, key, &fallback, err));
    if (!(eps > 0.0 && eps <= 1.0))
        return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected more than 0 and at most 1, found %g",
                       key, eps);
    *out = (float)eps;
    if (!m->architecture->warn_eps || present(config, key)) return DQ_OK;
    const char *text = dq_textf(a, err, "config.json has no \"%s\": %g is assumed", key, fallback);
    return text ? dq_model_config_warn(m, a, text, err) : err->code;
}

static dq_status check_only(const dq_architecture *arch, const json_t *config, dq_err *err)
{
    for (const dq_only *o = arch->only; o && o->key; o++) {
        const json_t *v = json_object_get(config, o->key);
        if (!present(config, o->key)) continue;
        if (!json_is_boolean(v) && !json_is_number(v))
            return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected a number or a boolean", o->key);
        double x = json_is_boolean(v) ? json_is_true(v) : json_number_value(v);
        if (x < o->value || x > o->value)
            return dq_fail(err, DQ_MISMATCH, "key \"%s\": only %s is supported for %s", o->key,
                           o->value > 0 ? "1" : "false", arch->name);
    }
    return DQ_OK;
}

/* Keys of other architectures are allowed with values that change nothing. */

static bool is_off(const json_t *v, const dq_model *m)
{
    (void)m;
    if (json_is_number(v)) return !(json_number_value(v) < 0 || json_number_value(v) > 0);
    if (json_is_string(v)) return json_string_length(v) == 0;
    return json_is_null(v) || json_is_false(v) ||
           (!json_is_true(v) && json_array_size(v) == 0 && json_object_size(v) == 0);
}

static bool is_one(const json_t *v, const dq_model *m)
{
    for (size_t i = 0; i < json_array_size(v); i++) {
        if (!is_one(json_array_get(v, i), m)) return false;
    }
    const double x = json_number_value(v);
    return json_is_null(v) || json_is_array(v) || (json_is_number(v) && !(x < 1 || x > 1));
}

static bool is_on(const json_t *v, const dq_model *m)
{
    (void)m;
    return json_is_null(v) || json_is_true(v);
}

/* Only one kind of layer is known. */
static bool is_plain(const json_t *v, const dq_model *m)
{
    static const char *const words[] = {"full_attention", "attention", "full", "global", "dense"};
    for (size_t i = 0; i < json_array_size(v); i++) {
        if (!is_plain(json_array_get(v, i), m)) return false;
    }
    for (size_t i = 0; json_is_string(v) && i < sizeof words / sizeof *words; i++) {
        if (strcmp(json_string_value(v), words[i]) == 0) return true;
    }
    return json_is_null(v) || json_is_array(v);
}

static bool is_rotary(const json_t *v, const dq_model *m)
{
    const char *word = json_string_value(v);
    (void)m;
    return json_is_null(v) || (word && (strcmp(word, "rope") == 0 || strcmp(word, "rotary") == 0));
}

static bool is_head_dim(const json_t *v, const dq_model *m)
{
    int64_t n;
    return json_is_null(v) || (dq_json_whole(&n, v) && n == m->map.head_dim);
}

static bool is_order(const json_t *v, const dq_model *m)
{
    return json_is_null(v) ||
           (json_is_boolean(v) && json_is_true(v) == (m->rope.order == DQ_ROPE_ADJACENT));
}

static bool is_beyond(const json_t *v, const dq_model *m)
{
    return is_off(v, m) || (json_is_number(v) && json_number_value(v) >= m->max_positions);
}

#define KEYS(...)                                                                                  \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

static const struct neutral {
    bool (*is)(const json_t *v, const dq_model *m);
    const char *expected;
    const char *const *key;
} neutral[] = {
    {is_on, "true", KEYS("is_causal", "use_rope", "use_rotary", "rotary")},
    {is_off, "null, false or 0",
     KEYS("use_sliding_window", "attention_chunk_size", "sliding_window_pattern",
          "_sliding_window_pattern", "no_rope_layer_interval", "use_bidirectional_attention",
          "prefix_lm", "is_encoder_decoder", "add_cross_attention", "alibi", "use_alibi",
          "clip_qkv", "use_qk_norm", "qk_norm", "qk_layernorm", "use_qk_layernorm",
          "attention_multiplier", "query_pre_attn_scalar", "attn_temperature_tuning",
          "scale_attn_by_inverse_layer_idx", "num_kv_shared_layers", "attention_k_eq_v",
          "per_layer_config", "num_attention_heads_per_layer", "layer_rope_theta",
          "rope_local_base_freq", "rotary_base", "rotary_emb_base", "compress_rope_theta",
          "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts",
          "enable_moe_block", "parallel_attn", "use_parallel_residual",
          "apply_residual_connection_post_layernorm", "use_post_norm", "use_sandwich_norm",
          "scale_embedding", "rescale_embeddings", "mup_enabled", "muP", "scale_depth",
          "dim_model_base", "swiglu_limit")},
    {is_one, "1",
     KEYS("embedding_scale", "scale_emb", "logit_scale", "logits_scaling", "residual_scale",
          "logits_mup_width_multiplier", "rope_ratio", "rotary_pct", "rotary_percent",
          "no_rope_layers")},
    {is_plain, "\"full_attention\" everywhere",
     KEYS("layer_types", "mlp_layer_types", "layers_block_type", "attention_layers")},
    {is_rotary, "\"rope\"", KEYS("position_embedding_type")},
    {is_head_dim, "head_dim", KEYS("rotary_dim")},
    {is_order, "the order in which this architecture rotates",
     KEYS("rope_interleave", "rope_interleaved")},
    {is_beyond, "null, or at least max_position_embeddings",
     KEYS("sliding_window", "sliding_window_size", "window_size", "local_window_size",
          "attention_window", "attention_window_size")},
};

static bool reads(const dq_architecture *arch, const char *key)
{
    for (const char *const *k = arch->reads; k && *k; k++) {
        if (strcmp(*k, key) == 0) return true;
    }
    return false;
}

/* Layer kinds that follow a pattern are read from it. */
static const struct neutral *neutral_of(const char *key)
{
    const struct neutral *off = &neutral[1], *one = &neutral[2];
    for (const struct neutral *n = neutral; n < neutral + sizeof neutral / sizeof *neutral; n++) {
        for (const char *const *k = n->key; *k; k++) {
            if (strcmp(*k, key) == 0) return n;
        }
    }
    if (strstr(key, "softcap") || strstr(key, "soft_cap")) return off;
    const char *end = strstr(key, "_multiplier");
    return end && (!end[11] || strcmp(end + 11, "s") == 0) && !strstr(key, "ffn_dim") ? one : NULL;
}

/* Architectures with use_sliding_window default to false. */
static bool has_no_window(const dq_architecture *arch, const json_t *config)
{
    for (const dq_only *o = arch->only; o && o->key; o++) {
        if (strcmp(o->key, "use_sliding_window") == 0) return true;
    }
    return json_is_false(json_object_get(config, "use_sliding_window"));
}

static dq_status check_neutral(const dq_model *m, const json_t *config, dq_err *err)
{
    union { /* the iteration macro takes a pointer to non-const, but changes nothing */
        const json_t *in;
        json_t *out;
    } object = {.in = config};
    const char *key;
    json_t *value;
    json_object_foreach(object.out, key, value)
    {
        const struct neutral *n = neutral_of(key);
        if (!n || reads(m->architecture, key) || n->is(value, m)) continue;
        if (n->is == is_beyond && has_no_window(m->architecture, config)) continue;
        dq_err why = {0};
        dq_json_wrong(key, n->expected, value, &why);
        return dq_fail(
            err, DQ_MISMATCH,
            "%s: programs that read it compute something else. Take the key out to run a plain %s.",
            why.text, m->architecture->name);
    }
    return DQ_OK;
}

/* Warns that code beside the weights is not run, so that results may differ. */
static dq_status check_code(dq_model *m, const json_t *config, dq_arena *a, dq_err *err)
{
    const dq_architecture *arch = m->architecture;
    const char *code = json_string_value(
        json_object_get(json_object_get(config, "auto_map"), "AutoModelForCausalLM"));
    if (!code || !arch->class_name) return DQ_OK;
    const char *dot = strrchr(code, '.'), *name = dot ? dot + 1 : code;
    if (strcasecmp(name, arch->class_name) != 0)
        return dq_fail(
            err, DQ_MISMATCH,
            "key \"auto_map\": the model's own code \"%s\" is not run (expected the class %s)",
            code, arch->class_name);
    if (arch->remote_code) return DQ_OK;
    const char *text = dq_textf(a, err,
                                "auto_map of config.json names code of the model's own (%s), which "
                                "is not run: the model is read as a %s of transformers",
                                code, arch->name);
    return text ? dq_model_config_warn(m, a, text, err) : err->code;
}

/* Layers with a window may have a base of their own, which no rope_scaling changes.
 * Source: transformers, Gemma3TextConfig.convert_rope_params_to_dict. */
static dq_status read_rope(dq_model *m, const json_t *config, dq_arena *a, dq_err *err)
{
    const dq_architecture *arch = m->architecture;
    const struct {
        const char *type, *key, *scaling;
        double theta;
        dq_rope *to;
    } ropes[] = {{"full_attention", "rope_theta", "rope_scaling", 1e6, &m->rope},
                 {"sliding_attention", "rope_local_base_freq", "", 1e4, &m->local_rope}};
    union { /* jansson takes pointers to non-const, but changes nothing */
        const json_t *in;
        json_t *out;
    } all = {.in = json_object_get(config, "rope_parameters")}, scaling;
    static const char partial[] = "partial_rotary_factor";
    const char *key;
    json_t *value;
    if (!arch->local_rope)
        return dq_model_rope_read(&m->rope, arch->rope, m->map.head_dim, config, m->max_positions,
                                  a, err);
    json_object_foreach(all.out, key, value)
    {
        if (!json_is_object(value) && !json_is_null(value))
            return dq_fail(err, DQ_DAMAGED,
                           "key \"rope_parameters\": expected an object for \"full_attention\" and "
                           "one for \"sliding_attention\"");
    }
    for (size_t i = 0; i < sizeof ropes / sizeof *ropes && err->code == DQ_OK; i++) {
        double theta = ropes[i].theta;
        DQ_TRY(dq_json_float(&theta, config, ropes[i].key, &theta, err));
        scaling.in = json_object_get(config, ropes[i].scaling);
        json_t *own = json_object();
        json_object_update(own, json_object_get(all.in, ropes[i].type));
        json_object_update(own, scaling.out);
        json_t *flat = json_pack("{s:f, s:o}", "rope_theta", theta, "rope_parameters", own);
        if (!flat) return dq_fail(err, DQ_RESOURCE, "out of memory");
        json_object_set(flat, partial, json_object_get(config, partial));
        if (dq_model_rope_read(ropes[i].to, arch->rope, m->map.head_dim, flat, m->max_positions, a,
                               err) != DQ_OK)
            dq_in(err, "%s: ", ropes[i].type);
        json_decref(flat);
    }
    return err->code;
}

/* Layers whose queries and keys are not rotated. Source: transformers, SmolLM3Config. */
static dq_status read_no_rope(dq_model_config *plan, dq_model *m, const json_t *config, dq_arena *a,
                              dq_err *err)
{
    static const int64_t fourth = 4;
    const json_t *list = json_object_get(config, "no_rope_layers");
    int64_t every;
    m->no_rope = (dq_rope){.dim = m->rope.dim, .order = m->rope.order, .amplitude = 1.0f};
    float *still = dq_alloc(a, (size_t)m->rope.dim / 2 + 1, sizeof *still, err);
    if (!still) return err->code;
    m->no_rope.inv_freq = still;
    if (!m->architecture->skips_rope) return DQ_OK;
    DQ_TRY(dq_json_int(&every, config, "no_rope_layer_interval", 1, INT32_MAX, &fourth, err));
    plan->no_rope = dq_alloc(a, (size_t)m->n_layers, sizeof *plan->no_rope, err);
    if (!plan->no_rope) return err->code;
    const bool listed = list && !json_is_null(list);
    if (listed && (!json_is_array(list) || json_array_size(list) != (size_t)m->n_layers))
        return dq_fail(err, DQ_DAMAGED, "key \"no_rope_layers\": expected %d numbers, 0 or 1",
                       m->n_layers);
    for (int l = 0; l < m->n_layers; l++) {
        int64_t rotates = (l + 1) % every != 0;
        if (listed && (!dq_json_whole(&rotates, json_array_get(list, (size_t)l)) || rotates < 0 ||
                       rotates > 1))
            return dq_fail(err, DQ_DAMAGED, "key \"no_rope_layers\": expected %d numbers, 0 or 1",
                           m->n_layers);
        plan->no_rope[l] = !rotates;
    }
    return DQ_OK;
}

/* Whether a layer has a window, by the list layer_types. */
static dq_status is_windowed(bool *out, const dq_model *m, const json_t *types, int l, dq_err *err)
{
    const json_t *type = json_array_get(types, (size_t)l);
    if (json_array_size(types) != (size_t)m->n_layers || !json_is_string(type))
        return dq_fail(err, DQ_DAMAGED, "key \"layer_types\": expected %d words", m->n_layers);
    *out = strcmp(json_string_value(type), "sliding_attention") == 0;
    if (*out || is_plain(type, m)) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH,
                   "key \"layer_types\": \"%s\" is not supported (expected \"full_attention\" or "
                   "\"sliding_attention\")",
                   json_string_value(type));
}

/* Source: transformers, configuration_mistral.py, _qwen2, _qwen3, _smollm3 and _gemma3. */
static dq_status read_windows(dq_model_config *plan, const dq_model *m, const json_t *config,
                              dq_arena *a, dq_err *err)
{
    static const bool no = false;
    const dq_window_rule by = m->architecture->windows;
    const bool listed = by != DQ_WINDOW_ALL && present(config, "layer_types");
    int64_t from = 28, every = 6; /* without keys */
    int window = m->architecture->default_window;
    bool used = true, has = true;
    if (by == DQ_WINDOW_NONE) return DQ_OK;
    if (by == DQ_WINDOW_LATE || by == DQ_WINDOW_STILL)
        DQ_TRY(dq_json_bool(&used, config, "use_sliding_window", &no, err));
    if (by == DQ_WINDOW_LATE)
        DQ_TRY(dq_json_int(&from, config, "max_window_layers", 0, INT32_MAX, &from, err));
    if (by == DQ_WINDOW_PATTERN)
        DQ_TRY(dq_json_int(&every, config, "sliding_window_pattern", 1, INT32_MAX, &every, err));
    if (!used || json_is_null(json_object_get(config, "sliding_window")))
        window = 0;
    else if (window || present(config, "sliding_window"))
        DQ_TRY(read_int(&window, config, "sliding_window", 1 << 30, &window, err));
    /* where all positions fit a window; a layer that rotates by it keeps it */
    const bool hides_nothing =
        m->max_positions > 0 && window >= m->max_positions && !m->architecture->local_rope;
    plan->window = dq_alloc(a, (size_t)m->n_layers, sizeof *plan->window, err);
    for (int l = 0; plan->window && l < m->n_layers; l++) {
        if (by == DQ_WINDOW_LATE) has = l >= from;
        if (by == DQ_WINDOW_STILL) has = plan->no_rope[l];
        if (by == DQ_WINDOW_PATTERN) has = (l + 1) % every != 0;
        if (listed) DQ_TRY(is_windowed(&has, m, json_object_get(config, "layer_types"), l, err));
        if (has && window == 0 && (listed || by == DQ_WINDOW_PATTERN))
            return dq_fail(err, DQ_DAMAGED, "layer %d has a window, but %s", l,
                           used ? "\"sliding_window\" is null or missing"
                                : "\"use_sliding_window\" is false");
        plan->window[l] = has && !hides_nothing ? window : 0;
    }
    return err->code;
}

/* Table 6 of the paper: without the norm over each head, and lambda_init constant over layers. */
static dq_status read_ablation(dq_model_config *plan, const dq_architecture *arch,
                               const json_t *config, dq_err *err)
{
    const char *const usual = arch->head_norm ? "rms" : "none", *norm = usual;
    const json_t *init = json_object_get(config, "lambda_init");
    plan->head_norm = arch->head_norm;
    if (!arch->variant) return DQ_OK;
    if (!arch->ablation && (present(config, "sub_norm") || present(config, "lambda_init")))
        return dq_fail(err, DQ_MISMATCH,
                       "keys \"sub_norm\" and \"lambda_init\" have no meaning for %s", arch->name);
    DQ_TRY(dq_json_text(&norm, config, "sub_norm", &usual, err));
    if (strcmp(norm, "rms") != 0 && strcmp(norm, "none") != 0)
        return dq_fail(err, DQ_MISMATCH,
                       "key \"sub_norm\": \"%s\" is not supported (expected \"rms\" or \"none\")",
                       norm);
    plan->head_norm = strcmp(norm, "rms") == 0;
    if (!present(config, "lambda_init")) return DQ_OK;
    if (arch->lambda != DQ_LAMBDA_LAYER)
        return dq_fail(err, DQ_MISMATCH, "key \"lambda_init\" has no meaning for %s", arch->name);
    if (json_is_string(init) && strcmp(json_string_value(init), "depth") == 0) return DQ_OK;
    plan->constant_lambda_init = true;
    plan->lambda_init = json_number_value(init);
    if (!json_is_number(init) || !(plan->lambda_init > -10.0 && plan->lambda_init < 10.0))
        return dq_fail(err, DQ_DAMAGED, "key \"lambda_init\": expected \"depth\" or a number");
    return DQ_OK;
}

static void set_shape(dq_model_config *plan, dq_role role, int64_t rows, int64_t cols)
{
    plan->rows[role] = rows;
    plan->cols[role] = cols;
}

dq_status dq_model_config_read(dq_model_config *plan, dq_model *m, const json_t *config,
                               dq_pairing pairing, dq_arena *a, dq_err *err)
{
    static const bool no = false;
    bool attention_bias = false, mlp_bias = false;
    DQ_TRY(dq_architecture_find(&m->architecture, config, err));
    const dq_architecture *arch = m->architecture;
    /* theta may also be among the effective rotary parameters. */
    const json_t *rotary;
    const char *where;
    for (const char *const *key = arch->required; key && *key; key++) {
        bool found = present(config, *key);
        if (!found && strcmp(*key, "rope_theta") == 0) {
            DQ_TRY(dq_model_config_rope(&rotary, &where, config, err));
            found = present(rotary, *key);
        }
        if (!found)
            return dq_fail(err, DQ_DAMAGED, "key \"%s\" is missing (a %s model needs it)", *key,
                           arch->name);
    }
    DQ_TRY(check_only(arch, config, err));
    static const int positions = 2048;
    DQ_TRY(read_int(&m->dim, config, "hidden_size", 1 << 20, NULL, err));
    DQ_TRY(read_int(&m->ffn, config, "intermediate_size", 1 << 24, NULL, err));
    DQ_TRY(read_int(&m->n_layers, config, "num_hidden_layers", 10000, NULL, err));
    DQ_TRY(read_int(&m->vocab, config, "vocab_size", 1 << 24, NULL, err));
    DQ_TRY(
        read_int(&m->max_positions, config, "max_position_embeddings", 1 << 30, &positions, err));
    enum { MAX_HEADS = 16384 };
    static const int none = 0;
    int n_q, n_kv, head_dim, n_noise = 0;
    DQ_TRY(read_int(&n_q, config, "num_attention_heads", MAX_HEADS, NULL, err));
    DQ_TRY(read_int(&n_kv, config, "num_key_value_heads", MAX_HEADS, &n_q, err));
    if (m->architecture->pairing == DQ_PAIR_GROUPED)
        DQ_TRY(read_int(&n_noise, config, "num_noise_heads", MAX_HEADS, &none, err));
    head_dim = arch->default_head_dim ? arch->default_head_dim : m->dim / n_q;
    const json_t *stated = json_object_get(config, "head_dim");
    if (stated && !json_is_null(stated))
        DQ_TRY(read_int(&head_dim, config, "head_dim", 1 << 16, NULL, err));
    else if (m->dim % n_q && !arch->default_head_dim)
        return dq_fail(
            err, DQ_DAMAGED,
            "hidden_size %d is not a multiple of num_attention_heads %d, and there is no head_dim",
            m->dim, n_q);
    DQ_TRY(choose_pairing(&pairing, m->architecture, err));
    DQ_TRY(dq_head_order_build(&m->map, pairing, n_q, n_kv, head_dim, n_noise, a, err));
    m->rope.order = arch->rope;
    DQ_TRY(check_neutral(m, config, err));
    DQ_TRY(check_code(m, config, a, err));
    DQ_TRY(read_ablation(plan, arch, config, err));
    DQ_TRY(read_eps(&m->norm_eps, m, config, "rms_norm_eps", arch->default_norm_eps, a, err));
    plan->head_eps = (float)arch->default_head_eps;
    if (arch->head_eps_key)
        DQ_TRY(read_eps(&plan->head_eps, m, config, arch->head_eps_key, arch->default_head_eps, a,
                        err));
    static const char *const names[][2] = {[DQ_ACT_SILU] = {"silu", "swish"},
                                           [DQ_ACT_GELU] = {"gelu_pytorch_tanh", "gelu_new"},
                                           [DQ_ACT_POLYNORM] = {"poly_norm", "polynorm"}};
    static const char *const keys[] = {"hidden_act", "hidden_activation", "activation_function"};
    const char *const *want = names[m->architecture->act];
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *act = NULL;
        DQ_TRY(dq_json_text(&act, config, keys[i], &want[0], err));
        if (strcmp(act, want[0]) != 0 && strcmp(act, want[1]) != 0)
            return dq_fail(err, DQ_MISMATCH,
                           "key \"%s\": \"%s\" is not supported for %s (expected \"%s\")", keys[i],
                           act, m->architecture->name, want[0]);
    }
    m->embed_scale = arch->scales_embedding ? (float)sqrt((double)m->dim) : 1.0f;
    if (arch->default_scalar > 0) {
        double scalar = arch->default_scalar;
        DQ_TRY(dq_json_float(&scalar, config, "query_pre_attn_scalar", &scalar, err));
        m->map.scale = (float)(1.0 / sqrt(scalar));
        if (!(scalar > 0) || !isfinite(m->map.scale))
            return dq_fail(err, DQ_DAMAGED,
                           "key \"query_pre_attn_scalar\": expected a positive number, found %g",
                           scalar);
    }
    DQ_TRY(dq_json_bool(&m->tied, config, "tie_word_embeddings", &arch->default_tied, err));
    DQ_TRY(dq_json_bool(&attention_bias, config, "attention_bias", &no, err));
    if (arch->mlp_bias) DQ_TRY(dq_json_bool(&mlp_bias, config, "mlp_bias", &no, err));
    DQ_TRY(read_rope(m, config, a, err));
    DQ_TRY(read_no_rope(plan, m, config, a, err));
    DQ_TRY(read_windows(plan, m, config, a, err));
    static const dq_role attention[] = {DQ_ROLE_Q_BIAS, DQ_ROLE_K_BIAS, DQ_ROLE_V_BIAS,
                                        DQ_ROLE_O_BIAS};
    static const dq_role mlp[] = {DQ_ROLE_GATE_BIAS, DQ_ROLE_UP_BIAS, DQ_ROLE_DOWN_BIAS};
    for (int r = 0; r < DQ_ROLE_COUNT; r++) plan->wanted[r] = arch->tensor[r] != NULL;
    for (size_t i = 0; i < sizeof attention / sizeof *attention; i++)
        plan->wanted[attention[i]] &=
            arch->qkv_bias ? attention[i] != DQ_ROLE_O_BIAS : attention_bias;
    for (size_t i = 0; i < sizeof mlp / sizeof *mlp; i++)
        plan->wanted[mlp[i]] &= mlp_bias && arch->mlp_bias;
    plan->wanted[DQ_ROLE_HEAD_GAIN] &= plan->head_norm;
    int64_t dim = m->dim, ffn = m->ffn, d = m->map.head_dim;
    int64_t q = m->map.n_q * d, kv = m->map.n_kv * d, out = (int64_t)m->map.n_out * m->map.n_slabs;
    for (int r = 0; r < DQ_ROLE_COUNT; r++) set_shape(plan, (dq_role)r, dim, 1);
    set_shape(plan, DQ_ROLE_EMBED, m->vocab, dim);
    set_shape(plan, DQ_ROLE_HEAD, m->vocab, dim);
    set_shape(plan, DQ_ROLE_Q, q, dim);
    set_shape(plan, DQ_ROLE_K, kv, dim);
    set_shape(plan, DQ_ROLE_V, kv, dim);
    set_shape(plan, DQ_ROLE_O, dim, out * d);
    set_shape(plan, DQ_ROLE_Q_BIAS, q, 1);
    set_shape(plan, DQ_ROLE_K_BIAS, kv, 1);
    set_shape(plan, DQ_ROLE_V_BIAS, kv, 1);
    set_shape(plan, DQ_ROLE_Q_NORM, d, 1);
    set_shape(plan, DQ_ROLE_K_NORM, d, 1);
    for (int r = DQ_ROLE_LAMBDA_Q1; r <= DQ_ROLE_LAMBDA_K2; r++) set_shape(plan, (dq_role)r, d, 1);
    set_shape(plan, DQ_ROLE_LAMBDA_PROJ, m->map.n_out, dim);
    set_shape(plan, DQ_ROLE_HEAD_GAIN, m->map.n_slabs * d, 1);
    set_shape(plan, DQ_ROLE_GATE, ffn, dim);
    set_shape(plan, DQ_ROLE_UP, ffn, dim);
    set_shape(plan, DQ_ROLE_DOWN, dim, ffn);
    set_shape(plan, DQ_ROLE_GATE_BIAS, ffn, 1);
    set_shape(plan, DQ_ROLE_UP_BIAS, ffn, 1);
    set_shape(plan, DQ_ROLE_ACT_WEIGHT, 3, 1);
    set_shape(plan, DQ_ROLE_ACT_BIAS, 1, 1);
    return DQ_OK;
}
