# Makes the tokenizer fixtures in tests/golden/tokenizer with the Hugging Face tokenizers library:
# small BPE and Unigram files trained on made-up text, what they make of a list of texts, what they
# make of those ids again, and the reference's character classes. Needed only to change them: python tests/golden/tokenizer.py
# SPDX-License-Identifier: MIT
import collections
import json
import math
import pathlib
import random
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

OUT = pathlib.Path(__file__).parent / "tokenizer"
RNG = random.Random(20)

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
POSSESSIVE = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve"
    r"|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def made_up(n):
    """Sentences of invented words, a little code, some other scripts."""
    heads = ["bra", "tol", "mi", "shen", "ka", "flo", "dre", "un", "sti", "qua"]
    tails = ["ner", "ling", "t", "dos", "ria", "s", "mond", "ek", "ing", "able"]
    words = [h + m + t for h in heads for m in ("", "o", "li") for t in tails]
    other = ["量化 模型", "差分注意力", "новые слова", "été où", "🙂👍🏽", "मूल शब्द", "لغة", "x = f(y)\n", "1234 5"]
    out = []
    for _ in range(n):
        s = [RNG.choice(words) for _ in range(RNG.randrange(3, 12))]
        s[0] = s[0].capitalize()
        if RNG.random() < 0.3:
            s.append(RNG.choice(other))
        if RNG.random() < 0.2:
            s.insert(1, RNG.choice(["don't", "it's", "we'll", "I'M", "they've"]))
        out.append(" ".join(s) + RNG.choice([".", "!", ",\n", "  ", "\n\n", "\r\n", "\t"]))
    return out


def train(pre, size, **model):
    t = Tokenizer(models.BPE(**model))
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator(
        made_up(600),
        trainers.BpeTrainer(
            vocab_size=size, initial_alphabet=alphabet, special_tokens=["<bos>", "<eos>"], show_progress=False
        ),
    )
    return t


def template(t, single):
    ids = [(name, t.token_to_id(name)) for name in ("<bos>", "<eos>")]
    return processors.TemplateProcessing(single=single, special_tokens=ids)


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def level(space=False, regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=regex)


def fixtures():
    yield "gpt2", bos(train(level(regex=True), 420))
    yield "prefix", old_form(train(level(space=True, regex=True), 400))
    yield "llama3", llama3()
    yield "possessive", train(pre_tokenizers.Sequence([split(POSSESSIVE), level()]), 380)
    yield "cased", train(pre_tokenizers.Sequence([split(CASED), level(space=True)]), 380)
    yield "keep", train(pre_tokenizers.Sequence([split(r"\p{L}+|\d", "removed", True), level()]), 340)
    yield "drop", train(pre_tokenizers.Sequence([split(r"[\s\-]+", "removed"), level()]), 340)
    yield "digits", train(pre_tokenizers.Sequence([pre_tokenizers.Digits(True), level(regex=True)]), 340)
    yield "anchors", train(pre_tokenizers.Sequence([split(r"^\w+|\w*$|x{2}+|\W|(?<=é)"), level()]), 330)
    yield "whole", train(level(), 420)
    yield "added", added()
    yield "unknown", gaps(train(level(regex=True), 330), "<eos>", fuse=False, fallback=False)
    yield "fused", gaps(train(level(regex=True), 330), "<eos>", fuse=True, fallback=True)
    yield "dropped", gaps(train(level(regex=True), 330), None, fuse=False, fallback=False)
    yield from character_fixtures()
    yield from unigram_fixtures()


def bos(t):
    t.post_processor = template(t, "<bos> $A")
    return t


def llama3():
    t = train(pre_tokenizers.Sequence([split(LLAMA3), level()]), 460, ignore_merges=True)
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template(t, "<bos> $A <eos>")])
    document = json.loads(t.to_str())
    # Whole words that no merge reaches: only ignore_merges finds them.
    for word in ("Ġzzgrmpf", "qxqx"):
        document["model"]["vocab"][word] = len(document["model"]["vocab"])
    return Tokenizer.from_str(json.dumps(document))


def old_form(t):
    """A file as older versions wrote it: merges as text, no model type."""
    document = json.loads(t.to_str())
    document["model"]["merges"] = ["#version: 0.2"] + [" ".join(m) for m in document["model"]["merges"]]
    document["model"]["continuing_subword_prefix"] = ""
    document["model"]["end_of_word_suffix"] = ""
    del document["model"]["type"]
    return document


def added():
    t = train(level(regex=True), 360)
    t.normalizer = normalizers.NFC()
    t.add_special_tokens([AddedToken("<|x|>", special=True), AddedToken("<|x|>y", special=True)])
    t.add_tokens(
        [
            AddedToken("[L]", lstrip=True, normalized=False),
            AddedToken("[R]", rstrip=True, normalized=False),
            AddedToken("[LR]", lstrip=True, rstrip=True, normalized=True),
            AddedToken("solo", single_word=True, normalized=False),
            AddedToken("caf\u00e9", normalized=True),
            AddedToken("raw\u0065\u0301", normalized=False),
            AddedToken("   ", normalized=False),
            AddedToken("\t\t", lstrip=True, rstrip=True, normalized=False),
            AddedToken("bra", single_word=True, normalized=True),
            AddedToken("\U0001f642\U0001f642", normalized=True),
            AddedToken("ing]", lstrip=True, single_word=True, normalized=True),
        ]
    )
    t.post_processor = template(t, "<bos> $A")
    return t


def gaps(t, unknown, fuse, fallback):
    """Takes some bytes out of the vocabulary."""
    document = json.loads(t.to_str())
    vocab, merges = document["model"]["vocab"], document["model"]["merges"]
    lost = ["x", "q", "9", "Ċ", "ð"]
    kept = [w for w in vocab if not any(c in w for c in lost)]
    if fallback:
        kept += ["<0x0A>", "<0x71>", "<0xC4>", "<0x8A>"]
    document["model"]["vocab"] = {w: i for i, w in enumerate(kept)}
    document["model"]["merges"] = [m for m in merges if all(p in kept for p in (*m, m[0] + m[1]))]
    document["model"].update(unk_token=unknown, fuse_unk=fuse, byte_fallback=fallback)
    return Tokenizer.from_str(json.dumps(document))


# ----- vocabularies of characters -----

MARK = "\u2581"
START = ["<unk>", "<s>", "</s>"]
LEGACY = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
LEGACY_DECODER = decoders.Sequence(
    [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
BYTE_DECODER = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()])


def meta(scheme, split):
    return pre_tokenizers.Metaspace(MARK, scheme, split)


def sp(normalizer, pre, decoder, size, fallback=True, train_pre=None, **model):
    """BPE as SentencePiece makes it: <unk>, <s>, </s>, the bytes, then characters and merges."""
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=fallback, **{"fuse_unk": True, **model}))
    t.pre_tokenizer = train_pre or meta("always", True)
    start = START + ([f"<0x{b:02X}>" for b in range(256)] if fallback else [])
    texts = made_up(600)
    count = collections.Counter("".join(texts).replace(" ", "" if pre and pre is train_pre else MARK))
    # Named, because the trainer's own choice among equally frequent ones changes from run to run.
    alphabet = sorted(sorted(count, key=lambda c: (-count[c], c))[:55])
    t.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=size + len(start), initial_alphabet=alphabet, limit_alphabet=55, special_tokens=start, show_progress=False
        ),
    )
    document = json.loads(t.to_str())
    document["added_tokens"] = document["added_tokens"][:3]
    t = Tokenizer.from_str(json.dumps(document))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre
    if decoder:
        t.decoder = decoder
    return t


def brackets(t, single):
    t.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<s>", 1), ("</s>", 2)])
    return t


def flagged(t):
    """Added tokens with every flag."""
    t.add_special_tokens([AddedToken("<|x|>", special=True), AddedToken("<|x|>y", special=True, normalized=True)])
    t.add_tokens(
        [
            AddedToken("[L]", lstrip=True, normalized=False),
            AddedToken("[R]", rstrip=True, normalized=False),
            AddedToken("[LR]", lstrip=True, rstrip=True, normalized=True),
            AddedToken("solo", single_word=True, normalized=True),
            AddedToken("bra bra", normalized=True),
            AddedToken("don", single_word=True, normalized=False),
        ]
    )
    return t


def edited(t, change):
    document = json.loads(t.to_str())
    change(document, document["model"])
    Tokenizer.from_str(json.dumps(document))
    return document


def without(*lost):
    """Takes tokens out of a BPE vocabulary, the merges that need them too."""

    def change(_, model):
        kept = [w for w in model["vocab"] if w not in lost]
        model["vocab"] = {w: i for i, w in enumerate(kept)}
        model["merges"] = [m for m in model["merges"] if all(p in kept for p in (*m, m[0] + m[1]))]

    return change


def old_metaspace(document, _):
    pre = document["pre_tokenizer"]
    del pre["prepend_scheme"], pre["split"]
    pre["add_prefix_space"] = True
    pre["str_rep"] = MARK


def literal(document, model):
    """Visible <0x41> pieces without the whole of bytes, the unknown token in the middle, equal pieces."""
    vocab = model["vocab"]
    vocab[3:3] = [["<0x41>", -3.0], ["<0x42>", -2.0], ["<0x0A>", -2.5], ["<0xE9>", -9.0], ["", -1.0], ["\u91cf", -4.0]]
    vocab[0], vocab[7] = vocab[7], vocab[0]
    model["unk_id"] = 7
    vocab += [["tol", -1.5], [MARK + "bra", -20.0], ["xx", -3.25], ["qx", 0.5], ["\u00e9\u00e9", -30.0]]
    for token in document["added_tokens"]:
        if token["content"] == "<unk>":
            token["id"] = 7


def character_fixtures():
    yield "sp_legacy", brackets(sp(LEGACY, None, LEGACY_DECODER, 200), "<s> $A")
    yield "sp_legacy_added", flagged(brackets(sp(LEGACY, None, LEGACY_DECODER, 120), "<s> $A </s>"))
    first = decoders.Metaspace(MARK, "first", False)
    yield "sp_first", brackets(flagged(sp(None, meta("first", False), LEGACY_DECODER, 160)), "<s> $A")
    yield "sp_first_split", sp(normalizers.NFKC(), meta("first", True), first, 160, fallback=False)
    yield "sp_strip", sp(normalizers.Strip(True, True), meta("first", False), first, 100, fallback=False, fuse_unk=False)
    yield "sp_never", sp(None, meta("never", True), BYTE_DECODER, 160, ignore_merges=True)
    yield "sp_always", edited(sp(None, meta("always", True), decoders.Metaspace(MARK, "always", True), 120), old_metaspace)
    # Merges across words: the text cannot be cut at its spaces.
    crossing = split(r"\n", "isolated")
    yield "sp_cross", edited(sp(LEGACY, None, BYTE_DECODER, 160, train_pre=pre_tokenizers.Sequence([meta("always", False), crossing])), without())
    yield "sp_bytes", edited(sp(None, meta("always", False), BYTE_DECODER, 120), without("a", "\u91cf", MARK, "<0xC3>", "<0x0A>"))
    spaced = split(r"\s+", "removed")
    yield "chars", sp(None, spaced, None, 120, fallback=False, train_pre=spaced, fuse_unk=False)
    yield "chars_dropped", edited(sp(None, spaced, None, 100, fallback=False, train_pre=spaced), lambda _, m: m.update(unk_token=None))


def scored(t):
    """The pieces of a BPE file as a Unigram file. The scores fall with the rank and repeat."""
    document = json.loads(t.to_str())
    model = document["model"]
    order = sorted(model["vocab"], key=model["vocab"].get)
    rank = {w: i for i, w in enumerate(w for w in order if not (w in START or w[:3] == "<0x"))}
    vocab = [[w, round(-1.5 - math.log(3 + rank[w] // 2), 2 + rank[w] % 3) if w in rank else 0.0] for w in order]
    document["model"] = {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": model["byte_fallback"]}
    return Tokenizer.from_str(json.dumps(document))


def unigram_fixtures():
    never = decoders.Metaspace(MARK, "never", False)
    yield "uni_bytes", flagged(scored(sp(None, meta("never", False), BYTE_DECODER, 220)))
    yield "uni_legacy", brackets(scored(sp(LEGACY, None, LEGACY_DECODER, 120)), "<s> $A </s>")
    yield "uni_nfkc", brackets(
        flagged(scored(sp(normalizers.NFKC(), meta("always", True), decoders.Metaspace(MARK, "always", True), 200, fallback=False))), "$A </s>"
    )
    yield "uni_literal", edited(scored(sp(None, meta("never", False), never, 120, fallback=False)), literal)
    fallback = scored(sp(None, meta("first", False), BYTE_DECODER, 60, fallback=False))
    yield "uni_few_bytes", edited(fallback, lambda d, m: (literal(d, m), m.update(byte_fallback=True)))


TEXTS = [
    "", " ", "a", "Tolner bralidos shen. Unoing", "don't DON'T we'll WE'LL it'S 'tis '", "IT'\u017f \u212aelvin",
    "1 12 123 1234 12345678901 ½²① ١٢٣٤ Ⅷ", "a  b   c    d\n\n\ne \n f\r\n\r\n g\t\th  ", "\n", "  \n  ", "   x", "x   ",
    "def f(x):\n    return {x: [1, 2.5e-3]}  # tol\n\n\n\tif x != y:\n", "量化模型，差分注意力。かなカナ 한국어 글자",
    "🙂👍🏽👨‍👩‍👧🇩🇪❤️ ok 🙂🙂🙂", "e\u0301 caf\u00e9 cafe\u0301 rawe\u0301 raw\u00e9 n\u0303o\u0323\u0302", "मूल शब्द لغة עברית ไทย",
    "a\u00a0b\u2003c\u3000d\u0085e\u180ef\u200bg\u2028h\ufeffi", "\x00\x01 nul\x00inside \x7f", "<bos>hi<eos> <bos", "<|x|>y<|x|>z <|x| >",
    "one  [L]  two  [R]  three  [LR]  four[L][R] \n [LR]\t[R]   [L]   ", "solo solos (solo) _solo solo\u0301 so solo", "solo",
    "bra brabra bra-bra \u00e9bra bra\u200d bra\u24b6 bra", "[R]      x   y    [L]", "ling] x ing] (ing])", "xxxx qxqx zzgrmpf zzgrmpf qxqx",
    "x9q9 99\n\nxx qq\nno more x", "\U0001f642\U0001f642\U0001f642", "CamelCaseWord HTTPServer iPhone McDonald's ÉCOLE ǅungla", "path/to\n//x\r\n/",
    "Ġ Ċ token <0x0A> ▁a", "kalidos-tolriaable--x - y", "\ufffd replacement \ufffe\uffff \U0010ffff", "line one\nline two\n", "\nx\n\ny", "é" * 5 + "xxxxx",
    " " * 33 + "end", "-" * 70, "ab" * 40, "\u0301 starts with a mark", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 ﬁ ﬆ ß ŉ", "Ⅰ ⅰ Ⓐ ⓐ 🅰 ª º ʰ", "it's\u2019s l'été", "...!!!???\n\n\n", "\t\tx\t \ty", "[R] \t\t\t\tx[R]\t\t \t\t\n\t\t \t\ty[L]\t\t",
]
# Ill-formed UTF-8, decoded with one U+FFFD per maximal subpart.
BYTES = ["80", "61ff62", "c0af", "e08080", "eda080", "f09f99", "f09f9920", "f48fbfc0", "e4b8", "e4b8e4b8ad", "c3", "f5808080", "fefeffff", "41f0808041", "e2 82 e2 82 ac 20 c2 a0 c2", "f0 9f 98 f0 9f 98 80 ff"]
LONG = [(" ", 1000000), ("a", 1000000), ("tol", 300000), ("\n", 200000), ("1", 300000), ("量", 200000), (" x", 100000), ("[L] ", 20000)]


def fnv(ids):
    h = 0xCBF29CE484222325
    for i in ids:
        h = ((h ^ i) * 0x100000001B3) % 2**64
    return f"{h:016x}"


def short(text):
    return fnv(text.encode())[:8]


def ranges(pattern):
    """Code points for which the reference's pattern matches, as [first, last] pairs."""
    pre = pre_tokenizers.Split(Regex(pattern), "removed", True)
    out = []
    for block in range(0, 0x110000, 0x400):
        points = [c for c in range(block, block + 0x400) if not 0xD800 <= c < 0xE000]
        # A separator that is in no class but its own keeps the matches one character long.
        text = "".join(chr(c) + "\x01" for c in points)
        for _, (begin, _) in pre.pre_tokenize_str(text):
            c = points[begin // 2]
            if begin % 2 == 0:
                if out and out[-1][1] == c - 1:
                    out[-1][1] = c
                else:
                    out.append([c, c])
    return out


def main():
    OUT.mkdir(exist_ok=True)
    texts = [t.encode() for t in TEXTS] + [bytes.fromhex(b) for b in BYTES]
    cases = {"tokenizers": tokenizers.__version__, "bytes_hex": [t.hex() for t in texts], "long": LONG, "files": {}}
    for name, made in fixtures():
        text = json.dumps(made if isinstance(made, dict) else json.loads(made.to_str()), ensure_ascii=False, indent=0)
        (OUT / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        t = Tokenizer.from_file(str(OUT / f"{name}.json"))
        decoded = [b.decode("utf-8", errors="replace") for b in texts]
        long_ids = [t.encode(s * n, add_special_tokens=False).ids for s, n in LONG]
        own = t.encode(text + "\n", add_special_tokens=False).ids  # many different words
        plain = [t.encode(s, add_special_tokens=False).ids for s in decoded]
        special = [t.encode(s, add_special_tokens=True).ids for s in decoded]
        n = len(t.encode("", add_special_tokens=True).ids)
        assert all(len(x) == len(y) + n for x, y in zip(special, plain))
        cases["files"][name] = {
            "vocab": max(t.get_vocab().values()) + 1,
            "ids": plain,
            "special": t.encode("Tolner", add_special_tokens=True).ids,
            # With the special tokens of the text and without, short hashes.
            "decoded": " ".join(short(t.decode(i, skip_special_tokens=False)) for i in plain),
            "skipped": " ".join(short(t.decode(i, skip_special_tokens=True)) for i in special),
            "long": [[len(i), fnv(i)] for i in long_ids],
            "own_file": [len(own), fnv(own)],
        }
        print(name, len(text), file=sys.stderr)
    classes = {p: ranges(p) for p in (r"\p{L}", r"\p{N}", r"\s", r"\w", r"[\w]", r"\W", r"\d", r"\p{M}", r"\p{Lu}", r"\p{Han}", r"\p{P}", r"(?i:s)", r"(?i:k)")}
    dump(OUT / "cases.json", cases)
    dump(OUT / "classes.json", classes)


def dump(path, value):
    """One line per second-level entry: small, and readable as a difference."""
    lines = []
    for key, v in value.items():
        if isinstance(v, dict):
            inner = ",\n".join(f" {json.dumps(k)}: {json.dumps(x, separators=(',', ':'))}" for k, x in v.items())
            lines.append(f"{json.dumps(key)}: {{\n{inner}\n}}")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(v, separators=(',', ':'))}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


main()
