# sensitivity.sh: dq stats --forecast and --sensitivity; sourced by run.sh.
head -c 3300 "$repo/calib/pair/text.txt" >"$top/rounded"

# of_unit FILE PATTERN: the KLD of the unit whose lines have the pattern
of_unit() {
    awk -v pattern="$2" '/"of": / { unit = "" } { unit = unit $0 } /"value": / && unit ~ pattern { sub(/.*"value": /, ""); sub(/,.*/, ""); print; exit }' "$1"
}

near() { # near WHAT A B: alike to 1e-4 of each other
    awk -v a="$2" -v b="$3" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(b > 0 && d <= 1e-4 * b) }' ||
        complain "sensitivity: $1: $2 beside $3"
}

# ---- the KLD of one matrix is that of a container in which it alone is rounded (--bos: eval begins every window with the token that a text
# begins with, stats the first one alone)
set -- --text "$top/rounded" --ctx 160 --bos off --json -q
try 0 '"units"' stats "diff model" "$@" --limit 4 --sensitivity weights --detail table5 --one-pass
cp "$top/out" units.json
json dq-stats/1
for name in 'layers.1.self_attn.v_proj' 'layers.0.mlp.down_proj'; do
    "$dq" quantize "diff model" -o one.h5 --bits 16 --embed-bits 16 --bits-map "$(echo "$name" | sed 's/[.]/\\./g')=4/64/search" --force -q >/dev/null ||
        complain "sensitivity: quantize fails"
    try 0 kld_nats eval "diff model" one.h5 "$@" --limit 4
    near "$name" "$(of_unit units.json "$name")" "$(sed -n '/"model": "one.h5"/,$p' "$top/out" | sed -n '/"kld_nats": {/,$p' | sed -n 's/.*"value": \([-0-9.e+]*\),*$/\1/p' | head -1)"
done

# ---- threads, and runs that are stopped: the same bytes
set -- stats "diff model" --text "$top/rounded" --ctx 256 --sensitivity all --detail table5 --one-pass
alike() { # alike FILE: without what the number of threads decides
    grep -v '"threads":\|"device":' "$1"
}
try 0 '"sensitivity"' "$@" --json -q --threads 1 -o whole.h5
alike "$top/out" >whole.json
absent whole.h5.journal whole.h5.partial
try 0 '"sensitivity"' "$@" --json -q --threads 4 -o four.h5
alike "$top/out" | cmp -s - whole.json || complain "sensitivity: numbers depend on --threads"
cmp -s whole.h5 four.h5 || complain "sensitivity: the file depends on --threads"
"$dq" "$@" --json -q --threads 1 -o k.h5 >"$top/out" 2>"$top/err" </dev/null &
child=$!
while [ "$(grep -c . k.h5.journal 2>/dev/null)0" -lt 40 ] && kill -0 $child 2>/dev/null; do sleep 0.01; done
kill -INT $child
wait $child
got=$?
[ $got -eq 130 ] || complain "sensitivity: SIGINT: expected status 130, found $got: $(cat "$top/err")"
grep -q "k.h5.journal is kept. Run the same command with --resume" "$top/err" || complain "sensitivity: $(cat "$top/err")"
[ ! -s "$top/out" ] || complain "sensitivity: a stopped run prints results"
present k.h5.journal
absent k.h5 k.h5.partial
cp k.h5.journal kept.journal
try 6 "k.h5.journal: an interrupted run left it. Add --resume" "$@" -o k.h5
try 4 "k.h5.journal: belongs to a run with other inputs or settings (sensitivity_bits: begun with 4, this run has 3)" "$@" --sensitivity-bits 3 -o k.h5 --resume
line=$(sed -n 3p kept.journal | cut -c66-)
damaged_as() { # damaged_as RESULT: a journal whose only result is that one, with its hash right
    {
        sed -n 1p kept.journal
        printf '%s %s\n' "$(printf '%s' "$1" | sha256sum | cut -c-64)" "$1"
    } >k.h5.journal
}
damaged() { # damaged PATTERN SED
    wrong=$(printf '%s' "$line" | sed "$2")
    [ "$wrong" != "$line" ] || complain "sensitivity: nothing to damage: $2"
    damaged_as "$wrong"
    try 3 "k.h5.journal: $1" stats "diff model" --text "$top/rounded" --ctx 256 --sensitivity all --detail table5 --one-pass -o k.h5 --resume
    present k.h5.journal
}
damaged "has a unit that is none of 0 to 32" 's/"unit":[0-9]*/"unit":33/'
damaged "has a unit that is none of" 's/"unit":[0-9]*/"unit":"1"/'
damaged "has a model that is none of 0 to 0" 's/"model":0/"model":1/'
damaged '"kld" holds what is no number' 's/"kld":"[^"]*"/"kld":"0.5"/'
damaged '"kld" holds what is no number' 's/"kld":"/"kld":"x /'
damaged 'key "kld" is missing' 's/"kld"/"klf"/'
damaged '"local" holds what is no error' 's/"local":[-0-9.e]*/"local":"x"/'
damaged '"local" holds what is no error' 's/"local":/"local":-/'
# what a journal says is not measured again
damaged_as "$(printf '%s' "$line" | sed 's/"kld":"[^ ]* /"kld":"123 /')"
try 0 '"value"' "$@" --json -q --threads 1 -o k.h5 --resume
! alike "$top/out" | cmp -s - whole.json || complain "sensitivity: --resume measures what is known again"
rm k.h5
mv kept.journal k.h5.journal
try 0 '"sensitivity"' "$@" --json -q --threads 1 -o k.h5 --resume
alike "$top/out" | cmp -s - whole.json || complain "sensitivity: resumed: other numbers"
cmp -s whole.h5 k.h5 || complain "sensitivity: resumed: another file"
absent k.h5.journal

# ---- shards: units by turns, the forecast by the first
for n in 1 3; do
    rm -f un*.shard merged.h5
    for i in $(seq $n); do
        "$dq" "$@" --shard "$i/$n" -q -o "un$i.shard" || complain "sensitivity: shard $i of $n fails"
    done
    try 0 '"sensitivity"' merge un*.shard --json -o merged.h5
    alike "$top/out" | cmp -s - whole.json || complain "sensitivity: other numbers of $n shards"
    cmp -s whole.h5 merged.h5 || complain "sensitivity: another file of $n shards"
done
[ "$(cat un*.shard | grep -c '"unit"')" -eq 33 ] || complain "sensitivity: a unit is in no shard, or in two"
[ "$(grep -l '"forecast"' un*.shard)" = un1.shard ] || complain "sensitivity: the forecast is in $(grep -l '"forecast"' un*.shard)"
"$dq" "$@" --sensitivity-bits 3 --shard 2/3 -q -o other.shard
try 4 "other.shard: is a shard of another run of dq stats than un1.shard" merge un1.shard other.shard un3.shard
grep -v '"forecast"' un1.shard >lacks.shard
try 4 "a part of the work lacks" merge lacks.shard un2.shard un3.shard
hashed() { # hashed LINE: as a shard has it
    printf '%s %s\n' "$(printf '%s' "$1" | sha256sum | cut -c-64)" "$1"
}
added() { # added SHARD LINE TEXT: the shard with that line before its end is refused, saying the text
    {
        sed '$d' "$1"
        hashed "$2"
        tail -1 "$1"
    } >added.shard
    others=
    for shard in un*.shard; do
        [ "$shard" = "$1" ] || others="$others $shard"
    done
    # shellcheck disable=SC2086
    try 3 "$3" merge added.shard $others
}
first=$(grep '"unit":0' un1.shard | cut -c66-)
foretold=$(grep '"forecast"' un1.shard | cut -c66-)
added un1.shard "$first" "unit 0 is there twice"
added un2.shard "$first" "unit 0 is there twice"
added un3.shard "$foretold" "the forecast is there twice"
{
    grep -v '"forecast"' un1.shard | sed '$d'
    hashed "$(printf '%s' "$foretold" | sed 's/"forecast":"[^ ]* /"forecast":"nan /')"
    tail -1 un1.shard
} >added.shard
try 3 'is no sum' merge added.shard un2.shard un3.shard
{
    sed '$d' un2.shard
    hashed "$first"
} >added.shard
try 3 "unit 0 is not of this shard" "$@" --shard 2/3 -o added.shard --resume
rm -f un*.shard merged.h5 other.shard lacks.shard added.shard

# ---- a full disk: of scratch files nothing is left; where results alone do not fit, a run that resumes has them
(
    ulimit -f 40
    "$dq" "$@" -o full.h5 >"$top/out" 2>"$top/err" </dev/null
    [ $? -eq 6 ]
) || complain "sensitivity: a full disk: $(cat "$top/err")"
grep -q "cannot reserve space for activations" "$top/err" || complain "sensitivity: a full disk: $(cat "$top/err")"
absent full.h5 full.h5.partial full.h5.journal
(
    ulimit -f $(($(wc -c <whole.h5) / 512 - 8)) # blocks
    "$dq" "$@" -o full.h5 >"$top/out" 2>"$top/err" </dev/null
    [ $? -eq 6 ]
) || complain "sensitivity: a full disk for results: $(cat "$top/err")"
[ ! -s "$top/out" ] || complain "sensitivity: a full disk: prints results"
grep -q "full.h5.*cannot write.*full.h5.journal is kept" "$top/err" || complain "sensitivity: a full disk for results: $(cat "$top/err")"
absent full.h5 full.h5.partial
[ "$(wc -l <full.h5.journal)" -eq 34 ] || complain "sensitivity: a full disk: not all of 33 units are kept"
try 0 '"sensitivity"' "$@" --json -q -o full.h5 --resume
cmp -s whole.h5 full.h5 || complain "sensitivity: resumed after a full disk: another file"
absent full.h5.journal
[ -z "$(find . -name '.dq-scratch*')" ] || complain "sensitivity: scratch files are left"

# ---- little to measure
few="--detail table5 --one-pass"
# shellcheck disable=SC2086
{
    try 0 "What breaks first is inconclusive" stats "diff model" --ids "1 2 3 4 5 6" --sensitivity layers $few
    grep -q "warning: what breaks first will be inconclusive: 1 windows are fewer than the 4 that it takes" "$top/err" ||
        complain "sensitivity: no warning of few windows"
    try 0 "^layer 0 " stats "diff model" --ids "1 2 3 4 5 6" --sensitivity layers $few --places 0
    try 0 '"interval": null' stats "diff model" --ids "1 2 3 4 5 6" --sensitivity layers $few --json
    json dq-stats/1
    try 4 "no window has a token to predict" stats "diff model" --ids "1" --ids "2" --sensitivity layers $few
    try 4 "a cache has codes of windows of more than 124 tokens only, and the longest has 124" stats "diff model" \
        --text "$top/rounded" --ctx 124 --sensitivity values $few
    try 4 "no model has two maps. Give other kinds" stats "plain model" --ids "1 2 3" --sensitivity maps $few
    try 0 "layer 1 head 1 map 2" stats "plain model" "diff model" --ids "1 2 3 4" --sensitivity maps $few --places 8
    # a window of one token has no error to compare
    try 0 '"at_bits": 4' stats "plain model" "diff model" --ids "1 2 3 4" --ids "5 6 7" --ids "8" --forecast $few --json
    json dq-stats/1
    sed -n '/"bit_advantage"/,$p' "$top/out" | sed -n '/"logits"/,/"maps"/p' >advantage
    [ "$(grep -c '"value": [-0-9]' advantage)" -eq 4 ] || complain "sensitivity: no advantage over two windows of three: $(cat advantage)"
}

# ---- what is refused
try 2 "there are no codes of 7 bits. Give 2 to 6, or 8" stats "diff model" --ids 1 --sensitivity layers --sensitivity-bits 7
try 2 "from 2 to 8" stats "diff model" --ids 1 --sensitivity layers --sensitivity-bits 9
try 2 "Add --sensitivity[.]$" stats "diff model" --ids 1 --sensitivity-bits 4
try 2 "Add --sensitivity[.]$" stats "diff model" --ids 1 --logit-granularity per-tensor
try 2 "forecast has all of them. Add --sensitivity[.]$" stats "diff model" --ids 1 --forecast --sensitivity-bits 4
try 2 "Add --sensitivity or --forecast[.]$" stats "diff model" --ids 1 --sensitivity-windows 8
try 2 "from 2 to 4096" stats "diff model" --ids 1 --sensitivity layers --sensitivity-windows 1
try 2 "expected one of all, layers, heads" stats "diff model" --ids 1 --sensitivity logits
try 2 "layers stands twice" stats "diff model" --ids 1 --sensitivity layers,layers
try 2 "goes on with a shard, or with --sensitivity and -o. Add -o[.]$" stats "diff model" --ids 1 --sensitivity layers --resume
try 2 "Add --shard I/N[.]$" stats "diff model" --ids 1 --forecast -o x.h5 --resume
absent x.h5 x.h5.journal x.shard
if "$dq" doctor 2>/dev/null | grep -q "cuda  *yes"; then
    try 4 "heads cannot be rounded alone" stats "diff model" --ids "1 2" --sensitivity layers --device cuda --detail maps
else
    try 5 "cuda\|CUDA" stats "diff model" --ids "1 2" --sensitivity layers --device cuda --detail maps
fi
