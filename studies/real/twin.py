"""A Llama as a differential model of the same function: a test object for kernels, memory and speed of a differential model of
real size. It is NOT evidence about differential attention: nothing was trained, and both maps of a head are the same map.

    pip install numpy safetensors; python twin.py LLAMA DIR [--noise S] [--seed N]

LLAMA is a folder with "model_type": "llama", such as checkpoint.py writes. DIR becomes a checkpoint of the family diff-v2
(docs/math/model.md): every query head stands twice, W of lambda is 0, so that lambda = sigmoid(0) = 1/2 for every token and head, and o is
doubled. With A the map of a head, o then reads 2 (A - 1/2 A) V = A V, as in the Llama. Keys and values stay as they are, so there are
twice as many query heads on as many KV heads. Rows of q and k change places within a head, because diff-v2 rotates channels 2i and
2i + 1 where a Llama rotates i and i + head_dim / 2.

--noise S adds Gaussian noise to the rows of q that make the second map, S times the root mean square of each row. The two maps then
differ, their difference is no map of the Llama, and the function is not preserved. Weights are written as f32.
"""
import argparse
import glob
import json
import os
import shutil
import sys

import numpy as np
import safetensors
from safetensors.numpy import save_file

NOTE = "made from a Llama by studies/real/twin.py: a test object for kernels, memory and speed, not evidence about differential attention"


def to_f32(name, dtype, data):
    if dtype == "BF16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype not in ("F16", "F32"):
        sys.exit(f"twin.py: {name} is of type {dtype} (expected F32, F16 or BF16)")
    return np.frombuffer(data, {"F16": np.float16, "F32": np.float32}[dtype]).astype(np.float32)


def tensors_of(folder):
    paths = sorted(glob.glob(os.path.join(folder, "*.safetensors")))
    if not paths:
        sys.exit(f"twin.py: {folder} has no *.safetensors")
    out = {}
    for path in paths:
        with open(path, "rb") as f:
            for name, t in safetensors.deserialize(f.read()):
                out[name] = to_f32(name, t["dtype"], t["data"]).reshape(t["shape"])
    return out


def adjacent(w, heads):
    """Rows of q and k: a Llama has the first of all rotary pairs, then the second; diff-v2 has pairs side by side."""
    return w.reshape(heads, 2, -1, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def twice(w, heads, noise, rng):
    """Every head of q, then the same head again for the second map."""
    first = w.reshape(heads, 1, -1, *w.shape[1:])
    second = first
    if noise and w.ndim == 2:
        size = noise * np.sqrt(np.square(first).mean(-1, keepdims=True))
        second = first + size * rng.standard_normal(first.shape, np.float32)
    return np.concatenate((first, second), 1).reshape(-1, *w.shape[1:])


def twin_of(w, heads, kv_heads, noise, rng):
    out = {}
    for name, t in sorted(w.items()):  # noise is drawn in this order
        if ".q_proj." in name:
            t = twice(adjacent(t, heads), heads, noise, rng)
        elif ".k_proj." in name:
            t = adjacent(t, kv_heads)
        elif name.endswith(".o_proj.weight"):
            t = 2 * t
            out[name.replace("o_proj", "lambda_proj")] = np.zeros((heads, t.shape[0]), np.float32)
        out[name] = np.ascontiguousarray(t)
    return out


def config_of(llama, noise, seed):
    heads = llama["num_attention_heads"]
    config = {**llama, "model_type": "diff_transformer", "diff_variant": "v2", "num_attention_heads": 2 * heads,
              "num_key_value_heads": llama.get("num_key_value_heads", heads),
              "head_dim": llama.get("head_dim") or llama["hidden_size"] // heads, "note": NOTE}
    if noise:
        config["note"] += f"; noise {noise:g}, seed {seed}: not the function of that Llama"
    config.pop("architectures", None)
    return config


def main():
    parser = argparse.ArgumentParser(description=NOTE)
    parser.add_argument("llama")
    parser.add_argument("dir")
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not 0 <= args.noise < float("inf"):
        parser.error("--noise is a size, 0 or more")
    with open(os.path.join(args.llama, "config.json"), encoding="utf-8") as f:
        llama = json.load(f)
    if llama.get("model_type") != "llama":
        sys.exit(f"twin.py: {args.llama} is not a Llama (expected model_type llama, found {llama.get('model_type')})")
    config = config_of(llama, args.noise, args.seed)
    w = twin_of(tensors_of(args.llama), llama["num_attention_heads"], config["num_key_value_heads"], args.noise,
                np.random.default_rng(args.seed))
    os.makedirs(args.dir, exist_ok=True)
    save_file(w, os.path.join(args.dir, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(args.dir, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2)
    for path in glob.glob(os.path.join(args.llama, "tokenizer*.json")):
        shutil.copy(path, args.dir)


if __name__ == "__main__":
    main()
