#!/usr/bin/env python3
"""Writes planted/: two tiny models of drawn weights, one outlier planted in each of several copies (studies/planted/plant.py), and
places.tsv: where dq stats must name it.

    python tests/golden/planted.py

A line of places.tsv: model, the model that it was made from, kind of values, class of tokens (of weights: role), layer, head, map,
channels (one of which must be named), first and last layer. "-": not looked at.
"""
import json
import os
import pathlib
import shutil
import sys
import tempfile

sys.path.pop(0)
import torch  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "studies" / "planted"))
import plant  # noqa: E402

OUT = HERE / "planted"
SHAPE = {"vocab_size": 32, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 4, "hidden_act": "silu", "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
         "bos_token_id": 0, "eos_token_id": 0, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
         "attention_bias": False, "tie_word_embeddings": True}
TIMES = 4
# name: what it is made from, and arguments of plant.plant; times None: all that the leading direction has
PLANTS = {
    "logits": ("llama", {"kind": "logits", "layer": 1, "head": 2}),
    "map": ("diffllama", {"kind": "logits", "layer": 1, "head": 2}),
    "queries": ("llama", {"kind": "queries", "layer": 2, "head": 1}),
    "keys": ("diffllama", {"kind": "keys", "layer": 1, "channel": 5}),
    "keys-head": ("llama", {"kind": "keys", "layer": 0, "head": 1}),
    "values": ("llama", {"kind": "values", "layer": 1, "channel": 6}),
    "o-input": ("llama", {"kind": "o_input", "layer": 2, "channel": 9}),
    "value-rotation": ("diffllama", {"kind": "value_rotation", "layer": 0, "channel": 3, "times": None}),
    "qkv-input": ("diffllama", {"kind": "qkv_input", "layer": 1, "channel": 2}),
    "gate-up-input": ("llama", {"kind": "gate_up_input", "layer": 0, "channel": 7}),
    "down-input": ("diffllama", {"kind": "down_input", "layer": 2, "channel": 10}),
    "weight": ("diffllama", {"kind": "weight", "layer": 0, "channel": 4, "matrix": "up"}),
    "hidden": ("llama", {"kind": "hidden", "layer": 2, "channel": 5, "times": None}),
    "first": ("diffllama", {"kind": "first", "layer": 0, "until": 2, "channel": 3}),
}


def drawn(kind, seed):
    g = torch.Generator().manual_seed(seed)
    h, f, d, s = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["head_dim"], SHAPE
    q, kv, t = s["num_attention_heads"] * d, s["num_key_value_heads"] * d, {}

    def normal(spread, *shape):
        return torch.randn(*shape, generator=g) * spread

    t["model.embed_tokens.weight"] = normal(2.5 / h ** .5, s["vocab_size"], h)
    for i in range(s["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name, rows, cols, gain in (("self_attn.q_proj", q, h, 1.2), ("self_attn.k_proj", kv, h, 1.2), ("self_attn.v_proj", kv, h, 1),
                                       ("self_attn.o_proj", h, q, 1), ("mlp.gate_proj", f, h, 1.2), ("mlp.up_proj", f, h, 1),
                                       ("mlp.down_proj", h, f, 1)):
            t[f"{p}{name}.weight"] = normal(gain / cols ** .5, rows, cols)
        for name in ("input_layernorm", "post_attention_layernorm"):
            t[f"{p}{name}.weight"] = 1 + normal(.2, h)
        for name in ("q1", "k1", "q2", "k2") if kind == "diffllama" else ():
            t[f"{p}self_attn.lambda_{name}"] = normal(.3, d)
    t["model.norm.weight"] = 1 + normal(.2, h)
    return t


def tokenizer():
    """<bos> and one token a letter; space and full stop are letters too."""
    letters = ["Ġ", ".", *"abcdefghijklmnopqrstuvwxyz"]
    bos = {"id": 0, "content": "<bos>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    pieces = [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [bos], "normalizer": None,
            "pre_tokenizer": byte_level, "decoder": byte_level,
            "post_processor": {"type": "TemplateProcessing", "single": pieces, "pair": [*pieces, {"Sequence": {"id": "B", "type_id": 1}}],
                               "special_tokens": {"<bos>": {"id": "<bos>", "ids": [0], "tokens": ["<bos>"]}}},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {t: i for i, t in enumerate(["<bos>", *letters])}, "merges": []}}


def text():
    g = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 27, (800,), generator=g).tolist()
    return "".join(" abcdefghijklmnopqrstuvwxyz"[i] for i in ids).strip() + ".\n"


def line(name, source, place):
    def word(x):
        return "-" if x is None else ",".join(map(str, x)) if isinstance(x, list) else str(x)
    head = [name, source, place["values"], place.get("role") or place.get("tokens", "ordinary")]
    return "\t".join(head + [word(place.get(k)) for k in ("layer", "head", "map", "channels", "first_layer", "last_layer")]) + "\n"


def main():
    plant.WIDTH = 4
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    (OUT / "text.txt").write_text(text(), encoding="utf-8")
    (OUT / "tokenizer.json").write_text(json.dumps(tokenizer(), ensure_ascii=False) + "\n", encoding="utf-8")
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        for seed, (kind, name) in enumerate((("llama", "LlamaForCausalLM"), ("diffllama", "DiffLlamaForCausalLM"))):
            m = object.__new__(plant.Model)
            m.tensors, m.folder = drawn(kind, seed + 1), str(OUT)
            m.config = {"architectures": [name], "model_type": kind, **SHAPE}
            m.write(os.path.join(scratch, kind), {})
            m.write(str(OUT / kind), {})
        for name, (kind, arguments) in PLANTS.items():
            folder = os.path.join(scratch, kind)
            source = plant.Model(folder)
            seen = plant.Seen(folder, str(OUT / "text.txt"), 256, 4)
            m, what = plant.plant(source, seen, **{"times": TIMES, **arguments})
            m.write(str(OUT / name), what)
            lines += [line(name, kind, p) for p in what["places"]]
    for f in (*OUT.glob("*/plant.json"), *OUT.glob("*/tokenizer.json")):
        f.unlink()
    (OUT / "places.tsv").write_text("".join(lines), encoding="utf-8")


main()
