#!/usr/bin/env python3
"""Writes fit/golden.json: power laws with an offset through mean curves, by SciPy, and their jackknife errors.

    python tests/golden/fit.py

(needs NumPy and SciPy 1.17; takes seconds). Curves of documents are made here: a power law each, whose parameters differ,
with an error that changes slowly, as a cumulative mean does. scipy.optimize.curve_fit fits all three parameters at once from
several beginnings, of which the least sum of squares counts; it is repeated without each document. The last case
is a straight line over ln t, which no power law with an offset fits best.
"""
import json
import pathlib
import sys

sys.path.pop(0)
import numpy as np  # noqa: E402
from scipy.optimize import curve_fit  # noqa: E402

OUT = pathlib.Path(__file__).resolve().parent / "fit" / "golden.json"


def points(first, last):
    at = [int(np.floor(first * 2 ** (k / 8) + 0.5)) for k in range(400)]
    return sorted({t for t in at if t < last}) + [last]


def law(t, alpha, beta, gamma):
    return alpha * t ** beta + gamma


def fit(t, y):
    best = None
    for beta in (-0.1, -0.3, -0.7, -1.5):
        x = t ** beta
        slope, offset = np.polyfit(x, y, 1)
        try:
            p, _ = curve_fit(law, t, y, p0=(slope, beta, offset), xtol=1e-14, ftol=1e-14, gtol=1e-14, maxfev=100000)
        except RuntimeError:
            continue
        squares = ((law(t, *p) - y) ** 2).sum()
        if best is None or squares < best[0]:
            best = squares, p
    return best[1], np.sqrt(best[0] / len(t))


def case(rng, documents, first, last, alpha, beta, gamma, noise):
    at = points(first, last)
    t = np.array(at, float)
    curves = []
    for _ in range(documents):
        a, b, c = alpha * (1 + 0.2 * rng.normal()), beta * (1 + 0.1 * rng.normal()), gamma + 0.1 * rng.normal()
        wave = noise * np.cos(np.log(t) * (1 + rng.random()) + 6 * rng.random())
        curves.append([round(float(x), 6) for x in law(t, a, b, c) + wave])
    y = np.array(curves)
    p, residual = fit(t, y.mean(0))
    parts = np.array([fit(t, np.delete(y, d, 0).mean(0))[0] for d in range(documents)])
    errors = np.sqrt((documents - 1) / documents * ((parts - parts.mean(0)) ** 2).sum(0))
    return {"first": first, "last": last, "at": at, "curves": curves, "parameters": p.tolist(), "stderr": errors.tolist(),
            "residual": float(residual)}


def main():
    rng = np.random.default_rng(4)
    cases = [case(rng, 6, 16, 900, 3.0, -0.5, 2.0, 0.01), case(rng, 12, 1024, 65536, 20.0, -0.35, 1.6, 0.004),
             case(rng, 4, 16, 300, 8.0, -0.9, 0.7, 0.01)]
    at = points(16, 512)
    straight = [[round(3 - 0.2 * float(np.log(t)), 6) for t in at] for _ in range(3)]
    OUT.parent.mkdir(exist_ok=True)
    cases.append({"first": 16, "last": 512, "at": at, "curves": straight, "parameters": None})
    OUT.write_text(json.dumps({"cases": cases}) + "\n")
    for c in cases:
        print(c["parameters"], c.get("stderr"), c.get("residual"))


main()
