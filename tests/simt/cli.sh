#!/bin/sh
# cli.sh: dq with the simulated device: the same numbers as on the CPU, and what it refuses.
#   sh tests/simt/cli.sh SIMT_DQ REPOSITORY
# Prints one line per failed check; exits 1 if there was one.
set -u
LC_ALL=C GOMP_SPINCOUNT=0
export LC_ALL GOMP_SPINCOUNT
unset DQ_CPU DQ_SIMT_SCHEDULE DQ_SIMT_SEED
[ $# -eq 2 ] || {
    echo "usage: cli.sh SIMT_DQ REPOSITORY" >&2
    exit 2
}
dq=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
pair=$(cd "$2" && pwd)/calib/pair
top=$(mktemp -d) || exit 1
trap 'rm -rf "$top"' EXIT
cd "$top" || exit 1
bad=0

complain() {
    echo "simt_cli: $*"
    bad=1
}

# refused STATUS PATTERN COMMAND...: one line of error with the pattern beside warnings, nothing on stdout.
refused() {
    want=$1 pattern=$2
    shift 2
    "$dq" "$@" >out 2>err </dev/null
    got=$?
    [ $got -eq "$want" ] || complain "dq $*: expected status $want, found $got: $(head -c 300 err)"
    [ ! -s out ] || complain "dq $*: failed, but printed on stdout"
    [ "$(grep -vc ': warning: ' err)" -eq 1 ] || complain "dq $*: not one line of error: $(cat err)"
    grep -q -e "$pattern" err || complain "dq $*: \"$pattern\" is not in: $(cat err)"
}

# on DEVICE CSV COMMAND...: dq eval there; its table as CSV.
on() {
    device=$1 csv=$2
    shift 2
    "$dq" eval "$@" --device "$device" --csv "$csv" --force -q >out 2>err </dev/null && return 0
    complain "dq eval $* --device $device: $(head -c 300 err)"
    return 1
}

# alike A B TOLERANCE: two tables of the same rows; settings, counts and accuracies are the same, NLLs differ by
# at most TOLERANCE. Prints what is wrong.
alike() {
    awk -F , -v tolerance="$3" '
        NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
        FNR == 1 { next }
        {
            row = $column["model"] " " $column["logit_bits"] " " $column["logit_granularity"] " " $column["task"]
            value = $column["nll_nats"]
            rest = $column["n"] " " $column["acc"] " " $column["acc_norm"]
        }
        NR == FNR { nll[row] = value; same[row] = rest; rows++; next }
        {
            seen++
            d = value - nll[row]
            if (!(row in nll) || same[row] != rest)
                print row ": expected " same[row] ", found " rest
            else if (!(d <= tolerance + 0 && -d <= tolerance + 0))
                print row ": NLL expected " nll[row] ", found " value
        }
        END { if (!rows || seen != rows) print seen + 0 " rows, expected " rows + 0 }' "$1" "$2"
}

# both COMMAND...: the CPU's table on the simulated device.
both() {
    on cpu cpu.csv "$@" && on cuda cuda.csv "$@" || return
    wrong=$(alike cpu.csv cuda.csv 1e-5)
    [ -z "$wrong" ] || complain "dq eval $*: $wrong"
}

"$dq" doctor >out 2>err || complain "doctor: $(cat err)"
grep -q '^  cuda  *cuda:0, simulated' out || complain "doctor does not name the simulated device: $(tail -n 3 out)"
grep -q '^  cublas  *simulated, version unknown$' out || complain "doctor does not name cuBLAS: $(tail -n 3 out)"
grep -q '^  products  *cublasLtMatmul; of 4 shapes tried, 4 give' out || complain "doctor does not say what multiplies: $(tail -n 3 out)"

for m in llama diffllama; do
    "$dq" quantize "$pair/$m" -o $m.h5 --bits 8 --embed-bits 16 -q >out 2>err || complain "quantize $m: $(cat err)"
    "$dq" quantize "$pair/$m" -o $m-4.h5 --bits 4 --scale search --embed-bits 16 -q >out 2>err || complain "quantize $m: $(cat err)"
    "$dq" quantize "$pair/$m" -o $m-whole.h5 --bits 4 --scale search --embed-bits 6 --bits-map 'down=8/32/asym' \
        --dense-type f16 -q >out 2>err || complain "quantize $m: $(cat err)"
    # as --preset small makes it: codes of a trellis everywhere, in the tied embedding too
    "$dq" quantize "$pair/$m" -o $m-small.h5 --preset small --calib "$pair/text.txt" --calib-tokens 1024 -q >out 2>err ||
        complain "quantize $m: $(cat err)"
done
choices="--task mc --data $pair/choices.jsonl"
text="--text $pair/text.txt --ctx 64 --limit 1"

# Weights packed and not, logits rounded and not, the cache in codes, tokens evicted.
for m in llama diffllama; do
    # shellcheck disable=SC2086 # words
    {
        both "$pair/$m" $m.h5 $m-4.h5 $choices --limit 2
        both "$pair/$m" $m.h5 $text --logit-bits 16,6
        both $m.h5 $text --logit-bits 6 --logit-granularity per-head,per-row,per-tile
        both "$pair/$m" $m-whole.h5 $text
        both "$pair/$m" $m-small.h5 $text
        for kv in "--kv-bits 8 --kv-quant per-token --kv-recent 16" "--kv-bits 4:3 --kv-quant per-token --kv-recent 16" \
            "--kv-keep 0.5 --kv-policy h2o --kv-recent 8 --kv-every 8" \
            "--kv-keep 0.5 --kv-recent 8 --kv-policy knorm --kv-bits 8"; do
            both $m.h5 $text $kv
        done
        both $m.h5 $choices --limit 1 --kv-bits 8 --kv-recent 16 --kv-keep 0.5 --kv-policy h2o
    }
done
# shellcheck disable=SC2086
both diffllama.h5 $text --kv-keep 0.5 --kv-recent 8 --kv-policy diff --kv-budget adaptive

# Largest values of the tables; single places may change order where values are equal but for rounding.
for d in cpu cuda; do
    for m in llama diffllama; do
        "$dq" stats "$pair/$m" --ids "0 17 44 8 90 3 5 17 44 8" --detail maps --device $d --json -q >$d-$m.json 2>err ||
            complain "stats $m --device $d: $(cat err)"
    done
done
for m in llama diffllama; do
    wrong=$(awk '
        !/"(n|top[0-9]+|median|magnitude|n_not_finite)": [0-9]/ { next }
        { gsub(/[",:]/, "") }
        NR == FNR { name[++n] = $1; value[n] = $2; next }
        {
            d = $2 - value[++k]
            limit = 2e-5 * value[k]
            if ($1 != name[k] || d > limit || -d > limit) print name[k], value[k] ", found", $1, $2
        }
        END { if (n < 20 || n != k) print n + 0, "and", k + 0, "values" }' cpu-$m.json cuda-$m.json)
    [ -z "$wrong" ] || complain "stats $m: $wrong"
done

# Other arithmetics are near f32, but not f32, whatever the cache; of 96 positions a page is read as codes.
for m in llama diffllama; do
    for kv in "8 --kv-quant per-token --kv-recent 16" "16 --kv-dense-type f16" "4:16 --kv-quant dither --kv-dense-type bf16 --kv-recent 8"; do
        # shellcheck disable=SC2086
        on cpu cpu.csv $m.h5 --text "$pair/text.txt" --ctx 96 --limit 1 --kv-bits $kv
        for math in bf16 int8; do
            # shellcheck disable=SC2086
            on cuda cuda.csv $m.h5 --text "$pair/text.txt" --ctx 96 --limit 1 --kv-bits $kv --math $math || continue
            wrong=$(alike cpu.csv cuda.csv 0.02)
            [ -z "$wrong" ] || complain "$m in $math with --kv-bits $kv: $wrong"
            [ -n "$(alike cpu.csv cuda.csv 1e-6)" ] || complain "$m in $math with --kv-bits $kv: the numbers are those of f32"
            grep -q ",$math,f16,f16,$math," cuda.csv || complain "$m with --kv-bits $kv: the table does not say that $math and f16 ran"
        done
    done
done
# shellcheck disable=SC2086
refused 2 "math: expected one of f32, bf16, int8; found \"f16\"" eval llama.h5 $text --math f16 --device cuda
# shellcheck disable=SC2086
refused 4 "rounding of logits by tiles" eval llama.h5 $text --kv-bits 8 --kv-recent 16 --math int8 --device cuda \
    --logit-bits 6 --logit-granularity per-tile

# 192 positions: two pages are read as codes. What is not coded is f32: of keys that differ by 1e-6 some round to
# another bf16.
pages="--text $pair/text.txt --ctx 192 --limit 1 --kv-recent 8 --kv-dense-type f32"
for kv in "4 --kv-quant per-channel" "4:3 --kv-quant dither --kv-keep 0.5" "3|5+3:5|4 --kv-quant dither" \
    "4:3 --kv-quant mixed" "3|5+3:5|4 --kv-quant mixed --kv-group 8 --kv-keep 0.5"; do
    # shellcheck disable=SC2086
    both diffllama.h5 $pages --kv-bits $kv
    cp cuda.csv f32.csv
    # int8: linear layers are the CPU's, attention is in f16
    # shellcheck disable=SC2086
    on cpu cpu.csv diffllama.h5 $pages --kv-bits $kv --math int8 &&
        on cuda cuda.csv diffllama.h5 $pages --kv-bits $kv --math int8 || continue
    wrong=$(alike cpu.csv cuda.csv 0.02)
    [ -z "$wrong" ] || complain "int8 with --kv-bits $kv: $wrong"
    [ -n "$(alike f32.csv cuda.csv 1e-6)" ] || complain "int8 with --kv-bits $kv: the numbers are those of f32"
    grep -q ",int8,int8,int8,int8," cpu.csv || complain "--kv-bits $kv: the table does not say that int8 ran"
    grep -q ",int8,f16,f16,int8," cuda.csv || complain "--kv-bits $kv: the table does not say that f16 ran"
done
# shellcheck disable=SC2086
{
    both diffllama.h5 $pages --kv-bits 4:3 --kv-quant mixed
    on cuda cuda.csv diffllama.h5 $pages --kv-bits 4:3 --kv-quant mixed --math bf16
    wrong=$(alike cpu.csv cuda.csv 0.02)
    [ -z "$wrong" ] || complain "bf16 with mixed codes: $wrong"
    [ -n "$(alike cpu.csv cuda.csv 1e-6)" ] || complain "bf16 with mixed codes: the numbers are those of f32"
}
# shellcheck disable=SC2086
refused 4 "math int8 on the cpu backend needs a packed KV cache, .* Add --kv-bits 8" eval llama.h5 $text --kv-bits 16 --math int8
for kv in "16 --kv-dense-type f16" "4 --kv-quant per-token --kv-dense-type bf16 --kv-recent 8"; do
    # shellcheck disable=SC2086
    both diffllama.h5 $text --kv-bits $kv
done
# the usual policy is that of every device; one that reads again is not there
# shellcheck disable=SC2086
both diffllama.h5 $text --kv-keep 0.5 --kv-recent 8
grep -q ',keydiff,' cuda.csv || complain "eval on cuda: another policy stands in for keydiff"
# shellcheck disable=SC2086
both diffllama.h5 $text --kv-keep 0.5 --kv-recent 8 --kv-policy leverage --kv-bits 8
# shellcheck disable=SC2086
refused 4 "the policy kvzip is not on the cuda backend. Use --device cpu, or --kv-policy keydiff" eval llama.h5 $text --kv-keep 0.5 \
    --kv-policy kvzip --device cuda

refused 4 "shares of what the processor reads" bench decode "$pair/llama" --new-tokens 1 --device cuda

# -v names the kernels of every layer, of layers that run alike once.
# says PATTERN...: each is in what the last command said.
says() {
    for pattern in "$@"; do
        grep -q -e "$pattern" err || complain "-v does not say \"$pattern\": $(grep layer err)"
    done
}
"$dq" quantize "$pair/llama" -o mixed.h5 --bits 8 --embed-bits 16 --skip 'layers[.]1[.].*k_proj' -q >out 2>err || complain "quantize: $(cat err)"
# shellcheck disable=SC2086
"$dq" eval llama.h5 --ref llama.h5 $text --kv-bits 8 --kv-quant per-token --math int8 --device cuda -v >out 2>err || complain "eval -v: $(cat err)"
says "arithmetic: linear int8, qk f16, pv f16, kv int8$" \
    "llama.h5: layers 0-1: linear gemm_packed int8 (8 bits, row) of q k v o gate up, gemm_packed int8 (8 bits, group 128) of down; attention unfold + attend in f16; kv 8:8 bf16 int8$" \
    "llama.h5: layers 0-1: linear widen + cublas f32 .*; attention scores + softmax + values; kv 32:32 f32$"
# shellcheck disable=SC2086
"$dq" eval llama.h5 $text --kv-bits 8 --math int8 --device cuda -v >out 2>err || complain "eval -v: $(cat err)"
says "attention unfold + attend in f16; kv 8:8 mixed bf16 int8$"
# shellcheck disable=SC2086
"$dq" eval llama.h5 $text --kv-bits 4:3 --kv-quant mixed --math int8 --device cuda -v >out 2>err || complain "eval -v: $(cat err)"
says "attention unfold + attend in f16; kv 4:3 mixed bf16 int8$"
# shellcheck disable=SC2086
"$dq" eval mixed.h5 $text --math bf16 --device cuda -v >out 2>err || complain "eval -v: $(cat err)"
says "mixed.h5: layer 0: linear widen + cublas bf16 .* of q k v o gate up, .*; attention unfold + attend in f16; kv 32:32 bf16$" \
    "mixed.h5: layer 1: linear widen + cublas bf16 .* of q v o gate up, cublas bf16 (BF16) of k, "

# A device that is too small says how much was asked, how much is free, and what fits; and that does fit.
long="eval $pair/llama --text $pair/text.txt --limit 1 --device cuda"
export DQ_SIMT_MEMORY=5
# shellcheck disable=SC2086
refused 5 "out of memory ([0-9.]* MiB needed, [0-9.]* MiB of 5.00 MiB free). Use --device cpu, or passes of fewer rows: of 512, [0-9]* fit, [0-9]* with --kv-bits 8 (--ctx [0-9]* for a text)$" \
    $long --ctx 512
fits=$(sed 's/.*(--ctx \([0-9]*\) .*/\1/' err)
[ "$fits" -ge 256 ] || complain "only $fits rows of 512 fit into 5 MiB"
# shellcheck disable=SC2086
"$dq" $long --ctx "$fits" -q >out 2>err || complain "--ctx $fits was said to fit: $(cat err)"
DQ_SIMT_MEMORY=1
# shellcheck disable=SC2086
refused 5 "out of memory .*, or fewer bits: no row of a pass fits beside the model$" $long --ctx 64
DQ_SIMT_MEMORY=0.7
# shellcheck disable=SC2086
refused 5 "out of memory .*, or, as the weights of llama are 0.9 MiB, dq quantize --bits 8, which fits$" $long --ctx 64
DQ_SIMT_MEMORY=0.25
# shellcheck disable=SC2086
refused 5 "out of memory .*, dq quantize --bits 3 --embed-bits 3 --head-bits 3, which fits$" $long --ctx 64
DQ_SIMT_MEMORY=0.125
# shellcheck disable=SC2086
refused 5 "out of memory .*: the weights of llama, 0.9 MiB, do not fit at 2 bits either$" $long --ctx 64
# Many windows in a pass become fewer where memory is short.
DQ_SIMT_MEMORY=4
on cuda cuda.csv "$pair/llama" --text "$pair/text.txt" --ctx 64 --limit 8
unset DQ_SIMT_MEMORY
on cuda all.csv "$pair/llama" --text "$pair/text.txt" --ctx 64 --limit 8
cut -d, -f1-14 cuda.csv >a.csv
cut -d, -f1-14 all.csv >b.csv
cmp -s a.csv b.csv || complain "the size of passes shows in a result: $(cat a.csv b.csv)"

# No such device: one line, before any work.
# shellcheck disable=SC2086
for d in cuda:1 cuda:7; do
    refused 5 "device $d does not exist (expected cuda:0 to cuda:0)" eval llama.h5 $text --device $d
done
refused 2 "unknown device" eval llama.h5 --text "$pair/text.txt" --device cuda:x
exit $bad
