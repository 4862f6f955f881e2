#!/usr/bin/env python3
"""Tables and pictures of a run of studies/kv/run.sh: python studies/kv/summary.py DIR [EARLIER]

Reads the dq-eval documents in DIR, writes kv.csv and kv.json (every row of every document), summary.csv and summary.txt
(means over seeds), paired.csv and paired.txt (the recall of keydiff, and of |A1 - lambda A2|, minus that of every other policy,
item by item) and, if gnuplot is there, recall.svg, asked.svg, kld.svg and pareto.svg. The error of a mean over seeds is the
larger of the spread between seeds (standard error) and the pooled standard error inside them. A mean of fewer than all seeds
says how many in `seeds`.

EARLIER is a folder with kv.csv and paired.csv of another run. Rows that DIR has not are taken from it (`earlier` is 1); rows that
both have must agree in nine digits. `lowbit_fraction` is not taken: versions of dq count it differently.
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
EARLIER = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
FIELDS = ("file", "kind", "seed", "scored_on", "k_bits", "v_bits", "quant", "policy", "budget", "heads", "keep", "ratio_held",
          "ratio_payload", "bytes_per_token", "lowbit_fraction", "acc", "acc_se", "nll", "nll_se", "dnll", "dnll_se", "kld", "kld_se",
          "same_top1", "earlier")
NUMBERS = FIELDS[FIELDS.index("keep"):-1]
CACHE = ("k_bits", "v_bits", "quant", "policy", "budget", "keep")  # settings that differ between rows


def metric(r, name):
    m = r["metrics"].get(name)
    return (m["value"], m["stderr"]) if m else (None, None)


def scored_on(name):
    """What a document was scored on: its name is kind-seed[-last|-widths|-heads-share|...][-bits]-what."""
    parts = name.split("-")
    return parts[-1] + (" last 64" if "last" in parts else "")


def cache_of(kv):
    """What CACHE names, of the `kv` of a result or of an item; "-" where there is nothing to name."""
    coded, cut = kv["k_bits"] < 16 or kv["v_bits"] < 16, bool(kv["policy"])
    k, v = (min(kv[side], 16) for side in ("k_bits", "v_bits"))  # 32 is f32, which the CSVs call 16
    return (k, v, kv["quant"] if coded else "-", kv["policy"] if cut else "-", kv["budget"] if cut else "-",
            kv["keep"] if cut else 1)


def rows():
    for path in sorted(DIR.glob("*-[0-9]-*.json")):
        kind, seed = path.stem.split("-")[:2]
        for r in json.loads(path.read_text())["results"]:
            kv, paired = r["kv"], (r.get("paired") or {}).get("nll_nats") or {}
            row = {"file": path.stem, "kind": kind, "seed": int(seed), "scored_on": scored_on(path.stem), **dict(zip(CACHE, cache_of(kv)))}
            row.update({name: kv[name] for name in ("heads", "ratio_held", "ratio_payload", "bytes_per_token", "lowbit_fraction")})
            for name, long in (("acc", "acc"), ("nll", "nll_nats"), ("kld", "kld_nats")):
                row[name], row[name + "_se"] = metric(r, long)
            row.update(dnll=paired.get("delta"), dnll_se=paired.get("stderr"), same_top1=metric(r, "same_top1")[0], earlier=0)
            yield {name: row[name] for name in FIELDS}


def key_of(row):
    return (row["kind"], row["seed"], row["scored_on"], *(row[name] for name in CACHE))


def earlier_rows():
    """Those of EARLIER; a table that names no code and no budget has per-token codes and the same budget for all."""
    with open(EARLIER / "kv.csv", newline="") as f:
        for old in csv.DictReader(f):
            row = {**old, **{n: int(old[n]) for n in ("seed", "k_bits", "v_bits")}, "earlier": 1, "heads": old.get("heads") or None}
            row.update({n: float(old[n]) if old[n] else None for n in NUMBERS})
            row["lowbit_fraction"] = None
            row.setdefault("quant", "per-token" if row["k_bits"] < 16 or row["v_bits"] < 16 else "-")
            row.setdefault("budget", "-" if row["policy"] == "-" else "uniform")
            yield {name: row[name] for name in FIELDS}


def with_earlier(mine):
    """mine and what EARLIER has besides."""
    have = {key_of(r): r for r in mine}
    out, both = list(mine), 0
    for row in earlier_rows() if EARLIER else ():
        same = have.get(key_of(row))
        if same is None:
            out.append(row)
            continue
        both += 1
        for name in NUMBERS:
            if None not in (same[name], row[name]) and not math.isclose(same[name], row[name], rel_tol=1e-9):
                sys.exit(f"summary.py: {key_of(row)}: {name} is {same[name]}, and {row[name]} in {EARLIER}")
    if EARLIER:
        print(f"{len(mine)} rows of this run, {len(out) - len(mine)} of {EARLIER} alone; {both} of both agree in nine digits",
              file=sys.stderr)
    return out


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


def words(cache):
    """"4:4 page keydiff heads 0.25" of what CACHE names."""
    k, v, code, policy, budget, keep = cache
    named = f"{k}:{v}" + ("" if code in ("-", "per-token") else f" {code}")
    return named, policy + ("" if budget in ("-", "uniform") else f" {budget}"), f"{keep:g}"


all_rows = with_earlier(list(rows()))
with open(DIR / "kv.csv", "w", newline="") as f:
    w = csv.DictWriter(f, FIELDS, lineterminator="\n")
    w.writeheader()
    w.writerows(all_rows)

with open(DIR / "kv.json", "w") as f:
    f.write('{"schema": "dq-kv-study/1", "rows": [\n' + ",\n".join(json.dumps(r) for r in all_rows) + "\n]}\n")

# One row each of a seed: all tokens kept in 16 bits stand in several documents.
groups = {}
for r in all_rows:
    of_seed = groups.setdefault((r["kind"], r["scored_on"], tuple(r[name] for name in CACHE)), {})
    of_seed.setdefault(r["seed"], r)
groups = {key: list(of_seed.values()) for key, of_seed in groups.items()}


def order(group):
    kind, on, (k, v, code, policy, budget, keep) = group[0]
    return on == "text", kind, -k, -v, code, policy, budget, -keep, on


lines, table = [], []
for (kind, on, cache), items in sorted(groups.items(), key=order):
    acc, nll = mean(items, "acc", "acc_se"), mean(items, "dnll", "dnll_se")
    kld = mean(items, "kld", "kld_se")
    held, payload = (mean(items, n, n) for n in ("ratio_held", "ratio_payload"))
    table.append((kind, on, *cache, len(items), held and f"{held[0]:.3f}", payload and f"{payload[0]:.3f}",
                  *(("", "") if m is None else (f"{m[0]:.6f}", f"{m[1]:.6f}") for m in (acc, nll, kld))))
    bits, policy, keep = words(cache)
    lines.append(f"{kind:10s} {on:14s} {bits:11s} {policy:14s} {keep:7s} n={len(items)} "
                 f"held {held[0] if held else math.nan:6.2f} payload {payload[0] if payload else math.nan:6.2f}  "
                 f"recall {text(acc)}  dNLL {text(nll)}  KLD {text(kld)}")
with open(DIR / "summary.csv", "w", newline="") as f:
    w = csv.writer(f, lineterminator="\n")
    w.writerow(("kind", "scored_on", *CACHE, "seeds", "ratio_held", "ratio_payload", "recall",
                "recall_se", "dnll", "dnll_se", "kld", "kld_se"))
    for row in table:
        flat = []
        for x in row:
            flat.extend(x if isinstance(x, tuple) else [x])
        w.writerow(flat)
(DIR / "summary.txt").write_text("\n".join(lines) + "\n")
print("\n".join(lines))


def items_of(path):
    """{what CACHE names: {item: right?}} of one document. Items of a cache that holds everything in 16 bits, which have no `kv`, are in no
    pair."""
    best = {}
    with gzip.open(path, "rt") as f:
        for d in map(json.loads, f):
            if "kv" not in d:
                continue
            row = best.setdefault(cache_of(d["kv"]), {})
            if d["item"] not in row or d["ll"] > row[d["item"]][0]:
                row[d["item"]] = (d["ll"], d["choice"] == d["gold"])
    return {key: {i: right for i, (_, right) in row.items()} for key, row in best.items()}


def earlier_pairs():
    """{(base, kind, scored_on, what CACHE names): (seeds, difference, error)} of EARLIER; a table without `of` pairs diff."""
    if not EARLIER:
        return {}
    with open(EARLIER / "paired.csv", newline="") as f:
        out = {}
        for r in csv.DictReader(f):
            bits, policy = (int(r["k_bits"]), int(r["v_bits"])), r.get("less") or r["against"]
            quant = r.get("quant") or ("per-token" if min(bits) < 16 else "-")
            cache = (*bits, quant, policy, r.get("budget") or "uniform", float(r["keep"]))
            found = r.get("recall_difference") or r["recall_diff_minus_other"]
            out[(r.get("of") or "diff", r["kind"], r["scored_on"], cache)] = (int(r["seeds"]), float(found), float(r["se"]))
        return out


def paired():
    """Recall of keydiff and of diff, with the same budget for all, minus that of each other cache with as many bits and the same
    share, over the same items: mean of the seeds, with error."""
    got = {}
    for path in sorted(DIR.glob("*.items.gz")):
        name = path.name.removesuffix(".items.gz")
        if scored_on(name) != "text":
            got.setdefault((*name.split("-")[:2], scored_on(name)), {}).update(items_of(path))
    seeds = {}
    for (kind, _, on), of in got.items():
        for (*bits, policy, budget, keep), right in of.items():
            for base in ("keydiff", "diff"):
                mine = of.get((*bits, base, "uniform", keep))
                if policy == "-" or mine is None or (policy, budget) == (base, "uniform"):
                    continue
                d = [int(mine[i]) - int(right[i]) for i in mine]
                se = statistics.stdev(d) / math.sqrt(len(d))
                seeds.setdefault((base, kind, on, (*bits, policy, budget, keep)), []).append({"delta": statistics.fmean(d), "se": se})
    pairs = {key: (len(found), *mean(found, "delta", "se")[:2]) for key, found in seeds.items()}
    for key, old in earlier_pairs().items():
        if old[0] > pairs.get(key, (0,))[0]:
            pairs[key] = old
    with open(DIR / "paired.csv", "w", newline="") as f, open(DIR / "paired.txt", "w") as lines:
        w = csv.writer(f, lineterminator="\n")
        w.writerow(("kind", "scored_on", "k_bits", "v_bits", "quant", "keep", "of", "less", "budget", "seeds", "recall_difference", "se"))
        for (base, kind, on, cache), (n, m, se) in sorted(pairs.items(), key=lambda g: (g[0][0] == "diff", order((g[0][1:],)))):
            k, v, code, policy, budget, keep = cache
            w.writerow((kind, on, k, v, code, keep, base, policy, budget, n, f"{m:+.4f}", f"{se:.4f}"))
            bits, policy, keep = words(cache)
            lines.write(f"{kind:10s} {on:14s} {bits:11s} keep {keep:<6s} {base} - {policy:14s} {m:+.4f} +- {se:.4f} ({n} seeds)\n")


paired()


KINDS = ("diffllama", "llama")
COLOURS = {"keydiff": "#d62728", "keydiff heads": "#7f0000", "leverage": "#e377c2", "kvzip": "#1a55ff", "a1": "#1f77b4",
           "a2": "#17becf", "sum": "#7f7f7f", "diff": "#4b0082", "h2o": "#ff7f0e", "snapkv": "#9467bd",
           "knorm": "#8c564b", "streaming": "#bcbd22", "random": "#000000"}
KEPT = "share of the context kept"


def curve(kind, on, bits, policy, value, x):
    """[(x, mean, error)] of one policy and budget with per-token codes, from large shares to small ones."""
    points = []
    for (k, s, cache), found in sorted(groups.items(), key=lambda g: -g[0][2][-1]):
        if (k, s, cache[:2], words(cache)[1]) == (kind, on, bits, policy) and cache[2] in ("-", "per-token"):
            m = mean(found, value, value + "_se")
            if m:
                points.append((x(found, cache[-1]), m[0], m[1]))
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
    plot("recall", "Recall after eviction, question after the cut, 16-bit cache", recall, "acc", [("recall", (16, 16))], KEPT, kept)
    plot("asked", "Recall after eviction, question on both sides of the cut, 16-bit cache (dashed: maps of the last 64 rows)",
         recall, "acc", [("asked", (16, 16)), ("asked last 64", (16, 16))], KEPT, kept)
    plot("kld", "Divergence on the second half of windows after eviction, 16-bit cache", "KLD (nats per token)", "kld",
         [("text", (16, 16))], KEPT, kept)
    plot("pareto", "Recall against bytes held, question after the cut (dashed: 4:4)", recall, "acc",
         [("recall", (16, 16)), ("recall", (4, 4))], "16-bit bytes of the whole context / bytes held", held,
         ("keydiff", "keydiff heads", "leverage", "kvzip", "diff", "h2o", "snapkv", "knorm", "random"))
