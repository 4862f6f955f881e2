#!/bin/sh
# plan.sh OUTDIR: which bits where, for the embedded pair and a budget of 0.01 nats: the commands of docs/plan.md. Writes
# OUTDIR/llama.json and diffllama.json (dq-plan/1) and OUTDIR/plan.html; checks that quantizing by the recipes gives
# the weights that were measured; prints the tables of results/plan/README.md.
#   DQ      the program (default build/dq)
#   PYTHON  default python3
#   THREADS default 1; the result does not depend on it
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
dq=${DQ:-$root/build/dq} python=${PYTHON:-python3}
[ $# -eq 1 ] || { sed -n 's/^# //p' "$0" >&2; exit 2; }
dq=$(cd "$(dirname "$dq")" && pwd)/$(basename "$dq")
mkdir -p "$1"
out=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
OMP_WAIT_POLICY=passive # threads that wait in a loop would crawl on a busy machine
export OMP_WAIT_POLICY
cd "$work" # so that documents hold no path of this machine
ln -s "$root/calib" calib

for model in llama diffllama; do
    set -- "calib/pair/$model" --calib calib/pair/text.txt
    "$dq" plan weights "$@" --calib-ctx 192 --budget kld=0.01 -o $model.json --threads "${THREADS:-1}" --json -q >"$out/$model.json" || [ $? -eq 7 ]
    "$dq" quantize "$@" -o $model.h5 --recipe $model.json -q | grep '^as planned  *yes'
done
"$dq" report "$out/llama.json" "$out/diffllama.json" -o "$out/plan.html" --force

"$python" - "$out/llama.json" "$out/diffllama.json" <<'EOF'
import json
import sys

plans = {p.split("/")[-1][:-5]: json.load(open(p))["results"][0] for p in sys.argv[1:]}
print("\n| bits per weight, at most | " + " | ".join(f"predicted KLD, {m}" for m in plans) + " |")
print("|---" * (1 + len(plans)) + "|")
for most in (2.25, 2.5, 2.75, 3, 3.25, 3.5, 4, 5, 6, 8):
    at = [[c for c in p["curve"] if c["packed_bits_per_weight"] <= most][-1] for p in plans.values()]
    print(f"| {most} | " + " | ".join(f"{c['predicted_kld']:.3g}" for c in at) + " |")
print("\n| model | bits per weight | widths | predicted | on the search text | on the unseen text | its interval |")
print("|---" * 7 + "|")
for m, p in plans.items():
    for t in sorted(p["trials"], key=lambda t: t["packed_bits_per_weight"]):
        u = t.get("unseen")
        kld = "{value:.2g} ± {stderr:.1g}".format
        shown = ("", "")
        if u:
            low, high = u["kld_interval"]
            says = f"look {t['look']}: {'met' if t['meets'] else 'missed'}, " if "look" in t else ""
            shown = (kld(**u["kld"]), f"{says}{100 * (1 - u['outside']):.5g} %: {low:.2g} to {high:.3g}")
        print(f"| {m} | {t['packed_bits_per_weight']:.3f} | {t['uniform_bits'] or 'mixed'} | {t['predicted_kld']:.2g} | "
              f"{kld(**t['search']['kld'])} | {shown[0]} | {shown[1]} |")
EOF
