#!/usr/bin/env python3
"""The tokenizer, the training ids and the items of emergence/, from the text that corpus.py made.

    python tokens.py DIR          DIR: where corpus.py put the text

    tokenizer.json     byte-level BPE of 4096 tokens, trained on train.jsonl; <bos> is id 0
    train.bin          ids of train.jsonl, uint16, <bos> before every document
    heldout.txt        the beginning of every held-out document by turns, for `dq eval --text` and `dq stats`
    windows.json       the first WINDOWS windows of it: <bos> and 255 tokens each, as `dq eval --ctx 256` cuts them, and the bytes
                       of the second half, which is what that scores
    items.jsonl        {"ctx", "choices", "gold"}: which of four stretches of one held-out document goes on a context
    order.jsonl        the same form: which of four is the stretch as written; in the others two neighbouring words are swapped
"""
import argparse
import json
import os
import random

import numpy as np
import tokenizers as tk

VOCAB, BOS, POSITIONS, WINDOWS = 4096, 0, 256, 128
ITEMS, ORDER_ITEMS, CTX_WORDS, CHOICE_WORDS = 400, 800, 64, 12


def read(folder, name):
    with open(os.path.join(folder, name + ".jsonl"), encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def train_tokenizer(documents):
    tok = tk.Tokenizer(tk.models.BPE())
    tok.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = tk.decoders.ByteLevel()
    tok.train_from_iterator((d["text"] for d in documents), tk.trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=["<bos>"], show_progress=False,
        initial_alphabet=tk.pre_tokenizers.ByteLevel.alphabet()))
    tok.post_processor = tk.processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", BOS)])
    return tok


def stretches(documents, size):
    """The documents by turns, `size` characters of each: one document does not fill the windows."""
    at, out = 0, []
    while any(len(d["text"]) > at for d in documents):
        out += [d["text"][at:at + size] for d in documents if len(d["text"]) > at + size // 2]
        at += size
    return "\n\n".join(out)


def items(documents, rng, count):
    """Contexts of CTX_WORDS words and four stretches of CHOICE_WORDS, three from elsewhere in the same document."""
    long = [d["text"] for d in documents if len(d["text"].split()) > 20 * CTX_WORDS]
    out = []
    while len(out) < count:
        words = long[len(out) % len(long)].split()
        at = rng.randrange(len(words) - CTX_WORDS - CHOICE_WORDS)
        end = at + CTX_WORDS
        others = rng.sample([w for w in range(0, len(words) - CHOICE_WORDS)
                             if abs(w - end) > CTX_WORDS + CHOICE_WORDS], 3)
        if max(len(word) for w in [at, end, *others] for word in words[w:w + CTX_WORDS]) > 24:
            continue  # rules and addresses
        choices = [" ".join(words[w:w + CHOICE_WORDS]) for w in [end, *others]]
        gold = rng.randrange(4)
        choices[0], choices[gold] = choices[gold], choices[0]
        out.append({"ctx": " ".join(words[at:end]), "choices": choices, "gold": gold})
    return out


def swapped(words, at):
    return words[:at] + [words[at + 1], words[at]] + words[at + 2:]


def order_items(documents, rng):
    """What items() draws: the stretch that goes on, and three of it with two neighbours swapped, all four different."""
    out = []
    for item in items(documents, rng, ORDER_ITEMS):
        words = item["choices"][item["gold"]].split()
        wrong = [w for w in (swapped(words, at) for at in range(len(words) - 1)) if w != words]
        choices = [" ".join(w) for w in rng.sample(wrong, 3)]
        choices.insert(item["gold"], " ".join(words))
        out.append({**item, "choices": choices})
    return out


def write_items(folder, name, found):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        f.writelines(json.dumps(item, ensure_ascii=False) + "\n" for item in found)


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("dir")
    folder = parse.parse_args().dir
    train, heldout = read(folder, "train"), read(folder, "heldout")
    tok = train_tokenizer(train)
    tok.save(os.path.join(folder, "tokenizer.json"))
    ids = [i for d in train for i in tok.encode(d["text"]).ids]
    np.array(ids, dtype=np.uint16).tofile(os.path.join(folder, "train.bin"))
    text = stretches(heldout, 1500)
    with open(os.path.join(folder, "heldout.txt"), "w", encoding="utf-8") as f:
        f.write(text)
    every = tok.encode(text).ids
    windows = [[BOS] + every[s + 1:s + POSITIONS] for s in range(0, WINDOWS * POSITIONS, POSITIONS)]
    size = [sum(len(tok.id_to_token(i)) for i in w[POSITIONS // 2 + 1:]) for w in windows]  # a character stands for a byte
    with open(os.path.join(folder, "windows.json"), "w") as f:
        json.dump({"ids": windows, "bytes": size}, f)
    write_items(folder, "items.jsonl", items(heldout, random.Random(0), ITEMS))
    write_items(folder, "order.jsonl", order_items(heldout, random.Random(1)))
    print(f"{len(ids)} training ids, {sum(len(d['text'].encode()) for d in train) / len(ids):.3f} bytes each; "
          f"{len(every)} held-out ids, {len(windows)} windows, {sum(size)} bytes scored")


if __name__ == "__main__":
    main()
