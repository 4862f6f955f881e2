#!/usr/bin/env python3
"""Writes asym/golden.safetensors: what `dq quantize --scale asym` stores, in NumPy from the words of FORMAT.md.

    python tests/golden/asym.py        (needs numpy and safetensors)

w [12, 77] f32 are rows, some of them hard: all of one sign, constant, zero, scales that f16 cannot hold, ties. For
B bits, G columns per scale and scales of type T (f16: without the last two rows, which it cannot hold):

    B.G.T.packed, B.G.T.zero   u8    codes and zero points as in a container
    B.G.T.scale                f32   scales as stored
"""
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

F = np.float32


def hard_rows():
    w = np.random.default_rng(14).standard_normal((12, 77)).astype(F)
    w[1] = np.abs(w[1]) + F(0.5)
    w[2] = -np.abs(w[2]) - F(0.5)
    w[3], w[4], w[5] = F(0.3), F(-0.3), F(0)
    w[6] *= F(1e-7)
    w[7] *= F(1e4)
    w[8, ::2] = F(-0.0)
    w[9] = (np.arange(77) % 15 - 4).astype(F)  # quotients on ties
    w[10] = np.where(np.arange(77) % 2, F(3.4e38), F(-3.4e38))
    w[11] = F(1e-45)
    return w


def grid(w, bits, kind):
    top = (1 << bits) - 1
    low, high = min(F(0), w.min()), max(F(0), w.max())
    scale = F(kind(F((float(high) - float(low)) / top)))
    return scale, 0 if scale == 0 else int(min(np.rint(-low / scale), F(top)))


def codes(w, bits, scale, zero):
    if scale == 0:
        return np.zeros(len(w), int)
    low, high = -zero, (1 << bits) - 1 - zero
    while np.isinf(F(low) * scale):
        low += 1
    while np.isinf(F(high) * scale):
        high -= 1
    return np.clip(np.rint(w / scale), F(low), F(high)).astype(int) + zero


def pack(u, bits, multiple):
    stream = (np.asarray(u)[:, None] >> np.arange(bits) & 1).astype(np.uint8).reshape(-1)
    data = np.packbits(stream, bitorder="little")
    return np.pad(data, (0, -len(data) % multiple))


def store(w, bits, group, kind):
    packed, scale, zero = [], [], []
    for row in w:
        groups = [row[i : i + group] for i in range(0, len(row), group)]
        grids = [grid(x, bits, kind) for x in groups]
        packed.append(pack(np.concatenate([codes(x, bits, *g) for x, g in zip(groups, grids)]), bits, 4))
        scale.append([g[0] for g in grids])
        zero.append(pack([g[1] for g in grids], bits, 1))
    return {"packed": np.array(packed), "scale": np.array(scale, F), "zero": np.array(zero)}


def main():
    np.seterr(over="ignore", under="ignore")
    w = hard_rows()
    out = {"w": w}
    for bits in range(2, 9):
        for group in (20, 77):
            for name, kind, rows in (("f16", np.float16, w[:10]), ("f32", F, w)):
                parts = store(rows, bits, group, kind)
                out |= {f"{bits}.{group}.{name}.{k}": v for k, v in parts.items()}
    save_file(out, Path(__file__).parent / "asym" / "golden.safetensors")


if __name__ == "__main__":
    main()
