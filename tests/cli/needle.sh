# needle.sh: numbers hidden in a text: options, prompts, tables, resumed runs; sourced by run.sh.
filler=$repo/calib/pair/text.txt
set -- eval "diff model" --task needle --data "$filler" --lengths 420 --depths 0,50 --needles 1:1,3:2 --limit 2 \
    --progress never

# ---- refused, with a remedy
try 2 "needle needs its file: give --data FILE" eval "diff model" --task needle
try 2 "unknown task \"needles\". There are: .*needle" eval "diff model" --task needles --data "$filler"
try 2 "lengths: expected numbers from 1" "$@" --lengths 420,x
try 2 "depths: expected numbers from 0 to 100" "$@" --depths 101
try 2 "needles: expected N:R" "$@" --needles 4
try 2 "needles: expected N:R" "$@" --needles 4:2,
try 2 "needles 2:3 asks for more needles than there are. Use at most 2:2" "$@" --needles 2:3
try 2 "names for 100 needles at most" "$@" --needles 101:1
try 2 "needles: 3:2 stands twice" "$@" --needles 3:2,3:2
try 2 "needle-mode: expected one of forced, generated" "$@" --needle-mode both
try 2 "needle-order: expected one of drawn, depth" "$@" --needle-order last
try 2 "attention-rows has nothing to act on: add --attention" "$@" --attention-rows query
try 2 "attention-rows: expected one of last, query" "$@" --attention --attention-rows all
for option in "--lengths 420" "--depths 0" "--needles 1:1" "--needle-order depth" "--needle-mode forced" --attention "--seed 2"; do
    # shellcheck disable=SC2086
    try 2 "has nothing to act on" eval "diff model" --text "$filler" --limit 1 $option
done
try 4 "lengths 1024: .* has 512 positions. Use lengths up to 512" "$@" --lengths 420,1024
try 4 "needles 3:2 with their question.* need .* tokens, --lengths 120 is less" "$@" --lengths 120 --needles 3:2
try 4 "attention is not defined where tokens are evicted" "$@" --attention --kv-keep 0.5
try 3 "empty: holds no text" eval "diff model" --task needle --data empty
printf 'no end' >endless
try 3 "endless: has no end of a sentence" eval "diff model" --task needle --data endless

# ---- tables, documents, items
try 0 "^Accuracy of diff model, 3 needles, 2 asked for, 16-bit logits" "$@" --csv needle.csv --dump-items needle.jsonl
grep -q "^depth *420 tokens" "$top/out" || complain "needle: no column of a length"
! grep -q "^Attention of" "$top/out" || complain "needle: attention that nobody asked for"
[ "$(column needle.csv 1 n)" = 8 ] || complain "needle: not 2 x 2 x 2 samples"
[ -n "$(column needle.csv 1 all_correct)" ] || complain "needle: no column all_correct"
[ "$(wc -l <needle.jsonl)" -eq 8 ] || complain "needle: not one line for each prompt"
# entries of Table 2 are the means of their prompts, with paired differences
try 0 '"over_depths"' eval "plain model" "diff model" --task needle --data "$filler" --lengths 420 --depths 0,50 --needles 1:1,3:2 --limit 4 --logit-bits 16,2 \
    --dump-items entries.jsonl --json
if command -v python3 >/dev/null; then
    python3 - "$top/out" entries.jsonl <<'END' || complain "needle: entries over depths differ from their prompts"
import json, sys
doc, lines = json.load(open(sys.argv[1])), [json.loads(line) for line in open(sys.argv[2])]
found = {}
for x in lines:
    key = x["model"], x["logit_bits"], len(x["needles"])
    found.setdefault(key, []).append(x["found"] / len(x["asked"]))
mean = {k: sum(v) / len(v) for k, v in found.items()}
for r in doc["results"]:
    entries = r["needle"]["over_depths"]
    assert [(e["n_needles"], e["n_queries"], e["n"]) for e in entries] == [(1, 1, 8), (3, 2, 8)]
    for e in entries:
        key = r["model"], r["logit_bits"], e["n_needles"]
        assert abs(e["acc"]["value"] - mean[key]) < 1e-12
        assert (e["paired"] is None) == (key[1] == 16) and ("cross_paired" in e) == (key[0] == "diff model")
        if e["paired"]:
            assert abs(e["paired"]["delta"] - (mean[key] - mean[key[0], 16, key[2]])) < 1e-12
        if "cross_paired" in e:
            assert abs(e["cross_paired"]["acc"]["delta"] - (mean[key] - mean["plain model", key[1], key[2]])) < 1e-12
END
fi
rm entries.jsonl
try 0 '"ll_nats"' "$@" --json
json dq-eval/1
cp "$top/out" plain.json
grep -q '"kv_boundary": "before the question"' plain.json || complain "needle: the cut of a cache is not told"
grep -q '"prompt": ".*Answer: The special magic' plain.json || complain "needle: the prompt is not published"
try 0 "^Attention of plain model, .*last row, |a| / sum |a|; noise counts other needles" eval "plain model" --limit 1 \
    --task needle --data "$filler" --lengths 300 --needles 1:1 --depths 100 --attention
try 0 '"rows": "query"' "$@" --attention --attention-rows query --json
grep -q '"best_head": {' "$top/out" || complain "needle: no best head"
grep -q '"norm": "absolute"' "$top/out" || complain "needle: the best head does not say by which norm"
# on this model the sum of a row is near 0, and a / sum a is no share
try 0 "^|sum a| is below 0.1 in [1-9][0-9]* of [1-9][0-9]* rows of heads" eval "$repo/calib/longpair/diffllama-0" --task needle \
    --data "$filler" --lengths 300 --needles 1:1 --limit 2 --depths 0 --attention -o shares.json
awk '/^Attention of/ { on = 1 } on && /^ *[0-9]+ %/ { n++; gsub(/ ± [0-9.]+/, ""); for (i = 3; i <= 8; i++) bad += $i < 0 || $i > 1 }
     END { exit !(n == 1 && bad == 0) }' "$top/out" || complain "needle: shares outside 0 to 1: $(cat "$top/out")"
[ "$(grep -c '"small_sums": [1-9]' shares.json)" = 1 ] || complain "needle: rows with a small sum are not counted"
# Table 3: means and errors of what --dump-items has of each prompt; its noise counts other needles
try 0 '"order": "depth"' "$@" --needle-order depth --attention --json --dump-items shares.jsonl --limit 4
if command -v python3 >/dev/null; then
    python3 - "$top/out" shares.jsonl <<'END' || complain "needle: Table 3 differs from its prompts"
import json, statistics, sys
doc, lines = json.load(open(sys.argv[1])), [json.loads(line) for line in open(sys.argv[2])]
cells = doc["results"][0]["needle"]["cells"]
for c in cells:
    mine = [x for x in lines if (x["depth"], len(x["needles"])) == (c["depth"], c["n_needles"])]
    assert len(mine) == c["n"] == 4 and all(x["asked"][0]["needle"] == 0 for x in mine)
    for norm in ("positive", "absolute"):
        for name, parts in (("answer", ("answer",)), ("noise", ("noise", "distractor"))):
            x = [sum(m[norm][p] for p in parts) for m in mine]
            got = c["attention"][norm]["table3"][name]
            assert abs(got["value"] - statistics.mean(x)) < 1e-12, (got, x)
            assert abs(got["stderr"] - statistics.stdev(x) / 2) < 1e-12, (got, x)
END
fi
rm shares.jsonl
try 0 "^Accuracy of diff model" "$@" --needle-mode generated --dump-items generated.jsonl
grep -q '"generated": \[' generated.jsonl || complain "needle: generated ids are not written"
try 0 '"passes": "prompt+decode"' "$@" --limit 1 --needle-mode generated --json
! grep -q '"ll_nats"' "$top/out" || complain "needle: a log-likelihood of generated answers"
try 0 "4:4" "$@" --limit 1 --kv-bits 16,4 --attention
try 0 "needle" "$@" --limit 1 --logit-bits 16,4 --seed 9

cp "$filler" needle
for data in needle "needle=needle"; do # a file of that name, and a file for the task of that name
    try 0 "needle" eval "diff model" --task needle --data "$data" --lengths 300 --needles 1:1 --limit 1 --progress never
done
try 0 "needle" eval "diff model" --task mc,needle --data needle=needle --data choices.jsonl --lengths 300 --needles 1:1 \
    --limit 1 --progress never
rm needle

# ---- the cache: nothing evicted changes nothing, and what is evicted counts
ll() { # OPTION...: the mean log-likelihood of the last row
    "$dq" eval "diff model" --task needle --data "$filler" --lengths 420 --depths 50 --needles 3:2 --limit 2 --quiet --json \
        "$@" | grep -A 2 '"ll_nats"' | grep '"value"' | tail -n 1
}
whole=$(ll)
[ "$whole" = "$(ll --kv-keep 1 --kv-bits 32)" ] || complain "needle: --kv-keep 1 changes the numbers"
[ "$whole" = "$(ll --attention)" ] || complain "needle: --attention changes the numbers"
[ "$whole" != "$(ll --kv-keep 0.3 --kv-policy streaming)" ] || complain "needle: evicting changes nothing"

# ---- resumed runs: scores are kept when stdout is full, for the same settings only
rm -f dq-eval-*.resume
"$dq" "$@" --attention >/dev/full 2>/dev/null
ls dq-eval-*.resume >/dev/null 2>&1 || complain "needle: scores are not kept"
for option in "--seed 2" "--limit 1" "--depths 0" "--lengths 430" "--needles 1:1" "--needle-mode generated" \
    "--attention-rows query" "--needle-order depth"; do
    # shellcheck disable=SC2086
    anew "$@" --attention $option --resume
done
anew "$@" --resume
try 0 "^Attention of diff model" "$@" --attention --resume
absent dq-eval-*.resume
rm -f needle.csv needle.jsonl generated.jsonl plain.json endless
