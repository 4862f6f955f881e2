#!/usr/bin/env python3
"""Runs lm-evaluation-harness on local files and writes what dq eval must find.

  make.py              requests.jsonl, scores.jsonl, metrics.json and draws.json from fixtures/
  make.py --real DIR   real.json from the benchmarks' own files in DIR (numbers and hashes only)

The task definitions are those the harness ships; only the call that would fetch the data set is
answered from a file (hub.py).  Prompts, draws, requests, scores and means are the harness's own.
"""
import argparse
import hashlib
import importlib.metadata
import json
import os
import pathlib
import time
from unittest import mock

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

import datasets  # noqa: E402
import lm_eval  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from lm_eval.api.samplers import ContextSampler  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

import hub  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
FIXTURES = HERE / "fixtures"
CALIB = HERE.parents[2] / "calib"
MODELS = ("pair/llama", "pair/diffllama")
REAL, REAL_WIDE = "pair/diffllama", "longpair/diffllama-0"
SHOTS = (2, 5)
# Training files beside NAME_train.jsonl, which every task has. "" stands for that one.
TRAINS = {"arc_easy": ("", "_large"), "winogrande": ("", "_large", "_edge"), "piqa": ("", "_twins")}
N_REAL, N_REAL_LL = 100, 25
SEED = 1234  # the harness's default for draws


class Recorder(HFLM):
    """The harness's model class; it also keeps the ids of the last requests."""

    def _loglikelihood_tokens(self, requests, **kwargs):
        self.ids = [(ctx, cont) for _, ctx, cont in requests]
        return super()._loglikelihood_tokens(requests, **kwargs)


def versions():
    names = ("lm_eval", "datasets", "torch", "transformers", "tokenizers", "numpy")
    return {n: importlib.metadata.version(n) for n in names}


def model(name):
    torch.set_num_threads(1)  # the models are small, and sums then come in one order
    lm = Recorder(pretrained=str(CALIB / name), dtype="float32", device="cpu", batch_size=1)
    assert lm.model.dtype == torch.float32
    return lm


def task_of(tasks, name, data):
    """The shipped task on `data`."""
    def answer(path, name=None, **_):
        assert (path, name) == hub.TASKS[task_name][2], (path, name)
        return data
    task_name = name
    with mock.patch.object(datasets, "load_dataset", answer):
        return tasks.load([name])["tasks"][name]


def run(lm, tasks, name, data, shots, limit=None):
    """Requests, scores and the harness's means of one task."""
    task = task_of(tasks, name, data)
    out = lm_eval.simple_evaluate(model=lm, tasks=[task], num_fewshot=shots, limit=limit, task_manager=tasks,
                                  fewshot_random_seed=SEED, log_samples=True, verbosity="ERROR")
    rows, gold = [], []
    samples = sorted(out["samples"][name], key=lambda s: s["doc_id"])
    for s in samples:
        gold.append(task.doc_to_text(s["doc"]) if task.multiple_input else task.doc_to_target(s["doc"]))
        for choice, (args, resps) in enumerate(zip(requests_of(s), s["resps"])):
            (ll, greedy), = resps
            rows.append({"item": s["doc_id"], "choice": choice, "context": args[0], "continuation": args[1],
                         "ll": float(ll), "greedy": greedy in (True, "True")})
    assert len(rows) == len(lm.ids)
    for r, (ctx, cont) in zip(rows, lm.ids):
        room = lm.max_length + 1 - len(cont)
        r["n_ctx"], r["n_cont"], r["truncated"] = min(len(ctx), room), len(cont), len(ctx) > room
    found = out["results"][name]
    means = {k.split(",")[0]: v for k, v in found.items() if k.endswith(",none")}
    return rows, gold, {"n": len(samples), "truncated": sum(r["truncated"] for r in rows), **means}


def requests_of(sample):
    args = sample["arguments"]
    if isinstance(args, dict):
        args = [args[f"gen_args_{i}"] for i in range(len(args))]
        args = [(a["arg_0"], a["arg_1"]) for a in args]
    return args


def short(x):
    """The shortest decimal of a float32."""
    return float(str(np.float32(x)))


def allowed(row):
    """By how much a float32 log-likelihood may differ between two programs."""
    return 1e-4 + 1e-5 * row["n_cont"]


def close(rows, means):
    """Items, by metric, whose two best choices differ by less than rounding could turn round."""
    counts = {}
    by_item = {}
    for r in rows:  # like requests have like scores: the first of them wins everywhere
        by_item.setdefault(r["item"], {}).setdefault((r["context"], r["continuation"]), r)
    for metric in ("acc", "acc_norm"):
        if metric not in means:
            continue
        counts[metric] = 0
        for mine in by_item.values():
            size = [len(r["continuation"]) - 1 if metric == "acc_norm" else 1 for r in mine.values()]
            found = sorted((r["ll"] / n, allowed(r) / n) for r, n in zip(mine.values(), size))[-2:]
            counts[metric] += len(found) == 2 and found[1][0] - found[0][0] < found[0][1] + found[1][1]
    return counts


def byte_rule_differs(rows, gold):
    """Items where dividing by UTF-8 bytes instead of code points picks another choice."""
    n = 0
    for i in range(len(gold)):
        mine = [r for r in rows if r["item"] == i]
        by = [np.argmax([r["ll"] / size(r["continuation"][1:]) for r in mine])
              for size in (len, lambda s: len(s.encode()))]
        n += bool(by[0] != by[1])
    return n


def write_lines(path, rows):
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        for r in rows:
            f.write(json.dumps(r, ensure_ascii=False) + "\n")


def settings(task):
    yield 0, None
    for tail in TRAINS.get(task, ("",)):
        for k in SHOTS:
            yield k, f"{task}_train{tail}.jsonl"


def draws():
    """Which rows the harness's sampler takes for the first three items, by size of the pool."""
    rows = []
    for n in (12, 40, 86, 120, 128, 1119, 2251, 4957, 9427, 16113, 39905, 40398):
        for k in SHOTS:
            for exclude in (False, True):
                s = ContextSampler(list(range(n)), rnd=SEED)
                # An item that is not in the pool: one more is drawn and the last one falls away.
                took = [s.sample(k, eval_doc={"none": 0} if exclude else None) for _ in range(3)]
                rows.append({"pool": n, "shots": k, "exclude": exclude, "took": took})
    return rows


def fixtures():
    tasks, asked, scored, rows, golds = TaskManager(), [], [], [], {}
    first = hub.boolq(FIXTURES / "boolq_val.jsonl")
    assert first == hub.boolq(FIXTURES / "boolq_dev.jsonl"), "the two forms of BoolQ differ"
    unlike = 0
    for name in MODELS:
        lm, label = model(name), pathlib.PurePath(name).name
        for task, (*_, file, _) in hub.TASKS.items():
            for k, train in settings(task):
                data = hub.dataset(task, FIXTURES / f"{file}.jsonl", train and FIXTURES / train)
                reqs, gold, means = run(lm, tasks, task, data, k)
                key = {"task": task, "num_fewshot": k, "train": train}
                if name == MODELS[0]:
                    asked += [{**key, **{f: r[f] for f in (
                        "item", "choice", "context", "continuation", "n_ctx", "n_cont", "truncated")}} for r in reqs]
                    golds[task] = gold
                scored += [{"model": label, **key, "item": r["item"], "choice": r["choice"], "ll": short(r["ll"]),
                            "greedy": r["greedy"]} for r in reqs]
                rows.append({"model": label, **key, **means})
                unlike += byte_rule_differs(reqs, gold) if task == "hellaswag" else 0
                print(f"{label:10}{task:14}{k} {str(train):32}", means)
                assert not any(close(reqs, means).values()), "a pick hangs on rounding: change the item"
    assert unlike, "no item tells code points from bytes"
    write_lines(HERE / "requests.jsonl", asked)
    write_lines(HERE / "scores.jsonl", scored)
    body = ",\n  ".join(json.dumps(r) for r in rows)
    head = {"versions": versions(), "dtype": "float32", "max_length": lm.max_length, "gold": golds}
    head = "".join(f' "{k}": {json.dumps(v)},\n' for k, v in head.items())
    (HERE / "metrics.json").write_text("{\n" + head + ' "rows": [\n  ' + body + "\n ]\n}\n")
    (HERE / "draws.json").write_text("[\n " + ",\n ".join(json.dumps(r) for r in draws()) + "\n]\n")


def digest(rows):
    """SHA-256 over context 0x1f continuation 0x1e of each request in order, in UTF-8."""
    h = hashlib.sha256()
    for r in rows:
        h.update(r["context"].encode() + b"\x1f" + r["continuation"].encode() + b"\x1e")
    return h.hexdigest()


def real(folder):
    tasks, out, head = TaskManager(), {}, {"versions": versions(), "dtype": "float32", "num_fewshot": 0}
    lms = {name: model(name) for name in (REAL, REAL_WIDE)}
    for task, (*_, file) in hub.TASKS.items():
        if file is None:
            continue
        path = pathlib.Path(folder) / f"{file}.jsonl"
        data, start = hub.dataset(task, path), time.time()
        # Some solutions of PIQA have more tokens than the pair has positions.
        wide = REAL_WIDE if task == "piqa" else REAL
        reqs, _, means = run(lms[wide], tasks, task, data, 0)
        part, _, few = run(lms[REAL], tasks, task, data, 0, limit=N_REAL)
        given = [{"model": f"calib/{name}", **m, "close": close(rows, m), "requests": len(rows), "sha256": digest(rows)}
                 for name, m, rows in ((wide, means, reqs), (REAL, few, part))]
        print(f"{task:14}", *given, f"{time.time() - start:.1f} s")
        few = [r for r in part if r["item"] < N_REAL_LL]
        out[task] = {"file": path.name, "file_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                     "full": given[0], f"first{N_REAL}": given[1],
                     "ll": [short(r["ll"]) for r in few], "n_cont": [r["n_cont"] for r in few]}
    body = ",\n".join(f' "{k}": {json.dumps(v)}' for k, v in head.items())
    rows = ",\n".join(f'  "{k}": {json.dumps(v)}' for k, v in out.items())
    (HERE / "real.json").write_text("{\n" + body + ',\n "tasks": {\n' + rows + "\n }\n}\n")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--real", metavar="DIR", help="write real.json from the files of this folder")
    a = p.parse_args()
    start = time.time()
    real(a.real) if a.real else fixtures()
    print(f"{time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
