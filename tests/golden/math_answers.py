#!/usr/bin/env python3
"""Writes questions/math_answers.json: what lm-evaluation-harness makes of answers in LaTeX.

    python tests/golden/math_answers.py

(needs lm-eval 0.4.13 and datasets; takes seconds). boxed: the answer in a solution, null where there is none. forms: an
expression in its one form, null where the reference raises an exception; most are put together at random from pieces on which its
rules act.
"""
import json
import os
import pathlib
import random
import sys

sys.path.pop(0)  # files beside this one have names of packages
os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"

from lm_eval.tasks.hendrycks_math.utils import last_boxed_only_string, remove_boxed, strip_string  # noqa: E402

OUT = pathlib.Path(__file__).resolve().parent / "questions" / "math_answers.json"
SOLUTIONS = [
    "So $x = \\boxed{3}$.", "First \\boxed{1}, then \\boxed{\\frac{1}{2}}.", "\\boxed 7$ it is", "\\boxed{a{b}c} and more }",
    "No answer.", "\\fbox{12}", "\\boxed{open", "\\boxed{}", "\\boxed{\\text{even}}", "a \\boxed 5 and $\\boxed{6}$", "\\boxed{x}\\fbox{y}"]
FIXED = [
    "", " ", ".", ".5", "0.5", "1/2", "-1/2", "01/2", "+1/2", "1_0/3", "a/b", "1/2/3", "/", "\\frac12", "\\frac1{2}", "\\frac{1}2",
    "\\frac1", "\\frac", "\\dfrac{3}{4}", "\\tfrac34", "\\sqrt3", "\\sqrt{3}", "\\sqrt",
    "\\sqrt\\sqrt2", "\\sqrt\\frac12", "x=5", "x = 5",
    "xy=5", "abc=5", "x=5=y", "é=2", "üé=2", "5\\text{ cm}", "5\\text{cm}", "5\\text{ a}\\text{ b}",
    "30^\\circ", "30^{\\circ}", "\\$5", "$5$",
    "50\\%", "50%", "\\left(1, 2\\right)", "( 1 , 2 )", "1,000", "a\\\\b", "\\!5", "line\nbreak", "\\frac é2", "\\fracé2", "\\sqrtπ",
    "2 .5", "{.5}", "x=", "=3", "-0/5", "3/-4", "\\frac\\frac12", "\\frac{a}{b}\\frac34", "\\frac1\\frac23"]
PIECES = ["\\frac", "\\sqrt", "\\dfrac", "{", "}", "1", "2", "x", " ", ".", "=", "/", "\\left", "\\right", "^\\circ",
          "\\text{ ", "\\%", "\\$", "\\!",
          "-", ",", "é", "\\\\", "0.5", "_"]


def boxed(text):
    found = last_boxed_only_string(text)
    return None if found is None else remove_boxed(found) if not found.startswith("\\fbox") else found[len("\\fbox{"):-1]


def form(text):
    try:
        return strip_string(text)
    except (AssertionError, IndexError, ValueError):
        return None


def main():
    rng = random.Random(3)
    texts = FIXED + ["".join(rng.choice(PIECES) for _ in range(rng.randint(1, 7))) for _ in range(1500)]
    texts = list(dict.fromkeys(texts))
    golden = {"boxed": [[s, boxed(s)] for s in SOLUTIONS], "forms": [[t, form(t)] for t in texts]}
    OUT.write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    print(len(texts), sum(f is None for _, f in golden["forms"]), golden["boxed"])


main()
