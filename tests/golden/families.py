"""Tiny random checkpoints of the families that transformers does not have, for the tests of dq.

Regenerate their folders of tests/golden/models with

    python tests/golden/families.py --references DIR

(needs torch, transformers 5.23, safetensors and numpy; takes a minute on one core). common.py says what
a folder holds. The reference outputs come from the authors' own attention modules, which are no part of
this repository. DIR holds, side by side,

    of github.com/microsoft/unilm at 768a3c87, folder Diff-Transformer:
        multihead_attention.py multihead_diffattn.py multihead_flashdiff_1.py multihead_flashdiff_2.py rms_norm.py
    of the same at 31646c58, folder Diff-Transformer/Diff-Transformer-V2:
        multihead_flashdiffv2.py

They import kernels that need a GPU (flash attention, rotation); plain torch takes their place below. The
rest of the model is transformers' Llama parts: embedding, RMSNorm, gated feed-forward network, head.

Motif's code cannot be run apart from its serving engine. What two independent sources do is written down
here in other words, must agree, and the first is the reference:

    serving: MotifTechnologies/vllm, model_executor/models/motif.py at 477e4d79 and
             v1/attention/backends/grouped_diff_attn.py at 2b73efac; without noise heads it halves the
             heads as vllm-project/vllm, attention/backends/differential_flash_attn.py at 03f86117 does;
             PolyNorm: model_executor/layers/layernorm.py of the latter
    port:    junhoyeo/mlx-motif, src/mlx_motif/model.py at 04fb0f8f and kernels/gda.py, kernels/mlp.py at
             026be9bc
"""

import argparse
import importlib
import math
import sys
import types

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, apply_rotary_pos_emb

import common
from common import model

MOTIF = {"architectures": ["MotifForCausalLM"], "hidden_act": "poly_norm", "use_bias": False,
         "rope_scaling": None, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
SMALL = {"rope": {"rope_theta": 10000.0, "torch_dtype": "bfloat16"}, "tied": True, "tokens": 24, "vocab": 211}

# A row's place is its seed where it names none: add rows at the end.
MODELS = (
    model("v1-bf16", "v1", "bfloat16", 64, 53, 8, 4, tied=True, tokens=130, quant=True, offsets=(4000, 60000),
          seed=2300, lambda_dtype="float32", rope={"rope_theta": 10000.0, "torch_dtype": "bfloat16"}),
    model("v1-naive-f32", "v1_naive", "float32", 48, 37, 8, 4, tied=True, vocab=211, eps=1e-3,
          rope={"rope_theta": 20000.0, "torch_dtype": "float32"}),
    model("v2-f16", "v2", "float16", 45, 51, 12, 3, head_dim=10, vocab=211, tokens=100, quant=True, seed=3002,
          rope={"rope_theta": 10000.0, "torch_dtype": "float16"}),
    model("motif-bf16", "motif", "bfloat16", 48, 43, 6, 6, layers=4, tied=True, tokens=24,
          offsets=(4000, 60000), eps=1e-6, head_eps=1e-3, extra={"model_type": "motif"} | MOTIF,
          rope={"rope_theta": 500000.0, "torch_dtype": "bfloat16"}),
    model("motif-gqa-f32", "motif", "float32", 48, 37, 8, 4, tied=True, vocab=211, eps=1e-3, head_eps=1e-6,
          odd=True, extra={"model_type": "motif"} | MOTIF | {"num_noise_heads": None},
          rope={"rope_theta": 10000.0, "torch_dtype": "float32"}),
    model("gda-f32-shards", "gda", "float32", 37, 37, 10, 4, head_dim=6, noise=2, vocab=211, tokens=130,
          quant=True, shards=True, eps=1e-5, head_eps=1e-3, seed=3205,
          extra={"model_type": "motif"} | MOTIF | {"k_ratio": 1, "expanded": False, "fused_rope": True},
          rope={"rope_theta": 1000000.0, "torch_dtype": "float32"}),
    model("gda-wide-bf16", "gda", "bfloat16", 50, 41, 12, 4, head_dim=8, noise=4, vocab=211,
          lambda_dtype="float32", eps=1e-6, head_eps=1e-5, extra={"model_type": "Motif"} | MOTIF,
          rope={"rope_theta": 1000000.0, "torch_dtype": "bfloat16"}),
    model("v1-nonorm", "v1", "bfloat16", 48, 41, 8, 4, sub_norm="none", **SMALL),
    model("v1-const", "v1", "bfloat16", 48, 41, 8, 4, lambda_init=0.8, **SMALL),
    model("plain-norm", "plain", "bfloat16", 48, 41, 8, 4, sub_norm="rms", **SMALL),
    model("plain-adjacent", "plain", "bfloat16", 60, 49, 6, 3, **SMALL),
)


def config_of(s):
    c = {"model_type": "diff_transformer", "diff_variant": s["family"]}
    if s["family"] in common.POLYNORM:
        c = s["extra"] | {"attn_rms_norm_eps": s["head_eps"]}
    c |= {"vocab_size": s["vocab"], "hidden_size": s["hidden"], "intermediate_size": s["ffn"],
          "num_hidden_layers": s["layers"], "num_attention_heads": s["heads"],
          "num_key_value_heads": s["kv"], "max_position_embeddings": 65536, "rms_norm_eps": s["eps"],
          "tie_word_embeddings": s["tied"], "bos_token_id": 1, "eos_token_id": 2}
    optional = {"head_dim": s["head_dim"], "num_noise_heads": s["noise"], "sub_norm": s["sub_norm"],
                "lambda_init": s["lambda_init"]}
    return c | {k: v for k, v in optional.items() if v is not None} | s["rope"]


# ---- In place of the kernels ----

class Flash:
    """Causal attention of grouped heads, as flash attention has it: [batch, rows, heads, width].

    A layer may call it several times. For groups of logits that span the layer, it runs twice: first to
    learn the largest magnitude of all calls, then to round."""

    def __init__(self):
        self.bits, self.granularity, self.peak, self.learning = 16, "per-tensor", 0.0, False

    def __call__(self, q, k, v, causal=False):
        assert causal and q.shape[0] == 1
        rep = q.shape[2] // k.shape[2]
        q, k, v = (x.transpose(1, 2) for x in (q, k.repeat_interleave(rep, 2), v.repeat_interleave(rep, 2)))
        x = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.shape[-1])
        future = torch.ones(x.shape[-2:], dtype=torch.bool).triu(1)
        if self.learning:
            self.peak = max(self.peak, float(x.masked_fill(future, 0.0).abs().max()))
        x = x.masked_fill(future, -math.inf)
        if self.bits != 16 and not self.learning:
            x = torch.from_numpy(common.round_logits(x[0].numpy(), self.bits, self.granularity, np.float32, self.peak))[None]
        return torch.matmul(torch.softmax(x, -1), v).transpose(1, 2)

    def layer(self, attention, *args):
        self.peak, self.learning = 0.0, self.bits != 16
        if self.learning:
            attention(*args)
            self.learning = False
        return attention(*args)


FLASH = Flash()


def rotate_adjacent(x, cos, sin, interleaved=False):
    """x [batch, rows, heads, width], cos and sin [rows, width / 2]."""
    assert interleaved
    a, b = x[..., 0::2], x[..., 1::2]
    c, s = cos[None, :, None], sin[None, :, None]
    return torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2)


def rotate_halves(x, cos, sin):
    c, s = (torch.cat((t, t), -1)[None] for t in (cos, sin))
    return apply_rotary_pos_emb(x, x, c, s, unsqueeze_dim=2)[0]


def authors(folder):
    """The authors' files, with the kernels above in place of theirs."""
    for name, members in (("kernel", {}), ("kernel.rotary", {"apply_rotary_emb": rotate_adjacent}),
                          ("flash_attn", {"flash_attn_func": FLASH}), ("flex_head_fa", {"flash_attn_func": FLASH})):
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(members)
    sys.modules["apex"] = None  # their own RMSNorm, whatever is installed
    sys.path.insert(0, folder)
    compiled, torch.compile = torch.compile, lambda f: f  # as written, not as an optimizer has it
    files = ("multihead_attention", "multihead_diffattn", "multihead_flashdiff_1", "multihead_flashdiff_2",
             "multihead_flashdiffv2", "rms_norm")
    found = {name: importlib.import_module(name) for name in files}
    torch.compile = compiled
    return types.SimpleNamespace(**found)


# ---- Attention of one layer: each of these gives a function of (u, cos, sin) ----

def part(w, prefix):
    return {k[len(prefix):]: v for k, v in w.items() if k.startswith(prefix)}


def paired(s, code, cls, layer, w):
    """The authors' V1 classes count pairs of heads."""
    m = cls(s["hidden"], layer, s["heads"] // 2, s["kv"] // 2)
    if not common.head_normed(s):
        m.subln = torch.nn.Identity()
    if s["lambda_init"] is not None:
        m.lambda_init = s["lambda_init"]
    m.load_state_dict(w)
    return lambda u, cos, sin: m(u, (cos, sin))


def second(s, code, layer, w):
    m = code.multihead_flashdiffv2.MultiheadFlashDiffV2(True, s["hidden"], s["heads"] // 2, s["kv"], s["head_dim"])
    m.load_state_dict(w)
    return lambda u, cos, sin: m(u, (cos, sin))


def plain_authors(s, code, layer, w):
    m = code.multihead_attention.MultiheadAttention(s["hidden"], layer, s["heads"], s["kv"])
    m.load_state_dict(w)
    return lambda u, cos, sin: m(u, (cos, sin))


def plain(s, code, layer, w):
    d = common.width(s)
    norm = torch.nn.Identity()
    if common.head_normed(s):
        norm = code.rms_norm.RMSNorm(d, eps=s["head_eps"])
        norm.load_state_dict({"weight": w["subln.weight"]})

    def attend(u, cos, sin):
        q, k, v = ((u @ w[f"{c}_proj.weight"].T).unflatten(-1, (-1, d)) for c in "qkv")
        q, k = (rotate_adjacent(x, cos, sin, interleaved=True) for x in (q, k))
        y = scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True, enable_gqa=True)
        return norm(y.transpose(1, 2)).flatten(-2) @ w["out_proj.weight"].T

    return attend


def motif_parts(s, layer, w):
    d = common.width(s)
    init = 0.8 - 0.6 * math.exp(-0.3 * (layer - 1))
    one, two = (torch.exp((w[f"lambda_q{i}"] * w[f"lambda_k{i}"]).sum()) for i in (1, 2))

    def project(u, cos, sin):
        q, k, v = ((u @ w[f"{c}_proj.weight"].T).unflatten(-1, (-1, d)) for c in "qkv")
        return rotate_halves(q, cos, sin), rotate_halves(k, cos, sin), v

    return d, init, one - two + init, project


def motif_serving(s, code, layer, w):
    """Four calls on heads picked by stride; a group of query heads ends in its noise head."""
    d, init, lam, project = motif_parts(s, layer, w)
    norm = LlamaRMSNorm(2 * d, s["head_eps"])
    norm.load_state_dict({"weight": w["subln.weight"]})
    groups = s["noise"] or s["heads"] // 2

    def attend(u, cos, sin):
        q, k, v = project(u, cos, sin)
        q = q.unflatten(2, (groups, -1))
        signal, noise = q[:, :, :, :-1].flatten(2, 3), q[:, :, :, -1]
        k1, k2, v1, v2 = k[:, :, 0::2], k[:, :, 1::2], v[:, :, 0::2], v[:, :, 1::2]
        y1, y2 = (torch.cat((FLASH(a, b, v1, causal=True), FLASH(a, b, v2, causal=True)), -1)
                  for a, b in ((signal, k1), (noise, k2)))
        y = norm(y1 - lam * y2.repeat_interleave(y1.shape[2] // y2.shape[2], 2)) * (1 - init)
        return y.flatten(2) @ w["o_proj.weight"].T

    return attend


def motif_port(s, code, layer, w):
    """Head axis before rows. Without noise heads: values reordered into two slabs, the difference taken
    slab by slab. With noise heads: groups reshaped, the difference taken after concatenation."""
    d, init, lam, project = motif_parts(s, layer, w)

    def attention(q, k, v):
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    def attend(u, cos, sin):
        q, k, v = (x.transpose(1, 2) for x in project(u, cos, sin))
        b, n = q.shape[0], q.shape[2]
        kv = s["kv"] // 2
        k = k.reshape(b, kv, 2, n, d)
        k1, k2 = k[:, :, 0], k[:, :, 1]
        if not s["noise"]:
            slabs = v.reshape(b, kv, 2, n, d).transpose(1, 2).reshape(b, 2 * kv, n, d)
            q = q.reshape(b, -1, 2, n, d)
            y = torch.cat([attention(q[:, :, 0], k1, x) - lam * attention(q[:, :, 1], k2, x)
                           for x in (slabs[:, :kv], slabs[:, kv:])], -1)
        else:
            ratio = (s["heads"] - s["noise"]) // s["noise"]
            q = q.reshape(b, s["noise"], ratio + 1, n, d)
            q1, q2 = q[:, :, :ratio].reshape(b, -1, n, d), q[:, :, ratio:].reshape(b, -1, n, d)
            v = v.reshape(b, kv, 2, n, d)
            y1, y2 = (torch.cat((attention(a, k, v[:, :, 0]), attention(a, k, v[:, :, 1])), -1)
                      for a, k in ((q1, k1), (q2, k2)))
            y = y1 - lam * y2[:, torch.arange(y1.shape[1]) // ratio]
        y = y * torch.rsqrt((y * y).mean(-1, keepdim=True) + s["head_eps"]) * w["subln.weight"] * (1.0 - init)
        return y.transpose(1, 2).reshape(b, n, -1) @ w["o_proj.weight"].T

    return attend


# ---- The model around it ----

class PolyNorm(torch.nn.Module):
    """The serving code divides every power by its root mean square; the port gathers three sums first."""

    def __init__(self, w, three_sums):
        super().__init__()
        self.w, self.three_sums = [*w["weight"], w["bias"].reshape(())], three_sums

    def forward(self, x):
        if self.three_sums:
            sums = [(x ** (2 * p)).mean(-1, keepdim=True) for p in (3, 2, 1)]
            return self.w[3] + sum(a * x ** p * torch.rsqrt(m + 1e-6) for a, p, m in zip(self.w, (3, 2, 1), sums))
        cube, square, line = ((x ** p) / torch.sqrt((x ** p).pow(2).mean(-1, keepdim=True) + 1e-6) for p in (3, 2, 1))
        return self.w[0] * cube + self.w[1] * square + self.w[2] * line + self.w[3]


def network(s, w, attention, three_sums=False):
    """A function (ids, start) -> logits; attention(layer, weights) gives that of one layer."""
    def norm(name):
        m = LlamaRMSNorm(s["hidden"], s["eps"])
        m.load_state_dict({"weight": w[name + ".weight"]})
        return m

    layers = []
    for i in range(s["layers"]):
        p = f"model.layers.{i}."
        inner = {k: v for k, v in part(w, p + "self_attn.").items() if "rotary" not in k}
        mlp = LlamaMLP(types.SimpleNamespace(hidden_size=s["hidden"], intermediate_size=s["ffn"],
                                             hidden_act="silu", mlp_bias=False))
        weights = part(w, p + "mlp.")
        mlp.load_state_dict({k: v for k, v in weights.items() if not k.startswith("act_fn")})
        if s["family"] in common.POLYNORM:
            mlp.act_fn = PolyNorm(part(weights, "act_fn."), three_sums)
        layers.append((norm(p + "input_layernorm"), attention(i, inner), norm(p + "post_attention_layernorm"), mlp))
    last, embed = norm("model.norm"), w["model.embed_tokens.weight"]

    def forward(ids, start):
        with torch.no_grad():
            cos, sin = common.angles(s, start, len(ids))
            x = embed[torch.tensor(ids)][None]
            for norm_in, attend, norm_mid, mlp in layers:
                x = x + FLASH.layer(attend, norm_in(x), cos, sin)
                x = x + mlp(norm_mid(x))
            return (last(x) @ w.get("lm_head.weight", embed).T)[0].numpy()

    return forward


def references(s, code, w):
    """The reference, and others that must agree with it."""
    def of(kind, *first, **options):
        return network(s, w, lambda layer, inner: kind(s, code, *first, layer, inner), **options)

    if s["family"] == "v1":
        return (of(paired, code.multihead_flashdiff_1.MultiheadFlashDiff1),
                of(paired, code.multihead_flashdiff_2.MultiheadFlashDiff2))
    if s["family"] == "v1_naive":
        return (of(paired, code.multihead_diffattn.MultiheadDiffAttn),)
    if s["family"] == "v2":
        return (of(second),)
    if s["family"] == "plain":
        return (of(plain),) if common.head_normed(s) else (of(plain), of(plain_authors))
    return of(motif_serving), of(motif_port, three_sums=True)


def make(s, seed, code):
    rng = np.random.default_rng(seed)
    folder = common.OUT / s["name"]
    tensors = common.weights_of(s, rng)
    if s["odd"]:
        common.make_odd(tensors)
    common.write_checkpoint(s, folder, config_of(s), tensors)
    w = common.read_weights(folder)
    first, *others = references(s, code, {k: torch.from_numpy(v).float() for k, v in w.items()})
    ids = rng.integers(0, s["vocab"], s["tokens"])

    def run(ids, start, bits, granularity):
        FLASH.bits, FLASH.granularity = bits, granularity
        return first(ids, start)

    if s["quant"]:
        common.assert_steady(s, w, ids)
    g, lines = common.golden(s, w, ids, run)
    for other in others:
        for start in (0, *s["offsets"]):
            got = run(ids, start, 16, "per-tensor")
            apart = common.relative(other(ids, start), got, np.abs(got).max())[0]
            assert apart < 2e-5, f"{s['name']}: the references differ: {apart}"
            lines.append(f"second reference {apart:.1e}")
    common.save_golden(s, folder, g, lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--references", required=True, metavar="DIR", help="the authors' files (see above)")
    torch.set_num_threads(1)
    sources = authors(parser.parse_args().references)
    for number, spec in enumerate(MODELS):
        make(spec, spec["seed"] or 2000 + number, sources)
