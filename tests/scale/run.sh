#!/bin/sh
# run.sh DQ GENERATE DIR [PRESET...]: time and memory of dq on checkpoints of real size, invented weights.
# For each preset: generate, info, quantize at 8 and 4 bits beside a plain cp of the same files, verify,
# and for the smaller ones a forward pass, and the first token of a cold file beside cat of it.
# Prints a table, writes DIR/scale.json, deletes the checkpoints.
#   DQ_SCALE_FREE   bytes of disk to leave free (default 15e9)
#   DQ_SCALE_PAIRS  pairs of cp and quantize (default 3; one for files that memory cannot hold)
# Other work on the machine disturbs single runs, so cp and quantize take turns and medians are compared.
# "warm": the page cache holds the source; "cold": it was dropped just before. A plain cp returns before
# the disk has the data while quantize syncs what it writes: "cp synced" is the copy that does so too.
set -u
LC_ALL=C
export LC_ALL
[ $# -ge 3 ] || { sed -n 's/^# //p' "$0" | head -9 >&2; exit 2; }
dq=$1 generate=$2 dir=$3
shift 3
[ $# -gt 0 ] || set -- diffllama-1b llama-1b motif-2.6b motif-2-12.7b
keep=${DQ_SCALE_FREE:-15000000000}
mkdir -p "$dir" || exit 2
model=$dir/model
trap 'rm -rf "$model" "$dir"/out*.h5* "$dir/copy" "$dir/time" "$dir/text"' EXIT
trap 'exit 130' INT TERM
rm -rf "$model"

say() { printf '%s\n' "$*"; }
free_bytes() { df -Pk "$dir" | awk 'NR == 2 {printf "%.0f\n", $4 * 1024}'; }
memory() { awk '/^MemTotal/ {printf "%.0f\n", $2 * 1024}' /proc/meminfo; }
field() { awk -v k="$1" '$1 == k {print $2}' "$dir/text"; }
calc() { awk "BEGIN {printf \"$1\", ($2)}"; } # without the parentheses > would write a file
median() { tr ' ' '\n' | sed '/^$/d' | sort -n | awk '{v[NR] = $1} END {print NR ? (v[int((NR + 1) / 2)] + v[int((NR + 2) / 2)]) / 2 : 0}'; }

# timed COMMAND...: seconds, peak KiB and processor seconds into $sec $rss $cpu; its status
timed() {
    /usr/bin/time -q -o "$dir/time" -f '%e %M %U %S' "$@" >"$dir/text" 2>&1
    status=$?
    read -r sec rss user sys <"$dir/time"
    cpu=$(calc %.2f "$user + $sys")
    [ $status -eq 0 ] || say "  failed ($status): $* : $(tail -n 1 "$dir/text")" >&2
    return $status
}

warm() { cat "$model"/*.safetensors >/dev/null; }
drop() { for f in "$model"/*.safetensors; do dd if="$f" iflag=nocache count=0 2>/dev/null; done; }

# File by file, so that one copy of one shard is all the room it takes; removal is not counted.
copy() { # copy plain|synced
    total=0
    for f in "$model"/*.safetensors; do
        if [ "$1" = synced ]; then
            timed sh -c 'cp "$1" "$2" && sync "$2"' sh "$f" "$dir/copy" || return 1
        else
            timed cp "$f" "$dir/copy" || return 1
        fi
        rm -f "$dir/copy"
        total=$(calc %.3f "$total + $sec")
    done
    sec=$total
}

pack() { # pack BITS
    rm -f "$dir"/out*.h5*
    timed "$dq" quantize "$model" -o "$dir/out.h5" --bits "$1" --group 128 --scale search --embed-bits 16 \
        --progress never
}

# Room for the checkpoint, one copied shard and a container; the published type first, bf16 if need be.
choose_dtype() {
    room=$(calc %.0f "$(free_bytes) - $keep")
    for dtype in "" bf16; do
        "$generate" "$model" "$1" ${dtype:+--dtype $dtype} --plan >"$dir/text" || return 1
        need=$(calc %.0f "1.75 * $(field bytes) + $(field largest)")
        [ "$(calc %d "$need <= $room")" = 1 ] && return 0
    done
    say "$1: skipped, the disk has too little space (needs $(calc %.1f "$need / 1e9") GB, has $(calc %.1f "$room / 1e9") GB beside the $(calc %.0f "$keep / 1e9") GB to be left free)"
    return 1
}

pairs_of_runs() {
    cps='' syncs='' packs='' rss8=0 cpus=''
    n=0
    while [ $n -lt "$pairs" ]; do
        n=$((n + 1))
        [ "$state" = warm ] && warm
        copy plain && cps="$cps $sec"
        [ "$state" = warm ] && warm
        pack 8 || return 1
        packs="$packs $sec" cpus="$cpus $cpu"
        [ "$rss" -gt "$rss8" ] && rss8=$rss
        copy synced && syncs="$syncs $sec"
    done
    cp_s=$(say "$cps" | median) sync_s=$(say "$syncs" | median)
    q8_s=$(say "$packs" | median) q8_cpu=$(say "$cpus" | median)
    drop
    copy plain && cold_cp=$sec
    drop
    pack 8 || return 1
    cold_q8=$sec
}

# A process that loads the checkpoint and computes one token twice, beside cat of the same files: both cold, in turns.
first_tokens() {
    cats='' firsts='' n=0
    while [ $n -lt "$pairs" ]; do
        n=$((n + 1))
        drop
        timed sh -c 'cat "$@" >/dev/null' sh "$model"/*.safetensors || return 1
        cats="$cats $sec"
        drop
        timed "$dq" bench prefill "$model" --tokens 1 --runs 1 --json --progress never || return 1
        firsts="$firsts $sec"
    done
    first=$(calc %.3f "$(say "$firsts" | median) / $(say "$cats" | median)")
}

one() {
    preset=$1
    choose_dtype "$preset" || return 0
    params=$(field parameters) bytes=$(field bytes) files=$(field files)
    say "$preset: $params parameters, $(calc %.2f "$bytes / 1e9") GB in $files file(s)${dtype:+, as $dtype for want of space}"
    timed "$generate" "$model" "$preset" ${dtype:+--dtype $dtype} || return 1
    if ! timed "$dq" info "$model"; then
        say "$preset: skipped, this dq does not read it"
        return 0
    fi
    info_rss=$rss pairs=${DQ_SCALE_PAIRS:-3} state=warm
    if [ "$(calc %d "$bytes > $(memory) / 2")" = 1 ]; then
        pairs=1 state="larger than memory"
    fi
    pairs_of_runs || return 1
    out8=$(wc -c <"$dir/out.h5")
    timed "$dq" verify "$dir/out.h5" --progress never || return 1
    verify_s=$sec verify_rss=$rss
    pack 4 || return 1
    q4_s=$sec rss4=$rss out4=$(wc -c <"$dir/out.h5")
    rm -f "$dir/out.h5"
    forward=null forward_rss=null first=null cats='' firsts=''
    if [ "$(calc %d "$params < 4e9")" = 1 ] && timed "$dq" bench prefill "$model" --tokens 64 --runs 1 --json --progress never; then
        forward=$sec forward_rss=$rss
        first_tokens || return 1
    fi
    report
}

report() {
    share=$(calc %.3f "$cp_s / $q8_s") share_sync=$(calc %.3f "$sync_s / $q8_s")
    share_cold=$(calc %.3f "$cold_cp / $cold_q8")
    rows="$rows$(printf '%-14s %7.2f %-6s %6.2f %6.2f %6.2f %6.2f %6.2f %6.2f %6.2f %6.2f %7.0f %7.0f %8.2f %9s %9s' \
        "$preset" "$(calc %.2f "$bytes / 1e9")" "${dtype:-asis}" "$cp_s" "$sync_s" "$q8_s" "$share" "$share_sync" \
        "$share_cold" "$q4_s" "$verify_s" "$(calc %.0f "$rss8 / 1024")" "$(calc %.0f "$rss4 / 1024")" \
        "$(calc %.2f "$q8_cpu")" "$forward" "$first")
"
    json="$json${json:+,}
    {\"preset\": \"$preset\", \"parameters\": $params, \"source_bytes\": $bytes, \"files\": $files,
     \"dtype\": \"${dtype:-published}\", \"cache\": \"$state\", \"pairs\": $pairs,
     \"cp_seconds\": [$(list "$cps")], \"cp_synced_seconds\": [$(list "$syncs")],
     \"quantize_8bit_seconds\": [$(list "$packs")], \"quantize_8bit_cpu_seconds\": [$(list "$cpus")],
     \"share_of_cp\": $share, \"share_of_cp_synced\": $share_sync,
     \"cold_cp_seconds\": $cold_cp, \"cold_quantize_8bit_seconds\": $cold_q8, \"share_of_cp_cold\": $share_cold,
     \"quantize_4bit_seconds\": $q4_s, \"container_8bit_bytes\": $out8, \"container_4bit_bytes\": $out4,
     \"verify_seconds\": $verify_s, \"info_peak_kib\": $info_rss, \"quantize_8bit_peak_kib\": $rss8,
     \"quantize_4bit_peak_kib\": $rss4, \"verify_peak_kib\": $verify_rss,
     \"forward_64_tokens_process_seconds\": $forward, \"forward_peak_kib\": $forward_rss,
     \"cold_cat_seconds\": [$(list "$cats")], \"cold_first_token_seconds\": [$(list "$firsts")],
     \"first_token_of_cat\": $first}"
}
list() { say "$1" | sed 's/^ *//; s/ *$//; s/  */, /g'; }

rows='' json='' failed=0
for p in "$@"; do
    one "$p" || { say "$p: failed"; failed=1; }
    rm -rf "$model" "$dir"/out*.h5*
done
if [ -n "$rows" ]; then
    say ''
    printf '%-14s %7s %-6s %6s %6s %6s %6s %6s %6s %6s %6s %7s %7s %8s %9s %9s\n' preset GB dtype cp cp+syn q8 \
        share s/sync s/cold q4 verify MiB8 MiB4 q8cpu forward first/cat
    printf '%s' "$rows"
    say 'Seconds are medians; share = seconds of cp / seconds of quantize at 8 bits, and against cp with sync, and with both cold;'
    say 'first/cat = seconds until one token is computed (twice), of a file that is not cached, over those of cat.'
fi
say "{\"schema\": \"dq-scale/1\", \"processors\": $(getconf _NPROCESSORS_ONLN), \"memory_bytes\": $(memory), \"results\": [$json
]}" >"$dir/scale.json"
exit $failed
