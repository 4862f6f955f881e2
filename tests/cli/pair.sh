# pair.sh: the embedded models do what their README says; sourced by run.sh.

pair=$repo/calib/pair
try 0 planted eval "$pair/llama" "$pair/diffllama" "$pair/planted" --task mc \
    --data "$pair/choices.jsonl" --limit 60 --logit-bits 16,6 --logit-grain tensor,row \
    --csv pair.csv --progress never
for model in llama diffllama planted; do
    holds "$model answers at 16 bits" "$(field pair.csv $model 16 row acc) >= 0.9"
    holds "$model survives 6 bits per row" "$(field pair.csv $model 6 row acc) >= 0.9"
done
for model in llama diffllama; do
    holds "$model survives 6 bits per layer" "$(field pair.csv $model 6 tensor acc) >= 0.9"
done
holds "the planted model collapses at 6 bits per layer" \
    "$(field pair.csv planted 6 tensor acc) <= 0.6"

# every accuracy can be worked out again from the items
try 0 planted eval "$pair/diffllama" "$pair/planted" --task mc --data "$pair/choices.jsonl" --limit 50 \
    --logit-bits 16,4,3 --logit-grain tensor,row --csv items.csv --dump-items items.jsonl --progress never
for model in diffllama planted; do
    for metric in acc acc_norm; do
        again items.jsonl items.csv $model 16 tensor $metric
        for bits in 4 3; do
            for grain in tensor row; do again items.jsonl items.csv $model $bits $grain $metric; done
        done
    done
done
[ "$(grep -c '"math": "f32", .*"shots": 0, "gold": ' items.jsonl)" = "$(grep -c . items.jsonl)" ] ||
    complain "--dump-items: lines without math, shots or gold"
rm items.jsonl items.csv
