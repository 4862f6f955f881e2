#!/usr/bin/env python3
"""Writes stats_oracle.json: what dq stats must find on two of the test checkpoints.

transformers runs each sequence on its own in float32.  Queries and keys are taken behind their
projections, turned by the library's own RoPE and multiplied here; every sequence keeps the entries
with key <= query.  Hidden states are what each decoder layer returns.  The median is the value of rank
ceil(n/2), the k-th top value the k-th largest magnitude, both from a full sort.
"""
import json
import math
import pathlib

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

HERE = pathlib.Path(__file__).resolve().parent
LENGTHS = (40, 17, 1, 90)
TOPS = (1, 2, 3, 10, 100)


def collect(net, ids):
    """Per layer: logits [heads, n, n] and outputs [n, dim]."""
    seen, hooks = {}, []
    for i, layer in enumerate(net.model.layers):
        for name in ("q_proj", "k_proj"):
            hooks.append(getattr(layer.self_attn, name).register_forward_hook(
                lambda m, a, out, key=(i, name): seen.__setitem__(key, out)))
        hooks.append(layer.register_forward_hook(
            lambda m, a, out, key=(i, "out"): seen.__setitem__(key, out[0] if isinstance(out, tuple) else out)))
    with torch.no_grad():
        net(torch.tensor(ids)[None], use_cache=False)
    for h in hooks:
        h.remove()
    c, n = net.config, len(ids)
    d = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    cos, sin = net.model.rotary_emb(torch.zeros(1, n, d), torch.arange(n)[None])
    result = []
    for i in range(c.num_hidden_layers):
        q, k = (seen[i, p].view(1, n, -1, d).transpose(1, 2) for p in ("q_proj", "k_proj"))
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        s = torch.matmul(q, k.transpose(2, 3))[0] / math.sqrt(d)
        result.append((s.numpy(), seen[i, "out"].view(n, -1).numpy()))
    return result


def numbers(values):
    x = np.sort(values)
    r = {"n": len(x), "median": float(x[(len(x) + 1) // 2 - 1]), "rms": float(np.sqrt(np.mean(x.astype(np.float64) ** 2)))}
    return r | {f"top{k}": float(x[-k]) if k <= len(x) else None for k in TOPS}


def describe(name, seed):
    net = AutoModelForCausalLM.from_pretrained(HERE / "models" / name, dtype=torch.float32,
                                               attn_implementation="eager").eval()
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(0, net.config.vocab_size, n).tolist() for n in LENGTHS]
    layers = net.config.num_hidden_layers
    logits, hidden = [[] for _ in range(layers)], [[] for _ in range(layers)]
    best = {"logits": (-1.0,), "hidden": (-1.0,)}
    for s, ids in enumerate(sequences):
        lower = np.tril(np.ones((len(ids), len(ids)), bool))
        for i, (z, h) in enumerate(collect(net, ids)):
            z, h = np.where(lower, np.abs(z), -1), np.abs(h)
            logits[i].append(z[:, lower].ravel())
            hidden[i].append(h.ravel())
            for key, x in (("logits", z), ("hidden", h[None])):
                at = np.unravel_index(x.argmax(), x.shape)
                if x[at] > best[key][0]:
                    best[key] = (float(x[at]), s, i, *map(int, at))
    logits, hidden = ([np.concatenate(x) for x in y] for y in (logits, hidden))
    return {"model": name, "sequences": sequences,
            "table5": {"attention_logits": numbers(np.concatenate(logits)), "hidden_states": numbers(np.concatenate(hidden))},
            "layers": [{"attention_logits": numbers(a), "hidden_states": numbers(b)} for a, b in zip(logits, hidden)],
            "place": {"attention_logits": list(best["logits"][1:]),
                      "hidden_states": [best["hidden"][1], best["hidden"][2], -1, *best["hidden"][4:]]}}


result = [describe("llama-f32", 11), describe("diffllama-f32", 12)]
(HERE / "stats_oracle.json").write_text(json.dumps(result, separators=(",", ":")).replace("},{\"model\"", "},\n{\"model\"") + "\n")
