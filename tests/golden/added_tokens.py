"""Added tokens that several files name, as transformers' AutoTokenizer takes them: writes added_tokens.json, read by
tests/unit/tokenizer/test_tokenizer_files.c. Needs transformers (made with 5.24, tokenizers 0.23) with torch or without.

    python3 tests/golden/added_tokens.py
"""
import json
import pathlib
import random
import tempfile

from transformers import AutoTokenizer

OUT = pathlib.Path(__file__).parent / "added_tokens.json"
NAMES = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"]
WORDS = ["<|a|>", "<|b|>", "<x>", "<y>", "ab", "<|end|>", " q", "<z>", "<bos>", "<img>"]
FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
R = random.Random(5)


def base():
    """<bos> is 0, byte b is 1 + b, <x> is 257."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in plain]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    vocab = {"<bos>": 0, **{chr(b if b in plain else 256 + other.index(b)): 1 + b for b in range(256)}, "<x>": 257}
    return {"version": "1.0", "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "vocab": vocab, "merges": []}}


def flags(full=True):
    f = {**{k: R.random() < .3 for k in FLAGS}, "special": R.random() < .6}
    return {k: v for k, v in f.items() if full or R.random() < .7}


def value(typed=True):
    if R.random() < .5:
        return R.choice(WORDS)
    return {"content": R.choice(WORDS), **flags(), **({"__type": "AddedToken"} if typed else {})}


def draw():
    """The four files of one case; None: there is none."""
    own = [{"id": 0, "content": "<bos>", **dict.fromkeys(FLAGS, False), "special": True}]
    own += [{"id": 258 + i, "content": c, **flags()}
            for i, c in enumerate(R.sample([w for w in WORDS if w not in ("<x>", "<bos>")], R.randint(0, 3)))]
    have = {"<x>": 257, **{a["content"]: a["id"] for a in own}}

    def numbered():
        out, n = {}, 257 + len(own)
        for c in R.sample(WORDS, R.randint(0, 4)):
            out[c] = have.get(c, n)
            n += c not in have
        return out
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if R.random() < .4:
        config["added_tokens_decoder"] = {str(i): {"content": c, **flags(False)} for c, i in numbered().items()}
    for key in ("bos_token", "eos_token", "pad_token", "image_token"):
        if R.random() < .35:
            config[key] = value()
    if R.random() < .3:
        config["additional_special_tokens"] = [value() for _ in range(R.randint(0, 3))]
    if R.random() < .3:
        config["extra_special_tokens"] = R.choice([[value(), value()], [], {"foo_token": R.choice(WORDS)}])
    special = None
    if R.random() < .4:
        special = {k: value(False) for k in ("eos_token", "bos_token", "image_token") if R.random() < .5}
        if R.random() < .4:
            special["additional_special_tokens"] = [R.choice(WORDS) for _ in range(2)]
        if R.random() < .2:
            special["extra_special_tokens"] = [value(False)]
    return [own, config, special, numbered() if R.random() < .4 else None]


def padding(word):
    return {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
            "pad_token": word}


def main():
    cases = []
    while len(cases) < 90:
        files = draw()
        if len(cases) >= 60:  # with what more there is in tokenizer.json and tokenizer_config.json
            files[1].update({"split_special_tokens": True} if R.random() < .4 else {})
            files[1].update({"image_token": value(False)} if R.random() < .5 else {})
            files.append(padding(R.choice(WORDS)) if R.random() < .5 else None)
        text = "".join(R.choice([*WORDS, "a", "b", " ", "  ", "\n", "q"]) for _ in range(14))
        with tempfile.TemporaryDirectory() as d:
            for name, content in zip(NAMES, [{**base(), "added_tokens": files[0], "padding": (files + [None])[4]}, *files[1:]]):
                if content is not None:
                    pathlib.Path(d, name).write_text(json.dumps(content))
            pathlib.Path(d, "config.json").write_text('{"model_type": "llama"}')
            try:
                t = AutoTokenizer.from_pretrained(d)
            except (TypeError, AttributeError):  # a list or name that it does not take
                continue
            ids = t(text, add_special_tokens=False)["input_ids"]
            cases.append({"files": files, "text": text, "ids": ids, "plain": t.decode(ids, skip_special_tokens=True)})
    lines = ",\n".join(json.dumps(c) for c in cases)
    OUT.write_text('{"base": ' + json.dumps(base()) + ',\n"cases": [\n' + lines + "\n]}\n")


if __name__ == "__main__":
    main()
