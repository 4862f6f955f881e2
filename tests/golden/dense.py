#!/usr/bin/env python3
"""Writes dense/golden.safetensors: what PyTorch makes of numbers, and of attention, in f16 and bf16.

    python tests/golden/dense.py        (needs torch and safetensors)

x [64, 64] f32, n.TYPE [64, 64] TYPE: x.to(TYPE), with ties, subnormals, numbers that underflow, the largest that TYPE
holds, and infinity.

q, k, v [100, heads, 32] f32, 8 query heads and 4 of keys and values; y.TYPE [100, 8, 32] f32: causal
scaled_dot_product_attention of q with k.to(TYPE) and v.to(TYPE), in f64 after the rounding.
"""
import pathlib

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
TYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


def numbers(largest):
    g = torch.Generator().manual_seed(17)
    x = torch.randn(64, 64, generator=g) * torch.exp2(torch.randint(-30, 14, (64, 64), generator=g).float())
    x[1] = 1 + torch.arange(64) / 2**12                     # ties of f16
    x[2] = 1 + torch.arange(64) / 2**9                      # of bf16
    x[3] = torch.arange(64) * 2.0**-25                      # subnormals of f16 and ties between them
    x[4] = torch.exp2(-torch.arange(64.0) * 2.4)            # down to what f32 holds
    x[5] = torch.arange(64) * 2.0**-149                     # subnormals of f32
    x[6, :4] = torch.tensor([largest, -largest, float("inf"), float("-inf")])
    x[6, 4:6] = torch.tensor([0.0, -0.0])
    return x


def main():
    g = torch.Generator().manual_seed(18)
    out = {}
    largest = {"f16": 65519.996, "bf16": 3.3961514e38}      # just below what becomes infinite
    for name, dtype in TYPES.items():
        out[f"x.{name}"] = numbers(largest[name])
        out[f"n.{name}"] = out[f"x.{name}"].to(dtype)
        assert torch.isfinite(out[f"n.{name}"]).sum() == 64 * 64 - 2
    q, k, v = (torch.randn(100, h, 32, generator=g) for h in (8, 4, 4))
    k[:, :, 5] *= 9
    out |= {"q": q, "k": k, "v": v}
    for name, dtype in TYPES.items():
        heads = [t.transpose(0, 1).double() for t in (q, k.to(dtype), v.to(dtype))]
        y = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        out[f"y.{name}"] = y.transpose(0, 1).float().contiguous()
    (HERE / "dense").mkdir(exist_ok=True)
    save_file(out, HERE / "dense" / "golden.safetensors")


if __name__ == "__main__":
    main()
