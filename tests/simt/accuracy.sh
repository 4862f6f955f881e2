#!/bin/sh
# accuracy.sh: what attention on tensor cores costs a differential model: its mean NLL on the simulated device within
# .002 nats of the CPU's, of f32 for bf16, of int8 for int8.
#   sh tests/simt/accuracy.sh SIMT_DQ REPOSITORY
# Prints each difference in nats; exits 1 if one is larger, or if the device was not asked.
set -u
LC_ALL=C GOMP_SPINCOUNT=0
export LC_ALL GOMP_SPINCOUNT
unset DQ_CPU DQ_SIMT_SCHEDULE DQ_SIMT_SEED DQ_SIMT_CAPABILITY DQ_SIMT_WORKERS
[ $# -eq 2 ] || {
    echo "usage: accuracy.sh SIMT_DQ REPOSITORY" >&2
    exit 2
}
dq=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
pair=$(cd "$2" && pwd)/calib/pair
top=$(mktemp -d) || exit 1
trap 'rm -rf "$top"' EXIT
cd "$top" || exit 1
bad=0

# nll DEVICE MATH CACHE: mean NLL of four windows, two pages of each read as codes; 0 if it cannot be told.
nll() {
    # shellcheck disable=SC2086 # words
    "$dq" eval model.h5 --text "$pair/text.txt" --ctx 192 --limit 4 --kv-recent 8 --kv-dense-type f32 --kv-bits $3 --math "$2" \
        --device "$1" --csv rows.csv --force -q >out 2>err </dev/null || cat err >&2
    awk -F , 'NR == 1 { while (++i <= NF && $i != "nll_nats"); next } { x = $i } END { printf "%.9f\n", x }' rows.csv
    rm -f rows.csv
}

# near EXPECTED FOUND WHAT: complains where they differ by more, or not at all.
near() {
    awk -v a="$1" -v b="$2" -v what="$3" 'BEGIN {
        d = b - a
        ok = a > 0 && d && d <= .002 && -d <= .002
        printf "%s: %+.6f of %.6f%s\n", what, d, a, ok ? "" : ": expected another number, off by at most .002"
        exit !ok
    }' || bad=1
}

"$dq" quantize "$pair/diffllama" -o model.h5 --bits 8 --embed-bits 8 -q >out 2>err || cat err
for kv in "8:8" "4:3 --kv-quant mixed" "6:4 --kv-quant dither --kv-keep 0.5" "4:4 --kv-quant per-token"; do
    f32=$(nll cpu f32 "$kv")
    near "$f32" "$(nll cuda bf16 "$kv")" "$kv in bf16"
    near "$(nll cpu int8 "$kv")" "$(nll cuda int8 "$kv")" "$kv in int8"
done
# the kernel of compute capability 9.0; one worker at a time is faster there
near "$f32" "$(DQ_SIMT_CAPABILITY=90 DQ_SIMT_WORKERS=1 nll cuda bf16 "$kv")" "$kv in bf16 by attend_hopper"
exit $bad
