#!/usr/bin/env python3
"""Which policy is meant where nobody names one: some policies on every model of the long pair, item by item.

    python defaults.py WORK OUT.csv [--dq build/dq] [--policies h2o kvzip keydiff leverage] [--usual keydiff]
                       [--windows 72] [--needles 256] [--seen 24 64]

Recall of needles whose question comes later (blind) or stands in the context too (asked), and KLD on the second halves of
windows of text (kld), 16-bit cache and 4:4 dithered, 4 sinks and 16 recent tokens kept beside what policies choose. The first
windows and needles, --seen, are left out: an earlier choice has seen them. A line a model, measure, policy and share: the
mean with its standard error, and the difference to the policy --usual over the same items or windows with the half width of
its 95 % interval. After the seeds of a kind stand two more lines. `all`: an item's mean over the three models is one number,
so that models that read the same window are one cluster; about these models. `seeds`: Student's interval of the three
models' means (2 degrees of freedom); about models made by the same recipe. Printed is what each interval says. Finished parts
in WORK are kept; their names tell apart all that a part depends on but the program.
"""
import argparse
import csv
import hashlib
import json
import os
import subprocess

PAIR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "calib", "longpair")
KINDS, SEEDS = ("diffllama", "llama"), ("0", "1", "2")
KEEPS = (0.5, 0.25, 0.125, 0.0625)
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101,
           2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045)  # .975 quantile by degrees of freedom, from 1
CODES = {"": ["--kv-bits", "32"], " 4:4": ["--kv-bits", "4:4", "--kv-quant", "dither", "--kv-dense-type", "f32"]}


def measures(o):
    """Arguments of dq eval by name; how many of the first items are left out."""
    def needles(name):
        return ["--task", "mc", "--limit", str(o.needles), "--data", os.path.join(PAIR, f"needles-{name}.jsonl")]
    text = ["--text", os.path.join(PAIR, "text.txt"), "--ctx", "1024", "--limit", str(o.windows)]
    return {name + tag: (what + code, seen) for name, what, seen in
            (("blind", needles("blind"), o.seen[1]), ("asked", needles("asked"), o.seen[1]), ("kld", text, o.seen[0]))
            for tag, code in CODES.items()}


def part_name(model, measure, policy, arguments):
    """A file name for what these arguments give: the settings, readable, and a hash of all of them."""
    places = [os.path.basename(a) if os.path.sep in a else a for a in arguments]
    mark = hashlib.sha256("\0".join(places).encode()).hexdigest()[:8]
    return f"{model}-{measure.replace(' ', '-').replace(':', 'x')}-{policy}-{mark}.items"


def read_value(item):
    """KLD, or 1 for a right answer, of what --dump-items has of a window or of an item's first choice."""
    return item["kld_nats"] if "kld_nats" in item else float(item["pick"]["acc"] == item["gold"])


def read_items(lines):
    """Numbers of the items by share, in the order of the file: KLD, or 1 for a right answer."""
    out = {}
    for item in map(json.loads, lines):
        if item.get("choice", 0) == 0 and item["kv"].get("policy"):
            out.setdefault(item["kv"]["keep"], []).append(read_value(item))
    return out


def items_of(o, model, measure, policy):
    arguments, seen = measures(o)[measure]
    arguments = [*arguments, "--kv-policy", policy, "--kv-budget", "uniform", "--kv-keep", ",".join(map(str, KEEPS)), "--kv-recent", "16"]
    dump = os.path.join(o.work, part_name(model, measure, policy, arguments))
    if not os.path.exists(dump):
        subprocess.run([o.dq, "eval", os.path.join(PAIR, model), *arguments, "-q", "--force", "--dump-items", dump + ".new"],
                       check=True, stdout=subprocess.DEVNULL)
        os.replace(dump + ".new", dump)
    with open(dump) as f:
        return {keep: x[seen:] for keep, x in read_items(f).items()}


def mean(x):
    m = sum(x) / len(x)
    if len(x) < 2:
        return m, float("nan")
    return m, (sum((y - m) ** 2 for y in x) / (len(x) - 1) / len(x)) ** 0.5


def interval(x):
    """Mean and half width of its 95 % interval."""
    m, se = mean(x)
    return m, (STUDENT[len(x) - 2] if 0 <= len(x) - 2 < len(STUDENT) else 1.96) * se


def clusters(of):
    """of: numbers by seed, item by item. `all`: an item's mean over seeds; `seeds`: the mean of each seed."""
    return {**of, "all": [sum(x) / len(x) for x in zip(*of.values(), strict=True)], "seeds": [sum(x) / len(x) for x in of.values()]}


def compare(ours, usual):
    """ours, usual: numbers by seed. Rows (seed, mean, its error, difference, half width of its interval)."""
    less = {s: [a - b for a, b in zip(ours[s], usual[s], strict=True)] for s in ours}
    whole, difference = clusters(ours), clusters(less)
    return [(s, *mean(whole[s]), *interval(difference[s])) for s in whole]


def said(measure, difference, half):
    """What an interval says of a policy: lower KLD or more answers is better."""
    if not abs(difference) > half:  # nor where one number has no interval
        return "the same" if difference == half == 0 else "inconclusive"
    return "better" if (difference < 0) == measure.startswith("kld") else "worse"


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("work")
    a.add_argument("out")
    a.add_argument("--dq", default="build/dq")
    a.add_argument("--policies", nargs="+", default=["h2o", "kvzip", "keydiff", "leverage"])
    a.add_argument("--usual", default="keydiff")
    a.add_argument("--windows", type=int, default=72)
    a.add_argument("--needles", type=int, default=256)
    a.add_argument("--seen", type=int, nargs=2, default=(24, 64), metavar=("WINDOWS", "NEEDLES"))
    a.add_argument("--measures", nargs="+", help="some of them only")
    o = a.parse_args()
    os.makedirs(o.work, exist_ok=True)
    with open(o.out, "w", newline="") as f:
        w = csv.writer(f, lineterminator="\n")
        w.writerow(["kind", "seed", "measure", "policy", "keep", "mean", "se", "less_" + o.usual, "half_95", "said"])
        for measure in o.measures or measures(o):
            for kind in KINDS:
                of = {p: {s: items_of(o, f"{kind}-{s}", measure, p) for s in SEEDS} for p in dict.fromkeys([o.usual, *o.policies])}
                for policy in o.policies:
                    for keep in KEEPS:
                        ours, usual = ({s: of[p][s][keep] for s in SEEDS} for p in (policy, o.usual))
                        for seed, *numbers in compare(ours, usual):
                            word = said(measure, *numbers[2:]) if policy != o.usual else ""
                            w.writerow([kind, seed, measure, policy, keep] + [f"{v:.5f}" for v in numbers] + [word])
                            if word and seed in ("all", "seeds"):
                                print(f"{kind:9s} {measure:9s} keep {keep:<6g} {policy:8s} less {o.usual}, {seed:5s} "
                                      f"{numbers[2]:+.4f} +- {numbers[3]:.4f} {word}")
                f.flush()


if __name__ == "__main__":
    main()
