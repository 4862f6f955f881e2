# pair.sh: the embedded models do what their README says; sourced by run.sh.

pair=$repo/calib/pair
try 0 planted eval "$pair/llama" "$pair/diffllama" "$pair/planted" --task mc \
    --data "$pair/choices.jsonl" --limit 60 --logit-bits 16,6 --logit-granularity per-tensor,per-row \
    --csv pair.csv --progress never
for model in llama diffllama planted; do
    holds "$model answers at 16 bits" "$(field pair.csv $model 16 per-row acc) >= 0.9"
    holds "$model survives 6 bits per row" "$(field pair.csv $model 6 per-row acc) >= 0.9"
done
for model in llama diffllama; do
    holds "$model survives 6 bits per layer" "$(field pair.csv $model 6 per-tensor acc) >= 0.9"
done
holds "the planted model collapses at 6 bits per layer" \
    "$(field pair.csv planted 6 per-tensor acc) <= 0.6"

# every accuracy can be worked out again from the items
try 0 planted eval "$pair/diffllama" "$pair/planted" --task mc --data "$pair/choices.jsonl" --limit 50 \
    --logit-bits 16,4,3 --logit-granularity per-tensor,per-row --csv items.csv --dump-items items.jsonl --progress never
for model in diffllama planted; do
    for metric in acc acc_norm; do
        again items.jsonl items.csv $model 16 per-tensor $metric
        for bits in 4 3; do
            for granularity in per-tensor per-row; do again items.jsonl items.csv $model $bits $granularity $metric; done
        done
    done
done
[ "$(grep -c '"math": "f32", .*"shots": 0, "gold": ' items.jsonl)" = "$(grep -c . items.jsonl)" ] ||
    complain "--dump-items: lines without math, shots or gold"
rm items.jsonl items.csv

# zero points: nearer to the model than absmax at 3 bits, in f32 and in integers, for a tenth of a bit
for mode in absmax asym; do
    try 0 "3\\.[12][0-9]* in packed" quantize "$pair/llama" -o $mode.h5 --bits 3 --embed-bits 16 --scale $mode
    try 0 "every dataset and attribute as written" verify $mode.h5 --source "$pair/llama"
done
try 0 "3 bits, group 128, asym scales" info asym.h5
try 0 '"encoding": "zero"' info asym.h5 --tensors --json
try 2 "search, asym, trellis; found \"zero\"" quantize "$pair/llama" -o gone.h5 --scale zero
for math in f32 int8; do
    [ $math = f32 ] && kv="" || kv="--kv-bits 8"
    # shellcheck disable=SC2086
    try 0 "asym.h5" eval absmax.h5 asym.h5 --ref "$pair/llama" --text "$pair/text.txt" --ctx 192 --limit 10 --csv $math.csv \
        --math $math $kv --progress never
    holds "zero points help at 3 bits in $math" \
        "$(field $math.csv asym.h5 16 per-tensor kld_nats) < 0.9 * $(field $math.csv absmax.h5 16 per-tensor kld_nats)"
done
rm absmax.h5 asym.h5 f32.csv int8.csv
