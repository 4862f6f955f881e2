#!/usr/bin/env python3
"""Cuts a text in two between two tokens: one part to calibrate with, the other to score.

    python studies/weights/split.py TOKENIZER.json TEXT N FIRST.txt REST.txt      (needs tokenizers)

FIRST gets the first N tokens. Fails where the parts alone give other tokens than the whole.
"""
import sys

from tokenizers import Tokenizer


def main():
    name, text, n, first, rest = sys.argv[1:]
    tokenizer = Tokenizer.from_file(name)
    with open(text, encoding="utf-8") as f:
        whole = f.read()
    encoded = tokenizer.encode(whole, add_special_tokens=False)
    at = encoded.offsets[int(n)][0]
    parts = [(first, whole[:at], encoded.ids[: int(n)]), (rest, whole[at:], encoded.ids[int(n) :])]
    for path, part, ids in parts:
        if tokenizer.encode(part, add_special_tokens=False).ids != ids:
            sys.exit(f"{path}: its ids are not those of the whole text")
        with open(path, "w", encoding="utf-8") as f:
            f.write(part)


if __name__ == "__main__":
    main()
