#!/usr/bin/env python3
"""How a budget is spread over heads and layers, and by which policy it is spent: KLD on text, paired by window.

    python budgets.py WORK OUT.csv MODEL=TEXT... [--dq build/dq] [--windows 20] [--keep 0.5 0.25] [--policies h2o ...]
                      [--budgets uniform global adaptive] [--usual leverage]

Windows of 1024 tokens, whose first 512 are cut to a share; 4 sinks and 64 recent tokens are kept beside what a policy chooses. A line
a model, policy, budget and share: the mean KLD, the difference to `uniform` of the same policy and to --usual with `uniform`, each
with the half width of its 95 % interval and what that says (defaults.py). Shares of fewer than 68 tokens are all the same cache. What
dq has measured lies in WORK as MODEL.items, and is not measured again.
"""
import argparse
import csv
import json
import os
import subprocess

import defaults


def items_of(o, model, text):
    """policy, budget, share -> KLD window by window."""
    dump = os.path.join(o.work, os.path.basename(model) + ".items")
    if not os.path.exists(dump):
        subprocess.run([o.dq, "eval", model, "--text", text, "--ctx", "1024", "--limit", str(o.windows), "--kv-keep",
                        ",".join(map(str, o.keep)), "--kv-policy", ",".join(o.policies), "--kv-budget", ",".join(o.budgets), "-q",
                        "--kv-bits", "32", "--kv-recent", "64", "--force", "--dump-items", dump + ".new"],
                       check=True, stdout=subprocess.DEVNULL)
        os.replace(dump + ".new", dump)
    out = {}
    with open(dump) as f:
        for item in map(json.loads, f):
            kv = item.get("kv", {})
            if kv.get("keep", 1) < 1:
                out.setdefault((kv["policy"], kv["budget"], kv["keep"]), []).append(item["kld_nats"])
    return out


def against(ours, usual):
    less, half = defaults.interval([a - b for a, b in zip(ours, usual, strict=True)])
    return f"{less:+.5f}", f"{half:.5f}", defaults.said("kld", less, half)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("work")
    a.add_argument("out")
    a.add_argument("models", nargs="+", metavar="MODEL=TEXT")
    a.add_argument("--dq", default="build/dq")
    a.add_argument("--windows", type=int, default=20)
    a.add_argument("--keep", type=float, nargs="+", default=[0.5, 0.25])
    a.add_argument("--policies", nargs="+", default=["h2o", "snapkv", "keydiff", "leverage", "kvzip"])
    a.add_argument("--budgets", nargs="+", default=["uniform", "global", "adaptive"])
    a.add_argument("--usual", default="leverage")
    o = a.parse_args()
    os.makedirs(o.work, exist_ok=True)
    with open(o.out, "w", newline="") as f:
        w = csv.writer(f, lineterminator="\n")
        of = [f"{what}_{base}" for base in ("uniform", o.usual) for what in ("less", "half_95", "said")]
        w.writerow(["model", "windows", "policy", "budget", "keep", "kld", *of])
        for model, text in (m.split("=", 1) for m in o.models):
            found = items_of(o, model, text)
            for (policy, budget, keep), x in sorted(found.items()):
                if keep in o.keep:
                    w.writerow([os.path.basename(model), len(x), policy, budget, keep, f"{sum(x) / len(x):.5f}",
                                *against(x, found[policy, "uniform", keep]), *against(x, found[o.usual, "uniform", keep])])


if __name__ == "__main__":
    main()
