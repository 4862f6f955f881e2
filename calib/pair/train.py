#!/usr/bin/env python3
"""Trains one model of the pair:  train.py --kind llama|diffllama [--out DIR]

The networks and the loop are those of studies/tiny/net.py.
"""
import argparse
import os
import random
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "studies", "tiny"))
import make_data  # noqa: E402
import net  # noqa: E402
import vocabulary  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPE = dict(vocab_size=vocabulary.VOCAB, hidden_size=128, intermediate_size=344,
             num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, head_dim=32,
             max_position_embeddings=512, rms_norm_eps=1e-5)


def batch_of(rng, n, length, notes, questions):
    """ids [n, length] with BOS in front, and which of them are answers."""
    ids = torch.zeros((n, length), dtype=torch.long)
    answer = torch.zeros((n, length), dtype=torch.bool)
    for i in range(n):
        words, at, _, _ = make_data.document(rng, length - 1, rng.randint(*notes), questions)
        ids[i, 1:] = torch.tensor(make_data.ids_of(words)[:length - 1])
        answer[i, [1 + a for a in at if 1 + a < length]] = True
    return ids, answer


# The curriculum. A phase ends once the mean loss of its answers is below `known`, or after `steps`.
# Without the first one the plain model finds recall very late, or not at all.
PHASES = (
    dict(name="repeats", steps=1500, known=0.25),
    dict(name="short", steps=800, known=0.15),
    dict(name="long", steps=900, known=0.0),
)


def batch(phase, rng):
    if phase["name"] == "repeats":
        return net.repeated(rng, 96, len(make_data.WORDS))
    if phase["name"] == "short":
        return batch_of(rng, 64, 61, (2, 5), 8)
    return batch_of(rng, 32, 193, (4, 12), 20)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--kind", choices=("llama", "diffllama"), required=True)
    ap.add_argument("--out", default=HERE)
    ap.add_argument("--seed", type=int, default=7)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    model = net.Net(args.kind, SHAPE)
    out = os.path.join(args.out, args.kind)
    net.train(model, PHASES, batch, rng, out, args.lr, save_every=300, save_length=256)


if __name__ == "__main__":
    main()
