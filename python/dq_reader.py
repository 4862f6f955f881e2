"""Reads the containers of dq (FORMAT.md) with h5py and NumPy alone. One file: copy it where it is needed.

    import dq_reader
    weights = dq_reader.load("model-4bit.h5")              # name -> float32 array, the values dq computes with
    c = dq_reader.codes("model-4bit.h5", "model.layers.0.mlp.up_proj.weight")

    config = transformers.AutoConfig.for_model(**dq_reader.config("model-4bit.h5"))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(dq_reader.state_dict("model-4bit.h5"), strict=False)      # needs torch

    python3 dq_reader.py model-4bit.h5                     # checks every hash, lists the tensors

SPDX-License-Identifier: MIT
"""

import hashlib
import json
import os
import sys
from typing import NamedTuple

import h5py
import numpy as np

CODED = ("int-packed", "int-zero")  # encodings of codes that this reader knows
BLOCK = 1 << 22  # codes that are unpacked at a time


class Codes(NamedTuple):
    """value[r, c] = (codes[r, c] - zeros[r, c // group_size]) * scales[r, c // group_size]; scales and zeros of one
    row hold for all rows."""

    codes: np.ndarray  # uint8 [rows, cols], 0 .. 2^bits - 1
    scales: np.ndarray  # float32 [rows or 1, groups]
    zeros: np.ndarray  # int16, of the shape of scales
    group_size: int  # columns per scale; the last group of a row may be short
    bits: int


def _text(value):
    return value.decode() if isinstance(value, bytes) else str(value)


def _open(path):
    if os.path.isfile(path) and not h5py.is_hdf5(path):
        raise ValueError(f"{path}: not an HDF5 file")
    f = h5py.File(path, "r")
    kind, version = (_text(f.attrs.get(key, "")) for key in ("encoding-type", "encoding-version"))
    if kind != "dq-model" or version.split(".")[0] != "1":
        f.close()
        raise ValueError(f'{path}: expected a container "dq-model" of version 1, found "{kind}" "{version}"')
    return f


def _tensor(f, name):
    if name not in f["tensors"]:
        raise ValueError(f'{f.filename}: there is no tensor "{name}"')
    return f["tensors"][name]


def _unpack(packed, cols, bits):
    """uint8 [rows, cols] of rows of codes, least significant bit first, padded to whole bytes."""
    out = np.empty((packed.shape[0], cols), np.uint8)
    step = max(1, BLOCK // max(cols, 1))
    for r in range(0, out.shape[0], step):
        stream = np.unpackbits(packed[r:r + step], axis=1, bitorder="little")[:, :cols * bits]
        code = np.zeros((stream.shape[0], cols, 8), np.uint8)
        code[:, :, :bits] = stream.reshape(-1, cols, bits)
        out[r:r + step] = np.packbits(code, axis=2, bitorder="little")[:, :, 0]
    return out


def _check_attributes(f, name):
    """Attributes have no hash of their own: ValueError where they say something else than /index, which has one."""
    group, path = f["tensors"][name], f"/tensors/{name}/packed"
    row = [r for r in f["index"][...] if _text(r["path"]) == path]
    if len(row) != 1:
        raise ValueError(f"{name}: /index has no row for its codes")
    here = [_text(group.attrs["encoding-type"])] + [int(group.attrs[key]) for key in ("bits", "group_size")]
    here += [int(n) for n in group.attrs["shape"]]
    there = [_text(row[0]["encoding"])] + [int(row[0][key]) for key in ("bits", "group_size", "rows", "cols")]
    if here != there:
        raise ValueError(f"{name}: attributes {here} are not those of /index {there}")


def _codes(f, name):
    group = f["tensors"][name]
    kind = _text(group.attrs["encoding-type"])
    if kind not in CODED:
        raise ValueError(f'{name}: the encoding "{kind}" is not read (known: {", ".join(CODED)})')
    _check_attributes(f, name)
    bits, size = int(group.attrs["bits"]), int(group.attrs["group_size"])
    rows, cols = (int(n) for n in group.attrs["shape"])
    scales = group["scale"][...].astype(np.float32)
    groups = -(-cols // size)
    if group["packed"].shape != (rows, -(-cols * bits // 32) * 4) or scales.shape not in ((rows, groups), (1, groups)):
        raise ValueError(f"{name}: codes or scales of another shape than {rows} x {cols} in groups of {size}")
    if kind == "int-zero":
        zeros = _unpack(group["zero"][...], scales.shape[1], bits).astype(np.int16)
    else:
        zeros = np.full(scales.shape, 1 << (bits - 1), np.int16)
    return Codes(_unpack(group["packed"][...], cols, bits), scales, zeros, size, bits)


def _values(c):
    out = np.empty(c.codes.shape, np.float32)
    for g in range(c.scales.shape[1]):
        part = slice(g * c.group_size, (g + 1) * c.group_size)
        q = c.codes[:, part].astype(np.int16) - c.zeros[:, g, None]
        np.multiply(q.astype(np.float32), c.scales[:, g, None], out=out[:, part])
    return out


def names(path):
    """Names of all tensors, sorted."""
    with _open(path) as f:
        return sorted(f["tensors"])


def load(path, only=None):
    """Name -> float32 array of every tensor (or of the one or those that `only` names), equal to dq's own values bit for bit."""
    with _open(path) as f:
        out = {}
        if isinstance(only, str):
            only = [only]
        for name in sorted(f["tensors"]) if only is None else only:
            t = _tensor(f, name)
            if isinstance(t, h5py.Dataset) and t.dtype.kind != "f":
                raise ValueError(f"{name}: values of {t.dtype} are not read")
            out[name] = t[...].astype(np.float32) if isinstance(t, h5py.Dataset) else _values(_codes(f, name))
        return out


def codes(path, name):
    """The Codes of a packed tensor. ValueError for one that is stored as values."""
    with _open(path) as f:
        t = _tensor(f, name)
        if isinstance(t, h5py.Dataset):
            raise ValueError(f"{name}: stored as values of {t.dtype}, it has no codes")
        return _codes(f, name)


def config(path):
    """The source's config.json as a dict."""
    with _open(path) as f:
        return json.loads(_text(f["config/model_json"][()]))


def recipe(path):
    """The settings of dq quantize as a dict."""
    with _open(path) as f:
        return json.loads(_text(f["config/recipe_json"][()]))


def files(path):
    """Name -> bytes of the tokenizer's files."""
    with _open(path) as f:
        return {name: d[...].tobytes() for name, d in f["tokenizer"].items()} if "tokenizer" in f else {}


def state_dict(path, dtype=None):
    """Name -> torch.Tensor, float32 or rounded to `dtype`; for load_state_dict(..., strict=False), tied heads being
    absent."""
    import torch

    return {name: torch.from_numpy(a).to(dtype or torch.float32) for name, a in load(path).items()}


def verify(path):
    """Paths of the datasets whose bytes are not those that were written; [] when all are."""
    bad = []
    with _open(path) as f, open(path, "rb") as raw:

        def sha256(d):
            h, left = hashlib.sha256(), d.id.get_storage_size()
            raw.seek(d.id.get_offset())
            while left:
                part = raw.read(min(left, 1 << 22))
                if not part:
                    break
                h.update(part)
                left -= len(part)
            return h.hexdigest()

        index = f["index"]
        if sha256(index) != _text(f["index_sha256"][()]):
            bad.append("/index")
        content = hashlib.sha256()
        for row in index[...]:
            where, want = _text(row["path"]), _text(row["sha256"])
            content.update(f"{where} {want}\n".encode())
            if where not in f or sha256(f[where]) != want:
                bad.append(where)
        if content.hexdigest() != _text(f["content_sha256"][()]):
            bad.append("/content_sha256")
    return bad


def _main(path):
    bad = verify(path)
    for where in bad:
        print(f"{path}: {where}: damaged", file=sys.stderr)
    if bad:
        return 3
    with _open(path) as f:
        for name, t in sorted(f["tensors"].items()):
            if isinstance(t, h5py.Dataset):
                print(name, "x".join(map(str, t.shape)), "values")
            else:
                _check_attributes(f, name)
                shape = "x".join(str(int(n)) for n in t.attrs["shape"])
                print(name, shape, _text(t.attrs["encoding-type"]), int(t.attrs["bits"]), "bits")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: dq_reader.py FILE.h5")
    try:
        sys.exit(_main(sys.argv[1]))
    except BrokenPipeError:  # the reader of the list left
        os._exit(141)
    except (OSError, KeyError, ValueError) as e:
        sys.exit(f"{sys.argv[1]}: {e}")
