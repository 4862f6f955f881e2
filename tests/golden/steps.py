# Writes tests/golden/tokenizer/steps.json: what the Hugging Face tokenizers library makes of a table
# of hard texts, step by step: normalizers, pre-tokenizers, decoders. Needed only to change it:
# python tests/golden/steps.py
# SPDX-License-Identifier: MIT
import base64
import json
import pathlib
import struct
import zlib

import tokenizers
from tokenizers import Tokenizer

OUT = pathlib.Path(__file__).parent / "tokenizer" / "steps.json"

TEXTS = [
    "",
    " ",
    "    ",
    "plain text",
    " lead and trail ",
    "  two   three\t\ttabs ",
    "\r\nCRLF\r\n\nlines\n ",
    "nul\0in\0",
    "\u00a0nbsp\u3000wide\u2003em\u200bzero\u0085",
    "▁own ▁sign▁▁",
    " ▁",
    "e\u0301 \u0301 a\u0323\u0302 q\u0307\u0323",
    "\u0301alone",
    "İstanbul ΣΑΣ ſtraße ẞ ǅ",
    "ﬁ ½ ２ ㍿ ﷺ Å Å ①",
    "각각 \u1100\u1161\u11a7\u11a8",
    "中文，測試。日本語テキスト",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽",
    "don't stop: x+=1; $5.00 (a_b) [c]~`^|<>",
    "3.14 ٣٤ Ⅻ ²³ 1st 20px",
    "हिन्दी क्षत्रिय ไทย",
    "<0x41> Ġé Ċ",
    "aXbXXcX",
    "XX",
    "ab  cd   ef ",
    "a\r\n",
    "\n\n",
    "\ufeffbom\u200d\u00ad",
]


def own_map():
    """A character map in SentencePiece's form: two entries that share a beginning, one of a whole
    cluster, one that removes."""
    entries = {"ａ": "a", "ﬁ": "fi", "e\u0301": "é", "\u200b": "", "　": " ", "中": "middle", "👍🏽": "+", "q": "Q"}
    text, at = b"", {}
    for key, to in entries.items():
        at[key.encode()] = len(text)
        text += to.encode() + b"\0"
    units, used, free = {0: 0}, {0}, [256]

    def place(node, keys, depth):
        labels = sorted({k[depth] for k in keys if len(k) > depth})
        leaf = [k for k in keys if len(k) == depth]
        want = ([0] if leaf else []) + labels
        base = free[0]
        while any(base ^ c in used for c in want) or (base ^ node) >= 1 << 21:
            base += 1
        used.update(base ^ c for c in want)
        units[node] |= (node ^ base) << 10 | (1 << 8 if leaf else 0)
        if leaf:
            units[base] = at[leaf[0]] | 1 << 31
        for c in labels:
            units[base ^ c] = c
        for c in labels:
            place(base ^ c, [k for k in keys if len(k) > depth and k[depth] == c], depth + 1)

    place(0, list(at), 0)
    size = (max(units) | 255) + 1
    trie = b"".join(struct.pack("<I", units.get(i, 0)) for i in range(size))
    return base64.b64encode(struct.pack("<I", len(trie)) + trie + text).decode()


def string(s):
    return {"String": s}


def regex(s):
    return {"Regex": s}


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(key, *steps):
    return {"type": "Sequence", key: list(steps)}


def strip(left, right):
    return {"type": "Strip", "strip_left": left, "strip_right": right}


PREPEND = {"type": "Prepend", "prepend": "▁"}
NFKC = {"type": "NFKC"}
LOWER = {"type": "Lowercase"}

NORMALIZERS = [
    {"type": "NFC"},
    {"type": "NFD"},
    NFKC,
    {"type": "NFKD"},
    LOWER,
    strip(True, True),
    strip(True, False),
    strip(False, True),
    PREPEND,
    replace(string(" "), "▁"),
    replace(string("XX"), ""),
    replace(regex(" {2,}"), "▁"),
    replace(regex("a*"), "-"),
    replace(regex(r"\s+$"), ""),
    replace(regex("^|$"), "|"),
    {"type": "Precompiled", "precompiled_charsmap": own_map()},
    sequence("normalizers"),
    sequence("normalizers", PREPEND, replace(string(" "), "▁")),
    sequence("normalizers", NFKC, sequence("normalizers", LOWER, strip(False, True)), replace(regex(" {2,}"), " ")),
]


def split(pattern, behavior, invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def metaspace(scheme, cut):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}


def digits(single):
    return {"type": "Digits", "individual_digits": single}


def byte_level(prefix, use):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": use}


BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
PRE_TOKENIZERS = (
    [split(regex(r"\s"), b, i) for b in BEHAVIORS for i in (False, True)]
    + [split(string("X"), b) for b in BEHAVIORS]
    + [split(regex("a*"), b) for b in ("Isolated", "Contiguous", "MergedWithPrevious", "MergedWithNext")]
    + [metaspace(p, c) for p in ("always", "first", "never") for c in (True, False)]
    + [{"type": "Metaspace", "replacement": "_", "add_prefix_space": True}]
    + [digits(True), digits(False), {"type": "Punctuation"}]
    + [{"type": "Punctuation", "behavior": b} for b in ("Removed", "MergedWithNext", "Contiguous")]
    + [{"type": "Whitespace"}, {"type": "WhitespaceSplit"}, {"type": "CharDelimiterSplit", "delimiter": "▁"}]
    + [byte_level(p, r) for p in (False, True) for r in (False, True)]
    + [
        sequence("pretokenizers"),
        sequence("pretokenizers", {"type": "WhitespaceSplit"}, metaspace("first", True)),
        sequence("pretokenizers", {"type": "WhitespaceSplit"}, metaspace("always", True)),
        sequence("pretokenizers", metaspace("first", True), sequence("pretokenizers", digits(True))),
        sequence("pretokenizers", digits(True), {"type": "Punctuation"}, byte_level(True, True)),
    ]
)

TOKENS = [
    [],
    [""],
    ["▁a", "▁▁b▁", "c", "▁"],
    ["▁▁x", " y", "  ", " "],
    ["Ġa", "ĊĠb", "é", "Ã©", "<s> x", "Ġ", "\0"],
    ["Ã", "©", "â", "Ĥ", "z"],
    ["<0xE4>", "<0xB8>", "<0xAD>", "<0x41>", "a", "<0xE4>", "<0xB8>", "b"],
    ["<0xff>", "<0x+1>", "<0x4>", "<0xé>", "<0x00>"],
    ["<s>", "▁Hello", ",", "▁world", "</s>"],
]


def cut(start, stop):
    return {"type": "Strip", "content": " ", "start": start, "stop": stop}


FUSE, BYTES = {"type": "Fuse"}, {"type": "ByteFallback"}
DECODERS = [
    None,
    byte_level(True, True),
    metaspace("always", True),
    metaspace("first", True),
    metaspace("never", True),
    replace(string("▁"), " "),
    replace(string("▁▁"), ""),
    BYTES,
    FUSE,
    cut(1, 0),
    cut(2, 0),
    sequence("decoders"),
    sequence("decoders", replace(string("▁"), " "), BYTES, FUSE, cut(1, 0)),
    sequence("decoders", replace(string("▁"), " "), BYTES, FUSE),
    sequence("decoders", BYTES, metaspace("always", True)),
]


def with_parts(**parts):
    root = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None}
    root.update(pre_tokenizer=None, post_processor=None, decoder=None)
    root["model"] = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    root.update(parts)
    return Tokenizer.from_str(json.dumps(root))


def normalized(step):
    n = with_parts(normalizer=step).normalizer
    out = [n.normalize_str(t) for t in TEXTS]
    return {"step": step, "out": [None if o == t else o for o, t in zip(out, TEXTS)]}


def pre_tokenized(step):
    p = with_parts(pre_tokenizer=step).pre_tokenizer
    # Steps that do not cut give the empty text back; a tokenizer never asks them for it.
    return {"step": step, "out": [[w for w, _ in p.pre_tokenize_str(t) if w] for t in TEXTS]}


def decoded(step):
    if step is None:
        return {"step": step, "out": [" ".join(t) for t in TOKENS]}
    d = with_parts(decoder=step).decoder
    return {"step": step, "out": [d.decode(t) for t in TOKENS]}


def characters():
    """CRC-32 of what each step makes of every character: of it alone, and of it among marks."""
    out = []
    # Lowercase follows newer tables than any C library has: those characters are told apart.
    for name in ("NFC", "NFD", "NFKC", "NFKD"):
        n = with_parts(normalizer={"type": name}).normalizer
        for before, after in (("", ""), ("a\u0345", "\u0334"), ("\u1100\u1161", "\u11a8")):
            crc = 0
            for c in range(0x110000):
                if not 0xD800 <= c < 0xE000:
                    crc = zlib.crc32(n.normalize_str(before + chr(c) + after).encode(), crc)
            out.append({"type": name, "before": before, "after": after, "crc": crc})
    return out


def ranges(wanted):
    out = []
    for c in range(0x110000):
        if 0xD800 <= c < 0xE000 or not wanted(chr(c)):
            continue
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def lowered():
    """[first, last, distance] of runs of characters with the same distance to their lower case."""
    n, out = with_parts(normalizer=LOWER).normalizer, []
    for c in range(0x110000):
        low = c if 0xD800 <= c < 0xE000 else ord(n.normalize_str(chr(c))[0])
        if low == c:
            continue
        if out and out[-1][1] == c - 1 and out[-1][2] == low - c:
            out[-1][1] = c
        else:
            out.append([c, c, low - c])
    return out


def classes():
    out = {}
    for name, step in (("punctuation", {"type": "Punctuation", "behavior": "Removed"}), ("number", digits(True))):
        p = with_parts(pre_tokenizer=step).pre_tokenizer
        out[name] = ranges(lambda c: [w for w, _ in p.pre_tokenize_str(c + "a")] != [c + "a"])
    return out


def main():
    root = {
        "made_with": f"tokenizers {tokenizers.__version__}",
        "texts": TEXTS,
        "normalizers": [normalized(s) for s in NORMALIZERS],
        "pre_tokenizers": [pre_tokenized(s) for s in PRE_TOKENIZERS],
        "tokens": TOKENS,
        "decoders": [decoded(s) for s in DECODERS],
        "characters": characters(),
        "lowered": lowered(),
        "classes": classes(),
    }
    lines = [f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False, separators=(',', ':'))}" for k, v in root.items()]
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(OUT, OUT.stat().st_size, "bytes")


main()
