#!/usr/bin/env python3
"""The checks and benchmarks that need a GPU, in three stages, most telling parts first. Together they take 12 minutes at most,
so that a quarter of an hour holds them, with what it takes to copy and unpack the programs.

  stages.py 1 [OUT]   240 s. Probes of every device function and wrapper; each kernel and operation against the CPU; small
                      cases under compute-sanitizer; long contexts; the embedded pair scored in f32, bf16 and int8, its
                      numbers compared with the CPU's; the suites of the backend
  stages.py 2 [OUT]   300 s. What products, copies and exponentials reach alone, then every variant of the attention kernel,
                      first right, then timed: the document of part `sweep` names the winner. Then prefill and decoding up to
                      64K tokens and products, with the time of each kernel beside that of the operation
  stages.py 3 [OUT]   180 s. Peers, for which python3 needs torch; short items on a model with the shape of DiffLlama-1B and
                      invented weights (2.8 GB in TMPDIR for a while); what failed before once more under compute-sanitizer;
                      races in shared memory (races between blocks are what tests/simt looks for)

Every part is a process with a time limit; a part that hangs or crashes costs itself only. OUT (default: $OUT, else
results/bench/gpu) gets stage-N.json, written anew after every part, and stage-N.tgz with all that parts printed.
Exit status: 0 all parts are well, 1 some are not, 2 usage, 6 OUT cannot be written, 130/143 interrupted.

Environment:
  DQ_BUILD    folder of the build, or what the archive of `--target carry` unpacks to (default build-gpu)
  DQ_DEVICE   cuda (default) or cuda:N. To rehearse: `simulated` takes the programs of tests/simt, `cpu` compares
              the CPU with itself; both take small sizes, and what needs a GPU may be skipped
  DQ_BUDGET   seconds that a stage may take (default: as above)
  DQ_LIMIT    seconds that no part may exceed, whatever its own limit is
  DQ_PARTS    regular expression: only parts whose names it matches
  DQ_AGAIN    names of parts of stages 1 and 2, with spaces between, that stage 3 runs under compute-sanitizer (default: what
              was not well by the documents that lie in OUT)
"""
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TAIL = 4096  # bytes of a failing part's output that go into the document
GRACE = 5  # seconds between asking a part to end and killing it
PAIR = ("llama", "diffllama")


class Part:
    """command: list of strings; or check: a function of the documents so far that returns what is wrong and how large
    the largest difference was (None: nothing was measured). needs: a part without which this one makes no sense."""

    def __init__(self, name, command=None, limit=60, env=None, check=None, needs=None):
        self.name, self.command, self.limit, self.env, self.check, self.needs = name, command, limit, env or {}, check, needs


class Machine:
    """Where programs are, and what they are told; names of parts to be run again."""

    def __init__(self, build, device, again=()):
        self.build, self.device, self.again = build, device, again
        self.real = device.startswith("cuda")
        self.simulated = device == "simulated"
        self.backend = "cuda" if self.simulated else device  # as dq names it
        self.small = [] if self.real else ["--small"]
        self.patience = 5 if self.simulated else 1  # limits are for GPUs

    def dq(self):
        return str(self.build / ("tests/simt/simt_dq" if self.simulated else "dq"))

    def gpu(self, name):
        if not self.simulated:
            return str(self.build / "tests/gpu" / f"gpu_{name}")
        other = {"probes": "run_probes", "kernels": "test_attend", "long": "simt_long", "bench": "simt_bench", "sweep": "simt_sweep",
                 "products": "test_simt_products", "attend_sample": "test_simt_attend"}
        return str(self.build / "tests/simt" / other.get(name, f"test_cuda_{name}"))

    def suite(self, name):
        folder, prefix = ("tests/simt", "test_simt_") if self.simulated else ("tests", "test_")
        return str(self.build / folder / (prefix + name))


# ---------------------------------------------------------------------------------------- comparisons

def rows_of(document):
    """{what a row is: its numbers} of a dq-eval/1 document"""
    rows = {}
    for r in document["results"]:
        m = r["metrics"]
        key = (r["task"], r["logit_bits"], r["logit_granularity"])
        rows[key] = {"n": r["n"], "math": r["math"], **{k: m[k]["value"] for k in ("acc", "nll_nats") if k in m}}
    return rows


def likelihoods(path):
    """{item and choice: log-probability} of --dump-items"""
    with open(path) as lines:
        return {(d["item"], d["choice"]): d["ll"] for d in map(json.loads, lines)}


def compare_items(work, name, other, tolerance):
    """What is wrong with two parts' log-probabilities of choices, and their largest difference, in nats."""
    try:
        a, b = (likelihoods(work / f"{n}.items") for n in (name, other))
    except (OSError, ValueError, KeyError) as e:
        return [f"the items of {name} and {other} cannot be read: {e}"], None
    if a.keys() != b.keys() or not a:
        return [f"{len(a)} and {len(b)} choices, not the same"], None
    worst = max(abs(a[k] - b[k]) for k in a)
    off = [f"item {k[0]}, choice {k[1]}: {a[k]} and {b[k]}" for k in a if not abs(a[k] - b[k]) <= tolerance]
    return off, worst


def usable(documents):
    """What `dq doctor` lacks on a machine that has a GPU."""
    found = (documents.get("doctor") or {}).get("results") or [{}]
    wrong = [f"{d.get('name')}: {d.get('about')}" for d in found[0].get("devices", [{}]) if not d.get("usable")]
    blas = found[0].get("cublas", {})
    return wrong + ([] if blas.get("usable") else [f"cublas: {blas.get('about')}"]), None


def compare(documents, name, other, tolerance, different):
    """What is wrong with two parts' results, and the largest difference of NLLs: at most `tolerance` nats. Accuracies
    are the same, but of different arithmetics one item may change sides."""
    missing = [n for n in (name, other) if not isinstance(documents.get(n), dict)]
    if missing:
        return [f"{n} left no document" for n in missing], None
    a, b, wrong, worst = rows_of(documents[name]), rows_of(documents[other]), [], None
    if a.keys() != b.keys() or not a:
        wrong.append(f"rows differ: {sorted(a)} and {sorted(b)}")
    for key in a.keys() & b.keys():
        x, y = a[key], b[key]
        if x["n"] != y["n"]:
            wrong.append(f"{key}: n is {x['n']} and {y['n']}")
        for metric in ("acc", "nll_nats"):
            if metric not in x and metric not in y:
                continue
            d = abs(x.get(metric, float("nan")) - y.get(metric, float("nan")))
            worst = max(worst or 0.0, d) if metric == "nll_nats" else worst
            if not d <= (tolerance if metric == "nll_nats" else 1.5 / x["n"] if different else 0):
                wrong.append(f"{key}: {metric} is {x.get(metric)} and {y.get(metric)}")
        if different and x["math"] == y["math"]:
            wrong.append(f"{key}: both say that {x['math']} ran")
    return wrong, worst


# ---------------------------------------------------------------------------------------------- stages

def pair_end_to_end(m, work):
    """Scores on both devices, then what must be near what: mean NLLs of a text in f32 within 1e-5 nats of the CPU's f32,
    bf16 and int8 within 0.02 of it (and of another arithmetic), int8 within 1e-3 of the CPU's int8; log-probabilities
    of single choices within 1e-4, 0.5 and 0.05 nats. The cache holds per-token codes, for `pages` per-channel codes."""
    limit = ["--limit", "24"] if m.real else ["--limit", "2"]
    for model in PAIR:
        packed = str(work / f"{model}.h5")
        yield Part(f"quantize-{model}", [m.dq(), "quantize", f"calib/pair/{model}", "-o", packed, "--bits", "8", "--embed-bits", "16",
                                         "--json"])
        text = ["--text", "calib/pair/text.txt", "--ctx", "128", "--limit", "24" if m.real else "1"]
        sources = {"choices": ["--task", "mc", "--data", "calib/pair/choices.jsonl", *limit, "--kv-quant", "per-token"],
                   "text": [*text, "--kv-quant", "per-token"], "pages": [*text, "--kv-quant", "per-channel"]}
        for what, source in sources.items():
            both = [("cpu", "f32"), ("cpu", "int8"), (m.backend, "f32"), (m.backend, "bf16"), (m.backend, "int8")]
            for device, math in dict.fromkeys(both):
                if (device, math) == ("cpu", "bf16"):
                    continue  # no arithmetic of the CPU
                part = f"{what}-{model}-{device}-{math}"
                dump = ["--dump-items", str(work / f"{part}.items")] if what == "choices" else []
                yield Part(part, [m.dq(), "eval", packed, *source, "--kv-bits", "8", "--kv-recent", "16", "--math", math,
                                  "--device", device, "--json", "-q", *dump], 90)
            if m.device == "cpu":
                continue  # there is nothing else to compare with
            name = lambda device, math: f"{what}-{model}-{device}-{math}"
            for ours, theirs, mean, single in (("f32", "f32", 1e-5, 1e-4), ("bf16", "f32", 0.02, 0.5),
                                               ("int8", "f32", 0.02, 0.5), ("int8", "int8", 1e-3, 0.05)):
                a, b, title = name(m.backend, ours), name("cpu", theirs), f"{what}-{model}-{ours}-with-{theirs}"
                yield Part(f"compare-{title}",
                           check=lambda d, a=a, b=b, t=mean, o=ours != theirs: compare(d, a, b, t, o))
                if what == "choices":
                    yield Part(f"compare-items-{title}",
                               check=lambda d, a=a, b=b, t=single: compare_items(work, a, b, t))


def stage_1(m, work):
    yield Part("doctor", [m.dq(), "doctor", "--json"])
    yield Part("probes", [m.gpu("probes")])
    for name, limit in (("products", 30), ("attend_sample", 30), ("kernels", 60), ("operands", 60), ("maps", 30), ("attention", 30),
                        ("keys", 30), ("pages", 40), ("linear", 30), ("ops", 30)):
        yield Part(name, [m.gpu(name)], limit)
    if m.real:
        yield Part("doctor-finds-all", check=usable)
        yield from sanitizers(m, (("memcheck", "kernels"), ("synccheck", "kernels"), ("memcheck", "linear")))
    for name in ("int8", "bf16", "rows", "f32"):
        yield Part(f"long-{name}", [m.gpu("long"), *m.small, "--only", name], 45)
    yield from pair_end_to_end(m, work)
    for name, limit in (("score", 45), ("runner", 45), ("kv_codes", 30), ("columns", 30), ("spans", 30), ("evict", 45),
                        ("contract", 60), ("kv", 90)):
        yield Part(f"suite-{name}", [m.suite(name)], limit)


TOOL = ["compute-sanitizer", "--error-exitcode", "9", "--tool"]
EXACT = {"DQ_CUDA_POOL": "exact"}  # blocks of exact sizes, so that accesses after them are seen


def sanitizers(m, tools):
    """Few cases: a tool costs ten to a hundred times."""
    yield Part("sanitizer", TOOL + ["memcheck", m.gpu("probes"), "dp4a"], 40)  # some machines refuse it
    for tool, name in tools:
        padding = ["--padding", "256"] if tool == "memcheck" else []
        case = ["test_cut"] if name == "kernels" else []
        yield Part(f"{tool}-{name}", TOOL + [tool] + padding + [m.gpu(name)] + case, 40, EXACT, needs="sanitizer")


def stage_2(m, work):
    if m.device != "cpu":
        times = ["--limit", "15", "--seconds", "130"] if m.real else ["--limit", "60", "--seconds", "600"]
        yield Part("sweep", [m.gpu("sweep"), *m.small, *times], 140)
    bench = [m.gpu("bench"), *m.small]
    for what, limit in (("prefill:8192", 30), ("prefill:65536", 45), ("prefill:2048", 20), ("decode:65536", 30), ("decode:2048", 20),
                        ("products", 30)):
        for math in ("int8", "bf16", "f32"):
            if (what, math) in (("products", "f32"), ("prefill:65536", "f32")) or (math, m.device) == ("bf16", "cpu"):
                continue  # not offered, or minutes
            yield Part(f"bench-{what.replace(':', '-')}-{math}", bench + ["--only", f"{what}:{math}"], limit)


def not_well(folder):
    """Parts of stages 1 and 2 that failed, by their documents in a folder, where there are any."""
    for stage in ("1", "2"):
        try:
            parts = json.loads((folder / f"stage-{stage}.json").read_text())["parts"]
        except (OSError, ValueError, KeyError):
            continue
        yield from (p["part"] for p in parts if p["status"] in ("failed", "timeout"))


def again(m, work, names):
    """Programs among those parts under memcheck; `dq` is none: it took long enough without."""
    for part in (p for stage in (stage_1, stage_2) for p in stage(m, work)):
        if part.name in names and part.command and part.command[0] not in (m.dq(), TOOL[0]):
            yield Part(f"again-{part.name}", TOOL + ["memcheck"] + part.command, 40, EXACT, needs="sanitizer")


def stage_3(m, work):
    peers = [sys.executable, "tests/gpu/peers.py"]
    if m.real:
        for peer in ("cudnn2", "cudnn4", "flash4", "products", "memeff2", "triton"):
            yield Part(f"peers-{peer}", peers + [peer], 30)
    else:
        yield Part("peers-check", peers + ["--check"], 120)
    model = work / "diffllama-1b"
    if m.real:
        yield Part("items-model", [str(m.build / "tests/generate"), str(model), "diffllama-1b"], 30)
        yield Part("items-tokenizer", ["sh", "-c", f"cp calib/pair/diffllama/tokenizer*.json '{model}'"], 10)
    else:
        model = ROOT / "calib/pair/diffllama"
    packed = work / "items.h5"
    quantize = [m.dq(), "quantize", str(model), "-o", str(packed), "--bits", "8", "--embed-bits", "16", "--json", "-q"]
    yield Part("items-quantize", quantize, 30)
    for math in ("int8", "bf16", "f32"):
        if math == "bf16" and m.device == "cpu":
            continue
        yield Part(f"items-{math}", [m.dq(), "bench", "items", str(packed if math == "int8" else model),
                                     "calib/pair/choices.jsonl", "--limit", "300" if m.real else "2", "--runs",
                                     "3" if m.real and math != "f32" else "1", "--math", math, "--device", m.backend, "--json", "-q"],
                   30)
    if m.real:
        yield from sanitizers(m, ())
        yield from again(m, work, m.again)
        yield from (p for p in sanitizers(m, (("racecheck", "kernels"), ("memcheck", "pages"), ("racecheck", "pages")))
                    if p.name != "sanitizer")


STAGES = {"1": stage_1, "2": stage_2, "3": stage_3}
BUDGET = {"1": 240, "2": 300, "3": 180}  # seconds


# --------------------------------------------------------------------------------------------- running

class Stop(Exception):
    """A signal asked this program to end."""


class Run:
    def __init__(self, stage, machine, out, work, budget, longest):
        self.stage, self.machine, self.out, self.work, self.longest = stage, machine, out, work, longest
        self.end = time.monotonic() + budget
        self.parts, self.documents, self.status, self.lost = [], {}, {}, None
        self.head = {"schema": "dq-gpu/2", "stage": int(stage), "device": machine.device, "budget_seconds": budget}

    def left(self):
        return self.end - time.monotonic()

    def write(self):
        """stage-N.json. On a full disk the run goes on, the last document that could be written stays, and the end says so."""
        path = self.out / f"stage-{self.stage}.json"
        fresh = path.with_suffix(".json.partial")
        try:
            fresh.write_text(json.dumps({**self.head, "parts": self.parts}, indent=1, allow_nan=False) + "\n")
            fresh.replace(path)
            self.lost = None
        except OSError as e:
            fresh.unlink(missing_ok=True)
            self.lost = f"{path}: {e.strerror}"

    def archive(self):
        path = self.out / f"stage-{self.stage}.tgz"
        try:
            with tarfile.open(path, "w:gz") as tar:
                for f in sorted(self.work.glob("*.out")) + sorted(self.work.glob("*.err")):
                    tar.add(f, f"stage-{self.stage}/{f.name}")
        except OSError as e:
            path.unlink(missing_ok=True)
            self.lost = self.lost or f"{path}: {e.strerror}"

    def process(self, part, seconds):
        """Exit status of the part's command (negative: the signal that ended it), or None: out of time."""
        env = {**os.environ, **part.env, "DQ_TEST_DEVICE": self.machine.backend, "OMP_WAIT_POLICY": "passive"}
        with open(self.work / f"{part.name}.out", "wb") as out, open(self.work / f"{part.name}.err", "wb") as err:
            try:
                p = subprocess.Popen(part.command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=env, cwd=ROOT,
                                     start_new_session=True)
            except OSError as e:
                err.write(f"{part.command[0]}: {e.strerror}\n".encode())
                return 127
            try:
                return p.wait(seconds)
            except subprocess.TimeoutExpired:
                return None
            finally:
                end_group(p)

    def named(self, text):
        return (text.replace(str(self.machine.build), "BUILD").replace(str(self.work), "WORK")
                .replace(str(ROOT) + "/", "").replace(sys.executable, "python3"))

    def document_of(self, part):
        """NaN and infinities, which are no JSON, are null; folders of this machine go by their names."""
        try:
            text = (self.work / f"{part.name}.out").read_text()
            return json.loads(self.named(text), parse_constant=lambda name: None)
        except (OSError, ValueError):
            return None

    def tail_of(self, part):
        """The last bytes of both streams; errors are said last."""
        text = b""
        for suffix in ("out", "err"):
            try:
                text += (self.work / f"{part.name}.{suffix}").read_bytes()
            except OSError as e:
                text += f"{part.name}.{suffix}: {e.strerror}\n".encode()
        return text[-TAIL:].decode(errors="replace")

    def verdict(self, code, document):
        """A GPU that was promised must be there: skipping is a failure on one. 77, and 5 of the probes: no device."""
        if code is None:
            return "timeout"
        if code == 0:
            return "ok"
        return "skipped" if code in (5, 77) and not self.machine.real and document is None else "failed"

    def part(self, part):
        start = time.monotonic()
        limit = min(part.limit * self.machine.patience, self.longest)
        given = min(limit, max(0, self.left()))
        record = {"part": part.name, "status": "not run", "limit_seconds": round(given, 3)}
        if given < limit:
            record["why"] = f"of {limit} s the stage's budget left {given:.0f}"
        if self.left() < min(limit, 10):
            pass
        elif part.needs and self.status.get(part.needs) != "ok":
            record.update(why=f"{part.needs} is not well")
        elif part.check:
            wrong, worst = part.check(self.documents)
            record.update(status="failed" if wrong else "ok", worst=finite(worst))
            if wrong:
                record["tail"] = "\n".join(wrong)[-TAIL:]
        else:
            code = self.process(part, given)
            document = self.document_of(part)
            record.update(status=self.verdict(code, document), exit=code, document=document,
                          command=self.named(" ".join(part.command)))
            self.documents[part.name] = document
            if record["status"] != "ok":
                record["tail"] = self.tail_of(part)
        self.status[part.name] = record["status"]
        record["seconds"] = round(time.monotonic() - start, 3)
        self.parts.append(record)
        self.write()
        print(f"{part.name:34} {record['status']:8} {record['seconds']:8.1f} s", flush=True)
        if isinstance(record.get("document"), dict) and record["document"].get("winner"):
            print(f"    winner: {record['document']['winner']}", flush=True)
        if record["status"] in ("failed", "timeout"):
            for line in record.get("tail", "").splitlines()[-6:]:
                print(f"    {line[:200]}", flush=True)


def finite(x):
    return x if x is not None and abs(x) < float("inf") else None


def end_group(p):
    """Nothing of a part outlives it; a process that the driver holds is left behind after some seconds."""
    for sig in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(p.pid, sig)
        except ProcessLookupError:
            pass
        try:
            p.wait(GRACE)
            if sig == signal.SIGTERM:
                continue  # its children may be alive
        except subprocess.TimeoutExpired:
            pass


def on_signal(number, frame):
    raise Stop(number)


def main(argv):
    if len(argv) not in (2, 3) or argv[1] not in STAGES:
        print(__doc__, file=sys.stdout if argv[1:] in (["-h"], ["--help"]) else sys.stderr)
        return 0 if argv[1:] in (["-h"], ["--help"]) else 2
    device = os.environ.get("DQ_DEVICE", "cuda")
    if not re.fullmatch(r"cuda(:\d+)?|cpu|simulated", device):
        print(f"stages.py: DQ_DEVICE is {device} (expected cuda, cuda:N, simulated or cpu)", file=sys.stderr)
        return 2
    build = Path(os.environ.get("DQ_BUILD", ROOT / "build-gpu")).resolve()
    if not build.is_dir():
        print(f"stages.py: {build} is no folder; build it, or name it in DQ_BUILD", file=sys.stderr)
        return 6
    out = Path(argv[2] if len(argv) == 3 else os.environ.get("OUT", ROOT / "results/bench/gpu")).resolve()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        print(f"stages.py: {out}: {e.strerror}", file=sys.stderr)
        return 6
    try:
        budget, longest = (float(os.environ.get(*x)) for x in (("DQ_BUDGET", BUDGET[argv[1]]), ("DQ_LIMIT", "inf")))
        wanted = re.compile(os.environ.get("DQ_PARTS", ""))
    except (ValueError, re.error) as e:
        print(f"stages.py: DQ_BUDGET, DQ_LIMIT or DQ_PARTS: {e}", file=sys.stderr)
        return 2
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, on_signal)
    with tempfile.TemporaryDirectory(prefix="dq-stage-") as work:
        names = os.environ["DQ_AGAIN"].split() if "DQ_AGAIN" in os.environ else list(not_well(out))
        run = Run(argv[1], Machine(build, device, names), out, Path(work), budget, longest)
        status = 0
        try:
            for part in STAGES[argv[1]](run.machine, run.work):
                if wanted.search(part.name):
                    run.part(part)
        except Stop as s:
            print(f"stages.py: ended by signal {s.args[0]}", file=sys.stderr)
            status = 128 + s.args[0]
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(sig, signal.SIG_IGN)  # what was found is written first
        run.write()
        run.archive()
    bad = [p["part"] for p in run.parts if p["status"] not in ("ok", "skipped")]
    count = {s: sum(p["status"] == s for p in run.parts) for s in ("ok", "failed", "timeout", "skipped", "not run")}
    print(f"stage {argv[1]}: " + ", ".join(f"{n} {s}" for s, n in count.items() if n))
    if bad:
        print("not well: " + " ".join(bad))
    if not run.parts:
        print("stages.py: no part has such a name", file=sys.stderr)
        return status or 2
    if run.lost:
        print(f"stages.py: {run.lost}; what was found stands above only", file=sys.stderr)
        return status or 6
    return status or (1 if bad else 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
