"""Tiny random checkpoints with reference logits from transformers, for the tests of dq.

Regenerate all of tests/golden/models with

    python tests/golden/make.py

(needs torch, transformers 5.23, safetensors and numpy; takes a minute on one core). The outputs are
kept in the repository, so nobody needs Python to build or test. Add a folder by adding a row to MODELS.

Every folder holds a checkpoint and golden.safetensors:

    ids [n] i32, rows [r] i32      the tokens; the rows of the logits that are stored
    logits [r, vocab] f32          transformers, f32, eager attention, positions 0..n-1
    err [1] f32                    max |f32 - f64| / max |logit| of the reference itself
    logits.posP, err.posP          the same at positions P..P+n-1
    inv_freq [d/2], lambda [L]     rotary frequencies as dq defines them; lambda of each layer
    qrows, qcols [..] i32          rows and columns of the logits with rounded attention logits:
    logits.B.GRAIN [r, c] f32      B bits, grain tensor, head, row or tile
    err.B.GRAIN [2] f32            max and mean |f32 - f64| / max |logit|: a logit next to a rounding
                                   boundary may fall on either side of it in another order of sums

The f64 side is an implementation of its own below: numpy, one loop over output heads, the head maps
written as formulas. It keeps the f32 angles of the f32 run, because those are what trained models saw.
Frequencies are set to dq's definition (computed in double, rounded once); transformers rounds twice on
the way and differs in the last bit here and there, which at position 60000 is visible. That difference
is stored as native.posP [1] f32, relative to max |logit|.
"""

import json
import math
import pathlib
import shutil

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.diffllama import modeling_diffllama
from transformers.models.llama import modeling_llama

OUT = pathlib.Path(__file__).parent / "models"
VOCAB = 256
BITS = (8, 6, 4, 3, 2)
GRAINS = ("tensor", "head", "row", "tile")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}


def model(name, family, dtype, hidden, ffn, heads, kv, layers=3, head_dim=None, tied=False, bias=False,
          mlp_bias=False, rope=None, tokens=48, offsets=(), quant=False, shards=False):
    return dict(locals())


# rope holds the configuration's own keys, so that both spellings are met.
MODELS = (
    model("llama-f32", "llama", "float32", 48, 56, 4, 2, tied=True, tokens=160, quant=True,
          rope={"rope_theta": 10000.0, "rope_scaling": None, "torch_dtype": "float32"}),
    model("llama-bf16-bias", "llama", "bfloat16", 64, 72, 4, 2, head_dim=24, bias=True, mlp_bias=True,
          rope={"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3},
                "torch_dtype": "bfloat16"}),
    model("llama-f16-linear", "llama", "float16", 64, 64, 8, 2, head_dim=16,
          rope={"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
                "dtype": "float16"}),
    model("llama-bf16-far", "llama", "bfloat16", 64, 80, 4, 4, tied=True, offsets=(4000, 60000), tokens=24,
          rope={"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "dtype": "bfloat16"}),
    model("diffllama-f32", "diffllama", "float32", 48, 48, 4, 2, tied=True, tokens=160, quant=True,
          rope={"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "dtype": "float32"}),
    model("diffllama-bf16-far", "diffllama", "bfloat16", 64, 56, 8, 4, head_dim=16, tied=True, tokens=24,
          offsets=(4000, 60000),
          rope={"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3},
                "dtype": "bfloat16"}),
    model("diffllama-f16-shards", "diffllama", "float16", 64, 72, 8, 2, layers=4, bias=True, shards=True,
          rope={"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 2.0},
                "torch_dtype": "float16"}),
    model("diffllama-bf16-untied", "diffllama", "bfloat16", 64, 72, 8, 4, head_dim=12,
          rope={"rope_theta": 20000.0, "torch_dtype": "bfloat16"}),
)


# ---- Checkpoints ----

def config_of(s):
    arch = {"llama": "LlamaForCausalLM", "diffllama": "DiffLlamaForCausalLM"}[s["family"]]
    c = {"architectures": [arch], "model_type": s["family"], "vocab_size": VOCAB, "hidden_size": s["hidden"],
         "intermediate_size": s["ffn"], "num_hidden_layers": s["layers"], "num_attention_heads": s["heads"],
         "num_key_value_heads": s["kv"], "hidden_act": "silu", "max_position_embeddings": 65536,
         "rms_norm_eps": 1e-5, "tie_word_embeddings": s["tied"], "attention_bias": s["bias"],
         "bos_token_id": 1, "eos_token_id": [2, 3]}
    if s["family"] == "llama":
        c["mlp_bias"] = s["mlp_bias"]
    if s["head_dim"]:
        c["head_dim"] = s["head_dim"]
    return c | s["rope"]


def width(s):
    return s["head_dim"] or s["hidden"] // s["heads"]


def weights_of(s, rng):
    """Gains that make attention sharp in places and output logits several units large."""
    h, f, d, t = s["hidden"], s["ffn"], width(s), {}

    def matrix(name, rows, cols, gain, bias):
        t[name + ".weight"] = rng.normal(0, gain / math.sqrt(cols), (rows, cols))
        if bias:
            t[name + ".bias"] = rng.normal(0, 0.3, rows)

    t["model.embed_tokens.weight"] = rng.normal(0, 2.5 / math.sqrt(h), (VOCAB, h))
    for i in range(s["layers"]):
        p = f"model.layers.{i}."
        matrix(p + "self_attn.q_proj", s["heads"] * d, h, 1.6, s["bias"])
        matrix(p + "self_attn.k_proj", s["kv"] * d, h, 1.6, s["bias"])
        matrix(p + "self_attn.v_proj", s["kv"] * d, h, 1.0, s["bias"])
        matrix(p + "self_attn.o_proj", h, s["heads"] * d, 0.7, s["bias"])
        matrix(p + "mlp.gate_proj", f, h, 1.2, s["mlp_bias"])
        matrix(p + "mlp.up_proj", f, h, 1.0, s["mlp_bias"])
        matrix(p + "mlp.down_proj", h, f, 0.8, s["mlp_bias"])
        for n in ("input_layernorm", "post_attention_layernorm"):
            t[p + n + ".weight"] = rng.normal(1, 0.2, h)
        if s["family"] == "diffllama":
            for n in ("q1", "k1", "q2", "k2"):
                t[p + "self_attn.lambda_" + n] = rng.normal(0, 0.3 if i % 2 else 0.1, d)
    t["model.norm.weight"] = rng.normal(1, 0.2, h)
    if not s["tied"]:
        t["lm_head.weight"] = rng.normal(0, 2.5 / math.sqrt(h), (VOCAB, h))
    dtype = DTYPES[s["rope"].get("dtype") or s["rope"]["torch_dtype"]]
    return {k: torch.tensor(v, dtype=torch.float64).to(dtype).contiguous() for k, v in t.items()}


def write_checkpoint(s, folder, tensors):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config_of(s), indent=2) + "\n")
    if not s["shards"]:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    cut = names.index("model.layers.1.mlp.gate_proj.weight")  # inside layer 1
    files = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    place = {n: files[i >= cut] for i, n in enumerate(names)}
    for f in files:
        save_file({n: tensors[n] for n in names if place[n] == f}, folder / f, metadata={"format": "pt"})
    size = float(sum(t.numel() * t.element_size() for t in tensors.values()))
    index = {"metadata": {"total_size": size}, "weight_map": place}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


# ---- dq's definitions, in numpy ----

def frequencies(s):
    c, d = config_of(s), width(s)
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    theta = rope.get("rope_theta", c.get("rope_theta", 10000.0))
    kind = rope.get("rope_type") or rope.get("type") or "default"
    f = theta ** (-2.0 * np.arange(d // 2) / d)
    if kind == "linear":
        f = f / rope["factor"]
    if kind == "llama3":
        m, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
        keep = np.clip((m * f / (2 * math.pi) - low) / (high - low), 0.0, 1.0)
        f = keep * f + (1 - keep) * f / rope["factor"]
    return f.astype(np.float32)


def head_map(s):
    """(query heads, key of each query head, value slabs) of every output head."""
    h, rep = s["heads"], s["heads"] // s["kv"]
    if s["family"] == "llama":
        return [((o,), (o // rep,)) for o in range(h)], lambda m: m // rep
    return [((o, o + h // 2), (o // rep, (o + h // 2) // rep)) for o in range(h // 2)], lambda m: m // rep


def round_logits(x, bits, grain, xp):
    """x [heads, t, s], -inf where masked, in f32 or f64 (quotients always as the f32 definition has them)."""
    if bits == 16:
        return x
    top = 2 ** (bits - 1) - 1
    seen = np.isfinite(x)
    mag = np.where(seen, np.abs(np.where(seen, x, 0)), 0).astype(np.float32)
    if grain == "tensor":
        a = np.broadcast_to(mag.max(), x.shape)
    elif grain == "head":
        a = np.broadcast_to(mag.max((1, 2), keepdims=True), x.shape)
    elif grain == "row":
        a = np.broadcast_to(mag.max(2, keepdims=True), x.shape)
    else:
        a = np.zeros_like(mag)
        for i in range(0, x.shape[1], 64):
            for j in range(0, x.shape[2], 64):
                a[:, i:i + 64, j:j + 64] = mag[:, i:i + 64, j:j + 64].max((1, 2), keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        r = (np.float32(top) / a).astype(np.float32)
        step = (a / np.float32(top)).astype(np.float32)
        c = np.clip(np.rint(np.where(seen, x, 0) * r.astype(xp)), -top, top)
        y = np.where(a > 0, c.astype(xp) * step.astype(xp), xp(0))
    return np.where(seen, y, -np.inf).astype(xp)


def lambdas(s, w):
    out = []
    for i in range(s["layers"] if s["family"] == "diffllama" else 0):
        q1, k1, q2, k2 = (w[f"model.layers.{i}.self_attn.lambda_{n}"] for n in ("q1", "k1", "q2", "k2"))
        out.append(math.exp(q1 @ k1) - math.exp(q2 @ k2) + 0.8 - 0.6 * math.exp(-0.3 * i))
    return out


def forward64(s, w, ids, start, bits=16, grain="tensor"):
    """The whole model in f64; w: name -> f64 array."""
    d, n, eps = width(s), len(ids), 1e-5
    angle = (np.arange(start, start + n, dtype=np.float32)[:, None] * frequencies(s)[None, :])
    cos, sin = (torch.from_numpy(angle).cos().numpy().astype(np.float64),
                torch.from_numpy(angle).sin().numpy().astype(np.float64))
    outs, key = head_map(s)
    hidden = np.arange(n)[None, :] > np.arange(n)[:, None]

    def norm(x, g):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * g

    def linear(x, name):
        return x @ w[name + ".weight"].T + w.get(name + ".bias", 0.0)

    def rope(x):
        a, b = x[..., :d // 2], x[..., d // 2:]
        return np.concatenate((a * cos - b * sin, b * cos + a * sin), -1)

    x = w["model.embed_tokens.weight"][ids]
    lam = lambdas(s, w)
    for i in range(s["layers"]):
        p = f"model.layers.{i}."
        u = norm(x, w[p + "input_layernorm.weight"])
        q, k, v = (linear(u, p + f"self_attn.{c}_proj").reshape(n, -1, d).transpose(1, 0, 2) for c in "qkv")
        q, k = rope(q), rope(k)
        z = np.stack([q[m] @ k[key(m)].T for m in range(len(q))]) / math.sqrt(d)
        z = round_logits(np.where(hidden, -np.inf, z), bits, grain, np.float64)
        e = np.exp(z - z.max(-1, keepdims=True))
        prob = e / e.sum(-1, keepdims=True)
        y = []
        for qs, vs in outs:
            a = prob[qs[0]] - (lam[i] * prob[qs[1]] if len(qs) == 2 else 0.0)
            o = a @ np.concatenate([v[j] for j in vs], -1)
            if len(qs) == 2:
                o = norm(o, 1.0) * (0.2 + 0.6 * math.exp(-0.3 * i))
            y.append(o)
        x = x + linear(np.concatenate(y, -1), p + "self_attn.o_proj")
        u = norm(x, w[p + "post_attention_layernorm.weight"])
        g = linear(u, p + "mlp.gate_proj")
        x = x + linear(g / (1 + np.exp(-g)) * linear(u, p + "mlp.up_proj"), p + "mlp.down_proj")
    return norm(x, w["model.norm.weight"]) @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


# ---- transformers ----

PLAIN_EAGER = modeling_llama.eager_attention_forward


def rounding_eager(bits, grain):
    """transformers' eager attention with its logits rounded before softmax."""
    def attend(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
        n = module.num_key_value_groups
        k, v = modeling_llama.repeat_kv(key, n), modeling_llama.repeat_kv(value, n)
        x = (torch.matmul(query, k.transpose(2, 3)) * scaling)[0]
        future = torch.ones(x.shape[-2:], dtype=torch.bool).triu(1)
        x = round_logits(x.masked_fill(future, -math.inf).numpy(), bits, grain, np.float32)
        a = torch.softmax(torch.from_numpy(x), -1)[None]
        return torch.matmul(a, v).transpose(1, 2).contiguous(), a
    return attend


def run(net, ids, start=0, eager=PLAIN_EAGER):
    modeling_llama.eager_attention_forward = eager
    modeling_diffllama.eager_attention_forward = eager
    with torch.no_grad():
        pos = torch.arange(start, start + len(ids))[None]
        return net(torch.tensor(ids)[None], position_ids=pos, use_cache=False).logits[0].numpy()


def relative(a, b, scale):
    return float(np.abs(a - b).max() / scale), float(np.abs(a - b).mean() / scale)


def make(s, seed):
    rng = np.random.default_rng(seed)
    folder = OUT / s["name"]
    write_checkpoint(s, folder, weights_of(s, rng))
    net = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    w = {}
    for f in sorted(folder.glob("model*.safetensors")):
        w |= {k: v.double().numpy() for k, v in load_file(f).items()}
    ids = rng.integers(0, VOCAB, s["tokens"])
    rows = np.arange(0, s["tokens"], 4) if s["quant"] else np.arange(1, s["tokens"], 2)
    native = net.model.rotary_emb.inv_freq.clone()
    freq = torch.from_numpy(frequencies(s))
    assert torch.allclose(native, freq, rtol=3e-6, atol=0), (native, freq)
    g = {"ids": ids.astype(np.int32), "rows": rows.astype(np.int32), "inv_freq": frequencies(s),
         "lambda": np.array(lambdas(s, w), np.float32)}
    line = []
    for start in (0, *s["offsets"]):
        tag = f".pos{start}" if start else ""
        net.model.rotary_emb.inv_freq.copy_(native)
        before = run(net, ids, start)
        net.model.rotary_emb.inv_freq.copy_(freq)
        got, want = run(net, ids, start), forward64(s, w, ids, start)
        scale = np.abs(want).max()
        err, shift = relative(got, want, scale)[0], relative(before, got, scale)[0]
        assert err < 1e-4, f"{s['name']}: head map or formula differs from transformers: {err}"
        g["logits" + tag], g["err" + tag] = got[rows], np.array([err], np.float32)
        g["native" + tag] = np.array([shift], np.float32)
        line.append(f"pos {start}: max {scale:.2f} err {err:.1e} native {shift:.1e}")
    if s["quant"]:
        line += add_rounded(s, g, net, w, ids)
    save_file({k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in g.items()}, folder / "golden.safetensors")
    print(s["name"], sum(f.stat().st_size for f in folder.iterdir()), "; ".join(line), flush=True)


def add_rounded(s, g, net, w, ids):
    qrows, qcols = np.arange(len(ids) - 8, len(ids)), np.arange(0, VOCAB, 16)
    exact = forward64(s, w, ids, 0)
    g["qrows"], g["qcols"] = qrows.astype(np.int32), qcols.astype(np.int32)
    line = []
    for bits in BITS:
        for grain in GRAINS:
            got = run(net, ids, 0, rounding_eager(bits, grain))
            want = forward64(s, w, ids, 0, bits, grain)
            scale = np.abs(exact).max()
            g[f"logits.{bits}.{grain}"] = got[np.ix_(qrows, qcols)]
            g[f"err.{bits}.{grain}"] = np.array(relative(got, want, scale), np.float32)
            line.append(f"{bits}.{grain} err {relative(got, want, scale)} effect {relative(want, exact, scale)[1]:.1e}\n")
    return line


if __name__ == "__main__":
    torch.set_num_threads(1)
    for number, spec in enumerate(MODELS):
        make(spec, 1000 + number)
