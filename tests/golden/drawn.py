#!/usr/bin/env python3
"""Writes questions/drawn.json: the prompts that lm-evaluation-harness makes of questions/gsm8k.jsonl with drawn examples.

    python tests/golden/drawn.py

(needs lm-eval 0.4.13 and datasets; takes seconds). The task is the gsm8k that the harness ships; only the call that would
fetch the data set is answered from questions/gsm8k.jsonl (test) and questions/train.jsonl.
"""
import json
import os
import pathlib
import sys
from unittest import mock

sys.path.pop(0)  # files beside this one have names of packages
os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"

import datasets  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent / "questions"
CASES = ((5, 1234), (5, 7), (2, 1234))


def lines(name):
    rows = [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]
    return [{"question": r["question"], "answer": r["answer"]} for r in rows]


def prompts(shots, seed):
    data = datasets.DatasetDict({"train": datasets.Dataset.from_list(lines("train.jsonl")),
                                 "test": datasets.Dataset.from_list(lines("gsm8k.jsonl"))})

    def answer(path, name=None, **_):
        assert (path, name) == ("openai/gsm8k", "main"), (path, name)
        return data
    with mock.patch.object(datasets, "load_dataset", answer):
        task = TaskManager().load(["gsm8k"])["tasks"]["gsm8k"]
    task.set_config("num_fewshot", shots)
    task.set_fewshot_seed(seed)
    task.build_all_requests()
    found = {i.doc_id: i.args[0] for i in task.instances}
    return [found[i] for i in sorted(found)]


def main():
    cases = [{"shots": n, "seed": seed, "prompts": prompts(n, seed)} for n, seed in CASES]
    (HERE / "drawn.json").write_text(json.dumps({"cases": cases}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(cases[0]["prompts"][0])
    assert all(p.count("Question: ") == c["shots"] + 1 for c in cases for p in c["prompts"])


main()
