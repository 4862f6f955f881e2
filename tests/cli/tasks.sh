# tasks.sh: official task files, few-shot examples, requests and plans of dq eval; sourced by run.sh.
piqa() {
    printf '{"goal": "feed a %s", "sol1": "give it grass", "sol2": "give it sand"}\n' "$@"
}
piqa duck goat >piqa.jsonl
printf '0\n0\n' >piqa-labels.lst
piqa owl hen crow mole >train.jsonl
printf '0\n1\n0\n1\n' >train-labels.lst
wino() {
    printf '{"qID": "%s", "sentence": "the duck meets the %s so the _ leaves .", "option1": "duck", "option2": "%s", "answer": "2"}\n' \
        "$1" "$2" "$2"
}
wino 1 goat >wino.jsonl
printf '{"activity_label": "Ducks", "ctx_a": "A duck swims.", "ctx_b": "it", "endings": ["dives .", "burns ."], "label": 0}\n' >swag.jsonl
{
    wino 2 owl
    wino 3 hen
    wino 4 mole
} >"wino train.jsonl"

# ---- the paper's metric, examples and seed stand in the results
try 0 "^published results quote acc of piqa, winogrande$" eval "plain model" --task piqa,winogrande --data piqa.jsonl \
    --data wino.jsonl
set -- eval "plain model" "diff model" --task piqa,winogrande --data piqa.jsonl --data winogrande=wino.jsonl \
    --num-fewshot 2 --fewshot-data "winogrande=wino train.jsonl" --fewshot-data train.jsonl --progress never
try 0 "^2 few-shot examples before every item, drawn with seed 1234$" "$@"
try 0 '"num_fewshot": 2' "$@" --json
json dq-eval/1
[ "$(grep -c '"paper_metric": "acc"' "$top/out")" = 4 ] || complain "tasks: paper_metric is not in every row"
[ "$(grep -c '"seed": 1234' "$top/out")" = 5 ] || complain "tasks: the seed is not in settings and every row"
for kind in piqa "piqa labels" "piqa few-shot" "piqa few-shot labels" winogrande "winogrande few-shot"; do
    grep -q "\"kind\": \"$kind\"" "$top/out" || complain "tasks: the inputs lack $kind"
done
try 0 '"paper_metric": null' eval "plain model" --task mc --data choices.jsonl --limit 2 --json
try 0 '"paper_metric": "acc_norm"' eval "plain model" --task hellaswag --data swag.jsonl --json

# ---- requests before scores
try 0 winogrande "$@" --dump-requests asked.jsonl --dump-items items.jsonl
[ "$(wc -l <asked.jsonl)" = 6 ] || complain "tasks: --dump-requests does not write a line per choice"
one='"context": "the duck meets the hen so the hen leaves .\n\nthe duck meets the owl so the owl leaves .\n\nthe duck meets the goat so the duck", "continuation": " leaves ."}'
grep '"task": "winogrande", "item": 0, "choice": 0' asked.jsonl | grep -qF "$one" ||
    complain "tasks: two-shot winogrande differs: $(grep winogrande asked.jsonl)"
for model in "plain model" "diff model"; do # scored texts are those that were asked
    grep "\"model\": \"$model\"" items.jsonl | sed 's/.*"context": /"context": /; s/, "n_ctx".*/}/' >"$top/a"
    sed 's/.*"context": /"context": /' asked.jsonl | cmp -s - "$top/a" || complain "tasks: $model scored other texts"
done
cp asked.jsonl other.jsonl
try 0 winogrande "$@" --dump-requests other.jsonl --force --seed 7
cmp -s asked.jsonl other.jsonl && complain "tasks: --seed changes no draw"
rm asked.jsonl items.jsonl other.jsonl

# ---- a plan without scores
try 0 "tokens: [0-9]*, about [0-9]* s; nothing was scored" "$@" --dry-run --dump-requests asked.jsonl
grep -q "piqa  *2  *2  *4 " "$top/out" || complain "tasks: the plan lacks examples, items and choices: $(cat "$top/out")"
present asked.jsonl
try 0 '"sequences": 4' "$@" --dry-run --json -o plan.json --logit-bits 16,4 --kv-bits 16,4
json dq-eval-plan/1
[ "$(cat plan.json)" = "$(cat "$top/out")" ] || complain "tasks: the plan's file differs from its output"
[ "$(grep -c '"shown": true' plan.json)" = 16 ] || complain "tasks: the plan lacks rows"
grep -q '"metrics"' plan.json && complain "tasks: a plan holds results"
try 0 "reference" eval "plain model" --text "short text" --ctx 32 --logit-bits 4 --dry-run
try 2 "dry-run scores nothing.*--csv" "$@" --dry-run --csv gone.csv
try 2 "dry-run scores nothing.*--dump-items" "$@" --dry-run --dump-items gone.jsonl
try 2 "dry-run scores nothing.*--resume" "$@" --dry-run --resume
absent gone.csv gone.jsonl dq-eval-*.resume
rm asked.jsonl plan.json

# ---- what is refused
try 2 "piqa needs the file of its examples.*--fewshot-data" eval "plain model" --task piqa --data piqa.jsonl --num-fewshot 1
try 2 "winogrande needs the file of its examples" eval "plain model" --task piqa,winogrande --data piqa.jsonl \
    --data wino.jsonl --num-fewshot 1 --fewshot-data train.jsonl
try 2 "fewshot-data has nothing to act on" eval "plain model" --task piqa --data piqa.jsonl --fewshot-data train.jsonl
try 2 "data: mc is given twice" eval "plain model" --task mc,piqa --data mc=choices.jsonl --data mc=piqa.jsonl
try 2 "fewshot-data: mc is given twice" eval "plain model" --task mc,piqa --data choices.jsonl --data piqa.jsonl \
    --num-fewshot 1 --fewshot-data mc=choices.jsonl --fewshot-data mc=choices.jsonl
try 2 "fewshot-data: trec is given twice" eval "plain model" --task trec --data choices.jsonl --fewshot-data trec=a --fewshot-data trec=b
try 2 "fewshot-data is given 2 times for 1 task" eval "plain model" --task piqa --data piqa.jsonl --num-fewshot 1 \
    --fewshot-data train.jsonl --fewshot-data train.jsonl
try 2 "num-fewshot is for items" eval "plain model" --text "short text" --num-fewshot 1
try 2 "num-fewshot: expected" eval "plain model" --task piqa --data piqa.jsonl --num-fewshot -1
try 2 "seed has nothing to act on" eval "plain model" --task piqa --data piqa.jsonl --seed 7
try 2 "dump-requests writes items" eval "plain model" --text "short text" --dump-requests gone.jsonl
try 2 "stands twice" eval "plain model" --task piqa,piqa --data piqa.jsonl --data piqa.jsonl
for file in "wino train.jsonl" piqa-labels.lst train-labels.lst; do
    try 2 "input and output are the same file" "$@" --dump-requests "$file"
done
try 2 "write this file" "$@" --dump-requests gone.jsonl --dump-items gone.jsonl
try 6 "no-such-file" eval "plain model" --task piqa --data piqa.jsonl --num-fewshot 1 --fewshot-data no-such-file
try 4 "train.jsonl: has 4 items (expected at least 5 for --num-fewshot 4" eval "plain model" --task piqa --data piqa.jsonl \
    --num-fewshot 4 --fewshot-data train.jsonl
try 3 "wino.jsonl: item 0, line 1: key \"goal\" is missing (expected JSON lines" eval "plain model" --task piqa --data wino.jsonl
try 3 "wino.jsonl: item 0, line 1: key \"goal\" is missing" eval "plain model" --task piqa --data piqa.jsonl \
    --num-fewshot 1 --fewshot-data wino.jsonl
cp piqa.jsonl bare.jsonl
try 6 "bare-labels.lst: is missing; the items of bare.jsonl" eval "plain model" --task piqa --data bare.jsonl
printf '0\n' >bare-labels.lst
try 3 "bare-labels.lst: line 1: the labels end" eval "plain model" --task piqa --data bare.jsonl
printf '0\n7\n' >bare-labels.lst
try 3 "bare-labels.lst: item 1, line 2: expected a label from 0 to 1" eval "plain model" --task piqa --data bare.jsonl
anew "$@" --resume --dump-requests gone.jsonl
rm gone.jsonl

# ---- finished work belongs to the examples it was scored with
shift 3
set -- eval "plain model" "$@"
"$dq" "$@" --logit-bits 16,8,6,4 --logit-granularity per-tensor,per-row >/dev/full 2>"$top/err"
grep -q "dq-eval-.*resume is kept; --resume goes on from it" "$top/err" || complain "tasks: no scores were kept: $(cat "$top/err")"
set -- "$@" --logit-bits 16,8,6,4 --logit-granularity per-tensor,per-row --resume
anew "$@" --seed 7
printf '0\n1\n0\n0\n' >train-labels.lst
anew "$@"
printf '0\n1\n0\n1\n' >train-labels.lst
printf '0\n1\n' >piqa-labels.lst
anew "$@"
printf '0\n0\n' >piqa-labels.lst
try 0 winogrande "$@"
absent gone.jsonl dq-eval-*.resume

# ---- a task of the user's own: one of the program's from its file, and what is refused
cp "$here/../../tasks/piqa.json" own.json
try 0 "" eval "plain model" --task piqa --data piqa.jsonl --dump-requests embedded.jsonl --json
try 0 '"kind": "piqa task"' eval "plain model" --task ./own.json --data piqa=piqa.jsonl --dump-requests own.jsonl --json
cmp -s embedded.jsonl own.jsonl || complain "tasks: a task's own file asks other things than the embedded one"
printf '{"include": "piqa", "task": "mine", "doc_to_text": "{{goal}}?"}' >mine.json
try 0 "" eval "plain model" --task piqa,mine.json --data mine=piqa.jsonl --data piqa.jsonl --dump-requests both.jsonl --json
grep -q '"task": "mine".*?", "continuation"' both.jsonl || complain "tasks: an own task's text is not that of its file"
try 2 "mine needs its file: give --data FILE (expected JSON lines" eval "plain model" --task mine.json
try 2 "task: mine stands twice" eval "plain model" --task mine.json,mine.json --data piqa.jsonl --data piqa.jsonl
try 2 "input and output are the same file" eval "plain model" --task mine.json --data piqa.jsonl -o mine.json
try 6 "none.json: cannot open" eval "plain model" --task none.json --data piqa.jsonl
printf '{"include": "piqa", "doc_to_txt": "{{goal}}?"}' >bad.json
try 3 'bad.json: key "doc_to_txt" is unknown (expected doc_to_text' eval "plain model" --task bad.json --data piqa.jsonl
printf '{"include": "piqa", "doc_to_text": "{{goal"}' >bad.json
try 3 'bad.json: doc_to_text, line 1: ' eval "plain model" --task bad.json --data piqa.jsonl

# ---- the mean over tasks, against arithmetic on the tasks' own numbers
set -- eval "plain model" "diff model" --task mc,arc_easy,hellaswag --data choices.jsonl \
    --data "$repo/tests/golden/lmeval/fixtures/arc_easy_test.jsonl" --data "$repo/tests/golden/lmeval/fixtures/hellaswag_val.jsonl" --limit 10 \
    --logit-bits 16,4 --progress never
try 0 "^Mean over 3 tasks, each counting as much (acc_norm of hellaswag, acc of the others):$" "$@"
grep -q "against first model" "$top/out" || complain "tasks: means of two models are not compared"
try 0 '"averages"' "$@" --json
if command -v python3 >/dev/null; then
    python3 - "$top/out" <<'END' || complain "tasks: the means over tasks are others"
import json, math, sys
doc = json.load(open(sys.argv[1]))
quoted = {"mc": "acc", "arc_easy": "acc", "hellaswag": "acc_norm"}
def mean(parts, value):
    k = len(parts)
    m = sum(p[value] for p in parts) / k
    far = [math.sqrt(sum((p["interval"][end] - p[value]) ** 2 for p in parts)) / k for end in (0, 1)]
    return m, math.sqrt(sum(p["stderr"] ** 2 for p in parts)) / k, m - far[0], m + far[1]
def same(got, value, want):
    return all(abs(a - b) < 1e-12 for a, b in zip((got[value], got["stderr"], *got["interval"]), want))
assert len(doc["averages"]) == 4
for a in doc["averages"]:
    rows = [r for r in doc["results"] if (r["model"], r["logit_bits"]) == (a["model"], a["logit_bits"])]
    assert [r["task"] for r in rows] == a["tasks"] == list(quoted) and a["metrics"] == list(quoted.values())
    assert same(a["mean"], "value", mean([r["metrics"][quoted[r["task"]]] for r in rows], "value"))
    assert (a["paired"] is None) == (a["verdict"] is None) == (a["logit_bits"] == 16)
    if a["paired"]:
        assert same(a["paired"], "delta", mean([r["paired"][quoted[r["task"]]] for r in rows], "delta"))
        assert a["verdict"]["loss"] == -a["paired"]["delta"] and a["verdict"]["interval"][0] == -a["paired"]["interval"][1]
    assert ("cross_paired" in a) == (a["model"] == "diff model")
    if "cross_paired" in a:
        assert same(a["cross_paired"], "delta", mean([r["cross_paired"][quoted[r["task"]]] for r in rows], "delta"))
# one comparison for each difference to a reference or to the first model
n = sum((r["paired"] is not None) + ("cross_paired" in r) for r in doc["results"] + doc["averages"])
assert doc["comparisons"]["n"] == n, (doc["comparisons"], n)
END
fi
try 0 "published results" eval "plain model" --task piqa --data piqa.jsonl
! grep -q "^Mean over" "$top/out" || complain "tasks: a mean over one task"

# ---- what stands before a choice, copies of items, and examples that are the item
item() { # item CONTEXT CHOICE MORE
    printf '{"ctx": "%s", "choices": ["%s", "x"], "gold": 0%s}\n' "$1" "$2" "$3"
}
{
    item "日本の首都は東" 京 ', "delimiter": ""'
    item a+ b ', "delimiter": ""'
} >none.jsonl
{
    item "The capital is" Paris ''
    item "The river is" " long" ''
} >spaces.jsonl
set -- eval "plain model" --task mc --dump-requests requests.jsonl --force --json --data
try 0 '"delimiter": ""' "$@" none.jsonl
grep -q '"continuation": "京"' requests.jsonl || complain "mc: no choice without a delimiter"
try 0 '"delimiter": " "' "$@" spaces.jsonl
grep -q "white space meets white space in 1 item, the first in line 2" "$top/err" || complain "mc: no warning of two spaces"
try 0 . "$@" none.jsonl --num-fewshot 1 --fewshot-data spaces.jsonl
grep -q "spaces.jsonl: .* white space meets white space" "$top/err" || complain "mc: no warning of two spaces in examples"
cat none.jsonl spaces.jsonl >both.jsonl
try 0 '"delimiter": null' "$@" both.jsonl
try 0 "choices of mc follow their contexts after one space" eval "plain model" --task mc --data spaces.jsonl
try 0 "choices of mc follow their contexts without a delimiter" eval "plain model" --task mc --data none.jsonl
printf '{"ctx": "a", "choices": [{"text": "b", "label": "B"}, "c"], "gold": "C"}\n' >bad.jsonl
try 3 'item 0, line 1: key "choices": entry 1 lacks a string' eval "plain model" --task mc --data bad.jsonl
item a b ', "delimiter": 1' >bad.jsonl
try 3 'item 0, line 1: key "delimiter"' eval "plain model" --task mc --data bad.jsonl

# five copies of an item and two items of one cluster among six: seven items, two pieces
{
    for i in 1 2 3 4 5; do item "the green mole" hears ", \"id\": $i"; done
    item "a cold wolf" finds ', "cluster": "wolf"'
    item "a tall crow" draws ', "cluster": "wolf"'
} >copies.jsonl
try 0 " 7  2 clusters " eval "plain model" --task mc --data copies.jsonl
try 0 "clusters 2 clusters" eval "plain model" --task mc --data copies.jsonl --logit-bits 16,3
grep -q "p: t test over clusters" "$top/out" || complain "mc: copies of an item are independent"
try 0 '"n_clusters": 2' eval "plain model" --task mc --data copies.jsonl --logit-bits 16,3 --json
grep -q '"cluster": "cluster"' "$top/out" || complain "mc: clusters have no name"

sed 6q choices.jsonl >items.jsonl
sed 's/}$/, "copy": true}/' items.jsonl >pool.jsonl
try 4 "has 5 items that differ from the one that is scored" eval "plain model" --task mc --data items.jsonl --num-fewshot 6 --fewshot-data pool.jsonl
try 0 . eval "plain model" --task mc --data items.jsonl --num-fewshot 4 --fewshot-data pool.jsonl --dump-requests requests.jsonl --force --json
grep -q "warning: mc: --fewshot-data holds items of .*: before [1-6] of them, an example that was the item itself is replaced" "$top/err" ||
    complain "mc: an example that is the item itself is not told"
# what stands after the last blank line of a context is the item, and nowhere else in it
awk '{
    context = $0
    sub(/.*"context": "/, "", context)
    sub(/", "continuation".*/, "", context)
    n = split(context, part, /\\n\\n/)
    if (n != 5) bad = 1
    for (i = 1; i < n; i++) if (index(part[i], part[n])) bad = 1
}
END { exit bad || !NR }' requests.jsonl || complain "mc: an item is among its own examples"
