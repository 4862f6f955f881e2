"""A checkpoint quantized by llm-compressor (GPTQModifier), GPTQModel or AutoRound on a CPU, in the environment that has the package.

    python torch_weights.py llmcompressor|gptqmodel|autoround MODEL_DIR IDS.txt OUT_DIR BITS GROUP

Every line of IDS.txt is one calibration sequence. Symmetric codes; the settings that are not named are the package's own.
The embedding and the head stay as they are. pip install llmcompressor; pip install gptqmodel; pip install auto-round.
"""
import os
import shutil
import sys

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # of fewer than three processors GPTQModel makes one, and refuses it

import torch

program, model, ids, out, bits, group = sys.argv[1:]
bits, group = int(bits), int(group)
with open(ids) as f:
    sequences = [[int(x) for x in line.split()] for line in f]
samples = [{"input_ids": s, "attention_mask": [1] * len(s)} for s in sequences]

if program == "llmcompressor":
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    net = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(num_bits=bits, type="int", symmetric=True,
                                                                             strategy="group", group_size=group))
    oneshot(model=net, tokenizer=PreTrainedTokenizerFast(tokenizer_file=os.path.join(model, "tokenizer.json")),
            dataset=Dataset.from_list(samples), num_calibration_samples=len(samples), max_seq_length=max(map(len, sequences)),
            recipe=GPTQModifier(config_groups={"g": scheme}, ignore=["lm_head"]))
    net.save_pretrained(out, save_compressed=True)
elif program == "gptqmodel":
    from gptqmodel import GPTQModel, QuantizeConfig

    net = GPTQModel.load(model, QuantizeConfig(bits=bits, group_size=group), device="cpu", dtype=torch.float32)
    net.quantize(samples, batch_size=1)
    net.save(out)
elif program == "autoround":
    from auto_round import AutoRound
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    net = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    data = torch.utils.data.DataLoader([{k: torch.tensor(v) for k, v in s.items()} for s in samples], batch_size=8)
    AutoRound(net, PreTrainedTokenizerFast(tokenizer_file=os.path.join(model, "tokenizer.json")), scheme=f"W{bits}A16", bits=bits,
              group_size=group, sym=True, dataset=data, nsamples=len(samples), seqlen=max(map(len, sequences)), device_map="cpu",
              amp=False).quantize_and_save(out, format="auto_gptq")
    for inner in [] if os.path.exists(os.path.join(out, "config.json")) else os.listdir(out):  # a folder of its own in out
        for name in os.listdir(os.path.join(out, inner)):
            os.rename(os.path.join(out, inner, name), os.path.join(out, name))
        os.rmdir(os.path.join(out, inner))
else:
    sys.exit(f"{program}: is no program of this script (expected llmcompressor, gptqmodel or autoround)")
shutil.copy(os.path.join(model, "tokenizer.json"), out)
