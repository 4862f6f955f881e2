# baseline.sh: --fail-if against an older document; sourced by run.sh.

command -v python3 >/dev/null || return 0
book=$repo/calib/pair/text.txt
made() { "$dq" eval "$@" -q >/dev/null 2>"$top/err" || complain "baseline: dq eval $*: $(cat "$top/err")"; }
# checked FILE: how many results of all gates were not checked
unchecked() { sed -n 's/^      "unchecked": \([0-9]*\).*/\1/p' "$1" | awk '{ n += $1 } END { print n + 0 }'; }

"$dq" quantize "diff model" -o four.h5 --bits 4 -q >/dev/null
"$dq" quantize "diff model" -o three.h5 --bits 3 -q >/dev/null
cp four.h5 model.h5
set -- eval "diff model" model.h5 --text "$book" --ctx 64 --limit 6
made "diff model" model.h5 --text "$book" --ctx 64 --limit 6 -o old.json

# ---- the same numbers are neither above nor below
try 0 "Against the baseline old.json:" "$@" --baseline old.json --fail-if 'kld_nats > baseline' --fail-if 'ppl > baseline * 1.02' \
    --fail-if 'nll_nats<baseline' --fail-if 'kld_nats.p99 > 2 * (baseline + 0)' --fail-if 'nll_nats_delta > baseline' --fail-if 'ppl_ratio > baseline' -o new.json
[ "$(grep -c " not met$" "$top/out")" = 8 ] || complain "baseline: not 8 rows that are not met: $(cat "$top/out")"
grep -q "^A change is the difference of two point values: a document has no results of single items" "$top/out" || complain "baseline: does not say what a change is"
grep -q "^kld_nats > baseline  *model.h5 .* \([0-9.e-]*\) ± [0-9.e-]*  *\1 ± .* +0  *\1 " "$top/out" || complain "baseline: no value beside its baseline, with their errors: $(cat "$top/out")"
[ "$(unchecked new.json)" = 0 ] || complain "baseline: something was not checked"
grep -q "\"sha256\": \"$(sha256sum old.json | cut -d' ' -f1)\"" new.json || complain "baseline: the document does not say which baseline"
grep -q '"comparison": "point values"' new.json || complain "baseline: the document does not say what is compared"
# a document of such a run is a baseline too
try 0 "." "$@" --baseline new.json --fail-if 'kld_nats > baseline' -o newer.json
# without the word nothing of it is there
try 0 "." "$@" --fail-if 'kld_nats > 99' -o plain.json
! grep -q '"compared"\|"baseline"' plain.json || complain "baseline: members without a baseline"
! grep -q "Against the baseline" "$top/out" || complain "baseline: a table without a baseline"

# ---- another container under the same name has lost more
cp three.h5 model.h5
try 7 "1 result meets a condition of --fail-if (model.h5, text, .*: kld_nats is [0-9.]* (95 % interval .*), baseline [0-9.]*, limit [0-9.]*, .kld_nats > 1.1 \* baseline.)" \
    "$@" --baseline old.json --fail-if 'kld_nats > 1.1 * baseline' --fail-if 'nll_nats > 100 * baseline' -o new.json --force
grep -q "^kld_nats > 1.1 \* baseline  *model.h5 .* met$" "$top/out" || complain "baseline: no row of what was met: $(cat "$top/out")"
python3 - <<'PY' || complain "baseline: the document's numbers are not those of the two runs"
import json
old, new = json.load(open("old.json")), json.load(open("new.json"))
gate = new["gates"][0]
row = gate["compared"][0]
value, before = (d["results"][1]["metrics"]["kld_nats"] for d in (new, old))
assert gate["checked"] == gate["missed"] == 1 and len(gate["compared"]) == 1 and row["result"] == 1 and row["met"] is True
assert (row["value"], row["stderr"]) == (value["value"], value["stderr"])
assert (row["baseline"], row["baseline_stderr"]) == (before["value"], before["stderr"])
assert row["change"] == row["value"] - row["baseline"] and row["limit"] == 1.1 * row["baseline"] and row["unchecked"] is None
assert [c["met"] for c in new["gates"][1]["compared"]] == [False, False]
PY
cp four.h5 model.h5

# ---- a document that does not say what was read
sed '/"sha256"/d' old.json | sed 's/\("bytes": [0-9]*\),$/\1/' >unsaid.json
try 3 "unsaid.json: inputs: no .sha256. of what was read as text" "$@" --baseline unsaid.json --fail-if 'kld_nats > baseline' --force

# ---- tasks
set -- eval "plain model" --task mc --data choices.jsonl --limit 6 --logit-bits 16,3
made "plain model" --task mc --data choices.jsonl --limit 6 --logit-bits 16,3 -o mc.json
try 0 "." "$@" --baseline mc.json --fail-if 'acc < baseline - 0.01' --fail-if 'acc.stderr > baseline + 1' --fail-if 'acc_norm_delta < baseline' --fail-if 'acc_p < baseline'
python3 - <<'PY'
import json
d = json.load(open("mc.json"))
d["results"].reverse()
for r in d["results"]:
    r["metrics"]["acc"]["value"] += 0.5
json.dump(d, open("better.json", "w"))
PY
try 7 "2 results meet" "$@" --baseline better.json --fail-if 'acc < baseline - 0.01'
try 0 "." "$@" --baseline better.json --fail-if 'acc < baseline - 0.51'
# the orders of demonstrations are rows of one task
icl=$repo/tests/golden/icl
set -- eval "plain model" --task trec --data "$icl/trec_test.label" --fewshot-data "$icl/trec_train.label" --num-fewshot 2 --runs 1 --limit 2 --demo-order random,alternate
"$dq" "$@" -q -o icl.json >/dev/null 2>"$top/err" || complain "baseline: $(cat "$top/err")"
try 0 "." "$@" --baseline icl.json --fail-if 'acc < baseline' -o icl2.json
[ "$(grep -c '"met": false' icl2.json)" = 2 ] || complain "baseline: not a row for each order of demonstrations"
# caches and arithmetics are told apart
set -- eval "diff model" --text "$book" --ctx 64 --limit 3 --kv-bits 16,4 --kv-recent 8 --kv-quant per-token,per-channel
"$dq" "$@" -q -o kv.json >/dev/null 2>"$top/err"
try 0 "." "$@" --baseline kv.json --fail-if 'nll_nats > baseline' --fail-if 'nll_nats < baseline'
try 7 "3 results meet" "$@" --baseline kv.json --fail-if 'kld_nats >= baseline'
try 7 "1 condition of --fail-if could not be checked" "$@" --baseline kv.json --fail-if 'nll_nats > baseline' --kv-recent 9

# ---- nothing passes in silence
set -- eval "diff model" model.h5 --text "$book" --ctx 64 --limit 6
cp model.h5 other.h5
try 7 "1 condition of --fail-if could not be checked; all results are written. Make the baseline anew" "$@" other.h5 --baseline old.json --fail-if 'kld_nats > 9 * baseline' -o new.json --force
grep -q 'warning: --fail-if "kld_nats > 9 \* baseline": other.h5, text, .*: cannot be checked, the baseline has no such result' "$top/err" || complain "baseline: no word of a row without a match: $(cat "$top/err")"
grep -q "^kld_nats > 9 \* baseline  *other.h5 .* not checked$" "$top/out" || complain "baseline: no row of what was not checked: $(cat "$top/out")"
[ "$(unchecked new.json)" = 1 ] || complain "baseline: the document does not count a row without a match"
grep -q '"unchecked": "the baseline has no such result"' new.json || complain "baseline: the document does not say why"
try 7 "1 result meets .*, and 1 condition of --fail-if could not be checked" "$@" other.h5 --baseline old.json --fail-if 'kld_nats > 0.0 * baseline'
try 7 "3 conditions of --fail-if could not be checked" "$@" --logit-bits 8 --baseline old.json --fail-if 'kld_nats > baseline' --fail-if 'ppl > baseline' --fail-if 'nll_nats > baseline'
# edited FILE PYTHON: old.json with `d` changed
edited() {
    python3 -c "import json
d = json.load(open('old.json'))
r = d['results']
$1
json.dump(d, open('edited.json', 'w'))" || complain "baseline: not edited: $1"
}
for edit in 'r[1]["metrics"]["kld_nats"]["value"] = None' 'r[1]["metrics"]["kld_nats"]["value"] = "9"' 'del r[1]["metrics"]["kld_nats"]' 'r[1]["metrics"]["kld_nats"] = []' 'r[1]["metrics"] = {}'; do
    edited "$edit"
    try 7 "1 condition of --fail-if could not be checked" "$@" --baseline edited.json --fail-if 'kld_nats > baseline'
    grep -q "cannot be checked, its result in the baseline has no such number" "$top/err" || complain "baseline: $edit: $(cat "$top/err")"
done
# compared with something else than here
for edit in 'r[1]["reference"] = "another"' 'r[1]["reference_weights"] = "other"' 'del r[1]["reference"]'; do
    edited "$edit"
    try 7 "1 condition of --fail-if could not be checked" "$@" --baseline edited.json --fail-if 'kld_nats > baseline' --fail-if 'nll_nats > baseline'
    grep -q "cannot be checked, it is compared with another reference in the baseline" "$top/err" || complain "baseline: $edit: $(cat "$top/err")"
done
edited 'd["inputs"][1]["fingerprint"] = "0"'
try 0 "." "$@" --baseline edited.json --fail-if 'kld_nats > baseline'
grep -q "warning: edited.json: the reference diff model had other weights there" "$top/err" || complain "baseline: no word of other weights: $(cat "$top/err")"
# a limit that is no number
for limit in '1 / (baseline - baseline)' 'baseline / 0' '1e308 * 1e308 * baseline'; do
    try 7 "1 condition of --fail-if could not be checked" "$@" --baseline old.json --fail-if "kld_nats > $limit" -o new.json --force
    grep -q "cannot be checked, the limit is no finite number with that baseline" "$top/err" || complain "baseline: $limit: $(cat "$top/err")"
    grep -q '"met": null' new.json || complain "baseline: $limit: checked all the same"
done
# a number beyond the range of doubles
edited 'r[1]["metrics"]["kld_nats"]["value"] = 12345.5'
sed 's/12345.5/1e999/' edited.json >far.json
try 7 "1 condition of --fail-if could not be checked" "$@" --baseline far.json --fail-if 'kld_nats > baseline'
# no result has the number at all
try 7 "1 condition of --fail-if could not be checked" "$@" --baseline old.json --fail-if 'positions.documents > baseline'

# ---- documents that cannot be compared: refused before anything is scored
different() { # different PATTERN ARGUMENTS...
    pattern=$1
    shift
    try 4 "old.json: cannot be compared with this run: $pattern.* Make the baseline anew" "$@" --baseline old.json --fail-if 'kld_nats > baseline' -o gone.json
    absent gone.json dq-eval-*.resume
}
cp "$book" book.txt && echo more >>book.txt
different "what was read as text has other bytes there (SHA-256 [0-9a-f]*..., here [0-9a-f]*...)" eval "diff model" model.h5 --text book.txt --ctx 64 --limit 6
different "what was read as text has other bytes" "$@" --text book.txt
different 'the setting "ctx" is 64 there and 32 here' eval "diff model" model.h5 --text "$book" --ctx 32 --limit 6
different 'the setting "limit" is 6 there and 5 here' eval "diff model" model.h5 --text "$book" --ctx 64 --limit 5
different 'the setting "limit" is 6 there and null here' eval "diff model" model.h5 --text "$book" --ctx 64
different 'the setting "window" is "chunk" there and "stride" here' "$@" --window stride
different 'the setting "bos" is "auto" there and "on" here' "$@" --bos on
different 'the setting "head_order" is null there and "halves" here' "$@" --head-order halves
head -n 5 choices.jsonl >few.jsonl
try 4 "what was read as mc has other bytes" eval "plain model" --task mc --data few.jsonl --limit 6 --baseline mc.json --fail-if 'acc < baseline'
try 4 'the setting "num_fewshot" is 0 there and 1 here' eval "plain model" --task mc --data choices.jsonl --limit 6 --num-fewshot 1 --fewshot-data few.jsonl --baseline mc.json --fail-if 'acc < baseline'
try 4 'the setting "icl" is' eval "plain model" --task trec --data "$icl/trec_test.label" --fewshot-data "$icl/trec_train.label" --num-fewshot 2 --runs 2 --limit 2 --baseline icl.json --fail-if 'acc < baseline'
edited 'r[0]["n"] += 1'
try 4 "edited.json: cannot be compared with this run: diff model on text has 187 scored tokens there and 186 here (another tokenizer" "$@" --baseline edited.json --fail-if 'kld_nats > baseline'
edited 'r.append(r[1])'
try 4 "results\[1\] and results\[2\] are both of model.h5 on text with one setting" "$@" --baseline edited.json --fail-if 'kld_nats > baseline'
edited 'del d["settings"]["ctx"]'
try 4 'the setting "ctx" is missing there and 64 here' "$@" --baseline edited.json --fail-if 'kld_nats > baseline'
# what changes no score may differ, and so may tasks that only one of them has
edited 'd["settings"].update(threads=99, device="other", margin=1, slices={"threshold": 3}, tasks=["mc", "text"]); d["inputs"][0]["path"] = "elsewhere"'
try 0 "." "$@" --baseline edited.json --fail-if 'kld_nats > baseline' --threads 1
try 7 "1 condition of --fail-if could not be checked" "$@" --task mc --data choices.jsonl --baseline old.json --fail-if 'acc < baseline'

# ---- files that are no such document
damaged() { # damaged STATUS PATTERN TEXT
    status=$1 pattern=$2
    printf '%s' "$3" >bad.json
    try "$status" "bad.json: $pattern" eval "diff model" --text "$book" --baseline bad.json --fail-if 'kld_nats > baseline' -o gone.json
    absent gone.json
}
damaged 3 "not valid JSON" ''
damaged 3 "not valid JSON" '{"schema": "dq-eval/1", "results": ['
damaged 3 "not valid JSON" '{"schema": "dq-eval/1", "schema": "dq-eval/1", "results": []}'
damaged 3 "not a document of dq" '[1, 2]'
damaged 3 "not a document of dq" '{"results": []}'
damaged 3 "inputs, settings or results are missing" '{"schema": "dq-eval/1", "inputs": [], "results": []}'
damaged 3 "inputs, settings or results are missing" '{"schema": "dq-eval/1", "inputs": [], "settings": {}, "results": {}}'
for row in '1' '{}' '{"model": "m"}' '{"model": 1, "task": "t", "logit_bits": 16, "metrics": {}}' '{"model": "m", "task": "t", "logit_bits": "16", "metrics": {}}' \
    '{"model": "m", "task": "t", "logit_bits": 16, "metrics": []}'; do
    damaged 3 'results\[0\]: ".*" is missing or of another type' "{\"schema\": \"dq-eval/1\", \"inputs\": [], \"settings\": {}, \"results\": [$row]}"
done
damaged 4 'another document than a baseline is (expected dq-eval/1, found "dq-eval/2")' '{"schema": "dq-eval/2", "results": []}'
damaged 4 'another document.*found "dq-eval-plan/1"' '{"schema": "dq-eval-plan/1", "results": []}'
"$dq" stats "diff model" --ids "0 1" --json >stats.json 2>/dev/null
try 4 'stats.json: another document.*found "dq-stats/1"' "$@" --baseline stats.json --fail-if 'kld_nats > baseline'
awk 'BEGIN { for (i = 0; i < 100000; i++) printf "[" }' >deep.json
try 3 "deep.json: not valid JSON" "$@" --baseline deep.json --fail-if 'kld_nats > baseline'
try 3 "model.h5: not valid JSON" "$@" --baseline model.h5 --fail-if 'kld_nats > baseline'
truncate -s 300M huge.json
try 3 "huge.json: more than the 67108864 bytes" "$@" --baseline huge.json --fail-if 'kld_nats > baseline'
rm huge.json
try 6 "nowhere.json: " "$@" --baseline nowhere.json --fail-if 'kld_nats > baseline'
try 6 "plain model: " "$@" --baseline "plain model" --fail-if 'kld_nats > baseline'
mkfifo pipe.json
try 6 "pipe.json: not a regular file" "$@" --baseline pipe.json --fail-if 'kld_nats > baseline'

# ---- options
ln old.json linked.json
sha256sum old.json >before
for out in old.json ./old.json linked.json; do
    try 2 "input and output are the same file" "$@" --baseline old.json --fail-if 'kld_nats > baseline' -o $out --force
done
try 2 "input and output are the same file" "$@" --baseline old.json --fail-if 'kld_nats > baseline' --dump-items old.json --force
sha256sum -c before >/dev/null 2>&1 || complain "baseline: an output has replaced the baseline"
try 2 "[-]-baseline has nothing to act on" "$@" --baseline old.json
try 2 "[-]-baseline has nothing to act on" "$@" --baseline old.json --fail-if 'kld_nats > 1'
try 2 'fail-if "kld_nats > baseline": names a baseline. Add --baseline' "$@" --fail-if 'kld_nats > baseline'
try 2 'fail-if "kld_nats > 1.1 \* basline": character 18: expected a number, baseline or "(", found "basline"' "$@" --baseline old.json --fail-if 'kld_nats > 1.1 * basline'
try 2 'character 23: expected an operation or ")", found the end' "$@" --baseline old.json --fail-if 'kld_nats > (baseline+1'
try 2 "has no baseline\." "$@" --baseline old.json --fail-if 'baseline > baseline'
try 2 "cannot go with it" "$@" --dry-run --baseline old.json --fail-if 'kld_nats > baseline'
# a resumed run may have another baseline
set -- eval "diff model" --text "$book" --ctx 128 --logit-bits 16,4 --threads 1 --progress never
"$dq" "$@" -q -o long.json >/dev/null 2>"$top/err"
killed 2 "$@" -o cut.json
try 0 "." "$@" -o cut.json --resume --baseline long.json --fail-if 'nll_nats > baseline' --fail-if 'nll_nats < baseline'
! grep -q "nothing to resume" "$top/err" || complain "baseline: a run with another baseline does not go on: $(cat "$top/err")"
rm -f ./*.json ./*.h5
