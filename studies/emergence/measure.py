#!/usr/bin/env python3
"""Measures the checkpoints of one seed with dq:  measure.py --seed S --out DIR --text DIR --csv FILE [--dq PROGRAM]

One line per checkpoint and part of the held-out windows: part `all`, and BLOCKS parts of equally many, so that what is
computed over parts has an error. Held-out NLL is that of the second half of each window, by `dq eval --text`, on all windows.
Magnitudes and attention are by `dq stats`, on the first STATISTICS_WINDOWS. All of them begin with <bos>, as in training. Lines
that the file has already are not measured again.

    logits_*, hidden_*     of attention logits and hidden states (dq-stats/1): pooled over layers, heads, maps and windows
    *_crest                top1 / rms
    *_first                share of the PLACES largest values whose key (of a logit) or token is the first of its window
    hidden_inner_top1      of the layers before the last
    *_token, *_channel, *_layer, *_key, *_head    the commonest among the PLACES largest values, and its share of them: id of the
                           token (of a logit, of its key), channel, layer, layer.head
    sink_mean, sink_max    attention to the first four tokens: mean over layers, maps and heads, and the largest of a head
    lambda_min, lambda_max over layers, differential model only
"""
import argparse
import collections
import csv
import json
import os
import subprocess
import sys

import train

BLOCKS, PLACES, STATISTICS_WINDOWS = 8, 100, 64
FIELDS = ["kind", "seed", "step", "part", "nll_nats_per_token", "nll_stderr", "nll_nats_per_byte"] + [
    f"{what}_{name}" for what in ("logits", "hidden")
    for name in ("top1", "top10", "top100", "median", "rms", "kurtosis0", "crest", "first")] + [
    "hidden_inner_top1", *(f"{name}{share}" for name in (
        "hidden_token", "hidden_channel", "hidden_layer", "logits_key", "logits_head") for share in ("", "_share")),
    "sink_mean", "sink_max", "lambda_min", "lambda_max"]
COMMON = {"logits": {"logits_key": lambda p: p["key_id"], "logits_head": lambda p: f"{p['layer']}.{p['head']}"},
          "hidden": {"hidden_token": lambda p: p["id"], "hidden_channel": lambda p: p["channel"],
                     "hidden_layer": lambda p: p["layer"]}}


def run(command, threads):
    command = command + ["--json", "-q", "--threads", threads]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if answer.returncode:
        raise SystemExit(f"measure.py: {' '.join(command)[:200]} ended with {answer.returncode}")
    return json.loads(answer.stdout)["results"][0]


def statistics(dq, threads, folder, windows):
    command = [dq, "stats", folder, "--one-pass", "--places", str(PLACES)]
    for ids in windows:
        command += ["--ids", " ".join(map(str, ids))]
    found = run(command, threads)
    line = {}
    for what, name in (("attention_logits", "logits"), ("hidden_states", "hidden")):
        pooled = found["table5"][what]
        for key in ("top1", "top10", "top100", "median", "rms", "kurtosis0"):
            line[f"{name}_{key}"] = pooled[key]
        line[name + "_crest"] = pooled["top1"] / pooled["rms"]
        places = [p for p in found["top"] if p["values"] == what]
        first = "key" if name == "logits" else "position"
        line[name + "_first"] = sum(p[first] == 0 for p in places) / len(places)
        for key, value in COMMON[name].items():
            (common, n), = collections.Counter(value(p) for p in places).most_common(1)
            line[key], line[key + "_share"] = common, n / len(places)
    line["hidden_inner_top1"] = max(layer["hidden_states"]["top1"] for layer in found["layers"][:-1])
    heads = [m for layer in found["layers"] for head in layer["attention"]["heads"] for m in head["sink_mass"] if m is not None]
    line["sink_mean"], line["sink_max"] = sum(heads) / len(heads), max(heads)
    lam = [layer["attention"].get("lambda") for layer in found["layers"]]
    if lam[0] is not None:
        line["lambda_min"], line["lambda_max"] = min(lam), max(lam)
    return line


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--seed", type=int, required=True)
    parse.add_argument("--out", required=True, help="where train.py put its checkpoints")
    parse.add_argument("--text", required=True, help="where corpus.py and tokens.py put theirs")
    parse.add_argument("--csv", required=True)
    parse.add_argument("--dq", default="build/dq")
    parse.add_argument("--threads", default="0")
    args = parse.parse_args()
    with open(os.path.join(args.text, "windows.json")) as f:
        windows = json.load(f)
    n, few = len(windows["ids"]), windows["ids"][:STATISTICS_WINDOWS]
    known = set()
    if os.path.exists(args.csv):
        with open(args.csv, newline="") as f:
            known = {(line["kind"], line["step"]) for line in csv.DictReader(f) if line["part"] == "all"}
    else:
        with open(args.csv, "w", newline="") as f:
            csv.writer(f, lineterminator="\n").writerow(FIELDS)
    for step in train.CHECKPOINTS:
        for kind in ("llama", "diffllama"):
            folder = os.path.join(args.out, f"{kind}-{args.seed}", str(step))
            if (kind, str(step)) in known or not os.path.exists(folder):
                continue
            score = run([args.dq, "eval", folder, "--text", os.path.join(args.text, "heldout.txt"), "--ctx",
                         str(len(windows["ids"][0])), "--limit", str(n)], args.threads)
            nll = score["metrics"]["nll_nats"]
            lines = []
            for part in range(BLOCKS):
                some = few[part * len(few) // BLOCKS:(part + 1) * len(few) // BLOCKS]
                lines.append(dict(statistics(args.dq, args.threads, folder, some), kind=kind, seed=args.seed, step=step, part=part))
            lines.append(dict(statistics(args.dq, args.threads, folder, few), kind=kind, seed=args.seed,
                              step=step, part="all", nll_nats_per_token=nll["value"], nll_stderr=nll["stderr"],
                              nll_nats_per_byte=nll["value"] * score["n"] / sum(windows["bytes"])))
            with open(args.csv, "a", newline="") as f:
                out = csv.DictWriter(f, FIELDS, lineterminator="\n")
                out.writerows({k: f"{v:.8g}" if isinstance(v, float) else v for k, v in line.items()} for line in lines)
            print(f"{kind} {args.seed} step {step}: NLL {nll['value']:.4f}, logits top1 {lines[-1]['logits_top1']:.3f}, "
                  f"hidden top1 {lines[-1]['hidden_top1']:.3f}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
