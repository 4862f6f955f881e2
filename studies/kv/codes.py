#!/usr/bin/env python3
"""Codes for the pages of a KV cache, for study.py: each function gives what would be read back.

A code is a dictionary, defaults first:
bits     4; or widths: bits of equal blocks of channels under one scale
grid     whole: multiples of the scale, 2^b - 1 levels; half: odd multiples of half of it, 2^b levels; normal: quantiles of a normal
search   False: scale = absmax / largest level; True: the one of 16 down to 0.3 of that with the least squared error
zero     False; True: 2^b levels from least to largest; two numbers of f16
dither   False; True: a fixed sequence of fractions of a step, one a token, is added before rounding and taken off when read
per      token: a scale for `group` (32) channels of a token, for all of them above 5 bits or with widths; channel: one for a channel
         and page of 64 tokens
basis    None; hadamard; own: eigenvectors of calibration text; read: the same measured by the moment of queries, so that an error of
         the code is an error of logits; `ridge` (1e-4) times the mean diagonal is added to that moment. What is coded is
         (x - center) M, what is read back y M^-1 + center
center   None; page, context (all pages so far), frozen (calibration text), middle (of least and largest of a channel and page)
unit     head; pair: the two heads of a differential pair as one vector
feedback False; True: a token is coded with the error of the one before it in the page
keys     maps: two codes, of the first and second maps; rope before: coded before RoPE; second: the keys of second maps as what a
         linear map of decoded first ones leaves
None is exact; a list has a code a layer. The rule of `dq eval` at 4 bits and fewer is {basis: hadamard}, above {}.
"""
import math

import torch

SINK, PAGE = 4, 64


def f16(x):
    return x.half().float()


def hadamard(d):
    h = torch.ones(1, 1)
    while len(h) < d:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return h / math.sqrt(d)


def pages(x):
    n = x.shape[2]
    x = torch.nn.functional.pad(x, (0, 0, 0, -n % PAGE))
    return x.unflatten(2, (-1, PAGE))


def coded_tokens(count):
    w = torch.ones(count, PAGE, 1)
    w[0, :SINK] = 0
    return w


def center_of(x, how, calib):
    if how == "frozen":
        return f16(calib.mean(1, keepdim=True).float())
    p = pages(x)
    w = coded_tokens(p.shape[2])
    if how == "middle":
        off = torch.where(w > 0, 0.0, math.inf)
        c = ((p - off).amax(3, keepdim=True) + (p + off).amin(3, keepdim=True)) / 2
    else:
        total, count = (p * w).sum(3, keepdim=True), w.sum(1, keepdim=True)
        c = total.cumsum(2) / count.cumsum(0) if how == "context" else total / count
    return f16(c).expand_as(p).flatten(2, 3)[:, :, :x.shape[2]]


NORMAL = torch.tensor([-1.0, -0.69619, -0.52507, -0.39492, -0.28444, -0.18477, -0.09105, 0.0,
                       0.07958, 0.16093, 0.24611, 0.33792, 0.44071, 0.56262, 0.72296, 1.0])


def offsets(x):
    """In steps, by place on the token axis: a sequence whose sums over any run of tokens stay near zero."""
    token = x.dim() - 2
    u = (torch.arange(x.shape[token]) * (5 ** 0.5 - 1) / 2 + 0.25) % 1 - 0.5
    return u[:, None]


def to_grid(x, s, bits, grid):
    top = 2 ** (bits - 1)
    if grid == "whole":
        return (x / s).round().clamp(1 - top, top - 1) * s
    if grid == "half":
        return ((x / s).floor().clamp(-top, top - 1) + 0.5) * s
    return NORMAL[torch.bucketize(x / s, (NORMAL[1:] + NORMAL[:-1]) / 2)] * s


LARGEST = {"whole": lambda b: 2 ** (b - 1) - 1, "half": lambda b: 2 ** (b - 1) - 0.5, "normal": lambda b: 1}


def positive(s):
    return torch.where(s == 0, torch.ones_like(s), s)


def with_zero(x, low, s, b):
    return ((x - low) / s).round().clamp(0, 2 ** b - 1) * s + low


def shrunk(how, largest):
    return [largest * i / 15 for i in range(16)] if how.get("search") else [0]


def closest(x, dims, candidates):
    best = least = None
    for y in candidates:
        e = (y - x).pow(2).sum(dims, keepdim=True)
        best, least = (y, e) if best is None else (torch.where(e < least, y, best), torch.minimum(e, least))
    return best


def dithered(x, b, dims, how):
    """x + s u rounded, s u taken off again: tokens that are alike get errors that are not; u costs half a step at either end."""
    u = offsets(x)
    if how.get("zero"):
        low, high = x.amin(dims, keepdim=True), x.amax(dims, keepdim=True)
        s = positive(f16((high - low) / (2 ** b - 2)))
        low = f16(low - s / 2)
        return ((x - low) / s + u).round().clamp(0, 2 ** b - 1) * s + low - u * s
    top = 2 ** (b - 1)
    s = positive(f16(x.abs().amax(dims, keepdim=True) / (top - 1)))
    return (((x / s + u).floor().clamp(-top, top - 1) + 0.5) - u) * s


def rounded(x, widths, dims, how):
    """x[..., channels]: as many blocks of channels as widths, one scale over dims."""
    if how.get("dither"):
        return dithered(x, widths[0], dims, how)
    if how.get("zero"):
        b, = widths
        low, high = x.amin(dims, keepdim=True), x.amax(dims, keepdim=True)
        some = [(low + cut * (high - low), high - cut * (high - low)) for cut in shrunk(how, 0.35)]
        return closest(x, dims, (with_zero(x, f16(least), positive(f16((most - least) / (2 ** b - 1))), b) for least, most in some))
    grid = how.get("grid", "whole")
    parts = x.chunk(len(widths), -1)
    peak = torch.stack([p.abs().amax(dims, keepdim=True) / LARGEST[grid](b) for p, b in zip(parts, widths)]).amax(0)
    scales = (positive(f16(peak * (1 - cut))) for cut in shrunk(how, 0.7))
    return closest(x, dims, (torch.cat([to_grid(p, s, b, grid) for p, b in zip(parts, widths)], -1) for s in scales))


def fed_back(x, widths, how):
    """Token after token of a page, each with the error of the one before."""
    p, out = pages(x), []
    carry = torch.zeros_like(p[:, :, :, 0])
    for i in range(PAGE):
        y = rounded(p[:, :, :, i] + carry, widths, -1, how)
        carry = p[:, :, :, i] + carry - y
        if i < SINK:
            carry[:, :, 0] = 0
        out.append(y)
    return torch.stack(out, 3).flatten(2, 3)[:, :, :x.shape[2]]


def basis_of(how, d, calib, queries):
    """M and its inverse: what is coded is (x - center) M."""
    name = how.get("basis")
    if name == "hadamard":
        h = hadamard(d)
        return h, h
    if name == "hadamard by head":  # of a pair
        h = hadamard(d // 2)
        return torch.block_diag(h, h), torch.block_diag(h, h)
    x = calib - calib.mean(1, keepdim=True) if how.get("center") else calib
    c = x.transpose(1, 2) @ x / x.shape[1]
    if name == "own":
        u = torch.linalg.eigh(c)[1].flip(-1).float()
        return u, u.transpose(1, 2)
    s = queries + how.get("ridge", 1e-4) * torch.eye(d).double() * queries.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
    s = torch.linalg.cholesky(s)
    u = s @ torch.linalg.eigh(s.transpose(1, 2) @ c @ s)[1].flip(-1)
    return u.float(), torch.linalg.inv(u).float()


def coded(m, x, how, calib, queries=None):
    """x [batch, heads, tokens, d], coded as `how` says and decoded."""
    paired = m.diff and how.get("unit") == "pair"
    if paired:
        x, calib = m.pairs(x), torch.cat(calib.chunk(2, 0), -1)
    d, widths = x.shape[-1], how.get("widths", (how.get("bits", 4),))
    center = center_of(x, how["center"], calib) if how.get("center") else 0
    matrix, inverse = basis_of(how, d, calib, queries) if how.get("basis") else (None, None)
    y = x - center
    y = y if matrix is None else y @ matrix
    if how.get("per") == "channel":
        p = pages(y).clone()
        p[:, :, 0, :SINK] = p[:, :, 0, SINK:SINK + 1]
        p = torch.cat([rounded(part, (b,), 3, how) for part, b in zip(p.chunk(len(widths), -1), widths)], -1)
        y = p.flatten(2, 3)[:, :, :x.shape[2]]
    elif len(widths) > 1:
        y = rounded(y, widths, -1, how)
    else:
        run = fed_back if how.get("feedback") else lambda z, w, h: rounded(z, w, -1, h)
        group = how.get("group", 32) if widths[0] <= 5 else d  # 5 bits: for interpolation only
        y = torch.cat([run(z, widths, how) for z in y.split(min(group, d), -1)], -1)
    y = (y if matrix is None else y @ inverse) + center
    return m.unpaired(y) if paired else y


def coded_keys(m, st, k0, k, how):
    if how is None:
        return k
    half = m.heads // 2
    if "maps" in how:
        if not m.diff:
            return coded_keys(m, st, k0, k, how["maps"][0])
        one, two = (coded_keys(m, st, k0, k, h) for h in how["maps"])
        return torch.cat([one[:, :half], two[:, half:]], 1)
    if how.get("rope") == "before":
        return m.rotate(coded(m, k0, how, st["k0"]))
    if how.get("second") and m.diff:  # map 2 as what a linear map of decoded map 1 leaves
        one = coded(m, k, {"basis": "hadamard"}, st["k"])[:, :half]
        a, b = st["k"].chunk(2, 0)
        fit = torch.linalg.solve(a.transpose(1, 2) @ a + 1e-6 * torch.eye(m.d).double(), a.transpose(1, 2) @ b)
        guess = one @ fit.float()
        left = dict(how, basis="hadamard")
        return torch.cat([one, guess + coded(m, k[:, half:] - guess, left, b - a @ fit)], 1)
    return coded(m, k, how, st["k"], st["queries"])


def of_layer(how, layer):
    return how[min(layer, len(how) - 1)] if isinstance(how, list) else how


def code_of(m, st, keys, values):
    def code(layer, k0, k, v):
        hv = of_layer(values, layer)
        return coded_keys(m, st[layer], k0, k, of_layer(keys, layer)), v if hv is None else coded(m, v, hv, st[layer]["v"])
    return code


def held(m, how):
    """Bits per element that codes, scales, zero points and means take."""
    if isinstance(how, list):
        return sum(held(m, of_layer(how, i)) for i in range(m.layers)) / m.layers
    if how is None:
        return 16
    if "maps" in how:
        return (held(m, how["maps"][0]) + held(m, how["maps"][1 if m.diff else 0])) / 2
    widths = how.get("widths", (how.get("bits", 4),))
    d = m.d * (2 if m.diff and how.get("unit") == "pair" else 1)
    run = PAGE if how.get("per") == "channel" else d if len(widths) > 1 or widths[0] > 5 else min(how.get("group", 32), d)
    mean = 16 / PAGE if how.get("center") in ("page", "middle", "context") else 0
    return sum(widths) / len(widths) + 16 * (2 if how.get("zero") else 1) / run + mean
