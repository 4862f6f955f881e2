#!/usr/bin/env python3
"""Does lambda drift when tokens are evicted?  A study, not a part of the product.

    python studies/kv/lambda_drift.py MODEL --text FILE [--ctx 1024] [--windows 20] [--keep 0.25] [-o OUT.json]

MODEL is a DiffLlama folder (transformers).  Each window is cut in half.  For every layer and KV head
group the first half is reduced to the kept share by the attention it received (H2O: both maps, all rows;
4 sinks and 64 recent tokens always stay), and the queries of the second half look at what is left.
Evicting shrinks the two denominators unequally: with m1, m2 the evicted softmax masses of a query,
renormalized maps are those of the full cache with

    lambda_eff = lambda (1 - m1) / (1 - m2)

up to a factor that the head norm removes.  Reported per layer and output head: lambda, mean and 1st and
99th percentile of lambda_eff / lambda, and the relative error of the normed output against the full
cache for three ways to read the kept tokens:

    renormalized      both maps sum to one again (what an eviction does by itself)
    exact mass        the evicted mass stays in the denominators, exactly (an oracle: needs the full cache).
                      After the head norm this is also "renormalized with each query's own lambda
                      correction (1 - m2) / (1 - m1)"
    lambda mean       renormalized, with lambda times the head's mean of (1 - m2) / (1 - m1) over the
                      windows' own prefix queries (known at eviction)

Errors are means over queries; their standard errors are over windows; differences are paired.
Attention is recomputed layer by layer from the full model's hidden states, so errors do not compound.
Needs torch, transformers, numpy.
"""
import argparse
import json
import math
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

WAYS = ("renormalized", "exact mass", "lambda mean")


def windows_of(model, text, ctx, count):
    tok = PreTrainedTokenizerFast(tokenizer_file=f"{model}/tokenizer.json")
    ids = tok(text, add_special_tokens=False)["input_ids"]
    return [ids[i * ctx:(i + 1) * ctx] for i in range(min(count, len(ids) // ctx))]


def projections(net, ids):
    """Per layer (q [h, n, d], k [kv, n, d], v [kv, n, d]) after RoPE, in float64."""
    seen, hooks = {}, []
    for i, layer in enumerate(net.model.layers):
        for name in ("q_proj", "k_proj", "v_proj"):
            hooks.append(getattr(layer.self_attn, name).register_forward_hook(
                lambda m, a, out, key=(i, name): seen.__setitem__(key, out)))
    with torch.no_grad():
        net(torch.tensor(ids)[None], use_cache=False)
    for h in hooks:
        h.remove()
    c, n = net.config, len(ids)
    d = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    cos, sin = net.model.rotary_emb(torch.zeros(1, n, d), torch.arange(n)[None])
    out = []
    for i in range(c.num_hidden_layers):
        q, k, v = (seen[i, p].view(1, n, -1, d).transpose(1, 2) for p in ("q_proj", "k_proj", "v_proj"))
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        out.append(tuple(x[0].double().numpy() for x in (q, k, v)))
    return out


def lambda_of(attention, depth):
    q1, k1, q2, k2 = (getattr(attention, f"lambda_{n}").detach().double() for n in ("q1", "k1", "q2", "k2"))
    return float(torch.exp(q1 @ k1) - torch.exp(q2 @ k2)) + 0.8 - 0.6 * math.exp(-0.3 * depth)


def softmax(q, k, scale):
    z = q @ k.T * scale
    n = len(q)
    z[np.triu_indices(n, 1)] = -np.inf
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def normed(y):
    return y / np.sqrt((y * y).mean(-1, keepdims=True) + 1e-5)


def kept_of(a1, a2, half, budget, sink, recent):
    """Indices kept of the first half, by the attention its own rows paid."""
    score = (a1 + a2)[:half, :half].sum(0)
    safe = np.zeros(half, bool)
    safe[:sink] = safe[max(half - recent, 0):] = True
    score[safe] = np.inf
    return np.sort(np.argsort(-score, kind="stable")[:max(budget, int(safe.sum()))])


def study_head(a1, a2, v, lam, half, budget, args):
    kept = kept_of(a1, a2, half, budget, args.sink, args.recent)
    n = len(a1)
    alive = np.ones(n, bool)
    alive[:half] = False
    alive[kept] = True
    m1, m2 = a1[:, ~alive].sum(1), a2[:, ~alive].sum(1)
    rows = slice(half, n)
    # What the prefix's own last rows would have seen: all that is known when tokens are evicted.
    last = slice(max(half - args.recent, 0), half)
    guess = float(np.mean((1 - m2[last]) / np.maximum(1 - m1[last], 1e-12)))
    f1, f2 = 1 / np.maximum(1 - m1[rows], 1e-12)[:, None], 1 / np.maximum(1 - m2[rows], 1e-12)[:, None]
    b1, b2, w = a1[rows][:, alive], a2[rows][:, alive], v[alive]
    full = normed(a1[rows] @ v - lam * (a2[rows] @ v))
    outs = (b1 @ w * f1 - lam * (b2 @ w) * f2, b1 @ w - lam * (b2 @ w),
            b1 @ w * f1 - lam * guess * (b2 @ w) * f2)
    size = np.linalg.norm(full, axis=1)
    errors = [float((np.linalg.norm(normed(o) - full, axis=1) / size).mean()) for o in outs]
    return (1 - m1[rows]) / np.maximum(1 - m2[rows], 1e-12), errors


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("model")
    p.add_argument("--text", required=True)
    p.add_argument("--ctx", type=int, default=1024)
    p.add_argument("--windows", type=int, default=20)
    p.add_argument("--keep", type=float, default=0.25)
    p.add_argument("--sink", type=int, default=4)
    p.add_argument("--recent", type=int, default=64)
    p.add_argument("-o", "--output")
    args = p.parse_args()
    net = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="eager").eval()
    with open(args.text, encoding="utf-8") as f:
        wins = windows_of(args.model, f.read(), args.ctx, args.windows)
    if not wins:
        sys.exit(f"{args.text}: fewer than {args.ctx} tokens")
    half, c = args.ctx // 2, net.config
    budget, n_out = math.ceil(args.keep * half), c.num_attention_heads // 2
    rep = c.num_attention_heads // c.num_key_value_heads
    ratio, error = {}, {}
    for ids in wins:
        for i, (q, k, v) in enumerate(projections(net, ids)):
            lam, scale = lambda_of(net.model.layers[i].self_attn, i), 1 / math.sqrt(q.shape[-1])
            for o in range(n_out):
                h1, h2 = o, o + n_out
                a1, a2 = softmax(q[h1], k[h1 // rep], scale), softmax(q[h2], k[h2 // rep], scale)
                r, e = study_head(a1, a2, np.concatenate((v[h1 // rep], v[h2 // rep]), 1), lam, half, budget, args)
                ratio.setdefault((i, o), []).append(r)
                error.setdefault((i, o), []).append(e)
    rows = []
    print(f"{args.model}: {len(wins)} windows of {args.ctx}, prefix {half}, kept {budget} of it\n")
    print("layer head  lambda  lambda_eff/lambda: mean    p1     p99   relative error: " + "  ".join(f"{w:>13}" for w in WAYS))
    for (i, o), e in sorted(error.items()):
        e, r = np.array(e), np.concatenate(ratio[i, o])
        lam = lambda_of(net.model.layers[i].self_attn, i)
        mean, se = e.mean(0), e.std(0, ddof=1) / math.sqrt(len(e)) if len(e) > 1 else e[0] * math.nan
        diff = e - e[:, :1]
        print(f"{i:5d} {o:4d} {lam:7.3f} {r.mean():24.3f} {np.quantile(r, .01):6.3f} {np.quantile(r, .99):7.3f}" + " " * 18
              + "  ".join(f"{m:6.3f}+-{s:5.3f}" for m, s in zip(mean, se)))
        rows.append({"layer": i, "head": o, "lambda": lam, "lambda_eff_ratio": {"mean": r.mean(), "p01": np.quantile(r, .01),
                     "p99": np.quantile(r, .99)},
                     "error": {w: {"value": m, "stderr": s, "minus_renormalized": d, "minus_stderr": t}
                               for w, m, s, d, t in zip(WAYS, mean, se, diff.mean(0), diff.std(0, ddof=1) / math.sqrt(len(e)))}})
    all_e = np.array([error[key] for key in sorted(error)]).mean(0)  # [windows, ways]
    print("\nmean over heads, against renormalized (paired over windows):")
    for w, d in zip(WAYS[1:], (all_e - all_e[:, :1]).T[1:]):
        print(f"  {w:14s} {d.mean():+.4f} +- {d.std(ddof=1) / math.sqrt(len(d)):.4f}")
    if args.output:
        with open(args.output, "w", encoding="utf-8") as f:
            json.dump({"model": args.model.rstrip("/").split("/")[-1], "ctx": args.ctx, "windows": len(wins), "keep": args.keep,
                       "sink": args.sink, "recent": args.recent, "heads": rows}, f, indent=1)
            f.write("\n")


main()
