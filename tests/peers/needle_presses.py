"""What the presses of kvpress keep of a context: recall of needles whose question comes later, beside dq's policies.

    python needle_presses.py REPOSITORY OUT.csv [--models llama-0 llama-1 llama-2] [--items 64]
                      [--keep 0.5 0.25 0.125 0.0625] [--presses knorm kvzip ...] [--dq PROGRAM]

Runs kvpress 0.5.5 (pip install kvpress==0.5.5, into an environment of its own: it wants a transformers of its time) on the plain
Llamas of calib/longpair in f32, as its pipeline does: the context is compressed, then the question goes after it at its own
positions. Items are those of calib/longpair/needles-blind.jsonl, which dq scores with --task mc; the first two tokens of all choices
are the question, and recall is how often the right one of six is the likeliest third id. With --dq the program scores the
same items first (--kv-recent 16, as studies/kv/run.sh).

A line a model, press and share: compression_ratio as kvpress wants it (1 - share), the share of tokens that was really kept (mean
over layers, heads and items) and recall with its standard error. dq always keeps 4 sinks and 16 recent tokens and counts them; a
press keeps what it keeps. `+20` after a name is the press with the same 20 tokens kept, inside the same number of tokens.

knorm snapkv streaming expected kvzip compactor keydiff tova lagkv leverage criticalkv pyramidkv with their defaults (of kvzip also the
same budget for every layer, chunks of 256 tokens, and kvzip+); adakv over expected (epsilon .01, as its authors have it) and snapkv;
criticalkv over expected without value norms and over snapkv. fastkvzip has gates for the models that its authors trained and none
for these; it is asked and says so.
"""
import argparse
import csv
import json
import logging
import os
import subprocess
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import kvpress as kp
import torch
from presses import protect
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

logging.disable(logging.WARNING)
SINK, RECENT = 4, 16
DQ_POLICIES = "streaming,snapkv,knorm,random,kvzip,keydiff,leverage"
SCORERS = {
    "knorm": kp.KnormPress, "snapkv": kp.SnapKVPress, "streaming": kp.StreamingLLMPress, "expected": kp.ExpectedAttentionPress,
    "compactor": kp.CompactorPress, "keydiff": kp.KeyDiffPress, "tova": kp.TOVAPress, "lagkv": kp.LagKVPress,
    "leverage": kp.LeverageScorePress, "pyramidkv": kp.PyramidKVPress, "random": kp.RandomPress}
EXPECTED = {"epsilon": 0.01}
PRESSES = {
    **{name: (lambda r, press=press: press(compression_ratio=r)) for name, press in SCORERS.items()},
    "adakv expected": lambda r: kp.AdaKVPress(kp.ExpectedAttentionPress(r, **EXPECTED)),
    "adakv snapkv": lambda r: kp.AdaKVPress(kp.SnapKVPress(r)),
    "criticalkv expected": lambda r: kp.CriticalKVPress(kp.ExpectedAttentionPress(r, use_vnorm=False)),
    "criticalkv snapkv": lambda r: kp.CriticalKVPress(kp.SnapKVPress(r)),
    "criticaladakv expected": lambda r: kp.CriticalAdaKVPress(kp.ExpectedAttentionPress(r, use_vnorm=False)),
    "kvzip": lambda r: kp.KVzipPress(r),
    "kvzip layerwise": lambda r: kp.KVzipPress(r, layerwise=True),
    "kvzip chunk 256": lambda r: kp.KVzipPress(r, chunk_size=256),
    "kvzip+": lambda r: kp.KVzipPress(r, kvzip_plus_normalization=True),
    "fastkvzip": lambda r: kp.FastKVzipPress(r)}
PROTECTED = ("knorm", "snapkv", "expected", "keydiff", "leverage", "compactor", "random")


def make(name, ratio):
    return protect(PRESSES[name[:-3]](ratio), SINK, RECENT) if name.endswith("+20") else PRESSES[name](ratio)


def items_of(folder, path, count):
    tok = AutoTokenizer.from_pretrained(folder)
    encode = lambda text: tok.encode(text, add_special_tokens=False)
    for line in list(open(path))[:count]:
        item = json.loads(line)
        choices = [encode(" " + c) for c in item["choices"]]
        assert all(len(c) == 3 and c[:2] == choices[0][:2] for c in choices)
        yield torch.tensor([[tok.bos_token_id] + encode(item["ctx"])]), torch.tensor([choices[0][:2]]), \
            torch.tensor([c[2] for c in choices]), item["gold"]


def kept_share(model, cache, n):
    """Of all layers and heads; presses that mask say what they masked."""
    kept = whole = 0
    for layer in model.model.layers:
        keys = cache.layers[layer.self_attn.layer_idx].keys
        gone = getattr(layer.self_attn, "masked_key_indices", None)
        kept += keys.shape[1] * keys.shape[2] - (len(gone[0]) if gone is not None else 0)
        whole += keys.shape[1] * n
    return kept / whole


def ask(model, press, ids, question, answers):
    cache, n = DynamicCache(), ids.shape[1]
    for layer in model.model.layers:
        layer.self_attn.masked_key_indices = None
    with press(model):
        model.model(input_ids=ids, past_key_values=cache)
    share = kept_share(model, cache, n)
    for i in range(question.shape[1]):  # one by one: pyramidkv leaves layers of different lengths, and there is one mask
        logits = model(input_ids=question[:, i:i + 1], past_key_values=cache, position_ids=torch.tensor([[n + i]])).logits
    return int(logits[0, -1, answers].argmax()), share


def run_press(model, items, name, keep):
    right, shares = [], []
    torch.manual_seed(0)  # leverage and compactor draw a sketch
    for ids, question, answers, gold in items:
        chosen, share = ask(model, make(name, 1 - keep), ids, question, answers)
        right.append(int(chosen == gold))
        shares.append(share)
    return right, sum(shares) / len(shares)


def dq_rows(program, folder, data, count, keeps):
    """Policy, share, share held and recall of each item, by the program."""
    with tempfile.TemporaryDirectory() as work:
        out, dump = os.path.join(work, "r.json"), os.path.join(work, "items")
        for budget in ("uniform", "global"):
            subprocess.run([program, "eval", folder, "--task", "mc", "--data", data, "--limit", str(count), "--kv-policy", DQ_POLICIES,
                            "--kv-keep", ",".join(map(str, keeps)), "--kv-recent", str(RECENT), "--kv-budget", budget, "-q", "--force",
                            "-o", out, "--dump-items", dump], check=True, stdout=subprocess.DEVNULL)
            right = {}
            for item in map(json.loads, open(dump)):
                if item["choice"] == 0:
                    right.setdefault((item["kv"]["policy"], item["kv"]["keep"]), []).append(int(item["pick"]["acc"] == item["gold"]))
            for kv in (row["kv"] for row in json.load(open(out))["results"]):
                yield f"dq {kv['policy']} {budget}", kv["keep"], kv["kept_fraction"], right[kv["policy"], kv["keep"]]


def line(name, press, keep, share, right):
    p = sum(right) / len(right)
    se = (p * (1 - p) / len(right)) ** 0.5
    print(f"{name:10s} {press:24s} ratio {1 - keep:.4f}  kept {share:.4f}  recall {p:.3f} ({se:.3f})", flush=True)
    return [name, press, keep, 1 - keep, f"{share:.4f}", f"{p:.4f}", f"{se:.4f}", "".join(map(str, right))]


def main():
    a = argparse.ArgumentParser()
    a.add_argument("repository")
    a.add_argument("out")
    a.add_argument("--models", nargs="+", default=["llama-0", "llama-1", "llama-2"])
    a.add_argument("--items", type=int, default=64)
    a.add_argument("--keep", nargs="+", type=float, default=[0.5, 0.25, 0.125, 0.0625])
    a.add_argument("--presses", nargs="+", default=list(PRESSES) + [name + "+20" for name in PROTECTED])
    a.add_argument("--dq")
    o = a.parse_args()
    torch.set_num_threads(1)
    folder = os.path.join(o.repository, "calib", "longpair")
    data = os.path.join(folder, "needles-blind.jsonl")
    with torch.no_grad(), open(o.out, "w", newline="") as f:
        w = csv.writer(f)
        w.writerow(["model", "press", "keep", "compression_ratio", "kept", "recall", "se", "items"])
        for name in o.models:
            model = AutoModelForCausalLM.from_pretrained(os.path.join(folder, name), dtype=torch.float32, attn_implementation="sdpa").eval()
            for row in dq_rows(o.dq, os.path.join(folder, name), data, o.items, o.keep) if o.dq else ():
                w.writerow(line(name, *row))
            items = list(items_of(os.path.join(folder, name), data, o.items))
            for press in o.presses:
                try:
                    for keep in o.keep:
                        right, share = run_press(model, items, press, keep)
                        w.writerow(line(name, press, keep, share, right))
                except Exception as e:  # what a press does not do here is a result too
                    print(f"{name:10s} {press:24s} not run: {type(e).__name__}: {' '.join(str(e).split())[:120]}", flush=True)
                f.flush()


if __name__ == "__main__":
    main()
