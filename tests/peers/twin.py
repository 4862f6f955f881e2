# studies/real/twin.py: the twin of a Llama has the logits of that Llama, by dq and by the formula of Diff Transformer V2 in f64; with
# noise in the second maps it has those of the formula and no longer those of the Llama. On calib/pair/llama (bf16) and on a
# random Llama with fewer KV heads than query heads.
# usage: twin.py DQ REPOSITORY [LLAMA...]    which are checked too
import filecmp
import json
import os
import shutil
import subprocess
import sys
import tempfile

import h5py
import numpy as np
from safetensors.numpy import load_file, save_file

dq, repository, *others = (os.path.abspath(path) for path in sys.argv[1:])
recipe = os.path.join(repository, "studies", "real", "twin.py")
ids = [5 + (i * i) % 600 for i in range(96)]
LIMIT = 1e-5


def run(*args):
    return subprocess.run(args, check=True, capture_output=True, text=True).stdout


def own_logits(path):
    run(dq, "logits", path, "-o", "logits.h5", "--force", "--ids", " ".join(map(str, ids)))
    with h5py.File("logits.h5") as f:
        return f["logits"][...].astype(np.float64)


def norm(x, gain, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain


def rotate(x, cos, sin):
    """Channels 2i and 2i + 1 of each head; x [rows, heads, width]."""
    y = np.empty_like(x)
    y[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    y[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return y


def softmax_attention(q, k, v):
    """Causal, of grouped heads; [rows, heads, width] each."""
    groups = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, groups, 1), np.repeat(v, groups, 1)
    z = np.einsum("thd,shd->hts", q, k) / np.sqrt(q.shape[2])
    z[:, np.arange(len(q))[None, :] > np.arange(len(q))[:, None]] = -np.inf
    p = np.exp(z - z.max(-1, keepdims=True))
    return np.einsum("hts,shd->thd", p / p.sum(-1, keepdims=True), v)


def formula(folder):
    """A V2 model in f64: one attention of all 2h heads, then of each pair the first less sigmoid(W n) times the second."""
    with open(os.path.join(folder, "config.json")) as f:
        c = json.load(f)
    w = {name: x.astype(np.float64) for name, x in load_file(os.path.join(folder, "model.safetensors")).items()}
    d, eps = c["head_dim"], c["rms_norm_eps"]
    theta = c.get("rope_theta") or c["rope_parameters"]["rope_theta"]
    frequency = (theta ** (-2.0 * np.arange(d // 2) / d)).astype(np.float32)
    angle = (np.arange(len(ids), dtype=np.float32)[:, None, None] * frequency).astype(np.float64)
    cos, sin = np.cos(angle), np.sin(angle)
    x = w["model.embed_tokens.weight"][ids]
    for layer in range(c["num_hidden_layers"]):
        def linear(u, name):
            return u @ w[f"model.layers.{layer}.{name}.weight"].T

        n = norm(x, w[f"model.layers.{layer}.input_layernorm.weight"], eps)
        q, k, v = (linear(n, f"self_attn.{p}_proj").reshape(len(ids), -1, d) for p in "qkv")
        assert q.shape[1] == c["num_attention_heads"] and k.shape[1] == c["num_key_value_heads"]
        y = softmax_attention(rotate(q, cos, sin), rotate(k, cos, sin), v)
        lam = 1 / (1 + np.exp(-linear(n, "self_attn.lambda_proj")))
        y = y[:, 0::2] - lam[:, :, None] * y[:, 1::2]
        x = x + linear(y.reshape(len(ids), -1), "self_attn.o_proj")
        n = norm(x, w[f"model.layers.{layer}.post_attention_layernorm.weight"], eps)
        gate = linear(n, "mlp.gate_proj")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(n, "mlp.up_proj"), "mlp.down_proj")
    return norm(x, w["model.norm.weight"], eps) @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def random_llama(folder):
    heads, kv_heads, d, hidden, ffn, vocab = 6, 2, 12, 40, 56, 640
    rng = np.random.default_rng(1)
    shapes = {"self_attn.q_proj": (heads * d, hidden), "self_attn.k_proj": (kv_heads * d, hidden),
              "self_attn.v_proj": (kv_heads * d, hidden), "self_attn.o_proj": (hidden, heads * d), "mlp.gate_proj": (ffn, hidden),
              "mlp.up_proj": (ffn, hidden), "mlp.down_proj": (hidden, ffn), "input_layernorm": (hidden,),
              "post_attention_layernorm": (hidden,)}
    w = {f"model.layers.{i}.{name}.weight": rng.normal(len(shape) == 1, 0.3, shape) for i in range(2) for name, shape in shapes.items()}
    w |= {"model.norm.weight": rng.normal(1, 0.2, hidden), "model.embed_tokens.weight": rng.normal(0, 1, (vocab, hidden))}
    os.mkdir(folder)
    save_file({name: x.astype(np.float32) for name, x in w.items()}, os.path.join(folder, "model.safetensors"))
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"model_type": "llama", "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": 2, "vocab_size": vocab,
                   "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": d, "max_position_embeddings": 512,
                   "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": True}, f)


def check(name, llama):
    def apart(a, b):
        return np.abs(a - b).max() / np.abs(source).max()

    source = own_logits(llama)
    run(sys.executable, recipe, llama, "same")
    for again in ("other", "again"):
        run(sys.executable, recipe, llama, again, "--noise", "0.3", "--seed", "7")
    assert filecmp.cmp(*(os.path.join(x, "model.safetensors") for x in ("other", "again")), shallow=False), "noise of one seed differs"
    about = json.loads(run(dq, "info", "same", "--json"))["inputs"][0]
    assert about["architecture"] == "diff-v2" and about["head_order"] == "shared-kv", about
    same, other = own_logits("same"), own_logits("other")
    found = {"twin, Llama": apart(same, source), "twin, formula": apart(same, formula("same")),
             "noise, formula": apart(other, formula("other"))}
    for what, x in found.items():
        assert x < LIMIT, f"{name}: {what}: logits differ by {x:.2e} of the largest"
    assert apart(other, source) > 1e-2, f"{name}: noise in the second maps changes nothing"
    print(f"{name}: {', '.join(f'{what} {x:.1e}' for what, x in found.items())}; noise, Llama {apart(other, source):.1e}", flush=True)
    for made in ("same", "other", "again"):
        shutil.rmtree(made)


folder = tempfile.mkdtemp()
try:
    os.chdir(folder)
    random_llama("random")
    check("random", "random")
    check("pair", os.path.join(repository, "calib", "pair", "llama"))
    for path in others:
        check(os.path.basename(path), path)
    refused = subprocess.run([sys.executable, recipe, os.path.join(repository, "calib", "pair", "diffllama"), "x"],
                             capture_output=True, text=True)
    assert refused.returncode and "is not a Llama" in refused.stderr and not os.path.exists("x"), refused
finally:
    os.chdir(repository)
    shutil.rmtree(folder)
