#!/bin/sh
# run.sh OUT [SEED...]: what may be evicted of a context, and which bits may hold it?
# For the long pair of every seed: policies x kept share x KV bits, scored on needles whose question comes
# after the cut (recall), on needles whose question stands on both sides of it (asked), and on the second half
# of windows (NLL, KLD); keydiff with a budget by each model's own heads, which dq plan heads finds on the last
# six windows of the text (never scored); codes by token, by page and dithered without eviction; maps summed over
# the last rows only. Needs build/dq and python3; summary.py makes tables, with gnuplot pictures, differences.py
# intervals of differences. Finished parts are kept, and finished rows of a part: running it again goes on where
# it stopped. 16 recent tokens are kept unquantized, not 64: of prefixes of 512 and 1000 tokens a sixteenth must stay
# large enough for a policy to have a choice. A model of one map has no a1, a2, sum and diff: A2 is 0 there, and the
# others are h2o.
#   DQ_KV_ITEMS, DQ_KV_WINDOWS   items and windows per model (default and at most 256 and 66)
#   DQ_KV_KINDS                  default "diffllama llama"
#   DQ_KV_PAIR, DQ_KV_CTX        folder of the models, with text.txt and needles-*.jsonl, and the ids of a window
#                                (default calib/longpair and 1024)
#   DQ_KV_KEEP                   shares kept, for every part (default 0.5,0.25,0.125,0.0625; fewer where asked)
#   DQ_KV_REST                   the other policies (default streaming,snapkv,knorm,random and those of two maps)
#   DQ_KV_PARTS                  which parts, in which order (default all)
#   DQ                           the program (default build/dq)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
dq=${DQ:-$root/build/dq}
[ $# -ge 1 ] || { sed -n 's/^# //p' "$0" | head -18 >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- 0 1 2
items=${DQ_KV_ITEMS:-256} windows=${DQ_KV_WINDOWS:-66}
[ "$windows" -le 66 ] || { echo "run.sh: DQ_KV_WINDOWS is at most 66; the last six of 72 windows are for heads" >&2; exit 2; }
case $dq in /*) ;; *) dq=$PWD/$dq ;; esac
pair=$(cd "${DQ_KV_PAIR:-$root/calib/longpair}" && pwd)
ctx=${DQ_KV_CTX:-1024}
keeps=${DQ_KV_KEEP:-0.5,0.25,0.125,0.0625}
seeds=$*

part() { # part NAME ARGUMENTS of dq eval
    name=$kind-$seed-$1
    shift
    [ -s "$out/$name.json" ] && return 0
    printf '%s\n' "$name" >&2
    set -- eval "$pair/$kind-$seed" "$@" --kv-recent 16 --kv-dense-type f32 -q --force --resume -o "$out/$name.json.new"
    # what each item or window got, without its text: summary.py and differences.py pair the policies over them
    (cd "$out" && "$dq" "$@" --dump-items "$out/$name.dump" >/dev/null)
    sed 's/"context": ".*", "continuation": /"continuation": /' "$out/$name.dump" | gzip -n >"$out/$name.items.gz"
    rm "$out/$name.dump"
    mv "$out/$name.json.new" "$out/$name.json"
}

needles() { # needles blind|asked NAME ARGUMENTS
    file=$pair/needles-$1.jsonl
    shift
    name=$1
    shift
    part "$name" --task mc --data "$file" --limit "$items" "$@"
}

text() { # text NAME ARGUMENTS
    name=$1
    shift
    part "$name" --text "$pair/text.txt" --ctx "$ctx" --limit "$windows" "$@"
}

# ---- What is run for one model, with the policies that are in question and then with the others ----

recall() { needles blind 16-recall --kv-bits 32 --kv-budget uniform --kv-policy $usual --kv-keep "$keeps"; }
recall_rest() { needles blind 16-rest-recall --kv-bits 32 --kv-budget uniform --kv-policy "$rest" --kv-keep "$keeps"; }
texts() { text 16-text --kv-bits 32 --kv-budget uniform --kv-policy $usual --kv-keep "$keeps"; }
texts_rest() { text 16-rest-text --kv-bits 32 --kv-budget uniform --kv-policy "$rest" --kv-keep "$keeps"; }
asked() { needles asked asked --kv-budget uniform --kv-policy $usual --kv-keep "${DQ_KV_KEEP:-0.25,0.0625}"; }
asked_rest() { needles asked rest-asked --kv-budget uniform --kv-policy "$rest" --kv-keep "${DQ_KV_KEEP:-0.25,0.0625}"; }
coded() {
    needles blind 4x4-recall --kv-bits 4:4 --kv-quant per-token --kv-budget uniform --kv-policy $usual --kv-keep "$keeps"
    text 4x4-text --kv-bits 4:4 --kv-quant per-token --kv-budget uniform --kv-policy $usual --kv-keep "$keeps"
    needles asked 4x4-asked --kv-bits 4:4 --kv-quant per-token --kv-budget uniform --kv-policy $usual --kv-keep "${DQ_KV_KEEP:-0.5,0.25}"
}
coded_rest() {
    needles blind 4x4-rest-recall --kv-bits 4:4 --kv-quant per-token --kv-budget uniform --kv-policy "$rest" --kv-keep "$keeps"
    text 4x4-rest-text --kv-bits 4:4 --kv-quant per-token --kv-budget uniform --kv-policy "$rest" --kv-keep "$keeps"
    needles asked 4x4-rest-asked --kv-bits 4:4 --kv-quant per-token --kv-budget uniform --kv-policy "$rest" --kv-keep "${DQ_KV_KEEP:-0.5,0.25}"
}
# the maps over the last 64 rows only, as snapkv has them
last() {
    needles asked last-asked --kv-budget uniform --kv-policy "$maps" --kv-window 64 --kv-keep "${DQ_KV_KEEP:-0.25,0.125,0.0625}"
    needles blind last-recall --kv-budget uniform --kv-policy "$maps" --kv-window 64 --kv-keep "${DQ_KV_KEEP:-0.5,0.25}"
}

# a budget by heads, those of this model at each share
heads() {
    # as words stand in the text, each after a space: the last six windows find, any other two are what decides
    find=$out/$kind-$seed.find.txt
    { tr ' ' '\n' <"$pair/text.txt" | tail -n $((6 * ctx)) && tr ' ' '\n' <"$pair/text.txt" | head -n $((2 * ctx)); } |
        tr '\n' ' ' | sed 's/^/ /; s/ $//' >"$find"
    for keep in $(printf %s "$keeps" | tr , ' '); do
        found=$out/$kind-$seed-$keep.heads.json
        [ -s "$found" ] || "$dq" plan heads "$pair/$kind-$seed" --kv-keep "$keep" --kv-policy keydiff --text "$find" --ctx "$ctx" \
            --search-windows 6 --limit 8 -o "$found" -q >/dev/null
        by=$(sed -n 's/.*"heads": "\([^"]*\)".*/\1/p' "$found")
        set -- --kv-policy keydiff --kv-keep "$keep" --kv-budget heads --kv-heads "$by"
        needles blind "heads-$keep-recall" --kv-bits 32 "$@"
        text "heads-$keep-text" --kv-bits 32,4 --kv-quant dither "$@"
        needles asked "heads-$keep-asked" --kv-bits 32 "$@"
    done
    rm "$find"
}

codes() {
    text page-widths-text --kv-bits 8,6,4,4:3,4:2,3,2 --kv-quant per-channel
    text dither-widths-text --kv-bits 8,6,4 --kv-quant dither
    text widths-text --kv-bits 32,8,6,4,4:3,4:2 --kv-quant per-token
}
codes_recall() {
    needles blind page-widths-recall --kv-bits 4,4:2,3,2 --kv-quant per-channel
    needles blind dither-4x4-recall --kv-bits 4 --kv-quant dither --kv-budget uniform --kv-policy keydiff --kv-keep "$keeps"
    text dither-4x4-text --kv-bits 4 --kv-quant dither --kv-budget uniform --kv-policy keydiff --kv-keep "$keeps"
    needles blind widths-recall --kv-bits 32,8,6,4,4:3,4:2 --kv-quant per-token
}

usual=keydiff,leverage,kvzip,h2o
for what in ${DQ_KV_PARTS:-recall texts asked heads codes codes_recall coded recall_rest texts_rest asked_rest last coded_rest}; do
    for seed in $seeds; do
        for kind in ${DQ_KV_KINDS:-diffllama llama}; do
            if [ ! -d "$pair/$kind-$seed" ]; then
                printf '%s is not here; see calib/longpair/README.md\n' "$pair/$kind-$seed" >&2
                continue
            fi
            rest=streaming,snapkv,knorm,random maps=h2o
            case $kind in
            diffllama) rest=$rest,diff,a1,a2,sum maps=a1,a2,sum,diff ;;
            esac
            rest=${DQ_KV_REST:-$rest}
            $what
        done
    done
done
if [ -z "${DQ_KV_KINDS:-}" ]; then python3 "$here/summary.py" "$out"; fi
