# What dq export writes, loaded by transformers and compressed-tensors: the weights are the container's bit for bit, and
# logits in f32 differ from those of dq logits by at most 2e-6 of the largest, or, where that is more, by twice the floor: how
# far the same two programs are apart on the model before anything was quantized, or transformers from its own in f64.
# usage: exports.py DQ REPOSITORY
import json
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
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, CompressedTensorsConfig

dq, repository = (os.path.abspath(path) for path in sys.argv[1:])
sys.path.insert(0, os.path.join(repository, "python"))
import dq_reader

LIMIT = 2e-6
LENGTH, TEXTS = 128, 4
MIXED = ("q_proj=8/32", "v_proj=3/32", "gate_proj=5", "up_proj=6/64/asym", "o_proj=4/32/asym", "down_proj=4/row")
pair = os.path.join(repository, "calib", "pair")
torch.set_num_threads(1)
with open(os.path.join(pair, "text.txt"), encoding="utf-8") as f:
    ids = Tokenizer.from_file(os.path.join(pair, "llama", "tokenizer.json")).encode(f.read(), add_special_tokens=False).ids
texts = [ids[at:at + LENGTH] for at in range(0, TEXTS * 700, 700)]


def run(*args):
    subprocess.run([dq, *args], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def own_logits(path):
    """Of each text, by dq."""
    out = []
    for text in texts:
        run("logits", path, "-o", "logits.h5", "--force", "--ids", " ".join(map(str, text)))
        with h5py.File("logits.h5") as f:
            out.append(f["logits"][...])
    return out


def logits(model):
    with torch.no_grad():
        return [model.eval()(torch.tensor([text])).logits[0].numpy() for text in texts]


def load(folder, **more):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **more)


def apart(a, b):
    """Of each text: the largest difference as a share of the largest logit."""
    return [float(np.abs(x - y).max() / np.abs(y).max()) for x, y in zip(a, b)]


class Worst:
    """The largest differences of one model: as it was, of its containers, and of transformers from its own f64."""

    def __init__(self, model):
        plain = load(model)
        got = logits(plain)
        self.before = max(apart(got, own_logits(model)))
        self.after, self.f64 = 0.0, max(apart(got, logits(plain.double())))

    def compare(self, what, model, want):
        got = logits(model)  # codes become values in the first pass
        values, state = dq_reader.load("m.h5"), model.state_dict()
        for name, value in values.items():
            assert np.array_equal(state[name].numpy(), value), f"{what}: {name} has other values"
        found, self.f64 = max(apart(got, want)), max(self.f64, *apart(got, logits(model.double())))
        limit = max(LIMIT, 2 * self.before, 2 * self.f64)
        assert found <= limit, f"{what}: logits differ by {found:.2e} of the largest, {limit:.2e} are allowed"
        self.after = max(self.after, found)


def check(worst, model, *options):
    what = " ".join((os.path.basename(model),) + options)
    if "--embed-bits" not in options:
        options += ("--embed-bits", "16")
    run("quantize", model, "-o", "m.h5", "--force", *options)
    want = own_logits("m.h5")
    run("export", "m.h5", "-o", "codes", "--force", "--format", "compressed-tensors")
    worst.compare(what, load("codes"), want)
    if "f32" in options:  # scales of f16 would be multiplied in f16 here
        dequantized = load("codes", quantization_config=CompressedTensorsConfig(dequantize=True))
        worst.compare(what + ", dequantized", dequantized, want)
    return what, want


def untie(model):
    """A copy of the model whose head is its embedding, rows in the other order."""
    shutil.copytree(model, "untied")
    with open("untied/config.json", encoding="utf-8") as f:
        config = json.load(f)
    with open("untied/config.json", "w", encoding="utf-8") as f:
        json.dump(config | {"tie_word_embeddings": False}, f)
    tensors = load_file("untied/model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].flip(0).contiguous()
    save_file(tensors, "untied/model.safetensors", {"format": "pt"})
    return os.path.abspath("untied")


def check_model(model):
    worst = Worst(model)
    mixed = [word for rule in MIXED for word in ("--bits-map", rule)]
    check(worst, model, "--bits", "4", "--scale", "search")
    check(worst, model, "--bits", "4", "--group", "32", "--scale", "search", "--scale-dtype", "f32")
    check(worst, model, "--bits", "4", "--group", "32", "--scale", "asym")
    check(worst, model, "--bits", "4", "--group", "172", "--scale", "search")  # rows of 128 and groups of 172: two schemes
    check(worst, model, "--bits", "8", "--group", "row", "--scale", "asym")
    check(worst, model, "--bits", "6", "--group", "128", "--scale", "asym")
    check(worst, model, "--bits", "6", "--group", "32", "--scale", "absmax")
    check(worst, model, "--bits", "3", "--group", "row", "--scale", "search")
    check(worst, model, "--bits", "4", "--embed-bits", "6", *mixed)
    what, want = check(worst, model, "--bits", "3", "--group", "32")
    run("export", "m.h5", "-o", "values", "--force", "--format", "safetensors", "--dtype", "f32", "--shard-mb", "1")
    worst.compare(what + ", values", load("values"), want)
    fresh = AutoModelForCausalLM.from_config(AutoConfig.for_model(**dq_reader.config("m.h5")), dtype=torch.float32,
                                             attn_implementation="eager")
    fresh.load_state_dict(dq_reader.state_dict("m.h5"), strict=False)
    fresh.tie_weights()
    worst.compare(what + ", state_dict", fresh, want)
    run("export", "m.h5", "-o", "half", "--force", "--format", "safetensors")
    assert AutoModelForCausalLM.from_pretrained("half", dtype="auto").dtype == torch.bfloat16
    return worst


def check_untied(model):
    worst = Worst(model)
    check(worst, model, "--bits", "4", "--embed-bits", "6", "--head-bits", "4", "--dense-type", "bf16")
    check(worst, model, "--bits", "3", "--head-bits", "8", "--group", "32", "--scale", "asym")
    return worst


folder = tempfile.mkdtemp()
try:
    os.chdir(folder)
    results = {name: check_model(os.path.join(pair, name)) for name in ("llama", "diffllama")}
    results["diffllama, untied"] = check_untied(untie(os.path.join(pair, "diffllama")))
finally:
    os.chdir(repository)
    shutil.rmtree(folder)
for name, worst in results.items():
    print(f"{name}: logits differ by at most {worst.after:.2e} of the largest, {worst.before:.2e} before quantization; "
          f"transformers from its own in f64 by {worst.f64:.2e}")
