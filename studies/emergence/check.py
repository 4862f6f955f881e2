#!/usr/bin/env python3
"""Checkpoints scored by transformers, an oracle for what measure.py asks of dq:

    python check.py --seed S --out DIR --text DIR --csv FILE [--steps 0 800 ...] [--without-bos]

Float32 arithmetic on the stored (bf16) weights, eager attention. Of the held-out windows of windows.json, beside the CSV of
measure.py: mean NLL per token of their second half, the largest hidden state (output of a layer, before the next norm) and the
largest attention logit. Ends with 1 where an NLL differs by more than 1e-5 nats or a magnitude by more than 1e-4 of it.
--without-bos prints instead the NLL of the same tokens in windows that lack their <bos>.
"""
import argparse
import csv
import json
import os
import sys

import torch
import torch.nn.functional as F
import transformers as tr
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import measure
import train


class Largest:
    """Hooks that keep the largest magnitudes of hidden states and of causally visible attention logits."""

    def __init__(self, model):
        self.hidden = self.logits = 0.0
        config = model.config
        self.shape = (config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        self.rotary = model.model.rotary_emb
        for layer in model.model.layers:
            layer.register_forward_hook(self.after_layer)
            layer.self_attn.register_forward_pre_hook(self.before_attention, with_kwargs=True)

    def after_layer(self, _, __, output):
        x = output[0] if isinstance(output, tuple) else output
        self.hidden = max(self.hidden, x.abs().max().item())

    def before_attention(self, attention, args, kwargs):
        x = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        heads, kv_heads, d = self.shape
        b, t, _ = x.shape
        q = attention.q_proj(x).view(b, t, heads, d).transpose(1, 2)
        k = attention.k_proj(x).view(b, t, kv_heads, d).transpose(1, 2)
        q, k = apply_rotary_pos_emb(q, k, *self.rotary(x, torch.arange(t)[None]))
        s = q @ k.repeat_interleave(heads // kv_heads, 1).transpose(2, 3) * d ** -0.5
        self.logits = max(self.logits, s.tril().abs().max().item())


@torch.inference_mode()
def score(folder, windows, first=0):
    """Of windows without their `first` tokens; the scored tokens stay the same."""
    model = tr.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    largest, total, half = Largest(model), 0.0, len(windows[0]) // 2 - first
    for at in range(0, len(windows), 8):
        ids = torch.tensor(windows[at:at + 8])[:, first:]
        logits = model(ids, use_cache=False).logits[:, half:-1].double()
        if at < measure.STATISTICS_WINDOWS:
            logits_top1, hidden_top1 = largest.logits, largest.hidden
        total += F.cross_entropy(logits.flatten(0, 1), ids[:, half + 1:].flatten(), reduction="sum").item()
    return total / sum(len(w) - first - half - 1 for w in windows), hidden_top1, logits_top1


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--seed", type=int, required=True)
    parse.add_argument("--out", required=True)
    parse.add_argument("--text", required=True)
    parse.add_argument("--csv", required=True)
    parse.add_argument("--steps", type=int, nargs="+", default=[train.STEPS])
    parse.add_argument("--without-bos", action="store_true")
    args = parse.parse_args()
    torch.set_num_threads(1)
    with open(os.path.join(args.text, "windows.json")) as f:
        windows = json.load(f)["ids"]
    with open(args.csv, newline="") as f:
        lines = {(line["kind"], int(line["step"])): line for line in csv.DictReader(f) if line["part"] == "all"}
    wrong = 0
    for step in args.steps:
        for kind in ("llama", "diffllama"):
            folder = os.path.join(args.out, f"{kind}-{args.seed}", str(step))
            if args.without_bos:
                print(f"{kind} {args.seed} step {step} without <bos>: NLL {score(folder, windows, 1)[0]:.6f}")
                continue
            nll, hidden, logits = score(folder, windows)
            line = lines[kind, step]
            gaps = (abs(nll - float(line["nll_nats_per_token"])), abs(hidden / float(line["hidden_top1"]) - 1),
                    abs(logits / float(line["logits_top1"]) - 1))
            good = gaps[0] <= 1e-5 and max(gaps[1:]) <= 1e-4
            wrong += not good
            print(f"{kind} {args.seed} step {step}: NLL {nll:.6f}, hidden top1 {hidden:.4f}, logits top1 {logits:.4f}; "
                  f"dq differs by {gaps[0]:.1e} nats, {gaps[1]:.1e} and {gaps[2]:.1e} of it{'' if good else ': too much'}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
