# Decodes one tensor of a container with h5py and numpy alone: the lines of FORMAT.md.
# usage: read_container.py FILE.h5 TENSOR OUT.f32
import sys

import h5py
import numpy as np


def load(f, name):
    t = f["tensors"][name]
    if isinstance(t, h5py.Dataset):
        return t[...].astype("<f4")
    bits, (rows, cols) = int(t.attrs["bits"]), t.attrs["shape"]
    stream = np.unpackbits(t["packed"][...], axis=1, bitorder="little")[:, : cols * bits]
    codes = stream.reshape(rows, cols, bits) @ (1 << np.arange(bits))
    scale = np.repeat(t["scale"][...].astype("<f4"), t.attrs["group_size"], axis=1)[:, :cols]
    zero = 1 << (bits - 1)
    if "zero" in t:
        shape = t["scale"].shape
        z = np.unpackbits(t["zero"][...], axis=1, bitorder="little")[:, : shape[1] * bits]
        zero = np.repeat(z.reshape(*shape, bits) @ (1 << np.arange(bits)), t.attrs["group_size"], axis=1)[:, :cols]
    return (codes - zero).astype("<f4") * scale


with h5py.File(sys.argv[1], "r") as f:
    load(f, sys.argv[2]).astype("<f4").tofile(sys.argv[3])
