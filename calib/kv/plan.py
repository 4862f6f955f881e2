#!/usr/bin/env python3
"""Widths of a KV cache's per-channel codes by layer and map, measured: a text for --kv-bits. dq plan --kv does the same in one process.

    python calib/kv/plan.py MODEL --text FILE [--mean 4] [--code dither] [--score 12] [--of TEXT,...] [--out OUT.csv]
                            [--recipe OUT.json [--weights RECIPE.json]]

Runs `dq eval` over windows of FILE, whose second halves count. The --plan (24) after the first --score (12) plan. Every unit
(keys of a layer and map; values of a layer) is coded alone at each width, all others at 8 bits; steps that save most KLD for
their bits are taken while the mean over keys and values is at most --mean. Then, measured whole, a unit gives a step to another as long as
that helps, --rounds times at most. Printed is the text, and on the first --score windows, which no choice has seen, its KLD and
perplexity beside those of --mean bits for all; --out appends them as lines of a CSV. --of scores given texts on
all windows but those that plan, and plans nothing. --recipe writes the plan as a file for `dq quantize --recipe`, beside the
settings of weights that --weights has; without it weights have their defaults.
"""
import argparse
import json
import math
import os
import statistics
import sys
import tempfile

from dq_runs import of_dq

WIDTHS = (2, 3, 4, 5, 6, 8)
SWEEP = 32  # widths that one run of dq eval takes


def key_maps(head_order, n_q, n_kv):
    """2 where no KV head's keys are read by both maps of the model, so that keys can have widths by map; else 1."""
    if head_order in ("plain", "shared-kv"):
        return 1
    if head_order in ("adjacent", "grouped"):
        return 2
    repeat, half = n_q // n_kv, n_q // 2
    pairs = {"halves": [(h, h + half) for h in range(half)], "adjacent-naive": [(2 * h, 2 * h + 1) for h in range(half)]}[head_order]
    return 1 if {a // repeat for a, _ in pairs} & {b // repeat for _, b in pairs} else 2


def entries_of(side, layers, text):
    """Widths of one side of a text by layer, (first map, second map) each."""
    runs, rest = [], None
    for entry in side.split("|"):
        widths, star, count = entry.partition("*")
        maps = [int(w) for w in widths.split("+")]
        if star and not count:
            rest = len(runs)
        runs.append([(maps[0], maps[-1]), int(count) if count else 1])
    if rest is None and len(runs) == 1 and "*" not in side:
        rest = 0
    if rest is not None:
        runs[rest][1] = layers - sum(n for i, (_, n) in enumerate(runs) if i != rest)
    if sum(n for _, n in runs) != layers or any(n < 1 for _, n in runs):
        sys.exit(f"plan.py: {text}: not widths of {layers} layers.")
    return [maps for maps, n in runs for _ in range(n)]


def meant(text, layers):
    """What a text says, however it is written: widths of keys by layer and map, widths of values by layer."""
    keys, _, values = text.partition(":")
    return tuple(entries_of(keys, layers, text)), tuple(v for v, _ in entries_of(values or keys, layers, text))


class Cache:
    """What widths lose by window, measured once."""

    def __init__(self, args, layers):
        self.args, self.layers, self.rows = args, layers, {}

    def run(self, texts):
        """Rows of windows, (KLD, NLL) each, by text; dq prints what a text means in a form of its own."""
        a = self.args
        limit = [] if a.of else ["--limit", str(a.score + a.plan)]
        asked = [meant(t, self.layers) for t in ["16:16", *texts]]
        todo = [t for m, t in dict(zip(asked, ["16:16", *texts])).items() if m not in self.rows]
        for i in range(0, len(todo), SWEEP):
            with tempfile.TemporaryDirectory() as folder:
                items = os.path.join(folder, "items.jsonl")
                of_dq([a.dq, "eval", a.model, "--text", a.text, "--ctx", str(a.ctx), "--kv-recent", str(a.recent), "--kv-quant", a.code,
                       "--kv-bits", ",".join(todo[i:i + SWEEP]), "--dump-items", items, "--progress", "never", *limit])
                rows = {}
                for line in open(items):
                    x = json.loads(line)
                    kv = x.get("kv") or {"widths": "16:16"}
                    name = kv["widths"] or f"{kv['k_bits']}:{kv['v_bits']}"
                    rows.setdefault(meant(name, self.layers), []).append((x.get("kld_nats") or 0, x["nll_nats"]))
                self.rows.update(rows)
        return [self.rows[m] for m in asked[1:]]

    def planned(self, texts):
        return [statistics.fmean(k for k, _ in rows[self.args.score:]) for rows in self.run(texts)]


def text_of(widths, layers, maps):
    """widths: keys by layer and map, then values by layer; as dq writes them."""
    def joined(entries):
        runs = []
        for e in entries:
            runs = runs[:-1] + [(e, runs[-1][1] + 1)] if runs and runs[-1][0] == e else runs + [(e, 1)]
        return "|".join(e if n == 1 or len(runs) == 1 else f"{e}*{n}" for e, n in runs)
    keys = [widths[i * maps:(i + 1) * maps] for i in range(layers)]
    return (joined(str(k[0]) if len(set(k)) == 1 else "+".join(map(str, k)) for k in keys) + ":" +
            joined(map(str, widths[layers * maps:])))


def greedy(loss, cost, budget):
    """Widths by unit: from the fewest bits on, the step that saves most for its bits and still fits."""
    at = [0] * len(cost)
    while True:
        best = None
        for u, i in enumerate(at):
            for j in range(i + 1, len(WIDTHS)):
                more = (WIDTHS[j] - WIDTHS[i]) * cost[u]
                spent = sum(WIDTHS[k] * c for k, c in zip(at, cost))
                gain = (loss[u][i] - loss[u][j]) / more
                if spent + more <= budget + 1e-9 and gain > 0 and (best is None or gain > best[0]):
                    best = gain, u, j
        if best is None:
            return [WIDTHS[i] for i in at]
        at[best[1]] = best[2]


def neighbours(widths, cost, budget):
    """One unit a step up where that fits, else with another down."""
    def step(w, by):
        i = WIDTHS.index(w) + by
        return WIDTHS[i] if 0 <= i < len(WIDTHS) else None
    spent = sum(w * c for w, c in zip(widths, cost))
    for u, up in enumerate(step(w, 1) for w in widths):
        if up is None:
            continue
        more = spent + (up - widths[u]) * cost[u]
        one = widths[:u] + [up] + widths[u + 1:]
        if more <= budget + 1e-9:
            yield one
        for v, down in enumerate(step(w, -1) for w in widths):
            if v != u and down is not None and more > budget and more - (widths[v] - down) * cost[v] <= budget + 1e-9:
                yield one[:v] + [down] + one[v + 1:]


def report(cache, texts):
    """On the windows that no choice has seen."""
    args = cache.args
    for text in texts:
        rows, exact = (x[:args.score] + x[args.score + args.plan:] for x in cache.run([text, "16:16"]))
        loss = [a[1] - b[1] for a, b in zip(rows, exact)]
        kld = [k for k, _ in rows]
        err = [statistics.stdev(x) / math.sqrt(len(x)) for x in (kld, loss)]
        line = (os.path.basename(args.model.rstrip("/")), args.code, text, f"{1e3 * statistics.fmean(kld):.4f}", f"{1e3 * err[0]:.4f}",
                f"{100 * math.expm1(statistics.fmean(loss)):.3f}", f"{100 * err[1]:.3f}", len(kld))
        print("{0} {1} {2}: KLD {3} +- {4} (1e-3 nats), perplexity {5} +- {6} %, {7} windows".format(*line))
        if args.out:
            new = not os.path.exists(args.out)
            with open(args.out, "a") as f:
                if new:
                    f.write("model,code,widths,kld_1e3,kld_1e3_stderr,dppl_percent,dppl_percent_stderr,windows\n")
                f.write(",".join(map(str, line)) + "\n")


def recipe_of(weights, text, args):
    """weights: a recipe, or {}; with the plan's widths, and what else it says of the KV cache (roles)."""
    other = {k: v for k, v in weights.get("kv", {}).items() if k not in ("k_bits", "v_bits")}
    return {**weights, "schema": "dq-recipe/1", "kv": {**other, "widths": text, "quant": args.code, "recent": args.recent},
            "comment": weights.get("comment", f"kv: calib/kv/plan.py, mean of {args.mean} bits")}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("--text", required=True)
    ap.add_argument("--mean", type=int, default=4, help="bits of keys and values together, without scales: 2, 3, 4, 5, 6")
    ap.add_argument("--code", default="dither", choices=("per-token", "per-channel", "dither"))
    ap.add_argument("--ctx", type=int, default=1024)
    ap.add_argument("--recent", type=int, default=16)
    ap.add_argument("--score", type=int, default=12, help="windows that do not plan")
    ap.add_argument("--plan", type=int, default=24, help="windows after them, that do")
    ap.add_argument("--of", help="widths to score instead of planning, on the windows before and after those that plan")
    ap.add_argument("--rounds", type=int, default=20)
    ap.add_argument("--dq", default="build/dq")
    ap.add_argument("--out")
    ap.add_argument("--recipe", help="a file for dq quantize --recipe")
    ap.add_argument("--weights", help="a recipe whose settings of weights it has")
    args = ap.parse_args()
    if args.code == "per-token" and not args.of:
        ap.error("--code token: its widths are the same for all layers and maps, so there is nothing to plan. "
                 "Use page or dither, or --of to score widths")
    if args.recipe and args.of or args.weights and not args.recipe:
        ap.error("--recipe writes a plan, which --of does not make" if args.recipe else "--weights needs --recipe")
    weights = json.load(open(args.weights)) if args.weights else {}
    about = json.loads(of_dq([args.dq, "info", args.model, "--json"]))["inputs"][0]
    layers, maps = about["layers"], key_maps(about["head_order"], about["n_q"], about["n_kv"])
    cache = Cache(args, layers)
    if args.of:
        return report(cache, args.of.split(","))
    units = layers * maps + layers
    cost = [0.5 / layers / maps] * (layers * maps) + [0.5 / layers] * layers
    alone = [text_of([8] * u + [w] + [8] * (units - u - 1), layers, maps) for u in range(units) for w in WIDTHS]
    flat = cache.planned(alone)
    loss = [flat[u * len(WIDTHS):(u + 1) * len(WIDTHS)] for u in range(units)]
    for u in range(units):
        name = f"values of layer {u - layers * maps}" if u >= layers * maps else f"keys of layer {u // maps}, map {u % maps + 1}"
        print(f"{name}: KLD at {', '.join(map(str, WIDTHS))} bits (1e-3): " + ", ".join(f"{1e3 * x:.3g}" for x in loss[u]))
    widths = greedy(loss, cost, args.mean)
    now = cache.planned([text_of(widths, layers, maps)])[0]
    print(f"by units: {text_of(widths, layers, maps)}, KLD {1e3 * now:.3f}e-3 on the windows that plan")
    for _ in range(args.rounds):
        others = list(neighbours(widths, cost, args.mean))
        found = cache.planned([text_of(w, layers, maps) for w in others])
        if not found or min(found) >= now:
            break
        now, widths = min(zip(found, others))
        print(f"measured: {text_of(widths, layers, maps)}, {1e3 * now:.3f}e-3")
    report(cache, [f"{args.mean}:{args.mean}", text_of(widths, layers, maps)])
    if args.recipe:
        with open(args.recipe, "w") as f:
            json.dump(recipe_of(weights, text_of(widths, layers, maps), args), f, indent=2)
            f.write("\n")


if __name__ == "__main__":
    sys.exit(main())
