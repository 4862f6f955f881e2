# The functions of numbers of studies/kv/defaults.py, on numbers made up here.
# usage: kv_studies.py DQ REPOSITORY
import os
import random
import sys

repository = os.path.abspath(sys.argv[2])
sys.path.insert(0, os.path.join(repository, "studies", "kv"))
import defaults  # noqa: E402

draw = random.Random(1)

# ---- defaults: intervals

constant = {s: [0.5] * 10 for s in defaults.SEEDS}
for seed, mean, error, less, half in defaults.compare(constant, constant):
    assert (mean, error, less, half) == (0.5, 0, 0, 0) and defaults.said("kld", less, half) == "the same"
# the same noise in all models is one cluster an item: seeds say nothing of it, items do
noise = [draw.gauss(0, 1) for _ in range(400)]
ours, usual = {s: [0.1 + x for x in noise] for s in defaults.SEEDS}, {s: [0.0] * 400 for s in defaults.SEEDS}
rows = {r[0]: r[1:] for r in defaults.compare(ours, usual)}
assert list(rows) == ["0", "1", "2", "all", "seeds"]
assert abs(rows["all"][3] - rows["0"][3]) < 1e-12 and 0.08 < rows["all"][3] < 0.12, "three models that read one text count thrice"
assert rows["seeds"][3] < 1e-12
three = defaults.interval([1.0, 2.0, 3.0])
assert abs(three[0] - 2) < 1e-12 and abs(three[1] - 4.303 / 3 ** 0.5) < 1e-9
# of a fair coin 95 of 100 intervals over three seeds hold the truth
inside = sum(abs(m) <= h for m, h in (defaults.interval([draw.gauss(0, 1) for _ in range(3)]) for _ in range(4000)))
assert 3720 <= inside <= 3880, inside
try:
    defaults.compare({s: [1.0] for s in defaults.SEEDS}, {s: [1.0, 2.0] for s in defaults.SEEDS})
    raise AssertionError("items that do not pair are compared")
except ValueError:
    pass
assert [defaults.said(*a) for a in (("kld", -1, 0.5), ("kld", 1, 0.5), ("blind", 1, 0.5), ("kld 4:4", -1, 2))] == \
    ["better", "worse", "better", "inconclusive"]

# ---- defaults: parts that are kept

name = defaults.part_name("llama-0", "kld 4:4", "h2o", ["--text", os.sep + os.path.join("a", "text.txt"), "--limit", "24"])
assert name.startswith("llama-0-kld-4x4-h2o-") and name.endswith(".items")
others = [("llama-0", "kld 4:4", "keydiff", ["--text", os.sep + os.path.join("a", "text.txt"), "--limit", "24"]),
          ("llama-0", "kld 4:4", "h2o", ["--text", os.sep + os.path.join("a", "text.txt"), "--limit", "25"])]
assert len({name, *(defaults.part_name(*o) for o in others)}) == 3, "a part is taken for one of other settings"
assert name == defaults.part_name("llama-0", "kld 4:4", "h2o", ["--text", os.sep + os.path.join("b", "text.txt"), "--limit", "24"])
lines = ['{"kv": {"policy": null}, "kld_nats": 0}', '{"kv": {"policy": "h2o", "keep": 0.5}, "kld_nats": 0.25}',
         '{"kv": {"policy": "h2o", "keep": 0.5}, "choice": 0, "pick": {"acc": 3}, "gold": 3}',
         '{"kv": {"policy": "h2o", "keep": 0.5}, "choice": 1, "pick": {"acc": 3}, "gold": 3}',
         '{"kv": {"policy": "h2o", "keep": 0.25}, "choice": 0, "pick": {"acc": 2}, "gold": 3}']
assert defaults.read_items(lines) == {0.5: [0.25, 1.0], 0.25: [0.0]}
