#!/usr/bin/env python3
"""Which policy is meant where nobody names one: some policies on every model of the long pair, item by item.

    python defaults.py WORK OUT.csv [--dq build/dq] [--policies h2o kvzip keydiff leverage] [--usual keydiff]

Recall of 64 needles whose question comes later (blind) or stands in the context too (asked), and KLD on the second halves of
24 windows of text, 16 bits (kld) and 4:4 (kld 4:4), 4 sinks and 16 recent tokens kept beside what policies choose. A line a
model, measure, policy and share: the mean with its standard error, and the difference to the policy --usual over the same
items or windows with the half width of its 95 % interval (1.96 standard errors). Where no item differs both are 0. `all` is
the three models of a kind, their items and windows taken together: such an interval is about these models, not about others.
Finished parts in WORK are kept.
"""
import argparse
import csv
import json
import os
import subprocess

PAIR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "longpair")
KEEPS = (0.5, 0.25, 0.125)
NEEDLES = ["--task", "mc", "--limit", "64", "--data"]
TEXT = ["--text", os.path.join(PAIR, "text.txt"), "--ctx", "1024", "--limit", "24", "--kv-bits"]
MEASURES = {"blind": NEEDLES + [os.path.join(PAIR, "needles-blind.jsonl")], "asked": NEEDLES + [os.path.join(PAIR, "needles-asked.jsonl")],
            "kld": TEXT + ["16"], "kld 4:4": TEXT + ["4:4"]}


def items_of(o, model, measure):
    """Numbers of all items by policy and share."""
    dump = os.path.join(o.work, f"{model}-{measure.replace(' ', '-').replace(':', 'x')}.items")
    if not os.path.exists(dump):
        subprocess.run([o.dq, "eval", os.path.join(PAIR, model), *MEASURES[measure], "--kv-policy", ",".join(o.policies), "--kv-keep",
                        ",".join(map(str, KEEPS)), "--kv-recent", "16", "-q", "--force", "--dump-items", dump + ".new"], check=True,
                       stdout=subprocess.DEVNULL)
        os.replace(dump + ".new", dump)
    out = {}
    for item in map(json.loads, open(dump)):
        if item.get("choice", 0) == 0 and item["kv"].get("policy"):
            value = item["kld_nats"] if "kld_nats" in item else float(item["pick"]["acc"] == item["gold"])
            out.setdefault((item["kv"]["policy"], item["kv"]["keep"]), []).append(value)
    return out


def mean(x):
    m = sum(x) / len(x)
    return m, (sum((y - m) ** 2 for y in x) / (len(x) - 1) / len(x)) ** 0.5


def main():
    a = argparse.ArgumentParser()
    a.add_argument("work")
    a.add_argument("out")
    a.add_argument("--dq", default="build/dq")
    a.add_argument("--policies", nargs="+", default=["h2o", "kvzip", "keydiff", "leverage"])
    a.add_argument("--usual", default="keydiff")
    o = a.parse_args()
    os.makedirs(o.work, exist_ok=True)
    with open(o.out, "w", newline="") as f:
        w = csv.writer(f)
        w.writerow(["kind", "seed", "measure", "policy", "keep", "mean", "se", "less_" + o.usual, "half_95"])
        for kind in ("diffllama", "llama"):
            for measure in MEASURES:
                of = {str(s): items_of(o, f"{kind}-{s}", measure) for s in range(3)}
                of["all"] = {key: [x for s in "012" for x in of[s][key]] for key in of["0"]}
                for seed, rows in of.items():
                    for policy in o.policies:
                        for keep in KEEPS:
                            x, y = rows[policy, keep], rows[o.usual, keep]
                            d, half = mean([p - q for p, q in zip(x, y)])
                            w.writerow([kind, seed, measure, policy, keep] + [f"{v:.5f}" for v in (*mean(x), d, 1.96 * half)])


if __name__ == "__main__":
    main()
