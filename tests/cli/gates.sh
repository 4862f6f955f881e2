# gates.sh: --fail-if, and runs that are killed; sourced by run.sh.

book=$repo/calib/pair/text.txt

set -- eval "diff model" --text "$book" --ctx 64 --limit 4 --logit-bits 16,3
try 7 "error: 1 result meets a condition of --fail-if (diff model, text, 3-bit logits (per-tensor), f32, KV 32:32: kld_nats is .* (95 % interval .*), .kld_nats>0.001.)" "$@" \
    --fail-if 'kld_nats>0.001' --csv gate.csv -o gate.json --force
grep -q "3-bit logits (per-tensor), f32, KV 32:32: kld_nats is [0-9.]* (95 % interval [0-9.e-]* to [0-9.]*)" "$top/err" || complain "gates: no line says which result: $(cat "$top/err")"
grep -q "NLL (nats)" "$top/out" || complain "gates: no table beside a missed gate"
[ -s gate.csv ] || complain "gates: no CSV beside a missed gate"
grep -q '"missed": 1' gate.json || complain "gates: the document does not count what was missed"
try 7 "2 results meet" "$@" --ctx 256 --logit-bits 16 --fail-if 'kld_nats > 0' --kv-bits 4 --kv-recent 8 --kv-quant per-token,per-channel
for cache in "4:4 bf16" "4:4 per-channel bf16"; do # told apart
    grep -q "16-bit logits (per-tensor), f32, KV $cache: kld_nats is [0-9]" "$top/err" || complain "gates: no line says which cache: $(cat "$top/err")"
done
try 0 "PPL" "$@" --fail-if 'kld_nats > 50' --fail-if 'ppl_ratio>=9' --fail-if 'same_top1<0.001'
try 7 "2 results meet" "$@" --fail-if 'nll_nats.value>=0'
try 7 "1 result meets" "$@" --fail-if 'nll_nats_delta > -9'
try 7 "has no value" "$@" --fail-if 'kv.kept_fraction < 0.5'
try 2 "has no acc" "$@" --fail-if 'acc<0.5'
wrong() { # wrong PLACE PATTERN CONDITION: what does not parse is told with its place
    try 2 "fail-if \"$3\": character $1: expected $2" eval "diff model" --text "$book" --fail-if "$3"
}
for odd in kld 'kld_nats' 'kld_nats = 3'; do wrong $((${#odd} + 1)) '< <= > or >= after a name, found the end' "$odd"; done
wrong 1 'the name of a number, found "> 3"' '> 3'
wrong 11 'a number, baseline or "(", found the end' 'kld_nats >'
wrong 12 'a number, baseline or "(", found "x"' 'kld_nats > x'
wrong 12 'a number, baseline or "(", found "nan"' 'kld_nats > nan'
wrong 14 'an operation or the end, found "2"' 'kld_nats > 1 2'
try 2 "the limit is no finite number" "$@" --fail-if 'kld_nats > 1 / 0'
try 2 "the limit is no finite number" "$@" --fail-if 'kld_nats > 1e308 * 10'
try 7 "no result has a weights.head_bits" "$@" --fail-if 'weights.head_bits > 1' --csv gate.csv -o gate.json --force
grep -q "error: 1 condition of --fail-if could not be checked" "$top/err" || complain "gates: $(cat "$top/err")"
grep -q '"checked": 0' gate.json || complain "gates: the document does not say that nothing was looked at"
[ "$(grep -c . gate.csv)" = 3 ] || complain "gates: no CSV beside a gate that could not be checked"
absent dq-eval-*.resume
try 7 "1 result meets a condition of --fail-if (.*kld_nats.p99 is .*), and 2 conditions" "$@" --fail-if 'weights.embed_bits > 1' \
    --fail-if 'kld_nats.p99 > 1e-6' --fail-if 'weights.head_bits < 0'
try 7 "kld_nats.noise_floor is" "$@" --fail-if 'kld_nats.noise_floor >= 0'
try 7 "delta_p.rms is" "$@" --fail-if 'delta_p.rms >= 0' --logit-bits 3
for name in acc. kld_nats. kld_nats.p98 ppl.p99 ppl_ratio.value nll_nats_p nll_nats_delta.value word_ppl kv kv. kv.nothing weights.x \
    slices throughput.seconds. verdict.is verdict.metric math.linear kv.rotate.k; do
    try 2 "has no $name\." "$@" --fail-if "$name > 1"
done
try 7 "2 results meet" "$@" --fail-if 'n > 1'
try 0 "PPL" "$@" --fail-if 'metrics.kld_nats.value > 99' # the reference has none
try 7 "word_ppl is" eval "diff model" --text "$book" --ctx 64 --window rolling --fail-if 'word_ppl > 0'

# ---- what is its own reference differs from nothing, and a gate on it is not passed
"$dq" quantize "diff model" -o two.h5 --bits 2 -q >/dev/null
for name in nll_nats_delta kld_nats kld_nats.p99 same_top1 ppl_ratio delta_p.rms ln_ppl_ratio verdict.loss \
    paired.nll_nats.delta metrics.kld_nats.value; do
    try 7 "1 condition of --fail-if could not be checked; all results are written$" eval "diff model" --text "$book" --ctx 64 \
        --limit 2 --fail-if "$name > 1"
    grep -q "warning: --fail-if \"$name > 1\": every result is its own reference" "$top/err" || complain "gates: $name: $(cat "$top/err")"
    try 7 "could not be checked; all results are written. Add the source checkpoint to the run, or --ref MODEL$" \
        eval two.h5 --text "$book" --ctx 64 --limit 2 --fail-if "$name > 1"
done
set -- eval two.h5 --text "$book" --ctx 64 --limit 12
try 7 "two.h5, text, 16-bit logits (per-tensor), f32, KV 32:32: could not be checked, its source checkpoint is not in the run" "$@" \
    --fail-if 'kld_nats > 0.01' --csv two.csv -o two.json
grep -q "^two.h5: compared with nothing, as its source checkpoint is not in the run" "$top/out" ||
    complain "gates: the table does not say what is not compared"
for name in kld_nats same_top1 ln_ppl_ratio kld_p99 delta_p loss verdict; do
    [ -z "$(column two.csv 1 $name)" ] || complain "gates: $name of a reference: $(column two.csv 1 $name)"
done
[ "$(grep -c '"reason": "its source checkpoint is not in the run"' two.json)" = 4 ] || complain "gates: no reasons in the document"
grep -q '"unchecked": 1' two.json || complain "gates: the document does not count what could not be checked"
grep -q '"reference_weights": "own"' two.json || complain "gates: whose weights the reference has is not told"
# rows at other bits have the same weights, so nothing can be said of them either
for sweep in "--logit-bits 16,8" "--logit-bits 8" "--kv-bits 8 --kv-recent 8"; do
    # shellcheck disable=SC2086 # words
    try 7 "1 condition of --fail-if could not be checked" "$@" $sweep --fail-if 'kld_nats > 9' --csv two.csv --force
    [ -z "$(column two.csv 1 kld_nats)$(column two.csv 1 verdict)" ] || complain "gates: $sweep: compared with its own weights"
    ! grep -q "Lowest logit bits" "$top/out" || complain "gates: $sweep: a verdict without a reference"
done
# somebody who wants to know what logits lose says so
try 0 "not about\|within the margin\|exceeds the margin\|inconclusive" "$@" --ref two.h5 --logit-bits 16,8 --csv two.csv --force
holds "the sweep is compared" "$(column two.csv 2 kld_nats) > 0"
# the source, or --ref, makes it one that can be checked
try 7 "2 results meet\|1 result meets" "$@" "diff model" --fail-if 'kld_nats > 0.01' --csv two.csv -o two.json --force
holds "a broken container" "$(column two.csv 1 kld_nats) > 1"
grep -q '"reference_weights": "source"' two.json || complain "gates: the source is not told apart"
! grep -q "not in the run" "$top/err" || complain "gates: a warning about a source that is there"
try 7 "1 result meets" "$@" --ref "diff model" --fail-if 'kld_nats > 0.01'
try 0 "PPL" "$@" --ref "diff model" --fail-if 'kld_nats > 50'
# itself as --ref, or a copy of its bytes: it is the reference because somebody said so
cp two.h5 same.h5
for ref in two.h5 same.h5; do
    try 7 "no result has a kld_nats" "$@" --ref $ref --fail-if 'kld_nats > 0.01'
    try 0 '"reason": "is the reference"' "$@" --ref $ref --json
done
# a folder of the source's name with other weights is not the source
cp -r "diff model" kept
mkdir other && "$dq" quantize "diff model" -o other/eight.h5 --bits 8 -q >/dev/null
sed 's/"rms_norm_eps": 1e-05/"rms_norm_eps": 1e-06/' kept/config.json >"diff model/config.json"
cmp -s kept/config.json "diff model/config.json" && complain "gates: the configuration did not change"
try 7 "could not be checked" eval other/eight.h5 "diff model" --text "$book" --ctx 64 --limit 2 --fail-if 'kld_nats > 9'
grep -q "warning: eight.h5: was made from \"diff model\", fingerprint [0-9a-f]*; diff model in this run has fingerprint" "$top/err" ||
    complain "gates: no word of a source that is another: $(cat "$top/err")"
cp kept/config.json "diff model/config.json"
rm -r kept other same.h5 two.h5
try 2 "cannot go with it" "$@" --dry-run --fail-if 'ppl > 1'
set -- eval "diff model" --task mc --data choices.jsonl --limit 6 --logit-bits 16,2
try 7 "acc_p is" "$@" --fail-if 'acc_p<=1'
try 7 "2 results meet" "$@" --fail-if 'acc<=1'
try 7 "acc_norm.stderr is" "$@" --fail-if 'acc_norm.stderr>=0'
for name in acc.foo acc_delta.value slices.share_ar_hit kld_nats ll_nats; do
    try 2 "has no $name\." "$@" --fail-if "$name > 1"
done
try 7 "ll_nats is" eval "diff model" --task needle --data "$book" --lengths 256 --needles 2:1 --fail-if 'll_nats < 9'
absent dq-eval-*.resume

# a long name is shortened between characters; what tells the row apart stays
long=$(printf 'm%058d\303\251-and-more-and-more-and-more-and-more-and-more-and-more-and-more' 0 | tr 0 x)
ln -s "diff model" "$long"
try 7 "(mx*$(printf '\342\200\246'), text, 3-bit logits (per-tensor), f32, KV 8:8 per-channel bf16: kld_nats is .*, .kld_nats>0.001.)" \
    eval "$long" --text "$book" --ctx 64 --limit 2 --logit-bits 16,3 --kv-bits 8 --kv-recent 0 --progress never --fail-if 'kld_nats>0.001'
rm "$long"

# ---- several arithmetics in one run: what one of them cannot take is left out by name
"$dq" quantize "diff model" -o eight.h5 --bits 8 --embed-bits 16 -q >/dev/null
set -- eval "diff model" eight.h5 --text "$book" --ctx 128 --limit 2 --kv-bits 16,8 --kv-recent 16
try 0 "eight.h5  *8/128  *int8  *8:8" "$@" --math f32,int8 --csv both.csv
[ "$(grep -c . both.csv)" = 6 ] || complain "gates: --math f32,int8: expected 5 rows: $(cat both.csv)"
[ "$(grep -c 'left out: .*needs a packed KV cache' "$top/err")" = 1 ] || complain "gates: what was left out: $(cat "$top/err")"
[ "$(grep -c "left out" "$top/err")" = 2 ] || complain "gates: not a warning for each reason: $(cat "$top/err")"
grep -q "left out: diff model: --math int8 needs packed weights" "$top/err" || complain "gates: no word of what was left out"
try 0 "eight.h5 .* int8 " eval eight.h5 --text "$repo/tests/golden/text/docs.jsonl" --positions --ctx 64 --math f32,int8 --kv-bits 8
[ "$(sed -n '/^Mean NLL/,/^$/p' "$top/out" | grep -c '^eight.h5 .* \(f32\|int8\) ')" = 2 ] || complain "gates: --positions: rows of two arithmetics look the same: $(cat "$top/out")"
try 4 "needs packed weights" "$@" --math int8
try 4 "nothing is left of --math int8,bf16" eval "diff model" --text "$book" --math int8,bf16
try 2 "int8 stands twice" "$@" --math int8,int8
try 2 "--math" "$@" --math f32,int4

# ---- kill -9 at any moment: the rest of the run gives what an undisturbed one does
set -- eval "diff model" --text "$book" --ctx 128 --logit-bits 16,4 --logit-granularity per-row --threads 1 --progress never
"$dq" "$@" --csv whole.csv >/dev/null 2>"$top/err" || complain "gates: $(cat "$top/err")"
cut -d, -f1-30,32- whole.csv >"$top/a"
killed 2 "$@" --csv killed.csv --force
killed 3 "$@" --csv killed.csv --force --resume
# shellcheck disable=SC2034 # `killed` reads it
signal=TERM
killed 4 "$@" --csv killed.csv --force --resume
unset signal
grep -q "interrupted; dq-eval-.*resume is kept. Run the same command with --resume to finish it" "$top/err" || complain "gates: $(cat "$top/err")"
try 0 "diff model" "$@" --csv killed.csv --force --resume
cut -d, -f1-30,32- killed.csv | cmp -s - "$top/a" || complain "gates: killed three times and resumed: other numbers"
absent dq-eval-*.resume
# without --resume the work is set aside, not lost
killed 2 "$@" --csv killed.csv --force
try 0 "diff model" "$@" --csv killed.csv --force
grep -q "warning: an earlier run of this command left finished work, .* is in dq-eval-.*resume.old" "$top/err" ||
    complain "gates: no word of finished work: $(cat "$top/err")"
absent dq-eval-*.resume dq-eval-*.resume.old
# of two earlier runs what has more stays, whichever was first
killed 4 "$@" --csv killed.csv --force
state=$(ls dq-eval-*.resume)
cp "$state" more
head -n 2 more >less
for first in less more; do
    cp $first "$state.old"
    if [ $first = less ]; then cp more "$state"; else cp less "$state"; fi
    "$dq" "$@" >/dev/full 2>"$top/err"
    grep -q "warning: two earlier runs .* is in dq-eval-.*resume.old until" "$top/err" || complain "gates: two runs: $(cat "$top/err")"
    cmp -s more "$state.old" || complain "gates: of two runs, $first work first, less is left"
done
rm more less "$state" "$state.old"
# another tokenizer is another run
killed 2 "$@" --csv killed.csv --force
cp "diff model/tokenizer.json" tokenizer.kept
sed 's/"<bos>"/"<Bos>"/' tokenizer.kept >"diff model/tokenizer.json"
cmp -s tokenizer.kept "diff model/tokenizer.json" && complain "gates: the tokenizer did not change"
anew "$@" --csv killed.csv --force --resume
mv tokenizer.kept "diff model/tokenizer.json"
killed 2 "$@" --csv killed.csv --force
printf '{"additional_special_tokens": ["e"]}' >"diff model/special_tokens_map.json"
anew "$@" --csv killed.csv --force --resume
rm "diff model/special_tokens_map.json"
# what is damaged is said with what to do
killed 3 "$@" --csv killed.csv --force --resume
sed -i '2s/e/f/' dq-eval-*.resume
try 3 "line 2 was altered .*Remove it, or run without --resume" "$@" --csv killed.csv --force --resume
for state in dq-eval-*.resume; do printf '{"sha256": "00", "step": {}}\n' >"$state"; done
try 4 "resume: is not a journal of this version of dq. Remove it" "$@" --csv killed.csv --force --resume
rm -f dq-eval-*.resume killed.csv
# a disk that fills up keeps what it took: some steps, then nothing more, then the results neither
(
    trap '' XFSZ
    ulimit -f 560
    exec "$dq" "$@" >/dev/full
) 2>"$top/err"
got=$?
[ $got -eq 6 ] || complain "gates: a full disk: expected status 6, found $got"
grep -q "warning: finished work could not be kept for --resume: .*File too large" "$top/err" ||
    complain "gates: a full disk: $(cat "$top/err")"
grep -q "dq-eval-.*resume is kept; --resume goes on from it" "$top/err" || complain "gates: a full disk: $(cat "$top/err")"
[ "$(steps)" -ge 2 ] || complain "gates: a full disk: expected a head and a step or more, found $(steps) lines"
try 0 "diff model" "$@" --csv killed.csv --force --resume
cut -d, -f1-30,32- killed.csv | cmp -s - "$top/a" || complain "gates: resumed after a full disk: other numbers"
absent dq-eval-*.resume
rm -f killed.csv

# ---- weights that are no numbers: which item, which line
cp -r "diff model" "nan model"
weights="nan model/model.safetensors"
# shellcheck disable=SC2046 # two numbers
set -- $(od -An -N2 -tu1 "$weights")
at=$((8 + $1 + 256 * $2))
set -- "$(wc -c <"$weights")"
# shellcheck disable=SC2017 # a multiple of four
for place in $at $(((at + $1) / 4 * 2)); do
    cp "diff model/model.safetensors" "$weights"
    printf '\300\177' | dd of="$weights" bs=1 seek="$place" conv=notrunc 2>/dev/null
    try 3 "choices.jsonl: item 0, line 1: .*not finite\|choices.jsonl: item 0, line 1: .*NaN" \
        eval "nan model" --task mc --data choices.jsonl
    try 3 "windows 0 to 3: " eval "nan model" --text "$book" --ctx 64 --limit 4
done
# an output head with one number that is none, of an id that no text has: hidden states are numbers, logits are not
cp "diff model/model.safetensors" "$weights"
printf '\300\177' | dd of="$weights" bs=1 seek=$((at + 639 * 256)) conv=notrunc 2>/dev/null
asked=$repo/tests/golden/questions
no="nan model gives a log-probability of -*nan"
try 3 "gsm8k.jsonl: item 0, line 1: $no" eval "nan model" --task gsm8k --data "$asked/gsm8k.jsonl" --limit 2 --max-new 4
try 3 "prompts.jsonl: item 0, line 1: $no" eval "nan model" --task generate --data "$asked/prompts.jsonl" --max-new 4 \
    --dump-completions gone.jsonl
try 3 "choices.jsonl: item 0, line 1: $no" eval "nan model" --task mc --data choices.jsonl
for mode in forced generated; do
    try 3 "item 0: $no" eval "nan model" --task needle --data "$book" --lengths 420 --depths 0 --needles 1:1 --limit 1 \
        --needle-mode $mode
done
try 3 "item 0: $no" eval "nan model" --task trec --data "$repo/tests/golden/icl/trec_test.label" \
    --fewshot-data "$repo/tests/golden/icl/trec_train.label" --num-fewshot 2 --runs 1 --limit 2
try 3 "nan model: the logit of id 639 at position 0 is -*nan" logits "nan model" --ids "1 2 3" -o gone.h5
try 3 "$no" bench prefill "nan model" --tokens 32 --runs 1
try 3 "$no" bench decode "nan model" --new-tokens 1 --context 30
try 3 "$no" bench generate "nan model" --new-tokens 1 --context 30 --runs 1
try 3 "$no" bench items "nan model" choices.jsonl --runs 1
try 3 "$no" doctor --model "nan model"
absent gone.jsonl gone.h5 gone.h5.partial
absent dq-eval-*.resume
rm -r "nan model"

# ---- a granularity that nothing is rounded by
try 0 PPL eval "diff model" --text "$book" --ctx 64 --limit 2 --logit-granularity per-row
grep -q "warning: --logit-granularity says nothing here" "$top/err" || complain "gates: no word of a granularity without rounding"
try 0 PPL eval "diff model" --text "$book" --ctx 64 --limit 2 --logit-granularity per-row --logit-bits 16,6
! grep -q "says nothing" "$top/err" || complain "gates: a warning about a granularity that rounds"
