#!/usr/bin/env python3
"""Writes html/all.json: a dq-eval/1 document with rows of every kind, for the page of dq eval --html.

    python tests/golden/html.py

The numbers are made up, in the ranges that real ones have; names and warnings hold what HTML would
take for its own.
"""

import json
import math
import pathlib
import random

random.seed(7)


def metric(v, s=None):
    return {"value": v, "stderr": s}


HOSTILE = "we<ird> & \"quoted\" 'naïve' 模型"
models = ["llama", "diffllama"]
results = []


def kv(k=16, v=16, keep=1.0, policy="h2o"):
    held = int(1966080 * ((k + v) / 32 * keep + 0.05))
    return {
        "k_bits": k,
        "v_bits": v,
        "group": 32,
        "rotate": {"k": k <= 4, "v": v <= 4},
        "sink": 4,
        "recent": 64,
        "policy": policy,
        "keep": keep,
        "tokens": None,
        "budget": "uniform",
        "every": 0,
        "window": 0,
        "seed": 1,
        "contexts": 20,
        "bytes_held": held,
        "bytes": {"codes": held, "scales": 0, "unquantized": 0, "index": 0},
        "bytes_per_token": held / 1920.0,
        "baseline_bytes": 1966080,
        "ratio_held": 1966080 / held,
        "ratio_payload": None,
        "lowbit_fraction": 0.75 if k < 16 else 0.0,
        "kept_fraction": keep,
        "kvpress_ratio": 1 - keep,
        "raised": 0,
        "gap_min": None,
    }


def base(model, bits, task, n, granularity="per-tensor", k=None):
    return {
        "model": model,
        "reference": model,
        "weights": {"bits": 16, "group": None, "scale": None, "bytes": 955648},
        "logit_bits": bits,
        "logit_granularity": granularity,
        "kv": k or kv(),
        "math": {"linear": "f32", "qk": "f32", "pv": "f32", "kv": "f32"},
        "passes": "whole",
        "task": task,
        "n": n,
        "metrics": {},
        "paired": None,
        "throughput": {
            "tokens": n * 19,
            "computed_tokens": n * 19,
            "seconds": 1.5,
            "tokens_per_second": n * 19 / 1.5,
        },
    }


def share_error(p, n):
    return math.sqrt(max(p * (1 - p), 0) / (n - 1))


acc = {
    "llama": {16: 0.634, 8: 0.632, 6: 0.49, 4: 0.27, 3: 0.25, 2: 0.25},
    "diffllama": {16: 0.662, 8: 0.661, 6: 0.655, 4: 0.52, 3: 0.33, 2: 0.26},
}
for mo in models:
    for g in ("per-tensor", "per-row"):
        for b in (16, 8, 6, 4, 3, 2):
            if b == 16 and g == "per-row":
                continue
            p = acc[mo][b]
            p = p if g == "per-tensor" else (p + acc[mo][16]) / 2
            r = base(mo, b, "hellaswag", 10042, g)
            r.update(truncated_items=0, paper_metric="acc_norm", num_fewshot=0, seed=1)
            r["metrics"] = {
                "acc": metric(p * 0.8, share_error(p * 0.8, 10042)),
                "acc_norm": metric(p, share_error(p, 10042)),
            }
            if b != 16:
                d = {
                    "n01": 300,
                    "n10": int(300 + 10042 * (p - acc[mo][16])) if p > acc[mo][16] - 0.02 else 40,
                    "delta": p - acc[mo][16],
                    "stderr": 0.0021,
                    "mcnemar_p": 0.04 if b == 8 else 2.4e-15,
                }
                r["paired"] = {"acc": d, "acc_norm": d}
            if mo != "llama" and g == "per-tensor":
                r["cross_paired"] = {
                    "model": "llama",
                    "acc": {"n01": 400, "n10": 700, "delta": 0.03, "stderr": 0.0033, "mcnemar_p": 1e-9},
                    "acc_norm": {"n01": 400, "n10": 700, "delta": 0.03, "stderr": 0.0033, "mcnemar_p": 1e-9},
                }
            results.append(r)
    for b in (16, 8, 6, 4):
        p = {16: 0.6, 8: 0.6, 6: 0.58, 4: 0.4}[b]
        r = base(mo, b, "arc_easy", 2376)
        r.update(truncated_items=0, paper_metric="acc", num_fewshot=5, seed=1)
        r["metrics"] = {"acc": metric(p + 0.05 * (mo != "llama"), 0.0095), "acc_norm": metric(p, 0.0101)}
        results.append(r)
for i, mo in enumerate(models):
    for b in (16, 8, 6, 4):
        r = base(mo, b, "text", 28500)
        r.update(window="chunk", windows=300, documents=12)
        k = {16: 0, 8: 1.1e-3, 6: 1.9e-2, 4: 0.255}[b] * (1 if i == 0 else 0.3)
        r["metrics"] = {
            "nll_nats": metric(1.15 + k * 0.9, 0.03),
            "ppl": metric(math.exp(1.15 + k * 0.9), 0.09),
            "ln_ppl_ratio": metric(k * 0.9, k * 0.1),
            "kld_nats": dict(
                metric(k, k * 0.08),
                p001=0,
                p01=0,
                p05=k * 1e-3,
                p10=k * 0.01,
                p50=k * 0.2,
                p90=k * 2.5,
                p95=k * 4,
                p99=k * 14,
                p999=k * 40,
                max=k * 90,
                noise_floor=2.3e-6,
            ),
            "same_top1": metric(1 - math.sqrt(k) * 0.4 if k else 1.0, 0.002 if k else 0.0),
            "word_ppl": metric(9.1),
            "byte_ppl": metric(1.43),
            "bits_per_byte": metric(0.52),
        }
        if b != 16:
            r["paired"] = {"nll_nats": {"delta": k * 0.9, "stderr": k * 0.1}}
            r["kld_by_confidence"] = [
                {
                    "from": 0.0,
                    "to": 0.5,
                    "n": 9000,
                    "kld_nats": metric(k * 1.8, k * 0.1),
                    "same_top1": metric(0.81, 0.01),
                },
                {
                    "from": 0.5,
                    "to": 0.9,
                    "n": 12000,
                    "kld_nats": metric(k, k * 0.09),
                    "same_top1": metric(0.95, 0.005),
                },
                {
                    "from": 0.9,
                    "to": 1.0,
                    "n": 7500,
                    "kld_nats": metric(k * 0.2, k * 0.04),
                    "same_top1": metric(0.999, 0.0004),
                },
            ]
        at = [1024 * 2**j for j in range(7)]
        c = [2.9 - 0.12 * j + k * 0.5 + i * -0.03 for j in range(7)]
        r["positions"] = {
            "documents": 12,
            "at": at,
            "cumulative_nll_nats": [metric(x, 0.05) for x in c],
            "difference_nats": (
                None if b == 16 else [metric(k * 0.5 * (1 + 0.1 * j), k * 0.06) for j in range(7)]
            ),
            "bins": [
                {"from": a // 2, "to": a, "n": a * 6, "nll_nats": metric(x - 0.1, 0.04)}
                for a, x in zip(at, c)
            ],
        }
        r["slices"] = {
            "ar_hit": {
                "n": 1990,
                "nll_nats": metric(0.88 + k, 0.01),
                "delta_nats": metric(k, 0.002) if b != 16 else metric(None),
            },
            "others": {
                "n": 26510,
                "nll_nats": metric(3.25 + k * 0.5, 0.02),
                "delta_nats": metric(k * 0.5, 0.003) if b != 16 else metric(None),
            },
            "share_ar_hit": 0.07,
            "counted_in": "text",
            "threshold": 1250,
        }
        results.append(r)
    for a, bv, keep in ((8, 8, 1.0), (8, 4, 1.0), (4, 4, 1.0), (8, 8, 0.5), (8, 4, 0.5), (8, 8, 0.25)):
        r = base(mo, 16, "text", 28500, k=kv(a, bv, keep))
        r.update(window="chunk", windows=300, documents=12)
        k = ({(8, 8): 2e-5, (8, 4): 9e-4, (4, 4): 3e-3}[(a, bv)] + {1.0: 0, 0.5: 0.05, 0.25: 0.21}[keep]) * (
            1 if i == 0 else 0.6
        )
        r["metrics"] = {
            "nll_nats": metric(1.15 + k, 0.03),
            "ppl": metric(math.exp(1.15 + k), 0.09),
            "ln_ppl_ratio": metric(k, k * 0.1),
            "kld_nats": dict(metric(k, k * 0.1), p50=k * 0.2, p90=k * 2, p99=k * 12, p999=k * 30, max=k * 60),
            "same_top1": metric(0.97, 0.004),
        }
        r["paired"] = {"nll_nats": {"delta": k, "stderr": k * 0.1}}
        results.append(r)
for i, mo in enumerate(models):
    for b in (16, 6, 4):
        r = base(mo, b, "needle", 500)
        cells = []
        for L in (1024, 2048, 4096):
            for d in (0, 0.25, 0.5, 0.75, 1.0):
                p = max(
                    0,
                    min(
                        1,
                        0.97
                        - 0.5 * (16 - b) / 12 * (1 - 0.6 * i)
                        - (L / 4096) * 0.25 * (1 - i)
                        - 0.2 * abs(d - 1) * (1 - i),
                    ),
                )
                p = round(p * 50) / 50
                an = 0.03 + 0.05 * d if i == 0 else 0.27 + 0.12 * d
                no = 0.51 - 0.02 * d if i == 0 else 0.015
                at = {
                    "rows": "last",
                    "head_rows": 96 * 50,
                    "small_sums": 0 if i == 0 else 37,
                    "sum": {
                        "bos": 0.2,
                        "answer": an,
                        "distractor": no * 0.2,
                        "noise": no * 0.8,
                        "query": 1 - 0.2 - an - no,
                        "skipped": 0,
                    },
                }
                at["positive"] = {**at["sum"], "answer": an * 0.9}
                at["absolute"] = {**at["sum"], "answer": an * 0.85, "noise": no * 0.8 + 0.05}
                at["best_head"] = {
                    "layer": 3,
                    "head": 5,
                    "answer": min(1, an * 2.2),
                    "norm": "absolute",
                }
                cells.append(
                    {
                        "length": L,
                        "depth": d,
                        "n_needles": 8,
                        "n_queries": 1,
                        "n": 50,
                        "acc": metric(p, share_error(p, 50)),
                        "all_correct": metric(p, share_error(p, 50)),
                        "confusion": {
                            "correct": p,
                            "other_needle": (1 - p) * 0.6,
                            "near_miss": (1 - p) * 0.25,
                            "none": (1 - p) * 0.15,
                        },
                        "attention": at if b != 4 else None,
                    }
                )
        a = sum(c["acc"]["value"] for c in cells) / len(cells)
        r["metrics"] = {
            "acc": metric(a, share_error(a, 750)),
            "all_correct": metric(a, share_error(a, 750)),
            "ll_nats": metric(-0.4 - (1 - a) * 5, 0.05),
        }
        r["needle"] = {"mode": "forced", "cells": cells}
        results.append(r)
for i, mo in enumerate(models):
    for order in ("random", "alternate"):
        r = base(mo, 16, "trec", 250)
        runs = []
        curve = []
        for s in (0, 5, 10, 50, 100, 200):
            v = [
                max(
                    0, min(1, 0.2 + 0.13 * math.log1p(s) + i * 0.04 + random.uniform(-0.08, 0.08) * (1.5 - i))
                )
                for _ in range(5)
            ]
            for j, x in enumerate(v):
                runs.append(
                    {
                        "run": j,
                        "shots": s,
                        "n": 50,
                        "acc": metric(x, share_error(x, 50)),
                        "acc_ll": metric(x, share_error(x, 50)),
                    }
                )
            mu = sum(v) / 5
            curve.append(
                {
                    "shots": s,
                    "runs": 5,
                    "acc_mean": mu,
                    "acc_min": min(v),
                    "acc_max": max(v),
                    "acc_std": (sum((x - mu) ** 2 for x in v) / 4) ** 0.5,
                }
            )
        r["metrics"] = {
            "acc": metric(curve[-1]["acc_mean"], 0.02),
            "acc_ll": metric(curve[-1]["acc_mean"], 0.02),
        }
        r["icl"] = {"demo_order": order, "runs": runs, "curve": curve}
        results.append(r)
    r = base(mo, 16, "gsm8k", 1319)
    r["metrics"] = {"exact_match": metric(0.041 + i * 0.01, 0.0055), "finished": metric(0.93, 0.007)}
    r["passes"] = "decode"
    results.append(r)
r = base(models[0], 16, "generate", 10)
r["metrics"] = {}
r["file"] = "out.jsonl"
results.append(r)
r = base(HOSTILE, 16, "hellaswag", 100)
r["weights"]["bits"] = "mixed"
r["metrics"] = {"acc": metric(None), "acc_norm": metric(0.5, None)}
results.append(r)
doc = {
    "schema": "dq-eval/1",
    "dq_version": "0.1.0",
    "command": "eval",
    "inputs": [
        {
            "kind": "model",
            "path": "models/llama",
            "architecture": "llama",
            "bytes": 955648,
            "fingerprint": "d4f76e24e0c5e24e0b35ff4199fa4e1e68d39bc17e6a896f571b48302c47a459",
        },
        {"kind": "model", "path": HOSTILE, "bytes": 1, "fingerprint": "ab" * 32},
        {
            "kind": "text",
            "path": "book.txt",
            "bytes": 82085,
            "sha256": "0993162fabf48b128dfb055ba85cf9e3486a009a23200c24bc8026b33004e15d",
        },
    ],
    "settings": {
        "tasks": ["hellaswag", "arc_easy", "text", "needle", "trec", "gsm8k"],
        "logit_bits": [16, 8, 6, 4, 3, 2],
        "logit_granularity": ["per-tensor", "per-row"],
        "head_order": None,
        "kv_bits": ["16:16", "8:8", "8:4", "4:4"],
        "kv": {"effective": [kv()], "stored": {}},
        "math": "f32",
        "ref": None,
        "window": "chunk",
        "ctx": 192,
        "text_stderr": "clustered by window",
        "bos": "auto",
        "limit": None,
        "device": "cpu, AVX-512, 2 threads",
        "threads": 2,
        "temperature": 0.7,
        "resume": False,
    },
    "results": results,
    "warnings": [
        '<script>alert(1)</script> & a warning about "quotes"',
        "text: 2 ill-formed UTF-8 sequences read as U+FFFD, the first at byte 17",
    ],
}


def rounded(x):
    if isinstance(x, float):
        return float("%.5g" % x)
    if isinstance(x, dict):
        return {k: rounded(v) for k, v in x.items()}
    if isinstance(x, list):
        return [rounded(v) for v in x]
    return x


out = pathlib.Path(__file__).resolve().parent / "html" / "all.json"
out.write_text(json.dumps(rounded(doc), ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
