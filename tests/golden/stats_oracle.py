#!/usr/bin/env python3
"""Writes stats_oracle.json: what dq stats must find on two of the test checkpoints.

transformers runs each sequence on its own in float32.  Queries and keys are taken after their
projections, turned by the library's own RoPE and multiplied here; every sequence keeps the entries
with key <= query.  The attention maps are softmaxes of those logits in float64, subtracted with lambda
as the paper's formula has it.  Hidden states are what each decoder layer returns.  The median is the value of rank
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


THRESHOLDS = (1e-4, 1e-3, 1e-2, 1e-1)


def lambda_of(attention, depth):
    if not hasattr(attention, "lambda_q1"):
        return None
    q1, k1, q2, k2 = (getattr(attention, f"lambda_{n}").detach().double() for n in ("q1", "k1", "q2", "k2"))
    return float(torch.exp(q1 @ k1) - torch.exp(q2 @ k2) + 0.8 - 0.6 * math.exp(-0.3 * depth))


def look(m, z, lam):
    """Adds one sequence's maps to the sums of every output head; z [heads, n, n]."""
    h, n = z.shape[:2]
    lower = np.tril(np.ones((n, n), bool))
    x = np.where(lower, z.astype(np.float64), -np.inf)
    e = np.exp(x - x.max(-1, keepdims=True))
    a = e / e.sum(-1, keepdims=True)
    outs = [(o, None) for o in range(h)] if lam is None else [(o, o + h // 2) for o in range(h // 2)]
    for head, (p, q) in zip(m, outs):
        maps = [a[p]] if q is None else [a[p], a[q]]
        d = maps[0] - (lam * maps[1] if q is not None else 0)
        head["rows"] += n
        head["keys"] += int(lower.sum())
        for k, y in enumerate(maps):
            head["entropy"][k] += float(-(y[lower] * np.log(np.where(y[lower] > 0, y[lower], 1))).sum())
            head["sink_mass"][k] += float(y[:, :4].sum())
        head["variation"] += float(np.abs(d).sum())
        head["negative"] += float(np.maximum(-d, 0).sum())
        pages = [np.abs(d[t, s:min(s + 64, t + 1)]).sum() for t in range(n) for s in range(0, t + 1, 64)]
        head["pages"] += len(pages)
        for i, eps in enumerate(THRESHOLDS):
            head["near_zero"][i] += int((np.abs(d[lower]) < eps).sum())
            head["skippable"][i] += int((np.array(pages) < eps).sum())


def empty():
    return {"rows": 0, "keys": 0, "pages": 0, "entropy": [0.0, 0.0], "sink_mass": [0.0, 0.0], "variation": 0.0,
            "negative": 0.0, "near_zero": [0] * 4, "skippable": [0] * 4}


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
    lams = [lambda_of(layer.self_attn, i) for i, layer in enumerate(net.model.layers)]
    n_out = net.config.num_attention_heads // (1 if lams[0] is None else 2)
    maps = [[empty() for _ in range(n_out)] for _ in range(layers)]
    best = {"logits": (-1.0,), "hidden": (-1.0,)}
    for s, ids in enumerate(sequences):
        lower = np.tril(np.ones((len(ids), len(ids)), bool))
        for i, (z, h) in enumerate(collect(net, ids)):
            look(maps[i], z, lams[i])
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
            "layers": [{"attention_logits": numbers(a), "hidden_states": numbers(b), "attention": m}
                       for a, b, m in zip(logits, hidden, maps)],
            "place": {"attention_logits": list(best["logits"][1:]),
                      "hidden_states": [best["hidden"][1], best["hidden"][2], -1, *best["hidden"][4:]]}}


result = [describe("llama-f32", 11), describe("diffllama-f32", 12)]
(HERE / "stats_oracle.json").write_text(json.dumps(result, separators=(",", ":")).replace("},{\"model\"", "},\n{\"model\"") + "\n")
