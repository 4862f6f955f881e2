#!/bin/sh
# demo: the main job on the embedded models, from outliers to low-bit scores and a page.
#   sh calib/demo.sh DQ_PROGRAM OUT_FOLDER
# Prints every command before it runs it; leaves tables (CSV), documents (JSON), containers and a page
# (HTML) in OUT_FOLDER.
set -eu
dq=$1
out=$2
pair=calib/pair
llama=$pair/llama diff=$pair/diffllama planted=$pair/planted
items=${DQ_DEMO_ITEMS:-300}
windows=${DQ_DEMO_WINDOWS:-60}
mkdir -p "$out"
began=$(date +%s)
# Waiting threads sleep: on a machine that does other work, spinning would take its processors.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"

run() {
    printf '\n$ %s\n\n' "$*"
    "$@"
}
say() { printf '\n== %s\n' "$*"; }

say "1. Activation outliers, side by side (Table 5 of arXiv 2410.05258, on tiny models)"
run "$dq" stats $llama $diff $planted --text $pair/text.txt --ctx 192 --limit "$windows" \
    --detail table5 --csv "$out/stats.csv" --force
set -- stats $llama $diff $planted --text $pair/text.txt --ctx 192 --limit "$windows" --sensitivity all --sensitivity-windows 16 --json -q
printf '\n$ %s %s >%s\n' "$dq" "$*" "$out/stats.json"
"$dq" "$@" >"$out/stats.json"

say "2. Accuracy, NLL, KLD and top-1 agreement over logit bits, weights as stored"
run "$dq" eval $llama $diff $planted --task mc --data $pair/choices.jsonl --text $pair/text.txt --ctx 192 \
    --limit "$items" --logit-bits 16,8,6,4,3,2 --logit-granularity per-tensor,per-row \
    --csv "$out/logits.csv" -o "$out/logits.json" --force

say "3. Low-bit containers: 8, 6 and 4 bits with searched scales in groups of 128"
files="" documents=""
for model in $llama $diff $planted; do
    name=$(basename "$model")
    files="$files $model"
    for bits in 8 6 4; do
        set -- quantize "$model" -o "$out/$name-w$bits.h5" --bits $bits --group 128 --scale search --embed-bits 16
        printf '\n$ %s %s\n' "$dq" "$*"
        "$dq" "$@" --force -q
        "$dq" "$@" --force -q --json >"$out/$name-w$bits.json"
        files="$files $out/$name-w$bits.h5" documents="$documents $out/$name-w$bits.json"
    done
done
say "4. Accuracy over weight bits"
# shellcheck disable=SC2086
run "$dq" eval $files --task mc --data $pair/choices.jsonl --limit "$items" \
    --csv "$out/weights-accuracy.csv" -o "$out/weights-accuracy.json" --force
say "5. NLL, KLD and top-1 agreement over weight bits"
# shellcheck disable=SC2086
run "$dq" eval $files --text $pair/text.txt --ctx 192 --limit "$windows" \
    --csv "$out/weights-text.csv" -o "$out/weights-text.json" --force

say "6. NLL, KLD and top-1 agreement over the bits of the KV cache"
run "$dq" eval $llama $diff $planted --text $pair/text.txt --ctx 192 --limit "$windows" \
    --kv-bits 16,8,6,4,4:2 --kv-recent 16 --kv-dense-type f16 --csv "$out/cache-text.csv" -o "$out/cache-text.json" --force

say "7. What was made"
# shellcheck disable=SC2012 # names of our own
(cd "$out" && ls -l ./*.h5 | awk '{printf "%9d bytes  %s\n", $5, $NF}')
for model in $llama $diff $planted; do
    wc -c "$model"/model.safetensors | awk '{printf "%9d bytes  %s\n", $1, $2}'
done
cat <<EOF

How to read it. The models are tiny and trained on generated text: outliers of the size that large
models have do not form here, so neither the Llama nor the DiffLlama collapses at 4-bit logits, and
nothing above reproduces Figure 8 of the paper. The planted model is synthetic: the same Llama,
rewritten exactly so that one head's logits are shifted by hundreds. It shows what an outlier does:
with one absmax per layer (tensor) every head loses its resolution; with one per row only the
planted head does.

Try next:
  h5dump -d /index $out/diffllama-w4.h5
  $dq info $out/diffllama-w4.h5 --tensors
  $dq eval $diff $out/diffllama-w4.h5 --text YOUR.txt --ctx 192 --logit-bits 16,8,6,4
EOF

say "8. All of it as one page"
# shellcheck disable=SC2086
run "$dq" report "$out/stats.json" $documents "$out/logits.json" "$out/weights-accuracy.json" \
    "$out/weights-text.json" "$out/cache-text.json" -o "$out/report.html" --force
echo "$out/report.html: the answer first, then outliers, containers and scores, steps 1 to 6; open it in a browser"
echo
echo "demo: done in $(($(date +%s) - began)) s; results in $out"
