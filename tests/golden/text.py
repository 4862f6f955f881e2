#!/usr/bin/env python3
"""Writes text/golden.json: what running text must give, worked out apart from dq's sources.

    python tests/golden/text.py     (needs torch, transformers 5.23, tokenizers, lm_eval 0.4.13)

Models: calib/pair, in f32; log-probabilities in f64 of their f32 logits. Text: calib/pair/text.txt, and
text/docs.jsonl, documents of several lengths cut from it. Windows:

    chunk      the loop of llama.cpp's perplexity tool
    stride     the loop of the Hugging Face guide, every id weighted the same
    block      blocks that do not overlap, all but the first id scored
    rolling    lm_eval.utils.get_rolling_token_windows and make_disjoint_window
    positions  the first ids of each document, and the definition of the cumulative NLL

Each case: the arguments of `dq eval` (@ is the root of a checkout), the row that is looked at, and the
numbers that it must have, by their path in the row; "exact" ones are counts.
"""
import json
import math
import pathlib
import re

import numpy as np
import torch
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
PAIR = HERE.parent.parent / "calib" / "pair"
OUT = HERE / "text"
BOS = 0
POINTS = {"p001": .001, "p01": .01, "p05": .05, "p10": .1, "p50": .5, "p90": .9, "p95": .95, "p99": .99,
          "p999": .999, "max": 1}
EDGES = [0, .25, .5, .75, .9, 1]

torch.set_grad_enabled(False)
models = {n: AutoModelForCausalLM.from_pretrained(PAIR / n, dtype=torch.float32, attn_implementation="eager").eval()
          for n in ("llama", "diffllama")}
tokenizer = Tokenizer.from_file(str(PAIR / "llama" / "tokenizer.json"))
BOOK = (PAIR / "text.txt").read_text()


def make_documents():
    words = BOOK.split(" ")
    docs, at = [], 0
    for n in (500, 330, 410, 60, 250):
        docs.append(" ".join(words[at:at + n]))
        at += n + 700
    docs[1] = " \n" + docs[1].replace(" . ", " .\n\n") + "\n"
    docs[4] = docs[4].replace(" the ", "\u00a0the\u2003 ")
    docs += ["", "a"]
    (OUT / "docs.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in docs))
    return docs


DOCS = make_documents()


def encode(text):
    return tokenizer.encode(text).ids if text else []


def logps(model, fed):
    """ln p [len(fed), vocab] after each fed id."""
    return torch.log_softmax(models[model](torch.tensor([fed])).logits[0].double(), -1).numpy()


# A window: (fed ids, [(row, target, position of the target in the shown ids)])
def chunk(ids, ctx, _):
    out = []
    for c in range(len(ids) // ctx):
        w = [BOS] + ids[c * ctx + 1:(c + 1) * ctx]
        out.append((w, [(t - 1, w[t]) for t in range(ctx // 2 + 1, ctx)]))
    return out


def stride(ids, ctx, step):
    out, prev_end = [], 0
    for begin in range(0, len(ids), step):
        end = min(begin + ctx, len(ids))
        fed, target_len = ids[begin:end], end - prev_end
        rows = range(max(len(fed) - target_len, 1), len(fed))
        if len(rows):
            out.append((fed, [(t - 1, fed[t]) for t in rows]))
        prev_end = end
        if end == len(ids):
            break
    return out


def block(ids, ctx, _):
    return [(ids[i:i + ctx], [(t - 1, ids[i + t]) for t in range(1, ctx)])
            for i in range(0, len(ids) - ctx + 1, ctx)]


def rolling(ids, ctx, _):
    out = []
    for pair in get_rolling_token_windows(ids, BOS, ctx, 1):
        context, targets = make_disjoint_window(pair)
        fed = (context + targets)[:-1]
        first = len(fed) - len(targets)
        out.append((fed, [(first + i, t) for i, t in enumerate(targets)]))
    return out


def positions(ids, ctx, _):
    return [(ids[:ctx], [(t, ids[t + 1]) for t in range(ctx)])] if len(ids) > ctx else []


def score(docs, scheme, ctx, step, model, ref):
    """Per scored id: what one row and its reference have, document and window, and the ids shown until then."""
    got = []
    for d, text in enumerate(docs):
        for w, (fed, rows) in enumerate(scheme(encode(text), ctx, step)):
            q, p = logps(model, fed), logps(ref, fed)
            for r, target in rows:
                got.append({"doc": d, "window": (d, w), "nll": -q[r, target], "ref": -p[r, target],
                            "kld": float(np.sum(np.exp(p[r]) * (p[r] - q[r]))),
                            "same": int(q[r].argmax() == p[r].argmax()), "sure": float(np.exp(p[r].max())),
                            "dp": float(np.exp(q[r, target]) - np.exp(p[r, target])),
                            "shown": (fed + [rows[-1][1]])[:r + 2]})
    return got


def column(got, name):
    return np.array([g[name] for g in got])


def mean(x, got):
    """Mean, and the standard error of a ratio of cluster totals to cluster sizes."""
    x, several = np.asarray(x, float), len({g["doc"] for g in got}) > 1
    clusters = [g["doc"] if several else g["window"] for g in got]
    names = sorted(set(clusters))
    if len(names) < 2:
        return x.mean(), x.std(ddof=1) / math.sqrt(len(x)) if len(x) > 1 else None
    member = np.array([names.index(c) for c in clusters])
    total, size = np.bincount(member, x), np.bincount(member)
    m, n = total.sum() / size.sum(), len(names)
    return m, math.sqrt(n / (n - 1) * ((total - m * size) ** 2).sum()) / size.sum()


def put(want, path, value):
    want[path + ".value"] = value[0]
    if value[1] is not None:
        want[path + ".stderr"] = value[1]


def text_numbers(got, want, exact):
    exact["n"] = len(got)
    put(want, "metrics.nll_nats", mean(column(got, "nll"), got))
    put(want, "metrics.ln_ppl_ratio", mean(column(got, "nll") - column(got, "ref"), got))
    put(want, "metrics.same_top1", mean(column(got, "same"), got))
    put(want, "metrics.kld_nats", mean(column(got, "kld"), got))
    for name, f in POINTS.items():
        want["metrics.kld_nats." + name] = float(np.quantile(column(got, "kld"), f))
    put(want, "metrics.delta_p", mean(column(got, "dp"), got))
    want["metrics.delta_p.rms"] = float(np.sqrt((column(got, "dp") ** 2).mean()))
    for i, (a, b) in enumerate(zip(EDGES, EDGES[1:])):
        part = [g for g in got if a <= g["sure"] and (g["sure"] < b or b == 1)]
        exact[f"kld_by_confidence.{i}.n"] = len(part)
        put(want, f"kld_by_confidence.{i}.kld_nats", mean(column(part, "kld"), part))
        put(want, f"kld_by_confidence.{i}.same_top1", mean(column(part, "same"), part))


def position_numbers(got, ctx, want, exact):
    docs = sorted({g["doc"] for g in got})
    nll = np.array([[g["nll"] for g in got if g["doc"] == d] for d in docs])
    diff = nll - np.array([[g["ref"] for g in got if g["doc"] == d] for d in docs])
    exact["positions.documents"] = len(docs)

    def put_at(path, x):
        put(want, path, (x.mean(), x.std(ddof=1) / math.sqrt(len(x))))

    marks = [t for t in (16, 32, 64, 128, 256) if t < ctx] + [ctx]
    for i, t in enumerate(marks):
        exact[f"positions.at.{i}"] = t
        put_at(f"positions.cumulative_nll_nats.{i}", nll[:, :t].mean(1))
        put_at(f"positions.difference_nats.{i}", diff[:, :t].mean(1))
    for k in range(ctx.bit_length()):
        a, b = 2 ** k, min(2 ** (k + 1), ctx + 1)
        exact[f"positions.bins.{k}.n"] = len(docs) * (b - a)
        put_at(f"positions.bins.{k}.nll_nats", nll[:, a - 1:b - 1].mean(1))
        put_at(f"positions.bins.{k}.difference_nats", diff[:, a - 1:b - 1].mean(1))


def bigrams(text):
    ids = encode(text)[1:]
    return list(zip(ids, ids[1:])), len(ids)


def slice_numbers(got, docs, counts, threshold, want, exact):
    """By brute force: every earlier pair of the window is looked at again for each id."""
    def often(key, doc):
        n = total = 0
        for i, text in enumerate(docs if counts is None else [counts]):
            if counts is None and i == doc:
                continue
            pairs, length = COUNTED.setdefault(text, bigrams(text))
            n += pairs.count(key)
            total += length
        return n > max(1, threshold * total / 1e10)

    hit, known = [], {}
    for g in got:
        s = g["shown"]
        key = (s[-2], s[-1])
        seen = any((s[i], s[i + 1]) == key for i in range(len(s) - 2))
        at = (key, g["doc"])
        if seen and at not in known:
            known[at] = often(*at)
        hit.append(seen and not known[at])
    for name, want_hit in (("ar_hit", True), ("others", False)):
        part = [g for g, h in zip(got, hit) if h == want_hit]
        exact[f"slices.{name}.n"] = len(part)
        put(want, f"slices.{name}.nll_nats", mean(column(part, "nll"), part))
        put(want, f"slices.{name}.delta_nats", mean(column(part, "nll") - column(part, "ref"), part))
    want["slices.share_ar_hit"] = sum(hit) / len(hit)


COUNTED = {}


def case(scheme, docs, ctx, step=None, model="llama", ref=None, counts=None, threshold=None):
    got = score(docs, scheme, ctx, step, model, ref or model)
    name, want, exact = scheme.__name__, {}, {}
    args = [f"@/calib/pair/{model}", "--text", "@/calib/pair/text.txt" if docs == [BOOK] else "@/tests/golden/text/docs.jsonl",
            "--ctx", str(ctx)] + (["--positions"] if name == "positions" else ["--window", name])
    args += ["--stride", str(step)] if step else []
    if ref:
        args += ["--ref", f"@/calib/pair/{ref}"]
        text_numbers(got, want, exact)
    exact["n"] = len(got)
    put(want, "metrics.nll_nats", mean(column(got, "nll"), got))
    if name == "rolling":
        used = [docs[d] for d in sorted({g["doc"] for g in got})]
        words = sum(len(re.split(r"\s+", d)) for d in used)
        size = sum(len(d.encode()) for d in used)
        nll = column(got, "nll").sum()
        want["metrics.word_ppl.value"] = math.exp(nll / words)
        want["metrics.byte_ppl.value"] = math.exp(nll / size)
        want["metrics.bits_per_byte.value"] = nll / (size * math.log(2))
    if name == "positions":
        position_numbers(got, ctx, want, exact)
    if threshold is not None:
        args += ["--slices", "--slice-threshold", str(threshold)]
        args += ["--slice-counts", "@/calib/pair/text.txt"] if counts else []
        slice_numbers(got, docs, counts, threshold, want, exact)
    print(name, model, ref, len(got), want["metrics.nll_nats.value"])
    return {"args": args, "exact": exact, "want": {k: float(v) for k, v in want.items()}}


def main():
    cases = []
    for model in models:
        cases += [case(chunk, [BOOK], 192, model=model), case(stride, [BOOK], 192, 80, model=model),
                  case(block, [BOOK], 192, model=model), case(rolling, [BOOK], 192, model=model)]
    two = {"model": "diffllama", "ref": "llama"}
    cases += [
        case(chunk, [BOOK], 256, **two, counts=BOOK, threshold=2000000),
        case(chunk, DOCS, 64, **two, threshold=1250),
        case(stride, DOCS, 96, 40, **two, threshold=5000000),
        case(block, DOCS, 100, **two),
        case(rolling, DOCS, 128, **two, counts=BOOK, threshold=2000000),
        case(positions, DOCS, 200, **two, threshold=5000000),
    ]
    (OUT / "golden.json").write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
