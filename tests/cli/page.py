#!/usr/bin/env python3
"""page.py: a page of dq report as a browser draws it, beside the documents that it was made of.

    python3 tests/cli/page.py DQ REPOSITORY

Headless Chromium lays the page out at 400, 800 and 1600 px, in frames of one wrapper, whose script reads boxes, colours and texts
back. Cells of maps, lengths of bars, places of marks and sentences have to follow from the JSON; nothing may be wider than the
window. Then the same is read from a page with planted faults, each of which must be found. Exits 77, which CTest takes for
skipped, where Chromium or gnuplot is missing.
"""

import html
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile

WIDTHS = (400, 800, 1600)

READ = """
const number = x => Math.round(100 * x) / 100;
function box(e) { const r = e.getBoundingClientRect(); return {x: number(r.left + r.width / 2), y: number(r.top + r.height / 2),
  w: number(r.width), h: number(r.height)}; }
function read(d) {
  const view = d.defaultView, all = (e, s) => Array.from(e.querySelectorAll(s)), text = e => e.textContent;
  const table = t => all(t, 'tbody tr').map(r => all(r, 'th, td').map(text));
  return {
    inner: view.innerWidth, wide: d.documentElement.scrollWidth,
    answer: all(d, '#answer p.says, #answer li').map(p => p.textContent.trim()),
    answers: all(d, '#answer table').map(table),
    grids: all(d, 'table[data-grid]').map(t => ({what: t.dataset.grid, model: t.dataset.model, width: t.offsetWidth,
      heads: all(t, 'thead th').slice(1).map(text),
      rows: all(t, 'tbody tr').map(r => ({layer: text(r.querySelector('th')), cells: all(r, 'td').map(c => ({text: text(c),
        colour: view.getComputedStyle(c).backgroundColor}))}))})),
    bars: all(d, 'section[id$=sensitivity] table:not([data-grid])').map(t => all(t, 'tbody tr').filter(r => r.querySelector('.bar')).map(
      r => ({name: text(r.cells[0]), kld: text(r.cells[2]), all: box(r.querySelector('.bar')),
        bar: box(r.querySelector('.bar i')), ends: box(r.querySelector('.bar b'))}))).filter(t => t.length),
    size: all(d, '#size figure svg').map(s => all(s, 'use').map(box)),
    last: all(d, 'section.part').map(p => all(p, 'section').pop().id)};
}
onload = () => {
  const seen = Array.from(document.querySelectorAll('iframe')).map(f => read(f.contentDocument));
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


def run(*args):
    done = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode:
        fail("%s: status %d: %s" % (" ".join(args), done.returncode, done.stderr.decode()[-300:]))
    return done.stdout.decode()


def seen(browser, folder, page):
    """What the browser made of the text of a page, by width."""
    frames = "".join(
        '<iframe style="border:0;width:%dpx;height:900px" srcdoc="%s"></iframe>' % (w, html.escape(page)) for w in WIDTHS
    )
    path = os.path.join(folder, "wrapper.html")
    with open(path, "w", encoding="utf-8") as f:
        f.write("<!DOCTYPE html><meta charset='utf-8'><body style='margin:0;width:2000px'>%s<script>%s</script>" % (frames, READ))
    dom = run(
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--user-data-dir=" + os.path.join(folder, "profile"),
        "--window-size=2000,1000", "--virtual-time-budget=20000", "--dump-dom", "file://" + path,
    )
    found = re.search(r'<pre id="seen">(.*?)</pre>', dom, re.S)
    if not found:
        fail("the browser read nothing back: %s" % dom[:200])
    return dict(zip(WIDTHS, json.loads(html.unescape(found.group(1)))))


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
                (str(x["layer"]), "%d" % x["head"] + ("/%d" % x["map"] if x.get("map") else "")):
                x["error" if g["what"] == "error" else "map_error"]["4"]["per-tensor"] for x in heads
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
                r["logit_granularity"] if own else "weights", "%d bits" % r["logit_bits"] if own else r["model"],
                r["logit_bits"] if own else w["bits_per_weight"], w["bits_per_weight"], w["file_bytes"] / 1e6,
                r["metrics"]["kld_nats"]["value"], [end - margin for end in ends],
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
                first["of"], first["by"], name_of(first), ends[0], ends[1], name_of(then)
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
        if not page["last"] or any(not s.endswith("-run") for s in page["last"]):
            say("order", "a part does not end with its settings: %s" % page["last"])
    return all_of


# ----- faults -----


def changed(page, pattern, by):
    text, n = re.subn(pattern, by, page, count=1, flags=re.S)
    if not n:
        fail("nothing to change: %s" % pattern)
    return text


def faulty(page):
    """A page with a fault for each check."""
    page = changed(page, r'(data-grid="logits".*?<td[^>]*>)[0-9.]+', r"\g<1>7.77")
    page = changed(page, r'(class="bar"[^>]*><i style="width:)[0-9.]+', r"\g<1>3.21")
    page = changed(page, r'(id="size".*?<use [^>]*transform=[\'"]translate\()[0-9.]+', r"\g<1>300")
    page = changed(page, r"(logits per-row <b>)\d+ bits", r"\g<1>2 bits")
    return changed(page, "</main>", '<p style="width:2000px;max-width:none">wide</p></main>')


def main():
    dq, repo = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    browser = next((b for b in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if b), None)
    if not browser or not shutil.which("gnuplot"):
        print("skipped: there is no", "gnuplot" if browser else "Chromium")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        paths = documents(dq, repo, folder)
        made = os.path.join(folder, "page.html")
        run(dq, "report", *paths, "-o", made)
        with open(made, encoding="utf-8") as f:
            page = f.read()
        found = complaints(seen(browser, folder, page), paths)
        for _, text in found:
            print("page:", text)
        planted = {what for what, _ in complaints(seen(browser, folder, faulty(page)), paths)}
        for what in {"grid", "bars", "marks", "answer", "width"} - planted:
            print("page: a fault was not found:", what)
            found.append((what, ""))
    sys.exit(1 if found else 0)


main()
