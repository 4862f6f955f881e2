#!/usr/bin/env python3
"""Retrieval and streaming heads, and merges instead of drops, for two maps: does either evict better? A study beside dq, in PyTorch.

    python heads.py OUT.csv [--models diffllama-0 ...] [--windows 6] [--items 16] [--scores keydiff leverage]
    python heads.py OUT.csv --join PART.csv ...

Second halves of the first windows of calib/longpair/text.txt after their compressed first halves (kld), and needles whose question
comes later (blind); 4 sinks and 16 recent tokens stay beside what a score keeps, unquantized. The scores are those of scores.py:
keydiff and leverage (keys before RoPE side by side). A part has a line for every model, score, variant and share with the numbers
of all items; --join makes of parts the means and the differences to `drop` over the same items, as many as every part of a kind has,
with intervals as defaults.py has them.

drop      what the score does not keep is gone; every KV head group of every layer keeps as many
global    groups of all layers share by the score's numbers as they are; norm: groups of a layer, by numbers over their sum,
          each at least a fifth of its own
heads     DuoAttention (arXiv 2410.10819): R groups share all that may be kept beside sinks and recent tokens, the others have
          those only. Groups are ordered by what the text loses when one alone has no more; R is the one that loses least.
          Both are measured on the last --calibrate windows of text, which no line counts
planned   as heads, but each group's share is one of 0, 1/16, 1/4, 1 by steps that save most for their tokens
merge     the rest below: what is not kept goes into the kept token, no sink, whose keys have the largest cosine with its own.
          Two maps: the keys of both side by side choose, keys are merged map by map, and values, with one set of weights
counted   all tokens of a merged one weigh alike, and ln of how many they are is added to its logits, in both maps
d2o       weights e^cosine over their sum; tokens whose cosine is below the mean of all such are dropped (D2O, arXiv 2406.13035)
gauss     weights exp(-(distance / mean distance)^2 / 2) (KVMerger, arXiv 2407.08454), counted by the sum of weights
values    keys as they were, values by d2o's weights (in the manner of CaM, ICML 2024)
"""
import argparse
import csv
import math
import os

import torch

import defaults
import scores as importance

HERE = os.path.dirname(os.path.abspath(__file__))
SINK, RECENT, KEEPS, LEVELS = importance.SINK, importance.RECENT, importance.KEEPS, (0, 1 / 16, 1 / 4, 1)
MERGES = ("counted", "d2o", "gauss", "values")


def numbers(m, context, name):
    """Scores by layer, [groups, n] each."""
    n = context[0]["k"].shape[-2]
    if name == "leverage":
        return [importance.leverages(m.pairs(m.turn(row["k"], -torch.arange(n)))) for row in context]
    anchors = [torch.nn.functional.normalize(row["k"], dim=-1).mean(1, keepdim=True) for row in context]
    return [-torch.nn.functional.cosine_similarity(row["k"], a, dim=-1).view(-1, m.groups, n).sum(0) for row, a in zip(context, anchors)]


# ---- Which tokens stay

def free_tokens(n, keep):
    """What a group may keep beside sinks and recent tokens."""
    return max(math.ceil(keep * n), SINK + RECENT) - SINK - RECENT


def mask_of(scores, amounts):
    """scores: by layer, [groups, n]; amounts [layers, groups] beside sinks and recent tokens. Boolean [layers, groups, n]."""
    s = torch.stack(scores).double()
    n = s.shape[-1]
    at = torch.arange(n)
    safe = (at < SINK) | (at >= n - RECENT)
    order = s.masked_fill(safe, -math.inf).argsort(dim=-1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(-1, order, at.expand_as(order).contiguous())
    return safe | (rank < torch.as_tensor(amounts)[..., None])


def shared(order, r, total, most):
    """Amounts of groups when the first r of `order` share `total` tokens, none more than `most`."""
    out = [0] * len(order)
    for g in order[:r]:
        out[g] = min(most, total // r)
    return out


def steps(loss, total, most):
    """loss[group][level]. Amounts: from nothing on, the step that saves most for its tokens and still fits."""
    at, tokens = [0] * len(loss), [int(x * most) for x in LEVELS]
    while True:
        spent, best = sum(tokens[i] for i in at), None
        for g, i in enumerate(at):
            for j in range(i + 1, len(LEVELS)):
                more = tokens[j] - tokens[i]
                gain = (loss[g][i] - loss[g][j]) / more
                if spent + more <= total and gain > 0 and (best is None or gain > best[0]):
                    best = gain, g, j
        if best is None:
            return [tokens[i] for i in at]
        at[best[1]] = best[2]


# ---- Merges

def targets_of(k, mask):
    """k [groups, n, keys of all maps side by side]. For each token the kept one, no sink, of the largest cosine, and that cosine."""
    x = torch.nn.functional.normalize(k, dim=-1)
    allowed = mask.clone()
    allowed[:, :SINK] = False
    best, at = (x @ x.transpose(-1, -2)).masked_fill(~allowed[:, None], -math.inf).max(-1)
    own = torch.arange(k.shape[-2]).expand_as(at)
    return torch.where(mask, own, at), torch.where(mask, torch.ones_like(best), best)


def weights_of(how, k, at, cosine, mask):
    """[groups, n], of tokens before they are shared out: 0 is dropped."""
    if how == "counted":
        return torch.ones_like(cosine)
    if how == "gauss":
        far = (k - k.gather(1, at[..., None].expand_as(k))).pow(2).sum(-1)
        scale = torch.where(mask, torch.zeros_like(far), far).sum(-1, keepdim=True) / (~mask).sum(-1, keepdim=True).clamp_min(1)
        return torch.exp(-far / scale.clamp_min(1e-12) / 2)
    least = torch.where(mask, torch.zeros_like(cosine), cosine).sum(-1, keepdim=True) / (~mask).sum(-1, keepdim=True).clamp_min(1)
    return torch.where(mask | (cosine >= least), cosine.exp(), torch.zeros_like(cosine))


def gathered(x, at, w):
    """x [groups, n, c]: in the place of each kept token the weighted mean of what goes there."""
    sums = torch.zeros_like(x).scatter_add_(1, at[..., None].expand_as(x), x * w[..., None])
    return sums / torch.zeros_like(w).scatter_add_(1, at, w).clamp_min(1e-30)[..., None]


def merged(m, context, masks, how):
    """A cache with merged tokens in the places of kept ones, and how many tokens each stands for, or None."""
    out, counts = [], []
    for row, mask in zip(context, masks):
        k, v = m.pairs(row["k"]), m.pairs(row["v"])
        at, cosine = targets_of(k, mask)
        w = weights_of(how, k, at, cosine, mask)
        unpaired = lambda x: torch.cat(x.chunk(2, -1), 0) if m.diff else x
        out.append({"k": row["k"] if how == "values" else unpaired(gathered(k, at, w)), "v": unpaired(gathered(v, at, w))})
        counts.append(torch.zeros_like(w).scatter_add_(1, at, w).clamp_min(1e-30))
    return out, torch.stack(counts) if how in ("counted", "gauss") else None


# ---- Measures

class Item:
    """A compressed context and what is read after it: rows of text, or a question."""

    def __init__(self, m, ids, rest, names):
        self.m, self.n, self.rest = m, len(ids), rest
        self.context, _ = importance.feed(m, ids, torch.arange(self.n))
        self.scores = {name: numbers(m, self.context, name) for name in names}
        self.reference = None

    def log_probs(self, mask, cache=None, counts=None):
        at = torch.arange(self.n, self.n + len(self.rest))
        _, x = importance.feed(self.m, self.rest, at, cache or self.context, mask[None], counts)
        return torch.log_softmax(self.m.norm(x[0], self.m.W["model.norm.weight"]) @ self.m.head.T, -1)

    def kld(self, mask, cache=None, counts=None):
        if self.reference is None:
            self.reference = self.log_probs(torch.ones_like(mask))
        return float((self.reference.exp() * (self.reference - self.log_probs(mask, cache, counts))).sum(-1).mean())


def text_windows(m):
    ids = m.tok.encode(open(os.path.join(HERE, "..", "..", "calib", "longpair", "text.txt")).read()).ids
    return [torch.tensor([0] + ids[i + 1:i + 1024]) for i in range(0, len(ids) - 1023, 1024)]


def text_item(m, window, names):
    return Item(m, window[:512], window[512:], names)


def heads_of(m, items, names):
    """Measured on calibration windows: the order of groups, how many at each share, and planned amounts of tokens."""
    groups, most = m.layers * m.groups, items[0].n - SINK - RECENT
    shape = lambda amounts: torch.tensor(amounts).view(m.layers, m.groups)
    out = {}
    for name in names:
        def loss(amounts):
            return sum(i.kld(mask_of(i.scores[name], shape(amounts))) for i in items) / len(items)
        alone = [[0 if level == 1 else loss([most] * g + [int(level * most)] + [most] * (groups - g - 1)) for level in LEVELS]
                 for g in range(groups)]
        order = sorted(range(groups), key=lambda g: -alone[g][0])
        for keep in KEEPS:
            total = groups * free_tokens(items[0].n, keep)
            of = {r: loss(shared(order, r, total, most)) for r in range(1, groups + 1)}
            out[name, keep] = order, min(of, key=of.get), [x / most for x in steps(alone, total, most)]
    return out


def masks_of(m, item, name, keep, role):
    """By variant, one that drops what is not kept."""
    order, r, planned = role
    most, free = item.n - SINK - RECENT, free_tokens(item.n, keep)
    shape = lambda amounts: torch.tensor(amounts).view(m.layers, m.groups)
    scores = item.scores[name]
    budgets = importance.kept_of(scores, item.n, keep)
    return {"drop": mask_of(scores, shape([free] * len(order))), "global": budgets["global"], "norm": budgets["norm"],
            "heads": mask_of(scores, shape(shared(order, r, len(order) * free, most))),
            "planned": mask_of(scores, shape([int(x * most) for x in planned]))}


def variants(m, item, name, heads):
    """(variant, keep, mask, cache, counts) one after another."""
    for keep in KEEPS:
        masks = masks_of(m, item, name, keep, heads[name, keep])
        for variant, mask in masks.items():
            yield variant, keep, mask, None, None
        for how in MERGES:
            yield how, keep, masks["drop"], *merged(m, item.context, masks["drop"], how)


def study(name, o):
    m = importance.Model(name)
    windows = text_windows(m)
    heads = heads_of(m, [text_item(m, w, o.scores) for w in windows[-o.calibrate:]], o.scores)
    for (score, keep), (order, r, planned) in heads.items():
        print(f"{name} {score} {keep:g}: groups {order}, {r} of them; planned {' '.join(f'{x:.3f}' for x in planned)}", flush=True)
    out = {}
    for w in windows[:min(o.windows, len(windows) - o.calibrate)]:
        item = text_item(m, w, o.scores)
        for score in o.scores:
            for variant, keep, mask, cache, counts in variants(m, item, score, heads):
                out.setdefault(("kld", score, variant, keep), []).append(item.kld(mask, cache, counts))
    for ids, question, answers, gold in importance.needles(m, o.items):
        item = Item(m, ids, question, o.scores)
        for score in o.scores:
            for variant, keep, mask, cache, counts in variants(m, item, score, heads):
                right = item.log_probs(mask, cache, counts)[-1, answers].argmax() == gold
                out.setdefault(("blind", score, variant, keep), []).append(float(right))
    return [[name, *key, " ".join(f"{x:.6g}" for x in values)] for key, values in out.items()]


def join(paths, out):
    of = {}
    for path in paths:
        for r in csv.DictReader(open(path)):
            kind, seed = r["model"].rsplit("-", 1)
            of.setdefault((r["measure"], kind, r["score"], r["variant"], float(r["keep"])), {})[seed] = \
                [float(x) for x in r["numbers"].split()]
    out.writerow(["kind", "seed", "measure", "score", "variant", "keep", "items", "mean", "se", "less_drop", "half_95", "said"])
    for (measure, kind, score, variant, keep), found in of.items():
        n = min(map(len, found.values()))
        ours, usual = ({s: x[:n] for s, x in of[measure, kind, score, v, keep].items()} for v in (variant, "drop"))
        for seed, *x in defaults.compare(ours, usual):
            word = defaults.said(measure, *x[2:]) if variant != "drop" else ""
            out.writerow([kind, seed, measure, score, variant, keep, n] + [f"{v:.5f}" for v in x] + [word])


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("out")
    a.add_argument("--models", nargs="+", default=importance.MODELS)
    a.add_argument("--windows", type=int, default=6)
    a.add_argument("--calibrate", type=int, default=3)
    a.add_argument("--items", type=int, default=16)
    a.add_argument("--scores", nargs="+", default=["keydiff", "leverage"])
    a.add_argument("--join", nargs="+")
    o = a.parse_args()
    torch.set_num_threads(1)
    with torch.no_grad(), open(o.out, "w", newline="") as f:
        w = csv.writer(f, lineterminator="\n")
        if o.join:
            return join(o.join, w)
        w.writerow(["model", "measure", "score", "variant", "keep", "numbers"])
        for name in o.models:
            w.writerows(study(name, o))
            f.flush()


if __name__ == "__main__":
    main()
