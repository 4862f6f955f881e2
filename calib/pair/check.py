#!/usr/bin/env python3
"""Scores the three models with quantized attention logits: an oracle for `dq`.

Every number is float32 arithmetic on the stored (BF16) weights.  Logits S of
one layer and one sequence are taken after the 1/sqrt(head size) scale and
before the softmax; only causally visible entries count:
    Q = 2^(bits-1) - 1,  A = max |S|,  code = rint(S * Q / A),  S' = code * (A / Q)
with A over all heads and rows (granularity per-tensor), over one head (head) or over one
query row of one head (row).  16 bits means: not quantized.

Choices: sum of log-probabilities of the tokens that encode(ctx + " " + choice) has
beyond encode(ctx); acc takes the largest sum, acc_norm the largest sum divided
by the number of characters of the choice.  Each choice is its own sequence and
the last id is not fed.
Text: the file is encoded once and cut into windows of 192 tokens (tail dropped)
whose first id is replaced by BOS; ids 97..191 of each window are scored.
"""
import argparse
import json
import math
import os

import torch
from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
STATE = {"bits": 16, "granularity": "tensor", "lengths": None, "absmax": 0.0}


def attention(module, query, key, value, attention_mask, scaling=None, **kwargs):
    rep = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(rep, 1), value.repeat_interleave(rep, 1)
    s = torch.matmul(query, key.transpose(2, 3)).mul_(scaling)
    t = s.shape[-1]
    hidden = torch.ones(t, t, dtype=torch.bool).triu(1)
    s.masked_fill_(hidden, 0)
    pad = torch.arange(t)[None, :] >= STATE["lengths"][:, None]     # rows that no sequence has
    peak = s.abs().amax(3, keepdim=True).masked_fill_(pad[:, None, :, None], 0)
    STATE["absmax"] = max(STATE["absmax"], peak.max().item())
    if STATE["bits"] < 16:
        top = 2 ** (STATE["bits"] - 1) - 1
        dims = {"tensor": (1, 2, 3), "head": (2, 3), "row": (3,)}[STATE["granularity"]]
        a = peak.amax(dims, keepdim=True).clamp_min(1e-30)
        s.mul_(top / a).round_().mul_(a / top)
    p = torch.softmax(s.masked_fill_(hidden, float("-inf")), -1)
    return torch.matmul(p, value).transpose(1, 2).contiguous(), p


def load(path):
    import transformers as tr
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    ALL_ATTENTION_FUNCTIONS.register("checked", attention)
    model = tr.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32,
                                                    attn_implementation="eager")
    return prepare(model)


def prepare(model):
    model.config._attn_implementation = "checked"
    return model.eval()


@torch.inference_mode()
def logits_of(model, batch):
    n = max(len(x) for x in batch)
    ids = torch.tensor([x + [0] * (n - len(x)) for x in batch])
    STATE["lengths"] = torch.tensor([len(x) for x in batch])
    pos = torch.arange(n)[None].expand(len(batch), n)
    x = model.model(input_ids=ids, position_ids=pos, use_cache=False).last_hidden_state
    return model.lm_head(x)


def requests(tok, items):
    """[(item, choice, ids, number of scored tokens)]"""
    out = []
    for i, it in enumerate(items):
        ctx = tok.encode(it["ctx"]).ids
        for c, choice in enumerate(it["choices"]):
            cont = tok.encode(it["ctx"] + " " + choice).ids[len(ctx):]
            out.append((i, c, ctx + cont, len(cont)))
    return out


def score(model, items, reqs):
    order = sorted(range(len(reqs)), key=lambda r: len(reqs[r][2]))
    ll = [[0.0] * len(it["choices"]) for it in items]
    for start in range(0, len(order), 24):
        part = [reqs[r] for r in order[start:start + 24]]
        out = logits_of(model, [ids[:-1] for _, _, ids, _ in part])
        for row, (i, c, ids, n) in enumerate(part):
            lp = torch.log_softmax(out[row, len(ids) - 1 - n:len(ids) - 1].double(), -1)
            ll[i][c] = lp.gather(1, torch.tensor(ids[-n:])[:, None]).sum().item()
    acc = norm = 0
    for it, l in zip(items, ll):
        best = max(range(len(l)), key=lambda c: l[c])
        bestn = max(range(len(l)), key=lambda c: l[c] / len(it["choices"][c]))
        acc += best == it["gold"]
        norm += bestn == it["gold"]
    return acc / len(items), norm / len(items), ll


def text_nll(model, ids, n=192):
    total, count = 0.0, 0
    w = [[0] + ids[s + 1:s + n] for s in range(0, len(ids) - n + 1, n)]
    for start in range(0, len(w), 4):
        part = w[start:start + 4]
        out = logits_of(model, part)
        lp = torch.log_softmax(out[:, n // 2:n - 1].double(), -1)
        t = torch.tensor(part)[:, n // 2 + 1:]
        total -= lp.gather(2, t[..., None]).sum().item()
        count += t.numel()
    return total / count


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--models", nargs="+", default=["llama", "diffllama", "planted"])
    ap.add_argument("--bits", type=int, nargs="+", default=[16, 8, 6, 4, 3, 2])
    ap.add_argument("--granularities", nargs="+", default=["tensor", "row"])
    ap.add_argument("--items", type=int, default=0, help="first N items only")
    ap.add_argument("--dir", default=HERE)
    ap.add_argument("--data", default=HERE)
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--dump", help="write the 16-bit log-likelihoods of every choice as JSON")
    args = ap.parse_args()
    torch.set_num_threads(args.threads)
    items = [json.loads(line) for line in open(os.path.join(args.data, "choices.jsonl"))]
    items = items[:args.items] if args.items else items
    text = open(os.path.join(args.data, "text.txt")).read()
    dump = {}
    print(f"{'model':10} {'bits':>4} {'granularity':7} {'acc':>7} {'acc_norm':>8} {'NLL':>8} {'max|S|':>8}")
    for name in args.models:
        path = os.path.join(args.dir, name)
        tok = Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
        model = load(path)
        reqs = requests(tok, items)
        ids = tok.encode(text).ids
        for bits in args.bits:
            for granularity in args.granularities if bits < 16 else ["-"]:
                STATE.update(bits=bits, granularity=granularity, absmax=0.0)
                acc, norm, ll = score(model, items, reqs)
                nll = text_nll(model, ids)
                if bits == 16:
                    dump[name] = ll
                print(f"{name:10} {bits:4d} {granularity:7} {acc:7.4f} {norm:8.4f} {nll:8.4f} "
                      f"{STATE['absmax']:8.2f}", flush=True)
                assert math.isfinite(nll)
    if args.dump:
        with open(args.dump, "w") as fh:
            json.dump(dump, fh)


if __name__ == "__main__":
    main()
