"""A GGUF file in dq beside transformers, which reads the same file: logits in f32 and f64, and what dq quantizes from it beside
what it quantizes from the folder of studies/real/checkpoint.py.

    pip install torch transformers accelerate gguf h5py; python gguf_file.py DQ MODEL.gguf TEXT [FOLDER]
"""
import os
import subprocess
import sys
import tempfile

import h5py
import torch
from transformers import AutoModelForCausalLM


def run(*args):
    return subprocess.run(args, check=True, capture_output=True, text=True).stdout


def tensors(path):
    found = {}
    with h5py.File(path) as f:
        f["tensors"].visititems(lambda name, x: found.__setitem__(name, x[()].tobytes()) if isinstance(x, h5py.Dataset) else None)
    return found


def main():
    dq, path, text = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as work:
        ids = [int(x) for x in run(dq, "tokenize", path, "--text", text).split()[1000:1128]]
        run(dq, "logits", path, "--ids", " ".join(map(str, ids)), "-o", f"{work}/logits.h5", "-q")
        ours = h5py.File(f"{work}/logits.h5")["logits"][()]
        model = AutoModelForCausalLM.from_pretrained(os.path.dirname(path) or ".", gguf_file=os.path.basename(path),
                                                     dtype=torch.float32, attn_implementation="eager")
        with torch.no_grad():
            theirs = model(torch.tensor([ids])).logits[0].numpy()
            exact = model.double()(torch.tensor([ids])).logits[0].numpy()
        top = abs(exact).max()
        for name, a, b in (("dq, transformers", ours, theirs), ("dq, f64", ours, exact), ("transformers, f64", theirs, exact)):
            print(f"{name}: {abs(a - b).max() / top:.2g} of the largest logit")
        if len(sys.argv) > 4:
            for name, source in (("file", path), ("folder", sys.argv[4])):
                run(dq, "quantize", source, "-o", f"{work}/{name}.h5", "--bits", "4", "-q")
            print("the same codes:", tensors(f"{work}/file.h5") == tensors(f"{work}/folder.h5"))


main()
