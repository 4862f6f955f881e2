#!/usr/bin/env python3
"""Where the error of a coded KV cache comes from, and what better codes would do: a study beside dq, in PyTorch.

    python study.py OUT.csv [--causes CAUSES.csv] [--sets causes keys values both low] [--models llama-0 diffllama-0 ...]

Six models of calib/longpair, windows of 1024 tokens, and two of calib/pair, windows of 192. The first --windows windows (12; of the pair
40) are scored, statistics that a code is made of (means, bases) come from the last 8 (of the pair 40). Read as `dq eval
--kv-recent 16` reads: pages of 64 tokens, codes once the page's last token is 16 after, 4 sinks never. `today` is dq's code; its
KLD here and there agree to three digits. A window's score is the mean KLD of its second half against the model with an exact
cache, and the paired difference in NLL.

A line a model and variant: bits held per element of keys and of values (codes, scales, zero points and means that are kept per
token or page; what is found once per model is free), KLD, its standard error over windows, the ratio to the set's first variant and
its paired z; the ratio to today's code at as many bits held (KLD of today's code at 2 to 8 bits on the coded sides, ln KLD linear
between); difference in NLL; recall of 64 needles in the sets low and lower. `--join` makes one file of several and adds, by kind, geometric
means over models.

The codes are those of codes.py. Sets; keys and values change one side and keep the other exact:
causes   today's 4:4; one side, map or layer at a time; all but one; errors of the last layer's values scaled to those of the
         plain model of the same seed; the head norm's gain as without errors; own or all recent tokens read as codes too
keys     grids, searched scales, zero points, one scale a token or a channel and page (KIVI), before RoPE (KVQuant), means taken
         off (SageAttention), bases with widths by channel, map 2 as a residual of decoded map 1, one scale for both maps, more
         bits for map 1
values   the same; means by page, context or frozen; the middle of least and largest; heads of a pair as one vector; errors fed
         to the next token, so that those of a page add up to less than a step
ridge    the read basis where the moment of queries is less trusted, for --calibrate
more ... searched zero points, dither, other bases with zero points
both     combinations at 4:4, then with bits by layer and by map at the same mean
goal     4:4 with more for the last layer and map 1, all of it per-channel codes, which nothing is calibrated for
low ...  fewer: 3 bits on both sides, values of 2 bits; lower: the best of both at a mean of 3 bits
"""
import argparse
import importlib.util
import json
import math
import os

import numpy as np
import torch

from codes import PAGE, SINK, code_of, coded, coded_tokens, held, pages

HERE = os.path.dirname(os.path.abspath(__file__))
_spec = importlib.util.spec_from_file_location("weights_study", os.path.join(HERE, "..", "weights", "study.py"))
weights_study = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(weights_study)
RECENT = 16
ITEMS = 64
MODELS = [f"{kind}-{s}" for s in range(3) for kind in ("llama", "diffllama")] + ["llama", "diffllama"]


class Model(weights_study.Model):
    def __init__(self, name):
        self.label, self.long = name, "-" in name
        super().__init__(os.path.join(HERE, "..", "..", "calib", "longpair" if self.long else "pair", name))

    def normed(self, layer, o):
        return o * self.gain_of(o) * (1 - self.lam(layer)[1]) if self.diff else o

    def pairs(self, x):
        """Heads of a pair as one vector, which is what a map multiplies."""
        return torch.cat(x.chunk(2, 1), -1) if self.diff else x

    def unpaired(self, x):
        return torch.cat(x.chunk(2, -1), 1) if self.diff else x


def texts(m, count):
    n = 1024 if m.long else 192
    ids = m.tok.encode(open(os.path.join(HERE, "..", "..", "calib", "longpair" if m.long else "pair", "text.txt")).read()).ids
    w = torch.tensor([[0] + ids[i + 1:i + n] for i in range(0, len(ids) - n + 1, n)])
    return (w[:count], w[-8:]) if m.long else (w[:40], w[-40:])


def needles(m):
    """Contexts with the question after them, the row that answers, the six answers, the right one."""
    rows = []
    for line in list(open(os.path.join(HERE, "..", "..", "calib", "longpair", "needles-blind.jsonl")))[:ITEMS]:
        item = json.loads(line)
        ids = [0] + [i for i in m.tok.encode(item["ctx"]).ids if i]
        choices = [[i for i in m.tok.encode(" " + c).ids if i] for c in item["choices"]]
        assert all(len(c) == 3 and c[:2] == choices[0][:2] for c in choices)
        ids += choices[0][:2]
        rows.append((ids + [0] * (1024 - len(ids)), len(ids) - 1, [c[2] for c in choices], item["gold"]))
    return tuple(torch.tensor(x) for x in zip(*rows))


# ---- Reading a cache

def maps(m, layer, q, k, kc, a, b, recent=RECENT):
    """For the rows a..b-1 of one page: D and A over columns 0..b-1, and which of the columns lo.. are codes."""
    t = torch.arange(a, b)
    end = (t + 1 - recent).clamp_min(0) // PAGE * PAGE
    lo = min(a, int(end[0]))
    s = torch.arange(lo, b)
    coded = (s[None] < end[:, None]) & (s[None] >= SINK) & (s[None] <= t[:, None])
    z = q[:, :, a:b] @ kc[:, :, :b].transpose(2, 3)
    z[..., lo:] = torch.where(coded, z[..., lo:], q[:, :, a:b] @ k[:, :, lo:b].transpose(2, 3))
    z[..., :SINK] = q[:, :, a:b] @ k[:, :, :SINK].transpose(2, 3)
    z.div_(math.sqrt(m.d))[..., a:].masked_fill_(torch.ones(b - a, b - a, dtype=torch.bool).triu(1), -math.inf)
    p = torch.softmax(z, -1)
    half = m.heads // 2
    return p[:, :half] - m.lam(layer)[0] * p[:, half:] if m.diff else p, p, lo, coded


def attend(m, layer, q, k, v, kc, vc, first, own=False, recent=RECENT):
    """D V of rows first.., before the head norm; own: a row's own token is read as codes too."""
    v, vc = m.pairs(v), m.pairs(vc)
    out = []
    for a in range(first, q.shape[2], PAGE):
        b = min(a + PAGE, q.shape[2])
        d, _, lo, coded = maps(m, layer, q, k, kc, a, b, recent)
        o = d @ vc[:, :, :b] + (d[..., lo:] * ~coded) @ (v - vc)[:, :, lo:b]
        if lo:
            o = o + d[..., :SINK] @ (v - vc)[:, :, :SINK]
        if own:
            o = o + d[..., a:].diagonal(dim1=2, dim2=3)[..., None] * (vc - v)[:, :, a:b]
        out.append(o)
    return torch.cat(out, 2)


def forward(m, ids, code=None, rows=None, read=None):
    """Log probabilities of the second half of windows, or of one row each. code(layer, k before RoPE, k, v): decoded keys and
    values. read(layer, q, k, v, kc, vc, first): the head outputs after the head norm, where that is not `attend`."""
    n = ids.shape[1]
    last = int(rows.min()) // PAGE * PAGE if rows is not None else n // 2 // PAGE * PAGE
    x = m.embed(ids)
    for layer in range(m.layers):
        first = last if layer == m.layers - 1 else 0
        g1, g2 = (m.W[g] for g in m.gains(layer))
        q, k0, v = (m.split(y) for y in m.qkv(m.norm(x, g1), layer, m.W))
        q, k = m.rotate(q), m.rotate(k0)
        kc, vc = code(layer, k0, k, v) if code else (k, v)
        o = read(layer, q, k, v, kc, vc, first) if read else m.normed(layer, attend(m, layer, q, k, v, kc, vc, first))
        x = x[:, first:] + m.product(o.transpose(1, 2).reshape(len(ids), n - first, -1), layer, "o", m.W)
        x = x + m.product(m.inner(m.norm(x, g2), layer, m.W), layer, "down", m.W)
    x = x[torch.arange(len(ids)), rows - last] if rows is not None else x[:, n // 2 - last:n - 1 - last]
    return torch.log_softmax((m.norm(x, m.W["model.norm.weight"]) @ m.head.T).double(), -1)


def in_parts(run, *of, step=6):
    return torch.cat([run(*(x[i:i + step] for x in of)) for i in range(0, len(of[0]), step)])


def recall(m, items, code):
    ids, rows, answers, gold = items
    p = in_parts(lambda i, r: forward(m, i, code, r), ids, rows, step=8)
    return (p.gather(1, answers).argmax(1) == gold).double().mean().item()


# ---- Statistics and causes

def statistics(m, calib):
    """Per layer: keys and values of calibration text, and the moments of queries that the basis `read` is made of: E w q q^T,
    w = g^2 lambda_i^2 (sum_s A_s |v_s - A v|^2) / d, what a logit's error does to the normalized output, squared."""
    out = {}

    def read(layer, q, k, v, kc, vc, first):
        vp, half = m.pairs(v), m.heads // 2
        o = attend(m, layer, q, k, v, k, v, 0)
        g = m.gain_of(o)[..., 0] ** 2 if m.diff else torch.ones(o.shape[:3])
        moment = torch.zeros(m.heads, m.d, m.d).double()
        for a in range(0, q.shape[2], PAGE):
            p = maps(m, layer, q, k, k, a, a + PAGE)[1]
            for h in range(m.heads):
                j = h % half if m.diff else h
                some, mean = vp[:, j, :a + PAGE], p[:, h] @ vp[:, j, :a + PAGE]
                w = (p[:, h] @ some.pow(2).sum(-1, keepdim=True))[..., 0] - mean.pow(2).sum(-1)
                w = w.clamp_min(0) * g[:, j, a:a + PAGE] * (m.lam(layer)[0] ** 2 if m.diff and h >= half else 1)
                x = q[:, h, a:a + PAGE]
                moment[h] += torch.einsum("bt,bti,btj->ij", w, x, x).double()
        k0 = m.rotate(k, -1)
        flat = lambda x: x.transpose(0, 1).flatten(1, 2).double()
        out[layer] = {"k": flat(k), "k0": flat(k0), "v": flat(v), "queries": moment / len(q) / q.shape[2] / m.d}
        return m.normed(layer, o)[:, :, first:]

    forward(m, calib, read=read)
    return out


def noisy(m, head, seed):
    """Reads exactly, but for an error of 5 % of each row's length in the last layer: in one head, or in all (None)."""
    generator = torch.Generator().manual_seed(seed)

    def read(layer, q, k, v, kc, vc, first):
        o = m.normed(layer, attend(m, layer, q, k, v, k, v, first))
        if layer == m.layers - 1:
            e = 0.05 * torch.randn(o.shape, generator=generator) * o.norm(dim=-1, keepdim=True) / math.sqrt(o.shape[-1])
            o[:, slice(head, None if head is None else head + 1)] += e[:, slice(head, None if head is None else head + 1)]
        return o
    return read


def sensitivity(m, ids):
    """[windows, output heads, rows of the second half]: KLD at a row by the squared relative error of a head of the last layer."""
    want, out = forward(m, ids), []
    for head in range(m.heads // 2 if m.diff else m.heads):
        got = [forward(m, ids, read=noisy(m, head, seed)) for seed in range(2)]
        out.append(sum((want.exp() * (want - g)).sum(-1) for g in got).float() / 2 / 0.05 ** 2)
    return torch.nn.functional.pad(torch.stack(out, 1), (0, 1))  # the last row predicts nothing that is scored


def causes(m, windows, out):
    """Writes factors of the squared relative error of head outputs at 4 bits, by layer and side; returns those errors. Rows and heads
    of the last layer count by their sensitivity, so that KLD = sum of sensitivities x squared relative error to first order."""
    half, errors, total = m.heads // 2, {}, {}

    def factors(layer, q, k, v, weights):
        n, begin = q.shape[2], q.shape[2] // 2
        kc, vc = (coded(m, x, {"basis": "hadamard"}, None) for x in (k, v))
        o, vp, dv = attend(m, layer, q, k, v, k, v, begin), m.pairs(v), m.pairs(vc - v)
        w = torch.ones(o.shape[:3]) if weights is None else weights / weights.mean()
        mean = lambda x: x.double().mean().item()
        size = mean(w * o.pow(2).sum(-1))

        def relative(x):
            e = (m.normed(layer, x) - m.normed(layer, o)).pow(2).sum(-1) / m.normed(layer, o).pow(2).sum(-1)
            return mean(w * e), mean(w * (x - o).pow(2).sum(-1)), e

        acc, spread, logits, own, codes = {}, [0, 0], [0, 0], [0, 0], [0, 0]
        parts = range(2 if m.diff else 1)
        heads = [slice(i * half, i * half + half) if m.diff else slice(None) for i in parts]

        def add(name, x):
            acc[name] = acc.get(name, 0) + x.double().sum().item()

        for a in range(begin, n, PAGE):
            b = min(a + PAGE, n)
            wr = w[:, :, a - begin:b - begin]
            d, p, lo, near = maps(m, layer, q, k, k, a, b)
            dc, pc, _, _ = maps(m, layer, q, k, kc, a, b)
            mask = torch.cat([torch.ones(b - a, lo, dtype=torch.bool), near], 1)
            mask[:, :SINK] = False
            add("weight", wr * ((d.pow(2) * mask) @ dv[:, :, :b].pow(2).sum(-1, keepdim=True))[..., 0])
            z = (q[:, :, a:b] @ (kc - k)[:, :, :b].transpose(2, 3) / math.sqrt(m.d)).pow(2) * mask
            for i, h in enumerate(heads):
                one = p[:, h] @ vp[:, :, :b]
                far = vp[:, :, :b].pow(2).sum(-1)[:, :, None] + one.pow(2).sum(-1, keepdim=True) - 2 * one @ vp[:, :, :b].transpose(2, 3)
                spread[i] += (wr * (p[:, h].pow(2) * far * mask).sum(-1)).sum().item()
                logits[i] += z[:, h].sum().item() / mask.sum().item() / d.shape[0] / d.shape[1] * (b - a) / (n - begin)
                own[i] += (wr * p[:, h][..., a:].diagonal(dim1=2, dim2=3)).sum().item()
                codes[i] += (wr * (p[:, h] * mask).sum(-1)).sum().item()
            if m.diff:
                lam = m.lam(layer)[0]
                d1, d2 = pc[:, :half] - p[:, :half], lam * (pc[:, half:] - p[:, half:])
                add("cross", d1 * d2)
                add("dD", (dc - d).pow(2))
                add("dA", d1.pow(2) + d2.pow(2))
                add("D", d.pow(2))
                add("A", p[:, :half].pow(2) + (lam * p[:, half:]).pow(2))
        count = w.numel()
        noise, centred = mean(dv.pow(2).sum(-1)), mean((vp - vp.mean(2, keepdim=True)).pow(2).sum(-1))
        r2, e2, each = relative(attend(m, layer, q, k, v, k, vc, begin))
        rows = [("values", "code: E|dv|^2 / E|v|^2", noise / mean(vp.pow(2).sum(-1))),
                ("values", "weight on codes: E sum D^2 |dv|^2 / E|dv|^2", acc["weight"] / count / noise),
                ("values", "agreement between tokens: E|dDv|^2 / E sum D^2 |dv|^2", e2 / (acc["weight"] / count)),
                ("values", "common part: E|v|^2 / E|v - mean|^2", mean(vp.pow(2).sum(-1)) / centred),
                ("values", "cancellation: E|v - mean|^2 / E|o|^2", centred / size),
                ("values", "rows of small outputs: E(|do|^2 / |o|^2) / (E|do|^2 / E|o|^2)", r2 / (e2 / size)),
                ("values", "squared relative error", r2), ("values", "the same over all rows alike", mean(each))]
        if weights is not None:
            scored = weights.shape[2] - 1
            rows.append(("values", "sensitivity: KLD / squared relative error", mean(weights.sum(1)) * (scored + 1) / scored))
        for i, h in enumerate(heads):
            mixed = k.clone()
            mixed[:, h] = kc[:, h]
            r2, e2, _ = relative(attend(m, layer, q, k, v, mixed, v, begin))
            weight = (m.lam(layer)[0] ** 2 if i else 1) * spread[i] / count
            rows += [(f"keys {i + 1}", "code: E (q dk)^2 / d", logits[i]),
                     (f"keys {i + 1}", "softmax: lambda_i^2 E sum A^2 |v - Av|^2 / E|v - mean|^2", weight / centred),
                     (f"keys {i + 1}", "agreement between tokens", e2 / (weight * logits[i]) if weight else 0),
                     (f"keys {i + 1}", "cancellation: E|v - mean|^2 / E|o|^2", centred / size),
                     (f"keys {i + 1}", "rows of small outputs", r2 / (e2 / size)),
                     (f"keys {i + 1}", "squared relative error", r2),
                     (f"keys {i + 1}", "share of A on a row's own token", own[i] / count),
                     (f"keys {i + 1}", "share of A on codes", codes[i] / count)]
        if m.diff:
            rows += [("maps", "lambda", m.lam(layer)[0]),
                     ("maps", "errors that cancel: 2 dA1 lambda dA2 / (|dA1|^2 + |lambda dA2|^2)", 2 * acc["cross"] / acc["dA"]),
                     ("maps", "|dD|^2 / (|dA1|^2 + |lambda dA2|^2)", acc["dD"] / acc["dA"]),
                     ("maps", "|D|^2 / (|A1|^2 + |lambda A2|^2)", acc["D"] / acc["A"])]
        return rows

    for ids in windows.split(4):
        felt = sensitivity(m, ids)

        def read(layer, q, k, v, kc, vc, first):
            for side, name, value in factors(layer, q, k, v, felt if layer == m.layers - 1 else None):
                total.setdefault((layer, side, name), []).append(value * len(ids))
            return m.normed(layer, attend(m, layer, q, k, v, k, v, first))

        forward(m, ids, read=read)
    for (layer, side, name), x in total.items():
        out.write(f"{m.label},{layer},{side},{name.replace(',', ';')},{sum(x) / len(windows):.6g}\n")
        errors[layer, side] = sum(x) / len(windows) if name == "squared relative error" else errors.get((layer, side))
    out.flush()
    return errors


def reader(m, special, errors, plain):
    """The variants of the set causes that change how a cache is read."""
    if special == "noise":
        return noisy(m, None, 0)

    def read(layer, q, k, v, kc, vc, first):
        o = attend(m, layer, q, k, v, kc, vc, first, own=special == "own", recent=-q.shape[2] if special == "recent" else RECENT)
        if special in ("own", "recent"):
            return m.normed(layer, o)
        exact = attend(m, layer, q, k, v, k, v, first)
        if special == "gain":
            return o * m.gain_of(exact) * (1 - m.lam(layer)[1])
        o, exact = m.normed(layer, o), m.normed(layer, exact)
        last = layer == m.layers - 1
        return exact + (o - exact) * math.sqrt(plain[layer, "values"] / errors[layer, "values"]) if last else o
    return read


# ---- Variants

T = {"basis": "hadamard"}
PAGE_V = {"per": "channel", "zero": True}
PAGE_K = dict(PAGE_V, basis="hadamard")
HALF = {"grid": "half", "search": True}
HALF_K = dict(HALF, basis="hadamard")
READ = dict(HALF, basis="read", center="frozen", widths=(6, 4, 3, 2))
OWN = dict(HALF, basis="own", center="frozen", unit="pair", per="channel", widths=(5, 4, 4, 3))
FIRST, SECOND = {"maps": (T, None)}, {"maps": (None, T)}


def bits(how, b):
    return dict(how, bits=b)


def by_map(how, b1, b2):
    return {"maps": (bits(how, b1), bits(how, b2))}


def read_channel(*widths):
    return dict(READ, per="channel", widths=widths)


PAGE_D = dict(PAGE_V, dither=True)
READ_C = read_channel(6, 4, 3, 2)

KEYS = {
    "today": T, "no rotation": {}, "grid half": dict(T, grid="half"), "grid normal": dict(T, grid="normal"),
    "scale searched": dict(T, search=True), "half searched": HALF_K, "zero": {"zero": True}, "zero rotated": dict(T, zero=True),
    "channel": {"per": "channel"}, "channel zero (KIVI)": PAGE_V, "channel rotated": dict(T, per="channel"),
    "channel half searched rotated": dict(HALF_K, per="channel"), "channel zero rotated": PAGE_K,
    "before RoPE rotated": dict(T, rope="before"), "before RoPE channel zero": dict(PAGE_V, rope="before"),
    "before RoPE channel zero rotated": dict(PAGE_K, rope="before"),
    "mean of page": dict(T, center="page"), "mean of context": dict(T, center="context"), "mean frozen": dict(T, center="frozen"),
    "map 2 from map 1": {"second": True}, "one scale for both maps": dict(unit="pair", basis="hadamard by head", group=64),
    "own basis 5443": dict(HALF, basis="own", center="frozen", widths=(5, 4, 4, 3)),
    "read basis 6432": READ, "read basis 6442": dict(READ, widths=(6, 4, 4, 2)),
    "read basis channel 6432": READ_C,
    "maps 5 and 3": by_map(T, 5, 3), "maps 5 and 3 channel zero rotated": by_map(PAGE_K, 5, 3),
}
VALUES = {
    "today": T, "no rotation": {}, "grid half": dict(T, grid="half"), "grid normal": dict(T, grid="normal"),
    "scale searched": dict(T, search=True), "half searched": HALF_K, "zero": {"zero": True}, "zero rotated": dict(T, zero=True),
    "mean of page": dict(T, center="page"), "middle of page": dict(T, center="middle"), "mean of context": dict(T, center="context"),
    "mean frozen": dict(T, center="frozen"), "pair rotated": dict(unit="pair", basis="hadamard", group=64),
    "fed back": dict(T, feedback=True), "channel": {"per": "channel"}, "channel rotated": dict(T, per="channel"),
    "channel half searched": dict(HALF, per="channel"), "channel zero": PAGE_V, "channel zero rotated": PAGE_K,
    "own basis by head 5443": dict(HALF, basis="own", center="frozen", widths=(5, 4, 4, 3)),
    "own basis of pair 6432": dict(HALF, basis="own", center="frozen", unit="pair", widths=(6, 4, 3, 2)),
    "own basis of pair channel 5443": OWN, "own basis of pair channel 6432": dict(OWN, widths=(6, 4, 3, 2)),
}
MORE_KEYS = {
    "today": T, "dithered": dict(T, dither=True), "channel zero rotated": PAGE_K,
    "channel zero rotated dithered": dict(PAGE_K, dither=True),
    "channel zero rotated searched": dict(PAGE_K, search=True), "read basis channel zero": dict(PAGE_K, basis="read"),
    "read basis channel zero 6432": dict(PAGE_K, basis="read", center="frozen", widths=(6, 4, 3, 2)),
}
MORE_VALUES = {
    "today": T, "dithered": dict(T, dither=True), "zero dithered": {"zero": True, "dither": True},
    "channel zero searched": dict(PAGE_V, search=True), "channel zero dithered": PAGE_D,
    "own basis of pair channel zero 5443": dict(PAGE_V, basis="own", unit="pair", center="frozen", widths=(5, 4, 4, 3)),
    "own basis of pair channel 5443 dithered": dict(OWN, dither=True), "channel zero 3 bits": bits(PAGE_V, 3),
    "channel zero dithered 3 bits": bits(PAGE_D, 3), "channel zero 6 bits": bits(PAGE_V, 6),
    "channel zero dithered 6 bits": bits(PAGE_D, 6),
}
RIDGE = {
    "today": T, "channel zero rotated": PAGE_K, "read basis channel 6432": READ_C,
    "read basis channel 6432 ridge 0.01": dict(READ_C, ridge=0.01),
    "read basis channel 6432 ridge 0.1": dict(READ_C, ridge=0.1), "read basis channel 6432 ridge 1": dict(READ_C, ridge=1),
}
BOTH = {
    "today 4:4": (T, T), "half searched 4:4": (HALF_K, HALF_K), "values dithered 4:4": (T, dict(T, dither=True)),
    "page 4:4": (PAGE_K, PAGE_V), "page dithered 4:4": (PAGE_K, PAGE_D), "read basis and own basis 4:4": (READ, OWN),
    "read basis and page dithered 4:4": (READ_C, PAGE_D), "today by layer and map 3|5+3:3|6": (
        [bits(T, 3), by_map(T, 5, 3)], [bits(T, 3), bits({}, 6)]),
    "page by layer and map 3|5+3:3|6": ([bits(PAGE_K, 3), by_map(PAGE_K, 5, 3)], [bits(PAGE_V, 3), bits(PAGE_V, 6)]),
    "page by layer and map 3|5+3:3|6 dithered": ([bits(PAGE_K, 3), by_map(PAGE_K, 5, 3)], [bits(PAGE_V, 3), bits(PAGE_D, 6)]),
    "page by layer and map 3|5+3:4|5 dithered": ([bits(PAGE_K, 3), by_map(PAGE_K, 5, 3)], [PAGE_D, bits(PAGE_D, 5)]),
    "page 4:4|6 dithered": (PAGE_K, [PAGE_D, bits(PAGE_D, 6)]), "page 4:6 dithered": (PAGE_K, bits(PAGE_D, 6)),
    "read basis and page dithered 4:4|6": (READ_C, [PAGE_D, bits(PAGE_D, 6)]),
    "read basis 4322|6543+4322 and page dithered 4|6": (
        [read_channel(4, 3, 2, 2), {"maps": (read_channel(6, 5, 4, 3), read_channel(4, 3, 2, 2))}], [PAGE_D, bits(PAGE_D, 6)]),
}
LOW = {
    "today 4:4": (T, T), "today 4:3": (T, bits(T, 3)), "today 3:3": (bits(T, 3), bits(T, 3)), "today 4:2": (T, bits(T, 2)),
    "half searched 4:2": (HALF_K, bits(HALF_K, 2)), "channel half searched 4:2": (PAGE_K, dict(HALF, bits=2, per="channel")),
    "page 4:3": (PAGE_K, bits(PAGE_V, 3)), "page 3:3": (bits(PAGE_K, 3), bits(PAGE_V, 3)), "page 4:2": (PAGE_K, bits(PAGE_V, 2)),
    "page 3:2": (bits(PAGE_K, 3), bits(PAGE_V, 2)), "page 2:2": (bits(PAGE_K, 2), bits(PAGE_V, 2)),
    "page by layer 2|4:2|4": ([bits(PAGE_K, 2), PAGE_K], [bits(PAGE_V, 2), PAGE_V]),
    "page by layer and map 3|4+3:2|3": ([bits(PAGE_K, 3), by_map(PAGE_K, 4, 3)], [bits(PAGE_V, 2), bits(PAGE_V, 3)]),
    "page by layer and map 2|4+3:2|4": ([bits(PAGE_K, 2), by_map(PAGE_K, 4, 3)], [bits(PAGE_V, 2), PAGE_V]),
    "read basis 3222|5432+4322 and page 2|4": ([read_channel(3, 2, 2, 2), {"maps": (read_channel(5, 4, 3, 2), read_channel(4, 3, 2, 2))}],
                                               [bits(PAGE_V, 2), PAGE_V]),
}
GOAL = {"today 4:4": (T, T), "page by layer and map 3|5+3:4|6 dithered": (
    [bits(PAGE_K, 3), by_map(PAGE_K, 5, 3)], [PAGE_D, bits(PAGE_D, 6)])}
LOWER = {
    "today 4:4": (T, T), "page by layer 2|4:2|4 dithered": ([bits(PAGE_K, 2), PAGE_K], [bits(PAGE_V, 2), PAGE_D]),
    "read basis 3222|5432+4322 and page dithered 2|4": (
        [read_channel(3, 2, 2, 2), {"maps": (read_channel(5, 4, 3, 2), read_channel(4, 3, 2, 2))}], [bits(PAGE_V, 2), PAGE_D]),
    "read basis 3222|5432+4322 and page dithered 3|4": (
        [read_channel(3, 2, 2, 2), {"maps": (read_channel(5, 4, 3, 2), read_channel(4, 3, 2, 2))}], [bits(PAGE_V, 3), PAGE_D]),
}
SEARCHED = {
    "page 4:4": (PAGE_K, PAGE_V), "page 4:4 searched": (dict(PAGE_K, search=True), dict(PAGE_V, search=True)),
    "page 3:3": (bits(PAGE_K, 3), bits(PAGE_V, 3)),
    "page 3:3 searched": (bits(dict(PAGE_K, search=True), 3), bits(dict(PAGE_V, search=True), 3)),
    "page 3:3 values searched": (bits(PAGE_K, 3), bits(dict(PAGE_V, search=True), 3)),
    "page 2:2": (bits(PAGE_K, 2), bits(PAGE_V, 2)),
    "page 2:2 searched": (bits(dict(PAGE_K, search=True), 2), bits(dict(PAGE_V, search=True), 2)),
    "page 2:2 values searched": (bits(PAGE_K, 2), bits(dict(PAGE_V, search=True), 2)),
}
CAUSES = {
    "today 4:4": (T, T), "keys": (T, None), "keys of map 1": (FIRST, None), "keys of map 2": (SECOND, None), "values": (None, T),
    "exact keys of map 1": (SECOND, T), "exact keys of map 2": (FIRST, T), "keys of layer 0": ([T, None], None),
    "keys of layer 1": ([None, T], None), "values of layer 0": (None, [T, None]), "values of layer 1": (None, [None, T]),
    "values less their error's mean": (None, "centred"), "values of layer 1, gain as without errors": (None, [None, T], "gain"),
    "values of layer 1, errors of the plain model's size": (None, [None, T], "size"), "values, own token as codes": (None, T, "own"),
    "values, recent tokens as codes": (None, T, "recent"), "noise of 5 % in layer 1": (None, None, "noise"),
}
SETS = {"causes": CAUSES, "keys": {k: (v, None) for k, v in KEYS.items()}, "values": {k: (None, v) for k, v in VALUES.items()},
        "more keys": {k: (v, None) for k, v in MORE_KEYS.items()}, "more values": {k: (None, v) for k, v in MORE_VALUES.items()},
        "ridge": {k: (v, None) for k, v in RIDGE.items()}, "both": BOTH, "goal": GOAL, "low": LOW, "lower": LOWER,
        "searched": SEARCHED}
DIFF_ONLY = {"keys of map 1", "keys of map 2", "exact keys of map 1", "exact keys of map 2", "values of layer 1, gain as without errors",
             "values of layer 1, errors of the plain model's size", "map 2 from map 1", "one scale for both maps", "maps 5 and 3",
             "maps 5 and 3 channel zero rotated"}


# ---- Measuring

class Bench:
    def __init__(self, name, count, calibrate="text"):
        self.m = Model(name)
        self.windows, calib = texts(self.m, count)
        self.items = needles(self.m) if self.m.long else None
        if calibrate == "needles":
            calib = self.items[0][-8:]
        elif calibrate == "random":
            calib = torch.randint(1, len(self.m.head), calib.shape, generator=torch.Generator().manual_seed(0))
        self.st = statistics(self.m, calib)
        self.want = in_parts(lambda x: forward(self.m, x), self.windows)
        self.curves = {}

    def score(self, code, read=None):
        m, w = self.m, self.windows
        got = in_parts(lambda x: forward(m, x, code, read=read), w)
        kld = (self.want.exp() * (self.want - got)).sum(-1).mean(1).numpy()
        ids = w[:, w.shape[1] // 2 + 1:, None]
        return kld, (self.want - got).gather(-1, ids)[..., 0].mean(1).numpy()

    def today(self, keys, values, b):
        """KLD of today's code at b bits held on the sides that are coded."""
        key = (keys is not None, values is not None)
        if key not in self.curves:
            points = []
            for width in (2, 3, 4, 5, 6, 8):
                how = bits(T, width) if width <= 5 else {"bits": width}
                code = code_of(self.m, self.st, how if key[0] else None, how if key[1] else None)
                points.append((held(self.m, how), math.log(self.score(code)[0].mean())))
            self.curves[key] = points
        x, y = zip(*self.curves[key])
        return math.exp(np.interp(b, x, y))


def less_mean(m, v):
    """Values whose errors at 4 bits have no mean over a page."""
    e = pages(coded(m, v, T, None) - v)
    w = coded_tokens(e.shape[2])
    e = e - (e * w).sum(3, keepdim=True) / w.sum(1, keepdim=True)
    return v + e.flatten(2, 3)[:, :, :v.shape[2]]


def measure(name, sets, count, out, errors, causes_out, calibrate="text"):
    b = Bench(name, count, calibrate)
    if causes_out:
        errors[name] = causes(b.m, b.windows, causes_out)
    for group in sets:
        first = None
        for label, variant in SETS[group].items():
            keys, values, special = (*variant, None)[:3]
            plain = errors.get(name.replace("diff", ""))
            if label in DIFF_ONLY and not b.m.diff or special == "size" and not plain:
                continue
            code = code_of(b.m, b.st, keys, values if values != "centred" else None)
            if values == "centred":
                code = lambda layer, k0, k, v: (k, less_mean(b.m, v))
            kld, dnll = b.score(code, reader(b.m, special, errors.get(name), plain) if special else None)
            first = kld if first is None else first
            d = kld - first
            z = d.mean() / (d.std(ddof=1) / len(d) ** 0.5) if d.any() else 0
            hk, hv = held(b.m, keys), held(b.m, values if values != "centred" else T)
            sides = [h for h, on in ((hk, keys), (hv, values)) if on is not None]
            equal = b.today(keys, values, sum(sides) / len(sides)) if group != "causes" else math.nan
            ratio, equal = kld.mean() / first.mean(), kld.mean() / equal
            got = f"{recall(b.m, b.items, code):.4f}" if b.items and group in ("low", "lower") else ""
            se = lambda x: x.std(ddof=1) / len(x) ** 0.5
            shown = group if calibrate == "text" else f"{group} {calibrate}"
            out.write(f"{shown},{label.replace(',', ' +')},{name},{hk:.3f},{hv:.3f},{kld.mean():.4e},{se(kld):.1e},{ratio:.4f},{z:.1f},"
                      f"{'' if math.isnan(equal) else f'{equal:.4f}'},{dnll.mean():.3e},{se(dnll):.1e},{got}\n")
            out.flush()


def join(files, out):
    """Writes the lines of files that are no means, then means over models."""
    rows = []
    for f in files:
        for line in list(open(f))[1:]:
            part = line.split(",")
            if not part[2].startswith("mean of "):
                out.write(line)
                rows.append((part[0], part[1], part[2], float(part[7]), float(part[9] or "nan")))
    for group, label in dict.fromkeys(r[:2] for r in rows):
        for kind in ("llama", "diffllama"):
            some = [r[3:] for r in rows if r[:2] == (group, label) and r[2].startswith(kind)]
            text = []
            for x in zip(*some):
                x = [math.log(r) for r in x if not math.isnan(r)]
                error = np.std(x, ddof=1) / len(x) ** 0.5 if len(x) > 1 else math.nan
                text.append(f"{math.exp(np.mean(x)):.3f},ln {np.mean(x):+.3f} +- {error:.3f}" if x else ",")
            if some:
                out.write(f"{group},{label},mean of {kind},,,,,{text[0]},{text[1]},,\n")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out")
    ap.add_argument("--causes")
    ap.add_argument("--sets", nargs="+", default=list(SETS))
    ap.add_argument("--windows", type=int, default=12)
    ap.add_argument("--models", nargs="+", default=MODELS)
    ap.add_argument("--calibrate", choices=("text", "needles", "random"), default="text", help="what statistics come from: the end of "
                    "the text, contexts of needles, ids drawn at random")
    ap.add_argument("--join", nargs="+", help="measure nothing: these files of other runs as one, with means over models")
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    errors = {}
    with open(args.out, "w") as out, open(args.causes or os.devnull, "w") as other:
        out.write("set,variant,model,k_bits_held,v_bits_held,kld_nats,kld_nats_stderr,ratio,paired_z,ratio_at_equal_bits,dnll_nats,"
                  "dnll_nats_stderr,recall\n")
        if args.join:
            return join(args.join, out)
        other.write("model,layer,side,quantity,value\n")
        for name in args.models:
            measure(name, args.sets, args.windows, out, errors, args.causes and other, args.calibrate)


if __name__ == "__main__":
    main()
