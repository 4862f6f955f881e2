# front.sh: caches compared by the bytes that they hold: --kv-policy all, and what it makes of lists; sourced by run.sh.
pair=$repo/calib/longpair
set -- eval "$pair/diffllama-0" --task mc --data "$pair/needles-blind.jsonl" --limit 5 --kv-recent 16 --progress never

# ---- what a list multiplies to
rows() { # EXPECTED OPTION...
    want=$1
    shift
    "$dq" "$@" --dry-run >"$top/out" 2>"$top/err"
    grep -q "^rows: $want, tokens: " "$top/out" || complain "dq $*: expected $want rows: $(tail -n 1 "$top/out")"
}
policies=9 # of the table, without the three to compare with
rows $((1 + 3 + policies * 3 * 3)) "$@" --kv-policy all # 3 widths that keep everything, and the reference
rows $((1 + 3 + policies * 3 * 3)) "$@" --kv-policy all --kv-dense-type f32
rows $((1 + policies)) "$@" --kv-policy all --kv-keep 0.5 --kv-bits 4
rows $((1 + policies * 2)) "$@" --kv-policy all --kv-tokens 100,200 --kv-bits 4
rows $((1 + (policies + 1) * 2)) "$@" --kv-policy all,a1 --kv-keep 0.5,0.25 --kv-bits 4
rows $((1 + 2 * 2 * 2)) "$@" --kv-policy h2o,diff --kv-keep 0.5,0.25 --kv-bits 16,4
rows $((1 + 1 + policies)) "$@" --kv-policy all --kv-keep 1,0.25 --kv-bits 4
rows $((1 + 2 * 2)) "$@" --kv-policy h2o,diff --kv-keep 1,0.25 --kv-bits 4
rows $((1 + 1 + policies * 3)) "$@" --kv-policy all --kv-keep 1,0.25 --kv-bits 4 --kv-budget uniform,adaptive,global
rows $((1 + 2 * 2)) "$@" --kv-policy h2o,diff --kv-keep 0.5 --kv-bits 4 --kv-budget uniform,adaptive
rows $((1 + (1 + 2 * 3) + policies * 3 * (1 + 2 * 3))) "$@" --kv-policy all --kv-quant per-token,per-channel,dither # 16 bits have no codes
rows $((1 + (1 + 2) + policies * (1 + 2))) "$@" --kv-policy all --kv-keep 1,0.25 --kv-bits 16,4 --kv-quant per-channel,per-token
rows $((1 + 2 * (1 + 2))) "$@" --kv-policy h2o,diff --kv-keep 0.25 --kv-bits 16,4 --kv-quant auto,per-channel,per-token
try 2 "kv-policy h2o: stands twice, as all has it" "$@" --kv-policy all,h2o
try 2 "kv-policy: all stands twice" "$@" --kv-policy all,all
try 2 "kv-budget: uniform stands twice" "$@" --kv-keep 0.5 --kv-budget uniform,adaptive,uniform
try 2 "kv-budget: one value only; dq eval sweeps over lists" quantize "diff model" -o gone.h5 --bits 4 --kv-keep 0.5 --kv-budget uniform,adaptive
try 2 "one value only; dq eval sweeps over lists" quantize "diff model" -o gone.h5 --bits 4 --kv-policy all --kv-keep 0.5
try 2 "kv-policy alll: unknown policy alll (expected one of streaming, h2o, .*, leverage, a1, a2, sum)" "$@" --kv-policy alll --kv-keep 0.5
absent gone.h5

# ---- the front: said beforehand how much, then which caches nothing of no more bytes does as well as
set -- "$@" --text "$pair/text.txt" --ctx 1024 --kv-policy streaming,h2o --kv-keep 1,0.25 --kv-bits 16,4
"$dq" "$@" >/dev/full 2>"$top/err"
grep -q "^dq eval: 12 results and 2 references to compute, [1-9][0-9]* tokens in all .*; 4 more results are of the same caches\$" "$top/err" ||
    complain "front: the number of rows is not said beforehand: $(cat "$top/err")"
try 0 "^What the bytes of the KV cache buy, diffllama-0, mc, 16-bit logits, f32" "$@" --resume -o front.json # computes nothing
! grep -q "nothing to resume" "$top/err" || complain "front: what was computed is not taken up"
grep -q "^What the bytes of the KV cache buy, diffllama-0, text" "$top/out" || complain "front: none of the text"
grep -q "4:4 per-channel bf16, all tokens .*on the Pareto front" "$top/out" || complain "front: 4 bits of all tokens are not on it: $(cat "$top/out")"
grep -q "of 6 are dominated by one of no more bytes. [1-9][0-9]* comparisons, each at 95 %" "$top/out" ||
    complain "front: the comparisons are not counted"
if command -v python3 >/dev/null; then
    python3 - <<'PY' >"$top/python" 2>&1 || complain "front: $(cat "$top/python")"
import json

document = json.load(open("front.json"))
results = document["results"]
assert len(document["pareto_fronts"]) == 2
assert len({r["kv"]["k_bits"] for r in results}) == 2
for front in document["pareto_fronts"]:
    points = front["points"]
    assert len(points) == 6 and any(p["share"] >= 1 for p in points) and any(p["share"] < 1 for p in points)
    lower = front["metric"] == "kld_nats"
    comparisons = 0
    for p in points:
        r = results[p["result"]]
        assert r["task"] == front["task"] and r["kv"]["bytes_held"] == p["bytes_held"]
        assert r["metrics"][front["metric"]]["value"] == p["value"]
        assert (p["is"] == "saves nothing at this context") == r["kv"]["saves_nothing"] == (p["share"] >= 1)
        if p["share"] >= 1:  # no reason to take it, and nothing to be compared with
            assert p["against"] is None
            continue
        baselines = [o for o in points if o is not p and o["share"] < 1 and o["bytes_held"] <= 1.01 * p["bytes_held"]]
        comparisons += len(baselines)
        worse = {o["result"]: (p["value"] - o["value"]) * (1 if lower else -1) for o in baselines}
        assert bool(baselines) == (p["against"] is not None)
        if not baselines:
            assert p["is"] == "on the Pareto front"
            continue
        assert abs(worse[p["against"]] - p["worse"]) < 1e-9, (p, worse)
        low, high = p["interval"]
        assert low <= p["worse"] <= high
        assert p["is"] == ("dominated" if low > 0 else "on the Pareto front" if high < 0 else "inconclusive")
        if p["is"] == "on the Pareto front":  # better than all, by an interval each
            assert all(x < 0 for x in worse.values())
    assert comparisons == front["comparisons"]
    assert {p["policy"] for p in points} == {None, "streaming", "h2o"}
PY
fi
# one policy has no front
try 0 "mc" "$@" --limit 1 --kv-policy h2o --json
! grep -q pareto_fronts "$top/out" || complain "front: one policy is compared with itself"
! grep -q "results and" "$top/err" || complain "front: what is usual is announced"

# budgets that are raised to what is kept anyway leave nothing to choose: one cache, no front of policies, one comparison
set -- eval "$pair/diffllama-0" --text "$pair/text.txt" --ctx 256 --limit 4 --progress never --kv-policy streaming,h2o,kvzip --kv-keep 0.4
least="16:16 bf16 streaming 0.4, 16:16 bf16 h2o 0.4, 16:16 bf16 kvzip 0.4 global. It keeps the first 4 and the last 60 tokens of a context"
same_cache() { # same_cache HEAD LIST: the only note says so, in lines of a terminal
    tr '\n' ' ' <"$top/out" | tr -s ' ' | grep -qF "One cache, computed once$1: $2" || complain "front: expected $1: $2 in: $(cat "$top/out")"
    [ "$(grep -c '^One cache, ' "$top/out")" = 1 ] || complain "front: one cache has several notes: $(cat "$top/out")"
    ! sed -n '/^One cache/,/choose[.]$/p' "$top/out" | grep -q '.\{121\}' || complain "front: a long line: $(cat "$top/out")"
}
try 0 text "$@" --logit-bits 16,4
same_cache " for each kind of logits and arithmetic (diffllama-0, text)" "$least, to which these budgets are raised: nothing is left to choose."
try 0 text eval "$pair/diffllama-0" --text "$pair/text.txt" --ctx 256 --limit 4 --progress never --kv-policy streaming,h2o --kv-tokens 64
same_cache " (diffllama-0, text, 16-bit logits)" "16:16 bf16 streaming 64, 16:16 bf16 h2o 64. It keeps the first 4 and the last 60 tokens of a context: nothing is left to choose."
try 0 text "$@"
same_cache " (diffllama-0, text, 16-bit logits)" "$least, to which these budgets are raised: nothing is left to choose."
grep -q "^1 comparison, at 95 %" "$top/out" || complain "front: one cache is compared several times: $(cat "$top/out")"
! grep -q "What the bytes" "$top/out" || complain "front: one cache has a front: $(cat "$top/out")"
"$dq" "$@" --dry-run | grep -q " 16:16 bf16 h2o 0.4 .* the same as 16:16 bf16 streaming 0.4\$" || complain "front: --dry-run computes one cache twice"
try 0 "of 3 are dominated" "$@" --kv-keep 0.5,0.75 --kv-policy streaming,h2o -o least.json
grep -q "^ *16:16 bf16, first 4 and last 60 tokens " "$top/out" || complain "front: what is kept is not said: $(cat "$top/out")"
[ "$(grep -c '"same_as": [0-9]' least.json)" = 1 ] && grep -q '"kept": "least"' least.json || complain "front: the JSON does not say what is one cache"
for plan in "" --dry-run; do # both say which result it is
    try 0 text "$@" --kv-keep 0.75,0.5 --kv-policy streaming,h2o --json $plan
    grep '"same_as": ' "$top/out" | sed -n 1,4p >same$plan.txt
done
grep -q '"same_as": [0-9]' same.txt && cmp -s same.txt same--dry-run.txt || complain "front: --dry-run counts results otherwise: $(cat same.txt same--dry-run.txt)"
rm same.txt same--dry-run.txt

# codes of the same widths are told apart: in the front, which they have without policies too, and on the page
set -- eval "$pair/diffllama-0" --text "$pair/text.txt" --ctx 512 --limit 4 --kv-recent 16 --progress never --kv-bits 16,4
try 0 "of 4 are dominated" "$@" --kv-quant per-token,per-channel,dither -o codes.json
try 0 "of 4 are dominated" "$@" --kv-quant per-token,per-channel --kv-policy keydiff --kv-keep 1,0.5 --kv-bits 4 -o cut.json
for label in "4:4 bf16, all tokens" "4:4 per-channel bf16, all tokens" "4:4 dither bf16, all tokens"; do
    grep -q "\"kv_label\": \"$label\"" codes.json || complain "codes: no label $label in the JSON"
done
for label in "4:4 bf16 keydiff 0.5" "4:4 per-channel bf16 keydiff 0.5"; do
    grep -q "\"kv_label\": \"$label\"" cut.json || complain "codes: no label $label in the JSON"
done
try 0 "text" "$@" --kv-keep 1,0.5 --json # page where all tokens stay, token where they do not: no codes are compared
! grep -q pareto_fronts "$top/out" || complain "codes: the usual ones have a front"

# per-channel codes that dithering leaves alone are named so in any order, and lie on both curves
try 0 "3:3 per-channel bf16  " "$@" --kv-bits 4,3 --kv-quant dither,per-channel -o both.json
grep -q "warning: left out: 3:3 as dither codes: the same as per-channel codes" "$top/err" || complain "codes: not said what is one: $(cat "$top/err")"
grep -q "4:4 dither bf16  " "$top/out" && ! grep -q "3:3 dither" "$top/out" || complain "codes: a cache has another code: $(cat "$top/out")"

# rows that differ in the budget alone are told apart: in the table, the front, JSON, CSV, the list of --dry-run and the page
heads=1.1,1.0/0.0,0.1
set -- eval "$pair/diffllama-0" --task mc --data "$pair/needles-blind.jsonl" --limit 2 --kv-recent 16 --progress never --kv-policy keydiff \
    --kv-keep 0.25 --kv-budget uniform,adaptive,heads --kv-heads $heads
try 0 "^3 of 3\|^[0-2] of 3 are dominated" "$@" -o budgets.json --csv budgets.csv
for budget in uniform adaptive heads; do
    grep -q "^diffllama-0  $budget  " "$top/out" || complain "budgets: no $budget in the table: $(cat "$top/out")"
    [ "$(grep -c ",$budget," budgets.csv)" = 1 ] || complain "budgets: not one row of $budget in the CSV"
    grep -q "\"budget\": \"$budget\"" budgets.json || complain "budgets: no $budget in the JSON"
done
for label in "16:16 bf16 keydiff 0.25" "16:16 bf16 keydiff 0.25 adaptive" "16:16 bf16 keydiff 0.25 heads"; do
    grep -q "\"kv_label\": \"$label\"" budgets.json || complain "budgets: no label $label in the JSON"
    "$dq" "$@" --dry-run | grep -q " $label  *mc " || complain "budgets: no $label in the list of --dry-run"
done
try 0 "mc" eval "$pair/diffllama-0" --task mc --data "$pair/needles-blind.jsonl" --limit 1 --kv-recent 16 --kv-keep 0.25
! sed -n 1p "$top/out" | grep -q budget || complain "budgets: a column where all have the same"

rm -f ./*.json ./*.csv
