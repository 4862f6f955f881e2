"""The JSON Schemas of docs/schemas against what dq prints: every document in its main variants.

    python3 tests/schemas.py DQ REPOSITORY      needs jsonschema, of Debian (python3-jsonschema) or of PyPI

Each document must be valid; wrong ones, planted here, must not be. Every member of a schema has a description and is seen
in some document but those of UNSEEN, and objects are closed but those of OPEN. Prints a line for each violation, exits 1.
"""
import copy
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import warnings

import jsonschema

DQ, REPO = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
SCHEMAS = REPO / "docs" / "schemas"
PAIR = REPO / "calib" / "pair"
GOLDEN = REPO / "tests" / "golden"
bad = 0

# Schemas that nobody but tests/peers or dq itself writes: rows of speed beside peers, and journals.
NOT_PRINTED = {
    "dq-peers/1", "dq-eval-resume/10", "dq-stats-part/2", "dq-plan-caches/1", "dq-plan-weights/1", "dq-quantize-work/1",
    "dq-sensitivity/1"
}
# Members that only other machines or other files would show.
UNSEEN = {
    "dq-plan-1.json": {"head_bits"},  # of weights: no embedded model has a head of its own
    "dq-eval-1.json": {"reason"},  # of a perplexity per word beyond the range of numbers
}
# Objects of which others may hold more: a recipe's plan, and the cache of a file of verdicts.
OPEN = {("common.json", "plan"), ("dq-eval-1.json", "kv")}


def complain(text):
    global bad
    bad = 1
    print(f"schemas: {text}")


# ---- Schemas

def load():
    return {p.name: json.loads(p.read_text()) for p in sorted(SCHEMAS.glob("*.json"))}


ALL = load()


def validator(name):
    base = SCHEMAS.as_uri() + "/"
    try:
        from referencing import Registry, Resource
        registry = Registry().with_resources((base + k, Resource.from_contents(v)) for k, v in ALL.items())
        return jsonschema.Draft202012Validator({"$ref": base + name}, registry=registry)
    except ImportError:  # of Debian 12
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            resolver = jsonschema.RefResolver(base + name, ALL[name], store={base + k: v for k, v in ALL.items()})
        return jsonschema.Draft202012Validator(ALL[name], resolver=resolver)


def resolved(schema, file):
    """The schema that a $ref leads to, and its file."""
    if "$ref" not in schema:
        return schema, file
    where, place = schema["$ref"].split("#")
    file = where or file
    target = ALL[file]
    for key in place.strip("/").split("/"):
        target = target[key]
    return resolved(target, file)


def objects(schema, file, name=""):
    """All objects with members in a file's schema: (name of the member, schema)."""
    if isinstance(schema, list):
        for x in schema:
            yield from objects(x, file, name)
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "object":
        yield name, schema
    for key, value in schema.items():
        if key in ("properties", "patternProperties", "$defs"):
            for k, v in value.items():
                yield from objects(v, file, k)
        elif key in ("items", "oneOf", "additionalProperties"):
            yield from objects(value, file, name)


def described(schema, file):
    if "description" in schema:
        return True
    return "$ref" in schema and described(resolved(schema, file)[0], resolved(schema, file)[1])


def check_forms():
    """That schemas are schemas, describe every member in one short sentence, and are closed."""
    for file, schema in ALL.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        if schema.get("$schema") != "https://json-schema.org/draft/2020-12/schema" or "description" not in schema:
            complain(f"{file}: no draft 2020-12, or no description")
        for name, o in objects(schema, file):
            if o.get("additionalProperties") is not False and (file, name) not in OPEN and \
                    not isinstance(o.get("additionalProperties"), dict):
                complain(f"{file}: {name or 'an object'} is open")
            for key, member in o.get("properties", {}).items():
                if not described(member, file):
                    complain(f"{file}: {name}.{key} has no description")
                about = member.get("description", "One.")
                if not about.endswith(".") or len(about.split(" ")) > 25:
                    complain(f"{file}: {name}.{key}: no short sentence: {member['description']}")


def check_index():
    """That every document of the program has its schema, and the index every schema."""
    names = set()
    for folder in ("src", "cmds"):
        for path in (REPO / folder).rglob("*.[ch]"):
            names |= set(re.findall(r'"(dq-[a-z-]+/[0-9]+)"', path.read_text()))
    for name in sorted(names - NOT_PRINTED):
        if name.replace("/", "-") + ".json" not in ALL:
            complain(f"{name}: no schema")
    for name in ALL:
        if name != "common.json" and re.sub(r"-([0-9]+).json", r"/\1", name) not in names:
            complain(f"{name}: no document has this name")
    index = (SCHEMAS / "README.md").read_text()
    for name in ALL:
        if f"({name})" not in index:
            complain(f"docs/schemas/README.md: does not name {name}")


# ---- Documents

seen = {}  # id of an object's schema -> members
kept = {}  # the first document of each name


def note(value, schema, file):
    """Which members of which objects a valid value shows."""
    schema, file = resolved(schema, file)
    for form in schema.get("oneOf", []):
        inner, where = resolved(form, file)
        if not jsonschema_fits(value, inner, where):
            continue
        note(value, inner, where)
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for x in value:
            note(x, schema["items"], file)
    if not isinstance(value, dict):
        return
    for key, x in value.items():
        if key in schema.get("properties", {}):
            seen.setdefault(id(schema), set()).add(key)
            note(x, schema["properties"][key], file)
        elif isinstance(schema.get("additionalProperties"), dict):
            note(x, schema["additionalProperties"], file)


def jsonschema_fits(value, schema, file):
    v = VALIDATORS[file]
    return v.evolve(schema=absolute(schema, file)).is_valid(value)


def absolute(schema, file):
    """The schema with every $ref as an address of its own."""
    if isinstance(schema, list):
        return [absolute(x, file) for x in schema]
    if not isinstance(schema, dict):
        return schema
    base = SCHEMAS.as_uri() + "/"
    out = {k: absolute(v, file) for k, v in schema.items()}
    if isinstance(schema.get("$ref"), str):
        where, place = schema["$ref"].split("#")
        out["$ref"] = f"{base}{where or file}#{place}"
    return out


VALIDATORS = {name: validator(name) for name in ALL}


def check(document, what):
    name = document.get("schema", "?") if isinstance(document, dict) else "?"
    file = name.replace("/", "-") + ".json"
    if file not in ALL:
        return complain(f"{what}: a document of {name}, which has no schema")
    errors = list(VALIDATORS[file].iter_errors(document))
    if errors:
        e = jsonschema.exceptions.best_match(errors)
        while e.context:  # of oneOf: the form that comes nearest
            e = min(e.context, key=lambda x: (-len(x.absolute_path), x.validator == "const"))
        place = "/".join(str(x) for x in e.absolute_path)
        return complain(f"{what}: not a {file}: {place}: {e.message[:300]}")
    kept.setdefault((name, document.get("command", "")), document)
    note(document, ALL[file], file)


def dq(*args, status=0):
    p = subprocess.run([DQ, *map(str, args)], capture_output=True, text=True, check=False)
    if p.returncode != status:
        complain(f"dq {' '.join(map(str, args))}: status {p.returncode}: {p.stderr[-300:]}")
    return p.stdout


def printed(*args, status=0):
    """A command with its document on stdout."""
    text = dq(*args, status=status)
    try:
        check(json.loads(text), "dq " + " ".join(map(str, args)))
    except json.JSONDecodeError as e:
        complain(f"dq {' '.join(map(str, args))}: no JSON: {e}")


def written(path):
    check(json.loads(pathlib.Path(path).read_text()), str(path))


def changed(model, copy_of, name, old, new):
    """A copy of a model with another text in one of its files."""
    shutil.copytree(model, copy_of)
    path = pathlib.Path(copy_of) / name
    text = path.read_text(encoding="utf-8")
    if old not in text:
        complain(f"{model}/{name}: no {old}")
    path.unlink()
    path.write_text(text.replace(old, new), encoding="utf-8")


def sizes_and_files():
    """quantize, info, verify, export, logits, generate, doctor, stats."""
    text = pathlib.Path("text.txt")
    text.write_bytes((PAIR / "text.txt").read_bytes())
    pathlib.Path("short.txt").write_bytes(text.read_bytes()[:600])
    printed("quantize", "diff", "--json", "--dry-run", "--size", 5)
    printed("quantize", "llama", "-o", "four.h5", "--bits", 4, "--group", 32, "--dense-type", "bf16", "--skip",
            "up_proj", "--bits-map", "v_proj=6/64", "--embed-bits", 6, "--json")
    printed("quantize", "diff", "-o", "made.h5", "--bits", 3, "--calib", "text.txt", "--calib-tokens", 300,
            "--calib-ctx", 60, "--kv-bits", 4, "--kv-keep", 0.5, "--kv-policy", "keydiff", "--kv-dense-type", "bf16",
            "--logit-bits", 6, "--json")
    printed("quantize", "llama", "-o", "dense.h5", "--bits", 16, "--embed-bits", 16, "--kv-bits", "3|5*1:3*2",
            "--kv-quant", "dither", "--json")
    recipe = {"schema": "dq-recipe/1", "bits": 4, "group": 64, "comment": ["any"], "rules": [{
        "match": "q_proj", "bits": 8, "group": "row", "scale": "search", "comment": 1}]}
    pathlib.Path("recipe.json").write_text(json.dumps(recipe))
    written("recipe.json")
    printed("quantize", GOLDEN / "models" / "diffllama-bf16-untied", "--recipe", "recipe.json", "--head-bits", 6,
            "--embed-bits", 6, "--print-recipe")
    printed("quantize", "llama", "--preset", "small", "--kv-bits", 8, "--print-recipe")
    printed("quantize", GOLDEN / "gguf" / "model" / "model.gguf", "-o", "gguf.h5", "--bits", 4, "--group", 32,
            "--calib", "text.txt", "--calib-tokens", 300, "--calib-ctx", 60, "--method", "align", "--json")
    for model in ("four.h5", "made.h5", "dense.h5", "gguf.h5", "llama", "diff", GOLDEN / "gguf" / "model" / "model.gguf",
                  GOLDEN / "prequant" / "awq", GOLDEN / "prequant" / "gptq-dynamic"):
        printed("info", model, "--json")
    printed("info", "four.h5", "--tensors", "--json")
    printed("info", "llama", "--tensors", "--json")
    printed("info", "made.h5", "--recipe")
    printed("verify", "four.h5", "--json")
    printed("verify", "made.h5", "--source", "diff", "--json")
    printed("export", "four.h5", "--format", "compressed-tensors", "--dry-run", "--json")
    printed("export", "made.h5", "-o", "values", "--format", "safetensors", "--json")
    written("values/dq_settings.json")
    # a vocabulary that llama.cpp reads alike
    changed("llama", "bytes", "tokenizer.json", '"ignore_merges": true', '"ignore_merges": false')
    dq("quantize", "llama", "-o", "int.h5", "--bits", 4, "--group", 32, "-q")
    dq("quantize", "bytes", "-o", "bytes.h5", "--bits", 4, "--group", 32, "--scale", "search", "--embed-bits", 16,
       "--skip", "down_proj", "-q")
    printed("export", "bytes.h5", "-o", "int.gguf", "--format", "gguf", "--json")
    printed("quantize", GOLDEN / "models" / "diffllama-bf16-untied", "-o", "untied.h5", "--bits", 4, "--embed-bits", 6,
            "--head-bits", 5, "--json")
    printed("info", "untied.h5", "--json")
    printed("quantize", GOLDEN / "models" / "llama-f32", "--recipe", "recipe.json", "--dense-type", "bf16",
            "--embed-bits", 16, "--dry-run", "--json")
    printed("quantize", "llama", "--bits", 4, "--skip", "up_proj", "--dense-type", "f16", "--print-recipe")
    printed("logits", "made.h5", "--ids", "1 2 3 4 5 6 7 8", "-o", "l.h5", "--prefix", 4, "--json")
    printed("logits", "llama", "--text", "short.txt", "-o", "l.h5", "--force", "--prefix", 30, "--kv-keep", 0.5,
            "--kv-sink", 2, "--kv-recent", 4, "--json")
    printed("generate", "diff", "the green mole hears", "-n", 6, "--json")
    chat = {"chat_template": "{% for m in messages %}{{ m['role'] + m['content'] }}{% endfor %}"}
    shutil.copytree(PAIR / "diffllama", "chat")
    pathlib.Path("chat/tokenizer_config.json").write_text(json.dumps(chat))
    printed("quantize", "chat", "-o", "chat.h5", "--bits", 3, "--json")
    printed("generate", "chat", "the green mole hears", "-n", 6, "--system", "be brief", "--temperature", 1, "--compare", "chat.h5",
            "--json")
    printed("doctor", "--json")
    printed("doctor", "--model", "diff", "--json")
    printed("stats", "llama", "diff", "--text", "short.txt", "--json")
    printed("stats", "diff", "--ids", "1 2 3", "--one-pass", "--json")
    printed("stats", "llama", "diff", "--text", "text.txt", "--ctx", 130, "--limit", 4, "--sensitivity", "all",
            "--logit-granularity", "per-row", "--detail", "table5", "--one-pass", "--json")
    printed("stats", "llama", "diff", "--ids", "1 2 3", "--forecast", "--json")


def evaluations():
    """eval in all its kinds, its plan, judged."""
    few = ("--ctx", 64, "--limit", 4)
    printed("eval", "llama", "int.h5", "four.h5", "--text", "text.txt", *few, "--logit-bits", "16,4", "--positions",
            "--slices", "--json")
    printed("eval", "llama", "--text", "text.txt", "--ctx", 192, "--positions", "--json")
    printed("eval", "llama", "--text", "text.txt", "--ctx", 512, "--limit", 1, "--kv-size", "1/2,1/4", "--json")
    printed("eval", "diff", "made.h5", "--text", "text.txt", *few, "--kv-bits", "16,4", "--kv-recent", 4, "--kv-sink",
            2, "--kv-keep", "1,0.5", "--kv-policy", "h2o,random,keydiff", "--logit-bits", 16, "--json")
    printed("eval", "llama", "--text", "short.txt", "--ctx", 64, "--window", "rolling", "--bos", "on", "--json")
    printed("eval", "llama", "--text", "text.txt", *few, "--window", "stride", "--stride", 16, "--json")
    printed("eval", "int.h5", "--text", "text.txt", *few, "--ref", "llama", "--fail-if", "kld_nats > 99", "-o",
            "old.json", "--json")
    written("old.json")
    printed("eval", "int.h5", "--text", "text.txt", *few, "--ref", "llama", "--fail-if", "kld_nats > baseline",
            "--fail-if", "nll_nats >= 0.5 * baseline", "--fail-if", "ppl > 1 / (baseline - baseline)", "--baseline",
            "old.json", "--json", status=7)
    choices = ("--task", "mc", "--data", PAIR / "choices.jsonl", "--limit", 6)
    printed("eval", "llama", "diff", *choices, "--logit-bits", "16,4", "--num-fewshot", 1, "--fewshot-data",
            PAIR / "choices.jsonl", "--json")
    printed("eval", "llama", *choices, "--dry-run", "--json")
    printed("eval", "llama", "--task", "gsm8k", "--data", GOLDEN / "questions" / "gsm8k.jsonl", "--dry-run", "--json")
    printed("eval", "diff", "made.h5", "--text", "text.txt", *few, "--task", "mc", "--data", PAIR / "choices.jsonl",
            "--dry-run", "--json")
    printed("eval", "llama", "diff", "--task", "gsm8k,svamp", "--data", GOLDEN / "questions" / "gsm8k.jsonl", "--data",
            GOLDEN / "questions" / "svamp.json", "--limit", 2, "--max-new", 4, "--logit-bits", "16,4", "--json")
    printed("eval", "llama", "--task", "generate", "--data", GOLDEN / "questions" / "prompts.jsonl", "--max-new", 4,
            "--limit", 2, "--stop", "a", "--logit-bits", "16,4", "--dump-completions", "c.jsonl", "--json")
    lines = [json.loads(line) for line in open("c.jsonl", encoding="utf-8")]
    with open("judged.jsonl", "w", encoding="utf-8") as f:
        for at, line in enumerate(lines):
            f.write(json.dumps(line | {"verdict": bool(at % 2)}) + "\n")
    printed("judged", "judged.jsonl", "--json")
    with open("verdicts.jsonl", "w", encoding="utf-8") as f:
        subprocess.run([DQ, "judged", "c.jsonl", "--requests", "requests.jsonl"], check=True, stdout=subprocess.DEVNULL)
        for line in open("requests.jsonl", encoding="utf-8"):
            f.write(json.dumps({"custom_id": json.loads(line)["custom_id"], "verdict": True}) + "\n")
    printed("judged", "c.jsonl", "--verdicts", "verdicts.jsonl", "--json")
    with open("other.jsonl", "w", encoding="utf-8") as f:
        for model in ("a", "b"):
            for line in lines:
                told = {k: v for k, v in line.items() if k != "kv"}
                f.write(json.dumps(told | {"model": model, "verdict": True}) + "\n")
    printed("judged", "other.jsonl", "--json")
    for more in ((), ("--needle-mode", "generated"), ("--attention", "--attention-rows", "query", "--needle-order", "depth")):
        printed("eval", "llama", "diff", "--logit-bits", "16,4", "--task", "needle", "--data", "text.txt", "--lengths",
                420, "--needles", "2:2", "--limit", 1, "--depths", "0,100", *more, "--json")
    icl = GOLDEN / "icl"
    printed("eval", "llama", "diff", "--task", "trec", "--data", icl / "trec_test.label", "--fewshot-data",
            icl / "trec_train.label", "--num-fewshot", "2,4", "--runs", 2, "--demo-permutations", 2, "--limit", 2,
            "--demo-order", "random,class", "--logit-bits", "16,4", "--json")
    positions = ("config.json", '"max_position_embeddings": 512', '"max_position_embeddings": 4096')
    changed("diff", "far", *positions)
    changed("llama", "far2", *positions)
    printed("eval", "far", "--task", "gsm8k", "--data", GOLDEN / "questions" / "gsm8k.jsonl", "--num-fewshot", 2,
            "--fewshot-data", GOLDEN / "questions" / "train.jsonl", "--fewshot-sampler", "random", "--limit", 2, "--max-new",
            2, "--json")
    printed("eval", "far2", "far", "--task", "vt", "--lengths", 2400, "--limit", 1, "--kv-bits", "16,8", "--json")


def plans():
    text = ("--text", "text.txt", "--ctx", 128)
    kv = ("plan", "kv", "diff", "--kv-bits", 5, *text, "--limit", 6, "--kv-recent", 16, "--widths", "4,8", "-o",
          "kv.json", "--json")
    printed(*kv, "--dry-run")
    printed(*kv)
    written("kv.json")
    heads = ("plan", "heads", "diff", "--kv-keep", 0.25, *text, "--limit", 5, "--search-windows", 2, "--kv-recent", 4,
             "-o", "heads.json", "--json")
    printed(*heads, "--dry-run")
    printed(*heads)
    written("heads.json")
    printed("quantize", "diff", "-o", "heads.h5", "--recipe", "heads.json", "--bits", 4, "--json")
    printed("info", "heads.h5", "--json")
    asked = {"ctx": "the old fox and the young sheep went over the hill to the other fox",
             "choices": ["and the sheep", "and the fox"], "gold": 0}
    pathlib.Path("asked.jsonl").write_text((json.dumps(asked) + "\n") * 2)
    printed(*heads, "--questions", "asked.jsonl", "--search-items", 2, "--kv-sink", 2, "--force")
    gates = ("plan", "gates", "llama", "--text", "text.txt", "--ctx", 64, "--limit", 8, "-o", "gates.json", "--json")
    printed(*gates, "--dry-run")
    printed(*gates)
    written("gates.json")
    printed("logits", "llama", "--ids", "1 2 3 4 5 6 7 8", "-o", "g.h5", "--kv-gates", "gates.json", "--prefix", 6,
            "--kv-keep", 0.5, "--kv-sink", 1, "--kv-recent", 1, "--kv-policy", "kvzap", "--json")
    pathlib.Path("unseen.txt").write_bytes((PAIR / "text.txt").read_bytes()[40000:])
    weights = ("plan", "weights", "diff", "--calib", "text.txt", "--calib-tokens", 300, "--calib-ctx", 60,
               "--search-tokens", 300, "--json")
    printed(*weights, "--budget", "bpw=3", "-o", "w.json")
    written("w.json")
    printed(*weights, "--budget", "kld=0.5", "-o", "k.json", "--unseen", "unseen.txt", "--dense-type", "bf16")
    dq("quantize", "diff", "-o", "planned.h5", "--recipe", "w.json", "--calib", "text.txt", "-q")
    printed("info", "planned.h5", "--json")
    printed("quantize", "diff", "-o", "planned.h5", "--force", "--recipe", "w.json", "--calib", "text.txt", "--json")


def benches():
    run = ("--runs", 1, "--threads", 1, "--json")
    printed("bench", "generate", "int.h5", "--new-tokens", 1, "--context", 30, *run)
    printed("bench", "decode", "diff", "--new-tokens", 1, "--context", 70, "--threads", 1, "--json")
    printed("bench", "prefill", "diff", "--tokens", 32, "--logit-bits", 4, *run)
    printed("bench", "attention", "diff", "--tokens", 64, *run)
    printed("bench", "evict", "diff", "--tokens", 272, "--kv-policy", "streaming", *run)
    printed("bench", "items", "llama", PAIR / "choices.jsonl", "--limit", 4, *run)


# ---- What must not be valid

def broken(document):
    """Copies with one thing wrong, and what it is."""
    yield "an unknown member", document | {"extra": 1}
    for key in ("schema", "results", "weights", "dq_version"):
        if key in document:
            yield f"no {key}", {k: v for k, v in document.items() if k != key}
    yield "another version", document | {"schema": document["schema"][:-1] + "9"}
    first = next((x for x in document.get("results", []) if isinstance(x, dict)), None)
    if first is None:
        return
    for key in first:
        for what, change in (("gone", None), ("of another type", [["x"]])):
            other = copy.deepcopy(document)
            result = next(x for x in other["results"] if isinstance(x, dict))
            if change is None:
                del result[key]
            else:
                result[key] = change
            yield f"results[0].{key} {what}", other
    other = copy.deepcopy(document)
    next(x for x in other["results"] if isinstance(x, dict))["extra"] = 1
    yield "results[0] with an unknown member", other


def optional_of(name):
    """Members that some object of the schema need not have."""
    names = set()
    for _, o in objects(ALL[name], name):
        names |= set(o.get("properties", {})) - set(o.get("required", []))
    return names


def check_broken():
    for (name, _), document in sorted(kept.items()):
        file = name.replace("/", "-") + ".json"
        may_lack = optional_of(file)
        for what, wrong in broken(document):
            gone = re.fullmatch(r"results\[0\][.](\S+) gone", what)
            if gone and gone.group(1) in may_lack:
                continue
            if VALIDATORS[file].is_valid(wrong):
                complain(f"{file}: {what}, and valid all the same")


def check_seen():
    kin, shared = {}, {}  # an object within "$defs" may be shown by another document that has it
    for file, schema in ALL.items():
        for name, definition in schema.get("$defs", {}).items():
            for i, (_, o) in enumerate(objects(definition, file)):
                kin[id(o)] = name, i
                shared[name, i] = shared.get((name, i), set()) | seen.get(id(o), set())
    for file, schema in ALL.items():
        for name, o in objects(schema, file):
            shown = seen.get(id(o), set()) | shared.get(kin.get(id(o)), set())
            unseen = set(o.get("properties", {})) - shown - UNSEEN.get(file, set())
            if unseen:
                complain(f"{file}: {name or 'an object'}: no document shows {', '.join(sorted(unseen))}")


def main():
    check_forms()
    check_index()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.symlink(PAIR / "llama", "llama")
        os.symlink(PAIR / "diffllama", "diff")
        for step in (sizes_and_files, evaluations, plans, benches):
            step()
        check_broken()
        check_seen()
        os.chdir("/")
    return bad


if __name__ == "__main__":
    sys.exit(main())
