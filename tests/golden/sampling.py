"""What transformers draws from, for the tests of dq's sampler: tests/golden/sampling.json.

    python tests/golden/sampling.py

(needs torch and transformers; a second on one core). Logits are small whole numbers of 1/64, some equal, so that f32 holds
them exactly. Each case has the probabilities that TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper and
MinPLogitsWarper leave, in the order of generate(), computed in f64; ids that cannot be drawn are not listed.
"""

import json
import pathlib
import sys

sys.path.pop(0)  # files beside this one have names of packages

import torch  # noqa: E402
from transformers.generation.logits_process import (  # noqa: E402
    MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)

CASES = [
    # temperature, top_k, top_p, min_p
    (1.0, 0, 1.0, 0.0), (0.7, 0, 1.0, 0.0), (2.5, 0, 1.0, 0.0), (1.0, 5, 1.0, 0.0), (0.7, 1, 1.0, 0.0),
    (1.0, 0, 0.9, 0.0), (0.7, 0, 0.5, 0.0), (1.5, 0, 0.01, 0.0), (1.0, 0, 1.0, 0.1), (0.8, 0, 1.0, 0.02),
    (0.8, 20, 0.95, 0.05), (1.3, 12, 0.8, 0.0), (1.0, 0, 0.999, 0.3), (3.0, 39, 0.9, 0.2),
]


def kept(logits, temperature, top_k, top_p, min_p):
    scores = logits[None].double()
    ids = torch.zeros((1, 1), dtype=torch.long)
    scores = TemperatureLogitsWarper(temperature)(ids, scores)
    if top_k:
        scores = TopKLogitsWarper(top_k)(ids, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(ids, scores)
    if min_p:
        scores = MinPLogitsWarper(min_p)(ids, scores)
    p = torch.softmax(scores, -1)[0]
    return {str(i): p[i].item() for i in range(len(p)) if p[i] > 0}


def main():
    torch.manual_seed(11)
    vectors = [torch.randint(-200, 400, (40,)).float() / 64 for _ in range(3)]
    vectors[2][7] = vectors[2].max() + 4  # one that nearly always wins
    cases = []
    for v, logits in enumerate(vectors):
        assert len(set(logits.tolist())) > 20
        for how in CASES:
            cases.append({"logits": v, "temperature": how[0], "top_k": how[1], "top_p": how[2], "min_p": how[3],
                          "p": kept(logits, *how)})
    out = {"logits": [v.tolist() for v in vectors], "cases": cases}
    path = pathlib.Path(__file__).with_name("sampling.json")
    path.write_text(json.dumps(out, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
