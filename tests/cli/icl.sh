# icl.sh: in-context learning from files to documents; sourced by run.sh. With the folder of the official data sets in
# DQ_DATA, they are read and scored too.

at=$repo/tests/golden/icl
set -- eval "plain model" --task trec --data "$at/trec_test.label" --fewshot-data "$at/trec_train.label" --num-fewshot 1,3 \
    --runs 2 --limit 3
try 0 "3 shots" "$@" --demo-order random,class --demo-permutations 3
grep -q "margin of 3 orders" "$top/out" && grep -q "trec, class" "$top/out" ||
    complain "eval --demo-permutations: no margin or no second order on stdout"
try 0 '"acc_ll"' "$@" --demo-order alternate,random --demo-permutations 3 --json
json dq-eval/1
if command -v python3 >/dev/null; then
    python3 - "$top/out" <<'END' || complain "eval --task trec: the document is not as it should be"
import json, sys
doc = json.load(open(sys.argv[1]))
assert [i["kind"] for i in doc["inputs"]][:2] == ["trec", "trec demonstrations"] and len(doc["inputs"]) == 3
assert len(doc["results"]) == 2
for r, order in zip(doc["results"], ("alternate", "random")):
    icl = r["icl"]
    assert (r["task"], icl["demo_order"], r["n"]) == ("trec", order, 24)
    assert [(x["run"], x["shots"], x["n"]) for x in icl["runs"]] == [(0, 1, 3), (1, 1, 3), (0, 3, 3), (1, 3, 3)]
    assert [(x["permutation"], x["shots"]) for x in icl["permutations"]] == [(1, 1), (2, 1), (1, 3), (2, 3)]
    for c, s in zip(icl["curve"], icl["permutation_spread"]):
        acc = [x["acc"]["value"] for x in icl["runs"] if x["shots"] == c["shots"]]
        assert c["runs"] == 2 and c["acc_min"] == min(acc) and c["acc_max"] == max(acc)
        assert abs(c["acc_mean"] - sum(acc) / 2) < 1e-12 and s["permutations"] == 3
        assert s["acc_margin"] == s["acc_max"] - s["acc_min"]
    of_runs = [x["acc"]["value"] for x in icl["runs"] + icl["permutations"]]
    assert abs(r["metrics"]["acc"]["value"] - sum(of_runs) / len(of_runs)) < 1e-12
assert doc["settings"]["icl"]["seed"] == 1 and "SplitMix64" in doc["settings"]["icl"]["generator"]
END
fi
# the plateau, against the analysis of variance of what --dump-items has
try 0 "^Mean accuracy over the larger numbers of demonstrations" eval "plain model" "diff model" --task banking77,trec --data "$at/banking_test.csv" \
    --data "$at/trec_test.label" --fewshot-data "$at/banking_train.csv" --fewshot-data "$at/trec_train.label" --num-fewshot 1,2,3,5 --runs 3 \
    --limit 6 --logit-bits 16,2 --logit-granularity per-row --dump-items plateau.jsonl -o plateau.json
if command -v python3 >/dev/null; then
    python3 - plateau.json plateau.jsonl <<'END' || complain "icl: the plateau differs from its answers"
import json, math, sys
doc, lines = json.load(open(sys.argv[1])), [json.loads(line) for line in open(sys.argv[2])]
right, n_rows = {}, 0
for x in lines:
    if x["choice"] == 0:
        key = x["model"], x["task"], x["logit_bits"]
        right.setdefault(key, {})[x["shots"], x["run"], x["query"]] = x["gold"] == x["pick"]["acc"]
def table(key, shots):
    at = right[key]
    queries = sorted({q for _, _, q in at})
    return [[sum(at[s, r, q] for s in shots) / len(shots) for q in queries] for r in range(3)]
def error(x):
    r, q = len(x), len(x[0])
    rows, cols = [sum(a) / q for a in x], [sum(a) / r for a in zip(*x)]
    m = sum(rows) / r
    msr = q * sum((a - m) ** 2 for a in rows) / (r - 1)
    msq = r * sum((a - m) ** 2 for a in cols) / (q - 1)
    mse = sum((x[i][k] - rows[i] - cols[k] + m) ** 2 for i in range(r) for k in range(q)) / (r - 1) / (q - 1)
    return m, math.sqrt(max(msr + msq - mse, msr, msq) / (r * q))
def check(got, name, x):
    m, e = error(x)
    assert abs(got[name] - m) < 1e-9 and abs(got["stderr"] - e) < 1e-9, (got, m, e)
def less(a, b):
    return [[u - v for u, v in zip(x, y)] for x, y in zip(a, b)]
for row in doc["results"]:
    p, key = row["icl"]["plateau"], (row["model"], row["task"], row["logit_bits"])
    assert p["from"] == 3 and p["shots"] == [3, 5]
    x = table(key, p["shots"])
    check(p["acc"], "value", x)
    assert (p["paired"] is None) == (key[2] == 16) and ("cross_paired" in p) == (key[0] == "diff model")
    if p["paired"]:
        check(p["paired"], "delta", less(x, table((key[0], key[1], 16), p["shots"])))
    if "cross_paired" in p:
        check(p["cross_paired"], "delta", less(x, table(("plain model", *key[1:]), p["shots"])))
    n_rows += 1
assert n_rows == 8 and doc["settings"]["icl"]["plateau_from"] == "half of the most"
END
fi
rm plateau.json plateau.jsonl
try 0 '"plateau_from": 2' "$@" --plateau 2 --json
try 0 '"plateau": null' "$@" --plateau 4 --json
try 2 "plateau is for in-context learning" eval "plain model" --task mc --data choices.jsonl --plateau 2
try 0 "2 shots" eval "plain model" --task clinic150 --data "$at/clinc.json" --num-fewshot 2 --runs 1
try 0 "banking77" eval "plain model" --task banking77,clinic150 --data "$at/banking_test.csv" \
    --data clinic150="$at/clinc.json" --fewshot-data banking77="$at/banking_train.csv" --num-fewshot 2 --runs 1 --limit 2
try 0 "trec_fine" eval "plain model" --task trec_fine --data "$at/trec_test.label" --fewshot-data "$at/trec_train.label" \
    --num-fewshot 1 --runs 1 --limit 1 --kv-bits 16,8 --kv-recent 16
try 0 "." "$@" --logit-bits 16,6 --logit-granularity per-tensor
grep -q "every choice is a sequence of its own: [0-9]* tokens instead of" "$top/err" ||
    complain "eval --logit-granularity per-tensor: its cost is not said"
try 0 "." "$@" --num-fewshot 1,3,13,500
grep -q "num-fewshot 13, 500 left out" "$top/err" || complain "eval --num-fewshot: what does not fit is not said"

# Items as text, one line per label; nothing but the last query's own end differs within a block.
try 0 "." "$@" --dump-items items --csv items.csv
for metric in acc acc_ll; do again items items.csv "plain model" 16 per-tensor $metric; done
grep -q '"shots": 3, "run": 1, "demo_order": "random", "permutation": 0, "query": [0-9]*, "gold": ' items ||
    complain "eval --dump-items: no shots, run or order"
[ "$(wc -l <items)" -eq 72 ] || complain "eval --dump-items: expected 72 lines for 12 prompts and 6 labels"
grep -q '"context": "Question: .*\\n==\\nQuestion: .*\\nType:", "continuation": " abbreviation"' items ||
    complain "eval --dump-items: no whole prompt"

# What is kept for --resume depends on every setting and every file.
cp "$at/trec_train.label" other.label
echo "NUM:date When ?" >>other.label
full() {
    "$dq" "$@" >/dev/full 2>/dev/null
}
if [ -c /dev/full ]; then
    full "$@" --seed 1 # the default
    full "$@"
    full "$@" --seed 2
    full "$@" --demo-order class
    full "$@" --demo-permutations 2
    full eval "plain model" --task trec --data "$at/trec_test.label" --fewshot-data other.label --num-fewshot 1,3 --runs 2 --limit 3
    full eval "plain model" --task trec --data "$at/trec_test.label" --fewshot-data "$at/trec_train.label" --num-fewshot 1,3 \
        --runs 2 --limit 2
    full eval "plain model" --task trec --data "$at/trec_test.label" --fewshot-data "$at/trec_train.label" --num-fewshot 1,2 \
        --runs 2 --limit 3
    # shellcheck disable=SC2012 # names of our own
    [ "$(ls dq-eval-*.resume | wc -l)" -eq 7 ] || complain "eval --resume: the key misses a setting"
    try 0 "3 shots" "$@" --resume
    rm -f dq-eval-*.resume
fi

try 2 "unknown task \"treck\". There are: mc, hellaswag.*trec" eval "plain model" --task treck --data items
try 2 "needs demonstrations" eval "plain model" --task trec --data "$at/trec_test.label"
try 2 "needs its file" eval "plain model" --task trec --fewshot-data "$at/trec_train.label"
try 2 "takes one number" eval "plain model" --task mc --data choices.jsonl --num-fewshot 1,3
try 2 "seed has nothing to act on" eval "plain model" --text "short text" --ctx 16 --seed 0
try 2 "stands twice" "$@" --demo-order class,class
try 2 "order" "$@" --demo-order sorted
try 2 "given 2 times for 1 task" "$@" --fewshot-data other.label
try 2 "input and output are the same file" eval "plain model" --task trec --data "$at/trec_test.label" --fewshot-data other.label -o other.label
try 6 "no-such-file" eval "plain model" --task trec --data "$at/trec_test.label" --fewshot-data no-such-file
try 3 "banking_train.csv: line 1" eval "plain model" --task trec --data "$at/trec_test.label" \
    --fewshot-data "$at/banking_train.csv"
try 3 "empty: holds no examples" eval "plain model" --task trec --data empty --fewshot-data "$at/trec_train.label"
try 4 "not even 500 fits" "$@" --num-fewshot 500

if [ -n "${DQ_DATA:-}" ] && [ -f "$DQ_DATA/TREC_10.label" ]; then
    for model in llama-0 diffllama-0; do
        try 0 "10 shots" eval "$repo/calib/longpair/$model" --task trec --data "$DQ_DATA/TREC_10.label" \
            --fewshot-data "$DQ_DATA/train_5500.label" --num-fewshot 1,10,50 --runs 2 --limit 50
        try 0 "5 shots" eval "$repo/calib/longpair/$model" --task banking77 --data "$DQ_DATA/banking77_test.csv" \
            --fewshot-data "$DQ_DATA/banking77_train.csv" --num-fewshot 1,5,50 --runs 2 --limit 50
    done
fi

# ---- no query is shown its own answer
{
    cat "$at/trec_train.label"
    head -n 3 "$at/trec_test.label"
} >leaky.label
try 0 "trec" eval "plain model" --task trec --data "$at/trec_test.label" --fewshot-data leaky.label --num-fewshot 1,3 --limit 4
grep -q "warning: trec: 3 examples have the text of a query, and are no demonstrations" "$top/err" || complain "icl: queries among the demonstrations"
try 4 "all demonstrations are queries, too" eval "plain model" --task trec --data "$at/trec_test.label" --fewshot-data "$at/trec_test.label" --num-fewshot 1
