/* One row per architecture of llama.cpp, and what follows from it: under which names of
 * transformers tensors stand, which rows and values are stored otherwise, and the config.json of a
 * folder with the same model. Keys begin with the architecture's name. Rotary scaling of Llama 3
 * stands in a GGUF file as a tensor of one divisor a frequency; its parameters are found again by
 * computing the divisors from those that published models have.
 *
 * Source: ggml-org/ggml docs/gguf.md (keys); llama.cpp gguf-py/gguf/tensor_mapping.py (names),
 * conversion/llama.py, qwen.py, gemma.py (rows, norms, which keys are written), src/llama-arch.cpp
 * (all keys), src/models and src/llama-context.cpp (defaults, scaling); transformers
 * modeling_rope_utils.py (llama3), configuration_gemma3.py, configuration_smollm3.py.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/inside.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tensors that an architecture has beside those of every one. */
enum {
    BASE = 1,
    NORMS_2 = 2,  /* before attention and before the feed-forward layer */
    NORMS_4 = 4,  /* before and after each of them */
    QK_NORMS = 8, /* of each head's queries and keys */
    QKV_BIAS = 16,
    ALL_BIAS = 32, /* each optional */
};

/* What a file says of a model, while its config.json comes into being. */
typedef struct reader {
    const dq_gguf *g;
    const dq_gguf_architecture *a;
    json_t *config;
    int64_t dim, layers, positions, heads, kv_heads, head_dim;
    char key[96]; /* of key_of */
} reader;

struct dq_gguf_architecture {
    const char *name; /* general.architecture; its keys begin with it */
    const char *model_type, *class_name, *act_key, *act;
    unsigned parts;   /* of the tensors above */
    bool pairs;       /* rows of q and k are in the order of rotary pairs */
    bool shifted;     /* norms are stored with 1 added */
    bool divides;     /* rope_freqs.weight is read */
    double rope_base; /* where the file does not say; 0: it must, as readers differ */
    /* Keys of its own. NULL: none. */
    dq_status (*more)(reader *r, dq_err *err);
};

static dq_status windows_of_llama(reader *r, dq_err *err);
static dq_status gemma3(reader *r, dq_err *err);
static dq_status smollm3(reader *r, dq_err *err);

#define SILU .act_key = "hidden_act", .act = "silu"

static const dq_gguf_architecture architectures[] = {
    {
        .name = "llama",
        .model_type = "llama",
        .class_name = "LlamaForCausalLM",
        SILU,
        .parts = BASE | NORMS_2 | QKV_BIAS | ALL_BIAS,
        .pairs = true,
        .divides = true,
        .rope_base = 10000,
        .more = windows_of_llama,
    },
    {
        .name = "qwen2",
        .model_type = "qwen2",
        .class_name = "Qwen2ForCausalLM",
        SILU,
        .parts = BASE | NORMS_2 | QKV_BIAS,
        .rope_base = 10000,
    },
    {
        .name = "qwen3",
        .model_type = "qwen3",
        .class_name = "Qwen3ForCausalLM",
        SILU,
        .parts = BASE | NORMS_2 | QK_NORMS,
        .rope_base = 10000,
    },
    {
        .name = "smollm3",
        .model_type = "smollm3",
        .class_name = "SmolLM3ForCausalLM",
        SILU,
        .parts = BASE | NORMS_2,
        .pairs = true,
        .more = smollm3,
    },
    {
        .name = "gemma3",
        .model_type = "gemma3_text",
        .class_name = "Gemma3ForCausalLM",
        .act_key = "hidden_activation",
        .act = "gelu_pytorch_tanh",
        .parts = BASE | NORMS_4 | QK_NORMS,
        .shifted = true,
        .more = gemma3,
    },
};
enum { N_ARCHITECTURES = sizeof architectures / sizeof *architectures };

const dq_gguf_architecture *dq_gguf_architecture_find(const char *name)
{
    for (int i = 0; i < N_ARCHITECTURES; i++) {
        if (strcmp(architectures[i].name, name) == 0) return &architectures[i];
    }
    return NULL;
}

const dq_gguf_architecture *dq_gguf_architecture_writes(const char *model_type)
{
    if (strcmp(model_type, "mistral") == 0) return dq_gguf_architecture_find("llama");
    for (int i = 0; i < N_ARCHITECTURES; i++) {
        const dq_gguf_architecture *a = &architectures[i];
        if (strcmp(a->model_type, model_type) == 0 && !a->shifted) return a;
    }
    return NULL;
}

const char *dq_gguf_architecture_name(const dq_gguf_architecture *arch)
{
    return arch->name;
}

bool dq_gguf_architecture_divides(const dq_gguf_architecture *arch)
{
    return arch->divides;
}

/* ---- Names of tensors ----
 * One table, read in both directions. */

typedef struct name_row {
    const char *gguf, *hf; /* after "blk.N." and "model.layers.N." */
    unsigned part;
    dq_gguf_rows rows;
} name_row;

static const name_row outer_names[] = {
    {"token_embd.weight", "model.embed_tokens.weight", BASE, DQ_GGUF_ROWS_PLAIN},
    {"output_norm.weight", "model.norm.weight", BASE, DQ_GGUF_ROWS_NORM},
    {"output.weight", "lm_head.weight", BASE, DQ_GGUF_ROWS_PLAIN},
};
static const name_row layer_names[] = {
    {"attn_norm.weight", "input_layernorm.weight", BASE, DQ_GGUF_ROWS_NORM},
    {"attn_q.weight", "self_attn.q_proj.weight", BASE, DQ_GGUF_ROWS_Q},
    {"attn_k.weight", "self_attn.k_proj.weight", BASE, DQ_GGUF_ROWS_K},
    {"attn_v.weight", "self_attn.v_proj.weight", BASE, DQ_GGUF_ROWS_PLAIN},
    {"attn_output.weight", "self_attn.o_proj.weight", BASE, DQ_GGUF_ROWS_PLAIN},
    {"ffn_gate.weight", "mlp.gate_proj.weight", BASE, DQ_GGUF_ROWS_PLAIN},
    {"ffn_up.weight", "mlp.up_proj.weight", BASE, DQ_GGUF_ROWS_PLAIN},
    {"ffn_down.weight", "mlp.down_proj.weight", BASE, DQ_GGUF_ROWS_PLAIN},
    {"ffn_norm.weight", "post_attention_layernorm.weight", NORMS_2, DQ_GGUF_ROWS_NORM},
    {"post_attention_norm.weight", "post_attention_layernorm.weight", NORMS_4, DQ_GGUF_ROWS_NORM},
    {"ffn_norm.weight", "pre_feedforward_layernorm.weight", NORMS_4, DQ_GGUF_ROWS_NORM},
    {"post_ffw_norm.weight", "post_feedforward_layernorm.weight", NORMS_4, DQ_GGUF_ROWS_NORM},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", QK_NORMS, DQ_GGUF_ROWS_NORM},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", QK_NORMS, DQ_GGUF_ROWS_NORM},
    {"attn_q.bias", "self_attn.q_proj.bias", QKV_BIAS, DQ_GGUF_ROWS_Q},
    {"attn_k.bias", "self_attn.k_proj.bias", QKV_BIAS, DQ_GGUF_ROWS_K},
    {"attn_v.bias", "self_attn.v_proj.bias", QKV_BIAS, DQ_GGUF_ROWS_PLAIN},
    {"attn_output.bias", "self_attn.o_proj.bias", ALL_BIAS, DQ_GGUF_ROWS_PLAIN},
    {"ffn_gate.bias", "mlp.gate_proj.bias", ALL_BIAS, DQ_GGUF_ROWS_PLAIN},
    {"ffn_up.bias", "mlp.up_proj.bias", ALL_BIAS, DQ_GGUF_ROWS_PLAIN},
    {"ffn_down.bias", "mlp.down_proj.bias", ALL_BIAS, DQ_GGUF_ROWS_PLAIN},
};
enum { N_OUTER = sizeof outer_names / sizeof *outer_names };
enum { N_LAYER = sizeof layer_names / sizeof *layer_names };
static const char gguf_layer[] = "blk.", hf_layer[] = "model.layers.";

static const name_row *row_of(const name_row *rows, size_t n, unsigned parts, const char *name,
                              bool by_hf)
{
    for (size_t i = 0; i < n; i++) {
        if (rows[i].part & parts && strcmp(by_hf ? rows[i].hf : rows[i].gguf, name) == 0)
            return &rows[i];
    }
    return NULL;
}

/* What is stored otherwise than in a folder. */
static dq_gguf_rows stored_as(const dq_gguf_architecture *arch, dq_gguf_rows rows)
{
    if (rows == DQ_GGUF_ROWS_NORM) return arch->shifted ? rows : DQ_GGUF_ROWS_PLAIN;
    return arch->pairs ? rows : DQ_GGUF_ROWS_PLAIN;
}

/* The name in the other column; NULL without an error: there is none. */
static const char *other(dq_gguf_rows *rows, const dq_gguf_architecture *arch, const char *name,
                         bool by_hf, dq_arena *a, dq_err *err)
{
    const char *from = by_hf ? hf_layer : gguf_layer, *to = by_hf ? gguf_layer : hf_layer;
    const size_t k = strlen(from);
    const name_row *row = row_of(outer_names, N_OUTER, arch->parts, name, by_hf);
    *rows = row ? stored_as(arch, row->rows) : DQ_GGUF_ROWS_PLAIN;
    if (row) return by_hf ? row->gguf : row->hf;
    if (strncmp(name, from, k) != 0) return NULL;
    const size_t digits = strspn(name + k, "0123456789");
    if (digits == 0 || name[k + digits] != '.') return NULL;
    row = row_of(layer_names, N_LAYER, arch->parts, name + k + digits + 1, by_hf);
    if (!row) return NULL;
    *rows = stored_as(arch, row->rows);
    return dq_textf(a, err, "%s%.*s.%s", to, (int)digits, name + k, by_hf ? row->gguf : row->hf);
}

const char *dq_gguf_name_of(dq_gguf_rows *rows, const dq_gguf_architecture *arch, const char *hf,
                            dq_arena *a, dq_err *err)
{
    return other(rows, arch, hf, true, a, err);
}

const char *dq_gguf_name_hf(dq_gguf_rows *rows, const dq_gguf_architecture *arch, const char *gguf,
                            dq_arena *a, dq_err *err)
{
    return other(rows, arch, gguf, false, a, err);
}

static const char divisors_name[] = "rope_freqs.weight";

bool dq_gguf_divides(const dq_gguf_architecture *arch, const char *gguf)
{
    return arch->divides && strcmp(gguf, divisors_name) == 0;
}

/* ---- Keys ---- */

enum { MOST_HEAD_DIM = 1 << 16, MOST_LAYERS = 10000 };

static const char *key_of(reader *r, const char *name)
{
    snprintf(r->key, sizeof r->key, "%s.%s", r->a->name, name);
    return r->key;
}

static float divisor_at(const dq_gguf_tensor *t, int64_t i)
{
    float x;
    memcpy(&x, t->data + (size_t)i * sizeof x, sizeof x);
    return x;
}

/* Whether these f32 divisors are llama3's with `factor`, 1, 4 and 8192 positions. */
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

typedef struct scaling {
    bool yarn;
    double factor, gain; /* divisor of frequencies; factor of cosine and sine; 1: none */
    int64_t original;    /* positions */
} scaling;

static bool is_one(double x)
{
    return !(x < 1 || x > 1);
}

/* A number above 0 of the last key_of; `usual` where the key is absent, unless that is 0. */
static dq_status positive(double *out, const reader *r, double usual, dq_err *err)
{
    DQ_TRY(dq_json_float(out, r->g->fields, r->key, usual > 0 ? &usual : NULL, err));
    if (*out > 0) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected more than 0, found %g", r->key, *out);
}

/* NULL: unscaled. Each form is the narrowest that transformers has for it. */
static dq_status rope_json(json_t **out, const scaling *s, const dq_gguf_tensor *t, const reader *r,
                           double theta, dq_err *err)
{
    const int64_t n = r->head_dim / 2;
    const bool yarn = s->yarn && !is_one(s->factor), plain = is_one(s->factor) && is_one(s->gain);
    float most = 0;
    if (t) {
        if (t->n_dims != 1 || t->type != DQ_GGML_F32 || t->shape[0] != n)
            return dq_fail(
                err, DQ_DAMAGED, "tensor \"%s\": expected %lld divisors in F32, found %lld in %s",
                t->name, (long long)n, (long long)t->shape[0], dq_gguf_type_name(t->type));
        for (int64_t i = 0; i < n; i++) {
            const float x = divisor_at(t, i);
            if (!isfinite(x) || !(x > 0))
                return dq_fail(err, DQ_DAMAGED,
                               "tensor \"%s\": divisor %lld is not a finite number above 0",
                               t->name, (long long)i);
        }
    }
    for (int64_t i = 0; t && i < n; i++) most = fmaxf(most, divisor_at(t, i));
    if (t && yarn)
        return dq_fail(err, DQ_MISMATCH,
                       "key \"%s.rope.scaling.factor\": %g of yarn beside the divisors of "
                       "tensor \"%s\" is not supported (expected 1)",
                       r->a->name, s->factor, t->name);
    if (t && plain && is_llama3(t, n, theta, (double)most))
        *out = json_pack("{s:s, s:f, s:f, s:f, s:i}", "rope_type", "llama3", "factor", (double)most,
                         "low_freq_factor", 1.0, "high_freq_factor", 4.0,
                         "original_max_position_embeddings", 8192);
    else if (t || (!yarn && !is_one(s->factor) && !is_one(s->gain))) {
        /* A divisor per frequency holds at any length: the file's, if present, times the factor. */
        json_t *list = json_array();
        for (int64_t i = 0; i < n; i++)
            json_array_append_new(list, json_real(s->factor * (t ? (double)divisor_at(t, i) : 1)));
        *out = json_pack("{s:s, s:O, s:o, s:f, s:f, s:I}", "rope_type", "longrope", "short_factor",
                         list, "long_factor", list, "factor", 1.0, "attention_factor", s->gain,
                         "original_max_position_embeddings", (json_int_t)s->original);
    } else if (yarn || !is_one(s->gain)) {
        /* yarn's own gain follows from its factor and multiplies the file's; a gain alone is yarn
         * with factor 1. */
        const double own = s->factor > 1 ? 1 + 0.1 * log(s->factor) : 1;
        json_t *rope = json_pack("{s:s, s:f, s:I}", "rope_type", "yarn", "factor", s->factor,
                                 "original_max_position_embeddings", (json_int_t)s->original);
        if (!is_one(s->gain))
            json_object_set_new(rope, "attention_factor", json_real(own * s->gain));
        *out = rope;
    } else if (!plain)
        *out = json_pack("{s:s, s:f}", "rope_type", "linear", "factor", s->factor);
    return DQ_OK;
}

static dq_status set_rope(reader *r, dq_err *err)
{
    const dq_gguf_tensor *divisors = r->a->divides ? dq_gguf_find(r->g, divisors_name) : NULL;
    const json_t *f = r->g->fields;
    json_t *rope = NULL;
    scaling s;
    double theta;
    int64_t turned;
    key_of(r, "rope.freq_base");
    DQ_TRY(positive(&theta, r, r->a->rope_base, err));
    DQ_TRY(dq_json_int(&turned, f, key_of(r, "rope.dimension_count"), 1, MOST_HEAD_DIM,
                       &r->head_dim, err));
    if (turned != r->head_dim)
        return dq_fail(err, DQ_MISMATCH,
                       "key \"%s\": %lld of %lld elements of a head are rotated; only all are "
                       "supported",
                       r->key, (long long)turned, (long long)r->head_dim);
    json_object_set_new(r->config, "rope_theta", json_real(theta));
    /* A missing type is linear, and a factor of 0 is none. */
    static const char *const usual = "linear";
    static const double none = 0;
    const char *type;
    DQ_TRY(dq_gguf_text(&type, f, key_of(r, "rope.scaling.type"), &usual, err));
    s.yarn = strcmp(type, "yarn") == 0;
    if (!s.yarn && strcmp(type, "linear") != 0 && strcmp(type, "none") != 0)
        return dq_fail(err, DQ_MISMATCH,
                       "key \"%s\": \"%s\" is not supported (expected none, linear or yarn)",
                       r->key, type);
    DQ_TRY(dq_json_float(&s.factor, f, key_of(r, "rope.scale_linear"), &none, err));
    DQ_TRY(dq_json_float(&s.factor, f, key_of(r, "rope.scaling.factor"), &s.factor, err));
    if (s.factor < 0)
        return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected at least 0, found %g", r->key,
                       s.factor);
    if (!(s.factor > 0) || strcmp(type, "none") == 0) s.factor = 1;
    key_of(r, "rope.scaling.attn_factor");
    DQ_TRY(positive(&s.gain, r, 1, err));
    DQ_TRY(dq_json_int(&s.original, f, key_of(r, "rope.scaling.original_context_length"), 0,
                       1 << 30, &r->positions, err));
    if (s.original == 0) s.original = r->positions;
    /* llama.cpp scales windows too by these; transformers does not. */
    if (r->a->more == gemma3 && ((s.yarn && !is_one(s.factor)) || !is_one(s.gain)))
        return dq_fail(err, DQ_MISMATCH,
                       "keys \"%s.rope.scaling.*\": yarn or a factor of cosine and sine is not "
                       "supported beside windows (expected linear)",
                       r->a->name);
    DQ_TRY(rope_json(&rope, &s, divisors, r, theta, err));
    if (rope) json_object_set_new(r->config, "rope_scaling", rope);
    return DQ_OK;
}

/* GGUF files that are no language model, recognized by one key. */
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
    char known[96] = "";
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
    if (dq_gguf_architecture_find(name)) return DQ_OK;
    for (int i = 0; i < N_ARCHITECTURES; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                 architectures[i].name);
    return dq_fail(err, DQ_MISMATCH,
                   "architecture \"%s\" is not read from GGUF files (read are %s). Name a file of "
                   "one of these, or the folder of a model that dq reads.",
                   name, known);
}

/* Keys that are not read: other values than these would change the model. */
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

static dq_status check_only(reader *r, const char *name, double a, double b, dq_err *err)
{
    static const double none = 0;
    const char *key = key_of(r, name);
    double x = a;
    const dq_gguf_list *list;
    const json_t *v = json_object_get(r->g->fields, key);
    DQ_TRY(dq_gguf_find_list(&list, r->g, key, err));
    if (!v || (list && list->texts)) return v ? dq_json_wrong(key, "numbers", v, err) : DQ_OK;
    if (json_is_boolean(v))
        x = json_is_true(v);
    else if (!list)
        DQ_TRY(dq_json_float(&x, r->g->fields, key, &none, err));
    for (size_t i = 0; list && i < list->n && (near(x, a) || near(x, b)); i++)
        x = dq_gguf_list_number(list, i);
    if (near(x, a) || near(x, b)) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH, "key \"%s\": %g is not supported (expected %g)", key, x, b);
}

static dq_status check_text(reader *r, const char *name, const char *a, const char *b, dq_err *err)
{
    const char *text;
    DQ_TRY(dq_gguf_text(&text, r->g->fields, key_of(r, name), &a, err));
    if (strcmp(text, a) == 0 || strcmp(text, b) == 0) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH, "key \"%s\": \"%s\" is not supported (expected \"%s\")",
                   r->key, text, a);
}

/* The window in tokens; 0: none, or one that no text of the model reaches. */
static dq_status read_window(int64_t *window, reader *r, dq_err *err)
{
    static const double none = 0;
    double x;
    DQ_TRY(dq_json_float(&x, r->g->fields, key_of(r, "attention.sliding_window"), &none, err));
    if (!(x >= 0) || fmod(x, 1) > 0)
        return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected a whole number, found %g", r->key, x);
    *window = x < (double)r->positions ? (int64_t)x : 0;
    return DQ_OK;
}

static dq_status check_keys(reader *r, dq_err *err)
{
    const double width = (double)r->head_dim;
    const json_t *scalar = json_object_get(r->config, "query_pre_attn_scalar");
    int64_t window;
    for (size_t i = 0; i < sizeof only / sizeof *only; i++)
        DQ_TRY(check_only(r, only[i].key, only[i].fine[0], only[i].fine[1], err));
    static const char *const widths[] = {"attention.value_length", "attention.key_length_swa",
                                         "attention.value_length_swa", "rope.dimension_count_swa"};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        DQ_TRY(check_only(r, widths[i], width, width, err));
    DQ_TRY(check_only(r, "attention.scale", 0, 1 / sqrt(scalar ? json_number_value(scalar) : width),
                      err));
    DQ_TRY(check_only(r, "embedding_length_out", 0, (double)r->dim, err));
    DQ_TRY(read_window(&window, r, err));
    if (window && !json_object_get(r->config, "sliding_window"))
        DQ_TRY(check_only(r, "attention.sliding_window", 0, 0, err));
    DQ_TRY(check_text(r, "tensor_data_layout", "reference", "Meta AI original pth", err));
    if (strcmp(r->a->act, "silu") != 0)
        return check_text(r, "hidden_activation", r->a->act, "gelu", err);
    return check_text(r, "hidden_activation", "silu", "swish", err);
}

/* Copies an integer key, or a list with the same value for every layer. */
static dq_status copy_int(reader *r, const char *name, const char *key, const int64_t *fallback,
                          int64_t *out, dq_err *err)
{
    const dq_gguf_list *list;
    const json_t *one = r->g->fields;
    json_t *same = NULL;
    key_of(r, key);
    DQ_TRY(dq_gguf_find_list(&list, r->g, r->key, err));
    if (list && !list->texts && list->n) {
        const double first = dq_gguf_list_number(list, 0);
        for (size_t i = 1; i < list->n; i++) {
            const double x = dq_gguf_list_number(list, i);
            if (x < first || x > first)
                return dq_fail(err, DQ_MISMATCH,
                               "key \"%s\": numbers that differ by layer are not supported",
                               r->key);
        }
        one = same = json_pack("{s:f}", r->key, first);
    }
    if (dq_json_int(out, one, r->key, 1, 1 << 30, fallback, err) == DQ_OK)
        json_object_set_new(r->config, name, json_integer(*out));
    json_decref(same);
    return err->code;
}

/* In some layer: biases are optional per tensor, and a missing one becomes zero. */
static bool has_bias(const dq_gguf *g, const char *part)
{
    for (int64_t i = 0; i < g->n_tensors; i++) {
        const char *name = g->tensor[i].name, *end = strrchr(name, '.');
        if (end && strcmp(end, ".bias") == 0 && strstr(name, part)) return true;
    }
    return false;
}

bool dq_gguf_has_bias(const dq_gguf_architecture *arch, const json_t *config, const char *gguf)
{
    if (!(arch->parts & QKV_BIAS)) return false;
    if (!(arch->parts & ALL_BIAS)) return strstr(gguf, ".attn_") && !strstr(gguf, ".attn_output");
    const char *key = strstr(gguf, ".attn_")  ? "attention_bias"
                      : strstr(gguf, ".ffn_") ? "mlp_bias"
                                              : NULL;
    return key && json_is_true(json_object_get(config, key));
}

static void set_flag(reader *r, const char *name, bool value)
{
    json_object_set_new(r->config, name, json_boolean(value));
}

/* Only a Mistral has a window: it is a Llama in GGUF. */
static dq_status windows_of_llama(reader *r, dq_err *err)
{
    int64_t window;
    const bool attention = has_bias(r->g, ".attn_"), mlp = has_bias(r->g, ".ffn_");
    DQ_TRY(read_window(&window, r, err));
    if (!window || attention || mlp) {
        set_flag(r, "attention_bias", attention);
        set_flag(r, "mlp_bias", mlp);
        return DQ_OK;
    }
    json_object_set_new(r->config, "architectures", json_pack("[s]", "MistralForCausalLM"));
    json_object_set_new(r->config, "model_type", json_string("mistral"));
    json_object_set_new(r->config, "sliding_window", json_integer(window));
    return DQ_OK;
}

/* No key says which layers do not rotate: it is every fourth in llama.cpp. transformers has a
 * token for padding where none is named. */
static dq_status smollm3(reader *r, dq_err *err)
{
    enum { EVERY = 4 };
    json_t *list = json_array();
    (void)err;
    for (int64_t i = 0; i < r->layers; i++)
        json_array_append_new(list, json_integer((i + 1) % EVERY != 0));
    json_object_set_new(r->config, "no_rope_layers", list);
    json_object_set_new(r->config, "no_rope_layer_interval", json_integer(EVERY));
    if (!json_object_get(r->config, "pad_token_id"))
        json_object_set_new(r->config, "pad_token_id", json_null());
    set_flag(r, "attention_bias", false);
    set_flag(r, "mlp_bias", false);
    return DQ_OK;
}

/* Whether layer i has the window: by a list, or all but every sixth, or another number. */
static dq_status read_pattern(const dq_gguf_list **list, int64_t *every, reader *r, dq_err *err)
{
    static const int64_t sixth = 6;
    key_of(r, "attention.sliding_window_pattern");
    DQ_TRY(dq_gguf_find_list(list, r->g, r->key, err));
    *every = sixth;
    if (!*list) return dq_json_int(every, r->g->fields, r->key, 0, INT32_MAX, &sixth, err);
    if (!(*list)->texts && (*list)->n == (size_t)r->layers) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected a number for each of %lld layers", r->key,
                   (long long)r->layers);
}

/* llama.cpp divides logits by sqrt of head_dim, but for the model of 62 layers (27B). */
static dq_status gemma3(reader *r, dq_err *err)
{
    enum { LAYERS_27B = 62 };
    static const int64_t none = 0;
    const dq_gguf_list *list;
    int64_t window, every;
    double base;
    json_t *types = json_array();
    json_object_set_new(r->config, "layer_types", types);
    json_object_set_new(r->config, "query_pre_attn_scalar",
                        json_integer(r->layers == LAYERS_27B ? r->dim / r->heads : r->head_dim));
    DQ_TRY(dq_json_int(&window, r->g->fields, key_of(r, "attention.sliding_window"), 0, INT32_MAX,
                       &none, err));
    DQ_TRY(read_pattern(&list, &every, r, err));
    key_of(r, "rope.freq_base_swa");
    DQ_TRY(positive(&base, r, 10000, err));
    json_object_set_new(r->config, "rope_local_base_freq", json_real(base));
    json_object_set_new(r->config, "sliding_window", window ? json_integer(window) : json_null());
    for (int64_t i = 0; i < r->layers; i++) {
        const bool local =
            list ? dq_gguf_list_number(list, (size_t)i) > 0 : every == 0 || i % every < every - 1;
        json_array_append_new(
            types, json_string(window && local ? "sliding_attention" : "full_attention"));
    }
    return DQ_OK;
}

static dq_status fill(reader *r, dq_err *err)
{
    int64_t ffn;
    double eps;
    const dq_gguf *g = r->g;
    json_t *config = r->config;
    const char *name;
    DQ_TRY(dq_gguf_text(&name, g->fields, "general.architecture", NULL, err));
    r->a = dq_gguf_architecture_find(name);
    if (!r->a) return dq_gguf_config_kind(g->fields, err);
    if (g->n_tensors == 0)
        return dq_fail(err, DQ_MISMATCH,
                       "is no language model: it holds a vocabulary and no tensors. Name the file "
                       "of a model.");
    json_object_set_new(config, "architectures", json_pack("[s]", r->a->class_name));
    json_object_set_new(config, "model_type", json_string(r->a->model_type));
    json_object_set_new(config, r->a->act_key, json_string(r->a->act));
    DQ_TRY(copy_int(r, "hidden_size", "embedding_length", NULL, &r->dim, err));
    DQ_TRY(copy_int(r, "intermediate_size", "feed_forward_length", NULL, &ffn, err));
    DQ_TRY(copy_int(r, "num_hidden_layers", "block_count", NULL, &r->layers, err));
    if (r->layers > MOST_LAYERS)
        return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected at most %d, found %lld", r->key,
                       MOST_LAYERS, (long long)r->layers);
    DQ_TRY(copy_int(r, "max_position_embeddings", "context_length", NULL, &r->positions, err));
    DQ_TRY(copy_int(r, "num_attention_heads", "attention.head_count", NULL, &r->heads, err));
    DQ_TRY(copy_int(r, "num_key_value_heads", "attention.head_count_kv", &r->heads, &r->kv_heads,
                    err));
    const int64_t usual = r->dim / r->heads > 0 ? r->dim / r->heads : 1;
    DQ_TRY(copy_int(r, "head_dim", "attention.key_length", &usual, &r->head_dim, err));
    if (r->head_dim > MOST_HEAD_DIM)
        return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected at most %d, found %lld", r->key,
                       MOST_HEAD_DIM, (long long)r->head_dim);
    key_of(r, "attention.layer_norm_rms_epsilon");
    DQ_TRY(dq_json_float(&eps, g->fields, r->key, NULL, err));
    json_object_set_new(config, "rms_norm_eps", json_real(eps));
    set_flag(r, "tie_word_embeddings", !dq_gguf_find(g, "output.weight"));
    const dq_gguf_tensor *embed = dq_gguf_find(g, "token_embd.weight");
    if (!embed || embed->n_dims != 2)
        return dq_fail(err, DQ_DAMAGED, "tensor \"token_embd.weight\" is missing");
    json_object_set_new(config, "vocab_size", json_integer(embed->shape[0]));
    static const char *const names[][2] = {{"bos_token_id", "tokenizer.ggml.bos_token_id"},
                                           {"eos_token_id", "tokenizer.ggml.eos_token_id"},
                                           {"pad_token_id", "tokenizer.ggml.padding_token_id"}};
    static const int64_t none = -1;
    for (int i = 0; i < 3; i++) {
        int64_t id;
        DQ_TRY(dq_json_int(&id, g->fields, names[i][1], 0, INT32_MAX, &none, err));
        if (id >= 0) json_object_set_new(config, names[i][0], json_integer(id));
    }
    if (r->a->more) DQ_TRY(r->a->more(r, err));
    DQ_TRY(check_keys(r, err));
    return set_rope(r, err);
}

dq_status dq_gguf_config(json_t **out, int64_t *heads, int64_t *kv_heads, const dq_gguf *g,
                         dq_err *err)
{
    reader r = {.g = g, .config = json_object()};
    *out = NULL;
    *heads = *kv_heads = 0;
    if (fill(&r, err) == DQ_OK) {
        *out = r.config;
        *heads = r.heads;
        *kv_heads = r.kv_heads;
        return DQ_OK;
    }
    json_decref(r.config);
    return err->code;
}
