# dq as a model of lm-evaluation-harness against --model hf and against dq eval, on the embedded DiffLlama: multiple choice, rolling
# log-likelihood and generation.
# usage: lm_eval_dq.py DQ REPOSITORY [--model FOLDER] [--limit N] [--data FOLDER]    (libdq.so lies beside DQ)
# --data names the benchmarks' own files: ARC-Easy and PIQA by the harness's definitions instead, against dq eval and hf, for a real
# model.
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from unittest import mock

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
parser = argparse.ArgumentParser()
parser.add_argument("dq")
parser.add_argument("repository")
parser.add_argument("--model")
parser.add_argument("--limit", type=int, default=60)
parser.add_argument("--data")
args = parser.parse_args()
program, repository = os.path.abspath(args.dq), pathlib.Path(args.repository).resolve()
model = args.model or str(repository / "calib/pair/diffllama")
os.environ["DQ_LIBRARY"] = os.path.join(os.path.dirname(program), "libdq.so")
sys.path.insert(0, str(repository / "python"))

import dq.lm_eval  # noqa: E402,F401 registers the model
import lm_eval  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

YAML = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: {kind}
{rest}
"""
TASKS = {
    "pair_choices": ("multiple_choice", "doc_to_text: '{{ctx}}'\ndoc_to_choice: '{{choices}}'\ndoc_to_target: '{{gold}}'\n"
                     "metric_list:\n  - metric: acc\n  - metric: acc_norm"),
    "pair_rolling": ("loglikelihood_rolling", "doc_to_text: ''\ndoc_to_target: '{{text}}'\n"
                     "metric_list:\n  - metric: word_perplexity\n  - metric: bits_per_byte"),
    "pair_texts": ("generate_until", "doc_to_text: '{{ctx}}'\ndoc_to_target: '{{gold}}'\n"
                   "generation_kwargs:\n  until: [' ?']\n  max_gen_toks: 12\n  do_sample: false\n"
                   "metric_list:\n  - metric: exact_match"),
}
failed = []


def check(ok, text):
    if not ok:
        failed.append(text)
        print(f"failed: {text}")


def results(kind, settings, manager, folder):
    out = lm_eval.simple_evaluate(model=kind, model_args=settings, tasks=list(TASKS), task_manager=manager,
                                  limit=args.limit, log_samples=True, bootstrap_iters=0, device="cpu", batch_size=8)
    (folder / f"{kind}.json").write_text(json.dumps(out["results"]))
    return out


def benchmarks(folder):
    """The harness's own tasks on files: its hub is answered by tests/golden/lmeval/hub.py."""
    import datasets
    sys.path.insert(0, str(repository / "tests/golden/lmeval"))
    import hub
    files = {"arc_easy": "ARC-Easy-Test.jsonl", "piqa": "PIQA-valid.jsonl"}
    names = {hub.TASKS[task][2]: task for task in files}

    def answer(path, name=None, **_):
        task = names[path, name]
        return hub.dataset(task, pathlib.Path(args.data) / files[task])

    TASKS.clear()
    TASKS.update({task: None for task in files})
    with mock.patch.object(datasets, "load_dataset", answer):
        ours = results("dq", f"path={model}", TaskManager(), folder)
        theirs = results("hf", f"pretrained={model},dtype=float32", TaskManager(), folder)
    compare(ours, theirs, list(files), ())
    for task, file in files.items():
        said = json.loads(subprocess.run([program, "eval", model, "--task", task, "--data", pathlib.Path(args.data) / file,
                                          "--limit", str(args.limit), "--logit-bits", "16", "--json"], check=True,
                                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
        same_metrics(said, ours, task)


def same_metrics(said, ours, task):
    for metric in ("acc", "acc_norm"):
        value, own = said["results"][0]["metrics"][metric]["value"], ours["results"][task][f"{metric},none"]
        check(value == own, f"{task} {metric}: dq eval {value}, lm_eval with dq {own}")
        print(f"{task:13} {metric:22} dq eval {value:.6f}")


def compare(ours, theirs, scored, written):
    worst = 0.0
    for task in scored:
        for a, b in zip(answers(ours, task), answers(theirs, task), strict=True):
            for (x,), (y,) in zip(a, b, strict=True):
                x, y = (v if isinstance(v, (list, tuple)) else (v, None) for v in (x, y))
                worst = max(worst, abs(float(x[0]) - float(y[0])) / max(1.0, abs(float(y[0]))))
                check(x[1] == y[1], f"{task}: greedy {x[1]}, hf {y[1]}")
    check(worst < 1e-5, f"a log-likelihood is {worst:.2g} of itself off")
    print(f"largest difference of a log-likelihood, of itself: {worst:.2g}")
    for task in written:
        for a, b in zip(answers(ours, task), answers(theirs, task), strict=True):
            check(a == b, f"text {a}, hf {b}")
    for task in (*scored, *written):
        for metric, value in theirs["results"][task].items():
            if isinstance(value, float) and "stderr" not in metric:
                own = ours["results"][task][metric]
                check(abs(own - value) <= 1e-5 * max(1, abs(value)), f"{task} {metric}: {own}, hf {value}")
                print(f"{task:13} {metric:22} dq {own:.6f}  hf {value:.6f}")


def answers(out, task):
    return [s["resps"] for s in sorted(out["samples"][task], key=lambda s: s["doc_id"])]


def arguments():
    """pretrained is path; neither is refused; a text that spells BOS has one."""
    from lm_eval.api.instance import Instance
    for settings in ({}, {"path": model, "pretrained": model}):
        try:
            dq.lm_eval.DqLM(**settings, device="cpu")
            check(False, f"{len(settings)} models are taken")
        except ValueError as e:
            check("path or pretrained" in str(e), f"{e}")
    lm = dq.lm_eval.DqLM(pretrained=model, device="cpu")
    ids, bos = lm.m.encode("the green mole", special=False), lm.prefix_token_id
    told = [Instance("loglikelihood_rolling", {}, ("<bos>the green mole",), 0)]
    rolled, (scored, _) = lm.loglikelihood_rolling(told, disable_tqdm=True)[0], lm.m.score([([bos], ids)])[0]
    check(abs(rolled - scored) < 1e-9, f"a text that spells BOS rolls to {rolled}, not {scored}")


def embedded(folder):
    global model
    arguments()
    if not args.model:  # hf generates for models with an EOS alone
        shutil.copytree(model, folder / "model")
        model = str(folder / "model")
        config = folder / "model/tokenizer_config.json"
        config.write_text(json.dumps(dict(json.loads(config.read_text()), eos_token="<bos>")))
    items = (repository / "calib/pair/choices.jsonl").read_text().splitlines()[:args.limit]
    (folder / "items.jsonl").write_text("\n".join(items) + "\n")
    words = (repository / "calib/pair/text.txt").read_text().split()
    texts = [" ".join(words[at:at + 300 + 250 * (at // 900 % 3)]) for at in range(0, 9000, 900)]  # up to 800 words: rolls
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    for name, (kind, rest) in TASKS.items():
        file = folder / ("texts.jsonl" if kind == "loglikelihood_rolling" else "items.jsonl")
        (folder / f"{name}.yaml").write_text(YAML.format(name=name, file=file, kind=kind, rest=rest))
    manager = TaskManager(include_path=str(folder))
    ours = results("dq", f"path={model}", manager, folder)
    theirs = results("hf", f"pretrained={model},dtype=float32", manager, folder)
    compare(ours, theirs, ("pair_choices", "pair_rolling"), ("pair_texts",))
    said = json.loads(subprocess.run([program, "eval", model, "--task", "mc", "--data", folder / "items.jsonl", "--logit-bits",
                                      "16", "--json"], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    same_metrics(said, ours, "pair_choices")
    # a compressed model is another one
    small = results("dq", f"path={model},kv_bits=4:4,kv_recent=4,logit_bits=4", manager, folder)
    check(answers(small, "pair_choices") != answers(ours, "pair_choices"), "kv_bits and logit_bits change nothing")


with tempfile.TemporaryDirectory() as top:
    os.environ["HF_HOME"] = os.path.join(top, "hf")
    (benchmarks if args.data else embedded)(pathlib.Path(top))

sys.exit(1 if failed else 0)
