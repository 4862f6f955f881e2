# kv.sh: compressed KV caches: options, rows, containers; sourced by run.sh.
book=$repo/calib/pair/text.txt
narrow=$repo/tests/golden/models/llama-f32 # its head_dim is no power of two

# eval_text CSV OPTION...: two windows of 512 tokens, 256 of them context; numbers in a CSV.
eval_text() {
    csv=$1
    shift
    try 0 "diff model" eval "diff model" --text "$book" --ctx 512 --limit 2 --progress never --csv "$csv" --force "$@"
}

# ---- what the command line refuses, before anything is scored
refused() { # PATTERN OPTION...
    pattern=$1
    shift
    try 2 "$pattern" eval "diff model" --text "$book" "$@"
    try 2 "$pattern" logits "diff model" --ids "1 2 3" --prefix 2 -o gone.h5 "$@"
    try 2 "$pattern" quantize "diff model" -o gone.h5 --bits 4 "$@"
}
refused "kv-bits.*: 5 bits for keys are not offered" --kv-bits 5 --kv-quant per-token
refused "3 bits for keys are not offered" --kv-bits 3:3 --kv-quant per-token
refused "2 bits for keys are not offered" --kv-bits 2:4 --kv-quant per-token
refused "7 bits for values are not offered" --kv-bits 16:7
refused "kv-bits 7: 7 bits for keys .*as per-channel codes 5, 3, 2 too" --kv-bits 7 --kv-quant per-channel
refused "kv-quant: expected one of per-token, per-channel, dither, mixed, auto" --kv-bits 4 --kv-quant channel
refused "kv-quant has nothing to act on" --kv-quant per-channel
refused "kv-dense-type: expected one of f32, f16, bf16, auto" --kv-dense-type half
refused "kv-bits 16 has two bytes an element, and --kv-dense-type f32 four. Use --kv-bits 32" --kv-bits 16 --kv-dense-type f32
refused "kv-bits 16 has two bytes" --kv-bits 4:16 --kv-dense-type f32
refused "kv-bits 32 is f32, and --kv-dense-type says bf16. Leave one of them out" --kv-bits 32:8 --kv-dense-type bf16
refused "kv-bits 32:16: 16 and 32 bits in one cache are not offered" --kv-bits 32:16
refused "kv-bits 4|32: 32 bits for keys are not offered" --kv-bits "4|32"
refused "kv-group has nothing to act on.*per-token codes" --kv-bits 4 --kv-quant per-channel --kv-group 16
refused "kv-bits 4:: expected a width" --kv-bits 4:
refused "kv-bits.*: widths that differ by layer or map need per-channel codes. Add --kv-quant mixed, per-channel or dither" --kv-bits "3|4" --kv-quant per-token
refused "kv-bits 3|4:5+3: values have no maps" --kv-bits "3|4:5+3" --kv-quant per-channel
refused "kv-bits 3|: expected widths by layer" --kv-bits "3|" --kv-quant per-channel
refused "kv-bits 7|3: 7 bits for keys are not offered" --kv-bits "7|3" --kv-quant per-channel
refused "kv-bits 16|4:4: 16 bits for some keys and codes for others" --kv-bits "16|4:4" --kv-quant per-channel
refused "kv-bits 3|4\*|2\*: two entries for keys" --kv-bits "3|4*|2*" --kv-quant per-channel
for other in "--kv-bits 4" "--kv-keep 0.5" "--kv-tokens 99"; do
    # shellcheck disable=SC2086 # an option and its value
    refused "kv-size says what ${other% *} would. Leave one of them out" --kv-size 1/8 $other
done
refused "kv-size 2: expected a share of the bytes of 16 bits, above 0 and below 1" --kv-size 2
refused "kv-size 1/8@0.5: expected a number of tokens after the @" --kv-size 1/8@0.5
refused "a cache of 512 tokens of this model takes 0.[01][0-9]* of the bytes of 16 bits at least. Give that or more" --kv-size 0.001@512
refused "with these settings nothing holds 1 tokens of this model in fewer bytes than 16 bits do. Name a longer context" --kv-size 1/8@1
refused "a cache of 64 tokens of this model takes 0.3726 of the bytes of 16 bits at least" --kv-size 1/8@64 # all of them
refused "kv-size 1/8@99999999: expected a number of tokens after the @, at most 16777216" --kv-size 1/8@99999999
refused "kv-group has nothing to act on: it is for per-token codes of at most 4 bits, and mixed ones. Add --kv-quant mixed, or name a smaller" --kv-size 1/2@2048 --kv-group 16 --kv-quant per-token
refused "how many bytes a budget by heads takes is not foretold" --kv-size 1/4@512 --kv-budget heads --kv-heads 1.1,1.0,0.1,0.0
refused "kv-keep 0: expected a fraction from 1e-06 to 1" --kv-keep 0
refused "kv-keep 1.5: expected a fraction" --kv-keep 1.5
refused "kv-keep 64: .*use --kv-tokens" --kv-keep 64
refused "kv-keep nan: expected" --kv-keep nan
refused "kv-tokens 0: expected a whole number" --kv-tokens 0
refused "from 1 to 2147483647" --kv-tokens 2147483648
refused "64" --kv-tokens 63
refused "kv-keep and --kv-tokens" --kv-keep 0.5 --kv-tokens 100
refused "kv-policy best: .*streaming, h2o.* sum), or all in dq eval$" --kv-keep 0.5 --kv-policy best
refused "kv-rotate: expected one of" --kv-bits 4 --kv-rotate maybe
refused "kv-budget: expected one of" --kv-keep 0.5 --kv-budget flat
refused "kv-heads: expected layers and their groups.*at \"\"" --kv-keep 0.5 --kv-budget heads --kv-heads 1.0,
refused "kv-heads: group 1.0 stands twice" --kv-keep 0.5 --kv-budget heads --kv-heads 1.0,0.0,1.0
refused "a budget by heads needs a list .*Give --kv-heads" --kv-keep 0.5 --kv-budget heads
# no option is read and forgotten
refused "kv-heads has nothing to act on: no budget goes by heads. Add --kv-budget heads" --kv-keep 0.5 --kv-heads 1.0
refused "kv-heads has nothing to act on" --kv-heads 1.0
refused "kv-policy has nothing to act on.*--kv-keep" --kv-policy h2o
refused "kv-every has nothing to act on" --kv-every 8
refused "kv-budget has nothing to act on" --kv-budget adaptive
refused "kv-window has nothing to act on" --kv-window 8
refused "kv-window has nothing to act on" --kv-window 8 --kv-keep 0.5 --kv-policy streaming
refused "seed has nothing to act on" --seed 3
refused "kv-sink has nothing to act on" --kv-sink 8
refused "kv-recent has nothing to act on" --kv-recent 8
refused "kv-group has nothing to act on.*at most 4 bits" --kv-group 16
try 2 "kv-bits: an empty" eval "diff model" --text "$book" --kv-bits 4,
try 2 "stands twice" eval "diff model" --text "$book" --kv-bits 8,4,8:8
try 2 "stands twice" eval "diff model" --text "$book" --kv-keep 0.5,0.50
try 2 "kv-keep: an empty part in \"0.5,\"" eval "diff model" --text "$book" --kv-keep 0.5,
try 2 "kv-policy: an empty part in \"h2o,\"" eval "diff model" --text "$book" --kv-keep 0.5 --kv-policy h2o,
try 2 "kv-policy: an empty part in \"all,,a1\"" eval "diff model" --text "$book" --kv-policy all,,a1
try 2 "kv-policy: an empty part in \"\"" eval "diff model" --text "$book" --kv-keep 0.5 --kv-policy ""
try 2 "kv-quant: per-channel stands twice" eval "diff model" --text "$book" --kv-bits 4 --kv-quant per-channel,per-token,per-channel
try 2 "kv-quant has nothing to act on: nothing is coded" eval "diff model" --text "$book" --kv-bits 16 --kv-quant per-token,per-channel
try 2 "kv-group has nothing to act on" eval "diff model" --text "$book" --kv-bits 8,3 --kv-quant per-token,per-channel --kv-group 16
try 2 "kv-bits: one value only" logits "diff model" --ids 1 -o gone.h5 --kv-bits 8,4
try 2 "kv-quant: one value only" logits "diff model" --ids 1 -o gone.h5 --kv-bits 4 --kv-quant per-channel,per-token
try 2 "kv-quant: one value only" quantize "diff model" -o gone.h5 --bits 4 --kv-bits 4 --kv-quant per-channel,per-token
try 2 "kv-keep: one value only" quantize "diff model" -o gone.h5 --bits 4 --kv-keep 0.5,1
try 2 "Add --prefix" logits "diff model" --ids "1 2 3" -o gone.h5 --kv-keep 0.5
try 2 "prefix 4 is more than the 3 tokens" logits "diff model" --ids "1 2 3" -o gone.h5 --prefix 4
try 4 "power of two.*--kv-rotate off" logits "$narrow" --ids "1 2 3" -o gone.h5 --kv-bits 4 --kv-rotate on
try 4 "power of two.*--kv-rotate off" quantize "$narrow" -o gone.h5 --bits 4 --kv-bits 4 --kv-rotate on
absent gone.h5 gone.h5.partial

# ---- nothing to compress: the bits of one pass
eval_text plain.csv
[ "$(column plain.csv 1 kv_k_bits)" = "no column kv_k_bits" ] || complain "kv: columns without a KV setting"
eval_text all.csv --kv-keep 1 --kv-bits 32
eval_text all1.csv --kv-keep 1 --kv-bits 32 --kv-every 1 --limit 1
eval_text one.csv --limit 1
for name in nll_nats nll_nats_stderr ppl; do
    [ "$(column plain.csv 1 $name)" = "$(column all.csv 1 $name)" ] || complain "kv: --kv-keep 1 changes $name"
    [ "$(column one.csv 1 $name)" = "$(column all1.csv 1 $name)" ] || complain "kv: decoding changes $name"
done
# the reference differs from nothing; what keeps all is compared with it, and gives its bits
[ -z "$(column plain.csv 1 kld_nats)$(column plain.csv 1 same_top1)" ] || complain "kv: the reference has a divergence from itself"
[ "$(column all.csv 1 kld_nats)$(column all.csv 1 same_top1)" = 01 ] || complain "kv: --kv-keep 1 is not the reference"
[ "$(column all1.csv 1 kld_nats)$(column all1.csv 1 same_top1)" = 01 ] || complain "kv: decoding is not the reference"
[ "$(column all.csv 1 kv_kept_fraction)" = 1 ] || complain "kv: --kv-keep 1 does not keep all"
try 0 "diff model" eval "diff model" --task mc --data choices.jsonl --force --csv plain.csv
try 0 "diff model" eval "diff model" --task mc --data choices.jsonl --force --csv all.csv --kv-keep 1 --logit-bits 16,6 --logit-granularity per-row
for name in acc acc_norm; do
    [ "$(column plain.csv 1 $name)" = "$(column all.csv 1 $name)" ] || complain "kv: --kv-keep 1 changes $name"
done
try 0 '"passes": "whole"' logits "diff model" --text "short text" -o whole.h5 --json
whole=$(grep logits_sha256 "$top/out")
try 0 '"passes": "context+rest"' logits "diff model" --text "short text" -o split.h5 --json --prefix 100
[ "$(grep logits_sha256 "$top/out")" = "$whole" ] || complain "kv: --prefix changes the logits"
try 0 '"passes": "decode"' logits "diff model" --text "short text" -o split.h5 --force --json --prefix 100 \
    --kv-keep 1 --kv-every 1 --kv-bits 32
[ "$(grep logits_sha256 "$top/out")" = "$whole" ] || complain "kv: decoding changes the logits"

# ---- eviction
eval_text cut.csv --kv-keep 1,0.6 --kv-policy streaming,knorm --json
json dq-eval/1
for key in k_bits v_bits group rotate sink recent policy keep tokens budget every window bytes_held codes scales \
    unquantized index bytes_per_token baseline_bytes ratio_held ratio_payload lowbit_fraction kept_fraction \
    kvpress_ratio raised gap_min effective stored; do
    grep -q "\"$key\": " "$top/out" || complain "kv: no \"$key\" in the JSON document"
done
grep -q '"passes": "context+rest"' "$top/out" || complain "kv: the passes are not named"
for row in 2 4; do # the budget is the ceiling of 0.6 * 256
    holds "154 of 256 are kept" "$(column cut.csv $row kv_kept_fraction) == 154 / 256"
    holds "the cache shrinks" "$(column cut.csv $row kv_bytes_held) < 0.8 * $(column cut.csv 1 kv_bytes_held)"
    # 256 tokens, two windows, two layers, four heads of 32, K and V, 2 bytes
    holds "baseline" "$(column cut.csv $row kv_baseline_bytes) == 256 * 2 * 2 * 4 * 32 * 2 * 2"
done
for budget in uniform adaptive global; do
    eval_text cut.csv --kv-tokens 128 --kv-policy h2o --kv-budget $budget
    holds "$budget keeps half" "$(column cut.csv 1 kv_kept_fraction) >= 0.49"
    holds "$budget keeps half" "$(column cut.csv 1 kv_kept_fraction) <= 0.51"
done
for policy in streaming h2o snapkv knorm random diff kvzip keydiff leverage; do
    eval_text cut.csv --kv-keep 0.6 --kv-policy $policy
    holds "$policy keeps 154" "$(column cut.csv 1 kv_kept_fraction) == 154 / 256"
done
eval_text cut.csv --kv-keep 0.6 --kv-policy random --seed 7 --kv-every 16
eval_text again.csv --kv-keep 0.6 --kv-policy random --seed 7 --kv-every 16 --threads 1
cut -d, -f1-30,32- cut.csv >"$top/a"
cut -d, -f1-30,32- again.csv | cmp -s - "$top/a" || complain "kv: not the same numbers again"
eval_text cut.csv --kv-keep 0.1
grep -q "warning: .*2 of 2 contexts was raised to sink + recent = 64" "$top/err" || complain "kv: no warning about raised budgets"
grep -q "Contexts of 640 tokens (of a text, --ctx 1280) have it" "$top/err" || complain "kv: no word of contexts that are long enough"
eval_text cut.csv --kv-tokens 500
grep -q "warning: .*only 0.0 % of the context tokens" "$top/err" || complain "kv: no warning about short contexts"
printf '{"ctx": "the sea is", "choices": ["the", "a"], "gold": 0}\n' >one.jsonl
# the table's rows can be told apart by what was asked for, raised or not
keyed() { # keyed LINES OPTION...: as many rows, each with other keys
    rows=$1
    shift
    try 0 "keep" eval "diff model" --text "$book" --ctx 256 --limit 2 --progress never "$@"
    [ "$(grep '^\(diff\|h2o\|streaming\) *' "$top/out" | sort | uniq -d | wc -l)" -eq 0 ] || complain "rows that cannot be told apart: $(cat "$top/out")"
    [ "$(grep -c '\(^\| \)\(0[.][12]\|1\|[0-9]* tokens\)\( \|$\)' "$top/out")" -ge "$rows" ] || complain "rows without what is kept: $(cat "$top/out")"
}
keyed 4 --kv-policy h2o,streaming --kv-keep 0.1,0.2
keyed 3 --kv-keep 1,0.1,0.2
keyed 2 --kv-tokens 70,80
try 0 "kept" eval "diff model" --task mc --data one.jsonl --kv-keep 0.6 --kv-recent 1 --kv-sink 0
grep -q "warning: mc: 2 of 2 choices are a single token, which is predicted before anything is evicted" "$top/err" ||
    complain "kv: no warning about choices that eviction cannot reach"
try 0 "acc" eval "diff model" --task mc --data one.jsonl --kv-bits 8
! grep -q "single token" "$top/err" || complain "kv: a warning about eviction without eviction"
try 0 "kept" eval "diff model" --task mc --data choices.jsonl --limit 3 --kv-keep 0.6 --kv-recent 16
try 0 '"tokens": 16' logits "diff model" --text "short text" -o shorter.h5 --prefix 100 --kv-tokens 16 --kv-recent 8 \
    --kv-policy streaming --kv-every 4 --json
grep -q '"contexts": 1' "$top/out" || complain "kv: dq logits does not measure its context"

# the budget goes by a model's maps, of two models in one run too, and in what a container stores
try 0 '"policy": "keydiff"' eval "diff model" --text "$book" --ctx 512 --limit 1 --kv-keep 0.5 --json
try 0 "plain model .*16:16 bf16 keydiff 0.5 global .*result" eval "diff model" "plain model" --text "$book" --ctx 512 --limit 1 --kv-keep 0.5 --dry-run
grep -q "diff model .*16:16 bf16 keydiff 0.5 .*result" "$top/out" || complain "kv: no uniform budget for a model of two maps"
# rows of both are paired: with the same budget where it is listed, else with the usual one
pairs_of() { # pairs_of COUNT OPTION...
    count=$1
    shift
    try 0 '"policy": ' eval "plain model" "diff model" --task mc --data choices.jsonl --limit 3 --kv-recent 16 --json "$@"
    [ "$(grep -c '"cross_paired"' "$top/out")" = "$count" ] || complain "kv: $*: not $count pairs of rows"
}
pairs_of 1 --kv-keep 0.5
pairs_of 1 --kv-keep 1
pairs_of 2 --kv-keep 0.5 --kv-policy leverage,keydiff
try 0 '"budget": "global"' quantize "plain model" --bits 8 --kv-keep 0.5 --print-recipe
try 0 '"budget": "uniform"' quantize "diff model" --bits 8 --kv-keep 0.5 --print-recipe
try 0 '"budget": "global"' logits "plain model" --text "short text" -o usual.h5 --prefix 100 --kv-keep 0.5 --kv-recent 8 --json
# a second pass stands after the context: of 300 tokens that is more than the model's 512 positions
for n in 250 300; do
    try 0 "rows" logits "diff model" --ids "$(awk 'BEGIN { for (i = 0; i < 310; i++) printf "%d ", i % 50 }')" -o again.h5 --force \
        --prefix $n --kv-keep 0.5 --kv-policy kvzip
    case $n$(grep -c "warning: .*kvzip read 1 of 1 contexts again at positions after those that the model has" "$top/err") in
    2500 | 3001) ;;
    *) complain "kv: the warning about positions of a second pass is wrong at $n tokens" ;;
    esac
done
# a group's keys, of two maps, have 64 channels: 64 of them all weigh the same
for n in 64 65; do
    try 0 "rows" logits "diff model" --ids "$(awk 'BEGIN { for (i = 0; i < 80; i++) printf "%d ", i % 50 }')" -o again.h5 --force \
        --prefix $n --kv-keep 0.5 --kv-recent 8 --kv-policy leverage
    case $n$(grep -c "warning: .*leverage tells tokens apart only where .* channels, which 1 of 1 have not" "$top/err") in
    641 | 650) ;;
    *) complain "kv: the warning about contexts too short for leverage is wrong at $n tokens" ;;
    esac
done

# ---- stopped and resumed: every row as if it had not been
cp "$book" "it's a text.txt"
set -- eval "diff model" --text "it's a text.txt" --ctx 256 --kv-keep 1,0.6 --kv-policy streaming,knorm --kv-every 2 --threads 1 \
    --progress never
"$dq" "$@" --csv stopped.csv >"$top/out" 2>"$top/err" </dev/null &
child=$!
sleep 0.7
kill -INT $child
wait $child
got=$?
if [ $got -eq 130 ]; then
    grep -q "interrupted; dq-eval-.*resume is kept. Run the same command with --resume to finish it" "$top/err" || complain "kv: $(cat "$top/err")"
    try 0 "diff model" "$@" --csv stopped.csv --resume
    anew "$@" --resume --kv-recent 32
    try 0 "diff model" "$@" --csv whole.csv
    cut -d, -f1-30,32- stopped.csv >"$top/a"
    cut -d, -f1-30,32- whole.csv | cmp -s - "$top/a" || complain "kv: a resumed run gives other numbers"
elif [ $got -ne 0 ]; then
    complain "kv: SIGINT: expected status 130, found $got: $(cat "$top/err")"
fi

# ---- remedies that can be followed
printf 'ab' >ab.txt
try 4 "has . tokens, two of the smallest windows need 8. Use more text" eval "diff model" --text ab.txt --ctx 4
try 4 "has no tokenizer.json, so text cannot become ids$" doctor --model "$repo/tests/golden/models/v2-f16"

# ---- containers remember
try 0 "packed" quantize "diff model" -o evicting.h5 --bits 4 --kv-keep 0.6 --kv-policy streaming --kv-recent 32
try 0 "." verify evicting.h5 --source "diff model"
try 0 "KV eviction *streaming, 0.6 of the context" info evicting.h5
try 0 '"policy": "streaming"' info evicting.h5 --json
grep -q '"kv_bytes_per_token": 1024' "$top/out" || complain "info: 1024 bytes per token expected"
try 0 "KV cache per token 1024 bytes at 16 bits" info "diff model"
try 0 "kept" eval evicting.h5 --text "$book" --ctx 512 --limit 1 --force --csv cut.csv
holds "stored settings act" "$(column cut.csv 1 kv_kept_fraction) == 154 / 256"
try 0 "kept" eval evicting.h5 --text "$book" --ctx 512 --limit 1 --force --csv cut.csv --kv-tokens 128
holds "options override" "$(column cut.csv 1 kv_kept_fraction) == 0.5"
try 0 '"kept_fraction": 1.0' eval evicting.h5 --text "$book" --ctx 512 --limit 1 --kv-keep 1 --json
grep -q '"keep": 0.5[9]' "$top/out" || grep -q '"keep": 0.6' "$top/out" || complain "eval: stored settings are not in the document"
try 0 '"policy": "h2o"' eval evicting.h5 --text "$book" --ctx 512 --limit 1 --kv-policy h2o --json
try 2 "Add --prefix N, or --kv-keep 1" logits evicting.h5 --ids "1 2 3" -o gone.h5
try 0 "rows" logits evicting.h5 --ids "1 2 3" --prefix 2 -o kept.h5
try 0 '"kept_fraction": 1.0' logits evicting.h5 --ids "1 2 3" --kv-keep 1 --kv-every 1 --json -o kept.h5 --force
grep -q '"passes": "whole"' "$top/out" || complain "logits: --kv-keep 1 needs no context"

# ---- codes
eval_text codes.csv --kv-bits 16,8,4:4 --kv-keep 1
eval_text both.csv --kv-bits 16,8,4:2 --kv-keep 0.6
holds "8 bits do little" "$(column codes.csv 2 kld_nats) < 0.01"
holds "4 bits do more" "$(column codes.csv 3 kld_nats) > $(column codes.csv 2 kld_nats)"
# row t reads t + 1 keys, the floor((t - 59) / 64) pages of 64 but for four sinks as codes
reads=$(awk 'BEGIN { for (t = 256; t < 511; t++) { all += t + 1; coded += int((t - 59) / 64) * 64 - 4 }; print coded "/" all }')
holds "low bits" "$(column codes.csv 3 kv_lowbit_fraction) - $reads < 1e-9 && $reads - $(column codes.csv 3 kv_lowbit_fraction) < 1e-9"
# a context of one page holds no codes when it ends, and the rows after it read some all the same
try 0 "4:4" eval "diff model" --text "$book" --ctx 256 --limit 1 --kv-bits 4 --csv late.csv
holds "codes that are read late" "$(column late.csv 1 kv_lowbit_fraction) > 0.4"
# no context, so no bytes held; what is read is known all the same
try 0 "4:4" eval "diff model" --text "$book" --ctx 512 --limit 2 --window rolling --kv-bits 4 --csv late.csv --force
holds "codes without a context" "$(column late.csv 1 kv_lowbit_fraction) > 0.5"
holds "payload at 8 bits" "$(column codes.csv 2 kv_ratio_payload) >= 1.6 && $(column codes.csv 2 kv_ratio_payload) <= 1.9"
holds "payload at 4 bits" "$(column codes.csv 3 kv_ratio_payload) >= 3.0 && $(column codes.csv 3 kv_ratio_payload) <= 3.6"
holds "codes shrink" "$(column codes.csv 3 kv_bytes_held) < $(column codes.csv 2 kv_bytes_held)"
holds "codes and eviction shrink" "$(column both.csv 3 kv_bytes_held) < $(column both.csv 2 kv_bytes_held)"
holds "evicted tokens count" "$(column both.csv 2 kv_ratio_payload) > $(column codes.csv 2 kv_ratio_payload)"
try 0 "4:4" eval "diff model" --text "$book" --ctx 128 --limit 1 --kv-bits 4
grep -q "warning: .*only .* % of the keys that scored rows read were codes.*--kv-sink 4, --kv-recent 60" "$top/err" || complain "kv: no warning about a cache without codes"
try 0 "rows" logits "$narrow" --ids "1 2 3" -o narrow.h5 --kv-bits 4 # auto leaves it unrotated
try 0 '"k": true' logits "diff model" --text "short text" -o codes.h5 --kv-bits 4 --json
once=$(grep logits_sha256 "$top/out")
try 0 '"k": true' logits "diff model" --text "short text" -o codes.h5 --kv-bits 4 --json --prefix 90 --force
[ "$(grep logits_sha256 "$top/out")" = "$once" ] || complain "kv: codes are not read as if tokens had come one by one"
try 0 "." quantize "diff model" -o turned.h5 --bits 4 --kv-rotate on --kv-keep 0.5 --kv-policy h2o --kv-window 9
try 0 "K 16 bits, V 16 bits, rotation on, sink 4, recent 60" info turned.h5
grep -q "KV eviction.*, window 9$" "$top/out" || complain "info: the window is not shown"
try 0 "." quantize "diff model" -o counted.h5 --bits 4 --kv-tokens 100
try 2 "error: counted.h5: --kv-tokens 100 is less than the 99 first" eval counted.h5 --text "$book" --kv-sink 99
try 2 "error: --kv-tokens 101 is less than the 99 first" eval counted.h5 --text "$book" --kv-sink 99 --kv-tokens 101
try 0 "." quantize "diff model" -o coded.h5 --bits 4 --kv-bits 4 --kv-quant per-token --kv-rotate off --kv-group 16
try 2 "error: --kv-bits: 3 bits for keys" eval coded.h5 --text "$book" --kv-bits 3
try 0 "." verify coded.h5 --source "diff model"
try 0 "K 4 bits, V 4 bits, group 16, rotation off" info coded.h5
try 0 '"k_bits": 4' eval coded.h5 --text "$book" --ctx 512 --limit 1 --json
try 0 "8:8" eval coded.h5 --text "$book" --ctx 512 --limit 1 --kv-bits 8
try 0 "." quantize "diff model" -o paged.h5 --bits 4 --kv-bits 5:4 --kv-quant dither
try 0 "." verify paged.h5 --source "diff model"
try 0 "K 5 bits, V 4 bits, code dither, rotation auto" info paged.h5
try 0 '"quant": "dither"' info paged.h5 --json
try 0 '"quant": "dither"' eval paged.h5 --text "$book" --ctx 512 --limit 1 --json
try 0 "." quantize "diff model" -o mixed.h5 --bits 4 --kv-bits 4:2 --kv-quant mixed --kv-group 16
try 0 "." verify mixed.h5 --source "diff model"
try 0 "K 4 bits, V 2 bits, code mixed, group 16, rotation auto" info mixed.h5
try 0 "4:2 mixed " eval mixed.h5 --text "$book" --ctx 512 --limit 1
try 0 "3|5:2|3 mixed" eval mixed.h5 --text "$book" --ctx 512 --limit 1 --kv-bits "3|5:2|3" --kv-keep 0.5
refused "kv-group has nothing to act on.*mixed" --kv-bits 4:16 --kv-quant mixed --kv-group 16
try 0 "5:4 dither" eval paged.h5 --text "$book" --ctx 512 --limit 1
try 0 "5:4 per-channel" eval paged.h5 --text "$book" --ctx 512 --limit 1 --kv-quant per-channel
try 0 "3:3 per-channel " eval paged.h5 --text "$book" --ctx 512 --limit 1 --kv-bits 5,3
# the usual code: page where nothing is evicted and where per-token codes have no such width, else token; a container keeps it open
for kind in auto per-channel per-token; do
    eval_text usual-$kind.csv --kv-bits 4 --kv-quant $kind --kv-keep 1,0.5 --kv-policy streaming --kv-recent 16
done
eval_text usual.csv --kv-bits 4 --kv-keep 1,0.5 --kv-policy streaming --kv-recent 16
[ "$(column usual.csv 1 kld_nats)$(column usual.csv 2 kld_nats)" = "$(column usual-auto.csv 1 kld_nats)$(column usual-auto.csv 2 kld_nats)" ] || complain "kv: auto is not the usual code"
[ "$(column usual.csv 1 kv_quant)$(column usual.csv 2 kv_quant)" = per-channelper-token ] || complain "kv: the usual codes are $(column usual.csv 1 kv_quant), $(column usual.csv 2 kv_quant)"
[ "$(column usual.csv 1 kld_nats)" = "$(column usual-per-channel.csv 1 kld_nats)" ] && [ "$(column usual.csv 2 kld_nats)" = "$(column usual-per-token.csv 2 kld_nats)" ] ||
    complain "kv: the usual codes are not those that it names"
try 0 '"quant": "per-channel"' eval "diff model" --text "$book" --ctx 512 --limit 1 --kv-bits 3:4 --kv-keep 0.5 --json
try 0 "." quantize "diff model" -o open.h5 --bits 4 --kv-bits 4
try 0 "." verify open.h5 --source "diff model"
try 0 '"quant": "auto"' info open.h5 --json
try 0 '"quant": "per-channel"' eval open.h5 --text "$book" --ctx 512 --limit 1 --json
try 0 '"quant": "per-token"' eval open.h5 --text "$book" --ctx 512 --limit 1 --json --kv-keep 0.5
try 0 "." quantize "diff model" -o open.h5 --bits 4 --force --kv-bits 4 --kv-quant per-token # as all containers were before other codes
try 0 "K 4 bits, V 4 bits, group 32" info open.h5
try 0 '"quant": "per-token"' eval open.h5 --text "$book" --ctx 512 --limit 1 --json
try 2 "error: paged.h5: 5 bits for keys" eval paged.h5 --text "$book" --ctx 512 --limit 1 --kv-quant per-token
# widths by layer and map: read from what the container says, and alike they are what they are without a list
try 0 "." quantize "diff model" -o listed.h5 --bits 4 --kv-bits "3|5+3:3*|6" --kv-quant dither
try 0 "." verify listed.h5 --source "diff model"
try 0 "K:V 3|5+3:3|6 bits, code dither, rotation auto" info listed.h5
try 0 '"widths": "3|5+3:3|6"' info listed.h5 --json
grep -q '"k_bits": null' "$top/out" || complain "info: widths by layer beside one width"
try 0 "3|5+3:3|6 dither" eval listed.h5 --text "$book" --ctx 512 --limit 1
try 0 '"widths": "3|5+3:3|6"' eval listed.h5 --text "$book" --ctx 512 --limit 1 --json
grep -q '"k_bits": 3.5' "$top/out" && grep -q '"v_bits": 4.5' "$top/out" || complain "kv: no mean widths in the JSON document"
try 2 "error: listed.h5: widths that differ by layer or map need per-channel codes" eval listed.h5 --text "$book" --ctx 512 --limit 1 --kv-quant per-token
try 0 "5:5 dither" eval listed.h5 --text "$book" --ctx 512 --limit 1 --kv-bits 5 --kv-quant dither
try 4 "the policy \"a2\" goes by the second map, and the model has one. Give another --kv-policy" eval "plain model" --text "$book" --kv-keep 0.5 --kv-policy a2
try 4 "keys are for 3 layers, and the model has 2. Give --kv-bits" eval "diff model" --text "$book" --kv-bits "3|4|5" --kv-quant per-channel
try 4 "are for two maps, and the model has one. Give --kv-bits one width" eval "$narrow" --text "$book" --kv-bits "3+4:4" --kv-quant per-channel
try 0 "." quantize "diff model" -o alike.h5 --bits 4 --kv-bits "4*|4+4:4|4" --kv-quant per-channel
try 0 "." quantize "diff model" -o plain.h5 --bits 4 --kv-bits 4 --kv-quant per-channel
cmp -s alike.h5 plain.h5 || complain "kv: widths that are alike make another container"
eval_text listed.csv --kv-bits "4,4|4*:4,3|5+3:3|6,2|4" --kv-quant per-channel --kv-recent 16
[ "$(wc -l <listed.csv)" = 4 ] || complain "kv: widths that are alike are a row of their own"
[ "$(column listed.csv 2 kv_widths)" = "3|5+3:3|6" ] || complain "kv: no kv_widths in the CSV"
[ "$(column listed.csv 2 kv_k_bits)$(column listed.csv 2 kv_v_bits)" = 3.54.5 ] || complain "kv: no mean widths in the CSV"
[ "$(column listed.csv 1 kv_bytes_held)" = "$(column listed.csv 2 kv_bytes_held)" ] || complain "kv: a mean of 4 bits holds other bytes than 4 bits"
holds "bytes follow widths" "$(column listed.csv 3 kv_bytes_held) < $(column listed.csv 2 kv_bytes_held)"
try 0 "4:4 bf16 keydiff 0.5 " eval "diff model" --text "$book" --ctx 512 --limit 1 --kv-bits "4|4" --kv-group 16 --kv-keep 0.5 --dry-run
try 0 " 4:4 bf16  *text" eval "diff model" --text "$book" --ctx 512 --limit 1 --kv-bits "4|4" --kv-quant per-token --dry-run
try 0 " 16:16  *text" eval "diff model" --text "$book" --ctx 512 --limit 1 --kv-bits "16|16" --kv-dense-type f16 --dry-run

# ---- caches that differ in the rotation alone are told apart: in the table, JSON, the list of --dry-run, and on the page
for how in on off auto; do try 0 "." quantize "diff model" -o turned-$how.h5 --bits 4 --force --kv-bits 4 --kv-quant per-channel --kv-rotate $how; done
try 0 "^turned-on.h5 .* 4:4 per-channel bf16 rotated " eval turned-on.h5 turned-off.h5 turned-auto.h5 --text "$book" --ctx 512 --limit 1 -o turned.json
grep -q "^turned-off.h5 .* 4:4 per-channel bf16 unrotated " "$top/out" && grep -q "^turned-auto.h5 .* 4:4 per-channel bf16  " "$top/out" ||
    complain "kv: the rotation has no mark: $(cat "$top/out")"
[ "$(tr -d ' \n' <turned.json | grep -o '"rotate":{"k":[a-z]*,"v":[a-z]*}' | sort -u | wc -l)" -ge 3 ] || complain "kv: rotations are alike in the JSON"
try 0 " 16:16 bf16 rotated  *text .* result$" eval "diff model" --text "$book" --ctx 512 --limit 1 --kv-bits 16,4 --kv-rotate on --dry-run
grep -q " 32:32  *text .* reference$" "$top/out" || complain "kv: a rotated cache looks like its reference: $(cat "$top/out")"
rm turned.json turned-*.h5

# ---- a list of codes: each at every width that it has, 16 bits once; the numbers are those of each alone
eval_text codes.csv --kv-bits 16,4,3,8,2 --kv-quant per-token,per-channel,dither --kv-recent 16
grep -q "warning: left out: 3:3 as per-token codes, 2:2 as per-token codes: per-token codes have 16, 8, 6 or 4 bits, those of values 3 and 2 too\$" "$top/err" ||
    complain "codes: not said what is left out: $(cat "$top/err")"
grep -q "warning: left out: 3:3 as dither codes, 2:2 as dither codes: the same as per-channel codes" "$top/err" || complain "codes: not said what is the same: $(cat "$top/err")"
[ "$(grep -c "left out" "$top/err")" = 2 ] || complain "codes: not a warning for each reason: $(cat "$top/err")"
eval_text same.csv --kv-bits 3,4:16 --kv-quant per-channel --kv-recent 16
eval_text code.csv --kv-bits 3,4:16 --kv-quant dither --kv-recent 16
[ "$(column same.csv 1 kld_nats)$(column same.csv 2 kld_nats)" = "$(column code.csv 1 kld_nats)$(column code.csv 2 kld_nats)" ] ||
    complain "codes: what is said to be the same is not"
[ "$(cut -d, -f44- codes.csv | awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next } { printf "%s%s ", $at["kv_k_bits"], $at["kv_quant"] }')" = \
    "16per-token 4per-token 4per-channel 4dither 3per-channel 8per-token 8per-channel 8dither 2per-channel " ] || complain "codes: other rows: $(cat codes.csv)"
n=2
for kind in per-token per-channel dither; do
    eval_text code.csv --kv-bits 4 --kv-quant $kind --kv-recent 16
    [ "$(column code.csv 1 kld_nats)" = "$(column codes.csv $n kld_nats)" ] || complain "codes: $kind is not what it is alone"
    n=$((n + 1))
done
try 0 "16:16 .*" eval "diff model" --text "$book" --ctx 512 --limit 1 --kv-bits 16,4 --kv-quant per-channel,dither --kv-dense-type f16 --dry-run
[ "$(grep -c " 16:16 " "$top/out")" = 1 ] || complain "codes: 16 bits stand more than once"
set -- eval "diff model" --text "$book" --ctx 512 --limit 2 --kv-recent 16 --kv-bits 4 --progress never
"$dq" "$@" --kv-quant per-token,per-channel >/dev/full 2>"$top/err" # nothing is printed, and what was computed stays
anew "$@" --kv-quant per-token,dither --resume
try 0 "4:4 per-channel" "$@" --kv-quant per-token,per-channel --resume --dump-items codes.jsonl
! grep -q "nothing to resume" "$top/err" || complain "codes: what was computed is not taken up"
for kind in per-token per-channel; do
    [ "$(grep -c "\"quant\": \"$kind\"" codes.jsonl)" = 2 ] || complain "codes: not two items of $kind"
done
try 0 "4:4 per-channel" "$@" --kv-quant per-token,per-channel -v
grep -q "kv 4:4 bf16 f32$" "$top/err" && grep -q "kv 4:4 per-channel bf16 f32$" "$top/err" || complain "codes: -v does not say the kernels of each"
try 0 "left out: 3|5+3:3|6 as per-token codes: widths that differ" eval listed.h5 --text "$book" --ctx 512 --limit 1 --kv-quant per-token,per-channel --json # in its warnings
grep -q '"quant": "per-channel"' "$top/out" && ! grep -q '"quant": "per-token"' "$top/out" || complain "codes: a container's widths are not those of per-channel codes"
# they hold as many bits as per-token codes with a scale for 32 channels do, keep what they are when tokens go, and are
# multiplied as they are
eval_text paged.csv --kv-bits 4 --kv-quant per-channel --kv-keep 1,0.5 --kv-policy streaming --kv-recent 16
[ "$(column paged.csv 1 kv_quant)" = per-channel ] || complain "kv: no kv_quant in the CSV"

# ---- a budget by heads: as many tokens as with another, elsewhere; a list that is not of this model is refused
heads="1.1,1.0/0.0,0.1"
eval_text heads.csv --kv-keep 0.5,0.25 --kv-policy keydiff --kv-recent 16 --kv-budget heads --kv-heads "$heads"
eval_text even.csv --kv-keep 0.5,0.25 --kv-policy keydiff --kv-recent 16
eval_text all.csv --kv-keep 0.5,0.25 --kv-policy keydiff --kv-recent 16 --kv-budget heads --kv-heads "0.1,0.0,1.1,1.0/"
eval_text other.csv --kv-keep 0.5,0.25 --kv-policy keydiff --kv-recent 16 --kv-budget heads --kv-heads "0.1,0.0/1.1,1.0"
[ "$(column heads.csv 1 kv_budget)$(column even.csv 1 kv_heads)" = heads ] || complain "kv: no kv_budget or kv_heads in the CSV"
grep -q "\"$heads\"" heads.csv || complain "kv: no kv_heads in the CSV"
for csv in heads all other; do # column cuts at commas
    sed 's/"[^"]*"/list/' $csv.csv >"$top/a" && mv "$top/a" $csv.csv
done
[ "$(column all.csv 2 kld_nats)" = "$(column even.csv 2 kld_nats)" ] || complain "kv: heads that all share are not uniform"
# 512 tokens: a quarter of the first 256 is 64 in each of 4 groups, 20 of them protected: two groups have 44 more, two none
holds "two lists are two results" "$(column heads.csv 2 kld_nats) != $(column other.csv 2 kld_nats) && $(column heads.csv 2 kld_nats) != $(column even.csv 2 kld_nats)"
try 0 "." eval "diff model" --text "$book" --ctx 512 --limit 1 --kv-keep 0.25 --kv-recent 16 --kv-budget heads --kv-heads "$heads" --json
grep -q "\"heads\": \"$heads\"" "$top/out" || complain "kv: no heads in the JSON document"
try 4 "the heads name 3 of the 4 groups of KV heads that the model has (2 layers of 2). Give --kv-heads" eval "diff model" \
    --text "$book" --kv-keep 0.25 --kv-budget heads --kv-heads 1.1,1.0/0.0
try 4 "the heads name group 2.0, and the model has 2 layers of 2 groups" quantize "diff model" -o gone.h5 --bits 4 --kv-keep 0.25 \
    --kv-budget heads --kv-heads 1.1,1.0,0.0,0.1,2.0
absent gone.h5
try 0 "." quantize "diff model" -o heads.h5 --bits 4 --kv-keep 0.25 --kv-policy keydiff --kv-recent 16 --kv-budget heads --kv-heads "$heads"
try 0 "." verify heads.h5 --source "diff model"
try 4 "heads.h5: made from another checkpoint: .*the heads name 4 of the 8 groups of KV heads that the model has (2 layers of 4)$" \
    verify heads.h5 --source "plain model"
try 0 "KV eviction        keydiff, 0.25 of the context stay, budget heads $heads$" info heads.h5
try 0 "\"heads\": \"$heads\"" info heads.h5 --json
try 0 "\"kv_groups\": 2" info heads.h5 --json
try 0 "\"heads\": \"$heads\"" eval heads.h5 --text "$book" --ctx 512 --limit 1 --json
try 0 '"heads": "0.0,1.1,1.0,0.1"' eval heads.h5 --text "$book" --ctx 512 --limit 1 --kv-heads 0.0,1.1,1.0,0.1 --json
try 0 '"heads": null' eval heads.h5 --text "$book" --ctx 512 --limit 1 --kv-budget uniform --json
try 0 '"budget": "heads"' logits heads.h5 --text "short text" -o heads.logits.h5 --prefix 60 --kv-tokens 30 --json

# ---- 16 bits are two bytes, of the type that the model has; without a KV option nothing is rounded
# shellcheck disable=SC2086 # options
rows_of() { try 0 "$1" eval "$2" --text "$book" --ctx 256 --limit 1 --progress never --dry-run $3; } # PATTERN MODEL OPTIONS
try 0 "." quantize "diff model" -o half.h5 --bits 4 --embed-bits 16 --dense-type f16
try 0 "." quantize "diff model" -o normed.h5 --bits 4 --embed-bits 4 # the last norm is bf16
try 0 "." quantize "diff model" -o stored.h5 --bits 4 --kv-bits 8 --kv-dense-type f32
try 0 "\"32:32\"" eval half.h5 --text "$book" --ctx 256 --limit 1 --json
rows_of " 16:16  *text" half.h5 "--kv-bits 16"
rows_of " 4:4 per-channel  *text" half.h5 "--kv-bits 4"
rows_of " 4:4 per-channel f32  *text" half.h5 "--kv-bits 4 --kv-dense-type f32"
rows_of " 32:4 per-channel f32  *text" half.h5 "--kv-bits 32:4"
rows_of " 16:16 bf16  *text" normed.h5 "--kv-bits 16"
rows_of " 16:16 bf16 keydiff 0.5  *text" "diff model" "--kv-keep 0.5"
rows_of " 32:32 keydiff 0.5  *text" "diff model" "--kv-keep 0.5 --kv-bits 32"
rows_of " 8:8 per-channel f32  *text" stored.h5 ""               # as it says
rows_of " 8:8 f32 keydiff 0.5  *text" stored.h5 "--kv-keep 0.5"  # still
rows_of " 8:8 per-channel bf16  *text" stored.h5 "--kv-bits 8"   # what is asked for here
try 0 '"saves_nothing": true' eval half.h5 --text "$book" --ctx 256 --limit 1 --kv-bits 16 --json
try 0 "1.02[0-9]*, saves nothing .*\|From 1 on a cache saves nothing at this context" eval half.h5 --text "$book" --ctx 256 --limit 1 --kv-bits 16
try 0 '"saves_nothing": false' eval half.h5 --text "$book" --ctx 512 --limit 1 --kv-bits 4 --json
grep -q '"dense_type": "f16"' "$top/out" || complain "kv: the JSON does not say what is held"
rm half.h5 normed.h5 stored.h5

# ---- a size: widths and a share that hold no more, as measured; the same as by hand
try 2 "kv-size 0.125: for contexts of how many tokens? Say it: --kv-size 0.125@2048" eval "diff model" --task mc --data choices.jsonl --kv-size 1/8
try 2 "for contexts of how many tokens" logits "diff model" --ids "1 2 3" -o gone.h5 --kv-size 1/8
try 2 "for contexts of how many tokens" quantize "diff model" -o gone.h5 --bits 4 --kv-size 1/8
try 0 "^KV size 0.25 of 256 tokens: --kv-bits 4 --kv-keep 0.[0-9]* --kv-recent 0, at most 0.2[0-9]* of 16 bits" \
    eval "plain model" --text "$book" --ctx 512 --limit 1 --progress never --kv-size 1/2,1/4 --csv sized.csv -o sized.json
for row in 1 2; do
    holds "a size is not exceeded" "$(column sized.csv $row kv_bytes_held) <= 2 ^ -$row * $(column sized.csv $row kv_baseline_bytes)"
    holds "a size is made use of" "$(column sized.csv $row kv_bytes_held) >= 0.8 * 2 ^ -$row * $(column sized.csv $row kv_baseline_bytes)"
done
grep -q '"share_at_most": 0.2[0-9]' sized.json || complain "kv: the JSON does not say what a size comes to"
by_hand=$(sed -n 's/^KV size 0.25 of 256 tokens: \(.*\), at most.*/\1/p' "$top/out")
# shellcheck disable=SC2086 # options
try 0 "." eval "plain model" --text "$book" --ctx 512 --limit 1 --progress never $by_hand --csv hand.csv
[ "$(column hand.csv 1 kld_nats)$(column hand.csv 1 kv_bytes_held)" = "$(column sized.csv 2 kld_nats)$(column sized.csv 2 kv_bytes_held)" ] ||
    complain "kv: a size is not what it says that it is"
# the same settings hold other shares of models of another shape
try 0 "." eval "diff model" "plain model" --text "$book" --ctx 512 --limit 1 --progress never --kv-size 0.9
[ "$(grep -c "^KV size 0.9 of 256 tokens: --kv-bits 8, at most 0.[67]" "$top/out")" = 2 ] || complain "kv: a share of one model stands for another's"
try 0 "KV size  *0.5 of 512 tokens: --kv-bits 8" quantize "diff model" -o sized.h5 --bits 4 --kv-size 1/2@512
try 0 "K 8 bits, V 8 bits.*, uncoded tokens in bf16" info sized.h5
try 0 '"effective": ' logits "diff model" --text "short text" -o sized-logits.h5 --prefix 100 --kv-size 0.8 --json
grep -q "KV size 0.8 of 100 tokens: --kv-bits" "$top/err" || complain "kv: dq logits does not say what a size comes to"
rm sized.h5 sized-logits.h5 sized.json

# ---- what is not coded in two bytes
eval_text full.csv --kv-keep 1 --kv-bits 32,32:4 --kv-recent 16 # the policy makes 32:32 count its bytes
eval_text dense.csv --kv-dense-type f16 --kv-bits 16,16:4 --kv-recent 16
eval_text dense2.csv --kv-bits 16,16:4 --kv-recent 16 # the models are bf16
[ "$(column dense.csv 1 kv_dense_type)$(column dense2.csv 2 kv_dense_type)$(column full.csv 1 kv_dense_type)" = f16bf16f32 ] ||
    complain "kv: no kv_dense_type in the CSV"
holds "two bytes are half" "$(column dense.csv 1 kv_bytes_held) < 0.52 * $(column full.csv 1 kv_bytes_held)"
holds "sinks and recent tokens shrink" "$(column dense.csv 2 kv_bytes_held) < $(column full.csv 2 kv_bytes_held)"
holds "f16 and bf16 hold as much" "$(column dense.csv 1 kv_bytes_held) == $(column dense2.csv 1 kv_bytes_held)"
holds "f16 is rounded" "$(column dense.csv 1 kld_nats) > 0"
holds "bf16 is coarser" "$(column dense2.csv 1 kld_nats) > $(column dense.csv 1 kld_nats)"
try 0 "." quantize "diff model" -o dense.h5 --bits 4 --kv-bits 8 --kv-dense-type bf16
try 0 "." verify dense.h5 --source "diff model"
try 0 "K 8 bits, V 8 bits.*, uncoded tokens in bf16" info dense.h5
try 0 '"dense_type": "bf16"' info dense.h5 --json
try 0 "8:8 per-channel bf16" eval dense.h5 --text "$book" --ctx 512 --limit 1
try 0 "8:8 per-channel  " eval dense.h5 --text "$book" --ctx 512 --limit 1 --kv-dense-type f16
try 0 "." quantize "diff model" -o plain.h5 --bits 4 --force --kv-bits 8 --kv-dense-type bf16
try 0 "." quantize "diff model" -o usual.h5 --bits 4 --force --kv-bits 8
cmp -s plain.h5 usual.h5 || complain "kv: what auto stands for makes another container"
try 0 '"dense_type": "f16"' logits "diff model" --text "short text" -o dense.logits.h5 --kv-dense-type f16 --json
once=$(grep logits_sha256 "$top/out")
try 0 '"passes": "context+rest"' logits "diff model" --text "short text" -o dense.logits.h5 --kv-dense-type f16 --json --prefix 90 --force
[ "$(grep logits_sha256 "$top/out")" = "$once" ] || complain "kv: chunks show in a cache of two bytes"

# ---- integers
try 0 "packed" quantize "diff model" -o whole.h5 --force --bits 8 --embed-bits 16
try 4 "16-bit keys.*Add --kv-bits 8" logits whole.h5 --ids "1 2 3" -o gone.h5 --math int8
try 4 "8-bit keys and 16-bit values" logits whole.h5 --ids "1 2 3" -o gone.h5 --math int8 --kv-bits 8:16
try 4 "not packed" eval "diff model" --text "$book" --math int8 --kv-bits 8
try 4 "16-bit keys" eval whole.h5 --text "$book" --ctx 512 --limit 1 --math int8
try 4 "16-bit keys" eval whole.h5 --text "$book" --ctx 512 --limit 1 --math int8 --kv-bits 8,16
absent gone.h5
try 0 '"qk": "int8"' logits whole.h5 --text "short text" -o int8.h5 --math int8 --kv-bits 8 --json
once=$(grep logits_sha256 "$top/out")
for word in linear pv kv; do
    grep -q "\"$word\": \"int8\"" "$top/out" || complain "int8: math.$word is not named"
done
try 0 '"qk": "int8"' logits whole.h5 --text "short text" -o int8.h5 --force --math int8 --kv-bits 8 --json --prefix 90 \
    --threads 1
[ "$(grep logits_sha256 "$top/out")" = "$once" ] || complain "int8: passes or threads show in the logits"
export DQ_CPU=avx2
try 0 '"qk": "int8"' logits whole.h5 --text "short text" -o int8.h5 --force --math int8 --kv-bits 8 --json
unset DQ_CPU
[ "$(grep logits_sha256 "$top/out")" = "$once" ] || complain "int8: instructions show in the logits"
try 0 '"qk": "int8"' logits whole.h5 --text "short text" -o int8.h5 --force --math int8 --kv-bits 8:4 --logit-bits 6 --json
for math in f32 int8; do
    try 0 "whole.h5" eval whole.h5 --text "$book" --ctx 512 --limit 2 --progress never --math $math \
        --kv-bits 8,6,4:4 --csv $math.csv
done
for row in 1 2 3; do
    a=$(column f32.csv $row nll_nats) b=$(column int8.csv $row nll_nats)
    holds "int8 is near f32" "$b - $a < 0.1 && $a - $b < 0.1"
done
holds "int8 differs" "$(column f32.csv 1 nll_nats) != $(column int8.csv 1 nll_nats)"
try 0 "whole.h5" eval whole.h5 --ref whole.h5 --text "$book" --ctx 512 --limit 1 --math int8 --kv-bits 8 -v
grep -q "arithmetic: linear int8, qk int8, pv int8, kv int8" "$top/err" || complain "eval: -v does not say which arithmetic ran"
grep -q "whole.h5: layers 0-1: linear prepacked_int8 int8 (8 bits.*; attention attend_int8; kv 8:8 per-channel bf16 int8$" "$top/err" ||
    complain "eval: -v does not say which kernels run: $(grep layer "$top/err")"
grep -q "whole.h5: layers 0-1: linear prepacked f32 (8 bits.*; attention attend; kv 32:32 f32$" "$top/err" ||
    complain "eval: -v does not say which kernels the reference runs: $(grep layer "$top/err")"
for _ in $(seq 30); do cat "$book"; done >long.txt # so much that its time is taken
try 0 "rows: 1, tokens: 5[0-9]*, about [0-9]" eval whole.h5 --text long.txt --ctx 512 --math int8 --kv-bits 8 --dry-run
try 0 "packed" quantize "$repo/calib/pair/llama" -o mixed.h5 --bits 4 --skip "layers[.]1[.].*k_proj" --force
try 0 "mixed-logits.h5" logits mixed.h5 --text "short text" -o mixed-logits.h5 --force -v
grep -q "mixed.h5: layer 0: linear prepacked f32 (4 bits.* of q k v o " "$top/err" && grep -q "mixed.h5: layer 1: linear prepacked f32 (4 bits.* of q v o .*, gemm f32 (BF16) of k, " "$top/err" ||
    complain "logits: -v does not tell layers apart: $(grep layer "$top/err")"
try 0 "packed" quantize "$repo/calib/longpair/diffllama-0" -o long.h5 --bits 8
try 0 '"pv": "int8"' eval long.h5 --task mc --data "$repo/calib/longpair/needles.jsonl" --limit 4 --math int8 --kv-bits 8 --json
grep -q '"acc": {"value": 1.0' "$top/out" || grep -A1 '"acc": {' "$top/out" | grep -q '"value": 1.0' || complain "int8: needles are lost"
