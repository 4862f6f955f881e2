#!/usr/bin/env python3
"""The generated language of the pair: documents, tokenizer, held-out text and questions.

    python make_data.py [OUT_DIR]        writes tokenizer.json, text.txt and choices.jsonl

A document is a stream of short made-up sentences with notes between them, `[ Oslo 17 ]`, and
questions about earlier notes, `? Oslo 17`. The sentences follow a random first-order grammar over 88
words, so a model can learn their statistics; a question can only be answered by looking back.
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
CITIES = ("Oslo Rome Riga Bern Lima Cairo Paris Tokyo Delhi Milan Turin Basel Ghent Porto Lagos Accra "
          "Quito Sofia Minsk Tunis Rabat Dakar Hanoi Seoul Osaka Kyoto Perth Leeds York Bath Lyon Nice "
          "Nantes Bremen Mainz Trier Graz Linz Split Zadar Varna Cluj Brno Lodz Lublin Vilnius Tartu "
          "Turku Malmo Bergen Aarhus Odense Cork Derry Bilbao Cadiz Malaga Faro Palma Bari Pisa Siena "
          "Parma Patras").split()
MARKS = ["[", "]", "?"]
WORDS = ADJECTIVES + ANIMALS + VERBS + PLACES + LINKS + ADVERBS + FILL + MARKS + CITIES + VALUES
ID = vocabulary.ids(WORDS)


class Grammar:
    """Eight successors with fixed odds for every word of a class; the odds are part of the language."""

    def __init__(self):
        rng = random.Random(5)
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

    def sentence(self, rng):
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
            out += [article, adjective, animal, verb, link, "the", place]
            if rng.random() < 0.5:
                out.append(self.choose(rng, self.adverb[place]))
        return out + ["."]


GRAMMAR = Grammar()


def document(rng, length, n_notes, n_questions):
    """Words of one document and the indices of its answers. Fills up to `length` words."""
    cities = rng.sample(CITIES, n_notes)
    values = rng.sample(VALUES, n_notes)
    notes = dict(zip(cities, values))
    asked = [rng.choice(cities) for _ in range(n_questions)]
    room = length - 4 * n_notes - 3 * n_questions
    filler = []
    while len(filler) < room:
        filler += GRAMMAR.sentence(rng)
    filler = filler[:max(room, 0)]
    words, answers = [], []
    cuts = sorted(rng.randrange(len(filler) + 1) for _ in range(n_notes))
    at = 0
    for city, cut in zip(cities, cuts):
        words += filler[at:cut] + ["[", city, notes[city], "]"]
        at = cut
    words += filler[at:]
    for city in asked:
        answers.append(len(words) + 2)
        words += ["?", city, notes[city]]
    return words, answers, cities, notes


def ids_of(words):
    return [ID[w] for w in words]


def question(rng):
    """A held-out item: the note that is asked for among up to eleven others."""
    words, _, cities, notes = document(rng, rng.randrange(90, 180), rng.randrange(6, 13),
                                       rng.randrange(0, 4))
    city = rng.choice(cities)
    wrong = rng.sample([notes[c] for c in cities if c != city], 3)
    choices = wrong + [notes[city]]
    rng.shuffle(choices)
    return {"ctx": " " + " ".join(words + ["?", city]), "choices": choices,
            "gold": choices.index(notes[city])}


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else HERE
    for name in ("llama", "diffllama"):
        vocabulary.write_tokenizer(os.path.join(out, name), WORDS, 512)
    rng = random.Random(10 ** 6)
    with open(os.path.join(out, "choices.jsonl"), "w") as f:
        for _ in range(600):
            f.write(json.dumps(question(rng)) + "\n")
    with open(os.path.join(out, "text.txt"), "w") as f:
        for _ in range(100):
            words, _, _, _ = document(rng, 192, rng.randrange(4, 13), 20)
            f.write(" " + " ".join(words))


if __name__ == "__main__":
    main()
