#!/usr/bin/env python3
"""Trains one model of a pair:  train.py --kind llama|diffllama [--seed N] [--out DIR] [--positions N]

The networks and the loop are those of studies/tiny/net.py. A seed fixes weights and documents of a kind; as the
kinds leave the phases at different steps, they do not see the same documents.
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
             max_position_embeddings=1024, rms_norm_eps=1e-5)
BLOCK = 128  # rows of attention at a time


def batch_of(rng, n, length, notes, questions):
    """ids [n, length] with BOS in front, and which of them are answers."""
    ids = torch.zeros((n, length), dtype=torch.long)
    answer = torch.zeros((n, length), dtype=torch.bool)
    for i in range(n):
        k = rng.randint(*notes)
        plan = (make_data.halves_plan(rng, k) if rng.random() < 0.25
                else make_data.mixed_plan(rng, k, questions))
        doc = make_data.Document(rng, length - 1, plan)
        ids[i, 1:] = torch.tensor(make_data.ids_of(doc.words))
        answer[i, [1 + a for a in doc.answers]] = True
    return ids, answer


# The curriculum: random words repeated until the second half is known, then documents of growing
# length. A phase ends once the mean loss of its answers is below `known`, or after `steps`. Notes
# and questions are dense throughout, so that many tokens of every sequence are answers.
PHASES = (
    dict(name="repeats", steps=1500, known=0.25),
    dict(name="64", steps=600, known=0.15, n=64, length=64, notes=(2, 4), questions=8),
    dict(name="128", steps=300, known=0.10, n=32, length=128, notes=(3, 8), questions=14),
    dict(name="256", steps=300, known=0.10, n=16, length=256, notes=(5, 14), questions=24),
    dict(name="512", steps=300, known=0.10, n=8, length=512, notes=(8, 26), questions=44),
    dict(name="1024", steps=700, known=0.0, n=4, length=1024, notes=(12, 48), questions=80),
)


def phases_of(positions):
    """The curriculum of a longer model: 4096 tokens a step, twice as long from phase to phase, the last one as above."""
    phases = list(PHASES)
    while phases[-1]["length"] < positions:
        last = phases[-1]
        length = 2 * last["length"]
        most = min(2 * last["notes"][1], make_data.MOST)
        phases[-1] = dict(last, steps=300, known=0.10)
        phases.append(dict(last, name=str(length), n=max(1, last["n"] // 2), length=length,
                           notes=(min(2 * last["notes"][0], most - 1), most), questions=2 * last["questions"]))
    return phases


def batch(phase, rng):
    if phase["name"] == "repeats":
        return net.repeated(rng, 96, len(make_data.WORDS))
    return batch_of(rng, phase["n"], phase["length"], phase["notes"], phase["questions"])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--kind", choices=("llama", "diffllama"), required=True)
    ap.add_argument("--out", default=HERE)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--positions", type=int, default=1024, choices=(1024, 2048, 4096, 8192))
    ap.add_argument("--threads", type=int, default=1, help="1: the two kinds side by side")
    args = ap.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    model = net.Net(args.kind, dict(SHAPE, max_position_embeddings=args.positions), BLOCK)
    out = os.path.join(args.out, f"{args.kind}-{args.seed}")
    net.train(model, phases_of(args.positions), batch, rng, out, args.lr, save_every=100, save_length=700)
    make_data.write_tokenizer(out, args.positions)


if __name__ == "__main__":
    main()
