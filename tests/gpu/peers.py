#!/usr/bin/env python3
"""What others need for differential attention on this GPU: python3 peers.py [--check] [PEER...] > peers.json

One layer of 12 output heads (two maps of head_dim 128, values of 256) in bf16, causal, the epilogue
(subtract, RMS norm, gain, scale) included; the same shapes as gpu_bench. Peers:
  flash4    PyTorch SDPA, flash backend: its heads need equal sizes, so four heads a pair in one call
  memeff2   SDPA, memory-efficient backend, two heads a pair with values of 256
  cudnn2, cudnn4    SDPA, cuDNN backend, with values of 256 and of 128
  triton    a fused kernel of one pass with two sums, written for this comparison
  products  matrix products by cuBLAS (bf16) and cuBLASLt (int8, torch._int_mm)
Medians of device events. Without a name all of them run, in one process, which the failure of one may end.
--check runs the formulas at a small size against float64, on the CPU where there is no GPU (there the Triton kernel
only with TRITON_INTERPRET=1).
"""
import argparse
import json
import math
import os
import signal
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

PAIRS, DIM, LAMBDA, SCALE, EPS = 12, 128, 0.6, 0.4, 1e-5


def inputs(n, keys, device, pairs=PAIRS):
    """q, k [2, pairs, n, DIM], v [pairs, keys, 2 DIM], gain [2 DIM]"""
    g = torch.Generator(device=device).manual_seed(1)
    make = lambda *s: torch.randn(*s, generator=g, device=device, dtype=torch.float32).to(torch.bfloat16)
    return make(2, pairs, n, DIM), make(2, pairs, keys, DIM), make(pairs, keys, 2 * DIM), make(2 * DIM)


def epilogue(o1, o2, gain):
    """o1, o2 [pairs, n, 2 DIM]"""
    y = (o1 - LAMBDA * o2).float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + EPS)
    return y.to(o1.dtype) * gain * SCALE


def two(q, k, v, gain, causal, backend):
    with sdpa_kernel(backend):
        o = F.scaled_dot_product_attention(q.flatten(0, 1)[None], k.flatten(0, 1)[None], v.repeat(2, 1, 1)[None],
                                           is_causal=causal)[0]
    return epilogue(o[:v.shape[0]], o[v.shape[0]:], gain)


def four(q, k, v, gain, causal, backend):
    """q1 v-left, q1 v-right, q2 v-left, q2 v-right as heads of one call"""
    p = v.shape[0]
    halves = torch.cat([v[..., :DIM], v[..., DIM:]]).repeat(2, 1, 1)
    with sdpa_kernel(backend):
        o = F.scaled_dot_product_attention(q.repeat_interleave(2, 0).flatten(0, 1)[None],
                                           k.repeat_interleave(2, 0).flatten(0, 1)[None], halves[None], is_causal=causal)[0]
    return epilogue(torch.cat([o[:p], o[p:2 * p]], -1), torch.cat([o[2 * p:3 * p], o[3 * p:]], -1), gain)


if triton:
    @triton.jit
    def fused_kernel(q, k, v, gain, out, n, keys, lam, scale, eps, softmax_scale,
                     D: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
        pair = tl.program_id(1)
        pairs = tl.num_programs(1)
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        d = tl.arange(0, D)
        w = tl.arange(0, 2 * D)
        there = row < n
        at = pair.to(tl.int64) * n * D + row[:, None] * D + d[None, :]
        q1 = tl.load(q + at, mask=there[:, None], other=0.0)
        q2 = tl.load(q + pairs.to(tl.int64) * n * D + at, mask=there[:, None], other=0.0)
        m1 = tl.full([ROWS], -1e30, tl.float32)
        m2 = tl.full([ROWS], -1e30, tl.float32)
        l1 = tl.zeros([ROWS], tl.float32)
        l2 = tl.zeros([ROWS], tl.float32)
        o1 = tl.zeros([ROWS, 2 * D], tl.float32)
        o2 = tl.zeros([ROWS, 2 * D], tl.float32)
        last = tl.minimum(keys, (tl.program_id(0) + 1) * ROWS + keys - n)
        for c in range(0, last, COLS):
            col = c + tl.arange(0, COLS)
            seen = (col[None, :] <= row[:, None] + keys - n) & (col[None, :] < keys)
            kt = pair.to(tl.int64) * keys * D + col[None, :] * D + d[:, None]
            inside = (col < keys)[None, :]
            s1 = tl.dot(q1, tl.load(k + kt, mask=inside, other=0.0)) * softmax_scale
            s2 = tl.dot(q2, tl.load(k + pairs.to(tl.int64) * keys * D + kt, mask=inside, other=0.0)) * softmax_scale
            s1 = tl.where(seen, s1, -1e30)
            s2 = tl.where(seen, s2, -1e30)
            n1 = tl.maximum(m1, tl.max(s1, 1))
            n2 = tl.maximum(m2, tl.max(s2, 1))
            p1 = tl.exp(s1 - n1[:, None])
            p2 = tl.exp(s2 - n2[:, None])
            vc = tl.load(v + pair.to(tl.int64) * keys * 2 * D + col[:, None] * 2 * D + w[None, :],
                         mask=(col < keys)[:, None], other=0.0)
            a1 = tl.exp(m1 - n1)
            a2 = tl.exp(m2 - n2)
            l1 = l1 * a1 + tl.sum(p1, 1)
            l2 = l2 * a2 + tl.sum(p2, 1)
            o1 = o1 * a1[:, None] + tl.dot(p1.to(vc.dtype), vc)
            o2 = o2 * a2[:, None] + tl.dot(p2.to(vc.dtype), vc)
            m1 = n1
            m2 = n2
        y = o1 / l1[:, None] - lam * o2 / l2[:, None]
        y = y * tl.rsqrt(tl.sum(y * y, 1) / (2 * D) + eps)[:, None] * tl.load(gain + w).to(tl.float32)[None, :] * scale
        tl.store(out + pair.to(tl.int64) * n * 2 * D + row[:, None] * 2 * D + w[None, :], y.to(out.dtype.element_ty),
                 mask=there[:, None])

    def fused(q, k, v, gain, causal, backend):
        n, keys = q.shape[2], k.shape[2]
        out = torch.empty(v.shape[0], n, 2 * DIM, dtype=q.dtype, device=q.device)
        fused_kernel[(triton.cdiv(n, 64), v.shape[0])](q, k, v, gain, out, n, keys, LAMBDA, SCALE, EPS,
                                                       DIM ** -0.5, DIM, 64, 32, num_warps=8, num_stages=2)
        return out


def exact(q, k, v, gain, rows):
    """float64, some rows"""
    q, k, v = q[:, :, rows].double(), k.double(), v.double()
    s = q @ k.transpose(-1, -2) / math.sqrt(DIM)
    seen = torch.arange(k.shape[2], device=q.device)[None] <= rows[:, None]
    s = s.masked_fill(~seen, -math.inf).softmax(-1)
    y = (s[0] - LAMBDA * s[1]) @ v
    return y * torch.rsqrt(y.square().mean(-1, keepdim=True) + EPS) * gain.double() * SCALE


def median_s(f, least=30, budget=2.0):
    f()
    torch.cuda.synchronize()
    times = []
    while len(times) < 3 or (len(times) < least and sum(times) < budget):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        f()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b) / 1e3)
    return statistics.median(times), len(times)


def variants():
    yield "flash4", four, SDPBackend.FLASH_ATTENTION
    yield "memeff2", two, SDPBackend.EFFICIENT_ATTENTION
    yield "cudnn2", two, SDPBackend.CUDNN_ATTENTION
    yield "cudnn4", four, SDPBackend.CUDNN_ATTENTION
    if triton:
        yield "triton", fused, None


def chosen(names):
    return [v for v in variants() if v[0] in names]


def flops(n):
    """multiply-adds as two, the causal half: two score products and one product with values per map"""
    return PAIRS * (2 * 2 * DIM + 2 * 2 * 2 * DIM) * n * (n + 1) / 2


def attention(results, names):
    for n in (2048, 8192, 65536):
        q, k, v, gain = inputs(n, n, "cuda")
        rows = torch.randint(n, (16,), device="cuda")
        want = exact(q, k, v, gain, rows)
        for name, f, backend in chosen(names):
            r = {"what": "prefill", "peer": name, "tokens": n}
            try:
                got = f(q, k, v, gain, True, backend)[:, rows].double()
                r["error"] = ((got - want).norm() / want.norm()).item()
                r["seconds_median"], r["runs"] = median_s(lambda: f(q, k, v, gain, True, backend))
                r["flops_per_second"] = flops(n) / r["seconds_median"]
            except Exception as e:  # a backend that does not take the shape says so here
                r["refused"] = str(e).splitlines()[0][:200]
            results.append(r)
            torch.cuda.empty_cache()
        del q, k, v
    for keys in (2048, 65536):
        q, k, v, gain = inputs(1, keys, "cuda")
        for name, f, backend in chosen(names):
            if name == "triton":
                continue  # its grid has no split over keys
            r = {"what": "decode", "peer": name, "context": keys}
            try:
                f(q, k, v, gain, False, backend)
                r["seconds_median"], r["runs"] = median_s(lambda: f(q, k, v, gain, False, backend), 100)
                r["bytes_per_second"] = (k.numel() + v.numel()) * 2 / r["seconds_median"]
            except Exception as e:
                r["refused"] = str(e).splitlines()[0][:200]
            results.append(r)


def products(results):
    n = 4096
    a = torch.randn(n, n, device="cuda").to(torch.bfloat16)
    b = torch.randn(n, n, device="cuda").to(torch.bfloat16)
    s, runs = median_s(lambda: a @ b.T)
    results.append({"what": "matmul", "peer": "cublas-bf16", "n": n, "seconds_median": s, "runs": runs,
                    "flops_per_second": 2 * n ** 3 / s})
    x = torch.randint(-127, 128, (n, n), device="cuda", dtype=torch.int8)
    w = torch.randint(-127, 128, (n, n), device="cuda", dtype=torch.int8)
    s, runs = median_s(lambda: torch._int_mm(x, w.T))
    results.append({"what": "matmul", "peer": "cublaslt-int8", "n": n, "seconds_median": s, "runs": runs,
                    "flops_per_second": 2 * n ** 3 / s})


def check():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, k, v, gain = inputs(80, 80, device, 2)
    rows = torch.arange(80, device=device)
    want = exact(q, k, v, gain, rows)
    bad = 0
    for name, f, backend in variants():
        x = (q, k, v, gain)
        if device == "cpu":
            backend = SDPBackend.MATH
            if name == "triton":
                if os.environ.get("TRITON_INTERPRET") != "1":
                    continue
                x = tuple(t.half() for t in x)  # the interpreter has no product of bf16
        error = ((f(*x, True, backend).double() - want).norm() / want.norm()).item()
        print(f"{name}: {error:.2e}")
        bad += not error < 2e-2
    return bad


parser = argparse.ArgumentParser()
parser.add_argument("--check", action="store_true")
parser.add_argument("peers", nargs="*", metavar="PEER")
args = parser.parse_args()
known = [v[0] for v in variants()] + ["products"]
for peer in args.peers:
    if peer not in known:
        parser.error(f"no peer {peer}; there are {' '.join(known)}")
wanted = args.peers or known
if args.check:
    sys.exit(check() != 0)
if not torch.cuda.is_available():
    sys.exit("peers.py: PyTorch finds no GPU")
found = []


def report(*_):
    """What was found so far: when all is done, or the time is up."""
    print(json.dumps({"schema": "dq-gpu-peers/1", "torch": torch.__version__, "device": torch.cuda.get_device_name(),
                      "results": found}, indent=1), flush=True)


def out_of_time(*_):
    report()
    os._exit(143)


signal.signal(signal.SIGTERM, out_of_time)
if any(name in wanted for name in known[:-1]):
    attention(found, wanted)
if "products" in wanted:
    products(found)
report()
wrong = [f"{r['peer']}: error {r['error']:.3g} at {r['tokens']} tokens" for r in found if not r.get("error", 0) < 2e-2]
sys.exit("; ".join(wrong) if wrong else 0)
