# python/dq_reader.py against dq: what it loads is what dq export writes as F32, bit for bit; damage and unknown forms
# are named.
# usage: reader.py DQ REPOSITORY
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

import h5py
import numpy as np

dq, repository = (os.path.abspath(path) for path in sys.argv[1:])
sys.path.insert(0, os.path.join(repository, "python"))
import dq_reader


def run(*args):
    subprocess.run([dq, *args], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def safetensors(path):
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    head.pop("__metadata__")
    assert all(t["dtype"] == "F32" for t in head.values())
    return {
        name: np.frombuffer(data, np.float32, (t["data_offsets"][1] - t["data_offsets"][0]) // 4, 8 + n + t["data_offsets"][0])
        .reshape(t["shape"]) for name, t in head.items()
    }


def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def check_file(what):
    run("export", "m.h5", "-o", "values", "--force", "--format", "safetensors", "--dtype", "f32")
    want, got = safetensors("values/model.safetensors"), dq_reader.load("m.h5")
    assert sorted(want) == sorted(got) == dq_reader.names("m.h5"), what
    for name in want:
        assert same(want[name], got[name]), (what, name)
    assert dq_reader.verify("m.h5") == []


def check_mixed():
    """Widths, groups and zero points beside each other, codes of the embedding, values of another type."""
    rules = ("q_proj=8/32", "v_proj=3/32/asym", "gate_proj=5", "up_proj=6/64/asym", "down_proj=4/row", "k_proj=2/16/trellis",
             "o_proj=5/row/trellis")
    mixed = [word for rule in rules for word in ("--bits-map", rule)]
    for model in ("calib/pair/llama", "calib/pair/diffllama", "tests/golden/models/motif-gqa-f32"):
        for dense in ("bf16", "f16"):
            run("quantize", os.path.join(repository, model), "-o", "m.h5", "--force", "--bits", "4", "--embed-bits", "6",
                "--dense-type", dense, *mixed)
            check_file((model, dense))
            c = dq_reader.codes("m.h5", "model.embed_tokens.weight")
            assert c.bits == 6 and c.codes.shape[0] == dq_reader.config("m.h5")["vocab_size"]
            assert dq_reader.codes("m.h5", "model.layers.0.self_attn.v_proj.weight").bits == 3


def check_values():
    goldens = os.path.join(repository, "tests", "golden", "models")
    models = [os.path.join(repository, "calib", "pair", "diffllama")]
    models += [os.path.join(goldens, name) for name in ("motif-gqa-f32", "gda-f32-shards", "llama-bf16-bias")]
    case = 0
    for bits in (2, 3, 4, 5, 6, 7, 8):
        for mode in (("absmax", "search")[bits % 2], "asym", *["trellis"] * (bits <= 5)):
            case += 1 + (mode == "trellis" and case % 5 == 2)  # which has no scale for a whole tensor
            run("quantize", models[case % 4], "-o", "m.h5", "--force", "--bits", str(bits), "--scale", mode, "--group",
                ("32", "7", "row", "tensor", "128")[case % 5], "--scale-dtype", ("f16", "f32")[case % 3 == 0])
            check_file((mode, bits))
            assert dq_reader.config("m.h5")["vocab_size"] > 0
            assert dq_reader.recipe("m.h5")["bits"] == bits


def check_codes():
    run("quantize", os.path.join(repository, "calib", "pair", "llama"), "-o", "m.h5", "--force", "--scale", "asym")
    name = "model.layers.1.mlp.down_proj.weight"
    c = dq_reader.codes("m.h5", name)
    assert c.codes.shape == (128, 344) and c.codes.max() == 15 and c.group_size == 128 and c.bits == 4
    group = np.arange(344) // c.group_size
    value = (c.codes.astype(np.float32) - c.zeros[:, group]) * c.scales[:, group]
    assert same(value, dq_reader.load("m.h5", [name])[name])
    run("quantize", os.path.join(repository, "calib", "pair", "llama"), "-o", "t.h5", "--force", "--scale", "trellis")
    refused(lambda: dq_reader.codes("t.h5", name), "has trellis codes")
    with open(os.path.join(repository, "calib", "pair", "llama", "tokenizer.json"), "rb") as f:
        assert dq_reader.files("m.h5")["tokenizer.json"] == f.read()


def refused(call, text):
    try:
        call()
    except ValueError as e:
        assert text in str(e), e
    else:
        raise AssertionError(f"not refused: {text}")


def check_refusals():
    name = "model.layers.1.mlp.down_proj.weight"
    refused(lambda: dq_reader.codes("m.h5", "model.norm.weight"), "has no codes")
    shutil.copy("m.h5", "bad.h5")
    with h5py.File("bad.h5", "r+") as f:
        at = f["tensors"][name]["packed"].id.get_offset()
    with open("bad.h5", "r+b") as f:
        f.seek(at + 5)
        byte = f.read(1)[0]
        f.seek(at + 5)
        f.write(bytes([byte ^ 1]))
    assert dq_reader.verify("bad.h5") == [f"/tensors/{name}/packed"]
    with h5py.File("bad.h5", "r+") as f:
        del f["tensors"][name].attrs["encoding-type"]
        f["tensors"][name].attrs["encoding-type"] = "codebook"
    refused(lambda: dq_reader.load("bad.h5"), f'{name}: the encoding "codebook" is not read')
    for key, value in (("bits", 2), ("group_size", 64), ("group_size", 0), ("shape", [128, 343]), ("encoding-type", "int-packed")):
        shutil.copy("m.h5", "bad.h5")
        with h5py.File("bad.h5", "r+") as f:
            f["tensors"][name].attrs[key] = value
        refused(lambda: dq_reader.load("bad.h5", name), f"{name}: attributes")
    refused(lambda: dq_reader.load("m.h5", "absent"), 'no tensor "absent"')
    refused(lambda: dq_reader.codes("m.h5", "absent"), 'm.h5: there is no tensor "absent"')
    refused(lambda: dq_reader.load("values/model.safetensors"), "values/model.safetensors: not an HDF5 file")
    with h5py.File("bad.h5", "r+") as f:
        del f.attrs["encoding-version"]
        f.attrs["encoding-version"] = "2.0"
    refused(lambda: dq_reader.load("bad.h5"), '"2.0"')


def changed(where, change):
    """What the reader and dq say of a file in which something was changed."""
    shutil.copy("m.h5", "bad.h5")
    with h5py.File("bad.h5", "r+") as f:
        change(f)
    assert dq_reader.verify("bad.h5") == [where], (where, dq_reader.verify("bad.h5"))
    assert subprocess.run([dq, "verify", "bad.h5"], capture_output=True).returncode == 3, where


def check_forms():
    """What h5py reads as the same value, in another form; comments; bytes beside the objects."""
    group = "/tensors/model.layers.1.mlp.down_proj.weight"
    label = group + "/packed"
    texts = (np.bytes_(b"asym"), "asym", np.array(b"asym\0more", h5py.string_dtype(length=9)),
             np.array(b"asym", h5py.string_dtype(length=5)))
    for text in texts:
        changed(group, lambda f: f[group].attrs.create("scale_mode", text))
    for value in (np.array(b"[out,byte]", h5py.string_dtype(length=10)), np.array(["out,byte"], h5py.string_dtype("ascii")),
                  np.array(["out", "byte"], h5py.string_dtype()), np.array([b"out", b"byte"])):
        changed(label, lambda f: f[label].attrs.create("DIMENSION_LABELS", value))
    changed(group, lambda f: f[group].attrs.create("bits", 4, dtype=">i8"))
    changed(label, lambda f: h5py.h5o.set_comment(f[label].id, b"more"))
    with open("m.h5", "rb") as f:
        whole = f.read()
    for more in (whole + b"\0", bytes(4096) + whole):
        with open("bad.h5", "wb") as f:
            f.write(more)
        assert "bytes before or after what HDF5 holds" in dq_reader.verify("bad.h5")
        assert subprocess.run([dq, "verify", "bad.h5"], capture_output=True).returncode == 3


def forge(path, change):
    """Changes attributes or /index, and then /objects and all hashes, so that they agree."""
    def sha256(data):
        return hashlib.sha256(data).hexdigest().encode()

    with h5py.File(path, "r+") as f:
        index, objects = f["index"], f["objects"]
        rows = index[...]
        change(f, rows)
        paths = [line.split("\t")[0] for line in objects[()].decode().splitlines()]
        lines = "".join(dq_reader._object_line(f, where) + "\n" for where in paths).encode()
        assert len(lines) == objects.id.get_storage_size()
        rows["sha256"][rows["path"] == b"/objects"] = sha256(lines)
        index[...] = rows
        text = {objects.id.get_offset(): lines, f["index_sha256"].id.get_offset(): sha256(rows.tobytes()),
                f["content_sha256"].id.get_offset(): sha256(b"".join(b"%s %s\n" % (r["path"], r["sha256"]) for r in rows))}
    with open(path, "r+b") as f:
        for at, data in text.items():
            f.seek(at)
            f.write(data)


def check_forged():
    """Nothing but the source tells that these were changed."""
    source, group = os.path.join(repository, "calib", "pair", "llama"), "/tensors/model.layers.1.mlp.down_proj.weight"

    def attribute(where, name, value):
        return lambda f, rows: f[where].attrs.modify(name, value)

    def column(name, value):
        def change(f, rows):
            rows[name][rows["path"] == f"{group}/packed".encode()] = value
        return change

    for change, says in ((attribute(group, "axis", 7), "attribute axis is i64:7 (expected i64:1)"),
                         (attribute(group, "source_dtype", np.bytes_(b"bfloat32")), "attribute source_dtype is text:bfloat32"),
                         (column("sqnr_db", 99), "SQNR against the source is"),
                         (column("bits_per_weight", 1.5), "/index has 1.5 bits per weight")):
        shutil.copy("m.h5", "bad.h5")
        forge("bad.h5", change)
        assert dq_reader.verify("bad.h5") == []
        subprocess.run([dq, "verify", "bad.h5"], check=True, capture_output=True)
        got = subprocess.run([dq, "verify", "bad.h5", "--source", source], capture_output=True, text=True)
        assert got.returncode == 3 and says in got.stderr, (says, got)


folder = tempfile.mkdtemp()
try:
    os.chdir(folder)
    check_values()
    check_mixed()
    check_codes()
    check_forms()
    check_forged()
    check_refusals()
finally:
    os.chdir(repository)
    shutil.rmtree(folder)
