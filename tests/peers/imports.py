# Folders that transformers and compressed-tensors have quantized and written, as a MODEL of dq: logits in f32 differ from those
# of transformers by at most 2e-6 of the largest, or, where that is more, by twice the floor: how far the same two programs are
# apart on the model before anything was quantized, or transformers from its own in f64. A folder of dq export that transformers
# has saved again gives the container's logits bit for bit.
# usage: imports.py DQ REPOSITORY
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
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme, apply_quantization_config
from compressed_tensors.quantization.utils import calculate_qparams
from transformers import AutoModelForCausalLM

dq, repository = (os.path.abspath(path) for path in sys.argv[1:])
LIMIT = 2e-6
GROUPED = "re:.*down_proj"  # 344 columns are no multiple of a group
pair = os.path.join(repository, "calib", "pair")
ids = [5 + (i * i) % 600 for i in range(96)]
torch.set_num_threads(1)


def run(*args):
    subprocess.run([dq, *args], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def own_logits(path):
    run("logits", path, "-o", "logits.h5", "--force", "--ids", " ".join(map(str, ids)))
    with h5py.File("logits.h5") as f:
        return f["logits"][...]


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def logits(model):
    with torch.no_grad():
        return model.eval()(torch.tensor([ids])).logits[0].numpy()


def apart(a, b):
    return float(np.abs(a - b).max() / np.abs(b).max())


def quantize(model, bits, symmetric, group):
    """Rounded to nearest and written by the package."""
    args = QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric, strategy="group" if group else "channel",
                            group_size=group or None)
    config = QuantizationConfig(config_groups={"g": QuantizationScheme(targets=["Linear"], weights=args)},
                                ignore=["lm_head"] + [GROUPED] * (group > 0), format="pack-quantized",
                                quantization_status="compressed")
    apply_quantization_config(model, config)
    for module in model.modules():
        if hasattr(module, "weight_scale"):
            rows = module.weight.data.reshape(module.weight.shape[0], -1, group or module.weight.shape[1])
            scale, zero = calculate_qparams(rows.amin(-1), rows.amax(-1), args)
            module.weight_scale.data.copy_(scale)
            if not symmetric:
                module.weight_zero_point.data.copy_(zero)
    compressor = ModelCompressor.from_pretrained_model(model, quantization_format="pack-quantized")
    compressor.compress_model(model)
    shutil.rmtree("made", ignore_errors=True)
    model.save_pretrained("made")
    compressor.update_config("made")


def compare(folder):
    """How far dq is from transformers, and transformers from its own in f64."""
    model = load(folder)
    got = logits(model)
    return apart(own_logits(folder), got), apart(got, logits(model.double()))


def check_made(name, cases):
    floor, worst = max(compare(os.path.join(pair, name))), 0.0
    for case in cases:
        quantize(load(os.path.join(pair, name)), *case)
        found, f64 = compare("made")
        floor, worst = max(floor, f64), max(worst, found)
        assert found <= max(LIMIT, 2 * floor), f"{name} {case}: logits differ by {found:.2e} of the largest, the floor is {floor:.2e}"
    print(f"{name}: logits differ by at most {worst:.2e} of the largest, the floor is {floor:.2e}")


def check_saved_again(name):
    run("quantize", os.path.join(pair, name), "-o", "m.h5", "--force", "--bits", "4", "--embed-bits", "6", "--bits-map", "q_proj=8/32",
        "--bits-map", "v_proj=3/32", "--bits-map", "o_proj=4/32/asym")
    run("export", "m.h5", "-o", "codes", "--force", "--format", "compressed-tensors")
    load("codes").save_pretrained("again")
    assert np.array_equal(own_logits("m.h5"), own_logits("again")), name


folder = tempfile.mkdtemp()
try:
    os.chdir(folder)
    for name in ("llama", "diffllama"):
        check_made(name, ((4, True, 32), (4, False, 64), (8, True, 0), (8, False, 32), (4, True, 0)))
        check_saved_again(name)
finally:
    os.chdir(repository)
    shutil.rmtree(folder)
