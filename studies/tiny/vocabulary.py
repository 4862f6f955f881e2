"""Ids and tokenizer files of the embedded pairs: <bos>, 256 bytes, then one id for every word of a generated language
(`ignore_merges`). Other text is spelled in bytes.
"""
import json
import os

BOS, FIRST_WORD, VOCAB = 0, 257, 640
ADJECTIVES = "red old small quiet green tall warm young grey bright cold slow".split()
ANIMALS = ("fox owl hen goat crow duck mole wolf hare seal deer frog horse sheep snail "
           "swan bear mouse").split()
VERBS = "sees likes hears follows meets finds greets leaves calls watches draws knows".split()
PLACES = ("river harbour garden bridge forest market tower field station island valley mill "
          "meadow lake orchard street").split()
LINKS = "near behind under beside above past".split()
ADVERBS = "often today again alone early gladly slowly twice".split()
FILL = ["the", "a", "and", "then", "while", "but", "."]
VALUES = [f"{i:02d}" for i in range(100)]


def ids(known):
    """{word: id}; words are distinct and fit into the vocabulary."""
    assert len(set(known)) == len(known) and FIRST_WORD + len(known) <= VOCAB
    return {w: FIRST_WORD + i for i, w in enumerate(known)}


def byte_map():
    """The printable stand-ins of byte-level BPE."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    out, n = {}, 0
    for b in range(256):
        if b in keep:
            out[b] = chr(b)
        else:
            out[b] = chr(256 + n)
            n += 1
    return out


def tokenizer(known):
    """tokenizer.json of a vocabulary of bytes and the words `known`."""
    table = byte_map()
    vocab = {"<bos>": BOS}
    vocab.update({table[b]: 1 + b for b in range(256)})
    vocab.update({table[32] + w: i for w, i in ids(known).items()})
    bos = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
    sequence = lambda name, kind: {"Sequence": {"id": name, "type_id": kind}}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": BOS, "content": "<bos>", "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": True}],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, sequence("A", 0)],
            "pair": [bos, sequence("A", 0), sequence("B", 1)],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [BOS], "tokens": ["<bos>"]}}},
        "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                  "vocab": vocab, "merges": []}}


def write_tokenizer(folder, known, positions):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(tokenizer(known), f, ensure_ascii=False, indent=1)
        f.write("\n")
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>",
                   "model_max_length": positions}, f, indent=1)
        f.write("\n")
