#!/usr/bin/env python3
"""Plants one outlier at a known place of a Llama or DiffLlama and keeps its function: weights are transformed in float64 by an
identity of real numbers and stored in float32. OUT is a Hugging Face folder; its plant.json says where dq stats must find what.

    python plant.py MODEL OUT --kind keys --layer 3 --channel 70 --times 10 --text book.txt
    python plant.py MODEL OUT --kind logits --layer 11 --head 4 --size 600

--size is the factor; of logits what is added to them, of first the magnitude. --times T finds it: the largest magnitude at the place
becomes T times the largest of its kind in MODEL, over all layers and over all tokens of the text but the first of each window.

kind            place          what is done, and why nothing changes
logits          head           heads become twice as wide, with RoPE base theta^2: old pairs of channels keep their frequencies, new
                               ones hardly turn. A bias in the slowest one raises all logits of each row of the head by one number,
                               which the softmax does not see
queries, keys   channel, head  q and k of a pair of channels that RoPE turns together, or of a whole head: times s, over s. All query
                               heads that read a key head take part
values, o_input channel        a row of v times s, columns of o over s: attention is linear in values. Of a plain model only: a
                               differential head is normed over its values, which one scaled channel would change
value_rotation  channel        values of a head (both halves of a differential one) are rotated, o back: the norm has no gain, so a
                               rotation passes it. Their leading direction becomes the channel
qkv_input       channel        the gain of a norm times s, columns of q, k, v over s
gate_up_input   channel        the same of the second norm, gate and up
down_input      channel        a row of up times s, a column of down over s
weight          matrix,        an input column of a matrix times s, what makes its input over s: the norm's gain (q, k, v, and gate,
                channel        up, together), a row of v or up
spread          -              a random rotation of the residual stream: no channel of hidden states is large any more. Gains are
                               folded into matrices; a norm without gain commutes with rotations. The head is stored apart
hidden          channel        such a rotation that makes one channel of the leading direction of hidden states of a layer (of
                               ordinary or first tokens). It cannot exceed the energy which that direction has
first           channel        a massive activation on <bos> at the beginning of a sequence, from the output of --layer to that before
                               --until. Below it says how

first: what the first token does is known, because it sees itself alone. The residual stream gets a channel that is zero for all
other tokens (and some more, zero for all, to keep the width a multiple of 32). Gains and epsilon make up for the wider mean. The
row of <bos> in the embedding has a small value there, so a neuron of the MLP, which reads that channel alone, fires for <bos> alone. It
writes the magnitude in one layer, another takes it away. The norm then shrinks all other channels of that token: each matrix that
reads them gets, in its new column, what it lacks for this one known vector. It is exact where <bos> stands at the beginning or nowhere.
"""
import argparse
import json
import os
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file

import watch

SCALED = ("queries", "keys", "values", "o_input", "qkv_input", "gate_up_input", "down_input")
ROLES = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
         "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
READERS = {"input_layernorm": ("q", "k", "v"), "post_attention_layernorm": ("gate", "up")}
WIDTH = 32  # new widths are multiples of it


class Refused(Exception):
    pass


class Model:
    """Tensors in float32 by name, those which a plant changes through float64, and the configuration."""

    def __init__(self, folder):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            self.config = c = json.load(f)
        if c["model_type"] not in ("llama", "diffllama"):
            raise Refused(f"{folder}: model_type {c['model_type']}: plants are known for llama and diffllama")
        names = sorted(n for n in os.listdir(folder) if n.endswith(".safetensors") and n.startswith("model"))
        self.tensors = {k: t.float() for n in names for k, t in load_file(os.path.join(folder, n)).items()}
        self.folder, self.diff = folder, c["model_type"] == "diffllama"
        self.layers, self.eps = c["num_hidden_layers"], c["rms_norm_eps"]
        self.nq = c["num_attention_heads"]
        self.nk = c.get("num_key_value_heads") or self.nq
        self.hidden, self.d = c["hidden_size"], c.get("head_dim") or c["hidden_size"] // self.nq
        self.per_key = self.nq // self.nk

    def copy(self):
        other = object.__new__(Model)
        other.__dict__.update(self.__dict__, config=json.loads(json.dumps(self.config)), tensors=dict(self.tensors))
        return other

    def name(self, layer, role):
        return f"model.layers.{layer}.{ROLES.get(role, role)}.weight"

    def get(self, name):
        return self.tensors[name].double()

    def put(self, name, t):
        self.tensors[name] = t.float().contiguous()

    def bias(self, name):
        name = name.removesuffix("weight") + "bias"
        return name if name in self.tensors else None

    def rows(self, layer, role, at, s):
        """Rows of a matrix, and of its bias, times s."""
        name = self.name(layer, role)
        for n in filter(None, (name, self.bias(name))):
            t = self.get(n)
            t[at] *= s
            self.put(n, t)

    def columns(self, layer, role, at, s):
        t = self.get(self.name(layer, role))
        t[:, at] *= s
        self.put(self.name(layer, role), t)

    def gain(self, layer, norm, channel, s):
        t = self.get(self.name(layer, norm))
        t[channel] *= s
        self.put(self.name(layer, norm), t)

    def write(self, out, plant):
        os.makedirs(out, exist_ok=True)
        self.config["dtype"] = "float32"
        self.config.pop("torch_dtype", None)
        path = os.path.join(out, "model.safetensors")
        save_file(self.tensors, path, metadata={"format": "pt"})
        os.chmod(path, 0o644)
        for name, what in (("config.json", self.config), ("plant.json", plant)):
            with open(os.path.join(out, name), "w", encoding="utf-8") as f:
                json.dump(what, f, indent=2)
                f.write("\n")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if os.path.exists(os.path.join(self.folder, name)):
                shutil.copy(os.path.join(self.folder, name), os.path.join(out, name))


class Seen:
    """Values of the model over the text, computed once for each kind. bos: put before the text, where its tokenizer puts none."""

    def __init__(self, folder, text, ctx, limit, bos=None):
        self.folder, self.text, self.ctx, self.limit, self.bos = folder, text, ctx, limit, bos
        self.net, self.kinds = None, {}

    def of(self, kind):
        if self.text is None:
            raise Refused("--text FILE is missing: values over a text are needed")
        if kind not in self.kinds:
            self.net = self.net or watch.load(self.folder)
            self.windows = watch.windows_of(self.folder, self.text, self.ctx, self.limit, self.bos)
            self.kinds = {kind: watch.values_of(self.net, kind, self.windows)}  # one kind at a time: they are large
        return self.kinds[kind]

    def natural(self, kind, first=False):
        rows, is_first = self.of(kind)
        return max(float(r[is_first == first].abs().max()) for r in rows)

    def at(self, kind, layer, columns):
        rows, first = self.of(kind)
        return float(rows[layer][~first][:, columns].abs().max())


# ---- Places: which channels of which kind a plant is seen in ----

def pair_of(m, channel):
    """The channels that RoPE turns together with this one, itself among them."""
    head, i = divmod(channel, m.d)
    return [head * m.d + i % (m.d // 2), head * m.d + i % (m.d // 2) + m.d // 2]


def key_place(m, kind, channel, head):
    """Rows of k, and the rows of q which meet them, of a channel or a whole head of keys or queries."""
    if head is not None:
        key = head if kind == "keys" else head // m.per_key
        inner = range(m.d)
    else:
        key = channel // m.d if kind == "keys" else channel // m.d // m.per_key
        inner = [c % m.d for c in pair_of(m, channel)]
    return ([key * m.d + i for i in inner],
            [h * m.d + i for h in range(key * m.per_key, (key + 1) * m.per_key) for i in inner])


def value_place(m, channel, of_o):
    """A row of v and the columns of o that read it (plain model), from one of either."""
    head, i = divmod(channel, m.d)
    key = head // m.per_key if of_o else head
    return key * m.d + i, [h * m.d + i for h in range(key * m.per_key, (key + 1) * m.per_key)]


def place_of(m, kind, layer, channel, head):
    """The columns of values of this kind which a scaling changes."""
    if kind in ("queries", "keys"):
        k, q = key_place(m, kind, channel, head)
        return k if kind == "keys" else q
    if kind in ("values", "o_input"):
        if m.diff:
            raise Refused(f"--kind {kind}: a differential head is normed over its values, and one scaled channel, or its "
                          "epsilon beside a scaled head, would change that. --kind value_rotation is exact")
        v, o = value_place(m, channel, kind == "o_input")
        return [v] if kind == "values" else o
    return [channel]


# ---- Plants ----

def scale(m, kind, layer, channel, head, s):
    if kind in ("queries", "keys"):
        k, q = key_place(m, kind, channel, head)
        m.rows(layer, "k", k, s if kind == "keys" else 1 / s)
        m.rows(layer, "q", q, s if kind == "queries" else 1 / s)
    elif kind in ("values", "o_input"):
        v, o = value_place(m, channel, kind == "o_input")
        m.rows(layer, "v", [v], s)
        m.columns(layer, "o", o, 1 / s)
    elif kind == "down_input":
        m.rows(layer, "up", [channel], s)
        m.columns(layer, "down", [channel], 1 / s)
    else:
        norm = "input_layernorm" if kind == "qkv_input" else "post_attention_layernorm"
        m.gain(layer, norm, channel, s)
        for role in READERS[norm]:
            m.columns(layer, role, [channel], 1 / s)


def weight(m, layer, role, channel, s):
    """An input column times s is its input over s. What dq stats must name: matrices by role, with that column."""
    for norm, roles in READERS.items():
        if role in roles:
            scale(m, "qkv_input" if role in "qkv" else "gate_up_input", layer, channel, None, 1 / s)
            return [(r, [channel]) for r in roles]
    kind = {"o": "o_input", "down": "down_input"}[role]
    columns = place_of(m, kind, layer, channel, None)
    scale(m, kind, layer, channel, None, 1 / s)
    return [(role, columns)]


def logits(m, layer, head, shift):
    c, d, n = m.config, m.d, 2 * m.d
    if shift <= 0:
        raise Refused(f"--kind logits: a shift of {shift:.4g} is none: logits of this head are as large without it")
    rope = c.get("rope_parameters") or {"rope_type": "default", "rope_theta": c.get("rope_theta", 10000.0)}
    if c.get("rope_scaling") or rope.get("rope_type", "default") != "default":
        raise Refused("--kind logits: RoPE is scaled here, so its base cannot stand for all frequencies")
    wide = torch.cat([torch.arange(d // 2), torch.arange(d // 2) + d])  # where channels of q and k go; values keep theirs

    def widened(t, heads, channels):
        out = torch.zeros(heads, n, *t.shape[1:], dtype=torch.float64)
        out[:, channels] = t.view(heads, d, *t.shape[1:])
        return out.view(heads * n, *t.shape[1:])

    keep = torch.arange(d)
    root = 2 ** .5 if m.diff else 1.0  # a differential head is normed over twice as many channels
    for i in range(m.layers):
        for role, heads, channels, s in (("q", m.nq, wide, 2 ** .5), ("k", m.nk, wide, 1), ("v", m.nk, keep, root)):
            name = m.name(i, role)
            bias = name.removesuffix("weight") + "bias"
            b = m.get(bias) if m.bias(name) else torch.zeros(heads * d, dtype=torch.float64)
            b = widened(b * s, heads, channels)
            if i == layer and role in "qk":
                at = head if role == "q" else head // m.per_key
                b[at * n + d - 1] += (shift * n ** .5) ** .5
            m.put(name, widened(m.get(name) * s, heads, channels))
            m.put(bias, b)
        name = m.name(i, "o")
        m.put(name, widened(m.get(name).T.contiguous() / root, m.nq, keep).T)
        if not m.bias(name):
            m.put(name.removesuffix("weight") + "bias", torch.zeros(m.hidden))
        for part in ("q1", "k1", "q2", "k2") if m.diff else ():
            x = f"model.layers.{i}.self_attn.lambda_{part}"
            m.put(x, torch.cat([m.get(x), torch.zeros(d, dtype=torch.float64)]))
    rope["rope_theta"] = float(rope["rope_theta"]) ** 2
    c.update(head_dim=n, attention_bias=True, rope_parameters=rope)
    c.pop("rope_theta", None)


def rotate(m, q):
    """The residual stream x becomes x q."""
    for name in [n for n in m.tensors if n.endswith("norm.weight") and ".self_attn." not in n]:
        gain = m.get(name)
        if name == "model.norm.weight":
            readers = ["lm_head.weight"]
            if readers[0] not in m.tensors:
                m.put(readers[0], m.get("model.embed_tokens.weight"))
                m.config["tie_word_embeddings"] = False
        else:
            layer, norm = name.split(".")[2:4]
            readers = [m.name(layer, role) for role in READERS[norm]]
        for r in readers:
            m.put(r, m.get(r) * gain @ q)
        m.put(name, torch.ones_like(gain))
    m.put("model.embed_tokens.weight", m.get("model.embed_tokens.weight") @ q)
    for i in range(m.layers):
        for role in ("o", "down"):
            name = m.name(i, role)
            m.put(name, q.T @ m.get(name))
            if m.bias(name):
                m.put(m.bias(name), m.get(m.bias(name)) @ q)


def random_rotation(n, seed):
    g = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    q, r = torch.linalg.qr(g)
    return q * r.diagonal().sign()


def reflection(v, channel):
    """The symmetric orthogonal matrix that exchanges v and the axis of a channel."""
    u = v.clone()
    u[channel] -= 1
    length = u @ u
    return torch.eye(len(v), dtype=torch.float64) - (2 / length * torch.outer(u, u) if length > 1e-24 else 0)


def direction(x, want, seed):
    """A unit vector which rows of x meet at most with `want`: of their leading direction and a random one. want None: the
    leading direction itself."""
    _, _, v = torch.linalg.svd(x, full_matrices=False)
    v = v[0]
    if want is None:
        return v
    w = torch.randn(len(v), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    w -= (w @ v) * v
    w /= w.norm()

    def mixed(a):
        return a * v + (1 - a * a) ** .5 * w

    if (x @ v).abs().max() < want:
        raise Refused(f"the leading direction has {float((x @ v).abs().max()):.4g} at most, not {want:.4g}: a rotation adds no energy")
    low, high = 0.0, 1.0
    for _ in range(60):
        a = (low + high) / 2
        low, high = (low, a) if (x @ mixed(a)).abs().max() >= want else (a, high)
    return mixed(high)


def value_rotation(m, layer, channel, seen, times, seed):
    half = m.nk // 2 if m.diff else m.nk
    pair = channel // m.d % half
    rows = [h * m.d + i for h in ((pair, pair + half) if m.diff else (pair,)) for i in range(m.d)]
    n, outs = len(rows), range(pair * m.per_key, (pair + 1) * m.per_key)
    values, first = seen.of("values")
    x = values[layer][~first][:, rows].double()
    v = direction(x, times and times * seen.natural("values"), seed)
    h = reflection(v, rows.index(channel))
    name = m.name(layer, "v")
    for t in filter(None, (name, m.bias(name))):
        w = m.get(t)
        w[rows] = h @ w[rows]
        m.put(t, w)
    o = m.get(m.name(layer, "o"))
    for j in outs:
        o[:, j * n:(j + 1) * n] = o[:, j * n:(j + 1) * n] @ h
    m.put(m.name(layer, "o"), o)
    return float((x @ v).abs().max())


def hidden(m, layer, channel, tokens, seen, times, seed):
    rows, first = seen.of("hidden_states")
    x = rows[layer][first if tokens == "first" else ~first].double()
    v = direction(x, times and times * seen.natural("hidden_states", tokens == "first"), seed)
    rotate(m, reflection(v, channel))
    return float((x @ v).abs().max())


# ---- A massive activation on the first token ----

def first_token(m, token):
    """The vectors that the norms of each layer read where the sequence is this one token, in float64."""
    net = watch.load(m.folder).double()
    seen, hooks = {}, []
    for i, layer in enumerate(net.model.layers):
        for norm in READERS:
            hooks.append(getattr(layer, norm).register_forward_pre_hook(
                lambda mod, a, key=(i, norm): seen.__setitem__(key, a[0][0, 0].double().clone())))
    with torch.no_grad():
        net.model(torch.tensor([[token]]), use_cache=False)
    for h in hooks:
        h.remove()
    return seen


def padded(t, size, dim):
    shape = list(t.shape)
    shape[dim] = size - shape[dim]
    return torch.cat([t, torch.zeros(shape, dtype=t.dtype)], dim)


def first(m, layer, until, channel, token, size):
    if not layer < until < m.layers:
        raise Refused(f"--until {until}: the last layer at most, and after --layer")
    d, inner = m.hidden, m.config["intermediate_size"]
    wide, wider = (d // WIDTH + 1) * WIDTH, (inner // WIDTH + 1) * WIDTH
    order = [i for i in range(wide) if i != channel][:d]  # where old channels go
    seen = first_token(m, token)
    small = float(m.get("model.embed_tokens.weight")[token].norm())

    def spread(t, dim):
        out = torch.zeros([wide if i == dim else n for i, n in enumerate(t.shape)], dtype=torch.float64)
        out[(slice(None),) * dim + (order,)] = t
        return out

    for i in range(m.layers):
        for norm, roles in READERS.items():
            gain, x = m.get(m.name(i, norm)), seen[i, norm]
            a = size if layer < i <= until else small
            if i > until:
                a = 0.0
            total = x @ x + d * m.eps
            shrinks = float((total / (total + a * a)) ** .5)
            n = gain * x * (d / total) ** .5                    # what the norm of the old model gives
            at_channel = float(a / ((total + a * a) / wide) ** .5)  # the new channel after its norm
            for role in roles:
                w = m.get(m.name(i, role))
                new = spread(w, 1)
                if a:
                    new[:, channel] = (1 - shrinks) * (w @ n) / at_channel
                m.put(m.name(i, role), new)
            new = spread(gain * (d / wide) ** .5, 0)
            new[channel] = 1 if a else 0
            m.put(m.name(i, norm), new)
        if m.diff:  # the epsilon of its head's norm is that of the others: values shrink with it
            m.rows(i, "v", slice(None), (d / wide) ** .5)
        down = padded(spread(m.get(m.name(i, "down")), 0), wider, 1)
        for role in ("gate", "up"):
            name = m.name(i, role)
            for t in filter(None, (name, m.bias(name))):
                m.put(t, padded(m.get(t), wider, 0))
        if i in (layer, until):
            fires = max(abs(size), 1.0) ** .25
            for role in ("gate", "up"):
                w = m.get(m.name(i, role))
                w[inner, channel] = fires / at_channel
                m.put(m.name(i, role), w)
            step = size - small if i == layer else -size
            down[channel, inner] = step / (fires * fires * torch.sigmoid(torch.tensor(fires, dtype=torch.float64)))
        m.put(m.name(i, "down"), down)
        o = m.name(i, "o")
        m.put(o, spread(m.get(o), 0))
        for b in filter(None, (m.bias(o), m.bias(m.name(i, "down")))):
            m.put(b, spread(m.get(b), 0))
    m.put("model.norm.weight", spread(m.get("model.norm.weight") * (d / wide) ** .5, 0))
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in m.tensors:
            m.put(name, spread(m.get(name), 1))
    m.tensors["model.embed_tokens.weight"][token, channel] = small
    m.config.update(hidden_size=wide, intermediate_size=wider, head_dim=m.d, rms_norm_eps=m.eps * d / wide)


# ---- One plant ----

def check(m, kind, layer, head, channel, matrix):
    wide = {"queries": m.nq * m.d, "keys": m.nk * m.d, "values": m.nk * m.d, "value_rotation": m.nk * m.d, "o_input": m.nq * m.d,
            "down_input": m.config["intermediate_size"], "first": m.hidden + 1}
    inputs = {"o": "o_input", "down": "down_input"}
    for what, n, most in (("layer", layer, m.layers), ("head", head, m.nk if kind == "keys" else m.nq),
                          ("channel", channel, wide.get(inputs.get(matrix, kind), m.hidden))):
        if n is not None and not 0 <= n < most:
            raise Refused(f"--{what} {n}: 0 to {most - 1} in {m.folder}")


def plant(source, seen, kind, layer=0, head=None, channel=None, matrix=None, size=None, times=None, tokens="ordinary", until=None,
          seed=0):
    """The planted model and what plant.json says of it."""
    check(source, kind, layer, head, channel, matrix)
    m = source.copy()
    place = {"values": kind, "layer": layer}
    result = {"kind": kind, "source": os.path.basename(os.path.normpath(m.folder)), "times": times, "natural": None}
    if kind in SCALED:
        columns = place_of(m, kind, layer, channel, head)
        if times:
            result["natural"] = seen.natural(kind)
            size = times * result["natural"] / seen.at(kind, layer, columns)
        scale(m, kind, layer, channel, head, size)
        places = [dict(place, channels=columns)]
    elif kind == "weight":
        if times:
            result["natural"] = max(float(m.tensors[m.name(i, matrix)].abs().max()) for i in range(m.layers))
            size = times * result["natural"] / float(m.tensors[m.name(layer, matrix)][:, channel].abs().max())
        places = [dict(place, values="weights", role=role, channels=columns)
                  for role, columns in weight(m, layer, matrix, channel, size)]
    elif kind == "logits":
        if times:
            result["natural"] = seen.natural("attention_logits")
            rows, _ = seen.of("attention_logits")
            size = times * result["natural"] - float(rows[layer][:, head].max())
        logits(m, layer, head, size)
        of_map = (1 if head < m.nq // 2 else 2) if m.diff else None
        places = [dict(place, values="attention_logits", head=head, map=of_map)]
    elif kind == "spread":
        rotate(m, random_rotation(m.hidden, seed))
        places = []
    elif kind in ("hidden", "value_rotation"):
        values = "hidden_states" if kind == "hidden" else "values"
        result["natural"] = seen.natural(values, kind == "hidden" and tokens == "first")
        if kind == "hidden":
            size = hidden(m, layer, channel, tokens, seen, times, seed)
        else:
            size = value_rotation(m, layer, channel, seen, times, seed)
        places = [dict(place, values=values, tokens=tokens, channels=[channel])]
    elif kind == "first":
        token = m.config["bos_token_id"]
        until = m.layers - 1 if until is None else until
        if times:
            result["natural"] = seen.natural("hidden_states", True)
            size = times * result["natural"]
        first(m, layer, until, channel, token, size)
        places = [{"values": "hidden_states", "tokens": "first", "first_layer": layer, "last_layer": until - 1,
                   "channels": [channel]}]
    return m, dict(result, size=size, places=places)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--kind", required=True,
                        choices=(*SCALED, "logits", "value_rotation", "weight", "spread", "hidden", "first"))
    parser.add_argument("--layer", type=int, default=0)
    parser.add_argument("--head", type=int, help="of logits and queries a query head, of keys a key head")
    parser.add_argument("--channel", type=int, help="as dq stats counts: over all heads")
    parser.add_argument("--matrix", choices=tuple(ROLES), help="of weight")
    parser.add_argument("--size", type=float)
    parser.add_argument("--times", type=float)
    parser.add_argument("--tokens", choices=("ordinary", "first"), default="ordinary", help="of hidden")
    parser.add_argument("--until", type=int, help="of first: the layer that takes it away (default the last)")
    parser.add_argument("--seed", type=int, default=0, help="of spread, hidden, value_rotation")
    parser.add_argument("--text")
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--limit", type=int, default=2)
    a = parser.parse_args()
    rotation = a.kind in ("hidden", "value_rotation")
    needs = [("--head" if a.kind == "logits" else "--channel", a.kind != "spread" and (a.head if a.kind == "logits" else a.channel) is None
              and not (a.kind in ("queries", "keys") and a.head is not None)),
             ("--matrix", a.kind == "weight" and a.matrix is None),
             ("--size or --times, not both", not rotation and a.kind != "spread" and (a.size is None) == (a.times is None)),
             ("--times, or nothing, but no --size", (rotation or a.kind == "spread") and a.size is not None)]
    for name, missing in needs:
        if missing:
            parser.error(f"--kind {a.kind} needs {name}")
    torch.set_num_threads(2)
    try:
        source = Model(a.model)
        seen = Seen(a.model, a.text, a.ctx, a.limit, source.config["bos_token_id"] if a.kind == "first" else None)
        m, what = plant(source, seen, a.kind, a.layer, a.head, a.channel, a.matrix, a.size,
                        a.times, a.tokens, a.until, a.seed)
    except Refused as e:
        sys.exit(f"plant.py: {e}")
    m.write(a.out, what)
    print(json.dumps(what))


if __name__ == "__main__":
    main()
