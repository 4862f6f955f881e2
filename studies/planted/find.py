#!/usr/bin/env python3
"""Plants outliers of each kind and strength in random places of a model and looks where dq stats names them; writes a CSV.

    python find.py MODEL SPREAD --dq DQ --text FILE --scratch DIR --csv found.csv [--add] [--kinds keys,values] [--kld 1]

SPREAD is MODEL after `plant.py MODEL SPREAD --kind spread`: what kind hidden is planted in. A place is drawn once and planted at every
strength. A line of the CSV is one plant; rank_CLASS is the line, from 1, of the list of that kind and class of tokens which names the
place, nothing where none of the first --places does; rank_before is the rank among ordinary tokens (of first: first ones) without the
plant. Of weights it is the rank by crest factor among matrices of the role, if the planted column is one of the two named. kld_nats
compares the planted model with MODEL over the first --kld windows, at the largest strength of each place.
"""
import argparse
import csv
import json
import os
import random
import shutil
import subprocess

import torch

import plant

TIMES = (0.5, 1.1, 2, 10, 100)
REACHED = (0.5, 1.1, 2, None)  # of rotations; None: all that the leading direction has
COLUMNS = ("model", "kind", "times", "layer", "head", "channel", "matrix", "size", "natural", "rank_ordinary", "rank_sink",
           "rank_first", "rank_before", "magnitude", "kld_nats")


def stats(args, folder, kind):
    quick = ["--ids", "1 2 3"] if kind == "weight" else ["--text", args.text, "--ctx", str(args.ctx), "--limit", str(args.limit)]
    bos = ["--bos", "on"] if kind == "first" else []
    out = subprocess.run([args.dq, "stats", folder, *quick, *bos, "--one-pass", "--json", "-q", "--places", str(args.places)],
                         check=True, capture_output=True)
    return json.loads(out.stdout)["results"][0]


def rank(result, place, tokens):
    """Line and magnitude of the first line that names the place; nothing where none does."""
    if place["values"] == "weights":
        lines = sorted((w for w in result["weights"] if w["role"] == place["role"]), key=lambda w: -w["crest"])
        for n, w in enumerate(lines, 1):
            if w["layer"] == place["layer"] and {w["column"], w["largest_column"]} & set(place["channels"]):
                return n, w["max"]
        return None, None
    lines = [o for o in result["outliers"] if o["values"] == place["values"] and o["tokens"] == tokens]
    for n, o in enumerate(lines, 1):
        if "first_layer" in place:
            layers = (o["first_layer"], o["last_layer"]) == (place["first_layer"], place["last_layer"])
        elif place["values"] == "hidden_states":  # a channel means the same in all layers, and has one line for them
            layers = o["first_layer"] <= place["layer"] <= o["last_layer"]
        else:
            layers = o["layer"] == place["layer"]
        if layers and all(o[k] == place[k] for k in ("head", "map") if k in place) and \
                ("channels" not in place or o["channel"] in place["channels"]):
            return n, o["magnitude"]
    return None, None


def kld(args, folder, reference, kind):
    if not args.kld:
        return None
    bos = ["--bos", "on"] if kind == "first" else []
    out = os.path.join(args.scratch, "kld.csv")
    subprocess.run([args.dq, "eval", folder, "--ref", reference, "--text", args.text, "--ctx", str(args.ctx), "--limit", str(args.kld),
                    "--csv", out, "--force", "--progress", "never", "-q", *bos], check=True, stdout=subprocess.DEVNULL)
    with open(out, encoding="utf-8", newline="") as f:
        return next(csv.DictReader(f))["kld_nats"]


def draw(m, kind, rng):
    """A random place, as arguments of plant.plant."""
    place = {"layer": rng.randrange(m.layers)}
    d = {"queries": m.nq * m.d, "keys": m.nk * m.d, "values": m.nk * m.d, "value_rotation": m.nk * m.d, "o_input": m.nq * m.d,
         "down_input": m.config["intermediate_size"]}
    if kind == "logits":
        return dict(place, head=rng.randrange(m.nq))
    if kind == "weight":
        matrix = rng.choice(list(plant.ROLES))
        wide = {"o": m.nq * m.d, "down": m.config["intermediate_size"]}.get(matrix, m.hidden)
        return dict(place, matrix=matrix, channel=rng.randrange(wide))
    if kind == "first":
        place["layer"] = rng.randrange(m.layers - 1)
        place["until"] = rng.randrange(place["layer"] + 1, m.layers)
    return dict(place, channel=rng.randrange(d.get(kind, m.hidden)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("spread")
    parser.add_argument("--dq", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--scratch", required=True)
    parser.add_argument("--csv", required=True)
    parser.add_argument("--add", action="store_true", help="lines to an existing CSV")
    parser.add_argument("--kinds")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the places")
    parser.add_argument("--places", type=int, default=20)
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--limit", type=int, default=2)
    parser.add_argument("--kld", type=int, default=0, metavar="WINDOWS")
    args = parser.parse_args()
    torch.set_num_threads(2)
    os.makedirs(args.scratch, exist_ok=True)
    folder = os.path.join(args.scratch, "planted")
    plain = plant.Model(args.model)
    kinds = args.kinds.split(",") if args.kinds else ["logits", "queries", "keys"] + \
        (["value_rotation"] if plain.diff else ["values", "o_input"]) + \
        ["qkv_input", "gate_up_input", "down_input", "weight", "hidden", "first"]
    known = {}  # values and the report of a model without plants
    sizes = {"ctx": args.ctx, "limit": args.limit}
    with open(args.csv, "a" if args.add else "w", encoding="utf-8", newline="") as f:
        table = csv.DictWriter(f, COLUMNS, lineterminator="\n")
        if not f.tell():
            table.writeheader()
        for kind in kinds:
            source = plant.Model(args.spread) if kind == "hidden" else plain
            how = (source.folder, kind if kind in ("weight", "first") else None)
            if how not in known:
                bos = plain.config["bos_token_id"] if kind == "first" else None
                known[how] = plant.Seen(source.folder, args.text, bos=bos, **sizes), stats(args, source.folder, kind)
            seen, before = known[how]
            rng = random.Random(f"{kind} {args.seed}")
            for _ in range(args.draws):
                place = draw(source, kind, rng)
                strengths = REACHED if kind in ("hidden", "value_rotation") else TIMES
                for times in strengths:
                    try:
                        m, what = plant.plant(source, seen, kind, times=times, **place)
                    except plant.Refused as e:
                        print(kind, place, times, e, flush=True)
                        continue
                    m.write(folder, what)
                    result = stats(args, folder, kind)
                    named = next(p for p in what["places"] if p.get("role") == place.get("matrix"))
                    ranks = {c: rank(result, named, c) for c in ("ordinary", "sink", "first")}
                    main_class = "first" if kind == "first" else "ordinary"
                    row = dict({k: v for k, v in place.items() if k in COLUMNS}, model=os.path.basename(args.model.rstrip("/")),
                               kind=kind, times="all" if times is None else times, size=f"{what['size']:.6g}",
                               natural=f"{what['natural']:.6g}", rank_ordinary=ranks["ordinary"][0],
                               rank_before=rank(before, named, main_class)[0], magnitude=ranks[main_class][1],
                               kld_nats=kld(args, folder, args.model, kind) if times == strengths[-1] else None)
                    if kind != "weight":
                        row.update(rank_sink=ranks["sink"][0], rank_first=ranks["first"][0])
                    table.writerow(row)
                    f.flush()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
