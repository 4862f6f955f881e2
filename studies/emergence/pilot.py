#!/usr/bin/env python3
"""Which learns more in equal processor time: the text itself, or what a larger model expects of it?

    python pilot.py TEXT text --rate R [--seconds N]
    python pilot.py TEXT student --teacher DIR --rate R [--seconds N]

Both train the plain Llama of train.py: `text` on the ids of tokens.py, `student` on the distributions of a teacher (DIR as
../real/checkpoint.py makes it), with the teacher's vocabulary. Prints held-out nats per byte over processor time, for `student`
with and without the teacher's share of it. The rate falls to a tenth by --seconds, along a cosine.
"""
import argparse
import json
import math
import os
import time

import numpy as np
import tokenizers as tk
import torch
import torch.nn as nn
import torch.nn.functional as F
import transformers as tr

import train

HELD_OUT_BYTES = 50000


def cut(ids, bos, n=256):
    return [[bos] + ids[s + 1:s + n] for s in range(0, len(ids) - n + 1, n)]


@torch.inference_mode()
def nats_per_byte(model, windows, tok):
    size = sum(len(tok.id_to_token(i)) for w in windows for i in w[1:])
    total = 0.0
    for at in range(0, len(windows), 8):
        ids = torch.tensor(windows[at:at + 8])
        total += F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), reduction="sum").item()
    return total / size


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("text")
    parse.add_argument("what", choices=("text", "student"))
    parse.add_argument("--teacher")
    parse.add_argument("--rate", type=float, default=train.RATE)
    parse.add_argument("--seconds", type=float, default=150)
    args = parse.parse_args()
    torch.set_num_threads(1)
    with open(os.path.join(args.text, "heldout.txt"), encoding="utf-8") as f:
        held_out = f.read()[:HELD_OUT_BYTES]
    student = args.what == "student"
    tok = tk.Tokenizer.from_file(os.path.join(args.teacher if student else args.text, "tokenizer.json"))
    shape = dict(train.SHAPE, vocab_size=tok.get_vocab_size())
    model = train.network("llama", 0, shape)
    opt = train.optimizer(model)
    bos = train.BOS
    if student:
        teacher = tr.AutoModelForCausalLM.from_pretrained(args.teacher, dtype=torch.float32).eval()
        bos = teacher.config.bos_token_id
        with open(os.path.join(args.text, "train.jsonl"), encoding="utf-8") as f:
            ids = [i for line, _ in zip(f, range(200)) for i in tok.encode(json.loads(line)["text"]).ids]
        train_windows = cut(ids, bos)
        np.random.default_rng(0).shuffle(train_windows)
    else:
        source = train.Windows(os.path.join(args.text, "train.bin"), 0, 256)
    windows = cut(tok.encode(held_out).ids, bos)
    spent = teaching = 0.0
    step, next_look = 0, args.seconds / 6
    while spent < args.seconds:
        began = time.process_time()
        lr = args.rate * min(1, (step + 1) / 30) * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1, spent / args.seconds))))
        if student:
            ids = torch.tensor(train_windows[step * 8:step * 8 + 8])
            with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
                goal = torch.softmax(teacher(ids[:, :-1]).logits.float(), -1)
            teaching += time.process_time() - began
            for group in opt.param_groups:
                group["lr"] = lr
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.float().flatten(0, 1), goal.clone().flatten(0, 1))
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
        else:
            train.step_of(model, opt, source.batch(step, 8), lr)
        step += 1
        spent += time.process_time() - began
        if spent >= next_look or spent >= args.seconds:
            next_look += args.seconds / 6
            print(f"{args.what} rate {args.rate:g}: {step} steps of 2048 tokens, cpu {spent:.0f} s, of which teacher {teaching:.0f} s: "
                  f"{nats_per_byte(model, windows, tok):.4f} nats per byte", flush=True)


if __name__ == "__main__":
    main()
