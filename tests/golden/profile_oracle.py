#!/usr/bin/env python3
"""Writes profile_oracle.json: what a profile of dq stats must find on two of the test checkpoints.

transformers runs each sequence on its own in float32, and hooks keep what goes into and comes out of every projection. Everything
else is NumPy in float64 over these dumps: classes of tokens from the softmax maps, then magnitudes by kind, layer, class, head and
channel. A table of channels is kept as its largest entry and two sums weighted by channel, which an exchange of channels changes.
"""
import json
import math
import pathlib
import sys

sys.path.pop(0)
import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
LENGTHS = (200, 150, 40)
SHARE, QUERIES = 0.02, 128  # calib/outliers.h
CLASSES = ("ordinary", "sink", "first")
PROJECTIONS = {"qkv_input": "self_attn.q_proj", "o_input": "self_attn.o_proj", "gate_up_input": "mlp.gate_proj",
               "down_input": "mlp.down_proj"}


def dump(net, ids):
    """Per layer: logits [heads, n, n], and a matrix [n, cols] of each kind of activations."""
    seen, hooks = {}, []
    for i, layer in enumerate(net.model.layers):
        for kind, name in PROJECTIONS.items():
            hooks.append(layer.get_submodule(name).register_forward_pre_hook(
                lambda m, a, key=(i, kind): seen.__setitem__(key, a[0].detach().clone())))
        for name in ("q_proj", "k_proj", "v_proj"):
            hooks.append(getattr(layer.self_attn, name).register_forward_hook(
                lambda m, a, out, key=(i, name): seen.__setitem__(key, out.detach().clone())))
        hooks.append(layer.register_forward_hook(
            lambda m, a, out, key=(i, "hidden_states"): seen.__setitem__(
                key, (out[0] if isinstance(out, tuple) else out).detach().clone())))
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
        s = torch.matmul(q, k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(2, 3))[0] / math.sqrt(d)
        kinds = {kind: seen[i, kind].reshape(n, -1).numpy() for kind in (*PROJECTIONS, "hidden_states")}
        kinds["queries"], kinds["keys"] = (x[0].transpose(0, 1).reshape(n, -1).numpy() for x in (q, k))
        kinds["values"] = seen[i, "v_proj"].reshape(n, -1).numpy()
        result.append((s.numpy(), kinds))
    return result


LOCAL = 64  # src/engine/observe.h


def lambda_of(attention, depth):
    if not hasattr(attention, "lambda_q1"):
        return None
    q1, k1, q2, k2 = (getattr(attention, f"lambda_{n}").detach().double() for n in ("q1", "k1", "q2", "k2"))
    return float(torch.exp(q1 @ k1) - torch.exp(q2 @ k2) + 0.8 - 0.6 * math.exp(-0.3 * depth))


def softmax(z):
    n = z.shape[1]
    x = np.where(np.tril(np.ones((n, n), bool)), z.astype(np.float64), -np.inf)
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def look(heads, z, lam, ids):
    """Adds where the maps of one sequence go to the sums of every output head, in the order of dq_head_sum."""
    a = softmax(z)
    h, n = a.shape[:2]
    for out, head in enumerate(heads):
        one = a[out]
        two = a[out + h // 2] if lam is not None else np.zeros_like(one)
        d = np.abs(one - (lam or 0) * two)
        for t in range(n):
            local = slice(max(0, t - LOCAL + 1), t + 1)
            before = [s for s in range(t - LOCAL) if ids[s] == ids[t]]
            head["rows"] += 1
            head["sum"][0] += 1 / (one[t] ** 2).sum()
            head["sum"][1] += 1 / (two[t] ** 2).sum() if lam is not None else 0
            for k, m in enumerate((one, two, d)):
                head["sum"][2 + k] += m[t, 0]
                head["sum"][5 + k] += m[t, local].sum()
                head["sum"][8 + k] += m[t, before[-1] + 1] if before else 0
            head["copies"] += bool(before)
            head["sum"][11] += np.minimum(one[t], two[t]).sum()
            head["sum"][12] += np.minimum(one[t], lam * two[t]).sum() if lam and lam > 0 else 0


def received(z):
    """Mean attention that the queries which see a key give it, over them and the heads."""
    n = z.shape[1]
    return softmax(z).sum(1).mean(0) / (n - np.arange(n))


def classes(layers):
    """[layers][n]: a sink stays one."""
    result, now = [], np.zeros(layers[0][0].shape[1], int)
    now[0] = 2
    for z, _ in layers:
        n = len(now)
        sink = (received(z) >= SHARE) & (n - np.arange(n) >= QUERIES) & (now == 0)
        now = np.where(sink, 1, now)
        result.append(now)
    return result


def moments(x):
    x = np.abs(x.astype(np.float64))
    if not len(x):
        return {"n": 0}
    s2 = (x ** 2).sum()
    return {"n": len(x), "max": float(x.max()), "rms": math.sqrt(s2 / len(x)), "kurtosis0": float(len(x) * (x ** 4).sum() / s2 ** 2)}


def numbers(x):
    """Moments, and the values of rank ceil(p n)."""
    r, y = moments(x), np.sort(np.abs(x))
    return r | {k: float(y[max(math.ceil(p * len(y)), 1) - 1]) for k, p in (("median", .5), ("p99", .99), ("p99_9", .999))}


def channels(x):
    """Of rows of one class."""
    x = np.abs(x.astype(np.float64))
    most, rms = x.max(0), np.sqrt((x ** 2).mean(0))
    weight = np.arange(1, x.shape[1] + 1)
    return {"n": len(x), "channel": int(most.argmax()), "max": float(most.max()), "weighted_max": float(weight @ most),
            "weighted_rms": float(weight @ rms)}


def weights(net):
    """Of every matrix but the head, in the order of the model."""
    names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
             "mlp.down_proj")
    all_of = [net.model.embed_tokens.weight]
    all_of += [layer.get_submodule(n).weight for layer in net.model.layers for n in names]
    if not net.config.tie_word_embeddings:
        all_of.append(net.lm_head.weight)
    result = []
    for w in all_of:
        x = np.abs(w.detach().numpy())
        rms = np.sqrt((x.astype(np.float64) ** 2).mean(0))
        at = np.unravel_index(x.argmax(), x.shape)
        result.append(numbers(x.ravel()) | {"row": int(at[0]), "column": int(at[1]), "largest_column": int(rms.argmax()),
                                            "column_over_median": float(rms.max() / np.sort(rms)[(len(rms) - 1) // 2])})
    return result


def describe(name, seed):
    net = AutoModelForCausalLM.from_pretrained(HERE / "models" / name, dtype=torch.float32,
                                               attn_implementation="eager").eval()
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(0, net.config.vocab_size, n).tolist() for n in LENGTHS]
    dumps = [dump(net, ids) for ids in sequences]
    kinds_of = [classes(d) for d in dumps]
    result = []
    for i in range(net.config.num_hidden_layers):
        layer = {"tokens": {c: sum(int((k[i] == j).sum()) for k in kinds_of) for j, c in enumerate(CLASSES)}}
        logits = []  # per head and class
        for h in range(dumps[0][i][0].shape[0]):
            of = []
            for j in range(3):
                of.append(np.concatenate([d[i][0][h][np.tril(np.ones((len(k[i]),) * 2, bool)) & (k[i] == j)[None, :]]
                                          for d, k in zip(dumps, kinds_of)]))
            logits.append(of)
        lam = lambda_of(net.model.layers[i].self_attn, i)
        layer["look"] = [{"rows": 0, "copies": 0, "sum": [0.0] * 13} for _ in range(len(logits) // (1 if lam is None else 2))]
        for d, ids in zip(dumps, sequences):
            look(layer["look"], d[i][0], lam, ids)
        layer["heads"] = [[moments(x) for x in of] for of in logits]
        ordinary = np.concatenate([of[0] for of in logits])
        layer["attention_logits"] = {"all": numbers(np.concatenate([x for of in logits for x in of])), "ordinary": numbers(ordinary)}
        for kind in dumps[0][i][1]:
            # what a layer puts out is classed by the attention that reads it
            at = min(i + 1, len(dumps[0]) - 1) if kind == "hidden_states" else i
            x = np.concatenate([d[i][1][kind] for d in dumps])
            c = np.concatenate([k[at] for k in kinds_of])
            layer[kind] = {"all": numbers(x.ravel()), "ordinary": numbers(x[c == 0].ravel()),
                           "channels": [channels(x[c == j]) if (c == j).any() else {"n": 0} for j in range(3)]}
        result.append(layer)
    return {"model": name, "sequences": sequences, "layers": result, "weights": weights(net)}


result = [describe("llama-f32", 21), describe("diffllama-f32", 22)]
(HERE / "profile_oracle.json").write_text(json.dumps(result, separators=(",", ":")).replace("},{\"model\"", "},\n{\"model\"") + "\n")
