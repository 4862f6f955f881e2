"""tests/golden/gguf/ARCHITECTURE: a random model of each architecture but llama as a GGUF file, and what transformers makes of its folder.

    pip install gguf numpy torch transformers safetensors; python3 gguf_models.py OUT_FOLDER [ARCHITECTURE...]

model.gguf has the names of the package gguf and what llama.cpp's converter does to values: rows of q and k of SmolLM3 in the order
of rotary pairs, 1 added to the norms of Gemma 3. config.json is the model's in transformers, rotary keys spelled flat.
golden.safetensors has `ids` and `logits`, of a model in f32 with f64's frequencies rounded once, and all vectors under their names.
"""
import json
import os
import sys

import numpy as np
import torch
import transformers
from gguf import MODEL_ARCH, GGUFWriter, get_tensor_name_map
from safetensors.numpy import save_file

WIDTH, FFN, HEADS, KV_HEADS, VOCAB, TOKENS = 32, 48, 4, 2, 96, 40
SCALING = {"rope_type": "linear", "factor": 8.0}
COMMON = {"hidden_size": WIDTH, "intermediate_size": FFN, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
          "vocab_size": VOCAB, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "bos_token_id": 1, "eos_token_id": 2}
# class of the config, what it has of its own, keys of the file: name, value, in the file's order
MODELS = {
    "qwen2": ("Qwen2Config", {"num_hidden_layers": 2, "tie_word_embeddings": False,
                              "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
              {"rope.freq_base": 1e6}),
    "qwen3": ("Qwen3Config", {"num_hidden_layers": 2, "head_dim": 16, "tie_word_embeddings": True,
                              "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
              {"rope.freq_base": 1e6, "attention.key_length": 16, "attention.value_length": 16}),
    "smollm3": ("SmolLM3Config", {"num_hidden_layers": 5, "tie_word_embeddings": True, "pad_token_id": None,
                                  "rope_parameters": {"rope_type": "default", "rope_theta": 2e6}},
                {"rope.freq_base": 2e6, "rope.dimension_count": WIDTH // HEADS}),
    "gemma3": ("Gemma3TextConfig", {"num_hidden_layers": 7, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8,
                                    "rope_parameters": {"full_attention": SCALING | {"rope_theta": 1e6},
                                                        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}},
               {"rope.freq_base": 1e6, "attention.key_length": 16, "attention.value_length": 16, "attention.sliding_window": 8,
                "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}),
}


def exact_frequencies(net):
    """As tests/golden/make.py has them: computed in double, rounded once."""
    rotary, config = net.model.rotary_emb, net.config
    layers = {"": config.rope_parameters} if "rope_theta" in config.rope_parameters else \
        {kind + "_": p for kind, p in config.rope_parameters.items()}
    dim = getattr(config, "head_dim", None) or WIDTH // HEADS
    for kind, p in layers.items():
        freq = p["rope_theta"] ** -(np.arange(0, dim, 2) / dim) / p.get("factor", 1.0)
        own = getattr(rotary, kind + "inv_freq")
        assert torch.allclose(own, torch.from_numpy(freq).float(), rtol=3e-6, atol=0)
        own.copy_(torch.from_numpy(freq).float())


def flat_config(config):
    """The keys that dq gives of a file, with the values of transformers' own object."""
    p = config.rope_parameters
    glob = p.get("full_attention", p)
    out = {"architectures": [type(config).__name__.replace("TextConfig", "").replace("Config", "") + "ForCausalLM"],
           "model_type": config.model_type, "head_dim": getattr(config, "head_dim", None) or WIDTH // HEADS,
           "rope_theta": glob["rope_theta"]}
    keys = [*COMMON, "num_hidden_layers", "tie_word_embeddings", "hidden_act", "hidden_activation", "query_pre_attn_scalar",
            "no_rope_layers", "no_rope_layer_interval"]
    out |= {k: getattr(config, k) for k in keys if getattr(config, k, None) is not None}
    if "sliding_attention" in p:
        out |= {"rope_local_base_freq": p["sliding_attention"]["rope_theta"], "sliding_window": config.sliding_window,
                "layer_types": config.layer_types}
    if glob["rope_type"] != "default":
        out["rope_scaling"] = {k: v for k, v in glob.items() if k != "rope_theta"}
    return out


def stored(arch, name, w):
    """What llama.cpp's converter writes of a tensor."""
    if arch == "gemma3" and name.endswith("norm.weight"):
        return w + np.float32(1)
    heads = {"q": HEADS, "k": KV_HEADS}.get(name.split(".")[-2][0]) if arch == "smollm3" and "self_attn" in name else None
    if heads:
        return w.reshape(heads, 2, w.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(w.shape)
    return w


def write(path, arch, state, keys, config):
    out = GGUFWriter(path, arch)
    names = get_tensor_name_map(getattr(MODEL_ARCH, arch.upper()), config.num_hidden_layers)
    out.add_context_length(config.max_position_embeddings)
    out.add_embedding_length(WIDTH)
    out.add_block_count(config.num_hidden_layers)
    out.add_feed_forward_length(FFN)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_layer_norm_rms_eps(config.rms_norm_eps)
    for key, value in keys.items():
        {int: out.add_uint32, float: out.add_float32, str: out.add_string}[type(value)](f"{arch}.{key}", value)
    out.add_vocab_size(VOCAB)
    out.add_tokenizer_model("none")
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    for name, w in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        w = stored(arch, name, w)
        out.add_tensor(names.get_name(name, (".weight", ".bias")), w if w.ndim == 1 else w.astype(np.float16))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def make(arch, folder, seed):
    cls, own, keys = MODELS[arch]
    config = getattr(transformers, cls)(**COMMON, **own)
    config._attn_implementation = "eager"
    net = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    rng = np.random.default_rng(seed)
    state = {}
    for name, p in net.named_parameters():
        if p.ndim == 1:
            middle = 0 if arch == "gemma3" or name.endswith("bias") else 1
            w = (middle + .3 * rng.standard_normal(p.shape)).astype(np.float32)
        else:
            w = (rng.standard_normal(p.shape) * p.shape[1] ** -.5).astype(np.float16).astype(np.float32)
        p.data.copy_(torch.from_numpy(w))
        state[name] = w
    exact_frequencies(net)
    ids = rng.integers(0, VOCAB, TOKENS).astype(np.int32)
    with torch.no_grad():
        logits = net(torch.tensor(ids[None].astype(np.int64)), use_cache=False).logits[0].numpy()
    os.makedirs(folder, exist_ok=True)
    write(os.path.join(folder, "model.gguf"), arch, state, keys, config)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(flat_config(config), f, indent=1)
        f.write("\n")
    save_file({"ids": ids, "logits": logits} | {k: w for k, w in state.items() if w.ndim == 1},
              os.path.join(folder, "golden.safetensors"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for number, name in enumerate(MODELS):
        if name in sys.argv[2:] or len(sys.argv) == 2:
            make(name, os.path.join(sys.argv[1], name), 500 + number)
