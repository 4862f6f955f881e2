"""Reads the containers of dq (FORMAT.md) with h5py and NumPy alone. One file: copy it where it is needed.

    import dq_reader
    weights = dq_reader.load("model-4bit.h5")              # name -> float32 array, the values dq computes with
    c = dq_reader.codes("model-4bit.h5", "model.layers.0.mlp.up_proj.weight")

    config = transformers.AutoConfig.for_model(**dq_reader.config("model-4bit.h5"))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(dq_reader.state_dict("model-4bit.h5"), strict=False)      # needs torch

    python3 dq_reader.py model-4bit.h5                     # checks every hash and attribute, lists the tensors

SPDX-License-Identifier: MIT
"""

import hashlib
import json
import os
import re
import sys
from typing import NamedTuple

import h5py
import numpy as np

CODED = ("int-packed", "int-zero")  # encodings of codes that this reader knows
TRELLIS = "trellis"  # and of codes that are read together with their neighbours
STRIP, STRIP_BLOCK = 128, 32  # rows of a ring of such codes; it has a multiple of the second
COMMENT = 1 << 13  # among the messages of an object's header
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
    """ValueError where attributes say something else than /index; verify() compares all of them."""
    group, path = f["tensors"][name], f"/tensors/{name}/packed"
    row = [r for r in f["index"][...] if _text(r["path"]) == path]
    if len(row) != 1:
        raise ValueError(f"{name}: /index has no row for its codes")
    here = [_text(group.attrs["encoding-type"])] + [int(group.attrs[key]) for key in ("bits", "group_size")]
    here += [int(n) for n in group.attrs["shape"]]
    there = [_text(row[0]["encoding"])] + [int(row[0][key]) for key in ("bits", "group_size", "rows", "cols")]
    if here != there:
        raise ValueError(f"{name}: attributes {here} are not those of /index {there}")


def _trellis_values(f, name):
    """level * scale * factor, each an f32 product; level is that of the eight bits from a row's own on in its column's ring."""
    _check_attributes(f, name)
    group = f["tensors"][name]
    bits, size = int(group.attrs["bits"]), int(group.attrs["group_size"])
    rows, cols = (int(n) for n in group.attrs["shape"])
    scales, table = group["scale"][...].astype(np.float32), group["table"][0].astype(np.float32)
    padded = -(-rows // STRIP_BLOCK) * STRIP_BLOCK
    shapes = [group[part].shape for part in ("packed", "scale", "scale_in", "table")]
    if shapes != [(padded // STRIP_BLOCK, STRIP_BLOCK * cols * bits // 8), (rows, -(-cols // size)), (1, cols), (1, 256)]:
        raise ValueError(f"{name}: codes, scales or levels of another shape than {rows} x {cols} in groups of {size}")
    packed, out, at = group["packed"][...].reshape(-1), np.empty((padded, cols), np.float32), 0
    for first in range(0, padded, STRIP):
        n = min(STRIP, padded - first)
        ring = n * bits // 8
        stream = np.unpackbits(packed[at:at + ring * cols].reshape(cols, ring), axis=1, bitorder="little")
        stream = np.concatenate([stream, stream[:, :8]], axis=1)
        for r in range(n):
            window = np.packbits(stream[:, bits * r:bits * r + 8], axis=1, bitorder="little")[:, 0]
            out[first + r] = table[window]
        at += ring * cols
    code = group["scale_in"][0].astype(np.int32)
    eighth = np.float32([float.fromhex(x) for x in ("0x1p0", "0x1.172b84p0", "0x1.306fe0p0", "0x1.4bfdaep0", "0x1.6a09e6p0",
                                                    "0x1.8ace54p0", "0x1.ae89fap0", "0x1.d5818ep0")])
    factor = np.ldexp(eighth[code & 7], code >> 3).astype(np.float32)
    return out[:rows] * np.repeat(scales, size, axis=1)[:, :cols] * factor


def _codes(f, name):
    group = f["tensors"][name]
    kind = _text(group.attrs["encoding-type"])
    if kind == TRELLIS:
        raise ValueError(f"{name}: has trellis codes, which stand for no integers of their own. Use load()")
    if kind not in CODED:
        raise ValueError(f'{name}: the encoding "{kind}" is not read (known: {", ".join(CODED)}, {TRELLIS})')
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


def _packed_values(f, name):
    trellis = _text(f["tensors"][name].attrs["encoding-type"]) == TRELLIS
    return _trellis_values(f, name) if trellis else _values(_codes(f, name))


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
            out[name] = t[...].astype(np.float32) if isinstance(t, h5py.Dataset) else _packed_values(f, name)
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


def _plain(text):
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")


def _is_text(t):
    """Of fixed length, as dq writes it."""
    return (t.get_class() == h5py.h5t.STRING and not t.is_variable_str() and t.get_cset() == h5py.h5t.CSET_UTF8
            and t.get_strpad() == h5py.h5t.STR_NULLPAD)


def _is_label(t):
    """Of varying length, as dq writes it."""
    return (t.get_class() == h5py.h5t.STRING and t.is_variable_str() and t.get_cset() == h5py.h5t.CSET_ASCII
            and t.get_strpad() == h5py.h5t.STR_NULLTERM)


def _element(t):
    """"f16" of an HDF5 type; "text12" of a text."""
    kind, size = t.get_class(), t.get_size()
    if _is_text(t):
        return f"text{size}"
    if kind in (h5py.h5t.FLOAT, h5py.h5t.INTEGER) and t.get_order() != h5py.h5t.ORDER_LE:
        return "other"
    if kind == h5py.h5t.FLOAT:
        return "bf16" if size == 2 and t.get_ebias() == 127 else f"f{8 * size}"
    return f"{'u' if t.get_sign() == h5py.h5t.SGN_NONE else 'i'}{8 * size}" if kind == h5py.h5t.INTEGER else "other"


def _kind(o):
    if isinstance(o, h5py.Group):
        return "group"
    t, dims = o.id.get_type(), ",".join(map(str, o.shape))
    if t.get_class() == h5py.h5t.COMPOUND:
        columns = ((t.get_member_name(i).decode(), _element(t.get_member_type(i)), t.get_member_offset(i))
                   for i in range(t.get_nmembers()))
        return f"table[{dims}]{{{','.join(f'{name}:{element}@{at}' for name, element, at in columns)}}}"
    element = "text" if _is_text(t) else _element(t)
    return f"{element}[{dims}]" if dims else element


def _attribute(o, name):
    """"bits=i64:4"; a form that dq does not write is "other"."""
    a, v = h5py.h5a.open(o.id, name.encode()), o.attrs[name]
    t, value = a.get_type(), "other"
    if _is_text(t) and a.shape == ():
        raw = v if isinstance(v, bytes) else v.encode()
        if b"\0" not in raw and max(len(raw), 1) == t.get_size():
            value = "text:" + ("\\" if raw[:1] == b"[" else "") + _plain(raw.decode())
    elif _is_label(t) and len(a.shape) == 1:
        value = "text:[" + ",".join(_plain(_text(x)).replace(",", "\\,") for x in v) + "]"
    elif _element(t) == "i64" and len(a.shape) <= 1:
        value = "i64:" + (f"[{','.join(map(str, v))}]" if a.shape else str(v))
    elif _element(t) == "f64" and a.shape == ():
        value = "f64:" + format(float(v), ".17g")
    return f"{_plain(name)}={value}"


def _object_line(f, where):
    """The line of /objects about one object (FORMAT.md)."""
    if where != "/" and not isinstance(f.get(where, getlink=True), h5py.HardLink):
        return f"{_plain(where)}\tmissing"
    o = f[where]
    if h5py.h5o.get_info(o.id).hdr.mesg.present & COMMENT:
        return f"{_plain(where)}\tan object with a comment"
    return "\t".join([_plain(where), _kind(o)] + [_attribute(o, name) for name in sorted(o.attrs)])


def _changed_objects(f):
    """Paths of objects that are not what /objects says, and of those that it does not know."""
    lines, bad = {}, []
    for line in _text(f["objects"][()]).rstrip("\n").split("\n"):
        where = re.sub(r"\\(.)", lambda m: {"t": "\t", "n": "\n"}.get(m[1], m[1]), line.split("\t")[0])
        lines[where] = line
    for where, line in lines.items():
        if _object_line(f, where) != line:
            bad.append(where)
        elif line.split("\t")[1] == "group":
            below = (f"{where.rstrip('/')}/{name}" for name in f[where])
            bad += [path for path in below if path not in lines]
    return bad


def _stray_bytes(raw):
    """[a sentence] where HDF5 does not begin and end with the file; its superblock has its end at byte 28."""
    head, size = os.pread(raw.fileno(), 36, 0), os.fstat(raw.fileno()).st_size
    whole = head[:8] == b"\x89HDF\r\n\x1a\n" and int.from_bytes(head[28:], "little") == size
    return [] if whole else ["bytes before or after what HDF5 holds"]


def verify(path):
    """Paths of the datasets whose bytes are not those that were written, and of all objects of which something was changed
    or added, and a sentence where the file has bytes that are none of HDF5; [] when there are none."""
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
        return bad + _stray_bytes(raw) + [where for where in _changed_objects(f) if where not in bad]


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
