#!/usr/bin/env python3
"""Differences between caches over the same items or windows, of a run of studies/kv/run.sh: python differences.py DIR OUT.csv

Reads the *.items.gz in DIR. A line a kind, seed, measure and pair of caches that differ in one thing: a policy beside keydiff, keydiff
by heads beside the same budget for all, one code beside another, and DIFF beside the plain model with the same cache. Measures are
the right answers to questions that come later (recall) or stand in the context too (asked), and the KLD of text (kld). `mean` is that
of `ours`, with its standard error; `difference` is `ours` less `other`, with the half width of its 95 % interval. After the
seeds stand `all` and `seeds`, as defaults.py has them: about these models, and about models made by the same recipe.
"""
import csv
import gzip
import json
import pathlib
import sys

from defaults import KINDS, compare, read_value, said

CODES = (("per-channel", "per-token"), ("dither", "per-token"), ("dither", "per-channel"))


def cache_of(kv):
    """(bits, code, policy, budget, share); "-" where there is nothing to name."""
    coded, cut = kv["k_bits"] < 16 or kv["v_bits"] < 16, bool(kv["policy"])
    k, v = (min(kv[side], 16) for side in ("k_bits", "v_bits"))  # 32 is f32, which the CSVs call 16
    return (f"{k}:{v}", kv["quant"] if coded else "-", kv["policy"] if cut else "-",
            kv["budget"] if cut else "-", kv["keep"] if cut else 1)


def read(folder):
    """{(kind, measure, cache): {seed: numbers in the order of the file}}. Of `last`, maps of the last rows only, nothing."""
    out = {}
    for path in sorted(folder.glob("*-[0-9]-*.items.gz")):
        kind, seed, *parts = path.name.removesuffix(".items.gz").split("-")
        if "last" in parts:
            continue
        measure, mine = {"text": "kld"}.get(parts[-1], parts[-1]), {}
        with gzip.open(path, "rt") as f:
            for item in map(json.loads, f):
                if item.get("kv") and item.get("choice", 0) == 0 and item.get("kld_nats", 0) is not None:
                    mine.setdefault(cache_of(item["kv"]), []).append(read_value(item))
        for cache, numbers in mine.items():
            out.setdefault((kind, measure, cache), {}).setdefault(seed, numbers)
    return out


def pairs(of):
    """(kind, measure, cache, its name, the other's key, the other's name) of what differs in one thing."""
    for (kind, measure, cache) in of:
        bits, code, policy, budget, keep = cache
        if policy != "-" and budget == "uniform" and policy != "keydiff":
            yield kind, measure, cache, policy, (kind, measure, (bits, code, "keydiff", budget, keep)), "keydiff"
        if budget == "heads":
            yield kind, measure, cache, "heads", (kind, measure, (bits, code, policy, "uniform", keep)), "uniform"
        for ours, other in CODES:
            if code == ours:
                yield kind, measure, cache, ours, (kind, measure, (bits, other, policy, budget, keep)), other
        if kind == KINDS[0]:
            yield kind, measure, cache, KINDS[0], (KINDS[1], measure, cache), KINDS[1]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    of = read(pathlib.Path(sys.argv[1]))
    if not of:
        sys.exit(f"differences.py: {sys.argv[1]} has no KIND-SEED-*.items.gz. Run studies/kv/run.sh {sys.argv[1]} first.")
    with open(sys.argv[2], "w", newline="") as f:
        w = csv.writer(f, lineterminator="\n")
        w.writerow(["kind", "seed", "measure", "bits", "quant", "policy", "budget", "keep", "ours", "other", "mean", "se", "difference",
                    "half_95", "said"])
        for kind, measure, cache, ours, key, other in pairs(of):
            seeds = sorted(set(of[(kind, measure, cache)]) & set(of.get(key, ())))
            if not seeds:
                continue
            rows = compare(*({s: x[s] for s in seeds} for x in (of[(kind, measure, cache)], of[key])))
            for seed, *numbers in rows if len(seeds) > 1 else rows[:1]:
                word = said(measure, *numbers[2:])
                w.writerow([kind, seed, measure, *cache, ours, other] + [f"{v:.6g}" for v in numbers] + [word])
                if seed == "all" or len(seeds) == 1:
                    print(f"{kind:9s} {seed:3s} {measure:6s} {' '.join(map(str, cache)):38s} {ours} less {other}: "
                          f"{numbers[2]:+.5f} +- {numbers[3]:.5f} {word}")


if __name__ == "__main__":
    main()
