# Compares dq's tokenizer with the Hugging Face tokenizers library on files of a realistic size: ids
# and decoded text of mixed text, line by line and as one document, and encoding speed on one thread.
# Trains three files with 32000 tokens (byte-level BPE, SentencePiece-style BPE, Unigram) from text
# found on the machine and keeps them in the work folder.
#   python tests/peers/tokenizer.py BUILD_FOLDER WORK_FOLDER [FOLDER_WITH_TEXT ...]
# SPDX-License-Identifier: MIT
import os

os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", OMP_WAIT_POLICY="passive")

import json
import pathlib
import random
import shlex
import struct
import subprocess
import sys
import sysconfig
import time

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parents[3]
RNG = random.Random(15)
MARK = "\u2581"
ROUNDS = 4
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


# ----- text -----


def collect(folders, suffixes, limit):
    """Text files below the folders, in a random order, up to `limit` bytes."""
    paths = sorted(p for f in folders for p in pathlib.Path(f).rglob("*") if p.suffix in suffixes and p.is_file())
    RNG.shuffle(paths)
    out, size = [], 0
    for p in paths:
        text = p.read_bytes()[: 1 << 17].decode(errors="replace").replace("\x00", "")
        out.append(text)
        size += len(text)
        if size > limit:
            break
    return out


def cjk(n):
    """Made-up sentences of Chinese, Japanese and Korean characters, frequent ones more often."""
    han = [chr(RNG.randrange(0x4E00, 0x9FA6)) for _ in range(2500)]
    kana = [chr(c) for c in range(0x3041, 0x3097)] + [chr(c) for c in range(0x30A1, 0x30F7)]
    hangul = [chr(RNG.randrange(0xAC00, 0xD7A4)) for _ in range(600)]
    words = [
        "".join(s[min(int(RNG.expovariate(8) * len(s)), len(s) - 1)] for _ in range(RNG.randrange(1, 5)))
        for s in (han, han, kana, hangul)
        for _ in range(4000)
    ]
    out = []
    for _ in range(n):
        gap = RNG.choice(["", "", "", " "])
        picked = [words[min(int(RNG.expovariate(6) * len(words)), len(words) - 1)] for _ in range(RNG.randrange(3, 30))]
        out.append(gap.join(picked) + RNG.choice("。！？\n"))
    return out


def noise(n):
    """Emoji, broken UTF-8, runs of spaces, characters from all of Unicode, digits, names of tokens."""
    emoji = "🙂👍🏽👨‍👩‍👧🇩🇪❤️🚀🔥🥲"
    out = []
    for _ in range(n):
        kind = RNG.randrange(8)
        if kind == 0:
            s = "".join(RNG.choice(emoji) for _ in range(RNG.randrange(1, 30)))
        elif kind == 1:
            s = RNG.randbytes(RNG.randrange(1, 60)).decode(errors="replace").replace("\x00", "")
        elif kind == 2:
            s = "x" + RNG.choice([" ", "\t", "\u00a0", "\u3000"]) * RNG.randrange(1, 300) + "y"
        elif kind == 3:
            points = [RNG.randrange(1, 0x110000) for _ in range(RNG.randrange(1, 40))]
            s = "".join(chr(c) for c in points if not 0xD800 <= c < 0xE000)
        elif kind == 4:
            points = [RNG.randrange(1, 0x3000) for _ in range(RNG.randrange(1, 60))]
            s = "".join(chr(c) for c in points)
        elif kind == 5:
            s = str(RNG.randrange(10 ** RNG.randrange(1, 40))) + " $%^&*" * RNG.randrange(3)
        elif kind == 6:
            s = RNG.choice(["<s>", "</s>", "<unk>", "<0x41>", MARK, "<|call|>", " <|call|> x", "a<s> b"]) * RNG.randrange(1, 5)
        else:
            s = RNG.choice(["a", "é", "量", "ab ", "-", "\r\n", "'s "]) * RNG.randrange(1, 400)
        out.append(s)
    return out


def sources(extra):
    library = sysconfig.get_paths()["stdlib"]
    packages = sysconfig.get_paths()["purelib"]
    code = collect([library], {".py"}, 3 << 20) + collect([packages], {".py", ".c", ".h", ".js"}, 4 << 20)
    prose = collect(["/usr/share/doc", "/usr/share/perl", *extra], {".txt", ".md", ".pod", ".html", ".rst", ".jsonl", ""}, 6 << 20)
    return code, prose


# ----- files -----


def byte_level():
    t = Tokenizer(models.BPE(ignore_merges=True))
    cut = pre_tokenizers.Split(Regex(LLAMA3), "isolated", False)
    t.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<unk>", "<s>", "</s>"]
    return t, trainers.BpeTrainer(vocab_size=32000, initial_alphabet=alphabet, special_tokens=special, show_progress=False)


def marked(model, scheme):
    t = Tokenizer(model)
    t.pre_tokenizer = pre_tokenizers.Metaspace(MARK, scheme, True)
    return t


def sp_bpe():
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    t = marked(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True), "always")
    return t, trainers.BpeTrainer(vocab_size=32000, limit_alphabet=6000, special_tokens=special, show_progress=False)


def unigram():
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    t = marked(models.Unigram(), "always")
    return t, trainers.UnigramTrainer(
        vocab_size=32000, special_tokens=special, unk_token="<unk>", show_progress=False, n_sub_iterations=1, max_piece_length=12
    )


def plain(t, normalizer, pre, decoder, prefix=None, byte_fallback=False):
    """The trained model in the form in which it is used."""
    document = json.loads(t.to_str())
    document["added_tokens"] = document["added_tokens"][:3]
    if byte_fallback:
        document["model"]["byte_fallback"] = True
    t = Tokenizer.from_str(json.dumps(document))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre or t.pre_tokenizer
    t.decoder = decoder
    t.add_tokens([AddedToken("<|call|>", lstrip=True, normalized=False)])
    if prefix:
        t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return t


def make_files(work, texts):
    legacy = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    to_text = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    strip = decoders.Sequence(to_text + [decoders.Strip(" ", 1, 0)])
    keep = decoders.Sequence(to_text)
    never = pre_tokenizers.Metaspace(MARK, "never", False)
    made = {}
    for name, maker in (("byte", byte_level), ("sp", sp_bpe), ("unigram", unigram)):
        path = work / f"trained-{name}.json"
        if not path.exists():
            t, trainer = maker()
            begin = time.monotonic()
            t.train_from_iterator(texts if name != "unigram" else texts[::3], trainer)
            t.save(str(path))
            print(f"trained {name} in {time.monotonic() - begin:.0f} s", flush=True)
        made[name] = Tokenizer.from_file(str(path))
    files = {
        "byte-level BPE (Llama-3 form)": plain(made["byte"], None, None, decoders.ByteLevel()),
        "SentencePiece BPE (Llama-2, legacy)": plain(made["sp"], legacy, pre_tokenizers.Sequence([]), strip, True),
        "SentencePiece BPE (Metaspace first)": plain(made["sp"], None, pre_tokenizers.Metaspace(MARK, "first", False), strip, True),
        "Unigram, byte fallback (sarashina2 form)": plain(made["unigram"], None, never, keep, byte_fallback=True),
        "Unigram, NFKC, words (no fallback)": plain(
            made["unigram"], normalizers.NFKC(), pre_tokenizers.Metaspace(MARK, "always", True), decoders.Metaspace(MARK, "always", True)
        ),
    }
    out = {}
    for i, (name, t) in enumerate(files.items()):
        document = json.loads(t.to_str())
        if document["pre_tokenizer"] == {"type": "Sequence", "pretokenizers": []}:
            document["pre_tokenizer"] = None
        out[name] = work / f"file-{i}.json"
        out[name].write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    return out


# ----- comparison -----


def unpack(data, item):
    out, at = [], 0
    while at < len(data):
        (n,) = struct.unpack_from("<I", data, at)
        at += 4
        out.append(data[at : at + n * item])
        at += n * item
    return out


def build_peer(build, work):
    pkgs = ["jansson", "libpcre2-8", "libutf8proc", "libcrypto", "hdf5"]
    flags = subprocess.run(["pkg-config", "--libs", *pkgs], capture_output=True, text=True, check=True).stdout
    binary = work / "tokenize_dq"
    here = pathlib.Path(__file__).parent
    command = ["cc", "-std=c17", "-O2", "-D_POSIX_C_SOURCE=200809L", f"-I{ROOT / 'src'}", str(here / "tokenize_dq.c")]
    subprocess.run([*command, "-o", str(binary), str(build / "libdq.a"), "-fopenmp", *shlex.split(flags), "-lm"], check=True)
    return binary


def run_dq(binary, path, documents, work):
    (work / "docs").write_bytes(b"".join(struct.pack("<I", len(d)) + d for d in documents))
    command = [binary, path, work / "docs", str(ROUNDS), work / "ids", work / "texts"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    seconds = [float(x.split()[1]) for x in lines if x.startswith("encode")]
    ids = [list(memoryview(b).cast("i")) for b in unpack((work / "ids").read_bytes(), 4)]
    return ids, unpack((work / "texts").read_bytes(), 1), min(seconds)


def run_hf(path, texts):
    """Ids, decoded text, and the best time of encode and of encode_batch_fast (no offsets)."""
    t = Tokenizer.from_file(str(path))
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.monotonic()
        for s in texts:
            t.encode(s, add_special_tokens=False)
        best = min(best, time.monotonic() - begin)
        if hasattr(t, "encode_batch_fast"):
            begin = time.monotonic()
            t.encode_batch_fast(texts, add_special_tokens=False)
            best = min(best, time.monotonic() - begin)
    ids = [t.encode(s, add_special_tokens=False).ids for s in texts]
    return ids, [t.decode(i, skip_special_tokens=False).encode() for i in ids], best


def compare(name, what, path, texts, binary, work):
    documents = [s.encode() for s in texts]
    size = sum(map(len, documents))
    ids, decoded, seconds = run_dq(binary, path, documents, work)
    want, want_decoded, hf_seconds = run_hf(path, texts)
    wrong = [i for i in range(len(texts)) if ids[i] != want[i]]
    wrong_text = [i for i in range(len(texts)) if decoded[i] != want_decoded[i]]
    speed, hf_speed = size / seconds / 1e6, size / hf_seconds / 1e6
    print(
        f"{name:41} {what:10} {size / 1e6:6.2f} MB {len(texts):6} docs  ids differ {len(wrong):4}  "
        f"text differs {len(wrong_text):4}  dq {speed:6.1f} MB/s  HF {hf_speed:6.2f} MB/s  x{speed / hf_speed:.1f}",
        flush=True,
    )
    for i in (wrong or wrong_text)[:3]:
        at = next((k for k, (a, b) in enumerate(zip(ids[i], want[i])) if a != b), min(len(ids[i]), len(want[i])))
        print("   ", repr(texts[i][:80]), "at", at, ids[i][at : at + 5], want[i][at : at + 5], decoded[i][:40], want_decoded[i][:40])
    return len(wrong) + len(wrong_text)


def main():
    build, work, *extra = map(pathlib.Path, sys.argv[1:])
    work.mkdir(parents=True, exist_ok=True)
    code, prose = sources(extra)
    asian = cjk(12000)
    split = len(code) // 5, len(prose) // 5
    files = make_files(work, code[split[0] :] + prose[split[1] :] + asian[3000:])
    binary = build_peer(build, work)
    held_out = [line for s in code[: split[0]] + prose[: split[1]] for line in s.split("\n")]
    RNG.shuffle(held_out)
    english, size = [], 0
    while held_out and size < 2 << 20:
        english.append(held_out.pop())
        size += len(english[-1])
    mixed = english + asian[:3000] + noise(6000)
    RNG.shuffle(mixed)
    pages = [s for s in prose[: split[1]] + code[: split[0]] if len(s) > 500][:150]
    print(f"tokenizers {tokenizers.__version__}, one thread, best of {ROUNDS} rounds after which caches are warm; HF: the better of")
    print("encode in a loop and encode_batch_fast; dq: calls of dq_tokenizer_encode. Reading and writing files is not counted.")
    bad = 0
    for name, path in files.items():
        bad += compare(name, "lines", path, mixed, binary, work)
        bad += compare(name, "whole", path, ["\n".join(mixed)], binary, work)
        bad += compare(name, "documents", path, pages, binary, work)
    sys.exit(bad > 0)


main()
