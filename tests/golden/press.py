#!/usr/bin/env python3
"""Writes press/FAMILY/golden.safetensors: what kvpress thinks of the tokens of a context.

    python tests/golden/press.py        (needs kvpress 0.5.5 in an environment of its own, with the transformers that it wants)

Contexts of N ids through models/llama-f32 and models/diffllama-f32 in f32, at dq's frequencies; G KV head groups, 4 sinks.

    ids [N] i32
    kvzip [layers, G, N] f32           largest attention when the context is read again in chunks of 2048 tokens, the second after the
                                       last 8 tokens of the first, no instruction before them: KVzipPress with a tokenizer that knows no
                                       text. Numbers of sinks mean nothing
    kvzip.global, kvzip.layer [layers, G, N] i8    llama: 1 for what KVzipPress keeps at a quarter, from all layers and layer by layer
    expected [layers, G, N] f32        llama: ExpectedAttentionPress
    keydiff, knorm [layers, G, N] f32  llama: KeyDiffPress, KnormPress
    leverage [layers, G, N] f32        LeverageScorePress before its z-scores, its sketch the identity: all channels of a key
    NAME.kept [layers, G, N] i8        llama: what expected, keydiff, knorm, leverage and streaming keep at a quarter

kvpress knows one map. For diffllama leverage is its function of the keys of both maps side by side. For diffllama kvzip is
the larger of A1 and |lambda| A2 over the rows, by maps that transformers gives out (eager), with lambda from the weights;
the softmax over sinks, chunk and own rows as in KVzipPress.
"""
import math
import os
import pathlib
import sys

sys.path.pop(0)  # files beside this one have names of packages
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import kvpress as kp
import torch
from kvpress.presses import kvzip_press
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DynamicCache

HERE = pathlib.Path(__file__).resolve().parent
N, CHUNK, LEAD, SINK, KEEP = 2348, 2048, 8, 4, 0.25


class NoText:
    """A tokenizer for which every text is empty."""
    chat_template = None

    @staticmethod
    def from_pretrained(name):
        return NoText()

    def encode(self, text, return_tensors, add_special_tokens):
        return torch.zeros(1, 0, dtype=torch.long)


kvzip_press.AutoTokenizer = NoText


def ids_of(vocab):
    """Words of different length that come back, between others."""
    x, seed = [], 12345
    while len(x) < N:
        seed = (1103515245 * seed + 12345) % 2 ** 31
        at = (seed >> 8) % 37
        x += [(at * 31 + k * 17) % vocab for k in range(1 + at % 5)] + [(seed >> 16) % vocab]
    return torch.tensor([x[:N]])


def load(name, attention):
    model = AutoModelForCausalLM.from_pretrained(HERE / "models" / name, dtype=torch.float32, attn_implementation=attention).eval()
    turn = model.model.rotary_emb.inv_freq
    d = 2 * len(turn)
    turn.copy_((1 / 10000.0 ** (torch.arange(0, d, 2).double() / d)).float())  # dq's: in double, rounded once
    return model


def kept_by_mask(model, shape):
    kept = torch.ones(shape, dtype=torch.int8)
    for i, layer in enumerate(model.model.layers):
        _, head, at = layer.self_attn.masked_key_indices
        kept[i, head, at] = 0
    return kept


def zipped(model, ids, **kind):
    """Scores and what is kept."""
    press, seen = kp.KVzipPress(1 - KEEP, chunk_size=CHUNK, n_sink=SINK, **kind), {}
    post = press.compress_post

    def keep_scores(m):
        seen["score"] = press.score_val[:, 0].clone()
        post(m)

    press.compress_post = keep_scores
    with press(model):
        model.model(input_ids=ids, past_key_values=DynamicCache())
    return seen["score"], kept_by_mask(model, seen["score"].shape)


def scored(model, ids, press):
    """Scores of a ScorerPress and what it keeps: the largest, as many as it wants."""
    seen, score = [], press.score
    press.score = lambda *a, **k: seen.append(score(*a, **k)) or seen[-1]
    cache = DynamicCache()
    with press(model):
        model.model(input_ids=ids, past_key_values=cache)
    s = torch.stack([x[0] for x in seen])
    n = cache.layers[0].keys.shape[2]
    kept = torch.zeros(s.shape, dtype=torch.int8).scatter_(-1, s.topk(n, dim=-1).indices, 1)
    return s.contiguous(), kept


def whole_leverages(keys, sketch_dimension):
    """LeverageScorePress with the identity for a sketch."""
    draw, d = torch.randn, keys.shape[-1]
    torch.randn = lambda b, h, rows, cols, **kind: torch.eye(rows, **kind).expand(b, h, rows, cols) * math.sqrt(cols)
    try:
        return sketched_leverages(keys, d)
    finally:
        torch.randn = draw


sketched_leverages = kp.LeverageScorePress.compute_leverage_scores


def leverages(model, ids):
    """Of all layers, a score for each group of the head order."""
    seen, hooks, c = [], [], model.config
    groups = groups_of(c) if "diff" in c.model_type else range(c.num_key_value_heads)
    keys_of = lambda module, h: module.k_proj(h).unflatten(-1, (c.num_key_value_heads, -1)).transpose(1, 2)

    def hook(module, args, kwargs, out):
        k = keys_of(module, kwargs["hidden_states"])
        for g in range(max(groups) + 1):
            heads = [i for i, x in enumerate(key_groups(c)) if x == g]
            seen.append(whole_leverages(torch.cat([k[:, i:i + 1] for i in heads], -1), 0)[0, 0])

    for layer in model.model.layers:
        hooks.append(layer.self_attn.register_forward_hook(hook, with_kwargs=True))
    model.model(input_ids=ids, past_key_values=DynamicCache())
    for h in hooks:
        h.remove()
    return torch.stack(seen).view(c.num_hidden_layers, -1, N).contiguous()


def key_groups(c):
    """The group of each key head."""
    if "diff" not in c.model_type:
        return list(range(c.num_key_value_heads))
    half, r = c.num_attention_heads // 2, c.num_attention_heads // c.num_key_value_heads
    out = [0] * c.num_key_value_heads
    for i, g in enumerate(groups_of(c)):
        out[i // r] = out[(i + half) // r] = g
    return out


def diff_peaks(model, ids):
    c, weights = model.config, load_file(HERE / "models" / "diffllama-f32" / "model.safetensors")
    half, out = c.num_attention_heads // 2, []
    for begin in range(0, N, CHUNK):
        end = min(N, begin + CHUNK)
        again = ids[:, begin - min(begin, LEAD):end]
        cache = DynamicCache()
        model.model(input_ids=ids, past_key_values=cache)
        maps = model.model(input_ids=again, past_key_values=cache, output_attentions=True).attentions
        part = torch.cat([torch.arange(min(SINK, begin)), torch.arange(begin, end), torch.arange(N, N + again.shape[1])])
        for layer, p in enumerate(maps):
            p = p[0][..., part]
            p = p / p.sum(-1, keepdim=True)
            p = p[..., min(SINK, begin):min(SINK, begin) + end - begin]
            w = {n: weights[f"model.layers.{layer}.self_attn.lambda_{n}"].double() for n in ("q1", "k1", "q2", "k2")}
            lam = math.exp((w["q1"] * w["k1"]).sum()) - math.exp((w["q2"] * w["k2"]).sum()) + 0.8 - 0.6 * math.exp(-0.3 * layer)
            x = torch.maximum(p[:half], abs(lam) * p[half:]).amax(1)  # by output head
            out.append((layer, begin, x))
    groups = groups_of(c)
    peaks = torch.zeros(c.num_hidden_layers, max(groups) + 1, N)
    for layer, begin, x in out:
        for head in range(half):
            to = peaks[layer, groups[head], begin:begin + x.shape[-1]]
            to.copy_(torch.maximum(to, x[head]))
    return peaks


def groups_of(c):
    """The group of each output head: heads i and i + half read keys i // r and (i + half) // r, and the values of both."""
    half, r = c.num_attention_heads // 2, c.num_attention_heads // c.num_key_value_heads
    group, owner = [], {}
    for i in range(half):
        keys = (i // r, (i + half) // r)
        g = next((owner[k] for k in keys if k in owner), len(set(owner.values())))
        owner.update({k: g for k in keys})
        group.append(g)
    return group


def write(name, tensors):
    folder = HERE / "press" / name
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "golden.safetensors")


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    model = load("llama-f32", "sdpa")
    ids = ids_of(model.config.vocab_size)
    out = {"ids": ids[0].int()}
    out["kvzip"], out["kvzip.global"] = zipped(model, ids)
    out["kvzip.layer"] = zipped(model, ids, layerwise=True)[1]
    out["expected"], out["expected.kept"] = scored(model, ids, kp.ExpectedAttentionPress(1 - KEEP, n_sink=SINK))
    out["keydiff"], out["keydiff.kept"] = scored(model, ids, kp.KeyDiffPress(1 - KEEP))
    out["knorm"], out["knorm.kept"] = scored(model, ids, kp.KnormPress(1 - KEEP))
    kp.LeverageScorePress.compute_leverage_scores = staticmethod(whole_leverages)
    out["leverage.kept"] = scored(model, ids, kp.LeverageScorePress(1 - KEEP))[1]
    out["leverage"] = leverages(model, ids)
    out["streaming.kept"] = scored(model, ids, kp.StreamingLLMPress(1 - KEEP, n_sink=SINK))[1]
    write("llama-f32", out)
    model = load("diffllama-f32", "eager")
    write("diffllama-f32", {"ids": ids[0].int(), "kvzip": diff_peaks(model, ids), "leverage": leverages(model, ids)})


if __name__ == "__main__":
    main()
