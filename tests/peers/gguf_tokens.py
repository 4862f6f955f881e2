"""Tokens of text under a GGUF file: dq tokenize beside libllama, which reads the same file. Texts are files, whole and by lines, and
made ones that look for a difference: characters of all planes, marks, spaces, runs, contractions, tokens spelled out.

    pip install llama-cpp-python gguf; python gguf_tokens.py DQ MODEL.gguf TEXT...

MODEL may be a vocabulary without tensors, or this repository, whose own two files are taken then; there may be no TEXT.
LLAMA_CPP_LIB_PATH names the folder of another build of libllama.
Runs of more than 31 spaces are left out for Gemma: its merges make other tokens of them than libllama, which takes 31 at once.
Where dq goes with Hugging Face's tokenizers and libllama does not (docs/math/text.md), libllama gets what it would need: text in NFC
for qwen2, U+FFFD for bytes that are not UTF-8, and for Gemma spaces in place of U+2581, which are the same after its normalizer.
"""
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

import gguf
import llama_cpp

RNG = random.Random(7)
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d",
                "'S", "'T", "'RE", "'Ve", "'M", "'lL", "'D", "\u2019s", "'\u017f", "''s", "'x"]
SPACES = [" ", "\t", "\u00a0", "\u1680", "\u2002", "\u2009", "\u200b",
          "\u2028", "\u202f", "\u3000", "\x0b", "\x0c", "\x1c", "\x85", "\ufeff"]
EMOJI = ["\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea",
         "\u2764\ufe0f\u200d\U0001f525", "\U0001f44b\U0001f3fd", "1\ufe0f\u20e3"]
WORDS = ["the", "Hello", "WORLD", "na\u00efve", "e\u0301a\u0308", "\u0939\u093f\u0928\u094d\u0926\u0940", "\u65e5\u672c\u8a9e",
         "\ud55c\uad6d\uc5b4", "\u0627\u0644\u0639",
         "x86_64", "\u00bd", "4\u00bd", "\u2167", "\u0664\u0662", "\U0001d7d8\U0001d7d9",
         "\u4e09",
         "foo(bar)", "a.b,c;", "--", "...", "$5.99", "100,000", "3.14e-10",
         "\u2581", "_\u2581_", "<0x41>", "\u0120the"]
ENDS = ["\n", "\r\n", "\r", "\n\n", "\n \n", " \n", "\n\t"]


def assigned():
    planes = [c for c in range(0x20, 0x110000) if not 0xD800 <= c < 0xE000]
    common = [c for c in planes if unicodedata.category(chr(c)) not in ("Cn", "Co")]
    return [chr(c) for c in RNG.sample(common, 3000)] + [chr(c) for c in RNG.sample(planes, 300)] + [chr(c) for c in range(1, 0x600)]


def made(special):
    """Texts without a line feed, then texts with one."""
    chars = assigned()
    parts = WORDS + CONTRACTIONS + SPACES + EMOJI + special + [" ", " ", "  "]
    texts = ["", " ", "  "] + chars + [" " + c for c in chars[::3]] + ["a" + c + "b" for c in chars[::3]]
    texts += ["".join(RNG.choices(chars, k=12)) for _ in range(1500)]
    texts += ["".join(RNG.choices(parts, k=9)) for _ in range(3000)]
    texts += [w + c + t for w in ("I", "WE", "it ", "7") for c in CONTRACTIONS for t in ("", "x", " y", "9")]
    texts += [a + s * n + b for s in SPACES + ["0", "9", "a", "A", "-", "\u4e00"] for n in (1, 2, 3, 4, 7, 16, 33, 130)
              for a, b in (("", ""), ("a", "b"), ("", "1"))]
    texts = [t for t in texts if "\n" not in t]
    lines = ["".join(RNG.choices(parts + ENDS * 4, k=40)) for _ in range(40)]
    lines += ["\n" * n for n in (1, 2, 5, 40)] + ["\r\n" * 7, "a\r\n\r\nb", "x \n  \n y\n"]
    return texts, lines


def ours(dq, model, text, *more):
    with tempfile.NamedTemporaryFile() as f:
        f.write(text)
        f.flush()
        out = subprocess.run([dq, "tokenize", model, "--text", f.name, "-q", *more], check=True, capture_output=True).stdout
    return [[int(x) for x in line.split()] for line in out.split(b"\n")[:-1]]


class Theirs:
    def __init__(self, model):
        self.llama = llama_cpp.Llama(model, vocab_only=True, verbose=False)
        self.vocab = llama_cpp.llama_model_get_vocab(self.llama.model)
        fields = gguf.GGUFReader(model).fields
        pre = fields["tokenizer.ggml.pre"].contents() if "tokenizer.ggml.pre" in fields else None
        self.nfc = pre == "qwen2"
        self.gemma = fields["general.architecture"].contents().startswith("gemma")
        kinds = fields["tokenizer.ggml.token_type"].contents()
        told = [i for i, kind in enumerate(kinds) if kind in (gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED)]
        special = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
        guessed = [i for i in range(len(kinds)) if llama_cpp.llama_vocab_get_attr(self.vocab, i) & special and i not in set(told)]
        self.special = [self.text(i) for i in told[:20]]
        if guessed:
            print("  special for libllama, not by the file:", *map(self.text, guessed))

    def text(self, token):
        return llama_cpp.llama_vocab_get_text(self.vocab, token).decode()

    def tokens(self, text, bos=False):
        s = text.decode("utf-8", "replace")
        if self.gemma:
            s = s.replace("\u2581", " ")
        b = (unicodedata.normalize("NFC", s) if self.nfc else s).encode()
        room = len(b) + 16
        out = (llama_cpp.llama_token * room)()
        return list(out[:llama_cpp.llama_tokenize(self.vocab, b, len(b), out, room, bos, True)])


class Count:
    def __init__(self):
        self.texts = self.tokens = self.wrong = 0

    def add(self, text, a, b):
        self.texts += 1
        self.tokens += len(b)
        if a == b:
            return
        self.wrong += 1
        if self.wrong <= 12:
            at = next((k for k, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            print(f"    {text[:60]!r}, token {at}: dq {a[at:at + 6]}, libllama {b[at:at + 6]}")


def compare(name, dq, model, theirs, texts, whole):
    count = Count()
    if theirs.gemma:
        texts, whole = ([t for t in group if b" " * 32 not in t.replace("\u2581".encode(), b" ")] for group in (texts, whole))
    if texts:
        for text, ids in zip(texts, ours(dq, model, b"\n".join(texts) + b"\n", "--lines")):
            count.add(text, ids, theirs.tokens(text))
    for text in whole:
        count.add(text, ours(dq, model, text)[0], theirs.tokens(text))
        count.add(text, ours(dq, model, text, "--special")[0], theirs.tokens(text, True))
    print(f"  {name:28} {count.texts:6} texts {count.tokens:9} tokens, {count.wrong} differ", flush=True)
    return count.wrong


def check(dq, model, files):
    print(model.split("/")[-1], flush=True)
    theirs = Theirs(model)
    texts, lines = made([s for s in theirs.special if "\n" not in s])
    wrong = compare("made", dq, model, theirs, [t.encode() for t in texts], [t.encode() for t in lines])
    for path in files:
        with open(path, "rb") as f:
            text = f.read()
        wrong += compare(path.split("/")[-1], dq, model, theirs, text.split(b"\n"), [text])
    return wrong


def main():
    dq, model, *files = sys.argv[1:]
    own = [f"{model}/tests/golden/gguf/{name}" for name in ("model/model.gguf", "spm.gguf")]
    models = own if os.path.isdir(model) else [model]
    sys.exit(sum(check(dq, m, files) for m in models) > 0)


main()
