#!/usr/bin/env python3
"""How dq quantize --calib grows with ranks, from the times of its parts on one rank.

    dq quantize MODEL -o OUT.h5 --calib TEXT ... --threads 1 --json > one.json
    python results/cluster/simulate_quantize.py one.json
    python results/cluster/simulate_quantize.py one.json --shape 4096,11008,32 --tokens 262144 --speed 32

--shape takes another model, of DIM,FFN,LAYERS with heads as wide as DIM, at the operations a second that were measured, times
--speed. Ranks deal chunks of 2048 tokens out in turn, add what they see of them up tile by tile, factor everything alike, and divide
rows into strips of 128. Nothing on the network goes on beside computing here; a broadcast moves its bytes twice. Prints one row for
each number of ranks: seconds, efficiency, and what of the time is idle, the same on all ranks, or network.

SPDX-License-Identifier: MIT
"""
import argparse
import json
import math

CHUNK, STRIP, TILE = 2048, 128, 256
PRODUCTS = ("q", "v", "o", "gate", "down")


def shapes_of(doc):
    """[(matrices (rows, cols) of each product)] of each layer."""
    layers = {}
    for t in doc["results"][0]["rows"]:
        words = t["name"].split(".")
        if "layers" not in words or not words[-2].endswith("_proj") or words[-1] != "weight":
            continue
        layers.setdefault(int(words[words.index("layers") + 1]), {})[words[-2][:-5]] = (t["rows"], t["cols"])
    return list(layers.values())


def shapes_like(text):
    dim, ffn, n = (int(x) for x in text.split(","))
    square = {name: (dim, dim) for name in ("q", "k", "v", "o")}
    return [dict(square, gate=(ffn, dim), up=(ffn, dim), down=(dim, ffn))] * n


class Work:
    """Operations and bytes of a run of such layers."""

    def __init__(self, layers, tokens, align, rounding):
        self.chunks = math.ceil(tokens / CHUNK)
        self.forward = self.sums = self.same = self.rows = self.rounding = 0
        self.chunk_bytes = self.once_bytes = self.adds = 0
        self.strips = []  # (strips, operations) of each matrix
        for layer in layers:
            self.forward += sum(2 * r * c * tokens for r, c in layer.values()) * (2 if align else 1)
            for name in PRODUCTS:
                if name == "v" and not align:
                    continue
                n = layer[name][1]
                m = layer["o"][0] if name in ("o", "down") else n
                tiles = n * n / 2 + TILE * n / 2
                self.sums += tokens * (n * n + (2 * m * n if align else 0))
                self.chunk_bytes += 8 * (tiles + m * n if align else tiles)
                self.once_bytes += 8 * (2 * n * n + 2 * m * n if align else n * n)
                self.adds += 4 if align else 1
                self.same += n ** 3 / 3 * (5.5 if align else 1)
                self.rows += 12.5 * m * n * n if align else 0
            for r, c in layer.values():
                self.strips.append((math.ceil(r / STRIP), rounding * r * c * c))
                self.rounding += rounding * r * c * c
                self.once_bytes += r * c


def seconds_of(w, rate, ranks, a):
    """Seconds, and what of them ranks are idle, do the same, and send."""
    rounds = math.ceil(w.chunks / ranks)
    chunks = (w.forward / rate["forward"] + w.sums / rate["hessians"]) / w.chunks
    rounding = sum(f / n * math.ceil(n / ranks) for n, f in w.strips) / rate["rounding"]
    busy = chunks * w.chunks / ranks + w.rounding / ranks / rate["rounding"] + w.rows / ranks / rate["factors"]
    same = w.same / rate["factors"]
    send = 0
    if ranks > 1:
        send = rounds * w.chunk_bytes * (ranks - 1) / ranks / a.network + 2 * w.once_bytes / a.network
        send += rounds * w.adds * a.agree * math.log2(ranks)
    start = a.start + a.start_rank * ranks if ranks > 1 else 0
    total = chunks * rounds + rounding + w.rows / ranks / rate["factors"] + same + send + start
    return total, max(0, total - busy - same - send - start), same, send


def main():
    p = argparse.ArgumentParser()
    p.add_argument("document")
    p.add_argument("--shape")
    p.add_argument("--tokens", type=int)
    p.add_argument("--speed", type=float, default=1, help="of a rank, beside that of the document")
    p.add_argument("--network", type=float, default=1.25e9, help="bytes a second (10 Gbit/s)")
    p.add_argument("--agree", type=float, default=3e-4, help="seconds for ranks to meet, times log2 of their number")
    p.add_argument("--start", type=float, default=0.5, help="seconds until MPI runs and inputs are open")
    p.add_argument("--start-rank", type=float, default=0.002, help="seconds more for each rank")
    a = p.parse_args()
    with open(a.document) as f:
        doc = json.load(f)
    part = {x["part"]: x for x in doc["results"][0]["calibration"]["parts"]}
    align = part["maps"]["seconds"] > 0
    layers, tokens = shapes_of(doc), doc["settings"]["calib"]["tokens"]
    # what rounding takes for a value and column, as it was counted
    each = part["rounding"]["flop"] / sum(r * c * c for x in layers for r, c in x.values())
    own = Work(layers, tokens, align, each)
    measured = {k: part[k]["seconds"] for k in ("forward", "hessians", "factors", "rounding")}
    measured["forward"] += part["maps"]["seconds"] + part["files"]["seconds"]  # both go with the text
    counted = {"forward": own.forward, "hessians": own.sums, "factors": own.same + own.rows, "rounding": own.rounding}
    rate = {k: counted[k] / s * a.speed for k, s in measured.items()}
    w = Work(shapes_like(a.shape), a.tokens or tokens, align, each) if a.shape else own
    alone = seconds_of(w, rate, 1, a)[0]
    print(f"{w.chunks} chunks, {alone:.0f} s on one rank; each sends {w.chunk_bytes / 1e6:.0f} MB for a chunk\n")
    print("| ranks | seconds | efficiency | idle | the same on all | network |\n|---|---|---|---|---|---|")
    ranks = 1
    while ranks <= 1024:
        total, idle, same, send = seconds_of(w, rate, ranks, a)
        print(f"| {ranks} | {total:.1f} | {alone / ranks / total:.1%} | {idle / total:.1%} | {same / total:.1%} "
              f"| {send / total:.1%} |")
        ranks *= 2


main()
