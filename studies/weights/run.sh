#!/bin/sh
# run.sh OUT.csv PAIRED.csv: what rounding of weights costs the embedded models, by method and width, on text that the
# calibration has not seen. Pair: the first 40 documents (7680 tokens) calibrate, the other 60 are scored, windows of 192, their second half
# (5700 tokens). Long pair, three seeds: the first 30 windows of 1024 (30720 tokens) calibrate, the other 42 are scored (21462
# ids). A line a container: model, settings, KLD against the source and its standard error in nats; "llama, untied" is a copy
# with a head of its own. PAIRED.csv compares methods window by window: paired.py.
# Needs build/dq, and python3 with tokenizers for the cut.
#   DQ         the program (default build/dq)
#   PYTHON     default python3
#   DQ_MODELS  default "llama diffllama", "llama-0" to "diffllama-2"
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
dq=${DQ:-$root/build/dq} python=${PYTHON:-python3}
[ $# -eq 2 ] || { sed -n 's/^# //p' "$0" >&2; exit 2; }
out=$1 paired=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" "$here/split.py" "$root/calib/pair/llama/tokenizer.json" "$root/calib/pair/text.txt" 7680 \
    "$work/pair.calib.txt" "$work/pair.score.txt"
"$python" "$here/split.py" "$root/calib/longpair/llama-0/tokenizer.json" "$root/calib/longpair/text.txt" 30720 \
    "$work/longpair.calib.txt" "$work/longpair.score.txt"

score() { # score MODEL SETTINGS: one line
    name=$1
    shift
    pair=pair ctx=192
    case $name in *-*) pair=longpair ctx=1024 ;; esac
    from=$root/calib/$pair/$name settings=$*
    case $settings in
    *head-bits*)
        [ -e "$work/$name" ] || "$python" "$here/untie.py" "$from" "$work/$name"
        from=$work/$name name="$name, untied"
        ;;
    esac
    case $settings in *gptq* | *align*) set -- "$@" --calib "$work/$pair.calib.txt" --calib-ctx $ctx ;; esac
    case $settings in *--group*) ;; *) set -- "$@" --group 128 ;; esac
    "$dq" quantize "$from" -o "$work/made.h5" --force -q --embed-bits 16 "$@" >/dev/null
    "$dq" eval "$from" "$work/made.h5" --text "$work/$pair.score.txt" --ctx $ctx -q --csv "$work/made.csv" \
        --dump-items "$work/made.jsonl" --force >/dev/null
    sed -n "/\"model\": \"made.h5\"/ s/^{/{\"of\": \"$name\", \"settings\": \"$settings\", /p" "$work/made.jsonl" \
        >>"$work/windows.jsonl"
    awk -F, -v model="$name" -v settings="$settings" '
        NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i }
        NR == 3 {
            if (model ~ /,/) model = "\"" model "\""
            printf "%s,%s,%s,%s\n", model, settings, $at["kld_nats"], $at["kld_nats_stderr"]
        }' "$work/made.csv"
}

echo "model,settings,kld_nats,kld_nats_stderr" >"$out"
for model in ${DQ_MODELS:-llama diffllama llama-0 diffllama-0 llama-1 diffllama-1 llama-2 diffllama-2}; do
    for bits in 4 3; do
        for how in "--scale absmax" "--scale search" "--scale asym" "--method gptq" "--method gptq --scale asym" \
            "--method align" "--method align --scale asym"; do
            # shellcheck disable=SC2086 # settings are words
            score "$model" --bits $bits $how >>"$out"
        done
    done
    {
        score "$model" --bits 4 --group 32 --method gptq
        score "$model" --bits 4 --group 32 --method align
        score "$model" --bits 2 --method gptq
        score "$model" --bits 2 --method align
        for bits in 4 3; do
            for how in "--scale search" "--method gptq" "--method align"; do
                # shellcheck disable=SC2086 # settings are words
                score "$model" --bits 16 --head-bits $bits $how
            done
        done
    } >>"$out"
done
"$python" "$here/paired.py" "$work/windows.jsonl" "$paired"
