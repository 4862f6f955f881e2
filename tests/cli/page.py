#!/usr/bin/env python3
"""page.py: a page of dq report as a browser draws it, beside the documents that it was made of.

    python3 tests/cli/page.py DQ REPOSITORY

Headless Chromium lays the page out at 400, 800 and 1600 px, in frames of one wrapper, whose script reads boxes, colours and texts
back. Cells of maps, lengths of bars, places of marks, what hovering shows and sentences have to follow from the JSON; nothing may be
wider than the window. Then the same is read from a page with planted faults, each of which must be found; made documents have to say
what they decide; edited ones still make a page. Exits 77, which CTest takes for skipped, where Chromium is missing.
"""

import html
import json
import math
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

WIDTHS = (400, 800, 1600)

READ = """
const number = x => Math.round(100 * x) / 100;
function box(e) { const r = e.getBoundingClientRect(); return {x: number(r.left + r.width / 2), y: number(r.top + r.height / 2),
  w: number(r.width), h: number(r.height)}; }
function tip(d, e) {
  const at = box(e);
  e.dispatchEvent(new d.defaultView.PointerEvent('pointermove', {bubbles: true, clientX: at.x, clientY: at.y}));
  return Array.from(d.querySelectorAll('#tip div')).map(line => line.textContent);
}
function plant(d) { // a fault for each check
  d.querySelector('[data-grid=logits] td').textContent = '7.77';
  d.querySelector('details[id$=sensitivity] .bar i').style.width = '3.21%';
  d.querySelector('#size .mark').setAttribute('transform', 'translate(300 100)');
  d.querySelectorAll('#size .mark').forEach(m => { m.tip = ['x']; });
  for (const b of d.querySelectorAll('#answer b')) if (/bits$/.test(b.textContent)) b.textContent = '2 bits';
  d.querySelector('main').insertAdjacentHTML('beforeend', '<p style="width:2000px;max-width:none">wide</p><p class=warn>undrawn</p>');
}
function read(d) {
  const view = d.defaultView, all = (e, s) => Array.from(e.querySelectorAll(s)), text = e => e.textContent;
  const folded = d.documentElement.scrollHeight, closed = d.querySelector('main details.section:not([open])');
  if (closed) view.location.hash = closed.id;
  view.openTarget();
  const opened = !closed || closed.open;
  all(d, 'details').forEach(x => { x.open = true; });
  return {
    inner: view.innerWidth, wide: d.documentElement.scrollWidth, high: folded, opened,
    answer: all(d, '#answer p.says, #answer li').map(p => p.textContent.trim()),
    grids: all(d, 'table[data-grid]').map(t => ({what: t.dataset.grid, model: t.dataset.model, width: t.offsetWidth,
      heads: all(t, 'thead th').slice(1).map(text),
      rows: all(t, 'tbody tr').map(r => ({layer: text(r.querySelector('th')), cells: all(r, 'td').map(c => ({text: text(c),
        colour: view.getComputedStyle(c).backgroundColor}))}))})),
    bars: all(d, 'details[id$=sensitivity] table:not([data-grid])').map(t => all(t, 'tbody tr').filter(r => r.querySelector('.bar')).map(
      r => ({name: text(r.cells[0]), kld: text(r.cells[2]), all: box(r.querySelector('.bar')),
        bar: box(r.querySelector('.bar i')), ends: box(r.querySelector('.bar b'))}))).filter(t => t.length),
    size: all(d, '#size figure svg.plot').map(s => all(s, '.mark').map(m => ({...box(m), tip: tip(d, m)}))),
    sections: all(d, 'details.section').map(s => s.id),
    last: all(d, 'section.part').map(p => all(p, 'details.section').pop().id),
    tips: all(d, '.mark').filter(m => m.tip).map(m => m.tip),
    undrawn: all(d, 'p.warn').map(text), title: d.title, h1: all(d, 'h1').map(text), tables: all(d, 'table').length,
    text: d.body.innerText, cells: all(d, 'td, th, li, p, pre, figcaption, figcaption + *').map(e => e.textContent),
    markup: all(d, 'i:not([style]), k, p p, script[src]').length + Array.from(all(d, 'body *')).filter(
      e => Array.from(e.attributes).some(a => /^on|^autofocus$/.test(a.name))).length};
}
onload = () => {
  const seen = Array.from(document.querySelectorAll('iframe')).map(f => {
    if (f.className) plant(f.contentDocument);
    return read(f.contentDocument);
  });
  document.body.innerHTML = '';
  const out = document.createElement('pre');
  out.id = 'seen';
  out.textContent = JSON.stringify(seen);
  document.body.append(out);
};
"""


def fail(text):
    print("page:", text)
    sys.exit(1)


def run(*args, may_fail=False):
    done = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode and may_fail:
        return None
    if done.returncode:
        fail("%s: status %d: %s" % (" ".join(args), done.returncode, done.stderr.decode()[-300:]))
    return done.stdout.decode()


def seen(browser, folder, page, faulty=False):
    """What the browser made of the text of a page, by width; with faults that its checks must find."""
    return dict(zip(WIDTHS, seen_all(browser, folder, [(w, page) for w in WIDTHS], faulty)))


def seen_all(browser, folder, pages, faulty=False):
    frames = "".join(
        '<iframe%s style="border:0;width:%dpx;height:900px" srcdoc="%s"></iframe>' % (' class="faulty"' * faulty, w, html.escape(page))
        for w, page in pages
    )
    path = os.path.join(folder, "wrapper.html")
    with open(path, "w", encoding="utf-8") as f:
        f.write("<!DOCTYPE html><meta charset='utf-8'><body style='margin:0;width:2000px'>%s<script>%s</script>" % (frames, READ))
    dom = run(
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--user-data-dir=" + os.path.join(folder, "profile"),
        "--window-size=2000,1000",
        "--virtual-time-budget=20000",
        "--dump-dom",
        "file://" + path,
    )
    found = re.search(r'<pre id="seen">(.*?)</pre>', dom, re.S)
    if not found:
        fail("the browser read nothing back: %s" % dom[:200])
    return json.loads(html.unescape(found.group(1)))


# ----- documents -----


def documents(dq, repo, folder):
    """stats, logits, weights as (name, document)."""
    pair = os.path.join(repo, "calib/pair")
    llama, diff, planted, text = (os.path.join(pair, name) for name in ("llama", "diffllama", "planted", "text.txt"))
    here = [os.path.join(folder, name) for name in ("stats.json", "logits.json", "weights.json")]
    six = ["--text", text, "--ctx", "192", "--limit", "6", "-q"]
    stats = run(dq, "stats", diff, planted, *six, "--sensitivity", "layers,heads", "--sensitivity-windows", "6", "--json")
    with open(here[0], "w", encoding="utf-8") as f:
        f.write(stats)
    run(dq, "eval", llama, *six, "--logit-bits", "16,8,6,4", "--logit-granularity", "per-tensor,per-row", "-o", here[1])
    made = []
    for bits in "863":
        made.append(os.path.join(folder, "w%s.h5" % bits))
        run(dq, "quantize", llama, "-o", made[-1], "--bits", bits, "-q")
    run(dq, "eval", llama, *made, *six, "-o", here[2])
    return here


def load(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


# ----- what must be drawn -----


def near(text, value):
    """Whether a cell's text is this number, to what its digits show."""
    try:
        shown = float(text)
    except ValueError:
        return False
    digits = len(text.partition(".")[2].partition("e")[0])
    return abs(shown - value) <= max(0.51 * 10**-digits, 0.06 * abs(value) if "e" in text else 0)


def opacity(colour):
    found = re.fullmatch(r"rgba?\(([^)]*)\)", colour)
    parts = [float(x) for x in found.group(1).split(",")]
    return parts[3] if len(parts) == 4 else 1.0


def grid_values(result, what):
    """Numbers of a map by (layer, column), and what is darkest; None: shares of 1 or a logarithm."""
    cells = {}
    for layer in result["layers"]:
        k = str(layer["layer"])
        if what == "logits":
            for head in layer["heads"]:
                cells[k, "%d" % head["head"] + ("" if head["map"] is None else "/%d" % head["map"])] = head["ordinary"]["max"]
            continue
        for head in layer["attention"]["heads"]:
            if what == "kind":
                cells[k, str(head["head"])] = head["kind"][0].upper()
            elif what == "cancelled":
                cells[k, str(head["head"])] = head["cancelled_mass"]
            else:
                both = head["effective_support" if what == "support" else "sink_mass"]
                for i, x in enumerate(both):
                    if x is not None:
                        cells[k, "%d" % head["head"] + ("/%d" % (i + 1) if both[1] is not None else "")] = x
    return cells


def check_grids(page, stats, say):
    models = {os.path.basename(r["model"]): r for r in stats["results"]}
    known = {(g["model"], g["what"]) for g in page["grids"]}
    for model in models:
        cancelled = ["cancelled"] if model == "diffllama" else []
        for what in ["logits", "kind", "support", "sinks", "error", "map-error", "sensitivity"] + cancelled:
            if (model, what) not in known:
                say("grid", "no map %s of %s" % (what, model))
    for g in page["grids"]:
        name = "map %s of %s" % (g["what"], g["model"])
        if g["what"] == "sensitivity":
            units = models[g["model"]]["sensitivity"]["units"]
            want = {(str(u["layer"]), str(u["head"])): 1000 * u["kld_nats"]["value"] for u in units if u["by"] == "head"}
        elif g["what"] in ("error", "map-error"):
            heads = models[g["model"]]["forecast"]["heads" if g["what"] == "error" else "outputs"]
            want = {
                (str(x["layer"]), "%d" % x["head"] + ("/%d" % x["map"] if x.get("map") else "")): x[
                    "error" if g["what"] == "error" else "map_error"
                ]["4"]["per-tensor"]
                for x in heads
            }
        else:
            want = grid_values(models[g["model"]], g["what"])
        drawn = {(r["layer"], h): c for r in g["rows"] for h, c in zip(g["heads"], r["cells"])}
        if set(drawn) != set(want):
            say("grid", "%s has cells %s, expected %s" % (name, sorted(drawn), sorted(want)))
            continue
        numbers = [x for x in want.values() if not isinstance(x, str)]
        for at, x in want.items():
            if not (drawn[at]["text"] == x if isinstance(x, str) else near(drawn[at]["text"], x)):
                say("grid", "%s at %s: %s, expected %s" % (name, at, drawn[at]["text"], x))
            if isinstance(x, str):
                continue
            if g["what"] in ("support", "sensitivity"):
                low, high = math.log(min(numbers)), math.log(max(numbers))
                v = (math.log(x) - low) / (high - low)
            else:
                v = x / (1 if g["what"] in ("sinks", "cancelled") else max(numbers))
            if abs(opacity(drawn[at]["colour"]) - (0.04 + 0.96 * v)) > 0.012:
                say("grid", "%s at %s: %s, expected a share of %.2f" % (name, at, drawn[at]["colour"], v))


def name_of(unit):
    return " ".join("%s %d" % (k, unit[k]) for k in ("layer", "head", "map") if unit[k] is not None)


def kinds_of(result):
    """What was rounded by what, in the order of the document, each with its units."""
    kinds = {}
    for u in result["sensitivity"]["units"]:
        kinds.setdefault((u["of"], u["by"]), []).append(u)
    return kinds


def check_bars(page, stats, say):
    of_all = [units for r in stats["results"] for units in kinds_of(r).values()]
    if len(page["bars"]) != len(of_all):
        say("bars", "%d tables of bars, expected %d" % (len(page["bars"]), len(of_all)))
    for units, drawn in zip(of_all, page["bars"]):
        want = sorted(units, key=lambda u: -u["kld_nats"]["value"])[:15]
        most = max(u["kld_nats"]["interval"][1] for u in want)
        if [name_of(u) for u in want] != [b["name"] for b in drawn]:
            say("bars", "bars of %s" % [b["name"] for b in drawn])
            continue
        for u, b in zip(want, drawn):
            x, ends = u["kld_nats"]["value"], u["kld_nats"]["interval"]
            if not near(b["kld"], x):
                say("bars", "%s: %s, expected %s" % (b["name"], b["kld"], x))
            if abs(b["bar"]["w"] / b["all"]["w"] - x / most) > 0.01:
                say("bars", "%s: the bar is %.3f long, expected %.3f" % (b["name"], b["bar"]["w"] / b["all"]["w"], x / most))
            if abs(b["ends"]["w"] / b["all"]["w"] - (ends[1] - ends[0]) / most) > 0.01:
                say("bars", "%s: the interval is %.3f wide" % (b["name"], b["ends"]["w"] / b["all"]["w"]))


def settings(logits, weights):
    """(kind, label, size, bits per weight, megabytes, KLD, interval of the loss less the margin) of every setting."""
    for document in (logits, weights):
        for r in document["results"]:
            if r["verdict"] is None:
                continue
            ends, margin = r["verdict"]["interval"], r["verdict"]["margin"]
            own = r["reference_weights"] == "own"
            w = r["weights"]
            yield (
                r["logit_granularity"] if own else "weights",
                "%d bits" % r["logit_bits"] if own else r["model"],
                r["logit_bits"] if own else w["bits_per_weight"],
                w["bits_per_weight"],
                w["file_bytes"] / 1e6,
                r["metrics"]["kld_nats"]["value"],
                [end - margin for end in ends],
            )


def check_marks(page, logits, weights, say):
    """Marks lie where a linear and a logarithmic axis put them."""
    all_of = [s for s in settings(logits, weights) if s[5] > 0]
    for k, what in enumerate(("bits per weight", "megabytes")):
        if len(page["size"]) <= k:
            say("marks", "no picture of KLD over %s" % what)
            continue
        marks = list(page["size"][k])
        want = [(s[3 + k], math.log(s[5])) for s in all_of]
        if len(marks) != len(want):
            say("marks", "%d marks over %s, expected %d" % (len(marks), what, len(want)))
            continue

        def place(axis, key, flip):
            a, b = min(p[axis] for p in want), max(p[axis] for p in want)
            low, high = sorted((min(m[key] for m in marks), max(m[key] for m in marks)), reverse=flip)
            return lambda p: low + (high - low) * (p[axis] - a) / (b - a)

        x, y = place(0, "x", False), place(1, "y", True)
        for p in want:
            hit = min(marks, key=lambda m: math.hypot(m["x"] - x(p), m["y"] - y(p)))
            if math.hypot(hit["x"] - x(p), hit["y"] - y(p)) > 2:
                say("marks", "no mark at %s, KLD %.4g" % (p[0], math.exp(p[1])))
            if not any("95 % interval" in line for line in hit["tip"]) or not hit["tip"][-1].startswith("dq eval "):
                say("tip", "hovering over a mark shows %s" % hit["tip"])
            marks.remove(hit)


def check_answer(page, logits, weights, stats, say):
    lines = " ".join(page["answer"])
    of = {}
    for s in settings(logits, weights):
        of.setdefault(s[0], []).append(s)
    for kind, group in of.items():
        found = None
        for s in sorted(group, key=lambda s: -s[2]):
            if s[6][1] <= 0:
                found = s
            elif kind != "weights":
                break
        words = "weights " if kind == "weights" else "logits %s " % kind
        if found is None:
            words += "inconclusive" if any(s[6][0] <= 0 for s in group) else "none that was tested"
        else:
            words += "%.2f bits per weight (%s)" % (found[2], found[1]) if kind == "weights" else found[1]
        if words not in lines:
            say("answer", '"%s" is not in "%s"' % (words, lines))
    decided = 0
    for r in stats["results"]:
        for test in r["sensitivity"]["first"]:
            first, then, ends = test["first"], test["next"], test["more_nats"]["interval"]
            words = "%s by %s: %s, %.3g to %.3g nats a token more than any other; next %s" % (
                first["of"],
                first["by"],
                name_of(first),
                ends[0],
                ends[1],
                name_of(then),
            )
            if ends[0] > 0 and words not in page["answer"]:
                say("answer", '"%s" is not in "%s"' % (words, lines))
            decided += ends[0] > 0
    told = sum(" nats a token more than " in line for line in page["answer"])
    if decided == 0 or told != decided:
        say("answer", "%d units are said to break first, of %d" % (told, decided))
    for r in stats["results"]:
        top = max((o for o in r["outliers"] if o["values"] == "attention_logits"), key=lambda o: o["magnitude"])
        words = "attention logit %.2f in layer %d head %d" % (top["magnitude"], top["layer"], top["head"])
        if words not in lines:
            say("answer", '"%s" is not in "%s"' % (words, lines))


def complaints(pages, paths):
    stats, logits, weights = (load(p) for p in paths)
    all_of = []

    def say(what, text):
        all_of.append((what, "%d px: %s" % (width, text)))

    for width, page in pages.items():
        if page["inner"] != width:
            say("width", "the window is %s px wide" % page["inner"])
        if page["wide"] > width:
            say("width", "the page is %d px wide" % page["wide"])
        for g in page["grids"]:
            if g["width"] > 0.95 * width:
                say("width", "the map %s of %s is %d px wide" % (g["what"], g["model"], g["width"]))
        check_grids(page, stats, say)
        check_bars(page, stats, say)
        check_marks(page, logits, weights, say)
        check_answer(page, logits, weights, stats, say)
        if page["undrawn"] or not page["opened"]:
            say("sections", "undrawn: %s; a link opens what is folded: %s" % (page["undrawn"], page["opened"]))
        if width > 400 and page["high"] > 20000:
            say("height", "the page is %d px high" % page["high"])
        if not page["last"] or any(not s.endswith("-run") for s in page["last"]):
            say("order", "a part does not end with its settings: %s" % page["last"])
    return all_of


# ----- what is said of made documents -----


def nats(value):
    return {"kld_nats": {"value": value, "stderr": None}, "ln_ppl_ratio": {"value": 0, "stderr": None}}


def decided(kld, ppl):
    return {"kld_interval": kld, "ln_ppl_interval": ppl, "outside": 0.025}


def plan(kind, kv, chosen, **more):
    found = {"kv": kv, "unseen": {**nats(0.25), **decided([0, 1], [-1, 1])}, **chosen}
    return {
        "schema": "dq-plan/1",
        "settings": {"kind": kind},
        "results": [{"path": "o/<p>.json", "chosen": found, "baselines": [], "trials": [], "units": [], **more}],
    }


def plan_kv(**more):
    return plan("kv", {"widths": "4:3", "quant": "dither", "recent": 16, "sink": 4}, {"mean_bits": 3.5}, **more)


def plan_heads(**more):
    return plan("heads", {"policy": "keydiff", "keep": 0.25, "heads": "1.0/0.0", "sink": 4, "recent": 16}, {"sharing": 1}, **more)


def baseline(kld, ppl, **more):
    return {"unseen": nats(0.5), "plan_less_it": {**nats(-0.25), **decided(kld, ppl)}, **more}


def group(layer, k, shares, alone, lack=None):
    return {"layer": layer, "group": k, "shares": shares, "alone": alone, "lack_nats": lack}


def share(sharing, kld, lack, taken):
    return {"sharing": sharing, "kld_nats": kld, "lack_nats": lack, "taken": taken}


def stats(model="m", ctx=64, **more):
    values = {"n": 4, "top1": 3.5, "top2": 3, "top3": 2, "top10": None, "top100": None, "median": 1, "rms": 1, "kurtosis0": 3}
    return {
        "schema": "dq-stats/1",
        "dq_version": "0.1.0",
        "command": "stats",
        "inputs": [{"kind": "text", "path": "t"}],
        "settings": {"ctx": ctx, "threads": ctx},
        "warnings": [],
        "results": [{"model": model, "table5": {"attention_logits": values, "hidden_states": values}, "layers": [], **more}],
    }


def unit(of, by, interval, **where):
    return {"of": of, "by": by, **where, "kld_nats": {"value": 1, "interval": interval}, "local_error": 1}


def sensitive(first):
    heads = [unit("logits", "head", [2, 4], layer=0, head=1), unit("logits", "head", [0.5, 1.9], layer=1, head=0)]
    layers = [unit("<k>", "layer", [2, 4], layer=0), unit("<k>", "layer", [1, 2], layer=1)]
    outlier = {"tokens": "<i>", "magnitude": 9, "layer": 1, "head": 2, "channel": 3}
    return stats(
        sensitivity={"bits": 4, "scored": 9, "units": heads + layers, "first": first},
        outliers=[{"values": "attention_logits", **outlier}, {"values": "hidden_states", **outlier}],
    )


def test_of(interval, first, then):
    return {"first": first, "next": then, "more_nats": {"interval": interval}}


def nothing_measured():
    d = stats()
    for x in d["results"][0]["table5"].values():
        x.update({key: 0 if key == "n" else None for key in x})
    return d


def container():
    def row(name, sqnr):
        return {
            "name": name,
            "encoding": "int-packed",
            "bits": 4,
            "rows": 1,
            "cols": 2,
            "group_size": 2,
            "bytes": 1,
            "bits_per_weight": 4,
            "sqnr_db": sqnr,
        }

    size = {
        "tensors": 1,
        "packed": 1,
        "params": 4,
        "packed_params": 4,
        "packed_bytes": 2,
        "weight_bytes": 8,
        "file_bytes": 9,
        "bits_per_weight": 4,
    }
    return {
        "schema": "dq-quantize/1",
        "inputs": [{"path": "m", "file_bytes": 100}],
        "settings": {"bits": 4, "group": "128", "scale": "absmax"},
        "results": [
            {"path": "o/<c>.h5", **size, "content_sha256": None, "rows": [row("l.10.q_proj.weight", 18.5), row("l.9.q_proj.weight", 17.25)]}
        ],
    }


def prefill(tokens, **more):
    return {"model": "m", "what": "prefill", "weights": "BF16", "tokens": tokens, "seconds_median": 1, **more}


def attributes():
    """Objects where the page shows a value: they are text, not attributes."""
    evil = {"onfocus": "document.title='run'", "autofocus": "", "tabindex": "0", "tip": "x"}
    d = stats()
    d["results"][0]["table5"] = {k: {**v, "top1": evil, "median": [evil]} for k, v in d["results"][0]["table5"].items()}
    return {**d, "warnings": [evil], "inputs": [None, evil], "settings": {"ctx": evil}}


def equal_but_for_order():
    """Scores of one value whose sums were taken in another order."""

    def row(model, acc):
        return {
            "model": model,
            "task": "mc",
            "logit_bits": 16,
            "weights": {"bits_per_weight": 4.26 + acc - 0.3},
            "metrics": {"acc": {"value": acc, "stderr": None}},
        }

    return {
        "schema": "dq-eval/1",
        "settings": {},
        "results": [{**row("a", 0.3), "logit_bits": b} for b in (16, 4)]
        + [row("b", 0.30000000000000004), {**row("c", 0.5), "reference": "a"}],
    }


# Documents, and lines of their page with how often each is a whole cell, caption, entry or paragraph, or begins with one before "...".
CASES = [
    (
        [sensitive([])],
        {"First to break...": 0, "Largest of m on this text: attention logit 9.0000 in layer 1 head 2, key: <i> token;...": 1},
    ),
    (
        [
            sensitive(
                [
                    test_of([-0.5, 1], {"of": "logits", "by": "head", "layer": 1, "head": 0}, {"layer": 0, "head": 1}),
                    test_of([0.5, 1], {"of": "<k>", "by": "layer", "layer": 0}, {"layer": 1}),
                ]
            )
        ],
        {
            "inconclusive: logits by head (layer 1 head 0 or layer 0 head 1)": 1,
            "<k> by layer: layer 0, 0.5 to 1 nats a token more than any other; next layer 1": 1,
        },
    ),
    ([nothing_measured()], {"No value that could be drawn.": 2}),
    ([stats("x/<m>"), stats("y/<m>")], {"These documents differ...": 0, "x/<m>": 4}),
    ([stats("x/<m>"), stats("x/<m>", 128)], {"These documents differ in: ctx. Numbers...": 1}),
    (
        [container()],
        {"<c>.h5": 4, "l.9.q_proj.weight": 2, "17.25": 4, "What each container holds...": 0, "Table 1. What each container holds...": 1},
    ),
    (
        [
            {
                "schema": "dq-bench/1",
                "settings": {"math": "f32", "threads": 1},
                "results": [
                    prefill(64),
                    prefill(128, logit_bits=16, logit_granularity=None),
                    prefill(128, logit_bits=8, logit_granularity="tile"),
                    prefill(64, logit_bits=4),
                ],
            }
        ],
        {
            "m: prefill, BF16, f32, threads: 1": 1,
            "m: prefill, BF16, 8-bit logits, tile, f32, threads: 1": 1,
            "m: prefill, BF16, 4-bit logits, f32, threads: 1": 1,
            "m: prefill...": 3,
        },
    ),
    (
        [
            plan_kv(
                baselines=[
                    baseline([-2, -1], [1, 2], widths="4:3", mean_bits=3.5),
                    baseline([1, 2], [-2, -1], widths="<3>", mean_bits=3),
                    baseline([-1, 1], [None, None], widths="3:3", mean_bits=3),
                ],
                trials=[
                    {"widths": "4:<3>", "from": "units", "mean_bits": 3.5, "kld_nats": 0.125, "taken": False},
                    {"widths": "3:4", "from": "trade", "mean_bits": 3.5, "kld_nats": 0.125, "taken": True},
                ],
                units=[
                    {
                        "side": "keys",
                        "layers": [2, 3],
                        "map": 2,
                        "bits": 3,
                        "alone": [{"bits": 3, "kld_nats": {"value": 0.0125}}, {"bits": 2, "kld_nats": {"value": 0.5}}],
                    },
                    {"side": "values", "layers": [2, 3], "map": None, "bits": 3, "alone": [{"bits": 3, "kld_nats": {"value": None}}]},
                ],
            )
        ],
        {
            "the plan is closer": 1,
            "the uniform width is closer": 1,
            "inconclusive which is closer": 1,
            "the plan loses less": 1,
            "the uniform width loses less": 1,
            "inconclusive which loses less": 1,
            "97.5": 7,
            "<p>.json against <3>": 2,
            "<p>.json: the plan has 0.5 bits more: no uniform widths...": 1,
            "keys of layers 2 to 3, map 2": 1,
            "values of layers 2 to 3": 1,
            "by units": 1,
            "a step away": 2,
        },
    ),
    (
        [plan_kv(trials=[{"widths": "3:4", "from": "units", "mean_bits": 3.5, "kld_nats": 0.125, "taken": True}])],
        {"<p>.json: no other mix within the mean was measured.": 1, "inconclusive...": 0},
    ),
    (
        [
            plan_heads(
                baselines=[baseline([-2, -1], [1, 2])],
                trials=[share(1, 0.125, None, True), share(2, 0.5, None, False)],
                units=[
                    group(1, 0, True, nats(0.5)),
                    group(0, 1, False, nats(0.0125)),
                    group(0, 0, False, nats(0)),
                    group(1, 1, False, nats(None)),
                ],
            )
        ],
        {
            "1 of 4": 1,
            "--kv-policy keydiff --kv-keep 0.25 --kv-sink 4 --kv-recent 16 --kv-budget heads --kv-heads 1.0/0.0": 1,
            "the plan is closer": 1,
            "the uniform share loses less": 1,
            "97.5": 3,
            "0.0000cut": 1,
            "0.5000shares": 1,
            "0.0125cut": 1,
            "\u2013cut": 1,
            "<p>.json, KLD": 1,
            "<p>.json, KLD + answers": 0,
        },
    ),
    (
        [
            plan_heads(
                baselines=[baseline([-1, 1], [None, None])],
                trials=[share(1, 0.25, 0.5, True)],
                units=[group(0, 1, True, nats(0.5), {"value": 0.5}), group(0, 0, False, nats(0.5), {"value": 0.125})],
            )
        ],
        {
            "inconclusive which is closer": 1,
            "inconclusive which loses less": 1,
            "Figure 3. <p>.json: KLD": 1,
            "Figure 4. <p>.json: what the answers lack": 1,
            "0.1250cut": 1,
            "<p>.json, KLD + answers": 1,
            "<p>.json, KLD": 1,
            "<p>.json, answers lack": 1,
            "0.75": 1,
        },
    ),
    (
        [plan_heads(trials=[share(1, 0, None, True)], units=[group(0, 0, True, nats(0))])],
        {
            "<p>.json: the plan is this one: all groups share, so each keeps as much. Nothing is compared.": 1,
            "1 of 1": 1,
            "No value that could be drawn.": 1,
        },
    ),
    (
        [
            plan_heads(
                trials=[share(1, 0.5, None, True), share(2, 1e308, None, False), share(3, 1e-308, None, False)],
                units=[group(0, 0, True, nats(1e308))],
            )
        ],
        {"No value that could be drawn.": 0},
    ),
    ([{"schema": "dq-eval/1", "results": []}], {"No value...": 0}),
    ([attributes()], {"First to break...": 0}),
    ([equal_but_for_order()], {"Figure...": 2}),
]


def written(dq, folder, documents, may_fail=False):
    """A page of documents in memory; None where they are refused and that may be."""
    paths = []
    for k, d in enumerate(documents):
        paths.append(os.path.join(folder, "made%d.json" % k))
        with open(paths[-1], "w", encoding="utf-8") as f:
            json.dump(d, f)
    made = os.path.join(folder, "made.html")
    if run(dq, "report", *paths, "-o", made, "--force", may_fail=may_fail) is None:
        return None
    with open(made, encoding="utf-8") as f:
        return f.read()


def check_cases(dq, browser, folder):
    pages = seen_all(browser, folder, [(800, written(dq, folder, documents)) for documents, _ in CASES])
    for k, (page, (_, says)) in enumerate(zip(pages, CASES)):
        if page["undrawn"] or page["markup"] or len(page["h1"]) != 1 or not page["title"].startswith("dq "):
            yield "case %d: undrawn %s, elements made of text: %d" % (k, page["undrawn"], page["markup"])
        cells = [" ".join(c.split()) for c in page["cells"]]
        for line, n in says.items():
            found = sum(c.startswith(line[:-3]) if line.endswith("...") else c == line for c in cells)
            if found != n:
                yield 'case %d: "%s" stands there %d times, expected %d' % (k, line, found, n)


# Runs of dq eval whose caches differ, and the curves of their front.
FRONTS = [
    (
        ["--kv-recent", "16", "--kv-bits", "4", "--kv-quant", "per-token,per-channel", "--kv-policy", "keydiff", "--kv-keep", "1,0.5"],
        [
            "all tokens kept, per-token codes",
            "all tokens kept, per-channel codes",
            "keydiff, per-token codes",
            "keydiff, per-channel codes",
        ],
    ),
    (
        ["--kv-recent", "16", "--kv-policy", "keydiff", "--kv-keep", "1,0.5", "--kv-budget", "uniform,adaptive"],
        ["all tokens kept", "keydiff", "keydiff, budget adaptive"],
    ),
    (["--kv-recent", "16", "--kv-policy", "h2o,streaming", "--kv-keep", "1,0.5"], ["all tokens kept", "h2o", "streaming"]),
    (
        [
            "--kv-recent",
            "16",
            "--kv-policy",
            "h2o",
            "--kv-window",
            "4",
            "--kv-tokens",
            "48",
            "--kv-bits",
            "16,4",
            "--kv-quant",
            "per-token",
            "--kv-group",
            "16",
        ],
        None,
    ),
    (["--window", "stride", "--stride", "48", "--logit-bits", "4,3", "--logit-granularity", "per-row"], None),
]


def reproduces(dq, repo, tip, known):
    """Runs the command that a mark shows: a KLD of the document must come out, to the last bit."""
    command = [dq] + [w.replace("calib/", os.path.join(repo, "calib/")) if w.startswith("calib/") else w for w in shlex.split(tip[-1])[1:]]
    klds = [r["metrics"]["kld_nats"]["value"] for r in json.loads(run(*command, "-q", "--json"))["results"]]
    return any(k is not None and k in known for k in klds)


def check_commands(dq, repo, page, documents):
    """Of each kind of command that hovering shows, the last."""
    known = {r["metrics"]["kld_nats"]["value"] for d in documents for r in d["results"]}
    tips = {
        tip[-1].split(" --")[0].rpartition(".")[2] + "".join(w for w in tip[-1].split() if w.startswith("--")): tip
        for tip in page["tips"]
        if tip[-1].startswith("dq eval ") and not tip[-1].endswith(" ...")
    }
    if not tips:
        yield "no mark shows a command of dq eval"
    for tip in tips.values():
        if not reproduces(dq, repo, tip, known):
            yield "another KLD than that of %s by: %s" % (tip[0], tip[-1])


def check_fronts(dq, repo, browser, folder):
    pair = os.path.join(repo, "calib/pair")
    pages, run_of = [], []
    for options, _ in FRONTS:
        common = "--text %s --ctx 96 --limit 4 -q --json" % os.path.join(pair, "text.txt")
        document = json.loads(run(dq, "eval", os.path.join(pair, "diffllama"), *common.split(), *options))
        pages.append((800, written(dq, folder, [document])))
        run_of.append(document)
    for page, document, (options, curves) in zip(seen_all(browser, folder, pages), run_of, FRONTS):
        yield from check_commands(dq, repo, page, [document])
        names = [c for c in page["cells"] if c.startswith(("all tokens kept", "keydiff", "h2o", "streaming"))]
        if (curves and names != curves) or page["undrawn"]:
            yield "front of %s: curves %s, expected %s; undrawn %s" % (" ".join(options), names, curves, page["undrawn"])


def broken(random, x):
    """The same with some of its leaves changed into what no section expects."""
    if isinstance(x, dict):
        return {key: broken(random, v) for key, v in x.items()}
    if isinstance(x, list):
        return [broken(random, v) for v in x]
    return random.choice([None, "<i>x</i>", -1e300, [], {}, True]) if random.random() < 0.02 else x


def check_all_kinds(dq, repo, browser, folder, paths):
    """A document with made-up rows of every kind; then documents that were edited at random, of which something is drawn always."""
    with open(os.path.join(repo, "tests/cli/page_rows.json"), encoding="utf-8") as f:
        document = json.load(f)
    whole = written(dq, folder, [document])
    made = [whole]
    draw = random.Random(1)
    for original in [document] + [load(p) for p in paths]:
        for _ in range(4):
            keep = ("schema", "results", "model", "task", "metrics", "table5", "layers", "layer", "attention_logits", "hidden_states")
            edited = broken(draw, original)
            edited["schema"] = original["schema"]
            for r, o in zip(edited["results"], original["results"]):
                r.update({k: v for k, v in o.items() if k in keep[2:4]})
            made.append(written(dq, folder, [edited], may_fail=True))
    pages = seen_all(browser, folder, [(800, page) for page in made if page])
    if pages[0]["undrawn"] or "we<ird>" not in pages[0]["text"]:
        yield "all kinds: %s" % pages[0]["undrawn"]
    lacks = {
        "accuracy",
        "kld",
        "kv",
        "positions",
        "needle",
        "attention",
        "icl",
        "slices",
        "generation",
        "verdicts",
        "results",
        "paired",
        "run",
    } - set(pages[0]["sections"])
    if lacks:
        yield "all kinds: no section %s" % lacks
    for k, page in enumerate(pages):
        if len(page["h1"]) != 1 or not page["sections"] or page["markup"]:
            yield "edited document %d: %s, elements made of text: %d" % (k, page["h1"], page["markup"])


# ----- faults -----


def main():
    dq, repo = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    browser = next((b for b in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if b), None)
    if not browser:
        print("skipped: there is no Chromium")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        paths = documents(dq, repo, folder)
        made = os.path.join(folder, "page.html")
        run(dq, "report", *paths, "-o", made)
        with open(made, encoding="utf-8") as f:
            page = f.read()
        drawn = seen(browser, folder, page)
        found = [text for _, text in complaints(drawn, paths)]
        found += check_commands(dq, repo, drawn[WIDTHS[0]], [load(p) for p in paths[1:]])
        planted = {what for what, _ in complaints(seen(browser, folder, page, True), paths)}
        found += ["a fault was not found: " + what for what in {"grid", "bars", "marks", "tip", "answer", "width", "sections"} - planted]
        found += check_cases(dq, browser, folder)
        found += check_fronts(dq, repo, browser, folder)
        found += check_all_kinds(dq, repo, browser, folder, paths)
        for text in found:
            print("page:", text)
    sys.exit(1 if found else 0)


main()
