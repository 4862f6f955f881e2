#!/usr/bin/env python3
"""Writes kv/golden.safetensors: codes, scales and read-back values of KV heads at every width.

    python tests/golden/kv.py        (needs numpy and safetensors)

x.D [n, D] f32 are n tokens of one head of D channels, some of them hard: zeros, values whose scales f16
cannot hold, single outliers, ties. For B bits and G channels per scale (G = D at 8 and 6 bits):

    q.D.B.G [n, D] i8      codes
    s.D.B.G [n, ceil(D/G)] f32   scales as stored
    y.D.B.G [n, D] f32     codes times scales

The rule is written out once more here, apart from dq's sources: scale = peak / qmax, one f32 division,
rounded to f16 unless it is not zero and becomes subnormal or infinite there; code = rint(x / scale)
within +-qmax, ties to even, 0 where the scale is 0.

Per-channel codes: p.D [64, D] f32 is a page of tokens at positions 64 .. 127; that of 24 channels has some that f16 cannot hold. For
B bits, M 1 where dithered:

    c.D.B.M [64, D] i8     codes less 2^(B-1)
    l.D.B.M [2, D] f32     steps and lows as stored: of f16, but steps that it cannot hold, and lows with which codes
                           would leave out more than half a step of what the channel has
"""
import pathlib

import numpy as np
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).resolve().parent
TOKENS = 24
f32 = np.float32


def tokens(d, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((TOKENS, d)).astype(f32)
    x[3] = 0
    x[4] *= f32(1e-9)        # scales far below what f16 holds
    x[5] *= f32(3e9)         # and far above
    x[6, 7] = f32(300)       # one outlier
    x[7] = np.tile(np.array([7, 3.5, -0.5, 2.5, -7, 1.5, 0.5, -3.5], f32), d // 8)  # ties
    x[8, : d // 2] = 0       # a run of zeros beside others
    x[9, 0] = f32(1e-40)     # subnormal beside ordinary
    x[10] = 0
    x[10, 1] = f32(1e-45)    # a scale that underflows
    x[11] *= f32(7.75e-3)    # near the edge of f16's normal numbers at 8 bits
    return x


def quantize(x, bits, group):
    qmax = f32(2 ** (bits - 1) - 1)
    n, d = x.shape
    runs = -(-d // group)
    q, s, y = np.zeros((n, d), np.int8), np.zeros((n, runs), f32), np.zeros((n, d), f32)
    for t in range(n):
        for g in range(runs):
            run = slice(g * group, min(d, (g + 1) * group))
            scale = f32(np.abs(x[t, run]).max()) / qmax
            with np.errstate(over="ignore"):
                half = f32(np.float16(scale))
            if scale == 0 or (np.isfinite(half) and half >= f32(2.0 ** -14)):
                scale = half
            if scale != 0:
                q[t, run] = np.clip(np.rint(x[t, run] / scale), -qmax, qmax).astype(np.int8)
            s[t, g] = scale
            y[t, run] = q[t, run].astype(f32) * scale
    return q, s, y


def page(d):
    rng = np.random.default_rng(100 + d)
    x = (rng.standard_normal((64, d)) * rng.uniform(0.1, 3, d) + rng.uniform(-4, 4, d)).astype(f32)
    x[:, 3] = f32(1.25)      # all alike
    x[:, 4] = np.where(np.arange(64) == 9, f32(20), f32(-0.5))
    x[:, 5] = np.arange(64, dtype=f32) / 4  # ties
    if d == 24:
        x[:, 6] *= f32(1e-7)
        x[:, 7] = x[:, 7] * f32(0.1) + f32(1e5)
        x[:, 8] = x[:, 8] * f32(1e-3) + f32(1000.3)  # lows that f16 would move by many steps
        x[:, 9] = np.arange(64, dtype=f32) * f32(2.0 ** -24) + f32(2.0 ** -22.5)
        x[:, 10] = f32(0.3)
    return x


def golden_offsets(n):
    turns = np.arange(n) * 0.6180339887498949 + 0.25
    return (turns - np.floor(turns) - 0.5).astype(f32)


def stored(x):
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(f32)


def quantize_page(x, bits, dithered):
    top = f32(2 ** bits - 1)
    d = golden_offsets(len(x))[:, None] if dithered else f32(0)
    least = x.min(0)
    exact = (x.max(0) - least) / f32(2 ** bits - (2 if dithered else 1))
    half = stored(exact)
    step = np.where((exact == 0) | (np.isfinite(half) & (half >= f32(2.0 ** -14))), half, exact)
    low = least - step / 2 if dithered else least
    room = f32(0 if dithered else 0.5)
    covers = (least - stored(low) >= -room * step) & (x.max(0) - stored(low) <= (top + room) * step)
    covers = np.where(step == 0, stored(low) == low, covers)
    low = np.where(covers, stored(low), low)
    safe = np.where(step == 0, f32(1), step)
    u = np.clip(np.rint((x - low) / safe + d), 0, top) * (step != 0)
    return (u - f32(2 ** (bits - 1))).astype(np.int8), np.stack([step, low])


def main():
    out = {}
    for d in (24, 64):
        x = out[f"p.{d}"] = page(d)
        for bits in (8, 6, 5, 4, 3, 2):
            for mode in (0, 1) if bits >= 4 else (0,):
                out[f"c.{d}.{bits}.{mode}"], out[f"l.{d}.{bits}.{mode}"] = quantize_page(x, bits, mode)
    for d in (24, 64):
        x = tokens(d, d)
        out[f"x.{d}"] = x
        for bits in (8, 6, 4, 3, 2):
            for group in (d,) if bits > 4 else (10, 32 if d > 32 else d):
                q, s, y = quantize(x, bits, group)
                out |= {f"{n}.{d}.{bits}.{group}": a for n, a in zip("qsy", (q, s, y))}
    save_file(out, HERE / "kv" / "golden.safetensors")


if __name__ == "__main__":
    main()
