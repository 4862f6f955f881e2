#!/usr/bin/env python3
"""Writes needle/golden.json: multi-needle prompts and what transformers makes of them on the embedded pair.

    python tests/golden/needle.py build/dq

(needs torch, transformers 5.23 and tokenizers; takes seconds). The prompts are those that `dq eval --task needle
--dump-items` writes for the settings below; here they are decoded and checked against the wording and the lengths
that they must have. transformers runs prompt and answers in float32 (eager attention) and gives, for the ids of each
number, the sum of ln of their probabilities and the most likely ids; and from its own attention maps, of DiffLlama
A1 - lambda A2, the shares of five classes of tokens in three normalizations, for the prompt's last row and for the
mean of the rows of the question. `wide` is the largest sum |a| / |sum a| of a head and row that counts: the first
normalization magnifies rounding by so much.

Margins are looked at: the smallest gap between the two largest logits is printed, and one below 1e-3 is refused, as
is a row whose sum is so near the limit for skipping it that rounding could decide.
"""

import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = pathlib.Path(__file__).resolve().parent / "needle" / "golden.json"
SETTINGS = ["--lengths", "420", "--depths", "0,50", "--needles", "1:1,3:2", "--limit", "1", "--seed", "6"]
LEAST_MARGIN, LEAST_SUM = 1e-3, 1e-3
NEEDLE = "\nThe special magic {} number is: {}\n"
CLASSES = ("bos", "answer", "distractor", "noise", "query")


def dumped(dq):
    pair = ROOT / "calib/pair"
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "items.jsonl"
        subprocess.run([dq, "eval", pair / "llama", "--task", "needle", "--data", pair / "text.txt", *SETTINGS,
                        "--quiet", "--dump-items", path], check=True, stdout=subprocess.DEVNULL)
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def check(item, tok, filler):
    """The prompt is what its description says, by an independent tokenizer."""
    text = tok.decode(item["prompt"] + item["answer"], skip_special_tokens=True)
    asked = [item["needles"][a["needle"]] for a in item["asked"]]
    cities = [n["city"] for n in asked]
    many = "What are the special magic numbers for " + ", ".join(cities[:-1]) + ", and " + cities[-1] + "?"
    question = f"What is the special magic number for {cities[0]}?" if len(cities) == 1 else many
    end = f"\n\nQuestion: {question}\nAnswer:"
    for i, n in enumerate(asked):
        end += ("\n" if i else " ") + f"The special magic {n['city']} number is: {n['number']}"
    assert text.endswith(end), text
    body = text[:-len(end)]
    places = []
    for n in item["needles"]:
        whole = NEEDLE.format(n["city"], n["number"])
        assert body.count(whole) == 1 and re.fullmatch("[1-9][0-9]{6}", n["number"])
        places.append(item["prompt"][n["at"]:n["at"] + n["len"]])
        assert tok.decode(places[-1]) == whole
    assert item["prompt"][0] == 0 and len(set(n["number"] for n in item["needles"])) == len(item["needles"])
    numbers = sum(max(12, a["to"] - (a["from"] - 1)) for a in item["asked"])
    between = item["asked"][1]["from"] - 1 - item["asked"][0]["to"] if len(asked) > 1 else 0
    assert len(item["prompt"]) == item["length"] - numbers - between
    rest = body
    for n in item["needles"]:
        rest = rest.replace(NEEDLE.format(n["city"], n["number"]), "")
    assert rest in filler + filler and len(tok.encode(rest, add_special_tokens=False).ids) == item["filler"]


def labels(item):
    out = ["query" if i >= item["question"] else "noise" for i in range(len(item["prompt"]))]
    out[0] = "bos"
    for k, n in enumerate(item["needles"]):
        name = "answer" if k == item["asked"][0]["needle"] else "distractor"
        out[n["at"]:n["at"] + n["len"]] = [name] * n["len"]
    return out


def maps(net, out):
    """[layer][head][row][column]: A, or A1 - lambda A2."""
    for layer, a in zip(net.model.layers, out.attentions):
        a = a[0].double()
        attn = layer.self_attn
        if hasattr(attn, "lambda_q1"):
            one = torch.exp(torch.sum(attn.lambda_q1 * attn.lambda_k1))
            two = torch.exp(torch.sum(attn.lambda_q2 * attn.lambda_k2))
            a1, a2 = a.chunk(2, dim=0)
            a = a1 - (one - two + attn.lambda_init).double() * a2
        yield a


def shares(net, out, item, first):
    label = labels(item)
    index = {c: torch.tensor([i for i, x in enumerate(label) if x == c], dtype=torch.long) for c in CLASSES}
    result, wide = {}, 1.0
    for name in ("sum", "positive", "absolute"):
        layers, skipped = {c: [] for c in CLASSES}, 0
        for a in maps(net, out):
            heads = {c: [] for c in CLASSES}
            for head in a:
                rows = head[first:len(label), :len(label)]
                part = {"sum": rows, "positive": rows.clamp(min=0), "absolute": rows.abs()}[name]
                whole = part.sum(-1)
                if name == "sum":
                    gap = min(abs(abs(float(w)) - LEAST_SUM) for w in whole)
                    assert gap > 1e-5, "a row is nearly skipped; choose other prompts"
                    counts = whole.abs() >= LEAST_SUM
                    if counts.any():
                        wide = max(wide, float((rows.abs().sum(-1) / whole.abs())[counts].max()))
                else:
                    counts = whole != 0
                skipped += int((~counts).sum())
                for c in CLASSES if counts.any() else ():
                    heads[c].append(float((part[:, index[c]].sum(-1) / whole)[counts].mean()))
            for c in CLASSES:
                layers[c].append(sum(heads[c]) / len(heads[c]) if heads[c] else math.nan)
        result[name] = [sum(layers[c]) / len(layers[c]) for c in CLASSES] + [skipped]
        assert all(map(math.isfinite, result[name]))
    return result, wide


def answers(out, item):
    start = len(item["prompt"])
    logits = out.logits[0]
    both = item["prompt"] + item["answer"]
    result, margin = [], math.inf
    for a in item["asked"]:
        rows = logits[start + a["from"] - 1:start + a["to"] - 1]
        want = torch.tensor(both[start + a["from"]:start + a["to"]])
        logp = torch.log_softmax(rows.double(), -1)
        top = rows.topk(2).values
        margin = min(margin, float((top[:, 0] - top[:, 1]).min()))
        result.append({"from": a["from"], "to": a["to"], "needle": a["needle"],
                       "ll": round(float(logp.gather(1, want[:, None]).sum()), 6), "top1": rows.argmax(-1).tolist()})
    return result, margin


def main():
    items = dumped(sys.argv[1])
    folder = ROOT / "calib/pair"
    tok = Tokenizer.from_file(str(folder / "llama/tokenizer.json"))
    filler = (folder / "text.txt").read_text(encoding="utf-8")
    keep = ("length", "depth", "filler", "question", "prompt", "answer", "needles")
    cases = [{k: item[k] for k in keep} for item in items]
    for item in items:
        check(item, tok, filler)
    for name in ("llama", "diffllama"):
        net = AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.float32,
                                                   attn_implementation="eager").eval()
        margins = []
        for item, case in zip(items, cases):
            with torch.no_grad():
                out = net(torch.tensor([item["prompt"] + item["answer"]]), output_attentions=True)
                asked, margin = answers(out, item)
                margins.append(margin)
                last, wide = shares(net, out, item, len(item["prompt"]) - 1)
                query, wide_query = shares(net, out, item, item["question"])
            case[name] = {"asked": asked, "last": last, "query": query, "wide": [wide, wide_query]}
        print(f"{name}: smallest margin {min(margins):.4f}, wide {[c[name]['wide'] for c in cases]}")
        assert min(margins) >= LEAST_MARGIN, "a near tie decides; choose other prompts"
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text("[" + ",\n ".join(json.dumps(c, separators=(",", ":")) for c in cases) + "]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
