#!/usr/bin/env python3
"""The table of a CSV of find.py in Markdown: a row for a model and kind, a column for a strength; in a cell how many planted places are
in the first line, in the first five, and how many were planted: "1 2 / 3". By default the lists are those of ordinary tokens, for
kind first of first tokens.

    python table.py found.csv [ordinary|sink|first]
"""
import csv
import sys


def main():
    with open(sys.argv[1], encoding="utf-8", newline="") as f:
        rows = list(csv.DictReader(f))
    tokens = sys.argv[2] if len(sys.argv) > 2 else None
    strengths = list(dict.fromkeys(r["times"] for r in rows))
    strengths.sort(key=lambda t: float("inf") if t == "all" else float(t))
    print("| model | kind | " + " | ".join(strengths) + " |")
    print("|---|---|" + "---|" * len(strengths))
    if tokens in ("sink", "first"):
        rows = [r for r in rows if r["kind"] != "weight"]
    for model, kind in dict.fromkeys((r["model"], r["kind"]) for r in rows):
        cells = []
        for times in strengths:
            ranks = [r["rank_" + (tokens or ("first" if kind == "first" else "ordinary"))] for r in rows
                     if (r["model"], r["kind"], r["times"]) == (model, kind, times)]
            found = [int(n) for n in ranks if n]
            cells.append(f"{sum(n == 1 for n in found)} {sum(n <= 5 for n in found)} / {len(ranks)}" if ranks else "")
        print(f"| {model} | {kind} | " + " | ".join(cells) + " |")
    klds = [float(r["kld_nats"]) for r in rows if r["kld_nats"]]
    print(f"\n{len(rows)} plants in {len({(r['model'], r['kind'], r['layer'], r['head'], r['channel']) for r in rows})} places; "
          f"KLD of {len(klds)} from the model before: at most {max(klds):.1e} nats")


main()
