#!/usr/bin/env python3
"""What forecasts are worth, of documents of `dq stats --sensitivity --json`, as CSV on standard output:  correlation.py JSON...

A line for each model, kind of unit and forecast: Spearman's correlation of the forecast with the measured KLD, its interval, and beside it
that of the KLD on one half of the windows with that on the other.
"""
import csv
import json
import sys

FIELDS = ["model", "bits", "granularity", "of", "by", "units", "forecast", "spearman", "low", "high", "repeat"]


def lines(path):
    with open(path, encoding="utf-8") as f:
        results = json.load(f)["results"]
    for r in results:
        s = r["sensitivity"]
        for c in s["correlation"]:
            low, high = c["interval"] or ("", "")
            yield {"model": "/".join(r["model"].rstrip("/").split("/")[-2:]), "bits": s["bits"],
                   "granularity": s["granularity"] if c["of"] == "logits" else "", "of": c["of"], "by": c["by"], "units": c["n"],
                   "forecast": c["forecast"], "spearman": c["spearman"], "low": low, "high": high, "repeat": c["repeat"]}


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    out = csv.DictWriter(sys.stdout, FIELDS, lineterminator="\n")
    out.writeheader()
    for path in sys.argv[1:]:
        for line in lines(path):
            out.writerow({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in line.items()})


if __name__ == "__main__":
    main()
