#!/usr/bin/env python3
"""Writes gptq/golden.safetensors: GPTQ as its paper has it (arXiv 2210.17323, algorithm 1, with order by activation
and groups whose grids are found beforehand), in NumPy and f64: the inverse of the damped Hessian, the Cholesky factor
of that inverse, errors spread to the columns that are left.

    python tests/golden/gptq.py        (needs numpy and safetensors)

x [tokens, cols] i8 are inputs, small integers: sums of their products are exact in f32. Two columns are never other
than 0. w [rows, cols] f32. For mode M, B bits and G columns per scale (0: the whole matrix has one):

    M.B.G.code    u8    codes as stored, unpacked [rows, cols]
    M.B.G.scale   f32   scales as stored (f16)
    M.B.G.loss    f64   tr((W - W')H(W - W')^T), tr(W H W^T) of the undamped mean Hessian
"""
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

F = np.float32
ROWS, COLS, TOKENS, DAMPING = 70, 203, 120, 0.01


def inputs(rng):
    mixed = rng.standard_normal((TOKENS, 40)) @ rng.standard_normal((40, COLS))
    mixed *= rng.uniform(0.1, 3, COLS)
    x = np.clip(np.rint(mixed), -60, 60).astype(F)
    x[:, [5, 100]] = 0
    return x


def grid(w, bits, mode):
    """Scale as stored, lowest and highest code, and what is added to get the stored code."""
    top = (1 << bits) - 1
    half = 1 << (bits - 1)
    if mode == "asym":
        low, high = min(F(0), w.min()), max(F(0), w.max())
        scale = F(np.float16(F((float(high) - float(low)) / top)))
        zero = int(min(np.rint(-low / scale), F(top)))
        return scale, -zero, top - zero, zero
    peak = w.reshape(-1)[np.argmax(np.abs(w))]
    if mode == "absmax":
        return F(np.float16(abs(peak) / F(half - 1))), 1 - half, half - 1, half
    return F(np.float16(-peak / F(half))), -half, half - 1, half


def limited(w, dead, size, whole):
    """Weights of inputs that are always 0 within the range of the others of their group."""
    w = w.copy()
    for g in range(0, w.shape[1], size):
        part = w[:, g : g + size]
        of = np.array([g + k in dead for k in range(part.shape[1])])
        axis = None if whole else 1
        low, high = (f(part[:, ~of], axis=axis, keepdims=True) for f in (np.min, np.max))
        part[:, of] = np.clip(part[:, of], low, high)
    return w


def gptq(w, x, bits, group, mode):
    rows, cols = w.shape
    full = w.astype(np.float64)
    h = x.T.astype(np.float64) @ x.astype(np.float64) / len(x)
    plain = h.copy()
    dead = np.flatnonzero(np.diag(h) == 0)
    h += DAMPING * np.mean(np.diag(h)) * np.eye(cols)
    h[dead, dead] = 1
    w = limited(w, dead, group or cols, group == 0)
    order = np.argsort(-np.diag(plain), kind="stable")
    inverse = np.linalg.inv(h[np.ix_(order, order)])
    upper = np.linalg.cholesky(inverse).T
    whole = [grid(w, bits, mode)] * rows if group == 0 else None
    size = cols if group == 0 else group
    grids = [[whole[r] if whole else grid(w[r, g : g + size], bits, mode) for r in range(rows)]
             for g in range(0, cols, size)]
    now, codes, got = w.astype(np.float64)[:, order], np.zeros(w.shape, np.uint8), np.zeros(w.shape)
    for i, col in enumerate(order):
        g = grids[col // size]
        scale, low, high, shift = (np.array([row[k] for row in g]) for k in range(4))
        q = np.clip(np.rint(now[:, i].astype(F) / scale.astype(F)), low, high)
        codes[:, col] = q + shift
        got[:, col] = (q.astype(F) * scale.astype(F)).astype(np.float64)
        error = (now[:, i] - got[:, col]) / upper[i, i]
        now[:, i:] -= np.outer(error, upper[i, i:])
    scales = [[grids[0][0][0]]] if group == 0 else [[g[r][0] for g in grids] for r in range(rows)]
    e = full - got
    loss = [np.sum((e @ plain) * e), np.sum((full @ plain) * full)]
    return {"code": codes, "scale": np.array(scales, F), "loss": np.array(loss)}


def main():
    rng = np.random.default_rng(15)
    x, w = inputs(rng), rng.standard_normal((ROWS, COLS)).astype(F)
    w[3] *= F(30)
    out = {"x": x.astype(np.int8), "w": w}
    for mode, bits, group in (("absmax", 4, 64), ("asym", 2, 40), ("asym", 5, 0),
                              ("absmax", 8, 203)):
        out |= {f"{mode}.{bits}.{group}.{k}": v for k, v in gptq(w, x, bits, group, mode).items()}
    save_file(out, Path(__file__).parent / "gptq" / "golden.safetensors")


if __name__ == "__main__":
    main()
