#!/usr/bin/env python3
"""Scores the long pair with the transformers classes: an oracle for `dq eval`.

    python check.py [--models diffllama-0 llama-0] [--dir DIR --data DIR --positions N]
                    [--items N] [--windows N] [--threads N] [--dump FILE]

Float32 arithmetic on the stored (BF16) weights, eager attention.
Needles: as `dq eval --task mc` has it, the sum of the log-probabilities of the tokens that
encode(ctx + " " + choice) has beyond encode(ctx). A choice is one id here, so one pass over the
context scores all of them. Beside the accuracy: `greedy`, the share of items whose likeliest id of
the whole vocabulary is the answer, which is what greedy decoding would write.
Text: as `dq eval --text --ctx 1024` has it, the file is encoded once and cut into windows of 1024
ids (--positions) whose first id is replaced by BOS; ids 513..1023 are scored. The same tokens are then
scored without the first half of their window (BOS, then ids 512..1023): the difference is what the
prefix is worth. `answers` are the ids after `? name`, `rest` all others.
"""
import argparse
import json
import os

import torch
import transformers as tr
from tokenizers import Tokenizer

import make_data

HERE = os.path.dirname(os.path.abspath(__file__))


@torch.inference_mode()
def log_probs(model, batch, first):
    """Log-probabilities of the tokens after position `first`, ... (float64)."""
    ids = torch.tensor(batch)
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, first:]
    return torch.log_softmax(model.lm_head(hidden).double(), -1)


def needles(model, tok, items):
    """Per item: (right among the choices, right in the whole vocabulary, depth, sums)."""
    out = []
    for it in items:
        ctx = tok.encode(it["ctx"]).ids
        conts = [tok.encode(it["ctx"] + " " + c).ids[len(ctx):] for c in it["choices"]]
        assert all(len(c) == 1 for c in conts)
        lp = log_probs(model, [ctx], len(ctx) - 1)[0, 0]
        sums = [lp[c[0]].item() for c in conts]
        gold = it["gold"]
        out.append((max(range(len(sums)), key=sums.__getitem__) == gold,
                    lp.argmax().item() == conts[gold][0], it["depth"], sums))
    return out


def text(model, ids, n, with_prefix):
    """Mean NLL of the second half of the windows of n tokens: all scored tokens, answers, others; then the share
    of answers that are the likeliest id, and the number of scored tokens."""
    ask = make_data.ID["?"]
    half, nll, best, is_answer = n // 2, [], [], []
    for s in range(0, len(ids) - n + 1, n):
        window = [make_data.vocabulary.BOS] + ids[s + 1:s + n]
        feed = window if with_prefix else [make_data.vocabulary.BOS] + window[half:]
        lp = log_probs(model, [feed], len(feed) - half)[0, :-1]
        target = torch.tensor(window[half + 1:])
        nll.append(-lp.gather(1, target[:, None])[:, 0])
        best.append(lp.argmax(1) == target)
        is_answer += [window[i - 2] == ask for i in range(half + 1, n)]
    nll, best, is_answer = torch.cat(nll), torch.cat(best), torch.tensor(is_answer)
    return (nll.mean().item(), nll[is_answer].mean().item(), nll[~is_answer].mean().item(),
            best[is_answer].double().mean().item(), len(nll))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--models", nargs="+", default=[f"{k}-0" for k in make_data.KINDS])
    ap.add_argument("--positions", type=int, default=make_data.WINDOW, help="ids of a window")
    ap.add_argument("--items", type=int, default=0, help="first N items only")
    ap.add_argument("--windows", type=int, default=0, help="first N windows only")
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--dir", default=HERE)
    ap.add_argument("--data", default=HERE)
    ap.add_argument("--dump", help="write the log-likelihoods of every choice as JSON")
    args = ap.parse_args()
    torch.set_num_threads(args.threads)
    with open(os.path.join(args.data, "needles.jsonl")) as f:
        items = [json.loads(line) for line in f]
    items = items[:args.items] if args.items else items
    with open(os.path.join(args.data, "text.txt")) as f:
        held_out = f.read()
    dump = {}
    bins = make_data.DEPTH_BINS
    for name in args.models:
        path = os.path.join(args.dir, name)
        tok = Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
        model = tr.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32,
                                                        attn_implementation="eager").eval()
        rows = needles(model, tok, items)
        dump[name] = [r[3] for r in rows]
        mean = lambda values: sum(values) / max(len(values), 1)
        print(f"{name}: {len(rows)} items, acc {mean([r[0] for r in rows]):.4f}, "
              f"greedy {mean([r[1] for r in rows]):.4f}")
        for b in range(bins):
            part = [r for r in rows if min(int(r[2] / 0.98 * bins), bins - 1) == b]
            print(f"  depth {0.98 * b / bins:.2f}-{0.98 * (b + 1) / bins:.2f}: {len(part):3d} items, "
                  f"acc {mean([r[0] for r in part]):.3f}, greedy {mean([r[1] for r in part]):.3f}")
        ids = tok.encode(held_out).ids
        ids = ids[:args.windows * args.positions] if args.windows else ids
        for with_prefix in (True, False):
            every, answers, rest, greedy, n = text(model, ids, args.positions, with_prefix)
            print(f"  text {'with' if with_prefix else 'without'} first half: {n} ids, "
                  f"NLL {every:.4f}, answers {answers:.4f} (greedy {greedy:.4f}), rest {rest:.4f}",
                  flush=True)
    if args.dump:
        with open(args.dump, "w") as f:
            json.dump(dump, f)


if __name__ == "__main__":
    main()
