"""Weights of a real model made smaller by llama.cpp, llm-compressor, GPTQModel, AutoRound and dq, all scored by dq eval.

    python real_weights.py DQ MODEL_DIR CALIB.txt SCORE.jsonl --like MODEL.gguf --llama-bin DIR [--llmcompressor PYTHON]
                           [--gptqmodel PYTHON] [--autoround PYTHON] [--windows 20] [--only REGEX] [--sizes BITS,...] [--work DIR]
                           -o OUT.csv

MODEL_DIR is what studies/real/checkpoint.py --rescaled made: a folder, of which MODEL.gguf is the file it came from, whose tokenizer
the F32 file for llama.cpp gets; or a GGUF file, which llama.cpp reads as it is. Every program sees the same calibration: 32 pieces
of 512 tokens in even distances in CALIB.txt (llama.cpp their text, one after the other). SCORE.jsonl, or a single text: windows
of 512 tokens, the second half of each, KLD from MODEL_DIR in f32; SCORE.txt beside it is what llama-perplexity reads. PYTHON is
that of an environment which has the package; without it its rows are left out. The work folder keeps what is made and scored:
the same command goes on where it ended. Needs numpy, gguf and safetensors.

A row a file: the types that its projections and its embedding really have (llama.cpp changes them where 256 does not divide the
columns), bits per weight of the file's tensors, seconds of processor time to make it (with those of the importance matrix).
Rows of the program llama-wide are of a model whose columns 256 divides (llama_wide.py).
Beside each row of llama.cpp with a matrix stands the file that `dq quantize --size` made of at most as many bits over all
parameters, if one is among the rows. Beside other rows of a peer stands one of dq of at most as many bits over projections (+.02)
and not .4 fewer: with calibration like it or without, the most bits, align before gptq. The difference is paired, dq's KLD less
the peer's, with a 95 % interval over documents, or windows of a single text. Beside a row of dq with a trellis stand integers of
the same method, width and group: its KLD less theirs. llama_ppl is what llama-perplexity says of as many windows of the single
text, which are those of dq's ppl where SCORE is that text: its products have 8-bit activations (all but F32) and its cache is f16.
"""
import argparse
import collections
import csv
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys

from llama_gguf import fingerprint, is_gguf, load_gguf, made, tensors_of, write_gguf
from llama_wide import Wide, checkpoint_name, cut

CTX, PIECES = 512, 32
LLAMA = ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS", "Q3_K_M", "Q3_K_S", "Q2_K"]
# What these take where 256 does not divide the columns, with smaller embeddings than their own; and those that ask for 256.
LLAMA_EMBED = ["Q5_K_M/q5_1", "Q4_K_M/q5_0", "Q4_1/q5_0", "IQ4_NL/q5_0", "IQ4_NL/iq4_nl", "IQ4_XS/iq4_nl", "Q3_K_S/iq4_nl"]
LLAMA_WIDE = ["Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q4_K_M", "Q4_K_S", "IQ4_XS", "Q3_K_M", "IQ3_M", "IQ3_S", "IQ3_XXS", "Q2_K", "IQ2_M",
              "IQ2_S", "IQ2_XS", "IQ2_XXS", "Q5_K_S/q5_K", "Q4_K_S/q4_K", "IQ4_XS/q4_K", "Q3_K_M/q4_K", "IQ3_S/q4_K", "IQ3_XXS/q4_K",
              "Q2_K/q4_K", "IQ2_M/q4_K", "IQ2_XS/q4_K", "IQ2_XXS/q4_K", "IQ3_S/q3_K", "IQ3_XXS/q3_K", "IQ2_M/q3_K", "IQ2_XXS/q3_K"]
# Mixes that people make by hand: TYPE/EMBEDDING/V/O, of TYPE but for the embedding, v, which takes little room and loses most, and o.
LLAMA_WIDE += ["IQ2_M/q4_K/q6_K", "IQ3_XXS/q4_K/q6_K", "IQ3_S/q4_K/q6_K", "IQ4_XS/q4_K/q6_K", "IQ4_XS/q5_K/q6_K", "Q4_K_S/q5_K/q6_K",
               "Q4_K_S/q6_K/q8_0", "Q5_K_S/q5_K/q8_0", "Q5_K_S/q6_K/q8_0"]
LLAMA_WIDE += ["IQ2_S/iq3_xxs/iq3_xxs/iq3_xxs", "IQ3_XXS/iq4_xs/iq4_xs/iq4_xs", "IQ4_XS/q5_K/q5_K/q5_K"]
# The same where 256 does not divide the columns of all matrices: llama.cpp gives the others a type that fits.
LLAMA_MIX = ["IQ2_S/iq4_nl/iq4_nl/iq3_xxs", "IQ3_XXS/iq4_nl/iq4_nl/iq4_xs", "IQ4_XS/q5_1/q5_1/q5_K"]
SIZES = ["2.5", "3", "3.5", "4", "4.5", "5", "5.5", "6"]
TORCH = [(4, 32), (4, 64), (3, 64)]
DQ = [(how, bits) for how, widths in
      (("search", ("8/32", "6/32", "5/32", "5/64", "4/32", "4/64", "3/64", "3/128", "2/64")), ("asym", ("5/32", "4/32", "4/64", "3/64")),
       ("align", ("4/32", "4/64", "3/64", "5/32", "4/32/asym", "4/128", "2/64")), ("gptq", ("4/32", "4/64", "3/64", "2/64")),
       ("trellis", ("5/64", "4/64", "3/64", "3/128", "2/64")),
       ("align", ("4/64/trellis", "4/128/trellis", "3/64/trellis", "3/128/trellis", "2/64/trellis")))
      for bits in widths]
PEER_PPL = ("llama-Q8_0", "llama-IQ4_NL-imatrix")  # also scored by llama-perplexity, as is the source
PROJECTION = re.compile(r"_proj\.|\.attn_(q|k|v|output)\.|\.ffn_(gate|up|down)\.")
FIELDS = ["program", "type", "calibrated", "projections", "embedding", "bits_all", "bits_projections", "ppl", "ppl_stderr", "kld_nats",
          "kld_nats_stderr", "cpu_seconds", "llama_ppl", "dq_beside", "dq_bits", "dq_bits_over", "dq_less_it", "low", "high", "dq_is"]


def run(*command, **more):
    more.setdefault("stdout", subprocess.DEVNULL)
    more.setdefault("stderr", subprocess.PIPE)
    done = subprocess.run([str(x) for x in command], text=True, **more)
    if done.returncode:
        sys.exit(f"{' '.join(str(x) for x in command)}\n{(done.stderr or '')[-2000:]}\nfailed with {done.returncode}")
    return done


class File:
    """A candidate: its program, its type, whether a text went into it, where it lies and what makes it."""

    def __init__(self, a, program, kind, calibrated, suffix, make):
        self.program, self.type, self.calibrated, self.make = program, kind, calibrated, make
        self.name = "-".join([program, kind.replace("/", "-"), *["imatrix"] * (program.startswith("llama") and calibrated)])
        self.path = os.path.join(a.work, self.name + suffix)
        self.scored = f"{self.path}.{a.text}.cut" if program == "llama-wide" else self.path
        self.facts = os.path.join(a.work, self.name + ".json")
        self.score = os.path.join(a.work, f"{self.name}.{a.windows}.{a.text}.score")


def seconds_of(make, path):
    before = os.times()
    make(path)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def read_json(path):
    with open(path) as f:
        return json.load(f)


def write_json(path, what):
    with open(path + ".new", "w") as f:
        json.dump(what, f)
    os.replace(path + ".new", path)


# ---- what is made ----

def cut_calibration(a):
    """The ids that dq takes from CALIB.txt: lines of a file; and a text of those pieces and one more for llama-imatrix."""
    def write(path):
        ids = run(a.dq, "tokenize", a.model, "--text", a.calib, stdout=subprocess.PIPE).stdout.split()
        n = -(-len(ids) // CTX)
        wanted = min(n, int(n * PIECES * CTX / len(ids)) + 1)
        pieces = [ids[i * n // wanted * CTX:][:CTX] for i in range(wanted)]
        if len(pieces) < PIECES + 1:
            sys.exit(f"{a.calib}: has {len(ids)} tokens (expected more than {PIECES * CTX})")
        with open(path, "w") as f:
            f.writelines(" ".join(p) + "\n" for p in pieces)

    def write_text(path):
        with open(a.ids) as f, open(path + ".ids", "w") as one:
            one.write(f.read().replace("\n", " "))
        with open(path, "w") as f:
            run(a.dq, "tokenize", a.model, "--text", path + ".ids", "--decode", stdout=f)

    a.ids = os.path.join(a.work, "calib.ids")
    made(a.ids, write)
    a.pieces = made(os.path.join(a.work, "calib.txt"), write_text)
    with open(a.ids) as f:
        used = f.readlines()[:PIECES]
    a.used = made(os.path.join(a.work, "calib.used"), lambda path: open(path, "w").writelines(used))


def llama(a, word, imatrix, wide=False):
    kind, *embed = word.split("/")
    mix = [("--token-embedding-type", e) for e in embed[:1]]
    mix += [("--tensor-type", f"{name}={to}") for name, to in zip(("attn_v", "attn_output"), embed[1:])]

    def make(path):
        with_it = ["--imatrix", a.wide_imatrix if wide else a.imatrix] if imatrix else []
        run(os.path.join(a.llama_bin, "llama-quantize"), *with_it, *(x for pair in mix for x in pair),
            a.wide_whole if wide else a.whole, path, kind, a.threads)
    return File(a, "llama-wide" if wide else "llama", word, imatrix, ".gguf", make)


def by_torch(a, program, python, bits, group):
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_weights.py")
    return File(a, program, f"{bits}/{group}", True, "",
                lambda path: run(python, script, program, a.model, a.used, path, bits, group, stderr=subprocess.STDOUT,
                                 stdout=open(path + ".log", "w")))


def by_dq(a, how, word, embed=8):
    bits, group, *mode = word.split("/")
    calibrated = how in ("gptq", "align")
    text = ["--calib", a.calib, "--calib-tokens", PIECES * CTX, "--calib-ctx", CTX, "--method", how] if calibrated else []
    scale = mode[0] if mode else how if how in ("asym", "trellis") else "search"
    return File(a, "dq", f"{how}/{word}" + f"/embed{embed}" * (embed != 8), calibrated, ".h5",
                lambda path: run(a.dq, "quantize", a.model, "-o", path, "-q", "--force", "--bits", bits, "--group", group, "--scale",
                                 scale, "--embed-bits", embed, *text))


def by_size(a, size):
    return File(a, "dq", f"size/{size}", True, ".h5",
                lambda path: run(a.dq, "quantize", a.model, "-o", path, "-q", "--force", "--size", size, "--calib", a.calib,
                                 "--calib-tokens", PIECES * CTX, "--calib-ctx", CTX))


def candidates(a):
    if a.llama_bin:
        yield from (llama(a, kind, imatrix) for imatrix in (False, True) for kind in LLAMA[imatrix:])  # Q8_0 asks no matrix
        yield from (llama(a, word, True) for word in LLAMA_EMBED + LLAMA_MIX)
        yield from (llama(a, word, word != "Q8_0", wide=True) for word in LLAMA_WIDE)
    yield from (by_size(a, size) for size in a.sizes)
    for program in ("llmcompressor", "gptqmodel", "autoround"):
        if getattr(a, program):
            yield from (by_torch(a, program, getattr(a, program), *form) for form in TORCH)
    yield from (by_dq(a, *form) for form in DQ)
    yield by_dq(a, "align", "4/64", embed=6)


def prepare(a, gguf, files):
    def matrix(whole, path):
        spent = path + ".json"
        if not os.path.exists(spent):
            write_json(spent, seconds_of(lambda new: run(os.path.join(a.llama_bin, "llama-imatrix"), "-m", whole, "-f", a.pieces, "-o", new,
                                                         "-c", CTX, "--chunks", PIECES, "--no-ppl", "-t", a.threads), path))
        return read_json(spent)

    a.whole = a.model
    if not is_gguf(a.model):
        a.whole = made(os.path.join(a.work, "f32.gguf"), lambda path: write_gguf(gguf, a.model, path, a.like))
    a.imatrix, a.wide_imatrix = (os.path.join(a.work, name) for name in ("imatrix.gguf", "imatrix-wide.gguf"))
    a.imatrix_seconds = {"llama": matrix(a.whole, a.imatrix)}
    if any(f.program == "llama-wide" for f in files):
        a.wide = Wide(a.model)
        a.wide_whole = made(os.path.join(a.work, "f32-wide.gguf"), lambda path: write_gguf(gguf, a.model, path, a.like, a.wide))
        a.imatrix_seconds["llama-wide"] = matrix(a.wide_whole, a.wide_imatrix)


# ---- what a file holds ----

def parts_of(a, gguf, file):
    """name, kind of storage, bytes of every tensor; of a wide model the real part of them."""
    if file.path.endswith(".gguf"):
        for t in gguf.GGUFReader(file.path).tensors:
            share = a.wide.real_share(checkpoint_name(t.name)) if file.program == "llama-wide" else 1
            yield t.name, t.tensor_type.name, int(t.n_bytes) * share
    else:
        for name, dtype, _, data in tensors_of(file.path):
            yield name, dtype, len(data)


def facts_of(a, gguf, file):
    """Bits per weight over all parameters and over the projections, and the types of both."""
    if file.program == "dq":
        told = json.loads(run(a.dq, "info", file.path, "--json", stdout=subprocess.PIPE).stdout)["results"][0]
        roles = [r for r in told["by_role"] if r["role"] in ("q", "k", "v", "o", "gate", "up", "down")]
        embed = next(r for r in told["by_role"] if r["role"] == "embedding")
        return {"bits_all": 8 * told["weight_bytes"] / a.params,
                "bits_projections": 8 * sum(r["bytes"] for r in roles) / a.projections,
                "projections": "by role" if file.type.startswith("size") else re.sub("^[a-z]*/|/embed.*", "", file.type),
                "embedding": f"{8 * embed['bytes'] / embed['params']:.2f} bits"}
    parts = list(parts_of(a, gguf, file))
    inner = [p for p in parts if PROJECTION.search(p[0])]
    types = collections.Counter(kind for _, kind, _ in inner)
    return {"bits_all": 8 * sum(p[2] for p in parts) / a.params, "bits_projections": 8 * sum(p[2] for p in inner) / a.projections,
            "projections": " ".join(f"{n} {t}" for t, n in types.most_common()) if file.path.endswith(".gguf") else file.type,
            "embedding": next(kind for name, kind, _ in parts if "embd" in name or "embed" in name)}


def remove(path):
    """What an interrupted run left: a file that no seconds are known of, or a part of one."""
    for left in (path, path + ".new"):
        if os.path.isdir(left):
            shutil.rmtree(left)
        elif os.path.exists(left):
            os.remove(left)


def make_all(a, gguf, files):
    for file in files:
        if not (os.path.exists(file.path) and os.path.exists(file.facts)):
            remove(file.path)
            seconds = seconds_of(lambda path: made(path, file.make), file.path)
            facts = {**facts_of(a, gguf, file), "cpu_seconds": seconds}
            write_json(file.facts, facts)
            print(f"{file.name}: {facts['bits_projections']:.3f} bits over projections, {seconds:.0f} s", flush=True)


# ---- scores ----

def score(a, gguf, files):
    """One run of dq eval over several files and the source, which an interrupted one goes on with."""
    stem = os.path.join(a.work, f"eval-{files[0].name}")
    for file in files:
        if file.scored != file.path:
            remove(file.scored)
            made(file.scored, lambda path: cut(gguf, a.wide, file.path, path))
    run(a.dq, "eval", a.model, *(f.scored for f in files), "--ref", a.model, "--text", a.score, "--ctx", CTX, "--limit", a.windows, "-q",
        "--resume", "--json", "-o", stem + ".json", "--dump-items", stem + ".jsonl", "--force", cwd=a.work)
    windows = collections.defaultdict(list)
    with open(stem + ".jsonl") as f:
        for item in map(json.loads, f):
            windows[item["model"]].append((item["document"], item["scored"], item["kld_nats"]))
    for file, r in zip([None, *files], read_json(stem + ".json")["results"]):
        path, name = (file.score, os.path.basename(file.scored)) if file else (a.source_score, os.path.basename(a.model))
        assert r["model"] == name and len(windows[name]) == a.windows, (r["model"], name, len(windows[name]))
        if not file and os.path.exists(path):
            continue
        m = r["metrics"]
        found = {"ppl": m["ppl"]["value"], "ppl_stderr": m["ppl"]["stderr"], "kld_nats": m["kld_nats"]["value"] or 0,
                 "kld_nats_stderr": m["kld_nats"]["stderr"] or 0, "windows": windows[name]}
        write_json(path, found)
        if file and file.scored != file.path:
            shutil.rmtree(file.scored)


def ask_llama(a, files):
    """What llama-perplexity says of the source, of the wide one and of two files, where these have been scored."""
    text = re.sub(r"\.jsonl$", ".txt", a.score)
    wide = [("source-wide", a.wide_whole)] if "llama-wide" in a.imatrix_seconds else []
    for name, path in [("source", a.whole), *wide, *((f.name, f.path) for f in files if f.name in PEER_PPL)]:
        kept = peer_score(a, name)
        if not os.path.exists(kept):
            out = run(os.path.join(a.llama_bin, "llama-perplexity"), "-m", path, "-f", text, "-c", CTX, "--chunks", a.windows, "-t",
                      a.threads, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
            write_json(kept, {"llama_ppl": float(re.search(r"Final estimate: PPL = ([\d.]+)", out).group(1))})


def peer_score(a, name):
    return os.path.join(a.work, f"{name}.{a.windows}.{a.text}.llama")


def interval(x, y):
    """Mean of x less y over scored tokens, and half of its 95 % interval: clusters are documents, or windows where there is one
    document (Student's t by its expansion)."""
    assert [(d, n) for d, n, _ in x] == [(d, n) for d, n, _ in y]
    one = len({document for document, _, _ in x}) == 1
    sums, tokens = collections.Counter(), collections.Counter()
    for i, ((document, n, a), (_, _, b)) in enumerate(zip(x, y)):
        key = i if one else document
        sums[key] += n * (a - b)
        tokens[key] += n
    mean = sum(sums.values()) / sum(tokens.values())
    v, z = len(sums) - 1, 1.959964
    t = z + (z ** 3 + z) / (4 * v) + (5 * z ** 5 + 16 * z ** 3 + 3 * z) / (96 * v ** 2)
    off = sum((sums[k] - mean * tokens[k]) ** 2 for k in sums) * (v + 1) / v
    return mean, t * off ** .5 / sum(tokens.values())


def integers_of(file):
    """What a trellis stands beside: integers of the same method, width and group; None: file has no trellis."""
    if "trellis" not in file.type:
        return None
    return re.sub("^trellis/", "search/", file.type).removesuffix("/trellis")


def beside(file, row, rows):
    """The row of dq that a peer's row stands beside."""
    sizes = [(f, r) for f, r in rows if f.type.startswith("size") and r["bits_all"] <= row["bits_all"]]
    if file.program.startswith("llama") and file.calibrated and sizes:
        return max(sizes, key=lambda x: x[1]["bits_all"])
    if file.program.startswith("llama") and file.calibrated and any(f.type.startswith("size") for f, _ in rows):
        return None, None
    fit = [(f, r) for f, r in rows if f.program == "dq" and not re.search("embed|size", f.type)
           and f.calibrated == file.calibrated and -.4 < r["bits_projections"] - row["bits_projections"] < .02]
    return max(fit, key=lambda x: (round(x[1]["bits_projections"], 2), x[0].type.startswith("align")), default=(None, None))


def write_csv(a, files):
    def of(*paths):
        return {k: v for path in paths if os.path.exists(path) for k, v in read_json(path).items()}

    rows = [(f, of(f.facts, f.score, peer_score(a, f.name))) for f in files if os.path.exists(f.score)]
    table = []
    if os.path.exists(a.source_score):
        table.append({"program": "source", "type": "F32", "bits_all": 32, "bits_projections": 32,
                      **of(a.source_score, peer_score(a, "source"))})
    for file, r in rows:
        row = {"program": file.program, "type": file.type, "calibrated": "yes" if file.calibrated else "no", **r}
        if file.program.startswith("llama") and file.calibrated:
            row["cpu_seconds"] += a.imatrix_seconds.get(file.program, 0)
        if file.program == "dq":
            own, its = next(((f, x) for f, x in rows if f.program == "dq" and f.type == integers_of(file)), (None, None))
        else:
            own, its = beside(file, r, rows)
        if own:
            mean, half = interval(its["windows"], r["windows"]) if file.program != "dq" else interval(r["windows"], its["windows"])
            over = "all" if own.type.startswith("size") else "projections"
            row.update(dq_beside=own.type, dq_bits=its[f"bits_{over}"], dq_bits_over=over,
                       dq_less_it=mean, low=mean - half, high=mean + half,
                       dq_is="better" if mean + half < 0 else "worse" if mean - half > 0 else "inconclusive")
        table.append(row)
    with open(a.output + ".new", "w", newline="") as f:
        out = csv.DictWriter(f, FIELDS, extrasaction="ignore", lineterminator="\n")
        out.writeheader()
        out.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in table)
    os.replace(a.output + ".new", a.output)


def options():
    p = argparse.ArgumentParser(description="weights of a real model: dq beside its peers, all scored by dq eval")
    for name in ("dq", "model", "calib", "score"):
        p.add_argument(name)
    p.add_argument("--like", help="GGUF file of the same model (needed with --llama-bin)")
    p.add_argument("--llama-bin", help="folder of llama-quantize, llama-imatrix and llama-perplexity")
    p.add_argument("--llmcompressor", metavar="PYTHON")
    p.add_argument("--gptqmodel", metavar="PYTHON")
    p.add_argument("--autoround", metavar="PYTHON")
    p.add_argument("--windows", type=int, default=20)
    p.add_argument("--sizes", type=lambda s: s.split(","), default=SIZES, help="of dq, bits per weight")
    p.add_argument("--batch", type=int, default=12, help="files of one run of dq eval (default 12)")
    p.add_argument("--threads", type=int, default=os.cpu_count(), help="of llama.cpp (default: all processors)")
    p.add_argument("--only", type=re.compile, default=re.compile(""), help="names of files, as --list prints them")
    p.add_argument("--list", action="store_true")
    p.add_argument("--work", default="peers-weights")
    p.add_argument("-o", "--output", required=True)
    return p.parse_args()


def main():
    a = options()
    for name in ("dq", "model", "calib", "score", "work"):
        setattr(a, name, os.path.abspath(getattr(a, name)))
    with open(a.score, "rb") as f:
        a.text = hashlib.sha256(f.read()).hexdigest()[:8]
    with open(a.calib, "rb") as f:
        key = hashlib.sha256(fingerprint(a.model).encode() + hashlib.sha256(f.read()).digest())
    a.work = os.path.join(a.work, key.hexdigest()[:12])
    os.makedirs(a.work, exist_ok=True)
    every = list(candidates(a))
    files = [f for f in every if a.only.search(f.name)]
    if a.list:
        print("\n".join(f.name for f in files))
        return
    gguf = load_gguf(None)
    sizes = [(name, len(data) // (4 if dtype == "F32" else 2)) for name, dtype, _, data in tensors_of(a.model)] \
        if not is_gguf(a.model) else [(t.name, int(t.n_elements)) for t in gguf.GGUFReader(a.model).tensors]
    a.params, a.projections = sum(n for _, n in sizes), sum(n for name, n in sizes if PROJECTION.search(name))
    a.source_score = os.path.join(a.work, f"source.{a.windows}.{a.text}.score")
    cut_calibration(a)
    a.whole = None
    if a.llama_bin:
        prepare(a, gguf, files)
    for begin in range(0, len(files), a.batch):
        part = files[begin:begin + a.batch]
        make_all(a, gguf, part)
        left = [f for f in part if not os.path.exists(f.score)]
        if left:
            score(a, gguf, left)
            write_csv(a, every)
    write_csv(a, every)
    if a.llama_bin:
        ask_llama(a, files)
        write_csv(a, every)


if __name__ == "__main__":
    main()
