#!/usr/bin/env python3
"""Figure 8 of arXiv 2410.05258 for one seed: both last checkpoints over bits of the attention logits.

    python bits.py --seed S --out DIR --text DIR --csv FILE [--dq PROGRAM] [--step N]

Accuracy on items.jsonl and order.jsonl (chance 0.25) and NLL of the held-out windows, by `dq eval`. Beside each: the change
against the same checkpoint at 16 bits, and for accuracy DIFF against plain on the same items, with its interval of 95 %.
order.jsonl's columns begin with order_; its stretches are equally long, so it has one accuracy.
"""
import argparse
import csv
import json
import os
import subprocess

import train

BITS, GRANULARITY, WINDOWS = "16,8,6,5,4,3", "per-tensor", 128
FIELDS = ["kind", "seed", "step", "granularity", "bits", "items", "acc", "acc_stderr", "acc_norm", "acc_norm_stderr",
          "acc_norm_change", "acc_norm_change_low", "acc_norm_change_high", "acc_norm_diff_minus_plain",
          "acc_norm_diff_minus_plain_low", "acc_norm_diff_minus_plain_high", "nll_nats_per_token", "nll_stderr", "kld_nats",
          "kld_stderr", "order_items", "order_acc", "order_acc_stderr", "order_acc_change", "order_acc_change_low",
          "order_acc_change_high", "order_acc_diff_minus_plain", "order_acc_diff_minus_plain_low",
          "order_acc_diff_minus_plain_high"]


def evaluate(dq, threads, folders, more):
    command = [dq, "eval", *folders, *more, "--logit-bits", BITS, "--logit-granularity", GRANULARITY, "--json", "-q", "--threads", threads]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if answer.returncode:
        raise SystemExit(f"bits.py: {' '.join(command)} ended with {answer.returncode}")
    return {(r["model"], r["logit_granularity"], r["logit_bits"]): r for r in json.loads(answer.stdout)["results"]}


def paired(row, metric, name):
    """Change against 16 bits and DIFF against plain, each with its interval, where the row has them."""
    line = {}
    for pair, suffix in (("paired", "_change"), ("cross_paired", "_diff_minus_plain")):
        if row.get(pair):
            found = row[pair][metric]
            line.update({name + suffix: found["delta"], f"{name}{suffix}_low": found["interval"][0],
                         f"{name}{suffix}_high": found["interval"][1]})
    return line


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--seed", type=int, required=True)
    parse.add_argument("--out", required=True)
    parse.add_argument("--text", required=True)
    parse.add_argument("--csv", required=True)
    parse.add_argument("--dq", default="build/dq")
    parse.add_argument("--threads", default="0")
    parse.add_argument("--items", type=int, default=800, help="the first N items only")
    parse.add_argument("--step", type=int, default=train.STEPS)
    args = parse.parse_args()
    kinds = {os.path.join(args.out, f"{kind}-{args.seed}", str(args.step)): kind for kind in ("llama", "diffllama")}
    items, order = (evaluate(args.dq, args.threads, kinds,
                             ["--task", "mc", "--data", os.path.join(args.text, name), "--limit", str(args.items)])
                    for name in ("items.jsonl", "order.jsonl"))
    text = evaluate(args.dq, args.threads, kinds,
                    ["--text", os.path.join(args.text, "heldout.txt"), "--ctx",
                     str(train.SHAPE["max_position_embeddings"]), "--limit", str(WINDOWS)])
    with open(args.csv, "w", newline="") as f:
        out = csv.DictWriter(f, FIELDS, lineterminator="\n")
        out.writeheader()
        for (model, granularity, bits), row in items.items():
            acc, norm = row["metrics"]["acc"], row["metrics"]["acc_norm"]
            metrics = text[model, granularity, bits]["metrics"]
            line = {"kind": kinds[model], "seed": args.seed, "step": args.step, "granularity": granularity, "bits": bits,
                    "items": row["n"], "acc": acc["value"], "acc_stderr": acc["stderr"], "acc_norm": norm["value"],
                    "acc_norm_stderr": norm["stderr"], "nll_nats_per_token": metrics["nll_nats"]["value"],
                    "nll_stderr": metrics["nll_nats"]["stderr"]}
            if metrics.get("kld_nats") and bits < 16:
                line.update(kld_nats=metrics["kld_nats"]["value"], kld_stderr=metrics["kld_nats"]["stderr"])
            line.update(paired(row, "acc_norm", "acc_norm"))
            row = order[model, granularity, bits]
            line.update(order_items=row["n"], order_acc=row["metrics"]["acc"]["value"],
                        order_acc_stderr=row["metrics"]["acc"]["stderr"], **paired(row, "acc", "order_acc"))
            out.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in line.items()})


if __name__ == "__main__":
    main()
