"""Prefill and decoding: dq against llama.cpp on the same weights, one run, both programs in turns.

    python bench.py DQ MODEL_DIR [--work DIR] [--llama-bin DIR] [--formats dense,8/32,4/32] [--math int8,f32]
                    [--generate 128] [--context 128] [--tokens 512,2048] [--threads 1] [--rounds 3] [-o OUT.json]

MODEL_DIR is a Llama in safetensors (make_random.py DIR --family llama). The work folder gets the same weights as GGUF,
with as many bits as the containers of dq: a format BITS/GROUP[/SCALE] is `dq quantize --bits BITS --group GROUP` with the
embedding alike, beside the type of llama.cpp that has that many bits, --pure (all matrices alike); `dense` is the checkpoint
itself. What is in the work folder already, made of the same files, is not made again.

Without --llama-bin, llama.cpp is built there from the package that this names: pip fetches it, cmake builds it.
Needs numpy and gguf (pip install gguf; or, with a build of its own, the copy that the package holds), cmake and a C++ compiler.

Both programs compute the logits of the last row of a prompt only, and those of every token that is decoded, one at a time
after --context ids. llama-bench keeps keys and values in f16; dq in f32, or with --math int8 in 8 bits. llama-bench tells
times on the wall. With one thread it is timed by what it got of a processor between the line that it prints before a run
and the next (--progress, /proc/PID/task/*/schedstat), as dq bench counts processor time; with more threads both are times
on the wall, and the machine must be quiet. Prints one line a work, as dq bench compare OUT.json does.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tarfile
import time
from math import comb

from llama_gguf import config_of, fingerprint, load_gguf, made, write_gguf

PACKAGE = "llama-cpp-python==0.3.36"
# bits of dq's codes, and whether they have zero points: the type of llama.cpp
TYPES = {(8, False): "Q8_0", (6, False): "Q6_K", (5, False): "Q5_0", (5, True): "Q5_1", (4, False): "Q4_0",
         (4, True): "Q4_1", (3, False): "Q3_K", (2, True): "Q2_K"}


def run(*command, **more):
    return subprocess.run([str(x) for x in command], check=True, **more)


def build_llama(work):
    """The folder of llama-bench and llama-quantize, and the sources they come from."""
    source = os.path.join(work, PACKAGE.replace("==", "-").replace("llama-cpp-python", "llama_cpp_python"))
    if not os.path.isdir(source):
        run(sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", PACKAGE.partition("=")[0], "-d", work, PACKAGE)
        with tarfile.open(source + ".tar.gz") as archive:
            archive.extractall(work, filter="data")
    source = os.path.join(source, "vendor", "llama.cpp")
    build = os.path.join(work, "llama-build")
    if not os.path.exists(os.path.join(build, "bin", "llama-quantize")):
        run("cmake", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_CURL=OFF",
            "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_BUILD_MTMD=OFF")
        run("cmake", "--build", build, "--parallel", os.cpu_count() or 1, "--target", "llama-bench", "llama-quantize")
    return os.path.join(build, "bin"), source


# ---- the same weights for both programs ----

def gguf_bits(gguf, path):
    """Bits per number of all matrices."""
    matrices = [t for t in gguf.GGUFReader(path).tensors if len(t.shape) > 1]
    return 8 * sum(int(t.n_bytes) for t in matrices) / sum(int(t.n_elements) for t in matrices)


class Format:
    """One storage of the weights: files and names for both programs."""

    def __init__(self, word, a, gguf, stem):
        self.math = a.math
        self.whole = made(f"{stem}.gguf", lambda path: write_gguf(gguf, a.model, path))
        if word == "dense":
            self.dq, self.peer, self.type, self.math = a.model, self.whole, "as stored", ["f32"]
        else:
            bits, group, *scale = word.split("/")
            scale = scale[0] if scale else "absmax"
            key = (int(bits), scale == "asym")
            if key not in TYPES:
                sys.exit(f"bench.py: format {word}: llama.cpp has no type for it (expected one of "
                         f"{', '.join(f'{b}/GROUP' + '/asym' * z for b, z in TYPES)})")
            self.type = TYPES[key]
            head = [] if config_of(a.model).get("tie_word_embeddings") else ["--head-bits", bits]
            name = f"{stem}-W{word.replace('/', '-')}.h5"
            self.dq = made(name, lambda path: run(
                a.dq, "quantize", a.model, "-o", path, "--bits", bits, "--embed-bits", bits, "--group", group, "--scale",
                scale, "--scale-dtype", "f16", "-q", *head, stdout=subprocess.DEVNULL))
            self.peer = made(f"{stem}-{self.type}.gguf", lambda path: run(
                os.path.join(a.llama_bin, "llama-quantize"), "--pure", self.whole, path, self.type,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        self.peer_bits = gguf_bits(gguf, self.peer)


# ---- one measurement ----

def seconds_so_far(a, pid):
    """Of a process with one thread its processor time, else time on the clock: some of several threads may be gone."""
    if a.threads > 1:
        return time.monotonic()
    nanoseconds = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat") as f:
            nanoseconds += int(f.read().split()[0])
    return nanoseconds * 1e-9


def ask_llama(a, path, options):
    """Tokens per second by processor time (one thread) or on the wall; the latter; what llama-bench says of itself."""
    command = [os.path.join(a.llama_bin, "llama-bench"), "-m", path, "-t", a.threads, "-r", a.runs, "-o", "json", "--progress",
               *options]
    process = subprocess.Popen([str(x) for x in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    document, began, seconds = [], None, []
    for line in process.stdout:
        if began is not None:
            seconds.append(seconds_so_far(a, process.pid) - began)
        is_run = line.startswith("llama-bench: ") and re.search(r": (prompt|generation) run \d+/\d+$", line.strip())
        began = seconds_so_far(a, process.pid) if is_run else None
        if line.startswith("[") or document:
            document.append(line)
    if process.wait() != 0:
        sys.exit(f"bench.py: {' '.join(str(x) for x in command)} failed")
    told = json.loads("".join(document))[-1]
    if len(seconds) != a.runs:
        sys.exit(f"bench.py: llama-bench told of {len(seconds)} runs (expected {a.runs})")
    tokens, wall = told["n_prompt"] + told["n_gen"], statistics.median(told["samples_ns"]) * 1e-9
    return tokens / (statistics.median(seconds) if a.threads == 1 else wall), tokens / wall, told


def ask_dq(a, path, math, options):
    out = run(a.dq, "bench", options[0], path, "--math", math, "--threads", a.threads, "--runs", a.runs, "--json", "-q", *options[1:],
              stdout=subprocess.PIPE).stdout
    doc = json.loads(out)
    return doc["results"][0], doc


def works_of(a):
    """What is measured, as the members of a result, the options of dq and those of llama-bench."""
    if a.generate:
        yield ({"what": "generate", "context": a.context, "batch": 1},
               ["generate", "--new-tokens", a.generate, "--context", a.context], ["-p", 0, "-n", a.generate, "-d", a.context])
    for n in a.tokens:
        yield {"what": "prefill", "tokens": n}, ["prefill", "--tokens", n], ["-p", n, "-n", 0]


def median_interval(x):
    """Bounds that hold the median in at least 95 of 100 series, by ranks alone (binomial); None of fewer than six rounds."""
    n, outside, k = len(x), 0.0, 0
    while outside + comb(n, k) / 2 ** n <= 0.025:
        outside += comb(n, k) / 2 ** n
        k += 1
    return (sorted(x)[k - 1], sorted(x)[n - k]) if k else None


def measure(a, form, work, dq_options, peer_options, about):
    """Rounds: llama.cpp, then dq in each arithmetic, the other way round in every second one."""
    rounds = {math: [] for math in form.math}
    for i in range(a.rounds):
        got = {}
        for who in ["peer", *form.math][::-1 if i % 2 else 1]:
            if who == "peer":
                rate, on_wall, told = ask_llama(a, form.peer, peer_options)
                about.update({k: told[k] for k in ("build_commit", "build_number", "cpu_info") if k in told})
            else:
                got[who], doc = ask_dq(a, form.dq, who, dq_options)
                about["dq_version"], about["device"] = doc["dq_version"], doc["settings"]["device"]
        for math, r in got.items():
            rounds[math].append({"peer_tokens_per_second": rate, "peer_tokens_per_second_wall": on_wall,
                                 "dq_tokens_per_second": r["tokens_per_second"],
                                 **{k: r[k] for k in ("share_of_read", "share_of_matmul", "share_of_peak") if k in r}})
    for math, r in got.items():
        column = lambda key: [x[key] for x in rounds[math] if x.get(key) is not None]
        peer, own = (statistics.median(column(f"{who}_tokens_per_second")) for who in ("peer", "dq"))
        ratios = [x["dq_tokens_per_second"] / x["peer_tokens_per_second"] for x in rounds[math]]
        form.bits = r.get("bits_per_weight", getattr(form, "bits", None))
        yield {"model": r["model"], **work, "weights": r["weights"], "math": math, "threads": a.threads,
               "peer": "llama.cpp", "peer_weights": form.type, "peer_bits_per_weight": form.peer_bits,
               "dq_bits_per_weight": form.bits, "peer_tokens_per_second": peer, "dq_tokens_per_second": own,
               "ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios),
               **dict(zip(("ratio_low", "ratio_high"), median_interval(ratios) or ())),
               **{k: statistics.median(column(k)) for k in ("share_of_read", "share_of_matmul", "share_of_peak")
                  if column(k)},
               "rounds": rounds[math]}


def write_document(a, source, about, results):
    """Everything so far: hours of rounds shall not be lost to what fails after them."""
    clock = "processor; of the peer: between its lines of progress, by schedstat"
    doc = {"schema": "dq-peers/1", "command": "tests/peers/bench.py", "package": PACKAGE if source else None, **about,
           "settings": {"threads": a.threads, "rounds": a.rounds, "runs": a.runs, "generate": a.generate,
                        "clock": clock if a.threads == 1 else "wall", "peer_kv": "f16"},
           "results": results}
    if a.output:
        with open(a.output, "w") as f:
            json.dump(doc, f, indent=2)
            f.write("\n")


def numbers(text):
    return [int(x) for x in text.split(",")] if text else []


def options():
    p = argparse.ArgumentParser(description="dq and llama.cpp in turns, on the same weights")
    p.add_argument("dq")
    p.add_argument("model")
    p.add_argument("--work", default="peers-work", help="folder of what is made (default peers-work)")
    p.add_argument("--llama-bin", help="folder of llama-bench and llama-quantize (default: built in the work folder)")
    p.add_argument("--formats", default="dense,8/32,6/32,4/32,4/32/asym,3/32", type=lambda x: x.split(","))
    p.add_argument("--math", default="int8,f32", type=lambda x: x.split(","))
    p.add_argument("--generate", type=int, default=128, help="tokens to decode, 0 for none (default 128)")
    p.add_argument("--context", type=int, default=128)
    p.add_argument("--tokens", type=numbers, default=[512, 2048], help="prompt lengths, '' for none (default 512,2048)")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--runs", type=int, default=1, help="runs of a process, after one that warms up (default 1)")
    p.add_argument("--rounds", type=int, default=7, help="default 7; of fewer than six the ratio has no interval")
    p.add_argument("-o", "--output")
    return p.parse_args()


def main():
    a = options()
    os.environ["OMP_NUM_THREADS"] = str(a.threads)
    os.makedirs(a.work, exist_ok=True)
    source = None
    if not a.llama_bin:
        a.llama_bin, source = build_llama(a.work)
    gguf = load_gguf(source)
    stem = os.path.join(a.work, fingerprint(a.model), os.path.basename(os.path.normpath(a.model)))
    os.makedirs(os.path.dirname(stem), exist_ok=True)
    about, results = {}, []
    for word in a.formats:
        form = Format(word, a, gguf, stem)
        for work in works_of(a):
            for r in measure(a, form, *work, about):
                results.append(r)
                where = " ".join(str(r[k]) for k in ("what", "tokens", "context") if k in r)
                bits = f"{r['dq_bits_per_weight']:.2f}" if r["dq_bits_per_weight"] else "-"
                within = f"; 95 %: {r['ratio_low']:.2f} to {r['ratio_high']:.2f}" if "ratio_low" in r else ""
                print(f"{where}, {r['weights']} ({bits} bits), {r['math']}: {r['dq_tokens_per_second']:.4g}; "
                      f"llama.cpp {r['peer_weights']} ({r['peer_bits_per_weight']:.2f} bits): "
                      f"{r['peer_tokens_per_second']:.4g}; ratio {r['ratio']:.2f}, "
                      f"{r['ratio_min']:.2f} to {r['ratio_max']:.2f}{within}", flush=True)
            write_document(a, source, about, results)


if __name__ == "__main__":
    main()
