#!/usr/bin/env python3
"""What else could be done to weights before or while they are rounded: a study beside dq, in PyTorch.

    python study.py OUT.csv [--sets gptq fold align lambda] [--bits 3] [--models llama diffllama llama-0 ...]

Eight embedded models (calib/pair and three seeds of calib/longpair), projections at --bits with one f16 scale for 128 columns, scales
searched over the full range with either sign. Pair: the first 40 windows of 192 tokens of text.txt calibrate, the other 60 are
scored; long pair: the first 12 windows of 1024 tokens calibrate, windows 24 to 47 are scored. A window's score is the mean KLD of
its second half against the model before rounding. A line a model and variant: KLD, its standard error over windows, the ratio to
the set's first variant, and the paired difference in units of its standard error. At the end, by kind of model, the geometric
mean of the ratios with its standard error over models.

Sets; each is measured against its first entry:
gptq    rounding by LDLQ in the order of descending diagonals, 1 % damping, sequential with rounded inputs; then: no order; scales
        searched with weights diag(H); two sweeps of coordinate descent after it; scales fitted to the codes twice, rounding anew
fold    gptq after scaling input channels by mean |x|^a into norms and `up` (AWQ), or rotating the residual stream, values, or both
        by Hadamard matrices with random signs (QuaRot, offline parts); the same with `align` instead of gptq
align   gptq; of weights corrected for inputs that differ from those before rounding (GPTAQ, Qronos); half of the correction;
        o and down also for what the residual stream lacks; that and fitted scales, which is `dq quantize --method align`
        but for the grids that it tries in addition and for v_proj
lambda  align; v_proj head by head by the second moment of what its output head really reads, z_t = g_t sum_s (A1 - lambda A2)_ts h_s,
        g_t the gain of the head norm, in place of h_s; by one such moment for all heads, their mean; by a sample of that, one head
        for each 64 queries, the next 64 taking the next one, which is what `dq quantize --method align` does; head by head
        without g; q and k head by head with tokens weighed by what an error in a logit does to the head's normalized output
        through softmax, A1 - lambda A2 and values
"""
import argparse
import copy
import json
import math
import os

import numpy as np
import scipy.linalg
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
GROUP = 128
MODELS = ["llama", "diffllama"] + [f"{kind}-{s}" for kind in ("llama", "diffllama") for s in range(3)]


class Model:
    """A Llama or DiffLlama without grouped KV heads, f32, in steps."""

    def __init__(self, path):
        c = json.load(open(os.path.join(path, "config.json")))
        self.W = {k: v.float() for k, v in load_file(os.path.join(path, "model.safetensors")).items()}
        self.layers, self.heads, self.d = c["num_hidden_layers"], c["num_attention_heads"], c["head_dim"]
        self.dim, self.eps = c["hidden_size"], c["rms_norm_eps"]
        self.diff = c["model_type"] == "diffllama"
        self.theta = c["rope_parameters"]["rope_theta"]
        self.head = self.W["model.embed_tokens.weight"]
        self.tok = Tokenizer.from_file(os.path.join(path, "tokenizer.json"))

    def name(self, layer, role):
        part = "self_attn" if role in "qkvo" else "mlp"
        return f"model.layers.{layer}.{part}.{role}_proj.weight"

    def gains(self, layer):
        p = f"model.layers.{layer}."
        return p + "input_layernorm.weight", p + "post_attention_layernorm.weight"

    def lam(self, layer):
        g = {n: self.W[f"model.layers.{layer}.self_attn.lambda_{n}"].double() for n in ("q1", "k1", "q2", "k2")}
        init = 0.8 - 0.6 * math.exp(-0.3 * layer)
        return float(torch.exp((g["q1"] * g["k1"]).sum()) - torch.exp((g["q2"] * g["k2"]).sum()) + init), init

    def angles(self, n):
        f = torch.outer(torch.arange(n).float(), 1 / self.theta ** (torch.arange(0, self.d, 2).float() / self.d))
        e = torch.cat([f, f], -1)
        return e.cos(), e.sin()

    def rotate(self, x, sign=1):
        cos, sin = self.angles(x.shape[-2])
        h = self.d // 2
        return x * cos + sign * torch.cat([-x[..., h:], x[..., :h]], -1) * sin

    def norm(self, x, gain):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * gain

    def split(self, x):
        return x.view(*x.shape[:2], self.heads, self.d).transpose(1, 2)

    def values(self, v):
        v = self.split(v)
        return torch.cat(v.chunk(2, 1), -1) if self.diff else v

    def maps(self, layer, q, k):
        """A of every query head, D = A1 - lambda A2 of every output head, and q and k after RoPE."""
        q, k = self.rotate(self.split(q)), self.rotate(self.split(k))
        s = q @ k.transpose(2, 3) / math.sqrt(self.d)
        n = s.shape[-1]
        a = torch.softmax(s.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -math.inf), -1)
        d = a[:, :self.heads // 2] - self.lam(layer)[0] * a[:, self.heads // 2:] if self.diff else a
        return a, d, q, k

    def gain_of(self, o):
        """Of the head norm; None: there is none."""
        return torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + self.eps) if self.diff else None

    def attend(self, layer, q, k, v):
        o = self.maps(layer, q, k)[1] @ self.values(v)
        if self.diff:
            o = o * self.gain_of(o) * (1 - self.lam(layer)[1])
        return o.transpose(1, 2).reshape(*q.shape[:2], -1)

    def product(self, x, layer, role, weights):
        return x @ weights[self.name(layer, role)].T

    def qkv(self, h, layer, weights):
        return tuple(self.product(h, layer, r, weights) for r in "qkv")

    def attention(self, h, layer, weights):
        return torch.cat([self.attend(layer, *self.qkv(h[i:i + 4], layer, weights)) for i in range(0, len(h), 4)])

    def inner(self, h, layer, weights):
        return torch.nn.functional.silu(self.product(h, layer, "gate", weights)) * self.product(h, layer, "up", weights)

    def embed(self, ids):
        return self.W["model.embed_tokens.weight"][ids]

    def log_probs(self, windows, weights=None, step=4):
        """Of the second half of windows, [windows, ids, vocabulary], f64."""
        weights, out = weights or self.W, []
        for i in range(0, len(windows), step):
            x = self.embed(windows[i:i + step])
            for layer in range(self.layers):
                g1, g2 = self.gains(layer)
                x = x + self.product(self.attention(self.norm(x, self.W[g1]), layer, weights), layer, "o", weights)
                x = x + self.product(self.inner(self.norm(x, self.W[g2]), layer, weights), layer, "down", weights)
            n = windows.shape[1]
            y = self.norm(x, self.W["model.norm.weight"])[:, n // 2:n - 1] @ self.head.T
            out.append(torch.log_softmax(y.double(), -1))
        return torch.cat(out)


# ---- Rounding

def f16(x):
    return x.half().float()


def to_codes(w, scale, bits):
    s = torch.where(scale == 0, torch.ones_like(scale), scale)
    return (w / s).round().clamp(-2 ** (bits - 1), 2 ** (bits - 1) - 1)


def search_scale(w, bits, weight=None, steps=32):
    """The scale of each row of w [rows, columns of a group] with the least (weighted) squared error."""
    top, q = w.abs().max(1).values, 2 ** (bits - 1) - 1
    peak = w.gather(1, w.abs().argmax(1)[:, None])[:, 0]
    some = [top / q, -peak / 2 ** (bits - 1), top / 2 ** (bits - 1), -top / 2 ** (bits - 1)]
    for i in range(steps):
        some += [sign * top / q * (1 - 0.8 * i / (steps - 1)) for sign in (1, -1)]
    best = least = None
    for s in map(f16, some):
        e = (w - to_codes(w, s[:, None], bits) * s[:, None]) ** 2
        e = (e if weight is None else e * weight).sum(1)
        if best is None:
            best, least = s.clone(), e
        better = e < least
        best, least = torch.where(better, s, best), torch.where(better, e, least)
    return best


def scales_of(w, bits, weight=None):
    out = torch.empty_like(w)
    for c in range(0, w.shape[1], GROUP):
        part = None if weight is None else weight[c:c + GROUP]
        out[:, c:c + GROUP] = search_scale(w[:, c:c + GROUP], bits, part)[:, None]
    return out


def damped(h, share=0.01):
    return h + torch.eye(len(h)).double() * share * h.diag().mean()


def factor(h, order=True):
    """Order p and strictly upper U with (H + damping)[p][:, p] = (U + I) D (U + I)^T."""
    h = damped(h)
    p = torch.argsort(h.diag(), descending=True) if order else torch.arange(len(h))
    r = torch.linalg.cholesky(h[p][:, p].flip(0, 1)).flip(0, 1)
    return p, (r / r.diag()[None, :] - torch.eye(len(h)).double()).float()


def ldlq(w, bits, scales, p, u, block=64):
    w, s, n = w[:, p], scales[:, p], len(p)
    out, e = torch.empty_like(w), torch.zeros_like(w)
    for c0 in range(0, n, block):
        c1 = min(c0 + block, n)
        want = w[:, c0:c1] + e[:, :c0] @ u[:c0, c0:c1]
        for k in range(c0, c1):
            t = want[:, k - c0] + e[:, c0:k] @ u[c0:k, k]
            out[:, k] = to_codes(t, s[:, k], bits) * s[:, k]
            e[:, k] = w[:, k] - out[:, k]
    return out[:, torch.argsort(p)]


def loss(w, got, h):
    d = (w - got).double()
    return ((d @ h) * d).sum(1)


def refit(w, got, scales, h):
    """The scales that miss least under H for the codes of got."""
    n = w.shape[1]
    groups = [slice(c, min(c + GROUP, n)) for c in range(0, n, GROUP)]
    q = (got / torch.where(scales == 0, torch.ones_like(scales), scales)).round().double()
    wh, qh = w.double() @ h, [q[:, g] @ h[g] for g in groups]
    a = torch.stack([torch.stack([(qh[i][:, g] * q[:, g]).sum(1) for g in groups], 1) for i in range(len(groups))], 1)
    y = torch.stack([(wh[:, g] * q[:, g]).sum(1) for g in groups], 1)
    a = a + 1e-12 * torch.eye(len(groups)) * a.diagonal(dim1=1, dim2=2).amax(1)[:, None, None] + 1e-30 * torch.eye(len(groups))
    s = f16(torch.linalg.solve(a, y[..., None])[..., 0].float())
    out = scales.clone()
    for i, g in enumerate(groups):
        ratio = s[:, i] / scales[:, g.start]
        ok = torch.isfinite(ratio) & (ratio >= 0.5) & (ratio <= 2)
        out[:, g] = torch.where(ok, s[:, i], scales[:, g.start])[:, None]
    return out


def descend(w, got, scales, h, bits, order, sweeps):
    """Coordinate descent on codes: each column anew, the others fixed."""
    h = h.float()
    x = got.clone()
    gradient = (x - w) @ h
    for k in [k for _ in range(sweeps) for k in order]:
        new = to_codes(x[:, k] - gradient[:, k] / h[k, k], scales[:, k], bits) * scales[:, k]
        gradient += (new - x[:, k])[:, None] * h[k][None]
        x[:, k] = new
    return x


def quantized(w, h, bits, how):
    scales = scales_of(w, bits, h.diag().float() if how.get("weighted") else None)
    p, u = factor(h, how.get("order", True))
    got, hd = ldlq(w, bits, scales, p, u), damped(h)
    best = loss(w, got, hd)
    for _ in range(how.get("refit", 0)):
        other = refit(w, got, scales, hd)
        new = ldlq(w, bits, other, p, u)
        least = loss(w, new, hd)
        better = (least < best)[:, None]
        best = torch.minimum(best, least)
        got, scales = torch.where(better, new, got), torch.where(better, other, scales)
    if how.get("descend"):
        got = descend(w, got, scales, hd, bits, p.tolist(), how["descend"])
    return got


# ---- Whole models

def moment(x, y=None):
    x = x.reshape(-1, x.shape[-1]).double()
    y = x if y is None else y.reshape(-1, y.shape[-1]).double()
    return x.T @ y / len(x)


def corrected(w, h, c, share):
    return w if not share else (w.double() + share * torch.linalg.solve(damped(h), c.T).T).float()


def read_by_heads(m, layer, hq, weights, hf, gain):
    """Per output head: H of what it reads, and the cross moment with what it read before rounding."""
    hs, cs = 0, 0
    for i in range(0, len(hq), 4):
        z = []
        for h, w in ((hq, weights), (hf, m.W)):
            q, k, v = m.qkv(h[i:i + 4], layer, w)
            d = m.maps(layer, q, k)[1]
            one = d @ h[i:i + 4][:, None]
            g = m.gain_of(d @ m.values(v))
            z.append((one * g if gain and g is not None else one).transpose(0, 1).flatten(1, 2).double())
        hs = hs + z[0].transpose(1, 2) @ z[0]
        cs = cs + z[1].transpose(1, 2) @ z[0]
    n = hq.shape[0] * hq.shape[1]
    return hs / n, cs / n


def read_by_blocks(m, layer, hq, weights, hf, block=64):
    """As read_by_heads, of one head for each `block` queries: a sample of the mean over heads."""
    h, c = 0, 0
    for i in range(0, len(hq), 4):
        z = []
        for x, w in ((hq[i:i + 4], weights), (hf[i:i + 4], m.W)):
            q, k, v = m.qkv(x, layer, w)
            d = m.maps(layer, q, k)[1]
            g = m.gain_of(d @ m.values(v))
            window, t = torch.arange(len(x))[:, None], torch.arange(x.shape[1])
            head = (i + window + t // block) % d.shape[1]
            one = d[window, head, t] @ x
            z.append((one if g is None else one * g[window, head, t]).flatten(0, 1).double())
        h, c = h + z[0].T @ z[0], c + z[1].T @ z[0]
    n = hq.shape[0] * hq.shape[1]
    return h / n, c / n


def logit_moments(m, layer, h):
    """Per query head: inputs weighed by what an error in q, and in k, does to the head's output (squared, to first order)."""
    hq = [0] * m.heads
    hk = [0] * m.heads
    for i in range(0, len(h), 2):
        x = h[i:i + 2]
        q, k, v = m.qkv(x, layer, m.W)
        a, d, q, k = m.maps(layer, q, k)
        v = m.values(v)
        g = m.gain_of(d @ v)
        for j in range(m.heads):
            out = j % (m.heads // 2) if m.diff else j
            part = abs(m.lam(layer)[0]) if m.diff and j >= m.heads // 2 else 1.0
            gg = part / m.d ** 0.5 * (g[:, out] if g is not None else torch.ones(*x.shape[:2], 1))
            aj, vj = a[:, j], v[:, out]
            o = aj @ vj
            vk = torch.einsum("bsv,bsd->bsvd", vj, k[:, j]).flatten(2)
            jac = (aj @ vk).view(*x.shape[:2], vj.shape[-1], m.d) - torch.einsum("btv,btd->btvd", o, aj @ k[:, j])
            c = (jac * gg[..., None]).pow(2).sum((-1, -2))
            hq[j] = hq[j] + torch.einsum("bt,bti,btj->ij", c, x, x).double()
            far = (vj.pow(2).sum(-1)[:, None] + o.pow(2).sum(-1)[..., None] - 2 * o @ vj.transpose(1, 2)).clamp_min(0)
            c = torch.einsum("bts,bt->bs", (aj * gg).pow(2) * far, q[:, j].pow(2).sum(-1))
            hk[j] = hk[j] + torch.einsum("bt,bti,btj->ij", c, x, x).double()
    return hq, hk


def rounded_model(m, bits, calib, how):
    """The weights of m, projections rounded layer by layer."""
    weights = dict(m.W)
    xq = m.embed(calib)
    xf = xq.clone()
    share = how.get("align", 0)

    def round_all(layer, roles, inq, inf, lacks=None):
        h, c = moment(inq), moment(inf, inq) - moment(inq)
        for r in roles:
            w = m.W[m.name(layer, r)]
            cw = w.double() @ c
            if lacks is not None and how.get("residual"):
                cw = cw + moment(lacks, inq)
            weights[m.name(layer, r)] = quantized(corrected(w, h, cw, share), h, bits, how)

    def round_heads(layer, role, hs, ws):
        parts = [quantized(w, h, bits, how) for w, h in zip(ws, hs)]
        weights[m.name(layer, role)] = torch.cat(parts)

    for layer in range(m.layers):
        g1, g2 = (m.W[g] for g in m.gains(layer))
        hq, hf = m.norm(xq, g1), m.norm(xf, g1)
        if how.get("logits"):
            h, c = moment(hq), moment(hf, hq) - moment(hq)
            for role, own in zip("qk", logit_moments(m, layer, hf)):
                w = m.W[m.name(layer, role)]
                w = corrected(w, h, w.double() @ c, share)
                mixed = [0.5 * o / o.diag().mean() + 0.5 * h / h.diag().mean() for o in own]
                round_heads(layer, role, mixed, w.split(m.d))
        else:
            round_all(layer, "qk", hq, hf)
        if how.get("maps") in ("mean", "blocks"):
            if how["maps"] == "blocks":
                h, c = read_by_blocks(m, layer, hq, weights, hf)
            else:
                h, c = (x.mean(0) for x in read_by_heads(m, layer, hq, weights, hf, True))
            w = m.W[m.name(layer, "v")]
            weights[m.name(layer, "v")] = quantized(corrected(w, h, w.double() @ (c - h), share), h, bits, how)
        elif how.get("maps"):
            hs, cs = read_by_heads(m, layer, hq, weights, hf, how["maps"] == "normed")
            own = [j % len(hs) for j in range(m.heads)]
            ws = m.W[m.name(layer, "v")].split(m.d)
            ws = [corrected(w, hs[j], w.double() @ (cs[j] - hs[j]), share) for w, j in zip(ws, own)]
            round_heads(layer, "v", [hs[j] for j in own], ws)
        else:
            round_all(layer, "v", hq, hf)
        yq, yf = m.attention(hq, layer, weights), m.attention(hf, layer, m.W)
        round_all(layer, "o", yq, yf, xf - xq)
        xq, xf = xq + m.product(yq, layer, "o", weights), xf + m.product(yf, layer, "o", m.W)
        hq, hf = m.norm(xq, g2), m.norm(xf, g2)
        round_all(layer, ("gate", "up"), hq, hf)
        aq, af = m.inner(hq, layer, weights), m.inner(hf, layer, m.W)
        round_all(layer, ("down",), aq, af, xf - xq)
        xq, xf = xq + m.product(aq, layer, "down", weights), xf + m.product(af, layer, "down", m.W)
    return weights


# ---- The same function in other weights

def hadamard(n):
    return torch.tensor(scipy.linalg.hadamard(n)).double() / n ** 0.5


def turned(m, stream, values):
    """Residual stream and values rotated; norm gains go into the weights after them."""
    t = copy.copy(m)
    t.W = dict(m.W)
    if stream:
        sign = (torch.randint(0, 2, (m.dim,), generator=torch.Generator().manual_seed(0)) * 2 - 1).double()
        r = sign[:, None] * hadamard(m.dim)
        for layer in range(m.layers):
            for gain, roles in zip(m.gains(layer), ("qkv", ("gate", "up"))):
                for role in roles:
                    k = m.name(layer, role)
                    t.W[k] = ((m.W[k].double() * m.W[gain].double()) @ r).float()
                t.W[gain] = torch.ones(m.dim)
            for role in ("o", "down"):
                k = m.name(layer, role)
                t.W[k] = (r.T @ m.W[k].double()).float()
        t.head = ((m.head.double() * m.W["model.norm.weight"].double()) @ r).float()
        t.W["model.embed_tokens.weight"] = (m.W["model.embed_tokens.weight"].double() @ r).float()
        t.W["model.norm.weight"] = torch.ones(m.dim)
    for layer in range(m.layers if values else 0):
        n = 2 * m.d if m.diff else m.d
        r, half = hadamard(n), m.heads // 2
        v, o = t.W[m.name(layer, "v")].double().clone(), t.W[m.name(layer, "o")].double().clone()
        for j in range(o.shape[1] // n):
            rows = torch.arange(j * m.d, (j + 1) * m.d)
            rows = torch.cat([rows, rows + half * m.d]) if m.diff else rows
            v[rows] = r.T @ v[rows]
            o[:, j * n:(j + 1) * n] = o[:, j * n:(j + 1) * n] @ r
        t.W[m.name(layer, "v")], t.W[m.name(layer, "o")] = v.float(), o.float()
    return t


def folded(m, calib, power):
    """Input channels times mean |x|^power: the inverse in norms, and in `up` for down."""
    t = copy.copy(m)
    t.W = dict(m.W)
    x = m.embed(calib[:6])

    def fold(layer, act, roles):
        s = act.abs().flatten(0, -2).mean(0).double().clamp_min(1e-8) ** power
        s = s / s.log().mean().exp()
        for role in roles:
            k = m.name(layer, role)
            t.W[k] = (t.W[k].double() * s).float()
        return s

    for layer in range(m.layers):
        g1, g2 = m.gains(layer)
        h = m.norm(x, m.W[g1])
        x = x + m.product(m.attention(h, layer, m.W), layer, "o", m.W)
        t.W[g1] = (m.W[g1].double() / fold(layer, h, "qkv")).float()
        h = m.norm(x, m.W[g2])
        a = m.inner(h, layer, m.W)
        x = x + m.product(a, layer, "down", m.W)
        t.W[g2] = (m.W[g2].double() / fold(layer, h, ("gate", "up"))).float()
        up = m.name(layer, "up")
        t.W[up] = (t.W[up].double() / fold(layer, a, ("down",))[:, None]).float()
    return t


ALIGN = {"align": 1, "residual": True, "refit": 2}
SETS = {
    "gptq": {"gptq": {}, "no order": {"order": False}, "weighted scales": {"weighted": True}, "descent": {"descend": 2},
             "fitted scales": {"refit": 2}},
    "fold": {f"{how}{form and ', ' + form}": dict(ALIGN if how == "align" else {}, form=form) for how in ("gptq", "align")
             for form in ("", "awq 0.25", "awq 0.5", "turned stream", "turned values", "both turned")},
    "align": {"gptq": {}, "inputs": {"align": 1}, "half of it": {"align": 0.5}, "and stream": {"align": 1, "residual": True},
              "and scales": ALIGN},
    "lambda": {"align": ALIGN, "values by maps": dict(ALIGN, maps="normed"), "values by their mean": dict(ALIGN, maps="mean"),
               "values by blocks": dict(ALIGN, maps="blocks"), "without norm": dict(ALIGN, maps="plain"),
               "logits": dict(ALIGN, logits=True), "both": dict(ALIGN, maps="normed", logits=True)},
}


def formed(m, calib, form):
    if form.startswith("awq"):
        return folded(m, calib, float(form[4:]))
    return turned(m, form in ("turned stream", "both turned"), form in ("turned values", "both turned")) if form else m


def texts(name, tok):
    """Calibration and scored windows; the first id of each is BOS."""
    n, cut, first, last = (1024, 12, 24, 48) if "-" in name else (192, 40, 40, 100)
    folder = "longpair" if "-" in name else "pair"
    ids = tok.encode(open(os.path.join(HERE, "..", "..", "calib", folder, "text.txt")).read()).ids
    windows = torch.tensor([[0] + ids[i + 1:i + n] for i in range(0, len(ids) - n + 1, n)])
    return windows[:cut], windows[first:last]


def measure(name, sets, bits, out):
    m = Model(os.path.join(HERE, "..", "..", "calib", "longpair" if "-" in name else "pair", name))
    calib, scored = texts(name, m.tok)
    want = m.log_probs(scored)
    ratios = []
    for group in sets:
        base = {}
        for label, how in SETS[group].items():
            form = formed(m, calib, how.get("form", ""))
            got = form.log_probs(scored, rounded_model(form, bits, calib, how))
            kld = (want.exp() * (want - got)).sum(-1).mean(1).numpy()
            kind = label.split(",")[0] if group == "fold" else ""
            first = base.setdefault(kind, kld)
            d = kld - first
            error = d.std(ddof=1) / len(d) ** 0.5
            z = d.mean() / error if error else 0
            ratios.append((group, label, name, kld.mean() / first.mean()))
            out.write(f"{group},{label.replace(',', ' +')},{name},{kld.mean():.6f},{kld.std(ddof=1) / len(kld) ** 0.5:.6f},"
                      f"{ratios[-1][3]:.4f},{z:.1f}\n")
            out.flush()
    return ratios


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out")
    ap.add_argument("--sets", nargs="+", default=list(SETS))
    ap.add_argument("--bits", type=int, default=3)
    ap.add_argument("--models", nargs="+", default=MODELS)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    with open(args.out, "w") as out:
        out.write("set,variant,model,kld_nats,kld_nats_stderr,ratio,paired_z\n")
        ratios = [r for name in args.models for r in measure(name, args.sets, args.bits, out)]
        for group in args.sets:
            for label in SETS[group]:
                for kind in ("llama", "diffllama"):
                    x = [math.log(r) for g, lab, name, r in ratios if (g, lab) == (group, label) and name.startswith(kind)]
                    if x:
                        error = np.std(x, ddof=1) / len(x) ** 0.5 if len(x) > 1 else math.nan
                        out.write(f"{group},{label.replace(',', ' +')},mean of {kind},,,{math.exp(np.mean(x)):.3f},"
                                  f"ln {np.mean(x):+.3f} +- {error:.3f}\n")


if __name__ == "__main__":
    main()
