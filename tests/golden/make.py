"""Tiny random checkpoints with reference logits from transformers, for the tests of dq.

Regenerate the folders of tests/golden/models of the families that transformers has with

    python tests/golden/make.py [NAME...]

(needs torch, transformers 5.24, safetensors and numpy; takes a minute on one core). The outputs are
kept in the repository, so nobody needs Python to build or test. Add a folder by adding a row at the end
of MODELS: a row's place is its seed. common.py says what a folder holds; families.py writes the others.

Attention is transformers' eager one. Frequencies are set to dq's definition (computed in double, rounded
once); transformers rounds twice on the way and differs in the last bit here and there, which at position
60000 is visible. That difference is stored as native.posP [1] f32, relative to max |logit|.
"""

import math
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.models.diffllama import modeling_diffllama
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.smollm3 import modeling_smollm3

import common
from common import model

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}

# rope holds the configuration's own keys, so that both spellings are met.
MODELS = (
    model("llama-f32", "llama", "float32", 48, 56, 4, 2, tied=True, tokens=160, quant=True,
          rope={"rope_theta": 10000.0, "rope_scaling": None, "torch_dtype": "float32"}),
    model("llama-bf16-bias", "llama", "bfloat16", 64, 72, 4, 2, head_dim=24, bias=True, mlp_bias=True,
          rope={"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3},
                "torch_dtype": "bfloat16"}),
    model("llama-f16-linear", "llama", "float16", 64, 64, 8, 2, head_dim=16,
          rope={"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
                "dtype": "float16"}),
    model("llama-bf16-far", "llama", "bfloat16", 64, 80, 4, 4, tied=True, offsets=(4000, 60000), tokens=24,
          rope={"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "dtype": "bfloat16"}),
    model("diffllama-f32", "diffllama", "float32", 48, 48, 4, 2, tied=True, tokens=160, quant=True,
          rope={"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "dtype": "float32"}),
    model("diffllama-bf16-far", "diffllama", "bfloat16", 64, 56, 8, 4, head_dim=16, tied=True, tokens=24,
          offsets=(4000, 60000),
          rope={"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3},
                "dtype": "bfloat16"}),
    model("diffllama-f16-shards", "diffllama", "float16", 64, 72, 8, 2, layers=4, bias=True, shards=True,
          rope={"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 2.0},
                "torch_dtype": "float16"}),
    model("diffllama-bf16-untied", "diffllama", "bfloat16", 64, 72, 8, 4, head_dim=12,
          rope={"rope_theta": 20000.0, "torch_dtype": "bfloat16"}),
    model("llama-yarn", "llama", "bfloat16", 48, 37, 6, 3, head_dim=24, tied=True, tokens=24,
          offsets=(4000, 60000),
          rope={"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0,
                                    "original_max_position_embeddings": 4096}, "dtype": "bfloat16"}),
    model("llama-yarn-factor", "llama", "bfloat16", 48, 41, 4, 2, head_dim=20, tied=True, tokens=24,
          rope={"rope_theta": 500000.0, "torch_dtype": "bfloat16",
                "rope_scaling": {"type": "yarn", "factor": 8.0, "attention_factor": 1.25,
                                 "original_max_position_embeddings": 8192}}),
    model("llama-dynamic", "llama", "bfloat16", 45, 51, 5, 5, head_dim=10, tied=True, tokens=24,
          offsets=(4000,),
          rope={"rope_theta": 10000.0, "torch_dtype": "bfloat16",
                "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}),
    model("qwen2-bf16", "qwen2", "bfloat16", 48, 56, 6, 2, bias=True, tied=True, tokens=130, eps=1e-6, quant=True,
          offsets=(4000,), rope={"rope_theta": 1000000.0, "torch_dtype": "bfloat16"},
          extra={"use_sliding_window": False, "sliding_window": 32, "max_window_layers": 2}),
    model("qwen3-f32", "qwen3", "float32", 48, 56, 6, 2, head_dim=16, tokens=130, eps=1e-6, quant=True,
          offsets=(4000,), rope={"rope_theta": 1000000.0, "torch_dtype": "float32"},
          extra={"use_sliding_window": False, "sliding_window": None, "max_window_layers": 3}),
    model("mistral-f16", "mistral", "float16", 48, 56, 4, 2, head_dim=20, tokens=24, eps=1e-5,
          rope={"rope_theta": 1000000.0, "torch_dtype": "float16"}, extra={"sliding_window": None}),
    model("smollm3-bf16", "smollm3", "bfloat16", 48, 56, 4, 2, layers=4, tied=True, tokens=24, eps=1e-6,
          offsets=(4000,), rope={"rope_theta": 2000000.0, "torch_dtype": "bfloat16"},
          extra={"no_rope_layer_interval": 2, "use_sliding_window": False, "sliding_window": None,
                 "attention_bias": False, "mlp_bias": False, "pad_token_id": 0}),
    model("qwen2-window", "qwen2", "bfloat16", 48, 56, 6, 2, bias=True, tied=True, tokens=100, vocab=160, eps=1e-6,
          rope={"rope_theta": 1000000.0, "torch_dtype": "bfloat16"}, windows=(0, 24, 24),
          extra={"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
    model("qwen3-window", "qwen3", "bfloat16", 48, 56, 6, 2, head_dim=16, tied=True, tokens=100, vocab=160, eps=1e-6,
          offsets=(4000,), rope={"rope_theta": 1000000.0, "torch_dtype": "bfloat16"}, windows=(40, 0, 40),
          extra={"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 3,
                 "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    model("mistral-window", "mistral", "float16", 48, 56, 4, 2, head_dim=20, tokens=150, vocab=160, eps=1e-5,
          rope={"rope_theta": 1000000.0, "torch_dtype": "float16"}, windows=(72,) * 3,
          extra={"sliding_window": 72}),
    model("smollm3-window", "smollm3", "bfloat16", 48, 56, 4, 2, layers=4, tied=True, tokens=100, vocab=160,
          eps=1e-6, rope={"rope_theta": 2000000.0, "torch_dtype": "bfloat16"}, windows=(0, 40, 0, 40),
          extra={"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 40,
                 "attention_bias": False, "mlp_bias": False, "pad_token_id": 0}),
    model("gemma3-f32", "gemma3", "float32", 48, 56, 4, 2, layers=4, head_dim=20, tied=True, tokens=130, eps=1e-6,
          quant=True, offsets=(4000,), windows=(40, 40, 0, 40),
          rope={"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "rope_scaling": None,
                "torch_dtype": "float32"},
          extra={"sliding_window": 40, "sliding_window_pattern": 3, "query_pre_attn_scalar": 24}),
    model("gemma3-bf16-wide", "gemma3", "bfloat16", 32, 40, 2, 1, head_dim=256, tokens=150, vocab=160, eps=1e-5,
          offsets=(4000,), windows=(72, 0, 72),
          rope={"rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 500000.0, "factor": 8.0},
                                    "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0}},
                "dtype": "bfloat16"},
          extra={"sliding_window": 72, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                 "_sliding_window_pattern": 6, "use_bidirectional_attention": False, "attn_logit_softcapping": None,
                 "final_logit_softcapping": None}),
)


def config_of(s):
    arch = {"llama": "LlamaForCausalLM", "diffllama": "DiffLlamaForCausalLM", "qwen2": "Qwen2ForCausalLM",
            "qwen3": "Qwen3ForCausalLM", "mistral": "MistralForCausalLM",
            "smollm3": "SmolLM3ForCausalLM", "gemma3": "Gemma3ForCausalLM"}[s["family"]]
    c = {"architectures": [arch], "model_type": s["family"], "vocab_size": s["vocab"],
         "hidden_size": s["hidden"], "intermediate_size": s["ffn"], "num_hidden_layers": s["layers"],
         "num_attention_heads": s["heads"], "num_key_value_heads": s["kv"], "hidden_act": "silu",
         "max_position_embeddings": 65536, "rms_norm_eps": s["eps"], "tie_word_embeddings": s["tied"],
         "bos_token_id": 1, "eos_token_id": [2, 3]} | (s["extra"] or {})
    if s["family"] in ("llama", "diffllama", "qwen3"):
        c["attention_bias"] = s["bias"]
    if s["family"] == "llama":
        c["mlp_bias"] = s["mlp_bias"]
    if s["head_dim"]:
        c["head_dim"] = s["head_dim"]
    if s["family"] == "gemma3":
        del c["hidden_act"]
        c |= {"model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "pad_token_id": 0}
        if c["head_dim"] == 256:  # the default, as that of tied embeddings, eps and the scalar
            del c["head_dim"]
    return c | s["rope"]


PLAIN_EAGER = modeling_llama.eager_attention_forward


def rounding_eager(bits, granularity):
    """transformers' eager attention with its logits rounded before softmax."""
    def attend(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
        n = module.num_key_value_groups
        k, v = modeling_llama.repeat_kv(key, n), modeling_llama.repeat_kv(value, n)
        x = (torch.matmul(query, k.transpose(2, 3)) * scaling)[0]
        x = x.masked_fill(attention_mask[0] < -1, -math.inf).numpy()
        x = common.round_logits(x, bits, granularity, np.float32)
        a = torch.softmax(torch.from_numpy(x), -1)[None]
        return torch.matmul(a, v).transpose(1, 2).contiguous(), a
    return attend


def run(net, ids, start=0, eager=PLAIN_EAGER):
    for module in (modeling_llama, modeling_diffllama, modeling_qwen2, modeling_qwen3, modeling_mistral,
                   modeling_smollm3, modeling_gemma3):
        module.eager_attention_forward = eager
    with torch.no_grad():
        pos = torch.arange(start, start + len(ids))[None]
        return net(torch.tensor(ids)[None], position_ids=pos, use_cache=False).logits[0].numpy()


def make(s, seed):
    rng = np.random.default_rng(seed)
    folder = common.OUT / s["name"]
    common.write_checkpoint(s, folder, config_of(s), common.weights_of(s, rng))
    net = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ids = rng.integers(0, s["vocab"], s["tokens"])
    rotary = net.model.rotary_emb
    kinds = {"full_attention_": False, "sliding_attention_": True} if s["family"] == "gemma3" else {"": False}
    before = {start: run(net, ids, start) for start in (0, *s["offsets"])}
    for kind, local in kinds.items():
        own, freq = getattr(rotary, kind + "inv_freq"), torch.from_numpy(common.frequencies(s, local))
        assert torch.allclose(own, freq, rtol=3e-6, atol=0), (own, freq)
        assert math.isclose(getattr(rotary, kind + "attention_scaling"), common.rope_scale(s), rel_tol=1e-12)
        own.copy_(freq)

    def reference(ids, start, bits, granularity):
        return run(net, ids, start, PLAIN_EAGER if bits == 16 else rounding_eager(bits, granularity))

    w = common.read_weights(folder)
    g, lines = common.golden(s, w, ids, reference)
    for start, was in before.items():
        scale = np.abs(common.forward64(s, w, ids, start)).max()
        shift = common.relative(was, run(net, ids, start), scale)[0]
        g[f"native.pos{start}" if start else "native"] = np.array([shift], np.float32)
        lines.append(f"native {shift:.1e}")
    common.save_golden(s, folder, g, lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for number, spec in enumerate(MODELS):
        if spec["name"] in sys.argv[1:] or len(sys.argv) == 1:
            make(spec, 1000 + number)
