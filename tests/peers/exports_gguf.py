# What dq export --format gguf writes, read by the package gguf and run by llama.cpp: values are the container's bit for bit,
# tokens are those of dq tokenize, logits of the same values in F32 differ from those of dq logits by at most 5e-6 of the largest,
# and those of codes, which llama.cpp multiplies by activations in int8, by at most thrice what dq's own in int8 do (rms).
# usage: exports_gguf.py DQ REPOSITORY [MODEL TEXT]     MODEL: a folder of another Llama, TEXT: for it
import json
import os
import shutil
import subprocess
import sys
import tempfile

import h5py
import llama_cpp
import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize

dq, repository, *more = (os.path.abspath(path) for path in sys.argv[1:])
sys.path.insert(0, os.path.join(repository, "python"))
import dq_reader

LIMIT, LENGTH = 5e-6, 128
NAMES = {"embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers": "blk",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.": "attn_", "mlp.": "ffn_",
         "o_proj": "output", "_proj": "", "model.": ""}
pair = os.path.join(repository, "calib", "pair")


def run(*args):
    return subprocess.run([dq, *args], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


def gguf_name(name):
    for old, new in NAMES.items():
        name = name.replace(old, new)
    return name


def in_pairs(rows, heads):
    """Rows of q or k of transformers in the order of llama.cpp."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def compare_values(container, file):
    config = dq_reader.config(container)
    heads = config["num_attention_heads"]
    found = {t.name: dequantize(t.data, t.tensor_type) for t in GGUFReader(file).tensors}
    rounded = {t.name for t in GGUFReader(file).tensors if t.tensor_type.name in ("Q4_1", "Q5_1")}  # lowest values in f16
    values = dq_reader.load(container)
    assert len(found) == len(values)
    for name, value in values.items():
        if ".q_proj." in name or ".k_proj." in name:
            value = in_pairs(value, heads if ".q_proj." in name else config.get("num_key_value_heads", heads))
        got = found[gguf_name(name)].reshape(value.shape).astype("<f4")
        if gguf_name(name) in rounded:
            assert np.abs(got - value).max() <= np.abs(value).max() / 1024, f"{file}: {name} has other values"
            continue
        assert np.array_equal(got.view("<u4"), value.astype("<f4").view("<u4")), f"{file}: {name} has other values"
    return sorted({t.tensor_type.name for t in GGUFReader(file).tensors if len(t.shape) > 1})


def own_logits(model, ids, *options):
    run("logits", model, "-o", "logits.h5", "--force", "--ids", " ".join(map(str, ids)), *options)
    with h5py.File("logits.h5") as f:
        return f["logits"][...]


def load(file, **options):
    return llama_cpp.Llama(file, n_ctx=512, logits_all=True, type_k=0, type_v=0, flash_attn=False, verbose=False, n_threads=1,
                           **options)


def their_logits(file, ids):
    model = load(file)
    model.eval(ids)
    return model.scores[:len(ids)].copy()


def tokens(container, file, text):
    with open("text.txt", "w", encoding="utf-8") as f:
        f.write(text)
    own = [int(i) for i in run("tokenize", container, "--text", "text.txt").split()]
    theirs = load(file, vocab_only=True).tokenize(text.encode(), add_bos=False, special=True)
    assert own == theirs, f"{file}: other tokens"
    return own


def apart(a, b):
    return float(np.abs(a - b).max() / np.abs(b).max()), float(np.sqrt(((a - b) ** 2).mean()) / b.std())


def in_f32(container):
    """A GGUF file with the same values, all in F32."""
    run("export", container, "-o", "values", "--force", "--format", "safetensors", "--dtype", "f32")
    run("quantize", "values", "-o", "values.h5", "--force", "--bits", "16", "--embed-bits", "16")
    run("export", "values.h5", "-o", "values.gguf", "--force", "--format", "gguf")
    assert compare_values(container, "values.gguf") == ["F32"]
    return "values.gguf"


def check(model, text, how, *options):
    run("quantize", model, "-o", "m.h5", "--force", *options)
    run("export", "m.h5", "-o", "m.gguf", "--force", "--format", "gguf", *how)
    types = compare_values("m.h5", "m.gguf")
    ids = tokens("m.h5", "m.gguf", text)[:LENGTH]
    want = own_logits("m.h5", ids)
    exact = apart(their_logits(in_f32("m.h5"), ids), want)[0]
    assert exact <= LIMIT, f"{options}: logits of F32 differ by {exact:.2e}"
    line = f"{os.path.basename(model)} {' '.join(options)}: {', '.join(types)}; F32 {exact:.2e} of the largest"
    if "16" != options[1]:
        theirs = apart(their_logits("m.gguf", ids), want)
        own = apart(own_logits("m.h5", ids, "--math", "int8", "--kv-bits", "8", "--kv-recent", str(LENGTH)), want)
        assert theirs[1] <= 3 * own[1], f"{options}: llama.cpp is {theirs[1]:.2e} off (rms), dq in int8 {own[1]:.2e}"
        line += f"; codes {theirs[0]:.2e}, rms {theirs[1]:.2e} (dq in int8 {own[0]:.2e}, {own[1]:.2e})"
    print(line, flush=True)


def with_tokenizer(source, out):
    """A random Llama of one layer with the tokenizer of a GGUF file."""
    reader, writer, rng = GGUFReader(source), GGUFWriter(out, "llama"), np.random.default_rng(0)
    for key, field in reader.fields.items():
        if not key.startswith("tokenizer."):
            continue
        if field.types[0] == GGUFValueType.ARRAY:
            writer.add_array(key, field.contents())
        else:
            writer.add_key_value(key, field.contents(), field.types[0])
    for name, value in {"context_length": 128, "embedding_length": 64, "block_count": 1, "feed_forward_length": 64,
                        "attention.head_count": 2, "attention.head_count_kv": 2, "rope.dimension_count": 32}.items():
        writer.add_uint32(f"llama.{name}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    shapes = {"token_embd": (len(reader.fields["tokenizer.ggml.tokens"].contents()), 64), "output_norm": (64,)}
    shapes |= {f"blk.0.{n}": (64, 64) for n in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")}
    shapes |= {f"blk.0.{n}": (64,) for n in ("attn_norm", "ffn_norm")}
    for name, shape in shapes.items():
        writer.add_tensor(name + ".weight", rng.normal(0, 0.1, shape).astype("<f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check_sentencepiece():
    golden = os.path.join(repository, "tests", "golden", "gguf", "spm")
    with_tokenizer(golden + ".gguf", "spm.gguf")
    run("quantize", "spm.gguf", "-o", "spm.h5", "--group", "32", "--scale", "search")
    run("export", "spm.h5", "-o", "spm-again.gguf", "--format", "gguf")
    model = load("spm-again.gguf", vocab_only=True)
    with open(golden + ".json", encoding="utf-8") as f:
        rows = json.load(f)["rows"]
    for row in rows:
        assert model.tokenize(row["text"].encode(), add_bos=False) == row["ids"], f"other tokens of {row['text']!r}"
    print(f"SentencePiece: {len(rows)} texts have the tokens of sentencepiece", flush=True)


def bytes_only():
    """The plain model of calib/pair, whose words are tokens without merges: no GGUF file says so, and so bytes alone are."""
    shutil.copytree(os.path.join(pair, "llama"), "llama")
    with open("llama/tokenizer.json", encoding="utf-8") as f:
        tokenizer = json.load(f)
    tokenizer["model"]["ignore_merges"] = False
    with open("llama/tokenizer.json", "w", encoding="utf-8") as f:
        json.dump(tokenizer, f)
    return os.path.abspath("llama")


folder = tempfile.mkdtemp()
try:
    os.chdir(folder)
    check_sentencepiece()
    with open(more[1] if more else os.path.join(pair, "text.txt"), encoding="utf-8") as f:
        text = f.read(3000)
    if more:
        model, how = more[0], ()
    else:
        model, how = bytes_only(), ("--dtype", "f32")  # 344 columns of down_proj are no whole number of blocks
    check(model, text, how, "--bits", "16", "--embed-bits", "16")
    check(model, text, how, "--bits", "4", "--group", "32", "--scale", "search")
    check(model, text, how, "--bits", "8", "--group", "64", "--scale", "absmax")
    check(model, text, how, "--bits", "4", "--group", "32", "--scale", "asym")
    if not more:
        check(model, text, how, "--bits", "5", "--group", "tensor", "--scale", "asym", "--embed-bits", "3")
        check(model, text, how, "--bits", "3", "--group", "row", "--scale", "search", "--embed-bits", "5")
finally:
    os.chdir(repository)
    shutil.rmtree(folder)
