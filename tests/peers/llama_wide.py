"""A Llama inside one whose columns are multiples of 256, so that llama.cpp can give it every one of its types.

llama.cpp's K- and i-quants share numbers over 256 columns; where 256 does not divide them it takes types of 32 columns, so that
there is no file of less than 4 bits. Here zeros stand after the hidden states, heads and columns of the MLP. The function is the
same: a norm takes the mean over zeros too, so that its gain is times (real/wide)^.5 and its epsilon times real/wide. What llama.cpp
made of the wide model is cut to the real one, and counts bits of what is left alone: a last block of 256 columns may hold fewer
real ones, whose share of its bytes alone is counted. The seconds are those of the wide model.
"""
import json
import os
import shutil

from llama_gguf import NAMES, config_of, rope_order, tensors_of

COLUMNS = 256
GAINS = ("norm.weight", "layernorm.weight")


def above(n, step):
    return -(-n // step) * step


class Wide:
    def __init__(self, folder):
        c = config_of(folder)
        heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
        dim = c.get("head_dim") or c["hidden_size"] // heads
        more_kv = next(n for n in range(kv, kv + COLUMNS) if n * heads // kv * dim % COLUMNS == 0)
        self.folder, self.heads, self.kv, self.dim = folder, more_kv * heads // kv, more_kv, dim
        self.hidden, self.inter = above(c["hidden_size"], COLUMNS), above(c["intermediate_size"], COLUMNS)
        self.share = c["hidden_size"] / self.hidden
        self.sizes = {c["hidden_size"]: self.hidden, c["intermediate_size"]: self.inter}
        self.shapes = {name: shape for name, _, shape, _ in tensors_of(folder)}

    def config(self, c):
        return {**c, "hidden_size": self.hidden, "intermediate_size": self.inter, "num_attention_heads": self.heads,
                "num_key_value_heads": self.kv, "head_dim": self.dim, "rms_norm_eps": c["rms_norm_eps"] * self.share}

    def fields(self, c):
        """The values of a GGUF file that are others than the real model's."""
        head = {f"llama.{key}": self.dim for key in ("attention.key_length", "attention.value_length", "rope.dimension_count")}
        return {**head, "llama.embedding_length": self.hidden, "llama.feed_forward_length": self.inter,
                "llama.attention.head_count": self.heads, "llama.attention.head_count_kv": self.kv,
                "llama.attention.layer_norm_rms_epsilon": c["rms_norm_eps"] * self.share}

    def shape(self, name):
        real = self.shapes[name]
        part = name.split(".")[-2]
        if part in ("q_proj", "o_proj"):
            wide = [self.heads * self.dim, self.hidden]
            return wide if part == "q_proj" else wide[::-1]
        if part in ("k_proj", "v_proj"):
            return [self.kv * self.dim, self.hidden]
        if part in ("embed_tokens", "lm_head"):
            return [real[0], self.hidden]
        return [self.sizes[n] for n in real]

    def of(self, name, x):
        """The tensor with zeros after it; gains in the scale of the wide mean."""
        import numpy as np
        if x.dtype != np.float32:
            raise SystemExit(f"{name}: is {x.dtype} (expected float32)")
        out = np.zeros(self.shape(name), x.dtype)
        out[tuple(slice(n) for n in x.shape)] = x * x.dtype.type(self.share ** .5) if name.endswith(GAINS) else x
        return out

    def real_share(self, name):
        real, wide = self.shapes[name], self.shape(name)
        n = 1.
        for r, w in zip(real, wide):
            n *= r / w
        return n


def checkpoint_name(gguf):
    """The name in a checkpoint of a tensor of a GGUF file."""
    stem, _, kind = gguf.rpartition(".")
    names = {v: k for k, v in NAMES.items()}
    if stem.startswith("blk."):
        _, layer, part = stem.split(".", 2)
        return f"model.layers.{layer}.{names[part]}.{kind}"
    return f"{names[stem]}.{kind}"


def cut(gguf, wide, path, folder):
    """A folder in F32 of the real model, with the matrices that the file of the wide one holds; norms are the model's own."""
    import numpy as np
    from safetensors.numpy import save_file
    own = {name: np.frombuffer(data, "<f4").reshape(shape) for name, _, shape, data in tensors_of(wide.folder) if name.endswith(GAINS)}
    out = dict(own)
    for t in gguf.GGUFReader(path).tensors:
        name = checkpoint_name(t.name)
        if name in own:
            continue
        x = gguf.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(wide.shape(name))
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            x = rope_order(x, wide.heads if "q_proj" in name else wide.kv, back=True)
        out[name] = np.ascontiguousarray(x[tuple(slice(n) for n in wide.shapes[name])])
    os.makedirs(folder)
    save_file(out, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config_of(wide.folder), f)
    shutil.copy(os.path.join(wide.folder, "tokenizer.json"), folder)
