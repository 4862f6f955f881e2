#!/usr/bin/env python3
"""Copies a model whose head is its embedding, with a head of its own that has the same values.

    python studies/weights/untie.py FROM TO
"""
import json
import pathlib
import shutil
import struct
import sys


def main():
    source, to = (pathlib.Path(a) for a in sys.argv[1:])
    shutil.copytree(source, to)
    config = json.loads((source / "config.json").read_text())
    if not config["tie_word_embeddings"]:
        sys.exit(f"{source}: has a head of its own")
    config["tie_word_embeddings"] = False
    (to / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    data = (source / "model.safetensors").read_bytes()
    (n,) = struct.unpack_from("<Q", data)
    header, values = json.loads(data[8 : 8 + n]), data[8 + n :]
    begin, end = header["model.embed_tokens.weight"]["data_offsets"]
    header["lm_head.weight"] = dict(header["model.embed_tokens.weight"],
                                    data_offsets=[len(values), len(values) + end - begin])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (to / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + values + values[begin:end])


if __name__ == "__main__":
    main()
