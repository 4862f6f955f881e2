# report.sh: dq report: pages of documents of dq stats, dq quantize and dq eval; sourced by run.sh.
pair=$repo/results/pair
set -- eval "plain model" --task mc --data choices.jsonl --limit 3 --logit-bits 16,4
"$dq" "$@" -o eval.json -q >/dev/null 2>"$top/err" || complain "report: dq eval fails: $(cat "$top/err")"
"$dq" stats "plain model" "diff model" --ids "0 17 44 8" --json >stats.json 2>"$top/err" ||
    complain "report: dq stats fails: $(cat "$top/err")"
"$dq" quantize "plain model" -o four.h5 --bits 4 --json -q >quantize.json || complain "report: dq quantize fails"
"$dq" quantize "diff model" --bits 8 --dry-run --json -q >plan.json || complain "report: dq quantize --dry-run fails"

# one line of error, nothing on stdout, no page, for everything that is no such document
damaged() { # damaged STATUS PATTERN TEXT
    printf '%s' "$3" >bad.json
    try "$1" "bad.json: $2" report bad.json -o gone.html
    try "$1" "bad.json: $2" report eval.json bad.json -o gone.html
    absent gone.html gone.html.partial
}
damaged 3 "not valid JSON" ''
damaged 3 "not valid JSON" '{"schema": "dq-eval/1", "results": ['
damaged 3 "not valid JSON" '{"schema": "dq-eval/1", "schema": "dq-eval/1", "results": []}'
damaged 3 "not a document of dq" '[1, 2]'
damaged 3 "not a document of dq" '{"results": []}'
damaged 3 '.*"results" is missing' '{"schema": "dq-stats/1"}'
damaged 3 'results\[0\]: "model" is missing' '{"schema": "dq-stats/1", "results": [{}]}'
damaged 3 'results\[0\]: "tensors" is missing' '{"schema": "dq-quantize/1", "results": [{}]}'
damaged 3 'results\[0\]: "task" is missing' '{"schema": "dq-eval/1", "results": [{"model": "m"}]}'
damaged 4 '.*another version (expected dq-eval/1, found "dq-eval/2").*that made it, 9.1' \
    '{"schema": "dq-eval/2", "dq_version": "9.1", "results": []}'
damaged 4 'a document of another version.*that made it$' '{"schema": "dq-stats/12", "results": []}'
damaged 4 'no page.*found "dq-doctor/1"' '{"schema": "dq-doctor/1", "results": []}'
head -c 2000 eval.json >cut.json
try 3 "cut.json: not valid JSON" report cut.json -o gone.html
try 4 "four.h5: is an HDF5 file" report four.h5 -o gone.html
try 4 "kv.json: no page.*dq-kv-study/1" report "$repo/results/kv/kv.json" -o gone.html
{
    printf '{"schema": "dq-eval/1", "results": ['
    awk 'BEGIN { for (i = 0; i < 5001; i++) printf "%s{\"model\": \"m\", \"task\": \"t\", \"metrics\": {}}", i ? "," : "" }'
    printf ']}'
} >huge.json
try 4 "huge.json: too many results for a page (expected at most 5000 in all documents, found 5001)" report huge.json -o gone.html
awk 'BEGIN {
    printf "{\"schema\": \"dq-plan/1\", \"settings\": {\"kind\": \"kv\"}, \"results\": [{\"units\": [0], \"trials\": [0"
    for (i = 1; i < 50000; i++) printf ",0"
    print "]}]}"
}' >huge.json
try 4 "huge.json: too many tensors, units, groups and trials for a page (expected at most 50000 in all documents, found 50001)" report huge.json -o gone.html
sed 's/"kv"/"heads"/' huge.json >huge2.json
try 4 "huge2.json: too many tensors, units, groups and trials" report huge2.json -o gone.html
for schema in 'dq-eval/ 1' dq-eval/+1 dq-eval/1.x dq-eval/1.; do
    echo "{\"schema\": \"$schema\", \"results\": []}" >version.json
    try 4 "version.json: a document of another version" report version.json -o gone.html
done
awk 'BEGIN { for (i = 0; i < 100000; i++) printf "[" }' >deep.json
try 3 "deep.json: not valid JSON" report deep.json -o gone.html
absent gone.html

# numbers at the ends of what a double holds are no range for a picture
sed 's/"value": [-0-9.e+]*/"value": 1e308/' eval.json >far.json
"$dq" report far.json -o far.html 2>"$top/err" || complain "report: numbers of 1e308: $(cat "$top/err")"
grep -q 1e308 far.json || complain "report: no number of far.json is far"
grep -q "</html>" far.html || complain "report: no whole page of numbers of 1e308"

# files and flags
try 6 "nowhere.json" report nowhere.json -o gone.html
try 6 "plain model: is a folder" report "plain model" -o gone.html
try 6 "folder nowhere does not exist" report eval.json -o nowhere/gone.html
try 2 "eval.json: is given twice" report eval.json stats.json ./eval.json -o gone.html
try 2 "given twice" report - - -o gone.html
try 2 "same file" report eval.json -o eval.json --force
try 2 "gone.json: -o writes no such file (expected HTML" report eval.json -o gone.json
try 2 "unknown option --html" report eval.json --html gone.html
grep -q dq-eval/1 eval.json || complain "report: replaced its input"
echo older >kept.html
try 6 "kept.html: exists. Add --force" report eval.json -o kept.html
[ "$(cat kept.html)" = older ] || complain "report: replaced a page without --force"
if command -v script >/dev/null; then
    script -qec "'$dq' report eval.json" /dev/null </dev/null >"$top/out" 2>&1
    [ $? -eq 2 ] || complain "report to a terminal: not status 2"
    grep -q "standard output is a terminal" "$top/out" || complain "report to a terminal: $(cat "$top/out")"
fi
# what needs no picture needs no gnuplot; what needs one says what to install
mkdir none
printf '{"schema": "dq-eval/1", "results": []}' >nothing.json
PATH=$work/none "$dq" report nothing.json >"$top/out" 2>"$top/err" || complain "report of nothing: $(cat "$top/err")"
grep -q "</html>" "$top/out" || complain "report of nothing: no page"
PATH=$work/none "$dq" report stats.json -o gone.html >"$top/out" 2>"$top/err"
got=$?
[ $got -eq 5 ] || complain "dq report without gnuplot: expected status 5, found $got"
grep -q "gnuplot is missing.*gnuplot-nox" "$top/err" || complain "dq report without gnuplot: $(cat "$top/err")"
absent gone.html gone.html.partial

# stopped while a picture is drawn: gnuplot is stopped too, nothing is left
mkdir fake
cat >fake/gnuplot <<'EOF'
#!/bin/sh
echo $$ >drawing
exec sleep 60
EOF
chmod +x fake/gnuplot
for signal in TERM INT; do
    rm -f drawing
    PATH=$work/fake:$PATH "$dq" report stats.json -o gone.html >"$top/out" 2>"$top/err" &
    job=$!
    i=0
    while [ ! -s drawing ] && [ $i -lt 100 ]; do
        sleep 0.1
        i=$((i + 1))
    done
    kill -s $signal $job
    wait $job
    got=$?
    want=143
    [ $signal = TERM ] || want=130
    [ $got -eq $want ] || complain "dq report, SIG$signal: expected status $want, found $got: $(cat "$top/err")"
    [ "$(grep -c "^dq report: error: interrupted" "$top/err")" = 1 ] || complain "dq report, SIG$signal: $(cat "$top/err")"
    kill -0 "$(cat drawing)" 2>/dev/null && complain "dq report, SIG$signal: gnuplot still runs"
    absent gone.html gone.html.partial
done

if command -v gnuplot >/dev/null; then
    # what --html writes, byte for byte
    same_page() { # same_page ARGUMENTS...: of dq eval
        "$dq" eval "$@" --html page.html -o same.json --force -q >/dev/null 2>"$top/err" ||
            complain "dq eval $*: $(cat "$top/err")"
        "$dq" report same.json >made.html 2>"$top/err" || complain "dq report: $(cat "$top/err")"
        cmp -s made.html page.html || complain "dq report: another page than that of dq eval $* --html"
    }
    same_page "plain model" "diff model" --text "short text" --ctx 32 --logit-bits 16,4 --positions --slices
    same_page "plain model" --text "short text" --ctx 64 --kv-recent 8 --kv-sink 2 --kv-bits 16,4
    try 0 "dq-eval/1" "$@" --html page.html --json --force
    cp "$top/out" same.json
    "$dq" report same.json -o made.html --force >"$top/out" 2>"$top/err" || complain "dq report -o: $(cat "$top/err")"
    [ ! -s "$top/out" ] || complain "dq report -o: prints on stdout"
    cmp -s made.html page.html || complain "dq report: another page than that of dq eval --json --html"
    "$dq" report - -o - <same.json | cmp -s - page.html || complain "dq report -: another page than from the file"
    # one page of all kinds
    "$dq" report plan.json eval.json quantize.json stats.json same.json -o all.html 2>"$top/err" ||
        complain "dq report of all kinds: $(cat "$top/err")"
    for title in "Outliers: stats.json" "Containers: 2 documents" "Evaluation: eval.json" "Evaluation: same.json"; do
        grep -q "^<h2>$title</h2>" all.html || complain "dq report: no part $title"
    done
    [ "$(grep -c '<section class="part"' all.html)" -eq 4 ] || complain "dq report: not 4 parts"
    [ "$(grep -c '<section class="answer" id="answer">' all.html)" = 1 ] || complain "dq report: not one answer"
    for section in part1-magnitudes part1-heads part1-profiles part1-channels part1-matrices part1-layers part1-maps part1-places part2-containers part2-sqnr part2-worst \
        part2-tensors part3-accuracy part4-results; do
        grep -q "<section id=\"$section\">" all.html || complain "dq report: no section $section"
    done
    grep -q 'planned (--dry-run), not written' all.html || complain "dq report: does not say what was only planned"
    # numbers are those of the documents
    worst=$(sed -n 's/^ *"sqnr_db": \([0-9.]*\)$/\1/p' quantize.json | sort -g | head -n 1)
    grep -q "<td>$(printf %.2f "$worst")</td>" all.html || complain "dq report: the worst SQNR is not $worst"
    # each model's bits per weight and bytes of its files come first: two tables of stats, one of containers, one of an eval
    "$dq" report eval.json quantize.json stats.json -o all.html --force 2>"$top/err" || complain "dq report: $(cat "$top/err")"
    [ "$(grep -c '<th scope="col" class="l">\(model\|container\)</th><th scope="col">bits per weight</th><th scope="col">file bytes</th>' all.html)" -eq 4 ] ||
        complain "dq report: not four tables begin with what models take"
    for document in eval quantize stats; do
        bits=$(sed -n 's/^ *"bits_per_weight": \([0-9.]*\),$/\1/p' $document.json | head -n 1)
        bytes=$(sed -n '/"results"/,$s/^ *"file_bytes": \([0-9]*\),$/\1/p' $document.json | head -n 1)
        grep -q "<td>$(printf %.3f "$bits")</td><td>$bytes</td>" all.html || complain "dq report: $document: not $bits bits, $bytes bytes"
    done
    # the documents of this repository
    for d in stats logits weights-accuracy weights-text; do
        "$dq" report "$pair/$d.json" >old.html 2>"$top/err" || complain "dq report $d.json: $(cat "$top/err")"
        grep -q "</html>" old.html || complain "dq report $d.json: no page"
    done
    if command -v python3 >/dev/null; then
        python3 - all.html old.html page.html <<'EOF' || complain "dq report: a page is not well-formed"
import sys
import xml.etree.ElementTree as tree
for name in sys.argv[1:]:
    page = open(name, encoding="utf-8").read()
    root = tree.fromstring(page.replace("<!DOCTYPE html>", "", 1))
    ids = [x.get("id") for x in root.iter() if x.get("id")]
    assert len(ids) == len(set(ids)), name
    links = [x.get("href")[1:] for x in root.iter("a")]
    assert links and set(links) <= set(ids), name
EOF
    fi
    # no room
    "$dq" report same.json >/dev/full 2>"$top/err"
    got=$?
    [ $got -eq 6 ] || complain "dq report >/dev/full: expected status 6, found $got"
    grep -q "standard output: cannot write" "$top/err" || complain "dq report >/dev/full: $(cat "$top/err")"
    try 6 "/dev/full: not a regular file" report same.json -o /dev/full --force
    (
        trap '' XFSZ
        ulimit -f 4
        exec "$dq" report same.json -o gone.html
    ) >"$top/out" 2>"$top/err"
    got=$?
    [ $got -eq 6 ] || complain "dq report on a full disk: expected status 6, found $got: $(cat "$top/err")"
    absent gone.html gone.html.partial
    "$dq" report all.html >"$top/out" 2>/dev/null && complain "dq report: takes its own page for a document"
fi
rm -rf none fake drawing

# lists of a document cost what they are long: 20000 names take no gigabyte, and the page has the last one
many() { # many EACH, of which % is the number
    awk -v n=20000 -v each="$1" 'BEGIN { for (i = 0; i < n; i++) { s = each; gsub("%", i, s); printf "%s%s", i ? ", " : "", s } }'
}
least=600000 # KiB; a build with sanitizers cannot begin in so few
# shellcheck disable=SC3045 # dash and bash have it
(ulimit -v $least && "$dq" --version; exit $?) >/dev/null 2>&1 || least=unlimited
"$dq" eval "plain model" --text "short text" --ctx 64 -o few.json -q >/dev/null
{
    sed -e '$d' -e 's/"averages"/"others"/' few.json
    printf ', "averages": [{"model": "m", "logit_bits": 16, "tasks": [%s], "metrics": [%s]}]}\n' "$(many '"t%"')" "$(many '"acc"')"
} >many.json
(
    # shellcheck disable=SC3045 # dash and bash have it
    ulimit -v $least
    exec "$dq" report many.json -o many.html
) >"$top/out" 2>"$top/err" || complain "report: 20000 tasks of a mean: $(cat "$top/err")"
grep -q 't19999' many.html || complain "report: the last of 20000 tasks is not there"
for i in 1 2; do
    "$dq" stats "plain model" --ids "1 2 3" --json >few.json
    {
        sed '/"settings": {/q' few.json
        many "\"k%\": $i"
        sed -e '1,/"settings": {/d' few.json | sed '1s/^/,/'
    } >many$i.json
done
(
    # shellcheck disable=SC3045 # dash and bash have it
    ulimit -v $least
    exec "$dq" report many1.json many2.json -o many.html --force
) >"$top/out" 2>"$top/err" || complain "report: 20000 settings: $(cat "$top/err")"
grep -q 'k19999' many.html || complain "report: the last of 20000 settings is not there"
