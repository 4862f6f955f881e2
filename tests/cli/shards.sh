# shards.sh: dq eval --shard, dq stats --shard and dq merge; sourced by run.sh. Times differ between runs, so lines with them are left out.
timeless() { grep -v '_per_second\|seconds"' "$1"; }
shard() { # dq eval --shard, which prints nothing
    "$dq" "$@" >"$top/out" 2>"$top/err" || complain "shards: dq $* fails: $(cat "$top/err")"
    [ ! -s "$top/out" ] || complain "shards: dq $* prints $(head -3 "$top/out")"
}
book=$repo/calib/pair/text.txt
set -- eval "diff model" "plain model" --text "$book" --ctx 64 --limit 30 --task mc --data choices.jsonl --logit-bits 16,4 \
    --kv-bits 16,4 --kv-keep 0.5 --kv-policy h2o --kv-recent 8 --threads 1
"$dq" "$@" --csv whole.csv -o whole.json -q >whole.txt || complain "shards: the whole fails"
for i in 1 2 3; do
    shard "$@" --shard $i/3 -o run$i.shard
    grep -q "shard $i of 3, [0-9.]* % of the work, is in run$i.shard" "$top/err" || complain "shards: shard $i says $(cat "$top/err")"
done
try 0 "against reference" merge run3.shard run1.shard run2.shard -o merged.json --csv merged.csv
cp "$top/err" merged.err
[ "$(timeless whole.json)" = "$(timeless merged.json)" ] || complain "shards: another document: $(diff whole.json merged.json | head -5)"
[ "$(grep -v ' tokens/s\|^-\|[0-9]$' whole.txt)" = "$(grep -v ' tokens/s\|^-\|[0-9]$' "$top/out")" ] || complain "shards: another table"
present merged.csv
try 6 "merged.csv: exists" merge run1.shard run2.shard run3.shard --csv merged.csv
try 0 '"schema": "dq-eval/1"' merge run1.shard run2.shard run3.shard --csv merged.csv --json --force
json dq-eval/1
# cut in another way it is the same; a shard goes on where it was stopped
for i in 1 2; do
    "$dq" "$@" --shard $i/2 -o half$i.shard -q || complain "shards: half $i fails"
done
cp half2.shard half2.whole
head -c $(($(wc -c <half2.whole) * 2 / 3)) half2.whole >half2.shard
try 4 "half2.shard: is not finished. Run its command again with --resume" merge half1.shard half2.shard
try 6 "half2.shard: exists" "$@" --shard 2/2 -o half2.shard
shard "$@" --shard 2/2 -o half2.shard --resume
try 0 "against reference" merge half1.shard half2.shard -o halves.json
[ "$(timeless whole.json)" = "$(timeless halves.json)" ] || complain "shards: another document of halves"
cp half2.shard twice.shard
shard "$@" --shard 2/2 -o twice.shard --resume
cmp -s half2.shard twice.shard || complain "shards: --resume of a finished shard changes it"

try 4 "half1.shard: is shard 1 of 2, and not 2 of 2" "$@" --shard 2/2 -o half1.shard --resume
# another's file stays as it is, also without a line's end; a full disk leaves what --resume goes on from
printf '{"my":"results"}' >mine.shard
cp mine.shard mine.kept
try 4 "mine.shard: is not a journal of this version of dq. Start over with --force" "$@" --shard 2/2 -o mine.shard --resume
cmp -s mine.shard mine.kept || complain "shards: --resume replaces another's file"
(
    trap '' XFSZ
    ulimit -f $(($(wc -c <half2.whole) / 1024)) # blocks
    "$dq" "$@" --shard 2/2 -o full2.shard -q 2>"$top/err" && complain "shards: a shard on a full disk"
    grep -q "full2.shard is kept; --resume goes on from it" "$top/err" || complain "shards: a full disk: $(cat "$top/err")"
)
shard "$@" --shard 2/2 -o full2.shard --resume
[ "$(timeless half2.whole | wc -l)" = "$(timeless full2.shard | wc -l)" ] || complain "shards: another shard after a full disk"

for word in --json "--csv r" "--html r" "--dump-items r" "--dump-requests r" "--dump-completions r"; do
    # shellcheck disable=SC2086 # an option and its value
    try 2 "${word% r}: a shard has nothing to show. Leave it out, and give it to dq merge" "$@" $word --shard 1/2 -o d.shard
done
absent r d.shard

# what stands in a shard is which run it is, and nothing else
with_words() { # with_words FILE WORD...: FILE as forged.shard, whose command has these words too
    file=$1 words=
    shift
    for w; do words="$words\"$w\", "; done
    line=$(head -n 1 "$file" | cut -c66- | sed "s|\"arguments\":[[]|&$words|")
    {
        printf '%s %s\n' "$(printf '%s' "$line" | sha256sum | cut -c-64)" "$line"
        tail -n +2 "$file"
    } >forged.shard
}
for word in --help --help=all --dry-run --json --resume --force -q -v -h "--csv x" "--html x" "--dump-items x" "--dump-requests x" \
    "--dump-completions x" "-o x" "--output=x" "--shard 1/2" "--progress always" "--threads 3"; do
    # shellcheck disable=SC2086
    with_words run1.shard $word
    try 0 "against reference" merge forged.shard run2.shard run3.shard -o forged.json --force
    cmp -s "$top/err" merged.err || complain "shards: a shard with $word: $(cat "$top/err")"
    [ "$(timeless whole.json)" = "$(timeless forged.json)" ] || complain "shards: another document of a shard with $word"
    absent x
    rm forged.json
done
with_words run1.shard --nothing
try 3 "the command in the shards: unknown option --nothing" merge forged.shard run2.shard run3.shard -o forged.json
absent forged.json

# what does not belong together
try 4 "2 of 3 shards are missing: 1, 3" merge run2.shard
try 4 "1 of 3 shards is missing: 2" merge run3.shard run1.shard
cp run1.shard again.shard
try 4 "run1.shard and again.shard are both shard 1" merge run1.shard run2.shard again.shard run3.shard
try 4 "half2.shard: is one of 2 shards, run1.shard of 3" merge run1.shard half2.shard
"$dq" "$@" --seed 2 --shard 2/3 -o other.shard -q 2>/dev/null || "$dq" "$@" --kv-sink 2 --shard 2/3 -o other.shard -q
try 4 "other.shard: is a shard of another evaluation than run1.shard" merge run1.shard other.shard run3.shard
DQ_CPU=scalar "$dq" "$@" --shard 2/3 -o scalar.shard -q
try 4 "scalar.shard: its bits may differ from those of run1.shard" merge run1.shard scalar.shard run3.shard
try 4 "is not a journal" merge whole.json
try 6 "No such file" merge nothing.shard
sed 's/0x1/0x2/' run2.shard >altered.shard
try 3 "altered.shard: line [0-9]* was altered" merge run1.shard altered.shard run3.shard
cp "$book" text.copy
set -- eval "diff model" --text text.copy --ctx 64 --limit 8
"$dq" "$@" --shard 1/1 -o one.shard -q
echo " and more" >>text.copy
try 4 "one.shard: belongs to a run with other inputs or settings" merge one.shard
for word in 0/3 4/3 1/0 1 a/b 1/3x -1/3 1/10000; do
    try 2 "expected I/N, with I from 1 to N" "$@" --shard $word -o x.shard
done
try 2 "nowhere to write the shard. Add -o FILE" "$@" --shard 1/2
try 2 "writes no such file" "$@" --shard 1/2 -o x.h5

# a merge replaces no shard
set -- eval "diff model" --text "$book" --ctx 64 --limit 12 --logit-bits 16,4 --threads 1
for i in 1 2; do
    shard "$@" --shard $i/2 -qo a$i.shard
    shard "$@" --fail-if 'nll_nats > 0' --shard $i/2 -o b$i.shard
done
cp a1.shard a1.kept
try 2 "a1.shard: input and output are the same file" merge a1.shard a2.shard -o a1.shard --force
cmp -s a1.shard a1.kept || complain "shards: a merge replaces a shard"
try 4 "b2.shard: its command asks for other conditions than that of a1.shard" merge a1.shard b2.shard
try 7 "results meet a condition of --fail-if" merge b1.shard b2.shard
# words of the command that look like options
cp -r "diff model" ./-odd
cp "$book" ./-q
for i in 1 2; do
    shard eval --text -q --ctx 64 --limit 12 --threads 1 --shard $i/2 -o c$i.shard -- -odd
done
try 0 "odd: 16.00 bpw" merge c2.shard c1.shard
try 2 "dry-run shows the whole. Leave out --shard" "$@" --shard 1/2 -o e.shard --dry-run
# what computed is what the document names
for i in 1 2; do
    DQ_CPU=scalar "$dq" "$@" --shard $i/2 -o s$i.shard -q || complain "shards: scalar"
done
try 0 '"device": "cpu, scalar, 1 thread"' merge s1.shard s2.shard --json
DQ_CPU=scalar "$dq" "$@" -o scalar.json -q >/dev/null
"$dq" merge s1.shard s2.shard -o scalar2.json >/dev/null 2>&1
[ "$(timeless scalar.json)" = "$(timeless scalar2.json)" ] || complain "shards: another document of scalar shards"

# statistics: two models side by side, the same bytes; a shard without work, a shard that was stopped
set -- stats "diff model" "plain model" --text "$book" --ctx 64 --limit 200 --one-pass --threads 1
"$dq" "$@" --csv whole.stats.csv -o whole.stats.h5 --json -q >whole.stats.json || complain "shards: statistics fail"
"$dq" "$@" -q >whole.stats.txt || complain "shards: statistics fail"
for n in 3 11; do
    rm -f st*.shard merged.stats.*
    for i in $(seq $n); do
        shard "$@" --shard "$i/$n" -o "st$i.shard"
    done
    grep -q "shard $n of $n, [0-9.]* % of the work, is in st$n.shard" "$top/err" || complain "shards: shard $n says $(cat "$top/err")"
    try 0 "Largest magnitudes" merge st*.shard -o merged.stats.h5 --csv merged.stats.csv
    cmp -s whole.stats.txt "$top/out" || complain "shards: other tables of $n shards"
    cmp -s whole.stats.h5 merged.stats.h5 || complain "shards: another HDF5 file of $n shards"
    cmp -s whole.stats.csv merged.stats.csv || complain "shards: another CSV of $n shards"
    try 6 "merged.stats.csv: exists" merge st*.shard --csv merged.stats.csv
    try 0 '"schema": "dq-stats/1"' merge st*.shard --json --force
    cmp -s whole.stats.json "$top/out" || complain "shards: another document of $n shards"
done
for i in 1 2; do
    shard "$@" --shard $i/2 -o sh$i.shard
done
cp sh2.shard sh2.whole
for bytes in 0 100 $(($(wc -c <sh2.whole) / 2)) $(($(wc -c <sh2.whole) - 2)); do
    head -c "$bytes" sh2.whole >sh2.shard
    [ "$bytes" -lt 500 ] || try 4 "sh2.shard: is not finished. Run its command again with --resume" merge sh1.shard sh2.shard
    shard "$@" --shard 2/2 -o sh2.shard --resume
    tail -n +2 sh2.shard | cmp -s - sh2.rest 2>/dev/null || { # the head has the words of its command
        tail -n +2 sh2.whole >sh2.rest
        tail -n +2 sh2.shard | cmp -s - sh2.rest || complain "shards: another shard after $bytes bytes and --resume"
    }
done
try 6 "sh2.shard: exists" "$@" --shard 2/2 -o sh2.shard
try 4 "sh1.shard: is shard 1 of 2, and not 2 of 2" "$@" --shard 2/2 -o sh1.shard --resume
try 4 "sh2.shard: belongs to a run with other inputs or settings" "$@" --limit 9 --shard 2/2 -o sh2.shard --resume
try 0 "Largest magnitudes" merge sh2.shard sh1.shard -o halves.stats.h5
cmp -s whole.stats.h5 halves.stats.h5 || complain "shards: another HDF5 file of halves"
for word in --help --json --force --resume "--csv x" "-o x" "--threads 3"; do
    # shellcheck disable=SC2086
    with_words sh1.shard $word
    try 0 "Largest magnitudes" merge forged.shard sh2.shard -o forged.h5
    cmp -s whole.stats.h5 forged.h5 || complain "shards: another HDF5 file of a shard with $word"
    absent x
    rm forged.h5
done
try 2 "the shards are of dq stats: unknown option --html" merge sh1.shard sh2.shard --html x.html
echo mine >mine.shard.partial
try 4 "mine.shard.partial: is not a journal of this version of dq. Move it away" "$@" --shard 1/2 -o mine.shard --force
[ "$(cat mine.shard.partial)" = mine ] || complain "shards: statistics replace another's file"
cmp -s mine.shard mine.kept || complain "shards: statistics replace a file that they cannot write"
ln -s linked.shard link.shard
shard "$@" --shard 2/2 -o link.shard
[ -L link.shard ] && tail -n +2 linked.shard | cmp -s - sh2.rest || complain "shards: statistics replace a link"
try 2 "--csv: a shard has nothing to show" "$@" --csv x --shard 1/2 -o x.shard
# what does not belong together
try 4 "a1.shard: is a shard of a dq eval, and sh1.shard of a dq stats" merge sh1.shard a1.shard
try 4 "sh1.shard: is a shard of a dq stats, and a1.shard of a dq eval" merge a1.shard sh1.shard
try 4 "1 of 2 shards is missing: 2" merge sh1.shard
try 4 "sh1.shard and sh1.shard are both shard 1" merge sh1.shard sh1.shard
try 4 "sh2.shard: is one of 2 shards, st1.shard of 11" merge st1.shard sh2.shard
"$dq" "$@" --limit 9 --shard 2/2 -qo lim.shard
try 4 "lim.shard: is a shard of another run of dq stats than sh1.shard" merge sh1.shard lim.shard
"$dq" "$@" --detail maps --shard 2/2 -qo maps.shard
try 4 "maps.shard: is a shard of another run of dq stats than sh1.shard" merge sh1.shard maps.shard
try 4 "sh2.shard: belongs to a run with other inputs or settings" "$@" --detail table5 --shard 2/2 -o sh2.shard --resume
"$dq" "$@" --places 3 --shard 2/2 -qo places.shard
try 4 "places.shard: its command asks for other conditions than that of sh1.shard" merge sh1.shard places.shard
DQ_CPU=scalar "$dq" "$@" --shard 2/2 -qo sc.shard
try 4 "sc.shard: its bits may differ from those of sh1.shard" merge sh1.shard sc.shard
sed 's/"model":0/"model":1/' sh2.shard >altered.shard
try 3 "altered.shard: line 2 was altered" merge sh1.shard altered.shard
cp sh1.shard sh1.kept
try 2 "sh1.shard: input and output are the same file" merge sh1.shard sh2.shard -o sh1.shard --force
cmp -s sh1.shard sh1.kept || complain "shards: a merge of statistics replaces a shard"
try 2 "expected HDF5, name.h5" merge sh1.shard sh2.shard -o s.json
# lines whose hash fits, with what no dq writes
forged() { # forged STATUS PATTERN LINE SED: a line of sh2.shard, changed so
    line=$(sed -n "$3p" sh2.shard | cut -c66- | sed "$4")
    {
        head -n $(($3 - 1)) sh2.shard
        printf '%s %s\n' "$(printf '%s' "$line" | sha256sum | cut -c-64)" "$line"
        tail -n +$(($3 + 1)) sh2.shard
    } >forged.shard
    try "$1" "$2" merge sh1.shard forged.shard
}
last=$(grep -n '"blocks":' sh2.shard | cut -d: -f1) # after a line for each layer of both models
[ "$last" -eq 6 ] || complain "shards: a shard has its blocks in line $last"
forged 3 'forged.shard: block 0 of model 0 is there twice' "$last" 's/\[\[[0-9]*/[[0/'
forged 3 '"blocks"' "$last" 's/\[\[[0-9]*/[[99/'
forged 3 '"blocks"' "$last" 's/\[\[[0-9]*/[["x"/'
forged 3 '"blocks"' "$last" 's/\[\[/[[],[/'
forged 3 'it says no blocks' "$last" 's/"blocks":.*/"blocks":[[],[]]}/'
forged 3 '"model"' 2 's/"model":0/"model":2/'
forged 3 '"layer"' 2 's/"layer":0/"layer":2/'
forged 3 'a layer is there twice' 3 's/"layer":1/"layer":0/'
forged 3 '"found"' 2 's/"found":"..../"found":"..=./'
forged 3 'is cut off, or none' 2 's/"found":".*"/"found":""/'
forged 3 'cut off, or none' 2 's/........"}/"}/'
forged 3 'is too long\|"found"\|cut off' 2 's/"}/AAAA"}/'
cp "$book" text.copy
"$dq" stats "diff model" --text text.copy --limit 3 --one-pass --shard 1/1 -qo one.stats.shard
sed -i 1s/^/more/ text.copy
try 4 "one.stats.shard: belongs to a run with other inputs or settings" merge one.stats.shard
# what there is no shard of
try 2 "Add --one-pass, whose medians carry a bound" stats "diff model" --shard 1/2 -o x.shard
try 2 "nowhere to write the shard. Add -o FILE" "$@" --shard 1/2
try 2 "expected I/N, with I from 1 to N" "$@" --shard 3/2 -o x.shard
try 2 "with --shard writes no such file" "$@" --shard 1/2 -o x.h5
try 2 "resume goes on with a shard, or with --sensitivity and -o. Add --shard I/N" "$@" --resume
try 2 "Give --text a file" stats "diff model" --text - --one-pass --shard 1/2 -o x.shard
for command in quantize "plan weights" "plan kv" "plan heads" "plan gates"; do
    # shellcheck disable=SC2086 # two words
    try 2 "shard: later steps need the results of earlier ones" $command "diff model" --shard=1/2
done
if [ -w /dev/full ]; then
    ln -sf /dev/full full.shard
    "$dq" "$@" --shard 1/2 -o full.shard --force >"$top/out" 2>"$top/err" && complain "shards: a shard on a full disk"
fi
# weights that another tool has quantized are laid out where shards are merged, which runs no model
set -- stats "$repo/tests/golden/prequant/gptq-v1" --ids "1 2 3 4" --one-pass
shard "$@" --shard 1/1 -o pre.shard
"$dq" "$@" -q --json >"$top/whole" || complain "shards: statistics of a prequantized model fail"
try 0 '"weights"' merge pre.shard --json
cmp -s "$top/whole" "$top/out" || complain "shards: other statistics of a prequantized model"

# prompts, of which nothing but texts comes: dq merge is asked for them
printf '{"prompt": "a"}\n{"prompt": "b c"}\n{"prompt": "d"}\n' >written.jsonl
set -- eval "plain model" --task generate --data written.jsonl --max-new 3 --threads 1
try 0 . "$@" --dump-completions texts.whole
shard "$@" --shard 1/2 -o w1.shard
shard "$@" --shard 2/2 -o w2.shard
try 2 "its texts are what comes out: give --dump-completions FILE" merge w1.shard w2.shard -o w.json
absent w.json
try 0 . merge w1.shard w2.shard -o w.json --dump-completions texts.merged
cmp -s texts.whole texts.merged || complain "shards: other texts of shards"
