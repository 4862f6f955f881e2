#!/usr/bin/env python3
"""Tables and pictures of a run of calib/kv/run.sh: python calib/kv/summary.py DIR

Reads the dq-eval documents in DIR, writes kv.csv (every row of every document), summary.csv and summary.txt
(means over seeds) and, if gnuplot is there, recall.svg and pareto.svg. The error of a mean over seeds is the larger
of the spread between seeds (standard error) and the pooled standard error inside them.
"""
import csv
import json
import math
import pathlib
import shutil
import statistics
import subprocess
import sys

DIR = pathlib.Path(sys.argv[1])
FIELDS = ("file", "kind", "seed", "scored_on", "k_bits", "v_bits", "policy", "keep", "ratio_held", "ratio_payload",
          "bytes_per_token", "lowbit_fraction", "acc", "acc_se", "nll", "nll_se", "dnll", "dnll_se", "kld", "kld_se",
          "same_top1")


def metric(r, name):
    m = r["metrics"].get(name)
    return (m["value"], m["stderr"]) if m else (None, None)


def rows():
    for path in sorted(DIR.glob("*.json")):
        parts = path.stem.split("-")
        doc = json.loads(path.read_text())
        for r in doc["results"]:
            kv, paired = r["kv"], (r.get("paired") or {}).get("nll_nats") or {}
            acc, nll, kld = metric(r, "acc"), metric(r, "nll_nats"), metric(r, "kld_nats")
            yield dict(zip(FIELDS, (
                path.stem, parts[0], int(parts[1]), "seen" if parts[2] == "seen" else parts[-1], kv["k_bits"], kv["v_bits"],
                kv["policy"] or "-", kv["keep"] if kv["policy"] else 1, kv["ratio_held"], kv["ratio_payload"],
                kv["bytes_per_token"], kv["lowbit_fraction"], *acc, *nll, paired.get("delta"), paired.get("stderr"), *kld,
                metric(r, "same_top1")[0])))


def mean(items, value, error):
    x = [(r[value], r[error]) for r in items if r[value] is not None]
    if not x:
        return None
    m = statistics.fmean(v for v, _ in x)
    inside = math.sqrt(sum((e or 0) ** 2 for _, e in x)) / len(x)
    between = statistics.stdev(v for v, _ in x) / math.sqrt(len(x)) if len(x) > 1 else 0
    return m, max(inside, between), len(x)


def text(m):
    return "-" if m is None else f"{m[0]:.4f} +- {m[1]:.4f}"


all_rows = list(rows())
with open(DIR / "kv.csv", "w", newline="") as f:
    w = csv.DictWriter(f, FIELDS, lineterminator="\n")
    w.writeheader()
    w.writerows(all_rows)

groups = {}
for r in all_rows:
    groups.setdefault((r["kind"], r["scored_on"], r["k_bits"], r["v_bits"], r["policy"], r["keep"]), []).append(r)
lines, table = [], []
for key, items in sorted(groups.items(), key=lambda g: (g[0][1] == "text", g[0][0], -g[0][2], -g[0][3], g[0][4], -(g[0][5] or 0))):
    acc, nll = mean(items, "acc", "acc_se"), mean(items, "dnll", "dnll_se")
    kld = mean(items, "kld", "kld_se")
    held, payload = (mean(items, n, n) for n in ("ratio_held", "ratio_payload"))
    table.append((*key, len(items), held and f"{held[0]:.3f}", payload and f"{payload[0]:.3f}",
                  *(("", "") if m is None else (f"{m[0]:.6f}", f"{m[1]:.6f}") for m in (acc, nll, kld)) ))
    lines.append(f"{key[0]:10s} {key[1]:7s} {key[2]:2d}:{key[3]:<2d} {key[4]:10s} {key[5]!s:7s} n={len(items)} "
                 f"held {held[0] if held else math.nan:6.2f} payload {payload[0] if payload else math.nan:6.2f}  "
                 f"recall {text(acc)}  dNLL {text(nll)}  KLD {text(kld)}")
with open(DIR / "summary.csv", "w", newline="") as f:
    w = csv.writer(f, lineterminator="\n")
    w.writerow(("kind", "scored_on", "k_bits", "v_bits", "policy", "keep", "seeds", "ratio_held", "ratio_payload", "recall",
                "recall_se", "dnll", "dnll_se", "kld", "kld_se"))
    for row in table:
        flat = []
        for x in row:
            flat.extend(x if isinstance(x, tuple) else [x])
        w.writerow(flat)
(DIR / "summary.txt").write_text("\n".join(lines) + "\n")
print("\n".join(lines))


def plot(name, title, ylabel, value, scored_on, xlabel, x):
    """One curve per policy, one panel per kind of model."""
    data, script = DIR / f".{name}.dat", []
    kinds = ("diffllama", "llama")
    policies = [p for p in ("a1", "a2", "sum", "diff", "loo", "h2o", "snapkv", "knorm", "streaming", "random")]
    with open(data, "w") as f:
        for kind in kinds:
            for p in policies:
                f.write(f'"{kind} {p}"\n')
                for (k, s, kb, vb, q, keep), items in sorted(groups.items(), key=lambda g: -(g[0][5] or 0)):
                    if (k, s, kb, vb, q) == (kind, scored_on, 16, 16, p):
                        m = mean(items, value, value + "_se")
                        if m:
                            f.write(f"{x(items, keep)} {m[0]} {m[1]}\n")
                f.write("\n\n")
    script.append(f'set terminal svg size 1000,440 font "sans,12"; set output "{DIR}/{name}.svg"')
    script.append(f'set multiplot layout 1,2 title "{title}"; set grid; set logscale x 2; set xlabel "{xlabel}"; '
                  f'set ylabel "{ylabel}"; set key bottom left font ",9"')
    for i, kind in enumerate(kinds):
        curves = ", ".join(f'"{data}" index {i * len(policies) + j} using 1:2:3 with yerrorlines title "{p}"'
                           for j, p in enumerate(policies) if any(g[0] == kind and g[1] == scored_on and g[4] == p for g in groups))
        if curves:
            script.append(f'set title "{kind}"; plot {curves}')
    script.append("unset multiplot")
    subprocess.run(["gnuplot"], input="\n".join(script) + "\n", text=True, check=True)
    data.unlink()


if shutil.which("gnuplot"):
    plot("recall", "Recall of needles after eviction, 16-bit cache", "recall (chance 0.17)", "acc", "recall",
         "share of the context kept", lambda items, keep: keep)
    plot("kld", "Divergence on the second half of windows after eviction, 16-bit cache", "KLD (nats per token)", "kld", "text",
         "share of the context kept", lambda items, keep: keep)
