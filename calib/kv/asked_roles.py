#!/usr/bin/env python3
"""Head roles found on text, or on text and questions: what do they keep, at equal tokens and at equal bytes? A study with dq.

    python asked_roles.py PART.csv [--dq build/dq] [--models diffllama-0 ...] [--items 64] [--windows 24] [--ask 32]
    python asked_roles.py OUT.csv --join PART.csv ...

keydiff, 16-bit cache, 4 sinks and 16 recent tokens. Roles are those of find_roles.py, found on the last six windows of
../longpair/text.txt (`text`) or on these and the last --ask items of ../longpair/needles-asked.jsonl (`asked`), for a quarter and an
eighth. Scored are the first --items questions, the question known (asked) and coming later (blind), and the first --windows windows
(kld): `tokens` by as many tokens as the same share for every group (`drop`) has, `bytes` by as many pages of 64 tokens at most, since a
group that keeps 20 tokens takes a page. --find 0 instead of 6 finds `asked` on questions alone. A model that PART.csv has is not
measured again, whatever the settings were: a part made with other settings must go to another file. Printed, and beside the numbers as
measure `roles`, are the roles' texts. --join makes of parts the means and the differences to `drop`, and of `asked` to `text`, over
the same items, with intervals as defaults.py has them.
"""
import argparse
import csv
import math
import os
import tempfile

import defaults
import find_roles

HERE = os.path.dirname(os.path.abspath(__file__))
PAIR = os.path.join(HERE, "..", "longpair")
MODELS = [f"{kind}-{seed}" for kind in ("diffllama", "llama") for seed in range(3)]
KEEPS, PAGE, RECENT, WINDOW, LAST = (0.25, 0.125), 64, 16, 1024, 6


def tokens_of_pages(text, pages):
    """--kv-tokens with which groups before the / fill whole pages, the others hold one page, and all together no more than
    `pages` pages a group."""
    sharing, rest = (len(x.split(",")) if x else 0 for x in text.split("/"))
    safe, groups = find_roles.SINK + RECENT, sharing + rest
    each = (pages * groups - rest) // sharing
    return safe + sharing * (PAGE * each - safe) // groups


def last_windows(folder):
    """The last windows of the text, as words stand in it, each after a space."""
    with open(os.path.join(PAIR, "text.txt")) as f:
        words = f.read().split()
    out = os.path.join(folder, "find.txt")
    with open(out, "w") as f:
        f.write(" " + " ".join(words[-LAST * WINDOW:]))
    return out


def settings_of(model, o, text, find):
    """What find_roles.py would have of its command line."""
    return argparse.Namespace(model=os.path.join(PAIR, model), dq=o.dq, policy="keydiff", recent=RECENT, ctx=WINDOW, tries=16,
                              text=text, find=find, keep=list(KEEPS), ask=o.ask, questions=None)


def roles_of(model, o):
    """Texts by variant and share."""
    args = settings_of(model, o, None, LAST)
    groups = find_roles.groups_of(args)
    with tempfile.TemporaryDirectory() as folder:
        args.text = last_windows(folder)
        by_text = find_roles.found_by(args, groups)
        args.questions, args.find = os.path.join(PAIR, "needles-asked.jsonl"), o.find
        return {"text": by_text, "asked": find_roles.found_by(args, groups)}


def study(model, o):
    """Lines (measure, variant, share, numbers)."""
    roles, lines = roles_of(model, o), []
    args = settings_of(model, o, None, 0)
    needles = {name: ["--task", "mc", "--limit", str(o.items), "--data", os.path.join(PAIR, f"needles-{name}.jsonl")]
               for name in ("asked", "blind")}
    text = ["--text", os.path.join(PAIR, "text.txt"), "--ctx", str(WINDOW), "--limit", str(o.windows)]
    for measure, data, length in (("asked", needles["asked"], 1000), ("blind", needles["blind"], 1000), ("kld", text, WINDOW // 2)):
        for keep in KEEPS:
            def numbers(settings):
                (found,) = find_roles.ran(args, data, settings).values()
                return found
            drop, pages = numbers(["--kv-keep", str(keep)]), math.ceil(keep * length / PAGE)
            counted = ("tokens", "bytes") if pages > 1 else ("tokens",)  # of one page nothing can be given away
            lines += [(f"{measure} {what}", "drop", keep, drop) for what in counted]
            for variant, texts in roles.items():
                by = find_roles.by_roles(texts[keep])
                for what in counted:
                    share = ["--kv-keep", str(keep)] if what == "tokens" else ["--kv-tokens", str(tokens_of_pages(texts[keep], pages))]
                    lines.append((f"{measure} {what}", variant, keep, numbers([*share, *by])))
    for variant, texts in roles.items():
        print(model, variant, *(f"{keep:g}: {x}" for keep, x in texts.items()), flush=True)
        lines += [("roles", variant, keep, x) for keep, x in texts.items()]
    return lines


def overlap(o):
    """Why what is scored and what roles are found on are not apart; or None."""
    with open(os.path.join(PAIR, "text.txt")) as f:
        windows = len(f.read().split()) // WINDOW - LAST
    items = find_roles.lines_of(os.path.join(PAIR, "needles-asked.jsonl"))
    if o.items + o.ask > items:
        return f"needles-asked.jsonl has {items} items, fewer than --items {o.items} and --ask {o.ask} together"
    if o.windows > windows:
        return f"--windows {o.windows}: text.txt has {windows} windows before the last {LAST}, on which roles are found"


def join(paths, out):
    of = {}
    for path in paths:
        with open(path, newline="") as f:
            for r in (x for x in csv.DictReader(f) if x["measure"] != "roles"):
                kind, seed = r["model"].rsplit("-", 1)
                of.setdefault((r["measure"], kind, float(r["keep"]), r["variant"]), {})[seed] = [float(x) for x in r["numbers"].split()]
    out.writerow(["kind", "seed", "measure", "variant", "less", "keep", "items", "mean", "se", "difference", "half_95", "said"])
    for (measure, kind, keep, variant), ours in of.items():
        for less in {"drop": ["drop"], "text": ["drop"], "asked": ["drop", "text"]}[variant]:
            for seed, *x in defaults.compare(ours, of[measure, kind, keep, less]):
                word = defaults.said(measure, *x[2:]) if less != variant else ""
                out.writerow([kind, seed, measure, variant, less, keep, len(ours["0"])] + [f"{v:.5f}" for v in x] + [word])


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("out")
    a.add_argument("--dq", default="build/dq")
    a.add_argument("--models", nargs="+", default=MODELS)
    a.add_argument("--items", type=int, default=64)
    a.add_argument("--windows", type=int, default=24)
    a.add_argument("--ask", type=int, default=32)
    a.add_argument("--find", type=int, default=LAST, choices=(0, LAST), help="windows that `asked` is found on beside questions")
    a.add_argument("--join", nargs="+")
    o = a.parse_args()
    if o.join:
        with open(o.out, "w", newline="") as f:
            return join(o.join, csv.writer(f, lineterminator="\n"))
    if why := overlap(o):
        a.error(why)
    have = {r["model"] for r in csv.DictReader(open(o.out))} if os.path.exists(o.out) else set()
    for model in o.models:
        if model not in have:
            out = settings_of(model, o, None, 0)
            out.out = o.out
            find_roles.write_lines(out, study(model, o))


if __name__ == "__main__":
    main()
