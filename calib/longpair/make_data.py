#!/usr/bin/env python3
"""The generated language of the long pair: documents, tokenizer, held-out text and questions.

    python make_data.py [OUT_DIR [POSITIONS]]     writes text.txt, needles*.jsonl and the tokenizers

A document is a stream of short made-up sentences. Scattered among them are notes,
`[ Oslo 17 ]`, and questions about earlier notes, `? Oslo 17`, whose answer can only be found by
looking back, up to a whole window. Two kinds of decoys keep a match of one word from being enough:
sentences mention noted names without their value (`the red fox sees the mill near Oslo .`) and
loose numbers (`( 63 )`) belong to no name.
Every word is one token: the vocabulary is the 256 bytes plus whole words (`ignore_merges`).
"""
import json
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "studies", "tiny"))
import vocabulary  # noqa: E402
from vocabulary import (ADJECTIVES, ADVERBS, ANIMALS, FILL, LINKS, PLACES, VALUES,  # noqa: E402
                        VERBS)

HERE = os.path.dirname(os.path.abspath(__file__))
KINDS = ("diffllama", "llama")
NAMES = ("Oslo Rome Riga Bern Lima Cairo Paris Tokyo Delhi Milan Turin Basel Ghent Porto Lagos Accra "
         "Quito Sofia Minsk Tunis Rabat Dakar Hanoi Seoul Osaka Kyoto Perth Leeds York Bath Lyon Nice "
         "Nantes Bremen Mainz Trier Graz Linz Split Zadar Varna Cluj Brno Lodz Lublin Vilnius Tartu "
         "Turku Malmo Bergen Aarhus Odense Cork Derry Bilbao Cadiz Malaga Faro Palma Bari Pisa Siena "
         "Parma Patras Genoa Lecce Arles Dijon Rouen Brest Metz Namur Leuven Delft Breda Kiel Ulm "
         "Jena Bonn Essen Zug Chur Aosta Como Lucca Udine Pula Sibiu Iasi Plovdiv Gdansk Tampere Oulu "
         "Umea Lund").split()
MARKS = ["[", "]", "(", ")", "?"]
WORDS = ADJECTIVES + ANIMALS + VERBS + PLACES + LINKS + ADVERBS + FILL + MARKS + NAMES + VALUES
ID = vocabulary.ids(WORDS)

WINDOW = 1024           # ids of a document, BOS included; a multiple of it for longer models
MOST = 90               # notes of a document at most, of 96 names and 100 values
DEPTH_BINS = 8          # needles.jsonl has as many items in each eighth of the context
ITEMS = 256
CHOICES = 6
TEXTS = 72


class Grammar:
    """Eight successors with fixed odds for every word of a class; the odds are part of the language."""

    def __init__(self):
        rng = random.Random(11)
        pick = lambda words: rng.sample(words, min(8, len(words)))
        self.adjective = {w: pick(ADJECTIVES) for w in ("the", "a")}
        self.animal = {w: pick(ANIMALS) for w in ADJECTIVES}
        self.verb = {w: pick(VERBS) for w in ANIMALS}
        self.link = {w: pick(LINKS) for w in VERBS}
        self.place = {w: pick(PLACES) for w in LINKS}
        self.adverb = {w: pick(ADVERBS) for w in PLACES}

    @staticmethod
    def choose(rng, options):
        return options[min(int(rng.expovariate(0.5)), len(options) - 1)]

    def sentence(self, rng, names):
        """One sentence; one in eight mentions a name, one in eight is followed by a loose number."""
        out = []
        for part in range(1 + (rng.random() < 0.3)):
            if part:
                out.append(rng.choice(("and", "then", "while", "but")))
            article = rng.choice(("the", "a"))
            adjective = self.choose(rng, self.adjective[article])
            animal = self.choose(rng, self.animal[adjective])
            verb = self.choose(rng, self.verb[animal])
            link = self.choose(rng, self.link[verb])
            place = self.choose(rng, self.place[link])
            out += [article, adjective, animal, verb, link]
            if rng.random() < 0.125:
                out.append(rng.choice(names))
                continue
            out += ["the", place]
            if rng.random() < 0.5:
                out.append(self.choose(rng, self.adverb[place]))
        out.append(".")
        if rng.random() < 0.125:
            out += ["(", rng.choice(VALUES), ")"]
        return out


GRAMMAR = Grammar()


class Document:
    """Exactly `length` words; notes and questions stand between sentences where `plan` puts them.

    plan: list of (place in 0..1, "note" or "ask"), sorted. A question takes the noted name that
    was asked least often so far, at random among equals, so few answers can be copied from an
    earlier question. A question before the first note is dropped.
    """

    def __init__(self, rng, length, plan):
        notes = sum(kind == "note" for _, kind in plan)
        self.names = rng.sample(NAMES, notes)
        self.values = dict(zip(self.names, rng.sample(VALUES, notes)))
        self.words, self.answers, self.at = [], [], {}
        asked, fresh = {}, iter(self.names)
        for place, kind in plan:
            self.sentences_until(rng, int(place * length))
            if kind == "note":
                name = next(fresh)
                asked[name] = 0
                self.at[name] = len(self.words)
                self.words += ["[", name, self.values[name], "]"]
            elif asked:
                least = min(asked.values())
                name = rng.choice([n for n, times in asked.items() if times == least])
                asked[name] += 1
                self.answers.append(len(self.words) + 2)
                self.words += ["?", name, self.values[name]]
        self.sentences_until(rng, length)
        self.asked = asked
        del self.words[length:]
        self.answers = [a for a in self.answers if a < length]

    def sentences_until(self, rng, end):
        while len(self.words) < end:
            self.words += GRAMMAR.sentence(rng, self.names)


def mixed_plan(rng, notes, questions):
    """Notes in the first part of the document, questions anywhere after the first few notes."""
    last = rng.uniform(0.3, 0.9)
    first = rng.uniform(0.1, last)
    plan = [(rng.uniform(0, last), "note") for _ in range(notes)]
    plan += [(rng.uniform(first, 1), "ask") for _ in range(questions)]
    return sorted(plan)


def halves_plan(rng, notes):
    """Notes in the first half only, each asked once in the second half: nothing of the second half
    helps with an answer."""
    plan = [(rng.uniform(0, 0.47), "note") for _ in range(notes)]
    plan += [(rng.uniform(0.5, 0.98), "ask") for _ in range(notes)]
    return sorted(plan)


def needle_item(rng, depth, window=WINDOW):
    """A held-out question about the note at `depth` of the context, the others being 11 to 23 in 1000 words."""
    length, times = window - 24, window // WINDOW
    notes = rng.randrange(min(12 * times, 48), min(25 * times, MOST + 1))
    plan = sorted([(rng.uniform(0, 0.97), "note") for _ in range(notes - 1)] + [(depth, "note")])
    doc = Document(rng, length, plan)
    while doc.words[-1] not in (".", ")", "]"):     # a question never interrupts a sentence
        doc.words.pop()
    name = min(doc.names, key=lambda n: abs(doc.at[n] / length - depth))
    words = doc.words + ["?", name]
    gold = doc.values[name]
    choices = rng.sample([v for v in doc.values.values() if v != gold], CHOICES - 1) + [gold]
    rng.shuffle(choices)
    return {"ctx": " " + " ".join(words), "choices": choices, "gold": choices.index(gold),
            "depth": round(doc.at[name] / len(words), 4), "needles": notes}


def ids_of(words):
    return [ID[w] for w in words]


def write_tokenizer(folder, window=WINDOW):
    vocabulary.write_tokenizer(folder, WORDS, window)


def blind(item):
    """The question belongs to the continuation: what evicts a part of the context cannot know it."""
    at = item["ctx"].rindex(" ? ")
    question = item["ctx"][at + 1:]
    return {**item, "ctx": item["ctx"][:at], "choices": [f"{question} {c}" for c in item["choices"]]}


def asked(item):
    """The question stands in the context and once more in the continuation: it may be known."""
    return {**blind(item), "ctx": item["ctx"]}


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else HERE
    window = int(sys.argv[2]) if len(sys.argv) > 2 else WINDOW
    assert window % WINDOW == 0, window
    for kind in KINDS:
        write_tokenizer(os.path.join(out, f"{kind}-0"), window)
    rng = random.Random(2 * 10 ** 6)
    items = []
    for i in range(ITEMS):
        depth = 0.98 * (i % DEPTH_BINS + rng.random()) / DEPTH_BINS
        items.append(needle_item(rng, depth, window))
    for name, form in (("needles", dict), ("needles-blind", blind), ("needles-asked", asked)):
        with open(os.path.join(out, name + ".jsonl"), "w") as f:
            f.writelines(json.dumps(form(item)) + "\n" for item in items)
    with open(os.path.join(out, "text.txt"), "w") as f:
        for _ in range(TEXTS):
            notes = rng.randrange(32, 49) if window == WINDOW else rng.randrange(64, MOST + 1)
            doc = Document(rng, window, halves_plan(rng, notes))
            f.write(" " + " ".join(doc.words))


if __name__ == "__main__":
    main()
