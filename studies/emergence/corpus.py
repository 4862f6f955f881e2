#!/usr/bin/env python3
"""The text that emergence/ trains on and measures on: documents of packages of Debian 12, by name and SHA-256.

    python corpus.py DIR [--from FOLDER]          FOLDER: holds the packages already, nothing is fetched

    train.jsonl        what trains, {"text": ..., "source": ...} a line, in an order drawn once
    heldout.jsonl      whole documents that nothing trains on: one novel, and every 24th page of each other source
    sources.csv        documents and bytes by source, and its licence

A document is a page, a novel or a stretch of a dictionary. A paragraph that stood in an earlier document is left out, so no
held-out paragraph is in the training text. Needs Python alone.
"""
import argparse
import csv
import gzip
import hashlib
import json
import os
import random
import re
import sys
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "real"))
import texts  # noqa: E402

# source: (package, SHA-256, licence, kind, which of its files)
SOURCES = {
    "novels": (*texts.PACKAGES["novels"], "public domain; package MIT", "novels", "janeaustenr/data/Rdata.rdb"),
    "moby-dick": ("r/r-cran-tokenizers/r-cran-tokenizers_0.3.0-1_amd64.deb",
                  "6312f013ebfde5650235bfd7ba5c44d9e4cf9f2da9855337c9483fe778f0d8c7",
                  "public domain; package MIT", "novels", "tokenizers/data/Rdata.rdb"),
    "anarchism": (*texts.PACKAGES["faq"], "GPL-2", "html", r"/html/.*\.html"),
    "handbook": (*texts.PACKAGES["handbook"], "GPL-2+ or CC-BY-SA-3.0", "html", r"/en-US/.*\.html"),
    "reference": ("d/debian-reference/debian-reference-en_2.100_all.deb",
                  "9f31d3a17df505de09689ca255512ea58c1fc47c59bb1b0c7bf1c23362e9743f", "GPL-2+", "html", r"\.en\.html"),
    "developers": ("d/developers-reference/developers-reference_12.18_all.deb",
                   "0dba82f6fa16e373f2a84ad07e7971aa9264ad2e7d2ae46b37edbc9c5fd57e2e", "GPL-2", "html", r"\.html"),
    "debian-faq": ("d/debian-faq/debian-faq_11.1_all.deb",
                   "427426e0cfa6888622fc1d72631071cb4b5a1f86ccde722e7820bcef284de5d0", "GPL-2+", "html", r"\.en\.html"),
    "history": ("d/debian-history/debian-history_2.28_all.deb",
                "ae364cdfd075bf6a08ca8f5105b44db7093e3b201c95d3b70a863b8849c6a082", "GPL-2+", "html", r"\.en\.html"),
    "securing": ("h/harden-doc/harden-doc_3.19+nmu1_all.deb",
                 "77ffacb6f8af4afbdf39f3de6040a710ae6ffcc40e2fab5b5d312dfb11d28d94", "GPL-2", "html", r"/en-US/.*\.html"),
    "bash": ("a/abs-guide/abs-guide_10-4_all.deb",
             "2432950da65e559b986f593c09a6d0dd6bc9f3bea83fa115774791066108ecd9", "public domain", "html", r"\.html"),
    "policy": ("d/debian-policy/debian-policy_4.6.2.0_all.deb",
               "ef9d01b625c3b87c3a845c2cd1b66f1a16e9240b2b9e5bee53472a00e8457a39", "GPL-2+", "html", r"\.html"),
    "maintainer": ("m/maint-guide/maint-guide_1.2.53_all.deb",
                   "762c8a400a36668d2eb814a3ba356b06488fd889dfce478eb11d5cfb189a47b5", "GPL-2+", "html", r"\.en\.html"),
    "aptitude": ("a/aptitude/aptitude-doc-en_0.8.13-5_all.deb",
                 "ba4864ca26464bbe06acd94dc4a79402eea5d7b2d3da943d6ecce3c752bc9e84", "GPL-2+", "html", r"\.html"),
    "schools": ("d/debian-edu-doc/debian-edu-doc-en_2.12.23~deb12u1_all.deb",
                "0a985aebd07dd69ea1d22c767c410fbca429e7c9fa378024bcaf4fedeb09506a", "GPL-2+", "html", r"\.html"),
    "desktop": ("g/gnome-user-docs/gnome-user-docs_43.0-2_all.deb",
                "0d635a840747958ca84da778b40d341f1155603851f922c9a171f5a181d6a39f", "CC-BY-SA-3.0", "html",
                r"/help/C/.*\.page"),
    "devil": ("d/dict-devil/dict-devil_1.0-13.1_all.deb",
              "6a535684def2a1f70cd42da16d12d43f0e9dc3e54e4a329178eebab3170e3154", "public domain", "dictionary", r"\.dict\.dz"),
    "foldoc": ("d/dict-foldoc/dict-foldoc_20230119-1_all.deb",
               "745cbedb55c2da609cc88ee0284e9d11a67a11ae3709daf7bad0e895ac3294c3", "GFDL-1.1+ without invariant sections",
               "dictionary", r"\.dict\.dz"),
    "gcide": ("d/dict-gcide/dict-gcide_0.48.5+nmu2_all.deb",
              "7b0af5cfde3cbdef5e9d6e78f92ec335ced7c2790f37a40f49bebc6f7347ac0f", "GPL-1+", "dictionary", r"\.dict\.dz"),
}
HELD_OUT_NOVEL = "PERSUASION"
EVERY = 24             # page of a source is held out
STRETCH = 20000        # characters of a dictionary make a document
GCIDE_PART = 16        # one of so many stretches of the largest dictionary, so that prose stays in the majority


def novels(data):
    """Character vectors of an R data base, each a novel: its lines joined to paragraphs."""
    while data:
        stream = zlib.decompressobj()
        lines = texts.strings(stream.decompress(data[4:]))
        data = stream.unused_data
        text = "\n".join(lines or []).replace("\r", "")
        text = re.sub(r"(?s)^.*\*\*\* START OF[^\n]*\n|\n[^\n]*\*\*\* END OF.*$", "", text)  # what surrounds a book
        if len(text) > 100000:
            yield [re.sub(r"\s+", " ", p).strip() for p in text.split("\n\n")]


def dictionary(data):
    """Stretches of a dictionary's text, cut between entries."""
    text = re.sub(r"\n? *\[(1913 Webster|PJC|WordNet 1\.5|\+PJC|AS)[^]]*\]", "", data.decode("utf-8", "replace"))
    text = re.sub(r"[{}]", "", text)
    stretch, n = [], 0
    for entry in re.split(r"\n\n(?=\S)", text):
        stretch.append(re.sub(r"\n +", "\n ", entry).strip())
        n += len(entry)
        if n > STRETCH:
            yield stretch
            stretch, n = [], 0
    if stretch:
        yield stretch


def documents(name, folder):
    """The documents of a source, each a list of paragraphs, by the name of their files."""
    path, digest, _, kind, pattern = SOURCES[name]
    texts.PACKAGES[name] = (path, digest)
    files = texts.package(name, folder)
    for file in sorted(f for f in files if re.search(pattern + "$", f)):
        data = files[file]
        if kind == "novels":
            yield from novels(data)
        elif kind == "dictionary":
            found = list(dictionary(gzip.decompress(data)))
            yield from found[::GCIDE_PART] if name == "gcide" else found
        else:
            yield texts.Page(data.decode("utf-8", "replace")).paragraphs()


def collect(folder):
    """(source, held out, text) of every document, without paragraphs that were there before."""
    seen = set()
    out = []
    for name in SOURCES:
        n = 0
        for paragraphs in documents(name, folder):
            title = " ".join(paragraphs[:2]) if SOURCES[name][3] == "novels" else ""
            fresh = []
            for p in paragraphs:
                key = hashlib.sha256(p.encode()).digest()[:12]
                if p and key not in seen:
                    fresh.append(p)
                seen.add(key)
            text = "\n\n".join(fresh)
            if len(text) < 400:
                continue
            n += 1
            held_out = HELD_OUT_NOVEL in title.upper() if title else n % EVERY == 0
            out.append((name, held_out, text))
    return out


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("out")
    parse.add_argument("--from", dest="folder")
    args = parse.parse_args()
    os.makedirs(args.out, exist_ok=True)
    found = collect(args.folder or args.out)
    random.Random(0).shuffle(found)
    for file, held_out in (("train", False), ("heldout", True)):
        with open(os.path.join(args.out, file + ".jsonl"), "w", encoding="utf-8") as out:
            out.writelines(json.dumps({"source": name, "text": text}, ensure_ascii=False) + "\n"
                           for name, is_held_out, text in found if is_held_out == held_out)
    with open(os.path.join(args.out, "sources.csv"), "w", encoding="utf-8", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(["source", "package", "licence", "train_documents", "train_bytes", "heldout_documents", "heldout_bytes"])
        for name, (path, _, licence, _, _) in SOURCES.items():
            counts = []
            for held_out in (False, True):
                sizes = [len(t.encode()) for s, h, t in found if s == name and h == held_out]
                counts += [len(sizes), sum(sizes)]
            out.writerow([name, os.path.basename(path), licence, *counts])


if __name__ == "__main__":
    main()
