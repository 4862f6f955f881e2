/* Tests of model loading: golden checkpoints, both spellings of a configuration, tied heads, and
 * what happens to every kind of damaged or foreign input.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/os.h"
#include "checkpoint/checkpoint.h"
#include "tests/rigs/edits.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- Goldens ---- */

static const struct golden {
    const char *name, *family;
    int n_layers, n_q, n_kv, head_dim;
    bool tied, attention_bias, mlp_bias;
    dq_dtype dtype;
} goldens[] = {
    {"llama-f32", "llama", 3, 4, 2, 12, true, false, false, DQ_F32},
    {"llama-bf16-bias", "llama", 3, 4, 2, 24, false, true, true, DQ_BF16},
    {"llama-f16-linear", "llama", 3, 8, 2, 16, false, false, false, DQ_F16},
    {"llama-bf16-far", "llama", 3, 4, 4, 16, true, false, false, DQ_BF16},
    {"diffllama-f32", "diffllama", 3, 4, 2, 12, true, false, false, DQ_F32},
    {"diffllama-bf16-far", "diffllama", 3, 8, 4, 16, true, false, false, DQ_BF16},
    {"diffllama-f16-shards", "diffllama", 4, 8, 2, 8, false, true, false, DQ_F16},
    {"diffllama-bf16-untied", "diffllama", 3, 8, 4, 12, false, false, false, DQ_BF16},
    {"qwen2-bf16", "qwen2", 3, 6, 2, 8, true, true, false, DQ_BF16},
    {"qwen3-f32", "qwen3", 3, 6, 2, 16, false, false, false, DQ_F32},
    {"smollm3-bf16", "smollm3", 4, 4, 2, 12, true, false, false, DQ_BF16},
    {"mistral-f16", "mistral", 3, 4, 2, 20, false, false, false, DQ_F16},
    {"qwen2-window", "qwen2", 3, 6, 2, 8, true, true, false, DQ_BF16},
    {"qwen3-window", "qwen3", 3, 6, 2, 16, true, false, false, DQ_BF16},
    {"mistral-window", "mistral", 3, 4, 2, 20, false, false, false, DQ_F16},
    {"smollm3-window", "smollm3", 4, 4, 2, 12, true, false, false, DQ_BF16},
    {"gemma3-f32", "gemma3", 4, 4, 2, 20, true, false, false, DQ_F32},
    {"gemma3-bf16-wide", "gemma3", 3, 2, 1, 256, false, false, false, DQ_BF16},
};

/* Frequencies bit by bit, and lambda of every layer. */
static void check_reference(const dq_model *m, const char *name)
{
    char path[512];
    dq_os_map map;
    dq_err err = {0};
    dq_tensor *t;
    int64_t n;
    dq_arena *a = given_arena();
    snprintf(path, sizeof path, MODELS "%s/golden.safetensors", name);
    assert_int_equal(dq_os_map_open(&map, path, &err), DQ_OK);
    assert_int_equal(dq_safetensors_parse(&t, &n, map.data, map.bytes, a, &err), DQ_OK);
    for (int64_t i = 0; i < n; i++) {
        float x[64];
        int64_t count = dq_tensor_numel(&t[i]);
        if (strcmp(t[i].name, "inv_freq") == 0) {
            assert_int_equal(count, m->rope.dim / 2);
            assert_memory_equal(m->rope.inv_freq, t[i].data, dq_tensor_bytes(&t[i]));
        }
        if (strcmp(t[i].name, "local_inv_freq") == 0) {
            assert_int_equal(count, m->local_rope.dim / 2);
            assert_memory_equal(m->local_rope.inv_freq, t[i].data, dq_tensor_bytes(&t[i]));
        }
        if (strcmp(t[i].name, "lambda") == 0) {
            bool plain = m->layer[0].attn.lambda_kind == DQ_LAMBDA_NONE;
            assert_int_equal(count, plain ? 0 : m->n_layers);
            dq_tensor_to_f32(x, t[i].data, t[i].dtype, count);
            for (int l = 0; l < count; l++)
                assert_true(fabsf(m->layer[l].attn.lambda - x[l]) < 1e-6f);
        }
    }
    dq_os_map_close(&map);
}

TEST(golden_checkpoints_load)
{
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        const struct golden *g = &goldens[i];
        char path[512];
        dq_err err = {0};
        dq_model *m;
        snprintf(path, sizeof path, MODELS "%s%s", g->name, i % 2 ? "///" : "");
        assert_int_equal(dq_model_open(&m, path, &err), DQ_OK);
        assert_string_equal(m->name, g->name);
        assert_string_equal(m->path, path);
        assert_string_equal(m->architecture->name, g->family);
        assert_int_equal(m->n_layers, g->n_layers);
        assert_int_equal(m->map.n_q, g->n_q);
        assert_int_equal(m->map.n_kv, g->n_kv);
        assert_int_equal(m->map.head_dim, g->head_dim);
        assert_int_equal(m->tied, g->tied);
        assert_int_equal(m->layer[0].q.dtype, g->dtype);
        assert_int_equal(m->head.data == m->embed.data, g->tied);
        assert_int_equal(m->layer[1].o_bias != NULL,
                         g->attention_bias && strcmp(g->family, "qwen2") != 0);
        const bool gemma = strcmp(g->family, "gemma3") == 0;
        assert_int_equal(m->layer[1].k_norm != NULL, gemma || strcmp(g->family, "qwen3") == 0);
        assert_int_equal(m->layer[1].norm_attn_out != NULL, gemma);
        assert_int_equal(m->local_rope.dim, gemma ? g->head_dim : 0);
        assert_int_equal(m->layer[1].down_bias != NULL, g->mlp_bias);
        assert_int_equal(m->weight_bits, 16);
        assert_string_equal(m->weight_group, "");
        assert_int_equal(m->weight_bytes, m->n_params * (int64_t)dq_dtypes[g->dtype].bytes);
        assert_int_equal(m->n_warnings, 0);
        assert_int_equal(strlen(m->fingerprint), 64);
        assert_true(
            fabsf(m->norm_eps - (strncmp(g->family, "qwen", 4) && strcmp(g->family, "smollm3") &&
                                         strcmp(g->name, "gemma3-f32")
                                     ? 1e-5f
                                     : 1e-6f)) < 1e-9f);
        check_reference(m, g->name);
        dq_model_close(m);
    }
}

TEST(depth_sets_lambda_init)
{
    static const double want[3] = {0.2, 0.3555091, 0.4707130};
    dq_model *m = given_model(MODELS "diffllama-f32");
    for (int l = 0; l < 3; l++) {
        assert_true(fabs((double)m->layer[l].lambda_init - want[l]) < 1e-7);
        assert_true(fabs((double)m->layer[l].attn.out_scale - (1.0 - want[l])) < 1e-7);
        assert_true(m->layer[l].attn.head_norm);
        assert_null(m->layer[l].attn.gain);
        assert_ptr_equal(m->layer[l].attn.map, &m->map);
    }
    dq_model_close(m);
}

/* ---- Configurations ---- */

#define SLIDING "[\"full_attention\", \"sliding_attention\", \"full_attention\"]"

TEST(configurations_end_in_their_status)
{
    static const char big[] = "1099511627776";
    static const edits_trial t[] = {
        {SET("llama-f32", "hidden_size", big), DQ_DAMAGED, "\"hidden_size\""},
        {SET("llama-f32", "hidden_size", "0"), DQ_DAMAGED, "\"hidden_size\""},
        {SET("llama-f32", "hidden_size", "-48"), DQ_DAMAGED, "\"hidden_size\""},
        {SET("llama-f32", "hidden_size", "\"48\""), DQ_DAMAGED, "\"hidden_size\""},
        {SET("llama-f32", "hidden_size", "48.5"), DQ_DAMAGED, "\"hidden_size\""},
        {SET("llama-f32", "hidden_size", "4.80e1"), DQ_OK, ""},
        {SET("llama-f32", "hidden_size", NULL), DQ_DAMAGED, "\"hidden_size\" is missing"},
        {SET("llama-f32", "hidden_size", "50"), DQ_DAMAGED, "multiple"},
        {SET("llama-f32", "intermediate_size", big), DQ_DAMAGED, "\"intermediate_size\""},
        {SET("llama-f32", "intermediate_size", "57"), DQ_DAMAGED,
         "expected [57, 48], found [56, 48]"},
        {SET("llama-f32", "num_hidden_layers", big), DQ_DAMAGED, "\"num_hidden_layers\""},
        {SET("llama-f32", "num_hidden_layers", "[3]"), DQ_DAMAGED, "\"num_hidden_layers\""},
        {SET("llama-f32", "num_hidden_layers", "4"), DQ_DAMAGED, "model.layers.3."},
        {SET("llama-f32", "num_hidden_layers", "2"), DQ_MISMATCH, "model.layers.2."},
        {SET("llama-f32", "num_attention_heads", big), DQ_DAMAGED, "\"num_attention_heads\""},
        {SET("llama-f32", "num_key_value_heads", big), DQ_DAMAGED, "\"num_key_value_heads\""},
        {SET("llama-f32", "num_key_value_heads", "3"), DQ_MISMATCH, "3 KV heads"},
        {SET("llama-f32", "num_key_value_heads", "null"), DQ_DAMAGED,
         "k_proj.weight\": wrong shape"},
        {SET("diffllama-f32", "num_key_value_heads", "1"), DQ_MISMATCH, "1 KV heads"},
        {SET("llama-f32", "head_dim", big), DQ_DAMAGED, "\"head_dim\""},
        {SET("llama-f32", "head_dim", "0"), DQ_DAMAGED, "\"head_dim\""},
        {SET("llama-f32", "head_dim", "11"), DQ_MISMATCH, "even"},
        {SET("llama-f32", "head_dim", "null"), DQ_OK, ""},
        {SET("llama-f32", "vocab_size", big), DQ_DAMAGED, "\"vocab_size\""},
        {SET("llama-f32", "vocab_size", "257"), DQ_DAMAGED, "embed_tokens.weight"},
        {SET("llama-f32", "max_position_embeddings", big), DQ_DAMAGED, "max_position"},
        {SET("llama-f32", "max_position_embeddings", NULL), DQ_OK, ""},
        {SET("llama-f32", "rms_norm_eps", "\"x\""), DQ_DAMAGED, "\"rms_norm_eps\""},
        {SET("llama-f32", "rms_norm_eps", "-1e-5"), DQ_DAMAGED, "\"rms_norm_eps\""},
        {SET("llama-f32", "rms_norm_eps", "1e300"), DQ_DAMAGED, "\"rms_norm_eps\""},
        {SET("llama-f32", "hidden_act", "\"gelu\""), DQ_MISMATCH, "gelu"},
        {SET("llama-f32", "hidden_act", "7"), DQ_DAMAGED, "\"hidden_act\""},
        {SET("llama-f32", "hidden_act", NULL), DQ_OK, ""},
        {SET("llama-f32", "tie_word_embeddings", "1"), DQ_DAMAGED, "\"tie_word_embeddings\""},
        {SET("llama-f32", "attention_bias", "true"), DQ_DAMAGED, "q_proj.bias\" is missing"},
        {SET("llama-f32", "mlp_bias", "true"), DQ_DAMAGED, "gate_proj.bias\" is missing"},
        {SET("llama-bf16-bias", "attention_bias", "false"), DQ_MISMATCH, "_proj.bias"},
        {SET("llama-bf16-bias", "mlp_bias", NULL), DQ_MISMATCH, "mlp.down_proj.bias"},
        {SET("diffllama-f32", "mlp_bias", "true"), DQ_OK, ""},
        {SET("diffllama-f32", "mlp_bias", "\"dead key\""), DQ_OK, ""},
        {SET("llama-f32", "model_type", "\"DiffLlama\""), DQ_MISMATCH, "different architectures"},
        {SET2("llama-f32", "model_type", "\"DiffLlama\"", "architectures", NULL), DQ_DAMAGED,
         "lambda_q1"},
        {SET("llama-f32", "model_type", "\"LLaMA\""), DQ_OK, ""},
        {SET("llama-f32", "model_type", NULL), DQ_OK, ""},
        {SET("llama-f32", "architectures", NULL), DQ_OK, ""},
        {SET("llama-f32", "architectures", "[]"), DQ_OK, ""},
        {SET("llama-f32", "architectures", "[7]"), DQ_DAMAGED, "\"architectures\""},
        {SET("llama-f32", "model_type", "7"), DQ_DAMAGED, "\"model_type\""},
        {SET2("llama-f32", "model_type", NULL, "architectures", NULL), DQ_DAMAGED, "model_type"},
        {SET("mistral-f16", "sliding_window", "0"), DQ_DAMAGED, "\"sliding_window\""},
        {SET("mistral-f16", "sliding_window", "-4"), DQ_DAMAGED, "\"sliding_window\""},
        {SET("mistral-f16", "sliding_window", "4096.5"), DQ_DAMAGED, "\"sliding_window\""},
        {SET("mistral-f16", "sliding_window", "1073741825"), DQ_DAMAGED, "\"sliding_window\""},
        {SET("mistral-f16", "layer_types", SLIDING), DQ_MISMATCH, "\"layer_types\""},
        {SET("qwen2-bf16", "use_sliding_window", "7"), DQ_DAMAGED, "\"use_sliding_window\""},
        {SET("qwen2-bf16", "max_window_layers", "-1"), DQ_DAMAGED, "\"max_window_layers\""},
        {SET("qwen2-bf16", "layer_types", SLIDING), DQ_DAMAGED,
         "layer 1 has a window, but \"use_sliding_window\" is false"},
        {SET2("qwen3-f32", "layer_types", SLIDING, "use_sliding_window", "true"), DQ_DAMAGED,
         "layer 1 has a window, but \"sliding_window\" is null"},
        {SET("qwen3-f32", "layer_types", "[\"full_attention\"]"), DQ_DAMAGED, "expected 3 words"},
        {SET("qwen3-f32", "layer_types", "[\"attention\", \"full_attention\", 7]"), DQ_DAMAGED,
         "expected 3 words"},
        {SET("qwen3-f32", "layer_types", "\"sliding_attention\""), DQ_DAMAGED, "expected 3 words"},
        {SET("qwen3-f32", "layer_types",
             "[\"full_attention\", \"full_attention\", \"chunked_attention\"]"),
         DQ_MISMATCH, "\"chunked_attention\" is not supported"},
        {SET("qwen2-bf16", "attention_bias", "false"), DQ_OK, ""},
        {SET("smollm3-bf16", "no_rope_layers", "[1, 0, 1, 0]"), DQ_OK, ""},
        {SET("smollm3-bf16", "no_rope_layers", "[1, 0]"), DQ_DAMAGED, "expected 4 numbers"},
        {SET("smollm3-bf16", "no_rope_layers", "[1, 0, 2, 0]"), DQ_DAMAGED, "0 or 1"},
        {SET("smollm3-bf16", "no_rope_layer_interval", "0"), DQ_DAMAGED, "interval"},
        {SET("smollm3-bf16", "tie_word_embeddings", NULL), DQ_OK, ""},
        {SET("qwen2-bf16", "tie_word_embeddings", NULL), DQ_DAMAGED, "lm_head.weight"},
        {SET("qwen3-f32", "head_dim", NULL), DQ_DAMAGED, "[768, 48], found [96, 48]"},
        {SET("llama-f32", "model_type", "\"Motif\""), DQ_MISMATCH, "different architectures"},
        {SET2("llama-f32", "model_type", "\"motif\"", "kv_lora_rank", "8"), DQ_MISMATCH, "Motif-3"},
        {SET("llama-f32", "architectures", "[\"MotifForCausalLM\"]"), DQ_MISMATCH,
         "different architectures"},
        {SET("llama-f32", "model_type", "\"diff_llama\""), DQ_MISMATCH, "diff_llama"},
        {SET("llama-f32", "model_type", "\"diff_transformer\""), DQ_MISMATCH, "diff_transformer"},
        {SET("llama-f32", "model_type", "\"phi4flash\""), DQ_MISMATCH, "phi4flash"},
        {SET("llama-f32", "model_type", "\"dragon\""), DQ_MISMATCH, "dragon"},
        {SET("llama-f32", "quantization_config", "{\"bits\":4}"), DQ_MISMATCH,
         "\"quant_method\" is missing"},
        {SET("llama-f32", "quantization_config", "null"), DQ_OK, ""},
        {SET("llama-f32", "rope_scaling", "{\"rope_type\":\"longrope\",\"factor\":4}"), DQ_DAMAGED,
         "\"short_factor\""},
        {SET2("llama-f32", "dtype", "\"float16\"", "torch_dtype", NULL), DQ_OK, ""},
    };
    edits_try(t, sizeof t / sizeof *t);
}

/* Windows as transformers reads them: which layers have one, and how long it is. */
TEST(windows_of_layers)
{
    static const struct {
        edit e;
        int window[4];
    } t[] = {
        {SET("mistral-f16", "sliding_window", NULL), {4096, 4096, 4096}},
        {SET("mistral-f16", "sliding_window", "null"), {0}},
        {SET("mistral-f16", "sliding_window", "32"), {32, 32, 32}},
        {SET2("mistral-f16", "sliding_window", "32", "max_position_embeddings", "32"), {0}},
        {SET2("mistral-f16", "sliding_window", "32", "use_sliding_window", "false"), {32, 32, 32}},
        {SET("qwen2-bf16", "use_sliding_window", "false"), {0}},
        {SET2("qwen2-bf16", "use_sliding_window", "false", "sliding_window", "-1"), {0}},
        {SET("qwen2-bf16", "use_sliding_window", "true"), {0, 0, 32}},
        {SET2("qwen2-bf16", "use_sliding_window", "true", "sliding_window", NULL), {0, 0, 4096}},
        {SET2("qwen2-bf16", "use_sliding_window", "true", "sliding_window", "null"), {0}},
        {SET2("qwen2-bf16", "use_sliding_window", "true", "max_window_layers", "0"), {32, 32, 32}},
        {SET2("qwen2-bf16", "use_sliding_window", "true", "max_window_layers", NULL), {0}},
        {SET2("qwen2-bf16", "use_sliding_window", "true", "layer_types", SLIDING), {0, 32, 0}},
        {SET2("smollm3-bf16", "use_sliding_window", "true", "sliding_window", NULL), {0}},
        {SET2("smollm3-bf16", "use_sliding_window", "true", "sliding_window", "8"), {0, 8, 0, 8}},
        {SET2("smollm3-bf16", "use_sliding_window", "false", "sliding_window", "8"), {0}},
        {SET2("llama-f32", "sliding_window", "65536", "max_window_layers", "0"), {0}},
        {SET("gemma3-f32", "sliding_window_pattern", "2"), {40, 0, 40, 0}},
        {SET("gemma3-f32", "sliding_window_pattern", "1"), {0}},
        {SET("gemma3-f32", "sliding_window_pattern", NULL), {40, 40, 40, 40}},
        {SET("gemma3-f32", "sliding_window", NULL), {4096, 4096, 0, 4096}},
        {SET2("gemma3-f32", "sliding_window_pattern", "1", "sliding_window", "null"), {0}},
        {SET("gemma3-bf16-wide", "layer_types", SLIDING), {0, 72, 0}},
        {SET("gemma3-bf16-wide", "_sliding_window_pattern", "2"), {72, 0, 72}},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        dq_err err = {0};
        dq_model *m = edits_open(&t[i].e, &err);
        assert_string_equal(err.text, "");
        for (int l = 0; l < m->n_layers; l++)
            assert_int_equal(m->layer[l].attn.window, t[i].window[l]);
        dq_model_close(m);
    }
}

/* Inverse frequency 1 is theta^(-2 / head_dim), here without scaling: theta of both kinds of layers. */
TEST(bases_of_layers_with_a_window)
{
    static const char both[] =
        "{\"full_attention\": {\"rope_type\": \"default\", \"rope_theta\": 7e4},"
        " \"sliding_attention\": {\"rope_theta\": 300}}";
    static const char one[] =
        "{\"full_attention\": {\"rope_theta\": 7e4}, \"sliding_attention\": null}";
    static const struct {
        edit e;
        double full, local;
    } t[] = {
        {SET("gemma3-f32", "rope_theta", "5e5"), 5e5, 1e4},
        {SET2("gemma3-f32", "rope_theta", NULL, "rope_local_base_freq", NULL), 1e6, 1e4},
        {SET("gemma3-f32", "rope_local_base_freq", "2e4"), 1e6, 2e4},
        {SET("gemma3-f32", "rope_parameters", both), 7e4, 300},
        {SET("gemma3-f32", "rope_parameters", "{}"), 1e6, 1e4},
        {SET2("gemma3-f32", "rope_parameters", one, "rope_local_base_freq", "2e4"), 7e4, 2e4},
        /* linear scaling by 16, of full layers alone */
        {SET("gemma3-f32", "rope_scaling", "{\"rope_type\": \"linear\", \"factor\": 16}"),
         1e6 * 0x1p40, 1e4},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        dq_err err = {0};
        dq_model *m = edits_open(&t[i].e, &err);
        assert_string_equal(err.text, "");
        assert_true(fabs((double)m->rope.inv_freq[1] / pow(t[i].full, -0.1) - 1) < 1e-6);
        assert_true(fabs((double)m->local_rope.inv_freq[1] / pow(t[i].local, -0.1) - 1) < 1e-6);
        assert_ptr_equal(m->layer[1].rope, &m->local_rope);
        assert_ptr_equal(m->layer[2].rope, &m->rope);
        dq_model_close(m);
    }
}

/* Gains are stored less 1, the embedding is scaled, and attention by its own scalar. */
TEST(numbers_of_gemma3)
{
    static const edits_trial t[] = {
        {SET("gemma3-f32", "query_pre_attn_scalar", "0"), DQ_DAMAGED, "query_pre_attn_scalar"},
        {SET("gemma3-f32", "query_pre_attn_scalar", "\"x\""), DQ_DAMAGED, "query_pre_attn_scalar"},
        {SET("gemma3-f32", "sliding_window", "null"), DQ_DAMAGED,
         "layer 0 has a window, but \"sliding_window\" is null"},
        {SET("gemma3-f32", "sliding_window", "0"), DQ_DAMAGED, "\"sliding_window\""},
        {SET("gemma3-f32", "sliding_window_pattern", "0"), DQ_DAMAGED, "sliding_window_pattern"},
        {SET("gemma3-f32", "rope_parameters", "{\"rope_theta\": 1e6}"), DQ_DAMAGED,
         "expected an object for \"full_attention\""},
        {SET("gemma3-f32", "rope_parameters", "{\"sliding_attention\": {\"rope_type\": \"x\"}}"),
         DQ_MISMATCH, "sliding_attention: rope_parameters: rope type \"x\""},
        {SET("gemma3-f32", "partial_rotary_factor", "0.5"), DQ_MISMATCH, "partial_rotary_factor"},
        {SET("gemma3-f32", "hidden_activation", "\"silu\""), DQ_MISMATCH, "gelu_pytorch_tanh"},
        {SET("gemma3-f32", "hidden_activation", NULL), DQ_OK, ""},
        {SET("gemma3-f32", "tie_word_embeddings", NULL), DQ_OK, ""},
        {SET("gemma3-f32", "head_dim", NULL), DQ_DAMAGED, "expected [1024, 48]"},
        {SET("gemma3-f32", "attn_logit_softcapping", "50.0"), DQ_MISMATCH,
         "attn_logit_softcapping"},
        {SET("gemma3-f32", "final_logit_softcapping", "30.0"), DQ_MISMATCH, "final_logit_softcap"},
        {SET("gemma3-f32", "use_bidirectional_attention", "true"), DQ_MISMATCH, "bidirectional"},
        {SET("gemma3-f32", "model_type", "\"gemma3\""), DQ_MISMATCH, "as a Gemma3ForCausalLM"},
        {SET("gemma3-f32", "architectures", "[\"Gemma3ForConditionalGeneration\"]"), DQ_MISMATCH,
         "its pictures are not supported"},
        {WEIGHT("gemma3-f32", DROP, "model.layers.1.post_feedforward_layernorm.weight", NULL),
         DQ_DAMAGED, "post_feedforward_layernorm.weight\" is missing"},
    };
    edits_try(t, sizeof t / sizeof *t);
    const edit blank = WEIGHT("gemma3-f32", BLANK, "model.layers.1.self_attn.q_norm.weight", NULL);
    dq_err err = {0};
    dq_model *m = edits_open(&blank, &err);
    assert_string_equal(err.text, "");
    for (int i = 0; i < 20; i++) assert_true(m->layer[1].q_norm[i] == 1.0f);
    assert_true(m->embed_scale == sqrtf(48.0f));
    assert_true(fabsf(m->map.scale - 1 / sqrtf(24.0f)) < 1e-7f);
    dq_model_close(m);
}

/* ---- Tensors ---- */

#define LAYER1 "model.layers.1."
#define EMBED  "model.embed_tokens.weight"

static void blank_mlp_biases(unsigned char *bytes, const dq_weight *w)
{
    if (strstr(w->name, "mlp.") && w->cols == 1) memset(bytes, 0, dq_weight_bytes(w));
    if (strstr(w->name, "layers.1.mlp.up_proj.bias")) bytes[1] = 0x80; /* -0 */
}

static void blank_most_biases(unsigned char *bytes, const dq_weight *w)
{
    if (!strstr(w->name, "layers.2.")) blank_mlp_biases(bytes, w);
}

/* Early GPTQ tools wrote a bias for every product. */
TEST(biases_of_zero_are_left_out)
{
    const edit zero = {.base = "llama-bf16-bias", .key = "mlp_bias", .change = blank_mlp_biases};
    const edit most = {.base = "llama-bf16-bias", .key = "mlp_bias", .change = blank_most_biases};
    const edit norm = {.base = "llama-f32",
                       .kind = STRAY,
                       .tensor = "model.norm.weight",
                       .arg = "model.norm2.bias"};
    dq_err err = {0};
    dq_model *m = edits_open(&zero, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(m->n_left_out, 9);
    assert_null(m->layer[0].gate_bias);
    assert_non_null(m->layer[0].q_bias);
    assert_int_equal(m->n_warnings, 1);
    assert_non_null(strstr(m->warnings[0],
                           "9 biases that are all zero, the first model.layers.0.mlp."
                           "down_proj.bias, change nothing"));
    dq_model_close(m);
    assert_null(edits_open(&most, &err));
    check_error(&err, DQ_MISMATCH, "\"model.layers.2.mlp.down_proj.bias\" does not belong");
    err = (dq_err){0};
    assert_null(edits_open(&norm, &err)); /* of no weight that there is */
    check_error(&err, DQ_MISMATCH, "\"model.norm2.bias\" does not belong");
}

/* As in transformers, which calls them newly initialized; without any of its kind it is missed. */
TEST(a_bias_that_is_not_there_is_zero)
{
    const edit e = WEIGHT("llama-bf16-bias", DROP, LAYER1 "self_attn.o_proj.bias", NULL);
    dq_err err = {0};
    dq_model *m = edits_open(&e, &err);
    assert_string_equal(err.text, "");
    assert_non_null(m->layer[0].o_bias);
    assert_null(m->layer[1].o_bias);
    assert_int_equal(m->n_warnings, 1);
    assert_string_equal(m->warnings[0], "biases are not there and count as zero: 1, the first "
                                        "model.layers.1.self_attn.o_proj.bias");
    dq_model_close(m);
}

TEST(tensors_end_in_their_status)
{
    static const struct {
        edit e;
        dq_status status;
        const char *text;
        int warnings;
    } t[] = {
        {WEIGHT("llama-f32", DROP, "model.norm.weight", NULL), DQ_DAMAGED,
         "\"model.norm.weight\" is missing", 0},
        {WEIGHT("llama-f32", RENAME, EMBED, "embed_tokens.weight"), DQ_MISMATCH,
         "but \"embed_tokens.weight\" is there, as another program names it", 0},
        {WEIGHT("llama-f32", RENAME, "model.norm.weight", "_orig_mod.model.norm.weight"),
         DQ_MISMATCH, "but \"_orig_mod.model.norm.weight\" is there, as another program names it",
         0},
        {WEIGHT("llama-f32", RENAME, "model.norm.weight", "_model.norm.weight"), DQ_DAMAGED,
         "\"model.norm.weight\" is missing", 0},
        {{.base = "llama-f32",
          .key = "tie_word_embeddings",
          .value = "false",
          .kind = RENAME,
          .tensor = EMBED,
          .arg = "embed_tokens.weight"},
         DQ_MISMATCH,
         "\"embed_tokens.weight\" is there: this is a model without an output head",
         0},
        {WEIGHT("llama-bf16-bias", RENAME, "lm_head.weight", "score.weight"), DQ_MISMATCH,
         "\"score.weight\" is there: this is a classifier or reward model", 0},
        {WEIGHT("llama-f32", RENAME, LAYER1 "mlp.up_proj.weight",
                LAYER1 "mlp.up_proj.lora_A.weight"),
         DQ_MISMATCH, "this is an adapter", 0},
        {WEIGHT("llama-f32", DROP, LAYER1 "mlp.up_proj.weight", NULL), DQ_DAMAGED,
         "\"model.layers.1.mlp.up_proj.weight\" is missing", 0},
        {WEIGHT("llama-f32", COPY, "model.norm.weight", "model.norm2.weight"), DQ_MISMATCH,
         "\"model.norm2.weight\" does not belong", 0},
        {WEIGHT("llama-f32", COPY, "model.norm.weight", "model.layers.3.input_layernorm.weight"),
         DQ_MISMATCH, "model.layers.3.", 0},
        {WEIGHT("llama-f32", COPY, "model.norm.weight", "model.layers.01.input_layernorm.weight"),
         DQ_MISMATCH, "model.layers.01.", 0},
        {WEIGHT("llama-f32", COPY, "model.norm.weight",
                "model.layers.99999999999999999999.input_layernorm.weight"),
         DQ_MISMATCH, "99999", 0},
        {WEIGHT("llama-f32", COPY, "model.norm.weight", LAYER1 "self_attn.rotary_emb.inv_freq"),
         DQ_OK, "", 0},
        {WEIGHT("llama-f32", COPY, "model.norm.weight", LAYER1 "self_attn.lambda_q1"), DQ_MISMATCH,
         "lambda_q1", 0},
        {WEIGHT("llama-f32", RESHAPE, "model.norm.weight", "6,8"), DQ_DAMAGED,
         "expected [48], found [6, 8]", 0},
        {WEIGHT("llama-f32", RESHAPE, LAYER1 "mlp.up_proj.weight", "48,56"), DQ_DAMAGED,
         "expected [56, 48], found [48, 56]", 0},
        {WEIGHT("llama-f32", RESHAPE, LAYER1 "mlp.up_proj.weight", "56,48,1"), DQ_DAMAGED,
         "found 3 dimensions", 0},
        {WEIGHT("llama-f32", RESHAPE, LAYER1 "mlp.up_proj.weight", "2688"), DQ_DAMAGED,
         "found [2688]", 0},
        {WEIGHT("llama-f32", RETYPE, LAYER1 "mlp.up_proj.weight", "I32"), DQ_MISMATCH, "dtype I32",
         0},
        {WEIGHT("llama-f32", RETYPE, "model.norm.weight", "U32"), DQ_MISMATCH, "dtype U32", 0},
        {WEIGHT("llama-f32", POKE, "model.norm.weight", NULL), DQ_DAMAGED,
         "\"model.norm.weight\": value 3 is not finite", 0},
        {WEIGHT("llama-f32", POKE, LAYER1 "mlp.up_proj.weight", NULL), DQ_OK, "", 0},
        {WEIGHT("diffllama-f32", POKE, LAYER1 "self_attn.lambda_k2", NULL), DQ_DAMAGED,
         "lambda_k2\": value 3", 0},
        {WEIGHT("diffllama-f32", DROP, LAYER1 "self_attn.lambda_k2", NULL), DQ_DAMAGED,
         "lambda_k2\" is missing", 0},
        {WEIGHT("diffllama-f32", RESHAPE, LAYER1 "self_attn.lambda_k2", "3,4"), DQ_DAMAGED,
         "expected [12], found [3, 4]", 0},
        {WEIGHT("diffllama-f32", COPY, LAYER1 "self_attn.lambda_k2",
                LAYER1 "self_attn.subln.weight"),
         DQ_MISMATCH, "subln", 0},
        /* Tied and untied heads. */
        {WEIGHT("llama-f32", COPY, EMBED, "lm_head.weight"), DQ_OK, "", 0},
        {WEIGHT("llama-f32", VARY, EMBED, "lm_head.weight"), DQ_OK, "", 1},
        {WEIGHT("llama-f32", RENAME, EMBED, "lm_head.weight"), DQ_OK, "", 0},
        {WEIGHT("llama-f32", DROP, EMBED, NULL), DQ_DAMAGED, "embed_tokens.weight\" is", 0},
        {SET("llama-f32", "tie_word_embeddings", "false"), DQ_DAMAGED, "\"lm_head.weight\" is", 0},
        {{.base = "llama-f32",
          .key = "tie_word_embeddings",
          .kind = RENAME,
          .tensor = EMBED,
          .arg = "lm_head.weight"},
         DQ_DAMAGED,
         "embed_tokens.weight\" is missing",
         0},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        dq_err err = {0};
        dq_model *m = edits_open(&t[i].e, &err);
        check_error(&err, t[i].status, t[i].text);
        if (m) assert_int_equal(m->n_warnings, t[i].warnings);
        if (m) assert_int_equal(m->head.data == m->embed.data, t[i].warnings == 0);
        if (m) assert_int_equal(m->tied, t[i].warnings == 0);
        if (m) assert_int_equal(m->n_params, t[i].warnings ? 57552 + 256 * 48 : 57552);
        dq_model_close(m);
    }
}

static void enlarge(unsigned char *bytes, const dq_weight *w)
{
    const float large = 1e4f;
    if (!strstr(w->name, "layers.0.self_attn.lambda_")) return;
    for (int64_t i = 0; i < w->rows; i++) memcpy(bytes + 4 * i, &large, sizeof large);
}

TEST(huge_lambda_is_refused)
{
    const edit e = {.base = "diffllama-f32", .change = enlarge};
    dq_err err = {0};
    assert_null(edits_open(&e, &err));
    check_error(&err, DQ_DAMAGED, "layer 0: the lambda vectors");
}

/* ---- Paths, files, fingerprints ---- */

TEST(paths_are_explained)
{
    static const struct {
        const char *name, *bytes;
        dq_status status;
        const char *text;
    } t[] = {
        {"missing", NULL, DQ_FILE, "no such file"},
        {"file.gguf", "GGUF....", DQ_MISMATCH, "GGUF"},
        {"file.gguf", "PK\3\4....", DQ_MISMATCH, "PyTorch"},
        {"file.gguf", "", DQ_DAMAGED, "neither"},
        {"file.gguf", "something else", DQ_DAMAGED, "neither"},
        {"file.h5", "", DQ_DAMAGED, "file.h5"},
        {"file.h5", "something else", DQ_DAMAGED, "file.h5"},
        {"file.gguf", "\x89HDF\r\n\x1a\n", DQ_DAMAGED, "file.gguf"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        dq_err err = {0};
        dq_model *m;
        if (t[i].bytes) edits_put(t[i].name, t[i].bytes, strlen(t[i].bytes));
        dq_model_open(&m, at(t[i].name), &err);
        check_error(&err, t[i].status, t[i].text);
        assert_null(m);
    }
}

TEST(fingerprints_tell_models_apart)
{
    static const edit edits[] = {
        WEIGHT("llama-f32", KEEP, NULL, NULL),
        WEIGHT("llama-f32", BLANK, LAYER1 "mlp.up_proj.weight", NULL),
        WEIGHT("llama-f32", POKE, EMBED, NULL),
        SET("llama-f32", "bos_token_id", "7"),
        WEIGHT("diffllama-f32", KEEP, NULL, NULL),
    };
    enum { N = sizeof edits / sizeof *edits };
    char print[N + 1][65];
    for (int i = 0; i <= N; i++) {
        dq_err err = {0};
        dq_model *m = edits_open(&edits[i % N], &err); /* the last one repeats the first */
        assert_int_equal(err.code, DQ_OK);
        memcpy(print[i], m->fingerprint, 65);
        dq_model_close(m);
    }
    assert_string_equal(print[0], print[N]);
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < i; j++) assert_string_not_equal(print[i], print[j]);
    }
}

TEST(files_come_with_the_model)
{
    edit e = WEIGHT("llama-f32", KEEP, NULL, NULL);
    dq_err err = {0};
    const char *text;
    size_t len;
    dq_model *m = edits_open(&e, &err);
    assert_int_equal(err.code, DQ_OK);
    assert_int_equal(dq_model_file(m, "tokenizer.json", &text, &len, &err), DQ_OK);
    assert_null(text);
    edits_put("tokenizer.json", "{\"a\":\0}", 7);
    assert_int_equal(dq_model_file(m, "tokenizer.json", &text, &len, &err), DQ_OK);
    assert_int_equal(len, 7);
    assert_memory_equal(text, "{\"a\":\0}", 7);
    assert_int_equal(dq_model_file(m, "config.json", &text, &len, &err), DQ_OK);
    assert_int_equal(strlen(text), len);
    dq_model_close(m);
    unlink(at("tokenizer.json"));
}

/* Whichever allocation fails, the status says so and nothing leaks. */
TEST(every_allocation_may_fail)
{
    static const char *const paths[] = {MODELS "diffllama-f16-shards", MODELS "llama-bf16-bias",
                                        MODELS "gda-f32-shards", MODELS "v2-f16",
                                        MODELS "llama-yarn"};
    for (size_t p = 0; p < sizeof paths / sizeof *paths; p++) {
        bool failed = true;
        for (int64_t n = 1; failed; n++) {
            dq_err err = {0};
            dq_model *m;
            dq_alloc_fail_at(n);
            failed = dq_model_open(&m, paths[p], &err) != DQ_OK;
            dq_alloc_fail_at(0);
            if (failed) assert_int_equal(err.code, DQ_RESOURCE);
            dq_model_close(m);
            assert_true(n < 10000);
        }
    }
}

FIXTURES(folder_begin, folder_end)
