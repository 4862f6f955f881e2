#!/usr/bin/env python3
"""Trains one model of the pair and keeps checkpoints:  train.py --kind llama|diffllama --seed S --out DIR --text DIR

The networks are those of studies/tiny/net.py. Both kinds of a seed begin with the same matrices (λ apart) and see the same windows
in the same order. Products with weights are bf16 (`autocast`), all else is f32. One thread. What was killed goes on from the
state of at most SAVE_EVERY steps ago: the same command again.

DIR/KIND-S/STEP/ is a checkpoint that `dq` and transformers read (bf16).
"""
import argparse
import math
import os
import shutil
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tiny"))
import net  # noqa: E402

SHAPE = dict(vocab_size=4096, hidden_size=192, intermediate_size=512, num_hidden_layers=6, num_attention_heads=6,
             num_key_value_heads=6, head_dim=32, max_position_embeddings=256, rms_norm_eps=1e-5)
BLOCK = 64                  # rows of attention at a time
BATCH = 4                   # windows of a step
STEPS = 8000
CHECKPOINTS = (0, 50, 100, 200, 300, 400, 600, 800, 1200, 1600, 2400, 3200, 4800, 6400, 8000)
RATE, WARM_UP, LAST_RATE = 1.5e-3, 200, 0.1  # the rate climbs, then falls to a tenth along a cosine
SAVE_EVERY = 100
BOS = 0


def network(kind, seed, shape=None):
    """Normal weights of 0.02, those into the residual stream smaller by sqrt(2 layers); λ as DiffLlama has them."""
    shape = shape or SHAPE
    torch.manual_seed(seed)
    model = net.Net(kind, shape, BLOCK)
    draw = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        if p.dim() == 2:
            small = (2 * shape["num_hidden_layers"]) ** -0.5 if "o_proj" in name or "down_proj" in name else 1
            with torch.no_grad():
                p.normal_(0, 0.02 * small, generator=draw)
    return model


class Windows:
    """<bos> and 255 tokens: the training text cut at an offset that changes with the epoch, in an order drawn for it."""

    def __init__(self, path, seed, positions):
        self.ids = np.fromfile(path, dtype=np.uint16).astype(np.int64)
        self.seed, self.each = seed, positions - 1
        self.count = len(self.ids) // self.each - 1

    def batch(self, step, n):
        out = np.full((n, self.each + 1), BOS, dtype=np.int64)
        for i in range(n):
            epoch, at = divmod(step * n + i, self.count)
            rng = np.random.default_rng([self.seed, epoch])
            offset = rng.integers(self.each)
            if getattr(self, "epoch", None) != epoch:
                self.epoch, self.order = epoch, rng.permutation(self.count)
            begin = offset + self.order[at] * self.each
            out[i, 1:] = self.ids[begin:begin + self.each]
        return torch.from_numpy(out)


def rate(step):
    if step < WARM_UP:
        return RATE * (step + 1) / WARM_UP
    along = (step - WARM_UP) / (STEPS - WARM_UP)
    return RATE * (LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * along)) / 2)


def optimizer(model):
    return torch.optim.AdamW([{"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": 0.1},
                              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}],
                             lr=RATE, betas=(0.9, 0.95), fused=True)


def step_of(model, opt, ids, lr):
    """One step; mean loss."""
    for group in opt.param_groups:
        group["lr"] = lr
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    return loss.item()


def save_checkpoint(model, folder, text):
    """Written beside its place and moved there whole."""
    part = folder + ".part"
    shutil.rmtree(part, ignore_errors=True)
    gap = net.save(model, part, 64)
    shutil.copy(os.path.join(text, "tokenizer.json"), part)
    with open(os.path.join(part, "tokenizer_config.json"), "w") as f:
        f.write('{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "model_max_length": 256}\n')
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(part, folder)
    return gap


def save_state(path, model, opt, step):
    torch.save({"model": model.state_dict(), "optimizer": opt.state_dict(), "step": step}, path + ".part")
    os.replace(path + ".part", path)


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--kind", choices=("llama", "diffllama"), required=True)
    parse.add_argument("--seed", type=int, required=True)
    parse.add_argument("--out", required=True)
    parse.add_argument("--text", required=True, help="where corpus.py and tokens.py put theirs")
    args = parse.parse_args()
    torch.set_num_threads(1)
    folder = os.path.join(args.out, f"{args.kind}-{args.seed}")
    os.makedirs(folder, exist_ok=True)
    state = os.path.join(folder, "state.pt")
    model = network(args.kind, args.seed)
    opt = optimizer(model)
    windows = Windows(os.path.join(args.text, "train.bin"), args.seed, SHAPE["max_position_embeddings"])
    first = 0
    if os.path.exists(state):
        kept = torch.load(state)
        model.load_state_dict(kept["model"])
        opt.load_state_dict(kept["optimizer"])
        first = kept["step"]
    began, mean = time.time(), None
    for step in range(first, STEPS + 1):
        if step in CHECKPOINTS and not os.path.exists(os.path.join(folder, str(step))):
            gap = save_checkpoint(model, os.path.join(folder, str(step)), args.text)
            print(f"{step} saved; largest difference of a logit to transformers {gap:.1e}", flush=True)
        if step % SAVE_EVERY == 0:
            save_state(state, model, opt, step)
        if step == STEPS:
            break
        loss = step_of(model, opt, windows.batch(step, BATCH), rate(step))
        mean = loss if mean is None else 0.95 * mean + 0.05 * loss
        if (step + 1) % 50 == 0:
            print(f"{step + 1} nll {mean:.3f} wall {time.time() - began:.0f} s cpu {time.process_time():.0f} s", flush=True)


if __name__ == "__main__":
    main()
