#!/usr/bin/env python3
"""Tables and pictures of a run of calib/kv/run.sh: python calib/kv/summary.py DIR

Reads the dq-eval documents in DIR, writes kv.csv and kv.json (every row of every document), summary.csv and summary.txt
(means over seeds), paired.csv and paired.txt (the recall of |A1 - lambda A2| minus that of every other policy, item by
item) and, if gnuplot is there, recall.svg, asked.svg, kld.svg and pareto.svg. The error of a mean over seeds is the
larger of the spread between seeds (standard error) and the pooled standard error inside them.
"""
import csv
import gzip
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


def scored_on(parts):
    """What a document was scored on: its name is kind-seed[-last|-widths][-bits]-what."""
    return parts[-1] + (" last 64" if "last" in parts else "")


def rows():
    for path in sorted(DIR.glob("*-[0-9]-*.json")):
        parts = path.stem.split("-")
        doc = json.loads(path.read_text())
        for r in doc["results"]:
            kv, paired = r["kv"], (r.get("paired") or {}).get("nll_nats") or {}
            acc, nll, kld = metric(r, "acc"), metric(r, "nll_nats"), metric(r, "kld_nats")
            yield dict(zip(FIELDS, (
                path.stem, parts[0], int(parts[1]), scored_on(parts), kv["k_bits"], kv["v_bits"],
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

with open(DIR / "kv.json", "w") as f:
    f.write('{"schema": "dq-kv-study/1", "rows": [\n' + ",\n".join(json.dumps(r) for r in all_rows) + "\n]}\n")

groups = {}
for r in all_rows:
    groups.setdefault((r["kind"], r["scored_on"], r["k_bits"], r["v_bits"], r["policy"], r["keep"]), []).append(r)
lines, table = [], []
for key, items in sorted(groups.items(), key=lambda g: (g[0][1] == "text", g[0][0], -g[0][2], -g[0][3], g[0][4], -(g[0][5] or 0))):
    acc, nll = mean(items, "acc", "acc_se"), mean(items, "dnll", "dnll_se")
    kld = mean(items, "kld", "kld_se")
    held, payload = (mean(items, n, n) for n in ("ratio_held", "ratio_payload"))
    table.append((*key, len(items), held and f"{held[0]:.3f}", payload and f"{payload[0]:.3f}",
                  *(("", "") if m is None else (f"{m[0]:.6f}", f"{m[1]:.6f}") for m in (acc, nll, kld))))
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


def items_of(path, gold):
    """{(k_bits, v_bits, policy, keep): {item: right?}} of one document."""
    best = {}
    with gzip.open(path, "rt") as f:
        for line in f:
            d = json.loads(line)
            kv = d["kv"]
            row = best.setdefault((kv["k_bits"], kv["v_bits"], kv["policy"], kv["keep"]), {})
            if d["item"] not in row or d["ll"] > row[d["item"]][0]:
                row[d["item"]] = (d["ll"], d["choice"] == gold[d["item"]])
    return {key: {i: right for i, (_, right) in row.items()} for key, row in best.items()}


def paired():
    """Recall of `diff` minus that of each other policy, over the same items: mean of the seeds, with error."""
    with open(pathlib.Path(__file__).parent.parent / "longpair" / "needles.jsonl") as f:
        gold = [json.loads(line)["gold"] for line in f]
    seeds = {}
    for path in sorted(DIR.glob("*.items.gz")):
        parts = path.name.removesuffix(".items.gz").split("-")
        if "widths" in parts:
            continue
        got = items_of(path, gold)
        for (kb, vb, policy, keep), right in got.items():
            mine = got[(kb, vb, "diff", keep)]
            if policy == "diff":
                continue
            d = [int(mine[i]) - int(right[i]) for i in mine]
            se = statistics.stdev(d) / math.sqrt(len(d))
            seeds.setdefault((parts[0], scored_on(parts), kb, vb, keep, policy), []).append(
                {"delta": statistics.fmean(d), "se": se})
    out = []
    for (kind, on, kb, vb, keep, policy), found in sorted(seeds.items(), key=lambda g: (g[0][:2], -g[0][2], -g[0][4], g[0][5])):
        m, se, n = mean(found, "delta", "se")
        out.append((kind, on, kb, vb, keep, policy, n, f"{m:+.4f}", f"{se:.4f}"))
    with open(DIR / "paired.csv", "w", newline="") as f:
        w = csv.writer(f, lineterminator="\n")
        w.writerow(("kind", "scored_on", "k_bits", "v_bits", "keep", "against", "seeds", "recall_diff_minus_other", "se"))
        w.writerows(out)
    (DIR / "paired.txt").write_text("".join(
        f"{kind:10s} {on:12s} {kb:2d}:{vb:<2d} keep {keep:<6g} diff - {policy:9s} {m} +- {se} ({n} seeds)\n"
        for kind, on, kb, vb, keep, policy, n, m, se in out))


paired()


KINDS = ("diffllama", "llama")
COLOURS = {"a1": "#1f77b4", "a2": "#17becf", "sum": "#7f7f7f", "diff": "#d62728", "loo": "#2ca02c", "h2o": "#ff7f0e",
           "snapkv": "#9467bd", "knorm": "#8c564b", "streaming": "#bcbd22", "random": "#000000"}
KEPT = "share of the context kept"


def curve(kind, on, bits, policy, value, x):
    """[(x, mean, error)] of one policy, from large shares to small ones."""
    points = []
    for (k, s, kb, vb, q, keep), found in sorted(groups.items(), key=lambda g: -(g[0][5] or 0)):
        if (k, s, (kb, vb), q) == (kind, on, bits, policy):
            m = mean(found, value, value + "_se")
            if m:
                points.append((x(found, keep), m[0], m[1]))
    return points


def plot(name, title, ylabel, value, series, xlabel, x, policies=tuple(COLOURS)):
    """One panel per kind of model, one curve per policy and entry (what was scored, bits) of series; the second
    entry is dashed."""
    data, index = DIR / f".{name}.dat", 0
    script = [f'set terminal svg size 1000,440 font "sans,12" background "white"; set output "{DIR}/{name}.svg"',
              f'set multiplot layout 1,2 title "{title}"; set grid; set logscale x 2; set xlabel "{xlabel}"; '
              f'set ylabel "{ylabel}"; set key outside right top; set yrange [0:{1.05 if value == "acc" else "*"}]']
    with open(data, "w") as f:
        for kind in KINDS:
            curves = []
            for j, (on, bits) in enumerate(series):
                for policy in policies:
                    points = curve(kind, on, bits, policy, value, x)
                    if not points:
                        continue
                    f.write("".join(f"{a} {b} {c}\n" for a, b, c in points) + "\n\n")
                    style = f'lc rgb "{COLOURS[policy]}" pt {7 if j == 0 else 6} ps 0.5 lw 1.5' + (" dt 2" if j else "")
                    label = f'title "{policy}"' if j == 0 else "notitle"
                    curves.append(f'"{data}" index {index} using 1:2:3 with yerrorlines {style} {label}')
                    index += 1
            if curves:
                script.append(f'set title "{kind}"; plot ' + ", ".join(curves))
    script.append("unset multiplot")
    subprocess.run(["gnuplot"], input="\n".join(script) + "\n", text=True, check=True)
    data.unlink()


def kept(found, keep):
    return keep


def held(found, keep):
    return statistics.fmean(r["ratio_held"] for r in found)


if shutil.which("gnuplot"):
    recall = "recall (chance 0.17)"
    plot("recall", "Recall after eviction, question behind the cut, 16-bit cache", recall, "acc", [("recall", (16, 16))], KEPT, kept)
    plot("asked", "Recall after eviction, question on both sides of the cut, 16-bit cache (dashed: maps of the last 64 rows)",
         recall, "acc", [("asked", (16, 16)), ("asked last 64", (16, 16))], KEPT, kept)
    plot("kld", "Divergence on the second half of windows after eviction, 16-bit cache", "KLD (nats per token)", "kld",
         [("text", (16, 16))], KEPT, kept)
    plot("pareto", "Recall against bytes held, question behind the cut (dashed: 4:4)", recall, "acc",
         [("recall", (16, 16)), ("recall", (4, 4))], "16-bit bytes of the whole context / bytes held", held,
         ("diff", "loo", "h2o", "snapkv", "knorm", "random"))
