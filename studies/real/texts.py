"""Texts that anybody can have, for the bench of a real model: from packages of Debian 12, by name and SHA-256.

    python texts.py DIR [--from FOLDER] [--wikitext FILE]
                                FOLDER: holds the packages already, nothing is fetched; FILE: WikiText-2's raw test part

    calib.jsonl     what calibrates: pages of the Debian Administrator's Handbook (GPL-2+ or CC-BY-SA-3.0) and of a
                    political FAQ (package anarchism, GPL-2)
    choose.jsonl    other pages of both, for decisions
    near.jsonl      other pages of both, for scores: nothing is decided on them
    far.jsonl       six novels of Jane Austen (package r-cran-janeaustenr, MIT; the novels are in the public domain), for
                    scores: of another kind than what calibrates
    howto.jsonl     pages of GNOME's help, a few in a document (package gnome-user-docs, CC-BY-SA-3.0), for scores: another kind
    de, ru, ko.jsonl  other pages of that help in German, Russian and Korean, for scores
    code.jsonl      modules of NetworkX (package python3-networkx, BSD-3-clause), for scores
    calib-de, calib-ru, calib-ko, calib-code.jsonl   the pages and modules between those, which calibrate
    wiki.jsonl      articles of FILE (CC-BY-SA-3.0; no package of Debian has it), for scores: another kind

A document is the beginning of a page, or a stretch of a novel, of up to 5600 characters (about 1200 tokens), cut at the end
of a paragraph; shorter pages are left out. FILE.txt holds the documents of FILE.jsonl one after the other. Needs Python alone.
"""
import argparse
import hashlib
import html.parser
import io
import json
import os
import re
import tarfile
import urllib.request
import xml.etree.ElementTree
import zlib

POOL = "http://deb.debian.org/debian/pool/main/"
PACKAGES = {
    "handbook": ("d/debian-handbook/debian-handbook_11.20220922_all.deb",
                 "3d5dbeac1f1afc9c094eab9d0f701f6ecff99c4927d5a4794cf6c85678134faa"),
    "faq": ("a/anarchism/anarchism_15.3-3_all.deb",
            "cf21c10948b00e923c62eb31c39a3390413fa26c5ee0e3b925feb0ec7fe42948"),
    "novels": ("r/r-cran-janeaustenr/r-cran-janeaustenr_1.0.0-1_all.deb",
               "df6bddf211906d1ff404f8ff662c21b34e6660e7f54a311084e749050c019c95"),
    "code": ("n/networkx/python3-networkx_2.8.8-1_all.deb",
             "69888603d1b54696f5c3d02d05527628d2d18661d845109a62fe24aff241aa7b"),
    "help": ("g/gnome-user-docs/gnome-user-docs_43.0-2_all.deb",
             "0d635a840747958ca84da778b40d341f1155603851f922c9a171f5a181d6a39f"),
}
CHARACTERS = 5600
STRETCHES = 12  # of a novel


def package(name, folder):
    """The files of a package: name -> bytes."""
    path, digest = PACKAGES[name]
    local = os.path.join(folder, os.path.basename(path))
    if not os.path.exists(local):
        with urllib.request.urlopen(POOL + path) as answer, open(local + ".part", "wb") as out:
            out.write(answer.read())
        os.replace(local + ".part", local)
    with open(local, "rb") as f:
        deb = f.read()
    if hashlib.sha256(deb).hexdigest() != digest:
        raise SystemExit(f"texts.py: {local} is another file than expected (SHA-256 {digest}). Remove it and try again.")
    at = 8  # a .deb is an ar archive: headers of 60 bytes, contents on even places
    while at < len(deb):
        size = int(deb[at + 48:at + 58])
        if deb[at:at + 16].startswith(b"data.tar"):
            with tarfile.open(fileobj=io.BytesIO(deb[at + 60:at + 60 + size])) as tar:
                return {m.name: tar.extractfile(m).read() for m in tar if m.isfile()}
        at += 60 + size + size % 2
    raise SystemExit(f"texts.py: {local} has no data")


class Page(html.parser.HTMLParser):
    """The paragraphs of a page, without its lists of links and preformatted text."""
    BLOCKS = {"p", "div", "h1", "h2", "h3", "h4", "li", "blockquote", "dt", "dd", "td", "br"}
    LEFT_OUT = {"head", "pre", "script", "style", "table"}

    def __init__(self, source):
        super().__init__()
        self.parts, self.out = [""], 0
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        self.out += tag in self.LEFT_OUT
        if tag in self.BLOCKS:
            self.parts.append("")

    def handle_endtag(self, tag):
        self.out -= tag in self.LEFT_OUT
        if tag in self.BLOCKS:
            self.parts.append("")

    def handle_data(self, data):
        if not self.out:
            self.parts[-1] += data

    def paragraphs(self):
        texts = (re.sub(r"\s+", " ", part).strip() for part in self.parts)
        return [text for text in texts if len(text.split()) >= 8 and text[-1] in '.?!:)"']  # no headings, no links


def document(paragraphs):
    """Paragraphs up to CHARACTERS, None where there are far fewer."""
    text, n = [], 0
    for paragraph in paragraphs:
        if n + len(paragraph) > CHARACTERS:
            break
        text.append(paragraph)
        n += len(paragraph) + 2
    return "\n\n".join(text) if n > 0.9 * CHARACTERS else None


def pages(name, folder, inside):
    files = package(name, folder)
    found = (document(Page(files[f].decode("utf-8", "replace")).paragraphs())
             for f in sorted(files) if f.endswith(".html") and inside in f)
    return [text for text in found if text]


def strings(data):
    """The elements of a character vector in R's serialization (XDR), which is all that a novel is there."""
    def number(at):
        return int.from_bytes(data[at:at + 4], "big")
    at = 14 if number(2) == 2 else 18 + number(14)  # "X\n", format, two versions of R; format 3 names an encoding
    if data[:2] != b"X\n" or number(at) & 0xFF != 16:
        return None
    n, at, out = number(at + 4), at + 8, []
    for _ in range(n):
        size = number(at + 4)
        out.append(data[at + 8:at + 8 + size].decode())
        at += 8 + size
    return out


def novels(folder):
    files = package("novels", folder)
    data, out = next(files[f] for f in files if f.endswith("data/Rdata.rdb")), []
    while data:  # objects follow each other: their size, then a zlib stream
        stream = zlib.decompressobj()
        lines = strings(stream.decompress(data[4:]))
        data = stream.unused_data
        if not lines:
            continue
        paragraphs = [re.sub(r"\s+", " ", p).strip() for p in "\n".join(lines).split("\n\n")]
        for i in range(STRETCHES):
            out.append(document(paragraphs[len(paragraphs) * (2 * i + 1) // (2 * STRETCHES):]))
    return [text for text in out if text]


def help_pages(files, language):
    """The paragraphs of each page, by its name."""
    tag = "{http://projectmallard.org/1.0/}p"
    return {os.path.basename(f): [re.sub(r"\s+", " ", "".join(e.itertext())).strip()
                                  for e in xml.etree.ElementTree.fromstring(files[f]).iter(tag)]
            for f in sorted(files) if f"/{language}/gnome-help/" in f and f.endswith(".page")}


def howto(folder, language="C"):
    """Pages in the order of their names, which puts those of a subject side by side; what is not translated is left out."""
    files = package("help", folder)
    english = set() if language == "C" else {text for page in help_pages(files, "C").values() for text in page}
    paragraphs, out = [], []
    for page in help_pages(files, language).values():
        paragraphs += [text for text in page if len(text.split()) >= 8 and text not in english]
        if sum(len(text) + 2 for text in paragraphs) > 1.2 * CHARACTERS:
            out.append(document(paragraphs))
            paragraphs = []
    return [text for text in out if text]


def modules(folder):
    """Their beginnings, in lines."""
    files, out = package("code", folder), []
    for name in sorted(f for f in files if f.endswith(".py") and "/tests/" not in f):
        text = files[name].decode()[:CHARACTERS + 1]
        if len(text) > CHARACTERS:
            out.append(text[:text.rindex("\n")])
    return out


def articles(path):
    """WikiText's articles: " = Title = " begins one, " = = Heading = = " a section."""
    with open(path, encoding="utf-8") as f:
        parts = re.split(r"^ = [^=].*[^=] = *$", f.read(), flags=re.MULTILINE)[1:]
    found = (document([line.strip() for line in part.splitlines() if line.strip() and not line.startswith(" =")])
             for part in parts)
    return [text for text in found if text]


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("out")
    parse.add_argument("--from", dest="folder")
    parse.add_argument("--wikitext", metavar="FILE")
    args = parse.parse_args()
    os.makedirs(args.out, exist_ok=True)
    folder = args.folder or args.out
    both = (pages("handbook", folder, "/en-US/"), pages("faq", folder, "/html/sec"))
    texts = {"calib": [], "choose": [], "near": []}
    for source in both:
        for i, text in enumerate(source):
            texts[("calib", "choose", "near")[i % 3]].append((i, text))
    texts["far"] = list(enumerate(novels(folder)))
    texts["howto"] = list(enumerate(howto(folder)))
    apart = {language: howto(folder, language) for language in ("de", "ru", "ko")}
    apart["code"] = modules(folder)
    for kind, found in apart.items():
        texts["calib-" + kind], texts[kind] = list(enumerate(found[::2])), list(enumerate(found[1::2]))
    if args.wikitext:
        texts["wiki"] = list(enumerate(articles(args.wikitext)))
    for name, found in texts.items():
        found.sort(key=lambda pair: pair[0])  # sources by turns
        with open(os.path.join(args.out, name + ".jsonl"), "w", encoding="utf-8") as out:
            out.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for _, text in found)
        with open(os.path.join(args.out, name + ".txt"), "w", encoding="utf-8") as out:
            out.write("\n\n".join(text for _, text in found) + "\n")
        print(f"{name}: {len(found)} documents, {sum(len(text) for _, text in found)} characters")


if __name__ == "__main__":
    main()
