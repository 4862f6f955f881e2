#!/bin/sh
# run.sh OUT [SEED...]: is the difference map a better guide to what may be forgotten?
# For the long pair of every seed: score maps x kept share x KV bits, scored on needles whose question comes
# after the cut (recall), on needles whose question stands on both sides of it (asked), and on the second half
# of windows (NLL, KLD); maps summed over the last rows only; then widths without eviction. Needs build/dq; with python3,
# summary.py makes tables, with gnuplot pictures. Finished parts are kept: running it again goes on where it
# stopped. 16 recent tokens are kept unquantized, not 64: of prefixes of 512 and 1000 tokens a sixteenth must stay
# large enough for a policy to have a choice.
#   DQ_KV_ITEMS, DQ_KV_WINDOWS   items and windows per model (default all: 256, 72)
#   DQ_KV_KINDS                  default "diffllama llama"
#   DQ                           the program (default build/dq)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
dq=${DQ:-$root/build/dq}
[ $# -ge 1 ] || { sed -n 's/^# //p' "$0" | head -11 >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- 0 1 2
items=${DQ_KV_ITEMS:-256} windows=${DQ_KV_WINDOWS:-72}
pair=$root/calib/longpair
policies=streaming,h2o,snapkv,knorm,random,diff,loo,a1,a2,sum
maps=a1,a2,sum,diff,loo
keeps=0.5,0.25,0.125,0.0625

part() { # part NAME ARGUMENTS of dq eval
    name=$1
    shift
    [ -s "$out/$name.json" ] && return 0
    printf '%s\n' "$name" >&2
    case "$*" in
    *--task*)
        # what each item got, without its text: summary.py pairs the policies over items
        "$dq" eval "$@" --kv-recent 16 -q --force -o "$out/$name.json.new" --dump-items "$out/$name.dump" >/dev/null
        sed 's/"context": ".*", "continuation": /"continuation": /' "$out/$name.dump" | gzip >"$out/$name.items.gz"
        rm "$out/$name.dump"
        ;;
    *) "$dq" eval "$@" --kv-recent 16 -q --force -o "$out/$name.json.new" >/dev/null ;;
    esac
    mv "$out/$name.json.new" "$out/$name.json"
}

for seed in "$@"; do
    for kind in ${DQ_KV_KINDS:-diffllama llama}; do
        model=$pair/$kind-$seed
        [ -d "$model" ] || { printf '%s is not here; see calib/longpair/README.md\n' "$model" >&2; continue; }
        for bits in 16 4:4; do
            tag=$kind-$seed-$(printf %s "$bits" | tr : x)
            part "$tag-recall" "$model" --task mc --data "$pair/needles-blind.jsonl" --limit "$items" \
                --kv-bits $bits --kv-policy $policies --kv-keep $keeps
            part "$tag-text" "$model" --text "$pair/text.txt" --ctx 1024 --limit "$windows" \
                --kv-bits $bits --kv-policy $policies --kv-keep $keeps
        done
        # the maps over the last 64 rows only, as snapkv has them
        part "$kind-$seed-last-recall" "$model" --task mc --data "$pair/needles-blind.jsonl" --limit "$items" \
            --kv-policy $maps --kv-window 64 --kv-keep 0.5,0.25
        part "$kind-$seed-asked" "$model" --task mc --data "$pair/needles-asked.jsonl" --limit "$items" \
            --kv-policy $policies --kv-keep 0.25,0.0625
        part "$kind-$seed-last-asked" "$model" --task mc --data "$pair/needles-asked.jsonl" --limit "$items" \
            --kv-policy $maps --kv-window 64 --kv-keep 0.25,0.125,0.0625
        part "$kind-$seed-4x4-asked" "$model" --task mc --data "$pair/needles-asked.jsonl" --limit "$items" \
            --kv-bits 4:4 --kv-policy $policies --kv-keep 0.5,0.25
        part "$kind-$seed-widths-recall" "$model" --task mc --data "$pair/needles-blind.jsonl" --limit "$items" \
            --kv-bits 16,8,6,4,4:3,4:2
        part "$kind-$seed-widths-text" "$model" --text "$pair/text.txt" --ctx 1024 --limit "$windows" \
            --kv-bits 16,8,6,4,4:3,4:2
    done
done
if [ -z "${DQ_KV_KINDS:-}" ] && command -v python3 >/dev/null; then python3 "$here/summary.py" "$out"; fi
