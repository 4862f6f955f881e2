#!/usr/bin/env python3
"""Rehearses stages.py with programs that hang, crash, are missing or skip, a device whose numbers are wrong, no room
for results, and a signal. python3 test_stages.py; exit 0: all is as it must be."""
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MARK = "98765.4"  # seconds that a hanging part sleeps: how it is found again

# A dq whose int8 on the device is off by half a nat for one model.
DQ = """#!/usr/bin/env python3
import json, sys
a = sys.argv[1:]
value = lambda name: a[a.index(name) + 1] if name in a else None
math, device = value("--math"), value("--device")
wrong = 0.5 if math == "int8" and device == "cuda" and a[1].endswith("diffllama.h5") else 0
row = {"task": "text", "logit_bits": 16, "logit_granularity": "per-tensor", "n": 100, "math": {"linear": math},
       "metrics": {"nll_nats": {"value": 2.0 + wrong}, "acc": {"value": 0.5}}}
print(json.dumps({"results": [row]}))
"""
PROGRAMS = {
    "gpu_probes": "echo '{\"schema\": \"dq-probes/1\"}'",
    "gpu_ops": f"trap '' TERM; sleep {MARK} & sleep {MARK}",
    "gpu_linear": "echo before; kill -SEGV $$",
    "gpu_pages": "exit 77",
    "gpu_attention": "head -c 1000000 /dev/zero | tr '\\0' x; echo the reason >&2; exit 3",
    "gpu_kernels": "exit 0",
    "gpu_sweep": "echo '{\"schema\": \"dq-sweep/1\", \"winner\": {\"cluster\": 2}}'; exit 1",
    "compute-sanitizer": "echo \"$@\"; exit 0",
}


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def start(build, out, parts, stage="1", **more):
    env = {**os.environ, "DQ_BUILD": str(build), "DQ_DEVICE": "cuda", "DQ_LIMIT": "2", "DQ_PARTS": parts, **more}
    limit = env.pop("FILE_BYTES", None)
    small = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit),) * 2)) if limit else None
    return subprocess.Popen(["sh", str(HERE / "run_all.sh"), stage, str(out)], env=env, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, preexec_fn=small)


def check(condition, what):
    if not condition:
        sys.exit(f"test_stages: {what}")


def parts_of(out, stage="1"):
    document = json.loads((out / f"stage-{stage}.json").read_text())
    return {p["part"]: p for p in document["parts"]}


def sleepers():
    return [p for p in Path("/proc").glob("[0-9]*/cmdline")
            if MARK.encode() in (p.read_bytes() if os.access(p, os.R_OK) else b"")]


def planted_failures(build, out):
    p = start(build, out, "^(probes|ops|linear|pages|attention|operands|kernels)$")
    text, _ = p.communicate(timeout=60)
    found = parts_of(out)
    check(p.returncode == 1, f"exit {p.returncode}, expected 1")
    expected = {"probes": "ok", "ops": "timeout", "linear": "failed", "pages": "failed", "attention": "failed",
                "operands": "failed", "kernels": "ok"}
    check({k: v["status"] for k, v in found.items()} == expected, f"{text}")
    check(found["probes"]["document"] == {"schema": "dq-probes/1"}, "the document of probes is lost")
    check(found["linear"]["exit"] == -signal.SIGSEGV, "how linear ended is not said")
    check(found["attention"]["tail"].endswith("the reason\n"), "the end of what attention said is lost")
    check(len(found["attention"]["tail"]) == 4096, "the tail is not 4096 bytes")
    check("No such file" in found["operands"]["tail"], "a missing program is not named")
    check(not sleepers(), "a hanging part is still alive")
    check(sorted(f.name for f in out.iterdir()) == ["stage-1.json", "stage-1.tgz"], "other files lie in OUT")
    names = tarfile.open(out / "stage-1.tgz").getnames()
    check("stage-1/attention.out" in names, f"the archive holds {names}")


def wrong_numbers(build, out):
    p = start(build, out, "text", DQ_LIMIT="30")
    text, _ = p.communicate(timeout=120)
    found = parts_of(out)
    bad = sorted(k for k, v in found.items() if v["status"] != "ok")
    check(bad == ["compare-text-diffllama-int8-with-f32", "compare-text-diffllama-int8-with-int8"], f"{bad}\n{text}")
    check("nll_nats is 2.5 and 2.0" in found[bad[0]]["tail"], "what differs is not said")
    check(p.returncode == 1, f"exit {p.returncode}, expected 1")


def spent_budget(build, out):
    p = start(build, out, "^(ops|long-f32|suite-kv)$", DQ_BUDGET="3")
    p.communicate(timeout=60)
    found = {k: v["status"] for k, v in parts_of(out).items()}
    check(found == {"ops": "timeout", "long-f32": "not run", "suite-kv": "not run"}, f"{found}")
    check(p.returncode == 1, f"exit {p.returncode}, expected 1")


def no_room(build, out):
    """A file may have 512 bytes: less than the results need."""
    p = start(build, out, "^(probes|linear|kernels)$", FILE_BYTES="512")
    text, err = p.communicate(timeout=60)
    check(p.returncode == 6, f"exit {p.returncode}, expected 6: {err}")
    check("File too large" in err and "stage-1.json" in err, f"what was lost is not said: {err}")
    check("kernels" in text and "stage 1: 2 ok, 1 failed" in text, f"the run did not go on: {text}")
    for f in out.iterdir():
        check(f.name == "stage-1.json" or tarfile.open(f).getnames(), f"{f.name} was left in half")
    kept = list(parts_of(out)) if (out / "stage-1.json").exists() else []
    check(kept == ["probes", "kernels", "linear"][:len(kept)], f"the document holds {kept}")


def interrupted(build, out):
    p = start(build, out, "^(probes|ops)$", DQ_LIMIT="50")
    for _ in range(200):
        if sleepers() and (out / "stage-1.json").exists():
            break
        time.sleep(0.05)
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=60)
    check(p.returncode == 130, f"exit {p.returncode}, expected 130")
    check(list(parts_of(out)) == ["probes"], "what was done is lost")
    check(not sleepers(), "a part outlives the interrupted run")


def minutes(build, out):
    """The stages fit a quarter of an hour with three minutes to spare, and say so; none is longer than ten."""
    help = subprocess.run([sys.executable, str(HERE / "stages.py"), "--help"], capture_output=True, text=True).stdout
    said = {n: int(t) for n, t in re.findall(r"stages.py (\d) \[OUT\]   (\d+) s\.", help)}
    check(sorted(said) == ["1", "2", "3"] and sum(said.values()) <= 720 and max(said.values()) < 600, f"{said}")
    for stage, parts in (("1", "^doctor$"), ("2", "^sweep$"), ("3", "^items-tokenizer$")):
        start(build, out, parts, stage).communicate(timeout=60)
        budget = json.loads((out / f"stage-{stage}.json").read_text())["budget_seconds"]
        check(budget == said[stage], f"stage {stage} has {budget} s and says {said[stage]}")


def chosen(build, out):
    """The sweep comes first, is told to end before its limit, and its winner is shown although a variant failed."""
    text, _ = start(build, out, "", "2", DQ_BUDGET="11").communicate(timeout=60)
    found = parts_of(out, "2")
    check(next(iter(found)) == "sweep" and found["sweep"]["document"]["winner"] == {"cluster": 2}, f"{text}")
    check("winner: {'cluster': 2}" in text, f"the winner is not shown: {text}")
    end = found["sweep"]["command"].split("--seconds ")[1]
    check(float(end) < 140, f"the sweep is told to end after {end} s, and ended after 140")


def once_more(build, out):
    """What failed in stage 1 runs under memcheck in stage 3, and what is named instead."""
    start(build, out, "^(linear|kernels)$").communicate(timeout=60)
    for more, expected in ((dict(), {"again-linear"}), (dict(DQ_AGAIN="kernels pages"), {"again-kernels", "again-pages"})):
        start(build, out, "^(sanitizer|again-.*)$", "3", **more).communicate(timeout=60)
        found = parts_of(out, "3")
        check(set(found) == {"sanitizer"} | expected, f"{set(found)}")
        check(all("memcheck" in p["command"] and p["status"] == "ok" for p in found.values()), f"{found}")


def refusals(build, out):
    for more, parts, status in ((dict(DQ_DEVICE="gpu"), "", 2), (dict(DQ_BUILD="/nowhere"), "", 6), (dict(), "nosuchpart", 2),
                                (dict(DQ_BUDGET="long"), "", 2), (dict(), "(", 2)):
        p = start(build, out, parts, **more)
        _, err = p.communicate(timeout=60)
        check(p.returncode == status and err.count("\n") == 1, f"{more} {parts}: exit {p.returncode}: {err}")


with tempfile.TemporaryDirectory(prefix="dq-rehearsal-") as top:
    folder = Path(top)
    program(folder / "build/dq", DQ)
    for name, text in PROGRAMS.items():
        program(folder / "build/tests/gpu" / name, text)
    os.environ["PATH"] = f"{folder / 'build/tests/gpu'}:{os.environ['PATH']}"
    for test in (planted_failures, wrong_numbers, spent_budget, no_room, interrupted, minutes, chosen, once_more, refusals):
        test(folder / "build", folder / test.__name__)
        print(f"{test.__name__}: as it must be")
