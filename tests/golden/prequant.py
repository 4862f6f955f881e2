#!/usr/bin/env python3
"""Tiny checkpoints whose weights other tools have quantized, for the tests of dq: NumPy writers of the formats' definitions.

    python tests/golden/prequant.py            writes the folders of tests/golden/prequant (needs numpy)
    python tests/golden/prequant.py --check    reads them with compressed-tensors instead (needs it and torch)

A folder NAME holds config.json and model.safetensors. values.txt has a line "NAME TENSOR FORMAT SHA256" for every
quantized weight: dq's name of what it should become and the hash of its values (u - zero) * scale as f32, one product
each, row by row. NAME-dense holds the same model with these values, for those in DENSE.

Formats (u is a code of b bits, 0 .. 2^b - 1; a stream is a run of words of 32 bits, least significant bit first):

    compressed-tensors pack-quantized: weight_packed [out, words], a stream per row; weight_zero_point packed the same
        way down the rows. Dense streams, or, before June 2026, 32 // b whole codes in a word (`gaps`).
    gptq: qweight [in * b / 32, out], a stream per row, downwards; qzeros [groups, out * b / 32]; scales [groups, out].
        gptq_v2 stores zero points as they are. gptq stores one less: fields of a word are lowered together (a word minus
        0x11111111 for 4 bits), fields of 3 bits, which lie across words, each by itself.
    awq gemm: qweight [in, out / 8], qzeros [groups, out / 8]: eight rows in a word, in the order 0 2 4 6 1 3 5 7.
"""

import argparse
import hashlib
import json
import pathlib
import shutil
import struct
import sys

import numpy as np

OUT = pathlib.Path(__file__).parent / "prequant"
F, LAYERS, HIDDEN, FFN, HEADS = np.float32, 2, 32, 64, 4
DENSE = ("ct-asym-index", "gptq-v2-index", "awq")
CODES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I8": "i1", "I32": "<i4", "I64": "<i8"}


# ---- Numbers ----

def store(x, dtype):
    """f32 values as stored in dtype, and what they are then, f32."""
    x = np.asarray(x, F)
    if dtype == "BF16":
        u = x.view(np.uint32)
        u = ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)
        return u, (u.astype(np.uint32) << 16).view(F)
    y = x.astype(CODES[dtype])
    return y, y.astype(F)


def stream(codes, bits, per=0):
    """codes [..., n] -> int32 words [..., words]."""
    codes = np.asarray(codes, np.int64)
    n = codes.shape[-1]
    words = -(-n // per) if per else -(-n * bits // 32)
    out = np.zeros(codes.shape[:-1] + (words,), np.uint64)
    for i in range(n):
        word, at = (i // per, i % per * bits) if per else divmod(i * bits, 32)
        out[..., word] |= (codes[..., i].astype(np.uint64) << np.uint64(at)) & np.uint64(0xFFFFFFFF)
        if at + bits > 32:
            out[..., word + 1] |= codes[..., i].astype(np.uint64) >> np.uint64(32 - at)
    return out.astype(np.uint32).view(np.int32)


def quantize(rng, rows, cols, bits, group, asym, index=None, dtype="F16", one=False, positive=False,
             shift=0.0):
    """Codes u [rows, cols], scales as stored [rows, groups], zero points, values; index: the group of each column."""
    w = rng.normal(0, 1.4 / cols ** 0.5, (rows, cols)).astype(F) + F(shift)
    w[::3] = abs(w[::3]) if positive else w[::3]  # zero points of 0
    if index is None:
        index = np.arange(cols) // group
    groups, top, middle = index.max() + 1, (1 << bits) - 1, 1 << (bits - 1)
    low = np.stack([np.minimum(w[:, index == g].min(1), 0) for g in range(groups)], 1)
    high = np.stack([np.maximum(w[:, index == g].max(1), 0) for g in range(groups)], 1)
    if one:
        low, high = low.min(keepdims=True), high.max(keepdims=True)
    peak = np.maximum(-low, high)
    stored, scale = store((high - low) / F(top) if asym else peak / F(middle), dtype)
    zero = np.clip(np.rint(-low / scale), 0, top).astype(int) if asym else np.full(scale.shape, middle)
    wide, at = np.broadcast_to(scale, (rows, groups)), np.broadcast_to(zero, (rows, groups))
    u = np.clip(np.rint(w / wide[:, index]) + at[:, index], 0, top).astype(int)
    return u, stored, zero, (u - at[:, index]).astype(F) * wide[:, index]


# ---- Formats: a name, one quantized weight -> its tensors ----

def compressed(name, q, dtype, bits, gaps=False, asym=False, plain_zero=False, index=None, **_):
    u, scale, zero, _ = q
    per = 32 // bits if gaps else 0
    t = {".weight_packed": ("I32", stream(u, bits, per)), ".weight_scale": (dtype, scale),
         ".weight_shape": ("I64", np.array(u.shape))}
    if plain_zero:
        t[".weight_zero_point"] = ("I8", zero - (1 << (bits - 1)))
    elif asym:
        t[".weight_zero_point"] = ("I32", stream(zero.T, bits, per).T)
    if index is not None:
        t[".weight_g_idx"] = ("I32", index)
    return {name + k: v for k, v in t.items()}


def lowered(words, zero, bits):
    """One less, as gptq stores it."""
    if 32 % bits:
        return stream((zero.T - 1) & ((1 << bits) - 1), bits)
    ones = np.uint32(0xFFFFFFFF // ((1 << bits) - 1))
    return (words.view(np.uint32) - ones).view(np.int32)


def gptq(name, q, dtype, bits, v1=True, index=None, group=0, no_index=False, **_):
    u, scale, zero, _ = q
    words = stream(zero.T, bits)
    t = {".qweight": ("I32", stream(u, bits).T), ".scales": (dtype, scale.T),
         ".qzeros": ("I32", lowered(words, zero, bits) if v1 else words)}
    if not no_index:
        t[".g_idx"] = ("I32", np.arange(u.shape[1]) // group if index is None else index)
    return {name + k: v for k, v in t.items()}


def awq(name, q, dtype, **_):
    u, scale, zero, _ = q
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def words(x):  # [n, rows]
        return stream(x.reshape(len(x), -1, 8)[:, :, order].reshape(len(x), -1), 4)
    return {name + ".qweight": ("I32", words(u.T)), name + ".qzeros": ("I32", words(zero.T)),
            name + ".scales": (dtype, scale.T)}


# ---- Models ----

LINEARS = [("self_attn.q_proj", HIDDEN, HIDDEN), ("self_attn.k_proj", HIDDEN, HIDDEN),
           ("self_attn.v_proj", HIDDEN, HIDDEN), ("self_attn.o_proj", HIDDEN, HIDDEN),
           ("mlp.gate_proj", FFN, HIDDEN), ("mlp.up_proj", FFN, HIDDEN), ("mlp.down_proj", HIDDEN, FFN)]


def ct_config(groups, fmt="pack-quantized", **other):
    return {"quant_method": "compressed-tensors", "format": fmt, "quantization_status": "compressed",
            "ignore": ["lm_head"], "kv_cache_scheme": None, "config_groups": groups} | other


def ct_group(targets, bits, strategy, group=None, sym=True, fmt=None, order=None, **other):
    weights = {"num_bits": bits, "type": "int", "symmetric": sym, "strategy": strategy, "group_size": group,
               "dynamic": False, "actorder": order}
    scheme = {"targets": targets, "weights": weights, "input_activations": None, "output_activations": None}
    return scheme | ({"format": fmt} if fmt else {}) | other


def gptq_config(bits, group, sym, fmt, **other):
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": sym, "checkpoint_format": fmt,
            "lm_head": False, "pack_dtype": "int32"} | other


def shuffled(cols, group, seed):
    """Columns in the order of activations: groups of equal size, but of columns from everywhere."""
    index = np.empty(cols, int)
    index[np.random.default_rng(seed).permutation(cols)] = np.arange(cols) // group
    return index


MIXED = {  # of ct-mixed
    "q_proj": dict(bits=3, group=32, dtype="F16"), "k_proj": dict(bits=3, group=32, dtype="F16"),
    "v_proj": dict(bits=6, group=16, dtype="F16"), "o_proj": dict(bits=6, group=16, dtype="F16"),
    "gate_proj": dict(bits=6, group=16, dtype="F16", gaps=True),
    "up_proj": dict(bits=4, group=32, dtype="F32", one=True, asym=True, plain_zero=True, shift=0.3),
    "down_proj": dict(bits=5, group=64, dtype="BF16", asym=True, gaps=True),
    "lm_head": dict(bits=8, group=32, dtype="BF16")}

FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}

# family, type of what is not quantized, writer, settings of each weight (or a function of its name), configuration
MODELS = {
    "ct-w4": ("diffllama", "BF16", compressed, dict(bits=4, group=16, dtype="BF16"),
              ct_config({"group_0": ct_group(["Linear"], 4, "group", 16)}, sparsity_config={},
                        transform_config={})),
    "ct-w8-kv8": ("llama", "F16", compressed, dict(bits=8, group=0, dtype="F16", asym=True),
                  ct_config({"group_0": ct_group(["Linear"], 8, "channel", sym=False)}, kv_cache_scheme=FP8)),
    "ct-asym-index": ("diffllama", "F32", compressed, dict(bits=4, group=16, dtype="F32", asym=True, shuffle=True),
                      ct_config({"group_0": ct_group(["Linear"], 4, "group", 16, sym=False, order="group")})),
    "ct-mixed": ("llama", "BF16", compressed, MIXED,
                 ct_config({"a": ct_group(["re:.*[qk]_proj"], 3, "group", 32, fmt="pack-quantized"),
                            "b": ct_group(["re:.*[vo]_proj", "re:.*gate_proj"], 6, "group", 16, fmt="pack-quantized"),
                            "c": ct_group(["re:.*up_proj"], 4, "tensor", sym=False, fmt="pack-quantized"),
                            "d": ct_group(["re:.*down_proj"], 5, "channel", sym=False, fmt="pack-quantized"),
                            "e": ct_group(["lm_head"], 8, "channel", fmt="pack-quantized")}, "mixed-precision",
                           ignore=[])),
    "gptq-v1": ("llama", "F16", gptq, dict(bits=4, group=16, dtype="F16"),
                gptq_config(4, 16, True, "gptq", desc_act=False)),
    "gptq-v1-wrapped": ("llama", "F16", gptq, dict(bits=4, group=16, dtype="F16", asym=True, no_index=True, positive=True),
                        gptq_config(4, 16, False, "gptq", desc_act=False)),
    "gptq-v1-3": ("diffllama", "F16", gptq, dict(bits=3, group=32, dtype="F16", asym=True),
                  gptq_config(3, 32, False, "gptq", desc_act=False)),
    "gptq-v2-2-row": ("llama", "F16", gptq, dict(bits=2, group=0, dtype="F16", asym=True, v1=False),
                      gptq_config(2, -1, False, "gptq_v2", desc_act=False)),
    "gptq-v2-index": ("diffllama", "F16", gptq, dict(bits=8, group=16, dtype="F16", asym=True, v1=False, shuffle=True),
                      gptq_config(8, 16, False, "gptq_v2", desc_act=True)),
    "gptq-dynamic": ("llama", "BF16", gptq,
                     {"down_proj": dict(bits=8, group=24, dtype="BF16", v1=False), "k_proj": None,
                      "": dict(bits=4, group=32, dtype="BF16", v1=False)},
                     gptq_config(4, 32, True, "gptq_v2", dynamic={r".*down_proj": {"bits": 8, "group_size": 24},
                                                                  r"-:.*k_proj": {}})),
    "awq": ("diffllama", "F16", awq, dict(bits=4, group=16, dtype="F16", asym=True),
            {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "GEMM",
             "modules_to_not_convert": ["model.layers.0.self_attn.k_proj"]}),
    "awq-row": ("llama", "F16", awq, dict(bits=4, group=0, dtype="F16", asym=True),
                {"quant_method": "awq", "w_bit": 4, "q_group_size": -1, "zero_point": True}),
}


def settings_of(settings, name, cols, seed):
    """None: this weight is not quantized."""
    if "bits" not in settings:
        last = name.split(".")[-1]
        settings = settings[last] if last in settings else settings.get("")
    if settings is None or name == "lm_head" and settings.get("bits") != 8:
        return None
    s = dict(settings)
    if s.pop("shuffle", False):
        s["index"] = shuffled(cols, s["group"], seed)
    s["group"] = s["group"] or cols
    return s


def save(path, tensors):
    header, at, blob = {}, 0, b""
    for name, (dtype, x) in sorted(tensors.items()):
        data = np.ascontiguousarray(x).astype(CODES[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
        blob += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob)


def plain_tensors(family, dtype, vocab, tied, rng):
    t = {}

    def add(name, shape, sigma, mean=0):
        t[name] = (dtype, store(rng.normal(mean, sigma, shape), dtype)[0])
    add("model.embed_tokens.weight", (vocab, HIDDEN), 0.5)
    add("model.norm.weight", HIDDEN, 0.1, 1)
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        add(p + "input_layernorm.weight", HIDDEN, 0.1, 1)
        add(p + "post_attention_layernorm.weight", HIDDEN, 0.1, 1)
        for k in ("q1", "k1", "q2", "k2") if family == "diffllama" else ():
            add(p + "self_attn.lambda_" + k, HIDDEN // HEADS, 0.1)
    return t


def config_of(family, vocab, tied, quantization):
    c = {"architectures": ["DiffLlamaForCausalLM" if family == "diffllama" else "LlamaForCausalLM"],
         "model_type": family, "vocab_size": vocab, "hidden_size": HIDDEN, "intermediate_size": FFN,
         "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
         "hidden_act": "silu", "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "bos_token_id": 0,
         "eos_token_id": 0, "tie_word_embeddings": tied, "attention_bias": False, "rope_theta": 10000.0}
    return c | ({"quantization_config": quantization} if quantization else {})


def write(folder, config, tensors):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save(folder / "model.safetensors", tensors)


def make(seed, name, family, dtype, writer, settings, quantization):
    rng = np.random.default_rng(seed)
    vocab, tied = 640 if name in DENSE else 48, name != "ct-mixed"
    plain = plain_tensors(family, dtype, vocab, tied, rng)
    quantized, dense, lines = dict(plain), dict(plain), []
    linears = [(f"model.layers.{i}.{k}", rows, cols) for i in range(LAYERS) for k, rows, cols in LINEARS]
    for k, rows, cols in linears + ([] if tied else [("lm_head", vocab, HIDDEN)]):
        s = settings_of(settings, k, cols, seed)
        if name == "awq" and "layers.0.self_attn.k_proj" in k:
            s = None  # modules_to_not_convert
        if s is None:
            dense[k + ".weight"] = quantized[k + ".weight"] = (
                dtype, store(rng.normal(0, 1.4 / cols ** 0.5, (rows, cols)), dtype)[0])
            continue
        q = quantize(rng, rows, cols, s["bits"], s["group"], s.get("asym", False), s.get("index"), s["dtype"],
                     s.get("one", False), s.get("positive", False), s.get("shift", 0.0))
        quantized |= writer(k, q, **s)
        dense[k + ".weight"] = ("F32", q[3])
        kind = "int-index" if s.get("index") is not None else "int-zero" if (q[2] != 1 << (s["bits"] - 1)).any() else \
            "int-packed"
        lines.append(f"{name} {k}.weight {kind} {hashlib.sha256(q[3].astype('<f4').tobytes()).hexdigest()}")
    if name == "ct-w8-kv8":
        for i in range(2 * LAYERS):
            quantized[f"model.layers.{i // 2}.self_attn.{'kv'[i % 2]}_scale"] = ("F16", np.ones(1, np.float16))
    write(OUT / name, config_of(family, vocab, tied, quantization), quantized)
    if name in DENSE:
        write(OUT / (name + "-dense"), config_of(family, vocab, tied, None), dense)
    return lines


# ---- The same by the package ----

def load(path):
    """Tensors of a file, BF16 widened."""
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, e in json.loads(data[8:start]).items():
        x = np.frombuffer(data[start + e["data_offsets"][0]:start + e["data_offsets"][1]], CODES[e["dtype"]])
        out[name] = ((x.astype(np.uint32) << 16).view(F) if e["dtype"] == "BF16" else x.copy()).reshape(e["shape"])
    return out


def unpacked(helpers, t, k, bits, shape):
    """Codes, zero points and the group of each column, by the package's own reading of the words."""
    import torch
    groups = t[k + "_scale"].shape[-1]
    zero, index = t.get(k + "_zero_point"), t.get(k + "_g_idx", np.arange(shape[1]) * groups // shape[1])
    if zero is None:
        zero = np.zeros((1, groups), np.int8)
    elif zero.dtype == np.int32:
        zero = helpers.unpack_from_int32(torch.from_numpy(zero), bits, torch.Size((shape[0], groups)), packed_dim=0).numpy()
    codes = helpers.unpack_from_int32(torch.from_numpy(t[k + "_packed"]), bits, torch.Size(shape)).numpy()
    return codes.astype(F), zero.astype(F).reshape(-1, groups), index


def check():
    sys.path.pop(0)  # files beside this one have names of packages
    from compressed_tensors.compressors.pack_quantized import helpers
    dense = "dense" in (helpers.pack_to_int32.__doc__ or "")
    lines = [x.split() for x in (OUT / "values.txt").read_text().splitlines()]
    read = 0
    for name, k, _, digest in lines:
        if not name.startswith("ct-"):
            continue
        t, cols = load(OUT / name / "model.safetensors"), FFN if "down_proj" in k else HIDDEN
        s = settings_of(MODELS[name][3], k.removesuffix(".weight"), cols, 0)
        if 32 % s["bits"] and dense == s.get("gaps", False):
            continue
        codes, zero, index = unpacked(helpers, t, k, s["bits"], t[k + "_shape"])
        value = (codes - zero[:, index]) * t[k + "_scale"].astype(F).reshape(len(t[k + "_scale"]), -1)[:, index]
        assert hashlib.sha256(value.tobytes()).hexdigest() == digest, (name, k)
        read += 1
    print(f"{read} weights as values.txt has them; this version packs {'without' if dense else 'with'} gaps")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        return check()
    lines = []
    for seed, (name, spec) in enumerate(MODELS.items()):
        lines += make(seed, name, *spec)
    (OUT / "values.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
