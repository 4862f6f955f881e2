#!/bin/sh
# run.sh OUT [SEED...]: is the difference map a better guide to what may be forgotten?
# For the long pair of every seed: score maps x kept share x KV bits, scored on needles whose question comes
# after the cut (recall), on needles whose question the policy has seen, and on the second half of windows
# (NLL, KLD); then widths without eviction. Needs build/dq; with python3, summary.py makes tables, with gnuplot
# pictures. Finished parts are kept: running it again goes on where it stopped.
#   DQ_KV_ITEMS, DQ_KV_WINDOWS   items and windows per model (default all: 256, 72)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
dq=${DQ:-$root/build/dq}
[ $# -ge 1 ] || { sed -n 's/^# //p' "$0" | head -7 >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- 0 1 2
items=${DQ_KV_ITEMS:-256} windows=${DQ_KV_WINDOWS:-72}
pair=$root/calib/longpair
policies=streaming,h2o,snapkv,knorm,random,diff,loo,a1,a2,sum
keeps=0.5,0.25,0.125,0.0625

part() { # part NAME ARGUMENTS of dq eval
    name=$1
    shift
    [ -s "$out/$name.json" ] && return 0
    printf '%s\n' "$name" >&2
    "$dq" eval "$@" -q -o "$out/$name.json.new" >/dev/null
    mv "$out/$name.json.new" "$out/$name.json"
}

for seed in "$@"; do
    for kind in diffllama llama; do
        model=$pair/$kind-$seed
        [ -d "$model" ] || { printf '%s is not here; see calib/longpair/README.md\n' "$model" >&2; continue; }
        for bits in 16 4:4; do
            tag=$kind-$seed-$(printf %s "$bits" | tr : x)
            part "$tag-recall" "$model" --task mc --data "$pair/needles-blind.jsonl" --limit "$items" \
                --kv-bits $bits --kv-policy $policies --kv-keep $keeps
            part "$tag-text" "$model" --text "$pair/text.txt" --ctx 1024 --limit "$windows" \
                --kv-bits $bits --kv-policy $policies --kv-keep $keeps
        done
        part "$kind-$seed-seen" "$model" --task mc --data "$pair/needles.jsonl" --limit "$items" \
            --kv-policy $policies --kv-keep 0.25,0.0625
        part "$kind-$seed-widths-recall" "$model" --task mc --data "$pair/needles-blind.jsonl" --limit "$items" \
            --kv-bits 16,8,6,4,4:3,4:2
        part "$kind-$seed-widths-text" "$model" --text "$pair/text.txt" --ctx 1024 --limit "$windows" \
            --kv-bits 16,8,6,4,4:3,4:2
    done
done
command -v python3 >/dev/null && python3 "$here/summary.py" "$out"
