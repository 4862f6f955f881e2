"""Compressed caches of equal bytes on a real model: what dq recommends, and kvpress with the quantized cache of transformers.

    python tests/peers/equal_bytes.py DQ MODEL.gguf MODEL_DIR GATES -o CHOSEN.csv --parts DIR --text FILE --windows 1
    python tests/peers/equal_bytes.py DQ MODEL.gguf MODEL_DIR GATES -o OUT.csv --parts DIR --settings CHOSEN.csv
                                      [--text FILE] [--novel FILE]

Needs pip install kvpress==0.5.5 optimum-quanto hqq, in an environment of its own. MODEL_DIR is the same model as a Llama folder
(studies/real/checkpoint.py), GATES of dq plan gates.

A context is read with its full cache, then cut to a share of its tokens and rounded; what follows is read against that. Shares are those
at which a cache takes 1/2, 1/4, 1/8 and 1/16 of the bytes of all tokens in f16. dq: what is allocated where the context ends, pages that
are not full, sinks, recent tokens and positions with them; a first run corrects the share. Peers: bits of codes, and a low and a step in
f16 for 64 numbers; nothing else is counted. Their caches round a context once, after the press, as kvpress has it, and what follows stays
as it is; dq reads a context's pages as codes while it reads on, and rounds what follows, too. kvpress's kvzip only masks what it drops, so
that it saves nothing: its bytes are those of a cache that would drop it. It reads a context twice, the others once. Codes of 3 bits are
missing: hqq 0.2.8 cannot read them again in transformers 5.2.

text: TEXT in windows of 4096 tokens, 2048 of them a context; KLD of the 2047 that are scored from the full cache, paired by window.
needles: one of four numbers in a novel of about 2000 tokens, asked for after the cut (--task niah_multikey).

Without --settings every press, code and width is measured on TEXT; with them each press has the code, and dq the widths, that lost
least there. The first item of each task must come out as dq's with all tokens, and every window's NLL.
"""
import argparse
import csv
import hashlib
import itertools
import json
import logging
import os
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import kvpress as kp
import real_kv
import torch
from kvpress.utils import extract_keys_and_values
from transformers import DynamicCache, QuantizedCache

logging.disable(logging.WARNING)
LENGTH, CONTEXT, GROUP = 4096, 2048, 64
PAGE, SINK = 64, 4
SIZES = {"1/2": 1 / 2, "1/4": 1 / 4, "1/8": 1 / 8, "1/16": 1 / 16}
OWN = {  # of dq: bits of keys and values, and recent tokens
    "1/2": ("8 r60", "6 r60"), "1/4": ("6 r60", "4 r60"), "1/8": ("6 r60", "4 r60", "4 r0"), "1/16": ("4:3 r60", "4 r0", "4:3 r0")}
PRESSES = {"snapkv": kp.SnapKVPress, "compactor": kp.CompactorPress}
CODES = {"f16": 16, "hqq 8": 8, "quanto 4": 4, "hqq 4": 4, "hqq 2": 2}


def share_of(size, code):
    """Of the tokens, so that they take this share of the bytes of all in f16; at most all."""
    bits = CODES[code]
    return min(1.0, SIZES[size] * 16 / (bits if bits == 16 else bits + 32 / GROUP))


def dq_share_of(size, own, context):
    """The same of dq's pages: of 60 recent tokens with the sinks one that is not coded; the others are, with sinks aside; an index of 388
    bytes each. Kept tokens keep the low and step of the page of keys they come from: the fewer are kept, the more of these a page has. A
    first guess, which one run corrects."""
    widths, recent = own.split(" r")
    k, v = (float(w) for w in (widths.split(":") * 2)[:2])
    index, whole, share = 388 / (PAGE * 64 * 2 * 2), context / PAGE, 1.0
    dense = int(recent) > 0
    coded, left = ((k + v) / 2 + 32 / PAGE) / 16 + index, SIZES[size] * whole - SINK / PAGE - dense * (1 + index)
    if coded * (whole - dense) <= left:
        return 1.0
    for _ in range(50):
        share = (share + (dense + left / (coded + 1 / share / PAGE)) / whole) / 2
    return share


class KVzip(kp.KVzipPress):
    """At several shares, after one pass."""

    def __init__(self, shares):
        super().__init__(0.5)
        self.shares, self.masks = shares, {}

    def compress_post(self, model):
        for share in self.shares:
            self.compression_ratio = 1 - share
            super().compress_post(model)
            self.masks[share] = [layer.self_attn.masked_key_indices for layer in model.model.layers]


class Peer(real_kv.Peer):
    """transformers with one context and what follows it."""

    context = CONTEXT

    def read(self, ids, asked):
        """(press, share) -> what each layer keeps of the context. One prefill for all but kvzip."""
        made = {(name, share): PRESSES[name](1 - share) for name, share in asked if name != "kvzip" and share < 1}
        for press in made.values():
            press.post_init_from_model(self.model)
        kept, whole = {key: [] for key in made}, []

        def hook(module, _, kwargs, output):
            keys, values = extract_keys_and_values(kwargs["past_key_values"], module.layer_idx)
            whole.append((keys, values, None))
            for key, press in made.items():
                torch.manual_seed(module.layer_idx)  # compactor draws a sketch
                k, v = press.compress(module, kwargs["hidden_states"], keys.clone(), values.clone(), output[1], kwargs)
                kept[key].append((k, v, None))

        hooks = [module.register_forward_hook(hook, with_kwargs=True) for module in self.attention]
        self.run(ids, "sdpa", past_key_values=DynamicCache())
        for h in hooks:
            h.remove()
        masks = self.zipped(ids, [share for name, share in asked if name == "kvzip" and share < 1])
        for share, mask in masks.items():
            kept["kvzip", share] = [(keys, values, m) for (keys, values, _), m in zip(whole, mask)]
        kept.update({(name, share): whole for name, share in asked if share == 1})
        kept[None] = whole
        return kept

    def zipped(self, ids, shares):
        """What kvzip masks at each share, from its one second pass."""
        press = KVzip(shares)
        if shares:
            with press(self.model):
                self.run(ids, "sdpa", past_key_values=DynamicCache())
            self.done()
        return press.masks

    def cache(self, kept, code):
        backend, bits = (code.split() + [None])[:2]
        made = DynamicCache()
        if bits:
            axis = int(backend == "hqq")  # as transformers recommends for each
            made = QuantizedCache(backend, self.model.config, nbits=int(bits), axis_key=axis, axis_value=axis, q_group_size=GROUP,
                                  residual_length=LENGTH)
        for i, (module, (keys, values, masked)) in enumerate(zip(self.attention, kept)):
            round_as = torch.float16 if code == "f16" else torch.float32
            keys, values = keys.to(round_as).float(), values.to(round_as).float()
            whole = keys.shape[2] // 4 * 4 if bits else keys.shape[2]  # hqq of 2 bits cannot read others again
            made.update(keys[:, :, :whole], values[:, :, :whole], i)
            if whole < keys.shape[2]:
                made.update(keys[:, :, whole:], values[:, :, whole:], i)
            module.masked_key_indices = masked
        return made

    def go_on(self, ids, cache, at):
        """Hidden states of rows at positions `at` and after."""
        positions = torch.arange(at, at + ids.shape[1])[None]
        return self.run(ids, "masked", past_key_values=cache, position_ids=positions)

    def answer(self, ids, cut, cache, wanted):
        """What is said after the question, greedily, until it holds what is wanted."""
        rows, at, said, text = ids[:, cut:], cut, [], ""
        while len(said) < 128:
            token = int(self.model.lm_head(self.go_on(rows, cache, at)[0, -1]).argmax())
            at += rows.shape[1]
            said.append(token)
            text = self.tokenizer.decode(said)
            if token == self.model.config.eos_token_id or wanted in text:
                break
            rows = torch.tensor([[token]])
        return text

    def done(self):
        for module in self.attention:
            module.masked_key_indices = None


def peer_text(o, peer, settings, parts):
    """settings: (size, press, code)."""
    name = part_name("text", o.text)
    nll = [line["nll_nats"] for line in dq_lines(o, "text", None, "")]
    for w, ids in enumerate(real_kv.windows_of(o.text, o.folder, o.windows, LENGTH)):
        left = unknown(parts, w, name, settings)
        if not left:
            continue
        peer.ids = ids = torch.tensor([ids])
        kept = peer.read(ids[:, :CONTEXT], shares(left))
        peer.full = peer.log_p(peer.go_on(ids[:, CONTEXT:], peer.cache(kept[None], "f32"), CONTEXT))
        if abs(peer.nll() - nll[w]) > 1e-4:
            sys.exit(f"equal_bytes.py: window {w}: NLL {peer.nll():.6f} by transformers and {nll[w]:.6f} by dq: not the same tokens")
        for size, press, code in left:
            found = peer.go_on(ids[:, CONTEXT:], peer.cache(kept[press, share_of(size, code)], code), CONTEXT)
            peer.done()
            parts.add(w, (name, size, press, code), peer.kld(found), None)


def peer_needles(o, peer, settings, parts):
    name = part_name("needles", o.novel)
    for n, line in enumerate(dq_lines(o, "needles", None, "")):
        left = unknown(parts, n, name, settings)
        if not left:
            continue
        ids = torch.tensor([peer.tokenizer.encode(line["input"], add_special_tokens=False)])
        if ids.shape[1] != line["n_input"]:
            sys.exit(f"equal_bytes.py: prompt {n} has {ids.shape[1]} tokens by transformers and {line['n_input']} by dq")
        kept = peer.read(ids[:, :line["question"]], shares(left))
        if n == 0:
            said = peer.answer(ids, line["question"], peer.cache(kept[None], "f32"), line["outputs"][0])
            if (line["outputs"][0] in said) != (line["found"] == 1):
                sys.exit(f"equal_bytes.py: with all tokens transformers says {said!r} and dq {line['prediction']!r}")
        for size, press, code in left:
            said = peer.answer(ids, line["question"], peer.cache(kept[press, share_of(size, code)], code), line["outputs"][0])
            peer.done()
            parts.add(n, (name, size, press, code), float(line["outputs"][0] in said), None)


def unknown(parts, n, name, settings):
    return [s for s in settings if (name, *s) not in parts.of(n)]


def part_name(what, path):
    """Of what is known of an input, whatever else is in the folder."""
    with open(path, "rb") as f:
        return f"{what} {hashlib.sha256(f.read()).hexdigest()[:12]}"


def shares(settings):
    return sorted({(press, share_of(size, code)) for size, press, code in settings})


def dq_share(o, what, size, own):
    """What is nearest to the size, from a run at the first guess, or as --settings have it for contexts of 2048 tokens."""
    guess = dq_share_of(size, own, CONTEXT)
    if (size, own) not in o.shares:
        with open(dq_run(o, what, size, own, guess) + ".json", encoding="utf-8") as f:
            kv = next(r["kv"] for r in json.load(f)["results"] if is_cut(r["kv"]))
        dense = 0 if own.endswith(" r0") else PAGE / CONTEXT
        held = kv["bytes_held"] / kv["baseline_bytes"]
        o.shares[size, own] = min(1.0, guess * (0.995 * SIZES[size] - dense) / (held - dense))
    context = mean([line["question"] for line in dq_lines(o, what, None, "")]) if what == "needles" else CONTEXT
    return min(1.0, dq_share_of(size, own, context) * o.shares[size, own] / guess)


def dq_run(o, what, size, own, share=1):
    """Path of the lines of a run of dq and of its document; size None: all tokens in f32."""
    files = {"text": ["--text", o.text, "--ctx", str(LENGTH), "--limit", str(o.windows)],
             "needles": ["--task", "niah_multikey", "--data", o.novel, "--lengths", str(CONTEXT), "--limit", str(o.prompts)]}
    cache = ["--kv-keep", "1", "--kv-bits", "32"]
    if size:
        widths, recent = own.split(" r")
        cache = ["--kv-bits", widths, "--kv-dense-type", "f16", "--kv-quant", "mixed", "--kv-recent", recent, "--kv-gates", o.gates,
                 "--kv-policy", "kvzap", "--kv-keep", f"{share:.4f}"]
    args = [o.dq, "eval", o.gguf, *files[what], *cache, "--threads", str(o.threads)]
    path = os.path.join(o.parts, hashlib.sha256(json.dumps(args[2:]).encode()).hexdigest()[:16])
    if not os.path.exists(path + ".json"):
        subprocess.run([*args, "-q", "--force", "--dump-items", path + ".items", "-o", path + ".new"], check=True,
                       stdout=subprocess.DEVNULL)
        os.rename(path + ".new", path + ".json")
    return path


def dq_lines(o, what, size, own):
    """Lines of --dump-items, of the compressed cache where there is one."""
    with open(dq_path(o, what, size, own) + ".items", encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    return [line for line in lines if not size or is_cut(line["kv"])]


def dq_path(o, what, size, own):
    return dq_run(o, what, size, own, dq_share(o, what, size, own) if size else 1)


def is_cut(kv):
    return kv["keep"] < 1 or kv["k_bits"] < 16


def dq_values(o, what, size, own):
    """What each window or prompt says; and the share of f16's bytes that is held."""
    lines = dq_lines(o, what, size, own)
    with open(dq_path(o, what, size, own) + ".json", encoding="utf-8") as f:
        kv = [r["kv"] for r in json.load(f)["results"] if is_cut(r["kv"])] if size else []
    values = [line["kld_nats" if what == "text" else "found"] for line in lines]
    return values, kv[0]["kept_fraction"] if size else 1, kv[0]["bytes_held"] / kv[0]["baseline_bytes"] if size else 2


def mean(values):
    return sum(values) / len(values)


def interval(values):
    return real_kv.interval(values) if len(values) > 1 else (values[0], float("nan"))


def settings_of(o):
    """(size, press, code) of peers and (size, own) of dq: all, or the best of --settings."""
    o.shares = {}
    if not o.settings:
        codes = [(size, code) for size in SIZES for code in CODES if share_of(size, code) < 1 or CODES[code] == largest_whole(size)]
        return [(s, p, c) for (s, c), p in itertools.product(codes, o.presses)], [(s, w) for s in SIZES for w in OWN[s]]
    best = {}
    with open(o.settings, encoding="utf-8") as f:
        for row in csv.DictReader(f):
            key = (row["size"], row["who"], row["method"] if row["who"] != "dq" else "")
            if row["size"] and (key not in best or float(row["value"]) < float(best[key]["value"])):
                best[key] = row
    o.shares = {(size, row["code"]): float(row["share"]) for (size, who, _), row in best.items() if who == "dq"}
    return ([(size, row["method"], row["code"]) for (size, who, press), row in best.items() if press in o.presses],
            [(size, row["code"]) for (size, who, _), row in best.items() if who == "dq"])


def largest_whole(size):
    """The most bits at which no token has to go; with fewer a cache is smaller than asked, and no better."""
    return max((CODES[c] for c in CODES if share_of(size, c) == 1), default=None)


def rows_of(o, what, path, peers, own, parts):
    """A row a setting, each against the best of dq at its size."""
    rows, name = [], part_name(what, path)
    if what != "text":
        values, share, held = dq_values(o, what, None, "")
        rows.append(("", "dq", "all tokens", "f32", share, held, values))
    for size, setting in own:
        values, share, held = dq_values(o, what, size, setting)
        rows.append((size, "dq", "kvzap global", setting, share, held, values))
    n = len(rows[-1][-1])
    for size, press, code in peers:
        share = share_of(size, code)
        held = share * (1 if CODES[code] == 16 else (CODES[code] + 32 / GROUP) / 16)
        rows.append((size, "kvpress", press, code, share, held, [parts.found[w, (name, size, press, code)][0] for w in range(n)]))
    return rows


def write(o, tables):
    with open(o.out, "w", encoding="utf-8") as f:
        f.write("task,size,who,method,code,share,bytes_of_f16,value,half95,against_dq,against_half95,n,each\n")
        for what, rows in tables:
            for size in ("", *SIZES):
                of = sorted((r for r in rows if r[0] == size), key=lambda r: (r[1] != "dq", mean(r[6])))
                for _, who, method, code, share, held, values in of:
                    value, half = interval(values)
                    apart = ","
                    if who != "dq":
                        apart = "{:+.6f},{:.6f}".format(*interval([x - y for x, y in zip(values, of[0][6])]))
                    f.write(f"{what},{size},{who},{method},{code},{share:.4f},{held:.4f},{value:.6f},{half:.6f},{apart},"
                            f"{len(values)},{' '.join(f'{x:g}' if what != 'text' else f'{x:.6f}' for x in values)}\n")


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("dq", "gguf", "folder", "gates"):
        a.add_argument(name)
    a.add_argument("-o", "--out", required=True)
    a.add_argument("--parts", required=True, help="folder of what is done with these models, so that a run goes on where it ended")
    a.add_argument("--settings", help="what a run without it has written")
    for name in ("text", "novel"):
        a.add_argument("--" + name)
    a.add_argument("--presses", nargs="+", default=[*PRESSES, "kvzip"])
    a.add_argument("--windows", type=int, default=8)
    a.add_argument("--prompts", type=int, default=24)
    a.add_argument("--threads", type=int, default=2)
    o = a.parse_args()
    if not o.settings and o.novel:
        a.error("settings are chosen by what a text loses: give --settings, or --text alone")
    os.makedirs(o.parts, exist_ok=True)
    torch.set_num_threads(o.threads)
    peer, parts, tables = Peer(o.folder), real_kv.Parts(o.parts), []
    peers, own = settings_of(o)
    for what, file, of_peers in (("text", o.text, peer_text), ("needles", o.novel, peer_needles)):
        if not file:
            continue
        with torch.no_grad():
            of_peers(o, peer, peers, parts)
        tables.append((what, rows_of(o, what, file, peers, own, parts)))
        write(o, tables)


if __name__ == "__main__":
    main()
