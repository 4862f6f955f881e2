#!/bin/sh
# defaults.sh: what dq quantize without options does to a real model, beside other settings.
#   sh calib/real/defaults.sh DQ MODEL TEXT OUT.csv      MODEL: the folder of checkpoint.py --rescaled
# TEXT is cut in three by lines: the last third calibrates, the middle one is scored (20 windows of 512 tokens, the second half
# of each). Defaults were chosen on the first third, which is not used here. A row a setting: bits per weight over all
# parameters, perplexity, KLD from the source with its standard error between windows, and what each loses, paired.
set -eu
[ $# -eq 4 ] || {
    echo "usage: defaults.sh DQ MODEL TEXT OUT.csv" >&2
    exit 2
}
dq=$1 model=$2 text=$3 out=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
lines=$(wc -l <"$text")
sed -n "$((lines / 3 + 1)),$((lines * 2 / 3))p" "$text" >"$work/score.txt"
sed -n "$((lines * 2 / 3 + 1)),\$p" "$text" >"$work/calib.txt"

i=0
: >"$work/settings"
while read -r settings; do
    i=$((i + 1))
    # shellcheck disable=SC2086
    set -- $settings
    case $settings in *method*) set -- "$@" --calib "$work/calib.txt" --calib-tokens 16384 --calib-ctx 512 ;; esac
    "$dq" quantize "$model" -o "$work/w$i.h5" -q "$@" >"$work/report"
    bits=$(sed -n 's/^bits per weight *\([0-9.]*\) over all.*/\1/p' "$work/report")
    "$dq" eval "$model" "$work/w$i.h5" --text "$work/score.txt" --ctx 512 --limit 20 -q --csv "$work/w$i.csv" >/dev/null
    rm "$work/w$i.h5"
    printf '"%s",%s,' "${settings:-(none)}" "$bits"
    awk -F, 'NR == 1 { for (k = 1; k <= NF; k++) at[$k] = k; next }
             $at["model"] ~ /^w[0-9]+.h5$/ {
                 print $at["ppl"] "," $at["ppl_stderr"] "," $at["kld_nats"] "," $at["kld_nats_stderr"]
             }' "$work/w$i.csv"
done <<'SETTINGS' >"$work/rows"

--bits 4 --group 128 --scale search --embed-bits 16
--scale search
--embed-bits 8
--embed-bits 4
--group 32
--method gptq
--method align
SETTINGS
awk -F, 'NR == 1 { for (k = 1; k <= NF; k++) at[$k] = k; next }
         $at["model"] !~ /^w[0-9]+.h5$/ { print "\"(source)\",32," $at["ppl"] "," $at["ppl_stderr"] ",0,0"; exit }' \
    "$work/w1.csv" >"$work/source"
{
    echo "settings,bits_per_weight,ppl,ppl_stderr,kld_nats,kld_nats_stderr"
    cat "$work/source" "$work/rows"
} >"$out"
