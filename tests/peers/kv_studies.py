# The parts of calib/kv/plan.py, find_roles.py, asked_roles.py and defaults.py that are functions of numbers, on numbers made up
# here; and what plan.py and find_roles.py write is a recipe of dq, whose head orders, forms of widths and groups of KV heads they know.
# dq plan --kv measures what plan.py does, and dq plan --heads what find_roles.py does.
# usage: kv_studies.py DQ REPOSITORY
import argparse
import importlib
import json
import math
import os
import random
import subprocess
import sys
import tempfile

dq, repository = (os.path.abspath(path) for path in sys.argv[1:])


sys.path.insert(0, os.path.join(repository, "calib", "kv"))
plan, find_roles, defaults, asked_roles = map(importlib.import_module, ("plan", "find_roles", "defaults", "asked_roles"))


def refuses(function, *args):
    try:
        function(*args)
    except SystemExit as e:
        return str(e.code)
    raise AssertionError(f"{args} is not refused")


# ---- plan: widths and what they mean

draw = random.Random(1)
for layers in range(1, 6):
    for maps in (1, 2):
        for _ in range(50):
            widths = [draw.choice((2, 3, 8)) for _ in range(layers * maps + layers)]
            keys = tuple((widths[i * maps], widths[i * maps + maps - 1]) for i in range(layers))
            assert plan.meant(plan.text_of(widths, layers, maps), layers) == (keys, tuple(widths[layers * maps:]))
for texts in (("4", "4:4", "4*:4", "4|4:4*2", "4+4:4|4"), ("3|5+3:3|6", "3*1|5+3*:3|6"), ("3*|6", "3|6:3|6")):
    assert len({plan.meant(t, 2) for t in texts}) == 1, texts
assert plan.meant("3|6:4", 2) != plan.meant("6|3:4", 2)
for text in ("3|4|5:4", "3*3:4", "3|4*|5:4", "3*0|4*2:4"):
    assert text in refuses(plan.meant, text, 2)

assert [plan.key_maps(*a) for a in (("plain", 4, 4), ("shared-kv", 8, 2), ("adjacent", 8, 2), ("grouped", 20, 4))] == [1, 1, 2, 2]
assert plan.key_maps("halves", 8, 2) == 2 and plan.key_maps("halves", 8, 1) == 1
assert plan.key_maps("adjacent-naive", 8, 8) == 2 and plan.key_maps("adjacent-naive", 8, 4) == 1

# ---- plan: where bits go

WIDTHS = plan.WIDTHS
cost, loss = [0.25] * 4, [[2.0 ** -w * weight for w in WIDTHS] for weight in (1, 1, 1, 64)]
assert plan.greedy(loss, cost, 4) == [3, 3, 2, 8]
assert plan.greedy([[1.0] * len(WIDTHS)] * 4, cost, 4) == [WIDTHS[0]] * 4, "bits that save nothing are spent"
near = list(plan.neighbours([4, 4, 4, 4], cost, 4))
assert len(near) == 12 and all(sorted(n) == [3, 4, 4, 5] for n in near)
assert [3, 2, 2, 2] in plan.neighbours([2, 2, 2, 2], cost, 4)

# ---- plan: the recipe

about = json.loads(subprocess.run([dq, "info", os.path.join(repository, "calib", "pair", "diffllama"), "--json"], check=True,
                                  capture_output=True).stdout)["inputs"][0]
assert plan.key_maps(about["head_order"], about["n_q"], about["n_kv"]) == 2
settings = argparse.Namespace(code="dither", recent=16, mean=4)
widths = plan.text_of([3, 2, 5, 4, 3, 6], 2, 2)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "recipe.json")
    for weights in ({}, {"schema": "dq-recipe/1", "bits": 5, "group": "row", "comment": "mine", "kv": {"sink": 9}}):
        with open(path, "w") as f:
            json.dump(plan.recipe_of(weights, widths, settings), f)
        read = json.loads(subprocess.run([dq, "quantize", os.path.join(repository, "calib", "pair", "diffllama"), "--recipe", path,
                                          "--print-recipe"], check=True, capture_output=True).stdout)
        assert read["bits"] == weights.get("bits", 4) and read["comment"] == weights.get("comment", read["comment"])
        assert (read["kv"]["widths"], read["kv"]["quant"], read["kv"]["recent"]) == (widths, "dither", 16)
        assert read["kv"]["sink"] == weights.get("kv", {"sink": 4})["sink"]
text = os.path.join(repository, "calib", "pair", "text.txt")
for options in (["--code", "token"], ["--of", "4:4", "--recipe", "x.json"], ["--weights", "x.json"]):
    run = subprocess.run([sys.executable, os.path.join(repository, "calib", "kv", "plan.py"), "model", "--text", text, *options],
                         capture_output=True, text=True)
    assert run.returncode == 2 and options[0] in run.stderr.replace("--recipe writes", "--of"), run

# ---- plan, and dq plan --kv on the same windows

for name in ("diffllama", "llama"):
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(repository, "calib", "pair", name)
        common = [model, "--text", text, "--ctx", "128"]
        theirs = subprocess.run([sys.executable, os.path.join(repository, "calib", "kv", "plan.py"), *common, "--dq", dq, "--recent", "16",
                                 "--score", "2", "--plan", "4"], check=True, capture_output=True, text=True).stdout.splitlines()
        ours = json.loads(subprocess.run([dq, "plan", *common, "--kv", "4", "--kv-recent", "16", "--limit", "10", "--json", "-o",
                                          os.path.join(folder, "r.json")], check=True, capture_output=True).stdout)["results"][0]
        units = [", ".join(f"{1e3 * w['kld_nats']['value']:.3g}" for w in u["alone"]) for u in ours["units"]]
        assert [line.split(": ")[2] for line in theirs if ": KLD at " in line] == units
        found = [line for line in theirs if line.startswith(("by units: ", "measured: "))]
        assert found[0].startswith("by units: " + ours["trials"][0]["widths"] + ","), (found, ours["trials"])
        least = float(found[-1].split(", ")[1].split("e-3")[0].replace("KLD ", ""))
        assert 1e3 * ours["search_kld_nats"] < least + 6e-4, (found, ours["search_kld_nats"])

# ---- plan and find_roles: what they say without dq, or without a model

for script in ("plan", "find_roles"):
    for model, program, said in (("model", "no-such-dq", f"{script}.py: no-such-dq: "), ("no-such-model", dq, "no-such-model: ")):
        run = subprocess.run([sys.executable, os.path.join(repository, "calib", "kv", script + ".py"), model, "--text", text,
                              "--dq", program], capture_output=True, text=True)
        assert run.returncode > 0 and said in run.stderr and run.stderr.count("\n") == 1, run

# ---- find_roles: what is tried, and a whole run

assert find_roles.numbers_to_try(8, 16) == list(range(1, 9)) and find_roles.numbers_to_try(1, 2) == [1]
many = find_roles.numbers_to_try(256, 16)
assert many[0] == 1 and many[-1] == 256 and many == sorted(many) and 12 <= len(many) <= 16
for groups in (2, 4, 7, 8):  # one group has sinks and recent tokens only, the others at most a token each less than all
    safe, spent = 20, groups * (find_roles.others_whole(512, 16, groups) - 20)
    assert 0 <= (groups - 1) * (512 - safe) - spent < groups
assert find_roles.text_of(["1.0", "0.0"], 1) == "1.0/0.0" and find_roles.text_of(["1.0", "0.0"], 2) == "1.0,0.0/"
with tempfile.TemporaryDirectory() as folder:
    model, path, out = os.path.join(repository, "calib", "pair", "diffllama"), os.path.join(folder, "r.json"), os.path.join(folder, "r.csv")
    run = subprocess.run([sys.executable, os.path.join(repository, "calib", "kv", "find_roles.py"), model, "--text", text, "--dq", dq,
                          "--ctx", "256", "--keep", "0.25", "0.5", "--find", "2", "--score", "2", "--recipe", path, "--out", out],
                         capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    read = json.loads(subprocess.run([dq, "quantize", model, "--recipe", path, "--print-recipe"], check=True,
                                     capture_output=True).stdout)["kv"]
    assert sorted(read["heads"].replace("/", ",").strip(",").split(",")) == ["0.0", "0.1", "1.0", "1.1"]
    assert (read["policy"], read["keep"], read["budget"], read["recent"]) == ("keydiff", 0.25, "heads", 16)
    rows = [line.split(",") for line in open(out).read().splitlines()]
    assert [r[1:5] for r in rows[1:]] == [["kld", "keydiff", v, k] for k in ("0.25", "0.5") for v in ("drop", "heads")]
    assert all(len(r[5].split()) == 2 for r in rows[1:])

# find_roles, and dq plan --heads on the same windows and questions: the order, the number that share and every figure


def write_questions(path, count):
    """The last `count` items of the pair's choices with the question in each choice: what is after the compressed context is more than
    one token, so that the lack depends on the cache."""
    with open(os.path.join(repository, "calib", "pair", "choices.jsonl")) as source, open(path, "w") as f:
        for item in map(json.loads, source.readlines()[-count:]):
            words = item["ctx"].split(" ")
            assert words[-2] == "?", item
            choices = [" ".join((*words[-2:], choice)) for choice in item["choices"]]
            f.write(json.dumps({**item, "ctx": " ".join(words[:-2]), "choices": choices}) + "\n")


for name, keep, tries, find, ask in (("diffllama", "0.25", "16", 2, 0), ("diffllama", "0.5", "16", 2, 5), ("llama", "0.25", "3", 2, 0),
                                     ("llama", "0.25", "16", 0, 9)):
    with tempfile.TemporaryDirectory() as folder:
        common = [os.path.join(repository, "calib", "pair", name), "--text", text, "--ctx", "256"]
        theirs, mine = (os.path.join(folder, x) for x in ("theirs.json", "mine.json"))
        common += ["--find", str(find)]
        if ask:
            write_questions(os.path.join(folder, "asked.jsonl"), ask + 1)  # the first is not asked
            common += ["--questions", os.path.join(folder, "asked.jsonl"), "--ask", str(ask)]
        said = subprocess.run([sys.executable, os.path.join(repository, "calib", "kv", "find_roles.py"), *common, "--dq", dq,
                               "--keep", keep, "--score", "3", "--tries", tries, "--recipe", theirs],
                              check=True, capture_output=True, text=True).stdout.splitlines()
        ours = json.loads(subprocess.run([dq, "plan", *common, "--heads", keep, "--limit", str(find + 3), "--trials", tries, "--json",
                                          "--kv-policy", "keydiff", "--kv-recent", "16", "-o", mine], check=True,
                                         capture_output=True).stdout)["results"][0]
        with open(theirs) as a, open(mine) as b:
            assert json.load(a)["kv"] == json.load(b)["kv"]
        alone, lacks = [], {g["lack_nats"]["value"] for g in ours["groups"]} if ask else set()
        assert not ask or len(lacks) == len(ours["groups"]), ("the answers do not depend on which group is cut", lacks)
        assert not ask or len({t["lack_nats"] for t in ours["trials"]}) == len(ours["trials"]), ours["trials"]
        for g in ours["groups"]:
            parts = [f"KLD {g['alone']['kld_nats']['value']:.5f}"] if find else []
            parts += [f"answers {g['lack_nats']['value']:.5f}"] if ask else []
            alone.append(f"group {g['layer']}.{g['group']} without context: {', '.join(parts)}")
        assert sorted(alone) == said[:len(alone)], (alone, said)
        numbers = ", ".join(f"{t['sharing']}: {(t['kld_nats'] or 0) + (t['lack_nats'] or 0):.5f}" for t in ours["trials"])
        what = " + ".join(["KLD"] * (find > 0) + ["answers"] * (ask > 0))
        assert said[len(alone)] == f"{what} at {keep} when the first share: {numbers}", (numbers, said)
        found = ours["unseen"]["kld_nats"]["value"]
        usual, less = (({"value": found}, {"value": 0, "stderr": 0}) if ours["uniform"] is None else
                       (ours["uniform"]["unseen"]["kld_nats"], ours["uniform"]["plan_less_it"]["kld_nats"]))
        assert said[-1] == (f"kld, keydiff, keep {keep}: {found:.5f} with heads {ours['kv']['heads']}, {usual['value']:.5f} without, "
                            f"difference {less['value']:+.5f} +- {less['stderr']:.5f} over 3"), (ours, said)

# Questions: what the right answer lacks of all choices; that it counts, and which items are asked

loss = find_roles.Loss(argparse.Namespace(questions=None, find=2), None)
loss.asked, kept = ["--task", "mc"], (find_roles.klds, find_roles.ran)
find_roles.klds, find_roles.ran = lambda *_: {0.5: [1.0, 3.0]}, lambda *_: {0.5: [0.25, 0.75]}
assert loss.of([], []) == {0.5: ("KLD 2.00000, answers 0.50000", 2.5)}
find_roles.klds, find_roles.ran = kept
question = [{"ll": x, "gold": 1} for x in (-2000.0, -2000.0 + math.log(2), -2000.0)]
assert abs(find_roles.lack(question) - math.log(2)) < 1e-9 and find_roles.lack([{"ll": -9.0, "gold": 0}]) == 0
with tempfile.TemporaryDirectory() as folder:
    items = os.path.join(folder, "items.jsonl")
    with open(os.path.join(repository, "calib", "pair", "choices.jsonl")) as f:
        lines = f.readlines()
    with open(items, "w") as f:
        f.writelines(["no item\n", *lines[:3]])  # the last three are asked
    asked = [sys.executable, os.path.join(repository, "calib", "kv", "find_roles.py"), model, "--text", text, "--dq", dq, "--ctx", "256",
             "--keep", "0.5", "--score", "0", "--tries", "2", "--questions", items]
    told = {}
    for find in ("0", "2"):
        run = subprocess.run([*asked, "--find", find, "--ask", "3"], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        told[find] = run.stdout.splitlines()
    assert [x.split(" ")[4] for x in told["0"][:4]] == ["answers"] * 4 and all("KLD" in x and "answers" in x for x in told["2"][:4])
    assert told["0"][4].startswith("answers at 0.5") and told["2"][4].startswith("KLD + answers at 0.5")
    lost = [[float(x.rsplit(" ", 1)[1]) for x in told["0"][:4]], [float(x.rsplit(" ", 1)[1]) for x in told["2"][:4]]]
    assert lost[0] == lost[1], "questions alone and beside text are not the same questions"
    missed = [sum(float(x) for x in line.replace(",", "").split(" ")[5::2]) for line in told["2"][:4]]
    order = told["2"][5].rsplit(" ", 1)[1].replace("/", ",").strip(",").split(",")
    by_loss = sorted(range(4), key=lambda g: -missed[g])
    assert order == [told["2"][g].split(" ")[1] for g in by_loss], "groups are not in the order of what both lose"
    run = subprocess.run([*asked, "--ask", "5"], capture_output=True, text=True)
    assert run.returncode and "has 4 items, and 5 are asked for" in run.stderr, run.stderr
    run = subprocess.run([*asked[:-2], "--find", "0"], capture_output=True, text=True)
    assert run.returncode == 2 and "--find 1 (0 with --questions)" in run.stderr, run.stderr
    for options, said in ((["--of", "0.0/0.1,1.0,1.1"], "--of finds nothing"),
                          (["--needles", items, "--items", "2", "--ask", "3"], "4 items")):
        run = subprocess.run([*asked, *options], capture_output=True, text=True)
        assert run.returncode == 2 and said in run.stderr, run.stderr
    run = subprocess.run([*asked[:-2], "--ask", "3"], capture_output=True, text=True)
    assert run.returncode == 2 and "--ask needs --questions" in run.stderr, run.stderr

# ---- asked_roles: no more pages than uniform has, and no page more would do

for text_of_roles in ("1.0/1.1,0.0,0.1", "1.0,1.1/0.0,0.1", "a,b,c/d,e,f,g,h", "a,b/", "a,b,c,d,e,f,g/h"):
    sharing, rest = (len(x.split(",")) if x else 0 for x in text_of_roles.split("/"))
    for pages in (2, 3, 4, 7):
        def held(tokens):
            shared = (sharing + rest) * (tokens - 20)
            return sum(-(-(20 + shared // sharing + (i < shared % sharing)) // 64) for i in range(sharing)) + rest
        tokens = asked_roles.tokens_of_pages(text_of_roles, pages)
        assert held(tokens) <= pages * (sharing + rest) < held(tokens) + sharing and held(tokens + 1) > held(tokens)

# asked_roles: what heads are found on is not scored, and a part holds the heads, which --join leaves out

assert asked_roles.overlap(argparse.Namespace(items=224, ask=32, windows=66)) is None
assert "--items 225" in asked_roles.overlap(argparse.Namespace(items=225, ask=32, windows=66))
assert "--windows 67" in asked_roles.overlap(argparse.Namespace(items=64, ask=32, windows=67))
with tempfile.TemporaryDirectory() as folder:
    part = argparse.Namespace(out=os.path.join(folder, "part.csv"), policy="keydiff")
    joined = []
    for seed in defaults.SEEDS:
        part.model = f"llama-{seed}"
        find_roles.write_lines(part, [("kld tokens", "drop", 0.25, [1.0, 2.0]), ("kld tokens", "text", 0.25, [1.0, 1.5]),
                                      ("heads", "text", 0.25, "1.0,1.1/0.0,0.1")])
    with open(part.out) as f:
        assert f.read().count('heads,keydiff,text,0.25,"1.0,1.1/0.0,0.1"') == 3
    asked_roles.join([part.out], argparse.Namespace(writerow=joined.append))
    assert {r[2] for r in joined[1:]} == {"kld tokens"} and joined[-1][7:10] == ["1.25000", joined[-1][8], "-0.25000"], joined

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
