#!/usr/bin/env python3
"""Which importance score knows what will be asked? A study beside dq, in PyTorch.

    python scores.py OUT.csv [--models diffllama-0 llama-0 ...] [--items 64] [--only few]

Needles of calib/longpair/needles-blind.jsonl: the context is compressed, then the question comes. 4 sinks and 16 recent tokens
stay, as in run.sh; the share that is kept counts them. A line a model, score, budget and share: recall of the items, and
every item's 0 or 1 as one word, so that scores can be paired; with `--windows` also lines with KLD, see there. `--join`
makes means over models of several files.

An importance score is a number for each token of a layer and KV head group. Two maps make one number as
a1 A1; a2 A2; max the larger of A1 and |lambda| A2; sum A1 + |lambda| A2; diff |A1 - lambda A2|; out: the length of the change of the
head's output when the token is left out, in units of the output's length (the head norm sees no other)

prefill  sum of these over the rows of the context; far: their maximum over rows at least 32 after
snap     sum over the last 64 rows, then the maximum of 5 positions
zip      KVzip (arXiv 2505.23416): the context is read again after itself in chunks, and a token's number is the maximum over the
         repeated rows; softmax over sinks, chunk and the rows themselves. zip-n: chunks of n tokens, the first after nothing, others
         after the last 8 tokens of the chunk before; all: the whole softmax. plus: times |Wo v| / |h|
mean     the same, summed over the repeated rows
expected Expected Attention (arXiv 2510.00636): mean and covariance of the context's queries before RoPE, RoPE averaged over the next
         512 positions, softmax of mu k / sqrt d + k' Sigma k / 2d, times |v|; text: of the queries of calibration text, the same for
         every context; bank: mean softmax of 256 such queries themselves, bankmax its maximum
keydiff  minus the cosine between a key and the mean of keys (arXiv 2504.15364), mean over key heads
leverage x (X'X + .01)^-1 x' of centred keys (arXiv 2507.08143): of the group's keys before RoPE side by side, or the sum or the
         maximum over its key heads, or turned: the same after RoPE; compactor: .875 of it and z-scores of attention inside blocks
         of 256, times |v|, mean of 3 positions
knorm, random, streaming as dq has them
gate     a linear function of what the layer's attention reads, fitted on calibration text to ln of the largest A1 (two maps: also max)
         that the token gets from rows at least 32 after (in the manner of Fast KVzip, arXiv 2601.17668)
asked    what the question's rows themselves look at: no score can know it

Budgets: uniform; adaptive: groups of a layer share by raw numbers, a fifth of each one's own is safe (AdaKV, arXiv 2407.11550); norm:
the same by numbers over their sum, as dq's `adaptive`; global: all layers and groups share by raw numbers (KVzip's default);
last: all of it in the last layer, as equal shares (a head role that is known to be right here: DuoAttention, arXiv 2410.10819)
"""
import argparse
import csv
import importlib.util
import json
import math
import os

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
_spec = importlib.util.spec_from_file_location("weights_study", os.path.join(HERE, "..", "weights", "study.py"))
weights_study = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(weights_study)
SINK, RECENT, FUTURE, FAR, TAIL = 4, 16, 512, 32, 8
KEEPS = (0.5, 0.25, 0.125, 0.0625)
MODELS = [f"{kind}-{s}" for s in range(3) for kind in ("llama", "diffllama")]
PAIRS = ("a1", "a2", "max", "sum", "diff", "out")


class Model(weights_study.Model):
    def __init__(self, name):
        self.label = name
        super().__init__(os.path.join(HERE, "..", "..", "calib", "longpair", name))
        self.groups = self.heads // 2 if self.diff else self.heads

    def turn(self, x, at):
        """RoPE for rows at positions `at`."""
        f = torch.outer(at.float(), 1 / self.theta ** (torch.arange(0, self.d, 2).float() / self.d))
        cos, sin = torch.cat([f, f], -1).cos(), torch.cat([f, f], -1).sin()
        h = self.d // 2
        return x * cos + torch.cat([-x[..., h:], x[..., :h]], -1) * sin

    def pairs(self, v):
        return torch.cat(v.chunk(2, -3), -1) if self.diff else v

    def output(self, layer):
        """Wo by group: [groups, dim, channels of the group's head]."""
        w = self.W[self.name(layer, "o")]
        return w.view(w.shape[0], self.groups, -1).transpose(0, 1)


def feed(m, ids, at, cache=None, kept=None, counts=None):
    """Rows `ids` at positions `at` after a cache. A list over layers of what they make: h, q before and after RoPE, k, v, and the maps
    p [..., heads, rows, keys]. kept [variants, layers, groups, keys]: which of the cached keys are there. counts [layers, groups, keys]:
    how many tokens each of them stands for, in both maps."""
    x, out = m.embed(ids), []
    causal = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1)
    for layer in range(m.layers):
        g1, g2 = (m.W[g] for g in m.gains(layer))
        h = m.norm(x, g1)
        q0, k0, v = (y.unflatten(-1, (m.heads, m.d)).transpose(-3, -2) for y in m.qkv(h, layer, m.W))
        q, k = m.turn(q0, at), m.turn(k0, at)
        n = cache[layer]["k"].shape[-2] if cache else 0
        s = q @ k.transpose(-1, -2)
        if cache:  # once for all variants
            s = torch.cat([torch.einsum("...htd,hsd->...hts", q, cache[layer]["k"]), s], -1)
        s = s / math.sqrt(m.d)
        if counts is not None:
            s[..., :n] += counts[layer].log().repeat(m.heads // m.groups, 1)[:, None]
        s[..., n:].masked_fill_(causal, -math.inf)
        if kept is not None:
            gone = ~kept[:, layer].repeat(1, m.heads // m.groups, 1)
            s = s.expand(len(kept), -1, -1, -1).clone() if s.dim() == 3 else s
            s[..., :n].masked_fill_(gone[:, :, None], -math.inf)
        p = torch.softmax(s, -1)
        half = m.heads // 2
        d = p[..., :half, :, :] - m.lam(layer)[0] * p[..., half:, :, :] if m.diff else p
        o = d[..., n:] @ m.pairs(v)
        if cache:
            o = o + torch.einsum("...hts,hsd->...htd", d[..., :n], m.pairs(cache[layer]["v"]))
        y = o * m.gain_of(o) * (1 - m.lam(layer)[1]) if m.diff else o
        x = x + m.product(y.transpose(-3, -2).flatten(-2), layer, "o", m.W)
        x = x + m.product(m.inner(m.norm(x, g2), layer, m.W), layer, "down", m.W)
        out.append({"h": h, "q0": q0, "q": q, "k": k, "v": v, "p": p, "o": o,
                    "values": torch.cat([cache[layer]["v"], v], -2) if cache and v.dim() == 3 else v})
    return out, x


def needles(m, count):
    out = []
    for line in list(open(os.path.join(HERE, "..", "..", "calib", "longpair", "needles-blind.jsonl")))[:count]:
        item = json.loads(line)
        ids = torch.tensor([0] + [i for i in m.tok.encode(item["ctx"]).ids if i])
        choices = [[i for i in m.tok.encode(" " + c).ids if i] for c in item["choices"]]
        assert all(len(c) == 3 and c[:2] == choices[0][:2] for c in choices)
        out.append((ids, torch.tensor(choices[0][:2]), torch.tensor([c[2] for c in choices]), item["gold"]))
    return out


# ---- Numbers from maps

def combine(m, layer, p, o=None, values=None, h=None):
    """Maps p [heads, rows, keys] as the numbers of PAIRS, [groups, rows, keys] each."""
    if not m.diff:
        out = {"a1": p}
        p2, lam = torch.zeros_like(p), 0.0
        p1 = p
    else:
        p1, p2, lam = p[:m.groups], p[m.groups:], m.lam(layer)[0]
        b = abs(lam) * p2
        out = {"a1": p1, "a2": p2, "max": torch.maximum(p1, b), "sum": p1 + b, "diff": (p1 - lam * p2).abs()}
    if o is not None:
        odds = lambda x: x / (1 - x).clamp_min(2.0 ** -24)
        a, b = odds(p1), lam * odds(p2)
        vp = m.pairs(values)[..., :p.shape[-1], :]
        full1 = o[0]
        o1v = full1 @ vp.transpose(-1, -2)
        o2v = o[1] @ vp.transpose(-1, -2)
        n1, n2 = full1.pow(2).sum(-1, keepdim=True), o[1].pow(2).sum(-1, keepdim=True)
        cross = (full1 * o[1]).sum(-1, keepdim=True)
        vv = vp.pow(2).sum(-1)[..., None, :]
        w = a - b
        u2 = a * a * n1 - 2 * a * b * cross + b * b * n2
        d2 = u2 - 2 * w * (a * o1v - b * o2v) + w * w * vv
        out["out"] = d2.clamp_min(0).sqrt() / (full1 - lam * o[1]).norm(dim=-1, keepdim=True)
    return out


def halves(m, layer, row):
    """Outputs of the two maps by group."""
    v, p = m.pairs(row["values"]), row["p"]
    if not m.diff:
        return p @ v, torch.zeros_like(row["o"])
    return p[:m.groups] @ v, p[m.groups:] @ v


def from_prefill(m, context):
    out = {}
    n = context[0]["k"].shape[-2]
    far = torch.ones(n, n, dtype=torch.bool).tril(-FAR)
    for layer, row in enumerate(context):
        of = combine(m, layer, row["p"], halves(m, layer, row), row["values"])
        for name, x in of.items():
            out.setdefault(f"prefill {name}", []).append(x.sum(1))
            out.setdefault(f"far {name}", []).append((x * far).amax(1))
            s = x[:, -64:].sum(1)
            out.setdefault(f"snap {name}", []).append(torch.nn.functional.max_pool1d(s[None], 5, 1, 2)[0])
    return out


def from_replay(m, ids, context, size, whole=False, tail=TAIL, only=None):
    n = len(ids)
    out = {}
    for start in range(0, n, size):
        end = min(n, start + size)
        prompt = ids[max(0, start - tail):start]
        again = torch.cat([prompt, ids[start:end]])
        rows, _ = feed(m, again, torch.arange(n, n + len(again)), context)
        sinks = min(SINK, start)
        part = torch.cat([torch.arange(sinks), torch.arange(start, end), torch.arange(n, n + len(again))])
        for layer, row in enumerate(rows):
            p = row["p"] if whole else row["p"][..., part] / row["p"][..., part].sum(-1, keepdim=True)
            at = start if whole else sinks
            p = p[..., at:at + end - start]
            mine = {**row, "values": torch.cat([row["values"][..., start:end, :]], -2)}
            of = combine(m, layer, p, halves(m, layer, row), mine["values"])
            wov = torch.einsum("gji,gti->gtj", m.output(layer), m.pairs(mine["values"])).norm(dim=-1)
            of |= {f"{k} plus": of[k] * wov[:, None] / row["h"].norm(dim=-1)[None, :, None] for k in ("a1", "max", "sum") if k in of}
            for name, x in of.items():
                if only and name not in only:
                    continue
                out.setdefault(("zip", name), [[] for _ in rows])[layer].append(x.amax(1))
                if name in ("sum", "out") and not only:
                    out.setdefault(("mean", name), [[] for _ in rows])[layer].append(x.sum(1))
    tag = f"-{size if size < n else 'all'}" + (" whole" if whole else "") + ("" if tail == TAIL else f" tail {tail}")
    return {f"{kind}{tag} {name}": [torch.cat(x, -1) for x in layers] for (kind, name), layers in out.items()}


def average_turn(m, n):
    """RoPE averaged over the next positions, as a matrix."""
    eye = torch.eye(m.d)[:, None].expand(-1, FUTURE, -1)
    return m.turn(eye, torch.arange(n, n + FUTURE)).mean(1).T  # column i: where unit vector i goes


def expected_maps(m, context, queries):
    """queries: [heads, rows, d] before RoPE, a layer each. E [heads, keys] with 0 at sinks."""
    out, n = [], context[0]["k"].shape[-2]
    turn = average_turn(m, n)
    for row, q in zip(context, queries):
        mu = q.mean(1)
        c = q - mu[:, None]
        cov = c.transpose(1, 2) @ c / q.shape[1]
        mu, cov = mu @ turn.T, turn @ cov @ turn.T
        k = row["k"][:, SINK:]
        s = (k @ mu[..., None])[..., 0] / math.sqrt(m.d) + torch.einsum("hni,hij,hnj->hn", k, cov, k) / m.d / 2
        out.append(torch.nn.functional.pad(torch.softmax(s, -1), (SINK, 0)))
    return out


def of_maps(m, context, maps, tag):
    out = {}
    for layer, (row, e) in enumerate(zip(context, maps)):
        vp = m.pairs(row["v"])
        size = vp.norm(dim=-1)
        wov = torch.einsum("gji,gti->gtj", m.output(layer), vp).norm(dim=-1)
        for name, x in combine(m, layer, e[:, None]).items():
            x = x[:, 0]
            out.setdefault(f"{tag} {name}", []).append(x * size)
            if name in ("a1", "sum"):
                out.setdefault(f"{tag} {name} plain", []).append(x)
                out.setdefault(f"{tag} {name} wo", []).append(x * wov)
    return out


def bank_maps(m, context, queries, amount=256):
    """Softmax of calibration queries placed at the next positions: mean and maximum."""
    n = context[0]["k"].shape[-2]
    mean, most = [], []
    for row, q in zip(context, queries):
        pick = torch.linspace(0, q.shape[1] - 1, amount).long()
        at = n + (torch.arange(amount) * 37) % FUTURE
        s = m.turn(q[:, pick], at) @ row["k"].transpose(1, 2) / math.sqrt(m.d)
        p = torch.softmax(s, -1)
        mean.append(p.mean(1))
        most.append(p.amax(1))
    return mean, most


def others(m, ids, context, asked, gates):
    out = {"random uniform": [], "keydiff": [], "knorm": [], "streaming": [], "asked": []}
    n = len(ids)
    draw = torch.Generator().manual_seed(int(ids.sum()))
    folded = lambda x: x.view(-1, m.groups, n).sum(0)
    for layer, row in enumerate(context):
        k = row["k"]
        anchor = torch.nn.functional.normalize(k, dim=-1).mean(1, keepdim=True)
        out["keydiff"].append(-folded(torch.nn.functional.cosine_similarity(k, anchor, dim=-1)))
        out["knorm"].append(-folded(k.pow(2).sum(-1)))
        out["streaming"].append(torch.arange(n).float().expand(m.groups, -1))
        out["random uniform"].append(torch.rand(m.groups, n, generator=draw))
        out["asked"].append(folded(asked[layer]["p"][..., :n].sum(1)))
        for name, w in gates.items():
            h = torch.cat([row["h"], torch.ones(n, 1)], -1)
            out.setdefault(f"gate {name}", []).append((h @ w[layer]).T.exp())
    return out


def leverages(k):
    x = (k - k.mean(-2, keepdim=True)).double()
    g = x.transpose(-1, -2) @ x + 1e-2 * torch.eye(k.shape[-1]).double()
    return (x * torch.linalg.solve(g, x.transpose(-1, -2)).transpose(-1, -2)).sum(-1)


def z_scores(x):
    return (x - x.mean()) / x.std().clamp_min(1e-6)


def of_keys(m, context):
    out, n = {}, context[0]["k"].shape[-2]
    heads = lambda x: x.view(-1, m.groups, n)
    for row in context:
        add = lambda name, x: out.setdefault(name, []).append(x)
        anchor = torch.nn.functional.normalize(row["k"], dim=-1).mean(1, keepdim=True)
        add("keydiff", -heads(torch.nn.functional.cosine_similarity(row["k"], anchor, dim=-1)).sum(0))
        for tag, k in (("leverage", m.turn(row["k"], -torch.arange(n))), ("leverage turned", row["k"])):
            add(tag, leverages(m.pairs(k)))
            add(f"{tag} sum", heads(leverages(k)).sum(0))
            add(f"{tag} max", heads(leverages(k)).amax(0))
        inside = [torch.softmax(row["q"][:, i:i + 256] @ row["k"][:, i:i + 256].transpose(-1, -2), -1).sum(-2) for i in range(0, n, 256)]
        a = heads(torch.cat(inside, -1)).sum(0) * m.pairs(row["v"]).norm(dim=-1)
        add("compactor", .875 * z_scores(out["leverage sum"][-1]) + z_scores(torch.nn.functional.avg_pool1d(a[None], 3, 1, 1)[0]))
    return out


# ---- Calibration text

def windows(m, count):
    ids = m.tok.encode(open(os.path.join(HERE, "..", "..", "calib", "longpair", "text.txt")).read()).ids
    w = torch.tensor([[0] + ids[i + 1:i + 1024] for i in range(0, len(ids) - 1023, 1024)])
    return w[-count:]


def calibrate(m, count=8):
    """Queries before RoPE of the last windows, and gates."""
    queries, grams, sides = [[] for _ in range(m.layers)], {}, {}
    for ids in windows(m, count):
        context, _ = feed(m, ids, torch.arange(len(ids)))
        n = len(ids)
        far = torch.ones(n, n, dtype=torch.bool).tril(-FAR)
        for layer, row in enumerate(context):
            queries[layer].append(row["q0"][:, SINK:])
            h = torch.cat([row["h"], torch.ones(n, 1)], -1)[SINK:n - 512].double()
            for name, x in combine(m, layer, row["p"]).items():
                if name not in ("a1", "max"):
                    continue
                y = (x * far).amax(1)[:, SINK:n - 512].clamp_min(1e-6).log().double()
                key = (name, layer)
                grams[key] = grams.get(key, 0) + h.T @ h
                sides[key] = sides.get(key, 0) + h.T @ y.T
    gates = {}
    for (name, layer), g in grams.items():
        w = torch.linalg.solve(g + 1e-3 * g.diag().mean() * torch.eye(len(g)).double(), sides[name, layer])
        gates.setdefault(name, {})[layer] = w.float()
    return [torch.cat(q, 1) for q in queries], gates


# ---- Budgets

def kept_of(scores, n, keep):
    """scores: a list over layers of [groups, n]. A mask [layers, groups, n] for each budget."""
    s = torch.stack(scores).double().nan_to_num(nan=-1e300)
    at = torch.arange(n)
    safe = (at < SINK) | (at >= n - RECENT)
    budget = max(math.ceil(keep * n), SINK + RECENT)
    free = budget - int(safe.sum())
    layers, groups = s.shape[:2]
    s = s.masked_fill(safe, -math.inf)
    order = s.argsort(dim=-1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(-1, order, at.expand_as(order).contiguous())

    def pool(x, amount):
        flat = x.reshape(-1)
        mask = torch.zeros(len(flat), dtype=torch.bool)
        mask[flat.argsort(dim=0, descending=True, stable=True)[:amount]] = True
        return mask.view(x.shape)

    def adaptive(x):
        floor = math.ceil(free / 5)
        first = rank < floor
        x = x.masked_fill(first, math.inf)
        return torch.stack([pool(x[i], groups * free) for i in range(layers)])

    total = s.masked_fill(safe, 0).abs().sum(-1, keepdim=True).clamp_min(1e-300)
    last = torch.zeros(layers, groups, 1, dtype=torch.bool)
    last[-1] = True
    out = {"uniform": rank < free, "adaptive": adaptive(s), "norm": adaptive(s / total), "global": pool(s, layers * groups * free),
           "last": last & (rank < layers * free)}
    return {name: (mask & ~safe) | safe for name, mask in out.items()}


def answer(m, context, n, question, masks):
    """The logits after the question for every mask [variants, layers, groups, n]."""
    ids = question
    out = []
    for i in range(0, len(masks), 256):
        _, x = feed(m, ids, torch.arange(n, n + len(ids)), context, masks[i:i + 256])
        out.append(m.norm(x[:, -1], m.W["model.norm.weight"]) @ m.head.T)
    return torch.cat(out)


def importance_of(m, ids, question, queries, gates, only):
    context, _ = feed(m, ids, torch.arange(len(ids)))
    asked, _ = feed(m, question, torch.arange(len(ids), len(ids) + 2), context)
    out = {}
    if "prefill" in only:
        out |= from_prefill(m, context)
    if "few" in only:
        out |= {k: v for k, v in from_prefill(m, context).items() if k in ("prefill sum", "prefill out", "far a1", "far max")}
        out |= {k: v for k, v in from_replay(m, ids, context, len(ids)).items() if k.startswith("zip")}
        maps = expected_maps(m, context, [r["q0"][:, SINK:] for r in context])
        out |= {k: v for k, v in of_maps(m, context, maps, "expected").items() if len(k.split()) == 2}
        out |= others(m, ids, context, asked, gates)
    if "zip" in only:
        for size in (len(ids), 256):
            out |= from_replay(m, ids, context, size)
    if "tails" in only:
        few = ("a1", "max")
        out |= from_replay(m, ids, context, 256, whole=True, only=few)
        out |= from_replay(m, ids, context, 256, tail=0, only=few)
        out |= from_replay(m, ids, context, 64, only=few)
    if "expected" in only:
        out |= of_maps(m, context, expected_maps(m, context, [r["q0"][:, SINK:] for r in context]), "expected")
        out |= of_maps(m, context, expected_maps(m, context, queries), "expected text")
        mean, most = bank_maps(m, context, queries)
        for tag, e in (("bank", mean), ("bankmax", most)):
            out |= {k: v for k, v in of_maps(m, context, e, tag).items() if k.split(" ", 1)[1] in ("a1", "max")}
    if "keys" in only:
        out |= of_keys(m, context)
    if "others" in only:
        out |= others(m, ids, context, asked, gates)
    return context, out


def text_loss(m, count, queries, gates, only, keeps):
    """KLD of the second halves of the first windows, by score and share, budgets uniform."""
    ids, out = m.tok.encode(open(os.path.join(HERE, "..", "..", "calib", "longpair", "text.txt")).read()).ids, {}
    for i in range(count):
        w = torch.tensor([0] + ids[i * 1023 + 1:(i + 1) * 1023 + 1])
        first, rest = w[:512], w[512:]
        context, importance = importance_of(m, first, rest[:2], queries, gates, only)
        whole = torch.ones(1, m.layers, m.groups, 512, dtype=torch.bool)
        masks = {(g, keep): kept_of(s, 512, keep)["uniform"][None] for g, s in importance.items() for keep in keeps}
        reference = None
        for label, mask in [(None, whole), *masks.items()]:
            _, x = feed(m, rest, torch.arange(512, 1024), context, mask)
            logp = torch.log_softmax(m.norm(x[0], m.W["model.norm.weight"]) @ m.head.T, -1)
            if label is None:
                reference = logp
            else:
                out.setdefault(label, []).append(float((reference.exp() * (reference - logp)).sum(-1).mean()))
    return [[m.label, score, "kld", keep, sum(x) / len(x), " ".join(f"{y:.5f}" for y in x)] for (score, keep), x in out.items()]


def study(name, count, only, keeps, n_windows):
    m = Model(name)
    queries, gates = calibrate(m)
    hits = {}
    for ids, question, answers, gold in needles(m, count):
        context, importance = importance_of(m, ids, question, queries, gates, only)
        labels, masks = [("all", "uniform", 1.0)], [torch.ones(m.layers, m.groups, len(ids), dtype=torch.bool)]
        for score, values in importance.items():
            for keep in keeps:
                for budget, mask in kept_of(values, len(ids), keep).items():
                    if budget in ("norm", "last") and ("few" in only or not score.startswith(("zip-all", "prefill sum", "expected a1"))):
                        continue
                    labels.append((score, budget, keep))
                    masks.append(mask)
        logits = answer(m, context, len(ids), question, torch.stack(masks))
        for label, right in zip(labels, (logits[:, answers].argmax(1) == gold).tolist()):
            hits.setdefault(label, []).append(int(right))
    recalled = [[name, *label, sum(x) / len(x), "".join(map(str, x))] for label, x in hits.items()]
    return recalled + text_loss(m, n_windows, queries, gates, only, keeps)


def join(paths):
    """Means over models of a kind, best first at a quarter."""
    rows = {}
    for path in paths:
        for r in csv.DictReader(open(path)):
            if r["score"] == "all" or r["budget"] == "kld":
                continue
            kind = r["model"].rsplit("-", 1)[0]
            rows.setdefault((kind, r["score"], r["budget"]), {}).setdefault(float(r["keep"]), []).append(float(r["recall"]))
    out = []
    for (kind, score, budget), of in rows.items():
        out.append([kind, score, budget] + [sum(of[k]) / len(of[k]) if k in of else math.nan for k in KEEPS]
                   + [min(of[k]) if k in of else math.nan for k in KEEPS])
    for r in sorted(out, key=lambda r: (r[0], -r[4] - r[5])):
        print(f"{r[0]:10s} {r[1]:28s} {r[2]:9s} " + " ".join(f"{x:.3f}" for x in r[3:7]) + "  least " + " ".join(f"{x:.3f}" for x in r[7:]))


def main():
    a = argparse.ArgumentParser()
    a.add_argument("out")
    a.add_argument("--models", nargs="+", default=MODELS)
    a.add_argument("--items", type=int, default=64)
    a.add_argument("--only", nargs="+", default=["prefill", "zip", "tails", "expected", "others"], help="few: one of each")
    a.add_argument("--keep", nargs="+", type=float, default=KEEPS)
    a.add_argument("--windows", type=int, default=0, help="of text, for lines with the budget `kld`: KLD in the column of recall")
    a.add_argument("--join", nargs="+")
    o = a.parse_args()
    if o.join:
        return join(o.join)
    torch.set_num_threads(1)
    with torch.no_grad(), open(o.out, "w", newline="") as f:
        w = csv.writer(f)
        w.writerow(["model", "score", "budget", "keep", "recall", "items"])
        for name in o.models:
            w.writerows([*r[:3], r[3], f"{r[4]:.4f}", r[5]] for r in study(name, o.items, o.only, o.keep, o.windows))
            f.flush()


if __name__ == "__main__":
    main()
