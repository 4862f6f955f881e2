#!/usr/bin/env python3
"""What one way of rounding saves against another, window by window of the same text.

    python studies/weights/paired.py WINDOWS.jsonl OUT.csv

WINDOWS.jsonl: lines of `dq eval --dump-items` with "of" (the source) and "settings" (of dq quantize), as run.sh makes them.
A line of OUT.csv: source, settings that both have, the two, windows, their mean KLD each, the mean of the differences
(second less first) and its 95 % interval by Student's t over windows, and what follows from it: which is lower, or
"inconclusive".
"""
import csv
import json
import math
import statistics
import sys

PAIRS = (("--scale absmax", "--scale search"), ("--scale search", "--method gptq"),
         ("--scale asym", "--method gptq --scale asym"), ("--scale search", "--method align"),
         ("--method gptq", "--method align"), ("--method gptq", "--method gptq --scale asym"),
         ("--method align", "--method align --scale asym"))


def t95(df):
    """97.5 % of Student's t with df degrees of freedom lie below."""
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)

    def below(t, steps=2000):  # Simpson's rule from 0
        y = [(1 + (t * i / steps) ** 2 / df) ** (-(df + 1) / 2) for i in range(steps + 1)]
        return 0.5 + scale * t / steps / 3 * (y[0] + y[-1] + 4 * sum(y[1:-1:2]) + 2 * sum(y[2:-1:2]))

    low, high = 0, 700
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < 0.975 else (low, middle)
    return low


def compare(a, b):
    """Mean of b - a and its interval; lists of KLDs of the same windows."""
    d = [y - x for x, y in zip(a, b, strict=True)]
    mean, error = statistics.fmean(d), statistics.stdev(d) / math.sqrt(len(d))
    far = t95(len(d) - 1) * error
    return mean, mean - far, mean + far


def words(settings):
    """Options, each with its value: "--bits 4 --scale asym" has two."""
    w = settings.split()
    return frozenset(" ".join(w[i : i + 2]) for i in range(0, len(w), 2))


def main():
    kld = {}
    with open(sys.argv[1], encoding="utf-8") as f:
        for line in map(json.loads, f):
            own = kld.setdefault((line["of"], words(line["settings"])), {})
            own[line["document"], line["at"]] = line["kld_nats"]
    with open(sys.argv[2], "w", encoding="utf-8", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(("model", "settings", "first", "second", "windows", "kld_first", "kld_second", "difference", "low",
                      "high", "lower"))
        for (model, settings), a in kld.items():
            for first, second in PAIRS:
                if not words(first) <= settings:
                    continue
                common = settings - words(first)
                b = kld.get((model, common | words(second)))
                if not b or b is a:
                    continue
                if a.keys() != b.keys():
                    sys.exit(f"{model}, {first}: other windows than with {second}")
                mean, low, high = compare(list(a.values()), [b[w] for w in a])
                lower = second if high < 0 else first if low > 0 else "inconclusive"
                out.writerow((model, " ".join(sorted(common)), first, second, len(a), f"{statistics.fmean(a.values()):.6g}",
                              f"{statistics.fmean(b.values()):.6g}", f"{mean:.6g}", f"{low:.6g}", f"{high:.6g}", lower))


if __name__ == "__main__":
    main()
