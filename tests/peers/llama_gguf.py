"""A Llama of safetensors as a GGUF file with the same values; what the benchmarks against llama.cpp share."""
import hashlib
import json
import mmap
import os
import struct
import sys

NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def load_gguf(source):
    try:
        import gguf
    except ImportError:
        if not source:
            sys.exit("there is no package gguf. pip install gguf")
        sys.path.insert(0, os.path.join(source, "gguf-py"))
        import gguf
    return gguf


def config_of(folder):
    with open(os.path.join(folder, "config.json")) as f:
        return json.load(f)


def is_gguf(model):
    return model.endswith(".gguf")


def fingerprint(folder):
    """A name for the files of a checkpoint as they are now: another model in a folder of the same name has another."""
    if is_gguf(folder):
        s = os.stat(folder)
        return hashlib.sha256(repr((folder, s.st_size, s.st_mtime_ns)).encode()).hexdigest()[:12]
    files = sorted(x for x in os.listdir(folder) if x.endswith(".safetensors"))
    seen = [(x, os.stat(os.path.join(folder, x))) for x in files]
    with open(os.path.join(folder, "config.json"), "rb") as f:
        return hashlib.sha256(f.read() + repr([(x, s.st_size, s.st_mtime_ns) for x, s in seen]).encode()).hexdigest()[:12]


def made(path, make):
    """The file, made under another name first, so that what is there is whole."""
    if not os.path.exists(path):
        make(path + ".new")
        os.replace(path + ".new", path)
    return path


def tensors_of(folder):
    """name, dtype, shape, bytes of every tensor, mapped."""
    for file in sorted(x for x in os.listdir(folder) if x.endswith(".safetensors")):
        with open(os.path.join(folder, file), "rb") as f:
            data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        n = struct.unpack("<Q", data[:8])[0]
        for name, t in json.loads(data[8:8 + n]).items():
            if name != "__metadata__":
                begin, end = (8 + n + x for x in t["data_offsets"])
                yield name, t["dtype"], t["shape"], memoryview(data)[begin:end]


def gguf_name(name):
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        layer, _, part = stem[len("model.layers."):].partition(".")
        return f"blk.{layer}.{NAMES[part]}.{kind}"
    return f"{NAMES[stem]}.{kind}"


def rope_order(rows, heads, back=False):
    """llama.cpp rotates neighbours, checkpoints the halves of a head: rows of q and k change places, there or back."""
    pairs = rows.shape[0] // heads // 2
    return rows.reshape(heads, *((pairs, 2) if back else (2, pairs)), -1).swapaxes(1, 2).reshape(rows.shape)


def add_config(w, c, dim):
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(dim)
    w.add_value_length(dim)
    w.add_rope_dimension_count(dim)
    w.add_rope_freq_base(c.get("rope_theta") or c["rope_parameters"]["rope_theta"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_vocab_size(c["vocab_size"])
    w.add_tokenizer_model("none")


def add_fields_of(w, reader, other):
    """What another file of the same model says of it, its tokenizer too, but for `other`; not how that file stores tensors."""
    for key in sorted(other.keys() - reader.fields.keys()):
        w.add_uint32(key, other[key])
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key not in ("general.architecture", "general.file_type", "general.quantization_version"):
            w.add_key_value(key, other.get(key, field.contents()), field.types[0], field.types[-1] if len(field.types) > 1 else None)


def write_gguf(gguf, folder, path, like=None, wide=None):
    """The tensors of a folder, or of the wide model around it (llama_wide.py); what the file says of the model from config.json,
    without a tokenizer, or from the file `like`."""
    import numpy as np
    own = config_of(folder)
    c = wide.config(own) if wide else own
    if c["model_type"] != "llama":
        sys.exit(f"{folder}: is of the family {c['model_type']} (expected llama)")
    kinds = {"F32": ("<f4", gguf.GGMLQuantizationType.F32), "F16": ("<f2", gguf.GGMLQuantizationType.F16),
             "BF16": ("<u2", gguf.GGMLQuantizationType.BF16)}
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
    w = gguf.GGUFWriter(path, "llama")
    if like:
        add_fields_of(w, gguf.GGUFReader(like), wide.fields(own) if wide else {})
    else:
        add_config(w, c, c.get("head_dim") or c["hidden_size"] // heads)
    for name, dtype, shape, data in tensors_of(folder):
        kind, raw = kinds[dtype]
        x = np.frombuffer(data, kind).reshape(shape)
        if wide:
            x = wide.of(name, x)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            x = rope_order(x, heads if "q_proj" in name else kv)
        if len(shape) == 1 and dtype != "F32":
            exact = x.astype(np.uint32) << 16 if dtype == "BF16" else x
            w.add_tensor(gguf_name(name), exact.view("<f4") if dtype == "BF16" else exact.astype("<f4"))
        elif dtype == "BF16":
            w.add_tensor(gguf_name(name), x.view(np.uint8).reshape(shape[0], -1), raw_dtype=raw)
        else:
            w.add_tensor(gguf_name(name), x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
