"""Logits of a GGUF file: dq logits beside transformers, which decodes the same file into f32.

    pip install transformers torch gguf h5py; python gguf_logits.py DQ MODEL.gguf TEXT [TOKENS...]

For each number of TOKENS (700 and 1400 without one) the first ids of TEXT, by dq tokenize. Prints the largest
difference as a share of the largest logit, and how many of the most likely ids are the same; ends with 1 where the share is
above 2e-5. Memory: the model in f32, and its logits twice.
"""
import os
import subprocess
import sys
import tempfile

import h5py
import torch
import transformers

NEAR = 2e-5


def ours(dq, model, ids):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "logits.h5")
        subprocess.run([dq, "logits", model, "--ids", " ".join(map(str, ids)), "-o", path, "-q"], check=True, stdout=subprocess.DEVNULL)
        with h5py.File(path) as f:
            return torch.from_numpy(f["logits"][:])


def main():
    dq, model, text, *tokens = sys.argv[1:]
    out = subprocess.run([dq, "tokenize", model, "--text", text], check=True, capture_output=True, text=True).stdout
    ids = [int(i) for i in out.split()]
    peer = transformers.AutoModelForCausalLM.from_pretrained(os.path.dirname(os.path.abspath(model)), gguf_file=os.path.basename(model),
                                                             dtype=torch.float32, attn_implementation="eager").eval()
    worst = 0
    for n in map(int, tokens or (700, 1400)):
        mine = ours(dq, model, ids[:n])
        with torch.no_grad():
            theirs = peer(torch.tensor([ids[:n]])).logits[0]
        share = float((mine - theirs).abs().max() / theirs.abs().max())
        same = int((mine.argmax(1) == theirs.argmax(1)).sum())
        worst = max(worst, share)
        print(f"{n} tokens: {share:.2g} of the largest logit, {same} of {n} most likely ids the same", flush=True)
    sys.exit(worst > NEAR)


if __name__ == "__main__":
    main()
