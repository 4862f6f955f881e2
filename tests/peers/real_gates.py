"""Gates of `dq plan gates` beside the same fit from transformers and NumPy.

    python3 tests/peers/real_gates.py DQ MODEL.gguf FOLDER TEXT [--ctx 256] [--windows 8]

FOLDER is the same model for transformers (studies/real/checkpoint.py), TEXT plain text. Attention probabilities of rows that repeat a
window after itself come from transformers' eager attention; keys before RoPE and values from the projections' outputs; the ridge
regression is numpy.linalg.solve. Prints the largest difference of a score, in nats, and of the two figures of the summary; exits 1
where scores differ by more than .01.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedTokenizerFast

SINK, FLOOR, RIDGE = 4, 1e-6, 1e-3


def hooked(model, kept):
    """Outputs of k_proj and v_proj of every layer go to kept[(layer, name)]."""
    for index, layer in enumerate(model.model.layers):
        for name in ("k_proj", "v_proj"):
            getattr(layer.self_attn, name).register_forward_hook(
                lambda _m, _i, out, key=(index, name): kept.__setitem__(key, out[0].clone())
            )


@torch.no_grad()
def read_window(model, kept, ids):
    """Features [layers][groups][n][F] and ln(peak + floor) [layers][groups][n] of a window that is read twice."""
    config, n = model.config, len(ids)
    dim, groups = config.hidden_size // config.num_attention_heads, config.num_key_value_heads
    cache, row = DynamicCache(), torch.tensor([ids])
    model(input_ids=row, past_key_values=cache)
    parts = {key: x.view(n, groups, dim).double().numpy() for key, x in kept.items()}
    maps = model(input_ids=row, past_key_values=cache, output_attentions=True).attentions
    features, target = [], []
    for index, a in enumerate(maps):
        k, v = parts[index, "k_proj"], parts[index, "v_proj"]
        length = np.sqrt((k**2).sum(-1)), np.log(np.sqrt((v**2).sum(-1)) + FLOOR)
        at = np.broadcast_to(np.log1p(np.arange(n))[:, None, None], (n, groups, 1))
        f = np.concatenate([k, v, length[0][..., None], length[1][..., None], at, np.ones_like(at)], -1)
        features.append(f.transpose(1, 0, 2))
        peak = a[0, :, :, :n].amax(1).view(groups, -1, n).amax(1).double().numpy()
        target.append(np.log(peak + FLOOR))
    return np.stack(features), np.stack(target)


def solve(f, y):
    x, mean = f[:, :-1] - f[:, :-1].mean(0), f[:, :-1].mean(0)
    own = x.T @ x
    w = np.linalg.solve(own + RIDGE * np.diag(np.diag(own)), x.T @ (y - y.mean()))
    return np.append(w, y.mean() - mean @ w)


def quarter(x):
    return x >= np.sort(x)[len(x) - (len(x) + 3) // 4]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("dq", "gguf", "folder", "text"):
        p.add_argument(name)
    p.add_argument("--ctx", type=int, default=256)
    p.add_argument("--windows", type=int, default=8)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    o = p.parse_args()
    torch.set_num_threads(o.threads)
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "gates.json")
        subprocess.run(
            [o.dq, "plan", "gates", o.gguf, "--text", o.text, "--ctx", str(o.ctx), "--limit", str(o.windows), "-o", out, "-q"]
            + ["--threads", str(o.threads)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        with open(out, encoding="utf-8") as f:
            gates = json.load(f)
    model = AutoModelForCausalLM.from_pretrained(o.folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokens = PreTrainedTokenizerFast(tokenizer_file=os.path.join(o.folder, "tokenizer.json"))
    with open(o.text, encoding="utf-8") as f:
        ids = tokens(f.read(), add_special_tokens=False)["input_ids"]
    kept = {}
    hooked(model, kept)
    read = [read_window(model, kept, ids[i * o.ctx : (i + 1) * o.ctx]) for i in range(o.windows)]
    fitted = o.windows - o.windows // 4
    layers, groups = read[0][1].shape[:2]
    mine = [
        [solve(*(np.concatenate([r[k][i, g, SINK:] for r in read[:fitted]]) for k in (0, 1))) for g in range(groups)]
        for i in range(layers)
    ]
    theirs = np.array(gates["weights"]).reshape(layers, groups, -1)
    worst, squares, errors, both = 0.0, [], [], []
    for f, y in read[fitted:]:
        said = np.einsum("lgnf,lgf->lgn", f, np.array(mine))[:, :, SINK:]
        worst = max(worst, np.abs(said - np.einsum("lgnf,lgf->lgn", f, theirs)[:, :, SINK:]).max())
        y = y[:, :, SINK:]
        squares.append(y.ravel())
        errors.append((y - said).ravel())
        both.append((quarter(y.ravel()) & quarter(said.ravel())).sum() / quarter(y.ravel()).sum())
    explained = 1 - (np.concatenate(errors) ** 2).sum() / (len(np.concatenate(squares)) * np.concatenate(squares).var())
    print(f"largest difference of a score {worst:.2e} nats")
    print(f"explained {explained:.6f}, dq {gates['result']['explained_variance']:.6f}")
    print(f"kept {np.mean(both):.6f}, dq {gates['result']['kvzip_quarter_kept']:.6f}")
    return worst > 0.01


if __name__ == "__main__":
    sys.exit(main())
