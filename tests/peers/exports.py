# What dq export writes, loaded by transformers and compressed-tensors: the weights are the container's bit for bit, and
# logits in f32 differ from those of dq logits by at most 2e-6 of the largest, or, where that is more, by twice what
# transformers differs by from its own in f64.
# usage: exports.py DQ REPOSITORY
import os
import shutil
import subprocess
import sys
import tempfile

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import h5py
import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, CompressedTensorsConfig

dq, repository = sys.argv[1:]
sys.path.insert(0, os.path.join(repository, "python"))
import dq_reader

LIMIT = 2e-6
pair = os.path.join(repository, "calib", "pair")
torch.set_num_threads(1)
with open(os.path.join(pair, "text.txt"), encoding="utf-8") as f:
    text = f.read(2000)
ids = Tokenizer.from_file(os.path.join(pair, "llama", "tokenizer.json")).encode(text, add_special_tokens=False).ids[:128]
worst = 0.0


def run(*args):
    subprocess.run([dq, *args], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def logits(model):
    with torch.no_grad():
        return model.eval()(torch.tensor([ids])).logits[0].numpy()


def apart(a, b):
    return float(np.abs(a - b).max() / np.abs(b).max())


def compare(what, model, want):
    global worst
    got, values = logits(model), dq_reader.load("m.h5")
    state = model.state_dict()
    for name, value in values.items():
        assert np.array_equal(state[name].numpy(), value), f"{what}: {name} has other values"
    found = apart(got, want)
    limit = LIMIT if found <= LIMIT else max(LIMIT, 2 * apart(got, logits(model.double())))
    assert found <= limit, f"{what}: logits differ by {found:.2e} of the largest, {limit:.2e} are allowed"
    worst = max(worst, found)


def load(folder, **more):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **more)


def check(model, *options):
    what = " ".join((model,) + options)
    run("quantize", os.path.join(pair, model), "-o", "m.h5", "--force", *options)
    run("logits", "m.h5", "-o", "logits.h5", "--force", "--ids", " ".join(map(str, ids)))
    run("export", "m.h5", "-o", "codes", "--force", "--format", "compressed-tensors")
    with h5py.File("logits.h5") as f:
        want = f["logits"][...]
    compare(what, load("codes"), want)
    if "f32" in options:  # scales of f16 would be multiplied in f16 here
        compare(what + ", dequantized", load("codes", quantization_config=CompressedTensorsConfig(dequantize=True)), want)
    return what, want


folder = tempfile.mkdtemp()
try:
    os.chdir(folder)
    for model in ("llama", "diffllama"):
        check(model, "--bits", "4")
        check(model, "--bits", "4", "--group", "32", "--scale", "search", "--scale-dtype", "f32")
        check(model, "--bits", "4", "--group", "32", "--scale", "asym")
        check(model, "--bits", "4", "--group", "172", "--scale", "search")  # rows of 128 and groups of 172: two schemes
        check(model, "--bits", "8", "--group", "row", "--scale", "asym")
        check(model, "--bits", "6", "--group", "128", "--scale", "asym")
        check(model, "--bits", "6", "--group", "32", "--scale", "fullrange")
        check(model, "--bits", "3", "--group", "row", "--scale", "search")
        what, want = check(model, "--bits", "3", "--group", "32")
        run("export", "m.h5", "-o", "values", "--force", "--format", "safetensors", "--dtype", "f32", "--shard-mb", "1")
        compare(what + ", values", load("values"), want)
        fresh = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("values"), dtype=torch.float32,
                                                 attn_implementation="eager")
        fresh.load_state_dict(dq_reader.state_dict("m.h5"), strict=False)
        fresh.tie_weights()
        compare(what + ", state_dict", fresh, want)
        run("export", "m.h5", "-o", "half", "--force", "--format", "safetensors")
        assert AutoModelForCausalLM.from_pretrained("half", dtype="auto").dtype == torch.bfloat16
finally:
    os.chdir(repository)
    shutil.rmtree(folder)
print(f"logits differ by at most {worst:.2e} of the largest")
