"""Tables (Markdown) of what bench.sh left in a folder.

    python tables.py FOLDER

KLD is in nats per token from the same model without rounding; ± is one standard error over documents, of needles over prompts.
"""
import csv
import json
import os
import re
import sys


def rows(folder, name):
    path = os.path.join(folder, name + ".csv")
    if not os.path.exists(path):
        return []
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def measured(row, name):
    if not row or not row[name]:
        return ""
    value, error = float(row[name]), float(row[name + "_stderr"] or 0)
    digits = 7 if 0 < value < 0.0001 else 6 if value < 0.001 else 5 if value < 0.01 else 4 if value < 0.1 else 3 if value < 2 else 1
    return f"{value:.{digits}f} ± {error:.{digits}f}"


TEXTS = ("wiki", "howto", "far", "near")  # near: of the kind that calibrates


def table(title, head, lines):
    if not lines:
        return
    print(f"### {title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for line in lines:
        print(f"| {' | '.join(line)} |")
    print()


def index(found, *keys):
    return {tuple(row[key] for key in keys): row for row in found}


def two_texts(folder, name, keys):
    """(key, row of near, row of far), in the order of near."""
    far = index(rows(folder, name + "-far"), *keys)
    return [(key, row, far.get(key)) for key, row in index(rows(folder, name + "-near"), *keys).items()]


def summary(folder):
    """What README.md shows first."""
    logit = index(rows(folder, "logits-near"), "logit_bits", "logit_granularity")
    weight = index(rows(folder, "weights-near"), "model")
    code = index(rows(folder, "codes-near"), "kv_k_bits", "kv_v_bits", "kv_quant")
    bits = ("8", "6", "4", "3")
    lines = [(f"attention logits, a scale for each {of} (`{granularity}`)", lambda b, granularity=granularity: logit.get((b, granularity)))
             for of, granularity in (("layer", "per-tensor"), ("row", "per-row"))]
    lines += [(f"weights, {how}", lambda b, name=name: weight.get((f"w-{name}-{b}-64.h5",)))
              for how, name in (("nearest codes (`--scale search`)", "search"), ("calibrated (`--calib`)", "align"))]
    lines += [(f"KV cache, keys and values (`{name}`)", lambda b, name=name: code.get((b, b, name)))
              for name in ("per-token", "per-channel", "mixed")]
    table("KLD over bits", ("what is rounded", *(f"{b} bits" for b in bits)),
          [(what, *(measured(of(b), "kld_nats") for b in bits)) for what, of in lines])


def cell(folder, name, keys, wanted):
    """KLD of the row whose keys are as wanted."""
    return measured(index(rows(folder, name), *keys).get(wanted), "kld_nats")


def models(folder):
    """The same rows of all models that the bench has run on."""
    names = [("SmolLM2-135M-Instruct", folder), ("Gemma 3 270M", os.path.join(folder, "gemma3"))]
    names = [(name, at) for name, at in names if rows(at, "logits-near")]
    if len(names) < 2:
        return
    logit, code, kept = ("logit_bits", "logit_granularity"), ("kv_k_bits", "kv_v_bits", "kv_quant"), ("kv_policy", "kv_keep", "kv_budget")
    lines = [(f"logits of {bits} bits, `{g}`", "logits-near", logit, (bits, g))
             for bits in ("8", "6", "4", "3") for g in ("per-tensor", "per-head", "per-tile", "per-row")]
    lines += [(f"cache {k}:{v}, `{q}`, {text}", f"codes-{text}", code, (k, v, q)) for text in ("near", "far")
              for k, v in (("8", "8"), ("4", "4"), ("4", "3"), ("4", "2"), ("3", "3"), ("2", "2"))
              for q in ("mixed", "per-token", "per-channel")]
    lines += [(f"{float(share):g} of 1024 tokens, `{policy}`, {budget}", "policies", kept, (policy, share, budget))
              for share in ("0.5", "0.25") for policy in ("kvzap", "kvzip", "keydiff", "h2o", "snapkv")
              for budget in ("global", "uniform")]
    cells = [(what, *(cell(at, name, keys, wanted) for _, at in names)) for what, name, keys, wanted in lines]
    table("KLD of both models", ("what", *(name for name, _ in names)), [line for line in cells if all(line)])


def stats(folder):
    found = {}
    for row in rows(folder, "stats"):
        if row.get("tokens", "all") != "all":
            continue
        found.setdefault(row["layer"], {})[row["values"]] = row
    kinds = ("attention_logits", "hidden_states")
    table("Largest magnitude, median and kurtosis (3 for a normal distribution), by layer",
          ("layer", *(f"{what}, {kind}" for kind in ("logits", "states") for what in ("top 1", "top 100", "median", "kurtosis"))),
          [(layer, *(f"{float(cell[kind][name]):.4g}" for kind in kinds for name in ("top1", "top100", "median", "kurtosis0")))
           for layer, cell in found.items()])


def logits(folder):
    found = {key: (measured(a, "kld_nats"), measured(b, "kld_nats"))
             for key, a, b in two_texts(folder, "logits", ("logit_bits", "logit_granularity"))}
    granularities = ("per-tensor", "per-head", "per-tile", "per-row")
    for at, text in enumerate(("near", "far")):
        table(f"KLD over the bits of the attention logits, text {text}", ("bits", *granularities),
              [(bits, *(found.get((bits, name), ("", ""))[at] for name in granularities)) for bits in ("8", "6", "5", "4", "3")])


def weights(folder):
    made = index(rows(folder, "weights-made"), "model")
    of = {text: index(rows(folder, f"weights-{text}"), "model") for text in TEXTS}
    texts = [text for text in TEXTS if of[text]]
    lines = []
    for (model,) in of["near"]:
        about = made.get((model,))
        options = re.sub(" --calib .*", " --calib TEXT", about["options"]) if about else ""
        lines.append((f"`{options}`" if options else "no options" if about else "source", about["bits_per_weight"] if about else "32",
                      *(measured(of[text].get((model,)), name) for text in texts for name in ("ppl", "kld_nats"))))
    table("Weights", ("`dq quantize`", "bits, all parameters", *(f"{name} {text}" for text in texts for name in ("PPL", "KLD"))), lines)


def calibrations(folder):
    texts = [text for text in (*TEXTS, "de", "ru", "ko", "code") if rows(folder, f"calibrations-{text}")]
    of = {text: index(rows(folder, f"calibrations-{text}"), "model") for text in texts}
    names = [model for (model,) in of[texts[0]] if model.startswith("c-")] if texts else []
    table("What calibrates (`gptq`, 4 bits in groups of 64, embedding 8), KLD", ("calibrated on", *(f"scored on {text}" for text in texts)),
          [(model[2:-3], *(measured(of[text].get((model,)), "kld_nats") for text in texts)) for model in names])


def codes(folder):
    lines = []
    for key, near, far in two_texts(folder, "codes", ("kv_k_bits", "kv_v_bits", "kv_quant")):
        if key[0] != "16":
            lines.append((f"{key[0]}:{key[1]}", key[2], f"{float(near['kv_bytes_per_token']):.0f}",
                          measured(near, "kld_nats"), measured(far, "kld_nats")))
    table("Codes of the KV cache", ("bits K:V", "code", "bytes a token", "KLD near", "KLD far"), lines)


def policies(folder):
    found = index(rows(folder, "policies"), "kv_policy", "kv_keep", "kv_budget")
    names = list(dict.fromkeys(key[0] for key in found if key[0]))
    keeps = sorted({key[1] for key in found if key[1] and float(key[1]) < 1}, reverse=True)
    table("Tokens evicted from a context of 1024, KLD", ("policy", *(f"{b}, {k}" for b in ("uniform", "global") for k in keeps)),
          [(name, *(measured(found.get((name, k, b)), "kld_nats") for b in ("uniform", "global") for k in keeps))
           for name in names])


def retrieval(folder):
    found, parts = {}, (("agnostic", "asked later"), ("aware", "the question known"))
    for part, _ in parts:
        for row in rows(folder, "retrieval-" + part):
            whole = row["kv_keep"] in ("", "1")
            key = ("all tokens", "1", "") if whole else (row["kv_policy"], row["kv_keep"], row["kv_budget"])
            found.setdefault(key, {})[part] = measured(row, "acc")
    table("One of four numbers hidden in 1024 tokens of a novel: share of prompts that find it",
          ("policy", "kept", "budget", *(name for _, name in parts)),
          [(*key, *(cell.get(part, "") for part, _ in parts)) for key, cell in found.items()])


def tasks(folder):
    for name, keys in (("tasks-logits", ("logit_bits", "logit_granularity")), ("tasks-weights", ("model",))):
        found, names = {}, list(dict.fromkeys(row["task"] for row in rows(folder, name)))
        for row in rows(folder, name):
            metric = "acc_norm" if row["acc_norm"] else "acc"
            found.setdefault(tuple(row[key] for key in keys), {})[row["task"]] = measured(row, metric)
        table(f"Accuracy (normalized where the task has it), {name}", (*keys, *names),
              [(*key, *(cell.get(task, "") for task in names)) for key, cell in found.items()])


def speed(folder):
    path = os.path.join(folder, "speed.json")
    if not os.path.exists(path):
        return
    with open(path) as f:
        document = json.load(f)
    lines = []
    for row in document["results"]:
        prefill = row["what"] == "prefill"
        work = f"prefill of {row['tokens']}" if prefill else f"token after {row['context']}"
        share = f"{row['share_of_peak']:.2f} of peak" if prefill else f"{row['share_of_read']:.2f} of a read"
        lines.append((work, row["weights"], row["math"], f"{row['dq_tokens_per_second']:.0f}", row["peer_weights"],
                      f"{row['peer_tokens_per_second']:.0f}", f"{row['ratio']:.2f} ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})",
                      share))
    table(f"Tokens a second of processor time, one thread ({document['device'].split(', ')[1]}), in turns with llama.cpp",
          ("work", "weights of dq", "arithmetic", "dq", "llama.cpp", "", "ratio, 95 %", "dq, of the machine"), lines)


def peers(folder):
    """What tests/peers/real_weights.py measured; in what a row gives a peer, dq has no more bits over projections (+.02)."""
    found = rows(folder, "weights_peers")
    own = {row["type"]: row for row in found if row["program"] == "dq"}
    lines = []
    for row in found:
        if row["program"] in ("dq", "source"):
            continue
        lines.append((f"{row['program']} {row['type']}" + (", text" if row["calibrated"] == "yes" else ""),
                      f"{float(row['bits_projections']):.2f}", measured(row, "kld_nats"),
                      f"`{row['dq_beside']}`" if row["dq_beside"] else "",
                      f"{float(row['dq_bits']):.2f}" if row["dq_bits"] else "",
                      measured(own.get(row["dq_beside"]), "kld_nats"),
                      "{:+.4f} ({:+.4f} to {:+.4f})".format(*(float(row[k]) for k in ("dq_less_it", "low", "high")))
                      if row["dq_less_it"] else "",
                      row["dq_is"]))
    table("Weights of peers on text near, KLD; text: made with 16384 tokens",
          ("peer", "bits of projections", "KLD", "dq beside it", "bits", "KLD", "dq less it, 95 %", "dq is"), lines)


def sizes(folder):
    """What tests/peers/real_weights.py measured of files by their bits over all parameters; dq has no more than the peer beside it."""
    for text in TEXTS:
        found = rows(folder, f"sizes-{text}")
        own = {row["type"]: row for row in found if row["program"] == "dq"}
        lines = [(f"{row['program']} {row['type']}", row["embedding"], f"{float(row['bits_all']):.2f}", measured(row, "kld_nats"),
                  f"`--size {row['dq_beside'].split('/')[1]}`", f"{float(row['dq_bits']):.2f}", measured(own[row["dq_beside"]], "kld_nats"),
                  "{:+.4f} ({:+.4f} to {:+.4f})".format(*(float(row[k]) for k in ("dq_less_it", "low", "high"))), row["dq_is"])
                 for row in sorted(found, key=lambda row: float(row["bits_all"])) if row["dq_bits_over"] == "all"]
        table(f"Sizes: llama.cpp with an importance matrix and dq with a text, KLD on {text}",
              ("type", "embedding", "bits", "KLD", "dq", "bits", "KLD", "dq less it, 95 %", "dq is"), lines)


def main():
    for part in (models, summary, stats, logits, weights, calibrations, codes, policies, retrieval, tasks, speed, peers, sizes):
        part(sys.argv[1])


if __name__ == "__main__":
    main()
