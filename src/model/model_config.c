/* model_config: see model_config.h. config.json is read by the architecture's row: required keys, keys with only one
 * value that is run, sizes, heads, rotary parameters. Then every role gets its shape, or is marked absent, and the
 * loader compares tensors with that and nothing else.
 * SPDX-License-Identifier: MIT */
#include "model/model_config.h"

#include <string.h>
#include <strings.h>

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

/* Limits are far above any published model; they keep products of sizes inside 64 bits. */
static dq_status read_sizes(dq_model *m, const json_t *config, dq_err *err)
{
    static const int positions = 2048;
    DQ_TRY(read_int(&m->dim, config, "hidden_size", 1 << 20, NULL, err));
    DQ_TRY(read_int(&m->ffn, config, "intermediate_size", 1 << 24, NULL, err));
    DQ_TRY(read_int(&m->n_layers, config, "num_hidden_layers", 10000, NULL, err));
    DQ_TRY(read_int(&m->vocab, config, "vocab_size", 1 << 24, NULL, err));
    return read_int(&m->max_positions, config, "max_position_embeddings", 1 << 30, &positions, err);
}

/* The pairing of the architecture, or the one the caller wants to try on the same shapes. */
static dq_status choose_pairing(dq_pairing *pairing, const dq_architecture *arch, dq_err *err)
{
    if (*pairing == DQ_PAIR_COUNT || arch->pairing == DQ_PAIR_NONE) *pairing = arch->pairing;
    if (dq_head_order_pairing_same_shape(arch->pairing, *pairing)) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH, "head order \"%s\" does not fit a %s model, which has \"%s\"",
                   dq_head_order_pairing_name(*pairing), arch->name,
                   dq_head_order_pairing_name(arch->pairing));
}

static dq_status read_heads(dq_model *m, const json_t *config, dq_pairing pairing, dq_arena *a,
                            dq_err *err)
{
    enum { MAX_HEADS = 16384 };
    static const int none = 0;
    int n_q, n_kv, head_dim, n_noise = 0;
    DQ_TRY(read_int(&n_q, config, "num_attention_heads", MAX_HEADS, NULL, err));
    DQ_TRY(read_int(&n_kv, config, "num_key_value_heads", MAX_HEADS, &n_q, err));
    if (m->architecture->pairing == DQ_PAIR_GROUPED)
        DQ_TRY(read_int(&n_noise, config, "num_noise_heads", MAX_HEADS, &none, err));
    head_dim = m->dim / n_q;
    const json_t *stated = json_object_get(config, "head_dim");
    if (stated && !json_is_null(stated))
        DQ_TRY(read_int(&head_dim, config, "head_dim", 1 << 16, NULL, err));
    else if (m->dim % n_q)
        return dq_fail(
            err, DQ_DAMAGED,
            "hidden_size %d is not a multiple of num_attention_heads %d, and there is no "
            "head_dim",
            m->dim, n_q);
    DQ_TRY(choose_pairing(&pairing, m->architecture, err));
    return dq_head_order_build(&m->map, pairing, n_q, n_kv, head_dim, n_noise, a, err);
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

/* The names of the one activation that an architecture has. */
static dq_status check_act(const dq_model *m, const json_t *config, dq_err *err)
{
    static const char *const names[][2] = {
        [DQ_ACT_SILU] = {"silu", "swish"}, [DQ_ACT_POLYNORM] = {"poly_norm", "polynorm"}};
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
    return DQ_OK;
}

/* theta may also stand among the rotary parameters; where several objects hold such, only the one
 * that counts does. */
static dq_status check_required(const dq_architecture *arch, const json_t *config, dq_err *err)
{
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
    return DQ_OK;
}

/* Keys of which only one value is run. */
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

/* ---- Keys of related architectures ---- */

/* A key that another architecture reads may stand where this one ignores it, with a value that changes nothing. */

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

/* One kind of layer, the only one there is. */
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

/* Names of the two kinds that follow a pattern are told by it. */
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

/* Of an architecture that goes by use_sliding_window, false unless it is there, check_only has seen it. */
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
        if (!n || n->is(value, m)) continue;
        if (n->is == is_beyond && has_no_window(m->architecture, config)) continue;
        dq_err why = {0};
        dq_json_wrong(key, n->expected, value, &why);
        return dq_fail(err, DQ_MISMATCH,
                       "%s: programs that read it compute something else. Take the key out to run "
                       "a plain %s.",
                       why.text, m->architecture->name);
    }
    return DQ_OK;
}

/* Code that comes with the weights is not run, so that it may compute something else. */
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
            "key \"auto_map\": the model's own code \"%s\" is not run (expected the class "
            "%s)",
            code, arch->class_name);
    if (arch->remote_code) return DQ_OK;
    const char *text = dq_textf(a, err,
                                "auto_map of config.json names code of the model's own (%s), which "
                                "is not run: the model is read as a %s of transformers",
                                code, arch->name);
    return text ? dq_model_config_warn(m, a, text, err) : err->code;
}

/* Table 6 of the paper: without the norm over each head, and lambda_init the same in every layer. */
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

static void want_roles(dq_model_config *plan, const dq_architecture *arch, bool attention_bias,
                       bool mlp_bias)
{
    static const dq_role attention[] = {DQ_ROLE_Q_BIAS, DQ_ROLE_K_BIAS, DQ_ROLE_V_BIAS,
                                        DQ_ROLE_O_BIAS};
    static const dq_role mlp[] = {DQ_ROLE_GATE_BIAS, DQ_ROLE_UP_BIAS, DQ_ROLE_DOWN_BIAS};
    for (int r = 0; r < DQ_ROLE_COUNT; r++) plan->wanted[r] = arch->tensor[r] != NULL;
    for (size_t i = 0; i < sizeof attention / sizeof *attention; i++)
        plan->wanted[attention[i]] &= attention_bias;
    for (size_t i = 0; i < sizeof mlp / sizeof *mlp; i++)
        plan->wanted[mlp[i]] &= mlp_bias && arch->mlp_bias;
    plan->wanted[DQ_ROLE_HEAD_GAIN] &= plan->head_norm;
}

static void set_shape(dq_model_config *plan, dq_role role, int64_t rows, int64_t cols)
{
    plan->rows[role] = rows;
    plan->cols[role] = cols;
}

static void set_shapes(dq_model_config *plan, const dq_model *m)
{
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
}

dq_status dq_model_config_read(dq_model_config *plan, dq_model *m, const json_t *config,
                               dq_pairing pairing, dq_arena *a, dq_err *err)
{
    static const bool no = false;
    bool attention_bias = false, mlp_bias = false;
    DQ_TRY(dq_architecture_find(&m->architecture, config, err));
    const dq_architecture *arch = m->architecture;
    DQ_TRY(check_required(arch, config, err));
    DQ_TRY(check_only(arch, config, err));
    DQ_TRY(read_sizes(m, config, err));
    DQ_TRY(read_heads(m, config, pairing, a, err));
    m->rope.order = arch->rope;
    DQ_TRY(check_neutral(m, config, err));
    DQ_TRY(check_code(m, config, a, err));
    DQ_TRY(read_ablation(plan, arch, config, err));
    DQ_TRY(read_eps(&m->norm_eps, m, config, "rms_norm_eps", arch->default_norm_eps, a, err));
    plan->head_eps = (float)arch->default_head_eps;
    if (arch->head_eps_key)
        DQ_TRY(read_eps(&plan->head_eps, m, config, arch->head_eps_key, arch->default_head_eps, a,
                        err));
    DQ_TRY(check_act(m, config, err));
    DQ_TRY(dq_json_bool(&m->tied, config, "tie_word_embeddings", &no, err));
    DQ_TRY(dq_json_bool(&attention_bias, config, "attention_bias", &no, err));
    if (arch->mlp_bias) DQ_TRY(dq_json_bool(&mlp_bias, config, "mlp_bias", &no, err));
    DQ_TRY(dq_model_rope_read(&m->rope, arch->rope, m->map.head_dim, config, m->max_positions, a,
                              err));
    want_roles(plan, arch, attention_bias, mlp_bias);
    set_shapes(plan, m);
    return DQ_OK;
}
