#!/usr/bin/env python3
"""Writes rounding_oracle.json: what dq stats --forecast and --sensitivity must find on the two models of calib/pair and
a random one with windows.

transformers runs each window on its own in float32, with an attention function of this file in the place of its own: scaled logits are
recorded, and those of some heads of one layer are rounded (kv/kv.h) before the softmax. Everything else is NumPy in float64 over
what is recorded. Two sums of a logit in another order may fall on two sides of a tie between codes, which no tolerance allows for; so
windows are taken in which no logit that a unit rounds lies nearer to a tie than NEAR of a code.
"""
import json
import math
import pathlib
import sys

sys.path.pop(0)
import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedTokenizerFast  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
PAIR = HERE.parent.parent / "calib" / "pair"
LENGTHS, CLUSTER = (150, 100, 90, 2, 37), (0, 1, 1, 1, 2)
WIDTHS, TILE = (8, 6, 4, 3), 64
GRANULARITIES = ("per-tensor", "per-head", "per-row", "per-tile")
BITS, ROUNDED, NEAR = 4, ("per-tensor", "per-row"), 1e-5


def absmax(s, by):
    """The largest magnitude of the group of every logit; s [heads, n, n], 0 where a row does not see."""
    x, n = s.abs(), s.shape[1]
    if by == "per-tensor":
        return x.max().expand_as(x)
    if by == "per-head":
        return x.amax((1, 2), keepdim=True).expand_as(x)
    if by == "per-row":
        return x.amax(2, keepdim=True).expand_as(x)
    out = torch.empty_like(x)
    for r in range(0, n, TILE):
        for c in range(0, n, TILE):
            tile = slice(None), slice(r, r + TILE), slice(c, c + TILE)
            out[tile] = x[tile].amax((1, 2), keepdim=True)
    return out


def in_codes(s, a, bits):
    """Before they are rounded; the step of a code."""
    most = torch.tensor(float(2 ** (bits - 1) - 1))
    return torch.where(a > 0, s * (most / a), 0.0), a / most, float(most)


def rounded(s, a, bits):
    x, step, most = in_codes(s, a, bits)
    return x.round().clamp(-most, most) * step


class Run:
    """What the attention function is told and tells."""
    layer, heads, by = None, None, None
    logits, sees = {}, {}


def attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    n = query.shape[2]
    groups = query.shape[1] // key.shape[1]
    sees = torch.ones(n, n, dtype=torch.bool).tril().triu(1 - (kwargs.get("sliding_window") or n))
    s = (torch.matmul(query, key.repeat_interleave(groups, 1).transpose(2, 3)) * scaling)[0].where(sees, 0.0)
    Run.logits[module.layer_idx], Run.sees[module.layer_idx] = s, sees
    if module.layer_idx == Run.layer:
        to = rounded(s, absmax(s, Run.by), BITS)
        s = torch.stack([to[h] if h in Run.heads else s[h] for h in range(len(s))])
    p = torch.softmax(s.masked_fill(~sees, -torch.inf), -1)
    return torch.matmul(p[None], value.repeat_interleave(groups, 1)).transpose(1, 2).contiguous(), None


AttentionInterface.register("rounded", attention)


def run(net, ids, layer=None, heads=(), by=None):
    """ln p [n, vocab] in float64, what every layer leaves, the logits of every layer."""
    left, hooks = {}, []
    for i, x in enumerate(net.model.layers):
        hooks.append(x.register_forward_hook(lambda m, a, out, i=i: left.__setitem__(
            i, (out[0] if isinstance(out, tuple) else out).reshape(len(ids), -1).double().numpy())))
    Run.layer, Run.heads, Run.by, Run.logits = layer, heads, by, {}
    with torch.no_grad():
        z = net(torch.tensor(ids)[None], use_cache=False).logits[0].double()
    for h in hooks:
        h.remove()
    return torch.log_softmax(z, -1).numpy(), left, Run.logits


def scored(n):
    """Rows whose next token is scored: of the second half."""
    return range((1 if n < 3 else n // 2 + 1) - 1, n - 1)


def nearest(logits):
    """The least distance of a logit to a tie, in codes, over what the units round."""
    least = 1.0
    for i, s in logits.items():
        for by in ROUNDED:
            x = in_codes(s, absmax(s, by), BITS)[0][:, Run.sees[i]].double()
            least = min(least, float((x - x.floor() - 0.5).abs().min()))
    return least


def windows(net, ids, lengths):
    """Of the lengths, one after the other in the text."""
    found, at = [], 0
    for n in lengths:
        while nearest(run(net, ids[at:at + n])[2]) < NEAR:
            at += 1
        found.append(ids[at:at + n])
        at += n
    return found


# ---- Units


def lambda_of(attention, depth):
    if not hasattr(attention, "lambda_q1"):
        return None
    q1, k1, q2, k2 = (getattr(attention, f"lambda_{n}").detach().double() for n in ("q1", "k1", "q2", "k2"))
    return float(torch.exp(q1 @ k1) - torch.exp(q2 @ k2) + 0.8 - 0.6 * math.exp(-0.3 * depth))


def units(net):
    """(kind, layer, output head, map) and its query heads: transformers' DiffLlama pairs head o with head o + n / 2."""
    n, two = net.config.num_attention_heads, lambda_of(net.model.layers[0].self_attn, 0) is not None
    for i in range(net.config.num_hidden_layers):
        yield ("layers", i, -1, -1), range(n)
        for o in range(n // 2 if two else n):
            of = (o, o + n // 2) if two else (o,)
            yield ("heads", i, o, -1), of
            for k in range(2 if two else 0):
                yield ("maps", i, o, k), of[k:k + 1]


def measure(net, texts, by):
    plain = [run(net, ids) for ids in texts]
    result = []
    for (kind, layer, head, which), heads in units(net):
        kld, local, rows = [0.0] * (max(CLUSTER) + 1), 0.0, 0
        for ids, (p, left, _), c in zip(texts, plain, CLUSTER):
            q, moved, _ = run(net, ids, layer, heads, by)
            for r in scored(len(ids)):
                kld[c] += float((np.exp(p[r]) * (p[r] - q[r])).sum())
                local += float(((moved[layer][r] - left[layer][r]) ** 2).sum() / (left[layer][r] ** 2).sum())
                rows += 1
        result.append({"kind": kind, "layer": layer, "head": head, "map": which, "kld": kld, "local": local / rows})
    return result


# ---- Forecast


def softmax(s, seen):
    x = np.where(seen, s.double().numpy(), -np.inf)
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Sums:
    """Of logits and of maps of one head, or of all of a cluster."""

    def __init__(self):
        grid = (len(WIDTHS), len(GRANULARITIES))
        self.n, self.s2, self.d2 = 0, 0.0, 0.0
        self.absmax2 = np.zeros(len(GRANULARITIES))
        self.error2, self.first2, self.second2, self.both2 = (np.zeros(grid) for _ in range(4))

    def predicted(self):
        steps = np.array([self.absmax2 / (12 * (2 ** (b - 1) - 1) ** 2) for b in WIDTHS])
        return np.sqrt(np.minimum(steps, self.s2) / self.n)

    def logits(self):
        return {"n": self.n, "rms": math.sqrt(self.s2 / self.n), "predicted": self.predicted().tolist(),
                "measured": np.sqrt(self.error2 / self.n).tolist()}

    def maps(self, two):
        x = {"error": np.sqrt(self.both2 / self.d2).tolist()}
        return x | {"cancellation": (np.sqrt(self.both2) / (np.sqrt(self.first2) + np.sqrt(self.second2))).tolist()} if two else x


def forecast(net, texts):
    n, n_layers = net.config.num_attention_heads, net.config.num_hidden_layers
    lam = [lambda_of(net.model.layers[i].self_attn, i) for i in range(n_layers)]
    n_out = n if lam[0] is None else n // 2
    heads, outs = [[Sums() for _ in range(n_layers * k)] for k in (n, n_out)]
    clusters = [Sums() for _ in range(max(CLUSTER) + 1)]
    for ids, c in zip(texts, CLUSTER):
        logits = run(net, ids)[2]
        for i, s in logits.items():
            seen = Run.sees[i].numpy()
            plain = softmax(s, seen)
            for g, by in enumerate(GRANULARITIES):
                a = absmax(s, by)
                for w, bits in enumerate(WIDTHS):
                    to = rounded(s, a, bits)
                    off = softmax(to, seen) - plain
                    for h in range(n):
                        for x in (heads[i * n + h], clusters[c]):
                            x.error2[w, g] += ((to[h] - s[h]).double().numpy()[seen] ** 2).sum()
                    for o in range(n_out):
                        one = off[o]
                        two = 0 * one if lam[i] is None else lam[i] * off[o + n_out]
                        for x in (outs[i * n_out + o], clusters[c]):
                            x.first2[w, g] += (one ** 2).sum()
                            x.second2[w, g] += (two ** 2).sum()
                            x.both2[w, g] += ((one - two) ** 2).sum()
                for h in range(n):
                    for x in (heads[i * n + h], clusters[c]):
                        x.absmax2[g] += (a[h].double().numpy()[seen] ** 2).sum()
            for h in range(n):
                for x in (heads[i * n + h], clusters[c]):
                    x.n += int(seen.sum())
                    x.s2 += float((s[h].double().numpy()[seen] ** 2).sum())
            for o in range(n_out):
                d = plain[o] - (0 if lam[i] is None else lam[i] * plain[o + n_out])
                for x in (outs[i * n_out + o], clusters[c]):
                    x.d2 += float((d ** 2).sum())
    two = lam[0] is not None
    return {"heads": [x.logits() for x in heads], "outputs": [x.maps(two) for x in outs],
            "clusters": [x.logits() | x.maps(two) for x in clusters]}


def describe(name, lengths=LENGTHS):
    net = AutoModelForCausalLM.from_pretrained(PAIR / name, dtype=torch.float32, attn_implementation="rounded").eval()
    if (PAIR / name / "tokenizer.json").exists():
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(PAIR / name / "tokenizer.json"))
        ids = tokenizer.encode((PAIR / "text.txt").read_text()[:20000], add_special_tokens=False)
    else:
        ids = np.random.default_rng(1).integers(0, net.config.vocab_size, 20000).tolist()
    texts = windows(net, ids, lengths)
    return {"model": name, "sequences": texts, "cluster": CLUSTER, "bits": BITS, "forecast": forecast(net, texts),
            "units": {by: measure(net, texts, by) for by in ROUNDED}}


result = [describe("llama"), describe("diffllama"), describe("../../tests/golden/models/gemma3-f32", (90, 70, 50, 2, 37))]
(HERE / "rounding_oracle.json").write_text(json.dumps(result, separators=(",", ":")).replace("},{\"model\"", "},\n{\"model\"") + "\n")
