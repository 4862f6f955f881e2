"""tests/golden/gguf/model: a random Llama in blocks of ggml, and its logits by transformers, which reads the same file.

    pip install gguf numpy torch transformers accelerate safetensors; python3 gguf_model.py OUT_FOLDER

model.gguf has one type for each kind of matrix; -00001-of-00002.gguf and -00002-of-00002.gguf are the same model in two files,
golden.safetensors has `ids`, `logits` and the q and o projections of the layer as transformers has them.
"""
import os
import sys

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T, GGUFWriter
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM

from gguf_types import SCALES

WIDTH, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 256, 256, 4, 2, 32, 260
MATRICES = {"attn_q": (T.Q8_0, HEADS * HEAD_DIM, WIDTH), "attn_k": (T.Q4_1, KV_HEADS * HEAD_DIM, WIDTH),
            "attn_v": (T.Q5_0, KV_HEADS * HEAD_DIM, WIDTH), "attn_output": (T.Q4_0, WIDTH, HEADS * HEAD_DIM),
            "ffn_gate": (T.Q4_K, FFN, WIDTH), "ffn_up": (T.Q3_K, FFN, WIDTH), "ffn_down": (T.Q6_K, WIDTH, FFN)}
SMALL = {T.Q8_0: 1 / 127, T.Q4_0: 1 / 8, T.Q4_1: 1 / 8, T.Q5_0: 1 / 16, T.Q4_K: 1 / 500, T.Q3_K: 1 / 128, T.Q6_K: 1 / 4000}


def blocks(rng, kind, rows, cols):
    values, size = GGML_QUANT_SIZES[kind]
    out = rng.integers(0, 256, (rows, cols // values, size), dtype=np.uint8)
    for at in SCALES[kind]:
        scale = SMALL[kind] * rng.uniform(.05, .1, out.shape[:2])
        out[:, :, at:at + 2] = scale.astype("<f2").view(np.uint8).reshape(*out.shape[:2], 2)
    return out.reshape(rows, -1)


def byte_tokens():
    """The 256 bytes as byte-level BPE writes them, a merge, and three control tokens."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    of = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(rest)}
    return [of[b] for b in range(256)] + ["th", "<|begin|>", "<|end|>", "<|pad|>"]


def write(path, parts):
    rng = np.random.default_rng(7)
    out = GGUFWriter(path, "llama", split_max_tensors=6 if parts > 1 else 0)
    out.add_context_length(512)
    out.add_embedding_length(WIDTH)
    out.add_block_count(1)
    out.add_feed_forward_length(FFN)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_key_length(HEAD_DIM)
    out.add_value_length(HEAD_DIM)
    out.add_rope_dimension_count(HEAD_DIM)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_freq_base(10000.0)
    out.add_vocab_size(VOCAB)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("smollm")
    out.add_token_list(byte_tokens())
    out.add_token_types([1] * 257 + [3] * 3)
    out.add_token_merges(["t h"])
    out.add_bos_token_id(257)
    out.add_eos_token_id(258)
    out.add_add_bos_token(False)
    embed = (rng.standard_normal((VOCAB, WIDTH)) * .5).astype(np.float32)
    out.add_tensor("token_embd.weight", (embed.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8), raw_dtype=T.BF16)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        out.add_tensor(name + ".weight", rng.uniform(.5, 1.5, WIDTH).astype(np.float32))
    for name, (kind, rows, cols) in MATRICES.items():
        out.add_tensor(f"blk.0.{name}.weight", blocks(rng, kind, rows, cols), raw_dtype=kind)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    write(os.path.join(folder, "model.gguf"), 1)
    write(os.path.join(folder, "parts.gguf"), 2)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", dtype=torch.float32,
                                                 attn_implementation="eager")
    ids = np.random.default_rng(1).integers(0, VOCAB, 40).astype(np.int32)
    with torch.no_grad():
        logits = model(torch.tensor(ids[None].astype(np.int64))).logits[0].numpy()
    layer = model.model.layers[0].self_attn
    save_file({"ids": ids, "logits": logits, "q": layer.q_proj.weight.detach().numpy().copy(),
               "k": layer.k_proj.weight.detach().numpy().copy()}, os.path.join(folder, "golden.safetensors"))


main()
