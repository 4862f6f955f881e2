"""What KV caches of dq and of others do to a real model: KLD from the full cache, on the same tokens.

    python tests/peers/real_kv.py DQ MODEL TEXT -o OUT.csv [--windows 16] [--parts DIR] [--what evict codes]

Needs pip install kvpress==0.5.5, in an environment of its own. MODEL is a Llama folder (studies/real/checkpoint.py).

TEXT is cut into windows of 1024 tokens, one after the other; the first 512 are the context, and the 511 tokens after the
first that follows it are scored. KLD is over the whole vocabulary against the same model with its full cache in f32, a mean a window.
Perplexities of the full cache must agree between dq and transformers window by window, else nothing is compared. Intervals are 95 % by
Student's t over windows, of differences paired by window, each for itself.

evict: the context is compressed to a share of its tokens, then the other half follows at its own positions. dq's policies with
4 sinks and 64 recent tokens, which count, beside presses of kvpress with theirs; `+68` is a press with the
same 4 + 64 tokens kept inside the same number. All presses but kvzip look at one prefill of the context, each through its own
compress. kvzip masks tokens head by head. Here the mask is exact, as 512 rows are fed at once: kvpress's own way is a made-up key
that must lie on one side of all queries. h2o of kvpress is ObservedAttentionPress. Against: leverage of dq.

codes: caches of K:V bits, read as a stream would, at every row, of the context too. KIVI (arXiv 2402.02750) is written down
here: keys per channel in groups of G tokens, coded R at a time; values per token in groups of G channels, all but the last R tokens;
low and step in f16. G 32 and R 128 are the paper's. With G 64 a code takes as many bits as dq's per-channel codes do; R 64 leaves fewer
tokens unquantized than dq. TurboQuant (arXiv 2504.19874) too: a random rotation of each token's head, its norm in f16, and the levels
of Lloyd and Max for a normal distribution; `residual` spends one bit of keys on the signs of a random projection of what the others
leave (QJL), with its norm. Both with the sinks and recent tokens of dq. Bytes a token count codes with their numbers and 16
bits for what is not coded (computed in f32), as a mean over the scored rows. Against: dq's mixed codes.
"""
import argparse
import functools
import hashlib
import itertools
import json
import logging
import math
import os
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import kvpress as kp
import torch
from kvpress.presses import kvzip_press
from kvpress.utils import extract_keys_and_values
from presses import protect
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AttentionInterface, DynamicCache, PreTrainedTokenizerFast

logging.disable(logging.WARNING)
LENGTH, CONTEXT, SINK, RECENT = 1024, 512, 4, 64
KEEPS = (0.5, 0.25)
WIDTHS = ("8:8", "4:4", "4:2", "3:3", "2:2")
KIVI = ((32, 128), (64, 64))
TURBO = ("mse", "residual")
CODES = "mixed"  # of dq, against which the others stand
FULL = ("transformers", "full cache", "NLL")
POLICIES = (("streaming,h2o,snapkv,knorm,keydiff,leverage", "uniform"), ("kvzip", "global"))
PRESSES = {
    "knorm": kp.KnormPress, "snapkv": kp.SnapKVPress, "streaming": kp.StreamingLLMPress, "keydiff": kp.KeyDiffPress,
    "tova": kp.TOVAPress, "h2o": kp.ObservedAttentionPress, "leverage": kp.LeverageScorePress, "compactor": kp.CompactorPress}
PROTECTED = ("compactor",)


def attend(module, query, key, value, mask, scaling=None, dropout=0.0, **_):
    """Attention of the last rows over all keys, without the tokens that a press has masked."""
    n, m = query.shape[2], key.shape[2]
    seen = torch.ones(n, m, dtype=torch.bool).tril(m - n).expand(1, key.shape[1], n, m)
    if getattr(module, "masked_key_indices", None) is not None:
        seen = seen.clone()
        _, heads, tokens = module.masked_key_indices
        seen[0, heads, :, tokens] = False
    seen = seen.repeat_interleave(query.shape[1] // key.shape[1], 1)
    y = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=scaling, enable_gqa=True)
    return y.transpose(1, 2).contiguous(), None


def code(x, dim, group, bits):
    """Each group of neighbours along a dimension: a low, a step, and codes between."""
    shape = x.shape
    x = x.unflatten(dim, (-1, group))
    d = dim if dim < 0 else dim + 1
    low, high = x.amin(d, keepdim=True), x.amax(d, keepdim=True)
    step = ((high - low) / (2 ** bits - 1)).half().float()
    low = low.half().float()
    u = ((x - low) / step.clamp(min=1e-30)).round().clamp(0, 2 ** bits - 1)
    return (u * step + low).reshape(shape)


def attend_kivi(module, query, key, value, mask, scaling=None, dropout=0.0, **_):
    """The whole sequence at once, each row reading as codes what a stream would have coded when the row came."""
    k_bits, v_bits, group, recent = module.kivi
    n, g = key.shape[2], query.shape[1] // key.shape[1]
    t, s = torch.arange(n)[:, None], torch.arange(n)[None]
    k_coded, v_coded = s < t // recent * recent, s < t - recent
    q, k, v = query, key.repeat_interleave(g, 1), value.repeat_interleave(g, 1)
    kc, vc = (code(key, 2, group, k_bits), code(value, 3, group, v_bits))
    kc, vc = kc.repeat_interleave(g, 1), vc.repeat_interleave(g, 1)
    logits = torch.where(k_coded, q @ kc.transpose(2, 3), q @ k.transpose(2, 3)) * scaling
    p = logits.masked_fill(s > t, -math.inf).softmax(-1)
    return ((p * v_coded) @ vc + (p * ~v_coded) @ v).transpose(1, 2).contiguous(), None


@functools.lru_cache
def levels(bits):
    """The Lloyd-Max quantizer of a standard normal distribution, by its fixed point."""
    normal = torch.distributions.Normal(torch.tensor(0.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
    x = normal.icdf((torch.arange(2 ** bits, dtype=torch.float64) + 0.5) / 2 ** bits)
    ends = torch.tensor([math.inf], dtype=torch.float64)
    for _ in range(2000):
        edge = torch.cat([-ends, (x[1:] + x[:-1]) / 2, ends])
        density = torch.exp(-edge ** 2 / 2) / math.sqrt(2 * math.pi)
        x = (density[:-1] - density[1:]) / (normal.cdf(edge[1:]) - normal.cdf(edge[:-1]))
    return x.float()


def turbo(x, rotation, bits):
    """Each head of each token: its norm, and its direction's coordinates at the nearest levels."""
    size = x.norm(dim=-1, keepdim=True)
    y = x @ rotation.T / size * math.sqrt(x.shape[-1])
    table = levels(bits)
    near = torch.bucketize(y, (table[1:] + table[:-1]) / 2)
    return table[near] @ rotation / math.sqrt(x.shape[-1]) * size.half().float()


def attend_turbo(module, query, key, value, mask, scaling=None, dropout=0.0, **_):
    """As attend_kivi, with the sinks and recent tokens of dq."""
    k_bits, v_bits, residual = module.turbo
    n, g, d = key.shape[2], query.shape[1] // key.shape[1], key.shape[3]
    t, s = torch.arange(n)[:, None], torch.arange(n)[None]
    coded = (s >= SINK) & (s < (t - RECENT + 1).clamp(min=0) // 64 * 64)
    random = torch.Generator().manual_seed(module.layer_idx)
    rotation, sketch = torch.linalg.qr(torch.randn(d, d, generator=random))[0], torch.randn(d, d, generator=random)
    kc, vc = turbo(key, rotation, k_bits - residual), turbo(value, rotation, v_bits).repeat_interleave(g, 1)
    q, k, v = query, key.repeat_interleave(g, 1), value.repeat_interleave(g, 1)
    rounded = q @ kc.repeat_interleave(g, 1).transpose(2, 3)
    if residual:
        left = key - kc
        signs = ((left @ sketch.T).sign() * left.norm(dim=-1, keepdim=True).half().float()).repeat_interleave(g, 1)
        rounded = rounded + math.sqrt(math.pi / 2) / d * (q @ sketch.T) @ signs.transpose(2, 3)
    logits = torch.where(coded, rounded, q @ k.transpose(2, 3)) * scaling
    p = logits.masked_fill(s > t, -math.inf).softmax(-1)
    return ((p * coded) @ vc + (p * ~coded) @ v).transpose(1, 2).contiguous(), None


AttentionInterface.register("masked", attend)
AttentionInterface.register("kivi", attend_kivi)
AttentionInterface.register("turbo", attend_turbo)


def windows_of(text, folder, n, length):
    """The first n windows of a text, lists of ids."""
    with open(text, encoding="utf-8", newline="") as f:
        ids = Tokenizer.from_file(os.path.join(folder, "tokenizer.json")).encode(f.read(), add_special_tokens=False).ids
    if len(ids) < n * length:
        sys.exit(f"{os.path.basename(sys.argv[0])}: {text}: {len(ids)} tokens (expected {n * length} or more for {n} windows)")
    return [ids[i * length:(i + 1) * length] for i in range(n)]


class Peer:
    """transformers with one window's tokens and what its full cache says of them."""

    context = CONTEXT

    def __init__(self, folder):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.attention = [layer.self_attn for layer in self.model.model.layers]
        kvzip_press.AutoTokenizer = self  # which the press asks for the model's tokenizer
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"))

    def from_pretrained(self, _):
        return self.tokenizer

    def begin(self, ids):
        self.ids = torch.tensor([ids])
        self.full = self.log_p(self.run(self.ids, "sdpa"))

    def run(self, ids, attention, **options):
        self.model.config._attn_implementation = attention
        return self.model.model(input_ids=ids, **options).last_hidden_state

    def log_p(self, hidden):
        """Of the rows whose next tokens are scored."""
        return self.model.lm_head(hidden[0, -(self.ids.shape[1] - self.context):-1]).log_softmax(-1)

    def nll(self):
        right = self.ids[0, self.context + 1:]
        return -float(self.full.double().gather(1, right[:, None]).mean())

    def kld(self, hidden):
        q, total = self.log_p(hidden), 0.0
        for a in range(0, len(q), 64):
            p, r = self.full[a:a + 64].double(), q[a:a + 64].double()
            total += float((p.exp() * (p - r)).sum())
        return total / len(q)

    def after(self, kept):
        """KLD of what follows a context of which each layer has kept keys, values and masked some of these; and the share kept."""
        cache, held, heads = DynamicCache(), 0, self.attention[0].config.num_key_value_heads
        for i, (module, (keys, values, masked)) in enumerate(zip(self.attention, kept)):
            cache.update(keys.clone(), values.clone(), i)
            module.masked_key_indices = masked
            held += keys.shape[1] * keys.shape[2] - (0 if masked is None else len(masked[0]))
        positions = torch.arange(CONTEXT, LENGTH)[None]
        found = self.kld(self.run(self.ids[:, CONTEXT:], "masked", past_key_values=cache, position_ids=positions))
        for module in self.attention:
            module.masked_key_indices = None
        return found, held / (len(kept) * heads * CONTEXT)

    def presses(self, asked):
        """name, keep -> what each layer keeps, all of one prefill."""
        made = {(name, keep): self.make(name, keep) for name, keep in asked}
        kept = {key: [] for key in made}

        def hook(module, _, kwargs, output):
            keys, values = extract_keys_and_values(kwargs["past_key_values"], module.layer_idx)
            for key, press in made.items():
                module.masked_key_indices = None
                k, v = press.compress(module, kwargs["hidden_states"], keys.clone(), values.clone(), output[1], kwargs)
                kept[key].append((k, v, module.masked_key_indices))
            module.masked_key_indices = None

        hooks = [module.register_forward_hook(hook, with_kwargs=True) for module in self.attention]
        torch.manual_seed(0)  # leverage and compactor draw a sketch
        self.run(self.ids[:, :CONTEXT], "eager", past_key_values=DynamicCache())
        for h in hooks:
            h.remove()
        return kept

    def make(self, name, keep):
        press = PRESSES[name.removesuffix(" +68")](1 - keep)
        press.post_init_from_model(self.model)
        return protect(press, SINK, RECENT) if name.endswith("+68") else press

    def kvzip(self, keep):
        cache = DynamicCache()
        with kp.KVzipPress(1 - keep)(self.model):
            self.run(self.ids[:, :CONTEXT], "sdpa", past_key_values=cache)
        return [(cache.layers[i].keys, cache.layers[i].values, module.masked_key_indices) for i, module in enumerate(self.attention)]

    def kivi(self, widths, group, recent):
        for module in self.attention:
            module.kivi = (*map(int, widths.split(":")), group, recent)
        return self.kld(self.run(self.ids, "kivi"))

    def turbo(self, widths, residual):
        for module in self.attention:
            module.turbo = (*map(int, widths.split(":")), residual)
        return self.kld(self.run(self.ids, "turbo"))


def evicted(peer, done):
    asked = [a for a in itertools.product([*PRESSES, *(f"{p} +68" for p in PROTECTED)], KEEPS) if ("kvpress", *a) not in done]
    for (name, keep), kept in (peer.presses(asked) if asked else {}).items():
        yield ("kvpress", name, keep), *peer.after(kept)
    for keep in KEEPS:
        if ("kvpress", "kvzip", keep) not in done:
            yield ("kvpress", "kvzip", keep), *peer.after(peer.kvzip(keep))


def coded(peer, done):
    for (group, recent), widths in itertools.product(KIVI, WIDTHS):
        key = ("KIVI", f"G {group} R {recent}", widths)
        if key not in done:
            yield key, peer.kivi(widths, group, recent), None
    for how, widths in itertools.product(TURBO, WIDTHS):
        key = ("TurboQuant", how, widths)
        if key not in done:
            yield key, peer.turbo(widths, int(how == "residual")), None


class Parts:
    """What is known of each window, kept in a file so that a run goes on where it ended."""

    def __init__(self, folder):
        self.path, self.found = folder and os.path.join(folder, "peers.parts"), {}
        if self.path and os.path.exists(self.path):
            with open(self.path) as f:
                for window, key, kld, kept in map(json.loads, f):
                    self.found[window, tuple(key)] = (kld, kept)

    def of(self, window):
        return {key for w, key in self.found if w == window}

    def add(self, window, key, kld, kept):
        self.found[window, key] = (kld, kept)
        print(window, *key, f"{kld:.5f}", flush=True)
        if self.path:
            with open(self.path, "a") as f:
                f.write(json.dumps([window, key, kld, kept]) + "\n")


def dq_items(o, options):
    """Lines of --dump-items, kept with --parts."""
    args = [o.dq, "eval", o.model, "--text", o.text, "--ctx", str(LENGTH), "--limit", str(o.windows),
            "--kv-recent", str(RECENT), *options]
    name = hashlib.sha256(json.dumps(args[2:]).encode()).hexdigest()[:16] + ".items"
    path = os.path.join(o.parts or ".", name)
    if not os.path.exists(path):
        subprocess.run([*args, "-q", "--force", "--dump-items", path + ".new"], check=True, stdout=subprocess.DEVNULL)
        os.rename(path + ".new", path)
    with open(path) as f:
        lines = [json.loads(line) for line in f]
    if not o.parts:
        os.unlink(path)
    return lines


def dq_rows(o):
    """key -> KLD of each window; and NLL of each with the full cache."""
    rows, full = {}, []
    runs = {"evict": [["--kv-policy", p, "--kv-budget", b, "--kv-keep", ",".join(map(str, KEEPS))] for p, b in POLICIES],
            "codes": [["--kv-bits", ",".join(("16", *WIDTHS)), "--kv-quant", "mixed,per-channel,per-token"]]}
    for options in itertools.chain(*(runs[w] for w in o.what)):
        here = []
        for line in dq_items(o, options):
            kv = line.get("kv")
            if kv is None or (kv["k_bits"] == 16 and kv["keep"] == 1):
                here.append(line["nll_nats"])
                continue
            if kv["k_bits"] < 16:
                key = ("dq", kv["quant"], f"{kv['k_bits']:g}:{kv['v_bits']:g}")
            else:
                key = ("dq", f"{kv['policy']} {kv['budget']}", kv["keep"])
            rows.setdefault(key, []).append(line["kld_nats"])
        full = here[:o.windows]  # every run has the full cache as its reference
    return rows, full


def bytes_a_token(key, config):
    """Mean over the scored rows; unquantized tokens count as 16 bits."""
    k_bits, v_bits = (float(b) for b in key[2].split(":"))
    channels = config["num_key_value_heads"] * config["head_dim"] * config["num_hidden_layers"]
    t = torch.arange(CONTEXT, LENGTH - 1)
    k_numbers = numbers = 32 / 64  # low and step of 64 tokens or channels
    if key[0] == "TurboQuant":  # norms
        k_numbers = numbers = 16 / config["head_dim"]
        k_numbers *= 1 + (key[1] == "residual")
    if key[0] != "KIVI":
        k_coded = v_coded = (t - RECENT + 1) // 64 * 64 - SINK
    else:
        group, recent = (int(x) for x in key[1].split()[1::2])
        k_numbers = numbers = 32 / group
        k_coded, v_coded = t // recent * recent, t - recent
    sides = ((k_coded, k_bits + k_numbers), (v_coded, v_bits + numbers))
    bits = sum((n * b + (t + 1 - n) * 16) / (t + 1) for n, b in sides)
    return float(bits.double().mean()) * channels / 8


def interval(values):
    n = len(values)
    mean = sum(values) / n
    error = math.sqrt(sum((x - mean) ** 2 for x in values) / (n - 1) / n)
    return mean, student(n - 1) * error


def student(n):
    """The 97.5 % point of Student's t, by bisection of its integral."""
    def inside(x, steps=2000):
        c = math.exp(math.lgamma((n + 1) / 2) - math.lgamma(n / 2)) / math.sqrt(n * math.pi)
        f = [(1 + (x * i / steps) ** 2 / n) ** (-(n + 1) / 2) for i in range(steps + 1)]
        return 2 * c * x / steps * (sum(f) - (f[0] + f[-1]) / 2)

    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < 0.95 else (low, middle)
    return low


def write(o, rows, shares, config):
    """A line a cache, each against dq's leverage or mixed codes."""
    with open(o.out, "w") as f:
        f.write("who,method,setting,kept,bytes_token,kld,kld_half95,against,ratio,less,less_half95,is,windows\n")
        for key, klds in sorted(rows.items(), key=lambda r: (isinstance(r[0][2], str), str(r[0][2]), sum(r[1]))):
            base = ("dq", "leverage uniform" if isinstance(key[2], float) else CODES, key[2])
            mean, half = interval(klds)
            kept = shares.get(key, key[2]) if isinstance(key[2], float) else ""
            size = f"{bytes_a_token(key, config):.0f}" if isinstance(key[2], str) else ""
            less, less_half = interval([a - b for a, b in zip(klds, rows[base])])
            said = "" if key == base else "lower" if less + less_half < 0 else "higher" if less - less_half > 0 else "inconclusive"
            f.write(f"{key[0]},{key[1]},{key[2]},{kept if kept == '' else f'{kept:.4f}'},{size},{mean:.6f},{half:.6f},{' '.join(base[:2])},"
                    f"{mean / interval(rows[base])[0]:.4f},{less:+.6f},{less_half:.6f},{said},{' '.join(f'{x:.6f}' for x in klds)}\n")


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("dq")
    a.add_argument("model")
    a.add_argument("text")
    a.add_argument("-o", "--out", required=True)
    a.add_argument("--windows", type=int, default=16)
    a.add_argument("--parts", help="folder of what is done, so that a run goes on where it ended")
    a.add_argument("--threads", type=int, default=2, help="of transformers")
    a.add_argument("--what", nargs="+", choices=("evict", "codes"), default=["evict", "codes"])
    o = a.parse_args()
    if o.windows < 2:
        a.error("--windows: an interval needs 2 or more")
    if o.parts:
        os.makedirs(o.parts, exist_ok=True)
    windows = windows_of(o.text, o.model, o.windows, LENGTH)
    torch.set_num_threads(o.threads)
    with torch.no_grad():
        peers = peer_parts(o, windows)
    rows, full = dq_rows(o)
    for window in range(o.windows):
        nll = peers.pop((window, FULL))[0]
        if abs(nll - full[window]) > 1e-4:
            sys.exit(f"real_kv.py: window {window}: NLL {nll:.6f} by transformers and {full[window]:.6f} by dq: not the same tokens")
    shares = {}
    for key in {key for _, key in peers}:
        rows[key] = [peers[w, key][0] for w in range(o.windows)]
        shares[key] = sum(peers[w, key][1] or 0 for w in range(o.windows)) / o.windows
    with open(os.path.join(o.model, "config.json"), encoding="utf-8") as f:
        write(o, rows, shares, json.load(f))


def peer_parts(o, windows):
    """(window, key) -> KLD and the share kept."""
    peer, parts = Peer(o.model), Parts(o.parts)
    for window, ids in enumerate(windows):
        known = parts.of(window)
        for key, kld, kept in itertools.chain(first(peer, ids), *({"evict": evicted, "codes": coded}[w](peer, known) for w in o.what)):
            if key not in known:
                parts.add(window, key, kld, kept)
    return {(w, key): found for (w, key), found in parts.found.items() if w < o.windows}


def first(peer, ids):
    """What the window says with the full cache: the first of a window, as all others need it."""
    peer.begin(ids)
    yield FULL, peer.nll(), None


if __name__ == "__main__":
    main()
