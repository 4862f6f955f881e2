#!/usr/bin/env python3
"""Writes icl/golden.json: what transformers picks after demonstrations, for the embedded pair.

    python tests/golden/icl.py build/dq

(needs torch, transformers 5.23, tokenizers and a built dq; takes a minute). The files beside golden.json are in the
forms of the official data sets, in words of our own. For every task and model:

1. prompts are made anew from the files: the generator, what drops out for its length, the order, the text; they
   must be those that `dq eval --dump-items` writes;
2. each prompt, encoded in one piece by the tokenizers library, is answered in float32 by greedy decoding in which
   all ids are masked but those that go on with a label (labels cut to unique beginnings, a newline after a label
   that another begins with), a whole forward pass per step;
3. each label is scored by its log-likelihood (float64 from float32 logits), which must be that of dq.

A decision by less than LEAST_MARGIN is refused, so that no golden hangs on rounding.
"""

import csv
import io
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent / "icl"
LEAST_MARGIN = 1e-4
SEED, RUNS, SHOTS, QUERIES = 1, 2, (1, 3), 3
MASK = (1 << 64) - 1
COARSE = {"ABBR": "abbreviation", "DESC": "description", "ENTY": "entity", "HUM": "human", "LOC": "location",
          "NUM": "numeric"}
PREFIX = {"trec": ("Question: ", "Type: "), "banking77": ("query: ", "intent: "),
          "clinic150": ("utterance: ", "intent: ")}
FILES = {"trec": ("trec_test.label", "trec_train.label"), "banking77": ("banking_test.csv", "banking_train.csv"),
         "clinic150": ("clinc.json", None)}


def mix(x):
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def permutation(n, stream):
    state = mix(mix(SEED + 0x9E3779B97F4A7C15 & MASK) ^ stream)
    out = list(range(n))
    for i in range(n - 1, 0, -1):
        while True:
            state = state + 0x9E3779B97F4A7C15 & MASK
            x = mix(state)
            if x < (1 << 64) // (i + 1) * (i + 1):
                break
        k = x % (i + 1)
        out[i], out[k] = out[k], out[i]
    return out


def examples(task):
    """(queries, demonstrations, labels); an example is (text, label)."""
    if task == "trec":
        both = []
        for name in FILES[task]:
            lines = (HERE / name).read_bytes().decode("latin-1").splitlines()
            both.append([(x.split(" ", 1)[1], COARSE[x.split(":")[0]]) for x in lines])
        return both[0], both[1], sorted(COARSE.values())
    if task == "banking77":
        both = []
        for name in FILES[task]:
            rows = list(csv.reader(io.StringIO((HERE / name).read_bytes().decode(), newline="")))
            both.append([(text, label.replace("_", " ")) for text, label in rows[1:]])
    else:
        data = json.loads((HERE / FILES[task][0]).read_text())
        both = [[(text, label.replace("_", " ")) for text, label in data[part] + data["oos_" + part]]
                for part in ("test", "train")]
    return both[0], both[1], sorted({label for part in both for _, label in part})


def prompts(task, tok):
    queries, demos, labels = examples(task)
    x_prefix, y_prefix = PREFIX[task]
    asked = [f"{x_prefix}{text}\n{y_prefix}".rstrip() for text, _ in queries]
    shown = [f"{x_prefix}{text}\n{y_prefix}{label}" for text, label in demos]

    def short(texts):
        n = [len(tok.encode(t, add_special_tokens=False).ids) for t in texts]
        return [t for t, k in zip(texts, n) if k <= np.quantile(n, 0.99)]

    asked, shown = short(asked), short(shown)
    asked = [asked[i] for i in permutation(len(asked), 0)][:QUERIES]
    out = []
    for shots in SHOTS:
        for run in range(RUNS):
            chosen = [shown[i] for i in permutation(len(shown), 1 + run)[:shots]]
            out += ["\n==\n".join(chosen + [q]) for q in asked]
    return out, labels


def label_ids(labels, tok):
    full = [tok.encode(" " + x, add_special_tokens=False).ids for x in labels]
    newline = tok.encode("\n", add_special_tokens=False).ids[-1]
    cut = []
    for i, a in enumerate(full):
        n = next((n for n in range(len(a) + 1) if sum(b[:n] == a[:n] for b in full) == 1), None)
        cut.append(a + [newline] if n is None else a[:n])
    return full, cut


def masked(net, ids, cut):
    """The label that greedy decoding ends in, and the smallest lead of a choice."""
    done, lead = [], np.inf
    while True:
        alive = [i for i, c in enumerate(cut) if c[:len(done)] == done]
        if len(alive) == 1:
            return alive[0], lead
        allowed = sorted({cut[i][len(done)] for i in alive})
        logits = net(torch.tensor([ids + done])).logits[0, -1]
        mask = torch.full_like(logits, -torch.inf)
        mask[allowed] = 0
        top = (logits + mask).topk(2).values
        lead = min(lead, float(top[0] - top[1]))
        done.append(int((logits + mask).argmax()))


def likelihood(net, ids, cont):
    logits = net(torch.tensor([ids + cont])).logits[0].double()
    logp = torch.log_softmax(logits, -1)
    return float(sum(logp[len(ids) - 1 + t, i] for t, i in enumerate(cont)))


def dumped(dq, task, model):
    with tempfile.TemporaryDirectory() as at:
        data, demos = FILES[task]
        args = [dq, "eval", str(ROOT / "calib/pair" / model), "--task", task, "--data", str(HERE / data), "--num-fewshot",
                ",".join(map(str, SHOTS)), "--runs", str(RUNS), "--limit", str(QUERIES), "--dump-items", "items"]
        subprocess.run(args + (["--fewshot-data", str(HERE / demos)] if demos else []), check=True, cwd=at,
                       stdout=subprocess.DEVNULL)
        return [json.loads(x) for x in (pathlib.Path(at) / "items").read_text(encoding="utf-8").splitlines()]


def main():
    dq = str(pathlib.Path(sys.argv[1]).resolve())
    cases, worst, least = [], 0, np.inf
    for model in ("llama", "diffllama"):
        folder = ROOT / "calib/pair" / model
        tok = Tokenizer.from_file(str(folder / "tokenizer.json"))
        net = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        for task in FILES:
            texts, labels = prompts(task, tok)
            full, cut = label_ids(labels, tok)
            dump = dumped(dq, task, model)
            assert len(dump) == len(texts) * len(labels)
            items = []
            for i, text in enumerate(texts):
                of_item = dump[i * len(labels):(i + 1) * len(labels)]
                assert all(x["context"] == text and x["item"] == i for x in of_item), (task, i)
                assert [x["continuation"] for x in of_item] == [" " + x for x in labels]
                ids = tok.encode(text).ids
                assert all(x["n_ctx"] == len(ids) for x in of_item)
                with torch.no_grad():
                    walk, lead = masked(net, ids, cut)
                    ll = [likelihood(net, ids, c) for c in full]
                order = sorted(ll)
                least = min(least, lead, order[-1] - order[-2])
                worst = max([worst] + [abs(x["ll"] - y) for x, y in zip(of_item, ll)])
                items.append({"n": len(ids), "sum": sum(a * (k + 1) for k, a in enumerate(ids)), "walk": walk,
                              "likeliest": int(np.argmax(ll)), "ll": [round(x, 5) for x in ll]})
            cases.append({"model": model, "task": task, "labels": labels, "items": items})
    print(f"smallest lead {least:.2e}, largest |ll difference| {worst:.2e}")
    assert least > LEAST_MARGIN and worst < 1e-4
    lines = ",\n".join(json.dumps({**c, "items": 0})[:-2].rstrip() + "[\n  "
                       + ",\n  ".join(map(json.dumps, c["items"])) + "]}" for c in cases)
    (HERE / "golden.json").write_text("[" + lines + "]\n")


if __name__ == "__main__":
    main()
