/* Tests of configurations of the families beside Llama and DiffLlama: which family a config.json
 * names, and each of its keys.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "model/model.h"
#include "tests/rigs/edits.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

TEST(architectures_are_told_apart)
{
    static const edits_trial t[] = {
        /* The variant. */
        {SET("v1-bf16", "diff_variant", NULL), DQ_MISMATCH, "\"diff_variant\""},
        {SET("v1-bf16", "diff_variant", "null"), DQ_MISMATCH, "found none"},
        {SET("v1-bf16", "diff_variant", "\"v3\""), DQ_MISMATCH, "found \"v3\""},
        {SET("v1-bf16", "diff_variant", "\"V1\""), DQ_MISMATCH, "found \"V1\""},
        {SET("v1-bf16", "diff_variant", "1"), DQ_DAMAGED, "\"diff_variant\": expected a string"},
        {SET("v1-bf16", "diff_variant", "\"v1_naive\""), DQ_OK, ""},
        {SET("v1-bf16", "diff_variant", "\"v2\""), DQ_DAMAGED, "o_proj.weight"},
        {SET("v1-bf16", "diff_variant", "\"plain\""), DQ_MISMATCH, "lambda_k1"},
        {SET("v1-bf16", "model_type", "\"Diff_Transformer\""), DQ_OK, ""},
        {SET("v1-bf16", "model_type", "\"llama\""), DQ_DAMAGED, "o_proj.weight"},
        {SET("v1-bf16", "model_type", NULL), DQ_DAMAGED, "neither \"model_type\" nor"},
        {SET("v1-bf16", "model_type", "\"diff-transformer\""), DQ_MISMATCH, "is not supported"},
        {SET("motif-bf16", "diff_variant", "\"v1\""), DQ_OK, ""},
        /* Type and architecture. */
        {SET("motif-bf16", "model_type", "\"MOTIF\""), DQ_OK, ""},
        {SET("motif-bf16", "model_type", NULL), DQ_OK, ""},
        {SET("motif-bf16", "architectures", NULL), DQ_OK, ""},
        {SET2("motif-bf16", "architectures", NULL, "model_type", "\"motif3\""), DQ_MISMATCH,
         "\"motif3\" is not supported (supported: llama, qwen2, qwen3, mistral, smollm3, "
         "gemma3_text, diffllama, motif, diff_transformer)"},
        {SET("motif-bf16", "model_type", "\"llama\""), DQ_MISMATCH, "different architectures"},
        {SET("motif-bf16", "architectures", "[\"LlamaForCausalLM\"]"), DQ_MISMATCH,
         "different architectures"},
        {SET("v2-f16", "architectures", "[\"LlamaForCausalLM\"]"), DQ_MISMATCH,
         "\"diff_transformer\" and architectures \"LlamaForCausalLM\""},
        {SET("v2-f16", "architectures", "[\"SomeForCausalLM\"]"), DQ_OK, ""},
        /* The model type decides; a class beside it must be its own. */
        {SET("llama-yarn", "model_type", "\"phi3\""), DQ_MISMATCH, "\"phi3\" is not supported"},
        {SET("motif-bf16", "model_type", "\"granite\""), DQ_MISMATCH,
         "\"granite\" is not supported"},
        {SET("diffllama-f32", "model_type", "\"\""), DQ_MISMATCH,
         "model type \"\" is not supported"},
        {SET("llama-yarn", "architectures", "[\"MistralForCausalLM\"]"), DQ_MISMATCH,
         "\"llama\" and architectures \"MistralForCausalLM\" name different"},
        {SET("llama-yarn", "architectures", "[\"LLaMAForCausalLM\"]"), DQ_OK, ""},
        {SET("llama-yarn", "architectures", "[\"LlamaForCausalLM\", \"LlamaForCausalLM\"]"), DQ_OK,
         ""},
        {SET("llama-yarn", "architectures", "[\"LlamaForCausalLM\", \"MistralForCausalLM\"]"),
         DQ_MISMATCH, "\"LlamaForCausalLM\" and \"MistralForCausalLM\" name different"},
        {SET("llama-yarn", "architectures", "\"LlamaForCausalLM\""), DQ_DAMAGED, "a list of names"},
        {SET("llama-yarn", "architectures", "[\"LlamaForSequenceClassification\"]"), DQ_MISMATCH,
         "\"LlamaForSequenceClassification\" is a classifier or reward model, not a language"},
        {SET("llama-yarn", "architectures", "[\"LlamaModel\"]"), DQ_MISMATCH,
         "without an output head"},
        {SET("motif-bf16", "architectures", "[\"MotifModel\"]"), DQ_MISMATCH, "without an output"},
        {SET("v2-f16", "architectures", "[\"DiffForTokenClassification\"]"), DQ_MISMATCH,
         "a classifier of tokens"},
        {SET2("llama-yarn", "model_type", "\"bert\"", "architectures", "[\"BertForMaskedLM\"]"),
         DQ_MISMATCH, "\"BertForMaskedLM\" is an encoder that fills gaps"},
        {SET("llama-yarn", "auto_map", "{\"AutoModelForCausalLM\": \"modeling_x.XForCausalLM\"}"),
         DQ_MISMATCH, "own code \"modeling_x.XForCausalLM\" is not run"},
        {SET("motif-bf16", "auto_map",
             "{\"AutoModelForCausalLM\": \"modeling_motif.MotifForCausalLM\"}"),
         DQ_OK, ""},
        {SET("motif-bf16", "auto_map", "{\"AutoConfig\": \"configuration_x.XConfig\"}"), DQ_OK, ""},
        {SET("llama-yarn", "model_type", "\"diff_transformer\""), DQ_MISMATCH, "diff_variant"},
        /* Motif-3 has Motif's name and one of four signs. */
        {SET("gda-wide-bf16", "kv_lora_rank", "512"), DQ_MISMATCH, "Motif-3"},
        {SET("gda-wide-bf16", "q_lora_rank", "null"), DQ_MISMATCH, "Motif-3"},
        {SET("gda-wide-bf16", "mhc_enabled", "true"), DQ_MISMATCH, "Motif-3"},
        {SET("gda-wide-bf16", "mhc_enabled", "false"), DQ_OK, ""},
        {SET("gda-wide-bf16", "attention_cls", "\"gdla\""), DQ_MISMATCH, "Motif-3"},
        {SET("gda-wide-bf16", "attention_cls", "\"gda\""), DQ_OK, ""},
        {SET2("motif-bf16", "model_type", NULL, "kv_lora_rank", "512"), DQ_MISMATCH, "Motif-3"},
        {SET("llama-yarn", "kv_lora_rank", "512"), DQ_OK, ""},
        /* The others that are known. */
        {SET("llama-yarn", "model_type", "\"diff_llama\""), DQ_MISMATCH, "saw the future"},
        {SET("llama-yarn", "model_type", "\"phi4flash\""), DQ_MISMATCH, "Mamba"},
        {SET2("llama-yarn", "model_type", NULL, "architectures", "[\"Phi4FlashForCausalLM\"]"),
         DQ_MISMATCH, "\"Phi4FlashForCausalLM\": its attention"},
        {SET("llama-yarn", "model_type", "\"dragon\""), DQ_MISMATCH, "expert layers"},
        {SET2("llama-yarn", "model_type", NULL, "architectures", "[\"DragonForCausalLM\"]"),
         DQ_MISMATCH, "expert layers"},
        {SET("llama-yarn", "model_type", "\"DiffCLIP\""), DQ_MISMATCH, "not a language model"},
        {SET("llama-yarn", "model_type", "\"diff_clip\""), DQ_MISMATCH, "not a language model"},
        {SET2("llama-yarn", "model_type", NULL, "architectures", "[\"DiffCLIP\"]"), DQ_MISMATCH,
         "not a language model"},
        /* Packed by others. */
        {SET("motif-bf16", "quantization", "{\"group_size\":64,\"bits\":4}"), DQ_MISMATCH,
         "\"quantization\": the weights are quantized already"},
        {SET("motif-bf16", "quantization", "null"), DQ_OK, ""},
        {SET("v2-f16", "quantization_config", "{\"quant_method\":\"hqq\"}"), DQ_MISMATCH,
         "\"hqq\" is not read"},
    };
    edits_try(t, sizeof t / sizeof *t);
}

TEST(keys_of_diff_transformer)
{
    static const edits_trial t[] = {
        {SET("v1-const", "lambda_init", "\"depth\""), DQ_OK, ""},
        {SET("v1-const", "lambda_init", "0"), DQ_OK, ""},
        {SET("v1-const", "lambda_init", "null"), DQ_OK, ""},
        {SET("v1-const", "lambda_init", "\"0.8\""), DQ_DAMAGED, "\"lambda_init\": expected"},
        {SET("v1-const", "lambda_init", "true"), DQ_DAMAGED, "\"lambda_init\": expected"},
        {SET("v1-const", "lambda_init", "[0.8]"), DQ_DAMAGED, "\"lambda_init\": expected"},
        {SET("v1-const", "lambda_init", "1e9"), DQ_DAMAGED, "\"lambda_init\": expected"},
        {SET("v1-const", "sub_norm", "\"rms\""), DQ_OK, ""},
        {SET("v1-const", "sub_norm", "\"layer\""), DQ_MISMATCH, "\"layer\" is not supported"},
        {SET("v1-const", "sub_norm", "false"), DQ_DAMAGED, "\"sub_norm\": expected a string"},
        {SET("v1-const", "sub_norm", "\"none\""), DQ_MISMATCH, "subln.weight"},
        {SET("v1-nonorm", "sub_norm", NULL), DQ_DAMAGED, "subln.weight\" is missing"},
        {SET("v1-naive-f32", "lambda_init", "0.5"), DQ_OK, ""},
        {SET("v2-f16", "lambda_init", "0.5"), DQ_MISMATCH, "have no meaning for diff-v2"},
        {SET("v2-f16", "lambda_init", "null"), DQ_OK, ""},
        {SET("v2-f16", "sub_norm", "\"none\""), DQ_MISMATCH, "have no meaning for diff-v2"},
        {SET("plain-norm", "lambda_init", "0.5"), DQ_MISMATCH, "no meaning for diff-plain"},
        {SET("plain-norm", "sub_norm", "\"none\""), DQ_MISMATCH, "subln.weight"},
        {SET("plain-norm", "sub_norm", NULL), DQ_MISMATCH, "subln.weight"},
        {SET("plain-adjacent", "sub_norm", "\"none\""), DQ_OK, ""},
        {SET("plain-adjacent", "sub_norm", "\"rms\""), DQ_DAMAGED, "subln.weight\" is missing"},
        {SET("motif-bf16", "sub_norm", "\"none\""), DQ_OK, ""}, /* not a key of this family */
        {SET("v1-bf16", "attention_bias", "true"), DQ_MISMATCH,
         "\"attention_bias\": only false is supported for diff-v1"},
        {SET("v1-bf16", "attention_bias", "\"yes\""), DQ_DAMAGED, "\"attention_bias\""},
        {SET("v2-f16", "attention_bias", "false"), DQ_OK, ""},
        {SET("v2-f16", "mlp_bias", "true"), DQ_OK, ""},
        {SET("v2-f16", "hidden_act", "\"swish\""), DQ_OK, ""},
        {SET("v2-f16", "hidden_act", "\"poly_norm\""), DQ_MISMATCH, "expected \"silu\""},
        {SET("v2-f16", "head_dim", NULL), DQ_DAMAGED, "45 is not a multiple of"},
        {SET("v2-f16", "num_key_value_heads", "4"), DQ_MISMATCH, "cannot be paired"},
        {SET("v2-f16", "num_attention_heads", "9"), DQ_MISMATCH, "9 query heads"},
        {SET("v2-f16", "rms_norm_eps", NULL), DQ_OK, ""},
        {SET("v1-bf16", "num_key_value_heads", "1"), DQ_MISMATCH, "1 KV heads cannot be paired"},
        {SET("v1-bf16", "num_key_value_heads", "3"), DQ_MISMATCH, "3 KV heads"},
        {SET("v1-bf16", "num_noise_heads", "-1"), DQ_DAMAGED, "\"num_noise_heads\""},
        {SET("v1-bf16", "partial_rotary_factor", "0.5"), DQ_MISMATCH, "partial_rotary_factor"},
    };
    edits_try(t, sizeof t / sizeof *t);
}

TEST(own_code_is_not_run_aloud)
{
    const edit e = SET("llama-yarn", "auto_map",
                       "{\"AutoModelForCausalLM\": \"modeling_llama.LlamaForCausalLM\"}");
    dq_err err = {0};
    dq_model *m = edits_open(&e, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(m->n_warnings, 1);
    assert_non_null(strstr(m->warnings[0], "(modeling_llama.LlamaForCausalLM), which is not run"));
    dq_model_close(m);
}

/* Keys of transformers' other decoders, each with a value that would change the numbers and one that does not. */
TEST(keys_of_relatives_change_nothing_or_are_refused)
{
    static const struct {
        const char *key, *changes, *harmless;
    } t[] = {
        {"is_causal", "false", "true"},
        {"is_causal", "0", "null"},
        {"use_rope", "false", "true"},
        {"use_sliding_window", "true", "false"},
        {"sliding_window", "16", "null"},
        {"sliding_window", "65535", "65536"},
        {"window_size", "128", "0"},
        {"attention_chunk_size", "8192", "null"},
        {"layer_types", "[\"full_attention\", \"sliding_attention\"]", "[\"full_attention\"]"},
        {"layer_types", "7", "[]"},
        {"no_rope_layers", "[1, 0]", "[1, 1]"},
        {"no_rope_layer_interval", "4", "0"},
        {"use_bidirectional_attention", "true", "false"},
        {"is_encoder_decoder", "true", "false"},
        {"add_cross_attention", "true", "false"},
        {"alibi", "true", "false"},
        {"clip_qkv", "8.0", "null"},
        {"use_qk_norm", "true", "false"},
        {"qk_norm", "true", "null"},
        {"attention_multiplier", "1.0", "null"},
        {"query_pre_attn_scalar", "256", "null"},
        {"attn_temperature_tuning", "true", "0"},
        {"embedding_multiplier", "12.0", "1.0"},
        {"residual_multiplier", "0.22", "1"},
        {"logits_scaling", "8.0", "1.0"},
        {"logit_scale", "0.0625", "1"},
        {"lm_head_multiplier", "true", "null"},
        {"mlp_multipliers", "[1.0, 2.0]", "[1.0, 1.0]"},
        {"some_new_multiplier", "2", "1"},
        {"ffn_dim_multiplier", NULL, "1.3"},
        {"final_logit_softcapping", "30.0", "null"},
        {"attn_logit_softcapping", "50.0", "0.0"},
        {"logits_soft_cap", "\"x\"", "\"\""},
        {"scale_emb", "12", "1"},
        {"scale_depth", "1.4", "null"},
        {"dim_model_base", "256", "null"},
        {"scale_embedding", "true", "false"},
        {"rotary_dim", "8", "24"},
        {"rotary_pct", "0.25", "1.0"},
        {"rope_ratio", "50", "1"},
        {"rope_local_base_freq", "10000", "null"},
        {"rope_interleaved", "true", "false"},
        {"partial_rotary_factor", "0.5", "1.0"},
        {"position_embedding_type", "\"nope\"", "\"rope\""},
        {"num_local_experts", "8", "0"},
        {"num_experts", "[8]", "{}"},
        {"parallel_attn", "true", "false"},
        {"hidden_activation", "\"gelu_pytorch_tanh\"", "\"silu\""},
        {"per_layer_config", "{\"1\": {}}", "null"},
        /* Read by nothing, of no effect, or of training alone. */
        {"use_cache", NULL, "false"},
        {"pretraining_tp", NULL, "2"},
        {"attention_dropout", NULL, "0.1"},
        {"is_decoder", NULL, "true"},
        {"max_window_layers", NULL, "28"},
        {"rms_norm_eps_moe_gate", NULL, "1e-6"},
        {"a key of tomorrow", NULL, "{\"x\": [1, null]}"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char named[80];
        snprintf(named, sizeof named, "\"%s\": ", t[i].key);
        const edits_trial trial[] = {
            {SET("llama-yarn", t[i].key, t[i].harmless), DQ_OK, ""},
            {SET("llama-yarn", t[i].key, t[i].changes), DQ_MISMATCH, named},
        };
        edits_try(trial, t[i].changes ? 2 : 1);
    }
}

TEST(keys_of_relatives_hold_for_every_architecture)
{
    static const edits_trial t[] = {
        {SET("diffllama-f32", "is_causal", "false"), DQ_MISMATCH,
         "Take the key out to run a plain diffllama"},
        {SET("motif-bf16", "is_causal", "false"), DQ_MISMATCH,
         "Take the key out to run a plain motif"},
        {SET("gda-f32-shards", "logits_scaling", "2"), DQ_MISMATCH,
         "Take the key out to run a plain motif2"},
        {SET("v1-bf16", "sliding_window", "2"), DQ_MISMATCH,
         "Take the key out to run a plain diff-v1"},
        {SET2("v1-bf16", "sliding_window", "2", "use_sliding_window", "false"), DQ_OK, ""},
        {SET("motif-bf16", "sliding_window", "2"), DQ_OK, ""}, /* without use_sliding_window */
        {SET("v1-bf16", "rope_interleaved", "true"), DQ_OK, ""},
        {SET("v1-bf16", "rope_interleaved", "false"), DQ_MISMATCH, "rope_interleaved"},
    };
    edits_try(t, sizeof t / sizeof *t);
}

TEST(keys_of_motif)
{
    static const char theta[] = "{\"rope_type\":\"default\",\"rope_theta\":500000.0}";
    static const edits_trial t[] = {
        {SET("motif-bf16", "rope_theta", NULL), DQ_DAMAGED, "\"rope_theta\" is missing (a motif "},
        {SET("motif-bf16", "rope_theta", "null"), DQ_DAMAGED, "\"rope_theta\" is missing"},
        {SET2("motif-bf16", "rope_theta", NULL, "rope_parameters", theta), DQ_OK, ""},
        {SET2("motif-bf16", "rope_theta", NULL, "rope_scaling", theta), DQ_OK, ""},
        {SET2("motif-bf16", "rope_theta", NULL, "rope_scaling_dict", theta), DQ_OK, ""},
        {SET2("motif-bf16", "rope_theta", NULL, "rope_parameters", "{}"), DQ_DAMAGED,
         "\"rope_theta\" is missing"},
        {SET2("motif-bf16", "rope_theta", NULL, "rope_parameters", "7"), DQ_DAMAGED,
         "\"rope_parameters\": expected an object"},
        {SET("motif-bf16", "hidden_act", NULL), DQ_DAMAGED, "\"hidden_act\" is missing"},
        {SET("motif-bf16", "hidden_act", "\"silu\""), DQ_MISMATCH, "expected \"poly_norm\""},
        {SET("motif-bf16", "hidden_act", "\"polynorm\""), DQ_OK, ""},
        {SET("motif-bf16", "num_key_value_heads", NULL), DQ_DAMAGED, "\"num_key_value_heads\""},
        {SET("motif-bf16", "head_dim", "8"), DQ_OK, ""},
        {SET("motif-bf16", "attention_bias", "true"), DQ_DAMAGED, "q_proj.bias\" is missing"},
        {SET("motif-bf16", "use_bias", "true"), DQ_MISMATCH, "\"use_bias\": only false"},
        {SET("motif-bf16", "use_bias", "\"true\""), DQ_DAMAGED, "\"use_bias\": expected"},
        {SET("motif-bf16", "use_bias", NULL), DQ_OK, ""},
        {SET("motif-bf16", "qkv_bias", "true"), DQ_MISMATCH, "\"qkv_bias\": only false"},
        {SET("motif-bf16", "use_sliding_window", "true"), DQ_MISMATCH, "\"use_sliding_window\""},
        {SET("motif-bf16", "use_sliding_window", "null"), DQ_OK, ""},
        {SET("gda-f32-shards", "k_ratio", "2"), DQ_MISMATCH, "\"k_ratio\": only 1 is supported"},
        {SET("gda-f32-shards", "k_ratio", "1.0"), DQ_OK, ""},
        {SET("gda-f32-shards", "k_ratio", "\"1\""), DQ_DAMAGED, "\"k_ratio\": expected"},
        {SET("gda-f32-shards", "k_ratio", "null"), DQ_OK, ""},
        {SET("gda-f32-shards", "expanded", "true"), DQ_OK, ""},
        {SET("gda-f32-shards", "head_dim", NULL), DQ_DAMAGED,
         "\"head_dim\" is missing (a motif2 model needs it)"},
        {SET("gda-f32-shards", "head_dim", "null"), DQ_DAMAGED, "\"head_dim\" is missing"},
        {SET("gda-f32-shards", "rope_theta", NULL), DQ_DAMAGED, "\"rope_theta\" is missing"},
        {SET("gda-f32-shards", "attn_rms_norm_eps", "0"), DQ_DAMAGED, "\"attn_rms_norm_eps\""},
        /* Noise heads choose the family, and must fit. */
        {SET("gda-wide-bf16", "num_noise_heads", "0"), DQ_DAMAGED, "o_proj.weight\": wrong shape"},
        {SET("gda-wide-bf16", "num_noise_heads", NULL), DQ_DAMAGED, "o_proj.weight\": wrong"},
        {SET("gda-wide-bf16", "num_noise_heads", "null"), DQ_DAMAGED, "o_proj.weight\": wrong"},
        {SET("gda-f32-shards", "num_noise_heads", "5"), DQ_MISMATCH, "5 noise heads"},
        {SET("gda-f32-shards", "num_noise_heads", "3"), DQ_MISMATCH, "3 noise heads"},
        {SET("gda-f32-shards", "num_noise_heads", "10"), DQ_MISMATCH, "10 noise heads"},
        {SET("gda-f32-shards", "num_noise_heads", "11"), DQ_MISMATCH, "11 noise heads"},
        {SET("gda-f32-shards", "num_noise_heads", "1"), DQ_MISMATCH, "1 noise heads"},
        {SET("gda-f32-shards", "num_noise_heads", "-2"), DQ_DAMAGED, "\"num_noise_heads\""},
        {SET("gda-f32-shards", "num_noise_heads", "2.5"), DQ_DAMAGED, "\"num_noise_heads\""},
        {SET("gda-f32-shards", "num_noise_heads", "\"2\""), DQ_DAMAGED, "\"num_noise_heads\""},
        {SET("gda-f32-shards", "num_noise_heads", "1099511627776"), DQ_DAMAGED, "num_noise"},
        {SET("gda-f32-shards", "num_key_value_heads", "3"), DQ_MISMATCH, "3 KV heads"},
        {SET("gda-wide-bf16", "num_noise_heads", "6"), DQ_DAMAGED,
         "o_proj.weight\": wrong shape (expected [50, 96], found [50, 128])"},
        {SET("gda-wide-bf16", "num_attention_heads", "10"), DQ_MISMATCH, "10 query heads, 4 noise"},
    };
    edits_try(t, sizeof t / sizeof *t);
}

/* Where two objects hold rotary parameters, the theta of the other one is lost: not a silent 10000. */
TEST(theta_must_stand_where_it_counts)
{
    static const char lost[] = "{\"rope_theta\":500000.0}";
    static const char linear[] = "{\"rope_type\":\"linear\",\"factor\":2}";
    const edit e = {.base = "motif-bf16",
                    .key = "rope_parameters",
                    .value = lost,
                    .key2 = "rope_scaling",
                    .value2 = linear};
    dq_err err = {0};
    dq_model *m = edits_open(&e, &err); /* the theta of the top level is there */
    assert_int_equal(err.code, DQ_OK);
    assert_true(fabs((double)m->rope.inv_freq[1] * 2.0 / pow(5e5, -0.25) - 1) < 1e-6);
    dq_model_close(m);

    json_t *config = json_load_file(at("config.json"), 0, NULL);
    json_object_del(config, "rope_theta");
    assert_int_equal(json_dump_file(config, at("config.json"), 0), 0);
    json_decref(config);
    dq_model_open(&m, at(""), &err);
    check_error(&err, DQ_DAMAGED, "\"rope_theta\" is missing");
    assert_null(m);
}

TEST(missing_epsilons_are_assumed_aloud)
{
    static const struct {
        edit e;
        int warnings;
        const char *text;
        double block, head;
    } t[] = {
        {SET("motif-bf16", "rms_norm_eps", NULL), 1, "no \"rms_norm_eps\": 1e-06", 1e-6, 1e-3},
        {SET("motif-bf16", "attn_rms_norm_eps", NULL), 1, "\"attn_rms_norm_eps\": 1e-05", 1e-6,
         1e-5},
        {SET2("gda-f32-shards", "rms_norm_eps", NULL, "attn_rms_norm_eps", "null"), 2,
         "no \"rms_norm_eps\"", 1e-6, 1e-5},
        {SET("v1-naive-f32", "rms_norm_eps", NULL), 0, "", 1e-5, 1e-5},
        {SET("v1-naive-f32", "attn_rms_norm_eps", "1e-2"), 0, "", 1e-3, 1e-5},
        {SET("diffllama-f32", "rms_norm_eps", "1e-3"), 0, "", 1e-3, 1e-3},
        {SET("diffllama-f32", "rms_norm_eps", NULL), 0, "", 1e-5, 1e-5},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        dq_err err = {0};
        dq_model *m = edits_open(&t[i].e, &err);
        assert_string_equal(err.text, "");
        assert_int_equal(m->n_warnings, t[i].warnings);
        if (m->n_warnings) assert_non_null(strstr(m->warnings[0], t[i].text));
        assert_true(fabs((double)m->norm_eps / t[i].block - 1) < 1e-6);
        assert_true(fabs((double)m->layer[0].attn.norm_eps / t[i].head - 1) < 1e-6);
        dq_model_close(m);
    }
}

TEST(lambda_init_may_be_constant)
{
    static const char *const values[] = {"0.8", "0", "-0.25", "\"depth\"", "1"};
    static const double want[] = {0.8, 0, -0.25, 0.3555091, 1};
    for (int i = 0; i < 5; i++) {
        const edit e = SET("v1-const", "lambda_init", values[i]);
        dq_err err = {0};
        dq_model *m = edits_open(&e, &err);
        assert_string_equal(err.text, "");
        assert_true(fabs((double)m->layer[1].lambda_init - want[i]) < 1e-7);
        assert_true(fabs((double)m->layer[1].attn.out_scale - (1 - want[i])) < 1e-7);
        dq_model_close(m);
    }
}

/* ---- The published checkpoints: their configurations, without their gigabytes ---- */

#define LLAMA3                                                                                     \
    "\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":32.0,"          \
    "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}"
#define SIZES(vocab, dim, layers, q, kv, ffn, positions)                                           \
    "\"vocab_size\":" #vocab ",\"hidden_size\":" #dim ",\"num_hidden_layers\":" #layers            \
    ",\"num_attention_heads\":" #q ",\"num_key_value_heads\":" #kv ",\"intermediate_size\":" #ffn  \
    ",\"max_position_embeddings\":" #positions ",\"rms_norm_eps\":1e-5,"
#define MOTIF                                                                                      \
    "\"model_type\":\"Motif\",\"hidden_act\":\"poly_norm\",\"attn_rms_norm_eps\":1e-5,\"use_"      \
    "bias\":false,"

static const struct published {
    const char *name, *config;
    int64_t params;
    int q, kv, d, out;              /* heads, width of one, columns of the output projection */
    int head, pos[2], neg[2], v[2]; /* one output head: (query, key) heads of its maps, values */
} published[] = {
    {"kajuma/DiffLlama-0.3B-handcut",
     "{\"model_type\":\"diffllama\"," SIZES(128256, 2048, 16, 32, 8, 8192, 131072) LLAMA3
     ",\"tie_word_embeddings\":true,\"mlp_bias\":false,\"pretraining_tp\":1,\"head_dim\":64}",
     1235818496,
     32,
     8,
     64,
     2048,
     3,
     {3, 0},
     {19, 4},
     {0, 4}},
    {"kajuma/DiffLlama-1B",
     "{\"model_type\":\"diffllama\"," SIZES(102400, 2048, 16, 32, 8, 8192,
                                            8192) "\"rope_theta\":10000.0}",
     1392580608,
     32,
     8,
     64,
     2048,
     15,
     {15, 3},
     {31, 7},
     {3, 7}},
    {"reyllama/DiffLlama-375M",
     "{\"model_type\":\"diffllama\"," SIZES(128256, 1024, 16, 16, 4, 4096, 131072) LLAMA3
     ",\"tie_word_embeddings\":true}",
     374641664,
     16,
     4,
     64,
     1024,
     0,
     {0, 0},
     {8, 2},
     {0, 2}},
    {"Motif-2.6B",
     "{" MOTIF SIZES(219520, 2048, 32, 16, 16, 8192,
                     16384) "\"rope_theta\":500000.0,\"tie_word_embeddings\":true}",
     2597218432,
     16,
     16,
     128,
     2048,
     7,
     {14, 14},
     {15, 15},
     {14, 15}},
    {"Motif-2-12.7B",
     "{" MOTIF SIZES(219520, 4096, 40, 40, 16, 16384,
                     16384) "\"rope_theta\":1000000.0,\"head_dim\":128,\"num_noise_heads\":8,"
                            "\"k_ratio\":1}",
     12703860896,
     40,
     16,
     128,
     8192,
     31,
     {38, 14},
     {39, 15},
     {14, 15}},
};

static const struct published *sized; /* the one that the source below stands for */
static json_t *sized_config;

static int64_t stated(const char *key)
{
    return json_integer_value(json_object_get(sized_config, key));
}

/* Every tensor but lm_head of a tied model, in shape; only vectors have values, zeros. */
static bool find_shape(void *arg, const char *name, dq_weight *w)
{
    static const float zeros[1 << 14];
    const int64_t dim = stated("hidden_size"), ffn = stated("intermediate_size"), d = sized->d;
    const struct {
        const char *part;
        int64_t rows, cols;
    } shapes[] = {
        {"embed_tokens", stated("vocab_size"), dim},
        {"lm_head", stated("vocab_size"), dim},
        {"norm.weight", dim, 1}, /* of blocks, and the last */
        {"q_proj", sized->q * d, dim},
        {"k_proj", sized->kv * d, dim},
        {"v_proj", sized->kv * d, dim},
        {"o_proj", dim, sized->out},
        {"gate_proj", ffn, dim},
        {"up_proj", ffn, dim},
        {"down_proj", dim, ffn},
        {"lambda_", d, 1},
        {"subln", 2 * d, 1},
        {"act_fn.weight", 3, 1},
        {"act_fn.bias", 1, 1},
    };
    (void)arg;
    if (strstr(name, "lm_head") &&
        json_is_true(json_object_get(sized_config, "tie_word_embeddings")))
        return false;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const bool norm = strcmp(shapes[i].part, "norm.weight") == 0;
        if (!strstr(name, shapes[i].part) && !(norm && strstr(name, "layernorm.weight"))) continue;
        *w = (dq_weight){.name = shapes[i].part,
                         .rows = shapes[i].rows,
                         .cols = shapes[i].cols,
                         .bits = 16,
                         .dtype = DQ_F32,
                         .data = zeros};
        return true;
    }
    return false;
}

/* The totals come from the repositories' metadata, so they check every shape that dq expects. */
TEST(published_sizes_add_up)
{
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        const struct published *p = sized = &published[i];
        const dq_source source = {.find = find_shape};
        dq_model m = {0};
        dq_err err = {0};
        dq_arena *a = given_arena();
        sized_config = json_loads(p->config, 0, NULL);
        assert_non_null(sized_config);
        dq_model_build(&m, sized_config, &source, DQ_PAIR_COUNT, a, &err);
        assert_string_equal(err.text, "");
        assert_int_equal(m.n_params, p->params);
        assert_int_equal(m.n_warnings, 0);
        assert_int_equal(m.map.head_dim, p->d);
        const dq_head_order *map = &m.map;
        const dq_head *h = &map->head[p->head];
        assert_int_equal(h->q[0], p->pos[0]);
        assert_int_equal(map->key[h->q[0]], p->pos[1]);
        assert_int_equal(h->q[1], p->neg[0]);
        assert_int_equal(map->key[h->q[1]], p->neg[1]);
        assert_int_equal(h->v[0], p->v[0]);
        assert_int_equal(h->v[1], p->v[1]);
        const dq_published *known = dq_published_find(&m);
        assert_non_null(known);
        assert_non_null(strstr(known->names, p->name));
        assert_int_equal(known->params, p->params);
        json_decref(sized_config);
    }
}

FIXTURES(folder_begin, folder_end)
