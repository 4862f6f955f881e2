#!/usr/bin/env python3
"""Which groups of a model's KV heads need the whole context, measured with dq: a text for --kv-roles.

    python calib/kv/find_roles.py MODEL --text FILE [--keep 0.125 ...] [--policy keydiff] [--find 6] [--score 12] [--dq build/dq]
                                  [--questions FILE.jsonl [--ask 32]] [--needles FILE.jsonl] [--out PART.csv]
                                  [--recipe OUT.json [--weights RECIPE.json]]
    python calib/kv/find_roles.py MODEL --text FILE --of TEXT ...

Runs `dq eval` over windows of FILE, whose first halves are compressed and whose second halves count. On the first --find windows
every group (layer.group) is cut alone, as far as sinks and recent tokens, while the others keep all (of questions: as many as
the shortest has): groups are ordered by the
KLD that this costs. --questions has the last --ask of its items (of --task mc) count as well: to the KLD of text is added what the
right answer lacks of all choices, -ln of its share, mean over items. Roles found on text alone can lose the answers to questions;
--find 0 asks questions only. Then, for every share of --keep, 1, 2, ... groups of that order (of many groups: about --tries
numbers) share what may be kept; the number that loses least stands before the /. Printed are the text, and on --score windows after
those, which no choice has seen, its KLD beside that of `uniform`; with --needles also the answers to that file's first --items
questions. --out appends the numbers of all windows and questions, for `roles.py OUT.csv --join PART.csv ...`, where `drop` is
uniform. --of finds nothing and scores a text. --recipe writes policy, first share and its text as a file for `dq quantize
--recipe`, beside the settings of weights, and the widths, that --weights has. Head roles are DuoAttention's (arXiv 2410.10819); the
way to find them is roles.py's. `dq plan --roles` finds the same, and is checked against this script (tests/peers/kv_studies.py).
"""
import argparse
import csv
import json
import math
import os
import statistics
import sys
import tempfile

from dq_runs import of_dq

SINK = 4


def number(lines):
    """Of a window its KLD, of a question 1 for a right answer. lines: what --dump-items has of it, one a choice."""
    x = lines[0]
    return x["kld_nats"] if "kld_nats" in x else float(x["pick"]["acc"] == x["gold"])


def lack(lines):
    """Of a question: -ln of the share that the right answer has of the probability of all choices."""
    ll = [x["ll"] for x in lines]
    return max(ll) + math.log(sum(math.exp(x - max(ll)) for x in ll)) - ll[lines[0]["gold"]]


def ran(args, data, settings, read=number):
    """What `read` says of windows or questions, by share (None: of --kv-tokens), in the order of the file, after a run of dq eval."""
    with tempfile.TemporaryDirectory() as folder:
        items = os.path.join(folder, "items.jsonl")
        of_dq([args.dq, "eval", args.model, *data, "--kv-policy", args.policy, "--kv-sink", str(SINK), "--kv-recent",
               str(args.recent), *settings, "--dump-items", items, "-q"])
        out = {}
        for x in map(json.loads, open(items)):
            if x["kv"].get("policy"):
                rows = out.setdefault(x["kv"]["keep"], [])
                rows += [[]] if x.get("choice", 0) == 0 else []
                rows[-1].append(x)
        return {keep: [read(lines) for lines in rows] for keep, rows in out.items()}


def klds(args, windows, settings):
    rows = ran(args, ["--text", args.text, "--ctx", str(args.ctx), "--limit", str(windows)], settings)
    for x in rows.values():
        if len(x) != windows:
            sys.exit(f"find_roles.py: {args.text} has {len(x)} windows of {args.ctx} ids, and {windows} are asked for. "
                     "Lower --find, --score or --ctx.")
    return rows


def by_roles(text):
    return ["--kv-budget", "roles", "--kv-roles", text]


def text_of(order, sharing):
    """As --kv-roles takes it; sharing: how many groups stand before the /."""
    return ",".join(order[:sharing]) + "/" + ",".join(order[sharing:])


def others_whole(prefix, recent, groups):
    """--kv-tokens with which all groups but one keep everything and that one has nothing beside sinks and recent tokens; where
    division leaves some tokens, others lack one each."""
    safe = SINK + recent
    return safe + (groups - 1) * (prefix - safe) // groups


def numbers_to_try(groups, tries):
    """1 to groups, or at most `tries` numbers from 1 to groups that grow by a factor."""
    if groups <= tries:
        return list(range(1, groups + 1))
    return sorted({round(groups ** (i / (tries - 1))) for i in range(tries)})


def lines_of(name):
    with open(name) as f:
        return sum(1 for _ in f)


def last_lines(name, count, folder):
    """A file in folder with the last `count` lines of file `name`."""
    with open(name) as f:
        lines = f.readlines()
    if len(lines) < count:
        sys.exit(f"find_roles.py: {name} has {len(lines)} items, and {count} are asked for. Lower --ask.")
    out = os.path.join(folder, "questions.jsonl")
    with open(out, "w") as f:
        f.writelines(lines[-count:])
    return out


class Loss:
    """What the windows and questions that roles are found on lose, by share: what is printed, and the sum, by which to choose."""

    def __init__(self, args, folder):
        self.args = args
        self.asked = ["--task", "mc", "--data", last_lines(args.questions, args.ask, folder)] if args.questions else None
        if self.asked:
            (lengths,) = ran(args, self.asked, ["--kv-keep", "0.5"], lambda lines: lines[0]["n_ctx"]).values()
            self.shortest = min(lengths)

    def of(self, on_text, on_questions):
        """on_text, on_questions: settings of the cache; the numbers of both runs by share."""
        parts = []
        if self.args.find:
            parts.append(("KLD", klds(self.args, self.args.find, on_text)))
        if self.asked:
            parts.append(("answers", ran(self.args, self.asked, on_questions, lack)))
        means = [(name, {keep: statistics.fmean(x) for keep, x in rows.items()}) for name, rows in parts]
        return {keep: (", ".join(f"{name} {x[keep]:.5f}" for name, x in means), sum(x[keep] for _, x in means)) for keep in means[0][1]}


def order_of(args, groups, loss):
    """Groups, the one that is missed most first."""
    missed = {}
    for g in groups:
        by = by_roles(text_of([x for x in groups if x != g] + [g], len(groups) - 1))
        prefixes = (args.ctx // 2, loss.shortest if loss.asked else args.ctx // 2)
        (found,) = loss.of(*(["--kv-tokens", str(others_whole(n, args.recent, len(groups))), *by] for n in prefixes)).values()
        missed[g] = found[1]
        print(f"group {g} without context: {found[0]}", flush=True)
    return sorted(groups, key=lambda g: -missed[g])


def texts_of(args, order, loss):
    """By share: as many groups of the order as lose least when they share what it leaves."""
    lost = {keep: {} for keep in args.keep}
    for r in numbers_to_try(len(order), args.tries):
        settings = ["--kv-keep", ",".join(map(str, args.keep)), *by_roles(text_of(order, r))]
        found = loss.of(settings, settings)
        for keep in args.keep:
            lost[keep][r] = found[keep][1]
    for keep in args.keep:
        what = " + ".join(["KLD"] * bool(args.find) + ["answers"] * bool(loss.asked))
        print(f"{what} at {keep:g} when the first share: " + ", ".join(f"{r}: {x:.5f}" for r, x in lost[keep].items()), flush=True)
    return {keep: text_of(order, min(lost[keep], key=lost[keep].get)) for keep in args.keep}


def found_by(args, groups):
    """Texts by share."""
    with tempfile.TemporaryDirectory() as folder:
        loss = Loss(args, folder)
        return texts_of(args, order_of(args, groups, loss), loss)


def scored(args, data, texts, measure, first=0):
    """Lines (variant, keep, numbers) of the items from `first` on, and what they say."""
    usual = ran(args, data, ["--kv-keep", ",".join(map(str, args.keep))])
    for x in usual.values():
        if len(x) <= first:
            sys.exit(f"find_roles.py: {measure}: {len(x)} items, of which the first {first} were used to find roles. "
                     "Lower --find, or take --score 0.")
    lines = []
    for keep in args.keep:
        ours, plain = ran(args, data, ["--kv-keep", str(keep), *by_roles(texts[keep])])[keep][first:], usual[keep][first:]
        less = [a - b for a, b in zip(ours, plain, strict=True)]
        err = statistics.stdev(less) / math.sqrt(len(less)) if len(less) > 1 else math.nan
        print(f"{measure}, {args.policy}, keep {keep:g}: {statistics.fmean(ours):.5f} with roles {texts[keep]}, "
              f"{statistics.fmean(plain):.5f} without, difference {statistics.fmean(less):+.5f} +- {err:.5f} over {len(less)}", flush=True)
        lines += [(measure, "drop", keep, plain), (measure, "roles", keep, ours)]
    return lines


def write_lines(args, lines):
    new = not os.path.exists(args.out)
    with open(args.out, "a", newline="") as f:
        w = csv.writer(f, lineterminator="\n")
        if new:
            w.writerow(["model", "measure", "guide", "variant", "keep", "numbers"])
        name = os.path.basename(args.model.rstrip("/"))
        w.writerows([name, measure, args.policy, variant, keep, x if isinstance(x, str) else " ".join(f"{n:.6g}" for n in x)]
                    for measure, variant, keep, x in lines)


def recipe_of(weights, text, args):
    """weights: a recipe, or {}; with the policy and the roles, and what else it says of the KV cache (widths of a plan)."""
    other = {k: v for k, v in weights.get("kv", {}).items() if k not in ("tokens", "every", "window")}
    kv = {**other, "policy": args.policy, "keep": args.keep[0], "budget": "roles", "roles": text, "sink": SINK, "recent": args.recent}
    return {**weights, "schema": "dq-recipe/1", "kv": kv, "comment": weights.get("comment", "kv: calib/kv/find_roles.py")}


def groups_of(args):
    """Names of the model's groups of KV heads."""
    about = json.loads(of_dq([args.dq, "info", args.model, "--json"]))["inputs"][0]
    groups = [f"{layer}.{g}" for layer in range(about["layers"]) for g in range(about["kv_groups"])]
    if len(groups) < 2:
        sys.exit(f"find_roles.py: {args.model} has one group of KV heads, so that there is nothing to share.")
    return groups


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("--text", required=True)
    ap.add_argument("--keep", type=float, nargs="+", default=[0.125])
    ap.add_argument("--policy", default="keydiff")
    ap.add_argument("--ctx", type=int, default=1024)
    ap.add_argument("--recent", type=int, default=16)
    ap.add_argument("--find", type=int, default=6, help="first windows, that roles are found on")
    ap.add_argument("--score", type=int, default=12, help="windows after them, that are scored")
    ap.add_argument("--tries", type=int, default=16, help="at most so many numbers of groups that share")
    ap.add_argument("--questions", help="items of --task mc, the last of which roles are found on too")
    ap.add_argument("--ask", type=int, help="how many of them (32)")
    ap.add_argument("--needles", help="questions of --task mc that are scored too")
    ap.add_argument("--items", type=int, default=64)
    ap.add_argument("--of", help="a text to score instead of finding one")
    ap.add_argument("--dq", default="build/dq")
    ap.add_argument("--out")
    ap.add_argument("--recipe", help="a file for dq quantize --recipe")
    ap.add_argument("--weights", help="a recipe whose other settings it has")
    args = ap.parse_args()
    if args.of and args.questions:
        ap.error("--questions is for finding; --of finds nothing")
    if args.ask is not None and not args.questions:
        ap.error("--ask needs --questions")
    args.ask = 32 if args.ask is None else args.ask
    if args.tries < 2 or args.find < (0 if args.questions else 1) or args.score < 0 or args.ask < 1:
        ap.error("--tries is at least 2, --find 1 (0 with --questions), --score 0 and --ask 1")
    if args.weights and not args.recipe:
        ap.error("--weights needs --recipe")
    if args.questions and args.needles and os.path.realpath(args.questions) == os.path.realpath(args.needles):
        if (count := lines_of(args.needles)) < args.items + args.ask:
            ap.error(f"{args.needles} has {count} items: the first {args.items} are scored and roles are found on the last {args.ask}, "
                     "so some are in both. Lower --items or --ask")
    weights = json.load(open(args.weights)) if args.weights else {}
    groups = groups_of(args)
    texts = dict.fromkeys(args.keep, args.of) if args.of else found_by(args, groups)
    for keep in args.keep:
        print(f"--kv-policy {args.policy} --kv-keep {keep:g} --kv-sink {SINK} --kv-recent {args.recent} "
              f"--kv-budget roles --kv-roles {texts[keep]}")
    if args.recipe:
        with open(args.recipe, "w") as f:
            json.dump(recipe_of(weights, texts[args.keep[0]], args), f, indent=2)
            f.write("\n")
    lines = []
    if args.score:
        text = ["--text", args.text, "--ctx", str(args.ctx), "--limit", str(args.find + args.score)]
        lines += scored(args, text, texts, "kld", args.find)
    if args.needles:
        lines += scored(args, ["--task", "mc", "--data", args.needles, "--limit", str(args.items)], texts, "blind")
    if args.out:
        write_lines(args, lines)


if __name__ == "__main__":
    sys.exit(main())
