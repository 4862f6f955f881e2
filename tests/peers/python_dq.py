# The package python/dq against the commands: the same bits of logits, tokens, texts and containers.
# usage: python_dq.py DQ REPOSITORY    (libdq.so lies beside DQ)
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import h5py
import numpy as np

program, repository = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
os.environ["DQ_LIBRARY"] = os.path.join(os.path.dirname(program), "libdq.so")
sys.path.insert(0, str(repository / "python"))
import dq  # noqa: E402

MODEL = str(repository / "calib/pair/diffllama")
TEXT = (repository / "calib/pair/text.txt").read_text()[:900]
SETTINGS = [
    {}, {"logit_bits": 6, "logit_granularity": "per-row"}, {"kv_bits": "4:4", "kv_recent": 8},
    {"kv_keep": 0.5, "kv_recent": 8, "kv_policy": "keydiff", "kv_bits": 8, "threads": 1},
]


def run(*args):
    return subprocess.run([program, *map(str, args)], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode()


def options(settings):
    return [w for name, value in settings.items() for w in ("--" + name.replace("_", "-"), value)]


def refused(status, text, call, *args, **named):
    try:
        call(*args, **named)
    except dq.Error as e:
        assert e.status == status and text in str(e), (e.status, str(e))
        return
    raise AssertionError(f"not refused: {text}")


def raises(kind, text, call, *args, **named):
    try:
        call(*args, **named)
    except kind as e:
        assert text in str(e), str(e)
        return
    raise AssertionError(f"not refused: {text}")


with tempfile.TemporaryDirectory() as top:
    top = pathlib.Path(top)
    (top / "text").write_text(TEXT)
    for settings in SETTINGS:
        with dq.load(MODEL, **settings) as m:
            ids = m.encode(TEXT, special=False)
            assert ids == [int(i) for i in run("tokenize", MODEL, "--text", top / "text").split()]
            assert m.decode(ids) == TEXT
            context = 150 if "kv_bits" in settings else 0
            run("logits", MODEL, "--text", top / "text", "-o", top / "l.h5", "--force", *(["--prefix", context] if context else []),
                *options(settings))
            with h5py.File(top / "l.h5") as f:
                want = f["logits"][:]
            got = m.logits(ids, context=context)
            assert got.dtype == want.dtype and got.tobytes() == want.tobytes(), settings
            said = json.loads(run("generate", MODEL, "--prompt-file", top / "text", "-n", 24, "--temperature", 1, "--seed", 3,
                                  "--json", *options(settings)))["results"][0]
            told = []
            text = m.generate(TEXT, max_new=24, temperature=1, seed=3,
                              on_token=lambda id, logp, piece: told.append(logp) if id >= 0 else None)
            assert text == said["text"], settings
            assert np.allclose(told, said["logp_nats"], rtol=0, atol=0), settings
            rows = m.logits(ids[:41], context=20).astype(np.float64)
            logp = rows - np.log(np.exp(rows - rows.max(1, keepdims=True)).sum(1, keepdims=True)) - rows.max(1, keepdims=True)
            want = sum(logp[i - 1, ids[i]] for i in range(20, 41))
            (got, greedy), (one, _) = m.score([(ids[:20], ids[20:41]), (ids[:20], ids[20:21])])
            assert abs(got - want) < 1e-4 and abs(one - logp[19, ids[20]]) < 1e-5 and not greedy, (got, want)
    run("quantize", MODEL, "-o", top / "a.h5", "--bits", 4, "--group", 32, "--kv-bits", 8)
    dq.quantize(MODEL, top / "b.h5", bits=4, group=32, kv_bits=8)
    assert hashlib.sha256((top / "a.h5").read_bytes()).digest() == hashlib.sha256((top / "b.h5").read_bytes()).digest()
    refused(6, "exists", dq.quantize, MODEL, top / "b.h5", bits=4)
    refused(2, "unknown option --bitz", dq.quantize, MODEL, top / "c.h5", bitz=4)
    refused(2, "unknown option --kv-bitz", dq.load, MODEL, kv_bitz=4)
    refused(6, "no such file", dq.load, top / "nothing")
    raises(ValueError, "zero byte", dq.load, "a\0b")
    raises(ValueError, "zero byte", dq.load, MODEL, kv_bits="4\0:4")
    with dq.load(MODEL) as m:
        raises(ValueError, "context", m.logits, [1, 2], context=1 << 70)
        raises(ValueError, "seed", m.generate, TEXT, temperature=1, seed=-1)
        raises(ValueError, "top_k, seed: nothing is drawn", m.generate, TEXT, top_k=3, seed=7)
        raises(ValueError, "top_p", m.generate, TEXT, temperature=1, top_p=0)
        raises(dq.Error, "outside the vocabulary", m.decode, [1 << 20])
        raises(dq.Error, "a listener cannot run", m.generate, TEXT, on_token=lambda *_: m.logits([1]))
        raises(KeyboardInterrupt, "", m.generate, TEXT, max_new=100, on_token=lambda *_: signal.raise_signal(signal.SIGINT))
        assert len(m.generate_ids(TEXT, max_new=4)) == 4  # and goes on
    closed = dq.load(MODEL)
    closed.close()
    raises(ValueError, "closed", closed.encode, "x")
print(f"dq {dq.version()}: package and commands agree")
