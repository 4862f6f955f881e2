#!/usr/bin/env python3
"""Plain against differential over training steps, from the files of measure.py:

    python compare.py FOLDER          FOLDER holds seed-S.csv and bits-S.csv; writes growth.csv, equal.csv and bits.csv there,
                                      prints tables as Markdown

growth.csv compares checkpoints of the same step. As one kind may learn faster, equal.csv compares models that predict equally
well: each DIFF checkpoint with the plain model at its NLL, the logarithm of a magnitude interpolated between the two plain
checkpoints around that NLL. bits.csv compares the last checkpoints over bits of the attention logits.

Magnitudes are compared by their ratio DIFF / plain, by the mean of its logarithm over seeds; NLLs and shares by the difference.
Two intervals of 95 %, which answer different questions:
    seeds      Student's t over seeds, paired by seed: would other seeds say the same? None from fewer than three seeds.
    windows    bootstrap over the parts of the held-out windows, the same draw for both kinds and all seeds: would another
               held-out text say the same of these models? Of the mean over parts, which stands beside it: a maximum over all
               windows is another number than the mean of the parts' maxima.
A verdict follows from the interval over seeds alone.
"""
import argparse
import csv
import glob
import math
import os
import random

T = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}  # 0.975 of Student's t
RATIOS = ("logits_top1", "logits_top10", "logits_top100", "logits_median", "logits_rms", "logits_crest", "logits_kurtosis0",
          "hidden_top1", "hidden_top10", "hidden_top100", "hidden_median", "hidden_rms", "hidden_crest", "hidden_kurtosis0",
          "hidden_inner_top1")
DIFFERENCES = ("nll_nats_per_token", "nll_nats_per_byte", "sink_mean", "sink_max", "logits_first", "hidden_first")
DRAWS = 2000
FIELDS = ("step", "quantity", "compared_by", "seeds", "plain", "diff", "effect", "seeds_low", "seeds_high", "windows",
          "windows_low", "windows_high", "verdict")
EQUAL_FIELDS = ("diff_step", "nll_nats_per_token", "quantity", "compared_by", "seeds", "diff", "effect", "seeds_low",
                "seeds_high", "verdict")
BITS_FIELDS = ("bits", "quantity", "compared_by", "seeds", "plain", "diff", "effect", "seeds_low", "seeds_high", "verdict")

# quantity of bits-S.csv, what DIFF and plain are compared by, whether it is the change from 16 bits
BITS_QUANTITIES = (("acc_norm", "difference", False), ("acc_norm", "difference", True), ("order_acc", "difference", False),
                   ("order_acc", "difference", True), ("nll_nats_per_token", "difference", True), ("kld_nats", "ratio", False))


def read(folder):
    """{(seed, step, part): {kind: line}}, only what both kinds have."""
    out = {}
    for path in sorted(glob.glob(os.path.join(folder, "seed-*.csv"))):
        with open(path, newline="") as f:
            for line in csv.DictReader(f):
                out.setdefault((int(line["seed"]), int(line["step"]), line["part"]), {})[line["kind"]] = line
    return {key: kinds for key, kinds in out.items() if len(kinds) == 2}


def effect(kinds, quantity):
    plain, diff = (float(kinds[k][quantity]) for k in ("llama", "diffllama"))
    return math.log(diff / plain) if quantity in RATIOS else diff - plain


def interval_over_seeds(values):
    n = len(values)
    if n < 3:
        return None
    mean = sum(values) / n
    half = T[n - 1] * math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n)
    return mean - half, mean + half


def interval_over_windows(by_part, rng):
    """by_part: for each part, the mean over seeds."""
    if not by_part:
        return None
    means = sorted(sum(rng.choices(by_part, k=len(by_part))) / len(by_part) for _ in range(DRAWS))
    return means[int(0.025 * DRAWS)], means[int(0.975 * DRAWS) - 1]


def verdict(interval):
    if interval is None:
        return "too few seeds"
    return "DIFF smaller" if interval[1] < 0 else "DIFF larger" if interval[0] > 0 else "inconclusive"


def row_of(data, step, quantity):
    seeds = sorted(seed for seed, s, part in data if s == step and part == "all")
    whole = [data[seed, step, "all"] for seed in seeds]
    values = [effect(kinds, quantity) for kinds in whole]
    parts = sorted({part for _, s, part in data if s == step and part != "all"})
    by_part = []
    if data[seeds[0], step, parts[0]]["llama"][quantity]:
        by_part = [sum(effect(data[seed, step, part], quantity) for seed in seeds) / len(seeds) for part in parts]
    seeds_interval = interval_over_seeds(values)
    windows_interval = interval_over_windows(by_part, random.Random(0))
    show = (lambda v: f"{math.exp(v):.4g}") if quantity in RATIOS else (lambda v: f"{v:.4g}")
    cells = [show(v) for v in seeds_interval] if seeds_interval else ["", ""]
    if windows_interval:
        cells += [show(v) for v in (sum(by_part) / len(by_part), *windows_interval)]
    else:
        cells += ["", "", ""]
    mean = {k: sum(float(kinds[k][quantity]) for kinds in whole) / len(whole) for k in ("llama", "diffllama")}
    return dict(zip(FIELDS, (step, quantity, "ratio" if quantity in RATIOS else "difference", len(seeds),
                             f"{mean['llama']:.5g}", f"{mean['diffllama']:.5g}", show(sum(values) / len(values)), *cells,
                             verdict(seeds_interval))))


def plain_at(curve, nll, quantity):
    """The plain model's value where its NLL is `nll`, as a logarithm for a ratio; None outside its checkpoints."""
    for (before, a), (after, b) in zip(curve, curve[1:]):
        if after <= nll <= before:
            x, y = (math.log(float(line[quantity])) if quantity in RATIOS else float(line[quantity]) for line in (a, b))
            return x + (y - x) * (before - nll) / (before - after)
    return None


def equal_row(data, step, quantity):
    """Effect of DIFF at `step` against plain at its NLL; None where a seed's plain model never has that NLL."""
    seeds = sorted(seed for seed, s, part in data if s == step and part == "all")
    values, diffs, nlls = [], [], []
    for seed in seeds:
        curve = [(float(kinds["llama"]["nll_nats_per_token"]), kinds["llama"])
                 for (other, _, part), kinds in sorted(data.items(), key=lambda item: item[0][1])
                 if other == seed and part == "all"]
        line = data[seed, step, "all"]["diffllama"]
        nlls.append(float(line["nll_nats_per_token"]))
        diffs.append(float(line[quantity]))
        plain = plain_at(curve, nlls[-1], quantity)
        if plain is None:
            return None
        values.append((math.log(diffs[-1]) if quantity in RATIOS else diffs[-1]) - plain)
    interval = interval_over_seeds(values)
    n, effect_mean, diff = len(values), sum(values) / len(values), sum(diffs) / len(diffs)
    show = (lambda v: f"{math.exp(v):.4g}") if quantity in RATIOS else (lambda v: f"{v:.4g}")
    return dict(zip(EQUAL_FIELDS, (step, f"{sum(nlls) / n:.5g}", quantity, "ratio" if quantity in RATIOS else "difference", n,
                                   f"{diff:.5g}", show(effect_mean), *([show(v) for v in interval] if interval else ("", "")),
                                   verdict(interval))))


def bits_rows(folder):
    """At each width: both accuracies, what rounding changed of them and of NLL, and KLD, of the seeds that have the quantity."""
    lines = {}
    for path in sorted(glob.glob(os.path.join(folder, "bits-*.csv"))):
        with open(path, newline="") as f:
            for line in csv.DictReader(f):
                lines.setdefault(int(line["seed"]), {})[line["kind"], int(line["bits"])] = line
    rows = []
    for bits in sorted({bits for seed in lines.values() for _, bits in seed}, reverse=True):
        for name, compared_by, change in BITS_QUANTITIES:
            seeds = [seed for seed in lines.values() if all(seed.get((kind, bits), {}).get(name) for kind in ("llama", "diffllama"))]
            if not seeds or (change and bits == 16):
                continue
            pairs = [[float(seed[kind, bits][name]) - (float(seed[kind, 16][name]) if change else 0)
                      for kind in ("llama", "diffllama")] for seed in seeds]
            ratio = compared_by == "ratio"
            effects = [math.log(diff / plain) if ratio else diff - plain for plain, diff in pairs]
            span = interval_over_seeds(effects)
            n = len(pairs)
            cells = [f"{math.exp(v) if ratio else v:.4g}" for v in (sum(effects) / n, *(span or ()))]
            rows.append(dict(zip(BITS_FIELDS, (bits, name + "_change" * change, compared_by, n,
                                               *(f"{sum(values) / n:.5g}" for values in zip(*pairs)),
                                               *cells, *([] if span else ["", ""]), verdict(span)))))
    return rows


def bits_table(rows):
    print("\nLow-bit logits (DIFF against plain)\n\n| bits | quantity | seeds | plain | DIFF | effect | over seeds | verdict |")
    print("|---|---|---|---|---|---|---|---|")
    for r in rows:
        span = f"{r['seeds_low']} to {r['seeds_high']}" if r["seeds_low"] else "-"
        print(f"| {r['bits']} | {r['quantity']} | {r['seeds']} | {r['plain']} | {r['diff']} | {r['effect']} | {span} | {r['verdict']} |")


def write(path, fields, rows):
    with open(path, "w", newline="") as f:
        out = csv.DictWriter(f, fields, lineterminator="\n")
        out.writeheader()
        out.writerows(rows)


def table(rows, quantity):
    print(f"\n{quantity} (DIFF against plain by {[r['compared_by'] for r in rows if r['quantity'] == quantity][0]})\n")
    print("| step | plain | DIFF | effect | over seeds | mean of parts, over windows | verdict |\n|---|---|---|---|---|---|---|")
    for r in rows:
        if r["quantity"] == quantity:
            seeds = f"{r['seeds_low']} to {r['seeds_high']}" if r["seeds_low"] else "-"
            windows = f"{r['windows']} ({r['windows_low']} to {r['windows_high']})" if r["windows"] else "-"
            print(f"| {r['step']} | {r['plain']} | {r['diff']} | {r['effect']} | {seeds} | {windows} | {r['verdict']} |")


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("folder")
    folder = parse.parse_args().folder
    data = read(folder)
    steps = sorted({step for _, step, _ in data})
    rows = [row_of(data, step, quantity) for step in steps for quantity in DIFFERENCES + RATIOS]
    write(os.path.join(folder, "growth.csv"), FIELDS, rows)
    equal = [equal_row(data, step, quantity) for step in steps for quantity in DIFFERENCES[2:] + RATIOS]
    equal = [row for row in equal if row]
    write(os.path.join(folder, "equal.csv"), EQUAL_FIELDS, equal)
    for quantity in ("nll_nats_per_byte", "logits_top1", "logits_crest", "hidden_top1", "hidden_inner_top1", "hidden_crest", "sink_mean"):
        table(rows, quantity)
    print("\nAt equal held-out NLL (DIFF against plain)\n\n| DIFF step | NLL | quantity | DIFF | effect | over seeds | verdict |")
    print("|---|---|---|---|---|---|---|")
    for r in equal:
        if r["quantity"] in ("logits_top1", "hidden_top1", "hidden_inner_top1", "hidden_crest"):
            span = f"{r['seeds_low']} to {r['seeds_high']}" if r["seeds_low"] else "-"
            print(f"| {r['diff_step']} | {r['nll_nats_per_token']} | {r['quantity']} | {r['diff']} | {r['effect']} | {span} | "
                  f"{r['verdict']} |")
    rows = bits_rows(folder)
    write(os.path.join(folder, "bits.csv"), BITS_FIELDS, rows)
    bits_table(rows)


if __name__ == "__main__":
    main()
