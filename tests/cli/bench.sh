# bench.sh: dq bench: whole-model decoding, peaks, documents side by side; sourced by run.sh. No check looks at a time.
"$dq" quantize "plain model" -o four.h5 --bits 4 --group 32 --scale search --embed-bits 16 -q >/dev/null || complain "bench: dq quantize fails"

# ---- whole-model decoding
try 0 "share of read  *share of peak" bench generate "plain model" --new-tokens 2 --runs 1 --threads 1
grep -q "^share of peak: .*, over f32 multiply-adds (.*) on registers alone" "$top/out" || complain "bench: --generate does not say what its peak is"
try 0 "four.h5: decoding with W4 in groups of 32 in int8" bench generate four.h5 --new-tokens 1 --runs 1 --math int8 --context 70 --threads 1
for math in f32 int8; do
    runs=2
    [ $math = int8 ] && runs=1
    try 0 '"what": "generate"' bench generate four.h5 --new-tokens 3 --runs $runs --batch 1,3,8 --context 40,100 --math $math --threads 1 --json
    json dq-bench/1
    if command -v python3 >/dev/null; then
        python3 - "$top/out" $math $runs <<'EOF' || complain "bench: the fields of --generate in $math do not fit together"
import json
import sys

doc = json.load(open(sys.argv[1]))
s, rows = doc["settings"], doc["results"]
assert (s["generate"], s["runs"], s["math"], s["threads"], s["clock"]) == (3, int(sys.argv[3]), sys.argv[2], 1, "processor"), s
assert 1 << 27 <= s["read_bytes"] <= 1 << 30 and s["read_bytes"] % 4096 == 0, s
assert s["kv_bits"] == (8 if sys.argv[2] == "int8" else 16), s
assert [(r["context"], r["batch"]) for r in rows] == [(c, b) for c in (40, 100) for b in (1, 3, 8)]
for r in rows:
    near = lambda a, b: abs(a - b) <= 1e-9 * abs(b)
    w = r["weight_bytes"]
    assert r["weights"] == "W4 in groups of 32" and 4.5 < r["bits_per_weight"] < 16
    assert 0 < r["step_seconds_min"] <= r["step_seconds_median"] <= r["step_seconds_max"]
    assert near(r["tokens_per_second"] * r["step_seconds_median"], r["batch"])
    assert r["tokens_per_second_min"] <= r["tokens_per_second"] <= r["tokens_per_second_max"]
    assert near(w["total"], w["codes"] + w["scales"] + w["zeros"] + w["dense"])
    # a scale of 16 bits for 32 codes of 4; the last group of 344 columns is short
    assert w["codes"] < 8 * w["scales"] < 1.01 * w["codes"] and w["zeros"] == 0, w
    assert near(r["bytes_per_second"] * r["step_seconds_median"], w["total"] + r["kv_bytes"])
    assert r["share_of_read"] > 0 and r["share_of_peak"] > 0
    assert s["peak"].startswith(sys.argv[2] + " multiply-adds ("), s
    work = r["flops_per_second"] * r["step_seconds_median"]
    assert near(work, r["batch"] * rows[0]["flops_per_second"] * rows[0]["step_seconds_median"])
    if s["runs"] == 1:  # else it is the median of the runs' own shares
        assert near(r["share_of_peak"] * r["peak_flops_per_second"], r["flops_per_second"])
        assert near(r["share_of_read"] * r["read_bytes_per_second"], r["bytes_per_second"])
    assert r["kv_bytes"] > 0 and r["peak_bytes"] > 0
by = {(r["context"], r["batch"]): r for r in rows}
row = by[40, 3]["weight_bytes"]["total"] - by[40, 1]["weight_bytes"]["total"]
assert row > 0 and by[40, 8]["weight_bytes"]["total"] - by[40, 1]["weight_bytes"]["total"] == 3.5 * row
assert by[100, 8]["kv_bytes"] > by[40, 8]["kv_bytes"] > by[40, 1]["kv_bytes"]
EOF
    fi
done
# what a token costs is one definition: dq eval and dq bench count the same tokens, and take the same seconds for them
cat >asked.jsonl <<'EOF'
{"prompt": "one two three"}
{"prompt": "four five six seven eight"}
EOF
if command -v python3 >/dev/null; then
    "$dq" eval "plain model" --task mc --data choices.jsonl --logit-bits 16 --kv-bits 16 --threads 1 --json >eval.json 2>"$top/err" &&
        "$dq" bench items "plain model" choices.jsonl --runs 1 --threads 1 --json >items.json 2>"$top/err" &&
        "$dq" eval "plain model" --task generate --data asked.jsonl --max-new 5 --dump-completions asked.out --logit-bits 16 --kv-bits 16 --threads 1 --json >asked.json 2>"$top/err" &&
        "$dq" bench generate "plain model" --new-tokens 4 --batch 2 --runs 1 --threads 1 --json >steps.json 2>"$top/err" ||
        complain "bench, eval: $(cat "$top/err")"
    python3 - <<'EOF' || complain "bench: a token costs other than in dq eval"
import json

scored, items, asked, steps = (json.load(open(f"{x}.json"))["results"][0] for x in ("eval", "items", "asked", "steps"))
near = lambda a, b: abs(a - b) <= 1e-9 * abs(b)
t = scored["throughput"]
assert (t["tokens"], t["computed_tokens"]) == (items["naive_tokens"], items["computed_tokens"]), (t, items)
assert near(t["tokens_per_second"] * t["seconds"], t["computed_tokens"]), t
assert near(items["computed_tokens_per_second_median"] * items["seconds_median"], items["computed_tokens"]), items
# the first new token is of the prompt's pass, each other one is a row
t = asked["throughput"]
assert t["new_tokens"] == 10 and t["computed_tokens"] == t["prompt_tokens"] + 2 * 4, t
assert near(t["tokens_per_second"] * t["seconds"], t["computed_tokens"]), t
assert steps["computed_tokens"] == 2 * 4, steps
assert near(steps["tokens_per_second"] * steps["step_seconds_median"] * 4, steps["computed_tokens"]), steps
EOF
fi
"$dq" quantize "diff model" -o asym.h5 --bits 4 --group 32 --scale asym --embed-bits 8 -q >/dev/null || complain "bench: dq quantize fails"
try 0 '"weights": "W4 in groups of 32, zero points"' bench generate asym.h5 --new-tokens 1 --runs 1 --threads 1 --json
grep -q '"zeros": [1-9]' "$top/out" || complain "bench: zero points are not counted"
try 0 '"weights": "BF16"' bench generate "diff model" --new-tokens 1 --runs 1 --threads 1 --json
# shellcheck disable=SC3045 # dash, bash and ksh know -v
# less memory than the block that is read (128 MiB or more); checked builds do not start in it
if (ulimit -v 130000 && "$dq" --version; exit $?) >/dev/null 2>&1; then
    # shellcheck disable=SC3045
    (ulimit -v 130000 && OMP_NUM_THREADS=1 "$dq" bench generate four.h5 --new-tokens 1 --runs 1 --threads 1 >"$top/out" 2>"$top/err") ||
        complain "bench: without memory for a plain read: $(cat "$top/err")"
    grep -q "warning: out of memory .*plain read.*share of read is missing" "$top/err" || complain "bench: does not say that there is no plain read"
    grep -q "share of read" "$top/out" && complain "bench: a share of a read that did not happen"
fi
# an option of another work is none
for case in "generate:logit-granularity per-row" "generate:logit-bits 4" "generate:tokens 64" "generate:kv-dense-type f16" "generate:task mc" \
    "decode:task mc" "decode:batch 2" "decode:runs 3" "decode:math int8" "attention:limit 3" "attention:batch 2" "attention:kv-policy h2o" \
    "prefill:batch 2" "prefill:context 100" "prefill:kv-dense-type f16" "evict:logit-bits 4" "compare:math f32" "compare:threads 0" \
    "compare:json" "compare:quiet" "compare:progress never"; do
    option=${case#*:}
    # shellcheck disable=SC2086 # options and their values
    try 2 "unknown option --${option% *}.*See dq bench ${case%%:*} --help" bench ${case%%:*} "plain model" --$option
done
try 2 "unknown option --context" bench items "plain model" choices.jsonl --context 3
try 2 "expected one of its commands. See dq bench --help" bench
try 2 'unknown command "bench prefil". Did you mean dq bench prefill' bench prefil "plain model"
try 0 "bench compare  *show what was measured" bench --help
try 0 "usage: dq bench decode MODEL" help bench decode
try 2 "expected .*from 1 to 8" bench generate "plain model" --new-tokens 2 --batch 9
try 2 "expected .*from 1 to 8" bench generate "plain model" --new-tokens 2 --batch 0
try 2 "new-tokens: expected" bench generate "plain model" --new-tokens 0
try 2 "kv-dense-type: expected one of f32, f16, bf16" bench decode "plain model" --new-tokens 2 --kv-dense-type f32,f8
try 2 "kv-dense-type: f16 stands twice" bench decode "plain model" --new-tokens 2 --kv-dense-type f16,bf16,f16
try 2 "kv-dense-type: an empty part" bench decode "plain model" --new-tokens 2 --kv-dense-type f16,
try 4 "has 512 positions. Lower --context or --new-tokens" bench generate "plain model" --new-tokens 2 --context 511
try 4 "packed" bench generate "plain model" --new-tokens 2 --math int8
try 4 "bf16" bench generate "plain model" --new-tokens 2 --math bf16

# ---- prefill beside a peak, which belongs to the instruction set in use
try 0 "peak: f32 multiply-adds (.*) on registers alone" bench prefill "plain model" --tokens 32 --runs 1 --threads 1
# no rate is above its peak: a product of numbers that nobody filled in is faster than the machine. Within a tenth, as both
# are times, and of the thread's own clock
for isa in scalar avx2 avx512; do
    for math in f32 int8; do
        DQ_CPU=$isa "$dq" bench prefill four.h5 --tokens 16,40 --runs 2 --threads 1 --math $math --json >$isa.json 2>"$top/err" ||
            complain "bench, DQ_CPU=$isa: $(cat "$top/err")"
        command -v python3 >/dev/null || continue
        python3 - $isa.json $math <<'PY' || complain "bench, DQ_CPU=$isa, --math $math: a rate or its peak"
import json, sys
d = json.load(open(sys.argv[1]))
assert d["settings"]["peak"].startswith(sys.argv[2] + " multiply-adds ("), d["settings"]
for r in d["results"]:
    peak = r["peak_flops_per_second"]
    for rate in ("matmul_flops_per_second", "flops_per_second"):
        assert 0 < r[rate] < 1.1 * peak, (rate, r[rate], peak)
    assert 0 < r["share_of_peak"] < 1.1, r
PY
    done
done
if grep -q AVX2 avx2.json; then
    [ "$(grep '"peak":' scalar.json)" != "$(grep '"peak":' avx2.json)" ] || complain "bench: one peak for two instruction sets"
fi

# prompts that are longer than the model is made for are said to be
try 0 "^ *513 " bench prefill "plain model" --tokens 512,513 --runs 1 --threads 1
grep -q "warning: plain model: --tokens 513 is more than the 512 positions that the model has" "$top/err" ||
    complain "bench: not said that a prompt has no positions: $(cat "$top/err")"
[ "$(grep -c "warning: .*positions" "$top/err")" = 1 ] || complain "bench: more than one warning of positions: $(cat "$top/err")"
try 0 '"tokens": 513' bench prefill "plain model" --tokens 513 --runs 1 --threads 1 --json
grep -q '"plain model: --tokens 513 is more than' "$top/out" || complain "bench: no warning of positions in the JSON"
try 0 "^ *400 .*kvzip" bench evict "plain model" --kv-policy kvzip,keydiff --tokens 400 --runs 2 --threads 1
grep -q "warning: plain model, 400 tokens, KV 32:32 kvzip 0.25: kvzip read 1 of 1 contexts again at positions after those that the model has" "$top/err" ||
    complain "bench: not said that kvzip reads after the model's positions: $(cat "$top/err")"
[ "$(grep -c "warning: .*positions" "$top/err")" = 1 ] || complain "bench: more than one warning of kvzip: $(cat "$top/err")"
try 0 "^ *256 .*kvzip" bench evict "$repo/calib/longpair/llama-0" --kv-policy kvzip --tokens 256 --runs 1 --threads 1
! grep -q "positions" "$top/err" || complain "bench: a warning of positions that the model has: $(cat "$top/err")"

# ---- what policies take beside a prefill
try 0 "leverage " bench evict "diff model" --kv-policy leverage,kvzip --tokens 256 --runs 1 --threads 1
[ "$(grep -c '^ *256  ' "$top/out")" = 2 ] || complain "bench kv-policy: not a line for each policy"
try 0 '"what": "evict"' bench evict "diff model" --kv-policy all,a1 --tokens 280,400 --runs 3 --threads 1 --json
json dq-bench/1
cp "$top/out" policies.json
if command -v python3 >/dev/null; then
    python3 - "$top/out" <<'EOF' || complain "bench kv-policy: the numbers do not fit together"
import json
import sys

rows = json.load(open(sys.argv[1]))["results"]
names = ["streaming", "h2o", "snapkv", "knorm", "random", "diff", "kvzip", "kvzap", "keydiff", "leverage", "a1"]
assert [(r["tokens"], r["policy"]) for r in rows] == [(n, p) for n in (280, 400) for p in names]
for r in rows:
    assert r["over_prefill_min"] <= r["over_prefill_median"] <= r["over_prefill_max"], r
    assert 0 < r["evicting_over_prefill_median"] and r["prefill_seconds_median"] > 0, r
of = {r["policy"]: r["over_prefill_median"] for r in rows if r["tokens"] == 400}
assert of["kvzip"] > .5 and of["kvzip"] > of["streaming"], of  # it reads the context again
EOF
fi
try 2 "expected one of streaming, .*, leverage, a1, a2, sum, all" bench evict "diff model" --kv-policy everything
try 2 "tokens 255: 0.25 of them are fewer than the 64 .*Give 256" bench evict "diff model" --kv-policy h2o --tokens 255
try 2 "keydiff stands twice" bench evict "diff model" --kv-policy keydiff,keydiff

# ---- rounding of logits, and attention alone
for work in prefill attention; do
    try 0 "times: against" bench $work "diff model" --tokens 40 --runs 1 --threads 1 --logit-bits 16,4 --logit-granularity per-row,per-tile
    try 0 '"logit_granularity": "per-tile"' bench $work "diff model" --tokens 40,100 --runs 3 --threads 1 --logit-bits 8,4 --logit-granularity per-row,per-tile,per-head,per-tensor --json
    json dq-bench/1
    cp "$top/out" "logits-$work.json"
    if command -v python3 >/dev/null; then
        python3 - "$top/out" "$work" <<'EOF' || complain "bench $work: the fields of rounded logits do not fit together"
import json
import sys

rows = json.load(open(sys.argv[1]))["results"]
alone = sys.argv[2] == "attention"
logits = [(16, None)] + [(b, g) for b in (8, 4) for g in ("per-row", "per-tile", "per-head", "per-tensor")]
seen = [(r["tokens"], r["logit_bits"], r["logit_granularity"]) for r in rows if r.get("form") != "two softmaxes"]
assert seen == [(t, b, g) for t in (40, 100) for b, g in logits], seen
assert all(r.get("share_of_codes") is None for r in rows)
for r in rows:
    assert 0 < r["times_first_min"] <= r["times_first_median"] <= r["times_first_max"]
    assert 0 < r["seconds_min"] <= r["seconds_median"] <= r["seconds_max"]
    if not alone:
        assert 0 < r["share_of_attention"] < 1 and 0 < r["share_of_products"] < 1
for t in (40, 100):
    of = [r for r in rows if r["tokens"] == t]
    assert of[0]["times_first_min"] == of[0]["times_first_max"] == 1
    if alone:  # twice the products with values, the same with keys
        assert [r["form"] for r in of[:2]] == ["difference", "two softmaxes"] and len(of) == 10
        work = [r["flops_per_second"] * r["seconds_median"] for r in of[:2]]
        assert abs(work[1] / work[0] - 1.5) < 1e-9, work
EOF
    fi
done
try 0 "softmax " bench attention "plain model" --tokens 40 --runs 1 --threads 1
grep -q "two softmaxes" "$top/out" && complain "bench attention: two softmaxes of a model with one map"
grep -q "as codes" "$top/out" && complain "bench attention: codes in f32"
# tokens that a query reads unquantized are multiplied in f32: the first 4, and all above the last whole page of 64 that ends 64 after
try 0 "^as codes: share of the pairs" bench attention four.h5 --tokens 40,200 --runs 1 --threads 1 --math int8
try 0 '"what": "attention"' bench attention four.h5 --tokens 40,200,300 --runs 1 --threads 1 --math int8 --json
if command -v python3 >/dev/null; then
    python3 - "$top/out" <<'EOP' || complain "bench attention: other pairs are multiplied in int8"
import json
import sys

rows = json.load(open(sys.argv[1]))["results"]
assert [r["tokens"] for r in rows] == [40, 200, 300]
for r in rows:
    n = r["tokens"]
    coded = sum(max(0, (t + 1 - 60) // 64 * 64 - 4) for t in range(n))
    assert (coded > 0) == (n > 123) and abs(r["share_of_codes"] - coded / (n * (n + 1) / 2)) < 1e-12, r
EOP
fi
try 2 "logit-granularity has nothing to act on. Add --logit-bits" bench prefill "diff model" --logit-granularity per-row
try 2 "logit-granularity has nothing to act on. Add --logit-bits" bench attention "diff model" --logit-granularity per-row
try 2 "row stands twice" bench prefill "diff model" --logit-bits 4 --logit-granularity per-row,per-tile,per-row
try 2 "expected one of per-tensor, per-head, per-row, per-tile" bench prefill "diff model" --logit-bits 4 --logit-granularity map
try 2 "an empty part" bench prefill "diff model" --logit-bits 4 --logit-granularity per-row,
try 0 "diff model: prefill 40" bench compare logits-prefill.json
[ "$(grep -c 'prefill 40' "$top/out")" = 1 ] || complain "bench compare: a pass that rounds logits is compared"
try 4 'holds "attention"' bench compare logits-attention.json
sed 's/"logit_bits": 4,/"logit_bits": "4",/' logits-prefill.json >bad.json
try 3 'bad.json: results\[5\]: "logit_bits" is missing or no number' bench compare bad.json

# ---- the page of dq report: of what was just measured, and of published documents
"$dq" bench generate "plain model" --new-tokens 1 --runs 1 --batch 1,2 --context 40,100 --threads 1 --json >generate.json 2>"$top/err" ||
    complain "bench generate: $(cat "$top/err")"

# ---- side by side
try 0 "four.h5: prefill 40, W4 in groups of 32, int8, 1 thread  *-" bench compare avx2.json
cat >peers.json <<'EOF'
{"schema": "dq-peers/1", "results": [
 {"model": "four.h5", "what": "prefill", "tokens": 40, "weights": "W4 in groups of 32", "math": "int8", "threads": 1,
  "peer": "llama.cpp", "peer_weights": "Q4_0", "peer_tokens_per_second": 200, "dq_tokens_per_second": 500,
  "ratio": 2.4, "ratio_low": 2.1, "ratio_high": 2.75},
 {"model": "four.h5", "what": "generate", "context": 128, "batch": 1, "weights": "W4 in groups of 32", "math": "int8",
  "threads": 2, "peer": "llama.cpp", "peer_weights": "Q4_0", "peer_tokens_per_second": 8, "dq_tokens_per_second": 2}]}
EOF
try 0 "prefill 40, W4 in groups of 32, int8, 1 thread  .*200  *500  *2.40  *2.10-2.75\$" bench compare peers.json
try 0 "decode after 128, batch 1, W4 in groups of 32, int8, 2 threads  .*8.0  *2.0  *0.25  *-\$" bench compare peers.json
sed 's/"tokens_per_second": .*/"tokens_per_second": 1000.0,/' avx2.json >new.json
grep -q '[*]' "$top/out" && complain "bench compare: a mark without two documents"
for order in "peers.json new.json" "new.json peers.json"; do
    # shellcheck disable=SC2086 # two names
    try 0 "prefill 40, .* 1 thread  *llama.cpp  *Q4_0  *200  *1000[*]  *5.00" bench compare $order
    [ "$(grep -c 'prefill 40' "$top/out")" = 1 ] || complain "bench compare: one work has several lines"
    grep -q '[*]: dq measured by itself' "$top/out" || complain "bench compare: the mark is not explained"
done
try 4 'new.json: results\[0\]: holds "four.h5: prefill 16, .*", which avx2.json holds as well. Give one of them' bench compare avx2.json new.json
try 4 'results\[0\]: holds ".*" beside llama.cpp, which peers.json holds as well' bench compare peers.json peers.json
try 0 "prefill 16, .* 1 thread  *-  *-  *-  *1000  *-" bench compare peers.json new.json
echo '{"schema": "dq-bench/1", "settings": {}, "results": []}' >empty.json
try 0 "^work  *peer  *its weights  *peer  *dq  *ratio  *95 %$" bench compare empty.json
# ---- Ctrl-C ends attention, too, which no pass of a model runs
"$dq" bench attention "$repo/calib/pair/diffllama" --tokens 512 --runs 1000 --threads 1 >"$top/out" 2>"$top/err" &
child=$!
sleep 0.7
kill -INT $child
wait $child
got=$?
[ $got -eq 130 ] || complain "bench attention: SIGINT: expected status 130, found $got: $(cat "$top/err")"
[ ! -s "$top/out" ] || complain "bench attention: prints a table though it was interrupted"

try 2 "expected one MODEL, found 2" bench prefill "plain model" four.h5
try 0 "prefill" bench prefill four.h5 --tokens 16 --runs 1 --threads 1 --math int8 -v
grep -q "linear prepacked_int8 int8 (4 bits" "$top/err" || complain "bench: -v does not say which kernels run: $(grep layer "$top/err")"
try 6 "nowhere.json" bench compare nowhere.json
try 3 "not valid JSON" bench compare empty
for text in '[]' '{"schema": "dq-peers/1"}' '{"results": []}'; do
    echo "$text" >bad.json
    try 3 "bad.json: not a document of speed" bench compare bad.json
done
echo '{"schema": "dq-eval/1", "results": []}' >bad.json
try 4 'bad.json: holds no speed .*found "dq-eval/1"' bench compare peers.json bad.json
sed 's/"threads": 1,//' peers.json >bad.json
try 3 'bad.json: results\[0\]: "threads" is missing' bench compare bad.json
sed 's/"what": "generate"/"what": "decode"/' peers.json >bad.json
try 4 'bad.json: results\[1\]: holds "decode"' bench compare bad.json

# ---- how far it is, whatever is measured
for how in "prefill --tokens 16 --runs 1" "generate --new-tokens 2 --runs 1" "decode --new-tokens 1 --context 16" \
    "attention --tokens 16 --runs 1" "evict --kv-policy knorm --tokens 280 --runs 1"; do
    # shellcheck disable=SC2086
    try 0 "." bench $how "plain model" --threads 1 --progress always
    grep -q "^dq bench ${how%% *}: timed  *[0-9]* %  [0-9]* s left" "$top/err" ||
        complain "bench $how: no progress: $(cat "$top/err")"
done
