"""Writes a random DiffLlama or Llama checkpoint of a given shape, for speed measurements only.

    python make_random.py OUT_DIR [--family diffllama|llama] [--layers 16] [--dtype f32|bf16]
                          [--head-dim 64] [--kv-heads 8] [--positions 8192]

The default shape is that of a published 1B DiffLlama: hidden 2048, feed-forward 8192, 32 query and
8 KV heads of 64; another head_dim keeps the width and changes the number of query heads. The
vocabulary is small (8192) because prefill needs one row of logits only.
"""
import argparse
import json
import math
import os

import torch
from safetensors.torch import save_file


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("--family", default="diffllama", choices=["diffllama", "llama"])
    p.add_argument("--layers", type=int, default=16)
    p.add_argument("--dtype", default="f32", choices=["f32", "bf16"])
    p.add_argument("--head-dim", type=int, default=64)
    p.add_argument("--kv-heads", type=int, default=8)
    p.add_argument("--positions", type=int, default=8192)
    a = p.parse_args()
    hidden, ffn, d, vocab = 2048, 8192, a.head_dim, 8192
    n_q, n_kv = hidden // d, a.kv_heads
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[a.dtype]
    g = torch.Generator().manual_seed(1)

    def matrix(rows, cols):
        return (torch.randn(rows, cols, generator=g) / math.sqrt(cols)).to(dtype)

    t = {"model.embed_tokens.weight": matrix(vocab, hidden) * 8,
         "model.norm.weight": torch.ones(hidden, dtype=dtype)}
    for i in range(a.layers):
        s = f"model.layers.{i}."
        t[s + "input_layernorm.weight"] = torch.ones(hidden, dtype=dtype)
        t[s + "post_attention_layernorm.weight"] = torch.ones(hidden, dtype=dtype)
        t[s + "self_attn.q_proj.weight"] = matrix(n_q * d, hidden)
        t[s + "self_attn.k_proj.weight"] = matrix(n_kv * d, hidden)
        t[s + "self_attn.v_proj.weight"] = matrix(n_kv * d, hidden)
        t[s + "self_attn.o_proj.weight"] = matrix(hidden, n_q * d)
        t[s + "mlp.gate_proj.weight"] = matrix(ffn, hidden)
        t[s + "mlp.up_proj.weight"] = matrix(ffn, hidden)
        t[s + "mlp.down_proj.weight"] = matrix(hidden, ffn)
        if a.family == "diffllama":
            for name in ("q1", "k1", "q2", "k2"):
                t[s + f"self_attn.lambda_{name}"] = (torch.randn(d, generator=g) * 0.1).to(dtype)
    os.makedirs(a.out, exist_ok=True)
    save_file(t, os.path.join(a.out, "model.safetensors"), metadata={"format": "pt"})
    config = {
        "architectures": ["DiffLlamaForCausalLM" if a.family == "diffllama" else "LlamaForCausalLM"],
        "model_type": a.family, "vocab_size": vocab, "hidden_size": hidden,
        "intermediate_size": ffn, "num_hidden_layers": a.layers, "num_attention_heads": n_q,
        "num_key_value_heads": n_kv, "head_dim": d, "hidden_act": "silu",
        "max_position_embeddings": a.positions, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False,
        "torch_dtype": "float32" if a.dtype == "f32" else "bfloat16"}
    with open(os.path.join(a.out, "config.json"), "w") as f:
        json.dump(config, f, indent=2)


if __name__ == "__main__":
    main()
