"""What make.py and families.py share: writing checkpoints, and the f64 side of every golden.

forward64 is an implementation of its own: numpy, one loop over output heads, the head orders written as
formulas. It keeps the f32 angles of the f32 run, because those are what trained models saw.

Every folder of tests/golden/models holds a checkpoint and golden.safetensors:

    ids [n] i32, rows [r] i32      the tokens; the rows of the logits that are stored
    logits [r, vocab] f32          the reference, f32, positions 0..n-1
    err [1] f32                    max |f32 - f64| / max |logit| of the reference itself
    logits.posP, err.posP          the same at positions P..P+n-1
    native, native.posP [1] f32    transformers only: what its own rounding of the frequencies changes
    inv_freq [d/2] f32             rotary frequencies as dq defines them: computed in double, rounded once
    local_inv_freq [d/2] f32       those of layers with a window, where they have their own
    rope_scale [1] f32             factor of cosine and sine, where it is not 1
    lambda [L] f32                 lambda of each layer; none where there is nothing to subtract, left
                                   out where lambda depends on the token
    qrows, qcols [..] i32          rows and columns of the logits with rounded attention logits:
    logits.B.GRANULARITY [r, c] f32      B bits, granularity tensor, head, row or tile
    err.B.GRANULARITY [2] f32            max and mean |f32 - f64| / max |logit|: a logit next to a rounding
                                   boundary may fall on either side of it in another order of sums
"""

import json
import math
import pathlib
import shutil

import numpy as np
import torch
from safetensors.torch import load_file, save_file

OUT = pathlib.Path(__file__).parent / "models"
BITS = (8, 6, 4, 3, 2)
GRANULARITIES = ("per-tensor", "per-head", "per-row", "per-tile")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# Families whose lambda is one number per layer -> what is taken off the layer index in lambda_init.
STATIC = {"diffllama": 0, "v1": 0, "v1_naive": 0, "motif": 1, "gda": 1}
AUTHORS = ("v1", "v1_naive", "plain", "v2")  # adjacent channels are rotated together
OUT_PROJ = ("v1", "v1_naive", "plain")       # name of the output projection: out_proj, else o_proj
POLYNORM = ("motif", "gda")
PLAIN = ("llama", "plain", "qwen2", "qwen3", "mistral", "smollm3", "gemma3")


def model(name, family, dtype, hidden, ffn, heads, kv, layers=3, head_dim=None, vocab=256, tied=False,
          bias=False, mlp_bias=False, rope=None, tokens=48, offsets=(), quant=False, shards=False,
          eps=1e-5, head_eps=1e-5, noise=None, sub_norm=None, lambda_init=None, lambda_dtype=None,
          odd=False, windows=None, extra=None, seed=None):
    """One golden. rope holds the configuration's own keys, extra any further ones; noise is the number
    of noise heads, head_eps the epsilon of the head norm, odd asks for an awkward but legal file, windows
    has the length of each layer's window, 0 for none, seed replaces the one that the row's place gives."""
    return dict(locals())


def width(s):
    return s["head_dim"] or s["hidden"] // s["heads"]


def window(s, layer):
    return s["windows"][layer] if s["windows"] else 0


def hidden_keys(s, layer, n):
    """[n, n] keys that a row's query does not see."""
    rows, keys = np.arange(n)[:, None], np.arange(n)[None, :]
    return (keys > rows) | (keys <= rows - (window(s, layer) or n))


def head_normed(s):
    """None: as the family has it."""
    return s["sub_norm"] == "rms" if s["sub_norm"] else s["family"] in STATIC


# ---- Checkpoints ----

def weights_of(s, rng):
    """Gains that make attention sharp in places and output logits several units large."""
    h, f, d, t = s["hidden"], s["ffn"], width(s), {}
    outs, _ = head_order(s)
    wide = len(outs[0][1]) * d

    def matrix(name, rows, cols, gain, bias=False):
        t[name + ".weight"] = rng.normal(0, gain / math.sqrt(cols), (rows, cols))
        if bias:
            t[name + ".bias"] = rng.normal(0, 0.3, rows)

    t["model.embed_tokens.weight"] = rng.normal(0, 2.5 / math.sqrt(h), (s["vocab"], h))
    for i in range(s["layers"]):
        p = f"model.layers.{i}."
        a = p + "self_attn."
        matrix(a + "q_proj", s["heads"] * d, h, 1.6, s["bias"])
        matrix(a + "k_proj", s["kv"] * d, h, 1.6, s["bias"])
        matrix(a + "v_proj", s["kv"] * d, h, 1.0, s["bias"])
        matrix(a + ("out_proj" if s["family"] in OUT_PROJ else "o_proj"), h, len(outs) * wide, 0.7,
               s["bias"] and s["family"] != "qwen2")
        matrix(p + "mlp.gate_proj", f, h, 1.2, s["mlp_bias"])
        matrix(p + "mlp.up_proj", f, h, 1.0, s["mlp_bias"])
        matrix(p + "mlp.down_proj", h, f, 0.8, s["mlp_bias"])
        norms = ("input_layernorm", "post_attention_layernorm")
        if s["family"] == "gemma3":  # gains are stored less 1
            norms += ("pre_feedforward_layernorm", "post_feedforward_layernorm")
        for n in norms:
            t[p + n + ".weight"] = rng.normal(s["family"] != "gemma3", 0.2, h)
        if s["family"] in STATIC:
            for n in ("q1", "k1", "q2", "k2"):
                t[a + "lambda_" + n] = rng.normal(0, 0.3 if i % 2 else 0.1, d)
        if s["family"] in ("qwen3", "gemma3"):
            for n in ("q_norm", "k_norm"):
                t[a + n + ".weight"] = rng.normal(1.3 if s["family"] == "qwen3" else 0.3, 0.3, d)
        if s["family"] == "v2":
            matrix(a + "lambda_proj", len(outs), h, 1.5)
        if head_normed(s) and s["family"] != "diffllama":
            t[a + "subln.weight"] = rng.normal(1, 0.2, wide)
        if s["family"] in POLYNORM:
            t[p + "mlp.act_fn.weight"] = rng.normal((0.4, -0.5, 0.7), 0.1)
            t[p + "mlp.act_fn.bias"] = rng.normal(0.1, 0.1, 1)
    t["model.norm.weight"] = rng.normal(s["family"] != "gemma3", 0.2, h)
    if not s["tied"]:
        t["lm_head.weight"] = rng.normal(0, 2.5 / math.sqrt(h), (s["vocab"], h))

    def stored(name):
        return DTYPES[s["lambda_dtype"] or s["dtype"] if ".lambda_q" in name or ".lambda_k" in name else s["dtype"]]

    return {k: torch.tensor(v, dtype=torch.float64).to(stored(k)).contiguous() for k, v in t.items()}


def make_odd(tensors):
    """A scalar where others have one element, and tensors of the kind that readers must ignore."""
    for name in [n for n in tensors if n.endswith("act_fn.bias")]:
        tensors[name] = tensors[name].reshape(())
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.full((3,), 7.0)
    tensors["model.rotary_emb.inv_freq"] = torch.zeros(0)


def odd_header(path):
    """Ends the header at an odd length, so that no tensor is aligned."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = data[8:end].rstrip(b" ")
    header += b" " * (1 - len(header) % 2)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[end:])


def write_checkpoint(s, folder, config, tensors):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if not s["shards"]:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        if s["odd"]:
            odd_header(folder / "model.safetensors")
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


def read_weights(folder):
    """name -> f64 array, in the shapes of the files."""
    w = {}
    for f in sorted(folder.glob("model*.safetensors")):
        w |= {k: v.double().numpy() for k, v in load_file(f).items()}
    return w


# ---- dq's definitions, in numpy ----

def rope_keys(s, local=False):
    rope = s["rope"].get("rope_parameters") or s["rope"].get("rope_scaling") or {}
    if "full_attention" in rope:
        rope = rope["sliding_attention" if local else "full_attention"]
    elif local:
        rope = {"rope_theta": s["rope"]["rope_local_base_freq"]}
    return rope | {"rope_theta": rope.get("rope_theta", s["rope"].get("rope_theta", 10000.0)),
                   "kind": rope.get("rope_type") or rope.get("type") or "default"}


def frequencies(s, local=False):
    d, rope = width(s), rope_keys(s, local)
    kind, theta = rope["kind"], rope["rope_theta"]
    i = np.arange(d // 2)
    f = theta ** (-2.0 * i / d)
    if kind == "linear":
        f = f / rope["factor"]
    if kind == "llama3":
        m, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
        keep = np.clip((m * f / (2 * math.pi) - low) / (high - low), 0.0, 1.0)
        f = keep * f + (1 - keep) * f / rope["factor"]
    if kind == "yarn":
        def turns(n):  # the index whose wave turns n times in the original context
            m = rope["original_max_position_embeddings"]
            return d * math.log(m / (2 * math.pi * n)) / (2 * math.log(theta))

        low = max(math.floor(turns(rope.get("beta_fast") or 32)), 0)
        high = min(math.ceil(turns(rope.get("beta_slow") or 1)), d - 1)
        ramp = np.clip((i - low) / (high - low or 0.001), 0.0, 1.0)
        f = ramp * f / rope["factor"] + (1 - ramp) * f
    return f.astype(np.float32)  # dynamic: nothing changes within max_position_embeddings


def rope_scale(s):
    rope = rope_keys(s)
    if rope["kind"] != "yarn":
        return 1.0
    return rope.get("attention_factor") or 0.1 * math.log(rope["factor"]) + 1.0


def head_order(s):
    """(query heads, value slabs) of every output head, and the key head of a query head."""
    h, rep, half = s["heads"], s["heads"] // s["kv"], s["heads"] // 2
    family = s["family"]
    if family in PLAIN:
        return [((o,), (o // rep,)) for o in range(h)], lambda m: m // rep
    if family == "diffllama":
        return [((o, o + half), (o // rep, (o + half) // rep)) for o in range(half)], lambda m: m // rep
    if family == "v2":
        return [((2 * o, 2 * o + 1), (2 * o // rep,)) for o in range(half)], lambda m: m // rep
    if family == "gda":
        size = h // s["noise"]  # signal heads, then one noise head
        share = s["noise"] // (s["kv"] // 2)

        def key(m):
            return 2 * (m // size // share) + (m % size == size - 1)

        signals = [m for m in range(h) if m % size != size - 1]
        return [((m, m // size * size + size - 1), (key(m), key(m) + 1)) for m in signals], key
    pairs = [((2 * o, 2 * o + 1), (2 * (o // rep), 2 * (o // rep) + 1)) for o in range(half)]
    if family == "v1_naive":
        return pairs, lambda m: m // rep
    return pairs, lambda m: 2 * (m // 2 // rep) + m % 2


def round_logits(x, bits, granularity, xp, peak=None):
    """x [heads, t, s], -inf where masked, in f32 or f64 (quotients always as the f32 definition has them).
    peak: the largest magnitude of the layer where x holds only some of its heads."""
    if bits == 16:
        return x
    top = 2 ** (bits - 1) - 1
    seen = np.isfinite(x)
    mag = np.where(seen, np.abs(np.where(seen, x, 0)), 0).astype(np.float32)
    if granularity == "per-tensor":
        a = np.broadcast_to(mag.max() if peak is None else np.float32(peak), x.shape)
    elif granularity == "per-head":
        a = np.broadcast_to(mag.max((1, 2), keepdims=True), x.shape)
    elif granularity == "per-row":
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


def lambda_init(s, layer):
    if s["lambda_init"] is not None:
        return s["lambda_init"]
    return 0.8 - 0.6 * math.exp(-0.3 * (layer - STATIC[s["family"]]))


def lambdas(s, w):
    out = []
    for i in range(s["layers"] if s["family"] in STATIC else 0):
        q1, k1, q2, k2 = (w[f"model.layers.{i}.self_attn.lambda_{n}"] for n in ("q1", "k1", "q2", "k2"))
        out.append(math.exp(q1 @ k1) - math.exp(q2 @ k2) + lambda_init(s, i))
    return out


def poly_norm(x, weight, bias):
    def unit(z):
        return z / np.sqrt((z * z).mean(-1, keepdims=True) + 1e-6)

    return weight[0] * unit(x ** 3) + weight[1] * unit(x ** 2) + weight[2] * unit(x) + bias


def angles(s, start, n, local=False):
    """Cosine and sine [n, d/2] in f32, of f32 angles."""
    angle = np.arange(start, start + n, dtype=np.float32)[:, None] * frequencies(s, local)[None, :]
    return torch.from_numpy(angle).cos(), torch.from_numpy(angle).sin()


def forward64(s, w, ids, start, bits=16, granularity="per-tensor", noise=None):
    """The whole model in f64; w: name -> f64 array. noise: a generator that disturbs the attention logits
    as another order of f32 sums may."""
    d, n, family = width(s), len(ids), s["family"]
    outs, key = head_order(s)
    gemma = family == "gemma3"

    def norm(x, g, eps):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * (1 + g if gemma else g)

    def linear(x, name):
        return x @ w[name + ".weight"].T + w.get(name + ".bias", 0.0)

    def rope(x):
        if family in AUTHORS:
            y = np.empty_like(x)
            y[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
            y[..., 1::2] = x[..., 1::2] * cos + x[..., 0::2] * sin
            return y
        a, b = x[..., :d // 2], x[..., d // 2:]
        return np.concatenate((a * cos - b * sin, b * cos + a * sin), -1)

    x = w["model.embed_tokens.weight"][ids] * (float(np.float32(math.sqrt(s["hidden"]))) if gemma else 1.0)
    scale = ((s["extra"] or {}).get("query_pre_attn_scalar", 256) if gemma else d) ** -0.5
    lam = lambdas(s, w)
    for i in range(s["layers"]):
        p = f"model.layers.{i}."
        a = p + "self_attn."
        u = norm(x, w[p + "input_layernorm.weight"], s["eps"])
        q, k, v = (linear(u, a + f"{c}_proj").reshape(n, -1, d).transpose(1, 0, 2) for c in "qkv")
        if family in ("qwen3", "gemma3"):
            q, k = (norm(y, w[f"{a}{c}_norm.weight"], s["eps"]) for c, y in (("q", q), ("k", k)))
        cos, sin = (c.numpy().astype(np.float64) * rope_scale(s)
                    for c in angles(s, start, n, gemma and window(s, i) > 0))
        if not (family == "smollm3" and (i + 1) % 2 == 0):  # its rows rotate every other layer
            q, k = rope(q), rope(k)
        z = np.stack([q[m] @ k[key(m)].T for m in range(len(q))]) * scale
        if noise:
            z = z + 2e-7 * np.abs(z).max() * noise.uniform(-1, 1, z.shape)
        z = round_logits(np.where(hidden_keys(s, i, n), -np.inf, z), bits, granularity, np.float64)
        e = np.exp(z - z.max(-1, keepdims=True))
        prob = e / e.sum(-1, keepdims=True)
        gate = 1 / (1 + np.exp(-linear(u, a + "lambda_proj"))) if family == "v2" else None
        y = []
        for o, (qs, vs) in enumerate(outs):
            pm = prob[qs[0]]
            if len(qs) == 2:
                pm = pm - (lam[i] if gate is None else gate[:, o:o + 1]) * prob[qs[1]]
            r = pm @ np.concatenate([v[j] for j in vs], -1)
            if head_normed(s):
                r = norm(r, w.get(a + "subln.weight", 1.0), s["head_eps"])
            y.append(r * (1 - lambda_init(s, i)) if family in STATIC else r)
        y = linear(np.concatenate(y, -1), a + ("out_proj" if family in OUT_PROJ else "o_proj"))
        x = x + (norm(y, w[p + "post_attention_layernorm.weight"], s["eps"]) if gemma else y)
        u = norm(x, w[p + ("pre_feedforward" if gemma else "post_attention") + "_layernorm.weight"], s["eps"])
        g = linear(u, p + "mlp.gate_proj")
        if family in POLYNORM:
            g = poly_norm(g, w[p + "mlp.act_fn.weight"], w[p + "mlp.act_fn.bias"])
        elif gemma:
            g = g / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g ** 3)))
        else:
            g = g / (1 + np.exp(-g))
        y = linear(g * linear(u, p + "mlp.up_proj"), p + "mlp.down_proj")
        x = x + (norm(y, w[p + "post_feedforward_layernorm.weight"], s["eps"]) if gemma else y)
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return norm(x, w["model.norm.weight"], s["eps"]) @ head.T


# ---- Goldens ----

def relative(a, b, scale):
    return float(np.abs(a - b).max() / scale), float(np.abs(a - b).mean() / scale)


def golden(s, w, ids, run):
    """run(ids, start, bits, granularity) is the reference in f32. Returns the tensors and lines to print."""
    n = len(ids)
    rows = np.arange(0, n, 8 if s["offsets"] else 4) if s["quant"] else np.arange(1, n, 2)
    g = {"ids": ids.astype(np.int32), "rows": rows.astype(np.int32), "inv_freq": frequencies(s)}
    if s["family"] != "v2":
        g["lambda"] = np.array(lambdas(s, w), np.float32)
    if s["family"] == "gemma3":
        g["local_inv_freq"] = frequencies(s, True)
    if rope_scale(s) != 1.0:
        g["rope_scale"] = np.array([rope_scale(s)], np.float32)
    lines = []
    for start in (0, *s["offsets"]):
        tag = f".pos{start}" if start else ""
        got, want = run(ids, start, 16, "per-tensor"), forward64(s, w, ids, start)
        scale = np.abs(want).max()
        err = relative(got, want, scale)[0]
        assert err < 1e-4, f"{s['name']}: head order or formula differs from the reference: {err}"
        g["logits" + tag], g["err" + tag] = got[rows], np.array([err], np.float32)
        lines.append(f"pos {start}: max {scale:.2f} err {err:.1e}")
    if s["quant"]:
        lines += add_rounded(s, g, w, ids, run)
    return g, lines


def add_rounded(s, g, w, ids, run):
    qrows, qcols = np.arange(len(ids) - 8, len(ids)), np.arange(0, s["vocab"], 16)
    exact = forward64(s, w, ids, 0)
    scale = np.abs(exact).max()
    g["qrows"], g["qcols"] = qrows.astype(np.int32), qcols.astype(np.int32)
    lines = []
    for bits in BITS:
        for granularity in GRANULARITIES:
            got, want = run(ids, 0, bits, granularity), forward64(s, w, ids, 0, bits, granularity)
            g[f"logits.{bits}.{granularity}"] = got[np.ix_(qrows, qcols)]
            g[f"err.{bits}.{granularity}"] = np.array(relative(got, want, scale), np.float32)
            most, mean = relative(got, want, scale)
            lines.append(f"\n  {bits}.{granularity} err {most:.1e} mean {mean:.1e} "
                         f"effect {relative(want, exact, scale)[1]:.1e}")
    return lines


def assert_steady(s, w, ids):
    """No order of sums may move the rounded results far: where an influential logit lies on a rounding
    boundary, this fails, and the golden needs another seed."""
    scale, noise = np.abs(forward64(s, w, ids, 0)).max(), np.random.default_rng(1)
    for bits in BITS:
        for granularity in GRANULARITIES:
            want = forward64(s, w, ids, 0, bits, granularity)[-8:, ::16]
            for _ in range(6):
                mean = relative(forward64(s, w, ids, 0, bits, granularity, noise)[-8:, ::16], want, scale)[1]
                assert mean < 2e-4, f"{s['name']} {bits} {granularity}: {mean}: take another seed"


def save_golden(s, folder, g, lines):
    save_file({k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in g.items()}, folder / "golden.safetensors")
    for f in folder.iterdir():
        f.chmod(0o644)
    print(s["name"], sum(f.stat().st_size for f in folder.iterdir()), "; ".join(lines), flush=True)
